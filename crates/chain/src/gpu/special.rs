//! ln |Γ| and its derivatives in the kernel language, as the CPU computes them.

use std::f64::consts::PI;

use olivine_ir::op::{Binary, Unary};
use olivine_kernel::{CompareOp, Val};
use olivine_kernels::float;

use crate::cpu::special::{DIGAMMA, HALF_LOG_TAU, LGAMMA, STEPS, TRIGAMMA};

fn log(x: Val<'_>) -> Val<'_> {
    float::unary(Unary::Log, x)
}

fn div<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    float::binary(Binary::Div, a, b)
}

fn horner<'k>(x: Val<'k>, coefficients: &[f64]) -> Val<'k> {
    let mut sum = x.like(0.0);
    for c in coefficients.iter().rev() {
        sum = sum * x + x.like(*c);
    }
    sum
}

/// The argument above ½ that `x` is reflected to, whether it is, and x less the nearest integer.
fn reflected(x: Val<'_>) -> (Val<'_>, Val<'_>, Val<'_>) {
    let below = float::compare(CompareOp::Lt, x, x.like(0.5));
    (below, float::pick(below, x.like(1.0) - x, x), x - x.round_even())
}

/// Raises an argument above ½ to where the series holds; `step` takes each argument passed.
fn raised<'k>(x: Val<'k>, first: Val<'k>, step: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> (Val<'k>, Val<'k>) {
    let (mut x, mut passed) = (x, first);
    for _ in 0..STEPS {
        let small = float::compare(CompareOp::Lt, x, x.like(f64::from(STEPS)));
        passed = float::pick(small, step(passed, x), passed);
        x = float::pick(small, x + x.like(1.0), x);
    }
    (x, passed)
}

/// ln |Γ(x)|.
pub(super) fn lgamma(x: Val<'_>) -> Val<'_> {
    let (below, above, rest) = reflected(x);
    let (large, product) = raised(above, x.like(1.0), |product, x| product * x);
    let inverse = div(x.like(1.0), large);
    let series = (large - x.like(0.5)) * log(large) - large
        + x.like(HALF_LOG_TAU)
        + inverse * horner(inverse * inverse, &LGAMMA)
        - log(product);
    // The difference of two infinities is none.
    let infinite = float::compare(CompareOp::Eq, large, large + large);
    let value = float::pick(infinite, large, series);
    let sin = float::unary(Unary::Abs, float::unary(Unary::Sin, rest * x.like(PI)));
    let reflection = log(div(x.like(PI), sin)) - value;
    float::pick(below, reflection, value)
}

/// (ln Γ)′(x).
pub(super) fn digamma(x: Val<'_>) -> Val<'_> {
    let (below, above, rest) = reflected(x);
    let (large, sum) = raised(above, x.like(0.0), |sum, x| sum + div(x.like(1.0), x));
    let inverse = div(x.like(1.0), large);
    let square = inverse * inverse;
    let value = log(large) - inverse * x.like(0.5) - square * horner(square, &DIGAMMA) - sum;
    let angle = rest * x.like(PI);
    let tan = div(float::unary(Unary::Sin, angle), float::unary(Unary::Cos, angle));
    let reflection = value - div(x.like(PI), tan);
    let pole = below & float::compare(CompareOp::Eq, rest, x.like(0.0));
    float::pick(pole, x.like(f64::NAN), float::pick(below, reflection, value))
}

/// (ln Γ)″(x).
pub(super) fn trigamma(x: Val<'_>) -> Val<'_> {
    let (below, above, rest) = reflected(x);
    let (large, sum) = raised(above, x.like(0.0), |sum, x| sum + div(x.like(1.0), x * x));
    let inverse = div(x.like(1.0), large);
    let square = inverse * inverse;
    let value = inverse + square * x.like(0.5) + inverse * square * horner(square, &TRIGAMMA) + sum;
    let part = div(x.like(PI), float::unary(Unary::Sin, rest * x.like(PI)));
    float::pick(below, part * part - value, value)
}
