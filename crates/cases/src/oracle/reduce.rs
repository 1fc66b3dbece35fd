//! Reductions, softmax and positions of extremes.

use olivine_ir::op::{ArgReduce, ArgReduceKind, Reduce, ReduceKind};
use olivine_ir::{DType, TensorType};

use super::value::{Number, around, each, flat, limits};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    Reduce => one(reduce(op, x, call.ty())),
    Softmax => one(softmax(op.axis, false, x)),
    LogSoftmax => one(softmax(op.axis, true, x)),
    ArgReduce => one(arg_reduce(op, x, call.ty())),
}

/// The elements that fall together, for each position of the result.
fn groups<T: Copy>(v: &[T], x: &Value, axes: &[usize], results: usize) -> Vec<Vec<T>> {
    let shape = x.shape();
    let kept: Vec<usize> = (0..shape.rank()).filter(|a| !axes.contains(a)).collect();
    let dims: Vec<usize> = kept.iter().map(|a| shape[*a]).collect();
    let mut out = vec![Vec::new(); results];
    let mut i = 0;
    each(shape, |at| {
        let place: Vec<usize> = kept.iter().map(|a| at[*a]).collect();
        out[flat(&dims, &place)].push(v[i]);
        i += 1;
    });
    out
}

pub(super) fn reduce(op: &Reduce, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let n = ty.shape.numel();
    Ok(match &x[0].data {
        Numbers::Floats(v) if op.axes.len() == x[0].shape().rank() => {
            Value::floats(ty, vec![float(op.kind, v)?])
        }
        Numbers::Floats(v) => {
            let out = groups(v, &x[0], &op.axes, n);
            let out = out.iter().map(|g| float(op.kind, g));
            Value::floats(ty, out.collect::<Result<_, _>>()?)
        }
        Numbers::Ints(v) => {
            let out = groups(v, &x[0], &op.axes, n);
            let out = out.iter().map(|g| int(op.kind, ty.dtype, g));
            Value::ints(ty, out.collect::<Result<_, _>>()?)
        }
    })
}

/// A sum that carries what each addition loses (Neumaier), so that long sums stay exact to f64.
fn exact_sum(numbers: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0f64);
    for x in numbers {
        let t = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - t) + x } else { (x - t) + sum };
        sum = t;
    }
    if lost.is_finite() { sum + lost } else { sum }
}

fn float(kind: ReduceKind, v: &[f64]) -> Result<f64, String> {
    let sum = |f: fn(f64) -> f64| exact_sum(v.iter().map(|x| f(*x)));
    Ok(match kind {
        ReduceKind::Sum => sum(|x| x),
        ReduceKind::Mean => sum(|x| x) / v.len() as f64,
        ReduceKind::Max => v.iter().fold(f64::NEG_INFINITY, |m, x| m.extreme(*x, true)),
        ReduceKind::Min => v.iter().fold(f64::INFINITY, |m, x| m.extreme(*x, false)),
        ReduceKind::Prod => v.iter().product(),
        ReduceKind::L1 => sum(f64::abs),
        ReduceKind::L2 => sum(|x| x * x).sqrt(),
        ReduceKind::SumSquare => sum(|x| x * x),
        ReduceKind::LogSum => sum(|x| x).ln(),
        ReduceKind::LogSumExp => log_sum_exp(v),
        ReduceKind::Any | ReduceKind::All => return Err("not of floats".into()),
    })
}

fn log_sum_exp(v: &[f64]) -> f64 {
    let top = v.iter().fold(f64::NEG_INFINITY, |m, x| m.extreme(*x, true));
    if top.is_infinite() { top } else { top + exact_sum(v.iter().map(|x| (x - top).exp())).ln() }
}

fn int(kind: ReduceKind, dtype: DType, v: &[i64]) -> Result<i64, String> {
    let (low, high) = limits(dtype);
    Ok(match kind {
        ReduceKind::Sum => v.iter().fold(0, |s, x| s.wrapping_add(*x)),
        ReduceKind::Max => v.iter().fold(low, |m, x| m.max(*x)),
        ReduceKind::Min => v.iter().fold(high, |m, x| m.min(*x)),
        ReduceKind::Prod => v.iter().fold(1, |s, x| s.wrapping_mul(*x)),
        ReduceKind::L1 => v.iter().fold(0, |s, x| s.wrapping_add(x.wrapping_abs())),
        ReduceKind::SumSquare => v.iter().fold(0, |s, x| s.wrapping_add(x.wrapping_mul(*x))),
        ReduceKind::Any => i64::from(v.iter().any(|x| *x != 0)),
        ReduceKind::All => i64::from(v.iter().all(|x| *x != 0)),
        _ => return Err("not of integers".into()),
    })
}

/// Each line along an axis replaced by what `body` makes of it.
pub(super) fn lines<T: Copy + Default>(
    v: &[T],
    x: &Value,
    axis: usize,
    mut body: impl FnMut(&[T]) -> Vec<T>,
) -> Vec<T> {
    let (outer, size, inner) = around(x.shape(), axis);
    let mut out = vec![T::default(); v.len()];
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| (o * size + k) * inner + i;
            let line: Vec<T> = (0..size).map(|k| v[at(k)]).collect();
            for (k, y) in body(&line).into_iter().enumerate() {
                out[at(k)] = y;
            }
        }
    }
    out
}

pub(super) fn softmax(axis: usize, log: bool, x: &[Value]) -> Result<Value, String> {
    let out = lines(x[0].as_floats()?, &x[0], axis, |line| {
        let top = line.iter().fold(f64::NEG_INFINITY, |m, x| m.extreme(*x, true));
        // ∞ − ∞ is NaN: a line whose largest is infinite has no softmax.
        let total = exact_sum(line.iter().map(|x| (x - top).exp()));
        line.iter().map(|x| if log { (x - top) - total.ln() } else { (x - top).exp() / total }).collect()
    });
    Ok(Value::floats(x[0].ty, out))
}

pub(super) fn arg_reduce(op: &ArgReduce, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let largest = op.kind == ArgReduceKind::Max;
    fn best<T: Number>(line: &[T], largest: bool, last: bool) -> i64 {
        let mut winner = 0;
        for (i, y) in line.iter().enumerate().skip(1) {
            let w = line[winner];
            let better = match (y.is_nan(), w.is_nan()) {
                (true, true) => last,
                (true, false) => true,
                (false, true) => false,
                (false, false) if *y == w => last,
                (false, false) => {
                    if largest {
                        *y > w
                    } else {
                        *y < w
                    }
                }
            };
            if better {
                winner = i;
            }
        }
        winner as i64
    }
    let (outer, size, inner) = around(x[0].shape(), op.axis);
    fn all<T: Number>(v: &[T], dims: (usize, usize, usize), f: impl Fn(&[T]) -> i64) -> Vec<i64> {
        let (outer, size, inner) = dims;
        let line = |o: usize, i: usize| (0..size).map(|k| v[(o * size + k) * inner + i]).collect::<Vec<T>>();
        (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| f(&line(o, i))).collect()
    }
    let dims = (outer, size, inner);
    Ok(Value::ints(
        ty,
        match &x[0].data {
            Numbers::Floats(v) => all(v, dims, |line| best(line, largest, op.last)),
            Numbers::Ints(v) => all(v, dims, |line| best(line, largest, op.last)),
        },
    ))
}
