//! The report for a terminal of eighty columns.

use std::fmt::Write as _;

use crate::format;
use crate::measure::environment::Level;
use crate::measure::result::{Experiment, Metric, Table};
use crate::measure::stat;
use crate::number::real;
use crate::report::analysis::{Analysis, Row, interval_words, ratio_words};
use crate::report::conclusion::conclude;

/// How to print.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Letters, digits and signs of ASCII only.
    pub ascii: bool,
    /// With colours.
    pub colour: bool,
}

/// The experiment in words and tables.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis, style: Style) -> String {
    let mut out = String::new();
    header(&mut out, experiment, analysis);
    if let Some((_, sentence)) = conclude(experiment, analysis) {
        wrapped(&mut out, &sentence);
        out.push('\n');
    }
    for table in &experiment.tables {
        words_table(&mut out, table);
    }
    if experiment.arms.len() > 1 {
        comparisons(&mut out, experiment, analysis);
    } else if experiment.tables.is_empty() {
        single(&mut out, experiment, analysis);
    }
    footer(&mut out, experiment, analysis);
    if style.colour {
        out = colour(&out);
    }
    if style.ascii { ascii(&out) } else { out }
}

fn header(out: &mut String, experiment: &Experiment, analysis: &Analysis) {
    let plan = &experiment.plan;
    let _ = writeln!(out, "{}", experiment.title);
    let _ = writeln!(out, "workload    {}", experiment.workload);
    let hypothesis = experiment.hypothesis.as_deref().unwrap_or("none stated");
    if experiment.arms.len() > 1 {
        let _ = writeln!(out, "hypothesis  {hypothesis}");
    }
    let seconds = plan
        .seconds
        .map(|s| format!(" × {s} s"))
        .unwrap_or_default();
    let order = if plan.interleaved {
        "random order"
    } else {
        "one after another"
    };
    let _ = writeln!(
        out,
        "plan        {} blocks × {} arms{seconds}, {order} (seed {}), state {}, {} counted, {} dropped",
        plan.blocks,
        experiment.arms.len(),
        plan.seed,
        plan.state,
        analysis.counted.len(),
        analysis.dropped.len()
    );
    for (block, why) in &analysis.dropped {
        let _ = writeln!(out, "dropped     block {block}: {why}");
    }
    if let Some(why) = &experiment.interrupted {
        let _ = writeln!(out, "incomplete  {why}");
    }
    out.push('\n');
}

fn metric<'a>(experiment: &'a Experiment, row: &Row) -> Option<&'a Metric> {
    experiment.metrics.iter().find(|m| m.name == row.metric)
}

/// One block of lines per arm: many arms do not fit side by side.
fn comparisons(out: &mut String, experiment: &Experiment, analysis: &Analysis) {
    for arm in 1..experiment.arms.len() {
        let noise = experiment.plan.same_again && arm + 1 == experiment.arms.len();
        let base = &experiment.arms[0].name;
        let name = &experiment.arms[arm].name;
        if noise {
            let _ = writeln!(out, "noise floor: {base} (A) against itself (A′)");
        }
        let mut rows = vec![[
            String::new(),
            format!("{base} (A)"),
            format!("{name} (B)"),
            "B/A".to_owned(),
            "95 % CI".to_owned(),
            "verdict".to_owned(),
        ]];
        for row in &analysis.rows {
            if let Some(metric) = metric(experiment, row) {
                rows.push(comparison_cells(experiment, row, metric, arm));
            }
        }
        aligned(out, &rows);
        out.push('\n');
    }
    if let Some((_, p)) = analysis.page {
        let _ = writeln!(
            out,
            "trend       Page's test that the metric falls as the setting rises: p = {}\n",
            format::p_value(p)
        );
    }
}

/// The cells of one metric for one arm against the base.
#[must_use]
pub fn comparison_cells(
    experiment: &Experiment,
    row: &Row,
    metric: &Metric,
    arm: usize,
) -> [String; 6] {
    let values = |arm: usize| experiment.values(&metric.name, arm);
    let largest = row
        .arms
        .iter()
        .flatten()
        .map(|summary| summary.median)
        .fold(0.0, f64::max);
    let cell = |arm: usize| with_spread(&values(arm), metric.unit, largest);
    let compared = row.comparisons.get(arm).and_then(Option::as_ref);
    [
        metric.title.clone(),
        cell(0),
        cell(arm),
        compared.map_or_else(|| format::MISSING.to_owned(), ratio_words),
        compared.map_or_else(String::new, interval_words),
        compared.map_or_else(String::new, |c| c.verdict.words(experiment.plan.margin)),
    ]
}

fn single(out: &mut String, experiment: &Experiment, analysis: &Analysis) {
    let mut rows = vec![["", "median", "least", "most", "runs", ""].map(str::to_owned)];
    for row in &analysis.rows {
        let (Some(metric), Some(Some(summary))) = (metric(experiment, row), row.arms.first())
        else {
            continue;
        };
        rows.push([
            metric.title.clone(),
            format::value(summary.median, metric.unit),
            format::value(summary.least, metric.unit),
            format::value(summary.most, metric.unit),
            summary.count.to_string(),
            String::new(),
        ]);
    }
    if rows.len() > 1 {
        aligned(out, &rows);
        out.push('\n');
    }
}

fn words_table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "{}", table.title);
    let mut rows = vec![table.head.clone()];
    rows.extend(table.rows.iter().cloned());
    aligned(out, &rows);
    if let Some(note) = &table.note {
        wrapped(out, note);
    }
    out.push('\n');
}

/// A paragraph in lines of at most eighty columns.
fn wrapped(out: &mut String, text: &str) {
    let mut column = 0;
    for word in text.split_ascii_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > 80 {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}

/// Columns padded to their widest cell; the first to the left, the rest as they are.
fn aligned<R: AsRef<[String]>>(out: &mut String, rows: &[R]) {
    let columns = rows.iter().map(|r| r.as_ref().len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.as_ref().get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            let padding = width - cell.chars().count();
            line.push_str(cell);
            line.push_str(&" ".repeat(padding + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn footer(out: &mut String, experiment: &Experiment, analysis: &Analysis) {
    for sentence in &analysis.bottlenecks {
        let _ = writeln!(out, "{sentence}");
    }
    for sentence in &analysis.unsteady {
        let _ = writeln!(out, "not steady  {sentence}");
    }
    if let Some(drift) = analysis.drift.as_ref().filter(|d| d.p < 0.05) {
        let _ = writeln!(
            out,
            "drift       {} per run (p = {}), lag-1 autocorrelation {:.2}",
            format::percent(drift.per_run),
            format::p_value(drift.p),
            drift.autocorrelation
        );
    }
    for note in &experiment.notes {
        wrapped(out, note);
    }
    for warning in &analysis.warnings {
        let sign = match warning.level {
            Level::Block => "✗",
            Level::Warn => "!",
            Level::Info => "i",
        };
        let _ = writeln!(
            out,
            "{sign} {}  {}: {}",
            warning.id, warning.found, warning.why
        );
        if warning.level != Level::Info {
            let _ = writeln!(out, "    {}", warning.fix);
        }
    }
}

fn colour(text: &str) -> String {
    text.replace("▲", "\u{1b}[36m▲\u{1b}[0m")
        .replace("▼", "\u{1b}[33m▼\u{1b}[0m")
        .replace("✗", "\u{1b}[31m✗\u{1b}[0m")
}

fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '±' => out.push_str("+-"),
            '×' => out.push('x'),
            '…' => out.push_str(".."),
            '–' | '−' => out.push('-'),
            '≈' => out.push('~'),
            '▲' => out.push('+'),
            '▼' => out.push('-'),
            '✗' => out.push('X'),
            '≠' => out.push_str("!="),
            'µ' => out.push('u'),
            '′' => out.push('\''),
            '≤' => out.push_str("<="),
            '≥' => out.push_str(">="),
            '\u{a0}' => out.push(' '),
            c if c.is_ascii() => out.push(c),
            _ => out.push('?'),
        }
    }
    out
}

/// The median with its spread in per cent: "110.9k ± 2 %".
fn with_spread(values: &[f64], unit: format::Unit, largest: f64) -> String {
    if values.is_empty() {
        return format::MISSING.to_owned();
    }
    if values.iter().all(|v| *v == 0.0) {
        return format::value(0.0, unit);
    }
    let centre = stat::median(values);
    let spread = stat::standard_deviation(values);
    let scale = unit.scale(largest);
    let half = spread / real(values.len()).sqrt() * 1.96 / scale.divisor;
    let places = if half.is_finite() && half > 0.0 {
        format::decimals(half).min(format::three_digits(centre / scale.divisor) + 1)
    } else {
        format::three_digits(centre / scale.divisor)
    };
    let number = format!("{:.places$}{}", centre / scale.divisor, scale.suffix);
    if spread.is_finite() && centre != 0.0 {
        format!("{number} ± {}", format::percent(spread / centre))
    } else {
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_shows_its_spread() {
        let spread = with_spread(
            &[110_000.0, 112_000.0, 111_000.0],
            format::Unit::PerSecond,
            112_000.0,
        );
        assert!(spread.starts_with("111"), "{spread}");
        assert!(spread.contains('±'), "{spread}");
    }
}
