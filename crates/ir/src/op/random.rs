//! Random numbers: Philox4x32-10, a function of a seed, a stream and a run counter and of nothing else.
//!
//! Block b of a node is Philox of the counter `(b, stream, run)`, whose words are b, the stream, and the low and high
//! word of the run counter; the key is the seed. It gives the four elements from 4·b on. Every backend gives the same bits.

use crate::graph::{Graph, ValueId};
use crate::op::{Op, Rule, arity, op};
use crate::{DType, Error, IntoShape, Shape, TensorType};

/// The name of the input that an executable fills by itself: how many runs came before, as u32 `[2]`, low word first.
pub const RUN_COUNTER: &str = "run_counter";

/// The type of [`RUN_COUNTER`].
pub fn run_counter_type() -> Result<TensorType, Error> {
    Ok(TensorType::new(DType::U32, Shape::new(&[2])?))
}

/// A run counter operand, and a stream that fits its word.
pub(crate) fn drawn(counter: &TensorType, stream: usize) -> Result<(), String> {
    if counter.dtype != DType::U32 || counter.shape.dims() != [2] {
        return Err(format!("the run counter must be u32[2], got {counter}"));
    }
    u32::try_from(stream).map(drop).map_err(|_| format!("stream {stream} does not fit 32 bits"))
}

fn check(
    dtype: DType,
    shape: &Shape,
    stream: usize,
    numbers: [(&str, f64); 2],
    operands: &[TensorType],
) -> Result<Vec<TensorType>, String> {
    arity(operands, 1..=1)?;
    drawn(&operands[0], stream)?;
    if !dtype.is_float() {
        return Err(format!("needs a float dtype, got {dtype}"));
    }
    let count = shape.sizes().numel();
    if count > 1i64 << 34 {
        return Err(format!("{count} elements are more than the 2^34 of a stream"));
    }
    match numbers.iter().find(|(_, x)| !(*x as f32).is_finite()) {
        Some((what, x)) => Err(format!("{what} must be a finite f32, got {x}")),
        None => Ok(vec![TensorType::new(dtype, *shape)]),
    }
}

op! {
    /// Numbers from `low` to `high`, equally distributed; the operand is the run counter.
    ///
    /// u, the top 24 bits of a word / 2²⁴, gives `low + u·(high − low)`, computed in f32 and then converted. Rounding
    /// may reach `high` itself.
    pub struct RngUniform = "rng_uniform" {
        /// Element type.
        pub dtype: DType,
        /// The shape.
        pub shape: Shape,
        /// The least.
        pub low: f64,
        /// The bound.
        pub high: f64,
        /// The key.
        pub seed: u64,
        /// Nodes with one seed and different streams give independent numbers.
        pub stream: usize,
    }
}

impl Rule for RngUniform {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.high < self.low {
            return Err(format!("high {} is below low {}", self.high, self.low));
        }
        let numbers = [("low", self.low), ("high", self.high)];
        let results = check(self.dtype, &self.shape, self.stream, numbers, operands)?;
        if !(self.high as f32 - self.low as f32).is_finite() {
            return Err(format!("high {} − low {} overflows", self.high, self.low));
        }
        Ok(results)
    }
}

op! {
    /// Normally distributed numbers by Box and Muller's method; the operand is the run counter.
    ///
    /// Words (a, b) of a block give `r·cos 2πv` and `r·sin 2πv` with `r = √(−2 ln u)`, u = (a's top 24 bits + 1) / 2²⁴ and
    /// v = b's top 24 bits / 2²⁴. `mean + scale·z` is computed in f32 and then converted.
    pub struct RngNormal = "rng_normal" {
        /// Element type.
        pub dtype: DType,
        /// The shape.
        pub shape: Shape,
        /// The mean.
        pub mean: f64,
        /// The standard deviation.
        pub scale: f64,
        /// The key.
        pub seed: u64,
        /// Nodes with one seed and different streams give independent numbers.
        pub stream: usize,
    }
}

impl Rule for RngNormal {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let numbers = [("mean", self.mean), ("scale", self.scale)];
        check(self.dtype, &self.shape, self.stream, numbers, operands)
    }
}

impl Graph {
    /// The input that counts runs, declared when it is first asked for; executables fill it by themselves. See
    /// [`RUN_COUNTER`].
    pub fn run_counter(&mut self) -> Result<ValueId, Error> {
        let expected = run_counter_type()?;
        let declared = self.inputs().find(|(name, _)| *name == RUN_COUNTER).map(|(_, id)| id);
        let Some(id) = declared else { return self.input(RUN_COUNTER, expected.dtype, expected.shape) };
        let ty = self.ty(id)?;
        if ty == expected {
            return Ok(id);
        }
        let problem = format!("random numbers need it as {expected}, it is {ty}");
        Err(Error::Invalid { location: format!("input `{RUN_COUNTER}`"), problem })
    }

    /// A stream that no random node of this graph has yet.
    pub fn next_stream(&self) -> usize {
        let stream = |op: &Op| match op {
            Op::RngUniform(op) => Some(op.stream),
            Op::RngNormal(op) => Some(op.stream),
            Op::Sample(op) => Some(op.stream),
            _ => None,
        };
        self.nodes().iter().filter_map(|node| stream(&node.op)).max().map_or(0, |last| last.saturating_add(1))
    }

    /// Equally distributed numbers in a stream of their own; see [`RngUniform`].
    pub fn rng_uniform(
        &mut self,
        dtype: DType,
        shape: impl IntoShape,
        (low, high): (f64, f64),
        seed: u64,
    ) -> Result<ValueId, Error> {
        let (counter, stream) = (self.run_counter()?, self.next_stream());
        self.add1(RngUniform { dtype, shape: shape.into_shape()?, low, high, seed, stream }, &[counter])
    }

    /// Normally distributed numbers in a stream of their own; see [`RngNormal`].
    pub fn rng_normal(
        &mut self,
        dtype: DType,
        shape: impl IntoShape,
        (mean, scale): (f64, f64),
        seed: u64,
    ) -> Result<ValueId, Error> {
        let (counter, stream) = (self.run_counter()?, self.next_stream());
        self.add1(RngNormal { dtype, shape: shape.into_shape()?, mean, scale, seed, stream }, &[counter])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_nodes_share_the_counter_and_have_streams_of_their_own() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let a = g.rng_uniform(DType::F32, [3], (0.0, 1.0), 7)?;
        let b = g.rng_normal(DType::F16, [2, 2], (0.0, 1.0), 7)?;
        assert_eq!(g.inputs().map(|(name, _)| name).collect::<Vec<_>>(), [RUN_COUNTER]);
        let streams: Vec<usize> = [a, b]
            .iter()
            .filter_map(|id| match &g.producer(*id)?.op {
                Op::RngUniform(op) => Some(op.stream),
                Op::RngNormal(op) => Some(op.stream),
                _ => None,
            })
            .collect();
        assert_eq!(streams, [0, 1]);
        assert!(g.rng_uniform(DType::F32, [3], (1.0, 0.0), 7).is_err());
        assert!(g.rng_uniform(DType::I32, [3], (0.0, 1.0), 7).is_err());
        assert!(g.rng_normal(DType::F32, [3], (f64::NAN, 1.0), 7).is_err());
        Ok(())
    }

    #[test]
    fn an_input_of_the_counters_name_and_another_type_is_refused() -> Result<(), Error> {
        let mut g = Graph::new("g");
        g.input(RUN_COUNTER, DType::I64, [1])?;
        assert!(g.rng_uniform(DType::F32, [3], (0.0, 1.0), 7).is_err());
        Ok(())
    }
}
