//! A backup and a restore small enough to read: files in memory, objects in a map.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by tests that use different parts; a failure here is a failed test"
)]

pub mod history;
pub mod keeping;
pub mod merging;
pub mod sample;

use std::collections::BTreeMap;

use bytes::Bytes;
use pgstrata_layer::digest;
use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, DigestRef, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder};
use pgstrata_layer::index::{FinishedPart, IndexReader, IndexWriter, digests_of};
use pgstrata_layer::overlay::{DigestSource, FilePlan, Overlay, chain_of, digest_sources};
use pgstrata_layer::pack::{PackBuilder, verify_pack};

/// A block in memory.
pub const BLOCK: usize = 8192;

/// A file or directory of the model cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    pub kind: EntryKind,
    pub mode: u32,
    pub modified: i64,
    pub identity: u64,
    pub bytes: Vec<u8>,
}

/// Which blocks a backup stores, and below which it inherits the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub blocks: Vec<u32>,
    pub inherit_limit: u32,
}

impl Selection {
    /// Everything.
    pub fn whole(file: &SourceFile) -> Self {
        Self {
            blocks: (0..block_count(file)).collect(),
            inherit_limit: 0,
        }
    }
}

/// Number of blocks of a file, a partial last one included.
pub fn block_count(file: &SourceFile) -> u32 {
    u32::try_from(file.bytes.len().div_ceil(BLOCK)).unwrap()
}

/// The bytes of a block.
pub fn page(file: &SourceFile, block: u32) -> &[u8] {
    let start = usize::try_from(block).unwrap() * BLOCK;
    &file.bytes[start..file.bytes.len().min(start + BLOCK)]
}

/// A layer as its objects.
#[derive(Clone, Debug)]
pub struct StoredLayer {
    pub layer_id: [u8; 16],
    pub packs: Vec<Vec<u8>>,
    pub parts: Vec<FinishedPart>,
}

/// Stores files in order of path.
pub struct LayerMaker {
    layer_id: [u8; 16],
    encoder: FrameEncoder,
    pages_per_frame: usize,
    frames_per_pack: usize,
    frames_in_pack: usize,
    pack: PackBuilder,
    index: IndexWriter,
    stored: StoredLayer,
}

impl LayerMaker {
    pub fn new(layer_id: [u8; 16], codec: Codec, pages_per_frame: usize) -> Self {
        Self {
            layer_id,
            encoder: FrameEncoder::new(codec).unwrap(),
            pages_per_frame,
            frames_per_pack: 3,
            frames_in_pack: 0,
            pack: PackBuilder::new(layer_id, 0, 0),
            index: IndexWriter::with_codec(layer_id, codec).unwrap(),
            stored: StoredLayer {
                layer_id,
                packs: Vec::new(),
                parts: Vec::new(),
            },
        }
    }

    pub fn store(&mut self, path: &str, file: &SourceFile, selection: &Selection) {
        let mut entry = FileEntry {
            path: path.to_owned(),
            kind: file.kind,
            mode: file.mode,
            modified: file.modified,
            size_bytes: u64::try_from(file.bytes.len()).unwrap(),
            identity: file.identity,
            inherit_limit: selection.inherit_limit,
            content_digest: (file.kind == EntryKind::Plain).then(|| digest::contents(&file.bytes)),
            frames: Vec::new(),
            zero_runs: Vec::new(),
            page_digests: DigestRef::default(),
        };
        let (zeros, pages): (Vec<u32>, Vec<u32>) = selection
            .blocks
            .iter()
            .partition(|&&block| digest::is_zeros(page(file, block)));
        entry.zero_runs = to_runs(&zeros);
        let mut digests = Vec::new();
        for blocks in pages.chunks(self.pages_per_frame) {
            let raw: Vec<u8> = blocks
                .iter()
                .flat_map(|&block| page(file, block))
                .copied()
                .collect();
            entry.frames.push(self.append(&raw, to_runs(blocks)));
            if file.kind == EntryKind::Relation {
                digests.extend(blocks.iter().map(|&block| digest::page(page(file, block))));
            }
        }
        let finished = self.index.push(entry, &digests).unwrap();
        self.stored.parts.extend(finished);
    }

    fn append(&mut self, raw: &[u8], runs: Vec<BlockRun>) -> FrameRef {
        if self.frames_in_pack == self.frames_per_pack {
            self.finish_pack();
        }
        self.frames_in_pack += 1;
        let placed = self.pack.append(&mut self.encoder, raw).unwrap();
        FrameRef {
            pack: self.pack.number(),
            offset: placed.offset,
            length: placed.length,
            checksum: placed.checksum,
            runs,
        }
    }

    fn finish_pack(&mut self) {
        let next = PackBuilder::new(self.layer_id, self.pack.number() + 1, 0);
        let full = std::mem::replace(&mut self.pack, next);
        self.stored.packs.push(full.finish());
        self.frames_in_pack = 0;
    }

    pub fn finish(mut self) -> StoredLayer {
        if !self.pack.is_empty() {
            self.finish_pack();
        }
        self.stored.parts.extend(self.index.finish().unwrap());
        self.stored
    }
}

/// Ascending blocks as runs.
pub fn to_runs(blocks: &[u32]) -> Vec<BlockRun> {
    let mut runs = Vec::new();
    for &start in blocks {
        BlockRun::append(&mut runs, BlockRun { start, count: 1 });
    }
    runs
}

/// The entries of a stored layer.
pub fn entries(layer: &StoredLayer) -> impl Iterator<Item = pgstrata_layer::Result<FileEntry>> {
    layer.parts.iter().flat_map(|part| {
        let bytes = Bytes::from(part.index.clone());
        IndexReader::new(bytes, layer.layer_id, part.number, &part.reference).unwrap()
    })
}

/// Restores a chain, newest first. Every block must be written exactly once.
pub fn restore(chain: &[&StoredLayer]) -> pgstrata_layer::Result<BTreeMap<String, SourceFile>> {
    for layer in chain {
        for (number, pack) in (0..).zip(&layer.packs) {
            verify_pack(pack, layer.layer_id, number, |_, _| Ok(())).unwrap();
        }
    }
    let streams: Vec<_> = chain.iter().map(|layer| entries(layer)).collect();
    let mut files = BTreeMap::new();
    for planned in Overlay::new(streams) {
        let (plan, found) = planned?;
        let file = SourceFile {
            kind: plan.kind,
            mode: plan.mode,
            modified: plan.modified,
            identity: found[0].as_ref().unwrap().identity,
            bytes: restore_file(chain, &plan),
        };
        check_digests(chain, &file, &found)?;
        files.insert(plan.path.clone(), file);
    }
    Ok(files)
}

fn restore_file(chain: &[&StoredLayer], plan: &FilePlan) -> Vec<u8> {
    let size = usize::try_from(plan.size_bytes).unwrap();
    let mut bytes = vec![0xEE; size];
    let mut writes = vec![0; size.div_ceil(BLOCK)];
    let mut write = |block: u32, page: &[u8]| {
        let block = usize::try_from(block).unwrap();
        let end = size.min((block + 1) * BLOCK);
        bytes[block * BLOCK..end].copy_from_slice(&page[..end - block * BLOCK]);
        writes[block] += 1;
    };
    let mut decoder = FrameDecoder::new().unwrap();
    let mut raw = Vec::new();
    for piece in &plan.pieces {
        let pack = &chain[piece.layer].packs[usize::try_from(piece.frame.pack).unwrap()];
        let start = usize::try_from(piece.frame.offset).unwrap();
        let stored = &pack[start..start + usize::try_from(piece.frame.length).unwrap()];
        decoder
            .decode(stored, Some(piece.frame.checksum), &mut raw)
            .unwrap();
        assert!(!piece.take.is_empty());
        for take in &piece.take {
            for nth in 0..take.run.count {
                let at = usize::try_from(take.frame_page + nth).unwrap() * BLOCK;
                write(take.run.start + nth, &raw[at..]);
            }
        }
    }
    for run in &plan.zero_runs {
        for nth in 0..run.count {
            write(run.start + nth, &[0; BLOCK]);
        }
    }
    assert!(
        writes.iter().all(|&count| count == 1),
        "writes per block of {:?}: {writes:?}",
        plan.path
    );
    bytes
}

/// The digest sources must lead to the digest of every restored page.
fn check_digests(
    chain: &[&StoredLayer],
    file: &SourceFile,
    found: &[Option<FileEntry>],
) -> pgstrata_layer::Result<()> {
    if let Some(expected) = found[0].as_ref().unwrap().content_digest {
        assert_eq!(digest::contents(&file.bytes), expected);
    }
    if file.kind == EntryKind::Relation {
        let digests = page_digests(chain, found)?;
        let blocks = 0..block_count(file);
        let expected: Vec<_> = blocks
            .map(|block| page(file, block))
            .map(|page| (!digest::is_zeros(page)).then(|| digest::page(page)))
            .collect();
        assert_eq!(digests, expected);
    }
    Ok(())
}

/// The digest of every page of a file in a chain, `None` for zeros.
pub fn page_digests(
    chain: &[&StoredLayer],
    found: &[Option<FileEntry>],
) -> pgstrata_layer::Result<Vec<Option<u64>>> {
    let mut digests = Vec::new();
    for piece in digest_sources(&chain_of(found))? {
        assert_eq!(usize::try_from(piece.run.start).unwrap(), digests.len());
        match piece.source {
            DigestSource::Zeros => digests.extend((0..piece.run.count).map(|_| None)),
            DigestSource::Stored { layer, first } => {
                let entry = found[layer].as_ref().unwrap();
                let all = entry_digests(chain[layer], entry)?;
                let first = usize::try_from(first).unwrap();
                let run = &all[first..][..usize::try_from(piece.run.count).unwrap()];
                digests.extend(run.iter().copied().map(Some));
            }
        }
    }
    Ok(digests)
}

/// The digests of the pages an entry stores.
pub fn entry_digests(layer: &StoredLayer, entry: &FileEntry) -> pgstrata_layer::Result<Vec<u64>> {
    let holds = |part: &&FinishedPart| part.reference.first_path <= entry.path;
    let part = layer.parts.iter().rev().find(holds).unwrap();
    digests_of(
        &part.digest,
        layer.layer_id,
        part.number,
        &entry.page_digests,
    )
}

/// A page of bytes that do not compress, another for every `seed`.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(length).collect()
}

/// Bytes that compress, another for every `seed`.
pub fn prose(seed: u64, length: usize) -> Vec<u8> {
    let text = format!("page {seed} of a table that says the same again and again; ");
    text.bytes().cycle().take(length).collect()
}

const _: () = assert!(BLOCK_BYTES == 8192);

/// The digest of a page, `None` for zeros.
pub fn digest_of_pages(page: &[u8]) -> Option<u64> {
    (!digest::is_zeros(page)).then(|| digest::page(page))
}
