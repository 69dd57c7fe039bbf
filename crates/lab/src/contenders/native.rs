//! PostgreSQL's own tools: pg_basebackup (incremental from 17) and pg_combinebackup.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::contender::{Arena, Contender};

/// `pg_basebackup` in plain format, without compression.
#[derive(Clone, Debug)]
pub struct Native;

impl Native {
    fn backup(&self, arena: &Arena, nth: usize) -> Command {
        let mut command = arena.cluster.command("pg_basebackup");
        command.args(["--checkpoint=fast", "--wal-method=fetch", "--pgdata"]);
        command.arg(self.repository(arena).join(nth.to_string()));
        command
    }
}

impl Contender for Native {
    fn name(&self) -> String {
        "native".to_owned()
    }

    fn words(&self) -> String {
        "pg_basebackup, incremental from PostgreSQL 17 on, and pg_combinebackup, without compression"
            .to_owned()
    }

    fn version(&self, arena: &Arena) -> Command {
        let mut command = arena.cluster.command("pg_basebackup");
        command.arg("--version");
        command
    }

    fn archive_command(&self, _arena: &Arena) -> Option<String> {
        None
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        arena.fresh_dir(&self.repository_name()).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, 0)
    }

    fn incremental(&self, arena: &Arena, nth: usize) -> Command {
        let parent = self
            .repository(arena)
            .join((nth - 1).to_string())
            .join("backup_manifest");
        let mut command = self.backup(arena, nth);
        command.arg("--incremental").arg(parent);
        command
    }

    fn takes_another_full(&self) -> bool {
        false
    }

    fn restore(&self, arena: &Arena, increments: usize, target: &Path) -> Command {
        let mut command = arena.cluster.command("pg_combinebackup");
        command.args((0..=increments).map(|nth| self.repository(arena).join(nth.to_string())));
        command.arg("--output").arg(target);
        command
    }
}
