//! Legalise: composite operations become operations that have kernels.
//!
//! Needs: nothing. Produces: a graph of kernel operations and of layout operations (reshape, transpose, slice, expand,
//! split, reverse, unfold, view), which the views pass turns into strides.

mod contraction;
#[cfg(test)]
mod contraction_tests;
mod einsum;
mod generate;
mod movement;
mod norm;
mod pool;
mod quantize;
mod recurrent;
mod signal;
mod state_space;
#[cfg(test)]
mod tests;

use olivine_ir::op::{Lowering, View};
use olivine_ir::{DType, Dim, Error, Graph, Op, Shape, ValueId, for_each_rewrite};

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
            any |= is_composite(graph, &node.op, &node.inputs)?;
        }
        if !any {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            if !is_composite(graph, &node.op, &node.inputs)? {
                return Ok(false);
            }
            let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            let Some(&result) = node.outputs.first() else { return Ok(false) };
            let (ty, one) = (graph.ty(result)?, node.outputs.len() == 1);
            let values = out.new.scoped(&node.name, |g| match inputs.first() {
                // Nothing is computed for a result without elements, so few rewrites have to think of one.
                Some(x) if one && ty.shape.has_zero() && g.ty(*x)?.dtype == ty.dtype => {
                    Ok(vec![g.add1(View::packed(ty.shape), &[*x])?])
                }
                _ => decompose(g, &node.op, &inputs, ty.shape),
            })?;
            node.outputs.iter().zip(values).for_each(|(old, new)| out.bind(*old, new));
            Ok(true)
        })
    }
}

/// How an operation becomes others. Every operation that the list in `olivine_ir` calls a rewrite implements it, and a
/// few with kernels that some shapes do without; [`rewrites!`] does it beside the function.
trait Composite {
    /// The values of the results, given the operands and the first result's shape.
    fn decompose(&self, g: &mut Graph, x: &[ValueId], to: Shape) -> Result<Vec<ValueId>, Error>;
}

/// Implements [`Composite`] for operations of one result, by the operands that they have:
/// `rewrites! { |g, op, to| LayerNorm2d [x, gamma, beta] => layer_norm2d(g, op, *x, *gamma, *beta), }`.
macro_rules! rewrites {
    (|$g:ident, $op:ident, $to:ident| $($name:ident [$($operands:tt)*] => $value:expr),* $(,)?) => {$(
        impl $crate::passes::legalise::Composite for olivine_ir::op::$name {
            #[allow(unused_variables, reason = "not every rewrite needs all")]
            fn decompose(
                &self,
                $g: &mut olivine_ir::Graph,
                x: &[olivine_ir::ValueId],
                $to: olivine_ir::Shape,
            ) -> Result<Vec<olivine_ir::ValueId>, olivine_ir::Error> {
                let $op = self;
                #[allow(
                    unreachable_patterns,
                    clippy::redundant_at_rest_pattern,
                    reason = "some take any number of operands"
                )]
                match x {
                    [$($operands)*] => Ok(vec![$value?]),
                    _ => Err($crate::passes::legalise::no_rewrite(&self.clone().into(), x.len())),
                }
            }
        }
    )*};
}
use rewrites;

/// The error for operands that an operation's rule does not accept.
fn no_rewrite(op: &Op, operands: usize) -> Error {
    Error::Invalid { location: op.name().into(), problem: format!("no rewrite for {operands} operands") }
}

/// True for what [`decompose`] rewrites.
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
        Op::GatedDeltaNet(op) => op.normalise.is_some(),
        _ => op.lowering() == Lowering::Rewrite,
    })
}

/// The sizes of the first operand.
fn operand(graph: &Graph, inputs: &[ValueId]) -> Result<Shape, Error> {
    inputs.first().map_or(Shape::new(&[]), |id| Ok(graph.ty(*id)?.shape))
}

/// The values of a composite operation, given its operands and its first result's shape.
fn decompose(g: &mut Graph, op: &Op, x: &[ValueId], to: Shape) -> Result<Vec<ValueId>, Error> {
    macro_rules! decompose {
        ($($name:ident,)*) => {
            match op {
                Op::MatMul(op) => op.decompose(g, x, to),
                Op::Pool(op) => op.decompose(g, x, to),
                Op::AdaptivePool(op) => op.decompose(g, x, to),
                Op::GatedDeltaNet(op) => op.decompose(g, x, to),
                $(Op::$name(op) => op.decompose(g, x, to),)*
                _ => Err(no_rewrite(op, x.len())),
            }
        };
    }
    for_each_rewrite!(decompose)
}

/// A reshape to sizes that may hold zeros, or nothing where they are the operand's own.
pub(super) fn reshape<T: Copy + Into<Dim>>(g: &mut Graph, x: ValueId, dims: &[T]) -> Result<ValueId, Error> {
    let dims: Vec<Dim> = dims.iter().map(|d| (*d).into()).collect();
    let shape = Shape::of_sizes(&dims)?;
    if g.ty(x)?.shape == shape {
        return Ok(x);
    }
    if shape.has_zero() {
        // In the op itself a 0 means "copy the operand's size".
        return g.add1(View::packed(shape), &[x]);
    }
    g.reshape_to(x, &dims)
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
