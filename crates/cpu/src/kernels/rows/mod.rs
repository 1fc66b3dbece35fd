//! Softmax and norms: kernels that see one row at a time, in cache.

mod columns;
mod double;
mod single;
#[cfg(test)]
mod tests;
mod wide;

use olivine_ir::DType;
use olivine_ir::op::{GroupNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax};

use super::elementwise::{FusedRegion, Program};
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::scratch;
use crate::simd;
use wide::{Narrow, Wide};

kernels! { |op, x, out, call|
    LayerNorm => layer_norm(op, call.program(), x, out),
    RmsNorm => rms_norm(op, call.program(), x, out),
    GroupNorm => group_norm(op, x, out),
    Softmax => softmax(op, x, out),
    LogSoftmax => log_softmax(op, x, out),
}

/// Elements a task should have at least.
const TASK: usize = 32 << 10;

/// Elements of a row up to which several rows share a vector.
const SHORT: usize = 16;

/// Elements that a prologue makes at once: they stay in the first-level cache.
const PROLOGUE: usize = 4096;

/// Runs `$body` with `$t` bound to the Rust type of a float dtype; other dtypes never get here.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F16 => {
                type $t = half::f16;
                $body
            }
            DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}

/// `eˣ / Σeˣ` along an axis.
pub(crate) fn softmax(op: &Softmax, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    with_float!(x[0].ty.dtype, T => along::<T>(op.axis, false, &x[0], &mut out[0]));
}

/// `eˣ / Σeˣ` of rows that are one after the other, on this thread; results may bypass the caches.
pub(crate) fn softmax_rows(x: &[f32], out: &mut [f32], row: usize, stream: bool) {
    wide::with_buffers(|_, to| {
        for (x, out) in x.chunks_exact(row).zip(out.chunks_exact_mut(row)) {
            f32::write(out, to, stream, |out| f32::softmax(x, out));
        }
    });
    fence(stream);
}

/// `x − ln Σeˣ` along an axis.
pub(crate) fn log_softmax(op: &LogSoftmax, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    with_float!(x[0].ty.dtype, T => along::<T>(op.axis, true, &x[0], &mut out[0]));
}

fn along<T: Narrow>(axis: usize, log: bool, x: &Operand<'_>, out: &mut Target<'_>) {
    let shape = *x.shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let x = x.slice::<T>();
    if inner == 1 && shape[axis] <= SHORT {
        by_short_rows(x, out.elements(), shape[axis], log);
    } else if inner == 1 {
        let row = if log { T::Wide::log_softmax } else { T::Wide::softmax };
        by_rows(x, out.elements(), shape[axis], &row);
    } else {
        columns::softmax(x, out.elements(), shape[axis], inner, log);
    }
}

/// From a row to its result.
type RowFn<'a, W> = &'a (dyn Fn(&[W], &mut [W]) + Sync);

/// Applies `f` to each row in the wide type, on all threads.
fn by_rows<T: Narrow>(x: &[T], out: &mut [T], row: usize, f: RowFn<'_, T::Wide>) {
    if row == 0 || out.is_empty() {
        return;
    }
    let stream = size_of_val(out) >= simd::STREAM_FROM;
    let chunk = rows_per_task(row) * row;
    parallel::chunks(out, chunk, &|i, out| {
        let x = &x[i * chunk..][..out.len()];
        wide::with_buffers(|from, to| {
            for (x, out) in x.chunks_exact(row).zip(out.chunks_exact_mut(row)) {
                let x = T::wide(x, from);
                T::write(out, to, stream, |out| f(x, out));
            }
        });
        fence(stream);
    });
}

/// Softmax, or its logarithm, of short rows, many at once.
fn by_short_rows<T: Narrow>(x: &[T], out: &mut [T], row: usize, log: bool) {
    if row == 0 || out.is_empty() {
        return;
    }
    let chunk = rows_per_task(row) * row;
    parallel::chunks(out, chunk, &|i, out| {
        let x = &x[i * chunk..][..out.len()];
        wide::with_buffers(|from, to| {
            for (x, out) in x.chunks(row * PROLOGUE / SHORT).zip(out.chunks_mut(row * PROLOGUE / SHORT)) {
                let x = T::wide(x, from);
                T::write(out, to, false, |out| T::Wide::short_softmax(x, out, row, log));
            }
        });
    });
}

/// Ends a task whose stores may have bypassed the caches.
fn fence(stream: bool) {
    if stream {
        simd::stream_fence();
    }
}

fn rows_per_task(row: usize) -> usize {
    (TASK / row.max(1)).max(1)
}

/// How a row norm scales.
#[derive(Clone, Copy)]
enum Norm {
    Layer,
    Rms,
}

/// A norm of rows: what both kinds have in common.
#[derive(Clone, Copy)]
struct RowNorm<'a> {
    norm: Norm,
    axis: usize,
    eps: f64,
    bias: bool,
    /// Whether the row's input is a second result.
    emit: bool,
    /// What makes the row's input, prepared.
    prologue: Option<&'a Program>,
}

/// Layer norm over trailing axes.
pub(crate) fn layer_norm(
    op: &LayerNorm,
    prologue: Option<&Program>,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
) {
    let &LayerNorm { axis, eps, bias, emit_input: emit, .. } = op;
    row_norm(RowNorm { norm: Norm::Layer, axis, eps, bias, emit, prologue }, x, out);
}

/// RMS norm over trailing axes.
pub(crate) fn rms_norm(op: &RmsNorm, prologue: Option<&Program>, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let &RmsNorm { axis, eps, bias, emit_input: emit, .. } = op;
    row_norm(RowNorm { norm: Norm::Rms, axis, eps, bias, emit, prologue }, x, out);
}

fn row_norm(op: RowNorm<'_>, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    with_float!(out[0].ty.dtype, T => row_norm_as::<T>(op, x, out));
}

fn row_norm_as<T: Narrow>(op: RowNorm<'_>, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let RowNorm { norm, axis, eps, bias, emit, prologue } = op;
    let shape = out[0].ty.shape;
    let row: usize = shape[axis..].iter().product();
    if shape.has_zero() {
        return;
    }
    let gamma = widened::<T>(&x[1]);
    let beta = if bias { widened::<T>(&x[2]) } else { Vec::new() };
    let beta = bias.then_some(beta.as_slice());
    let apply = |x: &[T::Wide], out: &mut [T::Wide]| match norm {
        Norm::Layer => T::Wide::layer_norm(x, &gamma, beta, eps, out),
        Norm::Rms => T::Wide::rms_norm(x, &gamma, beta, eps, out),
    };
    let (first, rest) = out.split_at_mut(1);
    let result: &mut [T] = first[0].elements();
    let Some(program) = prologue else {
        let x = x[0].slice::<T>();
        if let (true, Some(second)) = (emit, rest.first_mut()) {
            second.elements::<T>().copy_from_slice(x);
        }
        by_rows(x, result, row, &apply);
        return;
    };
    let own = 2 + usize::from(bias);
    let epilogue = FusedRegion::new(program, &x[own..], &shape);
    let main = Main { bytes: contiguous_bytes(&x[0]), size: x[0].ty.dtype.size() };
    let chunk = rows_per_task(row) * row;
    let stream = size_of_val(result) >= simd::STREAM_FROM;
    // The prologue makes several short rows at once.
    let group = (PROLOGUE / row).max(1) * row;
    let some =
        |start: usize, input: &mut [T], out: &mut [T], from: &mut Vec<T::Wide>, to: &mut Vec<T::Wide>| {
            epilogue.apply(start, main.run(start, input.len()), input);
            for (input, out) in input.chunks_exact(row).zip(out.chunks_exact_mut(row)) {
                let input = T::wide(input, from);
                T::write(out, to, stream, |out| apply(input, out));
            }
        };
    if let (true, Some(second)) = (emit, rest.first_mut()) {
        let emitted: &mut [T] = second.elements();
        parallel::chunks2((result, chunk), (emitted, chunk), &|i, out, emitted| {
            wide::with_buffers(|from, to| {
                let groups = out.chunks_mut(group).zip(emitted.chunks_mut(group));
                for (j, (out, emitted)) in groups.enumerate() {
                    some(i * chunk + j * group, emitted, out, from, to);
                }
            });
            fence(stream);
        });
    } else {
        parallel::chunks(result, chunk, &|i, out| {
            let mut input = scratch::filled(T::default(), group.min(out.len()));
            wide::with_buffers(|from, to| {
                for (j, out) in out.chunks_mut(group).enumerate() {
                    some(i * chunk + j * group, &mut input[..out.len()], out, from, to);
                }
            });
            fence(stream);
        });
    }
}

/// A norm's operand 0 before its prologue, whatever its dtype.
struct Main<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Main<'a> {
    fn run(&self, start: usize, len: usize) -> &'a [u8] {
        &self.bytes[start * self.size..(start + len) * self.size]
    }
}

fn contiguous_bytes<'a>(x: &Operand<'a>) -> &'a [u8] {
    let size = x.ty.dtype.size();
    x.bytes().get(x.offset * size..x.offset * size + x.ty.bytes()).unwrap_or(&[])
}

fn widened<T: Narrow>(x: &Operand<'_>) -> Vec<T::Wide> {
    let mut buffer = Vec::new();
    T::wide(x.slice::<T>(), &mut buffer).to_vec()
}

/// Norm over groups of channels of `[N, C, ..]`.
pub(crate) fn group_norm(op: &GroupNorm, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    with_float!(x[0].ty.dtype, T => group_norm_as::<T>(op, x, &mut out[0]));
}

fn group_norm_as<T: Narrow>(op: &GroupNorm, x: &[Operand<'_>], out: &mut Target<'_>) {
    let shape = *x[0].shape();
    let (channels, positions) = (shape[1], shape[2..].iter().product::<usize>());
    if shape.has_zero() {
        return;
    }
    let per_group = channels / op.groups;
    let row = per_group * positions;
    let (gamma, beta) = (widened::<T>(&x[1]), widened::<T>(&x[2]));
    let chunk = rows_per_task(row) * row;
    let stream = out.ty.bytes() >= simd::STREAM_FROM;
    let (x, out) = (x[0].slice::<T>(), out.elements::<T>());
    parallel::chunks(out, chunk, &|i, out| {
        let x = &x[i * chunk..][..out.len()];
        wide::with_buffers(|from, to| {
            for (j, (x, out)) in x.chunks_exact(row).zip(out.chunks_exact_mut(row)).enumerate() {
                let first = (i * (chunk / row) + j) % op.groups * per_group;
                let x = T::wide(x, from);
                let moments = T::Wide::moments(x, op.eps);
                T::write(out, to, stream, |out| {
                    let segments = x.chunks_exact(positions).zip(out.chunks_exact_mut(positions));
                    for (c, (x, out)) in segments.enumerate() {
                        T::Wide::affine(x, moments, gamma[first + c], beta[first + c], out);
                    }
                });
            }
        });
        fence(stream);
    });
}
