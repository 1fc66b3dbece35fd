//! Conversions between dtypes.

use bytemuck::Pod;
use olivine_ir::DType;
use olivine_ir::half::{bf16, f16};

use super::int::unary;
use crate::operand::Number;
use crate::simd::half::{bf16_from_f64, f16_from_f64};
use crate::simd::{self, Fn1};

/// The conversions of quantised models, in wide registers.
fn cast_wide(from: DType, to: DType, x: &[u8], out: &mut [u8]) -> bool {
    fn map<T: Pod, U: Pod>(f: impl Fn1<T, U>, x: &[u8], out: &mut [u8]) -> bool {
        simd::map1(f, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
        true
    }
    match (from, to) {
        (DType::F32, DType::U8) => map::<f32, u8>(Wide, x, out),
        (DType::F32, DType::I8) => map::<f32, i8>(Wide, x, out),
        (DType::I32, DType::F32) => map::<i32, f32>(Wide, x, out),
        (DType::U8, DType::F32) => map::<u8, f32>(Wide, x, out),
        (DType::I8, DType::F32) => map::<i8, f32>(Wide, x, out),
        (DType::U8, DType::I32) => map::<u8, i32>(Wide, x, out),
        (DType::I8, DType::I32) => map::<i8, i32>(Wide, x, out),
        _ => false,
    }
}

/// A cast that the compiler vectorises.
#[derive(Clone, Copy)]
struct Wide;

macro_rules! wide {
    ($($from:ty => $to:ty),*) => {$(
        impl Fn1<$from, $to> for Wide {
            #[inline(always)]
            fn call<const FMA: bool>(self, x: $from) -> $to {
                x as $to
            }
        }
    )*};
}
wide!(i32 => f32, u8 => f32, i8 => f32, u8 => i32, i8 => i32);

macro_rules! wide_saturating {
    ($($to:ty),*) => {$(
        impl Fn1<f32, $to> for Wide {
            #[inline(always)]
            fn call<const FMA: bool>(self, x: f32) -> $to {
                // Saturating in floats, where it is two instructions for a whole register.
                let (least, most) = (<$to>::MIN as f32, <$to>::MAX as f32);
                let x = if x.is_nan() { 0.0 } else { x };
                let x = if x > least { x } else { least };
                let x = if x < most { x } else { most };
                // Safety: a number between the bounds of a byte.
                unsafe { x.to_int_unchecked::<i32>() as $to }
            }
        }
    )*};
}
wide_saturating!(u8, i8);

/// Converts a block; f16 and bf16 are f32 in registers, so casting to them only widens or narrows to f32 here.
pub(super) fn cast(from: DType, to: DType, x: &[u8], out: &mut [u8]) {
    if cast_wide(from, to, x, out) {
        return;
    }
    match from {
        DType::F32 | DType::F16 | DType::BF16 => cast_from::<f32>(to, x, out),
        DType::F64 => match to {
            // One rounding, straight from f64.
            DType::F16 => unary([x, &[], &[]], out, f16_from_f64),
            DType::BF16 => unary([x, &[], &[]], out, bf16_from_f64),
            _ => cast_from::<f64>(to, x, out),
        },
        DType::I8 => cast_from::<i8>(to, x, out),
        DType::U8 | DType::Bool => cast_from::<u8>(to, x, out),
        DType::I16 => cast_from::<i16>(to, x, out),
        // Integers wider than f32's mantissa would round twice on their way through f32.
        DType::I32 if to == DType::F16 => unary([x, &[], &[]], out, |v: i32| f16_from_f64(f64::from(v))),
        DType::I32 if to == DType::BF16 => unary([x, &[], &[]], out, |v: i32| bf16_from_f64(f64::from(v))),
        DType::I32 => cast_from::<i32>(to, x, out),
        DType::U32 if to == DType::F16 => unary([x, &[], &[]], out, |v: u32| f16_from_f64(f64::from(v))),
        DType::U32 if to == DType::BF16 => unary([x, &[], &[]], out, |v: u32| bf16_from_f64(f64::from(v))),
        DType::U32 => cast_from::<u32>(to, x, out),
        DType::I64 if to == DType::F16 => unary([x, &[], &[]], out, |v: i64| f16_from_f64(to_odd(v))),
        DType::I64 if to == DType::BF16 => unary([x, &[], &[]], out, |v: i64| bf16_from_f64(to_odd(v))),
        DType::I64 => cast_from::<i64>(to, x, out),
    }
}

/// Reads a block's bits as another dtype of the same size; f16 and bf16 are f32 in registers, so theirs are put together.
pub(super) fn bitcast(from: DType, to: DType, x: &[u8], out: &mut [u8]) {
    let halves = [x, &[], &[]];
    match (from, to) {
        (DType::F16, DType::I16) => unary(halves, out, |v: f32| f16::from_f32(v).to_bits() as i16),
        (DType::BF16, DType::I16) => unary(halves, out, |v: f32| bf16::from_f32(v).to_bits() as i16),
        (DType::I16, DType::F16) => unary(halves, out, |v: i16| f16::from_bits(v as u16).to_f32()),
        (DType::I16, DType::BF16) => unary(halves, out, |v: i16| bf16::from_bits(v as u16).to_f32()),
        (DType::F16, DType::BF16) => {
            unary(halves, out, |v: f32| bf16::from_bits(f16::from_f32(v).to_bits()).to_f32());
        }
        (DType::BF16, DType::F16) => {
            unary(halves, out, |v: f32| f16::from_bits(bf16::from_f32(v).to_bits()).to_f32());
        }
        _ => out.copy_from_slice(x),
    }
}

/// An integer as an f64 whose last bit remembers what was cut off, so that rounding it again is right.
fn to_odd(v: i64) -> f64 {
    let magnitude = v.unsigned_abs();
    let cut = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1u64 << cut) - 1) != 0;
    let kept = (magnitude >> cut << cut) | (u64::from(lost) << cut);
    if v < 0 { -(kept as f64) } else { kept as f64 }
}

/// A number that casts to all others as OPS says: Rust's `as` truncates, saturates and sends NaN to 0.
trait Castable: Number {
    fn to_f32(self) -> f32;
    fn to_i8(self) -> i8;
    fn to_u8(self) -> u8;
    fn to_i16(self) -> i16;
    fn to_i32(self) -> i32;
    fn to_u32(self) -> u32;
    fn to_i64(self) -> i64;
    fn to_bool(self) -> u8;
}

macro_rules! castable {
    ($($t:ty),*) => {$(
        impl Castable for $t {
            #[inline(always)] fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)] fn to_i8(self) -> i8 { self as i8 }
            #[inline(always)] fn to_u8(self) -> u8 { self as u8 }
            #[inline(always)] fn to_i16(self) -> i16 { self as i16 }
            #[inline(always)] fn to_i32(self) -> i32 { self as i32 }
            #[inline(always)] fn to_u32(self) -> u32 { self as u32 }
            #[inline(always)] fn to_i64(self) -> i64 { self as i64 }
            #[inline(always)] fn to_bool(self) -> u8 { u8::from(self != (0 as $t)) }
        }
    )*};
}
castable!(f32, f64, i8, u8, i16, i32, u32, i64);

fn cast_from<T: Castable>(to: DType, x: &[u8], out: &mut [u8]) {
    match to {
        DType::F32 | DType::F16 | DType::BF16 => unary([x, &[], &[]], out, T::to_f32),
        DType::F64 => unary([x, &[], &[]], out, T::to_f64),
        DType::I8 => unary([x, &[], &[]], out, T::to_i8),
        DType::U8 => unary([x, &[], &[]], out, T::to_u8),
        DType::I16 => unary([x, &[], &[]], out, T::to_i16),
        DType::I32 => unary([x, &[], &[]], out, T::to_i32),
        DType::U32 => unary([x, &[], &[]], out, T::to_u32),
        DType::I64 => unary([x, &[], &[]], out, T::to_i64),
        DType::Bool => unary([x, &[], &[]], out, T::to_bool),
    }
}
