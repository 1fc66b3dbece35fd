//! Pools, and what undoes them.

use olivine_ir::op::{Binary, GlobalPool, Pool, PoolKind, ReduceKind, ScatterMode};
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::{Since, Takes};
use super::compose::{binary, cast, reduced, reshaped, size, sizes, with_number};
use super::convolution::{AutoPad, moves, without_negative};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("AveragePool", Takes(1, 1), |n| pool(n, PoolKind::Average)),
    ("GlobalAveragePool", Takes(1, 1), |n| global(n, PoolKind::Average)),
    ("GlobalLpPool", Takes(1, 1), |n| global(n, PoolKind::Lp)),
    ("GlobalMaxPool", Takes(1, 1), |n| global(n, PoolKind::Max)),
    ("LpPool", Takes(1, 1), |n| pool(n, PoolKind::Lp)),
    ("MaxPool", Since(&[(1, 1, 1), (8, 1, 2)]), |n| pool(n, PoolKind::Max)),
    ("MaxRoiPool", Takes(2, 1), max_roi_pool),
    ("MaxUnpool", Takes(3, 1), max_unpool),
];

fn kernel(n: &NodeContext<'_, '_>) -> Answer<Vec<usize>> {
    let list = n.ints("kernel_shape")?.ok_or_else(|| n.wrong("it has no kernel_shape"))?;
    sizes(n, "kernel_shape", &list)
}

/// The p of an lp pool; a float in the first version.
fn power(n: &NodeContext<'_, '_>) -> Answer<usize> {
    if n.opset() < 2 {
        return Ok(n.float_or("p", 2.0)? as usize);
    }
    let p = n.int_or("p", 2)?;
    size(n, "p", p)
}

fn pool(n: &mut NodeContext<'_, '_>, kind: PoolKind) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let kernel = kernel(n)?;
    if shape.rank() != kernel.len() + 2 {
        return Err(n.wrong(format!("a kernel of {} axes does not fit {shape}", kernel.len())));
    }
    let moves = moves(n, kernel.len())?;
    let mut pads = moves.padding(n, &shape.sizes()[2..], &kernel, true)?;
    let cut: Vec<usize> = pads.iter().map(|(before, _)| (-before).max(0) as usize).collect();
    let x = without_negative(n, x, &mut pads)?;
    let window = moves.window(n, &pads)?;
    let indices = kind == PoolKind::Max && n.wants(1);
    let op = Pool {
        kind,
        kernel,
        window,
        // With automatic padding the count of windows is the same either way.
        ceil: n.flag("ceil_mode", false)? && moves.auto == AutoPad::NotSet,
        count_include_pad: n.flag("count_include_pad", false)?,
        p: if kind == PoolKind::Lp { power(n)? } else { 2 },
        indices,
    };
    let results = n.build(|g| g.add_op(op, &[x]))?;
    let element = n.element(0)?;
    let mut values: Vec<Value> = results.first().map(|y| n.result(*y, element)).into_iter().collect();
    if let Some(at) = results.get(1) {
        let by_columns = n.flag("storage_order", false)?;
        let read = n.shape(x)?;
        let at = if by_columns || read != shape {
            relocated(n, *at, &read[2..], &cut, &shape[2..], by_columns)?
        } else {
            *at
        };
        values.push(n.result(at, ElementType::I64));
    }
    Ok(values)
}

/// Flat positions among some sizes as positions among others, of which those are a part that begins at
/// `first`; the first spatial axis, not the last, is the one that counts fastest if `by_columns`.
fn relocated(
    n: &mut NodeContext<'_, '_>,
    at: ValueId,
    from: &[usize],
    first: &[usize],
    to: &[usize],
    by_columns: bool,
) -> Answer<ValueId> {
    let (area, whole): (usize, usize) = (
        from.iter().fold(1usize, |a, b| a.saturating_mul(*b)),
        to.iter().fold(1usize, |a, b| a.saturating_mul(*b)),
    );
    let mut rest = with_number(n, Binary::Mod, at, area as f64)?;
    let image = with_number(n, Binary::Div, at, area as f64)?;
    let mut moved = with_number(n, Binary::Mul, image, whole as f64)?;
    for i in (0..from.len()).rev() {
        let faster = if by_columns { &to[..i] } else { &to[i + 1..] };
        let stride: usize = faster.iter().fold(1usize, |a, b| a.saturating_mul(*b));
        let along = with_number(n, Binary::Mod, rest, from[i] as f64)?;
        let along = with_number(n, Binary::Add, along, first[i] as f64)?;
        let along = with_number(n, Binary::Mul, along, stride as f64)?;
        moved = binary(n, Binary::Add, moved, along)?;
        rest = with_number(n, Binary::Div, rest, from[i] as f64)?;
    }
    Ok(moved)
}

fn global(n: &mut NodeContext<'_, '_>, kind: PoolKind) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let p = if kind == PoolKind::Lp { power(n)? } else { 2 };
    if n.shape(x)?.rank() == 2 {
        // A pool over the one position there is.
        let y = if kind == PoolKind::Lp { n.build(|g| g.abs(x))? } else { x };
        return n.like_first(y);
    }
    let y = n.add(GlobalPool { kind, p }, &[x])?;
    n.like_first(y)
}

fn max_unpool(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, at) = (n.tensor(0)?, n.tensor(1)?);
    let (shape, kernel) = (n.shape(x)?, kernel(n)?);
    if shape.rank() != kernel.len() + 2 || n.shape(at)? != shape {
        return Err(n.wrong(format!("a kernel of {} axes or its indices do not fit {shape}", kernel.len())));
    }
    let moves = moves(n, kernel.len())?;
    let mut inferred = shape[..2].to_vec();
    for (i, kernel) in kernel.iter().enumerate() {
        let (before, after) = moves.pads[i];
        let spread = (shape[2 + i] as i64 - 1).checked_mul(moves.strides[i] as i64);
        let end = spread.and_then(|s| s.checked_add(i64::try_from(*kernel).ok()?));
        let end = end.and_then(|e| e.checked_sub(before)?.checked_sub(after));
        let end = end.ok_or_else(|| n.wrong("its result is too large"))?;
        inferred.push(size(n, "a size of its result", end)?);
    }
    let (count, dtype) = (shape.numel(), n.dtype(x)?);
    let space = olivine_ir::Shape::new(&inferred);
    let space = n.built(space)?;
    let (values, at) = (reshaped(n, x, &[count])?, reshaped(n, at, &[count])?);
    let zero = n.scalar(dtype, 0.0);
    let empty = n.build(|g| g.fill(zero, [space.numel()]))?;
    let flat = n.build(|g| g.scatter_elements(empty, at, values, 0, ScatterMode::Replace))?;
    let mut y = reshaped(n, flat, &inferred)?;
    if let Some(asked) = n.optional_ints(2)? {
        let asked = sizes(n, "output_shape", &asked)?;
        if asked.len() != inferred.len() {
            return Err(n.wrong(format!("output_shape {asked:?} does not fit {shape}")));
        }
        let pads: Vec<(i64, i64)> =
            asked.iter().zip(&inferred).map(|(to, from)| (0, *to as i64 - *from as i64)).collect();
        y = n.build(|g| g.pad(y, &pads, olivine_ir::op::PadMode::Constant, 0.0))?;
    }
    n.like_first(y)
}

/// The largest number of each bin of each region. Regions are rows of (batch, x1, y1, x2, y2), ends included.
fn max_roi_pool(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, regions) = (n.tensor(0)?, n.tensor(1)?);
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let count = n.shape(regions)?;
    let pooled = n.ints("pooled_shape")?.unwrap_or_default();
    let pooled = sizes(n, "pooled_shape", &pooled)?;
    let ([_, channels, height, width], [count, 5], [rows, columns]) =
        (shape.dims(), count.dims(), pooled.as_slice())
    else {
        return Err(n.wrong(format!("{shape}, regions {count} and pooled_shape {pooled:?} do not fit")));
    };
    let (channels, height, width, count) = (*channels, *height, *width, *count);
    let scale = f64::from(n.float_or("spatial_scale", 1.0)?);
    let regions = cast(n, regions, DType::F32)?;
    let batch = n.build(|g| g.narrow(regions, 1, 0, 1))?;
    let batch = reshaped(n, batch, &[count])?;
    let batch = cast(n, batch, DType::I64)?;
    let chosen = n.build(|g| g.gather(x, batch, 0))?;
    let by_row = bins(n, regions, (2, 4), scale, *rows, height)?;
    let by_column = bins(n, regions, (1, 3), scale, *columns, width)?;
    // Over columns first, then over rows; what no bin holds is the least number.
    let least = n.scalar(dtype, f64::NEG_INFINITY);
    let image = reshaped(n, chosen, &[count, channels, height, 1, width])?;
    let mask = reshaped(n, by_column, &[count, 1, 1, *columns, width])?;
    let kept = n.build(|g| g.select(mask, image, least))?;
    let image = reduced(n, ReduceKind::Max, kept, &[4], false)?;
    let image = reshaped(n, image, &[count, channels, 1, height, *columns])?;
    let mask = reshaped(n, by_row, &[count, 1, *rows, height, 1])?;
    let kept = n.build(|g| g.select(mask, image, least))?;
    let most = reduced(n, ReduceKind::Max, kept, &[3], false)?;
    let y = n.build(|g| {
        let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
        let empty = g.eq(most, least)?;
        g.select(empty, zero, most)
    })?;
    n.like_first(y)
}

/// Which positions along an axis each bin of each region holds: `[regions, bins, positions]`.
fn bins(
    n: &mut NodeContext<'_, '_>,
    regions: ValueId,
    (start, end): (usize, usize),
    scale: f64,
    bins: usize,
    positions: usize,
) -> Answer<ValueId> {
    n.build(|g| {
        let mut rounded = |column: usize| {
            let at = g.narrow(regions, 1, column, 1)?;
            let at = g.binary_scalar(Binary::Mul, at, scale)?;
            // Halves away from zero.
            let size = g.abs(at)?;
            let size = g.binary_scalar(Binary::Add, size, 0.5)?;
            let size = g.floor(size)?;
            let sign = g.sign(at)?;
            g.mul(size, sign)
        };
        let (first, last) = (rounded(start)?, rounded(end)?);
        let length = g.sub(last, first)?;
        let length = g.binary_scalar(Binary::Add, length, 1.0)?;
        let length = g.binary_scalar(Binary::Max, length, 1.0)?;
        let step = g.binary_scalar(Binary::Div, length, bins as f64)?;
        let numbers = g.range(DType::F32, 0.0, 1.0, bins)?;
        let after = g.binary_scalar(Binary::Add, numbers, 1.0)?;
        let (low, high) = (g.mul(step, numbers)?, g.mul(step, after)?);
        let (low, high) = (g.floor(low)?, g.ceil(high)?);
        let (low, high) = (g.add(low, first)?, g.add(high, first)?);
        let count = g.ty(regions)?.shape[0] as i64;
        let (low, high) =
            (g.reshape(low, &[count, bins as i64, 1])?, g.reshape(high, &[count, bins as i64, 1])?);
        let places = g.range(DType::F32, 0.0, 1.0, positions)?;
        let (from, to) = (g.ge(places, low)?, g.lt(places, high)?);
        g.and(from, to)
    })
}
