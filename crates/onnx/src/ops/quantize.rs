//! Quantised tensors: integers and floats of few bits that stand for reals, `(q − zero)·scale`.

use olivine_ir::op::Granularity;
use olivine_ir::{DType, Graph, Shape, ValueId};

use super::Entry;
use super::arity::Takes;
use super::cast::{convert, rounding, target};
use super::elementwise::reshaped;
use super::integer::Built;
use super::small_float::{self, Rounding};
use crate::ElementType;
use crate::import::{Answer, Dequantised, NodeContext, Value};
use crate::stored::format_of;

pub(super) const OPERATORS: &[Entry] = &[
    ("DequantizeLinear", Takes(3, 1), dequantize_linear),
    ("DynamicQuantizeLinear", Takes(1, 3), dynamic_quantize_linear),
    ("QuantizeLinear", Takes(3, 1), quantize_linear),
];

/// Scales and zero points, and how they broadcast over a tensor.
pub(super) struct Scales {
    /// The scales: a scalar, a vector or a tensor of blocks.
    values: ValueId,
    element: ElementType,
    /// Zero points, of the scales' shape.
    zero: Option<(ValueId, ElementType)>,
    granularity: Granularity,
}

impl Scales {
    /// Inputs `at` and, if it is given, `at + 1` of a node as scales and zero points over a shape.
    pub(super) fn read(n: &mut NodeContext<'_, '_>, at: usize, over: &Shape) -> Answer<Scales> {
        let (mut values, element) = (n.tensor(at)?, n.element(at)?);
        let of = n.shape(values)?;
        let granularity = granularity(n, &of, over)?;
        let mut zero = match n.optional(at + 1)? {
            Some(zero) => Some((zero, n.element(at + 1)?)),
            None => None,
        };
        if let Some((zero, _)) = zero {
            let own = n.shape(zero)?;
            let both_one = own.numel() == 1 && granularity == Granularity::Tensor;
            if own != of && !both_one {
                return Err(n.wrong(format!("scale {of} and zero point {own} differ in shape")));
            }
        }
        if granularity == Granularity::Tensor {
            values = reshaped(n, values, &[])?;
            if let Some((zero, _)) = &mut zero {
                *zero = reshaped(n, *zero, &[])?;
            }
        }
        Ok(Scales { values, element, zero, granularity })
    }

    /// Inputs `at` and, if it is given, `at + 1` as one scale and one zero point for a whole tensor.
    pub(super) fn whole(n: &mut NodeContext<'_, '_>, at: usize) -> Answer<Scales> {
        let (values, element) = (n.tensor(at)?, n.element(at)?);
        let one = |n: &mut NodeContext<'_, '_>, x: ValueId| {
            let shape = n.shape(x)?;
            match shape.numel() {
                1 => reshaped(n, x, &[]),
                _ => Err(n.wrong(format!("scales and zero points should be one number, one is {shape}"))),
            }
        };
        let values = one(n, values)?;
        let zero = match n.optional(at + 1)? {
            Some(zero) => Some((one(n, zero)?, n.element(at + 1)?)),
            None => None,
        };
        Ok(Scales { values, element, zero, granularity: Granularity::Tensor })
    }

    fn axis(&self) -> (isize, usize) {
        match self.granularity {
            Granularity::Tensor => (0, 0),
            Granularity::Axis(axis) => (axis as isize, 0),
            Granularity::Block { axis, size } => (axis as isize, size),
        }
    }
}

/// How scales of a shape broadcast over a tensor, by the attributes `axis` and `block_size`.
fn granularity(n: &NodeContext<'_, '_>, of: &Shape, over: &Shape) -> Answer<Granularity> {
    let block = n.int_or("block_size", 0)?;
    let size = usize::try_from(block).map_err(|_| n.wrong(format!("block_size {block} is negative")))?;
    if of.rank() == 0 || size == 0 && of.numel() == 1 {
        return Ok(Granularity::Tensor);
    }
    let axis = n.int_or("axis", 1)?;
    // With one axis there is no choice, and the default is outside.
    let axis = if over.rank() == 1 && size == 0 { 0 } else { n.axis(axis, over.rank())? };
    let mut dims = over.to_vec();
    if size == 0 {
        dims = vec![over[axis]];
    } else {
        dims[axis] = over[axis].div_ceil(size);
    }
    if of.dims() != dims {
        return Err(n.wrong(format!("its scale should be one number or {dims:?}, it is {of}")));
    }
    Ok(if size == 0 { Granularity::Axis(axis) } else { Granularity::Block { axis, size } })
}

/// Scales or zero points so that they broadcast over a tensor.
fn spread(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    granularity: Granularity,
    over: &Shape,
) -> Answer<ValueId> {
    match granularity {
        Granularity::Tensor => Ok(x),
        Granularity::Axis(axis) => {
            let mut dims = vec![1; over.rank() - axis];
            dims[0] = over[axis];
            reshaped(n, x, &dims)
        }
        Granularity::Block { axis, size } => {
            // A block longer than the axis is as good as one that fills it.
            let size = size.min(over[axis].max(1));
            n.build(|g| {
                let all = g.repeat(x, axis as isize, size)?;
                g.narrow(all, axis as isize, 0, over[axis])
            })
        }
    }
}

pub(super) fn quantize_linear(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, from) = (n.tensor(0)?, n.element(0)?);
    let over = n.shape(x)?;
    let scales = Scales::read(n, 1, &over)?;
    let asked = target(n, "output_dtype")?;
    let to = match (asked, scales.zero) {
        (Some(asked), Some((_, zero))) if asked != zero => {
            return Err(n.wrong(format!("output_dtype is {asked}, its zero point {zero}")));
        }
        (Some(asked), _) => asked,
        (None, Some((_, zero))) => zero,
        (None, None) => ElementType::U8,
    };
    let precision = target(n, "precision")?.unwrap_or(scales.element);
    let how = rounding(n)?;
    let y = quantized(n, (x, from), &scales, to, precision, how)?;
    Ok(vec![n.result(y, to)])
}

/// `saturate(x / scale + zero)`, the quotient in a precision; to integers it is rounded, halves to even.
pub(super) fn quantized(
    n: &mut NodeContext<'_, '_>,
    (x, from): (ValueId, ElementType),
    scales: &Scales,
    to: ElementType,
    precision: ElementType,
    how: Rounding,
) -> Answer<ValueId> {
    let is_float =
        matches!(precision, ElementType::F32 | ElementType::F16 | ElementType::BF16 | ElementType::F64);
    let precision = if is_float { precision } else { ElementType::F32 };
    let native = matches!(to, ElementType::I8 | ElementType::U8 | ElementType::I16);
    if native && [from, scales.element, precision] == [ElementType::F32; 3] {
        let ((axis, block), zero) = (scales.axis(), scales.zero.map(|(zero, _)| zero));
        let dtype = to.dtype().unwrap_or(DType::U8);
        return n.build(|g| g.quantize_linear(x, scales.values, zero, dtype, axis, block));
    }
    let over = n.shape(x)?;
    let scale = spread(n, scales.values, scales.granularity, &over)?;
    let zero = match scales.zero {
        Some((zero, element)) => Some((spread(n, zero, scales.granularity, &over)?, element)),
        None => None,
    };
    let y = n.build(|g| {
        let (x, scale) = (convert(g, x, from, precision)?, convert(g, scale, scales.element, precision)?);
        let y = g.div(x, scale)?;
        if small_float::is_small(to) { Ok(y) } else { g.round(y) }
    })?;
    n.build(|g| {
        let y = g.cast(y, DType::F32)?;
        let zero = match zero {
            Some((zero, element)) => Some(convert(g, zero, element, ElementType::F32)?),
            None => None,
        };
        saturated(g, y, zero, to, how)
    })
}

/// A whole number of f32 plus a zero point as a quantised element, clamped to its range; NaN becomes 0. For small floats
/// the number need not be whole.
pub(super) fn saturated(
    g: &mut Graph,
    y: ValueId,
    zero: Option<ValueId>,
    to: ElementType,
    how: Rounding,
) -> Built {
    let y = match zero {
        Some(zero) => g.add(y, zero)?,
        None => y,
    };
    let (low, high) = match to {
        ElementType::U2 => (0.0, 3.0),
        ElementType::I2 => (-2.0, 1.0),
        ElementType::U4 => (0.0, 15.0),
        ElementType::I4 => (-8.0, 7.0),
        ElementType::U8 => (0.0, 255.0),
        ElementType::I8 => (-128.0, 127.0),
        ElementType::U16 => (0.0, 65535.0),
        ElementType::I16 => (-32768.0, 32767.0),
        _ if small_float::is_small(to) => return small_float::round(g, y, to, how),
        other => {
            let problem = format!("{other} is no type to quantise to");
            return Err(olivine_ir::Error::Invalid { location: "quantisation".into(), problem });
        }
    };
    let y = g.clamp(y, low, high)?;
    convert(g, y, ElementType::F32, to)
}

pub(super) fn dequantize_linear(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, from) = (n.tensor(0)?, n.element(0)?);
    let over = n.shape(x)?;
    let scales = Scales::read(n, 1, &over)?;
    if let Some((_, zero)) = scales.zero
        && zero != from
    {
        return Err(n.wrong(format!("its input is of {from}, its zero point of {zero}")));
    }
    let own = if small_float::is_small(scales.element) { ElementType::F32 } else { scales.element };
    let to = target(n, "output_dtype")?.unwrap_or(own);
    let y = dequantized(n, (x, from), &scales, to)?;
    if let (Some(format), [rows, columns]) = (format_of(from), over.dims())
        && let Some(stored) = n.walk.stored(n.tensor_ref(0)?)
    {
        let (dims, zero) = ([*rows, *columns], scales.zero.map(|(zero, _)| zero));
        let (scales, granularity) = (scales.values, scales.granularity);
        let matrix = Dequantised { stored, format, dims, scales, zero, granularity, transposed: false };
        n.walk.note_dequantised(y, matrix);
    }
    Ok(vec![n.result(y, to)])
}

/// `(x − zero)·scale`: the difference exact, the product rounded once.
pub(super) fn dequantized(
    n: &mut NodeContext<'_, '_>,
    (x, from): (ValueId, ElementType),
    scales: &Scales,
    to: ElementType,
) -> Answer<ValueId> {
    let native = matches!(from, ElementType::I8 | ElementType::U8 | ElementType::I16 | ElementType::I32);
    if native && to == scales.element {
        let ((axis, block), zero) = (scales.axis(), scales.zero.map(|(zero, _)| zero));
        return n.build(|g| g.dequantize_linear(x, scales.values, zero, axis, block));
    }
    let over = n.shape(x)?;
    let scale = spread(n, scales.values, scales.granularity, &over)?;
    let zero = match scales.zero {
        Some((zero, element)) => Some((spread(n, zero, scales.granularity, &over)?, element)),
        None => None,
    };
    n.build(|g| {
        let mut y = convert(g, x, from, ElementType::F32)?;
        if let Some((zero, element)) = zero {
            let zero = convert(g, zero, element, ElementType::F32)?;
            y = g.sub(y, zero)?;
        }
        // The product is one of the result's type: the scale joins it there.
        let scale = convert(g, scale, scales.element, to)?;
        let scale = convert(g, scale, to, ElementType::F32)?;
        let y = g.mul(y, scale)?;
        convert(g, y, ElementType::F32, to)
    })
}

fn dynamic_quantize_linear(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let done = n.build(|g| g.dynamic_quantize_linear(x))?;
    let zero = done.zero.ok_or_else(|| n.wrong("its zero point is missing"))?;
    Ok(vec![
        n.result(done.values, ElementType::U8),
        n.result(done.scale, ElementType::F32),
        n.result(zero, ElementType::U8),
    ])
}
