//! Sealed objects and secrets: what stands before a key is asked, and that a key opens nothing that was altered.

use bytes::Bytes;
use pgstrata_layer::digest;
use pgstrata_layer::epoch::EpochSecrets;
use pgstrata_layer::seal::{
    self, Class, HEADER_BYTES, Header, Key, ObjectKey, Opener, SealedPlace,
};

use super::input::Input;

const HEADER: Header = Header {
    class: Class::Data,
    epoch: 1,
    salt: [7; 16],
};

/// Length and checksum of a chunk, and its tag.
const CHUNK_HEAD_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

fn key() -> ObjectKey {
    let place = SealedPlace {
        seal_id: [1; 16],
        name: "layer/20261121-093305F/pack-000000",
    };
    ObjectKey::derive(&Key::new([3; 32]), HEADER.class, &HEADER.salt, place)
}

pub fn sealed(bytes: &[u8]) {
    strange(bytes);
    strange(&mended(bytes));
    altered(bytes);
}

/// Secrets of an epoch as they come out of a key box.
pub fn secrets(bytes: &[u8]) {
    if let Ok(read) = EpochSecrets::decode(bytes) {
        let written = read.encode();
        let again = EpochSecrets::decode(written.as_bytes()).unwrap();
        assert_eq!(again.encode(), written);
    }
}

/// However it is read, the same comes of it; and only what was sealed with the key opens.
fn strange(stored: &[u8]) {
    let checked = seal::check(&HEADER, stored);
    let split = Header::split(stored).ok().flatten();
    if let Some((header, preface, chunks)) = split {
        let mut opener = Opener::new(None);
        let step = 1 + chunks.len() / 7;
        let fed = chunks
            .chunks(step)
            .try_for_each(|piece| opener.feed(piece, |_| Ok(())));
        let read = fed.and_then(|()| opener.finish());
        if header == HEADER && preface.is_empty() {
            assert_eq!(read.ok(), checked.as_ref().ok().copied());
        }
    }
    if let Ok(raw) = seal::open(&key(), &HEADER, Bytes::copy_from_slice(stored)) {
        assert_eq!(seal::seal(key(), &HEADER, raw.to_vec()), stored);
        assert_eq!(checked.unwrap(), u64::try_from(raw.len()).unwrap());
    }
}

/// The checksums that header, preface and chunks should have.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut stored = bytes.to_vec();
    if stored.len() < HEADER_BYTES {
        return stored;
    }
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).map(|word| word.try_into().unwrap());
        usize::try_from(word.map_or(0, u32::from_le_bytes)).unwrap()
    };
    let preface = word(&stored, 40).min(stored.len() - HEADER_BYTES);
    let sum = digest::page(&[&stored[..56], &stored[64..64 + preface]].concat());
    stored[56..64].copy_from_slice(&sum.to_le_bytes());
    let mut at = HEADER_BYTES + preface;
    while at + CHUNK_HEAD_BYTES + TAG_BYTES <= stored.len() {
        let length = word(&stored, at) & 0x7fff_ffff;
        let end = at.saturating_add(CHUNK_HEAD_BYTES + TAG_BYTES + length);
        if end > stored.len() {
            break;
        }
        let sum = [&stored[at..at + 4], &stored[at + CHUNK_HEAD_BYTES..end]].concat();
        stored[at + 4..at + CHUNK_HEAD_BYTES].copy_from_slice(&digest::page(&sum).to_le_bytes());
        at = end;
    }
    stored
}

/// A part of an object opens as the whole does; what was changed, cut or lengthened does not open, whatever its checksums say.
fn altered(bytes: &[u8]) {
    let mut input = Input(bytes);
    let times = 1 + input.below(64);
    let (start, length) = (input.word(), input.word());
    let (place, change, end) = (input.word(), input.byte(), input.below(256));
    let raw = input.take(4096).repeat(times);
    let stored = seal::seal(key(), &HEADER, raw.clone());
    let opened = seal::open(&key(), &HEADER, Bytes::copy_from_slice(&stored)).unwrap();
    assert_eq!(opened, raw);
    if !raw.is_empty() {
        let start = usize::try_from(start).unwrap() % raw.len();
        let end = start + 1 + usize::try_from(length).unwrap() % (raw.len() - start);
        let wanted = u64::try_from(start).unwrap()..u64::try_from(end).unwrap();
        let within = seal::stored_range(&wanted);
        let last = usize::try_from(within.end).unwrap().min(stored.len());
        let part = &stored[usize::try_from(within.start).unwrap()..last];
        let part = seal::open_range(&key(), &wanted, Bytes::copy_from_slice(part)).unwrap();
        assert_eq!(part, raw[start..end]);
    }
    let mut other = stored.clone();
    match end {
        0..=63 => other.truncate(stored.len() - 1 - end.min(stored.len() - 1)),
        64..=127 => other.extend(vec![change; end - 63]),
        _ => {
            let place = usize::try_from(place).unwrap() % stored.len();
            other[place] ^= change.max(1);
        }
    }
    for other in [mended(&other), other] {
        if other != stored {
            assert!(seal::open(&key(), &HEADER, Bytes::from(other)).is_err());
        }
    }
}
