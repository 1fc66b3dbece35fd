//! aᵇ of f32, with the logarithm in two parts.

use olivine_kernel::{Scalar, Val};

use super::bits::{
    INFINITY, SIGN, bits, float, infinity, is_nan, lifted, magnitude, nan, negative, pick, scaled,
};
use super::exact::div_near;
use super::single::{horner, split};

/// (ln((1 + s)/(1 − s)) − 2s) / s³ in s², where 1 + f = (1 + s)/(1 − s) and f is of [`split`].
const LOG: [f32; 5] = [0.666_666_7, 0.399_999_98, 0.285_717_64, 0.221_907_63, 0.193_749_71];

/// (eʳ − 1 − r) / r² on |r| ≤ ln 2 / 2.
const EXP: [f32; 6] = [0.5, 0.166_666_67, 0.041_666_463, 0.008_333_31, 0.001_393_373_1, 0.000_198_910_8];

/// An f32 as a sum of its leading twelve bits and the others: products of such halves are exact.
pub(super) fn high_low(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let x = x.opaque();
    let high = float(bits(x) & 0xffff_f000u32);
    (high, x - high)
}

/// log₂ of a positive number as twelve bits and the rest, with about 34 bits in all.
fn log2_parts(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    const LOG2_E_HIGH: f64 = 1.442_382_812_5;
    const LOG2_E_LOW: f64 = std::f64::consts::LOG2_E - LOG2_E_HIGH;
    let (e, f) = split(x);
    // s = f / (2 + f), the divisor's rounding and the quotient's rest kept.
    let divisor = (f + 2.0).opaque();
    let divisor_low = f - (divisor - 2.0).opaque();
    let (s1, _) = high_low(div_near(f, divisor));
    let (d1, d2) = high_low(divisor);
    let rest = ((f - s1 * d1).opaque() - s1 * d2).opaque() - s1 * divisor_low;
    let s2 = rest / divisor;
    let s = s1 + s2;
    let square = s * s;
    let tail = s * square * horner(square, &LOG) * std::f32::consts::LOG2_E;
    let main = s1 * (2.0 * LOG2_E_HIGH);
    let low = (s1 * LOG2_E_LOW + s2 * std::f64::consts::LOG2_E) * 2.0 + tail;
    let sum = (e + main).opaque();
    let low = (main - (sum - e).opaque()).opaque() + low;
    let (high, _) = high_low(sum + low);
    (high, (sum - high).opaque() + low)
}

/// aᵇ.
pub(super) fn pow<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    let m = magnitude(a);
    let base = float(m);
    let (high, low) = log2_parts(base);
    let (b1, b2) = high_low(b);
    let product = b1 * high;
    let product_low = b1 * low + b2 * (high + low);
    // The logarithms of 0 and ∞ decide by their sign.
    let far = m.eq(0) | m.eq(INFINITY);
    let size = far.select(m.eq(0).select(negative(infinity(a)), infinity(a)), high + low) * lifted(b);
    let n = (product + product_low).round_even();
    let r = ((product - n).opaque() + product_low) * std::f32::consts::LN_2;
    let n = n.convert(Scalar::I32);
    let y = scaled((r * r).fma(horner(r, &EXP), r) + 1.0, n);
    let y = size.gt(200.0).select(infinity(a), y);
    let y = size.lt(-200.0).select(a.like(0.0), y);
    let y = m.eq(0x3f80_0000).select(a.like(1.0), y);
    // Beyond 2²⁴ every float is an even integer.
    let held = magnitude(b).lt(0x4b80_0000).select(b, b.like(0.0));
    let between = magnitude(b).ne(0) & magnitude(b).lt(0x3f80_0000);
    let integral = held.trunc().eq(held) & !between;
    let odd = integral & (held.convert(Scalar::I32) & 1).ne(0);
    let minus = bits(a).ge(SIGN);
    let y = pick(minus & odd, negative(y), y);
    let none = minus & !integral & !far;
    let y = pick(none | is_nan(a) | is_nan(b), nan(a), y);
    pick(magnitude(b).eq(0) | bits(a).eq(0x3f80_0000), k.f32(1.0), y)
}
