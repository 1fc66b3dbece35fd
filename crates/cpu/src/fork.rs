//! Which process this is: threads and devices do not come along when a process is forked.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How many forks are between this process and the one that asked first. A stored number that differs from this one
/// is of another process.
pub fn generation() -> u64 {
    static ONCE: Once = Once::new();
    if !ONCE.is_completed() {
        ONCE.call_once(watch);
    }
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(unix)]
fn watch() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> std::ffi::c_int;
    }
    extern "C" fn forked() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // Safety: the handler touches an atomic alone, which a child may do whatever its parent's threads were at. That it
    // cannot be registered means that there is no memory; forks then go unnoticed.
    unsafe { pthread_atfork(None, None, Some(forked)) };
}

#[cfg(not(unix))]
fn watch() {}
