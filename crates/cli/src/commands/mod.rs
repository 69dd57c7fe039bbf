//! One module per command: arguments to options, report to text or JSON.

mod archive;
mod backup;
mod check;
mod info;
mod init;
mod restore;
mod tracker;
mod verify;

use std::path::PathBuf;

use clap::CommandFactory;
use pgstrata_engine::cluster::ConnectionOptions;
use pgstrata_engine::error::{Error, Kind, Result};
use pgstrata_engine::progress::Progress;
use pgstrata_engine::repository::Repository;
use serde::Serialize;

use crate::args::{Cli, Command, Output, ServerArgs};
use crate::config::Config;
use crate::output;

/// What every command needs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) output: Output,
    pub(crate) wants_progress: bool,
}

impl Context {
    fn repository(&self) -> Result<Repository> {
        Repository::open(&self.config.repository()?)
    }

    /// The data directory, if it is known.
    fn known_data_directory(&self, server: &ServerArgs) -> Option<PathBuf> {
        let told = server.pgdata.as_ref();
        told.or(self.config.settings.pgdata.as_ref()).cloned()
    }

    /// The data directory, which the command cannot do without.
    fn data_directory(&self, server: &ServerArgs) -> Result<PathBuf> {
        self.known_data_directory(server).ok_or_else(|| {
            Error::new(Kind::Usage, "the data directory is not known")
                .hint("give --pgdata, set PGDATA, or write pgdata in the configuration file")
        })
    }

    /// How to connect: as told, else to the server that runs on the data directory.
    fn connection(&self, server: &ServerArgs) -> ConnectionOptions {
        let conninfo = server
            .connection
            .as_ref()
            .or(self.config.settings.connection.as_ref());
        ConnectionOptions {
            conninfo: conninfo.cloned().unwrap_or_default(),
        }
    }

    /// Prints `document` in the format that was asked for.
    fn report(&self, schema: &str, document: &impl Serialize, text: impl FnOnce() -> String) {
        match self.output {
            Output::Text => output::print(&text()),
            Output::Json => output::print_json(schema, document),
        }
    }
}

/// Commands that need neither configuration nor repository.
pub(crate) fn without_configuration(command: &Command) -> Result<Option<u8>> {
    let mut text = Vec::new();
    match command {
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "pgstrata", &mut text);
        }
        Command::Man => clap_mangen::Man::new(Cli::command())
            .render(&mut text)
            .map_err(|error| {
                Error::new(
                    Kind::File,
                    format!("could not write the manual page: {error}"),
                )
            })?,
        _ => return Ok(None),
    }
    output::print(&String::from_utf8_lossy(&text));
    Ok(Some(0))
}

/// Runs a command; returns its exit code.
pub(crate) async fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Init(args) => init::run(context, &args).await,
        Command::Backup(args) => backup::run(context, &args).await,
        Command::ArchivePush(args) => archive::push(context, &args).await,
        Command::ArchiveGet(args) => archive::get(context, &args).await,
        Command::ArchivePrefetch(args) => archive::prefetch(context, &args).await,
        Command::Restore(args) => restore::run(context, &args).await,
        Command::Check(args) => check::run(context, &args).await,
        Command::Info(args) => info::run(context, &args).await,
        Command::Verify(args) => verify::run(context, &args).await,
        Command::Tracker { command } => tracker::run(context, &command).await,
        Command::Completions { .. } | Command::Man => Ok(0),
    }
}

/// Ctrl-C and SIGTERM ask the act to stop at the next safe place; a second one ends the program.
fn stop_on_signal(progress: &Progress) {
    let progress = progress.clone();
    tokio::spawn(async move {
        signal().await;
        tracing::warn!("stopping: a second signal ends the program at once");
        progress.cancel();
        signal().await;
        std::process::exit(i32::from(crate::exit::code(Kind::Interrupted)));
    });
}

async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
