//! A gate's outcome as JUnit XML, and as Bencher Metric Format.

use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::{Value, json};

use crate::measure::expectation::Gate;
use crate::measure::result::Experiment;
use crate::report::analysis::Analysis;

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
///
/// # Errors
/// Fails when a name cannot be written as XML.
pub fn render(title: &str, cases: &[Case]) -> Result<String> {
    let mut suite = TestSuite::new(title);
    for case in cases {
        let mut test = TestCase::new(case.name.as_str(), status(case));
        test.set_classname("pgstrata-lab");
        suite.add_test_case(test);
    }
    let mut report = Report::new("pgstrata-lab");
    report.add_test_suite(suite);
    report.to_string().context("could not write JUnit XML")
}

fn status(case: &Case) -> TestCaseStatus {
    let (kind, message) = match case.outcome {
        Gate::Passed => return TestCaseStatus::success(),
        Gate::Failed => (NonSuccessKind::Failure, case.message.clone()),
        Gate::Unclear => (NonSuccessKind::Error, format!("unclear: {}", case.message)),
    };
    let mut status = TestCaseStatus::non_success(kind);
    status.set_message(message);
    status
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
