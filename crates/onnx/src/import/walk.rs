//! The walk over a model's nodes.

use std::collections::{HashMap, HashSet};

use olivine_ir::{Evaluate, Graph, NodeId, Tensor, TensorType, ValueId};

use super::inputs::check_named_sizes;
use super::limits::{Budget, label};
use super::names::{initializer_names, needed, positional_inputs};
use super::passed_over::PassedOver;
use super::stored::Dequantised;
use super::{Answer, Bindings, Bound, NodeContext, Part, TensorRef, Value};
use crate::ElementType;
use crate::error::Error;
use crate::model::{MAX_DEPTH, Model, function_key, location, operator, port};
use crate::ops;
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::sparse::sparse_name;
use crate::stored::{dense, dense_type};
use crate::{Kind, Port};

/// Weights of at most this many elements are constants of the graph, which passes look into; others are params.
pub(crate) const SMALL_WEIGHT: usize = 1024;

/// Results of at most this many elements that follow from constants alone are computed on the spot.
const SMALL_RESULT: usize = 4096;

/// Nodes that are looked at to find out whether a value follows from constants.
const MAX_ANCESTORS: usize = 4096;

/// Graphs under construction and the names that can be seen.
pub(crate) struct Walk<'m> {
    pub(crate) model: &'m Model,
    pub(super) bindings: &'m Bindings,
    pub(super) evaluator: &'m dyn Evaluate,
    /// The main graph, and inside it the bodies that are being built.
    pub(super) frames: Vec<Frame>,
    pub(super) scopes: Vec<Scope<'m>>,
    /// Values found out so far, by graph and value.
    pub(super) fixed: HashMap<(usize, ValueId), Tensor>,
    /// Of values found out and of constants: the expressions of their elements, where those are sizes.
    pub(super) sizes: HashMap<(usize, ValueId), Vec<super::ratio::Ratio>>,
    /// How many of the known results of stages and loops are used.
    pub(super) taken: usize,
    /// How many loops of the caller's this is inside.
    pub(super) level: usize,
    /// What earlier stages have left of the main graph's values.
    pub(super) stage_values: HashSet<ValueId>,
    /// Element types of the main graph's outputs.
    pub(super) elements: Vec<(String, ElementType)>,
    pub(super) budget: Budget,
    /// Matrices of few bits, by the reals that they stand for.
    pub(super) dequantised: HashMap<(usize, ValueId), Dequantised>,
    /// Names of inner values that are to be outputs, and those found so far.
    watching: HashSet<&'m str>,
    pub(super) watched: Vec<(String, TensorRef)>,
    pub(super) passed_over: PassedOver,
}

/// A graph under construction.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) graph: Graph,
    /// Values of the graph around it, and the inputs that stand for them here.
    pub(super) captures: Vec<(ValueId, ValueId)>,
    /// Of a body whose iterations the caller begins: inputs, and the values around it that the first iteration takes.
    pub(super) first: Vec<(ValueId, ValueId)>,
    /// What such a body takes values for that decide shapes.
    pub(super) assumed: Vec<(ValueId, Tensor)>,
}

/// Names that can be seen from a graph's nodes.
#[derive(Default)]
pub(super) struct Scope<'m> {
    pub(super) names: HashMap<String, Value>,
    /// A function's: names around it are not seen.
    pub(super) opaque: bool,
    /// The function, where it is one of the model's.
    pub(super) function: Option<&'m FunctionProto>,
    pub(super) opsets: &'m [OperatorSetIdProto],
    /// What a function was called with.
    pub(super) attributes: HashMap<&'m str, &'m AttributeProto>,
    /// The nodes to import, in which order, and how far that has come.
    pub(super) nodes: &'m [NodeProto],
    pub(super) order: Vec<usize>,
    pub(super) at: usize,
    /// Names that are used after the last node.
    pub(super) outputs: Vec<&'m str>,
}

/// What an input of a body is.
pub(crate) enum BodyInput {
    /// An input of the body's graph; the value that the first iteration takes for it, where shapes may follow from it.
    New { element: ElementType, ty: TensorType, first: Option<ValueId> },
    /// The same value in every iteration.
    Outer(Value),
}

/// A body as a graph of its own.
pub(crate) struct Captured {
    /// The graph: inputs as given, then one for each capture; its outputs are named `0`, `1` and so on.
    pub(crate) graph: Graph,
    /// The outputs' types.
    pub(crate) outputs: Vec<(ElementType, TensorType)>,
    /// What it takes from the graph around it.
    pub(crate) captures: Vec<ValueId>,
    /// Values that decide shapes, and what they were taken for.
    pub(crate) assumed: Vec<(ValueId, Tensor)>,
}

impl<'m> Walk<'m> {
    pub(super) fn new(
        model: &'m Model,
        bindings: &'m Bindings,
        evaluator: &'m dyn Evaluate,
        level: usize,
    ) -> Self {
        let graph = Graph::new(model.name());
        Walk {
            model,
            bindings,
            evaluator,
            frames: vec![Frame { graph, ..Frame::default() }],
            scopes: Vec::new(),
            fixed: HashMap::new(),
            sizes: HashMap::new(),
            taken: 0,
            level,
            stage_values: bindings.stage_values.iter().copied().collect(),
            elements: Vec::new(),
            budget: Budget::of(model.graph.node.len()),
            dequantised: HashMap::new(),
            watching: bindings.watched.iter().map(String::as_str).collect(),
            watched: Vec::new(),
            passed_over: PassedOver::default(),
        }
    }

    /// Imports the whole model; the answer is its outputs.
    pub(super) fn whole(&mut self) -> Answer<Vec<(String, Part)>> {
        let model = self.model;
        let opsets = &model.proto.opset_import;
        self.scopes.push(Scope { opaque: true, opsets, ..Scope::default() });
        let bindings = self.bindings;
        let given: HashMap<&str, &Bound> =
            bindings.inputs.iter().rev().map(|(n, b)| (n.as_str(), b)).collect();
        let ports: Vec<Port> = model.inputs().into_iter().chain(model.overridable_initializers()).collect();
        check_named_sizes(&ports, &given)?;
        for port in ports {
            let bound = given.get(port.name.as_str()).copied();
            let value = match bound {
                Some(bound) => self.declare(&port.name, &port.kind, bound)?,
                // The initializer is the value of an input that the caller leaves out.
                None if model.weights.contains_key(&port.name) => continue,
                None if matches!(port.kind, Kind::Optional(_)) => Value::Nothing,
                None => {
                    return Err(Error::invalid(format!("input `{}`", port.name), "it is not given").into());
                }
            };
            self.bind(&port.name, value);
        }
        self.run(&model.graph)?;
        let mut outputs = Vec::new();
        let mut added: HashMap<String, Part> = HashMap::new();
        for port in model.outputs() {
            let location = format!("output `{}`", port.name);
            let value = self.resolve(&port.name)?;
            let value = self.or_nothing(value, || Error::invalid(&location, "nothing makes it"))?;
            self.agrees(&port.kind, &value, || location.clone())?;
            // An output that the model lists twice is one output of the graph.
            let part = match added.get(&port.name) {
                Some(part) => part.clone(),
                None => self.add_output(&port.name, &value, &location)?,
            };
            added.insert(port.name.clone(), part.clone());
            outputs.push((port.name, part));
        }
        for (name, held) in std::mem::take(&mut self.watched) {
            if !added.contains_key(&name) {
                let location = format!("value `{name}`");
                let part = self.add_output(&name, &Value::Tensor(held), &location)?;
                outputs.push((name, part));
            }
        }
        Ok(outputs)
    }

    /// Whether a value is what the model declares it to be. Declared sizes of inner values and outputs are often stale
    /// and not looked at.
    fn agrees(&self, declared: &Kind, value: &Value, location: impl FnOnce() -> String) -> Answer<()> {
        let problem = match (declared, value) {
            (Kind::Tensor { element, .. }, Value::Tensor(held)) if *element != held.element => {
                format!("it is declared to be of {element}, and it is of {}", held.element)
            }
            (Kind::Tensor { element, .. }, Value::Sequence(..)) => {
                format!("it is declared to be a tensor of {element}, and it is {}", value.describe())
            }
            (Kind::Sequence(_), Value::Tensor(_)) => {
                format!("it is declared to be a sequence, and it is {}", value.describe())
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(location(), problem).into())
    }

    /// Makes a value an output of the main graph.
    pub(super) fn add_output(&mut self, name: &str, value: &Value, location: &str) -> Answer<Part> {
        Ok(match value {
            Value::Tensor(held) => {
                let id = self.local(*held)?;
                self.graph().output(name, id).map_err(|e| Error::invalid(location, e.to_string()))?;
                self.elements.push((name.to_string(), held.element));
                Part::Tensor(name.to_string())
            }
            Value::Sequence(items, _) => {
                let parts = items
                    .iter()
                    .enumerate()
                    .map(|(i, v)| self.add_output(&format!("{name}[{i}]"), v, location));
                Part::Sequence(parts.collect::<Answer<_>>()?)
            }
            Value::Nothing => Part::Nothing,
        })
    }

    /// The graph that nodes are added to now.
    pub(crate) fn graph(&mut self) -> &mut Graph {
        let last = self.frames.len() - 1;
        &mut self.frames[last].graph
    }

    /// Whether what is imported now may run more than once: it is a body, or iterations of a loop.
    pub(crate) fn is_repeated(&self) -> bool {
        self.depth() > 0 || self.level > 0
    }

    /// As [`Bindings::batch`].
    pub(crate) fn batch(&self) -> Option<usize> {
        self.bindings.batch
    }

    /// Which of the graphs under construction nodes are added to now.
    pub(crate) fn depth(&self) -> usize {
        self.frames.len() - 1
    }

    pub(super) fn bind(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name.to_string(), value);
        }
    }

    /// Binds an initializer's name, unless an argument of that name overrides it.
    fn bind_default(&mut self, name: &str, element: ElementType, tensor: Tensor) {
        if self.scopes.last().is_some_and(|scope| scope.names.contains_key(name)) {
            return;
        }
        let frame = self.frames.len() - 1;
        let id = self.graph().constant(tensor);
        self.bind(name, Value::Tensor(TensorRef { frame, id, element }));
    }

    /// What a name stands for, if anything.
    pub(super) fn resolve(&mut self, name: &str) -> Answer<Option<Value>> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.names.get(name) {
                return Ok(Some(value.clone()));
            }
            if scope.opaque {
                break;
            }
        }
        // Functions do not see the main graph's weights.
        if self.scopes.iter().skip(1).any(|s| s.opaque) {
            return Ok(None);
        }
        let Some((element, tensor)) = self.model.weights.get(name) else { return Ok(None) };
        let graph = &mut self.frames[0].graph;
        let id = if tensor.ty().elements().numel() <= SMALL_WEIGHT {
            graph.constant(dense(*element, tensor))
        } else {
            let param = graph.param_of(name, dense_type(*element, tensor));
            param.map_err(|e| Error::invalid(format!("initializer `{name}`"), e.to_string()))?
        };
        let value = Value::Tensor(TensorRef { frame: 0, id, element: *element });
        if let Some(scope) = self.scopes.first_mut() {
            scope.names.insert(name.to_string(), value.clone());
        }
        Ok(Some(value))
    }

    /// A tensor in the graph that nodes are added to now: itself, or an input of a body that stands for it.
    pub(crate) fn local(&mut self, held: TensorRef) -> Answer<ValueId> {
        let mut id = held.id;
        for frame in held.frame + 1..self.frames.len() {
            let ty =
                self.frames[frame - 1].graph.ty(id).map_err(|e| Error::invalid("capture", e.to_string()))?;
            let constant = self.frames[frame - 1].graph.as_const(id).cloned();
            let Frame { graph, captures, .. } = &mut self.frames[frame];
            id = match (captures.iter().find(|(outer, _)| *outer == id), constant) {
                (Some((_, inner)), _) => *inner,
                (None, Some(tensor)) => graph.constant(tensor),
                (None, None) => {
                    let name = format!("capture_{}", captures.len());
                    let inner = graph
                        .input(&name, ty.dtype, ty.shape)
                        .map_err(|e| Error::invalid("capture", e.to_string()))?;
                    captures.push((id, inner));
                    inner
                }
            };
        }
        Ok(id)
    }

    /// The version of an operator set that nodes are written in here.
    pub(super) fn opset(&self, domain: &str) -> i64 {
        let same = |d: &str| d == domain || (matches!(d, "" | "ai.onnx") && matches!(domain, "" | "ai.onnx"));
        let opsets = self.scopes.iter().rev().find(|s| s.opaque).map_or(&[] as &[_], |s| s.opsets);
        opsets.iter().find(|o| same(o.domain())).map_or(1, |o| o.version())
    }

    /// What a function was called with, by the name of its attribute.
    pub(super) fn argument(&self, name: &str) -> Option<&'m AttributeProto> {
        self.scopes.iter().rev().find(|s| s.opaque)?.attributes.get(name).copied()
    }

    /// A tensor of a node's or of an inner graph's: a param if it is large, so that all graphs share it.
    pub(crate) fn tensor(&mut self, proto: &TensorProto) -> Answer<Value> {
        let (element, tensor) = self.model.decoded(proto)?;
        let Some(name) = self.model.constant_name(proto) else {
            let (frame, id) = (self.depth(), self.graph().constant(tensor));
            return Ok(Value::Tensor(TensorRef { frame, id, element }));
        };
        let graph = &mut self.frames[0].graph;
        let id = match graph.param_named(name) {
            Some(id) => id,
            None => graph
                .param(name, tensor.dtype(), *tensor.shape())
                .map_err(|e| Error::invalid(format!("constant `{name}`"), e.to_string()))?,
        };
        Ok(Value::Tensor(TensorRef { frame: 0, id, element }))
    }

    /// Imports a graph's nodes into the scope that is open.
    fn run(&mut self, graph: &'m GraphProto) -> Answer<()> {
        for proto in &graph.initializer {
            let overridden = self.scopes.last().is_some_and(|scope| scope.names.contains_key(proto.name()));
            if !overridden {
                let value = self.tensor(proto)?;
                self.bind(proto.name(), value);
            }
        }
        for proto in &graph.sparse_initializer {
            let (element, tensor) = self.model.sparse(proto)?;
            self.bind_default(sparse_name(proto), element, tensor);
        }
        let given = graph.input.iter().map(|i| i.name()).chain(initializer_names(graph)).collect();
        self.run_nodes(&graph.node, &given, graph.output.iter().map(|o| o.name()).collect())
    }

    fn run_nodes(
        &mut self,
        nodes: &'m [NodeProto],
        given: &HashSet<&str>,
        outputs: Vec<&'m str>,
    ) -> Answer<()> {
        let order = self.order(nodes, given)?;
        let count = order.len();
        if let Some(scope) = self.scopes.last_mut() {
            *scope = Scope { nodes, order, at: 0, outputs, ..std::mem::take(scope) };
            scope.names.reserve(count);
        }
        for at in 0..count {
            let Some(scope) = self.scopes.last_mut() else { break };
            scope.at = at;
            let node = &nodes[scope.order[at]];
            self.import_or_pass_over(node)?;
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.at = count;
        }
        Ok(())
    }

    /// The order to import nodes in: as they stand, unless a node stands before one that it needs.
    fn order(&mut self, nodes: &'m [NodeProto], given: &HashSet<&str>) -> Answer<Vec<usize>> {
        let mut makers: HashMap<&str, usize> = HashMap::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            for output in node.output.iter().filter(|o| !o.is_empty()) {
                if makers.insert(output, i).is_some() || given.contains(output.as_str()) {
                    return Err(Error::invalid(location(node), format!("`{output}` is made twice")).into());
                }
            }
        }
        let mut sorted = true;
        let mut names = HashSet::new();
        for (i, node) in nodes.iter().enumerate() {
            names.clear();
            needed(node, &mut names);
            self.budget.step(names.len(), || location(node))?;
            sorted &= names.iter().filter_map(|n| makers.get(n)).all(|maker| *maker < i);
        }
        if sorted {
            return Ok((0..nodes.len()).collect());
        }
        let needs = nodes.iter().map(|node| {
            names.clear();
            needed(node, &mut names);
            names.iter().filter_map(|n| makers.get(n).copied()).collect()
        });
        let needs: Vec<Vec<usize>> = needs.collect();
        let mut left: Vec<usize> = needs.iter().map(Vec::len).collect();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for (i, of) in needs.iter().enumerate() {
            of.iter().for_each(|maker| users[*maker].push(i));
        }
        let mut ready: std::collections::BTreeSet<usize> =
            (0..nodes.len()).filter(|i| left[*i] == 0).collect();
        let mut order = Vec::with_capacity(nodes.len());
        while let Some(i) = ready.pop_first() {
            order.push(i);
            for user in &users[i] {
                left[*user] -= 1;
                if left[*user] == 0 {
                    ready.insert(*user);
                }
            }
        }
        match left.iter().position(|l| *l > 0) {
            Some(i) => Err(Error::invalid(location(&nodes[i]), "the graph has a cycle through it").into()),
            None => Ok(order),
        }
    }

    /// Imports one node and binds its results' names.
    pub(super) fn import_node(&mut self, node: &'m NodeProto) -> Answer<()> {
        self.budget.node(|| location(node))?;
        let named: usize = node.input.iter().chain(&node.output).map(|name| 1 + name.len() / 64).sum();
        self.budget.step(named, || location(node))?;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            let value = if name.is_empty() { None } else { self.resolve(name)? };
            if value.is_none() && !name.is_empty() {
                return Err(
                    Error::invalid(location(node), format!("nothing makes its input `{name}`")).into()
                );
            }
            if let Some(Value::Sequence(items, _)) = &value {
                self.budget.step(8 * items.len(), || location(node))?;
            }
            inputs.push(value);
        }
        let constant = inputs.iter().flatten().all(|v| self.is_constant(v));
        let named =
            if node.name().is_empty() { node.output.first().map_or("", String::as_str) } else { node.name() };
        let label = label(named);
        if !label.is_empty() {
            self.graph().set_scope_of(&format!("{label}/"));
        }
        let model = self.model;
        let function = match model.functions.is_empty() {
            true => None,
            false => model.functions.get(&function_key(node.domain(), node.op_type(), node.overload())),
        };
        let results = match function {
            Some(function) => self.call(function, node, inputs)?,
            None => match ops::importer(node.domain(), node.op_type()) {
                Some(import) => {
                    let mut context = NodeContext::new(self, node, inputs);
                    if let Some(problem) = ops::problem(node, context.opset(), |name| context.attribute(name))
                    {
                        return Err(context.wrong(problem));
                    }
                    import(&mut context)?
                }
                None => {
                    return Err(
                        Error::invalid(location(node), format!("no operator {}", operator(node))).into()
                    );
                }
            },
        };
        let wanted = node.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        if results.len() < wanted {
            let problem = format!("{wanted} results are named, the operator has {}", results.len());
            return Err(Error::invalid(location(node), problem).into());
        }
        for (name, value) in node.output.iter().zip(results).filter(|(name, _)| !name.is_empty()) {
            let value = if constant { self.folded(value, node)? } else { value };
            if self.scopes.len() == 1
                && let Some(declared) = self.model.declared.get(name)
            {
                self.agrees(declared, &value, || format!("{}, output `{name}`", location(node)))?;
            }
            if let Value::Tensor(held) = &value
                && self.scopes.len() == 1
                && self.watching.contains(name.as_str())
            {
                self.watched.push((name.clone(), *held));
            }
            self.bind(name, value);
        }
        Ok(())
    }

    fn is_constant(&self, value: &Value) -> bool {
        match value {
            Value::Tensor(held) => {
                self.frames.get(held.frame).is_some_and(|f| f.graph.as_const(held.id).is_some())
            }
            Value::Sequence(items, _) => items.iter().all(|v| self.is_constant(v)),
            Value::Nothing => true,
        }
    }

    /// A small result of constants as a constant.
    fn folded(&mut self, value: Value, node: &NodeProto) -> Answer<Value> {
        let Value::Tensor(held) = value else { return Ok(value) };
        let frame = self.frames.len() - 1;
        // What an `Identity` hands on may be a value of a graph around this one.
        if held.frame != frame {
            return Ok(value);
        }
        let graph = &self.frames[frame].graph;
        let ty = graph.ty(held.id).map_err(|e| Error::invalid(location(node), e.to_string()))?;
        let small = !ty.shape.is_symbolic() && ty.shape.numel() <= SMALL_RESULT;
        if !small || graph.producer(held.id).is_none() || !self.follows_from_constants(held.id) {
            return Ok(value);
        }
        if !self.is_affordable(held)? {
            return Ok(value);
        }
        let tensor = self.found(held, &location(node))?;
        let sizes = self.sizes_at((held.frame, held.id)).cloned();
        let id = self.graph().constant(tensor);
        if let Some(sizes) = sizes {
            self.set_sizes((held.frame, id), sizes);
        }
        Ok(Value::Tensor(TensorRef { id, ..held }))
    }

    /// Whether a value of the innermost graph has neither inputs nor params nor chance among its ancestors.
    fn follows_from_constants(&self, id: ValueId) -> bool {
        use olivine_ir::Def;
        let graph = &self.frames[self.frames.len() - 1].graph;
        let mut open = vec![id];
        let mut seen: HashSet<NodeId> = HashSet::new();
        while let Some(id) = open.pop() {
            match graph.value(id).map(|v| &v.def) {
                Ok(Def::Const(_)) => {}
                Ok(Def::Node { node, .. }) => {
                    if seen.len() > MAX_ANCESTORS {
                        return false;
                    }
                    if seen.insert(*node)
                        && let Some(node) = graph.nodes().get(node.index())
                    {
                        open.extend_from_slice(&node.inputs);
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// Imports a call of a function of the model's.
    fn call(
        &mut self,
        function: &'m FunctionProto,
        node: &'m NodeProto,
        inputs: Vec<Option<Value>>,
    ) -> Answer<Vec<Value>> {
        if self.scopes.len() > MAX_DEPTH {
            return Err(Error::invalid(location(node), format!("calls nest deeper than {MAX_DEPTH}")).into());
        }
        let mut attributes: HashMap<&'m str, &'m AttributeProto> =
            function.attribute_proto.iter().map(|a| (a.name(), a)).collect();
        for attribute in &node.attribute {
            match attribute.ref_attr_name() {
                "" => attributes.insert(attribute.name(), attribute),
                other => self.argument(other).and_then(|a| attributes.insert(attribute.name(), a)),
            };
        }
        if inputs.len() > function.input.len() {
            let problem =
                format!("the function takes {} values, {} are given", function.input.len(), inputs.len());
            return Err(Error::invalid(location(node), problem).into());
        }
        let inputs = inputs.into_iter().map(|v| v.unwrap_or(Value::Nothing));
        let inputs = inputs.chain(std::iter::repeat(Value::Nothing));
        let names: HashMap<String, Value> = function.input.iter().cloned().zip(inputs).collect();
        let depth = self.scopes.len();
        let (function_of, opsets) = (Some(function), function.opset_import.as_slice());
        let scope =
            Scope { names, opaque: true, function: function_of, opsets, attributes, ..Scope::default() };
        self.scopes.push(scope);
        let given = function.input.iter().map(String::as_str).collect();
        let outputs = function.output.iter().map(String::as_str).collect();
        let results = self
            .run_nodes(&function.node, &given, outputs)
            .and_then(|()| self.results(function.output.iter(), node));
        self.scopes.truncate(depth);
        results
    }

    fn results<'a>(
        &mut self,
        names: impl Iterator<Item = &'a String>,
        node: &NodeProto,
    ) -> Answer<Vec<Value>> {
        names
            .map(|name| {
                let problem =
                    || Error::invalid(location(node), format!("nothing makes output `{name}` inside it"));
                let value = self.resolve(name)?;
                self.or_nothing(value, problem)
            })
            .collect()
    }

    /// A scalar as a list of one, if that is what is declared.
    fn as_declared(&mut self, value: Value, kind: &Kind) -> Answer<Value> {
        let (Value::Tensor(held), Kind::Tensor { dims: Some(dims), .. }) = (&value, kind) else {
            return Ok(value);
        };
        let id = self.local(*held)?;
        let invalid = |e: olivine_ir::Error| Error::invalid("loop", e.to_string());
        if dims.len() != 1 || self.graph().ty(id).map_err(invalid)?.shape.rank() != 0 {
            return Ok(value);
        }
        let (frame, id) = (self.depth(), self.graph().reshape(id, &[1]).map_err(invalid)?);
        Ok(Value::Tensor(TensorRef { frame, id, element: held.element }))
    }

    /// Imports a graph inside a node in that node's location.
    pub(crate) fn inline(
        &mut self,
        graph: &'m GraphProto,
        arguments: Vec<Value>,
        node: &'m NodeProto,
    ) -> Answer<Vec<Value>> {
        let depth = self.scopes.len();
        if depth > MAX_DEPTH {
            return Err(Error::invalid(location(node), format!("graphs nest deeper than {MAX_DEPTH}")).into());
        }
        let inputs = positional_inputs(graph, arguments.len());
        if inputs.len() != arguments.len() {
            let problem =
                format!("the graph inside takes {} values, {} are given", inputs.len(), arguments.len());
            return Err(Error::invalid(location(node), problem).into());
        }
        let mut names: HashMap<String, Value> = HashMap::with_capacity(arguments.len());
        for (i, (input, argument)) in inputs.into_iter().zip(arguments).enumerate() {
            // A loop's number and condition are scalars, or lists of one where its body says so.
            let counts = i < 2 && node.op_type() == "Loop";
            let argument = if counts { self.as_declared(argument, &port(input).kind)? } else { argument };
            names.insert(input.name().to_string(), argument);
        }
        self.scopes.push(Scope { names, ..Scope::default() });
        let results = self.run(graph).and_then(|()| {
            let names: Vec<String> = graph.output.iter().map(|o| o.name().to_string()).collect();
            self.results(names.iter(), node)
        });
        self.scopes.truncate(depth);
        results
    }

    /// Imports a graph inside a node as a graph of its own, without those outputs after the first that are the `same` as
    /// what is given.
    pub(crate) fn body(
        &mut self,
        graph: &'m GraphProto,
        inputs: &[BodyInput],
        same: &[bool],
        node: &'m NodeProto,
    ) -> Answer<Captured> {
        let invalid = |e: olivine_ir::Error| Error::invalid(location(node), e.to_string());
        let frame = self.frames.len();
        let mut inner = Frame { graph: Graph::new(graph.name()), ..Frame::default() };
        let mut arguments = Vec::with_capacity(inputs.len());
        for (i, input) in inputs.iter().enumerate() {
            arguments.push(match input {
                BodyInput::New { element, ty, first } => {
                    let id = inner.graph.input(&format!("input_{i}"), ty.dtype, ty.shape).map_err(invalid)?;
                    inner.first.extend(first.map(|first| (id, first)));
                    Value::Tensor(TensorRef { frame, id, element: *element })
                }
                BodyInput::Outer(value) => value.clone(),
            });
        }
        self.frames.push(inner);
        let built = self.inline(graph, arguments, node).and_then(|results| {
            let mut outputs = Vec::with_capacity(results.len());
            for (i, value) in results.iter().enumerate() {
                if i > 0 && same.get(i - 1).is_some_and(|same| *same) {
                    continue;
                }
                let Value::Tensor(held) = value else {
                    let problem = format!("output {i} of the graph inside is {}", value.describe());
                    return Err(Error::invalid(location(node), problem).into());
                };
                let id = self.local(*held)?;
                self.graph().output(&i.to_string(), id).map_err(invalid)?;
                outputs.push((held.element, self.graph().ty(id).map_err(invalid)?));
            }
            Ok(outputs)
        });
        self.fixed.retain(|(f, _), _| *f < frame);
        let done = self.frames.drain(frame..).next();
        match (built, done) {
            (Ok(outputs), Some(Frame { graph, captures, assumed, .. })) => Ok(Captured {
                graph,
                outputs,
                captures: captures.into_iter().map(|(outer, _)| outer).collect(),
                assumed,
            }),
            (Err(stop), _) => Err(stop),
            (Ok(_), None) => Err(Error::invalid(location(node), "its graph was lost").into()),
        }
    }
}
