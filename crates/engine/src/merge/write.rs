//! Writing the merged layer: files in order of path, frames in order of block, packs as they fill.

use std::collections::BTreeMap;

use pgstrata_layer::entry::{BLOCK_BYTES, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::manifest::{CorruptPage, IndexPartRef, Totals};
use pgstrata_layer::merge::{MergedFile, OutputFrame, plan_file};
use pgstrata_layer::overlay::{DigestSource, PathMerge, chain_of};
use pgstrata_layer::pack::TARGET_BYTES;
use pgstrata_store::error::{Error, Kind, Result};

use super::window::{FrameMaker, FrameToMake};
use crate::frames::{IndexParts, LayerWriter, PackWriter};

/// 64 MiB: enough for several large requests at once.
const WINDOW_BYTES: u64 = 64 << 20;

/// Files without frames in a window: their entries take memory too.
const WINDOW_ITEMS: usize = 4096;

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) parts: Vec<IndexPartRef>,
    pub(super) pack_count: u32,
    pub(super) pack_bytes: u64,
    pub(super) totals: Totals,
    pub(super) corrupt_pages: Vec<CorruptPage>,
    pub(super) frames_copied: u64,
    pub(super) copied_bytes: u64,
    pub(super) frames_encoded: u64,
    pub(super) encoded_bytes: u64,
}

/// One file, complete when the frames before it in the window are there.
struct File {
    entry: FileEntry,
    digests: Vec<u64>,
    /// How many frames of the window belong to it.
    frames: usize,
}

/// Writes the merged layer.
pub(super) struct MergeWriter<'a> {
    maker: FrameMaker<'a>,
    layer: &'a LayerWriter,
    /// Whether the oldest input has a parent, on which the merged layer will stand.
    stands_on_others: bool,
    packs: PackWriter<'a>,
    index: IndexParts<'a>,
    wanted: Vec<FrameToMake>,
    files: Vec<File>,
    window_bytes: u64,
    /// Frames of the file at hand that windows before have made.
    begun: Vec<FrameRef>,
    corrupt: BTreeMap<&'a str, Vec<(usize, &'a CorruptPage)>>,
    written: Written,
}

impl<'a> MergeWriter<'a> {
    pub(super) fn new(
        maker: FrameMaker<'a>,
        layer: &'a LayerWriter,
        stands_on_others: bool,
    ) -> Result<Self> {
        let mut corrupt: BTreeMap<&str, Vec<(usize, &CorruptPage)>> = BTreeMap::new();
        for (number, input) in maker.inputs.layers.iter().enumerate() {
            for page in &input.manifest.corrupt_pages {
                corrupt.entry(&page.path).or_default().push((number, page));
            }
        }
        Ok(Self {
            maker,
            layer,
            stands_on_others,
            packs: layer.packs(TARGET_BYTES),
            index: layer.index()?,
            wanted: Vec::new(),
            files: Vec::new(),
            window_bytes: 0,
            begun: Vec::new(),
            corrupt,
            written: Written::default(),
        })
    }

    /// Writes packs, index and digests. Everything is durable when it returns; when it fails, nothing is on its way any
    /// more that would appear in the repository after the clean-up.
    pub(super) fn run(mut self) -> Result<Written> {
        if let Err(error) = self.write() {
            // That is the reason, whatever becomes of what was on its way.
            let _ = (self.packs.wait(), self.index.wait());
            return Err(error);
        }
        let (packs, parts) = (self.packs.finish(), self.index.finish());
        packs?;
        Ok(Written {
            parts: parts?,
            pack_count: self.layer.pack_count(),
            pack_bytes: self.layer.pack_bytes(),
            ..self.written
        })
    }

    fn write(&mut self) -> Result<()> {
        let chain = self.maker.inputs;
        let mut digests = chain.digests();
        for entries in PathMerge::new(chain.entries()) {
            let entries = entries?;
            let layers = chain_of(&entries);
            let file = plan_file(&layers, chain.layers.len(), self.stands_on_others)?;
            self.count(&file);
            let page_digests = match file.entry.kind {
                EntryKind::Relation => digests.of_runs(&entries, &file.digests)?,
                EntryKind::Directory | EntryKind::Plain => Vec::new(),
            };
            self.add(file, page_digests)?;
        }
        self.flush()
    }

    fn count(&mut self, file: &MergedFile) {
        let (entry, totals) = (&file.entry, &mut self.written.totals);
        totals.files += 1;
        totals.cluster_bytes += entry.size_bytes;
        if entry.kind == EntryKind::Relation {
            let runs = file.digests.iter().map(|run| u64::from(run.run.count));
            let zeros = entry.zero_runs.iter().map(|run| u64::from(run.count));
            let (stored, zeros): (u64, u64) = (runs.sum(), zeros.sum());
            totals.relation_blocks += entry.size_bytes / u64::from(BLOCK_BYTES);
            totals.pages_stored += stored;
            totals.pages_zero += zeros;
            totals.pages_marked += stored + zeros;
        }
        let holds = |layer: usize, block: u32| {
            file.digests.iter().any(|found| {
                let of_layer =
                    matches!(found.source, DigestSource::Stored { layer: of, .. } if of == layer);
                of_layer && found.run.start <= block && u64::from(block) < found.run.end()
            })
        };
        if let Some(pages) = self.corrupt.get(entry.path.as_str()) {
            let standing = pages
                .iter()
                .filter(|(layer, page)| holds(*layer, page.block));
            let standing = standing.map(|(_, page)| (*page).clone());
            self.written.corrupt_pages.extend(standing);
        }
    }

    fn add(&mut self, file: MergedFile, digests: Vec<u64>) -> Result<()> {
        let MergedFile {
            entry,
            frames: outputs,
            ..
        } = file;
        let mut frames = 0;
        for output in outputs {
            let wanted = FrameToMake {
                output,
                size_bytes: entry.size_bytes,
            };
            self.window_bytes += wanted.cost_bytes();
            self.wanted.push(wanted);
            frames += 1;
            if self.window_bytes >= WINDOW_BYTES {
                self.flush()?;
                frames = 0;
            }
        }
        self.files.push(File {
            entry,
            digests,
            frames,
        });
        match self.files.len() >= WINDOW_ITEMS {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Makes the window's frames and writes them, with the entries of the files that they complete.
    fn flush(&mut self) -> Result<()> {
        let wanted = std::mem::take(&mut self.wanted);
        self.window_bytes = 0;
        let made = self.maker.make(&wanted)?;
        let mut frames = wanted.iter().zip(made);
        for mut file in std::mem::take(&mut self.files) {
            let mut refs = std::mem::take(&mut self.begun);
            for (wanted, stored) in frames.by_ref().take(file.frames) {
                refs.push(self.place(wanted, &stored)?);
            }
            file.entry.frames = refs;
            self.index.push(file.entry, &file.digests)?;
        }
        // What is left belongs to the file that is still being added.
        for (wanted, stored) in frames {
            let placed = self.place(wanted, &stored)?;
            self.begun.push(placed);
        }
        Ok(())
    }

    fn place(&mut self, wanted: &FrameToMake, stored: &[u8]) -> Result<FrameRef> {
        let placed = self.packs.copy(stored, wanted.output.runs());
        let placed = placed.map_err(|error| self.of_input(wanted, error))?;
        let bytes = u64::from(placed.length);
        match &wanted.output {
            OutputFrame::Copy { layer, frame } => {
                if placed.checksum != frame.checksum {
                    let what = format!(
                        "has checksum {:016x}, expected {:016x}",
                        placed.checksum, frame.checksum
                    );
                    return Err(self.maker.inputs.damaged(*layer, frame, &what));
                }
                self.written.frames_copied += 1;
                self.written.copied_bytes += bytes;
            }
            OutputFrame::Encode(_) => {
                self.written.frames_encoded += 1;
                self.written.encoded_bytes += bytes;
            }
        }
        let progress = self.maker.progress;
        progress.add_pages(placed.page_count());
        progress.add_done(placed.page_count() * u64::from(BLOCK_BYTES));
        Ok(placed)
    }

    /// Names the frame that was to be copied when that is damaged; other errors are about the pack before it.
    fn of_input(&self, wanted: &FrameToMake, error: Error) -> Error {
        match &wanted.output {
            OutputFrame::Copy { layer, frame }
                if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) =>
            {
                self.maker.inputs.damaged(*layer, frame, &error)
            }
            _ => error,
        }
    }
}
