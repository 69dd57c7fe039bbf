//! CRC32C of a file put together from pieces: read, known from before, or runs of zeros.

use crc_fast::{CrcAlgorithm, Digest};

/// Polynomial of CRC32C, bits reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `x^1` in the reflected form, in which the highest bit is `x^0`.
const X: u32 = 1 << 30;

/// `x^(2^n)` modulo the polynomial. The order of `x` divides `2^32 - 1`, so 32 of them repeat for ever.
const POWERS: [u32; 32] = {
    let mut powers = [X; 32];
    let mut n = 1;
    while n < 32 {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Product of two polynomials modulo [`POLYNOMIAL`].
const fn multiply(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if left & bit != 0 {
            product ^= right;
        }
        right = if right & 1 == 0 {
            right >> 1
        } else {
            right >> 1 ^ POLYNOMIAL
        };
        bit >>= 1;
    }
    product
}

/// `register` after `size_bytes` bytes of zeros went through it.
fn shift(mut register: u32, mut size_bytes: u64) -> u32 {
    // Eight bits a byte: begin with x^(2^3).
    let mut n = 3;
    while size_bytes != 0 {
        if size_bytes & 1 == 1 {
            register = multiply(POWERS[n % 32], register);
        }
        size_bytes >>= 1;
        n += 1;
    }
    register
}

/// CRC32C and length of a sequence of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChecksum {
    crc: u32,
    size_bytes: u64,
}

impl Default for FileChecksum {
    fn default() -> Self {
        Self::new()
    }
}

impl FileChecksum {
    /// That of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            crc: 0,
            size_bytes: 0,
        }
    }

    /// That of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut checksum = Self::new();
        checksum.update(bytes);
        checksum
    }

    /// One that was computed before.
    #[must_use]
    pub const fn from_parts(crc: u32, size_bytes: u64) -> Self {
        Self { crc, size_bytes }
    }

    /// Appends `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest =
            Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.crc));
        digest.update(bytes);
        self.crc = u32::try_from(digest.finalize()).expect("CRC32C has 32 bits");
        self.size_bytes = self
            .size_bytes
            .saturating_add(u64::try_from(bytes.len()).expect("usize has 64 bits"));
    }

    /// Appends `size_bytes` zeros, in time proportional to the logarithm of their number.
    pub fn zeros(&mut self, size_bytes: u64) {
        self.crc = !shift(!self.crc, size_bytes);
        self.size_bytes = self.size_bytes.saturating_add(size_bytes);
    }

    /// Appends the bytes that `next` is the checksum of.
    pub fn append(&mut self, next: &Self) {
        self.crc = shift(self.crc, next.size_bytes) ^ next.crc;
        self.size_bytes = self.size_bytes.saturating_add(next.size_bytes);
    }

    /// The CRC32C.
    #[must_use]
    pub const fn crc(&self) -> u32 {
        self.crc
    }

    /// How many bytes it covers.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The CRC as `backup_manifest` writes it: the bytes of the integer in memory order, low byte first.
    #[must_use]
    pub fn to_manifest_hex(&self) -> String {
        format!("{:08x}", self.crc.swap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_catalogue() {
        assert_eq!(FileChecksum::of(b"123456789").crc(), 0xE306_9283);
        assert_eq!(FileChecksum::new().crc(), 0);
    }

    #[test]
    fn zeros_are_zeros_however_appended() {
        let long = vec![0; 100_000];
        for count in [0, 1, 2, 3, 7, 8, 255, 8192, 65_537, 100_000] {
            let mut read = FileChecksum::of(b"before");
            read.update(&long[..count]);
            let mut run = FileChecksum::of(b"before");
            run.zeros(u64::try_from(count).unwrap());
            assert_eq!(run, read, "{count} zeros");
        }
    }

    #[test]
    fn long_runs_are_sums_of_shorter_ones() {
        let mut whole = FileChecksum::of(b"x");
        whole.zeros(10 << 40);
        let mut parts = FileChecksum::of(b"x");
        for _ in 0..10 {
            parts.zeros(1 << 40);
        }
        assert_eq!(whole, parts);
        let mut appended = FileChecksum::of(b"x");
        let mut zeros = FileChecksum::new();
        zeros.zeros(10 << 40);
        appended.append(&zeros);
        assert_eq!(whole, appended);
    }

    #[test]
    fn combining_is_that_of_the_crc_library() {
        let (left, right) = (b"left part".as_slice(), vec![0xA5; 70_000]);
        let mut combined = FileChecksum::of(left);
        combined.append(&FileChecksum::of(&right));
        let expected = crc_fast::checksum_combine(
            CrcAlgorithm::Crc32Iscsi,
            crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, left),
            crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &right),
            70_000,
        );
        assert_eq!(u64::from(combined.crc()), expected);
        assert_eq!(combined.size_bytes(), 70_009);
    }
}
