//! Operations that rename positions.

use olivine_ir::op::{DepthMode, DepthToSpace, Slice, SpaceToDepth, Transpose, Unfold, View};
use olivine_ir::{Shape, TensorType};

use super::value::whole;

use super::Value;
use super::value::{broadcast_flat, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    Reshape => one(Ok(Value { ty: call.ty(), data: x[0].data.clone() })),
    Transpose => one(Ok(transpose(op, &x[0], call.ty()))),
    Slice => one(Ok(slice(op, &x[0], call.ty()))),
    Expand => one(Ok(expand(&x[0], call.ty()))),
    View => one(Ok(view(op, &x[0], call.ty()))),
    DepthToSpace => one(Ok(depth_to_space(op, &x[0], call.ty()))),
    SpaceToDepth => one(Ok(space_to_depth(op, &x[0], call.ty()))),
    Unfold => one(Ok(unfold(op, &x[0], call.ty()))),
}

pub(super) fn transpose(op: &Transpose, x: &Value, ty: TensorType) -> Value {
    let shape = *x.shape();
    let mut from = vec![0; shape.rank()];
    x.pick(ty, |at| {
        for (i, axis) in op.perm.iter().enumerate() {
            from[*axis] = at[i];
        }
        Some(flat(&shape, &from))
    })
}

/// The positions a slice visits on an axis, by walking; ONNX clamps a start before the axis to its first element.
fn visited(size: usize, start: i64, end: i64, step: i64) -> Vec<usize> {
    let size = size as i64;
    let from_front = |p: i64| if p < 0 { p.saturating_add(size) } else { p };
    let (mut i, end) = if step > 0 {
        (from_front(start).max(0), from_front(end).min(size))
    } else {
        (from_front(start).min(size - 1).max(0), from_front(end).max(-1))
    };
    let mut out = Vec::new();
    while if step > 0 { i < end } else { i > end } {
        if (0..size).contains(&i) {
            out.push(i as usize);
        }
        i = i.saturating_add(step);
    }
    out
}

pub(super) fn slice(op: &Slice, x: &Value, ty: TensorType) -> Value {
    let shape = *x.shape();
    let mut axes: Vec<Vec<usize>> = shape.iter().map(|d| (0..*d).collect()).collect();
    for (i, axis) in op.axes.iter().enumerate() {
        axes[*axis] = visited(shape[*axis], whole(op.starts[i]), whole(op.ends[i]), op.steps[i]);
    }
    x.pick(ty, |at| {
        let from: Vec<usize> = at.iter().zip(&axes).map(|(i, axis)| axis[*i]).collect();
        Some(flat(&shape, &from))
    })
}

pub(super) fn expand(x: &Value, ty: TensorType) -> Value {
    let shape = *x.shape();
    x.pick(ty, |at| Some(broadcast_flat(&shape, at)))
}

pub(super) fn view(op: &View, x: &Value, ty: TensorType) -> Value {
    x.pick(ty, |at| {
        let moved: i64 = at.iter().zip(&op.strides).map(|(i, s)| *i as i64 * whole(*s)).sum();
        Some((whole(op.offset) + moved) as usize)
    })
}

/// Element (n, c, h, w) of the result comes from one channel block of (h / block, w / block).
pub(super) fn depth_to_space(op: &DepthToSpace, x: &Value, ty: TensorType) -> Value {
    let (shape, block, channels) = (*x.shape(), op.block, ty.shape[1]);
    x.pick(ty, |at| {
        let (row, column) = (at[2] % block, at[3] % block);
        let channel = match op.mode {
            DepthMode::Dcr => (row * block + column) * channels + at[1],
            DepthMode::Crd => (at[1] * block + row) * block + column,
        };
        Some(flat(&shape, &[at[0], channel, at[2] / block, at[3] / block]))
    })
}

pub(super) fn space_to_depth(op: &SpaceToDepth, x: &Value, ty: TensorType) -> Value {
    let (shape, block) = (*x.shape(), op.block);
    x.pick(ty, |at| {
        let (spot, channel) = (at[1] / shape[1], at[1] % shape[1]);
        let (row, column) = (spot / block, spot % block);
        Some(flat(&shape, &[at[0], channel, at[2] * block + row, at[3] * block + column]))
    })
}

pub(super) fn unfold(op: &Unfold, x: &Value, ty: TensorType) -> Value {
    let shape: Shape = *x.shape();
    x.pick(ty, |at| {
        let mut from = at[..shape.rank()].to_vec();
        from[op.axis] = at[op.axis] * op.step + at[shape.rank()];
        Some(flat(&shape, &from))
    })
}
