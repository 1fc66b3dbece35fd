//! Fewer guards that say the same: one interval for each expression, and nothing that follows from the symbols' own.

use std::collections::HashMap;

use super::guard::{Condition, Guard, Relation};
use crate::Symbol;
use crate::expr::range::Range;
use crate::expr::store::{entry, node, range_of};
use crate::expr::{ExprId, reachable};

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
                // At the very ends of 64 bits there is no next number.
                let inside = value > i64::MIN && value < i64::MAX;
                let value = i128::from(value);
                if inside && value == self.min.0 {
                    self.min = (value + 1, at);
                } else if inside && value == self.max.0 {
                    self.max = (value - 1, at);
                }
                self.min.0 <= value && value <= self.max.0
            });
        }
    }
}

/// Stands for the bounds that a symbol was declared with, which need no guard.
const DECLARED: usize = usize::MAX;

/// The guards without repetitions and without those that others imply, in the order in which they were asked.
pub(super) fn simplified(guards: Vec<Guard>) -> Vec<Guard> {
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
