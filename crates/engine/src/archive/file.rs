//! Files of this machine that the archive writes: under another name, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{FileContext, Result};

/// A file on its way to `path`. Dropped before [`NewFile::publish`], it leaves nothing.
pub(super) struct NewFile {
    file: File,
    hidden: PathBuf,
    path: PathBuf,
    published: bool,
}

impl NewFile {
    /// A hidden file in the directory of `path`, whose name no two writers share.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = path.with_file_name(format!(".{name}.{:016x}.tmp", rand::random::<u64>()));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&hidden);
        Ok(Self {
            file: file.context(|| format!("could not create \"{}\"", hidden.display()))?,
            hidden,
            path: path.to_owned(),
            published: false,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.context(|| format!("could not write \"{}\"", self.hidden.display()))
    }

    /// Gives the file its name, replacing what had it.
    ///
    /// Not synced: a spool's reader can tell damage, and the server syncs a restored file itself when it
    /// decides to keep it (`KeepFileRestoredFromArchive` in `xlogarchive.c` ends in `durable_rename`).
    pub(super) fn publish(mut self) -> Result<()> {
        let renamed = fs::rename(&self.hidden, &self.path);
        renamed.context(|| format!("could not write \"{}\"", self.path.display()))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // Nothing to be done if even that fails; the name is nobody's.
            let _ = fs::remove_file(&self.hidden);
        }
    }
}

/// Removes hidden files that writers of `directory` left when they were killed.
pub(super) fn remove_leftovers(directory: &Path, older_than: std::time::Duration) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with('.') && name.ends_with(".tmp");
        let modified = entry.metadata().and_then(|m| m.modified()).ok();
        let age = modified.and_then(|m| m.elapsed().ok());
        if ours && age.is_some_and(|age| age > older_than) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
