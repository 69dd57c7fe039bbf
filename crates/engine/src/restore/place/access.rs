//! What a restore may not change.
//!
//! In place, a mode that keeps its owner from writing is no obstacle: its owner may change it, and the restore does so when it has begun.
//! An obstacle is what belongs to another user, what is immutable, and what lies on a file system that is mounted read-only. That
//! is found here before anything is changed: without its `pg_control` a cluster is of no use until the restore is complete.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Whether we may give it another mode.
pub(crate) fn is_ours(status: &Metadata) -> bool {
    geteuid().is_root() || belongs_to_us(status)
}

/// What root may do to the files of others is left to the kernel: in a container, or on a network, it may be nothing.
pub(super) fn belongs_to_us(status: &Metadata) -> bool {
    status.uid() == geteuid().as_raw()
}

/// Refuses a directory of another user into which somebody lets us write: at its end the restore sets the mode of the directory.
pub(super) fn require_own(directory: &Path) -> Result<()> {
    let status = match fs::metadata(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        status => status.context(|| format!("could not look at \"{}\"", directory.display()))?,
    };
    if is_ours(&status) {
        return Ok(());
    }
    let what = format!(
        "\"{}\" belongs to another user ({}): the restore could not set its permissions",
        directory.display(),
        status.uid()
    );
    Err(Error::new(Kind::Refused, what).hint(
        "Give it to the user that runs the restore (chown), or choose another directory, or restore as root.",
    ))
}

/// Refuses a file or directory that we could not change whatever its mode were.
pub(super) fn require_changeable(path: &Path, status: &Metadata) -> Result<()> {
    let is_directory = status.is_dir();
    let wanted = match is_directory {
        true => Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
        false => Access::READ_OK | Access::WRITE_OK,
    };
    match allowed(path, wanted) {
        // The restore sets the mode of every directory.
        Ok(()) if is_directory && !is_ours(status) => Err(refusal(path, status, Errno::ACCESS)),
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS) if belongs_to_us(status) && is_widened(status) => Ok(()),
        Err(error) => Err(refusal(path, status, error)),
    }
}

fn allowed(path: &Path, wanted: Access) -> rustix::io::Result<()> {
    match accessat(CWD, path, wanted, AtFlags::EACCESS) {
        // Old container run-times answer so to calls they do not know; this one is older than they are.
        Err(Errno::PERM) => accessat(CWD, path, wanted, AtFlags::empty()),
        answer => answer,
    }
}

/// Whether it has a mode that the restore changes, so that its owner may write. What is in a directory that its owner may not
/// read has not been looked at, so such a one is left to him.
fn is_widened(status: &Metadata) -> bool {
    match status.is_dir() {
        true => status.mode() & 0o700 == 0o500,
        false => status.mode() & 0o600 != 0o600,
    }
}

fn refusal(path: &Path, status: &Metadata, error: Errno) -> Error {
    let is_foreign = error == Errno::ACCESS && !belongs_to_us(status);
    let why = match is_foreign {
        true => format!("it belongs to another user ({})", status.uid()),
        false => io::Error::from(error).to_string(),
    };
    let hint = match error {
        Errno::ACCESS if is_foreign => {
            "Give it to the user that runs the restore (chown), or move it out of the directory, or restore as root."
        }
        Errno::ACCESS => "Let its owner read and write it (chmod -R u+rwX).",
        Errno::PERM => "It may be immutable: lsattr shows that, and chattr -i ends it.",
        _ => "Make it writable, or move it out of the directory.",
    };
    let what = format!("the restore could not change \"{}\": {why}", path.display());
    Error::new(Kind::Refused, what).hint(hint)
}
