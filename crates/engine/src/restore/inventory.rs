//! Reads what the archive holds: every history, and the names of all segments.

use futures::stream::{self, StreamExt, TryStreamExt};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};

use super::archived::ArchivedWal;
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Histories are small and far away: this many are fetched at once.
const FETCH_AT_ONCE: usize = 16;

/// Lists the archive of `cluster`. A layer that was seen before has its WAL there.
pub(crate) async fn archived_wal(
    repository: &Repository,
    cluster: &ClusterName,
    size: WalSegmentSize,
) -> Result<ArchivedWal> {
    let mut archive = ArchivedWal::new(size);
    let mut timelines = Vec::new();
    for object in repository.list(&cluster.wal_prefix()).await? {
        let name = object.key.rsplit('/').next().unwrap_or_default();
        match ArchiveFile::parse(name, size) {
            Ok(ArchiveFile::Segment(segment)) => archive.add_segment(segment, object.modified),
            Ok(ArchiveFile::History(timeline)) => timelines.push(timeline),
            // Partial segments and backup labels do not take part in recovery; other names are not ours.
            _ => {}
        }
    }
    let reading = timelines
        .into_iter()
        .map(|timeline| history(repository, cluster, timeline));
    let histories: Vec<TimelineHistory> = stream::iter(reading)
        .buffer_unordered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    for history in histories {
        archive.add_history(history);
    }
    Ok(archive)
}

async fn history(
    repository: &Repository,
    cluster: &ClusterName,
    timeline: TimelineId,
) -> Result<TimelineHistory> {
    let name = timeline.history_file_name();
    let raw = archived_file(repository, cluster, timeline, &name).await?;
    let text = String::from_utf8_lossy(&raw);
    Ok(TimelineHistory::parse(timeline, &text)?)
}

/// The contents of one archived file, checked.
pub(crate) async fn archived_file(
    repository: &Repository,
    cluster: &ClusterName,
    timeline: TimelineId,
    name: &str,
) -> Result<Vec<u8>> {
    let key = cluster.wal_key(&timeline.hex8(), name);
    let object = repository.get(&key).await.map_err(|e| match e.kind() {
        Kind::NotFound => Error::new(
            Kind::WalMissing,
            format!("\"{name}\" is not in the archive"),
        ),
        _ => e,
    })?;
    wal::decode(name, &object)
        .map_err(|e| Error::from(e).while_doing(format!("could not read \"{key}\"")))
}
