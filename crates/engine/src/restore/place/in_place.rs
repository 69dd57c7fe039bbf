//! Restoring onto a data directory that exists: what is there, whether it may be changed, and what does not belong.
//!
//! The directory must hold a stopped cluster of the layer's system identifier. From the moment its `pg_control` is
//! gone no server starts from it, until the restore has put another in place; killed in between, running the restore
//! again goes on from whatever is there, because what counts is contents alone: pages by their digest, other files by
//! that of the whole, never times or sizes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::ClusterIdentity;
use pgstrata_pgdata::LOCK_FILE;
use pgstrata_store::catalog::Layer;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::access::require_changeable;
use super::beneath;
use super::claim::Root;
use super::foreign;
use super::layout::{
    CONFIG_DIRECTORY, CONTROL, Condition, DirectoryState, LOST_FOUND, Layout, MARKER, Marker, Seen,
    control_there, foreign_marker, marker_of_parts, occupied, read_if_there, state, state_of_other,
    version_directory,
};
use super::links::{Links, link_target};
use super::mounts::{Mounts, in_the_way};
use super::own_settings::kept_settings;
use super::running::{refuse_other_server, refuse_running_server};
use crate::frames::Chain;
use crate::restore::settings::{last_value, turns_archiving_off};
use crate::restore::{ArchiveMode, InPlace, Vouched};
use crate::server::archiver::is_for_another;
use crate::server::lineage;

impl Layout {
    /// As [`Layout::inspect`], for a restore that may change what is there.
    pub(crate) fn inspect_in_place(
        &self,
        cluster: &ClusterName,
        layer: &Layer,
        vouched: Vouched,
        links: &Links,
    ) -> Result<Condition> {
        let identity = &layer.manifest.cluster;
        refuse_running_server(&self.data, vouched.server_is_stopped)?;
        match state(&self.data)? {
            DirectoryState::Vacant => return Err(nothing_there(&self.data)),
            DirectoryState::Marked(marker) => {
                self.check_marker(&marker, cluster.as_str(), identity)?
            }
            DirectoryState::Occupied(name) => {
                if !self.data.join("global/pg_control").exists() {
                    return Err(occupied(&self.data, &name, "the target directory")
                        .hint("It has no global/pg_control, so it is no cluster that could be changed in place."));
                }
            }
        }
        check_same_cluster(&self.data, identity)?;
        for directory in links.own_directories() {
            refuse_other_server(&self.data, directory)?;
        }
        for (oid, path) in &self.tablespaces {
            let link = self.data.join("pg_tblspc").join(oid.to_string());
            let own = links.is_own(&format!("pg_tblspc/{oid}"));
            let link = own.then_some(link.as_path());
            self.check_other(path, link, &format!("the directory of tablespace {oid}"))?;
        }
        if let Some(wal) = &self.wal {
            let link = self.data.join("pg_wal");
            let link = links.is_own("pg_wal").then_some(link.as_path());
            self.check_other(wal, link, "the directory for WAL")?;
        }
        if let Some(config) = &self.config {
            self.check_other(config, None, CONFIG_DIRECTORY)?;
        }
        foreign::refuse(&self.data, &self.changed_beside(links, identity))?;
        self.refuse_mounts(links, identity)?;
        Ok(Condition::Existing)
    }

    /// Refuses what is mounted where a directory goes with all that it holds: one in the place of a link, and that of a tablespace
    /// which was made since the layer.
    fn refuse_mounts(&self, links: &Links, identity: &ClusterIdentity) -> Result<()> {
        let spaces = self.tablespaces.keys();
        let spaces = spaces.map(|oid| format!("pg_tblspc/{oid}"));
        let wal = self.wal.iter().map(|_| "pg_wal".to_owned());
        let for_links = spaces.chain(wal).map(|link| self.data.join(link));
        let version = version_directory(identity);
        let kept: BTreeSet<&Path> = self.tablespaces.values().map(PathBuf::as_path).collect();
        let made = links.of_tablespaces().filter(|space| !kept.contains(space));
        let made = made.map(|space| space.join(&version));
        let mounts = Mounts::now();
        let mut going = for_links.chain(made);
        going.try_for_each(|place| mounts.refuse_within(&place))
    }

    /// The directories beside the data directory whose contents are changed or removed.
    fn changed_beside(&self, links: &Links, identity: &ClusterIdentity) -> Vec<PathBuf> {
        // Of tablespaces that were made since the layer, too.
        let spaces = self.tablespaces.values().map(PathBuf::as_path);
        let spaces: BTreeSet<&Path> = spaces.chain(links.of_tablespaces()).collect();
        let version = version_directory(identity);
        let versions = spaces.into_iter().map(|space| space.join(&version));
        versions.chain(self.wal.clone()).collect()
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

    /// A directory beside the data directory holds files only of the cluster whose own link leads to it.
    fn check_other(&self, path: &Path, link: Option<&Path>, what: &str) -> Result<()> {
        match state_of_other(path)? {
            DirectoryState::Vacant => Ok(()),
            DirectoryState::Marked(marker) if marker.data_directory == self.data => Ok(()),
            DirectoryState::Marked(marker) => Err(foreign_marker(path, &marker)),
            DirectoryState::Occupied(_) if link.and_then(link_target).as_deref() == Some(path) => {
                Ok(())
            }
            DirectoryState::Occupied(name) => Err(occupied(path, &name, what)),
        }
    }
}

/// Who misspells a directory must not get a second cluster in its place.
fn nothing_there(data: &Path) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "\"{}\" is absent or empty: there is no cluster that could be changed in place",
            data.display()
        ),
    )
    .hint("Name the data directory of the cluster, or leave out --delta to restore into a new one.")
}

fn check_same_cluster(data: &Path, identity: &ClusterIdentity) -> Result<()> {
    // Gone since an earlier attempt, whose marker says what was there.
    let Some(control) = control_there(data)? else {
        return Ok(());
    };
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
    .hint("Restore to another directory.")
    .for_other_cluster())
}

/// The directory's own `postgresql.auto.conf`; empty when there is none.
fn auto_conf(data: &Path) -> Result<Vec<u8>> {
    Ok(read_if_there(&data.join("postgresql.auto.conf"))?.unwrap_or_default())
}

/// What is to be remembered of the directory before it is changed, whatever it is restored to: an attempt that is interrupted may be
/// followed by one with another target.
pub(crate) fn remember(
    archive_mode: ArchiveMode,
    links: &Links,
    identity: &ClusterIdentity,
    data: &Path,
) -> Result<InPlace> {
    if let Some(mut found) = marker_of_parts(data)?.and_then(|marker| marker.in_place) {
        found.own_links.extend(links.lasting());
        return Ok(found);
    }
    Ok(InPlace {
        system_identifier: identity.system_identifier,
        kept_settings: kept_settings(data),
        archive_mode,
        directory: Some(lineage::located(data)?),
        directory_known: links.directory_known,
        own_links: links.lasting(),
    })
}

/// Whether the server that was changed in place archives when nobody says: as it did, when the directory is known to
/// be the cluster's own. A copy would archive beside its source; so would one that archived under another name, or nowhere,
/// when it has the settings of its source again.
pub(crate) fn archive_mode(data: &Path, own: bool, cluster: &ClusterName) -> Result<ArchiveMode> {
    if let Some(found) = marker_of_parts(data)?.and_then(|marker| marker.in_place) {
        return Ok(found.archive_mode);
    }
    let command = archive_command(data)?;
    let elsewhere = command.is_some_and(|command| is_for_another(&command, cluster.as_str()));
    match own && !elsewhere && !turns_archiving_off(&auto_conf(data)?) {
        true => Ok(ArchiveMode::Keep),
        false => Ok(ArchiveMode::Off),
    }
}

/// What the server in the directory archived with, as far as its own two files say; the last line about it counts.
fn archive_command(data: &Path) -> Result<Option<String>> {
    const NAME: &str = "archive_command";
    if let Some(command) = last_value(&auto_conf(data)?, NAME) {
        return Ok(Some(command));
    }
    let main = read_if_there(&data.join("postgresql.conf"))?.unwrap_or_default();
    Ok(last_value(&main, NAME))
}

impl Seen {
    /// Looks at a data directory before it is changed.
    pub(crate) fn of(data: &Path, vouched: Vouched) -> Result<Self> {
        Ok(Self {
            control: read_if_there(&data.join(CONTROL))?,
            pid_file: read_if_there(&data.join(LOCK_FILE))?,
            marked: marker_of_parts(data)?.is_some(),
            vouched: vouched.server_is_stopped,
        })
    }
}

/// Something that is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Present {
    /// As an index would name it.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: PresentKind,
    /// The directory of the restore that holds it, as [`Layout::directories`], and its path below that.
    root: usize,
    below: PathBuf,
    /// Where it is, when something is mounted there.
    mounted_at: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PresentKind {
    Directory,
    File,
    /// A link, or what no cluster has.
    Other,
}

/// What is in the directories of a restore.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// In byte order of the path, as an index is.
    pub(crate) found: Vec<Present>,
    /// Sum of the sizes of all files.
    pub(crate) size_bytes: u64,
    /// Bytes that the files take, by directory as [`Layout::directories`].
    pub(crate) taken: Vec<u64>,
    /// Directories in which their owner may not do everything, above before below: which directory of the restore holds them, and
    /// where.
    narrow: Vec<(usize, PathBuf)>,
    mounts: Mounts,
}

/// A directory of the restore that is being listed.
struct Listed<'a> {
    /// Which one, as [`Layout::directories`].
    root: usize,
    top: &'a Path,
    /// Paths, as an index names them, that are left out.
    skip: &'a [&'a [u8]],
}

impl Inventory {
    /// Lists everything but markers and the links that `prefixes` name. Refuses what could not be changed.
    pub(crate) fn of(
        layout: &Layout,
        prefixes: &[(String, usize)],
        identity: &ClusterIdentity,
    ) -> Result<Self> {
        let directories = layout.directories();
        let mut inventory = Self {
            taken: vec![0; directories.len()],
            mounts: Mounts::now(),
            ..Self::default()
        };
        let skip: Vec<&[u8]> = prefixes.iter().map(|(path, _)| path.as_bytes()).collect();
        let data = Listed {
            root: 0,
            top: &layout.data,
            skip: &skip,
        };
        inventory.walk(&data, &layout.data, b"")?;
        for (prefix, root) in prefixes {
            let Some(&directory) = directories.get(*root) else {
                continue;
            };
            let listed = Listed {
                root: *root,
                top: directory,
                skip: &[],
            };
            if prefix == "pg_wal" {
                inventory.walk(&listed, directory, prefix.as_bytes())?;
            } else {
                inventory.look_at(&listed, directory)?;
                // Beside it there may be directories of other versions.
                let version = version_directory(identity);
                let below = directory.join(&version);
                if below.is_dir() {
                    let path = format!("{prefix}/{version}").into_bytes();
                    let is_mounted = inventory.mounts.has(&below, true);
                    inventory.found.push(Present {
                        path: path.clone(),
                        kind: PresentKind::Directory,
                        root: *root,
                        below: PathBuf::from(version),
                        mounted_at: is_mounted.then(|| below.clone()),
                    });
                    inventory.walk(&listed, &below, &path)?;
                }
            }
        }
        inventory.found.sort_unstable();
        Ok(inventory)
    }

    /// Lists `directory`, which an index would name `path`.
    fn walk(&mut self, listed: &Listed<'_>, directory: &Path, path: &[u8]) -> Result<()> {
        self.look_at(listed, directory)?;
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
            let of_mount = name == LOST_FOUND
                && (listed.root != 0 && directory == listed.top
                    || self.mounts.has(directory, true));
            if of_mount || name == MARKER || listed.skip.contains(&below.as_slice()) {
                continue;
            }
            let location = entry.path();
            let status = entry
                .metadata()
                .context(|| format!("could not look at \"{}\"", location.display()))?;
            let kind = match status.file_type() {
                kind if kind.is_dir() => PresentKind::Directory,
                kind if kind.is_file() => PresentKind::File,
                _ => PresentKind::Other,
            };
            if kind == PresentKind::File {
                require_changeable(&location, &status)?;
                self.size_bytes += status.len();
                // A file of other names is removed here and written anew: that frees nothing.
                if let Some(taken) = self
                    .taken
                    .get_mut(listed.root)
                    .filter(|_| status.nlink() == 1)
                {
                    *taken += status.blocks() * 512;
                }
            }
            let is_mounted = self.mounts.has(&location, kind == PresentKind::Directory);
            self.found.push(Present {
                path: below.clone(),
                kind,
                root: listed.root,
                below: location
                    .strip_prefix(listed.top)
                    .unwrap_or(&location)
                    .to_owned(),
                mounted_at: is_mounted.then(|| location.clone()),
            });
            if kind == PresentKind::Directory {
                self.walk(listed, &location, &below)?;
            }
        }
        Ok(())
    }

    /// Refuses a directory in which a restore could not work, and notes one whose mode keeps it from that.
    fn look_at(&mut self, listed: &Listed<'_>, directory: &Path) -> Result<()> {
        let status = match fs::symlink_metadata(directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            status => {
                status.context(|| format!("could not look at \"{}\"", directory.display()))?
            }
        };
        require_changeable(directory, &status)?;
        if status.mode() & 0o700 != 0o700 {
            let below = directory.strip_prefix(listed.top).unwrap_or(directory);
            self.narrow.push((listed.root, below.to_owned()));
        }
        Ok(())
    }

    /// Lets us work in every directory of ours, whatever its mode.
    pub(crate) fn widen(&self, roots: &[Root]) -> Result<()> {
        let mut narrow = self.narrow.iter();
        narrow.try_for_each(|(root, below)| roots[*root].widen(below))
    }

    /// Whether anything is mounted among what is there.
    pub(crate) fn has_mounts(&self) -> bool {
        self.found.iter().any(|found| found.mounted_at.is_some())
    }

    /// What `belongs`, in order of path, does not name as what it is, and files that are mounted: a restore may have to put others
    /// in their place. Refuses when nobody can remove that.
    pub(crate) fn strays(
        &self,
        belongs: impl Iterator<Item = Result<(String, EntryKind)>>,
    ) -> Result<Vec<&Present>> {
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
                Some(EntryKind::Directory) => found.kind == PresentKind::Directory,
                Some(EntryKind::Relation | EntryKind::Plain) => {
                    found.kind == PresentKind::File && found.mounted_at.is_none()
                }
                None => false,
            };
            if !fits {
                strays.push(found);
            }
        }
        let mut mounted = strays.iter().filter_map(|stray| stray.mounted_at.as_ref());
        match mounted.next() {
            Some(place) => Err(in_the_way(place)),
            None => Ok(strays),
        }
    }

    /// Removes what `belongs`, in order of path, does not name, contents before directories. Returns how many there
    /// were.
    pub(crate) fn remove_strays(
        &self,
        belongs: impl Iterator<Item = Result<(String, EntryKind)>>,
        roots: &[Root],
        links: &Links,
        identity: &ClusterIdentity,
    ) -> Result<u64> {
        let strays = self.strays(belongs)?;
        for stray in strays.iter().rev() {
            stray.remove(roots, links, identity)?;
        }
        Ok(u64::try_from(strays.len()).expect("usize has 64 bits"))
    }
}

/// What the newest layer of a chain has, in order of path. To be read on a thread of its own.
pub(crate) fn belonging(chain: &Chain) -> impl Iterator<Item = Result<(String, EntryKind)>> {
    let entries = chain.newest().entries().into_iter().flatten();
    entries.map(|entry| entry.map(|entry| (entry.path, entry.kind)))
}

impl Present {
    fn remove(&self, roots: &[Root], links: &Links, identity: &ClusterIdentity) -> Result<()> {
        let root = &roots[self.root];
        let about = || {
            let path = root.path.join(&self.below);
            format!("could not remove \"{}\"", path.display())
        };
        if self.kind == PresentKind::Directory {
            return beneath::remove_directory(&root.dir, &self.below).context(about);
        }
        if self.root == 0
            && self.path.starts_with(b"pg_tblspc/")
            && let Some(target) = links.led_to(&self.below.to_string_lossy())
            && !roots[1..].iter().any(|other| other.path == target)
        {
            // A tablespace made since. Replay may make it again, and must not find its old files.
            let version = target.join(version_directory(identity));
            let about = || format!("could not remove \"{}\"", version.display());
            // The disk on which it lay may be lost.
            let removed = beneath::open_all(target).and_then(|outside| {
                beneath::remove_all(&outside, Path::new(&version_directory(identity)))
            });
            match removed {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => removed.context(about)?,
            }
        }
        beneath::remove_file(&root.dir, &self.below).context(about)
    }
}

/// Whether `link` has yet to be made; removes what is in its place and does not lead to `to`.
pub(crate) fn needs_link(data: &Root, link: &str, to: &Path) -> Result<bool> {
    let below = Path::new(link);
    let about = || format!("could not remove \"{}\"", data.path.join(link).display());
    if !beneath::exists(&data.dir, below).context(about)? {
        return Ok(true);
    }
    let leads_to = beneath::read_link(&data.dir, below).context(about)?;
    if leads_to.is_some() && link_target(&data.path.join(link)).as_deref() == Some(to) {
        return Ok(false);
    }
    beneath::remove_all(&data.dir, below).context(about)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_archived_elsewhere_does_not_archive_beside_its_source() {
        let data = tempfile::tempdir().unwrap();
        let main = ClusterName::parse("main").unwrap();
        let put = |file: &str, text: &str| fs::write(data.path().join(file), text).unwrap();
        let mode = |own| archive_mode(data.path(), own, &main).unwrap();
        assert_eq!(
            (mode(true), mode(false)),
            (ArchiveMode::Keep, ArchiveMode::Off)
        );
        let push = |cluster: &str| {
            format!("archive_command = 'pgstrata --cluster {cluster} archive-push %p'\n")
        };
        put("postgresql.conf", &push("main"));
        assert_eq!(mode(true), ArchiveMode::Keep);
        put(
            "postgresql.auto.conf",
            &format!("{}{}", push("main"), push("copy")),
        );
        assert_eq!(mode(true), ArchiveMode::Off);
        put("postgresql.auto.conf", "archive_command = '/bin/true'\n");
        assert_eq!(mode(true), ArchiveMode::Off);
        put(
            "postgresql.auto.conf",
            "archive_command = '/usr/local/bin/archive %p'\n",
        );
        assert_eq!(mode(true), ArchiveMode::Keep);
    }

    #[test]
    fn a_file_of_other_names_makes_no_room() {
        let (scratch, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = scratch.path().join("one");
        fs::write(&file, vec![1; 1 << 16]).unwrap();
        let taken = || {
            let mut inventory = Inventory {
                taken: vec![0],
                ..Inventory::default()
            };
            let listed = Listed {
                root: 0,
                top: scratch.path(),
                skip: &[],
            };
            inventory.walk(&listed, scratch.path(), b"").unwrap();
            inventory.taken[0]
        };
        assert_eq!(taken(), 1 << 16);
        // As pg_upgrade --link and cp -al leave it.
        fs::hard_link(&file, beside.path().join("two")).unwrap();
        assert_eq!(taken(), 0);
    }

    #[test]
    fn a_link_that_was_put_elsewhere_since_it_was_looked_at_leads_nowhere() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let identity = identity();
        for (name, holds) in [("ours", "1"), ("others", "precious")] {
            let version = at(name).join(version_directory(&identity));
            fs::create_dir_all(&version).unwrap();
            fs::write(version.join(holds), b"x").unwrap();
        }
        let data = at("data");
        fs::create_dir_all(data.join("pg_tblspc")).unwrap();
        let link = data.join("pg_tblspc/16390");
        std::os::unix::fs::symlink(at("ours"), &link).unwrap();
        let vouched = Vouched {
            links_are_own: true,
            ..Vouched::default()
        };
        let links = Links::of(&data, vouched).unwrap();
        let mut inventory = Inventory {
            taken: vec![0],
            ..Inventory::default()
        };
        let listed = Listed {
            root: 0,
            top: &data,
            skip: &[],
        };
        inventory.walk(&listed, &data, b"").unwrap();
        inventory.found.sort_unstable();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(at("others"), &link).unwrap();
        inventory
            .remove_strays(
                std::iter::empty(),
                &[Root::existing(&data)],
                &links,
                &identity,
            )
            .unwrap();
        assert!(!link.is_symlink());
        let version = version_directory(&identity);
        assert!(at("others").join(&version).join("precious").exists());
        assert!(!at("ours").join(&version).exists());
    }

    fn identity() -> ClusterIdentity {
        ClusterIdentity {
            system_identifier: 1,
            major: 15,
            catalog_version: 2,
            block_size: 8192,
            wal_segment_size: 1 << 24,
            data_checksum_version: 0,
        }
    }

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
        let listed = Listed {
            root: 0,
            top: root,
            skip: &[],
        };
        inventory.walk(&listed, root, b"").unwrap();
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
        let belongs = belongs.map(|(path, kind)| Ok((path.to_owned(), kind)));
        let removed = inventory
            .remove_strays(
                belongs.into_iter(),
                &[Root::existing(root)],
                &Links::default(),
                &identity(),
            )
            .unwrap();
        assert_eq!(removed, 7);
        assert!(root.join("base/5/1").exists());
        for gone in ["base/5/1.1", "base/9", "base.x", "zz", "link"] {
            assert!(!root.join(gone).exists(), "{gone}");
        }
    }
}
