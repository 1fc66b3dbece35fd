//! The error function and gelu, by the tail of the normal distribution.

use olivine_numerics::polynomial::single::{ERF, MINUS_LOG_ERFC, TAIL, TAIL_START};

use super::exponential::{exp, exp_parts_m1};
use super::{at_least, at_most, fma, horner, product_split};

/// erf x.
#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    let t = at_most(x.abs(), 4.0);
    let near = t * horner::<FMA, 8>(t * t, ERF);
    let far = 1.0 - exp::<FMA>(-horner::<FMA, 8>(t, MINUS_LOG_ERFC));
    (if t < 1.0 { near } else { far }).copysign(x)
}

/// [`TAIL`] in five steps after each other instead of eleven: gelu waits for this one.
#[inline(always)]
fn tail<const FMA: bool>(y: f32) -> f32 {
    let pair = |i: usize| fma::<FMA>(TAIL[i + 1], y, TAIL[i]);
    let y2 = y * y;
    let y4 = y2 * y2;
    let four = |i: usize| fma::<FMA>(pair(i + 2), y2, pair(i));
    fma::<FMA>(fma::<FMA>(four(8), y4, four(4)), y4, four(0))
}

/// x·Φ(x) = max(x, 0) − |x|·Φ(−|x|), the tail's powers of two last, so that it fades through the subnormals.
#[inline(always)]
pub(crate) fn gelu<const FMA: bool>(x: f32) -> f32 {
    let t = at_most(x.abs(), 14.5);
    let (exponent, lost) = product_split::<FMA>(-0.5 * t, t);
    let (m, s, u) = exp_parts_m1::<FMA>(exponent);
    let w = t / (t + 2.0);
    let mills = (tail::<FMA>(fma::<FMA>(2.0, w, -1.0)) + TAIL_START) * w;
    // One rounding for mills · (1 + m) · (1 + lost).
    let tail = fma::<FMA>(mills, fma::<FMA>(lost, 1.0 + m, m), mills);
    (at_least(x, 0.0) - tail * s * u).copysign(x)
}
