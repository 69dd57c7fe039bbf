//! Whether WAL piles up in `pg_wal`: slots that hold it, files that wait for the archiver, and the room that is left.
//!
//! A server whose `pg_wal` is full stops. PostgreSQL's own measures are the limits here: `max_wal_size`, and the time that
//! WAL may take into the repository. Slots are asked for by SQL, which every role may; the rest is looked at in the data
//! directory, which a backup reads too.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use pgstrata_store::error::{Error, FileContext, Result};
use rustix::fs::statvfs;

use super::CheckReport;
use crate::server::Session;
use crate::server::held::{ForeignSlot, HeldWal};

/// What lies in `pg_wal`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WalDirectory {
    /// Files that wait for the archiver.
    waiting: u64,
    /// Since when the first of them waits.
    since: Option<SystemTime>,
    /// Bytes of segments.
    segment_bytes: u64,
    /// Bytes that the server may still write to the file system.
    free_bytes: u64,
}

/// Notes what holds WAL, and what room there is. `patience` is the time that WAL may take into the repository.
pub(super) async fn check(
    report: &mut CheckReport,
    session: &Session,
    directory: Option<&Path>,
    patience: Duration,
) {
    let held = match session.held_wal().await {
        Ok(held) => held,
        Err(error) => return unseen(report, "slots", &error),
    };
    for slot in &held.slots {
        if let Some((detail, to_do)) = complaint(slot) {
            report.warn("slots", detail, &to_do);
        }
    }
    // That it is not known has been said.
    let Some(directory) = directory else { return };
    match look(&directory.join("pg_wal")) {
        Ok(found) => {
            note_backlog(report, &found, patience);
            note_room(report, &found, &held);
        }
        Err(error) => unseen(report, "room for WAL", &error),
    }
}

/// Who may not look is told so; it is no reason to worry.
fn unseen(report: &mut CheckReport, name: &'static str, error: &Error) {
    report.remark(name, format!("not looked at: {error}"), None);
}

fn look(pg_wal: &Path) -> Result<WalDirectory> {
    let about = |path: &Path| format!("could not look into \"{}\"", path.display());
    let status = pg_wal.join("archive_status");
    let mut found = WalDirectory::default();
    for entry in fs::read_dir(&status).context(|| about(&status))? {
        let entry = entry.context(|| about(&status))?;
        if entry.path().extension().is_none_or(|end| end != "ready") {
            continue;
        }
        found.waiting += 1;
        // It may have been archived by now.
        if let Ok(modified) = entry.metadata().and_then(|meta| meta.modified()) {
            found.since = Some(found.since.map_or(modified, |first| first.min(modified)));
        }
    }
    for entry in fs::read_dir(pg_wal).context(|| about(pg_wal))? {
        let entry = entry.context(|| about(pg_wal))?;
        let name = entry.file_name();
        let is_segment =
            name.len() == 24 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
        if is_segment {
            found.segment_bytes += entry.metadata().map_or(0, |meta| meta.len());
        }
    }
    let space = statvfs(pg_wal)
        .map_err(io::Error::from)
        .context(|| about(pg_wal))?;
    found.free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(found)
}

/// What a slot does to the server, and what to do about it.
fn complaint(slot: &ForeignSlot) -> Option<(String, String)> {
    let ForeignSlot {
        name,
        active,
        wal_status,
        held_bytes,
    } = slot;
    let used = if *active { "in use" } else { "used by nobody" };
    match wal_status.as_str() {
        "reserved" => None,
        "extended" => Some((
            format!(
                "replication slot \"{name}\", {used}, holds {} of WAL, more than max_wal_size: pg_wal grows until its \
                 file system is full and the server stops",
                mebibytes(*held_bytes)
            ),
            format!(
                "see to it that whoever reads from the slot does, or SELECT pg_drop_replication_slot('{name}'); \
                 max_slot_wal_keep_size limits what slots hold"
            ),
        )),
        _ => Some((
            format!(
                "replication slot \"{name}\", {used}, is {wal_status}: whoever reads from it cannot go on without WAL that \
                 pg_wal does not keep"
            ),
            format!(
                "make its standby or subscriber anew, or let it read from the archive, and SELECT \
                 pg_drop_replication_slot('{name}')"
            ),
        )),
    }
}

fn note_backlog(report: &mut CheckReport, found: &WalDirectory, patience: Duration) {
    const NAME: &str = "archive backlog";
    let files = match found.waiting {
        0 => return report.remark(NAME, "no file waits to be archived".to_owned(), None),
        1 => "1 file waits".to_owned(),
        more => format!("{more} files wait"),
    };
    let waits = found.since.and_then(|since| since.elapsed().ok());
    let since = found
        .since
        .and_then(|since| Timestamp::try_from(since).ok());
    let since = since.map_or_else(String::new, |since| format!(", the first since {since:.0}"));
    let detail = format!("{files} to be archived{since}");
    if waits.is_none_or(|waits| waits <= patience) {
        return report.remark(NAME, detail, None);
    }
    let detail = format!(
        "{detail}: they are lost with this host, and stay in pg_wal until its file system is full and the server stops"
    );
    let to_do =
        "look at pg_stat_archiver and at the server's log: archive_command fails, or is too slow";
    report.warn(NAME, detail, to_do);
}

fn note_room(report: &mut CheckReport, found: &WalDirectory, held: &HeldWal) {
    const NAME: &str = "room for WAL";
    let detail = format!(
        "pg_wal holds {}, and its file system has {} left",
        mebibytes(found.segment_bytes),
        mebibytes(found.free_bytes)
    );
    let may_grow = held.max_wal_bytes.saturating_sub(found.segment_bytes);
    if found.free_bytes >= may_grow {
        return report.remark(NAME, detail, None);
    }
    let detail = format!(
        "{detail}: less than it may grow, because max_wal_size is {}; when the file system is full, the server stops",
        mebibytes(held.max_wal_bytes)
    );
    report.warn(NAME, detail, "make room there, or lower max_wal_size");
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;
    use crate::check::CheckStatus;

    fn statuses(report: &CheckReport) -> Vec<CheckStatus> {
        report.items.iter().map(|item| item.status).collect()
    }

    #[test]
    fn a_backlog_is_a_warning_when_it_is_older_than_wal_may_take() {
        let minute = Duration::from_secs(60);
        let waiting = |ago: u64| WalDirectory {
            waiting: 3,
            since: SystemTime::now().checked_sub(Duration::from_secs(ago)),
            ..WalDirectory::default()
        };
        let mut report = CheckReport::default();
        for found in [WalDirectory::default(), waiting(10), waiting(100)] {
            note_backlog(&mut report, &found, minute);
        }
        let (ok, warning) = (CheckStatus::Ok, CheckStatus::Warning);
        assert_eq!(statuses(&report), [ok, ok, warning]);
        let detail = &report.items[2].detail;
        assert!(
            detail.starts_with("3 files wait to be archived, the first since 2"),
            "{detail}"
        );
    }

    #[test]
    fn room_is_short_when_pg_wal_may_grow_by_more_than_is_left() {
        let held = HeldWal {
            slots: Vec::new(),
            max_wal_bytes: 100 << 20,
        };
        let mut report = CheckReport::default();
        for free in [20, 19] {
            let found = WalDirectory {
                segment_bytes: 80 << 20,
                free_bytes: free << 20,
                ..WalDirectory::default()
            };
            note_room(&mut report, &found, &held);
        }
        assert_eq!(statuses(&report), [CheckStatus::Ok, CheckStatus::Warning]);
        assert!(report.items[1].detail.contains("max_wal_size is 100 MiB"));
    }
}
