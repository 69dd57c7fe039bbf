//! A chain of layers, as threads outside of the runtime read it.

use std::fmt::Display;
use std::sync::Arc;

use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, FileEntry, FrameRef};
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_layer::overlay::{chain_of, plan_file};
use pgstrata_store::catalog::{
    self, ChainDigests, ChainEntries, KeptParts, Layer, missing_is_damage,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use tokio::runtime::Handle;

use super::fetch::fetch_frame;

/// Entries of one path in each layer of the chain, newest first.
pub(crate) type Entries = Vec<Option<FileEntry>>;

/// Layers of which each stands on the next, and how to reach them.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) cluster: ClusterRepository,
    /// Newest first.
    pub(crate) layers: Vec<Arc<Layer>>,
    pub(crate) runtime: Handle,
    /// Index parts that were read and are read again; `None` when each is read once.
    kept: Option<KeptParts>,
}

impl Chain {
    /// To be called by a task of the runtime.
    pub(crate) fn new(cluster: &ClusterRepository, layers: Vec<Arc<Layer>>) -> Self {
        Self {
            cluster: cluster.clone(),
            layers,
            runtime: Handle::current(),
            kept: None,
        }
    }

    /// Remembers in `kept` what is read of the indexes, and reads it there.
    pub(crate) fn keeping(self, kept: &KeptParts) -> Self {
        Self {
            kept: Some(kept.clone()),
            ..self
        }
    }

    /// The newest layer alone.
    pub(crate) fn newest(&self) -> Self {
        let newest = self.layers.iter().take(1).cloned();
        Self {
            layers: newest.collect(),
            ..self.clone()
        }
    }

    /// Each layer alone that the other chain does not have, the newest first.
    pub(crate) fn not_in(&self, other: &Self) -> impl Iterator<Item = Self> {
        let is_in = |layer: &Layer| other.layers.iter().any(|known| **known == *layer);
        let own = self.layers.iter().filter(move |layer| !is_in(layer));
        own.map(|layer| Self {
            layers: vec![Arc::clone(layer)],
            ..self.clone()
        })
    }

    /// The entries of each layer in order of path, newest layer first.
    pub(crate) fn entries(&self) -> Vec<ChainEntries> {
        ChainEntries::new(
            &self.cluster,
            &self.layers,
            &self.runtime,
            self.kept.as_ref(),
        )
    }

    /// The page digests of files.
    pub(crate) fn digests(&self) -> ChainDigests {
        ChainDigests::new(&self.cluster, self.layers.clone(), &self.runtime)
    }

    /// The page at `block` of the file with these entries.
    pub(crate) fn page(&self, entries: &Entries, block: u32) -> Result<Vec<u8>> {
        let plan = plan_file(&chain_of(entries))?;
        let size = usize::try_from(BLOCK_BYTES).expect("8192 fits");
        let holds = |run: &BlockRun| run.start <= block && u64::from(block) < run.end();
        if plan.zero_runs.iter().any(holds) {
            return Ok(vec![0; size]);
        }
        let found = plan.pieces.iter().find_map(|piece| {
            let take = piece.take.iter().find(|take| holds(&take.run))?;
            Some((piece, take.frame_page + (block - take.run.start)))
        });
        let missing = || {
            let what = format!("block {block} of \"{}\" is in no frame", plan.path);
            Error::new(Kind::Damaged, what)
        };
        let (piece, page) = found.ok_or_else(missing)?;
        let layer = self.layers.get(piece.layer).ok_or_else(missing)?;
        let fetching = fetch_frame(&self.cluster, layer, &piece.frame);
        let stored = self.runtime.block_on(fetching).map_err(missing_is_damage)?;
        let mut raw = Vec::new();
        FrameDecoder::new()?
            .decode(&stored, Some(piece.frame.checksum), &mut raw)
            .map_err(|error| self.damaged(piece.layer, &piece.frame, &error))?;
        let start = usize::try_from(page).expect("usize has 64 bits") * size;
        raw.get(start..start + size)
            .map(<[u8]>::to_vec)
            .ok_or_else(missing)
    }

    /// What is wrong with a frame of layer `layer`.
    pub(crate) fn damaged(&self, layer: usize, frame: &FrameRef, what: &dyn Display) -> Error {
        let label = &self.layers[layer].label;
        let key = self.cluster.name.pack_key(label, frame.pack);
        Error::new(
            Kind::Damaged,
            format!(
                "could not read \"{key}\": frame at {}: {what}",
                frame.offset
            ),
        )
        .hint(catalog::advice_if_damaged(label))
    }
}
