//! Reading and writing at computed positions.

use olivine_ir::op::{Compare, OneHot, ScalarOp, ScatterMode};
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::reduce::ordered;
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Gather", Takes(2, 1), gather),
    ("GatherElements", Takes(2, 1), gather_elements),
    ("GatherND", Takes(2, 1), gather_nd),
    ("OneHot", Takes(3, 1), one_hot),
    ("Scatter", Takes(3, 1), scatter_elements),
    ("ScatterElements", Takes(3, 1), scatter_elements),
    ("ScatterND", Takes(3, 1), scatter_nd),
    ("TensorScatter", Takes(3, 1), tensor_scatter),
];

fn gather(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, indices) = (n.tensor(0)?, n.tensor(1)?);
    let rank = n.shape(x)?.rank();
    let axis = n.axis(n.int_or("axis", 0)?, rank)?;
    let y = n.build(|g| g.gather(x, indices, axis as isize))?;
    n.like_first(y)
}

fn gather_elements(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, indices) = (n.tensor(0)?, n.tensor(1)?);
    let rank = n.shape(x)?.rank();
    let axis = n.axis(n.int_or("axis", 0)?, rank)?;
    let y = n.build(|g| g.gather_elements(x, indices, axis as isize))?;
    n.like_first(y)
}

fn gather_nd(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, indices) = (n.tensor(0)?, n.tensor(1)?);
    let batch = n.int_or("batch_dims", 0)?;
    let batch = usize::try_from(batch).map_err(|_| n.wrong(format!("batch_dims is {batch}")))?;
    let y = n.build(|g| g.gather_nd(x, indices, batch))?;
    n.like_first(y)
}

fn scatter_elements(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let rank = {
        let x = n.tensor(0)?;
        n.shape(x)?.rank()
    };
    let axis = n.axis(n.int_or("axis", 0)?, rank)?;
    scatter(n, |n, [x, indices, updates], mode| {
        n.build(|g| g.scatter_elements(x, indices, updates, axis as isize, mode))
    })
}

fn scatter_nd(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    scatter(n, |n, [x, indices, updates], mode| n.build(|g| g.scatter_nd(x, indices, updates, mode)))
}

/// Writes updates in elements as the graph's scatters can combine them.
fn scatter(
    n: &mut NodeContext<'_, '_>,
    write: impl FnOnce(&mut NodeContext<'_, '_>, [ValueId; 3], ScatterMode) -> Answer<ValueId>,
) -> Answer<Vec<Value>> {
    let element = n.element(0)?;
    if n.element(2)? != element {
        return Err(n.wrong(format!("its data are of {element}, its updates of {}", n.element(2)?)));
    }
    let mode = match n.string_or("reduction", "none")?.as_str() {
        "none" => ScatterMode::Replace,
        "add" => ScatterMode::Add,
        "mul" => ScatterMode::Mul,
        "max" => ScatterMode::Max,
        "min" => ScatterMode::Min,
        other => return Err(n.wrong(format!("reduction `{other}` is unknown"))),
    };
    let (x, indices, updates) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    if n.shape(indices)?.has_zero() || n.shape(x)?.has_zero() {
        return n.like_first(x);
    }
    let y = match (element, mode) {
        (_, ScatterMode::Replace) => write(n, [x, indices, updates], mode)?,
        (ElementType::Bool, _) => {
            // Sums and largest are "or", products and smallest "and".
            let mode = match mode {
                ScatterMode::Mul | ScatterMode::Min => ScatterMode::Min,
                _ => ScatterMode::Max,
            };
            let (x, updates) = n.build(|g| Ok((g.cast(x, DType::I32)?, g.cast(updates, DType::I32)?)))?;
            let y = write(n, [x, indices, updates], mode)?;
            n.build(|g| g.cast(y, DType::Bool))?
        }
        (_, ScatterMode::Max | ScatterMode::Min) => {
            let (x, updates) = (ordered(n, x, element)?, ordered(n, updates, element)?);
            let y = write(n, [x, indices, updates], mode)?;
            ordered(n, y, element)?
        }
        (ElementType::U16, _) => {
            let y = write(n, [x, indices, updates], mode)?;
            let low = n.constant(Tensor::scalar(0xffffu32));
            n.build(|g| g.and(y, low))?
        }
        _ => write(n, [x, indices, updates], mode)?,
    };
    n.like_first(y)
}

fn one_hot(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (indices, values) = (n.tensor(0)?, n.tensor(2)?);
    let (of, element) = (n.element(0)?, n.element(2)?);
    let depth = n.fixed(1)?;
    let depth = match depth.to_f64().as_slice() {
        [one] if *one >= 0.0 => *one as usize,
        other => return Err(n.wrong(format!("its depth is {other:?}"))),
    };
    let rank = n.shape(indices)?.rank();
    let axis = n.axis(n.int_or("axis", -1)?, rank + 1)?;
    let mut indices = indices;
    if n.dtype(indices)? != DType::I64 {
        indices = n.build(|g| g.cast(indices, DType::I64))?;
    }
    if of == ElementType::U64 {
        // What looks negative is far outside.
        let (zero, far) = (n.constant(Tensor::scalar(0i64)), n.constant(Tensor::scalar(i64::MAX)));
        let outside = n.add(ScalarOp::Compare(Compare::Lt), &[indices, zero])?;
        indices = n.build(|g| g.select(outside, far, indices))?;
    }
    let y = n.add(OneHot { axis, depth }, &[indices, values])?;
    Ok(vec![n.result(y, element)])
}

fn tensor_scatter(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (cache, update) = (n.tensor(0)?, n.tensor(1)?);
    let (shape, part) = (n.shape(cache)?, n.shape(update)?);
    let axis = n.axis(n.int_or("axis", -2)?, shape.rank())?;
    let circular = match n.string_or("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let fits = part.rank() == shape.rank()
        && (0..shape.rank()).all(|i| if i == axis { part[i] <= shape[i] } else { part[i] == shape[i] });
    if axis == 0 || !fits {
        return Err(n.wrong(format!("{part} cannot be written into {shape} along axis {axis}")));
    }
    let starts = n.optional(2)?;
    if let Some(starts) = starts {
        let given = n.shape(starts)?;
        if given.dims() != [shape[0]] {
            return Err(n.wrong(format!("{given} write indices for a batch of {}", shape[0])));
        }
    }
    if part.has_zero() {
        return n.like_first(cache);
    }
    let along = |axis: usize| -> Vec<i64> {
        (0..part.rank()).map(|i| if i == axis { part[i] as i64 } else { 1 }).collect()
    };
    let y = n.build(|g| {
        let mut at = g.range(DType::I64, 0.0, 1.0, part[axis])?;
        at = g.reshape(at, &along(axis))?;
        if let Some(starts) = starts {
            let starts = g.cast(starts, DType::I64)?;
            let starts = g.reshape(starts, &along(0))?;
            at = g.add(at, starts)?;
        }
        if circular {
            let size = g.constant(Tensor::scalar(shape[axis] as i64));
            at = g.modulo(at, size)?;
        }
        let at = g.expand(at, part)?;
        g.scatter_elements(cache, at, update, axis as isize, ScatterMode::Replace)
    })?;
    n.like_first(y)
}
