//! The list of what a backup stores, taken after the backup started.
//!
//! What belongs to a cluster is decided by [`pgstrata_pgdata::exclude`]; this
//! walks, asks, and follows links: tablespaces and `pg_wal` silently, because
//! PostgreSQL made them links; others with a warning, because a restore makes
//! ordinary files of them. Whatever vanishes while we look was dropped.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use pgstrata_layer::entry::{EntryKind, file_identity};
use pgstrata_layer::index::{MAX_PLAIN_BYTES, plain_frame_bytes};
use pgstrata_layer::manifest::Tablespace;
use pgstrata_pgdata::Major;
use pgstrata_pgdata::exclude::{
    Decision, EntryType, UnloggedRelations, decide, empty_wal_directories,
};
use pgstrata_pgdata::relation::{BLOCK_SIZE, BLOCKS_PER_SEGMENT, ForkKind, PathKind, RelSegment};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::apart::MARKER;
use super::control::CONTROL_PATH;
use super::outside::Outside;

/// Links at these lead to a file that an administrator keeps elsewhere on purpose, and that is stored whole.
const CONFIGURATION: [&str; 4] = [
    "postgresql.conf",
    "postgresql.auto.conf",
    "pg_hba.conf",
    "pg_ident.conf",
];

/// What to do about a file or a directory that this user may not read.
const READ_ALL: &str = "a backup stores every file of the data directory: run pgstrata as the server's user, to whom all of them \
    should belong";

/// One file or directory as the scan saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedFile {
    /// Relative to the data directory; tablespaces through their links.
    pub path: String,
    /// Directory, relation segment or plain file.
    pub kind: EntryKind,
    /// Which part of which relation; `Some` exactly for [`EntryKind::Relation`].
    pub segment: Option<RelSegment>,
    /// Permission bits.
    pub mode: u32,
    /// Modification time in seconds since the Unix epoch.
    pub modified: i64,
    /// Size in bytes; 0 for directories.
    pub size_bytes: u64,
    /// As [`file_identity`] makes it; 0 for directories.
    pub identity: u64,
    /// Device and inode.
    pub place: (u64, u64),
    /// Whether the path itself is a link, which was followed.
    pub is_linked: bool,
}

impl ScannedFile {
    /// The fork, for a relation segment.
    #[must_use]
    pub fn fork(&self) -> Option<ForkKind> {
        self.segment.map(|segment| segment.relation_fork.fork)
    }
}

/// What a scan found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Everything to store but `pg_control`, in byte order of the path.
    pub files: Vec<ScannedFile>,
    /// Tablespaces other than the built-in ones.
    pub tablespaces: Vec<Tablespace>,
    /// Directories elsewhere that links of others than PostgreSQL led to.
    pub linked: Vec<PathBuf>,
    /// What a reader of the log should know.
    pub warnings: Vec<String>,
    /// Sum of all sizes.
    pub size_bytes: u64,
}

impl Scan {
    /// Adds files that lie elsewhere and belong to the cluster.
    pub(crate) fn add_outside(&mut self, outside: Outside) {
        self.size_bytes += outside
            .files
            .iter()
            .map(|file| file.size_bytes)
            .sum::<u64>();
        self.files.extend(outside.files);
        self.files
            .sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        self.warnings.extend(outside.warnings);
    }

    /// Refuses a file that this user may not read: a backup would fail when it comes to it.
    ///
    /// # Errors
    /// `File`, with the first such file.
    pub(crate) fn require_readable(&self, data_directory: &Path) -> Result<()> {
        for file in &self.files {
            let path = data_directory.join(&file.path);
            match accessat(CWD, &path, Access::READ_OK, AtFlags::EACCESS) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    let act = format!("could not open \"{}\" to read it", path.display());
                    return Err(unread(&error.into(), &act));
                }
            }
        }
        Ok(())
    }
}

/// Lists the cluster below `data_directory`.
///
/// # Errors
/// When a directory cannot be read for another reason than being gone.
pub fn scan(data_directory: &Path, major: Major) -> Result<Scan> {
    let mut walk = Walk::new(data_directory, major);
    walk.find_tablespaces()?;
    walk.list()
}

/// The list of files, made on a thread that may block.
pub(crate) async fn files_of(data_directory: &Path, major: Major) -> Result<Scan> {
    let directory = data_directory.to_owned();
    blocking(move || scan(&directory, major)).await
}

struct Walk<'a> {
    root: &'a Path,
    major: Major,
    scan: Scan,
    /// Device and inode of the tablespaces' directories: met elsewhere in the tree they are not walked again.
    inside: HashSet<(u64, u64)>,
    /// Directories entered through foreign links, so that a link to a parent does not loop.
    followed: HashSet<(u64, u64)>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Path, major: Major) -> Self {
        Self {
            root,
            major,
            scan: Scan::default(),
            inside: HashSet::new(),
            followed: HashSet::new(),
        }
    }

    /// All files of the cluster and of the tablespaces that were found.
    fn list(mut self) -> Result<Scan> {
        self.directory("")?;
        let mut scan = self.scan;
        scan.files
            .sort_unstable_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        scan.size_bytes = scan.files.iter().map(|file| file.size_bytes).sum();
        Ok(scan)
    }

    fn find_tablespaces(&mut self) -> Result<()> {
        for tablespace in tablespaces(self.root)? {
            if let Some(location) = &tablespace.location {
                let path = self.root.join(format!("pg_tblspc/{}", tablespace.oid));
                match gone(fs::metadata(&path)).context(|| look(&path))? {
                    Some(directory) => {
                        self.inside.insert((directory.dev(), directory.ino()));
                    }
                    // Its link may have gone first.
                    None if !path.is_symlink() => continue,
                    None => return Err(without_directory(tablespace.oid, location)),
                }
            }
            self.scan.tablespaces.push(tablespace);
        }
        Ok(())
    }

    /// Everything below the directory at `path` ("" is the data directory, which is not an entry itself).
    fn directory(&mut self, path: &str) -> Result<()> {
        let Some(names) = names(&self.root.join(path))? else {
            return Ok(());
        };
        let unlogged = if is_database_directory(path) {
            UnloggedRelations::among(names.iter().map(|name| name.as_bytes()))
        } else {
            UnloggedRelations::default()
        };
        for name in &names {
            if unlogged.omits(name.as_bytes()) {
                continue;
            }
            let Some(name) = name.to_str() else {
                let place = self.root.join(path).join(name);
                self.warn(format!("left out {place:?}: its name is not UTF-8"));
                continue;
            };
            let below = if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}/{name}")
            };
            self.entry(below)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: String) -> Result<()> {
        // The control file is read last, and kept in the manifest.
        if path == CONTROL_PATH || self.is_new_tablespace(&path) {
            return Ok(());
        }
        let full = self.root.join(&path);
        let found =
            gone(fs::symlink_metadata(&full)).map_err(|error| unread(&error, &look(&full)))?;
        let Some(metadata) = found else {
            return Ok(());
        };
        let kind = entry_type(&metadata);
        match decide(&path, kind, self.major) {
            Decision::Skip => {
                if path == MARKER {
                    self.warn(format!(
                        "left out \"{path}\": a restore left it that failed before it changed anything; delete it, as long as no restore \
                         to this directory is at work"
                    ));
                }
                if kind == EntryType::Special {
                    self.warn(format!(
                        "left out \"{path}\": it is neither a file nor a directory"
                    ));
                }
                Ok(())
            }
            Decision::EmptyDirectory => self.empty_directory(path, &full),
            Decision::ForeignLink => self.foreign_link(path, &full),
            Decision::Keep => match gone(fs::metadata(&full)).context(|| look(&full))? {
                Some(metadata) => self.keep(path, &metadata, false),
                None => Ok(()),
            },
        }
    }

    /// Whether it is a tablespace that was made since they were listed. The WAL of the backup makes it again, and finds nothing
    /// in its way.
    fn is_new_tablespace(&self, path: &str) -> bool {
        let name = path.strip_prefix("pg_tblspc/");
        let oid = name.and_then(|name| name.parse::<u32>().ok());
        let is_known = |oid| self.scan.tablespaces.iter().any(|known| known.oid == oid);
        oid.is_some_and(|oid| !is_known(oid))
    }

    fn keep(&mut self, path: String, metadata: &Metadata, is_linked: bool) -> Result<()> {
        if !metadata.is_dir() {
            // Now, and not when hours were spent on reading it.
            frame_bytes_of(&path, metadata.len())?;
            self.push(path, metadata, is_linked);
            return Ok(());
        }
        self.push(path.clone(), metadata, is_linked);
        let is_tablespace = path.starts_with("pg_tblspc/");
        if is_tablespace || !self.inside.contains(&(metadata.dev(), metadata.ino())) {
            self.directory(&path)?;
        }
        Ok(())
    }

    fn empty_directory(&mut self, path: String, full: &Path) -> Result<()> {
        let Some(metadata) = gone(fs::metadata(full)).context(|| look(full))? else {
            return Ok(());
        };
        let is_wal = path == "pg_wal";
        self.push(path, &metadata, false);
        if is_wal {
            for directory in empty_wal_directories(self.major) {
                let full = self.root.join(directory);
                // The server makes them when it misses them; a restored cluster gets them from us.
                let own = gone(fs::metadata(&full)).context(|| look(&full))?;
                self.push(
                    (*directory).to_owned(),
                    own.as_ref().unwrap_or(&metadata),
                    false,
                );
            }
        }
        Ok(())
    }

    /// A link that PostgreSQL did not make: stored as what it leads to.
    fn foreign_link(&mut self, path: String, full: &Path) -> Result<()> {
        let target = fs::read_link(full).unwrap_or_default();
        let metadata = match fs::metadata(full) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.warn(format!(
                    "left out the link \"{path}\" to {target:?}: {error}"
                ));
                return Ok(());
            }
        };
        if metadata.is_dir() && !self.followed.insert((metadata.dev(), metadata.ino())) {
            self.warn(format!("left out the link \"{path}\" to {target:?}: it leads to a directory already followed"));
            return Ok(());
        }
        if !metadata.is_dir() && !metadata.is_file() {
            self.warn(format!(
                "left out the link \"{path}\" to {target:?}: it is neither a file nor a directory"
            ));
            return Ok(());
        }
        if metadata.is_dir() {
            self.scan.linked.push(full.to_owned());
        }
        let what = format!(
            "followed the link \"{path}\" to {target:?}: a restore makes an ordinary file or directory of it"
        );
        match metadata.is_file() && CONFIGURATION.contains(&path.as_str()) {
            true => tracing::info!("{what}"),
            false => self.warn(what),
        }
        self.keep(path, &metadata, true)
    }

    fn push(&mut self, path: String, metadata: &Metadata, is_linked: bool) {
        let (kind, segment) = classify(&path, metadata);
        self.scan.files.push(ScannedFile {
            kind,
            segment,
            mode: metadata.mode() & 0o7777,
            modified: metadata.mtime(),
            size_bytes: if metadata.is_dir() { 0 } else { metadata.len() },
            identity: if metadata.is_dir() {
                0
            } else {
                identity(metadata)
            },
            place: (metadata.dev(), metadata.ino()),
            is_linked,
            path,
        });
    }

    fn warn(&mut self, warning: String) {
        tracing::warn!("{warning}");
        self.scan.warnings.push(warning);
    }
}

/// Bytes of a plain file in one frame of its backup.
///
/// # Errors
/// `Unsupported` when it is so large that no index can name all of them.
pub(crate) fn frame_bytes_of(path: &str, size_bytes: u64) -> Result<usize> {
    plain_frame_bytes(size_bytes).ok_or_else(|| {
        let what = format!(
            "could not back up \"{path}\": it has {size_bytes} bytes, and a layer has room for plain files of at most {} GiB",
            MAX_PLAIN_BYTES >> 30
        );
        Error::new(Kind::Unsupported, what).hint(
            "move it out of the data directory if it is none of the server's, such as a core dump or a log that nobody rotates: a \
             backup stores every file that is there",
        )
    })
}

fn without_directory(oid: u32, location: &str) -> Error {
    Error::new(
        Kind::File,
        format!("tablespace {oid} lies in \"{location}\", which does not exist"),
    )
}

/// The tablespaces of a data directory as `pg_tblspc` shows them, by OID.
///
/// # Errors
/// When the directory cannot be read.
pub fn tablespaces(data_directory: &Path) -> Result<Vec<Tablespace>> {
    let directory = data_directory.join("pg_tblspc");
    let mut found = Vec::new();
    for name in names(&directory)?.unwrap_or_default() {
        let Some(oid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let path = directory.join(&name);
        let Some(metadata) = gone(fs::symlink_metadata(&path)).context(|| look(&path))? else {
            continue;
        };
        let location = if metadata.is_symlink() {
            let act = || format!("could not read the link \"{}\"", path.display());
            let Some(target) = gone(fs::read_link(&path)).context(act)? else {
                continue;
            };
            Some(utf8(&led_to(&path, target).context(act)?)?)
        } else {
            None
        };
        found.push(Tablespace { oid, location });
    }
    found.sort_unstable_by_key(|tablespace| tablespace.oid);
    Ok(found)
}

/// Where a link with the text `target` leads, as an absolute path. A relative one leads on from the link's own directory, as the
/// server follows it, over `..` and other links; when it leads nowhere, its text is what there is to tell.
fn led_to(link: &Path, target: PathBuf) -> io::Result<PathBuf> {
    if target.is_absolute() {
        return Ok(target);
    }
    Ok(gone(fs::canonicalize(link))?.unwrap_or(target))
}

/// A relation file of a size no relation file has is kept byte for byte, as a plain file.
fn classify(path: &str, metadata: &Metadata) -> (EntryKind, Option<RelSegment>) {
    if metadata.is_dir() {
        return (EntryKind::Directory, None);
    }
    let block = u64::try_from(BLOCK_SIZE).expect("8192 fits 64 bits");
    let regular = metadata.len().is_multiple_of(block)
        && metadata.len() / block <= u64::from(BLOCKS_PER_SEGMENT);
    match PathKind::of(path) {
        PathKind::RelSegment(segment) if regular => (EntryKind::Relation, Some(segment)),
        _ => (EntryKind::Plain, None),
    }
}

fn is_database_directory(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(*parts.as_slice(), ["base", _] | ["pg_tblspc", _, _, _])
}

fn entry_type(metadata: &Metadata) -> EntryType {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        EntryType::Symlink
    } else if kind.is_dir() {
        EntryType::Directory
    } else if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()
    {
        EntryType::Special
    } else {
        EntryType::File
    }
}

/// By inode and birth time, or by the inode alone where the file system knows no other.
#[must_use]
pub fn identity(metadata: &Metadata) -> u64 {
    let born = metadata.created().ok();
    let born = born.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    file_identity(metadata.ino(), born.map(|born| born.as_nanos()))
}

pub(super) fn names(directory: &Path) -> Result<Option<Vec<OsString>>> {
    let act = || format!("could not list \"{}\"", directory.display());
    let listing = gone(fs::read_dir(directory)).map_err(|error| unread(&error, &act()))?;
    let Some(listing) = listing else {
        return Ok(None);
    };
    listing
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<_>>()
        .map(Some)
        .context(act)
}

/// That an act on a file of the cluster failed, with what to do when this user may not read it.
pub(crate) fn unread(error: &io::Error, act: &str) -> Error {
    let failed = Error::new(Kind::File, format!("{act}: {error}"));
    match error.kind() {
        io::ErrorKind::PermissionDenied => failed.hint(READ_ALL),
        _ => failed,
    }
}

pub(super) fn gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn look(path: &Path) -> String {
    format!("could not look at \"{}\"", path.display())
}

fn utf8(path: &PathBuf) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::new(
            Kind::Unsupported,
            format!("could not back up the tablespace in {path:?}: its path is not UTF-8"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_layer::entry::proves_sameness;
    use std::os::unix::fs::symlink;

    fn tree(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if file.ends_with('/') {
                fs::create_dir_all(&path).unwrap();
            } else {
                fs::write(&path, vec![1; 8192]).unwrap();
            }
        }
    }

    fn paths(scan: &Scan) -> Vec<&str> {
        scan.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn the_marker_of_a_restore_that_changed_nothing_is_left_out_and_named() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), &["PG_VERSION", MARKER]);
        let scan = scan(root.path(), Major::V17).unwrap();
        assert_eq!(paths(&scan), ["PG_VERSION"]);
        let [warning] = &scan.warnings[..] else {
            panic!("{:?}", scan.warnings);
        };
        assert!(
            warning.contains(MARKER) && warning.contains("delete it"),
            "{warning}"
        );
    }

    #[test]
    fn a_tablespace_that_is_made_while_files_are_listed_is_left_to_the_wal() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        tree(root.path(), &["base/5/16384", "pg_tblspc/"]);
        let version = Major::V17.tablespace_directory();
        tree(elsewhere.path(), &[&format!("{version}/5/16500")]);
        let mut walk = Walk::new(root.path(), Major::V17);
        walk.find_tablespaces().unwrap();
        symlink(elsewhere.path(), root.path().join("pg_tblspc/16499")).unwrap();
        tree(
            root.path(),
            &[&format!("pg_tblspc/16498/{version}/5/16501")],
        );
        let scan = walk.list().unwrap();
        assert_eq!(
            paths(&scan),
            ["base", "base/5", "base/5/16384", "pg_tblspc"]
        );
        assert!(scan.warnings.is_empty(), "{:?}", scan.warnings);
    }

    #[test]
    fn what_does_not_belong_is_left_out_and_empty_directories_stay() {
        let root = tempfile::tempdir().unwrap();
        tree(
            root.path(),
            &[
                "PG_VERSION",
                "postmaster.pid",
                "backup_label",
                "global/pg_control",
                "global/pg_internal.init",
                "global/1262",
                "base/5/16384",
                "base/5/16384.1",
                "base/5/16384_vm",
                "base/5/16400",
                "base/5/16400_init",
                "base/5/16400_fsm",
                "base/5/t3_16500",
                "base/5/pg_internal.init.77",
                "base/pgsql_tmp/pgsql_tmp1",
                "pg_wal/000000010000000000000001",
                "pg_wal/archive_status/x.done",
                "pg_replslot/a/state",
                "pg_twophase/",
                "pg_stat/pgstat.stat",
                "log/pg_wal",
            ],
        );
        let scan = scan(root.path(), Major::V17).unwrap();
        let expected = [
            "PG_VERSION",
            "base",
            "base/5",
            "base/5/16384",
            "base/5/16384.1",
            "base/5/16384_vm",
            "base/5/16400_init",
            "global",
            "global/1262",
            "log",
            "log/pg_wal",
            "pg_replslot",
            "pg_stat",
            "pg_stat/pgstat.stat",
            "pg_twophase",
            "pg_wal",
            "pg_wal/archive_status",
            "pg_wal/summaries",
        ];
        assert_eq!(paths(&scan), expected);
        assert!(scan.warnings.is_empty());
        let vm = scan
            .files
            .iter()
            .find(|file| file.path == "base/5/16384_vm")
            .unwrap();
        assert_eq!(
            (vm.kind, vm.fork()),
            (EntryKind::Relation, Some(ForkKind::Vm))
        );
        assert!(
            proves_sameness(vm.identity),
            "this file system knows no birth time"
        );
    }

    #[test]
    fn a_tablespace_inside_the_data_directory_is_walked_once() {
        let root = tempfile::tempdir().unwrap();
        tree(
            root.path(),
            &[
                "PG_VERSION",
                "mine/PG_15_202209061/5/16384",
                "mine/PG_16_202307071/5/16384",
                "pg_tblspc/",
            ],
        );
        symlink(
            root.path().join("mine"),
            root.path().join("pg_tblspc/16390"),
        )
        .unwrap();
        let scan = scan(root.path(), Major::V15).unwrap();
        let expected = [
            "PG_VERSION",
            "mine",
            "pg_tblspc",
            "pg_tblspc/16390",
            "pg_tblspc/16390/PG_15_202209061",
            "pg_tblspc/16390/PG_15_202209061/5",
            "pg_tblspc/16390/PG_15_202209061/5/16384",
        ];
        assert_eq!(paths(&scan), expected);
        let location = Some(root.path().join("mine").to_str().unwrap().to_owned());
        assert_eq!(
            scan.tablespaces,
            [Tablespace {
                oid: 16390,
                location
            }]
        );
    }

    #[test]
    fn a_relative_link_of_a_tablespace_is_told_as_the_directory_to_which_it_leads() {
        let root = tempfile::tempdir().unwrap();
        let file = "PG_15_202209061/5/16384";
        tree(
            root.path(),
            &["data/pg_tblspc/", &format!("spaces/far/{file}")],
        );
        let (data, spaces) = (root.path().join("data"), root.path().join("spaces"));
        symlink("../../spaces/far", data.join("pg_tblspc/16390")).unwrap();
        let found = scan(&data, Major::V15).unwrap();
        let far = fs::canonicalize(&spaces).unwrap().join("far");
        let location = Some(far.to_str().unwrap().to_owned());
        let oid = 16390;
        assert_eq!(found.tablespaces, [Tablespace { oid, location }]);
        let file = format!("pg_tblspc/16390/{file}");
        assert!(paths(&found).contains(&file.as_str()), "{found:?}");
        fs::remove_dir_all(&spaces).unwrap();
        let error = scan(&data, Major::V15).unwrap_err().to_string();
        assert!(
            error.contains("lies in \"../../spaces/far\", which does not exist"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_no_index_has_room_for_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), &["PG_VERSION", "log/core.4711"]);
        let core = fs::File::create(root.path().join("log/core.4711")).unwrap();
        core.set_len(MAX_PLAIN_BYTES).unwrap();
        assert!(paths(&scan(root.path(), Major::V15).unwrap()).contains(&"log/core.4711"));
        core.set_len(MAX_PLAIN_BYTES + 1).unwrap();
        let error = scan(root.path(), Major::V15).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("\"log/core.4711\""), "{error}");
        assert!(error.hint_text().unwrap().starts_with("move it out of"));
    }

    #[test]
    fn tablespaces_in_place_are_directories() {
        let root = tempfile::tempdir().unwrap();
        tree(
            root.path(),
            &["PG_VERSION", "pg_tblspc/16390/PG_15_202209061/5/16384"],
        );
        let scan = scan(root.path(), Major::V15).unwrap();
        assert_eq!(
            scan.tablespaces,
            [Tablespace {
                oid: 16390,
                location: None
            }]
        );
        assert!(paths(&scan).contains(&"pg_tblspc/16390/PG_15_202209061/5/16384"));
    }

    #[test]
    fn foreign_links_are_followed_once_with_a_warning() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        tree(root.path(), &["PG_VERSION"]);
        tree(elsewhere.path(), &["postgresql.conf", "conf.d/a.conf"]);
        symlink(
            elsewhere.path().join("postgresql.conf"),
            root.path().join("postgresql.conf"),
        )
        .unwrap();
        symlink(elsewhere.path().join("conf.d"), root.path().join("conf.d")).unwrap();
        symlink(
            elsewhere.path().join("conf.d"),
            elsewhere.path().join("conf.d/loop"),
        )
        .unwrap();
        symlink("/nonexistent/file", root.path().join("dangling")).unwrap();
        let scan = scan(root.path(), Major::V15).unwrap();
        assert_eq!(
            paths(&scan),
            ["PG_VERSION", "conf.d", "conf.d/a.conf", "postgresql.conf"]
        );
        assert_eq!(scan.warnings.len(), 3, "{:?}", scan.warnings);
        let of_configuration = |warning: &String| warning.contains("postgresql.conf");
        assert!(!scan.warnings.iter().any(of_configuration));
    }

    #[test]
    fn a_relation_file_of_odd_size_is_a_plain_file() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), &["PG_VERSION", "base/5/16384"]);
        fs::write(root.path().join("base/5/16385"), vec![1; 8193]).unwrap();
        let scan = scan(root.path(), Major::V15).unwrap();
        let kinds: Vec<EntryKind> = scan.files.iter().map(|file| file.kind).collect();
        assert_eq!(
            kinds[2..],
            [EntryKind::Directory, EntryKind::Relation, EntryKind::Plain]
        );
    }

    #[test]
    fn who_may_not_read_what_belongs_to_the_cluster_is_told_what_to_do() {
        let told = |kind: io::ErrorKind| {
            let error = unread(&kind.into(), "could not list \"/data/log\"");
            assert_eq!(error.kind(), Kind::File);
            assert!(
                error
                    .to_string()
                    .starts_with("could not list \"/data/log\": ")
            );
            error.hint_text().map(str::to_owned)
        };
        let denied = told(io::ErrorKind::PermissionDenied).unwrap();
        assert!(
            denied.contains("run pgstrata as the server's user"),
            "{denied}"
        );
        assert_eq!(told(io::ErrorKind::InvalidData), None);
    }

    #[test]
    fn paths_are_in_byte_order() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path(), &["PG_VERSION", "a/b", "a.b", "a-b"]);
        assert_eq!(
            paths(&scan(root.path(), Major::V15).unwrap()),
            ["PG_VERSION", "a", "a-b", "a.b", "a/b"]
        );
    }
}
