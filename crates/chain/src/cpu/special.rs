//! ln |Γ| and its derivatives in f64: recurrence to large arguments and Stirling's series there.

use std::f64::consts::PI;

/// Coefficients of 1/x, 1/x³, … in ln Γ(x) − ((x − ½) ln x − x + ½ ln 2π): B₂ₙ / (2n (2n − 1)).
pub(crate) const LGAMMA: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 360.0,
    1.0 / 1260.0,
    -1.0 / 1680.0,
    1.0 / 1188.0,
    -691.0 / 360_360.0,
    1.0 / 156.0,
    -3617.0 / 122_400.0,
];
/// Coefficients of 1/x², 1/x⁴, … in ln x − 1/(2x) − ψ(x): B₂ₙ / 2n.
pub(crate) const DIGAMMA: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 120.0,
    1.0 / 252.0,
    -1.0 / 240.0,
    1.0 / 132.0,
    -691.0 / 32_760.0,
    1.0 / 12.0,
    -3617.0 / 8160.0,
];
/// Coefficients of 1/x³, 1/x⁵, … in ψ′(x) − 1/x − 1/(2x²): B₂ₙ.
pub(crate) const TRIGAMMA: [f64; 8] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
];
/// ½ ln 2π.
pub(crate) const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_8;
/// Steps of the recurrence: from [½, 1½) on, the series is exact to f64 after so many.
pub(crate) const STEPS: u32 = 9;

fn horner(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// ln |Γ(x)|.
pub(crate) fn lgamma(x: f64) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return x;
    }
    if x < 0.5 {
        if x == x.floor() {
            return f64::INFINITY;
        }
        // Reflection; the sine's argument is reduced before π rounds it.
        let sin = (PI * (x - x.round())).sin().abs();
        return (PI / sin).ln() - lgamma(1.0 - x);
    }
    let (mut x, mut product) = (x, 1.0);
    while x < f64::from(STEPS) {
        product *= x;
        x += 1.0;
    }
    let inverse = 1.0 / x;
    (x - 0.5) * x.ln() - x + HALF_LOG_TAU + inverse * horner(inverse * inverse, &LGAMMA) - product.ln()
}

/// (ln Γ)′(x).
pub(crate) fn digamma(x: f64) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return x;
    }
    if x < 0.5 {
        if x == x.floor() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI / (PI * (x - x.round())).tan();
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < f64::from(STEPS) {
        sum += 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    x.ln() - 0.5 / x - square * horner(square, &DIGAMMA) - sum
}

/// (ln Γ)″(x).
pub(crate) fn trigamma(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x == f64::INFINITY {
        return 0.0;
    }
    if x < 0.5 {
        if x == x.floor() {
            return f64::INFINITY;
        }
        let sin = (PI * (x - x.round())).sin();
        return (PI / sin) * (PI / sin) - trigamma(1.0 - x);
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < f64::from(STEPS) {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    inverse + 0.5 * square + inverse * square * horner(square, &TRIGAMMA) + sum
}
