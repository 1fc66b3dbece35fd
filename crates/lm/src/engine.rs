//! Continuous batching: sequences come and go between steps.
//!
//! A step computes a chunk of the oldest prompt that is not done, then one token of every sequence whose prompt is. What a
//! sequence computes does not depend on the others: prompts are computed alone and in chunks of their own, and a run of
//! decoding sequences has a row for every slot, with or without one in it.

use std::collections::VecDeque;
use std::sync::Arc;

use olivine::internals::models::CausalLm;
use olivine::ir::DType;
use olivine::{Input, Session, State};

use crate::batch::{Inputs, Row, inputs};
use crate::caches::Caches;
use crate::graph::{self, Step};
use crate::{Error, Finish, Request};

/// How an engine decodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Sequences that are decoded at once.
    pub slots: usize,
    /// Positions of a sequence at most; the model's own if not given, and never more.
    pub context: Option<usize>,
    /// Tokens of a prompt that a step computes at most.
    pub chunk: usize,
    /// The dtype of caches: f32, f16 or bf16.
    pub cache: DType,
    /// Whether events have the log-probabilities of their tokens.
    pub logprobs: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { slots: 1, context: None, chunk: 512, cache: DType::F32, logprobs: false }
    }
}

impl EngineOptions {
    /// Sets [`EngineOptions::slots`].
    pub fn slots(self, slots: usize) -> Self {
        EngineOptions { slots, ..self }
    }

    /// Sets [`EngineOptions::context`].
    pub fn context(self, context: impl Into<Option<usize>>) -> Self {
        EngineOptions { context: context.into(), ..self }
    }

    /// Sets [`EngineOptions::chunk`].
    pub fn chunk(self, chunk: usize) -> Self {
        EngineOptions { chunk, ..self }
    }

    /// Sets [`EngineOptions::cache`].
    pub fn cache(self, cache: DType) -> Self {
        EngineOptions { cache, ..self }
    }

    /// Sets [`EngineOptions::logprobs`].
    pub fn logprobs(self, logprobs: bool) -> Self {
        EngineOptions { logprobs, ..self }
    }
}

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The next token of a sequence.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token: i64,
        /// Its log-probability by the model's logits as they are, if the engine's options ask for it.
        logprob: Option<f32>,
    },
    /// The end of a sequence.
    End {
        /// Whose.
        id: RequestId,
        /// Why.
        finish: Finish,
    },
}

/// A request on its way.
struct Sequence {
    id: RequestId,
    request: Request,
    /// The prompt and what was generated.
    tokens: Vec<i64>,
    /// How many of them are in the caches.
    cached: usize,
    /// Whether its caches are in its slot: the prompt is done.
    decoding: bool,
    /// The tokens that its constraint allows next.
    allowed: Option<Arc<[u64]>>,
}

impl Sequence {
    fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// The inputs of its next tokens.
    fn row(&self, count: usize) -> Row<'_> {
        Row {
            tokens: &self.tokens[self.cached..self.cached + count],
            before: self.cached,
            history: &self.tokens,
            sampling: &self.request.sampling,
            draw: self.generated() as u64,
            allowed: self.allowed.as_ref().filter(|_| self.cached + count == self.tokens.len()),
        }
    }

    /// Takes the token that a run chose; the sequence's end, if this is it.
    fn take(
        &mut self,
        Chosen { token, logprob }: Chosen,
        context: usize,
        vocabulary: usize,
        events: &mut Vec<Event>,
    ) -> Option<Finish> {
        let id = self.id;
        if self.request.stop.contains(&token) {
            return Some(Finish::Stop(token));
        }
        if let Some(constraint) = &mut self.request.constraint
            && constraint.accept(token).is_err()
        {
            return Some(Finish::Constraint);
        }
        self.tokens.push(token);
        events.push(Event::Token { id, token, logprob });
        if self.generated() >= self.request.max_tokens {
            return Some(Finish::Length);
        }
        if self.tokens.len() >= context {
            return Some(Finish::Context);
        }
        self.constrain(vocabulary)
    }

    /// Asks the constraint which tokens may come next; the sequence's end if there are none.
    fn constrain(&mut self, vocabulary: usize) -> Option<Finish> {
        let constraint = self.request.constraint.as_mut()?;
        self.allowed = constraint.allowed(vocabulary);
        self.allowed.is_none().then_some(Finish::Constraint)
    }
}

/// What a run chose for a row.
#[derive(Clone, Copy)]
struct Chosen {
    token: i64,
    logprob: Option<f32>,
}

/// A model that decodes sequences on a device.
pub struct Engine {
    step: Step,
    caches: Caches,
    context: usize,
    chunk: usize,
    slots: Vec<Option<Sequence>>,
    /// Slots whose prompts are not done, in the order of their requests.
    prompts: VecDeque<usize>,
    queue: VecDeque<Sequence>,
    next_id: u64,
    /// Whether a prompt may begin with what the last sequence left in the caches of a single slot.
    keep_prefix: bool,
    /// The tokens whose rows these are.
    kept: Vec<i64>,
}

impl Engine {
    pub(crate) fn new(model: &CausalLm, session: &Session, options: &EngineOptions) -> Result<Self, Error> {
        let zero = |what, value: usize| match value {
            0 => Err(Error::Invalid { what, value: value.to_string() }),
            _ => Ok(value),
        };
        let slots = zero("slots", options.slots)?;
        let chunk = zero("the chunk of a prompt", options.chunk)?;
        let asked = zero("the context", options.context.unwrap_or(model.context()))?;
        if !matches!(options.cache, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::Invalid { what: "the dtype of caches", value: options.cache.to_string() });
        }
        let context = asked.min(model.context());
        let step = graph::compile(model, session, options.cache, context, options.logprobs)?;
        let caches = Caches::new(model, &step, options.cache, slots, context)?;
        let (slots, prompts) = ((0..slots).map(|_| None).collect(), VecDeque::new());
        Ok(Engine {
            step,
            caches,
            context,
            chunk,
            slots,
            prompts,
            queue: VecDeque::new(),
            next_id: 0,
            keep_prefix: false,
            kept: Vec::new(),
        })
    }

    /// Whether a prompt that begins as the last sequence does is computed from where it differs, as in a chat. It needs an
    /// engine of one slot. Results then depend on where that is, in their last digits.
    pub fn keep_prefix(&mut self, keep: bool) {
        self.keep_prefix = keep && self.slots.len() == 1;
        self.kept.clear();
    }

    /// Positions of a sequence at most.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How many tokens the model knows.
    pub fn vocabulary(&self) -> usize {
        self.step.vocabulary
    }

    /// Bytes of the caches on the device.
    pub fn cache_bytes(&self) -> usize {
        self.caches.bytes()
    }

    /// How many plans the step is compiled to.
    pub fn compiled(&self) -> usize {
        self.step.executable.compiled()
    }

    /// Puts a request in the queue.
    pub fn add(&mut self, request: Request) -> Result<RequestId, Error> {
        request.check(self.context, self.step.vocabulary)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let tokens = request.prompt.clone();
        self.queue.push_back(Sequence { id, request, tokens, cached: 0, decoding: false, allowed: None });
        Ok(id)
    }

    /// Drops a request and frees its slot; it has no further events. False if it is not there any more.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let queued = self.queue.len();
        self.queue.retain(|sequence| sequence.id != id);
        let slot = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|sequence| sequence.id == id));
        if let Some(slot) = slot {
            self.release(slot);
        }
        slot.is_some() || self.queue.len() < queued
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Requests whose prompts are not done, with those that wait for a slot.
    pub fn prefilling(&self) -> usize {
        self.queue.len() + self.prompts.len()
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Computes a chunk of a prompt and a token of every sequence that decodes.
    ///
    /// A step that fails leaves every sequence where it was.
    pub fn step(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        self.admit(&mut events);
        // Those that decode now; a prompt that is done in this step joins in the next.
        let decoding: Vec<usize> = (0..self.slots.len()).filter(|slot| self.decodes(*slot)).collect();
        if let Some(slot) = self.prompts.front().copied() {
            self.prefill(slot, &mut events)?;
        }
        if !decoding.is_empty() {
            self.decode(&decoding, &mut events)?;
        }
        Ok(events)
    }

    fn decodes(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|sequence| sequence.decoding)
    }

    /// Moves requests to free slots.
    fn admit(&mut self, events: &mut Vec<Event>) {
        while let Some(free) = self.slots.iter().position(Option::is_none) {
            let Some(mut sequence) = self.queue.pop_front() else { return };
            let ended = match sequence.request.max_tokens {
                0 => Some(Finish::Length),
                _ => sequence.constrain(self.step.vocabulary),
            };
            if let Some(finish) = ended {
                events.push(Event::End { id: sequence.id, finish });
                continue;
            }
            let same = sequence.tokens.iter().zip(&self.kept).take_while(|(a, b)| a == b).count();
            // The last token is computed in any case: its logits are wanted.
            sequence.cached = same.min(sequence.tokens.len() - 1);
            self.kept.clear();
            self.slots[free] = Some(sequence);
            self.prompts.push_back(free);
        }
    }

    fn release(&mut self, slot: usize) {
        let ended = self.slots[slot].take();
        if let Some(mut ended) = ended.filter(|_| self.keep_prefix) {
            ended.tokens.truncate(ended.cached);
            self.kept = ended.tokens;
        }
        self.prompts.retain(|waiting| *waiting != slot);
    }

    /// Computes the next chunk of a prompt, and its first token if that was the last.
    fn prefill(&mut self, slot: usize, events: &mut Vec<Event>) -> Result<(), Error> {
        let Some(sequence) = &self.slots[slot] else { return Ok(()) };
        let count = (sequence.tokens.len() - sequence.cached).min(self.chunk);
        let (after, done) = (sequence.cached + count, sequence.cached + count == sequence.tokens.len());
        self.caches.reserve(&self.step, after)?;
        let inputs = inputs(&[Some(sequence.row(count))], count, self.caches.capacity(), self.step.vocabulary)?;
        let next = run(&self.step, self.caches.prompt(), &inputs)?;
        let token = next.first().copied().ok_or(Error::NoResult("token"))?;
        if done {
            self.caches.adopt(slot)?;
        }
        let Some(sequence) = &mut self.slots[slot] else { return Ok(()) };
        sequence.cached = after;
        if done {
            sequence.decoding = true;
            self.prompts.pop_front();
            self.take(slot, token, events);
        }
        Ok(())
    }

    /// One token of every sequence that decodes.
    fn decode(&mut self, decoding: &[usize], events: &mut Vec<Event>) -> Result<(), Error> {
        let longest = self.slots.iter().flatten().filter(|s| s.decoding).map(|s| s.tokens.len()).max();
        self.caches.reserve(&self.step, longest.unwrap_or(0))?;
        let slots = self.slots.iter().enumerate();
        let rows: Vec<Option<Row<'_>>> = slots
            .map(|(i, slot)| slot.as_ref().filter(|_| decoding.contains(&i)).map(|sequence| sequence.row(1)))
            .collect();
        let inputs = inputs(&rows, 1, self.caches.capacity(), self.step.vocabulary)?;
        let next = run(&self.step, self.caches.all(), &inputs)?;
        for slot in decoding {
            let token = next.get(*slot).copied().ok_or(Error::NoResult("token"))?;
            if let Some(sequence) = &mut self.slots[*slot] {
                sequence.cached += 1;
            }
            self.take(*slot, token, events);
        }
        Ok(())
    }

    /// Gives a sequence its token, and its slot to others if it ends.
    fn take(&mut self, slot: usize, chosen: Chosen, events: &mut Vec<Event>) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let id = sequence.id;
        if let Some(finish) = sequence.take(chosen, self.context, self.step.vocabulary, events) {
            events.push(Event::End { id, finish });
            self.release(slot);
        }
    }
}

/// Runs a step and returns what it chose for each row.
fn run(step: &Step, state: &mut State, inputs: &Inputs) -> Result<Vec<Chosen>, Error> {
    let inputs = inputs.iter().map(|(name, tensor)| (*name, Input::from(tensor)));
    let out = step.executable.run_with_state(state, inputs)?;
    let tokens = out.get("next")?.as_slice::<i32>()?;
    let logprobs = match out.iter().any(|(name, _)| name == "logprob") {
        true => out.get("logprob")?.as_slice::<f32>()?,
        false => &[],
    };
    let chosen =
        |(i, token): (usize, &i32)| Chosen { token: i64::from(*token), logprob: logprobs.get(i).copied() };
    Ok(tokens.iter().enumerate().map(chosen).collect())
}
