//! With what backups are taken: the server's programs, ours, and those of others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::extension::{self, Extension};
use super::shared::Preset;
use crate::contenders::Peers;
use crate::contenders::contender::{Arena, jobs};
use crate::contenders::pgbackrest::PgBackRest;
use crate::measure::environment::Warning;
use crate::measure::environment::warning::warning;
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
            others: (!alone).then(|| Peers {
                major: programs.major,
                ptrack: extension::has_ptrack(&programs),
            }),
            programs,
        })
    }
}

fn outdated(is_known: bool, major: Major) -> Option<Warning> {
    let found =
        format!("pgBackRest takes no part: the installed release does not know PostgreSQL {major}");
    (!is_known).then(|| warning("TOOL-LEFT-OUT", found))
}

/// Programs that are there.
pub(super) struct Tools {
    /// The server's.
    pub(super) programs: Programs,
    /// What other tools can do here; none: they do not take part.
    pub(super) others: Option<Peers>,
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
        let mut settings = extension.map_or_else(BTreeMap::new, |ours| ours.settings(MAP));
        if self.knows_ptrack() {
            settings.append(&mut extension::ptrack_settings(&settings));
        }
        for (name, value) in settings {
            builder = builder.conf(&name, &value);
        }
        builder
    }

    /// Who is installed and takes no part, as it does not know this server.
    pub(super) fn left_out(&self) -> Option<Warning> {
        let others = self.others?;
        let installed = PgBackRest::installed();
        outdated(installed.first()?.knows(others.major), others.major)
    }

    fn knows_ptrack(&self) -> bool {
        self.others.is_some_and(|others| others.ptrack)
    }

    /// That server, with the backup program beside it.
    pub(super) fn arena(&self, cluster: Cluster) -> Result<Arena> {
        if self.knows_ptrack() {
            cluster.sql("postgres", "CREATE EXTENSION ptrack")?;
        }
        Arena::new(cluster, &self.pgstrata, self.jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::{Major, outdated};

    #[test]
    fn who_does_not_know_the_server_is_warned_of_and_the_others_are_not() {
        assert_eq!(outdated(true, Major::V17), None);
        let warning = outdated(false, Major::V17).unwrap();
        assert!(warning.found.ends_with("PostgreSQL 17"), "{warning:?}");
        assert!(!warning.fix.is_empty());
    }
}
