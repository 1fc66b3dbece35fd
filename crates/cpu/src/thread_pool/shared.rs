//! What callers and workers of a pool share: slots for jobs, and where idle workers park.
//!
//! ```text
//!   caller: takes a free slot ─ publishes its job ─ runs tasks ─ closes the slot ─ waits for its workers
//!   worker: looks through the slots ─ joins a job ─ runs tasks ─ leaves ─ looks again, then parks
//! ```

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Spin, UnsafeCell, fence};

/// Jobs that can be shared at a time; a caller that finds no free slot runs its job alone.
pub(super) const SLOTS: usize = if cfg!(loom) { 2 } else { 8 };

/// A slot's state: workers that run the job in the low bits, then how many more may join, then the number of the job.
const ACTIVE: u64 = 1;
const OPENING: u64 = 1 << 16;
const JOB: u64 = 1 << 32;
const OPENINGS: u64 = JOB - OPENING;

fn active(state: u64) -> u64 {
    state % OPENING
}

fn job_number(state: u64) -> u64 {
    state / JOB
}

/// What happens for each index of a job.
pub(crate) type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// A loop over `0..count` that several threads run.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    count: usize,
    /// Threads that jobs inside its tasks may use.
    width: usize,
}

/// A place for one job at a time.
#[repr(align(128))]
struct Slot {
    taken: AtomicBool,
    state: AtomicU64,
    /// The next index that nobody runs yet.
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// What a worker's task panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// Safety: `job` is written by the caller that has taken the slot while no worker is active and none can join, and read by
// active workers only; the task it points to is `Sync` and outlives the time that any worker is active.
unsafe impl Send for Slot {}
// Safety: as above.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Joins a job other than number `seen`; returns its number.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::Acquire);
        while state & OPENINGS != 0 && job_number(state) != seen {
            let joined = state - OPENING + ACTIVE;
            match self.state.compare_exchange_weak(state, joined, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(job_number(state)),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Runs tasks until none is left.
    fn run_tasks(&self, task: Task<'_>, count: usize) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            task(i);
        }
    }

    /// Runs tasks as a worker that has joined, then leaves. `set_width` sets the width of the thread and returns the one
    /// before.
    fn run_joined(&self, set_width: fn(usize) -> usize) {
        // Safety: this worker is active, so that the job stays as it is and what it points to lives.
        if let Some(job) = self.job.with(|job| unsafe { *job }) {
            // Safety: as above.
            let task = unsafe { &*job.task };
            let width = set_width(job.width);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_tasks(task, job.count))) {
                self.next.store(job.count, Ordering::Relaxed);
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            set_width(width);
        }
        self.state.fetch_sub(ACTIVE, Ordering::Release);
    }
}

/// Work for any thread, run by the first that takes it; it must not panic.
pub(crate) trait Work: Send + Sync {
    /// Runs it, unless it was begun already.
    fn perform(&self);
}

/// What callers and workers share.
pub(crate) struct Shared {
    slots: [Slot; SLOTS],
    pub(super) workers: usize,
    /// Parked workers that nobody has unparked yet; changes under the lock of `parking`.
    parked: AtomicUsize,
    parking: Mutex<Parking>,
    unparked: Condvar,
    /// Work that nobody has begun yet.
    queue: Mutex<VecDeque<Arc<dyn Work>>>,
    /// Its length.
    queued: AtomicUsize,
    /// Workers that run such work now.
    working: AtomicUsize,
}

/// What parked workers wait for.
#[derive(Default)]
struct Parking {
    /// How many of them may go on.
    permits: usize,
    /// The pool is shut down.
    shutdown: bool,
}

impl Shared {
    pub(super) fn new(workers: usize) -> Self {
        Shared {
            slots: std::array::from_fn(|_| Slot::new()),
            workers,
            parked: AtomicUsize::new(0),
            parking: Mutex::new(Parking::default()),
            unparked: Condvar::new(),
            queue: Mutex::new(VecDeque::new()),
            queued: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
        }
    }

    /// Leaves work to a worker; where there is none, nobody begins it.
    pub(super) fn enqueue(&self, work: Arc<dyn Work>) {
        if self.workers == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(work);
        self.queued.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        self.unpark_for(1);
    }

    /// Runs the first work of the queue, if there is any.
    fn perform_queued(&self) -> bool {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let work = queue.pop_front();
        self.queued.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        let Some(work) = work else { return false };
        self.working.fetch_add(1, Ordering::Relaxed);
        work.perform();
        self.working.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Runs a job on this thread and on those that join it, at most `width` together; returns when all tasks are done.
    pub(super) fn run(&self, count: usize, width: usize, task: Task<'_>) {
        let openings = self.workers.min(count - 1).min(width - 1);
        let free =
            |slot: &&Slot| !slot.taken.load(Ordering::Relaxed) && !slot.taken.swap(true, Ordering::Acquire);
        let slot = if openings == 0 { None } else { self.slots.iter().find(free) };
        let Some(slot) = slot else { return (0..count).for_each(task) };
        // Safety: the lifetime is only dropped from the type; no worker is active when this function returns.
        let task_pointer = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // Safety: the slot is this caller's, no worker is active in it and none can join while it has no opening.
        slot.job.with_mut(|job| unsafe { *job = Some(Job { task: task_pointer, count, width }) });
        slot.next.store(0, Ordering::Relaxed);
        let number = job_number(slot.state.load(Ordering::Relaxed)).wrapping_add(1) % JOB;
        slot.state.store(number * JOB + openings as u64 * OPENING, Ordering::Release);
        self.unpark_for(openings);

        let own = catch_unwind(AssertUnwindSafe(|| slot.run_tasks(task, count)));
        if own.is_err() {
            slot.next.store(count, Ordering::Relaxed);
        }
        // The barrier at the end: nobody joins any more, and those who have joined leave.
        let mut state = slot.state.fetch_and(!OPENINGS, Ordering::AcqRel);
        let mut spin = Spin::default();
        while active(state) > 0 {
            spin.pause();
            state = slot.state.load(Ordering::Acquire);
        }
        let others = slot.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        slot.taken.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    /// Unparks as many workers as are missing to fill so many openings.
    pub(super) fn unpark_for(&self, openings: usize) {
        // A worker counts itself as parked before it looks through the slots a last time: one of both sees the other.
        fence(Ordering::SeqCst);
        let parked = self.parked.load(Ordering::Relaxed);
        if parked == 0 {
            return;
        }
        let busy = |slot: &Slot| active(slot.state.load(Ordering::Relaxed)) as usize;
        let busy = self.slots.iter().map(busy).sum::<usize>() + self.working.load(Ordering::Relaxed);
        // Idle workers that are not parked come by themselves.
        let missing = openings.saturating_sub(self.workers.saturating_sub(parked.saturating_add(busy)));
        if missing > 0 {
            self.unpark(missing);
        }
    }

    /// Unparks workers.
    #[cold]
    fn unpark(&self, count: usize) {
        let mut parking = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        let parked = self.parked.load(Ordering::Relaxed);
        let count = count.min(parked);
        self.parked.store(parked - count, Ordering::Relaxed);
        parking.permits += count;
        drop(parking);
        if count == parked {
            self.unparked.notify_all();
        } else {
            (0..count).for_each(|_| self.unparked.notify_one());
        }
    }

    /// Ends the workers, after what they run now.
    pub(super) fn shut_down(&self) {
        self.parking.lock().unwrap_or_else(PoisonError::into_inner).shutdown = true;
        self.unparked.notify_all();
    }

    /// The loop of a worker, until the pool is shut down. `set_width` is that of [`Slot::run_joined`].
    pub(super) fn run_worker(&self, set_width: fn(usize) -> usize) {
        let mut seen = [0; SLOTS];
        loop {
            let mut spin = Spin::default();
            loop {
                if self.join_any(&mut seen, set_width) || self.perform_queued() {
                    spin = Spin::default();
                    continue;
                }
                spin.pause();
                if spin.is_over() {
                    break;
                }
            }
            if !self.park(&seen) {
                return;
            }
        }
    }

    fn join_any(&self, seen: &mut [u64; SLOTS], set_width: fn(usize) -> usize) -> bool {
        for (slot, seen) in self.slots.iter().zip(seen) {
            if let Some(joined) = slot.join(*seen) {
                *seen = joined;
                slot.run_joined(set_width);
                return true;
            }
        }
        false
    }

    /// Parks until there may be a job; false when the pool is shut down.
    fn park(&self, seen: &[u64; SLOTS]) -> bool {
        let mut parking = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let open = |(slot, seen): (&Slot, &u64)| {
            let state = slot.state.load(Ordering::Relaxed);
            state & OPENINGS != 0 && job_number(state) != *seen
        };
        if self.slots.iter().zip(seen).any(open) || self.queued.load(Ordering::Relaxed) > 0 {
            self.parked.fetch_sub(1, Ordering::Relaxed);
            return !parking.shutdown;
        }
        while parking.permits == 0 && !parking.shutdown {
            parking = self.unparked.wait(parking).unwrap_or_else(PoisonError::into_inner);
        }
        parking.permits = parking.permits.saturating_sub(1);
        !parking.shutdown
    }
}
