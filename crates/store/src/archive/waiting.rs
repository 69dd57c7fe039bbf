//! What waits for a server's archiver, compared with what the archive has under its names.
//!
//! Where they differ, another server was there first, or this one was set back, and `archive-push` refuses the file for ever.
//!
//! Thousands of files may wait, and few of them need be read. Only those tell that the archive has, too. The archiver takes the
//! oldest first and never passes one that is refused (`pgarch_readyXlog` in PostgreSQL's `pgarch.c`), so the oldest tell
//! whether this server's archiver can go on. The newest tell whether a backup may store WAL behind them. If they are another
//! server's, that one goes on behind them, under the names that the backup would take. If they are this server's own, no other
//! one that has parted from it can archive behind them: its own archiver stops there. So whatever lies between the two ends,
//! a backup that finds both ends its own keeps nobody's WAL from the archive that is not kept from it already. A few are read at
//! each end, for one may be damaged, and two servers that do little may write one segment alike by chance.

use std::fs::{self, DirEntry};
use std::path::Path;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pgstrata_pgdata::{ArchiveFile, WalSegmentSize};

use super::whole::Forks;
use super::{Archive, WHOLE_BYTES, timeline_of};
use crate::blocking::blocking;
use crate::error::{Error, FileContext, Kind, Result};

/// So many files are read at each end: 64 MiB of segments of the usual size.
const MOST_AT_AN_END: u64 = 4;

/// Headers are far away, and files are read from a disk that the server needs.
const COMPARED_AT_ONCE: usize = 4;

/// Why a partial segment that differs tells of no other history.
const TWO_PROMOTED: &str = "two servers were promoted out of one segment; the server's log has what archive-push says of that";

/// What became of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingCompared {
    /// The first of which the archive has other contents.
    pub other: Option<ArchiveFile>,
    /// The names of those that tell nothing of another history, though they were not found to be the same, and why.
    pub unknown: Vec<(String, String)>,
    /// Those among them of which the archive has nothing good. Pushed again, they are stored beside what is damaged.
    pub nothing_good: Vec<ArchiveFile>,
    /// The first partial segment among them of which the archive has other contents.
    pub other_partial: Option<ArchiveFile>,
}

enum WaitingVerdict {
    /// The archive has it, or it does not wait any more, or nobody will store it.
    Fine,
    Other(ArchiveFile),
    OtherPartial(ArchiveFile),
    NothingGood(ArchiveFile),
    Unknown(String, String),
}

/// What the server says of a file of `pg_wal`, in `archive_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiverMark {
    /// It waits for the archiver.
    Ready,
    /// It is archived, or has come from an archive or to a standby.
    Done,
}

impl ArchiverMark {
    fn suffix(self) -> &'static str {
        match self {
            Self::Ready => ".ready",
            Self::Done => ".done",
        }
    }
}

/// What the server has given this mark: the names of the files, and the marks.
///
/// # Errors
/// `File` when it cannot be read.
pub fn archiver_marks(pg_wal: &Path, of: ArchiverMark) -> Result<Vec<(String, DirEntry)>> {
    let directory = pg_wal.join("archive_status");
    let about = || format!("could not look into \"{}\"", directory.display());
    let mut marks = Vec::new();
    for mark in fs::read_dir(&directory).context(about)? {
        let mark = mark.context(about)?;
        let name = mark.file_name();
        let name = name
            .to_str()
            .and_then(|name| name.strip_suffix(of.suffix()));
        marks.extend(name.map(|name| (name.to_owned(), mark)));
    }
    Ok(marks)
}

/// What waits for the archiver, as [`marked_files`].
///
/// # Errors
/// As for [`archiver_marks`].
pub fn waiting_files(pg_wal: &Path, size: WalSegmentSize) -> Result<Vec<ArchiveFile>> {
    marked_files(pg_wal, ArchiverMark::Ready, size)
}

/// What is marked so and has a name that the archive knows, in the archiver's order but for histories, which it takes first.
///
/// # Errors
/// As for [`archiver_marks`].
pub fn marked_files(
    pg_wal: &Path,
    of: ArchiverMark,
    size: WalSegmentSize,
) -> Result<Vec<ArchiveFile>> {
    let marks = archiver_marks(pg_wal, of)?.into_iter();
    let files = marks.filter_map(|(name, _)| ArchiveFile::parse(&name, size).ok());
    let mut files: Vec<ArchiveFile> = files.collect();
    files.sort_unstable_by_key(|file| file.file_name(size));
    Ok(files)
}

impl WaitingCompared {
    fn add(&mut self, verdict: WaitingVerdict, size: WalSegmentSize) {
        let mut unknown = |file: ArchiveFile, why: &str| {
            self.unknown.push((file.file_name(size), why.to_owned()));
        };
        match verdict {
            WaitingVerdict::Fine => {}
            WaitingVerdict::Other(file) => self.other = self.other.or(Some(file)),
            WaitingVerdict::OtherPartial(file) => {
                unknown(file, TWO_PROMOTED);
                self.other_partial = self.other_partial.or(Some(file));
            }
            WaitingVerdict::NothingGood(file) => {
                unknown(file, "the archive has nothing good of that name");
                self.nothing_good.push(file);
            }
            WaitingVerdict::Unknown(name, why) => self.unknown.push((name, why)),
        }
    }
}

impl Archive {
    /// Compares what waits for the archiver in `pg_wal`, as [`waiting_files`] has it, with the archive, at both ends of what
    /// that has of it. Reads the headers of objects alone.
    ///
    /// # Errors
    /// `File` when the histories beside it cannot be read; when the archive cannot be.
    pub async fn compare_waiting(
        &self,
        pg_wal: &Path,
        waiting: &[ArchiveFile],
    ) -> Result<WaitingCompared> {
        self.compare(pg_wal, waiting, false).await
    }

    /// The same for who deletes what waits, of all that `waiting` holds, which the archive must list: reads each object to its
    /// end, for what is damaged behind its header is lost, too. That the ends are good says nothing of what lies between.
    ///
    /// # Errors
    /// As for [`Archive::compare_waiting`].
    pub async fn compare_waiting_whole(
        &self,
        pg_wal: &Path,
        waiting: &[ArchiveFile],
    ) -> Result<WaitingCompared> {
        self.compare(pg_wal, waiting, true).await
    }

    async fn compare(
        &self,
        pg_wal: &Path,
        waiting: &[ArchiveFile],
        is_whole: bool,
    ) -> Result<WaitingCompared> {
        let mut found = WaitingCompared::default();
        let told = match is_whole {
            // Of some nothing may be left but what stands in for their objects.
            true => waiting.to_vec(),
            false => both_ends(self.present_of(waiting).await?, self.most_at_an_end()),
        };
        if told.is_empty() {
            return Ok(found);
        }
        let directory = pg_wal.to_owned();
        let forks = blocking(move || Forks::beside(&directory)).await?;
        let comparisons = told.into_iter();
        let comparisons = comparisons.map(|file| self.compare_one(pg_wal, file, &forks, is_whole));
        let compared = stream::iter(comparisons).buffered(COMPARED_AT_ONCE);
        for comparison in compared.try_collect::<Vec<_>>().await? {
            found.add(comparison, self.segment_size);
        }
        Ok(found)
    }

    fn most_at_an_end(&self) -> usize {
        let each = MOST_AT_AN_END.min(WHOLE_BYTES / self.segment_size.get());
        usize::try_from(each.max(1)).unwrap_or(1)
    }

    /// Those that are in the archive, in the same order.
    async fn present_of(&self, waiting: &[ArchiveFile]) -> Result<Vec<ArchiveFile>> {
        let mut present = Vec::new();
        for of_timeline in waiting.chunk_by(|one, next| timeline_of(*one) == timeline_of(*next)) {
            let listed = self.listed_from(of_timeline[0]).await?;
            let is_there = |file: &&ArchiveFile| listed.binary_search(&self.key(**file)).is_ok();
            present.extend(of_timeline.iter().filter(is_there));
        }
        Ok(present)
    }

    /// The keys of the file's timeline from the file on, in order.
    async fn listed_from(&self, first: ArchiveFile) -> Result<Vec<String>> {
        let key = self.key(first);
        let prefix = key.rsplit_once('/').map_or("", |(prefix, _)| prefix);
        // Without its last digit, it comes before itself.
        let after = &key[..key.len() - 1];
        let listed = self.cluster.repository.list_from(prefix, after).await?;
        let mut keys: Vec<String> = listed.into_iter().map(|object| object.key).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    async fn compare_one(
        &self,
        pg_wal: &Path,
        file: ArchiveFile,
        forks: &Forks,
        is_whole: bool,
    ) -> Result<WaitingVerdict> {
        let name = file.file_name(self.segment_size);
        let path = pg_wal.join(&name);
        let mark = pg_wal.join(format!("archive_status/{name}.ready"));
        let unknown = |why: String| Ok(WaitingVerdict::Unknown(name.clone(), why));
        let same = match is_whole {
            true => self.holds_whole_as(file, &path).await,
            false => self.holds_as(file, &path).await,
        };
        // What was archived meanwhile may have been given the name of a later segment while it was read.
        if !mark.exists() {
            return Ok(WaitingVerdict::Fine);
        }
        match same {
            Ok(Some(true)) => Ok(WaitingVerdict::Fine),
            // No recovery reads it.
            Ok(Some(false)) if matches!(file, ArchiveFile::Partial(_)) => {
                Ok(WaitingVerdict::OtherPartial(file))
            }
            Ok(Some(false)) => match self.will_be_left_out(&path, file, forks).await {
                Ok(true) => Ok(WaitingVerdict::Fine),
                Ok(false) => Ok(WaitingVerdict::Other(file)),
                Err(error) => unknown(error.to_string()),
            },
            Ok(None) => Ok(WaitingVerdict::NothingGood(file)),
            Err(error) if is_of_one_file(&error) => unknown(error.to_string()),
            Err(error) => Err(error),
        }
    }

    /// Whether the archiver will be told that nobody needs the file: a standby's that ends where its timeline was left.
    async fn will_be_left_out(
        &self,
        path: &Path,
        file: ArchiveFile,
        forks: &Forks,
    ) -> Result<bool> {
        match file {
            ArchiveFile::Segment(segment) => {
                let fork = self.abandoned(path, segment, forks).await?;
                Ok(fork.is_some())
            }
            _ => Ok(false),
        }
    }
}

/// Whether others may be compared all the same.
fn is_of_one_file(error: &Error) -> bool {
    error.kind() == Kind::File || error.is_of_one_object() || error.is_lack_of_key()
}

/// The oldest and the newest of these files, so many of each; and of the histories among them, which are small, likewise.
fn both_ends(files: Vec<ArchiveFile>, each: usize) -> Vec<ArchiveFile> {
    let is_history = |file: &ArchiveFile| matches!(file, ArchiveFile::History(_));
    let (histories, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_history);
    let ends = |files: Vec<ArchiveFile>| {
        let newest_from = files.len().saturating_sub(each);
        let told = files.into_iter().enumerate();
        let told = told.filter(move |(at, _)| *at < each || *at >= newest_from);
        told.map(|(_, file)| file)
    };
    ends(histories).chain(ends(others)).collect()
}

#[cfg(test)]
mod tests {
    use pgstrata_pgdata::{TimelineId, WalSegment};

    use super::*;

    #[test]
    fn the_oldest_and_the_newest_tell_and_histories_apart_from_them() {
        let timeline = TimelineId::new(2);
        let segment = |number| ArchiveFile::Segment(WalSegment { timeline, number });
        let history = |number| ArchiveFile::History(TimelineId::new(number));
        let all: Vec<_> = (1..2000).map(segment).collect();
        let ends = [1, 2, 1998, 1999].map(segment);
        assert_eq!(both_ends(all.clone(), 2), ends);
        let histories: Vec<_> = (2..9).map(history).collect();
        let both = [&histories[..], &all].concat();
        let told = [&[2, 3, 7, 8].map(history)[..], &ends].concat();
        assert_eq!(both_ends(both, 2), told);
        assert_eq!(both_ends(all[..3].to_vec(), 2), all[..3]);
        assert_eq!(both_ends(all[..1].to_vec(), 2), all[..1]);
        assert_eq!(both_ends(Vec::new(), 2), []);
    }
}
