//! Exponentials, logarithms and the error function of f32: the CPU backend's polynomials, within 4 ulp everywhere.
//!
//! No function needs a fused fma.

use std::f32::consts::{FRAC_2_SQRT_PI, LOG2_E};

use olivine_kernel::{Scalar, Val};
use olivine_numerics::polynomial::single::{
    ERF, EXP, LN2_HIGH, LN2_LOW, LOG, MINUS_LOG_ERFC, TAIL, TAIL_START,
};

use super::bits::{
    INFINITY, absolute, bits, copysign, float, infinity, is_nan, magnitude, nan, near_zero, nearest,
    negative, pick, power_of_two, raised, scaled,
};
use super::exact::div_near;

/// A polynomial by Horner's rule, the constant coefficient first; of f32 or f64.
pub(super) fn horner<'k, C: Copy + Into<f64>>(x: Val<'k>, coefficients: &[C]) -> Val<'k> {
    let mut rest = coefficients.iter().rev().map(|c| (*c).into());
    let first = x.like(rest.next().unwrap_or(0.0));
    rest.fold(first, |sum, c| sum.fma(x, c))
}

/// x, but not below `low`; the result of NaN is unspecified, that of a denormal zero where the device flushes.
pub(super) fn at_least<'k>(x: Val<'k>, low: f64) -> Val<'k> {
    x.lt(low).select(x.like(low), x)
}

/// x, but not above `high`; likewise.
pub(super) fn at_most<'k>(x: Val<'k>, high: f64) -> Val<'k> {
    x.gt(high).select(x.like(high), x)
}

/// x + low = n·ln 2 + r, for a small second part: n (i32) and r.
fn reduce<'k>(x: Val<'k>, low: Option<Val<'k>>) -> (Val<'k>, Val<'k>) {
    let (integer, n) = nearest(low.map_or(x, |low| x + low) * LOG2_E);
    // One product with both parts of ln 2 would lose what the parts are for.
    let r = n.fma(-LN2_HIGH, x).opaque();
    let r = match low {
        Some(low) => r + n.fma(-LN2_LOW, low),
        None => n.fma(-LN2_LOW, r),
    };
    (integer, r)
}

/// eʳ − 1 for a reduced r.
fn reduced_expm1(r: Val<'_>) -> Val<'_> {
    (r * r).fma(horner(r, &EXP), r)
}

/// e^(x + low) as `(1 + m) · s · t`, s and t powers of two, for |x| ≤ 110: products with other numbers can multiply
/// s and t in last, so that a denormal result is rounded once.
pub(super) fn exp_parts<'k>(x: Val<'k>, low: Option<Val<'k>>) -> (Val<'k>, Val<'k>, Val<'k>) {
    let (n, r) = reduce(x, low);
    let half = n >> 1;
    (reduced_expm1(r), power_of_two(half), power_of_two(n - half))
}

/// 2⁶⁴·eˣ for x ≤ 0 and NaN: what is summed and divided by the sum needs no smaller numbers. Below −104 it is what it
/// is at −104, which is nothing beside e⁰.
pub(super) fn exp_raised(x: Val<'_>) -> Val<'_> {
    // A comparison keeps NaN, unless a compiler that expects none sees a maximum in it.
    let held = x.opaque().lt(-104.0).select(x.like(-104.0), x);
    let (n, r) = reduce(held, None);
    r.fma(r.fma(horner(r, &EXP), 1.0), 1.0) * raised(n)
}

/// eˣ.
pub(super) fn exp(x: Val<'_>) -> Val<'_> {
    let (n, r) = reduce(at_most(at_least(x, -104.0), 89.0), None);
    scaled(reduced_expm1(r) + 1.0, n)
}

/// eˣ − 1 without cancellation.
pub(super) fn expm1(x: Val<'_>) -> Val<'_> {
    let (n, r) = reduce(at_most(at_least(x, -18.0), 89.0), None);
    let p = reduced_expm1(r);
    // Half of 2ⁿ, because 2¹²⁸ is not a number while half the result may be.
    let s = power_of_two(n - 1);
    let y = s.fma(p, s - 0.5) * 2.0;
    linear_below(x, 1e-8, y)
}

/// x itself where |x| < `limit`, a normal number, else y.
pub(super) fn linear_below<'k>(x: Val<'k>, limit: f32, y: Val<'k>) -> Val<'k> {
    pick(magnitude(x).lt(limit.to_bits()), x, y)
}

/// tanh x = m / (m + 2) with m = e^(2|x|) − 1.
pub(super) fn tanh(x: Val<'_>) -> Val<'_> {
    let t = at_most(absolute(x), 10.0);
    let (n, r) = reduce(t * 2.0, None);
    let s = power_of_two(n);
    let m = s.fma(reduced_expm1(r), s - 1.0);
    // Below the normal numbers' square root the quotient would lose bits, and x is the result.
    linear_below(x, 1e-5, copysign(div_near(m, m + 2.0), x))
}

/// A positive number as 2ᵉ·(1 + f), √½ ≤ 1 + f < √2: e as f32, and f.
pub(super) fn split(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    /// The bits of √½, where the mantissa's range starts.
    const START: u32 = 0x3f35_04f3;
    let b = bits(x);
    // A denormal's bits are a multiple of 2^-149.
    let tiny = b.lt(0x0080_0000);
    let b = tiny.select(bits(b.convert(Scalar::F32)), b);
    let moved = (b - START).bitcast(Scalar::I32);
    let e = (moved >> 23).convert(Scalar::F32) - tiny.select(x.like(149.0), x.like(0.0));
    let f = float((moved.bitcast(Scalar::U32) & 0x007f_ffff) + START) - 1.0;
    (e, f)
}

/// ln(1 + f) − f.
fn log_rest(f: Val<'_>) -> Val<'_> {
    let square = f * f;
    (square * f).fma(horner(f, &LOG), square * -0.5)
}

/// Replaces the results of arguments that have no finite logarithm.
pub(super) fn outside<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    let y = pick(bits(x).eq(INFINITY), x, y);
    let none = (bits(x) >> 31).ne(0) | is_nan(x);
    let y = pick(none, nan(x), y);
    pick(magnitude(x).eq(0), negative(infinity(x)), y)
}

/// ln x.
pub(super) fn log(x: Val<'_>) -> Val<'_> {
    let (e, f) = split(x);
    let y = e.fma(LN2_HIGH, e.fma(LN2_LOW, log_rest(f)) + f);
    outside(x, y)
}

/// log₂ x.
pub(super) fn log2(x: Val<'_>) -> Val<'_> {
    // log₂ e = 1 + 0.4427…: the leading product is exact.
    let (e, f) = split(x);
    let low = f.fma(0.442_695_04f32, log_rest(f) * LOG2_E);
    outside(x, e + (f + low))
}

/// ln(1 + x) without cancellation: the logarithm of the rounded sum, corrected by what the rounding lost.
pub(super) fn log1p(x: Val<'_>) -> Val<'_> {
    let u = (x + 1.0).opaque();
    let (e, f) = split(u);
    let lost = x.ge(1.0).select(u.like(1.0) - (u - x).opaque(), x - (u - 1.0).opaque());
    let held = (bits(u) - 1).lt(INFINITY - 1);
    let correction = held.select(lost / u, x.like(0.0));
    let y = e.fma(LN2_HIGH, e.fma(LN2_LOW, log_rest(f) + correction) + f);
    linear_below(x, 1e-8, outside(u, y))
}

/// erf x.
pub(super) fn erf(x: Val<'_>) -> Val<'_> {
    let t = at_most(absolute(x), 4.0);
    let near = t * horner(t * t, &ERF);
    let (m, s, u) = exp_parts(-horner(t, &MINUS_LOG_ERFC), None);
    let far = t.like(1.0) - (m + 1.0) * s * u;
    near_zero(x, FRAC_2_SQRT_PI.into(), copysign(t.lt(1.0).select(near, far), x))
}

/// x·Φ(x) = max(x, 0) − |x|·Φ(−|x|), the tail's powers of two last, so that it fades through the denormals.
pub(super) fn gelu(x: Val<'_>) -> Val<'_> {
    let t = at_most(absolute(x), 14.5);
    // −t²/2 in two parts: the leading half of t has an exact square.
    let high = float(bits(t) & 0xffff_f000u32);
    let rest = t - high;
    let (m, s, u) = exp_parts(high * high * -0.5, Some((t + high) * rest * -0.5));
    let w = div_near(t, t + 2.0);
    let mills = (horner(w.fma(2.0, -1.0), &TAIL) + TAIL_START) * w;
    let tail = mills.fma(m, mills);
    near_zero(x, 0.5, copysign(at_least(x, 0.0) - tail * s * u, x))
}

/// log₂ Φ(−t) on 0 ≤ t ≤ 5.75, within 1e-5 where t·Φ(−t) is no denormal f16.
const LOG_TAIL: [f32; 7] = [
    -1.000_009_8,
    -1.150_997_4,
    -0.459_278_82,
    -0.052_942_574,
    0.007_892_675,
    -0.000_738_092_64,
    3.164_24e-5,
];

/// x·Φ(x) as f16 can tell it, with a fraction of the instructions that f32 takes; the device's power of two is near
/// enough. Past 5.75 the tail is nothing to f16.
pub(super) fn gelu_of_half(x: Val<'_>) -> Val<'_> {
    let t = absolute(x).min(5.75);
    let tail = horner(t, &LOG_TAIL).exp2_native();
    copysign(t.fma(-tail, x.max(0.0)), x)
}
