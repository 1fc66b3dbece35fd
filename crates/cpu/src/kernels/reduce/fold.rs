//! What reductions accumulate, one fold per kind.
//!
//! Floats accumulate in f64: on vectors that costs less than the memory they wait for, and a sum of millions of f32
//! stays right to the last bit but one.

use super::walk::{Folder, SIDES};
use crate::operand::Number;
use crate::simd;

/// A way to accumulate elements `T`.
pub(super) trait Fold<T>: Copy + Sync {
    type Acc: Copy + Send + Sync;
    /// The accumulator of nothing.
    fn identity(self) -> Self::Acc;
    /// One element more.
    fn step(self, acc: Self::Acc, x: T) -> Self::Acc;
    /// Two parts together; parts are joined in order.
    fn join(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// A sum of some function of each element in f64.
#[derive(Clone, Copy)]
pub(super) struct Sum<Map>(pub(super) Map);

impl<T: Number, Map: Fn(f64) -> f64 + Copy + Sync> Fold<T> for Sum<Map> {
    type Acc = f64;

    #[inline(always)]
    fn identity(self) -> f64 {
        0.0
    }
    #[inline(always)]
    fn step(self, acc: f64, x: T) -> f64 {
        acc + (self.0)(x.to_f64())
    }
    #[inline(always)]
    fn join(self, a: f64, b: f64) -> f64 {
        a + b
    }
}

/// A product of floats.
#[derive(Clone, Copy)]
pub(super) struct Product;

impl<T: Number> Fold<T> for Product {
    type Acc = f64;

    #[inline(always)]
    fn identity(self) -> f64 {
        1.0
    }
    #[inline(always)]
    fn step(self, acc: f64, x: T) -> f64 {
        acc * x.to_f64()
    }
    #[inline(always)]
    fn join(self, a: f64, b: f64) -> f64 {
        a * b
    }
}

/// ln Σeˣ as the largest element seen and the sum of e to the distances from it.
#[derive(Clone, Copy)]
pub(super) struct LogSumExp;

impl<T: Number> Fold<T> for LogSumExp {
    type Acc = (f64, f64);

    #[inline(always)]
    fn identity(self) -> (f64, f64) {
        (f64::NEG_INFINITY, 0.0)
    }
    #[inline(always)]
    fn step(self, acc: (f64, f64), x: T) -> (f64, f64) {
        <Self as Fold<T>>::join(self, acc, (x.to_f64(), 1.0))
    }
    #[inline(always)]
    fn join(self, (ma, sa): (f64, f64), (mb, sb): (f64, f64)) -> (f64, f64) {
        // Equal maxima first: the distance of two infinities would be NaN.
        if ma == mb || sb == 0.0 {
            (ma, sa + sb)
        } else if sa == 0.0 {
            (mb, sb)
        } else if ma > mb {
            (ma, sa + sb * (mb - ma).exp())
        } else {
            // Also where one is NaN, which then stays.
            (if ma.is_nan() { ma } else { mb }, sb + sa * (ma - mb).exp())
        }
    }
}

impl LogSumExp {
    /// The logarithm behind an accumulator.
    pub(super) fn value((max, sum): (f64, f64)) -> f64 {
        if sum == 0.0 { f64::NEG_INFINITY } else { max + sum.ln() }
    }
}

/// A fold in the element's own type.
#[derive(Clone, Copy)]
pub(super) struct Own<T, F> {
    pub(super) identity: T,
    /// One element more; the element may first be changed.
    pub(super) step: F,
    /// Joins two accumulators.
    pub(super) join: fn(T, T) -> T,
}

impl<T: Number, F: Fn(T, T) -> T + Copy + Sync> Fold<T> for Own<T, F> {
    type Acc = T;

    #[inline(always)]
    fn identity(self) -> T {
        self.identity
    }
    #[inline(always)]
    fn step(self, acc: T, x: T) -> T {
        (self.step)(acc, x)
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        (self.join)(a, b)
    }
}

/// Elements widened at once; they stay in the first-level cache.
const BLOCK: usize = 1024;

/// Loads elements from a position on, some steps apart.
pub(super) type Load<'a, T> = &'a (dyn Fn(isize, isize, &mut [T]) + Sync);

/// Where a fold's elements come from.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a, T> {
    /// Memory that holds them as they are.
    Direct(&'a [T]),
    /// Memory of a narrower type. A wide copy of it all would be several times as large.
    Widened(Load<'a, T>),
}

/// A fold over certain elements.
pub(super) struct Over<'a, T, F> {
    pub(super) fold: F,
    pub(super) data: Elements<'a, T>,
}

impl<T: Number, F: Fold<T>> Folder for Over<'_, T, F> {
    type Acc = F::Acc;

    fn identity(&self) -> F::Acc {
        self.fold.identity()
    }

    fn join(&self, a: F::Acc, b: F::Acc) -> F::Acc {
        self.fold.join(a, b)
    }

    fn run(&self, start: isize, len: usize, stride: isize) -> F::Acc {
        match self.data {
            Elements::Direct(data) if stride == 1 => {
                simd::run(Run(self.fold, &data[start as usize..start as usize + len]))
            }
            Elements::Direct(data) => {
                let at = |i: usize| data[(start + i as isize * stride) as usize];
                (0..len).fold(self.fold.identity(), |acc, i| self.fold.step(acc, at(i)))
            }
            Elements::Widened(load) => {
                let mut block = [T::ZERO; BLOCK];
                let mut acc = self.fold.identity();
                for at in (0..len).step_by(BLOCK) {
                    let block = &mut block[..BLOCK.min(len - at)];
                    load(start + at as isize * stride, stride, block);
                    acc = self.fold.join(acc, simd::run(Run(self.fold, block)));
                }
                acc
            }
        }
    }

    fn side(&self, start: isize, stride: isize, accs: &mut [F::Acc]) {
        match self.data {
            Elements::Direct(data) if stride == 1 => {
                simd::run(FoldRows(self.fold, [&data[start as usize..start as usize + accs.len()]], accs));
            }
            Elements::Direct(data) => {
                for (j, acc) in accs.iter_mut().enumerate() {
                    *acc = self.fold.step(*acc, data[(start + j as isize * stride) as usize]);
                }
            }
            Elements::Widened(load) => {
                let mut block = [T::ZERO; BLOCK];
                for (i, accs) in accs.chunks_mut(BLOCK).enumerate() {
                    let block = &mut block[..accs.len()];
                    load(start + (i * BLOCK) as isize * stride, stride, block);
                    simd::run(FoldRows(self.fold, [block], accs));
                }
            }
        }
    }

    fn sides(&self, starts: [isize; SIDES], stride: isize, accs: &mut [F::Acc]) {
        match self.data {
            Elements::Direct(data) if stride == 1 => {
                let row = |start: isize| &data[start as usize..start as usize + accs.len()];
                simd::run(FoldRows(self.fold, starts.map(row), accs));
            }
            _ => starts.into_iter().for_each(|start| self.side(start, stride, accs)),
        }
    }
}

/// Folds a run of memory in many lanes.
struct Run<'a, T, F>(F, &'a [T]);

impl<T: Number, F: Fold<T>> simd::Kernel for Run<'_, T, F> {
    type Output = F::Acc;

    #[inline(always)]
    fn run<const FMA: bool>(self) -> F::Acc {
        const LANES: usize = 32;
        let Run(fold, run) = self;
        let mut lanes = [fold.identity(); LANES];
        let (chunks, rest) = run.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = fold.step(lanes[i], chunk[i]);
            }
        }
        // Pairs of lanes join side by side; one after another they would wait for each other.
        for width in [16, 8, 4, 2, 1] {
            for i in 0..width {
                lanes[i] = fold.join(lanes[i], lanes[i + width]);
            }
        }
        let mut acc = lanes[0];
        for x in rest {
            acc = fold.step(acc, *x);
        }
        acc
    }
}

/// Folds rows of elements, one after the other, into a row of accumulators.
struct FoldRows<'a, T, A, F, const R: usize>(F, [&'a [T]; R], &'a mut [A]);

impl<T: Number, F: Fold<T>, const R: usize> simd::Kernel for FoldRows<'_, T, F::Acc, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let FoldRows(fold, rows, accs) = self;
        let rows = rows.map(|row| &row[..accs.len()]);
        for (j, acc) in accs.iter_mut().enumerate() {
            for row in rows {
                *acc = fold.step(*acc, row[j]);
            }
        }
    }
}
