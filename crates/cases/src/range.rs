//! Numbers from a dtype's whole range: every magnitude, and the corners where functions of two numbers change their mind.

use olivine_ir::DType;
use olivine_ir::half::{bf16, f16};

use crate::fill::Rng;

/// How many numbers [`Fill::WholeRange`](crate::Fill::WholeRange) has, and one more: kernels for odd lengths are there
/// already.
pub fn whole_range_len(dtype: DType) -> usize {
    if dtype.size() == 2 { 65_537 } else { 16_385 }
}

/// How many pairs [`Fill::Pairs`](crate::Fill::Pairs) has; an odd number.
pub fn pairs_len(dtype: DType) -> usize {
    let (low, high) = crate::oracle::limits(dtype);
    let corners = if dtype.is_float() { corners(dtype).len() } else { int_corners(low, high).len() };
    corners * corners
}

/// The i-th number of the whole range: all of f16 and bf16, else every exponent and sign, then again with another mantissa.
pub(crate) fn pattern(dtype: DType, i: usize, rng: &mut Rng) -> f64 {
    // The ends and the middle of a mantissa's range, then any.
    let mantissa = |round: usize, bits: u32, rng: &mut Rng| match round {
        0 => 0,
        1 => (1u64 << bits) - 1,
        2 => 1,
        3 => 1 << (bits - 1),
        _ => rng.bits() >> (64 - bits),
    };
    match dtype {
        DType::F16 => f16::from_bits(i as u16).to_f64(),
        DType::BF16 => bf16::from_bits(i as u16).to_f64(),
        DType::F32 => {
            let low = mantissa(i / 512, 23, rng) as u32;
            f64::from(f32::from_bits(((i as u32 % 512) << 23) | low))
        }
        _ => f64::from_bits(((i as u64 % 4096) << 52) | mantissa(i / 4096, 52, rng)),
    }
}

/// The first or the second of the i-th pair.
pub(crate) fn pair<T: Copy>(list: &[T], i: usize, second: bool) -> T {
    list[if second { i % list.len() } else { i / list.len() % list.len() }]
}

/// Floats: zeros, denormals, the ends, ones and what is next to them, whole and half numbers, the last odd integer, NaN.
pub(crate) fn corners(dtype: DType) -> Vec<f64> {
    let (bits, tiny, least, largest) = match dtype {
        DType::F16 => (10, f16::from_bits(1).to_f64(), f16::MIN_POSITIVE.to_f64(), f16::MAX.to_f64()),
        DType::BF16 => (7, bf16::from_bits(1).to_f64(), bf16::MIN_POSITIVE.to_f64(), bf16::MAX.to_f64()),
        DType::F32 => (23, f64::from(f32::from_bits(1)), f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
        _ => (52, f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX),
    };
    let unit = 0.5f64.powi(bits);
    let odd = 2.0 / unit - 1.0;
    let small = [0.0, tiny, tiny * 5.0, least, least * 1.5, 1e-3, 0.5, 1.0 - unit / 2.0];
    let middle = [1.0, 1.0 + unit, 1.5, 2.0, 2.5, 3.0, 7.0, 100.5];
    let large = [odd, odd + 1.0, largest / 4.0, largest, f64::INFINITY];
    let magnitudes = small.into_iter().chain(middle).chain(large);
    magnitudes.flat_map(|m| [m, -m]).chain([f64::NAN]).collect()
}

/// Integers between two ends: the ends and their neighbours, small numbers, and the width in bits with its neighbours.
pub(crate) fn int_corners(low: i64, high: i64) -> Vec<i64> {
    let width = 64 - i64::from(low.abs_diff(high).leading_zeros());
    let numbers = [0, 1, 2, 3, 5, 7, width - 1, width, width + 1, high / 2, high - 1, high];
    let ends = [low, low.saturating_add(1), low / 2];
    let all = numbers.into_iter().chain(numbers.map(|n| -n)).chain(ends);
    let mut all: Vec<i64> = all.filter(|n| (low..=high).contains(n)).collect();
    all.sort_unstable();
    all.dedup();
    if all.len().is_multiple_of(2) {
        all.retain(|n| *n != 5);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_range_has_every_half_and_every_exponent_and_sign() {
        let mut rng = Rng::new(0);
        for dtype in [DType::F16, DType::BF16] {
            let numbers: std::collections::HashSet<u64> =
                (0..65_536).map(|i| pattern(dtype, i, &mut rng).to_bits()).collect();
            // NaN aside, all are different.
            assert!(numbers.len() > 63_000, "{dtype}: {}", numbers.len());
        }
        let n = whole_range_len(DType::F32);
        let singles: Vec<f32> = (0..n).map(|i| pattern(DType::F32, i, &mut rng) as f32).collect();
        for exponent in 0..512u32 {
            let there = singles.iter().filter(|x| x.to_bits() >> 23 == exponent || x.is_nan()).count();
            assert!(there >= 32, "{exponent}");
        }
        for wanted in [0.0f32, f32::MAX, f32::INFINITY, f32::MIN_POSITIVE, f32::from_bits(1)] {
            for x in [wanted, -wanted] {
                assert!(singles.iter().any(|y| y.to_bits() == x.to_bits()), "{x:e}");
            }
        }
    }

    #[test]
    fn corners_are_an_odd_number_and_hold_the_ends() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
            assert_eq!(pairs_len(dtype) % 2, 1, "{dtype}");
        }
        let eight = int_corners(-128, 127);
        assert!([-128, -127, -1, 0, 1, 7, 8, 9, 127].iter().all(|n| eight.contains(n)), "{eight:?}");
        let long = int_corners(i64::MIN, i64::MAX);
        assert!([i64::MIN, -64, 63, 64, i64::MAX].iter().all(|n| long.contains(n)), "{long:?}");
        assert!(corners(DType::F32).contains(&16_777_215.0));
    }
}
