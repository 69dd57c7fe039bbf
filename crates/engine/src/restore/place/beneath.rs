//! Files below a directory that is held open, reached without following any link.
//!
//! A restore by root writes where the server's user may write, too. A path that is looked up again can lead elsewhere by
//! then: a link put in the place of `base` would make root write, or delete, whatever it leads to. So nothing here goes
//! by a path from the root of the file system, and a link on the way is an error.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, readlinkat, renameat, statat,
    symlinkat, unlinkat,
};

use super::access;

/// What opens a directory, and nothing else.
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens `below`, a path below `dir`.
pub(crate) fn open(dir: &File, below: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Some(opened) = open_at_once(dir, below, flags, mode) {
        return opened;
    }
    match below.parent().filter(|above| !above.as_os_str().is_empty()) {
        None => Ok(openat(dir, below, flags, mode)?.into()),
        Some(_) => {
            let (above, name) = parent(dir, below)?;
            Ok(openat(&above, name, flags, mode)?.into())
        }
    }
}

/// Opens a file to read and to write it; `None` when there is none. One of our own whose mode forbids that gets another mode. It
/// is removed when it cannot be opened for that, or has other names, whose mode would change, too.
pub(crate) fn open_to_change(dir: &File, below: &Path) -> io::Result<Option<File>> {
    let open = |flags| open(dir, below, flags, Mode::empty());
    match open(OFlags::RDWR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
        opened => return opened.map(Some),
    }
    if let Ok(file) = open(OFlags::RDONLY | OFlags::NONBLOCK) {
        let status = file.metadata()?;
        if status.nlink() == 1 {
            let mode = status.mode() & 0o7777 | 0o600;
            file.set_permissions(Permissions::from_mode(mode))?;
            return open(OFlags::RDWR).map(Some);
        }
    }
    remove_file(dir, below)?;
    Ok(None)
}

/// Gives an open directory a mode that lets its owner work in it, if that is us.
pub(crate) fn widen(directory: &File) -> io::Result<()> {
    let status = directory.metadata()?;
    let mode = status.mode() & 0o7777;
    if mode & 0o700 == 0o700 || !access::belongs_to_us(&status) {
        return Ok(());
    }
    directory.set_permissions(Permissions::from_mode(mode | 0o700))
}

/// One system call, where the system has it; `None` where it has not, or a filter of system calls hides it.
#[cfg(target_os = "linux")]
fn open_at_once(dir: &File, below: &Path, flags: OFlags, mode: Mode) -> Option<io::Result<File>> {
    use rustix::fs::{ResolveFlags, openat2};
    use rustix::io::Errno;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(dir, below, flags, mode, how) {
        // Old container run-times answer EPERM to calls they do not know.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => None,
        opened => Some(opened.map(File::from).map_err(io::Error::from)),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_at_once(_: &File, _: &Path, _: OFlags, _: Mode) -> Option<io::Result<File>> {
    None
}

/// Opens a directory below `dir`, one part of its path after the other.
fn walk(dir: &File, below: &Path) -> io::Result<File> {
    let mut at = dir.try_clone()?;
    for part in below.components() {
        let Component::Normal(name) = part else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        at = openat(&at, name, DIRECTORY, Mode::empty())?.into();
    }
    Ok(at)
}

/// Opens the directory `below` of `dir`; an empty path is `dir` itself.
pub(crate) fn directory(dir: &File, below: &Path) -> io::Result<File> {
    if below.as_os_str().is_empty() {
        return dir.try_clone();
    }
    match open_at_once(dir, below, DIRECTORY, Mode::empty()) {
        Some(opened) => opened,
        None => walk(dir, below),
    }
}

/// The directory that holds `below`, and its name there.
pub(crate) fn parent<'p>(dir: &File, below: &'p Path) -> io::Result<(File, &'p OsStr)> {
    let name = below.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let above = below.parent().unwrap_or(Path::new(""));
    Ok((directory(dir, above)?, name))
}

/// Opens the directory at an absolute path without links, and makes what of it is not there. Returns it with the number
/// of directories made; `made` sees each.
pub(crate) fn make_all(
    path: &Path,
    mut made: impl FnMut(&File) -> io::Result<()>,
) -> io::Result<File> {
    let mut at: File = openat(CWD, "/", DIRECTORY, Mode::empty())?.into();
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        at = match enter(&at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mkdirat(&at, name, Mode::RWXU)?;
                let next = File::from(openat(&at, name, DIRECTORY, Mode::empty())?);
                made(&next)?;
                next
            }
            entered => entered?,
        };
    }
    Ok(at)
}

/// Opens the directory at an absolute path without links, and makes nothing.
pub(crate) fn open_all(path: &Path) -> io::Result<File> {
    let mut at: File = openat(CWD, "/", DIRECTORY, Mode::empty())?.into();
    for part in path.components() {
        if let Component::Normal(name) = part {
            at = enter(&at, name)?;
        }
    }
    Ok(at)
}

fn enter(at: &File, name: &OsStr) -> io::Result<File> {
    match openat(at, name, DIRECTORY, Mode::empty()) {
        Ok(next) => Ok(next.into()),
        // Somebody may let us pass, but not read.
        Err(rustix::io::Errno::ACCESS) => pass(at, name),
        Err(e) => Err(e.into()),
    }
}

#[cfg(target_os = "linux")]
fn pass(at: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?.into())
}

#[cfg(not(target_os = "linux"))]
fn pass(_: &File, _: &OsStr) -> io::Result<File> {
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Makes a directory; whether there was none.
pub(crate) fn make_directory(dir: &File, below: &Path) -> io::Result<bool> {
    let (above, name) = parent(dir, below)?;
    match mkdirat(&above, name, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Removes a file or a link.
pub(crate) fn remove_file(dir: &File, below: &Path) -> io::Result<()> {
    let (above, name) = parent(dir, below)?;
    Ok(unlinkat(&above, name, AtFlags::empty())?)
}

/// Removes an empty directory.
pub(crate) fn remove_directory(dir: &File, below: &Path) -> io::Result<()> {
    let (above, name) = parent(dir, below)?;
    Ok(unlinkat(&above, name, AtFlags::REMOVEDIR)?)
}

/// Removes whatever is there, with all it holds.
pub(crate) fn remove_all(dir: &File, below: &Path) -> io::Result<()> {
    let (above, name) = parent(dir, below)?;
    if FileType::from_raw_mode(statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
        != FileType::Directory
    {
        return Ok(unlinkat(&above, name, AtFlags::empty())?);
    }
    let directory = File::from(openat(&above, name, DIRECTORY, Mode::empty())?);
    widen(&directory)?;
    for inner in names(&directory)? {
        remove_all(&directory, Path::new(&inner))?;
    }
    Ok(unlinkat(&above, name, AtFlags::REMOVEDIR)?)
}

/// The names in a directory.
pub(crate) fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Makes a link that leads to `target`.
pub(crate) fn link(dir: &File, below: &Path, target: &Path) -> io::Result<()> {
    let (above, name) = parent(dir, below)?;
    Ok(symlinkat(target, &above, name)?)
}

/// Where a link leads; `None` when there is nothing, or no link.
pub(crate) fn read_link(dir: &File, below: &Path) -> io::Result<Option<OsString>> {
    let (above, name) = parent(dir, below)?;
    match readlinkat(&above, name, Vec::new()) {
        Ok(target) => Ok(Some(OsStr::from_bytes(target.to_bytes()).to_owned())),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Renames within one directory.
pub(crate) fn rename(dir: &File, from: &Path, to: &OsStr) -> io::Result<()> {
    let (above, name) = parent(dir, from)?;
    renameat(&above, name, &above, to)?;
    above.sync_all()
}

/// Whether anything is there, a link that leads nowhere included.
pub(crate) fn exists(dir: &File, below: &Path) -> io::Result<bool> {
    let (above, name) = parent(dir, below)?;
    match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The contents of a file; `None` when there is none.
pub(crate) fn read(dir: &File, below: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut contents = Vec::new();
    match open(dir, below, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(mut file) => file.read_to_end(&mut contents).map(|_| Some(contents)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_wherever_it_stands() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, outside) = (scratch.path().join("root"), scratch.path().join("outside"));
        fs::create_dir_all(root.join("base/5")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("file"), b"precious").unwrap();
        fs::write(root.join("base/5/file"), b"x").unwrap();
        symlink(&outside, root.join("base/6")).unwrap();
        symlink(outside.join("file"), root.join("base/5/link")).unwrap();
        symlink("5", root.join("base/7")).unwrap();
        let dir = File::open(&root).unwrap();
        let write = OFlags::WRONLY | OFlags::TRUNC;
        for path in [
            "base/6/file",
            "base/5/link",
            "base/7/file",
            "../outside/file",
        ] {
            let path = Path::new(path);
            assert!(open(&dir, path, write, Mode::empty()).is_err(), "{path:?}");
            assert!(walk(&dir, path).is_err(), "{path:?}");
        }
        for path in [
            "base/6/file",
            "base/6/new",
            "base/7/file",
            "../outside/file",
        ] {
            let path = Path::new(path);
            assert!(remove_file(&dir, path).is_err(), "{path:?}");
            assert!(remove_all(&dir, path).is_err(), "{path:?}");
            assert!(make_directory(&dir, path).is_err(), "{path:?}");
            assert!(link(&dir, path, Path::new("/")).is_err(), "{path:?}");
            assert!(
                rename(&dir, path, OsStr::new("renamed")).is_err(),
                "{path:?}"
            );
        }
        assert!(open(&dir, Path::new("base/5/file"), write, Mode::empty()).is_ok());
        assert!(make_all(&root.join("base/6/new"), |_| Ok(())).is_err());
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
        assert!(!outside.join("new").exists());
        // Removing a tree removes links, not what they lead to.
        remove_all(&dir, Path::new("base")).unwrap();
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
        assert!(!root.join("base").exists());
    }

    #[test]
    fn directories_are_made_and_seen_one_by_one() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let mut made = 0;
        let count = |_: &File| {
            made += 1;
            Ok(())
        };
        let directory = root.join("a/b/c");
        let error = open_all(&directory).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!root.join("a").exists());
        make_all(&directory, count).unwrap();
        assert_eq!(made, 3);
        assert!(directory.is_dir());
        open_all(&directory).unwrap();
    }
}
