//! A look at the locks of what layers need, as somebody sees them who trusts nothing else.
//!
//! A listing tells which objects were overwritten, and costs little. It does not tell locks: each is a request. So all
//! manifests are asked for, and of the other objects as many as [`MOST`], by chance: who looks every day finds what is not
//! locked before long.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use rand::seq::SliceRandom as _;

use super::retain::{self, LOCKS_AT_ONCE};
use super::{Catalog, Layer};
use crate::cluster::ClusterRepository;
use crate::error::Result;
use crate::repository::versions::KeptObject;

/// A thousand requests take a second or two.
const MOST: usize = 1000;

/// The lock of a manifest is a whole second, and begins when it is stored, not when the layer was finished.
const SLACK: SignedDuration = SignedDuration::from_mins(1);

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockReport {
    /// How many objects layers need whose days are not over.
    pub objects: usize,
    /// How many of their locks were looked at.
    pub looked_at: usize,
    /// Keys of those that are not locked as long as a layer needs them.
    pub short: Vec<String>,
    /// Keys of those that were overwritten with other contents.
    pub replaced: Vec<String>,
}

/// Looks at what the layers need that were made in the last `days` days.
///
/// # Errors
/// When the repository cannot be read.
pub async fn look_at_locks(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    days: u32,
) -> Result<LockReport> {
    let needed = needed(catalog, days, Timestamp::now());
    let mut all = Vec::new();
    if let Some(longest) = needed.values().map(|(_, until)| *until).max() {
        let shared = retain::shared(cluster).await?;
        all.extend(shared.into_iter().map(|kept| (kept, longest)));
        let layers = needed.values();
        let layers = layers.map(|(layer, _)| (&layer.label, &layer.manifest));
        let of_layers = retain::of_layers(cluster, layers).await?;
        for (own, (_, until)) in of_layers.into_iter().zip(needed.values()) {
            all.extend(own.into_iter().map(|kept| (kept, *until)));
        }
    }
    let replaced = all
        .iter()
        .filter(|(kept, _)| kept.replacement().is_some())
        .map(|(kept, _)| kept.key.clone())
        .collect();
    let objects = all.len();
    let chosen = chosen(all);
    let looked_at = chosen.len();
    let looking = chosen
        .into_iter()
        .map(|(kept, until)| is_short(cluster, kept, until));
    let short: Vec<Option<String>> = futures::stream::iter(looking)
        .buffered(LOCKS_AT_ONCE)
        .try_collect()
        .await?;
    let mut short: Vec<String> = short.into_iter().flatten().collect();
    short.sort_unstable();
    Ok(LockReport {
        objects,
        looked_at,
        short,
        replaced,
    })
}

/// The layers whose days are not over, and all on which they stand: until when each is needed.
fn needed(catalog: &Catalog, days: u32, now: Timestamp) -> BTreeMap<&Label, (&Layer, Timestamp)> {
    let days = SignedDuration::from_hours(24 * i64::from(days));
    let mut needed: BTreeMap<&Label, (&Layer, Timestamp)> = BTreeMap::new();
    for layer in catalog.layers.iter() {
        let until = layer.manifest.finished_at.checked_add(days);
        let until = until.unwrap_or(Timestamp::MAX) - SLACK;
        if until <= now {
            continue;
        }
        // Of a broken chain no more is known than its newest layer.
        let chain = catalog.chain(&layer.label);
        for below in chain.unwrap_or_else(|_| vec![layer]) {
            let known = needed.entry(&below.label).or_insert((below, until));
            known.1 = known.1.max(until);
        }
    }
    needed
}

/// All manifests, and others by chance.
fn chosen(all: Vec<(KeptObject, Timestamp)>) -> Vec<(KeptObject, Timestamp)> {
    let is_manifest = |(kept, _): &(KeptObject, Timestamp)| kept.key.ends_with("/manifest");
    let (mut chosen, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_manifest);
    others.shuffle(&mut rand::rng());
    others.truncate(MOST);
    chosen.extend(others);
    chosen
}

/// Its key, when a version with the contents of the first one is not locked until then.
async fn is_short(
    cluster: &ClusterRepository,
    kept: KeptObject,
    until: Timestamp,
) -> Result<Option<String>> {
    for version in kept.genuine() {
        let locked = cluster.repository.version_locked_until(version).await?;
        if locked.is_none_or(|locked| locked < until) {
            return Ok(Some(kept.key.clone()));
        }
    }
    Ok(None)
}
