//! How many threads kernels use.

use crate::Error;
use crate::team::{self, Team};

/// The threads that kernels run on: the process' own team, or one of a given size.
#[derive(Default)]
pub struct Threads {
    team: Option<Team>,
}

impl Threads {
    /// A team of `count` threads, the calling one being among them; `None` shares the team of the whole process (one
    /// thread per core).
    pub fn new(count: Option<usize>) -> Result<Self, Error> {
        let Some(count) = count else { return Ok(Threads { team: None }) };
        Team::new(count)
            .map(|team| Threads { team: Some(team) })
            .map_err(|e| Error::Compile(format!("cannot start {count} threads: {e}")))
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.team.as_ref().map_or_else(team::threads, Team::count)
    }

    /// Runs `work` on this thread so that its parallel parts use all of these.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.team {
            Some(team) => team.install(work),
            None => work(),
        }
    }
}

/// Threads used when a session asks for no number: one per core.
pub fn default_threads() -> usize {
    team::threads()
}
