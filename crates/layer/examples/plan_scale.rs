//! Measures what planning a restore costs: `plan_scale LAYERS GIB`.
//!
//! A chain of LAYERS layers over GIB segments of 1 GiB, of which every increment
//! changed 20 % of the pages at random, is overlaid from encoded index parts as a
//! restore does. Prints the time for a GiB of cluster and the peak memory, which
//! must not depend on GIB.

use std::error::Error;
use std::fs;
use std::io::{Write, stdout};
use std::time::Instant;

use pgstrata_layer::entry::{BlockRun, DigestRef, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::PAGES;
use pgstrata_layer::index::{IndexReader, IndexWriter};
use pgstrata_layer::overlay::Overlay;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCKS: u32 = 131_072;
const CHANGED_ONE_IN: u64 = 5;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        || -> Outcome<u32> { Ok(arguments.next().ok_or("expected LAYERS GIB")?.parse()?) };
    let (layers, files) = (number()?, number()?);
    let start = Instant::now();
    let (mut index_bytes, mut entries) = (0, 0);
    for depth in 0..layers {
        let mut parts = Parts::new(depth, layers, files)?;
        entries += parts.by_ref().filter(Result::is_ok).count();
        index_bytes += parts.index_bytes;
    }
    let making = start.elapsed();
    let start = Instant::now();
    let chain = (0..layers)
        .map(|depth| Parts::new(depth, layers, files))
        .collect::<Outcome<_>>()?;
    let mut frames = 0;
    for planned in Overlay::new(chain) {
        frames += planned?.0.pieces.len();
    }
    let planning = start.elapsed().saturating_sub(making);
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    writeln!(
        stdout(),
        "{layers} layers of {files} GiB: {entries} entries in {index_bytes} bytes of index, {frames} frames to read, {:.1} ms a GiB to plan, {peak}",
        planning.as_secs_f64() * 1e3 / f64::from(files)
    )?;
    Ok(())
}

/// The entries of a layer, by way of index parts made when they are needed.
struct Parts {
    depth: u32,
    full: bool,
    next_file: u32,
    files: u32,
    writer: Option<IndexWriter>,
    reader: Option<IndexReader>,
    index_bytes: usize,
}

const LAYER_ID: [u8; 16] = [7; 16];

impl Parts {
    fn new(depth: u32, layers: u32, files: u32) -> Outcome<Self> {
        Ok(Self {
            depth,
            full: depth + 1 == layers,
            next_file: 0,
            files,
            writer: Some(IndexWriter::new(LAYER_ID)?),
            reader: None,
            index_bytes: 0,
        })
    }

    /// Makes the next part, if there is one.
    fn refill(&mut self) -> pgstrata_layer::Result<bool> {
        let mut finished = None;
        while finished.is_none() {
            let Some(mut writer) = self.writer.take() else {
                return Ok(false);
            };
            if self.next_file == self.files {
                finished = writer.finish()?;
                break;
            }
            let entry = self.entry(self.next_file);
            let digests = vec![0; usize::try_from(entry.pages_stored()).unwrap_or_default()];
            finished = writer.push(entry, &digests)?;
            self.next_file += 1;
            self.writer = Some(writer);
        }
        let Some(part) = finished else {
            return Ok(false);
        };
        self.index_bytes += part.index.len();
        let bytes = part.index.into();
        self.reader = Some(IndexReader::new(
            bytes,
            LAYER_ID,
            part.number,
            &part.reference,
        )?);
        Ok(true)
    }

    fn entry(&self, file: u32) -> FileEntry {
        let mut state =
            u64::from(self.depth * 1_000_003 + file + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let stored: Vec<u32> = (0..BLOCKS)
            .filter(|_| self.full || (random() >> 20).is_multiple_of(CHANGED_ONE_IN))
            .collect();
        let mut frames = Vec::new();
        let mut offset = 32;
        for blocks in stored.chunks(PAGES) {
            let mut runs = Vec::new();
            for &start in blocks {
                BlockRun::append(&mut runs, BlockRun { start, count: 1 });
            }
            let pages = u32::try_from(blocks.len()).unwrap_or_default();
            let length = pages * (3000 + u32::try_from(random() % 1000).unwrap_or_default());
            frames.push(FrameRef {
                pack: file,
                offset,
                length,
                checksum: random(),
                runs,
            });
            offset += u64::from(length);
        }
        FileEntry {
            path: format!("base/5/{:08}", 16384 + file),
            kind: EntryKind::Relation,
            mode: 0o600,
            modified: 1_795_253_500,
            size_bytes: u64::from(BLOCKS) * 8192,
            identity: random(),
            inherit_limit: if self.full { 0 } else { BLOCKS },
            content_digest: None,
            frames,
            zero_runs: Vec::new(),
            page_digests: DigestRef::default(),
        }
    }
}

impl Iterator for Parts {
    type Item = pgstrata_layer::Result<FileEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.reader.as_mut().and_then(Iterator::next) {
                return Some(entry);
            }
            match self.refill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
