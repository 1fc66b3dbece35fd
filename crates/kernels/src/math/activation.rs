//! Activations of f32 made of the elementary functions.

use olivine_ir::op::Activation;
use olivine_kernel::{CompareOp, Val};
use olivine_numerics::polynomial::double::{SELU_BELOW, SELU_SCALE};

use super::bits::{absolute, below_zero, compare, copysign, near_zero, negative, pick};
use super::exact::{div, div_near};
use super::single::{at_least, at_most, exp, exp_parts, expm1, linear_below, log1p};
use super::{max_nan, min_nan};

/// 1 / (1 + e⁻ˣ), by e^(−|x|), which cannot overflow.
pub(super) fn sigmoid(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_least(negative(absolute(x)), -110.0), None);
    let p = m + 1.0;
    let e = p * s * t;
    let y = div_near(x.like(1.0), e + 1.0);
    // The powers of two last: a denormal result is rounded once.
    x.lt(0.0).select(y * p * s * t, y)
}

/// x·sigmoid(z) where e^(−|z|) is `p · s · t`; x and z have one sign.
fn gated<'k>(x: Val<'k>, (p, s, t): (Val<'k>, Val<'k>, Val<'k>)) -> Val<'k> {
    let divisor = p * s * t + 1.0;
    let held = at_least(at_most(x, 1e30), -200.0);
    let below = div_near(held * p, divisor) * s * t;
    let y = x.lt(0.0).select(below, div_near(held, divisor));
    near_zero(x, 0.5, copysign(x.gt(1e3).select(x, y), x))
}

/// x · sigmoid(x).
pub(super) fn silu(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_least(negative(absolute(x)), -110.0), None);
    gated(x, (m + 1.0, s, t))
}

/// The tanh approximation of gelu: x · sigmoid(2·√(2/π)·(x + 0.044715·x³)).
pub(super) fn gelu_tanh(x: Val<'_>) -> Val<'_> {
    const A: f64 = 1.595_769_121_605_730_8;
    // The parts of z = t·(A + B·t²) that matter to e^−z: products of twelve-bit halves are exact.
    let t = at_most(absolute(x), 11.0);
    let square = product(t, t);
    let (scaled, scaled_low) = product(square.0, t.like(A * 0.044715));
    let low_part = square.1 * (A * 0.044715) + scaled_low + scaled * low_of(A * 0.044715);
    let sum = (scaled + A).opaque();
    let sum_low = at_sum(scaled, A, sum) + low_part + f64::from(A as f32).mul_add(-1.0, A);
    let (z, z_low) = product(t, sum);
    let z_low = z_low + t * sum_low;
    let held = at_most(z, 110.0);
    let (m, s, u) = exp_parts(-held, Some(-z_low));
    gated(x, (m + 1.0, s, u))
}

/// a·b as a rounded product and what the rounding lost.
fn product<'k>(a: Val<'k>, b: Val<'k>) -> (Val<'k>, Val<'k>) {
    let ((a1, a2), (b1, b2)) = (super::power::high_low(a), super::power::high_low(b));
    let p = (a * b).opaque();
    (p, ((a1 * b1 - p).opaque() + a1 * b2 + a2 * b1) + a2 * b2)
}

/// What an f32 of a number loses, relative to that f32.
fn low_of(x: f64) -> f64 {
    let near = f64::from(x as f32);
    (x - near) / near
}

/// What the sum of a value and a number lost in rounding.
fn at_sum<'k>(a: Val<'k>, b: f64, sum: Val<'k>) -> Val<'k> {
    let b = a.like(b);
    let back = (sum - a).opaque();
    (a - (sum - back).opaque()).opaque() + (b - back).opaque()
}

/// ln(1 + eˣ).
pub(super) fn softplus(x: Val<'_>) -> Val<'_> {
    let e = exp(negative(absolute(x)));
    // Far below zero nothing is added, which would flush a denormal.
    x.lt(-20.0).select(e, at_least(x, 0.0) + log1p(e))
}

/// x / (1 + |x|).
pub(super) fn softsign(x: Val<'_>) -> Val<'_> {
    let held = at_least(at_most(x, 1e30), -1e30);
    linear_below(x, 1e-8, copysign(div_near(held, absolute(held) + 1.0), x))
}

/// x, or alpha·(eˣ − 1) below zero, both scaled; the self-normalising constants.
pub(super) fn selu(x: Val<'_>) -> Val<'_> {
    let above = near_zero(x, SELU_SCALE, x * SELU_SCALE);
    below_zero(x).select(near_zero(x, SELU_BELOW, expm1(x) * SELU_BELOW), above)
}

/// x · tanh(ln(1 + eˣ)) = x · n / (n + 2) with n = eˣ(eˣ + 2).
pub(super) fn mish(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_least(at_most(x, 22.0), -110.0), None);
    let e = (m + 1.0) * s * t;
    let weight = div_near(at_least(at_most(x, 22.0), -200.0) * (e + 2.0), e.fma(e + 2.0, 2.0));
    let y = weight.fma(m, weight) * s * t;
    near_zero(x, 0.6, x.gt(20.0).select(x, y))
}

/// x · (x + 3) / 6 with the factor held within 0 and 1.
pub(super) fn hard_swish(x: Val<'_>) -> Val<'_> {
    near_zero(x, 0.5, at_least(x, -4.0) * (at_most(at_least(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)))
}

/// A function with parameters.
pub(super) fn parametric(a: Activation, x: Val<'_>) -> Val<'_> {
    match a {
        Activation::LeakyRelu { alpha } => pick(below_zero(x), x * alpha, x),
        Activation::Elu { alpha } => pick(below_zero(x), super::expm1(x) * alpha, x),
        Activation::Celu { alpha } => {
            let below = super::expm1(div(x, x.like(alpha))) * alpha;
            let y = max_nan(x, x.like(0.0)) + min_nan(below, x.like(0.0));
            // Near zero x is the result, and the quotient may be a denormal, which a device may flush.
            (x.lt(0.0) & x.gt(-1e-17 * alpha)).select(x, y)
        }
        Activation::HardSigmoid { alpha, beta } => {
            min_nan(max_nan(x * alpha + beta, x.like(0.0)), x.like(1.0))
        }
        Activation::Hardshrink { lambd } => {
            pick(compare(CompareOp::Le, absolute(x), x.like(lambd)), x.like(0.0), x)
        }
    }
}
