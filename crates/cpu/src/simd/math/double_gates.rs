//! The error function, and numbers times a gate that vanishes below zero, in f64.
//!
//! A gate's exponential comes last and in two equal factors, so that a denormal result is rounded once.

use olivine_numerics::polynomial::double::{ERF, TAIL};

fn horner(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// e^(t²)·erfc(t), from ½ to 28.
fn scaled_tail(t: f64) -> f64 {
    horner((t - 2.0) / (t + 2.0), &TAIL) / (t + 2.0)
}

/// erfc(t) from ½ on.
fn tail(t: f64) -> f64 {
    if t > 28.0 {
        return 0.0;
    }
    let square = t * t;
    let lost = t.mul_add(t, -square);
    let part = (-0.5 * square).exp();
    scaled_tail(t) * (1.0 - lost) * part * part
}

/// erf(x).
pub fn erf(x: f64) -> f64 {
    let t = x.abs();
    let y = if t < 1.0 { t * horner(t * t, &ERF) } else { 1.0 - tail(t) };
    if x.is_nan() { x } else { y.copysign(x) }
}

/// 1 − erf(x) without cancellation for positive x.
pub(crate) fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() < 0.5 {
        1.0 - x * horner(x * x, &ERF)
    } else if x < 0.0 {
        2.0 - tail(-x)
    } else {
        tail(x)
    }
}

/// x·Φ(x).
pub(super) fn gelu(x: f64) -> f64 {
    const SQRT_1_2: f64 = std::f64::consts::FRAC_1_SQRT_2;
    let t = -x;
    if x.is_nan() || t < 0.75 {
        return x * 0.5 * erfc(t * SQRT_1_2);
    }
    if t > 39.0 {
        return -0.0;
    }
    // The exponent is x²/2 to the last digit; that of a rounded t/√2 would be off by as many roundings as it is large.
    let square = t * t;
    let lost = t.mul_add(t, -square);
    let part = (-0.25 * square).exp();
    x * 0.5 * scaled_tail(t * SQRT_1_2) * (1.0 - 0.5 * lost) * part * part
}

/// x·sigmoid(x).
pub(super) fn silu(x: f64) -> f64 {
    gated(x, x, 0.0)
}

/// The tanh approximation of gelu: x·sigmoid(z), z = 2·√(2/π)·(x + 0.044715·x³) in two parts.
pub(super) fn gelu_tanh(x: f64) -> f64 {
    const SCALE: f64 = 1.595_769_121_605_730_8;
    const SCALE_LOW: f64 = -9.969_308_809_110_92e-17;
    const CUBIC: f64 = 0.044715;
    if x.is_nan() || x > 50.0 {
        return x;
    }
    if x < -50.0 {
        return -0.0;
    }
    let product = |a: f64, b: f64| (a * b, a.mul_add(b, -(a * b)));
    let (square, square_low) = product(x, x);
    let (cube, cube_low) = product(square, x);
    let (term, term_low) = product(cube, CUBIC);
    let term_low = term_low + (cube_low + square_low * x) * CUBIC;
    let sum = x + term;
    let back = sum - x;
    let sum_low = (x - (sum - back)) + (term - back) + term_low;
    let (z, z_low) = product(sum, SCALE);
    gated(x, z, z_low + sum_low * SCALE + sum * SCALE_LOW)
}

/// x·sigmoid(z + low).
fn gated(x: f64, z: f64, low: f64) -> f64 {
    if z >= 0.0 || z.is_nan() {
        return x / (1.0 + (-z).exp() * (1.0 - low));
    }
    if x == f64::NEG_INFINITY {
        return -0.0;
    }
    let part = (0.5 * z).exp();
    x * (1.0 + low) / (1.0 + z.exp() * (1.0 + low)) * part * part
}

/// x·tanh(ln(1 + eˣ)) = x·n / (n + 2) with n = eˣ(eˣ + 2).
pub(super) fn mish(x: f64) -> f64 {
    if x > 20.0 {
        return x;
    }
    if x < -800.0 {
        return -0.0;
    }
    let (e, part) = (x.exp(), (0.5 * x).exp());
    x * (e + 2.0) / (e * (e + 2.0) + 2.0) * part * part
}
