//! Notes of what this host has just stored, for itself.
//!
//! The server asks for each segment that was pushed as a neighbour of another. Whether a segment that is in the archive
//! is whole there can be told only by reading it all; a note of the push that stored it moments ago says so for less. A
//! note is used once and not for long, so a push by hand reads. Without notes everything is read: they can be lost.
//!
//! That a repository did not answer is noted too, so that not every file waits for it. Pushes and gets share that note.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::spool::{check_private, check_root};
use crate::catalog::hex;

/// The server asks within moments; a broken archiver makes it ask again within a minute.
const VALID_FOR: Duration = Duration::from_secs(120);

/// The name of the note of an outage, which no file of the archive has.
const OUTAGE: &str = "outage";

/// Where the notes of one archiver are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notes {
    root: PathBuf,
    directory: PathBuf,
}

impl Notes {
    /// Notes below `root` of pushes to the cluster `cluster` of the repository `url`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, url: &str, cluster: &str) -> Self {
        let root = root.into();
        let digest = blake3::hash(format!("{url}\n{cluster}").as_bytes()).to_hex();
        let directory = root.join(format!("{cluster}-pushed-{}", &digest[..16]));
        Self { root, directory }
    }

    /// Notes that the file was stored.
    pub(super) fn add(&self, file_name: &str, digest: &[u8; 32]) {
        if !self.is_made() {
            return;
        }
        for entry in fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            if !is_fresh(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        let _ = fs::write(self.path(file_name, digest), b"");
    }

    /// Whether there is a note of a file of that name, whatever its contents. It stays.
    pub(super) fn know(&self, file_name: &str) -> bool {
        let mut entries = fs::read_dir(&self.directory).into_iter().flatten();
        entries.any(|entry| {
            let name = entry.ok().and_then(|e| e.file_name().into_string().ok());
            let rest = name.as_deref().and_then(|n| n.strip_prefix(file_name));
            rest.is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Whether the file was stored just now; the note goes.
    pub(super) fn take(&self, file_name: &str, digest: &[u8; 32]) -> bool {
        let path = self.path(file_name, digest);
        let fresh = self.are_ours() && is_fresh(&path);
        // A note that stays would be believed once more.
        fs::remove_file(&path).is_ok() && fresh
    }

    /// Notes that the repository did not answer in time, or with nothing that can be opened here.
    pub fn add_outage(&self) {
        self.add(OUTAGE, &[0; 32]);
    }

    /// Notes that it answers again.
    pub fn end_outage(&self) {
        let _ = fs::remove_file(self.path(OUTAGE, &[0; 32]));
    }

    /// Whether that was noted a short time ago.
    #[must_use]
    pub fn had_outage(&self) -> bool {
        self.are_ours() && is_fresh(&self.path(OUTAGE, &[0; 32]))
    }

    /// Makes the directory; whether it is there, and ours.
    fn is_made(&self) -> bool {
        let made = |path: &Path| {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(path)
        };
        made(&self.root).is_ok() && made(&self.directory).is_ok() && self.are_ours()
    }

    fn are_ours(&self) -> bool {
        check_root(&self.root).is_ok() && check_private(&self.directory).is_ok()
    }

    fn path(&self, file_name: &str, digest: &[u8; 32]) -> PathBuf {
        self.directory.join(format!("{file_name}.{}", hex(digest)))
    }
}

/// Which of several repositories has given a server its last file: when that was not the one that gives the next, somebody has
/// to look whether both are of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGiver(Notes);

impl LastGiver {
    /// The note below `root` of who reads the cluster `cluster` into the directory `reader`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, reader: &Path, cluster: &str) -> Self {
        Self(Notes::new(
            root,
            &format!("into {}", reader.display()),
            cluster,
        ))
    }

    /// Whether `giver` gave that file just now, and nobody gave anything since.
    #[must_use]
    pub fn gave(&self, giver: &str, file_name: &str) -> bool {
        let path = self.path();
        let said = fs::read_to_string(&path).ok();
        let is_it = said.is_some_and(|said| said == format!("{file_name} {giver}"));
        is_it && self.0.are_ours() && is_fresh(&path)
    }

    /// Notes that `giver` gave that file. Without a note somebody looks once more.
    pub fn note(&self, giver: &str, file_name: &str) {
        if self.0.is_made() {
            let _ = fs::write(self.path(), format!("{file_name} {giver}"));
        }
    }

    fn path(&self) -> PathBuf {
        self.0.directory.join("giver")
    }
}

fn is_fresh(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|m| m.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age < VALID_FOR)
}
