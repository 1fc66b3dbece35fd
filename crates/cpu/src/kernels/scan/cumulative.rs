//! Running sums, products and maxima. Floats accumulate in f64, which keeps the error of a long axis below one
//! rounding of the result; integers wrap.

use half::{bf16, f16};
use olivine_ir::op::{Cumulative, CumulativeKind};

use super::{Axis, GRAIN};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target, with_number};
use crate::parallel;

kernels! { |op, x, out, call|
    Cumulative => cumulative(op, x, out),
}

/// A number and what it accumulates in.
trait Running: Number {
    type Acc: Number;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
}

macro_rules! running {
    ($($t:ty => $acc:ty, $widen:expr, $narrow:expr);*) => {$(
        impl Running for $t {
            type Acc = $acc;
            #[inline(always)]
            fn widen(self) -> $acc { $widen(self) }
            #[inline(always)]
            fn narrow(acc: $acc) -> Self { $narrow(acc) }
        }
    )*};
}
running! {
    f32 => f64, f64::from, |x| x as f32;
    f16 => f64, f16::to_f64, f16::from_f64;
    bf16 => f64, bf16::to_f64, bf16::from_f64;
    f64 => f64, |x| x, |x| x;
    i8 => i8, |x| x, |x| x;
    u8 => u8, |x| x, |x| x;
    i16 => i16, |x| x, |x| x;
    i32 => i32, |x| x, |x| x;
    u32 => u32, |x| x, |x| x;
    i64 => i64, |x| x, |x| x
}

/// Accumulates along an axis.
pub(crate) fn cumulative(op: &Cumulative, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let axis = Axis::new(&target.ty.shape, op.axis);
    with_number!(target.ty.dtype, T => {
        let (src, out) = (x[0].slice::<T>(), target.elements::<T>());
        match op.kind {
            CumulativeKind::Sum => scan(op, axis, src, out, Number::ZERO, Number::plus),
            CumulativeKind::Prod => scan(op, axis, src, out, Number::ONE, Number::times),
            CumulativeKind::Max => scan(op, axis, src, out, Number::LOWEST, Number::larger),
        }
    });
}

fn scan<T: Running>(
    op: &Cumulative,
    axis: Axis,
    src: &[T],
    out: &mut [T],
    identity: T::Acc,
    step: impl Fn(T::Acc, T::Acc) -> T::Acc + Sync,
) {
    let slab = axis.size * axis.inner;
    let slabs = GRAIN.div_ceil(slab);
    parallel::chunks(out, slabs * slab, &|i, out| {
        let src = &src[i * slabs * slab..][..out.len()];
        let acc = &mut Vec::new();
        for (src, out) in src.chunks(slab).zip(out.chunks_mut(slab)) {
            if axis.inner == 1 {
                let pairs = src.iter().zip(out);
                if op.reverse {
                    row(op.exclusive, pairs.rev(), identity, &step);
                } else {
                    row(op.exclusive, pairs, identity, &step);
                }
            } else {
                acc.clear();
                acc.resize(axis.inner, identity);
                let lines = src.chunks(axis.inner).zip(out.chunks_mut(axis.inner));
                if op.reverse {
                    lines.rev().for_each(|(x, o)| line(op.exclusive, x, o, acc, &step));
                } else {
                    lines.for_each(|(x, o)| line(op.exclusive, x, o, acc, &step));
                }
            }
        }
    });
}

fn row<'a, T: Running>(
    exclusive: bool,
    pairs: impl Iterator<Item = (&'a T, &'a mut T)>,
    identity: T::Acc,
    step: &impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    let mut acc = identity;
    for (x, o) in pairs {
        let next = step(acc, x.widen());
        *o = T::narrow(if exclusive { acc } else { next });
        acc = next;
    }
}

/// One step of many accumulations side by side.
fn line<T: Running>(
    exclusive: bool,
    x: &[T],
    out: &mut [T],
    acc: &mut [T::Acc],
    step: &impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    for ((x, o), acc) in x.iter().zip(out).zip(acc) {
        let next = step(*acc, x.widen());
        *o = T::narrow(if exclusive { *acc } else { next });
        *acc = next;
    }
}
