//! The family of gelu, and activations that other operators name.

use olivine_ir::ValueId;
use olivine_ir::op::{Activation, Binary, ScalarOp, Unary};

use crate::import::{Answer, NodeContext, Value};

/// Input 0 plus the bias that input 1 is, if it is given.
fn biased(n: &mut NodeContext<'_, '_>) -> Answer<ValueId> {
    let x = n.tensor(0)?;
    match n.optional(1)? {
        Some(bias) => n.build(|g| g.add(x, bias)),
        None => Ok(x),
    }
}

/// Gelu and BiasGelu.
pub(super) fn gelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = biased(n)?;
    let y = n.build(|g| g.gelu(x))?;
    n.like_first(y)
}

pub(super) fn fast_gelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = biased(n)?;
    let y = n.build(|g| g.gelu_tanh(x))?;
    n.like_first(y)
}

pub(super) fn quick_gelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let alpha = f64::from(n.float_or("alpha", 1.702)?);
    let y = n.build(|g| {
        let gate = g.binary_scalar(Binary::Mul, x, alpha)?;
        let gate = g.sigmoid(gate)?;
        g.mul(x, gate)
    })?;
    n.like_first(y)
}

pub(super) fn bias_split_gelu(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = biased(n)?;
    let last = n.shape(x)?.last().copied().unwrap_or(0);
    if last % 2 != 0 {
        return Err(n.wrong(format!("{last} channels do not split into halves")));
    }
    let half = last / 2;
    let y = n.build(|g| {
        let (left, right) = (g.narrow(x, -1, 0, half)?, g.narrow(x, -1, half, half)?);
        let right = g.gelu(right)?;
        g.mul(left, right)
    })?;
    n.like_first(y)
}

pub(super) fn bias_add(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, skip) = (biased(n)?, n.tensor(2)?);
    let y = n.build(|g| g.add(x, skip))?;
    n.like_first(y)
}

/// The activation that a fused operator names, with its parameters.
pub(super) fn named(
    n: &mut NodeContext<'_, '_>,
    name: &str,
    parameters: &[f32],
    x: ValueId,
) -> Answer<ValueId> {
    let number = |i: usize, default: f64| parameters.get(i).map_or(default, |p| f64::from(*p));
    let op = match name {
        "" => return Ok(x),
        "Relu" => ScalarOp::Unary(Unary::Relu),
        "Tanh" => ScalarOp::Unary(Unary::Tanh),
        "Sigmoid" => ScalarOp::Unary(Unary::Sigmoid),
        "Softplus" => ScalarOp::Unary(Unary::Softplus),
        "Softsign" => ScalarOp::Unary(Unary::Softsign),
        "HardSwish" => ScalarOp::Unary(Unary::HardSwish),
        "LeakyRelu" => ScalarOp::Activation(Activation::LeakyRelu { alpha: number(0, 0.01) }),
        "Elu" => ScalarOp::Activation(Activation::Elu { alpha: number(0, 1.0) }),
        "HardSigmoid" => {
            ScalarOp::Activation(Activation::HardSigmoid { alpha: number(0, 0.2), beta: number(1, 0.5) })
        }
        "Clip" => return n.build(|g| g.clamp(x, number(0, f64::MIN), number(1, f64::MAX))),
        other => return Err(n.wrong(format!("activation `{other}` is unknown"))),
    };
    n.add(op, &[x])
}
