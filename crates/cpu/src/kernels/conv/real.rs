//! The two types that convolutions and interpolations compute in, and conversions from and to f16 and bf16.

use half::slice::HalfFloatSliceExt;

use super::vector::{Job, dispatch_f32, dispatch_f64};
use crate::kernels::gemm::Accumulator;
use crate::operand::Number;
use crate::parallel;
use crate::scratch;
use crate::simd::Vectors;
use crate::simd::vector::Lane;

/// f32 or f64.
pub(crate) trait Real:
    Accumulator + Lane + std::ops::Div<Output = Self> + std::ops::AddAssign
{
    /// |self|.
    fn magnitude(self) -> Self;
    /// self to a power.
    fn power(self, p: Self) -> Self;
    /// Runs a micro-kernel's work on the vectors of an instruction set that [`super::vector::lanes`] gave.
    fn dispatch(set: Vectors, job: impl Job<Self>);
}

macro_rules! real {
    ($t:ty, $dispatch:expr) => {
        impl Real for $t {
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            fn power(self, p: Self) -> Self {
                self.powf(p)
            }
            fn dispatch(set: Vectors, job: impl Job<Self>) {
                $dispatch(set, job);
            }
        }
    };
}
real!(f32, dispatch_f32);
real!(f64, |_, job| dispatch_f64(job));

/// f16 or bf16.
pub(crate) trait Half: Number + Send + Sync {
    /// As f32, exactly.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounded to nearest even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

macro_rules! half {
    ($t:ty) => {
        impl Half for $t {
            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    };
}
half!(half::f16);
half!(half::bf16);

/// Elements one task converts.
const CONVERTED: usize = 1 << 16;

/// All elements as f32.
pub(crate) fn widened<H: Half>(from: &[H]) -> Vec<f32> {
    let mut to = scratch::zeroed::<f32>(from.len());
    parallel::chunks(&mut to, CONVERTED, &|i, to| H::widen(&from[i * CONVERTED..][..to.len()], to));
    to
}

/// All elements rounded to a half type.
pub(crate) fn narrowed<H: Half>(from: &[f32], to: &mut [H]) {
    parallel::chunks(to, CONVERTED, &|i, to| H::narrow(&from[i * CONVERTED..][..to.len()], to));
}
