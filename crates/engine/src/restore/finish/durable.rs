//! Making a whole directory tree durable.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgstrata_store::direct;
use pgstrata_store::error::{FileContext, Result};

use crate::restore::place::claim::Root;
use crate::restore::place::layout::LOST_FOUND;

/// Makes everything below `roots`, and the entries that lead to them, durable.
pub(crate) fn sync(roots: &[Root]) -> Result<()> {
    let mut synced = BTreeSet::new();
    for root in roots {
        let about = || format!("could not fsync the files in \"{}\"", root.path.display());
        let device = root.dir.metadata().context(about)?.dev();
        if synced.contains(&device) {
            continue;
        }
        if sync_file_system(root).context(about)? {
            synced.insert(device);
            sync_mounted(root, device)?;
        } else {
            sync_tree(&root.path)?;
        }
    }
    for root in roots {
        root.sync()?;
        for ancestor in root.path.ancestors().skip(1) {
            if !sync_above(ancestor)? {
                break;
            }
        }
    }
    Ok(())
}

/// Syncs a directory above; false when it cannot be one of ours.
fn sync_above(directory: &Path) -> Result<bool> {
    let about = || format!("could not fsync \"{}\"", directory.display());
    let opened = match File::open(directory) {
        // One that we may pass through but not read is not ours to have changed.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        opened => opened.context(about)?,
    };
    match opened.sync_all() {
        // Some file systems sync no directories (autofs): PostgreSQL goes on there, too (fd.c, fsync_fname_ext).
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(true),
        synced => synced.context(about).map(|()| true),
    }
}

/// Syncs the directories in `root` at which another file system begins, as that of WAL may.
fn sync_mounted(root: &Root, device: u64) -> Result<()> {
    let about = || format!("could not fsync the files in \"{}\"", root.path.display());
    for entry in fs::read_dir(&root.path).context(about)? {
        let entry = entry.context(about)?;
        let found = entry.metadata().context(about)?;
        if found.is_dir() && found.dev() != device {
            sync_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Syncs the file system of `root` at once where that is known to write everything and to report what failed;
/// otherwise returns false. `root` was opened before anything was written, so no failure escapes it.
#[cfg(target_os = "linux")]
fn sync_file_system(root: &Root) -> io::Result<bool> {
    /// With Btrfs, F2FS, tmpfs. Network, FUSE and stacked file systems may not pass the request on.
    const KNOWN: [u64; 5] = [
        direct::EXT,
        direct::XFS,
        0x9123_683E,
        0xF2F5_2010,
        0x0102_1994,
    ];
    if !direct::is_on(&root.dir, &KNOWN)? || !syncfs_reports_errors() {
        return Ok(false);
    }
    match rustix::fs::syncfs(&root.dir) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system(_root: &Root) -> io::Result<bool> {
    Ok(false)
}

/// Since Linux 5.8 `syncfs` fails when a page could not be written.
#[cfg(target_os = "linux")]
fn syncfs_reports_errors() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= (5, 8)
}

/// Every file, then the directory it is in. Does not follow links. What the file system itself has is not looked into: it is
/// root's.
fn sync_tree(directory: &Path) -> Result<()> {
    let about = |path: &Path| format!("could not fsync \"{}\"", path.display());
    for entry in fs::read_dir(directory).context(|| about(directory))? {
        let entry = entry.context(|| about(directory))?;
        let path = entry.path();
        if entry.file_name() == LOST_FOUND {
            continue;
        }
        let kind = entry.file_type().context(|| about(&path))?;
        if kind.is_dir() {
            sync_tree(&path)?;
        } else if kind.is_file() {
            File::open(&path)
                .and_then(|file| file.sync_all())
                .context(|| about(&path))?;
        }
    }
    File::open(directory)
        .and_then(|file| file.sync_all())
        .context(|| about(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_can_be_synced_file_by_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(directory.path().join("below/file"), b"x").unwrap();
        std::os::unix::fs::symlink("nowhere", directory.path().join("link")).unwrap();
        sync_tree(directory.path()).unwrap();
    }

    #[test]
    fn a_directory_above_whose_file_system_syncs_none_is_passed_over() {
        assert!(sync_above(Path::new("/proc")).unwrap());
    }
}
