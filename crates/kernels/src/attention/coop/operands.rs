//! Elements as operands of 16-bit matrices: as they are, or an f32 as the sum of two f16.
//!
//! A matmul of sums is three f16 matmuls, the fourth being too small to count. The high half is rounded by
//! bits, since compilers see through a round trip by f16. A power of two brings the largest magnitude of a row or of a
//! tile to the upper end of f16, so that 22 bits are left of what is 2^-14 of it.

use olivine_kernel::{Elem, Scalar, Val};

/// How elements become operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OperandPrecision {
    /// 16-bit elements as they are.
    Whole(Elem),
    /// f32 as a high and a low half.
    Split,
}

impl OperandPrecision {
    /// Element type of the operands.
    pub(in super::super) fn elem(self) -> Elem {
        match self {
            OperandPrecision::Whole(elem) => elem,
            OperandPrecision::Split => Elem::F16,
        }
    }

    /// Operands of an element.
    pub(super) fn planes(self) -> u32 {
        match self {
            OperandPrecision::Whole(_) => 1,
            OperandPrecision::Split => 2,
        }
    }
}

/// Exponent of two that the largest magnitude is brought to.
const TOP: u32 = 14;
/// Bits of infinity.
const INFINITY: u32 = 0x7f80_0000;

/// The bits of |x|, in the order of magnitudes, NaN last.
pub(super) fn magnitude(x: Val<'_>) -> Val<'_> {
    x.bitcast(Scalar::U32) & 0x7fff_ffffu32
}

/// Whether bits of a magnitude are those of infinity or NaN.
pub(super) fn is_wild(magnitude: Val<'_>) -> Val<'_> {
    magnitude.ge(INFINITY)
}

/// The power of two that brings a magnitude to the top, and its inverse; both are normal numbers.
pub(super) fn scales<'k>(magnitude: Val<'k>) -> (Val<'k>, Val<'k>) {
    let exponent = magnitude >> 23u32;
    let scale = (exponent.like(f64::from(2 * 127 + TOP)) - exponent).min(253u32);
    let power = |exponent: Val<'k>| (exponent << 23u32).bitcast(Scalar::F32);
    (power(scale), power(scale.like(254.0) - scale))
}

/// The high and the low half of a number in the range of f16.
pub(super) fn high_low(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let high = ((x.bitcast(Scalar::U32) + 0x1000u32) & 0xffff_e000u32).bitcast(Scalar::F32);
    (high, x - high)
}

/// Words of the high f16 and of the low f16 of numbers, times a power of two.
pub(super) fn split<'k>(numbers: &[Val<'k>], scale: Val<'k>) -> Vec<Vec<Val<'k>>> {
    let halves: Vec<_> = numbers.iter().map(|x| high_low(*x * scale)).collect();
    let (mut high, mut low) = (Vec::new(), Vec::new());
    for pair in halves.chunks_exact(2) {
        high.push(pair[0].0.pack_half(pair[1].0));
        low.push(pair[0].1.pack_half(pair[1].1));
    }
    vec![high, low]
}

/// Whether some of these words holds a 16-bit element that is not finite; none without words.
pub(in super::super) fn not_finite<'k>(elem: Elem, words: impl Iterator<Item = Val<'k>>) -> Option<Val<'k>> {
    // All bits of the exponent, and one that carries out of it when they are set.
    let (exponent, carry) = if elem == Elem::F16 { (0x7c00, 0x400) } else { (0x7f80, 0x80) };
    let carried = words.map(|word| (word & (exponent * 0x1_0001u32)) + carry * 0x1_0001u32);
    let top = carried.reduce(|a, b| a | b);
    top.map(|top| (top & 0x8000_8000u32).ne(0))
}
