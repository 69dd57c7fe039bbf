//! WAL in a data directory that no archive has: a restore in place would delete the only copy.
//!
//! What waits for the archiver is looked for in the archive by its name. Another server may have been there first, under the same
//! name, or what was stored may have been damaged since, as by a power failure. So what is there is read to its end and compared,
//! too. What cannot be compared is told.

use std::fs;
use std::path::Path;

use pgstrata_pgdata::control::ClusterState;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};
use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::archive::{Archive, ArchivedWal, ArchiverMark, marked_files};
use pgstrata_store::error::{Error, Kind, Result};

use crate::restore::settings::SignalFile;
use crate::restore::target::Target;
use crate::server::read_control;

/// WAL that only this directory has would be lost: says which files wait to be archived. Answers what is not known of others.
pub(crate) async fn refuse_unarchived_wal(
    data: &Path,
    held: &Archive,
    listed: &ArchivedWal,
) -> Result<Vec<String>> {
    let pg_wal = data.join("pg_wal");
    let size = listed.segment_size();
    let waiting = waiting(&pg_wal, size)?.into_iter();
    let (there, mut missing): (Vec<_>, Vec<_>) =
        waiting.partition(|(_, file)| listed.holds_file(*file));
    let there: Vec<ArchiveFile> = there.into_iter().map(|(_, file)| file).collect();
    // First: what comes behind another server's files is not to be archived either.
    let compared = held.compare_waiting_whole(&pg_wal, &there).await?;
    if let Some(other) = compared.other {
        return Err(of_another(&pg_wal, &other.file_name(size)));
    }
    let damaged = compared.nothing_good.iter();
    missing.extend(damaged.map(|file| (file.file_name(size), *file)));
    missing.sort_unstable();
    if let Some(error) = unarchived(&pg_wal, &missing, compared.nothing_good.len(), listed) {
        return Err(error);
    }
    if let Some(partial) = compared.other_partial {
        return Err(of_another_promotion(&pg_wal, &partial.file_name(size)));
    }
    let unknown = compared.unknown.into_iter();
    Ok(unknown
        .map(|(name, why)| {
            format!(
                "whether the archive has \"{name}\" as it waits for the archiver in \"{}\" is not known, and the restore deletes it: {why}",
                pg_wal.display()
            )
        })
        .collect())
}

/// A standby's receiver marks each segment as done, also one that nobody has archived (replication/walreceiver.c,
/// `XLogWalRcvClose`). What lies behind the end of the archive is nowhere else when the primary is gone: says which segments
/// would be lost, and refuses, unless what comes is a standby again. Then a primary may send them once more, and that is told.
pub(crate) fn refuse_received_wal(
    data: &Path,
    held: &Archive,
    listed: &ArchivedWal,
    target: &Target,
) -> Result<Option<String>> {
    let pg_wal = data.join("pg_wal");
    let received = match is_of_standby(data) {
        true => received(&pg_wal, held, listed)?,
        false => Vec::new(),
    };
    let Some(first) = received.first() else {
        return Ok(None);
    };
    let what = format!(
        "{} segments in \"{}\" lie behind the end of the archive, the first is {first}: this standby has received them, and",
        received.len(),
        pg_wal.display()
    );
    match target {
        Target::Standby => Ok(Some(format!(
            "{what} the restore deletes them, so that only a primary that has them still can send them"
        ))),
        _ => Err(
            Error::new(Kind::Refused, format!("{what} the restore would delete them")).hint(
                "Archive them with \"pgstrata archive-push FILE\", the oldest first, or delete their .done files if they are not wanted.",
            ),
        ),
    }
}

fn is_of_standby(data: &Path) -> bool {
    let state = read_control(data).map(|reading| reading.control.state);
    let in_recovery = [
        ClusterState::ShutDownInRecovery,
        ClusterState::InArchiveRecovery,
    ];
    data.join(SignalFile::Standby.name()).exists()
        || state.is_ok_and(|state| in_recovery.contains(&state))
}

/// The names of whole segments that are marked as done and come behind those that the archive has, in order.
fn received(pg_wal: &Path, held: &Archive, listed: &ArchivedWal) -> Result<Vec<String>> {
    let size = listed.segment_size();
    let done = marked(pg_wal, ArchiverMark::Done, size)?.into_iter();
    let received = done.filter(|(name, file)| {
        let ArchiveFile::Segment(segment) = *file else {
            return false;
        };
        let last = listed.runs(segment.timeline).last();
        let length = fs::metadata(pg_wal.join(name)).map(|file| file.len());
        last.is_none_or(|last| last.last < segment.number)
            && length.is_ok_and(|length| length == size.get())
            && held.has_begun(pg_wal, segment)
    });
    Ok(received.map(|(name, _)| name).collect())
}

/// What waits for the archiver and is there, in order of its name.
fn waiting(pg_wal: &Path, size: WalSegmentSize) -> Result<Vec<(String, ArchiveFile)>> {
    let mut marked = marked(pg_wal, ArchiverMark::Ready, size)?;
    // The label of a backup says nothing that its layer does not say.
    marked.retain(|(name, file)| {
        !matches!(file, ArchiveFile::BackupLabel { .. }) && pg_wal.join(name).exists()
    });
    Ok(marked)
}

/// What has this mark, in order of its name.
fn marked(
    pg_wal: &Path,
    mark: ArchiverMark,
    size: WalSegmentSize,
) -> Result<Vec<(String, ArchiveFile)>> {
    if !pg_wal.join("archive_status").exists() {
        return Ok(Vec::new());
    }
    let marked = marked_files(pg_wal, mark, size)?.into_iter();
    Ok(marked.map(|file| (file.file_name(size), file)).collect())
}

/// The archiver of this server was refused, and what it could not bring is nowhere else.
fn of_another(pg_wal: &Path, name: &str) -> Error {
    let what = format!(
        "\"{name}\" in \"{}\" was never archived: the archive has other contents under that name, of another server or of another \
         history of this one, and the restore would delete the only copy",
        pg_wal.display()
    );
    Error::new(Kind::Refused, what).hint(
        "Copy pg_wal away if anybody may want what was committed there, or archive it under another cluster's name (OPERATIONS.md, \
         \"When the archive has another history\"). Then delete the .ready files.",
    )
}

/// No recovery reads it, and the archiver is refused it. What the server wrote last on its old timeline is in it.
fn of_another_promotion(pg_wal: &Path, name: &str) -> Error {
    let what = format!(
        "\"{name}\" in \"{}\" was never archived: the archive has other contents under that name, because two servers were promoted \
         out of one segment, and the restore would delete the only copy",
        pg_wal.display()
    );
    Error::new(Kind::Refused, what).hint(
        "Keep a copy if anybody may want what was written last on the timeline that was left, then delete its .ready file.",
    )
}

const ARCHIVE_THEM: &str = "Archive them with \"pgstrata archive-push FILE\", or delete their .ready files if they are not wanted.";

/// What is said of files that wait in a `pg_wal`, of which the archive has so many `damaged`. Those of a branch that was left must
/// not get into the archive: restores would ask which branch is meant.
fn unarchived(
    pg_wal: &Path,
    waiting: &[(String, ArchiveFile)],
    damaged: usize,
    archive: &ArchivedWal,
) -> Option<Error> {
    let (first, _) = waiting.first()?;
    let mut what = format!(
        "{} files in \"{}\" were never archived, the first is {first}: the restore would delete them",
        waiting.len(),
        pg_wal.display()
    );
    if damaged > 0 {
        what.push_str(&format!(
            "; of {damaged} of them the archive has an object that cannot be read, beside which archive-push stores the file anew"
        ));
    }
    let abandoned = waiting.iter();
    let abandoned = abandoned.filter_map(|(name, file)| Some((name, left(*file, archive)?)));
    let abandoned: Vec<(&String, Left)> = abandoned.collect();
    let Some((begin, Left { timeline, at, to })) = abandoned.first() else {
        return Some(Error::new(Kind::Refused, what).hint(ARCHIVE_THEM));
    };
    let (count, rest) = (abandoned.len(), waiting.len() - abandoned.len());
    what.push_str(&format!(
        "; {count} of them, from {begin} on, belong to a branch: timeline {to} left timeline {timeline} at {at}"
    ));
    let mut hint = format!(
        "Copy pg_wal away if anybody may want what was committed on that branch behind {at}, then delete the .ready files of \
         these {count}. Archived, they would make restores ask which branch is meant; that is right only where timeline \
         {timeline} is the one that goes on."
    );
    if rest > 0 {
        hint.push_str(&format!(
            " The other {rest} are of no such branch. {ARCHIVE_THEM}"
        ));
    }
    Some(Error::new(Kind::Refused, what).hint(hint))
}

/// A timeline, and where another one left it that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    timeline: TimelineId,
    at: Lsn,
    to: TimelineId,
}

/// Whether a segment holds what came behind the place where the latest timeline left its own.
fn left(file: ArchiveFile, archive: &ArchivedWal) -> Option<Left> {
    let ArchiveFile::Segment(segment) = file else {
        return None;
    };
    let timeline = segment.timeline;
    let to = archive.latest_from(timeline);
    let at = archive.history(to).switch_point(timeline)?;
    (at < segment.end_lsn(archive.segment_size())).then_some(Left { timeline, at, to })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pgstrata_pgdata::TimelineHistory;

    use super::*;

    #[test]
    fn files_of_a_branch_that_was_left_are_not_to_be_archived() {
        let size = WalSegmentSize::try_from(1 << 20).unwrap();
        let two = TimelineId::new(2);
        let history = TimelineHistory::parse(two, "1\t0/380000\tno recovery target specified\n");
        let mut archive = ArchivedWal::new(size);
        let told = |archive: &ArchivedWal, names: &[&str]| {
            let file = |name: &&str| ((*name).to_owned(), ArchiveFile::parse(name, size).unwrap());
            let waiting: Vec<_> = names.iter().map(file).collect();
            let error = unarchived(Path::new("/data/pg_wal"), &waiting, 0, archive)?;
            Some((error.to_string(), error.hint_text().unwrap().to_owned()))
        };
        let before = "000000010000000000000002";
        let partly = "000000010000000000000003";
        let wholly = "000000010000000000000004";
        let others = [
            "000000010000000000000003.partial",
            "000000020000000000000003",
        ];
        assert_eq!(told(&archive, &[]), None);
        let (_, hint) = told(&archive, &[before, partly, wholly]).unwrap();
        assert!(hint.starts_with(ARCHIVE_THEM), "{hint}");

        archive.add_history(history.unwrap(), Timestamp::UNIX_EPOCH);
        let (what, hint) = told(&archive, &[&[before][..], &others].concat()).unwrap();
        assert!(!what.contains("belong to a branch"), "{what}");
        assert_eq!(hint, ARCHIVE_THEM);
        let (what, hint) = told(&archive, &[partly, wholly]).unwrap();
        let words = format!(
            "2 of them, from {partly} on, belong to a branch: timeline 2 left timeline 1 at 0/380000"
        );
        assert!(what.ends_with(&words), "{what}");
        assert!(hint.starts_with("Copy pg_wal away"), "{hint}");
        assert!(!hint.contains("archive-push"), "{hint}");
        let (what, hint) = told(&archive, &[before, wholly]).unwrap();
        assert!(
            what.contains(&format!("1 of them, from {wholly} on")),
            "{what}"
        );
        assert!(hint.contains("The other 1 are"), "{hint}");
        assert!(hint.ends_with(ARCHIVE_THEM), "{hint}");
    }
}
