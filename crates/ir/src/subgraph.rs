//! Graphs inside operations: the branches of an `if`, the body of a loop.

use std::fmt;
use std::sync::Arc;

use crate::attr::{Attr, AttrField, MapSize};
use crate::{Def, Error, Graph, Shape, TensorType};

/// Operations with graphs inside may stand inside each other this deep.
pub const MAX_NESTING: usize = 16;

/// A graph that is an attribute of an operation.
///
/// It was verified when this was made. It has no params and no sizes that a run may choose: whatever it needs from
/// outside reaches it through its inputs, in their order.
#[derive(Clone)]
pub struct SubGraph {
    graph: Arc<Graph>,
    depth: usize,
}

impl SubGraph {
    /// Verifies a graph and takes it as a part of an operation.
    pub fn new(graph: Graph) -> Result<Self, Error> {
        let invalid =
            |problem: String| Error::Invalid { location: format!("graph `{}`", graph.name()), problem };
        graph.verify().map_err(|e| invalid(e.to_string()))?;
        if let Some((name, _)) = graph.params().next() {
            return Err(invalid(format!("param `{name}`: a graph inside an operation has inputs alone")));
        }
        for value in graph.values() {
            if let Def::Input { name, dims } = &value.def
                && dims.iter().any(Option::is_some)
            {
                return Err(invalid(format!("input `{name}`: the sizes of an inner graph have no names")));
            }
        }
        let inner = graph.nodes().iter().flat_map(|n| n.op.bodies()).map(|b| b.depth).max().unwrap_or(0);
        if inner >= MAX_NESTING {
            return Err(invalid(format!("operations nest deeper than {MAX_NESTING}")));
        }
        Ok(SubGraph { graph: Arc::new(graph), depth: inner + 1 })
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many graphs stand inside each other here, this one included.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The inputs' types, in order.
    pub fn inputs(&self) -> Vec<TensorType> {
        self.graph.inputs().filter_map(|(_, id)| self.graph.ty(id).ok()).collect()
    }

    /// The outputs' types, in order.
    pub fn outputs(&self) -> Vec<TensorType> {
        self.graph.outputs().iter().filter_map(|o| self.graph.ty(o.value).ok()).collect()
    }

    /// The same graph for inputs of other types: every node's types are inferred anew.
    pub fn for_inputs(&self, types: &[TensorType]) -> Result<SubGraph, Error> {
        let inputs = self.inputs();
        if inputs.len() == types.len() && inputs.iter().zip(types).all(|(a, b)| is_same_type(a, b)) {
            return Ok(self.clone());
        }
        SubGraph::new(self.graph.with_input_types(types)?)
    }

    /// Has what is made of the graph hold for its sizes as they are now alone.
    #[track_caller]
    pub fn specialise(&self) {
        for value in self.graph.values() {
            let _ = value.ty.shape.dims();
        }
        for node in self.graph.nodes() {
            // A size without a value is an error wherever it is read.
            let _ = node.op.map_sizes(|size| {
                let _ = size.specialize_signed();
                Ok(size)
            });
            node.op.bodies().into_iter().for_each(SubGraph::specialise);
        }
    }

    /// Refuses inputs of other types than those given; `what` names the graph.
    pub(crate) fn takes(&self, what: &str, types: &[TensorType]) -> Result<(), String> {
        let inputs = self.inputs();
        if inputs.len() != types.len() {
            return Err(format!(
                "{what} has {} inputs, {} values are given to it",
                inputs.len(),
                types.len()
            ));
        }
        let differs = |i: &usize| inputs[*i] != types[*i];
        match (0..types.len()).find(differs) {
            None => Ok(()),
            Some(i) => Err(format!("input {i} of {what} is {}, given {}", inputs[i], types[i])),
        }
    }
}

/// Whether types are equal, with the same expressions and the same values of them; no question is asked.
fn is_same_type(a: &TensorType, b: &TensorType) -> bool {
    let sizes = |shape: Shape| shape.sizes();
    let values = |shape: Shape| shape.values();
    (a.dtype, a.packed) == (b.dtype, b.packed)
        && values(a.shape) == values(b.shape)
        && sizes(a.shape).iter().zip(sizes(b.shape).iter()).all(|(a, b)| a.structural() == b.structural())
}

impl PartialEq for SubGraph {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.graph, &other.graph) || self.graph == other.graph
    }
}

/// The text form, which shows every bit.
impl fmt::Debug for SubGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.graph)
    }
}

impl AttrField for SubGraph {
    fn write(&self) -> Attr {
        Attr::Graph(self.clone())
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::Graph(graph) => Ok(graph.clone()),
            _ => Err(format!("expected a graph, found `{attr}`")),
        }
    }
    fn same(&self, other: &Self) -> bool {
        self == other
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        *self = SubGraph::new(self.graph.with_sizes(size)?)?;
        Ok(())
    }
    fn has_open_sizes(&self) -> bool {
        self.graph.values().iter().any(|value| value.ty.shape.is_symbolic())
            || self.graph.nodes().iter().any(|node| node.op.has_open_sizes())
    }
}
