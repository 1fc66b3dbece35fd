//! Elementwise operations on exact numbers.

use olivine_ir::half::{bf16, f16};
use olivine_ir::op::{Activation, Binary, Compare, ScalarOp, Unary};
use olivine_ir::{DType, TensorType};

use super::value::{broadcast_flat, each, limits, wrap};
use super::{Numbers, Value, special};
use super::{meanings, one};
use crate::bound::round_to;

meanings! { |op, x, call|
    ScalarOp => one(eval(*op, x, call.ty())),
}

/// One exact number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Of a float dtype.
    F(f64),
    /// Of an integer dtype or bool.
    I(i64),
}

impl Scalar {
    fn float(self) -> f64 {
        match self {
            Scalar::F(x) => x,
            Scalar::I(x) => x as f64,
        }
    }

    fn int(self) -> i64 {
        match self {
            Scalar::F(x) => x as i64,
            Scalar::I(x) => x,
        }
    }
}

/// An elementwise operation over operands that broadcast to the result.
pub(super) fn eval(op: ScalarOp, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let dtype = x.last().ok_or("no operands")?.ty.dtype;
    let mut args = [Scalar::I(0); 3];
    let mut out = Vec::with_capacity(ty.shape.numel());
    let mut failed = None;
    each(&ty.shape, |at| {
        for (arg, v) in args.iter_mut().zip(x) {
            *arg = read(v, broadcast_flat(v.shape(), at));
        }
        match scalar(op, dtype, &args[..x.len()]) {
            Ok(y) => out.push(y),
            Err(e) => failed = Some(e),
        }
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(collect(ty, out)),
    }
}

/// One element.
pub(super) fn read(v: &Value, at: usize) -> Scalar {
    match &v.data {
        Numbers::Floats(v) => Scalar::F(v[at]),
        Numbers::Ints(v) => Scalar::I(v[at]),
    }
}

/// Numbers under a type.
pub(super) fn collect(ty: TensorType, numbers: Vec<Scalar>) -> Value {
    if ty.dtype.is_float() {
        Value::floats(ty, numbers.into_iter().map(Scalar::float).collect())
    } else {
        Value::ints(ty, numbers.into_iter().map(Scalar::int).collect())
    }
}

/// One elementwise operation on numbers whose dtype is that of the last operand.
pub(super) fn scalar(op: ScalarOp, dtype: DType, args: &[Scalar]) -> Result<Scalar, String> {
    let bool_of = |b: bool| Scalar::I(i64::from(b));
    Ok(match (op, args) {
        (ScalarOp::Cast(to), [x]) => cast(to, *x),
        (ScalarOp::Bitcast(to), [x]) => bitcast(dtype, to, *x),
        (ScalarOp::Activation(a), [Scalar::F(x)]) => Scalar::F(activation(a, *x)),
        (ScalarOp::Unary(Unary::IsNan), [Scalar::F(x)]) => bool_of(x.is_nan()),
        (ScalarOp::Unary(Unary::IsInf), [Scalar::F(x)]) => bool_of(x.is_infinite()),
        (ScalarOp::Unary(u), [Scalar::F(x)]) => Scalar::F(unary(u, *x).ok_or("not of floats")?),
        (ScalarOp::Unary(u), [Scalar::I(x)]) => {
            Scalar::I(wrap(dtype, int_unary(u, dtype, *x).ok_or("not of integers")?))
        }
        (ScalarOp::Binary(b), [Scalar::F(x), Scalar::F(y)]) => {
            Scalar::F(binary(b, *x, *y).ok_or("not of floats")?)
        }
        (ScalarOp::Binary(b), [Scalar::I(x), Scalar::I(y)]) => {
            Scalar::I(wrap(dtype, int_binary(b, dtype, *x, *y).ok_or("not of integers")?))
        }
        (ScalarOp::Compare(c), [Scalar::F(x), Scalar::F(y)]) => bool_of(compare(c, x, y)),
        (ScalarOp::Compare(c), [Scalar::I(x), Scalar::I(y)]) => bool_of(compare(c, x, y)),
        (ScalarOp::Where, [Scalar::I(c), a, b]) => {
            if *c != 0 {
                *a
            } else {
                *b
            }
        }
        (ScalarOp::Fma, [Scalar::F(a), Scalar::F(b), Scalar::F(c)]) => Scalar::F(fma(dtype, *a, *b, *c)),
        (ScalarOp::Fma, [Scalar::I(a), Scalar::I(b), Scalar::I(c)]) => {
            Scalar::I(wrap(dtype, a.wrapping_mul(*b).wrapping_add(*c)))
        }
        (ScalarOp::Clamp, [x, low, high]) => {
            let floor = scalar(ScalarOp::Binary(Binary::Max), dtype, &[*x, *low])?;
            scalar(ScalarOp::Binary(Binary::Min), dtype, &[floor, *high])?
        }
        _ => return Err(format!("{op:?} does not take {args:?}")),
    })
}

/// The bits of a number as another dtype.
fn bitcast(from: DType, to: DType, x: Scalar) -> Scalar {
    let bits = match (from, x) {
        (DType::F32, Scalar::F(x)) => u64::from((x as f32).to_bits()),
        (DType::F16, Scalar::F(x)) => u64::from(f16::from_f64(x).to_bits()),
        (DType::BF16, Scalar::F(x)) => u64::from(bf16::from_f64(x).to_bits()),
        (_, Scalar::F(x)) => x.to_bits(),
        (_, Scalar::I(x)) => x as u64,
    };
    match to {
        DType::F32 => Scalar::F(f64::from(f32::from_bits(bits as u32))),
        DType::F16 => Scalar::F(f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Scalar::F(bf16::from_bits(bits as u16).to_f64()),
        DType::F64 => Scalar::F(f64::from_bits(bits)),
        _ => Scalar::I(wrap(to, bits as i64)),
    }
}

fn cast(to: DType, x: Scalar) -> Scalar {
    match (to, x) {
        (DType::Bool, Scalar::F(x)) => Scalar::I(i64::from(x != 0.0)),
        (_, Scalar::F(x)) if to.is_float() => Scalar::F(round_to(to, x)),
        (_, Scalar::F(x)) => {
            let (low, high) = limits(to);
            // `as` truncates, saturates at i64 and takes NaN to 0; the narrower limits come after.
            Scalar::I((x as i64).clamp(low, high))
        }
        // Straight from the integer: through f64 an i64 would be rounded twice on its way to f32.
        (DType::F32, Scalar::I(x)) => Scalar::F(f64::from(x as f32)),
        (DType::F64, Scalar::I(x)) => Scalar::F(x as f64),
        (_, Scalar::I(x)) if to.is_float() => Scalar::F(narrow_int(to, x)),
        (_, Scalar::I(x)) => Scalar::I(wrap(to, x)),
    }
}

/// The nearest float of a dtype to an integer: the sticky bit of what f64 drops decides ties.
fn narrow_int(to: DType, x: i64) -> f64 {
    round_to(to, odd_rounded(x as f64, (i128::from(x) - (x as f64) as i128) as f64))
}

/// `near` moved by its last bit so that it is odd when something non-zero was lost in rounding it.
fn odd_rounded(near: f64, lost: f64) -> f64 {
    if lost == 0.0 || !near.is_finite() || near.to_bits() & 1 == 1 {
        near
    } else if lost > 0.0 {
        near.next_up()
    } else {
        near.next_down()
    }
}

/// a·b + c such that rounding the result to the dtype is the single rounding of the exact number.
fn fma(dtype: DType, a: f64, b: f64, c: f64) -> f64 {
    if dtype == DType::F64 {
        return a.mul_add(b, c);
    }
    // The product of two f32 is exact in f64; Knuth's two-sum gives what the addition loses.
    let p = a * b;
    let s = p + c;
    let v = s - p;
    let lost = (p - (s - v)) + (c - v);
    if lost.is_nan() { s } else { odd_rounded(s, lost) }
}

fn unary(u: Unary, x: f64) -> Option<f64> {
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let sigmoid = |x: f64| if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) };
    // 0·∞ stands for a limit of 0 in x·f(x) as x goes to −∞.
    let times = |x: f64, f: f64| if x == f64::NEG_INFINITY { -0.0 } else { x * f };
    Some(match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => {
            if x.is_nan() || x == 0.0 {
                x
            } else {
                1f64.copysign(x)
            }
        }
        Unary::Reciprocal => 1.0 / x,
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Log2 => x.log2(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => asinh(x),
        Unary::Acosh => {
            if x < 1.0 {
                f64::NAN
            } else {
                acosh(x)
            }
        }
        Unary::Atanh => 0.5 * (x.ln_1p() - (-x).ln_1p()),
        Unary::Erf => special::erf(x),
        Unary::Ceil => x.ceil(),
        Unary::Floor => x.floor(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Relu => {
            if x.is_nan() {
                x
            } else {
                x.max(0.0)
            }
        }
        Unary::Sigmoid => sigmoid(x),
        Unary::Silu => special::gated(x, x, 0.0),
        Unary::Gelu => special::times_normal_below(x),
        // 1 + tanh(u) = 2·sigmoid(2u), which keeps the small values on the negative side.
        Unary::GeluTanh => special::times_sigmoid_of_cubic(x),
        Unary::Softplus => {
            if x.is_nan() {
                x
            } else {
                softplus(x)
            }
        }
        Unary::Softsign => {
            if x.is_infinite() {
                x.signum()
            } else {
                x / (1.0 + x.abs())
            }
        }
        Unary::Selu => {
            let (scale, scale_alpha) = (1.0507009873554805, 1.7580993408473766);
            if x > 0.0 { scale * x } else { scale_alpha * x.exp_m1() }
        }
        // tanh(ln(1 + e)) = n / (n + 2) with n = e·(e + 2); the small factor comes last, in two parts.
        Unary::Mish if x > 20.0 => x,
        Unary::Mish if x < -800.0 => -0.0,
        Unary::Mish => {
            let (e, part) = (x.exp(), (0.5 * x).exp());
            x * (e + 2.0) / (e * (e + 2.0) + 2.0) * part * part
        }
        Unary::HardSwish => {
            let gate = ((x + 3.0) / 6.0).clamp(0.0, 1.0);
            times(x, gate)
        }
        Unary::LogSigmoid => {
            if x.is_nan() {
                x
            } else {
                -softplus(-x)
            }
        }
        Unary::Not | Unary::IsNan | Unary::IsInf => return None,
    })
}

/// ln(x + √(x²+1)) without overflow or cancellation.
fn asinh(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > 1e150 {
        a.ln() + std::f64::consts::LN_2
    } else {
        (a + a * a / (1.0 + (a * a + 1.0).sqrt())).ln_1p()
    };
    y.copysign(x)
}

/// ln(x + √(x²−1)) without overflow or cancellation near 1.
fn acosh(x: f64) -> f64 {
    if x > 1e150 {
        return x.ln() + std::f64::consts::LN_2;
    }
    let t = x - 1.0;
    (t + (2.0 * t + t * t).sqrt()).ln_1p()
}

fn activation(a: Activation, x: f64) -> f64 {
    match a {
        Activation::LeakyRelu { alpha } => {
            if x < 0.0 {
                alpha * x
            } else {
                x
            }
        }
        Activation::Elu { alpha } => {
            if x < 0.0 {
                alpha * x.exp_m1()
            } else {
                x
            }
        }
        Activation::Celu { alpha } => {
            if x.is_nan() {
                x
            } else {
                x.max(0.0) + (alpha * (x / alpha).exp_m1()).min(0.0)
            }
        }
        Activation::HardSigmoid { alpha, beta } => {
            if x.is_nan() {
                x
            } else {
                (alpha * x + beta).clamp(0.0, 1.0)
            }
        }
        Activation::Hardshrink { lambd } => {
            if x.abs() <= lambd {
                0.0
            } else {
                x
            }
        }
    }
}

fn int_unary(u: Unary, dtype: DType, x: i64) -> Option<i64> {
    Some(match u {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Square => x.wrapping_mul(x),
        Unary::Relu => x.max(0),
        Unary::Not if dtype == DType::Bool => 1 - x,
        Unary::Not => !x,
        _ => return None,
    })
}

fn binary(b: Binary, x: f64, y: f64) -> Option<f64> {
    Some(match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Pow => x.powf(y),
        Binary::Max => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.max(y)
            }
        }
        Binary::Min => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.min(y)
            }
        }
        Binary::Rem => x % y,
        Binary::Mod => {
            let r = x % y;
            if r == 0.0 {
                r.copysign(y)
            } else if (r < 0.0) != (y < 0.0) {
                r + y
            } else {
                r
            }
        }
        Binary::Atan2 => x.atan2(y),
        _ => return None,
    })
}

fn int_binary(b: Binary, dtype: DType, x: i64, y: i64) -> Option<i64> {
    let width = dtype.size() as i64 * 8;
    Some(match b {
        Binary::Add => x.wrapping_add(y),
        Binary::Sub => x.wrapping_sub(y),
        Binary::Mul => x.wrapping_mul(y),
        Binary::Div => {
            if y == 0 {
                0
            } else {
                x.wrapping_div(y)
            }
        }
        Binary::Pow => int_power(x, y),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::Rem => {
            if y == 0 {
                0
            } else {
                x.wrapping_rem(y)
            }
        }
        Binary::Mod => {
            if y == 0 {
                0
            } else {
                x.wrapping_sub(y.wrapping_mul(floor_div(x, y)))
            }
        }
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        // A shift by a negative amount has no meaning of its own; as bits it lies past the width.
        Binary::Shl => {
            if (0..width).contains(&y) {
                x.wrapping_shl(y as u32)
            } else {
                0
            }
        }
        Binary::Shr => {
            if (0..width).contains(&y) {
                x >> y
            } else if x < 0 {
                -1
            } else {
                0
            }
        }
        Binary::Atan2 => return None,
    })
}

fn floor_div(x: i64, y: i64) -> i64 {
    let q = x.wrapping_div(y);
    if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
}

/// Wrapping power by repeated squaring; a negative power is 1/xⁿ truncated, with 1/0 taken as 0 like division.
fn int_power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 => {
                if y % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut base, mut left, mut out) = (x, y, 1i64);
    while left > 0 {
        if left & 1 == 1 {
            out = out.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left >>= 1;
    }
    out
}

fn compare<T: PartialOrd>(c: Compare, x: &T, y: &T) -> bool {
    match c {
        Compare::Eq => x == y,
        Compare::Ne => x != y,
        Compare::Lt => x < y,
        Compare::Le => x <= y,
        Compare::Gt => x > y,
        Compare::Ge => x >= y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_arithmetic_follows_the_contract_at_its_edges() {
        let b = |op, d, x, y| scalar(ScalarOp::Binary(op), d, &[Scalar::I(x), Scalar::I(y)]);
        assert_eq!(b(Binary::Div, DType::I32, i64::from(i32::MIN), -1), Ok(Scalar::I(i64::from(i32::MIN))));
        assert_eq!(b(Binary::Div, DType::I8, -7, 2), Ok(Scalar::I(-3)));
        assert_eq!(b(Binary::Div, DType::I8, 5, 0), Ok(Scalar::I(0)));
        assert_eq!(b(Binary::Rem, DType::I16, -7, 3), Ok(Scalar::I(-1)));
        assert_eq!(b(Binary::Mod, DType::I16, -7, 3), Ok(Scalar::I(2)));
        assert_eq!(b(Binary::Mod, DType::I16, 7, -3), Ok(Scalar::I(-2)));
        assert_eq!(b(Binary::Shl, DType::U8, 255, 8), Ok(Scalar::I(0)));
        assert_eq!(b(Binary::Shl, DType::U8, 255, 4), Ok(Scalar::I(240)));
        assert_eq!(b(Binary::Shr, DType::I8, -5, 1), Ok(Scalar::I(-3)));
        assert_eq!(b(Binary::Shr, DType::I8, -5, 9), Ok(Scalar::I(-1)));
        assert_eq!(b(Binary::Pow, DType::I32, -2, 3), Ok(Scalar::I(-8)));
        assert_eq!(b(Binary::Pow, DType::I32, 2, -1), Ok(Scalar::I(0)));
        assert_eq!(b(Binary::Pow, DType::I32, -1, -3), Ok(Scalar::I(-1)));
        assert_eq!(b(Binary::Pow, DType::U8, 3, 6), Ok(Scalar::I(729 - 512)));
    }

    #[test]
    fn casts_saturate_truncate_and_take_nan_to_zero() {
        assert_eq!(cast(DType::I8, Scalar::F(-1e9)), Scalar::I(-128));
        assert_eq!(cast(DType::U8, Scalar::F(-0.9)), Scalar::I(0));
        assert_eq!(cast(DType::U32, Scalar::F(f64::INFINITY)), Scalar::I(4294967295));
        assert_eq!(cast(DType::I32, Scalar::F(f64::NAN)), Scalar::I(0));
        assert_eq!(cast(DType::I32, Scalar::F(-2.7)), Scalar::I(-2));
        assert_eq!(cast(DType::U8, Scalar::I(-1)), Scalar::I(255));
        // 2^24 + 1 + 2^-something lies above the tie; through f64 alone it would fall to even.
        let x = (1i64 << 62) + (1i64 << 38) + 1;
        assert_eq!(cast(DType::F32, Scalar::I(x)), Scalar::F(f64::from(x as f32)));
        assert_eq!(narrow_int(DType::F32, x), f64::from(x as f32));
    }

    #[test]
    fn floats_follow_the_contract_at_their_edges() {
        let u = |op, x: f64| unary(op, x).unwrap_or(f64::NAN);
        assert!((u(Unary::Gelu, 1.0) - 0.8413447460685429).abs() < 1e-15);
        assert!((u(Unary::Gelu, -5.0) / -1.4332578593959731e-06 - 1.0).abs() < 1e-9);
        assert!((u(Unary::GeluTanh, 1.0) - 0.8411919906082768).abs() < 1e-15);
        assert!((u(Unary::Mish, 1.0) - 0.8650983882673103).abs() < 1e-15);
        assert!((u(Unary::Selu, -1.0) + 1.1113307378125625).abs() < 1e-15);
        assert_eq!(u(Unary::Silu, f64::NEG_INFINITY), 0.0);
        assert_eq!(u(Unary::Softplus, 800.0), 800.0);
        assert_eq!(u(Unary::LogSigmoid, -800.0), -800.0);
        assert_eq!(u(Unary::Round, 2.5), 2.0);
        assert_eq!(binary(Binary::Mod, -1.0, 3.0), Some(2.0));
        assert_eq!(binary(Binary::Rem, -1.0, 3.0), Some(-1.0));
        assert_eq!(binary(Binary::Pow, -2.0, 3.0), Some(-8.0));
        assert!(binary(Binary::Pow, -2.0, 0.5).is_some_and(f64::is_nan));
        assert!((asinh(-1e-9) + 1e-9).abs() < 1e-24);
        assert!((acosh(1.0 + 1e-10) / 1.4142135623730951e-05 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn fma_rounds_once() {
        // a·b is just above a tie of f32 that c completes; two roundings would go to even.
        let (a, b) = (f64::from(1.0f32 + f32::EPSILON), f64::from(1.0f32 + f32::EPSILON));
        for c in [2f64.powi(-47), -2f64.powi(-48), 1.0, 2f64.powi(24), -1.0] {
            let want = f64::from((a as f32).mul_add(b as f32, c as f32));
            assert_eq!(round_to(DType::F32, fma(DType::F32, a, b, c)), want, "{c}");
        }
    }
}
