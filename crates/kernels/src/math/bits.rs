//! Floats taken apart and put together by integer arithmetic, which is exact on every device.

use olivine_ir::DType;
use olivine_kernel::{CompareOp, Scalar, Val};

pub(super) const SIGN: u32 = 0x8000_0000;
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
pub(super) const INFINITY: u32 = 0x7f80_0000;

/// The bits of an f32; those of a constant are one too, so that what follows from them is computed here.
pub(super) fn bits(x: Val<'_>) -> Val<'_> {
    match x.as_const() {
        Some(bits) => x.builder().u32(bits as u32),
        None => x.bitcast(Scalar::U32),
    }
}

/// The f32 of some bits.
pub(super) fn float(bits: Val<'_>) -> Val<'_> {
    bits.bitcast(Scalar::F32)
}

/// NaN as f32, made of a value's bits: not every shading language has it as a constant.
pub(super) fn nan(x: Val<'_>) -> Val<'_> {
    float(bits(x) | 0x7fc0_0000)
}

/// +∞ as f32, made likewise.
pub(super) fn infinity(x: Val<'_>) -> Val<'_> {
    float((bits(x) | MAGNITUDE) & INFINITY)
}

/// The second where a condition holds, else the third; floats are chosen as their bits, because compilers that expect
/// no NaN may drop one from a selection of floats.
pub fn pick<'k>(condition: Val<'k>, then: Val<'k>, otherwise: Val<'k>) -> Val<'k> {
    let scalar = then.scalar();
    let word = match scalar {
        Scalar::F32 => Scalar::U32,
        Scalar::F64 => Scalar::U64,
        _ => return condition.select(then, otherwise),
    };
    let bits = |x: Val<'k>| match x.as_const() {
        Some(bits) => x.builder().constant(word, bits),
        None => x.bitcast(word),
    };
    condition.select(bits(then), bits(otherwise)).bitcast(scalar)
}

/// −x of f32 or f64: the sign bit alone changes, also of a denormal that the device's own negation would flush.
pub(super) fn negative(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 { -x } else { float(bits(x) ^ SIGN) }
}

/// |x| of f32 or f64, likewise.
pub(super) fn absolute(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 { x.abs() } else { float(magnitude(x)) }
}

/// Whether an f32 or f64 is below zero; what it says of NaN does not matter to any caller.
pub(super) fn below_zero(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 { x.lt(0.0) } else { bits(x).gt(SIGN) }
}

/// An i32 that orders like the f32, both zeros alike; NaN aside.
fn key(x: Val<'_>) -> Val<'_> {
    let b = bits(x).bitcast(Scalar::I32);
    let turned = b.builder().constant(Scalar::I32, u64::from(SIGN)) - b;
    b.lt(0).select(turned, b)
}

/// A comparison of two values of one type; floats are NaN by their bits and f32 are ordered by them.
pub fn compare<'k>(op: CompareOp, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    if !a.scalar().is_float() {
        return a.compare(op, b);
    }
    let none = is_nan(a) | is_nan(b);
    let holds = match a.scalar() {
        Scalar::F32 => key(a).compare(op, key(b)),
        _ => a.compare(op, b),
    };
    if op == CompareOp::Ne { holds | none } else { holds & !none }
}

/// `slope · x` where that or x is below the normal numbers, else y; the slope is from ½ to 2. Numbers below 2^-125 are
/// multiples of 2^-149 that their bits count, so the product is made of integers that no device flushes.
pub(super) fn near_zero<'k>(x: Val<'k>, slope: f64, y: Val<'k>) -> Val<'k> {
    let m = magnitude(x);
    let limit = if slope < 1.0 { 0x0100_0000 } else { 0x0080_0000 };
    let product = match slope == 0.5 {
        // Half of it to even, without conversions.
        true => (m >> 1) + (m & (m >> 1) & 1),
        false => (m.convert(Scalar::F32) * slope).round_even().convert(Scalar::U32),
    };
    pick(m.lt(limit), float(product | (bits(x) & SIGN)), y)
}

/// |x| as bits.
pub(super) fn magnitude(x: Val<'_>) -> Val<'_> {
    bits(x) & MAGNITUDE
}

/// Whether an f32 or f64 is NaN, by its bits: some compilers take x ≠ x for false.
pub(crate) fn is_nan(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 {
        let (magnitude, infinity) = wide_magnitude(x);
        magnitude.gt(infinity)
    } else {
        magnitude(x).gt(INFINITY)
    }
}

/// Whether an f32 or f64 is infinite, by its bits.
pub(crate) fn is_inf(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 {
        let (magnitude, infinity) = wide_magnitude(x);
        magnitude.eq(infinity)
    } else {
        magnitude(x).eq(INFINITY)
    }
}

/// Whether an f32 or f64 is infinite or NaN, by its bits.
pub(super) fn not_finite(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 { is_inf(x) | is_nan(x) } else { magnitude(x).ge(INFINITY) }
}

/// The bits of an f64's magnitude, and those of ∞.
fn wide_magnitude(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let k = x.builder();
    let magnitude = x.bitcast(Scalar::U64) & k.constant(Scalar::U64, u64::MAX >> 1);
    (magnitude, k.constant(Scalar::U64, 0x7ff0 << 48))
}

/// The magnitude of one f32 with the sign of another.
pub(super) fn copysign<'k>(magnitude: Val<'k>, sign: Val<'k>) -> Val<'k> {
    float((bits(magnitude) & MAGNITUDE) | (bits(sign) & SIGN))
}

/// A denormal f32 replaced by the least normal number, which rounds to the same integers; other numbers stay.
pub(super) fn lifted(x: Val<'_>) -> Val<'_> {
    if x.scalar() != Scalar::F32 {
        return x;
    }
    let m = magnitude(x);
    let least = m.ne(0).select(m.like(f64::from(0x0080_0000)), m);
    float(m.max(least) | (bits(x) & SIGN))
}

/// 2ⁿ for a normal result.
pub(super) fn power_of_two(n: Val<'_>) -> Val<'_> {
    ((n + 127) << 23).bitcast(Scalar::F32)
}

/// The nearest integer of |x| < 2²² as i32 and as f32, ties to even: a number so large that its last bit is one takes
/// the fraction off. Conversions run at a fraction of the speed on many devices.
pub(super) fn nearest(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    const LARGE: f32 = 1.5 * (1u32 << 23) as f32;
    let sum = (x + LARGE).opaque();
    ((bits(sum) - LARGE.to_bits()).bitcast(Scalar::I32), sum - LARGE)
}

/// 2ⁿ⁺⁶⁴ for n from −190 to 63.
pub(super) fn raised(n: Val<'_>) -> Val<'_> {
    ((n << 23) + ((127 + 64) << 23)).bitcast(Scalar::F32)
}

/// p·2ⁿ for p from 0.6 to 1.9. A result below the normal numbers is a multiple of 2^-149, made as an integer that no
/// device flushes.
pub(super) fn scaled<'k>(p: Val<'k>, n: Val<'k>) -> Val<'k> {
    const LARGE: f32 = (1u32 << 23) as f32;
    let half = n >> 1;
    let y = p * power_of_two(half) * power_of_two(n - half);
    // Below 2²³ where it counts, so that the sum's last bit is one.
    let units = bits((p * power_of_two(n + 149) + LARGE).opaque()) - LARGE.to_bits();
    pick(bits(y).lt(0x0080_0000), float(units), y)
}

/// 1 where a condition holds, else 0.
pub(super) fn one_if(condition: Val<'_>) -> Val<'_> {
    let k = condition.builder();
    condition.select(k.u32(1), k.u32(0))
}

/// A finite f32 that is not zero as `significand · 2^exponent`, the significand (u32) from 2²³ below 2²⁴ and the
/// exponent an i32. The significand of a zero is 0.
pub(super) fn unpack(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let magnitude = magnitude(x);
    let field = magnitude >> 23;
    let small = field.eq(0);
    let shift = magnitude.leading_zeros() - 8;
    let shift = small.select(shift, magnitude.like(0.0));
    let significand = small.select(magnitude << shift, (magnitude & 0x007f_ffff) | 0x0080_0000);
    let exponent = small.select(negative_less(shift, 149), field.convert(Scalar::I32) - 150);
    (significand, exponent)
}

/// A narrow float format.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// Significant bits.
    precision: u32,
    /// Exponent of the least normal number.
    least: i32,
    /// Bits, as f32, of what overflows.
    overflow: u32,
}

impl Format {
    /// The format of f32, f16 or bf16.
    pub(super) fn of(dtype: DType) -> Format {
        match dtype {
            DType::F16 => Format { precision: 11, least: -14, overflow: 0x4780_0000 },
            DType::BF16 => Format { precision: 8, least: -126, overflow: INFINITY },
            _ => Format { precision: 24, least: -126, overflow: INFINITY },
        }
    }
}

/// `significand · 2^exponent` rounded to nearest even in a format, as an f32 with the sign bit of `sign`. The
/// significand (u32) has its highest bit set; its lowest stands for everything below.
pub(super) fn round_pack<'k>(
    format: Format,
    sign: Val<'k>,
    exponent: Val<'k>,
    significand: Val<'k>,
) -> Val<'k> {
    let k = sign.builder();
    let leading = exponent + 31;
    let below = (leading.like(f64::from(format.least)) - leading).max(0).min(31).convert(Scalar::U32);
    let lost = significand & ((k.u32(1) << below) - 1);
    let s = (significand >> below) | one_if(lost.ne(0));
    let drop = 32 - format.precision;
    let kept = s >> drop;
    let rest = s & ((1u32 << drop) - 1);
    let half = 1u32 << (drop - 1);
    let kept = kept + one_if(rest.gt(half) | (rest.eq(half) & (kept & 1).ne(0)));
    // The leading bit of a normal number carries into the exponent.
    let field = (leading.max(format.least).min(128) + 126).convert(Scalar::U32) << 23;
    let mut magnitude = field + (kept << (24 - format.precision));
    if format.precision == 11 {
        let tiny = kept.convert(Scalar::F32) * 2f64.powi(-24);
        magnitude = below.ne(0).select(bits(tiny), magnitude);
    }
    let magnitude = magnitude.ge(format.overflow).select(k.u32(INFINITY), magnitude);
    float(magnitude | (sign & SIGN))
}

/// An f32 rounded to what f16 or bf16 can hold; other dtypes keep it.
pub(crate) fn round_to(x: Val<'_>, dtype: DType) -> Val<'_> {
    match dtype {
        DType::F16 if x.builder().target().exact_f16 => {
            // There are never so many workgroups, but no compiler knows it: one that sees both conversions may leave
            // them out.
            let nothing = x.builder().group_count(2) >> 16;
            (x.pack_half(x.like(0.0)) | nothing).unpack_half(0)
        }
        DType::F16 => {
            let b = bits(x);
            let m = b & MAGNITUDE;
            let normal = (m + 0x0fff + ((m >> 13) & 1)) & 0xffff_e000u32;
            let normal = normal.ge(0x4780_0000).select(m.like(f64::from(INFINITY)), normal);
            // Multiples of 2^-24; the products are exact.
            let tiny = (float(m) * 2f64.powi(24)).round_even() * 2f64.powi(-24);
            let rounded = m.lt(0x3880_0000).select(bits(tiny), normal);
            float(m.gt(INFINITY).select(b, rounded | (b & SIGN)))
        }
        DType::BF16 => {
            let b = bits(x);
            let rounded = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff_0000u32;
            float((b & MAGNITUDE).gt(INFINITY).select((b | 0x0040_0000) & 0xffff_0000u32, rounded))
        }
        _ => x,
    }
}

/// −n − x as an i32, of a u32.
fn negative_less(x: Val<'_>, n: i32) -> Val<'_> {
    x.builder().i32(-n) - x.convert(Scalar::I32)
}
