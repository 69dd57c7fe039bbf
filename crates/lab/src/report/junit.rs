//! A gate's outcome as JUnit XML, and as Bencher Metric Format.

use serde_json::{Value, json};

use super::chart::escape;
use crate::analysis::Analysis;
use crate::expectation::Gate;
use crate::result::Experiment;

/// One condition and what came of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The condition and the arm.
    pub name: String,
    /// What came of it.
    pub outcome: Gate,
    /// The numbers.
    pub message: String,
}

/// JUnit XML: failed conditions fail, unclear ones are errors.
#[must_use]
pub fn render(title: &str, cases: &[Case]) -> String {
    let count = |outcome: Gate| cases.iter().filter(|c| c.outcome == outcome).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\">\n",
        escape(title),
        cases.len(),
        count(Gate::Failed),
        count(Gate::Unclear)
    );
    for case in cases {
        let (name, message) = (escape(&case.name), escape(&case.message));
        out.push_str(&format!(
            "<testcase classname=\"pgstrata-lab\" name=\"{name}\">"
        ));
        match case.outcome {
            Gate::Passed => {}
            Gate::Failed => out.push_str(&format!("<failure message=\"{message}\"/>")),
            Gate::Unclear => out.push_str(&format!("<error message=\"unclear: {message}\"/>")),
        }
        out.push_str("</testcase>\n");
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// Bencher Metric Format: medians with least and most, per arm and metric.
#[must_use]
pub fn bencher(experiment: &Experiment, analysis: &Analysis) -> Value {
    let mut all = serde_json::Map::new();
    for (index, arm) in experiment.arms.iter().enumerate() {
        let mut measures = serde_json::Map::new();
        for row in &analysis.rows {
            if let Some(Some(summary)) = row.arms.get(index) {
                measures.insert(
                    row.metric.clone(),
                    json!({"value": summary.median, "lower_value": summary.least, "upper_value": summary.most}),
                );
            }
        }
        all.insert(
            format!("{} {}", experiment.kind, arm.name),
            Value::Object(measures),
        );
    }
    Value::Object(all)
}
