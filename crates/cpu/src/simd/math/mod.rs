//! The elementwise functions, listed in `unary.rs`. Those of f32 are written without branches so that loops over them vectorise.
//!
//! Every function is within 4 ulp of the true value over all of f32, subnormals included; the polynomials are minimax fits.

mod activation;
pub(crate) mod double;
mod double_gates;
mod erf;
mod exponential;
mod logarithm;
#[cfg(test)]
mod tests;
mod trigonometric;
mod unary;

pub(crate) use activation::{
    celu, elu, gelu_tanh, hard_sigmoid, hard_swish, leaky_relu, log_sigmoid, mish, relu, selu, sigmoid, silu,
    softplus, softsign,
};
pub use double_gates::erf as erf_f64;
pub(crate) use erf::{erf, gelu};
pub(crate) use exponential::{exp, exp_below, expm1, tanh};
pub(crate) use logarithm::{log, log1p, log2};
pub(crate) use trigonometric::{cos_block, sin_block, tan_block};
pub(crate) use unary::{activation_f32, activation_f64, unary_f32, unary_f64};

use super::fma;

/// −1, 1, or x itself where it is zero or NaN.
#[inline(always)]
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// The larger; NaN if either is.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller; NaN if either is.
#[inline(always)]
pub(crate) fn min(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

/// x, but not below `low`; NaN stays. One instruction, unlike [`max`].
#[inline(always)]
fn at_least(x: f32, low: f32) -> f32 {
    if low > x { low } else { x }
}

/// x, but not above `high`; NaN stays.
#[inline(always)]
fn at_most(x: f32, high: f32) -> f32 {
    if high < x { high } else { x }
}

/// A polynomial by Horner's rule, the constant coefficient first.
#[inline(always)]
fn horner<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma::<FMA>(sum, x, c[i]);
    }
    sum
}

/// a·b as a rounded product and what the rounding lost.
#[inline(always)]
fn product_split<const FMA: bool>(a: f32, b: f32) -> (f32, f32) {
    let high = a * b;
    if FMA {
        (high, a.mul_add(b, -high))
    } else {
        let wide = f64::from(a) * f64::from(b);
        (high, (wide - f64::from(high)) as f32)
    }
}
