//! What several repositories know together: recovery asks them all, so a history that branches between them branches.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use futures::future::{join_all, try_join_all};
use pgstrata_layer::label::Label;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::{Lsn, WalSegment};
use pgstrata_store::archive::{self, Archive, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::ObjectInfo;

use super::plan::candidates;
use super::select::{self, Candidate, Request, Stock, Told};
use crate::restore::target::{Target, TimelineChoice};

/// What one of them has.
struct Knowledge {
    archive: Archive,
    catalog: Catalog,
    objects: Vec<ObjectInfo>,
}

/// Refuses a restore that is told of no timeline when all repositories together have WAL or layers of another branch, and nobody
/// knows which branch is meant: one of them alone may have no trace of it. Refuses any that would leave its history, because one
/// repository has no WAL behind a fork and another has that of the timeline which was left.
///
/// # Errors
/// `Target` when it is not known which branch is meant; `WalMissing` when the history would be left. What is the matter with a
/// repository is no question of branches.
pub async fn require_one_way_among(
    clusters: &[ClusterRepository],
    (target, timeline): (&Target, Option<TimelineChoice>),
    label: Option<&Label>,
) -> Result<()> {
    let mut several = Vec::new();
    for one in join_all(clusters.iter().map(Knowledge::of)).await {
        match one {
            Ok(one) => several.push(one),
            Err(error) => tracing::debug!(%error, "what this repository knows is not known"),
        }
    }
    if several.len() < 2 {
        return Ok(());
    }
    let histories = histories(&several).await?;
    let mut each = Vec::new();
    for one in &several {
        each.push(Stock {
            candidates: candidates(&one.catalog, label).0,
            archive: one
                .listed(&several, one.objects.clone(), &histories)
                .await?,
        });
    }
    let objects = several.iter().flat_map(|one| &one.objects);
    let objects: BTreeMap<&str, &ObjectInfo> = objects
        .map(|object| (object.key.as_str(), object))
        .collect();
    let objects = objects.into_values().cloned().collect();
    let archive = several[0].listed(&several, objects, &histories);
    let together = Stock {
        candidates: all_candidates(&each),
        archive: archive.await?,
    };
    let told = Told {
        too_late: too_late(target, &together.candidates),
        ..Told::default()
    };
    let request = Request {
        target,
        timeline,
        label,
        lost: &[],
        skip_damaged: true,
        told: &told,
    };
    match select::require_one_branch(&request, &together, &each)? {
        Some((chosen, history)) if !matches!(target, Target::Immediate | Target::None) => {
            let start = together.candidates[chosen].start;
            require_to_stay(&history, start, (&together, &each))
        }
        _ => Ok(()),
    }
}

impl Knowledge {
    async fn of(cluster: &ClusterRepository) -> Result<Self> {
        let (archive, catalog, objects) = futures::try_join!(
            Archive::load(cluster),
            catalog::examine_as_verified(cluster),
            archive::objects(cluster)
        )?;
        Ok(Self {
            archive,
            catalog,
            objects,
        })
    }

    /// An archive of these objects, with all histories that are known.
    async fn listed(
        &self,
        several: &[Self],
        objects: Vec<ObjectInfo>,
        histories: &[TimelineHistory],
    ) -> Result<ArchivedWal> {
        let size = self.archive.segment_size();
        let layers = several.iter().flat_map(|one| one.catalog.layers.iter());
        let starts: Vec<WalSegment> = layers.map(|layer| layer.own_wal(size).0).collect();
        let starts = starts.into_iter();
        let mut found = self
            .archive
            .list_beside(objects, iter::empty(), starts)
            .await?;
        for history in histories {
            let stored_at = found.history_stored_at(history.timeline());
            // Where it is not there no branch has ended because it came.
            found.add_history(history.clone(), stored_at.unwrap_or_default());
        }
        Ok(found)
    }
}

/// Each history that one of them gives out.
async fn histories(several: &[Knowledge]) -> Result<Vec<TimelineHistory>> {
    let mut known = BTreeSet::from([TimelineId::FIRST]);
    let read = try_join_all(several.iter().map(|one| one.archive.histories())).await?;
    let read = read.into_iter().flatten().filter_map(|(_, read)| read.ok());
    Ok(read
        .filter(|history| known.insert(history.timeline()))
        .collect())
}

fn all_candidates(each: &[Stock]) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for candidate in each.iter().flat_map(|one| &one.candidates) {
        if all.iter().all(|known| known.label != candidate.label) {
            all.push(candidate.clone());
        }
    }
    all
}

/// Layers that ended after the time that is asked for, by the clocks of their hosts: WAL is not read here.
fn too_late(target: &Target, candidates: &[Candidate]) -> Vec<Label> {
    let Target::Time(time) = target else {
        return Vec::new();
    };
    let late = candidates.iter().filter(|one| one.finished_at > *time);
    late.map(|one| one.label.clone()).collect()
}

/// A restore out of one repository sees that recovery would leave its history, and has it stop there, when that repository has the
/// WAL that leads astray. Recovery gets it from any of them.
fn require_to_stay(
    history: &TimelineHistory,
    start: Lsn,
    (together, each): (&Stock, &[Stock]),
) -> Result<()> {
    let along = |stock: &Stock| stock.archive.coverage(history, start, None);
    let coverage = along(together);
    let Some(old) = coverage.strays_to else {
        return Ok(());
    };
    if each.iter().all(|one| along(one).strays_to.is_some()) {
        return Ok(());
    }
    let size = together.archive.segment_size();
    Err(Error::new(
        Kind::WalMissing,
        format!(
            "WAL segment {} is in no repository: instead of it a server would take the WAL of timeline {old}, beyond {}, where timeline \
             {} began",
            coverage.missing.file_name(size),
            coverage.end,
            coverage.missing.timeline
        ),
    )
    .hint(format!(
        "All of timeline {old} is restored with --target-timeline {old}."
    )))
}
