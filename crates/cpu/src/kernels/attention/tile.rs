//! One tile of queries against all the keys it may see, a tile of keys at a time.

use super::float::{Acc, Real};
use super::rows::{Dots, OnlineSoftmax, Rows, Softcap, WeightedSum};
use super::{Mask, Problem, Strided};
use crate::kernels::gemm::{Matrix, serial_gemm};
use crate::operand::Number;
use crate::simd::run;

/// Keys handled at once: their scores and values stay in the second-level cache.
const KEYS: usize = 256;
/// Rows up to which dot products beat a GEMM, whose packing is then most of the work.
const FEW: usize = 8;

/// The queries of a tile: some heads of one kv head, some positions of each.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    pub(super) head: usize,
    pub(super) heads: usize,
    pub(super) query: usize,
    pub(super) queries: usize,
}

impl Tile {
    fn rows(&self) -> usize {
        self.heads * self.queries
    }

    /// Head and query of a row.
    fn row(&self, r: usize) -> (usize, usize) {
        (self.head + r / self.queries, self.query + r % self.queries)
    }
}

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Scratch<A> {
    q: Vec<A>,
    k: Vec<A>,
    v: Vec<A>,
    scores: Vec<A>,
    acc: Vec<A>,
    maxima: Vec<A>,
    sums: Vec<A>,
    scales: Vec<A>,
}

fn sized<A: Acc>(buffer: &mut Vec<A>, len: usize) -> &mut [A] {
    if buffer.len() < len {
        buffer.resize(len, A::ZERO);
    }
    &mut buffer[..len]
}

/// Keys or values `first ..` of a head, widened into `buffer` unless they can be read where they are.
fn rows_of<'a, T: Real>(
    x: &Strided<'a, T>,
    start: usize,
    count: usize,
    dim: usize,
    buffer: &'a mut Vec<T::Acc>,
) -> Rows<'a, T::Acc> {
    if let Some(data) = T::as_acc(x.data)
        && (x.dim == 1 || dim == 1)
    {
        return Rows { data, start, stride: x.sequence };
    }
    let out = sized(buffer, count * dim);
    for (i, out) in out.chunks_mut(dim).enumerate() {
        x.read((start as isize + i as isize * x.sequence) as usize, out);
    }
    Rows { data: out, start: 0, stride: dim as isize }
}

/// Computes a tile; `write` takes each row's number and result.
pub(super) fn attend<T: Real>(p: &Problem<'_, T>, t: Tile, write: &mut dyn FnMut(usize, &[T::Acc])) {
    T::Acc::with_scratch(|s| {
        let Scratch { q, k, v, scores, acc, maxima, sums, scales } = s;
        let (rows, dim, value_dim) = (t.rows(), p.dim, p.value_dim);
        let q = sized(q, rows * dim);
        for (r, q) in q.chunks_mut(dim).enumerate() {
            let (head, query) = t.row(r);
            p.q.read(p.q.at(t.batch, head, query), q);
        }
        let acc = sized(acc, rows * value_dim);
        acc.fill(Number::ZERO);
        let (maxima, sums, scales) = (sized(maxima, rows), sized(sums, rows), sized(scales, rows));
        for r in 0..rows {
            (maxima[r], sums[r]) = p.start(t.row(r).0);
        }
        let length = p.length(t.batch);
        let first = p.visible(length, t.query).start;
        let end = p.visible(length, t.query + t.queries - 1).end;
        for key in (first..end).step_by(KEYS) {
            let n = KEYS.min(end - key);
            let scores = sized(scores, rows * n);
            let keys = rows_of(&p.k, p.k.at(t.batch, t.kv_head, key), n, dim, k);
            score(q, keys, dim, n, p.scale, scores);
            if let Some(c) = p.softcap {
                run(Softcap { scores: &mut *scores, c });
            }
            let mut masked = false;
            for (r, row) in scores.chunks_mut(n).enumerate() {
                let (head, query) = t.row(r);
                masked |= p.mask.apply([t.batch, head, query, key], row);
                let seen = p.visible(length, query);
                let from = seen.start.saturating_sub(key).min(n);
                let to = seen.end.saturating_sub(key).clamp(from, n);
                masked |= to - from < n;
                row[..from].fill(Number::LOWEST);
                row[to..].fill(Number::LOWEST);
            }
            run(OnlineSoftmax { scores: &mut *scores, keys: n, maxima, sums, scales });
            if key > first {
                shrink(acc, value_dim, scales);
            }
            let values = rows_of(&p.v, p.v.at(t.batch, t.kv_head, key), n, value_dim, v);
            accumulate(scores, values, value_dim, n, masked, acc);
        }
        for (r, row) in acc.chunks_mut(value_dim).enumerate() {
            let scale = if sums[r] == Number::ZERO { Number::ZERO } else { T::Acc::ONE / sums[r] };
            row.iter_mut().for_each(|x| *x *= scale);
            write(r, row);
        }
    });
}

fn shrink<A: Acc>(acc: &mut [A], value_dim: usize, scales: &[A]) {
    for (row, factor) in acc.chunks_mut(value_dim).zip(scales).filter(|(_, f)| **f != A::ONE) {
        row.iter_mut().for_each(|x| *x *= *factor);
    }
}

/// `scores = scale·q·keysᵀ`.
fn score<A: Acc>(q: &[A], keys: Rows<'_, A>, dim: usize, n: usize, scale: A, scores: &mut [A]) {
    let rows = q.len() / dim;
    if rows <= FEW {
        for (q, out) in q.chunks(dim).zip(scores.chunks_mut(n)) {
            run(Dots { q, keys, scale, out });
        }
        return;
    }
    let turned = Matrix { data: keys.data, offset: keys.start, row_stride: 1, column_stride: keys.stride };
    serial_gemm((rows, n, dim), Matrix::packed(q, dim), turned, scale, false, scores);
}

/// `acc += weights·values`, where a key that is masked for a row must not touch it whatever its value holds.
fn accumulate<A: Acc>(
    weights: &[A],
    values: Rows<'_, A>,
    value_dim: usize,
    n: usize,
    masked: bool,
    acc: &mut [A],
) {
    let rows = weights.len() / n;
    if rows <= FEW || (masked && !finite(values, n, value_dim)) {
        for (weights, acc) in weights.chunks(n).zip(acc.chunks_mut(value_dim)) {
            run(WeightedSum { weights, values, acc });
        }
        return;
    }
    let values =
        Matrix { data: values.data, offset: values.start, row_stride: values.stride, column_stride: 1 };
    serial_gemm((rows, value_dim, n), Matrix::packed(weights, n), values, A::ONE, true, acc);
}

/// Whether no value is NaN or infinite.
fn finite<A: Acc>(values: Rows<'_, A>, n: usize, dim: usize) -> bool {
    (0..n).all(|i| values.row(i, dim).iter().fold(true, |all, x| all & (*x > A::LOWEST) & (*x < A::HIGHEST)))
}

impl<T: Real> Mask<'_, T> {
    /// Applies the mask to the scores of keys `at[3] ..`; returns whether it may have masked one.
    fn apply(&self, at: [usize; 4], scores: &mut [T::Acc]) -> bool {
        let start = |strides: &[isize; 4], offset: usize| {
            offset as isize + at.iter().zip(strides).map(|(i, s)| *i as isize * s).sum::<isize>()
        };
        match self {
            Mask::None => false,
            Mask::Keep { data, strides, offset } => {
                let mut i = start(strides, *offset);
                for x in scores {
                    *x = if data[i as usize] == 0 { Number::LOWEST } else { *x };
                    i += strides[3];
                }
                true
            }
            Mask::Bias { data, strides, offset } => {
                let first = start(strides, *offset);
                if strides[3] == 1 {
                    let row = &data[first as usize..first as usize + scores.len()];
                    scores.iter_mut().zip(row).for_each(|(x, b)| *x += b.wide());
                } else {
                    let mut i = first;
                    for x in scores {
                        *x += data[i as usize].wide();
                        i += strides[3];
                    }
                }
                true
            }
        }
    }
}
