//! Pack: a weight that a matmul would read across its rows is copied once, at load.
//!
//! Needs: views. Produces: right operands of matmul that are known at load become row-major, as the kernels want them.

use olivine_ir::op::{Fused, Region};
use olivine_ir::{Def, Error, Graph, Node, Op, ValueId};

use crate::{Options, Pass, at_load, rewrite};

/// See the module.
pub(crate) struct Pack;

impl Pass for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let loaded = at_load(graph);
        let is_packed = |node: &Node| {
            matches!(node.op, Op::MatMul(_)) && against_the_grain(graph, &loaded, node.inputs[1])
        };
        if !graph.nodes().iter().any(is_packed) {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            if !is_packed(node) {
                return Ok(false);
            }
            let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            let name = format!("{}/weight", node.name);
            let packed = out.new.add_named(name, Fused { region: Region::identity() }, &[inputs[1]])?[0];
            let operands: Vec<ValueId> = [inputs[0], packed].iter().chain(&inputs[2..]).copied().collect();
            let results = out.new.add_named(node.name.clone(), node.op.clone(), &operands)?;
            out.bind(node.outputs[0], results[0]);
            Ok(true)
        })
    }
}

/// Whether a value is a load-time view whose rows are not contiguous.
fn against_the_grain(graph: &Graph, loaded: &[bool], id: ValueId) -> bool {
    let Some(Def::Node { node, .. }) = graph.value(id).ok().map(|v| &v.def) else { return false };
    let Op::View(view) = &graph.nodes()[node.index()].op else { return false };
    let last = view.shape.rank().saturating_sub(1);
    loaded[node.index()] && view.shape.sizes().get(last).is_some_and(|d| *d > 1) && view.strides[last] != 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;
    use olivine_ir::DType;

    #[test]
    fn a_transposed_weight_is_packed_at_load_and_a_transposed_activation_is_not() {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [4, 8]).unwrap();
        let w = g.param("w", DType::F32, [16, 8]).unwrap();
        let y = g.matmul_nt(x, w).unwrap();
        let z = g.matmul_nt(y, y).unwrap();
        g.output("z", z).unwrap();
        let compiled = compile(&g, &Options::default()).unwrap();
        let copies: Vec<bool> = compiled
            .graph
            .nodes()
            .iter()
            .zip(&compiled.at_load)
            .filter(|(n, _)| matches!(n.op, Op::Fused(_)))
            .map(|(_, once)| *once)
            .collect();
        assert_eq!(copies, [true]);
    }
}
