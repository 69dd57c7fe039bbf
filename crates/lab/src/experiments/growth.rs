//! What grows with the cluster when what changes does not.
//!
//! For each size a table is loaded and backed up; a fixed number of its pages is
//! changed before each increment, of which every change source takes one; the
//! chain is planned and restored.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::extension::Extension;
use super::shared::{Preset, Shared};
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::{ToolArguments, Tools};
use crate::contenders::contender::Arena;
use crate::contenders::pgstrata::{AT_ONCE, CLUSTER};
use crate::format::{self, MISSING, Unit};
use crate::interrupt;
use crate::measure::cost::{self, Cost};
use crate::measure::result::{Arm, Claim, Experiment, FOREIGN, Metric, Table};
use crate::measure::session;
use crate::measure::stat::verdict::Better;
use crate::number::real_u64;
use crate::report::output::print;

/// Arguments of `bench growth`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper is 1, 4 and 16 GB, 64 MB of each changed; small 256 MB, 1 GB and 4 GB; tiny 16 and 32 MB, 2 MB changed
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// sizes of the table in MB, the base first
    #[arg(long, value_delimiter = ',')]
    mb: Vec<u64>,
    /// MB of pages that are changed before each increment
    #[arg(long)]
    changed_mb: Option<u64>,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    /// sources of the extension; by default those of this checkout, else what is installed
    #[arg(long, value_name = "DIR")]
    extension: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

/// What is measured of each size, in the order of the table: key, head, what of a larger unit is shown.
const FIGURES: [(&str, &str, Unit); 9] = [
    ("full", "full", Unit::Seconds),
    ("tracker", "tracker", Unit::Seconds),
    ("summary", "summary", Unit::Seconds),
    ("lsn", "lsn", Unit::Seconds),
    ("index_full", "index full", Unit::Bytes),
    ("index_increment", "index incr", Unit::Bytes),
    ("plan", "plan", Unit::Seconds),
    ("restore", "restore", Unit::Seconds),
    ("memory", "memory", Unit::Bytes),
];

/// Rows in a page: 7 of about 1000 bytes, and room for one more version.
const ROWS: u64 = 7;

/// Pages in so many MB.
fn pages(mb: u64) -> u64 {
    mb * (1 << 20) / 8192
}

/// `bench growth`.
///
/// # Errors
/// Fails when a server or the program does.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let (sizes, changed_mb, blocks) = match arguments.preset {
        Preset::Tiny => (vec![16, 32], 2, 1),
        Preset::Small => (vec![256, 1024, 4096], 64, 6),
        Preset::Paper | Preset::Large => (vec![1024, 4096, 16384], 64, 3),
    };
    let sizes = match &arguments.mb[..] {
        [] => sizes,
        given => given.to_vec(),
    };
    let changed_mb = arguments.changed_mb.unwrap_or(changed_mb);
    let blocks = arguments.blocks.unwrap_or(blocks);
    let workload = format!(
        "a table of {ROWS} rows a page, {changed_mb} MB of pages changed before each increment"
    );
    if arguments.shared.dry_run {
        print(&format!(
            "# {workload}\n# {blocks} times for each of {sizes:?} MB, in random order: load, a full backup, an increment by each \
             change source, restore --dry-run, restore\n"
        ))?;
        return Ok(0);
    }
    let sketch = sketch(workload, &sizes, blocks);
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    stage.experiment.plan.sweep = Some(sizes.iter().map(|mb| real_u64(*mb)).collect());
    let outcome = (|| {
        let extension = Extension::find(&tools.programs, arguments.extension.as_deref())?;
        for (block, order) in stage.orders().into_iter().enumerate() {
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::check()?;
                let growth = Growth::load(&tools, &extension, sizes[arm])?;
                if stage.experiment.arms[arm].environment.is_none() {
                    let environment = strata::environment(&growth.arena)?;
                    stage.experiment.arms[arm].environment = Some(environment);
                }
                let values = growth.measure(pages(changed_mb))?;
                let full = format::value(values["full"], Unit::Seconds);
                let restore = format::value(values["restore"], Unit::Seconds);
                stage.progress((block, arm), &format!("full {full}, restore {restore}"));
                let run = stage.run((block, position, arm));
                run.seconds = values["full"];
                run.values = values;
                stage.save()?;
            }
        }
        Ok(())
    })();
    stage.close(outcome, describe)
}

/// The sizes, the smallest first.
fn sketch(workload: String, sizes: &[u64], blocks: usize) -> Sketch {
    Sketch {
        kind: "growth",
        title: "What grows with the cluster".to_owned(),
        workload,
        arms: sizes
            .iter()
            .map(|mb| Arm {
                name: format!("{mb} MB"),
                description: format!("a table of {mb} MB"),
                environment: None,
            })
            .collect(),
        metrics: FIGURES
            .iter()
            .map(|(key, head, unit)| Metric::new(key, head, *unit, Better::Lower))
            .collect(),
        blocks,
        state: "fresh",
        // Sixteen times the size, from preset small on.
        hypothesis: Some(Hypothesis::new(
            "an incremental backup by the tracker takes at most twice as long when the cluster is much larger and the change is the same",
            [Claim::at_most(
                "tracker",
                sizes.len().saturating_sub(1),
                2.0,
            )],
        )),
    }
}

/// One size.
struct Growth {
    arena: Arena,
    repository: PathBuf,
    pages: u64,
}

impl Growth {
    fn load(tools: &Tools, extension: &Extension, mb: u64) -> Result<Self> {
        let server = tools
            .server(Some(extension))
            .conf("max_wal_size", "1GB")
            .conf("autovacuum", "off");
        let arena = tools.arena(server.start()?)?;
        let mut client = session::connect(&arena.cluster.conninfo("postgres"))?;
        session::run(&mut client, &extension.sql())?;
        let rows = pages(mb) * ROWS;
        for statement in [
            "CREATE TABLE load (id bigint, n int, text text) WITH (fillfactor = 88)",
            format!("INSERT INTO load SELECT i, 0, repeat(md5(i::text), 30) FROM generate_series(1, {rows}) i").as_str(),
            "VACUUM (FREEZE) load",
            "CHECKPOINT",
        ] {
            session::run(&mut client, statement)?;
        }
        Ok(Self {
            repository: arena.fresh_dir("repository")?,
            arena,
            pages: pages(mb),
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<Cost> {
        interrupt::check()?;
        let mut command = self
            .arena
            .cluster
            .command_as_server_user(&self.arena.pgstrata);
        let repository = format!("file://{}", self.repository.display());
        let jobs = self.arena.jobs.to_string();
        command.args(["--repo", &repository, "--cluster", CLUSTER]);
        command.args(["--no-progress", "--jobs", &jobs]);
        let measured = self.arena.measured(command.args(arguments));
        measured.map(|(cost, _)| cost)
    }

    fn backup(&self, arguments: &[&str]) -> Result<Cost> {
        let pgdata = self.arena.cluster.pgdata().display().to_string();
        let backup = ["backup", "--pgdata", &pgdata, "--type"];
        self.run(&[&backup, arguments, &AT_ONCE].concat())
    }

    fn increment(&self, source: &str, changed_pages: u64) -> Result<Cost> {
        let every = (self.pages / changed_pages).max(1) * ROWS;
        let change = format!("UPDATE load SET n = n + 1 WHERE id % {every} = 0");
        self.arena.cluster.sql("postgres", &change)?;
        // The pages are written before, so that the backup's own checkpoint is short.
        self.arena.cluster.sql("postgres", "CHECKPOINT")?;
        let mut options = vec!["incr", "--change-source", source];
        if source == "tracker" {
            options.push("--require-tracker");
        }
        self.backup(&options)
    }

    fn measure(&self, changed_pages: u64) -> Result<BTreeMap<String, f64>> {
        let pgdata = self.arena.cluster.pgdata().display().to_string();
        self.run(&["init", "--pgdata", &pgdata])?;
        let mut costs = vec![("full", self.backup(&["full"])?)];
        let mut indexes = vec![self.index_bytes()?];
        for source in strata::sources(self.arena.cluster.major()) {
            if *source != "digest" {
                costs.push((source, self.increment(source, changed_pages)?));
                indexes.push(self.index_bytes()?);
            }
        }
        let target = self.arena.work().join("restored").display().to_string();
        let restore = [
            "restore",
            "--target-type",
            "immediate",
            "--target-dir",
            &target,
        ];
        costs.push(("plan", self.run(&[&restore[..], &["--dry-run"]].concat())?));
        cost::claim_memory(&self.arena.cluster)?;
        costs.push(("restore", self.run(&restore)?));
        let peak = costs.iter().map(|(_, cost)| cost.peak_bytes).max();
        let foreign = costs.iter().map(|(_, cost)| cost.foreign_share);
        let foreign = foreign.fold(0.0, f64::max);
        let mut values: BTreeMap<String, f64> = costs
            .iter()
            .map(|(name, cost)| ((*name).to_owned(), cost.wall_seconds))
            .collect();
        for (name, bytes) in [
            ("index_full", indexes[0]),
            ("index_increment", indexes[1] - indexes[0]),
            ("memory", peak.unwrap_or(0)),
        ] {
            values.insert(name.to_owned(), real_u64(bytes));
        }
        values.insert(FOREIGN.to_owned(), foreign);
        Ok(values)
    }

    /// Bytes of all index parts in the repository.
    fn index_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for layer in entries(&self.repository.join(CLUSTER).join("layer"))? {
            for object in entries(&layer)? {
                let name = object.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with("index-") {
                    bytes += fs::metadata(&object)?.len();
                }
            }
        }
        Ok(bytes)
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let act = || format!("could not read \"{}\"", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(act)? {
        paths.push(entry.with_context(act)?.path());
    }
    Ok(paths)
}

fn describe(experiment: &mut Experiment) {
    let cell = |arm: usize, (key, _, unit): &(&str, &str, Unit)| {
        let Some(value) = experiment.middle(key, arm) else {
            return MISSING.to_owned();
        };
        match (unit, *key) {
            (Unit::Seconds, _) => format!("{value:.2}"),
            (_, "memory") => format!("{:.0}", value / 1e6),
            _ => format!("{:.0}", value / 1e3),
        }
    };
    let row = |arm: usize| {
        let mut cells = vec![experiment.arms[arm].name.trim_end_matches(" MB").to_owned()];
        cells.extend(FIGURES.iter().map(|figure| cell(arm, figure)));
        cells
    };
    let table = Table {
        title: format!("Medians of {} rounds", experiment.plan.blocks),
        head: std::iter::once("size MB")
            .chain(FIGURES.iter().map(|(_, head, _)| *head))
            .map(str::to_owned)
            .collect(),
        rows: (0..experiment.arms.len()).map(row).collect(),
        note: Some(
            "Seconds, indexes in kB, memory in MB: the most that any of the commands took."
                .to_owned(),
        ),
    };
    experiment.tables = vec![table];
}
