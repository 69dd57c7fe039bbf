//! How far planning may run ahead of the index, so that memory stays bounded when one file is slow.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::backup::abort::Abort;

/// Index entries and digests of 8 GiB of pages are about 16 MiB.
const LIMIT: u64 = 8 << 30;

/// What a file costs beside its pages: its entry is as large as those of this many bytes.
const PER_FILE: u64 = 64 << 10;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Weight of the files that were planned and are not in the index yet.
#[derive(Debug, Default)]
pub(crate) struct Window {
    weight: Mutex<u64>,
    changed: Condvar,
}

impl Window {
    fn weight_of(size_bytes: u64) -> u64 {
        size_bytes.saturating_add(PER_FILE)
    }

    /// Whether a file of this size fits now.
    pub(crate) fn has_room(&self, size_bytes: u64) -> bool {
        fits(
            *self.weight.lock().unwrap_or_else(PoisonError::into_inner),
            size_bytes,
        )
    }

    /// Waits for room and takes it.
    pub(crate) fn enter(&self, size_bytes: u64, abort: &Abort) {
        let mut weight = self.weight.lock().unwrap_or_else(PoisonError::into_inner);
        while !fits(*weight, size_bytes) && !abort.is_raised() {
            weight = self
                .changed
                .wait_timeout(weight, LOOK_EVERY)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *weight = weight.saturating_add(Self::weight_of(size_bytes));
    }

    /// Gives the room back.
    pub(crate) fn leave(&self, size_bytes: u64) {
        let mut weight = self.weight.lock().unwrap_or_else(PoisonError::into_inner);
        *weight = weight.saturating_sub(Self::weight_of(size_bytes));
        drop(weight);
        self.changed.notify_all();
    }
}

/// A file larger than the window goes when the window is empty.
fn fits(weight: u64, size_bytes: u64) -> bool {
    weight == 0 || weight.saturating_add(Window::weight_of(size_bytes)) <= LIMIT
}
