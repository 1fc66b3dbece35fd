//! Few rows of x times rows of a packed weight, and rows of it as f32, with explicit vectors.
//!
//! One function for all formats: a [`Decoder`] yields 32 elements at a time.

#![allow(
    clippy::needless_range_loop,
    reason = "loops over accumulators by number are unrolled, iterators need not be"
)]

use std::arch::x86_64::{__m256, __m512};
use std::ops::Range;

use olivine_ir::{BlockFormat, DType};

use super::formats::*;
use super::sixteen::Sixteen;
use super::weight::Weight;
use crate::scratch;
use crate::simd::{Vectors, vectors};

/// Elements of a group.
const GROUP: usize = 32;

/// The most rows of x that are multiplied without a panel of decoded rows.
pub(super) const MOST: usize = 8;

/// Sixteen lanes on a cache line of their own: loads across two lines take twice as long.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Aligned(pub(super) [f32; 16]);

/// Rows of x as decoders want them: padded with zeros to whole rows of the weight and to a number of rows that there is
/// code for, and the sums of each sixteen elements.
pub(super) struct Prepared {
    /// Tests may change the instruction set in use meanwhile.
    set: Vectors,
    rows: usize,
    columns: usize,
    x: Vec<Aligned>,
    sums: Vec<f32>,
}

impl Prepared {
    /// Rows of `k` elements for a weight; `None` where it has no decoder or they are too many.
    pub(super) fn new(w: &Weight<'_>, x: &[f32], k: usize) -> Option<Self> {
        let (rows, columns, set) = (x.len() / k, w.columns, vectors_for(w)?);
        // Elements after the last of x are multiplied by zeros, which NaN does not allow.
        let nan = matches!(w.format, Some(BlockFormat::F8_E4M3 | BlockFormat::F8_E5M2)) && k < columns;
        if rows == 0 || rows > MOST || nan {
            return None;
        }
        let padded = rows.next_power_of_two();
        let mut lines = scratch::zeroed::<Aligned>(padded * columns / 16);
        let all: &mut [f32] = bytemuck::cast_slice_mut(&mut lines);
        for (to, from) in all.chunks_exact_mut(columns).zip(x.chunks_exact(k)) {
            to[..k].copy_from_slice(from);
        }
        let mut sums = scratch::with_room(padded * columns / 16);
        sums.extend(all.chunks_exact(16).map(|x| x.iter().sum::<f32>()));
        Some(Prepared { set, rows: padded, columns, x: lines, sums })
    }
}

/// The instruction set that decodes a weight; `None` leaves it to the plain decoder.
fn vectors_for(w: &Weight<'_>) -> Option<Vectors> {
    let least = if scale_per_16(w)? { 16 } else { GROUP };
    let whole = w.columns > 0 && w.columns.is_multiple_of(GROUP) && w.block.is_multiple_of(least);
    Some(vectors()).filter(|set| whole && *set >= Vectors::Avx2)
}

/// Whether each 16 elements may have their own scale; `None` without a decoder.
fn scale_per_16(w: &Weight<'_>) -> Option<bool> {
    use BlockFormat as F;
    match w.format {
        None if w.dtype.is_float() => None,
        None | Some(F::U4 | F::I4 | F::F8_E4M3 | F::F8_E5M2) => Some(true),
        // Scales beside those in the blocks are left to the plain decoder.
        Some(_) if w.block > 0 => None,
        Some(F::Q4_0 | F::Q4_1 | F::Q5_0 | F::Q5_1 | F::Q8_0 | F::IQ4_NL | F::MXFP4) => Some(false),
        Some(F::Q4_K | F::Q5_K | F::Q6_K | F::IQ4_XS) => Some(false),
        Some(_) => None,
    }
}

/// Calls `$work!(decoder)` with the decoder of a weight that has one.
macro_rules! with_decoder {
    ($w:expr, $work:ident) => {{
        use BlockFormat as F;
        let bits = match $w.format {
            None if $w.dtype == DType::I8 => Bits::I8,
            None => Bits::U8,
            Some(F::U4) => Bits::U4,
            Some(F::I4) => Bits::I4,
            Some(F::F8_E4M3) => Bits::F8E4M3,
            _ => Bits::F8E5M2,
        };
        match $w.format {
            Some(F::Q4_0) => $work!(Q4_0),
            Some(F::Q4_1) => $work!(Q4_1),
            Some(F::Q5_0) => $work!(Q5_0),
            Some(F::Q5_1) => $work!(Q5_1),
            Some(F::Q8_0) => $work!(Q8_0),
            Some(F::IQ4_NL) => $work!(Iq4Nl),
            Some(F::MXFP4) => $work!(Mxfp4),
            Some(F::Q4_K) => $work!(Q4K),
            Some(F::Q5_K) => $work!(Q5K),
            Some(F::Q6_K) => $work!(Q6K),
            Some(F::IQ4_XS) => $work!(Iq4Xs),
            _ if $w.block.is_multiple_of(GROUP) => $work!(Scaled::<false>(bits)),
            _ => $work!(Scaled::<true>(bits)),
        }
    }};
}

/// The products of all rows of x with rows `range` of the weight that x was prepared for.
pub(super) fn multiply(w: &Weight<'_>, range: Range<usize>, x: &Prepared, out: &mut [&mut [f32]]) {
    assert!(x.columns == w.columns && range.end * w.row_bytes <= w.bytes.len());
    assert!(out.len() <= x.rows && out.iter().all(|row| row.len() == range.len()));
    macro_rules! work {
        ($decoder:expr) => {{
            let decoder = $decoder;
            // Safety: `vectors` has seen the instruction set; the weight's rows are in its bytes.
            unsafe {
                match x.set {
                    Vectors::Avx512 => multiply_avx512(decoder, w, range, x, out),
                    _ => multiply_avx2(decoder, w, range, x, out),
                }
            }
        }};
    }
    with_decoder!(w, work);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
unsafe fn multiply_avx512<D: Decoder>(
    d: D,
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    // Safety: the features are enabled here; the rest is the caller's promise.
    unsafe { multiply_with::<__m512, D>(d, w, range, x, out) }
}

#[target_feature(enable = "avx2,fma,bmi2,f16c")]
unsafe fn multiply_avx2<D: Decoder>(
    d: D,
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    // Safety: as above.
    unsafe { multiply_with::<[__m256; 2], D>(d, w, range, x, out) }
}

#[inline(always)]
unsafe fn multiply_with<S: Sixteen, D: Decoder>(
    d: D,
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    // Safety: the caller's promise.
    unsafe {
        match x.rows {
            1 => multiply_rows::<S, D, 1>(d, w, range, x, out),
            2 => multiply_rows::<S, D, 2>(d, w, range, x, out),
            4 => multiply_rows::<S, D, 4>(d, w, range, x, out),
            _ => multiply_rows::<S, D, MOST>(d, w, range, x, out),
        }
    }
}

#[inline(always)]
unsafe fn multiply_rows<S: Sixteen, D: Decoder, const M: usize>(
    d: D,
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    // Two rows share the loads of several of x, where registers allow. They are far apart, so that memory is read in two long runs.
    let half = if S::MANY && M > 1 { range.len() / 2 } else { 0 };
    // Safety: the caller's promise.
    unsafe {
        for i in 0..half {
            let sums = dots::<S, D, M, 2>(d, w, [range.start + i, range.start + half + i], x);
            out.iter_mut().zip(sums).for_each(|(to, [a, b])| (to[i], to[half + i]) = (a, b));
        }
        for i in 2 * half..range.len() {
            let sums = dots::<S, D, M, 1>(d, w, [range.start + i], x);
            out.iter_mut().zip(sums).for_each(|(to, [sum])| to[i] = sum);
        }
    }
}

/// The dot products of `R` rows of the weight with `M` rows of x.
///
/// # Safety
/// The processor must have the instruction set of `S`, the rows must be in the weight's bytes, and x must have `M` rows.
#[inline(always)]
unsafe fn dots<S: Sixteen, D: Decoder, const M: usize, const R: usize>(
    d: D,
    w: &Weight<'_>,
    rows: [usize; R],
    x: &Prepared,
) -> [[f32; R]; M] {
    let (x, sums, columns) = (x.x.as_ptr().cast::<f32>(), x.sums.as_ptr(), x.columns);
    let mut out = [[0f32; R]; M];
    // Safety: the caller's promise.
    unsafe {
        let first = rows.map(|row| w.bytes.as_ptr().add(row * w.row_bytes));
        let mut totals = [[S::splat(0.0); R]; M];
        let mut offsets = [[0f32; R]; M];
        for i in 0..columns / GROUP {
            let mut values = [[S::splat(0.0); 2]; R];
            let mut scales = [[S::splat(1.0); 2]; R];
            let mut added = [0f32; R];
            for r in 0..R {
                let group = d.group::<S>(w, rows[r], first[r], i);
                scales[r] = group.scale.map(|x| S::splat(x));
                // With many rows it pays to scale the elements, not the sums.
                values[r] = group.values;
                if M > 2 {
                    values[r] = [values[r][0].mul(scales[r][0]), values[r][1].mul(scales[r][1])];
                }
                added[r] = group.offset;
            }
            for m in 0..M {
                let x = x.add(m * columns + i * GROUP);
                let (first, second) = (S::load(x), S::load(x.add(16)));
                for r in 0..R {
                    let ([low, high], total) = (values[r], totals[m][r]);
                    totals[m][r] = if M > 2 {
                        high.mul_add(second, low.mul_add(first, total))
                    } else if D::SCALE_PER_16 {
                        high.mul(second).mul_add(scales[r][1], low.mul(first).mul_add(scales[r][0], total))
                    } else {
                        high.mul_add(second, low.mul(first)).mul_add(scales[r][0], total)
                    };
                    if D::OFFSET {
                        let sums = sums.add((m * columns + i * GROUP) / 16);
                        offsets[m][r] += added[r] * (*sums + *sums.add(1));
                    }
                }
            }
        }
        for m in 0..M {
            for r in 0..R {
                out[m][r] = totals[m][r].sum() + offsets[m][r];
            }
        }
    }
    out
}

/// Elements of a row from `first` on, whole groups, bit for bit as the plain decoder has them; false if it has to do it.
pub(super) fn decode(w: &Weight<'_>, row: usize, first: usize, into: &mut [f32]) -> bool {
    let whole = first.is_multiple_of(GROUP) && into.len().is_multiple_of(GROUP);
    let Some(set) = vectors_for(w).filter(|_| whole) else { return false };
    assert!(first + into.len() <= w.columns && (row + 1) * w.row_bytes <= w.bytes.len());
    macro_rules! work {
        ($decoder:expr) => {{
            let decoder = $decoder;
            // Safety: `vectors` has seen the instruction set; the row is in the weight's bytes.
            unsafe {
                match set {
                    Vectors::Avx512 => decode_avx512(decoder, w, row, first / GROUP, into),
                    _ => decode_avx2(decoder, w, row, first / GROUP, into),
                }
            }
        }};
    }
    with_decoder!(w, work);
    true
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
unsafe fn decode_avx512<D: Decoder>(d: D, w: &Weight<'_>, row: usize, first: usize, into: &mut [f32]) {
    // Safety: the features are enabled here; the rest is the caller's promise.
    unsafe { decode_with::<__m512, D>(d, w, row, first, into) }
}

#[target_feature(enable = "avx2,fma,bmi2,f16c")]
unsafe fn decode_avx2<D: Decoder>(d: D, w: &Weight<'_>, row: usize, first: usize, into: &mut [f32]) {
    // Safety: as above.
    unsafe { decode_with::<[__m256; 2], D>(d, w, row, first, into) }
}

#[inline(always)]
unsafe fn decode_with<S: Sixteen, D: Decoder>(
    d: D,
    w: &Weight<'_>,
    row: usize,
    first: usize,
    into: &mut [f32],
) {
    // Safety: the caller's promise: groups are whole.
    unsafe {
        let at = w.bytes.as_ptr().add(row * w.row_bytes);
        for (i, into) in into.chunks_exact_mut(GROUP).enumerate() {
            let Group { values, scale, offset } = d.group::<S>(w, row, at, first + i);
            for half in 0..2 {
                let scaled = values[half].mul(S::splat(scale[half]));
                let all = if D::OFFSET { scaled.add(S::splat(offset)) } else { scaled };
                all.store(into.as_mut_ptr().add(16 * half));
            }
        }
    }
}
