//! Norms: mean and biased variance of a block, in two passes.

use olivine_ir::op::{L2Norm, LayerNorm, RmsNorm};

use super::Value;
use super::region::apply_region;
use super::value::{around, broadcast_flat, each};
use super::{meanings, one};

meanings! { |op, x, call|
    LayerNorm => layer_norm(op, x),
    RmsNorm => rms_norm(op, x),
    GroupNorm => one(group_norm(op.groups, op.eps, x)),
    InstanceNorm => one(group_norm(x[0].ty.shape[1], op.eps, x)),
    BatchNorm => one(batch_norm(op.eps, x)),
    LayerNorm2d => one(layer_norm2d(op.eps, x)),
    AdaLayerNorm => one(ada_layer_norm(op.eps, x)),
    L2Norm => one(l2_norm(op, x)),
}

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn variance(row: &[f64]) -> f64 {
    let m = mean(row);
    row.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / row.len() as f64
}

/// The operand after the prologue, with its own operands cut off.
fn prepared(prologue: &Option<olivine_ir::op::Region>, bias: bool, x: &[Value]) -> Result<Value, String> {
    let own = 2 + usize::from(bias);
    let mut ty = x[0].ty;
    ty.dtype = x[1].ty.dtype;
    apply_region(prologue, x[0].clone(), &x[own..], ty)
}

/// Rows of trailing axes, each turned by `row`, then scaled and shifted.
fn rows(
    x: &Value,
    axis: usize,
    weights: &[Value],
    row: impl Fn(&[f64]) -> Vec<f64>,
) -> Result<Value, String> {
    let size: usize = x.shape()[axis..].iter().product();
    let gamma = weights[0].as_floats()?;
    let beta = weights.get(1).map(Value::as_floats).transpose()?;
    let mut out = Vec::with_capacity(x.len());
    for r in x.as_floats()?.chunks(size.max(1)) {
        for (i, y) in row(r).into_iter().enumerate() {
            out.push(y * gamma[i] + beta.map_or(0.0, |b| b[i]));
        }
    }
    Ok(Value::floats(x.ty, out))
}

fn emitted(y: Value, x: Value, emit: bool) -> Vec<Value> {
    if emit { vec![y, x] } else { vec![y] }
}

fn standardised(row: &[f64], eps: f64) -> Vec<f64> {
    let (m, v) = (mean(row), variance(row));
    row.iter().map(|x| (x - m) / (v + eps).sqrt()).collect()
}

pub(super) fn layer_norm(op: &LayerNorm, x: &[Value]) -> Result<Vec<Value>, String> {
    let input = prepared(&op.prologue, op.bias, x)?;
    let weights = &x[1..2 + usize::from(op.bias)];
    let y = rows(&input, op.axis, weights, |row| standardised(row, op.eps))?;
    Ok(emitted(y, input, op.emit_input))
}

pub(super) fn rms_norm(op: &RmsNorm, x: &[Value]) -> Result<Vec<Value>, String> {
    let input = prepared(&op.prologue, op.bias, x)?;
    let weights = &x[1..2 + usize::from(op.bias)];
    let y = rows(&input, op.axis, weights, |row| {
        let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().map(|x| x / (square + op.eps).sqrt()).collect()
    })?;
    Ok(emitted(y, input, op.emit_input))
}

/// Norm over blocks of channels of `[N, C, ..]`; one channel per block is the instance norm.
pub(super) fn group_norm(groups: usize, eps: f64, x: &[Value]) -> Result<Value, String> {
    let (gamma, beta) = (x[1].as_floats()?, x[2].as_floats()?);
    let (n, c) = (x[0].shape()[0], x[0].shape()[1]);
    let positions: usize = x[0].shape()[2..].iter().product();
    let block = c.checked_div(groups).unwrap_or(0) * positions;
    let mut out = Vec::with_capacity(x[0].len());
    for (i, row) in x[0].as_floats()?.chunks(block.max(1)).enumerate().take(n * groups) {
        let first = i % groups * (c / groups);
        for (j, y) in standardised(row, eps).into_iter().enumerate() {
            let channel = first + j / positions;
            out.push(y * gamma[channel] + beta[channel]);
        }
    }
    Ok(Value::floats(x[0].ty, out))
}

pub(super) fn batch_norm(eps: f64, x: &[Value]) -> Result<Value, String> {
    let [gamma, beta, m, v] = [x[1].as_floats()?, x[2].as_floats()?, x[3].as_floats()?, x[4].as_floats()?];
    let data = x[0].as_floats()?;
    let mut out = Vec::with_capacity(data.len());
    each(x[0].shape(), |at| {
        let c = at[1];
        out.push((data[out.len()] - m[c]) / (v[c] + eps).sqrt() * gamma[c] + beta[c]);
    });
    Ok(Value::floats(x[0].ty, out))
}

pub(super) fn layer_norm2d(eps: f64, x: &[Value]) -> Result<Value, String> {
    let (gamma, beta, data) = (x[1].as_floats()?, x[2].as_floats()?, x[0].as_floats()?);
    let (n, c, positions) = around(x[0].shape(), 1);
    let mut out = vec![0.0; data.len()];
    for i in 0..n {
        for p in 0..positions {
            let at = |c_: usize| (i * c + c_) * positions + p;
            let column: Vec<f64> = (0..c).map(|j| data[at(j)]).collect();
            for (j, y) in standardised(&column, eps).into_iter().enumerate() {
                out[at(j)] = y * gamma[j] + beta[j];
            }
        }
    }
    Ok(Value::floats(x[0].ty, out))
}

pub(super) fn ada_layer_norm(eps: f64, x: &[Value]) -> Result<Value, String> {
    let (scale, shift) = (x[1].as_floats()?, x[2].as_floats()?);
    let size = x[0].shape()[x[0].shape().rank() - 1];
    let normed: Vec<f64> =
        x[0].as_floats()?.chunks(size.max(1)).flat_map(|row| standardised(row, eps)).collect();
    let mut out = Vec::with_capacity(normed.len());
    each(x[0].shape(), |at| {
        let y = normed[out.len()];
        let (s, t) = (broadcast_flat(x[1].shape(), at), broadcast_flat(x[2].shape(), at));
        out.push(y * (1.0 + scale[s]) + shift[t]);
    });
    Ok(Value::floats(x[0].ty, out))
}

pub(super) fn l2_norm(op: &L2Norm, x: &[Value]) -> Result<Value, String> {
    let data = x[0].as_floats()?;
    let (outer, size, inner) = around(x[0].shape(), op.axis);
    let mut out = vec![0.0; data.len()];
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| (o * size + k) * inner + i;
            let length = (0..size).map(|k| data[at(k)] * data[at(k)]).sum::<f64>().sqrt();
            // `max` that keeps NaN.
            let divisor = if length < op.eps { op.eps } else { length };
            for k in 0..size {
                out[at(k)] = data[at(k)] / divisor;
            }
        }
    }
    Ok(Value::floats(x[0].ty, out))
}
