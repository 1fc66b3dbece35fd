//! A Llama-style transformer decoder over hidden states, with key-value caches.

use olivine_ir::op::{Attention, Binary, HeadLayout, Rope, RopeScaling, RopeStyle};
use olivine_ir::{DType, Graph, Tensor, ValueId};

use crate::Error;

/// The sizes of a decoder; [`Decoder::llama_8b`] and [`Decoder::small`] are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    /// Number of layers.
    pub layers: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Heads of keys and values; they divide the heads.
    pub kv_heads: usize,
    /// Width between the matmuls of a feed-forward block.
    pub feed_forward: usize,
    /// Batch size.
    pub batch: usize,
    /// Positions of one run: many in a prompt, one when tokens follow each other.
    pub sequence: usize,
    /// Positions that the caches hold.
    pub capacity: usize,
    /// Type of weights, hidden states and caches: f32 or f16.
    pub dtype: DType,
}

/// The layout of heads in hidden states and caches.
const LAYOUT: HeadLayout = HeadLayout::Bshd;

impl Decoder {
    /// The layers of Llama 3 with 8 billion weights.
    pub fn llama_8b(batch: usize, sequence: usize, capacity: usize) -> Self {
        Decoder {
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: 8,
            feed_forward: 14336,
            batch,
            sequence,
            capacity,
            dtype: DType::F16,
        }
    }

    /// Small enough to run anywhere in a moment.
    pub fn small() -> Self {
        Decoder {
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            feed_forward: 160,
            batch: 1,
            sequence: 5,
            capacity: 12,
            dtype: DType::F32,
        }
    }

    /// The graph. Inputs are `x` `[batch, sequence, hidden]`, `position` (an i64: how many positions the caches hold
    /// already) and for every layer `layer<i>.keys` and `layer<i>.values` `[batch, capacity, kv_heads, dim]`; outputs
    /// are `y` of x's shape and the caches with the new rows, by the names of [`Decoder::states`].
    pub fn graph(&self) -> Result<Graph, Error> {
        let mut g = Graph::new("decoder");
        let x = g.input("x", self.dtype, [self.batch, self.sequence, self.hidden])?;
        let position = g.input("position", DType::I64, [])?;
        let steps = Tensor::new([self.sequence], (0..self.sequence as i64).collect())?;
        let steps = g.constant(steps);
        let places = g.add(steps, position)?;
        let length = g.binary_scalar(Binary::Add, position, self.sequence as f64)?;
        let at = Positions { position, places, length };
        let dim = self.hidden / self.heads.max(1);
        let cache = [self.batch, self.capacity, self.kv_heads, dim];
        let mut caches = Vec::with_capacity(2 * self.layers);
        for (input, _) in self.states() {
            caches.push(g.input(&input, self.dtype, cache)?);
        }
        let mut x = x;
        for layer in 0..self.layers {
            let name = format!("layer{layer}");
            let own = &mut caches[2 * layer..2 * layer + 2];
            x = g.scoped(&name, |g| self.layer(g, x, own, &at, &name))?;
        }
        g.output("y", x)?;
        for ((_, output), cache) in self.states().into_iter().zip(caches) {
            g.output(&output, cache)?;
        }
        Ok(g)
    }

    /// The caches: inputs, and the outputs that take their place.
    pub fn states(&self) -> Vec<(String, String)> {
        let of = |layer: usize| {
            ["keys", "values"]
                .map(|what| (format!("layer{layer}.{what}"), format!("layer{layer}.{what}.next")))
        };
        (0..self.layers).flat_map(of).collect()
    }

    fn layer(
        &self,
        g: &mut Graph,
        x: ValueId,
        caches: &mut [ValueId],
        at: &Positions,
        name: &str,
    ) -> Result<ValueId, Error> {
        let h = self.norm(g, x, &format!("{name}.norm1"))?;
        let attended = g.scoped("attention", |g| self.attention(g, h, caches, at, name))?;
        let x = g.add(x, attended)?;
        let h = self.norm(g, x, &format!("{name}.norm2"))?;
        let fed = g.scoped("feed_forward", |g| self.feed_forward(g, h, name))?;
        Ok(g.add(x, fed)?)
    }

    fn attention(
        &self,
        g: &mut Graph,
        x: ValueId,
        caches: &mut [ValueId],
        at: &Positions,
        name: &str,
    ) -> Result<ValueId, Error> {
        let dim = self.hidden / self.heads.max(1);
        let heads = |g: &mut Graph, part: &str, count: usize| -> Result<ValueId, Error> {
            let p = self.linear(g, x, self.hidden, count * dim, &format!("{name}.{part}"))?;
            Ok(g.reshape(p, &[0, 0, count as i64, dim as i64])?)
        };
        let q = heads(g, "query", self.heads)?;
        let (k, v) = (heads(g, "key", self.kv_heads)?, heads(g, "value", self.kv_heads)?);
        let (style, scaling) = (RopeStyle::NeoX, RopeScaling::None);
        let rope = Rope { layout: LAYOUT, style, rotary: dim, base: 500_000.0, scaling, tables: false };
        let q = g.rope(rope.clone(), q, &[at.places])?;
        let k = g.rope(rope, k, &[at.places])?;
        for (cache, rows) in caches.iter_mut().zip([k, v]) {
            *cache = g.kv_append(LAYOUT, *cache, rows, at.position)?;
        }
        let spec = Attention { causal: true, lengths: true, ..Attention::new(LAYOUT) };
        let context = g.attention(spec, q, caches[0], caches[1], &[at.length])?;
        let context = g.reshape(context, &[0, 0, self.hidden as i64])?;
        self.linear(g, context, self.hidden, self.hidden, &format!("{name}.out"))
    }

    fn feed_forward(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let gate = self.linear(g, x, self.hidden, self.feed_forward, &format!("{name}.gate"))?;
        let up = self.linear(g, x, self.hidden, self.feed_forward, &format!("{name}.up"))?;
        let gate = g.silu(gate)?;
        let h = g.mul(gate, up)?;
        self.linear(g, h, self.feed_forward, self.hidden, &format!("{name}.down"))
    }

    fn linear(
        &self,
        g: &mut Graph,
        x: ValueId,
        from: usize,
        to: usize,
        name: &str,
    ) -> Result<ValueId, Error> {
        let weight = g.param(&format!("{name}.weight"), self.dtype, [from, to])?;
        Ok(g.matmul(x, weight)?)
    }

    fn norm(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let gamma = g.param(&format!("{name}.gamma"), self.dtype, [self.hidden])?;
        Ok(g.rms_norm(x, gamma, None, 1e-5)?)
    }
}

/// Where the rows of a run stand in the sequence.
struct Positions {
    /// Of the first.
    position: ValueId,
    /// Of each.
    places: ValueId,
    /// One past the last.
    length: ValueId,
}
