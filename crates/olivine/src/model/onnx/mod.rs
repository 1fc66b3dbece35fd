//! ONNX models compiled for a device: a graph for every combination of sizes that comes, and what runs before it.
//!
//! ```text
//!   mod.rs    the model on a device, and the graph that a run ends in
//!   ahead.rs  what is compiled, or at least checked, before the first run
//!   open.rs   imports that hold for more than one size
//!   plans.rs  what there is to do for some inputs: graphs to run one after another
//!   loops.rs  loops whose iterations are graphs of their own
//!   values.rs tensors on their way from one graph to the next
//! ```

mod ahead;
mod loops;
mod open;
mod plans;
mod values;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use olivine_ir::op::{RUN_COUNTER, run_counter_type};
use olivine_ir::{Graph, Tensor, TensorType};
use olivine_onnx as onnx;

use super::Model;
use crate::engine;
use crate::executable::{GraphExecutable, HostOps, Input, NamedInputs, check_names};
use crate::process::OfProcess;
use crate::{CompileOptions, Error, Executable, Session};
use open::OpenPlans;
use plans::{Key, Plans, Subject, Whole};
use values::Values;

pub(crate) use values::Passed;

/// Plans of a model that are cached at a time.
const PLANS: usize = 128;

/// An ONNX model on a device.
pub(crate) struct OnnxExecutable {
    session: Session,
    model: Model,
    file: Arc<onnx::Model>,
    params: OfProcess<Arc<dyn engine::Model>>,
    options: CompileOptions,
    /// Weights that the device's model has been given.
    given: Arc<Mutex<HashSet<String>>>,
    /// What the last run was, which the next one mostly is again.
    last: Mutex<Option<Last>>,
    plans: OfProcess<Plans>,
    open: OpenPlans,
    /// What the next run's random numbers see.
    runs: AtomicU64,
    /// What runs on the host although the device is a GPU.
    host: Option<Arc<HostOps>>,
}

/// Called with every graph that runs before the last one, and its inputs.
pub(crate) type Visit<'a> = &'a (dyn Fn(&GraphExecutable, NamedInputs<'_>) -> Result<(), Error> + Sync);

/// A key without results of stages, and the graph that it led to.
struct Last {
    /// Types of the inputs, in the order that the caller listed them in.
    types: Vec<(String, TensorType)>,
    key: Key,
    whole: Arc<Whole>,
}

impl Last {
    /// Whether inputs have the key's types and values.
    fn is_for(&self, inputs: &[(&str, Input<'_>)]) -> bool {
        let same = |((name, ty), (given, input)): (&(String, TensorType), &(&str, Input<'_>))| {
            name == given && *ty == input.ty()
        };
        let holds = |(name, bytes): &(String, Vec<u8>)| {
            let found = inputs.iter().find(|(given, _)| given == name);
            matches!(found, Some((_, Input::Host(view))) if view.bytes() == bytes.as_slice())
        };
        self.types.len() == inputs.len()
            && self.types.iter().zip(inputs).all(same)
            && self.key.values.iter().all(holds)
    }
}

impl OnnxExecutable {
    /// Compiles what can be compiled before a run.
    pub(super) fn compile(
        model: &Model,
        file: &Arc<onnx::Model>,
        session: &Session,
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        let compiled = OnnxExecutable::new(model, file, session, options)?;
        if !options.host_ops.is_empty() {
            let graphs = compiled.import_ahead()?;
            check_names(&options.host_ops, &graphs.iter().collect::<Vec<_>>())?;
        }
        compiled.compile_ahead()?;
        Ok(Executable::of_onnx(session.clone(), compiled, options))
    }

    fn new(
        model: &Model,
        file: &Arc<onnx::Model>,
        session: &Session,
        options: &CompileOptions,
    ) -> Result<Self, Error> {
        options.check(&model.all_inputs(), &model.outputs())?;
        Ok(OnnxExecutable {
            session: session.clone(),
            model: model.clone(),
            file: file.clone(),
            params: OfProcess::new(session.inner.engine.model(options.tuning.clone())),
            options: options.clone(),
            given: Arc::default(),
            last: Mutex::default(),
            plans: OfProcess::new(Plans::new(PLANS)),
            open: OpenPlans::default(),
            runs: AtomicU64::new(0),
            host: HostOps::new(session, &options.host_ops)?,
        })
    }

    /// What runs on the host although the device is a GPU.
    pub(crate) fn host(&self) -> Option<&HostOps> {
        self.host.as_deref()
    }

    /// The graphs of a run for the sizes of the options, as they are imported: nothing is compiled.
    pub(super) fn imported(
        model: &Model,
        file: &Arc<onnx::Model>,
        session: &Session,
        options: &CompileOptions,
    ) -> Result<Vec<Graph>, Error> {
        OnnxExecutable::new(model, file, session, options)?.import_ahead()
    }

    /// The same model and weights, with values from inside among the outputs; these states are all of its own, or none.
    /// Nothing is compiled ahead.
    pub(crate) fn watching(&self, names: Vec<String>, states: &[(String, String)]) -> Result<Self, Error> {
        self.plans.check()?;
        let known: HashSet<String> = self.model.values().into_iter().collect();
        if let Some(name) = names.iter().find(|name| !known.contains(*name)) {
            let nearest = olivine_ir::nearest(name, known.iter().map(String::as_str));
            return Err(Error::UnknownName { kind: "value", name: name.clone(), nearest });
        }
        let mut options = CompileOptions {
            tuning: self.options.tuning.clone(),
            state: states.to_vec(),
            ..CompileOptions::default()
        };
        // Where none is named, all are computed.
        if !self.options.outputs.is_empty() {
            let of_state = self.options.state.iter().map(|(_, output)| output);
            options.outputs = self.options.outputs.iter().chain(of_state).chain(&names).cloned().collect();
        }
        Ok(OnnxExecutable {
            session: self.session.clone(),
            model: self.model.clone().watching(names),
            file: self.file.clone(),
            params: OfProcess::new(Arc::clone(&self.params)),
            options,
            given: self.given.clone(),
            last: Mutex::default(),
            plans: OfProcess::new(Plans::new(PLANS)),
            open: OpenPlans::default(),
            runs: AtomicU64::new(self.run_counter()),
            host: self.host.clone(),
        })
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// The graphs that are compiled now, with stages and iterations of loops.
    pub(crate) fn graphs(&self) -> Vec<Arc<GraphExecutable>> {
        if !self.plans.is_here() {
            return Vec::new();
        }
        let mut all = self.open.executables();
        all.extend(self.plans.executables());
        all
    }

    /// What each import assumes of the open sizes.
    pub(crate) fn import_guards(&self) -> Vec<Vec<String>> {
        self.open.guards()
    }

    pub(crate) fn run_counter(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    pub(crate) fn set_run_counter(&self, run: u64) {
        self.runs.store(run, Ordering::Relaxed);
    }

    /// The graph that a run on these inputs ends in, after all stages and loops before it have run, and what they left.
    #[allow(clippy::type_complexity, reason = "a graph and its computed inputs")]
    pub(crate) async fn ready(
        &self,
        inputs: &[(&str, Input<'_>)],
    ) -> Result<(Arc<GraphExecutable>, Vec<(String, Passed)>), Error> {
        self.ready_visiting(inputs, None).await
    }

    /// As [`OnnxExecutable::ready`]; `visit` is called with every graph before it runs.
    #[allow(clippy::type_complexity, reason = "a graph and its computed inputs")]
    pub(crate) async fn ready_visiting(
        &self,
        inputs: &[(&str, Input<'_>)],
        visit: Option<Visit<'_>>,
    ) -> Result<(Arc<GraphExecutable>, Vec<(String, Passed)>), Error> {
        self.plans.check()?;
        let mut values = Values::of_run(inputs).visited_by(visit);
        let found = {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.as_ref().filter(|last| last.is_for(inputs)).map(|last| last.whole.clone())
        };
        if let Some(whole) = found {
            self.number(&whole.executable, &mut values, &self.runs)?;
            return Ok((whole.executable.clone(), values.into_passed()));
        }
        let types: Vec<(String, TensorType)> = inputs.iter().map(|(n, i)| (n.to_string(), i.ty())).collect();
        let mut key = Key::of(types.clone());
        // What was compiled ahead for given sizes comes first.
        if !self.plans.has(&key)
            && let Some((whole, known)) = self.open_plan(&types, &values)?
        {
            key.values = known;
            self.number(&whole.executable, &mut values, &self.runs)?;
            return Ok((self.found(types, key, whole), values.into_passed()));
        }
        let whole = self.follow(Subject::Model, &self.plans, &mut key, &mut values, &self.runs).await;
        let whole = whole.map_err(|error| self.with_sizes(error, &types))?;
        Ok((self.found(types, key, whole), values.into_passed()))
    }

    /// Keeps what a run has found for the next, which mostly has inputs of the same types.
    fn found(&self, types: Vec<(String, TensorType)>, key: Key, whole: Arc<Whole>) -> Arc<GraphExecutable> {
        let executable = whole.executable.clone();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = key.known.is_empty().then_some(Last { types, key, whole });
        executable
    }

    /// As [`OnnxExecutable::ready`], by the types of all inputs and the values of some; `None` where the others' values
    /// must be known.
    #[allow(clippy::type_complexity, reason = "a graph and its computed inputs")]
    pub(crate) fn ready_by_types(
        &self,
        types: &[(String, TensorType)],
        inputs: &[(&str, Input<'_>)],
    ) -> Result<Option<(Arc<GraphExecutable>, Vec<(String, Passed)>)>, Error> {
        self.plans.check()?;
        let mut values = Values::of_run(inputs);
        let Some((whole, _)) = self.open_plan(types, &values)? else { return Ok(None) };
        self.number(&whole.executable, &mut values, &self.runs)?;
        Ok(Some((whole.executable.clone(), values.into_passed())))
    }

    /// Adds the run's number to its values where a graph draws random numbers: one number for all graphs of a run, or of
    /// an iteration.
    fn number(
        &self,
        executable: &GraphExecutable,
        values: &mut Values<'_>,
        runs: &AtomicU64,
    ) -> Result<(), Error> {
        let graph = executable.graph();
        let Some(id) = graph.input_named(RUN_COUNTER) else { return Ok(()) };
        if values.has_passed(RUN_COUNTER) || graph.ty(id)? != run_counter_type()? {
            return Ok(());
        }
        let run = runs.fetch_add(1, Ordering::Relaxed);
        let counter = Tensor::new([2], vec![run as u32, (run >> 32) as u32])?;
        values.add([(RUN_COUNTER.to_string(), Passed::Host(counter))]);
        Ok(())
    }

    /// Compiles the graph whose outputs are the model's.
    fn whole(&self, whole: onnx::Specialised) -> Result<Arc<Whole>, Error> {
        let onnx::Specialised { mut graph, outputs, elements } = whole;
        graph.retain_outputs(|name| self.options.computes(name));
        let executable = Arc::new(self.executable(graph, &self.options.state)?);
        Ok(Arc::new(Whole::new(executable, outputs, elements)))
    }

    /// Compiles a graph of the model's.
    fn executable(&self, graph: Graph, states: &[(String, String)]) -> Result<GraphExecutable, Error> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, _) in graph.params() {
            if !given.contains(name)
                && let Some(weight) = self.file.weight(name)
            {
                given.insert(name.to_string());
                if let Some(host) = &self.host {
                    host.set_param(name, weight.clone());
                }
                self.params.set_param(name, weight);
            }
        }
        drop(given);
        let (params, host) = (Arc::clone(&self.params), self.host.clone());
        GraphExecutable::new(self.session.clone(), graph, states.to_vec(), params, None, host)
    }

    /// An error that names the input that was meant.
    fn unknown(&self, name: &str) -> Error {
        let ports = self.model.all_inputs();
        let nearest = olivine_ir::nearest(name, ports.iter().map(|p| p.name.as_str()));
        Error::UnknownName { kind: "input", name: name.into(), nearest }
    }
}
