//! The error function to the last digits of f64.

use std::f64::consts::PI;

/// erf(x), within a few units of the last place.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() < 1.0 {
        series(x)
    } else if x > 0.0 {
        1.0 - erfc(x)
    } else {
        erfc(-x) - 1.0
    }
}

/// 1 − erf(x), with relative accuracy far into the tail.
pub fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x < 0.5 {
        1.0 - erf(x)
    } else if x > 27.5 {
        0.0
    } else {
        continued_fraction(x)
    }
}

/// 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1)): every term has one sign, so nothing cancels.
fn series(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    for n in 1..200 {
        term *= 2.0 * x * x / (2 * n + 1) as f64;
        sum += term;
        if term.abs() <= sum.abs() * 1e-18 {
            break;
        }
    }
    2.0 / PI.sqrt() * exp_minus_square(x) * sum
}

/// e^(−x²)/√π times Laplace's continued fraction.
fn continued_fraction(x: f64) -> f64 {
    exp_minus_square(x) / PI.sqrt() / (x + laplace(x))
}

/// Laplace's continued fraction behind its leading x, evaluated from the back.
fn laplace(x: f64) -> f64 {
    let mut tail = 0.0;
    // It converges like e^(−2x·√(2n)).
    for n in (1..=(400.0 / (x * x)) as usize + 40).rev() {
        tail = n as f64 / 2.0 / (x + tail);
    }
    tail
}

/// x·Φ(x), with relative accuracy as far as f64 goes: the exponent of the tail is x²/2 without a rounding, and the
/// exponential comes last, in two parts, so that a denormal result is rounded once.
pub fn times_normal_below(x: f64) -> f64 {
    let t = -x;
    if x.is_nan() || t < 0.75 {
        return x * 0.5 * erfc(t * std::f64::consts::FRAC_1_SQRT_2);
    }
    if t > 39.0 {
        return -0.0;
    }
    let square = t * t;
    let lost = t.mul_add(t, -square);
    let part = (-0.25 * square).exp();
    let u = t * std::f64::consts::FRAC_1_SQRT_2;
    x * 0.5 / PI.sqrt() / (u + laplace(u)) * (1.0 - 0.5 * lost) * part * part
}

/// x·sigmoid(z), where z = 2·√(2/π)·(x + 0.044715·x³) is taken with twice the digits: e^z has as many wrong ones as z has
/// digits before the point.
pub fn times_sigmoid_of_cubic(x: f64) -> f64 {
    const SCALE: f64 = 1.595_769_121_605_730_8;
    const SCALE_LOW: f64 = -9.969_308_809_110_92e-17;
    const CUBIC: f64 = 0.044715;
    if x.is_nan() {
        return x;
    }
    if x.abs() > 50.0 {
        return if x > 0.0 { x } else { -0.0 };
    }
    let product = |a: f64, b: f64| (a * b, a.mul_add(b, -(a * b)));
    let (square, square_low) = product(x, x);
    let (cube, cube_low) = product(square, x);
    let (term, term_low) = product(cube, CUBIC);
    let term_low = term_low + (cube_low + square_low * x) * CUBIC;
    // |x| and the term in either order: Knuth's sum.
    let sum = x + term;
    let back = sum - x;
    let sum_low = (x - (sum - back)) + (term - back) + term_low;
    let (z, z_low) = product(sum, SCALE);
    let z_low = z_low + sum_low * SCALE + sum * SCALE_LOW;
    gated(x, z, z_low)
}

/// x·sigmoid(z + low), the exponential last and in two parts where it is small.
pub fn gated(x: f64, z: f64, low: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return -0.0;
    }
    if z >= 0.0 {
        return x / (1.0 + (-z).exp() * (1.0 - low));
    }
    let part = (0.5 * z).exp();
    x * (1.0 + low) / (1.0 + z.exp() * (1.0 + low)) * part * part
}

/// e^(−x²) with the rounding of x² made good.
fn exp_minus_square(x: f64) -> f64 {
    let square = x * x;
    let lost = x.mul_add(x, -square);
    (-square).exp() * (-lost).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_and_erfc_agree_with_tabulated_digits() {
        // Abramowitz & Stegun / mpmath, 17 digits.
        let erf_table = [
            (0.0, 0.0),
            (0.1, 0.11246291601828489),
            (0.5, 0.5204998778130465),
            (1.0, 0.8427007929497149),
            (1.9, 0.9927904292352575),
            (2.5, 0.999593047982555),
            (-0.75, -0.7111556336535151),
        ];
        for (x, want) in erf_table {
            assert!((erf(x) - want).abs() <= 2e-16 * 8.0, "erf({x}) = {} not {want}", erf(x));
        }
        let erfc_table = [
            (0.5, 0.4795001221869535),
            (1.0, 0.15729920705028513),
            (2.0, 0.004677734981047266),
            (3.0, 2.209049699858544e-05),
            (5.0, 1.537459794428035e-12),
            (10.0, 2.088487583762545e-45),
            (20.0, 5.3958656116079005e-176),
        ];
        // mpmath, 17 digits: where an exponent rounded to f64 would leave 13 of them.
        let gates_table = [
            (-0.3, -0.1146265733433142, -0.11462907645724076, -0.1276672449565023),
            (-1.0, -0.15865525393145705, -0.1588080093917233, -0.2689414213699951),
            (-2.0, -0.04550026389635842, -0.04540230591222498, -0.23840584404423512),
            (-5.5, -1.0444259356238245e-07, -5.927640263880266e-09, -0.0223857574374287),
            (-9.25, -1.0382786071978384e-19, -1.069637326414868e-30, -0.000888947343370134),
            (-18.5, -1.9098842575692086e-75, -1.7191031718660716e-208, -1.7089281716784222e-07),
            (-21.0, -6.886483839855976e-97, -6.01664848763168e-301, -1.5923376886541006e-08),
            (-31.75, -5.040686946560373e-220, -0.0, -5.162902566661492e-13),
            (-37.0, -2.1184613523340935e-298, -0.0, -3.1572276215253042e-15),
            (-38.2, -5.378646e-318, -0.0, -9.817799399508908e-16),
            (-700.25, -0.0, -0.0, -5.377026350130888e-302),
            (-740.5, -0.0, -0.0, -1.8813e-319),
        ];
        for (x, gelu, gelu_tanh, silu) in gates_table {
            for (what, got, want) in [
                ("gelu", times_normal_below(x), gelu),
                ("gelu_tanh", times_sigmoid_of_cubic(x), gelu_tanh),
                ("silu", gated(x, x, 0.0), silu),
            ] {
                assert!(
                    (got - want).abs() <= 1e-15 * want.abs() + 1e-323,
                    "{what}({x}) = {got:e} not {want:e}"
                );
            }
        }
        for (x, want) in erfc_table {
            assert!((erfc(x) / want - 1.0).abs() <= 4e-15, "erfc({x}) = {} not {want}", erfc(x));
        }
    }
}
