//! The WAL that makes a layer consistent: which segments, whether they can be read, and what recovery makes out of them. Without
//! all of it no restore of the layer ends well.

use std::path::{Path, PathBuf};

use futures::{StreamExt as _, TryStreamExt as _, stream};
#[cfg(test)]
use pgstrata_layer::{cluster::ClusterRecord, keys::ClusterName};
use pgstrata_pgdata::Major;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_store::archive::Archive;
use pgstrata_store::error::{Error, Kind, Result};
#[cfg(test)]
use pgstrata_store::{cluster::ClusterRepository, repository::Repository};

use super::plan::PlanInner;
use crate::restore::replay::{Foresight, ToCome};

/// Each has a piece of its object in memory.
pub(in crate::restore) const SEGMENTS_AT_ONCE: usize = 2;

/// The segments, and where they come from.
pub(in crate::restore) struct LayerWal {
    archive: Archive,
    pub(in crate::restore) segments: Vec<WalSegment>,
    pub(in crate::restore) size: WalSegmentSize,
}

impl LayerWal {
    pub(in crate::restore) fn of(plan: &PlanInner) -> Result<Self> {
        let parts = plan.wal_parts.iter();
        let segments = parts.flat_map(|&(timeline, first, last)| {
            (first..=last).map(move |number| WalSegment { timeline, number })
        });
        Ok(Self {
            archive: Archive::new(&plan.cluster, plan.record.clone())?,
            segments: segments.collect(),
            size: plan.segment_size,
        })
    }

    /// Segments of a cluster that has nothing else.
    #[cfg(test)]
    pub(in crate::restore) fn for_test(
        repository: &Repository,
        segments: Vec<WalSegment>,
        size: WalSegmentSize,
    ) -> Self {
        let record = ClusterRecord {
            name: "main".to_owned(),
            format: pgstrata_layer::cluster::FORMAT,
            system_identifier: 1,
            major: 15,
            catalog_version: 2,
            block_size: 8192,
            wal_segment_size: u32::try_from(size.get()).unwrap(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
            sealing: None,
            retention: None,
        };
        let name = ClusterName::parse("main").unwrap();
        let cluster = ClusterRepository::new(repository, &name);
        Self {
            archive: Archive::new(&cluster, record).unwrap(),
            segments,
            size,
        }
    }

    /// Reads each of them to its end, as who holds these keys, and answers what their records make from `start` on. They are read
    /// once more when they are written: the WAL of a backup that took hours is much, but a cluster that is changed in place is
    /// gone before.
    ///
    /// # Errors
    /// As [`LayerWal::walk`].
    async fn read_through(&self, major: Major, start: Lsn) -> Result<ToCome> {
        let made: Vec<ToCome> = stream::iter(&self.segments)
            .map(|segment| self.made_in(*segment, major))
            .buffered(SEGMENTS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(ToCome::of_all(made, start))
    }

    /// What records make that begin in that segment.
    async fn made_in(&self, segment: WalSegment, major: Major) -> Result<ToCome> {
        let take: fn(&mut Foresight, &[u8]) -> Result<()> = |read, piece| {
            read.take(piece);
            Ok(())
        };
        // Asked for the contents, the archive opens what is sealed; it checks the rest without a key.
        let begun = Foresight::new(major, segment, self.size);
        let read = self.walk(segment, &begun, take).await?;
        let next = segment.next();
        let read = match read.goes_on() && self.segments.contains(&next) {
            true => self.walk(next, &read.follow(next), take).await?,
            false => read,
        };
        Ok(read.made_before(segment.end_lsn(self.size)))
    }

    /// Hands the contents of a segment to `take`, as [`Archive::walk`].
    ///
    /// # Errors
    /// `WalMissing` when the archive lacks it; when it is damaged or cannot be opened; that of `take`.
    pub(in crate::restore) async fn walk<S: Clone + Send + 'static>(
        &self,
        segment: WalSegment,
        state: &S,
        take: fn(&mut S, &[u8]) -> Result<()>,
    ) -> Result<S> {
        let file = ArchiveFile::Segment(segment);
        let walked = self.archive.walk(file, state, take).await;
        walked.map_err(|error| match error.kind() {
            Kind::NotFound => {
                let name = segment.file_name(self.size);
                let what = format!("WAL segment {name} is not in the archive");
                Error::new(Kind::WalMissing, what)
            }
            _ => error,
        })
    }
}

/// Requires that the layer's WAL can be read, and that recovery through it makes no tablespace where that would do harm.
///
/// # Errors
/// As [`LayerWal::walk`], and [`ToCome::require_fit`].
pub(super) async fn require_fit(plan: &PlanInner) -> Result<()> {
    let start = plan.chain[0].manifest.start_lsn;
    let own = LayerWal::of(plan)?;
    let to_come = own.read_through(plan.major, start).await?;
    // Those that were made since the layer.
    let emptied = plan.links.of_tablespaces().map(Path::to_owned);
    let emptied: Vec<PathBuf> = emptied.collect();
    to_come.require_fit(plan.major, &plan.layout.tablespaces, &emptied)
}
