//! One graph compiled for a device: a plan for every class of its inputs' sizes when it first comes, all with the same params.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use olivine_cpu::HostBytes;
use olivine_gpu::Take;
use olivine_ir::op::{RUN_COUNTER, run_counter_type};
use olivine_ir::size::{Symbol, guards};
use olivine_ir::{Data, Def, Graph, Shape, Tensor, TensorType, ValueId, nearest};

use super::growth::{Movers, grown_sizes};
use super::host::HostOps;
use super::io::{
    Input, OfWatch, Outputs, Pending, ResidentOutputs, ResidentRun, host_outputs, named, write_results, zeros,
};
use super::plans::{OpenSizes, Plans};
use crate::cost::{Moved, Watch, WatchedRun};
#[cfg(feature = "async")]
use crate::engine::Engine;
use crate::engine::{Lowered, Model, Prepared, StepTime};
use crate::model::watched;
use crate::process::OfProcess;
use crate::{Error, Session};

/// Inputs of a run by name.
pub(crate) type NamedInputs<'a> = Vec<(&'a str, Input<'a>)>;

/// The inputs of a run, after their names and types were checked.
pub(super) struct Checked {
    /// In the graph's order.
    pub(super) shapes: Vec<Shape>,
    /// For every input of the graph its position among those given; `None` for the run counter, where it was not given.
    pub(super) order: Vec<Option<usize>>,
    pub(super) counter: Option<Tensor>,
}

/// A graph compiled for a session's device.
pub(crate) struct GraphExecutable {
    session: Session,
    graph: Graph,
    /// Pairs of an input and the output that replaces it, by name.
    pub(super) states: Vec<(String, String)>,
    /// Open sizes that states grow on.
    pub(super) grown: Vec<Symbol>,
    /// Positions of inputs by name.
    inputs: HashMap<String, usize>,
    pub(super) open: OpenSizes,
    model: OfProcess<Arc<dyn Model>>,
    compiled: OfProcess<RwLock<Plans>>,
    /// What is compiled for runs that append to states.
    pub(super) appended: OfProcess<RwLock<Plans>>,
    /// What moves states that grow to larger memory.
    pub(super) movers: Movers,
    /// What the next run's random numbers see.
    runs: AtomicU64,
    /// The first runs beside their prediction.
    watch: Arc<Watch>,
    /// What runs on the host although the device is a GPU.
    host: Option<Arc<HostOps>>,
}

impl GraphExecutable {
    /// Compiles a graph whose params are those of a model on the device. It is compiled for the declared shapes, or for
    /// those given, one for each input.
    pub(crate) fn new(
        session: Session,
        graph: Graph,
        states: Vec<(String, String)>,
        model: Arc<dyn Model>,
        shapes: Option<Vec<Shape>>,
        host: Option<Arc<HostOps>>,
    ) -> Result<Self, Error> {
        let inputs = graph.inputs().enumerate().map(|(i, (name, _))| (name.to_string(), i)).collect();
        let executable = GraphExecutable {
            open: OpenSizes::new(&graph)?,
            // A state that grows in place is one part's alone.
            grown: if host.is_some() { Vec::new() } else { grown_sizes(&graph, &states) },
            session,
            graph,
            states,
            inputs,
            model: OfProcess::new(model),
            compiled: OfProcess::new(RwLock::default()),
            appended: OfProcess::new(RwLock::default()),
            movers: Movers::default(),
            runs: AtomicU64::new(0),
            watch: Arc::default(),
            host,
        };
        let shapes = shapes.unwrap_or_else(|| executable.declared_shapes());
        executable.compile_for(&shapes)?;
        Ok(executable)
    }

    /// Compiles what runs of some sizes need: those with a state, where it grows.
    fn compile_for(&self, shapes: &[Shape]) -> Result<Arc<dyn Prepared>, Error> {
        match self.appending(shapes, &|_| None)? {
            Some(appending) => Ok(appending.prepared),
            None => self.specialised(shapes),
        }
    }

    /// The same graph and params, with values from inside among the outputs; these states are all of its own, or none.
    pub(super) fn watching(&self, names: &[String], states: &[(String, String)]) -> Result<Self, Error> {
        self.session.inner.check()?;
        let graph = watched(&self.graph, names)?;
        let (model, host) = (Arc::clone(&self.model), self.host.clone());
        let watching = GraphExecutable::new(self.session.clone(), graph, states.to_vec(), model, None, host)?;
        watching.set_run_counter(self.run_counter());
        Ok(watching)
    }

    /// What runs on the host although the device is a GPU.
    pub(crate) fn host(&self) -> Option<&HostOps> {
        self.host.as_deref()
    }

    /// The graph as it was given.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many plans are compiled now.
    pub(crate) fn plans(&self) -> usize {
        if !self.compiled.is_here() {
            return 0;
        }
        [&self.compiled, &self.appended].iter().map(|plans| read(plans).count()).sum()
    }

    /// How many plans were compiled so far.
    pub(crate) fn plans_made(&self) -> usize {
        if !self.compiled.is_here() {
            return 0;
        }
        [&self.compiled, &self.appended].iter().map(|plans| read(plans).made()).sum()
    }

    /// How many times runs were recorded.
    pub(crate) fn recordings(&self) -> usize {
        if !self.compiled.is_here() {
            return 0;
        }
        [&self.compiled, &self.appended].iter().map(|plans| read(plans).recordings()).sum()
    }

    /// Frees what earlier runs left on the device, and returns whether that was anything.
    #[cfg(feature = "async")]
    pub(super) fn evict(&self) -> bool {
        let [specialised, appended] = [&self.compiled, &self.appended].map(|plans| read(plans).evict());
        specialised || appended
    }

    /// Where it runs.
    #[cfg(feature = "async")]
    pub(super) fn engine(&self) -> &dyn Engine {
        self.session.inner.engine.as_ref()
    }

    /// For every plan what sizes it holds for, a line for each guard.
    pub(crate) fn guards(&self) -> Vec<Vec<String>> {
        if !self.compiled.is_here() {
            return Vec::new();
        }
        let of = |plans: &Plans| -> Vec<Vec<String>> {
            plans.guards().map(|guards| guards.iter().map(|guard| format!("{guard:?}")).collect()).collect()
        };
        [&self.compiled, &self.appended].iter().flat_map(|plans| of(&read(plans))).collect()
    }

    /// Bytes that it takes on the CPU for the shapes compiled last. `None` on a GPU.
    pub(crate) fn host_bytes(&self) -> Option<HostBytes> {
        self.compiled_last()?.host_bytes()
    }

    /// What was compiled last.
    fn compiled_last(&self) -> Option<Arc<dyn Prepared>> {
        if !self.compiled.is_here() {
            return None;
        }
        let last = |plans: &RwLock<Plans>| read(plans).last().cloned();
        last(&self.appended).or_else(|| last(&self.compiled))
    }

    /// The number of the next run, which its random numbers depend on. It begins at 0, and every run that does not
    /// give the input [`RUN_COUNTER`] itself takes it and adds 1.
    pub(crate) fn run_counter(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Sets the number of the next run: the runs after it draw what the runs from that number on drew before.
    pub(crate) fn set_run_counter(&self, run: u64) {
        self.runs.store(run, Ordering::Relaxed);
    }

    /// Sets or replaces a param; the elements are shared, not copied.
    pub(crate) fn set_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        self.check_param(name, &tensor)?;
        self.set_host_param(name, &tensor);
        self.model.set_param(name, tensor);
        Ok(())
    }

    /// Sets or replaces a param and brings it to the device now, so that a model larger than the host's memory can
    /// be loaded one param at a time.
    pub(crate) fn upload_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        self.check_param(name, &tensor)?;
        self.set_host_param(name, &tensor);
        self.model.upload_param(name, tensor)
    }

    /// Gives a param to the host, where operations run there.
    fn set_host_param(&self, name: &str, tensor: &Tensor) {
        if let Some(host) = &self.host {
            host.set_param(name, tensor.clone());
        }
    }

    fn check_param(&self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        self.session.inner.check()?;
        let Some(id) = self.graph.param_named(name) else {
            let nearest = nearest(name, self.graph.params().map(|(n, _)| n));
            return Err(Error::UnknownName { kind: "param", name: name.into(), nearest });
        };
        let expected = self.ty(id);
        if expected != tensor.ty() {
            let (name, expected) = (name.into(), expected.to_string());
            return Err(Error::WrongType { kind: "param", name, expected, got: tensor.ty() });
        }
        Ok(())
    }

    /// Brings params to the device and packs them for the kernels now instead of at the first run.
    pub(crate) fn load(&self) -> Result<(), Error> {
        let last = self.compiled_last();
        last.map_or_else(|| self.compile_for(&self.declared_shapes()), Ok)?.load()
    }

    /// Runs on named inputs, which are borrowed, not copied; results come in new tensors.
    pub(crate) fn run(&self, inputs: NamedInputs<'_>) -> Result<Outputs, Error> {
        self.with_prepared(&inputs, |prepared, inputs| {
            let home = prepared.recycler();
            let mut results = match home {
                Some(home) => {
                    prepared.outputs().iter().map(|(_, ty)| home.take(*ty)).collect::<Result<_, _>>()?
                }
                None => zeros(prepared.outputs())?,
            };
            let watched = self.watched(prepared, inputs, |_| true);
            write_results(&mut results.iter_mut().collect::<Vec<_>>(), |t| prepared.run(inputs, t))?;
            watched.into_iter().for_each(|run| run.end(&self.session));
            named(host_outputs(prepared.outputs(), |_| true), results, home)
        })
    }

    /// A run that begins now, if it is one of the first; `received` says of every output whether it comes to the host.
    pub(super) fn watched<'a>(
        &self,
        prepared: &Arc<dyn Prepared>,
        inputs: impl IntoIterator<Item = &'a Input<'a>>,
        received: impl Fn(usize) -> bool,
    ) -> Option<WatchedRun> {
        self.watch.begin(&self.session, prepared, || {
            let on_host = |input: &Input<'_>| match input {
                Input::Host(view) => view.bytes().len() as u64,
                Input::Device(_) => 0,
            };
            let outputs = prepared.outputs().iter().enumerate().filter(|(i, _)| received(*i));
            Moved {
                sent: inputs.into_iter().map(on_host).sum(),
                received: outputs.map(|(_, (_, ty))| ty.bytes() as u64).sum(),
            }
        })
    }

    /// The same of a run that somebody else may wait for.
    pub(super) fn watched_later(&self, run: Option<WatchedRun>) -> Option<OfWatch> {
        run.map(|run| OfWatch { session: self.session.clone(), run })
    }

    /// The kernel calls of a run on such inputs.
    pub(crate) fn lowered(&self, inputs: NamedInputs<'_>) -> Result<Lowered, Error> {
        self.with_prepared(&inputs, |prepared, _| Ok(prepared.lowered()))
    }

    /// Begins a run and returns; several may be in flight. The inputs are taken over before this returns.
    pub(crate) fn submit(&self, inputs: NamedInputs<'_>) -> Result<Pending, Error> {
        self.with_prepared(&inputs, |prepared, inputs| {
            let outputs = host_outputs(prepared.outputs(), |_| true);
            let watched = self.watched(prepared, inputs, |_| true);
            let run = OfProcess::new(prepared.start(inputs, &vec![Take::Host; outputs.len()])?);
            let (home, watched) = (prepared.recycler().cloned(), self.watched_later(watched));
            Ok(Pending { run, outputs, home, watched })
        })
    }

    /// Runs and leaves the outputs on the device, by name; they may be inputs of other runs, or be read in part.
    pub(crate) fn run_resident(&self, inputs: NamedInputs<'_>) -> Result<ResidentOutputs, Error> {
        let mut run = self.submit_resident(inputs)?;
        if run.is_watched() {
            run.wait()?;
        }
        run.outputs()
    }

    /// Begins a run whose outputs stay on the device and returns.
    pub(crate) fn submit_resident(&self, inputs: NamedInputs<'_>) -> Result<ResidentRun, Error> {
        self.with_prepared(&inputs, |prepared, inputs| {
            let outputs: Vec<String> = prepared.outputs().iter().map(|(name, _)| name.clone()).collect();
            let watched = self.watched(prepared, inputs, |_| false);
            let run = prepared.start(inputs, &vec![Take::Device; outputs.len()])?;
            Ok(ResidentRun::new(run, outputs).watched(self.watched_later(watched)))
        })
    }

    /// Runs and writes results into existing tensors, one for each output by name; nothing is allocated for them.
    pub(crate) fn run_into(
        &self,
        inputs: NamedInputs<'_>,
        outputs: &mut [(&str, &mut Tensor)],
    ) -> Result<(), Error> {
        self.with_prepared(&inputs, |prepared, inputs| {
            let mut results = by_position(prepared.outputs(), outputs)?;
            let watched = self.watched(prepared, inputs, |_| true);
            write_results(&mut results, |targets| prepared.run(inputs, targets))?;
            watched.into_iter().for_each(|run| run.end(&self.session));
            Ok(())
        })
    }

    /// Runs once and times every kernel; the outputs are dropped where they are.
    pub(crate) fn profile(&self, inputs: NamedInputs<'_>) -> Result<Vec<StepTime>, Error> {
        self.with_prepared(&inputs, |prepared, inputs| prepared.profile(inputs))
    }

    /// Runs so many times in a row and returns how long all kernels together took on the device (from call to return on the
    /// CPU), running as they do untimed: a run's share. The outputs stay on the device, by name.
    pub(crate) fn time(
        &self,
        inputs: NamedInputs<'_>,
        runs: u32,
    ) -> Result<(Duration, ResidentOutputs), Error> {
        self.with_prepared(&inputs, |prepared, inputs| {
            let (time, outputs) = prepared.time(inputs, runs)?;
            let names = prepared.outputs().iter().map(|(name, _)| name.clone());
            Ok((time, Outputs::new(names.zip(outputs).collect())))
        })
    }

    /// Calls `run` with what is compiled for the inputs' shapes, and with the inputs in the graph's order.
    pub(super) fn with_prepared<R>(
        &self,
        inputs: &[(&str, Input<'_>)],
        run: impl FnOnce(&Arc<dyn Prepared>, &[Input<'_>]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let types: Vec<(&str, TensorType)> = inputs.iter().map(|(name, input)| (*name, input.ty())).collect();
        let checked = self.check_inputs(&types)?;
        let counter = checked.counter.as_ref().map(Input::from);
        let ordered = checked.order.iter().filter_map(|at| at.map(|at| inputs[at].1).or(counter));
        let prepared = self.specialised(&checked.shapes)?;
        run(&prepared, &ordered.collect::<Vec<_>>())
    }

    /// Checks the names and types of a run's inputs.
    pub(super) fn check_inputs(&self, given: &[(&str, TensorType)]) -> Result<Checked, Error> {
        self.session.inner.check()?;
        let declared: Vec<(&str, ValueId)> = self.graph.inputs().collect();
        let mut order: Vec<Option<usize>> = vec![None; declared.len()];
        for (at, (name, ty)) in given.iter().enumerate() {
            let Some(i) = self.position(name) else {
                let nearest = nearest(name, declared.iter().map(|(n, _)| *n));
                return Err(Error::UnknownName { kind: "input", name: name.to_string(), nearest });
            };
            self.check_input(name, declared[i].1, *ty)?;
            if order[i].replace(at).is_some() {
                return Err(Error::GivenTwice { kind: "input", name: name.to_string() });
            }
        }
        let missing: Vec<usize> = (0..order.len()).filter(|i| order[*i].is_none()).collect();
        let counter = match missing.as_slice() {
            [] => None,
            [i] if self.position(RUN_COUNTER) == Some(*i)
                && self.ty(declared[*i].1) == run_counter_type()? =>
            {
                Some(self.count_run()?)
            }
            [i, ..] => {
                let (name, id) = declared[*i];
                return Err(Error::Missing { kind: "input", name: name.into(), expected: self.declared(id) });
            }
        };
        // The counter's shape is its declared one.
        let shape = |(at, (_, id)): (&Option<usize>, &(&str, ValueId))| match at {
            Some(at) => given[*at].1.shape,
            None => self.ty(*id).shape,
        };
        let shapes: Vec<Shape> = order.iter().zip(&declared).map(shape).collect();
        Ok(Checked { shapes, order, counter })
    }

    /// The number of a run that needs one and was given none.
    fn count_run(&self) -> Result<Tensor, Error> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(Tensor::new([2], vec![run as u32, (run >> 32) as u32])?)
    }

    fn check_input(&self, name: &str, id: ValueId, got: TensorType) -> Result<(), Error> {
        let expected = self.ty(id);
        let Def::Input { dims, .. } = &self.graph.values()[id.index()].def else { return Ok(()) };
        let fits = (got.dtype, got.packed) == (expected.dtype, expected.packed)
            && got.shape.rank() == expected.shape.rank()
            && (0..dims.len()).all(|i| dims[i].is_some() || got.shape[i] == expected.shape[i]);
        if fits {
            return Ok(());
        }
        let expected = self.declared(id);
        Err(Error::WrongType { kind: "input", name: name.into(), expected, got })
    }

    /// An input's type as it is declared, open sizes by name.
    fn declared(&self, id: ValueId) -> String {
        let value = &self.graph.values()[id.index()];
        let open: &[Option<String>] = if let Def::Input { dims, .. } = &value.def { dims } else { &[] };
        let size = |(axis, size): (usize, &usize)| match open.get(axis) {
            Some(Some(name)) => name.clone(),
            _ => size.to_string(),
        };
        let sizes: Vec<String> = value.ty.elements().iter().enumerate().map(size).collect();
        let element = value.ty.packed.map_or(value.ty.dtype.name(), |format| format.name());
        format!("{element}[{}]", sizes.join(", "))
    }

    /// What is prepared for some input shapes, compiled now if it is the first time they come.
    pub(super) fn specialised(&self, shapes: &[Shape]) -> Result<Arc<dyn Prepared>, Error> {
        self.compiled.check()?;
        if let Some(found) = read(&self.compiled).get(shapes) {
            return Ok(found.clone());
        }
        let values = self.open.values(shapes)?;
        let plan = read(&self.compiled).plan(&values).cloned();
        if let Some(plan) = plan {
            let program = plan.for_sizes(values.bindings())?.unwrap_or_else(|| plan.clone());
            let mut plans = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
            return Ok(plans.add_program(shapes, &plan, program));
        }
        let (prepared, guards) = guards::record(|| self.prepare(shapes));
        let prepared = prepared?;
        let mut plans = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        plans.add_plan(guards, &values, Arc::new([]), prepared.clone());
        Ok(plans.add_program(shapes, &prepared.clone(), prepared))
    }

    /// Compiles what runs of some sizes need, unless a plan serves them; returns how many plans that took.
    pub(crate) fn prepare_for(&self, sizes: &[(&str, usize)]) -> Result<usize, Error> {
        self.compiled.check()?;
        let before = self.plans_made();
        let mut shapes = self.declared_shapes();
        for ((input, id), shape) in self.graph.inputs().zip(&mut shapes) {
            let Def::Input { dims, .. } = &self.graph.values()[id.index()].def else { continue };
            for (axis, name) in
                dims.iter().enumerate().filter_map(|(axis, name)| Some((axis, name.as_ref()?)))
            {
                let Some((_, size)) = sizes.iter().find(|(known, _)| known == name) else {
                    let (kind, name) = ("size", format!("{name}` of `{input}"));
                    return Err(Error::Missing { kind, name, expected: "a range of sizes".into() });
                };
                shape.set_number(axis, *size);
            }
        }
        let values = self.open.values(&shapes)?;
        if self.grown.is_empty() && read(&self.compiled).plan(&values).is_some() {
            return Ok(0);
        }
        // Other kernels want weights packed in another way, which a run would wait for.
        match self.compile_for(&shapes)?.load() {
            Err(error) if !error.is_missing_params() => Err(error),
            _ => Ok(self.plans_made() - before),
        }
    }

    /// Compiles the graph with its open sizes as symbols that have these values.
    fn prepare(&self, shapes: &[Shape]) -> Result<Arc<dyn Prepared>, Error> {
        self.prepare_graph(&self.specialised_graph(shapes)?)
    }

    /// The graph with its open sizes as symbols that have these values.
    pub(super) fn specialised_graph(&self, shapes: &[Shape]) -> Result<Graph, Error> {
        let names = self.graph.inputs().map(|(name, _)| name);
        let sizes: Vec<(&str, Shape)> = names.zip(shapes.iter().copied()).collect();
        // What does not fit is said in numbers.
        let graph = self.graph.specialise_symbolic(&sizes);
        Ok(graph.or_else(|problem| self.graph.specialise(&sizes).and(Err(problem)))?)
    }

    pub(super) fn prepare_graph(&self, graph: &Graph) -> Result<Arc<dyn Prepared>, Error> {
        if let Some(host) = &self.host
            && let Some(prepared) = host.prepare(&self.session, &self.model, graph)?
        {
            return Ok(prepared);
        }
        let compiled = self.session.inner.compile(graph, false)?;
        self.model.prepare(&compiled, &self.states_in_place(graph))
    }

    /// The session that it was compiled in.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// States whose output is of their input's type for some sizes, by position: it takes over the input's bytes.
    fn states_in_place(&self, graph: &Graph) -> Vec<(usize, usize)> {
        let ty = |id: ValueId| graph.values()[id.index()].ty;
        let pair = |(input, output): &(String, String)| {
            let (i, (_, from)) = graph.inputs().enumerate().find(|(_, (name, _))| name == input)?;
            let o = graph.outputs().iter().position(|o| o.name == *output)?;
            (ty(from) == ty(graph.outputs()[o].value)).then_some((i, o))
        };
        self.states.iter().filter_map(pair).collect()
    }

    /// The position of an input among all.
    pub(super) fn position(&self, input: &str) -> Option<usize> {
        // To compare a few names is faster than to hash one.
        match self.inputs.len() {
            0..=4 => self.graph.inputs().position(|(name, _)| name == input),
            _ => self.inputs.get(input).copied(),
        }
    }

    fn ty(&self, id: ValueId) -> TensorType {
        self.graph.values()[id.index()].ty
    }

    fn declared_shapes(&self) -> Vec<Shape> {
        self.graph.inputs().map(|(_, id)| self.ty(id).shape.values()).collect()
    }
}

fn read(plans: &RwLock<Plans>) -> RwLockReadGuard<'_, Plans> {
    plans.read().unwrap_or_else(PoisonError::into_inner)
}

/// The elements of a caller's tensors, in the order of the outputs.
fn by_position<'a>(
    declared: &[(String, TensorType)],
    tensors: &'a mut [(&str, &mut Tensor)],
) -> Result<Vec<&'a mut Data>, Error> {
    let mut results: Vec<Option<&mut Data>> = declared.iter().map(|_| None).collect();
    for (name, tensor) in tensors.iter_mut() {
        let Some(i) = declared.iter().position(|(n, _)| n == name) else {
            let nearest = nearest(name, declared.iter().map(|(n, _)| n.as_str()));
            return Err(Error::UnknownName { kind: "output", name: name.to_string(), nearest });
        };
        let expected = declared[i].1;
        if tensor.ty() != expected {
            let (name, expected) = (name.to_string(), expected.to_string());
            return Err(Error::WrongType { kind: "output", name, expected, got: tensor.ty() });
        }
        if results[i].replace(tensor.data_mut()?).is_some() {
            return Err(Error::GivenTwice { kind: "output", name: name.to_string() });
        }
    }
    if let Some(i) = results.iter().position(Option::is_none) {
        let (name, expected) = (declared[i].0.clone(), declared[i].1.to_string());
        return Err(Error::Missing { kind: "output", name, expected });
    }
    Ok(results.into_iter().flatten().collect())
}
