//! The vectors of x86-64.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Vector;

/// Declares what a type's operations are.
macro_rules! vector {
    ($type:ty, $n:expr, $many:expr; $($name:ident($($arg:ident: $of:ty),*) $(-> $result:ty)? => $body:expr;)*) => {
        impl Vector for $type {
            type Elem = f32;
            const N: usize = $n;
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

// Of NaN and a number, the instructions for the larger and the smaller return the second operand.

vector! { __m512, 16, true;
    splat(x: f32) -> Self => _mm512_set1_ps(x);
    load(from: *const f32) -> Self => _mm512_loadu_ps(from);
    load_first(from: *const f32, count: usize) -> Self => _mm512_maskz_loadu_ps(first_of_16(count), from);
    load_f16(from: *const f16) -> Self => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
    load_bf16(from: *const bf16) -> Self => {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    };
    store(self: Self, to: *mut f32) => _mm512_storeu_ps(to, self);
    store_first(self: Self, to: *mut f32, count: usize) => _mm512_mask_storeu_ps(to, first_of_16(count), self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm512_fmadd_ps(self, a, b);
    add(self: Self, other: Self) -> Self => _mm512_add_ps(self, other);
    mul(self: Self, other: Self) -> Self => _mm512_mul_ps(self, other);
    at_least(self: Self, low: Self) -> Self => _mm512_max_ps(low, self);
    at_most(self: Self, high: Self) -> Self => _mm512_min_ps(high, self);
    sum(self: Self) -> f32 => _mm512_reduce_add_ps(self);
}

/// Selects the first `count` of 16 lanes, fewer than all.
#[inline(always)]
fn first_of_16(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

vector! { __m256, 8, false;
    splat(x: f32) -> Self => _mm256_set1_ps(x);
    load(from: *const f32) -> Self => _mm256_loadu_ps(from);
    load_first(from: *const f32, count: usize) -> Self => _mm256_maskload_ps(from, first_of_8(count));
    load_f16(from: *const f16) -> Self => _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
    load_bf16(from: *const bf16) -> Self => {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    };
    store(self: Self, to: *mut f32) => _mm256_storeu_ps(to, self);
    store_first(self: Self, to: *mut f32, count: usize) => _mm256_maskstore_ps(to, first_of_8(count), self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm256_fmadd_ps(self, a, b);
    add(self: Self, other: Self) -> Self => _mm256_add_ps(self, other);
    mul(self: Self, other: Self) -> Self => _mm256_mul_ps(self, other);
    at_least(self: Self, low: Self) -> Self => _mm256_max_ps(low, self);
    at_most(self: Self, high: Self) -> Self => _mm256_min_ps(high, self);
    sum(self: Self) -> f32 => _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps(self, 1)).sum();
}

/// Selects the first `count` of eight lanes, at most all.
#[inline(always)]
unsafe fn first_of_8(count: usize) -> __m256i {
    static SELECTED: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    debug_assert!(count <= 8);
    // Safety: eight words, as there are at most eight lanes; the processor has AVX by the caller's promise.
    unsafe { _mm256_loadu_si256(SELECTED.as_ptr().add(8 - count).cast()) }
}

vector! { __m128, 4, false;
    splat(x: f32) -> Self => _mm_set1_ps(x);
    load(from: *const f32) -> Self => _mm_loadu_ps(from);
    store(self: Self, to: *mut f32) => _mm_storeu_ps(to, self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm_add_ps(_mm_mul_ps(self, a), b);
    add(self: Self, other: Self) -> Self => _mm_add_ps(self, other);
    mul(self: Self, other: Self) -> Self => _mm_mul_ps(self, other);
    at_least(self: Self, low: Self) -> Self => _mm_max_ps(low, self);
    at_most(self: Self, high: Self) -> Self => _mm_min_ps(high, self);
    sum(self: Self) -> f32 => {
        let pairs = _mm_add_ps(self, _mm_movehl_ps(self, self));
        _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)))
    };
}
