//! A pool of threads that divide the tasks of a loop among them.
//!
//! The thread that has the work is one of those that run it: nothing is handed over, and a job that no worker joins is
//! run by its caller alone. A task may itself be the caller of another job. Workers spin for a while before they park,
//! since the next kernel of a graph usually comes within microseconds.
//!
//! ```text
//!   mod.rs     the pool and its threads, the pool of each thread
//!   shared.rs  what callers and workers share, tried in every interleaving by loom
//!   sync.rs    the primitives of it
//! ```

mod shared;
mod sync;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::JoinHandle;

use crate::fork;
use shared::Shared;
pub(crate) use shared::{Task, Work};

thread_local! {
    /// The pool of this thread's jobs; null for the process' own.
    static POOL: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    /// The most threads that this thread's jobs may use.
    static WIDTH: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Threads that run jobs; they end with it.
pub(crate) struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The process that it was made in.
    born: u64,
}

impl ThreadPool {
    /// A pool of `count` threads, the caller being one.
    pub(crate) fn new(count: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(count.clamp(1, 1 << 15) - 1));
        let mut pool = ThreadPool { shared, workers: Vec::new(), born: fork::generation() };
        for i in 1..=pool.shared.workers {
            let shared = pool.shared.clone();
            let named = std::thread::Builder::new().name(format!("olivine-{i}"));
            pool.workers.push(named.spawn(move || {
                POOL.set(&*shared);
                shared.run_worker(|width| WIDTH.replace(width));
            })?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller among them.
    pub(crate) fn count(&self) -> usize {
        self.shared.workers + 1
    }

    /// Runs `work` with its jobs on this pool.
    pub(crate) fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        let _reset = Reset { pool: POOL.replace(&*self.shared), width: WIDTH.replace(usize::MAX) };
        work()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if self.born != fork::generation() {
            // The threads stayed behind in the process that this one was forked from, perhaps with the lock.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.shut_down();
        // A task may drop the last reference to its own pool; its thread cannot join itself.
        let here = std::thread::current().id();
        for worker in self.workers.drain(..).filter(|worker| worker.thread().id() != here) {
            // A worker catches what its tasks panic with.
            let _ = worker.join();
        }
    }
}

/// Puts a thread's pool and width back as they were, also when it unwinds.
struct Reset {
    pool: *const Shared,
    width: usize,
}

impl Drop for Reset {
    fn drop(&mut self) {
        POOL.set(self.pool);
        WIDTH.set(self.width);
    }
}

/// The process' own pool: one thread per core, or none but the caller's where the system lets none start. A process
/// that is forked makes its own: threads stay behind.
fn common() -> &'static Shared {
    struct Common {
        pool: Option<ThreadPool>,
        alone: Shared,
        born: u64,
    }
    static COMMON: AtomicPtr<Common> = AtomicPtr::new(std::ptr::null_mut());
    let known = COMMON.load(Ordering::Acquire);
    // Safety: what the pointer points to was leaked.
    let found = unsafe { known.as_ref() }.filter(|common| common.born == fork::generation());
    let common = found.unwrap_or_else(|| {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let born = fork::generation();
        let made = Box::into_raw(Box::new(Common {
            pool: ThreadPool::new(cores).ok(),
            alone: Shared::new(0),
            born,
        }));
        match COMMON.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            // Safety: it is leaked from here on.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // Safety: nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                // Safety: what the pointer points to was leaked.
                unsafe { &*other }
            }
        }
    });
    common.pool.as_ref().map_or(&common.alone, |pool| &pool.shared)
}

/// Runs `f` with this thread's pool.
fn with_pool<R>(f: impl FnOnce(&Shared) -> R) -> R {
    let pool = POOL.get();
    if pool.is_null() {
        return f(common());
    }
    // Safety: `ThreadPool::install` and the workers set it for a time in which they keep the pool alive.
    f(unsafe { &*pool })
}

/// How many threads a job of this thread may use.
pub(crate) fn threads() -> usize {
    let width = WIDTH.get();
    if width == 1 { 1 } else { width.min(with_pool(|pool| pool.workers + 1)) }
}

/// Runs `work` with its jobs on at most `most` threads; those that will be needed are unparked now.
pub(crate) fn within<R>(most: usize, work: impl FnOnce() -> R) -> R {
    let width = WIDTH.get().min(most.max(1));
    let _reset = Reset { pool: POOL.get(), width: WIDTH.replace(width) };
    if width > 1 {
        with_pool(|pool| pool.unpark_for(width - 1));
    }
    work()
}

/// Calls `task` with every index below `count`, on all threads of the session whose work this thread does.
pub fn share(count: usize, task: Task<'_>) {
    let width = WIDTH.get();
    if count <= 1 || width == 1 {
        (0..count).for_each(task);
    } else {
        let run = |task: Task<'_>| with_pool(|pool| pool.run(count, width, task));
        #[cfg(test)]
        crate::simd::limited_as_here(task, run);
        #[cfg(not(test))]
        run(task);
    }
}

/// Leaves work to a worker of this thread's pool; where there is none, nobody begins it.
pub(crate) fn enqueue(work: Arc<dyn Work>) {
    with_pool(|pool| pool.enqueue(work));
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use super::shared::SLOTS;
    use super::sync::SPIN_TIME;
    use super::*;

    fn sum(count: usize) -> usize {
        let total = AtomicUsize::new(0);
        share(count, &|i| {
            total.fetch_add(i + 1, Ordering::Relaxed);
        });
        total.into_inner()
    }

    #[test]
    fn every_task_is_done_once_by_pools_of_any_size() {
        for threads in [1, 2, 5] {
            let pool = ThreadPool::new(threads).unwrap();
            pool.install(|| {
                assert_eq!(super::threads(), threads);
                for count in (0..40).chain([1000]) {
                    assert_eq!(sum(count), count * (count + 1) / 2);
                }
                within(1, || assert_eq!((super::threads(), sum(10)), (1, 55)));
                assert_eq!(super::threads(), threads);
            });
        }
    }

    #[test]
    fn loops_inside_loops_and_many_callers_at_once_are_done() {
        let pool = ThreadPool::new(4).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 * SLOTS {
                scope.spawn(|| {
                    pool.install(|| {
                        let total = AtomicUsize::new(0);
                        for _ in 0..50 {
                            share(5, &|_| {
                                total.fetch_add(sum(7), Ordering::Relaxed);
                            });
                        }
                        assert_eq!(total.into_inner(), 50 * 5 * 28);
                    });
                });
            }
        });
    }

    #[test]
    fn parked_workers_are_unparked() {
        let pool = ThreadPool::new(3).unwrap();
        pool.install(|| {
            for _ in 0..20 {
                std::thread::sleep(3 * SPIN_TIME);
                assert_eq!(sum(64), 64 * 65 / 2);
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(3).unwrap();
        pool.install(|| {
            for bad in 0..8 {
                let work = || share(8, &|i| assert_ne!(i, bad, "a task that fails"));
                assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
                assert_eq!(sum(64), 64 * 65 / 2);
            }
        });
    }
}
