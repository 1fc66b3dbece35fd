//! What load-time values are, spelled out down to params and small constants: executables of one model share what is
//! packed from its params by it.

use std::hash::{DefaultHasher, Hash, Hasher};

use olivine_ir::{Def, Graph, ValueId};

/// Constants up to this many bytes are spelled by their content; what is made of larger ones is not shared.
const SPELLED_CONSTANT: usize = 256;

/// A longer text is replaced by its hash, so that a value's spelling is no longer than its node's, however many nodes
/// stand before it.
const LONGEST: usize = 256;

/// The spelling of every load-time value of a graph that has one.
#[derive(Debug, Default)]
pub struct Spelling {
    of: Vec<Option<String>>,
}

impl Spelling {
    /// Spells a graph's load-time values, as [`at_load`](crate::at_load) marks them.
    pub fn new(graph: &Graph, at_load: &[bool]) -> Self {
        let mut spelling = Spelling { of: vec![None; graph.values().len()] };
        for id in graph.ids() {
            let text = spelling.spell(graph, at_load, id);
            spelling.of[id.index()] = text.map(shortened);
        }
        spelling
    }

    /// How a value is spelled.
    pub fn get(&self, id: ValueId) -> Option<&str> {
        self.of.get(id.index())?.as_deref()
    }

    fn spell(&self, graph: &Graph, at_load: &[bool], id: ValueId) -> Option<String> {
        let value = &graph.values()[id.index()];
        match &value.def {
            Def::Input { .. } => None,
            Def::Param { name } => Some(format!("param {name:?}")),
            Def::Const(tensor) => {
                let bytes = tensor.bytes();
                (bytes.len() <= SPELLED_CONSTANT).then(|| format!("const {}{bytes:?}", value.ty))
            }
            Def::Node { node, result } => {
                let node =
                    at_load.get(node.index()).filter(|once| **once).and(graph.nodes().get(node.index()))?;
                let operands = node.inputs.iter().map(|id| self.get(*id)).collect::<Option<Vec<&str>>>()?;
                Some(format!("{}{}({}).{result}", node.op.name(), node.op.attrs(), operands.join(", ")))
            }
        }
    }
}

/// A text, or two hashes of it where it is long: 128 bits that are the same in every process.
fn shortened(text: String) -> String {
    if text.len() <= LONGEST {
        return text;
    }
    let hash = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        text.hash(&mut hasher);
        hasher.finish()
    };
    format!("#{:016x}{:016x}", hash(0), hash(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::{DType, Error};

    #[test]
    fn equal_expressions_are_spelled_alike_and_stay_short() -> Result<(), Error> {
        let build = |swapped: bool| {
            let mut g = Graph::new("g");
            let (a, b) = (g.param("a", DType::F32, [4])?, g.param("b", DType::F32, [4])?);
            let mut x = if swapped { g.sub(b, a)? } else { g.sub(a, b)? };
            // Spelled out in full this has 2¹⁰⁰⁰ leaves.
            for _ in 0..1000 {
                x = g.add(x, x)?;
            }
            g.output("x", x)?;
            let spelling = Spelling::new(&g, &crate::at_load(&g));
            Ok::<_, Error>(spelling.get(x).map(str::to_string))
        };
        let (one, again, other) = (build(false)?, build(false)?, build(true)?);
        assert!(one.as_ref().is_some_and(|text| text.len() <= LONGEST));
        assert_eq!(one, again);
        assert_ne!(one, other);
        Ok(())
    }
}
