//! Every value of every run, for a spreadsheet; and medians, for a history.

use crate::measure::result::Experiment;
use crate::report::analysis::Analysis;

/// One line per run and value; blocks and places in them are counted from 1, as everywhere in reports.
#[must_use]
pub fn render(experiment: &Experiment) -> String {
    let mut out = String::from("block,position,arm,started,counted,metric,value\n");
    let counted = experiment.counted_blocks();
    for run in &experiment.runs {
        for (name, value) in &run.values {
            out.push_str(&format!(
                "{},{},{},{:.3},{},{},{value}\n",
                run.block + 1,
                run.position + 1,
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

#[cfg(test)]
mod tests {
    use super::render;
    use crate::measure::result::{Arm, Experiment, Run};

    #[test]
    fn blocks_are_counted_from_1_as_in_reports() {
        let run = Run {
            values: [("tps".to_owned(), 2.5)].into(),
            ..Run::default()
        };
        let arm = Arm {
            name: "A".to_owned(),
            description: String::new(),
            environment: None,
        };
        let text = render(&Experiment {
            arms: vec![arm],
            runs: vec![run],
            ..Experiment::default()
        });
        assert_eq!(text.lines().nth(1), Some("1,1,A,0.000,true,tps,2.5"));
    }
}
