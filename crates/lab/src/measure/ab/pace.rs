//! What an arm can do, for rates that are shares of it.

use anyhow::Result;

use super::{Comparison, Engine, workload_words};
use crate::measure::pgbench::options::Options;
use crate::measure::pgbench::rate::Rate;
use crate::measure::stat::median;

/// Runs that say what an arm can do.
pub(super) const PILOTS: usize = 3;

/// Whether pilots come first: an arm's rate is a share.
pub(super) fn is_needed(loads: &[Options]) -> bool {
    let share = |load: &Options| matches!(load.rate, Some(Rate::OfCapacity(_)));
    loads.iter().any(share)
}

/// Decides the pilots' keys: no block of the plan has this number, so what is measured was not sent before.
pub(super) fn block_of_pilots(plan: &Comparison) -> usize {
    plan.blocks
}

impl Engine<'_> {
    /// Rates given as shares become transactions per second: of what the slowest
    /// arm does in a closed loop, the median of some runs.
    pub(super) fn pace(&mut self) -> Result<()> {
        if !is_needed(&self.loads) {
            return Ok(());
        }
        let open = self.loads.clone();
        self.loads = open.iter().map(Options::closed).collect();
        let mut capacity = f64::INFINITY;
        for arm in 0..self.specs.len() {
            let mut found = Vec::new();
            for pilot in 0..PILOTS {
                let dsn = self.ready(arm, false)?;
                let mut bench = self.bench(&dsn, arm, block_of_pilots(self.plan));
                bench.directory = self
                    .plan
                    .out
                    .join("runs")
                    .join(format!("pilot-{arm}-{pilot}"));
                bench.warm()?;
                found.push(bench.throughput()?);
            }
            self.places[self.place_of[arm]].stop()?;
            capacity = capacity.min(median(&found));
        }
        for (load, open) in self.loads.iter_mut().zip(&open) {
            load.rate = open.rate.map(|rate| Rate::PerSecond(rate.at(capacity)));
        }
        self.experiment.notes.push(format!(
            "Rates are shares of {capacity:.0} transactions per second: what the slowest arm did in a closed loop, the median of {PILOTS} runs."
        ));
        self.experiment.workload = workload_words(&self.plan.options, &self.loads);
        (self.tell)(&format!("load: {}", self.experiment.workload));
        Ok(())
    }
}
