//! Continuous batching: sequences come and go between steps.
//!
//! A step submits a chunk of the oldest prompt that is not done, then one token of every sequence whose prompt is, and reads the
//! tokens of the step before (flight.rs), or its own where the next step needs them on the host.
//!
//! What a sequence computes does not depend on the others: prompts are computed alone and in chunks that begin at multiples of their size,
//! a run of decoding sequences has a row for every slot, with or without one in it, and its table of pages has always the same width.
//!
//! Where pages run out, the youngest sequence gives its own away and waits. It is computed again as it was the first time, prompt by
//! chunks and then token by token, so that its numbers stay the same.

use std::collections::{HashMap, VecDeque};

use olivine::internals::models::{CausalLm, PAGE};
use olivine::{Device, DeviceTensor, Executable, Input, Session, StepTime};

use crate::batch::{Inputs, Row, Sizes, inputs};
use crate::caches::Caches;
use crate::flight::{Flight, FlightRow, Wait, now};
use crate::graph::{self, Step};
use crate::pages::Pages;
use crate::sequence::{Chosen, Sequence};
use crate::{EngineOptions, Error, Finish, MOST_TOP_LOGPROBS, Request, Share};

/// Slots at most.
const MOST_SLOTS: usize = 1 << 16;

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The next token of a sequence.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token: i64,
        /// Its log-probability by the model's logits as they are, if the engine's options ask for it.
        logprob: Option<f32>,
        /// The likeliest tokens with their log-probabilities, as many as the request asks for, the likeliest first.
        top: Vec<(i64, f32)>,
    },
    /// The end of a sequence.
    End {
        /// Whose.
        id: RequestId,
        /// Why.
        finish: Finish,
    },
}

impl Event {
    /// Whose it is.
    pub fn id(&self) -> RequestId {
        match self {
            Event::Token { id, .. } | Event::End { id, .. } => *id,
        }
    }
}

/// A model that decodes sequences on a device.
pub struct Engine {
    pub(crate) step: Step,
    pub(crate) caches: Caches,
    pages: Pages,
    context: usize,
    /// Pages of a sequence at most.
    table: usize,
    chunk: usize,
    share: Share,
    draft: usize,
    /// Positions that a token sees at most, where all layers have a window.
    window: Option<usize>,
    /// Whether steps may be submitted before the tokens of the step before are read.
    ahead: bool,
    pub(crate) slots: Vec<Option<Sequence>>,
    /// In the order of requests.
    pub(crate) queue: VecDeque<Sequence>,
    /// Runs whose tokens are not read yet, in order.
    pub(crate) flights: VecDeque<Flight>,
    /// Whether a run is being read: between steps only if the task of a step was dropped.
    pub(crate) reading: bool,
    /// Events that no step has returned yet: those before a failure are returned by the step after it.
    events: Vec<Event>,
    next_id: u64,
    admissions: u64,
    pub(crate) counts: Counts,
}

/// What an engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Tokens of prompts that were computed.
    pub computed: usize,
    /// Tokens of prompts that were in shared pages.
    pub shared: usize,
    /// Times that a sequence gave its pages away and waited.
    pub preempted: usize,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Of these, tokens that were right.
    pub accepted: usize,
    /// Times that a sequence went on by a chunk of its prompt or by a token.
    pub advanced: usize,
}

impl Engine {
    pub(crate) fn new(model: &CausalLm, session: &Session, options: &EngineOptions) -> Result<Self, Error> {
        let zero = |what, value: usize| match value {
            0 => Err(Error::Invalid { what, value: value.to_string() }),
            _ => Ok(value),
        };
        let slots = zero("slots", options.slots)?;
        if slots > MOST_SLOTS {
            return Err(Error::Invalid { what: "slots", value: format!("{slots}, over {MOST_SLOTS}") });
        }
        let chunk = zero("the chunk of a prompt", options.chunk)?;
        let asked = zero("the context", options.context.unwrap_or(model.context()))?;
        let tokens = zero("the positions of all caches", options.cache_tokens.unwrap_or(usize::MAX))?;
        if options.top_logprobs > MOST_TOP_LOGPROBS || (options.top_logprobs > 0 && !options.logprobs) {
            let value = format!("{} with log-probabilities: {}", options.top_logprobs, options.logprobs);
            return Err(Error::Invalid { what: "the number of likeliest tokens", value });
        }
        let asked = asked.min(model.context());
        let most = tokens.div_ceil(PAGE).min(slots.saturating_mul(asked.div_ceil(PAGE)));
        let context = asked.min(most.saturating_mul(PAGE));
        let step = graph::compile(model, session, asked, options)?;
        let at_once = options.cache_tokens.is_some();
        let caches = Caches::new(&step, &model.cache_rows(), options.cache, (most, at_once), slots)?;
        let (share, unit) = match options.share {
            // States of fixed size have read all of a sequence.
            _ if model.is_recurrent() => (Share::Nothing, chunk),
            // Chunks of other sizes do not end where pages do.
            Share::Chunks if chunk % PAGE != 0 => (Share::Nothing, chunk),
            Share::Pages => (Share::Pages, PAGE),
            other => (other, chunk),
        };
        Ok(Engine {
            pages: Pages::new(caches.pages(), (unit.div_ceil(PAGE), unit)),
            step,
            caches,
            context,
            table: context.div_ceil(PAGE),
            chunk,
            share,
            draft: if model.is_recurrent() { 0 } else { options.draft.min(context) },
            window: model.window(),
            ahead: options.ahead.unwrap_or(!matches!(session.device(), Device::Cpu)),
            slots: (0..slots).map(|_| None).collect(),
            queue: VecDeque::new(),
            flights: VecDeque::new(),
            reading: false,
            events: Vec::new(),
            next_id: 0,
            admissions: 0,
            counts: Counts::default(),
        })
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

    /// Pages of the caches, and how many of them no sequence holds.
    pub fn pages(&self) -> (usize, usize) {
        (self.pages.count(), self.pages.available())
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The compiled step, for whoever looks at its plans.
    pub fn executable(&self) -> &Executable {
        &self.step.executable
    }

    /// How many plans the step is compiled to.
    pub fn compiled(&self) -> usize {
        self.step.executable.compiled()
    }

    /// Puts a request in the queue.
    pub fn add(&mut self, request: Request) -> Result<RequestId, Error> {
        request.check(self.context, self.step.vocabulary, self.step.top)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.queue.push_back(Sequence::new(id, request));
        Ok(id)
    }

    /// Drops a request and frees its slot; it has no further events. False if it is not there any more.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let queued = self.queue.len();
        self.queue.retain(|sequence| sequence.id != id);
        self.events.retain(|event| event.id() != id);
        let slot = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|sequence| sequence.id == id));
        if let Some(slot) = slot {
            self.release(slot);
        }
        slot.is_some() || self.queue.len() < queued
    }

    /// Forgets what may be shared with sequences to come.
    pub fn forget(&mut self) {
        self.pages.forget();
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.events.is_empty() && self.queue.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Requests whose prompts are not done, with those that wait for a slot.
    pub fn prefilling(&self) -> usize {
        self.queue.len() + self.slots.iter().flatten().filter(|sequence| !sequence.is_prompt_done()).count()
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Computes a chunk of a prompt and a token of every sequence that decodes, and returns what was read: the tokens of this step, or
    /// those of the step before ([`EngineOptions::ahead`]).
    ///
    /// A step that fails leaves every sequence where it was, and the next one goes on from there.
    pub fn step(&mut self) -> Result<Vec<Event>, Error> {
        now(self.step_waiting(Wait::Block))
    }

    /// Does as [`Engine::step`] without blocking: in a browser, the only way to decode on a GPU. If the future is dropped, what it was
    /// to read is computed again by the next step.
    #[cfg(feature = "async")]
    pub async fn step_async(&mut self) -> Result<Vec<Event>, Error> {
        self.step_waiting(Wait::Await).await
    }

    async fn step_waiting(&mut self, wait: Wait) -> Result<Vec<Event>, Error> {
        if std::mem::take(&mut self.reading) {
            self.fall_back();
        }
        self.admit();
        let ahead = self.runs_ahead();
        if !ahead {
            self.read(0, wait).await?;
        }
        let before = self.flights.len();
        // Those that decode now; a prompt that is done in this step joins in the next.
        let decoding = self.by_age(Sequence::decodes);
        if let Some(slot) = self.by_age(|sequence| !sequence.decodes()).first().copied() {
            self.prefill(slot)?;
        }
        self.decode(&decoding)?;
        let submitted = self.flights.len() - before;
        self.read(if ahead { submitted } else { 0 }, wait).await?;
        Ok(std::mem::take(&mut self.events))
    }

    /// Whether no sequence needs the tokens of the step before on the host.
    fn runs_ahead(&self) -> bool {
        self.ahead && self.draft == 0 && self.slots.iter().flatten().all(Sequence::runs_ahead)
    }

    /// Slots of sequences of a kind, the oldest first.
    fn by_age(&self, kind: impl Fn(&Sequence) -> bool) -> Vec<usize> {
        let id = |slot: &usize| self.slots[*slot].as_ref().filter(|sequence| kind(sequence)).map(|s| s.id);
        let mut slots: Vec<usize> = (0..self.slots.len()).filter(|slot| id(slot).is_some()).collect();
        slots.sort_by_key(id);
        slots
    }

    /// Moves requests to free slots, as long as there are pages for them.
    fn admit(&mut self) {
        while let Some(free) = self.slots.iter().position(Option::is_none) {
            let running = self.slots.iter().flatten().count();
            let growth = self.caches.most() - self.pages.count();
            let Some(next) = self.queue.front() else { return };
            // With a page to go on for each that runs, so that it need not give its pages away at once.
            let needed = next.tokens.len() / PAGE + 1 + running;
            if running > 0 && needed > self.pages.available() + growth {
                return;
            }
            let Some(mut sequence) = self.queue.pop_front() else { return };
            let ended = match sequence.request.max_tokens {
                0 => Some(Finish::Length),
                // Memory was short since it was added.
                _ if sequence.tokens.len() >= self.context => Some(Finish::Context),
                _ => sequence.constrain(self.step.vocabulary),
            };
            if let Some(finish) = ended {
                self.events.push(Event::End { id: sequence.id, finish });
                continue;
            }
            self.admissions += 1;
            sequence.admission = self.admissions;
            if self.share != Share::Nothing {
                let mut table = std::mem::take(&mut sequence.page_table);
                let shareable = sequence.shareable(self.share == Share::Pages);
                sequence.cached = self.pages.share(&mut table, shareable);
                sequence.page_table = table;
                self.counts.shared += sequence.cached;
            }
            sequence.submitted = sequence.cached;
            self.slots[free] = Some(sequence);
        }
    }

    /// Frees a slot and its pages.
    fn release(&mut self, slot: usize) -> Option<Sequence> {
        let mut sequence = self.slots[slot].take()?;
        self.pages.release(&mut sequence.page_table);
        (sequence.cached, sequence.submitted) = (0, 0);
        Some(sequence)
    }

    /// Gets a slot's sequence pages for so many tokens; from younger ones if there are no others. False if it must wait.
    fn reserve(&mut self, slot: usize, tokens: usize) -> Result<bool, Error> {
        let count = tokens.div_ceil(PAGE);
        loop {
            let Some(sequence) = &mut self.slots[slot] else { return Ok(false) };
            if self.pages.take(&mut sequence.page_table, count) {
                return Ok(true);
            }
            let (id, missing) = (sequence.id, count - sequence.page_table.pages().len());
            let holds = count - sequence.page_table.released();
            let total = self.pages.count() + missing - self.pages.available();
            if total <= self.caches.most() && self.caches.grow(total).is_ok() {
                self.pages.grow(self.caches.pages());
                continue;
            }
            // Memory may have been short.
            self.context = self.context.min(self.caches.most() * PAGE);
            if holds > self.caches.most() || self.slots.iter().flatten().count() == 1 {
                self.end_without_memory(slot);
                return Ok(false);
            }
            let younger = self.by_age(|sequence| sequence.id > id).last().copied();
            let Some(younger) = younger else { return Ok(false) };
            self.counts.preempted += 1;
            self.requeue(younger);
        }
    }

    /// Ends a sequence that the caches cannot hold even if no other is there, once the tokens of its runs in flight are read.
    fn end_without_memory(&mut self, slot: usize) {
        let is_read = |sequence: &Sequence| sequence.submitted == sequence.cached;
        let Some(id) = self.slots[slot].as_ref().filter(|s| is_read(s)).map(|s| s.id) else { return };
        self.events.push(Event::End { id, finish: Finish::Context });
        self.release(slot);
    }

    /// Frees a slot; its sequence waits for another, and is computed again.
    pub(crate) fn requeue(&mut self, slot: usize) {
        let Some(sequence) = self.release(slot) else { return };
        let at = self.queue.partition_point(|queued| queued.id < sequence.id);
        self.queue.insert(at, sequence);
    }

    /// Computes the next chunk of a prompt, and its first token if that was the last.
    fn prefill(&mut self, slot: usize) -> Result<(), Error> {
        let Some(sequence) = &self.slots[slot] else { return Ok(()) };
        let left = sequence.request.prompt.len() - sequence.submitted;
        // Up to the next multiple of the chunk.
        let count = left.min(self.chunk - sequence.submitted % self.chunk);
        let after = sequence.submitted + count;
        if !self.reserve(slot, after)? {
            return Ok(());
        }
        let Some(sequence) = &self.slots[slot] else { return Ok(()) };
        let inputs = inputs(&[Some(sequence.row(count))], self.sizes(count, false, slot))?;
        let row = FlightRow { slot, admission: sequence.admission, count, draft: Vec::new(), first: 0 };
        self.submit(&inputs, vec![row])
    }

    /// One token of every sequence that decodes, and those of its draft that are right.
    fn decode(&mut self, decoding: &[usize]) -> Result<(), Error> {
        match self.decode_inputs(decoding)? {
            Some((inputs, rows)) => self.submit(&inputs, rows),
            None => Ok(()),
        }
    }

    /// Times every kernel of a run that decodes the sequences whose prompts are done. They stay where they are: the next step
    /// computes the same again.
    pub fn profile(&mut self) -> Result<Vec<StepTime>, Error> {
        now(self.read(0, Wait::Block))?;
        let decoding = self.by_age(Sequence::decodes);
        let Some((inputs, _)) = self.decode_inputs(&decoding)? else { return Ok(Vec::new()) };
        let state = &*self.caches.state();
        let resident: Vec<(&str, &DeviceTensor)> =
            state.names().map(|name| Ok((name, state.get(name)?))).collect::<Result<_, Error>>()?;
        let resident = resident.iter().map(|(name, tensor)| (*name, Input::from(*tensor)));
        let inputs = inputs.iter().map(|(name, tensor)| (*name, Input::from(tensor)));
        Ok(self.step.executable.profile(inputs.chain(resident))?)
    }

    /// The inputs of a run that decodes, with its rows; nothing if no sequence has room.
    fn decode_inputs(&mut self, decoding: &[usize]) -> Result<Option<(Inputs, Vec<FlightRow>)>, Error> {
        // For every slot the last token of its sequence, and a draft.
        let mut tokens: Vec<Vec<i64>> = vec![Vec::new(); self.slots.len()];
        let drafts = self.drafts(decoding);
        for slot in decoding {
            // One that gave its pages away is not there any more.
            let Some(sequence) = self.slots[*slot].as_ref().filter(|s| s.goes_on(self.context)) else {
                continue;
            };
            // One that is not read yet is on the device.
            let last = sequence.tokens.get(sequence.submitted).copied().unwrap_or_default();
            let after = sequence.submitted + 1;
            let draft: &[i64] = drafts.get(slot).map_or(&[], Vec::as_slice);
            if self.reserve(*slot, after + draft.len())? {
                tokens[*slot] = [&[last], draft].concat();
            }
        }
        // A younger one may have given its pages away since.
        for (tokens, _) in tokens.iter_mut().zip(&self.slots).filter(|(_, slot)| slot.is_none()) {
            tokens.clear();
        }
        if tokens.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        // One width for all runs with drafts.
        let width = if tokens.iter().any(|tokens| tokens.len() > 1) { self.draft + 1 } else { 1 };
        let mut rows: Vec<Option<Row<'_>>> = Vec::with_capacity(self.slots.len());
        let mut in_flight = Vec::with_capacity(self.slots.len());
        let mut chosen = false;
        for (slot, (sequence, tokens)) in self.slots.iter().zip(&tokens).enumerate() {
            let sequence = sequence.as_ref().filter(|_| !tokens.is_empty());
            rows.push(sequence.map(|sequence| sequence.verify(tokens)));
            if let Some(sequence) = sequence {
                chosen |= sequence.is_unread();
                let (admission, draft) = (sequence.admission, tokens[1..].to_vec());
                in_flight.push(FlightRow { slot, admission, count: 1, draft, first: slot * width });
            }
        }
        let inputs = inputs(&rows, Sizes { chosen, ..self.sizes(width, width > 1, 0) })?;
        Ok(Some((inputs, in_flight)))
    }

    /// Drafts of sequences, by slot; none if one of the batch is too near to the end of its table for the width of a run with drafts.
    fn drafts(&mut self, decoding: &[usize]) -> HashMap<usize, Vec<i64>> {
        let (draft, context) = (self.draft, self.context);
        let of = |slot: &usize| self.slots[*slot].as_ref();
        let fits = |sequence: &Sequence| sequence.submitted + draft < self.table * PAGE;
        if draft == 0 || !decoding.iter().filter_map(of).all(fits) {
            return HashMap::new();
        }
        let made = |slot: &usize| Some((*slot, of(slot)?.draft(draft, context).to_vec()));
        let drafts: HashMap<usize, Vec<i64>> = decoding.iter().filter_map(made).collect();
        self.counts.drafted += drafts.values().map(Vec::len).sum::<usize>();
        drafts
    }

    /// Sizes of a run whose first row is a slot's.
    fn sizes(&self, width: usize, every: bool, slot: usize) -> Sizes {
        let recurrent = !self.step.recurrent.is_empty();
        let vocabulary = self.step.vocabulary;
        Sizes { width, every, table: self.table, slot, recurrent, chosen: false, vocabulary }
    }

    /// Takes a sequence on after a run of so many of its tokens, and gives its slot to others if it ends.
    pub(crate) fn advance(&mut self, slot: usize, count: usize, chosen: Chosen) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        self.counts.advanced += 1;
        let prompt = sequence.request.prompt.len();
        if !sequence.is_prompt_done() {
            self.counts.computed += count;
        }
        let bounds = (self.context, self.step.vocabulary);
        let ended = sequence.advance(count, chosen, bounds, &mut self.events);
        let shared = match self.share {
            Share::Nothing => 0,
            // Tokens after the prompt are computed in another way than a prompt's.
            Share::Chunks => sequence.cached.min(prompt),
            Share::Pages => sequence.cached,
        };
        if shared == sequence.cached {
            self.pages.publish(&mut sequence.page_table, &sequence.tokens[..shared]);
        }
        if let Some(window) = self.window {
            // The next token is at position `cached`.
            self.pages.trim(&mut sequence.page_table, (sequence.cached + 1).saturating_sub(window) / PAGE);
        }
        if let Some(finish) = ended {
            self.events.push(Event::End { id: sequence.id, finish });
            self.release(slot);
        }
    }
}
