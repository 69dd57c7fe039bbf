//! The nine steps beside the published figures.

use super::{Names, Order, steps};
use crate::format::{self, Unit};
use crate::measure::result::{Beside, Claim, Experiment, Published, Run, Table};
use crate::measure::stat::paired::CONFIDENCE;
use crate::measure::stat::plan::FEWEST_BLOCKS;
use crate::measure::stat::{median, resample};

/// Seconds published for 0.1 gigabytes on the author's fast machines.
const PUBLISHED: [(&str, f64); 8] = [
    ("create_table", 0.3),
    ("vacuum", 0.23),
    ("query1", 0.002_2),
    ("query2", 0.000_6),
    ("query3", 0.023_5),
    ("create_index", 0.2),
    ("cluster", 0.562),
    ("query5", 0.000_3),
];

const NOTE: &str = "Tutorial: the author's bare-metal machines (Ryzen 7700X, 5950X, M2 Air), replication off, scaled to this size \
     where time grows with it. * The published times of both queries by name come from a script that creates the index first; \
     in the printed order they are scans of the whole table and cannot be compared. Rates are bytes of the table (for queries, \
     of the pages they touched) by time at the client. The published index size of 30 MB is 3 MB since PostgreSQL 13.";

/// Adds the tables.
pub(super) fn describe(experiment: &mut Experiment, size: f64, order: Order) {
    let tables: Vec<Table> = (0..experiment.arms.len())
        .filter_map(|arm| {
            let runs: Vec<&Run> = experiment.runs.iter().filter(|r| r.arm == arm).collect();
            let first = runs.first()?;
            Some(Table {
                title: title(&experiment.arms[arm].name, first),
                head: [
                    "step",
                    "time",
                    "least",
                    "most",
                    "rate",
                    "at the server",
                    "plan",
                    "tutorial",
                    "ours / tutorial",
                ]
                .map(str::to_owned)
                .into(),
                rows: rows(&runs, size, order),
                note: Some(NOTE.to_owned()),
            })
        })
        .collect();
    experiment.tables = tables;
    experiment.published = (0..experiment.arms.len())
        .map(|arm| beside(experiment, arm, size, order))
        .collect();
}

/// That each step of each arm takes no longer than was published, where that can be compared.
pub(super) fn claims(arms: usize, size: f64, order: Order) -> Vec<Claim> {
    let known: Vec<(&str, f64)> = PUBLISHED
        .iter()
        .filter_map(|(step, _)| match published(step, size, order) {
            (Some(seconds), true) => Some((*step, seconds)),
            _ => None,
        })
        .collect();
    let of_arm = |arm| {
        let known = known.iter();
        known.map(move |(step, seconds)| Claim::at_most(step, arm, 1.0).to_published(*seconds))
    };
    (0..arms).flat_map(of_arm).collect()
}

/// One picture for each arm.
fn beside(experiment: &Experiment, arm: usize, size: f64, order: Order) -> Published {
    let rows = steps(&Names::default(), size, order)
        .into_iter()
        .map(|step| {
            let times = experiment.values(step.name, arm);
            // Fewer say nothing of how sure a median is.
            let interval = (times.len() >= FEWEST_BLOCKS)
                .then(|| resample::bootstrap_median(&times, CONFIDENCE, experiment.plan.seed));
            let (published, comparable) = published(step.name, size, order);
            Beside {
                name: step.title.to_owned(),
                published: published.filter(|_| comparable),
                ours: (!times.is_empty()).then(|| median(&times)),
                interval,
            }
        });
    let of = match experiment.arms.len() {
        1 => String::new(),
        _ => format!(", {}", experiment.arms[arm].name),
    };
    Published {
        figure: format!("Time of each step{of}"),
        unit: Unit::Seconds,
        source: "Published: on the author's bare-metal machines, scaled to this size. Ours: medians over runs; the table has least and most."
            .to_owned(),
        rows: rows.collect(),
    }
}

fn title(arm: &str, run: &Run) -> String {
    let value = |name: &str, unit| {
        run.values
            .get(name)
            .map_or_else(|| format::MISSING.to_owned(), |v| format::value(*v, unit))
    };
    format!(
        "{arm}: {} rows, table {}, index {}",
        run.values.get("rows").copied().unwrap_or(0.0),
        value("table_bytes", Unit::Bytes),
        value("index_bytes", Unit::Bytes)
    )
}

fn rows(runs: &[&Run], size: f64, order: Order) -> Vec<Vec<String>> {
    steps(&Names::default(), size, order)
        .iter()
        .map(|step| {
            let values = |what: &str| -> Vec<f64> {
                runs.iter()
                    .filter_map(|run| run.values.get(what).copied())
                    .collect()
            };
            let times = values(step.name);
            let middle = median(&times);
            let of = |what: &str, unit: Unit| {
                let values = values(&format!("{}_{what}", step.name));
                if values.is_empty() {
                    format::MISSING.to_owned()
                } else {
                    format::value(median(&values), unit)
                }
            };
            let published = published(step.name, size, order);
            vec![
                step.title.to_owned(),
                format::value(middle, Unit::Seconds),
                format::value(
                    times.iter().copied().fold(f64::INFINITY, f64::min),
                    Unit::Seconds,
                ),
                format::value(times.iter().copied().fold(0.0, f64::max), Unit::Seconds),
                of("rate", Unit::BytesPerSecond),
                of("execution", Unit::Seconds),
                plans(runs, step.name),
                published.0.map_or_else(
                    || format::MISSING.to_owned(),
                    |seconds| {
                        format!(
                            "{}{}",
                            format::value(seconds, Unit::Seconds),
                            if published.1 { "" } else { " *" }
                        )
                    },
                ),
                match published {
                    (Some(seconds), true) => format::ratio(middle / seconds, None),
                    (Some(_), false) => "different order".to_owned(),
                    (None, _) => format::MISSING.to_owned(),
                },
            ]
        })
        .collect()
}

/// The published time at this size, and whether it may be compared.
fn published(step: &str, size: f64, order: Order) -> (Option<f64>, bool) {
    let Some((name, seconds)) = PUBLISHED.iter().find(|(name, _)| *name == step) else {
        return (None, false);
    };
    // One row by index costs the same at every size.
    let factor = if *name == "query5" { 1.0 } else { size / 0.1 };
    let comparable = !(["query1", "query2"].contains(name) && order == Order::Tutorial);
    (Some(seconds * factor), comparable)
}

/// All plans that a step had, most usual first.
fn plans(runs: &[&Run], step: &str) -> String {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for run in runs {
        if let Some(plan) = run.facts.get(&format!("{step}_plan")) {
            *counts.entry(plan).or_default() += 1;
        }
    }
    let mut ordered: Vec<_> = counts.into_iter().collect();
    ordered.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words: Vec<String> = match ordered.as_slice() {
        [(only, _)] => vec![(*only).to_owned()],
        several => several
            .iter()
            .map(|(plan, count)| format!("{plan} × {count}"))
            .collect(),
    };
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::{Order, claims};
    use crate::measure::result::Claim;

    #[test]
    fn every_published_step_that_can_be_compared_is_claimed_of_every_arm() {
        let ten = claims(2, 1.0, Order::Tutorial);
        let steps: Vec<&str> = ten.iter().map(|claim| claim.metric.as_str()).collect();
        let expected = [
            "create_table",
            "vacuum",
            "query3",
            "create_index",
            "cluster",
            "query5",
        ];
        assert_eq!(steps, [expected, expected].concat());
        // Ten times the size, ten times the time.
        assert_eq!(
            ten[0],
            Claim::at_most("create_table", 0, 1.0).to_published(3.0)
        );
        assert_eq!(ten[11].arm, 1);
        // In the author's order both queries by name can be compared, too.
        assert_eq!(claims(1, 0.1, Order::Cbc).len(), 8);
    }
}
