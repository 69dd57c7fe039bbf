//! Removals that somebody has decided on and not completed, judged by what this run decides.
//!
//! Whoever may store objects can make such a record, also a database host that somebody has taken over. So it takes nothing
//! away: what it names goes when this run decides so too, by the rules, pins, restores, locks and chains that it sees.
//! When this run would keep any of it, nothing is removed at all: either other rules hold elsewhere, or somebody lies.

use pgstrata_layer::retention::MergeStep;
use pgstrata_store::catalog::PendingRemoval;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;

use super::scene::{ExpireDecision, Scene};

/// So many layers and reasons are named in an error.
const MOST_NAMED: usize = 5;

/// A removal that was not completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedRemoval {
    /// Its id.
    pub id: String,
    /// Who decided, and when, as he says himself.
    pub by: String,
    /// The layers that it names and that are still there, in its order.
    pub layers: Vec<String>,
    /// Files of the WAL archive that it names and that are still there. What came later on a timeline of its own is none of them.
    pub wal_files: u64,
    /// What of it this run would keep, and why; nothing is removed then.
    pub refused: Vec<String>,
}

/// Judges all of them.
pub(super) async fn judge(
    cluster: &ClusterRepository,
    scene: &Scene,
    decision: &ExpireDecision,
) -> Result<Vec<JudgedRemoval>> {
    let mut judged = Vec::with_capacity(scene.pending.len());
    for pending in &scene.pending {
        let there = pending.layers.iter();
        let there = there.filter(|layer| scene.catalog.layers.holds(layer));
        let layers: Vec<String> = there.map(|layer| layer.label.clone()).collect();
        let mut refused = why_layers_stay(scene, decision, &layers);
        let (wal_files, stays) = judge_wal(cluster, scene, decision, pending).await?;
        refused.extend(stays);
        judged.push(JudgedRemoval {
            id: pending.id.clone(),
            by: pending.by.clone(),
            layers,
            wal_files,
            refused,
        });
    }
    Ok(judged)
}

/// Why those of `layers` stay that do.
fn why_layers_stay(scene: &Scene, decision: &ExpireDecision, layers: &[String]) -> Vec<String> {
    let goes = |label: &str| decision.remove.iter().any(|going| going.as_str() == label);
    let stay = layers.iter().filter(|label| !goes(label));
    let kept = scene.kept(decision);
    let stay = stay.map(|label| {
        let why = kept.iter().find(|kept| kept.label == *label);
        let why = why.map_or("another layer stands on it", |kept| kept.why.as_str());
        let merged = scene.merged_into(label).map(|(newest, oldest)| {
            format!("; \"pgstrata merge {newest} --from {oldest} --remove-inputs\" removes it, because it was merged")
        });
        format!("layer {label} ({why}{})", merged.unwrap_or_default())
    });
    stay.collect()
}

/// How many files of WAL are there that the removal names, and which of them stay.
async fn judge_wal(
    cluster: &ClusterRepository,
    scene: &Scene,
    decision: &ExpireDecision,
    pending: &PendingRemoval,
) -> Result<(u64, Option<String>)> {
    let size = scene.archived.segment_size();
    let found = pending.wal_left(cluster).await?;
    let ours = decision.limit.as_ref();
    let stays = found
        .iter()
        .filter(|found| !ours.is_some_and(|ours| ours.takes(found.segment, size)));
    let stays: Vec<_> = stays.map(|found| found.segment).collect();
    let ends = stays.iter().min().zip(stays.iter().max());
    let stays = ends.map(|(first, last)| {
        format!(
            "{} files of WAL, from {} to {}",
            stays.len(),
            first.file_name(size),
            last.file_name(size)
        )
    });
    Ok((u64::try_from(found.len()).unwrap_or(u64::MAX), stays))
}

/// Whether a merge would be refused because one of these names WAL of what is to be merged, and is not complete: no layer is made
/// that starts in WAL which is going away.
pub(super) async fn holds_up(
    cluster: &ClusterRepository,
    scene: &Scene,
    step: &MergeStep,
) -> Result<bool> {
    let start = scene.catalog.layers[step.newest].manifest.start_lsn;
    for pending in &scene.pending {
        let names_it = pending.wal.as_ref().is_some_and(|wal| start < wal.before);
        if names_it && !pending.is_complete(cluster).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The error of a run that would keep what one of these names.
pub(super) fn refusal(cluster: &ClusterRepository, judged: &[JudgedRemoval]) -> Option<Error> {
    let found = judged.iter().find(|removal| !removal.refused.is_empty())?;
    let (wanted, verdict) = (
        cluster.name.removal_key(&found.id),
        cluster.name.verdict_key(&found.id),
    );
    let mut named = found.refused.iter().take(MOST_NAMED).cloned();
    let mut stays = named.by_ref().collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = found.refused.len().checked_sub(MOST_NAMED) {
        stays.push_str(&format!(" and {more} more"));
    }
    let what = format!(
        "nothing is removed, because the removal \"{wanted}\" names what this run would keep: {stays}"
    );
    let hint = format!(
        "its record says that {} decided it. Wait for an expire or a merge that runs elsewhere; repeat one that was \
         interrupted, with the rules that it had: that completes it. If the server was taken back since, as by a restore of an \
         older layer, and those rules are refused as well: delete \"{wanted}\" and then \"{verdict}\", while no expire and no \
         merge runs. If none of yours made it, somebody else can write here: change the credentials of the hosts that may, and \
         delete the two",
        found.by
    );
    Some(Error::new(Kind::Refused, what).hint(hint))
}
