//! Verifications that have finished, as the repository knows them.
//!
//! Each leaves a record of its own, named after the moment at which it ended. Which are the newest is told by the times that the
//! store has noted: a host whose clock was ahead would make the newest of all for as long as it was. Who may not create objects
//! leaves none. An expiry removes those that are of no use any more, but for the last [`KEPT`].
//!
//! What one has found counts until another that *began* later has looked again. One that only ended later may have read the
//! object while it was whole: how long it took the host's clock tells, and when it ended the store's.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::future;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_layer::verified::{self, VerifiedRecord};

use super::{CLOCKS_DIFFER, Catalog, hex};
use crate::cluster::ClusterRepository;
use crate::error::Result;
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
    /// Layers that were found damaged, and when, and that none which began later has found in order.
    pub damaged: BTreeMap<Label, Timestamp>,
    /// Those of all layers that found errors, and behind which no other of all layers has begun; the newest first.
    pub failed: Vec<Verified>,
    /// When somebody has last verified a layer, whatever was found: there was one.
    pub of_layers: Option<Timestamp>,
}

impl Verified {
    /// When it ended: a clock that was ahead tells nothing.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.record.finished_at.min(self.stored_at)
    }

    /// Whether its time is still to come, because the store's clock was wrong: it would hide for as long whatever is found.
    fn is_to_come(&self) -> bool {
        is_to_come(self.stored_at)
    }

    /// When it began, by the store's clock.
    fn began_at(&self) -> Timestamp {
        let (began, ended) = (self.record.started_at, self.record.finished_at);
        let took = ended.duration_since(began).max(SignedDuration::ZERO);
        self.stored_at.checked_sub(took).unwrap_or(Timestamp::MIN)
    }
}

fn is_to_come(stored_at: Timestamp) -> bool {
    stored_at.duration_since(Timestamp::now()) > CLOCKS_DIFFER
}

/// Since when it has been looked again.
#[derive(Debug, Default)]
struct LookedAgain {
    /// At everything.
    at_all: Option<Timestamp>,
    /// At a layer, which was found in order.
    at_layers: BTreeMap<Label, Timestamp>,
}

impl LookedAgain {
    fn note(&mut self, verified: &Verified) {
        if verified.is_to_come() {
            return;
        }
        let (record, began_at) = (&verified.record, verified.began_at());
        let Some(label) = &record.label else {
            self.at_all = self.at_all.max(Some(began_at));
            return;
        };
        if let Some(label) = Label::parse(label).filter(|_| record.errors == 0) {
            let known = self.at_layers.entry(label).or_insert(began_at);
            *known = began_at.max(*known);
        }
    }

    /// Whether everything has been looked at since.
    fn settles(&self, verified: &Verified) -> bool {
        self.at_all.is_some_and(|began| verified.stored_at < began)
    }

    /// Whether the layer was found in order since.
    fn clears(&self, label: &Label, verified: &Verified) -> bool {
        let began = self.at_layers.get(label);
        began.is_some_and(|began| verified.stored_at < *began)
    }
}

impl LastVerified {
    /// Takes what the next older one has found.
    fn add_damage(&mut self, verified: &Verified, again: &LookedAgain) {
        let damaged = verified.record.damaged.iter();
        let found = damaged.filter_map(|label| Label::parse(label));
        let found = found.filter(|label| !again.clears(label, verified));
        self.damaged
            .extend(found.map(|label| (label, verified.at())));
    }
}

/// Looks for the last verifications. A record that cannot be read is left out, with a warning.
///
/// # Errors
/// When the repository cannot be read.
pub async fn last_verified(cluster: &ClusterRepository) -> Result<LastVerified> {
    let (mut last, mut again) = (LastVerified::default(), LookedAgain::default());
    for (_, verified) in telling(cluster, records(cluster).await?).await? {
        let counts = !again.settles(&verified);
        if counts {
            last.add_damage(&verified, &again);
        }
        again.note(&verified);
        if verified.record.layers > 0 {
            last.of_layers.get_or_insert(verified.at());
        }
        if verified.record.label.is_some() {
            continue;
        }
        last.newest.get_or_insert_with(|| verified.clone());
        if verified.record.errors == 0 {
            last.clean.get_or_insert(verified);
        } else if counts {
            last.failed.push(verified);
        }
    }
    Ok(last)
}

/// Of these records those that can be read, with their keys, the newest first: back to where the newest of all layers that
/// found nothing began, and no more of all layers than [`KEPT`].
async fn telling(
    cluster: &ClusterRepository,
    records: Vec<ObjectInfo>,
) -> Result<Vec<(String, Verified)>> {
    let (mut telling, mut of_all) = (Vec::new(), 0);
    let mut clean_since: Option<Timestamp> = None;
    let may_tell = |since: Option<Timestamp>, stored_at| since.is_none_or(|at| stored_at >= at);
    let mut left = records.into_iter().rev().peekable();
    // Mostly the newest one is the last that is needed.
    let mut at_once = 1;
    while left
        .peek()
        .is_some_and(|next| may_tell(clean_since, next.modified))
    {
        let next: Vec<ObjectInfo> = left.by_ref().take(at_once).collect();
        at_once = READ_AT_ONCE;
        let read = next.into_iter().map(|object| read(cluster, object));
        for (key, verified) in future::try_join_all(read).await?.into_iter().flatten() {
            if !may_tell(clean_since, verified.stored_at) {
                return Ok(telling);
            }
            if verified.record.errors == 0 && verified.is_to_come() {
                continue;
            }
            let is_of_all = verified.record.label.is_none();
            of_all += usize::from(is_of_all);
            if is_of_all && verified.record.errors == 0 {
                clean_since = clean_since.max(Some(verified.began_at()));
            }
            telling.push((key, verified));
            if of_all == KEPT {
                return Ok(telling);
            }
        }
    }
    Ok(telling)
}

/// The record with its key; `None` when it cannot be read, or an expiry has removed it.
async fn read(
    cluster: &ClusterRepository,
    object: ObjectInfo,
) -> Result<Option<(String, Verified)>> {
    let ObjectInfo { key, modified, .. } = object;
    let Some(found) = cluster.repository.find_record(&key).await? else {
        return Ok(None);
    };
    match found.and_then(|object| Ok(verified::decode(&object)?)) {
        Ok(record) => Ok(Some((
            key,
            Verified {
                record,
                stored_at: modified,
            },
        ))),
        Err(error) => {
            tracing::warn!("could not read \"{key}\": {error}");
            Ok(None)
        }
    }
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

/// The keys of records whose time is still to come. What they have found counts until somebody forgets them: no other is later.
///
/// # Errors
/// When the repository cannot be read.
pub async fn verifications_to_come(cluster: &ClusterRepository) -> Result<Vec<String>> {
    let mut records = records(cluster).await?;
    records.retain(|record| is_to_come(record.modified));
    Ok(records.into_iter().map(|record| record.key).collect())
}

/// Removes these records, because everything was found in order by one that began when they were there.
///
/// # Errors
/// When the repository cannot be written.
pub async fn forget_verifications(cluster: &ClusterRepository, keys: &[String]) -> Result<()> {
    match keys.is_empty() {
        true => Ok(()),
        false => cluster.repository.delete_all(keys).await,
    }
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
    let of_all = telling.iter();
    let of_all = of_all.filter(|(_, verified)| verified.record.label.is_none());
    let mut needed: BTreeSet<String> = of_all.map(|(key, _)| key.clone()).collect();
    let mut again = LookedAgain::default();
    for (_, verified) in telling {
        again.note(verified);
    }
    // Since then, the oldest first: what has found damage, and what has found in order what was damaged before.
    let mut damaged = BTreeSet::new();
    let counting = telling.iter().rev();
    for (key, verified) in counting.filter(|(_, verified)| !again.settles(verified)) {
        let record = &verified.record;
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
