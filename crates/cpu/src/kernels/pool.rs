//! Pools: one number from each window of a plane.

use olivine_ir::DType;
use olivine_ir::op::{AdaptivePool, Pool, PoolKind};

use super::conv::geometry::{Axis, Geometry};
use super::conv::real::{Half, Real};
use super::conv::scratch::with_scratch;
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::simd::{self, Kernel};

kernels! { |op, x, out, call|
    Pool => pool(op, x, out),
    AdaptivePool => adaptive_pool(op, x, out),
}

/// Element operations a task should have at least.
const TASK: usize = 1 << 15;

/// Result rows shorter than this are computed window by window instead of kernel position by kernel position.
const NARROW: usize = 4;

/// What a pool does with the elements of a window, one after another.
trait Fold<T>: Copy + Sync {
    const START: T;
    fn add(self, sum: T, x: T) -> T;
    /// Two partial results as one.
    fn join(self, a: T, b: T) -> T;
}

/// The largest; NaN wins, and of equals the first.
#[derive(Clone, Copy)]
struct Largest;

impl<T: Number> Fold<T> for Largest {
    const START: T = T::LOWEST;
    #[inline(always)]
    fn add(self, most: T, x: T) -> T {
        if x > most || x.is_nan() { x } else { most }
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        self.add(a, b)
    }
}

#[derive(Clone, Copy)]
struct Sum;

impl<T: Real> Fold<T> for Sum {
    const START: T = T::ZERO;
    #[inline(always)]
    fn add(self, sum: T, x: T) -> T {
        sum + x
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a + b
    }
}

/// Σ|x|ᵖ.
#[derive(Clone, Copy)]
struct PowerSum {
    p: usize,
}

impl<T: Real> Fold<T> for PowerSum {
    const START: T = T::ZERO;
    #[inline(always)]
    fn add(self, sum: T, x: T) -> T {
        match self.p {
            1 => sum + x.magnitude(),
            2 => sum + x * x,
            p => sum + x.magnitude().power(T::from_f64(p as f64)),
        }
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a + b
    }
}

/// A pool over windows; positions of maxima go to a second target.
pub(crate) fn pool(op: &Pool, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let shape = x[0].shape();
    let Some((first, rest)) = out.split_first_mut() else { return };
    let geometry = Geometry::new(&op.window, &shape[2..], &op.kernel, &first.shape()[2..]);
    if first.shape().has_zero() {
        return;
    }
    if let Some(positions) = rest.first_mut() {
        let positions = positions.elements::<i64>();
        crate::operand::with_number!(x[0].ty.dtype, T => {
            located(&geometry, x[0].slice::<T>(), first.elements::<T>(), positions)
        });
        return;
    }
    match x[0].ty.dtype {
        DType::F64 => {
            let (x, out) = (x[0].slice::<f64>(), first.elements::<f64>());
            planes(&geometry, x, out, &|x, out| windowed(op, &geometry, x, out));
        }
        DType::F16 => f16_or_bf16::<half::f16>(op, &geometry, &x[0], first),
        DType::BF16 => f16_or_bf16::<half::bf16>(op, &geometry, &x[0], first),
        DType::F32 => {
            let (x, out) = (x[0].slice::<f32>(), first.elements::<f32>());
            planes(&geometry, x, out, &|x, out| windowed(op, &geometry, x, out));
        }
        integer => crate::operand::with_number!(integer, T => {
            planes(&geometry, x[0].slice::<T>(), first.elements::<T>(), &|x, out| {
                fold_plane(Largest, &geometry, x, out);
            });
        }),
    }
}

fn f16_or_bf16<H: Half>(op: &Pool, geometry: &Geometry, x: &Operand<'_>, out: &mut Target<'_>) {
    planes(geometry, x.slice::<H>(), out.elements::<H>(), &|x, out| {
        in_f32(x, out, |x, out| windowed(op, geometry, x, out));
    });
}

/// Runs a plane's pool in f32.
fn in_f32<H: Half>(x: &[H], out: &mut [H], pool: impl FnOnce(&[f32], &mut [f32])) {
    with_scratch(x.len() + out.len(), |scratch: &mut [f32]| {
        let (wide, result) = scratch.split_at_mut(x.len());
        H::widen(x, wide);
        pool(wide, result);
        H::narrow(result, out);
    });
}

/// Every plane of `x` with its plane of `out`, in parallel.
fn planes<T: Sync, U: bytemuck::Pod>(
    geometry: &Geometry,
    x: &[T],
    out: &mut [U],
    pool: &(dyn Fn(&[T], &mut [U]) + Sync),
) {
    let (input, output) = (geometry.input_len(), geometry.output_len());
    let work = output.saturating_mul(geometry.kernel_len()).max(1);
    parallel::grouped(out, output, TASK.div_ceil(work), &|plane, out| {
        pool(&x[plane * input..][..input], out);
    });
}

/// One plane of a float pool.
fn windowed<T: Real>(op: &Pool, geometry: &Geometry, x: &[T], out: &mut [T]) {
    match op.kind {
        PoolKind::Max => fold_plane(Largest, geometry, x, out),
        PoolKind::Average => {
            fold_plane(Sum, geometry, x, out);
            let count = |axis: &Axis, o| if op.count_include_pad { axis.padded(o) } else { axis.valid(o) };
            divide(geometry, out, count);
        }
        PoolKind::Lp => {
            fold_plane(PowerSum { p: op.p }, geometry, x, out);
            let root = T::from_f64(1.0 / op.p as f64);
            match op.p {
                1 => {}
                2 => out.iter_mut().for_each(|v| *v = T::from_f64(v.to_f64().sqrt())),
                _ => out.iter_mut().for_each(|v| *v = v.power(root)),
            }
        }
    }
}

/// Divides sums by the number of elements each window counts; a window without any gives 0.
fn divide<T: Real>(geometry: &Geometry, out: &mut [T], count: impl Fn(&Axis, usize) -> usize) {
    let [az, ay, ax] = &geometry.axes;
    let across: Vec<usize> = (0..ax.output).map(|o| count(ax, o)).collect();
    for (line, out) in out.chunks_exact_mut(ax.output).enumerate() {
        let rows = count(az, line / ay.output) * count(ay, line % ay.output);
        for (v, n) in out.iter_mut().zip(&across) {
            *v = if rows * n == 0 { T::ZERO } else { *v / T::from_f64((rows * n) as f64) };
        }
    }
}

/// Folds every window of a plane: first the rows it sees, column by column, then those columns.
fn fold_plane<T: Number, F: Fold<T>>(fold: F, geometry: &Geometry, x: &[T], out: &mut [T]) {
    let [az, ay, ax] = &geometry.axes;
    with_scratch(az.output * ay.output * ax.input, |columns: &mut [T]| {
        simd::run(Plane { fold, geometry, x, columns, out });
    });
}

/// What an undilated window sees of a row.
#[inline(always)]
fn seen<'a, T>(axis: &Axis, row: &'a [T], output: usize) -> Option<&'a [T]> {
    let mut reached = axis.taps.iter().filter_map(|t| t.reach(output, axis.stride));
    let first = reached.next()?;
    Some(&row[first..=reached.next_back().unwrap_or(first)])
}

/// A plane with its windows; `columns` has room for an input row of every line.
struct Plane<'a, T, F> {
    fold: F,
    geometry: &'a Geometry,
    x: &'a [T],
    columns: &'a mut [T],
    out: &'a mut [T],
}

impl<T: Number, F: Fold<T>> Kernel for Plane<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Plane { fold, geometry, x, columns, out } = self;
        let [az, ay, ax] = &geometry.axes;
        for (line, columns) in columns.chunks_exact_mut(ax.input.max(1)).enumerate() {
            let (z, y) = (line / ay.output, line % ay.output);
            let mut first = true;
            for tz in &az.taps {
                let Some(iz) = tz.reach(z, az.stride) else { continue };
                for ty in &ay.taps {
                    let Some(iy) = ty.reach(y, ay.stride) else { continue };
                    let row = &x[(iz * ay.input + iy) * ax.input..][..ax.input];
                    if first {
                        columns.iter_mut().zip(row).for_each(|(c, &x)| *c = fold.add(F::START, x));
                        first = false;
                    } else {
                        columns.iter_mut().zip(row).for_each(|(c, &x)| *c = fold.add(*c, x));
                    }
                }
            }
            if first {
                columns.fill(F::START);
            }
        }
        out.fill(F::START);
        // Where windows part a row without a rest, all rows are one.
        let whole = ax.before == 0 && ax.input == ax.output * ax.stride;
        let within = ax.taps.len().saturating_sub(1).saturating_mul(ax.dilation) < ax.stride;
        if whole && within && ax.output > 0 {
            let all = out.len();
            for tap in &ax.taps {
                join_tap(fold, (0, all), tap.at(0, ax.stride), ax.stride, columns, out);
            }
            return;
        }
        for (columns, out) in columns.chunks_exact(ax.input.max(1)).zip(out.chunks_exact_mut(ax.output)) {
            if ax.output < NARROW && ax.dilation == 1 {
                for (o, v) in out.iter_mut().enumerate() {
                    if let Some(seen) = seen(ax, columns, o) {
                        *v = joined(fold, seen);
                    }
                }
            } else {
                for tap in &ax.taps {
                    let from = tap.at(tap.first, ax.stride);
                    join_tap(fold, (tap.first, tap.end), from, ax.stride, columns, out);
                }
            }
        }
    }
}

/// Joins to windows `first..end` the columns that one kernel position sees, `from` the first on.
#[inline(always)]
fn join_tap<T: Number, F: Fold<T>>(
    fold: F,
    (first, end): (usize, usize),
    from: usize,
    stride: usize,
    columns: &[T],
    out: &mut [T],
) {
    let out = &mut out[first..end];
    if out.is_empty() {
        return;
    }
    let x = &columns[from..];
    match stride {
        1 => out.iter_mut().zip(x).for_each(|(o, &x)| *o = fold.join(*o, x)),
        2 => {
            // The last window may have no second element after the one it reads.
            let (most, last) = out.split_at_mut(out.len() - 1);
            most.iter_mut().zip(x.as_chunks::<2>().0).for_each(|(o, x)| *o = fold.join(*o, x[0]));
            last[0] = fold.join(last[0], x[most.len() * 2]);
        }
        s => out.iter_mut().zip(x.iter().step_by(s)).for_each(|(o, &x)| *o = fold.join(*o, x)),
    }
}

/// Joins partial results that are contiguous.
#[inline(always)]
fn joined<T: Number, F: Fold<T>>(fold: F, x: &[T]) -> T {
    const LANES: usize = 16;
    let mut total = F::START;
    let (blocks, rest) = x.as_chunks::<LANES>();
    if !blocks.is_empty() {
        let mut lanes = [F::START; LANES];
        for block in blocks {
            for i in 0..LANES {
                lanes[i] = fold.join(lanes[i], block[i]);
            }
        }
        total = lanes.into_iter().fold(total, |a, b| fold.join(a, b));
    }
    rest.iter().fold(total, |sum, &x| fold.join(sum, x))
}

/// Folds elements that are contiguous.
struct Run<'a, T, F> {
    fold: F,
    x: &'a [T],
}

impl<T: Number, F: Fold<T>> Kernel for Run<'_, T, F> {
    type Output = T;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> T {
        joined(self.fold, self.x)
    }
}

/// Max pool with the flat position of each maximum in the whole operand; −1 where a window sees nothing.
fn located<T: Number + Send + Sync>(geometry: &Geometry, x: &[T], out: &mut [T], positions: &mut [i64]) {
    let [az, ay, ax] = &geometry.axes;
    let (input, output) = (geometry.input_len(), geometry.output_len());
    let work = output.saturating_mul(geometry.kernel_len()).max(1);
    let pool = |plane: usize, out: &mut [T], positions: &mut [i64]| {
        let x = &x[plane * input..][..input];
        out.fill(T::LOWEST);
        positions.fill(-1);
        let lines = out.chunks_exact_mut(ax.output).zip(positions.chunks_exact_mut(ax.output));
        for (line, (out, positions)) in lines.enumerate() {
            let (z, y) = (line / ay.output, line % ay.output);
            for iz in az.taps.iter().filter_map(|t| t.reach(z, az.stride)) {
                for iy in ay.taps.iter().filter_map(|t| t.reach(y, ay.stride)) {
                    let row = (iz * ay.input + iy) * ax.input;
                    for tap in &ax.taps {
                        for o in tap.first..tap.end {
                            let at = row + tap.at(o, ax.stride);
                            let beats = x[at] > out[o] || x[at].is_nan() && !out[o].is_nan();
                            if beats || positions[o] < 0 {
                                out[o] = x[at];
                                positions[o] = (plane * input + at) as i64;
                            }
                        }
                    }
                }
            }
        }
    };
    let least = TASK.div_ceil(work);
    let size = output * least;
    parallel::chunks2((out, size), (positions, size), &|task, out, positions| {
        let planes = out.chunks_mut(output).zip(positions.chunks_mut(output));
        planes.enumerate().for_each(|(i, (out, positions))| pool(task * least + i, out, positions));
    });
}

/// A pool whose windows divide each axis into a given count.
pub(crate) fn adaptive_pool(op: &AdaptivePool, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let target = &mut out[0];
    match x[0].ty.dtype {
        DType::F64 => adaptive(op, &x[0], target, &|x, input, out: &mut [f64], output| {
            adaptive_plane(op.kind, x, input, out, output);
        }),
        DType::F16 => adaptive(op, &x[0], target, &|x, input, out: &mut [half::f16], output| {
            in_f32(x, out, |x, out| adaptive_plane(op.kind, x, input, out, output));
        }),
        DType::BF16 => adaptive(op, &x[0], target, &|x, input, out: &mut [half::bf16], output| {
            in_f32(x, out, |x, out| adaptive_plane(op.kind, x, input, out, output));
        }),
        _ => adaptive(op, &x[0], target, &|x, input, out: &mut [f32], output| {
            adaptive_plane(op.kind, x, input, out, output);
        }),
    }
}

/// Pools one plane of a size to one of another.
type AdaptivePlane<'a, T> = &'a (dyn Fn(&[T], [usize; 3], &mut [T], [usize; 3]) + Sync);

fn adaptive<T: Number + Send + Sync>(
    op: &AdaptivePool,
    x: &Operand<'_>,
    out: &mut Target<'_>,
    pool: AdaptivePlane<'_, T>,
) {
    let shape = x.shape();
    let three = |sizes: &[usize]| {
        let lead = 3 - sizes.len().min(3);
        [0usize, 1, 2].map(|i| i.checked_sub(lead).map_or(1, |i| sizes[i]))
    };
    let (input, output) = (three(&shape[2..]), three(&op.output));
    let (x_len, out_len) = (input.iter().product::<usize>(), output.iter().product::<usize>());
    let x = x.slice::<T>();
    let least = TASK.div_ceil(x_len.max(out_len).max(1));
    parallel::grouped(out.elements::<T>(), out_len, least, &|plane, out| {
        pool(&x[plane * x_len..][..x_len], input, out, output);
    });
}

fn adaptive_plane<T: Real>(kind: PoolKind, x: &[T], input: [usize; 3], out: &mut [T], output: [usize; 3]) {
    let span = |axis: usize, o: usize| {
        let (size, count) = (input[axis] as u128, output[axis] as u128);
        let start = o as u128 * size / count;
        (start as usize)..((o as u128 + 1) * size).div_ceil(count) as usize
    };
    let columns: Vec<_> = (0..output[2]).map(|o| span(2, o)).collect();
    for (line, out) in out.chunks_exact_mut(output[2]).enumerate() {
        let (depth, height) = (span(0, line / output[1]), span(1, line % output[1]));
        for (v, width) in out.iter_mut().zip(&columns) {
            let rows = depth.clone().flat_map(|z| height.clone().map(move |y| (z * input[1] + y) * input[2]));
            let rows = rows.map(|row| &x[row + width.start..row + width.end]);
            *v = if kind == PoolKind::Max {
                rows.fold(T::LOWEST, |most, x| Largest.join(most, simd::run(Run { fold: Largest, x })))
            } else {
                let count = depth.len() * height.len() * width.len();
                let sum = rows.fold(T::ZERO, |sum, x| sum + simd::run(Run { fold: Sum, x }));
                sum / T::from_f64(count as f64)
            };
        }
    }
}

#[cfg(test)]
mod tests;
