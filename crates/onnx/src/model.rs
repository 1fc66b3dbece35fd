//! A model: parsed, checked, its weights decoded once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use olivine_files::Format;
use olivine_ir::{Evaluate, Tensor};
use prost::Message;

use crate::element::element_type;
use crate::error::{Error, Unsupported};
use crate::files::{Files, LoadOptions};
use crate::import::{Bindings, LoopCall, Made, Outcome, SMALL_WEIGHT, import, import_iterations, needed};
use crate::ops;
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
    TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use crate::sparse::{decode_sparse, sparse_name};
use crate::stored::{PackedView, PackedViews, dense, dense_type, packed, packing};
use crate::tensor::{decode, decode_stored, shape_of};
use crate::{Dim, ElementType, Kind, Port};

/// Graphs inside nodes, and functions inside functions, may stand inside each other this deep.
pub(crate) const MAX_DEPTH: usize = 16;

/// The IR version from which on an initializer that is also an input may be overridden.
const FIRST_OVERRIDABLE: i64 = 4;

/// Bytes of a name that go into messages.
const LONGEST_NAME: usize = 200;

/// A node of the main graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node as messages call it.
    pub location: String,
    /// Names of what it reads, without those left out.
    pub inputs: Vec<String>,
    /// Names of what it makes, without those left out.
    pub outputs: Vec<String>,
}

/// Domain, name and overload of a function.
pub(crate) type FunctionKey = (String, String, String);

/// What a function is found by.
pub(crate) fn function_key(domain: &str, name: &str, overload: &str) -> FunctionKey {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    (domain.to_string(), name.to_string(), overload.to_string())
}

/// An ONNX model.
pub struct Model {
    pub(crate) proto: ModelProto,
    pub(crate) graph: GraphProto,
    /// Initializers of the main graph by name; elements of few bits may be packed.
    pub(crate) weights: HashMap<String, (ElementType, Tensor)>,
    pub(crate) functions: HashMap<FunctionKey, FunctionProto>,
    /// What the main graph says of its inner values.
    pub(crate) declared: HashMap<String, Kind>,
    files: Arc<Files>,
    /// Tensors of nodes and of graphs inside them, by the address of what describes them.
    decoded: Mutex<HashMap<usize, (ElementType, Tensor)>>,
    /// Large constants of nodes and of graphs inside them: names by address, and tensors by name.
    constant_names: HashMap<usize, String>,
    constants: HashMap<String, Tensor>,
    /// Params of graphs that read the bytes of weights as another type.
    packed_views: Mutex<PackedViews>,
    unsupported: Vec<Unsupported>,
}

impl Model {
    /// Reads a model file, all of whose operators can be imported; external data are looked for beside it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Model::load_with(path, &LoadOptions::default())
    }

    /// Reads a model file with options; [`Model::unsupported`] lists operators that cannot be imported where they are
    /// allowed.
    pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        let (bytes, files) = Files::of_model(path.as_ref(), options)?;
        let model = Model::read(bytes, files)?;
        if options.allow_unsupported { Ok(model) } else { model.supported() }
    }

    /// Reads a model from memory, all of whose operators can be imported.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        Model::read(bytes.into(), Files::default())?.supported()
    }

    fn supported(self) -> Result<Self, Error> {
        if self.unsupported.is_empty() { Ok(self) } else { Err(Error::Unsupported(self.unsupported)) }
    }

    fn read(bytes: Bytes, files: Files) -> Result<Self, Error> {
        let mut proto = ModelProto::decode(bytes.clone()).map_err(|e| not_onnx(&bytes, e.to_string()))?;
        let mut graph =
            proto.graph.take().ok_or_else(|| not_onnx(&bytes, "there is no graph in it".into()))?;
        drop(bytes);
        if let Some(opset) = proto.opset_import.iter().find(|o| o.version() < 1) {
            let problem = format!("version {} of the operators `{}`", opset.version(), opset.domain());
            return Err(Error::NotOnnx { problem });
        }
        let mut weights = HashMap::new();
        let dead = dead_initializers(&graph);
        for tensor in std::mem::take(&mut graph.initializer) {
            if dead.contains(tensor.name()) {
                continue;
            }
            let decoded = decode_stored(&tensor, &files)?;
            if weights.insert(tensor.name().to_string(), decoded).is_some() {
                return Err(twice("initializer", tensor.name()));
            }
        }
        for sparse in std::mem::take(&mut graph.sparse_initializer) {
            let name = sparse_name(&sparse);
            if weights.insert(name.to_string(), decode_sparse(&sparse, &files)?).is_some() {
                return Err(twice("initializer", name));
            }
        }
        let mut functions = HashMap::new();
        for function in std::mem::take(&mut proto.functions) {
            let key = function_key(function.domain(), function.name(), function.overload());
            if let Some(function) = functions.insert(key, function) {
                return Err(twice("function", function.name()));
            }
        }
        let declared =
            graph.value_info.iter().map(|info| (info.name().to_string(), port(info).kind)).collect();
        let mut model = Model {
            proto,
            graph,
            weights,
            functions,
            declared,
            files: Arc::new(files),
            decoded: Mutex::default(),
            constant_names: HashMap::new(),
            constants: HashMap::new(),
            packed_views: Mutex::default(),
            unsupported: Vec::new(),
        };
        model.check_names()?;
        model.unsupported = model.find_unsupported()?;
        model.name_constants()?;
        Ok(model)
    }

    /// Names large constants, so that they are weights as initializers are. Those that cannot be decoded are
    /// found when they are used.
    fn name_constants(&mut self) -> Result<(), Error> {
        let mut found: Vec<(usize, String, Tensor)> = Vec::new();
        let mut note = |node: &NodeProto| {
            let named = node.output.first().map_or("", String::as_str);
            let own = node.attribute.iter().filter(|_| node.op_type() == "Constant");
            let own = own.filter(|a| a.name() == "value").flat_map(|a| &a.t).map(|t| (t, named));
            let inner = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
            let inner = inner.flat_map(|g| &g.initializer).map(|t| (t, t.name()));
            for (proto, name) in own.chain(inner) {
                if shape_of(&proto.dims).is_ok_and(|shape| shape.numel() > SMALL_WEIGHT)
                    && let Ok((_, tensor)) = self.decoded(proto)
                {
                    found.push((std::ptr::from_ref(proto).addr(), shortened(name).to_string(), tensor));
                }
            }
        };
        self.each_node(&self.graph.node, 0, &mut note)?;
        let ordered: BTreeMap<&FunctionKey, &FunctionProto> = self.functions.iter().collect();
        for function in ordered.values() {
            self.each_node(&function.node, 0, &mut note)?;
        }
        for (i, (address, name, tensor)) in found.into_iter().enumerate() {
            let taken = |n: &str| self.weights.contains_key(n) || self.constants.contains_key(n);
            let mut unique = name.clone();
            while taken(&unique) {
                unique = format!("{unique} ({i})");
            }
            self.constant_names.insert(address, unique.clone());
            self.constants.insert(unique, tensor);
        }
        Ok(())
    }

    /// The name of a large constant.
    pub(crate) fn constant_name(&self, proto: &TensorProto) -> Option<&str> {
        self.constant_names.get(&std::ptr::from_ref(proto).addr()).map(String::as_str)
    }

    /// Whether every name of the main graph is declared once, and initializers are what inputs say of them.
    fn check_names(&self) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for input in &self.graph.input {
            if !seen.insert(input.name()) {
                return Err(twice("input", input.name()));
            }
            let Some((element, tensor)) = self.weights.get(input.name()) else { continue };
            let Kind::Tensor { element: declared, dims } = port(input).kind else { continue };
            let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Fixed(fixed) if fixed != size);
            let shape = dense_type(*element, tensor).shape;
            let same_sizes = dims
                .as_ref()
                .is_none_or(|dims| dims.len() == shape.rank() && dims.iter().zip(shape.iter()).all(fits));
            if declared != *element || !same_sizes {
                let place = format!("initializer `{}`", shortened(input.name()));
                let kind = Kind::Tensor { element: declared, dims };
                let problem = format!("it is {element}{shape}, and the input of its name is {kind}");
                return Err(Error::invalid(place, problem));
            }
        }
        for node in &self.graph.node {
            if let Some(name) = node.output.iter().find(|name| self.weights.contains_key(*name)) {
                let problem = format!("`{}` is an initializer as well", shortened(name));
                return Err(Error::invalid(location(node), problem));
            }
        }
        Ok(())
    }

    /// Operators that cannot be imported, all of them.
    pub fn unsupported(&self) -> &[Unsupported] {
        &self.unsupported
    }

    /// A tensor of a node's or of an inner graph's, decoded once.
    pub(crate) fn decoded(&self, proto: &TensorProto) -> Result<(ElementType, Tensor), Error> {
        self.once(std::ptr::from_ref(proto).addr(), || decode(proto, &self.files))
    }

    /// A sparse tensor of a node's or of an inner graph's, decoded once.
    pub(crate) fn sparse(&self, proto: &SparseTensorProto) -> Result<(ElementType, Tensor), Error> {
        self.once(std::ptr::from_ref(proto).addr(), || decode_sparse(proto, &self.files))
    }

    /// What is decoded from a proto, by the proto's address: protos belong to the model and stay where they are. A sparse
    /// tensor begins where its values' tensor may begin too, but that one is never asked for by itself.
    fn once(
        &self,
        address: usize,
        decode: impl FnOnce() -> Result<(ElementType, Tensor), Error>,
    ) -> Result<(ElementType, Tensor), Error> {
        let all = || self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all().get(&address) {
            return Ok(found.clone());
        }
        let decoded = decode()?;
        all().insert(address, decoded.clone());
        Ok(decoded)
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        self.graph.name()
    }

    /// Who made the file, as it says.
    pub fn producer(&self) -> &str {
        self.proto.producer_name()
    }

    /// Versions of the operator sets it is written in, by domain; ONNX's own domain is empty.
    pub fn opsets(&self) -> BTreeMap<String, i64> {
        self.proto.opset_import.iter().map(|o| (o.domain().to_string(), o.version())).collect()
    }

    /// Inputs that a run must supply: those without an initializer.
    pub fn inputs(&self) -> Vec<Port> {
        self.graph.input.iter().filter(|i| !self.weights.contains_key(i.name())).map(port).collect()
    }

    /// Inputs with an initializer, which is their value unless a run supplies another. Before IR version 4 every
    /// initializer had to be listed as an input, and none could be overridden.
    pub fn overridable_initializers(&self) -> Vec<Port> {
        if self.proto.ir_version() < FIRST_OVERRIDABLE {
            return Vec::new();
        }
        let inputs = self.graph.input.iter().filter(|i| self.weights.contains_key(i.name())).map(port);
        inputs.filter(|port| matches!(port.kind, Kind::Tensor { .. })).collect()
    }

    /// Outputs.
    pub fn outputs(&self) -> Vec<Port> {
        self.graph.output.iter().map(port).collect()
    }

    /// Initializers by name. Elements of 2, 4 and 8 bits that have no dtype may be packed, as they are in the file.
    pub fn weights(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights.iter().map(|(name, (_, tensor))| (name.as_str(), tensor))
    }

    /// A weight by name: an initializer, a large constant of a node, or one of these as a param of a graph reads it
    /// (`w as u4[64, 128]`).
    pub fn weight(&self, name: &str) -> Option<Tensor> {
        if let Some((element, tensor)) = self.weights.get(name) {
            return Some(dense(*element, tensor));
        }
        if let Some(tensor) = self.constants.get(name) {
            return Some(tensor.clone());
        }
        let PackedView { source, ty, transposed } = self.packed_views().get(name)?.clone();
        packed(self.stored(&source)?, ty, transposed).ok()
    }

    /// Whether there is an initializer or a large constant of this name.
    pub fn has_weight(&self, name: &str) -> bool {
        self.stored(name).is_some()
    }

    /// An initializer or a large constant of a node, as it is stored.
    fn stored(&self, name: &str) -> Option<&Tensor> {
        self.weights.get(name).map(|(_, tensor)| tensor).or_else(|| self.constants.get(name))
    }

    fn packed_views(&self) -> MutexGuard<'_, PackedViews> {
        self.packed_views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a param that reads a weight as a packed type, if the weight's elements can be read so.
    pub(crate) fn packed_view(&self, view: PackedView) -> Option<String> {
        packing(self.stored(&view.source)?.ty(), view.ty, view.transposed)?;
        let is_taken = |name: &str| self.stored(name).is_some();
        Some(self.packed_views().name(view, is_taken))
    }

    /// The model with other weights: those that `change` returns take the place of the ones of their name. They are of the
    /// same type and shape.
    pub fn with_weights(
        &self,
        mut change: impl FnMut(&str, ElementType, &Tensor) -> Option<Tensor>,
    ) -> Result<Model, Error> {
        let mut weights = self.weights.clone();
        for (name, (element, tensor)) in &mut weights {
            let Some(new) = change(name, *element, tensor) else { continue };
            if new.ty() != tensor.ty() {
                let problem = format!("it is {}; {} cannot take its place", tensor.ty(), new.ty());
                return Err(Error::invalid(format!("initializer `{}`", shortened(name)), problem));
            }
            *tensor = new;
        }
        Ok(Model {
            proto: self.proto.clone(),
            graph: self.graph.clone(),
            weights,
            functions: self.functions.clone(),
            declared: self.declared.clone(),
            files: self.files.clone(),
            decoded: Mutex::default(),
            constant_names: HashMap::new(),
            constants: HashMap::new(),
            packed_views: Mutex::default(),
            unsupported: self.unsupported.clone(),
        })
    }

    /// Nodes by operator, with those of graphs inside nodes and inside functions; a function's count once.
    pub fn operators(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let mut count = |node: &NodeProto| *counts.entry(operator(node)).or_insert(0) += 1;
        // That nothing nests too deep was seen when the model was read.
        let _ = self.each_node(&self.graph.node, 0, &mut count);
        for function in self.functions.values() {
            let _ = self.each_node(&function.node, 0, &mut count);
        }
        counts
    }

    /// The nodes of the main graph, as they stand in the file.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        let named = |names: &[String]| names.iter().filter(|n| !n.is_empty()).cloned().collect();
        let info = |node: &NodeProto| NodeInfo {
            location: location(node),
            inputs: named(&node.input),
            outputs: named(&node.output),
        };
        self.graph.node.iter().map(info).collect()
    }

    /// Elements and bytes of all its tensors: initializers, constants of nodes, and those of graphs inside them.
    pub fn parameters(&self) -> (usize, usize) {
        let mut total = (0usize, 0usize);
        for (element, tensor) in self.weights.values() {
            add_tensor(&mut total, *element, tensor.ty().elements().numel());
        }
        let mut count = |node: &NodeProto| {
            let own = node.attribute.iter().flat_map(|a| a.t.iter().chain(&a.tensors));
            let graphs = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
            for proto in own.chain(graphs.flat_map(|g| &g.initializer)) {
                if let (Some(element), Ok(shape)) = (element_type(proto.data_type()), shape_of(&proto.dims)) {
                    add_tensor(&mut total, element, shape.numel());
                }
            }
        };
        let _ = self.each_node(&self.graph.node, 0, &mut count);
        for function in self.functions.values() {
            let _ = self.each_node(&function.node, 0, &mut count);
        }
        total
    }

    /// The graph for some bindings, or what it takes to have one.
    pub fn specialise(&self, bindings: &Bindings, evaluator: &dyn Evaluate) -> Result<Outcome, Error> {
        import(self, bindings, evaluator)
    }

    /// Graphs of a loop's iterations, or what it takes to have them; `state` says what its carried values are now.
    pub fn iterations(
        &self,
        call: &LoopCall,
        state: &[Made],
        bindings: &Bindings,
        evaluator: &dyn Evaluate,
    ) -> Result<Outcome, Error> {
        import_iterations(self, call, state, bindings, evaluator)
    }

    /// A node by its address, wherever it stands.
    pub(crate) fn node_at(&self, address: usize) -> Option<&NodeProto> {
        let nodes = std::iter::once(&self.graph.node).chain(self.functions.values().map(|f| &f.node));
        let is = |node: &NodeProto| std::ptr::from_ref(node).addr() == address;
        nodes.filter_map(|nodes| find_node(nodes, &is)).next()
    }

    /// An attribute by its address, of a node or a function.
    pub(crate) fn attribute_at(&self, address: usize) -> Option<&AttributeProto> {
        let is = |a: &&AttributeProto| std::ptr::from_ref(*a).addr() == address;
        let nodes = std::iter::once(&self.graph.node).chain(self.functions.values().map(|f| &f.node));
        let mut found =
            nodes.filter_map(|nodes| find_node(nodes, &|node| node.attribute.iter().any(|a| is(&a))));
        let own = self.functions.values().flat_map(|f| &f.attribute_proto).find(is);
        own.or_else(|| found.next()?.attribute.iter().find(is))
    }

    fn find_unsupported(&self) -> Result<Vec<Unsupported>, Error> {
        let mut found: Vec<Unsupported> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut note = |node: &NodeProto| {
            let key = function_key(node.domain(), node.op_type(), node.overload());
            if ops::importer(node.domain(), node.op_type()).is_some() || self.functions.contains_key(&key) {
                return;
            }
            let operator = operator(node);
            match places.get(&operator).and_then(|i| found.get_mut(*i)) {
                Some(u) => u.count += 1,
                None => {
                    places.insert(operator.clone(), found.len());
                    found.push(Unsupported { operator, count: 1, first: location(node) });
                }
            }
        };
        self.each_node(&self.graph.node, 0, &mut note)?;
        // In an order of their own, so that the same file always reads the same.
        let ordered: BTreeMap<&FunctionKey, &FunctionProto> = self.functions.iter().collect();
        for function in ordered.values() {
            self.each_node(&function.node, 0, &mut note)?;
        }
        Ok(found)
    }

    /// Visits nodes, and those of the graphs inside them.
    fn each_node(
        &self,
        nodes: &[NodeProto],
        depth: usize,
        visit: &mut dyn FnMut(&NodeProto),
    ) -> Result<(), Error> {
        for node in nodes {
            visit(node);
            for attribute in &node.attribute {
                for graph in attribute.g.iter().chain(&attribute.graphs) {
                    if depth == MAX_DEPTH {
                        return Err(Error::invalid(
                            location(node),
                            format!("graphs nest deeper than {MAX_DEPTH}"),
                        ));
                    }
                    self.each_node(&graph.node, depth + 1, visit)?;
                }
            }
        }
        Ok(())
    }
}

/// The error for bytes that are no model: what they are where that is known, and what is wrong with them otherwise.
fn not_onnx(bytes: &[u8], problem: String) -> Error {
    let known = Format::of(bytes).map(|format| format!("it is {format}; {}", format.advice()));
    let empty = || bytes.is_empty().then(|| "it is empty, there is no graph in it".to_string());
    Error::NotOnnx { problem: known.or_else(empty).unwrap_or(problem) }
}

/// The first node that is so, of some nodes and of those of graphs inside them.
fn find_node<'m>(nodes: &'m [NodeProto], is: &dyn Fn(&NodeProto) -> bool) -> Option<&'m NodeProto> {
    nodes.iter().find_map(|node| {
        let graphs = || node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
        if is(node) { Some(node) } else { graphs().find_map(|graph| find_node(&graph.node, is)) }
    })
}

/// A node's operator, with the domain where it is not ONNX's own.
pub(crate) fn operator(node: &NodeProto) -> String {
    match node.domain() {
        "" | "ai.onnx" => shortened(node.op_type()).to_string(),
        domain => format!("{}.{}", shortened(domain), shortened(node.op_type())),
    }
}

/// A node as messages call it.
pub(crate) fn location(node: &NodeProto) -> String {
    let name =
        if node.name().is_empty() { node.output.first().map_or("", String::as_str) } else { node.name() };
    format!("node `{}` ({})", shortened(name), operator(node))
}

/// As much of a name as goes into a message.
fn shortened(name: &str) -> &str {
    let end =
        name.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end <= LONGEST_NAME).last();
    &name[..end.unwrap_or(0)]
}

fn add_tensor((elements, bytes): &mut (usize, usize), element: ElementType, count: usize) {
    *elements = elements.saturating_add(count);
    *bytes = bytes.saturating_add(count.saturating_mul(element.bits()).div_ceil(8));
}

/// Initializers that no device can hold and that nothing reads, such as the strings of labels.
fn dead_initializers(graph: &GraphProto) -> HashSet<String> {
    let element = |tensor: &TensorProto| element_type(tensor.data_type());
    let strange = |tensor: &&TensorProto| element(tensor).is_some_and(|e| e.dtype().is_none());
    let mut dead: HashSet<String> =
        graph.initializer.iter().filter(strange).map(|tensor| tensor.name().to_string()).collect();
    if dead.is_empty() {
        return dead;
    }
    let mut used: HashSet<&str> = HashSet::new();
    graph.node.iter().for_each(|node| needed(node, &mut used));
    used.extend(graph.input.iter().chain(&graph.output).map(|info| info.name()));
    dead.retain(|name| !used.contains(name.as_str()));
    dead
}

fn twice(what: &str, name: &str) -> Error {
    Error::invalid(format!("{what} `{}`", shortened(name)), "declared twice")
}

pub(crate) fn port(info: &ValueInfoProto) -> Port {
    let kind = info.r#type.as_ref().map_or(Kind::Other("undeclared"), |ty| kind(ty, 0));
    Port { name: info.name().to_string(), kind }
}

fn kind(ty: &TypeProto, depth: usize) -> Kind {
    use type_proto::Value;
    let inner = |ty: &Option<Box<TypeProto>>| match ty {
        Some(ty) if depth < MAX_DEPTH => Box::new(kind(ty, depth + 1)),
        _ => Box::new(Kind::Other("undeclared")),
    };
    match &ty.value {
        Some(Value::TensorType(tensor)) => {
            let Some(element) = element_type(tensor.elem_type()) else {
                return Kind::Other("undeclared");
            };
            let dims = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(dim).collect());
            Kind::Tensor { element, dims }
        }
        Some(Value::SequenceType(sequence)) => Kind::Sequence(inner(&sequence.elem_type)),
        Some(Value::OptionalType(optional)) => Kind::Optional(inner(&optional.elem_type)),
        Some(Value::MapType(_)) => Kind::Other("map"),
        Some(Value::SparseTensorType(_)) => Kind::Other("sparse tensor"),
        Some(Value::OpaqueType(_)) => Kind::Other("opaque"),
        None => Kind::Other("undeclared"),
    }
}

fn dim(dim: &tensor_shape_proto::Dimension) -> Dim {
    use tensor_shape_proto::dimension::Value;
    match &dim.value {
        Some(Value::DimValue(size)) => usize::try_from(*size).map_or(Dim::Free, Dim::Fixed),
        Some(Value::DimParam(name)) if !is_unknown(name) => Dim::Named(name.clone()),
        _ => Dim::Free,
    }
}

/// Whether the name of a size says that the size is not known: exporters write the same one for all of them.
fn is_unknown(name: &str) -> bool {
    let has_word = name.chars().any(|c| c.is_alphabetic() || c == '_');
    !has_word && name.parse::<u64>().is_err()
        || ["none", "unknown"].iter().any(|word| name.eq_ignore_ascii_case(word))
}
