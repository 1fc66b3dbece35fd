//! The error function, and numbers times a gate that vanishes below zero, in f64.
//!
//! A gate's exponential comes last and in two equal factors, so that a denormal result is rounded once.

/// erf(x) / x in x², on |x| ≤ 1.
const ERF: [f64; 14] = [
    std::f64::consts::FRAC_2_SQRT_PI,
    -0.376_126_389_031_837_54,
    0.112_837_916_709_551_2,
    -0.026_866_170_645_129_84,
    0.005_223_977_625_423_298_5,
    -0.000_854_832_702_193_483,
    0.000_120_553_329_028_887_36,
    -1.492_564_756_751_933_2e-5,
    1.646_204_544_146_841_8e-6,
    -1.636_464_215_816_761_6e-7,
    1.479_240_120_940_481_3e-8,
    -1.216_456_005_728_345e-9,
    8.709_045_129_053_106e-11,
    -4.230_945_824_295_338e-12,
];

/// (t + 2) · e^(t²) · erfc(t) in (t − 2) / (t + 2), on ½ ≤ t ≤ 28.
const TAIL: [f64; 24] = [
    1.021_582_705_242_023,
    -0.687_160_684_413_810_6,
    0.279_472_092_556_054_76,
    -0.036_442_231_506_879_54,
    -0.021_510_661_889_496_39,
    0.006_479_185_067_779_268_5,
    0.003_090_612_059_752_824,
    -0.000_837_296_063_701_817_9,
    -0.000_663_073_517_487_633_7,
    3.437_145_643_712_586e-5,
    0.000_144_470_883_528_247_42,
    3.414_868_108_309_541e-5,
    -2.169_707_000_758_339_5e-5,
    -1.611_938_469_391_874e-5,
    -1.122_435_303_341_108e-6,
    3.636_520_198_728_641_5e-6,
    1.995_650_219_471_454_5e-6,
    2.457_528_949_164_909_4e-8,
    -5.674_211_992_378_913e-7,
    -3.682_254_945_058_599_6e-7,
    7.820_683_692_298_966e-9,
    1.596_030_867_863_969e-7,
    3.152_245_628_446_557_5e-8,
    -3.616_431_223_951_816e-8,
];

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
pub(crate) fn erf(x: f64) -> f64 {
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
