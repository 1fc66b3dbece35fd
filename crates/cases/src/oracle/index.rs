//! Reading and writing at computed positions: reads clamp, writes outside are dropped.

use olivine_ir::op::{ScatterElements, ScatterMode, ScatterNd};
use olivine_ir::{Shape, TensorType};

use super::value::{Number, each, flat};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    Gather => one(gather(op.axis, x, call.ty())),
    GatherElements => one(gather_elements(op.axis, x, call.ty())),
    GatherNd => one(gather_nd(op.batch_dims, x, call.ty())),
    ScatterElements => one(scatter_elements(op, x)),
    ScatterNd => one(scatter_nd(op, x)),
}

/// An index from the front, whatever its range.
fn from_front(index: i64, size: usize) -> i64 {
    if index < 0 { index.saturating_add(size as i64) } else { index }
}

pub(super) fn clamped(index: i64, size: usize) -> usize {
    from_front(index, size).clamp(0, size as i64 - 1) as usize
}

fn within(index: i64, size: usize) -> Option<usize> {
    let i = from_front(index, size);
    (0..size as i64).contains(&i).then_some(i as usize)
}

pub(super) fn gather(axis: usize, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (shape, indices, rank) = (*x[0].shape(), x[1].as_ints()?, x[1].shape().rank());
    Ok(x[0].pick(ty, |at| {
        let index = indices[flat(x[1].shape(), &at[axis..axis + rank])];
        let mut from = at[..axis].to_vec();
        from.push(clamped(index, shape[axis]));
        from.extend(&at[axis + rank..]);
        Some(flat(&shape, &from))
    }))
}

pub(super) fn gather_elements(axis: usize, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (shape, indices) = (*x[0].shape(), x[1].as_ints()?);
    Ok(x[0].pick(ty, |at| {
        let mut from = at.to_vec();
        from[axis] = clamped(indices[flat(&ty.shape, at)], shape[axis]);
        Some(flat(&shape, &from))
    }))
}

pub(super) fn gather_nd(batch: usize, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (shape, indices) = (*x[0].shape(), x[1].as_ints()?);
    let outer = x[1].shape().rank() - 1;
    let tuple = x[1].shape()[outer];
    Ok(x[0].pick(ty, |at| {
        let first = flat(&x[1].shape()[..outer], &at[..outer]) * tuple;
        let mut from = at[..batch].to_vec();
        for (i, index) in indices[first..first + tuple].iter().enumerate() {
            from.push(clamped(*index, shape[batch + i]));
        }
        from.extend(&at[outer..]);
        Some(flat(&shape, &from))
    }))
}

/// Applies updates in their order; `to` names the element each one meets.
fn scatter<T: Number>(
    x: &[T],
    updates: &[T],
    shape: &Shape,
    mode: ScatterMode,
    mut to: impl FnMut(&[usize]) -> Option<usize>,
) -> Vec<T> {
    let mut out = x.to_vec();
    let mut next = 0;
    each(shape, |at| {
        let update = updates[next];
        next += 1;
        if let Some(i) = to(at) {
            out[i] = match mode {
                ScatterMode::Replace => update,
                ScatterMode::Add => out[i].plus(update),
                ScatterMode::Mul => out[i].times(update),
                ScatterMode::Max => out[i].extreme(update, true),
                ScatterMode::Min => out[i].extreme(update, false),
            };
        }
    });
    out
}

fn scattered(
    x: &[Value],
    mode: ScatterMode,
    to: impl FnMut(&[usize]) -> Option<usize>,
) -> Result<Value, String> {
    let shape = x[2].shape();
    match (&x[0].data, &x[2].data) {
        (Numbers::Floats(a), Numbers::Floats(u)) => {
            Ok(Value::floats(x[0].ty, scatter(a, u, shape, mode, to)))
        }
        (Numbers::Ints(a), Numbers::Ints(u)) => Ok(Value::ints(x[0].ty, scatter(a, u, shape, mode, to))),
        _ => Err("updates of another kind".into()),
    }
}

pub(super) fn scatter_elements(op: &ScatterElements, x: &[Value]) -> Result<Value, String> {
    let (shape, indices) = (*x[0].shape(), x[1].as_ints()?);
    scattered(x, op.mode, |at| {
        let mut there = at.to_vec();
        there[op.axis] = within(indices[flat(x[1].shape(), at)], shape[op.axis])?;
        Some(flat(&shape, &there))
    })
}

pub(super) fn scatter_nd(op: &ScatterNd, x: &[Value]) -> Result<Value, String> {
    let (shape, indices) = (*x[0].shape(), x[1].as_ints()?);
    let outer = x[1].shape().rank() - 1;
    let tuple = x[1].shape()[outer];
    scattered(x, op.mode, |at| {
        let first = flat(&x[1].shape()[..outer], &at[..outer]) * tuple;
        let mut there = Vec::with_capacity(shape.rank());
        for (i, index) in indices[first..first + tuple].iter().enumerate() {
            there.push(within(*index, shape[i])?);
        }
        there.extend(&at[outer..]);
        Some(flat(&shape, &there))
    })
}
