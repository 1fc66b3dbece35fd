//! Results of a few operations, for tests.

use olivine_cpu::evaluate;
use olivine_ir::{Def, Graph, Tensor, ValueId};

use super::integer::Built;

/// What operations make of tensors, one operation after another on the CPU.
pub(super) fn computed(
    inputs: &[Tensor],
    build: impl FnOnce(&mut Graph, &[ValueId]) -> Built,
) -> Result<Tensor, String> {
    let mut graph = Graph::new("computed");
    let mut ids = Vec::new();
    for (i, tensor) in inputs.iter().enumerate() {
        let id = graph.input(&i.to_string(), tensor.dtype(), tensor.shape()).map_err(|e| e.to_string())?;
        ids.push(id);
    }
    let result = build(&mut graph, &ids).map_err(|e| e.to_string())?;
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values().len()];
    for (id, value) in graph.ids().zip(graph.values()) {
        if let Def::Const(tensor) = &value.def {
            values[id.index()] = Some(tensor.clone());
        }
    }
    for (id, tensor) in ids.iter().zip(inputs) {
        values[id.index()] = Some(tensor.clone());
    }
    for node in graph.nodes() {
        let operands: Option<Vec<Tensor>> = node.inputs.iter().map(|id| values[id.index()].clone()).collect();
        let results = evaluate(&node.op, &operands.ok_or("an operand is missing")?);
        for (id, tensor) in node.outputs.iter().zip(results.map_err(|e| e.to_string())?) {
            values[id.index()] = Some(tensor);
        }
    }
    values[result.index()].clone().ok_or_else(|| "the result is missing".into())
}
