//! What is mounted among the files of a cluster.
//!
//! Nobody can remove a mount point, or put another thing in its place. All that the mounted file system holds can be removed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pgstrata_store::error::{Error, Kind, Result};

/// Says for each mount where it is. Directories and files can be mounted out of the file system that they are in.
const TABLE: &str = "/proc/self/mountinfo";

/// Where something is mounted.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    listed: BTreeSet<PathBuf>,
}

impl Mounts {
    /// As the system lists them now; none where it does not.
    pub(crate) fn now() -> Self {
        let table = fs::read(TABLE).unwrap_or_default();
        let lines = table.split(|&byte| byte == b'\n');
        Self {
            listed: lines.filter_map(mount_point).collect(),
        }
    }

    /// Whether something is mounted at a path without links. A directory shows it without any list.
    pub(crate) fn has(&self, path: &Path, is_directory: bool) -> bool {
        self.listed.contains(path) || is_directory && begins_file_system(path)
    }

    /// Refuses what is mounted at the path, or below it as far as the system lists that, for who removes all that is there. No
    /// link is followed.
    pub(super) fn refuse_within(&self, path: &Path) -> Result<()> {
        let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        match self.listed.iter().find(|mount| mount.starts_with(path)) {
            Some(mount) => Err(in_the_way(mount)),
            None if self.has(path, is_directory) => Err(in_the_way(path)),
            None => Ok(()),
        }
    }
}

/// All that the mounted file system holds would be gone before it is known that its place cannot be removed.
pub(super) fn in_the_way(place: &Path) -> Error {
    let what = format!(
        "the restore could not remove or replace \"{}\": something is mounted there",
        place.display()
    );
    Error::new(Kind::Refused, what).hint(
        "Unmount it, and mount it outside of the cluster's directories. Only a directory that the layer has may be mounted there, \
         and one that --wal-dir or --tablespace-map puts elsewhere may not.",
    )
}

/// Whether a file system begins at the directory.
fn begins_file_system(directory: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let above = directory.parent().and_then(device);
    above.is_some() && above != device(directory)
}

/// The fifth field of a line of the table. Blanks and the like are written as octal numbers in it.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mut rest = line.split(|&byte| byte == b' ').nth(4)?;
    let mut path = Vec::with_capacity(rest.len());
    while let [byte, after @ ..] = rest {
        let digits = after.first_chunk::<3>().filter(|_| *byte == b'\\');
        let escaped = digits.and_then(|digits| octal(digits));
        path.push(escaped.unwrap_or(*byte));
        rest = match escaped {
            Some(_) => &after[3..],
            None => after,
        };
    }
    Some(PathBuf::from(OsString::from_vec(path)))
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = str::from_utf8(digits).ok()?;
    u8::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_blanks_and_backslashes() {
        let line =
            b"36 35 98:0 /mnt1 /srv/my\\040data\\134x\\9 rw,noatime master:1 - ext3 /dev/root rw";
        let found = mount_point(line).unwrap();
        assert_eq!(found, Path::new("/srv/my data\\x\\9"));
        assert_eq!(mount_point(b"36 35 98:0"), None);
        assert_eq!(mount_point(b""), None);
    }

    #[test]
    fn what_is_mounted_in_a_directory_that_goes_is_refused_at_any_depth() {
        let mounts = Mounts {
            listed: BTreeSet::from(["/data/pg_wal/archive_status", "/other"].map(PathBuf::from)),
        };
        for place in ["/data/pg_wal", "/data/pg_wal/archive_status"] {
            let error = mounts.refuse_within(Path::new(place)).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            let said = error.to_string();
            assert!(said.contains("\"/data/pg_wal/archive_status\""), "{said}");
        }
        for place in ["/data/pg_wa", "/data/pg_wal/0", "/data/pg_wal2"] {
            mounts.refuse_within(Path::new(place)).unwrap();
        }
        let unlisted = Mounts::default();
        assert!(unlisted.refuse_within(Path::new("/proc")).is_err());
    }

    #[test]
    fn what_is_mounted_is_known_and_an_ordinary_directory_is_none() {
        let mounts = Mounts::now();
        assert!(mounts.has(Path::new("/proc"), true));
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        fs::create_dir(root.join("directory")).unwrap();
        fs::write(root.join("file"), b"x").unwrap();
        assert!(!mounts.has(&root.join("directory"), true));
        assert!(!mounts.has(&root.join("file"), false));
    }
}
