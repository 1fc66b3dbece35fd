//! Recurrences with a state, step by step.

use olivine_ir::TensorType;
use olivine_ir::op::{CausalConv1d, GatedDeltaNet, Mamba2, SelectiveScan};

use super::Value;
use super::meanings;
use super::value::flat;

meanings! { |op, x, call|
    SelectiveScan => selective_scan(op, x, call.results),
    Mamba2 => mamba2(op, x, call.results),
    GatedDeltaNet => gated_delta_net(op, x, call.results),
    CausalConv1d => causal_conv1d(op, x, call.results),
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The carried state, or zeros.
fn initial(given: Option<&Value>, ty: &TensorType) -> Result<Vec<f64>, String> {
    given.map_or(Ok(vec![0.0; ty.shape.numel()]), |v| v.as_floats().map(<[f64]>::to_vec))
}

fn results(types: &[TensorType], y: Vec<f64>, state: Vec<f64>) -> Vec<Value> {
    vec![Value::floats(types[0], y), Value::floats(types[1], state)]
}

pub(super) fn selective_scan(
    op: &SelectiveScan,
    x: &[Value],
    types: &[TensorType],
) -> Result<Vec<Value>, String> {
    let (u, delta, a) = (x[0].as_floats()?, x[1].as_floats()?, x[2].as_floats()?);
    let (b, c) = (x[3].as_floats()?, x[4].as_floats()?);
    let mut rest = x[5..].iter();
    let mut take = |given: bool| if given { rest.next() } else { None };
    let skip = take(op.skip).map(Value::as_floats).transpose()?;
    let gate = take(op.gate).map(Value::as_floats).transpose()?;
    let bias = take(op.delta_bias).map(Value::as_floats).transpose()?;
    let mut h = initial(take(op.state), &types[1])?;
    let (dims, states) = (x[0].shape().to_vec(), types[1].shape.to_vec());
    let keys = [dims[0], dims[1], states[2]];
    let mut y = vec![0.0; u.len()];
    for batch in 0..dims[0] {
        for t in 0..dims[1] {
            for d in 0..dims[2] {
                let at = flat(&dims, &[batch, t, d]);
                let mut step = delta[at] + bias.map_or(0.0, |b| b[d]);
                if op.softplus {
                    step = softplus(step);
                }
                let mut sum = skip.map_or(0.0, |s| s[d] * u[at]);
                for n in 0..states[2] {
                    let key = flat(&keys, &[batch, t, n]);
                    let h = &mut h[flat(&states, &[batch, d, n])];
                    *h = (step * a[d * states[2] + n]).exp() * *h + step * b[key] * u[at];
                    sum += c[key] * *h;
                }
                y[at] = gate.map_or(sum, |z| sum * silu(z[at]));
            }
        }
    }
    Ok(results(types, y, h))
}

pub(super) fn mamba2(op: &Mamba2, x: &[Value], types: &[TensorType]) -> Result<Vec<Value>, String> {
    let (u, dt, a) = (x[0].as_floats()?, x[1].as_floats()?, x[2].as_floats()?);
    let (b, c) = (x[3].as_floats()?, x[4].as_floats()?);
    let mut rest = x[5..].iter();
    let skip = if op.skip { rest.next().map(Value::as_floats).transpose()? } else { None };
    let mut h = initial(rest.next(), &types[1])?;
    let (dims, keys, states) = (x[0].shape().to_vec(), x[3].shape().to_vec(), types[1].shape.to_vec());
    let mut y = vec![0.0; u.len()];
    for batch in 0..dims[0] {
        for t in 0..dims[1] {
            for head in 0..dims[2] {
                let step = dt[flat(&dims[..3], &[batch, t, head])];
                let decay = (step * a[head]).exp();
                let group = head * keys[2] / dims[2];
                for p in 0..dims[3] {
                    let at = flat(&dims, &[batch, t, head, p]);
                    let mut sum = skip.map_or(0.0, |s| s[head] * u[at]);
                    for n in 0..keys[3] {
                        let key = flat(&keys, &[batch, t, group, n]);
                        let h = &mut h[flat(&states, &[batch, head, p, n])];
                        *h = decay * *h + step * u[at] * b[key];
                        sum += c[key] * *h;
                    }
                    y[at] = sum;
                }
            }
        }
    }
    Ok(results(types, y, h))
}

pub(super) fn gated_delta_net(
    op: &GatedDeltaNet,
    x: &[Value],
    types: &[TensorType],
) -> Result<Vec<Value>, String> {
    let v = x[2].as_floats()?;
    let (g, beta) = (x[3].as_floats()?, x[4].as_floats()?);
    let (keys, dims, states) = (x[0].shape().to_vec(), x[2].shape().to_vec(), types[1].shape.to_vec());
    let rows = |value: &Value| -> Result<Vec<f64>, String> {
        let mut rows = value.as_floats()?.to_vec();
        if let Some(eps) = op.normalise {
            for row in rows.chunks_mut(keys[3]) {
                let length = (row.iter().map(|x| x * x).sum::<f64>() + eps).sqrt();
                row.iter_mut().for_each(|x| *x /= length);
            }
        }
        Ok(rows)
    };
    let (q, k) = (rows(&x[0])?, rows(&x[1])?);
    let scale = op.scale.unwrap_or(1.0 / (keys[3] as f64).sqrt());
    let mut s = initial(x.get(5), &types[1])?;
    let mut o = vec![0.0; v.len()];
    for batch in 0..dims[0] {
        for t in 0..dims[1] {
            for head in 0..dims[2] {
                let step = flat(&dims[..3], &[batch, t, head]);
                let key = flat(&keys, &[batch, t, head * keys[2] / dims[2], 0]);
                for e in 0..dims[3] {
                    let at = flat(&dims, &[batch, t, head, e]);
                    let cell = |d: usize| flat(&states, &[batch, head, d, e]);
                    (0..keys[3]).for_each(|d| s[cell(d)] *= g[step].exp());
                    let seen: f64 = (0..keys[3]).map(|d| s[cell(d)] * k[key + d]).sum();
                    let change = (v[at] - seen) * beta[step];
                    (0..keys[3]).for_each(|d| s[cell(d)] += k[key + d] * change);
                    o[at] = scale * (0..keys[3]).map(|d| s[cell(d)] * q[key + d]).sum::<f64>();
                }
            }
        }
    }
    Ok(results(types, o, s))
}

pub(super) fn causal_conv1d(
    op: &CausalConv1d,
    x: &[Value],
    types: &[TensorType],
) -> Result<Vec<Value>, String> {
    let (u, weight) = (x[0].as_floats()?, x[1].as_floats()?);
    let mut rest = x[2..].iter();
    let bias = if op.bias { rest.next().map(Value::as_floats).transpose()? } else { None };
    let before = initial(rest.next(), &types[1])?;
    let (dims, states) = (x[0].shape().to_vec(), types[1].shape.to_vec());
    let (length, past, channels) = (dims[1], states[1], dims[2]);
    // Time counted from the oldest input of the state.
    let input = |batch: usize, t: usize, d: usize| {
        if t < past { before[flat(&states, &[batch, t, d])] } else { u[flat(&dims, &[batch, t - past, d])] }
    };
    let (mut y, mut after) = (Vec::with_capacity(u.len()), Vec::with_capacity(before.len()));
    for batch in 0..dims[0] {
        for t in 0..length {
            for d in 0..channels {
                let taps = (0..=past).map(|j| weight[d * (past + 1) + j] * input(batch, t + j, d));
                let sum = taps.sum::<f64>() + bias.map_or(0.0, |b| b[d]);
                y.push(if op.silu { silu(sum) } else { sum });
            }
        }
        for t in length..length + past {
            (0..channels).for_each(|d| after.push(input(batch, t, d)));
        }
    }
    Ok(results(types, y, after))
}
