//! Relation forks, the files that hold them, and blocks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Major;
use crate::bytes::{decimal_word, oid_name};

/// Size of a block; clusters with another size are refused.
pub const BLOCK_SIZE: usize = 8192;

/// Blocks in a full [`RelSegment`] file: 1 GiB of them.
pub const BLOCKS_PER_SEGMENT: u32 = 131_072;

/// An object identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Oid(pub u32);

impl Oid {
    /// No object: the "database" of shared relations.
    pub const INVALID: Self = Self(0);
    /// The tablespace `pg_default`, under `base/`.
    pub const DEFAULT_TABLESPACE: Self = Self(1663);
    /// The tablespace `pg_global`, in `global/`.
    pub const GLOBAL_TABLESPACE: Self = Self(1664);
}

impl fmt::Display for Oid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Position of a block in its relation fork, across all its segment files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockNumber(pub u32);

impl BlockNumber {
    /// Block `offset` of segment file `segment_number`, when such a block can exist.
    #[must_use]
    pub fn in_rel_segment(segment_number: u32, offset: u32) -> Option<Self> {
        if offset >= BLOCKS_PER_SEGMENT {
            return None;
        }
        let number = segment_number
            .checked_mul(BLOCKS_PER_SEGMENT)?
            .checked_add(offset)?;
        // 0xFFFFFFFF is InvalidBlockNumber.
        (number != u32::MAX).then_some(Self(number))
    }

    /// Number of the segment file that holds the block.
    #[must_use]
    pub const fn rel_segment_number(self) -> u32 {
        self.0 / BLOCKS_PER_SEGMENT
    }

    /// Blocks before it in its segment file.
    #[must_use]
    pub const fn offset_in_rel_segment(self) -> u32 {
        self.0 % BLOCKS_PER_SEGMENT
    }
}

impl fmt::Display for BlockNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What a relation fork is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkKind {
    /// The relation's data.
    Main,
    /// The free space map. Its pages change without WAL and without LSN.
    Fsm,
    /// The visibility map. Its bits change without LSN.
    Vm,
    /// What an unlogged relation is reset to.
    Init,
}

impl ForkKind {
    /// PostgreSQL's number of the fork.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Main => 0,
            Self::Fsm => 1,
            Self::Vm => 2,
            Self::Init => 3,
        }
    }

    /// The fork with that number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Main),
            1 => Some(Self::Fsm),
            2 => Some(Self::Vm),
            3 => Some(Self::Init),
            _ => None,
        }
    }

    /// What the file name has after the relation number.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Fsm => "_fsm",
            Self::Vm => "_vm",
            Self::Init => "_init",
        }
    }
}

/// One fork of one relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RelationFork {
    /// The tablespace.
    pub tablespace: Oid,
    /// The database; [`Oid::INVALID`] in `pg_global`.
    pub database: Oid,
    /// The relation's file number (`pg_class.relfilenode`), not its OID.
    pub relation: Oid,
    /// Which fork.
    pub fork: ForkKind,
}

/// One file of a relation fork, of up to [`BLOCKS_PER_SEGMENT`] blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RelSegment {
    /// The fork it is a part of.
    pub relation_fork: RelationFork,
    /// How many full segment files come before it.
    pub number: u32,
}

impl RelSegment {
    /// The path relative to the data directory.
    #[must_use]
    pub fn path(&self, major: Major) -> String {
        let RelationFork {
            tablespace,
            database,
            relation,
            fork,
        } = self.relation_fork;
        let directory = match tablespace {
            Oid::GLOBAL_TABLESPACE => "global".to_owned(),
            Oid::DEFAULT_TABLESPACE => format!("base/{database}"),
            _ => format!(
                "pg_tblspc/{tablespace}/{}/{database}",
                major.tablespace_directory()
            ),
        };
        let suffix = fork.suffix();
        match self.number {
            0 => format!("{directory}/{relation}{suffix}"),
            number => format!("{directory}/{relation}{suffix}.{number}"),
        }
    }

    /// Number in its fork of the block `offset` blocks into this file.
    #[must_use]
    pub fn block(&self, offset: u32) -> Option<BlockNumber> {
        BlockNumber::in_rel_segment(self.number, offset)
    }
}

/// What a path relative to the data directory names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A file of a relation fork.
    RelSegment(RelSegment),
    /// A file of a temporary relation: `base/5/t3_16384`.
    Temporary,
    /// Anything else.
    Other,
}

impl PathKind {
    /// Classifies a path relative to the data directory, with `/` between its parts.
    #[must_use]
    pub fn of(path: impl AsRef<[u8]>) -> Self {
        let parts: Vec<&[u8]> = path.as_ref().splitn(6, |&byte| byte == b'/').collect();
        let place = match *parts.as_slice() {
            [b"global", name] => Some((Oid::GLOBAL_TABLESPACE, Oid::INVALID, name)),
            [b"base", database, name] => {
                oid_name(database).map(|database| (Oid::DEFAULT_TABLESPACE, Oid(database), name))
            }
            [b"pg_tblspc", tablespace, version, database, name] => oid_name(tablespace)
                .zip(oid_name(database))
                .filter(|_| Major::from_tablespace_directory(version).is_some())
                .map(|(tablespace, database)| (Oid(tablespace), Oid(database), name)),
            _ => None,
        };
        let Some((tablespace, database, name)) = place else {
            return Self::Other;
        };
        if let Some((relation, fork, number)) = relation_file(name) {
            let relation_fork = RelationFork {
                tablespace,
                database,
                relation: Oid(relation),
                fork,
            };
            return Self::RelSegment(RelSegment {
                relation_fork,
                number,
            });
        }
        if tablespace != Oid::GLOBAL_TABLESPACE && is_temporary_relation_file(name) {
            return Self::Temporary;
        }
        Self::Other
    }
}

/// Reads `16384`, `16384.1`, `16384_vm`, `16384_vm.1`: relation number, fork, segment number.
pub(crate) fn relation_file(name: &[u8]) -> Option<(u32, ForkKind, u32)> {
    let (stem, number) = match name.iter().position(|&byte| byte == b'.') {
        // Segment 0 is never written out.
        Some(dot) => (&name[..dot], oid_name(&name[dot + 1..])?),
        None => (name, 0),
    };
    let digits = stem.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let fork = fork_of_suffix(&stem[digits..])?;
    Some((oid_name(&stem[..digits])?, fork, number))
}

fn fork_of_suffix(suffix: &[u8]) -> Option<ForkKind> {
    [ForkKind::Main, ForkKind::Fsm, ForkKind::Vm, ForkKind::Init]
        .into_iter()
        .find(|fork| fork.suffix().as_bytes() == suffix)
}

/// `t<backend>_<relation>` with an optional fork and segment number, as `looks_like_temp_rel_name()` has it.
pub(crate) fn is_temporary_relation_file(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"t") else {
        return false;
    };
    let Some(underscore) = rest.iter().position(|&byte| byte == b'_') else {
        return false;
    };
    let (backend, relation) = (&rest[..underscore], &rest[underscore + 1..]);
    decimal_word(backend).is_some() && relation_file(relation).is_some()
}
