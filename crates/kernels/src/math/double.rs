//! Functions of f64 out of sums, products, quotients, roots and integers: devices have no others.
//!
//! Sums, products, quotients and roots of f64 are taken for correctly rounded; an fma need not be fused.

use olivine_kernel::{Scalar, Val};
use olivine_numerics::polynomial::double::{ERF, SELU_BELOW, SELU_SCALE, TAIL};

use super::single::{at_least, at_most, horner};
use super::{is_inf, is_nan, max_nan, min_nan, pick};

/// ln 2 in 33 bits, whose products with exponents are exact, and the rest.
const LN2_HIGH: f64 = 0.693_147_180_485_539_1;
const LN2_LOW: f64 = 7.440_617_110_012_397e-11;

/// (eʳ − 1 − r) / r² on |r| ≤ ln 2 / 2.
const EXP: [f64; 11] = [
    0.5,
    0.166_666_666_666_666_7,
    0.041_666_666_666_666_67,
    0.008_333_333_333_326_084,
    0.001_388_888_888_888_371_1,
    0.000_198_412_698_750_022_8,
    2.480_158_732_567_746e-5,
    2.755_725_517_000_089e-6,
    2.755_727_347_871_858e-7,
    2.510_531_272_962_210_3e-8,
    2.091_475_532_589_32e-9,
];

/// (ln((1 + s)/(1 − s)) − 2s) / s³ in s², where 1 + f = (1 + s)/(1 − s) and √½ ≤ 1 + f < √2.
const LOG: [f64; 8] = [
    0.666_666_666_666_666_6,
    0.400_000_000_000_009_4,
    0.285_714_285_707_644_5,
    0.222_222_224_005_477_6,
    0.181_817_947_008_978,
    0.153_862_905_346_589_92,
    0.132_674_185_964_748_84,
    0.131_007_213_835_034_9,
];

/// -1, 0 or 1.
pub(super) fn sign(x: Val<'_>) -> Val<'_> {
    let y = x.gt(0.0).select(x.like(1.0), x);
    x.lt(0.0).select(x.like(-1.0), y)
}

/// x · σ(x).
pub(super) fn silu(x: Val<'_>) -> Val<'_> {
    gated(x, x, None)
}

/// x / (1 + |x|).
pub(super) fn softsign(x: Val<'_>) -> Val<'_> {
    let y = x / (x.abs() + 1.0);
    is_inf(x).select(copysign(x.like(1.0), x), y)
}

/// x, or alpha·(eˣ − 1) below zero, both scaled.
pub(super) fn selu(x: Val<'_>) -> Val<'_> {
    x.lt(0.0).select(expm1(x) * SELU_BELOW, x * SELU_SCALE)
}

/// x · (x + 3) / 6 with the factor held within 0 and 1.
pub(super) fn hard_swish(x: Val<'_>) -> Val<'_> {
    let gate = (x + 3.0) / 6.0;
    times(x, min_nan(max_nan(gate, x.like(0.0)), x.like(1.0)))
}

/// A u64 constant beside a value.
pub(super) fn word(x: Val<'_>, bits: u64) -> Val<'_> {
    x.builder().constant(Scalar::U64, bits)
}

/// The bits of an f64.
pub(super) fn bits(x: Val<'_>) -> Val<'_> {
    x.bitcast(Scalar::U64)
}

/// The magnitude of one f64 with the sign of another.
pub(super) fn copysign<'k>(magnitude: Val<'k>, sign: Val<'k>) -> Val<'k> {
    let mask = word(sign, 1 << 63);
    ((bits(magnitude) & word(sign, u64::MAX >> 1)) | (bits(sign) & mask)).bitcast(Scalar::F64)
}

/// 2ⁿ (an i32) for a normal result.
pub(super) fn power_of_two(n: Val<'_>) -> Val<'_> {
    ((n.convert(Scalar::I64) + 1023) << 52).bitcast(Scalar::F64)
}

/// The leading 26 bits of an f64, and the others.
pub(super) fn high_low(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let x = x.opaque();
    let high = (bits(x) & word(x, u64::MAX << 27)).bitcast(Scalar::F64);
    (high, x - high)
}

/// x·y where y is a weight that vanishes faster than x grows: −∞·0 is −0, not NaN.
fn times<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    (y.eq(0.0) & is_inf(x)).select(x.like(-0.0), x * y)
}

fn reduce<'k>(x: Val<'k>, low: Option<Val<'k>>) -> (Val<'k>, Val<'k>) {
    let n = (low.map_or(x, |low| x + low) * std::f64::consts::LOG2_E).round_even();
    // One product with both parts of ln 2 would lose what the parts are for.
    let r = n.fma(-LN2_HIGH, x).opaque();
    let r = match low {
        Some(low) => r + n.fma(-LN2_LOW, low),
        None => n.fma(-LN2_LOW, r),
    };
    (n.convert(Scalar::I32), r)
}

fn reduced_expm1(r: Val<'_>) -> Val<'_> {
    (r * r).fma(horner(r, &EXP), r)
}

/// e^(x + low) as `(1 + m) · s · t`, s and t powers of two.
pub(super) fn exp_parts<'k>(x: Val<'k>, low: Option<Val<'k>>) -> (Val<'k>, Val<'k>, Val<'k>) {
    let (n, r) = reduce(x, low);
    let half = n >> 1;
    (reduced_expm1(r), power_of_two(half), power_of_two(n - half))
}

/// eˣ.
pub(super) fn exp(x: Val<'_>) -> Val<'_> {
    let (m, s, t) = exp_parts(at_most(at_least(x, -746.0), 710.0), None);
    (m + 1.0) * s * t
}

/// eˣ − 1 without cancellation.
pub(super) fn expm1(x: Val<'_>) -> Val<'_> {
    let (n, r) = reduce(at_most(at_least(x, -40.0), 710.0), None);
    // Half of 2ⁿ, because 2¹⁰²⁴ is not a number while half the result may be.
    let s = power_of_two(n - 1);
    let y = s.fma(reduced_expm1(r), s - 0.5) * 2.0;
    x.abs().lt(1e-17).select(x, y)
}

/// tanh x = m / (m + 2) with m = e^(2|x|) − 1.
pub(super) fn tanh(x: Val<'_>) -> Val<'_> {
    let m = expm1(at_most(x.abs(), 20.0) * 2.0);
    copysign(m / (m + 2.0), x)
}

pub(super) fn sigmoid(x: Val<'_>) -> Val<'_> {
    let e = exp(-x.abs());
    x.lt(0.0).select(e, x.like(1.0)) / (e + 1.0)
}

/// x·sigmoid(z + low): the powers of two come last, so that a denormal result is rounded once.
fn gated<'k>(x: Val<'k>, z: Val<'k>, low: Option<Val<'k>>) -> Val<'k> {
    let below = z.lt(0.0);
    let held = at_least(-z.abs(), -800.0);
    let low = low.map(|low| below.select(low, -low));
    let (m, s, t) = exp_parts(held, low);
    let p = m + 1.0;
    let divisor = p * s * t + 1.0;
    let y = below.select(at_least(x, -1e4) * p / divisor * s * t, x / divisor);
    x.eq(0.0).select(x, y)
}

/// The tanh approximation of gelu: x·sigmoid(z), z = 2·√(2/π)·(x + 0.044715·x³) in two parts.
pub(super) fn gelu_tanh(x: Val<'_>) -> Val<'_> {
    const SCALE: f64 = 1.595_769_121_605_730_8;
    const SCALE_LOW: f64 = -9.969_308_809_110_92e-17;
    const CUBIC: f64 = 0.044715;
    let held = at_most(at_least(x, -50.0), 50.0);
    let (square, square_low) = two_product(held, held);
    let (cube, cube_low) = two_product(square, held);
    let (term, term_low) = two_product(cube, x.like(CUBIC));
    let term_low = term_low + (cube_low + square_low * held) * CUBIC;
    let (sum, sum_low) = two_sum(held, term);
    let sum_low = sum_low + term_low;
    let (z, z_low) = two_product(sum, x.like(SCALE));
    gated(x, z, Some(z_low + (sum_low * SCALE + sum * SCALE_LOW)))
}

/// x·tanh(ln(1 + eˣ)) = x·n / (n + 2) with n = eˣ(eˣ + 2), the powers of two last.
pub(super) fn mish(x: Val<'_>) -> Val<'_> {
    let held = at_most(at_least(x, -800.0), 20.0);
    let (m, s, t) = exp_parts(held, None);
    let p = m + 1.0;
    let e = p * s * t;
    let y = held * (e + 2.0) / (e * (e + 2.0) + 2.0) * p * s * t;
    x.gt(20.0).select(x, y)
}

pub(super) fn softplus(x: Val<'_>) -> Val<'_> {
    at_least(x, 0.0) + log1p(exp(-x.abs()))
}

/// A positive number as 2ᵉ·(1 + f), √½ ≤ 1 + f < √2: e as f64, and f.
fn split(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    const START: u64 = 0x3fe6_a09e_667f_3bcd;
    let tiny = x.lt(f64::MIN_POSITIVE);
    let b = bits(tiny.select(x * 2f64.powi(54), x));
    let moved = b - word(x, START);
    let e = (moved.bitcast(Scalar::I64) >> 52).convert(Scalar::I32).convert(Scalar::F64);
    let e = e - tiny.select(x.like(54.0), x.like(0.0));
    let f = ((moved & word(x, u64::MAX >> 12)) + word(x, START)).bitcast(Scalar::F64) - 1.0;
    (e, f)
}

/// ln(1 + f) − f, `low` added before it is rounded.
fn log_rest<'k>(f: Val<'k>, low: Val<'k>) -> Val<'k> {
    let s = f / (f + 2.0);
    let square = s * s;
    let half = f * f * 0.5;
    (s * (half + square * horner(square, &LOG)) + low) - half
}

fn outside<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    let b = bits(x);
    let y = pick(b.gt(word(x, 1 << 63)), x.like(f64::NAN), y);
    let y = pick((b & word(x, u64::MAX >> 1)).eq(word(x, 0)), x.like(f64::NEG_INFINITY), y);
    pick(is_nan(x) | b.eq(word(x, 0x7ff0 << 48)), x, y)
}

/// ln x.
pub(super) fn log(x: Val<'_>) -> Val<'_> {
    let (e, f) = split(x);
    outside(x, e.fma(LN2_HIGH, log_rest(f, e * LN2_LOW) + f))
}

/// log₂ x.
pub(super) fn log2(x: Val<'_>) -> Val<'_> {
    let (e, f) = split(x);
    // log₂ e = 1 + 0.4427…: the leading product is exact.
    let rest = log_rest(f, x.like(0.0));
    let low = f * (std::f64::consts::LOG2_E - 1.0) + rest * std::f64::consts::LOG2_E;
    outside(x, e + (f + low))
}

/// ln(1 + x) without cancellation.
pub(super) fn log1p(x: Val<'_>) -> Val<'_> {
    let u = (x + 1.0).opaque();
    let (e, f) = split(u);
    let lost = x.ge(1.0).select(u.like(1.0) - (u - x).opaque(), x - (u - 1.0).opaque());
    let held = u.gt(0.0) & u.lt(f64::INFINITY);
    let correction = held.select(lost / u, x.like(0.0));
    let y = e.fma(LN2_HIGH, log_rest(f, e * LN2_LOW + correction) + f);
    x.abs().lt(1e-17).select(x, outside(u, y))
}

/// erfc t for t ≥ ½.
fn tail(t: Val<'_>) -> Val<'_> {
    let t = at_most(at_least(t, 0.5), 28.0);
    let (m, s, u) = exp_minus_square(t, 1.0);
    (m + 1.0) * scaled_tail(t) * s * u
}

/// e^(t²)·erfc(t).
fn scaled_tail(t: Val<'_>) -> Val<'_> {
    horner((t - 2.0) / (t + 2.0), &TAIL) / (t + 2.0)
}

/// e^(−t²·part), part a power of two, as [`exp_parts`] gives it: the leading half of t has an exact square.
fn exp_minus_square<'k>(t: Val<'k>, part: f64) -> (Val<'k>, Val<'k>, Val<'k>) {
    let (high, rest) = high_low(t);
    exp_parts(high * high * -part, Some((t + high) * rest * -part))
}

/// x·Φ(x); in the tail the exponent is x²/2 to the last digit and the powers of two come last.
pub(super) fn gelu(x: Val<'_>) -> Val<'_> {
    const SQRT_1_2: f64 = std::f64::consts::FRAC_1_SQRT_2;
    x.builder().if_value(
        x.gt(-0.75),
        || x * 0.5 * erfc(x * -SQRT_1_2),
        || {
            let t = at_most(-x, 40.0);
            let (m, s, u) = exp_minus_square(t, 0.5);
            -t * 0.5 * scaled_tail(t * SQRT_1_2) * (m + 1.0) * s * u
        },
    )
}

fn erf_below_one(x: Val<'_>) -> Val<'_> {
    x * horner(x * x, &ERF)
}

/// erf x.
pub(super) fn erf(x: Val<'_>) -> Val<'_> {
    let t = x.abs();
    let k = x.builder();
    let y = k.if_value(t.lt(1.0), || erf_below_one(t), || t.like(1.0) - tail(t));
    copysign(y, x)
}

/// 1 − erf x.
fn erfc(x: Val<'_>) -> Val<'_> {
    let t = x.abs();
    let k = x.builder();
    k.if_value(
        t.lt(0.5),
        || x.like(1.0) - erf_below_one(x),
        || {
            let y = tail(t);
            x.lt(0.0).select(x.like(2.0) - y, y)
        },
    )
}

/// log₂ of a positive number as 26 bits and the rest.
fn log2_parts(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    const LOG2_E_HIGH: f64 = 1.442_695_021_629_333_5;
    const LOG2_E_LOW: f64 = 1.925_962_991_126_617_5e-8;
    let (e, f) = split(x);
    // s = f / (2 + f), the divisor's rounding and the quotient's rest kept.
    let divisor = (f + 2.0).opaque();
    let divisor_low = f - (divisor - 2.0).opaque();
    let (s1, _) = high_low(f / divisor);
    let (d1, d2) = high_low(divisor);
    let s2 = (((f - s1 * d1).opaque() - s1 * d2).opaque() - s1 * divisor_low) / divisor;
    let s = s1 + s2;
    let square = s * s;
    let tail = s * square * horner(square, &LOG) * LOG2_E;
    let main = s1 * (2.0 * LOG2_E_HIGH);
    let low = (s1 * LOG2_E_LOW + s2 * LOG2_E) * 2.0 + tail;
    let sum = (e + main).opaque();
    let low = (main - (sum - e).opaque()).opaque() + low;
    let (high, _) = high_low(sum + low);
    (high, (sum - high).opaque() + low)
}

/// aᵇ.
pub(super) fn pow<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let base = a.abs();
    let (high, low) = log2_parts(base);
    let (b1, b2) = high_low(b);
    let product = b1 * high;
    let product_low = b1 * low + b2 * (high + low);
    // The logarithms of 0 and ∞ decide by their sign.
    let infinity = a.like(f64::INFINITY);
    let far = base.eq(0.0) | is_inf(a);
    let size = far.select(base.eq(0.0).select(-infinity, infinity), high + low) * b;
    let n = (product + product_low).round_even();
    let r = ((product - n).opaque() + product_low) * std::f64::consts::LN_2;
    let n = n.convert(Scalar::I32);
    let half = n >> 1;
    let y = (reduced_expm1(r) + 1.0) * power_of_two(half) * power_of_two(n - half);
    let y = size.gt(1100.0).select(infinity, y);
    let y = size.lt(-1100.0).select(a.like(0.0), y);
    let y = base.eq(1.0).select(a.like(1.0), y);
    // Beyond 2⁵³ every f64 is an even integer.
    let held = b.abs().lt(9_007_199_254_740_992.0).select(b, b.like(0.0));
    let integral = held.trunc().eq(held);
    let half = held * 0.5;
    let odd = integral & half.trunc().ne(half);
    let negative = bits(a).ge(word(a, 1 << 63));
    let y = (negative & odd).select(-y, y);
    let none = negative & !integral & !far;
    let y = pick(none | is_nan(a) | is_nan(b), a.like(f64::NAN), y);
    let zero = (bits(b) & word(b, u64::MAX >> 1)).eq(word(b, 0));
    pick(zero | bits(a).eq(word(a, 1.0f64.to_bits())), a.like(1.0), y)
}

/// A finite f64 that is not zero as a significand of 53 bits (u64) times a power of two (i32).
fn unpack(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let tiny = x.abs().lt(f64::MIN_POSITIVE);
    let b = bits(tiny.select(x * 2f64.powi(54), x)) & word(x, u64::MAX >> 1);
    let k = x.builder();
    let exponent = (b >> 52).convert(Scalar::U32).bitcast(Scalar::I32) - 1075;
    let exponent = exponent - tiny.select(k.i32(54), k.i32(0));
    ((b & word(x, u64::MAX >> 12)) | word(x, 1 << 52), exponent)
}

/// The remainder with the sign of a, exact.
pub(super) fn rem<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    let none = is_nan(a) | is_nan(b) | is_inf(a) | b.eq(0.0);
    k.if_value(
        none | a.abs().lt(b.abs()),
        || pick(none, a.like(f64::NAN), a),
        || {
            let ((sa, ea), (sb, eb)) = (unpack(a), unpack(b));
            let (r, left) = (k.var(sa % sb), k.var((ea - eb).bitcast(Scalar::U32)));
            k.while_(
                || left.get().ne(0),
                || {
                    // A remainder of 53 bits takes eleven more of the dividend at once.
                    let step = left.get().min(11);
                    r.set((r.get() << step.convert(Scalar::U64)) % sb);
                    left.set(left.get() - step);
                },
            );
            let half = eb >> 1;
            let y = r.get().convert(Scalar::F64) * power_of_two(half) * power_of_two(eb - half);
            copysign(y, a)
        },
    )
}

/// The remainder with the sign of b.
pub(super) fn modulo<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let r = rem(a, b);
    let differs = r.lt(0.0).ne(b.lt(0.0)) & r.ne(0.0);
    let y = r.eq(0.0).select(copysign(r, b), differs.select(r + b, r));
    pick(is_nan(r), r, y)
}

/// a·b + c rounded once, whether or not the device fuses: the sum of three parts (Boldo and Melquiond), the last two
/// rounded to odd. Results below the normal numbers may be rounded twice.
pub(super) fn fma<'k>(a: Val<'k>, b: Val<'k>, c: Val<'k>) -> Val<'k> {
    let k = a.builder();
    let odd_one = |x: Val<'k>| is_nan(x) | is_inf(x) | x.eq(0.0);
    k.if_value(
        odd_one(a) | odd_one(b) | is_nan(c) | is_inf(c),
        || {
            let finite = !(is_nan(a) | is_inf(a) | is_nan(b) | is_inf(b)) & (is_nan(c) | is_inf(c));
            pick(finite, c, a * b + c)
        },
        || {
            let ((ma, ea), (mb, eb)) = (unit(a), unit(b));
            let (mc, ec) = unit(c);
            let e = ea + eb;
            // Beyond these distances only the addend, or only its sign, matters.
            let distance = ec - e;
            let addend = mc * power_of_two(distance.max(-120).min(120));
            let addend = c.eq(0.0).select(c, addend);
            let (high, low) = two_product(ma, mb);
            let (th, tl) = two_sum(addend, low);
            let (vh, vl) = two_sum(high, th);
            let (z, lost) = two_sum(tl, vl);
            let even = (bits(z) & word(z, 1)).eq(word(z, 0));
            // Towards what was lost, by one unit.
            let away = lost.gt(0.0).ne(z.lt(0.0));
            let moved = away.select(bits(z) + word(z, 1), bits(z) - word(z, 1)).bitcast(Scalar::F64);
            let z = (even & lost.ne(0.0)).select(moved, z);
            let half = e >> 1;
            let y = (vh + z) * power_of_two(half) * power_of_two(e - half);
            (distance.gt(118) & c.ne(0.0)).select(c, y)
        },
    )
}

/// An f64 as a number from 1 below 2, with its sign, and an exponent.
fn unit(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let (significand, exponent) = unpack(x);
    let y = (significand & word(x, u64::MAX >> 12)) | word(x, 1023 << 52);
    (copysign(y.bitcast(Scalar::F64), x), exponent + 52)
}

fn two_sum<'k>(a: Val<'k>, b: Val<'k>) -> (Val<'k>, Val<'k>) {
    let s = (a + b).opaque();
    let back = (s - a).opaque();
    (s, ((a - (s - back).opaque()).opaque() + (b - back).opaque()).opaque())
}

/// a·b as a rounded product and what the rounding lost (Dekker).
fn two_product<'k>(a: Val<'k>, b: Val<'k>) -> (Val<'k>, Val<'k>) {
    let split = |x: Val<'k>| {
        let c = (x * 134_217_729.0).opaque();
        let high = (c - (c - x).opaque()).opaque();
        (high, (x - high).opaque())
    };
    let ((a1, a2), (b1, b2)) = (split(a), split(b));
    let p = (a * b).opaque();
    let first = ((a1 * b1 - p).opaque() + a1 * b2).opaque();
    (p, ((first + a2 * b1).opaque() + a2 * b2).opaque())
}
