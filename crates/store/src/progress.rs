//! How far a long act has come: counters that the engine raises and the caller reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared counters of one backup, restore or verification. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    counters: Arc<Counters>,
    /// Whether the part of the act is given up that this is the progress of; `None` for the whole.
    given_up: Option<Arc<AtomicBool>>,
}

#[derive(Debug, Default)]
struct Counters {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    pages: AtomicU64,
    stored_bytes: AtomicU64,
    cancelled: AtomicBool,
    waits_for: Mutex<Option<String>>,
}

/// One reading of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes there are to do; 0 while unknown.
    pub total_bytes: u64,
    /// Bytes done.
    pub done_bytes: u64,
    /// Pages stored or written.
    pub pages: u64,
    /// Bytes sent to, or fetched from, the repository.
    pub stored_bytes: u64,
}

impl Progress {
    /// Sets what there is to do.
    pub fn set_total(&self, bytes: u64) {
        self.counters.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts cluster bytes done.
    pub fn add_done(&self, bytes: u64) {
        self.counters.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts pages stored or written.
    pub fn add_pages(&self, pages: u64) {
        self.counters.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Counts repository bytes.
    pub fn add_stored(&self, bytes: u64) {
        self.counters
            .stored_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says what the act waits for, which is in nobody's hands here; `None` when it goes on.
    pub fn wait_for(&self, what: Option<String>) {
        *self
            .counters
            .waits_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// What the act waits for.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        let waits_for = self.counters.waits_for.lock();
        waits_for.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// That of a part of the act, with the same counters: it ends with the whole, and can be given up alone.
    #[must_use]
    pub fn of_part(&self) -> Self {
        Self {
            counters: Arc::clone(&self.counters),
            given_up: Some(Arc::default()),
        }
    }

    /// Asks the act, or the part of it, to stop at the next safe place; it then fails with `Kind::Interrupted`.
    pub fn cancel(&self) {
        let flag = self.given_up.as_deref();
        flag.unwrap_or(&self.counters.cancelled)
            .store(true, Ordering::Relaxed);
    }

    /// Whether [`Progress::cancel`] was called, of this part or of the whole.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let given_up = self.given_up.as_deref();
        given_up.is_some_and(|flag| flag.load(Ordering::Relaxed))
            || self.counters.cancelled.load(Ordering::Relaxed)
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            total_bytes: self.counters.total_bytes.load(Ordering::Relaxed),
            done_bytes: self.counters.done_bytes.load(Ordering::Relaxed),
            pages: self.counters.pages.load(Ordering::Relaxed),
            stored_bytes: self.counters.stored_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_given_up_leaves_the_rest_alone_and_ends_with_the_whole() {
        let whole = Progress::default();
        let (part, other) = (whole.of_part(), whole.of_part());
        part.add_done(3);
        part.cancel();
        assert!(part.is_cancelled());
        assert!(part.clone().is_cancelled());
        assert!(!other.is_cancelled());
        assert!(!whole.is_cancelled());
        whole.cancel();
        assert!(other.is_cancelled());
        assert_eq!(whole.read().done_bytes, 3);
    }
}
