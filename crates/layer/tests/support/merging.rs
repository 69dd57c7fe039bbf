//! Merging layers in memory, as an engine does it in a repository.

use pgstrata_layer::entry::FrameRef;
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder};
use pgstrata_layer::index::IndexWriter;
use pgstrata_layer::merge::{OutputFrame, plan_file};
use pgstrata_layer::overlay::{DigestSource, PathMerge, chain_of};
use pgstrata_layer::pack::{PackBuilder, PlacedFrame};

use super::{BLOCK, StoredLayer, entries, entry_digests};

/// The newest `count` layers of a chain as one, and how many of its frames were copied.
pub fn merge(chain: &[&StoredLayer], count: usize, layer_id: [u8; 16]) -> (StoredLayer, usize) {
    let merged = &chain[..count];
    let mut copied = 0;
    let mut pack = PackBuilder::new(layer_id, 0, 0);
    let mut encoder = FrameEncoder::new(Codec::Lz4).unwrap();
    let mut index = IndexWriter::with_codec(layer_id, Codec::Lz4).unwrap();
    let mut parts = Vec::new();
    let streams: Vec<_> = merged.iter().map(|layer| entries(layer)).collect();
    for found in PathMerge::new(streams) {
        let found = found.unwrap();
        let mut file = plan_file(&chain_of(&found), count, count < chain.len()).unwrap();
        for output in &file.frames {
            let placed = match output {
                OutputFrame::Copy { layer, frame } => {
                    copied += 1;
                    pack.append_stored(stored(merged[*layer], frame)).unwrap()
                }
                OutputFrame::Encode(_) => encode(
                    merged,
                    output,
                    file.entry.size_bytes,
                    &mut pack,
                    &mut encoder,
                ),
            };
            file.entry.frames.push(FrameRef {
                pack: 0,
                offset: placed.offset,
                length: placed.length,
                checksum: placed.checksum,
                runs: output.runs(),
            });
        }
        let mut digests = Vec::new();
        for run in &file.digests {
            let DigestSource::Stored { layer, first } = run.source else {
                panic!("zeros have no digest");
            };
            let entry = found[layer].as_ref().unwrap();
            if entry.content_digest.is_none() {
                let first = usize::try_from(first).unwrap();
                let count = usize::try_from(run.run.count).unwrap();
                let all = entry_digests(merged[layer], entry).unwrap();
                digests.extend_from_slice(&all[first..first + count]);
            }
        }
        parts.extend(index.push(file.entry, &digests).unwrap());
    }
    parts.extend(index.finish().unwrap());
    let layer = StoredLayer {
        layer_id,
        packs: vec![pack.finish()],
        parts,
    };
    (layer, copied)
}

fn stored<'a>(layer: &'a StoredLayer, frame: &FrameRef) -> &'a [u8] {
    let start = usize::try_from(frame.offset).unwrap();
    let pack = &layer.packs[usize::try_from(frame.pack).unwrap()];
    &pack[start..start + usize::try_from(frame.length).unwrap()]
}

fn encode(
    merged: &[&StoredLayer],
    output: &OutputFrame,
    size_bytes: u64,
    pack: &mut PackBuilder,
    encoder: &mut FrameEncoder,
) -> PlacedFrame {
    let OutputFrame::Encode(parts) = output else {
        panic!("copied frames are not encoded");
    };
    let mut raw = Vec::new();
    let mut pages = Vec::new();
    for part in parts {
        FrameDecoder::new()
            .unwrap()
            .decode(
                stored(merged[part.layer], &part.frame),
                Some(part.frame.checksum),
                &mut raw,
            )
            .unwrap();
        for nth in 0..part.take.run.count {
            let from = usize::try_from(part.take.frame_page + nth).unwrap() * BLOCK;
            let block = u64::from(part.take.run.start + nth) * 8192;
            let length = usize::try_from((size_bytes - block).min(8192)).unwrap();
            pages.extend_from_slice(&raw[from..from + length]);
        }
    }
    pack.append(encoder, &pages).unwrap()
}
