//! Little-endian fields out of foreign bytes, and strict numbers out of foreign text.

/// The bytes of one structure, read by offset. A field that is not there is `None`.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..)?.first_chunk::<N>().copied()
    }

    pub(crate) fn byte(&self, offset: usize) -> Option<u8> {
        self.0.get(offset).copied()
    }

    pub(crate) fn half(&self, offset: usize) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    pub(crate) fn word(&self, offset: usize) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub(crate) fn long(&self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    pub(crate) fn signed_word(&self, offset: usize) -> Option<i32> {
        self.array(offset).map(i32::from_le_bytes)
    }

    pub(crate) fn signed_long(&self, offset: usize) -> Option<i64> {
        self.array(offset).map(i64::from_le_bytes)
    }

    pub(crate) fn double(&self, offset: usize) -> Option<f64> {
        self.array(offset).map(f64::from_le_bytes)
    }
}

/// Hexadecimal digits, one to eight of them, without the sign that the standard library would accept.
pub(crate) fn hex_word(digits: &str) -> Option<u32> {
    let plain =
        (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Exactly eight upper-case hexadecimal digits, as in the names of WAL files.
pub(crate) fn name_word(digits: &str) -> Option<u32> {
    let plain = digits.len() == 8
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    plain
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Decimal digits that fit 32 bits, without sign.
pub(crate) fn decimal_word(digits: &[u8]) -> Option<u32> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    plain
        .then(|| std::str::from_utf8(digits).ok()?.parse().ok())
        .flatten()
}

/// A name PostgreSQL formats with `%u`: decimal, no leading zero, never zero itself.
pub(crate) fn oid_name(digits: &[u8]) -> Option<u32> {
    if digits.first() == Some(&b'0') {
        None
    } else {
        decimal_word(digits)
    }
}
