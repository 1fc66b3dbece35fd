//! Attention, rotations, softmax.
//!
//! ```text
//!   mod.rs      ONNX's Attention: heads, caches and masks from inputs and attributes
//!   scores.rs   attention of heads, in one operation or in steps
//!   flex.rs     FlexAttention, with graphs of the model's in between
//!   linear.rs   LinearAttention, with a state
//!   rotary.rs   rotary position embedding
//!   softmax.rs  softmax and its logarithm
//! ```

mod flex;
mod linear;
pub(super) mod rotary;
pub(super) mod scores;
mod softmax;

use olivine_ir::{DType, ValueId};

use super::Entry;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::arity::{Since, Takes};
pub(super) use crate::ops::compose::reshaped;
use scores::{Heads, Start};

pub(super) const OPERATORS: &[Entry] = &[
    ("Attention", Since(&[(23, 6, 4), (24, 7, 4)]), attention),
    ("LinearAttention", Takes(6, 2), linear::linear_attention),
    ("LogSoftmax", Takes(1, 1), softmax::log_softmax),
    ("RotaryEmbedding", Takes(4, 1), rotary::rotary_embedding),
    ("Softmax", Takes(1, 1), softmax::softmax),
];

/// Operators of `ai.onnx.preview`.
pub(super) const PREVIEW: &[Entry] = &[("FlexAttention", Takes(3, 1), flex::flex_attention)];

/// A size as so many equal parts.
pub(super) fn divided(n: &NodeContext<'_, '_>, size: usize, parts: usize, what: &str) -> Answer<usize> {
    if parts == 0 || !size.is_multiple_of(parts) {
        return Err(n.wrong(format!("{size} does not divide into {parts} {what}")));
    }
    Ok(size / parts)
}

/// An attribute that counts something and is above 0.
pub(super) fn count(n: &NodeContext<'_, '_>, name: &str) -> Answer<usize> {
    let value = n.int(name)?.ok_or_else(|| n.wrong(format!("{name} is missing")))?;
    let counted = usize::try_from(value).ok().filter(|v| *v > 0);
    counted.ok_or_else(|| n.wrong(format!("{name} is {value}")))
}

/// `[batch, sequence, heads·size]` as `[batch, heads, sequence, size]`.
pub(super) fn heads_of(n: &mut NodeContext<'_, '_>, x: ValueId, heads: usize) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let [batch, sequence, hidden] = <[usize; 3]>::try_from(shape.dims())
        .map_err(|_| n.wrong(format!("{shape} should be batch, sequence, heads")))?;
    let size = divided(n, hidden, heads, "heads")?;
    let split = reshaped(n, x, &[batch, sequence, heads, size])?;
    n.build(|g| g.transpose(split, &[0, 2, 1, 3]))
}

/// `[batch, heads, sequence, size]` as `[batch, sequence, heads·size]`.
pub(super) fn joined(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let [batch, heads, sequence, size] = <[usize; 4]>::try_from(shape.dims())
        .map_err(|_| n.wrong(format!("{shape} should be batch, heads, sequence, size")))?;
    let y = n.build(|g| g.transpose(x, &[0, 2, 1, 3]))?;
    reshaped(n, y, &[batch, sequence, heads * size])
}

/// What came before along the sequence, then x.
pub(super) fn appended(n: &mut NodeContext<'_, '_>, past: Option<ValueId>, x: ValueId) -> Answer<ValueId> {
    match past {
        Some(past) => n.build(|g| g.concat(&[past, x], 2)),
        None => Ok(x),
    }
}

/// A window's size: none below 0.
fn window(n: &NodeContext<'_, '_>, name: &str) -> Answer<Option<usize>> {
    match n.int_or(name, -1)? {
        -1 => Ok(None),
        size => usize::try_from(size).map(Some).map_err(|_| n.wrong(format!("{name} is {size}"))),
    }
}

fn attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (element, v_element) = (n.element(0)?, n.element(2)?);
    let (q, k, v) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let flat = n.shape(q)?.rank() == 3;
    let [q, k, v] = if flat {
        let (heads, kv_heads) = (count(n, "q_num_heads")?, count(n, "kv_num_heads")?);
        [heads_of(n, q, heads)?, heads_of(n, k, kv_heads)?, heads_of(n, v, kv_heads)?]
    } else {
        [q, k, v]
    };
    let (past_key, past_value, lengths) = (n.optional(4)?, n.optional(5)?, n.optional(6)?);
    if past_key.is_some() != past_value.is_some() {
        return Err(n.wrong("past_key and past_value are given only together"));
    }
    if past_key.is_some() && lengths.is_some() {
        return Err(n.wrong("nonpad_kv_seqlen and a past are not given together"));
    }
    let before = match past_key {
        Some(past) => n.shape(past)?.get(2).copied().unwrap_or(0),
        None => 0,
    };
    let (k, v) = (appended(n, past_key, k)?, appended(n, past_value, v)?);
    let dtype = n.dtype(q)?;
    let like_q = n.build(|g| g.cast(v, dtype))?;
    let mut heads = Heads::new(q, k, like_q);
    heads.scale = n.float("scale")?.map(f64::from);
    heads.softcap = n.float("softcap")?.map(f64::from).filter(|c| *c > 0.0);
    heads.start = if lengths.is_some() { Start::FromEnd } else { Start::After(before) };
    heads.lengths = lengths;
    heads.left = window(n, "left_window_size")?;
    heads.right = window(n, "right_window_size")?;
    if n.flag("is_causal", false)? {
        heads.right = Some(0);
    }
    if n.has(3) {
        let mask = padded_mask(n, k)?;
        match n.dtype(mask)? {
            DType::Bool => heads.keep = Some(mask),
            _ => heads.bias = Some(n.build(|g| g.cast(mask, dtype))?),
        }
    }
    let (y, qk) = if n.wants(3) {
        let steps = heads.steps(n)?;
        // In the order of the computation, as onnx 1.22 says of opsets 23 and 24; before it, opset 23 had the mask first.
        let qk = match n.int_or("qk_matmul_output_mode", 0)? {
            0 => steps.qk,
            1 => steps.capped,
            2 => steps.masked,
            3 => steps.weights,
            mode => return Err(n.wrong(format!("qk_matmul_output_mode {mode} is unknown"))),
        };
        (steps.result, Some(n.build(|g| g.cast(qk, dtype))?))
    } else {
        (heads.result(n)?, None)
    };
    let y = if flat { joined(n, y)? } else { y };
    let mut results = vec![n.result(y, element), n.result(k, element), n.result(v, v_element)];
    results.extend(qk.map(|id| n.result(id, element)));
    Ok(results)
}

/// The mask, with what it lacks of the last axis masked.
fn padded_mask(n: &mut NodeContext<'_, '_>, k: ValueId) -> Answer<ValueId> {
    let mask = n.tensor(3)?;
    let keys = n.shape(k)?.get(2).copied().unwrap_or(0);
    let ty = n.ty(mask)?;
    let Some(last) = ty.shape.last().copied().filter(|l| *l < keys) else { return Ok(mask) };
    let fill = n.scalar(ty.dtype, if ty.dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY });
    let mut dims = ty.shape.to_vec();
    if let Some(d) = dims.last_mut() {
        *d = keys - last;
    }
    let rest = n.build(|g| g.fill(fill, dims.as_slice()))?;
    n.build(|g| g.concat(&[mask, rest], -1))
}
