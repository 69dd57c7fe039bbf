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

use pgstrata_layer::changeset::{ReadPlan, page_selected};
use pgstrata_layer::digest::{self, ContentHasher};
use pgstrata_layer::entry::BlockRun;
use pgstrata_layer::frame;
use pgstrata_pgdata::page::{PageHeader, is_zero};
use pgstrata_pgdata::relation::{BLOCK_SIZE, RelSegment};

use super::abort::Abort;
use super::audit::Suspect;
use super::job::{Done, Item, Job, OpenFile, Opened, Outcome, PART_BLOCKS};
use super::limiter::Limiter;
use super::packer::Packer;
use super::pages::PageCheck;
use crate::error::{Error, FileContext, Kind, Result};
use crate::progress::Progress;

/// Bytes of a plain file in one frame.
const PLAIN_FRAME_BYTES: usize = frame::PAGES * BLOCK_SIZE;

/// What all workers share.
pub(super) struct Shop<'a> {
    pub(super) data_directory: &'a Path,
    pub(super) check: &'a PageCheck,
    /// Give up at the first page that is certainly corrupt.
    pub(super) fail_on_corrupt_page: bool,
    pub(super) limiter: &'a Limiter,
    pub(super) progress: &'a Progress,
    pub(super) abort: &'a Abort,
}

/// One thread's tools.
pub(super) struct Worker<'a> {
    shop: &'a Shop<'a>,
    items: Arc<Mutex<Receiver<Item>>>,
    packer: Packer<'a>,
    done: Sender<Done>,
    /// One part, as read.
    buffer: Vec<u8>,
    /// Pages of one frame that are not next to one another in `buffer`.
    gathered: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        shop: &'a Shop<'a>,
        items: Arc<Mutex<Receiver<Item>>>,
        packer: Packer<'a>,
        done: Sender<Done>,
    ) -> Self {
        Self {
            shop,
            items,
            packer,
            done,
            buffer: Vec::new(),
            gathered: Vec::new(),
        }
    }

    /// Works until there is nothing left or the backup has failed.
    pub(super) fn run(mut self) -> Result<()> {
        while !self.shop.abort.is_raised() {
            let item = self
                .items
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            match item {
                Ok(Item::Part(job, part)) => self.act(&job, part)?,
                Ok(Item::Files(jobs)) => jobs.iter().try_for_each(|job| self.act(job, 0))?,
                // The planner is done, or has failed.
                Err(_) if self.shop.abort.is_raised() => return Ok(()),
                Err(_) => return self.packer.finish(),
            }
        }
        Ok(())
    }

    fn act(&mut self, job: &Arc<Job>, part: u32) -> Result<()> {
        let outcome = match (job.open(self.shop.data_directory)?, job.file.segment) {
            (Opened::Gone, _) => Outcome {
                gone: true,
                ..Outcome::default()
            },
            (Opened::File(file), Some(segment)) => self.relation_part(job, part, &file, segment)?,
            (Opened::File(file), None) => self.plain_file(job, &file)?,
        };
        self.shop
            .progress
            .add_done(outcome.bytes_covered(job, part));
        let done = Done {
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
        let mut selected = Vec::new();
        self.buffer.resize(to_usize(PART_BLOCKS) * BLOCK_SIZE, 0);
        for run in &runs {
            let (from, to) = (
                run.start - blocks.start,
                run.start - blocks.start + run.count,
            );
            let range = to_usize(from) * BLOCK_SIZE..to_usize(to) * BLOCK_SIZE;
            self.shop.limiter.wait(range.len(), self.shop.abort);
            let act = || format!("could not read \"{}\"", job.file.path);
            let read = read_at(
                &open.file,
                &mut self.buffer[range],
                u64::from(run.start) * super::job::block_bytes(),
            )
            .context(act)?;
            outcome.bytes_read += u64::try_from(read).expect("usize has 64 bits");
            let whole_blocks = u32::try_from(read / BLOCK_SIZE)
                .unwrap_or(u32::MAX)
                .min(run.count);
            let present = run.start..run.start + whole_blocks;
            for block in present.clone() {
                let place = Place {
                    job,
                    plan,
                    open,
                    segment,
                    part_start: blocks.start,
                    block,
                };
                self.select(place, &mut outcome, &mut selected)?;
            }
            if let Some(lost) = BlockRun::between(present.end, run.start + run.count) {
                outcome.pages_marked += u64::from(lost.count);
                BlockRun::append(&mut outcome.zero_runs, lost);
            }
        }
        self.store_pages(blocks.start, &selected, &mut outcome)?;
        if follow {
            self.audit_part(job, part, open, &mut outcome)?;
        }
        Ok(outcome)
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
            self.shop.limiter.wait(BLOCK_SIZE, self.shop.abort);
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
        place: Place<'_>,
        outcome: &mut Outcome,
        selected: &mut Vec<u32>,
    ) -> Result<()> {
        let (job, block) = (place.job, place.block);
        let offset = to_usize(block - place.part_start) * BLOCK_SIZE;
        let page = &mut self.buffer[offset..offset + BLOCK_SIZE];
        let zeros = is_zero(page);
        let check = self.shop.check;
        if !zeros && let Some(complaint) = check.check(&place.open.file, place.segment, block, page)
        {
            if self.shop.fail_on_corrupt_page && check.is_certain(&complaint) {
                return Err(corrupt_page_error(&job.file.path, block, &complaint.reason));
            }
            outcome.complaints.push((block, complaint));
        }
        let inherited = |limit: u32| block < limit;
        let changed = match place.plan {
            ReadPlan::ByLsn {
                threshold,
                inherit_limit,
            } if inherited(*inherit_limit) => {
                let lsn = PageHeader::new(page)
                    .map(|header| header.lsn())
                    .unwrap_or_default();
                page_selected(lsn, *threshold)
            }
            ReadPlan::ByDigest { inherit_limit } if inherited(*inherit_limit) => {
                let known = job
                    .digests
                    .as_ref()
                    .and_then(|digests| digests.get(to_usize(block)));
                known != Some(&digest::page(page))
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
        }
        Ok(())
    }

    fn store_pages(
        &mut self,
        part_start: u32,
        selected: &[u32],
        outcome: &mut Outcome,
    ) -> Result<()> {
        for blocks in selected.chunks(frame::PAGES) {
            let mut runs = Vec::new();
            for &block in blocks {
                BlockRun::append(
                    &mut runs,
                    BlockRun {
                        start: block,
                        count: 1,
                    },
                );
            }
            self.gathered.clear();
            for run in &runs {
                let from = to_usize(run.start - part_start) * BLOCK_SIZE;
                let pages = &self.buffer[from..from + to_usize(run.count) * BLOCK_SIZE];
                outcome
                    .page_digests
                    .extend(pages.chunks_exact(BLOCK_SIZE).map(digest::page));
                if runs.len() > 1 {
                    self.gathered.extend_from_slice(pages);
                }
            }
            let raw = match *runs.as_slice() {
                [only] => {
                    let from = to_usize(only.start - part_start) * BLOCK_SIZE;
                    &self.buffer[from..from + to_usize(only.count) * BLOCK_SIZE]
                }
                _ => &self.gathered[..],
            };
            outcome.frames.push(self.packer.frame(raw, runs)?);
            self.shop
                .progress
                .add_pages(u64::try_from(blocks.len()).expect("usize has 64 bits"));
        }
        Ok(())
    }

    fn plain_file(&mut self, job: &Job, open: &OpenFile) -> Result<Outcome> {
        let mut outcome = Outcome {
            identity: open.identity,
            ..Outcome::default()
        };
        if let (ReadPlan::PlainByDigest, Some(parent)) = (&job.plan, job.parent_content) {
            let found = self.digest_plain(job, open, &mut outcome)?;
            if found == Some(parent) {
                outcome.inherits = true;
                outcome.size_bytes = job.file.size_bytes;
                outcome.content_digest = found;
                return Ok(outcome);
            }
        }
        let mut hasher = ContentHasher::new();
        let mut position = 0;
        while position < job.file.size_bytes {
            let read = self.read_plain(job, open, position, &mut outcome)?;
            if read == 0 {
                break;
            }
            hasher.update(&self.buffer[..read]);
            let start = block_of(position, job)?;
            let count = block_of(
                u64::try_from(read.div_ceil(BLOCK_SIZE) * BLOCK_SIZE).expect("usize has 64 bits"),
                job,
            )?;
            outcome.frames.push(
                self.packer
                    .frame(&self.buffer[..read], vec![BlockRun { start, count }])?,
            );
            position += u64::try_from(read).expect("usize has 64 bits");
            if read < PLAIN_FRAME_BYTES {
                // The file's end; a partial block can only be the last.
                break;
            }
        }
        outcome.size_bytes = position;
        outcome.content_digest = Some(hasher.finish());
        Ok(outcome)
    }

    /// Digest of the scanned size; `None` when the file is shorter now.
    fn digest_plain(
        &mut self,
        job: &Job,
        open: &OpenFile,
        outcome: &mut Outcome,
    ) -> Result<Option<[u8; 32]>> {
        let mut hasher = ContentHasher::new();
        let mut position = 0;
        while position < job.file.size_bytes {
            let read = self.read_plain(job, open, position, outcome)?;
            if read == 0 {
                return Ok(None);
            }
            hasher.update(&self.buffer[..read]);
            position += u64::try_from(read).expect("usize has 64 bits");
        }
        Ok(Some(hasher.finish()))
    }

    /// Reads the bytes of one frame, never beyond the scanned size.
    fn read_plain(
        &mut self,
        job: &Job,
        open: &OpenFile,
        position: u64,
        outcome: &mut Outcome,
    ) -> Result<usize> {
        if self.shop.abort.is_raised() {
            return Err(Error::new(Kind::Interrupted, "the backup was stopped"));
        }
        let left = usize::try_from(job.file.size_bytes - position).unwrap_or(usize::MAX);
        let wanted = left.min(PLAIN_FRAME_BYTES);
        self.buffer
            .resize(self.buffer.len().max(PLAIN_FRAME_BYTES), 0);
        self.shop.limiter.wait(wanted, self.shop.abort);
        let read = read_at(&open.file, &mut self.buffer[..wanted], position)
            .context(|| format!("could not read \"{}\"", job.file.path))?;
        outcome.bytes_read += u64::try_from(read).expect("usize has 64 bits");
        Ok(read)
    }
}

/// Which page of which open file.
#[derive(Clone, Copy)]
struct Place<'a> {
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

pub(super) fn corrupt_page_error(path: &str, block: u32, reason: &str) -> Error {
    Error::new(
        Kind::CorruptPages,
        format!("block {block} of \"{path}\" is corrupt: {reason}"),
    )
    .hint("repair the relation, or back up with --on-corrupt-page warn to store it as it is")
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
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let position = offset + u64::try_from(filled).expect("usize has 64 bits");
        match file.read_at(&mut buffer[filled..], position) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn block_of(position: u64, job: &Job) -> Result<u32> {
    u32::try_from(position / super::job::block_bytes()).map_err(|_| {
        Error::new(
            Kind::Unsupported,
            format!(
                "could not back up \"{}\": it is larger than 32 TiB",
                job.file.path
            ),
        )
    })
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).expect("usize has 64 bits")
}
