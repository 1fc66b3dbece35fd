//! Scaled dot-product attention with every mask that operators have: as one operation where the graph has it, step
//! by step where steps in between are asked for.

use olivine_ir::op::{Attention, Binary, HeadLayout, MaskKind, ReduceKind};
use olivine_ir::{DType, Shape, Tensor, ValueId};

use super::reshaped;
use crate::import::{Answer, NodeContext};

/// Where the first query stands among the keys.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Start {
    /// After so many keys.
    After(usize),
    /// So that the last query stands at the last key that counts.
    FromEnd,
}

/// Attention of heads `[batch, heads, sequence, size]`; key heads divide the query's heads.
pub(in crate::ops) struct Heads {
    pub(in crate::ops) q: ValueId,
    pub(in crate::ops) k: ValueId,
    pub(in crate::ops) v: ValueId,
    /// Scale of q·k; size^-1/2 if not given.
    pub(in crate::ops) scale: Option<f64>,
    /// Scores become c·tanh(s/c).
    pub(in crate::ops) softcap: Option<f64>,
    /// Added to scores; broadcast to `[batch, heads, queries, keys]`.
    pub(in crate::ops) bias: Option<ValueId>,
    /// bool: where false a key does not count; broadcast like the bias.
    pub(in crate::ops) keep: Option<ValueId>,
    pub(in crate::ops) start: Start,
    /// How far before a query's own position keys count.
    pub(in crate::ops) left: Option<usize>,
    /// How far after a query's own position keys count; 0 is causal.
    pub(in crate::ops) right: Option<usize>,
    /// Leading keys that count, of each element of the batch.
    pub(in crate::ops) lengths: Option<ValueId>,
    /// A logit per head that takes weight and adds nothing.
    pub(in crate::ops) sinks: Option<ValueId>,
}

/// The steps of attention.
pub(in crate::ops) struct Steps {
    /// q·k, scaled.
    pub(in crate::ops) qk: ValueId,
    /// After the softcap, before bias and masks.
    pub(in crate::ops) capped: ValueId,
    /// After softcap, bias and masks.
    pub(in crate::ops) masked: ValueId,
    /// After softmax, zeros where nothing counts.
    pub(in crate::ops) weights: ValueId,
    /// The weights' sum of v.
    pub(in crate::ops) result: ValueId,
}

/// The largest head for which every device has attention as one operation.
const LARGEST_HEAD: usize = 512;

impl Heads {
    pub(in crate::ops) fn new(q: ValueId, k: ValueId, v: ValueId) -> Self {
        Heads {
            q,
            k,
            v,
            scale: None,
            softcap: None,
            bias: None,
            keep: None,
            start: Start::After(0),
            left: None,
            right: None,
            lengths: None,
            sinks: None,
        }
    }

    /// Sizes of q and k, checked against each other: batch, heads, queries, keys, size.
    fn sizes(&self, n: &mut NodeContext<'_, '_>) -> Answer<[usize; 5]> {
        let (q, k, v) = (n.shape(self.q)?, n.shape(self.k)?, n.shape(self.v)?);
        let ([b, h, sq, d], [bk, hk, sk, dk], [bv, hv, sv, _]) = (q.dims(), k.dims(), v.dims()) else {
            return Err(n.wrong(format!("q {q}, k {k} and v {v} should have rank 4")));
        };
        if b != bk || b != bv || d != dk || hk != hv || sk != sv {
            return Err(n.wrong(format!("q {q}, k {k} and v {v} do not fit")));
        }
        if *hk == 0 || *h == 0 || h % hk != 0 || *d == 0 {
            return Err(n.wrong(format!("{hk} heads of keys of size {d} for {h} heads")));
        }
        Ok([*b, *h, *sq, *sk, *d])
    }

    /// The weighted sums of v, `[batch, heads, queries, size]`.
    pub(in crate::ops) fn result(mut self, n: &mut NodeContext<'_, '_>) -> Answer<ValueId> {
        let [_, _, queries, keys, size] = self.sizes(n)?;
        let value_size = n.shape(self.v)?[3];
        if size > LARGEST_HEAD || !(1..=LARGEST_HEAD).contains(&value_size) || keys == 0 {
            return Ok(self.steps(n)?.result);
        }
        let aligned = match self.start {
            Start::After(before) => self.lengths.is_none() && before.checked_add(queries) == Some(keys),
            Start::FromEnd => true,
        };
        let causal = self.right == Some(0) && aligned;
        if !causal && let Some(near) = self.near(n)? {
            self.also_keep(n, near)?;
        }
        let mut extra = Vec::new();
        let mask = match (self.bias, self.keep) {
            (None, None) => MaskKind::None,
            (None, Some(keep)) => {
                extra.push(keep);
                MaskKind::Keep
            }
            (Some(bias), None) => {
                extra.push(bias);
                MaskKind::Bias
            }
            (Some(bias), Some(keep)) => {
                extra.push(unless(n, keep, bias)?);
                MaskKind::Bias
            }
        };
        extra.extend(self.sinks);
        extra.extend(self.lengths);
        let op = Attention {
            layout: HeadLayout::Bhsd,
            scale: self.scale,
            causal,
            window: self.left.filter(|_| causal).and_then(|l| l.checked_add(1)),
            softcap: self.softcap,
            mask,
            sinks: self.sinks.is_some(),
            lengths: self.lengths.is_some(),
            pages: false,
        };
        n.build(|g| g.attention(op, self.q, self.k, self.v, &extra))
    }

    /// q·k, scaled, in f32 at least: `[batch, heads, queries, keys]`.
    pub(super) fn qk(&self, n: &mut NodeContext<'_, '_>) -> Answer<ValueId> {
        let [_, heads, _, _, size] = self.sizes(n)?;
        let wide = if n.dtype(self.q)? == DType::F64 { DType::F64 } else { DType::F32 };
        let key_heads = n.shape(self.k)?[1];
        let scale = self.scale.unwrap_or(1.0 / (size as f64).sqrt());
        let (q, k) = (self.q, self.k);
        n.build(|g| {
            let q = g.cast(q, wide)?;
            let q = g.binary_scalar(Binary::Mul, q, scale)?;
            let k = g.cast(k, wide)?;
            let k = if key_heads == heads { k } else { g.repeat(k, 1, heads / key_heads)? };
            g.matmul_nt(q, k)
        })
    }

    /// The same in steps; those before the result are in f32 at least.
    pub(in crate::ops) fn steps(mut self, n: &mut NodeContext<'_, '_>) -> Answer<Steps> {
        let [batch, heads, queries, keys, _] = self.sizes(n)?;
        let dtype = n.dtype(self.q)?;
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        if let Some(near) = self.near(n)? {
            self.also_keep(n, near)?;
        }
        if let Some(lengths) = self.lengths {
            let column = reshaped_lengths(n, lengths, batch)?;
            let dtype = n.dtype(lengths)?;
            let counts = n.build(|g| {
                let key = g.range(dtype, 0.0, 1.0, keys)?;
                g.lt(key, column)
            })?;
            self.also_keep(n, counts)?;
        }
        let (key_heads, v) = (n.shape(self.k)?[1], self.v);
        let qk = self.qk(n)?;
        let bias = match self.bias {
            Some(bias) => Some(n.build(|g| g.cast(bias, wide))?),
            None => None,
        };
        let full = n.built(Shape::new(&[batch, heads, queries, keys]))?;
        let capped = match self.softcap {
            Some(cap) => self.capped(n, qk, cap)?,
            None => qk,
        };
        let masked = self.masked(n, capped, bias, full)?;
        let weights = self.weights(n, masked)?;
        let result = n.build(|g| {
            let v = if key_heads == heads { v } else { g.repeat(v, 1, heads / key_heads)? };
            let narrow = g.cast(weights, dtype)?;
            g.matmul(narrow, v)
        })?;
        Ok(Steps { qk, capped, masked, weights, result })
    }

    /// Scores with the bias added and −∞ where keys do not count.
    fn masked(
        &self,
        n: &mut NodeContext<'_, '_>,
        scores: ValueId,
        bias: Option<ValueId>,
        full: Shape,
    ) -> Answer<ValueId> {
        let mut masked = scores;
        if let Some(bias) = bias {
            masked = n.build(|g| g.add(masked, bias))?;
        }
        if let Some(keep) = self.keep {
            masked = unless(n, keep, masked)?;
        }
        if n.shape(masked)? != full {
            return Err(n.wrong(format!("its mask does not broadcast to {full}")));
        }
        Ok(masked)
    }

    fn capped(&self, n: &mut NodeContext<'_, '_>, x: ValueId, cap: f64) -> Answer<ValueId> {
        n.build(|g| {
            let x = g.binary_scalar(Binary::Div, x, cap)?;
            let x = g.tanh(x)?;
            g.binary_scalar(Binary::Mul, x, cap)
        })
    }

    fn weights(&self, n: &mut NodeContext<'_, '_>, masked: ValueId) -> Answer<ValueId> {
        let ty = n.ty(masked)?;
        let [batch, heads, queries, keys] = <[usize; 4]>::try_from(ty.shape.dims())
            .map_err(|_| n.wrong(format!("scores of {}", ty.shape)))?;
        if keys == 0 {
            return Ok(masked);
        }
        if let Some(sinks) = self.sinks {
            let sinks = reshaped(n, sinks, &[1, heads, 1, 1])?;
            return n.build(|g| {
                let sinks = g.cast(sinks, ty.dtype)?;
                let sinks = g.expand(sinks, [batch, heads, queries, 1])?;
                let all = g.concat(&[masked, sinks], -1)?;
                let all = g.softmax(all, -1)?;
                g.narrow(all, -1, 0, keys)
            });
        }
        let weights = n.build(|g| g.softmax(masked, -1))?;
        if self.keep.is_none() && self.bias.is_none() {
            return Ok(weights);
        }
        let (lowest, zero) = (n.scalar(ty.dtype, f64::NEG_INFINITY), n.scalar(ty.dtype, 0.0));
        n.build(|g| {
            let top = g.reduce(ReduceKind::Max, masked, &[-1], true)?;
            let nothing = g.eq(top, lowest)?;
            g.select(nothing, zero, weights)
        })
    }

    /// True for keys near enough to a query, if that matters: `[queries, keys]` or `[batch, 1, queries, keys]`.
    fn near(&self, n: &mut NodeContext<'_, '_>) -> Answer<Option<ValueId>> {
        if self.left.is_none() && self.right.is_none() {
            return Ok(None);
        }
        let [batch, _, queries, keys, _] = self.sizes(n)?;
        let first = match (self.start, self.lengths) {
            (Start::After(before), _) => n.scalar(DType::I64, before as f64),
            (Start::FromEnd, None) => n.scalar(DType::I64, keys as f64 - queries as f64),
            (Start::FromEnd, Some(lengths)) => {
                let column = reshaped_lengths(n, lengths, batch)?;
                n.build(|g| {
                    let column = g.cast(column, DType::I64)?;
                    g.binary_scalar(Binary::Sub, column, queries as f64)
                })?
            }
        };
        let (left, right) = (self.left, self.right);
        n.build(|g| {
            let query = g.range(DType::I64, 0.0, 1.0, queries)?;
            let query = g.reshape(query, &[-1, 1])?;
            let query = g.add(query, first)?;
            let key = g.range(DType::I64, 0.0, 1.0, keys)?;
            let ahead = g.sub(key, query)?;
            let mut near = None;
            if let Some(right) = right {
                let most = g.constant(Tensor::scalar(i64::try_from(right).unwrap_or(i64::MAX)));
                near = Some(g.le(ahead, most)?);
            }
            if let Some(left) = left {
                let least = g.constant(Tensor::scalar(-i64::try_from(left).unwrap_or(i64::MAX)));
                let not_before = g.ge(ahead, least)?;
                near = Some(match near {
                    Some(near) => g.and(near, not_before)?,
                    None => not_before,
                });
            }
            Ok(near)
        })
    }

    fn also_keep(&mut self, n: &mut NodeContext<'_, '_>, more: ValueId) -> Answer<()> {
        self.keep = Some(match self.keep {
            Some(keep) => n.build(|g| g.and(keep, more))?,
            None => more,
        });
        Ok(())
    }
}

/// x where a bool is true, −∞ elsewhere.
fn unless(n: &mut NodeContext<'_, '_>, keep: ValueId, x: ValueId) -> Answer<ValueId> {
    let dtype = n.dtype(x)?;
    let lowest = n.scalar(dtype, f64::NEG_INFINITY);
    n.build(|g| g.select(keep, x, lowest))
}

fn reshaped_lengths(n: &mut NodeContext<'_, '_>, lengths: ValueId, batch: usize) -> Answer<ValueId> {
    let shape = n.shape(lengths)?;
    if shape.numel() != batch {
        return Err(n.wrong(format!("lengths of {shape} for a batch of {batch}")));
    }
    reshaped(n, lengths, &[batch, 1, 1, 1])
}
