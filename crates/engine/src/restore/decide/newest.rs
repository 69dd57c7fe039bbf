//! The newest state, to which a restore leads that is told nothing, and whether it is known which one that is.

use pgstrata_pgdata::timeline::TimelineHistory;
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Kind, Result};

use super::plan::candidates;
use super::select;

/// The history that a restore of the newest state follows; an error when no layer leads there or nobody knows which branch is
/// meant. `None` when there is no layer. What is missing or damaged on the way is not looked for.
pub(crate) fn newest_state(
    catalog: &Catalog,
    archive: &ArchivedWal,
) -> Option<Result<TimelineHistory>> {
    let (candidates, _) = candidates(catalog, None);
    (!candidates.is_empty()).then(|| select::newest_state(&candidates, archive))
}

/// Refuses to take the layer that was made last for the newest when there are layers of another branch, and nobody knows which
/// branch is meant, as a restore does.
///
/// # Errors
/// `Target` then, naming the branches; `Repository` when the archive cannot be listed. What else is wrong with the archive or
/// its layers is no question of branches.
pub async fn require_one_branch(cluster: &ClusterRepository, catalog: &Catalog) -> Result<()> {
    let timeline = |layer: &Layer| layer.manifest.timeline;
    let last = catalog.layers.last().map(timeline);
    let Some(last) = last.filter(|last| catalog.layers.iter().any(|one| timeline(one) != *last))
    else {
        return Ok(());
    };
    let Ok(archive) = Archive::load(cluster).await else {
        return Ok(());
    };
    let size = archive.segment_size();
    let starts = catalog.layers.iter().map(|layer| layer.own_wal(size).0);
    let mut archived = archive.list(starts).await?;
    archive.read_short(&mut archived).await?;
    // One that cannot be read is an alarm of its own.
    if let Err(error) = archive.read_histories(&mut archived).await {
        tracing::debug!(%error, "not every history can be read");
    }
    let history = archived.history(last);
    let is_before = |layer: &Layer| history.is_ancestor(timeline(layer), layer.manifest.stop_lsn);
    match newest_state(catalog, &archived) {
        Some(Err(error))
            if error.kind() == Kind::Target && !catalog.layers.iter().all(is_before) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}
