//! With what backups are taken: the server's programs, ours, and those of others.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::extension::Extension;
use super::shared::Preset;
use crate::contenders::contender::{Arena, jobs};
use crate::measure::programs::{self, Programs};
use pgstrata_testbed::cluster::{Builder, Cluster, Major};

/// Size of the tracker's map, MB.
const MAP: u64 = 256;

/// What all experiments with backups can be told.
#[derive(Debug, Args)]
pub(super) struct ToolArguments {
    /// leave other tools out, as tiny does
    #[arg(long)]
    alone: bool,
    /// directory of the server's programs
    #[arg(long, value_name = "DIR")]
    bindir: Option<PathBuf>,
    /// the backup program; by default the one beside this, else on PATH
    #[arg(long, value_name = "PATH")]
    pgstrata: Option<PathBuf>,
    /// workers of every tool; by default one per core
    #[arg(short, long)]
    jobs: Option<usize>,
}

impl ToolArguments {
    /// Looks for the programs.
    pub(super) fn find(&self, preset: Preset) -> Result<Tools> {
        let programs = Programs::find(self.bindir.as_deref())?;
        let alone = self.alone || preset == Preset::Tiny;
        Ok(Tools {
            pgstrata: programs::find_pgstrata(self.pgstrata.as_deref())?,
            jobs: jobs(self.jobs),
            others: (!alone).then_some(programs.major),
            programs,
        })
    }
}

/// Programs that are there.
pub(super) struct Tools {
    /// The server's.
    pub(super) programs: Programs,
    /// The major version that other tools must know to take part; none: they do not.
    pub(super) others: Option<Major>,
    pgstrata: PathBuf,
    /// Workers of everybody.
    pub(super) jobs: usize,
}

impl Tools {
    /// A server that everybody can back up, whose checkpoints are the backups' own.
    pub(super) fn server(&self, extension: Option<&Extension>) -> Builder {
        let mut builder = Cluster::builder(self.programs.major)
            .bindir(&self.programs.bindir)
            .durable(true)
            .conf("checkpoint_timeout", "1h")
            .conf("archive_mode", "on")
            .conf("archive_command", "true");
        if self.programs.major >= Major::V17 {
            builder = builder.conf("summarize_wal", "on");
        }
        for (name, value) in extension.iter().flat_map(|e| e.settings(MAP)) {
            builder = builder.conf(&name, &value);
        }
        builder
    }

    /// That server, with the backup program beside it.
    pub(super) fn arena(&self, cluster: Cluster) -> Result<Arena> {
        Arena::new(cluster, &self.pgstrata, self.jobs)
    }
}
