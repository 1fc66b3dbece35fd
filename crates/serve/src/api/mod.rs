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

/// Runs what computes for long beside the threads that serve connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Problem::internal(format!("the request could not be prepared: {error}"))),
    }
}
