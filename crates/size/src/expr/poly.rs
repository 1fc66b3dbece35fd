//! Sums of products with integer coefficients: the form in which equal sizes are equal expressions.
//!
//! Operations return `None` where a coefficient overflows or a limit is reached.

use super::range::Range;
use super::store::{intern, node, sum_range};
use super::{Expr, ExprId, Node};
use crate::arithmetic::gcd;

/// Sums with more terms are not made.
const MAX_TERMS: usize = 64;
/// Products of sums are expanded up to this many terms; beyond it the sums stay factors.
const MAX_EXPANDED: usize = 32;
/// Products with more factors are not made.
const MAX_FACTORS: usize = 16;

/// A constant and terms in order of their ids, none with the coefficient zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Poly {
    pub(crate) constant: i64,
    pub(crate) terms: Vec<(ExprId, i64)>,
}

impl Poly {
    pub(crate) fn constant(constant: i64) -> Poly {
        Poly { constant, terms: Vec::new() }
    }

    pub(crate) fn of(expr: Expr) -> Poly {
        match expr {
            Expr::Const(value) => Poly::constant(value),
            Expr::Id(id) => match node(id) {
                &Node::Const(value) => Poly::constant(value),
                Node::Sum { constant, terms } => Poly { constant: *constant, terms: terms.to_vec() },
                _ => Poly { constant: 0, terms: vec![(id, 1)] },
            },
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.constant == 0 && self.terms.is_empty()
    }

    pub(crate) fn range(&self) -> Range {
        sum_range(self.constant, &self.terms)
    }

    /// The only term with its coefficient, where there is nothing else.
    pub(crate) fn single(&self) -> Option<(ExprId, i64)> {
        match (self.constant, &self.terms[..]) {
            (0, &[term]) => Some(term),
            _ => None,
        }
    }

    /// The greatest common divisor of the coefficients.
    pub(crate) fn content(&self) -> i64 {
        let divisor = self.terms.iter().fold(0, |divisor, &(_, c)| gcd(divisor, c) as i64);
        // Only where all coefficients are `i64::MIN`.
        if divisor <= 0 { 1 } else { divisor }
    }

    /// `self + factor * other`.
    pub(crate) fn add_scaled(&self, other: &Poly, factor: i64) -> Option<Poly> {
        let constant = self.constant.checked_add(other.constant.checked_mul(factor)?)?;
        let mut terms = Vec::with_capacity(self.terms.len() + other.terms.len());
        let (mut left, mut right) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        loop {
            let (term, coefficient) = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(&&(a, c)), Some(&&(b, d))) if a == b => {
                    left.next();
                    right.next();
                    (a, c.checked_add(d.checked_mul(factor)?)?)
                }
                (Some(&&(a, c)), b) if b.is_none_or(|&&(b, _)| a < b) => {
                    left.next();
                    (a, c)
                }
                (_, Some(&&(b, d))) => {
                    right.next();
                    (b, d.checked_mul(factor)?)
                }
                // The second arm takes every left term that has no right one.
                (Some(_), None) => break,
            };
            if coefficient != 0 {
                terms.push((term, coefficient));
            }
        }
        Some(Poly { constant, terms })
    }

    pub(crate) fn negate(&self) -> Option<Poly> {
        Poly::constant(0).add_scaled(self, -1)
    }

    pub(crate) fn multiply(&self, other: &Poly) -> Option<Poly> {
        if other.terms.is_empty() {
            return Poly::constant(0).add_scaled(self, other.constant);
        }
        if self.terms.is_empty() {
            return Poly::constant(0).add_scaled(other, self.constant);
        }
        let count = |poly: &Poly| poly.terms.len() + usize::from(poly.constant != 0);
        // Once a product was not expanded, nothing is multiplied into it term by term: the order would matter.
        if count(self) * count(other) > MAX_EXPANDED || self.has_unexpanded() || other.has_unexpanded() {
            let (left, a) = self.as_factor()?;
            let (right, b) = other.as_factor()?;
            return Some(Poly { constant: 0, terms: vec![(product(left, right)?, a.checked_mul(b)?)] });
        }
        let mut sum = Poly::constant(0);
        for &(b, d) in &other.terms {
            let mut row = Vec::with_capacity(self.terms.len() + 1);
            for &(a, c) in &self.terms {
                row.push((product(a, b)?, c.checked_mul(d)?));
            }
            if self.constant != 0 {
                row.push((b, self.constant.checked_mul(d)?));
            }
            row.sort_unstable_by_key(|&(term, _)| term);
            sum = sum.add_scaled(&Poly { constant: 0, terms: row }, 1)?;
        }
        sum.add_scaled(self, other.constant)
    }

    /// The whole as one factor without a common divisor and with a positive first term, and what was taken out.
    fn as_factor(&self) -> Option<(ExprId, i64)> {
        let common = gcd(self.content(), self.constant) as i64;
        let first_is_negative = self.terms.first().is_some_and(|&(_, c)| c < 0);
        let taken = if first_is_negative { -common } else { common };
        let mut factor = self.clone();
        factor.constant = factor.constant.checked_div(taken)?;
        for (_, c) in &mut factor.terms {
            *c = c.checked_div(taken)?;
        }
        match factor.intern()? {
            Expr::Id(id) => Some((id, taken)),
            Expr::Const(_) => None,
        }
    }

    /// True when a factor of a term is a sum.
    pub(crate) fn has_unexpanded(&self) -> bool {
        self.terms
            .iter()
            .any(|(term, _)| factors(term).iter().any(|&factor| matches!(node(factor), Node::Sum { .. })))
    }

    /// Stores the sum.
    pub(crate) fn intern(self) -> Option<Expr> {
        if self.terms.is_empty() {
            return Some(Expr::Const(self.constant));
        }
        if let Some((term, 1)) = self.single() {
            return Some(Expr::Id(term));
        }
        // `i64::MIN` has no negative, and its text would not read back.
        let has_negatives = self.constant != i64::MIN && self.terms.iter().all(|&(_, c)| c != i64::MIN);
        if self.terms.len() > MAX_TERMS || !has_negatives {
            return None;
        }
        intern(Node::Sum { constant: self.constant, terms: self.terms.into_boxed_slice() }).map(Expr::Id)
    }
}

/// The factors of a term.
pub(crate) fn factors(term: &ExprId) -> &[ExprId] {
    match node(*term) {
        Node::Product(factors) => factors,
        _ => std::slice::from_ref(term),
    }
}

/// The product of two terms.
fn product(a: ExprId, b: ExprId) -> Option<ExprId> {
    let mut all = [factors(&a), factors(&b)].concat();
    if all.len() > MAX_FACTORS {
        return None;
    }
    all.sort_unstable();
    intern(Node::Product(all.into_boxed_slice()))
}

/// What remains of a term without the factors of another; `None` where they are not all there.
pub(crate) fn quotient(term: ExprId, divisor: ExprId) -> Option<Poly> {
    let mut rest = factors(&term).to_vec();
    for factor in factors(&divisor) {
        let at = rest.iter().position(|f| f == factor)?;
        rest.remove(at);
    }
    match rest[..] {
        [] => Some(Poly::constant(1)),
        // A factor can be a sum, which is no term.
        [one] => Some(Poly::of(Expr::Id(one))),
        _ => Some(Poly { constant: 0, terms: vec![(intern(Node::Product(rest.into_boxed_slice()))?, 1)] }),
    }
}
