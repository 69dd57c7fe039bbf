//! The lineage file of a data directory, read and written: which layers lie in its past.
//!
//! Invariants:
//! - It is replaced as a whole, durably: a reader sees the old one or the new one.
//! - What it lists is true of the directory in which it was written, and of nothing
//!   else: a copy has other inodes. Whatever makes that doubtful makes it say nothing.
//! - It belongs to the owner of the data directory, so that the server can read all its files.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use pgstrata_layer::lineage::{self, FILE_NAME, Identity, Line, Lineage, Link, Located, Place};
use pgstrata_store::catalog::WRITTEN_BY;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use super::control::CONTROL_PATH;
use super::scan::tablespaces;

/// Under this name it is written, then renamed.
const TEMPORARY: &str = "pgstrata.lineage.tmp";

/// How the reason begins that a directory is a copy. Manifests keep it.
const IS_A_COPY: &str = "the data directory is a copy";

/// Far above what the largest one takes: 8 lines of 256 layers are 400 kB.
const MAX_BYTES: u64 = 4 << 20;

/// Changes with every start of the operating system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What is known of the server beside its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// From `pg_control`.
    pub system_identifier: u64,
    /// Whether `fsync` is on.
    pub fsync: bool,
    /// This boot of the operating system.
    pub boot_id: Option<String>,
    /// This run of the server; `None` when none runs.
    pub server_run: Option<String>,
}

impl Circumstances {
    /// As they are now.
    #[must_use]
    pub fn now(system_identifier: u64, fsync: bool, server_run: Option<String>) -> Self {
        let boot_id = fs::read_to_string(BOOT_ID).ok();
        Self {
            system_identifier,
            fsync,
            boot_id: boot_id.map(|text| text.trim().to_owned()),
            server_run,
        }
    }

    /// What to write into `place`, with a token of the page tracker made just now.
    #[must_use]
    pub fn lineage(self, place: Place, lines: Vec<Line>, tracker_token: Option<String>) -> Lineage {
        Lineage {
            system_identifier: self.system_identifier,
            place,
            boot_id: self.boot_id,
            fsync: self.fsync,
            server_run: self.server_run,
            tracker_token,
            summaries_from_lsn: None,
            lines,
            written_at: Timestamp::now(),
            written_by: WRITTEN_BY.to_owned(),
        }
    }
}

/// Why `lineage`, found in a directory that is `place` now, says nothing of it.
#[must_use]
pub fn doubt(lineage: &Lineage, place: &Place, now: &Circumstances) -> Option<String> {
    if let Some(why) = of_another(lineage, place, now.system_identifier) {
        return Some(why);
    }
    // What the server wrote without fsync, and the WAL of it, may be gone with the operating system's memory.
    let same_boot = lineage.boot_id.is_some() && lineage.boot_id == now.boot_id;
    let outlives = (lineage.fsync && now.fsync) || same_boot;
    (!outlives).then(|| "the operating system was started anew while fsync was off".to_owned())
}

/// Why `lineage` was not written in the directory that is `place` now; `None` when it was.
#[must_use]
pub fn of_another(lineage: &Lineage, place: &Place, system_identifier: u64) -> Option<String> {
    if lineage.system_identifier != system_identifier {
        return Some("its lineage file is that of another cluster".to_owned());
    }
    let was = &lineage.place;
    if was.directory.identity != place.directory.identity {
        let of = was.directory.path.as_deref().unwrap_or("another directory");
        return Some(format!("{IS_A_COPY}: its lineage file is that of \"{of}\""));
    }
    (was.control != place.control)
        .then(|| "global/pg_control was replaced since the lineage file was written".to_owned())
}

/// Whether a reason that [`of_another`] gave, now or when a layer was made, is that the directory is a copy.
#[must_use]
pub fn tells_of_copy(reason: &str) -> bool {
    reason.starts_with(IS_A_COPY)
}

/// Which directory `data` is, and where its links lead.
///
/// # Errors
/// When it cannot be looked at.
pub fn place(data: &Path) -> Result<Place> {
    let control = data.join(CONTROL_PATH);
    let found = fs::metadata(&control).context(|| look(&control))?;
    place_with_control(data, identity(&found))
}

/// The same for a directory whose `pg_control` is not yet in its place.
///
/// # Errors
/// When it cannot be looked at.
pub fn place_with_control(data: &Path, control: Identity) -> Result<Place> {
    let mut links = Vec::new();
    for tablespace in tablespaces(data)? {
        if tablespace.location.is_some() {
            links.push(format!("pg_tblspc/{}", tablespace.oid));
        }
    }
    if data.join("pg_wal").is_symlink() {
        links.push("pg_wal".to_owned());
    }
    links.sort_unstable();
    let link = |link: String| {
        Ok(Link {
            leads_to: located(&data.join(&link))?,
            link,
        })
    };
    Ok(Place {
        directory: located(data)?,
        control,
        links: links.into_iter().map(link).collect::<Result<_>>()?,
    })
}

/// Where the directory `path` really is, and which one that is.
///
/// # Errors
/// When it is not there or cannot be looked at.
pub fn located(path: &Path) -> Result<Located> {
    let real = fs::canonicalize(path).context(|| look(path))?;
    let found = fs::metadata(&real).context(|| look(&real))?;
    Ok(Located {
        identity: identity(&found),
        path: real.to_str().map(str::to_owned),
    })
}

/// What tells a file from all others for as long as it exists.
#[must_use]
pub fn identity(metadata: &Metadata) -> Identity {
    let born = metadata.created().ok();
    let born = born.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Identity {
        inode: metadata.ino(),
        born_ns: born.and_then(|age| u64::try_from(age.as_nanos()).ok()),
    }
}

/// The directory's lineage file; `None` when there is none.
///
/// # Errors
/// When it cannot be read, is damaged or of a newer version.
pub fn read(data: &Path) -> Result<Option<Lineage>> {
    let path = data.join(FILE_NAME);
    let about = || format!("could not read \"{}\"", path.display());
    let status = match fs::symlink_metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        status => status.context(about)?,
    };
    if !status.is_file() || status.len() > MAX_BYTES {
        return Err(Error::new(
            Kind::Damaged,
            format!("\"{}\" is not a lineage file", path.display()),
        ));
    }
    let mut bytes = Vec::new();
    let file = File::open(&path).context(about)?;
    file.take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .context(about)?;
    let decoded = lineage::decode(&bytes);
    decoded
        .map(Some)
        .map_err(|error| Error::from(error).while_doing(about()))
}

/// Puts `lineage` in the place of what `directory` has, durably. `path` is for messages: whatever is in the place of
/// the directory by now stays as it is.
///
/// # Errors
/// When that is not possible; the one that was there then still is, or the new one is.
pub fn write(directory: &File, path: &Path, lineage: &Lineage) -> Result<()> {
    let about = || format!("could not write \"{}\"", path.join(FILE_NAME).display());
    remove_file(directory, TEMPORARY).context(about)?;
    let outcome = create(directory, &lineage::encode(lineage))
        .and_then(|()| Ok(renameat(directory, TEMPORARY, directory, FILE_NAME)?))
        .and_then(|()| directory.sync_all());
    if outcome.is_err() {
        // What is left of it is harmless: no backup stores it, and the next one removes it.
        remove_file(directory, TEMPORARY).ok();
    }
    outcome.context(about)
}

/// Removes the lineage file of `directory`, durably; `path` is for messages.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove(directory: &File, path: &Path) -> Result<()> {
    for name in [FILE_NAME, TEMPORARY] {
        remove_file(directory, name)
            .context(|| format!("could not remove \"{}\"", path.join(name).display()))?;
    }
    directory
        .sync_all()
        .context(|| format!("could not fsync \"{}\"", path.display()))
}

fn remove_file(directory: &File, name: &str) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

fn create(directory: &File, bytes: &[u8]) -> io::Result<()> {
    // Never through a link that somebody put there.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file: File = openat(directory, TEMPORARY, flags, Mode::RUSR | Mode::WUSR)?.into();
    let above = directory.metadata()?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::fchown(&file, Some(above.uid()), Some(above.gid()))?;
    }
    // As PostgreSQL's own files: its group may read where it may enter.
    let mode = if above.mode() & 0o050 == 0 {
        0o600
    } else {
        0o640
    };
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn look(path: &Path) -> String {
    format!("could not look at \"{}\"", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_layer::lineage::with_layer;
    use pgstrata_layer::manifest::ParentRef;
    use std::os::unix::fs::symlink;

    fn directory() -> tempfile::TempDir {
        let data = tempfile::tempdir().unwrap();
        for directory in ["global", "pg_tblspc/16391", "elsewhere", "wal"] {
            fs::create_dir_all(data.path().join(directory)).unwrap();
        }
        fs::write(data.path().join(CONTROL_PATH), "control").unwrap();
        symlink(
            data.path().join("elsewhere"),
            data.path().join("pg_tblspc/16390"),
        )
        .unwrap();
        symlink("wal", data.path().join("pg_wal")).unwrap();
        data
    }

    fn put(data: &Path, lineage: &Lineage) -> Result<()> {
        write(&File::open(data).unwrap(), data, lineage)
    }

    fn now() -> Circumstances {
        Circumstances {
            boot_id: Some("one".to_owned()),
            ..Circumstances::now(7, true, Some("run".to_owned()))
        }
    }

    fn of(data: &Path) -> Lineage {
        let layer = ParentRef {
            label: "20261121-093305F".to_owned(),
            manifest_digest: "a".repeat(64),
        };
        let lines = with_layer(Vec::new(), &"b".repeat(64), layer);
        now().lineage(place(data).unwrap(), lines, None)
    }

    #[test]
    fn it_is_read_as_it_was_written_and_replaced_as_a_whole() {
        let data = directory();
        let data = data.path();
        assert_eq!(read(data).unwrap(), None);
        let mut lineage = of(data);
        for (fsync, directory_mode, file_mode) in [(true, 0o750, 0o640), (false, 0o700, 0o600)] {
            fs::set_permissions(data, fs::Permissions::from_mode(directory_mode)).unwrap();
            lineage.fsync = fsync;
            put(data, &lineage).unwrap();
            assert_eq!(read(data).unwrap().as_ref(), Some(&lineage));
            assert!(!data.join(TEMPORARY).exists());
            let mode = fs::metadata(data.join(FILE_NAME)).unwrap().mode();
            assert_eq!(mode & 0o777, file_mode);
        }
        remove(&File::open(data).unwrap(), data).unwrap();
        assert_eq!(read(data).unwrap(), None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_keeps_its_old_one() {
        let data = directory();
        let data = data.path();
        let lineage = of(data);
        put(data, &lineage).unwrap();
        fs::create_dir(data.join(TEMPORARY)).unwrap();
        let error = put(data, &lineage).unwrap_err();
        assert_eq!(error.kind(), Kind::File);
        assert_eq!(read(data).unwrap(), Some(lineage));
    }

    #[test]
    fn what_is_no_lineage_file_is_an_error_and_no_link_is_followed() {
        let data = directory();
        let data = data.path();
        put(data, &of(data)).unwrap();
        let path = data.join(FILE_NAME);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(data).unwrap_err().kind(), Kind::Damaged);
        fs::rename(&path, data.join("other")).unwrap();
        symlink("other", &path).unwrap();
        assert_eq!(read(data).unwrap_err().kind(), Kind::Damaged);
        symlink("other", data.join(TEMPORARY)).unwrap();
        put(data, &of(data)).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(data.join("other")).unwrap(), bytes);
    }

    #[test]
    fn a_directory_in_the_place_of_the_one_that_was_opened_is_left_alone() {
        let (ours, other) = (directory(), directory());
        let scratch = tempfile::tempdir().unwrap();
        let (data, aside) = (ours.path(), scratch.path().join("aside"));
        let (lineage, opened) = (of(data), File::open(data).unwrap());
        put(other.path(), &of(other.path())).unwrap();
        let before = read(other.path()).unwrap();
        fs::rename(data, &aside).unwrap();
        symlink(other.path(), data).unwrap();
        write(&opened, data, &lineage).unwrap();
        assert_eq!(read(&aside).unwrap(), Some(lineage));
        remove(&opened, data).unwrap();
        assert_eq!(read(&aside).unwrap(), None);
        assert_eq!(read(other.path()).unwrap(), before);
    }

    #[test]
    fn the_links_of_postgresql_are_listed_with_where_they_lead() {
        let data = directory();
        let place = place(data.path()).unwrap();
        let links: Vec<&str> = place.links.iter().map(|link| link.link.as_str()).collect();
        assert_eq!(links, ["pg_tblspc/16390", "pg_wal"]);
        assert_eq!(
            place.links[0].leads_to,
            located(&data.path().join("elsewhere")).unwrap()
        );
    }

    #[test]
    fn it_says_nothing_of_a_copy() {
        let (data, copy) = (directory(), directory());
        let lineage = of(data.path());
        let why = |place: &Place| doubt(&lineage, place, &now()).unwrap_or_default();
        let here = place(data.path()).unwrap();
        assert_eq!(why(&here), "");
        assert!(why(&place(copy.path()).unwrap()).contains("is a copy"));
        let elsewhere = Place {
            directory: Located {
                path: Some("/moved".to_owned()),
                ..here.directory.clone()
            },
            ..here.clone()
        };
        assert_eq!(why(&elsewhere), "", "a directory may move");
        let control = Identity {
            inode: here.control.inode + 1,
            ..here.control
        };
        assert!(why(&Place { control, ..here }).contains("was replaced"));
    }

    #[test]
    fn without_fsync_it_does_not_outlive_the_boot() {
        let data = directory();
        let here = place(data.path()).unwrap();
        for (then, still, same_boot, says_nothing) in [
            (true, true, false, false),
            (false, true, true, false),
            (true, false, true, false),
            (false, true, false, true),
            (true, false, false, true),
        ] {
            let lineage = Lineage {
                fsync: then,
                ..of(data.path())
            };
            let now = Circumstances {
                fsync: still,
                boot_id: same_boot.then(|| "one".to_owned()),
                ..now()
            };
            let doubt = doubt(&lineage, &here, &now);
            assert_eq!(doubt.is_some(), says_nothing, "{then} {still} {same_boot}");
        }
        let other = Circumstances::now(8, true, None);
        assert!(doubt(&of(data.path()), &here, &other).is_some());
    }
}
