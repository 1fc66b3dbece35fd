//! What is compiled, or at least checked, before the first run, so that what a device refuses is refused at once.

use olivine_cpu::UNKNOWN_ITERATIONS;
use olivine_ir::port::{Dim, Kind, Port};
use olivine_ir::{Graph, Shape, Tensor, TensorType};
use olivine_onnx::{Argument, ArgumentSource, LoopCall, Made, Outcome, Stage};

use super::OnnxExecutable;
use super::plans::{BATCH, Found, Key, Plan, Subject};
use crate::Error;

/// Sizes to check a model with where its own are open: one that suits sequences, one that suits images, and the least.
const SIZES: [usize; 3] = [32, 224, 1];

/// Values and stages that sizes may depend on, one after another, before a check gives up.
const STEPS: usize = 64;

/// A bound of more iterations is none: loops with a condition have the largest number for one.
const MOST_ITERATIONS: usize = 1 << 16;

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
            if let Some(graphs) = self.graphs_of(self.sample_key(size)?, false)? {
                return graphs.iter().try_for_each(|graph| self.check_graph(graph));
            }
        }
        Ok(())
    }

    /// The graphs of a run for the sizes of the options, and for sizes of 1 where they are open, or the first that fit the
    /// model. A loop's graph of iterations comes as often as it runs, as far as that is known; what follows a loop depends on
    /// its results and is left out.
    pub(super) fn import_ahead(&self) -> Result<Vec<Graph>, Error> {
        for size in SIZES.iter().rev() {
            if let Some(mut graphs) = self.graphs_of(self.sample_key(*size)?, true)? {
                for graph in &mut graphs {
                    graph.retain_outputs(|name| name == "value" || self.options.computes(name));
                }
                return Ok(graphs);
            }
        }
        // What does not fit is said by the import for the sizes as they are.
        let key = self.sample_key(1)?;
        self.outcome(Subject::Model, &key, &[]).map(|_| Vec::new())
    }

    fn sample_key(&self, size: usize) -> Result<Key, Error> {
        let ports = self.model.inputs();
        let types = ports.iter().map(|port| Ok(self.sample(port, size)?.map(|ty| (port.name.clone(), ty))));
        let types = types.filter_map(Result::transpose).collect::<Result<Vec<_>, Error>>()?;
        Ok(Key::of(types))
    }

    /// A type that an input could have.
    fn sample(&self, port: &Port, size: usize) -> Result<Option<TensorType>, Error> {
        if let Some(ty) = self.options.type_of(port)? {
            return Ok(Some(ty));
        }
        let Kind::Tensor { element, dims } = &port.kind else { return Ok(None) };
        let Some(dtype) = element.dtype() else { return Ok(None) };
        let given = |name: &str| {
            let dim = self.options.dims.iter().find(|(dim, _)| dim == name).map(|(_, size)| *size);
            dim.or_else(|| self.size_in_shapes(name))
        };
        let size_of = |dim: &Dim| match dim {
            Dim::Fixed(fixed) => *fixed,
            Dim::Named(name) => given(name).unwrap_or(size),
            Dim::Free => size,
        };
        let sizes: Vec<usize> = dims.iter().flatten().map(size_of).collect();
        Ok(Some(TensorType::new(dtype, Shape::new(&sizes)?)))
    }

    /// The size of a dimension in the shapes of the options.
    fn size_in_shapes(&self, name: &str) -> Option<usize> {
        let inputs = self.model.all_inputs();
        self.options.shapes.iter().find_map(|(input, shape)| {
            let port = inputs.iter().find(|port| port.name == *input)?;
            let Kind::Tensor { dims: Some(dims), .. } = &port.kind else { return None };
            let axis = dims.iter().position(|dim| matches!(dim, Dim::Named(known) if known == name))?;
            shape.get(axis).copied()
        })
    }

    /// The graphs of a key, in the order in which they run; `None` if the key's sizes do not fit the model. Values that decide
    /// sizes are taken to be 1. `loops` says whether the iterations of loops are among them.
    fn graphs_of(&self, mut key: Key, loops: bool) -> Result<Option<Vec<Graph>>, Error> {
        let (mut graphs, mut stage_values) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let Ok(outcome) = self.outcome(Subject::Model, &key, &stage_values) else { return Ok(None) };
            match outcome {
                Outcome::Whole(whole) => {
                    graphs.push(whole.graph);
                    return Ok(Some(graphs));
                }
                Outcome::NeedsInputs(names) => {
                    for name in names {
                        let Some((_, ty)) = key.types.iter().find(|(n, _)| *n == name) else {
                            return Ok(None);
                        };
                        let bytes = ones(*ty);
                        key.values.push((name, bytes));
                    }
                }
                Outcome::Stage(Stage { graph, stage_values: more, .. }) => {
                    let Ok(value) = graph.output_named("value") else { return Ok(None) };
                    let ty = graph.ty(value)?;
                    graphs.push(graph);
                    key.known.push(Found::Value(ty, ones(ty)));
                    stage_values.extend(more);
                }
                // What follows a loop depends on what it comes to.
                Outcome::Loop(call) => {
                    graphs.extend(call.arguments.iter().map(|stage| stage.graph.clone()));
                    if loops {
                        graphs.extend(self.iterations_of(&call)?);
                    }
                    return Ok(Some(graphs));
                }
            }
        }
        Ok(Some(graphs))
    }

    /// The graph of a loop's iterations, as often as it runs for the first sizes of the carried values; nothing where more
    /// than sizes decides about it.
    fn iterations_of(&self, call: &LoopCall) -> Result<Vec<Graph>, Error> {
        let key = Key { state: call.carried.iter().map(made).collect(), ..Key::default() };
        let Ok(Outcome::Whole(whole)) = self.outcome(Subject::Loop(call), &key, &[]) else {
            return Ok(Vec::new());
        };
        let most = match &call.most {
            Some(Argument::Tensor { source: ArgumentSource::Const(most), .. }) => {
                most.as_slice::<i64>().ok().and_then(|most| usize::try_from(*most.first()?).ok())
            }
            _ => None,
        };
        let count = most.filter(|most| *most <= MOST_ITERATIONS).unwrap_or(UNKNOWN_ITERATIONS);
        // Where a graph has several iterations, it counts them.
        let each = if whole.graph.output_named("count").is_ok() { BATCH } else { 1 };
        Ok(vec![whole.graph; count.div_ceil(each)])
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

/// What an argument of a loop is at its first iteration.
fn made(argument: &Argument) -> Made {
    match argument {
        Argument::Nothing => Made::Nothing,
        Argument::Tensor { ty, element, .. } => Made::Tensor(*ty, *element),
        Argument::Sequence(items, element) => Made::Sequence(items.iter().map(made).collect(), *element),
    }
}

/// The bytes of a tensor of ones.
fn ones(ty: TensorType) -> Vec<u8> {
    Tensor::scalar_of(ty.dtype, 1.0).view().bytes().repeat(ty.shape.numel())
}
