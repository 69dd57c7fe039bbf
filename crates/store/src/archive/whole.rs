//! Whether a file in `pg_wal` is a segment that a server has finished: by the server's marks, and by what is in it.
//!
//! A server of which others follow may be promoted within a segment. Whoever followed it on the old timeline then has a
//! file that ends there, under the name of a whole segment, and PostgreSQL marks it as one (`WalReceiverMain` in
//! `walreceiver.c`). A standby also replays the record of a switch before it has the rest of that segment; its file still has
//! what it held when it had another name. No server has finished either of them.

use std::fs;
use std::path::Path;

use pgstrata_pgdata::{
    ArchiveFile, Lsn, Major, RecordReader, TimelineHistory, TimelineId, WalSegment, WalSegmentSize,
};

use super::Archive;
use super::contents::{first_page, open, pieces, reading};
use super::file::directory_of;
use crate::blocking::blocking;
use crate::error::{Error, FileContext, Kind, Result};

/// A place where a timeline was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that was left.
    pub from: TimelineId,
    /// The timeline that begins there, or a later one that comes from it.
    pub to: TimelineId,
    /// Where.
    pub at: Lsn,
}

/// Where timelines were left, as the histories in a directory say.
#[derive(Clone, Debug, Default)]
pub struct Forks(Vec<Fork>);

impl Forks {
    /// Reads the histories in `directory`. One that cannot be read says nothing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn beside(directory: &Path) -> Result<Self> {
        let act = || reading(directory);
        let mut forks = Vec::new();
        for entry in fs::read_dir(directory).context(act)? {
            let name = entry.context(act)?.file_name();
            let timeline = name.to_str().and_then(|name| {
                let digits = name.strip_suffix(".history")?;
                u32::from_str_radix(digits, 16).ok().map(TimelineId::new)
            });
            let Some(timeline) = timeline.filter(|t| t.history_file_name().as_str() == name) else {
                continue;
            };
            let Ok(history) = fs::read(directory.join(&name)) else {
                continue;
            };
            if let Ok(history) = TimelineHistory::read(timeline, &history) {
                forks.extend(history.entries().iter().filter_map(|entry| {
                    Some(Fork {
                        from: entry.timeline,
                        to: timeline,
                        at: entry.end?,
                    })
                }));
            }
        }
        forks.sort_unstable_by_key(|fork| (fork.at, fork.to));
        Ok(Self(forks))
    }

    /// The last that leaves the timeline of `segment` before the segment's end.
    #[must_use]
    pub fn before_end(&self, segment: WalSegment, size: WalSegmentSize) -> Option<Fork> {
        let end = segment.end_lsn(size);
        let mut forks = self.0.iter().rev();
        let found = forks.find(|fork| fork.from == segment.timeline && fork.at < end);
        found.copied()
    }

    /// The last that leaves the timeline of `segment` within the segment.
    pub(super) fn within(&self, segment: WalSegment, size: WalSegmentSize) -> Option<Fork> {
        let fork = self.before_end(segment, size);
        fork.filter(|fork| fork.at >= segment.start_lsn(size))
    }
}

/// What the records of a file are.
#[derive(Clone, Debug)]
pub struct FileRecords {
    /// Where the last record begins that is there from one end to the other.
    last: Option<Lsn>,
    /// Why they end before the segment does.
    ends_early: Option<String>,
    /// Whether there is anything behind a switch.
    has_remains: bool,
}

impl FileRecords {
    /// Reads the file at `path`, which has the name of `segment`.
    ///
    /// # Errors
    /// `File` when it cannot be read.
    pub fn read(
        path: &Path,
        segment: WalSegment,
        size: WalSegmentSize,
        major: Major,
    ) -> Result<Self> {
        let opened = open(path)?;
        let mut reader = RecordReader::new(major, segment, size);
        let (mut last, mut ends_early) = (None, None);
        let read = pieces(path, &opened, |piece| {
            let records = reader.feed(piece, |record| last = Some(record.start));
            records.map_err(|error| {
                ends_early = Some(error.to_string());
                Error::from(error)
            })
        });
        if ends_early.is_none() {
            read?;
            let is_short = reader.ends().is_none();
            ends_early = is_short.then(|| "the file is shorter than a segment".to_owned());
        }
        Ok(Self {
            last,
            ends_early,
            has_remains: reader.has_remains(),
        })
    }

    /// Why they end before the segment does, if they do.
    #[must_use]
    pub fn ends_early(&self) -> Option<&str> {
        self.ends_early.as_deref()
    }

    /// Whether a record begins and ends behind that place.
    #[must_use]
    pub fn go_beyond(&self, at: Lsn) -> bool {
        self.last >= Some(at)
    }

    /// Whether the segment is there to its end, on a timeline that may have been left at `fork`.
    #[must_use]
    pub fn are_whole(&self, fork: Option<Fork>) -> bool {
        self.ends_early.is_none()
            && !self.has_remains
            && fork.is_none_or(|fork| self.go_beyond(fork.at))
    }
}

impl Archive {
    /// Those before the first that ends where its timeline was left, or of which that cannot be told.
    pub(super) async fn until_abandoned(
        &self,
        path: &Path,
        files: Vec<ArchiveFile>,
        forks: &Forks,
    ) -> Vec<ArchiveFile> {
        let mut whole = Vec::with_capacity(files.len());
        for file in files {
            let path = path.with_file_name(file.file_name(self.segment_size));
            if let ArchiveFile::Segment(segment) = file
                && !matches!(self.abandoned(&path, segment, forks).await, Ok(None))
            {
                break;
            }
            whole.push(file);
        }
        whole
    }

    /// Whether the server asks for a segment that is none: it ends where its timeline was left.
    ///
    /// # Errors
    /// `Refused` when somebody else asks for one that ends there, and when it cannot be told.
    pub(super) async fn leaves_out(
        &self,
        path: &Path,
        segment: WalSegment,
        forks: &Forks,
    ) -> Result<bool> {
        let Some(Fork { from, to, at }) = self.abandoned(path, segment, forks).await? else {
            return Ok(false);
        };
        let name = segment.file_name(self.segment_size);
        let what = format!(
            "the file ends at {at}, where timeline {to} leaves timeline {from}, and no server has finished it"
        );
        let mark = directory_of(path).join(format!("archive_status/{name}.ready"));
        if !mark.exists() {
            return Err(Error::new(Kind::Refused, what).hint(format!(
                "a recovery to timeline {to} does not need it: the first segment of that timeline has the same records"
            )));
        }
        // A refusal would stop the archiver for ever.
        tracing::warn!("\"{name}\" is not stored, and not needed: {what}");
        Ok(true)
    }

    /// Where its timeline was left, if the file of `segment` at `path` ends there: no server will ever finish it.
    ///
    /// # Errors
    /// `File` when it cannot be read; `Refused` when it cannot be told.
    pub(super) async fn abandoned(
        &self,
        path: &Path,
        segment: WalSegment,
        forks: &Forks,
    ) -> Result<Option<Fork>> {
        let size = self.segment_size;
        let Some(fork) = forks.within(segment, size) else {
            return Ok(None);
        };
        let major = Major::try_from(u32::from(self.record.major))?;
        let file = path.to_owned();
        let read = blocking(move || FileRecords::read(&file, segment, size, major)).await?;
        if read.ends_early.is_some() {
            return Ok(Some(fork));
        }
        // A record that ends in the next segment may be there in part.
        if read.go_beyond(fork.at) || self.has_begun(directory_of(path), segment.next()) {
            return Ok(None);
        }
        let (Fork { from, to, at }, next) = (fork, segment.next().file_name(size));
        let what = format!(
            "timeline {to} leaves timeline {from} at {at}, in this segment, and nothing shows that the server wrote it to its end"
        );
        Err(Error::new(Kind::Refused, what).hint(format!(
            "push it when \"{next}\" has begun; when the server has gone over to timeline {to}, nobody needs the file: \
             rename its mark in archive_status from \"ready\" to \"done\""
        )))
    }

    /// Refuses a segment in `pg_wal` that the server may still write. Only what is read afterwards is whole.
    pub(super) fn require_finished(&self, path: &Path, segment: WalSegment) -> Result<()> {
        let directory = directory_of(path);
        let marks = directory.join("archive_status");
        if !marks.is_dir() {
            return Ok(());
        }
        let name = segment.file_name(self.segment_size);
        if is_marked(&marks, &name) || self.has_begun(directory, segment.next()) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Refused,
            "the server has not finished this segment: archive_status has neither a mark \"ready\" nor \"done\" for it",
        )
        .hint(
            "push it when the server asks for it; SELECT pg_switch_wal() finishes the current segment; when the server is \
             lost, copy the file into pg_wal of the restored directory before its server starts",
        ))
    }

    /// Whether the file of `segment` holds its first page already. A file that the server keeps for later use has the
    /// address of the segment that it was.
    #[must_use]
    pub fn has_begun(&self, directory: &Path, segment: WalSegment) -> bool {
        let path = directory.join(segment.file_name(self.segment_size));
        let start = segment.start_lsn(self.segment_size);
        first_page(&path).is_some_and(|header| header.page_address == start)
    }
}

/// Whether the server has said of a file of `pg_wal` that it is to be archived, or has been.
pub(super) fn is_marked(marks: &Path, name: &str) -> bool {
    let mut kinds = ["ready", "done"].into_iter();
    kinds.any(|kind| marks.join(format!("{name}.{kind}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forks(histories: &[(&str, &str)]) -> Forks {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in histories {
            fs::write(directory.path().join(name), text).unwrap();
        }
        Forks::beside(directory.path()).unwrap()
    }

    #[test]
    fn a_segment_is_left_by_the_histories_beside_it() {
        let size = WalSegmentSize::DEFAULT;
        let found = forks(&[
            ("00000003.history", "1\t0/5000028\tx\n2\t0/7000000\tx\n"),
            ("00000004.history", "1\t0/5000100\tx\n"),
            ("00000005.history", "\0\0"),
            ("5.history", "1\t0/1000000\tx\n"),
            ("00000006.history.ready", "1\t0/1000000\tx\n"),
        ]);
        let on = |timeline, number| WalSegment {
            timeline: TimelineId::new(timeline),
            number,
        };
        let at = |fork: Option<Fork>| fork.map(|fork| (fork.to.get(), fork.at.to_string()));
        let fork = |to, at: &str| Some((to, at.to_owned()));
        let within = |segment| at(found.within(segment, size));
        let before = |segment| at(found.before_end(segment, size));
        assert_eq!(before(on(1, 4)), None);
        assert_eq!(before(on(1, 5)), fork(4, "0/5000100"));
        assert_eq!(before(on(1, 6)), fork(4, "0/5000100"));
        assert_eq!(within(on(1, 5)), fork(4, "0/5000100"));
        assert_eq!(within(on(1, 6)), None);
        // A fork between two segments leaves the first one whole.
        assert_eq!(before(on(2, 6)), None);
        assert_eq!(within(on(2, 7)), fork(3, "0/7000000"));
        assert_eq!(before(on(3, 7)), None);
    }
}
