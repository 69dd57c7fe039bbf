//! Tables of a page that are computed from the values of runs.

use maud::{Markup, html};

use super::{metric_of, note, nothing, table};
use crate::format;
use crate::measure::result::{Experiment, Metric};
use crate::report::analysis::{Analysis, Row};
use crate::report::terminal;

pub(super) fn verdicts(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let sentences = analysis.bottlenecks.iter();
    let sentences = sentences.chain(&analysis.unsteady).chain(&experiment.notes);
    html! {
        @if analysis.rows.is_empty() {
            (note("Nothing was measured."))
        } @else if experiment.arms.len() == 1 {
            (medians(experiment, analysis))
        } @else {
            @for arm in 1..experiment.arms.len() { (compared(experiment, analysis, arm)) }
        }
        @if let Some((_, p)) = analysis.page {
            p class="note" {
                "Page's trend test that the metric falls as the setting rises: p = " (format::p_value(p))
            }
        }
        (spread(experiment, analysis))
        @for sentence in sentences { (note(sentence)) }
    }
}

fn medians(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let cells = |row: &Row| {
        let metric = metric_of(experiment, row)?;
        let summary = row.arms.first()?.as_ref()?;
        Some(vec![
            metric.title.clone(),
            format::value(summary.median, metric.unit),
            format::value(summary.least, metric.unit),
            format::value(summary.most, metric.unit),
            summary.count.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = analysis.rows.iter().filter_map(cells).collect();
    let head = ["", "median", "least", "most", "runs"];
    table("Medians over runs", &head, &rows)
}

fn compared(experiment: &Experiment, analysis: &Analysis, arm: usize) -> Markup {
    let cells = |row: &Row| {
        let metric = metric_of(experiment, row)?;
        let mut cells = terminal::comparison_cells(experiment, row, metric, arm).to_vec();
        let compared = row.comparisons.get(arm).and_then(Option::as_ref);
        let p = compared.map_or_else(String::new, |c| format::p_value(c.p_adjusted));
        cells.insert(5, p);
        Some(cells)
    };
    let rows: Vec<Vec<String>> = analysis.rows.iter().filter_map(cells).collect();
    let (base, name) = (&experiment.arms[0].name, &experiment.arms[arm].name);
    let head = [
        "",
        &format!("{base} (A)"),
        &format!("{name} (B)"),
        "B/A",
        "95 % CI",
        "p",
        "verdict",
    ];
    let caption = format!("{name} against {base}: medians ± spread of single runs, or their range");
    table(&caption, &head, &rows)
}

/// Less variance can be the result: the table of the pgbench talk.
fn spread(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let Some(row) = analysis.rows.first() else {
        return nothing();
    };
    let Some(metric) = metric_of(experiment, row) else {
        return nothing();
    };
    let value = |v: f64| format::value(v, metric.unit);
    let rows: Vec<Vec<String>> = row
        .arms
        .iter()
        .enumerate()
        .filter_map(|(arm, summary)| {
            let summary = summary.as_ref()?;
            let compared = row.comparisons.get(arm).and_then(Option::as_ref);
            let deviation = compared.and_then(|c| c.deviation_ratio).map_or_else(
                || format::MISSING.to_owned(),
                |(ratio, i)| {
                    format!(
                        "{} ({} … {})",
                        format::ratio(ratio, None),
                        format::ratio(i.low, None),
                        format::ratio(i.high, None)
                    )
                },
            );
            Some(vec![
                experiment.arms[arm].name.clone(),
                value(summary.mean),
                value(summary.median),
                value(summary.least),
                value(summary.most),
                summary
                    .deviation
                    .map_or_else(|| format::MISSING.to_owned(), value),
                summary.deviation.map_or_else(
                    || format::MISSING.to_owned(),
                    |d| format::percent(d / summary.mean),
                ),
                deviation,
            ])
        })
        .collect();
    if rows.len() < 2 {
        return nothing();
    }
    let head = [
        "",
        "mean",
        "median",
        "least",
        "most",
        "std. deviation",
        "CV",
        "ratio of deviations",
    ];
    table(
        &format!("{}: spread of single runs", metric.title),
        &head,
        &rows,
    )
}

pub(super) fn statements(experiment: &Experiment) -> Markup {
    let Some(run) = experiment.runs.iter().find(|r| !r.statements.is_empty()) else {
        return nothing();
    };
    let rows: Vec<Vec<String>> = run
        .statements
        .iter()
        .enumerate()
        .map(|(index, (command, _))| {
            let mut cells = vec![command.clone()];
            for arm in 0..experiment.arms.len() {
                let values: Vec<f64> = experiment
                    .runs
                    .iter()
                    .filter(|r| r.arm == arm)
                    .filter_map(|r| r.statements.get(index).map(|s| s.1))
                    .collect();
                cells.push(format::value(
                    crate::measure::stat::median(&values),
                    format::Unit::Seconds,
                ));
            }
            cells
        })
        .collect();
    let mut head = vec!["command"];
    head.extend(experiment.arms.iter().map(|a| a.name.as_str()));
    table(
        "Mean latency of each command, median over runs",
        &head,
        &rows,
    )
}

pub(super) fn waits(experiment: &Experiment) -> Markup {
    let mut events = std::collections::BTreeMap::<&str, Vec<f64>>::new();
    for run in &experiment.runs {
        for (event, count) in &run.waits {
            let per_arm = events
                .entry(event)
                .or_insert_with(|| vec![0.0; experiment.arms.len()]);
            per_arm[run.arm] += count;
        }
    }
    let mut totals = vec![0.0; experiment.arms.len()];
    for per_arm in events.values() {
        for (total, count) in totals.iter_mut().zip(per_arm) {
            *total += count;
        }
    }
    let mut ordered: Vec<_> = events.into_iter().collect();
    ordered.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum::<f64>()));
    ordered.truncate(8);
    if ordered.is_empty() {
        return nothing();
    }
    let rows: Vec<Vec<String>> = ordered
        .iter()
        .map(|(event, counts)| {
            let mut cells = vec![(*event).to_owned()];
            cells.extend(counts.iter().zip(&totals).map(|(c, t)| {
                if *t > 0.0 {
                    format::percent(c / t)
                } else {
                    format::MISSING.to_owned()
                }
            }));
            cells
        })
        .collect();
    let mut head = vec!["event"];
    head.extend(experiment.arms.iter().map(|a| a.name.as_str()));
    table(
        "What active backends were doing, share of samples",
        &head,
        &rows,
    )
}

pub(super) fn every_run(experiment: &Experiment) -> Markup {
    let metrics: Vec<&Metric> = experiment
        .metrics
        .iter()
        .filter(|m| {
            experiment
                .runs
                .iter()
                .any(|r| r.values.contains_key(&m.name))
        })
        .collect();
    let mut head = vec!["block", "arm"];
    head.extend(metrics.iter().map(|m| m.title.as_str()));
    head.push("note");
    let rows: Vec<Vec<String>> = experiment
        .runs
        .iter()
        .map(|run| {
            let mut cells = vec![
                (run.block + 1).to_string(),
                experiment.arms[run.arm].name.clone(),
            ];
            cells.extend(metrics.iter().map(|m| {
                run.values
                    .get(&m.name)
                    .map_or_else(|| format::MISSING.to_owned(), |v| format::value(*v, m.unit))
            }));
            cells.push(run.dropped.clone().unwrap_or_default());
            cells
        })
        .collect();
    let all = table("", &head, &rows);
    html! {
        details { summary { "All runs in order of time" } (all) }
    }
}
