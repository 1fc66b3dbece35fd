//! Tensors put together, taken apart, repeated and padded.

use olivine_ir::op::{Pad, PadMode, Slice, Split, Tile};
use olivine_ir::{DType, Data, Dim, Graph, Tensor, ValueId};

use super::Entry;
use super::arity::{ANY, Since, Takes};
use crate::ElementType;
use crate::import::{Answer, NodeContext, TensorRef, Value};
use crate::tensor::shape_of_sizes;

pub(super) const OPERATORS: &[Entry] = &[
    ("CenterCropPad", Takes(2, 1), center_crop_pad),
    ("Concat", Takes(ANY, 1), concat),
    ("Expand", Takes(2, 1), expand),
    ("Pad", Since(&[(1, 1, 1), (11, 3, 1), (18, 4, 1)]), pad),
    ("Slice", Since(&[(1, 1, 1), (10, 5, 1)]), slice),
    ("Split", Since(&[(1, 2, ANY), (2, 1, ANY), (13, 2, ANY)]), split),
    ("Tile", Since(&[(1, 3, 1), (6, 2, 1)]), tile),
];

fn concat(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let operands = n.tensors()?;
    let Some(first) = operands.first().copied() else { return Err(n.wrong("it has no inputs")) };
    let element = n.element(0)?;
    for i in 1..operands.len() {
        if n.element(i)? != element {
            return Err(n.wrong(format!("its inputs are of {element} and of {}", n.element(i)?)));
        }
    }
    let rank = n.shape(first)?.rank();
    // The axis had a default in the first version alone.
    let axis = match n.int("axis")? {
        Some(axis) => axis,
        None if n.opset() < 4 => 1,
        None => return Err(n.wrong("attribute `axis` is missing")),
    };
    let axis = n.axis(axis, rank)?;
    let y = n.build(|g| g.concat(&operands, axis as isize))?;
    n.like_first(y)
}

fn split(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let axis = n.axis(n.int_or("axis", 0)?, shape.rank())?;
    let given = match n.optional_ints(1)? {
        Some(sizes) => Some(sizes),
        None => n.ints("split")?,
    };
    let sizes: Vec<Dim> = match given {
        Some(sizes) => {
            if sizes.iter().any(|size| *size < 0) {
                return Err(n.wrong(format!("parts {sizes:?} are not all from 0 on")));
            }
            sizes.into_iter().map(Dim::from).collect()
        }
        None => {
            let parts = match n.int("num_outputs")? {
                Some(parts) => usize::try_from(parts).unwrap_or(0),
                None => n.output_count(),
            };
            if parts == 0 || parts != n.output_count() {
                return Err(n.wrong(format!("{parts} parts for {} outputs", n.output_count())));
            }
            // All of one size, but the last where the axis does not come out even.
            let whole = shape.size(axis);
            let size = whole.div_ceil(parts);
            (0..parts).map(|i| size.min((whole - size * i).max(0))).collect()
        }
    };
    let parts = n.build(|g| g.add_op(Split { axis, sizes }, &[x]))?;
    let element = n.element(0)?;
    Ok(parts.into_iter().map(|id| n.result(id, element)).collect())
}

fn slice(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    if n.opset() >= 10
        && !(n.walk.is_decided(n.tensor_ref(1)?) && n.walk.is_decided(n.tensor_ref(2)?))
        && let Some(y) = slice_at_run(n, x)?
    {
        return n.like_first(y);
    }
    let (starts, ends, axes, steps) = if n.opset() < 10 {
        let limits = |name: &str| n.ints(name)?.ok_or_else(|| n.wrong(format!("`{name}` is missing")));
        (sizes_of(limits("starts")?), sizes_of(limits("ends")?), n.ints("axes")?, None)
    } else {
        (n.fixed_sizes(1)?, n.fixed_sizes(2)?, n.optional_ints(3)?, n.optional_ints(4)?)
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    let axes = n.axes(&axes, rank)?;
    let y = n.add(Slice { axes, starts, ends, steps }, &[x])?;
    n.like_first(y)
}

/// Numbers as sizes.
fn sizes_of(numbers: Vec<i64>) -> Vec<Dim> {
    numbers.into_iter().map(Dim::from).collect()
}

/// A slice of which no more has to be known now than how long it is; `None` for steps back and limits that are no lists.
fn slice_at_run(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<Option<ValueId>> {
    let shape = n.shape(x)?;
    let (starts, ends) = (n.tensor(1)?, n.tensor(2)?);
    let (limits, others) = (n.shape(starts)?, n.shape(ends)?);
    let &[count] = limits.dims() else { return Ok(None) };
    if limits != others {
        return Ok(None);
    }
    // The count is what a file declares, and may be any number.
    if count > shape.rank() {
        return Err(n.wrong(format!("{count} limits for {} axes", shape.rank())));
    }
    let axes = n.optional_ints(3)?.unwrap_or_else(|| (0..count as i64).collect());
    let steps = n.optional_ints(4)?.unwrap_or_else(|| vec![1; count]);
    let axes = n.axes(&axes, shape.rank())?;
    let far = |step: &i64| !(1..=i64::from(u32::MAX)).contains(step);
    if axes.len() != count || steps.len() != count || steps.iter().any(far) {
        return Ok(None);
    }
    let sizes = Tensor::new([count], axes.iter().map(|axis| shape[*axis] as i64).collect());
    let (sizes, by) = (n.built(sizes)?, n.built(Tensor::new([count], steps.clone()))?);
    let (begin, lengths) = n.build(|g| {
        let (sizes, by) = (g.constant(sizes), g.constant(by));
        let (zero, one) = (g.constant(Tensor::scalar(0i64)), g.constant(Tensor::scalar(1i64)));
        let within = |g: &mut Graph, limit: ValueId| {
            let limit = g.cast(limit, DType::I64)?;
            let (back, negative) = (g.add(limit, sizes)?, g.lt(limit, zero)?);
            let limit = g.select(negative, back, limit)?;
            let limit = g.max(limit, zero)?;
            g.min(limit, sizes)
        };
        let (begin, end) = (within(g, starts)?, within(g, ends)?);
        let span = g.sub(end, begin)?;
        let span = g.max(span, zero)?;
        let (more, up) = (g.sub(by, one)?, span);
        let up = g.add(up, more)?;
        Ok((begin, g.div(up, by)?))
    })?;
    let held = TensorRef { frame: n.walk.depth(), id: lengths, element: ElementType::I64 };
    let place = n.location();
    let lengths = n.walk.fixed(held, &place)?;
    let mut y = x;
    for (i, axis) in axes.iter().enumerate() {
        let length = lengths.to_f64().get(i).map_or(0, |v| *v as usize);
        let step = steps[i] as f64;
        y = n.build(|g| {
            let first = g.narrow(begin, 0, i, 1)?;
            let far = g.range(DType::I64, 0.0, step, length)?;
            let indices = g.add(first, far)?;
            g.gather(y, indices, *axis as isize)
        })?;
    }
    Ok(Some(y))
}

fn expand(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let to = shape_of_sizes(&n.fixed_sizes(1)?).map_err(|e| n.wrong(e))?;
    let y = n.build(|g| g.expand(x, to))?;
    n.like_first(y)
}

fn tile(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let mut repeats = n.fixed_sizes(1)?;
    if n.opset() < 6 {
        // One axis, and how often.
        let (times, axis) = (n.fixed_int(1)?, n.fixed_int(2)?);
        let axis = n.axis(axis, rank)?;
        repeats = (0..rank).map(|i| if i == axis { times.into() } else { Dim::ONE }).collect();
    }
    let y = n.add(Tile { repeats }, &[x])?;
    n.like_first(y)
}

fn pad(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let attributes = n.opset() < 11;
    let amounts = if attributes {
        let name = if n.opset() < 2 { "paddings" } else { "pads" };
        let given = n.ints(name)?.ok_or_else(|| n.wrong(format!("attribute `{name}` is missing")))?;
        given.into_iter().map(Dim::from).collect()
    } else {
        n.fixed_sizes(1)?
    };
    let axes = match n.optional_ints(3)? {
        Some(axes) => n.axes(&axes, shape.rank())?,
        None => (0..shape.rank()).collect(),
    };
    if amounts.len() != 2 * axes.len() {
        return Err(n.wrong(format!("{} pads for {} axes", amounts.len(), axes.len())));
    }
    let mut pads = vec![(Dim::ZERO, Dim::ZERO); shape.rank()];
    for (i, axis) in axes.iter().enumerate() {
        pads[*axis] = (amounts[i], amounts[axes.len() + i]);
    }
    let mode = match n.string_or("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let y = if mode != PadMode::Constant {
        pad_by_copies(n, x, &pads, mode)?
    } else if attributes {
        let value = f64::from(n.float_or("value", 0.0)?);
        n.add(Pad { pads, mode, value }, &[x])?
    } else {
        let value = n.optional(2)?;
        pad_with(n, x, &pads, value)?
    };
    n.like_first(y)
}

/// Pads with a value of x's dtype that may be known only at run time; without one, with zero.
pub(super) fn pad_with(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    pads: &[(Dim, Dim)],
    value: Option<ValueId>,
) -> Answer<ValueId> {
    let known = match value {
        Some(id) => n.constant_of(id).as_ref().and_then(exact),
        None => Some(0.0),
    };
    if let Some(number) = known {
        return n.add(Pad { pads: pads.to_vec(), mode: PadMode::Constant, value: number }, &[x]);
    }
    let Some(value) = value else { return Err(n.wrong("its value is lost")) };
    let (dtype, shape, given) = (n.dtype(x)?, n.shape(x)?, n.ty(value)?);
    if given.dtype != dtype || given.shape.numel() != 1 {
        return Err(n.wrong(format!("its value is {given}, not one element of {dtype}")));
    }
    let pad = Pad { pads: pads.to_vec(), mode: PadMode::Constant, value: 0.0 };
    n.build(|g| {
        let value = g.reshape(value, &[])?;
        let one = g.constant(Tensor::scalar_of(DType::U8, 1.0));
        let inside = g.fill(one, shape)?;
        let inside = g.add1(pad.clone(), &[inside])?;
        let inside = g.cast(inside, DType::Bool)?;
        let padded = g.add1(pad, &[x])?;
        g.select(inside, padded, value)
    })
}

/// The one element of a constant, if a double holds it exactly.
fn exact(tensor: &Tensor) -> Option<f64> {
    if let Data::I64(v) = tensor.data()
        && v.iter().any(|v| v.unsigned_abs() > 1 << 53)
    {
        return None;
    }
    match tensor.to_f64().as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

/// The longest axis whose padding is written down position by position.
const MOST_COPIES: i64 = 1 << 24;

/// Pads with elements of x. Negative amounts cut first: what is left is what is repeated.
fn pad_by_copies(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    pads: &[(Dim, Dim)],
    mode: PadMode,
) -> Answer<ValueId> {
    let part =
        |of: fn(Dim) -> Dim| -> Vec<(Dim, Dim)> { pads.iter().map(|(a, b)| (of(*a), of(*b))).collect() };
    let is_pad = |(before, after): &(Dim, Dim)| *before != 0 || *after != 0;
    let mut y = x;
    let cuts = part(|n| n.min(0));
    if cuts.iter().any(is_pad) {
        y = n.add(Pad { pads: cuts, mode: PadMode::Constant, value: 0.0 }, &[y])?;
    }
    let pads = part(|n| n.max(0));
    let shape = n.shape(y)?;
    let fits = |(size, pad): (&Dim, &(Dim, Dim))| match mode {
        // Axes without padding fit whatever their size is.
        _ if !is_pad(pad) => true,
        PadMode::Reflect => *size > pad.0.max(pad.1),
        _ => *size >= pad.0.max(pad.1),
    };
    if shape.sizes().iter().zip(&pads).all(fits) {
        return n.add(Pad { pads, mode, value: 0.0 }, &[y]);
    }
    for (axis, pad) in pads.into_iter().enumerate() {
        let size = n.shape(y)?[axis] as i64;
        if !is_pad(&pad) {
            continue;
        }
        if size == 0 {
            return Err(n.wrong(format!("axis {axis} is empty: there is nothing to pad it with")));
        }
        // These are written down for the sizes at hand.
        let [before, after] = [pad.0, pad.1].map(|pad| pad.specialize_signed().ok());
        let total =
            before.zip(after).and_then(|(before, after)| before.checked_add(after)?.checked_add(size));
        let (Some(before), Some(total)) = (before, total.filter(|t| *t <= MOST_COPIES)) else {
            return Err(n.wrong(format!("pads of axis {axis} make it longer than {MOST_COPIES}")));
        };
        let positions: Vec<i64> = (0..total).map(|i| source(i - before, size, mode)).collect();
        let list = Tensor::new([positions.len()], positions);
        let list = n.built(list)?;
        let list = n.constant(list);
        y = n.build(|g| g.gather(y, list, axis as isize))?;
    }
    Ok(y)
}

/// Which element of an axis stands at a position that may be outside it.
fn source(at: i64, size: i64, mode: PadMode) -> i64 {
    match mode {
        PadMode::Wrap => at.rem_euclid(size),
        PadMode::Reflect if size > 1 => {
            // There and back again, without the two ends twice.
            let period = 2 * (size - 1);
            let at = at.rem_euclid(period);
            at.min(period - at)
        }
        _ => at.clamp(0, size - 1),
    }
}

fn center_crop_pad(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let sizes = n.fixed_sizes(1)?;
    let axes = match n.ints("axes")? {
        Some(axes) => n.axes(&axes, shape.rank())?,
        None => (0..shape.rank()).collect(),
    };
    if sizes.len() != axes.len() {
        return Err(n.wrong(format!("{} sizes for {} axes", sizes.len(), axes.len())));
    }
    let mut pads = vec![(Dim::ZERO, Dim::ZERO); shape.rank()];
    for (axis, size) in axes.iter().zip(&sizes) {
        let more = (*size - shape.size(*axis)).check().ok().filter(|_| *size >= 0);
        let more = more.ok_or_else(|| n.wrong(format!("size {size} of axis {axis}")))?;
        // The odd one goes to, or from, the end: division towards zero on both sides.
        let half = if more < 0 { -(-more).div_floor(2) } else { more.div_floor(2) };
        pads[*axis] = (half, more - half);
    }
    let y = pad_with(n, x, &pads, None)?;
    n.like_first(y)
}
