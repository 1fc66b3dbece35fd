//! Scans and orders along one axis.

use std::cmp::Ordering;

use olivine_ir::TensorType;
use olivine_ir::op::{Cumulative, CumulativeKind, TopK};

use super::reduce::lines;
use super::value::{Number, around, limits};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    Cumulative => one(cumulative(op, x)),
    TopK => top_k(op, x, call.results),
    Sort => one(sort(op.axis, op.descending, x)),
    ArgSort => one(argsort(op.axis, op.descending, x, call.ty())),
}

pub(super) fn cumulative(op: &Cumulative, x: &[Value]) -> Result<Value, String> {
    fn scan<T: Number>(op: &Cumulative, line: &[T], least: T) -> Vec<T> {
        let mut sum = match op.kind {
            CumulativeKind::Sum => T::default(),
            CumulativeKind::Prod => T::ONE,
            CumulativeKind::Max => least,
        };
        let mut out = vec![sum; line.len()];
        for step in 0..line.len() {
            let i = if op.reverse { line.len() - 1 - step } else { step };
            let before = sum;
            sum = match op.kind {
                CumulativeKind::Sum => sum.plus(line[i]),
                CumulativeKind::Prod => sum.times(line[i]),
                CumulativeKind::Max => sum.extreme(line[i], true),
            };
            out[i] = if op.exclusive { before } else { sum };
        }
        out
    }
    let (x, ty) = (&x[0], x[0].ty);
    Ok(match &x.data {
        Numbers::Floats(v) => {
            Value::floats(ty, lines(v, x, op.axis, |line| scan(op, line, f64::NEG_INFINITY)))
        }
        Numbers::Ints(v) => Value::ints(ty, lines(v, x, op.axis, |line| scan(op, line, limits(ty.dtype).0))),
    })
}

/// Positions in order: by value with NaN the largest, equals by position.
fn order<T: Number>(line: &[T], descending: bool) -> Vec<usize> {
    let by_value = |a: T, b: T| match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
    };
    let mut positions: Vec<usize> = (0..line.len()).collect();
    positions.sort_by(|&i, &j| {
        let values = by_value(line[i], line[j]);
        if descending { values.reverse() } else { values }
    });
    positions
}

pub(super) fn sort(axis: usize, descending: bool, x: &[Value]) -> Result<Value, String> {
    let (x, ty) = (&x[0], x[0].ty);
    fn sorted<T: Number>(line: &[T], descending: bool) -> Vec<T> {
        order(line, descending).into_iter().map(|i| line[i]).collect()
    }
    Ok(match &x.data {
        Numbers::Floats(v) => Value::floats(ty, lines(v, x, axis, |line| sorted(line, descending))),
        Numbers::Ints(v) => Value::ints(ty, lines(v, x, axis, |line| sorted(line, descending))),
    })
}

/// The order of every line along an axis, as `[outer][inner]` lists of positions.
fn orders(x: &Value, axis: usize, descending: bool) -> Vec<Vec<usize>> {
    let (outer, size, inner) = around(x.shape(), axis);
    let at = |o: usize, i: usize, k: usize| (o * size + k) * inner + i;
    let mut out = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            out.push(match &x.data {
                Numbers::Floats(v) => {
                    order(&(0..size).map(|k| v[at(o, i, k)]).collect::<Vec<_>>(), descending)
                }
                Numbers::Ints(v) => order(&(0..size).map(|k| v[at(o, i, k)]).collect::<Vec<_>>(), descending),
            });
        }
    }
    out
}

/// The first `take` of every order, laid out with the axis in its place.
fn laid_out(orders: &[Vec<usize>], inner: usize, take: usize) -> Vec<i64> {
    let outer = orders.len().checked_div(inner).unwrap_or(0);
    let mut out = Vec::with_capacity(orders.len() * take);
    for o in 0..outer {
        for k in 0..take {
            for i in 0..inner {
                out.push(orders[o * inner + i][k] as i64);
            }
        }
    }
    out
}

pub(super) fn argsort(axis: usize, descending: bool, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (_, size, inner) = around(x[0].shape(), axis);
    Ok(Value::ints(ty, laid_out(&orders(&x[0], axis, descending), inner, size)))
}

pub(super) fn top_k(op: &TopK, x: &[Value], results: &[TensorType]) -> Result<Vec<Value>, String> {
    let (_, size, inner) = around(x[0].shape(), op.axis);
    let positions = laid_out(&orders(&x[0], op.axis, op.largest), inner, op.k);
    let mut next = 0;
    let values = x[0].pick(results[0], |_| {
        let (o, i) = (next / (op.k * inner), next % inner);
        next += 1;
        Some((o * size + positions[next - 1] as usize) * inner + i)
    });
    Ok(vec![values, Value::ints(results[1], positions)])
}
