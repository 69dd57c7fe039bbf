//! Entries that are encoded and decoded, and what an entry has room for.

use super::*;
use crate::error::Kind;

fn directory(path: &str) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        kind: EntryKind::Directory,
        mode: 0o700,
        modified: 0,
        size_bytes: 0,
        identity: 0,
        inherit_limit: 0,
        content_digest: None,
        frames: Vec::new(),
        zero_runs: Vec::new(),
        page_digests: DigestRef::default(),
    }
}

#[test]
fn a_path_may_share_half_a_letter_with_the_one_before() {
    let mut body = Vec::new();
    encode_entry(&directory("zo\u{eb}"), "zo\u{e9}", &mut body);
    assert_eq!(body[..2], [3, 1]);
    let path = decode_entry(&body, "zo\u{e9}", 0).unwrap().path;
    assert_eq!(path, "zo\u{eb}");
    // Of a letter that is another's half nothing is text.
    assert!(decode_entry(&body, "zoe\u{e9}", 0).is_err());
}

#[test]
fn a_path_that_leads_out_of_the_target_is_damage() {
    for path in [
        "../evil",
        "/etc/passwd",
        "base/../../evil",
        "base//x",
        "./x",
        "a/.",
    ] {
        let mut body = Vec::new();
        encode_entry(&directory(path), "", &mut body);
        let error = decode_entry(&body, "", 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{path}");
        assert!(error.to_string().contains("plain relative path"), "{error}");
    }
}

/// A plain file of this size whose frames take as many bytes as they may: no frame lies in the same pack as the one before.
fn scattered(size_bytes: u64) -> FileEntry {
    let frame_bytes = plain_frame_bytes(size_bytes).unwrap();
    let block = u64::from(BLOCK_BYTES);
    let word = |number: u64| u32::try_from(number).unwrap();
    let starts = (0..size_bytes).step_by(frame_bytes).enumerate();
    let frames = starts.map(|(nth, start)| {
        let bytes = to_u64(frame_bytes).min(size_bytes - start);
        FrameRef {
            pack: [0, u32::MAX][nth % 2],
            offset: to_u64(object::HEADER_BYTES),
            length: word(bytes) + 24,
            checksum: u64::MAX,
            runs: vec![BlockRun {
                start: word(start / block),
                count: word(bytes.div_ceil(block)),
            }],
        }
    });
    FileEntry {
        kind: EntryKind::Plain,
        size_bytes,
        content_digest: Some([7; 32]),
        frames: frames.collect(),
        ..directory("core.4711")
    }
}

#[test]
fn an_entry_has_room_for_the_frames_of_every_plain_file_that_is_not_refused() {
    const LAYER: [u8; 16] = [7; 16];
    let gib = 1 << 30;
    for size_bytes in [
        gib,
        LARGE_PLAIN_BYTES,
        LARGE_PLAIN_BYTES + 1,
        128 * gib,
        MAX_PLAIN_BYTES,
    ] {
        let mut writer = IndexWriter::new(LAYER).unwrap();
        let part = writer.push(scattered(size_bytes), &[]).unwrap();
        let part = part.or_else(|| writer.finish().unwrap()).unwrap();
        let reader = IndexReader::new(part.index.into(), LAYER, 0, &part.reference);
        let entry = reader.unwrap().next().unwrap().unwrap();
        let blocks = size_bytes.div_ceil(BLOCK_BYTES.into());
        assert_eq!(entry.pages_stored(), blocks, "{size_bytes}");
    }
    let ordinary = [0, 1, gib, LARGE_PLAIN_BYTES].map(plain_frame_bytes);
    assert_eq!(ordinary, [Some(128 << 10); 4]);
    assert_eq!(plain_frame_bytes(MAX_PLAIN_BYTES + 1), None);
}
