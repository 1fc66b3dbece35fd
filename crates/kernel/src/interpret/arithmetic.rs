//! Arithmetic on the bits of scalars.

use super::{Device, invalid};
use crate::Error;
use crate::ir::{AtomicOp, BinaryOp, CompareOp, UnaryOp};
use crate::types::Scalar;

/// The f16 of some bits, as f32.
pub(super) fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10) & 31, f32::from(bits & 0x3ff));
    match exponent {
        31 if mantissa > 0.0 => f32::NAN,
        31 => sign * f32::INFINITY,
        0 => sign * mantissa * (-24f32).exp2(),
        e => sign * (1024.0 + mantissa) * ((e - 25) as f32).exp2(),
    }
}

/// Minus zero, what a sum of floats starts with.
pub(super) fn zero(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::F16 => 0x8000,
        Scalar::F64 => 1 << 63,
        _ => 0x8000_0000,
    }
}

fn flushed(x: f32, device: Device) -> f32 {
    if device.flush && x.is_subnormal() { 0f32.copysign(x) } else { x }
}

fn single(bits: u64, device: Device) -> f32 {
    flushed(f32::from_bits(bits as u32), device)
}

fn encoded(x: f32, device: Device) -> u64 {
    u64::from(flushed(x, device).to_bits())
}

/// Moves a result by up to the device's number of units, by chance that depends on the operands alone.
fn off(x: f32, seed: u64, device: Device) -> f32 {
    if device.off_by == 0 || !x.is_normal() {
        return x;
    }
    let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32;
    let by = (mixed % (2 * device.off_by + 1)) as i32 - device.off_by as i32;
    let moved = f32::from_bits(x.to_bits().wrapping_add_signed(by));
    if moved.is_normal() { moved } else { x }
}

pub(super) fn unary(op: UnaryOp, scalar: Scalar, x: u64, device: Device) -> u64 {
    let float = |x: f64| match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::RoundEven => x.round_ties_even(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::InverseSqrt => 1.0 / x.sqrt(),
        UnaryOp::Exp2 => x.exp2(),
        UnaryOp::Log2 => x.log2(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::LeadingZeros => x,
    };
    match scalar {
        Scalar::F32 => {
            let y = float(f64::from(single(x, device))) as f32;
            let rough = matches!(
                op,
                UnaryOp::Sqrt
                    | UnaryOp::InverseSqrt
                    | UnaryOp::Exp2
                    | UnaryOp::Log2
                    | UnaryOp::Sin
                    | UnaryOp::Cos
            );
            encoded(if rough { off(y, x, device) } else { y }, device)
        }
        Scalar::F16 => u64::from(crate::build::half_bits(float(f64::from(half(x as u16))) as f32)),
        Scalar::F64 => float(f64::from_bits(x)).to_bits(),
        Scalar::Bool => x ^ 1,
        Scalar::I32 | Scalar::U32 => u64::from(match op {
            UnaryOp::Neg => (x as u32).wrapping_neg(),
            UnaryOp::Abs => (x as i32).unsigned_abs(),
            UnaryOp::Not => !(x as u32),
            UnaryOp::CountOnes => (x as u32).count_ones(),
            UnaryOp::LeadingZeros => (x as u32).leading_zeros(),
            _ => x as u32,
        }),
        Scalar::I64 | Scalar::U64 => match op {
            UnaryOp::Neg => x.wrapping_neg(),
            UnaryOp::Abs => (x as i64).unsigned_abs(),
            UnaryOp::Not => !x,
            _ => x,
        },
    }
}

pub(super) fn binary(op: BinaryOp, scalar: Scalar, a: u64, b: u64, device: Device) -> Result<u64, Error> {
    macro_rules! float {
        ($a:expr, $b:expr) => {{
            let (a, b) = ($a, $b);
            match op {
                BinaryOp::Add => a + b,
                BinaryOp::Sub => a - b,
                BinaryOp::Mul => a * b,
                BinaryOp::Div => a / b,
                BinaryOp::Min => {
                    if b < a {
                        b
                    } else {
                        a
                    }
                }
                BinaryOp::Max => {
                    if a < b {
                        b
                    } else {
                        a
                    }
                }
                _ => return Err(invalid(format!("{op:?} of floats"))),
            }
        }};
    }
    macro_rules! int {
        ($t:ty, $u:ty) => {{
            let (x, y) = (a as $t, b as $t);
            let count = || match u32::try_from(b) {
                Ok(n) if n < <$t>::BITS => Ok(n),
                _ => Err(invalid(format!("a shift of {scalar} by {b}"))),
            };
            let quotient = |q: Option<$t>| q.ok_or_else(|| invalid(format!("{x} divided by {y}")));
            let result = match op {
                BinaryOp::Add => x.wrapping_add(y),
                BinaryOp::Sub => x.wrapping_sub(y),
                BinaryOp::Mul => x.wrapping_mul(y),
                BinaryOp::Div => quotient(x.checked_div(y))?,
                BinaryOp::Rem => quotient(x.checked_rem(y))?,
                BinaryOp::Min => x.min(y),
                BinaryOp::Max => x.max(y),
                BinaryOp::And => x & y,
                BinaryOp::Or => x | y,
                BinaryOp::Xor => x ^ y,
                BinaryOp::Shl => x << count()?,
                BinaryOp::Shr => x >> count()?,
                BinaryOp::MulHigh => ((u64::from(a as u32) * u64::from(b as u32)) >> 32) as $t,
            };
            Ok(u64::from(result as $u))
        }};
    }
    match scalar {
        Scalar::F32 => {
            let y = float!(single(a, device), single(b, device));
            let y = if op == BinaryOp::Div { off(y, a ^ (b << 31), device) } else { y };
            Ok(encoded(y, device))
        }
        Scalar::F16 => Ok(u64::from(crate::build::half_bits(float!(half(a as u16), half(b as u16))))),
        Scalar::F64 => Ok(float!(f64::from_bits(a), f64::from_bits(b)).to_bits()),
        Scalar::Bool => Ok(match op {
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            _ => return Err(invalid(format!("{op:?} of bools"))),
        }),
        Scalar::I32 => int!(i32, u32),
        Scalar::U32 => int!(u32, u32),
        Scalar::I64 => int!(i64, u64),
        Scalar::U64 => int!(u64, u64),
    }
}

pub(super) fn fma(scalar: Scalar, a: u64, b: u64, c: u64, device: Device) -> u64 {
    match scalar {
        Scalar::F64 => {
            let [a, b, c] = [a, b, c].map(f64::from_bits);
            (if device.unfused { a * b + c } else { a.mul_add(b, c) }).to_bits()
        }
        Scalar::F16 => {
            let [a, b, c] = [a, b, c].map(|x| half(x as u16));
            u64::from(crate::build::half_bits(a.mul_add(b, c)))
        }
        _ => {
            let [a, b, c] = [a, b, c].map(|x| single(x, device));
            encoded(if device.unfused { flushed(a * b, device) + c } else { a.mul_add(b, c) }, device)
        }
    }
}

pub(super) fn compare(op: CompareOp, scalar: Scalar, a: u64, b: u64, device: Device) -> bool {
    fn by<T: PartialOrd>(op: CompareOp, a: T, b: T) -> bool {
        match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        }
    }
    match scalar {
        Scalar::F32 => by(op, single(a, device), single(b, device)),
        Scalar::F16 => by(op, half(a as u16), half(b as u16)),
        Scalar::F64 => by(op, f64::from_bits(a), f64::from_bits(b)),
        Scalar::I32 => by(op, a as i32, b as i32),
        Scalar::I64 => by(op, a as i64, b as i64),
        Scalar::U32 => by(op, a as u32, b as u32),
        Scalar::Bool | Scalar::U64 => by(op, a, b),
    }
}

pub(super) fn convert(from: Scalar, to: Scalar, x: u64, device: Device) -> u64 {
    // Integers keep their bits on the way, floats their value.
    let wide = match from {
        Scalar::I32 => i64::from(x as i32) as u64,
        _ => x,
    };
    let float = match from {
        Scalar::F16 => Some(f64::from(half(x as u16))),
        Scalar::F32 => Some(f64::from(single(x, device))),
        Scalar::F64 => Some(f64::from_bits(x)),
        _ => None,
    };
    match (to, float) {
        (Scalar::Bool, Some(f)) => u64::from(f != 0.0),
        (Scalar::Bool, None) => u64::from(x != 0),
        // Out of range is unspecified: something no kernel should rely on.
        (Scalar::I32, Some(f)) => {
            let inside = f > -2_147_483_649.0 && f < 2_147_483_648.0;
            u64::from(if inside { f as i32 as u32 } else { 0x5555_5555 })
        }
        (Scalar::U32, Some(f)) => {
            u64::from(if f > -1.0 && f < 4_294_967_296.0 { f as u32 } else { 0x5555_5555 })
        }
        (Scalar::I64, Some(f)) => {
            if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&f) {
                f as i64 as u64
            } else {
                0x5555_5555
            }
        }
        (Scalar::U64, Some(f)) => {
            if f > -1.0 && f < 18_446_744_073_709_551_616.0 {
                f as u64
            } else {
                0x5555_5555
            }
        }
        (Scalar::I32 | Scalar::U32, None) => wide & 0xffff_ffff,
        (Scalar::I64 | Scalar::U64, None) => wide,
        (Scalar::F16, Some(f)) => u64::from(crate::build::half_bits(f as f32)),
        (Scalar::F32, Some(f)) => encoded(f as f32, device),
        (Scalar::F64, Some(f)) => f.to_bits(),
        (Scalar::F16, None) => u64::from(crate::build::half_bits(int_as_f64(from, wide) as f32)),
        (Scalar::F32, None) if matches!(from, Scalar::I32 | Scalar::I64) => {
            encoded(wide as i64 as f32, device)
        }
        (Scalar::F32, None) => encoded(wide as f32, device),
        (Scalar::F64, None) => int_as_f64(from, wide).to_bits(),
    }
}

fn int_as_f64(from: Scalar, wide: u64) -> f64 {
    if matches!(from, Scalar::I32 | Scalar::I64) { wide as i64 as f64 } else { wide as f64 }
}

pub(super) fn atomic(op: AtomicOp, signed: bool, before: u64, x: u64, comparand: Option<u64>) -> u64 {
    let less = |a: u64, b: u64| if signed { (a as i32) < b as i32 } else { a < b };
    match op {
        AtomicOp::Add => u64::from((before as u32).wrapping_add(x as u32)),
        AtomicOp::Min => {
            if less(x, before) {
                x
            } else {
                before
            }
        }
        AtomicOp::Max => {
            if less(before, x) {
                x
            } else {
                before
            }
        }
        AtomicOp::And => before & x,
        AtomicOp::Or => before | x,
        AtomicOp::Xor => before ^ x,
        AtomicOp::Exchange => x,
        AtomicOp::CompareExchange => {
            if comparand == Some(before) {
                x
            } else {
                before
            }
        }
    }
}

pub(super) fn packed_dot(signed: bool, a: u32, b: u32, sum: u32) -> u32 {
    a.to_le_bytes().iter().zip(b.to_le_bytes()).fold(sum, |sum, (x, y)| {
        let product = if signed {
            (i32::from(*x as i8) * i32::from(y as i8)) as u32
        } else {
            u32::from(*x) * u32::from(y)
        };
        sum.wrapping_add(product)
    })
}
