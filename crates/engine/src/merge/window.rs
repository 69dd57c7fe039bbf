//! A window of frames to be made: what they need is fetched, then decoded and encoded by several threads.

use std::collections::HashMap;

use bytes::Bytes;
use pgstrata_layer::entry::FrameRef;
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder};
use pgstrata_layer::merge::{OutputFrame, Taken};
use pgstrata_store::courtesy;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;

use crate::frames::{Chain, FetchedFrames, FrameAddress, pages_of};

/// DecodedFrames frames that a thread keeps for the next output: a frame that is half overwritten feeds one or two.
const DECODED_FRAMES: usize = 64;

/// A frame to be made, of a file of that size.
pub(super) struct FrameToMake {
    pub(super) output: OutputFrame,
    pub(super) size_bytes: u64,
}

impl FrameToMake {
    /// Frames of the inputs that it needs, each with its layer.
    fn inputs(&self) -> impl Iterator<Item = (usize, &FrameRef)> {
        let (copied, parts) = match &self.output {
            OutputFrame::Copy { layer, frame } => (Some((*layer, frame)), &[][..]),
            OutputFrame::Encode(parts) => (None, &parts[..]),
        };
        let encoded = parts.iter().map(|part| (part.layer, &part.frame));
        copied.into_iter().chain(encoded)
    }

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

/// Makes the frames of a merged layer.
pub(super) struct FrameMaker<'a> {
    /// What is merged.
    pub(super) inputs: &'a Chain,
    pub(super) codec: Codec,
    pub(super) jobs: usize,
    /// Counts what is fetched.
    pub(super) progress: &'a Progress,
}

impl FrameMaker<'_> {
    /// The stored bytes of each wanted frame, in order.
    pub(super) fn make(&self, wanted: &[FrameToMake]) -> Result<Vec<Bytes>> {
        let inputs = wanted.iter().flat_map(FrameToMake::inputs);
        let fetched = FetchedFrames::fetch(self.inputs, inputs, self.progress)?;
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

    fn make_chunk(&self, chunk: &[FrameToMake], fetched: &FetchedFrames<'_>) -> Result<Vec<Bytes>> {
        let mut encoder = FrameEncoder::new(self.codec)?;
        let mut decoded = DecodedFrames {
            inputs: self.inputs,
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
                OutputFrame::Copy { layer, frame } => fetched.stored(*layer, frame)?,
                OutputFrame::Encode(parts) => {
                    let raw = decoded.pages(parts, wanted.size_bytes)?;
                    let mut out = Vec::new();
                    encoder.encode(&raw, &mut out)?;
                    courtesy::rest();
                    Bytes::from(out)
                }
            });
        }
        Ok(made)
    }
}

/// What a thread has decoded.
struct DecodedFrames<'a> {
    inputs: &'a Chain,
    fetched: &'a FetchedFrames<'a>,
    decoder: FrameDecoder,
    frames: HashMap<FrameAddress, Vec<u8>>,
}

impl DecodedFrames<'_> {
    /// The pages of a frame to be encoded, one after the other.
    fn pages(&mut self, parts: &[Taken], size_bytes: u64) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        for part in parts {
            let address = FrameAddress::of(part.layer, &part.frame);
            if !self.frames.contains_key(&address) {
                if self.frames.len() >= DECODED_FRAMES {
                    self.frames.clear();
                }
                let stored = self.fetched.stored(part.layer, &part.frame)?;
                let mut pages = Vec::new();
                self.decoder
                    .decode(&stored, Some(part.frame.checksum), &mut pages)
                    .map_err(|e| self.inputs.damaged(part.layer, &part.frame, &e))?;
                self.frames.insert(address, pages);
            }
            let pages = self.frames.get(&address).map(Vec::as_slice);
            let (_, bytes) = pages
                .and_then(|pages| pages_of(&part.take, pages, size_bytes))
                .ok_or_else(|| {
                    let what = &"does not hold its blocks in full";
                    self.inputs.damaged(part.layer, &part.frame, what)
                })?;
            raw.extend_from_slice(bytes);
        }
        Ok(raw)
    }
}
