//! `--max-rate`: so many bytes a second, over all workers.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::backup::abort::Abort;

/// A worker looks for an abort at least this often while it waits.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// Hands out time slots one after another, each as long as its bytes may take.
#[derive(Debug)]
pub(crate) struct Limiter {
    bytes_per_second: Option<u64>,
    next: Mutex<Instant>,
}

impl Limiter {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more may be read.
    pub(crate) fn wait(&self, bytes: usize, abort: &Abort) {
        let Some(rate) = self.bytes_per_second.filter(|&rate| rate > 0) else {
            return;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let rate = u32::try_from(rate).unwrap_or(u32::MAX);
        let slot = Duration::from_secs_f64(f64::from(bytes) / f64::from(rate));
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*next).max(Instant::now());
            *next = begin + slot;
            begin
        };
        while !abort.is_raised() {
            let left = begin.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LONGEST_SLEEP));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_all_threads() {
        let limiter = Limiter::new(Some(1_000_000));
        let abort = Abort::new();
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| limiter.wait(100_000, &abort));
            }
        });
        // The third slot begins after two of 100 ms.
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn no_rate_does_not_wait() {
        let start = Instant::now();
        Limiter::new(None).wait(usize::MAX, &Abort::new());
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
