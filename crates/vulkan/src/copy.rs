//! Copies of many bytes between parts of the host's memory: one thread alone is slower than the bus.
//!
//! A few threads wait for copies as long as the process lives, because beginning threads would take as long as a copy
//! of some megabytes does. Whoever asks for a copy takes part in it, so that it never waits for a thread that sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Bytes that one thread copies at a time.
const PIECE: usize = 256 << 10;
/// Bytes from which on waking other threads pays.
const LEAST: usize = 4 * PIECE;
/// Threads that copy at once at most; more do not copy faster.
const COPIERS: usize = 8;

/// A copy, piece by piece.
struct Job {
    from: *const u8,
    to: *mut u8,
    len: usize,
    /// Pieces taken by some thread, and pieces that are copied.
    taken: AtomicUsize,
    done: AtomicUsize,
}

// Safety: each piece is taken by one thread, and `copy` returns when all of them are copied.
unsafe impl Send for Job {}
// Safety: likewise; the counters are atomic.
unsafe impl Sync for Job {}

impl Job {
    fn pieces(&self) -> usize {
        self.len.div_ceil(PIECE)
    }

    /// Copies pieces until none is left to take.
    fn work(&self) {
        loop {
            let piece = self.taken.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces() {
                return;
            }
            let start = piece * PIECE;
            let bytes = PIECE.min(self.len - start);
            // Safety: the piece is inside both ranges and no other thread has it; `copy` has not returned, because this
            // piece is not done.
            unsafe { std::ptr::copy_nonoverlapping(self.from.add(start), self.to.add(start), bytes) };
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

/// Threads that wait for jobs.
struct Pool {
    threads: usize,
    /// The last job and its number.
    job: Mutex<(u64, Option<Arc<Job>>)>,
    posted: Condvar,
}

impl Pool {
    /// The one of this process.
    fn get() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        static BEGUN: OnceLock<()> = OnceLock::new();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = POOL.get_or_init(|| Pool {
            threads: COPIERS.min(processors) - 1,
            job: Mutex::new((0, None)),
            posted: Condvar::new(),
        });
        // A thread that cannot begin leaves its share to the others.
        BEGUN.get_or_init(|| {
            for _ in 0..pool.threads {
                let _ = std::thread::Builder::new().name("olivine-copy".into()).spawn(|| pool.serve());
            }
        });
        pool
    }

    /// Takes part in every job from now on.
    fn serve(&self) {
        let mut seen = 0;
        loop {
            let mut last = self.job.lock().unwrap_or_else(PoisonError::into_inner);
            while last.0 == seen {
                last = self.posted.wait(last).unwrap_or_else(PoisonError::into_inner);
            }
            seen = last.0;
            let job = last.1.clone();
            drop(last);
            if let Some(job) = job {
                job.work();
            }
        }
    }

    fn post(&self, job: &Arc<Job>) {
        let mut last = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (last.0 + 1, Some(job.clone()));
        drop(last);
        self.posted.notify_all();
    }
}

/// Copies bytes, large numbers of them by several threads.
///
/// # Safety
/// Both ranges are valid and do not overlap, and nothing else writes them.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let pool = if len < LEAST { None } else { Some(Pool::get()).filter(|pool| pool.threads > 0) };
    let Some(pool) = pool else {
        // Safety: the caller's.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    };
    let job = Arc::new(Job { from, to, len, taken: AtomicUsize::new(0), done: AtomicUsize::new(0) });
    pool.post(&job);
    job.work();
    // Whoever has the last pieces is copying them now.
    while job.done.load(Ordering::Acquire) < job.pieces() {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_whole_from_several_threads_at_once() {
        let copies = |seed: usize| {
            for len in [0, 1, LEAST - 1, LEAST, LEAST + 1, 3 * LEAST + 12345] {
                let from: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect();
                let mut to = vec![0; len];
                // Safety: both are `len` long, and apart.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len) };
                assert!(from == to, "{len} bytes of {seed}");
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || copies(seed)))));
    }
}
