//! Vectors of f32 numbers, one type per instruction set, and what they are loaded from.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::{bf16, f16};

/// A number in memory that becomes f32 in a register.
///
/// # Safety
/// As [`Lanes`].
pub(crate) trait Stored: Copy + Send + Sync {
    /// Reads `L::N` numbers.
    unsafe fn load<L: Lanes>(from: *const Self) -> L;
    /// Reads `count` numbers, fewer than `L::N`; the other lanes are zero.
    unsafe fn load_some<L: Lanes>(from: *const Self, count: usize) -> L;
}

macro_rules! stored {
    ($($type:ty: $load:ident, $load_some:ident;)*) => {$(
        impl Stored for $type {
            #[inline(always)]
            unsafe fn load<L: Lanes>(from: *const Self) -> L {
                // Safety: the caller's promise.
                unsafe { L::$load(from) }
            }
            #[inline(always)]
            unsafe fn load_some<L: Lanes>(from: *const Self, count: usize) -> L {
                // Safety: the caller's promise.
                unsafe { L::$load_some(from, count) }
            }
        }
    )*};
}
stored! {
    f32: load, load_some;
    f16: load_f16, load_some_f16;
    bf16: load_bf16, load_some_bf16;
}

/// A vector register of f32 numbers.
///
/// # Safety
/// Methods may only be called where the processor has the type's instruction set; pointers must be valid for what a
/// method says it reads or writes.
pub(crate) trait Lanes: Copy {
    /// How many lanes.
    const N: usize;
    /// Whether there are 32 such registers, not 16.
    const MANY: bool;
    /// All lanes alike.
    unsafe fn splat(x: f32) -> Self;
    /// Reads `N` numbers.
    unsafe fn load(from: *const f32) -> Self;
    /// Reads `count` numbers, fewer than `N`; the other lanes are zero.
    unsafe fn load_some(from: *const f32, count: usize) -> Self;
    /// Reads `N` f16 numbers.
    unsafe fn load_f16(from: *const f16) -> Self;
    /// Reads `N` bf16 numbers.
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Reads `count` f16 numbers, fewer than `N`; the other lanes are zero.
    #[inline(always)]
    unsafe fn load_some_f16(from: *const f16, count: usize) -> Self {
        // Safety: the caller's promise; there are `N` zeros or more.
        unsafe {
            let mut all = [f16::ZERO; 16];
            std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
            Self::load_f16(all.as_ptr())
        }
    }
    /// Reads `count` bf16 numbers, fewer than `N`; the other lanes are zero.
    #[inline(always)]
    unsafe fn load_some_bf16(from: *const bf16, count: usize) -> Self {
        // Safety: the caller's promise; there are `N` zeros or more.
        unsafe {
            let mut all = [bf16::ZERO; 16];
            std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
            Self::load_bf16(all.as_ptr())
        }
    }
    /// Writes `N` numbers.
    unsafe fn store(self, to: *mut f32);
    /// Writes the first `count` lanes, fewer than `N`.
    unsafe fn store_some(self, to: *mut f32, count: usize);
    /// Has memory brought near that will be read soon; it may lie anywhere.
    #[inline(always)]
    fn prefetch<T>(from: *const T) {
        // Safety: part of x86-64, and never a fault.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(from.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from;
    }
    /// `self · a + b`.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> f32;
}

/// Declares what a type's operations are.
macro_rules! lanes {
    ($type:ty, $n:expr, $many:expr; $($name:ident($($arg:ident: $of:ty),*) $(-> $result:ty)? => $body:expr;)*) => {
        #[allow(unused_unsafe, reason = "sums of plain arrays need none")]
        impl Lanes for $type {
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

#[cfg(target_arch = "x86_64")]
lanes! { __m512, 16, true;
    splat(x: f32) -> Self => _mm512_set1_ps(x);
    load(from: *const f32) -> Self => _mm512_loadu_ps(from);
    load_some(from: *const f32, count: usize) -> Self => _mm512_maskz_loadu_ps((1 << count) - 1, from);
    load_f16(from: *const f16) -> Self => _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
    load_bf16(from: *const bf16) -> Self => {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    };
    store(self: Self, to: *mut f32) => _mm512_storeu_ps(to, self);
    store_some(self: Self, to: *mut f32, count: usize) => _mm512_mask_storeu_ps(to, (1 << count) - 1, self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm512_fmadd_ps(self, a, b);
    sum(self: Self) -> f32 => _mm512_reduce_add_ps(self);
}

#[cfg(target_arch = "x86_64")]
lanes! { __m256, 8, false;
    splat(x: f32) -> Self => _mm256_set1_ps(x);
    load(from: *const f32) -> Self => _mm256_loadu_ps(from);
    load_some(from: *const f32, count: usize) -> Self => _mm256_maskload_ps(from, first(count));
    load_f16(from: *const f16) -> Self => _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
    load_bf16(from: *const bf16) -> Self => {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    };
    store(self: Self, to: *mut f32) => _mm256_storeu_ps(to, self);
    store_some(self: Self, to: *mut f32, count: usize) => _mm256_maskstore_ps(to, first(count), self);
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm256_fmadd_ps(self, a, b);
    sum(self: Self) -> f32 => _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps(self, 1)).sum();
}

/// Selects the first `count` of eight lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn first(count: usize) -> __m256i {
    static SELECTED: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = &SELECTED[8 - count..][..8];
    // Safety: eight words; the processor has AVX by the caller's promise.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[cfg(target_arch = "x86_64")]
lanes! { __m128, 4, false;
    splat(x: f32) -> Self => _mm_set1_ps(x);
    load(from: *const f32) -> Self => _mm_loadu_ps(from);
    load_some(from: *const f32, count: usize) -> Self => {
        let mut all = [0.0; 4];
        std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
        _mm_loadu_ps(all.as_ptr())
    };
    load_f16(from: *const f16) -> Self => {
        let all = from.cast::<[f16; 4]>().read_unaligned().map(f16::to_f32_const);
        _mm_loadu_ps(all.as_ptr())
    };
    load_bf16(from: *const bf16) -> Self => {
        let all = from.cast::<[bf16; 4]>().read_unaligned().map(bf16::to_f32_const);
        _mm_loadu_ps(all.as_ptr())
    };
    store(self: Self, to: *mut f32) => _mm_storeu_ps(to, self);
    store_some(self: Self, to: *mut f32, count: usize) => {
        let mut all = [0.0; 4];
        _mm_storeu_ps(all.as_mut_ptr(), self);
        std::ptr::copy_nonoverlapping(all.as_ptr(), to, count);
    };
    mul_add(self: Self, a: Self, b: Self) -> Self => _mm_add_ps(_mm_mul_ps(self, a), b);
    sum(self: Self) -> f32 => {
        let pairs = _mm_add_ps(self, _mm_movehl_ps(self, self));
        _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)))
    };
}

/// Four numbers, for whatever instructions the build target has.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 4]);

#[cfg(not(target_arch = "x86_64"))]
lanes! { Plain, 4, cfg!(target_arch = "aarch64");
    splat(x: f32) -> Self => Plain([x; 4]);
    load(from: *const f32) -> Self => Plain(from.cast::<[f32; 4]>().read_unaligned());
    load_some(from: *const f32, count: usize) -> Self => {
        let mut all = [0.0; 4];
        std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
        Plain(all)
    };
    load_f16(from: *const f16) -> Self => {
        Plain(from.cast::<[f16; 4]>().read_unaligned().map(f16::to_f32_const))
    };
    load_bf16(from: *const bf16) -> Self => {
        Plain(from.cast::<[bf16; 4]>().read_unaligned().map(bf16::to_f32_const))
    };
    store(self: Self, to: *mut f32) => to.cast::<[f32; 4]>().write_unaligned(self.0);
    store_some(self: Self, to: *mut f32, count: usize) => {
        std::ptr::copy_nonoverlapping(self.0.as_ptr(), to, count);
    };
    mul_add(self: Self, a: Self, b: Self) -> Self => {
        let fma = crate::simd::fma::<{ crate::simd::BASE_FMA }>;
        let ([x, y, z, w], a, b) = (self.0, a.0, b.0);
        Plain([fma(x, a[0], b[0]), fma(y, a[1], b[1]), fma(z, a[2], b[2]), fma(w, a[3], b[3])])
    };
    sum(self: Self) -> f32 => {
        let [a, b, c, d] = self.0;
        (a + c) + (b + d)
    };
}
