//! Marks on layers: pins, and what people have written.
//!
//! A pin must hold once it was said to be made, also beside an expiry. Who pins creates the mark, then does what who makes
//! a layer does after its claim: it withdraws every removal that has no verdict, and believes every verdict
//! ([`super::presence::check_stays`]). A remover announces, then reads the marks, then decides. So a mark that the remover
//! did not see was made after the announcement, and its maker finds that.
//!
//! A mark that cannot be read, or is not there though later ones are, may be a pin, and counts as one until a later mark
//! pins the layer or ends its pin.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, ParentRef};
use pgstrata_layer::mark::{self, Mark, MarkRecord, Marks, Unpin};

use super::presence::{WRITTEN_BY, check_stays, host_name};
use super::{Catalog, FETCH_AT_ONCE, Layer, LayerMark, Unfinished};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::record::is_far;

/// So many others may mark a layer while we try to.
const TRIES: u32 = 100;

/// The number of a mark behind those with these `numbers`.
fn number_behind(numbers: impl Iterator<Item = u32>) -> u32 {
    let numbers: BTreeSet<u32> = numbers.collect();
    let near = |next: u32, number: u32| match is_far(number, next) {
        true => next,
        false => number.saturating_add(1),
    };
    numbers.into_iter().fold(0, near)
}

/// The marks of all layers, of those that are gone too.
#[derive(Debug, Default)]
pub struct AllMarks {
    by_label: BTreeMap<Label, MarksOfLabel>,
}

/// The marks of one label.
#[derive(Debug, Default)]
struct MarksOfLabel {
    /// Those of each layer that had the label: it was one, unless somebody has tampered with names.
    marks: BTreeMap<ParentRef, Marks>,
    /// Why it is not known whether the layer is pinned.
    unreadable: Option<Error>,
    /// Whether one that is there cannot be read, and no later one pins the layer or ends its pin.
    has_unread: bool,
    /// When the last pin was made, by the clock of who made it.
    pinned_at: Option<Timestamp>,
    /// Its marks that cannot be read, or are not there though later ones are.
    wrong: Vec<(String, Error)>,
    /// The number that the next one has.
    next: u32,
    keys: Vec<String>,
}

impl AllMarks {
    /// What is said of the layer.
    #[must_use]
    pub fn of(&self, layer: &Layer) -> Marks {
        let found = self.by_label.get(&layer.label);
        let found = found.and_then(|found| found.marks.get(&layer.reference()));
        found.cloned().unwrap_or_default()
    }

    /// Why it is not known what is said of the layer.
    #[must_use]
    pub fn unreadable(&self, label: &Label) -> Option<&Error> {
        self.by_label.get(label)?.unreadable.as_ref()
    }

    /// Every layer of which it is not known what is said, and why.
    pub fn all_unreadable(&self) -> impl Iterator<Item = (&Label, &Error)> {
        let all = self.by_label.iter();
        all.filter_map(|(label, found)| Some((label, found.unreadable.as_ref()?)))
    }

    /// Every mark that cannot be read, or is not there though later ones are, by its key, whether it matters or not.
    pub(super) fn into_wrong(self) -> Vec<(String, Error)> {
        let all = self.by_label.into_values();
        all.flat_map(|found| found.wrong).collect()
    }

    /// Why the layer is pinned at that time: by its own pin, or by that of a layer which is gone, and whose state it has.
    #[must_use]
    pub fn pinned(&self, catalog: &Catalog, layer: &Layer, now: Timestamp) -> Option<LayerMark> {
        let mut pins = states(catalog, layer).filter_map(|state| {
            let found = self.by_label.get(&Label::parse(&state.label)?)?;
            found.pin_of(&state, now)
        });
        pins.next()
    }

    /// The labels of which something was said that can be read.
    pub fn labels(&self) -> impl Iterator<Item = &Label> {
        let said = self.by_label.iter();
        said.filter_map(|(label, found)| (!found.marks.is_empty()).then_some(label))
    }

    /// The labels whose layers are not there any more, though they are pinned at that time, or may be: somebody has deleted them
    /// who asked no pin, and perhaps not all of their objects. None of them is one that was given up, of which there will be no
    /// layer, nor one of which only a copy has begun.
    pub fn pins_of_gone(&self, catalog: &Catalog, now: Timestamp) -> impl Iterator<Item = &Label> {
        let pinned = self.of_absent(catalog).filter(move |(label, found)| {
            let was_there = match left_of(catalog, label) {
                Some(left) => found.outlive(left),
                None => !catalog.abandoned.contains(label),
            };
            was_there && found.may_pin(now)
        });
        pinned.map(|(label, _)| label)
    }

    /// What was said of layers of which nothing is there, nor is one that has their state.
    fn of_gone(&self, catalog: &Catalog) -> impl Iterator<Item = (&Label, &MarksOfLabel)> {
        let absent = self.of_absent(catalog);
        absent.filter(move |(label, _)| left_of(catalog, label).is_none())
    }

    /// What was said of layers that do not exist, though objects of them may be there, and whose state no layer has.
    fn of_absent(&self, catalog: &Catalog) -> impl Iterator<Item = (&Label, &MarksOfLabel)> {
        self.by_label.iter().filter(move |(label, found)| {
            let lives_on = |state: &ParentRef| catalog.layers.standing_for(state).is_some();
            let lives_on = match found.marks.is_empty() {
                // Nothing that can be read names the state.
                true => catalog.layers.replacing(label).is_some(),
                false => found.marks.keys().any(lives_on),
            };
            let is_there = catalog.layers.position(label).is_some();
            !is_there && !is_damaged(catalog, label) && !lives_on
        })
    }
}

/// What an attempt has left that has this label, or a deletion of its layer.
fn left_of<'a>(catalog: &'a Catalog, label: &Label) -> Option<&'a Unfinished> {
    let mut unfinished = catalog.unfinished.iter();
    unfinished.find(|left| left.label == *label)
}

fn is_damaged(catalog: &Catalog, label: &Label) -> bool {
    let mut damaged = catalog.damaged.iter();
    damaged.any(|(damaged, _)| damaged == label)
}

/// The layer itself, and those that are gone and whose state it has.
fn states(catalog: &Catalog, layer: &Layer) -> impl Iterator<Item = ParentRef> {
    let gone = layer.manifest.replaces.iter();
    let gone = gone.filter(move |state| !catalog.layers.holds(state));
    iter::once(layer.reference()).chain(gone.cloned())
}

impl MarksOfLabel {
    /// Notes that the mark `key` may have said that the layer is pinned.
    fn distrust(&mut self, key: String, error: Error) {
        self.unreadable = Some(error.clone());
        self.wrong.push((key, error));
    }

    /// Takes the mark `key` as it was read; answers it when it could be, and was not forgotten meanwhile.
    fn take(&mut self, key: String, read: Result<Option<MarkRecord>>) -> Option<MarkRecord> {
        match read {
            Ok(Some(record)) => {
                if matches!(record.says, Mark::Pin(_) | Mark::Unpin(_)) {
                    self.unreadable = None;
                    self.has_unread = false;
                }
                if matches!(record.says, Mark::Pin(_)) {
                    self.pinned_at = self.pinned_at.max(Some(record.marked_at));
                }
                Some(record)
            }
            Ok(None) => None,
            Err(error) => {
                self.has_unread = true;
                self.distrust(key, error);
                None
            }
        }
    }

    /// Whether they say that a layer which is gone is pinned at that time, or one of them cannot be read. What is missing
    /// says nothing: whoever forgot them may have been stopped.
    fn may_pin(&self, now: Timestamp) -> bool {
        self.has_unread || self.marks.values().any(|said| said.is_pinned(now))
    }

    /// Whether the layer was there, of which `left` is what is left. A copy brings marks before the layer, and after its claim;
    /// they are older. Nobody copies without a claim, and who deletes a layer may leave the claim or not.
    fn outlive(&self, left: &Unfinished) -> bool {
        let claimed_at = left.claim.as_ref().map(|claim| claim.started_at);
        let is_later = claimed_at.is_none_or(|claimed_at| self.pinned_at > Some(claimed_at));
        !left.abandoned && (is_later || self.has_unread)
    }

    /// Whether the layer has a pin that nobody has taken back, in force or not, or may have one.
    fn has_pin(&self, layer: &ParentRef) -> bool {
        let said = self.marks.get(layer);
        self.unreadable.is_some() || said.is_some_and(|said| said.pin.is_some())
    }

    /// The layers of the label that have such a pin. When it is not known of which, any of them: the next mark that ends a pin
    /// settles it.
    fn with_pins(&self, label: &Label) -> Vec<ParentRef> {
        let pinned = self.marks.iter().filter(|(_, said)| said.pin.is_some());
        let mut pinned: Vec<ParentRef> = pinned.map(|(layer, _)| layer.clone()).collect();
        if pinned.is_empty() && self.unreadable.is_some() {
            let nothing = || ParentRef {
                label: label.to_string(),
                manifest_digest: manifest::digest(&[]),
            };
            let known = self.marks.keys().next().cloned();
            pinned.push(known.unwrap_or_else(nothing));
        }
        pinned
    }

    /// The pin that holds the layer at that time.
    fn pin_of(&self, layer: &ParentRef, now: Timestamp) -> Option<LayerMark> {
        if let Some(error) = &self.unreadable {
            return Some(LayerMark::Unknown(error.to_string()));
        }
        let marks = self.marks.get(layer)?;
        let pin = marks.pin.clone().filter(|_| marks.is_pinned(now));
        pin.map(LayerMark::Pinned)
    }
}

/// Reads the marks of all layers.
///
/// # Errors
/// When the repository cannot be read. A mark that is damaged is no error here.
pub async fn load(cluster: &ClusterRepository) -> Result<AllMarks> {
    let prefix = cluster.name.marks_prefix();
    let listed = cluster.repository.list(&prefix).await?.into_iter();
    let mut all = AllMarks::default();
    let mut keys = Vec::new();
    for object in listed {
        let rest = object.key[prefix.len()..].trim_start_matches('/');
        let Some((label, number)) = rest.split_once('/') else {
            continue;
        };
        let (Some(label), Ok(number)) = (Label::parse(label), number.parse::<u32>()) else {
            continue;
        };
        keys.push((label, number, object.key));
    }
    keys.sort();
    let reading = keys.into_iter().map(|(label, number, key)| async move {
        let read = read(cluster, &label, number, &key).await?;
        Ok::<_, Error>((label, number, key, read))
    });
    let read: Vec<_> = futures::stream::iter(reading)
        .buffered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    let mut said: BTreeMap<(Label, ParentRef), Vec<Mark>> = BTreeMap::new();
    for (label, number, key, read) in read {
        let found = all.by_label.entry(label.clone()).or_default();
        if is_far(number, found.next) {
            let what = format!(
                "\"{key}\" is no mark of ours: {} is the next number",
                found.next
            );
            tracing::warn!(
                "{what}; it is passed over: find out who can write there, and delete it"
            );
            let error = Error::new(Kind::Damaged, what);
            found.wrong.push((key.clone(), error));
            found.keys.push(key);
            continue;
        }
        if number > found.next {
            let first = cluster.name.mark_key(&label, found.next);
            let what = format!("\"{first}\" is missing, though later marks of the layer are there");
            found.distrust(first, Error::new(Kind::Damaged, what));
        }
        found.next = number.saturating_add(1);
        found.keys.push(key.clone());
        if let Some(record) = found.take(key, read) {
            let marks = said.entry((label, record.layer)).or_default();
            marks.push(record.says);
        }
    }
    for ((label, layer), marks) in said {
        let found = all.by_label.entry(label).or_default();
        found.marks.insert(layer, Marks::of(marks));
    }
    Ok(all)
}

/// One mark; the inner error is of its contents.
async fn read(
    cluster: &ClusterRepository,
    label: &Label,
    number: u32,
    key: &str,
) -> Result<Result<Option<MarkRecord>>> {
    let object = match cluster.repository.find_record(key).await? {
        Some(Ok(object)) => object,
        Some(Err(error)) => return Ok(Err(error)),
        None => return Ok(Ok(None)),
    };
    let act = |error: Error| error.while_doing(format!("could not read \"{key}\""));
    Ok(match mark::decode(&object) {
        Err(error) => Err(act(error.into())),
        Ok(record) if record.number != number || record.layer.label != label.as_str() => {
            let (other, number) = (&record.layer.label, record.number);
            let what = format!("it is mark {number} of layer {other}");
            Err(act(Error::new(Kind::Damaged, what)))
        }
        Ok(record) => Ok(Some(record)),
    })
}

/// Says something of a layer that is there.
///
/// # Errors
/// When the repository cannot be written.
pub async fn add(cluster: &ClusterRepository, layer: &Layer, says: Mark) -> Result<()> {
    add_object(cluster, &layer.label, layer.reference(), says).await?;
    Ok(())
}

/// The same of a layer of that label, there or not; answers the object's key.
async fn add_object(
    cluster: &ClusterRepository,
    label: &Label,
    layer: ParentRef,
    says: Mark,
) -> Result<String> {
    let mut record = MarkRecord {
        layer,
        number: 0,
        says,
        host: host_name(),
        pid: std::process::id(),
        marked_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let prefix = cluster.name.marks_of(label);
    let listed = cluster.repository.list(&prefix).await?;
    let numbers = listed.iter().filter_map(|object| number_of(&object.key));
    record.number = number_behind(numbers);
    for _ in 0..TRIES {
        let key = cluster.name.mark_key(label, record.number);
        let body = Bytes::from(mark::encode(&record));
        match cluster.repository.create(&key, body).await {
            Err(error) if error.kind() == Kind::AlreadyExists => {
                record.number = record.number.saturating_add(1);
            }
            created => return created.map(|()| key),
        }
    }
    Err(too_many(label))
}

fn too_many(label: &Label) -> Error {
    let what = format!("layer {label} is marked by too many at the same time");
    Error::new(Kind::Busy, what).hint("run it again")
}

/// Pins the first of `chain`, newest first. When it answers `Ok` nobody removes any of them until the pin ends.
///
/// # Errors
/// `Refused` when one of them is being removed, or is gone; when the repository cannot be read or written. Then the layer is
/// pinned as it was before, unless the error says that this is not known.
pub async fn pin(cluster: &ClusterRepository, chain: &[Arc<Layer>], pin: mark::Pin) -> Result<()> {
    let Some(layer) = chain.first() else {
        return Ok(());
    };
    let ours = add_object(cluster, &layer.label, layer.reference(), Mark::Pin(pin)).await?;
    let Err(error) = check_stays(cluster, chain).await else {
        return Ok(());
    };
    match take_back(cluster, layer, &ours).await {
        Ok(()) => Err(error),
        Err(other) => Err(error.hint(format!(
            "whether the layer is pinned now is not known, because the pin could not be taken back: {other}"
        ))),
    }
}

/// Says of a layer's pin what the marks but that one say: another pin, made before or meanwhile, was said to be made.
async fn take_back(cluster: &ClusterRepository, layer: &Layer, ours: &str) -> Result<()> {
    let mut others = objects(cluster, layer).await?;
    let is_next = |(number, (key, _)): (usize, &(String, Bytes))| {
        number_of(key) == u32::try_from(number).ok()
    };
    let has_all = others.iter().enumerate().all(is_next);
    others.retain(|(key, _)| key != ours);
    let (others, is_whole) = said(&others, layer);
    let says = match others.pin {
        Some(pin) => Mark::Pin(pin),
        None if has_all && is_whole => Mark::Unpin(Unpin {}),
        // What is missing, or cannot be read, may be a pin.
        None => {
            let what = "a mark of the layer that was there before is missing, or cannot be read";
            return Err(Error::new(Kind::Damaged, what));
        }
    };
    add(cluster, layer, says).await
}

/// The number in the key of a mark.
fn number_of(key: &str) -> Option<u32> {
    key.rsplit('/').next()?.parse().ok()
}

/// Takes back the pins that hold a layer which is there: its own, and those of layers that are gone and whose state it has.
/// Answers whether there were any.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn unpin(cluster: &ClusterRepository, catalog: &Catalog, layer: &Layer) -> Result<bool> {
    let marks = load(cluster).await?;
    let mut was_pinned = false;
    for state in states(catalog, layer) {
        let Some(label) = Label::parse(&state.label) else {
            continue;
        };
        let found = marks.by_label.get(&label);
        if found.is_some_and(|found| found.has_pin(&state)) {
            add_object(cluster, &label, state, Mark::Unpin(Unpin {})).await?;
            was_pinned = true;
        }
    }
    Ok(was_pinned)
}

/// Takes back the pins of layers of that label that are not there, whether or not objects of them are, or another layer has their
/// state. Answers what is said then; nothing when none of them was pinned.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn unpin_gone(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    label: &Label,
) -> Result<Option<Marks>> {
    let marks = load(cluster).await?;
    let is_there = catalog.layers.position(label).is_some() || is_damaged(catalog, label);
    let Some(found) = marks.by_label.get(label).filter(|_| !is_there) else {
        return Ok(None);
    };
    let mut unpinned = None;
    for layer in found.with_pins(label) {
        let said = found.marks.get(&layer).cloned().unwrap_or_default();
        add_object(cluster, label, layer, Mark::Unpin(Unpin {})).await?;
        unpinned = Some(Marks { pin: None, ..said });
    }
    Ok(unpinned)
}

/// Forgets the marks of layers that are gone, and whose state no other layer has. What says that such a layer is pinned at that
/// time stays until somebody takes the pin back: the layer may be brought back, and is pinned then.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn forget_gone(cluster: &ClusterRepository, now: Timestamp) -> Result<()> {
    let marks = load(cluster).await?;
    if marks.by_label.is_empty() {
        return Ok(());
    }
    let catalog = Catalog::load(cluster).await?;
    let pinned: BTreeSet<&Label> = marks.pins_of_gone(&catalog, now).collect();
    let gone = marks.of_gone(&catalog);
    let gone = gone.filter(|(label, _)| !pinned.contains(label));
    let keys: Vec<String> = gone.flat_map(|(_, found)| found.keys.clone()).collect();
    cluster.repository.delete_all(&keys).await
}

/// Brings what is said of a layer in `source` into `target`, where it has the same label and manifest. A list that begins
/// like the one in `source` is continued; one that continues the one in `source` says what holds there, also that a pin has
/// ended. To another one is added what it lacks, and nothing is taken back. Answers how many marks were made.
///
/// # Errors
/// When a repository cannot be read or written. A mark that is damaged is no error here.
pub async fn copy(
    source: &ClusterRepository,
    target: &ClusterRepository,
    layer: &Layer,
) -> Result<usize> {
    let mut made = 0;
    for _ in 0..TRIES {
        let (from, to) = (objects(source, layer).await?, objects(target, layer).await?);
        let begins_alike = to.iter().zip(&from).all(|(to, from)| to.1 == from.1);
        let missing = from.get(to.len()..).filter(|_| begins_alike);
        let Some(missing) = missing else {
            let (from, is_whole) = said(&from, layer);
            if begins_alike && is_whole {
                return Ok(made);
            }
            let (to, _) = said(&to, layer);
            let more = lacking((from, is_whole), &to);
            made += more.len();
            for says in more {
                add(target, layer, says).await?;
            }
            return Ok(made);
        };
        let before = made;
        for (key, object) in missing {
            match target.repository.create(key, object.clone()).await {
                Ok(()) => made += 1,
                // Somebody has marked the layer there meanwhile.
                Err(error) if error.kind() == Kind::AlreadyExists => break,
                Err(error) => return Err(error),
            }
        }
        if made == before + missing.len() {
            return Ok(made);
        }
    }
    Err(too_many(&layer.label))
}

/// What is said in `from`, of which all can be read when it is whole, and not in `to`.
fn lacking((from, is_whole): (Marks, bool), to: &Marks) -> Vec<Mark> {
    let mut lacking: Vec<Mark> = Vec::new();
    if to.pin.is_none() {
        // What cannot be read may be a pin.
        let unknown = mark::Pin {
            until: None,
            note: Some("a mark could not be read where it was copied from".to_owned()),
        };
        let pin = from.pin.or_else(|| (!is_whole).then_some(unknown));
        lacking.extend(pin.map(Mark::Pin));
    }
    for (key, value) in from.annotations {
        if !to.annotations.contains_key(&key) {
            let value = Some(value);
            lacking.push(Mark::Annotate(mark::Annotation { key, value }));
        }
    }
    lacking
}

/// What the marks say of the layer that can be read, and whether all can.
fn said(objects: &[(String, Bytes)], layer: &Layer) -> (Marks, bool) {
    let mut is_whole = true;
    let mut says = Vec::new();
    for (key, object) in objects {
        match mark::decode(object) {
            Ok(record) if record.layer == layer.reference() => says.push(record.says),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("a mark is left out: could not read \"{key}\": {error}");
                is_whole = false;
            }
        }
    }
    (Marks::of(says), is_whole)
}

/// The marks of the layer's label, in their order, with their keys.
async fn objects(cluster: &ClusterRepository, layer: &Layer) -> Result<Vec<(String, Bytes)>> {
    let prefix = cluster.name.marks_of(&layer.label);
    let listed = cluster.repository.list(&prefix).await?;
    let mut numbered = BTreeMap::new();
    for object in listed {
        if let Some(number) = number_of(&object.key) {
            numbered.insert(number, object.key);
        }
    }
    let behind = number_behind(numbered.keys().copied());
    let mut found = Vec::with_capacity(numbered.len());
    for (_, key) in numbered.into_iter().filter(|(number, _)| *number < behind) {
        if let Some(object) = cluster.repository.find_record(&key).await? {
            // What nobody gets is as good as what nobody can read.
            found.push((key, object.unwrap_or_default()));
        }
    }
    Ok(found)
}
