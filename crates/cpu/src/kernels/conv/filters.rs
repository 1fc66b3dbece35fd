//! Tiles with filters in lanes, for positions that would leave lanes of their own empty: few of them, or short lines.
//!
//! ```text
//!   panels of weights [K, lanes] × positions one by one ──▶ sums [positions, filters] ──▶ transposed to their places
//! ```

use super::tile::{EpilogueOp, SUMMED, finish_filters, put};
use super::vector::ConvVector;
use crate::operand::Number;

/// Numbers of positions there are tiles for.
const TILES: [usize; 9] = [14, 12, 10, 8, 7, 6, 4, 2, 1];
/// The largest.
pub(crate) const POSITIONS: usize = TILES[0];
/// Panels of a tile.
pub(crate) const PANELS: usize = 2;

/// Positions per tile for lines of `width` and sums of `k`, and the time of a panel's tiles for a line, in vector
/// instructions: short tiles wait for their own sums, and every tile is transposed.
pub(crate) fn positions(width: usize, k: usize) -> (usize, usize) {
    const TRANSPOSE: usize = 90;
    let time =
        |p: usize| width.div_ceil(p).saturating_mul(k.saturating_mul(p.max(4)).saturating_add(TRANSPOSE));
    let fitting = TILES.into_iter().filter(|p| *p <= width.max(1));
    fitting.map(|p| (p, time(p))).min_by_key(|(_, time)| *time).unwrap_or((1, time(1)))
}

/// What a tile computes: `out[p][f] = scale[f] · Σ_k w[k][f] · x[offsets[k] + p] + shift[f]`, then `ops`.
pub(crate) struct FilterTile<'a, T> {
    /// The operand from the tile's first position on.
    pub(crate) x: *const T,
    pub(crate) offsets: &'a [usize],
    /// Panels as wide as vectors.
    pub(crate) w: [&'a [T]; PANELS],
    /// Of the tile's filters.
    pub(crate) scale: &'a [T],
    pub(crate) shift: &'a [T],
    pub(crate) ops: &'a [EpilogueOp<T>],
    /// Index of the tile's first filter in the ops' scales and shifts.
    pub(crate) filter: usize,
    /// Rows of [`PANELS`] vectors, one per position.
    pub(crate) out: *mut T,
}

/// Computes a tile of `positions` (of [`positions`]) × one or two panels.
///
/// # Safety
/// The processor has the instruction set of `L`; every offset, plus the tile's positions, is inside the memory of `x`, and
/// `out` has room.
#[inline(always)]
pub(crate) unsafe fn compute<L: ConvVector>(tile: &FilterTile<'_, L::Elem>, positions: usize, panels: usize) {
    // Safety: the caller's promise.
    unsafe {
        match (positions, panels) {
            (14, 2) => L::filters::<14, 2>(tile),
            (12, 2) => L::filters::<12, 2>(tile),
            (10, 2) => L::filters::<10, 2>(tile),
            (8, 2) => L::filters::<8, 2>(tile),
            (7, 2) => L::filters::<7, 2>(tile),
            (6, 2) => L::filters::<6, 2>(tile),
            (4, 2) => L::filters::<4, 2>(tile),
            (2, 2) => L::filters::<2, 2>(tile),
            (1, 2) => L::filters::<1, 2>(tile),
            (14, _) => L::filters::<14, 1>(tile),
            (12, _) => L::filters::<12, 1>(tile),
            (10, _) => L::filters::<10, 1>(tile),
            (8, _) => L::filters::<8, 1>(tile),
            (7, _) => L::filters::<7, 1>(tile),
            (6, _) => L::filters::<6, 1>(tile),
            (4, _) => L::filters::<4, 1>(tile),
            (2, _) => L::filters::<2, 1>(tile),
            _ => L::filters::<1, 1>(tile),
        }
    }
}

/// The body of [`ConvVector::filters`].
///
/// # Safety
/// As [`compute`].
#[inline(always)]
pub(crate) unsafe fn filters<L: ConvVector, const P: usize, const F: usize>(tile: &FilterTile<'_, L::Elem>) {
    let FilterTile { x, offsets, w, scale, shift, ops, filter, out } = *tile;
    let k_len = offsets.len();
    assert!(F <= PANELS);
    let mut panels = [std::ptr::null(); F];
    for f in 0..F {
        assert!(w[f].len() >= k_len * L::N);
        panels[f] = w[f].as_ptr();
    }
    // Safety: weights are in bounds as asserted; operands and results by the caller's promise.
    unsafe {
        let mut total = [[L::splat(L::Elem::ZERO); F]; P];
        let mut from = 0;
        loop {
            let count = SUMMED.min(k_len - from);
            add::<L, P, F>(x, offsets.as_ptr().add(from), count, from, panels, &mut total);
            // Long sums are sums of short ones, which keeps rounding errors small.
            if from > 0 {
                for p in 0..P {
                    for f in 0..F {
                        total[p][f] = L::load(out.add((p * PANELS + f) * L::N)).add(total[p][f]);
                    }
                }
            }
            from += count;
            if from >= k_len {
                break;
            }
            put::<L, P, F>(&total, out, PANELS * L::N);
            total = [[L::splat(L::Elem::ZERO); F]; P];
        }
        finish_filters::<L, P, F>(&mut total, scale, shift, ops, filter);
        put::<L, P, F>(&total, out, PANELS * L::N);
    }
}

/// Adds the products of `count` offsets to sums.
#[inline(always)]
unsafe fn add<L: ConvVector, const P: usize, const F: usize>(
    x: *const L::Elem,
    offsets: *const usize,
    count: usize,
    from: usize,
    panels: [*const L::Elem; F],
    total: &mut [[L; F]; P],
) {
    let mut sums = *total;
    let mut k = 0;
    while k < count {
        // Safety: the caller's promise.
        unsafe {
            let x = x.add(*offsets.add(k));
            let mut weights = [L::splat(L::Elem::ZERO); F];
            for f in 0..F {
                weights[f] = L::load(panels[f].add((from + k) * L::N));
            }
            for p in 0..P {
                let value = L::splat(*x.add(p));
                for f in 0..F {
                    sums[p][f] = value.mul_add(weights[f], sums[p][f]);
                }
            }
        }
        k += 1;
    }
    *total = sums;
}
