//! The indexes of a chain as streams, for who merges them.

use std::sync::Arc;

use bytes::Bytes;
use pgstrata_layer::entry::FileEntry;
use pgstrata_layer::index::IndexReader;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Layer;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// All entries of one layer in order of path.
///
/// Holds one index part and fetches the next meanwhile. For a thread outside of
/// the runtime: it waits for the repository.
pub struct ChainEntries {
    cluster: ClusterRepository,
    layer: Arc<Layer>,
    runtime: Handle,
    next_part: usize,
    fetching: Option<JoinHandle<Result<Bytes>>>,
    reader: Option<IndexReader>,
    failed: bool,
}

/// Which index and digest part holds a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLocation {
    /// Number of the part.
    pub number: u32,
    /// Length in bytes of the object `digest-n`.
    pub digest_bytes: u64,
}

impl PartLocation {
    /// The part of `layer` that holds `path`, if any does.
    #[must_use]
    pub fn of(layer: &Layer, path: &str) -> Option<Self> {
        let position = Self::position(layer, path)?;
        Some(Self {
            number: u32::try_from(position).ok()?,
            digest_bytes: layer.manifest.index.get(position)?.digest_bytes,
        })
    }

    fn position(layer: &Layer, path: &str) -> Option<usize> {
        let parts = &layer.manifest.index;
        parts
            .partition_point(|part| part.first_path.as_str() <= path)
            .checked_sub(1)
    }
}

impl ChainEntries {
    /// A stream for each layer of `chain`, in its order.
    #[must_use]
    pub fn new(cluster: &ClusterRepository, chain: &[Arc<Layer>], runtime: &Handle) -> Vec<Self> {
        let stream = |layer: &Arc<Layer>| {
            let mut stream = Self {
                cluster: cluster.clone(),
                layer: Arc::clone(layer),
                runtime: runtime.clone(),
                next_part: 0,
                fetching: None,
                reader: None,
                failed: false,
            };
            stream.fetch();
            stream
        };
        chain.iter().map(stream).collect()
    }

    /// Begins to fetch part `next_part`, when there is one.
    fn fetch(&mut self) {
        if self.next_part >= self.layer.manifest.index.len() {
            return;
        }
        let repository = self.cluster.repository.clone();
        let key = self.key(self.next_part);
        self.fetching = Some(
            self.runtime
                .spawn(async move { repository.get(&key).await }),
        );
    }

    fn key(&self, part: usize) -> String {
        let number = u32::try_from(part).unwrap_or(u32::MAX);
        self.cluster.name.index_key(&self.layer.label, number)
    }

    fn number(&self) -> u32 {
        u32::try_from(self.next_part).unwrap_or(u32::MAX)
    }

    /// Opens the part being fetched; false when there is none.
    fn open(&mut self) -> Result<bool> {
        let parts = &self.layer.manifest.index;
        let (Some(fetching), Some(reference)) = (self.fetching.take(), parts.get(self.next_part))
        else {
            return Ok(false);
        };
        let (key, number) = (self.key(self.next_part), self.number());
        let act = || format!("could not read \"{key}\"");
        let bytes = self
            .runtime
            .block_on(fetching)
            .unwrap_or_else(|error| Err(Error::new(Kind::Repository, error.to_string())))
            .map_err(|error| missing_is_damage(error).while_doing(act()))?;
        let layer_id = self.layer.manifest.layer_id_bytes()?;
        let reader = IndexReader::new(bytes, layer_id, number, reference)
            .map_err(|error| Error::from(error).while_doing(act()))?;
        self.reader = Some(reader);
        self.next_part += 1;
        self.fetch();
        Ok(true)
    }

    fn next_entry(&mut self) -> Result<Option<FileEntry>> {
        loop {
            match self.reader.as_mut().and_then(Iterator::next) {
                Some(Ok(entry)) => return Ok(Some(entry)),
                Some(Err(error)) => {
                    let key = self.key(self.next_part.saturating_sub(1));
                    let act = format!("could not read \"{key}\"");
                    return Err(Error::from(error).while_doing(act));
                }
                None => self.reader = None,
            }
            if !self.open()? {
                return Ok(None);
            }
        }
    }
}

/// An object that a manifest names and that is not there is damage, not a question answered.
pub fn missing_is_damage(error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => Error::new(Kind::Damaged, error.to_string()).hint(
            "the repository lost an object: take a full backup, and look with \"pgstrata verify\"",
        ),
        _ => error,
    }
}

impl Iterator for ChainEntries {
    type Item = Result<FileEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_entry();
        self.failed = next.is_err();
        next.transpose()
    }
}

impl Drop for ChainEntries {
    fn drop(&mut self) {
        if let Some(fetching) = &self.fetching {
            fetching.abort();
        }
    }
}
