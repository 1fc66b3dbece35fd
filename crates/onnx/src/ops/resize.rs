//! Resize and Upsample.

use olivine_ir::op::{Binary, CoordinateMode, NearestMode, Resize, ResizeMode};
use olivine_ir::{DType, Dim, Shape, Tensor, ValueId};

use super::Entry;
use super::arity::Since;
use super::compose::{cast, reshaped, wide};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Resize", Since(&[(10, 2, 1), (11, 4, 1)]), resize),
    ("Upsample", Since(&[(1, 1, 1), (9, 2, 1)]), upsample),
];

/// Result sizes, and where they come from.
struct Target {
    sizes: Vec<Dim>,
    /// Scales where they are given or follow from more than the sizes.
    scales: Option<Vec<f64>>,
}

/// Sizes that scales lead to, as ONNX Runtime rounds them.
fn scaled(n: &NodeContext<'_, '_>, shape: &Shape, scales: &[f32]) -> Answer<Target> {
    if scales.len() != shape.rank() {
        return Err(n.wrong(format!("{} scales for {shape}", scales.len())));
    }
    let mut to = Vec::with_capacity(scales.len());
    for (size, scale) in shape.sizes().iter().zip(scales) {
        let length = scaled_size(*size, *scale);
        to.push(length.ok_or_else(|| n.wrong(format!("a scale of {scale} for a size of {size}")))?);
    }
    Ok(Target { sizes: to, scales: Some(scales.iter().map(|s| f64::from(*s)).collect()) })
}

/// A size times a scale in f32, rounded down. It is an expression where the product is exact.
fn scaled_size(size: Dim, scale: f32) -> Option<Dim> {
    if !(scale.is_finite() && scale > 0.0) {
        return None;
    }
    if let Some((numerator, denominator)) = fraction(scale)
        && size <= EXACT / numerator
    {
        return Some((size * numerator).div_floor(denominator));
    }
    let length = size.specialize().ok()? as f32 * scale;
    (length < 1e15).then(|| Dim::from(length as u64))
}

/// Up to here f32 has every integer.
const EXACT: i64 = 1 << 24;

/// A positive number as an integer over a power of two, where both are small enough to count sizes with.
fn fraction(scale: f32) -> Option<(i64, i64)> {
    let denominator = (0..=24).map(|shift| 1i64 << shift).find(|d| (scale * *d as f32).fract() == 0.0)?;
    let numerator = scale * denominator as f32;
    (1.0..=EXACT as f32).contains(&numerator).then_some((numerator as i64, denominator))
}

fn upsample(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let scales = if n.opset() < 7 {
        vec![1.0, 1.0, n.float_or("height_scale", 1.0)?, n.float_or("width_scale", 1.0)?]
    } else if n.opset() < 9 {
        n.floats("scales")?.ok_or_else(|| n.wrong("it has no scales"))?
    } else {
        fixed_floats(n, 1)?.unwrap_or_default()
    };
    let shape = n.shape(x)?;
    let target = scaled(n, &shape, &scales)?;
    as_opset_10(n, target)
}

/// Resizing before there was a choice: positions are divided by the scale, and the nearest sample is the one
/// before or, where an axis gets shorter, the one after, as ONNX's tests of that time have it.
fn as_opset_10(n: &mut NodeContext<'_, '_>, target: Target) -> Answer<Vec<Value>> {
    let mode = match n.string_or("mode", "nearest")?.as_str() {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" => ResizeMode::Linear,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let x = n.tensor(0)?;
    let scales = target.scales.unwrap_or_default();
    let op = Resize {
        sizes: target.sizes,
        scales: Some(scales.clone()),
        mode,
        coordinates: CoordinateMode::Asymmetric,
        nearest: NearestMode::Floor,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
    };
    let shrinks = |scale: &f64| *scale < 1.0;
    if mode != ResizeMode::Nearest || !scales.iter().any(shrinks) {
        return interpolated(n, x, op);
    }
    let mut between = n.shape(x)?.sizes().to_vec();
    let of = |keep: bool| scales.iter().map(|s| if shrinks(s) == keep { *s } else { 1.0 }).collect();
    for (i, _) in scales.iter().enumerate().filter(|(_, s)| shrinks(s)) {
        between[i] = op.sizes[i];
    }
    let shorter = Resize { sizes: between, scales: Some(of(true)), nearest: NearestMode::Ceil, ..op.clone() };
    let x = n.add(shorter, &[x])?;
    interpolated(n, x, Resize { scales: Some(of(false)), ..op })
}

/// Adds a resize; numbers that are no floats are interpolated as such and cut to their type.
fn interpolated(n: &mut NodeContext<'_, '_>, x: ValueId, op: Resize) -> Answer<Vec<Value>> {
    let dtype = n.dtype(x)?;
    if op.mode == ResizeMode::Nearest {
        let y = n.add(op, &[x])?;
        return n.like_first(y);
    }
    let x = if dtype.is_float() { x } else { cast(n, x, DType::F32)? };
    let y = n.add(op, &[x])?;
    let y = cast(n, y, dtype)?;
    n.like_first(y)
}

/// The elements of input `i`, floats that decide shapes; nothing if there are none.
fn fixed_floats(n: &mut NodeContext<'_, '_>, i: usize) -> Answer<Option<Vec<f32>>> {
    if !n.has(i) {
        return Ok(None);
    }
    let list: Vec<f32> = n.fixed(i)?.to_f64().into_iter().map(|v| v as f32).collect();
    Ok(if list.is_empty() { None } else { Some(list) })
}

fn resize(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    if n.opset() < 11 {
        let scales = fixed_floats(n, 1)?.unwrap_or_default();
        let target = scaled(n, &shape, &scales)?;
        return as_opset_10(n, target);
    }
    let axes = match n.ints("axes")? {
        Some(axes) => n.axes(&axes, shape.rank())?,
        None => (0..shape.rank()).collect(),
    };
    let coordinates = n.string_or("coordinate_transformation_mode", "half_pixel")?;
    let target = target(n, &shape, &axes)?;
    let mode = n.string_or("mode", "nearest")?;
    let mode = ResizeMode::from_name(&mode).ok_or_else(|| n.wrong(format!("mode `{mode}` is unknown")))?;
    let nearest = n.string_or("nearest_mode", "round_prefer_floor")?;
    let nearest = NearestMode::from_name(&nearest)
        .ok_or_else(|| n.wrong(format!("nearest_mode `{nearest}` is unknown")))?;
    let op = Resize {
        sizes: target.sizes,
        scales: target.scales,
        mode,
        coordinates: CoordinateMode::from_name(&coordinates).unwrap_or(CoordinateMode::HalfPixel),
        nearest,
        cubic: f64::from(n.float_or("cubic_coeff_a", -0.75)?),
        exclude_outside: n.flag("exclude_outside", false)?,
        antialias: n.flag("antialias", false)? && mode != ResizeMode::Nearest,
    };
    match coordinates.as_str() {
        "tf_crop_and_resize" => cropped(n, &op, &axes),
        // Of opsets 11 and 12.
        "tf_half_pixel_for_nn" => half_pixel_for_nn(n, &op),
        known if CoordinateMode::from_name(known).is_some() => interpolated(n, x, op),
        other => Err(n.wrong(format!("coordinate_transformation_mode `{other}` is unknown"))),
    }
}

/// Sizes of the result of opset 11 and later.
fn target(n: &mut NodeContext<'_, '_>, shape: &Shape, axes: &[usize]) -> Answer<Target> {
    if let Some(given) = fixed_floats(n, 2)? {
        if given.len() != axes.len() {
            return Err(n.wrong(format!("{} scales for {} axes", given.len(), axes.len())));
        }
        let mut scales = vec![1.0; shape.rank()];
        axes.iter().zip(&given).for_each(|(axis, scale)| scales[*axis] = *scale);
        return scaled(n, shape, &scales);
    }
    let given = if n.has(3) { n.fixed_sizes(3)? } else { Vec::new() };
    if let Some(size) = given.iter().find(|size| **size < 0) {
        return Err(n.wrong(format!("a size of {size} in its sizes")));
    }
    if given.len() != axes.len() || given.is_empty() != axes.is_empty() {
        return Err(n.wrong(format!("{} sizes for {} axes, and no scales", given.len(), axes.len())));
    }
    let mut to = shape.sizes().to_vec();
    axes.iter().zip(&given).for_each(|(axis, size)| to[*axis] = *size);
    let policy = n.string_or("keep_aspect_ratio_policy", "stretch")?;
    if policy == "stretch" {
        return Ok(Target { sizes: to, scales: None });
    }
    let given = numbers(n, &given)?;
    let ratios = axes.iter().zip(&given).map(|(axis, size)| *size as f64 / shape[*axis] as f64);
    let scale = match policy.as_str() {
        "not_larger" => ratios.fold(f64::INFINITY, f64::min),
        "not_smaller" => ratios.fold(0.0, f64::max),
        other => return Err(n.wrong(format!("keep_aspect_ratio_policy `{other}` is unknown"))),
    };
    if !(scale.is_finite() && scale > 0.0) {
        return Err(n.wrong(format!("{shape} cannot keep its ratio at sizes {given:?}")));
    }
    let mut scales = vec![1.0; shape.rank()];
    for axis in axes {
        to[*axis] = Dim::from((scale * shape[*axis] as f64 + 0.5).floor() as u64);
        scales[*axis] = scale;
    }
    Ok(Target { sizes: to, scales: Some(scales) })
}

/// Sizes as numbers, to which the import is restricted then.
fn numbers(n: &NodeContext<'_, '_>, sizes: &[Dim]) -> Answer<Vec<usize>> {
    sizes.iter().map(|size| size.specialize().map_err(|e| n.wrong(e.to_string()))).collect()
}

/// Positions `(i + ½) / scale`, of which the nearest is taken.
fn half_pixel_for_nn(n: &mut NodeContext<'_, '_>, op: &Resize) -> Answer<Vec<Value>> {
    let mut x = n.tensor(0)?;
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    if op.mode != ResizeMode::Nearest {
        x = cast(n, x, wide(dtype))?;
    }
    let sizes = numbers(n, &op.sizes)?;
    for (axis, to) in sizes.iter().enumerate().filter(|(axis, to)| shape[*axis] != **to) {
        let scale = match &op.scales {
            Some(scales) => scales[axis],
            None => *to as f64 / shape[axis] as f64,
        };
        let at = n.build(|g| g.range(DType::F32, 0.5 / scale, 1.0 / scale, *to))?;
        x = sampled(n, x, axis, at, op)?;
    }
    let y = cast(n, x, dtype)?;
    n.like_first(y)
}

/// A part of x between starts and ends, given as fractions of the axes, resized; a number stands for what is
/// outside.
fn cropped(n: &mut NodeContext<'_, '_>, op: &Resize, axes: &[usize]) -> Answer<Vec<Value>> {
    let mut x = n.tensor(0)?;
    let (shape, dtype, roi) = (n.shape(x)?, n.dtype(x)?, n.tensor(1)?);
    if op.mode != ResizeMode::Nearest {
        x = cast(n, x, wide(dtype))?;
    }
    if op.antialias || n.shape(roi)?.numel() != 2 * axes.len() {
        return Err(n.wrong("its roi does not fit its axes, or antialias is asked of a crop"));
    }
    let sizes = numbers(n, &op.sizes)?;
    let roi = cast(n, roi, DType::F32)?;
    let known = n.constant_of(roi).as_ref().map(Tensor::to_f64);
    let mut outside: Option<ValueId> = None;
    for (i, axis) in axes.iter().enumerate() {
        let (from, to) = (shape[*axis], sizes[*axis]);
        let whole = known.as_ref().is_some_and(|r| r[i] == 0.0 && r[axes.len() + i] == 1.0);
        if whole && from == to {
            continue;
        }
        let last = from as f64 - 1.0;
        // The size that the scale leads to, of which the result's is the whole part.
        let length = op.scales.as_ref().map_or(to as f64, |s| s[*axis] * from as f64);
        let at = n.build(|g| {
            let (start, end) = (g.narrow(roi, 0, i, 1)?, g.narrow(roi, 0, axes.len() + i, 1)?);
            if to == 1 {
                let middle = g.add(start, end)?;
                return g.binary_scalar(Binary::Mul, middle, 0.5 * last);
            }
            let steps = g.range(DType::F32, 0.0, 1.0, to)?;
            let span = g.sub(end, start)?;
            let span = g.binary_scalar(Binary::Mul, span, last)?;
            let along = g.mul(steps, span)?;
            let along = g.binary_scalar(Binary::Div, along, length - 1.0)?;
            let first = g.binary_scalar(Binary::Mul, start, last)?;
            g.add(along, first)
        })?;
        x = sampled(n, x, *axis, at, op)?;
        let mut dims = vec![to];
        dims.resize(shape.rank() - axis, 1);
        let at = reshaped(n, at, &dims)?;
        let beyond = n.build(|g| {
            let zero = g.constant(Tensor::scalar(0f32));
            let end = g.constant(Tensor::scalar(last as f32));
            let (before, after) = (g.lt(at, zero)?, g.gt(at, end)?);
            g.or(before, after)
        })?;
        outside = Some(match outside {
            Some(others) => n.build(|g| g.or(others, beyond))?,
            None => beyond,
        });
    }
    if let Some(outside) = outside {
        let held = n.dtype(x)?;
        let number = f64::from(n.float_or("extrapolation_value", 0.0)?);
        let number = n.scalar(held, number);
        x = n.build(|g| g.select(outside, number, x))?;
    }
    let y = cast(n, x, dtype)?;
    n.like_first(y)
}

/// x along an axis at computed positions; those outside read the edge.
fn sampled(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    axis: usize,
    at: ValueId,
    op: &Resize,
) -> Answer<ValueId> {
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let count = n.shape(at)?.numel();
    let last = shape[axis] as f64 - 1.0;
    let taps = match op.mode {
        ResizeMode::Nearest => {
            return n.build(|g| {
                let near = nearest(g, at, op.nearest)?;
                let near = g.clamp(near, 0.0, last)?;
                let near = g.cast(near, DType::I64)?;
                g.gather(x, near, axis as isize)
            });
        }
        ResizeMode::Linear => 0..=1,
        ResizeMode::Cubic => -1..=2,
    };
    let mut along = vec![count as i64];
    along.resize(shape.rank() - axis, 1);
    n.build(|g| {
        let first = g.floor(at)?;
        let mut terms = Vec::new();
        let mut total: Option<ValueId> = None;
        for tap in taps {
            let place = g.binary_scalar(Binary::Add, first, f64::from(tap))?;
            let distance = g.sub(at, place)?;
            let distance = g.abs(distance)?;
            let mut weight = if op.mode == ResizeMode::Linear {
                let less = g.neg(distance)?;
                g.binary_scalar(Binary::Add, less, 1.0)?
            } else {
                cubic(g, distance, op.cubic)?
            };
            let read = g.clamp(place, 0.0, last)?;
            if op.exclude_outside {
                let (inside, zero) = (g.eq(read, place)?, g.constant(Tensor::scalar(0f32)));
                weight = g.select(inside, weight, zero)?;
            }
            total = Some(match total {
                Some(sum) => g.add(sum, weight)?,
                None => weight,
            });
            terms.push((g.cast(read, DType::I64)?, weight));
        }
        let mut result: Option<ValueId> = None;
        for (read, mut weight) in terms {
            if let Some(total) = total.filter(|_| op.exclude_outside) {
                weight = g.div(weight, total)?;
            }
            let weight = g.reshape(weight, &along)?;
            let weight = g.cast(weight, dtype)?;
            let values = g.gather(x, read, axis as isize)?;
            let part = g.mul(values, weight)?;
            result = Some(match result {
                Some(sum) => g.add(sum, part)?,
                None => part,
            });
        }
        Ok(result.unwrap_or(x))
    })
}

/// Positions rounded to samples.
fn nearest(g: &mut olivine_ir::Graph, at: ValueId, mode: NearestMode) -> Result<ValueId, olivine_ir::Error> {
    match mode {
        NearestMode::Floor => g.floor(at),
        NearestMode::Ceil => g.ceil(at),
        NearestMode::RoundPreferFloor => {
            let half = g.binary_scalar(Binary::Sub, at, 0.5)?;
            g.ceil(half)
        }
        NearestMode::RoundPreferCeil => {
            let half = g.binary_scalar(Binary::Add, at, 0.5)?;
            g.floor(half)
        }
    }
}

/// The kernel of cubic convolution at distances from 0 to 2.
fn cubic(g: &mut olivine_ir::Graph, distance: ValueId, a: f64) -> Result<ValueId, olivine_ir::Error> {
    let one = g.constant(Tensor::scalar(1f32));
    // ((a + 2)·d − (a + 3))·d² + 1 up to 1, ((a·d − 5·a)·d + 8·a)·d − 4·a from there on.
    let near = g.binary_scalar(Binary::Mul, distance, a + 2.0)?;
    let near = g.binary_scalar(Binary::Sub, near, a + 3.0)?;
    let near = g.mul(near, distance)?;
    let near = g.mul(near, distance)?;
    let near = g.binary_scalar(Binary::Add, near, 1.0)?;
    let far = g.binary_scalar(Binary::Mul, distance, a)?;
    let far = g.binary_scalar(Binary::Sub, far, 5.0 * a)?;
    let far = g.mul(far, distance)?;
    let far = g.binary_scalar(Binary::Add, far, 8.0 * a)?;
    let far = g.mul(far, distance)?;
    let far = g.binary_scalar(Binary::Sub, far, 4.0 * a)?;
    let is_near = g.le(distance, one)?;
    g.select(is_near, near, far)
}
