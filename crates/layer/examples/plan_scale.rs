//! Measures what planning a restore costs: `plan_scale LAYERS GIB [ONE_IN]`.
//!
//! A chain of LAYERS layers over GIB segments of 1 GiB, of which every increment changed one page in ONE_IN (5 unless
//! told) at random, is overlaid from encoded index parts as a restore does. Other processes make the parts of the first
//! 16 segments, one process for each layer; larger clusters have the same parts again and again, with other paths. So
//! peak memory and processor time are those of reading and planning alone. Prints both; memory must not depend on GIB once
//! every layer has a whole part.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, Write, stdout};
use std::process::Command;
use std::time::Instant;

use pgstrata_layer::entry::{BlockRun, DigestRef, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::PAGES;
use pgstrata_layer::index::{FinishedPart, IndexReader, IndexWriter};
use pgstrata_layer::manifest::IndexPartRef;
use pgstrata_layer::overlay::Overlay;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCKS: u32 = 131_072;

/// Segments whose entries are made; the index of a full layer is finished every 12 or so.
const MADE: u32 = 16;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: Option<u64>| -> Outcome<u64> {
        match arguments.get(at) {
            Some(text) => Ok(text.parse()?),
            None => default.ok_or_else(|| "expected LAYERS GIB [ONE_IN]".into()),
        }
    };
    let layers = u32::try_from(number(0, None)?)?;
    let files = u32::try_from(number(1, None)?)?;
    let one_in = number(2, Some(5))?;
    if let Some(depth) = arguments.get(3) {
        return Layer::new(depth.parse()?, layers, one_in).write(files.min(MADE));
    }
    plan(layers, files, one_in)
}

fn plan(layers: u32, files: u32, one_in: u64) -> Outcome<()> {
    let chain = (0..layers)
        .map(|depth| Parts::make([layers, files], one_in, depth))
        .collect::<Outcome<Vec<_>>>()?;
    let start = Instant::now();
    let (mut planned, mut frames) = (0_u64, 0_usize);
    for file in Overlay::new(chain) {
        frames += file?.0.pieces.len();
        planned += 1;
    }
    let cpu = processor_seconds()?;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    writeln!(
        stdout(),
        "{layers} layers of {files} GiB, one page in {one_in} changed: {planned} files, {frames} frames to read; \
         {cpu:.1} s of processor ({:.1} ms a GiB), {:.1} s in all, {peak}",
        cpu * 1e3 / f64::from(files),
        start.elapsed().as_secs_f64(),
    )?;
    Ok(())
}

/// User and system time of this process.
fn processor_seconds() -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks =
        |at: usize| -> Outcome<u32> { Ok(fields.get(at).ok_or("short /proc/self/stat")?.parse()?) };
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    Ok(f64::from(ticks(11)? + ticks(12)?) / 100.0)
}

/// The entries of a layer, by way of index parts that another process has made.
struct Parts {
    input: BufReader<File>,
    number: u32,
    reader: Option<IndexReader>,
    /// Entries given out, and how many there are to be.
    given: u32,
    files: u32,
}

const LAYER_ID: [u8; 16] = [7; 16];

impl Parts {
    fn make(sizes: [u32; 2], one_in: u64, depth: u32) -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("plan_scale-{}-{depth}", std::process::id()));
        let output = File::create_new(&path)?;
        let maker = Command::new(std::env::current_exe()?)
            .args(sizes.map(|size| size.to_string()))
            .args([one_in.to_string(), depth.to_string()])
            .stdout(output)
            .status()?;
        let input = File::open(&path)?;
        fs::remove_file(&path)?;
        if !maker.success() {
            return Err(format!("the maker of layer {depth} ended with {maker}").into());
        }
        Ok(Self {
            input: BufReader::new(input),
            number: 0,
            reader: None,
            given: 0,
            files: sizes[1],
        })
    }

    /// Opens the next part; after the last comes the first.
    fn refill(&mut self) -> Outcome<()> {
        let mut length = [0; 8];
        match self.input.read_exact(&mut length) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                self.input.rewind()?;
                self.number = 0;
                self.input.read_exact(&mut length)?;
            }
            read => read?,
        }
        let mut reference = vec![0; usize::try_from(u64::from_le_bytes(length))?];
        self.input.read_exact(&mut reference)?;
        let reference: IndexPartRef = serde_json::from_slice(&reference)?;
        let mut bytes = vec![0; usize::try_from(reference.index_bytes)?];
        self.input.read_exact(&mut bytes)?;
        // The old part goes before the new one is opened, as in a restore.
        self.reader = None;
        self.reader = Some(IndexReader::new(
            bytes.into(),
            LAYER_ID,
            self.number,
            &reference,
        )?);
        self.number += 1;
        Ok(())
    }
}

impl Iterator for Parts {
    type Item = Outcome<FileEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.given == self.files {
            return None;
        }
        loop {
            match self.reader.as_mut().and_then(Iterator::next) {
                Some(entry) => {
                    let path = path_of(self.given);
                    self.given += 1;
                    let entry = entry.map(|entry| FileEntry { path, ..entry });
                    return Some(entry.map_err(Into::into));
                }
                None => {
                    if let Err(error) = self.refill() {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

fn path_of(file: u32) -> String {
    format!("base/5/{:08}", 16384 + file)
}

/// Makes a layer's index.
struct Layer {
    depth: u32,
    full: bool,
    one_in: u64,
}

impl Layer {
    fn new(depth: u32, layers: u32, one_in: u64) -> Self {
        Self {
            depth,
            full: depth + 1 == layers,
            one_in,
        }
    }

    /// Writes all parts to standard output.
    fn write(&self, files: u32) -> Outcome<()> {
        let mut writer = IndexWriter::new(LAYER_ID)?;
        for file in 0..files {
            let entry = self.entry(file);
            let digests = vec![0; usize::try_from(entry.pages_stored())?];
            if let Some(part) = writer.push(entry, &digests)? {
                Self::write_part(&part)?;
            }
        }
        match writer.finish()? {
            Some(part) => Self::write_part(&part),
            None => Ok(()),
        }
    }

    fn write_part(part: &FinishedPart) -> Outcome<()> {
        let mut out = stdout().lock();
        let reference = serde_json::to_vec(&part.reference)?;
        out.write_all(&u64::try_from(reference.len())?.to_le_bytes())?;
        out.write_all(&reference)?;
        out.write_all(&part.index)?;
        Ok(out.flush()?)
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
            .filter(|_| self.full || (random() >> 20).is_multiple_of(self.one_in))
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
            path: path_of(file),
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
