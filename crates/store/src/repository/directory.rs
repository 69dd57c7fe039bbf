//! Which directories are one under several names.
//!
//! A directory may lie on a file system that does not answer: one that hangs keeps whoever looks at it. Here it is looked at
//! on a thread of its own, and no longer than [`ANSWERS_WITHIN`]. What one file system holds hangs together, so a directory
//! that does not answer is none that does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::blocking::answer_within;
use crate::error::{Error, Kind, Result};

/// How long a repository is waited for that says nothing, while others may do what is wanted.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Which directory a path leads to.
#[derive(Clone, Debug)]
pub struct RealDirectory {
    identity: Option<(u64, u64)>,
    resolved: PathBuf,
}

impl RealDirectory {
    /// Looks for it.
    ///
    /// # Errors
    /// `Repository` when its file system has not answered within [`ANSWERS_WITHIN`].
    pub async fn at(path: &Path) -> Result<Self> {
        let there = path.to_owned();
        let found = answer_within(ANSWERS_WITHIN, move || Self::of(&there)).await;
        found.ok_or_else(|| no_answer(path))
    }

    fn of(path: &Path) -> Self {
        let found = fs::metadata(path).ok();
        Self {
            identity: found.map(|found| (found.dev(), found.ino())),
            resolved: resolved(path),
        }
    }

    /// Whether both are one: by another name, or mounted at two places.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let is_seen = self.identity.is_some();
        (is_seen && self.identity == other.identity) || self.resolved == other.resolved
    }

    /// Whether it is the other one, or lies in it.
    #[must_use]
    pub fn lies_in(&self, other: &Self) -> bool {
        self.resolved.starts_with(&other.resolved)
    }
}

/// That the file system of `path` does not answer.
#[must_use]
pub fn no_answer(path: &Path) -> Error {
    let (shown, seconds) = (path.display(), ANSWERS_WITHIN.as_secs());
    let what = format!("\"{shown}\" has not answered within {seconds} s");
    Error::new(Kind::Repository, what)
        .hint("look whether the file system there, and the machine that it comes from, are up")
}

/// Without symbolic links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let found = path
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, found)) = found else {
        return path.to_owned();
    };
    match path.strip_prefix(above) {
        Ok(rest) if !rest.as_os_str().is_empty() => found.join(rest),
        _ => found,
    }
}
