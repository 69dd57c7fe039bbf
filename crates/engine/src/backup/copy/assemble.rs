//! The assembler: outcomes, in whatever order they come, into the index, in order of path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use pgstrata_layer::changeset::ReadPlan;
use pgstrata_layer::entry::{BlockRun, DigestRef, EntryKind, FileEntry};
use pgstrata_layer::manifest::{IndexPartRef, Totals};
use pgstrata_store::error::{Error, Kind, Result};

use super::check::{Complaints, PageCheck};
use super::job::{Job, Outcome, PartOutcome, block_bytes};
use super::suspects::Audited;
use super::window::Window;
use crate::backup::abort::Abort;
use crate::frames::IndexParts;

/// What a layer's index says, as its manifest needs it.
#[derive(Debug, Default)]
pub(crate) struct Assembled {
    pub(crate) parts: Vec<IndexPartRef>,
    pub(crate) totals: Totals,
    pub(crate) complaints: Complaints,
    pub(crate) audit: Audited,
    /// Files that were written whenever they were read.
    pub(crate) torn: Vec<String>,
    /// Files that were listed and had gone, or were empty, when they were to be read.
    pub(crate) missing: BTreeSet<String>,
}

pub(crate) struct Assembler<'a> {
    index: IndexParts<'a>,
    window: &'a Window,
    check: &'a PageCheck,
    /// Files whose turn has not come, or that are not complete.
    waiting: BTreeMap<usize, Pending>,
    next: usize,
    assembled: Assembled,
}

struct Pending {
    job: Arc<Job>,
    outcomes: Vec<(u32, Outcome)>,
}

impl<'a> Assembler<'a> {
    pub(crate) fn new(index: IndexParts<'a>, window: &'a Window, check: &'a PageCheck) -> Self {
        Self {
            index,
            window,
            check,
            waiting: BTreeMap::new(),
            next: 0,
            assembled: Assembled::default(),
        }
    }

    /// Assembles until planner and workers are gone.
    pub(crate) fn run(mut self, done: &Receiver<PartOutcome>, abort: &Abort) -> Result<Assembled> {
        while let Ok(PartOutcome { job, part, outcome }) = done.recv() {
            let pending = self.waiting.entry(job.ordinal).or_insert_with(|| Pending {
                job,
                outcomes: Vec::new(),
            });
            pending.outcomes.push((part, outcome));
            while let Some(pending) = self.next_complete() {
                self.next += 1;
                self.window.leave(pending.job.file.size_bytes);
                self.add(pending)?;
            }
        }
        if abort.is_raised() {
            return Err(Error::new(Kind::Interrupted, "the backup was stopped"));
        }
        self.assembled.parts = self.index.finish()?;
        Ok(self.assembled)
    }

    fn next_complete(&mut self) -> Option<Pending> {
        let first = self.waiting.first_entry()?;
        let pending = first.get();
        let complete = u32::try_from(pending.outcomes.len()) == Ok(pending.job.parts);
        (*first.key() == self.next && complete).then(|| first.remove())
    }

    fn add(&mut self, pending: Pending) -> Result<()> {
        let Pending { job, mut outcomes } = pending;
        outcomes.sort_unstable_by_key(|(part, _)| *part);
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
        if outcomes.iter().any(|outcome| outcome.gone) {
            // Dropped between scan and reading.
            self.assembled.missing.insert(job.file.path.clone());
            return Ok(());
        }
        if outcomes.iter().any(|outcome| outcome.emptied) {
            self.assembled.missing.insert(job.file.path.clone());
        }
        if outcomes.iter().any(|outcome| outcome.was_torn) {
            self.assembled.torn.push(job.file.path.clone());
        }
        let mut digests = Vec::new();
        for outcome in &mut outcomes {
            digests.append(&mut outcome.page_digests);
            let suspects = std::mem::take(&mut outcome.suspects);
            self.assembled.audit.add(outcome.pages_audited, suspects);
            for (block, complaint) in outcome.complaints.drain(..) {
                let page = (job.file.path.as_str(), block);
                self.assembled.complaints.add(self.check, page, complaint);
            }
        }
        let entry = entry(&job, outcomes, &mut self.assembled.totals);
        self.index.push(entry, &digests)
    }
}

/// One file's entry out of the outcomes of its parts, in order.
fn entry(job: &Job, outcomes: Vec<Outcome>, totals: &mut Totals) -> FileEntry {
    let file = &job.file;
    let plain = (file.kind == EntryKind::Plain)
        .then(|| outcomes.first())
        .flatten();
    let size_bytes = plain.map_or(file.size_bytes, |plain| plain.size_bytes);
    let attributes = plain.and_then(|plain| plain.attributes);
    let (mode, modified) = attributes.unwrap_or((file.mode, file.modified));
    let mut entry = FileEntry {
        path: file.path.clone(),
        kind: file.kind,
        mode,
        modified,
        size_bytes,
        identity: outcomes
            .first()
            .map_or(file.identity, |outcome| outcome.identity),
        inherit_limit: inherit_limit(job, &outcomes, size_bytes),
        content_digest: plain.and_then(|plain| plain.content_digest),
        frames: Vec::new(),
        zero_runs: Vec::new(),
        page_digests: DigestRef::default(),
    };
    totals.files += 1;
    totals.cluster_bytes += size_bytes;
    for outcome in outcomes {
        totals.bytes_read += outcome.bytes_read;
        totals.pages_marked += outcome.pages_marked;
        if file.kind == EntryKind::Relation {
            totals.pages_stored += outcome
                .frames
                .iter()
                .map(pgstrata_layer::entry::FrameRef::page_count)
                .sum::<u64>();
            totals.pages_zero += outcome
                .zero_runs
                .iter()
                .map(|run| u64::from(run.count))
                .sum::<u64>();
        }
        entry.frames.extend(outcome.frames);
        for run in outcome.zero_runs {
            BlockRun::append(&mut entry.zero_runs, run);
        }
    }
    if file.kind == EntryKind::Relation {
        totals.relation_blocks += size_bytes / block_bytes();
    }
    entry
}

/// Blocks below it that the entry does not hold come from the parent.
fn inherit_limit(job: &Job, outcomes: &[Outcome], size_bytes: u64) -> u32 {
    if outcomes.iter().any(|outcome| outcome.whole) {
        return 0;
    }
    match job.plan {
        ReadPlan::Whole => 0,
        ReadPlan::Blocks { inherit_limit, .. }
        | ReadPlan::ByLsn { inherit_limit, .. }
        | ReadPlan::ByDigest { inherit_limit } => inherit_limit,
        ReadPlan::PlainByDigest if outcomes.iter().any(|outcome| outcome.inherits) => {
            u32::try_from(size_bytes.div_ceil(block_bytes())).unwrap_or(u32::MAX)
        }
        ReadPlan::PlainByDigest => 0,
    }
}
