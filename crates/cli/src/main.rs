//! pgstrata: block-level incremental backup for PostgreSQL.
//!
//! This crate turns arguments and configuration into calls of the engine, and
//! what the engine returns into text, JSON and exit codes. It decides nothing.

mod args;
mod caller;
mod commands;
mod config;
mod examples;
mod exit;
mod output;
mod progress;
mod terminal;
mod value;

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use clap::FromArgMatches;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;

use crate::args::{Cli, Command, LogLevel, Output};
use crate::caller::Caller;
use crate::commands::Context;
use crate::config::{Config, choose};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    let caller = Caller::of(&arguments);
    let gets = caller::gets(&arguments);
    // The message of a panic was printed when it began.
    let code = catch_unwind(|| start(arguments, caller));
    ExitCode::from(code.unwrap_or_else(|_| caller.panic(gets)))
}

fn start(arguments: Vec<OsString>, caller: Caller) -> u8 {
    let gets = caller::gets(&arguments);
    let wanted = output::wanted_by(&arguments);
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(told) => {
            let code = u8::try_from(told.exit_code()).unwrap_or(exit::USAGE);
            let code = caller.usage(code, gets);
            return match output::print_usage(&told, wanted, code) {
                Ok(()) => code,
                Err(error) => fail(&error, wanted, caller, gets),
            };
        }
    };
    let gets = matches!(cli.command, Command::ArchiveGet(_));
    let serves = match caller {
        Caller::Recovery => gets,
        Caller::Archiver => matches!(cli.command, Command::ArchivePush(_)),
        Caller::Person => true,
    };
    let mut output = cli.global.output.unwrap_or(Output::Text);
    match run(cli, &mut output) {
        Ok(code) => caller.success(code, serves),
        Err(error) => fail(&error, output, caller, gets),
    }
}

fn fail(error: &Error, output: Output, caller: Caller, gets: bool) -> u8 {
    let code = caller.failure(error.kind(), gets);
    output::print_error(error, output, code);
    code
}

fn parse(arguments: Vec<OsString>) -> std::result::Result<Cli, clap::Error> {
    let matches = args::command().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches)
}

fn run(cli: Cli, output: &mut Output) -> Result<u8> {
    // Before anything asks what the limit allows.
    limits::raise_open_files();
    // Before anything makes a file, or a thread.
    limits::keep_owners_access();
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
    let runtime = runtime(&cli.command)?;
    let context = Context {
        config,
        output: *output,
        wants_progress: !cli.global.no_progress,
    };
    let act = || runtime.block_on(commands::run(&context, cli.command));
    let code = catch_unwind(AssertUnwindSafe(act));
    // A worker that hangs on the network must not keep a finished command alive, nor one that panicked.
    runtime.shutdown_background();
    code.unwrap_or_else(|panic| resume_unwind(panic))
}

fn runtime(command: &Command) -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if is_of_server(command) {
        // The server starts one for every segment: not a thread per core each time.
        builder.worker_threads(2);
    }
    builder.enable_all().build().map_err(|error| {
        Error::new(
            Kind::File,
            format!("could not start worker threads: {error}"),
        )
    })
}

/// Whether the server runs the command itself.
fn is_of_server(command: &Command) -> bool {
    matches!(command, Command::ArchivePush(_) | Command::ArchiveGet(_))
}

/// The server calls the archive commands for every segment and logs what they say.
fn default_level(command: &Command) -> LogLevel {
    if is_of_server(command) && !io::stderr().is_terminal() {
        LogLevel::Warn
    } else {
        LogLevel::Info
    }
}
