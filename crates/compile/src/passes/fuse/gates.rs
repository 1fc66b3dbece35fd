//! Two matmuls of one operand that meet elementwise, a gate and what it lets through, become one matmul.
//!
//! Needs: `x·W` and `x·V` with weights of one shape that are known at load, each read by elementwise ops alone until they
//! meet in one. Produces: `x·[w₀ v₀ w₁ v₁ …]`, the weights' columns dealt out in turn at load; the elementwise ops read even
//! and odd columns, so that a kernel which holds neighbouring columns can finish them where they are.

use std::collections::HashMap;

use olivine_ir::op::{Concat, MatMul};
use olivine_ir::{Error, Graph, NodeId, Op, TensorType, ValueId};

use super::edit::{Facts, has, reshaped};
use crate::{Options, Pass, Rewriter};

/// Elementwise ops between a matmul and where it meets the other, at most.
const FURTHEST: usize = 6;

/// The pass.
pub(super) struct JoinGates;

impl Pass for JoinGates {
    fn name(&self) -> &'static str {
        "gates"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !has(graph, |op| matches!(op, Op::MatMul(_))) {
            return Ok(graph.clone());
        }
        let facts = Facts::new(graph);
        let mut first_of: HashMap<NodeId, NodeId> = HashMap::new();
        let mut joined = vec![false; graph.nodes().len()];
        // Matmuls without a partner yet: by their operand, their weight's type and a node that they go through.
        let mut open: HashMap<(ValueId, TensorType, NodeId), NodeId> = HashMap::new();
        for index in 0..graph.nodes().len() {
            let id = NodeId(index as u32);
            if !is_gate(&facts, id) {
                continue;
            }
            let [x, weight] = facts.node(id).inputs[..] else { continue };
            let ty = graph.ty(weight)?;
            let readers = readers(&facts, id);
            let others = readers.iter().filter_map(|reader| open.get(&(x, ty, *reader)));
            match others.filter(|other| !first_of.contains_key(other)).min().copied() {
                Some(other) => {
                    joined[index] = true;
                    first_of.insert(other, id);
                }
                None => open.extend(readers.into_iter().map(|reader| ((x, ty, reader), id))),
            }
        }
        if first_of.is_empty() {
            return Ok(graph.clone());
        }
        let mut out = Rewriter::new(graph)?;
        for id in facts.load_first() {
            match first_of.get(&id) {
                Some(second) => emit(&mut out, &facts, id, *second)?,
                None if joined[id.index()] => {}
                None => out.copy(facts.node(id))?,
            }
        }
        out.finish()
    }
}

/// Whether a node is a matmul that may be joined with another.
fn is_gate(facts: &Facts<'_>, id: NodeId) -> bool {
    let node = facts.node(id);
    let (Op::MatMul(MatMul { epilogue: None }), [x, weight]) = (&node.op, node.inputs.as_slice()) else {
        return false;
    };
    let shape = facts.shape(*weight);
    let runs = !facts.is_fixed(*x) && facts.is_fixed(*weight);
    runs && shape.rank() == 2 && !shape.has_zero() && facts.shape(*x).rank() >= 2
}

/// The elementwise ops that a matmul's result goes through, as long as each has one reader and keeps the shape.
fn readers(facts: &Facts<'_>, matmul: NodeId) -> Vec<NodeId> {
    let mut value = facts.node(matmul).outputs[0];
    let shape = facts.shape(value);
    let mut readers = Vec::new();
    while let Some(reader) = facts.only_reader(value)
        && readers.len() < FURTHEST
    {
        let next = facts.node(reader);
        if !matches!(next.op, Op::ScalarOp(_)) || facts.shape(next.outputs[0]) != shape {
            break;
        }
        readers.push(reader);
        value = next.outputs[0];
    }
    readers
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, first: NodeId, second: NodeId) -> Result<(), Error> {
    let (a, b) = (facts.node(first), facts.node(second));
    out.new.set_scope_of(&a.name);
    let shape = facts.shape(a.inputs[1]);
    let (depth, width) = (shape[0], shape[1]);
    let x = out.get(a.inputs[0])?;
    let weights =
        [a, b].map(|node| out.get(node.inputs[1]).and_then(|w| reshaped(out, w, &[depth, width, 1])));
    let [w, v] = weights;
    let dealt = out.new.add1(Concat { axis: 2 }, &[w?, v?])?;
    let weight = reshaped(out, dealt, &[depth, 2 * width])?;
    let matmul = out.new.add_named(a.name.clone(), MatMul { epilogue: None }, &[x, weight])?[0];
    let end = 2 * width as i64;
    for (node, start) in [(a, 0), (b, 1)] {
        let columns = out.new.slice(matmul, -1, start, end, 2)?;
        out.bind(node.outputs[0], columns);
    }
    Ok(())
}
