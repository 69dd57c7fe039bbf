//! pg_probackup in archive mode, the tool of the published ptrack measurements.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::Peers;
use super::contender::{Arena, Contender};
use crate::measure::cost;
use pgstrata_testbed::cluster::Major;
use pgstrata_testbed::programs;

/// `pg_probackup` without compression, its default.
#[derive(Clone, Debug)]
pub struct PgProbackup {
    program: PathBuf,
    /// The mode of its increments.
    mode: Mode,
}

/// How it finds what changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It reads every page.
    Delta,
    /// A patched server says it.
    Ptrack,
}

impl Mode {
    /// As on its command line.
    const fn name(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Ptrack => "ptrack",
        }
    }
}

impl PgProbackup {
    /// The program on `PATH` that is built for this major version, as it refuses others, in each mode that the server knows.
    #[must_use]
    pub fn installed(peers: Peers) -> Vec<Self> {
        let Some(program) = program(peers.major) else {
            return Vec::new();
        };
        let ptrack = peers.ptrack.then_some(Mode::Ptrack);
        let in_mode = |mode| Self {
            program: program.clone(),
            mode,
        };
        ptrack
            .into_iter()
            .chain([Mode::Delta])
            .map(in_mode)
            .collect()
    }

    fn command(&self, arena: &Arena, act: &str) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command
            .arg(act)
            .arg("-B")
            .arg(self.repository(arena))
            .arg("--instance=bench");
        command
    }

    fn backup(&self, arena: &Arena, mode: &str) -> Command {
        let mut command = self.command(arena, "backup");
        command.args(["-b", mode, "-j", &arena.jobs.to_string()]);
        command
    }
}

fn program(major: Major) -> Option<PathBuf> {
    // Packages add the major version to its name.
    let program = programs::on_path(&format!("pg_probackup-{major}"))
        .or_else(|| programs::on_path("pg_probackup"))?;
    let output = Command::new(&program).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    is_built_for(&said, major).then_some(program)
}

/// Whether `pg_probackup 2.5.15 (PostgreSQL 15.8)` is built for this major version.
fn is_built_for(version: &str, major: Major) -> bool {
    version
        .split_once("PostgreSQL ")
        .and_then(|(_, server)| server.split(['.', ')', ' ']).next())
        .is_some_and(|number| number == major.to_string())
}

impl Contender for PgProbackup {
    fn name(&self) -> String {
        format!("pg_probackup {}", self.mode.name())
    }

    fn words(&self) -> String {
        format!(
            "pg_probackup in mode {}, without compression",
            self.mode.name()
        )
    }

    fn version(&self, arena: &Arena) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command.arg("--version");
        command
    }

    fn change_source(&self) -> &str {
        self.mode.name()
    }

    fn archive_command(&self, arena: &Arena) -> Option<String> {
        Some(format!(
            "{} archive-push -B {} --instance=bench --wal-file-name=%f",
            self.program.display(),
            self.repository(arena).display()
        ))
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        let catalog = arena.fresh_dir(&self.repository_name())?;
        let mut init = arena.cluster.command_as_server_user(&self.program);
        cost::run(init.arg("init").arg("-B").arg(catalog))?;
        let mut add = self.command(arena, "add-instance");
        cost::run(add.arg("-D").arg(arena.cluster.pgdata())).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, "FULL")
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        self.backup(arena, self.mode.name())
    }

    fn restore(&self, arena: &Arena, _increments: usize, target: &Path) -> Command {
        let mut command = self.command(arena, "restore");
        command.arg("-D").arg(target).args([
            "-j",
            &arena.jobs.to_string(),
            "--recovery-target=immediate",
            "--recovery-target-action=promote",
        ]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_for_one_major_version() {
        for (version, major, expected) in [
            ("pg_probackup 2.5.15 (PostgreSQL 15.8)\n", Major::V15, true),
            ("pg_probackup 2.5.15 (PostgreSQL 15.8)\n", Major::V16, false),
            (
                "pg_probackup 2.8.2 (Postgres Pro 17.1.1)\n",
                Major::V17,
                false,
            ),
            ("pg_probackup 2.5.15 (PostgreSQL 18)\n", Major::V18, true),
            ("", Major::V15, false),
        ] {
            assert_eq!(is_built_for(version, major), expected, "{version} {major}");
        }
    }
}
