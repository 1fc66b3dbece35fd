//! Padding and cutting at both ends of every axis.

use bytemuck::Pod;
use olivine_ir::Tensor;
use olivine_ir::op::{Pad, PadMode};

use super::{Dim, copy, with_size};
use crate::kernel::kernels;
use crate::operand::{Operand, Target, row_major};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    Pad => pad(op, x, out),
}

/// Elements one task writes at least.
const GRAIN: usize = 1 << 15;

/// Pads a packed operand.
pub(crate) fn pad(op: &Pad, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    with_size!(target.ty.dtype.size(), T => match op.mode {
        PadMode::Constant => constant::<T>(op, &x[0], target),
        _ => mapped::<T>(op, &x[0], target),
    });
}

/// Fills with the value, then copies what remains of the operand inside.
fn constant<T: Pod + Send + Sync>(op: &Pad, x: &Operand<'_>, target: &mut Target<'_>) {
    let value = Tensor::scalar_of(target.ty.dtype, op.value);
    let value: T = bytemuck::pod_read_unaligned(value.bytes());
    let shape = target.ty.shape;
    let (from, to) = (row_major(x.shape()), row_major(&shape));
    let out = target.elements::<T>();
    parallel::chunks(out, GRAIN, &|_, part| part.fill(value));

    let mut dims = [Dim::default(); 8];
    let (mut read, mut write) = (x.offset, 0);
    for (i, (before, after)) in op.pads.iter().enumerate() {
        let cut = |pad: i64| pad.min(0).unsigned_abs() as usize;
        // A cut may take more than the operand has when the other side is padded.
        let kept = x.shape()[i].saturating_sub(cut(*before)).saturating_sub(cut(*after));
        dims[i] = Dim { size: kept, from: from[i], to: to[i] as usize };
        read += cut(*before) * from[i] as usize;
        write += (*before).max(0) as usize * to[i] as usize;
    }
    if dims[..shape.rank()].iter().all(|d| d.size > 0) {
        copy(x.elements::<T>(), read, &dims[..shape.rank()], &mut out[write..]);
    }
}

/// The read position of each written one along an axis.
fn source(mode: PadMode, before: i64, size: usize, out: usize) -> Vec<usize> {
    let size = size as i64;
    scratch::collected((0..out).map(|i| {
        let p = i as i64 - before;
        let p = match mode {
            PadMode::Reflect if p < 0 => -p,
            PadMode::Reflect if p >= size => 2 * (size - 1) - p,
            PadMode::Wrap => p.rem_euclid(size.max(1)),
            _ => p,
        };
        p.clamp(0, (size - 1).max(0)) as usize
    }))
}

/// Reads every element through one table per axis.
fn mapped<T: Pod + Send + Sync>(op: &Pad, x: &Operand<'_>, target: &mut Target<'_>) {
    let src = x.slice::<T>();
    let (shape, from) = (target.ty.shape, row_major(x.shape()));
    let Some(last) = shape.rank().checked_sub(1) else {
        target.elements::<T>().copy_from_slice(src);
        return;
    };
    let tables: Vec<Vec<usize>> =
        (0..shape.rank()).map(|i| source(op.mode, op.pads[i].0, x.shape()[i], shape[i])).collect();
    let width = shape[last];
    let rows = GRAIN.div_ceil(width);
    // Where the last axis reads a run: positions that are inside the operand.
    let inside = op.pads[last].0.max(0) as usize..width.saturating_sub(op.pads[last].1.max(0) as usize);
    parallel::chunks(target.elements::<T>(), rows * width, &|task, part| {
        for (i, out) in part.chunks_mut(width).enumerate() {
            let mut index = task * rows + i;
            let mut start = 0;
            for axis in (0..last).rev() {
                start += tables[axis][index % shape[axis]] * from[axis] as usize;
                index /= shape[axis];
            }
            let (row, table) = (&src[start..], &tables[last]);
            if inside.is_empty() {
                out.iter_mut().zip(table).for_each(|(o, &i)| *o = row[i]);
                continue;
            }
            let first = table[inside.start];
            out[inside.clone()].copy_from_slice(&row[first..first + inside.len()]);
            for i in (0..inside.start).chain(inside.end..width) {
                out[i] = row[table[i]];
            }
        }
    });
}
