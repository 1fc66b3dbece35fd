//! Sort, argsort and top-k. An axis that is not the last is turned to the last, handled in rows, and turned back.

use bytemuck::Pod;
use olivine_ir::op::{ArgSort, Sort, TopK};

use super::key::{KeyBits, Keyed, Packed};
use super::{Axis, GRAIN};
use crate::kernel::kernels;
use crate::kernels::movement::{Dim, copy};
use crate::operand::{Operand, Target, with_number};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    TopK => top_k(op, x, out),
    Sort => sort(op, x, out),
    ArgSort => argsort(op, x, out),
}

/// Rows from this length on are sorted by several threads.
const LONG: usize = 1 << 16;
/// Elements compared with the bar at once in top-k.
const BLOCK: usize = 32;

/// Values in order along an axis.
pub(crate) fn sort(op: &Sort, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let axis = Axis::new(x[0].shape(), op.axis);
    with_number!(target.ty.dtype, T => {
        let rows = Rows::new(axis, x[0].slice::<T>());
        rows.each(axis.size, target.elements::<T>(), &|row, out| sort_row(op.descending, row, out));
    });
}

fn sort_row<T: Keyed>(descending: bool, row: &[T], out: &mut [T]) {
    let code = |x: &T| if descending { x.code().turned() } else { x.code() };
    let mut codes: Vec<T::Key> = scratch::collected(row.iter().map(code));
    in_order(&mut codes);
    for (o, code) in out.iter_mut().zip(codes) {
        *o = T::decode(if descending { code.turned() } else { code });
    }
}

fn in_order<K: Ord + Copy + Send>(keys: &mut [K]) {
    if keys.len() < LONG {
        return keys.sort_unstable();
    }
    let part = keys.len().div_ceil(parallel::threads());
    parallel::parts(keys, part, &|_, keys| keys.sort_unstable());
    scratch::probe::<K>(keys.len());
    // The stable sort finds the sorted runs and merges them.
    keys.sort();
}

/// Positions that put an axis in order.
pub(crate) fn argsort(op: &ArgSort, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let axis = Axis::new(x[0].shape(), op.axis);
    with_number!(x[0].ty.dtype, T => {
        let rows = Rows::new(axis, x[0].slice::<T>());
        rows.each(axis.size, target.elements::<i64>(), &|row, out| {
            if fits_word::<T>(row.len()) {
                argsort_row::<T, u64>(op.descending, row, out);
            } else {
                argsort_row::<T, u128>(op.descending, row, out);
            }
        });
    });
}

/// Whether key and position share 64 bits.
fn fits_word<T: Keyed>(len: usize) -> bool {
    size_of::<T::Key>() <= 4 && u32::try_from(len).is_ok()
}

/// The key that puts the wanted order first.
#[inline(always)]
fn key_of<T: Keyed>(descending: bool, x: T) -> T::Key {
    if descending { x.key().turned() } else { x.key() }
}

fn argsort_row<T: Keyed, P: Packed>(descending: bool, row: &[T], out: &mut [i64]) {
    let pack = |(i, x): (usize, &T)| P::pack(key_of(descending, *x).into(), i);
    let mut packed: Vec<P> = scratch::collected(row.iter().enumerate().map(pack));
    in_order(&mut packed);
    for (o, p) in out.iter_mut().zip(packed) {
        *o = p.position() as i64;
    }
}

/// The k largest or smallest with their positions.
pub(crate) fn top_k(op: &TopK, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let [values, positions] = out else { return };
    if values.ty.shape.has_zero() {
        return;
    }
    let axis = Axis::new(x[0].shape(), op.axis);
    let positions = positions.elements::<i64>();
    with_number!(x[0].ty.dtype, T => {
        let rows = Rows::new(axis, x[0].slice::<T>());
        rows.each(op.k, positions, &|row, out| {
            if fits_word::<T>(row.len()) {
                top_row::<T, u64>(op, row, out);
            } else {
                top_row::<T, u128>(op, row, out);
            }
        });
        rows.pick(op.k, positions, values.elements::<T>());
    });
}

/// Keeps a pool of candidates and a bar that later elements must pass; the pool is cut back to k when it is full.
fn top_row<T: Keyed, P: Packed>(op: &TopK, row: &[T], out: &mut [i64]) {
    let (k, largest) = (op.k, op.largest);
    let room = (2 * k).max(k + 256).min(row.len());
    let mut pool: Vec<P> = scratch::with_room(room);
    let pack = |i: usize, x: T| P::pack(key_of(largest, x).into(), i);
    pool.extend(row[..room].iter().enumerate().map(|(i, x)| pack(i, *x)));
    let mut bar = cut(&mut pool, k);
    for (block, part) in row[room..].chunks(BLOCK).enumerate() {
        // An equal key comes later in the row and so loses to what the pool holds.
        if !part.iter().fold(false, |any, x| any | (key_of(largest, *x).into() < bar)) {
            continue;
        }
        for (i, x) in part.iter().enumerate() {
            if key_of(largest, *x).into() < bar {
                pool.push(pack(room + block * BLOCK + i, *x));
                if pool.len() >= room {
                    bar = cut(&mut pool, k);
                }
            }
        }
    }
    cut(&mut pool, k);
    pool.sort_unstable();
    for (o, p) in out.iter_mut().zip(pool) {
        *o = p.position() as i64;
    }
}

/// Keeps the k first in order and returns the key of the last among them.
fn cut<P: Packed>(pool: &mut Vec<P>, k: usize) -> u64 {
    if pool.len() > k {
        pool.select_nth_unstable(k - 1);
        pool.truncate(k);
        pool[k - 1].key()
    } else {
        pool.iter().max().map_or(0, |p| p.key())
    }
}

/// The lines along an axis as packed rows.
struct Rows<'a, T: Pod> {
    axis: Axis,
    packed: std::borrow::Cow<'a, [T]>,
}

impl<'a, T: Pod + Send + Sync> Rows<'a, T> {
    fn new(axis: Axis, src: &'a [T]) -> Self {
        let packed = if axis.inner == 1 {
            src.into()
        } else {
            let mut rows = scratch::zeroed::<T>(src.len());
            turn(axis.outer, axis.size, axis.inner, src, &mut rows);
            rows.into()
        };
        Rows { axis, packed }
    }

    /// Runs `f` from each row to its result of `width` elements.
    fn each<U: Pod + Send + Sync>(&self, width: usize, out: &mut [U], f: &(dyn Fn(&[T], &mut [U]) + Sync)) {
        let Axis { outer, size, inner } = self.axis;
        let tasks = |out: &mut [U]| {
            let rows = GRAIN.div_ceil(size);
            parallel::chunks(out, rows * width, &|i, out| {
                let src = &self.packed[i * rows * size..];
                src.chunks(size).zip(out.chunks_mut(width)).for_each(|(row, out)| f(row, out));
            });
        };
        if inner == 1 {
            return tasks(out);
        }
        let mut results = scratch::zeroed::<U>(out.len());
        tasks(&mut results);
        turn(outer, inner, width, &results, out);
    }

    /// The elements at `positions`, `width` of them per row.
    fn pick(&self, width: usize, positions: &[i64], out: &mut [T]) {
        let Axis { size, inner, .. } = self.axis;
        let taken = width * inner;
        parallel::grouped(out, taken, GRAIN.div_ceil(taken.max(1)), &|slab, out| {
            for (i, (o, p)) in out.iter_mut().zip(&positions[slab * taken..]).enumerate() {
                *o = self.packed[(slab * inner + i % inner) * size + *p as usize];
            }
        });
    }
}

/// Transposes each of `count` matrices of `rows` by `columns`.
fn turn<T: Pod + Send + Sync>(count: usize, rows: usize, columns: usize, src: &[T], out: &mut [T]) {
    let matrix = rows * columns;
    let dims = [
        Dim { size: count, from: matrix as isize, to: matrix },
        Dim { size: columns, from: 1, to: rows },
        Dim { size: rows, from: columns as isize, to: 1 },
    ];
    copy(src, 0, &dims, out);
}
