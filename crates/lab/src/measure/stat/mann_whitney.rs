//! The Mann–Whitney test and the shift between two unpaired samples.
//!
//! For results of different days only: nothing here can separate an effect
//! from drift. Zero differences count against both directions, as in
//! [`super::wilcoxon`].

use super::{Interval, normal_cdf, normal_quantile, quantile_of_sorted};
use crate::number::{real, whole};

/// Up to this many values in both samples the null distribution is counted.
const EXACT_LIMIT: usize = 100;

/// What the test says about `second` minus `first`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// The Hodges–Lehmann estimate: the median of all differences.
    pub estimate: f64,
    /// Its interval; absent where the samples are too small for it.
    pub interval: Option<Interval>,
    /// Two-sided p-value for no shift.
    pub p: f64,
}

/// Compares two samples.
///
/// # Panics
/// Panics when a sample is empty.
#[must_use]
pub fn shift(first: &[f64], second: &[f64], confidence: f64) -> Shift {
    assert!(!first.is_empty());
    assert!(!second.is_empty());
    let mut differences: Vec<f64> = Vec::with_capacity(first.len() * second.len());
    for b in second {
        differences.extend(first.iter().map(|a| b - a));
    }
    differences.sort_by(f64::total_cmp);
    let not_above = differences.iter().filter(|d| **d <= 0.0).count();
    let not_below = differences.iter().filter(|d| **d >= 0.0).count();
    let cumulative = cumulative(first.len(), second.len());
    let tail = cumulative
        .get(not_above.min(not_below))
        .copied()
        .unwrap_or(1.0);
    let alpha = (1.0 - confidence) / 2.0;
    let dropped = cumulative.iter().take_while(|p| **p <= alpha).count();
    let interval = dropped.checked_sub(1).map(|index| Interval {
        low: differences[index],
        high: differences[differences.len() - dropped],
    });
    Shift {
        estimate: quantile_of_sorted(&differences, 0.5),
        interval,
        p: (2.0 * tail).min(1.0),
    }
}

/// P(U ≤ u) for u = 0, 1, … n·m.
fn cumulative(n: usize, m: usize) -> Vec<f64> {
    let top = n * m;
    if n + m > EXACT_LIMIT {
        let mean = real(top) / 2.0;
        let deviation = (real(top) * real(n + m + 1) / 12.0).sqrt();
        // Ends where the tail passes one half: nobody asks beyond.
        let count = whole(mean + normal_quantile(0.75) * deviation).min(top);
        return (0..=count)
            .map(|u| normal_cdf((real(u) + 0.5 - mean) / deviation))
            .collect();
    }
    let mut total = 0.0;
    let counts = counts(n, m);
    let ways: f64 = counts.iter().sum();
    counts
        .iter()
        .map(|count| {
            total += count / ways;
            total
        })
        .collect()
}

/// In how many ways n of n + m ranks give each U: choose ranks one by one,
/// keeping for every number chosen how the excess of their sum is spread.
fn counts(n: usize, m: usize) -> Vec<f64> {
    let top = n * m;
    let mut ways = vec![vec![0.0; top + 1]; n + 1];
    ways[0][0] = 1.0;
    for rank in 0..n + m {
        for chosen in (1..=n.min(rank + 1)).rev() {
            // The chosen-th smallest at zero-based `rank` exceeds rank − (chosen − 1) of the others.
            let excess = rank - (chosen - 1);
            if excess > m {
                continue;
            }
            for sum in (excess..=top).rev() {
                let add = ways[chosen - 1][sum - excess];
                ways[chosen][sum] += add;
            }
        }
    }
    ways.swap_remove(n)
}
