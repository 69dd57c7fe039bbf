//! Writing a layer: packs and index parts, each stored while the next one is filled.
//!
//! Nothing of it exists for a reader before the manifest, which is not written here. What is dropped before it is
//! finished is given up: then nothing more is to appear in the repository.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use pgstrata_layer::entry::{BlockRun, FileEntry, FrameRef};
use pgstrata_layer::frame::FrameEncoder;
use pgstrata_layer::index::{FinishedPart, IndexWriter};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::IndexPartRef;
use pgstrata_layer::pack::{PackBuilder, PlacedFrame};
use pgstrata_store::catalog::Siblings;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::courtesy;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::LayerSeal;
use pgstrata_store::progress::Progress;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A layer that is being written, by threads outside of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct LayerWriter {
    cluster: ClusterRepository,
    label: Label,
    layer_id: [u8; 16],
    seal: LayerSeal,
    /// Counts what is stored.
    progress: Progress,
    runtime: Handle,
    packs: Arc<PackCounts>,
    /// Who gets the objects too, as they are stored.
    siblings: Arc<Siblings>,
}

/// Numbers and sizes of a layer's packs.
#[derive(Debug, Default)]
struct PackCounts {
    count: AtomicU32,
    bytes: AtomicU64,
}

impl LayerWriter {
    /// To be called by a task of the runtime.
    pub(crate) fn new(
        cluster: ClusterRepository,
        label: Label,
        layer_id: [u8; 16],
        seal: LayerSeal,
        progress: Progress,
    ) -> Self {
        Self {
            cluster,
            label,
            layer_id,
            seal,
            progress,
            runtime: Handle::current(),
            packs: Arc::default(),
            siblings: Arc::default(),
        }
    }

    /// The same, and its objects go to these too.
    pub(crate) fn beside(mut self, siblings: &Arc<Siblings>) -> Self {
        self.siblings = Arc::clone(siblings);
        self
    }

    /// Packs of at most `target_bytes` or one frame; several threads may have their own.
    pub(crate) fn packs(&self, target_bytes: usize) -> PackWriter<'_> {
        PackWriter {
            layer: self,
            target_bytes,
            open: None,
            storing: Storing::new(&self.runtime),
        }
    }

    /// The index. A layer has one.
    pub(crate) fn index(&self) -> Result<IndexParts<'_>> {
        Ok(IndexParts {
            writer: IndexWriter::new(self.layer_id)?,
            parts: StoredParts {
                layer: self,
                storing: Storing::new(&self.runtime),
                references: Vec::new(),
            },
        })
    }

    /// Number of packs begun so far.
    pub(crate) fn pack_count(&self) -> u32 {
        self.packs.count.load(Ordering::Relaxed)
    }

    /// Bytes of the packs that were filled so far.
    pub(crate) fn pack_bytes(&self) -> u64 {
        self.packs.bytes.load(Ordering::Relaxed)
    }

    /// An object as it is stored.
    fn seal(&self, key: &str, raw: Vec<u8>) -> Result<Bytes> {
        let sealed = self.seal.seal(&self.cluster.name, key, raw);
        sealed.map(Bytes::from)
    }

    /// Begins to store an object.
    fn store(&self, key: String, body: Bytes) -> JoinHandle<Result<()>> {
        let (repository, progress) = (self.cluster.repository.clone(), self.progress.clone());
        let size = u64::try_from(body.len()).expect("usize has 64 bits");
        let siblings = Arc::clone(&self.siblings);
        self.runtime.spawn(async move {
            let others = siblings.store(&key, &body);
            let (created, ()) = futures::join!(repository.create(&key, body.clone()), others);
            created?;
            progress.add_stored(size);
            Ok(())
        })
    }
}

/// Objects on their way to the repository; given up when dropped.
struct Storing {
    runtime: Handle,
    tasks: Vec<JoinHandle<Result<()>>>,
}

impl Storing {
    fn new(runtime: &Handle) -> Self {
        Self {
            runtime: runtime.clone(),
            tasks: Vec::new(),
        }
    }

    /// Waits until all are stored, or are known not to be.
    fn wait(&mut self) -> Result<()> {
        let runtime = &self.runtime;
        let stored = self.tasks.drain(..).map(|task| {
            runtime.block_on(task).unwrap_or_else(|error| {
                Err(Error::new(
                    Kind::Repository,
                    format!("could not store an object: {error}"),
                ))
            })
        });
        stored.fold(Ok(()), Result::and)
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Puts frames into packs.
pub(crate) struct PackWriter<'a> {
    layer: &'a LayerWriter,
    target_bytes: usize,
    open: Option<PackBuilder>,
    storing: Storing,
}

impl PackWriter<'_> {
    /// Compresses `raw`, the pages of `runs`, into one frame.
    pub(crate) fn encode(
        &mut self,
        encoder: &mut FrameEncoder,
        raw: &[u8],
        runs: Vec<BlockRun>,
    ) -> Result<FrameRef> {
        let pack = self.with_room(raw.len())?;
        let placed = pack.append(encoder, raw)?;
        let made = reference(pack.number(), placed, runs);
        courtesy::rest();
        Ok(made)
    }

    /// Adds a frame with the pages of `runs` as it is stored.
    pub(crate) fn copy(&mut self, stored: &[u8], runs: Vec<BlockRun>) -> Result<FrameRef> {
        let pack = self.with_room(stored.len())?;
        let placed = pack.append_stored(stored)?;
        Ok(reference(pack.number(), placed, runs))
    }

    fn with_room(&mut self, bytes: usize) -> Result<&mut PackBuilder> {
        let is_full = |pack: &PackBuilder| pack.len() + bytes > self.target_bytes;
        if self.open.as_ref().is_some_and(is_full) {
            self.store()?;
        }
        let layer = self.layer;
        // A number is taken only for a pack that will hold a frame: there are no gaps.
        Ok(self.open.get_or_insert_with(|| {
            let number = layer.packs.count.fetch_add(1, Ordering::Relaxed);
            PackBuilder::new(layer.layer_id, number, self.target_bytes)
        }))
    }

    /// Hands the open pack to the repository, when the one before is there.
    fn store(&mut self) -> Result<()> {
        self.storing.wait()?;
        let Some(pack) = self.open.take() else {
            return Ok(());
        };
        let layer = self.layer;
        let key = layer.cluster.name.pack_key(&layer.label, pack.number());
        let body = layer.seal(&key, pack.finish())?;
        let size = u64::try_from(body.len()).expect("usize has 64 bits");
        layer.packs.bytes.fetch_add(size, Ordering::Relaxed);
        self.storing.tasks.push(layer.store(key, body));
        Ok(())
    }

    /// Waits until nothing is on its way any more.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.storing.wait()
    }

    /// Stores what is left; returns when every pack of this writer is durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.store()?;
        self.wait()
    }
}

fn reference(pack: u32, placed: PlacedFrame, runs: Vec<BlockRun>) -> FrameRef {
    FrameRef {
        pack,
        offset: placed.offset,
        length: placed.length,
        checksum: placed.checksum,
        runs,
    }
}

/// Puts entries, in order of path, into index parts, and page digests into digest parts.
pub(crate) struct IndexParts<'a> {
    writer: IndexWriter,
    parts: StoredParts<'a>,
}

struct StoredParts<'a> {
    layer: &'a LayerWriter,
    storing: Storing,
    references: Vec<IndexPartRef>,
}

impl IndexParts<'_> {
    /// Adds the next entry with the digests of its stored pages.
    pub(crate) fn push(&mut self, entry: FileEntry, digests: &[u64]) -> Result<()> {
        match self.writer.push(entry, digests)? {
            Some(part) => self.parts.store(part),
            None => Ok(()),
        }
    }

    /// Waits until nothing is on its way any more.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.parts.storing.wait()
    }

    /// All parts, when all are durable.
    pub(crate) fn finish(mut self) -> Result<Vec<IndexPartRef>> {
        let last = self.writer.finish().map_err(Error::from);
        let begun = last.and_then(|part| part.map_or(Ok(()), |part| self.parts.store(part)));
        let stored = self.parts.storing.wait();
        begun.and(stored)?;
        Ok(self.parts.references)
    }
}

impl StoredParts<'_> {
    /// Begins to store a part; waits for the one before.
    fn store(&mut self, part: FinishedPart) -> Result<()> {
        self.storing.wait()?;
        let (name, label) = (&self.layer.cluster.name, &self.layer.label);
        let index = name.index_key(label, part.number);
        let digest = name.digest_key(label, part.number);
        for (key, body) in [(index, part.index), (digest, part.digest)] {
            let body = self.layer.seal(&key, body)?;
            let storing = self.layer.store(key, body);
            self.storing.tasks.push(storing);
        }
        self.references.push(part.reference);
        Ok(())
    }
}
