//! How many threads kernels use.

use crate::Error;

/// The threads that kernels run on: the process' own pool, or one of a given size.
#[derive(Default)]
pub struct Threads {
    pool: Option<rayon::ThreadPool>,
}

impl Threads {
    /// A pool of `count` threads; `None` shares the pool of the whole process (one thread per core).
    pub fn new(count: Option<usize>) -> Result<Self, Error> {
        let Some(count) = count else { return Ok(Threads { pool: None }) };
        rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .build()
            .map(|pool| Threads { pool: Some(pool) })
            .map_err(|e| Error::Compile(format!("cannot start {count} threads: {e}")))
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or_else(rayon::current_num_threads, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `work` so that its parallel parts use these threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            // From outside the pool every parallel loop would be handed over by itself; this hands over once.
            None => rayon::scope(|_| work()),
        }
    }
}

/// Threads used when a session asks for no number: one per core.
pub fn default_threads() -> usize {
    rayon::current_num_threads()
}
