//! Positions of the largest and the smallest. Keys make both the search for the largest unsigned integer.

use olivine_ir::op::{ArgReduce, ArgReduceKind};

use super::key::{KeyBits, Keyed};
use super::{Axis, GRAIN};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target, with_number};
use crate::parallel;

kernels! { |op, x, out, call|
    ArgReduce => arg_reduce(op, x, out),
}

/// Elements whose largest is found before positions are looked at.
const BLOCK: usize = 1024;
/// Columns searched side by side.
const COLUMNS: usize = 256;

/// Position of the largest or smallest along an axis.
pub(crate) fn arg_reduce(op: &ArgReduce, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let axis = Axis::new(x[0].shape(), op.axis);
    let out = target.elements::<i64>();
    with_number!(x[0].ty.dtype, T => {
        let src = x[0].slice::<T>();
        match op.kind {
            ArgReduceKind::Max => search(op.last, axis, src, out, |x: T| x.key()),
            // Turned keys put the smallest on top; NaN joins it there.
            ArgReduceKind::Min => search(op.last, axis, src, out, |x: T| {
                if x.is_nan() { KeyBits::MAX } else { x.key().turned() }
            }),
        }
    });
}

fn search<T: Keyed>(last: bool, axis: Axis, src: &[T], out: &mut [i64], key: impl Fn(T) -> T::Key + Sync) {
    let Axis { size, inner, .. } = axis;
    if inner == 1 {
        let rows = GRAIN.div_ceil(size);
        parallel::chunks(out, rows, &|i, out| {
            for (o, row) in out.iter_mut().zip(src[i * rows * size..].chunks(size)) {
                *o = if last { last_of(row, &key) } else { first_of(row, &key) } as i64;
            }
        });
        return;
    }
    let slab = size * inner;
    parallel::grouped(out, inner, GRAIN.div_ceil(slab), &|i, out| {
        let src = &src[i * slab..][..slab];
        // Columns are handed out only where each piece has enough rows under it.
        let columns = COLUMNS.max(GRAIN.div_ceil(size)).div_ceil(COLUMNS) * COLUMNS;
        parallel::chunks(out, columns, &|piece, out| {
            for (i, out) in out.chunks_mut(COLUMNS).enumerate() {
                let start = piece * columns + i * COLUMNS;
                columns_of(last, src, start, inner, out, &key);
            }
        });
    });
}

fn largest<T: Keyed>(block: &[T], key: &impl Fn(T) -> T::Key) -> T::Key {
    block.iter().fold(T::Key::default(), |best, x| best.max(key(*x)))
}

fn first_of<T: Keyed>(row: &[T], key: &impl Fn(T) -> T::Key) -> usize {
    let mut best = (T::Key::default(), 0);
    for (i, block) in row.chunks(BLOCK).enumerate() {
        let top = largest(block, key);
        if top > best.0 {
            best = (top, i * BLOCK);
        }
    }
    let found = row[best.1..].iter().position(|x| key(*x) == best.0);
    best.1 + found.unwrap_or(0)
}

fn last_of<T: Keyed>(row: &[T], key: &impl Fn(T) -> T::Key) -> usize {
    let mut best = (T::Key::default(), row.len());
    for (i, block) in row.chunks(BLOCK).enumerate() {
        let top = largest(block, key);
        if top >= best.0 {
            best = (top, i * BLOCK + block.len());
        }
    }
    row[..best.1].iter().rposition(|x| key(*x) == best.0).unwrap_or(0)
}

/// The columns `start ..` of a slab, at most [`COLUMNS`] of them.
fn columns_of<T: Keyed>(
    last: bool,
    src: &[T],
    start: usize,
    inner: usize,
    out: &mut [i64],
    key: &impl Fn(T) -> T::Key,
) {
    let mut best = [T::Key::default(); COLUMNS];
    out.fill(0);
    for (position, row) in src.chunks(inner).enumerate() {
        for ((x, best), o) in row[start..].iter().zip(&mut best).zip(&mut *out) {
            let k = key(*x);
            let better = if last { k >= *best } else { k > *best };
            *best = if better { k } else { *best };
            *o = if better { position as i64 } else { *o };
        }
    }
}
