//! eˣ and what follows from it.

use olivine_numerics::polynomial::single::{EXP, LN2_HIGH, LN2_LOW};

use super::{at_least, at_most, fma, horner};

/// Adding and subtracting 1.5·2²³ rounds to an integer, which also is in the sum's low bits.
const ROUND: f32 = 12_582_912.0;

/// x = n·ln 2 + r: n as a float and as bits, and r.
#[inline(always)]
fn reduce<const FMA: bool>(x: f32) -> (f32, i32, f32) {
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let bits = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = fma::<FMA>(n, -LN2_LOW, fma::<FMA>(n, -LN2_HIGH, x));
    (n, bits, r)
}

/// 2ⁿ for a normal result.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// eʳ − 1 for a reduced r.
#[inline(always)]
fn reduced_expm1<const FMA: bool>(r: f32) -> f32 {
    fma::<FMA>(r * r, horner::<FMA, 5>(r, EXP), r)
}

/// eˣ as `(1 + m) · s · t`; see [`exp_parts`].
#[inline(always)]
pub(super) fn exp_parts_m1<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    let (_, n, r) = reduce::<FMA>(x);
    let half = n >> 1;
    (reduced_expm1::<FMA>(r), power_of_two(half), power_of_two(n.wrapping_sub(half)))
}

/// eˣ as `p · s · t` with p near 1 and s, t powers of two, for |x| ≤ 110: products with other numbers can
/// multiply s and t in last, so that a subnormal result is rounded once.
#[inline(always)]
pub(super) fn exp_parts<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    let (m, s, t) = exp_parts_m1::<FMA>(x);
    (1.0 + m, s, t)
}

/// eˣ.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    let (p, s, t) = exp_parts::<FMA>(at_most(at_least(x, -104.0), 89.0));
    p * s * t
}

/// eˣ for x ≤ 0, with results below the normal range flushed to zero: the weights of a softmax.
#[inline(always)]
pub(crate) fn exp_below<const FMA: bool>(x: f32) -> f32 {
    let held = at_least(x, -87.0);
    let (_, n, r) = reduce::<FMA>(held);
    let p = 1.0 + reduced_expm1::<FMA>(r);
    // The sum with n in the exponent's place multiplies by 2ⁿ; p and the product are normal.
    let y = f32::from_bits(p.to_bits().wrapping_add((n as u32) << 23));
    if x < -87.0 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        y
    }
}

/// eˣ − 1 without cancellation.
#[inline(always)]
pub(crate) fn expm1<const FMA: bool>(x: f32) -> f32 {
    let (_, n, r) = reduce::<FMA>(at_most(at_least(x, -18.0), 89.0));
    let p = reduced_expm1::<FMA>(r);
    // Half of 2ⁿ, because 2¹²⁸ is not a number while half the result may be.
    let s = power_of_two(n.wrapping_sub(1));
    let y = fma::<FMA>(s, p, s - 0.5) * 2.0;
    if x.abs() < 1e-8 { x } else { y }
}

/// tanh x = m / (m + 2) with m = e^(2|x|) − 1.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let t = at_most(x.abs(), 10.0);
    let (_, n, r) = reduce::<FMA>(2.0 * t);
    let s = power_of_two(n);
    let m = fma::<FMA>(s, reduced_expm1::<FMA>(r), s - 1.0);
    (m / (m + 2.0)).copysign(x)
}
