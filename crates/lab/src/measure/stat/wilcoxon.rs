//! Wilcoxon's signed-rank test and the Hodges–Lehmann estimate with the
//! interval that is the test's inversion.
//!
//! Test and interval are both read off the Walsh averages, so that they never
//! disagree: the interval excludes zero exactly when p ≤ 1 − confidence. Walsh
//! averages that are zero count against both directions, which keeps the test
//! at or under its level when values are tied or zero.

use super::{Interval, normal_cdf, normal_quantile, quantile_of_sorted};
use crate::number::{real, whole};

/// Up to here the null distribution is counted, not approximated.
const EXACT_LIMIT: usize = 50;

/// What the signed-rank procedure says about the centre of some differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRank {
    /// The Hodges–Lehmann estimate: the median of the Walsh averages.
    pub estimate: f64,
    /// Its interval; absent where so few values cannot give this confidence.
    pub interval: Option<Interval>,
    /// Two-sided p-value for a centre of zero.
    pub p: f64,
}

/// Runs the procedure. `confidence` is, say, 0.95.
///
/// # Panics
/// Panics without values: whoever asks has runs.
#[must_use]
pub fn signed_rank(differences: &[f64], confidence: f64) -> SignedRank {
    assert!(!differences.is_empty());
    assert!(confidence > 0.0);
    assert!(confidence < 1.0);
    let walsh = walsh_averages(differences);
    let not_above = walsh.iter().filter(|w| **w <= 0.0).count();
    let not_below = walsh.iter().filter(|w| **w >= 0.0).count();
    let null = Null::of(differences.len());
    let tail = null.at_most(not_above.min(not_below));
    SignedRank {
        estimate: quantile_of_sorted(&walsh, 0.5),
        interval: interval(&walsh, &null, confidence),
        p: (2.0 * tail).min(1.0),
    }
}

fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (i, a) in values.iter().enumerate() {
        for b in &values[i..] {
            averages.push(f64::midpoint(*a, *b));
        }
    }
    averages.sort_by(f64::total_cmp);
    averages
}

fn interval(walsh: &[f64], null: &Null, confidence: f64) -> Option<Interval> {
    let dropped = null.critical((1.0 - confidence) / 2.0);
    let low = walsh.get(dropped.checked_sub(1)?)?;
    let high = walsh.get(walsh.len() - dropped)?;
    Some(Interval {
        low: *low,
        high: *high,
    })
}

/// The distribution of the rank sum when signs are coin flips.
enum Null {
    Exact { cumulative: Vec<f64> },
    Normal { mean: f64, deviation: f64 },
}

impl Null {
    fn of(n: usize) -> Self {
        if n <= EXACT_LIMIT {
            return Self::Exact {
                cumulative: exact_cumulative(n),
            };
        }
        let n = real(n);
        Self::Normal {
            mean: n * (n + 1.0) / 4.0,
            deviation: (n * (n + 1.0) * 2.0f64.mul_add(n, 1.0) / 24.0).sqrt(),
        }
    }

    fn at_most(&self, statistic: usize) -> f64 {
        match self {
            Self::Exact { cumulative } => cumulative.get(statistic).copied().unwrap_or(1.0),
            Self::Normal { mean, deviation } => {
                normal_cdf((real(statistic) + 0.5 - mean) / deviation)
            }
        }
    }

    /// How many Walsh averages to leave out at each end: the number of values
    /// of the statistic whose lower tail stays within `tail`.
    fn critical(&self, tail: f64) -> usize {
        match self {
            Self::Exact { cumulative } => cumulative.iter().take_while(|p| **p <= tail).count(),
            Self::Normal { mean, deviation } => {
                let bound = normal_quantile(tail).mul_add(*deviation, mean - 0.5);
                if bound < 0.0 { 0 } else { whole(bound) + 1 }
            }
        }
    }
}

/// P(T ≤ t) for t = 0, 1, …: each rank joins the sum with probability one half.
fn exact_cumulative(n: usize) -> Vec<f64> {
    let top = n * (n + 1) / 2;
    let mut probability = vec![0.0; top + 1];
    probability[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..=top).rev() {
            let with = if sum >= rank {
                probability[sum - rank]
            } else {
                0.0
            };
            probability[sum] = f64::midpoint(probability[sum], with);
        }
    }
    let mut total = 0.0;
    for value in &mut probability {
        total += *value;
        *value = total;
    }
    probability
}
