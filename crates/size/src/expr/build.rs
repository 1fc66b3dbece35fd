//! One function for each operation: simplifies to the canonical form, then stores it.
//!
//! All rewrites are exact for all integers, and so for all values of the symbols within their bounds, except that a
//! division by an expression that can be zero may be cancelled; [`Dim`](crate::Dim) records the guard for that.

use std::cell::RefCell;

use super::poly::{Poly, quotient};
use super::range::Range;
use super::sign::is_never_negative;
use super::store::{expr_of, id_of, intern, node, range};
use super::{Expr, ExprId, Node};
use crate::arithmetic::{Op, gcd};

/// Minima and maxima of more operands are not made.
const MAX_OPERANDS: usize = 16;

/// Results that a thread remembers; shape rules ask for the same sizes over and over.
const REMEMBERED: usize = 512;

type Remembered = Option<(Op, Expr, Expr, Expr)>;

thread_local! {
    static RECENT: RefCell<Vec<Remembered>> = const { RefCell::new(Vec::new()) };
}

/// The expression for an operation; `None` beyond a limit. Operations of one operand ignore `b`.
pub(crate) fn combine(op: Op, a: Expr, b: Expr) -> Option<Expr> {
    let slot = slot_of(op, a, b);
    let recent = RECENT.with_borrow(|recent| recent.get(slot).copied().flatten());
    if let Some((known_op, known_a, known_b, result)) = recent
        && (known_op, known_a, known_b) == (op, a, b)
    {
        return Some(result);
    }
    let result = build(op, a, b)?;
    RECENT.with_borrow_mut(|recent| {
        if recent.is_empty() {
            recent.resize(REMEMBERED, None);
        }
        recent[slot] = Some((op, a, b, result));
    });
    Some(result)
}

fn slot_of(op: Op, a: Expr, b: Expr) -> usize {
    let number = |expr: Expr| match expr {
        Expr::Const(value) => value as u64,
        Expr::Id(id) => u64::from(id.0.get()) << 32,
    };
    let mixed = number(a).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number(b).wrapping_add(op as u64);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % REMEMBERED
}

fn build(op: Op, a: Expr, b: Expr) -> Option<Expr> {
    match op {
        Op::Add => Poly::of(a).add_scaled(&Poly::of(b), 1)?.intern(),
        Op::Sub => Poly::of(a).add_scaled(&Poly::of(b), -1)?.intern(),
        Op::Mul => Poly::of(a).multiply(&Poly::of(b))?.intern(),
        Op::DivFloor => divide(a, b, false),
        Op::DivCeil => divide(a, b, true),
        Op::Rem => remainder(a, b),
        Op::Min => extremum(Extremum::Min, a, b),
        Op::Max => extremum(Extremum::Max, a, b),
        Op::Abs => absolute(a),
        Op::NextPowerOfTwo => next_power_of_two(a),
    }
}

fn divide(a: Expr, b: Expr, up: bool) -> Option<Expr> {
    let mut dividend = Poly::of(a);
    if let Expr::Const(divisor) = b {
        let divisor = if divisor < 0 {
            dividend = dividend.negate()?;
            divisor.checked_neg()?
        } else {
            divisor
        };
        if up {
            // ceil(a / n) is floor((a + n - 1) / n): one form for both.
            dividend.constant = dividend.constant.checked_add(divisor.checked_sub(1)?)?;
        }
        return floor_by_constant(dividend, divisor)?.intern();
    }
    let (whole, rest) = split(&dividend, &Poly::of(b))?;
    if rest.is_zero() {
        return whole.intern();
    }
    if !up && is_reduced(&rest, b) {
        return whole.intern();
    }
    let (rest, b) = (id_of(rest.intern()?)?, id_of(b)?);
    let atom = intern(if up { Node::Ceil(rest, b) } else { Node::Floor(rest, b) })?;
    whole.add_scaled(&Poly::of(Expr::Id(atom)), 1)?.intern()
}

/// `floor(dividend / n)` for a positive `n`.
fn floor_by_constant(dividend: Poly, n: i64) -> Option<Poly> {
    if n <= 0 {
        return None;
    }
    // What n divides comes out: floor((n*q + r) / n) = q + floor(r / n).
    let mut whole = Poly::constant(dividend.constant.div_euclid(n));
    let mut rest = Poly::constant(dividend.constant.rem_euclid(n));
    for &(term, c) in &dividend.terms {
        if c / n != 0 {
            whole.terms.push((term, c / n));
        }
        if c % n != 0 {
            rest.terms.push((term, c % n));
        }
    }
    if rest.terms.is_empty() {
        return Some(whole);
    }
    // floor((g*t + c) / (g*n)) = floor((t + floor(c / g)) / n)
    let common = gcd(rest.content(), n) as i64;
    for (_, c) in &mut rest.terms {
        *c /= common;
    }
    rest.constant = rest.constant.div_euclid(common);
    let n = n / common;
    // floor((floor(x / m) + c) / n) = floor((x + c*m) / (m*n))
    if let [(term, 1)] = rest.terms[..]
        && let &Node::Floor(x, m) = node(term)
        && let &Node::Const(m) = node(m)
        && let Some(both) = m.checked_mul(n)
    {
        let inner = Poly::of(expr_of(x)).add_scaled(&Poly::constant(rest.constant), m)?;
        return whole.add_scaled(&floor_by_constant(inner, both)?, 1);
    }
    // The bounds of the symbols may leave one quotient only.
    let quotients = rest.range().divide_floor(Range::constant(n));
    if quotients.min == quotients.max {
        return whole.add_scaled(&Poly::constant(i64::try_from(quotients.min).ok()?), 1);
    }
    let atom = intern(Node::Floor(id_of(rest.intern()?)?, id_of(Expr::Const(n))?))?;
    whole.add_scaled(&Poly::of(Expr::Id(atom)), 1)
}

/// `(q, r)` with `dividend = q*divisor + r`, where `q` has what divides exactly.
fn split(dividend: &Poly, divisor: &Poly) -> Option<(Poly, Poly)> {
    let (mut whole, mut rest) = (Poly::constant(0), Poly::constant(dividend.constant));
    if let Some((by, k)) = divisor.single() {
        for &(term, c) in &dividend.terms {
            match quotient(term, by).filter(|_| c % k == 0) {
                // `i64::MIN / -1` does not fit.
                Some(exact) => whole = whole.add_scaled(&exact, c.checked_div(k)?)?,
                None => rest.terms.push((term, c)),
            }
        }
        return Some((whole, rest));
    }
    if let (Some(&(a, c)), Some(&(b, d))) = (dividend.terms.first(), divisor.terms.first())
        && a == b
        && c % d == 0
    {
        let times = c.checked_div(d)?;
        let left = dividend.add_scaled(divisor, times.checked_neg()?)?;
        if left.terms.is_empty() {
            return Some((Poly::constant(times), left));
        }
    }
    Some((whole, dividend.clone()))
}

/// True when `0 <= rest < divisor` for all values.
fn is_reduced(rest: &Poly, divisor: Expr) -> bool {
    let room = Poly::of(divisor).add_scaled(rest, -1);
    rest.range().min >= 0 && room.is_some_and(|room| room.range().min >= 1)
}

fn remainder(a: Expr, b: Expr) -> Option<Expr> {
    let dividend = Poly::of(a);
    let Expr::Const(n) = b else {
        let (_, rest) = split(&dividend, &Poly::of(b))?;
        if rest.is_zero() || is_reduced(&rest, b) {
            return rest.intern();
        }
        return intern(Node::Rem(id_of(rest.intern()?)?, id_of(b)?)).map(Expr::Id);
    };
    if n < 0 {
        // a mod -n = -(-a mod n)
        let inside = remainder(dividend.negate()?.intern()?, Expr::Const(n.checked_neg()?))?;
        return Poly::of(inside).negate()?.intern();
    }
    if n == 0 {
        return None;
    }
    if dividend.range().is_within(0, n.into()) {
        return Some(a);
    }
    let mut rest = Poly::constant(dividend.constant.rem_euclid(n));
    let terms = dividend.terms.iter().map(|&(term, c)| (term, nearest(c, n)));
    rest.terms.extend(terms.filter(|&(_, c)| c != 0));
    if rest.terms.is_empty() || rest.range().is_within(0, n.into()) {
        return rest.intern();
    }
    // (g*t) mod (g*n) = g*(t mod n)
    let common = gcd(gcd(rest.content(), n) as i64, rest.constant) as i64;
    if common > 1 {
        for (_, c) in &mut rest.terms {
            *c /= common;
        }
        rest.constant /= common;
        let inside = remainder(rest.intern()?, Expr::Const(n / common))?;
        return Poly::constant(0).add_scaled(&Poly::of(inside), common)?.intern();
    }
    intern(Node::Rem(id_of(rest.intern()?)?, id_of(Expr::Const(n))?)).map(Expr::Id)
}

/// What `c` leaves modulo `n`, the one nearest to zero: no term becomes larger than it was.
fn nearest(c: i64, n: i64) -> i64 {
    let rest = c.rem_euclid(n);
    if rest > n / 2 { rest - n } else { rest }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extremum {
    Min,
    Max,
}

/// The operands of a minimum, if it is a minimum that is asked for; the same for maxima.
fn operands_of(kind: Extremum, id: ExprId) -> Option<&'static [ExprId]> {
    match (kind, node(id)) {
        (Extremum::Min, Node::Min(operands)) | (Extremum::Max, Node::Max(operands)) => Some(operands),
        _ => None,
    }
}

/// Drops operands that are never chosen. Not every such operand is found, so that nested minima and maxima can have two
/// forms, which depend on the order of their operands: equal sizes, of which a comparison then leaves a guard.
fn extremum(kind: Extremum, a: Expr, b: Expr) -> Option<Expr> {
    let mut operands = Vec::new();
    for side in [a, b] {
        let id = id_of(side)?;
        match operands_of(kind, id) {
            Some(inner) => operands.extend_from_slice(inner),
            None => operands.push(id),
        }
    }
    operands.sort_unstable();
    operands.dedup();
    let mut at = 0;
    while at < operands.len() {
        let others = || operands.iter().enumerate().filter(|&(i, _)| i != at).map(|(_, &other)| other);
        // min(a, max(a, b)) = a, and all that the bounds decide.
        let is_never_chosen = |other| match kind {
            Extremum::Min => is_at_least(operands[at], other),
            Extremum::Max => is_at_least(other, operands[at]),
        };
        if others().any(is_never_chosen) {
            operands.remove(at);
        } else {
            at += 1;
        }
    }
    match operands[..] {
        [one] => Some(expr_of(one)),
        _ if operands.len() > MAX_OPERANDS => None,
        _ => {
            let operands = operands.into_boxed_slice();
            let node = if kind == Extremum::Min { Node::Min(operands) } else { Node::Max(operands) };
            intern(node).map(Expr::Id)
        }
    }
}

/// True when `a >= b` is shown to hold for all values.
fn is_at_least(a: ExprId, b: ExprId) -> bool {
    let difference = Poly::of(expr_of(a)).add_scaled(&Poly::of(expr_of(b)), -1);
    difference.is_some_and(|difference| is_never_negative(&difference))
}

fn absolute(a: Expr) -> Option<Expr> {
    let inside = Poly::of(a);
    let bounds = range(a);
    if bounds.min >= 0 {
        return Some(a);
    }
    if bounds.max <= 0 {
        return inside.negate()?.intern();
    }
    // abs(x - y) = abs(y - x)
    let flipped = inside.terms.first().is_some_and(|&(_, c)| c < 0);
    let inside = if flipped { inside.negate()? } else { inside };
    intern(Node::Abs(id_of(inside.intern()?)?)).map(Expr::Id)
}

fn next_power_of_two(a: Expr) -> Option<Expr> {
    let powers = range(a).next_power_of_two();
    if powers.min == powers.max {
        return i64::try_from(powers.min).ok().map(Expr::Const);
    }
    intern(Node::NextPowerOfTwo(id_of(a)?)).map(Expr::Id)
}
