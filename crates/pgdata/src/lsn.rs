//! Positions in the WAL.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bytes::hex_word;
use crate::{Error, Result};

/// A byte position in the WAL, shown and read as PostgreSQL does: `16/B374D848`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`, which no record has.
    pub const INVALID: Self = Self(0);

    /// The position that many bytes from the beginning of the WAL.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// Bytes from the beginning of the WAL.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is anything but `0/0`.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// The position that many bytes further on.
    #[must_use]
    pub fn checked_add(self, size_bytes: u64) -> Option<Self> {
        self.0.checked_add(size_bytes).map(Self)
    }

    /// The bytes from `earlier` to here.
    #[must_use]
    pub fn bytes_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Lsn({self})")
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            Some(Self(
                u64::from(hex_word(high)?) << 32 | u64::from(hex_word(low)?),
            ))
        };
        parse().ok_or_else(|| {
            Error::malformed(format!(
                "invalid LSN {text:?}: expected two hexadecimal numbers such as 16/B374D848"
            ))
        })
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_servers() {
        assert_eq!(Lsn::new(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn::new(0x1_0000_0028).to_string(), "1/28");
        assert_eq!(Lsn::INVALID.to_string(), "0/0");
        assert_eq!("ffffffff/ffffffff".parse::<Lsn>().unwrap().get(), u64::MAX);
    }

    #[test]
    fn text_of_other_forms_is_refused() {
        for text in [
            "",
            "/",
            "0/",
            "/0",
            "0",
            "0/0/0",
            "+1/0",
            "0/-1",
            " 0/0",
            "0/0 ",
            "123456789/0",
            "0/123456789",
            "G/0",
            "0/é",
        ] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Lsn::new(u64::MAX).checked_add(1), None);
        assert_eq!(Lsn::new(5).bytes_since(Lsn::new(6)), None);
        assert_eq!(Lsn::new(6).bytes_since(Lsn::new(5)), Some(1));
    }

    #[test]
    fn json_is_the_text() {
        let lsn = Lsn::new(0x16_B374_D848);
        assert_eq!(serde_json::to_string(&lsn).unwrap(), "\"16/B374D848\"");
        assert_eq!(serde_json::from_str::<Lsn>("\"16/B374D848\"").unwrap(), lsn);
        assert!(serde_json::from_str::<Lsn>("\"16\"").is_err());
        assert!(serde_json::from_str::<Lsn>("16").is_err());
    }
}
