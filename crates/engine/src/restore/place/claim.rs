//! The directories of a restore at work: created, held open, locked, marked and cleared.
//!
//! Whatever is done in them goes by the open directory, never by its path: see [`super::beneath`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::iter;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _};
use std::path::{Path, PathBuf};

use pgstrata_pgdata::LOCK_FILE;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, statat};
use rustix::io::Errno;

use super::beneath;
use super::layout::{
    CONTROL, DirectoryState, LOST_FOUND, Layout, MARKER, MARKER_BESIDE, Marker, Seen, is_own_name,
    nearest_existing, occupied, state_of_other,
};
use super::running::{refuse_other_server, refuse_running_server};
use crate::server::lineage;

/// Where the control file waits until it is certain that no server was started meanwhile.
const CONTROL_ASIDE: &str = "global/pg_control.before-restore";

/// A directory of the restore, held open.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) path: PathBuf,
    pub(crate) dir: File,
}

/// The directories of a restore that has begun. The locks on their markers end with it.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The data directory, then the others, as [`Layout::directories`].
    pub(crate) roots: Vec<Root>,
    /// On the markers that were there, and on those in their place.
    _locks: Vec<File>,
}

impl Claimed {
    /// Creates the directories and marks them; clears those that an incomplete restore has marked. In that of a tablespace the
    /// directory `version` alone is a restore's.
    pub(crate) fn claim(layout: &Layout, marker: &Marker, version: &str) -> Result<Self> {
        let data = Root::create(&layout.data, None)?;
        let (lock, was_marked) = data.lock()?;
        if !was_marked {
            data.require_vacant()?;
        }
        data.clear()?;
        let mut locks = vec![lock, data.mark(marker)?];
        let owner = data.owner()?;
        let mut roots = vec![data];
        let tablespaces = layout.tablespaces.len();
        for (at, directory) in layout.directories().into_iter().enumerate().skip(1) {
            let root = Root::create(directory, Some(owner))?;
            let (lock, was_marked) = root.lock()?;
            if !was_marked {
                root.require_vacant()?;
            }
            match at <= tablespaces {
                true => root.clear_version(version)?,
                false => root.clear()?,
            }
            locks.extend([lock, root.mark(marker)?]);
            roots.push(root);
        }
        Ok(Self {
            roots,
            _locks: locks,
        })
    }

    /// Marks the directories and makes the cluster in them one that no server starts. Nothing else is changed but modes that
    /// stand in the way of that.
    ///
    /// A server writes its process identifier before it reads `pg_control`. So the control file goes first, and then
    /// the signs of a server are looked at once more: one that was started meanwhile shows itself, or does not start.
    pub(crate) fn claim_in_place(layout: &Layout, marker: &Marker, seen: &Seen) -> Result<Self> {
        let data = Root::create(&layout.data, None)?;
        data.widen("")?;
        let (lock, was_marked) = data.lock()?;
        let mut roots = vec![data];
        let (own, marked) = match mark_in_place(&mut roots, layout, marker) {
            Ok(own) => (Some(own), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let claimed = Self {
            roots,
            _locks: iter::once(lock).chain(own).collect(),
        };
        let taken = marked.and_then(|()| claimed.set_control_aside(layout, seen));
        if let Err(error) = taken {
            // A marker that stays would say that the cluster is no cluster any more.
            if !was_marked && let Err(left) = claimed.unmark() {
                tracing::warn!("{left}");
            }
            return Err(error);
        }
        // Of what is in the directory from here on nothing is proved, whoever completes the restore.
        lineage::remove(&claimed.roots[0].dir, &layout.data)?;
        Ok(claimed)
    }

    fn set_control_aside(&self, layout: &Layout, seen: &Seen) -> Result<()> {
        let data = &self.roots[0];
        let about = || format!("could not remove \"{}/{CONTROL}\"", data.path.display());
        let (control, aside) = (Path::new(CONTROL), Path::new(CONTROL_ASIDE));
        if !beneath::exists(&data.dir, control).context(about)? {
            return Ok(());
        }
        data.widen("global")?;
        let put_back = || {
            let name = control.file_name().expect("it has one");
            beneath::rename(&data.dir, aside, name)
        };
        let name = aside.file_name().expect("it has one");
        if let Err(error) = beneath::rename(&data.dir, control, name) {
            // It may have been renamed, and not synced.
            if beneath::exists(&data.dir, aside).unwrap_or(false) {
                let _ = put_back();
            }
            return Err(error).context(about);
        }
        let mut others = layout.directories().into_iter().skip(1);
        let quiet = refuse_running_server(&layout.data, seen.vouched)
            .and_then(|()| others.try_for_each(|other| refuse_other_server(&layout.data, other)))
            .and_then(|()| seen.is_still(data, aside));
        let gone = quiet.and_then(|()| beneath::remove_file(&data.dir, aside).context(about));
        if gone.is_err() {
            put_back().context(about)?;
        }
        gone
    }

    /// Takes up a restore of which everything but the markers is done.
    pub(crate) fn reopen(layout: &Layout) -> Result<Self> {
        let data = Root::create(&layout.data, None)?;
        let locks = vec![data.lock()?.0];
        let owner = data.owner()?;
        let mut roots = vec![data];
        for directory in layout.directories().into_iter().skip(1) {
            roots.push(Root::create(directory, Some(owner))?);
        }
        Ok(Self {
            roots,
            _locks: locks,
        })
    }

    /// Whether nobody but root can start a server from it.
    pub(crate) fn belongs_to_root(&self) -> Result<bool> {
        let (user, _) = self.roots[0].owner()?;
        Ok(user == 0 && rustix::process::geteuid().is_root())
    }

    /// Removes the markers, that of the data directory last, and as many as can be removed.
    pub(crate) fn unmark(&self) -> Result<()> {
        let unmarked = self.roots.iter().rev().map(Root::unmark);
        unmarked.fold(Ok(()), Result::and)
    }
}

/// Marks the data directory, which is the first of `roots`, and adds the others, each marked as well. Answers the lock of the
/// data directory's marker.
fn mark_in_place(roots: &mut Vec<Root>, layout: &Layout, marker: &Marker) -> Result<File> {
    let owner = roots[0].owner()?;
    let lock = roots[0].mark(marker)?;
    for directory in layout.directories().into_iter().skip(1) {
        let root = Root::create(directory, Some(owner))?;
        root.widen("")?;
        let marked = root.mark(marker);
        roots.push(root);
        marked?;
    }
    Ok(lock)
}

impl Seen {
    /// Whether the directory is as it was, but for the control file, which is `aside`.
    fn is_still(&self, data: &Root, aside: &Path) -> Result<()> {
        let about = || format!("could not read files in \"{}\"", data.path.display());
        let control = beneath::read(&data.dir, aside).context(about)?;
        let pid_file = beneath::read(&data.dir, Path::new(LOCK_FILE)).context(about)?;
        if control == self.control && pid_file == self.pid_file {
            return Ok(());
        }
        let what = format!(
            "a server was started in \"{}\" since the restore was planned: its {LOCK_FILE} or its {CONTROL} has changed",
            data.path.display()
        );
        Err(Error::new(Kind::Refused, what).hint("Stop it first, wherever it runs."))
    }
}

impl Root {
    /// Opens the directory, created with its parents when it is not there. Of what root creates or finds empty, the
    /// data directory belongs to whom the directory above belongs, and the others to `owner`, whose the data directory
    /// is: a server does not start from files of root.
    fn create(path: &Path, owner: Option<(u32, u32)>) -> Result<Self> {
        let about = || format!("could not create the directory \"{}\"", path.display());
        let above = fs::metadata(nearest_existing(path)).context(about)?;
        let (user, group) = owner.unwrap_or((above.uid(), above.gid()));
        let root = rustix::process::geteuid().is_root();
        let give = |made: &File| match root {
            true => std::os::unix::fs::fchown(made, Some(user), Some(group)),
            false => Ok(()),
        };
        let dir = beneath::make_all(path, give).context(about)?;
        if root && owner.is_some() {
            let names = beneath::names(&dir).context(about)?;
            if names.iter().all(|name| name == LOST_FOUND) {
                give(&dir).context(about)?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            dir,
        })
    }

    /// One that is there, for tests.
    #[cfg(test)]
    pub(crate) fn existing(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            dir: File::open(path).expect("a test made it"),
        }
    }

    /// Whose it is.
    fn owner(&self) -> Result<(u32, u32)> {
        let status = self.dir.metadata();
        let status = status.context(|| format!("could not look at \"{}\"", self.path.display()))?;
        Ok((status.uid(), status.gid()))
    }

    /// Lets us work in a directory of ours below it, whatever its mode.
    pub(super) fn widen(&self, below: impl AsRef<Path>) -> Result<()> {
        let below = below.as_ref();
        let directory = beneath::directory(&self.dir, below);
        let widened = directory.and_then(|directory| beneath::widen(&directory));
        widened.context(|| {
            let path = self.path.join(below);
            format!("could not set the permissions of \"{}\"", path.display())
        })
    }

    /// Locks the marker that is there, or an empty one; answers also whether it says something. One that another restore has
    /// removed a moment ago says nothing.
    fn lock(&self) -> Result<(File, bool)> {
        let about = || {
            let path = self.path.join(MARKER);
            format!("could not create \"{}\"", path.display())
        };
        let was_there = self.marker_now().context(about)?.is_some();
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = beneath::open(&self.dir, Path::new(MARKER), flags, mode).context(about)?;
        let locked = lock(&file).context(about);
        if locked.is_err() && !was_there {
            self.unmark()?;
        }
        // Somebody may have put another in its place, or removed it, since it was opened.
        let found = file.metadata().context(about)?;
        match locked? && self.marker_now().context(about)? == Some(found.ino()) {
            true => Ok((file, found.len() > 0)),
            false => Err(Error::new(
                Kind::Busy,
                format!("another restore to \"{}\" is at work", self.path.display()),
            )),
        }
    }

    /// Refuses when something came into the directory since it was looked at, and takes the marker back that was not there.
    fn require_vacant(&self) -> Result<()> {
        // What the file system itself has in a data directory was seen when that was looked at.
        let DirectoryState::Occupied(name) = state_of_other(&self.path)? else {
            return Ok(());
        };
        self.unmark()?;
        let what = format!(
            "\"{}\" holds \"{}\", which was not there when the restore was planned: another one may have finished meanwhile",
            self.path.display(),
            name.display()
        );
        Err(Error::new(Kind::Busy, what)
            .hint("look at what is there; to restore it anew, empty the directory"))
    }

    /// The inode of the marker.
    fn marker_now(&self) -> io::Result<Option<u64>> {
        match statat(&self.dir, MARKER, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found.st_ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes everything but the marker and what the file system itself needs. Only called on directories that are empty or
    /// marked.
    fn clear(&self) -> Result<()> {
        let about =
            |name: &OsStr| format!("could not remove \"{}\"", self.path.join(name).display());
        let names = beneath::names(&self.dir).context(|| about(OsStr::new("")))?;
        for name in names {
            if name == MARKER || name == LOST_FOUND {
                continue;
            }
            beneath::remove_all(&self.dir, Path::new(&name)).context(|| about(&name))?;
        }
        Ok(())
    }

    /// Removes what restores have made in the directory of a tablespace. Refuses when anything else lies there.
    fn clear_version(&self, version: &str) -> Result<()> {
        let about = || {
            let path = self.path.join(version);
            format!("could not remove \"{}\"", path.display())
        };
        let names = beneath::names(&self.dir).context(about)?;
        if let Some(other) = names.iter().find(|name| !is_own_name(name, version)) {
            return Err(occupied(&self.path, other, "the directory of a tablespace"));
        }
        match names.iter().any(|name| name == version) {
            true => beneath::remove_all(&self.dir, Path::new(version)).context(about),
            false => Ok(()),
        }
    }

    /// Puts the marker in the place of the one that is there, at once: what that says of the cluster is nowhere else by now.
    /// Answers the file, locked.
    fn mark(&self, marker: &Marker) -> Result<File> {
        let path = self.path.join(MARKER);
        let about = || format!("could not write \"{}\"", path.display());
        let text = serde_json::to_string_pretty(marker)
            .map_err(|e| Error::new(Kind::File, format!("{}: {e}", about())))?;
        let beside = Path::new(MARKER_BESIDE);
        if beneath::exists(&self.dir, beside).context(about)? {
            beneath::remove_file(&self.dir, beside).context(about)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = beneath::open(&self.dir, beside, flags, mode).context(about)?;
        let mut place = || {
            lock(&file)?;
            // Settings that are kept may hold a password.
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            beneath::rename(&self.dir, beside, OsStr::new(MARKER))
        };
        if let Err(error) = place() {
            // The disk may be full. It is harmless, and nobody else removes it.
            let _ = beneath::remove_file(&self.dir, beside);
            return Err(error).context(about);
        }
        Ok(file)
    }

    fn unmark(&self) -> Result<()> {
        match beneath::remove_file(&self.dir, Path::new(MARKER)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.context(|| {
                let path = self.path.join(MARKER);
                format!("could not remove \"{}\"", path.display())
            }),
        }?;
        self.sync()
    }

    /// Makes the directory's own entries durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.dir
            .sync_all()
            .context(|| format!("could not fsync \"{}\"", self.path.display()))
    }
}

/// False when somebody else has locked it.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
