//! Many cases as one graph: what holds of each alone must hold of all of them side by side.

use std::collections::HashMap;

use olivine_ir::{Def, Graph, ValueId};

use crate::case::{Case, Prepared};
use crate::check::{Backend, Outcome, compare, expected};

/// Cases in one graph, with their data.
pub struct Joined {
    /// The graph of all of them, and their data; names carry the case's number in front.
    pub all: Prepared,
    parts: Vec<(Case, Prepared)>,
}

impl Joined {
    /// Puts the cases side by side.
    pub fn new(cases: &[Case]) -> Result<Joined, String> {
        let mut graph = Graph::new("joined");
        let mut parts = Vec::with_capacity(cases.len());
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        for (number, case) in cases.iter().enumerate() {
            let part = case.prepare().map_err(|e| format!("{}: {e}", case.name))?;
            let named = |name: &str| format!("c{number}.{name}");
            append(&mut graph, &part.graph, named).map_err(|e| format!("{}: {e}", case.name))?;
            inputs.extend(part.inputs.iter().map(|(name, tensor)| (named(name), tensor.clone())));
            params.extend(part.params.iter().map(|(name, tensor)| (named(name), tensor.clone())));
            parts.push((case.clone(), part));
        }
        Ok(Joined { all: Prepared { graph, inputs, params }, parts })
    }

    /// Runs the graph once and judges every case's part of the results.
    pub fn check(&self, backend: &dyn Backend) -> Result<Vec<(String, Outcome)>, String> {
        let got = backend.run(&self.all.graph, &self.all.inputs, &self.all.params)?;
        let mut rest = got.as_slice();
        let mut outcomes = Vec::with_capacity(self.parts.len());
        for (case, part) in &self.parts {
            let (mine, others) = rest
                .split_at_checked(part.graph.outputs().len())
                .ok_or_else(|| format!("there are {} outputs, too few", got.len()))?;
            rest = others;
            let outcome = match expected(case, part) {
                Err(problem) => Outcome::Broken(problem),
                Ok((want, magnitudes)) => compare(case, &want, magnitudes.as_deref(), mine),
            };
            outcomes.push((case.name.clone(), outcome));
        }
        Ok(outcomes)
    }
}

/// Copies a graph behind what is there already.
fn append(to: &mut Graph, from: &Graph, named: impl Fn(&str) -> String) -> Result<(), String> {
    let mut moved: HashMap<ValueId, ValueId> = HashMap::new();
    let say = |e: olivine_ir::Error| e.to_string();
    for id in from.ids() {
        let value = from.value(id).map_err(say)?;
        let copy = match &value.def {
            Def::Input { name, .. } => {
                to.input_of(&named(name), value.ty, vec![None; value.ty.shape.rank()]).map_err(say)?
            }
            Def::Param { name } => to.param_of(&named(name), value.ty).map_err(say)?,
            Def::Const(tensor) => to.constant(tensor.clone()),
            // A node comes with the first of its results.
            Def::Node { node, result: 0 } => {
                let node = from.nodes().get(node.index()).ok_or("a value has no producer")?;
                let operands: Option<Vec<ValueId>> =
                    node.inputs.iter().map(|id| moved.get(id).copied()).collect();
                let operands = operands.ok_or("an operand comes after its use")?;
                let results = to.add_named(named(&node.name), node.op.clone(), &operands).map_err(say)?;
                moved.extend(node.outputs.iter().copied().zip(results));
                continue;
            }
            Def::Node { .. } => continue,
        };
        moved.insert(id, copy);
    }
    for output in from.outputs() {
        let value = moved.get(&output.value).copied().ok_or("an output has no value")?;
        to.output(&named(&output.name), value).map_err(say)?;
    }
    Ok(())
}
