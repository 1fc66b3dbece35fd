//! How a graph or model is compiled.

use std::sync::Arc;

use olivine_gpu::Record;
use olivine_ir::port::{Dim, ElementType, Kind, Port};
use olivine_ir::{DType, Graph, Shape, TensorType, nearest};

use super::graph_inputs;
use crate::Error;

/// How a graph or model is compiled; the defaults are right for most.
///
/// ```
/// use olivine::CompileOptions;
/// let options = CompileOptions::new().state("past", "present").dim("batch", 1);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Pairs (input, output): the output becomes the input of the next run and stays on the device meanwhile
    /// ([`Executable::run_with_state`](crate::Executable::run_with_state)). Where the two are of one shape, the output is
    /// written over the input.
    pub state: Vec<(String, String)>,
    /// Outputs to compute; all of them where none is named. Those that become state are always computed.
    pub outputs: Vec<String>,
    /// Sizes of named dimensions to compile for; runs may have others.
    pub dims: Vec<(String, usize)>,
    /// Shapes of inputs to compile for; runs may have others where the sizes are open.
    pub shapes: Vec<(String, Vec<usize>)>,
    /// On a GPU, the record of measured choices to compile by, instead of the session's.
    pub tuning: Option<Arc<Record>>,
    /// On a GPU, operations that run on the host, by the operation's name or the node's; none where none is named.
    pub host_ops: Vec<String>,
}

impl CompileOptions {
    /// The defaults.
    pub fn new() -> Self {
        CompileOptions::default()
    }

    /// Adds a pair of an input and the output that replaces it.
    pub fn state(mut self, input: impl Into<String>, output: impl Into<String>) -> Self {
        self.state.push((input.into(), output.into()));
        self
    }

    /// Adds several pairs.
    pub fn states<I: Into<String>, O: Into<String>>(self, pairs: impl IntoIterator<Item = (I, O)>) -> Self {
        pairs.into_iter().fold(self, |options, (input, output)| options.state(input, output))
    }

    /// Computes these outputs alone, and those that become state.
    pub fn outputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.outputs.extend(names.into_iter().map(Into::into));
        self
    }

    /// Whether an output is computed; an element of a sequence is `name[i]`.
    pub(crate) fn computes(&self, output: &str) -> bool {
        let is = |name: &String| {
            output.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        };
        self.outputs.is_empty()
            || self.outputs.iter().any(is)
            || self.state.iter().any(|(_, state)| is(state))
    }

    /// Compiles for a size of a named dimension.
    pub fn dim(mut self, name: impl Into<String>, size: usize) -> Self {
        self.dims.push((name.into(), size));
        self
    }

    /// Compiles for a shape of an input.
    pub fn shape(mut self, input: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        self.shapes.push((input.into(), shape.into()));
        self
    }

    /// On a GPU, compiles by this record of measured choices.
    pub fn tuning(mut self, record: Arc<Record>) -> Self {
        self.tuning = Some(record);
        self
    }

    /// Runs operations on the host although the device is a GPU: all of an operation's name, or the one of a node's name. The
    /// graph is cut at them, and values are copied to the host and back, which mostly takes longer than the operation; it is
    /// for what a device cannot do, or does wrongly. On the CPU it changes nothing. A name that the model does not have is
    /// an error that lists its operations.
    pub fn host_ops<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.host_ops.extend(names.into_iter().map(Into::into));
        self
    }

    /// Whether sizes are given.
    fn has_sizes(&self) -> bool {
        !(self.dims.is_empty() && self.shapes.is_empty())
    }

    /// An input's type where all of its sizes are fixed or given.
    pub(crate) fn type_of(&self, port: &Port) -> Result<Option<TensorType>, Error> {
        let Kind::Tensor { element, dims } = &port.kind else { return Ok(None) };
        let Some(dtype) = element.dtype() else { return Ok(None) };
        let sizes = match self.shapes.iter().find(|(input, _)| *input == port.name) {
            Some((_, shape)) => Some(shape.clone()),
            None => dims.as_ref().and_then(|dims| dims.iter().map(|dim| self.size(dim)).collect()),
        };
        sizes.map(|sizes| type_of_elements(*element, dtype, &sizes)).transpose()
    }

    fn size(&self, dim: &Dim) -> Option<usize> {
        match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Named(name) => self.dims.iter().find(|(given, _)| given == name).map(|(_, size)| *size),
            Dim::Free => None,
        }
    }

    /// The shapes to compile a graph for, where sizes are given; sizes that are not stay as declared.
    pub(crate) fn shapes_of(&self, graph: &Graph) -> Result<Option<Vec<Shape>>, Error> {
        if !self.has_sizes() {
            return Ok(None);
        }
        let shape = |(port, (_, id)): (Port, (&str, olivine_ir::ValueId))| {
            let declared = graph.values()[id.index()].ty;
            let stored = |sizes: &[usize]| {
                Ok(type_of_elements(ElementType::of(declared), declared.dtype, sizes)?.shape)
            };
            if let Some((_, shape)) = self.shapes.iter().find(|(input, _)| *input == port.name) {
                return stored(shape);
            }
            let Kind::Tensor { dims: Some(dims), .. } = &port.kind else { return Ok(declared.shape) };
            let shape = declared.elements();
            let sizes = dims.iter().zip(shape.iter());
            let sizes: Vec<usize> = sizes.map(|(dim, size)| self.size(dim).unwrap_or(*size)).collect();
            stored(&sizes)
        };
        graph_inputs(graph).into_iter().zip(graph.inputs()).map(shape).collect::<Result<_, Error>>().map(Some)
    }

    /// Refuses names that the model does not have, and states whose output cannot be the next run's input.
    pub(crate) fn check(&self, inputs: &[Port], outputs: &[Port]) -> Result<(), Error> {
        for (at, (input, output)) in self.state.iter().enumerate() {
            let (from, to) = (named("input", input, inputs)?, named("output", output, outputs)?);
            if let Some(problem) = mismatch(&from.kind, &to.kind) {
                // An output of a fixed type is said to be of the wrong one.
                if let Some(got) = CompileOptions::default().type_of(to)? {
                    let (name, expected) = (output.clone(), from.kind.to_string());
                    return Err(Error::WrongType { kind: "output", name, expected, got });
                }
                return Err(Error::BadState { input: input.clone(), output: output.clone(), problem });
            }
            if self.state[..at].iter().any(|(i, o)| i == input || o == output) {
                return Err(Error::GivenTwice { kind: "state", name: input.clone() });
            }
        }
        for (at, output) in self.outputs.iter().enumerate() {
            named("output", output, outputs)?;
            if self.outputs[..at].contains(output) {
                return Err(Error::GivenTwice { kind: "output", name: output.clone() });
            }
        }
        for (at, (input, shape)) in self.shapes.iter().enumerate() {
            let port = named("input", input, inputs)?;
            if self.shapes[..at].iter().any(|(name, _)| name == input) {
                return Err(Error::GivenTwice { kind: "shape of input", name: input.clone() });
            }
            let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Fixed(fixed) if fixed != size);
            if let Kind::Tensor { element, dims: Some(dims) } = &port.kind
                && (dims.len() != shape.len() || !dims.iter().zip(shape).all(fits))
            {
                let (name, expected) = (input.clone(), port.kind.to_string());
                let got = element.dtype().map(|dtype| type_of_elements(*element, dtype, shape));
                return Err(match got {
                    Some(Ok(got)) => Error::WrongType { kind: "input", name, expected, got },
                    Some(Err(error)) => error,
                    None => Error::UnknownName { kind: "input", name, nearest: None },
                });
            }
        }
        let dims = || inputs.iter().flat_map(|port| named_dims(&port.kind));
        for (at, (name, _)) in self.dims.iter().enumerate() {
            if !dims().any(|dim| dim == name) {
                let nearest = nearest(name, dims());
                return Err(Error::UnknownName { kind: "dimension", name: name.clone(), nearest });
            }
            if self.dims[..at].iter().any(|(given, _)| given == name) {
                return Err(Error::GivenTwice { kind: "dimension", name: name.clone() });
            }
        }
        Ok(())
    }
}

/// The type of a tensor of so many elements.
fn type_of_elements(element: ElementType, dtype: DType, sizes: &[usize]) -> Result<TensorType, Error> {
    Ok(match element.format() {
        Some(format) => TensorType::packed(format, sizes)?,
        None => TensorType::new(dtype, Shape::new(sizes)?),
    })
}

fn named<'p>(kind: &'static str, name: &str, ports: &'p [Port]) -> Result<&'p Port, Error> {
    ports.iter().find(|port| port.name == name).ok_or_else(|| Error::UnknownName {
        kind,
        name: name.into(),
        nearest: nearest(name, ports.iter().map(|port| port.name.as_str())),
    })
}

fn named_dims(kind: &Kind) -> Vec<&str> {
    let Kind::Tensor { dims: Some(dims), .. } = kind else { return Vec::new() };
    dims.iter()
        .filter_map(|dim| if let Dim::Named(name) = dim { Some(name.as_str()) } else { None })
        .collect()
}

/// Why an output can never be a later run's input.
fn mismatch(input: &Kind, output: &Kind) -> Option<String> {
    let (Kind::Tensor { element: a, dims: from }, Kind::Tensor { element: b, dims: to }) = (input, output)
    else {
        return Some("state must be a tensor".into());
    };
    let differ = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Fixed(a), Dim::Fixed(b)) if a != b);
    let shapes_differ = match (from, to) {
        (Some(from), Some(to)) => from.len() != to.len() || from.iter().zip(to).any(differ),
        _ => false,
    };
    (a != b || shapes_differ).then(|| format!("the input is {input}, the output {output}"))
}
