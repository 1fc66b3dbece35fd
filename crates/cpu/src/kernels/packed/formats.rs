//! Decoders of the common formats, 32 elements at a time: bytes in the order of the elements, then f32.
//!
//! ```text
//!   bits of 32 elements ─ shift, mask, look up ─ 32 bytes ─ 2 × 16 f32 lanes, and what scales them
//! ```

use std::arch::x86_64::*;

use super::sixteen::Sixteen;
use super::weight::Weight;

/// 32 consecutive elements of a row: `values · scale + offset`.
pub(super) struct Group<S> {
    pub(super) values: [S; 2],
    /// One for each sixteen elements; alike unless [`Decoder::SCALE_PER_16`].
    pub(super) scale: [f32; 2],
    /// 0 unless [`Decoder::OFFSET`].
    pub(super) offset: f32,
}

/// A format whose rows are whole groups of 32 elements.
///
/// # Safety
/// Methods need AVX2, FMA, F16C and the instruction set of `S`.
pub(super) trait Decoder: Copy + Sync {
    /// Whether each sixteen elements have their own scale.
    const SCALE_PER_16: bool = false;
    /// Whether something is added after scaling.
    const OFFSET: bool = false;
    /// Group `i` of row `row`, whose bytes begin at `at`; the group must be inside the row.
    unsafe fn group<S: Sixteen>(self, w: &Weight<'_>, row: usize, at: *const u8, i: usize) -> Group<S>;
}

#[inline(always)]
unsafe fn f16_at(at: *const u8) -> f32 {
    // Safety: the caller's promise.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(at.cast::<u16>().read_unaligned())))) }
}

/// 32 signed bytes with one scale.
#[inline(always)]
unsafe fn group<S: Sixteen>(bytes: __m256i, scale: f32, offset: f32) -> Group<S> {
    // Safety: the caller's promise.
    unsafe { Group { values: signed(bytes), scale: [scale; 2], offset } }
}

#[inline(always)]
unsafe fn signed<S: Sixteen>(bytes: __m256i) -> [S; 2] {
    // Safety: the caller's promise.
    unsafe { [S::signed(_mm256_castsi256_si128(bytes)), S::signed(_mm256_extracti128_si256::<1>(bytes))] }
}

/// The low four bits of 16 bytes, then the high four.
#[inline(always)]
unsafe fn split_nibbles(at: *const u8) -> __m256i {
    // Safety: the caller's promise.
    unsafe {
        let x = _mm_loadu_si128(at.cast());
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(x), x), _mm256_set1_epi8(15))
    }
}

/// The four bits of 16 bytes in turn, the low ones first.
#[inline(always)]
unsafe fn nibbles_in_turn(at: *const u8) -> __m256i {
    // Safety: the caller's promise.
    unsafe {
        let x = _mm_loadu_si128(at.cast());
        let (low, high) = (x, _mm_srli_epi16::<4>(x));
        let both = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// Bit `i` of four bytes as bit 4 of byte `i`.
#[inline(always)]
unsafe fn fifth_bits(at: *const u8) -> __m256i {
    // Safety: the caller's promise.
    unsafe {
        let bits = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
        let byte = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        let spread = _mm256_shuffle_epi8(bits, byte);
        let own = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own);
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

/// Bytes looked up in a table of 16.
#[inline(always)]
unsafe fn look_up(table: &[i8; 16], index: __m256i) -> __m256i {
    // Safety: the caller's promise; the table has 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, index)
    }
}

/// The 6-bit scale and minimum of the `i`-th 32 elements of Q4_K and Q5_K, in twelve bytes.
#[inline(always)]
unsafe fn scale_min(at: *const u8, i: usize) -> (f32, f32) {
    // Safety: the caller's promise.
    let byte = |i: usize| u32::from(unsafe { *at.add(i) });
    let (scale, min) = if i < 4 {
        (byte(i) & 63, byte(i + 4) & 63)
    } else {
        (byte(i + 4) & 15 | byte(i - 4) >> 6 << 4, byte(i + 4) >> 4 | byte(i) >> 6 << 4)
    };
    (scale as f32, min as f32)
}

/// Four bits of the `i`-th 32 of 256 elements: the low or the high ones of 32 bytes.
#[inline(always)]
unsafe fn nibbles_of_256(at: *const u8, i: usize) -> __m256i {
    // Safety: the caller's promise.
    unsafe {
        let x = _mm256_loadu_si256(at.add(i / 2 * 32).cast());
        let x = if i.is_multiple_of(2) { x } else { _mm256_srli_epi16::<4>(x) };
        _mm256_and_si256(x, _mm256_set1_epi8(15))
    }
}

/// Declares decoders: what is true of the format, and the body, whose block of `$bytes` bytes begins at `at`.
macro_rules! decoders {
    ($($(#[$doc:meta])* $name:ident, $elements:literal in $bytes:literal, $per_16:literal, $offset:literal:
        |$at:ident, $i:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl Decoder for $name {
            const SCALE_PER_16: bool = $per_16;
            const OFFSET: bool = $offset;
            #[inline(always)]
            unsafe fn group<S: Sixteen>(self, _: &Weight<'_>, _: usize, at: *const u8, i: usize) -> Group<S> {
                const GROUPS: usize = $elements / 32;
                // Safety: the group is inside the row, and so is its block.
                unsafe {
                    let ($at, $i) = (at.add(i / GROUPS * $bytes), i & (GROUPS - 1));
                    $body
                }
            }
        }
    )*};
}

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of e2m1.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

decoders! {
    Q4_0, 32 in 18, false, false: |at, _i| {
        group(_mm256_sub_epi8(split_nibbles(at.add(2)), _mm256_set1_epi8(8)), f16_at(at), 0.0)
    };
    Q4_1, 32 in 20, false, true: |at, _i| group(split_nibbles(at.add(4)), f16_at(at), f16_at(at.add(2)));
    Q5_0, 32 in 22, false, false: |at, _i| {
        let codes = _mm256_or_si256(split_nibbles(at.add(6)), fifth_bits(at.add(2)));
        group(_mm256_sub_epi8(codes, _mm256_set1_epi8(16)), f16_at(at), 0.0)
    };
    Q5_1, 32 in 24, false, true: |at, _i| {
        let codes = _mm256_or_si256(split_nibbles(at.add(8)), fifth_bits(at.add(4)));
        group(codes, f16_at(at), f16_at(at.add(2)))
    };
    Q8_0, 32 in 34, false, false: |at, _i| group(_mm256_loadu_si256(at.add(2).cast()), f16_at(at), 0.0);
    Iq4Nl, 32 in 18, false, false: |at, _i| group(look_up(&IQ4, split_nibbles(at.add(2))), f16_at(at), 0.0);
    Mxfp4, 32 in 17, false, false: |at, _i| {
        // Half of the power of two that the byte stands for.
        let d = u32::from(*at);
        let d = f32::from_bits(if d < 2 { 0x0020_0000 << d } else { (d - 1) << 23 });
        group(look_up(&E2M1, split_nibbles(at.add(1))), d, 0.0)
    };
    Q4K, 256 in 144, false, true: |at, i| {
        let (scale, min) = scale_min(at.add(4), i);
        group(nibbles_of_256(at.add(16), i), f16_at(at) * scale, -(f16_at(at.add(2)) * min))
    };
    Q5K, 256 in 176, false, true: |at, i| {
        let (scale, min) = scale_min(at.add(4), i);
        let high = _mm256_loadu_si256(at.add(16).cast());
        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(i as i32));
        let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(1)));
        let codes = _mm256_or_si256(nibbles_of_256(at.add(48), i), high);
        group(codes, f16_at(at) * scale, -(f16_at(at.add(2)) * min))
    };
    Q6K, 256 in 210, true, false: |at, i| {
        // 64 bytes hold the low four bits of 128 elements, 32 bytes their upper two.
        let (half, quarter) = (i / 4, i % 4);
        let low = _mm256_loadu_si256(at.add(half * 64 + quarter % 2 * 32).cast());
        let low = if quarter < 2 { low } else { _mm256_srli_epi16::<4>(low) };
        let high = _mm256_loadu_si256(at.add(128 + half * 32).cast());
        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * quarter as i32));
        let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
        let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
        let codes = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
        let d = f16_at(at.add(208));
        let scale = |j: usize| d * f32::from(*at.add(192 + 2 * i + j) as i8);
        Group { values: signed(codes), scale: [scale(0), scale(1)], offset: 0.0 }
    };
    Iq4Xs, 256 in 136, false, false: |at, i| {
        let high = u32::from(at.add(2).cast::<u16>().read_unaligned());
        let low = u32::from(*at.add(4 + i / 2)) >> (4 * (i % 2)) & 15;
        let scale = (low | (high >> (2 * i) & 3) << 4) as i32 - 32;
        let codes = look_up(&IQ4, split_nibbles(at.add(8 + 16 * i)));
        group(codes, f16_at(at) * scale as f32, 0.0)
    };
}

/// Elements of few bits with scales and zero points of their own.
#[derive(Clone, Copy)]
pub(super) enum Bits {
    U4,
    I4,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
}

/// Bits with scales for every `16·n` elements: `PER_16` where n may be odd.
#[derive(Clone, Copy)]
pub(super) struct Scaled<const PER_16: bool>(pub(super) Bits);

impl<const PER_16: bool> Decoder for Scaled<PER_16> {
    const SCALE_PER_16: bool = PER_16;
    #[inline(always)]
    unsafe fn group<S: Sixteen>(self, w: &Weight<'_>, row: usize, at: *const u8, i: usize) -> Group<S> {
        // Safety: the group is inside the row.
        unsafe {
            /// Sixteen bytes of an element each.
            macro_rules! sixteen_at {
                ($half:literal) => {
                    _mm_loadu_si128(at.add(32 * i + 16 * $half).cast())
                };
            }
            let values: [S; 2] = match self.0 {
                Bits::U4 => signed(nibbles_in_turn(at.add(16 * i))),
                Bits::I4 => {
                    let (codes, eight) = (nibbles_in_turn(at.add(16 * i)), _mm256_set1_epi8(8));
                    signed(_mm256_sub_epi8(_mm256_xor_si256(codes, eight), eight))
                }
                Bits::I8 => [S::signed(sixteen_at!(0)), S::signed(sixteen_at!(1))],
                Bits::U8 => [S::unsigned(sixteen_at!(0)), S::unsigned(sixteen_at!(1))],
                Bits::F8E4M3 => [S::f8_e4m3(sixteen_at!(0)), S::f8_e4m3(sixteen_at!(1))],
                Bits::F8E5M2 => [S::f8_e5m2(sixteen_at!(0)), S::f8_e5m2(sixteen_at!(1))],
            };
            if w.block == 0 {
                return Group { values, scale: [1.0; 2], offset: 0.0 };
            }
            let (scale, zero) = w.scaling(row, 32 * i / w.block);
            let (second, second_zero) =
                if PER_16 { w.scaling(row, (32 * i + 16) / w.block) } else { (scale, zero) };
            let values = [values[0].sub(S::splat(zero)), values[1].sub(S::splat(second_zero))];
            Group { values, scale: [scale, second], offset: 0.0 }
        }
    }
}
