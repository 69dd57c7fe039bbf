//! Files with hidden names: what a directory's objects are written to where the file system has no files without a name.
//!
//! Whoever is killed while he writes leaves such a file, as large as a pack, and no listing shows it. So an expiry looks for
//! them. One that is being written is locked; where the file system has no locks its age has to tell.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const START: char = '.';
const END: &str = ".tmp";
const DIGITS: usize = 32;

/// Nobody writes an object for so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A new one in that directory.
pub(super) fn path_in(directory: &Path) -> PathBuf {
    directory.join(format!("{START}{:0DIGITS$x}{END}", rand::random::<u128>()))
}

/// Says that somebody writes it. A file system without locks does without.
pub(super) fn lock(file: &File) {
    if let Err(error) = flock(file, FlockOperation::NonBlockingLockExclusive) {
        tracing::debug!(%error, "a file that is written to is not locked");
    }
}

fn is_hidden(name: &str) -> bool {
    let digits = name.strip_prefix(START).and_then(|n| n.strip_suffix(END));
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Removes those in `directory` and below whose writers were killed; answers how many. Links lead nowhere.
pub(super) fn collect(directory: &Path, now: SystemTime) -> io::Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        // The file system's own, as lost+found.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(0),
        entries => entries?,
    };
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        if kind.is_dir() {
            count += collect(&entry.path(), now)?;
        } else if kind.is_file()
            && name.to_str().is_some_and(is_hidden)
            && is_abandoned(&entry.path(), now)
        {
            fs::remove_file(entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

/// What cannot be looked at stays. A young one is not locked: its writer may be about to.
fn is_abandoned(path: &Path, now: SystemTime) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let written = file.metadata().and_then(|status| status.modified());
    let age = written.ok().and_then(|at| now.duration_since(at).ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
        && !matches!(
            flock(&file, FlockOperation::NonBlockingLockExclusive),
            Err(Errno::WOULDBLOCK)
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_writers_have_left_goes_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let below = scratch.path().join("main/wal/00000001");
        fs::create_dir_all(&below).unwrap();
        let [left, young, locked] = [0; 3].map(|_| path_in(&below));
        let object = below.join("000000010000000000000001");
        let other = below.join(".0123.tmp");
        let two_days_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        let mut held = None;
        for path in [&left, &young, &locked, &object, &other] {
            let file = File::create(path).unwrap();
            if path != &young {
                file.set_modified(two_days_ago).unwrap();
            }
            if path == &locked {
                lock(&file);
                held = Some(file);
            }
        }
        assert_eq!(collect(scratch.path(), SystemTime::now()).unwrap(), 1);
        assert!(!left.exists());
        assert!(
            [&young, &locked, &object, &other]
                .iter()
                .all(|path| path.exists())
        );
        drop(held);
        assert_eq!(collect(scratch.path(), SystemTime::now()).unwrap(), 1);
        assert!(!locked.exists());
        assert_eq!(
            collect(&scratch.path().join("absent"), SystemTime::now()).unwrap(),
            0
        );
    }
}
