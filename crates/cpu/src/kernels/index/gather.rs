//! Reads at computed positions.

use bytemuck::Pod;
use olivine_ir::op::{Gather, GatherElements, GatherNd};

use super::Indices;
use crate::kernel::kernels;
use crate::kernels::movement::with_size;
use crate::operand::{Fault, Operand, Target, row_major};
use crate::parallel;

kernels! { |op, x, out, call|
    Gather => gather(op, x, out, call.checked)?,
    GatherElements => gather_elements(op, x, out, call.checked)?,
    GatherNd => gather_nd(op, x, out, call.checked)?,
}

/// Elements one task writes at least.
const GRAIN: usize = 1 << 15;

/// Fills rows of `width` elements, each by copying the row of `src` that `start` names.
fn copy_rows<T: Pod + Send + Sync>(
    src: &[T],
    width: usize,
    out: &mut [T],
    start: impl Fn(usize) -> usize + Sync,
) {
    if out.is_empty() {
        return;
    }
    let rows = GRAIN.div_ceil(width);
    parallel::chunks(out, rows * width, &|task, part| {
        let first = task * rows;
        if width == 1 {
            for (i, o) in part.iter_mut().enumerate() {
                *o = src[start(first + i)];
            }
        } else {
            for (i, o) in part.chunks_mut(width).enumerate() {
                let at = start(first + i);
                o.copy_from_slice(&src[at..at + width]);
            }
        }
    });
}

/// Whole slices along an axis.
pub(crate) fn gather(
    op: &Gather,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let (shape, indices) = (*x[0].shape(), Indices::new(&x[1]));
    let (size, count) = (shape[op.axis], indices.len());
    if checked {
        indices.check(|_| size)?;
    }
    let inner: usize = shape[op.axis + 1..].iter().product();
    for target in out {
        with_size!(x[0].ty.dtype.size(), T => {
            copy_rows(x[0].slice::<T>(), inner, target.elements::<T>(), |row| {
                (row / count * size + indices.clamped(row % count, size)) * inner
            });
        });
    }
    Ok(())
}

/// Single elements along an axis.
pub(crate) fn gather_elements(
    op: &GatherElements,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let (shape, indices) = (*x[0].shape(), Indices::new(&x[1]));
    let size = shape[op.axis];
    if checked {
        indices.check(|_| size)?;
    }
    for target in out.iter_mut().filter(|t| !t.ty.shape.has_zero()) {
        let (dims, strides) = (target.ty.shape, row_major(&shape));
        let last = dims.rank() - 1;
        let width = dims[last];
        let rows = GRAIN.div_ceil(width);
        let (step, along) = (strides[op.axis] as usize, usize::from(op.axis != last));
        with_size!(x[0].ty.dtype.size(), T => {
            let src = x[0].slice::<T>();
            parallel::chunks(target.elements::<T>(), rows * width, &|task, part| {
                for (i, o) in part.chunks_mut(width).enumerate() {
                    let row = task * rows + i;
                    let start = start_of(row, &dims[..last], &strides, op.axis);
                    for (j, o) in o.iter_mut().enumerate() {
                        *o = src[start + indices.clamped(row * width + j, size) * step + j * along];
                    }
                }
            });
        });
    }
    Ok(())
}

/// The element at which a row (an index over `dims`) begins in a tensor of `strides`, at position 0 of `axis`.
pub(super) fn start_of(row: usize, dims: &[usize], strides: &[isize; 8], axis: usize) -> usize {
    let (mut rest, mut start) = (row, 0);
    for i in (0..dims.len()).rev() {
        if i != axis {
            start += rest % dims[i] * strides[i] as usize;
        }
        rest /= dims[i];
    }
    start
}

/// Slices at index tuples.
pub(crate) fn gather_nd(
    op: &GatherNd,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let (shape, indices) = (*x[0].shape(), Indices::new(&x[1]));
    let tuple = x[1].shape().last().copied().unwrap_or(0);
    let batch = op.batch_dims;
    let axes = &shape[batch..batch + tuple];
    if checked && tuple > 0 {
        indices.check(|i| axes[i % tuple])?;
    }
    let inner: usize = shape[batch + tuple..].iter().product();
    let slab: usize = shape[batch..].iter().product();
    let outer = &x[1].shape()[..x[1].shape().rank() - 1];
    let rows_per_slab: usize = outer[batch..].iter().product();
    for target in out {
        with_size!(x[0].ty.dtype.size(), T => {
            copy_rows(x[0].slice::<T>(), inner, target.elements::<T>(), |row| {
                let mut slice = 0;
                for (t, size) in axes.iter().enumerate() {
                    slice = slice * size + indices.clamped(row * tuple + t, *size);
                }
                row / rows_per_slab * slab + slice * inner
            });
        });
    }
    Ok(())
}
