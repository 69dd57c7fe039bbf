//! pgbench's transaction log (`-l`).
//!
//! `client transaction time script epoch microseconds [lag] [retries]`, where
//! `time` may be a word. Under `--rate` the time counts from the scheduled
//! start: it is the response time, and `time − lag` the service time.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail};

use crate::measure::latency::Latencies;
use crate::number::{real_u64, whole};

/// Which optional columns the log has: pgbench does not say so in the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Columns {
    /// `--rate` was given.
    pub lag: bool,
    /// `--max-tries` was given.
    pub retries: bool,
}

/// Everything in the logs of one run, all threads merged.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    /// From the scheduled start if there is a schedule.
    pub response: Latencies,
    /// Response less schedule lag; the same as response without a schedule.
    pub service: Latencies,
    /// Per script, response.
    pub scripts: BTreeMap<usize, Latencies>,
    /// Finished transactions per second since the first.
    pub throughput: Vec<f64>,
    /// Lag sums per second, from which the thirds are made.
    lags: Vec<(f64, f64)>,
    /// Not started because already too late (`--rate` with `--latency-limit`).
    pub skipped: u64,
    /// Failed, by kind.
    pub failed: BTreeMap<String, u64>,
    /// Transactions that needed another try.
    pub retried: u64,
    /// Further tries in all.
    pub retries: u64,
}

impl Merged {
    /// An empty log of which a share is sampled.
    #[must_use]
    pub fn sampled(share: f64) -> Self {
        Self {
            response: Latencies::sampled(share),
            service: Latencies::sampled(share),
            ..Self::default()
        }
    }

    /// Transactions that succeeded.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.response.count()
    }

    /// Transactions that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Adds one thread's log. `start` is the second (since 1970) counted as zero.
    ///
    /// # Errors
    /// Fails at a line that is not pgbench's, naming it.
    pub fn add(&mut self, log: impl BufRead, columns: Columns, start: u64) -> Result<()> {
        for (index, line) in log.lines().enumerate() {
            let line = line.context("could not read pgbench's log")?;
            self.line(&line, columns, start)
                .with_context(|| format!("could not parse line {} of pgbench's log", index + 1))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, columns: Columns, start: u64) -> Result<()> {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let expected = 6 + usize::from(columns.lag) + usize::from(columns.retries);
        if fields.len() != expected {
            bail!(
                "it has {} fields, expected {expected}: \"{line}\"",
                fields.len()
            );
        }
        if columns.retries {
            let retries: u64 = fields[expected - 1].parse().context("retries")?;
            self.retried += u64::from(retries > 0);
            self.retries += retries;
        }
        let time = match fields[2] {
            "skipped" => {
                self.skipped += 1;
                return Ok(());
            }
            word @ ("failed" | "serialization" | "deadlock") => {
                *self.failed.entry(word.to_owned()).or_default() += 1;
                return Ok(());
            }
            number => number.parse::<u64>().context("time")?,
        };
        let script: usize = fields[3].parse().context("script number")?;
        let second: u64 = fields[4].parse().context("epoch")?;
        let lag: u64 = if columns.lag {
            fields[6].parse().context("schedule lag")?
        } else {
            0
        };
        self.response.record(time);
        self.service.record(time.saturating_sub(lag));
        let sampling = self.response.sampling();
        self.scripts
            .entry(script)
            .or_insert_with(|| Latencies::sampled(sampling))
            .record(time);
        self.second(second.saturating_sub(start), lag, sampling);
        Ok(())
    }

    fn second(&mut self, offset: u64, lag: u64, sampling: f64) {
        // A clock that jumps must not make us allocate: a day is the longest run.
        let slot = usize::try_from(offset).unwrap_or(usize::MAX).min(86_400);
        if self.throughput.len() <= slot {
            self.throughput.resize(slot + 1, 0.0);
            self.lags.resize(slot + 1, (0.0, 0.0));
        }
        self.throughput[slot] += 1.0 / sampling;
        self.lags[slot].0 += real_u64(lag);
        self.lags[slot].1 += 1.0;
    }

    /// Mean schedule lag in seconds over the first and the last third of the run.
    #[must_use]
    pub fn lag_of_thirds(&self) -> (f64, f64) {
        let third = (self.lags.len() / 3).max(1);
        let mean = |part: &[(f64, f64)]| {
            let (sum, count) = part.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            if count > 0.0 { sum / count / 1e6 } else { 0.0 }
        };
        let first = self.lags.get(..third).unwrap_or_default();
        let last = self.lags.get(self.lags.len().saturating_sub(third)..);
        (mean(first), mean(last.unwrap_or_default()))
    }

    /// The seconds that lie wholly within a run of this length: not the first, in the middle of which the run began.
    #[must_use]
    pub fn whole_seconds(&self, seconds: f64) -> &[f64] {
        let count = whole(seconds).min(self.throughput.len());
        self.throughput.get(1..count).unwrap_or_default()
    }
}
