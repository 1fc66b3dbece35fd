//! Where a command's graph comes from: a file, stdin, a built-in model or an ONNX file.

use std::io::Read;
use std::path::Path;

use olivine::ir::{Graph, Tensor, nearest};

use crate::answer::Failure;
use crate::model::{BuiltIn, Sizes};
use crate::onnx;

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
    if sizes.any() {
        return Err(Failure::new("sizes can only be given for a built-in model")
            .hint("the built-in models are bert-base and encoder"));
    }
    let mut text = String::new();
    let read = match name {
        "-" => std::io::stdin().lock().read_to_string(&mut text).map(drop),
        path => std::fs::read_to_string(path).map(|read| text = read),
    };
    read.map_err(|error| {
        let failure = Failure::new(error.to_string()).context(format!("cannot read `{name}`"));
        match nearest(name, ["bert-base", "encoder"]) {
            Some(model) => failure.hint(format!("did you mean the built-in model `{model}`?")),
            None => failure.hint("give a file, `-` for stdin, `bert-base` or `encoder`"),
        }
    })?;
    let graph =
        text.parse().map_err(|error| Failure::from(error).context(format!("`{name}` is not a graph")))?;
    Ok((graph, Vec::new()))
}
