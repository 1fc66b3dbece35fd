//! The micro-kernels: tiles of filters × positions whose sums stay in registers.

use super::plan::{SINGLE_VECTORS, VECTORS};
use super::vector::ConvVector;
use crate::operand::Number;

/// Products summed in registers before they join the tile's sums; short sums keep rounding errors small.
pub(crate) const SUMMED: usize = 256;

/// Products ahead whose weights are fetched early.
const AHEAD: usize = 24;

/// Room for the largest tile.
pub(crate) const TILE: usize = 8 * VECTORS * 16;

/// What a tile computes: `out[f][i] = scale[f] · Σ_k w[k · pitch + f] · x[offsets[k] + i] + shift[f]`.
pub(crate) struct Tile<'a, T> {
    /// The operand from the tile's first position on.
    pub(crate) x: *const T,
    pub(crate) offsets: &'a [usize],
    /// The panel from the tile's first filter on.
    pub(crate) w: &'a [T],
    /// Filters of the panel.
    pub(crate) pitch: usize,
    /// Of the tile's filters.
    pub(crate) scale: &'a [T],
    pub(crate) shift: &'a [T],
    /// What follows while the sums are in registers.
    pub(crate) ops: &'a [EpilogueOp<T>],
    /// Index of the tile's first filter in the ops' scales and shifts.
    pub(crate) filter: usize,
    /// Where the results go: rows of vectors, `out_pitch` elements apart.
    pub(crate) out: *mut T,
    pub(crate) out_pitch: usize,
}

/// A step of an epilogue that takes a few instructions on registers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EpilogueOp<T> {
    /// `x · scale + shift`, per filter.
    Affine(Vec<T>, Vec<T>),
    /// x, but not outside an interval; NaN stays.
    Clamp(T, T),
    /// `x · clamp(x + 3, 0, 6) / 6`.
    HardSwish,
    /// `clamp(x · alpha + beta, 0, 1)`.
    HardSigmoid(T, T),
    /// x, or x · alpha below zero.
    Leaky(T),
}

/// Filters of the tile that computes up to `left` ones of a panel, for some vectors: a number that [`compute`] knows.
#[inline(always)]
pub(crate) fn rows<L: ConvVector>(left: usize, vectors: usize) -> usize {
    match left {
        1 => 1,
        2..=4 => 4,
        // A panel's weights are lines of the cache: one vector of positions takes them whole.
        9.. if vectors == 1 => 2 * L::TALL,
        _ => L::TALL,
    }
}

/// Computes a tile of `rows` (from [`rows`]) × `vectors`.
///
/// # Safety
/// The processor has the instruction set of `L`; every offset, plus the tile's positions, is in the memory of `x`,
/// and its rows may be written.
#[inline(always)]
pub(crate) unsafe fn compute<L: ConvVector>(tile: &Tile<'_, L::Elem>, rows: usize, vectors: usize) {
    // Safety: the caller's promise.
    unsafe {
        match (rows, vectors) {
            (1, 1) => L::sums::<1, 1>(tile),
            (1, 2) => L::sums::<1, 2>(tile),
            (1, 3) => L::sums::<1, 3>(tile),
            (1, _) => L::sums::<1, SINGLE_VECTORS>(tile),
            (4, 1) => L::sums::<4, 1>(tile),
            (4, 2) => L::sums::<4, 2>(tile),
            (4, _) => L::sums::<4, VECTORS>(tile),
            (8, 1) => L::sums::<8, 1>(tile),
            // Instruction sets with fewer registers have no taller tiles.
            _ if L::TALL == 4 => {}
            (_, 1) => L::sums::<16, 1>(tile),
            (_, 2) => L::sums::<8, 2>(tile),
            _ => L::sums::<8, VECTORS>(tile),
        }
    }
}

/// The body of [`ConvVector::sums`].
///
/// # Safety
/// As [`compute`].
#[inline(always)]
pub(crate) unsafe fn sums<L: ConvVector, const R: usize, const V: usize>(tile: &Tile<'_, L::Elem>) {
    let Tile { x, offsets, w, pitch, scale, shift, ops, filter, out, out_pitch } = *tile;
    assert!(scale.len() >= R && shift.len() >= R);
    assert!(offsets.is_empty() || w.len() >= (offsets.len() - 1) * pitch + R);
    let (w, offsets, k_len) = (w.as_ptr(), offsets.as_ptr(), offsets.len());
    let (scale, shift) = (scale.as_ptr(), shift.as_ptr());
    // Safety: weights and scales are in bounds as asserted; operands and results by the caller's promise.
    unsafe {
        let mut total = [[L::splat(L::Elem::ZERO); V]; R];
        accumulate::<L, R, V>(x, offsets, k_len.min(SUMMED), w, pitch, &mut total);
        let mut k = SUMMED;
        while k < k_len {
            put::<L, R, V>(&total, out, out_pitch);
            total = [[L::splat(L::Elem::ZERO); V]; R];
            let w = w.add(k * pitch);
            accumulate::<L, R, V>(x, offsets.add(k), SUMMED.min(k_len - k), w, pitch, &mut total);
            for r in 0..R {
                for v in 0..V {
                    total[r][v] = L::load(out.add(r * out_pitch + v * L::N)).add(total[r][v]);
                }
            }
            k += SUMMED;
        }
        scale_rows::<L, R, V>(&mut total, scale, shift, 1);
        for op in ops {
            apply_op::<L, R, V>(&mut total, op, filter, 1);
        }
        put::<L, R, V>(&total, out, out_pitch);
    }
}

/// Multiplies and adds per row; a row's numbers are `step` after those of the one before.
///
/// # Safety
/// The processor has the instruction set of `L`, and every row has its numbers.
#[inline(always)]
pub(crate) unsafe fn scale_rows<L: ConvVector, const R: usize, const V: usize>(
    total: &mut [[L; V]; R],
    scale: *const L::Elem,
    shift: *const L::Elem,
    step: usize,
) {
    for r in 0..R {
        // Safety: the caller's promise.
        unsafe {
            let (scale, shift) = (L::splat(*scale.add(r * step)), L::splat(*shift.add(r * step)));
            for v in 0..V {
                total[r][v] = total[r][v].mul_add(scale, shift);
            }
        }
    }
}

/// What follows the sums of a tile with filters in lanes, one row per position: `sum · scale + shift` and `ops`. Scales
/// and shifts are those of the tile's filters, as many as there are; `filter` is the first one's index in the ops'.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
pub(crate) unsafe fn finish_filters<L: ConvVector, const P: usize, const F: usize>(
    total: &mut [[L; F]; P],
    scale: &[L::Elem],
    shift: &[L::Elem],
    ops: &[EpilogueOp<L::Elem>],
    filter: usize,
) {
    // Safety: the caller's promise.
    unsafe {
        scale_filters::<L, P, F>(total, scale, shift);
        for op in ops {
            match op {
                EpilogueOp::Affine(scale, shift) => {
                    scale_filters::<L, P, F>(total, &scale[filter..], &shift[filter..]);
                }
                _ => apply_op::<L, P, F>(total, op, 0, 0),
            }
        }
    }
}

/// Multiplies and adds per lane.
#[inline(always)]
unsafe fn scale_filters<L: ConvVector, const P: usize, const F: usize>(
    total: &mut [[L; F]; P],
    scale: &[L::Elem],
    shift: &[L::Elem],
) {
    for f in 0..F {
        // Safety: registers only, but for elements of the slices.
        unsafe {
            let (scale, shift) = (first::<L>(scale, f * L::N), first::<L>(shift, f * L::N));
            for p in 0..P {
                total[p][f] = total[p][f].mul_add(scale, shift);
            }
        }
    }
}

/// Elements of a slice from `at` on, as many as there are lanes and elements.
#[inline(always)]
unsafe fn first<L: ConvVector>(from: &[L::Elem], at: usize) -> L {
    let from = from.get(at..).unwrap_or_default();
    // Safety: elements beyond the slice are not read.
    unsafe {
        if from.len() >= L::N {
            L::load(from.as_ptr())
        } else {
            L::load_masked(from.as_ptr(), (1 << from.len()) - 1)
        }
    }
}

/// Applies an op to all of a tile whose rows belong to filters from `filter` on, `step` apart.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
pub(crate) unsafe fn apply_op<L: ConvVector, const R: usize, const V: usize>(
    total: &mut [[L; V]; R],
    op: &EpilogueOp<L::Elem>,
    filter: usize,
    step: usize,
) {
    // Safety: registers only; scales and shifts are as long as all panels.
    unsafe {
        let zero = L::splat(L::Elem::ZERO);
        let one = L::splat(L::Elem::ONE);
        match op {
            EpilogueOp::Affine(scale, shift) => {
                let count = (R - 1) * step + 1;
                let (scale, shift) = (&scale[filter..][..count], &shift[filter..][..count]);
                scale_rows::<L, R, V>(total, scale.as_ptr(), shift.as_ptr(), step);
            }
            EpilogueOp::Clamp(low, high) => {
                let (low, high) = (L::splat(*low), L::splat(*high));
                for r in 0..R {
                    for v in 0..V {
                        total[r][v] = total[r][v].at_least(low).at_most(high);
                    }
                }
            }
            EpilogueOp::HardSwish => {
                let number = |x: f64| L::Elem::from_f64(x);
                let (three, six) = (L::splat(number(3.0)), L::splat(number(6.0)));
                // −∞ times zero is not a number.
                let (low, sixth) = (L::splat(number(-4.0)), L::splat(number(1.0 / 6.0)));
                for r in 0..R {
                    for v in 0..V {
                        let x = total[r][v];
                        let gate = x.add(three).at_least(zero).at_most(six).mul(sixth);
                        total[r][v] = x.at_least(low).mul(gate);
                    }
                }
            }
            EpilogueOp::HardSigmoid(alpha, beta) => {
                let (alpha, beta) = (L::splat(*alpha), L::splat(*beta));
                for r in 0..R {
                    for v in 0..V {
                        total[r][v] = total[r][v].mul_add(alpha, beta).at_least(zero).at_most(one);
                    }
                }
            }
            EpilogueOp::Leaky(alpha) => {
                let alpha = L::splat(*alpha);
                for r in 0..R {
                    for v in 0..V {
                        let x = total[r][v];
                        total[r][v] = x.at_most(zero).mul_add(alpha, x.at_least(zero));
                    }
                }
            }
        }
    }
}

/// Adds the products of `count` offsets to sums.
#[inline(always)]
unsafe fn accumulate<L: ConvVector, const R: usize, const V: usize>(
    x: *const L::Elem,
    offsets: *const usize,
    count: usize,
    mut w: *const L::Elem,
    pitch: usize,
    total: &mut [[L; V]; R],
) {
    let mut sums = *total;
    let mut k = 0;
    while k < count {
        // Safety: the caller's promise.
        unsafe {
            let x = x.add(*offsets.add(k));
            let mut loaded = [L::splat(L::Elem::ZERO); V];
            for v in 0..V {
                loaded[v] = L::load(x.add(v * L::N));
            }
            for r in 0..R {
                let weight = L::splat(*w.add(r));
                for v in 0..V {
                    sums[r][v] = weight.mul_add(loaded[v], sums[r][v]);
                }
            }
        }
        if R * V <= 16 {
            // Tiles of few positions use a weight once, so that weights come from afar.
            L::prefetch_weights(w.wrapping_add(AHEAD * pitch));
        }
        w = w.wrapping_add(pitch);
        k += 1;
    }
    *total = sums;
}

/// Writes a tile's rows, `pitch` elements apart.
///
/// # Safety
/// The processor has the instruction set of `L`, and there is room for the rows.
#[inline(always)]
pub(crate) unsafe fn put<L: ConvVector, const R: usize, const V: usize>(
    sums: &[[L; V]; R],
    out: *mut L::Elem,
    pitch: usize,
) {
    for r in 0..R {
        for v in 0..V {
            // Safety: the caller has room for R rows of V vectors.
            unsafe { sums[r][v].store(out.add(r * pitch + v * L::N)) };
        }
    }
}
