//! Where a restore goes: the data directory, the tablespaces' directories and perhaps one for WAL.
//!
//! Everything is checked before anything is written. From then on each directory holds a marker: as long as it is there
//! the restore is incomplete, no server can start (there is no `pg_control`), and only a restore to the same data
//! directory may clear the directory again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pgstrata_layer::manifest::Tablespace;
use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::shares::{self, SHARES};
use crate::error::{Error, FileContext, Kind, Result};

/// Its presence says that a restore has not finished.
pub const MARKER: &str = "pgstrata.restore-incomplete";

const MARKER_FORMAT: u32 = 1;

/// What the marker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marker {
    /// Version of this record.
    pub format: u32,
    /// What the reader of a directory listing should know.
    pub note: String,
    /// The cluster's name in the repository.
    pub cluster: String,
    /// The layer being restored.
    pub label: String,
    /// The data directory of the restore, also in the markers of the other directories.
    pub data_directory: PathBuf,
    /// All directories of the restore.
    pub directories: Vec<PathBuf>,
    /// When the restore began.
    pub started_at: Timestamp,
    /// Of a restore that changes a data directory in place: what it found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlace>,
}

/// What a restore in place must still know when it is taken up again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InPlace {
    /// Of the cluster that was there: its `pg_control` is the first thing to go.
    pub system_identifier: u64,
    /// Lines of its `postgresql.auto.conf` that the restored one gets.
    pub kept_settings: Vec<String>,
}

/// Reads the marker of a restore that has not finished; `None` when there is none.
///
/// # Errors
/// When the marker cannot be read or is not one.
pub fn read_marker(directory: &Path) -> Result<Option<Marker>> {
    let path = directory.join(MARKER);
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => file.take(1 << 20).read_to_string(&mut text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => Err(e),
    }
    .context(|| format!("could not read \"{}\"", path.display()))?;
    if text.is_empty() {
        // Killed between creating it and writing it: nothing else was written by then.
        return Ok(None);
    }
    let marker: Marker = serde_json::from_str(&text).map_err(|e| {
        Error::new(
            Kind::Damaged,
            format!("\"{}\" is not the marker of a restore: {e}", path.display()),
        )
    })?;
    match marker.format {
        MARKER_FORMAT => Ok(Some(marker)),
        other => Err(Error::new(
            Kind::Unsupported,
            format!(
                "\"{}\" has format {other}, which this version does not know",
                path.display()
            ),
        )),
    }
}

/// A tablespace that goes to another directory than it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceMapping {
    /// Its OID, or the directory it had.
    pub from: String,
    /// The directory it gets.
    pub to: PathBuf,
}

impl TablespaceMapping {
    /// Reads `OLD=NEW`.
    ///
    /// # Errors
    /// When there is no `=`, or nothing before or after it.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok(Self {
                from: from.to_owned(),
                to: PathBuf::from(to),
            }),
            _ => Err(Error::new(
                Kind::Usage,
                format!(
                    "invalid tablespace mapping \"{text}\": expected OLD=NEW, OLD being an OID or a directory"
                ),
            )),
        }
    }
}

/// Where everything goes, as absolute paths without links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) data: PathBuf,
    /// By OID.
    pub(super) tablespaces: BTreeMap<u32, PathBuf>,
    pub(super) wal: Option<PathBuf>,
}

/// What is at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Nothing but perhaps empty directories.
    Fresh,
    /// What an incomplete restore left.
    Incomplete,
    /// All of this layer; only markers are left to be removed.
    Complete,
    /// A stopped cluster, or what is left of one, to be changed in place.
    Existing,
}

impl Layout {
    /// Finds the directories for `tablespaces` restored to `data`.
    pub(super) fn new(
        data: &Path,
        wal: Option<&Path>,
        tablespaces: &[Tablespace],
        mappings: &[TablespaceMapping],
    ) -> Result<Self> {
        let mut layout = Self {
            data: resolve(data)?,
            tablespaces: BTreeMap::new(),
            wal: wal.map(resolve).transpose()?,
        };
        let mut used = vec![false; mappings.len()];
        for tablespace in tablespaces {
            let Some(location) = &tablespace.location else {
                continue;
            };
            let names = |mapping: &TablespaceMapping| {
                mapping.from == tablespace.oid.to_string()
                    || Path::new(&mapping.from)
                        .components()
                        .eq(Path::new(location).components())
            };
            let mapped = mappings.iter().position(names);
            let to = mapped.map_or(Path::new(location), |at| {
                used[at] = true;
                &mappings[at].to
            });
            layout.tablespaces.insert(tablespace.oid, resolve(to)?);
        }
        if let Some(unused) = used.iter().position(|used| !used) {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "the layer has no tablespace \"{}\" to map",
                    mappings[unused].from
                ),
            ));
        }
        layout.check_apart()?;
        Ok(layout)
    }

    /// All directories, the data directory first.
    pub(super) fn directories(&self) -> Vec<&Path> {
        let others = self.tablespaces.values().chain(&self.wal);
        std::iter::once(&self.data)
            .chain(others)
            .map(PathBuf::as_path)
            .collect()
    }

    fn check_apart(&self) -> Result<()> {
        let directories = self.directories();
        for (at, one) in directories.iter().enumerate() {
            if let Some(other) = directories[at + 1..]
                .iter()
                .find(|other| one.starts_with(other) || other.starts_with(one))
            {
                return Err(Error::new(
                    Kind::Refused,
                    format!(
                        "directories \"{}\" and \"{}\" of the restore overlap",
                        one.display(),
                        other.display()
                    ),
                )
                .hint("Give every tablespace a directory of its own with --tablespace-map."));
            }
        }
        Ok(())
    }

    /// Looks at what is there; refuses what a restore must not touch.
    pub(super) fn inspect(&self, label: &str) -> Result<Condition> {
        refuse_running_server(&self.data)?;
        let marker = match state(&self.data)? {
            State::Vacant => None,
            State::Marked(marker) if marker.data_directory == self.data => Some(marker),
            State::Marked(marker) => return Err(foreign_marker(&self.data, &marker)),
            State::Occupied(name) => {
                return Err(occupied(&self.data, &name, "the target directory"));
            }
        };
        if let Some(marker) = marker.as_ref().filter(|marker| marker.in_place.is_some()) {
            return Err(foreign_marker(&self.data, marker)
                .hint("Run it again with --delta, which goes on from what is there."));
        }
        if let Some(marker) = marker.filter(|_| self.data.join("global/pg_control").exists()) {
            return match marker.label == label {
                true => Ok(Condition::Complete),
                false => Err(occupied(
                    &self.data,
                    OsStr::new("global"),
                    "the target directory",
                )),
            };
        }
        let mut condition = Condition::Fresh;
        if matches!(state(&self.data)?, State::Marked(_)) {
            condition = Condition::Incomplete;
        }
        for (oid, path) in &self.tablespaces {
            self.inspect_other(path, &format!("the directory of tablespace {oid}"))
                .map_err(|e| {
                    e.hint(format!(
                        "Choose another one with --tablespace-map={oid}=DIRECTORY."
                    ))
                })?;
        }
        if let Some(wal) = &self.wal {
            self.inspect_other(wal, "the directory for WAL")?;
        }
        Ok(condition)
    }

    fn inspect_other(&self, path: &Path, what: &str) -> Result<()> {
        match state(path)? {
            State::Vacant => Ok(()),
            State::Marked(marker) if marker.data_directory == self.data => Ok(()),
            State::Marked(marker) => Err(foreign_marker(path, &marker)),
            State::Occupied(name) => Err(occupied(path, &name, what)),
        }
    }

    /// Refuses when a file system has less room than `needed` says for each directory, in the order of
    /// [`Self::directories`].
    pub(super) fn check_space(&self, needed: &[u64]) -> Result<()> {
        // Device: bytes needed, bytes free, a directory on it.
        let mut devices: BTreeMap<u64, (u64, u64, PathBuf)> = BTreeMap::new();
        for (directory, &bytes) in self.directories().iter().zip(needed) {
            let existing = nearest_existing(directory);
            let about = || {
                format!(
                    "could not look at the file system of \"{}\"",
                    existing.display()
                )
            };
            let device = fs::metadata(existing).context(about)?.dev();
            let space = statvfs(existing).map_err(io::Error::from).context(about)?;
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            let entry = devices
                .entry(device)
                .or_insert((0, free, existing.to_owned()));
            entry.0 = entry.0.saturating_add(bytes);
        }
        for (needed, free, directory) in devices.values() {
            if needed > free {
                return Err(Error::new(
                    Kind::Refused,
                    format!(
                        "the file system of \"{}\" has {free} bytes free, but the restore needs {needed}",
                        directory.display()
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// An absolute path without links as far as it exists.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    let about = || format!("could not resolve \"{}\"", path.display());
    let absolute = std::path::absolute(path).context(about)?;
    if absolute.components().any(|part| part.as_os_str() == "..") {
        return Err(Error::new(
            Kind::Usage,
            format!("path \"{}\" contains \"..\"", path.display()),
        ));
    }
    let existing = nearest_existing(&absolute);
    if let Some(link) = absolute
        .ancestors()
        .take_while(|ancestor| *ancestor != existing)
        .find(|ancestor| ancestor.is_symlink())
    {
        return Err(Error::new(
            Kind::Refused,
            format!(
                "\"{}\" is a symbolic link that leads nowhere",
                link.display()
            ),
        ));
    }
    let rest = absolute
        .strip_prefix(existing)
        .expect("an ancestor is a prefix");
    let resolved = fs::canonicalize(existing).context(about)?;
    if !resolved.is_dir() {
        return Err(Error::new(
            Kind::Refused,
            format!("\"{}\" is not a directory", existing.display()),
        ));
    }
    Ok(match rest.as_os_str().is_empty() {
        true => resolved,
        false => resolved.join(rest),
    })
}

fn nearest_existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
}

pub(super) enum State {
    /// Not there, or empty.
    Vacant,
    Marked(Box<Marker>),
    /// Holds something of this name.
    Occupied(std::ffi::OsString),
}

pub(super) fn state(directory: &Path) -> Result<State> {
    let about = || format!("could not read the directory \"{}\"", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(State::Vacant),
        entries => entries.context(about)?,
    };
    let mut first = None;
    for entry in entries {
        let name = entry.context(about)?.file_name();
        if name == MARKER {
            if let Some(marker) = read_marker(directory)? {
                return Ok(State::Marked(Box::new(marker)));
            }
        } else {
            first.get_or_insert(name);
        }
    }
    Ok(first.map_or(State::Vacant, State::Occupied))
}

pub(super) fn refuse_running_server(data: &Path) -> Result<()> {
    let path = data.join("postmaster.pid");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).context(|| format!("could not read \"{}\"", path.display())),
    };
    let pid: Option<i32> = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse().ok());
    let alive = |pid: Pid| !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    match pid.and_then(|pid| Pid::from_raw(pid.saturating_abs())) {
        Some(pid) if alive(pid) => Err(Error::new(
            Kind::Refused,
            format!(
                "a server with process ID {} runs in \"{}\"",
                pid.as_raw_nonzero(),
                data.display()
            ),
        )
        .hint("Stop it first.")),
        _ => Ok(()),
    }
}

pub(super) fn occupied(directory: &Path, name: &OsStr, what: &str) -> Error {
    Error::new(
        Kind::Refused,
        format!("{what}, \"{}\", is not empty: it holds \"{}\"", directory.display(), name.display()),
    )
    .hint("Move it away or choose another directory; a restore deletes nothing that it did not write.")
}

pub(super) fn foreign_marker(directory: &Path, marker: &Marker) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "\"{}\" belongs to an incomplete restore of layer {} to \"{}\"",
            directory.display(),
            marker.label,
            marker.data_directory.display()
        ),
    )
    .hint("Complete that restore by running it again, or empty the directory.")
}

/// A directory of the restore, held open.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    pub(super) dir: File,
}

/// The directories of a restore that has begun. The lock on the data directory's marker ends with it.
#[derive(Debug)]
pub(super) struct Claimed {
    /// The data directory, then the others, as [`Layout::directories`].
    pub(super) roots: Vec<Root>,
    _lock: File,
}

impl Claimed {
    /// Creates the directories and marks them; clears those that an incomplete restore has marked.
    pub(super) fn claim(layout: &Layout, marker: &Marker) -> Result<Self> {
        let data = Root::create(&layout.data)?;
        let lock = data.lock()?;
        data.clear()?;
        data.mark(marker)?;
        let mut roots = vec![data];
        for directory in layout.directories().into_iter().skip(1) {
            let root = Root::create(directory)?;
            root.clear()?;
            root.mark(marker)?;
            roots.push(root);
        }
        Ok(Self { roots, _lock: lock })
    }

    /// Marks the directories and makes the cluster in them one that no server starts. Nothing else is changed.
    pub(super) fn claim_in_place(layout: &Layout, marker: &Marker) -> Result<Self> {
        let data = Root::create(&layout.data)?;
        let lock = data.lock()?;
        data.mark(marker)?;
        let mut roots = vec![data];
        for directory in layout.directories().into_iter().skip(1) {
            let root = Root::create(directory)?;
            root.mark(marker)?;
            roots.push(root);
        }
        // A server that was started meanwhile has its process ID in place by now, or finds no pg_control.
        refuse_running_server(&layout.data)?;
        let global = layout.data.join("global");
        let control = global.join("pg_control");
        let about = || format!("could not remove \"{}\"", control.display());
        match fs::remove_file(&control) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed.context(about)?;
                File::open(&global)
                    .and_then(|directory| directory.sync_all())
                    .context(about)?;
            }
        }
        Ok(Self { roots, _lock: lock })
    }

    /// Takes up a restore of which everything but the markers is done.
    pub(super) fn reopen(layout: &Layout) -> Result<Self> {
        let data = Root::create(&layout.data)?;
        let lock = data.lock()?;
        let mut roots = vec![data];
        for directory in layout.directories().into_iter().skip(1) {
            roots.push(Root::create(directory)?);
        }
        Ok(Self { roots, _lock: lock })
    }

    /// Removes the markers, that of the data directory last.
    pub(super) fn unmark(&self) -> Result<()> {
        self.roots.iter().rev().try_for_each(Root::unmark)
    }
}

impl Root {
    /// Opens the directory, created with its parents when it is not there. Created by root it belongs to whom the
    /// directory above belongs: a server does not start from files of root.
    fn create(path: &Path) -> Result<Self> {
        let about = || format!("could not create the directory \"{}\"", path.display());
        let existing = nearest_existing(path);
        fs::create_dir_all(path).context(about)?;
        if existing != path && rustix::process::geteuid().is_root() {
            let above = fs::metadata(existing).context(about)?;
            for created in path
                .ancestors()
                .take_while(|ancestor| *ancestor != existing)
            {
                std::os::unix::fs::lchown(created, Some(above.uid()), Some(above.gid()))
                    .context(about)?;
            }
        }
        let dir = File::open(path)
            .context(|| format!("could not open the directory \"{}\"", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            dir,
        })
    }

    fn lock(&self) -> Result<File> {
        let path = self.path.join(MARKER);
        let about = || format!("could not create \"{}\"", path.display());
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .context(about)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::new(
                Kind::Busy,
                format!("another restore to \"{}\" is at work", self.path.display()),
            )),
            Err(e) => Err(io::Error::from(e)).context(about),
        }
    }

    /// Removes everything but the marker. Only called on directories that are empty or marked.
    fn clear(&self) -> Result<()> {
        let about = |path: &Path| format!("could not remove \"{}\"", path.display());
        for entry in fs::read_dir(&self.path).context(|| about(&self.path))? {
            let entry = entry.context(|| about(&self.path))?;
            if entry.file_name() == MARKER {
                continue;
            }
            if entry.file_name() == SHARES {
                // Helpers of the restore that left it may still be at work.
                shares::remove(&self.path)?;
                continue;
            }
            let path = entry.path();
            // Links are removed, not followed.
            let removed = match entry.file_type().context(|| about(&path))?.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.context(|| about(&path))?;
        }
        Ok(())
    }

    fn mark(&self, marker: &Marker) -> Result<()> {
        let path = self.path.join(MARKER);
        let about = || format!("could not write \"{}\"", path.display());
        let text = serde_json::to_string_pretty(marker)
            .map_err(|e| Error::new(Kind::File, format!("{}: {e}", about())))?;
        let mut options = OpenOptions::new();
        // Not replaced: the lock is on this very file.
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .context(about)?;
        // Settings that are kept may hold a password.
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .context(about)?;
        file.write_all(text.as_bytes()).context(about)?;
        file.sync_all().context(about)?;
        self.sync()
    }

    fn unmark(&self) -> Result<()> {
        let path = self.path.join(MARKER);
        match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.context(|| format!("could not remove \"{}\"", path.display())),
        }?;
        self.sync()
    }

    /// Makes the directory's own entries durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.dir
            .sync_all()
            .context(|| format!("could not fsync \"{}\"", self.path.display()))
    }
}

pub(super) fn new_marker(layout: &Layout, cluster: &str, label: &str, now: Timestamp) -> Marker {
    Marker {
        format: MARKER_FORMAT,
        note: "This restore has not finished. The server cannot be started; running the restore again completes it."
            .to_owned(),
        cluster: cluster.to_owned(),
        label: label.to_owned(),
        data_directory: layout.data.clone(),
        directories: layout.directories().into_iter().map(Path::to_owned).collect(),
        started_at: now,
        in_place: None,
    }
}
