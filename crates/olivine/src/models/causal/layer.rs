//! One layer: attention, and a feed-forward block or experts.

use olivine_ir::op::{Attention, Binary, ReduceKind};
use olivine_ir::{DType, ValueId};

use super::architecture::{Activation, Recurrence};
use super::build::{Build, CacheInputs, Positions};
use super::config::{Experts, LAYOUT, Mixer};
use crate::Error;

impl Build<'_> {
    pub(super) fn layer(&mut self, x: ValueId, at: &Positions, layer: usize) -> Result<ValueId, Error> {
        let hidden = self.config.hidden;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let h = self.norm(x, &name("attn_norm"), hidden)?;
        let attended = match self.config.mixers[layer] {
            Mixer::Attention { window } => self.attention(h, at, layer, window)?,
            Mixer::Recurrent(Recurrence::GatedDelta) => self.gated_delta(h, at, layer)?,
            Mixer::Recurrent(Recurrence::Mamba2) => {
                let mixed = self.mamba2(h, at, layer)?;
                return Ok(self.graph.add(mixed, x)?);
            }
        };
        let attended = self.norm_after(attended, &name("post_attention_norm"))?;
        let x = self.graph.add(attended, x)?;
        let h = self.norm(x, &name(self.config.ffn_norm), hidden)?;
        // Some layers of a model with experts may have none.
        let dense = !self.has(&name("ffn_gate_inp.weight")) && self.has(&name("ffn_up.weight"));
        let fed = match self.config.experts.filter(|_| !dense) {
            Some(experts) => self.experts(h, experts, at, layer)?,
            None => self.feed_forward(h, layer, "")?,
        };
        let fed = self.norm_after(fed, &name("post_ffw_norm"))?;
        Ok(self.graph.add(fed, x)?)
    }

    /// The norm of a block's result, if the model has one there and not before the next block.
    fn norm_after(&mut self, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let is_next = name.ends_with(self.config.ffn_norm);
        if is_next || !self.has(&format!("{name}.weight")) {
            Ok(x)
        } else {
            self.norm(x, name, self.config.hidden)
        }
    }

    fn attention(
        &mut self,
        x: ValueId,
        at: &Positions,
        layer: usize,
        window: Option<usize>,
    ) -> Result<ValueId, Error> {
        let config = self.config;
        let (heads, kv_heads, key_dim, value_dim) =
            (config.heads, config.kv_heads, config.key_dim, config.value_dim);
        let name = |part: &str| format!("blk.{layer}.attn_{part}");
        let q_size = heads * key_dim * if config.gated_attention { 2 } else { 1 };
        let sizes = [q_size, kv_heads * key_dim, kv_heads * value_dim];
        let whole = format!("{}.weight", name("qkv"));
        let first = format!("{}.weight", name("q"));
        if !self.has(&whole) && !self.has(&first) {
            return Err(self.source.bad(&first, format!("it is missing, and so is `{whole}`")));
        }
        let mut parts = if self.has(&whole) {
            let all = self.linear(x, &name("qkv"), Some(config.hidden), Some(sizes.iter().sum()))?;
            self.graph.split(all, -1, &sizes)?
        } else {
            let each = ["q", "k", "v"].into_iter().zip(sizes);
            each.map(|(part, size)| self.linear(x, &name(part), Some(config.hidden), Some(size)))
                .collect::<Result<_, _>>()?
        };
        // A head's query, then its gate.
        let gate = match config.gated_attention {
            true => {
                let pairs = self.graph.reshape(parts[0], &[0, 0, heads as i64, 2 * key_dim as i64])?;
                let pairs = self.graph.split(pairs, -1, &[key_dim, key_dim])?;
                parts[0] = pairs[0];
                Some(pairs[1])
            }
            false => None,
        };
        let mut split = |x: ValueId, part: &str, heads: usize, dim: usize| -> Result<ValueId, Error> {
            let norm = name(&format!("{part}_norm"));
            let normed = self.has(&format!("{norm}.weight"));
            // Cast before the rotation: the matmul's epilogue does it, and rotation and append are one pass.
            let x = if normed { x } else { self.as_cached(x)? };
            let y = self.graph.reshape(x, &[0, 0, heads as i64, dim as i64])?;
            if !normed {
                return Ok(y);
            }
            let y = self.norm(y, &norm, dim)?;
            self.as_cached(y)
        };
        let (q, k) = (split(parts[0], "q", heads, key_dim)?, split(parts[1], "k", kv_heads, key_dim)?);
        let v = split(parts[2], "v", kv_heads, value_dim)?;
        let turn = if window.is_some() { &at.local } else { &at.global };
        let q = self.graph.rope(turn.rope.clone(), q, &turn.operands)?;
        let k = self.graph.rope(turn.rope.clone(), k, &turn.operands)?;
        let sinks = match self.has(&format!("{}.weight", name("sinks"))) {
            true => Some(self.vector(&format!("{}.weight", name("sinks")), heads)?),
            false => None,
        };
        let spec = Attention {
            causal: true,
            window,
            scale: config.scale,
            softcap: config.softcap,
            sinks: sinks.is_some(),
            lengths: at.cache.is_some(),
            pages: at.cache.is_some(),
            ..Attention::new(LAYOUT)
        };
        let context = match at.cache {
            Some(cache) => self.cached(spec, [q, k, v], sinks, cache, layer)?,
            None => self.graph.attention(spec, q, k, v, sinks.as_slice())?,
        };
        let context = match gate {
            Some(gate) => {
                let context = self.cast(context, DType::F32)?;
                let open = self.graph.sigmoid(gate)?;
                self.graph.mul(context, open)?
            }
            None => context,
        };
        let context = self.graph.reshape(context, &[0, 0, (heads * value_dim) as i64])?;
        self.linear(context, &name("output"), Some(heads * value_dim), Some(config.hidden))
    }

    /// A value in the dtype of the caches, if there are any.
    fn as_cached(&mut self, x: ValueId) -> Result<ValueId, Error> {
        self.cast(x, self.options.cache.unwrap_or_default().rows())
    }

    /// Attention to the caches, after this run's rows went there.
    fn cached(
        &mut self,
        spec: Attention,
        [q, k, v]: [ValueId; 3],
        sinks: Option<ValueId>,
        at: CacheInputs,
        layer: usize,
    ) -> Result<ValueId, Error> {
        let elements = self.options.cache.unwrap_or_default();
        let mut caches = [q; 2];
        for (cache, (what, rows)) in caches.iter_mut().zip([("keys", k), ("values", v)]) {
            let shape = self.graph.ty(rows)?.shape;
            let (input, output) = (format!("{what}.{layer}"), format!("{what}.{layer}.next"));
            let dims = vec![Some("pool".into()), None, None, None];
            let pool = elements.pool(4, [shape[2], shape[3]])?;
            let before = self.graph.input_of(&input, pool, dims)?;
            *cache = self.graph.kv_append_pages(LAYOUT, before, rows, at.starts, at.pages)?;
            self.graph.output(&output, *cache)?;
            self.states.push((input, output));
        }
        let sinks = sinks.map(|sinks| self.as_cached(sinks)).transpose()?;
        let extra: Vec<ValueId> = sinks.into_iter().chain([at.lengths, at.pages]).collect();
        Ok(self.graph.attention(spec, q, caches[0], caches[1], &extra)?)
    }

    /// A feed-forward block, whose tensors' names end so.
    fn feed_forward(&mut self, x: ValueId, layer: usize, end: &str) -> Result<ValueId, Error> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{end}");
        let hidden = Some(self.config.hidden);
        let (gate, up) = if self.has(&format!("{}.weight", name("gate"))) {
            let gate = self.linear(x, &name("gate"), hidden, None)?;
            let width = self.graph.ty(gate)?.shape[2];
            (gate, self.linear(x, &name("up"), hidden, Some(width))?)
        } else {
            let both = self.linear(x, &name("up"), hidden, None)?;
            let shape = self.graph.ty(both)?.shape;
            let half = shape[2] / 2;
            if shape[2] != 2 * half {
                return Err(self
                    .source
                    .bad(&format!("{}.weight", name("up")), "its rows are not a gate and an up projection"));
            }
            let parts = self.graph.split(both, -1, &[half, half])?;
            (parts[0], parts[1])
        };
        let h = self.gated(gate, up)?;
        let width = self.graph.ty(h)?.shape[2];
        self.linear(h, &name("down"), Some(width), hidden)
    }

    /// The activation of the gate, times the up projection.
    fn gated(&mut self, gate: ValueId, up: ValueId) -> Result<ValueId, Error> {
        let g = &mut self.graph;
        let (gate, up) = match self.config.activation {
            Activation::Silu => (g.silu(gate)?, up),
            Activation::GeluTanh => (g.gelu_tanh(gate)?, up),
            Activation::ClampedSilu => {
                let gate = g.binary_scalar(Binary::Min, gate, 7.0)?;
                let slope = g.binary_scalar(Binary::Mul, gate, 1.702)?;
                let open = g.sigmoid(slope)?;
                let up = g.clamp(up, -7.0, 7.0)?;
                (g.mul(gate, open)?, g.binary_scalar(Binary::Add, up, 1.0)?)
            }
        };
        Ok(g.mul(gate, up)?)
    }

    /// The experts that a router chooses for each token, weighted by its scores.
    fn experts(
        &mut self,
        x: ValueId,
        experts: Experts,
        at: &Positions,
        layer: usize,
    ) -> Result<ValueId, Error> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        let (hidden, used) = (self.config.hidden, experts.used);
        let rows = self.graph.reshape(x, &[-1, hidden as i64])?;
        let scores = self.linear(rows, &name("gate_inp"), Some(hidden), Some(experts.count))?;
        let (weights, chosen) = match experts.renormalise {
            // The softmax of the best, which is that of all divided by their sum.
            true => {
                let (best, chosen) = self.graph.top_k(scores, used, -1, true)?;
                (self.graph.softmax(best, -1)?, chosen)
            }
            false => {
                let all = self.graph.softmax(scores, -1)?;
                self.graph.top_k(all, used, -1, true)?
            }
        };
        let chosen = self.graph.reshape(chosen, &[-1])?;
        let repeated = self.graph.repeat(rows, 0, used)?;
        let gate = self.expert(repeated, chosen, &name("gate_exps"), experts.count, [None, Some(hidden)])?;
        let width = Some(self.graph.ty(gate)?.shape[1]);
        let up = self.expert(repeated, chosen, &name("up_exps"), experts.count, [width, Some(hidden)])?;
        let h = self.gated(gate, up)?;
        let width = self.graph.ty(h)?.shape[1];
        let down = [Some(hidden), Some(width)];
        let out = self.expert(h, chosen, &name("down_exps"), experts.count, down)?;
        let g = &mut self.graph;
        let out = g.reshape(out, &[-1, used as i64, hidden as i64])?;
        let weights = g.reshape(weights, &[-1, used as i64, 1])?;
        let out = g.mul(out, weights)?;
        let out = g.reduce(ReduceKind::Sum, out, &[1], false)?;
        // Rows are cut into sequences again by their numbers: a reshape cannot name two open sizes.
        let out = g.gather(out, at.row_numbers, 0)?;
        self.with_shared_expert(out, x, layer)
    }

    /// Adds the expert that every token uses, if there is one, times its gate.
    fn with_shared_expert(&mut self, out: ValueId, x: ValueId, layer: usize) -> Result<ValueId, Error> {
        let name = format!("blk.{layer}.ffn_gate_inp_shexp.weight");
        if !self.has(&name) {
            return Ok(out);
        }
        let shared = self.feed_forward(x, layer, "_shexp")?;
        let gate = self.vector(&name, self.config.hidden)?;
        let g = &mut self.graph;
        let gate = g.reshape(gate, &[1, -1])?;
        let scores = g.matmul_nt(x, gate)?;
        let open = g.sigmoid(scores)?;
        let shared = g.mul(shared, open)?;
        Ok(g.add(out, shared)?)
    }

    /// Every row times the matrix of its expert, and the expert's bias if there is one.
    fn expert(
        &mut self,
        x: ValueId,
        chosen: ValueId,
        name: &str,
        count: usize,
        [to, from]: [Option<usize>; 2],
    ) -> Result<ValueId, Error> {
        let weight = self.stored(&format!("{name}.weight"), &[Some(count), to, from], count)?;
        let y = self.graph.dequant_grouped_matmul(x, weight, chosen)?;
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let size = self.graph.ty(weight)?.elements()[1];
        let bias = self.floats(&bias, &[count, size])?;
        let bias = self.graph.gather(bias, chosen, 0)?;
        Ok(self.graph.add(y, bias)?)
    }
}
