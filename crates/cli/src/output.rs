//! Standard output: text for people, JSON for programs. Logs go to standard error.

use std::io::{self, Write};

use pgstrata_engine::error::Error;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{LogLevel, Output};
use crate::exit;
use crate::progress::AboveBar;

/// Writes to standard output; a closed pipe is the reader's wish and no error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes `document` as JSON, with `schema` (`name/version`) as its first key.
pub(crate) fn print_json(schema: &str, document: &impl Serialize) {
    let mut object = serde_json::Map::new();
    object.insert(
        "schema".to_owned(),
        Value::from(format!("pgstrata.{schema}")),
    );
    match serde_json::to_value(document) {
        Ok(Value::Object(fields)) => object.extend(fields),
        Ok(other) => {
            object.insert("value".to_owned(), other);
        }
        Err(error) => {
            object.insert("error".to_owned(), Value::from(error.to_string()));
        }
    }
    if let Ok(text) = serde_json::to_string_pretty(&object) {
        print(&format!("{text}\n"));
    }
}

/// Shows a failure: for people on standard error, for programs on standard output too.
pub(crate) fn print_error(error: &Error, output: Output) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "pgstrata: error: {error}");
    if let Some(hint) = error.hint_text() {
        let _ = writeln!(err, "pgstrata: hint: {hint}");
    }
    if output == Output::Json {
        let document = json!({
            "kind": exit::name(error.kind()),
            "exit_code": exit::code(error.kind()),
            "message": error.to_string(),
            "hint": error.hint_text(),
        });
        print_json("error/1", &document);
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
    let filter = format!("{others},pgstrata={level},pgstrata_engine={level}");
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(|| AboveBar)
        .with_target(false)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .init();
}
