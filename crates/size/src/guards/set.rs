//! A set of guards, ready to be checked for new sizes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use super::guard::{Condition, Guard, Relation};
use crate::expr::range::Range;
use crate::expr::store::{entry, node, range_of};
use crate::expr::{ExprId, reachable, symbols};
use crate::table::Slot;
use crate::{Bindings, Error, Symbol, Table};

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
        let (at, error) = self.failing(bindings, &mut Vec::new())?;
        let guard = *self.guards.get(at)?;
        let symbols = match guard.condition {
            Condition::Compare { expr, .. } => symbols(expr),
            Condition::Always | Condition::Never { .. } => Vec::new(),
        };
        let values = symbols.into_iter().filter_map(|symbol| Some((symbol, bindings.get(symbol)?))).collect();
        Some(Failure { guard, values: Bindings::from_checked(values), error })
    }

    fn failing(&self, bindings: &Bindings, values: &mut Vec<i64>) -> Option<(usize, Option<Error>)> {
        self.table.prepare(values);
        let mut done = 0;
        for (at, check) in self.checks.iter().enumerate() {
            let &Check::Compare { end, slot, relation, value } = check else {
                return Some((at, None));
            };
            if let Err(problem) = self.table.run(done..end, bindings, values) {
                return Some((at, Some(self.table.error(problem, bindings))));
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

/// What the guards about one expression say together; the numbers with the guards that they come from.
struct Known {
    min: (i128, usize),
    max: (i128, usize),
    not: Vec<(i64, usize)>,
}

impl Known {
    /// A forbidden number at an end moves the end; the others stay where they are within the ends.
    fn tighten(&mut self) {
        // From the ends inwards, and once for each number at most.
        for _ in 0..self.not.len() {
            self.not.retain(|&(value, at)| {
                let value = i128::from(value);
                if value == self.min.0 {
                    self.min = (value + 1, at);
                } else if value == self.max.0 {
                    self.max = (value - 1, at);
                }
                self.min.0 <= value && value <= self.max.0
            });
        }
    }
}

const DECLARED: usize = usize::MAX;

fn simplified(guards: Vec<Guard>) -> Vec<Guard> {
    let mut order: Vec<ExprId> = Vec::new();
    let mut known: HashMap<ExprId, Known> = HashMap::new();
    let mut never = Vec::new();
    for (at, guard) in guards.iter().enumerate() {
        let (expr, relation, value) = match guard.condition {
            Condition::Compare { expr, relation, value } => (expr, relation, value),
            Condition::Never { .. } => {
                never.push(*guard);
                continue;
            }
            Condition::Always => continue,
        };
        let known = known.entry(expr).or_insert_with(|| {
            order.push(expr);
            let range = entry(expr).range;
            Known { min: (range.min, DECLARED), max: (range.max, DECLARED), not: Vec::new() }
        });
        let value_wide = i128::from(value);
        if matches!(relation, Relation::Equal | Relation::AtLeast) && value_wide > known.min.0 {
            known.min = (value_wide, at);
        }
        if matches!(relation, Relation::Equal | Relation::AtMost) && value_wide < known.max.0 {
            known.max = (value_wide, at);
        }
        if relation == Relation::NotEqual {
            known.not.push((value, at));
        }
    }
    if !never.is_empty() {
        never.truncate(1);
        return never;
    }
    let mut kept = Vec::new();
    for &expr in &order {
        if let Some(known) = known.get_mut(&expr) {
            known.tighten();
            describe(expr, known, &mut kept);
        }
    }
    kept.sort_by_key(|&(at, _)| at);
    without_implied(&guards, kept, &known)
}

/// The fewest comparisons that say what is known.
fn describe(expr: ExprId, known: &Known, kept: &mut Vec<(usize, Condition)>) {
    let mut push = |relation, value: i128, at: usize| {
        if at != DECLARED
            && let Ok(value) = i64::try_from(value)
        {
            kept.push((at, Condition::Compare { expr, relation, value }));
        }
    };
    let ((min, min_at), (max, max_at)) = (known.min, known.max);
    if min == max {
        // One end may be declared: the guard that moved the other is the one to name.
        let at = if min_at == DECLARED {
            max_at
        } else if max_at == DECLARED {
            min_at
        } else {
            min_at.max(max_at)
        };
        return push(Relation::Equal, min, at);
    }
    push(Relation::AtLeast, min, min_at);
    push(Relation::AtMost, max, max_at);
    for &(value, at) in &known.not {
        push(Relation::NotEqual, value.into(), at);
    }
}

/// Drops guards that follow from what the other guards say about symbols alone.
///
/// Guards about symbols stay, so that no two guards drop out because of each other.
fn without_implied(
    guards: &[Guard],
    kept: Vec<(usize, Condition)>,
    known: &HashMap<ExprId, Known>,
) -> Vec<Guard> {
    let is_implied = |condition: Condition| match condition {
        Condition::Compare { expr, relation, value } if Symbol::of(expr).is_none() => {
            is_decided(narrowed(expr, known), relation, value.into())
        }
        _ => false,
    };
    let kept = kept.into_iter().filter(|&(_, condition)| !is_implied(condition));
    kept.filter_map(|(at, condition)| Some(Guard { condition, location: guards.get(at)?.location })).collect()
}

/// The range of an expression whose symbols have the ranges that guards leave them.
fn narrowed(expr: ExprId, known: &HashMap<ExprId, Known>) -> Range {
    let mut ranges = HashMap::new();
    for id in reachable([expr], |_| false) {
        let range = match known.get(&id).filter(|_| Symbol::of(id).is_some()) {
            Some(known) => Range { min: known.min.0, max: known.max.0 },
            None => range_of(node(id), |operand| ranges.get(&operand).copied().unwrap_or(Range::ALL)),
        };
        // Guards of several compiles can contradict each other.
        if range.min > range.max {
            return Range::ALL;
        }
        ranges.insert(id, range);
    }
    ranges.get(&expr).copied().unwrap_or(Range::ALL)
}

/// True when the relation holds for all numbers of the range.
fn is_decided(range: Range, relation: Relation, value: i128) -> bool {
    match relation {
        Relation::Equal => range.min == value && range.max == value,
        Relation::NotEqual => range.max < value || range.min > value,
        Relation::AtLeast => range.min >= value,
        Relation::AtMost => range.max <= value,
    }
}
