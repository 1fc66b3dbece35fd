//! Functions of several numbers, with rules of their own.

use olivine_ir::op::{Binary, Compare};
use olivine_ir::{DType, Graph, Tensor, ValueId};

use super::Entry;
use super::arity::{ANY, Since, Takes};
use super::cast::{convert, target};
use super::elementwise::{broadcast_pair, pair, reshaped};
use super::integer::{self, Built};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Clip", Since(&[(1, 1, 1), (11, 3, 1)]), clip),
    ("EyeLike", Takes(1, 1), eye_like),
    ("Hardmax", Takes(1, 1), hardmax),
    ("Max", Takes(ANY, 1), |n| variadic(n, Binary::Max)),
    ("Mean", Takes(ANY, 1), mean),
    ("Min", Takes(ANY, 1), |n| variadic(n, Binary::Min)),
    ("Mod", Takes(2, 1), modulo),
    ("Pow", Takes(2, 1), pow),
    ("Sum", Takes(ANY, 1), |n| variadic(n, Binary::Add)),
];

/// min(max(x, low), high), each limit left out where it is not given.
fn clip(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut y, element) = (n.tensor(0)?, n.element(0)?);
    let dtype = n.dtype(y)?;
    let mut limits = [None, None];
    for (i, (name, limit)) in ["min", "max"].into_iter().zip(&mut limits).enumerate() {
        if n.opset() < 11 {
            let number = n.float(name)?;
            *limit = number.map(|v| n.scalar(dtype, f64::from(v)));
        } else if n.has(i + 1) {
            if n.element(i + 1)? != element {
                return Err(n.wrong(format!("{name} is of another type than its input")));
            }
            let given = n.tensor(i + 1)?;
            let shape = n.shape(given)?;
            if shape.numel() != 1 {
                return Err(n.wrong(format!("{name} must be one number, it is {shape}")));
            }
            *limit = Some(reshaped(n, given, &[])?);
        }
    }
    for (limit, op) in limits.into_iter().zip([Binary::Max, Binary::Min]) {
        if let Some(limit) = limit {
            y = n.build(|g| integer::binary(g, op, y, limit, element))?;
        }
    }
    n.like_first(y)
}

/// All inputs joined by a function of two.
fn variadic(n: &mut NodeContext<'_, '_>, op: Binary) -> Answer<Vec<Value>> {
    let y = joined(n, op)?;
    n.like_first(y)
}

fn joined(n: &mut NodeContext<'_, '_>, op: Binary) -> Answer<ValueId> {
    let element = n.element(0)?;
    let mut y = n.tensor(0)?;
    for i in 1..n.input_count() {
        if n.element(i)? != element {
            return Err(n.wrong(format!("its inputs are of {element} and of {}", n.element(i)?)));
        }
        let next = n.tensor(i)?;
        y = n.build(|g| integer::binary(g, op, y, next, element))?;
    }
    Ok(y)
}

fn mean(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (sum, count) = (joined(n, Binary::Add)?, n.input_count());
    let y = n.build(|g| g.binary_scalar(Binary::Div, sum, count as f64))?;
    n.like_first(y)
}

fn modulo(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b, element) = pair(n)?;
    let op = if n.flag("fmod", false)? { Binary::Rem } else { Binary::Mod };
    let y = n.build(|g| integer::binary(g, op, a, b, element))?;
    n.like_first(y)
}

/// A power of the base's type; the exponent may be of any other.
fn pow(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b) = broadcast_pair(n)?;
    let (base, exponent) = (n.element(0)?, n.element(1)?);
    let of_floats = |e: ElementType| e.dtype().is_some_and(DType::is_float);
    let y = n.build(|g| match (of_floats(base), of_floats(exponent)) {
        _ if base == exponent => integer::binary(g, Binary::Pow, a, b, base),
        (true, _) => {
            // An exponent that is whole stays so in the wider type.
            let wide = if base == ElementType::F64 { ElementType::F64 } else { ElementType::F32 };
            let (a, b) = (convert(g, a, base, wide)?, convert(g, b, exponent, wide)?);
            let y = g.pow(a, b)?;
            convert(g, y, wide, base)
        }
        (false, false) => {
            // Powers modulo 2^64 have the right low bits for every narrower type.
            let a = convert(g, a, base, ElementType::I64)?;
            let b = match exponent {
                ElementType::U64 => integer::unsigned_exponent(g, b)?,
                _ => convert(g, b, exponent, ElementType::I64)?,
            };
            let y = g.pow(a, b)?;
            convert(g, y, ElementType::I64, base)
        }
        (false, true) => integer_to_float_power(g, (a, base), (b, exponent)),
    })?;
    n.like_first(y)
}

/// An integer to the power of a float, cut to an integer: exact where the exponent is whole.
fn integer_to_float_power(
    g: &mut Graph,
    (a, base): (ValueId, ElementType),
    (b, exponent): (ValueId, ElementType),
) -> Built {
    let wide = if exponent == ElementType::F64 { ElementType::F64 } else { ElementType::F32 };
    let b = convert(g, b, exponent, wide)?;
    let cut = g.trunc(b)?;
    let whole = g.eq(b, cut)?;
    let (integer, by) = (convert(g, a, base, ElementType::I64)?, g.cast(b, DType::I64)?);
    let exact = g.pow(integer, by)?;
    let exact = convert(g, exact, ElementType::I64, base)?;
    let float = convert(g, a, base, wide)?;
    let near = g.pow(float, b)?;
    // A root that comes out whole must not fall below it by the rounding of its last bits.
    let round = g.round(near)?;
    let off = g.sub(near, round)?;
    let off = g.abs(off)?;
    let size = g.abs(near)?;
    let slack = g.binary_scalar(
        Binary::Mul,
        size,
        if wide == ElementType::F64 { 2f64.powi(-50) } else { 2f64.powi(-21) },
    )?;
    let close = g.le(off, slack)?;
    let near = g.select(close, round, near)?;
    let near = convert(g, near, wide, base)?;
    g.select(whole, exact, near)
}

/// One at the first of the largest elements along an axis, zero elsewhere.
fn hardmax(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    if shape.has_zero() {
        return n.like_first(x);
    }
    let (rows, axis) = if n.opset() >= 13 {
        (x, n.axis(n.int_or("axis", -1)?, shape.rank())?)
    } else {
        // Up to opset 12 all axes from this one on are one.
        let axis = match n.int_or("axis", 1)? {
            end if end == shape.rank() as i64 => shape.rank(),
            axis => n.axis(axis, shape.rank())?,
        };
        let outer: usize = shape.iter().take(axis).fold(1usize, |a, b| a.saturating_mul(*b));
        (reshaped(n, x, &[outer, shape.numel() / outer])?, 1)
    };
    let sizes = n.shape(rows)?;
    let mut along = vec![1; sizes.rank()];
    along[axis] = sizes[axis];
    let places = n.build(|g| g.range(DType::I64, 0.0, 1.0, sizes[axis]))?;
    let places = reshaped(n, places, &along)?;
    let y = n.build(|g| {
        let first = g.argmax(rows, axis as isize, true)?;
        let first = g.cast(first, DType::I64)?;
        let is_first = g.eq(first, places)?;
        g.cast(is_first, dtype)
    })?;
    let y = reshaped(n, y, shape.dims())?;
    n.like_first(y)
}

fn eye_like(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let element = match target(n, "dtype")? {
        Some(element) => element,
        None => n.element(0)?,
    };
    let dtype = element.dtype().ok_or_else(|| n.wrong(format!("no graph holds {element}")))?;
    let [rows, columns] = shape.dims() else {
        return Err(n.wrong(format!("its input must have two axes, it is {shape}")));
    };
    if shape.has_zero() {
        let zero = n.scalar(dtype, 0.0);
        let y = n.build(|g| g.fill(zero, shape))?;
        return Ok(vec![n.result(y, element)]);
    }
    // A diagonal outside the matrix is clamped to its border.
    let diagonal = n.int_or("k", 0)?.clamp(-(*rows as i64), *columns as i64);
    let first = n.build(|g| g.range(DType::I64, diagonal as f64, 1.0, *rows))?;
    let first = reshaped(n, first, &[*rows, 1])?;
    let y = n.build(|g| {
        let places = g.range(DType::I64, 0.0, 1.0, *columns)?;
        let on = integer::compare(g, Compare::Eq, first, places, ElementType::I64)?;
        g.cast(on, dtype)
    })?;
    Ok(vec![n.result(y, element)])
}

/// One number of an element type at every place of a tensor.
pub(super) fn filled(g: &mut Graph, number: Tensor, like: ValueId) -> Built {
    let shape = g.ty(like)?.shape;
    let number = g.constant(number);
    g.fill(number, shape)
}
