//! What a loop's body computes of captures and constants alone is computed once, before the loop.
//!
//! A weight that a body reads transposed or as f32 is thus converted once, at load. What else is larger than its operands
//! stays inside: broadcasts cost nothing where they are read, and memory where they are kept.

use olivine_ir::op::{Loop, ScalarOp};
use olivine_ir::{Def, Dim, Error, Graph, NodeId, Op, SubGraph, TensorType, ValueId};

/// The loop's results with its invariant nodes in front of it; `None` if there are none.
pub(super) fn loop_(
    g: &mut Graph,
    op: &Loop,
    inputs: &[ValueId],
    name: &str,
) -> Result<Option<Vec<ValueId>>, Error> {
    let body = op.body.graph();
    let (fixed, moved) = invariant(body, op.carried)?;
    if !moved.iter().any(|m| *m) {
        return Ok(None);
    }
    // The body's values in the outer graph, where they are known there.
    let mut outside: Vec<Option<ValueId>> = vec![None; body.values().len()];
    for ((_, id), given) in body.inputs().zip(std::iter::once(None).chain(inputs.iter().skip(2).map(Some))) {
        outside[id.index()] = given.copied();
    }
    for (node, moves) in body.nodes().iter().zip(&moved) {
        if !moves {
            continue;
        }
        let mut operands = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            let known = outside[id.index()].or_else(|| Some(g.constant(body.as_const(*id)?.clone())));
            outside[id.index()] = known;
            operands.push(known.ok_or_else(|| Error::Invalid {
                location: format!("node `{}`", node.name),
                problem: "an operand of an invariant node is not there".into(),
            })?);
        }
        let results = g.add_named(format!("{name}/{}", node.name), node.op.clone(), &operands)?;
        for (old, new) in node.outputs.iter().zip(results) {
            outside[old.index()] = Some(new);
        }
    }
    let mut given = inputs.to_vec();
    let body = without(body, &moved, &fixed, &outside, &mut given)?;
    let op = Loop { body: SubGraph::new(body)?, ..op.clone() };
    g.add_named(name, op, &given).map(Some)
}

/// For every value whether it is the same in every iteration, and for every node whether it moves out.
fn invariant(body: &Graph, carried: usize) -> Result<(Vec<bool>, Vec<bool>), Error> {
    let mut fixed: Vec<bool> = body.values().iter().map(|v| matches!(v.def, Def::Const(_))).collect();
    for (_, id) in body.inputs().skip(1 + carried) {
        fixed[id.index()] = true;
    }
    let mut moved = Vec::with_capacity(body.nodes().len());
    let bytes = |ids: &[ValueId]| -> Result<Dim, Error> {
        let types = ids.iter().map(|id| body.ty(*id)).collect::<Result<Vec<TensorType>, _>>()?;
        Ok(types.iter().map(TensorType::size_bytes).fold(Dim::ZERO, |sum, bytes| sum + bytes))
    };
    for node in body.nodes() {
        let all = node.inputs.iter().all(|id| fixed[id.index()]);
        // What is made of constants alone folds where it stands, and an inner loop may take long for nothing.
        let captured = node.inputs.iter().any(|id| body.as_const(*id).is_none());
        let plain = node.op.bodies().is_empty() && !matches!(node.op, Op::Custom(_));
        let converts = matches!(node.op, Op::ScalarOp(ScalarOp::Cast(_)));
        let may_move = all && captured && plain;
        let moves = may_move && (converts || bytes(&node.outputs)? <= bytes(&node.inputs)?);
        for id in &node.outputs {
            fixed[id.index()] = moves;
        }
        moved.push(moves);
    }
    Ok((fixed, moved))
}

/// A name that no input has yet.
fn free_name(g: &Graph) -> String {
    let from = g.inputs().count();
    let names = (from..).map(|i| format!("hoisted {i}"));
    names.into_iter().find(|name| g.input_named(name).is_none()).unwrap_or_default()
}

/// The body without the nodes that moved; what others still read of them comes as captures, added to `given`.
fn without(
    body: &Graph,
    moved: &[bool],
    fixed: &[bool],
    outside: &[Option<ValueId>],
    given: &mut Vec<ValueId>,
) -> Result<Graph, Error> {
    let mut out = Graph::new(body.name());
    let mut map: Vec<Option<ValueId>> = vec![None; body.values().len()];
    for (name, id) in body.inputs() {
        let ty = body.ty(id)?;
        map[id.index()] = Some(out.input(name, ty.dtype, ty.shape)?);
    }
    let stays = |id: NodeId| !moved.get(id.index()).copied().unwrap_or(false);
    let ids = (0..body.nodes().len() as u32).map(NodeId);
    let reads = body.nodes().iter().zip(ids).filter(|(_, id)| stays(*id)).flat_map(|(n, _)| &n.inputs);
    for id in reads.chain(body.outputs().iter().map(|o| &o.value)) {
        let made_outside = matches!(body.value(*id)?.def, Def::Node { node, .. } if !stays(node));
        if let (None, true, true, Some(value)) =
            (map[id.index()], made_outside, fixed[id.index()], outside[id.index()])
        {
            let ty = body.ty(*id)?;
            map[id.index()] = Some(out.input(&free_name(&out), ty.dtype, ty.shape)?);
            given.push(value);
        }
    }
    let get = |out: &mut Graph, map: &mut Vec<Option<ValueId>>, id: ValueId| {
        let known = map[id.index()].or_else(|| Some(out.constant(body.as_const(id)?.clone())));
        map[id.index()] = known;
        known.ok_or_else(|| Error::Invalid {
            location: id.to_string(),
            problem: "a value of the loop's body was lost".into(),
        })
    };
    for (node, moves) in body.nodes().iter().zip(moved) {
        if *moves {
            continue;
        }
        let operands =
            node.inputs.iter().map(|id| get(&mut out, &mut map, *id)).collect::<Result<Vec<_>, _>>()?;
        let results = out.add_named(node.name.clone(), node.op.clone(), &operands)?;
        for (old, new) in node.outputs.iter().zip(results) {
            map[old.index()] = Some(new);
        }
    }
    for output in body.outputs() {
        let value = get(&mut out, &mut map, output.value)?;
        out.output(&output.name, value)?;
    }
    Ok(out)
}
