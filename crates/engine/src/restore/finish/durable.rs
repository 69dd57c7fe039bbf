//! Making a whole directory tree durable.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_store::direct;
use pgstrata_store::error::{FileContext, Result};

use crate::restore::place::claim::Root;
use crate::restore::place::layout::LOST_FOUND;
use crate::restore::place::mounts::Mounts;

/// Makes everything below `roots`, and the entries that lead to them, durable.
pub(crate) fn sync(roots: &[Root]) -> Result<()> {
    let (mut synced, mounts) = (BTreeSet::new(), Mounts::now());
    for root in roots {
        let about = || format!("could not fsync the files in \"{}\"", root.path.display());
        let device = root.dir.metadata().context(about)?.dev();
        if !synced.contains(&device) && sync_file_system(root).context(about)? {
            synced.insert(device);
        }
        match synced.contains(&device) {
            true => sync_mounted(&root.path, &synced, &mounts)?,
            false => sync_tree(&root.path)?,
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

/// Syncs what lies below `directory` on other file systems than those that are `synced`, as that of a database may.
fn sync_mounted(directory: &Path, synced: &BTreeSet<u64>, mounts: &Mounts) -> Result<()> {
    let is_synced = |entry: &DirEntry, is_directory: bool| -> io::Result<bool> {
        let may_be_mounted = is_directory || mounts.has(&entry.path(), false);
        Ok(!may_be_mounted || synced.contains(&entry.metadata()?.dev()))
    };
    for path in unsynced(directory, &is_synced)? {
        match path.is_dir() {
            true => sync_tree(&path)?,
            false => sync_file(&path)?,
        }
    }
    Ok(())
}

/// The directories and files below `directory`, at any depth, that are not synced. What such a directory holds is not looked at.
fn unsynced(
    directory: &Path,
    is_synced: &impl Fn(&DirEntry, bool) -> io::Result<bool>,
) -> Result<Vec<PathBuf>> {
    let about = || format!("could not look into \"{}\"", directory.display());
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        // One that we may not read is not ours to have changed.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(found),
        entries => entries.context(about)?,
    };
    for entry in entries {
        let entry = entry.context(about)?;
        let kind = entry.file_type().context(about)?;
        if entry.file_name() == LOST_FOUND || !(kind.is_dir() || kind.is_file()) {
            continue;
        }
        if !is_synced(&entry, kind.is_dir()).context(about)? {
            found.push(entry.path());
        } else if kind.is_dir() {
            found.extend(unsynced(&entry.path(), is_synced)?);
        }
    }
    Ok(found)
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
            sync_file(&path)?;
        }
    }
    sync_file(directory)
}

/// Syncs a file, or what a directory itself says.
fn sync_file(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .context(|| format!("could not fsync \"{}\"", path.display()))
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
    fn what_is_mounted_is_found_at_any_depth_and_synced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["base/5/deep", "lost+found/5"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["base/5/1", "base/1", "top"] {
            fs::write(at(name), b"x").unwrap();
        }
        std::os::unix::fs::symlink(at("base/5"), at("link")).unwrap();
        let mounted = [at("base/1"), at("base/5")];
        let is_synced = |entry: &DirEntry, _: bool| -> io::Result<bool> {
            Ok(!mounted.contains(&entry.path()))
        };
        let mut found = unsynced(directory.path(), &is_synced).unwrap();
        found.sort_unstable();
        assert_eq!(found, mounted);
        // No file system counts as synced here.
        sync_mounted(directory.path(), &BTreeSet::new(), &Mounts::now()).unwrap();
    }

    #[test]
    fn a_directory_above_whose_file_system_syncs_none_is_passed_over() {
        assert!(sync_above(Path::new("/proc")).unwrap());
    }
}
