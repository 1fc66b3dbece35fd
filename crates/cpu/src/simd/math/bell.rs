//! The error function and gelu, by the tail of the normal distribution.

use super::exponential::{exp, exp_parts_m1};
use super::{at_least, at_most, fma, horner, product_split};

/// erf(x) / x in x², on |x| ≤ 1.
const ERF: [f32; 8] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -0.376_126_4,
    0.112_837_82,
    -0.026_865_4,
    0.005_220_945_4,
    -0.000_848_282_9,
    0.000_112_569_48,
    -9.641_517e-6,
];

/// −ln erfc(t) on 1 ≤ t ≤ 4, weighted by erfc.
const MINUS_LOG_ERFC: [f32; 8] = [
    -0.000_188_035_09,
    1.129_578_4,
    0.633_219_94,
    0.108_418_53,
    -0.025_208_231,
    0.004_204_553,
    -0.000_441_334_66,
    2.168_671_3e-5,
];

/// erf x.
#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    let t = at_most(x.abs(), 4.0);
    let near = t * horner::<FMA, 8>(t * t, ERF);
    let far = 1.0 - exp::<FMA>(-horner::<FMA, 8>(t, MINUS_LOG_ERFC));
    (if t < 1.0 { near } else { far }).copysign(x)
}

/// (t + 2) · e^(t²/2) · Φ(−t) in (t − 2) / (t + 2), on 0 ≤ t ≤ 14.5, less [`TAIL_START`].
const TAIL: [f32; 12] = [
    2.017_344_8e-8,
    -0.331_404_48,
    0.028_797_37,
    0.036_719_285,
    -0.000_469_736_24,
    -0.006_733_822,
    -0.001_951_555_2,
    0.000_821_902_66,
    0.000_836_397_2,
    0.000_134_687_27,
    -0.000_148_980_8,
    -6.608_679_5e-5,
];
/// The leading coefficient of [`TAIL`] as far as f32 holds it; what is left of it is there.
const TAIL_START: f32 = 0.672408;

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
