//! Vectors of the micro-kernels, one type per instruction set.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::depthwise::{self, Line};
use super::filters::{FilterTile, filters};
use super::in_place::{Rows, line, lines};
use super::real::Real;
use super::tile::{Tile, sums};
use super::transpose_block::{Block, transpose_block};
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
    /// Reads the elements whose bits are set; other lanes are zero.
    unsafe fn load_some(from: *const Self::Elem, mask: u32) -> Self;
    /// The even and the odd elements of two vectors in a row.
    unsafe fn split(self, next: Self) -> (Self, Self);
    /// The elements from `by` (fewer than lanes) on of two vectors in a row.
    unsafe fn shifted(self, next: Self, by: usize) -> Self;
    /// Writes the first `count` lanes, fewer than all.
    unsafe fn store_few(self, count: usize, to: *mut Self::Elem);
    /// Transposes the square of the first `N` vectors.
    unsafe fn transpose(vectors: &mut [Self; 16]);
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
    /// Lines of V vectors for a kernel of K rows, as [`super::in_place::compute_lines`], likewise.
    unsafe fn lines<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, Self::Elem>);
    /// One line of V vectors, as [`super::in_place::compute_line`], likewise.
    unsafe fn line<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, Self::Elem>);
    /// Transposes a block, as [`super::transpose_block::Block::transpose_to`] says, likewise.
    unsafe fn transpose_block(
        block: &Block<Self::Elem>,
        keep: usize,
        base: *mut Self::Elem,
        to: &[usize; 16],
    );
    /// A tile of P positions × F panels of filters in lanes, as [`super::filters::compute`], likewise.
    unsafe fn filters<const P: usize, const F: usize>(tile: &FilterTile<'_, Self::Elem>);
    /// A line of channels in lanes, as [`super::depthwise::compute`] needs, likewise.
    unsafe fn depthwise_line<const P: usize>(line: Line<'_, Self::Elem>);
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
    #[inline(always)]
    unsafe fn load_some(from: *const T, mask: u32) -> Self {
        let mut to = [T::ZERO; 4];
        for (i, to) in to.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                // Safety: the caller's promise.
                *to = unsafe { *from.wrapping_add(i) };
            }
        }
        Plain(to)
    }
    #[inline(always)]
    unsafe fn split(self, next: Self) -> (Self, Self) {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, next.0);
        (Plain([a, c, e, g]), Plain([b, d, f, h]))
    }
    #[inline(always)]
    unsafe fn shifted(self, next: Self, by: usize) -> Self {
        Plain([0, 1, 2, 3].map(|i| if i + by < 4 { self.0[i + by] } else { next.0[(i + by) % 4] }))
    }
    #[inline(always)]
    unsafe fn store_few(self, count: usize, to: *mut T) {
        // Safety: the caller's promise.
        unsafe { Self::copy_few(self.0.as_ptr(), to, count) }
    }
    #[inline(never)]
    unsafe fn lines<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, T>) {
        // Safety: the caller's promise.
        unsafe { lines::<Self, K, V, MASKED>(tile) }
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        let from = *vectors;
        for (i, to) in vectors.iter_mut().enumerate().take(4) {
            *to = Plain([from[0].0[i], from[1].0[i], from[2].0[i], from[3].0[i]]);
        }
    }
    #[inline(never)]
    unsafe fn transpose_block(block: &Block<T>, keep: usize, base: *mut T, to: &[usize; 16]) {
        // Safety: the caller's promise.
        unsafe { transpose_block::<Self>(block, keep, base, to) }
    }
    #[inline(never)]
    unsafe fn filters<const P: usize, const F: usize>(tile: &FilterTile<'_, T>) {
        // Safety: the caller's promise.
        unsafe { filters::<Self, P, F>(tile) }
    }
    #[inline(never)]
    unsafe fn depthwise_line<const P: usize>(line: Line<'_, T>) {
        // Safety: the caller's promise.
        unsafe { depthwise::line::<Self, P>(line) }
    }
    #[inline(never)]
    unsafe fn line<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, T>) {
        // Safety: the caller's promise.
        unsafe { line::<Self, V, MASKED, EVEN>(tile) }
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
    unsafe fn load_some(from: *const f32, mask: u32) -> Self {
        // Safety: the caller's promise; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(mask as u16, from) }
    }
    #[inline(always)]
    unsafe fn split(self, next: Self) -> (Self, Self) {
        // Safety: the caller's promise.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_epi32(even, _mm512_set1_epi32(1));
            (_mm512_permutex2var_ps(self, even, next), _mm512_permutex2var_ps(self, odd, next))
        }
    }
    #[inline(always)]
    unsafe fn shifted(self, next: Self, by: usize) -> Self {
        // Safety: the caller's promise.
        unsafe {
            let first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_permutex2var_ps(self, _mm512_add_epi32(first, _mm512_set1_epi32(by as i32)), next)
        }
    }
    #[inline(always)]
    unsafe fn store_few(self, count: usize, to: *mut f32) {
        // Safety: the caller's promise.
        unsafe { _mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as u16, self) }
    }
    #[inline(always)]
    unsafe fn lines<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { lines_avx512::<K, V, MASKED>(tile) }
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        // Safety: the caller's promise.
        unsafe {
            // Squares of 4 × 4 within quarters of the registers, then the quarters.
            let r = *vectors;
            let mut t = r;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut s = r;
            for i in 0..4 {
                let (a, b) = (_mm512_castps_pd(t[4 * i]), _mm512_castps_pd(t[4 * i + 1]));
                let (c, d) = (_mm512_castps_pd(t[4 * i + 2]), _mm512_castps_pd(t[4 * i + 3]));
                s[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
                s[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
                s[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
                s[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
            }
            for i in 0..4 {
                let low = _mm512_shuffle_f32x4::<0x88>(s[i], s[4 + i]);
                let high = _mm512_shuffle_f32x4::<0xdd>(s[i], s[4 + i]);
                let low2 = _mm512_shuffle_f32x4::<0x88>(s[8 + i], s[12 + i]);
                let high2 = _mm512_shuffle_f32x4::<0xdd>(s[8 + i], s[12 + i]);
                vectors[i] = _mm512_shuffle_f32x4::<0x88>(low, low2);
                vectors[4 + i] = _mm512_shuffle_f32x4::<0x88>(high, high2);
                vectors[8 + i] = _mm512_shuffle_f32x4::<0xdd>(low, low2);
                vectors[12 + i] = _mm512_shuffle_f32x4::<0xdd>(high, high2);
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_block(block: &Block<f32>, keep: usize, base: *mut f32, to: &[usize; 16]) {
        // Safety: the caller's promise.
        unsafe { transpose_block_avx512(block, keep, base, to) }
    }
    #[inline(always)]
    unsafe fn filters<const P: usize, const F: usize>(tile: &FilterTile<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { filters_avx512::<P, F>(tile) }
    }
    #[inline(always)]
    unsafe fn depthwise_line<const P: usize>(line: Line<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { depthwise_avx512::<P>(line) }
    }
    #[inline(always)]
    unsafe fn line<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { line_avx512::<V, MASKED, EVEN>(tile) }
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
    unsafe fn load_some(from: *const f32, mask: u32) -> Self {
        // Safety: the caller's promise; masked lanes are not read.
        unsafe { _mm256_maskload_ps(from, lanes_of(mask)) }
    }
    #[inline(always)]
    unsafe fn split(self, next: Self) -> (Self, Self) {
        // Every other element within both parts of the registers, then their quarters in order.
        // Safety: the caller's promise.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(self, next));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(self, next));
            let even = _mm256_permute4x64_pd::<0b11_01_10_00>(even);
            let odd = _mm256_permute4x64_pd::<0b11_01_10_00>(odd);
            (_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn shifted(self, next: Self, by: usize) -> Self {
        // Safety: the caller's promise.
        unsafe {
            let first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let from = _mm256_add_epi32(first, _mm256_set1_epi32(by as i32));
            // Only the lowest three bits of an index count.
            let (low, high) = (_mm256_permutevar8x32_ps(self, from), _mm256_permutevar8x32_ps(next, from));
            let beyond = _mm256_castsi256_ps(_mm256_cmpgt_epi32(from, _mm256_set1_epi32(7)));
            _mm256_blendv_ps(low, high, beyond)
        }
    }
    #[inline(always)]
    unsafe fn store_few(self, count: usize, to: *mut f32) {
        // Safety: the caller's promise.
        unsafe { _mm256_maskstore_ps(to, lanes_of((1 << count) - 1), self) }
    }
    #[inline(always)]
    unsafe fn lines<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { lines_avx2::<K, V, MASKED>(tile) }
    }
    #[inline(always)]
    unsafe fn transpose(vectors: &mut [Self; 16]) {
        // Safety: the caller's promise.
        unsafe {
            // Squares of 4 × 4 within both parts of the registers, then the parts.
            let r = *vectors;
            let mut t = r;
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut s = r;
            for i in 0..2 {
                let (a, b) = (_mm256_castps_pd(t[4 * i]), _mm256_castps_pd(t[4 * i + 1]));
                let (c, d) = (_mm256_castps_pd(t[4 * i + 2]), _mm256_castps_pd(t[4 * i + 3]));
                s[4 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
                s[4 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
                s[4 * i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
                s[4 * i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
            }
            for i in 0..4 {
                vectors[i] = _mm256_permute2f128_ps::<0x20>(s[i], s[4 + i]);
                vectors[4 + i] = _mm256_permute2f128_ps::<0x31>(s[i], s[4 + i]);
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_block(block: &Block<f32>, keep: usize, base: *mut f32, to: &[usize; 16]) {
        // Safety: the caller's promise.
        unsafe { transpose_block_avx2(block, keep, base, to) }
    }
    #[inline(always)]
    unsafe fn filters<const P: usize, const F: usize>(tile: &FilterTile<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { filters_avx2::<P, F>(tile) }
    }
    #[inline(always)]
    unsafe fn depthwise_line<const P: usize>(line: Line<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { depthwise_avx2::<P>(line) }
    }
    #[inline(always)]
    unsafe fn line<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { line_avx2::<V, MASKED, EVEN>(tile) }
    }
}

/// All bits of the lanes whose bits are set.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn lanes_of(mask: u32) -> __m256i {
    // Safety: the caller's promise.
    unsafe {
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask as i32), bits), bits)
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
unsafe fn lines_avx512<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { lines::<__m512, K, V, MASKED>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn line_avx512<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { line::<__m512, V, MASKED, EVEN>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn lines_avx2<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { lines::<__m256, K, V, MASKED>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn line_avx2<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { line::<__m256, V, MASKED, EVEN>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn depthwise_avx512<const P: usize>(line: Line<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { depthwise::line::<__m512, P>(line) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn depthwise_avx2<const P: usize>(line: Line<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { depthwise::line::<__m256, P>(line) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn transpose_block_avx512(block: &Block<f32>, keep: usize, base: *mut f32, to: &[usize; 16]) {
    // Safety: the caller's promise.
    unsafe { transpose_block::<__m512>(block, keep, base, to) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn transpose_block_avx2(block: &Block<f32>, keep: usize, base: *mut f32, to: &[usize; 16]) {
    // Safety: the caller's promise.
    unsafe { transpose_block::<__m256>(block, keep, base, to) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn filters_avx512<const P: usize, const F: usize>(tile: &FilterTile<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { filters::<__m512, P, F>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2,f16c")]
#[inline(never)]
unsafe fn filters_avx2<const P: usize, const F: usize>(tile: &FilterTile<'_, f32>) {
    // Safety: the caller's promise.
    unsafe { filters::<__m256, P, F>(tile) }
}
