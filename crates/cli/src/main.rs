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
mod identity;
mod memory;
mod output;
mod panics;
mod progress;
mod terminal;
mod value;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::mem;
use std::process::ExitCode;
use std::sync::{Arc, RwLock, mpsc};
use std::time::Duration;

use clap::FromArgMatches;
use pgstrata_engine::priority;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::{courtesy, keys, limits};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Cli, Command, ImpactLevel, LogLevel, Output};
use crate::caller::Caller;
use crate::commands::Context;
use crate::config::{Config, choose};

fn main() -> ExitCode {
    identity::guard_environment();
    memory::give_back_large_buffers();
    let arguments: Vec<OsString> = env::args_os().collect();
    if let Some(command) = keys::guarded(&arguments) {
        return guard(command);
    }
    let caller = Caller::of(&arguments);
    panics::end_the_process(
        caller,
        caller::gets(&arguments),
        output::wanted_by(&arguments),
    );
    ExitCode::from(start(arguments, caller))
}

/// Guards a key command, for another process of this program, which reads what is said here.
fn guard(command: &OsStr) -> ExitCode {
    match keys::guard(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(said) => {
            // On a line of its own, whatever the command has said.
            let _ = writeln!(io::stderr(), "\n{said}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Vec<OsString>, caller: Caller) -> u8 {
    let gets = caller::gets(&arguments);
    let wanted = output::wanted_by(&arguments);
    if let Err(error) = identity::refuse_in(&arguments) {
        return fail(&error, wanted, caller, gets);
    }
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
    args::refuse_idle(&matches)?;
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
    let impact = commands::impact_of(&config, &cli.command)?;
    if impact != ImpactLevel::None {
        // This thread and all that it starts: what is done before there are workers is felt as well.
        priority::keep_going();
    }
    courtesy::begin(impact.rests());
    let is_backup = matches!(cli.command, Command::Backup(_));
    if let Some(share) = impact.session_share(is_backup) {
        priority::lighten_session(share);
    }
    let runtime = runtime(&cli.command)?;
    outlive_file_limit(&runtime);
    let context = Context {
        config,
        output: *output,
        wants_progress: !cli.global.no_progress,
        documents: None,
    };
    let code = runtime.block_on(commands::run(&context, cli.command));
    // A worker that hangs on the network must not keep a finished command alive. Nor are its threads told to end: while glibc
    // detaches a thread that ends it reads memory that may be gone (2.36; grpc-rs, issue 653), and a command that has done its
    // work would be killed by a signal. They end with the process.
    mem::forget(runtime);
    code
}

/// The runtime. A thread that the system denies to it ends the program, as [`panics`] says.
fn runtime(command: &Command) -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if is_of_server(command) {
        // The server starts one for every segment: not a thread per core each time.
        builder.worker_threads(2);
    } else {
        builder.thread_keep_alive(FOR_EVER);
        if limits::try_threads(MANY_THREADS).is_err() {
            // They are for workers.
            builder.max_blocking_threads(RESERVED_THREADS);
        }
    }
    let runtime = builder.enable_all().build().map_err(|error| {
        Error::new(
            Kind::File,
            format!("could not start worker threads: {error}"),
        )
    })?;
    if !is_of_server(command) {
        reserve_threads(&runtime)?;
    }
    Ok(runtime)
}

/// What would make a file longer than its limit (setrlimit(2), `RLIMIT_FSIZE`) is an error that names the file, and not the end of
/// the process by a signal.
fn outlive_file_limit(runtime: &tokio::runtime::Runtime) {
    let _within = runtime.enter();
    // It stays caught, also when nobody asks for it.
    if let Err(error) = signal(SignalKind::from_raw(libc::SIGXFSZ)) {
        tracing::debug!(%error, "a limit of file sizes ends the command");
    }
}

/// Longer than any command runs.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// At most two threads for file work wait for such work themselves: the copy, and what is looked up beside it. So one
/// is always free for what they wait for, and one more keeps them from waiting in line.
const RESERVED_THREADS: usize = 4;

/// Where these can be had there is no need to be thrifty: a command with two workers has half of them.
const MANY_THREADS: usize = 24;

/// A machine that is asked for too much starts a thread late, and one that has none left never.
const RESERVED_WITHIN: Duration = Duration::from_secs(30);

/// Starts threads for file work before there is any. When the system denies the second one, the runtime lets its work wait
/// for the first, which may wait for that very work: for ever.
fn reserve_threads(runtime: &tokio::runtime::Runtime) -> Result<()> {
    // This fails at once, and says why. But others may take the threads before the runtime does.
    limits::try_threads(RESERVED_THREADS)?;
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write();
    let (arrive, arrived) = mpsc::channel();
    for _ in 0..RESERVED_THREADS {
        let (gate, arrive) = (Arc::clone(&gate), arrive.clone());
        runtime.spawn_blocking(move || {
            let seen = arrive.send(());
            drop((seen, gate.read()));
        });
    }
    let all_are_there =
        (0..RESERVED_THREADS).all(|_| arrived.recv_timeout(RESERVED_WITHIN).is_ok());
    drop(closed);
    match all_are_there {
        true => Ok(()),
        false => Err(limits::no_thread("the system denies them")),
    }
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
