//! Tests of what callers and workers of the CPU's thread pool share (`crates/cpu/src/thread_pool/shared.rs`), in every
//! interleaving that [loom](https://docs.rs/loom) finds. `cargo xtask loom` runs them.
//!
//! The sources are included by path: a build with `--cfg loom` then needs nothing of the CPU backend but them.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    unreachable_pub,
    reason = "tests, and parts of a crate"
)]

#[path = "../../../crates/cpu/src/thread_pool/shared.rs"]
mod shared;
#[path = "../../../crates/cpu/src/thread_pool/sync.rs"]
mod sync;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};
    use loom::thread::{self, JoinHandle};

    use crate::shared::{Shared, Work};

    /// Tries every interleaving with at most so many preemptions.
    fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        builder.check(body);
    }

    /// A pool whose workers run, and their threads.
    fn pool(workers: usize) -> (Arc<Shared>, Vec<JoinHandle<()>>) {
        let shared = Arc::new(Shared::new(workers));
        let spawn = |_| {
            let shared = shared.clone();
            thread::spawn(move || shared.run_worker(|width| width))
        };
        let threads = (0..workers).map(spawn).collect();
        (shared, threads)
    }

    fn end(shared: &Shared, threads: Vec<JoinHandle<()>>) {
        shared.shut_down();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// Elements that tasks write without synchronisation of their own: loom reports an access that no happens-before
    /// relation orders.
    struct Elements<const N: usize>([UnsafeCell<u32>; N]);

    // Safety: every element is written by one task, and read after the job.
    unsafe impl<const N: usize> Sync for Elements<N> {}
    // Safety: plain numbers.
    unsafe impl<const N: usize> Send for Elements<N> {}

    impl<const N: usize> Elements<N> {
        fn new() -> Self {
            Elements(std::array::from_fn(|_| UnsafeCell::new(0)))
        }

        fn add(&self, i: usize) {
            // Safety: task `i` alone uses element `i`; loom checks it.
            self.0[i].with_mut(|x| unsafe { *x += 1 });
        }

        fn all(&self) -> [u32; N] {
            // Safety: the job is done; loom checks it.
            std::array::from_fn(|i| self.0[i].with(|x| unsafe { *x }))
        }
    }

    /// Runs a job whose tasks write to this function's own memory, which is gone when it returns.
    fn job<const N: usize>(shared: &Shared) {
        let elements = Elements::<N>::new();
        shared.run(N, usize::MAX, &|i| elements.add(i));
        assert_eq!(elements.all(), [1; N], "every task runs once, and the caller sees what it wrote");
    }

    #[test]
    fn every_task_runs_once_and_is_done_when_the_caller_returns() {
        model(4, || {
            let (shared, threads) = pool(1);
            job::<2>(&shared);
            end(&shared, threads);
        });
    }

    #[test]
    fn a_worker_that_is_late_for_one_job_does_not_run_the_next_one_as_it() {
        model(3, || {
            let (shared, threads) = pool(1);
            job::<2>(&shared);
            job::<3>(&shared);
            end(&shared, threads);
        });
    }

    #[test]
    fn two_workers_join_one_job() {
        model(2, || {
            let (shared, threads) = pool(2);
            job::<3>(&shared);
            end(&shared, threads);
        });
    }

    #[test]
    fn two_callers_share_a_worker() {
        model(2, || {
            let (shared, threads) = pool(1);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || job::<2>(&shared))
            };
            job::<2>(&shared);
            other.join().unwrap();
            end(&shared, threads);
        });
    }

    #[test]
    fn a_task_may_be_the_caller_of_another_job() {
        model(2, || {
            let (shared, threads) = pool(1);
            let elements = Elements::<2>::new();
            shared.run(2, usize::MAX, &|i| {
                job::<2>(&shared);
                elements.add(i);
            });
            assert_eq!(elements.all(), [1; 2]);
            end(&shared, threads);
        });
    }

    #[test]
    fn a_panic_of_any_task_reaches_the_caller_and_the_slot_is_free_again() {
        model(2, || {
            let (shared, threads) = pool(1);
            let failing = || {
                shared.run(2, usize::MAX, &|i| {
                    if i == 1 {
                        std::panic::resume_unwind(Box::new(i))
                    }
                })
            };
            let panic = catch_unwind(AssertUnwindSafe(failing)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&1usize));
            job::<2>(&shared);
            end(&shared, threads);
        });
    }

    /// Work that somebody waits for, done by a worker only.
    struct Message {
        arrived: Mutex<bool>,
        changed: Condvar,
    }

    impl Work for Message {
        fn perform(&self) {
            *self.arrived.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    impl Message {
        fn new() -> Arc<Self> {
            Arc::new(Message { arrived: Mutex::new(false), changed: Condvar::new() })
        }

        fn wait(&self) {
            let mut arrived = self.arrived.lock().unwrap();
            while !*arrived {
                arrived = self.changed.wait(arrived).unwrap();
            }
        }
    }

    /// A wake-up that got lost would leave the last two waiting for each other, which loom reports as a deadlock.
    #[test]
    fn queued_work_is_never_left_lying_while_a_worker_is_parked() {
        model(4, || {
            let (shared, threads) = pool(1);
            for _ in 0..2 {
                let message = Message::new();
                shared.enqueue(message.clone());
                message.wait();
            }
            end(&shared, threads);
        });
    }

    #[test]
    fn work_queued_beside_a_job_is_done_as_well() {
        model(2, || {
            let (shared, threads) = pool(1);
            let message = Message::new();
            shared.enqueue(message.clone());
            job::<2>(&shared);
            message.wait();
            end(&shared, threads);
        });
    }
}
