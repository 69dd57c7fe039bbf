//! An incremental backup against a full one of the same state.
//!
//! Two tables; a fifth of one is updated; then full and incremental backups, in
//! random order, each from the same repository and with the same warm caches.
//! Beside what was stored stands what had really changed, counted page by page:
//! whether tables were vacuumed before, and whether pages have checksums, decides
//! more than any tool does, and the published table does not say.

mod scene;
mod table;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::scene::{Scene, Variant};
use super::shared::Preset;
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::{ToolArguments, Tools};
use crate::contenders::contender::Contender;
use crate::contenders::pgstrata::Storage;
use crate::experiments::shared::Shared;
use crate::format::Unit;
use crate::interrupt;
use crate::measure::environment::Environment;
use crate::measure::result::{Arm, Claim, Metric};
use crate::measure::stat::verdict::Better;
use crate::report::output::{print, tell};

/// Whether pages have checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Checksums {
    On,
    Off,
    Both,
}

/// Arguments of `seed backup-speedup`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper 20 M rows per table, small 1 M, tiny 100 000, large 125 M (16 GB) with an empty page cache before each backup
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// rows of each table, 52 bytes each
    #[arg(long)]
    rows: Option<u64>,
    /// measured backups of each kind
    #[arg(long)]
    blocks: Option<usize>,
    /// only with tables frozen before the first backup
    #[arg(long, conflicts_with = "unvacuumed")]
    vacuumed: bool,
    /// only with tables never vacuumed
    #[arg(long)]
    unvacuumed: bool,
    /// with page checksums, without, or one after the other; tiny and large: on, else both
    #[arg(long, value_enum)]
    checksums: Option<Checksums>,
    /// how changed pages are found; several are compared
    #[arg(long, value_delimiter = ',', default_value = "lsn,digest")]
    change_source: Vec<String>,
    /// sources of the extension, for --change-source tracker
    #[arg(long, value_name = "DIR")]
    extension: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

impl Arguments {
    fn rows(&self) -> u64 {
        self.rows.unwrap_or(match self.preset {
            Preset::Tiny => 100_000,
            Preset::Small => 1_000_000,
            Preset::Paper => 20_000_000,
            Preset::Large => 125_000_000,
        })
    }

    fn blocks(&self) -> usize {
        self.blocks.unwrap_or(match self.preset {
            // With two comparisons, six blocks can prove nothing.
            Preset::Tiny | Preset::Paper | Preset::Large => 7,
            Preset::Small => 10,
        })
    }

    /// The scenes, the one closest to the published experiment first.
    fn variants(&self) -> Vec<Variant> {
        let checksums = self.checksums.unwrap_or(match self.preset {
            Preset::Tiny | Preset::Large => Checksums::On,
            _ => Checksums::Both,
        });
        let checksums: &[bool] = match checksums {
            Checksums::On => &[true],
            Checksums::Off => &[false],
            Checksums::Both => &[true, false],
        };
        let vacuumed: &[bool] = match (self.vacuumed, self.unvacuumed) {
            (true, _) => &[true],
            (_, true) => &[false],
            _ => &[true, false],
        };
        let mut variants = Vec::new();
        for &checksums in checksums {
            for &vacuumed in vacuumed {
                variants.push(Variant {
                    vacuumed,
                    checksums,
                });
            }
        }
        variants
    }
}

/// `seed backup-speedup`.
///
/// # Errors
/// Fails when a server or a tool does, or a restored cluster is not what it should be.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    strata::chosen(&arguments.change_source, &[], tools.programs.major)?;
    let variants = arguments.variants();
    let storage = Storage::Directory;
    let archives = strata::is_archived(&storage, tools.others);
    if arguments.shared.dry_run {
        print(&scene::describe(
            &variants,
            arguments.rows(),
            (&arguments.change_source, archives),
            arguments.blocks(),
        ))?;
        return Ok(0);
    }
    let contenders = strata::contenders(&arguments.change_source, &storage, tools.others);
    let names = strata::arms(&contenders);
    let sketch = Sketch {
        kind: "backup-speedup",
        title: "Incremental against full backup".to_owned(),
        workload: format!(
            "two tables of {} rows, a fifth of one updated",
            arguments.rows()
        ),
        arms: names
            .iter()
            .map(|(name, description)| Arm {
                name: name.clone(),
                description: description.clone(),
                environment: None,
            })
            .collect(),
        metrics: metrics(&variants),
        blocks: arguments.blocks(),
        state: "restore",
        hypothesis: Some(Hypothesis::new(
            "an incremental backup of a vacuumed cluster takes no greater share of a full one's time than was published",
            claims(&variants),
        )),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    stage.experiment.warnings.extend(tools.left_out());
    let mut servers = Vec::new();
    let outcome = scenes(&mut stage, arguments, (&tools, &contenders), &mut servers);
    stage.close(outcome, |experiment| {
        table::describe(experiment, &variants);
        experiment.tables.extend(table::servers(&servers));
    })
}

/// Of the first increment after our full backup.
fn claims(variants: &[Variant]) -> impl Iterator<Item = Claim> {
    let vacuumed = variants.iter().filter(|variant| variant.vacuumed);
    vacuumed.map(|variant| Claim::at_most(&format!("time{}", variant.key()), 1, table::PUBLISHED.0))
}

/// One scene after the other, on clusters of their own; `servers` says how each was found.
fn scenes(
    stage: &mut Stage,
    arguments: &Arguments,
    (tools, contenders): (&Tools, &[Box<dyn Contender + '_>]),
    servers: &mut Vec<(String, Environment)>,
) -> Result<()> {
    let given = arguments.extension.as_deref();
    let extension = strata::tracker(&arguments.change_source, &tools.programs, given)?;
    for variant in arguments.variants() {
        interrupt::check()?;
        tell(&variant.words());
        let scene = Scene::set(
            tools,
            variant,
            arguments.rows(),
            extension.as_ref(),
            contenders,
        )?;
        servers.push((variant.words(), scene.server(stage)?));
        scene.measure(stage, arguments.preset == Preset::Large)?;
    }
    Ok(())
}

fn metrics(variants: &[Variant]) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for variant in variants {
        let (key, words) = (variant.key(), variant.words());
        for (name, title, unit) in [
            ("time", "time", Unit::Seconds),
            ("stored", "stored", Unit::Bytes),
            ("cpu", "CPU", Unit::Seconds),
        ] {
            metrics.push(Metric::new(
                &format!("{name}{key}"),
                &format!("{title}, {words}"),
                unit,
                Better::Lower,
            ));
        }
    }
    metrics
}
