//! Sequence models with a carried state, step by step along the sequence and vectorised across channels or values.
//!
//! Tasks take a batch and a head, or a batch and a block of channels. Everything is widened first and computed in f32 or
//! f64; each task writes rows of its own, which are laid into the result when all are done.

mod conv;
mod heads;
mod selective;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use olivine_ir::op::Unary;

use super::attention::{Acc, Real};
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::scratch;
use crate::simd::math;

/// Elements one task lays into a result at least.
const GRAIN: usize = 1 << 15;

/// The functions of the steps, of f32 or f64.
trait Step: Acc {
    fn exp<const FMA: bool>(self) -> Self;
    fn softplus<const FMA: bool>(self) -> Self;
    fn silu<const FMA: bool>(self) -> Self;
}

macro_rules! step {
    ($t:ty, $exp:expr, $softplus:expr, $silu:expr) => {
        impl Step for $t {
            #[inline(always)]
            fn exp<const FMA: bool>(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn softplus<const FMA: bool>(self) -> Self {
                $softplus(self)
            }
            #[inline(always)]
            fn silu<const FMA: bool>(self) -> Self {
                $silu(self)
            }
        }
    };
}
step!(f32, math::exp::<FMA>, math::softplus::<FMA>, math::silu::<FMA>);
step!(f64, f64::exp, |x| math::unary_f64(Unary::Softplus, x), |x| math::unary_f64(Unary::Silu, x));

/// A packed operand of dtype `T`, or already of what `T` is computed in.
fn wide<'a, T: Real>(x: &Operand<'a>) -> Cow<'a, [T::Acc]> {
    if x.ty.dtype != T::DTYPE {
        return Cow::Borrowed(x.slice::<T::Acc>());
    }
    let src = x.slice::<T>();
    match T::as_acc(src) {
        Some(same) => Cow::Borrowed(same),
        None => {
            let mut out = scratch::zeroed::<T::Acc>(src.len());
            T::widen(src, &mut out);
            Cow::Owned(out)
        }
    }
}

/// The rows of a task, `[length, width]`, and its state in the task's own order.
struct Part<A> {
    rows: Vec<A>,
    state: Vec<A>,
}

/// Lays parts side by side: the result is `[batch, length, parts of the batch, width]`, its last part maybe cut short.
fn lay<T: Real>(
    parts: &[Part<T::Acc>],
    per_batch: usize,
    length: usize,
    row: usize,
    target: &mut Target<'_>,
) {
    if target.ty.shape.has_zero() {
        return;
    }
    let width = parts.first().map_or(0, |p| p.rows.len() / length);
    let rows = GRAIN.div_ceil(row);
    parallel::chunks(target.elements::<T>(), rows * row, &|task, out| {
        for (i, out) in out.chunks_mut(row).enumerate() {
            let (batch, t) = ((task * rows + i) / length, (task * rows + i) % length);
            let parts = &parts[batch * per_batch..][..per_batch];
            for (part, out) in parts.iter().zip(out.chunks_mut(width)) {
                T::narrow(&part.rows[t * width..][..out.len()], out);
            }
        }
    });
}
