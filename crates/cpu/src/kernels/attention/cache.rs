//! The key-value cache: rows written at a run-time position.

use olivine_ir::DType;
use olivine_ir::op::{HeadLayout, KvAppend};

use crate::kernel::kernels;
use crate::kernels::movement::{copy_box, copy_strided, with_size};
use crate::operand::{Operand, OperandSource, Target, row_major};

kernels! { |op, x, out, call|
    KvAppend => kv_append(op, x, out),
}

/// The cache with rows at `position ..`, which may be another for each sequence; rows that fall outside on either side are
/// dropped.
pub(crate) fn kv_append(op: &KvAppend, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if let OperandSource::Bytes(_) = x[0].source {
        copy_strided(&x[0], target.bytes);
    }
    if target.ty.shape.has_zero() || x[1].shape().has_zero() {
        return;
    }
    let position = |sequence: usize| match x[2].ty.dtype {
        DType::I32 => i64::from(x[2].slice::<i32>()[sequence]),
        _ => x[2].slice::<i64>()[sequence],
    };
    let axis = match op.layout {
        HeadLayout::Bshd => 1,
        HeadLayout::Bhsd => 2,
    };
    if x[2].shape().is_empty() {
        return append(axis, position(0), x[1], target, 0);
    }
    let step = row_major(&target.ty.shape)[0] as usize;
    for sequence in 0..x[1].shape()[0] {
        let mut rows = x[1];
        rows.ty.shape = rows.ty.shape.shrunk(0, 1);
        rows.offset = (rows.offset as isize + sequence as isize * rows.strides[0]) as usize;
        append(axis, position(sequence), rows, target, sequence * step);
    }
}

/// Copies rows to `position ..` of a cache that begins at an element of the target.
fn append(axis: usize, position: i64, from: Operand<'_>, target: &mut Target<'_>, first_element: usize) {
    let (rows, capacity) = (from.shape()[axis] as i64, target.ty.shape[axis] as i64);
    let first = position.saturating_neg().clamp(0, rows);
    let end = capacity.saturating_sub(position).clamp(first, rows);
    if first == end {
        return;
    }
    let mut kept = from;
    kept.ty.shape = kept.ty.shape.shrunk(axis, (end - first) as usize);
    kept.offset = (kept.offset as isize + first as isize * kept.strides[axis]) as usize;
    let to = row_major(&target.ty.shape);
    let start = first_element + (position + first) as usize * to[axis] as usize;
    with_size!(target.ty.dtype.size(), T => copy_box::<T>(&kept, &to, &mut target.elements::<T>()[start..]));
}
