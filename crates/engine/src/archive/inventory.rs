//! What is in the archive, and waiting until something is.

use std::time::{Duration, Instant};

use futures::future;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal;
use pgstrata_pgdata::{ArchiveFile, TimelineHistory, TimelineId, WalSegment, WalSegmentSize};

use super::Archive;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;

/// Segments looked up at once while waiting.
const LOOKUPS: usize = 16;

/// The archive of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Size of its segments.
    pub segment_size: WalSegmentSize,
    /// Its timelines, oldest first.
    pub timelines: Vec<TimelineInventory>,
}

/// What is stored under one timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineInventory {
    /// The timeline.
    pub timeline: TimelineId,
    /// Whole segments, in order.
    pub segments: Vec<WalSegment>,
    /// Segments of which only the beginning belongs to the timeline.
    pub partials: Vec<WalSegment>,
    /// Records of finished backups.
    pub backup_labels: Vec<String>,
    /// Whether its history is there.
    pub has_history: bool,
    /// Total length of the objects.
    pub stored_bytes: u64,
    /// Objects that are no file of an archive.
    pub unknown: Vec<String>,
}

impl TimelineInventory {
    /// The runs of segments missing between the first and the last: first and last of each run.
    #[must_use]
    pub fn gaps(&self) -> Vec<(WalSegment, WalSegment)> {
        let mut gaps = Vec::new();
        for pair in self.segments.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            if before.next() < after {
                let last = WalSegment {
                    number: after.number - 1,
                    ..after
                };
                gaps.push((before.next(), last));
            }
        }
        gaps
    }
}

/// Everything in the archive of `cluster`.
///
/// # Errors
/// `Repository` when it cannot be listed or the cluster has no record.
pub async fn inventory(repository: &Repository, cluster: &ClusterName) -> Result<Inventory> {
    let archive = Archive::load(repository, cluster).await?;
    let mut timelines = Vec::new();
    for timeline in self::timelines(repository, cluster).await? {
        timelines.push(archive.list(timeline).await?);
    }
    Ok(Inventory {
        segment_size: archive.segment_size,
        timelines,
    })
}

/// The timelines of which something is archived, in order.
///
/// # Errors
/// `Repository` when they cannot be listed.
pub async fn timelines(repository: &Repository, cluster: &ClusterName) -> Result<Vec<TimelineId>> {
    let names = repository.list_names(&cluster.wal_prefix()).await?;
    let number = |name: &String| u32::from_str_radix(name, 16).ok().filter(|&n| n > 0);
    let parsed = names.iter().filter_map(|name| {
        let timeline = TimelineId::new(number(name)?);
        (timeline.hex8() == *name).then_some(timeline)
    });
    Ok(parsed.collect())
}

/// The whole segments of one timeline, in order.
///
/// # Errors
/// `Repository` when they cannot be listed or the cluster has no record.
pub async fn segments(
    repository: &Repository,
    cluster: &ClusterName,
    timeline: TimelineId,
) -> Result<Vec<WalSegment>> {
    let archive = Archive::load(repository, cluster).await?;
    Ok(archive.list(timeline).await?.segments)
}

/// The history of `timeline`. The first timeline has no file; its history is itself.
///
/// # Errors
/// `NotFound` when a later timeline's history is certainly not in the archive; `Damaged` when
/// it cannot be read.
pub async fn history(
    repository: &Repository,
    cluster: &ClusterName,
    timeline: TimelineId,
) -> Result<TimelineHistory> {
    let archive = Archive::load(repository, cluster).await?;
    let file = ArchiveFile::History(timeline);
    let key = archive.key(file);
    let object = match repository.get(&key).await {
        Err(error) if error.kind() == Kind::NotFound && timeline.get() == 1 => {
            return Ok(TimelineHistory::first(timeline));
        }
        got => got?,
    };
    archive.check_header(file, &wal::header(&object)?)?;
    let text = wal::decode(&timeline.history_file_name(), &object)?;
    Ok(TimelineHistory::parse(
        timeline,
        &String::from_utf8_lossy(&text),
    )?)
}

/// Waits until every one of `segments` is in the archive, whole and of this cluster.
///
/// # Errors
/// `WalMissing` after `timeout`; `Interrupted` when `progress` is cancelled; `Repository` and
/// `Damaged` at once.
pub async fn wait_for(
    repository: &Repository,
    cluster: &ClusterName,
    segments: &[WalSegment],
    timeout: Duration,
    progress: &Progress,
) -> Result<()> {
    let archive = Archive::load(repository, cluster).await?;
    let started = Instant::now();
    let mut pause = Duration::from_millis(50);
    let mut missing = segments;
    loop {
        while !missing.is_empty() {
            let batch = &missing[..missing.len().min(LOOKUPS)];
            let arrived = archive.count_arrived(batch).await?;
            missing = &missing[arrived..];
            if arrived < batch.len() {
                break;
            }
            pause = Duration::from_millis(50);
        }
        let Some(first) = missing.first() else {
            return Ok(());
        };
        if progress.is_cancelled() {
            return Err(Error::new(
                Kind::Interrupted,
                "stopped while waiting for WAL",
            ));
        }
        if started.elapsed() >= timeout {
            return Err(archive.timed_out(*first, missing.len(), timeout));
        }
        let left = timeout.saturating_sub(started.elapsed());
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(longest_pause(started.elapsed()));
    }
}

/// A tenth of a second while somebody may be watching; later it may add two per cent to the
/// wait, which saves an object store thousands of requests.
fn longest_pause(waited: Duration) -> Duration {
    (waited / 50).clamp(Duration::from_millis(100), Duration::from_secs(1))
}

impl Archive {
    async fn list(&self, timeline: TimelineId) -> Result<TimelineInventory> {
        let prefix = format!("{}/{}", self.cluster.wal_prefix(), timeline.hex8());
        let mut found = TimelineInventory {
            timeline,
            segments: Vec::new(),
            partials: Vec::new(),
            backup_labels: Vec::new(),
            has_history: false,
            stored_bytes: 0,
            unknown: Vec::new(),
        };
        for object in self.repository.list(&prefix).await? {
            found.stored_bytes += object.size_bytes;
            let name = object.key[prefix.len()..].trim_start_matches('/');
            match self.parse(name) {
                Ok(file) if self.key(file) != object.key => found.unknown.push(object.key),
                Ok(ArchiveFile::Segment(segment)) => found.segments.push(segment),
                Ok(ArchiveFile::Partial(segment)) => found.partials.push(segment),
                Ok(ArchiveFile::BackupLabel { .. }) => found.backup_labels.push(name.to_owned()),
                Ok(ArchiveFile::History(_)) => found.has_history = true,
                Err(_) => found.unknown.push(object.key),
            }
        }
        found.segments.sort_unstable();
        found.partials.sort_unstable();
        Ok(found)
    }

    /// How many of `segments` are there before the first that is not.
    async fn count_arrived(&self, segments: &[WalSegment]) -> Result<usize> {
        let lookups = segments.iter().map(|&segment| async move {
            let file = ArchiveFile::Segment(segment);
            match self.present(file).await? {
                Some(header) => self.check_header(file, &header).map(|()| true),
                None => Ok(false),
            }
        });
        let found = future::try_join_all(lookups).await?;
        Ok(found.iter().take_while(|there| **there).count())
    }

    fn timed_out(&self, first: WalSegment, missing: usize, timeout: Duration) -> Error {
        let name = first.file_name(self.segment_size);
        let others = match missing {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let seconds = timeout.as_secs();
        Error::new(
            Kind::WalMissing,
            format!("WAL segment \"{name}\"{others} did not arrive in the archive in {seconds} s"),
        )
        .hint("look at pg_stat_archiver and the server's log for failures of archive_command")
    }
}
