//! Matmuls and convolutions of quantised tensors.

use olivine_ir::op::Window;
use olivine_ir::{DType, ValueId};

use super::Entry;
use super::arity::Takes;
use super::cast::convert;
use super::elementwise::reshaped;
use super::quantize::saturated;
use super::small_float::{Rounding, is_small};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("ConvInteger", Takes(4, 1), conv_integer),
    ("MatMulInteger", Takes(4, 1), matmul_integer),
    ("QLinearConv", Takes(9, 1), qlinear_conv),
    ("QLinearMatMul", Takes(8, 1), qlinear_matmul),
];

/// An operand of a matmul.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Operand {
    /// Scales and zero points are of rows.
    Lhs,
    /// Scales and zero points are of columns.
    Rhs,
}

/// An operand of a quantised matmul or convolution, with its zero point.
#[derive(Clone, Copy)]
pub(super) struct QuantizedMatrix {
    pub(super) values: ValueId,
    pub(super) element: ElementType,
    pub(super) zero: Option<ValueId>,
}

impl QuantizedMatrix {
    /// Input `at` with the zero point that is input `zero`, if it is given.
    pub(super) fn read(n: &mut NodeContext<'_, '_>, at: usize, zero: usize) -> Answer<QuantizedMatrix> {
        let (values, element) = (n.tensor(at)?, n.element(at)?);
        let given = n.optional(zero)?;
        if given.is_some() && n.element(zero)? != element {
            let other = n.element(zero)?;
            return Err(n.wrong(format!("input {at} is of {element}, its zero point of {other}")));
        }
        Ok(QuantizedMatrix { values, element, zero: given })
    }
}

/// Numbers of rows or columns so that they broadcast over a matmul: one for all as a scalar, a vector along its axis.
pub(super) fn along(n: &mut NodeContext<'_, '_>, x: ValueId, operand: Operand) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    match (shape.numel(), shape.rank(), operand) {
        (1, ..) => reshaped(n, x, &[]),
        (rows, 1, Operand::Lhs) => reshaped(n, x, &[rows, 1]),
        _ => Ok(x),
    }
}

/// A matmul of operands less their zero points: i32 of integers, f32 of small floats. Vectors count as a row and a
/// column.
pub(super) fn matmul(n: &mut NodeContext<'_, '_>, a: QuantizedMatrix, b: QuantizedMatrix) -> Answer<ValueId> {
    let (a_shape, b_shape) = (n.shape(a.values)?, n.shape(b.values)?);
    let mut left = a;
    let mut right = b;
    if let [k] = a_shape.dims() {
        left.values = reshaped(n, a.values, &[1, *k])?;
    }
    if let [k] = b_shape.dims() {
        right.values = reshaped(n, b.values, &[*k, 1])?;
    }
    let y = of_matrices(n, left, right)?;
    let mut dims = n.shape(y)?.to_vec();
    if b_shape.rank() == 1 {
        dims.pop();
    }
    if a_shape.rank() == 1 {
        dims.remove(dims.len().saturating_sub(if b_shape.rank() == 1 { 1 } else { 2 }));
    }
    if dims.len() == n.shape(y)?.rank() { Ok(y) } else { reshaped(n, y, &dims) }
}

fn of_matrices(n: &mut NodeContext<'_, '_>, a: QuantizedMatrix, b: QuantizedMatrix) -> Answer<ValueId> {
    let bytes = |f: &QuantizedMatrix| matches!(f.element, ElementType::I8 | ElementType::U8);
    // The graph's own operation takes one zero point, or one a row and a column.
    let mut zeros = [None, None];
    let mut plain = bytes(&a) && bytes(&b);
    for (matrix, zero) in [&a, &b].into_iter().zip(&mut zeros) {
        if let Some(given) = matrix.zero {
            let shape = n.shape(given)?;
            *zero = Some(if shape.numel() == 1 { reshaped(n, given, &[])? } else { given });
            plain &= shape.numel() == 1 || shape.rank() == 1;
        }
    }
    if plain {
        return n.build(|g| g.qmatmul(a.values, b.values, zeros[0], zeros[1]));
    }
    let small = is_small(a.element) || is_small(b.element);
    let wide = if small { ElementType::F32 } else { ElementType::I32 };
    let mut operands = Vec::with_capacity(2);
    for (matrix, operand) in [(a, Operand::Lhs), (b, Operand::Rhs)] {
        let zero = match matrix.zero {
            Some(zero) => Some(along(n, zero, operand)?),
            None => None,
        };
        operands.push(n.build(|g| {
            let x = convert(g, matrix.values, matrix.element, wide)?;
            let Some(zero) = zero else { return Ok(x) };
            let zero = convert(g, zero, matrix.element, wide)?;
            g.sub(x, zero)
        })?);
    }
    n.build(|g| g.matmul(operands[0], operands[1]))
}

fn matmul_integer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b) = (QuantizedMatrix::read(n, 0, 2)?, QuantizedMatrix::read(n, 1, 3)?);
    let y = matmul(n, a, b)?;
    Ok(vec![n.native(y)?])
}

/// Input `at`, scales of floats, as f32 that broadcasts over a matmul.
pub(super) fn scale(n: &mut NodeContext<'_, '_>, at: usize, operand: Operand) -> Answer<ValueId> {
    let (x, element) = (n.tensor(at)?, n.element(at)?);
    let x = along(n, x, operand)?;
    n.build(|g| convert(g, x, element, ElementType::F32))
}

fn qlinear_matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b) = (QuantizedMatrix::read(n, 0, 2)?, QuantizedMatrix::read(n, 3, 5)?);
    let (a_scale, b_scale) = (scale(n, 1, Operand::Lhs)?, scale(n, 4, Operand::Rhs)?);
    let y = matmul(n, a, b)?;
    let factors = n.build(|g| g.mul(a_scale, b_scale))?;
    let (y, to) = requantized(n, y, factors, 6)?;
    Ok(vec![n.result(y, to)])
}

/// The result of a matmul times its scales, quantised with input `at` as the scale and the input after it as the zero point.
pub(super) fn requantized(
    n: &mut NodeContext<'_, '_>,
    y: ValueId,
    factors: ValueId,
    at: usize,
) -> Answer<(ValueId, ElementType)> {
    let to = if n.has(at + 1) { n.element(at + 1)? } else { ElementType::U8 };
    let own = scale(n, at, Operand::Rhs)?;
    let zero = match n.optional(at + 1)? {
        Some(zero) => Some(along(n, zero, Operand::Rhs)?),
        None => None,
    };
    let y = n.build(|g| {
        let y = g.cast(y, DType::F32)?;
        // All scales are multiplied first, as runtimes that prepare it do.
        let ratio = g.div(factors, own)?;
        let y = g.mul(y, ratio)?;
        let y = if is_small(to) { y } else { g.round(y)? };
        let zero = match zero {
            Some(zero) => Some(convert(g, zero, to, ElementType::F32)?),
            None => None,
        };
        saturated(g, y, zero, to, Rounding::default())
    })?;
    Ok((y, to))
}

fn conv_integer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, w) = (QuantizedMatrix::read(n, 0, 2)?, QuantizedMatrix::read(n, 1, 3)?);
    let y = convolution(n, x, w)?;
    Ok(vec![n.result(y, ElementType::I32)])
}

fn qlinear_conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (y, to) = linear_convolution(n, x)?;
    Ok(vec![n.result(y, to)])
}

/// QLinearConv of its first input's elements, given with channels second.
pub(super) fn linear_convolution(
    n: &mut NodeContext<'_, '_>,
    values: ValueId,
) -> Answer<(ValueId, ElementType)> {
    let x = QuantizedMatrix { values, ..QuantizedMatrix::read(n, 0, 2)? };
    let w = QuantizedMatrix::read(n, 3, 5)?;
    let mut y = convolution(n, x, w)?;
    let after = n.shape(y)?.rank().saturating_sub(2);
    if n.has(8) {
        let bias = channels(n, 8, after)?;
        y = n.build(|g| g.add(y, bias))?;
    }
    let (x_scale, w_scale) = (scale(n, 1, Operand::Rhs)?, channels(n, 4, after)?);
    let factors = n.build(|g| g.mul(x_scale, w_scale))?;
    requantized(n, y, factors, 6)
}

/// Input `at`, one number or one a channel, so that it broadcasts over channels with `after` axes after them.
fn channels(n: &mut NodeContext<'_, '_>, at: usize, after: usize) -> Answer<ValueId> {
    let x = n.tensor(at)?;
    let shape = n.shape(x)?;
    if shape.numel() == 1 {
        return reshaped(n, x, &[]);
    }
    reshaped(n, x, &[shape.dims(), &vec![1; after]].concat())
}

/// A convolution of bytes less their zero points, in i32.
fn convolution(n: &mut NodeContext<'_, '_>, x: QuantizedMatrix, w: QuantizedMatrix) -> Answer<ValueId> {
    let zero = |n: &mut NodeContext<'_, '_>, matrix: QuantizedMatrix| match matrix.zero {
        Some(zero) if n.shape(zero)?.numel() == 1 => reshaped(n, zero, &[]).map(Some),
        other => Ok(other),
    };
    let (x_zero, w_zero) = (zero(n, x)?, zero(n, w)?);
    let (over, kernel) = (n.shape(x.values)?, n.shape(w.values)?);
    if over.rank() < 3 || kernel.rank() != over.rank() {
        return Err(n.wrong(format!("a kernel {kernel} over {over} is no convolution")));
    }
    let groups = n.int_or("group", 1)?;
    let groups = usize::try_from(groups).map_err(|_| n.wrong(format!("group {groups} is negative")))?;
    let window = window(n, &over[2..], &kernel[2..])?;
    n.build(|g| g.qconv(x.values, w.values, x_zero, w_zero, window, groups))
}

/// How a kernel moves over spatial sizes, by the node's attributes.
pub(super) fn window(n: &NodeContext<'_, '_>, sizes: &[usize], kernel: &[usize]) -> Answer<Window> {
    let spatial = sizes.len();
    let list = |name: &str, count: usize, default: usize| -> Answer<Vec<usize>> {
        let Some(list) = n.ints(name)? else { return Ok(vec![default; count]) };
        let whole: Option<Vec<usize>> = list.iter().map(|v| usize::try_from(*v).ok()).collect();
        match whole.filter(|w| w.len() == count) {
            Some(whole) => Ok(whole),
            None => Err(n.wrong(format!("{name} should be {count} numbers from 0 on, they are {list:?}"))),
        }
    };
    if let Some(declared) = n.ints("kernel_shape")?
        && !declared.iter().copied().eq(kernel.iter().map(|k| *k as i64))
    {
        return Err(n.wrong(format!("kernel_shape is {declared:?}, the kernel {kernel:?}")));
    }
    let (strides, dilations) = (list("strides", spatial, 1)?, list("dilations", spatial, 1)?);
    let mut window = Window { strides, pads: vec![(0, 0); spatial], dilations };
    let how = n.string_or("auto_pad", "NOTSET")?;
    match how.as_str() {
        "NOTSET" | "" => {
            let pads = list("pads", 2 * spatial, 0)?;
            window.pads = (0..spatial).map(|i| (pads[i], pads[i + spatial])).collect();
        }
        "VALID" => {}
        "SAME_UPPER" | "SAME_LOWER" => {
            for (i, size) in sizes.iter().enumerate() {
                let span = window.span(i, kernel[i]).map_err(|e| n.wrong(e))?;
                let stride = window.strides[i].max(1);
                // The last of ceil(size / stride) windows begins here.
                let last = size.div_ceil(stride).saturating_sub(1).saturating_mul(stride);
                let total = last.saturating_add(span).saturating_sub(*size);
                let (less, more) = (total / 2, total - total / 2);
                window.pads[i] = if how == "SAME_UPPER" { (less, more) } else { (more, less) };
            }
        }
        other => return Err(n.wrong(format!("auto_pad `{other}` is unknown"))),
    }
    Ok(window)
}
