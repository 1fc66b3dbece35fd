//! Integer convolution: windows are laid out as panels, tile by tile, and multiplied with rows of weights.

use std::ops::Range;

use olivine_ir::TensorType;
use olivine_ir::op::QConv;

use super::TASK;
use super::depthwise::few_filters;
use super::micro::{PANEL, STEP};
use super::operands::{
    Bytes, Panels, Rows, Zeros, left_flip, multiply, pack_rows, padded, right_flip, rows_bytes, sum_columns,
};
use crate::kernel::Packing;
use crate::kernel::kernels;
use crate::kernels::conv::geometry::Geometry;
use crate::kernels::conv::planes::fits_rows;
use crate::kernels::conv::scratch::with_scratch;
use crate::kernels::gemm::Grid;
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::simd;

kernels! { |op, x, out, call|
    QConv => qconv(op, x, out),
}

/// Bytes of a tile's windows: they stay in cache while the filters pass by.
const TILE_BYTES: usize = 256 << 10;
/// Windows of a tile at most.
const TILE: usize = 512;
/// Filters of a group below which their windows are not worth a panel.
const FEW_FILTERS: usize = 3;

/// Filters, and multiplications per result, of weights `[M, C/groups, ..]`.
fn filter_sizes(w: &[usize]) -> (usize, usize) {
    (w[0], w[1..].iter().product())
}

/// How the weights of an integer convolution are laid out at load.
pub(crate) fn filters_packing(w: &TensorType) -> Packing {
    let (filters, k_len) = filter_sizes(&w.shape);
    let pack = |_: &olivine_ir::Op, w: &Operand<'_>, to: &mut [u8]| pack_filters(w, to);
    Packing { layout: "integer rows".into(), bytes: rows_bytes(filters, k_len), pack }
}

fn pack_filters(w: &Operand<'_>, to: &mut [u8]) {
    let (filters, k_len) = filter_sizes(w.shape());
    let flip = left_flip(w.ty.dtype);
    let bytes = Bytes { data: w.slice(), first: 0, line: k_len as isize, step: 1, flip };
    pack_rows(bytes, filters, k_len, to);
}

/// An integer convolution without its weights.
pub(super) struct Windows<'a> {
    pub(super) geometry: Geometry,
    pub(super) groups: usize,
    /// Input channels per group.
    pub(super) channels: usize,
    /// Filters per group.
    pub(super) filters: usize,
    pub(super) x: &'a [u8],
    /// What padding holds.
    pub(super) pad: u8,
    /// What makes x signed.
    pub(super) flip: u8,
}

impl Windows<'_> {
    /// Products per result.
    pub(super) fn k_len(&self) -> usize {
        self.channels * self.geometry.kernel_len()
    }

    /// Lays what kernel position `k` of a group's channels sees at some windows out, in the bytes of x.
    #[inline(always)]
    fn row(&self, plane: usize, k: usize, windows: Range<usize>, to: &mut [u8]) {
        let (kernel, len) = (self.geometry.kernel_len(), self.geometry.input_len());
        let x = &self.x[(plane * self.channels + k / kernel) * len..][..len];
        let [az, ay, ax] = &self.geometry.axes;
        let [tz, ty, tx] = self.geometry.tap(k % kernel);
        let mut at = windows.start;
        let mut rest = &mut to[..windows.len()];
        while !rest.is_empty() {
            let (line, from) = (at / ax.output, at % ax.output);
            let count = (ax.output - from).min(rest.len());
            let (head, tail) = rest.split_at_mut(count);
            let (z, y) = (tz.reach(line / ay.output, az.stride), ty.reach(line % ay.output, ay.stride));
            let first = tx.first.clamp(from, from + count);
            let end = tx.end.clamp(first, from + count);
            match (z, y) {
                (Some(z), Some(y)) if first < end => {
                    let source = &x[(z * ay.input + y) * ax.input..][..ax.input];
                    head[..first - from].fill(self.pad);
                    head[end - from..].fill(self.pad);
                    let seen = &mut head[first - from..end - from];
                    every(&source[tx.at(first, ax.stride)..], ax.stride, seen);
                }
                _ => head.fill(self.pad),
            }
            at += count;
            rest = tail;
        }
    }
}

/// Fills `to` with every `stride`-th element of `from`, which has enough of them.
#[inline(always)]
fn every(from: &[u8], stride: usize, to: &mut [u8]) {
    match stride {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            let from = &from[..2 * to.len() - 1];
            for i in 0..to.len() {
                to[i] = from[2 * i];
            }
        }
        _ => to.iter_mut().zip(from.chunks(stride)).for_each(|(t, f)| *t = f[0]),
    }
}

/// Lays some windows out as panels.
struct LayPanels<'a> {
    windows: &'a Windows<'a>,
    plane: usize,
    range: Range<usize>,
    /// Room for [`STEP`] rows of whole panels.
    lines: &'a mut [u8],
    to: &'a mut [u8],
}

impl simd::Kernel for LayPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let LayPanels { windows, plane, range, lines, to } = self;
        let (k_len, wide) = (windows.k_len(), range.len().next_multiple_of(PANEL));
        let size = padded(k_len) * PANEL;
        for group in 0..padded(k_len) / STEP {
            for (i, line) in lines.chunks_exact_mut(wide).enumerate() {
                match group * STEP + i {
                    k if k < k_len => windows.row(plane, k, range.clone(), line),
                    _ => line.fill(0),
                }
            }
            for (p, panel) in to.chunks_exact_mut(size).enumerate() {
                let line = |i: usize| lines[i * wide + p * PANEL..].first_chunk::<PANEL>();
                let to = panel[group * STEP * PANEL..].first_chunk_mut::<{ STEP * PANEL }>();
                if let (Some(a), Some(b), Some(c), Some(d), Some(to)) =
                    (line(0), line(1), line(2), line(3), to)
                {
                    for j in 0..PANEL {
                        to[STEP * j] = a[j] ^ windows.flip;
                        to[STEP * j + 1] = b[j] ^ windows.flip;
                        to[STEP * j + 2] = c[j] ^ windows.flip;
                        to[STEP * j + 3] = d[j] ^ windows.flip;
                    }
                }
            }
        }
    }
}

/// Integer convolution.
pub(crate) fn qconv(op: &QConv, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    let shape = target.shape();
    if shape.has_zero() {
        return;
    }
    let (image, w) = (&x[0], &x[1]);
    let x_zero = op.x_zero.then(|| &x[2]);
    let w_zero = op.w_zero.then(|| &x[2 + usize::from(op.x_zero)]);
    let windows = Windows {
        geometry: Geometry::new(&op.window, &image.shape()[2..], &w.shape()[2..], &shape[2..]),
        groups: op.groups,
        channels: w.shape()[1],
        filters: shape[1] / op.groups,
        x: image.slice(),
        pad: x_zero.and_then(|z| z.slice::<u8>().first().copied()).unwrap_or(0),
        flip: right_flip(image.ty.dtype),
    };
    let w_zeros = Zeros::left(w.ty.dtype, w_zero);
    let out = target.elements::<i32>();
    if windows.filters < FEW_FILTERS && fits_rows(&windows.geometry.axes[2]) {
        let x_signed = image.ty.dtype == olivine_ir::DType::I8;
        return few_filters(&windows, x_signed, (w.slice(), w_zeros, left_flip(w.ty.dtype)), out);
    }
    let x_zeros = Zeros::right(image.ty.dtype, x_zero);
    let (filters, k_len) = filter_sizes(w.shape());
    match w.packed {
        Some(packed) => tiles(&windows, (Rows::new(filters, k_len, packed), w_zeros), x_zeros, out),
        None => with_scratch(rows_bytes(filters, k_len), |packed: &mut [u8]| {
            pack_filters(w, packed);
            tiles(&windows, (Rows::new(filters, k_len, packed), w_zeros), x_zeros, out);
        }),
    }
}

/// All tiles of all images and groups.
fn tiles(windows: &Windows<'_>, (w, w_zeros): (Rows<'_>, Zeros<'_>), x_zeros: Zeros<'_>, out: &mut [i32]) {
    let (k_len, filters, count) = (windows.k_len(), windows.filters, windows.geometry.output_len());
    let planes = out.len() / (filters * count);
    let (threads, work) = (parallel::threads(), out.len().saturating_mul(k_len));
    let tile = (TILE_BYTES / padded(k_len).max(1)).clamp(4 * PANEL, TILE) / (4 * PANEL) * (4 * PANEL);
    let tile = tile.min(count);
    let across = count.div_ceil(tile);
    // Few tiles: the filters are shared out too, and every part lays the windows out for itself.
    let parts = if work <= TASK { 1 } else { (2 * threads).div_ceil(planes * across) };
    let part = filters.div_ceil(parts).max(24).min(filters);
    let parts = filters.div_ceil(part);
    let grid = Grid::new(out);
    let task = |t: usize| {
        let (plane, first) = (t / (across * parts), t / parts % across * tile);
        let (width, filter) = (tile.min(count - first), t % parts * part);
        let height = part.min(filters - filter);
        let wide = width.next_multiple_of(PANEL);
        with_scratch((padded(k_len) + STEP) * wide, |scratch: &mut [u8]| {
            let (panels, lines) = scratch.split_at_mut(padded(k_len) * wide);
            let range = first..first + width;
            simd::run(LayPanels { windows, plane, range, lines, to: panels });
            let mut sums = [0; TILE];
            sum_columns(panels, k_len, &mut sums[..wide]);
            let right = Panels { columns: width, k_len, bytes: panels, sums: &sums[..wide] };
            let row = plane % windows.groups * filters + filter;
            let left = (w.part(row, height), w_zeros.after(row));
            let to = grid.corner((plane * filters + filter) * count + first, height, width, count);
            // Safety: no other task writes these filters' results at these windows.
            unsafe { multiply(left, (right, x_zeros), to, count) };
        });
    };
    run_tasks(planes * across * parts, work, &task);
}

/// Runs tasks on all threads if they are worth it.
pub(super) fn run_tasks(count: usize, work: usize, task: &(dyn Fn(usize) + Sync)) {
    if work <= TASK || parallel::threads() == 1 {
        (0..count).for_each(task);
    } else {
        parallel::tasks(count, task);
    }
}
