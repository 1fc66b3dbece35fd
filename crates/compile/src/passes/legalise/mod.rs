//! Legalise: composite operations become operations that have kernels.
//!
//! Needs: nothing. Gives: a graph of kernel operations and of layout operations (reshape, transpose, slice, expand,
//! split, reverse, unfold, view), which the views pass turns into strides.

mod contraction;
mod einsum;
mod generate;
mod movement;
mod norm;
mod pool;
#[cfg(test)]
mod products;
mod quantize;
mod recurrent;
mod signal;
mod state_space;
#[cfg(test)]
mod tests;

use olivine_ir::op::View;
use olivine_ir::{DType, Error, Graph, Op, Shape, ValueId};

use crate::{Options, Pass, rewrite};

/// See the module.
pub(crate) struct Legalise;

impl Pass for Legalise {
    fn name(&self) -> &'static str {
        "legalise"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let mut any = false;
        for node in graph.nodes() {
            any |= matches!(node.op, Op::GatedDeltaNet(_) | Op::Recurrent(_))
                || is_composite(graph, &node.op, &node.inputs)?;
        }
        if !any {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            if let Op::GatedDeltaNet(op) = &node.op
                && let Some(eps) = op.normalise
            {
                return state_space::normalise(out, node, op, eps).map(|()| true);
            }
            if let Op::Recurrent(op) = &node.op {
                let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
                let results = out.new.scoped(&node.name, |g| recurrent::layer(g, op, &inputs))?;
                node.outputs.iter().zip(results).for_each(|(old, new)| out.bind(*old, new));
                return Ok(true);
            }
            if !is_composite(graph, &node.op, &node.inputs)? {
                return Ok(false);
            }
            let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            let Some(&result) = node.outputs.first() else { return Ok(false) };
            let ty = graph.ty(result)?;
            let value = out.new.scoped(&node.name, |g| match inputs.first() {
                // Nothing is computed for a result without elements, so few rewrites have to think of one.
                Some(x) if ty.shape.has_zero() && g.ty(*x)?.dtype == ty.dtype => {
                    g.add1(View::packed(ty.shape), &[*x])
                }
                _ => decompose(g, &node.op, &inputs, ty.shape),
            })?;
            out.bind(result, value);
            Ok(true)
        })
    }
}

/// True for what [`decompose`] rewrites; each has one result.
fn is_composite(graph: &Graph, op: &Op, inputs: &[ValueId]) -> Result<bool, Error> {
    Ok(match op {
        Op::MatMul(_) => {
            let ranks = inputs
                .iter()
                .take(2)
                .map(|id| Ok(graph.ty(*id)?.shape.rank()))
                .collect::<Result<Vec<_>, _>>()?;
            ranks.contains(&1)
        }
        Op::Pool(op) => pool::sees_all(op, operand(graph, inputs)?),
        Op::AdaptivePool(op) => pool::divides(op, operand(graph, inputs)?),
        Op::DotGeneral(_)
        | Op::Einsum(_)
        | Op::LoraMatMul(_)
        | Op::InstanceNorm(_)
        | Op::BatchNorm(_)
        | Op::LayerNorm2d(_)
        | Op::AdaLayerNorm(_)
        | Op::L2Norm(_)
        | Op::GlobalPool(_)
        | Op::DepthToSpace(_)
        | Op::SpaceToDepth(_)
        | Op::Stack(_)
        | Op::Tile(_)
        | Op::Repeat(_)
        | Op::Roll(_)
        | Op::Fill(_)
        | Op::Dft(_)
        | Op::Stft(_)
        | Op::MelFilterBank(_)
        | Op::LogMel(_) => true,
        Op::Penalties(_) | Op::QuantizeLinear(_) | Op::DequantizeLinear(_) => true,
        _ => false,
    })
}

/// The sizes of the first operand.
fn operand(graph: &Graph, inputs: &[ValueId]) -> Result<Shape, Error> {
    inputs.first().map_or(Shape::new(&[]), |id| Ok(graph.ty(*id)?.shape))
}

/// The value of a composite operation, given its operands and its result's shape.
fn decompose(g: &mut Graph, op: &Op, x: &[ValueId], to: Shape) -> Result<ValueId, Error> {
    match (op, x) {
        (Op::MatMul(op), [a, b, extra @ ..]) => contraction::vector_matmul(g, op, *a, *b, extra, to),
        (Op::DotGeneral(op), [a, b]) => contraction::dot_general(g, op, *a, *b),
        (Op::LoraMatMul(op), [x, w, a, b]) => contraction::lora(g, op, *x, *w, *a, *b),
        (Op::Einsum(op), operands) => einsum::einsum(g, op, operands),
        (Op::InstanceNorm(op), [x, gamma, beta]) => norm::instance_norm(g, op, *x, *gamma, *beta),
        (Op::BatchNorm(op), [x, gamma, beta, mean, variance]) => {
            norm::batch_norm(g, op, *x, [*gamma, *beta, *mean, *variance])
        }
        (Op::LayerNorm2d(op), [x, gamma, beta]) => norm::layer_norm2d(g, op, *x, *gamma, *beta),
        (Op::AdaLayerNorm(op), [x, scale, shift]) => norm::ada_layer_norm(g, op, *x, *scale, *shift),
        (Op::L2Norm(op), [x]) => norm::l2_norm(g, op, *x),
        (Op::GlobalPool(op), [x]) => pool::global_pool(g, op.kind, op.p, *x),
        (Op::Pool(op), [x]) => pool::global_pool(g, op.kind, op.p, *x),
        (Op::AdaptivePool(op), [x]) => pool::adaptive_pool(g, op, *x),
        (Op::DepthToSpace(op), [x]) => movement::depth_to_space(g, op, *x, to),
        (Op::SpaceToDepth(op), [x]) => movement::space_to_depth(g, op, *x, to),
        (Op::Stack(op), parts) => movement::stack(g, op, parts),
        (Op::Tile(op), [x]) => movement::tile(g, op, *x, to),
        (Op::Repeat(op), [x]) => movement::repeat(g, op, *x, to),
        (Op::Roll(op), [x]) => movement::roll(g, op, *x),
        (Op::Fill(_), [x]) => g.expand(*x, to),
        (Op::Dft(op), [x]) => signal::dft(g, op, *x, to),
        (Op::Stft(op), [x, window @ ..]) => signal::stft(g, op, *x, window.first().copied(), to),
        (Op::MelFilterBank(op), []) => signal::mel_filter_bank(g, op, to),
        (Op::LogMel(op), [x, window, filters]) => signal::log_mel(g, op, *x, *window, *filters, to),
        (Op::Penalties(_), operands) => generate::penalties(g, operands),
        (Op::QuantizeLinear(op), [x, scale, zero @ ..]) => {
            quantize::quantize(g, op, *x, *scale, zero.first())
        }
        (Op::DequantizeLinear(op), [x, scale, zero @ ..]) => {
            quantize::dequantize(g, op, *x, *scale, zero.first())
        }
        _ => Err(Error::Invalid {
            place: op.name().into(),
            problem: format!("no rewrite for {} operands", x.len()),
        }),
    }
}

/// A reshape to sizes that may hold zeros, or nothing where they are the operand's own.
pub(super) fn reshape(g: &mut Graph, x: ValueId, dims: &[usize]) -> Result<ValueId, Error> {
    if g.ty(x)?.shape.dims() == dims {
        return Ok(x);
    }
    let shape = Shape::new(dims)?;
    if shape.has_zero() {
        // In the op itself a 0 means "copy the operand's size".
        return g.add1(View::packed(shape), &[x]);
    }
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    g.reshape(x, &dims)
}

/// A transpose, or nothing where the axes keep their order.
fn transpose(g: &mut Graph, x: ValueId, perm: &[usize]) -> Result<ValueId, Error> {
    if perm.iter().enumerate().all(|(i, a)| i == *a) { Ok(x) } else { g.transpose(x, perm) }
}

/// A cast, or nothing where the dtype is already that.
fn cast(g: &mut Graph, x: ValueId, to: DType) -> Result<ValueId, Error> {
    if g.ty(x)?.dtype == to { Ok(x) } else { g.cast(x, to) }
}

/// The dtype in which steps between several roundings are computed.
fn working_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}
