//! "Benchmarking PostgreSQL block I/O with SQL": one client, nine statements.
//!
//! Nothing but a connection is needed: no superuser, no pgbench, no file of the
//! server. Tables lie in a schema of the experiment's own, or under a name of
//! its own where the role may not make a schema, and are dropped at the end.
//!
//! Two things differ from the tutorial, and neither changes what is read or
//! written: `seq` is an integer at every size (a fraction made it numeric), and
//! the queries return `max(seq)`, which can be checked, not `max(sourceline)`,
//! which is null for everybody but a superuser.

mod explain;
mod ground;
mod table;

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use postgres::Client;

use self::ground::Ground;
use super::shared::Preset;
use super::stage::{Hypothesis, Sketch, Stage};
use crate::experiments::shared::{Shared, Usage};
use crate::format;
use crate::format::Unit;
use crate::interrupt;
use crate::measure::arm::ArmSpec;
use crate::measure::environment;
use crate::measure::result::{Arm, Metric, Run, epoch};
use crate::measure::sample::Window;
use crate::measure::session;
use crate::measure::stat::verdict::Better;
use crate::number::{real_u64, whole_u64};
use crate::report::output::{print, tell};

/// Copies of `pg_settings` that the tutorial calls a gigabyte.
const COPIES_PER_GIGABYTE: f64 = 12_500.0;
/// Below this the published `LIMIT` rounds to no row.
const LEAST_GIGABYTES: f64 = 0.004;

/// The order of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Queries first without an index, as the tutorial prints it
    Tutorial,
    /// The index first, as the author's scripts do; the published query times are of this order
    Cbc,
}

/// Arguments of `seed block-io`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// connection string of a server; several are compared, the first is the base; without one
    /// the lab makes a cluster of its own
    #[arg(long)]
    dsn: Vec<String>,
    /// an arm, as in `ab`: NAME[:KEY=VALUE,…]
    #[arg(long)]
    arm: Vec<String>,
    /// how large: tiny 0.01, small and paper 0.1 gigabytes, with 3, 8 and 10 runs
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// gigabytes, as the tutorial counts them (12 500 copies of pg_settings each), or 2xRAM
    #[arg(long, value_parser = gigabytes)]
    size: Option<f64>,
    /// runs per arm
    #[arg(long)]
    repeat: Option<usize>,
    /// order of the steps
    #[arg(long, value_enum, default_value = "tutorial")]
    order: Order,
    /// an existing schema to work in; by default one is made and dropped
    #[arg(long)]
    schema: Option<String>,
    /// leave the last run's table where it is
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    shared: Shared,
}

/// `0.1`, or `2xRAM`.
fn gigabytes(text: &str) -> Result<f64> {
    let number = match text.strip_suffix("xRAM") {
        Some(factor) => {
            let memory = environment::host::capture(std::path::Path::new("/"), None)
                .number("memory.total_kb")
                .ok_or_else(|| anyhow::anyhow!("could not find the size of memory"))?;
            // A gigabyte of the tutorial is 1.07 GB of table.
            factor.parse::<f64>().ok().map(|f| f * memory / 1_048_576.0)
        }
        None => text.parse().ok(),
    };
    match number {
        Some(size) if (LEAST_GIGABYTES..=100_000.0).contains(&size) => Ok(size),
        Some(_) => bail!(
            "could not use size {text}: give at least {LEAST_GIGABYTES} gigabytes, below which the published LIMIT rounds to no row"
        ),
        None => bail!("could not parse size \"{text}\": expected gigabytes, or 2xRAM"),
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Makes or rewrites; its bytes are the table's.
    Statement,
    /// Reads and explains itself; must return this number.
    Query(u64),
}

/// One of the nine.
#[derive(Debug, Clone)]
struct Step {
    name: &'static str,
    title: &'static str,
    sql: String,
    kind: Kind,
}

/// Where the objects of an experiment are.
#[derive(Debug, Clone, Default)]
struct Names {
    table: String,
    index: String,
    source: String,
}

/// The nine steps.
fn steps(names: &Names, size: f64, order: Order) -> Vec<Step> {
    let copies = whole_u64((size * COPIES_PER_GIGABYTE).floor());
    // A whole number says the same of whole numbers.
    let middle = whole_u64((size * COPIES_PER_GIGABYTE / 2.0).ceil());
    let limit = whole_u64((size * 125.0).round()).max(1);
    let Names {
        table,
        index,
        source,
    } = names;
    let statement = |name, title, sql| Step {
        name,
        title,
        sql,
        kind: Kind::Statement,
    };
    let by_name = |name, title| Step {
        name,
        title,
        sql: format!("SELECT max(seq) FROM {table} WHERE name='shared_buffers'"),
        kind: Kind::Query(copies),
    };
    let create = statement(
        "create_table",
        "CREATE TABLE AS",
        format!(
            "CREATE TABLE {table} AS SELECT gs.x AS seq, pgs.* FROM generate_series(0, {copies}, 1) gs(x) LEFT JOIN {source} pgs ON (true)"
        ),
    );
    let vacuum = statement(
        "vacuum",
        "VACUUM FREEZE ANALYZE",
        format!("VACUUM (FREEZE ON, ANALYZE ON) {table}"),
    );
    let queries = [
        by_name("query1", "by name, first"),
        by_name("query2", "by name, again"),
        Step {
            name: "query3",
            title: "first half by seq",
            sql: format!("SELECT max(seq) FROM {table} WHERE seq < {middle} LIMIT {limit}"),
            kind: Kind::Query(middle - 1),
        },
    ];
    let create_index = statement(
        "create_index",
        "CREATE INDEX",
        format!("CREATE INDEX {index} ON {table} (name)"),
    );
    let mut steps = vec![create, vacuum];
    match order {
        Order::Tutorial => {
            steps.extend(queries);
            steps.push(create_index);
        }
        Order::Cbc => {
            steps.push(create_index);
            steps.extend(queries);
        }
    }
    steps.push(statement(
        "cluster",
        "CLUSTER",
        format!("CLUSTER {table} USING {index}"),
    ));
    steps.push(by_name("query4", "clustered, first"));
    steps.push(by_name("query5", "clustered, again"));
    steps
}

fn explained(step: &Step) -> String {
    match step.kind {
        Kind::Statement => step.sql.clone(),
        Kind::Query(_) => format!("EXPLAIN (ANALYZE ON, BUFFERS ON, FORMAT JSON) {}", step.sql),
    }
}

/// `seed block-io`.
///
/// # Errors
/// Fails when a server refuses, or a statement returns something wrong.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let specs = arms(arguments)?;
    let default = match arguments.preset {
        Preset::Tiny => (0.01, 3),
        // With six steps claimed, eight runs are the fewest that prove one of them wrong.
        Preset::Small => (0.1, 8),
        Preset::Paper => (0.1, 10),
        Preset::Large => (16.0, 3),
    };
    let size = arguments.size.unwrap_or(default.0);
    let blocks = arguments.repeat.unwrap_or(default.1);
    if arguments.shared.dry_run {
        return describe(arguments, &specs, size, blocks);
    }
    let mut grounds = Vec::new();
    for spec in &specs {
        grounds.push(Ground::open(spec, arguments.schema.as_deref())?);
    }
    freeze_source(&mut grounds)?;
    let sketch = Sketch {
        kind: "block-io",
        title: "Block I/O with SQL".to_owned(),
        workload: format!(
            "{} copies of pg_settings, one client, order {}",
            whole_u64((size * COPIES_PER_GIGABYTE).floor()) + 1,
            match arguments.order {
                Order::Tutorial => "of the tutorial",
                Order::Cbc => "of the author's scripts",
            }
        ),
        arms: specs
            .iter()
            .map(|spec| Arm {
                name: spec.name.clone(),
                description: spec.describe(),
                environment: None,
            })
            .collect(),
        metrics: metrics(arguments.order),
        blocks,
        state: "fresh",
        hypothesis: Some(Hypothesis::new(
            "no step takes longer than it took on the tutorial's machines",
            table::claims(specs.len(), size, arguments.order),
        )),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    for (ground, arm) in grounds.iter_mut().zip(&mut stage.experiment.arms) {
        arm.environment = Some(ground.environment());
    }
    let outcome = all(&mut stage, &mut grounds, arguments, size);
    let kept = arguments.keep && outcome.is_ok();
    let cleaned = grounds.iter_mut().map(|ground| ground.clean(kept));
    let cleaned: Vec<Result<()>> = cleaned.collect();
    // What was measured is kept, and the first thing that went wrong is what is said at the end.
    let outcome = cleaned.into_iter().fold(outcome, |outcome, cleaned| {
        if let (Err(_), Err(left)) = (&outcome, &cleaned) {
            tell(&format!("could not clean up either: {left:#}"));
        }
        outcome.and(cleaned.context("could not clean up"))
    });
    stage.close(outcome, |experiment| {
        table::describe(experiment, size, arguments.order);
    })
}

fn arms(arguments: &Arguments) -> Result<Vec<ArmSpec>> {
    let mut specs = Vec::new();
    for (index, dsn) in arguments.dsn.iter().enumerate() {
        specs.push(ArmSpec {
            name: if index == 0 {
                "server".to_owned()
            } else {
                format!("server {}", index + 1)
            },
            dsn: Some(dsn.clone()),
            ..ArmSpec::default()
        });
    }
    for text in &arguments.arm {
        specs.push(ArmSpec::parse(text).map_err(|e| Usage(format!("{e:#}")))?);
    }
    if specs.is_empty() {
        specs.push(ArmSpec::parse("own")?);
    }
    for spec in &specs {
        if !spec.reload.is_empty() || !spec.load.is_empty() {
            let what = format!(
                "could not use arm \"{}\": block-io changes no settings of a running server and runs no pgbench, so reload and load cannot be given",
                spec.name
            );
            return Err(Usage(what).into());
        }
    }
    Ok(specs)
}

fn metrics(order: Order) -> Vec<Metric> {
    let names = Names {
        table: String::new(),
        index: String::new(),
        source: String::new(),
    };
    steps(&names, 1.0, order)
        .iter()
        .map(|step| Metric::new(step.name, step.title, Unit::Seconds, Better::Lower))
        .collect()
}

fn describe(arguments: &Arguments, specs: &[ArmSpec], size: f64, blocks: usize) -> Result<u8> {
    let mut text = String::new();
    let schema = arguments.schema.as_deref();
    let names = ground::names(schema, ground::TAG, specs.len() > 1);
    for spec in specs {
        text.push_str(&format!("-- arm {}: {}\n", spec.name, spec.describe()));
        text.push_str(&ground::preparation(schema, ground::TAG).join(";\n"));
        text.push_str(";\n");
    }
    if specs.len() > 1 {
        text.push_str(&format!(
            "-- rows of the first arm's pg_settings go into {} of every arm\n",
            names.source
        ));
    }
    text.push_str(&format!("-- {blocks} times per arm, in random order:\n"));
    for statement in ground::before_run(&names) {
        text.push_str(&format!("{statement};\n"));
    }
    for step in steps(&names, size, arguments.order) {
        text.push_str(&format!("{};\n", explained(&step)));
    }
    if !arguments.keep {
        text.push_str("-- at the end:\n");
        text.push_str(&ground::removal(schema, ground::TAG).join(";\n"));
        text.push_str(";\n");
    }
    print(&text)?;
    Ok(0)
}

/// Servers differ in the rows of `pg_settings`, by version and by role: all
/// arms get those of the first.
fn freeze_source(grounds: &mut [Ground]) -> Result<()> {
    if grounds.len() < 2 {
        return Ok(());
    }
    let Some((first, others)) = grounds.split_first_mut() else {
        return Ok(());
    };
    let rows = first.make_source(None)?;
    for other in others {
        other.make_source(Some(&rows))?;
    }
    Ok(())
}

fn all(stage: &mut Stage, grounds: &mut [Ground], arguments: &Arguments, size: f64) -> Result<()> {
    for ground in grounds.iter_mut() {
        if !ground.io_timing() {
            stage.note("track_io_timing needs superuser: I/O times not shown");
        }
    }
    for (block, order) in stage.orders().into_iter().enumerate() {
        for (position, arm) in order.into_iter().enumerate() {
            interrupt::check()?;
            let mut run = one(&mut grounds[arm], size, arguments.order)?;
            run.block = block;
            run.position = position;
            run.arm = arm;
            let time = format::value(run.values["create_table"], Unit::Seconds);
            let rate = format::value(run.values["create_table_rate"], Unit::BytesPerSecond);
            stage.progress((block, arm), &format!("created in {time}, {rate}"));
            stage.record(run)?;
        }
    }
    Ok(())
}

/// The nine steps once.
fn one(ground: &mut Ground, size: f64, order: Order) -> Result<Run> {
    ground.prepare_run()?;
    let names = ground.names().clone();
    // A server that is not ours cannot be told from others.
    let window = ground.postmaster().map(|pid| Window::open(Some(pid)));
    let client = ground.client();
    let mut run = Run {
        started: epoch(),
        ..Run::default()
    };
    let began = Instant::now();
    for step in steps(&names, size, order) {
        let from = began.elapsed().as_secs_f64();
        let seconds = perform(client, &step, &mut run)?;
        run.values.insert(step.name.to_owned(), seconds);
        run.phases.push(crate::measure::result::Phase {
            name: step.title.to_owned(),
            from,
            to: from + seconds,
        });
        if step.name == "create_table" {
            let bytes = number(
                client,
                &format!("SELECT pg_relation_size('{}')::text", names.table),
            )?;
            run.values.insert("table_bytes".to_owned(), bytes);
        }
        if step.name == "create_index" {
            let query = format!("SELECT pg_indexes_size('{}')::text", names.table);
            let bytes = number(client, &query)?;
            run.values.insert("index_bytes".to_owned(), bytes);
        }
        let moved = run
            .values
            .get(&format!("{}_bytes", step.name))
            .or_else(|| run.values.get("table_bytes"))
            .copied()
            .unwrap_or(0.0);
        run.values
            .insert(format!("{}_rate", step.name), moved / seconds.max(1e-9));
    }
    run.seconds = began.elapsed().as_secs_f64();
    if let Some(window) = window {
        run.note_foreign(window.close().foreign);
    }
    // Times of wrong answers are worth nothing.
    for step in steps(&names, size, order) {
        check(client, &step)?;
    }
    Ok(run)
}

fn check(client: &mut Client, step: &Step) -> Result<()> {
    let Kind::Query(expected) = step.kind else {
        return Ok(());
    };
    let query = step.sql.replacen("max(seq)", "max(seq)::text", 1);
    let answer = session::text(client, &query)?;
    ensure!(
        answer == expected.to_string(),
        "step \"{}\" returned {answer}, expected {expected}",
        step.title
    );
    Ok(())
}

fn number(client: &mut Client, query: &str) -> Result<f64> {
    Ok(session::text(client, query)?.parse()?)
}

/// Runs a step and returns its time at the client.
fn perform(client: &mut Client, step: &Step, run: &mut Run) -> Result<f64> {
    interrupt::check()?;
    let began = Instant::now();
    let Kind::Query(_) = step.kind else {
        if step.name == "create_table" {
            let rows = client
                .execute(&step.sql, &[])
                .map_err(|e| session::in_words(&step.sql, &e))?;
            run.values.insert("rows".to_owned(), real_u64(rows));
        } else {
            session::run(client, &step.sql)?;
        }
        return Ok(began.elapsed().as_secs_f64());
    };
    let text = explain::text(client, &explained(step))?;
    let seconds = began.elapsed().as_secs_f64();
    let found = explain::read(&text)?;
    let mut put = |what: &str, value: f64| {
        run.values.insert(format!("{}_{what}", step.name), value);
    };
    put("execution", found.seconds);
    put("pages_read", found.read);
    put("pages_hit", found.hit);
    put("bytes", (found.read + found.hit) * 8192.0);
    if let Some(io) = found.io_seconds {
        put("io", io);
    }
    run.facts
        .insert(format!("{}_plan", step.name), found.plan.clone());
    Ok(seconds)
}
