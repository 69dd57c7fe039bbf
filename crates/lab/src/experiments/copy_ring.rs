//! COPY through the bulk-write ring, the worked example of the pgbench talk.
//!
//! The hypothesis there: a larger ring makes COPY faster, tried with a patched
//! server. Two builds are compared the same way here (`--base`, `--arm`). With
//! one build the ring can still be made smaller, since it never takes more than
//! an eighth of `shared_buffers`: the default arms have rings of 16 and of 2 MB
//! (tiny: 4 and 1). Every COPY begins a ring of its own, so a file must be larger
//! than the ring, or it is never used twice.
//!
//! The table is not truncated between the transactions of a run (a truncation
//! in the same transaction could leave the WAL out); every run begins on a
//! fresh copy of the data.

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use super::shared::Preset;
use crate::experiments::shared::{Shared, Usage};
use crate::experiments::shared::{comparison, execute_and};
use crate::format::{self, Unit};
use crate::measure::ab::{Comparison, State};
use crate::measure::arm::ArmSpec;
use crate::measure::expectation::Expectation;
use crate::measure::pgbench::options::{Options, Protocol};
use crate::measure::programs::Programs;
use crate::measure::result::{Beside, Claim, Experiment, Metric, Published, Run, Table};
use crate::measure::stat::verdict::Better;
use crate::measure::stat::{mean, median, paired};
use crate::number::real;

/// The statement that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Statement {
    /// COPY from a file of the server
    Copy,
    /// CREATE TABLE AS, which takes the same ring and needs no file
    Ctas,
}

/// Arguments of `seed copy-ring`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper 50 transactions of 1 M rows, small 10 of 400 000, tiny 5 of 60 000
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// the base, as in `ab`
    #[arg(long)]
    base: Option<String>,
    /// what is compared with it, as in `ab`: another build or configuration
    #[arg(long)]
    arm: Vec<String>,
    /// directory of the server's programs, for the arms made by default
    #[arg(long, value_name = "DIR", conflicts_with_all = ["base", "arm"])]
    bindir: Option<std::path::PathBuf>,
    /// what is measured
    #[arg(long, value_enum, default_value = "copy")]
    statement: Statement,
    /// rows of the file, 100 bytes each
    #[arg(long)]
    rows: Option<u64>,
    /// transactions per run
    #[arg(long, short = 't')]
    transactions: Option<u32>,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    #[command(flatten)]
    shared: Shared,
}

/// `seed copy-ring`.
///
/// # Errors
/// Fails when a run does.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let (rows, transactions, blocks) = match arguments.preset {
        Preset::Tiny => (60_000, 5, 6),
        Preset::Small => (400_000, 10, 8),
        Preset::Paper | Preset::Large => (1_000_000, 50, 10),
    };
    let rows = arguments.rows.unwrap_or(rows);
    let scratch = tempfile::tempdir().context("could not create a temporary directory")?;
    let file = |name: &str, text: &str| -> Result<std::path::PathBuf> {
        let path = scratch.path().join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("could not write \"{}\"", path.display()))?;
        Ok(path)
    };
    let setup = file("copy-ring-setup.sql", &setup(rows))?;
    let script = file("copy-ring.sql", script(arguments.statement))?;
    let arms = arms(arguments, &setup)?;
    let load = Options {
        workload: vec![script.display().to_string()],
        client: 1,
        jobs: Some(1),
        transactions: Some(arguments.transactions.unwrap_or(transactions)),
        protocol: Protocol::Prepared,
        scale: 1,
        warmup: 0,
        ..Options::default()
    };
    let base = comparison(load, &arguments.shared, words)?;
    let has_own_arms = arguments.base.is_none() && arguments.arm.is_empty();
    let plan = Comparison {
        kind: "copy-ring".to_owned(),
        hypothesis: Some(
            arguments
                .shared
                .hypothesis
                .clone()
                .unwrap_or_else(|| expected(&arms, has_own_arms)),
        ),
        title: "COPY through the bulk-write ring".to_owned(),
        claims: match &arguments.shared.hypothesis {
            None => claims(arms.len(), has_own_arms),
            Some(_) => arguments.shared.claims(&metrics(), arms.len())?,
        },
        expectations: expectations(&arms)?,
        arms,
        blocks: arguments.blocks.unwrap_or(blocks),
        state: State::Restore,
        out: arguments.shared.out("copy-ring"),
        settle: match arguments.preset {
            Preset::Tiny => arguments
                .shared
                .settle
                .min(std::time::Duration::from_millis(500)),
            _ => arguments.shared.settle,
        },
        ..base
    };
    execute_and(&plan, &arguments.shared, |experiment| {
        experiment.workload = format!(
            "{} of {rows} rows, one client, prepared, not truncated within a run",
            match arguments.statement {
                Statement::Copy => "COPY",
                Statement::Ctas => "CREATE TABLE AS",
            }
        );
        describe(experiment, has_own_arms);
    })
}

/// The file lies in the data directory, so that every copy of it has one.
fn setup(rows: u64) -> String {
    format!(
        "CREATE TABLE lab_copy (id bigint, number double precision, word text);
         CREATE TABLE lab_source AS
             SELECT g AS id, g * 0.5::float8 AS number, repeat(md5(g::text), 2) AS word FROM generate_series(1, {rows}) g;
         DO $$ BEGIN
             EXECUTE format('COPY lab_source TO %L', current_setting('data_directory') || '/copysource');
         END $$;"
    )
}

fn script(statement: Statement) -> &'static str {
    match statement {
        // Relative to the data directory, as the talk has it.
        Statement::Copy => "COPY lab_copy FROM 'copysource';\n",
        Statement::Ctas => {
            "DROP TABLE IF EXISTS lab_ctas;\nCREATE TABLE lab_ctas AS SELECT * FROM lab_source;\n"
        }
    }
}

fn arms(arguments: &Arguments, setup: &std::path::Path) -> Result<Vec<ArmSpec>> {
    let usage = |e: anyhow::Error| Usage(format!("{e:#}"));
    let mut arms = Vec::new();
    if arguments.base.is_none() && arguments.arm.is_empty() {
        let rings = match arguments.preset {
            Preset::Tiny => [
                "ring 4 MB:guc.shared_buffers=32MB",
                "ring 1 MB:guc.shared_buffers=8MB",
            ],
            _ => [
                "ring 16 MB:guc.shared_buffers=128MB",
                "ring 2 MB:guc.shared_buffers=16MB",
            ],
        };
        for ring in rings {
            arms.push(ArmSpec {
                bindir: arguments.bindir.clone(),
                ..ArmSpec::parse(ring)?
            });
        }
    } else {
        arms.push(ArmSpec::parse(arguments.base.as_deref().unwrap_or("base")).map_err(usage)?);
        for text in &arguments.arm {
            arms.push(ArmSpec::parse(text).map_err(usage)?);
        }
    }
    if arms.len() < 2 {
        return Err(Usage("could not compare: give --arm".to_owned()).into());
    }
    for arm in &mut arms {
        if arm.dsn.is_some() || arm.setup.is_some() {
            return Err(Usage(format!(
                "could not use arm \"{}\": copy-ring makes its own clusters and sets them up itself, so dsn and setup cannot be given",
                arm.name
            ))
            .into());
        }
        arm.setup = Some(setup.to_owned());
    }
    Ok(arms)
}

/// What is expected: of arms of others nobody knows here which has the larger ring.
fn expected(arms: &[ArmSpec], has_own_arms: bool) -> String {
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    match (&names[..], has_own_arms) {
        ([base, others @ ..], false) => format!(
            "COPY takes no longer with {} than with {base}",
            others.join(", ")
        ),
        _ => "a larger bulk-write ring makes COPY faster".to_owned(),
    }
}

/// The same in numbers.
fn claims(arms: usize, has_own_arms: bool) -> Vec<Claim> {
    let claim = |arm| match has_own_arms {
        // The larger ring is the base.
        true => Claim::at_least("latency_mean", arm, 1.0),
        false => Claim::at_most("latency_mean", arm, 1.0),
    };
    (1..arms).map(claim).collect()
}

/// pg_stat_io proves that the ring was used, since PostgreSQL 16.
fn expectations(arms: &[ArmSpec]) -> Result<Vec<Expectation>> {
    for arm in arms {
        if Programs::find(arm.bindir.as_deref())?.major.number() < 16 {
            return Ok(Vec::new());
        }
    }
    Ok(vec![
        Expectation::parse("pg_stat_io.bulkwrite.extends > 0")?,
        Expectation::parse("pg_stat_io.bulkwrite.writes > 0")?,
    ])
}

/// What is compared, and what can be claimed.
fn metrics() -> Vec<Metric> {
    let time = |name, title| Metric::new(name, title, Unit::Seconds, Better::Lower);
    let mut metrics = vec![
        time("latency_mean", "mean time"),
        time("latency_median", "median time"),
        time("latency_max", "longest time"),
    ];
    metrics.extend(Metric::per_transaction());
    metrics
}

fn describe(experiment: &mut Experiment, has_own_arms: bool) {
    experiment.published = (1..experiment.arms.len())
        .map(|arm| match has_own_arms {
            true => beside(experiment, (0, arm)),
            // As in the talk the unpatched build is the base.
            false => beside(experiment, (arm, 0)),
        })
        .collect();
    experiment.metrics = metrics();
    let arms = experiment.arms.len();
    let table = (0..arms).map(|arm| row(experiment, arm)).collect();
    experiment.tables = vec![Table {
        title: "Single transactions, as the talk tabulates them".to_owned(),
        head: ["", "transactions", "total", "average", "median", "min", "max", "std. deviation", "ring writes", "ring reuses"]
            .map(str::to_owned)
            .into(),
        rows: table,
        note: Some(
            "The talk: unpatched average 5015 ms, median 4876, min 4628, max 5812, deviation 315; patched 4317, 4302, 4111, 4695, 102: \
             13.9 % less time by the mean, 11.8 % by the median, and a third of the deviation. All 50 of one build ran before the other's. \
             Ring writes and reuses are pg_stat_io's of context bulkwrite (16 and later)."
                .to_owned(),
        ),
    }];
    if !experiment
        .runs
        .iter()
        .any(|r| r.values.contains_key("pg_stat_io.bulkwrite.writes"))
    {
        experiment.notes.push(
            "pg_stat_io, which would prove that the bulk-write ring was used, exists from PostgreSQL 16 on".to_owned(),
        );
    }
}

/// The second of two arms to the first one: the small ring to the large one, or the unpatched build to the patched one.
fn beside(experiment: &Experiment, arms: (usize, usize)) -> Published {
    let plan = &experiment.plan;
    let ratio = |(name, metric, published): (&str, &str, f64)| {
        let (large, small) = experiment.pairs(metric, arms, &experiment.counted_blocks());
        let compared = paired::compare(&large, &small, Better::Lower, plan.margin, plan.seed);
        Beside {
            name: name.to_owned(),
            published: Some(published),
            ours: compared.as_ref().map(|compared| compared.ratio),
            interval: compared.and_then(|compared| compared.interval),
        }
    };
    let (large, small) = (&experiment.arms[arms.0].name, &experiment.arms[arms.1].name);
    Published {
        figure: format!("Times as long with {small} as with {large}"),
        unit: Unit::Ratio,
        source: "Published: 50 transactions of a build with the small ring, then 50 of one with the large ring."
            .to_owned(),
        rows: [
            ("mean of single transactions", "latency_mean", 5015.0 / 4317.0),
            ("median", "latency_median", 4876.0 / 4302.0),
            ("longest", "latency_max", 5812.0 / 4695.0),
        ]
        .map(ratio)
        .into(),
    }
}

fn row(experiment: &Experiment, arm: usize) -> Vec<String> {
    let runs: Vec<&Run> = experiment.runs.iter().filter(|r| r.arm == arm).collect();
    let values = |name: &str| -> Vec<f64> {
        runs.iter()
            .filter_map(|r| r.values.get(name).copied())
            .collect()
    };
    let time = |seconds: f64| format::value(seconds, Unit::Seconds);
    let (counts, means) = (values("transactions"), values("latency_mean"));
    let count: f64 = counts.iter().sum();
    let total: f64 = counts.iter().zip(&means).map(|(n, m)| n * m).sum();
    let grand = total / count.max(1.0);
    // Within runs and between them.
    let squares: f64 = values("latency_deviation")
        .iter()
        .zip(&means)
        .zip(&counts)
        .map(|((deviation, mean), n)| n * (deviation.powi(2) + (mean - grand).powi(2)))
        .sum();
    let ring = |name: &str| {
        let values = values(&format!("pg_stat_io.bulkwrite.{name}"));
        if values.is_empty() {
            format::MISSING.to_owned()
        } else {
            format::value(mean(&values) * real(values.len()), Unit::Count)
        }
    };
    vec![
        experiment.arms[arm].name.clone(),
        format::value(count, Unit::Count),
        time(total),
        time(grand),
        time(median(&values("latency_median"))),
        time(
            values("latency_min")
                .into_iter()
                .fold(f64::INFINITY, f64::min),
        ),
        time(values("latency_max").into_iter().fold(0.0, f64::max)),
        time((squares / count.max(1.0)).sqrt()),
        ring("writes"),
        ring("reuses"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::result::Arm;

    #[test]
    fn arms_of_others_have_a_claim_and_a_picture_as_those_of_the_lab_have() {
        let arm = |name: &str| Arm {
            name: name.to_owned(),
            description: String::new(),
            environment: None,
        };
        let run = |block, arm, seconds: f64| Run {
            block,
            arm,
            values: [("latency_mean".to_owned(), seconds)].into(),
            ..Run::default()
        };
        let mut experiment = Experiment {
            arms: ["unpatched", "patched", "more"].map(arm).into(),
            ..Experiment::default()
        };
        experiment.plan.interleaved = true;
        experiment.plan.foreign_limit = 1.0;
        for block in 0..8 {
            for (arm, seconds) in [(0, 3.0), (1, 2.0), (2, 1.5)] {
                experiment.runs.push(run(block, arm, seconds));
            }
        }
        let specs = ["unpatched", "patched", "more"].map(|name| ArmSpec::parse(name).unwrap());
        assert_eq!(
            expected(&specs, false),
            "COPY takes no longer with patched, more than with unpatched"
        );
        let claims = claims(3, false);
        assert_eq!(claims.len(), 2);
        assert_eq!(claims[1], Claim::at_most("latency_mean", 2, 1.0));
        describe(&mut experiment, false);
        let figures: Vec<&str> = experiment
            .published
            .iter()
            .map(|p| p.figure.as_str())
            .collect();
        assert_eq!(
            figures,
            [
                "Times as long with unpatched as with patched",
                "Times as long with unpatched as with more"
            ]
        );
        let ours: Vec<f64> = experiment
            .published
            .iter()
            .map(|p| p.rows[0].ours.unwrap())
            .collect();
        assert!(
            (ours[0] - 1.5).abs() < 1e-9 && (ours[1] - 2.0).abs() < 1e-9,
            "{ours:?}"
        );
        // Of the lab's own the base has the larger ring.
        describe(&mut experiment, true);
        let own = &experiment.published[0];
        assert_eq!(own.figure, "Times as long with patched as with unpatched");
        assert!((own.rows[0].ours.unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }
}
