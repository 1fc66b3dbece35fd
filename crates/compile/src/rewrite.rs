//! Rebuilding a graph node by node: how every pass changes one.

use olivine_ir::{Def, Dim, Error, Graph, Node, NodeId, Op, Shape, Tensor, TensorType, ValueId};

/// Walks a graph in order and builds its successor; each old value maps to the new value that stands for it.
///
/// ```text
///   for node in old.nodes():  replace it (bind its results to new values)  or  copy it
/// ```
pub struct Rewriter<'a> {
    old: &'a Graph,
    /// The graph being built.
    pub new: Graph,
    map: Vec<Option<ValueId>>,
}

impl<'a> Rewriter<'a> {
    /// Copies inputs and params (all of them, so that a caller's names stay valid); constants come when first used.
    pub fn new(old: &'a Graph) -> Result<Self, Error> {
        Rewriter::with_capacities(old, |_| None)
    }

    /// As [`Rewriter::new`], with other sizes for an axis of some inputs.
    pub(crate) fn with_capacities(
        old: &'a Graph,
        capacity_of: impl Fn(ValueId) -> Option<(usize, Dim)>,
    ) -> Result<Self, Error> {
        let mut out = Rewriter { old, new: Graph::new(old.name()), map: vec![None; old.values().len()] };
        for id in old.ids() {
            let value = old.value(id)?;
            let new = match &value.def {
                Def::Input { name, dims } => {
                    let (mut shape, mut dims) = (value.ty.shape, dims.clone());
                    if let Some((axis, capacity)) = capacity_of(id) {
                        let mut sizes = shape.sizes();
                        sizes[axis] = capacity;
                        shape = Shape::of_sizes(&sizes)?;
                        dims[axis] = capacity.as_symbol().map(|symbol| symbol.name().to_string());
                    }
                    out.new.input_of(name, TensorType { shape, ..value.ty }, dims)?
                }
                Def::Param { name } => out.new.param_of(name, value.ty)?,
                Def::Const(_) | Def::Node { .. } => continue,
            };
            out.map[id.index()] = Some(new);
        }
        Ok(out)
    }

    /// The new value of an old one; its producer must have been copied or replaced.
    pub fn get(&mut self, id: ValueId) -> Result<ValueId, Error> {
        if let Some(new) = self.map[id.index()] {
            return Ok(new);
        }
        match self.old.as_const(id) {
            Some(tensor) => {
                let new = self.new.constant(Tensor::clone(tensor));
                self.map[id.index()] = Some(new);
                Ok(new)
            }
            None => Err(Error::Invalid {
                location: id.to_string(),
                problem: "a pass dropped the node that makes this value".into(),
            }),
        }
    }

    /// Declares that `new` stands for `old` from here on.
    pub fn bind(&mut self, old: ValueId, new: ValueId) {
        self.map[old.index()] = Some(new);
    }

    /// Copies a node as it is; new operands have the types of the old ones, and so have its results.
    pub fn copy(&mut self, node: &Node) -> Result<(), Error> {
        let inputs = node.inputs.iter().map(|id| self.get(*id)).collect::<Result<Vec<_>, _>>()?;
        let values = self.old.values();
        let types = node.outputs.iter().map(|id| values[id.index()].ty);
        let results = self.new.add_typed(node.name.clone(), node.op.clone(), inputs, types);
        for (old, new) in node.outputs.iter().zip(results) {
            self.map[old.index()] = Some(*new);
        }
        Ok(())
    }

    /// Puts another operation, on old operands, in a node's place; it must have as many results.
    pub fn replace(&mut self, node: &Node, op: Op, inputs: &[ValueId]) -> Result<(), Error> {
        let inputs = inputs.iter().map(|id| self.get(*id)).collect::<Result<Vec<_>, _>>()?;
        let results = self.new.add_named(node.name.clone(), op, &inputs)?;
        for (old, new) in node.outputs.iter().zip(results) {
            self.bind(*old, new);
        }
        Ok(())
    }

    /// Ends the walk: outputs follow their values.
    pub fn finish(self) -> Result<Graph, Error> {
        self.finish_with(|_| None)
    }

    /// As [`Rewriter::finish`], with other values for some outputs.
    pub(crate) fn finish_with(mut self, other: impl Fn(usize) -> Option<ValueId>) -> Result<Graph, Error> {
        for (i, output) in self.old.outputs().iter().enumerate() {
            let value = other(i).map_or_else(|| self.get(output.value), Ok)?;
            self.new.output(&output.name, value)?;
        }
        Ok(self.new)
    }
}

/// Rebuilds a graph, asking `visit` for each node; where it answers `false` the node is copied.
pub fn rewrite(
    graph: &Graph,
    mut visit: impl FnMut(&mut Rewriter<'_>, NodeId, &Node) -> Result<bool, Error>,
) -> Result<Graph, Error> {
    let mut out = Rewriter::new(graph)?;
    for (i, node) in graph.nodes().iter().enumerate() {
        out.new.set_scope_of(&node.name);
        if !visit(&mut out, NodeId(i as u32), node)? {
            out.copy(node)?;
        }
    }
    out.finish()
}
