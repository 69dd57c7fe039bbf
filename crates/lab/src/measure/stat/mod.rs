//! Statistics for runs of benchmarks.
//!
//! The unit is one run. Everything here works on one number per run, is exact
//! where samples are small, and is deterministic: whatever draws random
//! numbers takes its seed. Pure functions; no I/O.

pub mod design;
pub mod mann_whitney;
pub mod paired;
pub mod plan;
pub mod resample;
pub mod trend;
pub mod verdict;
pub mod wilcoxon;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::number::{real, whole};

/// An interval of confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// The interval of the exponentials: from log-ratios to ratios.
    #[must_use]
    pub fn exp(self) -> Self {
        Self {
            low: self.low.exp(),
            high: self.high.exp(),
        }
    }

    /// Upper end minus lower end.
    #[must_use]
    pub fn width(self) -> f64 {
        self.high - self.low
    }

    /// Whether the value lies inside, ends included.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// The standard normal distribution function.
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    Normal::standard().cdf(z)
}

/// The standard normal quantile.
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// A sorted copy, by total order.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut copy = values.to_vec();
    copy.sort_by(f64::total_cmp);
    copy
}

/// The arithmetic mean; no number for no values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / real(values.len())
}

/// The median; no number for no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile_of_sorted(&sorted(values), 0.5)
}

/// The quantile of sorted values by linear interpolation, as most tools do it.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = q.clamp(0.0, 1.0) * real(last);
    let below = whole(position.floor()).min(last);
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (position - real(below))
}

/// The standard deviation with divisor n − 1; no number below two values.
#[must_use]
pub fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return f64::NAN;
    }
    let centre = mean(values);
    let squares: f64 = values.iter().map(|v| (v - centre).powi(2)).sum();
    (squares / real(values.len() - 1)).sqrt()
}

/// Ranks from 1, equal values sharing the mean of theirs.
#[must_use]
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let mut end = start + 1;
        while end < order.len() && values[order[end]] == values[order[start]] {
            end += 1;
        }
        let shared = (real(start) + 1.0 + real(end)) / 2.0;
        for &index in &order[start..end] {
            ranks[index] = shared;
        }
        start = end;
    }
    ranks
}

/// Holm's step-down adjustment of p-values, in the order given.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut floor: f64 = 0.0;
    for (place, &index) in order.iter().enumerate() {
        let factor = real(p_values.len() - place);
        floor = floor.max((p_values[index] * factor).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}
