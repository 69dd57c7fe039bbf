//! Removing layers while others make new ones, and others remove.
//!
//! A removal has two objects. The remover announces what it wants to remove, then looks who may be making a layer and
//! which layers stand on which, then creates the verdict: what goes. Who makes a layer has claimed its label; then, and
//! again before its manifest, it withdraws every removal that has no verdict yet, by creating an empty one, and stands on
//! nothing that a verdict names.
//!
//! So of a remover that has not decided and a writer that has looked, one loses: the verdict is created once. A
//! claim that the remover did not see was made after its look, and so its maker finds the announcement. A claim that it
//! saw is young, and nothing goes; or it is fenced, and its maker cannot commit. However long either is stopped between
//! two steps, its next one fails. ADR 19 has the whole argument.
//!
//! What a verdict names is condemned: nobody stands on it any more. But a verdict has no authority beyond that. Whoever may
//! store objects can make one, so each process removes what it has decided on itself, by a verdict of its own. That of a
//! remover that was killed is forgotten when nothing is left of what it names. ADR 38 has the reasons.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::removal::{self, RemovalRecord, VerdictRecord, WalKept};
use pgstrata_pgdata::lsn::Lsn;

use super::abandon::{Fate, close};
use super::lease::{LEASE, StoreTime, at_work};
use super::mark::{self, AllMarks};
use super::presence::{WRITTEN_BY, hex, host_name};
use super::remove::{is_left, remove_layer};
use super::restoring::{self, InUse};
use super::retain::{describe_lock, locked_layers};
use super::{Catalog, Layer, WalLimit, old_wal};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// Attempts that are committed while we look are looked at again; each time one has ended.
const LOOKS: u32 = 100;

/// What became of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Layers that are gone: first those that others have removed meanwhile, then ours, newest first.
    pub labels: Vec<Label>,
    /// Why nothing was removed.
    pub notes: Vec<String>,
    /// Why some were not.
    pub remarks: Vec<String>,
}

/// What must hold for a removal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// The layer that has what is kept of them: must be there, and stay.
    pub instead: Option<&'a Label>,
    /// Whether what a restore may need goes too.
    pub ignore_restores: bool,
    /// Whether WAL goes that no layer needs then: of these layers nothing but the WAL that makes them consistent is
    /// needed.
    pub wal: Option<&'a HashSet<ParentRef>>,
}

/// What a removal has decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Verdict {
    layers: Vec<ParentRef>,
    wal_before: Option<Lsn>,
    wal_kept: Vec<WalKept>,
    /// Who decided, as the record says, for people; nobody when it is ours.
    by: String,
}

impl Verdict {
    /// Nothing goes: the removal is withdrawn.
    fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.wal_before.is_none()
    }
}

/// What is going away.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    pub(super) layers: BTreeSet<ParentRef>,
    /// Segments that end at or before this.
    pub(super) wal_before: Option<Lsn>,
}

/// A removal that was found.
struct AnnouncedRemoval {
    id: String,
    announced: Timestamp,
    verdict: Option<Verdict>,
}

/// A removal that somebody has decided on and not completed: he is at work, or was killed, or had no right to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRemoval {
    /// Its id.
    pub id: String,
    /// Who decided, and when, as he says himself; for people.
    pub by: String,
    /// The layers that it names.
    pub layers: Vec<ParentRef>,
    /// The WAL that it names.
    pub wal: Option<WalLimit>,
}

/// Removes those of `wanted` that no other layer needs, unless somebody is making a layer.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn remove_layers(
    cluster: &ClusterRepository,
    wanted: &[Arc<Layer>],
    terms: Terms<'_>,
) -> Result<Removed> {
    if wanted.is_empty() && terms.wal.is_none() {
        return Ok(Removed::default());
    }
    tidy_removals(cluster).await?;
    let removal = Removal::announce(cluster, wanted).await?;
    let (mut removed, verdict) = match removal.look(wanted, terms).await {
        Ok(seen) => seen,
        Err(error) => {
            removal.withdraw().await;
            return Err(error);
        }
    };
    if !verdict.is_empty() && cluster.repository.was_denied_deletion() {
        removal.withdraw().await;
        let what = "access denied: these credentials may not delete, so nothing is removed";
        return Err(Error::new(Kind::Repository, what)
            .hint("run it with credentials that may, those of the keeper"));
    }
    if verdict.is_empty() {
        removal.withdraw().await;
    } else if removal.decide(&verdict).await? {
        execute(cluster, &verdict).await?;
        removal.forget().await?;
        removed.labels.extend(labels(&verdict));
    } else {
        removal.withdraw().await;
        let note = "a layer has been begun, finished or pinned meanwhile, and may need what was to go: nothing is removed";
        removed.notes.push(note.to_owned());
    }
    Ok(removed)
}

/// Our own removal, announced.
struct Removal<'a> {
    cluster: &'a ClusterRepository,
    id: String,
}

impl<'a> Removal<'a> {
    async fn announce(cluster: &'a ClusterRepository, wanted: &[Arc<Layer>]) -> Result<Self> {
        let record = RemovalRecord {
            layers: wanted.iter().map(|layer| layer.reference()).collect(),
            host: host_name(),
            pid: std::process::id(),
            started_at: Timestamp::now(),
            written_by: WRITTEN_BY.to_owned(),
        };
        let id = hex(&rand::random::<[u8; 16]>());
        let body = Bytes::from(removal::encode(&record));
        cluster
            .repository
            .create(&cluster.name.removal_key(&id), body)
            .await?;
        Ok(Self { cluster, id })
    }

    /// What can go, and what there is to say. Others' removals are read before the layers: one that has ended since
    /// shows in the layers.
    async fn look(&self, wanted: &[Arc<Layer>], terms: Terms<'_>) -> Result<(Removed, Verdict)> {
        let cluster = &self.cluster;
        let now = StoreTime::ask(cluster).await?;
        let restores = match terms.ignore_restores {
            true => Vec::new(),
            false => restoring::in_use(cluster, now).await?,
        };
        // After the announcement: who pins a layer later finds that.
        let marks = mark::load(cluster).await?;
        for _ in 0..LOOKS {
            let leaving = self.others().await?;
            let catalog = Catalog::load(cluster).await?;
            let mut notes = at_work(&catalog, now);
            notes.extend(not_known(&catalog, &marks, now.timestamp()));
            if !notes.is_empty() {
                let removed = Removed {
                    notes,
                    ..Removed::default()
                };
                return Ok((removed, Verdict::default()));
            }
            let restores = restoring::still_going(&restores, &catalog);
            if self.fence(&catalog, &restores).await? {
                let kept = Spared {
                    restores: &restores,
                    marks: &marks,
                    locked: locked_layers(cluster, &catalog).await?,
                    now: now.timestamp(),
                };
                return what_goes(&catalog, wanted, terms, &leaving, &kept);
            }
        }
        let what = "layers are finished faster than they can be looked at";
        Err(Error::new(Kind::Busy, what).hint("run it again"))
    }

    /// Makes sure that nothing comes of any unfinished attempt; false when one of them has been committed. What a copy is to
    /// stand on stays as long as it may be completed, so it need not be given up.
    async fn fence(&self, catalog: &Catalog, restores: &[InUse]) -> Result<bool> {
        for unfinished in &catalog.unfinished {
            let label = &unfinished.label;
            if restoring::copied_by(unfinished, restores).is_some() {
                continue;
            }
            if !unfinished.abandoned && close(self.cluster, label).await? == Fate::Committed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The layers that others have decided to remove, or may.
    async fn others(&self) -> Result<BTreeSet<ParentRef>> {
        let mut leaving = BTreeSet::new();
        for found in load(self.cluster).await? {
            match found.verdict {
                _ if found.id == self.id => {}
                Some(verdict) => leaving.extend(verdict.layers),
                None => leaving.extend(wanted_by(self.cluster, &found.id).await?),
            }
        }
        Ok(leaving)
    }

    /// Creates the verdict; false when somebody has withdrawn the removal.
    async fn decide(&self, verdict: &Verdict) -> Result<bool> {
        let decided = decide(self.cluster, &self.id, verdict).await?;
        Ok(decided.is_none())
    }

    /// Takes a removal back of which we have not created the verdict, and never will.
    async fn withdraw(&self) {
        if let Err(error) = self.forget().await {
            tracing::warn!(%error, "could not take back the record of a removal: the next expiry does");
        }
    }

    /// When all that it names is gone, or it is withdrawn.
    async fn forget(&self) -> Result<()> {
        forget(self.cluster, &self.id).await
    }
}

/// Why nothing can be removed: what a damaged manifest stands on is not known, nor what a pinned layer does whose parent is
/// not there. What is left of its chain may yet be whole again.
pub fn not_known(catalog: &Catalog, marks: &AllMarks, now: Timestamp) -> Vec<String> {
    if !catalog.damaged.is_empty() {
        let damaged = catalog.damaged.iter();
        let notes = damaged.map(|(label, error)| {
            format!(
                "nothing is removed, because it is not known what layer {label} stands on: {error}"
            )
        });
        return notes.collect();
    }
    let broken = catalog.layers.iter().filter_map(|layer| {
        let error = catalog.chain_length(&layer.label).err()?;
        let pin = marks.pinned(catalog, layer, now)?.describe();
        Some(format!(
            "nothing is removed, because {error}, and {pin}; bring back what is lost from a copy of the repository, or take the \
             pin back with \"pgstrata unpin {}\"",
            layer.label
        ))
    });
    broken.collect()
}

/// What stays although it is not wanted.
struct Spared<'a> {
    restores: &'a [InUse],
    marks: &'a AllMarks,
    locked: HashMap<ParentRef, Timestamp>,
    now: Timestamp,
}

/// Pure: what of `wanted` goes.
fn what_goes(
    catalog: &Catalog,
    wanted: &[Arc<Layer>],
    terms: Terms<'_>,
    leaving: &BTreeSet<ParentRef>,
    kept: &Spared<'_>,
) -> Result<(Removed, Verdict)> {
    let mut removed = Removed::default();
    if let Some(instead) = terms.instead
        && leaving.contains(&catalog.layer(instead)?.reference())
    {
        let note =
            format!("layer {instead} is being removed by another process: nothing is removed");
        removed.notes.push(note);
        return Ok((removed, Verdict::default()));
    }
    let mut unwanted = Vec::new();
    let gone = wanted
        .iter()
        .filter(|layer| !catalog.layers.holds(&layer.reference()));
    removed.labels.extend(gone.map(|layer| layer.label.clone()));
    let wanted: HashSet<ParentRef> = wanted.iter().map(|layer| layer.reference()).collect();
    let needed = restoring::needed(kept.restores);
    for layer in &catalog.layers {
        let reference = layer.reference();
        if !wanted.contains(&reference) {
            continue;
        }
        let restore = needed.get(&reference).map(|found| found.describe());
        let pinned = || {
            let mark = kept.marks.pinned(catalog, layer, kept.now);
            mark.map(|mark| mark.describe())
        };
        let locked = || kept.locked.get(&reference).copied().map(describe_lock);
        match restore.or_else(pinned).or_else(locked) {
            Some(why) => removed
                .remarks
                .push(format!("layer {} stays: {why}", layer.label)),
            None => unwanted.push(layer.label.clone()),
        }
    }
    let labels = catalog.removable_beside(&unwanted, leaving);
    let references = labels
        .iter()
        .map(|label| Ok(catalog.layer(label)?.reference()));
    let limit = terms
        .wal
        .and_then(|own_alone| WalLimit::of(catalog, &labels, own_alone, kept.restores));
    let verdict = Verdict {
        layers: references.collect::<Result<_>>()?,
        wal_before: limit.as_ref().map(|limit| limit.before),
        wal_kept: limit.map(|limit| limit.kept).unwrap_or_default(),
        by: String::new(),
    };
    Ok((removed, verdict))
}

/// What others have decided to remove and not completed. Changes nothing.
///
/// # Errors
/// When the repository cannot be read, or a record of them is damaged.
pub async fn pending_removals(cluster: &ClusterRepository) -> Result<Vec<PendingRemoval>> {
    let mut decided = Vec::new();
    for found in load(cluster).await? {
        match found.verdict {
            Some(verdict) if verdict.is_empty() => {}
            Some(verdict) => decided.push(PendingRemoval::new(found.id, verdict)),
            // Who removes must read it, so who plans says when that is not possible.
            None => {
                wanted_by(cluster, &found.id).await?;
            }
        }
    }
    Ok(decided)
}

impl PendingRemoval {
    fn new(id: String, verdict: Verdict) -> Self {
        let kept = verdict.wal_kept;
        Self {
            id,
            by: verdict.by,
            layers: verdict.layers,
            wal: verdict.wal_before.map(|before| WalLimit { before, kept }),
        }
    }

    /// The layers that it names, of whose names can be labels.
    pub fn labels(&self) -> impl Iterator<Item = Label> {
        let layers = self.layers.iter();
        layers.filter_map(|layer| Label::parse(&layer.label))
    }

    /// Whether nothing is left of what it names.
    async fn is_complete(&self, cluster: &ClusterRepository) -> Result<bool> {
        for layer in &self.layers {
            if is_left(cluster, layer).await? {
                return Ok(false);
            }
        }
        match &self.wal {
            Some(limit) => Ok(old_wal::find(cluster, limit).await?.is_empty()),
            None => Ok(true),
        }
    }
}

/// Forgets the removals of others of which nothing is left to do, and withdraws what they have announced long ago and not
/// decided. Removes nothing else: what a verdict of another names goes when we have decided so ourselves.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn tidy_removals(cluster: &ClusterRepository) -> Result<()> {
    let found = load(cluster).await?;
    if found.is_empty() {
        return Ok(());
    }
    let now = StoreTime::ask(cluster).await?;
    for found in found {
        let verdict = match found.verdict {
            Some(verdict) => verdict,
            None if now.since(found.announced) <= LEASE => continue,
            None => decide(cluster, &found.id, &Verdict::default())
                .await?
                .unwrap_or_default(),
        };
        if verdict.is_empty() {
            // The verdict stays: its remover may only have been stopped, and must find it.
            cluster
                .repository
                .delete(&cluster.name.removal_key(&found.id))
                .await?;
            continue;
        }
        let pending = PendingRemoval::new(found.id, verdict);
        if pending.is_complete(cluster).await? {
            tracing::info!(
                removal = pending.id,
                by = pending.by,
                "a removal that was not completed is complete now"
            );
            forget(cluster, &pending.id).await?;
        }
    }
    Ok(())
}

/// What somebody has decided to remove; nobody will decide on anything else after this, but who sees our claim.
/// To be called by who has claimed a label.
///
/// # Errors
/// When the repository cannot be read or written.
pub(super) async fn leaving(cluster: &ClusterRepository) -> Result<Leaving> {
    let mut leaving = Leaving::default();
    for found in load(cluster).await? {
        let verdict = match found.verdict {
            Some(verdict) => verdict,
            None => decide(cluster, &found.id, &Verdict::default())
                .await?
                .unwrap_or_default(),
        };
        leaving.layers.extend(verdict.layers);
        leaving.wal_before = leaving.wal_before.max(verdict.wal_before);
    }
    Ok(leaving)
}

/// Layers that somebody has decided to remove, as far as that can be read. Changes nothing.
///
/// # Errors
/// When the repository cannot be read.
pub async fn being_removed(cluster: &ClusterRepository) -> Result<BTreeSet<Label>> {
    let found = match load(cluster).await {
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
            tracing::warn!("{error}");
            return Ok(BTreeSet::new());
        }
        found => found?,
    };
    let verdicts = found.iter().filter_map(|found| found.verdict.as_ref());
    Ok(verdicts.flat_map(labels).collect())
}

/// Creates the verdict of a removal: what goes, or nothing. `None` when it is that; otherwise what somebody else has
/// decided before.
async fn decide(
    cluster: &ClusterRepository,
    id: &str,
    verdict: &Verdict,
) -> Result<Option<Verdict>> {
    let record = VerdictRecord {
        layers: verdict.layers.clone(),
        wal_before: verdict.wal_before,
        wal_kept: verdict.wal_kept.clone(),
        host: host_name(),
        pid: std::process::id(),
        decided_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let key = cluster.name.verdict_key(id);
    let body = Bytes::from(removal::encode_verdict(&record));
    match cluster.repository.create(&key, body).await {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == Kind::AlreadyExists => {
            let found = verdict_of(cluster, id).await?;
            Ok(Some(found.unwrap_or_default()))
        }
        Err(error) => Err(error),
    }
}

/// The verdict of a removal, if there is one. One that has been completed meanwhile is gone.
async fn verdict_of(cluster: &ClusterRepository, id: &str) -> Result<Option<Verdict>> {
    let key = cluster.name.verdict_key(id);
    match cluster.repository.find_record(&key).await? {
        Some(object) => {
            let decoded = object.and_then(|object| Ok(removal::decode_verdict(&object)?));
            let record = decoded.map_err(|error| unreadable(error, &key))?;
            Ok(Some(Verdict {
                layers: record.layers,
                wal_before: record.wal_before,
                wal_kept: record.wal_kept,
                by: format!(
                    "process {} on \"{}\" at {}",
                    record.pid, record.host, record.decided_at
                ),
            }))
        }
        None => Ok(None),
    }
}

fn unreadable(error: Error, key: &str) -> Error {
    error
        .while_doing(format!("could not read \"{key}\""))
        .hint("when no expiry and no merge runs anywhere, this object can be deleted")
}

/// What a removal has announced; nothing when it has ended.
async fn wanted_by(cluster: &ClusterRepository, id: &str) -> Result<Vec<ParentRef>> {
    let key = cluster.name.removal_key(id);
    let Some(object) = cluster.repository.find_record(&key).await? else {
        return Ok(Vec::new());
    };
    let wanted = object.and_then(|object| Ok(removal::decode(&object)?));
    Ok(wanted.map_err(|error| unreadable(error, &key))?.layers)
}

/// All removals that are announced. One whose announcement is gone has ended.
async fn load(cluster: &ClusterRepository) -> Result<Vec<AnnouncedRemoval>> {
    let prefix = cluster.name.removals_prefix();
    let mut found = Vec::new();
    for object in cluster.repository.list(&prefix).await? {
        let rest = object.key[prefix.len()..].trim_start_matches('/');
        if let Some((id, "wanted")) = rest.split_once('/') {
            found.push(AnnouncedRemoval {
                id: id.to_owned(),
                announced: object.modified,
                verdict: verdict_of(cluster, id).await?,
            });
        }
    }
    Ok(found)
}

/// Removes what a verdict names, in its order.
async fn execute(cluster: &ClusterRepository, verdict: &Verdict) -> Result<()> {
    for layer in &verdict.layers {
        remove_layer(cluster, layer).await?;
    }
    match verdict.wal_before {
        Some(before) => {
            let kept = verdict.wal_kept.clone();
            old_wal::remove(cluster, &WalLimit { before, kept }).await
        }
        None => Ok(()),
    }
}

/// The announcement first: a verdict alone means nothing to anybody but the remover.
async fn forget(cluster: &ClusterRepository, id: &str) -> Result<()> {
    cluster
        .repository
        .delete(&cluster.name.removal_key(id))
        .await?;
    cluster
        .repository
        .delete(&cluster.name.verdict_key(id))
        .await
}

fn labels(verdict: &Verdict) -> Vec<Label> {
    let parsed = verdict
        .layers
        .iter()
        .filter_map(|layer| Label::parse(&layer.label));
    parsed.collect()
}
