//! Where the time of a backup goes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Times the phases of a backup, which follow each other.
pub(super) struct Stopwatch(Mutex<(Instant, Vec<Phase>)>);

/// A phase that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What was done: `prepare`, `checkpoint`, `changes`, `list`, `copy`, `stop`, `wal` or `commit`.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
}

impl Stopwatch {
    /// Starts the first phase.
    pub(super) fn start() -> Self {
        Self(Mutex::new((Instant::now(), Vec::new())))
    }

    /// Ends the phase that runs and starts the next.
    pub(super) fn end(&self, name: &'static str) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, phases) = &mut *inner;
        let now = Instant::now();
        phases.push(Phase {
            name,
            took: now - *since,
        });
        *since = now;
    }

    /// All phases that ended, in their order.
    pub(super) fn phases(&self) -> Vec<Phase> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.clone()
    }
}
