//! One guard, in a form in which guards about the same expression can be compared.

use std::fmt;
use std::panic::Location;

use crate::expr::poly::Poly;
use crate::expr::print::{comparison_text, text};
use crate::expr::sign::is_never_negative;
use crate::expr::{Expr, ExprId};
use crate::{Dim, Fault};

/// How an expression relates to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
}

impl Relation {
    /// The relation of the negated expression to the negated number.
    pub(crate) fn flipped(self) -> Relation {
        match self {
            Relation::AtLeast => Relation::AtMost,
            Relation::AtMost => Relation::AtLeast,
            same => same,
        }
    }

    pub(crate) fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::NotEqual => left != right,
            Relation::AtLeast => left >= right,
            Relation::AtMost => left <= right,
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Equal => "==",
            Relation::NotEqual => "!=",
            Relation::AtLeast => ">=",
            Relation::AtMost => "<=",
        })
    }
}

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    /// Whatever the sizes are.
    Always,
    /// The terms have no common divisor, no constant, and the first one by id is positive, except in pinned sizes.
    Compare { expr: ExprId, relation: Relation, value: i64 },
    /// A question about a size without a value was asked.
    Never { expr: ExprId, fault: Fault },
}

/// A question about sizes with its answer, and the line that asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    pub(super) condition: Condition,
    pub(super) location: &'static Location<'static>,
}

impl Guard {
    /// The line that asked first.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

/// What must hold, such as `sequence >= 2`.
impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            Condition::Always => f.write_str("always"),
            Condition::Compare { expr, relation, value } => f.pad(&comparison_text(expr, relation, value)),
            Condition::Never { expr, fault } => write!(f, "never: {} {fault}", text(Expr::Id(expr))),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}   ({}:{})", self.location.file(), self.location.line())
    }
}

/// The condition under which `a == b` has this answer; `None` where it cannot be expressed.
pub(super) fn equality(a: Dim, b: Dim, answer: bool) -> Option<Condition> {
    let difference = Poly::of(a.expr()).add_scaled(&Poly::of(b.expr()), -1)?;
    let range = difference.range();
    let content = difference.content();
    let never = range.min > 0
        || range.max < 0
        || difference.constant % content != 0
        || (!answer && is_never_zero(&difference));
    let always = range.min == 0 && range.max == 0;
    if never || always {
        return decided(always == answer, a);
    }
    let relation = if answer { Relation::Equal } else { Relation::NotEqual };
    compare(difference, relation)
}

/// The condition under which `a >= b + more` has this answer; `None` where it cannot be expressed.
pub(super) fn at_least(a: Dim, b: Dim, more: i64, answer: bool) -> Option<Condition> {
    let mut difference = Poly::of(a.expr()).add_scaled(&Poly::of(b.expr()), -1)?;
    difference.constant = difference.constant.checked_sub(more)?;
    let range = difference.range();
    if range.min >= 0 || range.max < 0 {
        return decided((range.min >= 0) == answer, a);
    }
    if !answer {
        // d < 0 is -d - 1 >= 0.
        difference = less(&difference.negate()?)?;
    }
    // One direction is enough: the other would contradict the value.
    if is_never_negative(&difference) {
        return Some(Condition::Always);
    }
    compare(difference, Relation::AtLeast)
}

fn is_never_zero(sum: &Poly) -> bool {
    let is_positive = |sum: Poly| less(&sum).is_some_and(|less| is_never_negative(&less));
    is_positive(sum.clone()) || sum.negate().is_some_and(is_positive)
}

/// The sum minus one.
fn less(sum: &Poly) -> Option<Poly> {
    Some(Poly { constant: sum.constant.checked_sub(1)?, terms: sum.terms.clone() })
}

/// The condition that a size keeps its value.
pub(super) fn pinned(dim: Dim) -> Condition {
    let relation = Relation::Equal;
    match (dim.fault(), dim.expr()) {
        (None, Expr::Const(_)) => Condition::Always,
        // A new expression cannot always be made here: the store may be full.
        (None, Expr::Id(expr)) => equality(dim, Dim::constant(dim.raw()), true)
            .unwrap_or(Condition::Compare { expr, relation, value: dim.raw() }),
        (Some(_), _) => never(dim),
    }
}

/// The condition that nothing fulfils.
pub(super) fn never(dim: Dim) -> Condition {
    let expr = match dim.expr() {
        Expr::Id(expr) => expr,
        Expr::Const(_) => ExprId::UNKNOWN,
    };
    Condition::Never { expr, fault: dim.fault().unwrap_or(Fault::Inconsistent) }
}

/// An answer that is the same for all values. It differs from the value's only if one symbol has two values.
fn decided(agrees: bool, dim: Dim) -> Option<Condition> {
    Some(if agrees { Condition::Always } else { never(dim) })
}

/// `difference (relation) 0`, with the constant on the right and without a common divisor.
fn compare(mut difference: Poly, relation: Relation) -> Option<Condition> {
    let content = difference.content();
    let constant = std::mem::take(&mut difference.constant);
    let flipped = difference.terms.first().is_some_and(|&(_, c)| c < 0);
    let divisor = if flipped { content.checked_neg()? } else { content };
    for (_, c) in &mut difference.terms {
        *c = c.checked_div(divisor)?;
    }
    // content*t + constant >= 0 is t >= ceil(-constant / content); for the negated terms it is a floor.
    let bound = constant.checked_neg()?.div_euclid(content);
    let is_exact = constant % content == 0;
    let (relation, value) = match (relation, flipped) {
        (Relation::AtLeast, false) => {
            (Relation::AtLeast, if is_exact { bound } else { bound.checked_add(1)? })
        }
        (Relation::AtLeast, true) => (Relation::AtMost, constant.div_euclid(content)),
        (relation, false) => (relation, bound),
        (relation, true) => (relation, bound.checked_neg()?),
    };
    match difference.intern()? {
        Expr::Id(expr) => Some(Condition::Compare { expr, relation, value }),
        Expr::Const(_) => None,
    }
}
