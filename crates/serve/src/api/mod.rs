//! OpenAI's API: JSON to jobs, and what they bring to JSON or server-sent events.
//!
//! ```text
//!   body.rs         a request's body: limits, time, JSON
//!   fields.rs       fields of JSON, with errors that name them
//!   params.rs       sampling, lengths, stop strings
//!   tools.rs        tools that a chat may call, and the grammar of a call
//!   chat.rs, completions.rs ── generate.rs ── jobs, in the queue
//!                                   │
//!   calls.rs        calls in the text, as it comes ── call_scan.rs  one call
//!   format.rs       responses and chunks ── events.rs  a stream of them ── logprobs.rs
//!   embeddings.rs, models.rs
//!   problem.rs      errors
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use crate::admission::Admission;

mod body;
mod call_scan;
mod calls;
mod chat;
mod completions;
mod embeddings;
mod events;
mod fields;
mod format;
mod generate;
mod logprobs;
mod models;
mod params;
mod problem;
mod tools;

pub(crate) use body::{Budget, Received, receive};
pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use embeddings::embeddings;
pub(crate) use models::{model, models};
pub(crate) use problem::{Problem, respond};

/// Whether the client of a request that is prepared has left.
#[derive(Clone, Default)]
pub(crate) struct Left(Arc<AtomicBool>);

impl Left {
    /// Ends the preparation if the client has left.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Problem::internal("the client has left")),
            false => Ok(()),
        }
    }
}

/// A task that is not begun once nobody waits for it, and learns that if it is.
struct Awaited<T>(JoinHandle<T>, Left);

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        self.1.0.store(true, Ordering::Relaxed);
        self.0.abort();
    }
}

/// Runs what computes for long beside the threads that serve connections, as far as there are permits.
async fn blocking<T: Send + 'static>(
    preparing: &Admission,
    work: impl FnOnce(&Left) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = preparing.take(1).ok_or_else(|| Problem::busy(preparing.retry_after()))?;
    let left = Left::default();
    let its = left.clone();
    let task = tokio::task::spawn_blocking(move || {
        // Until it has ended, whoever waits for it.
        let _permit = permit;
        its.check()?;
        work(&its)
    });
    let mut task = Awaited(task, left);
    match (&mut task.0).await {
        Ok(done) => done,
        Err(error) => Err(Problem::internal(format!("the request could not be prepared: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;

    /// Work that waits for a word, and says whether the client had left by then.
    fn waits(word: Receiver<()>) -> impl FnOnce(&Left) -> Result<bool, Problem> + Send {
        move |left| {
            let _ = word.recv();
            Ok(left.check().is_err())
        }
    }

    #[test]
    fn preparations_are_bounded_and_do_not_outlive_their_clients() {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).max_blocking_threads(1).build().unwrap();
        let _entered = runtime.enter();
        let preparing = Admission::new(2, 0);
        let mut context = Context::from_waker(Waker::noop());
        let (word, heard) = channel();
        let (starts, started) = channel();
        let (said, gone) = channel();
        let first = blocking(&preparing, move |left| {
            starts.send(()).map_err(|_| Problem::bad("nobody listens"))?;
            let gone = waits(heard)(left)?;
            said.send(gone).map_err(|_| Problem::bad("nobody listens"))
        });
        let mut first = Box::pin(first);
        assert!(first.as_mut().poll(&mut context).is_pending());
        // What is dropped before a thread has taken it is never begun.
        started.recv_timeout(Duration::from_secs(20)).unwrap();
        let (never, unheard) = channel();
        let mut second = Box::pin(blocking(&preparing, waits(unheard)));
        assert!(second.as_mut().poll(&mut context).is_pending());
        // A third finds no permit.
        let third = runtime.block_on(blocking(&preparing, |_| Ok(())));
        assert_eq!(third.unwrap_err().status, axum::http::StatusCode::TOO_MANY_REQUESTS);
        // The first runs and learns that its client has left; the second never begins.
        drop(second);
        drop(first);
        word.send(()).unwrap();
        assert!(gone.recv_timeout(Duration::from_secs(20)).unwrap());
        // The thread that ran the first drops the second when it comes to it.
        for _ in 0..2000 {
            if never.send(()).is_err() && preparing.take(2).is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the second waits for a word, or permits are still taken");
    }
}
