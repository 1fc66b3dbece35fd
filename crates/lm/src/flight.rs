//! Runs in flight: what was submitted, and what becomes of it once its tokens are read.
//!
//! ```text
//!   step n      submit run n ──────────── read run n-1 ── events
//!   step n+1                 submit run n+1 (its tokens are those of run n, on the device) ── read run n ── events
//! ```
//!
//! A sequence that ended, was cancelled or gave its pages away since a run was submitted has nothing of that run: pages that it held may
//! be another's by then, whose runs come after this one on the device.

#[cfg(test)]
mod tests;

use std::task::{Context, Poll, Waker};

use olivine::{Input, Outputs, Pending};

use crate::Error;
use crate::batch::Inputs;
use crate::engine::Engine;
use crate::sequence::Chosen;

/// A run whose tokens are not read yet.
pub(crate) struct Flight {
    pending: Pending,
    /// How many of the likeliest tokens each row has.
    top: usize,
    rows: Vec<FlightRow>,
}

/// How a step waits for its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The thread waits.
    Block,
    /// The task is woken.
    #[cfg(feature = "async")]
    Await,
}

/// Runs a future that blocks where it waits, so that its first poll is its last.
pub(crate) fn now<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(olivine::Error::CannotBlock { call: "Engine::step" }.into()),
    }
}

/// A sequence's part of a run in flight.
pub(crate) struct FlightRow {
    pub(crate) slot: usize,
    /// Of the sequence to its slot.
    pub(crate) admission: u64,
    /// Tokens that the run puts in the caches, without a draft.
    pub(crate) count: usize,
    /// Tokens that are verified.
    pub(crate) draft: Vec<i64>,
    /// Which of the run's tokens comes after the row's own; those after a draft's follow.
    pub(crate) first: usize,
}

impl Flight {
    /// The tokens, at the end of the run.
    async fn chosen(self, wait: Wait) -> Result<Vec<Chosen>, Error> {
        let out: Outputs = match wait {
            Wait::Block => self.pending.wait()?,
            #[cfg(feature = "async")]
            Wait::Await => self.pending.await?,
        };
        let tokens = out.get("next")?.as_slice::<i32>()?;
        let floats = |name: &str| match out.iter().any(|(found, _)| found == name) {
            true => Ok::<&[f32], Error>(out.get(name)?.as_slice::<f32>()?),
            false => Ok(&[][..]),
        };
        let (logprobs, top) = (floats("logprob")?, floats("top_logprobs")?);
        let top_tokens = if self.top > 0 { out.get("top_tokens")?.as_slice::<i64>()? } else { &[] };
        let chosen = |(i, token): (usize, &i32)| {
            let range = i * self.top..(i + 1) * self.top;
            let (ids, values) = (top_tokens.get(range.clone()), top.get(range));
            let top = ids.into_iter().flatten().copied().zip(values.into_iter().flatten().copied());
            Chosen { token: i64::from(*token), logprob: logprobs.get(i).copied(), top: top.collect() }
        };
        Ok(tokens.iter().enumerate().map(chosen).collect())
    }
}

impl Engine {
    /// Submits a run; its tokens are those of the run before, which are on the device, if they are not among the inputs.
    pub(crate) fn submit(&mut self, inputs: &Inputs, rows: Vec<FlightRow>) -> Result<(), Error> {
        let given = inputs.iter().any(|(name, _)| *name == "tokens");
        let chosen = if given { None } else { Some(self.caches.chosen()?) };
        let chosen = chosen.iter().map(|chosen| ("tokens", Input::from(chosen)));
        let inputs = inputs.iter().map(|(name, tensor)| (*name, Input::from(tensor))).chain(chosen);
        let pending = match self.step.executable.submit_with_state(self.caches.state(), inputs) {
            Ok(pending) => pending,
            Err(error) => {
                // A state of fixed size may have read what the run did not come to the end of.
                if !self.step.recurrent.is_empty() {
                    rows.iter().for_each(|row| self.requeue(row.slot));
                }
                return Err(error.into());
            }
        };
        for row in &rows {
            if let Some(sequence) = &mut self.slots[row.slot] {
                sequence.submitted += row.count;
            }
        }
        self.flights.push_back(Flight { pending, top: self.step.top, rows });
        Ok(())
    }

    /// Whether a row's sequence is where it was when the run was submitted.
    fn is_there(&self, row: &FlightRow) -> bool {
        self.slots[row.slot].as_ref().is_some_and(|sequence| sequence.admission == row.admission)
    }

    /// Reads the tokens of runs until so many are in flight. If one failed, those after it are dropped and every sequence is where it was
    /// before that run.
    pub(crate) async fn read(&mut self, left: usize, wait: Wait) -> Result<(), Error> {
        while self.flights.len() > left {
            let Some(mut flight) = self.flights.pop_front() else { break };
            let rows = std::mem::take(&mut flight.rows);
            self.reading = true;
            let chosen = flight.chosen(wait).await;
            self.reading = false;
            if let Err(error) = chosen.and_then(|chosen| self.take(&rows, &chosen)) {
                self.fall_back();
                return Err(error);
            }
        }
        // Nobody waits for what runs for sequences that ended.
        let flights = std::mem::take(&mut self.flights);
        self.flights =
            flights.into_iter().filter(|flight| flight.rows.iter().any(|row| self.is_there(row))).collect();
        Ok(())
    }

    /// Takes sequences on by what a run chose.
    fn take(&mut self, rows: &[FlightRow], chosen: &[Chosen]) -> Result<(), Error> {
        let last = rows.iter().map(|row| row.first + row.draft.len()).max();
        if last.is_some_and(|last| last >= chosen.len()) {
            return Err(Error::NoResult("token"));
        }
        for row in rows {
            if !self.is_there(row) {
                continue;
            }
            self.advance(row.slot, row.count, chosen[row.first].clone());
            for (at, drafted) in row.draft.iter().enumerate() {
                if !self.is_there(row) || chosen[row.first + at].token != *drafted {
                    break;
                }
                self.counts.accepted += 1;
                self.advance(row.slot, 1, chosen[row.first + at + 1].clone());
            }
        }
        Ok(())
    }

    /// Drops all runs in flight. Sequences go on from what was read; where that cannot be, because a state of fixed size has read more,
    /// they are computed again.
    pub(crate) fn fall_back(&mut self) {
        self.flights.clear();
        for slot in 0..self.slots.len() {
            let Some(sequence) = &mut self.slots[slot] else { continue };
            if sequence.submitted == sequence.cached {
                continue;
            }
            sequence.submitted = sequence.cached;
            if !self.step.recurrent.is_empty() {
                self.requeue(slot);
            }
        }
    }
}
