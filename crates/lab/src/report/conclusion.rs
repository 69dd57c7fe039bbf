//! The one sentence that a reader came for.

use crate::format::{self, Unit};
use crate::measure::result::{Claim, Experiment, Metric};
use crate::measure::stat::paired::{self, CONFIDENCE, Comparison};
use crate::measure::stat::verdict::Verdict;
use crate::number::real;
use crate::report::analysis::{Analysis, interval_words, ratio_words};

/// Comparisons that one sentence has room for.
const MOST: usize = 3;

/// What became of the hypothesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It holds over its whole interval: of the hypothesis, every claim.
    Held,
    /// It is wrong over its whole interval: of the hypothesis, one claim.
    Failed,
    /// Neither: an interval lies on both sides, or something was not measured.
    Unclear,
    /// There was no claim that could fail.
    Open,
}

/// The conclusion in one sentence: what became of the hypothesis, and the figures that say so.
#[must_use]
pub fn conclude(experiment: &Experiment, analysis: &Analysis) -> (Outcome, String) {
    if experiment.runs.is_empty() || analysis.rows.is_empty() {
        let why = experiment.interrupted.as_deref();
        let why = why.unwrap_or("the experiment ended before its first run");
        return (Outcome::Open, format!("Nothing was measured: {why}."));
    }
    let claims = &experiment.plan.claims;
    let judged: Vec<(Outcome, &Claim)> = claims
        .iter()
        .map(|claim| (judge(experiment, analysis, claim, claims.len()), claim))
        .collect();
    let with = |wanted: Outcome| -> Vec<&Claim> {
        let found = judged.iter().filter(|(outcome, _)| *outcome == wanted);
        found.map(|(_, claim)| *claim).collect()
    };
    let words = |claims: &[&Claim]| {
        let each = claims
            .iter()
            .map(|claim| in_words(experiment, analysis, claim));
        some_of(each.collect())
    };
    let (failed, unclear) = (with(Outcome::Failed), with(Outcome::Unclear));
    let stated = experiment.hypothesis.as_deref().unwrap_or_default();
    if claims.is_empty() {
        let figures = some_of(primary(experiment, analysis));
        return match stated {
            "" => (
                Outcome::Open,
                format!("Nothing was claimed, so nothing is judged: {figures}."),
            ),
            stated => {
                let sentence = format!(
                    "Whether {stated} is for the reader to judge, as no --claim says it in numbers: {figures}."
                );
                (Outcome::Open, sentence)
            }
        };
    }
    if analysis.is_blocked() {
        let sentence =
            format!("Cannot tell whether {stated}: something makes the comparison invalid.");
        (Outcome::Unclear, sentence)
    } else if !failed.is_empty() {
        let sentence = format!("The hypothesis failed that {stated}: {}.", words(&failed));
        (Outcome::Failed, sentence)
    } else if !unclear.is_empty() {
        let sentence = format!("Cannot tell whether {stated}: {}.", words(&unclear));
        (Outcome::Unclear, sentence)
    } else {
        let all: Vec<&Claim> = claims.iter().collect();
        let sentence = format!("The hypothesis held that {stated}: {}.", words(&all));
        (Outcome::Held, sentence)
    }
}

/// What `claim` compares.
pub(super) fn comparison(
    experiment: &Experiment,
    analysis: &Analysis,
    claim: &Claim,
) -> Option<Comparison> {
    match (claim.published, claim.against) {
        (Some(published), _) => {
            analysis.to_published(experiment, (&claim.metric, claim.arm), published)
        }
        (None, 0) => {
            let row = analysis.row(&claim.metric)?;
            row.comparisons.get(claim.arm)?.clone()
        }
        (None, base) => analysis.beside(experiment, &claim.metric, (base, claim.arm)),
    }
}

/// What `claim` is of: `p99, pgstrata full to quiet`.
pub(super) fn name(experiment: &Experiment, claim: &Claim) -> String {
    let title = title(experiment, claim);
    let arm = arm_name(experiment, claim.arm);
    match claim.published {
        Some(_) => format!("{title}, {arm} to the published"),
        None => format!("{title}, {arm} to {}", arm_name(experiment, claim.against)),
    }
}

fn title<'a>(experiment: &'a Experiment, claim: &'a Claim) -> &'a str {
    let mut metrics = experiment.metrics.iter();
    let known = metrics.find(|metric| metric.name == claim.metric);
    known.map_or(&claim.metric, |metric| &metric.title)
}

fn arm_name(experiment: &Experiment, arm: usize) -> &str {
    let arm = experiment.arms.get(arm);
    arm.map_or("?", |arm| arm.name.as_str())
}

/// What became of one of `bounds` claims that are judged together.
#[must_use]
pub fn judge(
    experiment: &Experiment,
    analysis: &Analysis,
    claim: &Claim,
    bounds: usize,
) -> Outcome {
    let compared = comparison(experiment, analysis, claim);
    // Of arms that ran one after another even a wide interval proves nothing: drift moves it.
    let is_founded =
        |compared: &Comparison| experiment.plan.interleaved && compared.verdict.is_founded();
    let founded = compared.filter(is_founded);
    let Some(interval) = founded.and_then(|compared| compared.interval) else {
        return Outcome::Unclear;
    };
    let (least, most) = (
        claim.at_least.unwrap_or(f64::NEG_INFINITY),
        claim.at_most.unwrap_or(f64::INFINITY),
    );
    if interval.low >= least && interval.high <= most {
        return Outcome::Held;
    }
    // One of many claims is wrong by chance more easily than one alone.
    let wide = paired_values(experiment, claim).and_then(|(base, arm)| {
        let error = (1.0 - CONFIDENCE) / real(bounds.max(1));
        paired::interval(&base, &arm, 1.0 - error)
    });
    match wide {
        Some(wide) if wide.high < least || wide.low > most => Outcome::Failed,
        _ => Outcome::Unclear,
    }
}

/// The values that `claim` compares, block by block; of arms that did not run in the same blocks there are none.
fn paired_values(experiment: &Experiment, claim: &Claim) -> Option<(Vec<f64>, Vec<f64>)> {
    experiment.plan.interleaved.then(|| {
        let blocks = experiment.counted_blocks();
        match claim.published {
            Some(published) => {
                let values = experiment.values(&claim.metric, claim.arm);
                (vec![published; values.len()], values)
            }
            None => experiment.pairs(&claim.metric, (claim.against, claim.arm), &blocks),
        }
    })
}

/// `p99 of pgstrata full is 3.2 (2.0 … 6.5) times that of quiet, and was to be at most 1.15`.
fn in_words(experiment: &Experiment, analysis: &Analysis, claim: &Claim) -> String {
    let measured = measured(experiment, analysis, claim);
    // As they were claimed: 1.15, and not 1.150.
    let bound = match (claim.at_least, claim.at_most) {
        (Some(least), None) => format!("at least {least}"),
        (None, Some(most)) => format!("at most {most}"),
        (least, most) => format!(
            "between {} and {}",
            least.unwrap_or_default(),
            most.unwrap_or_default()
        ),
    };
    format!("{measured}, and was to be {bound}")
}

fn measured(experiment: &Experiment, analysis: &Analysis, claim: &Claim) -> String {
    let (title, arm) = (title(experiment, claim), arm_name(experiment, claim.arm));
    let base = match claim.published {
        Some(published) => {
            let mut metrics = experiment.metrics.iter();
            let unit = metrics.find(|metric| metric.name == claim.metric);
            let unit = unit.map_or(Unit::Ratio, |metric| metric.unit);
            format!("the published {}", format::value(published, unit))
        }
        None => format!("that of {}", arm_name(experiment, claim.against)),
    };
    match comparison(experiment, analysis, claim) {
        // A figure in the first sentence would be believed, whatever the table says of it.
        Some(Comparison {
            verdict: Verdict::Partial { missing },
            ..
        }) => format!(
            "{title} of {arm} cannot be compared with {base}, as in {missing} blocks an arm has no value"
        ),
        Some(compared) if compared.interval.is_some() => format!(
            "{title} of {arm} is {} ({}) times {base}",
            ratio_words(&compared),
            interval_words(&compared)
        ),
        // Digits are for an interval to justify.
        Some(compared) => format!(
            "{title} of {arm} is {} times {base}, without an interval",
            format::value(compared.ratio, Unit::Ratio)
        ),
        None => format!("{title} of {arm} was not compared"),
    }
}

/// The primary metric of each arm; of one alone its value.
fn primary(experiment: &Experiment, analysis: &Analysis) -> Vec<String> {
    let Some(row) = analysis.rows.first() else {
        return Vec::new();
    };
    let of_row = |metric: &&Metric| metric.name == row.metric;
    if let ([arm], Some(metric)) = (&experiment.arms[..], experiment.metrics.iter().find(of_row)) {
        let value = experiment.middle(&row.metric, 0);
        let value = value.map_or_else(
            || format::MISSING.to_owned(),
            |value| format::value(value, metric.unit),
        );
        return vec![format!("{} of {} is {value}", metric.title, arm.name)];
    }
    let compared = (1..experiment.arms.len()).filter(|arm| {
        let found = row.comparisons.get(*arm);
        found.is_some_and(Option::is_some)
    });
    compared
        .map(|arm| {
            let of_base = Claim::at_most(&row.metric, arm, f64::INFINITY);
            measured(experiment, analysis, &of_base)
        })
        .collect()
}

fn some_of(mut each: Vec<String>) -> String {
    let more = each.len().saturating_sub(MOST);
    each.truncate(MOST);
    let mut text = each.join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Outcome, conclude};
    use crate::measure::result::{Claim, Experiment, Run};
    use crate::report::analysis::analyse;
    use std::collections::BTreeMap;

    /// Ten blocks in which the second arm does 0.9 of the first, with some spread.
    fn experiment(claims: &[Claim]) -> Experiment {
        let arm =
            |name: &str| serde_json::json!({"name": name, "description": "", "environment": null});
        let mut experiment: Experiment = serde_json::from_value(serde_json::json!({
            "schema": "", "lab_version": "", "kind": "", "title": "", "created": "", "command": [],
            "hypothesis": "B is as fast as A", "workload": "", "arms": [arm("A"), arm("B")], "runs": [], "tables": [],
            "metrics": [{"name": "tps", "title": "tps", "unit": "per_second", "better": "higher"}],
            "notes": [], "warnings": [], "interrupted": null,
            "plan": {"blocks": 10, "seconds": null, "seed": 0, "state": "", "margin": 0.01, "interleaved": true,
                "same_again": false, "allowed": [], "foreign_limit": 0.05, "sweep": null}
        }))
        .unwrap();
        experiment.plan.claims = claims.to_vec();
        experiment.runs = (0..10_u8)
            .flat_map(|block| {
                let noise = f64::from(block) * 0.1;
                [(0, 100.0 + noise), (1, 90.0 - noise)].map(|(arm, tps)| Run {
                    block: block.into(),
                    arm,
                    values: BTreeMap::from([("tps".to_owned(), tps)]),
                    ..Run::default()
                })
            })
            .collect();
        experiment
    }

    #[test]
    fn a_claim_may_name_another_arm_than_the_base() {
        // The other way round: the base does 1.11 of the second arm.
        let claim = Claim::at_least("tps", 0, 1.1).against(1);
        let experiment = experiment(std::slice::from_ref(&claim));
        let (found, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(found, Outcome::Held, "{sentence}");
        assert!(sentence.contains("tps of A is 1.1"), "{sentence}");
        assert!(sentence.contains("times that of B"), "{sentence}");
        let text = serde_json::to_string(&claim).unwrap();
        assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), claim);
        assert!(text.contains("\"against\":1"), "{text}");
    }

    #[test]
    fn a_hypothesis_holds_when_every_claim_does_and_fails_with_one() {
        let (low, high) = (
            Claim::at_least("tps", 1, 0.5),
            Claim::at_least("tps", 1, 0.97),
        );
        let between = Claim::at_least("tps", 1, 0.895);
        let unknown = Claim::at_most("p99", 1, 2.0);
        for (claims, outcome, words) in [
            (
                &[][..],
                Outcome::Open,
                "Whether B is as fast as A is for the reader to judge, as no --claim says it in numbers: tps of B is 0.",
            ),
            (
                std::slice::from_ref(&low),
                Outcome::Held,
                "The hypothesis held that B is as fast as A: tps of B is 0.",
            ),
            (
                &[low.clone(), high],
                Outcome::Failed,
                "The hypothesis failed that B is as fast as A: tps of B",
            ),
            (
                &[low.clone(), between],
                Outcome::Unclear,
                "Cannot tell whether B is as fast as A: tps of B",
            ),
            (
                &[low.clone(), unknown],
                Outcome::Unclear,
                "Cannot tell whether B is as fast as A: p99 of B was not compared",
            ),
        ] {
            let experiment = experiment(claims);
            let (found, sentence) = conclude(&experiment, &analyse(&experiment));
            assert_eq!(found, outcome, "{sentence}");
            assert!(sentence.starts_with(words), "{sentence}");
        }
    }

    #[test]
    fn of_what_is_missing_in_bad_blocks_no_figure_is_told() {
        let mut experiment = experiment(&[]);
        for run in &mut experiment.runs {
            if run.arm == 1 && run.block < 3 {
                run.values.clear();
            }
        }
        let (_, sentence) = conclude(&experiment, &analyse(&experiment));
        let told =
            "tps of B cannot be compared with that of A, as in 3 blocks an arm has no value.";
        assert!(sentence.ends_with(told), "{sentence}");
        experiment.plan.claims = vec![Claim::at_least("tps", 1, 0.5)];
        let (found, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(found, Outcome::Unclear, "{sentence}");
        // The same of another arm than the base.
        experiment.plan.claims = vec![Claim::at_least("tps", 0, 0.5).against(1)];
        let (found, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(found, Outcome::Unclear, "{sentence}");
    }

    #[test]
    fn of_arms_that_ran_one_after_another_no_bound_is_proven() {
        let wide = Claim::at_least("tps", 1, 0.5);
        for (is_interleaved, outcome) in [(true, Outcome::Held), (false, Outcome::Unclear)] {
            let mut experiment = experiment(std::slice::from_ref(&wide));
            experiment.plan.interleaved = is_interleaved;
            // So much noise that nothing is better or worse.
            for run in &mut experiment.runs {
                let scatter = if (run.block + run.arm) % 2 == 0 {
                    1.3
                } else {
                    1.0
                };
                run.values.insert("tps".to_owned(), 100.0 * scatter);
            }
            let (found, sentence) = conclude(&experiment, &analyse(&experiment));
            assert_eq!(found, outcome, "{sentence}");
        }
    }

    #[test]
    fn one_arm_is_told_by_its_value_and_nothing_by_its_reason() {
        let mut experiment = experiment(&[]);
        experiment.hypothesis = None;
        experiment.arms.truncate(1);
        experiment.runs.retain(|run| run.arm == 0);
        let (_, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(
            sentence,
            "Nothing was claimed, so nothing is judged: tps of A is 100."
        );
        experiment.runs.clear();
        experiment.interrupted = Some("no room".to_owned());
        let (_, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(sentence, "Nothing was measured: no room.");
    }

    #[test]
    fn a_bound_is_told_as_it_was_claimed_and_a_ratio_without_an_interval_without_its_digits() {
        let mut experiment = experiment(&[Claim::at_most("tps", 1, 1.15)]);
        let (_, sentence) = conclude(&experiment, &analyse(&experiment));
        assert!(
            sentence.ends_with(") times that of A, and was to be at most 1.15."),
            "{sentence}"
        );
        experiment.runs.retain(|run| run.block < 2);
        let (found, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(found, Outcome::Unclear, "{sentence}");
        let words = "tps of B is 0.899 times that of A, without an interval, and was";
        assert!(sentence.contains(words), "{sentence}");
    }

    #[test]
    fn a_claim_may_be_of_what_was_published() {
        let mut experiment = experiment(&[]);
        experiment.arms.truncate(1);
        experiment.runs.retain(|run| run.arm == 0);
        // From 100 to 100.9 was measured.
        for (published, outcome) in [
            (110.0, Outcome::Held),
            (100.4, Outcome::Unclear),
            (90.0, Outcome::Failed),
        ] {
            let claim = Claim::at_most("tps", 0, 1.0).to_published(published);
            let text = serde_json::to_string(&claim).unwrap();
            assert_eq!(serde_json::from_str::<Claim>(&text).unwrap(), claim);
            experiment.plan.claims = vec![claim];
            let (found, sentence) = conclude(&experiment, &analyse(&experiment));
            assert_eq!(found, outcome, "{sentence}");
            let words = format!("times the published {published:.0}");
            assert!(sentence.contains(&words), "{sentence}");
        }
        experiment.runs[3].values.clear();
        let (found, sentence) = conclude(&experiment, &analyse(&experiment));
        assert_eq!(found, Outcome::Unclear, "{sentence}");
        assert!(sentence.contains("in 1 blocks"), "{sentence}");
    }

    #[test]
    fn one_claim_of_many_fails_less_easily_than_one_alone() {
        // Seven blocks are just enough to prove one bound wrong, and too few for one of five.
        let failing = Claim::at_least("tps", 1, 0.97);
        let with = |claims: &[Claim]| {
            let mut experiment = experiment(claims);
            experiment.runs.retain(|run| run.block < 7);
            conclude(&experiment, &analyse(&experiment)).0
        };
        assert_eq!(with(std::slice::from_ref(&failing)), Outcome::Failed);
        let mut five = vec![Claim::at_least("tps", 1, 0.5); 4];
        five.push(failing);
        assert_eq!(with(&five), Outcome::Unclear);
    }
}
