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

/// The directory in which a database has its files in one tablespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseDirectory {
    /// The tablespace.
    pub tablespace: Oid,
    /// The database.
    pub database: Oid,
}

impl DatabaseDirectory {
    /// The path relative to the data directory.
    #[must_use]
    pub fn path(&self, major: Major) -> String {
        let Self {
            tablespace,
            database,
        } = self;
        match *tablespace {
            Oid::GLOBAL_TABLESPACE => "global".to_owned(),
            Oid::DEFAULT_TABLESPACE => format!("base/{database}"),
            _ => format!(
                "pg_tblspc/{tablespace}/{}/{database}",
                major.tablespace_directory()
            ),
        }
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
        let directory = DatabaseDirectory {
            tablespace,
            database,
        };
        let directory = directory.path(major);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<RelSegment> {
        match PathKind::of(path) {
            PathKind::RelSegment(segment) => Some(segment),
            _ => None,
        }
    }

    fn segment(place: (u32, u32), relation: u32, fork: ForkKind, number: u32) -> RelSegment {
        let (tablespace, database) = (Oid(place.0), Oid(place.1));
        RelSegment {
            relation_fork: RelationFork {
                tablespace,
                database,
                relation: Oid(relation),
                fork,
            },
            number,
        }
    }

    #[test]
    fn paths_lead_to_segments_and_back() {
        for (path, expected) in [
            ("base/5/16384", segment((1663, 5), 16384, ForkKind::Main, 0)),
            (
                "base/5/16384.3",
                segment((1663, 5), 16384, ForkKind::Main, 3),
            ),
            (
                "base/5/16384_vm.1",
                segment((1663, 5), 16384, ForkKind::Vm, 1),
            ),
            (
                "base/5/16384_fsm",
                segment((1663, 5), 16384, ForkKind::Fsm, 0),
            ),
            (
                "base/5/16384_init",
                segment((1663, 5), 16384, ForkKind::Init, 0),
            ),
            ("global/1262", segment((1664, 0), 1262, ForkKind::Main, 0)),
            (
                "global/1262_fsm",
                segment((1664, 0), 1262, ForkKind::Fsm, 0),
            ),
            (
                "pg_tblspc/16400/PG_15_202209061/5/4294967295",
                segment((16400, 5), u32::MAX, ForkKind::Main, 0),
            ),
        ] {
            assert_eq!(parse(path), Some(expected), "{path}");
            assert_eq!(expected.path(Major::V15), path);
        }
    }

    #[test]
    fn temporary_relations_are_not_relations() {
        for path in [
            "base/5/t3_16384",
            "base/5/t3_16384_vm.1",
            "base/5/t0_16384.2",
            "pg_tblspc/16400/PG_18_202506291/5/t12_9_fsm",
        ] {
            assert_eq!(PathKind::of(path), PathKind::Temporary, "{path}");
        }
        for path in [
            "base/5/t_16384",
            "base/5/t3_",
            "base/5/t3",
            "base/5/t3_16384_x",
            "global/t3_16384",
            "t3_16384",
            "base/5/ta_1",
        ] {
            assert_eq!(PathKind::of(path), PathKind::Other, "{path}");
        }
    }

    #[test]
    fn look_alikes_are_other_files() {
        for path in [
            "",
            "/",
            "base",
            "base/5",
            "base/5/",
            "base//16384",
            "base/5/016384",
            "base/5/0",
            "base/05/16384",
            "base/5/16384.0",
            "base/5/16384.01",
            "base/5/16384.",
            "base/5/16384.1.1",
            "base/5/16384_",
            "base/5/16384_main",
            "base/5/16384_vm1",
            "base/5/16384vm",
            "base/5/4294967296",
            "base/5/16384.4294967296",
            "base/5/16384/1",
            "base/5/PG_VERSION",
            "base/5/pg_filenode.map",
            "global/pg_control",
            "global/5/1",
            "16384",
            "pg_tblspc/16400/5/16384",
            "pg_tblspc/16400/PG_14_202107181/5/16384",
            "pg_tblspc/16400/PG_15_202209061/16384",
            "pg_tblspc/16400/PG_15_202209061/5/6/16384",
            "./base/5/16384",
            "pg_xact/0000",
            "+5/16384",
            "base/+5/16384",
        ] {
            assert_eq!(PathKind::of(path), PathKind::Other, "{path}");
        }
        assert_eq!(PathKind::of(b"base/5/\xff"), PathKind::Other);
    }

    #[test]
    fn blocks_count_across_segments() {
        let block = BlockNumber::in_rel_segment(2, 7).unwrap();
        assert_eq!(block, BlockNumber(2 * 131_072 + 7));
        assert_eq!(
            (block.rel_segment_number(), block.offset_in_rel_segment()),
            (2, 7)
        );
        assert_eq!(BlockNumber::in_rel_segment(0, BLOCKS_PER_SEGMENT), None);
        assert_eq!(
            BlockNumber::in_rel_segment(32_767, BLOCKS_PER_SEGMENT - 2),
            Some(BlockNumber(0xFFFF_FFFE))
        );
        assert_eq!(
            BlockNumber::in_rel_segment(32_767, BLOCKS_PER_SEGMENT - 1),
            None
        );
        assert_eq!(BlockNumber::in_rel_segment(32_768, 0), None);
    }
}
