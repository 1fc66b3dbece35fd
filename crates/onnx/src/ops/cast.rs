//! Conversions between element types, those that no graph holds by themselves among them.

use olivine_ir::op::Binary;
use olivine_ir::{DType, Error as GraphError, Graph, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::integer::{Built, cut, halved};
use super::small_float::{self, PowerRounding, Rounding};
use crate::ElementType;
use crate::element::element_type;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] =
    &[("BitCast", Takes(1, 1), bit_cast), ("Cast", Takes(1, 1), cast), ("CastLike", Takes(2, 1), cast_like)];

fn cast(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let to = target(n, "to")?.ok_or_else(|| n.wrong("attribute `to` is missing"))?;
    converted(n, to)
}

fn cast_like(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let to = n.element(1)?;
    converted(n, to)
}

/// The element type that an attribute names by ONNX's number.
pub(super) fn target(n: &NodeContext<'_, '_>, attribute: &str) -> Answer<Option<ElementType>> {
    let Some(number) = n.int(attribute)? else { return Ok(None) };
    let element = i32::try_from(number).ok().and_then(element_type);
    element.map(Some).ok_or_else(|| n.wrong(format!("attribute `{attribute}`: {number} is no element type")))
}

fn converted(n: &mut NodeContext<'_, '_>, to: ElementType) -> Answer<Vec<Value>> {
    let (x, from) = (n.tensor(0)?, n.element(0)?);
    let how = rounding(n)?;
    let y = n.build(|g| convert_by(g, x, from, to, how))?;
    Ok(vec![n.result(y, to)])
}

/// How a node asks for rounding to small floats.
pub(super) fn rounding(n: &NodeContext<'_, '_>) -> Answer<Rounding> {
    let power = match n.string_or("round_mode", "up")?.as_str() {
        "up" => PowerRounding::Up,
        "down" => PowerRounding::Down,
        "nearest" => PowerRounding::Nearest,
        other => return Err(n.wrong(format!("round_mode `{other}` is unknown"))),
    };
    Ok(Rounding { saturate: n.flag("saturate", true)?, power })
}

/// Numbers as another element type, saturated to small floats.
pub(super) fn convert(g: &mut Graph, x: ValueId, from: ElementType, to: ElementType) -> Built {
    convert_by(g, x, from, to, Rounding::default())
}

/// Numbers as another element type.
///
/// Floats truncate towards zero to integers. Out of range they are undefined by ONNX: they saturate here, but to integers
/// under 8 bits they keep their low bits, as integers do among each other.
pub(super) fn convert_by(
    g: &mut Graph,
    x: ValueId,
    from: ElementType,
    to: ElementType,
    how: Rounding,
) -> Built {
    let (Some(held), Some(holder)) = (from.dtype(), to.dtype()) else {
        let problem = format!("{from} cannot become {to}: one of them is held by no graph");
        return Err(GraphError::Invalid { location: "cast".into(), problem });
    };
    if from == to {
        return Ok(x);
    }
    match to {
        _ if small_float::is_small(to) => {
            // Integers that f32 rounds are beyond every float of 8 bits but the powers of two.
            let wide = if held == DType::F64 && to != ElementType::F8E8M0 { DType::F64 } else { DType::F32 };
            let x = to_float(g, x, from, wide)?;
            let y = small_float::round(g, x, to, how)?;
            g.cast(y, DType::F32)
        }
        ElementType::U16 if held.is_float() => {
            let x = g.cast(x, DType::U32)?;
            g.binary_scalar(Binary::Min, x, 65535.0)
        }
        ElementType::U16 => {
            let x = g.cast(x, DType::U32)?;
            cut(g, x)
        }
        ElementType::U64 if held.is_float() => float_to_u64(g, x, held),
        ElementType::I4 | ElementType::I2 | ElementType::U4 | ElementType::U2 => {
            let x = if held.is_float() { g.cast(x, DType::I32)? } else { x };
            let x = g.cast(x, holder)?;
            narrowed(g, x, to)
        }
        _ if holder.is_float() => to_float(g, x, from, holder),
        _ => g.cast(x, holder),
    }
}

/// Numbers as a float of the graph's own.
fn to_float(g: &mut Graph, x: ValueId, from: ElementType, dtype: DType) -> Built {
    if from != ElementType::U64 {
        return g.cast(x, dtype);
    }
    let zero = g.constant(Tensor::scalar(0i64));
    let one = g.constant(Tensor::scalar(1i64));
    // Half of a number with the highest bit fits i64. Its last bit remembers the one that was cut off, so that rounding
    // goes the same way.
    let half = halved(g, x)?;
    let last = g.and(x, one)?;
    let half = g.or(half, last)?;
    let half = g.cast(half, dtype)?;
    let double = g.binary_scalar(Binary::Mul, half, 2.0)?;
    let plain = g.cast(x, dtype)?;
    let large = g.lt(x, zero)?;
    g.select(large, double, plain)
}

/// Floats as u64, saturated; NaN becomes 0.
fn float_to_u64(g: &mut Graph, x: ValueId, dtype: DType) -> Built {
    let zero = g.constant(Tensor::scalar(0i64));
    let low = g.cast(x, DType::I64)?;
    let low = g.max(low, zero)?;
    if dtype == DType::F16 {
        // All but infinity are below 2^63.
        let infinity = g.constant(Tensor::scalar_of(dtype, f64::INFINITY));
        let all = g.constant(Tensor::scalar(-1i64));
        let beyond = g.eq(x, infinity)?;
        return g.select(beyond, all, low);
    }
    let limit = g.constant(Tensor::scalar_of(dtype, 2f64.powi(63)));
    let above = g.sub(x, limit)?;
    let above = g.cast(above, DType::I64)?;
    let highest = g.constant(Tensor::scalar(i64::MIN));
    let above = g.xor(above, highest)?;
    let large = g.ge(x, limit)?;
    g.select(large, above, low)
}

/// The low bits of an i8 or u8 as an integer of that many.
pub(super) fn narrowed(g: &mut Graph, x: ValueId, to: ElementType) -> Built {
    let spare = 8 - to.bits().min(8);
    if matches!(to, ElementType::U4 | ElementType::U2) {
        return g.binary_scalar(Binary::And, x, f64::from((1u32 << to.bits()) - 1));
    }
    let raised = g.binary_scalar(Binary::Shl, x, spare as f64)?;
    g.binary_scalar(Binary::Shr, raised, spare as f64)
}

fn bit_cast(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let to = target(n, "to")?.ok_or_else(|| n.wrong("attribute `to` is missing"))?;
    let (x, from) = (n.tensor(0)?, n.element(0)?);
    if from.bits() != to.bits() {
        return Err(n.wrong(format!("{from} and {to} differ in size")));
    }
    let y = n.build(|g| {
        let bits = to_bits(g, x, from)?;
        of_bits(g, bits, to)
    })?;
    Ok(vec![n.result(y, to)])
}

/// The element type whose integers stand for the bits of another.
fn bits_of(element: ElementType) -> ElementType {
    match element.bits() {
        2 => ElementType::U2,
        4 => ElementType::U4,
        8 => ElementType::U8,
        16 => ElementType::I16,
        32 => ElementType::I32,
        _ => ElementType::I64,
    }
}

/// Numbers as integers of their bits.
fn to_bits(g: &mut Graph, x: ValueId, from: ElementType) -> Built {
    let bits = bits_of(from);
    match (from.dtype(), bits.dtype()) {
        _ if small_float::is_small(from) => small_float::to_bits(g, x, from),
        (Some(held), Some(word)) if held.is_float() => g.bitcast(x, word),
        _ => convert(g, x, from, bits),
    }
}

/// Integers of a type's bits as its numbers.
fn of_bits(g: &mut Graph, x: ValueId, to: ElementType) -> Built {
    match to.dtype() {
        _ if small_float::is_small(to) => small_float::of_bits(g, x, to),
        Some(holder) if holder.is_float() => g.bitcast(x, holder),
        _ => convert(g, x, bits_of(to), to),
    }
}
