//! Sine, cosine, tangent and their inverses, and the hyperbolic functions, of f64.

use olivine_kernel::{Scalar, Val};

use super::bits::not_finite;
use super::double::{bits, copysign, exp_parts, expm1, log, log1p, word};
use super::single::{at_most, horner};
use super::{is_inf, is_nan, pick};

/// π/2 in parts of 33 bits, whose products with integers below 2²⁰ are exact, and the rest.
const HALF_PI: [f64; 4] = [
    1.570_796_326_734_125_6,
    6.077_100_506_303_966e-11,
    2.022_266_248_711_166_5e-21,
    8.478_427_660_368_9e-32,
];
/// Up to here those parts reduce an argument.
const LARGE: f64 = 1e6;

/// (sin r / r − 1) / r² and (cos r − 1 + r²/2) / r⁴ in r², on |r| ≤ π/4.
const SIN: [f64; 7] = [
    -0.166_666_666_666_666_66,
    0.008_333_333_333_333_331,
    -0.000_198_412_698_412_650_17,
    2.755_731_921_930_193_6e-6,
    -2.505_210_621_952_836_7e-8,
    1.605_852_957_329_173_7e-10,
    -7.586_576_648_405_261e-13,
];
const COS: [f64; 7] = [
    0.041_666_666_666_666_664,
    -0.001_388_888_888_888_888_7,
    2.480_158_730_158_461_8e-5,
    -2.755_731_922_138_212_5e-7,
    2.087_675_578_389_763_6e-9,
    -1.147_045_975_024_485_3e-11,
    4.745_804_923_249_84e-14,
];

/// The bits of 2/π after the point, behind two words of zeros.
const TWO_OVER_PI: [u32; 42] = [
    0,
    0,
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
    0xdebb_c561,
    0xb724_6e3a,
    0x424d_d2e0,
    0x0649_2eea,
    0x09d1_921c,
    0xfe1d_eb1c,
    0xb129_a73e,
    0xe882_35f5,
    0x2ebb_4484,
    0xe99c_7026,
    0xb45f_7e41,
    0x3991_d639,
    0x8353_39f4,
    0x9c84_5f8b,
    0xbdf9_283b,
    0x1ff8_97ff,
    0xde05_980f,
    0xef2f_118b,
    0x5a0a_6d1f,
    0x6d36_7ecf,
    0x27cb_09b7,
    0x4f46_3f66,
    0x9e5f_ea2d,
    0x7527_bac7,
    0xebe5_f17b,
    0x3d07_39f7,
    0x8a52_92ea,
    0x6bfb_5fb1,
    0x1f8d_5d08,
    0x5603_3046,
    0xfc7b_6bab,
    0xf0cf_bc20,
    0x9af4_361d,
];

/// x = q·π/2 + r: sine and cosine of r, and q's two low bits.
fn reduced(x: Val<'_>) -> (Val<'_>, Val<'_>, Val<'_>) {
    let k = x.builder();
    let (rest, quadrant) = (k.var(x), k.var(k.u32(0)));
    k.if_else(
        x.abs().lt(LARGE),
        || {
            let n = (x * std::f64::consts::FRAC_2_PI).round_even();
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
    let half = square * 0.5;
    let one = (r.like(1.0) - half).opaque();
    let lost = ((r.like(1.0) - one).opaque() - half).opaque();
    let cosine = one + (lost + square * square * horner(square, &COS));
    (sine, cosine, quadrant.get())
}

/// The quadrant and the rest of a large argument, by its product with as many bits of 2/π as matter (Payne and Hanek).
fn reduce_large<'k>(x: Val<'k>) -> (Val<'k>, Val<'k>) {
    let k = x.builder();
    let b = bits(x);
    let low = b.convert(Scalar::U32);
    let high = ((b >> 32).convert(Scalar::U32) & 0x000f_ffff) | 0x0010_0000;
    // Bits of 2/π worth 4 or more in the product do not matter.
    let offset = ((b >> 52).convert(Scalar::U32) & 2047) - (1075 + 2 - 64);
    let shift = offset & 31;
    // Seven words from word offset/32 on, by halving steps.
    let mut words: Vec<Val<'_>> = TWO_OVER_PI.iter().map(|w| k.u32(*w)).collect();
    for step in [32, 16, 8, 4, 2, 1usize] {
        let taken = (offset & (32 * step as u32)).ne(0);
        let left = words.len().min(6 + step);
        words = (0..left)
            .map(|i| words.get(i + step).map_or(words[i], |far| taken.select(*far, words[i])))
            .collect();
    }
    let window: Vec<Val<'_>> =
        words.windows(2).take(6).map(|w| (w[0] << shift) | ((w[1] >> 1) >> (k.u32(31) - shift))).collect();
    // The product modulo 4 in five words, the highest first; two bits are before the point.
    let zero = word(x, 0);
    let wide = |v: Val<'k>| v.convert(Scalar::U64);
    let mut carry = zero;
    let mut product = Vec::new();
    for i in (0..5).rev() {
        let near = wide(low) * wide(window[i]);
        let far = wide(high) * wide(window[i + 1]);
        let mask = word(x, 0xffff_ffff);
        let mut sum = (near & mask) + carry;
        let mut over = (near >> 32) + (sum >> 32);
        sum = (sum & mask) + (far & mask);
        over = over + (far >> 32) + (sum >> 32);
        product.push(sum.convert(Scalar::U32));
        carry = over;
    }
    let [d, c, b2, a] = [product[1], product[2], product[3], product[4]];
    let quadrant = (a + 0x2000_0000) >> 30;
    let a = a - (quadrant << 30);
    let negative = a.ge(0x8000_0000u32);
    let turn = negative.select(k.u32(u32::MAX), k.u32(0));
    // The complement is one unit of the last word too small, far below what matters.
    let part = |w: Val<'k>, scale: i32| (w ^ turn).convert(Scalar::F64) * 2f64.powi(scale);
    let turns = ((part(d, -126) + part(c, -94)) + part(b2, -62)) + part(a, -30);
    let r = turns * std::f64::consts::FRAC_PI_2;
    let backward = x.lt(0.0);
    let r = negative.ne(backward).select(-r, r);
    let q = backward.select(k.u32(0) - quadrant, quadrant);
    (q, r)
}

fn turned<'k>(y: Val<'k>, quadrant: Val<'k>) -> Val<'k> {
    (quadrant & 2).ne(0).select(-y, y)
}

/// sin x.
pub(super) fn sin(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    let y = turned((q & 1).eq(0).select(s, c), q);
    pick(not_finite(x), x.like(f64::NAN), x.eq(0.0).select(x, y))
}

/// cos x.
pub(super) fn cos(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    pick(not_finite(x), x.like(f64::NAN), turned((q & 1).eq(0).select(c, s), q + 1))
}

/// tan x.
pub(super) fn tan(x: Val<'_>) -> Val<'_> {
    let (s, c, q) = reduced(x);
    let even = (q & 1).eq(0);
    let y = x.eq(0.0).select(x, even.select(s, -c) / even.select(c, s));
    pick(not_finite(x), x.like(f64::NAN), y)
}

/// (atan t / t − 1) / t² in t², on 0 ≤ t ≤ √2 − 1.
const ATAN: [f64; 12] = [
    -0.333_333_333_333_333_3,
    0.199_999_999_999_998,
    -0.142_857_142_856_593_26,
    0.111_111_111_051_067_05,
    -0.090_909_087_510_766_36,
    0.076_922_963_049_744_7,
    -0.066_664_236_280_692_58,
    0.058_789_145_444_006_215,
    -0.052_303_478_730_160_745,
    0.045_511_081_263_251_72,
    -0.034_558_092_551_413_795,
    0.016_271_944_751_624_06,
];
const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;

fn atan_below_one(t: Val<'_>) -> Val<'_> {
    let steep = t.gt(std::f64::consts::SQRT_2 - 1.0);
    let t = steep.select((t - 1.0) / (t + 1.0), t);
    let square = t * t;
    let p = (t * square).fma(horner(square, &ATAN), t);
    steep.select((p + 0.5 * HALF_PI_LOW) + std::f64::consts::FRAC_PI_4, p)
}

/// n·π/2 − p.
fn quarter_turns_less(n: f64, p: Val<'_>) -> Val<'_> {
    p.like(n * std::f64::consts::FRAC_PI_2) - (p - n * HALF_PI_LOW)
}

/// atan x.
pub(super) fn atan(x: Val<'_>) -> Val<'_> {
    let t = x.abs();
    let big = t.gt(1.0);
    let p = atan_below_one(big.select(t.like(1.0) / t, t));
    copysign(big.select(quarter_turns_less(1.0, p), p), x)
}

/// The angle of the point (x, y).
pub(super) fn atan2<'k>(y: Val<'k>, x: Val<'k>) -> Val<'k> {
    let (ay, ax) = (y.abs(), x.abs());
    let steep = ay.gt(ax);
    let (less, more) = (steep.select(ax, ay), steep.select(ay, ax));
    let t = more.eq(0.0).select(more, less / more);
    let t = is_inf(less).select(y.like(1.0), t);
    let p = atan_below_one(t);
    let p = steep.select(quarter_turns_less(1.0, p), p);
    let left = bits(x).ge(word(x, 1 << 63));
    let p = left.select(quarter_turns_less(2.0, p), p);
    pick(is_nan(x) | is_nan(y), x.like(f64::NAN), copysign(p, y))
}

/// (asin s / s − 1) / s² in s², on 0 ≤ s ≤ ½.
const ASIN: [f64; 14] = [
    0.166_666_666_666_666_66,
    0.075_000_000_000_001_22,
    0.044_642_857_142_543_26,
    0.030_381_944_476_347_046,
    0.022_372_157_403_736_85,
    0.017_352_817_690_741_04,
    0.013_963_758_735_074_137,
    0.011_566_722_371_197_13,
    0.009_619_629_203_687_472,
    0.009_332_327_156_165_665,
    0.002_995_311_657_156_326,
    0.019_678_367_430_162,
    -0.019_421_498_763_363_36,
    0.029_727_286_869_498_975,
];

/// asin |x| where |x| ≤ ½, else asin √((1 − |x|)/2), and which of the two.
fn asin_parts(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let t = x.abs();
    let big = t.gt(0.5);
    let half = (t.like(1.0) - t) * 0.5;
    let square = big.select(half, t * t);
    let s = big.select(half.sqrt(), t);
    let p = (s * square).fma(horner(square, &ASIN), s);
    (p, big)
}

/// asin x.
pub(super) fn asin(x: Val<'_>) -> Val<'_> {
    let (p, big) = asin_parts(x);
    let y = copysign(big.select(quarter_turns_less(1.0, p * 2.0), p), x);
    pick(x.abs().gt(1.0), x.like(f64::NAN), y)
}

/// acos x.
pub(super) fn acos(x: Val<'_>) -> Val<'_> {
    let (p, big) = asin_parts(x);
    let twice = p * 2.0;
    let far = x.lt(0.0).select(quarter_turns_less(2.0, twice), twice);
    let y = big.select(far, quarter_turns_less(1.0, copysign(p, x)));
    pick(x.abs().gt(1.0), x.like(f64::NAN), y)
}

/// e^|x| / 2.
fn half_exp(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_most(x.abs(), 712.0), None);
    (m + 1.0) * s * (t * 0.5)
}

/// sinh x.
pub(super) fn sinh(x: Val<'_>) -> Val<'_> {
    let e = expm1(at_most(x.abs(), 40.0));
    let near = (e + e / (e + 1.0)) * 0.5;
    copysign(x.abs().gt(40.0).select(half_exp(x), near), x)
}

/// cosh x.
pub(super) fn cosh(x: Val<'_>) -> Val<'_> {
    let h = half_exp(x);
    h + h.like(0.25) / h
}

/// ln 2x, for x so large that 1 does not matter beside its square.
fn log_twice(x: Val<'_>) -> Val<'_> {
    log(x) + std::f64::consts::LN_2
}

/// asinh x.
pub(super) fn asinh(x: Val<'_>) -> Val<'_> {
    let a = at_most(x.abs(), 1e9);
    let square = a * a;
    let near = log1p(a + square / ((square + 1.0).sqrt() + 1.0));
    copysign(x.abs().gt(1e9).select(log_twice(x.abs()), near), x)
}

/// acosh x.
pub(super) fn acosh(x: Val<'_>) -> Val<'_> {
    let t = at_most(x, 1e9) - 1.0;
    let y = x.gt(1e9).select(log_twice(x), log1p(t + (t * 2.0 + t * t).sqrt()));
    pick(x.lt(1.0), x.like(f64::NAN), y)
}

/// atanh x.
pub(super) fn atanh(x: Val<'_>) -> Val<'_> {
    let t = x.abs();
    copysign(log1p(t * 2.0 / (t.like(1.0) - t)) * 0.5, x)
}
