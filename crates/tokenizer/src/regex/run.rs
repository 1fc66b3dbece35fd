//! Matching: backtracking that, once a text makes it work hard, remembers which states have failed.
//!
//! Whether a state (step, position) leads to a match does not depend on how it was reached, so a state that failed is never tried
//! again, also by later attempts on the same text. This bounds the work by the states there are. Ordinary text never needs it.

use super::compile::{Program, Step};
use super::parse::{Anchor, Greed};
use crate::unicode::is_word;

/// Where to go on after a failure: at `step`, from `at` down to `low` character by character, or up for a lazy run.
struct Frame {
    step: usize,
    at: usize,
    low: usize,
    /// Of a lazy run at `step`: `low` counts the repeats left.
    lazy: bool,
}

/// A program and the text that it searches.
pub(crate) struct Matcher<'a> {
    program: &'a Program,
    text: &'a str,
    frames: Vec<Frame>,
    /// One bit for each slot at each position; empty until needed.
    failed: Vec<u64>,
    base: usize,
    work: usize,
    /// The work after which nothing matches any more.
    limit: usize,
}

/// Steps per byte that need no memory of failures.
const EASY: usize = 64;

/// Steps per byte after which a search is given up. Expressions of real tokenizers need tens.
const HARD: usize = 1024;

impl<'a> Matcher<'a> {
    pub(crate) fn new(program: &'a Program, text: &'a str) -> Matcher<'a> {
        let limit = (HARD * text.len()).saturating_add(1 << 22);
        Matcher { program, text, frames: Vec::new(), failed: Vec::new(), base: 0, work: 0, limit }
    }

    /// Whether a search was given up, so that matches may be missing.
    pub(crate) fn gave_up(&self) -> bool {
        self.work > self.limit
    }

    /// The leftmost match that begins at `from` or later.
    pub(crate) fn find(&mut self, from: usize) -> Option<(usize, usize)> {
        let mut start = from;
        while start <= self.text.len() && !self.gave_up() {
            if let Some(end) = self.match_at(start) {
                return Some((start, end));
            }
            start += width(self.text, start).max(1);
        }
        None
    }

    /// Marks a state; says whether it was marked before.
    fn seen(&mut self, slot: usize, at: usize) -> bool {
        if self.failed.is_empty() || at < self.base {
            return false;
        }
        let bit = (at - self.base) * self.program.slots + slot;
        let Some(word) = self.failed.get_mut(bit / 64) else { return false };
        let seen = *word >> (bit % 64) & 1 == 1;
        *word |= 1 << (bit % 64);
        seen
    }

    /// The states at a match's end may be those that led to it.
    fn forget(&mut self, at: usize) {
        if self.failed.is_empty() || at < self.base {
            return;
        }
        let first = (at - self.base) * self.program.slots;
        for bit in first..first + self.program.slots {
            if let Some(word) = self.failed.get_mut(bit / 64) {
                *word &= !(1 << (bit % 64));
            }
        }
    }

    fn match_at(&mut self, start: usize) -> Option<usize> {
        self.frames.clear();
        let (mut step, mut at) = (0, start);
        loop {
            self.work += 1;
            if self.gave_up() {
                return None;
            }
            if self.failed.is_empty() && self.work > EASY * start + (1 << 16) {
                // Restarted, so that every state from here on is marked.
                self.base = start;
                self.failed = vec![0; (self.text.len() + 1 - start) * self.program.slots / 64 + 1];
                self.frames.clear();
                (step, at) = (0, start);
            }
            let program = self.program;
            let ok = match &program.steps[step] {
                Step::Match => {
                    self.forget(at);
                    return Some(at);
                }
                Step::Jump(to) => {
                    step = *to;
                    continue;
                }
                Step::Class(class) => match program.classes[*class].step(self.text, at) {
                    0 => false,
                    width => {
                        at += width;
                        true
                    }
                },
                Step::Split { first, second, slot } => {
                    if self.seen(*slot, at) {
                        false
                    } else {
                        self.frames.push(Frame { step: *second, at, low: at, lazy: false });
                        step = *first;
                        continue;
                    }
                }
                Step::Run { class, min, max, greed, slot } => {
                    match self.run(step, *class, (*min, *max), *greed, *slot, at) {
                        Some(end) => {
                            at = end;
                            true
                        }
                        None => false,
                    }
                }
                Step::Look { program, negated } => {
                    let body = &self.program.looks[*program];
                    let mut ahead = Matcher::new(body, self.text);
                    ahead.limit = self.limit - self.work;
                    let found = ahead.match_at(at).is_some();
                    self.work += ahead.work;
                    found != *negated
                }
                Step::Anchor(anchor) => self.anchored(*anchor, at),
            };
            if ok {
                step += 1;
            } else {
                (step, at) = self.back()?;
            }
        }
    }

    /// Runs a repeated class from `at` and leaves a frame for the other lengths; the position after the first choice.
    fn run(
        &mut self,
        step: usize,
        class: usize,
        (min, max): (u32, u32),
        greed: Greed,
        slot: usize,
        at: usize,
    ) -> Option<usize> {
        let class = &self.program.classes[class];
        let (mut end, mut count) = (at, 0);
        while count < min {
            match class.step(self.text, end) {
                0 => return None,
                width => end += width,
            }
            count += 1;
        }
        let low = end;
        let unbounded = max == u32::MAX;
        if unbounded && self.seen(slot, end) {
            return None;
        }
        if greed == Greed::Lazy {
            if count < max {
                // The run itself goes on from here, without its minimum.
                self.frames.push(Frame { step, at: end, low: (max - count) as usize, lazy: true });
            }
            return Some(end);
        }
        while count < max {
            let width = class.step(self.text, end);
            if width == 0 {
                break;
            }
            if unbounded && self.seen(slot, end + width) {
                // From there on all has failed, and a possessive run would have to go there.
                if greed == Greed::Possessive {
                    return None;
                }
                break;
            }
            end += width;
            count += 1;
        }
        self.work += end - at;
        if greed == Greed::Greedy && end > low {
            self.frames.push(Frame { step: step + 1, at: end, low, lazy: false });
        }
        Some(end)
    }

    /// The state to go on with after a failure.
    fn back(&mut self) -> Option<(usize, usize)> {
        loop {
            let frame = self.frames.last_mut()?;
            if frame.lazy {
                let (step, at, left) = (frame.step, frame.at, frame.low);
                self.frames.pop();
                let Step::Run { class, max, slot, .. } = self.program.steps[step] else { continue };
                let width = self.program.classes[class].step(self.text, at);
                if width == 0 || max == u32::MAX && self.seen(slot, at + width) {
                    continue;
                }
                if left > 1 {
                    let left = if max == u32::MAX { left } else { left - 1 };
                    self.frames.push(Frame { step, at: at + width, low: left, lazy: true });
                }
                return Some((step + 1, at + width));
            }
            if frame.at == frame.low {
                let state = (frame.step, frame.at);
                // A split's second way; a run's frame is gone before it gets here.
                self.frames.pop();
                return Some(state);
            }
            frame.at -= 1;
            while !self.text.is_char_boundary(frame.at) {
                frame.at -= 1;
            }
            let state = (frame.step, frame.at);
            if frame.at == frame.low {
                self.frames.pop();
            }
            return Some(state);
        }
    }

    fn anchored(&self, anchor: Anchor, at: usize) -> bool {
        let before = || self.text.get(..at).and_then(|text| text.chars().next_back());
        let after = || self.text.get(at..).and_then(|text| text.chars().next());
        match anchor {
            Anchor::TextStart => at == 0,
            Anchor::TextEnd => at == self.text.len(),
            Anchor::LineStart => before().is_none_or(|c| c == '\n'),
            Anchor::LineEnd => after().is_none_or(|c| c == '\n'),
            Anchor::WordBoundary => before().is_some_and(is_word) != after().is_some_and(is_word),
            Anchor::NotWordBoundary => before().is_some_and(is_word) == after().is_some_and(is_word),
        }
    }
}

/// The length of the character at `at`; 0 at the end.
fn width(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8)
}
