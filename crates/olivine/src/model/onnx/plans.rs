//! Plans: the graphs to run, one after another, for inputs of given types and values.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_cpu::CpuEvaluator;
use olivine_ir::{Tensor, TensorType, ValueId};
use olivine_onnx as onnx;
use onnx::{
    Bindings, Bound, ElementType, Kind, Known, LoopCall, LoopResults, Made, Outcome, Part, Specialised,
};

use super::OnnxExecutable;
use super::loops::HostLoop;
use super::values::Values;
use crate::Error;
use crate::executable::{GraphExecutable, Input};

/// Iterations of a loop in one submission to a GPU, before the host checks whether it goes on.
pub(super) const BATCH: usize = 16;

/// What is planned.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    Model,
    /// Iterations of a loop.
    Loop(&'a LoopCall),
}

/// The key of a plan: everything that the importer's answer depends on.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Key {
    /// Types of inputs; of a loop's iteration those of its carried values.
    pub(super) types: Vec<(String, TensorType)>,
    pub(super) state: Vec<Made>,
    /// Values of inputs that decide shapes, and results of stages and loops.
    pub(super) values: Vec<(String, Vec<u8>)>,
    pub(super) known: Vec<Found>,
}

impl Key {
    /// A key of inputs, in whatever order they were listed.
    pub(super) fn of(mut types: Vec<(String, TensorType)>) -> Self {
        types.sort_by(|(a, _), (b, _)| a.cmp(b));
        Key { types, ..Key::default() }
    }
}

/// The result of a stage or a loop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Found {
    Value(TensorType, Vec<u8>),
    Loop(LoopResults),
}

/// The next step for a key. All but the last extend the key, which is then looked up again.
#[derive(Clone)]
pub(super) enum Plan {
    /// Read the values of these inputs.
    Needs(Arc<[String]>),
    /// Run a graph for its result.
    Stage(Arc<Stage>),
    /// Run a loop for its results.
    Loop(Arc<HostLoop>),
    /// Run the graph whose outputs are the model's.
    Whole(Arc<Whole>),
}

/// A graph that runs before others.
pub(super) struct Stage {
    executable: Arc<GraphExecutable>,
    stage_values: Vec<ValueId>,
}

/// The graph whose outputs are the model's.
pub(super) struct Whole {
    pub(super) executable: Arc<GraphExecutable>,
    pub(super) outputs: Vec<(String, Part)>,
    elements: Vec<(String, ElementType)>,
}

impl Whole {
    pub(super) fn new(
        executable: Arc<GraphExecutable>,
        outputs: Vec<(String, Part)>,
        elements: Vec<(String, ElementType)>,
    ) -> Self {
        Whole { executable, outputs, elements }
    }

    /// The element type of one of the graph's outputs.
    pub(super) fn element(&self, name: &str) -> Option<ElementType> {
        self.elements.iter().find(|(n, _)| n == name).map(|(_, element)| *element)
    }
}

/// A cache of plans by key; the least recently used is evicted when there are too many.
pub(super) struct Plans {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Plans, and when each was used last.
    plans: HashMap<Key, (Plan, u64)>,
    /// Uses so far.
    clock: u64,
}

impl Table {
    fn get(&mut self, key: &Key) -> Option<Plan> {
        let (plan, used) = self.plans.get_mut(key)?;
        self.clock += 1;
        *used = self.clock;
        Some(plan.clone())
    }
}

impl Plans {
    pub(super) fn new(most: usize) -> Self {
        Plans { most, table: Mutex::default() }
    }

    /// The executables of all plans, with those of loops.
    pub(super) fn executables(&self) -> Vec<Arc<GraphExecutable>> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for (plan, _) in table.plans.values() {
            match plan {
                Plan::Needs(_) => {}
                Plan::Stage(stage) => all.push(stage.executable.clone()),
                Plan::Loop(host) => all.extend(host.executables()),
                Plan::Whole(whole) => all.push(whole.executable.clone()),
            }
        }
        all
    }

    /// Whether there is a plan for a key.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).plans.contains_key(key)
    }

    /// The plan for a key, made now if it is the first time that it comes.
    pub(super) fn get(&self, key: &Key, make: impl FnOnce() -> Result<Plan, Error>) -> Result<Plan, Error> {
        let table = || self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = table().get(key) {
            return Ok(plan);
        }
        let plan = make()?;
        let mut table = table();
        if let Some(made) = table.get(key) {
            return Ok(made);
        }
        if table.plans.len() == self.most {
            let oldest = table.plans.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| table.plans.remove(&oldest));
        }
        table.clock += 1;
        let used = table.clock;
        table.plans.insert(key.clone(), (plan.clone(), used));
        Ok(plan)
    }
}

impl OnnxExecutable {
    /// Runs the stages and loops that must run first, and returns the graph that computes the outputs.
    pub(super) async fn follow(
        &self,
        subject: Subject<'_>,
        plans: &Plans,
        key: &mut Key,
        values: &mut Values<'_>,
        runs: &AtomicU64,
    ) -> Result<Arc<Whole>, Error> {
        let mut stage_values = Vec::new();
        loop {
            match plans.get(key, || self.plan(subject, key, &stage_values))? {
                Plan::Whole(whole) => {
                    self.number(&whole.executable, values, runs)?;
                    return Ok(whole);
                }
                Plan::Needs(names) => {
                    for name in names.iter() {
                        let bytes = match values.get(name).ok_or_else(|| self.unknown(name))? {
                            Input::Host(view) => view.bytes().to_vec(),
                            Input::Device(tensor) => tensor.fetched().await?.bytes().to_vec(),
                        };
                        key.values.push((name.clone(), bytes));
                    }
                }
                Plan::Stage(stage) => {
                    self.number(&stage.executable, values, runs)?;
                    let mut outputs = self.pass(&stage.executable, values)?;
                    let Some(at) = outputs.iter().position(|(name, _)| name == "value") else {
                        return Err(Error::UnknownName {
                            kind: "output",
                            name: "value".into(),
                            nearest: None,
                        });
                    };
                    let value = outputs.swap_remove(at).1.to_tensor().await?;
                    values.add(outputs);
                    stage_values.extend_from_slice(&stage.stage_values);
                    key.known.push(Found::Value(value.ty(), value.bytes().to_vec()));
                }
                Plan::Loop(host) => {
                    let results = host.run(self, values).await?;
                    stage_values.extend_from_slice(host.stage_values());
                    key.known.push(Found::Loop(results));
                }
            }
        }
    }

    /// Imports the model, or iterations of a loop, for a key.
    pub(super) fn outcome(
        &self,
        subject: Subject<'_>,
        key: &Key,
        stage_values: &[ValueId],
    ) -> Result<Outcome, Error> {
        self.outcome_of(subject, key, self.bindings(subject, key, stage_values)?)
    }

    /// As [`OnnxExecutable::outcome`], passing over nodes that do not fit the key: open sizes that they declare are `size`.
    pub(super) fn outcome_for_checks(
        &self,
        subject: Subject<'_>,
        key: &Key,
        stage_values: &[ValueId],
        size: usize,
    ) -> Result<Outcome, Error> {
        let bindings = self.bindings(subject, key, stage_values)?;
        self.outcome_of(subject, key, Bindings { pass_over: Some(size), ..bindings })
    }

    fn outcome_of(&self, subject: Subject<'_>, key: &Key, bindings: Bindings) -> Result<Outcome, Error> {
        Ok(match subject {
            Subject::Model => self.file.specialise(&bindings, &CpuEvaluator)?,
            Subject::Loop(call) => self.file.iterations(call, &key.state, &bindings, &CpuEvaluator)?,
        })
    }

    pub(super) fn plan(
        &self,
        subject: Subject<'_>,
        key: &Key,
        stage_values: &[ValueId],
    ) -> Result<Plan, Error> {
        Ok(match self.outcome(subject, key, stage_values)? {
            Outcome::NeedsInputs(names) => Plan::Needs(names.into()),
            Outcome::Stage(stage) => {
                let executable = Arc::new(self.executable(stage.graph, &[])?);
                Plan::Stage(Arc::new(Stage { executable, stage_values: stage.stage_values }))
            }
            Outcome::Loop(call) => Plan::Loop(Arc::new(HostLoop::new(self, *call)?)),
            Outcome::Whole(whole) if matches!(subject, Subject::Model) => Plan::Whole(self.whole(whole)?),
            Outcome::Whole(Specialised { graph, outputs, elements }) => {
                let executable = Arc::new(self.executable(graph, &[])?);
                Plan::Whole(Arc::new(Whole::new(executable, outputs, elements)))
            }
        })
    }

    fn bindings(&self, subject: Subject<'_>, key: &Key, stage_values: &[ValueId]) -> Result<Bindings, Error> {
        let batch = if self.is_on_host() { None } else { Some(BATCH) };
        let mut bindings = Bindings { stage_values: stage_values.to_vec(), batch, ..Bindings::default() };
        for found in &key.known {
            bindings.known.push(match found {
                Found::Value(ty, bytes) => Known::Value(tensor(*ty, bytes)?),
                Found::Loop(results) => Known::Loop(results.clone()),
            });
        }
        if matches!(subject, Subject::Loop(_)) {
            return Ok(bindings);
        }
        bindings.watched = self.model.watched.to_vec();
        let mut used = 0;
        let known = self.model.all_inputs();
        for port in &known {
            let bound = bound(key, &port.name, &port.kind, &mut used)?;
            if let Some(bound) = bound {
                bindings.inputs.push((port.name.clone(), bound));
            } else if !matches!(port.kind, Kind::Optional(_)) && !self.file.has_weight(&port.name) {
                return Err(onnx_error(&port.name, "it is missing"));
            }
        }
        if used < key.types.len() {
            let belongs = |name: &str| {
                known
                    .iter()
                    .any(|p| name == p.name || name.strip_prefix(&p.name).is_some_and(|r| r.starts_with('[')))
            };
            if let Some((name, _)) = key.types.iter().find(|(name, _)| !belongs(name)) {
                return Err(self.unknown(name));
            }
        }
        Ok(bindings)
    }
}

/// The type and value of an input in a key.
fn bound(key: &Key, name: &str, kind: &Kind, used: &mut usize) -> Result<Option<Bound>, Error> {
    match kind {
        Kind::Sequence(inner) => {
            let mut items = Vec::new();
            while let Some(item) = bound(key, &format!("{name}[{}]", items.len()), inner, used)? {
                items.push(item);
            }
            Ok(Some(Bound::Sequence(items)))
        }
        Kind::Optional(inner) => {
            let given = |(n, _): &(String, TensorType)| {
                n == name || n.strip_prefix(name).is_some_and(|rest| rest.starts_with('['))
            };
            if !key.types.iter().any(given) {
                return Ok(Some(Bound::Nothing));
            }
            bound(key, name, inner, used)
        }
        Kind::Tensor { .. } | Kind::Other(_) => {
            let Some((_, ty)) = key.types.iter().find(|(n, _)| n == name) else { return Ok(None) };
            *used += 1;
            let value = match key.values.iter().find(|(n, _)| n == name) {
                Some((_, bytes)) => Some(tensor(*ty, bytes)?),
                None => None,
            };
            Ok(Some(Bound::Tensor { ty: *ty, value }))
        }
    }
}

fn onnx_error(input: &str, problem: &str) -> Error {
    Error::Onnx(onnx::Error::Invalid { location: format!("input `{input}`"), problem: problem.into() })
}

fn tensor(ty: TensorType, bytes: &[u8]) -> Result<Tensor, Error> {
    Ok(Tensor::from_data(ty.shape, olivine_ir::Data::from_bytes(ty.dtype, bytes)?)?)
}
