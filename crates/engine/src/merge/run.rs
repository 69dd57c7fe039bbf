//! The acts of a merge in their order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{ChangeSource, ChangeSourceRecord, Manifest, ParentRef};
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::catalog::{
    self, Catalog, Layer, LayerPlan, NewLayer, StoreTime, Terms, remove_leftover,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;

use super::compare::{check_frames, check_same_state};
use super::window::FrameMaker;
use super::write::{MergeWriter, Written};
use super::{Input, MergeOptions, MergePlan, MergeReport};
use crate::frames::{Chain, LayerWriter};
use crate::lines::LineBases;

/// Says what a merge would do now; changes nothing.
///
/// # Errors
/// When the layers cannot be merged.
pub async fn plan(cluster: &ClusterRepository, options: &MergeOptions) -> Result<MergePlan> {
    cluster.record().await?;
    let catalog = Catalog::load(cluster).await?;
    let choice = Choice::new(&catalog, options)?;
    choice.require_open(cluster).await?;
    let bases = LineBases::find(cluster, Timestamp::now()).await;
    let bases = bases.unwrap_or_else(|error| LineBases {
        notes: vec![format!(
            "it is not known from which layers servers go on: {error}"
        )],
        ..LineBases::default()
    });
    Ok(choice.plan(&catalog, bases))
}

/// Merges. When it returns `Ok` the merged layer exists and has been compared with its inputs.
///
/// # Errors
/// What kept it from being made, or from being what it must be; no input is removed then.
pub async fn execute(
    cluster: &ClusterRepository,
    options: &MergeOptions,
    progress: &Progress,
) -> Result<MergeReport> {
    let made = make(cluster, options, progress).await?;
    made.finish(cluster, options).await
}

/// Makes the merged layer and compares it with its inputs; removes nothing.
///
/// # Errors
/// As [`execute`].
pub(crate) async fn make(
    cluster: &ClusterRepository,
    options: &MergeOptions,
    progress: &Progress,
) -> Result<MergeDone> {
    let started = Instant::now();
    let catalog = Catalog::load(cluster).await?;
    let choice = Choice::new(&catalog, options)?;
    choice.require_open(cluster).await?;
    let merge = MergeRun {
        cluster,
        catalog: &catalog,
        choice: &choice,
        options,
        progress,
    };
    match merge.run().await {
        Ok((label, written, fetched_bytes)) => Ok(MergeDone {
            choice,
            label,
            written,
            fetched_bytes,
            started,
        }),
        Err(error) => Err(catalog::unless_removed(cluster, &choice.inputs, error).await),
    }
}

/// A merged layer that is there.
pub(crate) struct MergeDone {
    choice: Choice,
    label: Label,
    written: Written,
    fetched_bytes: u64,
    started: Instant,
}

impl MergeDone {
    /// Removes the inputs, when that is asked for.
    ///
    /// # Errors
    /// When the repository cannot be read or written; the merged layer stays.
    pub(crate) async fn finish(
        self,
        cluster: &ClusterRepository,
        options: &MergeOptions,
    ) -> Result<MergeReport> {
        let (choice, written) = (&self.choice, &self.written);
        let mut notes = Vec::new();
        let removed = match options.remove {
            true => {
                let terms = Terms {
                    instead: Some(&self.label),
                    ignore_restores: options.ignore_restores,
                    ..Terms::default()
                };
                // A clock that is ahead gives up no line.
                let now = StoreTime::ask(cluster).await?.or_earlier();
                let bases = LineBases::find(cluster, now).await?;
                remove_inputs(cluster, choice, terms, (bases, &mut notes)).await?
            }
            false => Vec::new(),
        };
        Ok(MergeReport {
            label: self.label.to_string(),
            inputs: choice.labels().iter().map(Label::to_string).collect(),
            stands_on: choice.below.as_ref().map(|layer| layer.label.to_string()),
            frames_copied: written.frames_copied,
            copied_bytes: written.copied_bytes,
            frames_encoded: written.frames_encoded,
            encoded_bytes: written.encoded_bytes,
            fetched_bytes: self.fetched_bytes,
            pack_bytes: written.pack_bytes,
            removed: removed.iter().map(Label::to_string).collect(),
            seconds: self.started.elapsed().as_secs_f64(),
            notes,
        })
    }
}

/// Which layers, and where the merged one will stand.
struct Choice {
    /// The newest of the layers; the merged one has its state.
    newest: ParentRef,
    /// Newest first; without the newest when an earlier merge was killed after that had gone.
    inputs: Vec<Arc<Layer>>,
    below: Option<Arc<Layer>>,
    existing: Option<Arc<Layer>>,
}

impl Choice {
    fn new(catalog: &Catalog, options: &MergeOptions) -> Result<Self> {
        if let Some(resumed) = Self::resumed(catalog, options) {
            return Ok(resumed);
        }
        let chain = catalog.chain(&options.label)?;
        let oldest = match &options.into {
            None => chain.len() - 1,
            Some(into) => {
                // A parent may be named by the label that a merged layer has replaced.
                let is_it = |layer: &&Layer| {
                    let mut names = layer.manifest.replaces.iter();
                    layer.label == *into || names.any(|name| name.label == into.as_str())
                };
                match chain.iter().position(is_it) {
                    Some(found) => found,
                    None => return Err(not_in_chain(catalog, &chain, options, into)),
                }
            }
        };
        if oldest == 0 {
            return Err(Error::new(
                Kind::Usage,
                format!("there is nothing to merge {} with", options.label),
            )
            .hint(
                "name a layer that stands on others, and with --from the oldest to merge; when a merge was stopped before its \
                 inputs were removed, name the newest of them",
            ));
        }
        let newest = chain[0].reference();
        let below = chain.get(oldest + 1).copied();
        let existing = existing(catalog, &newest, below);
        let shared = |layer: &Layer| Arc::new(layer.clone());
        Ok(Self {
            newest,
            inputs: chain[..=oldest]
                .iter()
                .map(|&layer| shared(layer))
                .collect(),
            below: below.map(shared),
            existing: existing.map(shared),
        })
    }

    /// What an earlier merge had still to remove when it was killed. The newest goes first, and not before the merged
    /// layer has been verified.
    fn resumed(catalog: &Catalog, options: &MergeOptions) -> Option<Self> {
        let label = options.label.as_str();
        if catalog.layers.position(&options.label).is_some() {
            return None;
        }
        let merged_from = |layer: &&Layer| {
            let newest = layer.manifest.inputs.first();
            let reaches = match &options.into {
                None => layer.manifest.parent.is_none(),
                Some(into) => {
                    let mut inputs = layer.manifest.inputs.iter();
                    inputs.any(|input| input.label == into.as_str())
                }
            };
            newest.is_some_and(|newest| newest.label == label) && reaches
        };
        let merged = catalog.layers.iter().rfind(merged_from)?;
        let inputs = merged.manifest.inputs.iter();
        let inputs: Vec<Arc<Layer>> = inputs
            .filter(|input| catalog.layers.holds(input))
            .filter_map(|input| catalog.layer(&Label::parse(&input.label)?).ok())
            .map(|layer| Arc::new(layer.clone()))
            .collect();
        let parent = merged.manifest.parent.as_ref();
        let below = parent.and_then(|parent| catalog.standing_for(parent));
        (!inputs.is_empty()).then(|| Self {
            newest: merged.manifest.inputs[0].clone(),
            inputs,
            below: below.map(|layer| Arc::new(layer.clone())),
            existing: Some(Arc::new(merged.clone())),
        })
    }

    fn newest_is_gone(&self) -> bool {
        self.inputs[0].reference() != self.newest
    }

    /// Refuses before anything is made when no identity at hand opens the pages, which are read and compared.
    async fn require_open(&self, cluster: &ClusterRepository) -> Result<()> {
        if self.newest_is_gone() {
            return Ok(());
        }
        let sealing = cluster.sealing().await?;
        let Some(ring) = sealing.ring() else {
            return Ok(());
        };
        let read: Vec<&Arc<Layer>> = match &self.existing {
            Some(merged) => vec![merged],
            None => {
                // For whom the merged layer is sealed.
                ring.require_reader(ring.current().number)?;
                self.inputs.iter().collect()
            }
        };
        let mut encrypted = read
            .iter()
            .filter_map(|layer| layer.manifest.encryption.as_ref());
        encrypted.try_for_each(|encryption| ring.require_reader(encryption.epoch))
    }

    fn labels(&self) -> Vec<Label> {
        self.inputs
            .iter()
            .map(|layer| layer.label.clone())
            .collect()
    }

    /// What can go once the merged layer exists, when all of `unwanted` may.
    fn removable(&self, catalog: &Catalog, unwanted: &[Label]) -> BTreeSet<Label> {
        if self.existing.is_some() {
            return catalog.removable(unwanted).into_iter().collect();
        }
        // Who stands on the newest will have the merged layer to stand on; all others must be inputs themselves.
        let mut gone = BTreeSet::from([self.inputs[0].label.clone()]);
        let others = self.inputs[1..].iter();
        for input in others.filter(|input| unwanted.contains(&input.label)) {
            let names = input.manifest.replaces.iter().cloned();
            let mut names = names.chain([input.reference()]);
            let needed = names.any(|name| {
                let mut children = catalog.layers.children(&name);
                name != self.newest && children.any(|child| !gone.contains(&child.label))
            });
            if !needed {
                gone.insert(input.label.clone());
            }
        }
        gone
    }

    /// The inputs that a server goes on from, each with why it stays. The newest is none: the merged layer has its state.
    fn bases(&self, bases: &LineBases) -> Vec<(Label, String)> {
        let inputs = self.inputs.iter();
        let found = inputs.filter_map(|input| {
            let own = input.reference();
            let is_it = |(layer, _): &&(ParentRef, TimelineId)| *layer == own && own != self.newest;
            let (_, timeline) = bases.layers.iter().find(is_it)?;
            let (label, newest) = (&input.label, &self.newest.label);
            let why = format!(
                "{label} stays: it is the newest layer from which timeline {timeline} can be restored, which leaves the history before \
                 {newest}; take a backup of the server on that timeline first"
            );
            Some((label.clone(), why))
        });
        found.collect()
    }

    fn plan(&self, catalog: &Catalog, bases: LineBases) -> MergePlan {
        let stays = self.bases(&bases);
        let mut unwanted = self.labels();
        unwanted.retain(|label| !stays.iter().any(|(base, _)| base == label));
        let going = |unwanted: &[Label]| {
            let mut going = self.removable(catalog, unwanted);
            // The merged layer has its state, and tells the same.
            going.retain(|label| label.as_str() != self.newest.label);
            going.into_iter().collect()
        };
        let find = |going: &[Label]| bases.witnesses(catalog, going);
        let (_, told) = catalog::without_witnesses(unwanted.clone(), going, find);
        unwanted.retain(|label| !told.iter().any(|(witness, _)| witness == label));
        let removable = self.removable(catalog, &unwanted);
        let mut notes = catalog::at_work(catalog, StoreTime::by_this_host());
        notes.extend(bases.notes);
        notes.extend(stays.into_iter().map(|(_, why)| why));
        let told = told.into_iter();
        notes.extend(told.map(|(label, why)| format!("{label} stays: {why}")));
        let inputs = self.inputs.iter().map(|layer| Input {
            label: layer.label.to_string(),
            pack_bytes: layer.manifest.pack_bytes,
            removable: removable.contains(&layer.label),
        });
        MergePlan {
            inputs: inputs.collect(),
            stands_on: self.below.as_ref().map(|layer| layer.label.to_string()),
            existing: self.existing.as_ref().map(|layer| layer.label.to_string()),
            notes,
        }
    }
}

fn not_in_chain(
    catalog: &Catalog,
    chain: &[&Layer],
    options: &MergeOptions,
    into: &Label,
) -> Error {
    if let Err(unknown) = catalog.layer(into) {
        return unknown;
    }
    let labels: Vec<&str> = chain.iter().map(|layer| layer.label.as_str()).collect();
    let what = format!("layer {} does not stand on {into}", options.label);
    Error::new(Kind::Usage, what).hint(format!("its chain is {}", labels.join(", ")))
}

/// A layer that an earlier merge of the same inputs has made.
fn existing<'a>(
    catalog: &'a Catalog,
    newest: &ParentRef,
    below: Option<&Layer>,
) -> Option<&'a Layer> {
    catalog.layers.iter().rev().find(|layer| {
        let parent = layer.manifest.parent.as_ref();
        let same_place = match (parent, below) {
            (None, None) => true,
            (Some(parent), Some(below)) => {
                below.manifest.stands_for(&below.manifest_digest, parent)
            }
            _ => false,
        };
        same_place && layer.manifest.replaces.contains(newest)
    })
}

/// One merge under way.
struct MergeRun<'a> {
    cluster: &'a ClusterRepository,
    catalog: &'a Catalog,
    choice: &'a Choice,
    options: &'a MergeOptions,
    progress: &'a Progress,
}

impl MergeRun<'_> {
    /// Makes the merged layer, unless it is there, and reads it back; answers also how many bytes making it has fetched.
    async fn run(&self) -> Result<(Label, Written, u64)> {
        let (choice, progress) = (self.choice, self.progress);
        progress.set_total(choice.inputs[0].manifest.totals.cluster_bytes);
        let (label, written) = match &choice.existing {
            Some(existing) => (existing.label.clone(), Written::default()),
            None => self.make().await?,
        };
        let fetched_bytes = progress.read().stored_bytes;
        if !choice.newest_is_gone() {
            let verification = Verification {
                cluster: self.cluster,
                catalog: &Catalog::load(self.cluster).await?,
                jobs: limits::workers(self.options.jobs),
                progress,
            };
            let newest = &choice.inputs[0].label;
            verification.replaces(&label, newest).await?;
            tracing::info!(%label, "the merged layer was read back and is what it must be");
        }
        Ok((label, written, fetched_bytes))
    }

    async fn make(&self) -> Result<(Label, Written)> {
        let below = self.choice.below.as_ref();
        let plan = LayerPlan {
            kind: match below {
                Some(_) => LayerKind::Incremental,
                None => LayerKind::Full,
            },
            parent: below.map(|layer| &layer.label),
        };
        // The commit finds out for itself when the layer was given up.
        let lost = |error: Error| tracing::error!("{error}");
        let now = Timestamp::now();
        let layer = NewLayer::begin(self.cluster, self.catalog, plan, now, lost).await?;
        let label = layer.label().clone();
        tracing::info!(%label, "{}", reason(&self.choice.inputs));
        let outcome = match self.check_inputs().await {
            Ok(()) => self.write(&layer).await,
            Err(error) => Err(error),
        };
        let act = || format!("could not merge {}", span(&self.choice.inputs));
        let outcome = outcome.map_err(|error| error.while_doing(act()));
        layer.end(&outcome).await;
        outcome.map(|written| (label, written))
    }

    /// To be called after the claim: who has decided before it to remove an input, or its WAL, has not seen that they are
    /// wanted, and may have forgotten his removal when this merge commits.
    async fn check_inputs(&self) -> Result<()> {
        let inputs = &self.choice.inputs;
        let leaving = catalog::check_stays(self.cluster, inputs).await?;
        catalog::check_wal(&leaving, inputs[0].manifest.start_lsn)
    }

    async fn write(&self, layer: &NewLayer) -> Result<Written> {
        let inputs = Chain::new(self.cluster, self.choice.inputs.clone());
        // What the merge's own progress counts as stored is what it fetches.
        let stored = Progress::default();
        let cluster = self.cluster.clone();
        let writer = LayerWriter::new(
            cluster,
            layer.label().clone(),
            layer.id(),
            layer.seal().clone(),
            stored,
        );
        let progress = self.progress.clone();
        let (codec, jobs) = (self.options.codec, limits::workers(self.options.jobs));
        let stands_on_others = self.choice.below.is_some();
        let written = tokio::task::spawn_blocking(move || {
            let maker = FrameMaker {
                inputs: &inputs,
                codec,
                jobs,
                progress: &progress,
            };
            MergeWriter::new(maker, &writer, stands_on_others)?.run()
        });
        let written = written
            .await
            .map_err(|e| Error::new(Kind::Interrupted, format!("the merge was stopped: {e}")))??;
        let manifest = self.manifest(layer, &written);
        let below = match &self.choice.below {
            Some(below) => chain_of(self.catalog, &below.label)?,
            None => Vec::new(),
        };
        let overwritten = layer.commit(&below, layer.encode(&manifest).await?);
        if let Some(overwritten) = overwritten.await? {
            tracing::warn!("{overwritten}");
        }
        Ok(written)
    }

    fn manifest(&self, layer: &NewLayer, written: &Written) -> Manifest {
        let choice = self.choice;
        let newest = &choice.inputs[0].manifest;
        let mut replaces = vec![choice.newest.clone()];
        replaces.extend(newest.replaces.iter().cloned());
        let mut inputs: Vec<ParentRef> = choice
            .inputs
            .iter()
            .map(|input| input.reference())
            .collect();
        let still_there = |input: &&ParentRef| self.catalog.layers.holds(input);
        for input in &choice.inputs {
            let older = input.manifest.inputs.iter().filter(still_there);
            inputs.extend(older.cloned());
        }
        let mut seen = BTreeSet::new();
        inputs.retain(|input| seen.insert(input.label.clone()));
        Manifest {
            label: layer.label().to_string(),
            layer_id: catalog::hex(&layer.id()),
            parent: choice.below.as_ref().map(|below| below.reference()),
            replaces,
            inputs,
            written_by: catalog::WRITTEN_BY.to_owned(),
            change_source: ChangeSourceRecord {
                used: match choice.below {
                    None => ChangeSource::Everything,
                    Some(_) => newest.change_source.used,
                },
                reason: reason(&choice.inputs),
            },
            index: written.parts.clone(),
            pack_count: written.pack_count,
            pack_bytes: written.pack_bytes,
            totals: written.totals,
            corrupt_pages: written.corrupt_pages.clone(),
            encryption: layer.seal().encryption(),
            ..newest.clone()
        }
    }
}

fn chain_of(catalog: &Catalog, label: &Label) -> Result<Vec<Arc<Layer>>> {
    let chain = catalog.chain(label)?.into_iter();
    Ok(chain.map(|layer| Arc::new(layer.clone())).collect())
}

/// Why the merged layer was made, for people.
fn reason(inputs: &[Arc<Layer>]) -> String {
    format!("merged {}", span(inputs))
}

/// The inputs' labels, oldest and newest, for people.
fn span(inputs: &[Arc<Layer>]) -> String {
    let oldest = inputs.last().map_or("", |layer| layer.label.as_str());
    let newest = inputs.first().map_or("", |layer| layer.label.as_str());
    format!("{} layers, {oldest} to {newest}", inputs.len())
}

/// Layers that are about to be removed.
pub(crate) struct Going<'a> {
    pub(crate) layers: &'a [Label],
    /// Merged layers out of which some of them were made, and which are to be whole.
    pub(crate) read_back: &'a [Label],
}

/// Verifies the merged layers that hold the state of any that goes: a merge may have
/// been killed before it came to that. Each that says so is compared with each of them, also with an older merge of the same
/// state: whoever may store a layer can write into its manifest what it replaces.
pub(crate) async fn verify_replacements(
    cluster: &ClusterRepository,
    going: &Going<'_>,
    jobs: usize,
    progress: &Progress,
) -> Result<()> {
    let catalog = Catalog::load(cluster).await?;
    let verification = Verification {
        cluster,
        catalog: &catalog,
        jobs,
        progress,
    };
    for merged in going.read_back {
        verification.is_whole(merged).await?;
    }
    for (merged, replaced) in comparisons(&catalog, going.layers) {
        verification
            .replaces(&merged.label, &replaced.label)
            .await?;
    }
    Ok(())
}

/// Each merged layer that stays and says that it replaces one of `going`, with that one.
pub(crate) fn comparisons<'a>(
    catalog: &'a Catalog,
    going: &[Label],
) -> Vec<(&'a Layer, &'a Layer)> {
    let unwanted: BTreeSet<&Label> = going.iter().collect();
    let mut pairs = Vec::new();
    for (at, merged) in catalog.layers.iter().enumerate() {
        let replaces = &merged.manifest.replaces;
        if replaces.is_empty() || unwanted.contains(&merged.label) {
            continue;
        }
        for (older, replaced) in catalog.layers.iter().enumerate() {
            let is_same_merge = older < at && replaced.manifest.replaces.last() == replaces.last();
            let is_replaced = is_same_merge || replaces.contains(&replaced.reference());
            if is_replaced && unwanted.contains(&replaced.label) {
                pairs.push((merged, replaced));
            }
        }
    }
    pairs
}

/// Reads merged layers back.
struct Verification<'a> {
    cluster: &'a ClusterRepository,
    catalog: &'a Catalog,
    jobs: usize,
    progress: &'a Progress,
}

impl Verification<'_> {
    /// Compares the layer `merged` with the layer that it replaces.
    async fn replaces(&self, merged: &Label, replaced: &Label) -> Result<()> {
        let chain =
            |label| chain_of(self.catalog, label).map(|layers| Chain::new(self.cluster, layers));
        let (ours, inputs) = (chain(merged)?, chain(replaced)?);
        let layers = [&ours.layers[..], &inputs.layers[..]].concat();
        let (jobs, progress) = (self.jobs, self.progress.clone());
        let check = move || {
            check_same_state(&ours, &inputs, &progress)?;
            // Digests are what the layers say of themselves.
            let mut alone = ours.not_in(&inputs);
            alone.try_for_each(|layer| check_frames(&layer, jobs, &progress))
        };
        self.run(merged, &layers, check).await
    }

    /// Reads the layer `merged` back. There is nothing any more to compare it with.
    async fn is_whole(&self, merged: &Label) -> Result<()> {
        let chain = Chain::new(self.cluster, chain_of(self.catalog, merged)?);
        let layers = chain.layers.clone();
        let (jobs, progress) = (self.jobs, self.progress.clone());
        let check = move || check_frames(&chain.newest(), jobs, &progress);
        self.run(merged, &layers, check).await
    }

    async fn run(
        &self,
        merged: &Label,
        layers: &[Arc<Layer>],
        check: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let verified = tokio::task::spawn_blocking(check).await;
        let verified = verified.unwrap_or_else(|e| {
            Err(Error::new(
                Kind::Interrupted,
                format!("the merge was stopped: {e}"),
            ))
        });
        let Err(error) = verified else { return Ok(()) };
        let error = catalog::unless_removed(self.cluster, layers, error).await;
        Err(error.while_doing(format!("could not verify layer {merged}")))
    }
}

async fn remove_inputs(
    cluster: &ClusterRepository,
    choice: &Choice,
    terms: Terms<'_>,
    (bases, notes): (LineBases, &mut Vec<String>),
) -> Result<Vec<Label>> {
    let stays = choice.bases(&bases);
    if !bases.notes.is_empty() {
        notes.extend(bases.notes);
        return Ok(Vec::new());
    }
    let tell = |catalog: &Catalog, going: &[Label]| bases.witnesses(catalog, going);
    let is_base = |label: &Label| stays.iter().any(|(base, _)| base == label);
    let wanted = choice.inputs.iter().filter(|input| !is_base(&input.label));
    let wanted: Vec<Arc<Layer>> = wanted.cloned().collect();
    let terms = Terms {
        witnesses: Some(&tell),
        ..terms
    };
    let removed = catalog::remove_layers(cluster, &wanted, terms).await?;
    if !removed.notes.is_empty() {
        notes.extend(removed.notes);
        return Ok(removed.labels);
    }
    let catalog = Catalog::load(cluster).await?;
    let marks = catalog::mark::load(cluster).await?;
    // Somebody may have deleted a part of one that is pinned.
    let pinned: BTreeSet<&Label> = marks.pins_of_gone(&catalog, Timestamp::now()).collect();
    let unfinished = catalog.unfinished.iter();
    let merged = unfinished.filter(|left| left.was_merged && !pinned.contains(&left.label));
    for left in merged {
        remove_leftover(cluster, &left.label).await?;
    }
    catalog::tidy_removals(cluster).await?;
    let said = |label: &Label| {
        let mut remarks = removed.remarks.iter();
        remarks.any(|remark| remark.starts_with(&format!("layer {label} stays")))
    };
    let labels = choice.labels().into_iter();
    let staying = labels.filter(|label| !removed.labels.contains(label) && !said(label));
    let others = staying.filter(|label| !is_base(label));
    let others = others.map(|label| format!("{label} stays: other layers stand on it"));
    notes.extend(others.chain(removed.remarks.iter().cloned()));
    notes.extend(stays.iter().map(|(_, why)| why.clone()));
    Ok(removed.labels)
}
