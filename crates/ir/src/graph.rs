//! The graph: values, the nodes that make them, and the builder.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::attr::MapSize;
use crate::error::nearest;
use crate::id::Identity;
pub(crate) use crate::id::{NodeId, ValueId};
use crate::op::{KvAppend, Op};
use crate::shape::IntoShape;
use crate::size::{Bindings, Symbol};
use crate::{DType, Dim, Error, Shape, Tensor, TensorType};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Def {
    /// Given at every run.
    Input {
        /// The caller's name for it.
        name: String,
        /// For each axis, the name of its size where a run may choose it; see [`Graph::specialise`].
        dims: Vec<Option<String>>,
    },
    /// Given once, before the first run: a weight.
    Param {
        /// The caller's name for it.
        name: String,
    },
    /// Known now; clones of the graph share it.
    Const(Tensor),
    /// A result of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its results.
        result: usize,
    },
}

/// A value: its type and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Element type and shape.
    pub ty: TensorType,
    /// Where it comes from.
    pub def: Def,
}

/// One operation applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// A name for messages and profiles; need not be unique.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results, in the operation's order.
    pub outputs: Vec<ValueId>,
}

/// A named result of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The caller's name for it.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A typed graph of tensor operations; nodes stand in an order in which they can run.
///
/// Values are numbered in the order they are made, a node's results one after another. A clone shares the contents until
/// either is changed, so a pass that changes nothing costs nothing.
///
/// ```
/// use olivine_ir::{DType, Graph};
/// let mut g = Graph::new("twice");
/// let x = g.input("x", DType::F32, [2, 3])?;
/// let y = g.add(x, x)?;
/// g.output("y", y)?;
/// assert_eq!(g.ty(y)?.to_string(), "f32[2, 3]");
/// # Ok::<(), olivine_ir::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    name: String,
    identity: Identity,
    values: Arc<Vec<Value>>,
    nodes: Arc<Vec<Node>>,
    outputs: Arc<Vec<Output>>,
    scope: Vec<String>,
    inputs: Arc<Declared>,
    params: Arc<Declared>,
    output_names: Arc<HashSet<String>>,
    /// What the inputs' named axes have for sizes.
    sizes: HashMap<String, usize>,
}

/// Inputs or params in order, and found by name without a scan.
#[derive(Clone, Debug, Default)]
struct Declared {
    order: Vec<ValueId>,
    by_name: HashMap<String, ValueId>,
}

impl Declared {
    fn push(&mut self, name: &str, id: ValueId) {
        self.order.push(id);
        self.by_name.entry(name.to_string()).or_insert(id);
    }
}

/// Equal names, values, nodes and outputs; the scope that the builder is in does not count.
impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.outputs == other.outputs
            && self.nodes == other.nodes
            && self.values == other.values
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph { name: name.into(), identity: Identity::new(), ..Graph::default() }
    }

    /// Puts a graph together from its parts, which may be anything: nothing holds of it until [`Graph::verify`] agrees.
    pub fn from_parts(
        name: impl Into<String>,
        values: Vec<Value>,
        nodes: Vec<Node>,
        outputs: Vec<Output>,
    ) -> Self {
        let mut graph = Graph { name: name.into(), nodes: Arc::new(nodes), ..Graph::default() };
        for value in values {
            graph.push_value(value.ty, value.def);
        }
        graph.set_outputs(outputs);
        graph
    }

    /// Whether two graphs share their contents: one is a clone of the other, and neither was changed since.
    pub fn shares_with(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.nodes, &other.nodes)
            && Arc::ptr_eq(&self.values, &other.values)
            && Arc::ptr_eq(&self.outputs, &other.outputs)
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All values, in the order they were made.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// All nodes, in an order in which they can run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The named results.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Inputs in declaration order: name, value.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.declared(&self.inputs)
    }

    /// Params in declaration order: name, value.
    pub fn params(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.declared(&self.params)
    }

    /// The input of a name.
    pub fn input_named(&self, name: &str) -> Option<ValueId> {
        self.inputs.by_name.get(name).copied()
    }

    /// The param of a name.
    pub fn param_named(&self, name: &str) -> Option<ValueId> {
        self.params.by_name.get(name).copied()
    }

    fn declared<'a>(&'a self, list: &'a Declared) -> impl Iterator<Item = (&'a str, ValueId)> {
        list.order.iter().filter_map(|id| match &self.values.get(id.index())?.def {
            Def::Input { name, .. } | Def::Param { name } => Some((name.as_str(), *id)),
            _ => None,
        })
    }

    /// The ids of all values.
    pub fn ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        let graph = self.identity;
        (0..self.values.len() as u32).map(move |number| ValueId { number, graph })
    }

    /// One value, or an error if the id belongs to another graph.
    pub fn value(&self, id: ValueId) -> Result<&Value, Error> {
        if !self.identity.takes(id.graph) {
            let problem = format!("the value belongs to another graph than `{}`", self.name);
            return Err(Error::Invalid { location: id.to_string(), problem });
        }
        self.values.get(id.index()).ok_or_else(|| Error::Invalid {
            location: id.to_string(),
            problem: format!("no such value; the graph has {}", self.values.len()),
        })
    }

    /// A value's type.
    pub fn ty(&self, id: ValueId) -> Result<TensorType, Error> {
        self.value(id).map(|v| v.ty)
    }

    /// A value's constant elements, if it is one.
    pub fn as_const(&self, id: ValueId) -> Option<&Tensor> {
        match &self.value(id).ok()?.def {
            Def::Const(t) => Some(t),
            _ => None,
        }
    }

    /// The node that makes a value, if one does.
    pub fn producer(&self, id: ValueId) -> Option<&Node> {
        match self.value(id).ok()?.def {
            Def::Node { node, .. } => self.nodes.get(node.index()),
            _ => None,
        }
    }

    /// Declares an input with fixed sizes.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl IntoShape) -> Result<ValueId, Error> {
        let shape = shape.into_shape()?;
        self.input_with_dims(name, dtype, shape, vec![None; shape.rank()])
    }

    /// Declares an input some of whose sizes a run may choose: `dims` names those axes.
    ///
    /// The given shape is what the graph is built and checked with; [`Graph::specialise`] makes it for other sizes.
    pub fn input_with_dims(
        &mut self,
        name: &str,
        dtype: DType,
        shape: impl IntoShape,
        dims: Vec<Option<String>>,
    ) -> Result<ValueId, Error> {
        self.input_of(name, TensorType::new(dtype, shape.into_shape()?), dims)
    }

    /// The same of any type, such as a packed key-value cache, whose last size has no name.
    pub fn input_of(
        &mut self,
        name: &str,
        ty: TensorType,
        dims: Vec<Option<String>>,
    ) -> Result<ValueId, Error> {
        let shape = ty.shape;
        let invalid = |problem| Error::Invalid { location: format!("input `{name}`"), problem };
        if dims.len() != shape.rank() {
            return Err(invalid(format!("{} axis names for rank {}", dims.len(), shape.rank())));
        }
        packed_input(ty, &dims).map_err(invalid)?;
        if self.inputs.by_name.contains_key(name) {
            return Err(Error::Duplicate { kind: "input", name: name.into() });
        }
        let sizes = shape.values();
        for (dim, size) in
            dims.iter().zip(sizes.iter()).filter_map(|(dim, size)| Some((dim.as_ref()?, *size)))
        {
            let own = dims.iter().zip(sizes.iter()).find(|(d, s)| d.as_ref() == Some(dim) && **s != size);
            if let Some(known) =
                own.map(|(_, s)| *s).or_else(|| self.sizes.get(dim.as_str()).copied()).filter(|s| *s != size)
            {
                return Err(Error::Invalid {
                    location: format!("input `{name}`"),
                    problem: format!("size `{dim}` is {size} here and {known} elsewhere"),
                });
            }
        }
        let def = Def::Input { name: name.into(), dims };
        Ok(self.push_value(ty, def))
    }

    /// Declares a param: a weight given once, before the first run.
    pub fn param(&mut self, name: &str, dtype: DType, shape: impl IntoShape) -> Result<ValueId, Error> {
        self.param_of(name, TensorType::new(dtype, shape.into_shape()?))
    }

    /// Declares a param of any type, such as a packed one.
    pub fn param_of(&mut self, name: &str, ty: TensorType) -> Result<ValueId, Error> {
        if self.params.by_name.contains_key(name) {
            return Err(Error::Duplicate { kind: "param", name: name.into() });
        }
        Ok(self.push_value(ty, Def::Param { name: name.into() }))
    }

    /// A constant; its elements are shared, not copied.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.push_value(tensor.ty(), Def::Const(tensor))
    }

    /// Names a value as a result of the graph.
    pub fn output(&mut self, name: &str, value: ValueId) -> Result<(), Error> {
        self.value(value)?;
        if !Arc::make_mut(&mut self.output_names).insert(name.into()) {
            return Err(Error::Duplicate { kind: "output", name: name.into() });
        }
        Arc::make_mut(&mut self.outputs).push(Output { name: name.into(), value });
        Ok(())
    }

    /// Names of nodes added from here on begin with the scope of another node's name: what stands before its last `/`.
    pub fn set_scope_of(&mut self, name: &str) {
        let scope = name.rsplit_once('/').map(|(scope, _)| scope);
        // Most nodes stand in the scope of the one before.
        if !self.scope.iter().map(String::as_str).eq(scope) {
            self.scope.clear();
            self.scope.extend(scope.map(str::to_string));
        }
    }

    /// Names of nodes added inside `body` begin with `scope/`.
    pub fn scoped<R>(&mut self, scope: &str, body: impl FnOnce(&mut Graph) -> R) -> R {
        self.scope.push(scope.to_string());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Adds an operation; its results' types are inferred, or the error names op, node and operands.
    pub fn add_op(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<Vec<ValueId>, Error> {
        let op = op.into();
        let name = format!("{}{}_{}", self.scope_prefix(), op.name(), self.nodes.len());
        self.add_named(name, op, inputs)
    }

    /// Adds an operation under a full name of the caller's.
    pub fn add_named(
        &mut self,
        name: impl Into<String>,
        op: impl Into<Op>,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>, Error> {
        let (name, op) = (name.into(), op.into());
        let results = self.check(&name, &op, inputs)?;
        Ok(self.add_typed(name, op, inputs.to_vec(), results).to_vec())
    }

    /// Adds an operation whose results' types are known, as of a node of another graph on operands of the same types;
    /// they are not inferred again.
    pub fn add_typed(
        &mut self,
        name: String,
        op: Op,
        inputs: Vec<ValueId>,
        results: impl IntoIterator<Item = TensorType>,
    ) -> &[ValueId] {
        let node = NodeId(self.nodes.len() as u32);
        let outputs = results
            .into_iter()
            .enumerate()
            .map(|(result, ty)| self.push_value(ty, Def::Node { node, result }))
            .collect::<Vec<_>>();
        let nodes = Arc::make_mut(&mut self.nodes);
        nodes.push(Node { name, op, inputs, outputs });
        nodes.last().map_or(&[], |node| &node.outputs)
    }

    /// Adds an operation that has one result.
    pub fn add1(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, Error> {
        let op = op.into();
        let name = op.name();
        self.add_op(op, inputs)?.first().copied().ok_or_else(|| Error::Invalid {
            location: format!("{name}_{}", self.nodes.len() - 1),
            problem: "the operation has no result".into(),
        })
    }

    /// Infers what `op` on `inputs` would give, without adding it.
    pub fn check(&self, name: &str, op: &Op, inputs: &[ValueId]) -> Result<Vec<TensorType>, Error> {
        let operands = inputs.iter().map(|id| self.ty(*id)).collect::<Result<Vec<_>, _>>()?;
        let fail = |problem| Error::Op {
            op: op.name().into(),
            node: name.into(),
            problem,
            operands: operands.clone(),
        };
        let results = op.infer(&operands).map_err(fail)?;
        let constants: Vec<Option<&Tensor>> = inputs.iter().map(|id| self.as_const(*id)).collect();
        op.check_constants(&operands, &constants).map_err(fail)?;
        Ok(results)
    }

    /// How many times each value is read, by nodes and as a result of the graph.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        for id in self.nodes.iter().flat_map(|n| &n.inputs).chain(self.outputs.iter().map(|o| &o.value)) {
            if let Some(count) = counts.get_mut(id.index()) {
                *count += 1;
            }
        }
        counts
    }

    /// The same graph for other input shapes: every node's shape is inferred anew.
    ///
    /// `shapes` maps input names to shapes; inputs not named keep theirs. Only axes that the input declares as
    /// free may differ, and axes that share a name must agree.
    pub fn specialise(&self, shapes: &[(&str, Shape)]) -> Result<Graph, Error> {
        let mut given: HashMap<&str, Shape> = HashMap::new();
        for (name, shape) in shapes {
            given.entry(name).or_insert(*shape);
        }
        self.check_specialisation(&given)?;
        self.for_shapes(|name, _, declared| Ok(given.get(name).copied().unwrap_or(declared)))
    }

    /// As [`Graph::specialise`], with the sizes that inputs name as symbols: each has the size given here and stands for
    /// any other, within what is asked about it while the graph is built and compiled ([`size::guards`](crate::size::guards)).
    ///
    /// A size of 0 is a plain number, so that a symbol is at least 1.
    pub fn specialise_symbolic(&self, shapes: &[(&str, Shape)]) -> Result<Graph, Error> {
        let mut given: HashMap<&str, Shape> = HashMap::new();
        for (name, shape) in shapes {
            given.entry(name).or_insert(*shape);
        }
        self.check_specialisation(&given)?;
        self.for_shapes(|name, dims, declared| {
            let shape = given.get(name).copied().unwrap_or(declared);
            let mut sizes = shape.sizes();
            for (size, name) in sizes.iter_mut().zip(dims) {
                if let (Some(name), Some(value @ 1..)) = (name, size.as_constant()) {
                    *size = open_size(name, value)?;
                }
            }
            Shape::of_sizes(&sizes)
        })
    }

    /// The same graph with input shapes by name, named axes and declared shape.
    fn for_shapes(
        &self,
        shape_of: impl Fn(&str, &[Option<String>], Shape) -> Result<Shape, Error>,
    ) -> Result<Graph, Error> {
        let mut out = Graph { name: self.name.clone(), ..Graph::default() };
        let mut sizes = Bindings::new();
        let mut zeros: Vec<&str> = Vec::new();
        // Whether a name stands for a plain number here.
        let mut is_fixed = false;
        let problem = |e: crate::size::Error| Error::BadData { problem: e.to_string() };
        for value in self.values.iter() {
            match &value.def {
                Def::Input { name, dims } => {
                    let shape = shape_of(name, dims, value.ty.shape)?;
                    for (axis, size) in shape.sizes().iter().enumerate() {
                        let named = dims.get(axis).and_then(Option::as_deref);
                        let Ok(value) = size.value() else { continue };
                        if let Some(symbol) = size.as_symbol() {
                            sizes.bind(symbol, value).map_err(problem)?;
                        } else if let Some(symbol) = named.and_then(|name| open_symbol(name).ok()) {
                            is_fixed = true;
                            // Expressions are not for sizes of 0: their symbols are at least 1.
                            match value {
                                0 => zeros.push(symbol.name()),
                                _ => sizes.bind(symbol, value).map_err(problem)?,
                            }
                        }
                    }
                    out.push_value(TensorType { shape, ..value.ty }, value.def.clone());
                }
                Def::Param { .. } | Def::Const(_) => {
                    out.push_value(value.ty, value.def.clone());
                }
                Def::Node { node, result: 0 } => {
                    let Some(n) = self.nodes.get(node.index()) else { continue };
                    if n.op.has_open_sizes() {
                        // Expressions have the values that they had when the graph was built.
                        let now = |size: Dim| {
                            let size = size.rebound(&sizes)?;
                            if is_fixed { size.specialize_signed().map(Dim::constant) } else { Ok(size) }
                        };
                        let op = n.op.map_sizes(|size| now(size).map_err(problem))?;
                        out.add_again(&Node { op, ..n.clone() })
                    } else {
                        out.add_again(n)
                    }
                    .map_err(|e| if is_fixed { with_sizes(e, &sizes, &zeros) } else { e })?;
                }
                Def::Node { .. } => {}
            }
        }
        out.set_outputs(self.outputs.to_vec());
        Ok(out)
    }

    /// Adds a node of another graph with the same numbering, for operands that may have other types here.
    fn add_again(&mut self, node: &Node) -> Result<(), Error> {
        let op = if node.op.bodies().is_empty() {
            node.op.clone()
        } else {
            let operands = node.inputs.iter().map(|id| self.ty(*id)).collect::<Result<Vec<_>, _>>()?;
            node.op.for_operands(&operands)?
        };
        self.add_named(node.name.clone(), op, &node.inputs).map(drop)
    }

    /// The same graph with inputs of other types, in order: every node's types are inferred anew.
    pub(crate) fn with_input_types(&self, types: &[TensorType]) -> Result<Graph, Error> {
        let mut types = types.iter();
        let mut out = Graph { name: self.name.clone(), ..Graph::default() };
        for value in self.values.iter() {
            match &value.def {
                Def::Input { name, .. } => {
                    let ty = types.next().copied().unwrap_or(value.ty);
                    out.input_of(name, ty, vec![None; ty.shape.rank()])?;
                }
                Def::Param { .. } | Def::Const(_) => {
                    out.push_value(value.ty, value.def.clone());
                }
                Def::Node { node, result: 0 } => {
                    if let Some(n) = self.nodes.get(node.index()) {
                        out.add_again(n)?;
                    }
                }
                Def::Node { .. } => {}
            }
        }
        out.set_outputs(self.outputs.to_vec());
        Ok(out)
    }

    /// The same graph with other sizes in the types of its inputs and in its operations' attributes: every node's types are
    /// inferred anew.
    pub(crate) fn with_sizes(&self, size: &mut MapSize<'_>) -> Result<Graph, Error> {
        let mut out = Graph { name: self.name.clone(), ..Graph::default() };
        for value in self.values.iter() {
            match &value.def {
                Def::Input { name, .. } => {
                    let mut sizes = value.ty.shape.sizes();
                    for dim in sizes.iter_mut() {
                        *dim = size(*dim)?;
                    }
                    let ty = TensorType { shape: Shape::of_sizes(&sizes)?, ..value.ty };
                    out.input_of(name, ty, vec![None; ty.shape.rank()])?;
                }
                Def::Param { .. } | Def::Const(_) => {
                    out.push_value(value.ty, value.def.clone());
                }
                Def::Node { node, result: 0 } => {
                    if let Some(n) = self.nodes.get(node.index()) {
                        out.add_again(&Node { op: n.op.map_sizes(&mut *size)?, ..n.clone() })?;
                    }
                }
                Def::Node { .. } => {}
            }
        }
        out.set_outputs(self.outputs.to_vec());
        Ok(out)
    }

    /// The free dims' sizes must be given consistently and fixed axes must stay.
    fn check_specialisation(&self, shapes: &HashMap<&str, Shape>) -> Result<(), Error> {
        let mut sizes: HashMap<&str, usize> = HashMap::new();
        for name in shapes.keys() {
            if !self.inputs.by_name.contains_key(*name) {
                let nearest = nearest(name, self.inputs().map(|(n, _)| n));
                return Err(Error::Unknown { kind: "input", name: name.to_string(), nearest });
            }
        }
        for value in self.values.iter() {
            let Def::Input { name, dims } = &value.def else { continue };
            let declared = value.ty.shape.values();
            let shape = shapes.get(name.as_str()).copied().unwrap_or(declared).values();
            let wrong = |problem| Err(Error::Invalid { location: format!("input `{name}`"), problem });
            if shape.rank() != dims.len() {
                return wrong(format!("expected rank {}, got shape {shape}", dims.len()));
            }
            for (axis, dim) in dims.iter().enumerate() {
                let size = shape[axis];
                match dim {
                    None if Some(&size) != declared.get(axis) => {
                        return wrong(format!("expected shape {declared}, got {shape}"));
                    }
                    None => {}
                    Some(dim) => {
                        let known = *sizes.entry(dim).or_insert(size);
                        if known != size {
                            return wrong(format!("size `{dim}` is {size} here and {known} elsewhere"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The value behind an output's name.
    pub fn output_named(&self, name: &str) -> Result<ValueId, Error> {
        self.outputs.iter().find(|o| o.name == name).map(|o| o.value).ok_or_else(|| Error::Unknown {
            kind: "output",
            name: name.into(),
            nearest: nearest(name, self.outputs.iter().map(|o| o.name.as_str())),
        })
    }

    fn push_value(&mut self, ty: TensorType, def: Def) -> ValueId {
        let id = ValueId { number: self.values.len() as u32, graph: self.identity };
        match &def {
            Def::Input { name, dims } => {
                Arc::make_mut(&mut self.inputs).push(name, id);
                for (dim, size) in dims.iter().zip(ty.shape.values().iter()) {
                    if let Some(dim) = dim {
                        self.sizes.entry(dim.clone()).or_insert(*size);
                    }
                }
            }
            Def::Param { name } => Arc::make_mut(&mut self.params).push(name, id),
            Def::Const(_) | Def::Node { .. } => {}
        }
        Arc::make_mut(&mut self.values).push(Value { ty, def });
        id
    }

    /// Drops all outputs but those that `keep` takes by name.
    pub fn retain_outputs(&mut self, keep: impl Fn(&str) -> bool) {
        let kept = self.outputs.iter().filter(|output| keep(&output.name)).cloned().collect();
        self.set_outputs(kept);
    }

    fn set_outputs(&mut self, outputs: Vec<Output>) {
        self.output_names = Arc::new(outputs.iter().map(|o| o.name.clone()).collect());
        self.outputs = Arc::new(outputs);
    }

    fn scope_prefix(&self) -> String {
        self.scope.iter().map(|s| format!("{s}/")).collect()
    }

    /// An axis of a value, counted from the back when negative.
    pub(crate) fn axis_of(&self, op: &str, x: ValueId, axis: isize) -> Result<usize, Error> {
        let ty = self.ty(x)?;
        ty.shape.axis(axis).ok_or_else(|| Error::Op {
            op: op.into(),
            node: format!("{}{op}_{}", self.scope_prefix(), self.nodes.len()),
            problem: format!("axis {axis} is outside rank {}", ty.shape.rank()),
            operands: vec![ty],
        })
    }

    /// Several axes, as [`Graph::axis_of`].
    pub(crate) fn axes_of(&self, op: &str, x: ValueId, axes: &[isize]) -> Result<Vec<usize>, Error> {
        axes.iter().map(|a| self.axis_of(op, x, *a)).collect()
    }
}

/// A refusal of operands with the named sizes that it is for.
fn with_sizes(error: Error, sizes: &Bindings, zeros: &[&str]) -> Error {
    match error {
        Error::Op { op, node, problem, operands } => {
            let mut all: Vec<String> = zeros.iter().map(|name| format!("{name} = 0")).collect();
            all.sort();
            all.dedup();
            all.extend((sizes.iter().next().is_some()).then(|| sizes.to_string()));
            Error::Op { op, node, problem: format!("{problem} ({})", all.join(", ")), operands }
        }
        other => other,
    }
}

/// What an open size may be: a size of 0 is compiled as a number.
pub(crate) const OPEN_SIZES: std::ops::RangeInclusive<i64> = 1..=1 << 40;

/// The symbol of an input's named size.
pub fn open_symbol(name: &str) -> Result<Symbol, Error> {
    Symbol::new(name, OPEN_SIZES).map_err(|e| Error::BadData { problem: e.to_string() })
}

/// An input's named size, with its value in a compile.
fn open_size(name: &str, value: i64) -> Result<Dim, Error> {
    open_symbol(name)?.with_value(value).map_err(|e| Error::BadData { problem: e.to_string() })
}

/// Checks an input that may be packed: key-value caches are, and their rows are whole blocks.
pub(crate) fn packed_input(ty: TensorType, dims: &[Option<String>]) -> Result<(), String> {
    match ty.packed {
        None => Ok(()),
        Some(format) if format != KvAppend::FORMAT => {
            Err(format!("an input cannot be packed as {format}, only as {}: got {ty}", KvAppend::FORMAT))
        }
        Some(_) if dims.last().is_some_and(Option::is_some) => {
            Err(format!("the last size of {ty} is of whole blocks: it cannot have a name"))
        }
        Some(_) => Ok(()),
    }
}
