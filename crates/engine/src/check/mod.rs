//! Will a backup work, and can what was promised be restored? One line per thing that can be wrong, each with what to do.
//!
//! Nothing is changed but for a probe object that is removed again, a WAL switch
//! and a replication slot that ends with the session. A failed check does not
//! keep the others from running, unless they need what it looked for. [`tracker`] looks more closely at the page tracker alone.

mod keys;
mod protection;
pub mod tracker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_pgdata::{ControlFile, TimelineId};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{StoreTime, clocks_differ};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::KeySummary;

use crate::backup::{BackupOptions, WalCheck, WalMode};
use crate::health::server::ServerVerdict;
use crate::health::{self, Alarm, AlarmKind, Severity};
use crate::info::{self, InfoOptions, server};
use crate::server::apart::{require_apart, require_apart_from};
use crate::server::control::{check_record, control_of_server};
use crate::server::outside::outside;
use crate::server::scan::files_of;
use crate::server::storage;
use crate::server::{ConnectionOptions, Session, Tracker};

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
    /// An older newest backup is an alarm.
    pub max_age: Option<Duration>,
    /// So is an older newest verification that found nothing wrong.
    pub max_verify_age: Option<Duration>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let backup = BackupOptions::default();
        Self {
            connection: backup.connection,
            data_directory: None,
            wal: backup.wal,
            // A check is watched by somebody, and an archiver that works needs seconds. But PostgreSQL waits 60 s
            // before it runs a command that failed again, or starts an archiver that died.
            wal_timeout: Duration::from_secs(90),
            max_age: None,
            max_verify_age: None,
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
    /// Backups will fail, or what was promised cannot be restored.
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
    /// Who opens a sealed cluster.
    pub keys: Option<KeySummary>,
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
    fn note<T>(
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

    /// Notes what is wrong.
    fn alarm(&mut self, alarm: Alarm) {
        let losses = alarm.losses();
        self.items.push(CheckItem {
            name: alarm.kind.describe(),
            status: match alarm.severity {
                Severity::Warning => CheckStatus::Warning,
                Severity::Error => CheckStatus::Failed,
            },
            detail: alarm.reason + &losses,
            hint: Some(alarm.to_do),
        });
    }

    /// Notes what was found of the server.
    fn verdict(&mut self, verdict: ServerVerdict) {
        match verdict {
            ServerVerdict::Fine { kind, detail } => self.remark(kind.describe(), detail, None),
            ServerVerdict::Unseen { kind, why } => {
                self.remark(kind.describe(), format!("not looked at: {why}"), None);
            }
            ServerVerdict::Wrong(alarm) => self.alarm(alarm),
        }
    }

    fn warn(&mut self, name: &'static str, detail: String, hint: &str) {
        self.items.push(CheckItem {
            name,
            status: CheckStatus::Warning,
            detail,
            hint: Some(hint.to_owned()),
        });
    }
}

/// Runs every check.
pub async fn run(cluster: &ClusterRepository, options: &CheckOptions) -> CheckReport {
    let mut report = CheckReport::default();
    let record = check_repository(&mut report, cluster).await;
    if let Some(record) = &record {
        check_clock(&mut report, cluster).await;
        protection::check(&mut report, cluster, record).await;
        keys::check(&mut report, cluster, record).await;
    }
    let connected = Session::connect(&options.connection).await;
    let session = report.note("server", connected, describe_server);
    let mut timeline = None;
    if let Some(session) = session {
        timeline = session.own_timeline().await.ok().flatten();
        check_privileges(&mut report, &session);
        let control = check_directory(&mut report, cluster, &session, options).await;
        // Before a segment is switched.
        let known = control.as_ref().map(|(directory, _)| directory.as_path());
        let state = server::state(&session, known, options.wal_timeout).await;
        if let (Some(record), Some((directory, control))) = (&record, &control) {
            let same = check_record(record, control);
            let same = report.note("cluster identity", same, |()| {
                "the server is the cluster in the repository".to_owned()
            });
            let wal = WalCheck {
                cluster,
                record,
                data_directory: directory,
                // After a promotion pg_control tells the old one until a checkpoint.
                timeline: timeline.unwrap_or(control.timeline),
            };
            // WAL of another cluster must not get into this one's archive.
            match (same.is_some(), state.has_room_to_switch()) {
                (true, true) => check_wal(&mut report, &session, &wal, options).await,
                (true, false) => check_history_alone(&mut report, &session, &wal).await,
                (false, _) => {}
            }
        }
        for verdict in health::server::judge(&state) {
            report.verdict(verdict);
        }
        check_tracker(&mut report, &session, &options.connection).await;
    }
    if record.is_some() {
        check_layers(&mut report, cluster, options, timeline).await;
    }
    report
}

async fn check_repository(
    report: &mut CheckReport,
    cluster: &ClusterRepository,
) -> Option<ClusterRecord> {
    let record = cluster.record().await;
    // A probe makes the cluster's directory, and a place that was not mounted would no longer be seen to be empty.
    let is_absent = matches!(&record, Err(error) if error.kind() == Kind::NotFound);
    if !is_absent || cluster.repository.directory().is_none() {
        let probe = cluster.repository.probe(cluster.name.as_str()).await;
        report.note("repository", probe, |()| {
            format!(
                "{} creates objects only when they are absent",
                cluster.repository.url()
            )
        })?;
    }
    report.note("cluster record", record, |record| {
        format!(
            "\"{}\" is system {} of version {}",
            record.name, record.system_identifier, record.major
        )
    })
}

/// Ages and retention go by clocks, and a store has one of its own.
async fn check_clock(report: &mut CheckReport, cluster: &ClusterRepository) {
    const NAME: &str = "clock";
    let before = Timestamp::now();
    let asked = StoreTime::look(cluster).await;
    let host = (before, Timestamp::now());
    let detail = match asked {
        Ok(store) => match clocks_differ(host, store.timestamp()) {
            Some(doubt) => {
                let to_do = "set the clock of this host, and look after its time service";
                return report.warn(NAME, doubt, to_do);
            }
            None => "that of this host agrees with the store's".to_owned(),
        },
        Err(error) => format!("not looked at: {error}"),
    };
    report.remark(NAME, detail, None);
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

/// What waits for an archiver that is refused may be why there is no room.
async fn check_history_alone(report: &mut CheckReport, session: &Session, wal: &WalCheck<'_>) {
    match wal.require_own_history(session).await {
        Ok(()) => {
            let what = "not looked at: that begins a new segment, for which pg_wal has no room";
            report.warn("WAL", what.to_owned(), "make room for it first");
        }
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
            return report.remark(NAME, detail, none.may_be_there.then_some(none.hint));
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

async fn check_directory(
    report: &mut CheckReport,
    cluster: &ClusterRepository,
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
    let (control, found) = report.note("data directory", outcome, |(control, _)| {
        let checksums = if control.has_checksums() { "on" } else { "off" };
        format!(
            "\"{}\" is the server's, data checksums are {checksums}",
            directory.display()
        )
    })?;
    if let Err(error) = require_place(cluster, &directory, found.linked).await {
        report.note("repository", Err::<(), _>(error), |()| String::new());
    }
    let of_files = health::server::files(found.warnings);
    let outside = health::server::configuration(Ok(found.left_out));
    for verdict in of_files.into_iter().chain(outside) {
        report.verdict(verdict);
    }
    Some((directory, control))
}

/// As a backup does: the repository is not among the files of the cluster, wherever their links lead.
async fn require_place(
    cluster: &ClusterRepository,
    directory: &Path,
    linked: Vec<PathBuf>,
) -> Result<()> {
    let repository = cluster.repository.clone();
    require_apart(&repository, directory).await?;
    blocking(move || require_apart_from(&repository, linked.iter().map(PathBuf::as_path))).await
}

/// What a check needs of the list of files.
struct DirectoryFindings {
    linked: Vec<PathBuf>,
    warnings: Vec<String>,
    /// What of the configuration outside the data directory no backup has.
    left_out: Vec<String>,
}

async fn read_directory(
    session: &Session,
    directory: &Path,
) -> Result<(ControlFile, DirectoryFindings)> {
    let control = control_of_server(session, directory).await?.control;
    storage::require_visible(session, directory, control.major).await?;
    let found = files_of(directory, control.major).await?;
    let root = directory.to_owned();
    let mut found = blocking(move || {
        found.require_readable(&root)?;
        Ok(DirectoryFindings {
            linked: found.linked,
            warnings: found.warnings,
            left_out: Vec::new(),
        })
    })
    .await?;
    found.left_out = outside(session, directory).await?.warnings;
    Ok((control, found))
}

async fn check_layers(
    report: &mut CheckReport,
    cluster: &ClusterRepository,
    wanted: &CheckOptions,
    timeline: Option<TimelineId>,
) {
    let options = InfoOptions {
        max_age: wanted.max_age,
        max_verify_age: wanted.max_verify_age,
        ..InfoOptions::default()
    };
    let outcome = info::collect(cluster, &options).await;
    let Some(found) = report.note("layers", outcome, |found| {
        format!("{} finished", found.layers.len())
    }) else {
        return;
    };
    let left = found.leaves(timeline);
    for alarm in found.alarms.into_iter().chain(left) {
        // Who looks at the keys has said so.
        if alarm.kind != AlarmKind::Keys || report.keys.is_none() {
            report.alarm(alarm);
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
        if let Some(doubt) = leftover.wrong_clock() {
            let to_do = "find out which clock is or was wrong, and set it; the next expire removes what was left all the same";
            report.warn("leftovers", doubt, to_do);
        }
    }
}
