//! Writes at computed positions. Updates of one element apply in their order, so work is shared out by where it
//! lands, never by where it comes from.

use bytemuck::Pod;
use olivine_ir::op::{ScatterElements, ScatterMode, ScatterNd};

use super::Indices;
use super::gather::start_of;
use crate::kernel::kernels;
use crate::kernels::movement::{copy_strided, with_size};
use crate::operand::{Fault, Number, Operand, OperandSource, Target, row_major, with_number};
use crate::parallel;

kernels! { |op, x, out, call|
    ScatterElements => scatter_elements(op, x, out, call.checked)?,
    ScatterNd => scatter_nd(op, x, out, call.checked)?,
}

/// Updates below which a scatter stays on one thread.
const GRAIN: usize = 1 << 15;

/// Puts operand 0 in the target unless it is there already.
fn start_from(x: &Operand<'_>, target: &mut Target<'_>) {
    if let OperandSource::Bytes(_) = x.source {
        copy_strided(x, target.bytes);
    }
}

/// Runs `$body` with `$t` bound to the element type and `$f` to how an update meets what is there.
macro_rules! with_mode {
    ($mode:expr, $dtype:expr, $t:ident, $f:ident => $body:expr) => {
        match $mode {
            ScatterMode::Replace => with_size!($dtype.size(), $t => { let $f = |_: $t, new: $t| new; $body }),
            ScatterMode::Add => with_number!($dtype, $t => { let $f = <$t as Number>::plus; $body }),
            ScatterMode::Mul => with_number!($dtype, $t => { let $f = <$t as Number>::times; $body }),
            ScatterMode::Max => with_number!($dtype, $t => { let $f = <$t as Number>::larger; $body }),
            ScatterMode::Min => with_number!($dtype, $t => { let $f = <$t as Number>::smaller; $body }),
        }
    };
}

/// Single elements along an axis.
pub(crate) fn scatter_elements(
    op: &ScatterElements,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let indices = Indices::new(&x[1]);
    let size = x[0].shape()[op.axis];
    if checked {
        indices.check(|_| size)?;
    }
    let Some(target) = out.first_mut() else { return Ok(()) };
    start_from(&x[0], target);
    if x[1].shape().has_zero() {
        return Ok(());
    }
    with_mode!(op.mode, target.ty.dtype, T, meet => elements(op.axis, indices, &x[1], &x[2], target, meet));
    Ok(())
}

fn elements<T: Pod + Send + Sync>(
    axis: usize,
    indices: Indices<'_>,
    positions: &Operand<'_>,
    updates: &Operand<'_>,
    target: &mut Target<'_>,
    meet: fn(T, T) -> T,
) {
    let (shape, dims) = (target.ty.shape, *positions.shape());
    let (strides, updates) = (row_major(&shape), updates.slice::<T>());
    let slab: usize = shape[axis..].iter().product();
    let per_slab: usize = dims[axis..].iter().product();
    let one = |number: usize, out: &mut [T]| {
        // The slab's place among those of the indices, which may be fewer along each leading axis.
        let (mut rest, mut from, mut scale) = (number, 0, 1);
        for i in (0..axis).rev() {
            let at = rest % shape[i];
            if at >= dims[i] {
                return;
            }
            from += at * scale;
            scale *= dims[i];
            rest /= shape[i];
        }
        update_slab(axis, indices, from * per_slab, per_slab, &dims, &strides, updates, out, meet);
    };
    let out = target.elements::<T>();
    if indices.len() < GRAIN {
        out.chunks_mut(slab).enumerate().for_each(|(i, part)| one(i, part));
    } else {
        parallel::grouped(out, slab, GRAIN.div_ceil(per_slab.max(1)), &one);
    }
}

/// Applies the updates `from .. from + count` to the slab they all are in.
fn update_slab<T: Pod>(
    axis: usize,
    indices: Indices<'_>,
    from: usize,
    count: usize,
    dims: &[usize],
    strides: &[isize; 8],
    updates: &[T],
    out: &mut [T],
    meet: fn(T, T) -> T,
) {
    let last = dims.len() - 1;
    let (width, size) = (dims[last], out.len() / strides[axis] as usize);
    let (step, along) = (strides[axis] as usize, usize::from(axis != last));
    let mut own = [0; 8];
    own[..8 - axis].copy_from_slice(&strides[axis..]);
    for row in 0..count / width {
        let start = if axis == last { 0 } else { start_of(row, &dims[axis..last], &own, 0) };
        for j in 0..width {
            let i = from + row * width + j;
            if let Some(p) = indices.resolve(i, size) {
                let o = &mut out[start + p * step + j * along];
                *o = meet(*o, updates[i]);
            }
        }
    }
}

/// Slices at index tuples.
pub(crate) fn scatter_nd(
    op: &ScatterNd,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let indices = Indices::new(&x[1]);
    let shape = *x[0].shape();
    let tuple = x[1].shape().last().copied().unwrap_or(0);
    let axes = &shape[..tuple];
    if checked && tuple > 0 {
        indices.check(|i| axes[i % tuple])?;
    }
    let Some(target) = out.first_mut() else { return Ok(()) };
    start_from(&x[0], target);
    let inner: usize = shape[tuple..].iter().product();
    let count: usize = x[1].shape()[..x[1].shape().rank() - 1].iter().product();
    if target.ty.shape.has_zero() || count == 0 {
        return Ok(());
    }
    let slice_of = |row: usize| {
        axes.iter()
            .enumerate()
            .try_fold(0, |slice, (t, size)| Some(slice * size + indices.resolve(row * tuple + t, *size)?))
    };
    with_mode!(op.mode, target.ty.dtype, T, meet => {
        slices(x[2].slice::<T>(), inner, count, target.elements::<T>(), slice_of, meet);
    });
    Ok(())
}

fn slices<T: Pod + Send + Sync>(
    updates: &[T],
    inner: usize,
    count: usize,
    out: &mut [T],
    slice_of: impl Fn(usize) -> Option<usize> + Sync,
    meet: impl Fn(T, T) -> T + Sync,
) {
    // Every task looks at all tuples and keeps those that land in its part; that pays when slices are long.
    let parts = if inner >= 64 && count * inner >= GRAIN { parallel::threads() } else { 1 };
    let per_part = (out.len() / inner).div_ceil(parts);
    parallel::chunks(out, per_part * inner, &|part, out| {
        for row in 0..count {
            let Some(at) = slice_of(row).and_then(|s| s.checked_sub(part * per_part)) else { continue };
            let Some(out) = out.get_mut(at * inner..(at + 1) * inner) else { continue };
            for (o, u) in out.iter_mut().zip(&updates[row * inner..]) {
                *o = meet(*o, *u);
            }
        }
    });
}
