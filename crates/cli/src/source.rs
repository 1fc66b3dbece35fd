//! Where a command's graph comes from: a file, stdin, a built-in model or an ONNX file.

use std::path::Path;

use olivine::internals::ir::nearest;
use olivine::ir::{Graph, Tensor};
use olivine_files::{Format, read_bounded, read_plain};

use crate::answer::Failure;
use crate::model::{BuiltIn, Sizes};
use crate::onnx;

/// A larger text is no graph that anyone wrote.
const LARGEST: u64 = 1 << 30;

/// Reads the graph that `name` stands for: a built-in model, an ONNX file, `-` for stdin, or a file in text form.
pub(crate) fn graph(name: &str, sizes: &Sizes) -> Result<Graph, Failure> {
    Ok(graph_and_weights(name, sizes)?.0)
}

/// The graph that `name` stands for, and its weights where it brings some.
pub(crate) fn graph_and_weights(
    name: &str,
    sizes: &Sizes,
) -> Result<(Graph, Vec<(String, Tensor)>), Failure> {
    if let Some(model) = BuiltIn::named(name) {
        return Ok((sizes.of(model)?.graph()?, Vec::new()));
    }
    if onnx::is_onnx(name) && !sizes.any() {
        return onnx::graph(Path::new(name), &sizes.dims);
    }
    sizes.dims.none()?;
    if sizes.any() {
        return Err(Failure::new("sizes can only be given for a built-in model")
            .hint("the built-in models are bert-base and encoder"));
    }
    let read = match name {
        "-" => read_bounded(std::io::stdin().lock(), 0, LARGEST),
        path => read_plain(Path::new(path), LARGEST),
    };
    let bytes = read.map_err(|error| {
        let failure = Failure::new(error.to_string()).context(format!("cannot read `{name}`"));
        match nearest(name, ["bert-base", "encoder"]) {
            Some(model) => failure.hint(format!("did you mean the built-in model `{model}`?")),
            None => failure.hint("give a file, `-` for stdin, `bert-base` or `encoder`"),
        }
    })?;
    let not_a_graph = |failure: Failure| failure.context(format!("`{name}` is not a graph"));
    if let Some(format) = Format::of(&bytes).filter(|format| *format != Format::GraphText) {
        return Err(not_a_graph(Failure::new(format!("it is {format}")).hint(format.advice())));
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| not_a_graph(Failure::new(error.to_string())))?;
    let graph = text.parse().map_err(|error| not_a_graph(Failure::from(error)))?;
    Ok((graph, Vec::new()))
}
