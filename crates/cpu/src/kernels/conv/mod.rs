//! Convolutions: by tiles of matrix products, or row by row where channels per group are few.

use olivine_ir::op::{Conv, ConvTranspose, Im2Col};
use olivine_ir::{DType, TensorType};

use crate::kernels::contraction::finish_runs;
use crate::kernels::elementwise::{Program, Rider};
use crate::operand::{Number, Operand, Target, with_number};

mod blocked;
mod direct;
pub(crate) mod geometry;
mod patches;
pub(crate) mod real;
pub(crate) mod scratch;
#[cfg(test)]
mod tests;
mod transpose;

use crate::parallel;
use geometry::Geometry;
use real::{Half, Real, narrowed, widened};

/// Multiply-adds below which threads cost more than they bring.
const SMALL: usize = 1 << 16;

/// What happens to each finished run of a result while it is in cache: the flat position of its first element, and the run.
///
/// Runs are disjoint, cover the result, and are finished in parallel.
#[derive(Clone, Copy)]
pub(crate) enum Finish<'a> {
    /// Nothing.
    Keep,
    /// For f32 results, and f16 and bf16 ones before they are rounded.
    Single(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
    /// For f64 results.
    Double(&'a (dyn Fn(usize, &mut [f64]) + Sync)),
}

impl<'a> Finish<'a> {
    fn single(self) -> &'a (dyn Fn(usize, &mut [f32]) + Sync) {
        debug_assert!(!matches!(self, Finish::Double(_)), "a result that is not f64 is finished in f32");
        if let Finish::Single(f) = self { f } else { &|_, _| {} }
    }

    fn double(self) -> &'a (dyn Fn(usize, &mut [f64]) + Sync) {
        debug_assert!(!matches!(self, Finish::Single(_)), "an f64 result is finished in f64");
        if let Finish::Double(f) = self { f } else { &|_, _| {} }
    }
}

/// A convolution in the type it is computed in.
struct Problem<'a, T> {
    geometry: Geometry,
    images: usize,
    groups: usize,
    /// Input channels per group.
    channels: usize,
    /// Filters of all groups.
    w_filters: usize,
    x: &'a [T],
    w: &'a [T],
    bias: Option<&'a [T]>,
}

impl<'a, T> Problem<'a, T> {
    /// Filters per group.
    fn filters(&self) -> usize {
        self.w_filters / self.groups
    }

    /// Products per result.
    fn depth(&self) -> usize {
        self.channels * self.geometry.kernel_len()
    }

    /// Multiply-adds in all.
    fn work(&self) -> usize {
        let per_filter = self.geometry.output_len().saturating_mul(self.depth().max(1));
        per_filter.saturating_mul(self.w_filters).saturating_mul(self.images)
    }

    /// One channel of the operand.
    fn plane(&self, image: usize, group: usize, channel: usize) -> &'a [T] {
        let len = self.geometry.input_len();
        &self.x[((image * self.groups + group) * self.channels + channel) * len..][..len]
    }
}

/// Convolution, then the epilogue on every run of the result while it is in cache.
pub(crate) fn conv(op: &Conv, epilogue: Option<&Program>, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(program) = epilogue else { return plain_conv(op, x, out, Finish::Keep) };
    let (own, shape, dtype) = (2 + usize::from(op.bias), out[0].shape(), x[0].ty.dtype);
    let rider = Rider::new(program, &x[own..], &shape);
    let same = program.output_dtype() == Some(dtype);
    match dtype {
        DType::F32 if same => {
            plain_conv(op, x, out, Finish::Single(&|at, run| rider.apply_in_place(at, run)))
        }
        DType::F64 if same => {
            plain_conv(op, x, out, Finish::Double(&|at, run| rider.apply_in_place(at, run)))
        }
        // The result is rounded to its own dtype before the region sees it, as if it had been stored.
        dtype => with_number!(dtype, T => {
            let mut result = vec![T::ZERO; shape.numel()];
            let ty = TensorType::new(dtype, shape);
            let target = Target { ty, bytes: bytemuck::cast_slice_mut(&mut result) };
            plain_conv(op, x, &mut [target], Finish::Keep);
            finish_runs(&result, &mut out[0], &|at, run, to| rider.apply(at, run, to));
        }),
    }
}

/// Convolution: x `[N, C, ..]`, w `[M, C/groups, ..]` and a bias `[M]`; the region of `op` is the caller's, by `finish`.
fn plain_conv(op: &Conv, x: &[Operand<'_>], out: &mut [Target<'_>], finish: Finish<'_>) {
    let target = &mut out[0];
    match x[0].ty.dtype {
        DType::F64 => {
            let bias = op.bias.then(|| x[2].slice());
            convolve(op, x, x[0].slice(), x[1].slice(), bias, target.elements::<f64>(), finish.double());
        }
        DType::F16 => conv_half::<half::f16>(op, x, target, finish),
        DType::BF16 => conv_half::<half::bf16>(op, x, target, finish),
        _ => {
            let bias = op.bias.then(|| x[2].slice());
            convolve(op, x, x[0].slice(), x[1].slice(), bias, target.elements::<f32>(), finish.single());
        }
    }
}

fn conv_half<H: Half>(op: &Conv, x: &[Operand<'_>], target: &mut Target<'_>, finish: Finish<'_>) {
    let (data, w) = (widened(x[0].slice::<H>()), widened(x[1].slice::<H>()));
    let bias = op.bias.then(|| widened(x[2].slice::<H>()));
    let mut result = vec![0f32; target.shape().numel()];
    convolve(op, x, &data, &w, bias.as_deref(), &mut result, finish.single());
    narrowed(&result, target.elements::<H>());
}

fn convolve<T: Real>(
    op: &Conv,
    operands: &[Operand<'_>],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    finish: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if out.is_empty() {
        return;
    }
    let (xs, ws) = (operands[0].shape(), operands[1].shape());
    let counts: Vec<usize> =
        (2..xs.rank()).map(|i| op.window.count(i - 2, xs[i], ws[i], false).unwrap_or_default()).collect();
    let problem = Problem {
        geometry: Geometry::new(&op.window, &xs[2..], &ws[2..], &counts),
        images: xs[0],
        groups: op.groups,
        channels: ws[1],
        w_filters: ws[0],
        x,
        w,
        bias,
    };
    if direct::suits(&problem) {
        direct::convolve(&problem, out, finish);
    } else {
        blocked::convolve(&problem, out, finish);
    }
}

/// Transposed convolution: x `[N, C, ..]`, w `[C, M/groups, ..]` and a bias `[M]`.
pub(crate) fn conv_transpose(op: &ConvTranspose, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let target = &mut out[0];
    match x[0].ty.dtype {
        DType::F64 => {
            let bias = op.bias.then(|| x[2].slice());
            transpose::scatter(
                op,
                x,
                x[0].slice(),
                x[1].slice(),
                bias,
                target.shape(),
                target.elements::<f64>(),
            );
        }
        DType::F16 => transpose_half::<half::f16>(op, x, target),
        DType::BF16 => transpose_half::<half::bf16>(op, x, target),
        _ => {
            let bias = op.bias.then(|| x[2].slice());
            transpose::scatter(
                op,
                x,
                x[0].slice(),
                x[1].slice(),
                bias,
                target.shape(),
                target.elements::<f32>(),
            );
        }
    }
}

fn transpose_half<H: Half>(op: &ConvTranspose, x: &[Operand<'_>], target: &mut Target<'_>) {
    let (data, w) = (widened(x[0].slice::<H>()), widened(x[1].slice::<H>()));
    let bias = op.bias.then(|| widened(x[2].slice::<H>()));
    let mut result = vec![0f32; target.shape().numel()];
    transpose::scatter(op, x, &data, &w, bias.as_deref(), target.shape(), &mut result);
    narrowed(&result, target.elements::<H>());
}

/// The windows of x as columns.
pub(crate) fn im2col(op: &Im2Col, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype.size() {
        1 => columns::<u8>(op, &x[0], &mut out[0]),
        2 => columns::<u16>(op, &x[0], &mut out[0]),
        4 => columns::<u32>(op, &x[0], &mut out[0]),
        _ => columns::<u64>(op, &x[0], &mut out[0]),
    }
}

fn columns<T: bytemuck::Pod + Send + Sync>(op: &Im2Col, x: &Operand<'_>, out: &mut Target<'_>) {
    let (shape, windows) = (x.shape(), out.shape()[2]);
    let out = out.elements::<T>();
    if out.is_empty() {
        return;
    }
    let counts: Vec<usize> = (2..shape.rank())
        .map(|i| op.window.count(i - 2, shape[i], op.kernel[i - 2], false).unwrap_or_default())
        .collect();
    let geometry = Geometry::new(&op.window, &shape[2..], &op.kernel, &counts);
    let (kernel, plane, x) = (geometry.kernel_len(), geometry.input_len(), x.slice::<T>());
    parallel::grouped(out, windows, SMALL.div_ceil(windows), &|row, out| {
        let source = &x[row / kernel * plane..][..plane];
        patches::patch_row(&geometry, source, row % kernel, 0, out);
    });
}
