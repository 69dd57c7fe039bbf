//! The program this project makes, run as its users run it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pgstrata_testbed::s3::S3Server;

use super::contender::{Arena, Contender};
use crate::measure::cost;

/// The cluster's name in the repository.
pub(crate) const CLUSTER: &str = "lab";

/// What restores the newest backup, opened where it ends; the directory follows.
const RESTORE_NEWEST: [&str; 6] = [
    "latest",
    "--target-type",
    "immediate",
    "--target-action",
    "promote",
    "--target-dir",
];

/// How the checkpoint of a backup is made, as all other tools are told: a spread one would be the longest part of every backup.
pub(crate) const AT_ONCE: [&str; 2] = ["--checkpoint", "fast"];

/// Where repositories are.
#[derive(Debug)]
pub enum Storage {
    /// Directories beside the cluster.
    Directory,
    /// An S3 server of the lab's own on this machine.
    S3(S3Server),
}

impl Storage {
    /// What a restored server needs in its environment to fetch WAL from there.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Directory => Vec::new(),
            Self::S3(server) => server.env(),
        }
    }
}

/// `pgstrata` with one change source and one compression.
#[derive(Debug)]
pub struct Pgstrata<'a> {
    /// Whether it is the arena's other build.
    pub baseline: bool,
    /// `--change-source`.
    pub change_source: String,
    /// `--compress`, and part of the name; the program's own when absent.
    pub compress: Option<&'static str>,
    /// `--impact`, and part of the name; the program's own when absent.
    pub impact: Option<String>,
    /// Whether the server archives its WAL, or each backup takes its own along.
    pub archives: bool,
    /// Whether what is stored is sealed.
    pub sealed: bool,
    /// Where.
    pub storage: &'a Storage,
}

impl Pgstrata<'_> {
    fn program<'a>(&self, arena: &'a Arena) -> &'a Path {
        let baseline = arena.baseline.as_ref().filter(|_| self.baseline);
        baseline.unwrap_or(&arena.pgstrata)
    }

    /// The identity that opens what is sealed: a reader's, who may do everything.
    fn identity(&self, arena: &Arena) -> PathBuf {
        let directory = format!("{}-keys", self.repository_name());
        arena.work().join(directory).join("reader")
    }

    /// Makes the identity; returns its recipient.
    fn generate(&self, arena: &Arena) -> Result<String> {
        arena.fresh_dir(&format!("{}-keys", self.repository_name()))?;
        let mut command = arena.cluster.command_as_server_user(self.program(arena));
        let generated = command
            .args(["key", "generate"])
            .arg(self.identity(arena))
            .output();
        let output = generated.context("could not make an identity")?;
        let printed = String::from_utf8(output.stdout).context("no recipient was printed")?;
        Ok(printed.trim().to_owned())
    }

    /// The repository's URL.
    fn url(&self, arena: &Arena) -> String {
        match self.storage {
            Storage::Directory => format!("file://{}", self.repository(arena).display()),
            Storage::S3(server) => format!("s3://{}/{}", server.bucket(), self.repository_name()),
        }
    }

    fn command(&self, arena: &Arena, act: &str) -> Command {
        let mut command = arena.cluster.command_as_server_user(self.program(arena));
        command
            .arg("--repo")
            .arg(self.url(arena))
            .args(["--cluster", CLUSTER, "--no-progress", "--jobs"])
            .arg(arena.jobs.to_string());
        if let Storage::S3(server) = self.storage {
            command
                .args(["--s3-endpoint", server.endpoint()])
                .args(["--s3-region", server.region(), "--s3-path-style=true"])
                .envs(server.env());
        }
        if self.sealed {
            command.arg("--identity").arg(self.identity(arena));
        }
        command.arg(act);
        command
    }

    /// The command that reads the newest layer, and those that it stands on, from end to end.
    pub(crate) fn verify(&self, arena: &Arena) -> Command {
        let mut command = self.command(arena, "verify");
        command.arg("latest");
        command
    }

    /// The command that makes one layer of the newest one and those that it stands on.
    pub(crate) fn merge(&self, arena: &Arena) -> Command {
        self.command(arena, "merge")
    }

    fn backup(&self, arena: &Arena, kind: &str) -> Command {
        let mut command = self.command(arena, "backup");
        command
            .arg("--pgdata")
            .arg(arena.cluster.pgdata())
            .args(["--output", "json", "--type", kind])
            .args(AT_ONCE);
        if !self.archives {
            command.args(["--wal", "stream"]);
        }
        if let Some(compress) = self.compress {
            command.args(["--compress", compress]);
        }
        if let Some(impact) = &self.impact {
            command.args(["--impact", impact]);
        }
        command
    }
}

impl Contender for Pgstrata<'_> {
    fn name(&self) -> String {
        let program = if self.baseline {
            "baseline"
        } else {
            "pgstrata"
        };
        let compress = self.compress.map(|name| format!("{name} "));
        let impact = self.impact.as_ref().map(|name| format!("-{name}"));
        format!(
            "{program}{} {}{}{}",
            impact.unwrap_or_default(),
            compress.unwrap_or_default(),
            self.change_source,
            if self.sealed { " sealed" } else { "" }
        )
    }

    fn words(&self) -> String {
        let or_its_own = |given: Option<&str>| given.unwrap_or("its own default").to_owned();
        format!(
            "pgstrata{}: change source {}, compression {}, --impact {}, WAL {}{}",
            if self.baseline {
                ", the other build"
            } else {
                ""
            },
            self.change_source,
            or_its_own(self.compress),
            or_its_own(self.impact.as_deref()),
            if self.archives {
                "archived"
            } else {
                "with the backup"
            },
            if self.sealed { ", sealed" } else { "" }
        )
    }

    fn version(&self, arena: &Arena) -> Command {
        let mut command = arena.cluster.command_as_server_user(self.program(arena));
        command.arg("--version");
        command
    }

    fn archive_command(&self, arena: &Arena) -> Option<String> {
        self.archives.then(|| {
            let identity = match self.sealed {
                true => format!("--identity {} ", self.identity(arena).display()),
                false => String::new(),
            };
            format!(
                "{} --repo {} --cluster {CLUSTER} {identity}archive-push %p",
                self.program(arena).display(),
                self.url(arena)
            )
        })
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        match self.storage {
            Storage::Directory => arena.fresh_dir(&self.repository_name()).map(drop)?,
            Storage::S3(_) => {
                let objects = self.repository(arena);
                if objects.exists() {
                    arena.take_away(&objects)?;
                }
            }
        }
        let recipient = match self.sealed {
            true => Some(self.generate(arena)?),
            false => None,
        };
        let mut init = self.command(arena, "init");
        if let Some(recipient) = recipient {
            init.args(["--encrypt", "--one-recipient", "--recipient", &recipient]);
        }
        cost::run(init.arg("--pgdata").arg(arena.cluster.pgdata())).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, "full")
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        let mut command = self.backup(arena, "incr");
        command.args(["--change-source", &self.change_source]);
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

    fn repository(&self, arena: &Arena) -> PathBuf {
        match self.storage {
            Storage::Directory => arena.work().join(self.repository_name()),
            Storage::S3(server) => server.bucket_dir().join(self.repository_name()),
        }
    }
}
