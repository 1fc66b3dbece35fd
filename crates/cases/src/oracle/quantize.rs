//! Quantised operations by their definition.

use olivine_ir::op::{DequantizeLinear, Granularity, QConv, QMatMul, QuantizeLinear};
use olivine_ir::{DType, TensorType};

use super::Value;
use super::conv::tap;
use super::value::{broadcast_flat, each, flat, limits};
use super::{meanings, one};
use crate::bound::round_to;

meanings! { |op, x, call|
    QuantizeLinear => one(quantize(op, x, call.ty())),
    DequantizeLinear => one(dequantize(op, x, call.ty())),
    QMatMul => one(qmatmul(op, x, call.ty())),
    QConv => one(qconv(op, x, call.ty())),
}

/// Which scale belongs to a position.
fn entry(granularity: Granularity, scale: &Value, at: &[usize]) -> usize {
    match granularity {
        Granularity::Tensor => 0,
        Granularity::Axis(axis) => at[axis],
        Granularity::Block { axis, size } => {
            let mut at = at.to_vec();
            at[axis] /= size;
            flat(scale.shape(), &at)
        }
    }
}

pub(super) fn quantize(op: &QuantizeLinear, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (reals, scales) = (x[0].as_floats()?, x[1].as_floats()?);
    let zeros = x.get(2).map(Value::as_ints).transpose()?;
    let granularity = op.granularity(x[1].shape(), x[0].shape())?;
    let (low, high) = limits(op.dtype);
    let mut out = Vec::with_capacity(reals.len());
    each(x[0].shape(), |at| {
        let i = entry(granularity, &x[1], at);
        let steps = round_to(DType::F32, reals[out.len()] / scales[i]).round_ties_even();
        let zero = zeros.map_or(0, |z| z[i]);
        out.push(if steps.is_nan() {
            0
        } else {
            (steps + zero as f64).clamp(low as f64, high as f64) as i64
        });
    });
    Ok(Value::ints(ty, out))
}

pub(super) fn dequantize(op: &DequantizeLinear, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (steps, scales) = (x[0].as_ints()?, x[1].as_floats()?);
    let zeros = x.get(2).map(Value::as_ints).transpose()?;
    let granularity = op.granularity(x[1].shape(), x[0].shape())?;
    let mut out = Vec::with_capacity(steps.len());
    each(x[0].shape(), |at| {
        let i = entry(granularity, &x[1], at);
        let difference = (steps[out.len()] - zeros.map_or(0, |z| z[i])) as i32;
        let difference = round_to(DType::F32, f64::from(difference));
        out.push(round_to(DType::F32, difference * scales[i]));
    });
    Ok(Value::floats(ty, out))
}

/// The zero point of a row, column or channel.
fn zero_of(x: Option<&Value>) -> Result<impl Fn(usize) -> i64, String> {
    let zeros = x.map(Value::as_ints).transpose()?.unwrap_or(&[0]).to_vec();
    Ok(move |i: usize| if zeros.len() == 1 { zeros[0] } else { zeros[i] })
}

pub(super) fn qmatmul(op: &QMatMul, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (a, b) = (x[0].as_ints()?, x[1].as_ints()?);
    let (sa, sb) = (*x[0].shape(), *x[1].shape());
    let (ra, rb, rank) = (sa.rank(), sb.rank(), ty.shape.rank());
    let a_zero = zero_of(op.a_zero.then(|| &x[2]))?;
    let b_zero = zero_of(op.b_zero.then(|| &x[2 + usize::from(op.a_zero)]))?;
    let (k, n) = (sa[ra - 1], sb[rb - 1]);
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let (batch, row, column) = (&at[..rank - 2], at[rank - 2], at[rank - 1]);
        let first = broadcast_flat(&sa[..ra - 2], batch) * sa[ra - 2] + row;
        let second = broadcast_flat(&sb[..rb - 2], batch) * k * n + column;
        let term = |i: usize| (a[first * k + i] - a_zero(row)) * (b[second + i * n] - b_zero(column));
        out.push((0..k).map(term).sum());
    });
    Ok(Value::ints(ty, out))
}

pub(super) fn qconv(op: &QConv, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (data, w) = (x[0].as_ints()?, x[1].as_ints()?);
    let (sx, sw) = (*x[0].shape(), *x[1].shape());
    let x_zero = zero_of(op.x_zero.then(|| &x[2]))?(0);
    let w_zero = zero_of(op.w_zero.then(|| &x[2 + usize::from(op.x_zero)]))?;
    let kernel = olivine_ir::Shape::new(&sw[2..]).map_err(|e| e.to_string())?;
    let area: usize = sx[2..].iter().product();
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let first = at[1] / (sw[0] / op.groups) * sw[1];
        let mut sum = 0;
        each(&kernel, |k| {
            let Some(from) = tap(&op.window, &sx[2..], &at[2..], k) else { return };
            for c in 0..sw[1] {
                let xi = (at[0] * sx[1] + first + c) * area + flat(&sx[2..], &from);
                let wi = (at[1] * sw[1] + c) * kernel.numel() + flat(&kernel, k);
                sum += (data[xi] - x_zero) * (w[wi] - w_zero(at[1]));
            }
        });
        out.push(sum);
    });
    Ok(Value::ints(ty, out))
}
