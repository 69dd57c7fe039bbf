//! Every target in one program: PGSTRATA_FUZZ says which. What takes memory out of proportion to its input ends it, too.

#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;

#[path = "../targets/mod.rs"]
mod targets;

/// A frame decodes to at most 1 MiB, zstd's context takes as much again, and models hold a small cluster several times.
const FREE_BYTES: usize = 48 << 20;
/// What a byte of input may cost beyond that.
const FACTOR: usize = 512;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: the system's allocator does it; the numbers beside it are nobody's memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("PGSTRATA_FUZZ").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(known, _)| *known == name);
    let names: Vec<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    found
        .unwrap_or_else(|| panic!("PGSTRATA_FUZZ must be one of {}", names.join(", ")))
        .1
});

fuzz_target!(|bytes: &[u8]| {
    let target = *TARGET;
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    target(bytes);
    let taken = PEAK.load(Ordering::Relaxed) - before;
    assert!(
        taken <= FREE_BYTES + FACTOR * bytes.len(),
        "{} bytes of input took {taken} bytes of memory",
        bytes.len()
    );
});
