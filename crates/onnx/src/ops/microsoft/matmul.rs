//! Matmuls, GEMMs and convolutions with transposes, scales and activations of their own.

use olivine_ir::ValueId;
use olivine_ir::op::Binary;

use super::activation::named;
use crate::import::{Answer, NodeContext, Value};

/// The result times a scale; one that is 1 changes nothing.
fn scaled(n: &mut NodeContext<'_, '_>, x: ValueId, name: &str) -> Answer<ValueId> {
    match n.float_or(name, 1.0)? {
        1.0 => Ok(x),
        factor => n.build(|g| g.binary_scalar(Binary::Mul, x, f64::from(factor))),
    }
}

pub(super) fn fused_matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let mut operands = Vec::with_capacity(2);
    for (i, (last, batch)) in [("transA", "transBatchA"), ("transB", "transBatchB")].into_iter().enumerate() {
        let mut x = n.tensor(i)?;
        let rank = n.shape(x)?.rank();
        if n.flag(batch, false)? && rank > 2 {
            // The first axis moves behind the other axes of the batch, before the last.
            let perm: Vec<usize> = (1..rank - 1).chain([0, rank - 1]).collect();
            x = n.build(|g| g.transpose(x, &perm))?;
        }
        // A vector has nothing to be transposed.
        if n.flag(last, false)? && rank > 1 {
            x = n.build(|g| g.swap_last_axes(x))?;
        }
        operands.push(x);
    }
    let y = matmul(n, operands[0], operands[1])?;
    let y = scaled(n, y, "alpha")?;
    n.like_first(y)
}

/// NumPy's matmul: a vector is a row on the left and a column on the right, and leaves no axis behind.
fn matmul(n: &mut NodeContext<'_, '_>, a: ValueId, b: ValueId) -> Answer<ValueId> {
    let (from_a, from_b) = (n.shape(a)?, n.shape(b)?);
    let row = if from_a.rank() == 1 { n.build(|g| g.reshape(a, &[1, -1]))? } else { a };
    let column = if from_b.rank() == 1 { n.build(|g| g.reshape(b, &[-1, 1]))? } else { b };
    let y = n.build(|g| g.matmul(row, column))?;
    if from_a.rank() != 1 && from_b.rank() != 1 {
        return Ok(y);
    }
    let mut dims = n.shape(y)?.to_vec();
    if from_b.rank() == 1 {
        dims.pop();
    }
    if from_a.rank() == 1 {
        let row = dims.len() - usize::from(from_b.rank() != 1) - 1;
        dims.remove(row);
    }
    crate::ops::attention::reshaped(n, y, &dims)
}

pub(super) fn fused_gemm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let mut operands = Vec::with_capacity(2);
    for (i, flag) in ["transA", "transB"].into_iter().enumerate() {
        let mut x = n.tensor(i)?;
        let shape = n.shape(x)?;
        if shape.rank() != 2 {
            return Err(n.wrong(format!("input {i} should be a matrix, it is {shape}")));
        }
        if n.flag(flag, false)? {
            x = n.build(|g| g.swap_last_axes(x))?;
        }
        operands.push(x);
    }
    let y = n.build(|g| g.matmul(operands[0], operands[1]))?;
    let shape = n.shape(y)?;
    let mut y = scaled(n, y, "alpha")?;
    if let Some(c) = n.optional(2)? {
        let c = scaled(n, c, "beta")?;
        y = n.build(|g| g.add(y, c))?;
    }
    if n.shape(y)? != shape {
        return Err(n.wrong(format!("its input C does not broadcast to {shape}")));
    }
    let parameters: Vec<f32> = ["activation_alpha", "activation_beta", "activation_gamma"]
        .into_iter()
        .map_while(|name| n.float(name).transpose())
        .collect::<Answer<_>>()?;
    let activation = n.string_or("activation", "")?;
    let y = named(n, &activation, &parameters, y)?;
    n.like_first(y)
}

/// A convolution, then the addition of input 3 and an activation.
pub(super) fn fused_conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let conv = crate::ops::importer("", "Conv").ok_or_else(|| n.wrong("Conv cannot be imported"))?;
    let results = conv(n)?;
    let Some(Value::Tensor(held)) = results.first() else {
        return Err(n.wrong("its convolution has no result"));
    };
    let mut y = n.walk.local(*held)?;
    if let Some(more) = n.optional(3)? {
        y = n.build(|g| g.add(y, more))?;
    }
    let (activation, parameters) =
        (n.string_or("activation", "")?, n.floats("activation_params")?.unwrap_or_default());
    let y = named(n, &activation, &parameters, y)?;
    n.like_first(y)
}
