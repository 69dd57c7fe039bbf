//! Will a backup work? One line per thing that can be wrong, each with what to do.
//!
//! Nothing is changed but for a probe object that is removed again, a WAL switch
//! and a replication slot that ends with the session. A failed check does not
//! keep the others from running, unless they need what it looked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_pgdata::ControlFile;

use crate::backup::{BackupOptions, WalCheck, WalMode, check_record, control_of, files_of};
use crate::catalog::cluster_record;
use crate::cluster::control::check_same_cluster;
use crate::cluster::{ConnectionOptions, Session, Tracker};
use crate::error::{Error, Kind, Result};
use crate::info;
use crate::repository::Repository;

/// What to check against.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// The server.
    pub connection: ConnectionOptions,
    /// Its data directory; `None`: ask the server.
    pub data_directory: Option<PathBuf>,
    /// How backups will get their WAL into the repository.
    pub wal: WalMode,
    /// How long to wait for WAL in the repository.
    pub wal_timeout: Duration,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let backup = BackupOptions::default();
        Self {
            connection: backup.connection,
            data_directory: None,
            wal: backup.wal,
            // A check is watched by somebody: an archiver that works needs seconds.
            wal_timeout: Duration::from_secs(60),
        }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Backups work; somebody should look.
    Warning,
    /// Backups will fail.
    Failed,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckItem {
    /// What was checked, in a word or three.
    pub name: &'static str,
    /// How it ended.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// What to do.
    pub hint: Option<String>,
}

/// All checks in the order they ran.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// One per check.
    pub items: Vec<CheckItem>,
}

impl CheckReport {
    /// The worst status of all.
    #[must_use]
    pub fn status(&self) -> CheckStatus {
        let has = |status| self.items.iter().any(|item| item.status == status);
        if has(CheckStatus::Failed) {
            CheckStatus::Failed
        } else if has(CheckStatus::Warning) {
            CheckStatus::Warning
        } else {
            CheckStatus::Ok
        }
    }

    /// Notes an outcome; passes a success on.
    pub(crate) fn note<T>(
        &mut self,
        name: &'static str,
        outcome: Result<T>,
        detail: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match outcome {
            Ok(found) => {
                self.items.push(CheckItem {
                    name,
                    status: CheckStatus::Ok,
                    detail: detail(&found),
                    hint: None,
                });
                Some(found)
            }
            Err(error) => {
                let hint = error.hint_text().map(str::to_owned);
                self.items.push(CheckItem {
                    name,
                    status: CheckStatus::Failed,
                    detail: error.to_string(),
                    hint,
                });
                None
            }
        }
    }

    /// Notes what is no failure: ok, unless there is something to do about it.
    fn remark(&mut self, name: &'static str, detail: String, to_do: Option<String>) {
        let status = match to_do {
            None => CheckStatus::Ok,
            Some(_) => CheckStatus::Warning,
        };
        self.items.push(CheckItem {
            name,
            status,
            detail,
            hint: to_do,
        });
    }

    pub(crate) fn warn(&mut self, name: &'static str, detail: String, hint: &str) {
        self.items.push(CheckItem {
            name,
            status: CheckStatus::Warning,
            detail,
            hint: Some(hint.to_owned()),
        });
    }
}

/// Runs every check.
pub async fn run(
    repository: &Repository,
    cluster: &ClusterName,
    options: &CheckOptions,
) -> CheckReport {
    let mut report = CheckReport::default();
    let record = check_repository(&mut report, repository, cluster).await;
    let connected = Session::connect(&options.connection).await;
    let session = report.note("server", connected, describe_server);
    if let Some(session) = session {
        check_privileges(&mut report, &session);
        let control = check_directory(&mut report, &session, options).await;
        if let (Some(record), Some((directory, control))) = (&record, control) {
            let same = check_record(record, &control);
            let same = report.note("cluster identity", same, |()| {
                "the server is the cluster in the repository".to_owned()
            });
            let wal = WalCheck {
                repository,
                cluster,
                record,
                data_directory: &directory,
                timeline: control.timeline,
            };
            // WAL of another cluster must not get into this one's archive.
            if same.is_some() {
                check_wal(&mut report, &session, &wal, options).await;
            }
        }
        check_slots(&mut report, &session).await;
        check_tracker(&mut report, &session, &options.connection).await;
    }
    if record.is_some() {
        check_layers(&mut report, repository, cluster).await;
    }
    report
}

async fn check_repository(
    report: &mut CheckReport,
    repository: &Repository,
    cluster: &ClusterName,
) -> Option<ClusterRecord> {
    let probe = repository.probe(cluster.as_str()).await;
    report.note("repository", probe, |()| {
        format!(
            "{} creates objects only when they are absent",
            repository.url()
        )
    })?;
    let record = cluster_record(repository, cluster).await;
    report.note("cluster record", record, |record| {
        format!(
            "\"{}\" is system {} of version {}",
            record.name, record.system_identifier, record.major
        )
    })
}

fn describe_server(session: &Session) -> String {
    let facts = session.facts();
    let role = if facts.in_recovery {
        "a standby"
    } else {
        "a primary"
    };
    format!(
        "version {}, {role}, as role \"{}\"",
        facts.version, facts.role
    )
}

fn check_privileges(report: &mut CheckReport, session: &Session) {
    let facts = session.facts();
    report.note("privileges", facts.check_fitness(), |()| {
        let replication = if facts.may_replicate {
            "and hold WAL"
        } else {
            "but not hold WAL: backups need the archive"
        };
        format!(
            "may start and stop backups {replication}; wal_level is \"{}\"",
            facts.wal_level
        )
    });
}

async fn check_wal(
    report: &mut CheckReport,
    session: &Session,
    wal: &WalCheck<'_>,
    options: &CheckOptions,
) {
    match wal.run(session, options.wal, options.wal_timeout).await {
        Ok(proof) => report.remark("WAL", proof.detail, proof.doubt),
        Err(error) => {
            report.note("WAL", Err::<(), _>(error), |()| String::new());
        }
    }
}

/// Without a tracker backups work, but read every page. One that is there should be usable.
async fn check_tracker(
    report: &mut CheckReport,
    session: &Session,
    connection: &ConnectionOptions,
) {
    const NAME: &str = "page tracker";
    let tracker = match Tracker::find(session, connection).await {
        Ok(tracker) => tracker,
        Err(none) => {
            let detail = format!("{}: incremental backups read every page", none.reason);
            return report.remark(NAME, detail, None);
        }
    };
    let place = format!("in database \"{}\"", tracker.database());
    match tracker.missing_grants().await {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            let detail = format!(
                "{place}, but role \"{}\" may not use it",
                session.facts().role
            );
            return report.remark(NAME, detail, Some(missing.join("; ")));
        }
        Err(error) => return report.warn(NAME, error.to_string(), "look at the server's log"),
    }
    let state = match tracker.state().await {
        Ok(state) => state,
        Err(error) => return report.warn(NAME, error.to_string(), "look at the server's log"),
    };
    let since = state.history_since.as_deref().unwrap_or("now");
    let detail = match (&state.reason, state.tracking) {
        (_, true) if !state.overflow => {
            let (used, capacity) = (state.map_used_bytes, state.map_capacity_bytes);
            format!("{place}, changes are known since {since}, {used} of {capacity} bytes in use")
        }
        (_, true) => {
            let detail = format!("{place}, its map is full: changes are not known");
            return report.remark(NAME, detail, Some("raise pgstrata.map_size".to_owned()));
        }
        (reason, false) => {
            let reason = reason.as_deref().unwrap_or("it is switched off");
            let detail = format!("{place}, but it does not track changes: {reason}");
            return report.remark(NAME, detail, Some("see docs/TRACKER.md".to_owned()));
        }
    };
    report.remark(NAME, detail, None);
}

/// Slots of ours that no session uses keep WAL for ever.
async fn check_slots(report: &mut CheckReport, session: &Session) {
    let Some(slots) = report.note("slots", session.own_slots().await, |slots| {
        match slots.iter().filter(|slot| slot.process.is_some()).count() {
            0 => "no replication slot of a backup is left".to_owned(),
            count => format!("{count} held by backups at work"),
        }
    }) else {
        return;
    };
    for slot in slots.iter().filter(|slot| slot.process.is_none()) {
        let detail = format!(
            "replication slot \"{}\" is used by nobody and keeps WAL from being removed",
            slot.name
        );
        let hint = format!("SELECT pg_drop_replication_slot('{}')", slot.name);
        report.warn("slots", detail, &hint);
    }
}

async fn check_directory(
    report: &mut CheckReport,
    session: &Session,
    options: &CheckOptions,
) -> Option<(PathBuf, ControlFile)> {
    let facts = session.facts();
    let Some(directory) = options
        .data_directory
        .clone()
        .or_else(|| facts.data_directory.as_ref().map(PathBuf::from))
    else {
        let error = Error::new(
            Kind::Usage,
            format!(
                "role \"{}\" may not see where the data directory is",
                facts.role
            ),
        );
        let hint = format!(
            "give --pgdata, or GRANT pg_read_all_settings TO \"{}\"",
            facts.role
        );
        report.note("data directory", Err::<(), _>(error.hint(hint)), |()| {
            String::new()
        });
        return None;
    };
    let outcome = read_directory(session, &directory).await;
    let (control, warnings) = report.note("data directory", outcome, |(control, _)| {
        let checksums = if control.has_checksums() { "on" } else { "off" };
        format!(
            "\"{}\" is the server's, data checksums are {checksums}",
            directory.display()
        )
    })?;
    for warning in warnings {
        report.warn(
            "files",
            warning,
            "see \"What is backed up\" in OPERATIONS.md",
        );
    }
    Some((directory, control))
}

async fn read_directory(session: &Session, directory: &Path) -> Result<(ControlFile, Vec<String>)> {
    let control = control_of(directory).await?.control;
    check_same_cluster(directory, &control, session.facts())?;
    let found = files_of(directory, control.major).await?;
    Ok((control, found.warnings))
}

async fn check_layers(report: &mut CheckReport, repository: &Repository, cluster: &ClusterName) {
    let outcome = info::collect(repository, cluster, None).await;
    let Some(found) = report.note("layers", outcome, |found| {
        format!("{} finished", found.layers.len())
    }) else {
        return;
    };
    const LOST: &str = "take a full backup; \"pgstrata verify\" tells what is lost";
    for damaged in &found.damaged {
        let (label, reason) = (&damaged.label, &damaged.reason);
        let detail = format!("the manifest of {label} cannot be used: {reason}");
        report.warn("layers", detail, LOST);
    }
    for layer in &found.layers {
        if let Some(problem) = &layer.problem {
            let detail = format!("{} cannot be restored: {problem}", layer.label);
            report.warn("layers", detail, LOST);
        }
    }
    for leftover in &found.unfinished {
        let detail = format!("{} is unfinished: {}", leftover.label, leftover.describe());
        let to_do = match leftover.running {
            Some(true) => None,
            _ => {
                Some("harmless: nothing restores it; it takes room until it is removed".to_owned())
            }
        };
        report.remark("leftovers", detail, to_do);
    }
}
