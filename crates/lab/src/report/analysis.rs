//! From a result file to its statements: pure, so that a report made
//! elsewhere has the same numbers.

use serde::{Deserialize, Serialize};

use crate::format;
use crate::measure::environment::warning::warning;
use crate::measure::environment::{Level, Warning};
use crate::measure::result::{Experiment, FOREIGN, Run};
use crate::measure::stat::paired::{self, Comparison};
use crate::measure::stat::plan::{FEWEST_BLOCKS, blocks_to_prove};
use crate::measure::stat::verdict::{Better, Verdict};
use crate::measure::stat::{holm, mean, median, sorted, standard_deviation, trend};
use crate::number::real;

/// Shuffles of a change-point test: p to about 0.005 near 0.05.
const SHUFFLES: usize = 2000;

/// The values of one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Counted values.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
    /// Standard deviation; absent below two values.
    pub deviation: Option<f64>,
}

/// One metric over all arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the metric.
    pub metric: String,
    /// Per arm; absent where it has no values.
    pub arms: Vec<Option<Summary>>,
    /// Per arm against the base; the base's is absent.
    pub comparisons: Vec<Option<Comparison>>,
    /// The same with contaminated blocks left in, where that differs.
    pub with_all_blocks: Option<Vec<Option<Comparison>>>,
}

/// A trend over the time of the experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// p-value of Mann–Kendall's test.
    pub p: f64,
    /// Relative change per run.
    pub per_run: f64,
    /// Correlation of neighbouring runs.
    pub autocorrelation: f64,
    /// Median ratio of what ran first in a block to what ran second.
    pub order_effect: Option<f64>,
}

/// Everything the reports say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// Blocks that count.
    pub counted: Vec<usize>,
    /// Blocks that do not, with the reason.
    pub dropped: Vec<(usize, String)>,
    /// One row per metric that was measured.
    pub rows: Vec<Row>,
    /// Drift of the primary metric.
    pub drift: Option<Drift>,
    /// Page's test of the primary metric over a sweep: L and one-sided p of falling values. Absent where there are too few
    /// blocks for it.
    pub page: Option<(f64, f64)>,
    /// What limited each arm.
    pub bottlenecks: Vec<String>,
    /// Runs whose throughput changed its level: sentences.
    pub unsteady: Vec<String>,
    /// All warnings, gravest first.
    pub warnings: Vec<Warning>,
}

/// Analyses an experiment.
#[must_use]
pub fn analyse(experiment: &Experiment) -> Analysis {
    let warnings = warnings(experiment);
    let withheld = warnings.iter().any(|w| w.level == Level::Block);
    let counted = experiment.counted_blocks();
    let complete = experiment.complete_blocks();
    let mut rows: Vec<Row> = Vec::new();
    for metric in &experiment.metrics {
        let mut row = row(experiment, &metric.name, metric.better, &counted);
        if row.arms.iter().all(Option::is_none) {
            continue;
        }
        if complete != counted {
            row.with_all_blocks =
                Some(self::row(experiment, &metric.name, metric.better, &complete).comparisons);
        }
        if withheld {
            for compared in row.comparisons.iter_mut().flatten() {
                compared.verdict = Verdict::Withheld;
            }
        }
        rows.push(row);
    }
    Analysis {
        dropped: dropped(experiment, &counted),
        drift: drift(experiment, &counted),
        page: page(experiment, &counted),
        bottlenecks: crate::report::bottleneck::sentences(experiment),
        unsteady: unsteady(experiment),
        counted,
        rows,
        warnings,
    }
}

impl Analysis {
    /// Whether a condition makes the comparison invalid.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.warnings.iter().any(|w| w.level == Level::Block)
    }

    /// An arm's ratio to another one than the base, from the blocks that count. It is not corrected for other comparisons.
    #[must_use]
    pub fn beside(
        &self,
        experiment: &Experiment,
        metric: &str,
        arms: (usize, usize),
    ) -> Option<Comparison> {
        let pairs = experiment.pairs(metric, arms, &self.counted);
        let missing = experiment.missing(metric, arms, &self.counted);
        self.compared(experiment, metric, pairs, missing)
    }

    /// An arm's ratio to a published value, from the blocks that count.
    #[must_use]
    pub fn to_published(
        &self,
        experiment: &Experiment,
        (metric, arm): (&str, usize),
        published: f64,
    ) -> Option<Comparison> {
        let values = experiment.values(metric, arm);
        let missing = self.counted.len().saturating_sub(values.len());
        let pairs = (vec![published; values.len()], values);
        self.compared(experiment, metric, pairs, missing)
    }

    /// The ratio of the second values to the first ones; in `missing` blocks there were none.
    fn compared(
        &self,
        experiment: &Experiment,
        metric: &str,
        (base, values): (Vec<f64>, Vec<f64>),
        missing: usize,
    ) -> Option<Comparison> {
        let plan = &experiment.plan;
        let better = experiment.metrics.iter().find(|m| m.name == metric)?.better;
        let mut compared = paired::compare(&base, &values, better, plan.margin, plan.seed)?;
        withhold_partial(missing, &mut compared);
        if self.is_blocked() {
            compared.verdict = Verdict::Withheld;
        }
        Some(compared)
    }

    /// A sentence for each block that does not count; a reader counts them from 1.
    #[must_use]
    pub fn dropped_words(&self) -> Vec<String> {
        let words =
            |(block, why): &(usize, String)| format!("Block {} does not count: {why}.", block + 1);
        self.dropped.iter().map(words).collect()
    }

    /// The drift of the primary metric, where there is one.
    #[must_use]
    pub fn drift_words(&self, experiment: &Experiment) -> Option<String> {
        let drift = self.drift.as_ref().filter(|drift| drift.p < 0.05)?;
        let direction = if drift.per_run < 0.0 {
            "falls"
        } else {
            "rises"
        };
        let kept = match experiment.plan.interleaved {
            true => "Blocks take this out of ratios, not out of values",
            false => "It is in ratios as well as in values",
        };
        Some(format!(
            "Drift: {} {direction} by {} from run to run (p = {}, lag-1 autocorrelation {:.2}). {kept}.",
            experiment.metrics.first()?.title,
            format::percent(drift.per_run.abs()),
            format::p_value(drift.p),
            drift.autocorrelation
        ))
    }

    /// The row of a metric.
    #[must_use]
    pub fn row(&self, metric: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.metric == metric)
    }
}

/// The ratio, with the digits its interval justifies.
#[must_use]
pub fn ratio_words(compared: &Comparison) -> String {
    format::ratio(compared.ratio, compared.interval.map(|i| i.width() / 2.0))
}

/// The interval.
#[must_use]
pub fn interval_words(compared: &Comparison) -> String {
    compared.interval.map_or_else(
        || format::MISSING.to_owned(),
        |interval| {
            let half = Some(interval.width() / 2.0);
            format!(
                "{} … {}{}",
                format::ratio(interval.low, half),
                format::ratio(interval.high, half),
                if compared.unstable { " ~" } else { "" }
            )
        },
    )
}

fn row(experiment: &Experiment, metric: &str, better: Better, blocks: &[usize]) -> Row {
    let arms = experiment.arms.len();
    let plan = &experiment.plan;
    let of = |arm: usize| -> Vec<f64> {
        experiment
            .runs
            .iter()
            .filter(|run| run.arm == arm && blocks.contains(&run.block))
            .filter_map(|run| run.values.get(metric).copied())
            .collect()
    };
    let mut comparisons: Vec<Option<Comparison>> = (0..arms)
        .map(|arm| {
            if arm == 0 {
                return None;
            }
            if !plan.interleaved {
                return paired::compare_unpaired(&of(0), &of(arm), better, plan.margin);
            }
            let (base, values) = experiment.pairs(metric, (0, arm), blocks);
            paired::compare(&base, &values, better, plan.margin, plan.seed)
        })
        .collect();
    correct(&mut comparisons, plan.same_again);
    if plan.interleaved {
        for (arm, compared) in comparisons.iter_mut().enumerate() {
            if let Some(compared) = compared {
                let missing = experiment.missing(metric, (0, arm), blocks);
                withhold_partial(missing, compared);
            }
        }
    }
    Row {
        metric: metric.to_owned(),
        arms: (0..arms).map(|arm| summary(&of(arm))).collect(),
        comparisons,
        with_all_blocks: None,
    }
}

/// Blocks without a value are those in which it went wrong: of the others alone nothing is concluded.
fn withhold_partial(missing: usize, compared: &mut Comparison) {
    if missing > 0 {
        compared.verdict = Verdict::Partial { missing };
    }
}

/// Holm's correction over the arms; the base's second showing is no claim. A
/// claim that does not survive becomes unclear.
fn correct(comparisons: &mut [Option<Comparison>], same_again: bool) {
    let claims = comparisons.len() - usize::from(same_again);
    let mut compared: Vec<&mut Comparison> = comparisons[..claims].iter_mut().flatten().collect();
    let p_values: Vec<f64> = compared.iter().map(|c| c.p).collect();
    let count = compared.len();
    for (comparison, adjusted) in compared.iter_mut().zip(holm(&p_values)) {
        comparison.p_adjusted = adjusted;
        let claim = matches!(
            comparison.verdict,
            Verdict::Better | Verdict::Worse | Verdict::Different
        );
        if claim && adjusted > 1.0 - paired::CONFIDENCE {
            let level = (1.0 - paired::CONFIDENCE) * comparison.p / adjusted;
            let needed = blocks_to_prove(comparison.blocks, comparison.p, level).max(fewest(count));
            comparison.verdict = Verdict::Unclear {
                more_blocks: needed.saturating_sub(comparison.blocks).max(1),
            };
        }
    }
}

/// Blocks below which the smallest p, corrected for so many claims, proves nothing.
fn fewest(claims: usize) -> usize {
    let mut blocks = 1;
    let mut p = real(claims);
    while p > 1.0 - paired::CONFIDENCE {
        p /= 2.0;
        blocks += 1;
    }
    blocks
}

fn summary(values: &[f64]) -> Option<Summary> {
    let ordered = sorted(values);
    Some(Summary {
        count: values.len(),
        median: median(values),
        mean: mean(values),
        least: *ordered.first()?,
        most: *ordered.last()?,
        deviation: (values.len() > 1).then(|| standard_deviation(values)),
    })
}

fn dropped(experiment: &Experiment, counted: &[usize]) -> Vec<(usize, String)> {
    let last = experiment.runs.iter().map(|run| run.block).max();
    let mut dropped = Vec::new();
    for block in 0..last.map_or(0, |last| last + 1) {
        if counted.contains(&block) {
            continue;
        }
        let reason = experiment
            .runs
            .iter()
            .filter(|run| run.block == block)
            .find_map(|run| run.dropped.clone());
        dropped.push((
            block,
            reason.unwrap_or_else(|| {
                if experiment.is_contaminated(block) {
                    "other programs used the processor".to_owned()
                } else {
                    "it is not complete".to_owned()
                }
            }),
        ));
    }
    dropped
}

fn drift(experiment: &Experiment, counted: &[usize]) -> Option<Drift> {
    let metric = &experiment.metrics.first()?.name;
    let runs: Vec<&Run> = experiment
        .runs
        .iter()
        .filter(|run| counted.contains(&run.block) && run.values.contains_key(metric))
        .collect();
    if runs.len() < 8 {
        return None;
    }
    // Each arm by its own median: what remains is time.
    let medians: Vec<f64> = (0..experiment.arms.len())
        .map(|arm| median(&experiment.values(metric, arm)))
        .collect();
    let residuals: Vec<f64> = runs
        .iter()
        .map(|run| run.values[metric] / medians[run.arm])
        .collect();
    if residuals.iter().any(|r| !r.is_finite()) {
        return None;
    }
    let trend = trend::mann_kendall(&residuals);
    Some(Drift {
        p: trend.p,
        per_run: trend.slope,
        autocorrelation: trend::autocorrelation(&residuals),
        order_effect: order_effect(&runs, &residuals),
    })
}

fn order_effect(runs: &[&Run], residuals: &[f64]) -> Option<f64> {
    let at = |position: usize| -> Vec<f64> {
        runs.iter()
            .zip(residuals)
            .filter(|(run, _)| run.position == position)
            .map(|(_, residual)| *residual)
            .collect()
    };
    let (first, second) = (at(0), at(1));
    (!first.is_empty() && !second.is_empty()).then(|| median(&first) / median(&second))
}

fn page(experiment: &Experiment, counted: &[usize]) -> Option<(f64, f64)> {
    let sweep = experiment.plan.sweep.as_ref()?;
    let metric = &experiment.metrics.first()?.name;
    let mut order: Vec<usize> = (0..sweep.len()).collect();
    order.sort_by(|a, b| sweep[*a].total_cmp(&sweep[*b]));
    // A value that is missing is missing for a reason, and of few blocks the test's normal distribution is not true.
    let blocks: Option<Vec<Vec<f64>>> = counted
        .iter()
        .map(|block| {
            order
                .iter()
                .map(|arm| {
                    let run = experiment
                        .runs
                        .iter()
                        .find(|run| run.block == *block && run.arm == *arm)?;
                    // Falling with the setting is the question: rank upside down.
                    Some(-run.values.get(metric)?)
                })
                .collect()
        })
        .collect();
    let blocks = blocks.filter(|blocks| blocks.len() >= FEWEST_BLOCKS)?;
    Some(trend::page(&blocks))
}

/// Sentences on runs whose throughput changed its level half-way.
fn unsteady(experiment: &Experiment) -> Vec<String> {
    let mut sentences = Vec::new();
    for run in &experiment.runs {
        let Some(change) = trend::change_point(&run.throughput, SHUFFLES, experiment.plan.seed)
        else {
            continue;
        };
        if change.p < 0.01 && (change.ratio - 1.0).abs() > 0.05 {
            let at = real(change.at);
            let checkpoint = run
                .marks
                .iter()
                .any(|m| m.what.contains("checkpoint") && (m.at - at).abs() <= 2.0);
            sentences.push(format!(
                "block {} {}: throughput {} by {} at {} s{}",
                run.block + 1,
                experiment.arms[run.arm].name,
                if change.ratio < 1.0 { "drops" } else { "rises" },
                format::percent((change.ratio - 1.0).abs()),
                change.at,
                if checkpoint { " (checkpoint)" } else { "" }
            ));
        }
    }
    sentences
}

/// Which metrics have no verdict because an arm lacks some of their values.
fn partial(experiment: &Experiment) -> Option<Warning> {
    if !experiment.plan.interleaved {
        return None;
    }
    let counted = experiment.counted_blocks();
    let mut found = Vec::new();
    for metric in &experiment.metrics {
        for arm in 1..experiment.arms.len() {
            let missing = experiment.missing(&metric.name, (0, arm), &counted);
            // Where nothing can be compared, nothing is withheld.
            if missing > 0 && missing < counted.len() {
                found.push(format!(
                    "{} of {} or of {} in {missing} of {} blocks",
                    metric.title,
                    experiment.arms[0].name,
                    experiment.arms[arm].name,
                    counted.len()
                ));
            }
        }
    }
    (!found.is_empty()).then(|| warning("STAT-PARTIAL", found.join(", ")))
}

/// Of how many runs nobody knows who used the processors.
fn unwatched(experiment: &Experiment) -> Option<Warning> {
    let runs = experiment.runs.iter();
    let unknown = runs.filter(|run| !run.values.contains_key(FOREIGN)).count();
    (unknown > 0).then(|| {
        let of = experiment.runs.len();
        let found =
            format!("what others used of the processors is not known of {unknown} of {of} runs");
        warning("ENV-FOREIGN-UNKNOWN", found)
    })
}

fn warnings(experiment: &Experiment) -> Vec<Warning> {
    let mut warnings = experiment.warnings.clone();
    let plan = &experiment.plan;
    if !plan.interleaved && experiment.arms.len() > 1 {
        warnings.push(warning("STAT-SEQUENTIAL", "arms were not interleaved"));
    }
    let contaminated: Vec<usize> = experiment
        .complete_blocks()
        .into_iter()
        .filter(|block| experiment.is_contaminated(*block))
        .collect();
    if !contaminated.is_empty() {
        let stays = experiment
            .counted_blocks()
            .iter()
            .any(|block| contaminated.contains(block));
        let shares = experiment.runs.iter();
        let shares = shares.filter_map(|run| run.values.get(FOREIGN).copied());
        let most = shares.fold(0.0, f64::max);
        warnings.push(warning(
            "ENV-FOREIGN-CPU",
            format!(
                "others used more than {} of the processor, {} at most, in {} of {} blocks; {}",
                format::percent(plan.foreign_limit),
                format::percent(most),
                contaminated.len(),
                experiment.complete_blocks().len(),
                if stays {
                    "they stay, since too few would be left"
                } else {
                    "these are left out"
                }
            ),
        ));
    }
    warnings.extend(partial(experiment));
    warnings.extend(unwatched(experiment));
    if let Some(why) = &experiment.interrupted {
        warnings.push(warning("RUN-INCOMPLETE", why.clone()));
    }
    for (name, id, limit) in [
        ("cpu_steal", "ENV-STEAL", 0.01),
        ("client_thread_busy", "LOAD-CLIENT-BOUND", 0.85),
    ] {
        let most = experiment
            .runs
            .iter()
            .filter_map(|run| run.values.get(name).copied())
            .fold(0.0, f64::max);
        if most > limit {
            warnings.push(warning(id, format!("up to {}", format::percent(most))));
        }
    }
    for standing in &mut warnings {
        if plan.allowed.contains(&standing.id) {
            standing.level = Level::Info;
        }
    }
    warnings.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.id.cmp(&b.id)));
    // Every arm counts its neighbours anew; one sentence on them is enough.
    let repeats = |id: &str| id.starts_with("ENV-OTHER-");
    warnings.dedup_by(|a, b| a.id == b.id && (a.found == b.found || repeats(&a.id)));
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::pictures::tests::experiment;

    #[test]
    fn runs_of_which_nobody_knows_what_others_did_and_a_plan_that_was_cut_short_are_warned_of() {
        let ids = |experiment: &Experiment| -> Vec<String> {
            let all = analyse(experiment).warnings.into_iter();
            all.map(|warning| format!("{} {}", warning.id, warning.found))
                .collect()
        };
        let mut experiment = experiment(&[1.0]);
        for run in &mut experiment.runs {
            run.note_foreign(0.0);
        }
        assert_eq!(ids(&experiment), Vec::<String>::new());
        experiment.runs[2].values.remove(FOREIGN);
        experiment.interrupted = Some("no room".to_owned());
        assert_eq!(
            ids(&experiment),
            [
                "ENV-FOREIGN-UNKNOWN what others used of the processors is not known of 1 of 16 runs",
                "RUN-INCOMPLETE no room"
            ]
        );
        for warning in analyse(&experiment).warnings {
            assert!(!warning.why.is_empty(), "{warning:?}");
            assert!(!warning.fix.is_empty(), "{warning:?}");
        }
    }
}
