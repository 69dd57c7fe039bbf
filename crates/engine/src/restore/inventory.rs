//! Reads what the archive holds: every history, and the names of all segments.

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};

use super::archived::ArchivedWal;
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Lists the archive of `cluster`.
pub(crate) async fn archived_wal(
    repository: &Repository,
    cluster: &ClusterName,
    size: WalSegmentSize,
) -> Result<ArchivedWal> {
    let mut archive = ArchivedWal::new(size);
    let prefix = cluster.wal_prefix();
    for directory in repository.list_names(&prefix).await? {
        for object in repository.list(&format!("{prefix}/{directory}")).await? {
            let name = object.key.rsplit('/').next().unwrap_or_default();
            match ArchiveFile::parse(name, size) {
                Ok(ArchiveFile::Segment(segment)) => archive.add_segment(segment, object.modified),
                Ok(ArchiveFile::History(timeline)) => {
                    archive.add_history(history(repository, cluster, timeline).await?);
                }
                // Partial segments and backup labels do not take part in recovery; other names are not ours.
                _ => {}
            }
        }
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
