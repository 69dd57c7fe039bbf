//! The report as Markdown: for documents, issues and reviews.

use std::fmt::Write;

use super::{arms, terminal, unstable};
use crate::format;
use crate::measure::result::{Experiment, Metric, Table};
use crate::report::analysis::{Analysis, Row};
use crate::report::conclusion::conclude;

/// Renders everything but the pictures.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis) -> String {
    let (_, conclusion) = conclude(experiment, analysis);
    let mut parts = vec![
        format!("## {}\n\n", experiment.title),
        format!("{conclusion}\n\n"),
        beware(experiment, analysis),
        facts(experiment, analysis),
    ];
    parts.extend(experiment.tables.iter().map(own_table));
    parts.push(results(experiment, analysis));
    let sentences = analysis.bottlenecks.iter().chain(&analysis.unsteady);
    parts.push(list(sentences.chain(&experiment.notes)));
    parts.push(compared(experiment));
    unstable::explain(&mut parts, &format!("{}\n\n", unstable::MEANING));
    parts.concat()
}

/// What a reader must know before any figure.
fn beware(experiment: &Experiment, analysis: &Analysis) -> String {
    let warnings = analysis.warnings.iter();
    let mut sentences: Vec<String> = warnings
        .map(|w| format!("**{}**: {}: {}", w.id, w.found, w.why))
        .collect();
    sentences.extend(analysis.dropped_words());
    sentences.extend(analysis.drift_words(experiment));
    match sentences.is_empty() {
        true => String::new(),
        false => format!("What to beware of:\n\n{}", list(&sentences)),
    }
}

/// Sentences as a list, which ends with an empty line.
fn list<'a>(sentences: impl IntoIterator<Item = &'a String>) -> String {
    let lines = sentences
        .into_iter()
        .map(|sentence| format!("- {sentence}\n"));
    match lines.collect::<String>() {
        lines if lines.is_empty() => lines,
        lines => lines + "\n",
    }
}

fn facts(experiment: &Experiment, analysis: &Analysis) -> String {
    // Without words between them two lists are one.
    let mut out = String::from("How it was measured:\n\n");
    // Writing to a string cannot fail.
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
    out
}

fn own_table(own: &Table) -> String {
    let mut out = format!("{}:\n\n", own.title);
    let head: Vec<&str> = own.head.iter().map(String::as_str).collect();
    table(&mut out, &head, &own.rows);
    if let Some(note) = &own.note {
        let _ = writeln!(out, "{note}\n");
    }
    out
}

/// Each arm, and what was found to differ between them.
fn compared(experiment: &Experiment) -> String {
    let described = experiment.arms.iter();
    let described: Vec<String> = described
        .map(|arm| format!("{}: {}", arm.name, arm.description))
        .collect();
    let mut out = format!("{}:\n\n{}", arms::title(experiment), list(&described));
    for apart in arms::apart(experiment) {
        let end = if apart.facts.is_empty() { "." } else { ":" };
        let _ = writeln!(out, "{}{end}\n", apart.words());
        let facts = apart.facts.into_iter();
        let rows: Vec<Vec<String>> = facts.map(|f| vec![f.name, f.first, f.second]).collect();
        table(&mut out, &["", apart.base, apart.name], &rows);
    }
    if let Some(sentence) = arms::only(experiment) {
        let _ = writeln!(out, "{sentence}\n");
    }
    out
}

fn results(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    let metric = |row: &Row| experiment.metrics.iter().find(|m| m.name == row.metric);
    if experiment.arms.len() == 1 {
        let rows: Vec<Vec<String>> = analysis
            .rows
            .iter()
            .filter_map(|row| alone(row, metric(row)?))
            .collect();
        table(&mut out, &["", "median", "least", "most", "runs"], &rows);
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
        table(&mut out, &head, &rows);
    }
    out
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
