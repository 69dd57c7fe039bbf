//! The experiment: a full backup, changes each followed by an incremental one, a restore.
//!
//! All contenders work on the same server in the same run. Within a step their
//! order is shuffled anew, so that drift of the machine falls on all alike. Every
//! restored cluster is started, and must answer as the source did.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

use super::contender::{Arena, Contender, tree_bytes};
use super::limits::{limit_directory, limits};
use super::measure::{self, Cost};
use super::profile::{Profile, profile};
use crate::cluster::Cluster;

/// Data, and how it changes.
#[derive(Clone, Copy, Debug)]
pub enum Workload {
    /// W1: two tables of `rows` rows; a fifth of one is updated; one increment.
    TwoTables {
        /// Rows of each table; 52 bytes each on disk.
        rows: u64,
        /// Rows of a third table that nothing ever changes; 1024 bytes each on disk.
        neighbour_rows: u64,
    },
    /// W2: pgbench; five increments, each after `transactions` transactions.
    Pgbench {
        /// Scale factor: 15 MB each.
        scale: u32,
        /// TPC-B-like transactions before each increment.
        transactions: u32,
    },
}

impl Workload {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TwoTables { .. } => "W1",
            Self::Pgbench { .. } => "W2",
        }
    }

    fn increments(self) -> usize {
        match self {
            Self::TwoTables { .. } => 1,
            Self::Pgbench { .. } => 5,
        }
    }

    /// Makes the data; every page then has its hint bits, as in a database that has been used.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn load(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::TwoTables {
                rows,
                neighbour_rows,
            } => {
                if neighbour_rows > 0 {
                    cluster.sql("postgres", &format!(
                        "CREATE TABLE neighbour AS
                         SELECT s, repeat(md5(s::text), 30) AS pad FROM generate_series(1, {neighbour_rows}) s"))?;
                }
                for table in ["large_test", "large_test2"] {
                    cluster.sql("postgres", &format!(
                        "CREATE TABLE {table} (num1 bigint, num2 double precision, num3 double precision);
                         INSERT INTO {table} SELECT s, random(), random() * 142 FROM generate_series(1, {rows}) s"))?;
                }
            }
            Self::Pgbench { scale, .. } => {
                cluster.pgbench(&["-i", "-q", "-s", &scale.to_string()])?;
            }
        }
        cluster
            .sql("postgres", "VACUUM (FREEZE, ANALYZE)")
            .map(drop)
    }

    fn change(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::TwoTables { rows, .. } => cluster
                .sql(
                    "postgres",
                    &format!(
                        "UPDATE large_test2 SET num3 = num3 + 1 WHERE num1 < {}",
                        rows / 5
                    ),
                )
                .map(drop),
            Self::Pgbench { transactions, .. } => cluster
                .pgbench(&["-n", "-c2", "-t", &(transactions / 2).to_string()])
                .map(drop),
        }
    }

    fn answer(self, cluster: &Cluster) -> Result<String> {
        cluster.sql(
            "postgres",
            match self {
                Self::TwoTables { .. } => ANSWER_OF_TWO_TABLES,
                Self::Pgbench { .. } => ANSWER_OF_PGBENCH,
            },
        )
    }
}

/// What the two tables of W1 hold. In an order of its own: a parallel append returns first what is done first.
pub const ANSWER_OF_TWO_TABLES: &str =
    "SELECT 'large_test', count(*), sum(num3::numeric) FROM large_test
    UNION ALL SELECT 'large_test2', count(*), sum(num3::numeric) FROM large_test2 ORDER BY 1";

/// What pgbench has changed, likewise.
pub const ANSWER_OF_PGBENCH: &str =
    "SELECT 'accounts', count(*), sum(abalance) FROM pgbench_accounts
    UNION ALL SELECT 'history', count(*), sum(delta) FROM pgbench_history ORDER BY 1";

/// One measured act.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// `W1` or `W2`.
    pub workload: String,
    /// Contender or limit.
    pub name: String,
    /// `full`, `incremental`, `restore`, or `restore of one`: a full backup of the same state.
    pub act: String,
    /// Round, from 1.
    pub round: usize,
    /// What it cost.
    pub cost: Cost,
    /// Bytes the act added to the repository; for a restore the size of the restored cluster.
    pub stored_bytes: u64,
    /// Phases of a backup, where the tool reports them, in their order, with their seconds.
    pub phases: Vec<(String, f64)>,
}

/// What an act cost and left.
#[derive(Default)]
struct Done {
    cost: Cost,
    stored_bytes: u64,
    phases: Vec<(String, f64)>,
}

/// One experiment.
#[derive(Debug)]
pub struct Chain<'a> {
    /// Where.
    pub arena: &'a Arena,
    /// On which data.
    pub workload: Workload,
    /// Who.
    pub contenders: &'a [Box<dyn Contender>],
    /// Of the random order.
    pub seed: u64,
    /// Empties the page cache before each act (root only).
    pub cold: bool,
}

impl Chain<'_> {
    /// Runs `rounds` rounds; `seen` is told each sample as it comes.
    ///
    /// # Errors
    /// When a contender fails, or a restored cluster answers otherwise than the source.
    pub fn run(&self, rounds: usize, mut seen: impl FnMut(&Sample)) -> Result<Vec<Sample>> {
        let mut random = Pcg64::seed_from_u64(self.seed);
        let mut samples = Vec::new();
        for round in 1..=rounds {
            let mut note = |name: String, act: &str, done: Done| {
                let workload = self.workload.name().to_owned();
                let sample = Sample {
                    workload,
                    name,
                    act: act.to_owned(),
                    round,
                    cost: done.cost,
                    stored_bytes: done.stored_bytes,
                    phases: done.phases,
                };
                seen(&sample);
                samples.push(sample);
            };
            for contender in self.contenders {
                self.arena.select(Some(contender.as_ref()))?;
                contender.reset(self.arena)?;
            }
            for nth in 0..=self.workload.increments() {
                if nth > 0 {
                    self.workload.change(&self.arena.cluster)?;
                }
                self.arena.cluster.sql("postgres", "CHECKPOINT")?;
                for contender in self.shuffled(&mut random) {
                    let (act, done) = self.backup(contender, nth)?;
                    note(contender.name(), act, done);
                }
            }
            self.arena.select(None)?;
            let expected = self.workload.answer(&self.arena.cluster)?;
            for contender in self.shuffled(&mut random) {
                let done = self.restore(contender, &expected)?;
                note(contender.name(), "restore", done);
            }
            if self.workload.increments() > 1 {
                for contender in self.shuffled(&mut random) {
                    if let Some(done) = self.restore_of_one(contender, &expected)? {
                        note(contender.name(), "restore of one", done);
                    }
                }
            }
            for mut limit in limits(self.arena) {
                self.settle(limit.act == "restore")?;
                let (cost, _) = self.arena.measured(&mut limit.command)?;
                note(
                    limit.name,
                    limit.act,
                    Done {
                        cost,
                        ..Done::default()
                    },
                );
                fs::remove_dir_all(limit_directory(self.arena))?;
            }
            self.arena
                .cluster
                .sql("postgres", "VACUUM (FREEZE, ANALYZE)")?;
        }
        Ok(samples)
    }

    /// One more round of one contender, into flame graphs in `directory`.
    ///
    /// # Errors
    /// See [`profile()`].
    pub fn profiled(&self, contender: &dyn Contender, directory: &Path) -> Result<Vec<Profile>> {
        let mut profiles = Vec::new();
        let mut note = |act: &str, command: &mut Command| -> Result<()> {
            self.settle(act == "restore")?;
            let name = format!("{}-{act}", self.workload.name());
            profiles.push(profile(command, directory, &name)?);
            Ok(())
        };
        self.arena.select(Some(contender))?;
        contender.reset(self.arena)?;
        self.arena.cluster.sql("postgres", "CHECKPOINT")?;
        note("full", &mut contender.full(self.arena))?;
        for nth in 1..=self.workload.increments() {
            self.workload.change(&self.arena.cluster)?;
            self.arena.cluster.sql("postgres", "CHECKPOINT")?;
            let act = format!("incremental-{nth}");
            note(&act, &mut contender.incremental(self.arena, nth))?;
        }
        let target = self.arena.restore_target()?;
        let increments = self.workload.increments();
        note(
            "restore",
            &mut contender.restore(self.arena, increments, &target),
        )?;
        fs::remove_dir_all(&target)?;
        Ok(profiles)
    }

    fn shuffled(&self, random: &mut Pcg64) -> Vec<&dyn Contender> {
        let mut order: Vec<&dyn Contender> = self.contenders.iter().map(AsRef::as_ref).collect();
        order.shuffle(random);
        order
    }

    fn backup(&self, contender: &dyn Contender, nth: usize) -> Result<(&'static str, Done)> {
        self.arena.select(Some(contender))?;
        let before = tree_bytes(&contender.repository(self.arena))?;
        self.settle(false)?;
        let (act, mut command) = match nth {
            0 => ("full", contender.full(self.arena)),
            _ => ("incremental", contender.incremental(self.arena, nth)),
        };
        let (cost, printed) = self.arena.measured(&mut command)?;
        let done = Done {
            cost,
            stored_bytes: tree_bytes(&contender.repository(self.arena))? - before,
            phases: contender.phases(&printed),
        };
        Ok((act, done))
    }

    /// Restores a full backup of the state that the chain ends in, for comparison with the chain.
    fn restore_of_one(&self, contender: &dyn Contender, expected: &str) -> Result<Option<Done>> {
        if !contender.takes_another_full() {
            return Ok(None);
        }
        self.arena.select(Some(contender))?;
        measure::run(&mut contender.full(self.arena))?;
        self.arena.select(None)?;
        self.restore(contender, expected).map(Some)
    }

    fn restore(&self, contender: &dyn Contender, expected: &str) -> Result<Done> {
        let target = self.arena.restore_target()?;
        self.settle(true)?;
        let (cost, _) = self.arena.measured(&mut contender.restore(
            self.arena,
            self.workload.increments(),
            &target,
        ))?;
        let size = tree_bytes(&target)?;
        let found = self.workload.answer(&self.arena.open(&target, &[])?)?;
        ensure!(
            found == expected,
            "{}: the restored cluster answers {found}, the source {expected}",
            contender.name()
        );
        fs::remove_dir_all(&target)?;
        Ok(Done {
            cost,
            stored_bytes: size,
            phases: Vec::new(),
        })
    }

    /// Leaves nothing for an act to write that others have made dirty; empties the page cache if asked for. When the act
    /// writes a copy of the cluster, there is memory for it.
    fn settle(&self, copies: bool) -> Result<()> {
        let drop_caches = match self.cold {
            true => "; echo 3 >/proc/sys/vm/drop_caches",
            false => "",
        };
        measure::run(Command::new("bash").args(["-c", &format!("sync{drop_caches}")]))?;
        match copies {
            true => measure::claim_memory(&self.arena.cluster),
            false => Ok(()),
        }
    }
}
