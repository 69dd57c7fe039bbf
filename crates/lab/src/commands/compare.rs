//! `plan`, `report`, `compare`, `gate`, `rerun`: from results to statements.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::experiments::shared::Usage;
use crate::format;
use crate::measure::environment::warning::warning;
use crate::measure::environment::{self, Warning, mask};
use crate::measure::expectation::{Expectation, Gate};
use crate::measure::result::{Arm, Claim, Experiment, Run, typed};
use crate::measure::stat::paired::Comparison;
use crate::measure::stat::{median, plan as planner, trend};
use crate::number::real;
use crate::quantity;
use crate::report::analysis::{self, Analysis};
use crate::report::conclusion::{self, Outcome};
use crate::report::files::{self, Link};
use crate::report::junit::Case;
use crate::report::output::{self, code, print, style, tell};
use crate::report::{csv, html, junit, markdown, terminal, unstable};

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// result of a pilot of at least five blocks
    #[arg(long)]
    pilot: PathBuf,
    /// the effect that must not be missed
    #[arg(long, default_value = "1%", value_parser = quantity::share)]
    min_effect: f64,
    /// time there is
    #[arg(long, value_parser = quantity::duration)]
    budget: Option<Duration>,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// result.json, or its directory
    result: PathBuf,
    /// write the page here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// print the analysis as JSON
    #[arg(long, conflicts_with_all = ["csv", "bencher", "md", "otava"])]
    json: bool,
    /// print every value of every run as CSV
    #[arg(long, conflicts_with_all = ["bencher", "md", "otava"])]
    csv: bool,
    /// print Markdown
    #[arg(long, conflicts_with_all = ["bencher", "otava"])]
    md: bool,
    /// print Bencher Metric Format
    #[arg(long, conflicts_with = "otava")]
    bencher: bool,
    /// print one line for a history that Apache Otava looks for change points in: CSV, time first, then a column of
    /// medians for each metric and arm
    #[arg(long)]
    otava: bool,
    /// print ASCII only
    #[arg(long)]
    ascii: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArguments {
    /// the base
    first: PathBuf,
    /// compared with it
    second: PathBuf,
    /// write the page here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Arguments of `gate`.
#[derive(Debug, Args)]
pub struct GateArguments {
    /// result.json, or its directory
    result: PathBuf,
    /// a regression, as a condition on a ratio to the base: 'tps < 0.98'
    #[arg(long, required = true)]
    fail_if: Vec<String>,
    /// write JUnit XML here
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Arguments of `rerun`.
#[derive(Debug, Args)]
pub struct RerunArguments {
    /// result.json, or its directory
    result: PathBuf,
    /// directory for the new result
    #[arg(long)]
    out: Option<PathBuf>,
}

/// `plan`.
///
/// # Errors
/// Fails when the pilot is too small.
pub fn plan(arguments: &PlanArguments) -> Result<u8> {
    let pilot = Experiment::load(&arguments.pilot)?;
    let analysis = analysis::analyse(&pilot);
    let compared = analysis
        .rows
        .first()
        .and_then(|row| row.comparisons.iter().flatten().next())
        .filter(|compared| compared.blocks >= 5)
        .context("could not plan: the pilot needs two arms and at least five blocks")?;
    let deviation = compared.deviation;
    let arms = real(pilot.arms.len());
    let per_run = seconds_per_run(&pilot);
    let needed = planner::blocks_needed(deviation, arguments.min_effect);
    let mut text = format!(
        "noise       σ of block log-ratios {} over {} blocks\n\
         needed      {needed} blocks for ±{}, about {} of measuring\n",
        format::percent(deviation),
        compared.blocks,
        format::percent(arguments.min_effect),
        hours(real(needed) * arms * per_run)
    );
    if let Some(seconds) = cheapest(&pilot, per_run) {
        text.push_str(&format!(
            "run length  about {seconds:.0} s would be cheapest here\n"
        ));
    }
    if let Some(budget) = arguments.budget {
        let blocks = crate::number::whole(budget.as_secs_f64() / (arms * per_run));
        text.push_str(&format!(
            "budget      {blocks} blocks fit; they find effects of {} four times in five\n",
            format::percent(planner::detectable_effect(deviation, blocks))
        ));
    }
    text.push_str("\nblocks  smallest effect found four times in five   time\n");
    for blocks in [6, 10, 20, 40, 80, 160] {
        text.push_str(&format!(
            "{blocks:>6}  {:<44}  {}\n",
            format::percent(planner::detectable_effect(deviation, blocks)),
            hours(real(blocks) * arms * per_run)
        ));
    }
    print(&text)?;
    Ok(0)
}

/// Time from one run to the next: load, copying, starting, settling.
fn seconds_per_run(pilot: &Experiment) -> f64 {
    let mut starts: Vec<f64> = pilot.runs.iter().map(|run| run.started).collect();
    starts.sort_by(f64::total_cmp);
    let gaps: Vec<f64> = starts.windows(2).map(|w| w[1] - w[0]).collect();
    if gaps.is_empty() {
        pilot.plan.seconds.unwrap_or(10.0)
    } else {
        median(&gaps)
    }
}

/// The cheapest length of a run, from how seconds vary within runs and runs among each other.
fn cheapest(pilot: &Experiment, per_run: f64) -> Option<f64> {
    let seconds = pilot.plan.seconds?;
    let mut within = Vec::new();
    let mut means = Vec::new();
    for run in pilot
        .runs
        .iter()
        .filter(|r| r.throughput.len() > 4 && r.arm == 0)
    {
        let logs: Vec<f64> = run
            .throughput
            .iter()
            .filter(|v| **v > 0.0)
            .map(|v| v.ln())
            .collect();
        // Neighbouring seconds depend on each other: widen by their correlation.
        let rho = trend::autocorrelation(&logs).clamp(0.0, 0.9);
        within.push(
            crate::measure::stat::standard_deviation(&logs).powi(2) * (1.0 + rho) / (1.0 - rho),
        );
        means.push(crate::measure::stat::mean(&logs));
    }
    if means.len() < 5 {
        return None;
    }
    let within = crate::measure::stat::mean(&within);
    let between = crate::measure::stat::standard_deviation(&means).powi(2) - within / seconds;
    planner::cheapest_run_seconds((per_run - seconds).max(0.5), within, between)
}

fn hours(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// `report`.
///
/// # Errors
/// Fails when the result cannot be read or a file not written.
pub fn report(arguments: &ReportArguments) -> Result<u8> {
    let experiment = Experiment::load(&arguments.result)?;
    let analysis = analysis::analyse(&experiment);
    if let Some(file) = &arguments.html {
        output::write_page(&experiment, &analysis, &arguments.result, file)?;
    }
    if arguments.json {
        print(&serde_json::to_string_pretty(&analysis).context("could not encode the analysis")?)?;
    } else if arguments.csv {
        print(&csv::render(&experiment))?;
    } else if arguments.md {
        print(&markdown::render(&experiment, &analysis))?;
    } else if arguments.otava {
        print(&csv::history(&experiment, &analysis))?;
    } else if arguments.bencher {
        let value = junit::bencher(&experiment, &analysis);
        print(&serde_json::to_string_pretty(&value).context("could not encode the metrics")?)?;
    } else {
        print(&terminal::render(
            &experiment,
            &analysis,
            style(arguments.ascii),
        ))?;
    }
    // A report of an interrupted experiment is a report all the same.
    Ok(if analysis.is_blocked() { 4 } else { 0 })
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("could not write \"{}\"", file.display()))
}

/// The base of one result, as one of two.
struct Half {
    experiment: Experiment,
    arm: Arm,
    /// The runs that count there.
    runs: Vec<Run>,
    warnings: Vec<Warning>,
    /// Which blocks do not count.
    notes: Vec<String>,
}

impl Half {
    /// What disturbed one session says nothing of the other: runs are chosen, and warnings weighed, by its own plan.
    fn load(path: &Path, number: usize) -> Result<Self> {
        let experiment = Experiment::load(path)?;
        let analysis = analysis::analyse(&experiment);
        let first = experiment.arms.first().cloned();
        let mut arm = first.with_context(|| {
            format!(
                "could not compare: result \"{}\" has no arm",
                path.display()
            )
        })?;
        arm.name = format!("{} {number}", arm.name);
        if let Some(server) = &mut arm.environment {
            // What it served there is not what it serves here.
            server.facts.remove(environment::SERVED);
        }
        let counts = |run: &&Run| run.arm == 0 && analysis.counted.contains(&run.block);
        let runs = experiment.runs.iter().filter(counts).cloned().collect();
        // Those that come of the runs alone are found again, of both.
        let own = |warning: &Warning| {
            let mut known = experiment.warnings.iter();
            warning.id == "ENV-FOREIGN-CPU" || known.any(|own| own.id == warning.id)
        };
        let named = |words: &str| format!("{}: {words}", arm.name);
        let warnings = analysis.warnings.iter().filter(|warning| own(warning));
        let warnings = warnings.map(|warning| Warning {
            found: named(&warning.found),
            ..warning.clone()
        });
        Ok(Self {
            warnings: warnings.collect(),
            notes: analysis
                .dropped_words()
                .iter()
                .map(|words| named(words))
                .collect(),
            runs,
            arm,
            experiment,
        })
    }
}

/// `compare`: the base arms of two results, as one unpaired experiment.
///
/// # Errors
/// Fails when a result cannot be read, or they measure different things.
pub fn compare(arguments: &CompareArguments, words: &[String]) -> Result<u8> {
    let first = Half::load(&arguments.first, 1)?;
    let second = Half::load(&arguments.second, 2)?;
    if first.experiment.metrics != second.experiment.metrics {
        bail!(Usage(
            "could not compare: the results hold different metrics".to_owned()
        ));
    }
    if first.experiment.workload != second.experiment.workload {
        tell(&format!(
            "the workloads differ: {} and {}",
            first.experiment.workload, second.experiment.workload
        ));
    }
    let names = [&first, &second].map(|half| half.arm.name.clone());
    let both = Experiment {
        // What is repeated is the comparison, and no session.
        command: words.iter().map(|word| mask::mask(word)).collect(),
        ..merged(first, second)
    };
    let analysis = analysis::analyse(&both);
    if let Some(file) = &arguments.html {
        let results = [&arguments.first, &arguments.second];
        let links = results.iter().zip(&names).flat_map(|(result, name)| {
            let links = files::links(result, file).into_iter();
            links.map(move |link| Link {
                name: format!("{name}: {}", link.name),
                ..link
            })
        });
        let links: Vec<Link> = links.collect();
        write(file, &html::render_with(&both, &analysis, &links))?;
    }
    print(&terminal::render(&both, &analysis, style(false)))?;
    Ok(code(&both, &analysis))
}

/// One experiment of two sessions, whose runs share no block.
fn merged(first: Half, second: Half) -> Experiment {
    let mut both = first.experiment;
    both.title = format!(
        "{} ({}) against {} ({})",
        second.experiment.title, second.experiment.created, both.title, both.created
    );
    both.kind = "compare".to_owned();
    both.arms = vec![first.arm, second.arm];
    let of_first = first.runs.into_iter().map(|run| (0, run));
    let of_second = second.runs.into_iter().map(|run| (1, run));
    both.runs = of_first
        .chain(of_second)
        .enumerate()
        .map(|(block, (arm, run))| Run { block, arm, ..run })
        .collect();
    let plan = &mut both.plan;
    plan.blocks = both.runs.len();
    plan.interleaved = false;
    plan.same_again = false;
    plan.sweep = None;
    // Each session has dropped what it drops, and allowed what it allows.
    plan.foreign_limit = 1.0;
    plan.allowed.clear();
    // Of the arms that are left nothing was claimed or published, and nothing is told but the figures.
    plan.claims.clear();
    both.hypothesis = None;
    both.published.clear();
    both.notes = [first.notes, second.notes].concat();
    both.tables.clear();
    both.interrupted = both.interrupted.or(second.experiment.interrupted);
    both.warnings = [first.warnings, second.warnings].concat();
    both.warnings.push(warning(
        "STAT-UNPAIRED",
        "two results of different sessions",
    ));
    both
}

/// `gate`.
///
/// # Errors
/// Fails when the result cannot be read, or a condition names no metric of it.
pub fn gate(arguments: &GateArguments) -> Result<u8> {
    let experiment = Experiment::load(&arguments.result)?;
    let analysis = analysis::analyse(&experiment);
    let mut claims = Vec::new();
    for text in &arguments.fail_if {
        let condition = Expectation::parse(text).map_err(|e| Usage(format!("{e:#}")))?;
        let all = bounds(&experiment, &analysis, &condition)?.into_iter();
        claims.extend(all.map(|claim| (text.trim(), claim)));
    }
    let cases: Vec<Case> = claims
        .iter()
        .map(|(text, claim)| case(&experiment, &analysis, (*text, claim), claims.len()))
        .collect();
    if let Some(file) = &arguments.junit {
        write(file, &junit::render(&experiment.title, &cases)?)?;
    }
    let mut text = String::new();
    for case in &cases {
        let word = match case.outcome {
            Gate::Passed => "passed ",
            Gate::Failed => "FAILED ",
            Gate::Unclear => "unclear",
        };
        text.push_str(&format!("{word}  {}: {}\n", case.name, case.message));
    }
    print(&text)?;
    let any = |outcome: Gate| cases.iter().any(|c| c.outcome == outcome);
    Ok(match () {
        () if analysis.is_blocked() => 4,
        () if any(Gate::Failed) => 1,
        () if any(Gate::Unclear) => 3,
        () => 0,
    })
}

/// What must hold of every arm, so that the condition proves no regression.
fn bounds(
    experiment: &Experiment,
    analysis: &Analysis,
    condition: &Expectation,
) -> Result<Vec<Claim>> {
    if analysis.row(&condition.name).is_none() {
        let known: Vec<&str> = analysis.rows.iter().map(|r| r.metric.as_str()).collect();
        let what = format!(
            "could not find metric \"{}\": the result has {}",
            condition.name,
            known.join(", ")
        );
        return Err(Usage(what).into());
    }
    let last = experiment.arms.len() - usize::from(experiment.plan.same_again);
    if last < 2 {
        let what = "could not judge the result: it has no arm beside the base, so nothing can fail";
        return Err(Usage(what.to_owned()).into());
    }
    (1..last)
        .map(|arm| {
            let bound = condition.refuted(arm);
            bound.map_err(|error| Usage(format!("{error:#}")).into())
        })
        .collect()
}

/// Judged as the report judges a hypothesis.
fn case(
    experiment: &Experiment,
    analysis: &Analysis,
    (text, claim): (&str, &Claim),
    bounds: usize,
) -> Case {
    let row = analysis.row(&claim.metric);
    let compared = row.and_then(|row| row.comparisons.get(claim.arm)?.as_ref());
    let outcome = match conclusion::judge(experiment, analysis, claim, bounds) {
        Outcome::Held => Gate::Passed,
        Outcome::Failed => Gate::Failed,
        Outcome::Unclear | Outcome::Open => Gate::Unclear,
    };
    let words = |compared: &Comparison| {
        let mut words = format!(
            "ratio {}, 95 % CI {}, {} blocks",
            analysis::ratio_words(compared),
            analysis::interval_words(compared),
            compared.blocks
        );
        if !compared.verdict.is_founded() {
            let why = compared.verdict.words(experiment.plan.margin);
            words.push_str(&format!("; {why}"));
        }
        if compared.unstable {
            // A build server shows each message by itself.
            words.push_str(&format!("; {}", unstable::MEANING));
        }
        words
    };
    Case {
        name: format!("{text} ({})", experiment.arms[claim.arm].name),
        outcome,
        message: compared.map_or_else(|| "not measured".to_owned(), words),
    }
}

/// `rerun`.
///
/// # Errors
/// Fails when the recorded command does.
pub fn rerun(arguments: &RerunArguments) -> Result<u8> {
    let original = Experiment::load(&arguments.result)?;
    let mut words = Vec::new();
    let mut skip = false;
    for word in &original.command {
        if skip {
            skip = false;
        } else if word == "--out" {
            skip = true;
        } else if !word.starts_with("--out=") {
            words.push(word.clone());
        }
    }
    let out = arguments.out.clone().unwrap_or_else(|| {
        PathBuf::from(format!(
            "lab-rerun-{}",
            jiff::Zoned::now().strftime("%Y%m%d-%H%M%S")
        ))
    });
    let at = words.iter().position(|w| w == "--").unwrap_or(words.len());
    words.insert(at, format!("--out={}", out.display()));
    tell(&typed(&words));
    let status = super::repeat(&words)?;
    let again = Experiment::load(&out)?;
    let environments = (
        original.arms.first().and_then(|a| a.environment.as_ref()),
        again.arms.first().and_then(|a| a.environment.as_ref()),
    );
    if let (Some(first), Some(second)) = environments {
        let mut text = String::from("environment, against the original's:\n");
        for d in environment::diff(first, second) {
            text.push_str(&format!("  {}: {} -> {}\n", d.name, d.first, d.second));
        }
        print(&text)?;
    }
    Ok(status)
}
