//! Arithmetic on the bits of registers.

use crate::decode::{Arithmetic, Round, Test, Ty, Unary};

/// The value of an f16.
pub(crate) fn half(bits: u64) -> f64 {
    let (exponent, mantissa) = ((bits >> 10) & 31, (bits & 0x3ff) as f64);
    let magnitude = match exponent {
        31 if mantissa > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => mantissa * 2f64.powi(-24),
        e => (1024.0 + mantissa) * 2f64.powi(e as i32 - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The value of a bf16.
pub(crate) fn bfloat(bits: u64) -> f64 {
    f64::from(f32::from_bits((bits as u32) << 16))
}

/// A number rounded to nearest even to a float with so many bits behind the point and a least exponent.
fn rounded(x: f64, fraction: i32, least: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let mut exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    exponent = exponent.max(least);
    let unit = 2f64.powi(exponent - fraction);
    (x / unit).round_ties_even() * unit
}

/// The bits of the f16 nearest to a number.
pub(crate) fn to_half(x: f64) -> u64 {
    if x.is_nan() {
        return 0x7fff;
    }
    let (sign, r) = (u64::from(x.is_sign_negative()) << 15, rounded(x, 10, -14).abs());
    if r > 65504.0 {
        return sign | 0x7c00;
    }
    if r < 2f64.powi(-14) {
        return sign | (r * 2f64.powi(24)) as u64;
    }
    let exponent = ((r.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    sign | (((exponent + 15) as u64) << 10) | ((r * 2f64.powi(10 - exponent)) as u64 & 0x3ff)
}

/// The bits of the bf16 nearest to a number.
pub(crate) fn to_bfloat(x: f64) -> u64 {
    if x.is_nan() {
        return 0x7fff;
    }
    u64::from((rounded(x, 7, -126) as f32).to_bits() >> 16)
}

/// The bits of an f32; a NaN is the one that the hardware returns.
pub(crate) fn single(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// The bits of a type without those above.
pub(crate) fn cut(ty: Ty, bits: u64) -> u64 {
    match ty.bits() {
        64 => bits,
        n => bits & ((1 << n) - 1),
    }
}

/// The value of an integer register.
fn int(ty: Ty, bits: u64) -> i128 {
    let bits = cut(ty, bits);
    if !ty.is_signed() {
        return i128::from(bits);
    }
    let above = 64 - ty.bits();
    i128::from(((bits << above) as i64) >> above)
}

/// A float of any type as a double, which holds all of them.
fn float(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::F16 => half(bits),
        Ty::BF16 => bfloat(bits),
        Ty::F32 => f64::from(f32_of(bits)),
        _ => f64::from_bits(bits),
    }
}

pub(crate) fn unary(op: Unary, ty: Ty, a: u64) -> Result<u64, String> {
    let wrong = || format!("{op:?} of {ty:?}");
    Ok(match op {
        Unary::Not if ty == Ty::Pred => a ^ 1,
        Unary::Not => cut(ty, !a),
        Unary::CountOnes => u64::from(cut(ty, a).count_ones()),
        Unary::LeadingZeros => u64::from((a as u32).leading_zeros()),
        // The sign bit alone: also of NaN.
        Unary::Neg if ty.is_float() => a ^ (1 << (ty.bits() - 1)),
        Unary::Abs if ty.is_float() => a & !(1 << (ty.bits() - 1)),
        Unary::Neg => cut(ty, (a as i64).wrapping_neg() as u64),
        Unary::Abs => cut(ty, int(ty, a).unsigned_abs() as u64),
        Unary::Sqrt if ty == Ty::F32 => single(f32_of(a).sqrt()),
        Unary::Sqrt if ty == Ty::F64 => f64::from_bits(a).sqrt().to_bits(),
        Unary::Reciprocal if ty == Ty::F64 => (1.0 / f64::from_bits(a)).to_bits(),
        _ if ty != Ty::F32 => return Err(wrong()),
        Unary::InverseSqrt => single((1.0 / f64::from(f32_of(a)).sqrt()) as f32),
        Unary::Exp2 => single(f64::from(f32_of(a)).exp2() as f32),
        Unary::Log2 => single(f64::from(f32_of(a)).log2() as f32),
        Unary::Sin => single(f64::from(f32_of(a)).sin() as f32),
        Unary::Cos => single(f64::from(f32_of(a)).cos() as f32),
        Unary::Sqrt | Unary::Reciprocal => return Err(wrong()),
    })
}

/// The lesser of two floats: a NaN loses, and -0 is below 0.
fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || (b < a) || (a == b && b.is_sign_negative()) { b } else { a }
}

fn float_op(op: Arithmetic, a: f64, b: f64) -> Option<f64> {
    Some(match op {
        Arithmetic::Add => a + b,
        Arithmetic::Sub => a - b,
        Arithmetic::Mul => a * b,
        Arithmetic::Div => a / b,
        Arithmetic::Min => least(a, b),
        Arithmetic::Max => -least(-a, -b),
        _ => return None,
    })
}

pub(crate) fn binary(op: Arithmetic, ty: Ty, a: u64, b: u64) -> Result<u64, String> {
    let wrong = || format!("{op:?} of {ty:?}");
    if ty == Ty::F16x2 {
        let [low, high] = [0, 16].map(|s| binary(op, Ty::F16, (a >> s) & 0xffff, (b >> s) & 0xffff));
        return Ok(low? | (high? << 16));
    }
    if ty == Ty::F32 {
        let (x, y) = (f32_of(a), f32_of(b));
        return Ok(single(match op {
            Arithmetic::Add => x + y,
            Arithmetic::Sub => x - y,
            Arithmetic::Mul => x * y,
            Arithmetic::Div => x / y,
            _ => float_op(op, f64::from(x), f64::from(y)).ok_or_else(wrong)? as f32,
        }));
    }
    if ty.is_float() {
        // Sums and products of f16 are exact in f64 or rounded far below their last bit.
        let result = float_op(op, float(ty, a), float(ty, b)).ok_or_else(wrong)?;
        return Ok(if ty == Ty::F16 { to_half(result) } else { result.to_bits() });
    }
    let (x, y) = (int(ty, a), int(ty, b));
    let result = match op {
        Arithmetic::And => return Ok(cut(ty, a & b)),
        Arithmetic::Or => return Ok(cut(ty, a | b)),
        Arithmetic::Xor => return Ok(cut(ty, a ^ b)),
        _ if ty == Ty::Pred => return Err(wrong()),
        Arithmetic::Add => x + y,
        Arithmetic::Sub => x - y,
        Arithmetic::Mul => return Ok(cut(ty, a.wrapping_mul(b))),
        Arithmetic::MulHigh => (x * y) >> ty.bits(),
        Arithmetic::Div => x.checked_div(y).ok_or_else(|| format!("{x} divided by {y}"))?,
        Arithmetic::Rem => x.checked_rem(y).ok_or_else(|| format!("{x} divided by {y}"))?,
        Arithmetic::Min => x.min(y),
        Arithmetic::Max => x.max(y),
        // Counts are clamped to the width.
        Arithmetic::Shl => x.checked_shl(b as u32 & 0x7f).filter(|_| (b as u32) < ty.bits()).unwrap_or(0),
        Arithmetic::Shr => x >> (b as u32).min(ty.bits() - 1).min(127),
    };
    if op == Arithmetic::Shr && b as u32 >= ty.bits() && !ty.is_signed() {
        return Ok(0);
    }
    Ok(cut(ty, result as u64))
}

pub(crate) fn fma(ty: Ty, a: u64, b: u64, c: u64) -> Result<u64, String> {
    Ok(match ty {
        Ty::F32 => single(f32_of(a).mul_add(f32_of(b), f32_of(c))),
        Ty::F64 => f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits(),
        Ty::F16 => to_half(half(a).mul_add(half(b), half(c))),
        _ => return Err(format!("fma of {ty:?}")),
    })
}

pub(crate) fn test(op: Test, ty: Ty, a: u64, b: u64) -> bool {
    fn by<T: PartialOrd>(op: Test, a: T, b: T) -> bool {
        match op {
            Test::Eq => a == b,
            Test::Ne => a != b,
            Test::Lt => a < b,
            Test::Le => a <= b,
            Test::Gt => a > b,
            Test::Ge => a >= b,
        }
    }
    if ty.is_float() { by(op, float(ty, a), float(ty, b)) } else { by(op, int(ty, a), int(ty, b)) }
}

/// A register as another type.
pub(crate) fn convert(round: Round, to: Ty, from: Ty, a: u64) -> Result<u64, String> {
    if !from.is_float() {
        let x = int(from, a);
        return Ok(match to {
            Ty::F16 => to_half(x as f64),
            Ty::F32 => single(x as f32),
            Ty::F64 => (x as f64).to_bits(),
            _ => cut(to, x as u64),
        });
    }
    let x = float(from, a);
    let whole = match round {
        Round::Integer(how) => match how {
            b'm' => x.floor(),
            b'p' => x.ceil(),
            b'z' => x.trunc(),
            _ => x.round_ties_even(),
        },
        _ => x,
    };
    Ok(match to {
        Ty::F16 => to_half(whole),
        Ty::BF16 => to_bfloat(whole),
        Ty::F32 => single(whole as f32),
        Ty::F64 => whole.to_bits(),
        _ if !matches!(round, Round::Integer(_)) => {
            return Err(format!("{from:?} as {to:?} without a rounding mode"));
        }
        Ty::S32 => u64::from(whole as i32 as u32),
        Ty::U32 => u64::from(whole as u32),
        Ty::S64 => whole as i64 as u64,
        Ty::U64 => whole as u64,
        _ => return Err(format!("{from:?} as {to:?}")),
    })
}

/// Four products of bytes, added.
pub(crate) fn dot(signed: bool, a: u64, b: u64, sum: u64) -> u64 {
    let byte = |x: u64, i: u32| {
        let byte = (x >> (8 * i)) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    let products: i64 = (0..4).map(|i| byte(a, i) * byte(b, i)).sum();
    u64::from((sum as u32).wrapping_add(products as u32))
}
