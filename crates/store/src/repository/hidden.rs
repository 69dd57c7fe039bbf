//! Files with hidden names: what a directory's objects are written to where the file system has no files without a name.
//!
//! Whoever is killed while he writes leaves such a file, as large as a pack, and no listing shows it. So an expiry looks for
//! them. One that is being written is locked; where the file system has no locks its age has to tell.

use std::fs::{self, DirEntry, File};
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

/// Removes those in `directory` and below whose writers were killed; answers how many. Links lead nowhere. What cannot be looked
/// at or removed stays: another expiry may have removed it, and a directory may be the file system's own, as lost+found.
pub(super) fn collect(directory: &Path, now: SystemTime) -> usize {
    let entries = match fs::read_dir(directory) {
        Err(error) => {
            tracing::debug!(%error, "\"{}\" is not looked through", directory.display());
            return 0;
        }
        Ok(entries) => entries,
    };
    let entries = entries.filter_map(Result::ok);
    entries.map(|entry| collect_one(&entry, now)).sum()
}

fn collect_one(entry: &DirEntry, now: SystemTime) -> usize {
    let path = entry.path();
    let name = entry.file_name();
    match entry.file_type() {
        Ok(kind) if kind.is_dir() => collect(&path, now),
        Ok(kind)
            if kind.is_file()
                && name.to_str().is_some_and(is_hidden)
                && is_abandoned(&path, now) =>
        {
            let removed = fs::remove_file(&path);
            if let Err(error) = &removed {
                tracing::debug!(%error, "\"{}\" stays", path.display());
            }
            usize::from(removed.is_ok())
        }
        _ => 0,
    }
}

/// What cannot be looked at stays. A young one is not locked: its writer may be about to.
fn is_abandoned(path: &Path, now: SystemTime) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let written = file.metadata().and_then(|status| status.modified());
    let age = written.ok().and_then(|at| now.duration_since(at).ok());
    // NFS gives an exclusive lock to those alone who have opened the file to write (flock(2)).
    age.is_some_and(|age| age > ABANDONED_AFTER)
        && !matches!(
            flock(&file, FlockOperation::NonBlockingLockShared),
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
        assert_eq!(collect(scratch.path(), SystemTime::now()), 1);
        assert!(!left.exists());
        assert!(
            [&young, &locked, &object, &other]
                .iter()
                .all(|path| path.exists())
        );
        drop(held);
        assert_eq!(collect(scratch.path(), SystemTime::now()), 1);
        assert!(!locked.exists());
        let absent = scratch.path().join("absent");
        assert_eq!(collect(&absent, SystemTime::now()), 0);
    }

    #[test]
    fn what_another_expiry_removes_first_is_no_failure() {
        let scratch = tempfile::tempdir().unwrap();
        let two_days_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        for _ in 0..200 {
            let file = File::create(path_in(scratch.path())).unwrap();
            file.set_modified(two_days_ago).unwrap();
        }
        let counts = std::thread::scope(|scope| {
            let collects = || collect(scratch.path(), SystemTime::now());
            let both = [scope.spawn(collects), scope.spawn(collects)];
            both.map(|collector| collector.join().unwrap())
        });
        assert_eq!(counts.iter().sum::<usize>(), 200);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
