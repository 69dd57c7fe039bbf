//! Servers with the page tracker: copies of the installed ones, so that nothing of
//! this machine changes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_lab::cluster::{Builder, Cluster, Major};
use tempfile::TempDir;

/// A copy of a server with the extension; it goes with the value.
pub struct Server {
    major: Major,
    bindir: PathBuf,
    _directory: TempDir,
}

impl Server {
    pub fn copy(major: Major) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("pgs-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ext/test/copy-server");
        let output = Command::new(&script)
            .arg(major.number().to_string())
            .arg(directory.path())
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {log}", script.display());
        Self {
            major,
            bindir: PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()),
            _directory: directory,
        }
    }

    pub fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// A cluster on which the tracker runs: it insists on `fsync`.
    pub fn builder(&self) -> Builder {
        Cluster::builder(self.major)
            .bindir(&self.bindir)
            .durable(true)
            .conf("shared_preload_libraries", "pgstrata")
    }
}
