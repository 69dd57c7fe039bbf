//! The server under load, and the slices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::trace::{Felt, Load, Spell};
use super::{Act, Size, Upkeep, trace};
use crate::contenders::contender::{Arena, Contender};
use crate::contenders::pgstrata::Pgstrata;
use crate::experiments::extension::Extension;
use crate::experiments::speed::workload::ANSWER_OF_PGBENCH;
use crate::experiments::stage::Stage;
use crate::experiments::strata;
use crate::experiments::tools::Tools;
use crate::format::{self, Unit};
use crate::interrupt;
use crate::measure::cost;
use crate::measure::pgbench::options::{Options, Script};
use crate::measure::pgbench::rate::Rate;
use crate::measure::pgbench::run::Bench;
use crate::measure::result::{Arm, Phase, Run, epoch};
use crate::measure::sample::{Sampler, Watch};
use crate::measure::session;
use crate::number::{real, real_u64};
use crate::report::output::tell;

/// Of the load that finds out what the server can do, seconds.
const PILOT: u32 = 4;
/// Between checkpoints where nothing but checkpoints disturbs.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// Transactions due in a slice that give it a p99, and some more: they come by chance.
const ENOUGH: f64 = 1_200.0;

/// Every command, none executed.
pub(super) fn describe(
    (size, load, rate): (&Size, &Options, Rate),
    arms: &[Arm],
    pgbench: &Path,
) -> String {
    let pgbench = pgbench.display();
    let script = (Script::Builtin(load.workload.join(" + ")), 1);
    let scripts = [script];
    let mut text = format!(
        "initdb\n{pgbench} --initialize --quiet --scale={}\n",
        size.scale
    );
    let mut paced = load.clone();
    match rate {
        Rate::PerSecond(_) => paced.rate = Some(rate),
        Rate::OfCapacity(_) => {
            text.push_str(&format!(
                "{pgbench} {}\n# rate: {rate} of those transactions per second\n",
                load.arguments(&scripts, Some(PILOT)).join(" "),
            ));
            paced.extra.push("--rate=RATE".to_owned());
        }
    }
    text.push_str(&format!(
        "{pgbench} {} --log   # in the background, to the end\n# {} blocks; in each, first a full backup by every tool, then slices of at least {} s in random order:\n",
        paced.arguments(&scripts, Some(1_000_000)).join(" "),
        size.blocks,
        size.slice.as_secs()
    ));
    for arm in arms {
        text.push_str(&format!("#   {}: {}\n", arm.name, arm.description));
    }
    text.push_str(
        "# at the end one more incremental backup by every tool, restored, opened, compared\n",
    );
    text
}

/// A loaded cluster that everybody can back up.
pub(super) struct Scene<'a> {
    arena: Arena,
    pgbench: PathBuf,
    load: Options,
    contenders: &'a [Box<dyn Contender + 'a>],
    /// The first of them, for what its repository needs from time to time.
    ours: Pgstrata<'a>,
}

/// What happened in one slice.
struct Slice {
    spells: Vec<Spell>,
    run: Run,
}

impl<'a> Scene<'a> {
    pub(super) fn set(
        tools: &Tools,
        (pgbench, load): (&Path, Options),
        extension: Option<&Extension>,
        (contenders, ours): (&'a [Box<dyn Contender + 'a>], Pgstrata<'a>),
    ) -> Result<Self> {
        let server = tools
            .server(extension)
            // No vacuum falls into one arm alone.
            .conf("autovacuum", "off")
            .conf("max_wal_size", "16GB")
            .conf("shared_buffers", "512MB");
        let arena = tools.arena(server.start()?)?;
        let dsn = arena.cluster.conninfo("postgres");
        Bench::initialize(pgbench, &dsn, load.scale)?;
        let mut client = session::connect(&dsn)?;
        if let Some(extension) = extension {
            session::run(&mut client, &extension.sql())?;
        }
        session::run(&mut client, "VACUUM (FREEZE, ANALYZE)")?;
        session::run(&mut client, "CHECKPOINT")?;
        Ok(Self {
            arena,
            pgbench: pgbench.to_owned(),
            load,
            contenders,
            ours,
        })
    }

    /// All blocks under one load, then a restore of each tool's last increment.
    pub(super) fn measure(
        &self,
        stage: &mut Stage,
        acts: &[Act],
        (size, rate, watch): (Size, Rate, bool),
    ) -> Result<()> {
        strata::capture(stage, &self.arena, strata::ALL_ARMS)?;
        strata::note_releases(stage, &self.arena, self.contenders);
        let rate = match rate {
            Rate::PerSecond(rate) => rate,
            Rate::OfCapacity(_) => rate.at(self.capacity()?),
        };
        let load = Options {
            rate: Some(Rate::PerSecond(rate)),
            ..self.load.clone()
        };
        let size = Size {
            slice: size.slice.max(Duration::from_secs_f64(ENOUGH / rate)),
            ..size
        };
        stage.experiment.workload = load.describe();
        tell(&format!("load: {}", stage.experiment.workload));
        let dsn = self.arena.cluster.conninfo("postgres");
        let seed = stage.experiment.plan.seed;
        let mut pgbench = Load::start(&self.pgbench, &load, seed, &dsn, &stage.out)?;
        let mut slices = Vec::new();
        let outcome = self.slices(stage, (acts, size, watch), &mut pgbench, &mut slices);
        let spells: Vec<Vec<Spell>> = slices.iter().map(|s| s.spells.clone()).collect();
        // Whole slices count even if the experiment was cut short.
        let (felt, kept) = pgbench.finish(&spells)?;
        let each = slices.iter().map(|s| (&s.run, s.spells.as_slice()));
        trace::keep_slices(each, &stage.out)?;
        stage.note(format!(
            "Every transaction of the load is kept beside the result, as pgbench logged it: {}.",
            format::value(real_u64(kept), Unit::Bytes)
        ));
        for (slice, felt) in slices.into_iter().zip(felt) {
            stage
                .experiment
                .runs
                .push(finished(slice.run, &slice.spells, &felt));
        }
        stage.experiment.save(&stage.out)?;
        outcome?;
        tell("restoring what was backed up");
        (0..self.contenders.len()).try_for_each(|index| self.verify(index))
    }

    /// Transactions per second of a closed loop.
    fn capacity(&self) -> Result<f64> {
        let scratch = tempfile::tempdir().context("could not create a temporary directory")?;
        let options = Options {
            time: PILOT,
            ..self.load.clone()
        };
        let scripts = options
            .workload
            .iter()
            .map(|name| crate::measure::workload::resolve(name, scratch.path()))
            .collect::<Result<Vec<_>>>()?;
        let dsn = self.arena.cluster.conninfo("postgres");
        let bench = Bench {
            pgbench: &self.pgbench,
            dsn: &dsn,
            options: &options,
            scripts: &scripts,
            directory: scratch.path().join("pilot"),
            seed: 1,
            warm_seed: 2,
            postmaster: None,
            data: None,
            server_log: None,
            samplers: false,
        };
        bench.throughput()
    }

    fn slices(
        &self,
        stage: &Stage,
        (acts, size, watch): (&[Act], Size, bool),
        load: &mut Load,
        done: &mut Vec<Slice>,
    ) -> Result<()> {
        let mut increments = vec![0; self.contenders.len()];
        let mut paces = vec![(0.0, 0.0); self.contenders.len()];
        let orders = stage.orders();
        let blocks = orders.len();
        for (block, order) in orders.into_iter().enumerate() {
            for (index, contender) in self.contenders.iter().enumerate() {
                interrupt::check()?;
                self.arena.start_over(contender.as_ref())?;
                let full = cost::run(&mut contender.full(&self.arena))?;
                increments[index] = 1;
                let incr = cost::run(&mut contender.incremental(&self.arena, 1))?;
                paces[index] = (full.wall_seconds, incr.wall_seconds);
            }
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::sleep(size.pause)?;
                load.check()?;
                let sampler = watch.then(|| self.sampler());
                let mut slice = self.one(acts[arm], size, (&mut increments, &paces))?;
                slice.run.samples = sampler.map(Sampler::finish);
                slice.run.block = block;
                slice.run.position = position;
                slice.run.arm = arm;
                done.push(slice);
            }
            tell(&format!("block {} of {blocks}", block + 1));
        }
        load.check()
    }

    fn sampler(&self) -> Sampler {
        Sampler::start(Watch {
            data: Some(self.arena.cluster.pgdata().to_owned()),
            process: self.arena.server_process(),
            period: Some(Duration::from_millis(500)),
        })
    }

    /// One slice: what the arm does, over and over until the slice is long enough.
    fn one(
        &self,
        act: Act,
        size: Size,
        (increments, paces): (&mut [usize], &[(f64, f64)]),
    ) -> Result<Slice> {
        // Archiving is a part of what a tool costs, and no part of its backups.
        let archives = match act {
            Act::Nothing | Act::Checkpoints | Act::Upkeep(_) => None,
            Act::Bracket(index, _) | Act::Backups(index, _) => {
                Some(self.contenders[index].as_ref())
            }
        };
        self.arena.select(archives)?;
        let mut run = Run {
            started: epoch(),
            ..Run::default()
        };
        let mut spells = Vec::new();
        let window = self.arena.window();
        let mut cpu = 0.0;
        while length(&spells) < size.slice.as_secs_f64() {
            interrupt::check()?;
            let from = match act {
                // An empty place is made before the clock runs.
                Act::Backups(index, full) => self.prepare(index, full, increments)?,
                // One layer cannot be merged; and what a backup leaves behind is no part of what a merge costs.
                Act::Upkeep(Upkeep::Merge) => {
                    // It may wait for its WAL in the archive, which is nowhere otherwise.
                    self.arena.select(Some(self.contenders[0].as_ref()))?;
                    self.back_up(0, false, increments)?;
                    self.arena.select(None)?;
                    interrupt::sleep(size.pause)?;
                    epoch()
                }
                _ => epoch(),
            };
            match act {
                Act::Nothing => interrupt::sleep(size.slice)?,
                Act::Checkpoints => {
                    self.arena.cluster.sql("postgres", "CHECKPOINT")?;
                    let rest = CHECKPOINT_EVERY.as_secs_f64() - (epoch() - from);
                    interrupt::sleep(Duration::from_secs_f64(rest.max(0.0)))?;
                }
                Act::Bracket(index, full) => {
                    let (of_full, of_incr) = paces[index];
                    self.bracket(if full { of_full } else { of_incr })?;
                }
                Act::Backups(index, full) => cpu += self.back_up(index, full, increments)?,
                Act::Upkeep(work) => cpu += self.keep_up(work)?,
            }
            let to = epoch();
            spells.push(Spell { from, to });
            run.phases.extend(
                matches!(act, Act::Backups(..) | Act::Upkeep(_)).then(|| Phase {
                    name: format!("run {}", spells.len()),
                    from: from - run.started,
                    to: to - run.started,
                }),
            );
        }
        if let Act::Backups(..) | Act::Bracket(..) | Act::Upkeep(_) = act {
            let count = real(spells.len());
            run.values.insert("backups".to_owned(), count);
            run.values
                .insert("backup_time".to_owned(), length(&spells) / count);
            run.values.insert("backup_cpu".to_owned(), cpu / count);
        }
        run.seconds = epoch() - run.started;
        run.note_foreign(window.close().foreign);
        Ok(Slice { spells, run })
    }

    /// What every backup asks of the server, and nothing else, for so many seconds.
    fn bracket(&self, seconds: f64) -> Result<()> {
        let began = epoch();
        let mut client = session::connect(&self.arena.cluster.conninfo("postgres"))?;
        session::run(
            &mut client,
            "SELECT pg_backup_start('nothing', fast => true)",
        )?;
        let rest = seconds - (epoch() - began);
        interrupt::sleep(Duration::from_secs_f64(rest.max(0.0)))?;
        session::run(
            &mut client,
            "SELECT pg_backup_stop(wait_for_archive => false)",
        )
    }

    fn prepare(&self, index: usize, full: bool, increments: &mut [usize]) -> Result<f64> {
        let contender = &self.contenders[index];
        // The others keep several full backups side by side.
        if full && contender.name() == "native" {
            contender.reset(&self.arena)?;
        }
        if full {
            increments[index] = 0;
        }
        Ok(epoch())
    }

    /// Runs one backup; returns the processor time of the tool.
    fn back_up(&self, index: usize, full: bool, increments: &mut [usize]) -> Result<f64> {
        let contender = &self.contenders[index];
        let mut command = if full {
            contender.full(&self.arena)
        } else {
            increments[index] += 1;
            contender.incremental(&self.arena, increments[index])
        };
        Ok(cost::run(&mut command)?.cpu_seconds)
    }

    /// Works in the repository of the first contender; returns the processor time.
    fn keep_up(&self, work: Upkeep) -> Result<f64> {
        let mut command = match work {
            Upkeep::Verify => self.ours.verify(&self.arena),
            Upkeep::Merge => self.ours.merge(&self.arena),
        };
        Ok(cost::run(&mut command)?.cpu_seconds)
    }

    /// A backup that disturbs nobody because it is wrong counts for nothing.
    fn verify(&self, index: usize) -> Result<()> {
        let contender = self.contenders[index].as_ref();
        interrupt::check()?;
        self.arena.start_over(contender)?;
        cost::run(&mut contender.full(&self.arena))?;
        self.arena.cluster.sql(
            "postgres",
            "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % 100 = 0",
        )?;
        cost::run(&mut contender.incremental(&self.arena, 1))?;
        let target = self.arena.restore_target()?;
        cost::run(&mut contender.restore(&self.arena, 1, &target))?;
        let restored = self.arena.open(&target, &[])?;
        ensure!(
            restored.sql("postgres", ANSWER_OF_PGBENCH)?
                == self.arena.cluster.sql("postgres", ANSWER_OF_PGBENCH)?,
            "{}: the restored cluster answers otherwise than the source",
            contender.name()
        );
        drop(restored);
        self.arena.take_away(&target)
    }
}

/// Of all spells together, seconds.
fn length(spells: &[Spell]) -> f64 {
    spells.iter().map(|spell| spell.to - spell.from).sum()
}

/// A slice with what its transactions felt.
fn finished(mut run: Run, spells: &[Spell], felt: &Felt) -> Run {
    let seconds = length(spells);
    let count = real_u64(felt.response.count());
    let mut put = |name: &str, value: Option<f64>| {
        run.values
            .extend(value.map(|value| (name.to_owned(), value)));
    };
    for (name, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        put(name, felt.response.quantile(q));
    }
    put("latency_mean", felt.response.mean());
    put("latency_max", felt.response.longest());
    put("transactions", Some(count));
    put("tps", Some(count / seconds.max(1e-3)));
    put("lag_mean", Some(felt.lag / count.max(1.0)));
    run.latency = felt.response.curve();
    // The last second is not a whole one.
    let whole = felt.each_second.len().saturating_sub(1);
    run.throughput = felt.each_second[..whole].to_vec();
    run
}
