//! What is compiled, or at least checked, before the first run, so that what a device refuses is refused at once.

use olivine_ir::port::{Dim, Kind, Port};
use olivine_ir::{Graph, Shape, Tensor, TensorType};
use olivine_onnx::{Outcome, Stage};

use super::OnnxExecutable;
use super::plans::{Found, Key, Plan, Subject};
use crate::Error;

/// Sizes to check a model with where its own are open: one that suits sequences, one that suits images, and the least.
const SIZES: [usize; 3] = [32, 224, 1];

/// Values and stages that sizes may depend on, one after another, before a check gives up.
const STEPS: usize = 64;

impl OnnxExecutable {
    /// Compiles and loads the model where its sizes are fixed or given. Where they are open, or depend on values, every
    /// operator is checked against the device.
    pub(super) fn compile_ahead(&self) -> Result<(), Error> {
        self.plans.check()?;
        let mut types = Vec::new();
        for port in self.model.inputs() {
            match self.options.type_of(&port)? {
                Some(ty) => types.push((port.name, ty)),
                // Sizes are open, or a run decides whether there is a value and how many.
                None => return self.check_operators(),
            }
        }
        let key = Key::of(types);
        match self.plans.get(&key, || self.plan(Subject::Model, &key, &[]))? {
            Plan::Whole(whole) => whole.executable.load(),
            Plan::Needs(_) | Plan::Stage(_) | Plan::Loop(_) => self.check_operators(),
        }
    }

    /// Lowers the model for sizes of our choice, the first that fit it, and drops the result: what the device cannot do
    /// does not depend on them. The CPU refuses no operator.
    fn check_operators(&self) -> Result<(), Error> {
        if self.is_on_host() {
            return Ok(());
        }
        for size in SIZES {
            let ports = self.model.inputs();
            let types =
                ports.iter().map(|port| Ok(self.sample(port, size)?.map(|ty| (port.name.clone(), ty))));
            let types = types.filter_map(Result::transpose).collect::<Result<Vec<_>, Error>>()?;
            if self.check_for(Key::of(types))? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A type that an input could have.
    fn sample(&self, port: &Port, size: usize) -> Result<Option<TensorType>, Error> {
        if let Some(ty) = self.options.type_of(port)? {
            return Ok(Some(ty));
        }
        let Kind::Tensor { element, dims } = &port.kind else { return Ok(None) };
        let Some(dtype) = element.dtype() else { return Ok(None) };
        let given = |name: &str| self.options.dims.iter().find(|(dim, _)| dim == name).map(|(_, size)| *size);
        let size_of = |dim: &Dim| match dim {
            Dim::Fixed(fixed) => *fixed,
            Dim::Named(name) => given(name).unwrap_or(size),
            Dim::Free => size,
        };
        let sizes: Vec<usize> = dims.iter().flatten().map(size_of).collect();
        Ok(Some(TensorType::new(dtype, Shape::new(&sizes)?)))
    }

    /// Checks all graphs of a key; whether the key's sizes fit the model. Values that decide sizes are taken to be 1.
    fn check_for(&self, mut key: Key) -> Result<bool, Error> {
        let mut stage_values = Vec::new();
        for _ in 0..STEPS {
            let Ok(outcome) = self.outcome(Subject::Model, &key, &stage_values) else { return Ok(false) };
            match outcome {
                Outcome::Whole(whole) => {
                    self.check_graph(&whole.graph)?;
                    return Ok(true);
                }
                Outcome::NeedsInputs(names) => {
                    for name in names {
                        let Some((_, ty)) = key.types.iter().find(|(n, _)| *n == name) else {
                            return Ok(false);
                        };
                        let bytes = ones(*ty);
                        key.values.push((name, bytes));
                    }
                }
                Outcome::Stage(Stage { graph, stage_values: more, .. }) => {
                    self.check_graph(&graph)?;
                    let Ok(value) = graph.output_named("value") else { return Ok(false) };
                    let ty = graph.ty(value)?;
                    key.known.push(Found::Value(ty, ones(ty)));
                    stage_values.extend(more);
                }
                // What follows a loop depends on what it comes to.
                Outcome::Loop(call) => {
                    call.arguments.iter().try_for_each(|stage| self.check_graph(&stage.graph))?;
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    /// An error if the device cannot run a graph whatever its sizes.
    fn check_graph(&self, graph: &Graph) -> Result<(), Error> {
        let session = &self.session.inner;
        let lowered =
            session.compile(graph, false).and_then(|compiled| session.engine.program(&compiled).map(drop));
        match lowered {
            Err(
                refused @ (Error::Gpu(olivine_gpu::Error::Unsupported { .. })
                | Error::Compile(olivine_compile::Error::Unsupported { .. })),
            ) => Err(refused),
            _ => Ok(()),
        }
    }
}

/// The bytes of a tensor of ones.
fn ones(ty: TensorType) -> Vec<u8> {
    Tensor::scalar_of(ty.dtype, 1.0).view().bytes().repeat(ty.shape.numel())
}
