//! Where a restore goes: the data directory, the tablespaces' directories and perhaps one for WAL.
//!
//! Everything is checked before anything is written. From then on each directory holds a marker: as long as it is there
//! the restore is incomplete, no server can start (there is no `pg_control`), and only a restore to the same data
//! directory may clear the directory again: of that of a tablespace what is of its version, and nothing of what a restore in place
//! has left.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pgstrata_layer::lineage::Located;
use pgstrata_layer::manifest::{ClusterIdentity, Tablespace};
use pgstrata_pgdata::ControlFile;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use super::access::require_own;
use super::running::refuse_running_server;
use crate::restore::ArchiveMode;
use crate::restore::settings::KeptLine;
pub use crate::server::apart::MARKER;
use crate::server::apart::part_of_cluster;

/// Under this name it is written. Alone it says nothing: nothing else was written by then.
pub(super) const MARKER_BESIDE: &str = "pgstrata.restore-incomplete.tmp";

const MARKER_FORMAT: u32 = 1;

/// What the directory is for that `--config-dir` names.
pub(crate) const CONFIG_DIRECTORY: &str = "the directory for configuration";

pub(crate) const CONTROL: &str = "global/pg_control";

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
    /// How far it goes, and the like: a restore that was asked for something else is another one.
    pub asked: String,
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
    /// Lines of its configuration that the restored one gets if it is a standby.
    pub kept_settings: Vec<KeptLine>,
    /// Whether the restored cluster archives.
    pub archive_mode: ArchiveMode,
    /// Which directory it was.
    pub directory: Option<Located>,
    /// Whether that was known to be no copy.
    pub directory_known: bool,
    /// Links that were known to be its own, and where they led. Markers of older versions have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub own_links: BTreeMap<String, PathBuf>,
}

/// What `pg_control` of a data directory says; `None` when it is not there, as after a restore in place that was interrupted.
pub(crate) fn control_there(data: &Path) -> Result<Option<ControlFile>> {
    let path = data.join(CONTROL);
    let Some(bytes) = read_if_there(&path)? else {
        return Ok(None);
    };
    let control = ControlFile::parse(&bytes)
        .map_err(|e| Error::from(e).while_doing(format!("could not use \"{}\"", path.display())))?;
    Ok(Some(control))
}

/// A file's contents; `None` when it is not there.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read
            .map(Some)
            .context(|| format!("could not read \"{}\"", path.display())),
    }
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

/// The marker of a restore that has left no cluster; `None` also when it stands beside a control file. Such a restore has not begun
/// to change anything, or was done but for its marker, and the server may have run since: what is in the directory counts.
pub(super) fn marker_of_parts(data: &Path) -> Result<Option<Marker>> {
    let marker = read_marker(data)?;
    Ok(marker.filter(|_| !data.join(CONTROL).exists()))
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
    /// Whether it is about that tablespace, which had a directory.
    fn is_of(&self, tablespace: &Tablespace) -> bool {
        let Some(location) = &tablespace.location else {
            return false;
        };
        let from = Path::new(&self.from).components();
        self.from == tablespace.oid.to_string() || from.eq(Path::new(location).components())
    }
}

/// Where everything goes, as absolute paths without links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) data: PathBuf,
    /// By OID.
    pub(crate) tablespaces: BTreeMap<u32, PathBuf>,
    pub(crate) wal: Option<PathBuf>,
    /// For configuration that lay outside of the data directory; `None`: the data directory.
    pub(crate) config: Option<PathBuf>,
}

/// What a restore in place saw when it looked at the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The contents of `pg_control`.
    pub(crate) control: Option<Vec<u8>>,
    /// The contents of `postmaster.pid`.
    pub(crate) pid_file: Option<Vec<u8>>,
    /// Whether an earlier attempt has left its marker, and no control file.
    pub(crate) marked: bool,
    /// Whether somebody says that the server is stopped.
    pub(crate) vouched: bool,
}

/// What is at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
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
    pub(crate) fn new(
        data: &Path,
        wal: Option<&Path>,
        config: Option<&Path>,
        tablespaces: &[Tablespace],
        mappings: &[TablespaceMapping],
    ) -> Result<Self> {
        let mut layout = Self {
            data: resolve(data)?,
            tablespaces: BTreeMap::new(),
            wal: wal.map(resolve).transpose()?,
            config: config.map(resolve).transpose()?,
        };
        let mut used = vec![false; mappings.len()];
        for tablespace in tablespaces {
            let Some(location) = &tablespace.location else {
                continue;
            };
            let mapped = mappings.iter().position(|one| one.is_of(tablespace));
            let to = mapped.map_or(Path::new(location), |at| {
                used[at] = true;
                &mappings[at].to
            });
            layout.tablespaces.insert(tablespace.oid, resolve(to)?);
        }
        if let Some(unused) = used.iter().position(|used| !used) {
            return Err(unmapped(unused, tablespaces, mappings));
        }
        layout.check_apart()?;
        layout.check_outside_of_clusters()?;
        Ok(layout)
    }

    /// All directories, the data directory first.
    pub(crate) fn directories(&self) -> Vec<&Path> {
        let others = self
            .tablespaces
            .values()
            .chain(&self.wal)
            .chain(&self.config);
        std::iter::once(&self.data)
            .chain(others)
            .map(PathBuf::as_path)
            .collect()
    }

    /// Where configuration from outside goes, among [`Self::directories`].
    pub(crate) fn config_root(&self) -> usize {
        match self.config {
            Some(_) => self.directories().len() - 1,
            None => 0,
        }
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
                .hint("Give every tablespace a directory of its own with --tablespace-map, and WAL and configuration, too."));
            }
        }
        Ok(())
    }

    /// Refuses a directory among the files of a cluster, which would be stored with them, and removed with them. It is not
    /// this restore's own: [`Self::check_apart`] has looked.
    fn check_outside_of_clusters(&self) -> Result<()> {
        for directory in self.directories() {
            let mut above = directory.ancestors().skip(1);
            let found = above.find_map(|above| Some((above, part_of_cluster(above)?)));
            let Some((above, what)) = found else {
                continue;
            };
            let what = format!(
                "directory \"{}\" of the restore lies inside \"{}\", which is {what} of a cluster",
                directory.display(),
                above.display()
            );
            return Err(Error::new(Kind::Refused, what).hint(
                "Choose a directory outside of it: a backup of that cluster would store what is in there, and a restore with --delta \
                 would remove it.",
            ));
        }
        Ok(())
    }

    /// Looks at what is there; refuses what a restore must not touch. `version` is what the layer's version calls its directory in
    /// that of a tablespace.
    pub(crate) fn inspect(&self, label: &str, asked: &str, version: &str) -> Result<Condition> {
        let marker = match state(&self.data)? {
            DirectoryState::Vacant => None,
            DirectoryState::Marked(marker) if marker.data_directory == self.data => Some(marker),
            DirectoryState::Marked(marker) => return Err(foreign_marker(&self.data, &marker)),
            DirectoryState::Occupied(name) => {
                refuse_running_server(&self.data, true)?;
                return Err(occupied(&self.data, &name, "the target directory"));
            }
        };
        if let Some(marker) = marker.as_ref().filter(|marker| marker.in_place.is_some()) {
            return Err(left_in_place(&self.data, marker));
        }
        if let Some(marker) = marker.filter(|_| self.data.join("global/pg_control").exists()) {
            let same = marker.label == label
                && marker.asked == asked
                && marker.directories == self.directories();
            return match same {
                _ if !self.data.join("backup_label").exists() => Err(started_since(&self.data)),
                true => Ok(Condition::Complete),
                false => Err(other_restore(&self.data, &marker)),
            };
        }
        self.require_own()?;
        let mut condition = Condition::Fresh;
        if matches!(state(&self.data)?, DirectoryState::Marked(_)) {
            condition = Condition::Incomplete;
        }
        for (oid, path) in &self.tablespaces {
            let what = format!("the directory of tablespace {oid}");
            let fit = self.inspect_other(path, &what);
            let fit = fit.and_then(|()| refuse_others(path, &what, version));
            fit.map_err(|error| {
                let other = format!("--tablespace-map={oid}=DIRECTORY gives it another one.");
                let hint = error.hint_text().unwrap_or_default();
                let hint = format!("{hint} {other}");
                error.hint(hint)
            })?;
        }
        if let Some(wal) = &self.wal {
            self.inspect_other(wal, "the directory for WAL")?;
        }
        if let Some(config) = &self.config {
            self.inspect_other(config, CONFIG_DIRECTORY)?;
        }
        Ok(condition)
    }

    /// Refuses directories whose mode could not be set. That for configuration keeps the mode that it has.
    fn require_own(&self) -> Result<()> {
        let of_the_cluster = self.directories().len() - usize::from(self.config.is_some());
        let directories = self.directories().into_iter();
        directories.take(of_the_cluster).try_for_each(require_own)
    }

    fn inspect_other(&self, path: &Path, what: &str) -> Result<()> {
        match state_of_other(path)? {
            DirectoryState::Vacant => Ok(()),
            // Wherever the data directory is by now.
            DirectoryState::Marked(marker) if marker.in_place.is_some() => {
                Err(left_in_place(path, &marker))
            }
            DirectoryState::Marked(marker) if marker.data_directory == self.data => Ok(()),
            DirectoryState::Marked(marker) => Err(foreign_marker(path, &marker)),
            DirectoryState::Occupied(name) => Err(occupied(path, &name, what)),
        }
    }

    /// Refuses when a file system has less room than `needed` says for each directory, in the order of
    /// [`Self::directories`].
    pub(crate) fn check_space(&self, needed: &[u64]) -> Result<()> {
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

/// A mapping that was not needed: of a tablespace that the layer has not, or that another one maps already.
fn unmapped(at: usize, tablespaces: &[Tablespace], mappings: &[TablespaceMapping]) -> Error {
    let unused = &mappings[at];
    let Some(twice) = tablespaces.iter().find(|one| unused.is_of(one)) else {
        let what = format!("the layer has no tablespace \"{}\" to map", unused.from);
        return Error::new(Kind::Usage, what);
    };
    let to = mappings.iter().filter(|mapping| mapping.is_of(twice));
    let to: Vec<String> = to
        .map(|mapping| format!("\"{}\"", mapping.to.display()))
        .collect();
    let what = format!(
        "tablespace {} is mapped more than once: to {}",
        twice.oid,
        to.join(" and to ")
    );
    Error::new(Kind::Usage, what).hint(
        "Give --tablespace-map once for each tablespace; its OID and the directory that it had name the same one.",
    )
}

/// An absolute path without links as far as it exists.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
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

pub(crate) fn nearest_existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
}

pub(crate) enum DirectoryState {
    /// Not there, or empty.
    Vacant,
    Marked(Box<Marker>),
    /// Holds something of this name.
    Occupied(std::ffi::OsString),
}

/// What a file system makes in its own uppermost directory, which may be that of a tablespace or of WAL. `initdb` wants no
/// data directory there, and neither does a restore.
pub(crate) const LOST_FOUND: &str = "lost+found";

/// What is in a data directory.
pub(crate) fn state(directory: &Path) -> Result<DirectoryState> {
    state_but_for(directory, None)
}

/// What is in a directory beside it.
pub(crate) fn state_of_other(directory: &Path) -> Result<DirectoryState> {
    state_but_for(directory, Some(LOST_FOUND))
}

fn state_but_for(directory: &Path, aside: Option<&str>) -> Result<DirectoryState> {
    let about = || format!("could not read the directory \"{}\"", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(DirectoryState::Vacant),
        entries => entries.context(about)?,
    };
    let mut first = None;
    for entry in entries {
        let name = entry.context(about)?.file_name();
        if name == MARKER {
            if let Some(marker) = read_marker(directory)? {
                return Ok(DirectoryState::Marked(Box::new(marker)));
            }
        } else if name != MARKER_BESIDE && aside.is_none_or(|aside| name != aside) {
            first.get_or_insert(name);
        }
    }
    Ok(first.map_or(DirectoryState::Vacant, DirectoryState::Occupied))
}

pub(crate) fn occupied(directory: &Path, name: &OsStr, what: &str) -> Error {
    Error::new(
        Kind::Refused,
        format!("{what}, \"{}\", is not empty: it holds \"{}\"", directory.display(), name.display()),
    )
    .hint("Move it away or choose another directory; a restore deletes nothing that it did not write.")
}

pub(crate) fn foreign_marker(directory: &Path, marker: &Marker) -> Error {
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

/// What it has left of a cluster is nowhere else, and a restore into a new directory would delete it.
fn left_in_place(directory: &Path, marker: &Marker) -> Error {
    foreign_marker(directory, marker)
        .hint("Run it again with --delta, which goes on from what is there.")
}

/// What the directory of a tablespace is called below the link that leads to it: `PG_15_202209061`.
pub(crate) fn version_directory(identity: &ClusterIdentity) -> String {
    format!("PG_{}_{}", identity.major, identity.catalog_version)
}

/// Whether that name in the directory of a tablespace is a restore's of this version, or the file system's. Others are of clusters
/// of other versions, as after `pg_upgrade`.
pub(super) fn is_own_name(name: &OsStr, version: &str) -> bool {
    let own = [MARKER, MARKER_BESIDE, LOST_FOUND, version];
    own.iter().any(|own| name == *own)
}

/// Refuses the directory of a tablespace that holds anything which no restore of this version has made: the marker of an earlier
/// one gives no right to that.
fn refuse_others(directory: &Path, what: &str, version: &str) -> Result<()> {
    let about = || format!("could not read the directory \"{}\"", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context(about)?,
    };
    for entry in entries {
        let name = entry.context(about)?.file_name();
        if !is_own_name(&name, version) {
            return Err(occupied(directory, &name, what));
        }
    }
    Ok(())
}

/// A server renames `backup_label` when it has begun to recover (`StartupXLOG`, src/backend/access/transam/xlog.c).
fn started_since(data: &Path) -> Error {
    let what = format!(
        "\"{}\" holds a restore that was finished but for its marker, and a server has run there since",
        data.display()
    );
    Error::new(Kind::Refused, what).hint(format!(
        "to keep that cluster, remove {MARKER}; to restore there all the same, stop its server and add --delta, or empty the directory"
    ))
}

/// A restore is done there, and was asked for something else than this one.
fn other_restore(data: &Path, marker: &Marker) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "\"{}\" holds a finished restore of layer {} to {}, which is not what is asked for now",
            data.display(),
            marker.label,
            marker.asked
        ),
    )
    .hint(format!(
        "Run that same restore again to remove {MARKER}, and start the server; to restore something else, empty the directory."
    ))
}

pub(crate) fn new_marker(
    layout: &Layout,
    cluster: &str,
    label: &str,
    asked: String,
    now: Timestamp,
) -> Marker {
    Marker {
        format: MARKER_FORMAT,
        note: "This restore has not finished. The server cannot be started; running the restore again completes it."
            .to_owned(),
        cluster: cluster.to_owned(),
        label: label.to_owned(),
        data_directory: layout.data.clone(),
        directories: layout.directories().into_iter().map(Path::to_owned).collect(),
        started_at: now,
        asked,
        in_place: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a cluster's data directory.
    fn cluster(data: &Path) {
        fs::create_dir_all(data.join("global")).unwrap();
        for name in ["PG_VERSION", CONTROL] {
            fs::write(data.join(name), "15").unwrap();
        }
    }

    fn space(location: &Path) -> Tablespace {
        Tablespace {
            oid: 16402,
            location: Some(location.display().to_string()),
        }
    }

    fn mapping(from: &str, to: &Path) -> TablespaceMapping {
        TablespaceMapping {
            from: from.to_owned(),
            to: to.to_owned(),
        }
    }

    fn refused(layout: Result<Layout>, words: &str) {
        let error = layout.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(error.hint_text().unwrap().contains("outside"), "{error:?}");
    }

    #[test]
    fn nothing_is_restored_among_the_files_of_a_cluster() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let (data, target) = (root.join("data"), root.join("target"));
        cluster(&data);
        let version = root.join("space/PG_15_202209061");
        fs::create_dir_all(version.join("5")).unwrap();
        std::os::unix::fs::symlink(&data, root.join("link")).unwrap();
        let in_data = "which is the data directory of a cluster";
        for inside in ["data/x", "data/pg_wal/deep/x", "link/x"] {
            let inside = root.join(inside);
            refused(Layout::new(&inside, None, None, &[], &[]), in_data);
            refused(Layout::new(&target, Some(&inside), None, &[], &[]), in_data);
            refused(Layout::new(&target, None, Some(&inside), &[], &[]), in_data);
            let spaces = [space(&inside)];
            refused(Layout::new(&target, None, None, &spaces, &[]), in_data);
        }
        let of_a_tablespace = "which is the directory of a tablespace of a cluster";
        let inside = version.join("x");
        refused(Layout::new(&inside, None, None, &[], &[]), of_a_tablespace);
        // A link leads to it, so that no data directory lies above.
        fs::create_dir_all(root.join("wal/archive_status")).unwrap();
        let of_wal = "which is the WAL directory of a cluster";
        let inside = root.join("wal/x");
        refused(Layout::new(&inside, None, None, &[], &[]), of_wal);
        refused(Layout::new(&target, Some(&inside), None, &[], &[]), of_wal);
        // A restore in place that was interrupted goes on there.
        fs::remove_file(data.join(CONTROL)).unwrap();
        fs::write(data.join(MARKER), "").unwrap();
        refused(Layout::new(&data.join("x"), None, None, &[], &[]), in_data);
    }

    #[test]
    fn a_cluster_is_restored_in_place_and_beside_others() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let (data, other) = (root.join("data"), root.join("other"));
        cluster(&data);
        cluster(&other);
        let at = root.join("space");
        fs::create_dir_all(at.join("PG_15_202209061")).unwrap();
        let spaces = [space(&at)];
        let layout = Layout::new(&data, Some(&root.join("wal")), None, &spaces, &[]).unwrap();
        assert_eq!(layout.directories(), [&data, &at, &root.join("wal")]);
        // Nobody has it yet.
        Layout::new(&root.join("PG_15_202209061/x"), None, None, &[], &[]).unwrap();
    }

    #[test]
    fn a_marker_of_an_older_version_is_still_read() {
        let scratch = tempfile::tempdir().unwrap();
        let text = r#"{"format": 1, "note": "n", "cluster": "main", "label": "l", "data_directory": "/data",
            "directories": ["/data"], "started_at": "2026-11-21T09:33:05Z", "asked": "a", "in_place":
            {"system_identifier": 7, "kept_settings": ["primary_slot_name = 'a'"], "archive_mode": "off",
            "directory": null, "directory_known": true}}"#;
        fs::write(scratch.path().join(MARKER), text).unwrap();
        let found = read_marker(scratch.path()).unwrap().unwrap();
        let found = found.in_place.unwrap();
        assert!(found.own_links.is_empty());
        // One that has nothing new is as it was.
        assert!(!serde_json::to_string(&found).unwrap().contains("own_links"));
    }

    #[test]
    fn a_tablespace_that_is_mapped_twice_is_not_called_absent() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let had = Path::new("/had/space");
        let (spaces, target) = ([space(had)], root.join("target"));
        let (a, b) = (root.join("a"), root.join("b"));
        let layout =
            |mappings: &[TablespaceMapping]| Layout::new(&target, None, None, &spaces, mappings);
        for second in ["16402", "/had/space", "/had//space/"] {
            let error = layout(&[mapping("16402", &a), mapping(second, &b)]).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage);
            let said = error.to_string();
            let expected =
                format!("tablespace 16402 is mapped more than once: to {a:?} and to {b:?}");
            assert_eq!(said, expected);
        }
        let error = layout(&[mapping("16402", &a), mapping("4711", &b)]).unwrap_err();
        let expected = "the layer has no tablespace \"4711\" to map";
        assert_eq!(error.to_string(), expected);
        assert_eq!(
            layout(&[mapping("16402", &a)]).unwrap().tablespaces[&16402],
            a
        );
    }
}
