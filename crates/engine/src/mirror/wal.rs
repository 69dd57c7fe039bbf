//! WAL: what a layer needs before it may appear, and the rest of the archive.

use std::collections::BTreeMap;

use futures::StreamExt;
use pgstrata_pgdata::{ArchiveFile, Lsn, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::Layer;
use pgstrata_store::error::{Error, Kind, Result};

use super::{BothSides, Mirror, MirrorReport, NotCopied};

/// Larger segments are copied one at a time, because each is held in memory.
const LARGE_BYTES: u64 = 64 << 20;

/// Files of `from` that are not in `to` and of use there, in the order of their names, each with the size of its object.
///
/// WAL before the segment at `oldest` is of no layer in the target, and an expiry there would remove it.
pub(super) async fn missing(
    from: &Archive,
    to: Option<&Archive>,
    oldest: Option<Lsn>,
) -> Result<Vec<(ArchiveFile, u64)>> {
    let there: BTreeMap<String, u64> = match to {
        Some(to) => {
            let files = to.files().await?.into_iter();
            files
                .map(|(_, object)| (object.key, object.size_bytes))
                .collect()
        }
        None => BTreeMap::new(),
    };
    let size = from.segment_size();
    let first = oldest.map(|oldest| oldest.segment(size));
    let is_of_use = |file: &ArchiveFile| match (number_of(*file), first) {
        (Some(number), Some(first)) => number >= first,
        // Without a layer there is nothing from which WAL leads on.
        (Some(_), None) => false,
        (None, _) => true,
    };
    let files = from.files().await?.into_iter();
    let files = files.filter(|(file, object)| is_of_use(file) && !there.contains_key(&object.key));
    Ok(files
        .map(|(file, object)| (file, object.size_bytes))
        .collect())
}

/// The number of the segment to which a file belongs; none of a history.
fn number_of(file: ArchiveFile) -> Option<u64> {
    match file {
        ArchiveFile::Segment(segment)
        | ArchiveFile::Partial(segment)
        | ArchiveFile::BackupLabel { segment, .. } => Some(segment.number),
        ArchiveFile::History(_) => None,
    }
}

impl Mirror<'_> {
    /// What makes the layer consistent: its segments, and the history of its timeline.
    pub(super) async fn wal_of(&self, layer: &Layer) -> Result<()> {
        let manifest = &layer.manifest;
        let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
        let range = manifest.start_lsn..manifest.stop_lsn;
        let segments = WalSegment::covering(manifest.timeline, range, size);
        let history = (manifest.timeline != TimelineId::FIRST)
            .then_some(ArchiveFile::History(manifest.timeline));
        for file in history
            .into_iter()
            .chain(segments.map(ArchiveFile::Segment))
        {
            self.check_interrupted()?;
            let copied = self.from.copy_to(&self.to, file).await;
            let bytes = copied.map_err(|error| match error.kind() {
                Kind::NotFound => Error::new(
                    Kind::WalMissing,
                    format!("WAL that it needs is not in the source: {error}"),
                ),
                _ => error,
            })?;
            self.progress.add_stored(bytes.unwrap_or(0));
        }
        Ok(())
    }

    /// All of the archive that is of use in the target.
    pub(super) async fn wal(&self, both: &BothSides, report: &mut MirrorReport) -> Result<()> {
        let files = missing(&self.from, Some(&self.to), both.oldest_lsn()).await?;
        let at_once = match self.from.segment_size().get() > LARGE_BYTES {
            true => 1,
            false => self.jobs,
        };
        let copying = files.into_iter().map(|(file, _)| async move {
            self.check_interrupted()?;
            Ok::<_, Error>((file, self.from.copy_to(&self.to, file).await))
        });
        // In their order: the archive there has no hole for longer than a few files take.
        let mut copying = futures::stream::iter(copying).buffered(at_once);
        while let Some(copied) = copying.next().await {
            let (file, copied) = copied?;
            match copied {
                Ok(Some(bytes)) => {
                    report.wal_files += 1;
                    report.wal_bytes += bytes;
                    self.progress.add_stored(bytes);
                }
                Ok(None) => {}
                // An expiry has removed it since it was listed.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) if super::is_of_layer(&error) => {
                    let name = file.file_name(self.from.segment_size());
                    report.left_out.push(NotCopied::broken(name, &error));
                }
                Err(error) => return Err(error.while_doing("could not copy the archive")),
            }
        }
        Ok(())
    }
}
