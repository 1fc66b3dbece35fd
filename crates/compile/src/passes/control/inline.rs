//! A graph in the place of the node that it was inside of.

use olivine_ir::{Def, Error, Graph, SubGraph, ValueId};

/// Adds a body's nodes, named under `scope`, on the given values; the body's outputs come back.
pub(super) fn inline(
    g: &mut Graph,
    body: &SubGraph,
    inputs: &[ValueId],
    scope: &str,
) -> Result<Vec<ValueId>, Error> {
    let body = body.graph();
    let lost = |what: String| Error::Invalid { location: format!("graph `{}`", body.name()), problem: what };
    let mut given = inputs.iter();
    let mut map: Vec<Option<ValueId>> = vec![None; body.values().len()];
    for (id, value) in body.ids().zip(body.values()) {
        map[id.index()] = match &value.def {
            Def::Input { name, .. } => {
                Some(*given.next().ok_or_else(|| lost(format!("nothing is given to `{name}`")))?)
            }
            Def::Const(tensor) => Some(g.constant(tensor.clone())),
            Def::Param { .. } | Def::Node { .. } => None,
        };
    }
    let at = |map: &[Option<ValueId>], id: ValueId| {
        map.get(id.index()).copied().flatten().ok_or_else(|| lost(format!("{id} is not defined")))
    };
    for node in body.nodes() {
        let operands = node.inputs.iter().map(|id| at(&map, *id)).collect::<Result<Vec<_>, _>>()?;
        let results = g.add_named(format!("{scope}/{}", node.name), node.op.clone(), &operands)?;
        for (old, new) in node.outputs.iter().zip(results) {
            map[old.index()] = Some(new);
        }
    }
    body.outputs().iter().map(|o| at(&map, o.value)).collect()
}
