//! A worker: reads, checks, selects, compresses and stores.
//!
//! Pages that are all zeros are listed, never stored. What a file has lost since
//! the scan is listed as zeros too: replay cuts the file to its length, and no
//! page of the parent may come back in the meantime.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pgstrata_layer::changeset::{ReadPlan, page_selected};
use pgstrata_layer::digest;
use pgstrata_layer::entry::BlockRun;
use pgstrata_layer::frame::{self, Codec, FrameEncoder};
use pgstrata_pgdata::page::{PageHeader, is_zero};
use pgstrata_pgdata::relation::{BLOCK_SIZE, RelSegment};
use pgstrata_store::courtesy;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::progress::Progress;

use super::cache::PageCache;
use super::check::PageCheck;
use super::job::{Job, OpenFile, Outcome, PART_BLOCKS, PartOutcome, WorkItem};
use super::limiter::Limiter;
use super::suspects::Suspect;
use crate::backup::abort::Abort;
use crate::frames::PackWriter;

/// Pages that are looked at and stored before the next ones: 128 KiB, which the cache of a processor holds.
const GROUP_BLOCKS: u32 = 16;

/// 512 KiB: the kernel copies them in a tenth of a millisecond.
const COURTEOUS_BLOCKS: u32 = 64;

/// How long a worker is away that is one too many.
const UNWANTED: Duration = Duration::from_millis(20);

/// What all workers share.
pub(crate) struct WorkerContext<'a> {
    pub(crate) data_directory: &'a Path,
    pub(crate) codec: Codec,
    pub(crate) check: &'a PageCheck,
    /// Give up at the first page that is certainly corrupt.
    pub(crate) fail_on_corrupt_page: bool,
    pub(crate) limiter: &'a Limiter,
    pub(crate) cache: &'a PageCache,
    pub(crate) progress: &'a Progress,
    pub(crate) abort: &'a Abort,
}

/// One thread's tools.
pub(crate) struct Worker<'a> {
    pub(crate) context: &'a WorkerContext<'a>,
    pub(crate) packs: PackWriter<'a>,
    pub(crate) encoder: FrameEncoder,
    done: Sender<PartOutcome>,
    /// One part, as read.
    pub(crate) buffer: Vec<u8>,
    /// Pages of one frame that are not next to one another in `buffer`.
    gathered: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        context: &'a WorkerContext<'a>,
        packs: PackWriter<'a>,
        done: Sender<PartOutcome>,
    ) -> Result<Self> {
        Ok(Self {
            context,
            packs,
            encoder: FrameEncoder::new(context.codec)?,
            done,
            buffer: Vec::new(),
            gathered: Vec::new(),
        })
    }

    /// Works until there is nothing left or the backup has failed, and while it is wanted.
    pub(crate) fn run(
        mut self,
        items: &Mutex<Receiver<WorkItem>>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<()> {
        while !self.context.abort.is_raised() {
            if !is_wanted() {
                thread::sleep(UNWANTED);
                continue;
            }
            let item = items.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match item {
                Ok(WorkItem::Part(job, part)) => self.act(&job, part)?,
                Ok(WorkItem::Files(jobs)) => jobs.iter().try_for_each(|job| self.act(job, 0))?,
                // The planner is done, or has failed.
                Err(_) if self.context.abort.is_raised() => return Ok(()),
                Err(_) => return self.packs.finish(),
            }
        }
        Ok(())
    }

    fn act(&mut self, job: &Arc<Job>, part: u32) -> Result<()> {
        let outcome = match job.file.segment {
            Some(segment) => match job.open(self.context.data_directory)? {
                Some(file) => self.relation_part(job, part, &file, segment)?,
                None => Outcome {
                    gone: true,
                    ..Outcome::default()
                },
            },
            None => self.plain_file(job)?,
        };
        job.close_part();
        self.context
            .progress
            .add_done(outcome.bytes_covered(job, part));
        let done = PartOutcome {
            job: Arc::clone(job),
            part,
            outcome,
        };
        // Nobody receives any more when the backup has failed elsewhere.
        self.done
            .send(done)
            .map_err(|_| Error::new(Kind::Interrupted, "the backup was stopped"))
    }

    fn relation_part(
        &mut self,
        job: &Job,
        part: u32,
        open: &OpenFile,
        segment: RelSegment,
    ) -> Result<Outcome> {
        let blocks = job.part_blocks(part);
        let follow = open.as_scanned || matches!(job.plan, ReadPlan::Whole);
        let whole = ReadPlan::Whole;
        let plan = if follow { &job.plan } else { &whole };
        let mut outcome = Outcome {
            identity: open.identity,
            whole: !follow,
            ..Outcome::default()
        };
        let mut runs = Vec::new();
        match plan {
            ReadPlan::Blocks { runs: changed, .. } => {
                clip(changed, blocks.start, blocks.end, &mut runs)
            }
            _ => runs.extend(BlockRun::between(blocks.start, blocks.end)),
        }
        self.buffer.resize(to_usize(PART_BLOCKS) * BLOCK_SIZE, 0);
        let mut selected = Vec::new();
        for run in runs.iter().flat_map(|run| steps(*run, read_blocks())) {
            let (present, lost) = self.read_run(job, open, run, &mut outcome)?;
            for group in steps(present, GROUP_BLOCKS) {
                for block in group.start..group.start + group.count {
                    let place = PageInFile {
                        job,
                        plan,
                        open,
                        segment,
                        part_start: blocks.start,
                        block,
                    };
                    self.select(place, &mut outcome, &mut selected)?;
                }
                // While they are in the processor's cache.
                while selected.len() >= frame::PAGES {
                    let full: Vec<u32> = selected.drain(..frame::PAGES).collect();
                    self.store_frame(blocks.start, &full, &mut outcome)?;
                }
                courtesy::rest();
            }
            // Behind those of them that are zeros, too.
            if let Some(lost) = lost {
                outcome.pages_marked += u64::from(lost.count);
                BlockRun::append(&mut outcome.zero_runs, lost);
            }
        }
        if !selected.is_empty() {
            self.store_frame(blocks.start, &selected, &mut outcome)?;
        }
        if follow {
            self.audit_part(job, part, open, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Reads blocks to their place in the buffer. Answers those that are there, and those that the file has lost, which are to be
    /// listed as zeros.
    fn read_run(
        &mut self,
        job: &Job,
        open: &OpenFile,
        run: BlockRun,
        outcome: &mut Outcome,
    ) -> Result<(BlockRun, Option<BlockRun>)> {
        let from = to_usize(run.start % PART_BLOCKS) * BLOCK_SIZE;
        let range = from..from + to_usize(run.count) * BLOCK_SIZE;
        self.context.limiter.wait(range.len(), self.context.abort);
        let offset = u64::from(run.start) * super::job::block_bytes();
        let read = self
            .context
            .cache
            .read_at(&open.file, &mut self.buffer[range], offset)
            .context(|| format!("could not read \"{}\"", job.file.path))?;
        outcome.bytes_read += u64::try_from(read).expect("usize has 64 bits");
        let whole_blocks = u32::try_from(read / BLOCK_SIZE).unwrap_or(u32::MAX);
        let present = BlockRun {
            count: whole_blocks.min(run.count),
            ..run
        };
        let lost = BlockRun::between(present.start + present.count, run.start + run.count);
        if lost.is_some() {
            let about = || format!("could not look at \"{}\"", job.file.path);
            outcome.emptied |= open.file.metadata().context(about)?.len() == 0;
        }
        Ok((present, lost))
    }

    /// Compares drawn pages, which the plan takes from the parent, with the parent's digests.
    fn audit_part(
        &mut self,
        job: &Job,
        part: u32,
        open: &OpenFile,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let (blocks, mut runs) = (job.part_blocks(part), Vec::new());
        clip(&job.audit, blocks.start, blocks.end, &mut runs);
        let (Some(digests), Some(fork)) = (&job.digests, job.file.fork()) else {
            return Ok(());
        };
        for block in runs.iter().flat_map(|run| run.start..run.start + run.count) {
            let mut page = vec![0; BLOCK_SIZE];
            self.context.limiter.wait(BLOCK_SIZE, self.context.abort);
            let offset = u64::from(block) * super::job::block_bytes();
            let read = read_at(&open.file, &mut page, offset)
                .context(|| format!("could not read \"{}\"", job.file.path))?;
            outcome.bytes_read += u64::try_from(read).expect("usize has 64 bits");
            if read < BLOCK_SIZE {
                // Cut short since the scan: replay cuts the file as well.
                break;
            }
            outcome.pages_audited += 1;
            if digests.get(to_usize(block)) != Some(&digest::page(&page)) {
                let path = job.file.path.clone();
                outcome.suspects.push(Suspect {
                    path,
                    fork,
                    block,
                    page,
                });
            }
        }
        Ok(())
    }

    /// Decides about one page in the buffer.
    fn select(
        &mut self,
        place: PageInFile<'_>,
        outcome: &mut Outcome,
        selected: &mut Vec<u32>,
    ) -> Result<()> {
        let (job, block) = (place.job, place.block);
        let offset = to_usize(block - place.part_start) * BLOCK_SIZE;
        let page = &mut self.buffer[offset..offset + BLOCK_SIZE];
        let zeros = is_zero(page);
        let check = self.context.check;
        if !zeros && let Some(complaint) = check.check(&place.open.file, place.segment, block, page)
        {
            if self.context.fail_on_corrupt_page && check.is_certain(&complaint) {
                return Err(corrupt_page_error(&job.file.path, block, &complaint.reason));
            }
            outcome.complaints.push((block, complaint));
        }
        let inherited = |limit: u32| block < limit;
        let mut own = None;
        let changed = match place.plan {
            ReadPlan::ByLsn {
                threshold,
                inherit_limit,
            } if inherited(*inherit_limit) => {
                let lsn = PageHeader::new(page)
                    .map(|header| header.lsn())
                    .unwrap_or_default();
                page_selected(lsn, *threshold) || job.corrupt.contains(block)
            }
            ReadPlan::ByDigest { inherit_limit } if inherited(*inherit_limit) => {
                let known = job
                    .digests
                    .as_ref()
                    .and_then(|digests| digests.get(to_usize(block)));
                known != Some(own.insert(digest::page(page)))
            }
            _ => true,
        };
        if !changed {
            return Ok(());
        }
        outcome.pages_marked += 1;
        if zeros {
            BlockRun::append(
                &mut outcome.zero_runs,
                BlockRun {
                    start: block,
                    count: 1,
                },
            );
        } else {
            selected.push(block);
            // Its checksum has just been looked at: it is in the processor's cache.
            let digest = own.unwrap_or_else(|| digest::page(page));
            outcome.page_digests.push(digest);
        }
        Ok(())
    }

    /// Stores the pages of `blocks`, at most those of a frame, as one frame.
    fn store_frame(
        &mut self,
        part_start: u32,
        blocks: &[u32],
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut runs = Vec::new();
        for &start in blocks {
            BlockRun::append(&mut runs, BlockRun { start, count: 1 });
        }
        let place = |run: &BlockRun| {
            let from = to_usize(run.start - part_start) * BLOCK_SIZE;
            from..from + to_usize(run.count) * BLOCK_SIZE
        };
        let raw = match runs.as_slice() {
            [only] => &self.buffer[place(only)],
            _ => {
                self.gathered.clear();
                for run in &runs {
                    self.gathered.extend_from_slice(&self.buffer[place(run)]);
                }
                &self.gathered
            }
        };
        let frame = self.packs.encode(&mut self.encoder, raw, runs)?;
        outcome.frames.push(frame);
        self.context
            .progress
            .add_pages(u64::try_from(blocks.len()).expect("usize has 64 bits"));
        Ok(())
    }
}

/// Which page of which open file.
#[derive(Clone, Copy)]
struct PageInFile<'a> {
    job: &'a Job,
    plan: &'a ReadPlan,
    open: &'a OpenFile,
    segment: RelSegment,
    part_start: u32,
    block: u32,
}

impl Outcome {
    /// Cluster bytes that this outcome settles, whether read or not.
    fn bytes_covered(&self, job: &Job, part: u32) -> u64 {
        if job.file.segment.is_none() {
            return job.file.size_bytes;
        }
        let blocks = job.part_blocks(part);
        u64::from(blocks.end.saturating_sub(blocks.start)) * super::job::block_bytes()
    }
}

pub(crate) fn corrupt_page_error(path: &str, block: u32, reason: &str) -> Error {
    Error::new(
        Kind::CorruptPages,
        format!("block {block} of \"{path}\" is corrupt: {reason}"),
    )
    .hint("repair the relation, or back up with --on-corrupt-page warn to store it as it is")
}

/// How much is read at once: all that is wanted of a part, or less where others are to go first.
fn read_blocks() -> u32 {
    match courtesy::is_practised() {
        true => COURTEOUS_BLOCKS,
        false => PART_BLOCKS,
    }
}

/// `run` in runs of at most `most` blocks.
fn steps(run: BlockRun, most: u32) -> impl Iterator<Item = BlockRun> {
    let end = run.start + run.count;
    let starts = (run.start..end).step_by(to_usize(most));
    starts.filter_map(move |start| BlockRun::between(start, end.min(start.saturating_add(most))))
}

/// The parts of `runs` within `[start, end)`.
fn clip(runs: &[BlockRun], start: u32, end: u32, out: &mut Vec<BlockRun>) {
    let first = runs.partition_point(|run| run.end() <= u64::from(start));
    for run in runs.iter().skip(first).take_while(|run| run.start < end) {
        let run_end = u32::try_from(run.end()).unwrap_or(u32::MAX);
        out.extend(BlockRun::between(run.start.max(start), run_end.min(end)));
    }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    fill(buffer, offset, |rest, position| {
        file.read_at(rest, position)
    })
}

/// Calls `read` until the buffer is full or the file ends.
pub(super) fn fill(
    buffer: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let position = offset + u64::try_from(filled).expect("usize has 64 bits");
        match read(&mut buffer[filled..], position) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).expect("usize has 64 bits")
}
