//! Fetching frames as they are stored: neighbours in one request.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use pgstrata_layer::entry::FrameRef;
use pgstrata_store::catalog::{Layer, missing_is_damage};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Result};
use pgstrata_store::progress::Progress;

use super::chain::Chain;

/// 4 MiB: an object store sends that in about the time in which it answers at all, and a disk is kept busy.
pub(super) const MAX_RANGE_BYTES: u64 = 4 << 20;

/// Bytes between two wanted frames that are cheaper read than asked for again.
pub(super) const MAX_GAP_BYTES: u64 = 64 << 10;

/// Requests at once, where no workers share them.
const REQUESTS: usize = 8;

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameAddress {
    /// Which layer of the chain, 0 the newest.
    pub(crate) layer: usize,
    pub(crate) pack: u32,
    pub(crate) offset: u64,
}

impl FrameAddress {
    pub(crate) fn of(layer: usize, frame: &FrameRef) -> Self {
        Self {
            layer,
            pack: frame.pack,
            offset: frame.offset,
        }
    }
}

/// What one request fetches of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackRange {
    pub(super) layer: usize,
    pub(super) pack: u32,
    pub(super) bytes: Range<u64>,
}

impl PackRange {
    pub(super) fn of(layer: usize, frame: &FrameRef) -> Self {
        Self {
            layer,
            pack: frame.pack,
            bytes: frame.offset..frame.offset.saturating_add(frame.length.into()),
        }
    }

    /// This range and `next`, which does not begin before it, if one request of at most `limit_bytes` is better than
    /// two.
    pub(super) fn joined(&self, next: &Self, limit_bytes: u64) -> Option<Range<u64>> {
        let bytes = self.bytes.start..self.bytes.end.max(next.bytes.end);
        let joins = (self.layer, self.pack) == (next.layer, next.pack)
            && next.bytes.start.saturating_sub(self.bytes.end) <= MAX_GAP_BYTES
            && bytes.end - bytes.start <= limit_bytes;
        joins.then_some(bytes)
    }

    /// Fetches it, and counts what came.
    pub(super) async fn fetch(
        &self,
        cluster: &ClusterRepository,
        layer: &Layer,
        progress: &Progress,
    ) -> Result<Bytes> {
        let key = cluster.name.pack_key(&layer.label, self.pack);
        let fetching = cluster.get_range_of(&layer.manifest, &key, self.bytes.clone());
        let contents = fetching.await;
        let contents = contents.map_err(missing_is_damage)?;
        progress.add_stored(self.bytes.end - self.bytes.start);
        Ok(contents)
    }

    /// The bytes of `frame` out of `contents`, which is what this range has fetched.
    pub(super) fn frame_in(&self, contents: &Bytes, frame: &FrameRef) -> Option<Bytes> {
        let start = usize::try_from(frame.offset.checked_sub(self.bytes.start)?).ok()?;
        let end = start.checked_add(usize::try_from(frame.length).ok()?)?;
        (end <= contents.len()).then(|| contents.slice(start..end))
    }
}

/// The stored bytes of one frame of the layer. Whoever asks says what a missing pack means.
pub(crate) async fn fetch_frame(
    cluster: &ClusterRepository,
    layer: &Layer,
    frame: &FrameRef,
) -> Result<Bytes> {
    let key = cluster.name.pack_key(&layer.label, frame.pack);
    let range = frame.offset..frame.offset.saturating_add(frame.length.into());
    cluster.get_range_of(&layer.manifest, &key, range).await
}

/// Frames as they are stored. Their number is limited by whoever asks for them.
pub(crate) struct FetchedFrames<'a> {
    chain: &'a Chain,
    ranges: BTreeMap<FrameAddress, (PackRange, Bytes)>,
}

impl<'a> FetchedFrames<'a> {
    /// Fetches `frames`, each given with its layer, by several requests at once.
    ///
    /// # Errors
    /// When one cannot be fetched.
    pub(crate) fn fetch<'f>(
        chain: &'a Chain,
        frames: impl Iterator<Item = (usize, &'f FrameRef)>,
        progress: &Progress,
    ) -> Result<Self> {
        let requests = coalesce(frames).into_iter().map(|range| {
            let layer = &chain.layers[range.layer];
            async move {
                let contents = range.fetch(&chain.cluster, layer, progress).await?;
                let address = FrameAddress {
                    layer: range.layer,
                    pack: range.pack,
                    offset: range.bytes.start,
                };
                Ok::<_, Error>((address, (range, contents)))
            }
        });
        let fetching = futures::stream::iter(requests)
            .buffer_unordered(REQUESTS)
            .try_collect();
        Ok(Self {
            ranges: chain.runtime.block_on(fetching)?,
            chain,
        })
    }

    /// The stored bytes of one of the frames.
    ///
    /// # Errors
    /// When the pack ends before it.
    pub(crate) fn stored(&self, layer: usize, frame: &FrameRef) -> Result<Bytes> {
        let range = self.ranges.range(..=FrameAddress::of(layer, frame));
        range
            .map(|(_, fetched)| fetched)
            .next_back()
            .filter(|(range, _)| (range.layer, range.pack) == (layer, frame.pack))
            .and_then(|(range, contents)| range.frame_in(contents, frame))
            .ok_or_else(|| {
                let what = &"lies outside of what was fetched";
                self.chain.damaged(layer, frame, what)
            })
    }
}

/// Joins neighbours into requests.
fn coalesce<'f>(frames: impl Iterator<Item = (usize, &'f FrameRef)>) -> Vec<PackRange> {
    let ranges = frames.map(|(layer, frame)| PackRange::of(layer, frame));
    let mut ranges: Vec<PackRange> = ranges.collect();
    ranges.sort_unstable_by_key(|range| (range.layer, range.pack, range.bytes.start));
    let mut requests: Vec<PackRange> = Vec::new();
    for range in ranges {
        let last = requests.last_mut();
        let joined = last.and_then(|last| Some((last.joined(&range, MAX_RANGE_BYTES)?, last)));
        match joined {
            Some((bytes, last)) => last.bytes = bytes,
            None => requests.push(range),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_fetched_together() {
        let frame = |pack, bytes: Range<u64>| FrameRef {
            pack,
            offset: bytes.start,
            length: u32::try_from(bytes.end - bytes.start).unwrap(),
            checksum: 0,
            runs: Vec::new(),
        };
        let far = 200 + MAX_GAP_BYTES + 1;
        let frames = [
            (0, frame(0, 132..200)),
            (0, frame(0, 32..132)),
            (0, frame(0, 32..132)),
            (0, frame(0, far..far + 99)),
            (0, frame(1, 32..64)),
            (1, frame(1, 64..96)),
        ];
        let requests = coalesce(frames.iter().map(|(layer, frame)| (*layer, frame)));
        assert_eq!(requests.len(), 4);
        let first = PackRange {
            layer: 0,
            pack: 0,
            bytes: 32..200,
        };
        assert_eq!(requests[0], first);
    }
}
