//! A set of guards, ready to be checked for new sizes.

use std::cell::RefCell;
use std::fmt;

use super::guard::{Condition, Guard, Relation};
use super::simplify::simplified;
use crate::expr::symbols;
use crate::table::{Problem, Slot};
use crate::{Bindings, Error, Table};

thread_local! {
    /// Room for the values of one set, so that `holds` allocates nothing after the first time.
    static VALUES: RefCell<Vec<i64>> = const { RefCell::new(Vec::new()) };
}

/// Guards without repetitions and without those that others imply, in the order in which they were asked.
#[derive(Clone, Debug, Default)]
pub struct GuardSet {
    guards: Vec<Guard>,
    checks: Vec<Check>,
    table: Table,
}

/// How one guard is checked: evaluates the table up to `end`, then compares.
#[derive(Clone, Copy, Debug)]
enum Check {
    Compare { end: usize, slot: Slot, relation: Relation, value: i64 },
    Never,
}

impl GuardSet {
    pub(super) fn new(guards: Vec<Guard>) -> GuardSet {
        let mut set = GuardSet { guards: simplified(guards), ..GuardSet::default() };
        for guard in &set.guards {
            set.checks.push(match guard.condition {
                Condition::Compare { expr, relation, value } => {
                    let slot = set.table.add_expression(expr);
                    Check::Compare { end: set.table.len(), slot, relation, value }
                }
                Condition::Always | Condition::Never { .. } => Check::Never,
            });
        }
        set
    }

    /// True when all guards hold for these values.
    ///
    /// A guard that cannot be evaluated (a symbol has no value, an overflow) does not hold.
    pub fn holds(&self, bindings: &Bindings) -> bool {
        VALUES.with_borrow_mut(|values| self.failing(bindings, values)).is_none()
    }

    /// The first guard that does not hold, and why.
    pub fn first_failure(&self, bindings: &Bindings) -> Option<Failure> {
        let (at, problem) = self.failing(bindings, &mut Vec::new())?;
        let guard = *self.guards.get(at)?;
        let error = problem.map(|problem| self.table.error(problem, bindings));
        let symbols = match guard.condition {
            Condition::Compare { expr, .. } => symbols(expr),
            Condition::Always | Condition::Never { .. } => Vec::new(),
        };
        let values = symbols.into_iter().filter_map(|symbol| Some((symbol, bindings.get(symbol)?))).collect();
        Some(Failure { guard, values: Bindings::from_checked(values), error })
    }

    fn failing(&self, bindings: &Bindings, values: &mut Vec<i64>) -> Option<(usize, Option<Problem>)> {
        self.table.prepare(values);
        let mut done = 0;
        for (at, check) in self.checks.iter().enumerate() {
            let &Check::Compare { end, slot, relation, value } = check else {
                return Some((at, None));
            };
            if let Err(problem) = self.table.run(done..end, bindings, values) {
                return Some((at, Some(problem)));
            }
            done = end;
            if !relation.holds(values[slot.index()], value) {
                return Some((at, None));
            }
        }
        None
    }

    /// Records all guards in the recordings of this thread: for a result that was kept and is used again.
    pub fn record_again(&self) {
        for &guard in &self.guards {
            super::push_guard(guard);
        }
    }

    /// Adds the guards of another set.
    pub fn merge(&mut self, other: &GuardSet) {
        let all = self.guards.iter().chain(&other.guards).copied().collect();
        *self = GuardSet::new(all);
    }

    /// The guards.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter()
    }

    /// How many guards there are.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// True when every size will do.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }
}

/// One guard a line: `sequence >= 2   (crates/gpu/src/choose.rs:41)`.
impl fmt::Display for GuardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guards.iter().try_for_each(|guard| writeln!(f, "{guard:?}"))
    }
}

/// A guard that does not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The guard.
    pub guard: Guard,
    /// The values of its symbols.
    pub values: Bindings,
    /// Why it could not be evaluated, if that is the reason.
    pub error: Option<Error>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { guard, values, error } = self;
        write!(f, "`{guard}` does not hold")?;
        match error {
            Some(error) => write!(f, ": {error}")?,
            None if values.iter().next().is_some() => write!(f, " with {values}")?,
            None => {}
        }
        write!(f, " (asked at {}:{})", guard.location().file(), guard.location().line())
    }
}
