//! What lies in `pg_wal`: files that wait for the archiver, segments, and the room that is left.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use pgstrata_store::archive::{ArchiverMark, archiver_marks};
use pgstrata_store::error::{FileContext, Result};
use rustix::fs::statvfs;

/// What lies in `pg_wal`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalDirectory {
    pub(crate) waiting: Waiting,
    /// Bytes of segments.
    pub(crate) segment_bytes: u64,
    /// Bytes that the server may still write to the file system.
    pub(crate) free_bytes: u64,
}

/// Files that wait for the archiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) count: u64,
    /// The one that has waited longest, and since when.
    pub(crate) first: Option<(SystemTime, String)>,
}

/// Looks into the directory.
///
/// # Errors
/// `File` when it cannot be read.
pub(crate) fn look(pg_wal: &Path) -> Result<WalDirectory> {
    let about = || format!("could not look into \"{}\"", pg_wal.display());
    let mut found = WalDirectory {
        waiting: waiting(pg_wal)?,
        ..WalDirectory::default()
    };
    for entry in fs::read_dir(pg_wal).context(about)? {
        let entry = entry.context(about)?;
        let name = entry.file_name();
        let is_segment =
            name.len() == 24 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
        if is_segment {
            found.segment_bytes += entry.metadata().map_or(0, |meta| meta.len());
        }
    }
    let space = statvfs(pg_wal).map_err(io::Error::from).context(about)?;
    found.free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(found)
}

/// What the server has marked for its archiver.
///
/// # Errors
/// `File` when it cannot be read.
pub(crate) fn waiting(pg_wal: &Path) -> Result<Waiting> {
    let mut found = Waiting::default();
    for (file, mark) in archiver_marks(pg_wal, ArchiverMark::Ready)? {
        found.count += 1;
        // It may have been archived by now.
        let Ok(modified) = mark.metadata().and_then(|meta| meta.modified()) else {
            continue;
        };
        let this = (modified, file);
        found.first = Some(match found.first.take() {
            Some(first) => first.min(this),
            None => this,
        });
    }
    Ok(found)
}
