//! Reductions over any axes.
//!
//! Narrow floats are widened to f32 and integers to i64 first: truncated again, i64 arithmetic is the narrow type's
//! own wrapping arithmetic.

mod fold;
#[cfg(test)]
mod tests;
mod walk;

use half::{bf16, f16};
use olivine_ir::op::{Reduce, ReduceKind};
use olivine_ir::{DType, TensorType};

use crate::kernels::movement::copy_strided;
use crate::operand::{Number, Operand, Target, with_number};
use crate::scratch;
use fold::{Fold, LogSumExp, Over, Own, Product, Sum};
use walk::Walk;

/// Reduces an operand, read through its strides.
pub(crate) fn reduce(op: &Reduce, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (x, out) = (&x[0], &mut out[0]);
    match x.ty.dtype {
        DType::F32 => store(out.elements(), float::<f32>(op, x), |v| v as f32),
        DType::F64 => store(out.elements(), float::<f64>(op, x), |v| v),
        DType::F16 => store(
            out.elements(),
            float::<f32>(op, &widened(x, f16::to_f32).operand()),
            <f16 as Number>::from_f64,
        ),
        DType::BF16 => store(
            out.elements(),
            float::<f32>(op, &widened(x, bf16::to_f32).operand()),
            <bf16 as Number>::from_f64,
        ),
        DType::I64 => store(out.elements(), integer(op, x, i64::MIN, i64::MAX), |v| v),
        dtype => with_number!(dtype, T => {
            let wide = widened(x, |v: T| v.to_f64() as i64);
            let (low, high) = (T::LOWEST.to_f64() as i64, T::HIGHEST.to_f64() as i64);
            // Truncation, not saturation: the sum wraps as the narrow type's would.
            let narrow = |v: i64| bytemuck::pod_read_unaligned::<T>(&v.to_le_bytes()[..size_of::<T>()]);
            store(out.elements::<T>(), integer(op, &wide.operand(), low, high), narrow);
        }),
    }
}

fn store<A, T>(out: &mut [T], values: Vec<A>, narrow: impl Fn(A) -> T) {
    out.iter_mut().zip(values).for_each(|(o, v)| *o = narrow(v));
}

/// A packed copy in a wider type.
struct Wide<W> {
    ty: TensorType,
    data: Vec<W>,
}

impl<W: Number> Wide<W> {
    fn operand(&self) -> Operand<'_> {
        Operand::packed(TensorType::new(W::DTYPE, self.ty.shape), bytemuck::cast_slice(&self.data))
    }
}

fn widened<T: Number, W>(x: &Operand<'_>, widen: impl Fn(T) -> W) -> Wide<W> {
    let mut packed = scratch::zeroed::<T>(x.shape().numel());
    copy_strided(x, bytemuck::cast_slice_mut(&mut packed));
    Wide { ty: x.ty, data: scratch::collected(packed.into_iter().map(widen)) }
}

/// The accumulators of every result.
fn fold<T: Number, F: Fold<T>>(fold: F, op: &Reduce, x: &Operand<'_>) -> Vec<F::Acc> {
    let results = (0..x.shape().rank()).filter(|a| !op.axes.contains(a)).map(|a| x.shape()[a]).product();
    let count = op.axes.iter().map(|a| x.shape()[*a]).product();
    Walk::new(x, &op.axes).fold(&Over { fold, data: x.elements::<T>() }, results, count)
}

fn float<T: Number>(op: &Reduce, x: &Operand<'_>) -> Vec<f64> {
    use ReduceKind as K;
    let count = op.axes.iter().map(|a| x.shape()[*a]).product::<usize>() as f64;
    let each = |values: Vec<f64>, f: fn(f64, f64) -> f64| values.into_iter().map(|v| f(v, count)).collect();
    let wide = |values: Vec<T>| scratch::collected(values.into_iter().map(T::to_f64));
    match op.kind {
        K::Sum | K::Any | K::All => fold::<T, _>(Sum(|v| v), op, x),
        K::Mean => each(fold::<T, _>(Sum(|v| v), op, x), |v, n| v / n),
        K::LogSum => each(fold::<T, _>(Sum(|v| v), op, x), |v, _| v.ln()),
        K::L1 => fold::<T, _>(Sum(f64::abs), op, x),
        K::SumSquare => fold::<T, _>(Sum(|v| v * v), op, x),
        K::L2 => each(fold::<T, _>(Sum(|v| v * v), op, x), |v, _| v.sqrt()),
        K::Prod => fold::<T, _>(Product, op, x),
        K::LogSumExp => fold::<T, _>(LogSumExp, op, x).into_iter().map(LogSumExp::value).collect(),
        K::Max => wide(fold(Own { identity: T::LOWEST, step: T::larger, join: T::larger }, op, x)),
        K::Min => wide(fold(Own { identity: T::HIGHEST, step: T::smaller, join: T::smaller }, op, x)),
    }
}

/// Of bools, stored as 0 and 1, the largest is any and the smallest is all.
fn integer(op: &Reduce, x: &Operand<'_>, low: i64, high: i64) -> Vec<i64> {
    use ReduceKind as K;
    let plus = |step: fn(i64, i64) -> i64| Own { identity: 0, step, join: i64::wrapping_add };
    match op.kind {
        K::Prod => fold(Own { identity: 1, step: i64::wrapping_mul, join: i64::wrapping_mul }, op, x),
        K::L1 => fold(plus(|a, v| a.wrapping_add(v.wrapping_abs())), op, x),
        K::SumSquare => fold(plus(|a, v| a.wrapping_add(v.wrapping_mul(v))), op, x),
        K::Any => fold(Own { identity: 0, step: i64::max, join: i64::max }, op, x),
        K::All => fold(Own { identity: 1, step: i64::min, join: i64::min }, op, x),
        K::Max => fold(Own { identity: low, step: i64::max, join: i64::max }, op, x),
        K::Min => fold(Own { identity: high, step: i64::min, join: i64::min }, op, x),
        // The shape rule admits no other kind for integers.
        K::Sum | K::Mean | K::L2 | K::LogSum | K::LogSumExp => fold(plus(i64::wrapping_add), op, x),
    }
}
