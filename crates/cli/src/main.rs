//! pgstrata: block-level incremental backup for PostgreSQL.
//!
//! This crate turns arguments and configuration into calls of the engine, and
//! what the engine returns into text, JSON and exit codes. It decides nothing.

mod args;
mod commands;
mod config;
mod examples;
mod exit;
mod output;
mod progress;
mod value;

use std::process::ExitCode;

use clap::Parser;
use pgstrata_engine::error::{Error, Kind, Result};

use crate::args::{Cli, Command, LogLevel, Output};
use crate::commands::Context;
use crate::config::{Config, choose};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let gets_wal = matches!(cli.command, Command::ArchiveGet(_));
    let mut output = cli.global.output.unwrap_or(Output::Text);
    let code = match run(cli, &mut output) {
        Ok(code) => code,
        Err(error) => {
            output::print_error(&error, output);
            failure_code(error.kind(), gets_wal)
        }
    };
    ExitCode::from(code)
}

/// `archive-get` has codes of its own: see [`exit::STOP_RECOVERY`].
fn failure_code(kind: Kind, gets_wal: bool) -> u8 {
    match (gets_wal, kind) {
        (true, Kind::NotFound) => exit::NOT_IN_ARCHIVE,
        (true, _) => exit::STOP_RECOVERY,
        (false, kind) => exit::code(kind),
    }
}

fn run(cli: Cli, output: &mut Output) -> Result<u8> {
    if let Some(code) = commands::without_configuration(&cli.command)? {
        return Ok(code);
    }
    let config = Config::load(cli.global.clone())?;
    let settings = &config.settings;
    *output = choose(cli.global.output, settings.output.as_deref(), "output")?.unwrap_or(*output);
    let level = choose(
        cli.global.log_level,
        settings.log_level.as_deref(),
        "log-level",
    )?;
    output::start_log(level.unwrap_or_else(|| default_level(&cli.command)));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(
                Kind::File,
                format!("could not start worker threads: {error}"),
            )
        })?;
    let context = Context {
        config,
        output: *output,
        wants_progress: !cli.global.no_progress,
    };
    let code = runtime.block_on(commands::run(&context, cli.command));
    // A worker that hangs on the network must not keep a finished command alive.
    runtime.shutdown_background();
    code
}

/// The server calls the archive commands for every segment and logs what they say.
fn default_level(command: &Command) -> LogLevel {
    match command {
        Command::ArchivePush(_) | Command::ArchiveGet(_) | Command::ArchivePrefetch(_) => {
            LogLevel::Warn
        }
        _ => LogLevel::Info,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_get_says_1_only_for_certainly_not_there() {
        assert_eq!(failure_code(Kind::NotFound, true), 1);
        for kind in [
            Kind::Repository,
            Kind::Damaged,
            Kind::Usage,
            Kind::File,
            Kind::Refused,
            Kind::Interrupted,
        ] {
            assert_eq!(failure_code(kind, true), 255);
        }
        assert_eq!(failure_code(Kind::NotFound, false), 10);
    }
}
