//! Numbers of every element type under one set of functions: integers that a graph holds by others, 16 and 64 bits
//! without a sign, get the steps that keep them what they are.
//!
//! u16 is held in u32 and cut to 16 bits after operations that may exceed them. u64 is held in i64 bit for bit: sums, products and
//! bitwise functions are those of i64, orders and quotients are not.

use olivine_ir::op::{Binary, Compare, ScalarOp, Unary};
use olivine_ir::{DType, Error as GraphError, Graph, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::elementwise::pair;
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[("BitShift", Takes(2, 1), bit_shift)];

/// A value of the graph, or why there is none.
pub(super) type Built = Result<ValueId, GraphError>;

fn bit_shift(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b, element) = pair(n)?;
    let op = match n.string("direction")?.as_deref() {
        Some("LEFT") => Binary::Shl,
        Some("RIGHT") => Binary::Shr,
        other => return Err(n.wrong(format!("direction {other:?} is neither LEFT nor RIGHT"))),
    };
    let y = n.build(|g| binary(g, op, a, b, element))?;
    n.like_first(y)
}

/// A function of one number.
pub(super) fn unary(g: &mut Graph, op: Unary, x: ValueId, element: ElementType) -> Built {
    match (element, op) {
        (ElementType::U16 | ElementType::U64, Unary::Abs | Unary::Relu) => Ok(x),
        (ElementType::U16, _) => {
            let y = g.add1(ScalarOp::Unary(op), &[x])?;
            cut(g, y)
        }
        (ElementType::U64, Unary::Sign) => {
            let zero = g.constant(Tensor::scalar(0i64));
            let some = g.ne(x, zero)?;
            g.cast(some, DType::I64)
        }
        (ElementType::U64, _) => g.add1(ScalarOp::Unary(op), &[x]),
        // Floats of few bits have no arithmetic, but they have NaN and infinities.
        (_, Unary::IsNan | Unary::IsInf) => g.add1(ScalarOp::Unary(op), &[x]),
        _ => {
            computes(element, op.name())?;
            g.add1(ScalarOp::Unary(op), &[x])
        }
    }
}

/// A function of two numbers of one element type.
pub(super) fn binary(g: &mut Graph, op: Binary, a: ValueId, b: ValueId, element: ElementType) -> Built {
    match (element, op) {
        (ElementType::U16, Binary::Add | Binary::Sub | Binary::Mul | Binary::Shl | Binary::Pow) => {
            let y = g.add1(ScalarOp::Binary(op), &[a, b])?;
            cut(g, y)
        }
        (ElementType::U64, Binary::Div) => Ok(divided(g, a, b)?.0),
        (ElementType::U64, Binary::Rem | Binary::Mod) => Ok(divided(g, a, b)?.1),
        (ElementType::U64, Binary::Max) => {
            let first = below(g, Compare::Ge, a, b)?;
            g.select(first, a, b)
        }
        (ElementType::U64, Binary::Min) => {
            let first = below(g, Compare::Le, a, b)?;
            g.select(first, a, b)
        }
        (ElementType::U64, Binary::Shr) => shifted_right(g, a, b),
        (ElementType::U64, Binary::Pow) => {
            let exponent = unsigned_exponent(g, b)?;
            g.pow(a, exponent)
        }
        (ElementType::U16 | ElementType::U64, _) => g.add1(ScalarOp::Binary(op), &[a, b]),
        _ => {
            computes(element, op.name())?;
            g.add1(ScalarOp::Binary(op), &[a, b])
        }
    }
}

/// A comparison of two numbers of one element type.
pub(super) fn compare(g: &mut Graph, op: Compare, a: ValueId, b: ValueId, element: ElementType) -> Built {
    match (element, op) {
        (ElementType::U64, Compare::Lt | Compare::Le | Compare::Gt | Compare::Ge) => below(g, op, a, b),
        _ => g.add1(ScalarOp::Compare(op), &[a, b]),
    }
}

/// Refuses arithmetic of types that ONNX only stores and casts.
fn computes(element: ElementType, op: &str) -> Result<(), GraphError> {
    if element.is_native() {
        return Ok(());
    }
    Err(GraphError::Invalid { location: op.into(), problem: format!("there is no arithmetic of {element}") })
}

/// The low 16 bits.
pub(super) fn cut(g: &mut Graph, x: ValueId) -> Built {
    let mask = g.constant(Tensor::scalar(0xffff_u32));
    g.and(x, mask)
}

/// The bit that is the sign of i64 and the highest digit of u64.
fn highest(g: &mut Graph) -> ValueId {
    g.constant(Tensor::scalar(i64::MIN))
}

/// The order of u64: that of i64 once the highest bit is turned.
fn below(g: &mut Graph, op: Compare, a: ValueId, b: ValueId) -> Built {
    let high = highest(g);
    let (a, b) = (g.xor(a, high)?, g.xor(b, high)?);
    g.add1(ScalarOp::Compare(op), &[a, b])
}

/// Half of a u64, rounded down.
pub(super) fn halved(g: &mut Graph, x: ValueId) -> Built {
    let one = g.constant(Tensor::scalar(1i64));
    let high = highest(g);
    // The shift copies the highest bit, which was there once.
    let (shifted, first) = (g.shr(x, one)?, g.and(x, high)?);
    g.xor(shifted, first)
}

/// Quotient and remainder of u64; both are 0 for a divisor of 0.
fn divided(g: &mut Graph, a: ValueId, b: ValueId) -> Result<(ValueId, ValueId), GraphError> {
    let (zero, one) = (g.constant(Tensor::scalar(0i64)), g.constant(Tensor::scalar(1i64)));
    // Twice the quotient of half of a, which fits i64, is the quotient or one too few.
    let half = halved(g, a)?;
    let near = g.div(half, b)?;
    let near = g.shl(near, one)?;
    // A divisor with the highest bit goes into a once or not at all.
    let large = g.lt(b, zero)?;
    let near = g.select(large, zero, near)?;
    let covered = g.mul(near, b)?;
    let left = g.sub(a, covered)?;
    let once_more = below(g, Compare::Ge, left, b)?;
    let more = g.cast(once_more, DType::I64)?;
    let quotient = g.add(near, more)?;
    let covered = g.mul(quotient, b)?;
    let remainder = g.sub(a, covered)?;
    let nothing = g.eq(b, zero)?;
    Ok((g.select(nothing, zero, quotient)?, g.select(nothing, zero, remainder)?))
}

/// u64 shifted to the right; past the width nothing is left.
fn shifted_right(g: &mut Graph, a: ValueId, b: ValueId) -> Built {
    let (zero, one) = (g.constant(Tensor::scalar(0i64)), g.constant(Tensor::scalar(1i64)));
    let high = highest(g);
    let shifted = g.shr(a, b)?;
    // Ones where the shift copied the sign.
    let copies = g.shr(high, b)?;
    let copies = g.shl(copies, one)?;
    let own = g.not(copies)?;
    let shifted = g.and(shifted, own)?;
    let width = g.constant(Tensor::scalar(64i64));
    let within = below(g, Compare::Lt, b, width)?;
    g.select(within, shifted, zero)
}

/// A u64 exponent as one of i64 with the same power modulo 2^64.
///
/// An odd number's powers repeat every 2^62, an even one's are 0 from the 64th on: the two highest bits of the exponent
/// matter only in that one of them is set.
pub(super) fn unsigned_exponent(g: &mut Graph, b: ValueId) -> Built {
    let zero = g.constant(Tensor::scalar(0i64));
    let high = highest(g);
    let second = g.constant(Tensor::scalar(1i64 << 62));
    let without = g.xor(b, high)?;
    let without = g.or(without, second)?;
    let large = g.lt(b, zero)?;
    g.select(large, without, b)
}

#[cfg(test)]
mod tests {
    use super::super::computed::computed;
    use super::*;

    #[test]
    fn u64_divides_shifts_and_orders_as_u64() -> Result<(), String> {
        let some = [0, 1, 2, 3, 7, 63, 64, 1 << 31, 1 << 62, 1 << 63, (1 << 63) + 5, u64::MAX - 1, u64::MAX];
        let pairs: Vec<(u64, u64)> = some.iter().flat_map(|a| some.map(|b| (*a, b))).collect();
        let column = |pick: fn(&(u64, u64)) -> u64| {
            let words: Vec<i64> = pairs.iter().map(|p| pick(p) as i64).collect();
            Tensor::new([words.len()], words).map_err(|e| e.to_string())
        };
        let inputs = [column(|p| p.0)?, column(|p| p.1)?];
        type Case = (Binary, fn(u64, u64) -> u64);
        let cases: [Case; 7] = [
            (Binary::Div, |a, b| a.checked_div(b).unwrap_or(0)),
            (Binary::Mod, |a, b| a.checked_rem(b).unwrap_or(0)),
            (Binary::Rem, |a, b| a.checked_rem(b).unwrap_or(0)),
            (Binary::Max, u64::max),
            (Binary::Min, u64::min),
            (Binary::Shr, |a, b| if b < 64 { a >> b } else { 0 }),
            (Binary::Pow, |a, b| {
                let (mut base, mut left, mut power) = (a, b, 1u64);
                while left > 0 {
                    power = if left % 2 == 1 { power.wrapping_mul(base) } else { power };
                    (base, left) = (base.wrapping_mul(base), left / 2);
                }
                power
            }),
        ];
        for (op, expected) in cases {
            let y = computed(&inputs, |g, x| binary(g, op, x[0], x[1], ElementType::U64))?;
            let y = y.as_slice::<i64>().map_err(|e| e.to_string())?;
            for ((a, b), y) in pairs.iter().zip(y) {
                assert_eq!(*y as u64, expected(*a, *b), "{} of {a} and {b}", op.name());
            }
        }
        Ok(())
    }
}
