//! Index parts and digest parts: every file of a layer, in order of path, as a stream.
//!
//! Entries are encoded one after another into frames of about 64 KiB, the frames
//! into parts of about 1 MiB, so that a reader holds one part, one decoded frame
//! and one entry, whatever the cluster's size. Page digests, which a restore does
//! not read, lie in a digest part beside each index part.

use std::ops::Range;

use bytes::Bytes;

use crate::bytes::{Cursor, put_signed, put_varint, to_u64, to_usize};
use crate::digest::{checksum, contents_hex};
use crate::entry::{
    BLOCK_BYTES, BlockRun, DigestRef, EntryKind, FileEntry, FrameRef, MAX_PATH_BYTES,
};
use crate::error::{Error, Result};
use crate::frame::{Codec, FrameDecoder, FrameEncoder, MAX_RAW_BYTES, PAGES, split_checked};
use crate::manifest::IndexPartRef;
use crate::object::{self, ObjectHeader};

/// Bytes of a digest part before the first digest.
pub const DIGEST_HEADER_BYTES: u64 = 32;

/// An index part is finished when its object reaches this.
pub const PART_BYTES: usize = 1 << 20;

/// An index part is finished when its digest part reaches this: 8 GiB of pages.
pub const PART_DIGEST_BYTES: usize = 8 << 20;

/// Entries are compressed in pieces of this size.
const BLOCK_RAW_BYTES: usize = 64 << 10;

/// The entry of a 1 GiB segment with every second page in a frame of its own is a
/// tenth of this.
const MAX_ENTRY_BYTES: usize = 16 << 20;

/// Plain files up to this size are in frames as small as those of relations. A larger one is in the largest frames there are: of
/// small ones its entry would be full at about 128 GiB.
pub const LARGE_PLAIN_BYTES: u64 = 16 << 30;

/// The largest plain file for whose frames an entry has room. There each takes at most 20 bytes (5 for its pack, 1 for its
/// offset, 3 for its length, 8 for its checksum, 3 for its run), when they lie one behind the other.
pub const MAX_PLAIN_BYTES: u64 = 768 << 30;

const MAGIC: [u8; 8] = *b"PGSTINDX";
const TRAILER_MAGIC: [u8; 8] = *b"PGSXEND1";
const DIGEST_MAGIC: [u8; 8] = *b"PGSTDGST";

/// Bytes of a plain file of this size in each of its frames; `None` when an entry has no room for all of them.
#[must_use]
pub fn plain_frame_bytes(size_bytes: u64) -> Option<usize> {
    if size_bytes <= LARGE_PLAIN_BYTES {
        return Some(PAGES * to_usize(BLOCK_BYTES));
    }
    (size_bytes <= MAX_PLAIN_BYTES).then_some(MAX_RAW_BYTES)
}

/// A part of the index that is ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedPart {
    /// Number of the part, from 0: names the objects `index-n` and `digest-n`.
    pub number: u32,
    /// Bytes of the object `index-n`.
    pub index: Vec<u8>,
    /// Bytes of the object `digest-n`.
    pub digest: Vec<u8>,
    /// What the manifest says of the part.
    pub reference: IndexPartRef,
}

/// The part being written.
struct OpenPart {
    first_path: String,
    last_path: String,
    entries: u64,
    index: Vec<u8>,
    checksums: Vec<u8>,
    frame_count: u32,
    digest: Vec<u8>,
}

/// Turns entries, pushed in order of path, into parts.
pub struct IndexWriter {
    layer_id: [u8; 16],
    encoder: FrameEncoder,
    part: Option<OpenPart>,
    next_number: u32,
    last_path: Option<String>,
    /// Encoded entries that are not in a frame yet.
    pending: Vec<u8>,
    body: Vec<u8>,
}

impl IndexWriter {
    /// A writer for the layer's index.
    ///
    /// # Errors
    /// When compression cannot be set up.
    pub fn new(layer_id: [u8; 16]) -> Result<Self> {
        Self::with_codec(layer_id, Codec::default())
    }

    /// A writer that compresses the index parts in another way.
    ///
    /// # Errors
    /// When compression cannot be set up.
    pub fn with_codec(layer_id: [u8; 16], codec: Codec) -> Result<Self> {
        Ok(Self {
            layer_id,
            encoder: FrameEncoder::new(codec)?,
            part: None,
            next_number: 0,
            last_path: None,
            pending: Vec::new(),
            body: Vec::new(),
        })
    }

    /// Adds the next entry; `digests` are those of its stored pages when it is a
    /// relation, in the order of its frames, and none otherwise. The entry's
    /// `page_digests` are filled in here. Returns a part when one is full.
    ///
    /// # Errors
    /// When the entry breaks a rule of the format or does not follow the last in order of path.
    pub fn push(&mut self, mut entry: FileEntry, digests: &[u64]) -> Result<Option<FinishedPart>> {
        entry.check()?;
        if let Some(last) = self.last_path.as_ref().filter(|last| **last >= entry.path) {
            return Err(Error::invalid(format!(
                "entry of {:?} does not follow {last:?} in order of path",
                entry.path
            )));
        }
        let expected = digest_count(&entry)?;
        if u32::try_from(digests.len()) != Ok(expected) {
            return Err(Error::invalid(format!(
                "entry of {:?} comes with {} page digests, expected {expected}",
                entry.path,
                digests.len()
            )));
        }
        let part = match &mut self.part {
            Some(part) => part,
            None => self
                .part
                .insert(OpenPart::new(self.layer_id, self.next_number, &entry.path)),
        };
        entry.page_digests = part.append_digests(digests);
        self.body.clear();
        encode_entry(&entry, &part.last_path, &mut self.body);
        if self.body.len() > MAX_ENTRY_BYTES {
            return Err(Error::invalid(format!(
                "entry of {:?} is too large for an index",
                entry.path
            )));
        }
        put_varint(&mut self.pending, to_u64(self.body.len()));
        self.pending.extend_from_slice(&self.body);
        part.entries += 1;
        part.last_path.clone_from(&entry.path);
        self.last_path = Some(entry.path);
        if self.pending.len() >= BLOCK_RAW_BYTES {
            part.append_frames(&mut self.encoder, &mut self.pending)?;
        }
        if part.index.len() >= PART_BYTES || part.digest.len() >= PART_DIGEST_BYTES {
            return self.finish_part();
        }
        Ok(None)
    }

    /// The last part, when entries were pushed since the one before.
    ///
    /// # Errors
    /// When compression fails.
    pub fn finish(mut self) -> Result<Option<FinishedPart>> {
        self.finish_part()
    }

    fn finish_part(&mut self) -> Result<Option<FinishedPart>> {
        let Some(mut part) = self.part.take() else {
            return Ok(None);
        };
        part.append_frames(&mut self.encoder, &mut self.pending)?;
        let number = self.next_number;
        self.next_number += 1;
        let sum = checksum(&[&part.index[..object::HEADER_BYTES], &part.checksums]);
        object::append_trailer(&mut part.index, TRAILER_MAGIC, part.frame_count, sum);
        let reference = IndexPartRef {
            first_path: part.first_path,
            entries: part.entries,
            index_bytes: to_u64(part.index.len()),
            index_digest: contents_hex(&part.index),
            digest_bytes: to_u64(part.digest.len()),
        };
        Ok(Some(FinishedPart {
            number,
            index: part.index,
            digest: part.digest,
            reference,
        }))
    }
}

impl OpenPart {
    fn new(layer_id: [u8; 16], number: u32, first_path: &str) -> Self {
        let mut index = Vec::with_capacity(PART_BYTES + BLOCK_RAW_BYTES);
        let mut digest = Vec::new();
        ObjectHeader {
            magic: MAGIC,
            number,
            layer_id,
        }
        .append_to(&mut index);
        ObjectHeader {
            magic: DIGEST_MAGIC,
            number,
            layer_id,
        }
        .append_to(&mut digest);
        Self {
            first_path: first_path.to_owned(),
            last_path: String::new(),
            entries: 0,
            index,
            checksums: Vec::new(),
            frame_count: 0,
            digest,
        }
    }

    fn append_digests(&mut self, digests: &[u64]) -> DigestRef {
        let start = self.digest.len();
        let offset = to_u64(start) - DIGEST_HEADER_BYTES;
        self.digest
            .extend(digests.iter().flat_map(|digest| digest.to_le_bytes()));
        let count = u32::try_from(digests.len()).expect("counted by the caller");
        let checksum = if count == 0 {
            0
        } else {
            checksum(&[&self.digest[start..]])
        };
        DigestRef {
            offset,
            count,
            checksum,
        }
    }

    fn append_frames(&mut self, encoder: &mut FrameEncoder, pending: &mut Vec<u8>) -> Result<()> {
        for raw in pending.chunks(MAX_RAW_BYTES) {
            let frame = encoder.encode(raw, &mut self.index)?;
            self.checksums
                .extend_from_slice(&frame.checksum.to_le_bytes());
            self.frame_count += 1;
        }
        pending.clear();
        Ok(())
    }
}

/// Digests an entry has: one for each stored page of a relation.
fn digest_count(entry: &FileEntry) -> Result<u32> {
    match entry.kind {
        EntryKind::Directory | EntryKind::Plain => Ok(0),
        EntryKind::Relation => u32::try_from(entry.pages_stored())
            .map_err(|_| Error::invalid(format!("entry of {:?} has too many pages", entry.path))),
    }
}

fn encode_entry(entry: &FileEntry, last_path: &str, out: &mut Vec<u8>) {
    let path = entry.path.as_bytes();
    let shared = path
        .iter()
        .zip(last_path.as_bytes())
        .take_while(|(a, b)| a == b)
        .count();
    put_varint(out, to_u64(shared));
    put_varint(out, to_u64(path.len() - shared));
    out.extend_from_slice(&path[shared..]);
    out.push(match entry.kind {
        EntryKind::Directory => 0,
        EntryKind::Relation => 1,
        EntryKind::Plain => 2,
    });
    put_varint(out, entry.mode.into());
    put_signed(out, entry.modified);
    put_varint(out, entry.size_bytes);
    out.extend_from_slice(&entry.identity.to_le_bytes());
    put_varint(out, entry.inherit_limit.into());
    out.extend_from_slice(
        entry
            .content_digest
            .as_ref()
            .map_or(&[], |digest| &digest[..]),
    );
    encode_frames(&entry.frames, out);
    put_varint(out, to_u64(entry.zero_runs.len()));
    encode_runs(&entry.zero_runs, &mut 0, out);
    if entry.page_digests.count > 0 {
        out.extend_from_slice(&entry.page_digests.checksum.to_le_bytes());
    }
}

fn encode_frames(frames: &[FrameRef], out: &mut Vec<u8>) {
    put_varint(out, to_u64(frames.len()));
    let mut expected = NextFrame::default();
    let mut block = 0;
    for frame in frames {
        put_signed(out, i64::from(frame.pack) - i64::from(expected.pack));
        let offset = expected.offset_in(frame.pack);
        put_signed(out, frame.offset.wrapping_sub(offset).cast_signed());
        put_varint(out, frame.length.into());
        out.extend_from_slice(&frame.checksum.to_le_bytes());
        put_varint(out, to_u64(frame.runs.len()));
        encode_runs(&frame.runs, &mut block, out);
        expected.follow(frame);
    }
}

/// Runs as gap since the last and count less one.
fn encode_runs(runs: &[BlockRun], block: &mut u64, out: &mut Vec<u8>) {
    for run in runs {
        put_varint(out, u64::from(run.start) - *block);
        put_varint(out, u64::from(run.count) - 1);
        *block = run.end();
    }
}

/// Where the next frame of a file most likely lies: right after the last one.
#[derive(Default)]
struct NextFrame {
    pack: u32,
    offset: u64,
}

impl NextFrame {
    fn offset_in(&self, pack: u32) -> u64 {
        if pack == self.pack { self.offset } else { 0 }
    }

    fn follow(&mut self, frame: &FrameRef) {
        self.pack = frame.pack;
        self.offset = frame.offset + u64::from(frame.length);
    }
}

/// Reads the entries of one index part, frame by frame.
pub struct IndexReader {
    number: u32,
    bytes: Bytes,
    /// Offset of the next frame, and of the trailer.
    next_frame: usize,
    frames_end: usize,
    decoder: FrameDecoder,
    frame: Vec<u8>,
    /// Decoded bytes, of which the first `used` are spent.
    decoded: Vec<u8>,
    used: usize,
    last_path: String,
    entries_left: u64,
    digest_offset: u64,
    digest_end: u64,
    finished: bool,
}

impl IndexReader {
    /// Checks a whole part against what the manifest says of it, then reads it.
    ///
    /// # Errors
    /// When the bytes are not that part.
    pub fn new(
        bytes: Bytes,
        layer_id: [u8; 16],
        number: u32,
        reference: &IndexPartRef,
    ) -> Result<Self> {
        let found = contents_hex(&bytes);
        if to_u64(bytes.len()) != reference.index_bytes || found != reference.index_digest {
            return Err(Error::damaged(format!(
                "index part {number} has {} bytes with digest {found}, expected {} with {}",
                bytes.len(),
                reference.index_bytes,
                reference.index_digest
            )));
        }
        let frames_end = check_part(&bytes, layer_id, number)?;
        let digest_end = reference
            .digest_bytes
            .checked_sub(DIGEST_HEADER_BYTES)
            .ok_or_else(|| {
                Error::damaged(format!(
                    "digest part {number} cannot have {} bytes",
                    reference.digest_bytes
                ))
            })?;
        let mut reader = Self {
            number,
            bytes,
            next_frame: object::HEADER_BYTES,
            frames_end,
            decoder: FrameDecoder::new()?,
            frame: Vec::new(),
            decoded: Vec::new(),
            used: 0,
            last_path: String::new(),
            entries_left: reference.entries,
            digest_offset: 0,
            digest_end,
            finished: false,
        };
        reader.check_first_path(&reference.first_path)?;
        Ok(reader)
    }

    /// The manifest's shard directory must lead to the entries that are there.
    fn check_first_path(&mut self, first_path: &str) -> Result<()> {
        let body = self.next_body()?;
        let found = match body {
            Some(range) => decode_entry(&self.decoded[range], "", 0)?.path,
            None => String::new(),
        };
        self.used = 0;
        if found == first_path {
            return Ok(());
        }
        Err(Error::damaged(format!(
            "index part {} begins with {found:?}, expected {first_path:?}",
            self.number
        )))
    }

    fn next_entry(&mut self) -> Result<Option<FileEntry>> {
        let Some(body) = self.next_body()? else {
            return self.check_end().map(|()| None);
        };
        let entry = decode_entry(&self.decoded[body], &self.last_path, self.digest_offset)?;
        if !self.last_path.is_empty() && self.last_path >= entry.path {
            return Err(Error::damaged(format!(
                "has {:?} after {:?}",
                entry.path, self.last_path
            )));
        }
        self.entries_left = self
            .entries_left
            .checked_sub(1)
            .ok_or_else(|| Error::damaged("has more entries than the manifest says"))?;
        self.digest_offset += u64::from(entry.page_digests.count) * 8;
        if self.digest_offset > self.digest_end {
            return Err(Error::damaged(
                "has more page digests than the manifest says",
            ));
        }
        self.last_path.clone_from(&entry.path);
        Ok(Some(entry))
    }

    fn check_end(&self) -> Result<()> {
        if self.entries_left > 0 || self.digest_offset != self.digest_end {
            return Err(Error::damaged(
                "has fewer entries or page digests than the manifest says",
            ));
        }
        Ok(())
    }

    /// Where the next entry's bytes lie in `decoded`; `None` after the last.
    fn next_body(&mut self) -> Result<Option<Range<usize>>> {
        const LONGEST_VARINT: usize = 10;
        self.fill(LONGEST_VARINT)?;
        let available = &self.decoded[self.used..];
        if available.is_empty() {
            return Ok(None);
        }
        let mut cursor = Cursor::new(available);
        let length = cursor.varint_word().map(to_usize)?;
        let prefix = available.len() - cursor.rest().len();
        if length > MAX_ENTRY_BYTES {
            return Err(Error::damaged("has an entry that is too large"));
        }
        // With its length in front of it: whoever reads the entry again begins there.
        self.fill(prefix + length)?;
        let begin = self.used + prefix;
        let body = begin..begin + length;
        if body.end > self.decoded.len() {
            return Err(Error::damaged("ends within an entry"));
        }
        self.used = body.end;
        Ok(Some(body))
    }

    /// Decodes frames until `wanted` bytes are there or no frame is left.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        while self.decoded.len() - self.used < wanted && self.next_frame < self.frames_end {
            let (header, stored, _) = split_checked(&self.bytes[self.next_frame..self.frames_end])?;
            self.decoder.decode(stored, None, &mut self.frame)?;
            self.next_frame += header.length();
            self.decoded.drain(..self.used);
            self.used = 0;
            self.decoded.extend_from_slice(&self.frame);
        }
        Ok(())
    }
}

impl Iterator for IndexReader {
    type Item = Result<FileEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let number = self.number;
        let next = self
            .next_entry()
            .map_err(|e| e.into_damage().within(format_args!("index part {number}")));
        self.finished = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// Checks header, trailer and every frame's checksum; returns the offset of the trailer.
fn check_part(bytes: &[u8], layer_id: [u8; 16], number: u32) -> Result<usize> {
    ObjectHeader {
        magic: MAGIC,
        number,
        layer_id,
    }
    .check(bytes, "index part")?;
    let trailer = object::split_trailer(bytes, TRAILER_MAGIC, "index part")?;
    let mut checksums = Vec::new();
    let mut frame_count = 0;
    let mut rest = trailer.body;
    while !rest.is_empty() {
        let (header, _, after) =
            split_checked(rest).map_err(|e| e.within(format_args!("index part {number}")))?;
        checksums.extend_from_slice(&header.checksum.to_le_bytes());
        frame_count += 1;
        rest = after;
    }
    let sum = checksum(&[&bytes[..object::HEADER_BYTES], &checksums]);
    trailer.check(frame_count, sum, "index part")?;
    Ok(object::HEADER_BYTES + trailer.body.len())
}

fn decode_entry(body: &[u8], last_path: &str, digest_offset: u64) -> Result<FileEntry> {
    let mut cursor = Cursor::new(body);
    let path = decode_path(&mut cursor, last_path)?;
    let mut entry =
        decode_fields(&mut cursor, path, digest_offset).map_err(|e| e.within("entry"))?;
    if !cursor.rest().is_empty() {
        return Err(Error::damaged(format!(
            "entry of {:?} is longer than its contents",
            entry.path
        )));
    }
    entry.check().map_err(Error::into_damage)?;
    let count = digest_count(&entry).map_err(Error::into_damage)?;
    debug_assert_eq!(count, entry.page_digests.count);
    entry.page_digests.count = count;
    Ok(entry)
}

fn decode_path(cursor: &mut Cursor<'_>, last_path: &str) -> Result<String> {
    let shared = to_usize(cursor.varint_word()?);
    let own = to_usize(cursor.varint_word()?);
    let shared = last_path
        .as_bytes()
        .get(..shared)
        .ok_or_else(|| Error::damaged("has a path that continues a longer one than there is"))?;
    if shared.len().saturating_add(own) > MAX_PATH_BYTES {
        return Err(Error::damaged("has a path that is too long"));
    }
    let path = [shared, cursor.take(own)?].concat();
    String::from_utf8(path).map_err(|_| Error::damaged("has a path that is not text"))
}

fn decode_fields(cursor: &mut Cursor<'_>, path: String, digest_offset: u64) -> Result<FileEntry> {
    let kind = match cursor.byte()? {
        0 => EntryKind::Directory,
        1 => EntryKind::Relation,
        2 => EntryKind::Plain,
        other => {
            return Err(Error::damaged(format!(
                "has kind {other}, which does not exist"
            )));
        }
    };
    let mut entry = FileEntry {
        path,
        kind,
        mode: cursor.varint_word()?,
        modified: cursor.signed()?,
        size_bytes: cursor.varint()?,
        identity: cursor.long()?,
        inherit_limit: cursor.varint_word()?,
        content_digest: None,
        frames: Vec::new(),
        zero_runs: Vec::new(),
        page_digests: DigestRef::default(),
    };
    if kind == EntryKind::Plain {
        entry.content_digest = Some(cursor.array()?);
    }
    entry.frames = decode_frames(cursor)?;
    let zero_runs = cursor.varint()?;
    entry.zero_runs = decode_runs(cursor, zero_runs, &mut 0)?;
    let count = digest_count(&entry)?;
    let checksum = if count > 0 { cursor.long()? } else { 0 };
    entry.page_digests = DigestRef {
        offset: digest_offset,
        count,
        checksum,
    };
    Ok(entry)
}

fn decode_frames(cursor: &mut Cursor<'_>) -> Result<Vec<FrameRef>> {
    const FEWEST_BYTES: usize = 14;
    let count = cursor.varint()?;
    let mut frames = Vec::with_capacity(bounded(count, cursor, FEWEST_BYTES)?);
    let mut expected = NextFrame::default();
    let mut block = 0;
    for _ in 0..count {
        let pack = i64::from(expected.pack)
            .checked_add(cursor.signed()?)
            .and_then(|pack| u32::try_from(pack).ok())
            .ok_or_else(|| Error::damaged("has a pack number that is out of range"))?;
        let offset = expected
            .offset_in(pack)
            .wrapping_add(cursor.signed()?.cast_unsigned());
        let length = cursor.varint_word()?;
        if offset.checked_add(length.into()).is_none() {
            return Err(Error::damaged("has a frame that ends beyond any pack"));
        }
        let checksum = cursor.long()?;
        let run_count = cursor.varint()?;
        let runs = decode_runs(cursor, run_count, &mut block)?;
        let frame = FrameRef {
            pack,
            offset,
            length,
            checksum,
            runs,
        };
        expected.follow(&frame);
        frames.push(frame);
    }
    Ok(frames)
}

fn decode_runs(cursor: &mut Cursor<'_>, count: u64, block: &mut u64) -> Result<Vec<BlockRun>> {
    const FEWEST_BYTES: usize = 2;
    let mut runs = Vec::with_capacity(bounded(count, cursor, FEWEST_BYTES)?);
    for _ in 0..count {
        let gap = cursor.varint()?;
        let less_one = cursor.varint_word()?;
        let run = block
            .checked_add(gap)
            .and_then(|start| u32::try_from(start).ok())
            .zip(less_one.checked_add(1))
            .map(|(start, count)| BlockRun { start, count })
            .ok_or_else(|| Error::damaged("has a block number that is out of range"))?;
        *block = run.end();
        runs.push(run);
    }
    Ok(runs)
}

/// A count of things of which each takes at least `fewest` bytes, so that damage
/// cannot ask for memory that the bytes do not justify.
fn bounded(count: u64, cursor: &Cursor<'_>, fewest: usize) -> Result<usize> {
    usize::try_from(count)
        .ok()
        .filter(|&count| count <= cursor.rest().len() / fewest)
        .ok_or_else(|| Error::damaged("has a count that is larger than what follows"))
}

/// The bytes of the digest part that hold a file's digests.
#[must_use]
pub fn digest_range(reference: &DigestRef) -> Range<u64> {
    let start = DIGEST_HEADER_BYTES.saturating_add(reference.offset);
    start..start.saturating_add(u64::from(reference.count) * 8)
}

/// A file's digests out of exactly the bytes of [`digest_range`].
///
/// # Errors
/// When the bytes are not those digests.
pub fn decode_digests(slice: &[u8], reference: &DigestRef) -> Result<Vec<u64>> {
    let found = if slice.is_empty() {
        0
    } else {
        checksum(&[slice])
    };
    let (digests, odd) = slice.as_chunks::<8>();
    if !odd.is_empty() || digests.len() != to_usize(reference.count) || found != reference.checksum
    {
        return Err(Error::damaged(format!(
            "page digests at {} are {} bytes with checksum {found:016x}, expected {} with {:016x}",
            reference.offset,
            slice.len(),
            u64::from(reference.count) * 8,
            reference.checksum
        )));
    }
    Ok(digests.iter().copied().map(u64::from_le_bytes).collect())
}

/// Checks the first [`DIGEST_HEADER_BYTES`] of a digest part.
///
/// # Errors
/// When they do not begin digest part `number` of that layer.
pub fn check_digest_header(bytes: &[u8], layer_id: [u8; 16], number: u32) -> Result<()> {
    ObjectHeader {
        magic: DIGEST_MAGIC,
        number,
        layer_id,
    }
    .check(bytes, "digest part")
}

/// Checks header and length of a digest part; its digests are checked file by
/// file, by [`digests_of`], and leave no byte over.
///
/// # Errors
/// When it is not digest part `number` of that layer, or not as long as the manifest says.
pub fn check_digest_part(
    bytes: &[u8],
    layer_id: [u8; 16],
    number: u32,
    reference: &IndexPartRef,
) -> Result<()> {
    check_digest_header(bytes, layer_id, number)?;
    if to_u64(bytes.len()) == reference.digest_bytes {
        return Ok(());
    }
    Err(Error::damaged(format!(
        "digest part {number} has {} bytes, expected {}",
        bytes.len(),
        reference.digest_bytes
    )))
}

/// A file's digests out of a whole digest part.
///
/// # Errors
/// When the part is another, or too short, or damaged there.
pub fn digests_of(
    digest_part: &[u8],
    layer_id: [u8; 16],
    number: u32,
    reference: &DigestRef,
) -> Result<Vec<u64>> {
    check_digest_header(digest_part, layer_id, number)?;
    let range = digest_range(reference);
    let slice = usize::try_from(range.start)
        .ok()
        .zip(usize::try_from(range.end).ok())
        .and_then(|(start, end)| digest_part.get(start..end))
        .ok_or_else(|| Error::damaged(format!("digest part {number} ends too early")))?;
    decode_digests(slice, reference).map_err(|e| e.within(format_args!("digest part {number}")))
}

#[cfg(test)]
mod tests;
