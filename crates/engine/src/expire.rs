//! Expiry: obeys the plan of retention. Layers that nobody wants go, then WAL that no layer needs, then what acts that
//! were killed have left; long chains are merged before.
//!
//! Nothing is removed while a layer is being made: it may be about to stand on one that would go.

mod lines;

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;

use jiff::SignedDuration;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::retention::{self, Held, MergeStep, Policy, Why};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog, InUse, Layer, StoreTime, Terms, remove_leftover};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use serde::Serialize;

use crate::health;
use crate::merge::{self, MergeOptions, MergeReport};
use lines::{Lines, Placed, SILENCE};

/// What to keep, and how to merge.
#[derive(Clone, Debug)]
pub struct ExpireOptions {
    /// What is kept.
    pub policy: Policy,
    /// Compression of frames that merging encodes anew.
    pub codec: Codec,
    /// Threads that merge.
    pub jobs: usize,
    /// Whether layers and WAL go that a restore may need.
    pub ignore_restores: bool,
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
    pub from: String,
    /// Layers in the chain before.
    pub chain_length: usize,
    /// And after.
    pub new_length: usize,
}

/// What expiry will do, or has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpireReport {
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
    pub wal_from: Option<Lsn>,
    /// What kept it from being done.
    pub notes: Vec<String>,
    /// What else the user should know.
    pub remarks: Vec<String>,
}

/// What to remove, found out without touching anything.
struct Expiry {
    step: Option<MergeStep>,
    remove: Vec<Arc<Layer>>,
    leftovers: Vec<Label>,
    report: ExpireReport,
}

/// Says what expiry would do now; changes nothing.
///
/// # Errors
/// When there is no rule, or the repository cannot be read.
pub async fn plan(cluster: &ClusterRepository, options: &ExpireOptions) -> Result<ExpireReport> {
    // Not the store's time: nothing is written, and nothing is decided.
    let now = StoreTime::by_this_host();
    Ok(find(cluster, options, now).await?.report)
}

/// Does it.
///
/// # Errors
/// When the repository cannot be read or written. What was to go may have gone in part, and never anything else.
pub async fn execute(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
) -> Result<ExpireReport> {
    check_policy(options)?;
    let outcome = loop {
        match attempt(cluster, options, progress).await {
            Err(error) if error.is_lack_of_space() && cluster.repository.free_room().await? => {
                tracing::info!(%error, "the repository is full: part of its reserve is given up");
            }
            Err(error) if error.is_lack_of_space() => break Err(error.hint(FULL)),
            outcome => break outcome,
        }
    };
    cluster.repository.lay_up_room().await;
    outcome
}

/// Where neither the records of a removal fit nor a merged layer.
const FULL: &str = "free some room where the repository is, by other means, and run it again; a merge needs room for \
    the merged layer: free that first, with --keep-full or --keep-days alone";

async fn attempt(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
) -> Result<ExpireReport> {
    let now = StoreTime::ask(cluster).await?;
    let completed = catalog::complete_removals(cluster).await?;
    let mut found = find(cluster, options, now).await?;
    let completed = completed.iter().map(|label| {
        format!("layer {label} is gone: an expiry that was interrupted had begun to remove it")
    });
    let completed: Vec<String> = completed.collect();
    found.report.remarks.extend(completed.iter().cloned());
    if !found.report.notes.is_empty() {
        return Ok(found.report);
    }
    let (mut merge, mut merged) = (None, None);
    if let (Some(step), Some(planned)) = (found.step.take(), found.report.merge.take()) {
        merged = Some(merge_first(cluster, options, progress, &step, &planned).await?);
        merge = Some(planned);
        found = find(cluster, options, now).await?;
        found.report.remarks.extend(completed);
        if !found.report.notes.is_empty() {
            return Ok(found.report);
        }
    }
    let unwanted = found.remove.iter().map(|layer| layer.label.clone());
    let unwanted: Vec<Label> = unwanted.collect();
    let verified = merge::verify_replacements(cluster, &unwanted, options.jobs, progress).await;
    unless_gone(cluster, &unwanted, verified).await?;
    let mut report = found.report;
    (report.merge, report.merged) = (merge, merged);
    let terms = Terms {
        instead: None,
        ignore_restores: options.ignore_restores,
        wal: report.wal_files > 0,
    };
    let removed = catalog::remove_layers(cluster, &found.remove, terms).await?;
    if !removed.notes.is_empty() {
        report.notes = removed.notes;
        return Ok(report);
    }
    if removed.labels.len() + removed.remarks.len() < found.remove.len() {
        // Somebody stands on one of them now, and needs its WAL.
        return Err(changed());
    }
    for label in &found.leftovers {
        match remove_leftover(cluster, label).await {
            Err(error) if error.kind() == Kind::Refused => report.remarks.push(error.to_string()),
            removed => removed?,
        }
    }
    catalog::forget_old(cluster, now).await?;
    report.remarks.extend(removed.remarks);
    report.done = true;
    Ok(report)
}

/// Merges the oldest layers of the newest chain.
async fn merge_first(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
    step: &MergeStep,
    planned: &PlannedMerge,
) -> Result<MergeReport> {
    let catalog = Catalog::load(cluster).await?;
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
        ignore_restores: options.ignore_restores,
    };
    if merging.label.as_str() != planned.label {
        return Err(changed());
    }
    let outcome = merge::execute(cluster, &merging, progress).await;
    unless_gone(cluster, &[merging.label], outcome).await
}

/// The outcome of an act on `labels`; when it failed because another expiry has removed one of them, that is said.
async fn unless_gone<T>(
    cluster: &ClusterRepository,
    labels: &[Label],
    outcome: Result<T>,
) -> Result<T> {
    let Err(error) = outcome else { return outcome };
    let catalog = Catalog::load(cluster).await?;
    let there = |label: &Label| catalog.layers.position(label).is_some();
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

fn check_policy(options: &ExpireOptions) -> Result<()> {
    if options.policy == Policy::default() {
        return Err(Error::new(Kind::Usage, "it is not said what to keep")
            .hint("give --keep-full, --keep-days or --max-chain"));
    }
    Ok(())
}

async fn find(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    now: StoreTime,
) -> Result<Expiry> {
    check_policy(options)?;
    let restores = match options.ignore_restores {
        true => Vec::new(),
        false => catalog::in_use(cluster, now).await?,
    };
    let catalog = Catalog::examine(cluster).await?;
    let mut notes = catalog::at_work(&catalog, now);
    notes.extend(catalog::not_known(&catalog));
    let archived = archived(cluster, &mut notes).await?;
    let problems: Vec<Option<String>> = catalog
        .layers
        .iter()
        .map(|layer| health::problem(&catalog, layer, Some(&archived)))
        .collect();
    let layers = held(&catalog, &problems, &restores);
    let lines = find_lines(&catalog, &layers, &archived, options, now);
    let plan = retention::plan(&layers, &lines.lines, &options.policy, now.timestamp());
    let unwanted = layers.iter().zip(&plan.keep);
    let unwanted: Vec<Label> = unwanted
        .filter(|(_, why)| why.is_none())
        .map(|(layer, _)| layer.label.clone())
        .collect();
    let remove = catalog.removable(&unwanted);
    let (wal_from, wal, mut remarks) = old_wal(cluster, &catalog, &remove, &restores).await?;
    remarks.extend(about(&lines));
    remarks.extend(not_counted(&catalog, &problems));
    let leftovers: Vec<Label> = catalog
        .unfinished
        .iter()
        // One that was committed is being removed by somebody, or has lost its manifest.
        .filter(|left| !left.is_at_work(now) && (!left.was_committed || left.was_merged))
        .map(|unfinished| unfinished.label.clone())
        .collect();
    let merge = plan.merge.as_ref().map(|step| PlannedMerge {
        label: layers[step.newest].label.to_string(),
        from: layers[step.oldest].label.to_string(),
        chain_length: step.length.0,
        new_length: step.length.1,
    });
    let report = ExpireReport {
        done: false,
        merge,
        merged: None,
        keep: kept(&catalog, &plan.keep, &restores),
        remove: remove.iter().map(Label::to_string).collect(),
        leftovers: leftovers.iter().map(Label::to_string).collect(),
        wal_files: u64::try_from(wal.len()).expect("usize has 64 bits"),
        wal_bytes: wal.iter().map(|(_, bytes)| bytes).sum(),
        wal_from,
        notes,
        remarks,
    };
    let remove = remove.iter().map(|label| catalog.layer(label).cloned());
    Ok(Expiry {
        step: plan.merge,
        remove: remove
            .map(|layer| layer.map(Arc::new))
            .collect::<Result<_>>()?,
        leftovers,
        report,
    })
}

/// The archive with its histories. When one cannot be read, nobody knows which layers lead where.
async fn archived(cluster: &ClusterRepository, notes: &mut Vec<String>) -> Result<ArchivedWal> {
    let archive = Archive::load(cluster).await?;
    let mut archived = archive.list(iter::empty()).await?;
    match archive.read_histories(&mut archived).await {
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
            notes.push(format!(
                "nothing is removed, because it is not known which timelines begin where: {error}"
            ));
        }
        read => read?,
    }
    Ok(archived)
}

/// Which lines of the history are kept.
fn find_lines(
    catalog: &Catalog,
    layers: &[Held],
    archived: &ArchivedWal,
    options: &ExpireOptions,
    now: StoreTime,
) -> Lines {
    let days = options.policy.keep_days.unwrap_or(0);
    let patience = SILENCE.max(SignedDuration::from_hours(24 * i64::from(days)));
    let placed = catalog.layers.iter().zip(layers);
    let placed: Vec<Placed> = placed
        .map(|(layer, held)| Placed::of(layer, !held.broken && !held.replaced))
        .collect();
    lines::lines(&placed, archived, now.timestamp(), patience)
}

/// What the user should know of a history that branches.
fn about(lines: &Lines) -> Vec<String> {
    let mut remarks = Vec::new();
    if lines.alive.len() > 1 {
        let alive: Vec<String> = lines.alive.iter().map(ToString::to_string).collect();
        remarks.push(format!(
            "the history branches: what the rules promise is kept for each of the timelines {}, until {} days after \
             something of it was stored last",
            alive.join(", "),
            SILENCE.as_hours() / 24
        ));
    }
    for (timeline, last) in &lines.given_up {
        let last = last.strftime("%Y-%m-%d %H:%M:%SZ");
        remarks.push(format!(
            "timeline {timeline} is given up: nothing of it was stored since {last}, and no rule keeps layers for it"
        ));
    }
    remarks
}

/// The layers that stay, and why.
fn kept(catalog: &Catalog, keep: &[Option<Why>], restores: &[InUse]) -> Vec<Kept> {
    let needed = catalog::needed(restores);
    let keep = catalog.layers.iter().zip(keep);
    let keep = keep.filter_map(|(layer, why)| {
        let why = (*why)?;
        let restore = needed.get(&layer.reference());
        Some(Kept {
            label: layer.label.to_string(),
            why: match restore.filter(|_| why == Why::InUse) {
                Some(restore) => restore.describe(),
                None => why.as_str().to_owned(),
            },
        })
    });
    keep.collect()
}

/// Where the WAL begins that stays when `remove` is gone, the files before it, and what is to be said about it.
async fn old_wal(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    remove: &[Label],
    restores: &[InUse],
) -> Result<(Option<Lsn>, Vec<(String, u64)>, Vec<String>)> {
    let Some(from) = catalog::wal_before(catalog, remove, restores) else {
        return Ok((None, Vec::new(), Vec::new()));
    };
    let wal = catalog::find_old_wal(cluster, from).await?;
    let held = catalog::wal_before(catalog, remove, &[]) != Some(from);
    let holds = |found: &&InUse| held && found.record.start_lsn == from;
    let remarks = restores.iter().filter(holds);
    let remarks = remarks.map(|found| format!("WAL from {from} on stays: {}", found.describe()));
    Ok((Some(from), wal, remarks.collect()))
}

/// Layers that stand in for none that can be restored, and why.
fn not_counted(catalog: &Catalog, problems: &[Option<String>]) -> Vec<String> {
    let layers = catalog.layers.iter().zip(problems);
    let remarks = layers.filter_map(|(layer, problem)| {
        // What stands on it has the same trouble.
        let own = layer.manifest.parent.is_none() || catalog.losses.contains_key(&layer.label);
        let problem = problem.as_ref().filter(|_| own)?;
        let label = &layer.label;
        Some(format!(
            "layer {label} counts for none of those to keep, because it cannot be restored: {problem}"
        ))
    });
    remarks.collect()
}

/// The catalog's layers as retention sees them, with what is wrong with each.
fn held(catalog: &Catalog, problems: &[Option<String>], restores: &[InUse]) -> Vec<Held> {
    // A merged layer that cannot be restored replaces nothing.
    let numbered = || {
        catalog
            .layers
            .iter()
            .map(|layer| &layer.manifest)
            .enumerate()
    };
    let usable = || numbered().filter(|(at, _)| problems[*at].is_none());
    let replaced: HashSet<&ParentRef> = usable().flat_map(|(_, m)| &m.replaces).collect();
    let merged: HashSet<&ParentRef> = usable().flat_map(|(_, m)| &m.inputs).collect();
    // Two merges at the same time make the same twice; the later one is that on which others stand.
    let mut latest: HashMap<&ParentRef, usize> = HashMap::new();
    for (at, manifest) in usable() {
        latest.extend(manifest.replaces.last().map(|state| (state, at)));
    }
    let needed = catalog::needed(restores);
    let held = |(at, layer): (usize, &Layer)| {
        let own = layer.reference();
        let state = layer.manifest.replaces.last();
        let twice = state.is_some_and(|state| latest.get(state).is_some_and(|last| *last > at));
        Held {
            label: layer.label.clone(),
            parent: catalog.layers.below(at),
            finished_at: layer.manifest.finished_at,
            replaced: twice || replaced.contains(&own),
            merged: merged.contains(&own),
            in_use: needed.contains_key(&own),
            broken: problems[at].is_some(),
        }
    };
    catalog.layers.iter().enumerate().map(held).collect()
}
