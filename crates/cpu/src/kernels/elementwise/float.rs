//! Steps over floats: f32 (also standing for f16 and bf16) and f64.

use olivine_ir::DType;
use olivine_ir::op::{Binary, ScalarOp, Unary};

use super::int::{binary, compare, ternary, unary};
use crate::simd::half::{bf16_from_f64, f16_from_f64};
use crate::simd::math::{self, double};
use crate::simd::{Fn1, Fn2, map1, map2};

/// Runs a step over f32 numbers; `dtype` is what they stand for.
pub(super) fn step32(op: ScalarOp, dtype: DType, args: [&[u8]; 3], out: &mut [u8]) {
    match op {
        ScalarOp::Unary(Unary::IsNan) => unary(args, out, |x: f32| u8::from(x.is_nan())),
        ScalarOp::Unary(Unary::IsInf) => unary(args, out, |x: f32| u8::from(x.is_infinite())),
        ScalarOp::Unary(u) => {
            math::unary_f32(u, bytemuck::cast_slice(args[0]), bytemuck::cast_slice_mut(out));
        }
        ScalarOp::Activation(a) => {
            math::activation_f32(a, bytemuck::cast_slice(args[0]), bytemuck::cast_slice_mut(out));
        }
        ScalarOp::Binary(b) => binary32(b, args, out),
        ScalarOp::Compare(c) => compare::<f32>(c, args, out),
        ScalarOp::Fma => match dtype {
            DType::F16 => ternary(args, out, |a: f32, b, c| f16_from_f64(fma_to_odd(a, b, c))),
            DType::BF16 => ternary(args, out, |a: f32, b, c| bf16_from_f64(fma_to_odd(a, b, c))),
            _ => ternary(args, out, f32::mul_add),
        },
        ScalarOp::Clamp => ternary(args, out, |x: f32, low, high| math::min(math::max(x, low), high)),
        ScalarOp::Cast(_) | ScalarOp::Bitcast(_) | ScalarOp::Where => {}
    }
}

/// a·b + c in f64, the last bit set when something was cut off, so that rounding to a half dtype rounds once.
fn fma_to_odd(a: f32, b: f32, c: f32) -> f64 {
    // f16 and bf16 have at most 11 significant bits: the product is exact.
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let s = p + c;
    if !s.is_finite() {
        return s;
    }
    let back = s - p;
    let lost = (p - (s - back)) + (c - back);
    let bits = s.to_bits();
    if lost == 0.0 || bits & 1 == 1 {
        return s;
    }
    // Towards what was lost: away from zero if it has the sum's sign.
    f64::from_bits(if (lost > 0.0) == (s > 0.0) { bits + 1 } else { bits - 1 })
}

fn binary32(b: Binary, args: [&[u8]; 3], out: &mut [u8]) {
    match b {
        Binary::Add => binary(args, out, |a: f32, b: f32| a + b),
        Binary::Sub => binary(args, out, |a: f32, b: f32| a - b),
        Binary::Mul => binary(args, out, |a: f32, b: f32| a * b),
        Binary::Div => binary(args, out, |a: f32, b: f32| a / b),
        Binary::Pow => pow32(args, out),
        Binary::Max => binary(args, out, math::max),
        Binary::Min => binary(args, out, math::min),
        Binary::Rem => binary(args, out, |a: f32, b: f32| a % b),
        Binary::Mod => binary(args, out, |a: f32, b: f32| double::modulo(f64::from(a), f64::from(b)) as f32),
        Binary::Atan2 => binary(args, out, |a: f32, b: f32| f64::from(a).atan2(f64::from(b)) as f32),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {}
    }
}

/// Powers; a block of squares or cubes, the usual case, is a vector loop.
fn pow32(args: [&[u8]; 3], out: &mut [u8]) {
    let exponents: &[f32] = bytemuck::cast_slice(args[1]);
    let first = exponents.first().copied().unwrap_or(1.0);
    if (first == 2.0 || first == 3.0) && exponents.iter().all(|e| *e == first) {
        if first == 2.0 {
            unary(args, out, |x: f32| x * x);
        } else {
            unary(args, out, |x: f32| x * x * x);
        }
    } else {
        binary(args, out, |a: f32, b: f32| f64::from(a).powf(f64::from(b)) as f32);
    }
}

/// Runs a step over f64 numbers.
pub(super) fn step64(op: ScalarOp, args: [&[u8]; 3], out: &mut [u8]) {
    match op {
        ScalarOp::Unary(Unary::IsNan) => unary(args, out, |x: f64| u8::from(x.is_nan())),
        ScalarOp::Unary(Unary::IsInf) => unary(args, out, |x: f64| u8::from(x.is_infinite())),
        ScalarOp::Unary(u) => map1(Double(u), bytemuck::cast_slice(args[0]), bytemuck::cast_slice_mut(out)),
        ScalarOp::Activation(a) => unary(args, out, |x: f64| math::activation_f64(a, x)),
        ScalarOp::Binary(b) => {
            let (x, y) = (bytemuck::cast_slice(args[0]), bytemuck::cast_slice(args[1]));
            map2(Double(b), x, y, bytemuck::cast_slice_mut(out));
        }
        ScalarOp::Compare(c) => compare::<f64>(c, args, out),
        ScalarOp::Fma => ternary(args, out, f64::mul_add),
        ScalarOp::Clamp => {
            ternary(args, out, |x: f64, low, high| double::min(double::max(x, low), high));
        }
        ScalarOp::Cast(_) | ScalarOp::Bitcast(_) | ScalarOp::Where => {}
    }
}

#[derive(Clone, Copy)]
struct Double<Op>(Op);

impl Fn1<f64, f64> for Double<Unary> {
    const WIDE: bool = false;
    #[inline(always)]
    fn call<const FMA: bool>(self, x: f64) -> f64 {
        math::unary_f64(self.0, x)
    }
}

impl Fn2<f64, f64> for Double<Binary> {
    const WIDE: bool = false;
    #[inline(always)]
    fn call<const FMA: bool>(self, a: f64, b: f64) -> f64 {
        double::binary(self.0, a, b)
    }
}
