//! Depthwise convolutions with channels in lanes: a band of some channels is transposed, padding included, so that no
//! kernel position needs a shuffle, a mask or a boundary check, whatever stride and dilation are.
//!
//! ```text
//!   x [channels, rows, columns] ──▶ [rows + padding, columns + padding, lanes] ──▶ results [positions, lanes] ──▶ y
//! ```

use super::Problem;
use super::geometry::Axis;
use super::planes::{fits_rows, reach};
use super::tile::{EpilogueOp, SUMMED, finish_filters, put};
use super::transpose_block::{Block, rows_of};
use super::vector::ConvVector;
use crate::operand::Number;

/// Elements of a transposed band, so that it stays in the second-level cache beside its results.
const BAND: usize = 32 << 10;
/// Columns above which rows read in place, as [`super::in_place`] does, cost less than two transposes.
const WIDE: usize = 32;

/// The layout of a transposed band.
pub(crate) struct Depthwise {
    /// Rows and columns of a band with padding.
    rows: usize,
    pitch: usize,
    /// Output lines of a band.
    pub(crate) lines: usize,
    /// Columns computed at once.
    tile: usize,
}

impl Depthwise {
    /// A layout for vectors of `lanes`, if channels fill them; at least `bands` bands where there are as many lines.
    pub(crate) fn new<T>(problem: &Problem<'_, T>, lanes: usize, bands: usize) -> Option<Self> {
        let [az, ay, ax] = &problem.geometry.axes;
        let suits = problem.filters() == 1
            && problem.channels == 1
            && problem.groups >= lanes
            && az.taps.len() == 1
            && az.output == 1
            && az.input == 1
            && az.before == 0
            && (1..=SUMMED).contains(&problem.k_len())
            && (ax.output < WIDE || ax.stride > 2)
            && fits_rows(ax)
            && fits_rows(ay);
        if !suits {
            return None;
        }
        let pitch = extent(ax, ax.output)?.max(ax.before.checked_add(ax.input)?);
        let of_line = ay.stride.checked_mul(pitch)?.checked_mul(lanes)?;
        let halo = extent(ay, 1)?.checked_mul(pitch)?.checked_mul(lanes)?;
        let fitting = (BAND.saturating_sub(halo) / of_line).max(halo / of_line).max(1);
        let count = ay.output.div_ceil(fitting).max(bands).min(ay.output);
        let lines = ay.output.div_ceil(count);
        let tile = (4..=8).rev().min_by_key(|t| ax.output.next_multiple_of(*t)).filter(|t| ax.output >= *t);
        Some(Depthwise { rows: extent(ay, lines)?, pitch, lines, tile: tile.unwrap_or(1) })
    }

    /// Elements of working memory: the band, its weights and its results.
    pub(crate) fn scratch<T>(&self, problem: &Problem<'_, T>, lanes: usize) -> usize {
        (self.rows * self.pitch + problem.k_len() + self.lines * problem.geometry.axes[2].output) * lanes
    }
}

/// Input positions that `outputs` see from first to last.
fn extent(axis: &Axis, outputs: usize) -> Option<usize> {
    (outputs - 1).checked_mul(axis.stride)?.checked_add(reach(axis)?)?.checked_add(1)
}

/// A band of some channels.
pub(crate) struct Channels<'a, T> {
    /// The first channel's input, with the others `plane` elements apart.
    pub(crate) x: &'a [T],
    pub(crate) plane: usize,
    /// Weights of these channels, one after another.
    pub(crate) w: &'a [T],
    /// How many channels, at most one per lane.
    pub(crate) count: usize,
    /// First output line, and how many.
    pub(crate) y: usize,
    pub(crate) lines: usize,
    pub(crate) axes: (&'a Axis, &'a Axis),
    /// Per channel.
    pub(crate) scale: &'a [T],
    pub(crate) shift: &'a [T],
    /// Those of all channels; `filter` is the first one here.
    pub(crate) ops: &'a [EpilogueOp<T>],
    pub(crate) filter: usize,
    /// Where the first channel's results begin, with the others `out_pitch` elements apart.
    pub(crate) out: *mut T,
    pub(crate) out_pitch: usize,
}

/// Computes a band.
///
/// # Safety
/// The processor has the instruction set of `L`, and `out` has room for every channel's results.
#[inline(always)]
pub(crate) unsafe fn compute<L: ConvVector>(
    layout: &Depthwise,
    band: &Channels<'_, L::Elem>,
    scratch: &mut [L::Elem],
) {
    let (ay, ax) = band.axes;
    let (taps, width) = (ay.taps.len() * ax.taps.len(), ax.output);
    let (x, rest) = scratch.split_at_mut(layout.rows * layout.pitch * L::N);
    let (w, y) = rest.split_at_mut(taps * L::N);
    let y = &mut y[..band.lines * width * L::N];
    // Safety: the instruction set is the caller's promise; what is read and written is inside slices, as asserted.
    unsafe {
        fill::<L>(layout, band, x);
        let mut tap = 0;
        while tap < taps {
            let count = L::N.min(taps - tap);
            let from = Block { from: band.w[tap..].as_ptr(), pitch: taps, rows: band.count, columns: count };
            assert!(band.w.len() >= (band.count - 1) * taps + tap + count);
            let to = w[tap * L::N..][..count * L::N].as_mut_ptr();
            from.transpose_to::<L>(L::N, to, &rows_of(L::N));
            tap += count;
        }
        let epilogue =
            FilterEpilogue { scale: band.scale, shift: band.shift, ops: band.ops, filter: band.filter };
        for line in 0..band.lines {
            let row = &x[line * ay.stride * layout.pitch * L::N..];
            let y = &mut y[line * width * L::N..][..width * L::N];
            let line = Line { x: row, w, y, pitch: layout.pitch, axes: band.axes, epilogue: &epilogue };
            match layout.tile {
                8 => L::depthwise_line::<8>(line),
                7 => L::depthwise_line::<7>(line),
                6 => L::depthwise_line::<6>(line),
                5 => L::depthwise_line::<5>(line),
                4 => L::depthwise_line::<4>(line),
                _ => L::depthwise_line::<1>(line),
            }
        }
        let places = rows_of(band.out_pitch);
        let (mut at, len) = (0, band.lines * width);
        while at < len {
            let rows = L::N.min(len - at);
            let from = Block { from: y[at * L::N..].as_ptr(), pitch: L::N, rows, columns: band.count };
            from.transpose_to::<L>(rows, band.out.wrapping_add(at), &places);
            at += rows;
        }
    }
}

/// Transposes the rows that a band sees, with zeros around them.
#[inline(always)]
unsafe fn fill<L: ConvVector>(layout: &Depthwise, band: &Channels<'_, L::Elem>, to: &mut [L::Elem]) {
    let (ay, ax) = band.axes;
    let pitch = layout.pitch * L::N;
    let zero = L::Elem::ZERO;
    let first = band.y * ay.stride;
    // Rows of the band that are the input's.
    let rows = extent(ay, band.lines).unwrap_or(0).min(layout.rows);
    let begin = ay.before.saturating_sub(first).min(rows);
    let end = (ay.before + ay.input).saturating_sub(first).clamp(begin, rows);
    for row in (0..begin).chain(end..rows) {
        to[row * pitch..][..pitch].fill(zero);
    }
    for row in begin..end {
        let row = &mut to[row * pitch..][..pitch];
        row[..ax.before * L::N].fill(zero);
        row[(ax.before + ax.input) * L::N..].fill(zero);
    }
    if begin == end {
        return;
    }
    // The rows follow each other in every channel: vectors cross their ends.
    let from = (first + begin - ay.before) * ax.input;
    let len = (end - begin) * ax.input;
    assert!(band.x.len() >= (band.count - 1) * band.plane + from + len);
    let (mut at, mut row, mut column) = (0, begin, 0);
    let mut places = [0usize; 16];
    while at < len {
        let columns = L::N.min(len - at);
        for place in &mut places[..columns] {
            *place = row * pitch + (ax.before + column) * L::N;
            column += 1;
            if column == ax.input {
                (row, column) = (row + 1, 0);
            }
        }
        assert!(places[columns - 1] + L::N <= to.len(), "positions of a band are inside it");
        let block =
            Block { from: band.x[from + at..].as_ptr(), pitch: band.plane, rows: band.count, columns };
        let to = to.as_mut_ptr();
        // Safety: reads are inside x and writes inside the band, as asserted; places ascend.
        unsafe { block.transpose_to::<L>(L::N, to, &places) };
        at += columns;
    }
}

/// An output line: operands from its first one on, and its results.
pub(crate) struct Line<'a, T> {
    x: &'a [T],
    w: &'a [T],
    y: &'a mut [T],
    pitch: usize,
    axes: (&'a Axis, &'a Axis),
    epilogue: &'a FilterEpilogue<'a, T>,
}

/// The epilogue of a band, per channel.
struct FilterEpilogue<'a, T> {
    scale: &'a [T],
    shift: &'a [T],
    ops: &'a [EpilogueOp<T>],
    filter: usize,
}

/// The body of [`ConvVector::depthwise_line`]: P columns at a time, of which there are as many.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
pub(crate) unsafe fn line<L: ConvVector, const P: usize>(line: Line<'_, L::Elem>) {
    let Line { x, w, y, pitch, axes: (ay, ax), epilogue } = line;
    let (rows, columns, width) = (ay.taps.len(), ax.taps.len(), y.len() / L::N);
    let (step, down, right) = (ax.stride * L::N, ay.dilation * pitch * L::N, ax.dilation * L::N);
    assert!(w.len() >= rows * columns * L::N && width >= P);
    assert!(x.len() >= (rows - 1) * down + (columns - 1) * right + (width - 1) * step + L::N);
    // Safety: operands, weights and results are in bounds as asserted.
    unsafe {
        let mut column = 0;
        while column < width {
            // The last ones go with some before them again.
            column = column.min(width - P);
            let mut sums = [[L::splat(L::Elem::ZERO); 1]; P];
            let mut w = w.as_ptr();
            let first = x.as_ptr().add(column * step);
            for i in 0..rows {
                let mut at = first.add(i * down);
                for _ in 0..columns {
                    let weight = L::load(w);
                    for (p, sum) in sums.iter_mut().enumerate() {
                        sum[0] = L::load(at.add(p * step)).mul_add(weight, sum[0]);
                    }
                    w = w.wrapping_add(L::N);
                    at = at.wrapping_add(right);
                }
            }
            finish_filters::<L, P, 1>(
                &mut sums,
                epilogue.scale,
                epilogue.shift,
                epilogue.ops,
                epilogue.filter,
            );
            put::<L, P, 1>(&sums, y.as_mut_ptr().add(column * L::N), L::N);
            column += P;
        }
    }
}
