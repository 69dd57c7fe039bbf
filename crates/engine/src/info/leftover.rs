//! What unfinished backups have left, and whether they may still be at work.

use std::fs;

use jiff::Timestamp;
use serde::Serialize;

use crate::catalog::Unfinished;

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
    /// Whether the backup is at work; `None` when it cannot be known from this host.
    pub running: Option<bool>,
}

impl Leftover {
    /// What is known of `unfinished`, seen from this host.
    #[must_use]
    pub fn of(unfinished: &Unfinished) -> Self {
        let claim = unfinished.claim.as_ref();
        Self {
            label: unfinished.label.to_string(),
            objects: u64::try_from(unfinished.object_count).expect("usize has 64 bits"),
            stored_bytes: unfinished.size_bytes,
            host: claim.map(|claim| claim.host.clone()),
            pid: claim.map(|claim| claim.pid),
            started_at: claim.map(|claim| claim.started_at),
            modified_at: unfinished.modified,
            running: claim.and_then(|claim| is_running(&claim.host, claim.pid)),
        }
    }

    /// One line, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let what = format!("{} objects, {} bytes", self.objects, self.stored_bytes);
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

/// Whether that process is a pgstrata at work; `None` when it is another host's.
pub(crate) fn is_running(host: &str, pid: u32) -> Option<bool> {
    let here = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    if here.trim() != host {
        return None;
    }
    let command = fs::read_to_string(format!("/proc/{pid}/comm"));
    // A process of another user or container may be hidden: only what can be seen is known.
    match command {
        Ok(command) => Some(command.trim() == "pgstrata"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_or_another_program_does_not_run() {
        let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(is_running(here.trim(), u32::MAX), Some(false));
        assert_eq!(is_running(here.trim(), std::process::id()), Some(false));
        assert_eq!(is_running("some-other-host", 1), None);
    }
}
