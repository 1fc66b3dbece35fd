//! Activations made of the elementary functions.

use olivine_numerics::polynomial::double::{SELU_BELOW, SELU_SCALE};

use super::exponential::{exp, exp_parts, exp_parts_m1, expm1};
use super::logarithm::log1p;
use super::{at_least, at_most, fma, max, min};

/// max(x, 0); NaN stays.
#[inline(always)]
pub(crate) fn relu<const FMA: bool>(x: f32) -> f32 {
    at_least(x, 0.0)
}

/// 1 / (1 + e⁻ˣ), by e^(−|x|), which cannot overflow.
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// x·sigmoid(z) where e^(−|z|) is `p · s · t`; x and z have one sign.
#[inline(always)]
fn gated(x: f32, (p, s, t): (f32, f32, f32)) -> f32 {
    let above = at_least(x, -200.0) / (1.0 + p * s * t);
    if x < 0.0 { above * p * s * t } else { above }
}

/// x · sigmoid(x).
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    gated(x, exp_parts::<FMA>(at_least(-x.abs(), -110.0)))
}

/// The tanh approximation of gelu: x · sigmoid(2·√(2/π)·(x + 0.044715·x³)).
#[inline(always)]
pub(crate) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // In f32 alone the exponent's rounding would show: it is up to 100.
    const A: f64 = 1.595_769_121_605_730_8;
    let t = f64::from(at_most(x.abs(), 11.0));
    let z = t * (A + A * 0.044715 * t * t);
    let high = at_most(z as f32, 110.0);
    let low = (z - f64::from(high)) as f32;
    let (p, s, u) = exp_parts::<FMA>(-high);
    gated(x, (p - p * low, s, u))
}

/// ln(1 + eˣ).
#[inline(always)]
pub(crate) fn softplus<const FMA: bool>(x: f32) -> f32 {
    at_least(x, 0.0) + log1p::<FMA>(exp::<FMA>(-x.abs()))
}

/// ln(sigmoid(x)).
#[inline(always)]
pub(crate) fn log_sigmoid<const FMA: bool>(x: f32) -> f32 {
    -softplus::<FMA>(-x)
}

/// x / (1 + |x|).
#[inline(always)]
pub(crate) fn softsign<const FMA: bool>(x: f32) -> f32 {
    let held = at_least(at_most(x, 1e30), -1e30);
    held / (1.0 + held.abs())
}

/// x, or alpha·(eˣ − 1) below zero, both scaled; the self-normalising constants.
#[inline(always)]
pub(crate) fn selu<const FMA: bool>(x: f32) -> f32 {
    let below = SELU_BELOW as f32 * expm1::<FMA>(x);
    if x < 0.0 { below } else { SELU_SCALE as f32 * x }
}

/// x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ(eˣ + 2).
#[inline(always)]
pub(crate) fn mish<const FMA: bool>(x: f32) -> f32 {
    let (m, s, t) = exp_parts_m1::<FMA>(at_least(at_most(x, 22.0), -110.0));
    let e = (1.0 + m) * s * t;
    let weight = at_least(x, -200.0) * (e + 2.0) / fma::<FMA>(e, e + 2.0, 2.0);
    let y = fma::<FMA>(weight, m, weight) * s * t;
    if x > 20.0 { x } else { y }
}

/// x · (x + 3) / 6 with the factor held within 0 and 1.
#[inline(always)]
pub(crate) fn hard_swish<const FMA: bool>(x: f32) -> f32 {
    at_least(x, -4.0) * (at_most(at_least(x + 3.0, 0.0), 6.0) / 6.0)
}

/// x, or alpha·x below zero.
#[inline(always)]
pub(crate) fn leaky_relu(x: f32, alpha: f32) -> f32 {
    if x < 0.0 { alpha * x } else { x }
}

/// x, or alpha·(eˣ − 1) below zero.
#[inline(always)]
pub(crate) fn elu<const FMA: bool>(x: f32, alpha: f32) -> f32 {
    if x < 0.0 { alpha * expm1::<FMA>(x) } else { x }
}

/// max(0, x) + min(0, alpha·(e^(x/alpha) − 1)).
#[inline(always)]
pub(crate) fn celu<const FMA: bool>(x: f32, alpha: f32) -> f32 {
    max(x, 0.0) + min(alpha * expm1::<FMA>(x / alpha), 0.0)
}

/// alpha·x + beta held within 0 and 1.
#[inline(always)]
pub(crate) fn hard_sigmoid(x: f32, alpha: f32, beta: f32) -> f32 {
    min(max(alpha * x + beta, 0.0), 1.0)
}
