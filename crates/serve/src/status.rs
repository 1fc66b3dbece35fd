//! Whether the model answers, as `/health` reports it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A step that takes longer than this counts as a failure until it ends.
const LONGEST_STEP: Duration = Duration::from_secs(300);

/// Sequences that stay where they are for longer, while steps run, count as a failure until one goes on.
const LONGEST_STALL: Duration = Duration::from_secs(30);

/// The state of the thread that owns the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It compiles and computes its first token.
    Starting,
    /// It answers.
    Ready,
    /// It does not any more.
    Failed(String),
}

/// What is known of the thread that owns the model.
pub(crate) struct Status {
    state: Mutex<State>,
    changed: Condvar,
    closing: AtomicBool,
    origin: Instant,
    /// Milliseconds from the origin to the beginning of the step in progress, plus one; 0 for none.
    step: AtomicU64,
    /// The same of the first step in a row after which no sequence had gone on.
    stall: AtomicU64,
}

impl Status {
    pub(crate) fn new() -> Self {
        let (state, closing) = (Mutex::new(State::Starting), AtomicBool::new(false));
        let (step, stall) = (AtomicU64::new(0), AtomicU64::new(0));
        Status { state, changed: Condvar::new(), closing, origin: Instant::now(), step, stall }
    }

    pub(crate) fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits for the end of the start; why it failed, if it did.
    pub(crate) fn started(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let starting = |state: &mut State| *state == State::Starting;
        let state = self.changed.wait_while(state, starting).unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Refuses new requests from here on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    pub(crate) fn step_begins(&self) {
        self.step.store(self.now(), Ordering::Relaxed);
    }

    /// A step has ended, after which a sequence had gone on or had ended, or there is none.
    pub(crate) fn step_ends(&self, went_on: bool) {
        self.step.store(0, Ordering::Relaxed);
        if went_on {
            self.stall.store(0, Ordering::Relaxed);
        } else if self.stall.load(Ordering::Relaxed) == 0 {
            self.stall.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Why requests cannot be served, or `None` if they can.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem_at(self.origin.elapsed())
    }

    fn problem_at(&self, now: Duration) -> Option<String> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Starting => return Some("the model is starting".into()),
            State::Failed(why) => return Some(format!("the model failed: {why}")),
            State::Ready => {}
        }
        if self.closing.load(Ordering::Relaxed) {
            return Some("the server is shutting down".into());
        }
        let since = |begun: &AtomicU64| {
            let begun = begun.load(Ordering::Relaxed).checked_sub(1)?;
            Some(now.saturating_sub(Duration::from_millis(begun)))
        };
        if let Some(took) = since(&self.step).filter(|took| *took > LONGEST_STEP) {
            return Some(format!("a step has been running for {} s", took.as_secs()));
        }
        let stalled = since(&self.stall).filter(|stalled| *stalled > LONGEST_STALL)?;
        Some(format!("no sequence has gone on for {} s", stalled.as_secs()))
    }
}

/// Marks the status as failed when its thread ends without saying why, as in a panic.
pub(crate) struct Watch<'a>(pub(crate) &'a Status);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(State::Failed("its thread panicked".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ready_model_that_is_not_closing_serves() {
        let status = Status::new();
        assert!(status.problem().is_some_and(|why| why.contains("starting")));
        status.set(State::Ready);
        assert_eq!(status.problem(), None);
        status.step_begins();
        assert_eq!(status.problem(), None);
        assert!(status.problem_at(LONGEST_STEP * 2).is_some_and(|why| why.contains("step")));
        status.step_ends(true);
        assert_eq!(status.problem_at(LONGEST_STEP * 2), None);
        // Steps that do nothing for sequences that are there.
        for went_on in [false, false, true] {
            status.step_begins();
            status.step_ends(went_on);
            assert_eq!(status.problem(), None);
            let later = status.problem_at(status.origin.elapsed() + LONGEST_STALL * 2);
            assert_eq!(later.is_some_and(|why| why.contains("no sequence")), !went_on);
        }
        status.close();
        assert!(status.problem().is_some_and(|why| why.contains("shutting down")));
    }

    #[test]
    fn a_thread_that_panics_leaves_a_failed_status() {
        let status = std::sync::Arc::new(Status::new());
        status.set(State::Ready);
        let its = status.clone();
        let ended = std::thread::spawn(move || {
            let _watch = Watch(&its);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(ended.join().is_err());
        assert!(status.problem().is_some_and(|why| why.contains("panicked")));
    }
}
