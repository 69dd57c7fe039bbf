//! The indexes of a chain as streams, for who merges them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
    kept: Option<KeptParts>,
}

/// Index parts for who reads them twice: those that were read first, and no more than 16 MiB of them.
#[derive(Clone, Debug, Default)]
pub struct KeptParts(Arc<Mutex<BTreeMap<String, Bytes>>>);

/// 16 MiB: the indexes of a chain of 150 GiB. What a restore of a larger one reads twice costs little beside it.
const KEPT_BYTES: usize = 16 << 20;

impl KeptParts {
    fn get(&self, key: &str) -> Option<Bytes> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.get(key).cloned()
    }

    fn keep(&self, key: &str, part: &Bytes) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = parts.values().map(Bytes::len).sum();
        if held + part.len() <= KEPT_BYTES {
            parts.insert(key.to_owned(), part.clone());
        }
    }
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
    /// A stream for each layer of `chain`, in its order. Parts that are in `kept` are not read again; what is read comes
    /// into it.
    #[must_use]
    pub fn new(
        cluster: &ClusterRepository,
        chain: &[Arc<Layer>],
        runtime: &Handle,
        kept: Option<&KeptParts>,
    ) -> Vec<Self> {
        let stream = |layer: &Arc<Layer>| {
            let mut stream = Self {
                cluster: cluster.clone(),
                layer: Arc::clone(layer),
                runtime: runtime.clone(),
                next_part: 0,
                fetching: None,
                reader: None,
                failed: false,
                kept: kept.cloned(),
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
        let (cluster, layer) = (self.cluster.clone(), Arc::clone(&self.layer));
        let key = self.key(self.next_part);
        let kept = self.kept.clone();
        self.fetching = Some(self.runtime.spawn(async move {
            let held = kept.as_ref().and_then(|kept| kept.get(&key));
            if let Some(part) = held {
                return Ok(part);
            }
            let part = cluster.get_of(&layer.manifest, &key).await?;
            if let Some(kept) = kept {
                kept.keep(&key, &part);
            }
            Ok(part)
        }));
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
