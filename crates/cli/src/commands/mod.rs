//! One module per command: arguments to options, report to text or JSON.

mod archive;
mod backup;
mod check;
mod copy;
mod expire;
mod info;
mod init;
mod key;
mod lab;
mod mark;
mod merge;
mod repositories;
mod rescue;
mod restore;
mod tracker;
mod verify;

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::CommandFactory;
use jiff::Timestamp;
use pgstrata_engine::check::CheckOptions;
use pgstrata_engine::health::{Alarm, Severity};
use pgstrata_engine::info::server::{NotLookedAt, ServerOptions};
use pgstrata_engine::restore::require_one_branch;
use pgstrata_engine::server::ConnectionOptions;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::plain::plain;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use serde::Serialize;
use serde_json::Value;

use crate::args::{
    self, AsOfArgs, Cli, Command, CompressArgs, ImpactArgs, ImpactLevel, Output, ServerArgs,
    WalArgs,
};
use crate::config::{Config, choose, from_file};
use crate::output;
use crate::progress::{Act, Display};
use crate::value::parse_duration;

/// What every command needs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) output: Output,
    pub(crate) wants_progress: bool,
    /// Where documents go instead, while a command uses several repositories one after the other.
    pub(crate) documents: Option<Arc<Mutex<Vec<Value>>>>,
}

impl Context {
    /// The cluster's part of the repository. Whether it is there is not asked.
    fn cluster(&self) -> Result<ClusterRepository> {
        let repository = Repository::open(&self.config.repository()?)?;
        let cluster = ClusterRepository::new(&repository, &self.config.cluster()?);
        Ok(cluster.with_keys(self.config.keys()?))
    }

    /// Whether what the configuration says of the repository keeps it from being opened, whatever is asked of it.
    fn is_shut(&self) -> bool {
        self.cluster().is_err()
    }

    /// Waits for an answer of the repository, as [`ClusterRepository::require_answer`] does. Nothing is opened for that.
    async fn require_answer(&self, within: Duration) -> Result<()> {
        let repository = Repository::open(&self.config.repository()?)?;
        let cluster = ClusterRepository::new(&repository, &self.config.cluster()?);
        cluster.require_answer(within).await
    }

    /// The cluster's part of the repository as it is, or as it was.
    async fn cluster_as_of(&self, args: &AsOfArgs) -> Result<ClusterRepository> {
        let Some(moment) = args.repository_as_of else {
            return self.cluster();
        };
        warn_if_to_come("--repository-as-of", moment);
        let repository = Repository::open(&self.config.repository()?)?;
        let repository = repository.as_of(moment).await?;
        let cluster = ClusterRepository::new(&repository, &self.config.cluster()?);
        Ok(cluster.with_keys(self.config.keys()?))
    }

    /// The same for that repository.
    fn with(&self, config: &Config) -> Self {
        Self {
            config: config.clone(),
            output: self.output,
            wants_progress: self.wants_progress,
            documents: self.documents.clone(),
        }
    }

    /// The codec that was asked for by flag, environment or file, or the default one.
    fn codec(&self, args: &CompressArgs) -> Result<Codec> {
        let text = args
            .compress
            .as_deref()
            .or(self.config.settings.compress.as_deref());
        text.map_or(Ok(Codec::default()), |text| {
            text.parse().map_err(|_| {
                Error::new(Kind::Usage, format!("\"{text}\" is not a compression"))
                    .hint("use zstd, zstd:N (N from 1 to 22), lz4 or none")
            })
        })
    }

    /// How long to wait for WAL to arrive, if that was said.
    fn archive_timeout(&self, args: &WalArgs) -> Result<Option<Duration>> {
        let file = self.config.settings.archive_timeout.as_deref();
        from_file(
            args.archive_timeout,
            file,
            "archive-timeout",
            parse_duration,
        )
    }

    /// Who comes first when the machine is busy.
    fn impact(&self, args: ImpactArgs) -> Result<ImpactLevel> {
        impact(&self.config, args)
    }

    /// How old the newest backup may be, if that was said.
    fn max_age(&self, told: Option<Duration>) -> Result<Option<Duration>> {
        let file = self.config.settings.max_age.as_deref();
        from_file(told, file, "max-age", parse_duration)
    }

    /// How long ago the last verification that found nothing wrong may be, if that was said.
    fn max_verify_age(&self, told: Option<Duration>) -> Result<Option<Duration>> {
        let file = self.config.settings.max_verify_age.as_deref();
        from_file(told, file, "max-verify-age", parse_duration)
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

    /// How to connect: as told, as libpq's variables say, else to the server that runs on the
    /// data directory.
    fn connection(&self, server: &ServerArgs) -> ConnectionOptions {
        let told = server.connection.as_ref();
        if let Some(conninfo) = told.or(self.config.settings.connection.as_ref()) {
            return ConnectionOptions {
                conninfo: conninfo.clone(),
            };
        }
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        if ["PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT"]
            .into_iter()
            .any(set)
        {
            return ConnectionOptions::default();
        }
        let directory = self.known_data_directory(server);
        directory
            .and_then(|directory| ConnectionOptions::of_directory(&directory))
            .unwrap_or_default()
    }

    /// The server that is asked about the health of backups, when one is named. Of the past none can tell.
    fn server_to_ask(
        &self,
        server: &ServerArgs,
        as_of: &AsOfArgs,
    ) -> Result<Option<ServerOptions>> {
        let file = self.config.settings.archive_timeout.as_deref();
        let patience = from_file(None, file, "archive-timeout", parse_duration)?;
        let data_directory = self.known_data_directory(server);
        let told = server.connection.is_some() || self.config.settings.connection.is_some();
        let is_named = told || data_directory.is_some();
        let options = || ServerOptions {
            connection: self.connection(server),
            data_directory,
            patience: patience.unwrap_or(CheckOptions::default().wal_timeout),
        };
        Ok((is_named && as_of.repository_as_of.is_none()).then(options))
    }

    /// Runs `act`: its progress is shown as that of `what`, and signals stop it.
    async fn watched<T>(
        &self,
        what: Act,
        act: impl AsyncFnOnce(Progress) -> Result<T>,
    ) -> Result<T> {
        let progress = Progress::default();
        stop_on_signal(&progress);
        let _display = Display::start(what, &progress, self.wants_progress);
        act(progress).await
    }

    /// Prints `document` in the format that was asked for.
    fn report(
        &self,
        schema: &str,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        match (self.output, &self.documents) {
            (Output::Text, _) => output::print_report(&text()),
            (Output::Json, None) => output::print_json(schema, document),
            (Output::Json, Some(documents)) => {
                let document = output::document(schema, document)?;
                let mut all = documents.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(document);
                Ok(())
            }
        }
    }
}

/// Who comes first when the machine is busy: a command that the server or a person waits for, or everybody else.
pub(crate) fn impact_of(config: &Config, command: &Command) -> Result<ImpactLevel> {
    let args = match command {
        Command::Backup(args) => args.impact,
        Command::Merge(args) => args.impact,
        Command::Verify(args) => args.impact,
        Command::Expire(args) => args.impact,
        Command::Copy(args) => args.impact,
        _ => return Ok(ImpactLevel::None),
    };
    impact(config, args)
}

fn impact(config: &Config, args: ImpactArgs) -> Result<ImpactLevel> {
    let told = choose(args.impact, config.settings.impact.as_deref(), "impact")?;
    Ok(told.unwrap_or_default())
}

/// Says that a moment in the repository's past has not come by this host's clock. Stores date what they hold by their own.
fn warn_if_to_come(option: &str, moment: Timestamp) {
    let now = Timestamp::now();
    if moment > now {
        tracing::warn!("{option} {moment} is still to come by this host's clock, which says {now}");
    }
}

/// A label as somebody wrote it, unless it is the word `latest`.
fn label_or_latest(text: &str) -> Result<Option<Label>> {
    if text.eq_ignore_ascii_case("latest") {
        return Ok(None);
    }
    Label::parse(text).map(Some).ok_or_else(|| {
        Error::new(Kind::Usage, format!("\"{text}\" is not a label"))
            .hint("\"pgstrata info\" shows the labels; \"latest\" is the newest layer")
    })
}

/// A label as somebody wrote it, unless it is the word `all`; `latest` is that of the newest layer.
async fn label_or_all(cluster: &ClusterRepository, text: &str) -> Result<Option<Label>> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(None);
    }
    if let Some(label) = label_or_latest(text)? {
        return Ok(Some(label));
    }
    let catalog = Catalog::load(cluster).await?;
    let newest = newest(&catalog)?;
    if let Err(error) = require_one_branch(cluster, &catalog).await {
        tracing::warn!("\"latest\" is taken for layer {newest}, the last that was made: {error}");
    }
    Ok(Some(newest))
}

/// A label as somebody wrote it; `latest` is that of the newest layer, unless nobody knows of which branch.
async fn label(cluster: &ClusterRepository, text: &str) -> Result<Label> {
    if let Some(label) = label_or_latest(text)? {
        return Ok(label);
    }
    let catalog = Catalog::load(cluster).await?;
    let newest = newest(&catalog)?;
    require_one_branch(cluster, &catalog).await.map_err(|error| {
        let error = error.while_doing("\"latest\" could be a layer of more than one branch");
        error.hint(format!(
            "name the layer: {newest} was made last, and \"pgstrata info\" lists them all with their timelines"
        ))
    })?;
    Ok(newest)
}

/// The label of the newest layer, unless a newer one cannot be used: an older one is not what was meant then.
fn newest(catalog: &Catalog) -> Result<Label> {
    let newest = catalog.layers.last();
    let stamp = newest.map(|layer| layer.manifest.state_stamp());
    let stamp = stamp.unwrap_or_default();
    let mut damaged = catalog.damaged.iter().rev();
    if let Some((label, error)) = damaged.find(|(label, _)| *label.own_stamp() > *stamp) {
        let what = format!("\"latest\" would be {label}, which cannot be used: {error}");
        return Err(Error::new(error.kind(), what).hint(match newest {
            Some(layer) => format!(
                "\"pgstrata verify\" says what is wrong; the newest layer that can be used is {}: name it if it is meant",
                layer.label
            ),
            None => "\"pgstrata verify\" says what is wrong".to_owned(),
        }));
    }
    let newest = newest.ok_or_else(|| {
        Error::new(Kind::NotFound, "there is no finished layer")
            .hint("\"pgstrata info\" lists the layers")
    })?;
    Ok(newest.label.clone())
}

/// The cluster, which the repository knows. One that a newer version keeps is not for this one to change.
///
/// A record that is lost or damaged beside layers is for the command to judge.
async fn known_cluster(context: &Context) -> Result<ClusterRepository> {
    let cluster = known(context.cluster()?).await?;
    refuse_newer(&cluster).await?;
    Ok(cluster)
}

/// Refuses a cluster that a newer version keeps.
async fn refuse_newer(cluster: &ClusterRepository) -> Result<()> {
    match cluster.record().await {
        Err(error) if error.kind() == Kind::Unsupported => Err(error),
        _ => Ok(()),
    }
}

/// The same for a cluster that was opened already, and is only looked at.
async fn known(cluster: ClusterRepository) -> Result<ClusterRepository> {
    match cluster.record().await {
        Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Repository) => Err(error),
        _ => Ok(cluster),
    }
}

/// Commands that need neither configuration nor repository.
pub(crate) fn without_configuration(command: &Command) -> Result<Option<u8>> {
    let text = match command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            // With the options that help only points to.
            clap_complete::generate(*shell, &mut Cli::command(), "pgstrata", &mut text);
            text
        }
        Command::Man { command } => manual(command.as_deref())?,
        Command::Lab { arguments } => return lab::become_lab(arguments).map(Some),
        _ => return Ok(None),
    };
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(Some(0))
}

/// The manual page of the program, or of one of its commands.
fn manual(name: Option<&str>) -> Result<Vec<u8>> {
    let program = args::command();
    let page = match name {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).filter(|c| !c.is_hide_set());
            let found = found.ok_or_else(|| {
                Error::new(Kind::Usage, format!("there is no command \"{name}\""))
                    .hint("\"pgstrata --help\" lists the commands")
            })?;
            let full = format!("pgstrata-{}", found.get_name());
            found.clone().display_name(full)
        }
    };
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(page).render(&mut text);
    rendered.map(|()| text).map_err(|error| {
        let what = format!("could not write the manual page: {error}");
        Error::new(Kind::File, what)
    })
}

/// Runs a command on the repositories that are meant; returns its exit code.
pub(crate) async fn run(context: &Context, command: Command) -> Result<u8> {
    let chosen = context.config.chosen()?;
    match &chosen[..] {
        [one] => run_one(&context.with(one), command).await,
        several => {
            let several: Vec<Context> = several.iter().map(|one| context.with(one)).collect();
            repositories::run(context, &several, command).await
        }
    }
}

/// Runs a command on one repository.
async fn run_one(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Init(args) => init::run(context, &args).await,
        Command::Backup(args) => backup::run(context, &args).await,
        Command::ArchivePush(args) => archive::push(context, &args).await,
        Command::ArchiveGet(args) => archive::get(context, &args).await,
        Command::Restore(args) => restore::run(context, &args, &[]).await,
        Command::Check(args) => check::run(context, &args).await,
        Command::Copy(args) => copy::run(context, &args).await,
        Command::Merge(args) => merge::run(context, &args).await,
        Command::Expire(args) => expire::run(context, &args).await,
        Command::Rescue(args) => rescue::run(context, &args).await,
        Command::Pin(args) => mark::pin(context, &args).await,
        Command::Unpin(args) => mark::unpin(context, &args).await,
        Command::Annotate(args) => mark::annotate(context, &args).await,
        Command::Info(args) => info::run(context, &args).await,
        Command::Verify(args) => verify::run(context, &args).await,
        Command::Key { command } => key::run(context, &command).await,
        Command::Tracker { command } => tracker::run(context, &command).await,
        Command::Lab { .. } | Command::Completions { .. } | Command::Man { .. } => Ok(0),
    }
}

/// Ctrl-C, SIGTERM and the end of the terminal ask the act to stop at the next safe place; a second one ends the program. All are
/// caught when this returns.
fn stop_on_signal(progress: &Progress) {
    use tokio::signal::unix::{SignalKind, signal};
    let caught = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
        return;
    };
    // Caught, it would end what "nohup" has begun to outlive its terminal.
    let mut hangup = match ignores_hangup() {
        true => None,
        false => signal(SignalKind::hangup()).ok(),
    };
    let progress = progress.clone();
    tokio::spawn(async move {
        let mut next = async || {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hung_up => {}
            }
        };
        next().await;
        tracing::warn!("the command is stopping; a second signal ends it at once");
        progress.cancel();
        next().await;
        std::process::exit(i32::from(crate::exit::code(Kind::Interrupted)));
    });
}

/// Whether who has started us wants SIGHUP to be ignored, or it cannot be seen.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The first bit is that of signal 1.
    ignored.is_none_or(|mask| mask & 1 == 1)
}

/// An alarm in lines: what is wrong, what is lost, what to do.
fn alarm_lines(alarm: &Alarm) -> String {
    let word = match alarm.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let lost = alarm.lost.as_ref();
    let lost = lost.map(|lost| format!("             cannot be restored: {}\n", plain(lost)));
    format!(
        "{:<13}{}\n{}             to do: {}\n",
        format!("{word}:"),
        plain(&alarm.reason),
        lost.unwrap_or_default(),
        plain(&alarm.to_do)
    )
}

/// What no server told, in a line for each reason.
fn not_looked_at_lines(not_looked_at: &[NotLookedAt]) -> String {
    let mut text = String::new();
    let mut rest = not_looked_at;
    while let [first, ..] = rest {
        let same = rest.iter().take_while(|one| one.reason == first.reason);
        let (same, behind) = rest.split_at(same.count());
        let words: Vec<&str> = same.iter().map(|one| one.kind.describe()).collect();
        let named = words.join(", ");
        text.push_str(&format!("not seen:    {named}: {}\n", plain(&first.reason)));
        rest = behind;
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn every_command_has_a_manual_page_with_examples() {
        let page = |name: Option<&str>| String::from_utf8(manual(name).unwrap()).unwrap();
        let program = Cli::command();
        assert!(page(None).contains("First steps"));
        for command in program.get_subcommands().filter(|c| !c.is_hide_set()) {
            let text = page(Some(command.get_name()));
            let title = format!("pgstrata\\-{}", command.get_name().replace('-', "\\-"));
            assert!(text.contains(&title), "{title} is not in:\n{text}");
            assert!(text.contains("OPTIONS"), "{text}");
            let teaches = text.contains("Examples:") || text.contains("postgresql.conf");
            assert!(teaches, "{} has no examples", command.get_name());
        }
        assert_eq!(page(Some("backup-push")), page(Some("backup")));
        assert_eq!(manual(Some("nonsense")).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn every_shell_completes_commands_and_their_other_names() {
        for shell in Shell::value_variants() {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "pgstrata", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["archive-push", "target-dir", "deep", "s3-region"] {
                assert!(text.contains(word), "{word} is not completed by {shell}");
            }
        }
    }
}
