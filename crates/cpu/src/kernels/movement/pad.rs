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
    Pad => pad(op, call.numbers, x, out),
}

/// Elements one task writes at least.
const GRAIN: usize = 1 << 15;

/// Elements added at both ends of an axis; negative where they are cut.
#[derive(Clone, Copy, Default)]
struct Ends {
    before: i64,
    after: i64,
}

impl Ends {
    /// Of an axis of `size` elements that becomes `out`, with what is added and what is cut before it.
    fn new([added, cut]: [usize; 2], size: usize, out: usize) -> Self {
        let before = added as i64 - cut as i64;
        Ends { before, after: (out as i64 - size as i64).saturating_sub(before) }
    }

    /// Elements added.
    fn added(self) -> [usize; 2] {
        [self.before, self.after].map(|n| n.max(0) as usize)
    }

    /// Elements cut.
    fn cut(self) -> [usize; 2] {
        [self.before, self.after].map(|n| n.min(0).unsigned_abs() as usize)
    }
}

/// Pads a packed operand. `numbers` are what is added and what is cut before every axis.
pub(crate) fn pad(op: &Pad, numbers: &[usize], x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let mut ends = [Ends::default(); 8];
    let (from, to) = (x[0].shape(), target.ty.shape);
    for (i, (ends, of)) in ends.iter_mut().zip(numbers.chunks_exact(2)).enumerate() {
        *ends = Ends::new([of[0], of[1]], from[i], to[i]);
    }
    let ends = &ends[..to.rank()];
    with_size!(target.ty.dtype.size(), T => match op.mode {
        PadMode::Constant => constant::<T>(op.value, ends, &x[0], target),
        _ => mapped::<T>(op.mode, ends, &x[0], target),
    });
}

/// Fills with the value, then copies what remains of the operand inside.
fn constant<T: Pod + Send + Sync>(value: f64, ends: &[Ends], x: &Operand<'_>, target: &mut Target<'_>) {
    let value = Tensor::scalar_of(target.ty.dtype, value);
    let value: T = bytemuck::pod_read_unaligned(value.bytes());
    let shape = target.ty.shape;
    let (from, to) = (row_major(x.shape()), row_major(&shape));
    let out = target.elements::<T>();
    parallel::chunks(out, GRAIN, &|_, part| part.fill(value));

    let mut dims = [Dim::default(); 8];
    let (mut read, mut write) = (x.offset, 0);
    for (i, ends) in ends.iter().enumerate() {
        let cut = ends.cut();
        // A cut may take more than the operand has when the other side is padded.
        let size = x.shape()[i].saturating_sub(cut[0]).saturating_sub(cut[1]);
        if size == 0 {
            return;
        }
        dims[i] = Dim { size, from: from[i], to: to[i] as usize };
        read += cut[0] * from[i] as usize;
        write += ends.added()[0] * to[i] as usize;
    }
    copy(x.elements::<T>(), read, &dims[..shape.rank()], &mut out[write..]);
}

/// The read position of each written one along an axis.
fn source(mode: PadMode, before: i64, size: usize, out: usize) -> Vec<usize> {
    let size = size as i64;
    scratch::collected((0..out).map(|i| {
        let p = (i as i64).saturating_sub(before);
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
fn mapped<T: Pod + Send + Sync>(mode: PadMode, ends: &[Ends], x: &Operand<'_>, target: &mut Target<'_>) {
    let src = x.slice::<T>();
    let (shape, from) = (target.ty.shape, row_major(x.shape()));
    let Some(last) = shape.rank().checked_sub(1) else {
        target.elements::<T>().copy_from_slice(src);
        return;
    };
    let tables: Vec<Vec<usize>> =
        (0..shape.rank()).map(|i| source(mode, ends[i].before, x.shape()[i], shape[i])).collect();
    let width = shape[last];
    let rows = GRAIN.div_ceil(width);
    // Where the last axis reads a run: positions that are inside the operand.
    let [before, after] = ends[last].added();
    let inside = before..width.saturating_sub(after);
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
