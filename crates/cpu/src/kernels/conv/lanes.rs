//! Vectors of the micro-kernels, one type per instruction set.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::lines::{Lines, lines};
use super::real::Real;
use super::tile::{Tile, sums};
use crate::simd::{Vectors, vectors};

/// A vector register of numbers.
///
/// # Safety
/// Methods may only be called where the processor has the type's instruction set; [`Real::dispatch`] sees to it.
/// Pointers must be valid for what a method says it reads or writes.
pub(crate) trait Lanes: Copy {
    /// What a lane holds.
    type Elem: Real;
    /// How many lanes.
    const N: usize;
    /// Filters of a tile that, with three vectors each, leave registers for operands.
    const TALL: usize;
    /// All lanes alike.
    unsafe fn splat(x: Self::Elem) -> Self;
    /// Reads `N` elements.
    unsafe fn load(from: *const Self::Elem) -> Self;
    /// Writes `N` elements.
    unsafe fn store(self, to: *mut Self::Elem);
    /// `self · a + b`.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// Lane by lane sum.
    unsafe fn add(self, other: Self) -> Self;
    /// Lane by lane product.
    unsafe fn mul(self, other: Self) -> Self;
    /// The larger; `self` where that is NaN.
    unsafe fn at_least(self, low: Self) -> Self;
    /// The smaller; `self` where that is NaN.
    unsafe fn at_most(self, high: Self) -> Self;
    /// Writes the `count` lanes whose bits are set in `keep` side by side.
    unsafe fn compress(self, keep: u32, count: usize, to: *mut Self::Elem);
    /// Copies `count` elements, fewer than lanes.
    #[inline(always)]
    unsafe fn copy_few(from: *const Self::Elem, to: *mut Self::Elem, count: usize) {
        let mut i = 0;
        while i < count {
            // Safety: the caller's promise.
            unsafe { *to.add(i) = *from.add(i) };
            i += 1;
        }
    }
    /// Copies the first elements of `count` pairs to `a` and the second ones to `b`.
    #[inline(always)]
    unsafe fn split_pairs(from: *const Self::Elem, a: *mut Self::Elem, b: *mut Self::Elem, count: usize) {
        let mut i = 0;
        while i < count {
            // Safety: the caller's promise.
            unsafe {
                *a.add(i) = *from.add(2 * i);
                *b.add(i) = *from.add(2 * i + 1);
            }
            i += 1;
        }
    }
    /// Has memory brought near that will be read soon; any address will do.
    #[inline(always)]
    fn prefetch(_: *const Self::Elem) {}
    /// A tile of R filters × V vectors, as [`super::tile::compute`]; a function of its own, where nothing else
    /// competes for registers.
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, Self::Elem>);
    /// As [`super::lines::compute`], likewise.
    unsafe fn lines<const R: usize, const V: usize>(tile: &Lines<'_, Self::Elem>);
}

/// Work to be compiled for a vector type; `run` and what it calls on vectors must be `#[inline(always)]`.
pub(crate) trait Job<T> {
    /// Does it.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    unsafe fn run<L: Lanes<Elem = T>>(self);
}

/// The instruction set in use for `T`, to be read once per convolution, and its lanes.
pub(crate) fn lanes<T: Real>() -> (Vectors, usize) {
    let set = vectors();
    let bytes = match set {
        _ if size_of::<T>() == 8 => 32,
        Vectors::Avx512 => 64,
        Vectors::Avx2 => 32,
        Vectors::Base => 16,
    };
    (set, bytes / size_of::<T>())
}

/// Runs f32 work on the vectors of an instruction set that [`lanes`] gave.
pub(crate) fn dispatch_f32(set: Vectors, job: impl Job<f32>) {
    match set {
        // Safety: `vectors` has seen these features on this processor.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => unsafe { run_avx512(job) },
        // Safety: as above.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => unsafe { run_avx2(job) },
        // Safety: plain arrays need nothing.
        _ => unsafe { job.run::<Plain<f32>>() },
    }
}

/// Runs f64 work.
pub(crate) fn dispatch_f64(job: impl Job<f64>) {
    // Safety: plain arrays need nothing.
    unsafe { job.run::<Plain<f64>>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
unsafe fn run_avx512(job: impl Job<f32>) {
    // Safety: the features are enabled here.
    unsafe { job.run::<__m512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
unsafe fn run_avx2(job: impl Job<f32>) {
    // Safety: the features are enabled here.
    unsafe { job.run::<__m256>() }
}

/// Copies a run; both are as long.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
pub(crate) unsafe fn copy_run<L: Lanes>(from: &[L::Elem], to: &mut [L::Elem]) {
    assert!(from.len() == to.len());
    let (from, to, len) = (from.as_ptr(), to.as_mut_ptr(), to.len());
    // Safety: in bounds by the lengths.
    unsafe {
        if len < L::N {
            return L::copy_few(from, to, len);
        }
        let mut i = 0;
        while i + L::N <= len {
            L::load(from.add(i)).store(to.add(i));
            i += L::N;
        }
        // The last vector overlaps the one before.
        L::load(from.add(len - L::N)).store(to.add(len - L::N));
    }
}

/// Four numbers, for whatever instructions the build target has.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Plain<T>([T; 4]);

impl<T: Real> Lanes for Plain<T> {
    type Elem = T;
    const N: usize = 4;
    const TALL: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Plain([x; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // Safety: the caller's promise.
        Plain(unsafe { from.cast::<[T; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // Safety: the caller's promise.
        unsafe { to.cast::<[T; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        const FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
        let [x, y, z, w] = self.0;
        Plain([
            x.multiply_add::<FMA>(a.0[0], b.0[0]),
            y.multiply_add::<FMA>(a.0[1], b.0[1]),
            z.multiply_add::<FMA>(a.0[2], b.0[2]),
            w.multiply_add::<FMA>(a.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Plain([a + e, b + f, c + g, d + h])
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Plain([a * e, b * f, c * g, d * h])
    }
    #[inline(always)]
    unsafe fn at_least(self, low: Self) -> Self {
        let pick = |x: T, low: T| if low > x { low } else { x };
        let ([a, b, c, d], [e, f, g, h]) = (self.0, low.0);
        Plain([pick(a, e), pick(b, f), pick(c, g), pick(d, h)])
    }
    #[inline(always)]
    unsafe fn at_most(self, high: Self) -> Self {
        let pick = |x: T, high: T| if high < x { high } else { x };
        let ([a, b, c, d], [e, f, g, h]) = (self.0, high.0);
        Plain([pick(a, e), pick(b, f), pick(c, g), pick(d, h)])
    }
    #[inline(always)]
    unsafe fn compress(self, keep: u32, _: usize, to: *mut T) {
        // Safety: the caller's promise.
        unsafe { compress(&self.0, keep, to) }
    }
    #[inline(never)]
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, T>) {
        // Safety: the caller's promise.
        unsafe { sums::<Self, R, V>(tile) }
    }
    #[inline(never)]
    unsafe fn lines<const R: usize, const V: usize>(tile: &Lines<'_, T>) {
        // Safety: the caller's promise.
        unsafe { lines::<Self, R, V>(tile) }
    }
}

/// Writes the elements whose bits are set side by side.
#[inline(always)]
unsafe fn compress<T: Copy>(from: &[T], keep: u32, to: *mut T) {
    let (mut left, mut next) = (keep, to);
    while left != 0 {
        // Safety: as many elements as bits may be written; bits lie below the number of lanes.
        unsafe {
            *next = from[left.trailing_zeros() as usize];
            next = next.add(1);
        }
        left &= left - 1;
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512 {
    type Elem = f32;
    const N: usize = 16;
    const TALL: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // Safety: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_fmadd_ps(self, a, b) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn at_least(self, low: Self) -> Self {
        // Of NaN and a number the instruction gives the second.
        // Safety: the caller's promise.
        unsafe { _mm512_max_ps(low, self) }
    }
    #[inline(always)]
    unsafe fn at_most(self, high: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm512_min_ps(high, self) }
    }
    #[inline(always)]
    unsafe fn compress(self, keep: u32, count: usize, to: *mut f32) {
        // Compressing in a register and storing under a mask is many times faster than compressing into memory.
        // Safety: the caller's promise.
        unsafe {
            let packed = _mm512_maskz_compress_ps(keep as u16, self);
            _mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as u16, packed);
        }
    }
    #[inline(always)]
    unsafe fn copy_few(from: *const f32, to: *mut f32, count: usize) {
        // Safety: the caller's promise.
        unsafe {
            let mask = ((1u32 << count) - 1) as u16;
            _mm512_mask_storeu_ps(to, mask, _mm512_maskz_loadu_ps(mask, from));
        }
    }
    #[inline(always)]
    unsafe fn split_pairs(from: *const f32, a: *mut f32, b: *mut f32, count: usize) {
        // Safety: the caller's promise.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_epi32(even, _mm512_set1_epi32(1));
            let mut i = 0;
            while i < count {
                let left = count - i;
                // Two masks of as many elements as pairs are left, at most all.
                let of = |n: usize| if n >= 16 { !0u16 } else { (1u16 << n) - 1 };
                let low = _mm512_maskz_loadu_ps(of(2 * left), from.wrapping_add(2 * i));
                let rest = of((2 * left).saturating_sub(16));
                let high = _mm512_maskz_loadu_ps(rest, from.wrapping_add(2 * i + 16));
                _mm512_mask_storeu_ps(a.wrapping_add(i), of(left), _mm512_permutex2var_ps(low, even, high));
                _mm512_mask_storeu_ps(b.wrapping_add(i), of(left), _mm512_permutex2var_ps(low, odd, high));
                i += 16;
            }
        }
    }
    #[inline(always)]
    fn prefetch(at: *const f32) {
        // Safety: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { sums_avx512::<R, V>(tile) }
    }
    #[inline(always)]
    unsafe fn lines<const R: usize, const V: usize>(tile: &Lines<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { lines_avx512::<R, V>(tile) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m256 {
    type Elem = f32;
    const N: usize = 8;
    const TALL: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // Safety: the caller's promise.
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_fmadd_ps(self, a, b) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn at_least(self, low: Self) -> Self {
        // Of NaN and a number the instruction gives the second.
        // Safety: the caller's promise.
        unsafe { _mm256_max_ps(low, self) }
    }
    #[inline(always)]
    unsafe fn at_most(self, high: Self) -> Self {
        // Safety: the caller's promise.
        unsafe { _mm256_min_ps(high, self) }
    }
    #[inline(always)]
    unsafe fn compress(self, keep: u32, _: usize, to: *mut f32) {
        let mut all = [0f32; 8];
        // Safety: the caller's promise.
        unsafe {
            _mm256_storeu_ps(all.as_mut_ptr(), self);
            compress(&all, keep, to);
        }
    }
    #[inline(always)]
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { sums_avx2::<R, V>(tile) }
    }
    #[inline(always)]
    unsafe fn lines<const R: usize, const V: usize>(tile: &Lines<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { lines_avx2::<R, V>(tile) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn sums_avx512<const R: usize, const V: usize>(tile: &Tile<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { sums::<__m512, R, V>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn sums_avx2<const R: usize, const V: usize>(tile: &Tile<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { sums::<__m256, R, V>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn lines_avx512<const R: usize, const V: usize>(tile: &Lines<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { lines::<__m512, R, V>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn lines_avx2<const R: usize, const V: usize>(tile: &Lines<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { lines::<__m256, R, V>(tile) }
}
