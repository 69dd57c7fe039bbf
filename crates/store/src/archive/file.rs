//! Files of this machine that the archive writes: without a name until they are whole.
//!
//! The server or an administrator may kill this program at any moment, and nobody looks for what it left in `pg_wal`.
//! So a file has no name while it is written, and its blocks go with the process. Where the file system has no such files
//! it has a hidden name, and the next writer of the same file removes those that nobody writes to any more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, FileContext, Kind, Result};

/// WAL holds what tables hold: for its owner's eyes, and where the data directory is open to a group, for that group's, which
/// may have to back it up. PostgreSQL runs its commands with the umask that says so.
const MODE: u32 = 0o640;

/// Refuses what is there and no file: a file would take the place of a device, a pipe or a link.
pub(super) fn require_replaceable(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path).map(|found| found.file_type()) else {
        // What keeps it from being looked at keeps it from being written.
        return Ok(());
    };
    let is = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => "a directory",
        found if found.is_symlink() => "a link",
        found if found.is_fifo() => "a named pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    let what = format!(
        "could not write \"{}\": it is {is}, and no file",
        path.display()
    );
    Err(Error::new(Kind::File, what).hint("give the path of a file"))
}

/// A file on its way to `path`. Dropped before [`NewFile::publish`], it leaves nothing.
pub(super) struct NewFile {
    file: File,
    path: PathBuf,
    /// Its name until then, where it must have one.
    hidden: Option<PathBuf>,
}

impl NewFile {
    /// A file in the directory of `path`, which nobody sees.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let created = unnamed(path).and_then(|unnamed| match unnamed {
            Some(file) => Ok((file, None)),
            None => hidden(path),
        });
        let (file, hidden) =
            created.context(|| format!("could not create \"{}\"", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            hidden,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.context(|| format!("could not write \"{}\"", self.path.display()))
    }

    /// Gives the file its name, replacing what had it.
    ///
    /// Not synced: a spool's reader can tell damage, and the server syncs a restored file itself when it
    /// decides to keep it (`KeepFileRestoredFromArchive` in `xlogarchive.c` ends in `durable_rename`).
    pub(super) fn publish(mut self) -> Result<()> {
        let published = match self.hidden.take() {
            Some(hidden) => {
                let renamed = fs::rename(&hidden, &self.path);
                if renamed.is_err() {
                    self.hidden = Some(hidden);
                }
                renamed
            }
            None => link(&self.file, &self.path),
        };
        published.context(|| format!("could not write \"{}\"", self.path.display()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // Nothing to be done if even that fails; the next writer tries again.
            let _ = fs::remove_file(hidden);
        }
    }
}

/// A file without a name beside `path`; `None` where there are none.
fn unnamed(path: &Path) -> io::Result<Option<File>> {
    // Its name comes through /proc.
    if !Path::new("/proc/self/fd").exists() {
        return Ok(None);
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(directory_of(path), flags, Mode::from_raw_mode(MODE)) {
        Ok(fd) => Ok(Some(File::from(fd))),
        // No O_TMPFILE here (NFS, FUSE, overlays): EOPNOTSUPP, EISDIR or EINVAL, by kernel.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Links an unnamed file under `path`. A link replaces nothing: what had the name goes first. The server removes
/// it itself before it asks.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    loop {
        match rustix::fs::linkat(CWD, &unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            linked => return Ok(linked?),
        }
    }
}

/// A file with a hidden name, locked while it is written.
fn hidden(path: &Path) -> io::Result<(File, Option<PathBuf>)> {
    let start = hidden_start(path);
    remove_abandoned(directory_of(path), &start);
    let name = format!("{start}{:016x}.tmp", rand::random::<u64>());
    let hidden = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&hidden)?;
    // A file system without locks has no abandoned files either, as far as can be told.
    let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok((file, Some(hidden)))
}

fn hidden_start(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.")
}

/// Removes hidden files whose writers were killed.
fn remove_abandoned(directory: &Path, start: &str) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with(start) && name.ends_with(".tmp")) {
            continue;
        }
        let free = File::open(entry.path()).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if free {
            let _ = fs::remove_file(entry.path());
        }
    }
}

pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_no_name_before_it_is_whole_and_replaces_what_had_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("RECOVERYXLOG");
        fs::write(&path, b"old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"new").unwrap();
        assert_eq!(names(directory.path()), ["RECOVERYXLOG"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        drop(NewFile::create(&path).unwrap());
        assert_eq!(names(directory.path()), ["RECOVERYXLOG"]);
    }

    /// The server's commands have the umask that its data directory asks for.
    #[test]
    fn a_group_reads_what_the_umask_lets_it_read() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let before = rustix::process::umask(Mode::from_raw_mode(0o027));
        let path = directory.path().join("RECOVERYXLOG");
        let ours = NewFile::create(&path).and_then(NewFile::publish);
        let (_file, named) = hidden(&path).unwrap();
        rustix::process::umask(before);
        ours.unwrap();
        assert_eq!((mode(&path), mode(&named.unwrap())), (0o640, 0o640));
    }

    #[test]
    fn what_killed_writers_left_goes_and_what_is_being_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("RECOVERYXLOG");
        let other = directory.path().join("RECOVERYHISTORY");
        let (at_work, kept) = hidden(&path).unwrap();
        let (killed, gone) = hidden(&path).unwrap();
        let (of_another, stays) = hidden(&other).unwrap();
        drop((killed, of_another));
        let (_file, new) = hidden(&path).unwrap();
        assert!(kept.unwrap().exists() && new.unwrap().exists() && stays.unwrap().exists());
        assert!(!gone.unwrap().exists());
        drop(at_work);
    }
}
