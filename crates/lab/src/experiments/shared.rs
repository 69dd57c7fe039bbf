//! What every measuring command takes, and how a comparison runs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::measure::ab::{self, Comparison, State};
use crate::measure::expectation::Expectation;
use crate::measure::lock;
use crate::measure::pgbench::options::Options;
use crate::measure::programs;
use crate::measure::result::{Claim, Experiment, Metric};
use crate::quantity;
use crate::report::output::{deliver, print, tell};

/// A mistake of the caller: exit code 2, and one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// How large an experiment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Under two minutes: to see that everything works
    Tiny,
    /// Minutes, on any machine; ratios that matter are those of the original
    Small,
    /// As published
    Paper,
    /// 16 GB; backups and restores begin with an empty page cache (root only)
    Large,
}

/// What every measuring command takes.
#[derive(Debug, Clone, Args)]
pub struct Shared {
    /// directory for everything; a new one in the current directory by default
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// decides the order of runs and pgbench's keys; random by default, printed and recorded
    // What TOML can hold.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..1 << 63))]
    pub seed: Option<u64>,
    /// ratios within 1 ± this count as the same
    #[arg(long, default_value = "1%", value_parser = quantity::share)]
    pub min_effect: f64,
    /// what you expect to see, in words
    #[arg(long, value_name = "TEXT")]
    pub hypothesis: Option<String>,
    /// the same in numbers, ratios to the base's: "tps >= 0.97"; again for each metric. Without it nothing can be judged
    #[arg(long, value_name = "BOUND", requires = "hypothesis")]
    pub claim: Vec<String>,
    /// longest wait for a quiet machine before each run
    #[arg(long, default_value = "10s", value_parser = quantity::duration)]
    pub settle: Duration,
    /// drop blocks in which others used more of the processor than this
    #[arg(long, default_value = "5%", value_parser = quantity::share)]
    pub foreign_cpu: f64,
    /// let a warning stand that would make the comparison invalid; recorded
    #[arg(long, value_name = "ID")]
    pub allow: Vec<String>,
    /// do not watch resources while measuring
    #[arg(long)]
    pub no_samplers: bool,
    /// the pgbench to use for all arms
    #[arg(long, value_name = "PATH")]
    pub pgbench: Option<PathBuf>,
    /// print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// print ASCII only
    #[arg(long)]
    pub ascii: bool,
}

impl Shared {
    /// The seed: given, or from the clock.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            crate::number::whole_u64(crate::measure::result::epoch() * 1000.0) % 1_000_000
        })
    }

    /// What the user claims of every arm but the base.
    ///
    /// # Errors
    /// When it is no bound, or of something that is not measured, or there is nothing but the base.
    pub fn claims(&self, metrics: &[Metric], arms: usize) -> Result<Vec<Claim>> {
        if let (Some(text), 0 | 1) = (self.claim.first(), arms) {
            let what = format!(
                "could not claim \"{text}\": it is of a ratio to the base, and there is one arm alone"
            );
            return Err(Usage(what).into());
        }
        let mut claims = Vec::new();
        for text in &self.claim {
            let usage = |error: anyhow::Error| Usage(format!("{error:#}"));
            let bound = Expectation::parse(text).map_err(usage)?;
            if metrics.iter().all(|metric| metric.name != bound.name) {
                let known: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
                let what = format!(
                    "could not claim \"{text}\": metrics are {}",
                    known.join(", ")
                );
                return Err(Usage(what).into());
            }
            for arm in 1..arms {
                claims.push(bound.claim(arm).map_err(usage)?);
            }
        }
        Ok(claims)
    }

    /// The command line with the seed in it, so that it repeats this very order.
    #[must_use]
    pub fn recorded(&self, words: &[String], seed: u64) -> Vec<String> {
        let mut command = words.to_vec();
        if self.seed.is_none() {
            let at = command
                .iter()
                .position(|word| word == "--")
                .unwrap_or(command.len());
            command.insert(at, format!("--seed={seed}"));
        }
        command
    }

    /// The directory: given, or a new name.
    #[must_use]
    pub fn out(&self, kind: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let stamp = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
            PathBuf::from(format!("lab-{kind}-{stamp}"))
        })
    }
}

/// A comparison with everything that [`Shared`] says.
///
/// # Errors
/// Fails when there is no pgbench.
pub fn comparison(load: Options, shared: &Shared, words: &[String]) -> Result<Comparison> {
    let seed = shared.seed();
    Ok(Comparison {
        kind: String::new(),
        title: String::new(),
        arms: Vec::new(),
        sweep: None,
        options: load,
        blocks: 0,
        budget: None,
        state: State::Reuse,
        margin: shared.min_effect,
        interleaved: true,
        same_again: false,
        hypothesis: shared.hypothesis.clone(),
        claims: Vec::new(),
        expectations: Vec::new(),
        seed,
        out: shared.out("result"),
        settle: shared.settle,
        foreign_limit: shared.foreign_cpu,
        allowed: shared.allow.clone(),
        samplers: !shared.no_samplers,
        pgbench: programs::find_pgbench(shared.pgbench.as_deref())?,
        command: shared.recorded(words, seed),
        proof: None,
    })
}

/// Runs a planned comparison, or says what it would do.
///
/// # Errors
/// Fails when a run does.
pub fn execute(plan: &Comparison, shared: &Shared) -> Result<u8> {
    execute_and(plan, shared, |_| ())
}

/// Like [`execute`]; `describe` adds what only this experiment has to say.
///
/// # Errors
/// Fails when a run does.
pub fn execute_and(
    plan: &Comparison,
    shared: &Shared,
    describe: impl FnOnce(&mut Experiment),
) -> Result<u8> {
    if shared.dry_run {
        print(&ab::describe(plan)?)?;
        return Ok(0);
    }
    let _lock = lock::acquire(tell)?;
    tell(&format!(
        "seed {}, results in {}",
        plan.seed,
        plan.out.display()
    ));
    let mut experiment = ab::run(plan, &tell)?;
    describe(&mut experiment);
    experiment.note_what_is_published();
    experiment.name_arms_in_warnings();
    deliver(&experiment, &plan.out, shared.ascii)
}
