//! GroupQueryAttention: heads that share keys, a cache, positions of its own.

use olivine_ir::op::{HeadLayout, RmsNorm};
use olivine_ir::{DType, Tensor, ValueId};

use super::attention::plus;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::rotary::{Rotation, rows};
use crate::ops::attention::scores::{Heads, Start};
use crate::ops::attention::{count, divided, heads_of, joined, reshaped};

/// What the sizes of a node's operands come to.
struct Sizes {
    batch: usize,
    /// New tokens.
    sequence: usize,
    /// Rows of the cache that comes in.
    past: usize,
    /// Rows of the cache that goes out.
    present: usize,
    /// Every token is new: positions begin at 0 in every sequence, however short it is.
    first: bool,
}

pub(super) fn group_query_attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    refuse(n)?;
    let element = n.element(0)?;
    let [q, k, v] = projected(n)?;
    let shape = n.shape(q)?;
    let total = usize::try_from(n.fixed_int(6)?).map_err(|_| n.wrong("a negative length"))?;
    let (past_key, past_value) = (n.optional(3)?, n.optional(4)?);
    if past_key.is_some() != past_value.is_some() {
        return Err(n.wrong("past_key and past_value are given only together"));
    }
    let past = match past_key {
        Some(past) => n.shape(past)?.get(2).copied().unwrap_or(0),
        None => 0,
    };
    let (batch, sequence) = (shape[0], shape[2]);
    if sequence > total {
        return Err(n.wrong(format!("{sequence} new tokens in {total}")));
    }
    let first = sequence == total;
    let sizes = Sizes { batch, sequence, past, present: past.max(total), first };
    let last = n.tensor(5)?;
    let last = reshaped(n, last, &[batch])?;
    let lengths = plus(n, last, 1.0)?;
    let begins = plus(n, lengths, -(sequence as f64))?;
    let (q, k) = if n.has(14) || n.has(15) { normed(n, q, k)? } else { (q, k) };
    let [q, k] = if n.flag("do_rotary", false)? { turned(n, [q, k], begins, &sizes)? } else { [q, k] };
    let (present_key, present_value) =
        (cached(n, past_key, k, begins, &sizes)?, cached(n, past_value, v, begins, &sizes)?);
    let mut heads = if first { Heads::new(q, k, v) } else { Heads::new(q, present_key, present_value) };
    heads.scale = n.float("scale")?.map(f64::from).filter(|s| *s != 0.0);
    heads.softcap = n.float("softcap")?.map(f64::from).filter(|c| *c > 0.0);
    if n.flag("causal", true)? {
        heads.right = Some(0);
        let window = n.int_or("local_window_size", -1)?;
        heads.left = usize::try_from(window).ok().and_then(|w| w.checked_sub(1));
    }
    if !first {
        heads.start = Start::FromEnd;
        heads.lengths = Some(lengths);
    } else if batch > 1 {
        heads.keep = Some(within(n, lengths, &sizes)?);
    }
    heads.sinks = sinks(n, shape[1])?;
    if let Some(bias) = n.optional(10)? {
        heads.bias = Some(whole_bias(n, bias, if first { sequence } else { sizes.present })?);
    }
    let kind = n.int_or("qk_output", 0)?;
    let (y, qk) = match kind {
        0 => (heads.result(n)?, None),
        1 | 2 => {
            let steps = heads.steps(n)?;
            let qk = if kind == 1 { finite(n, steps.masked)? } else { steps.weights };
            (steps.result, Some(qk))
        }
        other => return Err(n.wrong(format!("qk_output {other} is unknown"))),
    };
    let y = joined(n, y)?;
    let mut results = vec![y, present_key, present_value];
    if let Some(qk) = qk {
        let dtype = n.dtype(y)?;
        let most = n.shape(qk)?[3].min(total);
        let qk = n.build(|g| g.narrow(qk, 3, 0, most))?;
        results.push(n.build(|g| g.cast(qk, dtype))?);
    }
    Ok(results.into_iter().map(|id| n.result(id, element)).collect())
}

fn refuse(n: &NodeContext<'_, '_>) -> Answer<()> {
    for name in ["k_quant_type", "v_quant_type"] {
        if n.string_or(name, "NONE")? != "NONE" {
            return Err(n.wrong("a quantised cache cannot be imported"));
        }
    }
    if n.has(12) || n.has(13) {
        return Err(n.wrong("a quantised cache cannot be imported"));
    }
    if n.flag("sliding_window_cache", false)? {
        return Err(n.wrong("a cache of one window cannot be imported"));
    }
    Ok(())
}

/// q, k and v as heads, from three inputs or from one that has them side by side.
fn projected(n: &mut NodeContext<'_, '_>) -> Answer<[ValueId; 3]> {
    let (heads, kv_heads) = (count(n, "num_heads")?, count(n, "kv_num_heads")?);
    let query = n.tensor(0)?;
    match (n.optional(1)?, n.optional(2)?) {
        (Some(key), Some(value)) => {
            Ok([heads_of(n, query, heads)?, heads_of(n, key, kv_heads)?, heads_of(n, value, kv_heads)?])
        }
        (None, None) => {
            let width = n.shape(query)?.last().copied().unwrap_or(0);
            let all = kv_heads.checked_mul(2).and_then(|h| h.checked_add(heads));
            let all = all.ok_or_else(|| n.wrong("too many heads"))?;
            let size = divided(n, width, all, "heads")?;
            let parts = [heads, kv_heads, kv_heads].map(|h| h * size);
            let [q, k, v] = <[ValueId; 3]>::try_from(n.build(|g| g.split(query, -1, &parts))?)
                .map_err(|_| n.wrong("its projection does not split"))?;
            Ok([heads_of(n, q, heads)?, heads_of(n, k, kv_heads)?, heads_of(n, v, kv_heads)?])
        }
        _ => Err(n.wrong("key and value are given only together")),
    }
}

/// The norm of every head of q and of k.
fn normed(n: &mut NodeContext<'_, '_>, q: ValueId, k: ValueId) -> Answer<(ValueId, ValueId)> {
    let (q_weight, k_weight) = (n.tensor(14)?, n.tensor(15)?);
    let eps = f64::from(n.float_or("qk_norm_epsilon", 1e-6)?);
    let op = RmsNorm { axis: 3, eps, bias: false, prologue: None, emit_input: false };
    Ok((n.add(op.clone(), &[q, q_weight])?, n.add(op, &[k, k_weight])?))
}

/// q and k rotated to their positions.
fn turned(
    n: &mut NodeContext<'_, '_>,
    heads: [ValueId; 2],
    begins: ValueId,
    sizes: &Sizes,
) -> Answer<[ValueId; 2]> {
    let (batch, sequence) = (sizes.batch, sizes.sequence);
    let tables = (n.tensor(7)?, n.tensor(8)?);
    let pairs = n.shape(tables.0)?.last().copied().unwrap_or(0);
    let offsets = n.build(|g| g.range(DType::I64, 0.0, 1.0, sequence))?;
    let positions = match (n.optional(9)?, sizes.first && sequence > 1) {
        // In a first prompt only the first position counts.
        (Some(positions), true) => {
            let count = n.shape(positions)?.numel();
            let all = reshaped(n, positions, &[count])?;
            n.build(|g| {
                let start = g.narrow(all, 0, 0, 1)?;
                let start = g.cast(start, DType::I64)?;
                g.add(offsets, start)
            })?
        }
        (Some(positions), false) => reshaped(n, positions, &[batch, sequence])?,
        (None, true) => offsets,
        (None, false) => {
            let start = reshaped(n, begins, &[batch, 1])?;
            n.build(|g| {
                let start = g.cast(start, DType::I64)?;
                g.add(start, offsets)
            })?
        }
    };
    let tables = rows(n, tables, positions)?;
    let rotation =
        Rotation { interleaved: n.flag("rotary_interleaved", false)?, elements: pairs.saturating_mul(2) };
    let [q, k] = heads;
    Ok([rotation.apply(n, q, HeadLayout::Bhsd, tables)?, rotation.apply(n, k, HeadLayout::Bhsd, tables)?])
}

/// The cache with new rows after those of each sequence; what follows them is zero or as it was.
fn cached(
    n: &mut NodeContext<'_, '_>,
    past: Option<ValueId>,
    new: ValueId,
    begins: ValueId,
    sizes: &Sizes,
) -> Answer<ValueId> {
    let Sizes { batch, sequence, past: rows, present, first } = *sizes;
    if first && present == sequence {
        return Ok(new);
    }
    let ty = n.ty(new)?;
    let mut dims = ty.shape.to_vec();
    let zero = n.scalar(ty.dtype, 0.0);
    let mut longer = |n: &mut NodeContext<'_, '_>, x: ValueId, from: usize| -> Answer<ValueId> {
        if from == present {
            return Ok(x);
        }
        dims[2] = present - from;
        let rest = n.build(|g| g.fill(zero, dims.as_slice()))?;
        n.build(|g| g.concat(&[x, rest], 2))
    };
    if first {
        return longer(n, new, sequence);
    }
    let old = match past {
        Some(past) => longer(n, past, rows)?,
        None => longer(n, new, sequence)?,
    };
    if batch == 1 {
        let position = reshaped(n, begins, &[])?;
        return n.build(|g| g.kv_append(HeadLayout::Bhsd, old, new, position));
    }
    // Sequences of several lengths: row r of sequence b is new row r − begins[b], if there is one.
    let begins = reshaped(n, begins, &[batch, 1, 1, 1])?;
    let full = n.shape(old)?;
    n.build(|g| {
        let begins = g.cast(begins, DType::I64)?;
        let row = g.range(DType::I64, 0.0, 1.0, present)?;
        let row = g.reshape(row, &[-1, 1])?;
        let from = g.sub(row, begins)?;
        let zero_row = g.constant(Tensor::scalar(0i64));
        let end = g.constant(Tensor::scalar(sequence as i64));
        let (not_before, not_after) = (g.ge(from, zero_row)?, g.lt(from, end)?);
        let inside = g.and(not_before, not_after)?;
        let from = g.clamp(from, 0.0, sequence as f64 - 1.0)?;
        let from = g.expand(from, full)?;
        let moved = g.gather_elements(new, from, 2)?;
        let kept = g.select(not_before, zero, old)?;
        g.select(inside, moved, kept)
    })
}

/// True for keys of a first prompt that are no padding.
fn within(n: &mut NodeContext<'_, '_>, lengths: ValueId, sizes: &Sizes) -> Answer<ValueId> {
    let column = reshaped(n, lengths, &[sizes.batch, 1, 1, 1])?;
    let dtype = n.dtype(column)?;
    n.build(|g| {
        let key = g.range(dtype, 0.0, 1.0, sizes.sequence)?;
        g.lt(key, column)
    })
}

/// Scores with zeros where keys do not count.
fn finite(n: &mut NodeContext<'_, '_>, scores: ValueId) -> Answer<ValueId> {
    let dtype = n.dtype(scores)?;
    let (lowest, zero) = (n.scalar(dtype, f64::NEG_INFINITY), n.scalar(dtype, 0.0));
    n.build(|g| {
        let out = g.eq(scores, lowest)?;
        g.select(out, zero, scores)
    })
}

/// The logit per head that takes weight: given, or 0 for a smooth softmax.
fn sinks(n: &mut NodeContext<'_, '_>, heads: usize) -> Answer<Option<ValueId>> {
    if let Some(given) = n.optional(11)? {
        return Ok(Some(given));
    }
    if n.int_or("smooth_softmax", -1)? != 1 {
        return Ok(None);
    }
    let q = n.tensor(0)?;
    let dtype = n.dtype(q)?;
    let zero = n.scalar(dtype, 0.0);
    n.build(|g| g.fill(zero, [heads])).map(Some)
}

/// A bias for all keys; those of a cache that are not used yet get none.
fn whole_bias(n: &mut NodeContext<'_, '_>, bias: ValueId, keys: usize) -> Answer<ValueId> {
    let ty = n.ty(bias)?;
    let mut dims = ty.shape.to_vec();
    let Some(last) = dims.last_mut() else { return Ok(bias) };
    let given = *last;
    if given >= keys {
        return n.build(|g| g.narrow(bias, -1, 0, keys));
    }
    *last = keys - given;
    let zero = n.scalar(ty.dtype, 0.0);
    let rest = n.build(|g| g.fill(zero, dims.as_slice()))?;
    n.build(|g| g.concat(&[bias, rest], -1))
}
