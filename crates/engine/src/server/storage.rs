//! Whether databases lie here in the directories that the server writes to.
//!
//! The control file shows it of the data directory. A tablespace may be mounted elsewhere: in the server's mount namespace
//! alone, or since this one was made. What lies below a mount point is then taken for the tablespace: nothing, or an old copy.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use pgstrata_pgdata::Major;
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::Session;
use super::scan::{gone, look, names, tablespaces};

/// `DEFAULTTABLESPACE_OID` (`catalog/pg_tablespace.dat`).
const DEFAULT_TABLESPACE: u32 = 1663;

/// Databases come and go, and with them the times of their directory: so often and in so long steps both sides are asked again.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// The directory that holds the directories of databases in one tablespace.
#[derive(Clone, Debug)]
struct Holder {
    tablespace: u32,
    /// Below the data directory.
    path: String,
}

/// What one side sees of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    /// Databases that have files there.
    pub(super) databases: BTreeSet<u32>,
    /// When its list and its attributes were changed last, in seconds since 1970; `None` when the role may not see it.
    pub(super) times: Option<(i64, i64)>,
}

enum Here {
    /// The tablespace was dropped.
    Dropped,
    /// There is a link that leads to nothing of this version.
    Nothing,
    Seen(Sight),
}

/// Requires that the directories of databases are those of the server, as far as its role may look.
///
/// # Errors
/// `Kind::Refused`, naming the first that is another one; when the server does not answer, or a directory cannot be read.
pub(crate) async fn require_visible(
    session: &Session,
    data_directory: &Path,
    major: Major,
) -> Result<()> {
    let root = data_directory.to_owned();
    for holder in blocking(move || holders(&root, major)).await? {
        let mut tries = 1;
        while let Some(why) = difference(session, data_directory, &holder).await? {
            if tries == TRIES {
                return Err(refused(data_directory, &holder, &why));
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

fn refused(data_directory: &Path, holder: &Holder, why: &str) -> Error {
    let directory = data_directory.join(&holder.path);
    let what = format!(
        "\"{}\" is not what the server has there: {why}",
        directory.display()
    );
    Error::new(Kind::Refused, what).hint(
        "look for a mount that only the server sees, or one that hides its files here; pgstrata must run where the server does",
    )
}

fn holders(data_directory: &Path, major: Major) -> Result<Vec<Holder>> {
    let default = Holder {
        tablespace: DEFAULT_TABLESPACE,
        path: "base".to_owned(),
    };
    let others = tablespaces(data_directory)?
        .into_iter()
        .map(|other| Holder {
            tablespace: other.oid,
            path: format!("pg_tblspc/{}/{}", other.oid, major.tablespace_directory()),
        });
    Ok(std::iter::once(default).chain(others).collect())
}

/// What the two sides see differently; `None` when nothing, or when the tablespace has gone.
async fn difference(
    session: &Session,
    data_directory: &Path,
    holder: &Holder,
) -> Result<Option<String>> {
    let (root, ours) = (data_directory.to_owned(), holder.clone());
    let here = match blocking(move || sight(&root, &ours)).await? {
        Here::Dropped => return Ok(None),
        Here::Nothing => return Ok(Some("it is not there".to_owned())),
        Here::Seen(here) => here,
    };
    let there = session.sight(holder.tablespace, &holder.path).await?;
    Ok(compared(&here, &there))
}

fn compared(here: &Sight, there: &Sight) -> Option<String> {
    let only =
        |one: &Sight, other: &Sight| one.databases.difference(&other.databases).next().copied();
    if let Some(database) = only(there, here) {
        return Some(format!(
            "the server has files of database {database} in it, which are not there"
        ));
    }
    if let Some(database) = only(here, there) {
        return Some(format!(
            "files of database {database} are there, which the server does not have"
        ));
    }
    let differ = there.times.is_some() && there.times != here.times;
    differ.then(|| "the server sees other times of its last changes".to_owned())
}

fn sight(root: &Path, holder: &Holder) -> Result<Here> {
    let directory = root.join(&holder.path);
    let about = || look(&directory);
    let seen = gone(fs::metadata(&directory)).context(about)?;
    let listed = names(&directory)?;
    let (Some(metadata), Some(listed)) = (seen, listed) else {
        // The link, of a tablespace.
        let link = directory.parent().map(fs::symlink_metadata);
        let has_gone = link.is_some_and(|link| matches!(gone(link), Ok(None)));
        return Ok(if has_gone {
            Here::Dropped
        } else {
            Here::Nothing
        });
    };
    let mut databases = BTreeSet::new();
    for name in listed {
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let path = directory.join(name);
        // As `pg_tablespace_databases` (utils/adt/misc.c): empty ones do not count.
        if path.is_dir() && names(&path)?.is_some_and(|files| !files.is_empty()) {
            databases.insert(number);
        }
    }
    Ok(Here::Seen(Sight {
        databases,
        times: Some((metadata.mtime(), metadata.ctime())),
    }))
}
