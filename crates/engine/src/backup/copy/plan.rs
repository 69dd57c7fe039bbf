//! The planner: the scan merged with the parent, file by file, into work.

use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use pgstrata_layer::audit::Sample;
use pgstrata_layer::block_set::BlockSet;
use pgstrata_layer::changeset::{self, Changes, ParentFile, ReadPlan};
use pgstrata_layer::entry::EntryKind;
use pgstrata_store::error::Result;
use pgstrata_store::progress::Progress;

use super::job::{Job, Outcome, PartOutcome, WorkItem, block_bytes};
use super::parent::Parent;
use super::window::Window;
use crate::backup::abort::Abort;
use crate::server::ScannedFile;

/// Files up to this size are read in batches: an item each would cost more than its reading.
const SMALL_BYTES: u64 = 256 << 10;

/// A batch is at most this large, as any other item.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_FILES: usize = 256;

/// Where work goes.
pub(crate) struct Planner<'a> {
    pub(crate) changes: &'a Changes,
    pub(crate) audit: Option<Sample>,
    pub(crate) parent: Option<Parent>,
    pub(crate) items: SyncSender<WorkItem>,
    pub(crate) done: Sender<PartOutcome>,
    pub(crate) window: &'a Window,
    pub(crate) progress: &'a Progress,
    pub(crate) abort: &'a Abort,
    pub(crate) batch: SmallFiles,
}

/// Small files that wait for more of them.
#[derive(Default)]
pub(crate) struct SmallFiles {
    jobs: Vec<Arc<Job>>,
    bytes: u64,
}

impl Planner<'_> {
    /// Plans every file; returns when all are handed out or the backup has failed.
    pub(crate) fn run(mut self, files: Vec<ScannedFile>) -> Result<()> {
        for (ordinal, file) in files.into_iter().enumerate() {
            if self.abort.is_raised() {
                return Ok(());
            }
            if !self.window.has_room(file.size_bytes) {
                // What waits in the batch may be what the window waits for.
                self.flush();
            }
            self.window.enter(file.size_bytes, self.abort);
            let job = Arc::new(self.job(ordinal, file)?);
            self.hand_out(job);
        }
        self.flush();
        Ok(())
    }

    fn job(&mut self, ordinal: usize, file: ScannedFile) -> Result<Job> {
        let entries = match &mut self.parent {
            Some(parent) => parent.find(&file.path)?,
            None => None,
        };
        let known = entries
            .as_ref()
            .and_then(|entries| entries.first()?.as_ref());
        let parent_file = known.map(|entry| ParentFile {
            kind: entry.kind,
            size_bytes: entry.size_bytes,
            identity: entry.identity,
            content_digest: entry.content_digest,
        });
        let scanned = changeset::PresentFile {
            path: file.path.clone(),
            kind: file.kind,
            fork: file.fork(),
            size_bytes: file.size_bytes,
            identity: file.identity,
        };
        let mut plan = changeset::plan_file(&scanned, parent_file.as_ref(), self.changes);
        let corrupt = self
            .parent
            .as_ref()
            .and_then(|parent| parent.corrupt(&file.path));
        let corrupt = corrupt.cloned().unwrap_or_default();
        read_also(&mut plan, &corrupt);
        let audit = self.audit.map(|sample| sample.of(&file.path, &plan));
        let mut job = Job::new(ordinal, file, plan, audit.unwrap_or_default());
        job.corrupt = corrupt;
        let compared = match job.plan {
            ReadPlan::ByDigest { inherit_limit } => Some(inherit_limit),
            ReadPlan::Blocks { inherit_limit, .. } if !job.audit.is_empty() => Some(inherit_limit),
            _ => None,
        };
        if let (Some(limit), Some(parent), Some(entries)) = (compared, &mut self.parent, &entries) {
            job.digests = Some(parent.digests(entries, limit)?);
        }
        job.parent_content = parent_file.and_then(|parent| parent.content_digest);
        Ok(job)
    }

    /// Sending fails only when the backup has failed: the loop then ends.
    fn hand_out(&mut self, job: Arc<Job>) {
        if job.file.kind == EntryKind::Directory || job.is_untouched() {
            let outcome = Outcome {
                identity: job.file.identity,
                ..Outcome::default()
            };
            self.progress.add_done(job.file.size_bytes);
            let part = 0;
            self.done.send(PartOutcome { job, part, outcome }).ok();
            return;
        }
        if job.file.size_bytes <= SMALL_BYTES {
            self.batch.bytes += job.file.size_bytes.max(block_bytes());
            self.batch.jobs.push(job);
            if self.batch.bytes >= BATCH_BYTES || self.batch.jobs.len() >= BATCH_FILES {
                self.flush();
            }
            return;
        }
        if job.file.segment.is_none() {
            self.items.send(WorkItem::Files(vec![job])).ok();
            return;
        }
        for part in 0..job.parts {
            if self
                .items
                .send(WorkItem::Part(Arc::clone(&job), part))
                .is_err()
            {
                return;
            }
        }
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.jobs.is_empty() {
            self.items.send(WorkItem::Files(batch.jobs)).ok();
        }
    }
}

/// Adds blocks to those that the plan reads. Other plans than this one read every block anyway.
fn read_also(plan: &mut ReadPlan, blocks: &BlockSet) {
    let ReadPlan::Blocks {
        runs,
        inherit_limit,
    } = plan
    else {
        return;
    };
    let also = blocks.runs_below(*inherit_limit);
    if also.is_empty() {
        return;
    }
    let mut all = BlockSet::default();
    for run in runs.iter().chain(&also) {
        (run.start..run.start + run.count).for_each(|block| all.insert(block));
    }
    *runs = all.runs_below(u32::MAX);
}

#[cfg(test)]
mod tests {
    use pgstrata_layer::entry::BlockRun;

    use super::*;

    #[test]
    fn what_was_corrupt_is_read_with_what_has_changed() {
        let run = |start, count| BlockRun { start, count };
        let mut corrupt = BlockSet::default();
        for block in [3, 6, 11, 40] {
            corrupt.insert(block);
        }
        let mut plan = ReadPlan::Blocks {
            runs: vec![run(5, 2), run(10, 5)],
            inherit_limit: 10,
        };
        read_also(&mut plan, &corrupt);
        let expected = ReadPlan::Blocks {
            runs: vec![run(3, 1), run(5, 2), run(10, 5)],
            inherit_limit: 10,
        };
        assert_eq!(plan, expected);
        let mut whole = ReadPlan::Whole;
        read_also(&mut whole, &corrupt);
        assert_eq!(whole, ReadPlan::Whole);
    }
}
