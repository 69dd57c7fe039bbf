//! Is the merged layer what it must be? It is read back: every frame decoded, every page compared with its digest,
//! every file and every digest with those of the inputs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pgstrata_layer::digest;
use pgstrata_layer::entry::{BLOCK_BYTES, EntryKind, FileEntry};
use pgstrata_layer::overlay::{FilePlan, Overlay};
use pgstrata_store::catalog::{ChainDigests, ChainEntries};
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;

use crate::frames::{Chain, FrameReader, WantedFrame, check_plain_file};

/// Digests of the pages of one frame.
struct Check {
    path: Arc<str>,
    /// Those of the whole entry; `None` for files that are not made of pages.
    digests: Option<Arc<Vec<u64>>>,
    first: usize,
}

/// Reads every frame of `layer`, which is a chain of one: pages have their digests, and plain files theirs.
pub(super) fn check_frames(layer: &Chain, jobs: usize, progress: &Progress) -> Result<()> {
    check_stored_pages(layer, jobs, progress)?;
    for entry in layer.entries().into_iter().flatten() {
        let entry = entry?;
        if entry.kind == EntryKind::Plain && entry.inherit_limit == 0 {
            if progress.is_cancelled() {
                return Err(Error::new(Kind::Interrupted, "interrupted"));
            }
            let checked = check_plain_file(&layer.cluster, &layer.layers[0], &entry);
            layer.runtime.block_on(checked)?;
        }
    }
    Ok(())
}

fn check_stored_pages(layer: &Chain, jobs: usize, progress: &Progress) -> Result<()> {
    let frames = AtomicU64::new(0);
    let reader = FrameReader {
        chain: layer,
        progress,
        workers: jobs,
        frames: &frames,
    };
    let mut digests = layer.digests();
    reader.read(
        || Ok(()),
        |(), wanted, raw| check_pages(&wanted.purpose, raw),
        Ok,
        |wanted| {
            for entry in layer.entries().into_iter().flatten() {
                let entry = [Some(entry?)];
                let stored = match &entry[0] {
                    Some(found) if found.kind == EntryKind::Relation => {
                        Some(Arc::new(digests.fetch(0, &found.path, &entry)?))
                    }
                    _ => None,
                };
                let [Some(FileEntry { path, frames, .. })] = entry else {
                    continue;
                };
                let path: Arc<str> = path.into();
                let mut first = 0;
                for frame in frames {
                    let pages = usize::try_from(frame.page_count()).unwrap_or(usize::MAX);
                    wanted.push(WantedFrame {
                        layer: 0,
                        frame,
                        purpose: Check {
                            path: Arc::clone(&path),
                            digests: stored.clone(),
                            first,
                        },
                    })?;
                    first += pages;
                }
                wanted.end_file()?;
            }
            Ok(())
        },
    )
}

fn check_pages(check: &Check, raw: &[u8]) -> Result<()> {
    let Some(digests) = &check.digests else {
        return Ok(());
    };
    let page_bytes = usize::try_from(BLOCK_BYTES).expect("8192");
    for (nth, page) in raw.chunks(page_bytes).enumerate() {
        if digests.get(check.first + nth) != Some(&digest::page(page)) {
            return Err(Error::new(
                Kind::Damaged,
                format!(
                    "stored page {} of \"{}\" in the merged layer does not have its digest",
                    check.first + nth,
                    check.path
                ),
            ));
        }
    }
    Ok(())
}

/// A chain whose overlay is walked along another's.
struct Side {
    overlay: Overlay<ChainEntries>,
    digests: ChainDigests,
}

impl Side {
    fn new(chain: &Chain) -> Self {
        Self {
            overlay: Overlay::new(chain.entries()),
            digests: chain.digests(),
        }
    }

    fn next(&mut self) -> Result<Option<(FilePlan, Vec<u64>)>> {
        let Some((plan, entries)) = self.overlay.next().transpose()? else {
            return Ok(None);
        };
        let blocks = plan.size_bytes.div_ceil(u64::from(BLOCK_BYTES));
        let digests = match plan.kind {
            EntryKind::Relation => self
                .digests
                .digests(&entries, u32::try_from(blocks).unwrap_or(u32::MAX))?,
            EntryKind::Directory | EntryKind::Plain => Vec::new(),
        };
        Ok(Some((plan, digests)))
    }
}

/// Refuses unless both chains have the same files with the same contents.
pub(super) fn check_same_state(merged: &Chain, inputs: &Chain, progress: &Progress) -> Result<()> {
    let (mut merged, mut inputs) = (Side::new(merged), Side::new(inputs));
    let differs = |path: &str| {
        Error::new(
            Kind::Damaged,
            format!(
                "\"{path}\" in the merged layer is not what it is in the layers that were merged"
            ),
        )
    };
    loop {
        if progress.is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "interrupted"));
        }
        let (ours, theirs) = match (merged.next()?, inputs.next()?) {
            (None, None) => return Ok(()),
            (Some((plan, _)), None) | (None, Some((plan, _))) => return Err(differs(&plan.path)),
            (Some(ours), Some(theirs)) => (ours, theirs),
        };
        let fields = |plan: &FilePlan| {
            (
                plan.kind,
                plan.mode,
                plan.modified,
                plan.size_bytes,
                plan.content_digest,
                plan.zero_runs.clone(),
            )
        };
        let same = ours.0.path == theirs.0.path
            && fields(&ours.0) == fields(&theirs.0)
            && ours.1 == theirs.1;
        if !same {
            return Err(differs(&theirs.0.path));
        }
    }
}
