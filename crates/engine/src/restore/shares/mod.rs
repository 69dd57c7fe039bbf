//! A restore that several processes make, on several hosts or one.
//!
//! The process that has marked the target, the leader, says what the shares are: ranges
//! of the layer's files in order of path. Whoever creates a share's claim makes it, into
//! a directory of its own beside the files to be, and creates one record that says what
//! came of it when everything in there is durable and closed. The leader waits for what
//! others make, makes again what they do not finish, and moves the files into place.
//!
//! All coordination is create-if-absent in `pgstrata.shares`, which each directory of
//! the restore has. A helper holds these directories open and never goes by a path:
//! when the leader has removed them, before there is a `pg_control`, whatever a helper
//! still does ends there. So no helper ever writes to a file that a server may read.

mod help;
mod lead;
mod make;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::restore_share::{
    self, RestoreShareDone, RestoreWork, decode_done, encode_done,
};
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, linkat, mkdirat, openat, statat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

pub use help::{HelpOptions, help};
pub(super) use lead::Lead;
pub use lead::ShareMade;

use super::destination::Root;
use super::writes::give_to_owner;
use crate::catalog::{Layer, our_claim};
use crate::error::{Error, FileContext, Kind, Result};

/// The directory, in each directory of the restore, that holds what is not in place yet.
pub(super) const SHARES: &str = "pgstrata.shares";

/// What the shares are. Who finds it gone stops.
const WORK: &str = "work";

/// How often a process looks for what others have made.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often a helper says that it is alive, and looks whether it is still waited for.
const BEAT_EVERY: Duration = Duration::from_secs(2);

/// A helper that still writes when its directory is removed stops soon after.
const REMOVE_FOR: Duration = Duration::from_secs(10);

/// One process among those that restore a layer.
#[derive(Debug)]
struct Desk {
    /// `pgstrata.shares` of each directory of the restore, that of the data directory first.
    places: Vec<Root>,
    restore_id: String,
    /// Who we are, as our claims say.
    us: ClaimRecord,
}

impl Desk {
    fn new(places: Vec<Root>, restore_id: &str, layer: &Layer) -> Self {
        let us = our_claim(
            layer.label.as_str(),
            &layer.manifest.layer_id,
            Timestamp::now(),
        );
        Self {
            places,
            restore_id: restore_id.to_owned(),
            us,
        }
    }

    /// Says what the shares are, in the data directory last: who sees it there sees it everywhere.
    fn publish(&self, work: &RestoreWork) -> Result<()> {
        let record = restore_share::encode(work);
        for place in self.places.iter().rev() {
            if !create(place, WORK, &record)? {
                let what = format!("\"{}\" is in use", place.path.display());
                return Err(Error::new(Kind::Busy, what));
            }
        }
        Ok(())
    }

    /// Tells helpers to stop.
    fn withdraw(&self) {
        let removed = unlinkat(&self.places[0].dir, WORK, AtFlags::empty());
        if let Err(error) = removed {
            tracing::warn!(%error, "could not tell helpers of the restore to stop");
        }
    }

    fn is_wanted(&self) -> Result<bool> {
        exists(&self.places[0], WORK)
    }

    /// Refuses when the restore has gone on without us.
    fn check_wanted(&self) -> Result<()> {
        match self.is_wanted()? {
            true => Ok(()),
            false => Err(unwanted(&self.us.label)),
        }
    }

    /// Claims a share; false when another process has.
    fn claim(&self, number: u32) -> Result<bool> {
        let (place, name) = (&self.places[0], claim_name(number));
        Ok(!exists(place, &name)? && create(place, &name, &claim::encode(&self.us))?)
    }

    /// Says of a claim of ours that we are alive. Only that it changes counts: clocks of hosts differ.
    fn beat(&self, number: u32) -> io::Result<()> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        let dir = &self.places[0].dir;
        Ok(utimensat(
            dir,
            claim_name(number),
            &times,
            AtFlags::empty(),
        )?)
    }

    /// When the maker of a share was last seen alive; `None` when there is no claim.
    fn last_beat(&self, number: u32) -> Option<SystemTime> {
        let path = self.places[0].path.join(claim_name(number));
        fs::metadata(path).and_then(|found| found.modified()).ok()
    }

    /// Creates the directories that hold the files of a share until they are moved into place.
    fn stage(&self, number: u32, attempt: u32) -> Result<Vec<Root>> {
        let name = stage_name(number, attempt);
        self.places
            .iter()
            .map(|place| make_directory(place, &name))
            .collect()
    }

    /// Opens the directories that hold the files of a share.
    fn staged(&self, number: u32, attempt: u32) -> Result<Vec<Root>> {
        let name = stage_name(number, attempt);
        self.places
            .iter()
            .map(|place| open_directory(place, &name))
            .collect()
    }

    /// Says what came of a share; false when another process has.
    fn finish(&self, done: &RestoreShareDone) -> Result<bool> {
        let name = done_name(done.number);
        create(&self.places[0], &name, &encode_done(done))
    }

    /// What came of a share, when that is known.
    fn outcome(&self, number: u32) -> Result<Option<RestoreShareDone>> {
        let (place, name) = (&self.places[0], done_name(number));
        let Some(bytes) = read(place, &name)? else {
            return Ok(None);
        };
        let path = place.path.join(&name);
        let done = decode_done(&bytes).map_err(|error| {
            Error::from(error).while_doing(format!("could not read \"{}\"", path.display()))
        })?;
        if done.number != number || done.restore_id != self.restore_id {
            let what = format!(
                "\"{}\" is what came of share {}",
                path.display(),
                done.number
            );
            return Err(Error::new(Kind::Damaged, what));
        }
        Ok(Some(done))
    }

    fn is_done(&self, number: u32) -> Result<bool> {
        exists(&self.places[0], &done_name(number))
    }
}

fn claim_name(number: u32) -> String {
    format!("claim-{number}")
}

fn done_name(number: u32) -> String {
    format!("done-{number}")
}

fn stage_name(number: u32, attempt: u32) -> String {
    format!("files-{number}-{attempt}")
}

fn unwanted(label: &str) -> Error {
    let what = format!("the restore of layer {label} went on without this share, or was given up");
    Error::new(Kind::Refused, what)
        .hint("a longer --share-timeout of the restore waits longer for its helpers")
}

/// Removes what shares have left in a directory of the restore.
pub(super) fn remove(directory: &Path) -> Result<()> {
    let path = directory.join(SHARES);
    // Whatever stands in the way of this stands in the way of the rest, too.
    let _ = fs::remove_file(path.join(WORK));
    let end = Instant::now() + REMOVE_FOR;
    loop {
        match fs::remove_dir_all(&path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if Instant::now() >= end => {
                return Err(e).context(|| format!("could not remove \"{}\"", path.display()));
            }
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Whether a directory that we hold open has been removed, or never had what was asked for.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::STALE)
}

/// Creates a file, whole and durable or not at all; false when there is one of that name.
fn create(place: &Root, name: &str, contents: &[u8]) -> Result<bool> {
    let path = place.path.join(name);
    let about = || format!("could not create \"{}\"", path.display());
    let temporary = format!("new-{:032x}", rand::random::<u128>());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = openat(&place.dir, &temporary, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.map_err(io::Error::from).context(about)?);
    file.write_all(contents).context(about)?;
    give_to_owner(&file, place).context(about)?;
    file.sync_all().context(about)?;
    let linked = linkat(&place.dir, &temporary, &place.dir, name, AtFlags::empty());
    // Over a network the answer can be lost, and asking again then says that it exists.
    let is_ours = match linked {
        Ok(()) => true,
        Err(Errno::EXIST) => file.metadata().context(about)?.nlink() > 1,
        Err(e) => return Err(io::Error::from(e)).context(about),
    };
    unlinkat(&place.dir, &temporary, AtFlags::empty())
        .map_err(io::Error::from)
        .context(about)?;
    Ok(is_ours)
}

fn read(place: &Root, name: &str) -> Result<Option<Vec<u8>>> {
    let path = place.path.join(name);
    let about = || format!("could not read \"{}\"", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = match openat(&place.dir, name, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(e) if is_gone(e) => return Ok(None),
        Err(e) => return Err(io::Error::from(e)).context(about),
    };
    let mut contents = Vec::new();
    file.read_to_end(&mut contents).context(about)?;
    Ok(Some(contents))
}

fn exists(place: &Root, name: &str) -> Result<bool> {
    match statat(&place.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(e) if is_gone(e) => Ok(false),
        Err(e) => {
            let path = place.path.join(name);
            Err(io::Error::from(e)).context(|| format!("could not look at \"{}\"", path.display()))
        }
    }
}

/// Creates a directory that belongs to whom the one above belongs.
fn make_directory(above: &Root, name: &str) -> Result<Root> {
    let path = above.path.join(name);
    let about = || format!("could not create the directory \"{}\"", path.display());
    mkdirat(&above.dir, name, Mode::RWXU)
        .map_err(io::Error::from)
        .context(about)?;
    let made = open_directory(above, name)?;
    give_to_owner(&made.dir, above).context(about)?;
    Ok(made)
}

fn open_directory(above: &Root, name: &str) -> Result<Root> {
    let path: PathBuf = above.path.join(name);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(&above.dir, name, flags, Mode::empty()).map_err(io::Error::from);
    let opened = opened.context(|| format!("could not open the directory \"{}\"", path.display()));
    let dir = File::from(opened?);
    Ok(Root { path, dir })
}
