//! Windows as columns, and columns as the image that they were cut from.

use olivine_ir::op::{Col2Im, Im2Col};
use olivine_ir::{DType, Shape};

use super::geometry::{Axis, Geometry};
use super::real::{Half, narrowed, widened};
use super::{SMALL, patches};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target, with_number};
use crate::parallel;
use crate::scratch::zeroed;

kernels! { |op, x, out, call|
    Im2Col => im2col(op, x, out),
    Col2Im => col2im(op, x, out),
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

/// Columns added up where their windows overlap. Sums of f16 and bf16 are f32.
fn col2im(op: &Col2Im, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype {
        DType::F16 => fold_half::<half::f16>(op, &x[0], &mut out[0]),
        DType::BF16 => fold_half::<half::bf16>(op, &x[0], &mut out[0]),
        dtype => with_number!(dtype, T => {
            let shape = out[0].shape();
            fold::<T>(op, x[0].slice(), &shape, out[0].elements());
        }),
    }
}

fn fold_half<H: Half>(op: &Col2Im, x: &Operand<'_>, target: &mut Target<'_>) {
    let mut sums = zeroed::<f32>(target.shape().numel());
    fold(op, &widened(x.slice::<H>()), &target.shape(), &mut sums);
    narrowed(&sums, target.elements::<H>());
}

fn fold<T: Number + Send + Sync>(op: &Col2Im, columns: &[T], shape: &Shape, out: &mut [T]) {
    // The operation's rule has counted them.
    let (Ok(counts), false) = (op.counts(), out.is_empty()) else { return };
    let axes: Vec<Axis> = (0..counts.len())
        .map(|i| {
            let (stride, dilation) = (op.window.strides[i], op.window.dilations[i]);
            Axis::new(op.image[i], counts[i], op.kernel[i], stride, dilation, op.window.pads[i])
        })
        .collect();
    let (taps, windows): (usize, usize) = (op.kernel.iter().product(), counts.iter().product());
    let (column, plane) = (taps * windows, shape[2..].iter().product());
    parallel::grouped(out, plane, SMALL.div_ceil(column), &|i, plane| {
        plane.fill(T::ZERO);
        let columns = &columns[i * column..][..column];
        for (tap, row) in columns.chunks_exact(windows).enumerate() {
            add(&axes, taps, tap, row, plane);
        }
    });
}

/// Adds what all windows hold for one kernel position: `tap` of the `taps` of all axes.
fn add<T: Number>(axes: &[Axis], taps: usize, tap: usize, row: &[T], image: &mut [T]) {
    let Some((axis, rest)) = axes.split_first() else { return };
    let inner_taps = taps / axis.taps.len();
    let (own, inner_tap) = (&axis.taps[tap / inner_taps], tap % inner_taps);
    if rest.is_empty() {
        for (window, value) in row.iter().enumerate().take(own.end).skip(own.first) {
            let sum = &mut image[own.at(window, axis.stride)];
            *sum = sum.plus(*value);
        }
        return;
    }
    let (windows, size) = (row.len() / axis.output, image.len() / axis.input);
    for window in own.first..own.end {
        let part = &mut image[own.at(window, axis.stride) * size..][..size];
        add(rest, inner_taps, inner_tap, &row[window * windows..][..windows], part);
    }
}
