//! Major versions and what is fixed by each.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::oid_name;
use crate::{Error, Result};

/// A supported major version of PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Major {
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 16.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

impl Major {
    /// Every supported version, oldest first.
    pub const ALL: [Self; 4] = [Self::V15, Self::V16, Self::V17, Self::V18];

    /// The number: 15 to 18.
    #[must_use]
    pub const fn get(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// `CATALOG_VERSION_NO`, fixed with the first release of a major version.
    #[must_use]
    pub const fn catalog_version(self) -> u32 {
        match self {
            Self::V15 => 202_209_061,
            Self::V16 => 202_307_071,
            Self::V17 => 202_406_281,
            Self::V18 => 202_506_291,
        }
    }

    /// `PG_CONTROL_VERSION`: the layout of `pg_control`.
    #[must_use]
    pub const fn control_version(self) -> u32 {
        match self {
            Self::V15 | Self::V16 => 1300,
            Self::V17 => 1700,
            Self::V18 => 1800,
        }
    }

    /// `XLOG_PAGE_MAGIC`: the first two bytes of every WAL page.
    #[must_use]
    pub const fn wal_page_magic(self) -> u16 {
        match self {
            Self::V15 => 0xD110,
            Self::V16 => 0xD113,
            Self::V17 => 0xD116,
            Self::V18 => 0xD118,
        }
    }

    /// The one directory of a tablespace that belongs to a cluster of this version: `PG_15_202209061`.
    #[must_use]
    pub fn tablespace_directory(self) -> String {
        format!("PG_{}_{}", self.get(), self.catalog_version())
    }

    /// The version a `PG_<major>_<catalog version>` directory belongs to; `None` for any other name.
    #[must_use]
    pub fn from_tablespace_directory(name: impl AsRef<[u8]>) -> Option<Self> {
        let mut parts = name
            .as_ref()
            .strip_prefix(b"PG_")?
            .splitn(2, |&byte| byte == b'_');
        let major = Self::try_from(oid_name(parts.next()?)?).ok()?;
        (oid_name(parts.next()?)? == major.catalog_version()).then_some(major)
    }

    /// The version with this catalog version.
    #[must_use]
    pub fn from_catalog_version(catalog_version: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|major| major.catalog_version() == catalog_version)
    }

    /// The version that writes WAL pages with this magic.
    #[must_use]
    pub fn from_wal_page_magic(magic: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|major| major.wal_page_magic() == magic)
    }

    /// Reads the text of a `PG_VERSION` file.
    ///
    /// # Errors
    ///
    /// When it holds no number, or that of a version that is not supported.
    pub fn parse(text: &str) -> Result<Self> {
        let number = oid_name(text.trim_end().as_bytes()).ok_or_else(|| {
            Error::malformed(format!(
                "invalid PG_VERSION {text:?}: expected a major version such as 15"
            ))
        })?;
        Self::try_from(number)
    }
}

impl TryFrom<u32> for Major {
    type Error = Error;

    fn try_from(number: u32) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|major| major.get() == number)
            .ok_or_else(|| {
                Error::unsupported(format!(
                    "PostgreSQL {number} is not supported: versions 15 to 18 are"
                ))
            })
    }
}

impl From<Major> for u32 {
    fn from(major: Major) -> Self {
        major.get()
    }
}

impl fmt::Display for Major {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pg_version_is_read_with_its_line_end() {
        assert_eq!(Major::parse("15\n").unwrap(), Major::V15);
        assert_eq!(Major::parse("18").unwrap(), Major::V18);
        for text in [
            "", "\n", "14\n", "19\n", "9.6\n", "+15", "015", " 15", "fifteen",
        ] {
            assert!(Major::parse(text).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn facts_lead_back_to_their_version() {
        for major in Major::ALL {
            assert_eq!(
                Major::from_catalog_version(major.catalog_version()),
                Some(major)
            );
            assert_eq!(
                Major::from_wal_page_magic(major.wal_page_magic()),
                Some(major)
            );
            assert_eq!(
                Major::from_tablespace_directory(major.tablespace_directory()),
                Some(major)
            );
        }
    }

    #[test]
    fn only_exact_tablespace_directories_belong_to_a_version() {
        assert_eq!(
            Major::from_tablespace_directory("PG_15_202209061"),
            Some(Major::V15)
        );
        for name in [
            "PG_15_202209062",
            "PG_15",
            "PG_14_202107181",
            "pg_15_202209061",
            "PG_15_202209061_1",
            "PG_15_202506291",
            "",
        ] {
            assert_eq!(
                Major::from_tablespace_directory(name),
                None,
                "{name:?} was taken"
            );
        }
    }
}
