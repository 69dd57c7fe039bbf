//! What takes part in a benchmark: backup tools, and the limits of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cluster::Cluster;

/// Where a benchmark works.
#[derive(Debug)]
pub struct Arena {
    /// The server that is backed up.
    pub cluster: Cluster,
    /// The `pgstrata` program, where the server's user can run it.
    pub pgstrata: PathBuf,
    /// Workers that every contender may use.
    pub jobs: usize,
}

impl Arena {
    /// Where repositories and restored clusters go.
    #[must_use]
    pub fn work(&self) -> &Path {
        self.cluster.socket_dir()
    }

    /// An empty directory for this name, replacing what an earlier round left.
    ///
    /// # Errors
    /// When it cannot be removed or created.
    pub fn fresh_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.work().join(name);
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("could not remove \"{}\"", path.display()))?;
        }
        self.cluster.create_dir(name)
    }

    /// A shell command, run as the server's user.
    #[must_use]
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.cluster.command_as_server_user(Path::new("bash"));
        command.args(["-c", &format!("set -euo pipefail; {script}")]);
        command
    }
}

/// A backup tool with one configuration. Commands are built here and measured elsewhere.
pub trait Contender: std::fmt::Debug {
    /// Short and unique: `pgstrata zstd lsn`.
    fn name(&self) -> String;

    /// `archive_command` while this contender works; `None`: archiving to nowhere.
    fn archive_command(&self, arena: &Arena) -> Option<String>;

    /// Makes an empty repository, dropping what an earlier round left.
    ///
    /// # Errors
    /// When it cannot be made.
    fn reset(&self, arena: &Arena) -> Result<()>;

    /// The command that takes a full backup.
    fn full(&self, arena: &Arena) -> Command;

    /// The command that takes the incremental backup number `nth`, from 1.
    fn incremental(&self, arena: &Arena, nth: usize) -> Command;

    /// The command that restores the newest of `increments` backups on a full one into the empty `target`.
    fn restore(&self, arena: &Arena, increments: usize, target: &Path) -> Command;

    /// Where its repository lies: its size is what the backups stored.
    fn repository(&self, arena: &Arena) -> PathBuf {
        arena.work().join(self.repository_name())
    }

    /// The name of that directory.
    fn repository_name(&self) -> String {
        format!("repository-{}", self.name().replace(' ', "-"))
    }
}

/// Sum of the sizes of all files below `path`, bytes.
///
/// # Errors
/// When a directory cannot be read.
pub fn tree_bytes(path: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in
        fs::read_dir(path).with_context(|| format!("could not list \"{}\"", path.display()))?
    {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            total += tree_bytes(&entry.path())?;
        } else if kind.is_file() {
            total += entry.metadata()?.len();
        }
    }
    Ok(total)
}
