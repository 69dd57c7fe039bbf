//! The WAL that makes a layer consistent: which segments, and whether they can be read. Without all of it no restore of the
//! layer ends well.

use futures::{StreamExt as _, TryStreamExt as _, stream};
#[cfg(test)]
use pgstrata_layer::{cluster::ClusterRecord, keys::ClusterName};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_store::archive::Archive;
use pgstrata_store::error::{Error, Kind, Result};
#[cfg(test)]
use pgstrata_store::{cluster::ClusterRepository, repository::Repository};

use super::plan::PlanInner;

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

    /// Requires that each of them can be read to its end, by who holds these keys. They are read once more when they are
    /// written: the WAL of a backup that took hours is much, but a cluster that is changed in place is gone before.
    ///
    /// # Errors
    /// As [`LayerWal::walk`].
    pub(super) async fn require_readable(&self) -> Result<()> {
        // Asked for the contents, the archive opens what is sealed; it checks the rest without a key.
        stream::iter(&self.segments)
            .map(|segment| self.walk(*segment, &(), |(), _| Ok(())))
            .buffer_unordered(SEGMENTS_AT_ONCE)
            .try_collect()
            .await
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
