//! The program this project makes, run as its users run it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::contender::{Arena, Contender};
use super::measure;

/// What restores the newest backup, opened where it ends; the directory follows.
pub(crate) const RESTORE_NEWEST: [&str; 6] = [
    "latest",
    "--type",
    "immediate",
    "--target-action",
    "promote",
    "--target-dir",
];

/// `pgstrata` with one compression and one change source.
#[derive(Clone, Debug)]
pub struct Pgstrata {
    /// `--compress`.
    pub compress: &'static str,
    /// `--change-source`.
    pub change_source: &'static str,
}

impl Pgstrata {
    fn command(&self, arena: &Arena, act: &str) -> Command {
        let mut command = arena.cluster.command_as_server_user(&arena.pgstrata);
        let repository = format!("file://{}", self.repository(arena).display());
        let jobs = arena.jobs.to_string();
        command.args([
            "--repo",
            &repository,
            "--cluster",
            "bench",
            "--jobs",
            &jobs,
            act,
        ]);
        command
    }

    fn backup(&self, arena: &Arena, kind: &str) -> Command {
        let mut command = self.command(arena, "backup");
        command.arg("--pgdata").arg(arena.cluster.pgdata());
        command.args([
            "--output",
            "json",
            "--type",
            kind,
            "--compress",
            self.compress,
        ]);
        command
    }
}

impl Contender for Pgstrata {
    fn name(&self) -> String {
        format!("pgstrata {} {}", self.compress, self.change_source)
    }

    fn archive_command(&self, arena: &Arena) -> Option<String> {
        let repository = self.repository(arena);
        let program = arena.pgstrata.display();
        Some(format!(
            "{program} --repo file://{} --cluster bench archive-push %p",
            repository.display()
        ))
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        arena.fresh_dir(&self.repository_name())?;
        let mut init = self.command(arena, "init");
        measure::run(init.arg("--pgdata").arg(arena.cluster.pgdata()))?;
        Ok(())
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, "full")
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        let mut command = self.backup(arena, "incr");
        command.args(["--change-source", self.change_source]);
        if self.change_source == "tracker" {
            command.arg("--require-tracker");
        }
        command
    }

    fn phases(&self, printed: &str) -> Vec<(String, f64)> {
        let report: serde_json::Value = serde_json::from_str(printed).unwrap_or_default();
        let phases = report["phases"].as_array().into_iter().flatten();
        phases
            .filter_map(|phase| {
                Some((
                    phase["name"].as_str()?.to_owned(),
                    phase["seconds"].as_f64()?,
                ))
            })
            .collect()
    }

    fn restore(&self, arena: &Arena, _increments: usize, target: &Path) -> Command {
        let mut command = self.command(arena, "restore");
        command.args(RESTORE_NEWEST).arg(target);
        command
    }
}
