//! Waiting until a machine is quiet enough to begin.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt;
use crate::measure::sample::{Processor, dirty_kilobytes};

/// Dirty memory below which the kernel writes nothing that disturbs.
const CALM_KILOBYTES: f64 = 32.0 * 1024.0;
/// Share of the processor in use below which a machine is idle.
const CALM_PROCESSOR: f64 = 0.1;

/// Writes everything back and waits until memory is clean and the processor
/// idle, but no longer than `longest`. Says whether it became quiet.
///
/// # Errors
/// Fails when interrupted.
pub fn settle(longest: Duration) -> Result<bool> {
    rustix::fs::sync();
    let end = Instant::now() + longest;
    let root = Path::new("/");
    loop {
        let before = Processor::read(root).unwrap_or_default();
        interrupt::sleep(Duration::from_millis(250).min(longest))?;
        let after = Processor::read(root).unwrap_or_default();
        let busy = (after.busy() - before.busy()) / (after.total() - before.total()).max(1.0);
        if busy < CALM_PROCESSOR && dirty_kilobytes(root) < CALM_KILOBYTES {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
    }
}
