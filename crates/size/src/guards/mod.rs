//! Guards: questions about sizes that a compile asked, with their answers.
//!
//! ```text
//!   record ──── runs a function and collects the guards of all comparisons inside, on this and on joined threads
//!   guard ───── one guard in canonical form: expression, relation, number
//!   simplify ── drops guards that others imply
//!   set ─────── what is left, compiled for `holds`
//! ```
//!
//! A plan made inside [`record`] holds for all sizes for which the guards hold: the same code would take the same
//! branches. Questions whose answer is the same for all values within the bounds of the symbols leave no guard.
//!
//! Where arithmetic has no result for new sizes (an overflow, a division by zero), questions about it need not fail;
//! evaluating the number in a [`Table`](crate::Table) does.
//!
//! Two things are up to the caller. A result that is kept and used again in another recording must bring its guards
//! along: [`GuardSet::record_again`]. And code must decide by comparisons, not by [`Dim::value`].

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Dim;

mod guard;
mod set;
mod simplify;

use guard::Condition;
pub use guard::Guard;
pub(crate) use guard::Relation;
pub use set::{Failure, GuardSet};

#[derive(Default)]
struct Recording {
    guards: Mutex<(Vec<Guard>, HashSet<Condition>)>,
}

thread_local! {
    /// Mirrors whether the stack is empty, because it is asked at every comparison.
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    static STACK: RefCell<Vec<Arc<Recording>>> = const { RefCell::new(Vec::new()) };
    static ASKED_AT: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Runs `f` and returns its result with the guards of all questions it asked.
///
/// Recordings nest: questions inside an inner one are recorded in the outer one too. Threads that joined through
/// [`Recorder::enter`] must be done when `f` returns.
pub fn record<T>(f: impl FnOnce() -> T) -> (T, GuardSet) {
    let recording = Arc::new(Recording::default());
    let result = with_recordings(vec![recording.clone()], f);
    let guards = std::mem::take(&mut recording.guards.lock().unwrap_or_else(PoisonError::into_inner).0);
    (result, GuardSet::new(guards))
}

/// True inside of [`record`] or [`Recorder::enter`].
#[inline]
pub fn is_recording() -> bool {
    IS_RECORDING.get()
}

/// Runs `f` with `location` as the place that asks, for code whose own line says nothing.
pub fn asked_at<T>(location: &'static Location<'static>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<&'static Location<'static>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASKED_AT.set(self.0);
        }
    }
    let _restore = Restore(ASKED_AT.replace(Some(location)));
    f()
}

/// The recordings of one thread, for another thread to join.
#[derive(Clone)]
pub struct Recorder {
    recordings: Vec<Arc<Recording>>,
}

impl Recorder {
    /// The recordings that this thread is in; there may be none.
    pub fn current() -> Recorder {
        Recorder { recordings: STACK.with_borrow(Clone::clone) }
    }

    /// Runs `f` with its questions recorded there, and in the recordings that this thread is in already.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        with_recordings(self.recordings.clone(), f)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder of {} recordings", self.recordings.len())
    }
}

fn with_recordings<T>(more: Vec<Arc<Recording>>, f: impl FnOnce() -> T) -> T {
    /// Restores the stack on return and on panic.
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            STACK.with_borrow_mut(|stack| stack.truncate(self.0));
            IS_RECORDING.set(self.0 > 0);
        }
    }
    let before = STACK.with_borrow_mut(|stack| {
        let before = stack.len();
        for recording in more {
            if !stack.iter().any(|known| Arc::ptr_eq(known, &recording)) {
                stack.push(recording);
            }
        }
        IS_RECORDING.set(!stack.is_empty());
        before
    });
    let _restore = Restore(before);
    f()
}

/// Answers `a == b`.
#[track_caller]
pub(crate) fn is_equal(a: Dim, b: Dim) -> bool {
    if a.fault().or(b.fault()).is_some() {
        return refuse(a, b);
    }
    let answer = a.raw() == b.raw();
    if is_recording() {
        match guard::equality(a, b, answer) {
            Some(condition) => push(condition),
            None => pin_both(a, b),
        }
    }
    answer
}

/// Answers `a >= b + more`, where `more` is 0 or 1.
#[track_caller]
pub(crate) fn is_at_least(a: Dim, b: Dim, more: i64) -> bool {
    if a.fault().or(b.fault()).is_some() {
        return refuse(a, b);
    }
    let answer = if more == 0 { a.raw() >= b.raw() } else { a.raw() > b.raw() };
    if is_recording() {
        match guard::at_least(a, b, more, answer) {
            Some(condition) => push(condition),
            None => pin_both(a, b),
        }
    }
    answer
}

/// Records that a size keeps its value.
#[track_caller]
pub(crate) fn pin(dim: Dim) {
    if is_recording() && !dim.is_constant() {
        push(guard::pinned(dim));
    }
}

#[track_caller]
fn pin_both(a: Dim, b: Dim) {
    pin(a);
    pin(b);
}

/// A comparison without a value: false, and no other sizes may rely on it.
#[cold]
#[track_caller]
fn refuse(a: Dim, b: Dim) -> bool {
    if is_recording() {
        push(guard::never(if a.fault().is_some() { a } else { b }));
    }
    false
}

#[track_caller]
fn push(condition: Condition) {
    if condition != Condition::Always {
        let location = ASKED_AT.get().unwrap_or(Location::caller());
        push_guard(Guard { condition, location });
    }
}

fn push_guard(guard: Guard) {
    STACK.with_borrow(|stack| {
        for recording in stack {
            let (guards, known) = &mut *recording.guards.lock().unwrap_or_else(PoisonError::into_inner);
            if known.insert(guard.condition) {
                guards.push(guard);
            }
        }
    });
}
