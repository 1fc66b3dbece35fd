//! Convolutions with one filter per group, read in place: vectors of an output line come straight from the input's rows,
//! and lanes that fall on padding are masked. Nothing is copied.
//!
//! ```text
//!   input row, shifted by every kernel column ──▶ the output lines whose kernel rows cover it
//! ```

use super::Problem;
use super::geometry::Axis;
use super::plan::VECTORS;
use super::planes::fits_rows;
use super::tile::{EpilogueOp, SUMMED, apply_op, scale_rows};
use super::vector::ConvVector;
use crate::operand::Number;

/// Output lines of a tile that share the input rows they read.
pub(crate) const LINES: usize = 4;

/// The vectors of an output line, and which of their lanes read the input.
pub(crate) struct InPlace {
    pub(crate) blocks: Vec<Block>,
    masks: Vec<u32>,
}

/// Neighbouring vectors of a line that are computed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// First column.
    pub(crate) column: usize,
    pub(crate) vectors: usize,
    /// Columns that are results.
    pub(crate) count: usize,
    /// Where the masks begin, if a lane falls on padding.
    masks: Option<usize>,
}

impl InPlace {
    /// Vectors of `lanes` for a problem that suits: one filter, two axes, a short sum, columns close together, and
    /// enough lines for `threads`.
    pub(crate) fn new<T>(problem: &Problem<'_, T>, lanes: usize, threads: usize) -> Option<Self> {
        let [az, ay, ax] = &problem.geometry.axes;
        let wide = ax.output.div_ceil(lanes) * lanes;
        let suits = problem.filters() == 1
            && az.taps.len() == 1
            && az.output == 1
            && az.before == 0
            && (ax.stride == 1 || ax.stride == 2 && ax.dilation == 1 && ax.taps.len() <= 2 * lanes)
            && (1..=SUMMED).contains(&problem.k_len())
            && fits_rows(ax)
            && fits_rows(ay)
            && wide <= 3 * ax.output
            && problem.images * problem.groups * ay.output >= threads;
        if !suits {
            return None;
        }
        let (mut blocks, mut masks) = (Vec::new(), Vec::new());
        let mut column = 0;
        while column < ax.output {
            let left = ax.output - column;
            let vectors = match left.div_ceil(lanes) {
                // Two equal blocks are better than a block and a rest.
                4 => 2,
                n => n.min(VECTORS),
            };
            let begin = masks.len();
            if ax.stride == 1 {
                let first = |k: usize, v: usize| column + v * lanes + k * ax.dilation;
                let reads = (0..ax.taps.len()).flat_map(|k| (0..vectors).map(move |v| (k, v)));
                masks.extend(reads.map(|(k, v)| mask(ax, first(k, v), lanes)));
            } else {
                masks.extend((0..2 * (vectors + 1)).map(|v| mask(ax, column * 2 + v * lanes, lanes)));
            }
            let masked = masks[begin..].iter().any(|m| *m != (1 << lanes) - 1);
            if !masked {
                masks.truncate(begin);
            }
            let count = left.min(vectors * lanes);
            blocks.push(Block { column, vectors, count, masks: masked.then_some(begin) });
            column += vectors * lanes;
        }
        Some(InPlace { blocks, masks })
    }

    /// The masks of a block, kernel column by kernel column, or none.
    pub(crate) fn masks(&self, block: &Block) -> &[u32] {
        block.masks.map_or(&[], |at| &self.masks[at..])
    }
}

/// Which of `lanes` elements from `first` on, counted with the padding, are the input's.
fn mask(axis: &Axis, first: usize, lanes: usize) -> u32 {
    let first = first as isize - axis.before as isize;
    let input = 0..axis.input as isize;
    (0..lanes).fold(0, |m, i| m | (u32::from(input.contains(&(first + i as isize))) << i))
}

/// What is computed: some vectors of a band's lines.
pub(crate) struct Rows<'a, T> {
    /// The first channel, and elements from a channel to the next.
    pub(crate) x: *const T,
    pub(crate) channel: usize,
    pub(crate) channels: usize,
    /// Output lines, and the input row under the first kernel row of the first one.
    pub(crate) lines: usize,
    pub(crate) top: isize,
    /// Rows of the input, and their length.
    pub(crate) height: isize,
    pub(crate) pitch: isize,
    /// The element of a row under the first kernel column of the first output.
    pub(crate) left: isize,
    /// Input rows from an output line to the next.
    pub(crate) stride: usize,
    /// Rows and columns of the kernel, and the distance between two.
    pub(crate) kernel: (usize, usize),
    pub(crate) dilation: (usize, usize),
    /// Of [`InPlace::masks`].
    pub(crate) masks: &'a [u32],
    /// `[channels, rows, columns]`.
    pub(crate) w: &'a [T],
    /// As of [`super::tile::Tile`], for the one filter.
    pub(crate) scale: T,
    pub(crate) shift: T,
    pub(crate) ops: &'a [EpilogueOp<T>],
    pub(crate) filter: usize,
    /// Where the results go: lines of `count` elements, `out_pitch` apart.
    pub(crate) out: *mut T,
    pub(crate) out_pitch: usize,
    pub(crate) count: usize,
}

/// Whether tiles of [`LINES`] lines exist for a kernel.
pub(crate) fn shares_rows(ay: &Axis, ax: &Axis) -> bool {
    matches!(ay.taps.len(), 3 | 5) && ay.stride == 1 && ay.dilation == 1 && ax.stride == 1
}

/// Computes 1 to 3 vectors of lines, [`LINES`] at a time, where [`shares_rows`] holds and there are as many.
///
/// # Safety
/// The processor has the instruction set of `L`; `x` has `channels` of `height` rows; masks, where there are some, allow
/// elements of a row only, and without them all of a block's vectors are inside the row; `out` has room.
#[inline(always)]
pub(crate) unsafe fn compute_lines<L: ConvVector>(tile: &Rows<'_, L::Elem>, vectors: usize) {
    // Safety: the caller's promise.
    unsafe {
        match (tile.kernel.0, vectors, tile.masks.is_empty()) {
            (3, 1, true) => L::lines::<3, 1, false>(tile),
            (3, 2, true) => L::lines::<3, 2, false>(tile),
            (3, _, true) => L::lines::<3, 3, false>(tile),
            (3, 1, _) => L::lines::<3, 1, true>(tile),
            (3, 2, _) => L::lines::<3, 2, true>(tile),
            (3, ..) => L::lines::<3, 3, true>(tile),
            (_, 1, true) => L::lines::<5, 1, false>(tile),
            (_, 2, true) => L::lines::<5, 2, false>(tile),
            (_, _, true) => L::lines::<5, 3, false>(tile),
            (_, 1, _) => L::lines::<5, 1, true>(tile),
            (_, 2, _) => L::lines::<5, 2, true>(tile),
            _ => L::lines::<5, 3, true>(tile),
        }
    }
}

/// Computes 1 to 3 vectors of lines, one at a time, for columns `stride` (1 or 2) apart.
///
/// # Safety
/// As [`compute_lines`].
#[inline(always)]
pub(crate) unsafe fn compute_line<L: ConvVector>(tile: &Rows<'_, L::Elem>, vectors: usize, stride: usize) {
    // Safety: the caller's promise.
    unsafe {
        match (stride, vectors, tile.masks.is_empty()) {
            (1, 1, true) => L::line::<1, false, false>(tile),
            (1, 2, true) => L::line::<2, false, false>(tile),
            (1, _, true) => L::line::<3, false, false>(tile),
            (1, 1, _) => L::line::<1, true, false>(tile),
            (1, 2, _) => L::line::<2, true, false>(tile),
            (1, ..) => L::line::<3, true, false>(tile),
            (_, 1, true) => L::line::<1, false, true>(tile),
            (_, 2, true) => L::line::<2, false, true>(tile),
            (_, _, true) => L::line::<3, false, true>(tile),
            (_, 1, _) => L::line::<1, true, true>(tile),
            (_, 2, _) => L::line::<2, true, true>(tile),
            _ => L::line::<3, true, true>(tile),
        }
    }
}

/// The body of [`ConvVector::lines`], for kernels of K rows.
///
/// # Safety
/// As [`compute_lines`].
#[inline(always)]
pub(crate) unsafe fn lines<L: ConvVector, const K: usize, const V: usize, const MASKED: bool>(
    tile: &Rows<'_, L::Elem>,
) {
    let (channels, columns) = (tile.channels, tile.kernel.1);
    assert!(tile.w.len() >= channels * K * columns && (!MASKED || tile.masks.len() >= columns * V));
    assert!(tile.lines >= LINES);
    let mut line = 0;
    while line < tile.lines {
        // The last lines go with some before them again.
        line = line.min(tile.lines - LINES);
        let top = tile.top + line as isize;
        // Safety: weights and masks are in bounds as asserted; operands and results by the caller's promise.
        unsafe {
            let mut total = [[L::splat(L::Elem::ZERO); V]; LINES];
            for c in 0..channels {
                let x = tile.x.add(c * tile.channel);
                let w = tile.w.as_ptr().add(c * K * columns);
                under::<L, K, V, MASKED, 0>(tile, top, x, w, &mut total);
                under::<L, K, V, MASKED, 1>(tile, top, x, w, &mut total);
                under::<L, K, V, MASKED, 2>(tile, top, x, w, &mut total);
                under::<L, K, V, MASKED, 3>(tile, top, x, w, &mut total);
                under::<L, K, V, MASKED, 4>(tile, top, x, w, &mut total);
                under::<L, K, V, MASKED, 5>(tile, top, x, w, &mut total);
                if K == 5 {
                    under::<L, K, V, MASKED, 6>(tile, top, x, w, &mut total);
                    under::<L, K, V, MASKED, 7>(tile, top, x, w, &mut total);
                }
            }
            finish::<L, LINES, V>(tile, line, total);
        }
        line += LINES;
    }
}

/// Adds what input row I of a tile gives to every output line that has a kernel row over it.
#[inline(always)]
unsafe fn under<L: ConvVector, const K: usize, const V: usize, const MASKED: bool, const I: usize>(
    tile: &Rows<'_, L::Elem>,
    top: isize,
    x: *const L::Elem,
    w: *const L::Elem,
    total: &mut [[L; V]; LINES],
) {
    let y = top + I as isize;
    if y < 0 || y >= tile.height {
        return;
    }
    let (columns, dilation) = (tile.kernel.1, tile.dilation.1);
    let row = x.wrapping_offset(y * tile.pitch + tile.left);
    let mut sums = *total;
    let mut k = 0;
    while k < columns {
        // Safety: the caller's promise.
        unsafe {
            let loaded = load::<L, V, MASKED>(row.wrapping_add(k * dilation), tile.masks, k);
            for r in 0..LINES {
                if I >= r && I - r < K {
                    let weight = L::splat(*w.add((I - r) * columns + k));
                    for v in 0..V {
                        sums[r][v] = weight.mul_add(loaded[v], sums[r][v]);
                    }
                }
            }
        }
        k += 1;
    }
    *total = sums;
}

/// The body of [`ConvVector::line`]; EVEN for columns two apart.
///
/// # Safety
/// As [`compute_lines`].
#[inline(always)]
pub(crate) unsafe fn line<L: ConvVector, const V: usize, const MASKED: bool, const EVEN: bool>(
    tile: &Rows<'_, L::Elem>,
) {
    let (rows, columns) = tile.kernel;
    let masks = if EVEN { 2 * (V + 1) } else { columns * V };
    assert!(tile.w.len() >= tile.channels * rows * columns && (!MASKED || tile.masks.len() >= masks));
    for line in 0..tile.lines {
        let top = tile.top + (line * tile.stride) as isize;
        let mut w = tile.w.as_ptr();
        // Safety: weights and masks are in bounds as asserted; operands and results by the caller's promise.
        unsafe {
            let mut total = [[L::splat(L::Elem::ZERO); V]; 1];
            for c in 0..tile.channels {
                let x = tile.x.add(c * tile.channel);
                for i in 0..rows {
                    let y = top + (i * tile.dilation.0) as isize;
                    if y >= 0 && y < tile.height {
                        let row = x.wrapping_offset(y * tile.pitch + tile.left);
                        if EVEN {
                            even_row::<L, V, MASKED>(row, w, columns, tile.masks, &mut total[0]);
                        } else {
                            for k in 0..columns {
                                let at = row.wrapping_add(k * tile.dilation.1);
                                add_row(&load::<L, V, MASKED>(at, tile.masks, k), *w.add(k), &mut total[0]);
                            }
                        }
                    }
                    w = w.wrapping_add(columns);
                }
            }
            finish::<L, 1, V>(tile, line, total);
        }
    }
}

/// Adds what a row gives to outputs two columns apart: a row's vectors are split into even and odd columns once, and
/// kernel columns read those, shifted.
#[inline(always)]
unsafe fn even_row<L: ConvVector, const V: usize, const MASKED: bool>(
    row: *const L::Elem,
    w: *const L::Elem,
    columns: usize,
    masks: &[u32],
    total: &mut [L; V],
) {
    // Safety: the caller's promise; there are masks for all vectors.
    unsafe {
        // One more than results, in an array of the largest block.
        let zero = L::splat(L::Elem::ZERO);
        let mut split = [[zero; VECTORS + 1]; 2];
        for v in 0..=V {
            let at = row.wrapping_add(2 * v * L::N);
            let read = |i: usize| {
                let at = at.wrapping_add(i * L::N);
                if MASKED { L::load_masked(at, *masks.as_ptr().add(2 * v + i)) } else { L::load(at) }
            };
            (split[0][v], split[1][v]) = read(0).split(read(1));
        }
        let mut k = 0;
        while k < columns {
            add_row(&shifted::<L, V>(&split[0], k / 2), *w.add(k), total);
            if k + 1 < columns {
                add_row(&shifted::<L, V>(&split[1], k / 2), *w.add(k + 1), total);
            }
            k += 2;
        }
    }
}

/// Vectors in a row, shifted by some elements.
#[inline(always)]
unsafe fn shifted<L: ConvVector, const V: usize>(from: &[L; VECTORS + 1], by: usize) -> [L; V] {
    // Safety: registers only.
    unsafe {
        let mut to = [L::splat(L::Elem::ZERO); V];
        for v in 0..V {
            to[v] = if by == 0 { from[v] } else { from[v].shifted(from[v + 1], by) };
        }
        to
    }
}

/// Adds a row's products with one weight.
#[inline(always)]
unsafe fn add_row<L: ConvVector, const V: usize>(loaded: &[L; V], weight: L::Elem, total: &mut [L; V]) {
    // Safety: registers only.
    unsafe {
        let weight = L::splat(weight);
        for v in 0..V {
            total[v] = weight.mul_add(loaded[v], total[v]);
        }
    }
}

/// The operands of kernel column `k`, from `at` on.
#[inline(always)]
unsafe fn load<L: ConvVector, const V: usize, const MASKED: bool>(
    at: *const L::Elem,
    masks: &[u32],
    k: usize,
) -> [L; V] {
    // Safety: the caller's promise; there are masks for every column.
    unsafe {
        let mut loaded = [L::splat(L::Elem::ZERO); V];
        for v in 0..V {
            let at = at.wrapping_add(v * L::N);
            loaded[v] = if MASKED { L::load_masked(at, *masks.as_ptr().add(k * V + v)) } else { L::load(at) };
        }
        loaded
    }
}

/// What follows the sums in registers, and the results of R lines from `line` on.
#[inline(always)]
unsafe fn finish<L: ConvVector, const R: usize, const V: usize>(
    tile: &Rows<'_, L::Elem>,
    line: usize,
    mut total: [[L; V]; R],
) {
    // Safety: the caller has room for R lines of `count` elements.
    unsafe {
        scale_rows::<L, R, V>(&mut total, &tile.scale, &tile.shift, 0);
        for op in tile.ops {
            apply_op::<L, R, V>(&mut total, op, tile.filter, 0);
        }
        for r in 0..R {
            let out = tile.out.add((line + r) * tile.out_pitch);
            for v in 0..V {
                match tile.count.saturating_sub(v * L::N) {
                    n if n >= L::N => total[r][v].store(out.add(v * L::N)),
                    0 => {}
                    n => total[r][v].store_first(out.add(v * L::N), n),
                }
            }
        }
    }
}
