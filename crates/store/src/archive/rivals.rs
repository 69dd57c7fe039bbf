//! Two servers that have archived under one name, each into an archive of its own.
//!
//! Both may have begun the same timeline with the same history, so names tell nothing. From where they parted on every
//! segment of the one differs from that of the other. So the newest segment that both archives have tells, and before it
//! was reached nothing can be mixed. A file of which one of them has nothing good tells nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use futures::stream::{self, StreamExt, TryStreamExt};
use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::{ArchiveFile, TimelineId};

use super::contents::{open, pieces};
use super::{Archive, timeline_of};
use crate::blocking::blocking;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

/// Headers are small and far away: those of so many timelines are fetched at once.
const TIMELINES_AT_ONCE: usize = 8;

/// So many segments of a timeline are looked at while they are damaged. More of them are a lost archive.
const MOST_LOOKED_AT: usize = 8;

/// What there is to do about two servers.
const ONE_TO_KEEP: &str = "two servers have archived under this cluster's name: find out which of them is the one to keep, and copy into a \
    repository of its own";

/// The files of an archive, as [`Archive::files`] lists them.
pub type ListedFiles = [(ArchiveFile, ObjectInfo)];

impl Archive {
    /// Refuses when another server than that of this archive has filled `other`. Both were listed a moment ago.
    ///
    /// # Errors
    /// `AlreadyExists` then; when one of them cannot be read.
    pub async fn require_one_server(
        &self,
        other: &Self,
        (here, there): (&ListedFiles, &ListedFiles),
    ) -> Result<()> {
        match self.first_difference(other, (here, there), None).await? {
            Some(file) => Err(self.rivalry(other, file)),
            None => Ok(()),
        }
    }

    /// A file that another server has archived in `other`, on the timelines to `last`, when that is given.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub async fn first_difference(
        &self,
        other: &Self,
        (here, there): (&ListedFiles, &ListedFiles),
        last: Option<TimelineId>,
    ) -> Result<Option<ArchiveFile>> {
        // Whatever they have is of two clusters then, and who reads them says so.
        if self.record.system_identifier != other.record.system_identifier {
            return Ok(None);
        }
        let telling = telling(here, there).into_iter();
        let telling = telling.filter(|(timeline, _)| last.is_none_or(|last| *timeline <= last));
        let looks = telling.map(|(_, files)| self.first_of(other, files));
        let found = stream::iter(looks).buffered(TIMELINES_AT_ONCE);
        let mut found = std::pin::pin!(found.try_filter_map(async |file| Ok(file)));
        found.try_next().await
    }

    /// The first of these files that differs; a segment that does not is the last one to be looked at.
    async fn first_of(&self, other: &Self, files: Vec<ArchiveFile>) -> Result<Option<ArchiveFile>> {
        for file in files {
            match self.is_same_in(other, file).await? {
                Some(false) => return Ok(Some(file)),
                Some(true) if matches!(file, ArchiveFile::Segment(_)) => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether `other` has the same file; nothing when one of them has none that is good.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub async fn is_same_in(&self, other: &Self, file: ArchiveFile) -> Result<Option<bool>> {
        let (here, there) = futures::try_join!(self.good_header(file), other.good_header(file))?;
        Ok(here.zip(there).map(|(here, there)| is_same(&here, &there)))
    }

    /// Whether the segment or history at `path` is the one in the archive, going by the header of its object; nothing when that
    /// has none that is good.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub async fn holds_as(&self, file: ArchiveFile, path: &Path) -> Result<Option<bool>> {
        let (digest, there) = futures::try_join!(digest_at(path), self.good_header(file))?;
        Ok(there.map(|there| there.raw_digest == digest))
    }

    /// The same, of an object that is read to its end. The header of one that is damaged behind it may still tell of another file.
    pub(super) async fn holds_whole_as(
        &self,
        file: ArchiveFile,
        path: &Path,
    ) -> Result<Option<bool>> {
        let (digest, whole) = futures::try_join!(digest_at(path), self.good_object(file))?;
        if let Some(whole) = whole {
            return Ok(Some(whole.raw_digest == digest));
        }
        let left = self.good_header(file).await?;
        let is_other = left.is_some_and(|left| left.raw_digest != digest);
        Ok(is_other.then_some(false))
    }

    /// What the object of `file`, or what stands in for it, says of itself when it can be read to its end.
    async fn good_object(&self, file: ArchiveFile) -> Result<Option<WalHeader>> {
        match self.inspect(file).await {
            Err(error) if error.kind() == Kind::NotFound || error.is_of_one_object() => Ok(None),
            found => found.map(Some),
        }
    }

    async fn good_header(&self, file: ArchiveFile) -> Result<Option<WalHeader>> {
        let found = match self.present(file).await {
            Ok(Some(header)) => self.check_header(file, &header).map(|()| Some(header)),
            found => found,
        };
        match found {
            Err(error) if error.is_of_one_object() => Ok(None),
            found => found,
        }
    }

    /// The error of a file that `other` has otherwise.
    pub(super) fn rivalry(&self, other: &Self, file: ArchiveFile) -> Error {
        let name = file.file_name(self.segment_size);
        let (from, to) = (
            self.cluster.repository.url(),
            other.cluster.repository.url(),
        );
        let what =
            format!("the archives in {from} and in {to} hold different files of the name {name}");
        Error::new(Kind::AlreadyExists, what).hint(ONE_TO_KEEP)
    }
}

/// The digest of the file at `path`.
async fn digest_at(path: &Path) -> Result<[u8; 32]> {
    let path = path.to_owned();
    blocking(move || {
        let mut hasher = ContentHasher::new();
        pieces(&path, &open(&path)?, |piece| {
            hasher.update(piece);
            Ok(())
        })?;
        Ok(hasher.finish())
    })
    .await
}

/// Whether two objects are of one file.
pub(super) fn is_same(here: &WalHeader, there: &WalHeader) -> bool {
    here.system_identifier == there.system_identifier
        && here.raw_length == there.raw_length
        && here.raw_digest == there.raw_digest
}

/// What tells of each timeline whether one server has filled both: its history, and the newest segments that both have.
fn telling(here: &ListedFiles, there: &ListedFiles) -> BTreeMap<TimelineId, Vec<ArchiveFile>> {
    let there: HashSet<ArchiveFile> = there.iter().map(|(file, _)| *file).collect();
    let mut both: Vec<ArchiveFile> = here.iter().map(|(file, _)| *file).collect();
    both.retain(|file| there.contains(file));
    both.sort_unstable();
    let mut telling: BTreeMap<TimelineId, Vec<ArchiveFile>> = BTreeMap::new();
    let (histories, segments) = both
        .into_iter()
        .rev()
        .filter(|file| matches!(file, ArchiveFile::History(_) | ArchiveFile::Segment(_)))
        .partition::<Vec<_>, _>(|file| matches!(file, ArchiveFile::History(_)));
    for file in histories.into_iter().chain(segments) {
        let files = telling.entry(timeline_of(file)).or_default();
        // The history comes first.
        if files.len() <= MOST_LOOKED_AT {
            files.push(file);
        }
    }
    telling
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pgstrata_pgdata::WalSegment;

    use super::*;

    #[test]
    fn the_newest_segments_of_both_tell_and_the_history() {
        let timeline = TimelineId::new;
        let segment = |number| {
            let timeline = timeline(2);
            ArchiveFile::Segment(WalSegment { timeline, number })
        };
        let listed = |files: Vec<ArchiveFile>| -> Vec<(ArchiveFile, ObjectInfo)> {
            let object = ObjectInfo {
                key: String::new(),
                size_bytes: 0,
                modified: Timestamp::UNIX_EPOCH,
            };
            files
                .into_iter()
                .map(|file| (file, object.clone()))
                .collect()
        };
        let history = ArchiveFile::History(timeline(2));
        let here: Vec<ArchiveFile> = (1..30).map(segment).chain([history]).collect();
        let there = vec![history, segment(7), segment(3), segment(40)];
        let telling = telling(&listed(here.clone()), &listed(there));
        assert_eq!(
            telling,
            BTreeMap::from([(timeline(2), vec![history, segment(7), segment(3)])])
        );
        let own = super::telling(&listed(here.clone()), &listed(here));
        assert_eq!(own[&timeline(2)].len(), 1 + MOST_LOOKED_AT);
        assert_eq!(own[&timeline(2)][1], segment(29));
    }
}
