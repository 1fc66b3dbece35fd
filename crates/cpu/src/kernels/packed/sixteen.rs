//! Sixteen f32 lanes: one register of AVX-512, two of AVX2.

use std::arch::x86_64::*;

/// Sixteen f32 lanes.
///
/// # Safety
/// Methods may only be called where the processor has the type's instruction set; pointers must be valid for sixteen
/// elements.
pub(super) trait Sixteen: Copy {
    /// Whether there are 32 registers of sixteen lanes, not eight.
    const MANY: bool;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self · a + b`, fused.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn sum(self) -> f32;
    /// Signed bytes.
    unsafe fn signed(bytes: __m128i) -> Self;
    /// Unsigned bytes.
    unsafe fn unsigned(bytes: __m128i) -> Self;
    /// 8-bit floats of OCP.
    unsafe fn f8_e4m3(bytes: __m128i) -> Self;
    unsafe fn f8_e5m2(bytes: __m128i) -> Self;
}

/// Declares what a type's operations are.
macro_rules! sixteen {
    ($type:ty, $many:literal; $($name:ident($($arg:ident: $of:ty),*) $(-> $result:ty)? => $body:expr;)*) => {
        impl Sixteen for $type {
            const MANY: bool = $many;
            $(
                #[inline(always)]
                unsafe fn $name($($arg: $of),*) $(-> $result)? {
                    // Safety: the caller's promise.
                    unsafe { $body }
                }
            )*
        }
    };
}

/// What an e4m3's exponent lacks to f32's, as a factor: 2 to the power of 127 − 7.
const E4M3: f32 = f32::from_bits((127 + 120) << 23);

sixteen! { __m512, true;
    splat(x: f32) -> Self => _mm512_set1_ps(x);
    load(from: *const f32) -> Self => _mm512_loadu_ps(from);
    store(self: Self, to: *mut f32) => _mm512_storeu_ps(to, self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm512_fmadd_ps(self, a, b);
    mul(self: Self, other: Self) -> Self => _mm512_mul_ps(self, other);
    add(self: Self, other: Self) -> Self => _mm512_add_ps(self, other);
    sub(self: Self, other: Self) -> Self => _mm512_sub_ps(self, other);
    sum(self: Self) -> f32 => _mm512_reduce_add_ps(self);
    signed(bytes: __m128i) -> Self => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    unsigned(bytes: __m128i) -> Self => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
    f8_e4m3(bytes: __m128i) -> Self => {
        let wide = _mm512_cvtepu8_epi32(bytes);
        let low = _mm512_and_si512(wide, _mm512_set1_epi32(0x7f));
        let nan = _mm512_cmpeq_epi32_mask(low, _mm512_set1_epi32(0x7f));
        let size = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32::<20>(low)), _mm512_set1_ps(E4M3));
        let size = _mm512_mask_mov_ps(size, nan, _mm512_set1_ps(f32::NAN));
        let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)));
        _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), sign))
    };
    f8_e5m2(bytes: __m128i) -> Self =>
        _mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(bytes)));
}

/// Declares functions of eight bytes, the lower half of a register.
macro_rules! eight {
    ($($name:ident($bytes:ident) => $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($bytes: __m128i) -> __m256 {
            // Safety: the caller's promise.
            unsafe { $body }
        }
    )*};
}

eight! {
    eight_signed(bytes) => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    eight_unsigned(bytes) => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    eight_e4m3(bytes) => {
        let wide = _mm256_cvtepu8_epi32(bytes);
        let low = _mm256_and_si256(wide, _mm256_set1_epi32(0x7f));
        let nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(low, _mm256_set1_epi32(0x7f)));
        let size = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32::<20>(low)), _mm256_set1_ps(E4M3));
        let size = _mm256_blendv_ps(size, _mm256_set1_ps(f32::NAN), nan);
        let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)));
        _mm256_or_ps(size, _mm256_castsi256_ps(sign))
    };
    eight_e5m2(bytes) => _mm256_cvtph_ps(_mm_slli_epi16::<8>(_mm_cvtepu8_epi16(bytes)));
}

/// The upper eight bytes.
#[inline(always)]
unsafe fn upper(bytes: __m128i) -> __m128i {
    // Safety: part of x86-64.
    unsafe { _mm_unpackhi_epi64(bytes, bytes) }
}

sixteen! { [__m256; 2], false;
    splat(x: f32) -> Self => [_mm256_set1_ps(x); 2];
    load(from: *const f32) -> Self => [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))];
    store(self: Self, to: *mut f32) => {
        _mm256_storeu_ps(to, self[0]);
        _mm256_storeu_ps(to.add(8), self[1])
    };
    mul_add(self: Self, a: Self, b: Self) -> Self =>
        [_mm256_fmadd_ps(self[0], a[0], b[0]), _mm256_fmadd_ps(self[1], a[1], b[1])];
    mul(self: Self, other: Self) -> Self =>
        [_mm256_mul_ps(self[0], other[0]), _mm256_mul_ps(self[1], other[1])];
    add(self: Self, other: Self) -> Self =>
        [_mm256_add_ps(self[0], other[0]), _mm256_add_ps(self[1], other[1])];
    sub(self: Self, other: Self) -> Self =>
        [_mm256_sub_ps(self[0], other[0]), _mm256_sub_ps(self[1], other[1])];
    sum(self: Self) -> f32 => {
        let all = _mm256_add_ps(self[0], self[1]);
        let four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    };
    signed(bytes: __m128i) -> Self => [eight_signed(bytes), eight_signed(upper(bytes))];
    unsigned(bytes: __m128i) -> Self => [eight_unsigned(bytes), eight_unsigned(upper(bytes))];
    f8_e4m3(bytes: __m128i) -> Self => [eight_e4m3(bytes), eight_e4m3(upper(bytes))];
    f8_e5m2(bytes: __m128i) -> Self => [eight_e5m2(bytes), eight_e5m2(upper(bytes))];
}
