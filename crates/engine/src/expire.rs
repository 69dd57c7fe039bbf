//! Expiry: obeys the plan of retention. Layers that nobody wants go, then WAL that no layer needs, then what acts that
//! were killed have left; long chains are merged before.
//!
//! Nothing is removed while a layer is being made: it may be about to stand on one that would go.

mod clocks;
mod cost;
mod pending;
mod scene;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::retention::{MergeStep, Policy};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::{
    self, Catalog, Layer, OldWal, Removed, Terms, WalLimit, mark, remove_leftover,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use serde::Serialize;

use crate::health::beside::witnesses;
use crate::lines::{Lines, SILENCE};
use crate::merge::{self, MergeOptions, MergeReport};
use clocks::Clocks;
use scene::{ExpireDecision, Scene};

pub use cost::{LayerCost, RuleCost, StorageReport, WalDay, storage};
pub use pending::JudgedRemoval;

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
    /// Why: every rule that wants it.
    pub why: String,
    /// Whether the WAL behind its end is kept too, so that restores can go on from it.
    pub goes_on: bool,
}

/// Consecutive WAL segments of one timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalRun {
    /// File name of the first.
    pub first: String,
    /// File name of the last.
    pub last: String,
    /// How many they are.
    pub count: u64,
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
    /// Removals that others have decided on and not completed, as this run judges them.
    pub removals: Vec<JudgedRemoval>,
    /// What is merged.
    pub merge: Option<PlannedMerge>,
    /// What the merge has done.
    pub merged: Option<MergeReport>,
    /// Layers that stay, oldest first.
    pub keep: Vec<Kept>,
    /// Layers that go, newest first, with those that a merge replaces.
    pub remove: Vec<String>,
    /// Interrupted acts whose objects go.
    pub leftovers: Vec<String>,
    /// Files of the WAL archive that go.
    pub wal_files: u64,
    /// Their bytes.
    pub wal_bytes: u64,
    /// Their segments.
    pub wal: Vec<WalRun>,
    /// From the segment at this LSN on all WAL is kept; before, only what makes layers consistent.
    pub wal_from: Option<Lsn>,
    /// What kept it from being done.
    pub notes: Vec<String>,
    /// What else the user should know.
    pub remarks: Vec<String>,
}

impl ExpireReport {
    /// Says which WAL goes, or has gone.
    fn tell_wal(&mut self, wal: &[OldWal], size: WalSegmentSize) {
        self.wal_files = u64::try_from(wal.len()).expect("usize has 64 bits");
        self.wal_bytes = wal.iter().map(|found| found.size_bytes).sum();
        self.wal = wal_runs(wal, size);
    }

    /// Says what has gone, where less has than was planned: a restore may have begun since, or somebody have pinned a layer.
    fn tell_removed(&mut self, removed: &Removed, size: WalSegmentSize) {
        self.remove = removed.labels.iter().map(Label::to_string).collect();
        self.tell_wal(&removed.wal, size);
        self.wal_from = removed.wal_before.or(self.wal_from);
    }

    /// What this run has done first, and then. When it has not come to the rest, all that is left of that is why.
    fn followed_by(self, then: Self) -> Self {
        let mut remarks = self.remarks;
        let new = then.remarks.into_iter();
        let new: Vec<String> = new.filter(|remark| !remarks.contains(remark)).collect();
        remarks.extend(new);
        if !then.done {
            let merged = then.merged.as_ref();
            let replaced = merged.map_or_else(Vec::new, |merged| merged.removed.clone());
            return Self {
                merge: then.merge.filter(|_| merged.is_some()),
                remove: [self.remove, replaced].concat(),
                notes: then.notes,
                merged: then.merged,
                remarks,
                ..self
            };
        }
        Self {
            removals: self.removals,
            remove: [self.remove, then.remove].concat(),
            leftovers: [self.leftovers, then.leftovers].concat(),
            wal_files: self.wal_files + then.wal_files,
            wal_bytes: self.wal_bytes + then.wal_bytes,
            wal: [self.wal, then.wal].concat(),
            remarks,
            ..then
        }
    }
}

/// What to remove, found out without touching anything.
struct Expiry {
    step: Option<MergeStep>,
    /// Whether a removal that others have begun is to be completed before that is merged.
    is_held_up: bool,
    remove: Vec<Arc<Layer>>,
    /// Merged layers for which some of them go.
    read_back: Vec<Label>,
    leftovers: Vec<Label>,
    /// Layers of which nothing but the WAL that makes them consistent is kept.
    own_alone: HashSet<ParentRef>,
    /// Whether WAL was given up of which no record says so.
    is_unrecorded: bool,
    /// The archive, by which that was found out.
    archived: ArchivedWal,
    report: ExpireReport,
}

/// Says what expiry would do now; changes nothing.
///
/// # Errors
/// When there is no rule, or the repository cannot be read.
pub async fn plan(cluster: &ClusterRepository, options: &ExpireOptions) -> Result<ExpireReport> {
    check_policy(options)?;
    // The store is not asked: nothing is written, and nothing is decided.
    let clocks = Clocks::by_this_host();
    let scene = Scene::read(cluster, options.ignore_restores, clocks).await?;
    let clock = scene.about_store_clock();
    let decision = scene.decide(&options.policy);
    let removals = pending::judge(cluster, &scene, &decision).await?;
    let refusal = pending::refusal(cluster, &removals);
    let step = decision.plan.merge.clone();
    let merge = step.as_ref().map(|step| planned(&scene, step));
    let Some(step) = step.filter(|_| scene.notes.is_empty() && refusal.is_none()) else {
        let mut report = report(cluster, &scene, &decision, &options.policy).await?;
        (report.merge, report.removals) = (merge, removals);
        report.remarks.extend(clock);
        report.notes.extend(refusal.map(|error| error.to_string()));
        return Ok(report);
    };
    let (scene, merged_away) = scene.when_merged(&step)?;
    let decision = scene.decide(&options.policy);
    let mut report = report(cluster, &scene, &decision, &options.policy).await?;
    (report.merge, report.removals) = (merge, removals);
    report.remarks.extend(clock);
    report
        .remove
        .splice(..0, merged_away.iter().map(Label::to_string));
    Ok(report)
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
    let mut first = FirstSteps::default();
    let outcome = loop {
        match attempt(cluster, options, progress, &mut first).await {
            // Whatever came of the rest: these have been done.
            Ok(report) => break Ok(first.said_in(report)),
            Err(NotDone::Merged(error)) if error.is_lack_of_space() => {
                break Err(error.hint(NO_MERGE));
            }
            Err(NotDone::Removed(error))
                if error.is_lack_of_space() && cluster.repository.free_room().await? =>
            {
                tracing::info!(%error, "the repository is full: part of its reserve is given up");
            }
            Err(NotDone::Removed(error)) if error.is_lack_of_space() => {
                return Err(error.hint(FULL));
            }
            Err(NotDone::Merged(error) | NotDone::Removed(error)) => return Err(error),
        }
    };
    // A merge that failed has removed what it had stored, and what was given up for a record before it is laid up again.
    cluster.repository.lay_up_room().await;
    outcome
}

/// Where the records of a removal do not fit.
const FULL: &str = "free some room where the repository is, by other means, and run it again";

/// Where the records of a removal may fit, and no merged layer.
const NO_MERGE: &str = "a merge needs room for the merged layer: free that first, with --keep-full or --keep-within alone, \
    for which some room is laid up";

/// What an attempt has not done, and why.
enum NotDone {
    /// It has not made a merged layer. What is laid up for removals is not for that: it would be gone, and nothing could be
    /// removed any more.
    Merged(Error),
    /// Anything else.
    Removed(Error),
}

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        Self::Removed(error)
    }
}

/// What a run has done before it looked again.
#[derive(Default)]
struct FirstSteps {
    /// It has completed what others had begun to remove, with all that it would remove itself.
    removed: Option<ExpireReport>,
    merged: Option<MergeMade>,
}

/// A merge that has been made for a chain.
struct MergeMade {
    planned: PlannedMerge,
    made: MergeReport,
    /// Removals as they were judged before.
    removals: Vec<JudgedRemoval>,
}

impl FirstSteps {
    /// The report of all.
    fn said_in(self, report: ExpireReport) -> ExpireReport {
        let report = match self.merged {
            Some(merged) => merged.said_in(report),
            None => report,
        };
        match self.removed {
            Some(removed) => removed.followed_by(report),
            None => report,
        }
    }
}

impl MergeMade {
    /// The report of all, when it was made before the rest.
    fn said_in(self, report: ExpireReport) -> ExpireReport {
        let mut remove = self.made.removed.clone();
        remove.extend(report.remove);
        ExpireReport {
            remove,
            merge: Some(self.planned),
            merged: Some(self.made),
            removals: self.removals,
            ..report
        }
    }
}

/// Does what it can; `first` tells what has been done, however the rest ends.
async fn attempt(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
    first: &mut FirstSteps,
) -> std::result::Result<ExpireReport, NotDone> {
    let (mut found, mut clocks) = look(cluster, options).await?;
    if found.report.notes.is_empty() && found.is_held_up {
        found.report.merge = None;
        let mut report = remove(cluster, options, progress, (found, clocks)).await?;
        if !report.done {
            report.remarks.extend(clocks.doubt());
            return Ok(report);
        }
        first.removed = Some(report);
        (found, clocks) = look(cluster, options).await?;
        if found.is_held_up {
            // By somebody who has begun since.
            (found.step, found.report.merge) = (None, None);
        }
    }
    if found.report.notes.is_empty()
        && let (Some(step), Some(planned)) = (found.step.take(), found.report.merge.take())
    {
        // What is complete and not forgotten would refuse the merged layer as well.
        catalog::tidy_removals(cluster).await?;
        first.merged = Some(MergeMade {
            made: merge_first(cluster, options, progress, &step, &planned).await?,
            planned,
            removals: std::mem::take(&mut found.report.removals),
        });
        // The merge took its time.
        (found, clocks) = look(cluster, options).await?;
    }
    let mut report = match found.report.notes.is_empty() {
        true => remove(cluster, options, progress, (found, clocks)).await?,
        false => found.report,
    };
    report.remarks.extend(clocks.doubt());
    Ok(report)
}

/// What to do, and by which clocks.
async fn look(cluster: &ClusterRepository, options: &ExpireOptions) -> Result<(Expiry, Clocks)> {
    let clocks = Clocks::ask(cluster).await?;
    Ok((find(cluster, options, clocks).await?, clocks))
}

/// Removes what was found.
async fn remove(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
    (found, clocks): (Expiry, Clocks),
) -> Result<ExpireReport> {
    let now = clocks.store();
    let unwanted = found.remove.iter().map(|layer| layer.label.clone());
    let unwanted: Vec<Label> = unwanted.collect();
    let going = merge::Going {
        layers: &unwanted,
        read_back: &found.read_back,
    };
    let verified = merge::verify_replacements(cluster, &going, options.jobs, progress).await;
    unless_gone(cluster, &unwanted, verified).await?;
    let mut report = found.report;
    go_on(progress)?;
    // As long as the layer is there whose copy has ended: without it the record would count again.
    let catalog = Catalog::load(cluster).await?;
    catalog::forget_old(cluster, &catalog, now, options.ignore_restores).await?;
    let archived = &found.archived;
    let tell = |catalog: &Catalog, going: &[Label]| witnesses(catalog, archived, going);
    let terms = Terms {
        instead: None,
        ignore_restores: options.ignore_restores,
        wal: (report.wal_files > 0 || found.is_unrecorded).then_some(&found.own_alone),
        witnesses: Some(&tell),
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
    report.tell_removed(&removed, archived.segment_size());
    for label in &found.leftovers {
        match remove_leftover(cluster, label).await {
            Err(error) if error.kind() == Kind::Refused => {
                report.leftovers.retain(|left| left != label.as_str());
                report.remarks.push(error.to_string());
            }
            removed => removed?,
        }
    }
    report.remarks.extend(tidy(cluster, clocks).await?);
    report.remarks.extend(removed.remarks);
    report.done = true;
    Ok(report)
}

/// Removes what served others, and serves nobody any more. Answers what there is to say.
async fn tidy(cluster: &ClusterRepository, clocks: Clocks) -> Result<Vec<String>> {
    catalog::tidy_removals(cluster).await?;
    mark::forget_gone(cluster, clocks.earlier()).await?;
    catalog::forget_old_verifications(cluster).await?;
    let catalog = Catalog::load(cluster).await?;
    let mut remarks = Vec::new();
    let left = catalog::collect_left(cluster, &catalog, clocks.store()).await?;
    if left > 0 {
        remarks.push(format!(
            "{left} objects are gone that commands without the right to delete had left"
        ));
    }
    let hidden = cluster
        .repository
        .collect_hidden(cluster.name.as_str())
        .await?;
    if hidden > 0 {
        remarks.push(format!(
            "{hidden} files are gone that commands have left which were killed while they wrote"
        ));
    }
    Ok(remarks)
}

/// Refuses when somebody has asked the expiry to stop. Behind this it removes, which is done to its end.
fn go_on(progress: &Progress) -> Result<()> {
    match progress.is_cancelled() {
        true => Err(Error::new(Kind::Interrupted, "the expiry was stopped")),
        false => Ok(()),
    }
}

/// Merges the oldest layers of the newest chain.
async fn merge_first(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    progress: &Progress,
    step: &MergeStep,
    planned: &PlannedMerge,
) -> std::result::Result<MergeReport, NotDone> {
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
        return Err(changed().into());
    }
    let newest = [merging.label.clone()];
    let made = merge::make(cluster, &merging, progress).await;
    let made = unless_gone(cluster, &newest, made).await;
    let removed = made.map_err(NotDone::Merged)?.finish(cluster, &merging);
    Ok(unless_gone(cluster, &newest, removed.await).await?)
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
            .hint(
                "give one or more of --keep-full, --keep-within, --keep-daily, --keep-weekly, --keep-monthly, \
                 --keep-yearly, --keep-wal and --max-chain, or write them in the configuration file",
            ));
    }
    Ok(())
}

/// What to do.
///
/// # Errors
/// `Refused` when somebody else has decided to remove what stays; when the repository cannot be read.
async fn find(
    cluster: &ClusterRepository,
    options: &ExpireOptions,
    clocks: Clocks,
) -> Result<Expiry> {
    let mut scene = Scene::read(cluster, options.ignore_restores, clocks).await?;
    let decision = scene.decide_by_both_clocks(&options.policy);
    let removals = pending::judge(cluster, &scene, &decision).await?;
    if let Some(refusal) = pending::refusal(cluster, &removals) {
        return Err(refusal);
    }
    let mut report = report(cluster, &scene, &decision, &options.policy).await?;
    report.removals = removals;
    let step = decision.plan.merge;
    report.merge = step.as_ref().map(|step| planned(&scene, step));
    let is_held_up = match &step {
        Some(step) => pending::holds_up(cluster, &scene, step).await?,
        None => false,
    };
    let remove = decision.remove.iter();
    let remove = remove.map(|label| scene.catalog.layer(label).cloned().map(Arc::new));
    Ok(Expiry {
        step,
        is_held_up,
        remove: remove.collect::<Result<_>>()?,
        read_back: decision.read_back,
        leftovers: scene.leftovers(),
        is_unrecorded: decision
            .limit
            .as_ref()
            .is_some_and(|limit| is_unrecorded(&scene.archived, limit)),
        own_alone: decision.own_alone,
        archived: scene.archived,
        report,
    })
}

/// Whether WAL between layers is missing that `limit` gives up, and no record says that it was given up: the record was lost.
fn is_unrecorded(archived: &ArchivedWal, limit: &WalLimit) -> bool {
    let end = limit.before.segment(archived.segment_size());
    let is_open = |segment: WalSegment| segment.number < end && !archived.was_released(segment);
    let mut timelines = archived.by_timeline();
    !limit.kept.is_empty()
        && timelines.any(|(timeline, found)| {
            let mut first = found.gaps().map(|gap| *gap.start());
            first.any(|number| is_open(WalSegment { timeline, number }))
        })
}

fn planned(scene: &Scene, step: &MergeStep) -> PlannedMerge {
    let label = |at: usize| scene.layers[at].label.to_string();
    PlannedMerge {
        label: label(step.newest),
        from: label(step.oldest),
        chain_length: step.length.0,
        new_length: step.length.1,
    }
}

/// What is said of a decision. The WAL is listed for it.
async fn report(
    cluster: &ClusterRepository,
    scene: &Scene,
    decision: &ExpireDecision,
    policy: &Policy,
) -> Result<ExpireReport> {
    let wal = match &decision.limit {
        Some(limit) => catalog::find_old_wal(cluster, limit).await?,
        None => Vec::new(),
    };
    let goes = !wal.is_empty();
    let mut remarks = Vec::from_iter(scene::about_within(decision, policy, goes));
    remarks.extend(scene.about_wal(decision, goes));
    remarks.extend(scene.about_copies());
    remarks.extend(scene.about_far_ahead());
    remarks.extend(scene.about_to_come(policy));
    remarks.extend(about(&decision.lines));
    remarks.extend(not_counted(&scene.catalog, &scene.problems));
    remarks.extend(decision.unmerged.clone());
    let mut report = ExpireReport {
        done: false,
        removals: Vec::new(),
        merge: None,
        merged: None,
        keep: scene.kept(decision),
        remove: decision.remove.iter().map(Label::to_string).collect(),
        leftovers: scene.leftovers().iter().map(Label::to_string).collect(),
        wal_files: 0,
        wal_bytes: 0,
        wal: Vec::new(),
        wal_from: decision.limit.as_ref().map(|limit| limit.before),
        notes: scene.notes.clone(),
        remarks,
    };
    report.tell_wal(&wal, scene.archived.segment_size());
    Ok(report)
}

/// The segments of these files, as runs.
fn wal_runs(wal: &[OldWal], size: WalSegmentSize) -> Vec<WalRun> {
    let segments: BTreeSet<_> = wal
        .iter()
        .map(|found| (found.segment.timeline, found.segment.number))
        .collect();
    let mut runs: Vec<(WalSegment, u64)> = Vec::new();
    for (timeline, number) in segments {
        match runs.last_mut() {
            Some((first, count))
                if first.timeline == timeline && first.number + *count == number =>
            {
                *count += 1;
            }
            _ => runs.push((WalSegment { timeline, number }, 1)),
        }
    }
    let runs = runs.into_iter().map(|(first, count)| WalRun {
        first: first.file_name(size),
        last: WalSegment {
            number: first.number + count - 1,
            ..first
        }
        .file_name(size),
        count,
    });
    runs.collect()
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
