//! Shapes and the movement of data.

use olivine_ir::op::{DepthMode, TriPart};
use olivine_ir::{DType, Data, Dim, Shape, Tensor, ValueId};

use super::Entry;
use super::arity::{Since, Takes};
use super::dynamic::counted;
use crate::ElementType;
use crate::import::{Answer, Dequantised, NodeContext, Value};
use crate::proto::tensor_proto::DataType;
use crate::tensor::shape_of_sizes;

pub(super) const OPERATORS: &[Entry] = &[
    ("Constant", Takes(0, 1), constant),
    ("ConstantOfShape", Takes(1, 1), constant_of_shape),
    ("DepthToSpace", Takes(1, 1), depth_to_space),
    ("Flatten", Takes(1, 1), flatten),
    ("Identity", Takes(1, 1), identity),
    ("Range", Takes(3, 1), range),
    ("Reshape", Since(&[(1, 1, 1), (5, 2, 1)]), reshape),
    ("ReverseSequence", Takes(2, 1), reverse_sequence),
    ("Shape", Takes(1, 1), shape),
    ("Size", Takes(1, 1), size),
    ("SpaceToDepth", Takes(1, 1), space_to_depth),
    ("Squeeze", Since(&[(1, 1, 1), (13, 2, 1)]), squeeze),
    ("Transpose", Takes(1, 1), transpose),
    ("Trilu", Takes(2, 1), trilu),
    ("Unsqueeze", Since(&[(1, 1, 1), (13, 2, 1)]), unsqueeze),
];

/// ONNX's numbers of the types that Range computes f16 and bf16 in.
const FLOAT: i64 = DataType::Float as i64;
const DOUBLE: i64 = DataType::Double as i64;

fn constant(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    if let Some(value) = n.constant_attribute("value")? {
        return Ok(vec![value]);
    }
    let (element, tensor) = if let Some(v) = n.float("value_float")? {
        (ElementType::F32, Tensor::scalar(v))
    } else if let Some(v) = n.int("value_int")? {
        (ElementType::I64, Tensor::scalar(v))
    } else if let Some(v) = n.floats("value_floats")? {
        let list = Tensor::new([v.len()], v);
        (ElementType::F32, n.built(list)?)
    } else if let Some(v) = n.ints("value_ints")? {
        let list = Tensor::new([v.len()], v);
        (ElementType::I64, n.built(list)?)
    } else if let Some(found) = n.sparse_attribute("sparse_value")? {
        found
    } else {
        return Err(n.wrong("it has no value that can be imported"));
    };
    let id = n.constant(tensor);
    Ok(vec![n.result(id, element)])
}

fn constant_of_shape(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let dims = n.fixed_sizes(0)?;
    let (element, value) = n.tensor_attribute("value")?.unwrap_or((ElementType::F32, Tensor::scalar(0f32)));
    let to = shape_of_sizes(&dims).map_err(|e| n.wrong(e))?;
    let scalar = value.reshaped(Shape::SCALAR);
    let scalar = n.built(scalar)?;
    let scalar = n.constant(scalar);
    let id = n.build(|g| g.fill(scalar, to))?;
    Ok(vec![n.result(id, element)])
}

fn identity(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    Ok(vec![n.value(0)?])
}

fn reshape(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let mut dims = match n.opset() < 5 {
        true => n.ints("shape")?.unwrap_or_default().into_iter().map(Dim::from).collect(),
        false => n.fixed_sizes(1)?,
    };
    let from = n.shape(x)?;
    let keep_zeros = n.flag("allowzero", false)?;
    for (i, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == 0 && !keep_zeros) {
        *dim = if i < from.rank() { from.size(i) } else { Dim::ZERO };
    }
    if let Some(free) = dims.iter().position(|d| *d == -1) {
        // With a size of zero beside it, the one that is left open cannot be found by division.
        let others: Vec<Dim> =
            dims.iter().enumerate().filter(|(i, _)| *i != free).map(|(_, size)| *size).collect();
        let (rest, all) = (olivine_ir::product(&others), from.sizes().numel());
        if rest == 0 {
            dims[free] = Dim::ZERO;
        } else if rest > 0 && all.is_multiple_of(rest) {
            dims[free] = all.div_floor(rest);
        } else {
            return Err(n.wrong(format!("{from} cannot become {dims:?}")));
        }
    }
    let to = shape_of_sizes(&dims).map_err(|e| n.wrong(e))?;
    if to.sizes().numel() != from.sizes().numel() {
        return Err(n.wrong(format!("{from} cannot become {to}")));
    }
    let y = reshape_to(n, x, to)?;
    n.like_first(y)
}

/// The same elements under a shape that holds as many.
pub(super) fn reshape_to(n: &mut NodeContext<'_, '_>, x: ValueId, to: Shape) -> Answer<ValueId> {
    let from = n.ty(x)?;
    if from.shape == to {
        return Ok(x);
    }
    // To the graph's reshape a zero is a size to copy.
    if to.has_zero() && from.shape.has_zero() {
        let nothing = n.scalar(from.dtype, 0.0);
        return n.build(|g| g.fill(nothing, to));
    }
    n.build(|g| g.reshape_to(x, &to.sizes()))
}

fn shape(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let rank = shape.rank() as i64;
    let limit = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (limit(n.int_or("start", 0)?), limit(n.int_or("end", rank)?));
    let sizes: Vec<Dim> = shape.sizes().iter().copied().skip(start).take(end.saturating_sub(start)).collect();
    let numbers = shape.values();
    let numbers: Vec<i64> =
        numbers.iter().map(|s| *s as i64).skip(start).take(end.saturating_sub(start)).collect();
    let list = Tensor::new([numbers.len()], numbers);
    let list = n.built(list)?;
    let id = n.constant(list);
    let result = n.result(id, ElementType::I64);
    if let Value::Tensor(held) = &result {
        n.walk.note_sizes(*held, sizes);
    }
    Ok(vec![result])
}

fn size(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let id = n.scalar(DType::I64, shape.values().numel() as f64);
    let result = n.result(id, ElementType::I64);
    if let Value::Tensor(held) = &result {
        n.walk.note_sizes(*held, vec![shape.sizes().numel()]);
    }
    Ok(vec![result])
}

fn transpose(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let perm = match n.ints("perm")? {
        Some(perm) => n.axes(&perm, rank)?,
        None => (0..rank).rev().collect(),
    };
    let y = n.build(|g| g.transpose(x, &perm))?;
    if perm == [1, 0]
        && let Some(matrix) = n.walk.dequantised(n.tensor_ref(0)?).cloned()
    {
        n.walk.note_dequantised(y, Dequantised { transposed: !matrix.transposed, ..matrix });
    }
    n.like_first(y)
}

fn flatten(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let rank = shape.rank() as i64;
    let axis = n.int_or("axis", 1)?;
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    // A scalar has no axis 1, which is the default, and becomes a matrix all the same.
    let fits = (0..=rank).contains(&at) || (rank == 0 && axis == 1);
    if !fits {
        return Err(n.wrong(format!("axis {axis} is outside rank {rank}")));
    }
    let sizes = shape.sizes();
    let (outer, inner) = sizes.split_at((at as usize).min(shape.rank()));
    let to = Shape::of_sizes(&[olivine_ir::product(outer), olivine_ir::product(inner)]);
    let to = n.built(to)?;
    let y = reshape_to(n, x, to)?;
    n.like_first(y)
}

/// Axes that were an attribute up to opset 12 and are an input since.
fn axes_of(n: &mut NodeContext<'_, '_>) -> Answer<Option<Vec<i64>>> {
    if n.has(1) { n.optional_ints(1) } else { n.ints("axes") }
}

fn squeeze(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let axes = match axes_of(n)? {
        Some(axes) => n.axes(&axes, shape.rank())?,
        None => (0..shape.rank()).filter(|i| shape.size(*i) == 1).collect(),
    };
    if let Some(axis) = axes.iter().find(|a| shape.size(**a) != 1) {
        return Err(n.wrong(format!("axis {axis} of {shape} is not of size 1")));
    }
    let sizes: Vec<Dim> = (0..shape.rank()).filter(|i| !axes.contains(i)).map(|i| shape.size(i)).collect();
    let to = n.built(Shape::of_sizes(&sizes))?;
    let y = reshape_to(n, x, to)?;
    n.like_first(y)
}

fn unsqueeze(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let axes = axes_of(n)?.ok_or_else(|| n.wrong("its axes are missing"))?;
    let rank = shape.rank() + axes.len();
    let axes = n.axes(&axes, rank)?;
    if let Some(axis) = axes.iter().enumerate().find(|(i, a)| axes[..*i].contains(a)).map(|(_, a)| a) {
        return Err(n.wrong(format!("axis {axis} is named twice")));
    }
    let own = shape.sizes();
    let mut rest = own.iter();
    let size = |i: usize| if axes.contains(&i) { Some(Dim::ONE) } else { rest.next().copied() };
    let sizes: Vec<Dim> = (0..rank).filter_map(size).collect();
    let to = n.built(Shape::of_sizes(&sizes))?;
    let y = reshape_to(n, x, to)?;
    n.like_first(y)
}

/// A range of integers of which no more has to be known now than its delta and how long it is.
fn range_at_run(n: &mut NodeContext<'_, '_>) -> Answer<ValueId> {
    let (start, limit, delta) = (n.tensor(0)?, n.tensor(1)?, n.fixed_int(2)?);
    if delta == 0 {
        return Err(n.wrong("its delta is 0"));
    }
    let dtype = n.dtype(start)?;
    let (start, count) = n.build(|g| {
        let (start, limit) = (g.reshape(start, &[])?, g.reshape(limit, &[])?);
        let (from, to) = (g.cast(start, DType::I64)?, g.cast(limit, DType::I64)?);
        let span = if delta > 0 { g.sub(to, from)? } else { g.sub(from, to)? };
        let (zero, size) = (g.constant(Tensor::scalar(0i64)), delta.saturating_abs());
        let (size, more) = (g.constant(Tensor::scalar(size)), g.constant(Tensor::scalar(size - 1)));
        let span = g.max(span, zero)?;
        let up = g.add(span, more)?;
        Ok((start, g.div(up, size)?))
    })?;
    let count = counted(n, count)?;
    n.build(|g| {
        let numbers = g.range(DType::I64, 0.0, 1.0, count)?;
        let step = g.constant(Tensor::scalar(delta));
        let far = g.mul(numbers, step)?;
        let far = g.cast(far, dtype)?;
        g.add(start, far)
    })
}

fn range(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = n.element(0)?;
    let decided = (0..2).map(|i| Ok(n.walk.is_decided(n.tensor_ref(i)?))).collect::<Answer<Vec<bool>>>()?;
    if decided.contains(&false)
        && matches!(element, ElementType::I64 | ElementType::I32)
        && n.element(1)? == element
        && n.element(2)? == element
    {
        let y = range_at_run(n)?;
        return Ok(vec![n.result(y, element)]);
    }
    if element == ElementType::I64
        && let Some(y) = range_of_sizes(n)?
    {
        return Ok(vec![n.result(y, element)]);
    }
    let scalar = |n: &mut NodeContext<'_, '_>, i: usize| {
        let tensor = n.fixed(i)?;
        if tensor.shape().numel() == 1 { Ok(tensor) } else { Err(n.wrong(format!("input {i} is no scalar"))) }
    };
    let (start, limit, delta) = (scalar(n, 0)?, scalar(n, 1)?, scalar(n, 2)?);
    let dtype = start.dtype();
    if limit.dtype() != dtype || delta.dtype() != dtype {
        return Err(n.wrong("its inputs are not of one type"));
    }
    let stash_type = n.int_or("stash_type", FLOAT)?;
    if !matches!(stash_type, FLOAT | DOUBLE) {
        return Err(n.wrong(format!("stash_type {stash_type} is neither float nor double")));
    }
    let in_f64 = dtype == DType::F64 || stash_type == DOUBLE && matches!(dtype, DType::F16 | DType::BF16);
    let count = match (start.data(), limit.data(), delta.data()) {
        (Data::I64(a), Data::I64(b), Data::I64(d)) => {
            steps(i128::from(a[0]), i128::from(b[0]), i128::from(d[0]))
        }
        _ => {
            let (a, b, d) = (start.to_f64()[0], limit.to_f64()[0], delta.to_f64()[0]);
            // The difference has the type of its operands, as elsewhere in ONNX; f16 and bf16 are wider on the way.
            let span = if in_f64 { b - a } else { f64::from((b - a) as f32) };
            (d != 0.0).then(|| (span / d).ceil().max(0.0) as u64)
        }
    };
    let count = count.ok_or_else(|| n.wrong("its delta is 0"))?;
    let count = usize::try_from(count).ok().and_then(|c| Shape::new(&[c]).ok().map(|_| c));
    let count = count.ok_or_else(|| n.wrong("it is too long"))?;
    let small = |t: &Tensor| t.to_f64()[0].abs() < (1u64 << 53) as f64;
    let y = if small(&start) && small(&delta) || dtype.is_float() {
        let (first, step) = (start.to_f64()[0], delta.to_f64()[0]);
        n.build(|g| g.range(dtype, first, step, count))?
    } else {
        n.build(|g| {
            let (first, step) =
                (g.constant(start.reshaped(Shape::SCALAR)?), g.constant(delta.reshaped(Shape::SCALAR)?));
            let numbers = g.range(dtype, 0.0, 1.0, count)?;
            let far = g.mul(numbers, step)?;
            g.add(far, first)
        })?
    };
    Ok(vec![n.result(y, element)])
}

/// A range from a number, by a number, up to a size that is an expression; `None` for all others.
fn range_of_sizes(n: &mut NodeContext<'_, '_>) -> Answer<Option<ValueId>> {
    let limits = [n.fixed_sizes(0)?, n.fixed_sizes(1)?, n.fixed_sizes(2)?];
    let [[start], [limit], [delta]] = limits.each_ref().map(|list| list.as_slice()) else { return Ok(None) };
    let (Some(from), false, Some(by @ 1..)) = (start.as_constant(), limit.is_constant(), delta.as_constant())
    else {
        return Ok(None);
    };
    if from.unsigned_abs() >= 1 << 53 || by >= 1 << 53 {
        return Ok(None);
    }
    let span = *limit - from;
    let count = if span > 0 { span.div_ceil(by) } else { Dim::ZERO };
    n.build(|g| g.range(DType::I64, from as f64, by as f64, count)).map(Some)
}

/// Steps of `delta` from `start` that stay before `limit`; none for a delta of 0.
fn steps(start: i128, limit: i128, delta: i128) -> Option<u64> {
    let span = if delta < 0 { start - limit } else { limit - start };
    match delta.unsigned_abs() {
        0 => None,
        by => Some(u128::try_from(span).unwrap_or(0).div_ceil(by) as u64),
    }
}

fn trilu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let ty = n.ty(x)?;
    let upper = n.flag("upper", true)?;
    let part = if upper { TriPart::Upper } else { TriPart::Lower };
    let diagonal = n.optional(1)?;
    let known = match diagonal {
        None => Some(0),
        Some(id) => match n.constant_of(id).as_ref().map(Tensor::data) {
            Some(Data::I64(v)) => v.first().copied(),
            _ => None,
        },
    };
    let y = match (known, diagonal) {
        (Some(diagonal), _) => n.build(|g| g.trilu(x, part, diagonal))?,
        (None, Some(diagonal)) => {
            let [.., rows, columns] = *ty.shape.dims() else {
                return Err(n.wrong(format!("{} has no rows and columns", ty.shape)));
            };
            if n.shape(diagonal)?.numel() != 1 {
                return Err(n.wrong("its diagonal is no scalar"));
            }
            let nothing = n.scalar(ty.dtype, 0.0);
            n.build(|g| {
                let diagonal = g.reshape(diagonal, &[])?;
                let row = g.range(DType::I64, 0.0, 1.0, rows)?;
                let row = g.reshape(row, &[rows as i64, 1])?;
                let column = g.range(DType::I64, 0.0, 1.0, columns)?;
                let above = g.sub(column, row)?;
                let stays = if upper { g.ge(above, diagonal)? } else { g.le(above, diagonal)? };
                g.select(stays, x, nothing)
            })?
        }
        (None, None) => return Err(n.wrong("its diagonal is lost")),
    };
    n.like_first(y)
}

fn block(n: &NodeContext<'_, '_>) -> Answer<usize> {
    let size = n.int("blocksize")?.and_then(|b| usize::try_from(b).ok());
    size.ok_or_else(|| n.wrong("attribute `blocksize` is missing or below 0"))
}

fn depth_to_space(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, block) = (n.tensor(0)?, block(n)?);
    let mode = match n.string_or("mode", "DCR")?.as_str() {
        "DCR" => DepthMode::Dcr,
        "CRD" => DepthMode::Crd,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let y = n.build(|g| g.depth_to_space(x, block, mode))?;
    n.like_first(y)
}

fn space_to_depth(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, block) = (n.tensor(0)?, block(n)?);
    let y = n.build(|g| g.space_to_depth(x, block))?;
    n.like_first(y)
}

fn reverse_sequence(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, lengths) = (n.tensor(0)?, n.tensor(1)?);
    let shape = n.shape(x)?;
    let batch = n.axis(n.int_or("batch_axis", 1)?, shape.rank())?;
    let time = n.axis(n.int_or("time_axis", 0)?, shape.rank())?;
    let given = n.shape(lengths)?;
    if batch == time || given.dims() != [shape[batch]] {
        return Err(n.wrong(format!("{given} lengths for {shape} along axis {batch}")));
    }
    let along = |axis: usize, size: usize| -> Vec<i64> {
        (0..shape.rank()).map(|i| if i == axis { size as i64 } else { 1 }).collect()
    };
    if shape.has_zero() {
        return n.like_first(x);
    }
    let y = n.build(|g| {
        let lengths = g.cast(lengths, DType::I64)?;
        let lengths = g.reshape(lengths, &along(batch, shape[batch]))?;
        let at = g.range(DType::I64, 0.0, 1.0, shape[time])?;
        let at = g.reshape(at, &along(time, shape[time]))?;
        let one = g.constant(Tensor::scalar(1i64));
        let last = g.sub(lengths, one)?;
        let back = g.sub(last, at)?;
        let inside = g.lt(at, lengths)?;
        let from = g.select(inside, back, at)?;
        let from = g.expand(from, shape)?;
        g.gather_elements(x, from, time as isize)
    })?;
    n.like_first(y)
}
