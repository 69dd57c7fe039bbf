//! What a tracker of changed pages costs: throughput with it off and at several
//! sizes of its map.
//!
//! The published table has one run per size and fluctuations as large as the
//! effect. Here every size runs in every block, in random order, on a copy of
//! the same data. Restarts hide what is below a per cent: `make bench-tracker` turns
//! the tracker on and off inside one running server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::extension::Extension;
use super::shared::Preset;
use crate::experiments::shared::{Shared, Usage};
use crate::experiments::shared::{comparison, execute_and};
use crate::format::{self, Unit};
use crate::measure::ab::{self, Comparison, State};
use crate::measure::arm::ArmSpec;
use crate::measure::environment::warning::warning;
use crate::measure::pgbench::options::{Options, Protocol};
use crate::measure::programs::Programs;
use crate::measure::result::{Beside, Claim, Experiment, Published, Table};
use crate::measure::stat::median;
use crate::measure::stat::paired;
use crate::measure::stat::verdict::Better;
use crate::number::real_u64;

/// Map size in MB, and the published transactions per second.
const PUBLISHED: [(u64, f64); 6] = [
    (0, 16_900.0),
    (32, 16_890.0),
    (64, 16_855.0),
    (256, 16_468.0),
    (512, 16_490.0),
    (1024, 16_220.0),
];

const SOURCE: &str = "Published: one run each, on tmpfs, 40 clients and one pgbench thread, with fluctuations \"in a several percent range\".";

/// Arguments of `seed tracking`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper is scale 133, 40 clients, 300 s; small scale 13, 20 s; tiny scale 2, 1 s
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// sizes of the map in MB, the base first; 0 is off
    #[arg(long, value_delimiter = ',')]
    map_size: Vec<u64>,
    /// directory of the server's programs
    #[arg(long, value_name = "DIR")]
    bindir: Option<PathBuf>,
    /// sources of the extension; by default those of this checkout, else what is installed
    #[arg(long, value_name = "DIR")]
    extension: Option<PathBuf>,
    /// keep data in memory, as published: the CPU's share is then largest; the paper preset does
    #[arg(long)]
    tmpfs: bool,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    /// measured seconds per run
    #[arg(long, short = 'T')]
    time: Option<u32>,
    /// pgbench scale
    #[arg(long, short = 's')]
    scale: Option<u32>,
    /// clients
    #[arg(long, short = 'c')]
    client: Option<u32>,
    /// pgbench threads: one, as published; more where pgbench is the limit
    #[arg(long, short = 'j', default_value_t = 1)]
    jobs: u32,
    #[command(flatten)]
    shared: Shared,
}

/// A preset, worked out.
struct Size {
    scale: u32,
    client: u32,
    time: u32,
    blocks: usize,
    warmup: u32,
    maps: Vec<u64>,
}

impl Arguments {
    fn size(&self) -> Size {
        let all: Vec<u64> = PUBLISHED.iter().map(|(size, _)| *size).collect();
        let preset = match self.preset {
            // One comparison: six blocks are enough for a verdict.
            Preset::Tiny => (2, 10, 1, 6, 1, vec![0, 1024]),
            Preset::Small => (13, 40, 20, 8, 2, all),
            Preset::Paper => (133, 40, 300, 10, 15, all),
            Preset::Large => (1000, 40, 300, 10, 15, all),
        };
        let (scale, client, time, blocks, warmup, maps) = preset;
        Size {
            scale: self.scale.unwrap_or(scale),
            client: self.client.unwrap_or(client),
            time: self.time.unwrap_or(time),
            blocks: self.blocks.unwrap_or(blocks),
            warmup,
            maps: if self.map_size.is_empty() {
                maps
            } else {
                self.map_size.clone()
            },
        }
    }

    fn load(&self) -> Options {
        let size = self.size();
        Options {
            workload: vec!["ptrack".to_owned()],
            client: size.client,
            jobs: Some(self.jobs),
            time: size.time,
            protocol: Protocol::Simple,
            scale: size.scale,
            warmup: size.warmup,
            ..Options::default()
        }
    }
}

/// `seed tracking`.
///
/// # Errors
/// Fails when the extension cannot be built, or a run does.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let programs = Programs::find(arguments.bindir.as_deref())?;
    let extension = Extension::find(&programs, arguments.extension.as_deref())?;
    let size = arguments.size();
    if size.maps.len() < 2 {
        return Err(
            Usage("could not compare: give at least two values of --map-size".to_owned()).into(),
        );
    }
    let scratch = tempfile::tempdir().context("could not create a temporary directory")?;
    let setup = scratch.path().join("tracker.sql");
    std::fs::write(&setup, extension.sql())
        .with_context(|| format!("could not write \"{}\"", setup.display()))?;
    let base = comparison(arguments.load(), &arguments.shared, words)?;
    let plan = Comparison {
        kind: "tracking".to_owned(),
        hypothesis: Some(arguments.shared.hypothesis.clone().unwrap_or_else(|| {
            "tracking costs at most 3 % of throughput, whatever the size of its map".to_owned()
        })),
        claims: match arguments.shared.hypothesis {
            None => (1..size.maps.len())
                .map(|arm| Claim::at_least("tps", arm, 0.97))
                .collect(),
            Some(_) => arguments
                .shared
                .claims(&ab::metrics(&[arguments.load()]), size.maps.len())?,
        },
        title: "What tracking changed pages costs".to_owned(),
        arms: arms(&size.maps, &programs, &extension, &setup),
        sweep: Some(size.maps.iter().map(|m| real_u64(*m)).collect()),
        blocks: size.blocks,
        state: State::Restore,
        out: arguments.shared.out("tracking"),
        settle: settle(arguments),
        // Is it on, and if it is not, why.
        proof: Some("SELECT concat_ws(': ', tracking, reason) FROM pgstrata.state()".to_owned()),
        ..base
    };
    execute_and(&plan, &arguments.shared, |experiment| {
        describe(experiment, &size.maps);
    })
}

/// A tiny run does not wait longer for a quiet machine than it measures.
fn settle(arguments: &Arguments) -> std::time::Duration {
    let asked = arguments.shared.settle;
    match arguments.preset {
        Preset::Tiny => asked.min(std::time::Duration::from_millis(500)),
        _ => asked,
    }
}

fn arms(maps: &[u64], programs: &Programs, extension: &Extension, setup: &Path) -> Vec<ArmSpec> {
    maps.iter()
        .map(|map| ArmSpec {
            name: if *map == 0 {
                "off".to_owned()
            } else {
                format!("{map} MB")
            },
            bindir: Some(programs.bindir.clone()),
            setup: Some(setup.to_owned()),
            settings: extension.settings(*map),
            ..ArmSpec::default()
        })
        .collect()
}

fn describe(experiment: &mut Experiment, maps: &[u64]) {
    let wrong: Vec<String> = experiment
        .runs
        .iter()
        .filter_map(|run| {
            let proof = run.facts.get("proof")?;
            let on = maps.get(run.arm).is_some_and(|map| *map > 0);
            (on != proof.starts_with('t')).then(|| {
                format!(
                    "{} in block {}: {proof}",
                    experiment.arms[run.arm].name, run.block
                )
            })
        })
        .collect();
    if let Some(first) = wrong.first() {
        experiment
            .warnings
            .push(warning("HYPOTHESIS-NOT-EXERCISED", first.clone()));
    }
    experiment.published = vec![beside(experiment, maps)];
    let rows = maps
        .iter()
        .enumerate()
        .map(|(arm, map)| row(experiment, arm, *map))
        .collect();
    experiment.tables = vec![Table {
        title: "Transactions per second, beside the published ones".to_owned(),
        head: [
            "map size",
            "published",
            "published overhead",
            "ours",
            "ours to off",
            "95 % interval",
        ]
        .map(str::to_owned)
        .into(),
        rows,
        note: Some(format!(
            "{SOURCE} Ours: medians over blocks; the ratio is paired block by block."
        )),
    }];
}

fn published(map: u64) -> Option<f64> {
    PUBLISHED.iter().find(|(size, _)| *size == map).map(|p| p.1)
}

/// An arm against the server without tracking.
fn compared(experiment: &Experiment, arm: usize) -> Option<paired::Comparison> {
    let plan = &experiment.plan;
    let (base, ours) = experiment.pairs("tps", (0, arm), &experiment.counted_blocks());
    paired::compare(&base, &ours, Better::Higher, plan.margin, plan.seed).filter(|_| arm > 0)
}

fn beside(experiment: &Experiment, maps: &[u64]) -> Published {
    let rows = maps.iter().zip(0..).skip(1).map(|(map, arm)| {
        let compared = compared(experiment, arm);
        Beside {
            name: format!("{map} MB"),
            published: published(*map).map(|tps| tps / PUBLISHED[0].1),
            ours: compared.as_ref().map(|compared| compared.ratio),
            interval: compared.and_then(|compared| compared.interval),
        }
    });
    Published {
        figure: "Transactions per second with a map of that size, to those without".to_owned(),
        unit: Unit::Ratio,
        source: SOURCE.to_owned(),
        rows: rows.collect(),
    }
}

fn row(experiment: &Experiment, arm: usize, map: u64) -> Vec<String> {
    let published = published(map);
    let missing = || format::MISSING.to_owned();
    let values = experiment.values("tps", arm);
    let compared = compared(experiment, arm);
    vec![
        if map == 0 {
            "off".to_owned()
        } else {
            format!("{map} MB")
        },
        published.map_or_else(missing, |tps| format!("{tps:.0}")),
        published.map_or_else(missing, |tps| format::percent(1.0 - tps / PUBLISHED[0].1)),
        if values.is_empty() {
            missing()
        } else {
            format::value(median(&values), Unit::PerSecond)
        },
        compared
            .as_ref()
            .map_or_else(missing, crate::report::analysis::ratio_words),
        compared
            .as_ref()
            .map_or_else(missing, crate::report::analysis::interval_words),
    ]
}
