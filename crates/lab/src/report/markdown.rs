//! The report as Markdown: for documents, issues and reviews.

use std::fmt::Write;

use super::terminal;
use crate::format;
use crate::measure::environment::Level;
use crate::measure::result::{Experiment, Metric};
use crate::report::analysis::{Analysis, Row};
use crate::report::conclusion::conclude;

/// Renders everything but the pictures.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "## {}\n", experiment.title);
    if let Some((_, sentence)) = conclude(experiment, analysis) {
        let _ = writeln!(out, "{sentence}\n");
    }
    let _ = writeln!(out, "- {}", experiment.workload);
    if let Some(hypothesis) = &experiment.hypothesis {
        let _ = writeln!(out, "- hypothesis: {hypothesis}");
    }
    let _ = writeln!(
        out,
        "- {} blocks of {} arms, seed {}; {} counted, {} dropped",
        experiment.plan.blocks,
        experiment.arms.len(),
        experiment.plan.seed,
        analysis.counted.len(),
        analysis.dropped.len()
    );
    let _ = writeln!(out, "- `{}`\n", experiment.typed());
    for given in &experiment.tables {
        let _ = writeln!(out, "{}:\n", given.title);
        let head: Vec<&str> = given.head.iter().map(String::as_str).collect();
        table(&mut out, &head, &given.rows);
        if let Some(note) = &given.note {
            let _ = writeln!(out, "{note}\n");
        }
    }
    results(&mut out, experiment, analysis);
    let sentences = analysis.bottlenecks.iter().chain(&analysis.unsteady);
    for sentence in sentences.chain(&experiment.notes) {
        let _ = writeln!(out, "- {sentence}");
    }
    for warning in analysis.warnings.iter().filter(|w| w.level > Level::Info) {
        let _ = writeln!(
            out,
            "- **{}**: {}: {}",
            warning.id, warning.found, warning.why
        );
    }
    out
}

fn results(out: &mut String, experiment: &Experiment, analysis: &Analysis) {
    let metric = |row: &Row| experiment.metrics.iter().find(|m| m.name == row.metric);
    if experiment.arms.len() == 1 {
        let rows: Vec<Vec<String>> = analysis
            .rows
            .iter()
            .filter_map(|row| alone(row, metric(row)?))
            .collect();
        table(out, &["", "median", "least", "most", "runs"], &rows);
    }
    for arm in 1..experiment.arms.len() {
        let rows: Vec<Vec<String>> = analysis
            .rows
            .iter()
            .filter_map(|row| {
                Some(terminal::comparison_cells(experiment, row, metric(row)?, arm).to_vec())
            })
            .collect();
        let (base, name) = (&experiment.arms[0].name, &experiment.arms[arm].name);
        let head = ["", base, name, "ratio", "95 % interval", "verdict"];
        table(out, &head, &rows);
    }
}

fn alone(row: &Row, metric: &Metric) -> Option<Vec<String>> {
    let summary = row.arms.first()?.as_ref()?;
    let value = |v: f64| format::value(v, metric.unit);
    Some(vec![
        metric.title.clone(),
        value(summary.median),
        value(summary.least),
        value(summary.most),
        summary.count.to_string(),
    ])
}

fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let mut line = |cells: &[&str]| {
        // A bar in a cell would be another column.
        let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|")).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    line(head);
    line(&vec!["---"; head.len()]);
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    out.push('\n');
}
