//! What is compiled, or at least checked, before the first run, so that what a device refuses is refused at once.

use olivine_cpu::UNKNOWN_ITERATIONS;
use olivine_ir::port::{Dim, Kind, Port};
use olivine_ir::{Graph, Shape, Tensor, TensorType};
use olivine_onnx::{
    Argument, ArgumentSource, LoopCall, LoopResults, Made, Outcome, Part, Specialised, Stage,
};

use super::OnnxExecutable;
use super::plans::{BATCH, Found, Key, Plan, Subject};
use crate::Error;

/// Sizes to check a model with where its own are open: one that suits sequences, one that suits images, and the least.
const SIZES: [usize; 3] = [32, 224, 1];

/// Those of them where nodes that do not fit are passed over.
const PASSED_OVER: [usize; 2] = [32, 1];

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
    /// does not depend on them. Where none fit, nodes that do not are passed over. The CPU refuses no operator.
    fn check_operators(&self) -> Result<(), Error> {
        if self.is_on_host() {
            return Ok(());
        }
        for size in SIZES {
            let sampled = self.sample(Subject::Model, self.sample_key(size)?, None);
            if sampled.end.is_some() || sampled.is_long {
                return sampled.graphs.iter().try_for_each(|graph| self.check_graph(graph));
            }
        }
        // A node that does not fit one size may fit another.
        for size in PASSED_OVER {
            let sampled = self.sample(Subject::Model, self.sample_key(size)?, Some(size));
            if sampled.end.is_none() {
                tracing::debug!(
                    model = self.model.name(),
                    size,
                    "the check of operators did not reach the end"
                );
            }
            sampled.graphs.iter().try_for_each(|graph| self.check_graph(graph))?;
        }
        Ok(())
    }

    /// The graphs of a run for the sizes of the options, and for sizes of 1 where they are open, or the first that fit the
    /// model. A loop's graph of iterations comes as often as it runs, as far as that is known; what follows a loop is for
    /// the sizes that its first iterations leave, and left out where these do not fit.
    pub(super) fn import_ahead(&self) -> Result<Vec<Graph>, Error> {
        for size in SIZES.iter().rev() {
            let mut sampled = self.sample(Subject::Model, self.sample_key(*size)?, None);
            let fits = sampled.end.is_some() || sampled.is_long || sampled.has_loop;
            if !fits {
                continue;
            }
            let repeated = sampled.graphs.iter_mut().zip(&sampled.counts);
            let all = repeated.flat_map(|(graph, count)| {
                graph.retain_outputs(|name| name == "value" || self.options.computes(name));
                std::iter::repeat_n(&*graph, *count)
            });
            return Ok(all.cloned().collect());
        }
        // What does not fit is said by the import for the sizes as they are.
        let key = self.sample_key(1)?;
        self.outcome(Subject::Model, &key, &[]).map(|_| Vec::new())
    }

    fn sample_key(&self, size: usize) -> Result<Key, Error> {
        let ports = self.model.inputs();
        let types =
            ports.iter().map(|port| Ok(self.sample_type(port, size)?.map(|ty| (port.name.clone(), ty))));
        let types = types.filter_map(Result::transpose).collect::<Result<Vec<_>, Error>>()?;
        Ok(Key::of(types))
    }

    /// A type that an input could have.
    fn sample_type(&self, port: &Port, size: usize) -> Result<Option<TensorType>, Error> {
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

    /// The graphs of a key, up to where its sizes do not fit. Values that decide sizes are taken to be 1, and loops to end
    /// with what their first graph of iterations leaves. With `pass_over`, nodes that do not fit are passed over; it is the
    /// size of what they declare to be open.
    fn sample(&self, subject: Subject<'_>, mut key: Key, pass_over: Option<usize>) -> Sampled {
        let (mut sampled, mut stage_values) = (Sampled::default(), Vec::new());
        for _ in 0..STEPS {
            let outcome = match pass_over {
                Some(size) => self.outcome_for_checks(subject, &key, &stage_values, size),
                None => self.outcome(subject, &key, &stage_values),
            };
            let Ok(outcome) = outcome else { return sampled };
            match outcome {
                Outcome::Whole(whole) => {
                    sampled.add(whole.graph.clone(), 1);
                    sampled.end = Some(whole);
                    return sampled;
                }
                Outcome::NeedsInputs(names) => {
                    for name in names {
                        let Some((_, ty)) = key.types.iter().find(|(n, _)| *n == name) else {
                            return sampled;
                        };
                        let bytes = ones(*ty);
                        key.values.push((name, bytes));
                    }
                }
                Outcome::Stage(Stage { graph, stage_values: more }) => {
                    let ty = graph.output_named("value").and_then(|value| graph.ty(value));
                    let Ok(ty) = ty else { return sampled };
                    sampled.add(graph, 1);
                    key.known.push(Found::Value(ty, ones(ty)));
                    stage_values.extend(more);
                }
                Outcome::Loop(call) => {
                    sampled.has_loop = true;
                    if let Some(arguments) = &call.arguments {
                        sampled.add(arguments.graph.clone(), 1);
                        stage_values.extend(&arguments.stage_values);
                    }
                    let Some(results) = self.sample_loop(&call, pass_over, &mut sampled) else {
                        return sampled;
                    };
                    key.known.push(Found::Loop(results));
                }
            }
        }
        sampled.is_long = true;
        sampled
    }

    /// Adds the graphs of a loop's iterations for the first sizes of the carried values, as often as they run; the results
    /// are those of the first.
    fn sample_loop(
        &self,
        call: &LoopCall,
        pass_over: Option<usize>,
        sampled: &mut Sampled,
    ) -> Option<LoopResults> {
        let begin: Vec<Made> = call.carried.iter().map(Argument::made).collect();
        let key = Key { state: begin.clone(), ..Key::default() };
        let Sampled { graphs, counts, end, .. } = self.sample(Subject::Loop(call), key, pass_over);
        let most = match &call.most {
            Some(Argument::Tensor { source: ArgumentSource::Const(most), .. }) => {
                most.as_slice::<i64>().ok().and_then(|most| usize::try_from(*most.first()?).ok())
            }
            _ => None,
        };
        let count = most.filter(|most| *most <= MOST_ITERATIONS).unwrap_or(UNKNOWN_ITERATIONS);
        // Where a graph has several iterations, it counts them.
        let several = end.as_ref().is_some_and(|end| end.graph.output_named("count").is_ok());
        let passes = count.div_ceil(if several { BATCH } else { 1 });
        for (graph, each) in graphs.into_iter().zip(counts) {
            sampled.add(graph, each.saturating_mul(passes).min(MOST_ITERATIONS));
        }
        let end = end?;
        let mut parts = end.outputs.iter().filter(|(name, _)| name != "going" && name != "count");
        let carried = begin.into_iter().zip(&mut parts).map(|(begin, (_, part))| match left(&end, part) {
            Made::Nothing => begin,
            left => left,
        });
        let carried = carried.collect();
        let row = |(_, part): (usize, &(String, Part))| match left(&end, &part.1) {
            Made::Tensor(ty, element) if !several => {
                let shape = Shape::new(&[&[1], ty.shape.dims()].concat()).ok()?;
                Some(Made::Tensor(TensorType::new(ty.dtype, shape), element))
            }
            row => Some(row),
        };
        let rows = parts.enumerate().filter(|(i, _)| *i < call.rows).map(row).collect::<Option<_>>();
        Some(LoopResults { carried, rows })
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

/// The graphs that an import for sizes of our choice comes to.
#[derive(Default)]
struct Sampled {
    graphs: Vec<Graph>,
    /// How often each runs.
    counts: Vec<usize>,
    /// The last of them; `None` where the sizes do not fit.
    end: Option<Specialised>,
    /// Whether there are more stages and loops than are looked at.
    is_long: bool,
    has_loop: bool,
}

impl Sampled {
    fn add(&mut self, graph: Graph, count: usize) {
        self.graphs.push(graph);
        self.counts.push(count);
    }
}

/// What an output of a graph is.
fn left(graph: &Specialised, part: &Part) -> Made {
    match part {
        Part::Nothing => Made::Nothing,
        Part::Sequence(parts) => Made::Sequence(parts.iter().map(|part| left(graph, part)).collect(), None),
        Part::Tensor(name) => {
            let ty = graph.graph.output_named(name).and_then(|value| graph.graph.ty(value));
            let element = graph.elements.iter().find(|(output, _)| output == name);
            match (ty, element) {
                (Ok(ty), Some((_, element))) => Made::Tensor(ty, *element),
                _ => Made::Nothing,
            }
        }
    }
}

/// The bytes of a tensor of ones.
fn ones(ty: TensorType) -> Vec<u8> {
    Tensor::scalar_of(ty.dtype, 1.0).view().bytes().repeat(ty.shape.numel())
}
