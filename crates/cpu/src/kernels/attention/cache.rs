//! The key-value cache: rows written at a run-time position.

use olivine_ir::op::{HeadLayout, KvAppend};

use super::blocks;
use super::pages::{Pages, integer};
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
    let position = |sequence: usize| integer(&x[2], x[2].offset + sequence);
    let axis = match op.layout {
        HeadLayout::Bshd => 1,
        HeadLayout::Bhsd => 2,
    };
    let single = x[2].shape().is_empty();
    if single && !op.pages {
        return append(axis, position(0), x[1], target, 0);
    }
    let step = row_major(&target.ty.shape)[0] as usize;
    let pages = op.pages.then(|| Pages::new(x[3], target.ty.shape[0], target.ty.shape[axis]));
    for sequence in 0..x[1].shape()[0] {
        let rows = narrowed(&x[1], 0, sequence, 1);
        let first = position(if single { 0 } else { sequence });
        let Some(pages) = &pages else {
            append(axis, first, rows, target, sequence * step);
            continue;
        };
        // Of the rows those that are in the sequence's pages.
        let (count, room) = (rows.shape()[axis] as i64, pages.keys() as i64);
        let from = first.saturating_neg().clamp(0, count);
        let to = room.saturating_sub(first).clamp(from, count);
        for run in pages.runs(sequence, (first + from) as usize..(first + to) as usize) {
            if pages.has(run.page) {
                let part = narrowed(&rows, axis, from as usize + run.first, run.count);
                append(axis, run.position as i64, part, target, run.page as usize * step);
            }
        }
    }
}

/// A range of an operand along an axis.
fn narrowed<'a>(x: &Operand<'a>, axis: usize, first: usize, count: usize) -> Operand<'a> {
    let mut part = *x;
    part.ty.shape = part.ty.shape.shrunk(axis, count);
    part.offset = (part.offset as isize + first as isize * part.strides[axis]) as usize;
    part
}

/// Copies rows to `position ..` of a cache that begins at an element of the target.
fn append(axis: usize, position: i64, from: Operand<'_>, target: &mut Target<'_>, first_element: usize) {
    let (rows, capacity) = (from.shape()[axis] as i64, target.ty.shape[axis] as i64);
    let first = position.saturating_neg().clamp(0, rows);
    let end = capacity.saturating_sub(position).clamp(first, rows);
    if first == end {
        return;
    }
    let kept = narrowed(&from, axis, first as usize, (end - first) as usize);
    let to = row_major(&target.ty.shape);
    let start = first_element + (position + first) as usize * to[axis] as usize;
    if target.ty.packed.is_some() {
        return blocks::append(&kept, target, start);
    }
    with_size!(target.ty.dtype.size(), T => copy_box::<T>(&kept, &to, &mut target.elements::<T>()[start..]));
}
