//! Reductions over any axes.
//!
//! Narrow floats are widened to f32 and integers to i64, block by block: truncated again, i64 arithmetic is the narrow
//! type's own wrapping arithmetic.

mod fold;
#[cfg(test)]
mod tests;
mod walk;

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{Reduce, ReduceKind};

use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::scratch;
use fold::{Elements, Fold, LogSumExp, Over, Own, Product, Sum};
use walk::Walk;

kernels! { |op, x, out, call|
    Reduce => reduce(op, x, out),
}

/// Reduces an operand, read through its strides.
pub(crate) fn reduce(op: &Reduce, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (x, out) = (&x[0], &mut out[0]);
    match x.ty.dtype {
        DType::F32 => {
            store(out.elements(), float::<f32>(op, x, Elements::Direct(x.elements())), |v| v as f32);
        }
        DType::F64 => store(out.elements(), float::<f64>(op, x, Elements::Direct(x.elements())), |v| v),
        DType::F16 => {
            let load = widened(x.elements(), f16::to_f32);
            let values = float::<f32>(op, x, Elements::Widened(&load));
            store(out.elements(), values, <f16 as Number>::from_f64);
        }
        DType::BF16 => {
            let load = widened(x.elements(), bf16::to_f32);
            let values = float::<f32>(op, x, Elements::Widened(&load));
            store(out.elements(), values, <bf16 as Number>::from_f64);
        }
        DType::I64 => {
            let values = integer(op, x, Elements::Direct(x.elements()), i64::MIN, i64::MAX);
            store(out.elements(), values, |v| v);
        }
        DType::I8 => narrow::<i8>(op, x, out, |v| v as i8),
        DType::U8 | DType::Bool => narrow::<u8>(op, x, out, |v| v as u8),
        DType::I16 => narrow::<i16>(op, x, out, |v| v as i16),
        DType::I32 => narrow::<i32>(op, x, out, |v| v as i32),
        DType::U32 => narrow::<u32>(op, x, out, |v| v as u32),
    }
}

/// A reduction of an integer type in i64, and back by truncation, not saturation: sums wrap as the narrow type's would.
fn narrow<T: Number + Into<i64>>(op: &Reduce, x: &Operand<'_>, out: &mut Target<'_>, cut: fn(i64) -> T) {
    let load = widened(x.elements::<T>(), |v: T| -> i64 { v.into() });
    let values = integer(op, x, Elements::Widened(&load), T::LOWEST.into(), T::HIGHEST.into());
    store(out.elements::<T>(), values, cut);
}

fn store<A, T>(out: &mut [T], values: Vec<A>, narrow: impl Fn(A) -> T) {
    out.iter_mut().zip(values).for_each(|(o, v)| *o = narrow(v));
}

/// Loads elements from some position on, so far apart, in a wider type.
fn widened<T: Copy + Sync, W>(
    from: &[T],
    widen: impl Fn(T) -> W + Sync,
) -> impl Fn(isize, isize, &mut [W]) + Sync {
    move |start, stride, to| {
        if stride == 1 {
            let from = &from[start as usize..][..to.len()];
            to.iter_mut().zip(from).for_each(|(to, x)| *to = widen(*x));
        } else {
            for (i, to) in to.iter_mut().enumerate() {
                *to = widen(from[(start + i as isize * stride) as usize]);
            }
        }
    }
}

/// The accumulators of every result.
fn fold<T: Number, F: Fold<T>>(fold: F, op: &Reduce, x: &Operand<'_>, data: Elements<'_, T>) -> Vec<F::Acc> {
    let results = (0..x.shape().rank()).filter(|a| !op.axes.contains(a)).map(|a| x.shape()[a]).product();
    let count = op.axes.iter().map(|a| x.shape()[*a]).product();
    Walk::new(x, &op.axes).fold(&Over { fold, data }, results, count)
}

fn float<T: Number>(op: &Reduce, x: &Operand<'_>, data: Elements<'_, T>) -> Vec<f64> {
    use ReduceKind as K;
    let count = op.axes.iter().map(|a| x.shape()[*a]).product::<usize>() as f64;
    let each = |values: Vec<f64>, f: fn(f64, f64) -> f64| values.into_iter().map(|v| f(v, count)).collect();
    let wide = |values: Vec<T>| scratch::collected(values.into_iter().map(T::to_f64));
    match op.kind {
        K::Sum | K::Any | K::All => fold::<T, _>(Sum(|v| v), op, x, data),
        K::Mean => each(fold::<T, _>(Sum(|v| v), op, x, data), |v, n| v / n),
        K::LogSum => each(fold::<T, _>(Sum(|v| v), op, x, data), |v, _| v.ln()),
        K::L1 => fold::<T, _>(Sum(f64::abs), op, x, data),
        K::SumSquare => fold::<T, _>(Sum(|v| v * v), op, x, data),
        K::L2 => each(fold::<T, _>(Sum(|v| v * v), op, x, data), |v, _| v.sqrt()),
        K::Prod => fold::<T, _>(Product, op, x, data),
        K::LogSumExp => fold::<T, _>(LogSumExp, op, x, data).into_iter().map(LogSumExp::value).collect(),
        K::Max => wide(fold(Own { identity: T::LOWEST, step: T::larger, join: T::larger }, op, x, data)),
        K::Min => wide(fold(Own { identity: T::HIGHEST, step: T::smaller, join: T::smaller }, op, x, data)),
    }
}

/// A sum of some function of each element; the function is compiled into the loop.
fn plus<F: Fn(i64, i64) -> i64>(step: F) -> Own<i64, F> {
    Own { identity: 0, step, join: i64::wrapping_add }
}

/// Of bools, stored as 0 and 1, the largest is any and the smallest is all.
fn integer(op: &Reduce, x: &Operand<'_>, data: Elements<'_, i64>, low: i64, high: i64) -> Vec<i64> {
    use ReduceKind as K;
    match op.kind {
        K::Prod => fold(Own { identity: 1, step: i64::wrapping_mul, join: i64::wrapping_mul }, op, x, data),
        K::L1 => fold(plus(|a: i64, v: i64| a.wrapping_add(v.wrapping_abs())), op, x, data),
        K::SumSquare => fold(plus(|a: i64, v: i64| a.wrapping_add(v.wrapping_mul(v))), op, x, data),
        K::Any => fold(Own { identity: 0, step: i64::max, join: i64::max }, op, x, data),
        K::All => fold(Own { identity: 1, step: i64::min, join: i64::min }, op, x, data),
        K::Max => fold(Own { identity: low, step: i64::max, join: i64::max }, op, x, data),
        K::Min => fold(Own { identity: high, step: i64::min, join: i64::min }, op, x, data),
        // The shape rule admits no other kind for integers.
        K::Sum | K::Mean | K::L2 | K::LogSum | K::LogSumExp => fold(plus(i64::wrapping_add), op, x, data),
    }
}
