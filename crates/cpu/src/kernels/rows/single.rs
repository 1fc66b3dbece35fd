//! Rows of f32: vector loops over lanes, totals in f64.

use super::SHORT;
use super::wide::{Moments, Wide};
use crate::simd::math::{exp_below, log};
use crate::simd::{Kernel, fma, run};

/// Independent sums per loop; a few registers' worth hides the addition's latency.
const LANES: usize = 64;
/// Short rows computed at once.
const SHORT_LANES: usize = 16;
/// Elements summed in f32 before the total moves to f64.
const SPAN: usize = 4096;

/// Σ f(x) in lanes, spans added in f64.
#[inline(always)]
fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for span in x.chunks(SPAN) {
        let mut lanes = [0.0f32; LANES];
        let (whole, rest) = span.as_chunks::<LANES>();
        for group in whole {
            for (lane, x) in lanes.iter_mut().zip(group) {
                *lane += f(*x);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += f(*x);
        }
        total += fold(lanes);
    }
    total
}

/// The lanes' sum, pairwise.
#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 4 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[..2 * width].iter().map(|v| f64::from(*v)).sum()
}

/// The largest number; NaN is ignored, and an empty row gives −∞.
#[inline(always)]
fn max_of(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for group in whole {
        for (lane, x) in lanes.iter_mut().zip(group) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if *x > *lane { *x } else { *lane };
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
        width /= 2;
    }
    lanes[0]
}

struct Softmax<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Softmax(x, out) = self;
        let max = max_of(x);
        let mut total = 0.0;
        for (x, out) in x.chunks(SPAN).zip(out.chunks_mut(SPAN)) {
            let mut lanes = [0.0f32; LANES];
            let (x, x_rest) = x.as_chunks::<LANES>();
            let (out, out_rest) = out.as_chunks_mut::<LANES>();
            for (x, out) in x.iter().zip(out) {
                for i in 0..LANES {
                    let e = exp_below::<FMA>(x[i] - max);
                    out[i] = e;
                    lanes[i] += e;
                }
            }
            if !x_rest.is_empty() {
                // Filled up, so that the end of a row is no slower than the rest of it; e to −∞ adds nothing.
                let mut last = [f32::NEG_INFINITY; LANES];
                last[..x_rest.len()].copy_from_slice(x_rest);
                for i in 0..LANES {
                    last[i] = exp_below::<FMA>(last[i] - max);
                    lanes[i] += last[i];
                }
                out_rest.copy_from_slice(&last[..out_rest.len()]);
            }
            total += fold(lanes);
        }
        let scale = (1.0 / total) as f32;
        for o in out {
            *o *= scale;
        }
    }
}

/// Softmax of short rows, or its logarithm: a lane for each row.
struct ShortSoftmax<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    row: usize,
    log: bool,
}

impl Kernel for ShortSoftmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let ShortSoftmax { x, out, row, log } = self;
        let mut columns = [[0.0f32; SHORT_LANES]; SHORT];
        for (x, out) in x.chunks(row * SHORT_LANES).zip(out.chunks_mut(row * SHORT_LANES)) {
            let columns = &mut columns[..row];
            for (i, x) in x.chunks_exact(row).enumerate() {
                for (column, x) in columns.iter_mut().zip(x) {
                    column[i] = *x;
                }
            }
            let mut max = [f32::NEG_INFINITY; SHORT_LANES];
            for column in &*columns {
                for (max, x) in max.iter_mut().zip(column) {
                    *max = if *x > *max { *x } else { *max };
                }
            }
            let mut total = [0.0f64; SHORT_LANES];
            for column in &mut *columns {
                for i in 0..SHORT_LANES {
                    column[i] -= max[i];
                    let e = exp_below::<FMA>(column[i]);
                    total[i] += f64::from(e);
                    column[i] = if log { column[i] } else { e };
                }
            }
            let mut last = [0.0f32; SHORT_LANES];
            for (last, total) in last.iter_mut().zip(total) {
                *last = if log { total.ln() as f32 } else { (1.0 / total) as f32 };
            }
            for column in &mut *columns {
                for (x, last) in column.iter_mut().zip(&last) {
                    *x = if log { *x - last } else { *x * last };
                }
            }
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                for (out, column) in out.iter_mut().zip(&*columns) {
                    *out = column[i];
                }
            }
        }
    }
}

struct LogSoftmax<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for LogSoftmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let max = max_of(self.0);
        let total = sum_of(self.0, |x| exp_below::<FMA>(x - max));
        let log = total.ln() as f32;
        for (o, x) in self.1.iter_mut().zip(self.0) {
            *o = (*x - max) - log;
        }
    }
}

/// The sums of the differences from `shift` and of their squares.
struct Deviations<'a>(&'a [f32], f32);

impl Kernel for Deviations<'_> {
    type Output = (f64, f64);
    #[inline(always)]
    fn run<const FMA: bool>(self) -> (f64, f64) {
        let Deviations(x, shift) = self;
        let (mut total, mut squares) = (0.0, 0.0);
        for span in x.chunks(SPAN) {
            let (mut lanes, mut square_lanes) = ([0.0f32; LANES], [0.0f32; LANES]);
            let (whole, rest) = span.as_chunks::<LANES>();
            for group in whole {
                for i in 0..LANES {
                    let d = group[i] - shift;
                    lanes[i] += d;
                    square_lanes[i] = fma::<FMA>(d, d, square_lanes[i]);
                }
            }
            for (i, x) in rest.iter().enumerate() {
                let d = *x - shift;
                lanes[i] += d;
                square_lanes[i] = fma::<FMA>(d, d, square_lanes[i]);
            }
            total += fold(lanes);
            squares += fold(square_lanes);
        }
        (total, squares)
    }
}

struct Mean<'a>(&'a [f32]);

impl Kernel for Mean<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f64 {
        sum_of(self.0, |x| x) / self.0.len() as f64
    }
}

/// A number near the mean: the mean of 16 elements of each quarter, or of all where they are few.
struct NearMean<'a>(&'a [f32]);

impl Kernel for NearMean<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f32 {
        const SOME: usize = LANES / 4;
        let NearMean(x) = self;
        if x.len() < LANES {
            return (sum_of(x, |x| x) / x.len() as f64) as f32;
        }
        let part = |i: usize| &x[i * (x.len() / 4)..][..SOME];
        let (a, b, c, d) = (part(0), part(1), part(2), part(3));
        let mut sums = [0.0f32; SOME];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = (a[i] + b[i]) + (c[i] + d[i]);
        }
        let mut width = SOME / 2;
        while width > 0 {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
            width /= 2;
        }
        sums[0] / LANES as f32
    }
}

struct SumSquares<'a>(&'a [f32]);

impl Kernel for SumSquares<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f64 {
        sum_of(self.0, |x| x * x)
    }
}

/// A sum of squares of f32 numbers that neither overflowed nor lost its terms below the normal range.
fn sound(squares: f64) -> bool {
    squares > 1e-30 && squares < 1e38
}

/// A row's mean, and the sums of the differences from it and of their squares; in f64 where f32 has not the range.
#[cold]
fn deviations_from_mean(x: &[f32]) -> (f32, f64, f64) {
    let mut mean = run(Mean(x));
    if !mean.is_finite() {
        mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
    }
    let shift = mean as f32;
    let (mut total, mut squares) = run(Deviations(x, shift));
    if !sound(squares) {
        let shift = f64::from(shift);
        total = x.iter().map(|v| f64::from(*v) - shift).sum();
        squares = x.iter().map(|v| (f64::from(*v) - shift).powi(2)).sum();
    }
    (shift, total, squares)
}

struct Scale<'a> {
    x: &'a [f32],
    moments: Moments<f32>,
    gamma: &'a [f32],
    beta: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Moments { shift, scale, offset } = self.moments;
        let rows = self.out.iter_mut().zip(self.x).zip(self.gamma);
        match self.beta {
            Some(beta) => {
                for (((o, x), g), b) in rows.zip(beta) {
                    *o = fma::<FMA>(fma::<FMA>(*x - shift, scale, offset), *g, *b);
                }
            }
            None => {
                for ((o, x), g) in rows {
                    *o = fma::<FMA>(*x - shift, scale, offset) * *g;
                }
            }
        }
    }
}

struct Affine<'a>(&'a [f32], Moments<f32>, f32, f32, &'a mut [f32]);

impl Kernel for Affine<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Affine(x, Moments { shift, scale, offset }, gamma, beta, out) = self;
        for (o, x) in out.iter_mut().zip(x) {
            *o = fma::<FMA>(fma::<FMA>(*x - shift, scale, offset), gamma, beta);
        }
    }
}

/// What columns of a softmax do with one row of a block.
enum Column<'a> {
    Raise(&'a mut [f32], &'a [f32]),
    Sum(&'a mut [f64], &'a [f32], &'a [f32]),
    Weights(&'a [f32], &'a [f32], &'a [f64], &'a mut [f32]),
    Logs(&'a [f32], &'a [f32], &'a [f64], &'a mut [f32]),
}

impl Kernel for Column<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        match self {
            Column::Raise(max, x) => {
                for (m, x) in max.iter_mut().zip(x) {
                    *m = if *x > *m { *x } else { *m };
                }
            }
            Column::Sum(sum, x, max) => {
                for ((s, x), m) in sum.iter_mut().zip(x).zip(max) {
                    *s += f64::from(exp_below::<FMA>(*x - *m));
                }
            }
            Column::Weights(x, max, sum, out) => {
                for (((o, x), m), s) in out.iter_mut().zip(x).zip(max).zip(sum) {
                    *o = exp_below::<FMA>(*x - *m) / *s as f32;
                }
            }
            Column::Logs(x, max, sum, out) => {
                for (((o, x), m), s) in out.iter_mut().zip(x).zip(max).zip(sum) {
                    *o = (*x - *m) - log::<FMA>(*s as f32);
                }
            }
        }
    }
}

impl Wide for f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;

    fn softmax(x: &[f32], out: &mut [f32]) {
        run(Softmax(x, out));
    }

    fn log_softmax(x: &[f32], out: &mut [f32]) {
        run(LogSoftmax(x, out));
    }

    fn short_softmax(x: &[f32], out: &mut [f32], row: usize, log: bool) {
        run(ShortSoftmax { x, out, row, log });
    }

    fn layer_norm(x: &[f32], gamma: &[f32], beta: Option<&[f32]>, eps: f64, out: &mut [f32]) {
        run(Scale { x, moments: Self::moments(x, eps), gamma, beta, out });
    }

    fn rms_norm(x: &[f32], gamma: &[f32], beta: Option<&[f32]>, eps: f64, out: &mut [f32]) {
        let mut squares = run(SumSquares(x));
        if !sound(squares) {
            squares = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        }
        let scale = (squares / x.len() as f64 + eps).sqrt().recip() as f32;
        run(Scale { x, moments: Moments { shift: 0.0, scale, offset: 0.0 }, gamma, beta, out });
    }

    fn moments(x: &[f32], eps: f64) -> Moments<f32> {
        let n = x.len() as f64;
        // One pass, around a number that is close to the mean. Where it is not, the squares are mostly those of the
        // distance between the two, and the variance would lose digits to their difference.
        let mut shift = run(NearMean(x));
        let (mut total, mut squares) = run(Deviations(x, shift));
        let close = total * total <= 0.5 * n * squares;
        if !(sound(squares) && close) {
            (shift, total, squares) = deviations_from_mean(x);
        }
        let rest = total / n;
        let scale = ((squares / n - rest * rest).max(0.0) + eps).sqrt().recip();
        let scale = if squares.is_nan() { f64::NAN } else { scale };
        Moments { shift, scale: scale as f32, offset: (-rest * scale) as f32 }
    }

    fn affine(x: &[f32], moments: Moments<f32>, gamma: f32, beta: f32, out: &mut [f32]) {
        run(Affine(x, moments, gamma, beta, out));
    }

    fn raise(max: &mut [f32], x: &[f32]) {
        run(Column::Raise(max, x));
    }

    fn add_weights(sum: &mut [f64], x: &[f32], max: &[f32]) {
        run(Column::Sum(sum, x, max));
    }

    fn weights(x: &[f32], max: &[f32], sum: &[f64], log: bool, out: &mut [f32]) {
        run(if log { Column::Logs(x, max, sum, out) } else { Column::Weights(x, max, sum, out) });
    }
}
