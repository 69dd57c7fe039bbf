//! Every value of every run, for a spreadsheet.

use crate::result::Experiment;

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

fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
