//! What unfinished backups have left, and whether they may still be at work.

use jiff::Timestamp;
use pgstrata_store::catalog::{StoreTime, Unfinished};
use serde::Serialize;

/// A layer that has objects and no manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The label it claimed.
    pub label: String,
    /// Number of its objects.
    pub objects: u64,
    /// Sum of their sizes.
    pub stored_bytes: u64,
    /// Host of the backup; `None` when its claim is missing or unreadable.
    pub host: Option<String>,
    /// Process of the backup on that host.
    pub pid: Option<u32>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When the last object was written.
    pub modified_at: Option<Timestamp>,
    /// Whether the backup seems to be at work: it stored something lately. A sign for people; what is removed is decided
    /// by the store's own times.
    pub running: Option<bool>,
    #[serde(skip)]
    was_committed: bool,
    #[serde(skip)]
    is_dated_ahead: bool,
}

impl Leftover {
    /// What is known of `unfinished`.
    #[must_use]
    pub fn of(unfinished: &Unfinished, now: StoreTime) -> Self {
        let claim = unfinished.claim.as_ref();
        Self {
            label: unfinished.label.to_string(),
            objects: u64::try_from(unfinished.object_count).expect("usize has 64 bits"),
            stored_bytes: unfinished.size_bytes,
            host: claim.map(|claim| claim.host.clone()),
            pid: claim.map(|claim| claim.pid),
            started_at: claim.map(|claim| claim.started_at),
            modified_at: unfinished.modified,
            running: unfinished.modified.map(|_| unfinished.is_at_work(now)),
            was_committed: unfinished.was_committed,
            is_dated_ahead: unfinished.is_dated_ahead(now),
        }
    }

    /// What is wrong with a clock, when the last object has a time that is still to come.
    #[must_use]
    pub fn wrong_clock(&self) -> Option<String> {
        let modified_at = self.modified_at.filter(|_| self.is_dated_ahead)?;
        Some(format!(
            "the time of the last object of {}, {modified_at}, is still to come: the clock of the repository's store was ahead, or that \
             of this host is behind",
            self.label
        ))
    }

    /// One line, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let what = format!("{} objects, {} bytes", self.objects, self.stored_bytes);
        if self.was_committed {
            return format!(
                "{what}; it was finished: an expiry or a merge is removing it, or was interrupted"
            );
        }
        let (Some(host), Some(pid), Some(started_at)) = (&self.host, self.pid, self.started_at)
        else {
            return format!("{what}, without a readable claim");
        };
        let state = match self.running {
            Some(true) => "is at work",
            Some(false) => "was interrupted",
            None => "is at work, or was interrupted",
        };
        format!("{what}; the backup of process {pid} on \"{host}\", begun at {started_at}, {state}")
    }
}
