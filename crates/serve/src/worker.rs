//! The thread that owns the engine: takes jobs, runs steps, hands out text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use olivine_lm::{Engine, Event, Finish, Request, RequestId};
use olivine_tokenizer::Tokenizer;
use tokio::sync::mpsc::UnboundedSender;

use crate::admission::{Admission, Permit};
use crate::metrics::Metrics;
use crate::status::{State, Status, Watch};
use crate::text::{Assembly, Piece, Token};

/// A sequence to generate.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Strings that end the text and are not part of it.
    pub(crate) stops: Vec<String>,
    /// Control tokens whose text is shown.
    pub(crate) markers: Arc<[u32]>,
    /// Whether tokens are wanted beside the text.
    pub(crate) keep_tokens: bool,
    /// Its number among the choices of its HTTP request.
    pub(crate) choice: usize,
    /// Where its text goes. A closed one means that the client has left.
    pub(crate) updates: UnboundedSender<Update>,
    pub(crate) permit: Permit,
    pub(crate) begun: Instant,
}

/// What happened to a choice.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) choice: usize,
    pub(crate) what: Progress,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It is in the queue.
    Accepted,
    /// It cannot be served.
    Refused(olivine_lm::Error),
    /// More text, for so many tokens.
    Text(Piece),
    /// Its end, with the number of tokens that were generated.
    Done { reason: Reason, generated: usize },
    /// The model failed.
    Failed(String),
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model or a stop string ended it.
    Stop,
    /// As many tokens as were asked for, or a full context.
    Length,
}

/// A command to the engine thread.
pub(crate) enum Command {
    /// A sequence to generate.
    Add(Box<Job>),
    /// Ends all sequences, and the thread.
    End,
}

/// What the thread shares with handlers of requests.
pub(crate) struct Shared {
    pub(crate) status: Arc<Status>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
}

/// A sequence on its way.
struct Active<'t> {
    text: Assembly<'t>,
    choice: usize,
    updates: UnboundedSender<Update>,
    /// Tokens of its prompt.
    prompt: usize,
    generated: usize,
    begun: Instant,
    last: Instant,
    _permit: Permit,
}

impl Active<'_> {
    fn send(&self, what: Progress) {
        // A client that has left is found before the next step.
        let _ = self.updates.send(Update { choice: self.choice, what });
    }
}

/// Serves until a command ends it, or until every sender of commands is gone.
pub(crate) fn run(mut engine: Engine, tokenizer: &Tokenizer, commands: &Receiver<Command>, shared: &Shared) {
    let _watch = Watch(&shared.status);
    if let Err(error) = probe(&mut engine) {
        shared.status.set(State::Failed(error.to_string()));
        return;
    }
    shared.status.set(State::Ready);
    let mut worker = Worker { engine, tokenizer, shared, active: HashMap::new() };
    let mut advanced = 0;
    while worker.receive(commands) {
        worker.drop_left();
        worker.report();
        if worker.active.is_empty() {
            shared.status.step_ends(true);
            continue;
        }
        shared.status.step_begins();
        let begun = Instant::now();
        let events = worker.engine.step();
        shared.metrics.step.record(begun.elapsed());
        let went_on = std::mem::replace(&mut advanced, worker.engine.counts().advanced) != advanced;
        shared.status.step_ends(went_on || !matches!(&events, Ok(events) if events.is_empty()));
        shared.metrics.steps.add(1);
        let went_on = match events {
            Ok(events) => {
                events.into_iter().for_each(|event| worker.take(event));
                true
            }
            Err(error) => worker.recover(&error),
        };
        worker.report();
        if !went_on {
            return;
        }
    }
    worker.fail("the server is shutting down");
    worker.report();
}

/// Generates two tokens, so that all is compiled, and shows whether the device computes.
fn probe(engine: &mut Engine) -> Result<(), olivine_lm::Error> {
    let id = engine.add(Request::new(vec![0], 2))?;
    while !engine.is_idle() {
        if let Err(error) = engine.step() {
            engine.cancel(id);
            return Err(error);
        }
    }
    Ok(())
}

struct Worker<'t> {
    engine: Engine,
    tokenizer: &'t Tokenizer,
    shared: &'t Shared,
    active: HashMap<RequestId, Active<'t>>,
}

impl Worker<'_> {
    /// Takes all commands that are there, and waits for one where there is nothing else to do. False in the end.
    fn receive(&mut self, commands: &Receiver<Command>) -> bool {
        if self.active.is_empty() {
            match commands.recv() {
                Ok(Command::Add(job)) => self.add(*job),
                Ok(Command::End) | Err(_) => return false,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(Command::Add(job)) => self.add(*job),
                Ok(Command::End) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn add(&mut self, job: Job) {
        if job.updates.is_closed() {
            self.shared.metrics.cancelled.add(1);
            return;
        }
        let prompt = job.request.prompt.len();
        let text = Assembly::new(self.tokenizer, job.stops, job.markers, job.keep_tokens);
        let added = self.engine.add(job.request);
        let active = Active {
            text,
            choice: job.choice,
            updates: job.updates,
            prompt,
            generated: 0,
            begun: job.begun,
            last: job.begun,
            _permit: job.permit,
        };
        match added {
            Ok(id) => {
                self.shared.metrics.prompt_tokens.add(prompt);
                active.send(Progress::Accepted);
                self.active.insert(id, active);
            }
            Err(error) => active.send(Progress::Refused(error)),
        }
    }

    /// Cancels the sequences whose clients have left.
    fn drop_left(&mut self) {
        let engine = &mut self.engine;
        let before = self.active.len();
        self.active.retain(|id, active| {
            let stays = !active.updates.is_closed();
            if !stays {
                engine.cancel(*id);
            }
            stays
        });
        self.shared.metrics.cancelled.add(before - self.active.len());
    }

    fn report(&self) {
        let metrics = &self.shared.metrics;
        let counts = self.engine.counts();
        metrics.shared_tokens.set(counts.shared);
        metrics.preempted.set(counts.preempted);
        metrics.waiting.set(self.engine.waiting());
        metrics.busy.set(self.active.len().saturating_sub(self.engine.waiting()));
        metrics.cache_bytes.set(self.engine.cache_bytes());
        metrics.plans.set(self.engine.compiled());
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Token { id, token, logprob, top } => {
                let known = |id: i64| u32::try_from(id).unwrap_or(u32::MAX);
                let top = top.into_iter().map(|(id, logprob)| (known(id), logprob)).collect();
                self.token(id, Token { id: known(token), logprob, top });
            }
            // Memory is short, so that the context is smaller than when the prompt was checked.
            Event::End { id, finish: Finish::Context }
                if self.active.get(&id).is_some_and(|active| active.generated == 0) =>
            {
                let Some(active) = self.active.remove(&id) else { return };
                let context = self.engine.context();
                active.send(Progress::Refused(olivine_lm::Error::PromptTooLong {
                    tokens: active.prompt,
                    context,
                }));
            }
            Event::End { id, finish } => {
                let reason = match finish {
                    Finish::Stop(_) | Finish::Constraint => Reason::Stop,
                    Finish::Length | Finish::Context => Reason::Length,
                };
                self.end(id, reason, true);
            }
            _ => {}
        }
    }

    fn token(&mut self, id: RequestId, token: Token) {
        // Of a sequence that a stop string has ended, more tokens may be in the same step.
        let Some(active) = self.active.get_mut(&id) else { return };
        let now = Instant::now();
        let metrics = &self.shared.metrics;
        match active.generated {
            0 => metrics.first_token.record(now - active.begun),
            _ => metrics.between_tokens.record(now - active.last),
        }
        active.last = now;
        active.generated += 1;
        metrics.generated_tokens.add(1);
        let (piece, stopped) = active.text.push(token);
        if !piece.text.is_empty() || !piece.tokens.is_empty() {
            active.send(Progress::Text(piece));
        }
        if stopped {
            self.engine.cancel(id);
            self.end(id, Reason::Stop, false);
        }
    }

    fn end(&mut self, id: RequestId, reason: Reason, flush: bool) {
        let Some(mut active) = self.active.remove(&id) else { return };
        if flush {
            let rest = active.text.finish();
            if !rest.text.is_empty() || !rest.tokens.is_empty() {
                active.send(Progress::Text(rest));
            }
        }
        active.send(Progress::Done { reason, generated: active.generated });
        self.shared.admission.took(active.begun.elapsed());
    }

    /// Ends all sequences with an error.
    fn fail(&mut self, why: &str) {
        for (id, active) in self.active.drain() {
            self.engine.cancel(id);
            active.send(Progress::Failed(why.to_string()));
        }
    }

    /// After a step that failed: ends all sequences and tries whether the device still computes.
    fn recover(&mut self, error: &olivine_lm::Error) -> bool {
        tracing::error!(%error, "a step failed");
        self.shared.metrics.step_errors.add(1);
        self.fail(&error.to_string());
        match probe(&mut self.engine) {
            Ok(()) => true,
            Err(again) => {
                tracing::error!(error = %again, "the model does not answer any more");
                self.shared.status.set(State::Failed(again.to_string()));
                false
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/common/model.rs"]
#[allow(dead_code, reason = "tests of the server use the rest")]
mod tiny;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use olivine::{Device, Session};
    use olivine_lm::{Constraint, EngineOptions, LanguageModel, TokenMask};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// A grammar with a bug.
    #[derive(Clone, Debug)]
    struct Panics;

    impl TokenMask for Panics {
        fn allowed(&mut self) -> Arc<[u64]> {
            std::panic::resume_unwind(Box::new("on purpose"))
        }

        fn accept(&mut self, _: i64) -> Result<(), olivine_lm::Error> {
            Ok(())
        }

        fn duplicate(&self) -> Box<dyn TokenMask> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn a_thread_that_panics_ends_its_requests_and_is_reported() {
        let model = LanguageModel::load(tiny::path()).unwrap();
        let session = Session::new(Device::Cpu).unwrap();
        let engine = model.engine(&session, &EngineOptions::default().slots(2)).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let (status, admission) = (Arc::new(Status::new()), Arc::new(Admission::new(2, 2)));
        let shared = Shared { status: status.clone(), metrics: Arc::default(), admission: admission.clone() };
        let (commands, received) = channel();
        let thread = std::thread::spawn(move || run(engine, &tokenizer, &received, &shared));
        assert_eq!(status.started(), None);
        assert_eq!(status.problem(), None);
        let (updates, mut news) = unbounded_channel();
        for (choice, constraint) in [None, Some(Constraint::new(Panics))].into_iter().enumerate() {
            let mut request = Request::new(vec![1, 2, 3], 1000);
            request.constraint = constraint;
            let permit = admission.take(1).unwrap().remove(0);
            let (stops, updates, begun) = (Vec::new(), updates.clone(), Instant::now());
            let markers = Arc::new([]);
            let job = Job { request, stops, markers, keep_tokens: false, choice, updates, permit, begun };
            commands.send(Command::Add(Box::new(job))).unwrap();
        }
        drop(updates);
        assert!(thread.join().is_err());
        assert!(status.problem().is_some_and(|why| why.contains("panicked")));
        // Whoever waits sees the end of the channel, and all permits are free.
        while news.blocking_recv().is_some() {}
        assert!(admission.take(4).is_some());
        assert!(commands.send(Command::End).is_err());
    }
}
