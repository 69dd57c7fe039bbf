//! Expiry: obeys the plan of retention. Layers that nobody wants go, then WAL that no layer needs, then what acts that
//! were killed have left; long chains are merged before.
//!
//! Nothing is removed while a layer is being made: it may be about to stand on one that would go.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::{self, Held, MergeStep, Policy};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};
use serde::Serialize;

use crate::catalog::{self, Catalog, Layer, remove_leftover};
use crate::error::{Error, Kind, Result};
use crate::merge::{self, MergeOptions, MergeReport};
use crate::progress::Progress;
use crate::repository::Repository;

/// Version of the report's JSON.
const SCHEMA: u32 = 1;

/// Deletions at once.
const DELETE_AT_ONCE: usize = 16;

/// What to keep, and how to merge.
#[derive(Clone, Debug)]
pub struct ExpireOptions {
    /// What is kept.
    pub policy: Policy,
    /// Compression of frames that merging encodes anew.
    pub codec: Codec,
    /// Threads that merge.
    pub jobs: usize,
}

/// A layer that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its label.
    pub label: String,
    /// Why.
    pub why: String,
}

/// A merge that keeps the chain short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedMerge {
    /// The newest layer to be merged.
    pub label: String,
    /// The oldest.
    pub into: String,
    /// Layers in the chain before.
    pub chain_length: usize,
    /// And after.
    pub new_length: usize,
}

/// What expiry will do, or has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpireReport {
    /// Version of this record.
    pub schema: u32,
    /// Whether it has been done.
    pub done: bool,
    /// What is merged; of a plan, only the layers as they are now.
    pub merge: Option<PlannedMerge>,
    /// What the merge has done.
    pub merged: Option<MergeReport>,
    /// Layers that stay, oldest first.
    pub keep: Vec<Kept>,
    /// Layers that go, newest first. After a merge its inputs go too.
    pub remove: Vec<String>,
    /// Interrupted acts whose objects go.
    pub leftovers: Vec<String>,
    /// Files of the WAL archive that go.
    pub wal_files: u64,
    /// Their bytes.
    pub wal_bytes: u64,
    /// The oldest WAL segment number that is kept lies at this LSN.
    pub wal_from: Option<pgstrata_pgdata::lsn::Lsn>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What to remove, found out without touching anything.
struct Found {
    step: Option<MergeStep>,
    remove: Vec<Arc<Layer>>,
    leftovers: Vec<Label>,
    wal: Vec<String>,
    report: ExpireReport,
}

/// Says what expiry would do now; changes nothing.
///
/// # Errors
/// When there is no rule, or the repository cannot be read.
pub async fn plan(
    repository: &Repository,
    cluster: &ClusterName,
    options: &ExpireOptions,
) -> Result<ExpireReport> {
    Ok(find(repository, cluster, options).await?.report)
}

/// Does it.
///
/// # Errors
/// When the repository cannot be read or written. What was to go may have gone in part, and never anything else.
pub async fn execute(
    repository: &Repository,
    cluster: &ClusterName,
    options: &ExpireOptions,
    progress: &Progress,
) -> Result<ExpireReport> {
    let mut found = find(repository, cluster, options).await?;
    if !found.report.notes.is_empty() {
        return Ok(found.report);
    }
    let (mut merge, mut merged) = (None, None);
    if let (Some(step), Some(planned)) = (found.step.take(), found.report.merge.take()) {
        let catalog = Catalog::load(repository, cluster).await?;
        let label = |at: usize| {
            let layer = catalog.layers.get(at);
            layer.map(|layer| layer.label.clone()).ok_or_else(changed)
        };
        let merging = MergeOptions {
            label: label(step.newest)?,
            into: Some(label(step.oldest)?),
            codec: options.codec,
            jobs: options.jobs,
            remove: true,
        };
        if merging.label.as_str() != planned.label {
            return Err(changed());
        }
        let outcome = merge::execute(repository, cluster, &merging, progress).await;
        merged = Some(unless_gone(repository, cluster, &[merging.label], outcome).await?);
        merge = Some(planned);
        found = find(repository, cluster, options).await?;
        if !found.report.notes.is_empty() {
            return Ok(found.report);
        }
    }
    let unwanted = found.remove.iter().map(|layer| layer.label.clone());
    let unwanted: Vec<Label> = unwanted.collect();
    let verified =
        merge::verify_replacements(repository, cluster, &unwanted, (options.jobs, progress)).await;
    unless_gone(repository, cluster, &unwanted, verified).await?;
    let removed = catalog::remove_layers(repository, cluster, &found.remove, None).await?;
    if !removed.notes.is_empty() {
        let mut report = found.report;
        (report.merge, report.merged, report.notes) = (merge, merged, removed.notes);
        return Ok(report);
    }
    if removed.labels.len() != found.remove.len() {
        // Somebody stands on one of them now, and needs its WAL.
        return Err(changed());
    }
    for label in &found.leftovers {
        remove_leftover(repository, cluster, label).await?;
    }
    let deletions = found.wal.iter().map(|key| repository.delete(key));
    futures::stream::iter(deletions)
        .buffer_unordered(DELETE_AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let mut report = found.report;
    (report.merge, report.merged, report.done) = (merge, merged, true);
    Ok(report)
}

/// The outcome of an act on `labels`; when it failed because another expiry has removed one of them, that is said.
async fn unless_gone<T>(
    repository: &Repository,
    cluster: &ClusterName,
    labels: &[Label],
    outcome: Result<T>,
) -> Result<T> {
    let Err(error) = outcome else { return outcome };
    let catalog = Catalog::load(repository, cluster).await?;
    let there = |label: &Label| catalog.layers.iter().any(|layer| layer.label == *label);
    if labels.iter().all(there) {
        return Err(error);
    }
    tracing::debug!(%error, "a layer has gone meanwhile");
    Err(changed())
}

fn changed() -> Error {
    Error::new(
        Kind::Busy,
        "the repository has changed while expiry was planned",
    )
    .hint("run it again")
}

async fn find(
    repository: &Repository,
    cluster: &ClusterName,
    options: &ExpireOptions,
) -> Result<Found> {
    let policy = &options.policy;
    if *policy == Policy::default() {
        return Err(Error::new(Kind::Usage, "it is not said what to keep")
            .hint("give --keep-full, --keep-days or --max-chain"));
    }
    let catalog = Catalog::load(repository, cluster).await?;
    let layers = held(&catalog);
    let plan = retention::plan(&layers, policy, Timestamp::now());
    let mut notes = catalog::at_work(&catalog);
    for (label, error) in &catalog.damaged {
        notes.push(format!(
            "nothing is removed, because it is not known what layer {label} stands on: {error}"
        ));
    }
    let unwanted = layers.iter().zip(&plan.keep);
    let unwanted: Vec<Label> = unwanted
        .filter(|(_, why)| why.is_none())
        .map(|(layer, _)| layer.label.clone())
        .collect();
    let remove = catalog.removable(&unwanted);
    let stays: Vec<&Layer> = catalog
        .layers
        .iter()
        .filter(|layer| !remove.contains(&layer.label))
        .collect();
    let wal = superfluous_wal(repository, cluster, &stays).await?;
    let leftovers: Vec<Label> = catalog
        .unfinished
        .iter()
        .filter(|unfinished| unfinished.is_forgotten())
        .map(|unfinished| unfinished.label.clone())
        .collect();
    let keep = catalog.layers.iter().zip(&plan.keep);
    let keep = keep.filter_map(|(layer, why)| {
        Some(Kept {
            label: layer.label.to_string(),
            why: (*why)?.as_str().to_owned(),
        })
    });
    let merge = plan.merge.as_ref().map(|step| PlannedMerge {
        label: layers[step.newest].label.to_string(),
        into: layers[step.oldest].label.to_string(),
        chain_length: step.length.0,
        new_length: step.length.1,
    });
    let report = ExpireReport {
        schema: SCHEMA,
        done: false,
        merge,
        merged: None,
        keep: keep.collect(),
        remove: remove.iter().map(Label::to_string).collect(),
        leftovers: leftovers.iter().map(Label::to_string).collect(),
        wal_files: u64::try_from(wal.len()).expect("usize has 64 bits"),
        wal_bytes: wal.iter().map(|(_, bytes)| bytes).sum(),
        wal_from: stays.iter().map(|layer| layer.manifest.start_lsn).min(),
        notes,
    };
    let remove = remove.iter().map(|label| catalog.layer(label).cloned());
    Ok(Found {
        step: plan.merge,
        remove: remove
            .map(|layer| layer.map(Arc::new))
            .collect::<Result<_>>()?,
        leftovers,
        wal: wal.into_iter().map(|(key, _)| key).collect(),
        report,
    })
}

/// The catalog's layers as retention sees them.
fn held(catalog: &Catalog) -> Vec<Held> {
    let position = |label: &Label| {
        catalog
            .layers
            .iter()
            .position(|layer| layer.label == *label)
    };
    let held = |(at, layer): (usize, &Layer)| {
        let chain = catalog.chain(&layer.label).unwrap_or_default();
        let own = layer.reference();
        // Two merges at the same time make the same twice; the later one is that on which others stand.
        let state = layer.manifest.replaces.last();
        let later = &catalog.layers[at + 1..];
        let twice = state.is_some_and(|state| {
            let mut later = later.iter();
            later.any(|other| other.manifest.replaces.last() == Some(state))
        });
        let replaced = |other: &Layer| other.manifest.replaces.contains(&own);
        let merged = |other: &Layer| other.manifest.inputs.contains(&own);
        Held {
            label: layer.label.clone(),
            parent: chain.get(1).and_then(|parent| position(&parent.label)),
            finished_at: layer.manifest.finished_at,
            replaced: twice || catalog.layers.iter().any(replaced),
            merged: catalog.layers.iter().any(merged),
        }
    };
    catalog.layers.iter().enumerate().map(held).collect()
}

/// Archived files that no layer of `stays` needs: recovery from a layer begins at its start and only goes forward, on
/// whatever timeline, so what ends before the first start of all is read by none. Histories are kept for ever.
async fn superfluous_wal(
    repository: &Repository,
    cluster: &ClusterName,
    stays: &[&Layer],
) -> Result<Vec<(String, u64)>> {
    let Some(first) = stays.iter().min_by_key(|layer| layer.manifest.start_lsn) else {
        return Ok(Vec::new());
    };
    let size = WalSegmentSize::try_from(u64::from(first.manifest.cluster.wal_segment_size))?;
    let needed = first.manifest.start_lsn.segment(size);
    let prefix = cluster.wal_prefix();
    let mut superfluous = Vec::new();
    for directory in repository.list_names(&prefix).await? {
        for object in repository.list(&format!("{prefix}/{directory}")).await? {
            let name = object.key.rsplit('/').next().unwrap_or_default();
            let number = match ArchiveFile::parse(name, size) {
                Ok(ArchiveFile::Segment(segment) | ArchiveFile::Partial(segment)) => segment.number,
                Ok(ArchiveFile::BackupLabel { segment, .. }) => segment.number,
                // Histories, and what is not ours.
                _ => continue,
            };
            if number < needed {
                superfluous.push((object.key, object.size_bytes));
            }
        }
    }
    Ok(superfluous)
}
