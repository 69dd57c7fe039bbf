//! WAL: what a layer needs before it may appear, and the rest of the archive.

use std::collections::BTreeSet;

use futures::StreamExt;
use pgstrata_pgdata::{ArchiveFile, Lsn, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{self, Layer};
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::ObjectInfo;

use super::{BothSides, Mirror, MirrorReport, NotCopied};

/// Larger segments are copied one at a time: on its way into an object store each takes the room of a temporary file.
const LARGE_BYTES: u64 = 64 << 20;

/// The files of both archives, listed at one time.
#[derive(Default)]
pub(super) struct BothArchives {
    here: Vec<(ArchiveFile, ObjectInfo)>,
    there: Vec<(ArchiveFile, ObjectInfo)>,
    /// Files of the target of which nothing good is left there.
    broken_there: BTreeSet<ArchiveFile>,
}

impl BothArchives {
    /// Lists them; a target that is not made yet has none.
    ///
    /// # Errors
    /// `AlreadyExists` when they are of two servers: whatever was added then, the target would lead through the WAL of both.
    pub(super) async fn list(from: &Archive, to: Option<&Archive>) -> Result<Self> {
        let here = from.files().await?;
        let there = match to {
            Some(to) => to.files().await?,
            None => Vec::new(),
        };
        let mut broken_there = BTreeSet::new();
        if let Some(to) = to {
            from.require_one_server(to, (&here, &there)).await?;
            broken_there = to.broken_stand_ins(&there).await?;
        }
        Ok(Self {
            here,
            there,
            broken_there,
        })
    }

    /// Files of the source that are not in the target, or of which nothing good is left there, and of use there, in the order of
    /// their names, each with the size of its object.
    ///
    /// WAL before the segment at `oldest` is of no layer in the target, and an expiry there would remove it.
    pub(super) fn missing(
        &self,
        size: WalSegmentSize,
        oldest: Option<Lsn>,
    ) -> Vec<(ArchiveFile, u64)> {
        let there = self.there.iter().map(|(file, _)| *file);
        let there = there.filter(|file| !self.broken_there.contains(file));
        let there: BTreeSet<ArchiveFile> = there.collect();
        let first = oldest.map(|oldest| oldest.segment(size));
        let is_of_use = |file: &ArchiveFile| match (number_of(*file), first) {
            (Some(number), Some(first)) => number >= first,
            // Without a layer there is nothing from which WAL leads on.
            (Some(_), None) => false,
            (None, _) => true,
        };
        let files = self.here.iter();
        let files = files.filter(|(file, _)| is_of_use(file) && !there.contains(file));
        files
            .map(|(file, object)| (*file, object.size_bytes))
            .collect()
    }

    /// The objects in the source.
    pub(super) fn objects_here(&self) -> Vec<ObjectInfo> {
        self.here.iter().map(|(_, object)| object.clone()).collect()
    }

    /// The objects in the target.
    pub(super) fn objects_there(&self) -> Vec<ObjectInfo> {
        self.there
            .iter()
            .map(|(_, object)| object.clone())
            .collect()
    }
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
        // What stays behind it in an archive is of use, if it is there.
        let kept = WalSegment::containing_end(manifest.timeline, catalog::kept_until(layer), size);
        if kept.number
            > WalSegment::containing_end(manifest.timeline, manifest.stop_lsn, size).number
        {
            let copied = self
                .from
                .copy_to(&self.to, ArchiveFile::Segment(kept))
                .await;
            match copied {
                Err(error) if error.kind() == Kind::NotFound => {}
                copied => self.progress.add_stored(copied?.unwrap_or(0)),
            }
        }
        Ok(())
    }

    /// Refuses when the archives are of two servers by now, which may be what kept a layer from being copied.
    pub(super) async fn require_one_server_after(&self, error: &Error) -> Result<()> {
        match error.kind() {
            Kind::AlreadyExists => BothArchives::list(&self.from, Some(&self.to))
                .await
                .map(drop),
            _ => Ok(()),
        }
    }

    /// All of the archive that is of use in the target.
    pub(super) async fn wal(
        &self,
        (both, listed): (&BothSides, &BothArchives),
        report: &mut MirrorReport,
    ) -> Result<()> {
        // A copy that was killed may not have come to that, and what is there is not looked at again.
        self.to.make_durable(&listed.there).await?;
        let mut files = listed.missing(self.from.segment_size(), both.oldest_lsn());
        // Histories first, each in its order: what lies behind a fork on the timeline that was left counts as ended there when it is
        // older than the history (docs/adr/0021).
        files.sort_by_key(|(file, _)| !matches!(file, ArchiveFile::History(_)));
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
                Err(error) if super::is_of_layer(&error) && !is_of_two_servers(file, &error) => {
                    let name = file.file_name(self.from.segment_size());
                    report.left_out.push(NotCopied::broken(name, &error));
                }
                Err(error) => return Err(error.while_doing("could not copy the archive")),
            }
        }
        Ok(())
    }
}

/// Whether another server has archived the file meanwhile: nothing may come behind it. Recovery reads neither labels of
/// backups nor segments that were not finished.
fn is_of_two_servers(file: ArchiveFile, error: &Error) -> bool {
    let is_read = matches!(file, ArchiveFile::Segment(_) | ArchiveFile::History(_));
    is_read && error.kind() == Kind::AlreadyExists
}
