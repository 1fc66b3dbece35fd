//! The primitives that threads of a pool meet at: those of `std`, or loom's, which try every interleaving.
//!
//! With `--cfg loom` (`cargo xtask loom`) workers do not spin: they yield, and park when they find no job.

#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex},
};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
};

/// A cell with the interface of loom's.
#[cfg(not(loom))]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer to read from.
    #[inline(always)]
    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer to write to.
    #[inline(always)]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// How long a worker looks for jobs before it parks.
#[cfg(not(loom))]
pub(super) const SPIN_TIME: std::time::Duration = std::time::Duration::from_micros(150);

/// A wait in a loop, gentler the longer it takes.
#[derive(Default)]
pub(super) struct Spin {
    rounds: u32,
    #[cfg(not(loom))]
    since: Option<std::time::Instant>,
}

impl Spin {
    /// Lets a little time pass.
    pub(super) fn pause(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(not(loom))]
        if self.rounds < 512 {
            (0..4).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
    }

    /// Whether it has taken so long that a worker parks.
    #[cfg(not(loom))]
    pub(super) fn is_over(&mut self) -> bool {
        // The clock is read seldom.
        self.rounds.is_multiple_of(32)
            && self.since.get_or_insert_with(std::time::Instant::now).elapsed() > SPIN_TIME
    }

    /// Whether it has taken so long that a worker parks.
    #[cfg(loom)]
    pub(super) fn is_over(&mut self) -> bool {
        self.rounds > 0
    }
}
