//! The WAL that a layer needs to become consistent.

use std::collections::HashSet;

use futures::StreamExt;
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment, WalSegmentSize};

use super::{FindingKind, Verifier};
use crate::catalog::Layer;
use crate::error::{Kind, Result};

/// Files of the archive that were read; layers share them.
#[derive(Debug, Default)]
pub(super) struct WalSeen {
    files: HashSet<ArchiveFile>,
    pub(super) read: u64,
}

impl Verifier {
    /// Every segment from start to stop, and the history of the timeline.
    pub(super) async fn wal(&self, layer: &Layer, seen: &mut WalSeen) -> Result<()> {
        let manifest = &layer.manifest;
        let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
        let range = manifest.start_lsn..manifest.stop_lsn;
        let segments = WalSegment::covering(manifest.timeline, range, size);
        let mut files: Vec<ArchiveFile> = segments.map(ArchiveFile::Segment).collect();
        if manifest.timeline != TimelineId::FIRST {
            files.push(ArchiveFile::History(manifest.timeline));
        }
        files.retain(|file| seen.files.insert(*file));
        let mut outcomes = futures::stream::iter(files)
            .map(|file| async move { (file, self.inspector.inspect(file).await) })
            .buffer_unordered(self.jobs);
        while let Some((file, outcome)) = outcomes.next().await {
            self.check_interrupted()?;
            let error = match outcome {
                Ok(_) => {
                    seen.read += 1;
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                Kind::NotFound | Kind::Damaged | Kind::Unsupported => {}
                // This object, or the whole repository?
                Kind::Repository => {
                    self.repository.get(&self.cluster.cluster_key()).await?;
                }
                _ => return Err(error),
            }
            let message = format!(
                "a restore of {} needs it to become consistent: {error}",
                layer.label
            );
            let key = self.inspector.key(file);
            self.findings
                .add(FindingKind::Wal, &layer.label, key, message);
        }
        Ok(())
    }
}
