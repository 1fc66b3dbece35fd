//! Reductions, positions of extremes, and running sums.

use olivine_ir::op::{ArgReduce, ArgReduceKind, Cumulative, CumulativeKind, Reduce, ReduceKind};
use olivine_ir::{DType, Shape, Tensor, ValueId};

use super::Entry;
use super::arity::{Since, Takes};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("ArgMax", Takes(1, 1), |n| arg(n, ArgReduceKind::Max)),
    ("ArgMin", Takes(1, 1), |n| arg(n, ArgReduceKind::Min)),
    ("CumProd", Takes(2, 1), |n| cumulative(n, CumulativeKind::Prod)),
    ("CumSum", Takes(2, 1), |n| cumulative(n, CumulativeKind::Sum)),
    ("ReduceL1", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::L1)),
    ("ReduceL2", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::L2)),
    ("ReduceLogSum", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::LogSum)),
    ("ReduceLogSumExp", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::LogSumExp)),
    ("ReduceMax", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::Max)),
    ("ReduceMean", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::Mean)),
    ("ReduceMin", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::Min)),
    ("ReduceProd", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::Prod)),
    ("ReduceSum", Since(&[(1, 1, 1), (13, 2, 1)]), |n| reduce(n, ReduceKind::Sum)),
    ("ReduceSumSquare", Since(&[(1, 1, 1), (18, 2, 1)]), |n| reduce(n, ReduceKind::SumSquare)),
    ("TopK", Since(&[(1, 1, 2), (10, 2, 2)]), top_k),
];

/// Elements in the order of their dtype, or such elements back as they were: numbers of 64 bits without a sign change
/// their highest bit.
pub(super) fn ordered(n: &mut NodeContext<'_, '_>, x: ValueId, element: ElementType) -> Answer<ValueId> {
    if element != ElementType::U64 {
        return Ok(x);
    }
    let highest = n.constant(Tensor::scalar(i64::MIN));
    n.build(|g| g.xor(x, highest))
}

fn reduce(n: &mut NodeContext<'_, '_>, kind: ReduceKind) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let axes = if n.has(1) { n.optional_ints(1)? } else { n.ints("axes")? };
    let axes = n.axes(&axes.unwrap_or_default(), rank)?;
    let keepdims = n.flag("keepdims", true)?;
    // Over no axes at all what a reduction does to single elements is still done.
    let all = axes.is_empty() && !n.flag("noop_with_empty_axes", false)?;
    let axes = if all { (0..rank).collect() } else { axes };
    let over = |n: &mut NodeContext<'_, '_>, kind: ReduceKind, x: ValueId| {
        n.add(Reduce { kind, axes: axes.clone(), keepdims }, &[x])
    };
    let element = n.element(0)?;
    let float = n.dtype(x)?.is_float();
    use ReduceKind as K;
    let y = match kind {
        K::Max | K::Min if element == ElementType::Bool => {
            over(n, if kind == K::Max { K::Any } else { K::All }, x)?
        }
        K::Max | K::Min => {
            let x = ordered(n, x, element)?;
            let y = over(n, kind, x)?;
            ordered(n, y, element)?
        }
        // Of numbers without a sign, which may be held by numbers with one.
        K::L1 if element == ElementType::U64 => over(n, K::Sum, x)?,
        K::Mean if !float => {
            let shape = n.shape(x)?;
            let count = axes.iter().fold(1usize, |count, a| count.saturating_mul(shape[*a])).max(1);
            whole(n, x, |n, x| {
                let sum = over(n, K::Sum, x)?;
                divided(n, sum, count, element)
            })?
        }
        K::L2 if !float => whole(n, x, |n, x| {
            let sum = over(n, K::SumSquare, x)?;
            root(n, sum)
        })?,
        K::LogSum if !float => whole(n, x, |n, x| {
            let sum = over(n, K::Sum, x)?;
            n.build(|g| {
                let sum = g.cast(sum, DType::F32)?;
                let log = g.log(sum)?;
                g.cast(log, DType::I64)
            })
        })?,
        K::LogSumExp if !float => {
            // The largest is taken out exactly; what is left to add to it is small.
            let largest = n.add(Reduce { kind: K::Max, axes: axes.clone(), keepdims: true }, &[x])?;
            let far = n.build(|g| {
                let (x, largest) = (g.cast(x, DType::I64)?, g.cast(largest, DType::I64)?);
                let far = g.sub(x, largest)?;
                g.cast(far, DType::F32)
            })?;
            let more = over(n, K::LogSumExp, far)?;
            let largest = over(n, K::Max, x)?;
            whole(n, largest, |n, largest| {
                let nothing = n.constant(Tensor::scalar(0i64));
                n.build(|g| {
                    let (down, up) = (g.floor(more)?, g.ceil(more)?);
                    let (down, up) = (g.cast(down, DType::I64)?, g.cast(up, DType::I64)?);
                    let (down, up) = (g.add(largest, down)?, g.add(largest, up)?);
                    // Towards zero.
                    let negative = g.lt(down, nothing)?;
                    g.select(negative, up, down)
                })
            })?
        }
        _ => over(n, kind, x)?,
    };
    n.like_first(y)
}

/// Computes with integers of 64 bits, and goes back to those that there were.
fn whole(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    compute: impl FnOnce(&mut NodeContext<'_, '_>, ValueId) -> Answer<ValueId>,
) -> Answer<ValueId> {
    let dtype = n.dtype(x)?;
    if dtype == DType::I64 {
        return compute(n, x);
    }
    let x = n.build(|g| g.cast(x, DType::I64))?;
    let y = compute(n, x)?;
    n.build(|g| g.cast(y, dtype))
}

/// A sum over a count, towards zero.
fn divided(n: &mut NodeContext<'_, '_>, sum: ValueId, count: usize, element: ElementType) -> Answer<ValueId> {
    let (count, one, most) = (
        n.constant(Tensor::scalar(count as i64)),
        n.constant(Tensor::scalar(1i64)),
        n.constant(Tensor::scalar(i64::MAX)),
    );
    if element != ElementType::U64 {
        return n.build(|g| g.div(sum, count));
    }
    // Without a sign: twice the quotient of one half, and one more if the rest has room for it.
    n.build(|g| {
        let half = g.shr(sum, one)?;
        let half = g.and(half, most)?;
        let quotient = g.div(half, count)?;
        let quotient = g.shl(quotient, one)?;
        let back = g.mul(quotient, count)?;
        let rest = g.sub(sum, back)?;
        let more = g.ge(rest, count)?;
        let more = g.cast(more, DType::I64)?;
        g.add(quotient, more)
    })
}

/// The whole part of the root of an i64.
fn root(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let (zero, one) = (n.constant(Tensor::scalar(0i64)), n.constant(Tensor::scalar(1i64)));
    n.build(|g| {
        // Newton's steps from what floats of 32 bits know come to within one of it.
        let near = g.cast(x, DType::F32)?;
        let near = g.sqrt(near)?;
        let mut root = g.cast(near, DType::I64)?;
        for _ in 0..2 {
            root = g.max(root, one)?;
            let other = g.div(x, root)?;
            let both = g.add(root, other)?;
            root = g.shr(both, one)?;
        }
        let above = g.mul(root, root)?;
        let above = g.gt(above, x)?;
        let above = g.cast(above, DType::I64)?;
        let root = g.sub(root, above)?;
        g.max(root, zero)
    })
}

fn arg(n: &mut NodeContext<'_, '_>, kind: ArgReduceKind) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let axis = n.axis(n.int_or("axis", 0)?, rank)?;
    let (keepdims, last) = (n.flag("keepdims", true)?, n.flag("select_last_index", false)?);
    let element = n.element(0)?;
    let x = ordered(n, x, element)?;
    let y = n.add(ArgReduce { kind, axis, keepdims, last }, &[x])?;
    Ok(vec![n.result(y, ElementType::I64)])
}

fn top_k(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let element = n.element(0)?;
    let k = match n.opset() {
        ..10 => n.int("k")?.ok_or_else(|| n.wrong("attribute `k` is missing"))?,
        _ => n.fixed_int(1)?,
    };
    let k = usize::try_from(k).map_err(|_| n.wrong(format!("k is {k}")))?;
    let rank = n.shape(x)?.rank();
    let axis = n.axis(n.int_or("axis", -1)?, rank)?;
    let largest = n.flag("largest", true)?;
    let keys = ordered(n, x, element)?;
    let (values, indices) = n.build(|g| g.top_k(keys, k, axis as isize, largest))?;
    let values = ordered(n, values, element)?;
    Ok(vec![n.result(values, element), n.result(indices, ElementType::I64)])
}

fn cumulative(n: &mut NodeContext<'_, '_>, kind: CumulativeKind) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let axis = n.fixed_int(1)?;
    if shape == Shape::SCALAR {
        return Err(n.wrong("it has no axis to run along"));
    }
    let axis = n.axis(axis, shape.rank())?;
    let (exclusive, reverse) = (n.flag("exclusive", false)?, n.flag("reverse", false)?);
    let y = n.add(Cumulative { kind, axis, exclusive, reverse }, &[x])?;
    n.like_first(y)
}
