//! Directories of databases, and those that go away under a backup.
//!
//! `ALTER DATABASE ... SET TABLESPACE`, and `CREATE DATABASE ... STRATEGY = file_copy`, copy a directory and write one
//! record that names both (`XLOG_DBASE_CREATE_FILE_COPY`, `src/backend/commands/dbcommands.c`). Recovery drops the
//! copy and makes it again from the directory that it finds. When that one has gone before the backup had read it,
//! recovery makes an empty database, and says nothing.
//!
//! The record may come long after the first file of the copy, and before the row of `pg_database`: between the two lies a
//! checkpoint, behind which recovery does not begin when the row is seen. So a directory without its row is one that recovery
//! may make.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgstrata_pgdata::page::PageHeader;
use pgstrata_pgdata::relation::{BLOCK_SIZE, Oid};
use pgstrata_pgdata::{Lsn, Major};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::scan::{gone, identity, look, names, tablespaces};
use super::session::Session;

/// Numbers of relation files from here on are not those that a system catalog has from the beginning
/// (`FirstNormalObjectId`, `src/include/access/transam.h`).
const FIRST_NORMAL: u32 = 16384;

/// The directory of each database that is there, in its own tablespace, at one moment, by its path below the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseDirectories(BTreeMap<String, DirectoryIdentity>);

/// What tells a directory from another one that is given its name later.
type DirectoryIdentity = (u64, u64, u64);

impl DatabaseDirectories {
    /// Lists them.
    ///
    /// # Errors
    /// When a directory cannot be read, or the server does not answer.
    pub(crate) async fn list(session: &Session, data_directory: &Path) -> Result<Self> {
        let root = data_directory.to_owned();
        let mut found = blocking(move || list(&root)).await?;
        let databases = session.databases().await?;
        found.retain(|path, _| row_of(path).is_some_and(|row| databases.contains(&row)));
        Ok(Self(found))
    }

    /// Requires that recovery finds whatever directory it copies. `self` was listed before the backup started, and
    /// everything was read when this is called; recovery begins at `start_lsn`.
    ///
    /// # Errors
    /// `Refused` when a database was moved, or may have been copied and dropped.
    pub(crate) async fn require_sources(
        &self,
        data_directory: &Path,
        start_lsn: Lsn,
    ) -> Result<()> {
        let (root, before) = (data_directory.to_owned(), self.0.clone());
        blocking(move || {
            let now = list(&root)?;
            let lost = before.iter().filter(|(path, was)| now.get(*path) != Some(*was));
            let lost: Vec<&str> = lost.map(|(path, _)| path.as_str()).collect();
            if lost.is_empty() {
                return Ok(());
            }
            let new = now.iter().filter(|(path, is)| before.get(*path) != Some(*is));
            for (path, _) in new {
                // One that was dropped and made again in its place has not moved.
                let elsewhere = |lost: &&&str| **lost != path && name_of(lost) == name_of(path);
                let moved = lost.iter().find(elsewhere);
                if let Some(from) = moved {
                    return Err(refuse(&format!(
                        "database {} was moved from \"{from}\" to \"{path}\"",
                        name_of(path)
                    )));
                }
                if !is_logged(&root.join(path), start_lsn)? {
                    return Err(refuse(&format!(
                        "database {} was copied file by file, and database {}, which it may be a copy of, was dropped",
                        name_of(path),
                        lost.iter().map(|path| name_of(path)).collect::<Vec<_>>().join(" or ")
                    )));
                }
            }
            Ok(())
        })
        .await
    }
}

fn refuse(what: &str) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "{what} while it was being backed up: recovery would repeat that from a directory which this backup has \
             not seen whole, and leave the database empty"
        ),
    )
    .hint("start the backup again, when no ALTER DATABASE ... SET TABLESPACE or CREATE DATABASE ... STRATEGY = file_copy runs")
}

/// The OIDs of the database and of the tablespace in which it lies.
fn row_of(path: &str) -> Option<(u32, u32)> {
    let tablespace = match path.strip_prefix("pg_tblspc/") {
        Some(below) => below.split('/').next()?.parse().ok()?,
        None => Oid::DEFAULT_TABLESPACE.0,
    };
    Some((name_of(path).parse().ok()?, tablespace))
}

/// The OID, which is the directory's name.
fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn list(root: &Path) -> Result<BTreeMap<String, DirectoryIdentity>> {
    let mut parents = vec!["base".to_owned()];
    for tablespace in tablespaces(root)? {
        let own = format!("pg_tblspc/{}", tablespace.oid);
        let versions = names(&root.join(&own))?.unwrap_or_default();
        let versions = versions.iter().filter_map(|name| name.to_str());
        // What else is there is none of the server's business, such as the lost+found of a mount point.
        let versions = versions.filter(|name| Major::from_tablespace_directory(name).is_some());
        parents.extend(versions.map(|version| format!("{own}/{version}")));
    }
    let mut found = BTreeMap::new();
    for parent in parents {
        let directory = root.join(&parent);
        if !directory.is_dir() {
            continue;
        }
        let names = names(&directory)?.unwrap_or_default();
        let databases = names.iter().filter_map(|name| name.to_str());
        for name in databases.filter(|name| name.parse::<u32>().is_ok()) {
            let path = format!("{parent}/{name}");
            // In other tablespaces than its own a database has a directory without it, for relations that lie there.
            let full = root.join(&path);
            if !full.join("PG_VERSION").exists() {
                continue;
            }
            if let Some(metadata) = gone(fs::metadata(&full)).context(|| look(&full))? {
                found.insert(path, (metadata.dev(), metadata.ino(), identity(&metadata)));
            }
        }
    }
    Ok(found)
}

/// Whether nothing tells that the pages of a new database did not come with the WAL since `start_lsn`. Copied files keep
/// the LSNs of their source, and those of system catalogs are older than the backup; no copy of a source that has gone is
/// still under way.
fn is_logged(directory: &Path, start_lsn: Lsn) -> Result<bool> {
    for name in names(directory)?.unwrap_or_default() {
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        if number.is_none_or(|number| number >= FIRST_NORMAL) {
            continue;
        }
        let path = directory.join(name);
        let act = || format!("could not read \"{}\"", path.display());
        let Some(mut file) = gone(File::open(&path)).context(act)? else {
            continue;
        };
        let mut page = [0; BLOCK_SIZE];
        match file.read_exact(&mut page) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => continue,
            read => read.context(act)?,
        }
        let lsn = PageHeader::new(&page)?.lsn();
        if lsn != Lsn::INVALID && lsn < start_lsn {
            return Ok(false);
        }
    }
    Ok(true)
}
