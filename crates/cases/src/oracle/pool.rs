//! Pools, window by window.

use olivine_ir::op::{AdaptivePool, GlobalPool, Pool, PoolKind};
use olivine_ir::{Shape, TensorType};

use super::value::{Number, each, flat, limits};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    Pool => pool(op, &x[0], call.results),
    GlobalPool => one(global(op, &x[0], call.ty())),
    AdaptivePool => one(adaptive(op, &x[0], call.ty())),
}

/// What a window holds: flat positions of real elements, and how many taps are within the padded extent.
struct Taps {
    real: Vec<usize>,
    padded: usize,
}

fn taps(op: &Pool, shape: &Shape, at: &[usize]) -> Taps {
    let mut out = Taps { real: Vec::new(), padded: 0 };
    let Ok(kernel) = Shape::new(&op.kernel) else { return out };
    each(&kernel, |k| {
        let mut from = vec![at[0], at[1]];
        let (mut inside, mut counted) = (true, true);
        for a in 0..k.len() {
            let size = shape[2 + a];
            let p = at[2 + a] * op.window.strides[a] + k[a] * op.window.dilations[a];
            let (before, after) = op.window.pads[a];
            counted &= p < size + before + after;
            inside &= p >= before && p < size + before;
            from.push(p.wrapping_sub(before));
        }
        out.padded += usize::from(counted);
        if inside {
            out.real.push(flat(shape, &from));
        }
    });
    out
}

/// First position of the largest; a NaN is larger than all.
fn largest<T: Number>(v: &[T], positions: &[usize], least: T) -> (T, i64) {
    let mut best = (least, -1i64);
    for &p in positions {
        let wins = best.1 < 0 || (!best.0.is_nan() && (v[p].is_nan() || v[p] > best.0));
        if wins {
            best = (v[p], p as i64);
        }
    }
    best
}

fn length(v: &[f64], positions: &[usize], p: usize) -> f64 {
    positions.iter().map(|i| v[*i].abs().powi(p as i32)).sum::<f64>().powf(1.0 / p as f64)
}

/// A window that counts nothing has the mean 0.
fn mean(v: &[f64], positions: &[usize], count: usize) -> f64 {
    if count == 0 {
        return 0.0;
    }
    positions.iter().map(|i| v[*i]).sum::<f64>() / count as f64
}

pub(super) fn pool(op: &Pool, x: &Value, results: &[TensorType]) -> Result<Vec<Value>, String> {
    let (shape, ty) = (*x.shape(), results[0]);
    let mut positions = Vec::with_capacity(ty.shape.numel());
    let values = match &x.data {
        Numbers::Floats(v) => {
            let mut out = Vec::with_capacity(ty.shape.numel());
            each(&ty.shape, |at| {
                let t = taps(op, &shape, at);
                out.push(match op.kind {
                    PoolKind::Max => {
                        let (value, position) = largest(v, &t.real, f64::NEG_INFINITY);
                        positions.push(position);
                        value
                    }
                    PoolKind::Average => {
                        mean(v, &t.real, if op.count_include_pad { t.padded } else { t.real.len() })
                    }
                    PoolKind::Lp => length(v, &t.real, op.p),
                });
            });
            Value::floats(ty, out)
        }
        Numbers::Ints(v) => {
            let mut out = Vec::with_capacity(ty.shape.numel());
            each(&ty.shape, |at| {
                let (value, position) = largest(v, &taps(op, &shape, at).real, limits(ty.dtype).0);
                positions.push(position);
                out.push(value);
            });
            Value::ints(ty, out)
        }
    };
    let mut all = vec![values];
    if op.indices {
        all.push(Value::ints(results[1], positions));
    }
    Ok(all)
}

/// One number from a box of positions of a channel.
fn boxed(v: &[f64], kind: PoolKind, p: usize, shape: &Shape, nc: &[usize], spans: &[(usize, usize)]) -> f64 {
    let sizes: Vec<usize> = spans.iter().map(|(a, b)| b - a).collect();
    let mut positions = Vec::new();
    if let Ok(sizes) = Shape::new(&sizes) {
        each(&sizes, |at| {
            let mut from = nc.to_vec();
            from.extend(at.iter().zip(spans).map(|(i, (begin, _))| begin + i));
            positions.push(flat(shape, &from));
        });
    }
    match kind {
        PoolKind::Max => largest(v, &positions, f64::NEG_INFINITY).0,
        PoolKind::Average => mean(v, &positions, positions.len()),
        PoolKind::Lp => length(v, &positions, p),
    }
}

pub(super) fn global(op: &GlobalPool, x: &Value, ty: TensorType) -> Result<Value, String> {
    let (v, shape) = (x.as_floats()?, *x.shape());
    let spans: Vec<(usize, usize)> = shape[2..].iter().map(|d| (0, *d)).collect();
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| out.push(boxed(v, op.kind, op.p, &shape, &at[..2], &spans)));
    Ok(Value::floats(ty, out))
}

pub(super) fn adaptive(op: &AdaptivePool, x: &Value, ty: TensorType) -> Result<Value, String> {
    let (v, shape) = (x.as_floats()?, *x.shape());
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let span = |a: usize| {
            let (size, n, i) = (shape[2 + a], op.output[a], at[2 + a]);
            (i * size / n, ((i + 1) * size).div_ceil(n))
        };
        let spans: Vec<(usize, usize)> = (0..op.output.len()).map(span).collect();
        out.push(boxed(v, op.kind, 2, &shape, &at[..2], &spans));
    });
    Ok(Value::floats(ty, out))
}
