//! The acts of a merge in their order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use jiff::Timestamp;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{self, ChangeSource, ChangeSourceRecord, Manifest, ParentRef};
use tokio::runtime::Handle;

use super::compare::{check_frames, check_same_state};
use super::window::Workshop;
use super::write::{Destination, LayerWriter, Written, reason};
use super::{Input, MergeOptions, MergePlan, MergeReport};
use crate::catalog::{self, Catalog, Layer, remove_leftover};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::restore::Source;

/// Version of the plan's JSON.
const SCHEMA: u32 = 1;

/// Says what a merge would do now; changes nothing.
///
/// # Errors
/// When the layers cannot be merged.
pub async fn plan(
    repository: &Repository,
    cluster: &ClusterName,
    options: &MergeOptions,
) -> Result<MergePlan> {
    let catalog = Catalog::load(repository, cluster).await?;
    Ok(Choice::new(&catalog, options)?.plan(&catalog))
}

/// Merges. When it returns `Ok` the merged layer exists and has been compared with its inputs.
///
/// # Errors
/// What kept it from being made, or from being what it must be; no input is removed then.
pub async fn execute(
    repository: &Repository,
    cluster: &ClusterName,
    options: &MergeOptions,
    progress: &Progress,
) -> Result<MergeReport> {
    let started = Instant::now();
    let catalog = Catalog::load(repository, cluster).await?;
    let choice = Choice::new(&catalog, options)?;
    let source = Source {
        repository: repository.clone(),
        cluster: cluster.clone(),
        runtime: Handle::current(),
    };
    progress.set_total(choice.inputs[0].manifest.totals.cluster_bytes);
    let (label, written) = match &choice.existing {
        Some(existing) => (existing.label.clone(), Written::default()),
        None => make(&source, &catalog, &choice, (options, progress)).await?,
    };
    let fetched_bytes = progress.read().stored_bytes;
    if !choice.newest_is_gone() {
        let made = Catalog::load(repository, cluster).await?;
        let (merged, newest) = (made.layer(&label)?, &choice.inputs[0].label);
        verify(&source, &made, merged, newest, (options.jobs, progress)).await?;
        tracing::info!(%label, "the merged layer was read back and is what it must be");
    }
    let mut notes = Vec::new();
    let removed = match options.remove {
        true => remove_inputs(&source, &choice, &label, &mut notes).await?,
        false => Vec::new(),
    };
    Ok(MergeReport {
        label: label.to_string(),
        inputs: choice.labels().iter().map(Label::to_string).collect(),
        stands_on: choice.below.as_ref().map(|layer| layer.label.to_string()),
        frames_copied: written.frames_copied,
        copied_bytes: written.copied_bytes,
        frames_encoded: written.frames_encoded,
        encoded_bytes: written.encoded_bytes,
        fetched_bytes,
        pack_bytes: written.pack_bytes,
        removed: removed.iter().map(Label::to_string).collect(),
        seconds: started.elapsed().as_secs_f64(),
        notes,
    })
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
                catalog.layer(into)?;
                let found = chain.iter().position(|layer| layer.label == *into);
                found.ok_or_else(|| {
                    let labels: Vec<&str> =
                        chain.iter().map(|layer| layer.label.as_str()).collect();
                    Error::new(
                        Kind::Usage,
                        format!("layer {} does not stand on {into}", options.label),
                    )
                    .hint(format!("its chain is {}", labels.join(", ")))
                })?
            }
        };
        if oldest == 0 {
            return Err(Error::new(
                Kind::Usage,
                format!("there is nothing to merge {} with", options.label),
            )
            .hint("name a layer that stands on others, and with --into the oldest to merge"));
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
        let mut layers = catalog.layers.iter();
        if layers.any(|layer| layer.label == options.label) {
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
            .filter_map(|input| {
                catalog
                    .layers
                    .iter()
                    .find(|layer| layer.reference() == *input)
            })
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

    fn labels(&self) -> Vec<Label> {
        self.inputs
            .iter()
            .map(|layer| layer.label.clone())
            .collect()
    }

    /// What can go once the merged layer exists.
    fn removable(&self, catalog: &Catalog) -> BTreeSet<Label> {
        let labels = self.labels();
        if self.existing.is_some() {
            return catalog.removable(&labels).into_iter().collect();
        }
        // Who stands on the newest will have the merged layer to stand on; all others must be inputs themselves.
        let mut gone = BTreeSet::from([labels[0].clone()]);
        for input in &self.inputs[1..] {
            let needed = catalog.layers.iter().any(|child| {
                let parent = child.manifest.parent.as_ref();
                let stands = parent.is_some_and(|parent| {
                    input.manifest.stands_for(&input.manifest_digest, parent)
                        && *parent != self.newest
                });
                stands && !gone.contains(&child.label)
            });
            if !needed {
                gone.insert(input.label.clone());
            }
        }
        gone
    }

    fn plan(&self, catalog: &Catalog) -> MergePlan {
        let removable = self.removable(catalog);
        let inputs = self.inputs.iter().map(|layer| Input {
            label: layer.label.to_string(),
            pack_bytes: layer.manifest.pack_bytes,
            removable: removable.contains(&layer.label),
        });
        MergePlan {
            schema: SCHEMA,
            inputs: inputs.collect(),
            stands_on: self.below.as_ref().map(|layer| layer.label.to_string()),
            existing: self.existing.as_ref().map(|layer| layer.label.to_string()),
            notes: catalog::at_work(catalog),
        }
    }
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

async fn make(
    source: &Source,
    catalog: &Catalog,
    choice: &Choice,
    (options, progress): (&MergeOptions, &Progress),
) -> Result<(Label, Written)> {
    let layer_id: [u8; 16] = rand::random();
    let kind = match choice.below {
        Some(_) => LayerKind::Incremental,
        None => LayerKind::Full,
    };
    let claim = catalog::our_claim("", &catalog::hex(&layer_id), Timestamp::now());
    let below = choice.below.as_ref().map(|layer| &layer.label);
    let label = catalog::claim(
        &source.repository,
        &source.cluster,
        catalog,
        (kind, below),
        claim,
    )
    .await?;
    tracing::info!(%label, "{}", reason(&choice.inputs));
    let committing = AtomicBool::new(false);
    let outcome = write(
        source,
        (choice, catalog),
        (&label, layer_id),
        (options, progress),
        &committing,
    )
    .await;
    if outcome.is_err() {
        if committing.load(Ordering::Relaxed) {
            tracing::warn!(%label, "it is not known whether the merged layer was committed: see info");
        } else if let Err(error) =
            remove_leftover(&source.repository, &source.cluster, &label).await
        {
            tracing::warn!(%label, %error, "could not remove what the failed merge has stored: it is harmless, and listed by info");
        }
    }
    outcome.map(|written| (label, written))
}

async fn write(
    source: &Source,
    (choice, catalog): (&Choice, &Catalog),
    (label, layer_id): (&Label, [u8; 16]),
    (options, progress): (&MergeOptions, &Progress),
    committing: &AtomicBool,
) -> Result<Written> {
    let (task, inputs) = (source.clone(), choice.inputs.clone());
    let (own_label, progress) = (label.clone(), progress.clone());
    let (codec, jobs) = (options.codec, options.jobs);
    let stands_on_others = choice.below.is_some();
    let written = tokio::task::spawn_blocking(move || {
        let workshop = Workshop {
            source: &task,
            layers: &inputs,
            codec,
            jobs,
            progress: &progress,
        };
        let destination = Destination {
            label: &own_label,
            layer_id,
            stands_on_others,
        };
        LayerWriter::new(workshop, destination)?.run()
    });
    let written = written
        .await
        .map_err(|e| Error::new(Kind::Interrupted, format!("the merge was stopped: {e}")))??;
    let manifest = merged_manifest((choice, catalog), (label, layer_id), &written);
    let below = match &choice.below {
        Some(below) => chain_of(catalog, &below.label)?,
        None => Vec::new(),
    };
    let object = manifest::encode(&manifest);
    let committing = catalog::commit_layer(
        &source.repository,
        &source.cluster,
        &below,
        (label, object),
        committing,
    );
    committing.await?;
    Ok(written)
}

fn merged_manifest(
    (choice, catalog): (&Choice, &Catalog),
    (label, layer_id): (&Label, [u8; 16]),
    written: &Written,
) -> Manifest {
    let newest = &choice.inputs[0].manifest;
    let mut replaces = vec![choice.newest.clone()];
    replaces.extend(newest.replaces.iter().cloned());
    let mut inputs: Vec<ParentRef> = choice
        .inputs
        .iter()
        .map(|input| input.reference())
        .collect();
    let still_there = |input: &&ParentRef| catalog.layers.iter().any(|l| l.reference() == **input);
    for input in &choice.inputs {
        let older = input.manifest.inputs.iter().filter(still_there);
        inputs.extend(older.cloned());
    }
    let mut seen = BTreeSet::new();
    inputs.retain(|input| seen.insert(input.label.clone()));
    Manifest {
        label: label.to_string(),
        layer_id: catalog::hex(&layer_id),
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
        ..newest.clone()
    }
}

fn chain_of(catalog: &Catalog, label: &Label) -> Result<Vec<Arc<Layer>>> {
    let chain = catalog.chain(label)?.into_iter();
    Ok(chain.map(|layer| Arc::new(layer.clone())).collect())
}

/// Verifies the merged layers that hold the state of any of `unwanted`, which are about to be removed: a merge may have
/// been killed before it came to that.
pub(crate) async fn verify_replacements(
    repository: &Repository,
    cluster: &ClusterName,
    unwanted: &[Label],
    (jobs, progress): (usize, &Progress),
) -> Result<()> {
    let catalog = Catalog::load(repository, cluster).await?;
    let source = Source {
        repository: repository.clone(),
        cluster: cluster.clone(),
        runtime: Handle::current(),
    };
    for merged in catalog
        .layers
        .iter()
        .filter(|layer| !unwanted.contains(&layer.label))
    {
        let replaced = merged.manifest.replaces.iter().find_map(|replaced| {
            unwanted
                .iter()
                .find(|label| label.as_str() == replaced.label)
        });
        if let Some(replaced) = replaced {
            verify(&source, &catalog, merged, replaced, (jobs, progress)).await?;
        }
    }
    Ok(())
}

/// Reads the merged layer back and compares it with the layer that it replaces.
async fn verify(
    source: &Source,
    catalog: &Catalog,
    merged: &Layer,
    replaced: &Label,
    (jobs, progress): (usize, &Progress),
) -> Result<()> {
    let label = &merged.label;
    let (ours, inputs) = (chain_of(catalog, label)?, chain_of(catalog, replaced)?);
    let (source, progress) = (source.clone(), progress.clone());
    let verified = tokio::task::spawn_blocking(move || {
        check_same_state(&source, &ours, &inputs, &progress)?;
        check_frames(&source, &ours[0], jobs, &progress)
    });
    let verified = verified.await.unwrap_or_else(|e| {
        Err(Error::new(
            Kind::Interrupted,
            format!("the merge was stopped: {e}"),
        ))
    });
    verified.map_err(|error| error.while_doing(format!("could not verify layer {label}")))
}

async fn remove_inputs(
    source: &Source,
    choice: &Choice,
    merged: &Label,
    notes: &mut Vec<String>,
) -> Result<Vec<Label>> {
    let (repository, cluster) = (&source.repository, &source.cluster);
    let removed = catalog::remove_layers(repository, cluster, &choice.inputs, Some(merged)).await?;
    if !removed.notes.is_empty() {
        notes.extend(removed.notes);
        return Ok(Vec::new());
    }
    let catalog = Catalog::load(repository, cluster).await?;
    for left in catalog.unfinished.iter().filter(|left| left.was_merged) {
        remove_leftover(repository, cluster, &left.label).await?;
    }
    let labels = choice.labels().into_iter();
    let staying = labels.filter(|label| !removed.labels.contains(label));
    notes.extend(staying.map(|label| format!("{label} stays: other layers stand on it")));
    Ok(removed.labels)
}
