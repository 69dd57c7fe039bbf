//! Directories of databases, and which of them stay whole while they are backed up.
//!
//! `ALTER DATABASE ... SET TABLESPACE`, and `CREATE DATABASE ... STRATEGY = file_copy`, copy a directory and write one
//! record that names both (`XLOG_DBASE_CREATE_FILE_COPY`, `src/backend/commands/dbcommands.c`). Recovery drops the
//! copy and makes it again from the directory that it finds. When that one was removed before the backup had read all of it,
//! recovery makes a database that is empty or lacks files, and says nothing.
//!
//! Which directories were copied, only the WAL tells (`backup/repeated.rs`). Here is found whether it has to be asked, and
//! which directories were there all the while. One whose files are being removed still looks as it did; its database is locked
//! until that is done. Files alone go with tables, and tell of a directory only when its database has left it. But a directory that
//! lost one is no good source of a copy: the table was there when the database was copied, and is not in the layer. The file goes
//! late: PostgreSQL empties it, and removes it after the next checkpoint (`mdunlinkfork`, `src/backend/storage/smgr/md.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::exclude::UnloggedRelations;
use pgstrata_pgdata::relation::{Oid, PathKind};
use pgstrata_pgdata::{DatabaseDirectory, Major};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{FileContext, Result};
use rustix::fs::{AtFlags, statat};

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
    /// The relations' files that had contents at either time: the names in a directory, one a line. Those of 300,000 files take 3 MB.
    filled: Vec<(DatabaseDirectory, String)>,
}

/// What became of directories of databases under a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabasesSeen {
    /// Whether there are some that recovery may make.
    pub(crate) came: bool,
    /// Whether any was removed, or was about to be.
    pub(crate) went: bool,
    /// Whether one that recovery may make has a file of a name that another one has lost. Copies keep the names of files, so it may
    /// be one, of what the other was before.
    pub(crate) lost: bool,
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
        let filled = filled(data_directory, major, &settled).await?;
        let rows = session.databases().await?;
        settled.retain(|place, _| rows.contains(&(place.database.0, place.tablespace.0)));
        Ok(Self {
            major,
            data_directory: data_directory.to_owned(),
            settled,
            started: DatabaseList::new(),
            filled,
        })
    }

    /// The backup has started, and nothing was read.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub(crate) async fn start(&mut self) -> Result<()> {
        self.started = listing(&self.data_directory, self.major).await?;
        let filled = filled(&self.data_directory, self.major, &self.started).await?;
        self.filled.extend(filled);
        Ok(())
    }

    /// The files of which the list that the backup goes by has no contents any more. To be asked when it was made.
    ///
    /// # Errors
    /// When a file cannot be looked at.
    pub(crate) async fn missing_in_list(&self) -> Result<BTreeSet<String>> {
        let (root, major) = (self.data_directory.clone(), self.major);
        let filled = self.filled.clone();
        blocking(move || emptied_since(&root, major, &filled)).await
    }

    /// Everything was read but the files at the paths `missing`, which had been listed, and were not there any more or empty.
    ///
    /// # Errors
    /// When a directory cannot be read, or the server does not answer.
    pub(crate) async fn end(
        &self,
        session: &Session,
        missing: &BTreeSet<String>,
    ) -> Result<DatabasesSeen> {
        // In this order: what was removed in between is not listed any more.
        let locked = locked(session).await?;
        let now = listing(&self.data_directory, self.major).await?;
        let rows = session.databases().await?;
        let namesakes = self.namesakes(&now, missing);
        let lost = blocking(move || Ok(namesakes.iter().any(|path| path.exists()))).await?;
        Ok(DatabasesSeen {
            lost,
            ..self.seen(&now, &rows, &locked, missing)
        })
    }

    fn seen(
        &self,
        now: &DatabaseList,
        rows: &BTreeSet<(u32, u32)>,
        locked: &BTreeSet<u32>,
        missing: &BTreeSet<String>,
    ) -> DatabasesSeen {
        let is_there = |place: &DatabaseDirectory, was: &DirectorySeen| {
            is_same(now, place, was) && !locked.contains(&place.database.0)
        };
        let lacks = |place: &DatabaseDirectory| lacks_files(missing, &place.path(self.major));
        // Who was killed while he removed it has left the directory, but not its row.
        let was_begun = |place: &DatabaseDirectory, was: &DirectorySeen| {
            lacks(place) && !has_row(rows, place, was)
        };
        let whole = self
            .started
            .iter()
            .filter(|(place, was)| is_there(place, was) && !lacks(place));
        let whole: BTreeSet<DatabaseDirectory> = whole.map(|(place, _)| *place).collect();
        let mut before = self.settled.iter().chain(&self.started);
        DatabasesSeen {
            came: self.came(now).next().is_some(),
            went: before.any(|(place, was)| !is_there(place, was) || was_begun(place, was)),
            lost: false,
            whole,
        }
    }

    /// The databases' own directories that recovery may make.
    fn came<'l>(&'l self, now: &'l DatabaseList) -> impl Iterator<Item = &'l DatabaseDirectory> {
        let own = now.iter().filter(|(_, is)| is.is_own);
        let came = own.filter(move |(place, is)| !is_same(&self.settled, place, is));
        came.map(|(place, _)| place)
    }

    /// Where databases that recovery may make would have the `missing` files if they were copies of those that lost them.
    fn namesakes(&self, now: &DatabaseList, missing: &BTreeSet<String>) -> Vec<PathBuf> {
        let came: BTreeSet<Oid> = self.came(now).map(|place| place.database).collect();
        let theirs = now.keys().filter(|place| came.contains(&place.database));
        let theirs: Vec<String> = theirs.map(|place| place.path(self.major)).collect();
        let mut namesakes = Vec::new();
        for name in missing.iter().filter_map(|path| path.rsplit('/').next()) {
            let places = theirs.iter();
            namesakes.extend(places.map(|place| self.data_directory.join(place).join(name)));
        }
        namesakes
    }
}

/// The relations' files with contents in these directories.
async fn filled(
    data_directory: &Path,
    major: Major,
    directories: &DatabaseList,
) -> Result<Vec<(DatabaseDirectory, String)>> {
    let root = data_directory.to_owned();
    let places: Vec<DatabaseDirectory> = directories.keys().copied().collect();
    blocking(move || {
        let mut found = Vec::new();
        for place in places {
            found.push((place, filled_in(&root, &place.path(major))?));
        }
        Ok(found)
    })
    .await
}

/// Their names in one directory, one a line. Of an unlogged relation a copy needs the init fork alone.
fn filled_in(root: &Path, directory: &str) -> Result<String> {
    let full = root.join(directory);
    let all = names(&full)?.unwrap_or_default();
    let unlogged = UnloggedRelations::among(all.iter().map(|name| name.as_bytes()));
    let inside = Inside::open(full)?;
    let mut found = String::new();
    for name in all.iter().filter_map(|name| name.to_str()) {
        let kind = PathKind::of(format!("{directory}/{name}"));
        let is_kept = matches!(kind, PathKind::RelSegment(_)) && !unlogged.omits(name);
        if is_kept && inside.has_contents(name)? {
            found.push_str(name);
            found.push('\n');
        }
    }
    Ok(found)
}

/// Which of them are gone or empty by now.
fn emptied_since(
    root: &Path,
    major: Major,
    filled: &[(DatabaseDirectory, String)],
) -> Result<BTreeSet<String>> {
    let mut emptied = BTreeSet::new();
    for (place, names) in filled {
        let directory = place.path(major);
        let inside = Inside::open(root.join(&directory))?;
        for name in names.lines() {
            if !inside.has_contents(name)? {
                emptied.insert(format!("{directory}/{name}"));
            }
        }
    }
    Ok(emptied)
}

/// A directory of which many files are looked at: the way to it is walked once for all of them.
struct Inside {
    path: PathBuf,
    /// `None` when it has gone.
    directory: Option<File>,
}

impl Inside {
    fn open(path: PathBuf) -> Result<Self> {
        let directory = gone(File::open(&path)).context(|| look(&path))?;
        Ok(Self { path, directory })
    }

    fn has_contents(&self, name: &str) -> Result<bool> {
        let Some(directory) = &self.directory else {
            return Ok(false);
        };
        let found = statat(directory, name, AtFlags::empty()).map_err(io::Error::from);
        let found = gone(found).context(|| look(&self.path.join(name)))?;
        Ok(found.is_some_and(|file| file.st_size > 0))
    }
}

/// Whether a directory is still the one that was seen.
fn is_same(listing: &DatabaseList, place: &DatabaseDirectory, seen: &DirectorySeen) -> bool {
    let found = listing.get(place);
    found.is_some_and(|found| found.identity == seen.identity)
}

/// Whether files below `directory` are among the `missing` ones.
fn lacks_files(missing: &BTreeSet<String>, directory: &str) -> bool {
    let below = format!("{directory}/");
    let next = missing.range(below.clone()..).next();
    next.is_some_and(|path| path.starts_with(&below))
}

/// Whether the database of a directory has it still; one that is not its own for as long as there is the database.
fn has_row(rows: &BTreeSet<(u32, u32)>, place: &DatabaseDirectory, was: &DirectorySeen) -> bool {
    let (database, tablespace) = (place.database.0, place.tablespace.0);
    match was.is_own {
        true => rows.contains(&(database, tablespace)),
        false => rows.iter().any(|(oid, _)| *oid == database),
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
            filled: Vec::new(),
        }
    }

    /// The row of each database that has these directories.
    fn rows_for(listing: &DatabaseList) -> BTreeSet<(u32, u32)> {
        let places = listing.keys();
        let rows = places.map(|place| (place.database.0, place.tablespace.0));
        rows.collect()
    }

    #[test]
    fn a_directory_is_whole_when_nobody_has_begun_to_remove_it() {
        let watch = watch();
        let (all, one) = (watch.started.clone(), place(SIDE, 5));
        let (rows, nobody, nothing) = (rows_for(&all), BTreeSet::new(), BTreeSet::new());
        let seen = watch.seen(&all, &rows, &nobody, &nothing);
        assert!(seen.came && !seen.went, "{seen:?}");
        assert!(seen.whole.len() == 3, "{seen:?}");
        // Its files are being removed, some had been when that was broken off, all have, and another one took its place.
        let missing = BTreeSet::from(["pg_tblspc/16385/PG_15_202209061/5/16390".to_owned()]);
        let (mut moved, mut without, mut another) = (rows.clone(), all.clone(), all.clone());
        moved.remove(&(5, SIDE.0));
        without.remove(&one);
        another.extend(listing(&[(one, 9)]));
        for seen in [
            watch.seen(&all, &rows, &BTreeSet::from([5]), &nothing),
            watch.seen(&all, &moved, &nobody, &missing),
            watch.seen(&without, &rows, &nobody, &nothing),
            watch.seen(&another, &rows, &nobody, &nothing),
        ] {
            assert!(seen.went && !seen.whole.contains(&one), "{seen:?}");
            assert!(seen.whole.len() == 2, "{seen:?}");
        }
    }

    /// As with DROP TABLE, and all that gives a table another file.
    #[test]
    fn a_directory_that_lacks_files_alone_is_not_whole_and_has_not_gone() {
        let (mut watch, nobody) = (watch(), BTreeSet::new());
        let other = place(SIDE, 1);
        let elsewhere = DirectorySeen {
            identity: (1, 8, 8),
            is_own: false,
        };
        let rows = rows_for(&watch.started);
        watch.started.insert(other, elsewhere);
        for (one, directory) in [
            (place(SIDE, 5), "pg_tblspc/16385/PG_15_202209061/5"),
            (place(Oid::DEFAULT_TABLESPACE, 7), "base/7"),
            (other, "pg_tblspc/16385/PG_15_202209061/1"),
        ] {
            let missing = BTreeSet::from([format!("{directory}/16390")]);
            let seen = watch.seen(&watch.started, &rows, &nobody, &missing);
            assert!(!seen.went && !seen.whole.contains(&one), "{seen:?}");
            assert!(seen.whole.len() == 3, "{seen:?}");
            let mut dropped = rows.clone();
            dropped.retain(|(database, _)| *database != one.database.0);
            let seen = watch.seen(&watch.started, &dropped, &nobody, &missing);
            assert!(seen.went, "{seen:?}");
        }
        // Of another database, whose number begins with that of one.
        let missing = BTreeSet::from(["base/16385".to_owned(), "base/70/16390".to_owned()]);
        let seen = watch.seen(&watch.started, &rows, &nobody, &missing);
        assert!(!seen.went && seen.whole.len() == 4, "{seen:?}");
    }

    #[test]
    fn what_came_may_be_a_copy_of_what_has_lost_a_file_that_it_has() {
        let mut watch = watch();
        watch.data_directory = PathBuf::from("/data");
        let mut now = watch.started.clone();
        let beside = DirectorySeen {
            identity: (1, 8, 8),
            is_own: false,
        };
        now.insert(place(SIDE, 7), beside);
        let missing = [
            "base/1/16390",
            "pg_tblspc/16385/PG_15_202209061/5/16391_fsm",
        ];
        let missing = missing.map(str::to_owned).into();
        let namesakes = watch.namesakes(&now, &missing);
        let expected = [
            "/data/base/7/16390",
            "/data/pg_tblspc/16385/PG_15_202209061/7/16390",
            "/data/base/7/16391_fsm",
            "/data/pg_tblspc/16385/PG_15_202209061/7/16391_fsm",
        ];
        assert_eq!(namesakes, expected.map(PathBuf::from));
        assert!(watch.namesakes(&watch.settled, &missing).is_empty());
    }

    #[test]
    fn recovery_may_make_a_database_that_was_not_there_before_the_start() {
        let watch = watch();
        let came = |now: &DatabaseList| watch.came(now).next().is_some();
        assert!(!came(&watch.settled));
        assert!(came(&watch.started));
        let mut moved = watch.settled.clone();
        moved.extend(listing(&[(place(Oid::DEFAULT_TABLESPACE, 5), 11)]));
        assert!(came(&moved));
    }

    #[test]
    fn files_that_lose_their_contents_before_the_list_are_told() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("base/5");
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, contents: &str| {
            fs::write(directory.join(name), contents).unwrap();
        };
        let kept = ["16384", "16385", "16385_vm", "16386", "16390_init"];
        let others = ["16390", "t3_16391", "pg_filenode.map"];
        for name in kept.into_iter().chain(others) {
            write(name, "a page");
        }
        write("16387", "");
        let names = filled_in(root.path(), "base/5").unwrap();
        let listed: BTreeSet<&str> = names.lines().collect();
        assert_eq!(listed, BTreeSet::from(kept));
        let filled = [(place(Oid::DEFAULT_TABLESPACE, 5), names)];
        let emptied = || emptied_since(root.path(), Major::V15, &filled).unwrap();
        assert!(emptied().is_empty());
        write("16384", "");
        write("16386", "a page more");
        fs::remove_file(directory.join("16385_vm")).unwrap();
        let expected = ["base/5/16384", "base/5/16385_vm"];
        assert_eq!(emptied(), BTreeSet::from(expected.map(str::to_owned)));
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
