//! An elementwise op before a norm rides on it: the residual sum is made and normalised in one pass over the row.
//!
//! Needs: norms without prologue over the result of an elementwise node. Produces: norms with a prologue; where the sum is
//! read elsewhere too, it is the norm's second result.

use std::collections::HashMap;

use olivine_ir::op::{Arg, InstrOp, LayerNorm, Region, RmsNorm};
use olivine_ir::{Error, Graph, Node, NodeId, Op, ValueId};

use super::edit::{Facts, has};
use super::region::RegionBuilder;
use crate::{Options, Pass, Rewriter};

/// The pass.
pub(super) struct FusePrologues;

/// A norm that takes over the node which makes its x.
struct Fusion {
    norm: NodeId,
    maker: NodeId,
    region: Region,
    /// The region's inputs, the one of full shape first.
    inputs: Vec<ValueId>,
    emit_input: bool,
}

impl Pass for FusePrologues {
    fn name(&self) -> &'static str {
        "prologue"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !has(graph, |op| matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_))) {
            return Ok(graph.clone());
        }
        let facts = Facts::new(graph);
        let mut gone = vec![false; graph.nodes().len()];
        let mut fusions: HashMap<NodeId, Fusion> = HashMap::new();
        for index in 0..graph.nodes().len() {
            let id = NodeId(index as u32);
            let Some(fusion) = find(&facts, id, &gone) else { continue };
            gone[fusion.norm.index()] = true;
            gone[fusion.maker.index()] = true;
            // Other readers of the sum may stand before the norm, so it moves up to where the sum was made; its
            // weights run once and so are there already.
            let at = if fusion.emit_input { fusion.maker } else { fusion.norm };
            fusions.insert(at, fusion);
        }
        if fusions.is_empty() {
            return Ok(graph.clone());
        }
        let mut out = Rewriter::new(graph)?;
        for id in facts.load_first() {
            match fusions.get(&id) {
                Some(fusion) => emit(&mut out, &facts, fusion)?,
                None if gone[id.index()] => {}
                None => out.copy(facts.node(id))?,
            }
        }
        out.finish()
    }
}

/// A norm's number of own operands, if the node is a norm without prologue.
fn own_operands(op: &Op) -> Option<usize> {
    match op {
        Op::LayerNorm(LayerNorm { bias, prologue: None, emit_input: false, .. })
        | Op::RmsNorm(RmsNorm { bias, prologue: None, emit_input: false, .. }) => {
            Some(2 + usize::from(*bias))
        }
        _ => None,
    }
}

fn find(facts: &Facts<'_>, id: NodeId, gone: &[bool]) -> Option<Fusion> {
    let norm = facts.node(id);
    let own = own_operands(&norm.op)?;
    let x = norm.inputs[0];
    let olivine_ir::Def::Node { node: maker, .. } = facts.graph.values()[x.index()].def else { return None };
    let node = facts.node(maker);
    let elementwise = matches!(node.op, Op::ScalarOp(_) | Op::Fused(_));
    let same_time = facts.at_load[maker.index()] == facts.at_load[id.index()];
    if !elementwise || node.outputs.len() != 1 || gone[maker.index()] || !same_time {
        return None;
    }
    let emit_input = facts.only_reader(x) != Some(id);
    if emit_input && !norm.inputs[1..own].iter().all(|w| facts.is_fixed(*w)) {
        return None;
    }
    let mut builder = RegionBuilder::new(facts.graph);
    if !builder.push(node) || !builder.fits() {
        return None;
    }
    let shape = facts.shape(x);
    let (mut region, mut inputs) = builder.finish(&[x]);
    let main = inputs.iter().position(|v| facts.shape(*v) == shape)?;
    // A region that only passes its input on is a copy, which nothing would be won by moving.
    if !region.instrs.iter().any(|i| matches!(i.op, InstrOp::Scalar(_))) {
        return None;
    }
    inputs.swap(0, main);
    swap_inputs(&mut region, main);
    Some(Fusion { norm: id, maker, region, inputs, emit_input })
}

/// Exchanges a region's input 0 with another.
fn swap_inputs(region: &mut Region, other: usize) {
    let swap = |arg: &mut Arg| match arg {
        Arg::Input(i) if *i == 0 => *i = other,
        Arg::Input(i) if *i == other => *i = 0,
        _ => {}
    };
    region.instrs.iter_mut().flat_map(|i| &mut i.args).for_each(swap);
    region.outputs.iter_mut().for_each(swap);
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, fusion: &Fusion) -> Result<(), Error> {
    let norm: &Node = facts.node(fusion.norm);
    let own = own_operands(&norm.op).unwrap_or(norm.inputs.len());
    let prologue = Some(fusion.region.clone());
    let emit_input = fusion.emit_input;
    let op = match &norm.op {
        Op::LayerNorm(n) => Op::LayerNorm(LayerNorm { prologue, emit_input, ..n.clone() }),
        Op::RmsNorm(n) => Op::RmsNorm(RmsNorm { prologue, emit_input, ..n.clone() }),
        other => other.clone(),
    };
    let operands = fusion.inputs[..1].iter().chain(&norm.inputs[1..own]).chain(&fusion.inputs[1..]);
    let operands = operands.map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
    let results = out.new.add_named(norm.name.clone(), op, &operands)?;
    out.bind(norm.outputs[0], results[0]);
    if let (true, [_, sum]) = (emit_input, results.as_slice()) {
        out.bind(norm.inputs[0], *sum);
    }
    Ok(())
}
