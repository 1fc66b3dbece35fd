//! Commands on ONNX models: `run`, `inspect`, `check`.

pub(crate) mod check;
mod flops;
pub(crate) mod inputs;
pub(crate) mod inspect;
mod predicted;
pub(crate) mod prepare;
pub(crate) mod run;

use std::path::Path;

use olivine::internals::ExecutableExt as _;
use olivine::internals::onnx::{ElementType, Kind, LoadOptions, Port};
use olivine::ir::{Graph, Tensor};
use olivine::{Model, Session};

use crate::answer::Failure;
use inputs::DimArgs;

/// Reads a model all of whose operators can be imported.
pub(crate) fn load(path: &Path, options: &LoadOptions) -> Result<Model, Failure> {
    Model::load_with(path, options).map_err(|e| read_failure(path, e))
}

fn read_failure(path: &Path, error: olivine::Error) -> Failure {
    let failure = Failure::from(error);
    if path.exists() { failure.context(format!("cannot use `{}`", path.display())) } else { failure }
}

/// Whether a name on the command line is that of an ONNX file.
pub(crate) fn is_onnx(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// A model as a graph, with its weights: sizes without a `--dim` are 1, and values that decide shapes are random.
pub(crate) fn graph(path: &Path, dims: &DimArgs) -> Result<(Graph, Vec<(String, Tensor)>), Failure> {
    let model = load(path, &dims.load_options())?;
    let inputs = dims.random(&model)?;
    let session = Session::new(olivine::Device::Cpu)?;
    let executable = session.compile(&model)?;
    let given = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let graph = executable.graph_for(given)?;
    let weight = |name: &str| Some((name.to_string(), model.weight(name)?));
    let weights = graph.params().filter_map(|(name, _)| weight(name)).collect();
    Ok((graph, weights))
}

/// The element type of an output by the name that a run knows it by: `name`, or `name[i]` in a sequence.
fn element_of(name: &str, ports: &[Port]) -> Option<ElementType> {
    fn innermost(kind: &Kind) -> Option<ElementType> {
        match kind {
            Kind::Tensor { element, .. } => Some(*element),
            Kind::Sequence(inner) | Kind::Optional(inner) => innermost(inner),
            Kind::Other(_) => None,
        }
    }
    let base = name.split_once('[').map_or(name, |(base, _)| base);
    let port = ports.iter().find(|p| p.name == name).or_else(|| ports.iter().find(|p| p.name == base));
    port.and_then(|p| innermost(&p.kind))
}
