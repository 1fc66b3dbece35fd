//! Models from files: ONNX, GGUF, a graph in text form, or a folder of safetensors.
//!
//! ```text
//!   mod.rs  models: loading by content, their inputs, outputs and inner values
//!   onnx/   ONNX models compiled for a device
//! ```

#[cfg(feature = "onnx")]
mod onnx;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use olivine_files::{Format, read_start, read_text};
use olivine_gguf::Gguf;
use olivine_ir::port::{ElementType, Port};
use olivine_ir::{Graph, Tensor, nearest};
#[cfg(feature = "onnx")]
use olivine_onnx as onnx_file;

use crate::executable::{graph_inputs, graph_outputs, listed_ports};
use crate::models::{Bert, CausalLm};
use crate::session::sealed;
use crate::{CompileOptions, Error, Executable, Session};

#[cfg(feature = "onnx")]
pub(crate) use onnx::{OnnxExecutable, Passed};

/// A larger text is no graph that anyone wrote.
const LARGEST_TEXT: u64 = 1 << 30;

/// A model from a file.
///
/// ```no_run
/// use olivine::prelude::*;
/// let model = Model::load("bert.onnx")?;
/// let session = Session::new(Device::auto()?)?;
/// let bert = session.compile(&model)?;
/// let ids = Tensor::new([1, 3], vec![101i64, 7592, 102])?;
/// let out = bert.run([("input_ids", &ids)])?;
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone)]
pub struct Model {
    source: Source,
    /// Inner values that are outputs too.
    watched: Arc<[String]>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name())
            .field("inputs", &listed_ports(&self.inputs()))
            .field("outputs", &listed_ports(&self.outputs()))
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum Source {
    #[cfg(feature = "onnx")]
    Onnx(Arc<onnx_file::Model>),
    Graph(Arc<GraphModel>),
}

/// A graph and its weights.
struct GraphModel {
    graph: Graph,
    params: Vec<(String, Tensor)>,
}

impl Model {
    /// Reads a model, whose format is decided by its content: an ONNX file, a GGUF file (given one part, all parts), a graph
    /// in text form, or a folder with `config.json` and `model.safetensors`. Operators that cannot be imported are an error that names them all.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        match Model::graph_in(path)? {
            Some(model) => Ok(model),
            None => Model::load_onnx(path),
        }
    }

    #[cfg(feature = "onnx")]
    fn load_onnx(path: &Path) -> Result<Self, Error> {
        Ok(Model::of_onnx(onnx_file::Model::load(path)?))
    }

    #[cfg(not(feature = "onnx"))]
    fn load_onnx(path: &Path) -> Result<Self, Error> {
        Err(Error::NotAModel {
            path: path.to_path_buf(),
            problem: "it is not a graph in text form, and olivine was built without its feature `onnx`"
                .into(),
            advice: None,
        })
    }

    /// Reads a model as [`Model::load`] does, an ONNX file with options: where links among its files may lead, and whether
    /// operators that cannot be imported are an error.
    #[cfg(feature = "onnx")]
    pub fn load_with(path: impl AsRef<Path>, options: &onnx_file::LoadOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        match Model::graph_in(path)? {
            Some(model) => Ok(model),
            None => Ok(Model::of_onnx(onnx_file::Model::load_with(path, options)?)),
        }
    }

    /// Reads an ONNX model from memory.
    #[cfg(feature = "onnx")]
    pub fn from_onnx(bytes: Vec<u8>) -> Result<Self, Error> {
        Ok(Model::of_onnx(onnx_file::Model::from_bytes(bytes)?))
    }

    /// Reads a GGUF file from memory: a model as [`Model::load`] reads it, of one part.
    pub fn from_gguf(bytes: Vec<u8>) -> Result<Self, Error> {
        Model::of_gguf(Gguf::from_bytes(bytes)?)
    }

    /// The model of an open GGUF file: an encoder or a decoder.
    fn of_gguf(file: Gguf) -> Result<Self, Error> {
        if Bert::is_in(&file) {
            return Ok(Model::of_bert(&Bert::of_gguf(&file)?));
        }
        Model::of_causal(&CausalLm::of_gguf(file)?)
    }

    fn of_bert(bert: &Bert) -> Self {
        Model::from_graph(bert.graph().clone(), bert.params())
    }

    /// A graph with its weights.
    pub fn from_graph(graph: Graph, params: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        let model = GraphModel { graph, params: params.into_iter().collect() };
        Model { source: Source::Graph(Arc::new(model)), watched: Arc::default() }
    }

    fn of_causal(model: &CausalLm) -> Result<Self, Error> {
        let (graph, params) = model.whole()?;
        Ok(Model::from_graph(graph, params))
    }

    /// The model of a folder with `config.json`: a language model or an encoder.
    fn of_folder(path: &Path) -> Result<Self, Error> {
        if let Some(model) = CausalLm::of_folder(path)? {
            return Model::of_causal(&model);
        }
        Ok(Model::of_bert(&Bert::load(path)?))
    }

    #[cfg(feature = "onnx")]
    fn of_onnx(model: onnx_file::Model) -> Self {
        Model { source: Source::Onnx(Arc::new(model)), watched: Arc::default() }
    }

    /// The model of a path that holds a graph, or weights whose graph is known here; `None` if it is for the importers.
    fn graph_in(path: &Path) -> Result<Option<Self>, Error> {
        let refused = |problem: String, advice: Option<&str>| Error::NotAModel {
            path: path.to_path_buf(),
            problem,
            advice: advice.map(str::to_string),
        };
        if path.is_dir() {
            if !path.join("config.json").is_file() {
                let advice = "a folder with a model has `config.json` and `model.safetensors`";
                let problem = "not a plain file but a folder without `config.json`";
                return Err(refused(problem.into(), Some(advice)));
            }
            return Model::of_folder(path).map(Some);
        }
        // A file that cannot be read is the importers' to report.
        let Ok((start, bytes)) = read_start(path) else { return Ok(None) };
        match Format::of_start(&start, bytes) {
            Some(Format::GraphText) => {
                let text = read_text(path, LARGEST_TEXT).map_err(|e| refused(e.to_string(), None))?;
                let graph = text.parse().map_err(|e: olivine_ir::Error| {
                    refused(format!("a graph in text form, but {e}"), None)
                })?;
                Ok(Some(Model::from_graph(graph, [])))
            }
            Some(Format::Gguf) => Model::of_gguf(Gguf::open(path)?).map(Some),
            Some(Format::Safetensors) => match path.parent() {
                Some(folder) if folder.join("config.json").is_file() => Model::of_folder(folder).map(Some),
                _ => Err(refused(
                    "it is a safetensors file, which has weights and no graph".into(),
                    Some("load the folder with its config.json, or export the model to ONNX"),
                )),
            },
            _ => Ok(None),
        }
    }

    /// The model with values from inside it among its outputs, by the names that [`Model::values`] lists.
    pub fn watching(self, values: impl IntoIterator<Item = String>) -> Self {
        Model { watched: values.into_iter().collect(), ..self }
    }

    /// Names of the values inside the model: the results of the nodes of its main graph.
    pub fn values(&self) -> Vec<String> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.nodes().into_iter().flat_map(|node| node.outputs).collect(),
            Source::Graph(model) => value_names(&model.graph),
        }
    }

    /// The model with other weights: those that `change` returns take the place of the ones of their name. They are of the
    /// same type and shape.
    pub fn with_weights(
        &self,
        mut change: impl FnMut(&str, ElementType, &Tensor) -> Option<Tensor>,
    ) -> Result<Self, Error> {
        let source = match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => Source::Onnx(Arc::new(onnx.with_weights(change)?)),
            Source::Graph(model) => {
                let mut params = model.params.clone();
                for (name, tensor) in &mut params {
                    let element = ElementType::of_dtype(tensor.dtype());
                    if let Some(other) = change(name, element, tensor) {
                        *tensor = other;
                    }
                }
                Source::Graph(Arc::new(GraphModel { graph: model.graph.clone(), params }))
            }
        };
        Ok(Model { source, watched: self.watched.clone() })
    }

    /// The model's name for itself.
    pub fn name(&self) -> &str {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.name(),
            Source::Graph(model) => model.graph.name(),
        }
    }

    /// The inputs that a run must supply.
    pub fn inputs(&self) -> Vec<Port> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.inputs(),
            Source::Graph(model) => graph_inputs(&model.graph),
        }
    }

    /// Inputs that have a default value, which a run may override: initializers of an ONNX model that are listed as inputs
    /// too.
    pub fn overridable_initializers(&self) -> Vec<Port> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.overridable_initializers(),
            Source::Graph(_) => Vec::new(),
        }
    }

    /// All inputs that a run may supply.
    #[cfg(feature = "onnx")]
    fn all_inputs(&self) -> Vec<Port> {
        let mut ports = self.inputs();
        ports.extend(self.overridable_initializers());
        ports
    }

    /// The key-value caches of an exported decoder: pairs of an input that exporters name `past_key_values.…`, `past_key_…`
    /// or `past…`, and the output `present…` of the same ending. For [`CompileOptions::states`](crate::CompileOptions::states).
    pub fn cache_pairs(&self) -> Vec<(String, String)> {
        let outputs = self.outputs();
        let output = |input: &str| {
            let endings =
                ["past_key_values", "past"].into_iter().filter_map(|prefix| input.strip_prefix(prefix));
            let names =
                endings.flat_map(|rest| [format!("present{rest}"), format!("present_key_values{rest}")]);
            names.into_iter().find(|name| outputs.iter().any(|port| port.name == *name))
        };
        let inputs = self.inputs().into_iter();
        inputs.filter_map(|port| Some((port.name.clone(), output(&port.name)?))).collect()
    }

    /// The outputs of a run.
    pub fn outputs(&self) -> Vec<Port> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.outputs(),
            Source::Graph(model) => graph_outputs(&model.graph),
        }
    }

    /// The graph, of a model that is one.
    pub fn graph(&self) -> Option<&Graph> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(_) => None,
            Source::Graph(model) => Some(&model.graph),
        }
    }

    /// A weight by name.
    pub fn weight(&self, name: &str) -> Option<Tensor> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(onnx) => onnx.weight(name),
            Source::Graph(model) => {
                model.params.iter().find(|(n, _)| n == name).map(|(_, tensor)| tensor.clone())
            }
        }
    }

    /// As [`onnx`](crate::internals::ModelExt::onnx).
    #[cfg(feature = "onnx")]
    pub(crate) fn onnx_file(&self) -> Option<&onnx_file::Model> {
        match &self.source {
            Source::Onnx(onnx) => Some(onnx),
            Source::Graph(_) => None,
        }
    }
}

impl sealed::Compile for Model {
    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<Executable, Error> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(file) => OnnxExecutable::compile(self, file, session, options),
            Source::Graph(model) => {
                let graph = watched(&model.graph, &self.watched)?;
                let executable = Executable::of_graph(session.clone(), &graph, options)?;
                executable.set_params(model.params.iter().cloned())?;
                // A graph of a file in text form has its params set later, if it has any.
                if !model.params.is_empty() {
                    executable.load()?;
                }
                Ok(executable)
            }
        }
    }

    fn graphs_for(&self, session: &Session, options: &CompileOptions) -> Result<Vec<Graph>, Error> {
        match &self.source {
            #[cfg(feature = "onnx")]
            Source::Onnx(file) => OnnxExecutable::imported(self, file, session, options),
            Source::Graph(model) => model.graph.graphs_for(session, options),
        }
    }
}

/// The values that nodes of a graph compute, by name: the node's, with `.1` and so on for further results. Of nodes that
/// share a name the first is found.
fn graph_values(graph: &Graph) -> Vec<(String, olivine_ir::ValueId)> {
    let results = |node: &olivine_ir::Node| {
        let name = node.name.clone();
        let named = move |(i, id): (usize, &olivine_ir::ValueId)| match i {
            0 => (name.clone(), *id),
            _ => (format!("{name}.{i}"), *id),
        };
        node.outputs.iter().enumerate().map(named).collect::<Vec<_>>()
    };
    graph.nodes().iter().flat_map(results).collect()
}

/// Names of the values inside a graph.
pub(crate) fn value_names(graph: &Graph) -> Vec<String> {
    graph_values(graph).into_iter().map(|(name, _)| name).collect()
}

/// A graph with values from inside it among its outputs.
pub(crate) fn watched(graph: &Graph, names: &[String]) -> Result<Graph, Error> {
    let mut graph = graph.clone();
    if names.is_empty() {
        return Ok(graph);
    }
    let values = graph_values(&graph);
    for name in names {
        if graph.outputs().iter().any(|output| output.name == *name) {
            continue;
        }
        let Some((_, id)) = values.iter().find(|(value, _)| value == name) else {
            let nearest = nearest(name, values.iter().map(|(value, _)| value.as_str()));
            return Err(Error::UnknownName { kind: "value", name: name.clone(), nearest });
        };
        graph.output(name, *id)?;
    }
    Ok(graph)
}
