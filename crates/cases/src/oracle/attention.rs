//! Attention score by score, and the key-value cache.

use olivine_ir::op::{Attention, HeadLayout, KvAppend, MaskKind};
use olivine_ir::{TensorType, half};

use super::Value;
use super::packed::elements;
use super::value::{broadcast_flat, each, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    Attention => one(attention(op, x, call.ty())),
    KvAppend => one(kv_append(op, x)),
}

/// Position of (batch, head, sequence, element) in a layout.
fn offset(layout: HeadLayout, dims: &[usize], b: usize, h: usize, s: usize, d: usize) -> usize {
    match layout {
        HeadLayout::Bshd => flat(dims, &[b, s, h, d]),
        HeadLayout::Bhsd => flat(dims, &[b, h, s, d]),
    }
}

/// Heads, sequence and element sizes in a layout.
fn sizes(layout: HeadLayout, dims: &[usize]) -> (usize, usize, usize) {
    match layout {
        HeadLayout::Bshd => (dims[2], dims[1], dims[3]),
        HeadLayout::Bhsd => (dims[1], dims[2], dims[3]),
    }
}

pub(super) fn attention(op: &Attention, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (q, k, v) = (x[0].as_floats()?, elements(&x[1])?, elements(&x[2])?);
    let (key_dims, value_dims) = (x[1].ty.elements(), x[2].ty.elements());
    let mut rest = x[3..].iter();
    let mask = if op.mask == MaskKind::None { None } else { rest.next() };
    let sinks = if op.sinks { rest.next().map(Value::as_floats).transpose()? } else { None };
    let lengths = if op.lengths { rest.next().map(Value::as_ints).transpose()? } else { None };
    let pages = if op.pages { rest.next() } else { None };
    let layout = op.layout;
    let (heads, sq, d) = sizes(layout, x[0].shape());
    let (kv_heads, positions, _) = sizes(layout, &key_dims);
    let sk = pages.map_or(positions, |pages| pages.shape()[1] * positions);
    // The place among batches or pages, and among their positions, of a sequence's key.
    let key = |b: usize, j: usize| -> Result<(usize, usize), String> {
        let Some(pages) = pages else { return Ok((b, j)) };
        let page = pages.as_ints()?[b * pages.shape()[1] + j / positions];
        Ok((page.clamp(0, key_dims[0] as i64 - 1) as usize, j % positions))
    };
    let (_, _, dv) = sizes(layout, &value_dims);
    let scale = op.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let mut out = vec![0.0; ty.shape.numel()];
    for b in 0..x[0].shape()[0] {
        let length = match lengths {
            Some([one]) => (*one).clamp(0, sk as i64),
            Some(many) => many[b].clamp(0, sk as i64),
            None => sk as i64,
        };
        for h in 0..heads {
            let kv = h * kv_heads / heads;
            for i in 0..sq {
                let position = length - sq as i64 + i as i64;
                let mut weights: Vec<((usize, usize), f64)> = Vec::new();
                for j in 0..length as usize {
                    let at = j as i64;
                    let hidden = (op.causal && at > position)
                        || op.window.is_some_and(|w| at > position || at <= position - w as i64);
                    if hidden {
                        continue;
                    }
                    let (kb, kj) = key(b, j)?;
                    let dot: f64 = (0..d)
                        .map(|e| {
                            q[offset(layout, x[0].shape(), b, h, i, e)]
                                * k[offset(layout, &key_dims, kb, kv, kj, e)]
                        })
                        .sum();
                    let mut score = dot * scale;
                    if let Some(c) = op.softcap {
                        score = c * (score / c).tanh();
                    }
                    match (op.mask, mask) {
                        (MaskKind::Bias, Some(m)) => {
                            score += m.as_floats()?[broadcast_flat(m.shape(), &[b, h, i, j])];
                        }
                        (MaskKind::Keep, Some(m))
                            if m.as_ints()?[broadcast_flat(m.shape(), &[b, h, i, j])] == 0 =>
                        {
                            continue;
                        }
                        _ => {}
                    }
                    if score != f64::NEG_INFINITY {
                        weights.push(((kb, kj), score));
                    }
                }
                // The sink is one more logit in the denominator.
                let sink = sinks.map(|s| s[h]);
                let top = weights.iter().map(|w| w.1).chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = weights.iter().map(|w| w.1).chain(sink).map(|s| (s - top).exp()).sum();
                for e in 0..dv {
                    let sum: f64 = weights
                        .iter()
                        .map(|((kb, kj), s)| {
                            (s - top).exp() / total * v[offset(layout, &value_dims, *kb, kv, *kj, e)]
                        })
                        .sum();
                    out[offset(layout, &ty.shape, b, h, i, e)] = sum;
                }
            }
        }
    }
    Ok(Value::floats(ty, out))
}

pub(super) fn kv_append(op: &KvAppend, x: &[Value]) -> Result<Value, String> {
    if x[0].ty.packed.is_some() && x[1].ty.packed.is_none() {
        // Blocks move as rows do.
        let blocks = [x[0].clone(), blocks(&x[1])?];
        return kv_append(op, &[&blocks, &x[2..]].concat());
    }
    let positions = x[2].as_ints()?;
    let axis = if op.layout == HeadLayout::Bshd { 1 } else { 2 };
    let rows = x[1].shape();
    // Cache and rows side by side, so that one flat position names an element of either.
    let joined = both(&x[0], &x[1])?;
    let mut from: Vec<usize> = (0..x[0].len()).collect();
    let (pool, capacity) = (x[0].shape()[0] as i64, x[0].shape()[axis]);
    let pages = if op.pages { Some((x[3].as_ints()?, x[3].shape()[1])) } else { None };
    // Where a sequence's position is, if it is anywhere.
    let there = |sequence: usize, position: i128| {
        let position = usize::try_from(position).ok()?;
        let Some((pages, count)) = pages else {
            return (position < capacity).then_some((sequence, position));
        };
        let page = pages[sequence * count..][..count].get(position.checked_div(capacity)?)?;
        (0..pool).contains(page).then_some((*page as usize, position % capacity))
    };
    each(rows, |at| {
        let position = positions[if positions.len() == 1 { 0 } else { at[0] }];
        let to = i128::from(position) + at[axis] as i128;
        if let Some((batch, to)) = there(at[0], to) {
            let mut there = at.to_vec();
            (there[0], there[axis]) = (batch, to);
            from[flat(x[0].shape(), &there)] = x[0].len() + flat(rows, at);
        }
    });
    let mut next = 0;
    Ok(joined.pick(x[0].ty, |_| {
        next += 1;
        Some(from[next - 1])
    }))
}

/// Rows as blocks: those that the encoder refuses have a scale that is no finite number.
fn blocks(rows: &Value) -> Result<Value, String> {
    let say = |e: olivine_ir::Error| e.to_string();
    let format = KvAppend::FORMAT;
    let mut bytes = Vec::new();
    for block in rows.as_floats()?.chunks(format.elements()) {
        let block: Vec<f32> = block.iter().map(|x| *x as f32).collect();
        let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if block.iter().any(|x| !x.is_finite()) {
            bytes.extend([0x00, 0x7e].into_iter().chain([0; 32]));
        } else if largest > 65504.0 {
            // The scale may be infinite.
            let scale = largest / 127.0;
            bytes.extend(half::f16::from_f32(scale).to_le_bytes());
            bytes.extend(block.iter().map(|x| (x * (1.0 / scale)).round() as i8 as u8));
        } else {
            bytes.extend(olivine_quant::encode(format, &block, None).map_err(|e| e.to_string())?);
        }
    }
    let ty = TensorType::packed(format, rows.ty.shape).map_err(say)?;
    Ok(Value::ints(ty, bytes.into_iter().map(i64::from).collect()))
}

/// The elements of two tensors of one dtype in a row.
fn both(a: &Value, b: &Value) -> Result<Value, String> {
    let data = if a.ty.dtype.is_float() {
        super::Numbers::Floats([a.as_floats()?, b.as_floats()?].concat())
    } else {
        super::Numbers::Ints([a.as_ints()?, b.as_ints()?].concat())
    };
    Ok(Value { ty: a.ty, data })
}
