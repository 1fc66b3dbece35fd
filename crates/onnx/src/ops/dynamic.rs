//! Results whose size is known only when they are computed: a result padded to its largest size and a count, and what
//! the count says of it.

use olivine_ir::op::{CumulativeKind, ReduceKind};
use olivine_ir::{DType, Graph, Shape, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::reduce::ordered;
use super::shape::reshape_to;
use crate::ElementType;
use crate::import::{Answer, NodeContext, TensorRef, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Compress", Takes(2, 1), compress),
    ("NonZero", Takes(1, 1), nonzero),
    ("Unique", Takes(1, 4), unique),
];

/// The value of a count, which the run time finds out where it does not follow from what is known.
pub(super) fn counted(n: &mut NodeContext<'_, '_>, count: ValueId) -> Answer<usize> {
    counts(n, count).map(|[count]| count)
}

/// The values of so many counts in one tensor.
pub(super) fn counts<const N: usize>(n: &mut NodeContext<'_, '_>, all: ValueId) -> Answer<[usize; N]> {
    let place = n.location();
    let held = TensorRef { frame: n.walk.depth(), id: all, element: ElementType::I64 };
    let tensor = n.walk.fixed(held, &place)?;
    let values = tensor.as_slice::<i64>().map(<[i64]>::to_vec);
    let values: Vec<usize> = values.iter().flatten().filter_map(|v| usize::try_from(*v).ok()).collect();
    <[usize; N]>::try_from(values).map_err(|_| n.wrong(format!("its counts are {tensor:?}")))
}

fn nonzero(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (positions, count) = n.build(|g| g.nonzero(x))?;
    let count = counted(n, count)?;
    let y = n.build(|g| g.narrow(positions, 1, 0, count))?;
    Ok(vec![n.result(y, ElementType::I64)])
}

/// Positions of what is true in a list, in order.
fn positions(n: &mut NodeContext<'_, '_>, list: ValueId) -> Answer<(ValueId, usize)> {
    let (found, count) = n.build(|g| g.nonzero(list))?;
    let count = counted(n, count)?;
    let found = n.build(|g| g.narrow(found, 1, 0, count))?;
    let to = n.built(Shape::new(&[count]))?;
    Ok((reshape_to(n, found, to)?, count))
}

fn compress(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut x, mut condition) = (n.tensor(0)?, n.tensor(1)?);
    let axis = match n.int("axis")? {
        Some(axis) => {
            let rank = n.shape(x)?.rank();
            n.axis(axis, rank)?
        }
        None => {
            x = flat(n, x)?;
            0
        }
    };
    let shape = n.shape(x)?;
    let [length] = *n.shape(condition)?.dims() else { return Err(n.wrong("its condition is no list")) };
    if length > shape[axis] {
        condition = n.build(|g| g.narrow(condition, 0, 0, shape[axis]))?;
    }
    let (kept, _) = positions(n, condition)?;
    let y = n.build(|g| g.gather(x, kept, axis as isize))?;
    n.like_first(y)
}

fn flat(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let count = n.shape(x)?.numel();
    let to = n.built(Shape::new(&[count]))?;
    reshape_to(n, x, to)
}

fn unique(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let mut x = n.tensor(0)?;
    let element = n.element(0)?;
    let axis = match n.int("axis")? {
        Some(axis) => {
            let rank = n.shape(x)?.rank();
            n.axis(axis, rank)?
        }
        None => {
            x = flat(n, x)?;
            0
        }
    };
    let shape = n.shape(x)?;
    let length = shape[axis];
    if length == 0 {
        let empty = n.built(Tensor::new([0], Vec::<i64>::new()))?;
        let empty = n.constant(empty);
        let list = n.result(empty, ElementType::I64);
        return Ok(vec![n.result(x, element), list.clone(), list.clone(), list]);
    }
    let rows = rows(n, x, axis, element)?;
    let order = n.build(|g| in_order(g, rows))?;
    let begins = n.build(|g| begins(g, rows, order))?;
    let number = n.build(|g| {
        let ones = g.cast(begins, DType::I64)?;
        let running = g.cumulative(CumulativeKind::Sum, ones, 0, false, false)?;
        let one = g.constant(Tensor::scalar(1i64));
        g.sub(running, one)
    })?;
    // Where in the order each distinct one begins, and where in x it stands first.
    let (starts, count) = positions(n, begins)?;
    let (mut first, mut counts, mut inverse) = n.build(|g| {
        let first = g.gather(order, starts, 0)?;
        let end = g.constant(Tensor::new([1], vec![length as i64])?);
        let others = g.narrow(starts, 0, count.min(1), count.saturating_sub(1))?;
        let ends = if count > 1 { g.concat(&[others, end], 0)? } else { end };
        let counts = g.sub(ends, starts)?;
        // Where each stands in the order is what sorts the order itself.
        let place = g.argsort(order, 0, false)?;
        let inverse = g.gather(number, place, 0)?;
        Ok((first, counts, inverse))
    })?;
    if !n.flag("sorted", true)? {
        (first, counts, inverse) = n.build(|g| {
            let by_first = g.argsort(first, 0, false)?;
            let place = g.argsort(by_first, 0, false)?;
            Ok((g.gather(first, by_first, 0)?, g.gather(counts, by_first, 0)?, g.gather(place, inverse, 0)?))
        })?;
    }
    let y = n.build(|g| g.gather(x, first, axis as isize))?;
    let list = |id| n.result(id, ElementType::I64);
    Ok(vec![n.result(y, element), list(first), list(inverse), list(counts)])
}

/// The elements along an axis as rows of numbers that compare as they do.
fn rows(n: &mut NodeContext<'_, '_>, x: ValueId, axis: usize, element: ElementType) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let rank = shape.rank();
    let mut keys = ordered(n, x, element)?;
    if element == ElementType::Bool {
        keys = n.build(|g| g.cast(keys, DType::I32))?;
    }
    let perm: Vec<usize> = std::iter::once(axis).chain((0..rank).filter(|i| *i != axis)).collect();
    if axis != 0 {
        keys = n.build(|g| g.transpose(keys, &perm))?;
    }
    let width = shape.numel() / shape[axis].max(1);
    let to = n.built(Shape::new(&[shape[axis], width]))?;
    reshape_to(n, keys, to)
}

/// Positions that put rows in the order of their first elements, those in the order of their second, and so on.
fn in_order(g: &mut Graph, rows: ValueId) -> Result<ValueId, olivine_ir::Error> {
    let ty = g.ty(rows)?;
    let (length, width) = (ty.shape[0], ty.shape[1]);
    let columns = g.transpose(rows, &[1, 0])?;
    if width == 1 {
        let column = g.reshape(columns, &[length as i64])?;
        return g.argsort(column, 0, false);
    }
    let begun = g.range(DType::I64, 0.0, 1.0, length)?;
    if width == 0 {
        return Ok(begun);
    }
    // From the last column to the first: a sort keeps the order of equals.
    let mut body = Graph::new("column");
    let order = body.input("order", DType::I64, [length])?;
    let column = body.input("column", ty.dtype, [length])?;
    let keys = body.gather(column, order, 0)?;
    let sorted = body.argsort(keys, 0, false)?;
    let next = body.gather(order, sorted, 0)?;
    body.output("order", next)?;
    let columns = g.reverse(columns, &[0])?;
    let results = g.scan(&[begun], &[columns], &[], body)?;
    Ok(results[0])
}

/// Where in an order of rows another row than the one before begins.
fn begins(g: &mut Graph, rows: ValueId, order: ValueId) -> Result<ValueId, olivine_ir::Error> {
    let ty = g.ty(rows)?;
    let length = ty.shape[0];
    let first = g.constant(Tensor::new([1], vec![true])?);
    if length == 1 {
        return Ok(first);
    }
    let sorted = g.gather(rows, order, 0)?;
    let (before, after) = (g.narrow(sorted, 0, 0, length - 1)?, g.narrow(sorted, 0, 1, length - 1)?);
    let mut differ = g.ne(before, after)?;
    if ty.dtype.is_float() {
        // Not a number is one value.
        let (a, b) = (g.isnan(before)?, g.isnan(after)?);
        let both = g.and(a, b)?;
        let one = g.not(both)?;
        differ = g.and(differ, one)?;
    }
    let differ = g.reduce(ReduceKind::Any, differ, &[1], false)?;
    g.concat(&[first, differ], 0)
}
