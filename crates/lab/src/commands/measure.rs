//! `run` and `ab`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::experiments::shared::{Shared, Usage, comparison, execute};
use crate::measure::ab::{Comparison, State, metrics};
use crate::measure::arm::{self, ArmSpec};
use crate::measure::expectation::Expectation;
use crate::measure::pgbench::options::Options;
use crate::measure::stat::plan::FEWEST_BLOCKS;
use crate::number::{real, whole};
use crate::quantity;
use crate::report::output::tell;

/// Seconds a run costs beside its load: copying, starting, settling, stopping.
const RUN_OVERHEAD: f64 = 4.0;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// the server: an arm, `name:dsn=…` for one that somebody else runs
    #[arg(long, default_value = "server")]
    arm: String,
    /// runs
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// state before each run; reuse for reading loads and servers of others, else restore
    #[arg(long, value_enum)]
    state: Option<State>,
    #[command(flatten)]
    load: Options,
    #[command(flatten)]
    shared: Shared,
}

/// Arguments of `ab`.
#[derive(Debug, Args)]
pub struct AbArguments {
    /// the base: NAME[:KEY=VALUE,…] with bindir, pgdata, initdb, guc.X, reload.X, env.X, setup, dsn, and load.client,
    /// load.protocol or load.rate where its load differs; or a TOML file
    #[arg(long, default_value = "base")]
    base: String,
    /// what is compared with it; several give several verdicts
    #[arg(long)]
    arm: Vec<String>,
    /// the base at several values of one setting, or of client, protocol or rate of its load; the first is what the
    /// others are compared with
    #[arg(long, value_name = "NAME=V1,V2,…", conflicts_with = "arm")]
    sweep: Option<String>,
    /// blocks: each holds every arm once
    #[arg(long)]
    blocks: Option<usize>,
    /// as many blocks as fit into this time, such as 20m
    #[arg(long, value_parser = quantity::duration)]
    budget: Option<Duration>,
    /// state before each run; reuse for reading loads, else restore
    #[arg(long, value_enum)]
    state: Option<State>,
    /// run arms one after another: drift then looks like an effect, and the report says so
    #[arg(long)]
    sequential: bool,
    /// what must hold of every run, such as "pg_stat_io.bulkwrite.writes > 0"
    #[arg(long, value_name = "NAME OP NUMBER")]
    expect: Vec<String>,
    /// add the base a second time: its ratio is the noise floor
    #[arg(long)]
    aa: bool,
    #[command(flatten)]
    load: Options,
    #[command(flatten)]
    shared: Shared,
}

/// `run`.
///
/// # Errors
/// Fails when a run does.
pub fn run(arguments: RunArguments, words: &[String]) -> Result<u8> {
    let arm = ArmSpec::parse(&arguments.arm).map_err(|e| Usage(format!("{e:#}")))?;
    // One arm alone has no ratio that could be claimed.
    let loads = std::slice::from_ref(&arguments.load);
    arguments.shared.claims(&metrics(loads), 1)?;
    let plan = Comparison {
        kind: "run".to_owned(),
        title: format!("{} on {}", arguments.load.workload.join(" + "), arm.name),
        state: state(arguments.state, &arguments.load, std::slice::from_ref(&arm)),
        arms: vec![arm],
        blocks: arguments.repeat,
        ..comparison(arguments.load, &arguments.shared, words)?
    };
    execute(&plan, &arguments.shared)
}

/// `ab`.
///
/// # Errors
/// Fails when a run does.
pub fn ab(arguments: AbArguments, words: &[String]) -> Result<u8> {
    let usage = |e: anyhow::Error| Usage(format!("{e:#}"));
    let base = ArmSpec::parse(&arguments.base).map_err(usage)?;
    let (arms, sweep) = match &arguments.sweep {
        Some(text) => arm::sweep(&base, text).map_err(usage)?,
        None => {
            let mut arms = vec![base];
            for text in &arguments.arm {
                arms.push(ArmSpec::parse(text).map_err(usage)?);
            }
            (arms, None)
        }
    };
    check_arms(&arms, arguments.aa)?;
    let expectations = arguments
        .expect
        .iter()
        .map(|text| Expectation::parse(text))
        .collect::<Result<Vec<_>>>()
        .map_err(usage)?;
    let names: Vec<&str> = arms.iter().skip(1).map(|a| a.name.as_str()).collect();
    let base = comparison(arguments.load.clone(), &arguments.shared, words)?;
    let arm_count = arms.len() + usize::from(arguments.aa);
    let plan = Comparison {
        kind: "ab".to_owned(),
        title: if names.is_empty() {
            format!("{} against itself", arms[0].name)
        } else {
            format!("{} against {}", names.join(", "), arms[0].name)
        },
        state: state(arguments.state, &arguments.load, &arms),
        blocks: blocks(&arguments, arm_count)?,
        budget: arguments.budget,
        interleaved: !arguments.sequential,
        same_again: arguments.aa,
        claims: arguments
            .shared
            .claims(&metrics(std::slice::from_ref(&arguments.load)), arms.len())?,
        expectations,
        arms,
        sweep,
        ..base
    };
    execute(&plan, &arguments.shared)
}

fn check_arms(arms: &[ArmSpec], same_again: bool) -> Result<()> {
    if arms.len() < 2 && !same_again {
        bail!(Usage(
            "could not compare: give --arm, --sweep, or --aa".to_owned()
        ));
    }
    for (index, arm) in arms.iter().enumerate() {
        if arms[..index].iter().any(|other| other.name == arm.name) {
            bail!(Usage(format!(
                "could not compare: two arms are named \"{}\"",
                arm.name
            )));
        }
    }
    Ok(())
}

fn blocks(arguments: &AbArguments, arms: usize) -> Result<usize> {
    let Some(budget) = arguments.budget else {
        return Ok(arguments.blocks.unwrap_or(10));
    };
    let run = f64::from(arguments.load.time + arguments.load.warmup) + RUN_OVERHEAD;
    let fitting = whole(budget.as_secs_f64() / (run * real(arms)));
    let blocks = arguments
        .blocks
        .map_or(fitting, |blocks| blocks.min(fitting));
    if blocks < FEWEST_BLOCKS {
        tell(&format!(
            "only {blocks} blocks fit into the budget; a verdict needs at least {FEWEST_BLOCKS}: shorten --time or raise --budget"
        ));
    }
    if blocks == 0 {
        bail!(Usage(
            "could not plan: not one block fits into the budget".to_owned()
        ));
    }
    Ok(blocks)
}

fn state(given: Option<State>, load: &Options, arms: &[ArmSpec]) -> State {
    given.unwrap_or_else(|| {
        if load.reads_only() || arms.iter().any(|arm| arm.dsn.is_some()) {
            State::Reuse
        } else {
            State::Restore
        }
    })
}
