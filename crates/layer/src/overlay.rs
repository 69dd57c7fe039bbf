//! The overlay: from a chain of layers to one source for every block.
//!
//! A block comes from the newest layer that holds it, as a page in a frame or as
//! zeros, provided every newer layer allows it to be inherited. Planning a file
//! either gives each of its blocks exactly one source or fails, naming the first
//! block without one. Layers are counted from 0, the newest.

use std::cmp::Ordering;
use std::iter::Peekable;

use crate::entry::{BLOCK_BYTES, BlockRun, EntryKind, FileEntry, FrameRef};
use crate::error::{Error, Result};

/// Pages of a frame that go to a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The first page, counted from the start of the frame.
    pub frame_page: u32,
    /// The blocks they go to.
    pub run: BlockRun,
}

/// What a restore takes from one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which layer of the chain, 0 the newest.
    pub layer: usize,
    /// The frame.
    pub frame: FrameRef,
    /// Its pages that are still current, ascending.
    pub take: Vec<Take>,
}

/// How to restore one file: every block is in exactly one take or run of zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// Relative to the data directory.
    pub path: String,
    /// Directory, relation segment, or plain file.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, seconds since the Unix epoch.
    pub modified: i64,
    /// Exact size.
    pub size_bytes: u64,
    /// BLAKE3 of the whole, for plain files.
    pub content_digest: Option<[u8; 32]>,
    /// Frames to read, newest layer first, in ascending order of block within a layer.
    pub pieces: Vec<Piece>,
    /// Blocks that are zeros, ascending.
    pub zero_runs: Vec<BlockRun>,
}

/// Where the digest of a run of pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestSource {
    /// Among the digests of the file's entry in that layer, from ordinal `first` on.
    Stored {
        /// Which layer of the chain, 0 the newest.
        layer: usize,
        /// Ordinal of the first page's digest.
        first: u32,
    },
    /// The pages are zeros.
    Zeros,
}

/// A run of blocks and where the digests of its pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestRun {
    /// The blocks.
    pub run: BlockRun,
    /// Where their digests are.
    pub source: DigestSource,
}

/// A file's entries in the layers of a chain, newest first, as [`plan_file`] takes them.
#[must_use]
pub fn chain_of(entries: &[Option<FileEntry>]) -> Vec<(usize, &FileEntry)> {
    let numbered = entries.iter().enumerate();
    numbered
        .filter_map(|(layer, entry)| Some((layer, entry.as_ref()?)))
        .collect()
}

/// Plans the restore of one file from its entries in the layers of a chain, newest first.
///
/// # Errors
/// When a block has no source.
pub fn plan_file(chain: &[(usize, &FileEntry)]) -> Result<FilePlan> {
    let newest = newest_of(chain)?;
    let mut plan = FilePlan {
        path: newest.path.clone(),
        kind: newest.kind,
        mode: newest.mode,
        modified: newest.modified,
        size_bytes: newest.size_bytes,
        content_digest: newest.content_digest,
        pieces: Vec::new(),
        zero_runs: Vec::new(),
    };
    let mut last = None;
    resolve(chain, |layer, entry, run, source| match source {
        RunSource::Zeros => plan.zero_runs.push(run),
        RunSource::Page {
            frame, frame_page, ..
        } => {
            if last != Some((layer, frame)) {
                last = Some((layer, frame));
                let frame = entry.frames[frame].clone();
                plan.pieces.push(Piece {
                    layer,
                    frame,
                    take: Vec::new(),
                });
            }
            let piece = plan.pieces.last_mut().expect("pushed with its first take");
            piece.take.push(Take { frame_page, run });
        }
    })?;
    plan.zero_runs.sort_unstable_by_key(|run| run.start);
    let mut joined = Vec::new();
    for &run in &plan.zero_runs {
        BlockRun::append(&mut joined, run);
    }
    plan.zero_runs = joined;
    Ok(plan)
}

/// Where the digest of every page of a relation segment is, in order of block.
///
/// # Errors
/// When a block has no source.
pub fn digest_sources(chain: &[(usize, &FileEntry)]) -> Result<Vec<DigestRun>> {
    let mut runs = Vec::new();
    resolve(chain, |layer, _, run, source| {
        let source = match source {
            RunSource::Zeros => DigestSource::Zeros,
            RunSource::Page { ordinal, .. } => DigestSource::Stored {
                layer,
                first: ordinal,
            },
        };
        runs.push(DigestRun { run, source });
    })?;
    runs.sort_unstable_by_key(|found| found.run.start);
    Ok(runs)
}

pub(crate) fn newest_of<'a>(chain: &[(usize, &'a FileEntry)]) -> Result<&'a FileEntry> {
    let newest = chain.first().filter(|(layer, _)| *layer == 0);
    newest
        .map(|(_, entry)| *entry)
        .ok_or_else(|| Error::invalid("a file is planned from the newest layer on"))
}

/// Where a run of blocks is found within one entry.
#[derive(Clone, Copy)]
pub(crate) enum RunSource {
    Page {
        /// Which of the entry's frames.
        frame: usize,
        /// The run's first page within that frame.
        frame_page: u32,
        /// The run's first page among all stored pages of the entry.
        ordinal: u32,
    },
    Zeros,
}

/// Visits every block of the newest entry once, as runs with their source; within
/// a layer in ascending order.
fn resolve(
    chain: &[(usize, &FileEntry)],
    visit: impl FnMut(usize, &FileEntry, BlockRun, RunSource),
) -> Result<()> {
    let rest = resolve_above(chain, None, visit)?;
    assert!(rest.is_empty());
    Ok(())
}

/// As [`resolve`], for the newest layers of a chain alone: when they stand on others, the blocks that those must have
/// are returned. `stands_on` is then the number of layers.
pub(crate) fn resolve_above(
    chain: &[(usize, &FileEntry)],
    stands_on: Option<usize>,
    mut visit: impl FnMut(usize, &FileEntry, BlockRun, RunSource),
) -> Result<Vec<BlockRun>> {
    let newest = newest_of(chain)?;
    let blocks = u32::try_from(newest.block_count())
        .map_err(|_| Error::damaged(format!("file {:?} is too large", newest.path)))?;
    let mut wanted: Vec<BlockRun> = BlockRun::between(0, blocks).into_iter().collect();
    let mut rest = Vec::new();
    for (position, &(layer, entry)) in chain.iter().enumerate() {
        rest.clear();
        split_wanted(&wanted, entry, &mut rest, |run, source| {
            visit(layer, entry, run, source)
        });
        if rest.is_empty() {
            return Ok(rest);
        }
        if stands_on == Some(layer + 1) {
            let beyond = rest
                .iter()
                .find(|run| run.end() > u64::from(entry.inherit_limit));
            return match beyond {
                None => Ok(rest),
                Some(run) => Err(without_source(newest, run.start, layer)),
            };
        }
        let parent = chain
            .get(position + 1)
            .filter(|(next, _)| *next == layer + 1);
        check_inheritance(entry, parent.map(|(_, parent)| *parent), &rest)
            .map_err(|block| without_source(newest, block, layer))?;
        std::mem::swap(&mut wanted, &mut rest);
    }
    // Only an empty file comes here: the last layer has no parent to inherit from.
    Ok(Vec::new())
}

fn without_source(file: &FileEntry, block: u32, layer: usize) -> Error {
    Error::damaged(format!(
        "file {:?} has no source for block {block} in layer {layer} of the chain or below",
        file.path
    ))
}

/// Gives the parts of `wanted` that `entry` holds to `visit`, the others to `rest`.
fn split_wanted(
    wanted: &[BlockRun],
    entry: &FileEntry,
    rest: &mut Vec<BlockRun>,
    mut visit: impl FnMut(BlockRun, RunSource),
) {
    let mut held = HeldRuns::new(entry).peekable();
    for run in wanted {
        let mut start = u64::from(run.start);
        let end = run.end();
        while start < end {
            while held.next_if(|(found, _)| found.end() <= start).is_some() {}
            let next = held
                .peek()
                .filter(|(found, _)| u64::from(found.start) < end);
            let Some((found, source)) = next else {
                push_range(rest, start, end);
                break;
            };
            let from = u64::from(found.start).max(start);
            let to = found.end().min(end);
            push_range(rest, start, from);
            let skipped = u32::try_from(from - u64::from(found.start)).expect("within a run");
            let part = range(from, to).expect("the runs overlap");
            visit(part, source.skip(skipped));
            start = to;
        }
    }
}

fn push_range(runs: &mut Vec<BlockRun>, start: u64, end: u64) {
    if let Some(run) = range(start, end) {
        BlockRun::append(runs, run);
    }
}

fn range(start: u64, end: u64) -> Option<BlockRun> {
    let start = u32::try_from(start).ok()?;
    let count = u32::try_from(end.checked_sub(start.into())?).ok()?;
    (count > 0).then_some(BlockRun { start, count })
}

/// Whether all of `rest` may come from the parent; otherwise the first block that may not.
fn check_inheritance(
    entry: &FileEntry,
    parent: Option<&FileEntry>,
    rest: &[BlockRun],
) -> std::result::Result<(), u32> {
    let parent = parent.filter(|parent| parent.kind == entry.kind);
    let mut limit = 0;
    if let Some(parent) = parent {
        limit = parent.size_bytes / u64::from(BLOCK_BYTES);
        // A partial last block is inherited only as what it is.
        if parent.size_bytes == entry.size_bytes {
            limit = parent.block_count();
        }
    }
    limit = limit.min(entry.inherit_limit.into());
    let missing = rest.iter().find(|run| run.end() > limit);
    match missing {
        None => Ok(()),
        Some(run) => Err(u32::try_from(limit).map_or(run.start, |limit| run.start.max(limit))),
    }
}

impl RunSource {
    /// The source of the page that many pages further on in the same run.
    fn skip(self, pages: u32) -> Self {
        match self {
            Self::Zeros => Self::Zeros,
            Self::Page {
                frame,
                frame_page,
                ordinal,
            } => Self::Page {
                frame,
                frame_page: frame_page + pages,
                ordinal: ordinal + pages,
            },
        }
    }
}

/// The runs an entry holds, pages and zeros merged, ascending.
struct HeldRuns<'a> {
    entry: &'a FileEntry,
    frame: usize,
    run: usize,
    frame_page: u32,
    ordinal: u32,
    zero: usize,
}

impl<'a> HeldRuns<'a> {
    fn new(entry: &'a FileEntry) -> Self {
        Self {
            entry,
            frame: 0,
            run: 0,
            frame_page: 0,
            ordinal: 0,
            zero: 0,
        }
    }

    fn next_page_run(&mut self) -> Option<BlockRun> {
        loop {
            let frame = self.entry.frames.get(self.frame)?;
            if let Some(run) = frame.runs.get(self.run) {
                return Some(*run);
            }
            self.frame += 1;
            self.run = 0;
            self.frame_page = 0;
        }
    }
}

impl Iterator for HeldRuns<'_> {
    type Item = (BlockRun, RunSource);

    fn next(&mut self) -> Option<Self::Item> {
        let pages = self.next_page_run();
        let zeros = self.entry.zero_runs.get(self.zero).copied();
        let zeros_first = match (pages, zeros) {
            (Some(pages), Some(zeros)) => zeros.start < pages.start,
            (pages, _) => pages.is_none(),
        };
        if zeros_first {
            self.zero += 1;
            return Some((zeros?, RunSource::Zeros));
        }
        let run = pages?;
        let source = RunSource::Page {
            frame: self.frame,
            frame_page: self.frame_page,
            ordinal: self.ordinal,
        };
        self.run += 1;
        self.frame_page += run.count;
        self.ordinal += run.count;
        Some((run, source))
    }
}

/// Merges the indexes of a chain, newest first, by path: for every path in the
/// newest index, its entry in each layer. Paths that only older layers have
/// were dropped, and are passed over.
pub struct PathMerge<I: Iterator> {
    layers: Vec<LayerEntries<I>>,
    failed: bool,
}

struct LayerEntries<I: Iterator> {
    entries: Peekable<I>,
    last_path: String,
}

impl<I, E> PathMerge<I>
where
    I: Iterator<Item = std::result::Result<FileEntry, E>>,
    E: From<Error>,
{
    /// Merges streams of entries in order of path, the newest layer's first.
    pub fn new(layers: Vec<I>) -> Self {
        let layers = layers
            .into_iter()
            .map(|entries| LayerEntries {
                entries: entries.peekable(),
                last_path: String::new(),
            })
            .collect();
        Self {
            layers,
            failed: false,
        }
    }

    fn merge_next(&mut self) -> std::result::Result<Option<Vec<Option<FileEntry>>>, E> {
        let Some((newest, older)) = self.layers.split_first_mut() else {
            return Ok(None);
        };
        let Some(first) = newest.next()? else {
            return Ok(None);
        };
        let mut entries = Vec::with_capacity(older.len() + 1);
        for layer in older {
            entries.push(layer.find(&first.path)?);
        }
        entries.insert(0, Some(first));
        Ok(Some(entries))
    }
}

impl<I, E> Iterator for PathMerge<I>
where
    I: Iterator<Item = std::result::Result<FileEntry, E>>,
    E: From<Error>,
{
    type Item = std::result::Result<Vec<Option<FileEntry>>, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let merged = self.merge_next();
        self.failed = merged.is_err();
        merged.transpose()
    }
}

impl<I, E> LayerEntries<I>
where
    I: Iterator<Item = std::result::Result<FileEntry, E>>,
    E: From<Error>,
{
    fn next(&mut self) -> std::result::Result<Option<FileEntry>, E> {
        let Some(entry) = self.entries.next().transpose()? else {
            return Ok(None);
        };
        if !self.last_path.is_empty() && self.last_path >= entry.path {
            let complaint = format!("index has {:?} after {:?}", entry.path, self.last_path);
            return Err(Error::damaged(complaint).into());
        }
        self.last_path.clone_from(&entry.path);
        Ok(Some(entry))
    }

    /// The entry of `path`; passes over everything before it.
    fn find(&mut self, path: &str) -> std::result::Result<Option<FileEntry>, E> {
        loop {
            let order = match self.entries.peek() {
                None => return Ok(None),
                Some(Err(_)) => Ordering::Less,
                Some(Ok(entry)) => entry.path.as_str().cmp(path),
            };
            match order {
                Ordering::Less => drop(self.next()?),
                Ordering::Equal => return self.next(),
                Ordering::Greater => return Ok(None),
            }
        }
    }
}

/// Plans every file of the newest layer, in order of path; see [`PathMerge`] and [`plan_file`].
pub struct Overlay<I: Iterator> {
    merge: PathMerge<I>,
}

impl<I, E> Overlay<I>
where
    I: Iterator<Item = std::result::Result<FileEntry, E>>,
    E: From<Error>,
{
    /// Overlays streams of entries in order of path, the newest layer's first.
    pub fn new(layers: Vec<I>) -> Self {
        Self {
            merge: PathMerge::new(layers),
        }
    }
}

impl<I, E> Iterator for Overlay<I>
where
    I: Iterator<Item = std::result::Result<FileEntry, E>>,
    E: From<Error>,
{
    type Item = std::result::Result<(FilePlan, Vec<Option<FileEntry>>), E>;

    fn next(&mut self) -> Option<Self::Item> {
        let entries = match self.merge.next()? {
            Ok(entries) => entries,
            Err(error) => return Some(Err(error)),
        };
        match plan_file(&chain_of(&entries)) {
            Ok(plan) => Some(Ok((plan, entries))),
            Err(error) => {
                self.merge.failed = true;
                Some(Err(error.into()))
            }
        }
    }
}
