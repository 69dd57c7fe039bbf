//! Small file systems, which can be full. Only root may mount them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;

use super::world::{copy_tree, remove_tree};

/// More than a run ever stores.
const PLENTY: &str = "size=2g";

/// A file system in memory. What it holds at the end stays in the directory.
#[derive(Debug)]
pub(super) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one; nothing where this user may not.
    pub(super) fn mount(at: &Path) -> Result<Option<Self>> {
        Self::of_size(at, PLENTY)
    }

    /// Mounts one of so many MiB; nothing where this user may not.
    pub(super) fn small(at: &Path, megabytes: u64) -> Result<Option<Self>> {
        Self::of_size(at, &format!("size={megabytes}m"))
    }

    fn of_size(at: &Path, size: &str) -> Result<Option<Self>> {
        let is_mounted = mount(at, size)?;
        Ok(is_mounted.then(|| Self { at: at.to_owned() }))
    }

    /// Where it is mounted.
    pub(super) fn at(&self) -> &Path {
        &self.at
    }

    /// Leaves so many KiB of room.
    pub(super) fn fill(&self, room: u64) -> Result<()> {
        let there = statvfs(&self.at)
            .with_context(|| format!("could not look at \"{}\"", self.at.display()))?;
        let used = (there.f_blocks - there.f_bfree) * there.f_frsize / 1024;
        self.resize(&format!("size={}k", used + room))
    }

    /// Leaves more room than is needed.
    pub(super) fn enlarge(&self) -> Result<()> {
        self.resize(PLENTY)
    }

    fn resize(&self, size: &str) -> Result<()> {
        let done = mount(&self.at, &format!("remount,{size}"))?;
        ensure!(done, "could not resize \"{}\"", self.at.display());
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let kept = self.at.with_extension("kept");
        // Nobody is left to tell if it failed.
        let copied = copy_tree(&self.at, &kept);
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        if copied.is_ok() {
            let _ = remove_tree(&self.at);
            let _ = std::fs::rename(&kept, &self.at);
        }
    }
}

fn mount(at: &Path, options: &str) -> Result<bool> {
    let options = format!("{options},mode=0755");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
    let output = mount.output().context("could not start mount")?;
    Ok(output.status.success())
}
