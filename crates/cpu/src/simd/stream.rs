//! Stores that bypass the caches, for results larger than them.

/// Results of at least this many bytes will have left the caches before anyone reads them.
pub(crate) const STREAM_FROM: usize = 24 << 20;

/// Copies without reading the destination's cache lines first; [`stream_fence`] must follow before others read.
#[cfg(target_arch = "x86_64")]
pub(crate) fn stream_copy(from: &[u8], to: &mut [u8]) {
    let n = from.len().min(to.len());
    let head = to.as_ptr().align_offset(64).min(n);
    let done = head + (n - head) / 64 * 64;
    to[..head].copy_from_slice(&from[..head]);
    let (source, lines) = (&from[head..done], &mut to[head..done]);
    match super::vectors() {
        // Safety: `vectors` has seen AVX-512 on this CPU; `lines` starts on a 64-byte boundary.
        super::Vectors::Avx512 => unsafe { stream_512(source, lines) },
        // Safety: SSE2 is part of x86-64; `lines` starts on a 64-byte boundary.
        _ => unsafe { stream_128(source, lines) },
    }
    to[done..n].copy_from_slice(&from[done..n]);
}

/// # Safety
/// `to` must start on a 64-byte boundary.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_512(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    for (from, to) in from.as_chunks::<64>().0.iter().zip(to.as_chunks_mut::<64>().0) {
        // Safety: both hold 64 bytes, and `to` is aligned as the caller promised.
        unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) };
    }
}

/// # Safety
/// `to` must start on a 16-byte boundary.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_128(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
    for (from, to) in from.as_chunks::<16>().0.iter().zip(to.as_chunks_mut::<16>().0) {
        // Safety: both hold 16 bytes, and `to` is aligned as the caller promised.
        unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
    }
}

/// Orders a task's streamed stores before whatever publishes its result.
#[cfg(target_arch = "x86_64")]
pub(crate) fn stream_fence() {
    // Safety: SSE is part of x86-64.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn stream_copy(from: &[u8], to: &mut [u8]) {
    let n = from.len().min(to.len());
    to[..n].copy_from_slice(&from[..n]);
}

/// Does nothing: no store bypasses the caches here.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn stream_fence() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_copies_are_copies_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..700usize).map(|i| (i * 7 % 251) as u8).collect();
        for start in [0, 1, 4, 63, 64] {
            for len in [0, 1, 63, 64, 65, 200, 600] {
                let mut to = vec![0u8; 700];
                stream_copy(&from[start..start + len], &mut to[start..start + len]);
                stream_fence();
                assert_eq!(to[start..start + len], from[start..start + len]);
                assert!(to[..start].iter().chain(&to[start + len..]).all(|b| *b == 0));
            }
        }
    }
}
