//! The inner loops of attention.

use super::float::Acc;
use crate::simd::Kernel;

/// Accumulators of a reduction, several so that it vectorises.
const LANES: usize = 16;

#[inline(always)]
fn fold<A: Acc>(mut lanes: [A; LANES], f: impl Fn(A, A) -> A) -> A {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

/// The larger; a NaN on the right is ignored, since the sum will be NaN.
#[inline(always)]
fn top<A: Acc>(a: A, b: A) -> A {
    if b > a { b } else { a }
}

/// Rows of accumulators: unit steps within a row, any from row to row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, A> {
    pub(super) data: &'a [A],
    pub(super) start: usize,
    pub(super) stride: isize,
}

impl<'a, A> Rows<'a, A> {
    /// The first `len` elements of row `j`.
    #[inline(always)]
    pub(super) fn row(&self, j: usize, len: usize) -> &'a [A] {
        let at = (self.start as isize + j as isize * self.stride) as usize;
        &self.data[at..at + len]
    }
}

/// One step of the online softmax. Each row of `keys` scores becomes weights relative to the row's new maximum;
/// `maxima` and `sums` move on, and `scales` says by how much earlier results of the row shrink.
pub(super) struct OnlineSoftmax<'a, A> {
    pub(super) scores: &'a mut [A],
    pub(super) keys: usize,
    pub(super) maxima: &'a mut [A],
    pub(super) sums: &'a mut [A],
    pub(super) scales: &'a mut [A],
}

impl<A: Acc> Kernel for OnlineSoftmax<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let OnlineSoftmax { scores, keys, maxima, sums, scales } = self;
        for (r, row) in scores.chunks_mut(keys).take(maxima.len()).enumerate() {
            let mut lanes = [A::LOWEST; LANES];
            let mut chunks = row.chunks_exact(LANES);
            for chunk in &mut chunks {
                for i in 0..LANES {
                    lanes[i] = top(lanes[i], chunk[i]);
                }
            }
            let mut new = top(maxima[r], fold(lanes, top));
            for x in chunks.remainder() {
                new = top(new, *x);
            }
            // While everything is masked any finite base results in weights of 0.
            let base = if new == A::LOWEST { A::ZERO } else { new };
            let mut lanes = [A::ZERO; LANES];
            let mut chunks = row.chunks_exact_mut(LANES);
            for chunk in &mut chunks {
                for i in 0..LANES {
                    let e = (chunk[i] - base).exp_below::<FMA>();
                    chunk[i] = e;
                    lanes[i] += e;
                }
            }
            let mut sum = fold(lanes, |a, b| a + b);
            for x in chunks.into_remainder() {
                *x = (*x - base).exp_below::<FMA>();
                sum += *x;
            }
            let factor = (maxima[r] - base).exp_below::<FMA>();
            sums[r] = sums[r] * factor + sum;
            maxima[r] = new;
            scales[r] = factor;
        }
    }
}

/// Scores become c·tanh(s/c).
pub(super) struct Softcap<'a, A> {
    pub(super) scores: &'a mut [A],
    pub(super) c: A,
}

impl<A: Acc> Kernel for Softcap<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let inverse = A::ONE / self.c;
        for x in self.scores {
            *x = (*x * inverse).tanh::<FMA>() * self.c;
        }
    }
}

/// `out[j] = scale·(q · row j)` for few queries, where packing keys for a GEMM would cost more.
pub(super) struct Dots<'a, A> {
    pub(super) q: &'a [A],
    pub(super) keys: Rows<'a, A>,
    pub(super) scale: A,
    pub(super) out: &'a mut [A],
}

impl<A: Acc> Kernel for Dots<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (j, o) in self.out.iter_mut().enumerate() {
            let row = self.keys.row(j, self.q.len());
            let mut lanes = [A::ZERO; LANES];
            let (mut a, mut b) = (self.q.chunks_exact(LANES), row.chunks_exact(LANES));
            for (a, b) in (&mut a).zip(&mut b) {
                for i in 0..LANES {
                    lanes[i] += a[i] * b[i];
                }
            }
            let mut sum = fold(lanes, |a, b| a + b);
            for (a, b) in a.remainder().iter().zip(b.remainder()) {
                sum += *a * *b;
            }
            *o = sum * self.scale;
        }
    }
}

/// `acc += Σ weights[j]·row j`. A row whose weight is 0 is not read: it may hold anything.
pub(super) struct WeightedSum<'a, A> {
    pub(super) weights: &'a [A],
    pub(super) values: Rows<'a, A>,
    pub(super) acc: &'a mut [A],
}

impl<A: Acc> Kernel for WeightedSum<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let WeightedSum { weights, values, acc } = self;
        let n = acc.len();
        for (group, w) in weights.chunks(4).enumerate() {
            let j = group * 4;
            if w.len() == 4 && w.iter().all(|w| *w != A::ZERO) {
                let [a, b, c, d] = [0, 1, 2, 3].map(|k| values.row(j + k, n));
                for i in 0..n {
                    acc[i] += (w[0] * a[i] + w[1] * b[i]) + (w[2] * c[i] + w[3] * d[i]);
                }
            } else {
                for (k, w) in w.iter().enumerate().filter(|(_, w)| **w != A::ZERO) {
                    for (acc, x) in acc.iter_mut().zip(values.row(j + k, n)) {
                        *acc += *w * *x;
                    }
                }
            }
        }
    }
}
