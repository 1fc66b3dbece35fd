//! Dead code: nodes and constants that no output depends on go away. Inputs and params stay, as the caller names them.

use olivine_ir::{Def, Error, Graph, Value};

use crate::{Options, Pass, rewrite};

/// See the module.
pub(crate) struct Dce;

impl Pass for Dce {
    fn name(&self) -> &'static str {
        "dce"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let mut live = vec![false; graph.values().len()];
        for output in graph.outputs() {
            live[output.value.index()] = true;
        }
        for node in graph.nodes().iter().rev() {
            if node.outputs.iter().any(|id| live[id.index()]) {
                for id in &node.inputs {
                    live[id.index()] = true;
                }
            }
        }
        let unread = |v: &Value, live: bool| !live && matches!(v.def, Def::Const(_) | Def::Node { .. });
        if !graph.values().iter().zip(&live).any(|(value, live)| unread(value, *live)) {
            return Ok(graph.clone());
        }
        // Answering `true` without binding the results drops the node; constants are copied when first used.
        rewrite(graph, |_, _, node| Ok(!node.outputs.iter().any(|id| live[id.index()])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::{DType, Tensor};

    #[test]
    fn unread_nodes_and_constants_go_and_inputs_stay() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2])?;
        g.input("unused", DType::F32, [2])?;
        g.constant(Tensor::scalar(1.0f32));
        let dead = g.exp(x)?;
        g.neg(dead)?;
        let parts = g.split(x, 0, &[1, 1])?;
        g.output("y", parts[1])?;
        let out = Dce.run(&g, &Options::default())?;
        assert_eq!(out.nodes().len(), 1);
        assert_eq!(out.values().len(), 4);
        assert_eq!(out.inputs().count(), 2);
        Ok(())
    }
}
