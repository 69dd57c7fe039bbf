//! The backup program as the experiments run it, and who else takes part.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::contender::{Arena, Contender, tree_bytes};
use crate::bench::pgstrata::RESTORE_NEWEST;
use crate::bench::{self, measure};
use crate::cluster::Major;
use crate::environment::{self, Environment};
use crate::number::real_u64;
use crate::s3::S3Server;
use crate::seed::unpack::{self, Layer, Objects};
use crate::session;

/// The cluster's name in the repository.
pub(super) const NAME: &str = "lab";

/// Where repositories are.
#[derive(Debug)]
pub(super) enum Storage {
    /// Directories beside the cluster.
    Directory,
    /// An S3 server of the lab's own on this machine.
    S3(S3Server),
}

impl Storage {
    /// What a restored server needs in its environment to fetch WAL from there.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Directory => Vec::new(),
            Self::S3(server) => server.env(),
        }
    }
}

/// `pgstrata` with one change source; WAL goes with each backup.
#[derive(Debug)]
pub(super) struct Strata<'a> {
    pub(super) change_source: String,
    pub(super) storage: &'a Storage,
}

impl Strata<'_> {
    /// The repository's URL.
    fn url(&self, arena: &Arena) -> String {
        match self.storage {
            Storage::Directory => format!("file://{}", self.repository(arena).display()),
            Storage::S3(server) => format!("s3://{}/{}", server.bucket(), self.repository_name()),
        }
    }

    fn command(&self, arena: &Arena, act: &str) -> Command {
        let mut command = arena.cluster.command_as_server_user(&arena.pgstrata);
        command
            .arg("--repo")
            .arg(self.url(arena))
            .args(["--cluster", NAME, "--no-progress", "--jobs"])
            .arg(arena.jobs.to_string());
        if let Storage::S3(server) = self.storage {
            command
                .args([
                    "--s3-endpoint",
                    server.endpoint(),
                    "--s3-region",
                    server.region(),
                ])
                .arg("--s3-path-style=true")
                .envs(server.env());
        }
        command.arg(act);
        command
    }

    fn backup(&self, arena: &Arena, kind: &str) -> Command {
        let mut command = self.command(arena, "backup");
        command
            .arg("--pgdata")
            .arg(arena.cluster.pgdata())
            .args(["--wal", "stream", "--type", kind]);
        command
    }
}

impl Contender for Strata<'_> {
    fn name(&self) -> String {
        format!("pgstrata {}", self.change_source)
    }

    fn archive_command(&self, _arena: &Arena) -> Option<String> {
        None
    }

    fn reset(&self, arena: &Arena) -> Result<()> {
        match self.storage {
            Storage::Directory => arena.fresh_dir(&self.repository_name()).map(drop)?,
            Storage::S3(_) => {
                let objects = self.repository(arena);
                if objects.exists() {
                    std::fs::remove_dir_all(&objects)
                        .with_context(|| format!("could not remove \"{}\"", objects.display()))?;
                }
            }
        }
        let mut init = self.command(arena, "init");
        measure::run(init.arg("--pgdata").arg(arena.cluster.pgdata())).map(drop)
    }

    fn full(&self, arena: &Arena) -> Command {
        self.backup(arena, "full")
    }

    fn incremental(&self, arena: &Arena, _nth: usize) -> Command {
        let mut command = self.backup(arena, "incr");
        command.args(["--change-source", &self.change_source]);
        command
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

/// Everybody who can take part here: `pgstrata` with these change sources, the
/// server's own tools where they know increments, and what is installed and knows
/// this major version; without one nobody else.
pub(super) fn contenders<'a>(
    sources: &[String],
    storage: &'a Storage,
    others: Option<Major>,
) -> Vec<Box<dyn Contender + 'a>> {
    let mut all: Vec<Box<dyn Contender + 'a>> = Vec::new();
    for source in sources {
        all.push(Box::new(Strata {
            change_source: source.clone(),
            storage,
        }));
    }
    // The others' repositories are directories.
    if let (Storage::Directory, Some(major)) = (storage, others) {
        for peer in bench::peers(major) {
            if all.iter().all(|other| other.tool() != peer.tool()) {
                all.push(peer);
            }
        }
    }
    all
}

/// The arms: one full backup of ours, one incremental per change source, and both of every other tool.
pub(super) fn arms(contenders: &[Box<dyn Contender + '_>]) -> Vec<(String, String)> {
    acts(contenders)
        .iter()
        .map(|(index, full)| {
            let contender = &contenders[*index];
            if *full {
                (
                    format!("{} full", contender.tool()),
                    "a full backup".to_owned(),
                )
            } else {
                (
                    format!("{} incr", contender.name()),
                    "an incremental backup on the full one".to_owned(),
                )
            }
        })
        .collect()
}

/// (contender, whether full); change sources of one tool share its full backup.
pub(super) fn acts(contenders: &[Box<dyn Contender + '_>]) -> Vec<(usize, bool)> {
    let mut acts = Vec::new();
    for (index, contender) in contenders.iter().enumerate() {
        if index == 0 || contender.tool() != "pgstrata" {
            acts.push((index, true));
        }
    }
    acts.extend((0..contenders.len()).map(|index| (index, false)));
    // Ours first, each tool's full before its increments.
    acts.sort_by_key(|(index, full)| {
        let ours = contenders[*index].tool() == "pgstrata";
        (!ours, if ours { 0 } else { *index }, !*full, *index)
    });
    acts
}

/// Pages of main forks in the newest layer of a repository that is a directory.
pub(super) fn pages_of_newest(repository: &Path) -> Result<u64> {
    let directory = repository.join(NAME).join("layer");
    let labels = std::fs::read_dir(&directory)
        .with_context(|| format!("could not list \"{}\"", directory.display()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Labels sort by time within a chain.
    let newest = labels.max().context("the repository has no layer")?;
    let objects = Objects::Directory(repository.to_owned());
    let layers = unpack::chain(&objects, NAME, &[newest])?;
    Ok(layers.iter().map(Layer::main_pages_stored).sum())
}

/// The machine and the server, for the record.
pub(super) fn environment(arena: &Arena) -> Result<Environment> {
    let mut client = session::connect(&arena.cluster.conninfo("postgres"))?;
    let data = arena.cluster.pgdata();
    Ok(environment::of_server(&mut client, Some(data)))
}

/// Runs a command and says what it cost, in the values of a run.
pub(super) fn measured(
    arena: &Arena,
    contender: &dyn Contender,
    command: &mut Command,
) -> Result<BTreeMap<String, f64>> {
    let before = tree_bytes(&contender.repository(arena)).unwrap_or(0);
    let (cost, _) = arena.measured(command)?;
    let after = tree_bytes(&contender.repository(arena)).unwrap_or(0);
    Ok(BTreeMap::from([
        ("time".to_owned(), cost.wall_seconds),
        ("cpu".to_owned(), cost.cpu_seconds),
        ("server_cpu".to_owned(), cost.server_cpu_seconds),
        ("read".to_owned(), real_u64(cost.read_bytes)),
        ("written".to_owned(), real_u64(cost.written_bytes)),
        ("memory".to_owned(), real_u64(cost.peak_bytes)),
        ("stored".to_owned(), real_u64(after.saturating_sub(before))),
    ]))
}
