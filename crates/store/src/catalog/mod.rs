//! The catalog: what layers there are. It is not stored, it is the listing of manifests.
//!
//! A layer without a manifest does not exist; what it left is [`Unfinished`] and
//! harmless, unless it was committed and nobody removes it: then the manifest is lost. A manifest that is lost or cannot be
//! read is reported and never stood upon. A
//! chain is whole when every parent is there with the very contents its child
//! names, and has lost none of its objects as far as that was looked at.

mod abandon;
mod chain;
mod copied;
mod digests;
mod label;
mod layers;
mod lease;
mod left;
mod locks;
mod loss;
pub mod mark;
mod new_layer;
mod newest;
mod old_wal;
mod presence;
mod records;
mod removal;
mod remove;
mod restoring;
mod retain;
mod sibling;
mod unknown;
mod verified;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pgstrata_layer::abandoned;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{self, Manifest, ParentRef};
use pgstrata_layer::mark::Pin;
use pgstrata_pgdata::{WalSegment, WalSegmentSize};

pub use abandon::complaint as wrong_abandonment;
pub use chain::{ChainEntries, KeptParts, PartLocation, missing_is_damage};
pub use copied::CopiedLayer;
pub use digests::ChainDigests;
pub use label::{LayerPlan, claim, last_distrusted};
pub use layers::Layers;
pub use lease::{CLOCKS_DIFFER, LEASE, StoreTime, WhenLooked, at_work, clocks_differ};
pub use left::collect_left;
pub use locks::{LockReport, look_at_locks};
pub use loss::Loss;
pub use new_layer::NewLayer;
use newest::order;
pub(crate) use newest::{Known, labels, newest_manifest};
pub use old_wal::{
    GivenUp, OldWal, Released, WalLimit, find as find_old_wal, kept_until, wal_given_up,
};
pub use presence::{
    NotCommitted, WRITTEN_BY, check_stays, check_wal, commit_layer, hex, host_name, removed_since,
    require_staying, unless_removed,
};
pub use records::unreadable_records;
pub use removal::{
    Leaving, PendingRemoval, Removed, Terms, Witnesses, being_removed, pending_removals,
    remove_layers, tidy_removals, without_witnesses,
};
pub use remove::remove_leftover;
pub use restoring::{
    COPY_LEASE, InUse, RESTORE_LEASE, Restoring, copied_by, forget_old, in_use, lease_of, needed,
    restore_is_dated_ahead, still_going,
};
pub use retain::{describe_lock, locked_layers};
pub use sibling::Siblings;
pub use unknown::not_known;
pub use verified::{
    LastVerified, Verified, advice_if_damaged, examine_as_verified, forget_old_verifications,
    forget_verifications, last_verified, note_verified, verifications_to_come,
};

use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::keys::Sealing;
use crate::repository::ObjectInfo;
use layers::ChainState;

/// Manifests are small and far away: this many are fetched at once.
const FETCH_AT_ONCE: usize = 16;

/// Layers that were removed while they were looked at are looked for again, so often.
const LOOKS: u32 = 5;

/// A finished layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its label.
    pub label: Label,
    /// Its manifest.
    pub manifest: Manifest,
    /// BLAKE3 of the manifest object, as a child names it.
    pub manifest_digest: String,
}

impl Layer {
    /// Its label, and the digest of its manifest.
    #[must_use]
    pub fn known_as(&self) -> (&Label, &str) {
        (&self.label, &self.manifest_digest)
    }

    /// How other layers name it.
    #[must_use]
    pub fn reference(&self) -> ParentRef {
        ParentRef {
            label: self.label.to_string(),
            manifest_digest: self.manifest_digest.clone(),
        }
    }

    /// The segment that holds its start, and the one that holds the last byte before its stop: its own WAL is from one to the other.
    #[must_use]
    pub fn own_wal(&self, size: WalSegmentSize) -> (WalSegment, WalSegment) {
        let (timeline, manifest) = (self.manifest.timeline, &self.manifest);
        let first = WalSegment::containing(timeline, manifest.start_lsn, size);
        (
            first,
            WalSegment::containing_end(timeline, manifest.stop_lsn, size),
        )
    }
}

/// Why no rule may take a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerMark {
    /// Somebody has pinned it.
    Pinned(Pin),
    /// Why it is not known whether somebody has.
    Unknown(String),
}

impl LayerMark {
    /// For people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Unknown(why) => {
                format!("it counts as pinned, because what was said of it is not known: {why}")
            }
            Self::Pinned(pin) => {
                let until = pin.until.map(|until| format!(" until {until}"));
                let note = pin.note.as_ref().map(|note| format!(": {note}"));
                let (until, note) = (until.unwrap_or_default(), note.unwrap_or_default());
                format!("it is pinned{until}{note}")
            }
        }
    }
}

/// What an unfinished backup, running or interrupted, has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The label it claimed.
    pub label: Label,
    /// Who claimed it; `None` when the claim is missing or unreadable.
    pub claim: Option<ClaimRecord>,
    /// Number of its objects.
    pub object_count: usize,
    /// Sum of their sizes.
    pub size_bytes: u64,
    /// When the last of them was written.
    pub modified: Option<Timestamp>,
    /// Nothing will come of it: a record says so in its manifest's place.
    pub abandoned: bool,
    /// It was finished: it has lost its manifest, to whoever deleted or replaced it, or is being removed.
    pub was_committed: bool,
    /// It was finished, merged into a layer that is there, and its removal was interrupted.
    pub was_merged: bool,
}

/// All layers of a cluster.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Finished layers, oldest first.
    pub layers: Layers,
    /// Claims without a manifest, oldest first.
    pub unfinished: Vec<Unfinished>,
    /// Layers whose manifest cannot be used, and why.
    pub damaged: Vec<(Label, Error)>,
    /// Labels of which there will be no layer, and nothing is left but the record that says so.
    pub abandoned: Vec<Label>,
    /// What layers have lost; empty unless the catalog was made by [`Catalog::examine`].
    pub losses: BTreeMap<Label, Loss>,
    /// When the manifest of each layer was stored, by the store's clock; as far as a listing has told.
    pub stored_at: BTreeMap<Label, Timestamp>,
    /// Layers that a verification has found damaged, and when; empty unless [`last_verified`] was asked.
    pub found_damaged: BTreeMap<Label, Timestamp>,
}

enum Found {
    Layer(Box<Layer>),
    Unfinished(Unfinished),
    Damaged(Label, Error),
    Abandoned(Label),
}

impl Catalog {
    /// Reads every manifest of `cluster`.
    ///
    /// # Errors
    /// When the repository cannot be read. A damaged manifest is no error here.
    pub async fn load(cluster: &ClusterRepository) -> Result<Self> {
        cluster.sealing().await?.require_catalog()?;
        let labels = labels(cluster).await?;
        let looking = labels.into_iter().map(|label| look(cluster, label));
        let found: Vec<Found> = futures::stream::iter(looking)
            .buffer_unordered(FETCH_AT_ONCE)
            .try_collect()
            .await?;
        let (found, lost) = look_again(cluster, found).await?;
        let (mut catalog, mut layers) = (Self::default(), Vec::new());
        for found in found {
            match found {
                Found::Layer(layer) => layers.push(*layer),
                // All of it has gone. Some stores list the place all the same.
                Found::Unfinished(left) if left.object_count == 0 => {}
                Found::Unfinished(unfinished) => catalog.unfinished.push(unfinished),
                Found::Damaged(label, error) => catalog.damaged.push((label, error)),
                Found::Abandoned(label) => catalog.abandoned.push(label),
            }
        }
        catalog.layers = sorted(layers);
        catalog.note_merged(cluster).await?;
        let named = catalog.named_and_gone(cluster).await?;
        catalog.call_lost(cluster, &lost, &named);
        catalog
            .unfinished
            .sort_by(|a, b| order(&a.label).cmp(&order(&b.label)));
        catalog
            .damaged
            .sort_by(|a, b| order(&a.0).cmp(&order(&b.0)));
        Ok(catalog)
    }

    /// Notes which of the unfinished were finished and merged into a layer that is there. A copy brings such a layer again, under
    /// its label: what says nothing of its end, and is being removed by nobody, is as good as any attempt.
    async fn note_merged(&mut self, cluster: &ClusterRepository) -> Result<()> {
        let merged: BTreeSet<String> = self.merged_labels().map(str::to_owned).collect();
        let is_merged = |left: &Unfinished| merged.contains(left.label.as_str());
        let has_ended = |left: &Unfinished| left.was_committed || left.abandoned;
        let mut unfinished = self.unfinished.iter();
        // A removal deletes the manifest before it leaves a record in its place. Its verdict came before both.
        let leaving = match unfinished.any(|left| is_merged(left) && !has_ended(left)) {
            true => being_removed(cluster).await?,
            false => BTreeSet::new(),
        };
        for left in &mut self.unfinished {
            let was_finished = has_ended(left) || leaving.contains(&left.label);
            left.was_merged = was_finished && is_merged(left);
        }
        Ok(())
    }

    /// Labels without a manifest on which layers stand, each with one of these: they were finished, though nothing else
    /// says so. Who removes layers takes what stands on others first, and a look may fall in between; so of a layer that
    /// somebody removes, or has removed since, nothing is said.
    async fn named_and_gone(&self, cluster: &ClusterRepository) -> Result<BTreeMap<Label, Label>> {
        let mut standing: BTreeMap<Label, Label> = BTreeMap::new();
        for layer in &self.layers {
            let parent = layer.manifest.parent.as_ref();
            let parent = parent.filter(|parent| self.layers.standing_for(parent).is_none());
            if let Some(parent) = parent.and_then(|parent| Label::parse(&parent.label)) {
                standing.insert(parent, layer.label.clone());
            }
        }
        standing.retain(|parent, _| {
            let mut unfinished = self.unfinished.iter();
            unfinished.any(|left| left.label == *parent && !left.abandoned)
        });
        if standing.is_empty() {
            return Ok(standing);
        }
        let leaving = being_removed(cluster).await?;
        let mut gone = BTreeMap::new();
        for (parent, child) in standing {
            let still =
                futures::try_join!(look(cluster, parent.clone()), look(cluster, child.clone()));
            let (Found::Unfinished(left), Found::Layer(_)) = still? else {
                continue;
            };
            if left.object_count > 0 && !left.abandoned && !leaving.contains(&parent) {
                gone.insert(parent, child);
            }
        }
        Ok(gone)
    }

    /// Calls damaged what has lost its manifest and was not merged into a layer that is there: those of `lost`, which were
    /// committed, and of `named`, on which others stand.
    fn call_lost(
        &mut self,
        cluster: &ClusterRepository,
        lost: &BTreeSet<Label>,
        named: &BTreeMap<Label, Label>,
    ) {
        let unfinished = std::mem::take(&mut self.unfinished);
        for left in unfinished {
            let proof = match (lost.contains(&left.label), named.get(&left.label)) {
                _ if left.was_merged => None,
                (true, _) => {
                    let committed = cluster.name.committed_key(&left.label);
                    Some(format!("the layer was finished (\"{committed}\" is there)"))
                }
                (false, Some(child)) => Some(format!("layer {child} stands on it")),
                (false, None) => None,
            };
            match proof {
                Some(proof) => {
                    let error = manifest_lost(cluster, &left.label, &proof);
                    self.damaged.push((left.label, error));
                }
                None => self.unfinished.push(left),
            }
        }
    }

    /// Reads every manifest of `cluster`, and lists the objects of all layers: what is lost of them is known then.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn examine(cluster: &ClusterRepository) -> Result<Self> {
        // At the same time. What a layer made meanwhile has may not be in such a listing, so it proves no loss. It does
        // prove that there is none: the manifest goes first of a layer that is removed, and was there after the listing began.
        let (catalog, objects) = futures::join!(Self::load(cluster), loss::list(cluster));
        let (mut catalog, mut objects) = (catalog?, objects?);
        if !loss::among(cluster, &catalog.layers, &objects).is_empty() {
            objects = loss::list(cluster).await?;
        }
        for _ in 0..LOOKS {
            catalog.losses = loss::among(cluster, &catalog.layers, &objects);
            catalog.mark_lost();
            if catalog.is_plain() {
                break;
            }
            // Of a layer that is removed the manifest goes first, and what is made in its place was there before: when
            // the same layers are there as before, nobody has removed any.
            let again = Self::load(cluster).await?;
            let same = catalog.references().eq(again.references());
            if same {
                break;
            }
            catalog = again;
            objects = loss::list(cluster).await?;
        }
        catalog.stored_at = stored_at(cluster, &catalog.layers, &objects);
        Ok(catalog)
    }

    fn mark_lost(&mut self) {
        let losses = &self.losses;
        if !losses.is_empty() {
            self.layers.mark_lost(|layer| {
                let loss = losses.get(&layer.label);
                loss.is_some_and(Loss::stops_restores)
            });
        }
    }

    /// Whether all that was listed is a layer, and whole.
    fn is_plain(&self) -> bool {
        let mut layers = self.layers.iter();
        self.losses.is_empty()
            && self.unfinished.is_empty()
            && layers.all(|layer| self.chain_length(&layer.label).is_ok())
    }

    fn references(&self) -> impl Iterator<Item = ParentRef> {
        self.layers.iter().map(Layer::reference)
    }

    /// Labels of layers that were merged into others. None of them is ever given to a new layer.
    fn merged_labels(&self) -> impl Iterator<Item = &str> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| {
            let manifest = &layer.manifest;
            let named = manifest.inputs.iter().chain(&manifest.replaces);
            named.map(|layer| layer.label.as_str())
        })
    }

    /// The layer of that label.
    ///
    /// # Errors
    /// `NotFound`, or why the layer cannot be used.
    pub fn layer(&self, label: &Label) -> Result<&Layer> {
        match self.layers.position(label) {
            Some(at) => Ok(&self.layers[at]),
            None => Err(self.why_not(label)),
        }
    }

    /// Why there is no layer of that label.
    fn why_not(&self, label: &Label) -> Error {
        if let Some((_, error)) = self.damaged.iter().find(|(damaged, _)| damaged == label) {
            return Error::new(error.kind(), error.to_string())
                .while_doing(format!("could not use layer {label}"));
        }
        if let Some(merged) = self.layers.replacing(label) {
            return Error::new(
                Kind::NotFound,
                format!("layer {label} was merged into {}", merged.label),
            )
            .hint(format!("{} has its state", merged.label));
        }
        let unfinished = self
            .unfinished
            .iter()
            .any(|unfinished| unfinished.label == *label);
        let why = if unfinished || self.abandoned.contains(label) {
            "was never finished, or was removed"
        } else {
            "does not exist"
        };
        Error::new(Kind::NotFound, format!("layer {label} {why}"))
            .hint("\"pgstrata info\" lists the layers")
    }

    /// The layer and all it stands on, newest first. To know how many they are, or whether they are there, costs less:
    /// [`Catalog::chain_length`] and [`Catalog::whole`].
    ///
    /// # Errors
    /// When a layer of the chain is missing, damaged, not the one its child was made on, or has lost what restores need.
    pub fn chain(&self, label: &Label) -> Result<Vec<&Layer>> {
        self.whole(label)?;
        self.links(label)
    }

    /// Whether [`Catalog::chain`] has an answer.
    ///
    /// # Errors
    /// As for [`Catalog::chain`].
    pub fn whole(&self, label: &Label) -> Result<()> {
        self.chain_length(label)?;
        let Some(layer) = self.nearest_loss(label) else {
            return Ok(());
        };
        let what = self.losses.get(&layer.label).map(Loss::describe);
        let error = Error::new(
            Kind::Damaged,
            format!(
                "layer {} has lost objects: {}",
                layer.label,
                what.unwrap_or_default()
            ),
        )
        .hint("bring them back from a copy of the repository");
        Err(match layer.label == *label {
            true => error,
            false => broken(error, label),
        })
    }

    /// The nearest layer of the chain, itself included, that is known to have lost what restores need.
    #[must_use]
    pub fn nearest_loss(&self, label: &Label) -> Option<&Layer> {
        self.layers.lost_below(self.layers.position(label)?)
    }

    /// The layer and all it stands on, newest first, whether their objects are there or not.
    ///
    /// # Errors
    /// When a layer of the chain is missing, damaged, or not the one its child was made on.
    pub fn links(&self, label: &Label) -> Result<Vec<&Layer>> {
        let mut chain = Vec::with_capacity(self.chain_length(label)?);
        let mut next = self.layers.position(label);
        while let Some(at) = next {
            chain.push(&self.layers[at]);
            next = self.layers.below(at);
        }
        Ok(chain)
    }

    /// How many layers the chain has.
    ///
    /// # Errors
    /// As for [`Catalog::links`].
    pub fn chain_length(&self, label: &Label) -> Result<usize> {
        let Some(at) = self.layers.position(label) else {
            return Err(self.why_not(label));
        };
        let why = match self.layers.chain(at) {
            ChainState::Whole(length) => return Ok(length),
            ChainState::Missing(at) => self.missing_below(&self.layers[at]),
            ChainState::Circle(at) => {
                let complaint = format!("{} stands on itself", self.layers[at].label);
                Error::new(Kind::Damaged, complaint)
            }
        };
        Err(broken(why, label))
    }

    /// Why nothing is there that `child` could stand on.
    fn missing_below(&self, child: &Layer) -> Error {
        let named = child.manifest.parent.as_ref();
        let named = named.map_or("", |parent| parent.label.as_str());
        let Some(label) = Label::parse(named) else {
            let what = format!("\"{named}\" is not the label of a layer");
            return Error::new(Kind::Damaged, what);
        };
        match self.layer(&label) {
            Err(error) => error,
            Ok(_) => Error::new(
                Kind::Damaged,
                format!(
                    "the manifest of {label} is not the one {} was made on",
                    child.label
                ),
            ),
        }
    }

    /// The layer on which who names `parent` stands, if there is one: the one named, or one merged out of that and those
    /// below, which is preferred because it makes the chain shorter.
    #[must_use]
    pub fn standing_for(&self, parent: &ParentRef) -> Option<&Layer> {
        self.layers.standing_for(parent)
    }

    /// The catalog as it will be when the layers of a chain, from the one at `newest` down to the one at `oldest`, are
    /// merged at that time, and nothing is removed yet.
    ///
    /// # Errors
    /// When there are no such layers.
    pub fn when_merged(&self, newest: usize, oldest: usize, now: Timestamp) -> Result<Self> {
        let gone = || Error::new(Kind::NotFound, "there is no such layer");
        let first = self.layers.get(newest).ok_or_else(gone)?;
        let last = self.layers.get(oldest).ok_or_else(gone)?;
        let below = self.layers.below(oldest).map(|at| &self.layers[at]);
        let at = now.to_zoned(TimeZone::UTC).datetime();
        let label = match below {
            Some(below) => below.label.successor(LayerKind::Incremental, at),
            None => Label::full(at),
        };
        let chain = self.links(&first.label)?.into_iter();
        let mut inputs: Vec<ParentRef> = Vec::new();
        for layer in chain {
            inputs.push(layer.reference());
            if layer.label == last.label {
                break;
            }
        }
        let mut replaces = vec![first.reference()];
        replaces.extend(first.manifest.replaces.iter().cloned());
        let merged = Layer {
            manifest: Manifest {
                label: label.to_string(),
                parent: below.map(Layer::reference),
                replaces,
                inputs,
                ..first.manifest.clone()
            },
            manifest_digest: String::new(),
            label,
        };
        let layers = self.layers.iter().cloned().chain([merged]);
        let mut catalog = Self {
            layers: sorted(layers.collect()),
            unfinished: self.unfinished.clone(),
            damaged: Vec::new(),
            abandoned: self.abandoned.clone(),
            losses: self.losses.clone(),
            stored_at: self.stored_at.clone(),
            found_damaged: self.found_damaged.clone(),
        };
        catalog.mark_lost();
        Ok(catalog)
    }

    /// The catalog as it will be when these layers are removed.
    #[must_use]
    pub fn without(mut self, labels: &[Label]) -> Self {
        self.layers.retain(|layer| !labels.contains(&layer.label));
        self.mark_lost();
        self
    }

    /// Those of `unwanted`, newest first, that can be removed in this order while every other layer keeps a parent.
    #[must_use]
    pub fn removable(&self, unwanted: &[Label]) -> Vec<Label> {
        self.layers.removable(unwanted, &BTreeSet::new())
    }

    /// The same while others remove `leaving`, or may: nobody can stand on those instead.
    pub(crate) fn removable_beside(
        &self,
        unwanted: &[Label],
        leaving: &BTreeSet<ParentRef>,
    ) -> Vec<Label> {
        self.layers.removable(unwanted, leaving)
    }
}

/// A merged layer has its place where the backup has whose state it holds, and after it.
fn sorted(mut layers: Vec<Layer>) -> Layers {
    layers.sort_by_cached_key(|layer| (layer.manifest.state_stamp(), layer.label.clone()));
    Layers::new(layers)
}

/// When the manifests of `layers` were stored, as that listing tells.
fn stored_at(
    cluster: &ClusterRepository,
    layers: &[Layer],
    objects: &[ObjectInfo],
) -> BTreeMap<Label, Timestamp> {
    let manifests = objects
        .iter()
        .filter(|object| object.key.ends_with("/manifest"));
    let times: BTreeMap<&str, Timestamp> = manifests
        .map(|object| (object.key.as_str(), object.modified))
        .collect();
    let times = layers.iter().filter_map(|layer| {
        let key = cluster.name.manifest_key(&layer.label);
        Some((layer.label.clone(), *times.get(key.as_str())?))
    });
    times.collect()
}

fn broken(error: Error, label: &Label) -> Error {
    error.while_doing(format!("the chain of layer {label} is broken"))
}

/// Looks once more at labels that were committed and had no manifest; answers also which of them have lost it.
///
/// Who commits creates the manifest and then says so: the first look may have come before either. Of a layer that is
/// removed the manifest goes first, and the verdict that names it last. So a label has lost its manifest when it was
/// committed, no verdict named it then, and after both it has none.
async fn look_again(
    cluster: &ClusterRepository,
    found: Vec<Found>,
) -> Result<(Vec<Found>, BTreeSet<Label>)> {
    let is_suspect = |one: &Found| matches!(one, Found::Unfinished(left) if left.was_committed);
    let mut lost = BTreeSet::new();
    if !found.iter().any(is_suspect) {
        return Ok((found, lost));
    }
    let leaving = being_removed(cluster).await?;
    let mut settled = Vec::with_capacity(found.len());
    for one in found {
        let label = match &one {
            Found::Unfinished(left) if left.was_committed && !leaving.contains(&left.label) => {
                left.label.clone()
            }
            _ => {
                settled.push(one);
                continue;
            }
        };
        let again = look(cluster, label).await?;
        match &again {
            // Removed meanwhile, all of it.
            Found::Unfinished(left) if left.object_count == 0 => continue,
            Found::Unfinished(left) if left.was_committed => {
                lost.insert(left.label.clone());
            }
            _ => {}
        }
        settled.push(again);
    }
    Ok((settled, lost))
}

/// The error of a layer that was finished, as `proof` says, and is being removed by nobody.
fn manifest_lost(cluster: &ClusterRepository, label: &Label, proof: &str) -> Error {
    let manifest = cluster.name.manifest_key(label);
    Error::new(
        Kind::Damaged,
        format!("its manifest \"{manifest}\" is lost: {proof}, and nobody removes it"),
    )
    .hint("bring the object back from a copy of the repository, or take a full backup now")
}

async fn look(cluster: &ClusterRepository, label: Label) -> Result<Found> {
    let key = cluster.name.manifest_key(&label);
    match cluster.repository.get_record(&key).await {
        Ok(object) if abandoned::is_one(&object) => match abandon::complaint(&label, &object) {
            Some(error) => Ok(Found::Damaged(label, error)),
            None => given_up(cluster, label).await,
        },
        Ok(object) => match cluster
            .opened(|sealing| read(sealing, &label, &object))
            .await
        {
            Ok(layer) => Ok(Found::Layer(Box::new(layer))),
            // It may be whole: that no key opens it here says nothing of it.
            Err(error) if error.kind() == Kind::Refused => Err(error),
            Err(error) => Ok(Found::Damaged(label, error)),
        },
        Err(error) if error.kind() == Kind::NotFound => {
            unfinished_now(cluster, label).await.map(Found::Unfinished)
        }
        Err(error) if error.is_of_one_object() => Ok(Found::Damaged(label, error)),
        Err(error) => Err(error),
    }
}

/// A label of which there will be no layer: unfinished as long as objects are left.
async fn given_up(cluster: &ClusterRepository, label: Label) -> Result<Found> {
    let mut unfinished = unfinished_now(cluster, label).await?;
    unfinished.abandoned = true;
    Ok(match unfinished.object_count {
        0 => Found::Abandoned(unfinished.label),
        _ => Found::Unfinished(unfinished),
    })
}

fn read(sealing: &Sealing, label: &Label, object: &[u8]) -> Result<Layer> {
    let manifest = sealing.manifest(object)?;
    if manifest.label != label.as_str() {
        return Err(Error::new(
            Kind::Damaged,
            format!("manifest is that of layer {}", manifest.label),
        ));
    }
    Ok(Layer {
        label: label.clone(),
        manifest,
        manifest_digest: manifest::digest(object),
    })
}

async fn unfinished_now(cluster: &ClusterRepository, label: Label) -> Result<Unfinished> {
    let (record, committed) = (
        cluster.name.manifest_key(&label),
        cluster.name.committed_key(&label),
    );
    let mut objects = cluster
        .repository
        .list(&cluster.name.layer_prefix(&label))
        .await?;
    let stored = |key: &str| {
        let object = objects.iter().find(|object| object.key == key);
        object.map(|object| object.modified)
    };
    // A maker that was stopped may note that its layer is committed when that has expired. A record that came after the
    // note has replaced the manifest.
    let was_committed = stored(&committed)
        .is_some_and(|noted| stored(&record).is_none_or(|given_up| given_up > noted));
    objects.retain(|object| object.key != record);
    // One that nobody can read says nothing: what was stored last tells whether anybody is at work.
    let claim = cluster.name.claim_key(&label);
    let claim = cluster.repository.find_record(&claim).await?;
    let claim = claim.and_then(Result::ok);
    Ok(Unfinished {
        claim: claim.and_then(|bytes| claim::decode(&bytes).ok()),
        object_count: objects.len(),
        size_bytes: objects.iter().map(|object| object.size_bytes).sum(),
        modified: objects.iter().map(|object| object.modified).max(),
        was_committed,
        abandoned: false,
        was_merged: false,
        label,
    })
}
