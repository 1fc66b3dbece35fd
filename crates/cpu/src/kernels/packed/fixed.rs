//! One or two rows of x in fixed point times rows of 4-bit formats, by AVX-512 VNNI.
//!
//! Each 32 elements of x become integers of `DIGITS` bytes and a scale. With three digits they are off by 2⁻²⁴ of the
//! largest of the 32 at most, which is what f32 sums of such products lose too; with one, by 2⁻⁸.
//!
//! ```text
//!   64 codes ─┬─ · digit 0 ─ ·256 + · digit 1 ─ ·256 + · digit 2 ─ f32 ─ · scales of w and x ─ summed in f32
//!             └─ sixteen lanes of four products, exact in 32 bits
//! ```

#![allow(
    clippy::needless_range_loop,
    reason = "loops over accumulators by number are unrolled, iterators need not be"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use olivine_ir::BlockFormat;

use super::rows::Aligned;
use super::weight::Weight;
use crate::scratch;
use crate::simd::vector::prefetch_l2;
use crate::simd::{Vectors, has_dot_products, vectors};

/// The most rows of x.
pub(super) const MOST: usize = 2;

/// Elements that share a scale.
const GROUP: usize = 32;

/// Bytes ahead of those that are read that are fetched from memory.
const AHEAD: usize = 3072;

/// Largest elements below this are left to f32: their scale could not be a normal number.
const SMALLEST: f32 = 1e-30;

/// A format as vectors of 64 unsigned codes.
///
/// # Safety
/// Methods need AVX-512 F, BW and VL, and `at` whole steps.
trait Codes {
    /// Elements and bytes of a step.
    const STEP: usize;
    const BYTES: usize;
    /// Vectors of codes of a step, and how many of them in turn have the same scales.
    const VECTORS: usize;
    const SHARED: usize;
    /// The code that stands for 0.
    const ZERO: i32;
    /// What is read of a step.
    type Loaded: Copy;
    /// The element of a step whose code is byte `byte` of vector `vector`; sixteen bytes are sixteen elements in order.
    fn element(vector: usize, byte: usize) -> usize;
    /// What [`Codes::scales`] wants of x, from the scale and the sum of each 32 elements of a step.
    fn terms(scales: &[f32], sums: &[f32]) -> [f32; 16];
    unsafe fn load(at: *const u8) -> Self::Loaded;
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i;
    /// The product of the step's scales and `terms`.
    unsafe fn scaled(step: &Self::Loaded, terms: __m512) -> __m512;
    /// The scales of the lanes of the `i`-th vectors that share them, from [`Codes::scaled`].
    unsafe fn scales(scaled: __m512, i: usize) -> __m512;
    /// Adds what belongs to no vector.
    unsafe fn add_rest(scaled: __m512, sum: __m512) -> __m512;
}

/// Four blocks at a time: 16 bytes of each, then their high bits.
struct Q4_0;

/// Where the words of `Q4_0`'s codes are among those of two registers, the second of which begins four words later.
const Q4_0_WORDS: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 32 {
        let word = 9 * (i / 8) + 1 + i % 8;
        words[i] = if word < 32 { word as i16 } else { (32 + word - 4) as i16 };
        i += 1;
    }
    words
};

/// The words of the scale of each lane.
const Q4_0_SCALES: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 16 {
        words[i] = (9 * (i / 4)) as i16;
        i += 1;
    }
    words
};

impl Codes for Q4_0 {
    const STEP: usize = 128;
    const BYTES: usize = 72;
    const VECTORS: usize = 2;
    const SHARED: usize = 2;
    const ZERO: i32 = 8;
    type Loaded = (__m512i, __m512);

    fn element(vector: usize, byte: usize) -> usize {
        byte / 16 * 32 + vector * 16 + byte % 16
    }

    fn terms(scales: &[f32], _: &[f32]) -> [f32; 16] {
        std::array::from_fn(|lane| scales[lane / 4])
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self::Loaded {
        // Safety: a step has 72 bytes.
        unsafe {
            let (first, second) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(8).cast()));
            let words = _mm512_loadu_si512(Q4_0_WORDS.as_ptr().cast());
            let scales = _mm512_loadu_si512(Q4_0_SCALES.as_ptr().cast());
            let scales = _mm512_castsi512_si256(_mm512_permutexvar_epi16(scales, first));
            (_mm512_permutex2var_epi16(first, words, second), _mm512_cvtph_ps(scales))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        // Safety: the caller's promise.
        unsafe { nibbles(step.0, vector) }
    }

    #[inline(always)]
    unsafe fn scaled(step: &Self::Loaded, terms: __m512) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_mul_ps(step.1, terms) }
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, _: usize) -> __m512 {
        scaled
    }

    #[inline(always)]
    unsafe fn add_rest(_: __m512, sum: __m512) -> __m512 {
        sum
    }
}

/// One block at a time: each 64 bytes hold the low and the high bits of two times 32 elements.
struct Q4K;

/// For each vector of codes the scales of its lanes.
const Q4_K_SCALES: [[i32; 16]; 4] = {
    let mut lanes = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (vector, second) = (i / 16, i % 16 / 8);
        lanes[vector][i % 16] = (vector / 2 * 4 + vector % 2 + 2 * second) as i32;
        i += 1;
    }
    lanes
};

impl Codes for Q4K {
    const STEP: usize = 256;
    const BYTES: usize = 144;
    const VECTORS: usize = 4;
    const SHARED: usize = 1;
    const ZERO: i32 = 0;
    /// Two times 64 bytes, the eight scales and the eight minimums.
    type Loaded = ([__m512i; 2], __m512);

    fn element(vector: usize, byte: usize) -> usize {
        (vector / 2 * 2 + byte / 32) * 64 + vector % 2 * 32 + byte % 32
    }

    fn terms(scales: &[f32], sums: &[f32]) -> [f32; 16] {
        std::array::from_fn(|lane| if lane < 8 { scales[lane] } else { -sums[lane - 8] })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self::Loaded {
        // Safety: a step has 144 bytes.
        unsafe {
            let [a, b, c] = at.add(4).cast::<[u32; 3]>().read_unaligned();
            // Four 6-bit numbers at a time; the upper two bits of the second four are in the bytes of the first.
            let scales = [a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | a >> 2 & 0x3030_3030];
            let minimums = [b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | b >> 2 & 0x3030_3030];
            let numbers = [scales[0], scales[1], minimums[0], minimums[1]];
            let numbers = _mm_loadu_si128(numbers.as_ptr().cast());
            let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(numbers));
            let both = _mm_cvtph_ps(_mm_cvtsi32_si128(at.cast::<i32>().read_unaligned()));
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let both = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(both));
            let codes = [_mm512_loadu_si512(at.add(16).cast()), _mm512_loadu_si512(at.add(80).cast())];
            (codes, _mm512_mul_ps(numbers, both))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        // Safety: the caller's promise.
        unsafe { nibbles(step.0[vector / 2], vector % 2) }
    }

    #[inline(always)]
    unsafe fn scaled(step: &Self::Loaded, terms: __m512) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_mul_ps(step.1, terms) }
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, i: usize) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_permutexvar_ps(_mm512_loadu_si512(Q4_K_SCALES[i].as_ptr().cast()), scaled) }
    }

    #[inline(always)]
    unsafe fn add_rest(scaled: __m512, sum: __m512) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_mask_add_ps(sum, 0xff00, sum, scaled) }
    }
}

/// The low or the high four bits of bytes.
#[inline(always)]
unsafe fn nibbles(bytes: __m512i, high: usize) -> __m512i {
    // Safety: the caller's promise.
    unsafe {
        let bytes = if high == 0 { bytes } else { _mm512_srli_epi16::<4>(bytes) };
        _mm512_and_si512(bytes, _mm512_set1_epi8(15))
    }
}

/// Rows of x in fixed point, in the order of a format's codes.
pub(super) struct Prepared {
    rows: usize,
    columns: usize,
    digits: usize,
    /// For each row, step and digit those of all vectors.
    digits_of: Vec<Aligned>,
    /// For each row, step and vectors that share scales: what a code of [`Codes::ZERO`] counts too much in each lane.
    corrections: Vec<Aligned>,
    terms: Vec<Aligned>,
}

/// Rows of x of `columns` elements, `x` being whole rows; `None` where this processor or the format has no such kernel,
/// or the numbers are not finite. `fast` keeps eight bits of each element.
pub(super) fn prepare(w: &Weight<'_>, x: &[f32], fast: bool) -> Option<Prepared> {
    let rows = x.len() / w.columns;
    if rows > MOST || vectors() < Vectors::Avx512 || !has_dot_products() || w.block > 0 {
        return None;
    }
    // Safety: the processor has AVX-512.
    unsafe {
        match (w.format, fast) {
            (Some(BlockFormat::Q4_0), false) => Prepared::new::<Q4_0, 3>(x, rows, w.columns),
            (Some(BlockFormat::Q4_0), true) => Prepared::new::<Q4_0, 1>(x, rows, w.columns),
            (Some(BlockFormat::Q4_K), false) => Prepared::new::<Q4K, 3>(x, rows, w.columns),
            (Some(BlockFormat::Q4_K), true) => Prepared::new::<Q4K, 1>(x, rows, w.columns),
            _ => None,
        }
    }
}

impl Prepared {
    /// Plain loops, which the compiler turns into vectors.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
    fn new<C: Codes, const DIGITS: usize>(x: &[f32], rows: usize, columns: usize) -> Option<Self> {
        if columns == 0 || !columns.is_multiple_of(C::STEP) {
            return None;
        }
        let (steps, shared) = (x.len() / C::STEP, C::VECTORS / C::SHARED);
        let mut digits_of = scratch::zeroed::<Aligned>(x.len() / 64 * DIGITS);
        let mut corrections_of = scratch::zeroed::<Aligned>(steps * shared);
        let mut terms = scratch::with_room::<Aligned>(steps);
        let all: &mut [i8] = bytemuck::cast_slice_mut(&mut digits_of);
        let corrections: &mut [i32] = bytemuck::cast_slice_mut(&mut corrections_of);
        for (i, x) in x.chunks_exact(C::STEP).enumerate() {
            let (mut scales, mut sums, mut fixed) = ([0f32; 8], [0f32; 8], [0i32; 256]);
            for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                sums[g] = x
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .fold([0.0; 4], |s, x| [0, 1, 2, 3].map(|i| s[i] + x[i]))
                    .iter()
                    .sum();
                if !sums[g].is_finite() {
                    return None;
                }
                scales[g] = to_fixed::<DIGITS>(x, &mut fixed[g * GROUP..])?;
            }
            terms.push(Aligned(C::terms(&scales, &sums)));
            let bytes = &mut all[i * C::STEP * DIGITS..][..C::STEP * DIGITS];
            for at in (0..C::STEP).step_by(16) {
                let (vector, byte) = (at / 64, at % 64);
                let mut rest = [0i32; 16];
                rest.copy_from_slice(&fixed[C::element(vector, byte)..][..16]);
                let lanes = (i * shared + vector / C::SHARED) * 16 + byte / 4;
                for (to, four) in corrections[lanes..lanes + 4].iter_mut().zip(rest.as_chunks::<4>().0) {
                    *to -= C::ZERO * four.iter().sum::<i32>();
                }
                for digit in (0..DIGITS).rev() {
                    let to = &mut bytes[digit * C::STEP + at..][..16];
                    for (to, rest) in to.iter_mut().zip(&mut rest) {
                        *to = *rest as i8;
                        *rest = (*rest - i32::from(*to)) >> 8;
                    }
                }
            }
        }
        Some(Prepared { rows, columns, digits: DIGITS, digits_of, corrections: corrections_of, terms })
    }
}

/// Writes elements as integers of `DIGITS` digits between −128 and 127 and returns what these are multiples of.
#[inline(always)]
fn to_fixed<const DIGITS: usize>(x: &[f32; GROUP], to: &mut [i32]) -> Option<f32> {
    let most = const { if DIGITS == 1 { 127.0 } else { 127.0 * 65793.0 } };
    // Positive floats are ordered as their bits are.
    let largest = f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)));
    if largest == 0.0 {
        return Some(0.0);
    }
    if largest < SMALLEST {
        return None;
    }
    let factor = most / f64::from(largest);
    for (to, x) in to.iter_mut().zip(x) {
        // Adding three halves of 2⁵² leaves the nearest whole number in the lower bits.
        *to = (f64::from(*x) * factor + 6_755_399_441_055_744.0).to_bits() as i32;
    }
    Some((f64::from(largest) / most) as f32)
}

/// The products of all rows of x with rows `range` of the weight that x was prepared for.
pub(super) fn multiply(w: &Weight<'_>, range: Range<usize>, x: &Prepared, out: &mut [&mut [f32]]) {
    assert!(x.columns == w.columns && range.end * w.row_bytes <= w.bytes.len());
    assert!(out.len() == x.rows && out.iter().all(|row| row.len() == range.len()));
    // Safety: `prepare` has seen the instructions on this processor; rows are in the weight's bytes.
    unsafe {
        match (w.format, x.digits, x.rows) {
            (Some(BlockFormat::Q4_0), 3, 1) => multiply_with::<Q4_0, 3, 1>(w, range, x, out),
            (Some(BlockFormat::Q4_0), 3, _) => multiply_with::<Q4_0, 3, 2>(w, range, x, out),
            (Some(BlockFormat::Q4_0), _, 1) => multiply_with::<Q4_0, 1, 1>(w, range, x, out),
            (Some(BlockFormat::Q4_0), _, _) => multiply_with::<Q4_0, 1, 2>(w, range, x, out),
            (_, 3, 1) => multiply_with::<Q4K, 3, 1>(w, range, x, out),
            (_, 3, _) => multiply_with::<Q4K, 3, 2>(w, range, x, out),
            (_, _, 1) => multiply_with::<Q4K, 1, 1>(w, range, x, out),
            _ => multiply_with::<Q4K, 1, 2>(w, range, x, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2,f16c")]
unsafe fn multiply_with<C: Codes, const DIGITS: usize, const M: usize>(
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    let half = range.len() / 2;
    // Safety: the rows are in the weight's bytes, by the caller's promise.
    unsafe {
        // Loads of x are the limit: two rows share them. They are far apart, so that memory is read in two long runs.
        for i in 0..half {
            let sums = dots::<C, DIGITS, M, 2>(w, [range.start + i, range.start + half + i], x);
            for m in 0..M {
                (out[m][i], out[m][half + i]) = (sums[m][0], sums[m][1]);
            }
        }
        if 2 * half < range.len() {
            let sums = dots::<C, DIGITS, M, 1>(w, [range.end - 1], x);
            for m in 0..M {
                out[m][2 * half] = sums[m][0];
            }
        }
    }
}

/// The dot products of `R` rows of the weight with `M` rows of x.
///
/// # Safety
/// The processor must have AVX-512 with VNNI, the rows must be in the weight's bytes, and x must be prepared for it.
#[inline(always)]
unsafe fn dots<C: Codes, const DIGITS: usize, const M: usize, const R: usize>(
    w: &Weight<'_>,
    rows: [usize; R],
    x: &Prepared,
) -> [[f32; R]; M] {
    let (steps, shared) = (x.columns / C::STEP, C::VECTORS / C::SHARED);
    let mut out = [[0f32; R]; M];
    // Safety: rows and x are whole steps.
    unsafe {
        let first = rows.map(|row| w.bytes.as_ptr().add(row * w.row_bytes));
        let mut sums = [[_mm512_setzero_ps(); R]; M];
        for step in 0..steps {
            let mut loaded = [C::load(first[0].add(step * C::BYTES)); R];
            for r in 1..R {
                loaded[r] = C::load(first[r].add(step * C::BYTES));
            }
            for r in 0..R {
                let next = first[r].wrapping_add(step * C::BYTES + AHEAD);
                prefetch_l2(next);
                if C::BYTES > 128 {
                    prefetch_l2(next.wrapping_add(64));
                }
            }
            for m in 0..M {
                let part = m * steps + step;
                let digits = x.digits_of.as_ptr().add(part * C::VECTORS * DIGITS);
                let terms = _mm512_load_ps(x.terms.as_ptr().add(part).cast());
                let mut scaled = [terms; R];
                for r in 0..R {
                    scaled[r] = C::scaled(&loaded[r], terms);
                    sums[m][r] = C::add_rest(scaled[r], sums[m][r]);
                }
                for g in 0..shared {
                    let mut lanes = [_mm512_setzero_si512(); R];
                    for digit in 0..DIGITS {
                        for r in 0..R {
                            lanes[r] = if digit > 0 { _mm512_slli_epi32::<8>(lanes[r]) } else { lanes[r] };
                        }
                        for v in g * C::SHARED..(g + 1) * C::SHARED {
                            let x = _mm512_load_si512(digits.add(digit * C::VECTORS + v).cast());
                            for r in 0..R {
                                lanes[r] = _mm512_dpbusd_epi32(lanes[r], C::codes(&loaded[r], v), x);
                            }
                        }
                    }
                    let correction = x.corrections.as_ptr().add(part * shared + g);
                    for r in 0..R {
                        if C::ZERO != 0 {
                            lanes[r] = _mm512_add_epi32(lanes[r], _mm512_load_si512(correction.cast()));
                        }
                        let lanes = _mm512_cvtepi32_ps(lanes[r]);
                        sums[m][r] = _mm512_fmadd_ps(lanes, C::scales(scaled[r], g), sums[m][r]);
                    }
                }
            }
        }
        for m in 0..M {
            for r in 0..R {
                out[m][r] = _mm512_reduce_add_ps(sums[m][r]);
            }
        }
    }
    out
}
