//! A request on its way.

use std::sync::Arc;

use crate::batch::Row;
use crate::draft::draft;
use crate::engine::{Event, RequestId};
use crate::pages::PageTable;
use crate::{Finish, Request};

/// A request on its way.
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// The prompt and what was generated.
    pub(crate) tokens: Vec<i64>,
    /// How many of them are in the caches.
    pub(crate) cached: usize,
    /// How many are or will be when the runs in flight have ended: one more than the host knows at most.
    pub(crate) submitted: usize,
    /// The number of its admission to a slot, which distinguishes it from earlier sequences of that slot.
    pub(crate) admission: u64,
    /// Its pages.
    pub(crate) page_table: PageTable,
    /// The tokens that its constraint allows next.
    allowed: Option<Arc<[u64]>>,
}

/// What a run chose for a row.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) token: i64,
    pub(crate) logprob: Option<f32>,
    /// The likeliest tokens with their log-probabilities, if the engine computes them.
    pub(crate) top: Vec<(i64, f32)>,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: Request) -> Self {
        let tokens = request.prompt.clone();
        let page_table = PageTable::default();
        Sequence { id, request, tokens, cached: 0, submitted: 0, admission: 0, page_table, allowed: None }
    }

    /// Whether its prompt is done.
    pub(crate) fn is_prompt_done(&self) -> bool {
        self.cached >= self.request.prompt.len()
    }

    /// Whether its prompt is done when the runs in flight have ended.
    pub(crate) fn decodes(&self) -> bool {
        self.submitted >= self.request.prompt.len()
    }

    /// Whether the token that its next run begins with is still on the device alone.
    pub(crate) fn is_unread(&self) -> bool {
        self.submitted >= self.tokens.len()
    }

    /// Whether its runs need nothing of the host but what is known before: no masks, no penalties, no tokens of a first computation
    /// that are computed again.
    pub(crate) fn runs_ahead(&self) -> bool {
        let again = self.generated() > 0 && self.submitted + 1 < self.tokens.len();
        !again && self.request.constraint.is_none() && !self.request.sampling.penalises()
    }

    /// Whether it goes on after the runs in flight, unless one of these chooses its end.
    pub(crate) fn goes_on(&self, context: usize) -> bool {
        let generated = self.generated() + 1;
        !self.is_unread() || (generated < self.request.max_tokens && self.tokens.len() + 1 < context)
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// The tokens whose pages may be another's: those of the prompt but the last, whose logits are wanted.
    pub(crate) fn shareable(&self, generated: bool) -> &[i64] {
        let most = if generated { self.tokens.len() } else { self.request.prompt.len() };
        &self.tokens[..most - 1]
    }

    /// Drafts tokens after those that it has.
    pub(crate) fn draft(&self, most: usize, context: usize) -> &[i64] {
        let known = self.submitted + 1 == self.tokens.len();
        if most == 0 || !known || !self.request.sampling.is_greedy() || self.request.constraint.is_some() {
            return &[];
        }
        let left = self.request.max_tokens.saturating_sub(self.generated() + 1);
        let room = context.saturating_sub(self.tokens.len() + 1);
        draft(&self.tokens, most.min(left).min(room))
    }

    /// Its last token and a draft of what follows, to be verified.
    pub(crate) fn verify<'a>(&'a self, tokens: &'a [i64]) -> Row<'a> {
        Row { tokens, ..self.row(1) }
    }

    /// The inputs of its next tokens.
    pub(crate) fn row(&self, count: usize) -> Row<'_> {
        let after = self.submitted + count;
        Row {
            tokens: self.tokens.get(self.submitted..after).unwrap_or(&[]),
            before: self.submitted,
            history: &self.tokens,
            sampling: &self.request.sampling,
            draw: after.saturating_sub(self.request.prompt.len()) as u64,
            pages: self.page_table.pages(),
            allowed: self.allowed.as_ref().filter(|_| after == self.tokens.len()),
        }
    }

    /// Goes on after a run of so many tokens: takes the token that it chose, unless that is known already because the sequence had to
    /// give its pages away and is computed again. The sequence's end, if this is it.
    pub(crate) fn advance(
        &mut self,
        count: usize,
        chosen: Chosen,
        (context, vocabulary): (usize, usize),
        events: &mut Vec<Event>,
    ) -> Option<Finish> {
        self.cached += count;
        self.submitted = self.submitted.max(self.cached);
        if self.cached < self.tokens.len() {
            return None;
        }
        let (id, Chosen { token, logprob, mut top }) = (self.id, chosen);
        top.truncate(self.request.top_logprobs);
        if self.request.stop.contains(&token) {
            return Some(Finish::Stop(token));
        }
        if let Some(constraint) = &mut self.request.constraint
            && constraint.accept(token).is_err()
        {
            return Some(Finish::Constraint);
        }
        self.tokens.push(token);
        events.push(Event::Token { id, token, logprob, top });
        if self.generated() >= self.request.max_tokens {
            return Some(Finish::Length);
        }
        if self.tokens.len() >= context {
            return Some(Finish::Context);
        }
        self.constrain(vocabulary)
    }

    /// Asks the constraint which tokens may come next; the sequence's end if there are none.
    pub(crate) fn constrain(&mut self, vocabulary: usize) -> Option<Finish> {
        let constraint = self.request.constraint.as_mut()?;
        self.allowed = constraint.allowed(vocabulary);
        self.allowed.is_none().then_some(Finish::Constraint)
    }
}
