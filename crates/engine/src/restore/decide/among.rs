//! What several repositories know together: recovery asks them all, so a history that branches between them branches.

use std::collections::BTreeMap;
use std::iter;

use pgstrata_layer::label::Label;
use pgstrata_pgdata::WalSegment;
use pgstrata_store::archive::{self, Archive, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use pgstrata_store::repository::ObjectInfo;

use super::plan::candidates;
use super::select::{self, Candidate, Request, Told};
use crate::restore::target::Target;

/// What one of them has.
struct Holder {
    archive: Archive,
    catalog: Catalog,
    objects: Vec<ObjectInfo>,
}

/// Refuses a restore that is told of no timeline when all repositories together have WAL or layers of another branch, and nobody
/// knows which branch is meant: one of them alone may have no trace of it.
///
/// # Errors
/// `Target` then, naming the branches. What is the matter with a repository is no question of branches.
pub async fn require_one_branch_among(
    clusters: &[ClusterRepository],
    (target, label): (&Target, Option<&Label>),
) -> Result<()> {
    let mut holders = Vec::new();
    for cluster in clusters {
        match Holder::of(cluster).await {
            Ok(holder) => holders.push(holder),
            Err(error) => tracing::debug!(%error, "what this repository knows is not known"),
        }
    }
    if holders.len() < 2 {
        return Ok(());
    }
    let candidates = all_candidates(&holders, label);
    let told = Told {
        too_late: too_late(target, &candidates),
        ..Told::default()
    };
    let request = Request {
        target,
        timeline: None,
        label,
        lost: &[],
        skip_damaged: true,
        told: &told,
    };
    let archived = all_wal(&holders).await?;
    select::require_one_branch(&candidates, &request, &archived)
}

impl Holder {
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
}

fn all_candidates(holders: &[Holder], label: Option<&Label>) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for holder in holders {
        for candidate in candidates(&holder.catalog, label).0 {
            if all.iter().all(|known| known.label != candidate.label) {
                all.push(candidate);
            }
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

/// What they have in their archives, each file as old as the oldest object that holds it.
async fn all_wal(holders: &[Holder]) -> Result<ArchivedWal> {
    let mut objects: BTreeMap<&str, &ObjectInfo> = BTreeMap::new();
    for object in holders.iter().flat_map(|holder| &holder.objects) {
        let known = objects.entry(&object.key).or_insert(object);
        if object.modified < known.modified {
            *known = object;
        }
    }
    let objects = objects.into_values().cloned().collect();
    let archive = &holders[0].archive;
    let size = archive.segment_size();
    let layers = holders
        .iter()
        .flat_map(|holder| holder.catalog.layers.iter());
    let starts: Vec<WalSegment> = layers.map(|layer: &Layer| layer.own_wal(size).0).collect();
    let starts = starts.into_iter();
    let mut found = archive.list_beside(objects, iter::empty(), starts).await?;
    let begun: Vec<_> = found.timelines().collect();
    for timeline in begun {
        let Some(stored_at) = found.history_stored_at(timeline) else {
            continue;
        };
        for holder in holders {
            if let Ok(history) = holder.archive.history(timeline).await {
                found.add_history(history, stored_at);
                break;
            }
        }
    }
    Ok(found)
}
