//! Normalisations.

use olivine_ir::op::{Binary, GroupNorm, LayerNorm, Pool, PoolKind, ReduceKind, RmsNorm, Window};
use olivine_ir::{DType, Shape, ValueId};

use super::Entry;
use super::arity::{Since, Takes};
use super::compose::{binary, cast, reduced, reshaped, size, wide, with_number};
use crate::element::element_type;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("BatchNormalization", Since(&[(1, 5, 5), (14, 5, 3)]), batch_norm),
    ("GroupNormalization", Takes(3, 1), group_norm),
    ("InstanceNormalization", Takes(3, 1), instance_norm),
    ("LRN", Takes(1, 1), lrn),
    ("LayerNormalization", Takes(3, 3), layer_norm),
    ("LpNormalization", Takes(1, 1), lp_norm),
    ("MeanVarianceNormalization", Takes(1, 1), mean_variance_norm),
    ("RMSNormalization", Takes(2, 1), rms_norm),
];

fn epsilon(n: &NodeContext<'_, '_>) -> Answer<f64> {
    Ok(f64::from(n.float_or("epsilon", 1e-5)?))
}

/// Mean and biased variance over axes, which stay with size 1; in at least f32.
fn moments(n: &mut NodeContext<'_, '_>, x: ValueId, axes: &[usize]) -> Answer<(ValueId, ValueId)> {
    let dtype = wide(n.dtype(x)?);
    let x = cast(n, x, dtype)?;
    let mean = reduced(n, ReduceKind::Mean, x, axes, true)?;
    let centred = binary(n, Binary::Sub, x, mean)?;
    let square = n.build(|g| g.square(centred))?;
    Ok((mean, reduced(n, ReduceKind::Mean, square, axes, true)?))
}

fn batch_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let mut inputs: Vec<ValueId> = (0..5).map(|i| n.tensor(i)).collect::<Answer<_>>()?;
    let (dtype, shape) = (n.dtype(inputs[0])?, n.shape(inputs[0])?);
    if shape.rank() == 0 {
        return Err(n.wrong("its input has no axes"));
    }
    let epsilon = epsilon(n)?;
    let training = match n.opset() {
        14.. => n.flag("training_mode", false)?,
        // Before, the number of outputs decided, and in the first versions an attribute.
        opset => n.output_count() > 1 && !(opset < 7 && n.flag("is_test", false)?),
    };
    let elements = [n.element(0)?, n.element(3)?];
    let types: Vec<DType> = inputs.iter().map(|id| n.dtype(*id)).collect::<Answer<_>>()?;
    // Statistics may have more digits than x; then all is computed in theirs.
    let common = if types.iter().all(|t| *t == dtype) { dtype } else { widest(&types) };
    for id in &mut inputs {
        *id = cast(n, *id, common)?;
    }
    let (x, scale, bias, mean, variance) = (inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]);
    if n.opset() < 9 && !n.flag("spatial", true)? {
        if training {
            return Err(n.wrong("training with statistics for every position cannot be imported"));
        }
        let y = by_position(n, x, [scale, bias, mean, variance], epsilon)?;
        let y = cast(n, y, dtype)?;
        return n.like_first(y);
    }
    // A line of channels is an image of single elements; other shapes stay as they are, open sizes too.
    let is_line = shape.rank() == 1;
    let x = if is_line { reshaped(n, x, &[shape[0], 1])? } else { x };
    if !training {
        let y = n.build(|g| g.batch_norm(x, scale, bias, [mean, variance], epsilon))?;
        let y = if is_line { reshaped(n, y, &shape)? } else { y };
        let y = cast(n, y, dtype)?;
        return n.like_first(y);
    }
    let sizes = n.shape(x)?;
    let axes: Vec<usize> = (0..sizes.rank()).filter(|a| *a != 1).collect();
    let (now, spread) = moments(n, x, &axes)?;
    let channels = [sizes[1]];
    let (now, spread) = (reshaped(n, now, &channels)?, reshaped(n, spread, &channels)?);
    let (now, spread) = (cast(n, now, common)?, cast(n, spread, common)?);
    let y = n.build(|g| g.batch_norm(x, scale, bias, [now, spread], epsilon))?;
    let y = reshaped(n, y, &shape)?;
    let y = cast(n, y, dtype)?;
    let momentum = f64::from(n.float_or("momentum", 0.9)?);
    let mut results = vec![n.result(y, elements[0])];
    for (old, new) in [(mean, now), (variance, spread)] {
        let kept = with_number(n, Binary::Mul, old, momentum)?;
        let joined = with_number(n, Binary::Mul, new, 1.0 - momentum)?;
        let running = binary(n, Binary::Add, kept, joined)?;
        let running = cast(n, running, types[3])?;
        results.push(n.result(running, elements[1]));
    }
    for saved in [now, spread] {
        let saved = cast(n, saved, types[3])?;
        results.push(n.result(saved, elements[1]));
    }
    results.truncate(if n.opset() < 14 { 5 } else { 3 });
    Ok(results)
}

fn widest(types: &[DType]) -> DType {
    if types.contains(&DType::F64) { DType::F64 } else { DType::F32 }
}

/// A norm with statistics and weights for every position of every channel.
fn by_position(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    [scale, bias, mean, variance]: [ValueId; 4],
    epsilon: f64,
) -> Answer<ValueId> {
    let sizes: Vec<usize> = n.shape(x)?.iter().skip(1).copied().collect();
    let [scale, bias, mean, variance] = [
        reshaped(n, scale, &sizes)?,
        reshaped(n, bias, &sizes)?,
        reshaped(n, mean, &sizes)?,
        reshaped(n, variance, &sizes)?,
    ];
    n.build(|g| {
        let variance = g.binary_scalar(Binary::Add, variance, epsilon)?;
        let deviation = g.sqrt(variance)?;
        let centred = g.sub(x, mean)?;
        let unit = g.div(centred, deviation)?;
        let scaled = g.mul(unit, scale)?;
        g.add(scaled, bias)
    })
}

fn instance_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, scale, bias) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let epsilon = epsilon(n)?;
    let y = n.build(|g| g.instance_norm(x, scale, bias, epsilon))?;
    n.like_first(y)
}

fn group_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, mut scale, mut bias) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let groups = n.int("num_groups")?.ok_or_else(|| n.wrong("it has no num_groups"))?;
    let groups = size(n, "num_groups", groups)?;
    let shape = n.shape(x)?;
    if groups == 0 || shape.rank() < 2 || !shape[1].is_multiple_of(groups) {
        return Err(n.wrong(format!("{groups} groups do not divide the channels of {shape}")));
    }
    if n.opset() < 21 {
        // One number a group.
        let each = shape[1] / groups;
        scale = n.build(|g| g.repeat(scale, 0, each))?;
        bias = n.build(|g| g.repeat(bias, 0, each))?;
    }
    let dtype = n.dtype(x)?;
    let (scale, bias) = (cast(n, scale, dtype)?, cast(n, bias, dtype)?);
    let eps = epsilon(n)?;
    let y = n.add(GroupNorm { groups, eps }, &[x, scale, bias])?;
    n.like_first(y)
}

/// Whether weights stand for every element of x's axes from `axis` on.
fn covers(shape: &Shape, axis: usize, weights: &Shape) -> bool {
    weights.dims() == &shape[axis..]
}

fn layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, scale, bias) = (n.tensor(0)?, n.tensor(1)?, n.optional(2)?);
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let axis = n.int_or("axis", -1)?;
    let axis = n.axis(axis, shape.rank())?;
    let eps = epsilon(n)?;
    let plain = covers(&shape, axis, &n.shape(scale)?)
        && match bias {
            Some(bias) => covers(&shape, axis, &n.shape(bias)?),
            None => true,
        };
    let y = if plain {
        let scale = cast(n, scale, dtype)?;
        let bias = match bias {
            Some(bias) => Some(cast(n, bias, dtype)?),
            None => None,
        };
        let op = LayerNorm { axis, eps, bias: bias.is_some(), prologue: None, emit_input: false };
        let operands: Vec<ValueId> = [x, scale].into_iter().chain(bias).collect();
        n.add(op, &operands)?
    } else {
        let op = LayerNorm { axis, eps, bias: false, prologue: None, emit_input: false };
        let ones = ones(n, dtype, &shape[axis..])?;
        let unit = n.add(op, &[x, ones])?;
        weighted(n, unit, scale, bias)?
    };
    let mut results = n.like_first(y)?;
    if n.output_count() > 1 {
        let axes: Vec<usize> = (axis..shape.rank()).collect();
        let (mean, variance) = moments(n, x, &axes)?;
        let variance = with_number(n, Binary::Add, variance, eps)?;
        let inverse = n.build(|g| g.rsqrt(variance))?;
        let number = n.int_or("stash_type", 1)?;
        let stash = i32::try_from(number).ok().and_then(element_type);
        let held = stash.and_then(|stash| Some((stash, stash.dtype().filter(|d| d.is_float())?)));
        let (stash, held) = held.ok_or_else(|| n.wrong(format!("stash_type {number} is no float")))?;
        for id in [mean, inverse] {
            let id = cast(n, id, held)?;
            results.push(n.result(id, stash));
        }
    }
    Ok(results)
}

fn ones(n: &mut NodeContext<'_, '_>, dtype: DType, sizes: &[usize]) -> Answer<ValueId> {
    let one = n.scalar(dtype, 1.0);
    n.build(|g| g.fill(one, sizes))
}

/// x times a scale plus a bias, both broadcast to it.
fn weighted(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    scale: ValueId,
    bias: Option<ValueId>,
) -> Answer<ValueId> {
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let mut y = x;
    for (op, weights) in [(Binary::Mul, Some(scale)), (Binary::Add, bias)] {
        let Some(weights) = weights else { continue };
        let from = n.shape(weights)?;
        if from.broadcast(&shape) != Some(shape) {
            return Err(n.wrong(format!("weights of {from} do not broadcast to {shape}")));
        }
        let weights = cast(n, weights, dtype)?;
        y = binary(n, op, y, weights)?;
    }
    Ok(y)
}

fn rms_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, scale) = (n.tensor(0)?, n.tensor(1)?);
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let axis = n.int_or("axis", -1)?;
    let axis = n.axis(axis, shape.rank())?;
    let op = RmsNorm { axis, eps: epsilon(n)?, bias: false, prologue: None, emit_input: false };
    let (given, to) = (n.shape(scale)?, n.dtype(scale)?);
    let y = if covers(&shape, axis, &given) && to == dtype {
        n.add(op, &[x, scale])?
    } else {
        let ones = ones(n, dtype, &shape[axis..])?;
        let unit = n.add(op, &[x, ones])?;
        // The result is of the scale's type.
        let unit = cast(n, unit, to)?;
        weighted(n, unit, scale, None)?
    };
    let element = n.element(1)?;
    Ok(vec![n.result(y, element)])
}

fn mean_variance_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (rank, dtype) = (n.shape(x)?.rank(), n.dtype(x)?);
    let axes = n.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = n.axes(&axes, rank)?;
    let (mean, variance) = moments(n, x, &axes)?;
    let x = cast(n, x, wide(dtype))?;
    let y = n.build(|g| {
        let deviation = g.sqrt(variance)?;
        let deviation = g.binary_scalar(Binary::Add, deviation, 1e-9)?;
        let centred = g.sub(x, mean)?;
        g.div(centred, deviation)
    })?;
    let y = cast(n, y, dtype)?;
    n.like_first(y)
}

fn lp_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let axis = n.int_or("axis", -1)?;
    let axis = n.axis(axis, rank)?;
    let kind = match n.int_or("p", 2)? {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        other => return Err(n.wrong(format!("p is {other}, not 1 or 2"))),
    };
    let norm = reduced(n, kind, x, &[axis], true)?;
    let dtype = n.dtype(x)?;
    let zero = n.scalar(dtype, 0.0);
    let y = n.build(|g| {
        let ratio = g.div(x, norm)?;
        let nothing = g.eq(norm, zero)?;
        g.select(nothing, zero, ratio)
    })?;
    n.like_first(y)
}

/// Local response: every number divided by a power of the mean square of some channels around it.
fn lrn(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let around = n.int("size")?.ok_or_else(|| n.wrong("it has no size"))?;
    let around = size(n, "size", around)?;
    if around == 0 || shape.rank() < 2 {
        return Err(n.wrong(format!("{around} channels of {shape}")));
    }
    let (alpha, beta, bias) =
        (n.float_or("alpha", 1e-4)?, n.float_or("beta", 0.75)?, n.float_or("bias", 1.0)?);
    if shape.has_zero() {
        return n.like_first(x);
    }
    let positions = shape[2..].iter().fold(1usize, |a, b| a.saturating_mul(*b));
    let held = cast(n, x, wide(dtype))?;
    let square = n.build(|g| g.square(held))?;
    let square = reshaped(n, square, &[shape[0], 1, shape[1], positions])?;
    // No window need reach farther than the channels.
    let (before, after) = (((around - 1) / 2).min(shape[1]), (around / 2).min(shape[1]));
    let reach = before + after + 1;
    let window = Window { strides: vec![1, 1], pads: vec![(before, after), (0, 0)], dilations: vec![1, 1] };
    let op = Pool {
        kind: PoolKind::Average,
        kernel: vec![reach, 1],
        window,
        ceil: false,
        count_include_pad: true,
        p: 2,
        indices: false,
    };
    let mean = n.add(op, &[square])?;
    let mean = reshaped(n, mean, &shape)?;
    let y = n.build(|g| {
        let weighted = g.binary_scalar(Binary::Mul, mean, f64::from(alpha) * reach as f64 / around as f64)?;
        let base = g.binary_scalar(Binary::Add, weighted, f64::from(bias))?;
        let power = g.binary_scalar(Binary::Pow, base, f64::from(beta))?;
        g.div(held, power)
    })?;
    let y = cast(n, y, dtype)?;
    n.like_first(y)
}
