//! Vectors of the micro-kernels: what convolutions need of [`Vector`] beside arithmetic, one type per instruction set.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::depthwise::{self, Line};
use super::filters::{FilterTile, filters};
use super::in_place::{Rows, line, lines};
use super::real::Real;
use super::tile::{Tile, sums};
use super::transpose_block::{Block, transpose_block};
use crate::simd::vector::{Plain, Vector};
use crate::simd::{Vectors, vectors};

/// What convolutions need of a vector beside loads, stores and arithmetic: shuffles, and their micro-kernels as functions
/// of their own, where nothing else competes for registers.
///
/// # Safety
/// Methods may only be called where the processor has the type's instruction set; [`Real::dispatch`] sees to it.
/// Pointers must be valid for what a method says it reads or writes.
pub(crate) trait ConvVector: Vector<Elem: Real> {
    /// Filters of a tile that, with three vectors each, leave registers for operands.
    const TALL: usize;
    /// Writes the `count` lanes whose bits are set in `keep` side by side.
    unsafe fn compress(self, keep: u32, count: usize, to: *mut Self::Elem);
    /// Reads the elements whose bits are set; other lanes are zero.
    unsafe fn load_masked(from: *const Self::Elem, mask: u32) -> Self;
    /// The even and the odd elements of two vectors in a row.
    unsafe fn split(self, next: Self) -> (Self, Self);
    /// The elements from `by` (fewer than lanes) on of two vectors in a row.
    unsafe fn shifted(self, next: Self, by: usize) -> Self;
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
    /// Has weights brought into the first-level cache that will be read soon, where that pays; any address will do.
    #[inline(always)]
    fn prefetch_weights(_: *const Self::Elem) {}
    /// A tile of R filters × V vectors, as [`super::tile::compute`].
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, Self::Elem>);
    /// Lines of V vectors for a kernel of K rows, as [`super::in_place::compute_lines`].
    unsafe fn lines<const K: usize, const V: usize, const MASKED: bool>(tile: &Rows<'_, Self::Elem>);
    /// One line of V vectors, as [`super::in_place::compute_line`].
    unsafe fn line<const V: usize, const MASKED: bool, const EVEN: bool>(tile: &Rows<'_, Self::Elem>);
    /// Transposes a block, as [`super::transpose_block::Block::transpose_to`] says.
    unsafe fn transpose_block(
        block: &Block<Self::Elem>,
        keep: usize,
        base: *mut Self::Elem,
        to: &[usize; 16],
    );
    /// A tile of P positions × F panels of filters in lanes, as [`super::filters::compute`].
    unsafe fn filters<const P: usize, const F: usize>(tile: &FilterTile<'_, Self::Elem>);
    /// A line of channels in lanes, as [`super::depthwise::compute`] needs.
    unsafe fn depthwise_line<const P: usize>(line: Line<'_, Self::Elem>);
}

/// Work to be compiled for a vector type; `run` and what it calls on vectors must be `#[inline(always)]`.
pub(crate) trait Job<T> {
    /// Does it.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    unsafe fn run<L: ConvVector<Elem = T>>(self);
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
pub(crate) unsafe fn copy_run<L: ConvVector>(from: &[L::Elem], to: &mut [L::Elem]) {
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

impl<T: Real> ConvVector for Plain<T> {
    const TALL: usize = 4;
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
    unsafe fn load_masked(from: *const T, mask: u32) -> Self {
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
        // Safety: as many elements as bits may be written; bits are below the number of lanes.
        unsafe {
            *next = from[left.trailing_zeros() as usize];
            next = next.add(1);
        }
        left &= left - 1;
    }
}

#[cfg(target_arch = "x86_64")]
impl ConvVector for __m512 {
    const TALL: usize = 8;
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
    fn prefetch_weights(at: *const f32) {
        // Safety: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn sums<const R: usize, const V: usize>(tile: &Tile<'_, f32>) {
        // Safety: the caller's promise.
        unsafe { sums_avx512::<R, V>(tile) }
    }
    #[inline(always)]
    unsafe fn load_masked(from: *const f32, mask: u32) -> Self {
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
impl ConvVector for __m256 {
    const TALL: usize = 4;
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
    unsafe fn load_masked(from: *const f32, mask: u32) -> Self {
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
