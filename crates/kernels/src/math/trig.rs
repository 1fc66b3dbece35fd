//! Sine, cosine, tangent and their inverses, and the hyperbolic functions, of f32.

use olivine_kernel::{Scalar, Val};

use super::bits::{
    INFINITY, absolute, bits, copysign, float, is_nan, magnitude, nan, negative, not_finite, one_if, pick,
};
use super::exact::{div, div_near, sqrt};
use super::single::{at_most, exp_parts, expm1, horner, linear_below, log, log1p};

/// π/2 in parts of twelve bits, whose products with integers below 4096 are exact, and the rest.
const HALF_PI: [f32; 4] = [1.5703125, 0.000_483_751_3, 7.549_533_6e-8, 2.563_344e-12];
/// Below here sin x, tan x and their inverses are x to the last bit.
const SMALL: f32 = 1.220_703_1e-4;

/// Up to here those parts reduce an argument.
const LARGE: f32 = 6000.0;

/// The bits of 2/π after the point.
const TWO_OVER_PI: [u32; 7] =
    [0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// (sin r / r − 1) / r² and (cos r − 1 + r²/2) / r⁴ in r², on |r| ≤ π/4.
const SIN: [f32; 4] = [-0.166_666_67, 0.008_333_332, -0.000_198_400_83, 2.724_931_4e-6];
const COS: [f32; 3] = [0.041_666_664, -0.001_388_83, 2.454_743_7e-5];

/// x = q·π/2 + r: sine and cosine of r, and q's two low bits.
fn reduced(x: Val<'_>) -> (Val<'_>, Val<'_>, Val<'_>) {
    let k = x.builder();
    let (rest, quadrant) = (k.var(x), k.var(k.u32(0)));
    k.if_else(
        magnitude(x).lt(LARGE.to_bits()),
        || {
            let n = (x * std::f32::consts::FRAC_2_PI).round_even();
            rest.set(HALF_PI.iter().fold(x, |r, part| n.fma(-*part, r).opaque()));
            quadrant.set(n.convert(Scalar::I32).bitcast(Scalar::U32));
        },
        || {
            let (q, r) = reduce_large(x);
            rest.set(r);
            quadrant.set(q);
        },
    );
    let r = rest.get();
    let square = r * r;
    let sine = (r * square).fma(horner(square, &SIN), r);
    let cosine = (square * square).fma(horner(square, &COS), square.fma(-0.5, 1.0));
    (sine, cosine, quadrant.get())
}

/// The quadrant and the rest of a large argument, by its product with as many bits of 2/π as matter (Payne and Hanek).
fn reduce_large(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let k = x.builder();
    let b = bits(x);
    let significand = (b & 0x007f_ffff) | 0x0080_0000;
    // Bits of 2/π worth 4 or more in the product do not matter; the list begins with a word of zeros.
    let offset = ((b >> 23) & 255) - 120;
    let (word, shift) = (offset >> 5, offset & 31);
    let window = |i: usize| {
        let at = |j: usize| match j {
            0 => 0,
            j => TWO_OVER_PI.get(j - 1).copied().unwrap_or(0),
        };
        (1..5).fold(k.u32(at(i)), |w, j| word.eq(j).select(k.u32(at(i + j)), w))
    };
    let raw = [window(0), window(1), window(2), window(3)];
    let aligned = |i: usize| (raw[i] << shift) | ((raw[i + 1] >> 1) >> (k.u32(31) - shift));
    let (top, middle, bottom) = (aligned(0), aligned(1), aligned(2));
    // The product modulo 4, two bits before the point.
    let middle_low = significand * middle;
    let low = middle_low + significand.mul_high(bottom);
    let high = significand * top + significand.mul_high(middle) + one_if(low.lt(middle_low));
    let quadrant = (high + 0x2000_0000) >> 30;
    let high = high - (quadrant << 30);
    let minus = high.ge(0x8000_0000u32);
    let turn = minus.select(k.u32(u32::MAX), k.u32(0));
    let low = (low ^ turn) + one_if(minus);
    let high = (high ^ turn) + one_if(minus & low.eq(0));
    let turns = high.convert(Scalar::F32) * 2f64.powi(-30) + low.convert(Scalar::F32) * 2f64.powi(-62);
    let sign = minus.select(k.u32(0x8000_0000), k.u32(0));
    let r = float(bits(turns * std::f32::consts::FRAC_PI_2) | sign);
    // The angle of −x is the mirrored one.
    let backward = b.ge(0x8000_0000u32);
    let r = backward.select(negative(r), r);
    let q = backward.select(k.u32(0) - quadrant, quadrant);
    (q, r)
}

/// Negates where the second lowest bit of the quadrant is set.
fn turned<'k>(y: Val<'k>, quadrant: Val<'k>) -> Val<'k> {
    float(bits(y) ^ ((quadrant & 2) << 30))
}

/// sin x.
pub(super) fn sin(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    let y = turned((q & 1).eq(0).select(s, c), q);
    pick(not_finite(x), nan(x), linear_below(x, SMALL, y))
}

/// cos x.
pub(super) fn cos(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    pick(not_finite(x), nan(x), turned((q & 1).eq(0).select(c, s), q + 1))
}

/// tan x.
pub(super) fn tan(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    let even = (q & 1).eq(0);
    let y = div_near(even.select(s, -c), even.select(c, s));
    pick(not_finite(x), nan(x), linear_below(x, SMALL, y))
}

/// (atan t / t − 1) / t² in t², on 0 ≤ t ≤ 1.
const ATAN: [f32; 10] = [
    -0.333_333_34,
    0.199_999_5,
    -0.142_840_04,
    0.110_882_62,
    -0.089_318_27,
    0.070_319_146,
    -0.048_960_514,
    0.026_305_001,
    -0.009_144_629,
    0.001_488_691_9,
];
const HALF_PI_LOW: f32 = -4.371_139e-8;

fn atan_below_one(t: Val<'_>) -> Val<'_> {
    let square = t * t;
    linear_below(t, SMALL, (t * square).fma(horner(square, &ATAN), t))
}

/// n·π/2 − p.
fn quarter_turns_less(n: f64, p: Val<'_>) -> Val<'_> {
    (p.like(n * f64::from(std::f32::consts::FRAC_PI_2)) - p) + n * f64::from(HALF_PI_LOW)
}

/// atan x.
pub(super) fn atan(x: Val<'_>) -> Val<'_> {
    let t = at_most(absolute(x), 1e15);
    let big = t.gt(1.0);
    let p = atan_below_one(big.select(div_near(t.like(1.0), t.gt(1.0).select(t, t.like(1.0))), t));
    linear_below(x, SMALL, copysign(big.select(quarter_turns_less(1.0, p), p), x))
}

/// The angle of the point (x, y).
pub(super) fn atan2<'k>(y: Val<'k>, x: Val<'k>) -> Val<'k> {
    let (ay, ax) = (magnitude(y), magnitude(x));
    let steep = ay.gt(ax);
    let (less, more) = (steep.select(ax, ay), steep.select(ay, ax));
    let t = div(float(less), float(more));
    let t = more.eq(0).select(y.like(0.0), t);
    let t = less.eq(INFINITY).select(y.like(1.0), t);
    let p = atan_below_one(t);
    let p = steep.select(quarter_turns_less(1.0, p), p);
    let p = (bits(x) >> 31).ne(0).select(quarter_turns_less(2.0, p), p);
    pick(is_nan(x) | is_nan(y), nan(x), copysign(p, y))
}

/// (asin s / s − 1) / s² in s², on 0 ≤ s ≤ ½.
const ASIN: [f32; 6] = [0.166_666_66, 0.075_000_96, 0.044_598_99, 0.031_106, 0.017_121_587, 0.033_740_282];

/// The bits of 1.
const ONE: u32 = 0x3f80_0000;

/// asin |x| where |x| ≤ ½, else asin √((1 − |x|)/2), and which of the two.
fn asin_parts(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let t = absolute(x);
    let big = t.gt(0.5);
    let half = (t.like(1.0) - t) * 0.5;
    let square = big.select(half, t * t);
    let s = big.select(sqrt(half), t);
    ((s * square).fma(horner(square, &ASIN), s), big)
}

/// asin x.
pub(super) fn asin(x: Val<'_>) -> Val<'_> {
    let (p, big) = asin_parts(x);
    let y = copysign(big.select(quarter_turns_less(1.0, p * 2.0), p), x);
    pick(magnitude(x).gt(ONE), nan(x), linear_below(x, SMALL, y))
}

/// acos x.
pub(super) fn acos(x: Val<'_>) -> Val<'_> {
    let (p, big) = asin_parts(x);
    let twice = p * 2.0;
    let far = x.lt(0.0).select(quarter_turns_less(2.0, twice), twice);
    let y = big.select(far, quarter_turns_less(1.0, copysign(p, x)));
    pick(magnitude(x).gt(ONE), nan(x), y)
}

/// e^|x| / 2.
fn half_exp(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_most(absolute(x), 91.0), None);
    (m + 1.0) * s * (t * 0.5)
}

/// sinh x.
pub(super) fn sinh(x: Val<'_>) -> Val<'_> {
    let e = expm1(at_most(absolute(x), 20.0));
    let near = (e + div_near(e, e + 1.0)) * 0.5;
    linear_below(x, SMALL, copysign(absolute(x).gt(20.0).select(half_exp(x), near), x))
}

/// cosh x.
pub(super) fn cosh(x: Val<'_>) -> Val<'_> {
    let h = half_exp(x);
    h + h.like(0.25) / h
}

/// ln 2x, for x so large that 1 does not matter beside its square.
fn log_twice(x: Val<'_>) -> Val<'_> {
    log(x) + std::f32::consts::LN_2
}

/// asinh x.
pub(super) fn asinh(x: Val<'_>) -> Val<'_> {
    let a = at_most(absolute(x), 1e9);
    let square = a * a;
    let near = log1p(a + div_near(square, sqrt(square + 1.0) + 1.0));
    let t = absolute(x);
    linear_below(x, SMALL, copysign(t.gt(1e9).select(log_twice(t), near), x))
}

/// acosh x.
pub(super) fn acosh(x: Val<'_>) -> Val<'_> {
    let t = at_most(x, 1e9) - 1.0;
    let y = x.gt(1e9).select(log_twice(x), log1p(t + sqrt(t * 2.0 + t * t)));
    pick(x.lt(1.0), nan(x), y)
}

/// atanh x.
pub(super) fn atanh(x: Val<'_>) -> Val<'_> {
    let t = absolute(x);
    let y = log1p(div(t * 2.0, t.like(1.0) - t)) * 0.5;
    linear_below(x, SMALL, copysign(y, x))
}
