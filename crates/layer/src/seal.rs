//! Sealed objects: what a repository holds of an object that only some may read.
//!
//! The object is cut into chunks. Each is encrypted by itself, so that a part of the object can be read alone, and has
//! a checksum over what is stored, so that rot is found without a key. A key is derived for each object out of a key
//! that many share, a salt and the object's name; the number of the chunk, and whether it is the last, are part of what
//! is authenticated. So bytes that were sealed for one place open nowhere else (`docs/adr/0034-sealed-objects.md`).
//!
//! Invariants:
//! - A derived key seals one object, once: who seals gives a salt that was never used with the same key and name.
//! - Nothing of a chunk is handed out before its tag was checked.
//! - The length of what is stored follows from the length of what was sealed, and from nothing else.

use std::fmt;
use std::ops::Range;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use bytes::{Bytes, BytesMut};
use zeroize::Zeroizing;

use crate::bytes::{Cursor, to_u64, to_usize};
use crate::digest::{checksum, contents};
use crate::error::{Error, Result};

/// Bytes of what is sealed in each chunk but the last: 16 KiB. A frame of 40 KiB costs 15 KiB more of reading, a pack
/// 0.2 % more of room, and the cipher runs at full speed.
pub const CHUNK_BYTES: usize = 16 << 10;

/// Bytes before the preface, or before the first chunk when there is none.
pub const HEADER_BYTES: usize = 64;

/// Bytes that identify a sealed object.
pub const MAGIC: [u8; 8] = *b"PGSTSEAL";

/// No preface is longer: it holds a sealed key and a few fields.
pub const MAX_PREFACE_BYTES: usize = 4 << 10;

const VERSION: u32 = 1;
const CIPHER_AES_256_GCM: u8 = 1;
const CHECKED_HEADER_BYTES: usize = HEADER_BYTES - 8;
/// Length and checksum of a chunk.
const CHUNK_HEAD_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const STORED_CHUNK_BYTES: usize = CHUNK_HEAD_BYTES + CHUNK_BYTES + TAG_BYTES;
/// In the length of a chunk: no chunk follows.
const LAST: u32 = 1 << 31;
const PURPOSE: &[u8] = b"pgstrata seal 1";

/// A secret of 256 bits. Wiped when dropped, and never shown.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// The key with these bits, which must come from a source of randomness for keys.
    #[must_use]
    pub fn new(bits: [u8; 32]) -> Self {
        Self(Zeroizing::new(bits))
    }

    /// The key with the bits in `bytes`; `None` when they are not 32.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::new)
    }

    /// The bits, to be sealed for somebody.
    #[must_use]
    pub fn bits(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Whose key opens an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Pages and WAL: readers alone.
    Data,
    /// What a writer must read again and a keeper must know: readers, keepers and writers.
    Catalog,
}

impl Class {
    const fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Catalog => 2,
        }
    }
}

/// Where an object is, as far as its key depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedPlace<'a> {
    /// Of the cluster's record; see [`crate::cluster::SealRecord`].
    pub seal_id: [u8; 16],
    /// The object's key without the cluster's name and the slash behind it.
    pub name: &'a str,
}

/// Seals or opens the chunks of one object.
pub struct ObjectKey {
    aead: LessSafeKey,
    context: [u8; 32],
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectKey(secret)")
    }
}

impl ObjectKey {
    /// The key of the object at `place`, out of a key that is shared.
    #[must_use]
    pub fn derive(shared: &Key, class: Class, salt: &[u8; 16], place: SealedPlace<'_>) -> Self {
        let name = place.name.as_bytes();
        let code = [class.code()];
        let info = [PURPOSE, &code, &place.seal_id, name];
        let derived = Salt::new(HKDF_SHA256, salt).extract(shared.bits());
        let expanded = derived.expand(&info, &AES_256_GCM);
        let key = expanded.expect("a key is shorter than 255 digests");
        Self {
            aead: LessSafeKey::new(UnboundKey::from(key)),
            context: contents(&[PURPOSE, &code, &place.seal_id, name].concat()),
        }
    }

    /// Seals a few bytes that are an object by themselves, at most one chunk.
    ///
    /// # Panics
    /// When they are more than [`CHUNK_BYTES`].
    #[must_use]
    pub fn seal_small(&self, raw: &[u8]) -> Vec<u8> {
        assert!(raw.len() <= CHUNK_BYTES, "few bytes are sealed so");
        let mut out = Vec::with_capacity(CHUNK_HEAD_BYTES + raw.len() + TAG_BYTES);
        self.seal_chunk(0, true, raw, &mut out);
        out
    }

    /// Opens what [`ObjectKey::seal_small`] made.
    ///
    /// # Errors
    /// When it is damaged, or was sealed for another place.
    pub fn open_small(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        match StoredChunk::split(stored, 0)? {
            Some((chunk, [])) if chunk.is_last => self.open_chunk(0, &chunk, &mut raw)?,
            _ => return Err(Error::damaged("is not one whole chunk")),
        }
        Ok(raw)
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn associated(&self, number: u64, is_last: bool) -> Aad<[u8; 41]> {
        let mut all = [0; 41];
        all[..32].copy_from_slice(&self.context);
        all[32..40].copy_from_slice(&number.to_le_bytes());
        all[40] = u8::from(is_last);
        Aad::from(all)
    }

    /// Appends the chunk with that number to `out`.
    fn seal_chunk(&self, number: u64, is_last: bool, raw: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; CHUNK_HEAD_BYTES]);
        out.extend_from_slice(raw);
        out.extend_from_slice(&[0; TAG_BYTES]);
        self.seal_in_place(number, is_last, &mut out[start..]);
    }

    /// Seals the chunk with that number where it lies: between room for its head and room for its tag.
    fn seal_in_place(&self, number: u64, is_last: bool, chunk: &mut [u8]) {
        let (head, payload) = chunk.split_at_mut(CHUNK_HEAD_BYTES);
        let (raw, tag) = payload.split_at_mut(payload.len() - TAG_BYTES);
        let flag = if is_last { LAST } else { 0 };
        let length = u32::try_from(raw.len()).expect("a chunk is short") | flag;
        let (nonce, associated) = (Self::nonce(number), self.associated(number, is_last));
        let sealed = self.aead.seal_in_place_separate_tag(nonce, associated, raw);
        let found = sealed.expect("a chunk is shorter than the cipher allows");
        tag.copy_from_slice(found.as_ref());
        let sum = checksum(&[&length.to_le_bytes(), payload]);
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Appends what `chunk` holds to `out`.
    fn open_chunk(&self, number: u64, chunk: &StoredChunk<'_>, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.extend_from_slice(chunk.payload);
        let opened = self.open_payload(number, chunk.is_last, &mut out[start..]);
        out.truncate(start + if opened.is_ok() { chunk.raw_length } else { 0 });
        opened
    }

    /// Opens a chunk's ciphertext where it lies, before its tag.
    fn open_payload(&self, number: u64, is_last: bool, payload: &mut [u8]) -> Result<()> {
        let (nonce, associated) = (Self::nonce(number), self.associated(number, is_last));
        match self.aead.open_in_place(nonce, associated, payload) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::damaged(format!(
                "chunk {number} is not what was sealed here: it was altered, or belongs to another place, or the key is not the right one"
            ))),
        }
    }

    /// Opens chunks that lie one behind another, the first of which has that number; what they hold is then at the front
    /// of `stored`. Answers how many bytes that are, and whether the object's last chunk is among them.
    fn open_in_place(&self, mut number: u64, stored: &mut [u8]) -> Result<(usize, bool)> {
        let (mut at, mut opened, mut is_ended) = (0, 0, false);
        while at < stored.len() {
            if is_ended {
                return Err(Error::damaged("goes on after its last chunk"));
            }
            let split = StoredChunk::split(&stored[at..], number)?;
            let (chunk, _) = split.ok_or_else(|| ends_early(number))?;
            let raw = at + CHUNK_HEAD_BYTES..at + CHUNK_HEAD_BYTES + chunk.raw_length;
            is_ended = chunk.is_last;
            at = raw.end + TAG_BYTES;
            self.open_payload(number, is_ended, &mut stored[raw.start..at])?;
            stored.copy_within(raw.clone(), opened);
            opened += raw.len();
            number += 1;
        }
        Ok((opened, is_ended))
    }
}

/// A chunk as it is stored, its checksum checked.
struct StoredChunk<'a> {
    is_last: bool,
    /// Ciphertext and tag.
    payload: &'a [u8],
    raw_length: usize,
}

impl<'a> StoredChunk<'a> {
    /// Splits the chunk with that number off the front; `None` when not all of it is there.
    fn split(stored: &'a [u8], number: u64) -> Result<Option<(Self, &'a [u8])>> {
        let Some((head, rest)) = stored.split_at_checked(CHUNK_HEAD_BYTES) else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(head);
        let (word, expected) = (cursor.word()?, cursor.long()?);
        let (is_last, raw_length) = (word & LAST != 0, to_usize(word & !LAST));
        let fits = match is_last {
            true => raw_length <= CHUNK_BYTES && (raw_length > 0 || number == 0),
            false => raw_length == CHUNK_BYTES,
        };
        if !fits {
            return Err(Error::damaged(format!(
                "chunk {number} says it holds {raw_length} bytes, which cannot be"
            )));
        }
        let Some((payload, rest)) = rest.split_at_checked(raw_length + TAG_BYTES) else {
            return Ok(None);
        };
        let found = checksum(&[&head[..4], payload]);
        if found != expected {
            return Err(Error::damaged(format!(
                "chunk {number} has checksum {found:016x}, expected {expected:016x}"
            )));
        }
        let chunk = Self {
            is_last,
            payload,
            raw_length,
        };
        Ok(Some((chunk, rest)))
    }
}

/// The front of a sealed object: header, preface, and what follows them.
pub type Front<'a> = (Header, &'a [u8], &'a [u8]);

/// The first bytes of a sealed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose key opens it.
    pub class: Class,
    /// The epoch whose key it is, from 1.
    pub epoch: u32,
    /// What the key was derived with: the layer's id, or random.
    pub salt: [u8; 16],
}

impl Header {
    /// The header's bytes, followed by `preface`.
    fn encode(&self, preface: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + preface.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let chunk_bytes = u32::try_from(CHUNK_BYTES).expect("16 KiB");
        out.extend_from_slice(&chunk_bytes.to_le_bytes());
        out.extend_from_slice(&[self.class.code(), CIPHER_AES_256_GCM, 0, 0]);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.salt);
        let length = u32::try_from(preface.len()).expect("a preface is short");
        out.extend_from_slice(&length.to_le_bytes());
        out.resize(CHECKED_HEADER_BYTES, 0);
        let sum = checksum(&[&out, preface]);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(preface);
        out
    }

    /// Reads header and preface at the front of an object; answers also what follows, and `None` when not all is there.
    ///
    /// # Errors
    /// When it is no sealed object, damaged, or of another version.
    pub fn split(stored: &[u8]) -> Result<Option<Front<'_>>> {
        if stored.len() < HEADER_BYTES && MAGIC.starts_with(&stored[..stored.len().min(8)]) {
            return Ok(None);
        }
        let mut cursor = Cursor::new(stored);
        if cursor.array()? != MAGIC {
            return Err(Error::damaged(
                "does not begin as a sealed object does, and everything in this cluster is sealed",
            ));
        }
        let version = cursor.word()?;
        let chunk_bytes = to_usize(cursor.word()?);
        let [class, cipher, reserved @ ..]: [u8; 4] = cursor.array()?;
        let epoch = cursor.word()?;
        let salt = cursor.array()?;
        let preface_bytes = to_usize(cursor.word()?);
        let unused: [u8; 12] = cursor.array()?;
        let expected = cursor.long()?;
        let known =
            version == VERSION && cipher == CIPHER_AES_256_GCM && chunk_bytes == CHUNK_BYTES;
        if !known {
            return Err(Error::unsupported(format!(
                "is sealed in version {version} with cipher {cipher} in chunks of {chunk_bytes} bytes, which this version does not know"
            )));
        }
        if preface_bytes > MAX_PREFACE_BYTES {
            return Err(Error::damaged("has a header that makes no sense"));
        }
        let Some((preface, rest)) = cursor.rest().split_at_checked(preface_bytes) else {
            return Ok(None);
        };
        let found = checksum(&[&stored[..CHECKED_HEADER_BYTES], preface]);
        if found != expected {
            return Err(Error::damaged(format!(
                "has a header with checksum {found:016x}, expected {expected:016x}"
            )));
        }
        let class = match class {
            1 => Class::Data,
            2 => Class::Catalog,
            _ => return Err(Error::damaged("has a header that makes no sense")),
        };
        if reserved != [0; 2] || unused != [0; 12] || epoch == 0 {
            return Err(Error::damaged("has a header that makes no sense"));
        }
        Ok(Some((Self { class, epoch, salt }, preface, rest)))
    }
}

/// Whether an object says that it is sealed.
#[must_use]
pub fn is_sealed(stored: &[u8]) -> bool {
    stored.starts_with(&MAGIC)
}

/// Bytes of a sealed object without preface that holds `raw_bytes`.
#[must_use]
pub fn stored_bytes(raw_bytes: u64) -> u64 {
    let chunk = to_u64(CHUNK_BYTES);
    let chunks = raw_bytes.div_ceil(chunk).max(1);
    to_u64(HEADER_BYTES) + raw_bytes + chunks * to_u64(CHUNK_HEAD_BYTES + TAG_BYTES)
}

/// Where in a sealed object without preface the chunks lie that hold these bytes, of which there is at least one. The
/// object may end before: its last chunk need not be full.
#[must_use]
pub fn stored_range(raw: &Range<u64>) -> Range<u64> {
    let at = |chunk: u64| to_u64(HEADER_BYTES) + chunk * to_u64(STORED_CHUNK_BYTES);
    let chunk = to_u64(CHUNK_BYTES);
    at(raw.start / chunk)..at(raw.end.div_ceil(chunk))
}

/// Opens those of an object's bytes for which `stored` was read as [`stored_range`] says, in the memory that holds them.
///
/// # Errors
/// When it is damaged, or ends before them.
pub fn open_range(key: &ObjectKey, raw: &Range<u64>, stored: Bytes) -> Result<Bytes> {
    let chunk = to_u64(CHUNK_BYTES);
    let mut memory = to_mut(stored);
    let (opened, _) = key.open_in_place(raw.start / chunk, &mut memory)?;
    let start = raw.start % chunk;
    let end = start.saturating_add(raw.end.saturating_sub(raw.start));
    if to_u64(opened) < end {
        return Err(ends_early((raw.start - start + to_u64(opened)) / chunk));
    }
    let within = |at: u64| usize::try_from(at).expect("no more than what is in memory");
    Ok(memory.freeze().slice(within(start)..within(end)))
}

/// The same bytes, copied only when somebody else still has them.
fn to_mut(stored: Bytes) -> BytesMut {
    stored
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

fn ends_early(number: u64) -> Error {
    Error::damaged(format!("ends too early, in chunk {number}"))
}

/// Seals an object that comes in pieces.
#[derive(Debug)]
pub struct Sealer {
    key: ObjectKey,
    number: u64,
    /// At most one chunk: it may turn out to be the last.
    pending: Vec<u8>,
    out: Vec<u8>,
}

impl Sealer {
    /// Begins the object with that header; `key` was derived as the header says.
    #[must_use]
    pub fn new(key: ObjectKey, header: &Header, preface: &[u8]) -> Self {
        Self {
            key,
            number: 0,
            pending: Vec::new(),
            out: header.encode(preface),
        }
    }

    /// Appends the next bytes.
    pub fn append(&mut self, mut raw: &[u8]) {
        while !raw.is_empty() {
            if self.pending.is_empty() && raw.len() > CHUNK_BYTES {
                let (chunk, rest) = raw.split_at(CHUNK_BYTES);
                self.key
                    .seal_chunk(self.number, false, chunk, &mut self.out);
                self.number += 1;
                raw = rest;
                continue;
            }
            if self.pending.len() == CHUNK_BYTES {
                self.key
                    .seal_chunk(self.number, false, &self.pending, &mut self.out);
                self.number += 1;
                self.pending.clear();
                continue;
            }
            let taken = raw.len().min(CHUNK_BYTES - self.pending.len());
            self.pending.extend_from_slice(&raw[..taken]);
            raw = &raw[taken..];
        }
    }

    /// What is known of the object by now, after what was taken before.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The object, without what was taken.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.key
            .seal_chunk(self.number, true, &self.pending, &mut self.out);
        self.out
    }
}

/// Seals a whole object, in the memory that holds it: another copy of a pack would cost more than its cipher.
#[must_use]
pub fn seal(key: ObjectKey, header: &Header, raw: Vec<u8>) -> Vec<u8> {
    let raw_bytes = raw.len();
    let chunks = raw_bytes.div_ceil(CHUNK_BYTES).max(1);
    let mut out = raw;
    let more = HEADER_BYTES + chunks * (CHUNK_HEAD_BYTES + TAG_BYTES);
    out.reserve_exact(more);
    out.resize(raw_bytes + more, 0);
    // The last one moves first: each goes to where none lies that is still to move.
    for number in (0..chunks).rev() {
        let from = number * CHUNK_BYTES..raw_bytes.min((number + 1) * CHUNK_BYTES);
        let place = HEADER_BYTES + number * STORED_CHUNK_BYTES;
        let end = place + CHUNK_HEAD_BYTES + from.len() + TAG_BYTES;
        out.copy_within(from, place + CHUNK_HEAD_BYTES);
        key.seal_in_place(to_u64(number), number + 1 == chunks, &mut out[place..end]);
    }
    out[..HEADER_BYTES].copy_from_slice(&header.encode(&[]));
    out
}

/// Opens the chunks of an object that come in pieces, from the first one on.
#[derive(Debug)]
pub struct Opener {
    key: Option<ObjectKey>,
    number: u64,
    pending: Vec<u8>,
    raw: Vec<u8>,
    raw_bytes: u64,
    is_ended: bool,
}

impl Opener {
    /// Opens with `key`; without one, checks what can be checked without.
    #[must_use]
    pub fn new(key: Option<ObjectKey>) -> Self {
        Self {
            key,
            number: 0,
            pending: Vec::new(),
            raw: Vec::new(),
            raw_bytes: 0,
            is_ended: false,
        }
    }

    /// Takes what follows header and preface, and hands out what was sealed; nothing when there is no key.
    ///
    /// # Errors
    /// When it is damaged or was not sealed for this place, and those of `sink`.
    pub fn feed(&mut self, stored: &[u8], mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(stored);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            if self.is_ended {
                return Err(Error::damaged("goes on after its last chunk"));
            }
            let Some((chunk, after)) = StoredChunk::split(rest, self.number)? else {
                break;
            };
            if let Some(key) = &self.key {
                self.raw.clear();
                key.open_chunk(self.number, &chunk, &mut self.raw)?;
                sink(&self.raw)?;
            }
            self.raw_bytes += to_u64(chunk.raw_length);
            self.is_ended = chunk.is_last;
            self.number += 1;
            rest = after;
        }
        let left = pending.len() - rest.len();
        pending.drain(..left);
        self.pending = pending;
        Ok(())
    }

    /// Checks that the object ended where it should; answers how many bytes were sealed in it.
    ///
    /// # Errors
    /// When it is cut.
    pub fn finish(self) -> Result<u64> {
        match self.is_ended && self.pending.is_empty() {
            true => Ok(self.raw_bytes),
            false => Err(ends_early(self.number)),
        }
    }
}

/// Opens a whole object without preface, in the memory that holds it.
///
/// # Errors
/// When it is damaged, has another header, or was not sealed for this place.
pub fn open(key: &ObjectKey, expected: &Header, stored: Bytes) -> Result<Bytes> {
    expect_header(expected, &stored)?;
    let mut memory = to_mut(stored);
    let (opened, is_ended) = key.open_in_place(0, &mut memory[HEADER_BYTES..])?;
    match is_ended {
        true => Ok(memory.freeze().slice(HEADER_BYTES..HEADER_BYTES + opened)),
        false => Err(ends_early(to_u64(opened / CHUNK_BYTES))),
    }
}

/// Checks a whole object without preface as far as that needs no key; answers how many bytes are sealed in it.
///
/// # Errors
/// When it is damaged or has another header.
pub fn check(expected: &Header, stored: &[u8]) -> Result<u64> {
    check_chunks(expect_header(expected, stored)?)
}

/// The same for an object of which the header is not known; answers that.
///
/// # Errors
/// When it is damaged.
pub fn check_any(stored: &[u8]) -> Result<Header> {
    let (header, _, chunks) = whole_front(stored)?;
    check_chunks(chunks).map(|_| header)
}

fn check_chunks(chunks: &[u8]) -> Result<u64> {
    let mut opener = Opener::new(None);
    opener.feed(chunks, |_| Ok(()))?;
    opener.finish()
}

fn whole_front(stored: &[u8]) -> Result<Front<'_>> {
    let front = Header::split(stored)?;
    front.ok_or_else(|| Error::damaged("ends too early, in its header"))
}

fn expect_header<'a>(expected: &Header, stored: &'a [u8]) -> Result<&'a [u8]> {
    let (header, preface, chunks) = whole_front(stored)?;
    if header != *expected || !preface.is_empty() {
        return Err(Error::damaged(
            "was sealed for another layer, in another epoch or for other readers",
        ));
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = Header {
        class: Class::Data,
        epoch: 1,
        salt: [7; 16],
    };

    fn reopen(name: &str, stored: &[u8]) -> Result<Vec<u8>> {
        let opened = open(&key(name), &HEADER, Bytes::copy_from_slice(stored))?;
        Ok(opened.to_vec())
    }

    fn key(name: &str) -> ObjectKey {
        let place = SealedPlace {
            seal_id: [1; 16],
            name,
        };
        ObjectKey::derive(&Key::new([3; 32]), HEADER.class, &HEADER.salt, place)
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length)
            .map(|n| u8::try_from((n * n / 61) % 251).unwrap())
            .collect()
    }

    /// Lengths at which something changes.
    fn lengths() -> impl Strategy<Value = usize> {
        let edge = (0..4_usize, 0..3_usize)
            .prop_map(|(chunks, beside)| (chunks * CHUNK_BYTES + beside).saturating_sub(1));
        prop_oneof![edge, 0..3 * CHUNK_BYTES]
    }

    proptest! {
        #[test]
        fn what_was_sealed_comes_back_in_whatever_pieces(length in lengths(), step in 1..50_000_usize) {
            let raw = bytes(length);
            let stored = seal(key("a"), &HEADER, raw.clone());
            prop_assert_eq!(to_u64(stored.len()), stored_bytes(to_u64(length)));
            prop_assert_eq!(&reopen("a", &stored).unwrap(), &raw);
            prop_assert_eq!(check(&HEADER, &stored).unwrap(), to_u64(length));
            let mut sealer = Sealer::new(key("a"), &HEADER, &[]);
            let mut pieces = Vec::new();
            for piece in raw.chunks(step) {
                sealer.append(piece);
                pieces.extend(sealer.take());
            }
            pieces.extend(sealer.finish());
            prop_assert_eq!(&pieces, &stored);
            let mut opener = Opener::new(Some(key("a")));
            let mut opened = Vec::new();
            for piece in stored[HEADER_BYTES..].chunks(step) {
                opener.feed(piece, |raw| { opened.extend_from_slice(raw); Ok(()) }).unwrap();
            }
            prop_assert_eq!(opener.finish().unwrap(), to_u64(length));
            prop_assert_eq!(opened, raw);
        }

        #[test]
        fn any_part_is_read_alone(length in lengths(), from in 0..50_000_u64, count in 1..50_000_u64) {
            prop_assume!(length > 0);
            let raw = bytes(length);
            let stored = seal(key("a"), &HEADER, raw.clone());
            let start = from % to_u64(length);
            let range = start..(start + count).min(to_u64(length));
            let place = stored_range(&range);
            let end = place.end.min(to_u64(stored.len()));
            let part = &stored[usize::try_from(place.start).unwrap()..usize::try_from(end).unwrap()];
            let read = open_range(&key("a"), &range, Bytes::copy_from_slice(part)).unwrap();
            let (from, to) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
            prop_assert_eq!(&read[..], &raw[from..to]);
            // Elsewhere in the object the same bytes open nothing.
            if place.start > to_u64(HEADER_BYTES) {
                let moved = range.start - to_u64(CHUNK_BYTES)..range.end - to_u64(CHUNK_BYTES);
                prop_assert!(open_range(&key("a"), &moved, Bytes::copy_from_slice(part)).is_err());
            }
        }

        #[test]
        fn a_flip_of_any_bit_and_a_cut_anywhere_is_damage(length in lengths(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let stored = seal(key("a"), &HEADER, bytes(length));
            let at = at.index(stored.len());
            let mut flipped = stored.clone();
            flipped[at] ^= 1_u8 << bit;
            prop_assert!(reopen("a", &flipped).is_err());
            prop_assert!(check(&HEADER, &flipped).is_err());
            prop_assert!(reopen("a", &stored[..at]).is_err());
            prop_assert!(check(&HEADER, &stored[..at]).is_err());
        }
    }

    /// Gives every chunk the checksum of what it holds, as somebody would who alters it on purpose.
    fn with_checksums(mut stored: Vec<u8>) -> Vec<u8> {
        let mut at = HEADER_BYTES;
        while at < stored.len() {
            let end = (at + STORED_CHUNK_BYTES).min(stored.len());
            let sum = checksum(&[&stored[at..at + 4], &stored[at + CHUNK_HEAD_BYTES..end]]);
            stored[at + 4..at + CHUNK_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
            at = end;
        }
        stored
    }

    #[test]
    fn what_was_forged_with_good_checksums_does_not_open() {
        let stored = seal(key("a"), &HEADER, bytes(3 * CHUNK_BYTES));
        let chunk = |n: usize| HEADER_BYTES + n * STORED_CHUNK_BYTES;
        let refuse = |forged: Vec<u8>, what: &str| {
            let forged = with_checksums(forged);
            assert!(check(&HEADER, &forged).is_ok(), "{what}: not forged well");
            let error = reopen("a", &forged).unwrap_err();
            assert!(error.to_string().contains("altered"), "{what}: {error}");
        };
        let mut flipped = stored.clone();
        flipped[chunk(1) + 100] ^= 1;
        refuse(flipped, "a flip");
        let mut swapped = stored[..chunk(0)].to_vec();
        swapped.extend_from_slice(&stored[chunk(1)..chunk(2)]);
        swapped.extend_from_slice(&stored[chunk(0)..chunk(1)]);
        swapped.extend_from_slice(&stored[chunk(2)..]);
        refuse(swapped, "two chunks swapped");
        let mut cut = stored[..chunk(2)].to_vec();
        cut[chunk(1) + 3] |= 0x80;
        refuse(cut, "cut, and the chunk before called the last");
        let mut shorter = stored[..chunk(1)].to_vec();
        shorter.extend_from_slice(&stored[chunk(2)..]);
        refuse(shorter, "a chunk left out");
        refuse(seal(key("b"), &HEADER, bytes(10)), "another object");
    }

    #[test]
    fn a_key_depends_on_everything_that_says_what_an_object_is() {
        let shared = Key::new([3; 32]);
        let place = |seal_id, name| SealedPlace { seal_id, name };
        let stored = seal(key("a"), &HEADER, b"page".to_vec());
        let others = [
            ObjectKey::derive(
                &Key::new([4; 32]),
                Class::Data,
                &[7; 16],
                place([1; 16], "a"),
            ),
            ObjectKey::derive(&shared, Class::Catalog, &[7; 16], place([1; 16], "a")),
            ObjectKey::derive(&shared, Class::Data, &[8; 16], place([1; 16], "a")),
            ObjectKey::derive(&shared, Class::Data, &[7; 16], place([2; 16], "a")),
            ObjectKey::derive(&shared, Class::Data, &[7; 16], place([1; 16], "b")),
        ];
        for other in others {
            assert!(open(&other, &HEADER, Bytes::from(stored.clone())).is_err());
        }
        assert_eq!(reopen("a", &stored).unwrap(), b"page");
        assert_eq!(format!("{shared:?}"), "Key(secret)");
    }

    #[test]
    fn a_header_comes_back_with_its_preface_and_no_byte_of_it_changes_unseen() {
        let stored = Sealer::new(key("a"), &HEADER, b"preface").finish();
        let (header, preface, rest) = Header::split(&stored).unwrap().unwrap();
        assert_eq!((header, preface), (HEADER, &b"preface"[..]));
        assert_eq!(rest.len(), CHUNK_HEAD_BYTES + TAG_BYTES);
        let end = HEADER_BYTES + preface.len();
        for at in 0..end {
            let mut flipped = stored.clone();
            flipped[at] ^= 0x10;
            assert!(!matches!(Header::split(&flipped), Ok(Some(_))), "byte {at}");
            assert!(
                !matches!(Header::split(&stored[..at]), Ok(Some(_))),
                "cut to {at}"
            );
        }
    }
}
