//! Rescue: what somebody has hidden or replaced in a bucket with versions comes back.
//!
//! Objects are created once, so the version that was there at a moment is the right one, and whatever lies on top of it
//! since is an expiry's work or an attack. A rescue puts the old version on top again. It deletes nothing: neither a
//! version nor a marker, nor what was added.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::versions::{Since, Version};
use serde::Serialize;

/// Each is one request, and the store does the work.
const COPIES_AT_ONCE: usize = 16;

/// What a rescue will do, or has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RescueReport {
    /// Whether it has been done.
    pub done: bool,
    /// The moment to which the repository goes back.
    pub since: Timestamp,
    /// Objects that were there then, and were deleted since.
    pub hidden: Vec<String>,
    /// Objects that were there then, and were overwritten since.
    pub replaced: Vec<String>,
    /// Bytes of both.
    pub bytes: u64,
    /// Objects that were made since and are there: they stay.
    pub added: Vec<String>,
    /// Those of them that tell an expiry what to remove.
    pub removals: Vec<String>,
    /// Objects that were made since and are gone: a later moment brings them back.
    pub gone: Vec<String>,
    /// Layers that are not whole although nothing is left to come back, and why. Empty while something is.
    pub broken: Vec<String>,
}

/// Says what a rescue would do; changes nothing.
///
/// # Errors
/// `Unsupported` when the repository keeps no versions; when it cannot be read.
pub async fn plan(cluster: &ClusterRepository, since: Timestamp) -> Result<RescueReport> {
    let found = look(cluster, since, &BTreeSet::new()).await?;
    let mut report = report(cluster, since, &found);
    if report.hidden.is_empty() && report.replaced.is_empty() {
        report.broken = broken(cluster).await;
    }
    Ok(report)
}

/// Does it.
///
/// # Errors
/// As for [`plan`]; `Busy` when somebody hides objects while they come back; when the repository cannot be written. What
/// has come back by then stays, and the rescue can be repeated.
pub async fn execute(cluster: &ClusterRepository, since: Timestamp) -> Result<RescueReport> {
    let found = look(cluster, since, &BTreeSet::new()).await?;
    let mut report = report(cluster, since, &found);
    let mut back: Vec<&Version> = found.hidden.iter().chain(&found.replaced).collect();
    if !back.is_empty() {
        tracing::info!("bringing back {} objects", back.len());
    }
    // What makes a layer exist comes last, as when it was made.
    let is_last = |version: &&Version| version.key.ends_with("/manifest");
    back.sort_by_key(|version| Reverse(!is_last(version)));
    let mut brought = BTreeSet::new();
    let (others, manifests) = back.split_at(back.partition_point(|version| !is_last(version)));
    for group in [others, manifests] {
        let ids: Vec<Option<String>> = futures::stream::iter(group)
            .map(|version| cluster.repository.bring_back(version))
            .buffer_unordered(COPIES_AT_ONCE)
            .try_collect()
            .await?;
        brought.extend(ids.into_iter().flatten());
    }
    let left = look(cluster, since, &brought).await?;
    if let Some(object) = left.hidden.iter().chain(&left.replaced).next() {
        let what = format!("\"{}\" was hidden or replaced again meanwhile", object.key);
        return Err(Error::new(Kind::Busy, what).hint(
            "take the rights to write away from all others first: change the credentials of the bucket; then run it again",
        ));
    }
    report.broken = broken(cluster).await;
    report.done = true;
    Ok(report)
}

/// Which layers are not whole, whatever the versions say. Who rescues a sealed cluster need not open it.
async fn broken(cluster: &ClusterRepository) -> Vec<String> {
    let catalog = match Catalog::examine(cluster).await {
        Ok(catalog) => catalog,
        Err(error) if error.is_lack_of_key() => {
            tracing::warn!("whether layers are whole was not looked at: {error}");
            return Vec::new();
        }
        Err(error) => return vec![format!("whether layers are whole cannot be seen: {error}")],
    };
    let damaged = catalog.damaged.iter();
    let damaged = damaged.map(|(label, error)| format!("{label}: {error}"));
    let layers = catalog.layers.iter();
    let lossy = layers.filter_map(|layer| {
        let error = catalog.whole(&layer.label).err()?;
        Some(format!("{}: {error}", layer.label))
    });
    damaged.chain(lossy).collect()
}

/// What became of the cluster's objects, but for those that serve for a moment.
async fn look(
    cluster: &ClusterRepository,
    since: Timestamp,
    brought: &BTreeSet<String>,
) -> Result<Since> {
    let name = &cluster.name;
    let found = cluster.repository.since(name.as_str(), since, brought);
    let mut found = found.await?;
    found
        .hidden
        .retain(|version| !name.is_passing(&version.key));
    found
        .replaced
        .retain(|version| !name.is_passing(&version.key));
    found.added.retain(|key| !name.is_passing(key));
    found.gone.retain(|key| !name.is_passing(key));
    Ok(found)
}

fn report(cluster: &ClusterRepository, since: Timestamp, found: &Since) -> RescueReport {
    let keys = |versions: &[Version]| versions.iter().map(|v| v.key.clone()).collect();
    let removals = format!("{}/", cluster.name.removals_prefix());
    let own = found.added.iter();
    let back = found.hidden.iter().chain(&found.replaced);
    RescueReport {
        done: false,
        since,
        hidden: keys(&found.hidden),
        replaced: keys(&found.replaced),
        bytes: back.filter_map(|version| version.size_bytes).sum(),
        added: found.added.clone(),
        removals: own
            .filter(|key| key.starts_with(&removals))
            .cloned()
            .collect(),
        gone: found.gone.clone(),
        broken: Vec::new(),
    }
}
