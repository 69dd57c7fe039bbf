//! Little-endian fields and variable-length integers: the alphabet of the binary objects.

use crate::error::{Error, Result};

/// A length in memory as a length in a file.
pub(crate) fn to_u64(length: usize) -> u64 {
    u64::try_from(length).expect("a length in memory has at most 64 bits")
}

/// A 32-bit number of things in memory as a length in memory.
pub(crate) fn to_usize(length: u32) -> usize {
    usize::try_from(length).expect("memory addresses have at least 32 bits")
}

/// Appends `value` in 7-bit groups, least significant first, the high bit set on all but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7F);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends a signed value, its sign in the lowest bit so that small values stay short.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Reads fields off the front of bytes that a stranger wrote.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| Error::damaged("ends too early"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(*bytes.first_chunk().expect("N bytes were taken"))
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn half(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn word(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A variable-length integer. Only the shortest form is accepted, so that a
    /// value has one encoding.
    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let group = u64::from(byte & 0x7F);
            if shift == 63 && group > 1 {
                break;
            }
            value |= group << shift;
            if byte & 0x80 == 0 {
                if group == 0 && shift > 0 {
                    break;
                }
                return Ok(value);
            }
        }
        Err(Error::damaged("holds an integer that is not well formed"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// A variable-length integer that must fit 32 bits.
    pub(crate) fn varint_word(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?)
            .map_err(|_| Error::damaged("holds an integer that is too large"))
    }
}

/// Lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let digit = |nibble: u8| DIGITS[usize::from(nibble)];
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// Reads lower-case hexadecimal; `None` when it is anything else.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|&[high, low]| Some(nibble(high)? << 4 | nibble(low)?))
        .collect()
}

/// Reads exactly `N` bytes of lower-case hexadecimal.
pub(crate) fn from_hex_exact<const N: usize>(text: &str) -> Option<[u8; N]> {
    from_hex(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_have_one_form() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut cursor = Cursor::new(&out);
            assert_eq!(cursor.varint().unwrap(), value);
            assert!(cursor.rest().is_empty());
        }
        for overlong in [&[0x80, 0x00][..], &[0xFF; 11][..], &[0x80][..], &[][..]] {
            assert!(Cursor::new(overlong).varint().is_err(), "{overlong:?}");
        }
        let mut too_large = vec![0xFF; 9];
        too_large.push(2);
        assert!(Cursor::new(&too_large).varint().is_err());
    }

    #[test]
    fn signed_integers_come_back() {
        for value in [0, -1, 1, i64::MIN, i64::MAX, -12345] {
            let mut out = Vec::new();
            put_signed(&mut out, value);
            assert_eq!(Cursor::new(&out).signed().unwrap(), value);
        }
    }

    #[test]
    fn hexadecimal_is_lower_case_and_whole() {
        assert_eq!(to_hex(&[0, 0xAB, 0x7F]), "00ab7f");
        assert_eq!(from_hex("00ab7f"), Some(vec![0, 0xAB, 0x7F]));
        assert_eq!(from_hex("00AB"), None);
        assert_eq!(from_hex("00a"), None);
        assert_eq!(from_hex("+1"), None);
    }
}
