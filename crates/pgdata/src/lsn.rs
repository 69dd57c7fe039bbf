//! Positions in the WAL.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bytes::hex_word;
use crate::wal::WalSegmentSize;
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

    /// The number of the WAL segment that holds this position, on whatever timeline.
    #[must_use]
    pub fn segment(self, size: WalSegmentSize) -> u64 {
        self.0 / size.get()
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
