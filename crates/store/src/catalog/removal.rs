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
//! store objects can make one, so each process removes what it has decided on itself, by a verdict of its own. ADR 38 has
//! the reasons.
//!
//! When nothing is left of what another remover's verdict names, its announcement is forgotten. He may only have been
//! stopped, and what he was to remove may come back under its old name: a copy does that. So he looks for his announcement
//! between two removals, and what was on its way when he was stopped is why the verdict stays a day longer: no copy brings
//! back what it names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::removal::{self, RemovalRecord, VerdictRecord, WalKept};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;

use super::abandon::{Fate, close};
use super::lease::{LEASE, StoreTime, WhenLooked, at_work};
use super::mark::{self, AllMarks};
use super::presence::{WRITTEN_BY, hex, host_name};
use super::remove::{is_left, remove_layer};
use super::restoring::{self, InUse};
use super::retain::{describe_lock, locked_layers};
use super::{Catalog, Layer, OldWal, WalLimit, not_known, old_wal};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

/// Attempts that are committed while we look are looked at again; each time one has ended.
const LOOKS: u32 = 100;

/// How long after its decision a removal that others have completed keeps copies away. Between its look and the deletion that
/// follows its remover needs a second: hardly anybody is stopped just there, and for a day.
const COMPLETED_STAYS: SignedDuration = SignedDuration::from_hours(24);

/// What became of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Layers that are gone: first those that others have removed meanwhile, then ours, newest first.
    pub labels: Vec<Label>,
    /// Files of WAL that are gone.
    pub wal: Vec<OldWal>,
    /// What of WAL ended at or before this was to go, if any was.
    pub wal_before: Option<Lsn>,
    /// Why nothing was removed.
    pub notes: Vec<String>,
    /// Why some were not.
    pub remarks: Vec<String>,
}

/// Of those layers of the catalog that are to go, the ones that must stay when just these go, each with why.
pub type Witnesses<'a> = &'a (dyn Fn(&Catalog, &[Label]) -> Vec<(Label, String)> + Sync);

/// What must hold for a removal.
#[derive(Clone, Copy, Default)]
pub struct Terms<'a> {
    /// The layer that has what is kept of them: must be there, and stay.
    pub instead: Option<&'a Label>,
    /// Whether what a restore may need goes too.
    pub ignore_restores: bool,
    /// Whether WAL goes that no layer needs then: of these layers nothing but the WAL that makes them consistent is
    /// needed.
    pub wal: Option<&'a HashSet<ParentRef>>,
    /// What stays because of what others spare: it is asked about what really goes.
    pub witnesses: Option<Witnesses<'a>>,
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

    /// The WAL that goes.
    fn limit(&self) -> Option<WalLimit> {
        let kept = self.wal_kept.clone();
        self.wal_before.map(|before| WalLimit { before, kept })
    }

    /// Whether the layer goes, or WAL that it may need.
    fn concerns(&self, layer: &Layer) -> bool {
        let start = layer.manifest.start_lsn;
        let without_wal = self.wal_before.is_some_and(|before| start < before);
        without_wal || self.layers.contains(&layer.reference())
    }
}

/// What is going away.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    pub(super) layers: BTreeSet<ParentRef>,
    /// Segments that end at or before this, and the id of the removal that names them.
    pub(super) wal_before: Option<(Lsn, String)>,
    /// Ids of removals that others have completed.
    completed: Vec<String>,
}

/// What a look has found out.
#[derive(Default)]
struct LookedAt {
    removed: Removed,
    verdict: Verdict,
    /// The WAL that goes. What comes later stays.
    wal: Vec<OldWal>,
    /// The timelines that there are. What of one that comes later lies before that WAL stays promised.
    timelines: BTreeSet<TimelineId>,
}

/// The removals that are on record.
#[derive(Default)]
struct Removals {
    announced: Vec<AnnouncedRemoval>,
    /// Those of which the verdict alone is left, by their ids, and when it was created: others have completed or withdrawn
    /// them.
    completed: Vec<(String, Timestamp)>,
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
    let mut seen = match removal.look(wanted, terms).await {
        Ok(seen) => seen,
        Err(error) => {
            removal.withdraw().await;
            return Err(error);
        }
    };
    let (mut removed, verdict) = (std::mem::take(&mut seen.removed), &seen.verdict);
    if !verdict.is_empty() && cluster.repository.was_denied_deletion() {
        removal.withdraw().await;
        let what = "access denied: these credentials may not delete, so nothing is removed";
        return Err(Error::new(Kind::Repository, what)
            .hint("run it with credentials that may, those of the keeper"));
    }
    if verdict.is_empty() {
        removal.withdraw().await;
    } else if removal.decide(verdict).await? {
        removal.execute(&seen).await?;
        removal.forget().await?;
        removed.labels.extend(labels(verdict));
        removed.wal_before = verdict.wal_before;
        removed.wal = seen.wal;
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
    async fn look(&self, wanted: &[Arc<Layer>], terms: Terms<'_>) -> Result<LookedAt> {
        let cluster = &self.cluster;
        let now = StoreTime::ask(cluster).await?;
        // A clock that is ahead ends no pin.
        let pins_at = now.or_earlier();
        let restores = match terms.ignore_restores {
            true => Vec::new(),
            false => restoring::in_use(cluster, now).await?,
        };
        // After the announcement: who pins a layer later finds that.
        let marks = mark::load(cluster).await?;
        for _ in 0..LOOKS {
            let leaving = self.others().await?;
            let catalog = Catalog::load(cluster).await?;
            let mut notes = at_work(&catalog, WhenLooked::at(cluster, &catalog, now).await?);
            notes.extend(not_known(&catalog, &marks, pins_at));
            if !notes.is_empty() {
                let removed = Removed {
                    notes,
                    ..Removed::default()
                };
                return Ok(LookedAt {
                    removed,
                    ..LookedAt::default()
                });
            }
            let restores = restoring::still_going(&restores, &catalog);
            if self.fence(&catalog, &restores).await? {
                let kept = Spared {
                    restores: &restores,
                    marks: &marks,
                    locked: locked_layers(cluster, &catalog).await?,
                    now: pins_at,
                };
                let (removed, verdict) = what_goes(&catalog, wanted, terms, &leaving, &kept)?;
                let mut seen = LookedAt {
                    removed,
                    verdict,
                    ..LookedAt::default()
                };
                if let Some(limit) = seen.verdict.limit() {
                    seen.timelines = old_wal::timelines(cluster).await?;
                    seen.wal = old_wal::find(cluster, &limit).await?;
                    let found = seen.wal.iter().map(|found| found.segment.timeline);
                    let kept = limit.kept.iter().map(|kept| kept.timeline);
                    seen.timelines.extend(found.chain(kept));
                }
                return Ok(seen);
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
        for found in load(self.cluster).await?.announced {
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

    /// Removes what our verdict names, in its order, as long as nobody else has completed it.
    async fn execute(&self, seen: &LookedAt) -> Result<()> {
        let verdict = &seen.verdict;
        for layer in &verdict.layers {
            self.require_standing().await?;
            remove_layer(self.cluster, layer).await?;
        }
        let Some(limit) = verdict.limit() else {
            return Ok(());
        };
        self.require_standing().await?;
        old_wal::release(self.cluster, &limit, &seen.timelines).await?;
        for keys in old_wal::batches(self.cluster, &seen.wal) {
            self.require_standing().await?;
            self.cluster.repository.delete_all(&keys).await?;
        }
        Ok(())
    }

    /// Refuses to go on when others have completed the removal, and forgotten its announcement: what is there now may have
    /// come since.
    async fn require_standing(&self) -> Result<()> {
        let key = self.cluster.name.removal_key(&self.id);
        if self.cluster.repository.size(&key).await?.is_some() {
            return Ok(());
        }
        // We remove nothing more, so the verdict need not keep copies away.
        self.withdraw().await;
        let what = "another expiry or merge has completed this removal meanwhile";
        Err(Error::new(Kind::Busy, what).hint("run it again: it looks at what is there now"))
    }

    /// Takes a removal back of which we have not created the verdict, and never will, or that others have completed.
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

/// What stays although it is not wanted.
struct Spared<'a> {
    restores: &'a [InUse],
    marks: &'a AllMarks,
    locked: HashMap<ParentRef, Timestamp>,
    now: Timestamp,
}

/// Pure: what goes of `unwanted` when what is `removable` of it does, and what stays because `witnesses` of that must, each with
/// why.
pub fn without_witnesses(
    mut unwanted: Vec<Label>,
    removable: impl Fn(&[Label]) -> Vec<Label>,
    witnesses: impl Fn(&[Label]) -> Vec<(Label, String)>,
) -> (Vec<Label>, Vec<(Label, String)>) {
    let mut stays = Vec::new();
    loop {
        let going = removable(&unwanted);
        let told = witnesses(&going);
        if told.is_empty() {
            return (going, stays);
        }
        unwanted.retain(|label| !told.iter().any(|(witness, _)| witness == label));
        stays.extend(told);
    }
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
    let (labels, told) = without_witnesses(
        unwanted,
        |unwanted| catalog.removable_beside(unwanted, leaving),
        |going| {
            let told = terms.witnesses.map(|find| find(catalog, going));
            told.unwrap_or_default()
        },
    );
    let told = told.into_iter();
    let told = told.map(|(witness, why)| format!("layer {witness} stays: {why}"));
    removed.remarks.extend(told);
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
    for found in load(cluster).await?.announced {
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
        Self {
            id,
            wal: verdict.limit(),
            by: verdict.by,
            layers: verdict.layers,
        }
    }

    /// The layers that it names, of whose names can be labels.
    pub fn labels(&self) -> impl Iterator<Item = Label> {
        let layers = self.layers.iter();
        layers.filter_map(|layer| Label::parse(&layer.label))
    }

    /// Whether it names nothing.
    fn is_withdrawn(&self) -> bool {
        self.layers.is_empty() && self.wal.is_none()
    }

    /// Whether nothing is left of what it names.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn is_complete(&self, cluster: &ClusterRepository) -> Result<bool> {
        for layer in &self.layers {
            if is_left(cluster, layer).await? {
                return Ok(false);
            }
        }
        Ok(self.wal_left(cluster).await?.is_empty())
    }
}

/// Forgets the removals of others of which nothing is left to do, and withdraws what they have announced long ago and not
/// decided. Removes nothing else: what a verdict of another names goes when we have decided so ourselves.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn tidy_removals(cluster: &ClusterRepository) -> Result<()> {
    let found = load(cluster).await?;
    if found.announced.is_empty() && found.completed.is_empty() {
        return Ok(());
    }
    let now = StoreTime::ask(cluster).await?;
    for found in found.announced {
        let verdict = match found.verdict {
            Some(verdict) => verdict,
            None if now.since(found.announced) <= LEASE => continue,
            None => decide(cluster, &found.id, &Verdict::default())
                .await?
                .unwrap_or_default(),
        };
        let pending = PendingRemoval::new(found.id, verdict);
        if !pending.is_complete(cluster).await? {
            continue;
        }
        // The verdict stays: its remover may only have been stopped. One that is withdrawn he must find, and one that others
        // have completed keeps copies away.
        let key = cluster.name.removal_key(&pending.id);
        cluster.repository.delete(&key).await?;
        if !pending.is_withdrawn() {
            tracing::info!(
                removal = pending.id,
                by = pending.by,
                "a removal that was not completed is complete now"
            );
        }
    }
    for (id, decided) in found.completed {
        if now.since(decided) > COMPLETED_STAYS {
            forget_completed(cluster, &id).await?;
        }
    }
    Ok(())
}

/// Forgets a verdict that stands alone, unless its remover has yet to find that he was withdrawn. What cannot be read may be
/// such a one, and means nothing to others.
async fn forget_completed(cluster: &ClusterRepository, id: &str) -> Result<()> {
    match verdict_of(cluster, id).await {
        Ok(Some(verdict)) if !verdict.is_empty() => forget(cluster, id).await,
        Ok(_) => Ok(()),
        Err(error) if error.is_of_one_object() => {
            tracing::debug!(%error, "the verdict of a removal that has ended stays");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// What somebody has decided to remove; nobody will decide on anything else after this, but who sees our claim.
/// To be called by who has claimed a label.
///
/// # Errors
/// When the repository cannot be read or written.
pub(super) async fn leaving(cluster: &ClusterRepository) -> Result<Leaving> {
    let mut found = load(cluster).await?;
    for undecided in found
        .announced
        .iter_mut()
        .filter(|one| one.verdict.is_none())
    {
        undecided.verdict = decide(cluster, &undecided.id, &Verdict::default()).await?;
    }
    Ok(found.into())
}

/// The same, for who may not write: what is announced may yet be decided.
///
/// # Errors
/// When the repository cannot be read.
pub(super) async fn leaving_so_far(cluster: &ClusterRepository) -> Result<Leaving> {
    load(cluster).await.map(Leaving::from)
}

impl Leaving {
    /// Whether somebody has decided that the layer goes.
    pub(super) fn names(&self, layer: &Layer) -> bool {
        self.layers.contains(&layer.reference())
    }
}

impl From<Removals> for Leaving {
    fn from(found: Removals) -> Self {
        let completed = found.completed.into_iter().map(|(id, _)| id);
        let mut leaving = Leaving {
            completed: completed.collect(),
            ..Leaving::default()
        };
        for one in found.announced {
            let Some(verdict) = one.verdict else { continue };
            leaving.layers.extend(verdict.layers);
            let before = verdict.wal_before.map(|before| (before, one.id));
            leaving.wal_before = leaving.wal_before.max(before);
        }
        leaving
    }
}

/// Refuses a layer that is to come back under its old label while somebody may still remove what he has decided on before:
/// he knows the layer and its WAL by their names alone. `leaving` is of the time when its label had been claimed.
///
/// # Errors
/// `Refused` then; when the repository cannot be read.
pub(super) async fn check_returns(
    cluster: &ClusterRepository,
    layer: &Layer,
    leaving: &Leaving,
) -> Result<()> {
    if leaving.layers.contains(&layer.reference()) {
        let what = format!("layer {} is being removed there", layer.label);
        return Err(Error::new(Kind::Refused, what).hint(
            "copy it when that has ended; \"pgstrata expire --dry-run\" shows a removal that was begun and not completed",
        ));
    }
    for id in &leaving.completed {
        let Some(verdict) = verdict_of(cluster, id).await? else {
            continue;
        };
        if verdict.concerns(layer) {
            let what = format!(
                "{} decided to remove it, or WAL that it may need, and may still be about to, although others have done so",
                verdict.by
            );
            let key = cluster.name.verdict_key(id);
            return Err(Error::new(Kind::Refused, what).hint(format!(
                "copy it a day after that, when an expire has run; or, when no expiry and no merge runs there, delete \"{key}\""
            )));
        }
    }
    Ok(())
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
    let verdicts = found.announced.iter();
    let verdicts = verdicts.filter_map(|found| found.verdict.as_ref());
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

/// All removals that are on record. One whose announcement is gone has ended; its verdict is not read.
async fn load(cluster: &ClusterRepository) -> Result<Removals> {
    let prefix = cluster.name.removals_prefix();
    let listed = cluster.repository.list(&prefix).await?;
    let of = |object: &ObjectInfo| {
        let rest = object.key[prefix.len()..].trim_start_matches('/');
        let (id, part) = rest.split_once('/')?;
        Some((id.to_owned(), part.to_owned(), object.modified))
    };
    let mut found = Removals::default();
    for (id, part, modified) in listed.iter().filter_map(of) {
        match part.as_str() {
            "wanted" => found.announced.push(AnnouncedRemoval {
                verdict: verdict_of(cluster, &id).await?,
                id,
                announced: modified,
            }),
            "verdict" => found.completed.push((id, modified)),
            _ => {}
        }
    }
    let announced: HashSet<&str> = found.announced.iter().map(|one| one.id.as_str()).collect();
    found
        .completed
        .retain(|(id, _)| !announced.contains(id.as_str()));
    Ok(found)
}

/// The announcement first: a verdict alone means nothing to anybody but the remover, and who copies.
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
