//! Control flow: what is decided now goes, and what is left is `if` and `loop`.
//!
//! Needs: nothing; after folding it decides more. Produces: no `scan`; no `if` whose condition is a constant; no short loop
//! whose number of iterations is; nothing inside a loop that is the same in every iteration; loops that know a bound of their iterations wherever the graph tells one.

mod hoist;
mod inline;
mod scan;
#[cfg(test)]
mod tests;
mod unroll;

use olivine_ir::op::Loop;
use olivine_ir::{Data, Error, Graph, MAX_NESTING, Node, Op, Tensor, ValueId};

use crate::{Options, Pass, Rewriter, rewrite};

/// Loops and scans become straight graphs where that makes at most this many nodes: iterations times nodes of the body.
const MOST_UNROLLED_NODES: usize = 128;

/// See the module.
pub(crate) struct Control;

impl Pass for Control {
    fn name(&self) -> &'static str {
        "control"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let mut graph = graph.clone();
        // What comes out of a graph that was put in its node's place may be decided in turn.
        for _ in 0..=MAX_NESTING {
            if graph.nodes().iter().all(|n| n.op.bodies().is_empty()) {
                break;
            }
            let mut changed = false;
            graph = rewrite(&graph, |out, _, node| {
                let Some(results) = decided(out, node)? else { return Ok(false) };
                changed = true;
                for (old, new) in node.outputs.iter().zip(results) {
                    out.bind(*old, new);
                }
                Ok(true)
            })?;
            if !changed {
                break;
            }
        }
        Ok(graph)
    }
}

/// The values that stand for a node's results, if something better than the node itself is known.
fn decided(out: &mut Rewriter<'_>, node: &Node) -> Result<Option<Vec<ValueId>>, Error> {
    if node.op.bodies().is_empty() {
        return Ok(None);
    }
    let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
    let g = &mut out.new;
    match &node.op {
        Op::If(op) => match inputs.split_first().and_then(|(c, rest)| Some((flag(g, *c)?, rest))) {
            Some((true, captures)) => inline::inline(g, &op.then_branch, captures, &node.name).map(Some),
            Some((false, captures)) => inline::inline(g, &op.else_branch, captures, &node.name).map(Some),
            None => Ok(None),
        },
        Op::Loop(op) => {
            if let Some(results) = unroll::loop_(g, op, &inputs, &node.name)? {
                return Ok(Some(results));
            }
            if let Some(results) = hoist::loop_(g, op, &inputs, &node.name)? {
                return Ok(Some(results));
            }
            match tighter(g, op, &inputs) {
                Some(bound) => {
                    let op = Loop { max_iterations: Some(bound), ..op.clone() };
                    g.add_named(node.name.clone(), op, &inputs).map(Some)
                }
                None => Ok(None),
            }
        }
        Op::Scan(op) => match unroll::scan(g, op, &inputs, &node.name)? {
            Some(results) => Ok(Some(results)),
            None => scan::as_loop(g, op, &inputs, &node.name).map(Some),
        },
        _ => Ok(None),
    }
}

/// A lower bound of the iterations than the loop knows; the rows' length must stay what it is.
fn tighter(g: &Graph, op: &Loop, inputs: &[ValueId]) -> Option<usize> {
    let rows = op.body.graph().outputs().len() > 1 + op.carried;
    let iterations = whole(g, *inputs.first()?)?.max(0) as usize;
    (!rows && op.max_iterations.is_none_or(|most| iterations < most)).then_some(iterations)
}

/// The constant behind a value of one bool.
fn flag(g: &Graph, id: ValueId) -> Option<bool> {
    match g.as_const(id).map(Tensor::data)? {
        Data::Bool(v) => v.first().copied(),
        _ => None,
    }
}

/// The constant behind a value of one i64.
fn whole(g: &Graph, id: ValueId) -> Option<i64> {
    match g.as_const(id).map(Tensor::data)? {
        Data::I64(v) => v.first().copied(),
        _ => None,
    }
}

/// The nodes of a graph, those of graphs inside included.
fn nodes_of(graph: &Graph) -> usize {
    let inner = |n: &Node| n.op.bodies().iter().map(|b| nodes_of(b.graph())).sum::<usize>();
    graph.nodes().iter().map(|n| 1 + inner(n)).sum()
}
