//! How far a long act has come: counters that the engine raises and the caller reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared counters of one backup, restore or verification. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

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
        self.0.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts cluster bytes done.
    pub fn add_done(&self, bytes: u64) {
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts pages stored or written.
    pub fn add_pages(&self, pages: u64) {
        self.0.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Counts repository bytes.
    pub fn add_stored(&self, bytes: u64) {
        self.0.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says what the act waits for, which is in nobody's hands here; `None` when it goes on.
    pub fn wait_for(&self, what: Option<String>) {
        *self
            .0
            .waits_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// What the act waits for.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        let waits_for = self.0.waits_for.lock();
        waits_for.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the act to stop at the next safe place; it then fails with `Kind::Interrupted`.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`Progress::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            total_bytes: self.0.total_bytes.load(Ordering::Relaxed),
            done_bytes: self.0.done_bytes.load(Ordering::Relaxed),
            pages: self.0.pages.load(Ordering::Relaxed),
            stored_bytes: self.0.stored_bytes.load(Ordering::Relaxed),
        }
    }
}
