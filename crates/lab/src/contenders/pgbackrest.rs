//! pgBackRest with bundling and block-incremental backup, its fastest settings, and the level of compression that pgstrata has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::contender::{Arena, Contender};
use crate::interrupt;
use crate::measure::cost;
use pgstrata_testbed::cluster::Major;
use pgstrata_testbed::programs;

/// Its own default is 3 for zst, where that of pgstrata is 1, and 1 for lz4 (src/common/compress/zst/compress.h and lz4/compress.h).
const COMPRESS_LEVEL: u32 = 1;

/// The longest that its process in the background goes on when nothing is archived any more.
const ARCHIVER_ENDS: Duration = Duration::from_secs(30);

/// `pgbackrest` with one compression.
#[derive(Clone, Debug)]
pub struct PgBackRest {
    program: PathBuf,
    /// `compress-type`.
    compress: &'static str,
}

impl PgBackRest {
    /// The one on `PATH` (Debian package `pgbackrest`), with each compression worth comparing.
    #[must_use]
    pub fn installed() -> Vec<Self> {
        let Some(program) = programs::on_path("pgbackrest") else {
            return Vec::new();
        };
        ["zst", "lz4"]
            .map(|compress| Self {
                program: program.clone(),
                compress,
            })
            .into()
    }

    /// Its release, `45` of 2.45; absent when it does not run.
    fn release(&self) -> Option<u32> {
        let output = Command::new(&self.program).arg("version").output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        let rest = said.trim().strip_prefix("pgBackRest 2.")?;
        rest.split('.').next()?.parse().ok()
    }

    /// Whether this release knows this major version: it refuses others.
    #[must_use]
    pub fn knows(&self, major: Major) -> bool {
        let needed = match major {
            Major::V15 => 41,
            Major::V16 => 48,
            Major::V17 => 54,
            Major::V18 => 57,
        };
        self.release().is_some_and(|release| release >= needed)
    }

    fn configuration(&self, arena: &Arena) -> PathBuf {
        arena
            .work()
            .join(format!("{}.conf", self.repository_name()))
    }

    /// Locks, and what was archived: `archive-push` waits a minute for news in a spool that was replaced with the
    /// repository.
    fn state(&self, arena: &Arena) -> PathBuf {
        arena.work().join(self.state_name())
    }

    fn state_name(&self) -> String {
        format!("{}.state", self.repository_name())
    }

    /// Waits until the process in the background that archives what was there before has ended: it has the lock of the
    /// stanza. One that was killed leaves its file.
    fn wait_for_archiver(&self, arena: &Arena) -> Result<()> {
        let lock = self.state(arena).join("lock/bench-archive-1.lock");
        let began = Instant::now();
        while lock.exists() && began.elapsed() < ARCHIVER_ENDS {
            interrupt::sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    fn command(&self, arena: &Arena, act: &[&str]) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command
            .arg("--config")
            .arg(self.configuration(arena))
            .arg("--stanza=bench")
            .args(act);
        command
    }

    fn write_configuration(&self, arena: &Arena) -> Result<()> {
        let (repository, state) = (self.repository(arena), self.state(arena));
        // Up to 2.45 block-incremental backup had to be asked for twice.
        let beta = if self.release().is_some_and(|release| release <= 45) {
            "beta=y\n"
        } else {
            ""
        };
        let text = format!(
            "[global]\n{beta}repo1-path={repository}\nrepo1-bundle=y\nrepo1-block=y\ncompress-type={compress}\ncompress-level={COMPRESS_LEVEL}\n\
             process-max={jobs}\nstart-fast=y\nlog-level-file=off\nlog-level-console=warn\n\
             lock-path={state}/lock\nspool-path={state}/spool\narchive-async=y\n\
             repo1-retention-full=9\n\
             [bench]\npg1-path={pgdata}\npg1-port={port}\npg1-socket-path={socket}\npg1-user=postgres\n",
            repository = repository.display(),
            state = state.display(),
            compress = self.compress,
            jobs = arena.jobs,
            pgdata = arena.cluster.pgdata().display(),
            port = arena.cluster.port(),
            socket = arena.cluster.socket_dir().display(),
        );
        let path = self.configuration(arena);
        fs::write(&path, text).with_context(|| format!("could not write \"{}\"", path.display()))
    }
}

impl Contender for PgBackRest {
    fn name(&self) -> String {
        format!("pgbackrest {}", self.compress)
    }

    fn words(&self) -> String {
        format!(
            "pgBackRest with block incremental backup, bundles, compression {} at level {COMPRESS_LEVEL}, asynchronous archiving",
            self.compress
        )
    }

    fn version(&self, arena: &Arena) -> Command {
        let mut command = arena.cluster.command_as_server_user(&self.program);
        command.arg("version");
        command
    }

    fn archive_command(&self, arena: &Arena) -> Option<String> {
        let configuration = self.configuration(arena);
        Some(format!(
            "{} --config={} --stanza=bench archive-push %p",
            self.program.display(),
            configuration.display()
        ))
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        arena.fresh_dir(&self.repository_name())?;
        if !self.state(arena).exists() {
            arena.fresh_dir(&self.state_name())?;
        }
        self.write_configuration(arena)?;
        self.wait_for_archiver(arena)?;
        cost::run(&mut self.command(arena, &["stanza-create"])).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.command(arena, &["--type=full", "backup"])
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        self.command(arena, &["--type=incr", "backup"])
    }

    fn restore(&self, arena: &Arena, _increments: usize, target: &Path) -> Command {
        // As on another host: a restore empties the spool, into which the source still archives.
        let spool = self.state(arena).join("spool-of-restore");
        let mut command = self.command(arena, &["--type=immediate", "--target-action=promote"]);
        command.arg("--spool-path").arg(spool);
        command.arg("--pg1-path").arg(target).arg("restore");
        command
    }
}
