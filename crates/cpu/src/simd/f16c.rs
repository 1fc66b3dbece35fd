//! f16 conversions by the processor's own instructions (F16C), which every processor with AVX2 vectors has.

use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

use half::f16;

/// Numbers in a vector.
const N: usize = 8;

/// Widens whole vectors of numbers; the answer is how many that were.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn widen(x: &[f16], out: &mut [f32]) -> usize {
    let whole = x.len().min(out.len()) / N * N;
    for (from, to) in x[..whole].chunks_exact(N).zip(out.chunks_exact_mut(N)) {
        // Safety: both have `N` numbers.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))) };
    }
    whole
}

/// Narrows whole vectors of numbers to nearest even; the answer is how many that were.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn narrow(x: &[f32], out: &mut [f16]) -> usize {
    let whole = x.len().min(out.len()) / N * N;
    for (from, to) in x[..whole].chunks_exact(N).zip(out.chunks_exact_mut(N)) {
        // Safety: both have `N` numbers.
        unsafe {
            let packed = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(from.as_ptr()));
            _mm_storeu_si128(to.as_mut_ptr().cast(), packed);
        }
    }
    whole
}

/// Rounds whole vectors of numbers to ones that f16 can hold; the answer is how many that were.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn round(x: &mut [f32]) -> usize {
    let whole = x.len() / N * N;
    for x in x.chunks_exact_mut(N) {
        // Safety: there are `N` numbers.
        unsafe {
            let packed = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
            _mm256_storeu_ps(x.as_mut_ptr(), _mm256_cvtph_ps(packed));
        }
    }
    whole
}
