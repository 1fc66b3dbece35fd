//! Attention with its projections, on floats and on integers, and attention of heads that come projected.

use olivine_ir::op::Binary;
use olivine_ir::{DType, ValueId};

use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::scores::{Heads, Start};
use crate::ops::attention::{appended, count, heads_of, joined, reshaped};

/// What masked scores get where a node does not say.
const FILTER: f32 = -10_000.0;

/// Inputs that attention has beside q, k and v, by position.
struct Extras {
    mask: usize,
    bias: Option<usize>,
}

/// The scores' bias from a mask of integers: ends of sequences, ends and starts, or a number for each key or pair.
fn mask_bias(
    n: &mut NodeContext<'_, '_>,
    mask: ValueId,
    dtype: DType,
    [batch, queries, before, keys]: [usize; 4],
) -> Answer<ValueId> {
    let ty = n.ty(mask)?;
    let zero = n.scalar(ty.dtype, 0.0);
    let keep = match ty.shape.dims() {
        [ends] if *ends == batch || Some(*ends) == batch.checked_mul(2) => {
            let twice = *ends != batch;
            let both = reshaped(n, mask, &[*ends, 1, 1, 1])?;
            n.build(|g| {
                let key = g.range(ty.dtype, 0.0, 1.0, keys)?;
                let end = g.narrow(both, 0, 0, batch)?;
                let inside = g.lt(key, end)?;
                if !twice {
                    return Ok(inside);
                }
                let start = g.narrow(both, 0, batch, batch)?;
                let after = g.ge(key, start)?;
                g.and(inside, after)
            })?
        }
        [b, k] if *b == batch && *k == keys => {
            let counts = n.build(|g| g.gt(mask, zero))?;
            reshaped(n, counts, &[batch, 1, 1, keys])?
        }
        [b, q, k] if *b == batch && *q == queries && *k == keys => {
            let counts = n.build(|g| g.gt(mask, zero))?;
            reshaped(n, counts, &[batch, 1, queries, keys])?
        }
        [b, 1, longest, _] if *b == batch && *longest >= before + queries => n.build(|g| {
            let rows = g.narrow(mask, 2, before, queries)?;
            let part = g.narrow(rows, 3, 0, keys)?;
            g.gt(part, zero)
        })?,
        _ => {
            let problem =
                format!("a mask of {} for {batch} times {queries} queries and {keys} keys", ty.shape);
            return Err(n.wrong(problem));
        }
    };
    let filter = f64::from(n.float_or("mask_filter_value", FILTER)?);
    let (nothing, filter) = (n.scalar(dtype, 0.0), n.scalar(dtype, filter));
    n.build(|g| g.select(keep, nothing, filter))
}

/// Attention of heads under a node's masks; `k` and `v` hold what came before, too.
fn attend(
    n: &mut NodeContext<'_, '_>,
    [q, k, v]: [ValueId; 3],
    before: usize,
    extras: &Extras,
) -> Answer<Heads> {
    let (shape, keys) = (n.shape(q)?, n.shape(k)?[2]);
    let dtype = n.dtype(q)?;
    let mut heads = Heads::new(q, k, v);
    heads.scale = n.float("scale")?.map(f64::from).filter(|s| *s != 0.0);
    // A lone query is the last of its sequence, of which a cache may hold the rest in place of `key`.
    if n.flag("unidirectional", false)? && shape.size(2) != 1 {
        heads.start = Start::After(before);
        heads.right = Some(0);
    }
    if let Some(mask) = n.optional(extras.mask)? {
        heads.bias = Some(mask_bias(n, mask, dtype, [shape[0], shape[2], before, keys])?);
    }
    if let Some(i) = extras.bias
        && let Some(more) = n.optional(i)?
    {
        heads.bias = Some(match heads.bias {
            Some(bias) => n.build(|g| g.add(bias, more))?,
            None => more,
        });
    }
    Ok(heads)
}

/// Refuses what only changes where results are stored, or exists on some devices alone.
fn plain(n: &NodeContext<'_, '_>) -> Answer<()> {
    for name in ["past_present_share_buffer", "do_rotary"] {
        if n.flag(name, false)? {
            return Err(n.wrong(format!("{name} cannot be imported")));
        }
    }
    Ok(())
}

/// Columns of a projection as heads.
fn columns(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    (from, size): (usize, usize),
    heads: usize,
) -> Answer<ValueId> {
    let part = n.build(|g| g.narrow(x, -1, from, size))?;
    heads_of(n, part, heads)
}

/// Attention of q, k and v side by side in one projection, with a past of both in one tensor.
fn of_projection(
    n: &mut NodeContext<'_, '_>,
    projected: ValueId,
    past: Option<ValueId>,
    extras: &Extras,
) -> Answer<(ValueId, ValueId)> {
    let heads = count(n, "num_heads")?;
    let width = n.shape(projected)?.last().copied().unwrap_or(0);
    let sizes: Vec<usize> = match n.ints("qkv_hidden_sizes")?.filter(|s| !s.is_empty()) {
        Some(sizes) => sizes.iter().map(|s| usize::try_from(*s).unwrap_or(0)).collect(),
        None => vec![width / 3; 3],
    };
    let [qs, ks, vs] = <[usize; 3]>::try_from(sizes.as_slice())
        .map_err(|_| n.wrong(format!("{} sizes of q, k and v", sizes.len())))?;
    if qs.checked_add(ks).and_then(|s| s.checked_add(vs)) != Some(width) {
        return Err(n.wrong(format!("{width} columns do not fall into {sizes:?}")));
    }
    let q = columns(n, projected, (0, qs), heads)?;
    let mut k = columns(n, projected, (qs, ks), heads)?;
    let mut v = columns(n, projected, (qs + ks, vs), heads)?;
    let mut before = 0;
    if let Some(past) = past {
        let shape = n.shape(past)?;
        let [2, rest @ ..] = shape.dims() else {
            return Err(n.wrong(format!("a past of {shape} should be keys and values")));
        };
        let rest = rest.to_vec();
        before = rest.get(2).copied().unwrap_or(0);
        for (i, x) in [&mut k, &mut v].into_iter().enumerate() {
            let part = n.build(|g| g.narrow(past, 0, i, 1))?;
            let part = reshaped(n, part, &rest)?;
            *x = appended(n, Some(part), *x)?;
        }
    }
    let heads = attend(n, [q, k, v], before, extras)?;
    let y = heads.result(n)?;
    let y = joined(n, y)?;
    // Keys and values of two sizes have no common tensor; they are never asked for together then.
    let present = if n.wants(1) { n.build(|g| g.stack(&[k, v], 0))? } else { k };
    Ok((y, present))
}

pub(super) fn attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    plain(n)?;
    let element = n.element(0)?;
    let (x, weights) = (n.tensor(0)?, n.tensor(1)?);
    let mut projected = n.build(|g| g.matmul(x, weights))?;
    if let Some(bias) = n.optional(2)? {
        projected = n.build(|g| g.add(projected, bias))?;
    }
    let past = n.optional(4)?;
    let (y, present) = of_projection(n, projected, past, &Extras { mask: 3, bias: Some(5) })?;
    Ok(vec![n.result(y, element), n.result(present, element)])
}

/// QAttention: the projection is of integers, all that follows of floats.
pub(super) fn quantized_attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    plain(n)?;
    let element = n.element(2)?;
    let (x, weights, bias) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let (x_scale, weight_scale) = (n.tensor(3)?, n.tensor(4)?);
    let width = n.shape(weights)?.last().copied().unwrap_or(0);
    let mut zeros = [None, None];
    for (i, zero) in zeros.iter_mut().enumerate() {
        if let Some(given) = n.optional(6 + i)? {
            let one = n.shape(given)?.numel() == 1;
            *zero = Some(reshaped(n, given, if one { &[] } else { std::slice::from_ref(&width) })?);
        }
    }
    let (x_scale, dtype) = (reshaped(n, x_scale, &[])?, n.dtype(bias)?);
    let projected = n.build(|g| {
        let product = g.qmatmul(x, weights, zeros[0], zeros[1])?;
        let product = g.cast(product, DType::F32)?;
        let (x_scale, weight_scale) = (g.cast(x_scale, DType::F32)?, g.cast(weight_scale, DType::F32)?);
        let scale = g.mul(weight_scale, x_scale)?;
        let real = g.mul(product, scale)?;
        let real = g.cast(real, dtype)?;
        g.add(real, bias)
    })?;
    let past = n.optional(8)?;
    let (y, present) = of_projection(n, projected, past, &Extras { mask: 5, bias: None })?;
    Ok(vec![n.result(y, element), n.result(present, element)])
}

/// One of the tensors packed along the axis before the last of `[batch, sequence, heads, parts, size]`, as heads.
fn packed(n: &mut NodeContext<'_, '_>, x: ValueId, part: usize) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let [batch, sequence, heads, _, size] = <[usize; 5]>::try_from(shape.dims())
        .map_err(|_| n.wrong(format!("{shape} should be batch, sequence, heads, parts, size")))?;
    let part = n.build(|g| g.narrow(x, 3, part, 1))?;
    let split = reshaped(n, part, &[batch, sequence, heads, size])?;
    n.build(|g| g.transpose(split, &[0, 2, 1, 3]))
}

pub(super) fn multi_head_attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    if n.has(8) || n.has(9) {
        return Err(n.wrong("caches that are shared or shared out among beams cannot be imported"));
    }
    let element = n.element(0)?;
    let heads = count(n, "num_heads")?;
    let query = n.tensor(0)?;
    let (key, value) = (n.optional(1)?, n.optional(2)?);
    // Heads that come from a cache have had their bias.
    let mut cached = false;
    let [mut q, mut k, mut v] = match (key, value) {
        (None, _) => [packed(n, query, 0)?, packed(n, query, 1)?, packed(n, query, 2)?],
        (Some(both), None) => [heads_of(n, query, heads)?, packed(n, both, 0)?, packed(n, both, 1)?],
        (Some(key), Some(value)) if n.shape(key)?.rank() == 4 && n.shape(value)?.rank() == 4 => {
            cached = true;
            [heads_of(n, query, heads)?, key, value]
        }
        (Some(key), Some(value)) => {
            [heads_of(n, query, heads)?, heads_of(n, key, heads)?, heads_of(n, value, heads)?]
        }
    };
    if let Some(bias) = n.optional(3)? {
        let mut from = 0;
        for (i, x) in [&mut q, &mut k, &mut v].into_iter().enumerate() {
            let shape = n.shape(*x)?;
            let (heads, size) = (shape[1], shape[3]);
            if i == 0 || !cached {
                let part = n.build(|g| g.narrow(bias, 0, from, heads * size))?;
                let part = reshaped(n, part, &[1, heads, 1, size])?;
                *x = n.build(|g| g.add(*x, part))?;
            }
            from += heads * size;
        }
    }
    let (past_key, past_value) = (n.optional(6)?, n.optional(7)?);
    if past_key.is_some() != past_value.is_some() {
        return Err(n.wrong("past_key and past_value are given only together"));
    }
    let before = match past_key {
        Some(past) => n.shape(past)?.get(2).copied().unwrap_or(0),
        None => 0,
    };
    let (k, v) = (appended(n, past_key, k)?, appended(n, past_value, v)?);
    let attention = attend(n, [q, k, v], before, &Extras { mask: 4, bias: Some(5) })?;
    let (y, scores) = if n.wants(3) {
        let steps = attention.steps(n)?;
        (steps.result, Some(steps.masked))
    } else {
        (attention.result(n)?, None)
    };
    let y = joined(n, y)?;
    let mut results = vec![n.result(y, element), n.result(k, element), n.result(v, element)];
    if let Some(scores) = scores {
        let dtype = n.dtype(y)?;
        let scores = n.build(|g| g.cast(scores, dtype))?;
        results.push(n.result(scores, element));
    }
    Ok(results)
}

/// A whole number more than each of some integers.
pub(super) fn plus(n: &mut NodeContext<'_, '_>, x: ValueId, number: f64) -> Answer<ValueId> {
    n.build(|g| g.binary_scalar(Binary::Add, x, number))
}
