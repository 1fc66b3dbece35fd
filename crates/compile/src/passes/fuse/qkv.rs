//! Matmuls that share their left operand become one matmul with the weights concatenated, sliced afterwards.
//!
//! Needs: `x·W` with weights of rank 2 that are known at load, close together, whose results (after an optional bias)
//! go to layout ops or attention, which read slices without a copy. Produces: one matmul per group; weights and biases
//! are joined at load, never at run time. Matmuls that feed elementwise ops stay apart: those become their epilogues instead.

use std::collections::HashMap;

use olivine_ir::op::{Binary, Concat, MatMul, ScalarOp};
use olivine_ir::{DType, Error, Graph, NodeId, Op, Tensor, ValueId};

use super::edit::{Facts, has, reshaped};
use crate::{Options, Pass, Rewriter};

/// Matmuls joined at most: all of an attention layer, but not those of all layers over one encoder's result.
const MOST_MEMBERS: usize = 4;

/// Nodes between two matmuls that are joined: their results wait for each other.
const FURTHEST: usize = 48;

/// The pass.
pub(super) struct JoinMatmuls;

/// One matmul and its bias.
#[derive(Clone, Copy)]
struct Member {
    matmul: NodeId,
    weight: ValueId,
    width: usize,
    bias: Option<(NodeId, ValueId)>,
    /// What the rest of the graph reads.
    result: ValueId,
}

impl Pass for JoinMatmuls {
    fn name(&self) -> &'static str {
        "qkv"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !has(graph, |op| matches!(op, Op::MatMul(_))) {
            return Ok(graph.clone());
        }
        let facts = Facts::new(graph);
        let mut gone = vec![false; graph.nodes().len()];
        let mut at_first: HashMap<NodeId, Vec<Member>> = HashMap::new();
        for members in groups(&facts) {
            for m in &members {
                gone[m.matmul.index()] = true;
                if let Some((node, _)) = m.bias {
                    gone[node.index()] = true;
                }
            }
            at_first.insert(members[0].matmul, members);
        }
        if at_first.is_empty() {
            return Ok(graph.clone());
        }
        let mut out = Rewriter::new(graph)?;
        for id in facts.load_first() {
            match at_first.get(&id) {
                Some(members) => emit(&mut out, &facts, members)?,
                None if gone[id.index()] => {}
                None => out.copy(facts.node(id))?,
            }
        }
        out.finish()
    }
}

/// Matmuls over one left operand, near each other, of one inner size and dtype.
fn groups(facts: &Facts<'_>) -> Vec<Vec<Member>> {
    let mut open: HashMap<ValueId, Vec<Member>> = HashMap::new();
    let mut done = Vec::new();
    let mut close = |members: Vec<Member>| {
        if members.len() > 1 {
            done.push(members);
        }
    };
    for (index, node) in facts.graph.nodes().iter().enumerate() {
        let Some(member) = member(facts, NodeId(index as u32)) else { continue };
        let members = open.entry(node.inputs[0]).or_default();
        let far = members.last().is_some_and(|m| index - m.matmul.index() > FURTHEST);
        if far || members.len() >= MOST_MEMBERS {
            close(std::mem::take(members));
        }
        members.push(member);
    }
    // In graph order, so that the same graph always gives the same result.
    let mut left: Vec<Vec<Member>> = open.into_values().collect();
    left.sort_by_key(|members| members.first().map(|m| m.matmul));
    left.into_iter().for_each(&mut close);
    done
}

/// A matmul that may be joined with others.
fn member(facts: &Facts<'_>, id: NodeId) -> Option<Member> {
    let node = facts.node(id);
    let (Op::MatMul(MatMul { epilogue: None }), [x, weight]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let shape = facts.shape(*weight);
    let runs = !facts.is_fixed(*x) && facts.is_fixed(*weight);
    if !runs || shape.rank() != 2 || shape.has_zero() || facts.shape(*x).rank() < 2 {
        return None;
    }
    let width = shape[1];
    let matmul = node.outputs[0];
    let bias = facts.only_reader(matmul).and_then(|reader| bias_of(facts, reader, matmul, width));
    let result = bias.map_or(matmul, |(node, _)| facts.node(node).outputs[0]);
    let readers = facts.readers(result);
    let sliceable = facts.uses[result.index()] == facts.reads_by_nodes(result)
        && !readers.is_empty()
        && readers.iter().all(|r| reads_slices(&facts.node(*r).op));
    sliceable.then_some(Member { matmul: id, weight: *weight, width, bias, result })
}

/// The bias that a node adds to the matmul, if it is an addition of `width` numbers known at load.
fn bias_of(facts: &Facts<'_>, add: NodeId, matmul: ValueId, width: usize) -> Option<(NodeId, ValueId)> {
    let node = facts.node(add);
    let (Op::ScalarOp(ScalarOp::Binary(Binary::Add)), [a, b]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let bias = if *a == matmul { *b } else { *a };
    let shape = facts.shape(bias);
    let keeps = facts.shape(node.outputs[0]) == facts.shape(matmul);
    let is_row = shape.rank() > 0 && shape.size(shape.rank() - 1) == width && shape.sizes().numel() == width;
    (bias != matmul && facts.is_fixed(bias) && keeps && is_row).then_some((add, bias))
}

/// Readers that take a slice of a wider matmul without a copy.
fn reads_slices(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Expand(_) | Op::Attention(_) | Op::Rope(_)
    )
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, members: &[Member]) -> Result<(), Error> {
    let first = facts.node(members[0].matmul);
    out.new.set_scope_of(&first.name);
    let dtype = facts.graph.ty(members[0].weight)?.dtype;
    let x = out.get(first.inputs[0])?;
    let weights = members.iter().map(|m| out.get(m.weight)).collect::<Result<Vec<_>, _>>()?;
    let weight = out.new.add1(Concat { axis: 1 }, &weights)?;
    let matmul = out.new.add_named(first.name.clone(), MatMul { epilogue: None }, &[x, weight])?;
    let mut joined = matmul[0];
    if members.iter().any(|m| m.bias.is_some()) {
        let biases = members.iter().map(|m| bias_row(out, m, dtype)).collect::<Result<Vec<_>, _>>()?;
        let bias = out.new.add1(Concat { axis: 0 }, &biases)?;
        joined = out.new.add(joined, bias)?;
    }
    let mut from = 0;
    for m in members {
        let part = out.new.narrow(joined, -1, from, m.width)?;
        out.bind(m.result, part);
        from += m.width;
    }
    Ok(())
}

/// A member's bias as `[width]`; zeros if it has none and others do.
fn bias_row(out: &mut Rewriter<'_>, m: &Member, dtype: DType) -> Result<ValueId, Error> {
    match m.bias {
        Some((_, bias)) => {
            let bias = out.get(bias)?;
            reshaped(out, bias, &[m.width])
        }
        None => Ok(out.new.constant(Tensor::zeros(dtype, [m.width])?)),
    }
}
