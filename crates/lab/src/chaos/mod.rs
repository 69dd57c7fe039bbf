//! Chaos: a server and the program driven at random, and whatever was promised restored and compared.
//!
//! A run is a row of steps. Each draws from the seed what it does (`plan`), does it (`actions`) and keeps the
//! `truth` in step with it. The truth is read from the server, as hashes of all tables at moments that recovery can
//! find again. The `judge` restores what is still owed. A command may fail only for a reason that the step gave it
//! (`explain`); everything else is a finding, and the run ends with what repeats it.
//!
//! A seed repeats the decisions, not the times: a kill after 300 ms meets another instruction each time.

mod actions;
mod chance;
mod contents;
mod disk;
mod explain;
mod hunt;
mod judge;
mod log;
mod plan;
mod program;
mod store;
mod truth;
mod versions;
mod world;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use pgstrata_testbed::cluster::Major;
use serde_json::Value;

use self::actions::Effects;
use self::chance::Chance;
use self::log::{Finding, Log, Step};
use self::plan::Situation;
use self::world::{Origin, Shape, World};
use crate::interrupt;
use crate::report::output::{print, tell};

/// How long a run goes on.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// The step that runs after this time is the last one.
    Time(Duration),
}

/// What a run is told.
#[derive(Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// When it ends.
    pub length: Length,
    /// The server's version.
    pub major: Major,
    /// The program that is tried.
    pub program: PathBuf,
    /// Whether the server has the page tracker.
    pub tracker: bool,
    /// Where the repository is: on an S3 server or not; nothing leaves it to the seed.
    pub is_on_s3: Option<bool>,
    /// Whether the server archives; nothing leaves it to the seed.
    pub archives: Option<bool>,
    /// The directory of the run, which must not exist; nothing for one below the directory for temporary files.
    pub out: Option<PathBuf>,
    /// Whether the directory stays without a finding.
    pub keep: bool,
    /// How many of the moments that are owed are restored at the end; all without a number.
    pub at_the_end: Option<usize>,
    /// What a user types to repeat the run.
    pub repeat: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Whatever was looked at was right.
    Nothing,
    /// The program did something wrong.
    Finding,
}

/// The number of the source of chance that decides about the whole run.
const WHOLE_RUN: u64 = 0;

/// Runs it.
///
/// # Errors
/// When the run itself fails: a server does not start, the disk is full. The directory then stays, too.
pub fn run(plan: &Plan) -> Result<Verdict> {
    let directory = directory(plan)?;
    let mut shape = Shape::of(&mut Chance::of_step(plan.seed, WHOLE_RUN));
    shape.is_on_s3 = plan.is_on_s3.unwrap_or(shape.is_on_s3);
    shape.archives = plan.archives.unwrap_or(shape.archives);
    shape.has_disk &= !shape.is_on_s3;
    shape.has_versions &= shape.is_on_s3;
    print(&format!(
        "seed {} on PostgreSQL {}, {}, in {}",
        plan.seed,
        plan.major,
        shape.words(),
        directory.display()
    ))?;
    let origin = Origin {
        directory: &directory,
        major: plan.major,
        program: &plan.program,
        tracker: plan.tracker,
    };
    let mut log = Log::create(&directory)?;
    let outcome = World::make(&origin, shape).and_then(|mut world| {
        let outcome = steps(plan, &mut world, &mut log);
        let kept = keep_server_logs(&world, &directory);
        if outcome.is_err() {
            world.store.keep(&directory)?;
        }
        outcome.and(kept)
    });
    let verdict = match outcome {
        Ok(()) => Verdict::Nothing,
        Err(error) if error.is::<Finding>() => {
            print(&format!(
                "FINDING with seed {}: {error}\nrepeat:    {}\ndirectory: {}",
                plan.seed,
                plan.repeat,
                directory.display()
            ))?;
            return Ok(Verdict::Finding);
        }
        Err(error) => {
            tell(&format!("the run stays in {}", directory.display()));
            return Err(error);
        }
    };
    print(&format!("nothing found with seed {}", plan.seed))?;
    if !plan.keep {
        world::remove_tree(&directory)?;
    }
    Ok(verdict)
}

fn keep_server_logs(world: &World, directory: &Path) -> Result<()> {
    let other = match &world.sibling {
        Some(sibling) => log::keep_server_log(&sibling.server.log(), directory, "other.log"),
        None => Ok(()),
    };
    log::keep_server_log(&world.server.log(), directory, "server.log").and(other)
}

/// The directory of the run, which the server's user must be able to reach.
fn directory(plan: &Plan) -> Result<PathBuf> {
    let reachable = Permissions::from_mode(0o755);
    let Some(out) = &plan.out else {
        let made = tempfile::Builder::new()
            .prefix(&format!("pgs-chaos-{}-", plan.seed))
            .permissions(reachable)
            .tempdir()
            .context("could not create a directory for the run")?;
        return Ok(made.keep());
    };
    fs::create_dir(out).with_context(|| format!("could not create \"{}\"", out.display()))?;
    fs::set_permissions(out, reachable)?;
    out.canonicalize()
        .with_context(|| format!("could not find \"{}\"", out.display()))
}

/// All steps, and the judgement at the end.
fn steps(plan: &Plan, world: &mut World, log: &mut Log) -> Result<()> {
    let begin = Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        let is_over = match plan.length {
            Length::Steps(count) => number > count,
            Length::Time(time) => begin.elapsed() > time,
        };
        let mut chance = Chance::of_step(plan.seed, number);
        if is_over {
            let count = plan.at_the_end.unwrap_or(usize::MAX);
            let step = Step::new(number, "the end");
            return logged(world, log, step, |world, step| {
                actions::judge_some(world, (count, actions::ALWAYS), &mut chance, step)?;
                judge::verify(world, false, step)?;
                Ok(Effects::default())
            });
        }
        let act = plan::next(&mut chance, situation(number, world));
        let mut step = Step::new(number, act.name());
        if world.sibling.is_some() {
            step.say(format!("on timeline {}", world.truth.current));
        }
        logged(world, log, step, |world, step| {
            actions::take(act, world, &mut chance, step)
        })?;
        interrupt::check()?;
    }
}

fn situation(step: u64, world: &World) -> Situation {
    Situation {
        step,
        layers: world.truth.layers.len(),
        owed: world.truth.promised().len(),
        archives: world.shape.archives,
        has_snapshot: world.snapshot.is_some(),
        has_sibling: world.sibling.is_some(),
        is_sealed: world.shape.is_sealed,
        has_network: world.store.network().is_some(),
        has_disk: world.store.disk().is_some(),
        has_versions: world.shape.has_versions,
        is_stirred: world.is_stirred,
    }
}

/// Takes a step, compares the layers with what is known, and writes the step down, however it ended.
fn logged(
    world: &mut World,
    log: &mut Log,
    mut step: Step,
    act: impl FnOnce(&mut World, &mut Step) -> Result<Effects>,
) -> Result<()> {
    let begin = Instant::now();
    let outcome = act(world, &mut step).and_then(|effects| reconcile(world, &effects, &mut step));
    let finding = outcome
        .as_ref()
        .err()
        .and_then(|error| error.downcast_ref::<Finding>());
    log.write(step, begin.elapsed().as_secs_f64(), finding)?;
    outcome
}

/// What the repository lists must be what the commands said.
fn reconcile(world: &mut World, effects: &Effects, step: &mut Step) -> Result<()> {
    let now = Timestamp::now();
    world.truth.merged.extend(effects.merged.iter().cloned());
    let mut may_go = effects.may_go.clone();
    for culling in &effects.cullings {
        let culled = world.truth.may_go(culling, now);
        step.say(format!("{} may go", culled.len()));
        may_go.extend(culled);
    }
    if step.met_trouble() {
        world.truth.doomed.extend(may_go.iter().cloned());
    }
    let (layers, info) = world.layers(step)?;
    let mut wrong = Vec::new();
    for culling in &effects.cullings {
        wrong.extend(
            world
                .truth
                .states_lost(culling, &effects.may_go, &layers, now),
        );
    }
    wrong.extend(world.truth.reconcile(layers, &may_go, effects.may_come));
    for culling in &effects.cullings {
        world.truth.give_up_wal(culling, &may_go, now);
    }
    if !effects.cullings.is_empty() && !step.met_trouble() {
        // It has completed what others had begun.
        world.truth.doomed.clear();
    }
    if !wrong.is_empty() {
        return log::found(wrong.join("; "));
    }
    let mut alarm = unexplained(world, &info);
    // After a crash PostgreSQL may start its archiver a minute later. What that has still to bring is not lost.
    if world.shape.archives
        && alarm
            .as_ref()
            .is_some_and(|alarm| alarm["kind"] == "wal-hole")
    {
        actions::seal_all(world, step)?;
        let (_, info) = world.layers(step)?;
        alarm = unexplained(world, &info);
    }
    match alarm {
        Some(alarm) => log::found(format!("info raises an alarm: {alarm}")),
        None => Ok(()),
    }
}

/// The first alarm of a loss that nothing explains.
fn unexplained(world: &World, info: &Value) -> Option<Value> {
    let mut alarms = info["alarms"].as_array().into_iter().flatten();
    let alarm = alarms.find(|alarm| alarm["severity"] == "error" && !world.truth.explains(alarm));
    alarm.cloned()
}
