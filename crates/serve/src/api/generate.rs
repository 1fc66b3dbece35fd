//! From a request to sequences in the queue, and to what they bring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use olivine_lm::{Constraint, Request};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::events::Events;
use super::format::{Choice, Format};
use super::params::Params;
use super::problem::{Problem, respond_text};
use crate::router::{App, Language};
use crate::worker::{Command, Job, Progress, Update};

/// Prompts and how to continue them.
pub(crate) struct Wanted {
    /// Tokens of each prompt.
    pub(crate) prompts: Vec<Vec<i64>>,
    pub(crate) params: Params,
    /// Tokens of a choice at most.
    pub(crate) max_tokens: usize,
    /// The grammar that choices follow.
    pub(crate) constraint: Option<Constraint>,
    /// Control tokens whose text is shown.
    pub(crate) markers: Arc<[u32]>,
    pub(crate) format: Format,
}

/// Sequences on their way. Dropping it cancels them.
pub(crate) struct Running {
    app: Arc<App>,
    updates: UnboundedReceiver<Update>,
    /// What came before all were accepted.
    early: VecDeque<Update>,
    pub(crate) choices: usize,
    pub(crate) prompt_tokens: usize,
    begun: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.metrics.request.record(self.begun.elapsed());
    }
}

impl Running {
    async fn next(&mut self) -> Option<Update> {
        match self.early.pop_front() {
            Some(update) => Some(update),
            None => self.updates.recv().await,
        }
    }

    /// [`Running::next`] for streams.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        match self.early.pop_front() {
            Some(update) => Poll::Ready(Some(update)),
            None => self.updates.poll_recv(cx),
        }
    }
}

/// Puts all sequences in the queue, or none.
async fn submit(app: &Arc<App>, language: &Language, wanted: &Wanted) -> Result<Running, Problem> {
    let begun = Instant::now();
    let Wanted { prompts, params, max_tokens, constraint, markers, format } = wanted;
    let choices = prompts.len() * params.choices;
    let capacity = app.admission.capacity();
    if choices > capacity {
        let message = format!("{choices} choices were asked for; slots and queue hold {capacity}");
        return Err(Problem::param("n", message));
    }
    let permits = app.admission.take(choices).ok_or_else(|| Problem::busy(app.admission.retry_after()))?;
    let ends: Vec<i64> = match params.ignore_eos && constraint.is_none() {
        true => Vec::new(),
        false => language.tokenizer.special().end.iter().map(|id| i64::from(*id)).collect(),
    };
    let (sender, updates) = unbounded_channel();
    for (choice, permit) in permits.into_iter().enumerate() {
        let prompt = prompts[choice / params.choices].clone();
        let mut request =
            Request::new(prompt, *max_tokens).stop(ends.iter().copied()).sampling(params.sampling_of(choice));
        request.constraint = constraint.clone();
        request.top_logprobs = format.logprobs.as_ref().map_or(0, |logprobs| logprobs.top);
        let job = Job {
            request,
            stops: params.stops.clone(),
            markers: markers.clone(),
            keep_tokens: format.logprobs.is_some(),
            choice,
            updates: sender.clone(),
            permit,
            begun,
        };
        let gone = |_| Problem::unavailable("the model does not answer");
        language.commands.send(Command::Add(Box::new(job))).map_err(gone)?;
    }
    drop(sender);
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    let mut running =
        Running { app: app.clone(), updates, early: VecDeque::new(), choices, prompt_tokens, begun };
    // The status of the response depends on whether all are accepted.
    let mut accepted = 0;
    while accepted < choices {
        match running.updates.recv().await {
            None => return Err(Problem::unavailable("the model does not answer")),
            Some(Update { what: Progress::Accepted, .. }) => accepted += 1,
            Some(Update { what: Progress::Refused(error), .. }) => return Err(Problem::from(&error)),
            Some(update) => running.early.push_back(update),
        }
    }
    Ok(running)
}

/// Generates, and answers with a stream or with all of it.
pub(crate) async fn generate(
    app: &Arc<App>,
    language: &Language,
    wanted: Wanted,
) -> Result<Response<Body>, Problem> {
    let mut running = submit(app, language, &wanted).await?;
    if wanted.params.stream {
        return Ok(Events::response(running, wanted.format));
    }
    let mut choices: Vec<Choice> = (0..running.choices).map(|_| Choice::new(&wanted.format)).collect();
    while choices.iter().any(|choice| choice.reason.is_none()) {
        let Some(Update { choice, what }) = running.next().await else {
            return Err(Problem::internal("the model does not answer"));
        };
        match what {
            Progress::Accepted => {}
            Progress::Refused(error) => return Err(Problem::from(&error)),
            Progress::Failed(why) => return Err(Problem::internal(why)),
            Progress::Text(piece) => choices[choice].add(piece),
            Progress::Done { reason, generated } => {
                choices[choice].end(reason, generated);
            }
        }
    }
    Ok(respond_text(StatusCode::OK, wanted.format.whole(choices, running.prompt_tokens)))
}
