//! What stands around what is sealed: the preface of a sealed WAL object with the header in it, and the identities that
//! people keep.

use pgstrata_layer::digest;
use pgstrata_layer::seal::{CHUNK_BYTES, Class, Header, Key, ObjectKey, SealedPlace};
use pgstrata_layer::wal;
use pgstrata_store::keys::{Identities, holds_secret, is_recipient, mask, recipient};

use super::input::Input;

/// The store needs much that a fuzzer does not; this file of it needs nothing.
#[path = "../../crates/store/src/archive/preface.rs"]
mod preface;

/// Length and checksum of a chunk, and its tag.
const CHUNK_HEAD_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// As of an identity, in letters and digits.
const OWN: &str = "1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQQPZRY9X8GF2TVDW0S3JN54KHC";

pub fn envelope(bytes: &[u8]) {
    parts(bytes);
    header(bytes);
    small(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        identities(text);
        masked(text);
    }
}

fn key() -> ObjectKey {
    let place = SealedPlace {
        seal_id: [1; 16],
        name: "wal/00000001/000000010000000000000003 header",
    };
    ObjectKey::derive(&Key::new([3; 32]), Class::Catalog, &[7; 16], place)
}

/// What is read of a preface is written so, and nothing of it is lost.
fn parts(bytes: &[u8]) {
    let front = Header::split(bytes).ok().flatten();
    for preface in [Some(bytes), front.map(|(_, preface, _)| preface)] {
        if let Some((first, second)) = preface.and_then(preface::split) {
            assert_eq!(preface::join(first, second), preface.unwrap());
        }
    }
    let (first, second) = bytes.split_at(bytes.len() / 3);
    assert_eq!(
        preface::split(&preface::join(first, second)),
        Some((first, second))
    );
}

/// A sealed header opens, and what it then says may be anything; what was altered does not open.
fn header(bytes: &[u8]) {
    let given = preface::split(bytes).map_or(bytes, |(_, header)| header);
    for stored in [given, &mended(given)] {
        if let Ok(raw) = key().open_small(stored) {
            assert_eq!(key().seal_small(&raw), stored);
            let _ = wal::header(&raw);
        }
    }
    let _ = wal::header(bytes);
}

/// The checksum that the chunk should have; the key stays nobody's.
fn mended(chunk: &[u8]) -> Vec<u8> {
    let mut stored = chunk.to_vec();
    if stored.len() >= CHUNK_HEAD_BYTES + TAG_BYTES {
        let checked = [&stored[..4], &stored[CHUNK_HEAD_BYTES..]].concat();
        stored[4..CHUNK_HEAD_BYTES].copy_from_slice(&digest::page(&checked).to_le_bytes());
    }
    stored
}

fn small(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (at, change, end) = (input.word(), input.byte().max(1), input.byte());
    let raw = input.take(CHUNK_BYTES);
    let stored = key().seal_small(raw);
    assert_eq!(key().open_small(&stored).unwrap(), raw);
    let mut other = stored.clone();
    match end {
        0..=63 => other.truncate(stored.len() - 1 - usize::from(end).min(stored.len() - 1)),
        64..=127 => other.extend(vec![change; usize::from(end) - 63]),
        _ => other[usize::try_from(at).unwrap() % stored.len()] ^= change,
    }
    for other in [mended(&other), other] {
        assert!(other == stored || key().open_small(&other).is_err());
    }
}

/// Identities are read or refused, and an error shows nothing of them. Recipients come back as they are written.
fn identities(text: &str) {
    match Identities::parse(text, "file") {
        Ok(read) => {
            assert!(!read.is_empty());
            for own in read.recipients() {
                assert!(is_recipient(&own));
            }
        }
        Err(error) => assert!(!holds_secret(&error.to_string())),
    }
    if let Ok(own) = recipient(text) {
        assert!(is_recipient(&own));
        assert_eq!(recipient(&own).unwrap(), own);
    }
}

/// No identity is shown, whatever stands around it, and nothing else is taken away.
fn masked(text: &str) {
    let shown = mask(text);
    assert!(!holds_secret(&shown), "{text:?} {shown:?}");
    assert!(holds_secret(text) || shown == text);
    let (before, after) = text.split_at(text.floor_char_boundary(text.len() / 2));
    for begin in ["AGE-SECRET-KEY-", "age-secret-key-"] {
        let planted = format!("{before}{begin}{OWN}{after}");
        assert!(holds_secret(&planted));
        assert!(
            text.contains(OWN) || !mask(&planted).contains(OWN),
            "{planted:?}"
        );
    }
}
