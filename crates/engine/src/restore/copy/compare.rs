//! Comparing a file that is there with what it must be, block by block.
//!
//! Pages are read and their digests computed; what has the digest that the layers have stays, and its frame is not
//! fetched. A file that is not made of pages stays or goes as a whole.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pgstrata_layer::digest::{self, ContentHasher};
use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, EntryKind, FileEntry};
use pgstrata_layer::overlay::{FilePlan, Take};
use pgstrata_pgdata::FileChecksum;
use pgstrata_store::catalog::ChainDigests;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::progress::Progress;
use rustix::fs::{Advice, fadvise};

use super::write::{Part, Writer};
use crate::frames::WantedFrame;

/// Blocks read at once: 1 MiB.
const CHUNK_BLOCKS: u32 = 128;

/// A file is shared among threads when each gets at least this much: 16 MiB take longer to read than a thread to start.
const SHARE_BLOCKS: u32 = 2048;

/// Compares files, asked for in order of path.
pub(crate) struct Comparison<'a> {
    writer: &'a Writer<'a>,
    digests: ChainDigests,
    threads: u32,
    progress: &'a Progress,
    read_bytes: u64,
}

/// Offset and checksum of what a file has as it must be.
type KeptBlocks = Vec<(u64, FileChecksum)>;

/// What came of comparing a run of blocks.
#[derive(Default)]
struct Compared {
    /// Blocks that are not as they must be.
    differing: Vec<BlockRun>,
    /// Offset and checksum of what is, zeros left out.
    kept: Vec<(u64, FileChecksum)>,
}

/// What the pages of a file must be.
struct ExpectedPages<'a> {
    path: &'a str,
    size_bytes: u64,
    digests: &'a [u64],
    zero_runs: &'a [BlockRun],
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(
        writer: &'a Writer<'a>,
        digests: ChainDigests,
        jobs: usize,
        progress: &'a Progress,
    ) -> Self {
        Self {
            writer,
            digests,
            threads: u32::try_from(jobs).unwrap_or(1).max(1),
            progress,
            read_bytes: 0,
        }
    }

    /// Bytes read from files that were there.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// As [`Writer::begin`], but a file that is there keeps what it has.
    pub(crate) fn begin(
        &mut self,
        mut plan: FilePlan,
        entries: &[Option<FileEntry>],
        push: impl FnMut(WantedFrame<Part>) -> Result<()>,
    ) -> Result<()> {
        if plan.kind == EntryKind::Directory {
            return self.writer.begin(plan, push);
        }
        let Some(file) = self.writer.open_existing(&plan)? else {
            return self.writer.begin(plan, push);
        };
        // What the disk has counts: a page whose writing failed may still be in memory as it should be, and then nobody is told
        // of the failure a second time.
        if let Err(error) = fadvise(&file, 0, None, Advice::DontNeed) {
            tracing::debug!(%error, "what is in memory of a file is compared");
        }
        self.read_bytes += plan.size_bytes;
        let kept = match plan.kind {
            EntryKind::Relation => self.keep_pages(&file, &mut plan, entries)?,
            _ => keep_whole(&file, &mut plan)?,
        };
        let kept = match kept {
            Ok(kept) => kept,
            Err(unreadable) => {
                tracing::warn!("{unreadable}; the file is made anew");
                self.writer.remove_existing(&plan)?;
                return self.writer.begin(plan, push);
            }
        };
        let bytes = kept.iter().map(|(_, checksum)| checksum.size_bytes()).sum();
        self.progress.add_done(bytes);
        self.writer.enlist(plan, kept, push)
    }

    /// Takes out of `plan` what the file has; returns its checksums. The inner error says why it cannot be read.
    fn keep_pages(
        &mut self,
        file: &File,
        plan: &mut FilePlan,
        entries: &[Option<FileEntry>],
    ) -> Result<std::result::Result<KeptBlocks, Error>> {
        let blocks = u32::try_from(plan.size_bytes.div_ceil(u64::from(BLOCK_BYTES)))
            .map_err(|_| Error::new(Kind::Damaged, format!("\"{}\" is too large", plan.path)))?;
        let digests = self.digests.digests(entries, blocks)?;
        let expected = ExpectedPages {
            path: &plan.path,
            size_bytes: plan.size_bytes,
            digests: &digests,
            zero_runs: &plan.zero_runs,
        };
        let compared = match expected.compare(file, blocks, self.threads, self.progress) {
            Err(error) if error.kind() == Kind::File => return Ok(Err(error)),
            compared => compared?,
        };
        let mut zeros = Vec::new();
        for run in &compared.differing {
            intersect(*run, &plan.zero_runs, |part| zeros.push(part));
        }
        self.writer.write_zeros(file, plan, &zeros)?;
        for piece in &mut plan.pieces {
            piece.take = wanted(&piece.take, &compared.differing);
        }
        plan.pieces.retain(|piece| !piece.take.is_empty());
        Ok(Ok(compared.kept))
    }
}

/// Keeps a file with the right contents; empties any other. The inner error says why it cannot be read.
fn keep_whole(file: &File, plan: &mut FilePlan) -> Result<std::result::Result<KeptBlocks, Error>> {
    let (digest, checksum) = match read_whole(file, plan) {
        Ok(read) => read,
        unreadable => return Ok(unreadable.map(|_| Vec::new())),
    };
    if plan.content_digest == Some(digest) {
        plan.pieces.clear();
        return Ok(Ok(vec![(0, checksum)]));
    }
    let about = || format!("could not empty \"{}\"", plan.path);
    file.set_len(0).context(about)?;
    file.set_len(plan.size_bytes).context(about)?;
    Ok(Ok(Vec::new()))
}

fn read_whole(file: &File, plan: &FilePlan) -> Result<([u8; 32], FileChecksum)> {
    let about = || format!("could not read \"{}\"", plan.path);
    let mut hasher = ContentHasher::new();
    let mut checksum = FileChecksum::new();
    let mut buffer = vec![0; chunk_bytes()];
    let mut offset = 0;
    while offset < plan.size_bytes {
        let length = usize::try_from(plan.size_bytes - offset)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        file.read_exact_at(&mut buffer[..length], offset)
            .context(about)?;
        hasher.update(&buffer[..length]);
        checksum.update(&buffer[..length]);
        offset += u64::try_from(length).expect("usize has 64 bits");
    }
    Ok((hasher.finish(), checksum))
}

fn chunk_bytes() -> usize {
    usize::try_from(CHUNK_BLOCKS * BLOCK_BYTES).expect("1 MiB")
}

impl ExpectedPages<'_> {
    /// Compares all blocks, by as many threads as it is worth.
    fn compare(
        &self,
        file: &File,
        blocks: u32,
        threads: u32,
        progress: &Progress,
    ) -> Result<Compared> {
        let threads = threads.min(blocks / SHARE_BLOCKS).max(1);
        let share = blocks.div_ceil(threads).max(1);
        let ranges = (0..threads).map(|n| {
            let start = (n * share).min(blocks);
            start..start.saturating_add(share).min(blocks)
        });
        let mut all = Compared::default();
        if threads == 1 {
            self.compare_range(file, 0..blocks, progress, &mut all)?;
            return Ok(all);
        }
        let parts = std::thread::scope(|scope| {
            let workers: Vec<_> = ranges
                .map(|range| {
                    scope.spawn(move || {
                        let mut part = Compared::default();
                        self.compare_range(file, range, progress, &mut part)
                            .map(|()| part)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("comparing does not panic"))
                .collect::<Result<Vec<_>>>()
        })?;
        for part in parts {
            for run in part.differing {
                BlockRun::append(&mut all.differing, run);
            }
            all.kept.extend(part.kept);
        }
        Ok(all)
    }

    fn compare_range(
        &self,
        file: &File,
        range: std::ops::Range<u32>,
        progress: &Progress,
        out: &mut Compared,
    ) -> Result<()> {
        let block_bytes = usize::try_from(BLOCK_BYTES).expect("8192");
        let mut buffer = vec![0; chunk_bytes()];
        let mut start = range.start;
        while start < range.end {
            if progress.is_cancelled() {
                return Err(Error::new(Kind::Interrupted, "interrupted"));
            }
            let end = start.saturating_add(CHUNK_BLOCKS).min(range.end);
            let offset = u64::from(start) * u64::from(BLOCK_BYTES);
            let until = (u64::from(end) * u64::from(BLOCK_BYTES)).min(self.size_bytes);
            let length = usize::try_from(until - offset).expect("1 MiB at most");
            file.read_exact_at(&mut buffer[..length], offset)
                .context(|| format!("could not read \"{}\"", self.path))?;
            for (block, page) in (start..end).zip(buffer[..length].chunks(block_bytes)) {
                self.compare_page(block, page, out);
            }
            start = end;
        }
        Ok(())
    }

    fn compare_page(&self, block: u32, page: &[u8], out: &mut Compared) {
        let offset = u64::from(block) * u64::from(BLOCK_BYTES);
        let zeros = holds(self.zero_runs, block);
        let same = match zeros {
            true => digest::is_zeros(page),
            false => {
                let at = usize::try_from(block).expect("usize has 64 bits");
                self.digests.get(at) == Some(&digest::page(page))
            }
        };
        if !same {
            BlockRun::append(
                &mut out.differing,
                BlockRun {
                    start: block,
                    count: 1,
                },
            );
        } else if !zeros {
            match out.kept.last_mut() {
                Some((start, checksum)) if *start + checksum.size_bytes() == offset => {
                    checksum.update(page);
                }
                _ => out.kept.push((offset, FileChecksum::of(page))),
            }
        }
    }
}

/// Whether one of the ascending runs holds the block.
fn holds(runs: &[BlockRun], block: u32) -> bool {
    let after = runs.partition_point(|run| run.start <= block);
    let run = after.checked_sub(1).and_then(|at| runs.get(at));
    run.is_some_and(|run| u64::from(block) < run.end())
}

/// Visits the parts of `run` that lie in the ascending `runs`.
fn intersect(run: BlockRun, runs: &[BlockRun], mut visit: impl FnMut(BlockRun)) {
    let first = runs.partition_point(|other| other.end() <= u64::from(run.start));
    for other in runs.iter().skip(first) {
        let start = run.start.max(other.start);
        let end = u32::try_from(run.end().min(other.end())).unwrap_or(u32::MAX);
        match BlockRun::between(start, end) {
            Some(part) => visit(part),
            None => return,
        }
    }
}

/// The parts of `takes` whose blocks are in `differing`.
fn wanted(takes: &[Take], differing: &[BlockRun]) -> Vec<Take> {
    let mut parts = Vec::new();
    for take in takes {
        intersect(take.run, differing, |run| {
            parts.push(Take {
                frame_page: take.frame_page + (run.start - take.run.start),
                run,
            });
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, count: u32) -> BlockRun {
        BlockRun { start, count }
    }

    #[test]
    fn only_differing_pages_are_taken() {
        let takes = [
            Take {
                frame_page: 0,
                run: run(10, 4),
            },
            Take {
                frame_page: 4,
                run: run(20, 4),
            },
        ];
        let parts = wanted(&takes, &[run(0, 11), run(12, 9), run(23, 5)]);
        let found: Vec<_> = parts
            .iter()
            .map(|take| (take.frame_page, take.run.start, take.run.count))
            .collect();
        assert_eq!(found, [(0, 10, 1), (2, 12, 2), (4, 20, 1), (7, 23, 1)]);
        assert!(wanted(&takes, &[run(0, 10), run(14, 6)]).is_empty());
    }

    #[test]
    fn a_block_is_found_in_its_run() {
        let runs = [run(2, 2), run(8, 1)];
        let held: Vec<u32> = (0..10).filter(|&block| holds(&runs, block)).collect();
        assert_eq!(held, [2, 3, 8]);
    }
}
