//! Directories of databases, and which of them stay whole while they are backed up.
//!
//! `ALTER DATABASE ... SET TABLESPACE`, and `CREATE DATABASE ... STRATEGY = file_copy`, copy a directory and write one
//! record that names both (`XLOG_DBASE_CREATE_FILE_COPY`, `src/backend/commands/dbcommands.c`). Recovery drops the
//! copy and makes it again from the directory that it finds. When that one was removed before the backup had read all of it,
//! recovery makes a database that is empty or lacks files, and says nothing.
//!
//! Which directories were copied, only the WAL tells (`backup/repeated.rs`). Here is found whether it has to be asked, and
//! which directories were there all the while. One whose files are being removed still looks as it did; its database is locked
//! until that is done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::relation::Oid;
use pgstrata_pgdata::{DatabaseDirectory, Major};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{FileContext, Result};

use super::scan::{gone, identity, look, names, tablespaces};
use super::session::{Session, get, rows_of};

/// The directories that are there at one moment.
type DatabaseList = BTreeMap<DatabaseDirectory, DirectorySeen>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirectorySeen {
    identity: DirectoryIdentity,
    /// Whether it is in the database's own tablespace; in others it is for relations that lie there.
    is_own: bool,
}

/// What tells a directory from another one that is given its name later.
type DirectoryIdentity = (u64, u64, u64);

/// What was there when a backup began.
pub(crate) struct DatabaseWatch {
    major: Major,
    data_directory: PathBuf,
    /// Before the start, with a row: recovery does not make these. The record of a copy comes before its row, and between the
    /// two lies a checkpoint, behind which recovery begins when the row is seen.
    settled: DatabaseList,
    /// When the backup had started.
    started: DatabaseList,
}

/// What became of directories of databases under a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabasesSeen {
    /// Whether there are some that recovery may make.
    pub(crate) came: bool,
    /// Whether any was removed, or was about to be.
    pub(crate) went: bool,
    /// Those that were there from the start until everything was read.
    pub(crate) whole: BTreeSet<DatabaseDirectory>,
}

impl DatabaseWatch {
    /// Begins before the backup starts.
    ///
    /// # Errors
    /// When a directory cannot be read, or the server does not answer.
    pub(crate) async fn begin(session: &Session, data_directory: &Path) -> Result<Self> {
        let major = session.facts().major;
        let mut settled = listing(data_directory, major).await?;
        let rows = session.databases().await?;
        settled.retain(|place, _| rows.contains(&(place.database.0, place.tablespace.0)));
        Ok(Self {
            major,
            data_directory: data_directory.to_owned(),
            settled,
            started: DatabaseList::new(),
        })
    }

    /// The backup has started, and nothing was read.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub(crate) async fn start(&mut self) -> Result<()> {
        self.started = listing(&self.data_directory, self.major).await?;
        Ok(())
    }

    /// Everything was read, and files were missing then that the directories `lacking` had when they were listed.
    ///
    /// # Errors
    /// When a directory cannot be read, or the server does not answer.
    pub(crate) async fn end(
        &self,
        session: &Session,
        lacking: &BTreeSet<String>,
    ) -> Result<DatabasesSeen> {
        // In this order: what was removed in between is not listed any more.
        let locked = locked(session).await?;
        let now = listing(&self.data_directory, self.major).await?;
        Ok(self.seen(&now, &locked, lacking))
    }

    fn seen(
        &self,
        now: &DatabaseList,
        locked: &BTreeSet<u32>,
        lacking: &BTreeSet<String>,
    ) -> DatabasesSeen {
        let same = |listing: &DatabaseList, place: &DatabaseDirectory, listed: &DirectorySeen| {
            let other = listing.get(place);
            other.is_some_and(|other| other.identity == listed.identity)
        };
        let is_whole = |place: &DatabaseDirectory, listed: &DirectorySeen| {
            same(now, place, listed)
                && !locked.contains(&place.database.0)
                && !lacking.contains(&place.path(self.major))
        };
        let whole = self
            .started
            .iter()
            .filter(|(place, was)| is_whole(place, was));
        let whole: BTreeSet<DatabaseDirectory> = whole.map(|(place, _)| *place).collect();
        let mut before = self.settled.iter().chain(&self.started);
        let mut own = now.iter().filter(|(_, is)| is.is_own);
        DatabasesSeen {
            came: own.any(|(place, is)| !same(&self.settled, place, is)),
            went: before.any(|(place, was)| !is_whole(place, was)),
            whole,
        }
    }
}

/// The databases that are being dropped or moved: nothing else locks one so for longer than a moment.
async fn locked(session: &Session) -> Result<BTreeSet<u32>> {
    let act = "could not ask which databases are being dropped or moved";
    let query = "SELECT objid FROM pg_locks
                  WHERE locktype = 'object' AND database = 0 AND classid = 'pg_database'::regclass
                    AND mode = 'AccessExclusiveLock' AND granted";
    let rows = rows_of(session.client(), act, query).await?;
    rows.iter().map(|row| get(row, 0, act)).collect()
}

async fn listing(data_directory: &Path, major: Major) -> Result<DatabaseList> {
    let root = data_directory.to_owned();
    blocking(move || list(&root, major)).await
}

fn list(root: &Path, major: Major) -> Result<DatabaseList> {
    let mut places = vec![(Oid::DEFAULT_TABLESPACE, "base".to_owned())];
    for tablespace in tablespaces(root)? {
        let version = major.tablespace_directory();
        let path = format!("pg_tblspc/{}/{version}", tablespace.oid);
        places.push((Oid(tablespace.oid), path));
    }
    let mut found = DatabaseList::new();
    for (tablespace, parent) in places {
        let directory = root.join(&parent);
        if !directory.is_dir() {
            continue;
        }
        let names = names(&directory)?.unwrap_or_default();
        let numbers = names.iter().filter_map(|name| name.to_str()?.parse().ok());
        for database in numbers.map(Oid) {
            let full = directory.join(database.to_string());
            let is_own = full.join("PG_VERSION").exists();
            let Some(metadata) = gone(fs::metadata(&full)).context(|| look(&full))? else {
                continue;
            };
            let listed = DirectorySeen {
                identity: (metadata.dev(), metadata.ino(), identity(&metadata)),
                is_own,
            };
            let place = DatabaseDirectory {
                tablespace,
                database,
            };
            found.insert(place, listed);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: Oid = Oid(16385);

    fn place(tablespace: Oid, database: u32) -> DatabaseDirectory {
        DatabaseDirectory {
            tablespace,
            database: Oid(database),
        }
    }

    fn listing(places: &[(DatabaseDirectory, u64)]) -> DatabaseList {
        let listed = |inode: u64| DirectorySeen {
            identity: (1, inode, inode),
            is_own: true,
        };
        let listed = places.iter().map(|(place, inode)| (*place, listed(*inode)));
        listed.collect()
    }

    /// Databases 1 and 5 from the beginning, and 7 that came while the backup started.
    fn watch() -> DatabaseWatch {
        let base = Oid::DEFAULT_TABLESPACE;
        let settled = [(place(base, 1), 1), (place(SIDE, 5), 5)];
        let started = [settled[0], settled[1], (place(base, 7), 7)];
        DatabaseWatch {
            major: Major::V15,
            data_directory: PathBuf::new(),
            settled: listing(&settled),
            started: listing(&started),
        }
    }

    #[test]
    fn a_directory_is_whole_when_nobody_has_begun_to_remove_it() {
        let watch = watch();
        let (all, one) = (watch.started.clone(), place(SIDE, 5));
        let nobody = BTreeSet::new();
        let seen = watch.seen(&all, &nobody, &BTreeSet::new());
        assert!(seen.came && !seen.went, "{seen:?}");
        assert!(seen.whole.len() == 3, "{seen:?}");
        // Its files are being removed, one of them has gone, all have, and another one took its place.
        let lacking = BTreeSet::from(["pg_tblspc/16385/PG_15_202209061/5".to_owned()]);
        let (mut without, mut another) = (all.clone(), all.clone());
        without.remove(&one);
        another.extend(listing(&[(one, 9)]));
        for seen in [
            watch.seen(&all, &BTreeSet::from([5]), &BTreeSet::new()),
            watch.seen(&all, &nobody, &lacking),
            watch.seen(&without, &nobody, &BTreeSet::new()),
            watch.seen(&another, &nobody, &BTreeSet::new()),
        ] {
            assert!(seen.went && !seen.whole.contains(&one), "{seen:?}");
            assert!(seen.whole.len() == 2, "{seen:?}");
        }
    }

    #[test]
    fn recovery_may_make_a_database_that_was_not_there_before_the_start() {
        let watch = watch();
        let came = |now: &DatabaseList| watch.seen(now, &BTreeSet::new(), &BTreeSet::new()).came;
        assert!(!came(&watch.settled));
        assert!(came(&watch.started));
        let mut moved = watch.settled.clone();
        moved.extend(listing(&[(place(Oid::DEFAULT_TABLESPACE, 5), 11)]));
        assert!(came(&moved));
    }

    #[test]
    fn directories_are_listed_in_every_tablespace() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for path in [
            "base/1",
            "base/pgsql_tmp",
            "pg_tblspc/16385/PG_15_202209061/5",
            "pg_tblspc/16385/PG_16_202307071/6",
            "pg_tblspc/16386/lost+found",
        ] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("base/1/PG_VERSION"), "15").unwrap();
        let found = list(root.path(), Major::V15).unwrap();
        let found: Vec<(DatabaseDirectory, bool)> = found
            .iter()
            .map(|(place, listed)| (*place, listed.is_own))
            .collect();
        let base = place(Oid::DEFAULT_TABLESPACE, 1);
        assert_eq!(found, [(base, true), (place(SIDE, 5), false)]);
    }
}
