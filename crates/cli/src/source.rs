//! Where a command's graph comes from: a file, stdin or a built-in model.

use std::io::Read;

use olivine::Session;
use olivine::ir::{DType, Data, Graph, Tensor, TensorType, nearest};
use olivine::models::{seeded_input, seeded_params};

use crate::answer::Failure;
use crate::model::{BuiltIn, SEED, Sizes};

/// Reads the graph that `name` stands for: a built-in model, `-` for stdin, or a file in text form.
pub(crate) fn graph(name: &str, sizes: &Sizes) -> Result<Graph, Failure> {
    if let Some(model) = BuiltIn::named(name) {
        return Ok(sizes.of(model)?.graph()?);
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
    text.parse().map_err(|error| Failure::from(error).context(format!("`{name}` is not a graph")))
}

/// Seeded tensors for every input of a graph: uniform floats, and zeros where a number may be an index.
pub(crate) fn inputs(graph: &Graph) -> Result<Vec<(String, Tensor)>, Failure> {
    let tensor = |(name, id)| Ok((String::from(name), filled(name, graph.ty(id)?)?));
    graph.inputs().map(tensor).collect()
}

/// Seeded tensors for every param of a graph.
pub(crate) fn params(graph: &Graph) -> Result<Vec<(String, Tensor)>, Failure> {
    let all_f32 = graph.params().all(|(_, id)| graph.ty(id).is_ok_and(|ty| ty.dtype == DType::F32));
    if all_f32 {
        return Ok(seeded_params(graph, SEED)?);
    }
    let tensor = |(name, id)| Ok((String::from(name), filled(name, graph.ty(id)?)?));
    graph.params().map(tensor).collect()
}

fn filled(name: &str, ty: TensorType) -> Result<Tensor, Failure> {
    if !ty.dtype.is_float() {
        return Ok(Tensor::zeros(ty.dtype, ty.shape)?);
    }
    let uniform = seeded_input(name, ty.shape, SEED)?;
    if ty.dtype == DType::F32 {
        return Ok(uniform);
    }
    converted(&uniform, ty)
}

/// The same numbers in another float type, made by the CPU's cast.
fn converted(from: &Tensor, to: TensorType) -> Result<Tensor, Failure> {
    let mut g = Graph::new("cast");
    let x = g.input("x", from.dtype(), *from.shape())?;
    let y = g.cast(x, to.dtype)?;
    g.output("y", y)?;
    let out = Session::new(olivine::Device::Cpu)?.compile(&g)?.run([("x", from)])?;
    let data: &Data = out.get("y")?.data();
    Ok(Tensor::from_data(to.shape, data.clone())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_filled_in_their_own_types() -> Result<(), Failure> {
        let mut g = Graph::new("types");
        g.input("h", DType::F16, [3])?;
        g.input("i", DType::I64, [2])?;
        let x = g.input("x", DType::F32, [2, 2])?;
        g.output("x2", x)?;
        let tensors = inputs(&g)?;
        let types: Vec<DType> = tensors.iter().map(|(_, t)| t.dtype()).collect();
        assert_eq!(types, [DType::F16, DType::I64, DType::F32]);
        assert!(tensors[0].1.to_f64().iter().all(|x| x.abs() <= 1.0));
        assert_eq!(tensors[1].1.to_f64(), [0.0, 0.0]);
        Ok(())
    }
}
