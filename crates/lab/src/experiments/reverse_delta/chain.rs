//! The cluster, its six backups, and their restores.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::loads;
use crate::contenders::contender::{Arena, Contender, empty_page_cache};
use crate::contenders::pgstrata::{CLUSTER, Storage};
use crate::experiments::speed::workload::ANSWER_OF_PGBENCH;
use crate::experiments::stage::Stage;
use crate::experiments::strata;
use crate::experiments::tools::Tools;
use crate::experiments::unpack::{self, Layer, Objects, Order};
use crate::format::{self, Unit};
use crate::interrupt;
use crate::measure::result::{Phase, Run, epoch};
use crate::measure::sample::{Sampler, Watch};
use crate::number::{real, real_u64};
use crate::report::output::tell;
use pgstrata_testbed::cluster::{Cluster, require_same_dump};

/// Arms before the contenders.
const ORDERS: [Order; 2] = [Order::OldestFirst, Order::NewestFirst];

/// The largest pgbench scale whose dumps are compared. A dump of millions of rows says no more than their sums, and takes as
/// much memory as it has bytes.
const LARGEST_DUMPED: u32 = 50;

/// Every command, none executed.
pub(super) fn describe(
    (scale, blocks): (u32, usize),
    pgbench: &Path,
    (repository, archives): (&str, bool),
) -> String {
    let wal = strata::wal_words(archives);
    let repo = format!("pgstrata --repo {repository} --cluster {CLUSTER}");
    let mut text = format!(
        "initdb\n{repo} init --pgdata DATA\n{repo} backup --pgdata DATA{wal} --type full\n"
    );
    let increment = format!("{repo} backup --pgdata DATA{wal} --type incr --change-source lsn\n");
    text.push_str(&format!(
        "{} --initialize --quiet --scale={scale}\n{increment}",
        pgbench.display()
    ));
    for step in loads(scale) {
        for load in step {
            text.push_str(&format!(
                "{} {}\n",
                pgbench.display(),
                arguments(&load).join(" ")
            ));
        }
        text.push_str(&increment);
    }
    text.push_str(&format!(
        "# {blocks} times, in random order, each into an empty directory:\n\
         # unpack the six layers oldest first; unpack them newest first\n\
         {repo} restore latest --target-type immediate --target-action promote --target-dir WORK/restored\n\
         # pg_combinebackup from PostgreSQL 17 on, and pgBackRest, WAL-G, pg_probackup where they are installed, the same way\n\
         # once: open every restored cluster, pg_amcheck, pg_dumpall or sums of its tables against the source; relation files equal in all orders\n"
    ));
    text
}

fn arguments(load: &super::Load) -> Vec<String> {
    vec![
        "--no-vacuum".to_owned(),
        "--protocol=prepared".to_owned(),
        format!("--builtin={}", load.builtin),
        format!("--client={}", load.clients),
        format!("--jobs={}", load.clients.min(4)),
        format!("--transactions={}", load.transactions),
    ]
}

/// A cluster with a base and five deltas in everybody's repository.
pub(super) struct Chain<'a> {
    arena: Arena,
    contenders: &'a [Box<dyn Contender + 'a>],
    storage: &'a Storage,
    scale: u32,
    /// Between looks at the machine: short where restores are.
    look: Duration,
    /// Digest of the relation files, equal for all restores by layers.
    digest: Option<String>,
    checked: Vec<bool>,
}

impl<'a> Chain<'a> {
    pub(super) fn make(
        tools: &Tools,
        (scale, pgbench): (u32, &Path),
        contenders: &'a [Box<dyn Contender + 'a>],
        storage: &'a Storage,
    ) -> Result<Self> {
        let server = tools
            .server(None)
            .conf("max_wal_size", "8GB")
            // The load is not what is measured.
            .conf("synchronous_commit", "off");
        let arena = tools.arena(server.start()?)?;
        let chain = Self {
            arena,
            contenders,
            storage,
            scale,
            look: Duration::from_millis(if scale < 10 { 50 } else { 500 }),
            digest: None,
            checked: vec![false; contenders.len() + ORDERS.len()],
        };
        chain.fill(pgbench)?;
        Ok(chain)
    }

    fn fill(&self, pgbench: &Path) -> Result<()> {
        let dsn = self.arena.cluster.conninfo("postgres");
        for contender in self.lenders() {
            self.arena.start_over(contender)?;
        }
        self.backup(0)?;
        crate::measure::pgbench::run::Bench::initialize(pgbench, &dsn, self.scale)?;
        self.backup(1)?;
        let steps = loads(self.scale);
        let last = steps.len() - 1;
        for (index, step) in steps.into_iter().enumerate() {
            for load in step {
                crate::measure::programs::output(
                    Command::new(pgbench).args(arguments(&load)).arg(&dsn),
                )?;
            }
            if index == last {
                // The checkpoint of this backup gives the room back; restored servers will not take it either.
                self.arena.cluster.append_conf("max_wal_size", "1GB")?;
                self.arena.cluster.reload()?;
            }
            self.backup(index + 2)?;
        }
        Ok(())
    }

    /// Those that take backups.
    fn lenders(&self) -> impl Iterator<Item = &dyn Contender> {
        let all = self.contenders.iter().map(AsRef::as_ref);
        all.filter(|contender| !contender.borrows())
    }

    /// A backup by everybody; nobody archives what the next load writes.
    fn backup(&self, nth: usize) -> Result<()> {
        for contender in self.lenders() {
            interrupt::check()?;
            self.arena.select(Some(contender))?;
            let mut command = match nth {
                0 => contender.full(&self.arena),
                _ => contender.incremental(&self.arena, nth),
            };
            let values = strata::measured(&self.arena, contender, &mut command)?;
            tell(&format!(
                "{}: {} in {}, {} stored",
                contender.name(),
                if nth == 0 {
                    "base".to_owned()
                } else {
                    format!("delta {nth}")
                },
                format::value(values["time"], Unit::Seconds),
                format::value(values["stored"], Unit::Bytes)
            ));
        }
        self.arena.select(None)
    }

    /// All restores, in blocks of random order.
    pub(super) fn measure(&mut self, stage: &mut Stage, cold: bool, watch: bool) -> Result<()> {
        strata::capture(stage, &self.arena, strata::ALL_ARMS)?;
        strata::note_releases(stage, &self.arena, self.contenders);
        let (objects, layers) = self.layers()?;
        self.note_bound(stage, &layers);
        for (block, order) in stage.orders().into_iter().enumerate() {
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::check()?;
                match cold {
                    true => empty_page_cache()?,
                    false => rustix::fs::sync(),
                }
                let mut run = self.one(arm, (&objects, &layers), watch)?;
                run.block = block;
                run.position = position;
                run.arm = arm;
                let time = format::value(run.values["time"], Unit::Seconds);
                let written = format::value(run.values["written"], Unit::Bytes);
                stage.progress((block, arm), &format!("{time}, {written} written"));
                stage.record(run)?;
            }
        }
        Ok(())
    }

    fn layers(&self) -> Result<(Objects, Vec<Layer>)> {
        let contender = self.contenders.first().context("nobody takes part")?;
        let repository = contender.repository(&self.arena);
        let directory = repository.join(CLUSTER).join("layer");
        let mut labels: Vec<String> = std::fs::read_dir(&directory)
            .with_context(|| format!("could not list \"{}\"", directory.display()))?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        // Labels sort by time within a chain.
        labels.sort();
        let objects = match self.storage {
            Storage::Directory => Objects::Directory(repository),
            Storage::S3(server) => Objects::bucket(server, &contender.repository_name())?,
        };
        let layers = unpack::chain(&objects, CLUSTER, &labels)?;
        Ok((objects, layers))
    }

    /// How much oldest-first writes, from the indexes alone.
    fn note_bound(&self, stage: &mut Stage, layers: &[Layer]) {
        let pages: Vec<f64> = layers.iter().map(|l| real_u64(l.pages_stored())).collect();
        let last = layers.last().map_or(1.0, |l| real_u64(l.pages()));
        stage.note(format!(
            "Pages stored per layer: {}; oldest first writes {} times the restored cluster (published scale: 4.06 times).",
            pages.iter().map(|p| format!("{p:.0}")).collect::<Vec<_>>().join(", "),
            format::ratio(pages.iter().sum::<f64>() / last, None)
        ));
    }

    fn one(
        &mut self,
        arm: usize,
        (objects, layers): (&Objects, &[Layer]),
        watch: bool,
    ) -> Result<Run> {
        let target = self.arena.restore_target()?;
        let sampler = watch.then(|| {
            Sampler::start(Watch {
                data: Some(target.clone()),
                process: Some(std::process::id()),
                period: Some(self.look),
            })
        });
        let mut run = Run {
            started: epoch(),
            ..Run::default()
        };
        if let Some(order) = ORDERS.get(arm) {
            let window = self.arena.window();
            let done = unpack::unpack(objects, layers, &target, *order, self.arena.jobs)?;
            run.note_foreign(window.close().foreign);
            let mut from = 0.0;
            for (name, seconds) in done.stages {
                run.values.insert(format!("stage {name}"), seconds);
                run.phases.push(Phase {
                    name,
                    from,
                    to: from + seconds,
                });
                from += seconds;
            }
            run.values.insert("time".to_owned(), from);
            run.values
                .insert("written".to_owned(), real_u64(done.written));
        } else {
            let contender = &self.contenders[arm - ORDERS.len()];
            self.arena.select(Some(contender.as_ref()))?;
            let increments = layers.len() - 1;
            run.values = strata::measured(
                &self.arena,
                contender.as_ref(),
                &mut contender.restore(&self.arena, increments, &target),
            )?;
            run.values.remove("stored");
            run.phases.push(Phase {
                name: "restore".to_owned(),
                from: 0.0,
                to: run.values["time"],
            });
        }
        run.seconds = run.values["time"];
        run.samples = sampler.map(Sampler::finish);
        self.verify(arm, layers, &target)?;
        self.arena.take_away(&target)?;
        Ok(run)
    }

    /// Orders by layers and our overlay must give the same files; whole restores must open.
    fn verify(&mut self, arm: usize, layers: &[Layer], target: &Path) -> Result<()> {
        if std::mem::replace(&mut self.checked[arm], true) {
            return Ok(());
        }
        if arm <= ORDERS.len() {
            let found = unpack::digest(layers, target)?;
            let expected = self.digest.get_or_insert_with(|| found.clone());
            ensure!(
                *expected == found,
                "the orders restored different relation files"
            );
        }
        let Some(index) = arm.checked_sub(ORDERS.len()) else {
            return Ok(());
        };
        // Its restore_command reads the same storage.
        let restored = self.arena.open(target, &self.storage.environment())?;
        let name = self.contenders[index].name();
        let source = &self.arena.cluster;
        let compared = if self.scale <= LARGEST_DUMPED {
            require_same_dump(&source.dump()?, &restored.dump()?)
        } else {
            let answer = |cluster: &Cluster| cluster.sql("postgres", ANSWER_OF_PGBENCH);
            let (expected, found) = (answer(source)?, answer(&restored)?);
            match expected == found {
                true => Ok(()),
                false => Err(anyhow!("it answers {found}, the source {expected}")),
            }
        };
        compared.with_context(|| format!("{name}: the restored cluster is not the source"))?;
        restored.amcheck()
    }
}

/// Seconds per stage of one arm, in the order of stages of its first run.
pub(super) fn stages(runs: &[&Run]) -> Vec<(String, f64)> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs {
        for phase in &run.phases {
            found
                .entry(&phase.name)
                .or_default()
                .push(phase.to - phase.from);
        }
    }
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / real(values.len());
    first
        .phases
        .iter()
        .filter_map(|phase| Some((phase.name.clone(), mean(found.get(phase.name.as_str())?))))
        .collect()
}
