//! WAL that nobody needs.
//!
//! Recovery from a layer begins at its start and only goes forward, on whatever timeline: what ends before the first
//! start of all is read by none. Histories are kept for ever.

use std::collections::HashSet;

use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};

use super::Catalog;
use super::restoring::{InUse, wal_needed};
use crate::cluster::ClusterRepository;
use crate::error::Result;

/// What ends at or before this is needed by no restore, and by no layer but `going`; `None` when there is no layer.
pub fn before(catalog: &Catalog, going: &[Label], restores: &[InUse]) -> Option<Lsn> {
    let going: HashSet<&Label> = going.iter().collect();
    let stays = catalog.layers.iter();
    let stays = stays.filter(|layer| !going.contains(&layer.label));
    let first = stays.map(|layer| layer.manifest.start_lsn).min()?;
    Some(wal_needed(restores).map_or(first, |needed| needed.min(first)))
}

/// Objects of the archive that end there, and their sizes; what stands in for a damaged one comes before it.
///
/// # Errors
/// When the repository cannot be read.
pub async fn find(cluster: &ClusterRepository, before: Lsn) -> Result<Vec<(String, u64)>> {
    let record = cluster.record().await?;
    let size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
    let needed = before.segment(size);
    let mut superfluous = Vec::new();
    // What stands in for a damaged object goes before that object.
    let mended = cluster.name.mended_wal_prefix();
    for prefix in [&mended, &cluster.name.wal_prefix()] {
        for directory in cluster.repository.list_names(prefix).await? {
            for object in cluster
                .repository
                .list(&format!("{prefix}/{directory}"))
                .await?
            {
                let name = object.key.rsplit('/').next().unwrap_or_default();
                let file = name.split_once('-').filter(|_| *prefix == mended);
                let name = file.map_or(name, |(file, _)| file);
                let number = match ArchiveFile::parse(name, size) {
                    Ok(ArchiveFile::Segment(s) | ArchiveFile::Partial(s)) => s.number,
                    Ok(ArchiveFile::BackupLabel { segment, .. }) => segment.number,
                    // Histories, and what is not ours.
                    _ => continue,
                };
                if number < needed {
                    superfluous.push((object.key, object.size_bytes));
                }
            }
        }
    }
    Ok(superfluous)
}

/// Removes them.
///
/// # Errors
/// When the repository cannot be read or written.
pub(super) async fn remove(cluster: &ClusterRepository, before: Lsn) -> Result<()> {
    let found = find(cluster, before).await?;
    let mended = cluster.name.mended_wal_prefix();
    let (mended, archived): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(key, _)| key.starts_with(&mended));
    for group in [mended, archived] {
        let keys: Vec<String> = group.into_iter().map(|(key, _)| key).collect();
        cluster.repository.delete_all(&keys).await?;
    }
    Ok(())
}
