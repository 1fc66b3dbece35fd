//! How GPUs compute a discrete Fourier transform of any length: factors of the length and tables for it.
//!
//! ```text
//!   n without large primes   stages of small radices (factors), each a butterfly and a table of roots of unity
//!   any other n              Bluestein: chirp · (chirp·x ∗ conj chirp), the convolution by transforms of a smooth length
//! ```
//!
//! Tables are computed in f64 with phases reduced in whole numbers, and rounded once.

mod roots;

use rustfft::FftPlanner;
use rustfft::num_complex::Complex64;

pub use roots::{Complex, chirp, root};

/// The prime factors of a number in ascending order.
pub fn primes(mut n: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    let mut p = 2;
    while p <= n / p {
        while n.is_multiple_of(p) {
            factors.push(p);
            n /= p;
        }
        p += if p == 2 { 1 } else { 2 };
    }
    if n > 1 {
        factors.push(n);
    }
    factors
}

/// Whether all primes of a length are small enough for stages.
pub fn is_smooth(mut n: usize) -> bool {
    for p in [2, 3, 5, 7, 11, 13] {
        while n > 0 && n.is_multiple_of(p) {
            n /= p;
        }
    }
    n == 1
}

/// The length of the transforms by which Bluestein convolves for length n: a power of two times a small odd number, at
/// least 2n − 1. `None` where it overflows.
pub fn convolution_length(n: usize) -> Option<usize> {
    let least = n.checked_mul(2)?.checked_sub(1)?;
    [1usize, 3, 5, 7, 9, 15]
        .into_iter()
        .filter_map(|odd| least.div_ceil(odd).checked_next_power_of_two()?.checked_mul(odd))
        .min()
}

/// The transform of Bluestein's filter `e^(πi·j²/n)`, divided by the convolution's length, in f64.
pub fn convolution_filter(n: usize) -> Option<Vec<Complex>> {
    let m = convolution_length(n)?;
    let mut line = vec![Complex64::default(); m];
    for (j, (re, im)) in chirp(n).into_iter().enumerate() {
        for at in [j, (m - j) % m] {
            line[at] = Complex64::new(re / m as f64, -im / m as f64);
        }
    }
    FftPlanner::new().plan_fft_forward(m).process(&mut line);
    Some(line.into_iter().map(|z| (z.re, z.im)).collect())
}

/// A smooth length as a product of as few radices up to `most` as can be, and among those the ones of least sum, larger
/// ones first; `[1]` for length 1. `None` if a prime exceeds `most`.
pub fn radices(n: usize, most: usize) -> Option<Vec<usize>> {
    fn search(n: usize, largest: usize, stages: usize) -> Option<Vec<usize>> {
        if stages == 0 {
            return (n == 1).then(Vec::new);
        }
        let mut best: Option<Vec<usize>> = None;
        for r in (2..=largest.min(n)).rev().filter(|r| n.is_multiple_of(*r)) {
            if let Some(mut rest) = search(n / r, r, stages - 1) {
                rest.insert(0, r);
                let sum = |v: &[usize]| v.iter().sum::<usize>();
                if best.as_ref().is_none_or(|b| sum(&rest) < sum(b)) {
                    best = Some(rest);
                }
            }
        }
        best
    }
    if n == 1 {
        return Some(vec![1]);
    }
    let factors = primes(n);
    if factors.iter().any(|p| *p > most) {
        return None;
    }
    (1..=factors.len()).find_map(|stages| search(n, most, stages))
}

/// A length as a product of `parts` near-equal smooth factors of at most `most` each, larger first; `None` if there is
/// no such product.
pub fn split(n: usize, parts: usize, most: usize) -> Option<Vec<usize>> {
    if parts <= 1 {
        return (n <= most).then(|| vec![n]);
    }
    let wanted = (n as f64).powf(1.0 / parts as f64);
    let mut divisors = vec![1];
    for p in primes(n) {
        let more: Vec<usize> = divisors.iter().map(|d| d * p).filter(|d| *d <= most).collect();
        divisors.extend(more);
        divisors.sort_unstable();
        divisors.dedup();
    }
    // The nearest first, so that the first that works is near-equal.
    divisors.sort_by(|a, b| {
        let far = |d: usize| (d as f64 / wanted).ln().abs();
        far(*a).total_cmp(&far(*b)).then(b.cmp(a))
    });
    divisors.into_iter().filter(|d| *d > 1).find_map(|d| {
        let mut rest = split(n / d, parts - 1, most)?;
        rest.push(d);
        rest.sort_unstable_by(|a, b| b.cmp(a));
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_small_radices_make_every_smooth_length() {
        assert_eq!(radices(1, 16), Some(vec![1]));
        assert_eq!(radices(1024, 16), Some(vec![16, 8, 8]));
        assert_eq!(radices(4096, 16), Some(vec![16, 16, 16]));
        assert_eq!(radices(1000, 16), Some(vec![10, 10, 10]));
        assert_eq!(radices(200, 16), Some(vec![8, 5, 5]));
        assert_eq!(radices(13, 16), Some(vec![13]));
        assert_eq!(radices(17, 16), None);
        for n in (1..5000).filter(|n| is_smooth(*n)) {
            assert_eq!(radices(n, 16).map(|r| r.iter().product()), Some(n));
        }
    }

    #[test]
    fn long_lengths_split_into_near_equal_parts() {
        assert_eq!(split(1 << 20, 2, 4096), Some(vec![1024, 1024]));
        assert_eq!(split(1_000_000, 2, 4096), Some(vec![1000, 1000]));
        assert_eq!(split(147_456, 2, 4096), Some(vec![384, 384]));
        assert_eq!(split(1 << 25, 2, 4096), None);
        assert_eq!(split(1 << 25, 3, 4096).map(|p| p.iter().product()), Some(1 << 25));
    }

    #[test]
    fn a_filter_is_the_transform_of_its_chirp() {
        for n in [1usize, 7, 97, 499] {
            let filter = convolution_filter(n).unwrap_or_default();
            let m = filter.len();
            let chirp = chirp(n);
            let at = |j: usize| if j < n { Some(j) } else { (m - j < n).then_some(m - j) };
            for (k, got) in filter.iter().enumerate().step_by(1 + m / 40) {
                let terms = (0..m).filter_map(|j| {
                    let ((re, im), (c, s)) = (chirp[at(j)?], root(j * k % m, m));
                    Some((re * c + im * s, re * s - im * c))
                });
                let want = terms.fold((0.0, 0.0), |sum: Complex, t| (sum.0 + t.0, sum.1 + t.1));
                let far = (got.0 - want.0 / m as f64).abs().max((got.1 - want.1 / m as f64).abs());
                assert!(far < 1e-14, "{n} at {k}: {got:?} for {want:?}");
            }
        }
    }

    #[test]
    fn a_convolution_is_long_enough_and_smooth() {
        assert_eq!(convolution_length(65537), Some(147_456));
        for n in 1..3000 {
            let m = convolution_length(n);
            assert!(m.is_some_and(|m| m >= 2 * n - 1 && m < 4 * n && is_smooth(m)), "{n}: {m:?}");
        }
        assert_eq!(convolution_length(usize::MAX), None);
    }
}
