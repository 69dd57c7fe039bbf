//! Standard output: text for people, JSON for programs. Logs go to standard error.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};

use pgstrata_layer::plain::{is_plain, plain, plain_but};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::keys::{holds_secret, mask};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{LogLevel, Output};
use crate::exit;
use crate::progress::AboveBar;
use crate::terminal;

/// Writes to standard output, without secrets. A closed pipe is no error: its reader has read enough.
///
/// # Errors
/// When standard output does not take the text; a full disk must not look like an empty answer.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out
        .write_all(mask(text).as_bytes())
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written
            .context(|| "could not write to standard output".to_owned())
            .map_err(|error| error.hint("the command did its work, and only this output is lost")),
    }
}

/// Writes a report for people, and nothing in it that commands their terminal.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_report(text: &str) -> Result<()> {
    print(&plain_but(text, &['\n']))
}

/// A document as programs read it: its schema first, then its fields in their own order.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: String,
    #[serde(flatten)]
    fields: &'a T,
}

/// The document of `fields`, with its schema, as [`print_json`] writes it.
///
/// # Errors
/// For a path that is not UTF-8.
pub(crate) fn document(schema: &str, fields: &impl Serialize) -> Result<Value> {
    let schema = format!("pgstrata.{schema}");
    serde_json::to_value(Document { schema, fields }).map_err(|error| {
        let what = format!("could not write the report as JSON: {error}");
        Error::new(Kind::Unsupported, what)
    })
}

/// Writes `fields` as JSON, with `schema` (`name/version`) as its first key; `docs/schema/` describes each.
///
/// # Errors
/// As [`print()`], and for a path that is not UTF-8.
pub(crate) fn print_json(schema: &str, fields: &impl Serialize) -> Result<()> {
    let schema = format!("pgstrata.{schema}");
    let text = serde_json::to_string_pretty(&Document { schema, fields }).map_err(|error| {
        let what = format!("could not write the report as JSON: {error}");
        Error::new(Kind::Unsupported, what)
    })?;
    print(&format!("{}\n", escaped(&text)))
}

/// JSON with the escapes of JSON for what is plain text for programs only.
fn escaped(json: &str) -> Cow<'_, str> {
    let passes = |character: char| is_plain(character) || character == '\n';
    if json.chars().all(passes) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match passes(character) {
            true => escaped.push(character),
            // All of them are below U+10000.
            false => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
        }
    }
    Cow::Owned(escaped)
}

/// Shows a failure: for people on standard error, for programs on standard output too.
pub(crate) fn print_error(error: &Error, output: Output, exit_code: u8) {
    if exit_code == exit::NOT_IN_ARCHIVE {
        // How every recovery ends, and what a standby is told every five seconds: not a line in the server's log.
        tracing::info!("the archive ends here: {error}");
    } else {
        let mut err = io::stderr().lock();
        let _ = writeln!(err, "pgstrata: error: {}", plain(&mask(&error.to_string())));
        if let Some(hint) = error.hint_text() {
            let _ = writeln!(err, "pgstrata: hint: {}", plain(&mask(hint)));
        }
    }
    if output == Output::Json {
        let document = json!({
            "kind": exit::name(error.kind()),
            "exit_code": exit_code,
            "message": error.to_string(),
            "hint": error.hint_text(),
        });
        // There is no better place left to say that this failed too.
        let _ = print_json("error/1", &document);
    }
}

/// Says below the message of a panic what it is.
pub(crate) fn print_bug() {
    let mut err = io::stderr().lock();
    let _ = writeln!(
        err,
        "pgstrata: error: this is a bug in pgstrata; nothing that is stored is lost by it. Please report the lines above"
    );
}

/// Shows arguments that are not understood, or the help that was asked for.
///
/// # Errors
/// When standard output does not take the help.
pub(crate) fn print_usage(told: &clap::Error, output: Output, exit_code: u8) -> Result<()> {
    if told.use_stderr() && (output == Output::Json || holds_secret(&told.to_string())) {
        print_error(&usage_error(told), output, exit_code);
        return Ok(());
    }
    match told.print() {
        Err(error) if !told.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context(|| "could not write to standard output".to_owned())
        }
        // A closed standard error takes nothing from the exit code.
        _ => Ok(()),
    }
}

/// What clap says in paragraphs, as one message and one hint.
fn usage_error(told: &clap::Error) -> Error {
    use clap::error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    let missing = [DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand];
    if missing.contains(&told.kind()) {
        let help = format!(
            "\"{} --help\" lists the commands",
            command_of(&told.to_string())
        );
        return Error::new(Kind::Usage, "no command was given").hint(help);
    }
    let text = told.to_string();
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let lines = paragraph.lines().map(str::trim);
        lines.collect::<Vec<_>>().join(" ")
    });
    let message = paragraphs.next().unwrap_or_default();
    let message = message.trim_start_matches("error: ").to_owned();
    let tip = paragraphs.find_map(|text| text.strip_prefix("tip: ").map(str::to_owned));
    let hint =
        tip.unwrap_or_else(|| "\"pgstrata COMMAND --help\" describes the options".to_owned());
    Error::new(Kind::Usage, message).hint(hint)
}

/// What was called: "pgstrata tracker" of `Usage: pgstrata tracker <COMMAND>`.
fn command_of(help: &str) -> String {
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: "));
    let words = usage.unwrap_or("pgstrata").split_whitespace();
    let words = words.take_while(|word| !word.starts_with(['<', '[']));
    words.collect::<Vec<_>>().join(" ")
}

/// Whether programs read what `arguments`, which were not understood, ask for.
pub(crate) fn wanted_by(arguments: &[OsString]) -> Output {
    let words = || arguments.iter().skip(1).take_while(|word| *word != "--");
    let pairs = words().zip(words().skip(1));
    let mut told = words()
        .filter_map(|word| word.to_str()?.strip_prefix("--output=").map(str::to_owned))
        .chain(
            pairs
                .filter(|(option, _)| *option == "--output")
                .map(|(_, value)| value.to_string_lossy().into_owned()),
        );
    let of_environment = || env::var("PGSTRATA_OUTPUT").ok();
    match told.next().or_else(of_environment).as_deref() {
        Some("json") => Output::Json,
        _ => Output::Text,
    }
}

/// Starts the log on standard error.
pub(crate) fn start_log(level: LogLevel) {
    let level = match level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
    };
    let others = level.min(tracing::Level::WARN);
    // The library that judges certificates says at each try what our error says once.
    let filter = format!(
        "{others},rustls_platform_verifier=off,pgstrata={level},pgstrata_engine={level},pgstrata_store={level}"
    );
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(|| AboveBar)
        .with_target(false)
        .with_ansi(terminal::has_colours())
        // It would say so where it cannot: on standard error, and end the program there.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn json_commands_no_terminal_and_says_the_same() {
        let text = "a\u{9b}2J\u{202e}\u{2028}\u{7f}\u{7}\n\"ü🙂";
        let shown = serde_json::to_string_pretty(&json!({ "host": text })).unwrap();
        let shown = escaped(&shown);
        assert!(shown.chars().all(|c| is_plain(c) || c == '\n'), "{shown:?}");
        let read: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["host"], text);
    }

    #[test]
    fn a_missing_command_is_looked_up_where_it_is_missing() {
        for (words, hint) in [
            (vec!["pgstrata"], "\"pgstrata --help\" lists the commands"),
            (
                vec!["pgstrata", "tracker"],
                "\"pgstrata tracker --help\" lists the commands",
            ),
        ] {
            let told = crate::args::command()
                .try_get_matches_from(words)
                .unwrap_err();
            assert_eq!(usage_error(&told).hint_text(), Some(hint));
        }
    }
}
