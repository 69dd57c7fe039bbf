//! Checksums and digests: XXH3-64 where a disk may rot, BLAKE3 where contents name an object.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::bytes::to_hex;

/// The digest of one page, as kept in digest parts: XXH3-64 of its bytes. The
/// page of a partial last block is the bytes the file has.
#[must_use]
pub fn page(page: &[u8]) -> u64 {
    xxh3_64(page)
}

/// Whether a page is all zeros and so is listed rather than stored.
#[must_use]
pub fn is_zeros(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<32>();
    words.iter().all(|word| word == &[0; 32]) && rest.iter().all(|&byte| byte == 0)
}

/// BLAKE3 of whole contents.
#[must_use]
pub fn contents(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// BLAKE3 of contents that come in pieces, as for [`contents`].
#[derive(Clone, Default)]
pub struct ContentHasher(blake3::Hasher);

impl ContentHasher {
    /// A hasher that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all pieces.
    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// [`contents`] in lower-case hexadecimal.
#[must_use]
pub fn contents_hex(bytes: &[u8]) -> String {
    to_hex(&contents(bytes))
}

/// XXH3-64 over pieces.
pub(crate) fn checksum(pieces: &[&[u8]]) -> u64 {
    let mut state = Xxh3::new();
    for piece in pieces {
        state.update(piece);
    }
    state.digest()
}
