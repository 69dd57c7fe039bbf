//! Servers with the page tracker: copies of the installed ones, so that nothing of
//! this machine changes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{Builder, Cluster, Major, output_of};

/// A copy of a server with the extension in it; it goes with the value.
#[derive(Debug)]
pub struct TrackedServer {
    major: Major,
    bindir: PathBuf,
    _directory: TempDir,
}

impl TrackedServer {
    /// Copies the installation of this major version and builds the extension into it.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn copy(major: Major) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("pgs-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("could not create a temporary directory")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ext/test/copy-server");
        let mut copy = Command::new(&script);
        copy.arg(major.number().to_string()).arg(directory.path());
        let bindir = output_of(&mut copy).context("could not make a server with the tracker")?;
        Ok(Self {
            major,
            bindir: PathBuf::from(bindir.trim()),
            _directory: directory,
        })
    }

    /// The directory of its programs.
    #[must_use]
    pub fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// A cluster on which the tracker runs: it insists on `fsync`.
    #[must_use]
    pub fn builder(&self) -> Builder {
        Cluster::builder(self.major)
            .bindir(&self.bindir)
            .durable(true)
            .conf("shared_preload_libraries", "pgstrata")
    }
}
