//! Rescue: what somebody has hidden or replaced in a bucket with versions comes back.
//!
//! Objects are created once, so the version that was there at a moment is the right one, and whatever lies on top of it
//! since is an expiry's work or an attack. A rescue puts the old version on top again. It deletes nothing: neither a
//! version nor a marker, nor what was added.
//!
//! One object that the store does not give back keeps no other from coming back: it is reported, and so is the manifest of its
//! layer, which stays hidden. Only a store that answers nothing else either, or takes none of many copies, ends a rescue.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use jiff::Timestamp;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::versions::{Since, Version};
use serde::Serialize;

/// Each is one request, and the store does the work.
const COPIES_AT_ONCE: usize = 16;

/// How the key of a manifest ends, behind the prefix of its layer.
const MANIFEST: &str = "/manifest";

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
    /// Those of the hidden and the replaced ones that did not come back, in order of their keys.
    pub failed: Vec<NotBack>,
    /// Layers that are not whole although nothing is left to come back but what failed, and why. Empty while something is.
    pub broken: Vec<String>,
}

/// An object that did not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotBack {
    /// Its key.
    pub key: String,
    /// Why.
    pub why: String,
    /// What kind of error it is.
    #[serde(skip)]
    pub kind: Kind,
    /// What can be done about it.
    #[serde(skip)]
    pub hint: Option<String>,
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

/// Does it. What the store does not give back is reported, and the rest comes back all the same.
///
/// # Errors
/// As for [`plan`]; `Busy` when somebody hides objects while they come back; `Repository` when the store answers nothing any
/// more. What has come back by then stays, and the rescue can be repeated.
pub async fn execute(cluster: &ClusterRepository, since: Timestamp) -> Result<RescueReport> {
    let found = look(cluster, since, &BTreeSet::new()).await?;
    let mut report = report(cluster, since, &found);
    let back: Vec<&Version> = found.hidden.iter().chain(&found.replaced).collect();
    if !back.is_empty() {
        tracing::info!("bringing back {} objects", back.len());
    }
    let brought = Brought::of(cluster, back).await?;
    let left = look(cluster, since, &brought.ids).await?;
    let mut left = left.hidden.iter().chain(&left.replaced);
    if let Some(object) = left.find(|version| !brought.failed.contains_key(&version.key)) {
        let what = format!("\"{}\" was hidden or replaced again meanwhile", object.key);
        return Err(Error::new(Kind::Busy, what).hint(
            "take the rights to write away from all others first: change the credentials of the bucket; then run it again",
        ));
    }
    report.failed = brought.failed.into_iter().map(NotBack::of).collect();
    report.broken = broken(cluster).await;
    report.done = true;
    Ok(report)
}

impl NotBack {
    fn of((key, error): (String, Error)) -> Self {
        Self {
            key,
            why: error.to_string(),
            kind: error.kind(),
            hint: error.hint_text().map(str::to_owned),
        }
    }
}

/// What became of the objects that were to come back.
#[derive(Default)]
struct Brought {
    /// The ids of new versions, as far as the store says them.
    ids: BTreeSet<String>,
    /// Those that did not, by their keys, and why.
    failed: BTreeMap<String, Error>,
}

impl Brought {
    /// Brings them back. What makes a layer exist comes last, as when it was made, and not when something of the layer did
    /// not come.
    async fn of(cluster: &ClusterRepository, back: Vec<&Version>) -> Result<Self> {
        let is_manifest = |version: &&Version| version.key.ends_with(MANIFEST);
        let (manifests, others): (Vec<_>, Vec<_>) = back.into_iter().partition(is_manifest);
        let mut brought = Self::default();
        brought.bring(cluster, others).await?;
        let mut whole = Vec::new();
        for manifest in manifests {
            match brought.lost_of(&manifest.key) {
                None => whole.push(manifest),
                Some(lost) => {
                    let what = format!("the layer is not whole: \"{lost}\" did not come back");
                    let held = Error::new(Kind::Repository, what);
                    brought.failed.insert(manifest.key.clone(), held);
                }
            }
        }
        brought.bring(cluster, whole).await?;
        Ok(brought)
    }

    async fn bring(&mut self, cluster: &ClusterRepository, group: Vec<&Version>) -> Result<()> {
        let tried = futures::stream::iter(group).map(|version| async move {
            let tried = cluster.repository.bring_back(version).await;
            let is_outage = tried.is_err() && !answers(cluster).await;
            (&version.key, tried, is_outage)
        });
        let mut tried = tried.buffer_unordered(COPIES_AT_ONCE);
        let mut in_vain = 0;
        while let Some((key, tried, is_outage)) = tried.next().await {
            let error = match tried {
                Ok(id) => {
                    self.ids.extend(id);
                    in_vain = 0;
                    continue;
                }
                Err(error) => error,
            };
            // All that are under way were repeated for as long as patience lasts, or the last ones are: so would all others be.
            in_vain += usize::from(error.is_outage());
            if is_outage || in_vain == COPIES_AT_ONCE {
                return Err(error);
            }
            if self.failed.is_empty() {
                tracing::warn!("{error}; the others are tried");
            }
            self.failed.insert(key.clone(), error);
        }
        Ok(())
    }

    /// Something of the layer with that manifest that did not come back.
    fn lost_of(&self, manifest: &str) -> Option<&str> {
        let layer = manifest.strip_suffix(MANIFEST)?;
        let mut failed = self.failed.keys();
        let lost = failed.find(|key| {
            key.strip_prefix(layer)
                .is_some_and(|rest| rest.starts_with('/'))
        });
        lost.map(String::as_str)
    }
}

/// Whether the store answers something else, be it that it is not allowed: then what failed is about one object.
async fn answers(cluster: &ClusterRepository) -> bool {
    let asked = cluster.repository.list_names(cluster.name.as_str()).await;
    asked.map_or_else(|error| error.is_denial(), |_| true)
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
        failed: Vec::new(),
        broken: Vec::new(),
    }
}
