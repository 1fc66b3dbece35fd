//! A graph cut where operations run on the host: parts that run one after another, on the device and on the host in turn.
//!
//! ```text
//!   level of a node = the most of: its operands' levels, one more where an operand comes from the other side
//!   even levels run on the device, odd ones on the host; all nodes of a level are one graph
//! ```

use std::collections::{HashMap, HashSet};

use olivine_ir::{Def, Graph, Node, ValueId};

use crate::Error;

/// A part of a graph.
pub(super) struct GraphPart {
    pub(super) on_host: bool,
    pub(super) graph: Graph,
    /// Values of the whole graph that are its inputs, in order.
    pub(super) inputs: Vec<ValueId>,
    /// Values of the whole graph that are its outputs, in order.
    pub(super) outputs: Vec<ValueId>,
}

/// Whether a node is named, by its operation or its own name.
pub(super) fn is_named(node: &Node, names: &[String]) -> bool {
    names.iter().any(|name| name == node.op.name() || *name == node.name)
}

/// The parts of a graph; `None` where none of its nodes is named.
pub(super) fn split(graph: &Graph, names: &[String]) -> Result<Option<Vec<GraphPart>>, Error> {
    if !graph.nodes().iter().any(|node| is_named(node, names)) {
        return Ok(None);
    }
    let levels = levels(graph, names);
    let last = levels.iter().copied().max().unwrap_or(0);
    let parts = (0..=last).map(|level| part(graph, &levels, level));
    let parts = parts.collect::<Result<Vec<_>, Error>>()?;
    Ok(Some(parts.into_iter().filter(|part| !part.outputs.is_empty()).collect()))
}

/// The level of each node.
fn levels(graph: &Graph, names: &[String]) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        let side = usize::from(is_named(node, names));
        let of_operand = |id: &ValueId| match &graph.values()[id.index()].def {
            Def::Node { node, .. } => levels.get(node.index()).copied(),
            _ => None,
        };
        let most = node.inputs.iter().filter_map(of_operand).max().unwrap_or(side);
        levels.push(if most % 2 == side { most } else { most + 1 });
    }
    levels
}

/// The nodes of a level as a graph.
fn part(graph: &Graph, levels: &[usize], level: usize) -> Result<GraphPart, Error> {
    let mut out = Graph::new(format!("{} part {level}", graph.name()));
    let mut known: HashMap<ValueId, ValueId> = HashMap::new();
    let mut inputs = Vec::new();
    for (node, _) in graph.nodes().iter().zip(levels).filter(|(_, of)| **of == level) {
        for id in &node.inputs {
            if !known.contains_key(id) {
                known.insert(*id, outside(graph, *id, &mut out, &mut inputs)?);
            }
        }
        let operands = node.inputs.iter().filter_map(|id| known.get(id).copied()).collect();
        let types = node.outputs.iter().map(|id| graph.ty(*id)).collect::<Result<Vec<_>, _>>()?;
        let results = out.add_typed(node.name.clone(), node.op.clone(), operands, types);
        known.extend(node.outputs.iter().copied().zip(results.iter().copied()));
    }
    // What others read, and inputs, weights and constants that are outputs of the whole graph, which the first part hands on.
    let level_of = |id: ValueId| match &graph.values()[id.index()].def {
        Def::Node { node, .. } => levels.get(node.index()).copied(),
        Def::Input { .. } | Def::Param { .. } | Def::Const(_) => Some(0),
    };
    let readers = graph.nodes().iter().zip(levels).filter(|(_, of)| **of != level);
    let from_nodes = |id: &ValueId| matches!(graph.values()[id.index()].def, Def::Node { .. });
    let read = readers.flat_map(|(node, _)| node.inputs.iter().copied()).filter(from_nodes);
    let read = read.chain(graph.outputs().iter().map(|output| output.value));
    let mut seen = HashSet::new();
    let outputs: Vec<ValueId> = read.filter(|id| level_of(*id) == Some(level) && seen.insert(*id)).collect();
    for id in &outputs {
        let value = match known.get(id) {
            Some(value) => *value,
            None => outside(graph, *id, &mut out, &mut inputs)?,
        };
        out.output(&format!("v{}", id.index()), value)?;
    }
    Ok(GraphPart { on_host: level % 2 == 1, graph: out, inputs, outputs })
}

/// A value that no node of the part computes, declared in it.
fn outside(graph: &Graph, id: ValueId, out: &mut Graph, inputs: &mut Vec<ValueId>) -> Result<ValueId, Error> {
    let value = graph.value(id)?;
    Ok(match &value.def {
        Def::Param { name } => out.param_of(name, value.ty)?,
        Def::Const(tensor) => out.constant(tensor.clone()),
        Def::Input { .. } | Def::Node { .. } => {
            inputs.push(id);
            out.input(&format!("v{}", id.index()), value.ty.dtype, value.ty.shape)?
        }
    })
}

#[cfg(test)]
mod tests {
    use olivine_ir::DType;

    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn parts_take_turns_and_hold_as_much_as_they_can() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 4])?;
        let w = g.param("w", DType::F32, [4, 4])?;
        let a = g.matmul(x, w)?;
        let b = g.softmax(a, -1)?;
        let other = g.relu(x)?;
        let c = g.add(b, other)?;
        let d = g.softmax(c, -1)?;
        for (name, value) in [("c", c), ("d", d), ("x", x), ("w", w)] {
            g.output(name, value)?;
        }
        let parts = split(&g, &names(&["softmax"]))?.unwrap_or_default();
        let shape = |part: &GraphPart| (part.on_host, part.graph.nodes().len(), part.outputs.len());
        let shapes: Vec<_> = parts.iter().map(shape).collect();
        // matmul and relu; softmax; add; softmax. The input and the weight are outputs of the first.
        assert_eq!(shapes, [(false, 2, 4), (true, 1, 1), (false, 1, 1), (true, 1, 1)]);
        parts.iter().try_for_each(|part| part.graph.verify())?;
        assert!(split(&g, &names(&["gather"]))?.is_none());
        let one = &g.nodes()[1].name.clone();
        assert_eq!(split(&g, &names(&[one]))?.map(|parts| parts.len()), Some(3), "by the node's name");
        Ok(())
    }
}
