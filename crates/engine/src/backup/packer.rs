//! A worker's packs: filled in memory, stored while the next one is filled.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use pgstrata_layer::entry::{BlockRun, FrameRef};
use pgstrata_layer::frame::{Codec, FrameEncoder};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::pack::PackBuilder;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::shares::PackNumbers;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;

/// Where a layer's objects go.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) repository: Repository,
    pub(super) cluster: ClusterName,
    pub(super) label: Label,
    pub(super) layer_id: [u8; 16],
    pub(super) progress: Progress,
    pub(super) runtime: Handle,
}

impl Destination {
    /// Begins to store an object.
    pub(super) fn store(&self, key: String, body: Bytes) -> JoinHandle<Result<()>> {
        let (repository, progress) = (self.repository.clone(), self.progress.clone());
        let size = u64::try_from(body.len()).expect("usize has 64 bits");
        self.runtime.spawn(async move {
            repository.create(&key, body).await?;
            progress.add_stored(size);
            Ok(())
        })
    }

    /// Waits until an object that was begun is stored.
    pub(super) fn finish(&self, storing: JoinHandle<Result<()>>) -> Result<()> {
        self.runtime.block_on(storing).unwrap_or_else(|error| {
            Err(Error::new(
                Kind::Repository,
                format!("could not store an object: {error}"),
            ))
        })
    }
}

/// Numbers and sizes of the packs that this process makes of a layer.
#[derive(Debug, Default)]
pub(super) struct Packs {
    count: AtomicU32,
    bytes: AtomicU64,
    /// When other processes make packs of the same layer.
    shared: Option<PackNumbers>,
}

impl Packs {
    /// With numbers that no other process has.
    pub(super) fn shared(numbers: PackNumbers) -> Self {
        Self {
            shared: Some(numbers),
            ..Self::default()
        }
    }

    fn next_number(&self) -> Result<u32> {
        let nth = self.count.fetch_add(1, Ordering::Relaxed);
        match &self.shared {
            None => Ok(nth),
            Some(numbers) => numbers.next(),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Compresses frames into packs.
pub(super) struct Packer<'a> {
    destination: &'a Destination,
    packs: &'a Packs,
    encoder: FrameEncoder,
    target_bytes: usize,
    open: Option<PackBuilder>,
    storing: Option<JoinHandle<Result<()>>>,
}

impl<'a> Packer<'a> {
    pub(super) fn new(
        destination: &'a Destination,
        packs: &'a Packs,
        codec: Codec,
        target_bytes: usize,
    ) -> Result<Self> {
        let encoder = FrameEncoder::new(codec)?;
        Ok(Self {
            destination,
            packs,
            encoder,
            target_bytes,
            open: None,
            storing: None,
        })
    }

    /// Stores `raw`, the pages of `runs`, as one frame.
    pub(super) fn frame(&mut self, raw: &[u8], runs: Vec<BlockRun>) -> Result<FrameRef> {
        if self
            .open
            .as_ref()
            .is_some_and(|pack| pack.len() + raw.len() > self.target_bytes)
        {
            self.store()?;
        }
        let pack = match &mut self.open {
            Some(pack) => pack,
            // A number is taken only for a pack that will hold a frame: there are no gaps.
            none => none.insert(PackBuilder::new(
                self.destination.layer_id,
                self.packs.next_number()?,
                self.target_bytes,
            )),
        };
        let placed = pack.append(&mut self.encoder, raw)?;
        Ok(FrameRef {
            pack: pack.number(),
            offset: placed.offset,
            length: placed.length,
            checksum: placed.checksum,
            runs,
        })
    }

    /// Hands the open pack to the repository; waits for the one before.
    fn store(&mut self) -> Result<()> {
        if let Some(storing) = self.storing.take() {
            self.destination.finish(storing)?;
        }
        let Some(pack) = self.open.take() else {
            return Ok(());
        };
        let key = self
            .destination
            .cluster
            .pack_key(&self.destination.label, pack.number());
        let body = Bytes::from(pack.finish());
        let size = u64::try_from(body.len()).expect("usize has 64 bits");
        self.packs.bytes.fetch_add(size, Ordering::Relaxed);
        self.storing = Some(self.destination.store(key, body));
        Ok(())
    }

    /// Stores what is left; returns when every pack of this worker is durable.
    pub(super) fn finish(mut self) -> Result<()> {
        self.store()?;
        match self.storing.take() {
            Some(storing) => self.destination.finish(storing),
            None => Ok(()),
        }
    }
}

impl Drop for Packer<'_> {
    fn drop(&mut self) {
        if let Some(storing) = &self.storing {
            // The backup has failed: nothing more is to appear in the repository.
            storing.abort();
        }
    }
}
