//! Merging adjacent layers of a chain into one: which frames it gets, file by file.
//!
//! The merged layer has the state of the newest of them and stands where the oldest stood. A frame all of whose pages
//! still count is copied as it is, provided no page of another frame lies between its first and its last block
//! (blocks of an entry ascend through its frames). The pages of all other frames are encoded anew, in order of block.

use std::collections::BTreeMap;

use crate::entry::{BlockRun, DigestRef, FileEntry, FrameRef};
use crate::error::Result;
use crate::frame::PAGES;
use crate::overlay::{DigestRun, DigestSource, RunSource, Take, newest_of, resolve_above};

/// Pages taken from one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which of the merged layers, 0 the newest.
    pub layer: usize,
    /// The frame.
    pub frame: FrameRef,
    /// Its pages.
    pub take: Take,
}

/// A frame of the merged layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFrame {
    /// A frame that is copied.
    Copy {
        /// Which of the merged layers, 0 the newest.
        layer: usize,
        /// The frame.
        frame: FrameRef,
    },
    /// Pages that are encoded anew, in order of block.
    Encode(Vec<Taken>),
}

/// A file of the merged layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedFile {
    /// Its entry, but for frames.
    pub entry: FileEntry,
    /// Its frames, in order of block.
    pub frames: Vec<OutputFrame>,
    /// Where the digests of its stored pages are, in order of block.
    pub digests: Vec<DigestRun>,
}

/// A run of pages that the merged layer holds.
#[derive(Clone, Copy)]
struct Page {
    run: BlockRun,
    layer: usize,
    frame: usize,
    frame_page: u32,
    ordinal: u32,
}

impl OutputFrame {
    /// The blocks whose pages it holds.
    #[must_use]
    pub fn runs(&self) -> Vec<BlockRun> {
        let mut runs = Vec::new();
        match self {
            Self::Copy { frame, .. } => runs.clone_from(&frame.runs),
            Self::Encode(parts) => {
                for part in parts {
                    BlockRun::append(&mut runs, part.take.run);
                }
            }
        }
        runs
    }
}

/// Merges one file, given its entries in the merged layers, newest first. `stands_on_others` says whether the oldest
/// of these `layers` has a parent.
///
/// # Errors
/// When a block has no source.
pub fn plan_file(
    chain: &[(usize, &FileEntry)],
    layers: usize,
    stands_on_others: bool,
) -> Result<MergedFile> {
    let mut entry = newest_of(chain)?.clone();
    let mut pages: Vec<Page> = Vec::new();
    let mut zero_runs = Vec::new();
    let inherited = resolve_above(
        chain,
        stands_on_others.then_some(layers),
        |layer, _, run, source| match source {
            RunSource::Zeros => zero_runs.push(run),
            RunSource::Page {
                frame,
                frame_page,
                ordinal,
            } => pages.push(Page {
                run,
                layer,
                frame,
                frame_page,
                ordinal,
            }),
        },
    )?;
    pages.sort_unstable_by_key(|page| page.run.start);
    zero_runs.sort_unstable_by_key(|run: &BlockRun| run.start);
    entry.zero_runs.clear();
    for run in zero_runs {
        BlockRun::append(&mut entry.zero_runs, run);
    }
    // What is not held comes from below, and nothing beyond the last block that does.
    entry.inherit_limit = inherited
        .last()
        .map_or(0, |run| u32::try_from(run.end()).unwrap_or(u32::MAX));
    entry.frames.clear();
    entry.page_digests = DigestRef::default();
    let digests = pages.iter().map(|page| DigestRun {
        run: page.run,
        source: DigestSource::Stored {
            layer: page.layer,
            first: page.ordinal,
        },
    });
    Ok(MergedFile {
        digests: digests.collect(),
        frames: frames(chain, &pages),
        entry,
    })
}

/// Whether each frame can be copied: it is taken whole, by runs that follow one another.
fn copyable(chain: &[(usize, &FileEntry)], pages: &[Page]) -> BTreeMap<(usize, usize), bool> {
    let mut found: BTreeMap<(usize, usize), (u64, u32)> = BTreeMap::new();
    let mut last = None;
    for page in pages {
        let key = (page.layer, page.frame);
        let (taken, groups) = found.entry(key).or_default();
        *taken += u64::from(page.run.count);
        if last != Some(key) {
            *groups += 1;
        }
        last = Some(key);
    }
    let whole = |((layer, frame), (taken, groups))| {
        let count = frame_of(chain, layer, frame).map_or(0, FrameRef::page_count);
        ((layer, frame), groups == 1 && taken == count)
    };
    found.into_iter().map(whole).collect()
}

fn frame_of<'a>(
    chain: &[(usize, &'a FileEntry)],
    layer: usize,
    frame: usize,
) -> Option<&'a FrameRef> {
    let entry = chain.iter().find(|(number, _)| *number == layer)?.1;
    entry.frames.get(frame)
}

fn frames(chain: &[(usize, &FileEntry)], pages: &[Page]) -> Vec<OutputFrame> {
    let copyable = copyable(chain, pages);
    let most = u32::try_from(PAGES).expect("a few dozen");
    let mut frames: Vec<OutputFrame> = Vec::new();
    // Pages in the frame being put together; none after a copied one.
    let mut held = 0;
    let mut copied = None;
    for page in pages {
        let key = (page.layer, page.frame);
        let Some(frame) = frame_of(chain, page.layer, page.frame) else {
            continue;
        };
        if copyable.get(&key) == Some(&true) {
            if copied != Some(key) {
                frames.push(OutputFrame::Copy {
                    layer: page.layer,
                    frame: frame.clone(),
                });
            }
            (copied, held) = (Some(key), 0);
            continue;
        }
        let (mut start, mut frame_page, mut left) =
            (page.run.start, page.frame_page, page.run.count);
        while left > 0 {
            if held == 0 || held == most {
                frames.push(OutputFrame::Encode(Vec::new()));
                held = 0;
            }
            let count = left.min(most - held);
            if let Some(OutputFrame::Encode(parts)) = frames.last_mut() {
                parts.push(Taken {
                    layer: page.layer,
                    frame: frame.clone(),
                    take: Take {
                        frame_page,
                        run: BlockRun { start, count },
                    },
                });
            }
            held += count;
            (start, frame_page, left) = (start + count, frame_page + count, left - count);
        }
    }
    frames
}
