//! Tensors made from a rule.

use olivine_ir::TensorType;
use olivine_ir::op::{OneHot, Range, TriPart, Trilu};

use super::value::whole;

use super::Value;
use super::elementwise::{Scalar, read};
use super::value::{each, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    OneHot => one(one_hot(op, x, call.ty())),
    Trilu => one(Ok(trilu(op, &x[0]))),
    Range => one(Ok(range(op, call.ty()))),
    Fill => one(Ok(x[0].pick(call.ty(), |_| Some(0)))),
    NonZero => Ok(nonzero(&x[0], call.results)),
}

pub(super) fn one_hot(op: &OneHot, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let indices = x[0].as_ints()?;
    Ok(x[1].pick(ty, |at| {
        let mut from = at.to_vec();
        let place = from.remove(op.axis) as i64;
        let index = indices[flat(x[0].shape(), &from)];
        let index = if index < 0 { index.saturating_add(op.depth as i64) } else { index };
        Some(usize::from(index == place))
    }))
}

pub(super) fn trilu(op: &Trilu, x: &Value) -> Value {
    let shape = *x.shape();
    x.pick(x.ty, |at| {
        let (row, column) = (at[at.len() - 2] as i128, at[at.len() - 1] as i128);
        let above = column - row - i128::from(op.diagonal);
        let stays = if op.part == TriPart::Upper { above >= 0 } else { above <= 0 };
        stays.then(|| flat(&shape, at))
    })
}

pub(super) fn range(op: &Range, ty: TensorType) -> Value {
    if ty.dtype.is_float() {
        Value::floats(ty, (0..whole(op.count) as usize).map(|i| op.start + i as f64 * op.step).collect())
    } else {
        let at = |i: usize| (op.start as i64).wrapping_add((op.step as i64).wrapping_mul(i as i64));
        Value::ints(ty, (0..whole(op.count) as usize).map(at).collect())
    }
}

pub(super) fn nonzero(x: &Value, results: &[TensorType]) -> Vec<Value> {
    let n = x.len();
    let mut positions = vec![-1i64; x.shape().rank() * n];
    let (mut count, mut i) = (0, 0);
    each(x.shape(), |at| {
        let is_zero = match read(x, i) {
            Scalar::F(v) => v == 0.0,
            Scalar::I(v) => v == 0,
        };
        i += 1;
        if !is_zero {
            for (axis, p) in at.iter().enumerate() {
                positions[axis * n + count] = *p as i64;
            }
            count += 1;
        }
    });
    vec![Value::ints(results[0], positions), Value::ints(results[1], vec![count as i64])]
}
