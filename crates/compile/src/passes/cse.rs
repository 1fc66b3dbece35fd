//! Common subexpressions: equal operations on equal operands are computed once, equal constants are kept once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use olivine_ir::{Error, Graph, Op, Tensor, TensorType, ValueId};

use crate::{Options, Pass, rewrite};

/// Constants up to this size are compared by their bytes; larger ones only by sharing them.
const SMALL_CONSTANT: usize = 4096;

/// See the module.
pub(crate) struct Cse;

impl Pass for Cse {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let mut first = Firsts::new(graph);
        for node in 0..graph.nodes().len() {
            first.visit(node);
        }
        if first.of.iter().zip(graph.ids()).all(|(first, id)| *first == id) {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            for id in &node.inputs {
                let new = out.get(first.of[id.index()])?;
                out.bind(*id, new);
            }
            let mut repeated = false;
            for id in &node.outputs {
                let known = first.of[id.index()];
                if known != *id {
                    let new = out.get(known)?;
                    out.bind(*id, new);
                    repeated = true;
                }
            }
            Ok(repeated)
        })
    }
}

/// For every value the first that equals it.
struct Firsts<'g> {
    graph: &'g Graph,
    of: Vec<ValueId>,
    /// Nodes by operands and operation, without its attributes.
    nodes: HashMap<u64, Alike>,
}

/// Nodes that differ in their attributes alone, or are equal. A value may have any number of readers that do, so beyond
/// the first they are found by a hash of all that the operation shows.
enum Alike {
    One(usize),
    Many(HashMap<u64, Vec<usize>>),
}

impl<'g> Firsts<'g> {
    fn new(graph: &'g Graph) -> Self {
        let mut constants = Constants::default();
        let first = |id| graph.as_const(id).map_or(id, |tensor| constants.unify(tensor, id));
        let of = graph.ids().map(first).collect();
        Firsts { graph, of, nodes: HashMap::with_capacity(graph.nodes().len()) }
    }

    /// Looks for an earlier node that equals this one.
    fn visit(&mut self, index: usize) {
        let node = &self.graph.nodes()[index];
        let mut hasher = DefaultHasher::new();
        std::mem::discriminant(&node.op).hash(&mut hasher);
        node.inputs.iter().for_each(|id| self.of[id.index()].hash(&mut hasher));
        let known = match self.nodes.entry(hasher.finish()) {
            Entry::Vacant(entry) => {
                entry.insert(Alike::One(index));
                return;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if let Alike::One(other) = *known {
            *known = Alike::Many(HashMap::from([(hash_of(&self.graph.nodes()[other].op), vec![other])]));
        }
        let Alike::Many(by_attributes) = known else { return };
        let alike = by_attributes.entry(hash_of(&node.op)).or_default();
        let (graph, of) = (self.graph, &self.of);
        let equal = |other: &&usize| {
            let other = &graph.nodes()[**other];
            let first = |id: &ValueId| of[id.index()];
            other.inputs.iter().map(first).eq(node.inputs.iter().map(first)) && same(&other.op, &node.op)
        };
        match alike.iter().find(equal).copied() {
            Some(other) => {
                for (id, known) in node.outputs.iter().zip(&graph.nodes()[other].outputs) {
                    self.of[id.index()] = *known;
                }
            }
            None => alike.push(index),
        }
    }
}

/// Equal to the bit: `==` alone would take an attribute of −0.0 for one of 0.0.
fn same(a: &Op, b: &Op) -> bool {
    a == b && format!("{a:?}") == format!("{b:?}")
}

/// A hash of all that an operation shows.
fn hash_of(op: &Op) -> u64 {
    struct Written(DefaultHasher);
    impl std::fmt::Write for Written {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut written = Written(DefaultHasher::new());
    // Writing to a hasher does not fail.
    let _ = write!(written, "{op:?}");
    written.0.finish()
}

#[derive(Default)]
struct Constants {
    shared: HashMap<(usize, TensorType), ValueId>,
    small: HashMap<(Vec<u8>, TensorType), ValueId>,
}

impl Constants {
    /// The first constant that equals one.
    fn unify(&mut self, tensor: &Tensor, id: ValueId) -> ValueId {
        self.find(tensor).unwrap_or_else(|| {
            self.insert(tensor, id);
            id
        })
    }

    fn find(&self, tensor: &Tensor) -> Option<ValueId> {
        let shared = self.shared.get(&(address(tensor), tensor.ty()));
        shared.or_else(|| self.small.get(&(small_bytes(tensor)?, tensor.ty()))).copied()
    }

    fn insert(&mut self, tensor: &Tensor, value: ValueId) {
        self.shared.insert((address(tensor), tensor.ty()), value);
        if let Some(bytes) = small_bytes(tensor) {
            self.small.insert((bytes, tensor.ty()), value);
        }
    }
}

/// The address of the elements: the same for tensors that share them, and for empty ones.
fn address(tensor: &Tensor) -> usize {
    tensor.bytes().as_ptr().addr()
}

fn small_bytes(tensor: &Tensor) -> Option<Vec<u8>> {
    let bytes = tensor.bytes();
    (bytes.len() <= SMALL_CONSTANT).then(|| bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::DType;
    use olivine_ir::op::PadMode;

    fn run(g: &Graph) -> Result<Graph, Error> {
        Cse.run(g, &Options::default())
    }

    #[test]
    fn equal_chains_on_equal_constants_become_one() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2])?;
        let chain = |g: &mut Graph| {
            let two = g.constant(Tensor::scalar(2.0f32));
            let y = g.mul(x, two)?;
            g.exp(y)
        };
        let (a, b) = (chain(&mut g)?, chain(&mut g)?);
        let y = g.add(a, b)?;
        g.output("y", y)?;
        let out = run(&g)?;
        assert_eq!(out.nodes().len(), 3);
        assert_eq!(out.nodes()[2].inputs, vec![out.nodes()[1].outputs[0]; 2]);
        Ok(())
    }

    #[test]
    fn zeros_of_different_sign_stay_apart_as_constants_and_as_attributes() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2])?;
        for (i, zero) in [0.0, -0.0].into_iter().enumerate() {
            let c = g.constant(Tensor::scalar(zero as f32));
            let y = g.add(x, c)?;
            let z = g.pad(y, &[(1, 0)], PadMode::Constant, 1.0)?;
            let p = g.pad(x, &[(1, 0)], PadMode::Constant, zero)?;
            g.output(&format!("z{i}"), z)?;
            g.output(&format!("p{i}"), p)?;
        }
        assert_eq!(run(&g)?.nodes().len(), 6);
        Ok(())
    }

    #[test]
    fn large_constants_unify_when_they_share_their_elements() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [5000])?;
        let weight = Tensor::new([5000], vec![1.5f32; 5000])?;
        for (i, t) in [weight.clone(), weight].into_iter().enumerate() {
            let c = g.constant(t);
            let y = g.mul(x, c)?;
            g.output(&format!("y{i}"), y)?;
        }
        let out = run(&g)?;
        assert_eq!(out.nodes().len(), 1);
        assert_eq!(out.outputs()[0].value, out.outputs()[1].value);
        Ok(())
    }
}
