//! Embeddings with a norm after them.

use olivine_ir::ValueId;
use olivine_ir::op::ReduceKind;

use super::norm::Norm;
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::reshaped;

/// Whether weights are floats, or integers with a scale and a zero point among the inputs that follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    Floats,
    Integers,
}

impl Weights {
    /// The reals of what was taken of input `i`.
    fn real(self, n: &mut NodeContext<'_, '_>, i: usize, x: ValueId) -> Answer<ValueId> {
        if self == Weights::Floats {
            return Ok(x);
        }
        let (scale, zero) = (n.tensor(i + 6)?, n.tensor(i + 11)?);
        let (scale, zero) = (reshaped(n, scale, &[])?, reshaped(n, zero, &[])?);
        n.build(|g| g.dequantize_linear(x, scale, Some(zero), 0, 0))
    }

    /// The rows of table `i` at some indices.
    fn rows(self, n: &mut NodeContext<'_, '_>, i: usize, indices: ValueId) -> Answer<ValueId> {
        let table = n.tensor(i)?;
        let rows = n.build(|g| g.gather(table, indices, 0))?;
        self.real(n, i, rows)
    }
}

pub(super) fn embed_layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = n.element(2)?;
    let positions = n.optional(8)?;
    embedded(n, Weights::Floats, positions, element)
}

pub(super) fn quantized_embed_layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = n.element(8)?;
    embedded(n, Weights::Integers, None, element)
}

fn embedded(
    n: &mut NodeContext<'_, '_>,
    weights: Weights,
    positions: Option<ValueId>,
    element: ElementType,
) -> Answer<Vec<Value>> {
    let (ids, ids_element) = (n.tensor(0)?, n.element(0)?);
    let shape = n.shape(ids)?;
    let [batch, sequence] = <[usize; 2]>::try_from(shape.dims())
        .map_err(|_| n.wrong(format!("input_ids of {shape} should have rank 2")))?;
    let mut sum = weights.rows(n, 2, ids)?;
    let position = match positions {
        Some(positions) => weights.rows(n, 3, positions)?,
        None => {
            let places = n.tensor(3)?;
            let first = n.build(|g| g.narrow(places, 0, 0, sequence))?;
            weights.real(n, 3, first)?
        }
    };
    sum = n.build(|g| g.add(sum, position))?;
    if n.has(4)
        && let Some(segments) = n.optional(1)?
    {
        let segment = weights.rows(n, 4, segments)?;
        sum = n.build(|g| g.add(sum, segment))?;
    }
    let (gamma, beta) = (n.tensor(5)?, n.tensor(6)?);
    let (gamma, beta) = (weights.real(n, 5, gamma)?, weights.real(n, 6, beta)?);
    let norm = Norm { axis: 2, eps: f64::from(n.float_or("epsilon", 1e-12)?), simplified: false };
    let y = norm.apply(n, sum, gamma, Some(beta))?;
    let dtype = n.dtype(ids)?;
    let zero = n.scalar(dtype, 0.0);
    // How many words the mask lets through, which stand in front.
    let counts = match n.optional(7)? {
        Some(mask) => n.build(|g| {
            let one = g.ne(mask, zero)?;
            let one = g.cast(one, dtype)?;
            g.reduce(ReduceKind::Sum, one, &[1], false)
        })?,
        None => n.build(|g| g.fill(zero, [batch]))?,
    };
    Ok(vec![n.result(y, element), n.result(counts, ids_element), n.result(sum, element)])
}
