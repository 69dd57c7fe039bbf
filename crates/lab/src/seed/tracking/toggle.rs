//! The tracker switched on and off inside one running server.
//!
//! One load runs from beginning to end; a private build of the extension looks
//! away in every other slice, in random order within each pair. Nothing else
//! changes between the slices of a pair: neither data, caches nor processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postgres::Client;

use super::Arguments;
use crate::arm::ArmSpec;
use crate::commands::measure::comparison;
use crate::commands::output::{print, tell};
use crate::environment;
use crate::format::Unit;
use crate::number::{real, real_u64};
use crate::pgbench::run::Bench;
use crate::result::{Arm, Experiment, Metric, Run, Table, epoch};
use crate::seed::Preset;
use crate::seed::extension::Extension;
use crate::seed::stage::{Sketch, Stage};
use crate::server::{Place, Programs, Template};
use crate::stat::verdict::Better;
use crate::{interrupt, session, workload};

/// Length of a slice: long against a transaction, short against drift.
const SLICE: Duration = Duration::from_millis(1000);
/// Transactions already under way when the switch turns are left out.
const EDGE: f64 = 0.05;
/// Size of the map, MB.
const MAP: u64 = 256;

/// A slice of time in which the tracker was on or off.
#[derive(Debug, Clone, Copy)]
struct Slice {
    block: usize,
    position: usize,
    arm: usize,
    from: f64,
    to: f64,
}

pub(super) fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let programs = Programs::find(arguments.bindir.as_deref())?;
    let pairs = arguments.blocks.unwrap_or(match arguments.preset {
        Preset::Tiny => 12,
        Preset::Small => 60,
        Preset::Paper => 300,
    });
    let load = arguments.load();
    let plan = comparison(load.clone(), &arguments.shared, words)?;
    if arguments.shared.dry_run {
        return dry_run(arguments, &programs, pairs);
    }
    let extension = Extension::find(&programs, arguments.extension.as_deref(), true)?;
    let arm = |name: &str, what: &str| Arm {
        name: name.to_owned(),
        description: what.to_owned(),
        environment: None,
    };
    let sketch = Sketch {
        kind: "tracking-toggle",
        title: "What tracking changed pages costs, inside one server".to_owned(),
        workload: format!("{}; slices of {} s", load.describe(), SLICE.as_secs_f64()),
        arms: vec![
            arm("off", "the tracker looks away"),
            arm(
                "on",
                &format!("the tracker marks pages in a map of {MAP} MB"),
            ),
        ],
        metrics: vec![Metric::new("tps", "tps", Unit::PerSecond, Better::Higher)],
        blocks: pairs,
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    stage.experiment.plan.state = "reuse".to_owned();
    stage.experiment.plan.seconds = Some(SLICE.as_secs_f64());
    let outcome = all(&mut stage, &extension, &programs, &plan);
    stage.close(outcome, describe)
}

fn dry_run(arguments: &Arguments, programs: &Programs, pairs: usize) -> Result<u8> {
    let load = arguments.load();
    print(&format!(
        "make -C COPY-OF-EXTENSION PG_CONFIG={0}/pg_config MEASURE=1\n{0}/initdb\n{0}/pgbench --initialize --quiet --scale={1}\n\
         {0}/pgbench {2} --log   # in the background, to the end\n# {pairs} pairs, in random order within each:\n\
         SELECT pgstrata.bypass(true);    -- {3} s\nSELECT pgstrata.bypass(false);   -- {3} s\n",
        programs.bindir.display(),
        load.scale,
        load.arguments(&[], None).join(" "),
        SLICE.as_secs_f64()
    ))?;
    Ok(0)
}

fn all(
    stage: &mut Stage,
    extension: &Extension,
    programs: &Programs,
    plan: &crate::ab::Comparison,
) -> Result<()> {
    let spec = ArmSpec {
        name: "server".to_owned(),
        bindir: Some(programs.bindir.clone()),
        settings: extension.settings(MAP),
        ..ArmSpec::default()
    };
    tell(&format!("loading scale {}", plan.options.scale));
    let template = Template::create(&spec, |_, dsn| {
        Bench::initialize(&plan.pgbench, dsn, plan.options.scale)?;
        session::run(&mut session::connect(dsn)?, &extension.sql())
    })?;
    let mut place = Place::Own {
        template: template.into(),
        copy: "run".to_owned(),
        data: None,
        running: None,
    };
    let dsn = place.ready(&spec, true)?;
    let mut client = session::connect(&dsn)?;
    let tracking = session::text(
        &mut client,
        "SELECT concat_ws(': ', tracking, reason) FROM pgstrata.state()",
    )?;
    ensure!(
        tracking.starts_with('t'),
        "the tracker does not track: {tracking}"
    );
    let environment = environment::of_server(&mut client, place.data());
    stage.experiment.arms[0].environment = Some(environment);
    let mut pgbench = start(stage, plan, &dsn)?;
    let mut slices = Vec::new();
    let outcome = interrupt::sleep(Duration::from_secs(plan.options.warmup.max(1).into()))
        .and_then(|()| alternate(stage, &mut client, &mut pgbench, &mut slices));
    // The load would run for hours; its log is all that is wanted.
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&pgbench),
        rustix::process::Signal::INT,
    );
    let _ = pgbench.wait();
    // Whole slices count even if the experiment was cut short.
    let counts = counts(&stage.out, &slices)?;
    for (slice, count) in slices.iter().zip(counts) {
        let seconds = slice.to - slice.from - EDGE;
        stage.experiment.runs.push(Run {
            block: slice.block,
            position: slice.position,
            arm: slice.arm,
            started: slice.from,
            seconds,
            values: BTreeMap::from([("tps".to_owned(), real_u64(count) / seconds)]),
            ..Run::default()
        });
    }
    outcome.and_then(|()| place.stop())
}

fn start(stage: &Stage, plan: &crate::ab::Comparison, dsn: &str) -> Result<Child> {
    let scripts = plan
        .options
        .workload
        .iter()
        .map(|name| workload::resolve(name, &stage.out))
        .collect::<Result<Vec<_>>>()?;
    // Longer than all slices: it is stopped, not waited for.
    let seconds = u32::try_from(stage.experiment.plan.blocks * 4 + 600).unwrap_or(u32::MAX);
    let errors = fs::File::create(stage.out.join("pgbench.err"))
        .context("could not create \"pgbench.err\"")?;
    Command::new(&plan.pgbench)
        .args(plan.options.arguments(&scripts, Some(seconds)))
        .arg("--log")
        .arg(format!("--log-prefix={}", stage.out.join("log").display()))
        .arg(dsn)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .with_context(|| format!("could not start \"{}\"", plan.pgbench.display()))
}

fn alternate(
    stage: &Stage,
    client: &mut Client,
    pgbench: &mut Child,
    done: &mut Vec<Slice>,
) -> Result<()> {
    for (block, order) in stage.orders().into_iter().enumerate() {
        for (position, arm) in order.into_iter().enumerate() {
            session::run(client, &format!("SELECT pgstrata.bypass({})", arm == 0))?;
            let from = epoch();
            interrupt::sleep(SLICE)?;
            done.push(Slice {
                block,
                position,
                arm,
                from,
                to: epoch(),
            });
        }
        if let Some(status) = pgbench.try_wait().context("could not look at pgbench")? {
            anyhow::bail!("pgbench ended early with {status}: see pgbench.err");
        }
        if block % 10 == 9 {
            tell(&format!(
                "{} of {} pairs",
                block + 1,
                stage.experiment.plan.blocks
            ));
        }
    }
    Ok(())
}

/// Transactions that ended within each slice, its beginning left out.
fn counts(out: &Path, slices: &[Slice]) -> Result<Vec<u64>> {
    let mut counts = vec![0; slices.len()];
    for entry in fs::read_dir(out)
        .with_context(|| format!("could not list \"{}\"", out.display()))?
        .flatten()
    {
        if !entry.file_name().to_string_lossy().starts_with("log.") {
            continue;
        }
        let text = fs::read_to_string(entry.path())
            .with_context(|| format!("could not read \"{}\"", entry.path().display()))?;
        for line in text.lines() {
            let Some(at) = ended(line) else { continue };
            let after = slices.partition_point(|slice| slice.from + EDGE <= at);
            let Some(index) = after.checked_sub(1) else {
                continue;
            };
            if at < slices[index].to {
                counts[index] += 1;
            }
        }
        fs::remove_file(entry.path())
            .with_context(|| format!("could not remove \"{}\"", entry.path().display()))?;
    }
    Ok(counts)
}

/// When a transaction ended; a line cut short when pgbench was stopped has no end.
fn ended(line: &str) -> Option<f64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let seconds: f64 = fields.get(4)?.parse().ok()?;
    let micros: f64 = fields.get(5)?.parse().ok()?;
    (fields.len() == 6).then_some(seconds + micros / 1e6)
}

fn describe(experiment: &mut Experiment) {
    let pairs = experiment.complete_blocks().len();
    experiment.tables = vec![Table {
        title: "What was switched".to_owned(),
        head: ["pairs of slices", "seconds per slice", "left out at each turn"].map(str::to_owned).into(),
        rows: vec![vec![
            format!("{}", real(pairs)),
            format!("{}", SLICE.as_secs_f64()),
            format!("{EDGE} s"),
        ]],
        note: Some("One server, one load from beginning to end; in half of the slices the tracker looks away.".to_owned()),
    }];
}

#[cfg(test)]
mod tests {
    use super::{Slice, counts};

    #[test]
    fn transactions_belong_to_the_slice_they_end_in() {
        let directory = tempfile::tempdir().unwrap();
        let log = "0 1 500 0 100 40000\n0 2 500 0 100 60000\n1 1 500 0 100 999999\n1 2 500 0 101 80000\n1 3 500 0 10";
        std::fs::write(directory.path().join("log.1"), log).unwrap();
        let slice = |from: f64, to: f64| Slice {
            block: 0,
            position: 0,
            arm: 0,
            from,
            to,
        };
        let slices = [slice(100.0, 101.0), slice(101.001, 102.0)];
        assert_eq!(counts(directory.path(), &slices).unwrap(), [2, 1]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
