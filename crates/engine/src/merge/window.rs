//! A window of frames to be made: what they need is fetched, in order of where it lies and by several requests at once,
//! then decoded and encoded by several threads.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use pgstrata_layer::entry::FrameRef;
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder};
use pgstrata_layer::merge::{OutputFrame, Taken};

use crate::catalog::{Layer, missing_is_damage};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::restore::Source;
use crate::restore::pages_of;

/// 8 MiB, as a restore reads.
const MAX_RANGE_BYTES: u64 = 8 << 20;

/// Bytes between two wanted frames that are cheaper read than asked for again.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// Requests at once.
const REQUESTS: usize = 8;

/// Decoded frames that a thread keeps for the next output: a frame that is half overwritten feeds one or two.
const DECODED_FRAMES: usize = 64;

/// A frame to be made, of a file of that size.
pub(super) struct Wanted {
    pub(super) output: OutputFrame,
    pub(super) size_bytes: u64,
}

impl Wanted {
    /// Bytes it takes while it is made, roughly.
    pub(super) fn cost_bytes(&self) -> u64 {
        match &self.output {
            OutputFrame::Copy { frame, .. } => frame.length.into(),
            OutputFrame::Encode(parts) => {
                let raw: u64 = parts
                    .iter()
                    .map(|part| u64::from(part.take.run.count))
                    .sum();
                let fetched: u64 = parts.iter().map(|part| u64::from(part.frame.length)).sum();
                raw * 8192 + fetched
            }
        }
    }
}

/// Where a frame is: layer, pack, offset.
type Place = (usize, u32, u64);

/// One range of one pack.
struct Fetched {
    start: u64,
    bytes: Bytes,
}

/// Makes the frames of a window.
pub(super) struct Workshop<'a> {
    pub(super) source: &'a Source,
    pub(super) layers: &'a [Arc<Layer>],
    pub(super) codec: Codec,
    pub(super) jobs: usize,
    pub(super) progress: &'a Progress,
}

impl Workshop<'_> {
    /// The stored bytes of each wanted frame, in order.
    pub(super) fn make(&self, wanted: &[Wanted]) -> Result<Vec<Bytes>> {
        let fetched = self.fetch(wanted)?;
        let share = wanted.len().div_ceil(self.jobs.max(1)).max(1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = wanted
                .chunks(share)
                .map(|chunk| {
                    let fetched = &fetched;
                    scope.spawn(move || self.make_chunk(chunk, fetched))
                })
                .collect();
            let mut made = Vec::with_capacity(wanted.len());
            for worker in workers {
                made.extend(worker.join().expect("making frames does not panic")?);
            }
            Ok(made)
        })
    }

    fn fetch(&self, wanted: &[Wanted]) -> Result<BTreeMap<Place, Fetched>> {
        let mut places: BTreeMap<Place, u64> = BTreeMap::new();
        for wanted in wanted {
            match &wanted.output {
                OutputFrame::Copy { layer, frame } => note(&mut places, *layer, frame),
                OutputFrame::Encode(parts) => {
                    for part in parts {
                        note(&mut places, part.layer, &part.frame);
                    }
                }
            }
        }
        let requests = coalesce(&places).into_iter().map(|(layer, pack, range)| {
            let label = &self.layers[layer].label;
            let key = self.source.cluster.pack_key(label, pack);
            let repository = self.source.repository.clone();
            async move {
                let bytes = repository.get_range(&key, range.clone()).await;
                let bytes = bytes.map_err(missing_is_damage)?;
                let start = range.start;
                Ok::<_, Error>(((layer, pack, start), Fetched { start, bytes }))
            }
        });
        let fetching = futures::stream::iter(requests)
            .buffer_unordered(REQUESTS)
            .try_collect::<BTreeMap<_, _>>();
        let fetched = self.source.runtime.block_on(fetching)?;
        let bytes: usize = fetched.values().map(|fetched| fetched.bytes.len()).sum();
        self.progress
            .add_stored(u64::try_from(bytes).expect("usize has 64 bits"));
        Ok(fetched)
    }

    fn make_chunk(
        &self,
        chunk: &[Wanted],
        fetched: &BTreeMap<Place, Fetched>,
    ) -> Result<Vec<Bytes>> {
        let mut encoder = FrameEncoder::new(self.codec)?;
        let mut decoded = Decoded {
            workshop: self,
            fetched,
            decoder: FrameDecoder::new()?,
            frames: HashMap::new(),
        };
        let mut made = Vec::with_capacity(chunk.len());
        for wanted in chunk {
            if self.progress.is_cancelled() {
                return Err(Error::new(Kind::Interrupted, "interrupted"));
            }
            made.push(match &wanted.output {
                OutputFrame::Copy { layer, frame } => self.stored(fetched, *layer, frame)?,
                OutputFrame::Encode(parts) => {
                    let raw = decoded.pages(parts, wanted.size_bytes)?;
                    let mut out = Vec::new();
                    encoder.encode(&raw, &mut out)?;
                    Bytes::from(out)
                }
            });
        }
        Ok(made)
    }

    fn stored(
        &self,
        fetched: &BTreeMap<Place, Fetched>,
        layer: usize,
        frame: &FrameRef,
    ) -> Result<Bytes> {
        let place = (layer, frame.pack, frame.offset);
        let range = fetched.range(..=place).next_back();
        let length = usize::try_from(frame.length).expect("usize has 64 bits");
        range
            .filter(|((of, pack, _), _)| (*of, *pack) == (layer, frame.pack))
            .and_then(|(_, fetched)| {
                let start = usize::try_from(frame.offset - fetched.start).ok()?;
                let end = start.checked_add(length)?;
                (end <= fetched.bytes.len()).then(|| fetched.bytes.slice(start..end))
            })
            .ok_or_else(|| self.damaged(layer, frame, &"lies outside of what was fetched"))
    }

    fn damaged(&self, layer: usize, frame: &FrameRef, what: &dyn std::fmt::Display) -> Error {
        Error::new(
            Kind::Damaged,
            format!(
                "could not read pack {} of layer {}: frame at {}: {what}",
                frame.pack, self.layers[layer].label, frame.offset
            ),
        )
    }
}

/// What a thread has decoded.
struct Decoded<'a> {
    workshop: &'a Workshop<'a>,
    fetched: &'a BTreeMap<Place, Fetched>,
    decoder: FrameDecoder,
    frames: HashMap<Place, Vec<u8>>,
}

impl Decoded<'_> {
    /// The pages of a frame to be encoded, one after the other.
    fn pages(&mut self, parts: &[Taken], size_bytes: u64) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        for part in parts {
            let place = (part.layer, part.frame.pack, part.frame.offset);
            if !self.frames.contains_key(&place) {
                if self.frames.len() >= DECODED_FRAMES {
                    self.frames.clear();
                }
                let stored = self
                    .workshop
                    .stored(self.fetched, part.layer, &part.frame)?;
                let mut pages = Vec::new();
                self.decoder
                    .decode(&stored, Some(part.frame.checksum), &mut pages)
                    .map_err(|e| self.workshop.damaged(part.layer, &part.frame, &e))?;
                self.frames.insert(place, pages);
            }
            let pages = self.frames.get(&place).map(Vec::as_slice);
            let (_, bytes) = pages
                .and_then(|pages| pages_of(&part.take, pages, size_bytes))
                .ok_or_else(|| {
                    let what = &"does not hold its blocks in full";
                    self.workshop.damaged(part.layer, &part.frame, what)
                })?;
            raw.extend_from_slice(bytes);
        }
        Ok(raw)
    }
}

fn note(places: &mut BTreeMap<Place, u64>, layer: usize, frame: &FrameRef) {
    let end = frame.offset.saturating_add(frame.length.into());
    places.insert((layer, frame.pack, frame.offset), end);
}

/// Joins neighbours into requests.
fn coalesce(places: &BTreeMap<Place, u64>) -> Vec<(usize, u32, Range<u64>)> {
    let mut requests: Vec<(usize, u32, Range<u64>)> = Vec::new();
    for (&(layer, pack, start), &end) in places {
        let joined = requests.last_mut().filter(|(of, number, range)| {
            (*of, *number) == (layer, pack)
                && start.saturating_sub(range.end) <= MAX_GAP_BYTES
                && end - range.start <= MAX_RANGE_BYTES
        });
        match joined {
            Some((_, _, range)) => range.end = range.end.max(end),
            None => requests.push((layer, pack, start..end)),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_fetched_together() {
        let places = BTreeMap::from([
            ((0, 0, 32), 132),
            ((0, 0, 132), 200),
            ((0, 0, 200 + MAX_GAP_BYTES + 1), 300 + MAX_GAP_BYTES),
            ((0, 1, 32), 64),
            ((1, 1, 64), 96),
        ]);
        let requests = coalesce(&places);
        assert_eq!(requests.len(), 4);
        assert_eq!(requests[0], (0, 0, 32..200));
    }
}
