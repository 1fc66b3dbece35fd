//! Tiles of a single filter: several output lines at once, so that a vector of inputs serves every line it lies over.
//!
//! ```text
//!   input line i, shifted by every kernel column ──▶ output lines i − kernel + 1 ..= i
//! ```

use super::lanes::Lanes;
use super::tile::{Curve, bend, put, scale_rows};
use crate::operand::Number;

/// Most lines of a tile.
pub(crate) const LINES: usize = 4;

/// What a tile computes: lines of convolutions with a kernel of rows one line apart.
pub(crate) struct Lines<'a, T> {
    /// The operand from the tile's first position on.
    pub(crate) x: *const T,
    /// Elements from a line to the next, and from a channel to the next.
    pub(crate) pitch: usize,
    pub(crate) channel: usize,
    pub(crate) channels: usize,
    /// Distance of every kernel column's operand.
    pub(crate) columns: &'a [usize],
    /// Rows of the kernel, at least as many as the tile's lines less one.
    pub(crate) rows: usize,
    /// `[channels, rows, columns]`.
    pub(crate) w: &'a [T],
    /// As of [`super::tile::Tile`], for the one filter.
    pub(crate) scale: T,
    pub(crate) shift: T,
    pub(crate) curves: &'a [Curve<T>],
    pub(crate) filter: usize,
    /// Where the results go: lines of vectors, one after another.
    pub(crate) out: *mut T,
}

/// Computes a tile of 2 to 4 lines × 1 to 3 vectors.
///
/// # Safety
/// The processor has the instruction set of `L`; the operands of all lines and vectors lie in the memory of `x`, and
/// `out` has room for the tile.
#[inline(always)]
pub(crate) unsafe fn compute<L: Lanes>(tile: &Lines<'_, L::Elem>, lines: usize, vectors: usize) {
    // Safety: the caller's promise.
    unsafe {
        match (lines, vectors) {
            (2, 1) => L::lines::<2, 1>(tile),
            (2, 2) => L::lines::<2, 2>(tile),
            (2, _) => L::lines::<2, 3>(tile),
            (3, 1) => L::lines::<3, 1>(tile),
            (3, 2) => L::lines::<3, 2>(tile),
            (3, _) => L::lines::<3, 3>(tile),
            (_, 1) => L::lines::<4, 1>(tile),
            (_, 2) => L::lines::<4, 2>(tile),
            _ => L::lines::<4, 3>(tile),
        }
    }
}

/// The body of [`Lanes::lines`].
///
/// # Safety
/// As [`compute`].
#[inline(always)]
pub(crate) unsafe fn lines<L: Lanes, const R: usize, const V: usize>(tile: &Lines<'_, L::Elem>) {
    let Lines { x, pitch, channel, channels, columns, rows, w, .. } = *tile;
    let width = columns.len();
    assert!(rows + 1 >= R && w.len() >= channels * rows * width);
    // Safety: weights are in bounds as asserted; operands and results by the caller's promise.
    unsafe {
        let mut total = [[L::splat(L::Elem::ZERO); V]; R];
        for c in 0..channels {
            let (x, w) = (x.add(c * channel), w.as_ptr().add(c * rows * width));
            let line = |i: usize| (x.wrapping_add(i * pitch), w.wrapping_add(i * width));
            // The first input lines lie under the first output lines only, the last ones under the last only.
            under::<L, R, V, 0, 1>(line(0), columns, &mut total);
            if R > 2 {
                under::<L, R, V, 0, 2>(line(1), columns, &mut total);
            }
            if R > 3 {
                under::<L, R, V, 0, 3>(line(2), columns, &mut total);
            }
            for i in R - 1..rows {
                under::<L, R, V, 0, R>(line(i), columns, &mut total);
            }
            under::<L, R, V, 1, R>(line(rows), columns, &mut total);
            if R > 2 {
                under::<L, R, V, 2, R>(line(rows + 1), columns, &mut total);
            }
            if R > 3 {
                under::<L, R, V, 3, R>(line(rows + 2), columns, &mut total);
            }
        }
        scale_rows::<L, R, V>(&mut total, &tile.scale, &tile.shift, 0);
        for curve in tile.curves {
            bend::<L, R, V>(&mut total, curve, tile.filter, 0);
        }
        put::<L, R, V>(&total, tile.out, V * L::N);
    }
}

/// Adds what an input line gives to output lines `FROM..TO`; the weights are those of output line 0.
#[inline(always)]
unsafe fn under<L: Lanes, const R: usize, const V: usize, const FROM: usize, const TO: usize>(
    (x, w): (*const L::Elem, *const L::Elem),
    columns: &[usize],
    total: &mut [[L; V]; R],
) {
    let mut sums = *total;
    let (offsets, width) = (columns.as_ptr(), columns.len());
    let mut k = 0;
    while k < width {
        // Safety: the caller's promise; output lines FROM..TO have a row of the kernel over this line.
        unsafe {
            let x = x.add(*offsets.add(k));
            let mut loaded = [L::splat(L::Elem::ZERO); V];
            for v in 0..V {
                loaded[v] = L::load(x.add(v * L::N));
            }
            for r in FROM..TO {
                let weight = L::splat(*w.wrapping_sub(r * width).add(k));
                for v in 0..V {
                    sums[r][v] = weight.mul_add(loaded[v], sums[r][v]);
                }
            }
        }
        k += 1;
    }
    *total = sums;
}
