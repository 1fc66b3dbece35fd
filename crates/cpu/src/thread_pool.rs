//! A pool of threads that divide the tasks of a loop among them.
//!
//! ```text
//!   leader: takes a free post ─ puts up the loop ─ does tasks ─ closes the post ─ waits for those inside
//!   worker: looks over the posts ─ joins one with seats left ─ does tasks ─ leaves ─ looks on, then sleeps
//! ```
//!
//! The thread that has the work is one of those who do it: nothing is handed over, and a loop that nobody joins is
//! done by its leader alone. Whoever does a task may lead a loop of its own at another post. Workers look for work for a
//! while before they sleep, since the next kernel of a graph usually comes within microseconds.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fork;

/// Loops that can be shared out at a time; others are done by the thread that has them.
const POSTS: usize = 8;

/// How long a worker looks for work before it sleeps.
const WATCH: Duration = Duration::from_micros(150);

/// A post's state: workers inside in the low bits, then seats left, then a count of the loops so far.
const INSIDE: u64 = 1;
const SEAT: u64 = 1 << 16;
const LOOP: u64 = 1 << 32;
const SEATS: u64 = LOOP - SEAT;

fn inside(state: u64) -> u64 {
    state % SEAT
}

fn number(state: u64) -> u64 {
    state / LOOP
}

/// What happens to each number of a loop.
pub(crate) type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// A loop that is put up.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    count: usize,
    /// Threads that loops inside its tasks may use.
    width: usize,
}

/// Where one loop at a time is put up.
#[repr(align(128))]
struct Post {
    taken: AtomicBool,
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// What a worker's task panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// Safety: `job` is written by the thread that has taken the post while nobody is inside and no seat is left, and read by
// those inside only; the task it points to is `Sync` and outlives the time that anyone is inside.
unsafe impl Send for Post {}
// Safety: as above.
unsafe impl Sync for Post {}

impl Post {
    fn new() -> Self {
        Post {
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        }
    }

    /// Takes a seat of a loop other than number `seen`; the answer is its number.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::Acquire);
        while state & SEATS != 0 && number(state) != seen {
            let joined = state - SEAT + INSIDE;
            match self.state.compare_exchange_weak(state, joined, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(number(state)),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Does tasks until none is left.
    fn work(&self, task: Task<'_>, count: usize) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            task(i);
        }
    }

    /// Does tasks as a worker that has joined, then leaves.
    fn help(&self) {
        // Safety: this thread is inside, so that the job stays as it is and what it points to lives.
        if let Some(job) = unsafe { *self.job.get() } {
            // Safety: as above.
            let task = unsafe { &*job.task };
            let width = WIDTH.replace(job.width);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(task, job.count))) {
                self.next.store(job.count, Ordering::Relaxed);
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            WIDTH.set(width);
        }
        self.state.fetch_sub(INSIDE, Ordering::Release);
    }
}

/// What leaders and workers share.
pub(crate) struct Shared {
    posts: [Post; POSTS],
    workers: usize,
    /// Workers asleep that nobody has called yet; changes under the lock of `beds`.
    asleep: AtomicUsize,
    beds: Mutex<Beds>,
    wake: Condvar,
    /// Work that nobody has begun yet.
    queue: Mutex<VecDeque<Arc<dyn Work>>>,
    /// Its length.
    queued: AtomicUsize,
    /// Workers that do such work now.
    working: AtomicUsize,
}

/// Work for any thread, done by the first that comes; it must not panic.
pub(crate) trait Work: Send + Sync {
    /// Does it, unless it was begun already.
    fn perform(&self);
}

/// What sleeping workers wait for.
#[derive(Default)]
struct Beds {
    /// How many of them were called.
    called: usize,
    /// The pool is dissolved.
    over: bool,
}

thread_local! {
    /// The pool of this thread's loops; null for the process' own.
    static POOL: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    /// The most threads that this thread's loops may use.
    static WIDTH: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Threads that share out loops; they end with it.
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
            pool.workers.push(named.spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller among them.
    pub(crate) fn count(&self) -> usize {
        self.shared.workers + 1
    }

    /// Runs `work` with its loops shared out to this pool.
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
        self.shared.beds.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.shared.wake.notify_all();
        // A task may let go of the last hold on its own pool; its thread cannot wait for itself.
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
    // Safety: `ThreadPool::install` and `Shared::serve` set it for a time in which they keep the pool alive.
    f(unsafe { &*pool })
}

/// How many threads a loop of this thread may use.
pub(crate) fn threads() -> usize {
    let width = WIDTH.get();
    if width == 1 { 1 } else { width.min(with_pool(|pool| pool.workers + 1)) }
}

/// Runs `work` with its loops on at most `most` threads; those that will be needed are woken now.
pub(crate) fn within<R>(most: usize, work: impl FnOnce() -> R) -> R {
    let width = WIDTH.get().min(most.max(1));
    let _reset = Reset { pool: POOL.get(), width: WIDTH.replace(width) };
    if width > 1 {
        with_pool(|pool| pool.rouse(width - 1));
    }
    work()
}

/// Calls `task` with every number below `count`, on all threads.
pub(crate) fn share(count: usize, task: Task<'_>) {
    let width = WIDTH.get();
    if count <= 1 || width == 1 {
        (0..count).for_each(task);
    } else {
        with_pool(|pool| pool.lead(count, width, task));
    }
}

/// Leaves work to a worker of this thread's pool; where there is none, nobody begins it.
pub(crate) fn enqueue(work: Arc<dyn Work>) {
    with_pool(|pool| pool.enqueue(work));
}

impl Shared {
    fn new(workers: usize) -> Self {
        Shared {
            posts: std::array::from_fn(|_| Post::new()),
            workers,
            asleep: AtomicUsize::new(0),
            beds: Mutex::default(),
            wake: Condvar::new(),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
        }
    }

    fn enqueue(&self, work: Arc<dyn Work>) {
        if self.workers == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(work);
        self.queued.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        self.rouse(1);
    }

    /// Does the first work of the queue, if there is any.
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

    /// Shares a loop out and returns when it is done.
    fn lead(&self, count: usize, width: usize, task: Task<'_>) {
        let seats = self.workers.min(count - 1).min(width - 1);
        let free =
            |post: &&Post| !post.taken.load(Ordering::Relaxed) && !post.taken.swap(true, Ordering::Acquire);
        let post = if seats == 0 { None } else { self.posts.iter().find(free) };
        let Some(post) = post else { return (0..count).for_each(task) };
        // Safety: the lifetime is only dropped from the type; nobody is inside when this function returns.
        let task_pointer = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // Safety: the post is this thread's, nobody is inside it and none can join while there is no seat.
        unsafe { *post.job.get() = Some(Job { task: task_pointer, count, width }) };
        post.next.store(0, Ordering::Relaxed);
        let loops = number(post.state.load(Ordering::Relaxed)).wrapping_add(1) % LOOP;
        post.state.store(loops * LOOP + seats as u64 * SEAT, Ordering::Release);
        self.rouse(seats);

        let own = catch_unwind(AssertUnwindSafe(|| post.work(task, count)));
        if own.is_err() {
            post.next.store(count, Ordering::Relaxed);
        }
        let mut state = post.state.fetch_and(!SEATS, Ordering::AcqRel);
        let mut rounds = 0u32;
        while inside(state) > 0 {
            pause(&mut rounds);
            state = post.state.load(Ordering::Acquire);
        }
        let others = post.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        post.taken.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(others) {
            resume_unwind(panic);
        }
    }

    /// Wakes as many sleeping workers as are missing for so many seats.
    fn rouse(&self, seats: usize) {
        // A worker counts itself asleep before it looks over the posts a last time: one of both sees the other.
        fence(Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::Relaxed);
        if asleep == 0 {
            return;
        }
        let busy = |post: &Post| inside(post.state.load(Ordering::Relaxed)) as usize;
        let busy = self.posts.iter().map(busy).sum::<usize>() + self.working.load(Ordering::Relaxed);
        // Those who are awake and idle come by themselves.
        let missing = seats.saturating_sub(self.workers.saturating_sub(asleep.saturating_add(busy)));
        if missing > 0 {
            self.call(missing);
        }
    }

    /// Wakes workers.
    #[cold]
    fn call(&self, count: usize) {
        let mut beds = self.beds.lock().unwrap_or_else(PoisonError::into_inner);
        let asleep = self.asleep.load(Ordering::Relaxed);
        let called = count.min(asleep);
        self.asleep.store(asleep - called, Ordering::Relaxed);
        beds.called += called;
        drop(beds);
        if called == asleep {
            self.wake.notify_all();
        } else {
            (0..called).for_each(|_| self.wake.notify_one());
        }
    }

    /// A worker's life.
    fn serve(&self) {
        POOL.set(self);
        let mut seen = [0; POSTS];
        loop {
            let mut since = None;
            let mut rounds = 0;
            loop {
                if self.help_somewhere(&mut seen) || self.perform_queued() {
                    (since, rounds) = (None, 0);
                    continue;
                }
                pause(&mut rounds);
                if rounds % 32 == 0 && since.get_or_insert_with(Instant::now).elapsed() > WATCH {
                    break;
                }
            }
            if !self.sleep(&seen) {
                return;
            }
        }
    }

    fn help_somewhere(&self, seen: &mut [u64; POSTS]) -> bool {
        for (post, seen) in self.posts.iter().zip(seen) {
            if let Some(joined) = post.join(*seen) {
                *seen = joined;
                post.help();
                return true;
            }
        }
        false
    }

    /// Sleeps until there may be work; false when the pool is over.
    fn sleep(&self, seen: &[u64; POSTS]) -> bool {
        let mut beds = self.beds.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let wanted = |(post, seen): (&Post, &u64)| {
            let state = post.state.load(Ordering::Relaxed);
            state & SEATS != 0 && number(state) != *seen
        };
        if self.posts.iter().zip(seen).any(wanted) || self.queued.load(Ordering::Relaxed) > 0 {
            self.asleep.fetch_sub(1, Ordering::Relaxed);
            return !beds.over;
        }
        while beds.called == 0 && !beds.over {
            beds = self.wake.wait(beds).unwrap_or_else(PoisonError::into_inner);
        }
        beds.called = beds.called.saturating_sub(1);
        !beds.over
    }
}

/// Lets a little time pass, more gently the longer it has been.
fn pause(rounds: &mut u32) {
    *rounds = rounds.wrapping_add(1);
    if *rounds < 512 {
        (0..4).for_each(|_| std::hint::spin_loop());
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(count: usize) -> usize {
        let total = AtomicUsize::new(0);
        share(count, &|i| {
            total.fetch_add(i + 1, Ordering::Relaxed);
        });
        total.into_inner()
    }

    #[test]
    fn every_task_is_done_once_by_teams_of_any_size() {
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
    fn loops_inside_loops_and_many_leaders_at_once_are_done() {
        let pool = ThreadPool::new(4).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 * POSTS {
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
    fn sleeping_workers_are_woken() {
        let pool = ThreadPool::new(3).unwrap();
        pool.install(|| {
            for _ in 0..20 {
                std::thread::sleep(3 * WATCH);
                assert_eq!(sum(64), 64 * 65 / 2);
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_leader_and_the_team_goes_on() {
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
