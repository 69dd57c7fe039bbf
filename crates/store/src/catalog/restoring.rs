//! Restores that are going on, as the repository knows them: which layers and WAL somebody needs.
//!
//! A restore says at its start what it needs, and gives a sign of life every hour while it copies. Nothing tells when
//! recovery has ended, so what it needs is kept for a day after the last sign; then the record is forgotten.
//!
//! A sign that the store has dated far ahead, while its clock was wrong, says nothing of when it was given. Until that time has
//! come the record counts: only who ignores restores forgets it before.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::restoring::{self, RestoreRecord};
use pgstrata_pgdata::lsn::Lsn;

use super::lease::{Beats, Heartbeat, LEASE, StoreTime};
use super::{Catalog, Unfinished, hex};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Result};

/// How long after its last sign of life a restore keeps what it needs: recovery of a day's WAL is done by then.
pub const RESTORE_LEASE: SignedDuration = SignedDuration::from_hours(24);

/// How long after its last sign of life a copy of a layer into this repository keeps what it is to stand on, and its label:
/// who copies once a day has missed it some times by then.
pub const COPY_LEASE: SignedDuration = SignedDuration::from_hours(7 * 24);

const BEAT_EVERY: Duration = Duration::from_secs(3600);

/// A restore that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its id.
    pub id: String,
    /// What it needs.
    pub record: RestoreRecord,
    /// Since its last sign of life.
    pub age: SignedDuration,
}

/// For each layer that restores need the first of these.
pub fn needed(restores: &[InUse]) -> HashMap<&ParentRef, &InUse> {
    let mut needed = HashMap::new();
    for found in restores {
        for layer in &found.record.layers {
            needed.entry(layer).or_insert(found);
        }
    }
    needed
}

impl InUse {
    /// For people.
    pub fn describe(&self) -> String {
        let (record, last_sign) = (&self.record, self.last_sign());
        if record.is_copy() {
            return format!(
                "the {} by \"{}\", begun at {}, needs it ({last_sign}; repeat the copy to complete it; --ignore-restores gives it up)",
                record.directory, record.host, record.started_at
            );
        }
        format!(
            "the restore to \"{}\" on \"{}\", begun at {}, may need it ({last_sign}; --ignore-restores removes it all the same)",
            record.directory, record.host, record.started_at
        )
    }

    /// When it gave its last sign of life, for people.
    fn last_sign(&self) -> String {
        if restore_is_dated_ahead(self.age) {
            let hours = (-self.age).as_hours();
            return format!(
                "when it gave its last sign of life is not known: the store has dated that {hours} hours ahead"
            );
        }
        let minutes = self.age.as_mins().max(0);
        let (hours, minutes) = (minutes / 60, minutes % 60);
        format!("last sign of life {hours} hours {minutes} minutes ago")
    }
}

/// Whether what has that age was dated by a clock that was wrong, or is: by more than a clock may have been put back.
#[must_use]
pub fn restore_is_dated_ahead(age: SignedDuration) -> bool {
    age < -LEASE
}

/// How long after its last sign of life something is kept.
pub fn lease_of(record: &RestoreRecord) -> SignedDuration {
    match record.is_copy() {
        true => COPY_LEASE,
        false => RESTORE_LEASE,
    }
}

/// The copy that has left this attempt, of a layer that is there in another repository, when somebody may complete it.
#[must_use]
pub fn copied_by<'a>(attempt: &Unfinished, restores: &'a [InUse]) -> Option<&'a InUse> {
    let claim = attempt.claim.as_ref()?;
    let mut records = restores.iter().filter(|found| found.record.is_copy());
    records.find(|copy| copies(&copy.id, &claim.layer_id))
}

/// Those of `restores` that may still need something, when `catalog` was read after them: the copy of a layer that is there
/// has ended, also where nobody could remove its record.
#[must_use]
pub fn still_going(restores: &[InUse], catalog: &Catalog) -> Vec<InUse> {
    let has_ended = |found: &&InUse| has_ended(&found.id, &found.record, catalog);
    let going = restores.iter().filter(|found| !has_ended(found));
    going.cloned().collect()
}

/// Whether that is the record of a copy of a layer that is there.
fn has_ended(id: &str, record: &RestoreRecord, catalog: &Catalog) -> bool {
    let mut layers = catalog.layers.iter();
    record.is_copy() && layers.any(|layer| copies(id, &layer.manifest.layer_id))
}

/// Whether that is the id of the record of a copy of the layer with that id.
fn copies(id: &str, layer_id: &str) -> bool {
    let rest = id.strip_prefix(layer_id);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Restores that may still need something, oldest first. A record that nobody can read counts for as long as any would.
///
/// # Errors
/// When the repository cannot be read, or a record of them is damaged.
pub async fn in_use(cluster: &ClusterRepository, now: StoreTime) -> Result<Vec<InUse>> {
    let mut restores = Vec::new();
    for found in find(cluster).await? {
        let (id, age) = (found.id, now.since(found.modified));
        match found.record {
            Some(Ok(record)) if age <= lease_of(&record) => {
                restores.push(InUse { id, record, age });
            }
            Some(Err(error)) if age <= COPY_LEASE => return Err(error),
            // Whatever it needed, it needs it no more.
            _ => {}
        }
    }
    restores.sort_by_key(|found| found.record.started_at);
    Ok(restores)
}

/// Forgets restores that have given no sign of life for long, and copies of layers of `catalog`, which are there. What it needs
/// whose record nobody can read is not known, so that counts for as long as any would. Who has restores ignored also forgets
/// those of which a wrong clock of the store has dated the last sign: they would count until then.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn forget_old(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    now: StoreTime,
    ignore_restores: bool,
) -> Result<()> {
    let found = find(cluster).await?;
    let is_ahead =
        |one: &FoundRestore, now: StoreTime| restore_is_dated_ahead(now.since(one.modified));
    // Who was held up since he asked would take for dated ahead what was stored meanwhile.
    let after = match ignore_restores && found.iter().any(|one| is_ahead(one, now)) {
        true => StoreTime::ask(cluster).await?,
        false => now,
    };
    for one in &found {
        let record = one.record.as_ref().and_then(|record| record.as_ref().ok());
        let lease = record.map_or(COPY_LEASE, lease_of);
        let is_over = now.since(one.modified) > lease
            || record.is_some_and(|record| has_ended(&one.id, record, catalog));
        if is_over || ignore_restores && is_ahead(one, after) {
            forget(cluster, &one.id).await?;
        }
    }
    Ok(())
}

async fn forget(cluster: &ClusterRepository, id: &str) -> Result<()> {
    let prefix = format!("{}/{id}", cluster.name.restores_prefix());
    let objects = cluster.repository.list(&prefix).await?.into_iter();
    let keys: Vec<String> = objects.map(|object| object.key).collect();
    cluster.repository.delete_all(&keys).await
}

/// Forgets those records of copies of the layer with that id that `go`, a choice among all records.
async fn forget_copies(
    cluster: &ClusterRepository,
    layer_id: &str,
    go: impl Fn(&[(String, Timestamp)], &str) -> bool,
) {
    let forgetting = async {
        let all = ids(cluster).await?;
        let copies = all.iter().filter(|(id, _)| copies(id, layer_id));
        for (id, _) in copies.filter(|(id, _)| go(&all, id)) {
            forget(cluster, id).await?;
        }
        Ok::<(), Error>(())
    };
    if let Err(error) = forgetting.await {
        tracing::debug!(%error, "the records of copies stay, and are forgotten in some days");
    }
}

/// Pure: whether the record `own` stands in for `other`, of a copy of the same layer. Of two copies that begin at once one
/// stands in for the other, or each would forget the other's record, and nothing keep what both need.
fn stands_in(all: &[(String, Timestamp)], own: &str, other: &str) -> bool {
    let modified = |id: &str| {
        let found = all.iter().find(|(one, _)| one == id);
        found.map(|(_, modified)| *modified)
    };
    // Who has forgotten ours stands in for us.
    let (Some(now), Some(last)) = (modified(own), modified(other)) else {
        return false;
    };
    other != own && (other > own || now.duration_since(last) > LEASE)
}

/// Each restore, and when the last of its objects was written.
async fn ids(cluster: &ClusterRepository) -> Result<Vec<(String, Timestamp)>> {
    let prefix = cluster.name.restores_prefix();
    let mut ids: Vec<(String, Timestamp)> = Vec::new();
    for object in cluster.repository.list(&prefix).await? {
        let rest = object.key[prefix.len()..].trim_start_matches('/');
        let Some((id, _)) = rest.split_once('/') else {
            continue;
        };
        match ids.last_mut() {
            Some((last, modified)) if last == id => *modified = object.modified.max(*modified),
            _ => ids.push((id.to_owned(), object.modified)),
        }
    }
    Ok(ids)
}

/// What the repository has of a restore.
struct FoundRestore {
    id: String,
    /// When the last of its objects was written.
    modified: Timestamp,
    /// What it needs, or why nobody can read that. Nothing when the record was forgotten in the meantime, or a late sign of life
    /// alone is there.
    record: Option<Result<RestoreRecord>>,
}

async fn find(cluster: &ClusterRepository) -> Result<Vec<FoundRestore>> {
    let mut found = Vec::new();
    for (id, modified) in ids(cluster).await? {
        let key = cluster.name.restore_key(&id);
        let stored = match cluster.repository.find_record(&key).await? {
            Some(Ok(stored)) => {
                let sealing = cluster.sealing().await?;
                Some(sealing.open_record(&cluster.name, &key, stored))
            }
            stored => stored,
        };
        let decoded = stored.map(|stored| stored.and_then(|object| decode(&object, &key)));
        found.push(FoundRestore {
            record: decoded,
            id,
            modified,
        });
    }
    Ok(found)
}

fn decode(object: &[u8], key: &str) -> Result<RestoreRecord> {
    restoring::decode(object).map_err(|error| {
        Error::from(error)
            .while_doing(format!("could not read \"{key}\""))
            .hint("when no restore is going on, this object can be deleted")
    })
}

/// The record as it is stored: it tells a directory and a position, which nobody needs to see.
async fn sealed(cluster: &ClusterRepository, key: &str, record: &RestoreRecord) -> Result<Bytes> {
    let raw = restoring::encode(record);
    cluster
        .sealing()
        .await?
        .seal_record(&cluster.name, key, raw)
}

/// The oldest WAL that restores need.
pub(super) fn wal_needed(restores: &[InUse]) -> Option<Lsn> {
    restores.iter().map(|found| found.record.start_lsn).min()
}

/// Our own restore.
#[derive(Debug)]
pub struct Restoring {
    cluster: ClusterRepository,
    id: String,
    heart: Heartbeat,
}

impl Restoring {
    /// Says what a restore needs.
    ///
    /// # Errors
    /// When the repository cannot be written; the restore can go on without.
    pub async fn begin(cluster: &ClusterRepository, record: &RestoreRecord) -> Result<Self> {
        let id = hex(&rand::random::<[u8; 16]>());
        let key = cluster.name.restore_key(&id);
        let body = sealed(cluster, &key, record).await?;
        cluster.repository.create(&key, body.clone()).await?;
        Ok(Self::keep(cluster, id, body))
    }

    /// Says what the copy of the layer with that id into this repository needs. The first layer of
    /// `record` is the one that is copied; it stands on the others.
    ///
    /// # Errors
    /// When the repository cannot be written.
    pub async fn begin_copy(
        cluster: &ClusterRepository,
        layer_id: &str,
        record: &RestoreRecord,
    ) -> Result<Self> {
        // A name of its own: some stores do not give a name again under which something was deleted.
        let id = format!("{layer_id}-{}", hex(&rand::random::<[u8; 8]>()));
        let key = cluster.name.restore_key(&id);
        let body = sealed(cluster, &key, record).await?;
        cluster.repository.create(&key, body.clone()).await?;
        Ok(Self::keep(cluster, id, body))
    }

    /// Forgets what other copies of the layer with that id have said, as far as this one stands in for them: what was said
    /// long ago, and of what was said just now that with a greater id.
    pub async fn stand_in(&self, layer_id: &str) {
        forget_copies(&self.cluster, layer_id, |all, other| {
            stands_in(all, &self.id, other)
        })
        .await;
    }

    /// The layer with that id is there: no copy of it needs anything any more.
    pub async fn done(self, layer_id: &str) {
        self.heart.stop().await;
        forget_copies(&self.cluster, layer_id, |_, _| true).await;
    }

    fn keep(cluster: &ClusterRepository, id: String, body: Bytes) -> Self {
        let (name, beats_id) = (cluster.name.clone(), id.clone());
        let beats = Beats {
            repository: cluster.repository.clone(),
            key: Box::new(move |number| name.restore_beat_key(&beats_id, number)),
            body,
            every: BEAT_EVERY,
            count: AtomicU32::new(0),
            own: Mutex::default(),
            may_be_there: false,
        };
        Self {
            cluster: cluster.clone(),
            id,
            heart: Heartbeat::start(beats, async || false),
        }
    }

    /// The copy is there; recovery begins now, and may take its time.
    pub async fn copied(self) {
        self.heart.stop().await;
    }

    /// Nothing will be recovered, or all is copied.
    pub async fn failed(self) {
        self.heart.stop().await;
        if let Err(error) = forget(&self.cluster, &self.id).await {
            tracing::debug!(%error, "the record of this restore stays, and is forgotten in a day");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_copies_that_begin_at_once_the_record_of_one_stays() {
        let at = |minutes| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let record = |id: &str, minutes| (id.to_owned(), at(minutes));
        let all = [
            record("layer-1", 100),
            record("layer-2", 101),
            record("layer-0", 80),
        ];
        assert!(stands_in(&all, "layer-1", "layer-2"));
        assert!(!stands_in(&all, "layer-2", "layer-1"));
        assert!(stands_in(&all, "layer-2", "layer-0"), "it is old");
        assert!(!stands_in(&all, "layer-1", "layer-1"));
        // Another one has forgotten it.
        assert!(!stands_in(&all, "layer-3", "layer-4"));
    }
}
