//! A BERT-style transformer encoder over hidden states.

use olivine_ir::op::Binary;
use olivine_ir::{DType, Graph, Shape, ValueId};

use crate::Error;

/// The sizes of an encoder; [`Encoder::bert_base`] and [`Encoder::small`] are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Number of layers.
    pub layers: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Width between the two matmuls of a feed-forward block.
    pub feed_forward: usize,
    /// Batch size.
    pub batch: usize,
    /// Positions.
    pub sequence: usize,
    /// Type of the weights and of everything between them: a float.
    pub dtype: DType,
}

impl Encoder {
    /// BERT-base: 12 layers of width 768.
    pub fn bert_base(batch: usize, sequence: usize) -> Self {
        Encoder { layers: 12, hidden: 768, heads: 12, feed_forward: 3072, batch, sequence, dtype: DType::F32 }
    }

    /// Small enough to run anywhere in a moment.
    pub fn small() -> Self {
        Encoder {
            layers: 4,
            hidden: 256,
            heads: 4,
            feed_forward: 1024,
            batch: 1,
            sequence: 64,
            dtype: DType::F32,
        }
    }

    /// The graph, written out in plain operations as an exporter writes it: attention as two matmuls around a
    /// softmax, gelu by the error function. Input `x` `[batch, sequence, hidden]` (both leading sizes free), output
    /// `y` of the same shape.
    pub fn graph(&self) -> Result<Graph, Error> {
        let mut g = Graph::new("encoder");
        let shape = Shape::new(&[self.batch, self.sequence, self.hidden])?;
        let free = vec![Some("batch".to_string()), Some("sequence".to_string()), None];
        let mut x = g.input_with_dims("x", self.dtype, shape, free)?;
        for layer in 0..self.layers {
            x = g.scoped(&format!("layer{layer}"), |g| self.layer(g, x, &format!("layer{layer}")))?;
        }
        g.output("y", x)?;
        Ok(g)
    }

    /// Floating-point operations of one run: matmuls alone, as is customary.
    pub fn flops(&self) -> f64 {
        let (h, f) = (self.hidden as f64, self.feed_forward as f64);
        let tokens = (self.batch * self.sequence) as f64;
        let products = 2.0 * tokens * (4.0 * h * h + 2.0 * h * f);
        let attention = 4.0 * tokens * self.sequence as f64 * h;
        self.layers as f64 * (products + attention)
    }

    fn layer(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let attended = g.scoped("attention", |g| self.attention(g, x, name))?;
        let h = g.add(attended, x)?;
        let h = self.norm(g, h, &format!("{name}.norm1"))?;
        let f = g.scoped("feed_forward", |g| self.feed_forward(g, h, name))?;
        let y = g.add(f, h)?;
        self.norm(g, y, &format!("{name}.norm2"))
    }

    fn attention(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let dim = self.hidden / self.heads.max(1);
        let head = |g: &mut Graph, part: &str| -> Result<ValueId, Error> {
            let p = self.linear(g, x, self.hidden, self.hidden, &format!("{name}.{part}"))?;
            let split = g.reshape(p, &[0, 0, self.heads as i64, dim as i64])?;
            Ok(g.transpose(split, &[0, 2, 1, 3])?)
        };
        let (q, k, v) = (head(g, "query")?, head(g, "key")?, head(g, "value")?);
        let scores = g.matmul_nt(q, k)?;
        let scores = g.binary_scalar(Binary::Div, scores, (dim as f64).sqrt())?;
        let weights = g.softmax(scores, -1)?;
        let context = g.matmul(weights, v)?;
        let context = g.transpose(context, &[0, 2, 1, 3])?;
        let context = g.reshape(context, &[0, 0, self.hidden as i64])?;
        self.linear(g, context, self.hidden, self.hidden, &format!("{name}.out"))
    }

    fn feed_forward(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let up = self.linear(g, x, self.hidden, self.feed_forward, &format!("{name}.up"))?;
        let scaled = g.binary_scalar(Binary::Div, up, std::f64::consts::SQRT_2)?;
        let erf = g.erf(scaled)?;
        let shifted = g.binary_scalar(Binary::Add, erf, 1.0)?;
        let product = g.mul(up, shifted)?;
        let gelu = g.binary_scalar(Binary::Mul, product, 0.5)?;
        self.linear(g, gelu, self.feed_forward, self.hidden, &format!("{name}.down"))
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
        let bias = g.param(&format!("{name}.bias"), self.dtype, [to])?;
        Ok(g.linear(x, weight, bias)?)
    }

    fn norm(&self, g: &mut Graph, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let gamma = g.param(&format!("{name}.gamma"), self.dtype, [self.hidden])?;
        let beta = g.param(&format!("{name}.beta"), self.dtype, [self.hidden])?;
        Ok(g.layer_norm(x, gamma, Some(beta), 1e-12)?)
    }
}
