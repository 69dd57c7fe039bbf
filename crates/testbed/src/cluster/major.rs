//! The PostgreSQL major versions that are supported, and their programs.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::programs;

/// A PostgreSQL major version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// The number PostgreSQL gives it.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// The major version of that number.
    ///
    /// # Errors
    /// When it is not one that the lab runs.
    pub fn from_number(number: u32) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|major| major.number() == number);
        found.with_context(|| format!("PostgreSQL {number} is not supported: use 15 to 18"))
    }

    /// The directory of its programs: as `scripts/setup` installed them, or else where packages of Debian and of the
    /// PostgreSQL project put them.
    pub fn bindir(self) -> Result<PathBuf> {
        let number = self.number();
        let packaged = [
            format!("/usr/lib/postgresql/{number}/bin/postgres"),
            format!("/usr/pgsql-{number}/bin/postgres"),
        ]
        .map(PathBuf::from);
        let postgres = programs::installed_or(&format!("pg/{number}/bin/postgres"), &packaged)?;
        // The file was found, so it lies in a directory.
        Ok(postgres.parent().map(PathBuf::from).unwrap_or_default())
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}
