//! How much memory a case takes: an allocator that counts.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::CASE;

/// Beyond this the process ends at once, before the machine suffers.
const END: usize = 6 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static BASE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory is the system allocator's; this only counts what is asked of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

fn count(size: usize) {
    let held = HELD.fetch_add(size, Ordering::Relaxed).saturating_add(size);
    PEAK.fetch_max(held, Ordering::Relaxed);
    if held > END {
        // Neither of these allocates.
        eprintln!("error: case {} holds {} MiB", CASE.load(Ordering::Relaxed), held >> 20);
        std::process::abort();
    }
}

/// Begins to measure anew.
pub(crate) fn reset() {
    let held = HELD.load(Ordering::Relaxed);
    BASE.store(held, Ordering::Relaxed);
    PEAK.store(held, Ordering::Relaxed);
}

/// The most bytes held since then, above what was held then.
pub(crate) fn peak() -> usize {
    PEAK.load(Ordering::Relaxed).saturating_sub(BASE.load(Ordering::Relaxed))
}
