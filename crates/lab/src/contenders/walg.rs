//! WAL-G with delta backups in a directory: the system of the published reverse delta unpack.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::contender::{Arena, Contender};
use pgstrata_testbed::programs;

/// `wal-g` as its manual sets it up, with lz4, its default.
#[derive(Clone, Debug)]
pub struct WalG {
    program: PathBuf,
    /// Whether restores go from the newest delta to the oldest (`--reverse-unpack`).
    reverse: bool,
    /// Whether the backups are those of the other order.
    borrows: bool,
}

impl WalG {
    /// Its name.
    pub const TOOL: &str = "wal-g";

    /// Where `wal-g` is on `PATH`: one that unpacks from the newest delta, one that unpacks from the oldest.
    #[must_use]
    pub fn installed() -> Vec<Self> {
        let Some(program) = programs::on_path(Self::TOOL) else {
            return Vec::new();
        };
        [true, false]
            .map(|reverse| Self {
                program: program.clone(),
                reverse,
                borrows: false,
            })
            .into()
    }

    /// Both again, with the backups of one: only their restores differ.
    #[must_use]
    pub fn orders() -> Vec<Self> {
        let mut orders = Self::installed();
        for order in orders.iter_mut().skip(1) {
            order.borrows = true;
        }
        orders
    }

    /// Its configuration, which is its environment.
    fn environment(&self, arena: &Arena) -> Vec<(&'static str, String)> {
        let jobs = arena.jobs.to_string();
        vec![
            (
                "WALG_FILE_PREFIX",
                self.repository(arena).display().to_string(),
            ),
            ("WALG_COMPRESSION_METHOD", "lz4".to_owned()),
            // Every backup a delta on the one before, unless it is asked to be full.
            ("WALG_DELTA_MAX_STEPS", "100".to_owned()),
            ("WALG_UPLOAD_CONCURRENCY", jobs.clone()),
            ("WALG_UPLOAD_DISK_CONCURRENCY", jobs.clone()),
            ("WALG_DOWNLOAD_CONCURRENCY", jobs),
        ]
    }

    /// A command line for the server, which has another environment.
    fn line(&self, arena: &Arena, act: &str) -> String {
        let environment: Vec<_> = self
            .environment(arena)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let program = self.program.display();
        format!("env {} {program} {act}", environment.join(" "))
    }

    fn backup(&self, arena: &Arena, options: &[&str]) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command
            .envs(self.environment(arena))
            .env("PGDATA", arena.cluster.pgdata())
            .arg("backup-push")
            .args(options)
            .arg(arena.cluster.pgdata());
        command
    }
}

impl Contender for WalG {
    fn name(&self) -> String {
        let order = if self.reverse { " reverse" } else { "" };
        format!("{} lz4{order}", Self::TOOL)
    }

    fn words(&self) -> String {
        let order = match self.reverse {
            true => "newest first (--reverse-unpack)",
            false => "oldest first",
        };
        format!("WAL-G with delta backups and lz4, which restores {order}")
    }

    fn version(&self, arena: &Arena) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command.arg("--version");
        command
    }

    fn borrows(&self) -> bool {
        self.borrows
    }

    fn repository_name(&self) -> String {
        let order = if self.reverse || self.borrows {
            "-reverse"
        } else {
            ""
        };
        format!("repository-wal-g-lz4{order}")
    }

    fn archive_command(&self, arena: &Arena) -> Option<String> {
        Some(self.line(arena, "wal-push %p"))
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        arena.fresh_dir(&self.repository_name()).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, &["--full"])
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        self.backup(arena, &[])
    }

    fn restore(&self, arena: &Arena, _increments: usize, target: &Path) -> Command {
        let target = target.display();
        let order = if self.reverse {
            " --reverse-unpack"
        } else {
            ""
        };
        let fetch = self.line(arena, &format!("backup-fetch {target} LATEST{order}"));
        let restore_command = self.line(arena, "wal-fetch %f %p");
        // How recovery goes on is left to the user.
        arena.shell(&format!(
            "{fetch}; touch {target}/recovery.signal; cat >>{target}/postgresql.auto.conf <<'END'\n\
             restore_command = '{restore_command}'\nrecovery_target = 'immediate'\n\
             recovery_target_action = 'promote'\nEND\n"
        ))
    }
}
