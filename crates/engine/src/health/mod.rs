//! One judgement of the health of a cluster's backups: what is wrong and since when, what cannot be restored because
//! of it, what to do.
//!
//! Facts in, alarms out: nothing here reads a clock, a repository or a server. Two collectors bring the facts,
//! [`crate::info`] those of the repository and `info/server.rs` those of the server. `info`, `check` and `verify` show the same
//! alarms; `expire` and `restore` take no layer for usable that is not.

mod age;
mod archivers;
pub(crate) mod beside;
mod layers;
pub(crate) mod server;
mod wal;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::{Catalog, LastVerified};
use pgstrata_store::error::Error;
use serde::Serialize;

pub(crate) use layers::{found_damaged, problem, usable};
pub(crate) use wal::{
    DOUBTFUL, Hole, LostHistory, RecoveryPath, histories_lost_to_any, holes, lost_histories, ways,
    without_history,
};

/// One host may be ahead of another, and a backup ahead of the archiver: a segment that has been missing for no longer before
/// one that was stored may be on its way. An idle server looks once a minute whether it has to start its archiver again, or
/// to repeat a command that failed (`postmaster.c`, `PGARCH_AUTOWAKE_INTERVAL`).
pub(crate) const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(90);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Restores work; somebody should look.
    Warning,
    /// A restore that was promised fails or loses something, or the server is about to stop.
    Error,
}

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// The cluster's record cannot be read.
    Record,
    /// Nobody can open what was sealed in an epoch.
    Keys,
    /// The archive cannot be listed, or a history in it is missing or damaged.
    Archive,
    /// The history branches, and a restore would not know which way is meant.
    Timelines,
    /// A layer cannot be restored.
    Layer,
    /// WAL is missing from the archive, though later WAL is there.
    WalHole,
    /// The newest backup is too old.
    Age,
    /// Nobody has verified the layers for too long, or whoever did has found errors.
    Verify,
    /// The server's archiver does not bring WAL into this repository.
    Archiver,
    /// Nothing can be removed, because a record that says what stays cannot be read.
    Removal,
    /// Configuration that is not in backups.
    Configuration,
    /// A replication slot keeps WAL, or has lost it.
    Slots,
    /// Files wait for the archiver.
    Backlog,
    /// The file system of `pg_wal` has little room.
    Room,
}

impl AlarmKind {
    /// Whether an alarm of this kind that names no layer is about the whole cluster, so that who asks about one layer is told.
    pub(crate) fn is_of_cluster(self) -> bool {
        !matches!(self, Self::Archive | Self::WalHole | Self::Timelines)
    }

    /// In a word or three.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Record => "cluster record",
            Self::Keys => "keys",
            Self::Archive | Self::WalHole => "WAL archive",
            Self::Timelines => "timelines",
            Self::Layer => "layers",
            Self::Age => "age",
            Self::Verify => "verification",
            Self::Archiver => "archiver",
            Self::Removal => "removals",
            Self::Configuration => "files",
            Self::Slots => "slots",
            Self::Backlog => "archive backlog",
            Self::Room => "room for WAL",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: AlarmKind,
    /// The layer that it is about, if it is about one.
    pub layer: Option<String>,
    /// What is wrong, and since when; for people.
    pub reason: String,
    /// What cannot be restored because of it; `None` when everything can.
    pub lost: Option<String>,
    /// What to do.
    pub to_do: String,
}

impl Alarm {
    /// One that an error tells, with what to do about it.
    fn told_by(error: &Error, severity: Severity, kind: AlarmKind) -> Self {
        Self {
            severity,
            kind,
            layer: None,
            reason: error.to_string(),
            lost: None,
            to_do: error.hint_text().unwrap_or_default().to_owned(),
        }
    }

    /// What it costs, to be put behind the reason.
    pub(crate) fn losses(&self) -> String {
        let lost = self.lost.as_ref();
        lost.map_or_else(String::new, |lost| format!("; cannot be restored: {lost}"))
    }
}

/// What is judged.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) archived: Result<&'a ArchivedWal, &'a Error>,
    /// Why a restore of the newest state would be refused, though layers and WAL are there.
    pub(crate) refused: Option<&'a Error>,
    /// Why the cluster's record cannot be used.
    pub(crate) record: Option<&'a Error>,
    /// Why nobody can open what was sealed.
    pub(crate) keys: Option<&'a Error>,
    /// Why nothing can be removed.
    pub(crate) removal: Option<&'a Error>,
    /// Layers that count as pinned, because a mark on them cannot be read, and why.
    pub(crate) unread_marks: Vec<(&'a Label, &'a Error)>,
    /// Layers that are pinned and were deleted by somebody who asked no pin.
    pub(crate) gone_pins: Vec<&'a Label>,
    pub(crate) now: Timestamp,
    /// The oldest that the newest backup may be.
    pub(crate) max_age: Option<Duration>,
    /// What tells that there were layers, when there is none.
    pub(crate) traces: Option<String>,
    /// When the cluster's record was made.
    pub(crate) created_at: Option<Timestamp>,
    /// What is on record of verifications.
    pub(crate) verified: &'a LastVerified,
    /// The longest that there may have been none that found nothing wrong.
    pub(crate) max_verify_age: Option<Duration>,
}

/// Everything that is wrong, the worst first.
pub(crate) fn judge(facts: &Facts<'_>) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    if let Some(error) = facts.record {
        alarms.push(Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Record,
            layer: None,
            reason: error.to_string(),
            lost: Some("anything, until the record is brought back".to_owned()),
            to_do: error
                .hint_text()
                .unwrap_or("bring the object back from a copy of the repository")
                .to_owned(),
        });
    }
    alarms.extend(facts.keys.map(|error| Alarm {
        lost: Some("layers and WAL of that time".to_owned()),
        ..Alarm::told_by(error, Severity::Error, AlarmKind::Keys)
    }));
    alarms.extend(facts.removal.map(|error| Alarm {
        reason: format!("nothing can be removed: {error}"),
        ..Alarm::told_by(error, Severity::Warning, AlarmKind::Removal)
    }));
    let unread = facts.unread_marks.iter();
    alarms.extend(unread.map(|(label, error)| Alarm {
        severity: Severity::Warning,
        kind: AlarmKind::Removal,
        layer: Some(label.to_string()),
        reason: format!("layer {label} counts as pinned: {error}"),
        lost: None,
        to_do: "say what is meant with \"pgstrata pin\" or \"pgstrata unpin\"".to_owned(),
    }));
    alarms.extend(facts.gone_pins.iter().map(|label| Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Layer,
        layer: Some(label.to_string()),
        reason: format!(
            "layer {label} is pinned and not there any more, though no expiry has removed it"
        ),
        lost: Some(label.to_string()),
        to_do: format!(
            "bring it back with \"pgstrata rescue\" or from a copy of the repository; nothing is removed before, or until \
             \"pgstrata unpin {label}\" gives it up"
        ),
    }));
    match facts.archived {
        Ok(archived) => alarms.extend(of_archive(facts, archived)),
        Err(error) => alarms.push(Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Archive,
            layer: None,
            reason: format!("the WAL archive cannot be listed: {error}"),
            lost: None,
            to_do: "look at the store: its permissions, its disk, its log".to_owned(),
        }),
    }
    alarms.extend(layers::layers(facts));
    alarms.extend(age::age(facts));
    alarms.extend(age::verified(facts));
    alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.severity));
    alarms
}

/// What is wrong with the archive, and with what it tells of servers.
fn of_archive(facts: &Facts<'_>, archived: &ArchivedWal) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    let holes = holes(facts.catalog, archived, facts.now);
    let unproved = beside::unproved(facts.catalog, archived);
    alarms.extend(holes.iter().map(|hole| {
        let mut alarm = hole.alarm(archived);
        if beside::is_doubted(&unproved, hole.first.timeline) {
            alarm.to_do.push_str(beside::MAY_BE_OF_ANOTHER);
        }
        alarm
    }));
    alarms.extend(beside::alarms(&unproved, archived));
    let lost = lost_histories(facts.catalog, archived, facts.now);
    alarms.extend(lost.iter().map(LostHistory::alarm));
    let bare = wal::bare_timelines(facts.catalog, archived);
    let refused = facts.refused.filter(|_| bare.is_empty());
    alarms.extend(bare);
    alarms.extend(refused.map(wal::branches));
    alarms.extend(wal::damaged(facts.catalog, archived));
    alarms.extend(wal::unread_releases(archived));
    alarms
}
