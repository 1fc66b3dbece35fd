//! What the elementwise functions of f64 are made of, one number at a time.

use olivine_ir::op::Binary;

/// The larger; NaN if either is.
#[inline(always)]
pub(crate) fn max(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller; NaN if either is.
#[inline(always)]
pub(crate) fn min(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// Remainder with the sign of b.
pub(crate) fn modulo(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) {
        r + b
    } else if r == 0.0 {
        0.0f64.copysign(b)
    } else {
        r
    }
}

/// x·y where y is a weight that vanishes faster than x grows: −∞·0 is −0, not NaN.
pub(super) fn times(x: f64, y: f64) -> f64 {
    if y == 0.0 && x == f64::NEG_INFINITY { -0.0 } else { x * y }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

pub(super) fn softplus(x: f64) -> f64 {
    max(x, 0.0) + (-x.abs()).exp().ln_1p()
}

/// Above this 1 does not matter beside a number's square.
const LARGE: f64 = 1e9;

/// ln(x + √(x² + 1)); the standard library's doubles its argument, which overflows.
pub(super) fn asinh(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > LARGE {
        a.ln() + std::f64::consts::LN_2
    } else {
        (a + a * a / ((a * a + 1.0).sqrt() + 1.0)).ln_1p()
    };
    y.copysign(x)
}

/// ½·ln((1 + x)/(1 − x)); the standard library's loses digits near −1, where its logarithm is of a small number.
pub(super) fn atanh(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

/// ln(x + √(x² − 1)), NaN below 1: there the root would cancel against x, or its square overflow.
pub(super) fn acosh(x: f64) -> f64 {
    if x < 1.0 {
        return f64::NAN;
    }
    if x > LARGE {
        return x.ln() + std::f64::consts::LN_2;
    }
    let t = x - 1.0;
    (t + (2.0 * t + t * t).sqrt()).ln_1p()
}

/// A function of two numbers.
#[inline]
pub(crate) fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        Binary::Max => max(a, b),
        Binary::Min => min(a, b),
        Binary::Rem => a % b,
        Binary::Mod => modulo(a, b),
        Binary::Atan2 => a.atan2(b),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => a,
    }
}
