//! Every value of every run, for a spreadsheet; and medians, for a history.

use crate::measure::result::Experiment;
use crate::report::analysis::Analysis;

/// One line per run and value.
#[must_use]
pub fn render(experiment: &Experiment) -> String {
    let mut out = String::from("block,position,arm,started,counted,metric,value\n");
    let counted = experiment.counted_blocks();
    for run in &experiment.runs {
        for (name, value) in &run.values {
            out.push_str(&format!(
                "{},{},{},{:.3},{},{},{value}\n",
                run.block,
                run.position,
                cell(&experiment.arms[run.arm].name),
                run.started,
                counted.contains(&run.block),
                cell(name)
            ));
        }
    }
    out
}

/// A header and one line: when, and the median of each metric in each arm. Lines
/// of later results go below it; change point detection such as Apache Otava's
/// reads such files, with `time` as its time column.
#[must_use]
pub fn history(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut header = String::from("time");
    let mut line = cell(&experiment.created);
    for row in &analysis.rows {
        for (arm, summary) in experiment.arms.iter().zip(&row.arms) {
            header.push_str(&format!(
                ",{}",
                cell(&format!("{} {}", row.metric, arm.name))
            ));
            line.push(',');
            // Too few runs for a metric leave an empty cell, so that columns stay where they are.
            if let Some(summary) = summary {
                line.push_str(&summary.median.to_string());
            }
        }
    }
    format!("{header}\n{line}\n")
}

fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
