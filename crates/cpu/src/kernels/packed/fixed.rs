//! One or two rows of x in fixed point times rows of Q4_0, Q4_1, Q4_K and Q8_0, by AVX-512 VNNI.
//!
//! Each 32 elements of x become integers of three bytes, the digits, and a scale. They are off by 2⁻²⁴ of the largest of
//! the 32 at most (2⁻²³ with Q8_0), which is what f32 sums of such products lose too.
//!
//! ```text
//!   64 codes ─┬─ · digit 0 ─ ·256 + · digit 1 ─ ·256 + · digit 2 ─ f32 ─ · scales of w and x ─ summed in f32
//!             └─ sixteen lanes of four products, exact in 32 bits
//! ```

#![allow(
    clippy::needless_range_loop,
    reason = "loops over registers by number are unrolled; closures would not have the instruction set"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use olivine_ir::BlockFormat;

use super::rows::Aligned;
use super::weight::Weight;
use crate::scratch;
use crate::simd::has_dot_products;
use crate::simd::vector::prefetch_l1;

/// The most rows of x.
pub(super) const MOST: usize = 2;

/// Elements that share a scale.
const GROUP: usize = 32;

/// Elements that are multiplied at a time.
const STEP: usize = 256;

/// Vectors of 64 codes of a step.
const VECTORS: usize = STEP / 64;

/// Bytes of an element of x.
const DIGITS: usize = 3;

/// The most bytes of a step.
const MOST_BYTES: usize = 272;

/// Bytes ahead of those that are read that are fetched from memory. With more, and into L2 only, it is a quarter slower.
const AHEAD: usize = 512;

/// Largest elements below this are left to f32: their scale could not be a normal number.
const SMALLEST: f32 = 1e-30;

/// A format as vectors of 64 unsigned codes.
///
/// # Safety
/// Methods need AVX-512 F, BW and VL, and `at` a whole step.
trait Codes {
    /// Bytes of a step.
    const BYTES: usize;
    /// Vectors of codes in turn whose lanes have the same scales.
    const SHARED: usize;
    /// The code that stands for 0.
    const ZERO: i32;
    /// The largest integer that x becomes: sums of a lane's products fit 32 bits, those in between need not.
    const LARGEST: f64;
    /// Whether lanes 8 to 15 of scales times terms are summands themselves.
    const REST: bool;
    /// What is read of a step, without the scales.
    type Loaded: Copy;
    /// The element of a step whose code is byte `byte` of vector `vector`; eight bytes are eight elements in order.
    fn element(vector: usize, byte: usize) -> usize;
    /// What scales are multiplied by, from the scale and the sum of each 32 elements of x.
    fn terms(scales: &[f32; 8], sums: &[f32; 8]) -> [f32; 16];
    unsafe fn load(at: *const u8) -> (Self::Loaded, __m512);
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i;
    /// The scales of the lanes of the `i`-th vectors that share them, from scales times terms.
    unsafe fn scales(scaled: __m512, i: usize) -> __m512;
}

/// Eight blocks at a time; every lane of 8 bytes has bytes of one block.
struct Q4_0;

/// Where the words of four blocks' codes are among those of two registers, the second of which begins four words later.
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

/// The block of a lane of four codes.
const fn q4_0_block(lane: usize) -> usize {
    lane / 4 + lane % 4 / 2 * 4
}

/// The words of the scale of each lane among those of two registers, each of which begins with four blocks.
const Q4_0_SCALES: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 16 {
        let block = q4_0_block(i);
        words[i] = (block / 4 * 32 + 9 * (block % 4)) as i16;
        i += 1;
    }
    words
};

impl Codes for Q4_0 {
    const BYTES: usize = 144;
    const SHARED: usize = 4;
    const ZERO: i32 = 8;
    const LARGEST: f64 = 127.0 * 65793.0;
    const REST: bool = false;
    type Loaded = [__m512i; 2];

    fn element(vector: usize, byte: usize) -> usize {
        q4_0_block(byte / 4) * 32 + vector / 2 * 16 + vector % 2 * 8 + byte % 8
    }

    fn terms(scales: &[f32; 8], _: &[f32; 8]) -> [f32; 16] {
        std::array::from_fn(|lane| scales[q4_0_block(lane)])
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> (Self::Loaded, __m512) {
        // Safety: a step has 144 bytes.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(8).cast()));
            let (c, d) = (_mm512_loadu_si512(at.add(72).cast()), _mm512_loadu_si512(at.add(80).cast()));
            let words = _mm512_loadu_si512(Q4_0_WORDS.as_ptr().cast());
            let scales = _mm512_loadu_si512(Q4_0_SCALES.as_ptr().cast());
            let scales = _mm512_castsi512_si256(_mm512_permutex2var_epi16(a, scales, c));
            let (low, high) =
                (_mm512_permutex2var_epi16(a, words, b), _mm512_permutex2var_epi16(c, words, d));
            let codes = [_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high)];
            (codes, _mm512_cvtph_ps(scales))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        // Safety: the caller's promise.
        unsafe { nibbles(step, vector) }
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, _: usize) -> __m512 {
        scaled
    }
}

/// As [`Q4_0`], with a minimum beside each scale.
struct Q4_1;

/// Where the words of four blocks' codes are among those of two registers, the second of which begins eight words later.
const Q4_1_WORDS: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 32 {
        let word = 10 * (i / 8) + 2 + i % 8;
        words[i] = if word < 32 { word as i16 } else { (32 + word - 8) as i16 };
        i += 1;
    }
    words
};

/// The words of eight scales and eight minimums among those of two registers, each of which begins with four blocks.
const Q4_1_SCALES: [i16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 16 {
        let block = i % 8;
        words[i] = (block / 4 * 32 + 10 * (block % 4) + i / 8) as i16;
        i += 1;
    }
    words
};

/// The scale of each lane.
const Q4_1_LANES: [i32; 16] = {
    let mut lanes = [0; 16];
    let mut i = 0;
    while i < 16 {
        lanes[i] = q4_0_block(i) as i32;
        i += 1;
    }
    lanes
};

impl Codes for Q4_1 {
    const BYTES: usize = 160;
    const SHARED: usize = 4;
    const ZERO: i32 = 0;
    const LARGEST: f64 = 127.0 * 65793.0;
    /// Minimums.
    const REST: bool = true;
    type Loaded = [__m512i; 2];

    fn element(vector: usize, byte: usize) -> usize {
        Q4_0::element(vector, byte)
    }

    fn terms(scales: &[f32; 8], sums: &[f32; 8]) -> [f32; 16] {
        std::array::from_fn(|lane| if lane < 8 { scales[lane] } else { sums[lane - 8] })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> (Self::Loaded, __m512) {
        // Safety: a step has 160 bytes.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast()));
            let (c, d) = (_mm512_loadu_si512(at.add(80).cast()), _mm512_loadu_si512(at.add(96).cast()));
            let words = _mm512_loadu_si512(Q4_1_WORDS.as_ptr().cast());
            let scales = _mm512_loadu_si512(Q4_1_SCALES.as_ptr().cast());
            let scales = _mm512_castsi512_si256(_mm512_permutex2var_epi16(a, scales, c));
            let (low, high) =
                (_mm512_permutex2var_epi16(a, words, b), _mm512_permutex2var_epi16(c, words, d));
            let codes = [_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high)];
            (codes, _mm512_cvtph_ps(scales))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        // Safety: the caller's promise.
        unsafe { nibbles(step, vector) }
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, _: usize) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_permutexvar_ps(_mm512_loadu_si512(Q4_1_LANES.as_ptr().cast()), scaled) }
    }
}

/// One block at a time: each 32 bytes hold the low and the high bits of two times 32 elements.
struct Q4K;

/// For the low and for the high bits the scales of the lanes.
const Q4_K_SCALES: [[i32; 16]; 2] = {
    let mut lanes = [[0; 16]; 2];
    let mut i = 0;
    while i < 16 {
        lanes[0][i] = (i / 4 * 2) as i32;
        lanes[1][i] = (i / 4 * 2 + 1) as i32;
        i += 1;
    }
    lanes
};

impl Codes for Q4K {
    const BYTES: usize = 144;
    const SHARED: usize = 2;
    const ZERO: i32 = 0;
    const LARGEST: f64 = 127.0 * 65793.0;
    /// Minimums.
    const REST: bool = true;
    type Loaded = [__m512i; 2];

    fn element(vector: usize, byte: usize) -> usize {
        (byte / 16 * 2 + vector / 2) * 32 + vector % 2 * 16 + byte % 16
    }

    fn terms(scales: &[f32; 8], sums: &[f32; 8]) -> [f32; 16] {
        std::array::from_fn(|lane| if lane < 8 { scales[lane] } else { -sums[lane - 8] })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> (Self::Loaded, __m512) {
        // Safety: a step has 144 bytes.
        unsafe {
            // Two f16, then words a, b, c of four 6-bit numbers each: scales a, minimums b, four and four bits of the other
            // scales and minimums in c, and their upper two bits in those of a and b.
            let head = _mm_loadu_si128(at.cast());
            let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_setr_epi32(0, 0, 0, 4));
            let low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f));
            let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
            let high = _mm_and_si128(high, _mm_setr_epi32(0, 0x3030_3030, 0, 0x3030_3030));
            let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_or_si128(low, high)));
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            let both = _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_cvtph_ps(head)));
            let (a, b) = (_mm512_loadu_si512(at.add(16).cast()), _mm512_loadu_si512(at.add(80).cast()));
            // The first 16 of each 32 bytes, and the others: so both have the same scales in their lanes.
            let codes =
                [_mm512_shuffle_i64x2::<0b10_00_10_00>(a, b), _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b)];
            (codes, _mm512_mul_ps(numbers, both))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        // Safety: the caller's promise.
        unsafe { nibbles(step, vector) }
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, i: usize) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_permutexvar_ps(_mm512_loadu_si512(Q4_K_SCALES[i].as_ptr().cast()), scaled) }
    }
}

/// Eight blocks at a time, two in a vector.
struct Q8_0;

/// For each vector the scales of its lanes.
const Q8_0_SCALES: [[i32; 16]; VECTORS] = {
    let mut lanes = [[0; 16]; VECTORS];
    let mut i = 0;
    while i < 16 * VECTORS {
        lanes[i / 16][i % 16] = (i / 8) as i32;
        i += 1;
    }
    lanes
};

impl Codes for Q8_0 {
    const BYTES: usize = MOST_BYTES;
    const SHARED: usize = 1;
    const ZERO: i32 = 128;
    const LARGEST: f64 = 63.0 * 65793.0;
    const REST: bool = false;
    type Loaded = [__m512i; VECTORS];

    fn element(vector: usize, byte: usize) -> usize {
        vector * 64 + byte
    }

    fn terms(scales: &[f32; 8], _: &[f32; 8]) -> [f32; 16] {
        std::array::from_fn(|lane| if lane < 8 { scales[lane] } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> (Self::Loaded, __m512) {
        // Safety: a step has eight blocks of 34 bytes, whose first two are the scale.
        unsafe {
            let mut codes = [_mm512_setzero_si512(); VECTORS];
            let mut words = [0u64; 2];
            for v in 0..VECTORS {
                let (first, second) = (at.add(68 * v), at.add(68 * v + 34));
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.add(2).cast()));
                let both = _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.add(2).cast()));
                // Signed bytes with 128 added.
                codes[v] = _mm512_xor_si512(both, _mm512_set1_epi8(-128));
                let [first, second] = [first, second].map(|at| u64::from(at.cast::<u16>().read_unaligned()));
                words[v / 2] |= (first | second << 16) << (v % 2 * 32);
            }
            let scales = _mm256_cvtph_ps(_mm_set_epi64x(words[1] as i64, words[0] as i64));
            (codes, _mm512_castps256_ps512(scales))
        }
    }

    #[inline(always)]
    unsafe fn codes(step: &Self::Loaded, vector: usize) -> __m512i {
        step[vector]
    }

    #[inline(always)]
    unsafe fn scales(scaled: __m512, i: usize) -> __m512 {
        // Safety: the caller's promise.
        unsafe { _mm512_permutexvar_ps(_mm512_loadu_si512(Q8_0_SCALES[i].as_ptr().cast()), scaled) }
    }
}

/// Vector `vector` of a step's codes: the low four bits of both registers, then the high ones.
#[inline(always)]
unsafe fn nibbles(registers: &[__m512i; 2], vector: usize) -> __m512i {
    let bytes = registers[vector % 2];
    // Safety: the caller has AVX-512.
    unsafe {
        let bytes = if vector < 2 { bytes } else { _mm512_srli_epi16::<4>(bytes) };
        _mm512_and_si512(bytes, _mm512_set1_epi8(15))
    }
}

/// Rows of x in fixed point, in the order of a format's codes. The last step of a row is padded with zeros.
pub(super) struct Prepared {
    rows: usize,
    columns: usize,
    /// For each row, step and digit those of all vectors.
    digits: Vec<Aligned>,
    /// For each row, step and vectors that share scales: what a code of [`Codes::ZERO`] counts too much in each lane.
    corrections: Vec<Aligned>,
    terms: Vec<Aligned>,
}

/// Whole rows of x for a weight; `None` where this processor or the format has no such kernel, or the numbers are not
/// finite.
pub(super) fn prepare(w: &Weight<'_>, x: &[f32]) -> Option<Prepared> {
    let rows = x.len().checked_div(w.columns)?;
    if rows > MOST || !has_dot_products() || w.block > 0 {
        return None;
    }
    // Safety: the processor has AVX-512.
    unsafe {
        match w.format {
            Some(BlockFormat::Q4_0) => Prepared::new::<Q4_0>(x, rows, w.columns),
            Some(BlockFormat::Q4_1) => Prepared::new::<Q4_1>(x, rows, w.columns),
            Some(BlockFormat::Q4_K) => Prepared::new::<Q4K>(x, rows, w.columns),
            Some(BlockFormat::Q8_0) => Prepared::new::<Q8_0>(x, rows, w.columns),
            _ => None,
        }
    }
}

impl Prepared {
    /// Plain loops, which the compiler turns into vectors.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
    fn new<C: Codes>(x: &[f32], rows: usize, columns: usize) -> Option<Self> {
        let (steps, shared) = (rows * columns.div_ceil(STEP), VECTORS / C::SHARED);
        let mut digits_of = scratch::zeroed::<Aligned>(steps * VECTORS * DIGITS);
        let mut corrections_of = scratch::zeroed::<Aligned>(steps * shared);
        let mut terms = scratch::with_room::<Aligned>(steps);
        let all: &mut [i8] = bytemuck::cast_slice_mut(&mut digits_of);
        let corrections: &mut [i32] = bytemuck::cast_slice_mut(&mut corrections_of);
        for (i, x) in x.chunks_exact(columns).flat_map(|row| row.chunks(STEP)).enumerate() {
            let (mut scales, mut sums, mut fixed) = ([0f32; 8], [0f32; 8], [0i32; STEP]);
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
                scales[g] = to_fixed(x, C::LARGEST, &mut fixed[g * GROUP..])?;
            }
            terms.push(Aligned(C::terms(&scales, &sums)));
            let bytes = &mut all[i * STEP * DIGITS..][..STEP * DIGITS];
            for at in (0..STEP).step_by(8) {
                let (vector, byte) = (at / 64, at % 64);
                let mut rest = [0i32; 8];
                rest.copy_from_slice(&fixed[C::element(vector, byte)..][..8]);
                let lanes = (i * shared + vector / C::SHARED) * 16 + byte / 4;
                for (to, four) in corrections[lanes..lanes + 2].iter_mut().zip(rest.as_chunks::<4>().0) {
                    *to -= C::ZERO * four.iter().sum::<i32>();
                }
                for digit in (0..DIGITS).rev() {
                    let to = &mut bytes[digit * STEP + at..][..8];
                    for (to, rest) in to.iter_mut().zip(&mut rest) {
                        *to = *rest as i8;
                        *rest = (*rest - i32::from(*to)) >> 8;
                    }
                }
            }
        }
        Some(Prepared { rows, columns, digits: digits_of, corrections: corrections_of, terms })
    }
}

/// Writes elements as integers of at most `most` and returns what these are multiples of.
#[inline(always)]
fn to_fixed(x: &[f32; GROUP], most: f64, to: &mut [i32]) -> Option<f32> {
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
        match (w.format, x.rows) {
            (Some(BlockFormat::Q4_0), 1) => multiply_with::<Q4_0, 1>(w, range, x, out),
            (Some(BlockFormat::Q4_0), _) => multiply_with::<Q4_0, 2>(w, range, x, out),
            (Some(BlockFormat::Q4_1), 1) => multiply_with::<Q4_1, 1>(w, range, x, out),
            (Some(BlockFormat::Q4_1), _) => multiply_with::<Q4_1, 2>(w, range, x, out),
            (Some(BlockFormat::Q8_0), 1) => multiply_with::<Q8_0, 1>(w, range, x, out),
            (Some(BlockFormat::Q8_0), _) => multiply_with::<Q8_0, 2>(w, range, x, out),
            (_, 1) => multiply_with::<Q4K, 1>(w, range, x, out),
            _ => multiply_with::<Q4K, 2>(w, range, x, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2,f16c")]
unsafe fn multiply_with<C: Codes, const M: usize>(
    w: &Weight<'_>,
    range: Range<usize>,
    x: &Prepared,
    out: &mut [&mut [f32]],
) {
    let half = range.len() / 2;
    // Safety: the rows are in the weight's bytes, by the caller's promise.
    unsafe {
        // Two rows share the loads of x. They are far apart, so that memory is read in two long runs.
        for i in 0..half {
            let sums = dots::<C, M, 2>(w, [range.start + i, range.start + half + i], x);
            for m in 0..M {
                (out[m][i], out[m][half + i]) = (sums[m][0], sums[m][1]);
            }
        }
        if 2 * half < range.len() {
            let sums = dots::<C, M, 1>(w, [range.end - 1], x);
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
unsafe fn dots<C: Codes, const M: usize, const R: usize>(
    w: &Weight<'_>,
    rows: [usize; R],
    x: &Prepared,
) -> [[f32; R]; M] {
    let mut out = [[0f32; R]; M];
    // Safety: rows have `row_bytes` bytes, and x as many steps as they have, the last one maybe in part.
    unsafe {
        let first = rows.map(|row| w.bytes.as_ptr().add(row * w.row_bytes));
        let mut sums = Sums::<M, R>::new();
        let whole = w.row_bytes / C::BYTES;
        for step in 0..whole {
            let mut at = first;
            for r in 0..R {
                at[r] = first[r].add(step * C::BYTES);
            }
            sums.add_step::<C>(at, x, step);
        }
        let rest = w.row_bytes % C::BYTES;
        if rest > 0 {
            // Blocks of zeros have scales of zero.
            let mut last = [[0u8; MOST_BYTES]; R];
            for r in 0..R {
                first[r].add(whole * C::BYTES).copy_to_nonoverlapping(last[r].as_mut_ptr(), rest);
            }
            sums.add_step::<C>(last.each_ref().map(|step| step.as_ptr()), x, whole);
        }
        for m in 0..M {
            for r in 0..R {
                let all = sums.lanes[m][r];
                let all = if C::REST { _mm512_mask_add_ps(all, 0xff00, all, sums.rest[m][r]) } else { all };
                out[m][r] = _mm512_reduce_add_ps(all);
            }
        }
    }
    out
}

/// The sums of `R` rows of a weight and `M` rows of x.
struct Sums<const M: usize, const R: usize> {
    lanes: [[__m512; R]; M],
    /// Sums of scaled minimums in lanes 8 to 15; the other lanes mean nothing.
    rest: [[__m512; R]; M],
}

impl<const M: usize, const R: usize> Sums<M, R> {
    /// # Safety
    /// The processor must have AVX-512.
    #[inline(always)]
    unsafe fn new() -> Self {
        // Safety: the caller's promise.
        let zeros = unsafe { [[_mm512_setzero_ps(); R]; M] };
        Sums { lanes: zeros, rest: zeros }
    }

    /// Adds the products of the step at `at` of each row with that of x.
    ///
    /// # Safety
    /// The processor must have AVX-512 with VNNI, steps must be whole, and x must have this one.
    #[inline(always)]
    unsafe fn add_step<C: Codes>(&mut self, at: [*const u8; R], x: &Prepared, step: usize) {
        let (steps, shared) = (x.columns.div_ceil(STEP), VECTORS / C::SHARED);
        // Safety: the caller's promise.
        unsafe {
            let mut loaded = [C::load(at[0]); R];
            for r in 1..R {
                loaded[r] = C::load(at[r]);
            }
            for m in 0..M {
                let part = m * steps + step;
                let digits = x.digits.as_ptr().add(part * VECTORS * DIGITS);
                let terms = _mm512_load_ps(x.terms.as_ptr().add(part).cast());
                let mut scaled = [terms; R];
                for r in 0..R {
                    scaled[r] = _mm512_mul_ps(loaded[r].1, terms);
                    if C::REST {
                        self.rest[m][r] = _mm512_add_ps(self.rest[m][r], scaled[r]);
                    }
                }
                for g in 0..shared {
                    let mut lanes = [_mm512_setzero_si512(); R];
                    for digit in 0..DIGITS {
                        for r in 0..R {
                            lanes[r] = if digit > 0 { _mm512_slli_epi32::<8>(lanes[r]) } else { lanes[r] };
                        }
                        // Between the arithmetic: prefetches one after the other hold up the loads.
                        let line = g * DIGITS + digit;
                        if m == 0 && line < C::BYTES.div_ceil(64) {
                            for r in 0..R {
                                prefetch_l1(at[r].wrapping_add(AHEAD + 64 * line));
                            }
                        }
                        for v in g * C::SHARED..(g + 1) * C::SHARED {
                            let x = _mm512_load_si512(digits.add(digit * VECTORS + v).cast());
                            for r in 0..R {
                                lanes[r] = _mm512_dpbusd_epi32(lanes[r], C::codes(&loaded[r].0, v), x);
                            }
                        }
                    }
                    let correction = x.corrections.as_ptr().add(part * shared + g);
                    for r in 0..R {
                        if C::ZERO != 0 {
                            lanes[r] = _mm512_add_epi32(lanes[r], _mm512_load_si512(correction.cast()));
                        }
                        let lanes = _mm512_cvtepi32_ps(lanes[r]);
                        self.lanes[m][r] = _mm512_fmadd_ps(lanes, C::scales(scaled[r], g), self.lanes[m][r]);
                    }
                }
            }
        }
    }
}
