//! Float dtypes, the type each accumulates in, and the functions of the inner loops.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::tile::Scratch;
use crate::kernels::gemm::Accumulator;
use crate::operand::Number;
use crate::simd::math;

/// A type that scores, weights and sums are held in: f32 or f64.
pub(crate) trait Acc:
    Accumulator
    + Real<Acc = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + MulAssign
{
    /// eˣ for x ≤ 0.
    fn exp_below<const FMA: bool>(self) -> Self;
    fn tanh<const FMA: bool>(self) -> Self;
    /// The number itself.
    fn of_f32(x: f32) -> Self;
    /// Runs `f` with this thread's buffers, which keep their memory from call to call.
    fn with_scratch<R>(f: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
}

/// A float dtype.
pub(crate) trait Real: Number {
    type Acc: Acc;
    fn wide(self) -> Self::Acc;
    fn widen(src: &[Self], dst: &mut [Self::Acc]);
    fn narrow(src: &[Self::Acc], dst: &mut [Self]);
    /// The elements as they are, if they need no widening.
    fn as_acc(src: &[Self]) -> Option<&[Self::Acc]>;
}

macro_rules! wide_real {
    ($t:ty, $exp:expr, $tanh:expr) => {
        impl Acc for $t {
            #[inline(always)]
            fn exp_below<const FMA: bool>(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn tanh<const FMA: bool>(self) -> Self {
                $tanh(self)
            }
            #[inline(always)]
            fn of_f32(x: f32) -> Self {
                x.into()
            }
            fn with_scratch<R>(f: impl FnOnce(&mut Scratch<Self>) -> R) -> R {
                thread_local! {
                    static SCRATCH: Cell<Scratch<$t>> = Cell::default();
                }
                let mut scratch = SCRATCH.take();
                let result = f(&mut scratch);
                SCRATCH.set(scratch);
                result
            }
        }
        impl Real for $t {
            type Acc = $t;
            #[inline(always)]
            fn wide(self) -> $t {
                self
            }
            fn widen(src: &[$t], dst: &mut [$t]) {
                dst.copy_from_slice(src);
            }
            fn narrow(src: &[$t], dst: &mut [$t]) {
                dst.copy_from_slice(src);
            }
            fn as_acc(src: &[$t]) -> Option<&[$t]> {
                Some(src)
            }
        }
    };
}
wide_real!(f32, math::exp_below::<FMA>, math::tanh::<FMA>);
wide_real!(f64, f64::exp, f64::tanh);

macro_rules! narrow_real {
    ($($t:ty),*) => {$(
        impl Real for $t {
            type Acc = f32;
            #[inline(always)]
            fn wide(self) -> f32 {
                self.to_f32()
            }
            fn widen(src: &[$t], dst: &mut [f32]) {
                src.convert_to_f32_slice(dst);
            }
            fn narrow(src: &[f32], dst: &mut [$t]) {
                dst.convert_from_f32_slice(src);
            }
            fn as_acc(_: &[$t]) -> Option<&[f32]> {
                None
            }
        }
    )*};
}
narrow_real!(f16, bf16);
