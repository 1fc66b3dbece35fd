//! The verifier: every rule of the IR, checked again on a finished graph.

use std::collections::{HashMap, HashSet};

use crate::graph::{Def, Node, NodeId, Value, ValueId, packed_input};
use crate::{Dim, Error, Graph, TensorType};

impl Graph {
    /// Checks the whole graph; passes call it after every rewrite.
    ///
    /// It holds of a verified graph that every id is in range and every use comes after its definition; that values
    /// are numbered in the order of the nodes that make them; that recorded types are the inferred ones; that
    /// constants have the type of their value and no constant index is out of range; that names of inputs, of params
    /// and of outputs are distinct; and that axes with one name have one size.
    pub fn verify(&self) -> Result<(), Error> {
        self.verify_values()?;
        self.verify_nodes()?;
        let mut names = HashSet::new();
        for output in self.outputs() {
            distinct(&mut names, "output", &output.name)?;
            if output.value.index() >= self.values().len() {
                return invalid(
                    format!("output `{}`", output.name),
                    format!("{} does not exist", output.value),
                );
            }
        }
        Ok(())
    }

    fn verify_values(&self) -> Result<(), Error> {
        let (mut inputs, mut params) = (HashSet::new(), HashSet::new());
        let mut sizes = HashMap::new();
        for (id, value) in self.ids().zip(self.values()) {
            if let Some(format) = value.ty.packed
                && TensorType::packed(format, value.ty.elements()) != Ok(value.ty)
            {
                return invalid(value_name(id), format!("{} is no tensor of whole blocks", value.ty));
            }
            match &value.def {
                Def::Input { name, dims } => {
                    distinct(&mut inputs, "input", name)?;
                    input_dims(name, dims, value, &mut sizes)?;
                }
                Def::Param { name } => distinct(&mut params, "param", name)?,
                Def::Const(tensor) if tensor.ty() != value.ty => {
                    return invalid(
                        value_name(id),
                        format!("the constant is {}, the value {}", tensor.ty(), value.ty),
                    );
                }
                Def::Const(_) => {}
                Def::Node { node, result } => {
                    let Some(maker) = self.nodes().get(node.index()) else {
                        return invalid(value_name(id), format!("its node {} does not exist", node.0));
                    };
                    if maker.outputs.get(*result) != Some(&id) {
                        let problem = format!("it is not result {result} of {}", described(maker));
                        return invalid(value_name(id), problem);
                    }
                }
            }
        }
        Ok(())
    }

    fn verify_nodes(&self) -> Result<(), Error> {
        // Results of all nodes so far lie below this, so an operand below a node's first result is defined.
        let mut next = 0;
        for (index, node) in self.nodes().iter().enumerate() {
            let Some(first) = node.outputs.first().copied() else {
                return invalid(described(node), "it has no results".into());
            };
            if first.index() < next {
                return invalid(
                    described(node),
                    format!("its result {} stands before an earlier node's", value_name(first)),
                );
            }
            for (result, id) in node.outputs.iter().enumerate() {
                if id.index() != first.index() + result {
                    return invalid(described(node), "its results are not numbered one after another".into());
                }
                let made = Def::Node { node: NodeId(index as u32), result };
                if self.value(*id)?.def != made {
                    return invalid(
                        described(node),
                        format!("its result {} is defined elsewhere", value_name(*id)),
                    );
                }
            }
            next = first.index() + node.outputs.len();
            for id in &node.inputs {
                if id.index() >= first.index() {
                    return invalid(
                        described(node),
                        format!("{} is used before it is defined", value_name(*id)),
                    );
                }
            }
            self.verify_types(node)?;
        }
        Ok(())
    }

    fn verify_types(&self, node: &Node) -> Result<(), Error> {
        let inferred = self.check(&node.name, &node.op, &node.inputs)?;
        if inferred.len() != node.outputs.len() {
            let problem = format!("it gives {} results, {} are recorded", inferred.len(), node.outputs.len());
            return invalid(described(node), problem);
        }
        for (id, inferred) in node.outputs.iter().zip(inferred) {
            let recorded = self.ty(*id)?;
            if recorded != inferred {
                let problem = format!("{} is recorded as {recorded}, but is {inferred}", value_name(*id));
                return invalid(described(node), problem);
            }
        }
        Ok(())
    }
}

fn invalid<T>(location: String, problem: String) -> Result<T, Error> {
    Err(Error::Invalid { location, problem })
}

fn value_name(id: ValueId) -> String {
    id.to_string()
}

fn described(node: &Node) -> String {
    format!("{} `{}`", node.op.name(), node.name)
}

fn distinct<'a>(seen: &mut HashSet<&'a str>, kind: &'static str, name: &'a str) -> Result<(), Error> {
    if seen.insert(name) { Ok(()) } else { Err(Error::Duplicate { kind, name: name.into() }) }
}

/// One name or none per axis, and one size per name over all inputs.
fn input_dims<'a>(
    name: &str,
    dims: &'a [Option<String>],
    value: &Value,
    sizes: &mut HashMap<&'a str, Dim>,
) -> Result<(), Error> {
    let location = format!("input `{name}`");
    if dims.len() != value.ty.shape.rank() {
        return invalid(location, format!("{} axis names for {}", dims.len(), value.ty));
    }
    if let Err(problem) = packed_input(value.ty, dims) {
        return invalid(location, problem);
    }
    for (dim, size) in dims.iter().zip(value.ty.shape.sizes().iter()) {
        let Some(dim) = dim else { continue };
        let known = *sizes.entry(dim).or_insert(*size);
        if known.structural() != size.structural() && known != *size {
            return invalid(location, format!("size `{dim}` is {size} here and {known} elsewhere"));
        }
    }
    Ok(())
}
