//! Trends and changes in a sequence: drift between runs, steadiness within one.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::{mean, median, normal_cdf, ranks};
use crate::number::real;

/// A monotonic trend by Mann–Kendall, its slope by Theil–Sen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// Concordant minus discordant pairs.
    pub s: f64,
    /// Two-sided p-value (normal, corrected for ties and continuity).
    pub p: f64,
    /// Median of all pairwise slopes, per step.
    pub slope: f64,
}

/// Looks for a trend in values in order of time.
#[must_use]
pub fn mann_kendall(values: &[f64]) -> Trend {
    let mut s: f64 = 0.0;
    let mut slopes = Vec::new();
    for (i, a) in values.iter().enumerate() {
        for (distance, b) in values[i + 1..].iter().enumerate() {
            s += (b - a).partial_cmp(&0.0).map_or(0.0, |order| match order {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Less => -1.0,
                std::cmp::Ordering::Equal => 0.0,
            });
            slopes.push((b - a) / real(distance + 1));
        }
    }
    let n = real(values.len());
    let mut variance = n * (n - 1.0) * 2.0f64.mul_add(n, 5.0);
    for t in tie_sizes(values) {
        variance -= t * (t - 1.0) * 2.0f64.mul_add(t, 5.0);
    }
    let deviation = (variance / 18.0).sqrt();
    let z = if s == 0.0 || deviation == 0.0 {
        0.0
    } else {
        (s.abs() - 1.0) / deviation
    };
    Trend {
        s,
        p: (2.0 * normal_cdf(-z)).min(1.0),
        slope: if slopes.is_empty() {
            0.0
        } else {
            median(&slopes)
        },
    }
}

fn tie_sizes(values: &[f64]) -> Vec<f64> {
    let ordered = super::sorted(values);
    ordered
        .chunk_by(|a, b| a == b)
        .map(|run| real(run.len()))
        .collect()
}

/// Correlation of each value with the next.
#[must_use]
pub fn autocorrelation(values: &[f64]) -> f64 {
    let centre = mean(values);
    let total: f64 = values.iter().map(|v| (v - centre).powi(2)).sum();
    let lagged: f64 = values
        .windows(2)
        .map(|pair| (pair[0] - centre) * (pair[1] - centre))
        .sum();
    if total == 0.0 { 0.0 } else { lagged / total }
}

/// Spearman's correlation of ranks.
#[must_use]
pub fn spearman(first: &[f64], second: &[f64]) -> f64 {
    let (a, b) = (ranks(first), ranks(second));
    let (centre_a, centre_b) = (mean(&a), mean(&b));
    let mut products = 0.0;
    let mut squares_a = 0.0;
    let mut squares_b = 0.0;
    for (x, y) in a.iter().zip(&b) {
        products += (x - centre_a) * (y - centre_b);
        squares_a += (x - centre_a).powi(2);
        squares_b += (y - centre_b).powi(2);
    }
    products / (squares_a * squares_b).sqrt()
}

/// Page's test: do the columns of the blocks rise in the order given?
/// Returns L and the one-sided p-value of its normal approximation.
#[must_use]
pub fn page(blocks: &[Vec<f64>]) -> (f64, f64) {
    let columns = blocks.first().map_or(0, Vec::len);
    let mut l = 0.0;
    for block in blocks {
        for (column, rank) in ranks(block).iter().enumerate() {
            l += real(column + 1) * rank;
        }
    }
    let (n, k) = (real(blocks.len()), real(columns));
    let expected = n * k * (k + 1.0).powi(2) / 4.0;
    let variance = n * k.powi(2) * (k + 1.0).powi(2) * (k - 1.0) / 144.0;
    let z = (l - expected) / variance.sqrt();
    (l, normal_cdf(-z))
}

/// Where a sequence changes its level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The first index after the change.
    pub at: usize,
    /// Chance of as large a swing in a shuffled sequence.
    pub p: f64,
    /// Median after by median before.
    pub ratio: f64,
}

/// The largest swing of the cumulative sum of centred ranks, judged by
/// shuffling. Absent below eight values, where no shuffle could be convincing.
#[must_use]
pub fn change_point(values: &[f64], shuffles: usize, seed: u64) -> Option<Change> {
    if values.len() < 8 {
        return None;
    }
    let mut ranked = ranks(values);
    let (at, observed) = largest_swing(&ranked);
    let mut random = Pcg64::seed_from_u64(seed);
    let mut as_large: usize = 1;
    for _ in 0..shuffles {
        ranked.shuffle(&mut random);
        as_large += usize::from(largest_swing(&ranked).1 >= observed);
    }
    Some(Change {
        at,
        p: real(as_large) / real(shuffles + 1),
        ratio: median(&values[at..]) / median(&values[..at]),
    })
}

fn largest_swing(ranked: &[f64]) -> (usize, f64) {
    let centre = (real(ranked.len()) + 1.0) / 2.0;
    let mut sum = 0.0f64;
    let mut best = (1, 0.0);
    for (index, rank) in ranked[..ranked.len() - 1].iter().enumerate() {
        sum += rank - centre;
        if sum.abs() > best.1 {
            best = (index + 1, sum.abs());
        }
    }
    best
}
