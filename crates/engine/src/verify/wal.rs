//! The WAL that a layer needs to become consistent, and the WAL with which restores go on from there.

use std::collections::HashSet;
use std::iter;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Kind, Result};

use super::{FindingKind, Verifier};
use crate::health::{self, Hole};

/// Between two looks whether WAL that may be on its way has come.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Files of the archive that were read; layers share them.
#[derive(Debug, Default)]
pub(super) struct WalSeen {
    good: HashSet<ArchiveFile>,
    bad: HashSet<ArchiveFile>,
    pub(super) read: u64,
}

impl WalSeen {
    /// What was found wrong may have been removed meanwhile.
    pub(super) fn look_again(&mut self) {
        self.bad.clear();
    }

    /// Whether all that is missing was named with a layer that needs it.
    fn is_known(&self, hole: &Hole<'_>) -> bool {
        let mut numbers = hole.first.number..=hole.last;
        numbers.all(|number| {
            let segment = WalSegment {
                number,
                ..hole.first
            };
            self.bad.contains(&ArchiveFile::Segment(segment))
        })
    }

    fn is_new(&self, file: ArchiveFile) -> bool {
        !self.good.contains(&file) && !self.bad.contains(&file)
    }
}

impl Verifier {
    /// Every segment from start to stop, and the history of the timeline.
    pub(super) async fn wal_of(&self, layer: &Layer, seen: &mut WalSeen) -> Result<()> {
        let manifest = &layer.manifest;
        let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
        let range = manifest.start_lsn..manifest.stop_lsn;
        let segments = WalSegment::covering(manifest.timeline, range, size);
        let files = segments.map(ArchiveFile::Segment);
        let history = history_of(manifest.timeline);
        let why = format!("a restore of {} needs it to become consistent", layer.label);
        self.read_wal(files.chain(history), layer, &why, seen).await
    }

    /// Every segment and history from the first layer to the end of each timeline; holes in between.
    pub(super) async fn promised_wal(&self, catalog: &Catalog, seen: &mut WalSeen) -> Result<()> {
        let Some(archive) = &self.archive else {
            return Ok(());
        };
        let archived = self.settled(archive, catalog, seen).await?;
        let holes = health::holes(catalog, &archived, Timestamp::now());
        for hole in holes.iter().filter(|hole| !seen.is_known(hole)) {
            let key = archive.key(ArchiveFile::Segment(hole.first));
            let message = format!(
                "{}: a restore of {} ends before it",
                hole.describe(&archived),
                hole.from.label
            );
            self.findings
                .add(FindingKind::WalMissing, &hole.from.label, key, message);
        }
        for way in health::ways(catalog, &archived) {
            let label = &way.layer.label;
            let mut number = way
                .layer
                .manifest
                .start_lsn
                .segment(archived.segment_size());
            let mut segments = Vec::new();
            loop {
                let start = WalSegment {
                    timeline: way.layer.manifest.timeline,
                    number,
                };
                let start = start.start_lsn(archived.segment_size());
                let coverage = archived.coverage(&way.history, start, None);
                for (timeline, first, last) in coverage.parts {
                    let part = first..=last;
                    segments.extend(part.map(|number| WalSegment { timeline, number }));
                }
                match archived.next_after(&way.history, coverage.missing.number) {
                    Some(next) => number = next.number,
                    None => break,
                }
            }
            let timelines = way.history.entries().iter();
            let histories = timelines.flat_map(|entry| history_of(entry.timeline));
            let files = segments.into_iter().map(ArchiveFile::Segment);
            let why = format!("a restore of {label} cannot get past it");
            self.read_wal(files.chain(histories), way.layer, &why, seen)
                .await?;
        }
        Ok(())
    }

    /// What is in the archive. What may be on its way there is waited for: a verification says what is, and not what may be.
    async fn settled(
        &self,
        archive: &Archive,
        catalog: &Catalog,
        seen: &WalSeen,
    ) -> Result<ArchivedWal> {
        let deadline = Instant::now() + health::ON_ITS_WAY.unsigned_abs();
        loop {
            let mut archived = archive.list(iter::empty()).await?;
            match archive.read_histories(&mut archived).await {
                // Named below, or by its layer.
                Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {}
                read => read?,
            }
            let holes = health::holes(catalog, &archived, Timestamp::now());
            let mut young = holes.iter().filter(|hole| hole.is_young);
            let young = young.find(|hole| !seen.is_known(hole));
            let Some(hole) = young.filter(|_| Instant::now() < deadline) else {
                return Ok(archived);
            };
            tracing::debug!("waiting: {}", hole.describe(&archived));
            self.check_interrupted()?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Reads each of `files` that was not read before.
    async fn read_wal(
        &self,
        files: impl Iterator<Item = ArchiveFile>,
        layer: &Layer,
        why: &str,
        seen: &mut WalSeen,
    ) -> Result<()> {
        let Some(archive) = &self.archive else {
            return Ok(());
        };
        let mut once = HashSet::new();
        let files: Vec<ArchiveFile> = files
            .filter(|file| seen.is_new(*file) && once.insert(*file))
            .collect();
        let mut outcomes = futures::stream::iter(files)
            .map(|file| async move { (file, archive.inspect(file).await) })
            .buffer_unordered(self.jobs);
        while let Some((file, outcome)) = outcomes.next().await {
            self.check_interrupted()?;
            let error = match outcome {
                Ok(_) => {
                    seen.read += 1;
                    seen.good.insert(file);
                    continue;
                }
                Err(error) => error,
            };
            seen.bad.insert(file);
            let kind = match error.kind() {
                Kind::NotFound => FindingKind::WalMissing,
                Kind::Damaged => FindingKind::WalDamaged,
                Kind::Unsupported => FindingKind::Unsupported,
                Kind::Repository => {
                    self.require_reachable().await?;
                    FindingKind::Unreadable
                }
                _ => return Err(error),
            };
            let message = format!("{why}: {error}");
            self.findings
                .add(kind, &layer.label, archive.key(file), message);
        }
        Ok(())
    }
}

/// The history file of `timeline`; the first has none.
fn history_of(timeline: TimelineId) -> Option<ArchiveFile> {
    (timeline != TimelineId::FIRST).then_some(ArchiveFile::History(timeline))
}
