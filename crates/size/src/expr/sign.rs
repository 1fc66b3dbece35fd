//! Whether a sum is never negative, where the ranges of its terms alone do not show it.
//!
//! Interval arithmetic forgets that two terms depend on each other: it does not see that `x - min(x, 4)` and
//! `8*ceil(x / 8) - x` are never negative. Replacing a term by something that is never larger shows that.

use super::poly::Poly;
use super::store::{expr_of, node};
use super::{ExprId, Node};

/// Sums that are looked at for one answer.
const MAX_STEPS: usize = 48;

/// True when the sum is shown to be at least zero for all values of its symbols.
pub(crate) fn is_never_negative(sum: &Poly) -> bool {
    let mut steps = MAX_STEPS;
    search(sum, &mut steps)
}

fn search(sum: &Poly, steps: &mut usize) -> bool {
    if sum.range().min >= 0 {
        return true;
    }
    let Some(left) = steps.checked_sub(1) else {
        return false;
    };
    *steps = left;
    sum.terms.iter().any(|&(term, coefficient)| {
        let with = |replacement: Option<Poly>, times: i64| {
            let rest = Poly { constant: sum.constant, terms: without(sum, term) };
            rest.add_scaled(&replacement?, times)
        };
        let mut shows = |replacement, times| with(replacement, times).is_some_and(|sum| search(&sum, steps));
        match (node(term), coefficient > 0) {
            // A maximum is at least each of its operands, and it is one of them.
            (Node::Max(operands), true) | (Node::Min(operands), false) => {
                operands.iter().any(|&operand| shows(Some(Poly::of(expr_of(operand))), coefficient))
            }
            (Node::Max(operands), false) | (Node::Min(operands), true) => {
                operands.iter().all(|&operand| shows(Some(Poly::of(expr_of(operand))), coefficient))
            }
            (&Node::Abs(a), up) => {
                let inside = Poly::of(expr_of(a));
                let mut either = [Some(inside.clone()), inside.negate()].into_iter();
                if up { either.any(|a| shows(a, coefficient)) } else { either.all(|a| shows(a, coefficient)) }
            }
            // a - n + 1 <= n*floor(a / n) <= a
            (&Node::Floor(a, n), up) => match node(n) {
                &Node::Const(n) if n > 0 && coefficient % n == 0 => {
                    let least = Poly::constant(if up { 1 - n } else { 0 });
                    shows(least.add_scaled(&Poly::of(expr_of(a)), 1), coefficient / n)
                }
                _ => false,
            },
            _ => false,
        }
    })
}

fn without(sum: &Poly, term: ExprId) -> Vec<(ExprId, i64)> {
    sum.terms.iter().copied().filter(|&(other, _)| other != term).collect()
}
