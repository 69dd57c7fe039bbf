//! Objects of a repository that are made of frames.

use bytes::Bytes;
use pgstrata_layer::digest;
use pgstrata_layer::entry::{DigestRef, FileEntry};
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder, FrameHeader, HEADER_BYTES};
use pgstrata_layer::index::{
    FinishedPart, IndexReader, IndexWriter, check_digest_part, decode_digests, digest_range,
    digests_of,
};
use pgstrata_layer::manifest::IndexPartRef;
use pgstrata_layer::pack::verify_pack;
use pgstrata_layer::{merge, overlay, wal};

use super::input::Input;

const ID: [u8; 16] = [0; 16];
/// Of packs and index parts: magic, version, number, layer.
const OBJECT_HEADER_BYTES: usize = 32;
/// Magic, count of frames, reserved, checksum.
const TRAILER_BYTES: usize = 24;
/// Of a WAL object, without its checksum.
const WAL_CHECKED_BYTES: usize = 128 - 8;

pub fn frame(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    mend_frames(&mut mended, 0);
    let mut decoder = FrameDecoder::new().unwrap();
    let mut out = Vec::new();
    for stored in [bytes, &mended] {
        if decoder.decode(stored, None, &mut out).is_ok() {
            assert_eq!(
                u32::try_from(out.len()).unwrap(),
                FrameHeader::parse(stored).unwrap().raw_length
            );
        }
    }
}

/// Gives each frame from `start` on the checksum that it should have; returns them, and where the last one ends.
fn mend_frames(bytes: &mut [u8], start: usize) -> (Vec<u8>, usize) {
    let (mut checksums, mut at) = (Vec::new(), start);
    while let Ok(header) = FrameHeader::parse(&bytes[at..])
        && let Some(frame) = bytes[at..].get_mut(..header.length())
    {
        let checked = [&frame[..16], &frame[HEADER_BYTES..]].concat();
        let sum = digest::page(&checked).to_le_bytes();
        frame[16..HEADER_BYTES].copy_from_slice(&sum);
        checksums.extend_from_slice(&sum);
        at += header.length();
    }
    (checksums, at)
}

/// The header, the frames' checksums and the trailer as they should be.
fn mend_object(bytes: &mut [u8], magic: [u8; 8], trailer: [u8; 8]) {
    if bytes.len() < OBJECT_HEADER_BYTES + TRAILER_BYTES {
        return;
    }
    let header = [&magic[..], &1_u32.to_le_bytes(), &[0; 4], &ID].concat();
    bytes[..OBJECT_HEADER_BYTES].copy_from_slice(&header);
    let (sums, end) = mend_frames(bytes, OBJECT_HEADER_BYTES);
    if end + TRAILER_BYTES > bytes.len() {
        return;
    }
    let count = u32::try_from(sums.len() / 8).unwrap();
    let sum = digest::page(&[&header[..], &sums].concat());
    let trailer = [
        &trailer[..],
        &count.to_le_bytes(),
        &[0; 4],
        &sum.to_le_bytes(),
    ]
    .concat();
    let last = bytes.len() - TRAILER_BYTES;
    bytes[last..].copy_from_slice(&trailer);
}

pub fn pack(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    mend_object(&mut mended, *b"PGSTPACK", *b"PGSPEND1");
    let mut decoder = FrameDecoder::new().unwrap();
    let mut out = Vec::new();
    for bytes in [bytes, &mended] {
        let summary = verify_pack(bytes, ID, 0, |_, frame| {
            decoder.decode(frame, None, &mut out)
        });
        if let Ok(summary) = summary {
            assert!(summary.frame_count > 0 || bytes.len() == OBJECT_HEADER_BYTES + TRAILER_BYTES);
        }
    }
}

/// An index part whose entries are these bytes.
fn index_part(
    entries: &[u8],
    count: u64,
    digest_bytes: u64,
    first_path: &str,
) -> (Bytes, IndexPartRef) {
    let mut object = [b"PGSTINDX".as_slice(), &1_u32.to_le_bytes(), &[0; 4], &ID].concat();
    let mut encoder = FrameEncoder::new(Codec::None).unwrap();
    for piece in entries.chunks(1 << 16) {
        encoder.encode(piece, &mut object).unwrap();
    }
    object.extend_from_slice(&[0; TRAILER_BYTES]);
    mend_object(&mut object, *b"PGSTINDX", *b"PGSXEND1");
    let reference = IndexPartRef {
        first_path: first_path.to_owned(),
        entries: count,
        index_bytes: u64::try_from(object.len()).unwrap(),
        index_digest: digest::contents_hex(&object),
        digest_bytes,
    };
    (Bytes::from(object), reference)
}

/// The entries that can be read out of these bytes, until one cannot. What the manifest says is believed to be right.
fn entries_of(bytes: &[u8]) -> Vec<FileEntry> {
    let read = |first_path: &str| {
        let (object, reference) = index_part(bytes, u64::MAX, u64::MAX, first_path);
        IndexReader::new(object, ID, 0, &reference)
    };
    let reader = read("").or_else(|error| {
        // The reader says what the first path is.
        let message = error.to_string();
        let path = message.split('"').nth(1).unwrap_or_default().to_owned();
        read(&path)
    });
    let entries = reader.into_iter().flatten();
    entries.map_while(Result::ok).collect()
}

pub fn index(bytes: &[u8]) {
    let (object, reference) = index_part(bytes, 1, 40, "base/5/1");
    for object in [object, Bytes::copy_from_slice(bytes)] {
        if let Ok(reader) = IndexReader::new(object, ID, 0, &reference) {
            reader.take(1 << 16).for_each(drop);
        }
    }
    let entries = entries_of(bytes);
    // What is read can be written, and is then read again as it was.
    let mut writer = IndexWriter::new(ID).unwrap();
    let mut parts: Vec<FinishedPart> = Vec::new();
    let mut written = Vec::new();
    for entry in entries {
        let count = usize::try_from(entry.page_digests.count).unwrap();
        if count > 4096 {
            break;
        }
        let digests = vec![7; count];
        parts.extend(writer.push(entry.clone(), &digests).unwrap());
        written.push(entry);
    }
    parts.extend(writer.finish().unwrap());
    let read = parts.iter().flat_map(|part| {
        let index = Bytes::from(part.index.clone());
        IndexReader::new(index, ID, part.number, &part.reference).unwrap()
    });
    let without_digests = |mut entry: FileEntry| {
        entry.page_digests = DigestRef::default();
        entry
    };
    let read: Vec<FileEntry> = read.map(|entry| without_digests(entry.unwrap())).collect();
    let written: Vec<FileEntry> = written.into_iter().map(without_digests).collect();
    assert_eq!(read, written);
}

/// The entries that a stranger's layers have of one file, planned as by a restore, a comparison and a merge.
pub fn chain(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut entries = Vec::new();
    while !input.is_empty() && entries.len() < 4 {
        let length = input.below(256);
        let found = entries_of(input.take(length)).into_iter().next();
        entries.push(found.map(|entry| FileEntry {
            path: "base/5/1".to_owned(),
            ..entry
        }));
    }
    let chain = overlay::chain_of(&entries);
    if chain.is_empty() {
        return;
    }
    let plan = overlay::plan_file(&chain);
    let digests = overlay::digest_sources(&chain);
    let merged = merge::plan_file(&chain, entries.len(), false);
    // What can be restored can be compared and merged.
    if plan.is_ok() {
        assert!(digests.is_ok(), "{digests:?}");
        drop(merged);
    }
}

pub fn digest(bytes: &[u8]) {
    let mut input = Input(bytes);
    let offset = u64::from(input.word()) << input.below(40);
    let count = input.word() >> input.below(33).min(31);
    let rest = input.0;
    let reference = DigestRef {
        offset,
        count,
        checksum: if rest.is_empty() {
            0
        } else {
            digest::page(rest)
        },
    };
    let range = digest_range(&reference);
    assert!(range.start <= range.end);
    if let Ok(digests) = decode_digests(rest, &reference) {
        assert_eq!(digests.len() * 8, rest.len());
    }
    let part = [
        b"PGSTDGST".as_slice(),
        &1_u32.to_le_bytes(),
        &[0; 4],
        &ID,
        rest,
    ]
    .concat();
    for part in [bytes, &part] {
        digests_of(part, ID, 0, &reference).ok();
        let reference = IndexPartRef {
            first_path: String::new(),
            entries: 0,
            index_bytes: 0,
            index_digest: String::new(),
            digest_bytes: u64::try_from(part.len()).unwrap(),
        };
        check_digest_part(part, ID, 0, &reference).ok();
    }
}

pub fn wal_object(bytes: &[u8]) {
    const NAME: &str = "000000010000000000000003";
    let mut mended = bytes.to_vec();
    if let Some((header, rest)) = mended.split_at_mut_checked(WAL_CHECKED_BYTES)
        && rest.len() >= 8
    {
        rest[..8].copy_from_slice(&digest::page(header).to_le_bytes());
        let (sums, end) = mend_frames(&mut mended, WAL_CHECKED_BYTES + 8);
        let header = mended[..WAL_CHECKED_BYTES + 8].to_vec();
        if end + 16 <= mended.len() {
            mended.truncate(end + 16);
            mended[end..end + 8].copy_from_slice(b"PGSWEND1");
            let sum = digest::page(&[&header[..], &sums].concat());
            mended[end + 8..].copy_from_slice(&sum.to_le_bytes());
        }
    }
    for bytes in [bytes, &mended] {
        wal::header(bytes).ok();
        let whole = wal::decode(NAME, bytes);
        // However it comes, it is the same.
        let mut reader = wal::WalReader::new(NAME);
        let mut pieces = Vec::new();
        let step = bytes.first().map_or(1, |first| usize::from(*first) + 1);
        let fed = bytes
            .chunks(step)
            .try_for_each(|piece| reader.feed(piece, |raw| pieces.extend_from_slice(raw)));
        let read = fed.and_then(|()| reader.finish());
        assert_eq!(read.is_ok(), whole.is_ok(), "{read:?}");
        if let Ok(whole) = whole {
            assert_eq!(whole, pieces);
        }
    }
}
