//! A chain unpacked layer by layer, as tools without an overlay do it: oldest
//! first, every page written as often as it was backed up; or newest first,
//! skipping what is there already (WAL-G's reverse delta unpack).
//!
//! Both orders share everything but the decision what to write, so that their
//! times differ by nothing else. The format is read as `docs/FORMAT.md` has it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use object_store::aws::AmazonS3;
use object_store::{ObjectStore, ObjectStoreExt};
use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_layer::index::IndexReader;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest;
use sha2::{Digest, Sha256};

use super::pages::is_main_fork;
use crate::contenders::pgstrata::CLUSTER;
use crate::interrupt;
use pgstrata_testbed::s3::S3Server;

/// Where objects are read from.
pub(super) enum Objects {
    /// A directory.
    Directory(PathBuf),
    /// A bucket, and the prefix of the repository in it.
    Bucket(tokio::runtime::Runtime, Box<AmazonS3>, String),
}

impl Objects {
    /// The objects of a repository on an S3 server.
    pub(super) fn bucket(server: &S3Server, prefix: &str) -> Result<Self> {
        let store = server.client(server.endpoint())?;
        let runtime = tokio::runtime::Runtime::new().context("could not start a runtime")?;
        Ok(Self::Bucket(runtime, Box::new(store), prefix.to_owned()))
    }

    fn read(&self, key: &str) -> Result<Vec<u8>> {
        let wrong = || format!("could not read object \"{key}\"");
        match self {
            Self::Directory(root) => fs::read(root.join(key)).with_context(wrong),
            Self::Bucket(runtime, store, prefix) => {
                let path = object_store::path::Path::from(format!("{prefix}/{key}"));
                let store: &dyn ObjectStore = store.as_ref();
                let bytes = runtime
                    .block_on(async { store.get(&path).await?.bytes().await })
                    .with_context(wrong)?;
                Ok(bytes.to_vec())
            }
        }
    }
}

/// One layer's index.
pub(super) struct Layer {
    label: Label,
    entries: Vec<FileEntry>,
}

impl Layer {
    /// Relation pages it holds.
    pub(super) fn pages_stored(&self) -> u64 {
        self.entries.iter().map(FileEntry::pages_stored).sum()
    }

    /// Pages it holds of the main forks of relations: those that have an LSN.
    pub(super) fn main_pages_stored(&self) -> u64 {
        let of_relation = |entry: &&FileEntry| {
            let path = Path::new(&entry.path);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (path.starts_with("base") || path.starts_with("global")) && is_main_fork(&name)
        };
        let stored = self.entries.iter().filter(of_relation);
        stored.map(FileEntry::pages_stored).sum()
    }

    /// Pages of all its files.
    pub(super) fn pages(&self) -> u64 {
        self.entries.iter().map(FileEntry::block_count).sum()
    }
}

/// The order of unpacking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Base first, every page as often as it was backed up.
    OldestFirst,
    /// Newest first, every page once.
    NewestFirst,
}

/// What an unpacking did.
pub(super) struct Outcome {
    /// (layer number, seconds), in the order done; then what it took to make all durable.
    pub(super) stages: Vec<(String, f64)>,
    /// Bytes given to write calls.
    pub(super) written: u64,
}

/// A frame to fetch and the parts of it to write: (page in the frame, blocks).
struct Write<'a> {
    file: &'a str,
    size_bytes: u64,
    frame: &'a FrameRef,
    takes: Vec<(u32, BlockRun)>,
}

/// Where files go.
struct Sink<'a> {
    target: &'a Path,
    jobs: usize,
    /// Bytes given to write calls.
    written: AtomicU64,
}

/// Reads the indexes of a chain, oldest layer first.
pub(super) fn chain(objects: &Objects, cluster: &str, labels: &[String]) -> Result<Vec<Layer>> {
    let cluster = ClusterName::parse(cluster).context("the cluster's name is not valid")?;
    labels
        .iter()
        .map(|text| {
            let label = Label::parse(text).with_context(|| format!("\"{text}\" is no label"))?;
            let manifest = manifest::decode(&objects.read(&cluster.manifest_key(&label))?)?;
            let id = manifest.layer_id_bytes()?;
            let mut entries = Vec::new();
            for (number, part) in manifest.index.iter().enumerate() {
                let number = u32::try_from(number).context("too many index parts")?;
                let bytes = objects.read(&cluster.index_key(&label, number))?;
                for entry in IndexReader::new(bytes.into(), id, number, part)? {
                    entries.push(entry?);
                }
            }
            Ok(Layer { label, entries })
        })
        .collect()
}

/// Unpacks a chain (oldest layer first in `layers`) into an empty directory.
pub(super) fn unpack(
    objects: &Objects,
    layers: &[Layer],
    target: &Path,
    order: Order,
    jobs: usize,
) -> Result<Outcome> {
    let newest = layers.last().context("the chain is empty")?;
    let sink = Sink {
        target,
        jobs,
        written: AtomicU64::new(0),
    };
    let mut stages = Vec::new();
    let mut state = Remaining::new(newest);
    let numbers: Vec<usize> = match order {
        Order::OldestFirst => (0..layers.len()).collect(),
        Order::NewestFirst => (0..layers.len()).rev().collect(),
    };
    for number in numbers {
        interrupt::check()?;
        let began = Instant::now();
        let layer = &layers[number];
        let writes = match order {
            Order::OldestFirst => {
                shape(target, number.checked_sub(1).map(|n| &layers[n]), layer)?;
                zero(layer, &sink)?;
                everything(layer)
            }
            Order::NewestFirst => {
                if number + 1 == layers.len() {
                    shape(target, None, layer)?;
                }
                state.plan(layer)
            }
        };
        execute(objects, layer, &writes, &sink)?;
        let name = if number == 0 {
            "base".to_owned()
        } else {
            format!("delta {number}")
        };
        stages.push((name, began.elapsed().as_secs_f64()));
    }
    let began = Instant::now();
    let directory =
        File::open(target).with_context(|| format!("could not open \"{}\"", target.display()))?;
    rustix::fs::syncfs(&directory).context("could not make the unpacked files durable")?;
    stages.push(("sync".to_owned(), began.elapsed().as_secs_f64()));
    Ok(Outcome {
        stages,
        written: sink.written.into_inner(),
    })
}

/// Directories and files as a layer lists them, of their final size.
fn shape(target: &Path, before: Option<&Layer>, layer: &Layer) -> Result<()> {
    for entry in &layer.entries {
        let path = target.join(&entry.path);
        let wrong = || format!("could not create \"{}\"", path.display());
        if entry.kind == EntryKind::Directory {
            fs::create_dir_all(&path).with_context(wrong)?;
            continue;
        }
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(wrong)?;
        file.set_len(entry.size_bytes).with_context(wrong)?;
    }
    let Some(before) = before else { return Ok(()) };
    let listed: std::collections::BTreeSet<&str> =
        layer.entries.iter().map(|e| e.path.as_str()).collect();
    for entry in &before.entries {
        if entry.kind != EntryKind::Directory && !listed.contains(entry.path.as_str()) {
            let path = target.join(&entry.path);
            fs::remove_file(&path)
                .with_context(|| format!("could not remove \"{}\"", path.display()))?;
        }
    }
    Ok(())
}

/// Pages of zeros over whatever an older layer left there.
fn zero(layer: &Layer, sink: &Sink) -> Result<()> {
    let zeros = vec![0; usize::try_from(BLOCK_BYTES).unwrap_or(8192)];
    for entry in layer
        .entries
        .iter()
        .filter(|entry| !entry.zero_runs.is_empty())
    {
        let path = sink.target.join(&entry.path);
        let wrong = || format!("could not write \"{}\"", path.display());
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .with_context(wrong)?;
        for run in &entry.zero_runs {
            for block in u64::from(run.start)..run.end() {
                file.write_all_at(&zeros, block * u64::from(BLOCK_BYTES))
                    .with_context(wrong)?;
                sink.written
                    .fetch_add(u64::from(BLOCK_BYTES), Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

fn everything(layer: &Layer) -> Vec<Write<'_>> {
    let mut writes = Vec::new();
    for entry in &layer.entries {
        for frame in &entry.frames {
            let mut page = 0;
            let takes = frame
                .runs
                .iter()
                .map(|run| {
                    let take = (page, *run);
                    page += run.count;
                    take
                })
                .collect();
            writes.push(Write {
                file: &entry.path,
                size_bytes: entry.size_bytes,
                frame,
                takes,
            });
        }
    }
    writes
}

/// What newest-first unpacking still needs, per file of the newest layer.
struct Remaining(BTreeMap<String, Need>);

struct Need {
    size_bytes: u64,
    /// Blocks from here on are not in older layers.
    limit: u64,
    there: Vec<bool>,
}

impl Remaining {
    fn new(newest: &Layer) -> Self {
        let need = |entry: &FileEntry| Need {
            size_bytes: entry.size_bytes,
            limit: entry.block_count(),
            there: vec![false; usize::try_from(entry.block_count()).unwrap_or(usize::MAX)],
        };
        Self(
            newest
                .entries
                .iter()
                .map(|e| (e.path.clone(), need(e)))
                .collect(),
        )
    }

    /// What to take of the next older layer.
    fn plan<'a>(&mut self, layer: &'a Layer) -> Vec<Write<'a>> {
        let mut writes = Vec::new();
        let mut listed = std::collections::BTreeSet::new();
        for entry in &layer.entries {
            let Some(need) = self.0.get_mut(&entry.path) else {
                continue;
            };
            listed.insert(entry.path.as_str());
            for run in &entry.zero_runs {
                // The file is new: what is not written reads as zeros.
                for block in u64::from(run.start)..run.end() {
                    need.take(block);
                }
            }
            for frame in &entry.frames {
                let takes = need.takes(frame);
                if !takes.is_empty() {
                    writes.push(Write {
                        file: &entry.path,
                        size_bytes: need.size_bytes,
                        frame,
                        takes,
                    });
                }
            }
            need.limit = need.limit.min(u64::from(entry.inherit_limit));
        }
        // A file that this layer lacks was made later: nothing older belongs to it.
        for (path, need) in &mut self.0 {
            if !listed.contains(path.as_str()) {
                need.limit = 0;
            }
        }
        writes
    }
}

impl Need {
    fn take(&mut self, block: u64) -> bool {
        let slot = usize::try_from(block)
            .ok()
            .and_then(|at| self.there.get_mut(at));
        match slot {
            Some(there) if !*there && block < self.limit => {
                *there = true;
                true
            }
            _ => false,
        }
    }

    fn takes(&mut self, frame: &FrameRef) -> Vec<(u32, BlockRun)> {
        let mut takes: Vec<(u32, BlockRun)> = Vec::new();
        let mut page = 0;
        for run in &frame.runs {
            for offset in 0..run.count {
                let block = run.start + offset;
                if self.take(u64::from(block)) {
                    match takes.last_mut() {
                        Some((first, last))
                            if *first + last.count == page && last.end() == u64::from(block) =>
                        {
                            last.count += 1
                        }
                        _ => takes.push((
                            page,
                            BlockRun {
                                start: block,
                                count: 1,
                            },
                        )),
                    }
                }
                page += 1;
            }
        }
        takes
    }
}

/// Fetches pack after pack on several threads and writes what is wanted of it.
fn execute(objects: &Objects, layer: &Layer, writes: &[Write], sink: &Sink) -> Result<()> {
    let mut packs: BTreeMap<u32, Vec<&Write>> = BTreeMap::new();
    for write in writes {
        packs.entry(write.frame.pack).or_default().push(write);
    }
    let packs: Vec<(u32, Vec<&Write>)> = packs.into_iter().collect();
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..sink.jobs.max(1) {
            scope.spawn(|| {
                while let Some((number, writes)) = packs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = pack(objects, layer, *number, writes, sink) {
                        *failure
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            });
        }
    });
    let failed = failure
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

fn pack(
    objects: &Objects,
    layer: &Layer,
    number: u32,
    writes: &[&Write],
    sink: &Sink,
) -> Result<()> {
    interrupt::check()?;
    let cluster = ClusterName::parse(CLUSTER).context("the cluster's name is not valid")?;
    let bytes = objects.read(&cluster.pack_key(&layer.label, number))?;
    let mut decoder = FrameDecoder::new()?;
    let mut pages = Vec::new();
    let mut open: Option<(&str, File)> = None;
    for write in writes {
        let from = usize::try_from(write.frame.offset).context("a frame's offset is too large")?;
        let to = from + usize::try_from(write.frame.length).context("a frame is too long")?;
        let stored = bytes
            .get(from..to)
            .with_context(|| format!("pack {number} ends before its frame at {from}"))?;
        decoder.decode(stored, Some(write.frame.checksum), &mut pages)?;
        let path = sink.target.join(write.file);
        let wrong = || format!("could not write \"{}\"", path.display());
        let file = match open.take() {
            Some((name, file)) if name == write.file => file,
            _ => OpenOptions::new()
                .write(true)
                .open(&path)
                .with_context(wrong)?,
        };
        for (page, run) in &write.takes {
            let block = u64::from(BLOCK_BYTES);
            let at = u64::from(run.start) * block;
            let length = (u64::from(run.count) * block).min(write.size_bytes.saturating_sub(at));
            let begin = usize::try_from(u64::from(*page) * block).context("a page lies too far")?;
            let end = begin + usize::try_from(length).context("a run is too long")?;
            let part = pages
                .get(begin..end)
                .context("a frame has fewer pages than its index says")?;
            file.write_all_at(part, at).with_context(wrong)?;
            sink.written.fetch_add(length, Ordering::Relaxed);
        }
        open = Some((write.file, file));
    }
    Ok(())
}

/// A digest of every relation file of the newest layer, as it lies in a directory.
pub(super) fn digest(layers: &[Layer], target: &Path) -> Result<String> {
    let newest = layers.last().context("the chain is empty")?;
    let mut digest = Sha256::new();
    for entry in newest
        .entries
        .iter()
        .filter(|e| e.kind == EntryKind::Relation)
    {
        let path = target.join(&entry.path);
        let contents =
            fs::read(&path).with_context(|| format!("could not read \"{}\"", path.display()))?;
        ensure!(
            u64::try_from(contents.len()).ok() == Some(entry.size_bytes),
            "\"{}\" has {} bytes, expected {}",
            path.display(),
            contents.len(),
            entry.size_bytes
        );
        digest.update(entry.path.as_bytes());
        digest.update(&contents);
    }
    Ok(digest
        .finalize()
        .iter()
        .take(16)
        .map(|b| format!("{b:02x}"))
        .collect())
}
