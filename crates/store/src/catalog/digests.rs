//! The page digests of a chain's files: what comparing needs instead of the pages themselves.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use pgstrata_layer::digest;
use pgstrata_layer::entry::{BLOCK_BYTES, FileEntry};
use pgstrata_layer::index::{decode_digests, digest_range};
use pgstrata_layer::overlay::{DigestRun, DigestSource, chain_of, digest_sources};
use tokio::runtime::Handle;

use super::{FETCH_AT_ONCE, Layer, PartLocation, missing_is_damage};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// Digests of small files are 8 bytes each: fetched one by one they would cost a
/// request each. 256 KiB are the digests of 256 MiB.
const READ_AHEAD_BYTES: u64 = 256 << 10;

/// Fetches the digests of files, asked for in order of path. For a thread outside of the runtime.
pub struct ChainDigests {
    cluster: ClusterRepository,
    runtime: Handle,
    chain: Vec<Arc<Layer>>,
    ahead: Vec<Option<NextPart>>,
    zero_digest: u64,
    /// Whether what is small was fetched of all layers.
    has_small: bool,
}

/// Bytes of one digest part.
struct NextPart {
    number: u32,
    start: u64,
    bytes: Bytes,
}

impl ChainDigests {
    /// For the chain, newest layer first.
    pub fn new(cluster: &ClusterRepository, chain: Vec<Arc<Layer>>, runtime: &Handle) -> Self {
        let zeros = vec![0; usize::try_from(BLOCK_BYTES).expect("8192 fits")];
        Self {
            cluster: cluster.clone(),
            runtime: runtime.clone(),
            ahead: chain.iter().map(|_| None).collect(),
            chain,
            zero_digest: digest::page(&zeros),
            has_small: false,
        }
    }

    /// Fetches the digests of each layer that has few, as increments have: all at once. One layer after the other, as files
    /// need them, would cost a long chain the latency of an object store for each.
    fn fetch_small(&mut self) {
        let is_far = self.cluster.repository.directory().is_none();
        if std::mem::replace(&mut self.has_small, true) || !is_far {
            return;
        }
        let cluster = &self.cluster;
        let fetching = self.chain.iter().map(|layer| async move {
            let [part] = &layer.manifest.index[..] else {
                return None;
            };
            if part.digest_bytes > READ_AHEAD_BYTES {
                return None;
            }
            let key = cluster.name.digest_key(&layer.label, 0);
            // What is the matter is found again by who needs it.
            let bytes = cluster.get_of(&layer.manifest, &key).await.ok()?;
            Some(NextPart {
                number: 0,
                start: 0,
                bytes,
            })
        });
        let fetching: Vec<_> = fetching.collect();
        let fetched = futures::stream::iter(fetching).buffered(FETCH_AT_ONCE);
        let fetched = self.runtime.block_on(fetched.collect());
        self.ahead = fetched;
    }

    /// The digest of each of the file's blocks below `limit`; those of zeros have the digest of zeros.
    pub fn digests(&mut self, entries: &[Option<FileEntry>], limit: u32) -> Result<Vec<u64>> {
        let Some(Some(newest)) = entries.first() else {
            return Err(Error::new(
                Kind::Damaged,
                "the newest layer of a chain has no entry for its own path",
            ));
        };
        let path = &newest.path;
        let mut digests =
            vec![self.zero_digest; usize::try_from(limit).expect("usize has 64 bits")];
        let mut stored: Vec<Option<Vec<u64>>> = self.chain.iter().map(|_| None).collect();
        for found in digest_sources(&chain_of(entries))? {
            let DigestSource::Stored { layer, first } = found.source else {
                continue;
            };
            let of_layer = self.of_layer(&mut stored, layer, path, entries)?;
            for (block, ordinal) in (found.run.start..limit)
                .zip(first..)
                .take(usize::try_from(found.run.count).expect("usize has 64 bits"))
            {
                let digest = of_layer.get(usize::try_from(ordinal).expect("usize has 64 bits"));
                let place = digests.get_mut(usize::try_from(block).expect("usize has 64 bits"));
                let (Some(digest), Some(place)) = (digest, place) else {
                    return Err(Error::new(
                        Kind::Damaged,
                        format!("block {block} of \"{path}\" has no digest"),
                    ));
                };
                *place = *digest;
            }
        }
        Ok(digests)
    }

    /// The digests of these pages, in their order; none for zeros.
    pub fn of_runs(
        &mut self,
        entries: &[Option<FileEntry>],
        runs: &[DigestRun],
    ) -> Result<Vec<u64>> {
        let path = entries
            .iter()
            .flatten()
            .next()
            .map_or("", |entry| &entry.path);
        let mut stored: Vec<Option<Vec<u64>>> = self.chain.iter().map(|_| None).collect();
        let mut digests = Vec::new();
        for found in runs {
            let DigestSource::Stored { layer, first } = found.source else {
                continue;
            };
            let of_layer = self.of_layer(&mut stored, layer, path, entries)?;
            let first = usize::try_from(first).expect("usize has 64 bits");
            let count = usize::try_from(found.run.count).expect("usize has 64 bits");
            let run = of_layer.get(first..).and_then(|rest| rest.get(..count));
            digests.extend_from_slice(run.ok_or_else(|| {
                Error::new(
                    Kind::Damaged,
                    format!("block {} of \"{path}\" has no digest", found.run.start),
                )
            })?);
        }
        Ok(digests)
    }

    fn of_layer<'s>(
        &mut self,
        stored: &'s mut [Option<Vec<u64>>],
        layer: usize,
        path: &str,
        entries: &[Option<FileEntry>],
    ) -> Result<&'s Vec<u64>> {
        match stored.get_mut(layer) {
            Some(Some(known)) => Ok(known),
            Some(unknown) => Ok(unknown.insert(self.fetch(layer, path, entries)?)),
            None => Err(Error::new(
                Kind::Damaged,
                format!("\"{path}\" has no layer {layer} in its chain"),
            )),
        }
    }

    /// All digests that the layer at that position of the chain has of a file.
    pub fn fetch(
        &mut self,
        position: usize,
        path: &str,
        entries: &[Option<FileEntry>],
    ) -> Result<Vec<u64>> {
        let missing = || {
            Error::new(
                Kind::Damaged,
                format!("the digests of \"{path}\" are not where its chain says"),
            )
        };
        let entry = entries
            .get(position)
            .and_then(Option::as_ref)
            .ok_or_else(missing)?;
        let layer = Arc::clone(self.chain.get(position).ok_or_else(missing)?);
        let part = PartLocation::of(&layer, path).ok_or_else(missing)?;
        let range = digest_range(&entry.page_digests);
        self.fetch_small();
        let ahead = self.ahead.get_mut(position).ok_or_else(missing)?;
        let covers = |ahead: &NextPart| {
            let end = ahead.start + u64::try_from(ahead.bytes.len()).expect("usize has 64 bits");
            ahead.number == part.number && ahead.start <= range.start && range.end <= end
        };
        if !ahead.as_ref().is_some_and(covers) {
            let key = self.cluster.name.digest_key(&layer.label, part.number);
            let end = range
                .end
                .max((range.start + READ_AHEAD_BYTES).min(part.digest_bytes));
            let wanted = range.start..end;
            let fetching = self.cluster.get_range_of(&layer.manifest, &key, wanted);
            let bytes = self.runtime.block_on(fetching).map_err(missing_is_damage)?;
            *ahead = Some(NextPart {
                number: part.number,
                start: range.start,
                bytes,
            });
        }
        let ahead = ahead.as_ref().ok_or_else(missing)?;
        let from = usize::try_from(range.start - ahead.start).map_err(|_| missing())?;
        let to = usize::try_from(range.end - ahead.start).map_err(|_| missing())?;
        let slice = ahead.bytes.get(from..to).ok_or_else(missing)?;
        decode_digests(slice, &entry.page_digests).map_err(|error| {
            Error::from(error).while_doing(format!(
                "could not read the digests of \"{path}\" in \"{}\"",
                self.cluster.name.digest_key(&layer.label, part.number)
            ))
        })
    }
}
