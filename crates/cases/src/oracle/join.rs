//! Joining, cutting, repeating and padding.

use olivine_ir::op::{Pad, PadMode, Repeat, Reverse, Roll, SliceScatter, Split};
use olivine_ir::{Tensor, TensorType};

use super::value::whole;

use super::Value;
use super::elementwise::{collect, read};
use super::value::{each, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    Concat => one(Ok(concat(op.axis, x, call.ty()))),
    SliceScatter => one(Ok(slice_scatter(op, x, call.ty()))),
    Split => Ok(split(op, &x[0], call.results)),
    Stack => one(Ok(stack(op.axis, x, call.ty()))),
    Tile => one(Ok(tile(&x[0], call.ty()))),
    Repeat => one(Ok(repeat(op, &x[0], call.ty()))),
    Reverse => one(Ok(reverse(op, &x[0]))),
    Roll => one(Ok(roll(op, &x[0]))),
    Pad => one(Ok(pad(op, &x[0], call.ty()))),
}

pub(super) fn concat(axis: usize, x: &[Value], ty: TensorType) -> Value {
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let mut from = at.to_vec();
        for part in x {
            if from[axis] < part.shape()[axis] {
                out.push(read(part, flat(part.shape(), &from)));
                return;
            }
            from[axis] -= part.shape()[axis];
        }
    });
    collect(ty, out)
}

pub(super) fn slice_scatter(op: &SliceScatter, x: &[Value], ty: TensorType) -> Value {
    let (start, part) = (whole(op.start) as usize, &x[1]);
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let mut from = at.to_vec();
        let inside = at[op.axis].checked_sub(start).filter(|i| *i < part.shape()[op.axis]);
        out.push(match inside {
            Some(i) => {
                from[op.axis] = i;
                read(part, flat(part.shape(), &from))
            }
            None => read(&x[0], flat(x[0].shape(), &from)),
        });
    });
    collect(ty, out)
}

pub(super) fn split(op: &Split, x: &Value, results: &[TensorType]) -> Vec<Value> {
    let mut begin = 0;
    let mut parts = Vec::new();
    for (ty, size) in results.iter().zip(&op.sizes) {
        parts.push(x.pick(*ty, |at| {
            let mut from = at.to_vec();
            from[op.axis] += begin;
            Some(flat(x.shape(), &from))
        }));
        begin += whole(*size) as usize;
    }
    parts
}

pub(super) fn stack(axis: usize, x: &[Value], ty: TensorType) -> Value {
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let mut from = at.to_vec();
        let which = from.remove(axis);
        out.push(read(&x[which], flat(x[which].shape(), &from)));
    });
    collect(ty, out)
}

pub(super) fn tile(x: &Value, ty: TensorType) -> Value {
    x.pick(ty, |at| {
        let from: Vec<usize> = at.iter().zip(x.shape().iter()).map(|(i, d)| i % d).collect();
        Some(flat(x.shape(), &from))
    })
}

pub(super) fn repeat(op: &Repeat, x: &Value, ty: TensorType) -> Value {
    x.pick(ty, |at| {
        let mut from = at.to_vec();
        from[op.axis] /= op.repeats;
        Some(flat(x.shape(), &from))
    })
}

pub(super) fn reverse(op: &Reverse, x: &Value) -> Value {
    x.pick(x.ty, |at| {
        let mut from = at.to_vec();
        for axis in &op.axes {
            from[*axis] = x.shape()[*axis] - 1 - from[*axis];
        }
        Some(flat(x.shape(), &from))
    })
}

pub(super) fn roll(op: &Roll, x: &Value) -> Value {
    let size = x.shape()[op.axis] as i64;
    x.pick(x.ty, |at| {
        let mut from = at.to_vec();
        from[op.axis] = (from[op.axis] as i64 - op.shift % size).rem_euclid(size) as usize;
        Some(flat(x.shape(), &from))
    })
}

/// Where a position outside `0..size` reads, if anywhere.
fn reads(mode: PadMode, i: i64, size: i64) -> Option<i64> {
    if (0..size).contains(&i) {
        return Some(i);
    }
    match mode {
        PadMode::Constant => None,
        PadMode::Edge => Some(i.clamp(0, size - 1)),
        PadMode::Wrap => Some(i.rem_euclid(size)),
        PadMode::Reflect => Some(if i < 0 { -i } else { 2 * (size - 1) - i }),
    }
}

pub(super) fn pad(op: &Pad, x: &Value, ty: TensorType) -> Value {
    let constant = read(&Value::of(&Tensor::scalar_of(ty.dtype, op.value)), 0);
    let mut out = Vec::with_capacity(ty.shape.numel());
    // The oracle's graphs have fixed sizes.
    let before: Vec<i64> = op.pads.iter().map(|p| p.0.value().unwrap_or(0)).collect();
    each(&ty.shape, |at| {
        let from: Option<Vec<usize>> = (0..at.len())
            .map(|a| reads(op.mode, at[a] as i64 - before[a], x.shape()[a] as i64).map(|i| i as usize))
            .collect();
        out.push(from.map_or(constant, |from| read(x, flat(x.shape(), &from))));
    });
    collect(ty, out)
}
