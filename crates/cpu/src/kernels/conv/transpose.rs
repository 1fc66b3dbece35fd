//! Transposed convolution: a GEMM computes what each input position adds to its windows, and sums add it there.
//!
//! ```text
//!   wᵀ [filters·kernel, C/g] · x [C/g, tile] ──▶ columns [filters·kernel, tile] ──▶ += out at i·stride + k·dilation − pad
//! ```

use olivine_ir::Shape;
use olivine_ir::op::ConvTranspose;

use super::SMALL;
use super::geometry::Geometry;
use super::real::Real;
use super::scratch::with_scratch;
use crate::kernels::gemm::{Matrix, gemm, serial_gemm};
use crate::operand::Operand;
use crate::parallel;

/// Bytes of columns that stay in a second-level cache.
const COLUMN_BYTES: usize = 384 << 10;

/// A transposed convolution in the type it is computed in.
struct Spread<'a, T> {
    /// Of the convolution that is transposed: its outputs are our inputs.
    geometry: Geometry,
    groups: usize,
    /// Input channels per group.
    channels: usize,
    /// Result channels per group.
    filters: usize,
    x: &'a [T],
    w: &'a [T],
}

/// Computes the whole result.
pub(crate) fn scatter<T: Real>(
    op: &ConvTranspose,
    operands: &[Operand<'_>],
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    shape: Shape,
    out: &mut [T],
) {
    if out.is_empty() {
        return;
    }
    let (xs, ws) = (operands[0].shape(), operands[1].shape());
    let problem = Spread {
        geometry: Geometry::new(&op.window, &shape[2..], &ws[2..], &xs[2..]),
        groups: op.groups,
        channels: xs[1] / op.groups,
        filters: ws[1],
        x,
        w,
    };
    let plane = problem.geometry.input_len();
    let result_channels = problem.filters * problem.groups;
    let per_filter = problem.geometry.output_len() * problem.geometry.kernel_len();
    let work = per_filter.saturating_mul(problem.channels).saturating_mul(result_channels * xs[0]);
    let threads = if work < SMALL { 1 } else { parallel::threads() };
    // A task owns whole planes of one group, enough of them for the GEMM to reuse x.
    let kernel = problem.geometry.kernel_len().max(1);
    let wanted = 64usize.div_ceil(kernel).clamp(1, problem.filters);
    let even = (result_channels * xs[0]).div_ceil(threads).max(1);
    let block = wanted.min(even);
    let blocks = problem.filters.div_ceil(block);
    let alone = xs[0] * problem.groups * blocks < threads;
    let run = |group: usize, planes: &mut [T]| {
        let image_group = group / blocks;
        let first = group % blocks * block;
        for (i, plane) in planes.chunks_exact_mut(plane).enumerate() {
            let channel = image_group % problem.groups * problem.filters + first + i;
            plane.fill(bias.map_or(T::ZERO, |b| b[channel]));
        }
        problem.spread(image_group, first, planes, alone);
    };
    let group_len = problem.filters * plane;
    if threads == 1 || alone {
        for (g, planes) in out.chunks_mut(group_len).enumerate() {
            planes.chunks_mut(block * plane).enumerate().for_each(|(b, p)| run(g * blocks + b, p));
        }
    } else {
        let least = SMALL.div_ceil(work / (xs[0] * problem.groups).max(1) + 1);
        parallel::grouped(out, group_len, least, &|g, planes| {
            parallel::chunks(planes, block * plane, &|b, p| run(g * blocks + b, p));
        });
    }
}

impl<T: Real> Spread<'_, T> {
    /// Adds to the planes of filters `first..` of one image and group; threads share each GEMM if this is `alone`.
    fn spread(&self, image_group: usize, first: usize, planes: &mut [T], alone: bool) {
        let (positions, kernel) = (self.geometry.output_len(), self.geometry.kernel_len());
        let plane = self.geometry.input_len();
        let rows = planes.len() / plane * kernel;
        if positions == 0 || rows == 0 || self.channels == 0 {
            return;
        }
        let fitting = (COLUMN_BYTES / (rows * size_of::<T>())).clamp(48, 4096);
        let tile = fitting.next_multiple_of(48).min(positions);
        let x = &self.x[image_group * self.channels * positions..][..self.channels * positions];
        let group = image_group % self.groups;
        let w_row = self.filters * kernel;
        let w = &self.w[group * self.channels * w_row + first * kernel..];
        with_scratch(rows * tile, |columns: &mut [T]| {
            for start in (0..positions).step_by(tile) {
                let width = tile.min(positions - start);
                let columns = &mut columns[..rows * width];
                let size = (rows, width, self.channels);
                let w = Matrix { data: w, offset: 0, row_stride: 1, column_stride: w_row as isize };
                let x = Matrix::packed(&x[start..], positions);
                if alone {
                    gemm(size, w, x, columns, 0, None);
                } else {
                    serial_gemm(size, w, x, T::ONE, false, columns);
                }
                for (row, column) in columns.chunks_exact(width).enumerate() {
                    self.add_tap(row % kernel, start, column, &mut planes[row / kernel * plane..][..plane]);
                }
            }
        });
    }

    /// Adds what inputs `start..` give to kernel position `tap` where it belongs in a plane.
    fn add_tap(&self, tap: usize, start: usize, column: &[T], plane: &mut [T]) {
        let [az, ay, ax] = &self.geometry.axes;
        let [tz, ty, tx] = self.geometry.tap(tap);
        let (mut line, mut from) = (start / ax.output, start % ax.output);
        let mut rest = column;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at((ax.output - from).min(rest.len()));
            let z = tz.reach(line / ay.output, az.stride);
            let y = ty.reach(line % ay.output, ay.stride);
            let first = tx.first.clamp(from, from + head.len());
            let end = tx.end.clamp(first, from + head.len());
            if let (Some(z), Some(y), true) = (z, y, first < end) {
                let to = &mut plane[(z * ay.input + y) * ax.input..][..ax.input];
                let to = &mut to[tx.at(first, ax.stride)..];
                let seen = &head[first - from..end - from];
                if ax.stride == 1 {
                    to.iter_mut().zip(seen).for_each(|(t, s)| *t += *s);
                } else {
                    to.iter_mut().step_by(ax.stride).zip(seen).for_each(|(t, s)| *t += *s);
                }
            }
            rest = tail;
            line += 1;
            from = 0;
        }
    }
}
