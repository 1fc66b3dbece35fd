//! What a session compiles: one type for graphs and for model files.
//!
//! ```text
//!   mod.rs     the executable, and every way to run it
//!   options.rs how it is compiled
//!   graph.rs   one graph, compiled for the sizes that come
//!   plans.rs   what it is compiled to, and which sizes each plan holds for
//!   state.rs   tensors that stay on the device from run to run
//!   growth.rs  those that grow in place
//!   split.rs   a graph cut where operations run on the host
//!   host.rs    runs of such a graph
//!   io.rs      what goes into a run and what comes out
//!   future.rs  runs in flight as futures
//!   asynchronous.rs  what never blocks: the way in a browser
//! ```
//!
//! A run of a graph is a run of one compiled graph. A run of an ONNX model may first run graphs that find out sizes, and
//! loops; every method then ends in the last graph.

#[cfg(feature = "async")]
mod asynchronous;
#[cfg(feature = "async")]
mod future;
mod graph;
mod growth;
mod host;
mod io;
mod options;
mod plans;
mod split;
mod state;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
#[cfg(feature = "onnx")]
use std::sync::{Mutex, PoisonError};
#[cfg(feature = "onnx")]
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use olivine_ir::port::{Dim, ElementType, Kind, Port};
use olivine_ir::{Def, Graph, Tensor, ValueId};

use crate::engine::{Lowered, StepTime};
use crate::model::value_names;
#[cfg(feature = "onnx")]
use crate::model::{OnnxExecutable, Passed};
use crate::{Error, Session};

pub(crate) use graph::{GraphExecutable, NamedInputs};
pub(crate) use host::{HostOps, check_names};
pub(crate) use io::{write_results, zeros};

#[cfg(feature = "async")]
pub use future::PendingFuture;
pub use io::{Input, Outputs, OutputsIter, Pending, ResidentOutputs, ResidentRun};
pub use options::CompileOptions;
pub use state::State;

/// A graph or a model compiled for a session's device. It may run from several threads at once.
///
/// Sizes may be open ([`Graph::input_with_dims`], named dimensions of an ONNX model). What is compiled for the first sizes
/// serves all others that need the same kernels; the rest is compiled when it first comes. All of it shares the weights.
pub struct Executable {
    session: Session,
    source: Source,
    options: CompileOptions,
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable")
            .field("device", &format_args!("{}", self.session.device()))
            .field("inputs", &listed_ports(&self.inputs()))
            .field("outputs", &listed_ports(&self.outputs()))
            .finish_non_exhaustive()
    }
}

/// Inputs or outputs in words, each in one.
pub(crate) fn listed_ports(ports: &[Port]) -> Vec<String> {
    ports.iter().map(|port| format!("{}: {}", port.name, port.kind)).collect()
}

/// What was compiled.
enum Source {
    Graph(Arc<GraphExecutable>),
    #[cfg(feature = "onnx")]
    Onnx(Box<OnnxExecutable>),
}

/// The graph that a run ends in, and what was computed for it on the way.
struct Ready {
    graph: Arc<GraphExecutable>,
    #[cfg(feature = "onnx")]
    passed: Vec<(String, Passed)>,
    /// Whether names that the graph does not have are an error; a model has looked at them already.
    all: bool,
}

impl Ready {
    fn of_graph(graph: &Arc<GraphExecutable>) -> Self {
        Ready {
            graph: graph.clone(),
            #[cfg(feature = "onnx")]
            passed: Vec::new(),
            all: true,
        }
    }

    /// The graph's inputs: those of the caller, and what was computed.
    fn inputs<'a>(&'a self, given: &[(&'a str, Input<'a>)]) -> NamedInputs<'a> {
        if self.all {
            return given.to_vec();
        }
        let takes = |name: &str| self.graph.position(name).is_some();
        let mut inputs: NamedInputs<'a> = Vec::with_capacity(given.len());
        #[cfg(feature = "onnx")]
        inputs.extend(
            self.passed
                .iter()
                .filter(|(name, _)| takes(name))
                .map(|(name, value)| (name.as_str(), value.input())),
        );
        let computed = inputs.len();
        for (name, value) in given.iter().filter(|(name, _)| takes(name)) {
            if !inputs[..computed].iter().any(|(computed, _)| computed == name) {
                inputs.push((name, *value));
            }
        }
        inputs
    }
}

impl Executable {
    pub(crate) fn of_graph(session: Session, graph: &Graph, options: &CompileOptions) -> Result<Self, Error> {
        options.check(&graph_inputs(graph), &graph_outputs(graph))?;
        let model = session.inner.engine.model(options.tuning.clone());
        let shapes = options.shapes_of(graph)?;
        let states = options.state.clone();
        let mut computed = graph.clone();
        computed.retain_outputs(|name| options.computes(name));
        check_names(&options.host_ops, &[graph])?;
        let host = HostOps::new(&session, &options.host_ops)?;
        let compiled = GraphExecutable::new(session.clone(), computed, states, model, shapes, host)?;
        Ok(Executable { session, source: Source::Graph(Arc::new(compiled)), options: options.clone() })
    }

    #[cfg(feature = "onnx")]
    pub(crate) fn of_onnx(session: Session, model: OnnxExecutable, options: &CompileOptions) -> Self {
        Executable { session, source: Source::Onnx(Box::new(model)), options: options.clone() }
    }

    /// The session that it was compiled in.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The inputs that a run must supply, without those that are state.
    pub fn inputs(&self) -> Vec<Port> {
        let mut inputs = self.all_inputs();
        inputs.retain(|port| !self.options.state.iter().any(|(input, _)| *input == port.name));
        inputs
    }

    /// The outputs of a run, with those that become state.
    pub fn outputs(&self) -> Vec<Port> {
        let mut outputs = match &self.source {
            Source::Graph(graph) => graph_outputs(graph.graph()),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.model().outputs(),
        };
        outputs.retain(|port| self.options.computes(&port.name));
        outputs
    }

    fn all_inputs(&self) -> Vec<Port> {
        match &self.source {
            Source::Graph(graph) => graph_inputs(graph.graph()),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.model().inputs(),
        }
    }

    /// The graphs that are compiled now: one, or those of an ONNX model's stages, loops and sizes.
    pub fn graphs(&self) -> Vec<Graph> {
        self.compiled_graphs().iter().map(|graph| graph.graph().clone()).collect()
    }

    /// How many plans are compiled now, over all graphs. A plan holds for all sizes that give the same answers to what its
    /// compile asked about them.
    pub fn compiled(&self) -> usize {
        self.compiled_graphs().iter().map(|graph| graph.plans()).sum()
    }

    /// How many times the device's commands were recorded so far, over all graphs and plans. Runs on the same sizes and the same
    /// resident tensors replay what is there. 0 on the CPU.
    pub fn recordings(&self) -> usize {
        self.compiled_graphs().iter().map(|graph| graph.recordings()).sum()
    }

    /// What each import of a model assumes of the open sizes.
    pub(crate) fn import_guards(&self) -> Vec<Vec<String>> {
        match &self.source {
            Source::Graph(_) => Vec::new(),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.import_guards(),
        }
    }

    pub(crate) fn compiled_graphs(&self) -> Vec<Arc<GraphExecutable>> {
        match &self.source {
            Source::Graph(graph) => vec![graph.clone()],
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.graphs(),
        }
    }

    /// The number of the next run, which its random numbers depend on. It begins at 0, and every run that does not give
    /// the input [`RUN_COUNTER`](olivine_ir::op::RUN_COUNTER) itself takes it and adds 1.
    pub fn run_counter(&self) -> u64 {
        match &self.source {
            Source::Graph(graph) => graph.run_counter(),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.run_counter(),
        }
    }

    /// Sets the number of the next run: the runs after it draw what the runs from that number on drew before.
    pub fn set_run_counter(&self, run: u64) {
        match &self.source {
            Source::Graph(graph) => graph.set_run_counter(run),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.set_run_counter(run),
        }
    }

    /// Sets or replaces a param of a graph; the elements are shared, not copied. The weights of a model file come with
    /// it; [`Model::with_weights`](crate::Model::with_weights) changes them.
    pub fn set_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        self.params()?.set_param(name, tensor)
    }

    /// Sets or replaces a param and brings it to the device now, so that a model larger than the host's memory can
    /// be loaded one param at a time.
    pub fn upload_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        self.params()?.upload_param(name, tensor)
    }

    /// Sets several params.
    pub fn set_params(&self, params: impl IntoIterator<Item = (String, Tensor)>) -> Result<(), Error> {
        params.into_iter().try_for_each(|(name, tensor)| self.set_param(&name, tensor))
    }

    /// The graph whose params can be set.
    fn params(&self) -> Result<&GraphExecutable, Error> {
        match &self.source {
            Source::Graph(graph) => Ok(graph),
            #[cfg(feature = "onnx")]
            Source::Onnx(_) => Err(Error::FixedWeights),
        }
    }

    /// Brings params to the device and packs them for the kernels now instead of at the first run. What is compiled of a
    /// model file is loaded already.
    pub fn load(&self) -> Result<(), Error> {
        self.compiled_graphs().iter().try_for_each(|graph| graph.load())
    }

    /// Compiles ahead what runs of such sizes need, by the names of open sizes, and returns how many plans that took. A
    /// plan serves all sizes that need the same kernels; what is built stays in the device's cache on disk too. Params that are
    /// set by then are packed for every plan.
    pub fn prepare<'a>(
        &self,
        sizes: impl IntoIterator<Item = (&'a str, RangeInclusive<usize>)>,
    ) -> Result<usize, Error> {
        let ranges: Vec<(&str, RangeInclusive<usize>)> = sizes.into_iter().collect();
        let mut made = 0;
        for_each_combination(&ranges, |sizes| {
            made += match &self.source {
                Source::Graph(graph) => graph.prepare_for(sizes)?,
                #[cfg(feature = "onnx")]
                Source::Onnx(model) => model.prepare_for(sizes)?,
            };
            Ok(())
        })?;
        Ok(made)
    }

    /// Runs on named inputs, which are borrowed, not copied; results come in new tensors. Element `i` of a sequence is the
    /// input, or output, `name[i]`.
    pub fn run<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.run(ready.inputs(&inputs))
    }

    /// Begins a run and returns; several may be in flight. The inputs are taken over before this returns. What an ONNX
    /// model runs to find out sizes, and its loops, have run by then.
    pub fn submit<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Pending, Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.submit(ready.inputs(&inputs))
    }

    /// Runs and leaves the outputs on the device, by name; they may be inputs of other runs, or be read in part.
    pub fn run_resident<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<ResidentOutputs, Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.run_resident(ready.inputs(&inputs))
    }

    /// Begins a run whose outputs stay on the device and returns; several may be in flight.
    pub fn submit_resident<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<ResidentRun, Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.submit_resident(ready.inputs(&inputs))
    }

    /// Runs and writes results into existing tensors, one for each output by name; nothing is allocated for them.
    pub fn run_into<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        outputs: &mut [(&str, &mut Tensor)],
    ) -> Result<(), Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.run_into(ready.inputs(&inputs), outputs)
    }

    /// Runs once and times every kernel, of all graphs that a run goes through; the outputs are dropped where they are.
    pub fn profile<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Vec<StepTime>, Error> {
        let mut all: Vec<StepTime> = Vec::new();
        for times in self.for_each_graph(inputs, &|graph, inputs| graph.profile(inputs))? {
            let begun = all.iter().map(|step| step.start + step.time).max().unwrap_or_default();
            all.extend(times.into_iter().map(|step| StepTime { start: begun + step.start, ..step }));
        }
        Ok(all)
    }

    /// As [`time`](crate::internals::ExecutableExt::time).
    pub(crate) fn time_runs<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        runs: u32,
    ) -> Result<(Duration, ResidentOutputs), Error> {
        let inputs = listed(inputs);
        let ready = self.ready(&inputs)?;
        ready.graph.time(ready.inputs(&inputs), runs)
    }

    /// The kernel calls of a run on such inputs, graph by graph.
    pub(crate) fn lowered_for<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Vec<Lowered>, Error> {
        self.for_each_graph(inputs, &|graph, inputs| graph.lowered(inputs))
    }

    /// What a function makes of every graph that a run on such inputs goes through, in order: those that find out sizes, each
    /// pass through a loop's, and the last. The run is made for all but the last.
    #[cfg_attr(not(feature = "onnx"), allow(unused_variables, reason = "a graph is the only one"))]
    fn for_each_graph<'a, V: Into<Input<'a>>, R: Send>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        visit: &(dyn Fn(&GraphExecutable, NamedInputs<'_>) -> Result<R, Error> + Sync),
    ) -> Result<Vec<R>, Error> {
        let inputs = listed(inputs);
        #[cfg(feature = "onnx")]
        if let Source::Onnx(model) = &self.source {
            let before: Mutex<Vec<R>> = Mutex::default();
            let collect = |graph: &GraphExecutable, inputs: NamedInputs<'_>| {
                let result = visit(graph, inputs)?;
                before.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                Ok(())
            };
            let (graph, passed) = now(model.ready_visiting(&inputs, Some(&collect)))?;
            let ready = Ready { graph, passed, all: false };
            let mut all = before.into_inner().unwrap_or_else(PoisonError::into_inner);
            all.push(visit(&ready.graph, ready.inputs(&inputs))?);
            return Ok(all);
        }
        let ready = self.ready(&inputs)?;
        Ok(vec![visit(&ready.graph, ready.inputs(&inputs))?])
    }

    /// The host that runs operations of a GPU's model, where some are named.
    pub(crate) fn host_session(&self) -> Option<&Session> {
        let host = match &self.source {
            Source::Graph(graph) => graph.host(),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.host(),
        };
        host.map(HostOps::session)
    }

    /// Names of the values inside the graph or model, for [`Executable::run_watching`].
    pub fn values(&self) -> Vec<String> {
        match &self.source {
            Source::Graph(graph) => value_names(graph.graph()),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => model.model().values(),
        }
    }

    /// Runs and returns values from inside as well, by the names that [`Executable::values`] lists, after the outputs.
    ///
    /// To look inside, not to run often: each call compiles the graph anew, with the values among its outputs. A value
    /// that is no tensor, or that the importer of a model did not need, is left out.
    pub fn run_watching<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Outputs, Error> {
        self.watching(names.into_iter().map(Into::into).collect(), &[])?.run(inputs)
    }

    /// As [`Executable::run_watching`], on a state, which is then what the run leaves, as after [`Executable::run_with_state`].
    pub fn run_watching_with_state<'a, V: Into<Input<'a>>>(
        &self,
        state: &mut State,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Outputs, Error> {
        let watching = self.watching(names.into_iter().map(Into::into).collect(), &self.options.state)?;
        watching.run_with_state(state, inputs)
    }

    /// The same with values from inside among the outputs; these states are all of its own, or none.
    fn watching(&self, names: Vec<String>, states: &[(String, String)]) -> Result<Executable, Error> {
        let source = match &self.source {
            Source::Graph(graph) => Source::Graph(Arc::new(graph.watching(&names, states)?)),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => Source::Onnx(Box::new(model.watching(names, states)?)),
        };
        let (tuning, state) = (self.options.tuning.clone(), states.to_vec());
        let options = CompileOptions { tuning, state, ..CompileOptions::default() };
        Ok(Executable { session: self.session.clone(), source, options })
    }

    /// The last graph of a run on these inputs, compiled.
    pub(crate) fn last_graph<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Graph, Error> {
        Ok(self.ready(&listed(inputs))?.graph.graph().clone())
    }

    /// Finds the graph that a run ends in; an ONNX model's stages and loops run here.
    #[cfg_attr(not(feature = "onnx"), allow(unused_variables, reason = "a graph is the same for all inputs"))]
    fn ready(&self, inputs: &[(&str, Input<'_>)]) -> Result<Ready, Error> {
        match &self.source {
            Source::Graph(graph) => Ok(Ready::of_graph(graph)),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => {
                let (graph, passed) = now(model.ready(inputs))?;
                Ok(Ready { graph, passed, all: false })
            }
        }
    }
}

/// Calls `visit` with every combination of sizes, the last name's changing fastest.
fn for_each_combination(
    ranges: &[(&str, RangeInclusive<usize>)],
    mut visit: impl FnMut(&[(&str, usize)]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut sizes: Vec<(&str, usize)> = ranges.iter().map(|(name, range)| (*name, *range.start())).collect();
    if ranges.iter().any(|(_, range)| range.is_empty()) {
        return Ok(());
    }
    loop {
        visit(&sizes)?;
        let Some(at) = (0..ranges.len()).rev().find(|at| sizes[*at].1 < *ranges[*at].1.end()) else {
            return Ok(());
        };
        sizes[at].1 += 1;
        for later in at + 1..ranges.len() {
            sizes[later].1 = *ranges[later].1.start();
        }
    }
}

/// Runs a future whose waits block, so that its first poll is its last. Where nothing can block it may not be.
#[cfg(feature = "onnx")]
fn now<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::CannotBlock { call: "run" }),
    }
}

/// Inputs as a list that can be read twice.
fn listed<'a, V: Into<Input<'a>>>(
    inputs: impl IntoIterator<Item = (&'a str, V)>,
) -> Vec<(&'a str, Input<'a>)> {
    inputs.into_iter().map(|(name, input)| (name, input.into())).collect()
}

/// A graph's inputs as a model file would declare them.
pub(crate) fn graph_inputs(graph: &Graph) -> Vec<Port> {
    let port = |(name, id): (&str, ValueId)| {
        let value = &graph.values()[id.index()];
        let open: &[Option<String>] = if let Def::Input { dims, .. } = &value.def { dims } else { &[] };
        let dim = |(axis, size): (usize, usize)| match open.get(axis) {
            Some(Some(name)) => Dim::Named(name.clone()),
            _ => Dim::Fixed(size),
        };
        let dims = value.ty.elements().iter().copied().enumerate().map(dim).collect();
        let element = ElementType::of(value.ty);
        Port { name: name.to_string(), kind: Kind::Tensor { element, dims: Some(dims) } }
    };
    graph.inputs().map(port).collect()
}

/// A graph's outputs as a model file would declare them; their sizes are open where any input's is.
pub(crate) fn graph_outputs(graph: &Graph) -> Vec<Port> {
    let is_open = |id: ValueId| match &graph.values()[id.index()].def {
        Def::Input { dims, .. } => dims.iter().any(Option::is_some),
        _ => false,
    };
    let open = graph.inputs().any(|(_, id)| is_open(id));
    let port = |output: &olivine_ir::Output| {
        let ty = graph.values()[output.value.index()].ty;
        let shape = ty.elements();
        let dims = shape.iter().map(|size| if open { Dim::Free } else { Dim::Fixed(*size) }).collect();
        let element = ElementType::of(ty);
        Port { name: output.name.clone(), kind: Kind::Tensor { element, dims: Some(dims) } }
    };
    graph.outputs().iter().map(port).collect()
}
