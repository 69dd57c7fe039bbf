//! How many blocks an effect needs, and what so many blocks can see.

use super::normal_quantile;
use crate::number::{real, whole};

/// Below this the smallest two-sided p of the signed-rank test exceeds 0.05
/// (0.0625 with five blocks, 0.031 with six).
pub const FEWEST_BLOCKS: usize = 6;

/// Power of the plans: four real effects of this size in five are found.
const POWER: f64 = 0.8;
/// Two-sided level of the test.
const LEVEL: f64 = 0.05;
/// The signed-rank test's efficiency against the t test on normal data.
const RANK_EFFICIENCY: f64 = 0.955;

/// Blocks needed to see a ratio of 1 + `effect`, given the standard deviation
/// of the blocks' log-ratios. Never under six: fewer give no verdict.
#[must_use]
pub fn blocks_needed(deviation: f64, effect: f64) -> usize {
    let reach = normal_quantile(1.0 - LEVEL / 2.0) + normal_quantile(POWER);
    let blocks = (reach * deviation / (1.0 + effect).ln()).powi(2) / RANK_EFFICIENCY + 2.0;
    whole(blocks.ceil().min(1e9)).max(FEWEST_BLOCKS)
}

/// Blocks after which what gave `p` in `blocks` of them would be proven at `level`, if it goes on like that.
#[must_use]
pub fn blocks_to_prove(blocks: usize, p: f64, level: f64) -> usize {
    let reach = |p: f64| normal_quantile(1.0 - p / 2.0);
    whole(
        (real(blocks) * (reach(level) / reach(p)).powi(2))
            .ceil()
            .min(1e9),
    )
}

/// The smallest effect (as ratio − 1) that so many blocks find four times in five.
#[must_use]
pub fn detectable_effect(deviation: f64, blocks: usize) -> f64 {
    let reach = normal_quantile(1.0 - LEVEL / 2.0) + normal_quantile(POWER);
    let effective = (real(blocks) - 2.0).max(1.0) * RANK_EFFICIENCY;
    (reach * deviation / effective.sqrt()).exp() - 1.0
}

/// The cheapest length of a run in seconds: with a fixed cost per run, long
/// runs pay only while the noise within a run exceeds the noise between runs.
///
/// `within` is the variance of the mean of one second, `between` the variance
/// of runs of endless length; absent when runs do not differ beyond `within`.
#[must_use]
pub fn cheapest_run_seconds(cost_seconds: f64, within: f64, between: f64) -> Option<f64> {
    (between > 0.0).then(|| (cost_seconds * within / between).sqrt())
}
