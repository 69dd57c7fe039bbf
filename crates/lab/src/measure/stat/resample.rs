//! Cross-checks by resampling: the sign-flip test and the bootstrap.
//!
//! They stand beside the rank procedures in the result; a large gap between
//! the two means a skewed or contaminated block.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{Interval, median, quantile_of_sorted, sorted, standard_deviation};
use crate::number::real;

/// Up to here every assignment of signs is visited.
const ENUMERATED: usize = 20;
/// Beyond, this many are drawn: an error of p below 0.001 near 0.05.
const DRAWN: usize = 200_000;
/// Resamples of the bootstrap: ends of the interval to within a few per cent of its width.
const RESAMPLES: usize = 10_000;

/// Two-sided p-value of the mean when every sign could as well be the other.
#[must_use]
pub fn sign_flip(differences: &[f64], seed: u64) -> f64 {
    let observed = differences.iter().sum::<f64>().abs();
    let scale: f64 = differences.iter().map(|d| d.abs()).sum();
    let bound = observed - scale * 1e-12;
    if differences.len() <= ENUMERATED {
        return enumerate(differences, bound);
    }
    let mut random = Pcg64::seed_from_u64(seed);
    let mut extreme: usize = 1;
    for _ in 0..DRAWN {
        let sum: f64 = differences
            .iter()
            .map(|d| if random.random::<bool>() { *d } else { -*d })
            .sum();
        extreme += usize::from(sum.abs() >= bound);
    }
    real(extreme) / real(DRAWN + 1)
}

/// Visits the assignments in Gray-code order, one sign changing at a time.
fn enumerate(differences: &[f64], bound: f64) -> f64 {
    let count = 1usize << differences.len();
    let mut signs = vec![1.0; differences.len()];
    let mut extreme: usize = 0;
    for step in 0..count {
        if step > 0 {
            let bit = step.trailing_zeros();
            if let Some(sign) = usize::try_from(bit).ok().and_then(|b| signs.get_mut(b)) {
                *sign = -*sign;
            }
        }
        let sum: f64 = differences.iter().zip(&signs).map(|(d, s)| d * s).sum();
        extreme += usize::from(sum.abs() >= bound);
    }
    real(extreme) / real(count)
}

/// The percentile interval of the median, blocks resampled.
#[must_use]
pub fn bootstrap_median(values: &[f64], confidence: f64, seed: u64) -> Interval {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut drawn = vec![0.0; values.len()];
    let statistics: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for slot in &mut drawn {
                *slot = values[random.random_range(0..values.len())];
            }
            median(&drawn)
        })
        .collect();
    percentiles(&statistics, confidence)
}

/// The ratio of standard deviations (second by first) with its interval, pairs resampled.
#[must_use]
pub fn deviation_ratio(
    first: &[f64],
    second: &[f64],
    confidence: f64,
    seed: u64,
) -> Option<(f64, Interval)> {
    let n = first.len().min(second.len());
    let ratio = standard_deviation(second) / standard_deviation(first);
    if n < 3 || !ratio.is_finite() {
        return None;
    }
    let mut random = Pcg64::seed_from_u64(seed);
    let mut statistics = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let picks: Vec<usize> = (0..n).map(|_| random.random_range(0..n)).collect();
        let a: Vec<f64> = picks.iter().map(|i| first[*i]).collect();
        let b: Vec<f64> = picks.iter().map(|i| second[*i]).collect();
        let value = standard_deviation(&b) / standard_deviation(&a);
        if value.is_finite() {
            statistics.push(value);
        }
    }
    (!statistics.is_empty()).then(|| (ratio, percentiles(&statistics, confidence)))
}

fn percentiles(statistics: &[f64], confidence: f64) -> Interval {
    let ordered = sorted(statistics);
    let tail = (1.0 - confidence) / 2.0;
    Interval {
        low: quantile_of_sorted(&ordered, tail),
        high: quantile_of_sorted(&ordered, 1.0 - tail),
    }
}
