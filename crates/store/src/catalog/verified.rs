//! Verifications that have finished, as the repository knows them.
//!
//! Each leaves a record of its own, named after the moment at which it ended. Which are the newest is told by the times that the
//! store has noted: a host whose clock was ahead would make the newest of all for as long as it was. Who may not create objects
//! leaves none. An expiry removes those that are of no use any more, but for the last [`KEPT`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pgstrata_layer::label::Label;
use pgstrata_layer::verified::{self, VerifiedRecord};

use super::{Catalog, hex};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Result};
use crate::repository::ObjectInfo;

/// A month of daily verifications of all layers; also the most of those that are read to find one.
const KEPT: usize = 30;

/// Records of verifications of one layer may be many.
const READ_AT_ONCE: usize = 16;

/// Says that a verification has finished.
///
/// # Errors
/// When the repository cannot be written.
pub async fn note_verified(cluster: &ClusterRepository, record: &VerifiedRecord) -> Result<()> {
    let ended = record.finished_at.to_zoned(TimeZone::UTC);
    let chance = hex(&rand::random::<[u8; 4]>());
    let id = format!("{}-{chance}", ended.strftime("%Y%m%d-%H%M%S.%6f"));
    let body = Bytes::from(verified::encode(record));
    let key = cluster.name.verified_key(&id);
    cluster.repository.create(&key, body).await?;
    Ok(())
}

/// A verification that is on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What it says of itself.
    pub record: VerifiedRecord,
    /// When that was stored, by the store's clock.
    pub stored_at: Timestamp,
}

/// What is on record of verifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastVerified {
    /// The newest of all layers.
    pub newest: Option<Verified>,
    /// The newest of all layers that found nothing because of which a restore fails.
    pub clean: Option<Verified>,
    /// Layers that were found damaged, and when: by the newest of all layers, or since by one of a layer.
    pub damaged: BTreeMap<Label, Timestamp>,
    /// When somebody has last verified a layer, whatever was found: there was one.
    pub of_layers: Option<Timestamp>,
}

impl Verified {
    /// When it ended: a clock that was ahead tells nothing.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.record.finished_at.min(self.stored_at)
    }
}

impl LastVerified {
    /// Takes what the next older one has found. `whole` are layers that a newer one of a layer has found in order.
    fn add_damage(&mut self, verified: &Verified, whole: &mut BTreeSet<Label>) {
        let record = &verified.record;
        let found = record
            .damaged
            .iter()
            .filter_map(|label| Label::parse(label));
        let found = found.filter(|label| !whole.contains(label));
        self.damaged
            .extend(found.map(|label| (label, verified.at())));
        if record.errors == 0 {
            whole.extend(record.label.as_deref().and_then(Label::parse));
        }
    }
}

/// Looks for the last verifications. A record that cannot be read is left out, with a warning.
///
/// # Errors
/// When the repository cannot be read.
pub async fn last_verified(cluster: &ClusterRepository) -> Result<LastVerified> {
    let (mut last, mut whole) = (LastVerified::default(), BTreeSet::new());
    for (_, verified) in telling(cluster, records(cluster).await?).await? {
        if last.newest.is_none() {
            last.add_damage(&verified, &mut whole);
        }
        if verified.record.layers > 0 {
            last.of_layers.get_or_insert(verified.at());
        }
        if verified.record.label.is_some() {
            continue;
        }
        last.newest.get_or_insert_with(|| verified.clone());
        if verified.record.errors == 0 {
            last.clean = Some(verified);
        }
    }
    Ok(last)
}

/// Of these records those that can be read, with their keys, the newest first: up to the newest of all layers that found
/// nothing, and no more of all layers than [`KEPT`].
async fn telling(
    cluster: &ClusterRepository,
    records: Vec<ObjectInfo>,
) -> Result<Vec<(String, Verified)>> {
    let read = records.into_iter().rev().map(|object| async {
        let found = cluster.repository.find_record(&object.key).await?;
        Ok::<_, Error>((object, found))
    });
    // Mostly the newest one is the last that is needed.
    let mut read = read.fuse();
    let newest = stream::iter(read.next()).buffered(1);
    let mut read = newest.chain(stream::iter(read).buffered(READ_AT_ONCE));
    let (mut telling, mut of_all) = (Vec::new(), 0);
    while let Some(found) = read.next().await {
        let (ObjectInfo { key, modified, .. }, found) = found?;
        // An expiry has removed one that is not there.
        let Some(object) = found else { continue };
        let record = match object.and_then(|object| Ok(verified::decode(&object)?)) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!("could not read \"{key}\": {error}");
                continue;
            }
        };
        let is_of_all = record.label.is_none();
        of_all += usize::from(is_of_all);
        let is_last = is_of_all && (record.errors == 0 || of_all == KEPT);
        let verified = Verified {
            record,
            stored_at: modified,
        };
        telling.push((key, verified));
        if is_last {
            break;
        }
    }
    Ok(telling)
}

/// [`Catalog::examine`], with the layers that verifications have found damaged.
///
/// # Errors
/// When the repository cannot be read.
pub async fn examine_as_verified(cluster: &ClusterRepository) -> Result<Catalog> {
    let (catalog, last) = futures::join!(Catalog::examine(cluster), last_verified(cluster));
    Ok(Catalog {
        found_damaged: last?.damaged,
        ..catalog?
    })
}

/// What to do about a layer of which an object is not what was written.
#[must_use]
pub fn advice_if_damaged(label: &Label) -> String {
    format!(
        "run \"pgstrata verify {label}\" to see what is damaged: where another repository has the layer, delete those objects \
         here, and \"pgstrata copy {label}\" out of that one brings them; otherwise take a full backup now"
    )
}

/// Removes the records of verifications that tell nothing any more, but for the last thirty.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn forget_old_verifications(cluster: &ClusterRepository) -> Result<()> {
    let mut records = records(cluster).await?;
    let old = records.len().saturating_sub(KEPT);
    if old == 0 {
        return Ok(());
    }
    let needed = needed(&telling(cluster, records.clone()).await?);
    records.truncate(old);
    let keys = records.into_iter().map(|record| record.key);
    let keys: Vec<String> = keys.filter(|key| !needed.contains(key)).collect();
    cluster.repository.delete_all(&keys).await
}

/// The keys of those that say what [`last_verified`] makes of all, the newest first.
fn needed(telling: &[(String, Verified)]) -> BTreeSet<String> {
    let is_of_all = |(_, verified): &(String, Verified)| verified.record.label.is_none();
    let of_all = telling.iter().filter(|one| is_of_all(one));
    let mut needed: BTreeSet<String> = of_all.map(|(key, _)| key.clone()).collect();
    let newest = telling.iter().position(is_of_all);
    // Since then, the oldest first: what has found damage, and what has found in order what was damaged before.
    let mut damaged = BTreeSet::new();
    for (key, Verified { record, .. }) in telling[..newest.map_or(telling.len(), |at| at + 1)]
        .iter()
        .rev()
    {
        let is_better = record
            .label
            .as_ref()
            .is_some_and(|label| damaged.contains(label));
        if is_better || !record.damaged.is_empty() {
            needed.insert(key.clone());
        }
        damaged.extend(record.damaged.iter().cloned());
    }
    needed
}

/// All records, the newest last. Those of one time, as in a copy that keeps none, go by their names.
async fn records(cluster: &ClusterRepository) -> Result<Vec<ObjectInfo>> {
    let mut records = cluster
        .repository
        .list(&cluster.name.verified_prefix())
        .await?;
    records.sort_by(|one, other| (one.modified, &one.key).cmp(&(other.modified, &other.key)));
    Ok(records)
}
