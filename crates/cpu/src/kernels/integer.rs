//! Products of 8-bit integers less their zero points, in i32.
//!
//! Both sides become i16 lines along the summed axis, which vector units multiply and add in pairs.

use olivine_ir::DType;
use olivine_ir::op::{QConv, QMatMul};

use super::conv::geometry::Geometry;
use crate::operand::{Operand, Target};
use crate::parallel;

/// Lines of the left side that one task multiplies.
const ROWS: usize = 8;

/// Element `at` of an i8 or u8 operand.
fn byte(x: &Operand<'_>, at: usize) -> i16 {
    let byte = x.bytes().get(at).copied().unwrap_or(0);
    if x.ty.dtype == DType::I8 { i16::from(byte as i8) } else { i16::from(byte) }
}

/// The zero point of a line.
fn zero(x: Option<&Operand<'_>>, line: usize) -> i16 {
    x.map_or(0, |x| byte(x, if x.ty.shape.rank() == 0 { x.offset } else { x.offset + line }))
}

/// `lines` lines of `k` elements from `first` on, less their zero points.
fn lines(
    x: &Operand<'_>,
    first: isize,
    (lines, line_step): (usize, isize),
    (k, step): (usize, isize),
    zeros: Option<&Operand<'_>>,
) -> Vec<i16> {
    let mut out = vec![0; lines * k];
    for (line, to) in out.chunks_mut(k.max(1)).enumerate() {
        let (start, zero) = (first + line as isize * line_step, zero(zeros, line));
        for (i, to) in to.iter_mut().enumerate() {
            *to = byte(x, (start + i as isize * step) as usize) - zero;
        }
    }
    out
}

/// `out[i, j]` = line i of a times line j of b.
fn multiply(a: &[i16], b: &[i16], k: usize, out: &mut [i32], columns: usize) {
    if columns == 0 {
        return;
    }
    if k == 0 {
        return out.fill(0);
    }
    parallel::chunks(out, ROWS * columns, &|task, part| {
        for (a, out) in a[task * ROWS * k..].chunks(k).zip(part.chunks_mut(columns)) {
            for (b, out) in b.chunks(k).zip(out) {
                let products = a.iter().zip(b).map(|(x, y)| i32::from(*x) * i32::from(*y));
                *out = products.fold(0, i32::wrapping_add);
            }
        }
    });
}

/// Integer matrix product.
pub(crate) fn qmatmul(op: &QMatMul, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    let (a, b) = (&x[0], &x[1]);
    let (ra, rb) = (a.shape().rank(), b.shape().rank());
    let (m, k, n) = (a.shape()[ra - 2], a.shape()[ra - 1], b.shape()[rb - 1]);
    let a_zero = op.a_zero.then(|| &x[2]);
    let b_zero = op.b_zero.then(|| &x[2 + usize::from(op.a_zero)]);
    let shape = target.shape();
    let batch = &shape[..shape.rank() - 2];
    if shape.has_zero() {
        return;
    }
    let start = |x: &Operand<'_>, mut number: usize| {
        let own = x.shape().rank() - 2;
        let mut at = x.offset as isize;
        for (i, size) in batch.iter().enumerate().rev() {
            let index = number % size;
            number /= size;
            if let Some(axis) = (i + own).checked_sub(batch.len())
                && x.shape()[axis] != 1
            {
                at += index as isize * x.strides()[axis];
            }
        }
        at
    };
    let mut last: Option<(isize, Vec<i16>)> = None;
    for (number, out) in target.elements::<i32>().chunks_mut(m * n).enumerate() {
        let rows = lines(a, start(a, number), (m, a.strides[ra - 2]), (k, a.strides[ra - 1]), a_zero);
        let from = start(b, number);
        let columns = match last.take() {
            Some((same, columns)) if same == from => columns,
            _ => lines(b, from, (n, b.strides[rb - 1]), (k, b.strides[rb - 2]), b_zero),
        };
        multiply(&rows, &columns, k, out, n);
        last = Some((from, columns));
    }
}

/// Integer convolution: windows as lines, times the lines of w.
pub(crate) fn qconv(op: &QConv, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    let shape = target.shape();
    if shape.has_zero() {
        return;
    }
    let (image, w) = (&x[0], &x[1]);
    let x_zero = zero(op.x_zero.then(|| &x[2]), 0);
    let w_zero = op.w_zero.then(|| &x[2 + usize::from(op.x_zero)]);
    let channels = w.shape()[1];
    let rows = shape[1] / op.groups;
    let windows: usize = shape[2..].iter().product();
    let taps: usize = w.shape()[2..].iter().product();
    let k = channels * taps;
    let area: usize = image.shape()[2..].iter().product();
    let weights = lines(w, w.offset as isize, (shape[1], k as isize), (k, 1), w_zero);
    let geometry = Geometry::new(&op.window, &image.shape()[2..], &w.shape()[2..], &shape[2..]);
    let positions = positions(&geometry);
    for (number, out) in target.elements::<i32>().chunks_mut(rows * windows).enumerate() {
        let group = number % op.groups;
        let first = image.offset + number * channels * area;
        let mut columns = vec![0i16; windows * k];
        parallel::chunks(&mut columns, k.max(1), &|window, line| {
            for (i, to) in line.iter_mut().enumerate() {
                if let Some(at) = positions[window * taps + i % taps] {
                    *to = byte(image, first + i / taps * area + at) - x_zero;
                }
            }
        });
        multiply(&weights[group * rows * k..], &columns, k, out, windows);
    }
}

/// For every window and kernel position, which element of a channel it reads; `None` in the padding.
fn positions(geometry: &Geometry) -> Vec<Option<usize>> {
    let [z, y, x] = &geometry.axes;
    let (windows, taps) = (geometry.output_len(), geometry.kernel_len());
    let of = |window: usize, tap: usize| {
        let [tz, ty, tx] = geometry.tap(tap);
        let oz = window / (y.output * x.output);
        let (iz, iy) = (tz.reach(oz, z.stride)?, ty.reach(window / x.output % y.output, y.stride)?);
        Some((iz * y.input + iy) * x.input + tx.reach(window % x.output, x.stride)?)
    };
    (0..windows * taps).map(|i| of(i / taps, i % taps)).collect()
}
