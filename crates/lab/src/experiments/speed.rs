//! Backup and restore against the limits of the machine and against other tools.
//!
//! All contenders work on one server. In each block every one of them takes a full
//! backup, the data changes, it takes an incremental one, and restores; what the
//! machine can do at all with the same files is measured between them. Within a
//! step the order is random. Every restored cluster is started, and must answer as
//! the source did.

mod limits;
mod profile;
mod rounds;
mod table;
pub mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use self::limits::Limit;
use self::rounds::Rounds;
use self::workload::Workload;
use super::shared::{Preset, Shared};
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::{ToolArguments, Tools};
use crate::contenders::contender::Contender;
use crate::contenders::pgstrata::{Pgstrata, Storage};
use crate::format::Unit;
use crate::measure::result::{Arm, Claim, Metric};
use crate::measure::session;
use crate::measure::stat::verdict::Better;
use crate::report::output::{print, tell};

/// Which data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Data {
    /// Two tables; a fifth of one is updated; one increment
    W1,
    /// pgbench; five increments
    W2,
}

/// Arguments of `bench speed`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// which data, and how it changes
    #[arg(long, value_enum, default_value = "w1")]
    workload: Data,
    /// how large: paper is W1 of 1 GB, W2 of scale 100, every change source; small 400 MB, scale 20; tiny 10 MB, scale 1; large 16 GB, scale 1000, with --cold
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// size of W1 in MB, both tables together
    #[arg(long)]
    mb: Option<u64>,
    /// MB of further data in W1 that nothing ever changes
    #[arg(long, default_value_t = 0)]
    neighbour_mb: u64,
    /// scale of W2 (15 MB each)
    #[arg(long, short = 's')]
    scale: Option<u32>,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    /// how changed pages are found; several are compared; paper: all that the server has, else lsn,digest
    #[arg(long, value_delimiter = ',')]
    change_source: Vec<String>,
    /// sources of the extension, for change source tracker
    #[arg(long, value_name = "DIR")]
    extension: Option<PathBuf>,
    /// empty the page cache before each act (root only)
    #[arg(long)]
    cold: bool,
    /// profile one more round of the first contender with perf (root only): flame graphs beside the result
    #[arg(long)]
    profile: bool,
    /// another build of pgstrata, to compare this one with
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// compare also with a sealed cluster: what encryption costs
    #[arg(long)]
    sealed: bool,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

impl Arguments {
    fn blocks(&self) -> usize {
        self.blocks.unwrap_or(match self.preset {
            // Fewer have no interval.
            Preset::Tiny | Preset::Paper | Preset::Large => 6,
            Preset::Small => 8,
        })
    }

    fn workload(&self) -> Workload {
        let (mb, scale) = match self.preset {
            Preset::Tiny => (10, 1),
            Preset::Small => (400, 20),
            Preset::Paper => (1000, 100),
            Preset::Large => (16_000, 1000),
        };
        match self.workload {
            Data::W1 => Workload::two_tables(self.mb.unwrap_or(mb), self.neighbour_mb),
            Data::W2 => Workload::pgbench(self.scale.unwrap_or(scale)),
        }
    }

    fn sources(&self, tools: &Tools) -> Result<Vec<String>> {
        let major = tools.programs.major;
        let all = match self.preset {
            Preset::Paper | Preset::Large => strata::sources(major),
            _ => &["lsn", "digest"],
        };
        strata::chosen(&self.change_source, all, major)
    }
}

/// `bench speed`.
///
/// # Errors
/// Fails when a server or a tool does, or a restored cluster answers otherwise than the source.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let sources = arguments.sources(&tools)?;
    let storage = Storage::Directory;
    let contenders = everybody(arguments, &sources, &tools, &storage);
    let workload = arguments.workload();
    let arms = arms(&contenders, &tools);
    if arguments.shared.dry_run {
        print(&describe(workload, &arms, arguments.blocks()))?;
        return Ok(0);
    }
    let sketch = sketch(arguments, &tools, arms);
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    stage.experiment.warnings.extend(tools.left_out());
    let mut profiles = Vec::new();
    let outcome = (|| {
        let given = arguments.extension.as_deref();
        let extension = strata::tracker(&sources, &tools.programs, given)?;
        let server = tools
            .server(extension.as_ref())
            .conf("shared_buffers", "256MB")
            .conf("max_wal_size", "4GB")
            .conf("autovacuum", "off");
        let mut arena = tools.arena(server.start()?)?;
        if let Some(baseline) = &arguments.baseline {
            arena = arena.with_baseline(baseline)?;
        }
        if let Some(extension) = &extension {
            let mut client = session::connect(&arena.cluster.conninfo("postgres"))?;
            session::run(&mut client, &extension.sql())?;
        }
        tell(&format!("loading {}", workload.words()));
        workload.load(&arena.cluster)?;
        let rounds = Rounds {
            arena: &arena,
            workload,
            contenders: &contenders,
            cold: arguments.cold || arguments.preset == Preset::Large,
            settle: arguments.shared.settle,
        };
        rounds.measure(&mut stage)?;
        if arguments.profile {
            let first = contenders.first().context("nobody takes part")?;
            profiles = rounds.profiled(first.as_ref(), &stage.out)?;
        }
        Ok(())
    })();
    stage.close(outcome, |experiment| {
        table::describe(experiment, contenders.len(), &profiles);
    })
}

fn sketch(arguments: &Arguments, tools: &Tools, arms: Vec<Arm>) -> Sketch {
    let workload = arguments.workload();
    let (name, major) = (workload.name(), tools.programs.major);
    let claims = claims(&arms);
    Sketch {
        kind: "speed",
        title: format!("Backup and restore of {name} on PostgreSQL {major}"),
        workload: format!("{name}: {}; {} workers", workload.words(), tools.jobs),
        arms,
        metrics: table::ACTS
            .iter()
            .map(|act| Metric::new(act.key, act.title, Unit::Seconds, Better::Lower))
            .collect(),
        blocks: arguments.blocks(),
        state: "restore",
        hypothesis: Some(Hypothesis::new(
            "a full backup with zstd takes at most 1.11 times as long as tar | zstd -1, and a restore no longer than cp -r + sync",
            claims,
        )),
    }
}

/// Ours with each change source, the baseline likewise, and in other compressions beside what else is installed.
fn everybody<'a>(
    arguments: &Arguments,
    sources: &[String],
    tools: &Tools,
    storage: &'a Storage,
) -> Vec<Box<dyn Contender + 'a>> {
    let ours = |compress, change_source: &str| Pgstrata {
        baseline: false,
        change_source: change_source.to_owned(),
        compress: Some(compress),
        impact: None,
        archives: true,
        sealed: false,
        storage,
    };
    let mut all: Vec<Box<dyn Contender + 'a>> = Vec::new();
    for source in sources {
        all.push(Box::new(ours("zstd", source)));
        if arguments.baseline.is_some() {
            let ours = ours("zstd", source);
            all.push(Box::new(Pgstrata {
                baseline: true,
                ..ours
            }));
        }
        if arguments.sealed {
            let ours = ours("zstd", source);
            all.push(Box::new(Pgstrata {
                sealed: true,
                ..ours
            }));
        }
    }
    if let Some(others) = tools.others {
        all.push(Box::new(ours("lz4", "auto")));
        all.push(Box::new(ours("none", "auto")));
        all.extend(others.installed());
    }
    all
}

/// The contenders, then the limits.
fn arms(contenders: &[Box<dyn Contender + '_>], tools: &Tools) -> Vec<Arm> {
    let contenders = contenders
        .iter()
        .map(|contender| (contender.name(), contender.words()));
    let limits = Limit::ALL
        .iter()
        .map(|limit| (limit.name(tools.jobs), limit.words(tools.jobs)));
    contenders
        .chain(limits)
        .map(|(name, description)| Arm {
            name,
            description,
            environment: None,
        })
        .collect()
}

/// Of every change source of ours, against what the machine can do.
fn claims(arms: &[Arm]) -> Vec<Claim> {
    let limit = |act: &str| {
        let name = table::ACTS.iter().find(|known| known.key == act)?.limit()?;
        arms.iter().position(|arm| arm.name.starts_with(name))
    };
    let bounds = [(table::FULL, 1.11), (table::RESTORE, 1.0)];
    let bounds = bounds.map(|(act, most)| Some((act, most, limit(act)?)));
    let ours = |arm: &Arm| arm.name.starts_with("pgstrata zstd ");
    let ours = (0..arms.len()).filter(|&arm| ours(&arms[arm]));
    ours.flat_map(|arm| {
        let known = bounds.iter().flatten();
        known.map(move |&(act, most, limit)| Claim::at_most(act, arm, most).against(limit))
    })
    .collect()
}

/// What would be done.
fn describe(workload: Workload, arms: &[Arm], blocks: usize) -> String {
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    format!(
        "initdb; load {}\n\
         # {blocks} times, in every step in random order:\n\
         # a full backup of every tool; {} times a change and an incremental backup; a restore, opened and compared\n\
         # {}\n\
         # with a chain, a restore of one full backup of the same state too\n\
         {}\n",
        workload.words(),
        workload.increments(),
        workload.change_words(),
        names.join("\n")
    )
}
