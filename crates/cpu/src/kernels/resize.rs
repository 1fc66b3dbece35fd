//! Resizing: nearest samples by element size, interpolation as weights per axis.
//!
//! Interpolation is separable. Leading axes are resampled one after another; the last two together, plane by plane and
//! in bands of rows, so that what is between stays in cache.

use olivine_ir::DType;
use olivine_ir::op::{Resize, ResizeMode};
use olivine_numerics::resample::{Filter, ResizedAxis, nearest};

use super::conv::real::{Half, Real, narrowed, widened};
use super::conv::scratch::with_scratch;
use crate::kernel::kernels;
use crate::operand::{Operand, Target};

#[cfg(test)]
mod tests;

use crate::parallel;
use crate::scratch::{self, or_unwind};
use crate::simd::{self, Kernel};

kernels! { |op, x, out, call|
    Resize => resize(op, x, out),
}

/// Elements a task should write at least.
const TASK: usize = 1 << 14;

/// x resized to the target's sizes.
pub(crate) fn resize(op: &Resize, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let target = &mut out[0];
    if target.shape().has_zero() {
        return;
    }
    if op.mode == ResizeMode::Nearest {
        return match x[0].ty.dtype.size() {
            1 => pick::<u8>(op, &x[0], target),
            2 => pick::<u16>(op, &x[0], target),
            4 => pick::<u32>(op, &x[0], target),
            _ => pick::<u64>(op, &x[0], target),
        };
    }
    let axes = ResizedAxis::all(op, x[0].shape(), &target.shape());
    match x[0].ty.dtype {
        DType::F64 => interpolate(op, &axes, x[0].slice(), target.elements::<f64>()),
        DType::F16 => interpolate_half::<half::f16>(op, &x[0], target),
        DType::BF16 => interpolate_half::<half::bf16>(op, &x[0], target),
        _ => interpolate(op, &axes, x[0].slice(), target.elements::<f32>()),
    }
}

/// Nearest samples: rows of the last resized axis, whose elements are runs of the unchanged axes behind it.
fn pick<T: bytemuck::Pod + Send + Sync>(op: &Resize, x: &Operand<'_>, out: &mut Target<'_>) {
    let (from, to) = (*x.shape(), out.shape());
    let (x, out) = (x.slice::<T>(), out.elements::<T>());
    let axes = ResizedAxis::all(op, &from, &to);
    let Some(last) = axes.iter().rposition(|axis| !axis.is_unchanged()) else {
        return out.copy_from_slice(x);
    };
    let tables: Vec<Vec<usize>> = axes[..=last].iter().map(|axis| or_unwind(nearest(op, axis))).collect();
    let run: usize = from[last + 1..].iter().product();
    let (row_in, row_out) = (from[last] * run, to[last] * run);
    let columns = &tables[last];
    let doubled = run == 1 && columns.iter().enumerate().all(|(i, &c)| c == i / 2);
    // The input row that an output row comes from.
    let source = |row: usize| {
        let (mut rest, mut at, mut step) = (row, 0, 1);
        for a in (0..last).rev() {
            at += tables[a][rest % to[a]] * step;
            step *= from[a];
            rest /= to[a];
        }
        at
    };
    let rows = TASK.div_ceil(row_out);
    parallel::chunks(out, rows * row_out, &|chunk, out| {
        let mut before = None;
        for i in 0..out.len() / row_out {
            let at = source(chunk * rows + i);
            if before == Some(at) {
                out.copy_within((i - 1) * row_out..i * row_out, i * row_out);
                continue;
            }
            before = Some(at);
            let row = &x[at * row_in..][..row_in];
            let out = &mut out[i * row_out..][..row_out];
            if doubled {
                simd::run(Double { row, out });
            } else if run == 1 {
                out.iter_mut().zip(columns).for_each(|(o, &c)| *o = row[c]);
            } else {
                let runs = out.chunks_exact_mut(run).zip(columns);
                runs.for_each(|(o, &c)| o.copy_from_slice(&row[c * run..][..run]));
            }
        }
    });
}

/// Every element twice.
struct Double<'a, T> {
    row: &'a [T],
    out: &'a mut [T],
}

impl<T: Copy> Kernel for Double<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (pairs, odd) = self.out.as_chunks_mut::<2>();
        pairs.iter_mut().zip(self.row).for_each(|(pair, &x)| *pair = [x, x]);
        if let ([o], Some(x)) = (odd, self.row.get(pairs.len())) {
            *o = *x;
        }
    }
}

fn interpolate_half<H: Half>(op: &Resize, x: &Operand<'_>, out: &mut Target<'_>) {
    let mut result = scratch::zeroed::<f32>(out.shape().numel());
    let axes = ResizedAxis::all(op, x.shape(), &out.shape());
    interpolate(op, &axes, &widened(x.slice::<H>()), &mut result);
    narrowed(&result, out.elements::<H>());
}

fn interpolate<T: Real>(op: &Resize, axes: &[ResizedAxis], x: &[T], out: &mut [T]) {
    let resized: Vec<usize> = (0..axes.len()).filter(|&a| !axes[a].is_unchanged()).collect();
    let Some(&last) = resized.last() else {
        return out.copy_from_slice(x);
    };
    let mut sizes: Vec<usize> = axes.iter().map(|axis| axis.input).collect();
    let mut held: Option<Vec<T>> = None;
    // The plane's rows and columns: the last resized axis, and the one before it.
    let (rows, leading) = match resized.len() {
        1 => (None, &[][..]),
        n if resized[n - 2] + 1 == last => (Some(last - 1), &resized[..n - 2]),
        n => (None, &resized[..n - 1]),
    };
    for &axis in leading {
        let filter = or_unwind(Filter::new(op, &axes[axis]));
        let mut next = scratch::zeroed::<T>(sizes.iter().product::<usize>() / sizes[axis] * filter.output);
        let inner = sizes[axis + 1..].iter().product();
        resample(held.as_deref().unwrap_or(x), &filter, &or_unwind(Filter::identity(1)), inner, &mut next);
        sizes[axis] = filter.output;
        held = Some(next);
    }
    let x = held.as_deref().unwrap_or(x);
    let inner = sizes[last + 1..].iter().product::<usize>();
    let column_filter = or_unwind(Filter::new(op, &axes[last]));
    match rows {
        Some(axis) => resample(x, &or_unwind(Filter::new(op, &axes[axis])), &column_filter, inner, out),
        None if inner > 1 => resample(x, &column_filter, &or_unwind(Filter::identity(1)), inner, out),
        None => {
            let rows = last.checked_sub(1).map_or(1, |a| sizes[a]);
            resample(x, &or_unwind(Filter::identity(rows)), &column_filter, 1, out);
        }
    }
}

/// Resamples rows and columns of planes whose elements are runs of `inner`.
fn resample<T: Real>(x: &[T], rows: &Filter, columns: &Filter, inner: usize, out: &mut [T]) {
    let (row_in, row_out) = (columns.input * inner, columns.output * inner);
    let (plane_in, plane_out) = (rows.input * row_in, rows.output * row_out);
    let weights: Vec<T> = columns.weights.iter().map(|&w| T::from_f64(w)).collect();
    let band = TASK.div_ceil(row_out).min(rows.output);
    let run = |plane: usize, first: usize, out: &mut [T]| {
        let x = &x[plane * plane_in..][..plane_in];
        if columns.is_identity() {
            return blend(rows, first, 0, x, row_out, out);
        }
        let seen = rows.reach(first, first + out.len() / row_out);
        if rows.is_identity() {
            let lines = x[seen.start * row_in..seen.end * row_in].chunks_exact(row_in);
            lines.zip(out.chunks_exact_mut(row_out)).for_each(|(x, out)| {
                simd::run(Across { columns, weights: &weights, x, inner, out });
            });
            return;
        }
        with_scratch(seen.len() * row_out, |wide: &mut [T]| {
            let lines = x[seen.start * row_in..seen.end * row_in].chunks_exact(row_in);
            lines.zip(wide.chunks_exact_mut(row_out)).for_each(|(x, out)| {
                simd::run(Across { columns, weights: &weights, x, inner, out });
            });
            blend(rows, first, seen.start, wide, row_out, out);
        });
    };
    let planes = TASK.div_ceil(plane_out);
    parallel::grouped(out, plane_out, planes, &|plane, out| {
        parallel::chunks(out, band * row_out, &|b, out| run(plane, b * band, out));
    });
}

/// Output rows `first..` as sums of rows of `x`, whose first row is input row `origin`.
fn blend<T: Real>(rows: &Filter, first: usize, origin: usize, x: &[T], width: usize, out: &mut [T]) {
    for (i, out) in out.chunks_exact_mut(width).enumerate() {
        let (indices, weights) = rows.of(first + i);
        simd::run(Blend { indices, weights, origin, x, out });
    }
}

/// One output row from whole input rows.
struct Blend<'a, T> {
    indices: &'a [usize],
    weights: &'a [f64],
    origin: usize,
    x: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> Kernel for Blend<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let width = self.out.len();
        let row = |k: usize| &self.x[(self.indices[k] - self.origin) * width..][..width];
        if let [a, b] = *self.weights {
            let (a, b) = (T::from_f64(a), T::from_f64(b));
            let pairs = row(0).iter().zip(row(1));
            self.out.iter_mut().zip(pairs).for_each(|(o, (&x, &y))| *o = x.multiply_add::<FMA>(a, y * b));
            return;
        }
        self.out.fill(T::ZERO);
        for (k, &w) in self.weights.iter().enumerate() {
            let w = T::from_f64(w);
            self.out.iter_mut().zip(row(k)).for_each(|(o, &x)| *o = x.multiply_add::<FMA>(w, *o));
        }
    }
}

/// One row resampled along itself.
struct Across<'a, T> {
    columns: &'a Filter,
    weights: &'a [T],
    x: &'a [T],
    inner: usize,
    out: &'a mut [T],
}

impl<T: Real> Kernel for Across<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let taps = self.columns.taps;
        let indices = self.columns.indices.chunks_exact(taps);
        let table = indices.zip(self.weights.chunks_exact(taps));
        if self.inner == 1 {
            if taps == 2 {
                let pairs = self.columns.indices.as_chunks::<2>().0.iter();
                let table = pairs.zip(self.weights.as_chunks::<2>().0);
                for (o, (&[i, j], &[a, b])) in self.out.iter_mut().zip(table) {
                    *o = self.x[i].multiply_add::<FMA>(a, self.x[j] * b);
                }
                return;
            }
            for (o, (indices, weights)) in self.out.iter_mut().zip(table) {
                let mut sum = T::ZERO;
                for (&i, &w) in indices.iter().zip(weights) {
                    sum = self.x[i].multiply_add::<FMA>(w, sum);
                }
                *o = sum;
            }
            return;
        }
        for (out, (indices, weights)) in self.out.chunks_exact_mut(self.inner).zip(table) {
            out.fill(T::ZERO);
            for (&i, &w) in indices.iter().zip(weights) {
                let x = &self.x[i * self.inner..][..self.inner];
                out.iter_mut().zip(x).for_each(|(o, &x)| *o = x.multiply_add::<FMA>(w, *o));
            }
        }
    }
}
