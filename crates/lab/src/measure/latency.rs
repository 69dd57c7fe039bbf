//! Latencies of one run: percentiles that are never averaged.
//!
//! One microsecond to one hour at three significant digits. A percentile is
//! given only where at least ten transactions lie beyond it.

use hdrhistogram::Histogram;

use crate::number::real_u64;

/// One hour: longer waits count as this long.
const LONGEST_MICROSECONDS: u64 = 3_600_000_000;
/// Transactions that must lie beyond a percentile for it to be printed.
const BEYOND: f64 = 10.0;

/// The latencies of one run.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Share of transactions that were logged: counts are divided by it.
    sampling: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::sampled(1.0)
    }
}

impl Latencies {
    /// Latencies of which only a share is recorded.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    #[must_use]
    pub fn sampled(sampling: f64) -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_MICROSECONDS, 3)
            .expect("one microsecond to one hour at three digits is a valid histogram");
        Self {
            histogram,
            sampling,
        }
    }

    /// Records one transaction.
    pub fn record(&mut self, microseconds: u64) {
        self.histogram.saturating_record(microseconds.max(1));
    }

    /// Transactions recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Share of transactions recorded.
    #[must_use]
    pub fn sampling(&self) -> f64 {
        self.sampling
    }

    /// The quantile in seconds; absent where too few transactions lie beyond it.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let needed = BEYOND / (1.0 - q).max(1e-9);
        // 0.99 is not exactly representable: let 1 000 transactions have a p99.
        (real_u64(self.count()) >= needed * (1.0 - 1e-9))
            .then(|| real_u64(self.histogram.value_at_quantile(q)) / 1e6)
    }

    /// The median in seconds, however few transactions there are.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        (self.count() > 0).then(|| real_u64(self.histogram.value_at_quantile(0.5)) / 1e6)
    }

    /// The longest, in seconds.
    #[must_use]
    pub fn longest(&self) -> Option<f64> {
        (self.count() > 0).then(|| real_u64(self.histogram.max()) / 1e6)
    }

    /// The shortest, in seconds.
    #[must_use]
    pub fn shortest(&self) -> Option<f64> {
        (self.count() > 0).then(|| real_u64(self.histogram.min()) / 1e6)
    }

    /// The standard deviation, in seconds.
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        (self.count() > 1).then(|| self.histogram.stdev() / 1e6)
    }

    /// The mean, in seconds.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.histogram.mean() / 1e6)
    }

    /// Points of the latency curve, even on the scale 1/(1 − q).
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut beyond: f64 = 1.0;
        while let Some(value) = self.quantile(1.0 - beyond) {
            points.push((1.0 - beyond, value));
            if beyond < 1e-7 {
                break;
            }
            // Eight points per decade draw a smooth line.
            beyond /= 10f64.powf(0.125);
        }
        points
    }
}
