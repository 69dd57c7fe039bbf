//! Verifications that have finished, as the repository knows them.
//!
//! Each leaves a record of its own, named after the moment at which it ended. Which are the newest is told by the times that the
//! store has noted: a host whose clock was ahead would make the newest of all for as long as it was. Who may not create objects
//! leaves none. An expiry removes those that are of no use any more: whatever is older than the last [`KEPT`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pgstrata_layer::label::Label;
use pgstrata_layer::verified::{self, VerifiedRecord};

use super::{Catalog, hex};
use crate::cluster::ClusterRepository;
use crate::error::Result;
use crate::repository::ObjectInfo;

/// A month of daily verifications; also the most that are read to find one.
const KEPT: usize = 30;

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
    for ObjectInfo { key, modified, .. } in records(cluster).await?.into_iter().rev().take(KEPT) {
        // An expiry has removed one that is not there.
        let Some(object) = cluster.repository.find_record(&key).await? else {
            continue;
        };
        let decoded = object.and_then(|object| Ok(verified::decode(&object)?));
        let record = match decoded {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!("could not read \"{key}\": {error}");
                continue;
            }
        };
        let verified = Verified {
            record,
            stored_at: modified,
        };
        if last.newest.is_none() {
            last.add_damage(&verified, &mut whole);
        }
        if verified.record.label.is_some() {
            continue;
        }
        let is_clean = verified.record.errors == 0;
        last.newest.get_or_insert_with(|| verified.clone());
        if is_clean {
            last.clean = Some(verified);
            break;
        }
    }
    Ok(last)
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

/// Removes the records of all but the last verifications.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn forget_old_verifications(cluster: &ClusterRepository) -> Result<()> {
    let mut records = records(cluster).await?;
    let old = records.len().saturating_sub(KEPT);
    records.truncate(old);
    let keys: Vec<String> = records.into_iter().map(|record| record.key).collect();
    cluster.repository.delete_all(&keys).await
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
