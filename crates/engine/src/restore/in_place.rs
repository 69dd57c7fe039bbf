//! Restoring onto a data directory that exists: what is there, whether it may be changed, and what does not belong.
//!
//! The directory must hold a stopped cluster of the layer's system identifier. From the moment its `pg_control` is
//! gone no server starts from it, until the restore has put another in place; killed in between, running the restore
//! again goes on from whatever is there, because what counts is contents alone: pages by their digest, other files by
//! that of the whole, never times or sizes.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::manifest::{ClusterIdentity, Tablespace};
use pgstrata_pgdata::ControlFile;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegmentSize};

use super::archived::ArchivedWal;
use super::destination::{
    Condition, Layout, MARKER, Marker, State, TablespaceMapping, foreign_marker, occupied,
    read_marker, refuse_running_server, resolve, state,
};
use super::settings::kept_settings;
use super::{InPlace, RestoreOptions, Target};
use crate::error::{Error, FileContext, Kind, Result};

/// What the directory of a tablespace is called below the link that leads to it: `PG_15_202209061`.
fn version_directory(identity: &ClusterIdentity) -> String {
    format!("PG_{}_{}", identity.major, identity.catalog_version)
}

/// Where a link of the data directory leads, as an absolute path; `None` when it is not there or not a link.
fn link_target(link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(link).ok()?;
    let above = link.parent()?;
    resolve(&above.join(target)).ok()
}

/// Options as they are for this data directory: tablespaces and WAL stay where its links lead, unless told otherwise.
pub(super) fn follow_links(options: &mut RestoreOptions, tablespaces: &[Tablespace]) {
    if options.wal_directory.is_none() {
        options.wal_directory = link_target(&options.directory.join("pg_wal"));
    }
    for tablespace in tablespaces {
        let Some(location) = &tablespace.location else {
            continue;
        };
        let oid = tablespace.oid.to_string();
        let mapped = options
            .tablespaces
            .iter()
            .any(|mapping| mapping.from == oid || Path::new(&mapping.from) == Path::new(location));
        let link = options.directory.join("pg_tblspc").join(&oid);
        if let Some(to) = link_target(&link).filter(|_| !mapped) {
            options
                .tablespaces
                .push(TablespaceMapping { from: oid, to });
        }
    }
}

impl Layout {
    /// As [`Layout::inspect`], for a restore that may change what is there.
    pub(super) fn inspect_in_place(
        &self,
        (cluster, label): (&str, &str),
        identity: &ClusterIdentity,
    ) -> Result<Condition> {
        refuse_running_server(&self.data)?;
        match state(&self.data)? {
            State::Vacant => return self.inspect(label),
            State::Marked(marker) => self.check_marker(&marker, cluster, identity)?,
            State::Occupied(name) => {
                if !self.data.join("global/pg_control").exists() {
                    return Err(occupied(&self.data, &name, "the target directory")
                        .hint("It has no global/pg_control, so it is no cluster that could be changed in place."));
                }
            }
        }
        check_same_cluster(&self.data, identity)?;
        for (oid, path) in &self.tablespaces {
            let link = self.data.join("pg_tblspc").join(oid.to_string());
            self.check_other(path, &link, &format!("the directory of tablespace {oid}"))?;
        }
        if let Some(wal) = &self.wal {
            self.check_other(wal, &self.data.join("pg_wal"), "the directory for WAL")?;
        }
        Ok(Condition::Existing)
    }

    fn check_marker(
        &self,
        marker: &Marker,
        cluster: &str,
        identity: &ClusterIdentity,
    ) -> Result<()> {
        let other = marker
            .in_place
            .as_ref()
            .is_some_and(|found| found.system_identifier != identity.system_identifier);
        match marker.data_directory == self.data && marker.cluster == cluster && !other {
            true => Ok(()),
            false => Err(foreign_marker(&self.data, marker)),
        }
    }

    /// A directory beside the data directory holds files only of the cluster whose link leads to it.
    fn check_other(&self, path: &Path, link: &Path, what: &str) -> Result<()> {
        match state(path)? {
            State::Vacant => Ok(()),
            State::Marked(marker) if marker.data_directory == self.data => Ok(()),
            State::Marked(marker) => Err(foreign_marker(path, &marker)),
            State::Occupied(_) if link_target(link).as_deref() == Some(path) => Ok(()),
            State::Occupied(name) => Err(occupied(path, &name, what)),
        }
    }
}

fn check_same_cluster(data: &Path, identity: &ClusterIdentity) -> Result<()> {
    let path = data.join("global/pg_control");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        // Gone since an earlier attempt, whose marker says what was there.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).context(|| format!("could not read \"{}\"", path.display())),
    };
    let control = ControlFile::parse(&bytes)
        .map_err(|e| Error::from(e).while_doing(format!("could not use \"{}\"", path.display())))?;
    if control.system_identifier == identity.system_identifier {
        return Ok(());
    }
    Err(Error::new(
        Kind::Refused,
        format!(
            "\"{}\" holds another cluster: its system identifier is {}, the layer's is {}",
            data.display(),
            control.system_identifier,
            identity.system_identifier
        ),
    )
    .hint("Restore to another directory."))
}

/// WAL that only this directory has would be lost: says which segments wait to be archived.
pub(super) fn refuse_unarchived_wal(
    data: &Path,
    archive: &ArchivedWal,
    size: WalSegmentSize,
) -> Result<()> {
    let directory = data.join("pg_wal/archive_status");
    let about = || format!("could not read the directory \"{}\"", directory.display());
    let entries = match fs::read_dir(&directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context(about)?,
    };
    let mut waiting = Vec::new();
    for entry in entries {
        let name = entry.context(about)?.file_name();
        let name = name.to_string_lossy();
        let Some(segment) = name.strip_suffix(".ready") else {
            continue;
        };
        if let Ok(ArchiveFile::Segment(found)) = ArchiveFile::parse(segment, size)
            && !archive.holds(found)
            && directory.with_file_name(segment).exists()
        {
            waiting.push(segment.to_owned());
        }
    }
    waiting.sort_unstable();
    let Some(first) = waiting.first() else {
        return Ok(());
    };
    Err(Error::new(
        Kind::Refused,
        format!(
            "{} WAL segments in \"{}\" were never archived, the first is {first}: the restore would delete them",
            waiting.len(),
            data.join("pg_wal").display()
        ),
    )
    .hint("Archive them with \"pgstrata archive-push FILE\", or delete their .ready files if they are not wanted."))
}

/// What is to be remembered of the directory before it is changed.
pub(super) fn remember(
    options: &RestoreOptions,
    identity: &ClusterIdentity,
    data: &Path,
) -> Result<InPlace> {
    if let Some(found) = read_marker(data)?.and_then(|marker| marker.in_place) {
        return Ok(found);
    }
    let kept_settings = match &options.target {
        // A standby that is refreshed goes on following its primary.
        Target::Standby => fs::read_to_string(data.join("postgresql.auto.conf"))
            .map(|text| kept_settings(&text))
            .unwrap_or_default(),
        _ => Vec::new(),
    };
    Ok(InPlace {
        system_identifier: identity.system_identifier,
        kept_settings,
    })
}

/// Something that is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    /// As an index would name it.
    pub(super) path: Vec<u8>,
    pub(super) kind: FoundKind,
    /// Where it is.
    location: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FoundKind {
    Directory,
    File,
    /// A link, or what no cluster has.
    Other,
}

/// What is in the directories of a restore.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// In byte order of the path, as an index is.
    pub(super) found: Vec<Found>,
    /// Sum of the sizes of all files.
    pub(super) size_bytes: u64,
    /// Bytes that the files take, by directory as [`Layout::directories`].
    pub(super) taken: Vec<u64>,
}

impl Inventory {
    /// Lists everything but markers and the links that `prefixes` name.
    pub(super) fn of(
        layout: &Layout,
        prefixes: &[(String, usize)],
        identity: &ClusterIdentity,
    ) -> Result<Self> {
        let directories = layout.directories();
        let mut inventory = Self {
            taken: vec![0; directories.len()],
            ..Self::default()
        };
        let skip: Vec<&[u8]> = prefixes.iter().map(|(path, _)| path.as_bytes()).collect();
        inventory.walk(&layout.data, b"", 0, &skip)?;
        for (prefix, root) in prefixes {
            let Some(&directory) = directories.get(*root) else {
                continue;
            };
            if prefix == "pg_wal" {
                inventory.walk(directory, prefix.as_bytes(), *root, &[])?;
            } else {
                // Beside it there may be directories of other versions.
                let version = version_directory(identity);
                let below = directory.join(&version);
                if below.is_dir() {
                    let path = format!("{prefix}/{version}").into_bytes();
                    inventory.found.push(Found {
                        path: path.clone(),
                        kind: FoundKind::Directory,
                        location: below.clone(),
                    });
                    inventory.walk(&below, &path, *root, &[])?;
                }
            }
        }
        inventory.found.sort_unstable();
        Ok(inventory)
    }

    fn walk(&mut self, directory: &Path, path: &[u8], root: usize, skip: &[&[u8]]) -> Result<()> {
        let about = || format!("could not read the directory \"{}\"", directory.display());
        let entries = match fs::read_dir(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context(about)?,
        };
        for entry in entries {
            let entry = entry.context(about)?;
            let name = entry.file_name();
            let mut below = path.to_vec();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name.as_bytes());
            if name == MARKER || skip.contains(&below.as_slice()) {
                continue;
            }
            let location = entry.path();
            let status = entry
                .metadata()
                .context(|| format!("could not look at \"{}\"", location.display()))?;
            let kind = match status.file_type() {
                kind if kind.is_dir() => FoundKind::Directory,
                kind if kind.is_file() => FoundKind::File,
                _ => FoundKind::Other,
            };
            if kind == FoundKind::File {
                self.size_bytes += status.len();
                if let Some(taken) = self.taken.get_mut(root) {
                    *taken += status.blocks() * 512;
                }
            }
            self.found.push(Found {
                path: below.clone(),
                kind,
                location: location.clone(),
            });
            if kind == FoundKind::Directory {
                self.walk(&location, &below, root, skip)?;
            }
        }
        Ok(())
    }

    /// Removes what `belongs`, in order of path, does not name, contents before directories. Returns how many there
    /// were.
    pub(super) fn remove_strays(
        &self,
        belongs: impl Iterator<Item = Result<(String, EntryKind)>>,
        identity: &ClusterIdentity,
        keep: &[&Path],
    ) -> Result<u64> {
        let mut belongs = belongs.peekable();
        let mut strays = Vec::new();
        for found in &self.found {
            let mut wanted = None;
            while let Some(next) = belongs.next_if(
                |next| !matches!(next, Ok((path, _)) if path.as_bytes() > found.path.as_slice()),
            ) {
                let (path, kind) = next?;
                if path.as_bytes() == found.path {
                    wanted = Some(kind);
                    break;
                }
            }
            let fits = match wanted {
                Some(EntryKind::Directory) => found.kind == FoundKind::Directory,
                Some(EntryKind::Relation | EntryKind::Plain) => found.kind == FoundKind::File,
                None => false,
            };
            if !fits {
                strays.push(found);
            }
        }
        for stray in strays.iter().rev() {
            stray.remove(identity, keep)?;
        }
        Ok(u64::try_from(strays.len()).expect("usize has 64 bits"))
    }
}

impl Found {
    fn remove(&self, identity: &ClusterIdentity, keep: &[&Path]) -> Result<()> {
        let about = || format!("could not remove \"{}\"", self.location.display());
        if self.kind == FoundKind::Directory {
            return fs::remove_dir(&self.location).context(about);
        }
        let tablespace = self.path.strip_prefix(b"pg_tblspc/");
        if let Some(target) = tablespace.and_then(|_| link_target(&self.location))
            && !keep.contains(&target.as_path())
        {
            // A tablespace made since. Replay may make it again, and must not find its old files.
            let below = target.join(version_directory(identity));
            match fs::remove_dir_all(&below) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => {
                    removed.context(|| format!("could not remove \"{}\"", below.display()))?
                }
            }
        }
        fs::remove_file(&self.location).context(about)
    }
}

/// Replaces what is at `link` by a link to `to`, unless it is that already.
pub(super) fn needs_link(link: &Path, to: &Path) -> Result<bool> {
    let about = || format!("could not remove \"{}\"", link.display());
    let status = match fs::symlink_metadata(link) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        status => status.context(about)?,
    };
    if link_target(link).as_deref() == Some(to) {
        return Ok(false);
    }
    match status.is_dir() {
        true => fs::remove_dir_all(link),
        false => fs::remove_file(link),
    }
    .context(about)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strays_are_what_the_index_does_not_name() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        fs::create_dir_all(root.join("base/5")).unwrap();
        fs::create_dir_all(root.join("base/9/deep")).unwrap();
        for file in ["base/5/1", "base/5/1.1", "base/9/deep/x", "base.x", "zz"] {
            fs::write(root.join(file), b"x").unwrap();
        }
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        let mut inventory = Inventory {
            taken: vec![0],
            ..Inventory::default()
        };
        inventory.walk(root, b"", 0, &[]).unwrap();
        inventory.found.sort_unstable();
        assert!(
            inventory
                .found
                .iter()
                .any(|found| found.path == b"base/9/deep/x")
        );
        let belongs = [
            ("base", EntryKind::Directory),
            ("base/4", EntryKind::Directory),
            ("base/5", EntryKind::Directory),
            ("base/5/1", EntryKind::Relation),
            ("zz", EntryKind::Directory),
        ];
        let identity = ClusterIdentity {
            system_identifier: 1,
            major: 15,
            catalog_version: 2,
            block_size: 8192,
            wal_segment_size: 1 << 24,
            data_checksum_version: 0,
        };
        let belongs = belongs.map(|(path, kind)| Ok((path.to_owned(), kind)));
        let removed = inventory
            .remove_strays(belongs.into_iter(), &identity, &[])
            .unwrap();
        assert_eq!(removed, 7);
        assert!(root.join("base/5/1").exists());
        for gone in ["base/5/1.1", "base/9", "base.x", "zz", "link"] {
            assert!(!root.join(gone).exists(), "{gone}");
        }
    }
}
