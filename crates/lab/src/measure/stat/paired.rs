//! One metric of one arm against the base, block by block.

use serde::{Deserialize, Serialize};

use super::verdict::{Better, Evidence, Verdict, judge};
use super::{Interval, mean, median, standard_deviation, wilcoxon};
use super::{mann_whitney, resample};

/// Confidence of every interval the lab prints.
pub const CONFIDENCE: f64 = 0.95;

/// A comparison with its cross-checks; ratios are arm by base.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Pairs it rests on (for unpaired data the smaller sample).
    pub blocks: usize,
    /// Hodges–Lehmann estimate of the ratio.
    pub ratio: f64,
    /// Its interval, by inversion of the exact test.
    pub interval: Option<Interval>,
    /// p-value of the exact signed-rank (or Mann–Whitney) test.
    pub p: f64,
    /// After Holm's correction for the number of arms.
    pub p_adjusted: f64,
    /// Cross-check: sign-flip permutation test of the mean.
    pub p_sign_flip: Option<f64>,
    /// Cross-check: percentile bootstrap of the median.
    pub bootstrap: Option<Interval>,
    /// The widths of the two intervals differ by more than a fifth.
    pub unstable: bool,
    /// Ratio of means over all runs.
    pub ratio_of_means: f64,
    /// Ratio of medians over all runs.
    pub ratio_of_medians: f64,
    /// Ratio of standard deviations with its interval.
    pub deviation_ratio: Option<(f64, Interval)>,
    /// Standard deviation of the blocks' log-ratios.
    pub deviation: f64,
    /// The judgement.
    pub verdict: Verdict,
}

/// Compares positive values measured in the same blocks.
///
/// Returns nothing when there is no block, or when a value is not positive
/// (a count of zero has no ratio).
#[must_use]
pub fn compare(
    base: &[f64],
    arm: &[f64],
    better: Better,
    margin: f64,
    seed: u64,
) -> Option<Comparison> {
    let positive = |v: &f64| v.is_finite() && *v > 0.0;
    if base.is_empty() || base.len() != arm.len() || !base.iter().chain(arm).all(positive) {
        return None;
    }
    let logs: Vec<f64> = base.iter().zip(arm).map(|(b, a)| (a / b).ln()).collect();
    let ranked = wilcoxon::signed_rank(&logs, CONFIDENCE);
    let interval = ranked.interval.map(Interval::exp);
    let bootstrap = resample::bootstrap_median(&logs, CONFIDENCE, seed).exp();
    let deviation = standard_deviation(&logs);
    let unstable = interval.is_some_and(|interval| {
        (interval.width() - bootstrap.width()).abs() > 0.2 * interval.width().max(1e-12)
    });
    let evidence = Evidence {
        interval,
        blocks: logs.len(),
        deviation,
    };
    Some(Comparison {
        blocks: logs.len(),
        ratio: ranked.estimate.exp(),
        interval,
        p: ranked.p,
        p_adjusted: ranked.p,
        p_sign_flip: Some(resample::sign_flip(&logs, seed)),
        bootstrap: Some(bootstrap),
        unstable,
        ratio_of_means: mean(arm) / mean(base),
        ratio_of_medians: median(arm) / median(base),
        deviation_ratio: resample::deviation_ratio(base, arm, CONFIDENCE, seed),
        deviation,
        verdict: judge(evidence, better, margin),
    })
}

/// The interval of the ratio of positive values measured in the same blocks, with another confidence than [`CONFIDENCE`];
/// `None` where there are too few blocks for it.
#[must_use]
pub fn interval(base: &[f64], arm: &[f64], confidence: f64) -> Option<Interval> {
    let positive = |v: &f64| v.is_finite() && *v > 0.0;
    if base.is_empty() || base.len() != arm.len() || !base.iter().chain(arm).all(positive) {
        return None;
    }
    let logs: Vec<f64> = base.iter().zip(arm).map(|(b, a)| (a / b).ln()).collect();
    let ranked = wilcoxon::signed_rank(&logs, confidence);
    ranked.interval.map(Interval::exp)
}

/// Compares positive values of different days: at most "possible".
#[must_use]
pub fn compare_unpaired(
    base: &[f64],
    arm: &[f64],
    better: Better,
    margin: f64,
) -> Option<Comparison> {
    let positive = |v: &f64| v.is_finite() && *v > 0.0;
    if base.is_empty() || arm.is_empty() || !base.iter().chain(arm).all(positive) {
        return None;
    }
    let logs = |values: &[f64]| -> Vec<f64> { values.iter().map(|v| v.ln()).collect() };
    let (first, second) = (logs(base), logs(arm));
    let shift = mann_whitney::shift(&first, &second, CONFIDENCE);
    let interval = shift.interval.map(Interval::exp);
    let deviation = standard_deviation(&first).hypot(standard_deviation(&second));
    let blocks = base.len().min(arm.len());
    let evidence = Evidence {
        interval,
        blocks,
        deviation,
    };
    let verdict = match judge(evidence, better, margin) {
        Verdict::Better | Verdict::Worse | Verdict::Different => Verdict::Possible,
        Verdict::Same | Verdict::DifferentWithinMargin => Verdict::Possible,
        other => other,
    };
    Some(Comparison {
        blocks,
        ratio: shift.estimate.exp(),
        interval,
        p: shift.p,
        p_adjusted: shift.p,
        p_sign_flip: None,
        bootstrap: None,
        unstable: false,
        ratio_of_means: mean(arm) / mean(base),
        ratio_of_medians: median(arm) / median(base),
        deviation_ratio: None,
        deviation,
        verdict,
    })
}
