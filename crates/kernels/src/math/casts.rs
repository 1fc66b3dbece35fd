//! Conversions between dtypes, each with one rounding: floats truncate and saturate to integers, NaN becomes 0.

use olivine_ir::DType;
use olivine_kernel::{Scalar, Val};

use super::bits::{Format, SIGN, bits, float, is_nan, one_if, round_pack, round_to};
use super::{Typed, elem};

/// A number as another dtype.
pub(super) fn cast<'k>(x: Typed<'k>, to: DType) -> Val<'k> {
    let (from, x) = (x.dtype, x.val);
    let scalar = elem(to).scalar();
    match (from, to) {
        _ if from == to => x,
        (DType::Bool, _) => {
            let k = x.builder();
            x.select(k.number(scalar, 1.0), k.number(scalar, 0.0))
        }
        (DType::F64, DType::Bool) => {
            let k = x.builder();
            (x.bitcast(Scalar::U64) & k.constant(Scalar::U64, u64::MAX >> 1)).ne(k.constant(Scalar::U64, 0))
        }
        (_, DType::Bool) if from.is_float() => (bits(x) & 0x7fff_ffff).ne(0),
        (_, DType::Bool) => x.ne(0),
        (DType::F64, DType::F16 | DType::BF16) => round_to(to_odd(x), to),
        (DType::F32 | DType::BF16, DType::F64) => widen(x),
        (DType::F64, DType::F32) | (_, DType::F64) => x.convert(scalar),
        (_, _) if from.is_float() && to.is_float() => round_to(x, to),
        (_, _) if from.is_float() => saturate(x, to),
        (DType::I64, _) if to.is_float() => round_wide(x, to),
        (DType::I32 | DType::U32, DType::F16 | DType::BF16) => {
            let k = x.builder();
            let negative = if from == DType::I32 { x.lt(0) } else { k.bool(false) };
            let magnitude = x.convert(Scalar::U32);
            let magnitude = negative.select(k.u32(0) - magnitude, magnitude);
            round_integer(negative, (k.u32(0), magnitude), to)
        }
        // WGSL lets a device round a number between two floats either way. The high and low 16 bits convert exactly,
        // and their sum is rounded to nearest.
        (DType::U32, DType::F32) => (x >> 16).convert(scalar) * 65536.0 + (x & 0xffff).convert(scalar),
        (_, _) if to.is_float() => round_to(x.convert(scalar), to),
        _ => super::ints::wrap(x.convert(scalar), to),
    }
}

/// The bits of a number as another dtype of the same size.
pub(super) fn bitcast<'k>(x: Typed<'k>, to: DType) -> Val<'k> {
    let (from, x) = (x.dtype, x.val);
    let scalar = elem(to).scalar();
    if to.size() == 8 {
        return x.bitcast(scalar);
    }
    let word = match from {
        DType::F32 => bits(x),
        DType::BF16 => bits(x) >> 16,
        DType::F16 => half_bits(x),
        _ => x.convert(Scalar::U32),
    };
    match to {
        DType::F32 => float(word),
        DType::BF16 => float(word << 16),
        DType::F16 => half_of(word),
        _ => super::ints::wrap(word.convert(scalar), to),
    }
}

/// The bits of an f16 that an f32 holds, by integer arithmetic.
pub(crate) fn half_bits(x: Val<'_>) -> Val<'_> {
    let (b, m) = (bits(x), bits(x) & 0x7fff_ffff);
    // Below the normal numbers of f16 a number is a multiple of 2^-24.
    let tiny = (float(m) * 16_777_216.0).convert(Scalar::U32);
    let normal = (m >> 13) - (112 << 10);
    let special = ((m >> 13) & 0x3ff) | 0x7c00;
    let y = m.lt(0x3880_0000).select(tiny, normal);
    let y = m.ge(0x7f80_0000).select(special, y);
    y | ((b >> 16) & 0x8000)
}

/// The f32 that holds the f16 of some bits.
fn half_of(word: Val<'_>) -> Val<'_> {
    let m = word & 0x7fff;
    let tiny = bits(m.convert(Scalar::F32) * 2f64.powi(-24));
    let normal = (m << 13) + (112 << 23);
    let special = (m << 13) | 0x7f80_0000;
    let y = m.lt(0x400).select(tiny, normal);
    let y = m.ge(0x7c00).select(special, y);
    float(y | ((word & 0x8000) << 16))
}

/// An f32 as f64; a denormal's bits are a multiple of 2^-149.
fn widen(x: Val<'_>) -> Val<'_> {
    let (b, m) = (bits(x), bits(x) & 0x7fff_ffff);
    let tiny = m.convert(Scalar::F64) * 2f64.powi(-149);
    let tiny = b.ge(SIGN).select(-tiny, tiny);
    m.lt(0x0080_0000).select(tiny, x.convert(Scalar::F64))
}

/// The f32 next to an f64 whose last bit is set if the f64 lies between two: rounding that again rounds once.
fn to_odd(x: Val<'_>) -> Val<'_> {
    let near = x.convert(Scalar::F32);
    // Not by the device's own conversion, which may take a denormal for 0.
    let back = widen(near);
    let b = bits(near);
    let keep = back.eq(x) | (b & 1).ne(0) | (b & 0x7fff_ffff).ge(0x7f80_0000);
    let odd = back.abs().lt(x.abs()).select(b + 1, b - 1);
    float(keep.select(b, odd))
}

/// A float truncated and held within an integer dtype.
fn saturate<'k>(x: Val<'k>, to: DType) -> Val<'k> {
    let k = x.builder();
    let scalar = elem(to).scalar();
    // The least integer, and the first past the largest: both are floats.
    let (low, past) = match to {
        DType::I8 => (-128.0, 128.0),
        DType::U8 => (0.0, 256.0),
        DType::I16 => (-32768.0, 32768.0),
        DType::I32 => (-2_147_483_648.0, 2_147_483_648.0),
        DType::U32 => (0.0, 4_294_967_296.0),
        _ => (-9_223_372_036_854_775_808.0, 9_223_372_036_854_775_808.0),
    };
    let (least, largest) = match to {
        DType::I64 => (1u64 << 63, u64::MAX >> 1),
        DType::U8 => (0, 255),
        DType::U32 => (0, u64::from(u32::MAX)),
        DType::I8 => (u64::from(-128i32 as u32), 127),
        DType::I16 => (u64::from(-32768i32 as u32), 32767),
        _ => (1 << 31, (1 << 31) - 1),
    };
    let none = is_nan(x);
    let (under, over) = (x.le(low) & !none, x.ge(past) & !none);
    let held = (under | over | none).select(x.like(0.0), x);
    let y = over.select(k.constant(scalar, largest), held.convert(scalar));
    under.select(k.constant(scalar, least), y)
}

/// An i64 as f32, f16 or bf16.
fn round_wide(x: Val<'_>, to: DType) -> Val<'_> {
    let negative = x.lt(0);
    let magnitude = negative.select(x.like(0.0) - x, x).bitcast(Scalar::U64);
    let low = magnitude.convert(Scalar::U32);
    let high = (magnitude >> magnitude.like(32.0)).convert(Scalar::U32);
    round_integer(negative, (high, low), to)
}

/// An integer of 64 bits, in two words, with a sign.
fn round_integer<'k>(negative: Val<'k>, (high, low): (Val<'k>, Val<'k>), to: DType) -> Val<'k> {
    let k = negative.builder();
    let short = high.eq(0);
    let (top, rest) = (short.select(low, high), short.select(k.u32(0), low));
    let zeros = top.leading_zeros().min(31);
    let significand = (top << zeros) | ((rest >> 1) >> (k.u32(31) - zeros));
    let sticky = one_if((rest << zeros).ne(0));
    let exponent = short.select(k.i32(0), k.i32(32)) - zeros.convert(Scalar::I32);
    let sign = negative.select(k.u32(SIGN), k.u32(0));
    let y = round_pack(Format::of(to), sign, exponent, significand | sticky);
    top.eq(0).select(y.like(0.0), y)
}
