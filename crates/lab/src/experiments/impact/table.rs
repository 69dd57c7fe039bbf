//! What was felt, tool by tool.

use crate::format::{self, MISSING, Unit};
use crate::measure::environment::warning::warning;
use crate::measure::result::{Experiment, Table};
use crate::measure::stat::median;
use crate::measure::stat::paired::Comparison;
use crate::report::analysis::{Analysis, analyse, interval_words, ratio_words};

use super::{ADDED, BRACKET, FULL, INCREMENTAL};

/// Mean wait before a transaction is begun from which the base itself cannot keep the rate, seconds.
const QUEUE: f64 = 0.05;

/// The least waiting that has a ratio, seconds: pgbench's log has microseconds, and a slice about a thousand transactions.
/// Where a backup adds less, or nothing, that much is put down to it.
const LEAST_ADDED: f64 = 1e-3;

/// Adds the table and what must be known of the load.
pub(super) fn describe(experiment: &mut Experiment) {
    put_down(experiment);
    let analysis = analyse(experiment);
    let mut tables = vec![table(experiment, &analysis)];
    tables.extend(beyond(experiment, &analysis));
    experiment.tables = tables;
    let lag = experiment.middle("lag_mean", 0).unwrap_or(0.0);
    if lag > QUEUE {
        experiment.warnings.push(warning(
            "LOAD-RATE-NOT-SUSTAINED",
            format!(
                "even without a backup transactions wait {} before they begin",
                format::value(lag, Unit::Seconds)
            ),
        ));
    }
    if experiment.middle("p999", 0).is_none() {
        experiment.notes.push(
            "p99.9 is given where a slice has at least 10 000 transactions: lengthen --time or raise --rate."
                .to_owned(),
        );
    }
}

/// Seconds that all transactions together wait longer because of one backup: more per
/// transaction than in the block's slice without a backup, times those due while it runs.
fn added(experiment: &Experiment, arm: usize) -> Option<f64> {
    let each: Vec<f64> = (0..experiment.plan.blocks)
        .filter_map(|block| added_in(experiment, block, arm))
        .collect();
    (!each.is_empty()).then(|| median(&each))
}

/// The same in one block.
fn added_in(experiment: &Experiment, block: usize, arm: usize) -> Option<f64> {
    let value = |arm: usize, name: &str| {
        let mut runs = experiment.runs.iter();
        let run = runs.find(|run| run.block == block && run.arm == arm)?;
        run.values.get(name).copied()
    };
    let more = value(arm, "latency_mean")? - value(0, "latency_mean")?;
    Some(more * value(arm, "tps")? * value(arm, "backup_time")?)
}

/// Puts down with each run what its backups added, so that it can be compared and claimed.
fn put_down(experiment: &mut Experiment) {
    let added: Vec<Option<f64>> = experiment
        .runs
        .iter()
        .map(|run| added_in(experiment, run.block, run.arm))
        .collect();
    for (run, added) in experiment.runs.iter_mut().zip(added) {
        let added = added.map(|seconds| (ADDED.to_owned(), seconds.max(LEAST_ADDED)));
        run.values.extend(added);
    }
}

/// A ratio with its interval, as the cell of a table.
fn cell_of(compared: Option<&Comparison>) -> String {
    let Some(compared) = compared else {
        return MISSING.to_owned();
    };
    let ratio = ratio_words(compared);
    match compared.interval {
        Some(_) => format!("{ratio} ({})", interval_words(compared)),
        None => ratio,
    }
}

fn table(experiment: &Experiment, analysis: &Analysis) -> Table {
    let ratio = |metric: &str, arm: usize| {
        let compared = analysis
            .row(metric)
            .and_then(|row| row.comparisons.get(arm));
        cell_of(compared.and_then(Option::as_ref))
    };
    let rows = (0..experiment.arms.len())
        .map(|arm| {
            let cell = |name: &str, unit: Unit| {
                experiment
                    .middle(name, arm)
                    .map_or_else(|| MISSING.to_owned(), |v| format::value(v, unit))
            };
            // Where transactions waited less than without, nothing was added.
            let waiting = added(experiment, arm).map(|seconds| match seconds > 0.0 {
                true => format::value(seconds, Unit::Seconds),
                false => "none".to_owned(),
            });
            vec![
                experiment.arms[arm].name.clone(),
                cell("p50", Unit::Seconds),
                cell("p90", Unit::Seconds),
                cell("p99", Unit::Seconds),
                ratio("p50", arm),
                ratio("p90", arm),
                ratio("p99", arm),
                cell("backup_time", Unit::Seconds),
                cell("backup_cpu", Unit::Seconds),
                waiting.unwrap_or_else(|| MISSING.to_owned()),
            ]
        })
        .collect();
    Table {
        title: "During a backup against without".to_owned(),
        head: [
            "",
            "p50",
            "p90",
            "p99",
            "p50, ratio",
            "p90, ratio",
            "p99, ratio",
            "each takes",
            "its CPU",
            "waiting it adds",
        ]
        .map(str::to_owned)
        .into(),
        rows,
        note: Some(
            "Response times of transactions that were due while a backup ran, counted from the moment they were due; medians over blocks, ratios to \
             slices without a backup with 95 % intervals. Backups follow each other without a pause, so this is what is felt while one runs; how \
             long that is stands beside it, and what all transactions together wait longer because of one backup: a tool that is gentle for \
             ten times as long may cost more. Every backup begins with a checkpoint, after which WAL carries whole pages: that share alone is the \
             arm \"checkpoints\". Verify and merge begin with none."
                .to_owned(),
        ),
    }
}

/// The arms that start a backup and stop it: for full backups, for incremental ones.
fn brackets(experiment: &Experiment) -> Option<[usize; 2]> {
    let at = |kind: &str| {
        let mut arms = experiment.arms.iter();
        arms.position(|arm| arm.name == format!("{BRACKET}, {kind}"))
    };
    Some([at(FULL)?, at(INCREMENTAL)?])
}

/// What is left when that is taken off which every backup costs, whoever takes it.
fn beyond(experiment: &Experiment, analysis: &Analysis) -> Option<Table> {
    let [full, incremental] = brackets(experiment)?;
    let backups = (incremental + 1)..experiment.arms.len();
    let rows = backups
        .filter_map(|arm| {
            let name = &experiment.arms[arm].name;
            let base = match name.rsplit(' ').next() {
                Some(FULL) => full,
                Some(INCREMENTAL) => incremental,
                // Started no backup.
                _ => return None,
            };
            let ratio =
                |metric: &str| cell_of(analysis.beside(experiment, metric, (base, arm)).as_ref());
            Some(vec![name.clone(), ratio("p50"), ratio("p90"), ratio("p99")])
        })
        .collect();
    Some(Table {
        title: "Beyond a backup that only starts and stops".to_owned(),
        head: ["", "p50, ratio", "p90, ratio", "p99, ratio"]
            .map(str::to_owned)
            .into(),
        rows,
        note: Some(format!(
            "Ratios to the arms \"{BRACKET}\", with 95 % intervals: pg_backup_start() and pg_backup_stop() with nothing between them but the time that \
             pgstrata's backup takes. What is more than 1 is reading, compressing and storing. No arm is as long as another tool's backup, so \
             that the ratio of a tool that takes less or more time holds some of the checkpoint's share."
        )),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ADDED, added, put_down};
    use crate::measure::result::{Experiment, Run};

    #[test]
    fn what_a_backup_costs_is_waiting_times_transactions_times_its_length() {
        let run = |block, arm, mean: f64, takes: Option<f64>| {
            let mut values =
                BTreeMap::from([("latency_mean".to_owned(), mean), ("tps".to_owned(), 100.0)]);
            values.extend(takes.map(|takes| ("backup_time".to_owned(), takes)));
            Run {
                block,
                arm,
                values,
                ..Run::default()
            }
        };
        let mut experiment: Experiment = serde_json::from_value(serde_json::json!({
            "schema": "", "lab_version": "", "kind": "", "title": "", "created": "", "command": [],
            "hypothesis": null, "workload": "", "metrics": [], "arms": [], "runs": [], "tables": [],
            "notes": [], "warnings": [], "interrupted": null,
            "plan": {"blocks": 2, "seconds": null, "seed": 0, "state": "", "margin": 0.01,
                "interleaved": true, "same_again": false, "allowed": [], "foreign_limit": 0.05, "sweep": null}
        }))
        .unwrap();
        experiment.runs = vec![
            run(0, 0, 0.001, None),
            run(0, 1, 0.011, Some(2.0)),
            run(1, 0, 0.002, None),
            run(1, 1, 0.012, Some(2.0)),
        ];
        // 10 ms more for each of 200 transactions.
        assert!((added(&experiment, 1).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(added(&experiment, 0), None);
        // Where it waits less than without, a ratio needs something all the same.
        experiment.runs[3]
            .values
            .insert("latency_mean".to_owned(), 0.001);
        put_down(&mut experiment);
        let put: Vec<Option<&f64>> = experiment
            .runs
            .iter()
            .map(|r| r.values.get(ADDED))
            .collect();
        assert_eq!((put[0], put[2]), (None, None));
        assert!((put[1].unwrap() - 2.0).abs() < 1e-9);
        assert!((put[3].unwrap() - 0.001).abs() < 1e-9);
    }
}
