//! What of a data directory belongs into a backup.
//!
//! Every rule matches only in the directory where PostgreSQL itself gives the name its meaning: a user's `log/` or a
//! table's file is never dropped for its name. What no rule names is kept.

use std::collections::HashSet;

use crate::Major;
use crate::bytes::oid_name;
use crate::relation::{ForkKind, is_temporary_relation_file, relation_file};

/// What `lstat` says an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, pipe or device.
    Special,
}

/// What to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Store it; descend if it is a directory, or a tablespace's link.
    Keep,
    /// Leave it out, with everything below.
    Skip,
    /// Store the directory with its permissions, and nothing below but what
    /// [`empty_wal_directories`] names.
    EmptyDirectory,
    /// A link where PostgreSQL has none. Dropping it could lose data and following it could store what is not the
    /// cluster's: the caller must have a policy.
    ForeignLink,
}

/// Directories of which the server needs only the existence.
const EMPTY_DIRECTORIES: [&[u8]; 8] = [
    b"pg_dynshmem",
    b"pg_notify",
    b"pg_replslot",
    b"pg_serial",
    b"pg_snapshots",
    b"pg_stat_tmp",
    b"pg_subtrans",
    b"pg_wal",
];

/// Files in the data directory itself that belong to one run of the server or to one backup.
const ROOT_FILES: [&[u8]; 10] = [
    b"backup_label",
    b"backup_manifest",
    b"backup_manifest.tmp",
    b"current_logfiles.tmp",
    b"postgresql.auto.conf.tmp",
    b"postmaster.opts",
    b"postmaster.pid",
    b"recovery.signal",
    b"standby.signal",
    b"tablespace_map",
];

/// Prefix of temporary files and their directories.
const TEMPORARY_PREFIX: &[u8] = b"pgsql_tmp";

/// Prefix of the relation cache's files, temporary ones too.
const RELATION_CACHE_PREFIX: &[u8] = b"pg_internal.init";

/// The directories in `pg_wal` that the server expects to find.
#[must_use]
pub fn empty_wal_directories(major: Major) -> &'static [&'static str] {
    if major >= Major::V17 {
        &["pg_wal/archive_status", "pg_wal/summaries"]
    } else {
        &["pg_wal/archive_status"]
    }
}

/// Decides for a path relative to the data directory, with `/` between its parts. Tablespaces are seen through their
/// links: `pg_tblspc/16400/PG_15_202209061/5/16384`.
#[must_use]
pub fn decide(path: impl AsRef<[u8]>, entry: EntryType, major: Major) -> Decision {
    let parts: Vec<&[u8]> = path.as_ref().split(|&byte| byte == b'/').collect();
    if entry == EntryType::Special || parts.last() == Some(&b".DS_Store".as_slice()) {
        return Decision::Skip;
    }
    if let [root] = *parts.as_slice()
        && EMPTY_DIRECTORIES.contains(&root)
        && (entry == EntryType::Directory || (entry == EntryType::Symlink && root == b"pg_wal"))
    {
        return Decision::EmptyDirectory;
    }
    if is_left_out(&parts, major) {
        return Decision::Skip;
    }
    match (entry, parts.as_slice()) {
        (EntryType::Symlink, [b"pg_tblspc", oid]) if oid_name(oid).is_some() => Decision::Keep,
        (EntryType::Symlink, _) => Decision::ForeignLink,
        _ => Decision::Keep,
    }
}

fn is_left_out(parts: &[&[u8]], major: Major) -> bool {
    match parts {
        [name] => ROOT_FILES.contains(name),
        [root, ..] if EMPTY_DIRECTORIES.contains(root) => true,
        [b"global", name] => name.starts_with(RELATION_CACHE_PREFIX),
        [b"base", below @ ..] => is_left_out_of_tablespace(below),
        [b"pg_tblspc", _oid, version, below @ ..] => {
            *version != major.tablespace_directory().as_bytes() || is_left_out_of_tablespace(below)
        }
        _ => false,
    }
}

/// `parts` are relative to `base`, or to the version's directory in a tablespace.
fn is_left_out_of_tablespace(parts: &[&[u8]]) -> bool {
    match parts {
        [name, ..] if name.starts_with(TEMPORARY_PREFIX) => true,
        [database, name] if oid_name(database).is_some() => {
            name.starts_with(RELATION_CACHE_PREFIX)
                || name.starts_with(TEMPORARY_PREFIX)
                || is_temporary_relation_file(name)
        }
        _ => false,
    }
}

/// The unlogged relations of one database directory: those with an init fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnloggedRelations {
    relations: HashSet<u32>,
}

impl UnloggedRelations {
    /// Finds them among the names in one database directory. The names must be of one listing, taken after the backup
    /// started.
    #[must_use]
    pub fn among<N: AsRef<[u8]>>(names: impl IntoIterator<Item = N>) -> Self {
        let init_fork = |name: N| match relation_file(name.as_ref()) {
            Some((relation, ForkKind::Init, _)) => Some(relation),
            _ => None,
        };
        Self {
            relations: names.into_iter().filter_map(init_fork).collect(),
        }
    }

    /// Whether to leave out the file `name` of the same directory: every fork and segment of an unlogged relation but
    /// the init fork, from which the server makes the others at the end of recovery.
    #[must_use]
    pub fn omits(&self, name: impl AsRef<[u8]>) -> bool {
        relation_file(name.as_ref()).is_some_and(|(relation, fork, _)| {
            fork != ForkKind::Init && self.relations.contains(&relation)
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.relations.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.relations.is_empty()
    }
}
