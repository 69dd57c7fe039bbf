//! One lab at a time on a machine: two would measure each other.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;

use crate::interrupt;

/// Holds the machine; dropping it lets the next lab begin.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// The file that is locked.
#[must_use]
pub fn path() -> PathBuf {
    std::env::var_os("PGSTRATA_LAB_LOCK").map_or_else(
        || std::env::temp_dir().join("pgstrata-lab.lock"),
        PathBuf::from,
    )
}

/// Everybody's: two users' labs would measure each other, too. What it says is for people alone.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// The file, and whether its holder's name can be written. It is created only where it is not there: the kernel refuses
/// to create over another user's file in /tmp, whatever its mode (`fs.protected_regular`). A link is not followed.
fn open(path: &Path) -> rustix::io::Result<(File, bool)> {
    let open = |access: OFlags| {
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(path, flags, MODE).map(File::from)
    };
    loop {
        match open(OFlags::RDWR) {
            Ok(file) => return Ok((file, true)),
            // To lock it, reading it is enough.
            Err(Errno::ACCESS | Errno::ROFS) => {
                return open(OFlags::RDONLY).map(|file| (file, false));
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        match open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => {
                // Without what the umask takes away.
                fchmod(&file, MODE)?;
                return Ok((file, true));
            }
            // Somebody else came first.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until no other lab runs here; says for whom through `tell`.
///
/// # Errors
/// Fails when the file cannot be opened, or when interrupted.
pub fn acquire(mut tell: impl FnMut(&str)) -> Result<Lock> {
    let path = path();
    let opened = open(&path);
    let (mut file, is_writable) =
        opened.with_context(|| format!("could not open lock \"{}\"", path.display()))?;
    let mut told = false;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if !told {
            let mut holder = String::new();
            // A holder that cannot be read is still a holder.
            let _ = file.read_to_string(&mut holder);
            let _ = file.rewind();
            tell(&format!(
                "waiting for another lab on this machine: {}",
                holder.trim()
            ));
            told = true;
        }
        interrupt::sleep(Duration::from_millis(200))?;
    }
    if !is_writable {
        // Whoever waits meanwhile reads the name of an earlier holder.
        return Ok(Lock { _file: file });
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| {
            writeln!(
                file,
                "process {} since {}",
                std::process::id(),
                crate::measure::result::timestamp()
            )
        })
        .with_context(|| format!("could not write lock \"{}\"", path.display()))?;
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::open;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_lock_is_made_for_every_user_and_through_no_link() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("lock");
        let (file, is_writable) = open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        assert!(is_writable);
        assert!(open(&path).is_ok());
        let link = scratch.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(open(&link).is_err());
    }
}
