//! Elementwise ops after a matmul become its epilogue: bias, activation, residual, scale, cast.
//!
//! Needs: matmuls without other readers than the ops to absorb. Produces: `MatMul` and `Conv` with an epilogue, each
//! where the last op it absorbed stood.

use std::collections::HashMap;

use olivine_ir::op::{Conv, DequantMatMul, MatMul, Region};
use olivine_ir::{Error, Graph, Node, NodeId, Op, ValueId};

use super::edit::{Facts, has};
use super::region::RegionBuilder;
use crate::{Options, Pass, Rewriter};

/// The pass.
pub(super) struct FuseEpilogues;

/// A matmul and what it absorbed.
struct Fusion {
    matmul: NodeId,
    region: Region,
    /// The region's inputs after the matmul itself.
    extra: Vec<ValueId>,
}

impl Pass for FuseEpilogues {
    fn name(&self) -> &'static str {
        "epilogue"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !has(graph, |op| matches!(op, Op::MatMul(_) | Op::DequantMatMul(_) | Op::Conv(_))) {
            return Ok(graph.clone());
        }
        let facts = Facts::new(graph);
        let mut absorbed = vec![false; graph.nodes().len()];
        let mut at_last: HashMap<NodeId, Fusion> = HashMap::new();
        // Later matmuls first: a sum of two matmuls joins the later one, which would wait for the other anyway.
        for index in (0..graph.nodes().len()).rev() {
            let id = NodeId(index as u32);
            if let Some((chain, fusion)) = grow(&facts, id, &absorbed)
                && let Some(last) = chain.last()
            {
                absorbed[index] = true;
                for node in &chain {
                    absorbed[node.index()] = true;
                }
                at_last.insert(*last, fusion);
            }
        }
        if at_last.is_empty() {
            return Ok(graph.clone());
        }
        crate::rewrite(graph, |out, id, node| match at_last.get(&id) {
            Some(fusion) => emit(out, &facts, fusion, node).map(|()| true),
            None => Ok(absorbed[id.index()]),
        })
    }
}

/// A matmul's own operands and epilogue, if the node is one.
fn matmul_parts(node: &Node) -> Option<(usize, &Option<Region>)> {
    match &node.op {
        Op::MatMul(op) => Some((2, &op.epilogue)),
        Op::DequantMatMul(op) => Some((op.first_extra(), &op.epilogue)),
        Op::Conv(op) => Some((2 + usize::from(op.bias), &op.epilogue)),
        _ => None,
    }
}

/// Follows the matmul's result through elementwise ops that nothing else reads, as far as they keep its shape.
fn grow(facts: &Facts<'_>, id: NodeId, absorbed: &[bool]) -> Option<(Vec<NodeId>, Fusion)> {
    let node = facts.node(id);
    let (own, epilogue) = matmul_parts(node)?;
    let mut value = *node.outputs.first()?;
    let shape = facts.shape(value);
    let identity = Region::identity();
    let region = epilogue.as_ref().unwrap_or(&identity);
    let inputs: Vec<ValueId> = std::iter::once(value).chain(node.inputs[own..].iter().copied()).collect();
    let mut builder = RegionBuilder::continuing(facts.graph, region, &inputs, value);
    let mut chain = Vec::new();
    while let Some(reader) = facts.only_reader(value) {
        let next = facts.node(reader);
        let fits = matches!(next.op, Op::ScalarOp(_))
            && !absorbed[reader.index()]
            && facts.at_load[reader.index()] == facts.at_load[id.index()]
            && facts.shape(next.outputs[0]) == shape;
        let mut grown = builder.clone();
        if !fits || !grown.push(next) || !grown.fits() {
            break;
        }
        builder = grown;
        chain.push(reader);
        value = next.outputs[0];
    }
    let (region, inputs) = builder.finish(&[value]);
    (!chain.is_empty()).then(|| (chain, Fusion { matmul: id, region, extra: inputs[1..].to_vec() }))
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, fusion: &Fusion, last: &Node) -> Result<(), Error> {
    let matmul = facts.node(fusion.matmul);
    let own = matmul_parts(matmul).map_or(0, |(own, _)| own);
    let operands: Vec<ValueId> = matmul.inputs[..own].iter().chain(&fusion.extra).copied().collect();
    let epilogue = Some(fusion.region.clone());
    let op = match &matmul.op {
        Op::Conv(conv) => Op::Conv(Conv { epilogue, ..conv.clone() }),
        Op::DequantMatMul(op) => Op::DequantMatMul(DequantMatMul { epilogue, ..op.clone() }),
        _ => Op::MatMul(MatMul { epilogue }),
    };
    let operands = operands.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
    let results = out.new.add_named(matmul.name.clone(), op, &operands)?;
    out.bind(last.outputs[0], results[0]);
    Ok(())
}
