//! How many threads kernels use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::Error;
use crate::thread_pool::{self, ThreadPool, Work};

/// The threads that kernels run on: the process' own pool, or one of a given size.
#[derive(Default)]
pub struct Threads {
    pool: Option<ThreadPool>,
}

/// A pool of more threads than four for each core, and than this, is refused: they would only be in each other's way.
const MANY: usize = 256;

impl Threads {
    /// A pool of `count` threads, the calling one being among them; `None` shares the pool of the whole process (one
    /// thread per core).
    pub fn new(count: Option<usize>) -> Result<Self, Error> {
        let Some(count) = count else { return Ok(Threads { pool: None }) };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let most = cores.saturating_mul(4).max(MANY);
        if count > most {
            return Err(Error::TooManyThreads { asked: count, most });
        }
        ThreadPool::new(count)
            .map(|pool| Threads { pool: Some(pool) })
            .map_err(|e| Error::Compile(format!("cannot start {count} threads: {e}")))
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or_else(thread_pool::threads, ThreadPool::count)
    }

    /// Runs `work` on this thread so that its parallel parts use all of these.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Leaves `work` to one of these threads. Where all are busy, or there is none but the caller's, whoever waits for it
    /// does it.
    pub fn spawn<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Spawned<R> {
        let slot =
            Slot { work: Mutex::new(Some(Box::new(work))), result: Mutex::new(None), done: Condvar::new() };
        let slot = Arc::new(slot);
        self.install(|| thread_pool::enqueue(slot.clone()));
        Spawned(slot)
    }
}

/// Work that was left to other threads.
pub struct Spawned<R>(Arc<Slot<R>>);

struct Slot<R> {
    /// Until it is begun.
    work: Mutex<Option<Box<dyn FnOnce() -> R + Send>>>,
    /// Once it is done.
    result: Mutex<Option<std::thread::Result<R>>>,
    done: Condvar,
}

impl<R: Send> Work for Slot<R> {
    fn perform(&self) {
        let Some(work) = self.work.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let result = catch_unwind(AssertUnwindSafe(work));
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.done.notify_all();
    }
}

impl<R: Send> Spawned<R> {
    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        self.0.result.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The result; the work is done here if nobody has begun it. What it panicked with is an error.
    pub fn wait(self) -> std::thread::Result<R> {
        self.0.perform();
        let mut result = self.0.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.0.done.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Threads used when a session asks for no number: one per core.
pub fn default_threads() -> usize {
    thread_pool::threads()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn work_is_done_once_whoever_does_it() {
        for count in [None, Some(1), Some(2), Some(5)] {
            let threads = Threads::new(count).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            let spawned: Vec<_> = (0..200)
                .map(|i| {
                    let ran = ran.clone();
                    threads.spawn(move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                        i
                    })
                })
                .collect();
            let results: Vec<usize> = spawned.into_iter().map(|s| s.wait().unwrap()).collect();
            assert_eq!(results, (0..200).collect::<Vec<_>>());
            assert_eq!(ran.load(Ordering::Relaxed), 200);
        }
    }

    #[test]
    fn a_worker_does_what_nobody_waits_for() {
        let threads = Threads::new(Some(2)).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        for i in 0..3 {
            // Long enough for the worker to fall asleep in between.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let send = send.clone();
            drop(threads.spawn(move || send.send((i, std::thread::current().id()))));
            let (got, by) = receive.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
            assert_eq!(got, i);
            assert_ne!(by, std::thread::current().id());
        }
    }

    #[test]
    fn a_panic_comes_to_who_waits_and_the_threads_go_on() {
        let threads = Threads::new(Some(2)).unwrap();
        for _ in 0..5 {
            assert!(threads.spawn(|| -> u8 { std::panic::resume_unwind(Box::new(1)) }).wait().is_err());
            assert_eq!(threads.spawn(|| 7).wait().unwrap(), 7);
        }
    }

    #[test]
    fn more_threads_than_make_sense_are_refused() {
        for asked in [40_000, usize::MAX] {
            let refused = Threads::new(Some(asked)).err();
            assert!(matches!(refused, Some(Error::TooManyThreads { asked: a, .. }) if a == asked));
        }
    }
}
