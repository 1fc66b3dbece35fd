//! Quotients, square roots, fma and remainders of f32 that are right to the last bit on every device.
//!
//! A device's own quotient or root is a few units off. Its significand, taken as an integer, gives the remainder
//! exactly: the true one is small, so 32 bits of the 48-bit product suffice.

use olivine_ir::DType;
use olivine_kernel::{Scalar, Val};

use super::bits::{
    Format, INFINITY, MAGNITUDE, SIGN, bits, copysign, float, is_inf, is_nan, magnitude, nan, one_if, pick,
    round_pack, unpack,
};

/// a / b, correctly rounded; f32 or f64 (the device's own).
pub(crate) fn div<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    if a.scalar() != Scalar::F32 {
        return a / b;
    }
    if let Some(c) = b.as_const()
        && let divisor = f32::from_bits(c as u32)
        && divisor.is_normal()
        && divisor.to_bits() & 0x007f_ffff == 0
        && (1.0 / divisor).is_normal()
    {
        return a * (1.0 / divisor);
    }
    let k = a.builder();
    let (x, y) = (bits(a), bits(b));
    let (fa, fb) = ((x >> 23) & 255, (y >> 23) & 255);
    let difference = (fa - fb).bitcast(Scalar::I32);
    // Both normal, and the quotient's exponent far from the ends.
    let ordinary = (fa - 1).lt(254) & (fb - 1).lt(254) & (fa - fb + 125).lt(250);
    k.if_value(
        ordinary,
        || {
            let one = |bits: Val<'k>| (bits & 0x007f_ffff) | 0x0080_0000;
            let (q, _, less) = quotient(one(x), one(y));
            let field = (difference + 126).bitcast(Scalar::U32) - less;
            float(((field << 23) + q) | ((x ^ y) & SIGN))
        },
        || div_at_the_edges(a, b),
    )
}

/// The nearest 24-bit quotient of two significands, the remainder's rest (i32), and 1 if the quotient is below 1.
fn quotient<'k>(a: Val<'k>, b: Val<'k>) -> (Val<'k>, Val<'k>, Val<'k>) {
    let k = a.builder();
    let less = one_if(a.lt(b));
    let unit = |m: Val<'k>| float((m & 0x007f_ffff) | 0x3f80_0000);
    let start = k.u32(0x3f80_0000) - (less << 23);
    let q = bits(unit(a) / unit(b)).max(start).min(start | 0x007f_ffff);
    let q = (q & 0x007f_ffff) | 0x0080_0000;
    let rest = ((a << (less + 23)) - q * b).bitcast(Scalar::I32);
    let twice = (rest.abs() * 2).bitcast(Scalar::U32);
    let off = one_if(twice.gt(b)) + one_if(twice.gt(b * 3)) + one_if(twice.gt(b * 5));
    let off = rest.lt(0).select(k.u32(0) - off, off);
    (q + off, rest - (off * b).bitcast(Scalar::I32), less)
}

fn div_at_the_edges<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let (ma, mb) = (magnitude(a), magnitude(b));
    let sign = (bits(a) ^ bits(b)) & SIGN;
    let ((sa, ea), (sb, eb)) = (unpack(a), unpack(b));
    let (q, rest, less) = quotient(sa, sb.max(1));
    // The lowest bit tells that something is left; one less stands for a little less.
    let wide = (q << 8) + rest.lt(0).select(sa.like(f64::from(u32::MAX)), one_if(rest.ne(0)));
    let exponent = ea - eb - 31 - less.convert(Scalar::I32);
    let finite = round_pack(Format::of(DType::F32), sign, exponent, wide);
    let zero = ma.eq(0) | mb.eq(INFINITY);
    let infinite = mb.eq(0) | ma.eq(INFINITY);
    let none = is_nan(a) | is_nan(b) | (zero & infinite);
    let y = pick(zero, float(sign), finite);
    let y = pick(infinite, float(sign | INFINITY), y);
    pick(none, nan(a), y)
}

/// a / b within 1.5 ulp, for quotients and reciprocals of b in the normal range.
pub(crate) fn div_near<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let y = b.like(1.0) / b;
    let q = (a * y).opaque();
    (-q).fma(b, a).fma(y, q)
}

/// √x, correctly rounded; f32 or f64 (the device's own).
pub(crate) fn sqrt(x: Val<'_>) -> Val<'_> {
    if x.scalar() != Scalar::F32 {
        return x.sqrt();
    }
    let k = x.builder();
    let b = bits(x);
    k.if_value(
        (b - 0x0080_0000).lt(0x7f00_0000),
        || root((b & 0x007f_ffff) | 0x0080_0000, (b >> 23).convert(Scalar::I32) - 150),
        || {
            let (significand, exponent) = unpack(x);
            let y = root(significand.max(0x0080_0000), exponent);
            let y = pick(b.gt(SIGN), nan(x), y);
            pick(magnitude(x).eq(0) | b.eq(INFINITY) | is_nan(x), x, y)
        },
    )
}

/// The root of `significand · 2^exponent`.
fn root<'k>(significand: Val<'k>, exponent: Val<'k>) -> Val<'k> {
    let k = significand.builder();
    let odd = (exponent + 23).bitcast(Scalar::U32) & 1;
    let near = float((significand & 0x007f_ffff) | (k.u32(0x3f80_0000) + (odd << 23))).sqrt();
    let near = bits(near).max(0x3f80_0000).min(0x3fff_ffff);
    let mut s = ((near & 0x007f_ffff) | 0x0080_0000).bitcast(Scalar::I32);
    let mut rest = (significand << (odd + 23)).bitcast(Scalar::I32) - s * s;
    // (s ± ½)² lie a little more than s away from s².
    for _ in 0..3 {
        let step = rest.gt(s).select(k.i32(1), k.i32(0)) - rest.le(-s).select(k.i32(1), k.i32(0));
        rest = rest - step * (s * 2 + step);
        s = s + step;
    }
    let field = ((exponent + 23) >> 1) + 126;
    float(((field << 23) + s).bitcast(Scalar::U32))
}

/// 1/√x within 1.5 ulp.
pub(crate) fn rsqrt(x: Val<'_>) -> Val<'_> {
    if x.scalar() != Scalar::F32 {
        return x.like(1.0) / x.sqrt();
    }
    let b = bits(x);
    let small = b.lt(0x0080_0000);
    // A denormal's bits are a multiple of 2^-149; four times that is a square.
    let held = small.select(b.convert(Scalar::F32) * 2.0, x);
    let y = held.inverse_sqrt();
    let y = (y * held).fma(y * -0.5, 0.5).fma(y, y);
    let y = small.select(y * 2f64.powi(75), y);
    let y = pick((b & MAGNITUDE).eq(0), float((b & SIGN) | INFINITY), y);
    let y = pick(b.gt(SIGN), nan(x), y);
    let y = pick(b.eq(INFINITY), x.like(0.0), y);
    pick(is_nan(x), x, y)
}

/// a·b + c rounded once to f32, f16 or bf16.
pub(super) fn fma<'k>(a: Val<'k>, b: Val<'k>, c: Val<'k>, dtype: DType) -> Val<'k> {
    let k = a.builder();
    let special = |x: Val<'k>| magnitude(x).ge(INFINITY);
    k.if_value(
        special(a) | special(b) | special(c),
        || {
            // A denormal factor counts, even where a device takes it for zero.
            let unit = |x: Val<'k>| {
                let ordinary = magnitude(x).ne(0) & !special(x);
                pick(ordinary, copysign(x.like(1.0), x), x)
            };
            pick(special(a) | special(b), unit(a) * unit(b) + c, c)
        },
        || fma_of_finite(a, b, c, dtype),
    )
}

fn fma_of_finite<'k>(a: Val<'k>, b: Val<'k>, c: Val<'k>, dtype: DType) -> Val<'k> {
    let k = a.builder();
    let ((sa, ea), (sb, eb), (sc, ec)) = (unpack(a), unpack(b), unpack(c));
    // Both as 64 bits with the leading one at 61 or 62: a sum fits.
    let (wide, tall) = (sa << 8, sb << 7);
    let product = (wide.mul_high(tall), wide * tall);
    let addend = (sc << 6, k.u32(0));
    let nowhere = k.i32(-4000);
    let ep = (sa.eq(0) | sb.eq(0)).select(nowhere, ea + eb - 15);
    let ec = sc.eq(0).select(nowhere, ec - 38);
    let (product_sign, c_sign) = ((bits(a) ^ bits(b)) & SIGN, bits(c) & SIGN);
    let swap = ec.gt(ep);
    let choose = |x: Val<'k>, y: Val<'k>| (swap.select(y, x), swap.select(x, y));
    let (big_high, small_high) = choose(product.0, addend.0);
    let (big_low, small_low) = choose(product.1, addend.1);
    let (exponent, small_exponent) = choose(ep, ec);
    let (sign, small_sign) = choose(product_sign, c_sign);
    let distance = (exponent - small_exponent).min(63).convert(Scalar::U32);
    let (high, low) = shifted_right((small_high, small_low), distance);
    let subtract = sign.ne(small_sign);
    // Subtraction adds the complement.
    let flip = subtract.select(k.u32(u32::MAX), k.u32(0));
    let sum_low = big_low + (low ^ flip);
    let carry = one_if(sum_low.lt(big_low));
    let with_one = sum_low + one_if(subtract);
    let carry = carry + one_if(subtract & with_one.eq(0));
    let sum_high = big_high + (high ^ flip) + carry;
    // A difference below zero is turned round.
    let negative = subtract & sum_high.ge(SIGN);
    let turn = negative.select(k.u32(u32::MAX), k.u32(0));
    let low = (with_one ^ turn) + one_if(negative);
    let high = (sum_high ^ turn) + one_if(negative & low.eq(0));
    let sign = negative.select(sign ^ SIGN, sign);
    let moved = high.eq(0);
    let (high, low) = (moved.select(low, high), moved.select(k.u32(0), low));
    let zeros = high.leading_zeros().min(31);
    let top = (high << zeros) | ((low >> 1) >> (k.u32(31) - zeros));
    let sticky = one_if((low << zeros).ne(0));
    let shift = zeros.convert(Scalar::I32) - moved.select(k.i32(0), k.i32(32));
    let y = round_pack(Format::of(dtype), sign, exponent - shift, top | sticky);
    // Zeros of one sign keep it, a cancelled sum is +0.
    high.eq(0).select(float(product_sign & c_sign), y)
}

/// 64 bits shifted right by 0 to 63; the lowest bit remembers what was lost.
fn shifted_right<'k>((high, low): (Val<'k>, Val<'k>), by: Val<'k>) -> (Val<'k>, Val<'k>) {
    let k = by.builder();
    let word = by.ge(32);
    let lost = word & low.ne(0);
    let (high, low) = (word.select(k.u32(0), high), word.select(high, low));
    let by = by & 31;
    let lost = lost | (low & ((k.u32(1) << by) - 1)).ne(0);
    let low = (low >> by) | ((high << 1) << (k.u32(31) - by));
    (high >> by, low | one_if(lost))
}

/// The remainder of f32 with the sign of a, exact.
pub(super) fn rem<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let k = a.builder();
    let (ma, mb) = (magnitude(a), magnitude(b));
    let none = is_nan(a) | is_nan(b) | is_inf(a) | mb.eq(0);
    k.if_value(
        none | ma.lt(mb),
        || pick(none, nan(a), a),
        || {
            let ((sa, ea), (sb, eb)) = (unpack(a), unpack(b));
            let divisor = sb.max(1);
            let (r, left) = (k.var(sa % divisor), k.var((ea - eb).convert(Scalar::U32)));
            k.while_(
                || left.get().ne(0),
                || {
                    // A remainder below 2²⁴ takes eight more bits of the dividend at once.
                    let step = left.get().min(8);
                    r.set((r.get() << step) % divisor);
                    left.set(left.get() - step);
                },
            );
            let r = r.get();
            let zeros = r.leading_zeros().min(31);
            let exponent = eb - zeros.convert(Scalar::I32);
            let y = round_pack(Format::of(DType::F32), bits(a), exponent, r << zeros);
            r.eq(0).select(float(bits(a) & SIGN), y)
        },
    )
}

/// The remainder of f32 with the sign of b.
pub(super) fn modulo<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let r = rem(a, b);
    let zero = magnitude(r).eq(0);
    let differs = ((bits(r) ^ bits(b)) & SIGN).ne(0) & !is_nan(r);
    // Where a denormal remainder counts in the sum, integers add it.
    let sum = r.builder().if_value(
        magnitude(b).lt(0x1000_0000),
        || fma_of_finite(r, r.like(1.0), b, DType::F32),
        || r + b,
    );
    pick(zero, float(bits(b) & SIGN), pick(differs, sum, r))
}
