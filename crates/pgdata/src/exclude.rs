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
/// `pgstrata.map` is the page tracker's, `pgstrata.lineage` says which layers lie in the directory's past: both are
/// true of this very directory alone.
const ROOT_FILES: [&[u8]; 16] = [
    b"backup_label",
    b"backup_manifest",
    b"backup_manifest.tmp",
    b"current_logfiles.tmp",
    b"pgstrata.lineage",
    b"pgstrata.lineage.tmp",
    b"pgstrata.map",
    b"pgstrata.map.tmp",
    b"pgstrata.restore-incomplete",
    b"pgstrata.restore-incomplete.tmp",
    b"postgresql.auto.conf.tmp",
    b"postmaster.opts",
    b"postmaster.pid",
    b"recovery.signal",
    b"standby.signal",
    b"tablespace_map",
];

/// What a file system makes in its own uppermost directory, which may be the data directory. Nobody but root reads it.
const LOST_FOUND: &[u8] = b"lost+found";

/// Under this name a layer lists configuration from outside of the data directory; a directory of that name in it is what
/// an interrupted restore left.
const OUTSIDE: &[u8] = b"pgstrata.config";

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
        // A link to such a directory is stored as the directory, as the server's own base backup does.
        && matches!(entry, EntryType::Directory | EntryType::Symlink)
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
        [name] => ROOT_FILES.contains(name) || *name == OUTSIDE || *name == LOST_FOUND,
        [root, ..] if EMPTY_DIRECTORIES.contains(root) || *root == OUTSIDE => true,
        [b"global", name] => name.starts_with(RELATION_CACHE_PREFIX),
        [b"base", below @ ..] => is_left_out_of_tablespace(below),
        [b"pg_tblspc", _oid, version, below @ ..] => {
            Major::from_tablespace_directory(version) != Some(major)
                || is_left_out_of_tablespace(below)
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

#[cfg(test)]
mod tests {
    use super::*;

    use Decision::{EmptyDirectory, ForeignLink, Keep, Skip};
    use EntryType::{Directory, File, Special, Symlink};

    fn check(entry: EntryType, expected: Decision, paths: &[&str]) {
        for path in paths {
            assert_eq!(
                decide(path, entry, Major::V17),
                expected,
                "{entry:?} {path}"
            );
        }
    }

    #[test]
    fn rule_6_directories_whose_contents_the_server_makes_are_stored_empty() {
        let emptied = [
            "pg_stat_tmp",
            "pg_replslot",
            "pg_dynshmem",
            "pg_notify",
            "pg_serial",
            "pg_snapshots",
            "pg_subtrans",
            "pg_wal",
        ];
        check(Directory, EmptyDirectory, &emptied);
        check(Symlink, EmptyDirectory, &emptied);
        check(
            File,
            Skip,
            &[
                "pg_notify/0000",
                "pg_wal/000000010000000000000001",
                "pg_stat_tmp/global.stat",
                "pg_replslot/a/state",
            ],
        );
        let skipped = ["pg_replslot/a", "pg_wal/archive_status", "lost+found"];
        check(Directory, Skip, &skipped);
        assert_eq!(empty_wal_directories(Major::V16), ["pg_wal/archive_status"]);
        assert_eq!(
            empty_wal_directories(Major::V17),
            ["pg_wal/archive_status", "pg_wal/summaries"]
        );
    }

    #[test]
    fn rule_6_files_of_one_run_or_one_backup_are_left_out() {
        check(
            File,
            Skip,
            &[
                "postgresql.auto.conf.tmp",
                "current_logfiles.tmp",
                "backup_label",
                "tablespace_map",
                "backup_manifest",
                "backup_manifest.tmp",
                "pgstrata.lineage",
                "pgstrata.lineage.tmp",
                "pgstrata.restore-incomplete",
                "pgstrata.restore-incomplete.tmp",
                "postmaster.pid",
                "postmaster.opts",
                "recovery.signal",
                "standby.signal",
                "global/pg_internal.init",
                "global/pg_internal.init.1234",
                "base/5/pg_internal.init",
                "base/.DS_Store",
                "pg_tblspc/16400/PG_17_202406281/5/pg_internal.init.77",
            ],
        );
        check(Special, Skip, &[".s.PGSQL.5432", "base/5/pipe"]);
    }

    #[test]
    fn rule_6_temporary_files_are_left_out() {
        check(
            File,
            Skip,
            &[
                "base/5/t3_16384",
                "base/5/t3_16384_fsm",
                "pg_tblspc/16400/PG_17_202406281/5/t3_16384.1",
                "base/pgsql_tmp/pgsql_tmp1234.0",
                "pg_tblspc/16400/PG_17_202406281/pgsql_tmp/pgsql_tmp1234.0",
            ],
        );
        check(
            Directory,
            Skip,
            &[
                "base/pgsql_tmp",
                "pg_tblspc/16400/PG_17_202406281/pgsql_tmp",
            ],
        );
    }

    #[test]
    fn rule_6_names_count_only_in_their_own_directory() {
        check(
            File,
            Keep,
            &[
                "log/pg_wal",
                "log/postmaster.pid",
                "my/backup_label",
                "pg_internal.init",
                "base/pg_internal.init",
                "pgsql_tmp",
                "my/pgsql_tmp1",
                "t3_16384",
                "global/t3_16384",
                "base/5/recovery.signal",
                "conf.d/standby.signal",
                "base/5/pg_wal",
                "my/pg_wal/keep",
                "global/pgsql_tmp",
            ],
        );
        check(
            Directory,
            Keep,
            &[
                "log",
                "pg_log",
                "my/pg_wal",
                "base/5/pg_notify",
                "my/pg_replslot",
                "my/lost+found",
            ],
        );
    }

    #[test]
    fn rule_6_everything_else_is_kept() {
        check(
            File,
            Keep,
            &[
                "PG_VERSION",
                "postgresql.conf",
                "postgresql.auto.conf",
                "pg_hba.conf",
                "current_logfiles",
                "backup_label.old",
                "global/pg_control",
                "global/pg_filenode.map",
                "base/5/pg_filenode.map",
                "base/5/16384",
                "base/5/16384_vm",
                "pg_xact/0000",
                "pg_multixact/offsets/0000",
                "pg_commit_ts/0000",
                "pg_twophase/00000001",
                "pg_stat/pgstat.stat",
                "pg_logical/replorigin_checkpoint",
                "base/5/t3",
                "pg_tblspc/16400/PG_17_202406281/5/16384",
            ],
        );
        check(
            Directory,
            Keep,
            &[
                "base",
                "base/5",
                "global",
                "pg_tblspc",
                "pg_logical/snapshots",
                "pg_stat",
                "empty",
            ],
        );
    }

    #[test]
    fn rule_6_of_a_tablespace_only_the_versions_directory_belongs() {
        check(Symlink, Keep, &["pg_tblspc/16400"]);
        check(
            Directory,
            Keep,
            &[
                "pg_tblspc/16400",
                "pg_tblspc/16400/PG_17_202406281",
                "pg_tblspc/16400/PG_17_202406281/5",
            ],
        );
        check(
            Directory,
            Skip,
            &[
                "pg_tblspc/16400/PG_16_202307071",
                "pg_tblspc/16400/lost+found",
            ],
        );
        check(
            File,
            Skip,
            &[
                "pg_tblspc/16400/PG_16_202307071/5/16384",
                "pg_tblspc/16400/README",
            ],
        );
    }

    #[test]
    fn rule_6_links_without_meaning_are_reported() {
        check(
            Symlink,
            ForeignLink,
            &[
                "postgresql.conf",
                "base/5",
                "pg_xact",
                "pg_tblspc/name",
                "base/5/16384",
                "log",
            ],
        );
        check(Symlink, Skip, &["pg_wal/archive_status", "postmaster.pid"]);
    }

    #[test]
    fn rule_6_unlogged_relations_keep_their_init_fork_alone() {
        let names = [
            "10",
            "10_vm",
            "10_init",
            "10.1",
            "11",
            "11_fsm",
            "1",
            "100",
            "t3_10",
            "PG_VERSION",
            "20_init",
            "20",
        ];
        let unlogged = UnloggedRelations::among(names);
        assert_eq!(unlogged.len(), 2);
        let left: Vec<_> = names
            .into_iter()
            .filter(|name| !unlogged.omits(name))
            .collect();
        assert_eq!(
            left,
            [
                "10_init",
                "11",
                "11_fsm",
                "1",
                "100",
                "t3_10",
                "PG_VERSION",
                "20_init"
            ]
        );
        assert!(UnloggedRelations::among(["10"]).is_empty());
    }
}
