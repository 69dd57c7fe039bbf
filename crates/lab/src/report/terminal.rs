//! The report for a terminal of eighty columns.

use std::fmt::Write as _;

use super::{arms, unstable};
use crate::format;
use crate::measure::environment::Level;
use crate::measure::result::{Experiment, Metric, Table};
use crate::measure::stat;
use crate::number::real;
use crate::report::analysis::{Analysis, Row, interval_words, ratio_words};
use crate::report::conclusion::conclude;

/// Below this a cell has a unit of its own: in that of its row it would be all zeros.
const SMALLEST: f64 = 0.001;

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
    let mut parts = vec![
        format!("{}\n", experiment.title),
        wrapped(&conclude(experiment, analysis).1) + "\n",
        beware(experiment, analysis),
        facts(experiment, analysis),
    ];
    parts.extend(experiment.tables.iter().map(words_table));
    if experiment.arms.len() > 1 {
        parts.push(comparisons(experiment, analysis));
    } else if experiment.tables.is_empty() {
        parts.push(single(experiment, analysis));
    }
    parts.push(compared(experiment));
    parts.push(footer(experiment, analysis));
    unstable::explain(&mut parts, &(wrapped(unstable::MEANING) + "\n"));
    let mut out = parts.concat();
    if style.colour {
        out = colour(&out);
    }
    if style.ascii { ascii(&out) } else { out }
}

/// What was done, and how often.
fn facts(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    let plan = &experiment.plan;
    let _ = writeln!(out, "workload    {}", experiment.workload);
    let hypothesis = experiment.hypothesis.as_deref().unwrap_or("none stated");
    if experiment.arms.len() > 1 || experiment.hypothesis.is_some() {
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
    out.push('\n');
    out
}

/// What a reader must know before any figure.
fn beware(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
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
    let sentences = analysis.dropped_words().into_iter();
    for sentence in sentences.chain(analysis.drift_words(experiment)) {
        out.push_str(&wrapped(&sentence));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

fn metric<'a>(experiment: &'a Experiment, row: &Row) -> Option<&'a Metric> {
    experiment.metrics.iter().find(|m| m.name == row.metric)
}

/// One block of lines per arm: many arms do not fit side by side.
fn comparisons(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    if analysis.rows.is_empty() {
        return out;
    }
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
        out.push_str(&aligned(&rows));
        out.push('\n');
    }
    if let Some((_, p)) = analysis.page {
        let _ = writeln!(
            out,
            "trend       Page's test that the metric falls as the setting rises: p = {}\n",
            format::p_value(p)
        );
    }
    out
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

fn single(experiment: &Experiment, analysis: &Analysis) -> String {
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
    match rows.len() {
        0 | 1 => String::new(),
        _ => aligned(&rows) + "\n",
    }
}

fn words_table(table: &Table) -> String {
    let mut rows = vec![table.head.clone()];
    rows.extend(table.rows.iter().cloned());
    let note = table.note.as_deref().map(wrapped).unwrap_or_default();
    format!("{}\n{}{note}\n", table.title, aligned(&rows))
}

/// Each arm, and what was found to differ between them.
fn compared(experiment: &Experiment) -> String {
    let mut out = format!("{}\n", arms::title(experiment));
    let described = experiment.arms.iter();
    let described: Vec<[String; 2]> = described
        .map(|arm| [arm.name.clone(), arm.description.clone()])
        .collect();
    out.push_str(&aligned(&described));
    for apart in arms::apart(experiment) {
        let _ = writeln!(out, "{}", apart.words());
        let mut rows = vec![["", apart.base, apart.name].map(str::to_owned)];
        let facts = apart.facts.into_iter();
        rows.extend(facts.map(|fact| [fact.name, fact.first, fact.second]));
        if rows.len() > 1 {
            out.push_str(&aligned(&rows));
        }
    }
    if let Some(sentence) = arms::only(experiment) {
        out.push_str(&wrapped(&sentence));
    }
    out.push('\n');
    out
}

/// A paragraph in lines of at most eighty columns.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
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
    out
}

/// Columns padded to their widest cell; the first to the left, the rest as they are.
fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let mut out = String::new();
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
    out
}

fn footer(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    for sentence in &analysis.bottlenecks {
        let _ = writeln!(out, "{sentence}");
    }
    for sentence in &analysis.unsteady {
        let _ = writeln!(out, "not steady  {sentence}");
    }
    for note in &experiment.notes {
        out.push_str(&wrapped(note));
    }
    let _ = writeln!(out, "repeat      {}", experiment.typed());
    out
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
            // A bare tilde marks an interval.
            '≈' => out.push_str("~="),
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

/// The median with its spread in per cent, "110.9k ± 2 %"; with its range where per cent mean nothing any more.
fn with_spread(values: &[f64], unit: format::Unit, largest: f64) -> String {
    if values.is_empty() {
        return format::MISSING.to_owned();
    }
    if values.iter().all(|v| *v == 0.0) {
        return format::value(0.0, unit);
    }
    let centre = stat::median(values);
    let spread = stat::standard_deviation(values);
    if spread.is_finite() && spread > centre.abs() {
        let value = |v: f64| format::value(v, unit);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        return format!("{} ({} … {})", value(centre), value(least), value(most));
    }
    let mut scale = unit.scale(largest);
    if (centre / scale.divisor).abs() < SMALLEST {
        scale = unit.scale(centre);
    }
    let scaled = centre / scale.divisor;
    let half = spread / real(values.len()).sqrt() * 1.96 / scale.divisor;
    let three = format::three_digits(scaled);
    // However wide the spread is, two digits remain.
    let places = if half.is_finite() && half > 0.0 {
        format::decimals(half).clamp(three.saturating_sub(1), three + 1)
    } else {
        three
    };
    let number = format!("{scaled:.places$}{}", scale.suffix);
    if spread.is_finite() {
        format!("{number} ± {}", format::percent(spread / centre.abs()))
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

    #[test]
    fn a_spread_leaves_two_digits_and_is_a_range_when_it_exceeds_the_value() {
        let seconds = |values: &[f64], largest| with_spread(values, format::Unit::Seconds, largest);
        // Of an experiment: the row has seconds, the median is 1.89 ms.
        let wild = [0.001_10, 0.001_80, 0.001_98, 2.96];
        assert_eq!(seconds(&wild, 1.6), "1.89 ms (1.10 ms … 2.96 s)");
        assert_eq!(seconds(&[0.2, 0.5, 0.9], 1.6), "0.50 s ± 70 %");
        assert_eq!(seconds(&[4.0, 2.0, 6.9], 9.0), "4.0 s ± 62 %");
        // A median of nothing has a range too.
        assert_eq!(seconds(&[0.0, 0.0, 2.0], 9.0), "0 s (0 s … 2.00 s)");
        assert_eq!(
            seconds(&[0.000_010, 0.000_020, 0.000_030], 9.0),
            "20 µs ± 50 %"
        );
        assert_eq!(seconds(&[1.0], 9.0), "1.00 s");
    }

    #[test]
    fn in_ascii_only_an_interval_is_marked_by_a_bare_tilde() {
        assert_eq!(
            ascii("0.5 … 1.2 ~, ≈ 3 blocks"),
            "0.5 .. 1.2 ~, ~= 3 blocks"
        );
    }
}
