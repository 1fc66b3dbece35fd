//! One tile of queries against all the keys it may see, a tile of keys at a time.

use super::float::{Acc, Real};
use super::pages::Run;
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

/// The keys of a tile, or their values.
struct TileRows<'p, 'a, T: Real> {
    p: &'p Problem<'a, T>,
    of: &'p Strided<'a, T>,
    batch: usize,
    kv_head: usize,
    first: usize,
    count: usize,
    dim: usize,
}

impl<'a, T: Real> TileRows<'_, 'a, T> {
    /// The runs of rows, where they are.
    fn runs(&self, mut each: impl FnMut(Run, usize)) {
        let range = self.first..self.first + self.count;
        match &self.p.pages {
            None => {
                let run = Run { first: 0, count: self.count, page: self.batch as i64, position: self.first };
                each(run, self.of.at(self.batch, self.kv_head, self.first));
            }
            Some(pages) => pages.runs(self.batch, range).for_each(|run| {
                let start = self.of.at(pages.clamped(run.page), self.kv_head, run.position);
                each(run, start);
            }),
        }
    }

    /// Calls `each` with parts of the rows: the first's number, how many, and the rows; widened into `buffer` unless they can be
    /// read where they are.
    fn parts(&self, buffer: &mut Vec<T::Acc>, mut each: impl FnMut(usize, usize, Rows<'_, T::Acc>)) {
        let stride = self.of.sequence;
        match self.of.in_place(self.dim) {
            Some(data) => self.runs(|run, start| each(run.first, run.count, Rows { data, start, stride })),
            None => each(0, self.count, self.together(buffer)),
        }
    }

    /// All rows at a constant distance, copied into `buffer` unless they are so where they are.
    fn together<'b>(&self, buffer: &'b mut Vec<T::Acc>) -> Rows<'b, T::Acc>
    where
        'a: 'b,
    {
        if let (Some(data), None) = (self.of.in_place(self.dim), &self.p.pages) {
            let start = self.of.at(self.batch, self.kv_head, self.first);
            return Rows { data, start, stride: self.of.sequence };
        }
        let (dim, out) = (self.dim, sized(buffer, self.count * self.dim));
        self.runs(|run, start| {
            self.of.read(start, dim, &mut out[run.first * dim..][..run.count * dim]);
        });
        Rows { data: out, start: 0, stride: dim as isize }
    }
}

/// Computes a tile; `write` takes each row's number and result.
pub(super) fn attend<T: Real>(p: &Problem<'_, T>, t: Tile, write: &mut dyn FnMut(usize, &[T::Acc])) {
    T::Acc::with_scratch(|s| {
        let Scratch { q, k, v, scores, acc, maxima, sums, scales } = s;
        let (rows, dim, value_dim) = (t.rows(), p.dim, p.value_dim);
        let q = sized(q, rows * dim);
        for (r, q) in q.chunks_mut(dim).enumerate() {
            let (head, query) = t.row(r);
            p.q.read(p.q.at(t.batch, head, query), dim, q);
        }
        let acc = sized(acc, rows * value_dim);
        acc.fill(Number::ZERO);
        let (maxima, sums, scales) = (sized(maxima, rows), sized(sums, rows), sized(scales, rows));
        for r in 0..rows {
            (maxima[r], sums[r]) = p.start(t.row(r).0);
        }
        // One query of a head is always a dot product, so that its numbers do not depend on how heads are shared among threads.
        let few = rows <= FEW || p.queries == 1;
        let length = p.length(t.batch);
        let first = p.visible(length, t.query).start;
        let end = p.visible(length, t.query + t.queries - 1).end;
        for key in (first..end).step_by(KEYS) {
            let n = KEYS.min(end - key);
            let scores = sized(scores, rows * n);
            let of =
                |of, dim| TileRows { p, of, batch: t.batch, kv_head: t.kv_head, first: key, count: n, dim };
            score(q, &of(&p.k, dim), few, k, scores);
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
            accumulate(scores, &of(&p.v, value_dim), few, masked, v, acc);
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
fn score<T: Real>(
    q: &[T::Acc],
    keys: &TileRows<'_, '_, T>,
    few: bool,
    buffer: &mut Vec<T::Acc>,
    scores: &mut [T::Acc],
) {
    let (dim, n, scale) = (keys.dim, keys.count, keys.p.scale);
    if few {
        return keys.parts(buffer, |first, count, keys| {
            for (q, out) in q.chunks(dim).zip(scores.chunks_mut(n)) {
                run(Dots { q, keys, scale, out: &mut out[first..first + count] });
            }
        });
    }
    let keys = keys.together(buffer);
    let turned = Matrix { data: keys.data, offset: keys.start, row_stride: 1, column_stride: keys.stride };
    serial_gemm((q.len() / dim, n, dim), Matrix::packed(q, dim), turned, scale, false, scores);
}

/// `acc += weights·values`, where a key that is masked for a row must not touch it whatever its value holds.
fn accumulate<T: Real>(
    weights: &[T::Acc],
    values: &TileRows<'_, '_, T>,
    few: bool,
    masked: bool,
    buffer: &mut Vec<T::Acc>,
    acc: &mut [T::Acc],
) {
    let (value_dim, n) = (values.dim, values.count);
    let add = |first: usize, count: usize, values: Rows<'_, T::Acc>, acc: &mut [T::Acc]| {
        for (weights, acc) in weights.chunks(n).zip(acc.chunks_mut(value_dim)) {
            run(WeightedSum { weights: &weights[first..first + count], values, acc });
        }
    };
    if few {
        return values.parts(buffer, |first, count, values| add(first, count, values, acc));
    }
    let values = values.together(buffer);
    if masked && !finite(values, n, value_dim) {
        return add(0, n, values, acc);
    }
    let values =
        Matrix { data: values.data, offset: values.start, row_stride: values.stride, column_stride: 1 };
    let rows = weights.len() / n;
    serial_gemm((rows, value_dim, n), Matrix::packed(weights, n), values, T::Acc::ONE, true, acc);
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
