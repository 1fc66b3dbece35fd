//! Canonicalise: one spelling for what can be written in several ways, and nothing where nothing is done.
//!
//! Needs: nothing. Produces: a graph that computes the same bits for every input, NaN, infinities and −0.0 included;
//! constants stand on the right of commutative operations.

mod layout;
mod nothing;
mod scalar;

use olivine_ir::{Error, Graph, Node, Op, Tensor, TensorType, ValueId};

use crate::{Options, Pass, rewrite};

/// See the module.
pub(crate) struct Canonicalise;

/// A rule that leads back to where it began would otherwise never end; real chains take two or three steps.
const MOST_STEPS: usize = 16;

impl Pass for Canonicalise {
    fn name(&self) -> &'static str {
        "canonicalise"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|node| is_changed(graph, node)) {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            let [result] = node.outputs.as_slice() else { return Ok(false) };
            let ty = graph.ty(*result)?;
            let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            let value = simplest(&mut out.new, node, inputs, ty)?;
            out.bind(*result, value);
            Ok(true)
        })
    }
}

/// What a rule puts in a node's place.
enum Simpler {
    /// A value that is there already.
    Value(ValueId),
    /// Another node.
    Node(Op, Vec<ValueId>),
    /// Another node, with a constant in place of one operand.
    WithConstant(Op, Vec<ValueId>, usize, Tensor),
}

/// The rule that fits an operation.
fn simpler(g: &Graph, op: &Op, inputs: &[ValueId], ty: TensorType) -> Option<Simpler> {
    match op {
        Op::ScalarOp(scalar) => scalar::simplify(g, *scalar, inputs, ty),
        _ => nothing::simplify(g, op, inputs, ty).or_else(|| layout::simplify(g, op, inputs, ty)),
    }
}

/// Whether a rule fits a node.
fn is_changed(graph: &Graph, node: &Node) -> bool {
    let [result] = node.outputs.as_slice() else { return false };
    graph.ty(*result).is_ok_and(|ty| simpler(graph, &node.op, &node.inputs, ty).is_some())
}

/// Applies rules until none fits, and adds the node that is left, if one is.
fn simplest(g: &mut Graph, node: &Node, inputs: Vec<ValueId>, ty: TensorType) -> Result<ValueId, Error> {
    let (mut op, mut inputs) = (node.op.clone(), inputs);
    for _ in 0..MOST_STEPS {
        let simpler = match simpler(g, &op, &inputs, ty) {
            Some(Simpler::WithConstant(op, mut operands, at, tensor)) => {
                operands[at] = g.constant(tensor);
                Some(Simpler::Node(op, operands))
            }
            other => other,
        };
        // Rules speak of elements; broadcasting may still have made the result larger than the value they offer.
        match simpler {
            Some(Simpler::Value(value)) if g.ty(value)? == ty => return Ok(value),
            Some(Simpler::Node(new, operands)) if g.check(&node.name, &new, &operands)? == [ty] => {
                (op, inputs) = (new, operands);
            }
            _ => break,
        }
    }
    let results = g.add_typed(node.name.clone(), op, inputs, [ty]);
    results.first().copied().ok_or_else(|| Error::Invalid {
        location: format!("node `{}`", node.name),
        problem: "the operation lost its result".into(),
    })
}
