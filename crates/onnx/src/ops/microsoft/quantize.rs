//! Quantised operators of com.microsoft.
//!
//! Those that are functions of reals are computed as such: their inputs leave the integers and their results return to
//! them. Fusion makes one kernel of the three steps.

use olivine_ir::op::{Activation, Binary, PoolKind};
use olivine_ir::{DType, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::{ANY, Takes};
use crate::ops::elementwise::reshaped;
use crate::ops::integer_matmul::{Operand, QuantizedMatrix, matmul, requantized, scale, window};
use crate::ops::quantize::{Scales, dequantized, quantized};
use crate::ops::small_float::Rounding;

pub(super) const OPERATORS: &[Entry] = &[
    ("DequantizeLinear", Takes(3, 1), crate::ops::quantize::dequantize_linear),
    ("DynamicQuantizeMatMul", Takes(5, 1), dynamic_quantize_matmul),
    ("MatMulIntegerToFloat", Takes(7, 1), matmul_integer_to_float),
    ("QGemm", Takes(9, 1), qgemm),
    ("QLinearAdd", Takes(8, 1), |n| of_two(n, Binary::Add)),
    ("QLinearAveragePool", Takes(5, 1), average_pool),
    ("QLinearConcat", Takes(ANY, 1), concat),
    ("QLinearConv", Takes(9, 1), qlinear_conv),
    ("QLinearGlobalAveragePool", Takes(5, 1), global_average_pool),
    ("QLinearLeakyRelu", Takes(5, 1), leaky_relu),
    ("QLinearMul", Takes(8, 1), |n| of_two(n, Binary::Mul)),
    ("QLinearSigmoid", Takes(5, 1), sigmoid),
    ("QLinearSoftmax", Takes(5, 1), softmax),
    ("QLinearWhere", Takes(9, 1), select),
    ("QuantizeLinear", Takes(3, 1), crate::ops::quantize::quantize_linear),
];

/// Input `at`, whose scale and zero point follow it, as f32.
fn real(n: &mut NodeContext<'_, '_>, at: usize) -> Answer<ValueId> {
    let (x, element) = (n.tensor(at)?, n.element(at)?);
    let scales = Scales::whole(n, at + 1)?;
    dequantized(n, (x, element), &scales, ElementType::F32)
}

/// A result of f32 quantised with inputs `at` and `at + 1`; without a zero point it is of the element type given.
fn result(n: &mut NodeContext<'_, '_>, y: ValueId, at: usize, otherwise: ElementType) -> Answer<Vec<Value>> {
    let scales = Scales::whole(n, at)?;
    let to = if n.has(at + 1) { n.element(at + 1)? } else { otherwise };
    let y = quantized(n, (y, ElementType::F32), &scales, to, ElementType::F32, Rounding::default())?;
    Ok(vec![n.result(y, to)])
}

fn of_two(n: &mut NodeContext<'_, '_>, op: Binary) -> Answer<Vec<Value>> {
    let (a, b) = (real(n, 0)?, real(n, 3)?);
    let y = match op {
        Binary::Add => n.build(|g| g.add(a, b))?,
        _ => n.build(|g| g.mul(a, b))?,
    };
    let element = n.element(0)?;
    result(n, y, 6, element)
}

fn sigmoid(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, element) = (real(n, 0)?, n.element(0)?);
    let y = n.build(|g| g.sigmoid(x))?;
    result(n, y, 3, element)
}

fn leaky_relu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let alpha = f64::from(n.float_or("alpha", 0.01)?);
    let (x, element) = (real(n, 0)?, n.element(0)?);
    let y = n.build(|g| g.activation(Activation::LeakyRelu { alpha }, x))?;
    result(n, y, 3, element)
}

fn softmax(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, element) = (real(n, 0)?, n.element(0)?);
    let shape = n.shape(x)?;
    let axis = n.axis(n.int_or("axis", -1)?, shape.rank())?;
    // The attribute says which version of Softmax is meant; before 13 all axes from this one on are one.
    let y = if n.int_or("opset", 13)? >= 13 || axis + 1 == shape.rank() {
        n.build(|g| g.softmax(x, axis as isize))?
    } else {
        let outer: usize = shape.iter().take(axis).fold(1usize, |a, b| a.saturating_mul(*b));
        let inner: usize = shape.iter().skip(axis).fold(1usize, |a, b| a.saturating_mul(*b));
        let rows = reshaped(n, x, &[outer, inner])?;
        let y = n.build(|g| g.softmax(rows, 1))?;
        reshaped(n, y, shape.dims())?
    };
    result(n, y, 3, element)
}

fn select(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (condition, element) = (n.tensor(0)?, n.element(1)?);
    let (a, b) = (real(n, 1)?, real(n, 4)?);
    let y = n.build(|g| g.select(condition, a, b))?;
    result(n, y, 7, element)
}

fn concat(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let count = n.input_count();
    if count < 5 || !(count - 2).is_multiple_of(3) {
        return Err(n.wrong(format!("{count} inputs are not two and threes after them")));
    }
    let parts: Vec<ValueId> = (2..count).step_by(3).map(|at| real(n, at)).collect::<Answer<_>>()?;
    let element = n.element(2)?;
    let rank = match parts.first() {
        Some(first) => n.shape(*first)?.rank(),
        None => 0,
    };
    let axis = n.int("axis")?.ok_or_else(|| n.wrong("attribute `axis` is missing"))?;
    let axis = n.axis(axis, rank)?;
    let y = n.build(|g| g.concat(&parts, axis as isize))?;
    result(n, y, 0, element)
}

/// Channels moved from the last axis to the second, and how to move them back.
fn channels_second(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<(ValueId, Option<Vec<usize>>)> {
    let rank = n.shape(x)?.rank();
    if !n.flag("channels_last", false)? || rank < 3 {
        return Ok((x, None));
    }
    let there: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let back: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    Ok((n.build(|g| g.transpose(x, &there))?, Some(back)))
}

fn moved_back(n: &mut NodeContext<'_, '_>, y: ValueId, back: Option<Vec<usize>>) -> Answer<ValueId> {
    match back {
        Some(back) => n.build(|g| g.transpose(y, &back)),
        None => Ok(y),
    }
}

fn average_pool(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, element) = (real(n, 0)?, n.element(0)?);
    let (x, back) = channels_second(n, x)?;
    let shape = n.shape(x)?;
    let kernel = n.ints("kernel_shape")?.unwrap_or_default();
    let sizes: Option<Vec<usize>> = kernel.iter().map(|k| usize::try_from(*k).ok()).collect();
    let sizes = sizes.filter(|s| s.len() + 2 == shape.rank() && !s.is_empty());
    let sizes = sizes.ok_or_else(|| n.wrong(format!("kernel_shape {kernel:?} does not fit {shape}")))?;
    let window = window(n, &shape[2..], &sizes)?;
    let (ceil, count) = (n.flag("ceil_mode", false)?, n.flag("count_include_pad", false)?);
    let y = n.build(|g| g.avg_pool(x, &sizes, window, ceil, count))?;
    let y = moved_back(n, y, back)?;
    result(n, y, 3, element)
}

fn global_average_pool(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, element) = (real(n, 0)?, n.element(0)?);
    let (x, back) = channels_second(n, x)?;
    let y = n.build(|g| g.global_pool(PoolKind::Average, x))?;
    let y = moved_back(n, y, back)?;
    result(n, y, 3, element)
}

fn qlinear_conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (x, back) = channels_second(n, x)?;
    let (y, to) = crate::ops::integer_matmul::linear_convolution(n, x)?;
    let y = moved_back(n, y, back)?;
    Ok(vec![n.result(y, to)])
}

/// alpha·A·B + C of quantised matrices: C is i32 of scale alpha·a_scale·b_scale. Without a scale the result is f32.
fn qgemm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut a, mut b) = (QuantizedMatrix::read(n, 0, 2)?, QuantizedMatrix::read(n, 3, 5)?);
    for (matrix, name) in [(&mut a, "transA"), (&mut b, "transB")] {
        let values = matrix.values;
        if n.shape(values)?.rank() != 2 {
            return Err(n.wrong("it multiplies matrices"));
        }
        if n.flag(name, false)? {
            matrix.values = n.build(|g| g.transpose(values, &[1, 0]))?;
        }
    }
    let alpha = f64::from(n.float_or("alpha", 1.0)?);
    let (a_scale, b_scale) = (scale(n, 1, Operand::Lhs)?, scale(n, 4, Operand::Rhs)?);
    let factors = n.build(|g| {
        let factors = g.mul(a_scale, b_scale)?;
        g.binary_scalar(Binary::Mul, factors, alpha)
    })?;
    let mut y = matmul(n, a, b)?;
    if let Some(bias) = n.optional(6)? {
        y = n.build(|g| g.add(y, bias))?;
    }
    if n.has(7) {
        return requantized(n, y, factors, 7).map(|(y, to)| vec![n.result(y, to)]);
    }
    let y = n.build(|g| {
        let y = g.cast(y, DType::F32)?;
        g.mul(y, factors)
    })?;
    Ok(vec![n.result(y, ElementType::F32)])
}

/// An integer matmul times its scales, and a bias.
fn scaled(
    n: &mut NodeContext<'_, '_>,
    y: ValueId,
    (a, b): (ValueId, ValueId),
    bias: usize,
) -> Answer<Vec<Value>> {
    let mut y = n.build(|g| {
        let y = g.cast(y, DType::F32)?;
        let factors = g.mul(a, b)?;
        g.mul(y, factors)
    })?;
    if let Some(bias) = n.optional(bias)? {
        y = n.build(|g| {
            let bias = g.cast(bias, DType::F32)?;
            g.add(y, bias)
        })?;
    }
    Ok(vec![n.result(y, ElementType::F32)])
}

fn dynamic_quantize_matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let quantized = n.build(|g| g.dynamic_quantize_linear(x))?;
    let a = QuantizedMatrix { values: quantized.values, element: ElementType::U8, zero: quantized.zero };
    let b = QuantizedMatrix::read(n, 1, 3)?;
    let b_scale = scale(n, 2, Operand::Rhs)?;
    let y = matmul(n, a, b)?;
    scaled(n, y, (quantized.scale, b_scale), 4)
}

fn matmul_integer_to_float(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b) = (QuantizedMatrix::read(n, 0, 4)?, QuantizedMatrix::read(n, 1, 5)?);
    let (a_scale, b_scale) = (scale(n, 2, Operand::Lhs)?, scale(n, 3, Operand::Rhs)?);
    let to = n.element(2)?;
    let y = matmul(n, a, b)?;
    let results = scaled(n, y, (a_scale, b_scale), 6)?;
    let [Value::Tensor(held)] = results.as_slice() else { return Ok(results) };
    let y = held.id;
    let y = n.build(|g| crate::ops::cast::convert(g, y, ElementType::F32, to))?;
    Ok(vec![n.result(y, to)])
}
