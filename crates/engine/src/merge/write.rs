//! Writing the merged layer: files in order of path, frames in order of block, packs as they fill.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::index::{FinishedPart, IndexWriter};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{CorruptPage, IndexPartRef, Totals};
use pgstrata_layer::merge::{MergedFile, OutputFrame, plan_file};
use pgstrata_layer::overlay::{DigestSource, Merge, chain_of};
use pgstrata_layer::pack::{PackBuilder, TARGET_BYTES};
use tokio::task::JoinHandle;

use super::window::{Wanted, Workshop};
use crate::catalog::{ChainDigests, ChainEntries, Layer};
use crate::error::{Error, Kind, Result};

/// 64 MiB: enough for several large requests at once.
const WINDOW_BYTES: u64 = 64 << 20;

/// Files without frames in a window: their entries take memory too.
const WINDOW_ITEMS: usize = 4096;

/// Where the merged layer goes.
pub(super) struct Destination<'a> {
    pub(super) label: &'a Label,
    pub(super) layer_id: [u8; 16],
    /// Whether the oldest input has a parent, on which the merged layer will stand.
    pub(super) stands_on_others: bool,
}

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

pub(super) struct LayerWriter<'a> {
    workshop: Workshop<'a>,
    destination: Destination<'a>,
    index: IndexWriter,
    pack: Option<PackBuilder>,
    storing: Vec<JoinHandle<Result<()>>>,
    wanted: Vec<Wanted>,
    files: Vec<File>,
    window_bytes: u64,
    /// Frames of the file at hand that windows before have made.
    begun: Vec<FrameRef>,
    corrupt: BTreeMap<&'a str, Vec<(usize, &'a CorruptPage)>>,
    written: Written,
}

impl<'a> LayerWriter<'a> {
    pub(super) fn new(workshop: Workshop<'a>, destination: Destination<'a>) -> Result<Self> {
        let mut corrupt: BTreeMap<&str, Vec<(usize, &CorruptPage)>> = BTreeMap::new();
        for (number, layer) in workshop.layers.iter().enumerate() {
            for page in &layer.manifest.corrupt_pages {
                corrupt.entry(&page.path).or_default().push((number, page));
            }
        }
        Ok(Self {
            index: IndexWriter::new(destination.layer_id)?,
            workshop,
            destination,
            pack: None,
            storing: Vec::new(),
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
        let outcome = self.write();
        let stored = self.wait();
        outcome.and(stored).map(|()| self.written)
    }

    fn write(&mut self) -> Result<()> {
        let (source, layers) = (self.workshop.source, self.workshop.layers);
        let streams =
            ChainEntries::new(&source.repository, &source.cluster, layers, &source.runtime);
        let mut digests = ChainDigests::new(
            &source.repository,
            &source.cluster,
            layers.to_vec(),
            &source.runtime,
        );
        for entries in Merge::new(streams) {
            let entries = entries?;
            let file = plan_file(
                &chain_of(&entries),
                layers.len(),
                self.destination.stands_on_others,
            )?;
            self.count(&file);
            let page_digests = match file.entry.kind {
                EntryKind::Relation => digests.of_runs(&entries, &file.digests)?,
                EntryKind::Directory | EntryKind::Plain => Vec::new(),
            };
            self.add(file, page_digests)?;
        }
        self.flush()?;
        self.store_pack()?;
        let index = std::mem::replace(
            &mut self.index,
            IndexWriter::new(self.destination.layer_id)?,
        );
        if let Some(part) = index.finish()? {
            self.store_part(part)?;
        }
        Ok(())
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
            let wanted = Wanted {
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
        let made = self.workshop.make(&wanted)?;
        let mut frames = wanted.iter().zip(made);
        for mut file in std::mem::take(&mut self.files) {
            let mut refs = std::mem::take(&mut self.begun);
            for (wanted, stored) in frames.by_ref().take(file.frames) {
                refs.push(self.place(wanted, &stored)?);
            }
            file.entry.frames = refs;
            if let Some(part) = self.index.push(file.entry, &file.digests)? {
                self.store_part(part)?;
            }
        }
        // What is left belongs to the file that is still being added.
        for (wanted, stored) in frames {
            let placed = self.place(wanted, &stored)?;
            self.begun.push(placed);
        }
        Ok(())
    }

    fn place(&mut self, wanted: &Wanted, stored: &Bytes) -> Result<FrameRef> {
        if self
            .pack
            .as_ref()
            .is_some_and(|pack| pack.len() + stored.len() > TARGET_BYTES)
        {
            self.store_pack()?;
        }
        let pack = match &mut self.pack {
            Some(pack) => pack,
            None => {
                let number = self.written.pack_count;
                self.written.pack_count += 1;
                let new = PackBuilder::new(self.destination.layer_id, number, TARGET_BYTES);
                self.pack.insert(new)
            }
        };
        let placed = pack.append_stored(stored)?;
        let runs: Vec<BlockRun> = wanted.output.runs();
        let bytes = u64::from(placed.length);
        match &wanted.output {
            OutputFrame::Copy { layer, frame } => {
                if placed.checksum != frame.checksum {
                    return Err(Error::new(
                        Kind::Damaged,
                        format!(
                            "frame at {} of pack {} of layer {} has checksum {:016x}, expected {:016x}",
                            frame.offset,
                            frame.pack,
                            self.workshop.layers[*layer].label,
                            placed.checksum,
                            frame.checksum
                        ),
                    ));
                }
                self.written.frames_copied += 1;
                self.written.copied_bytes += bytes;
            }
            OutputFrame::Encode(_) => {
                self.written.frames_encoded += 1;
                self.written.encoded_bytes += bytes;
            }
        }
        let pages: u32 = runs.iter().map(|run| run.count).sum();
        self.workshop.progress.add_pages(pages.into());
        self.workshop
            .progress
            .add_done(u64::from(pages) * u64::from(BLOCK_BYTES));
        Ok(FrameRef {
            pack: pack.number(),
            offset: placed.offset,
            length: placed.length,
            checksum: placed.checksum,
            runs,
        })
    }

    fn store_pack(&mut self) -> Result<()> {
        let Some(pack) = self.pack.take() else {
            return Ok(());
        };
        let source = self.workshop.source;
        let key = source
            .cluster
            .pack_key(self.destination.label, pack.number());
        let body = Bytes::from(pack.finish());
        self.written.pack_bytes += u64::try_from(body.len()).expect("usize has 64 bits");
        // One pack on its way while the next one fills.
        self.wait()?;
        self.store(key, body);
        Ok(())
    }

    fn store_part(&mut self, part: FinishedPart) -> Result<()> {
        let (cluster, label) = (&self.workshop.source.cluster, self.destination.label);
        let index = cluster.index_key(label, part.number);
        let digest = cluster.digest_key(label, part.number);
        self.wait()?;
        self.store(index, Bytes::from(part.index));
        self.store(digest, Bytes::from(part.digest));
        self.written.parts.push(part.reference);
        Ok(())
    }

    fn store(&mut self, key: String, body: Bytes) {
        let repository = self.workshop.source.repository.clone();
        let storing = async move { repository.create(&key, body).await };
        self.storing
            .push(self.workshop.source.runtime.spawn(storing));
    }

    /// Waits until all objects that were begun are stored, or are known not to be.
    fn wait(&mut self) -> Result<()> {
        let runtime = &self.workshop.source.runtime;
        let stored = self.storing.drain(..).map(|storing| {
            runtime.block_on(storing).unwrap_or_else(|error| {
                Err(Error::new(
                    Kind::Repository,
                    format!("could not store an object: {error}"),
                ))
            })
        });
        stored.fold(Ok(()), Result::and)
    }
}

/// The inputs' labels, oldest and newest, for people.
pub(super) fn reason(layers: &[Arc<Layer>]) -> String {
    let oldest = layers.last().map_or("", |layer| layer.label.as_str());
    let newest = layers.first().map_or("", |layer| layer.label.as_str());
    format!("merged {} layers, {oldest} to {newest}", layers.len())
}
