//! Norms, with a residual before them or without.

use olivine_ir::op::{Binary, LayerNorm, ReduceKind, RmsNorm};
use olivine_ir::{DType, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

/// Which norm, over the axes from one on.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) axis: usize,
    pub(super) eps: f64,
    /// Only the mean square counts; nothing is taken off.
    pub(super) simplified: bool,
}

impl Norm {
    pub(super) fn apply(
        self,
        n: &mut NodeContext<'_, '_>,
        x: ValueId,
        gamma: ValueId,
        beta: Option<ValueId>,
    ) -> Answer<ValueId> {
        let Norm { axis, eps, simplified } = self;
        let (bias, prologue, emit_input) = (beta.is_some(), None, false);
        let operands: Vec<ValueId> = [x, gamma].into_iter().chain(beta).collect();
        if simplified {
            n.add(RmsNorm { axis, eps, bias, prologue, emit_input }, &operands)
        } else {
            n.add(LayerNorm { axis, eps, bias, prologue, emit_input }, &operands)
        }
    }

    /// The mean and one over the deviation, as training keeps them: f32, with axes of size 1.
    fn statistics(self, n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<(ValueId, ValueId)> {
        let axes: Vec<isize> = (self.axis..n.shape(x)?.rank()).map(|a| a as isize).collect();
        n.build(|g| {
            let x = g.cast(x, DType::F32)?;
            let mean = g.reduce(ReduceKind::Mean, x, &axes, true)?;
            let centred = if self.simplified { x } else { g.sub(x, mean)? };
            let square = g.square(centred)?;
            let square = g.reduce(ReduceKind::Mean, square, &axes, true)?;
            let square = g.binary_scalar(Binary::Add, square, self.eps)?;
            Ok((mean, g.rsqrt(square)?))
        })
    }
}

pub(super) fn skip_layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (beta, bias) = (n.optional(3)?, n.optional(4)?);
    after_residual(n, beta, bias, false)
}

pub(super) fn skip_simplified_layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let bias = n.optional(3)?;
    after_residual(n, None, bias, true)
}

fn after_residual(
    n: &mut NodeContext<'_, '_>,
    beta: Option<ValueId>,
    bias: Option<ValueId>,
    simplified: bool,
) -> Answer<Vec<Value>> {
    let element = n.element(0)?;
    let (x, skip, gamma) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let shape = n.shape(x)?;
    let mut sum = n.build(|g| g.add(x, skip))?;
    if let Some(bias) = bias {
        sum = n.build(|g| g.add(sum, bias))?;
    }
    if n.shape(sum)? != shape {
        return Err(n.wrong(format!("its skip does not broadcast to {shape}")));
    }
    let axis = shape.rank().checked_sub(1).ok_or_else(|| n.wrong("its input is a scalar"))?;
    let norm = Norm { axis, eps: f64::from(n.float_or("epsilon", 1e-12)?), simplified };
    let y = norm.apply(n, sum, gamma, beta)?;
    let mut results = vec![n.result(y, element)];
    if n.output_count() > 1 {
        let (mean, deviation) = norm.statistics(n, sum)?;
        results.extend([mean, deviation].map(|id| n.result(id, ElementType::F32)));
        results.push(n.result(sum, element));
    }
    Ok(results)
}

pub(super) fn simplified_layer_norm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = n.element(1)?;
    let (x, gamma) = (n.tensor(0)?, n.tensor(1)?);
    let rank = n.shape(x)?.rank();
    let axis = n.axis(n.int_or("axis", -1)?, rank)?;
    let norm = Norm { axis, eps: f64::from(n.float_or("epsilon", 1e-5)?), simplified: true };
    let (from, to) = (n.dtype(x)?, n.dtype(gamma)?);
    // With two types the wider one computes.
    let wide = if from == to { from } else { DType::F32 };
    let (x, gamma) = (n.build(|g| g.cast(x, wide))?, n.build(|g| g.cast(gamma, wide))?);
    let y = norm.apply(n, x, gamma, None)?;
    let y = n.build(|g| g.cast(y, to))?;
    let mut results = vec![n.result(y, element)];
    if n.wants(1) {
        let (_, deviation) = norm.statistics(n, x)?;
        results.push(n.result(deviation, ElementType::F32));
    }
    Ok(results)
}
