//! The operating system user that runs servers.
//!
//! PostgreSQL refuses to run as root. A test run by root therefore starts every
//! server program as user `postgres`; run by anybody else it starts them as is.

use std::fs;
use std::os::unix::fs as unix_fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

const ROOT_RUNS_SERVERS_AS: &str = "postgres";

/// Who runs servers: a user to change to, or whoever runs this program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerUser(Option<Ids>);

#[derive(Debug, Clone, Copy)]
struct Ids {
    user: u32,
    group: u32,
}

impl ServerUser {
    pub(crate) fn find() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let accounts = fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
        let ids = ids_of(&accounts, ROOT_RUNS_SERVERS_AS).with_context(|| {
            format!("user \"{ROOT_RUNS_SERVERS_AS}\" does not exist: run scripts/setup")
        })?;
        Ok(Self(Some(ids)))
    }

    /// Makes the command run as this user, with `home` as its home directory:
    /// libpq looks for certificates there and fails if it may not.
    pub(crate) fn apply(self, command: &mut Command, home: &Path) {
        if let Some(ids) = self.0 {
            command.uid(ids.user).gid(ids.group).env("HOME", home);
        }
    }

    /// Gives a file, directory or link (not what it points to) to this user.
    pub(crate) fn own(self, path: &Path) -> Result<()> {
        let Some(ids) = self.0 else { return Ok(()) };
        unix_fs::lchown(path, Some(ids.user), Some(ids.group))
            .with_context(|| format!("could not change the owner of \"{}\"", path.display()))
    }

    /// Gives a directory and everything below it to this user.
    pub(crate) fn own_tree(self, path: &Path) -> Result<()> {
        if self.0.is_none() {
            return Ok(());
        }
        self.own(path)?;
        let entries =
            fs::read_dir(path).with_context(|| format!("could not list \"{}\"", path.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("could not list \"{}\"", path.display()))?;
            if entry.file_type()?.is_dir() {
                self.own_tree(&entry.path())?;
            } else {
                self.own(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn ids_of(accounts: &str, name: &str) -> Option<Ids> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let user = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Ids { user, group })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_third_and_fourth_field() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        let ids = ids_of(accounts, "postgres").unwrap();
        assert_eq!((ids.user, ids.group), (101, 104));
        assert!(ids_of(accounts, "post").is_none());
    }
}
