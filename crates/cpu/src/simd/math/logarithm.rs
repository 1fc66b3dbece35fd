//! Logarithms.

use olivine_numerics::polynomial::single::{LN2_HIGH, LN2_LOW, LOG};

use super::{fma, horner};

/// The bits of √½, where the mantissa's range starts.
const START: i32 = 0x3f35_04f3;

/// A positive number as 2ᵉ·(1 + f): e, f and ln(1 + f) − f.
#[inline(always)]
fn split<const FMA: bool>(x: f32) -> (f32, f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let moved = (scaled.to_bits() as i32).wrapping_sub(START);
    let e = (moved >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
    let f = f32::from_bits(((moved & 0x007f_ffff) + START) as u32) - 1.0;
    let square = f * f;
    let rest = fma::<FMA>(square * f, horner::<FMA, 8>(f, LOG), -0.5 * square);
    (e, f, rest)
}

/// Replaces the results of arguments that have no finite logarithm.
#[inline(always)]
fn outside(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// ln x.
#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    let (e, f, rest) = split::<FMA>(x);
    let y = fma::<FMA>(e, LN2_HIGH, fma::<FMA>(e, LN2_LOW, rest) + f);
    outside(x, y)
}

/// log₂ x.
#[inline(always)]
pub(crate) fn log2<const FMA: bool>(x: f32) -> f32 {
    // log₂ e = 1 + 0.4427…: the leading product is exact.
    const BEYOND_ONE: f32 = 0.442_695_04;
    let (e, f, rest) = split::<FMA>(x);
    let low = fma::<FMA>(f, BEYOND_ONE, rest * std::f32::consts::LOG2_E);
    outside(x, e + (f + low))
}

/// ln(1 + x) without cancellation: the logarithm of the rounded sum, corrected by what the rounding lost.
#[inline(always)]
pub(crate) fn log1p<const FMA: bool>(x: f32) -> f32 {
    let u = 1.0 + x;
    let lost = if x >= 1.0 { 1.0 - (u - x) } else { x - (u - 1.0) };
    let correction = if u > 0.0 && u < f32::INFINITY { lost / u } else { 0.0 };
    let y = log::<FMA>(u) + correction;
    if x.abs() < 1e-8 { x } else { y }
}
