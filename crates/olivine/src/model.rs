//! Models from files: loaded once, compiled for every combination of shapes that comes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_cpu::CpuEvaluator;
use olivine_ir::{Graph, Tensor, TensorType};
use olivine_onnx as onnx;
use onnx::{Bindings, Bound, Kind, Outcome, Port};

use crate::engine;
use crate::executable::{Input, Outputs};
use crate::process::OfProcess;
use crate::{CompileOptions, Error, Executable, Session};

/// What is kept compiled of a model at a time; the one that was compiled first goes when another comes.
const PLANS: usize = 64;

/// A model from a file.
///
/// ```no_run
/// use olivine::prelude::*;
/// let model = Model::load("bert.onnx")?;
/// let session = Session::new(Device::auto()?)?;
/// let bert = session.compile(&model)?;
/// let ids = Tensor::new([1, 3], vec![101i64, 7592, 102])?;
/// let out = bert.run([("input_ids", &ids)])?;
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone)]
pub struct Model {
    onnx: Arc<onnx::Model>,
    /// Inner values that are outputs too.
    watched: Arc<[String]>,
}

impl Model {
    /// Reads a model file: ONNX. Operators that cannot be imported are an error that names them all.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Ok(Model::of(onnx::Model::load(path)?))
    }

    /// Reads a model file with options: where links among its files may lead.
    pub fn load_with(path: impl AsRef<Path>, options: &onnx::LoadOptions) -> Result<Self, Error> {
        Ok(Model::of(onnx::Model::load_with(path, options)?))
    }

    /// Reads a model file even if some of its operators cannot be imported: to look at it, not to run it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Model::open_with(path, &onnx::LoadOptions::default())
    }

    /// Reads a model file even if some of its operators cannot be imported, with options.
    pub fn open_with(path: impl AsRef<Path>, options: &onnx::LoadOptions) -> Result<Self, Error> {
        Ok(Model::of(onnx::Model::open_with(path, options)?))
    }

    /// Reads an ONNX model from memory.
    pub fn from_onnx(bytes: Vec<u8>) -> Result<Self, Error> {
        Ok(Model::of(onnx::Model::from_bytes(bytes)?))
    }

    fn of(model: onnx::Model) -> Self {
        Model { onnx: Arc::new(model), watched: Arc::default() }
    }

    /// The model with values from inside it among its outputs, by name: those that are tensors of the main graph.
    pub fn watching(self, values: impl IntoIterator<Item = String>) -> Self {
        Model { watched: values.into_iter().collect(), ..self }
    }

    /// The model with other weights: those that `change` returns take the place of the ones of their name. They are of the
    /// same type and shape.
    pub fn with_weights(
        &self,
        change: impl FnMut(&str, onnx::Element, &Tensor) -> Option<Tensor>,
    ) -> Result<Self, Error> {
        let onnx = Arc::new(self.onnx.with_weights(change)?);
        Ok(Model { onnx, watched: self.watched.clone() })
    }

    /// The model's name for itself.
    pub fn name(&self) -> &str {
        self.onnx.name()
    }

    /// The inputs that a run must supply.
    pub fn inputs(&self) -> Vec<Port> {
        self.onnx.inputs()
    }

    /// Inputs that have a default value, which a run may override: initializers that are listed as inputs too.
    pub fn overridable_initializers(&self) -> Vec<Port> {
        self.onnx.overridable_initializers()
    }

    /// All inputs that a run may supply.
    fn all_inputs(&self) -> Vec<Port> {
        let mut ports = self.inputs();
        ports.extend(self.overridable_initializers());
        ports
    }

    /// What a run has in return.
    pub fn outputs(&self) -> Vec<Port> {
        self.onnx.outputs()
    }

    /// The ONNX model.
    pub fn onnx(&self) -> &onnx::Model {
        &self.onnx
    }
}

/// What a session can compile.
pub trait Compile {
    /// What it becomes.
    type Executable;

    /// Compiles it for a session's device.
    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<Self::Executable, Error>;
}

impl Compile for Graph {
    type Executable = Executable;

    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<Executable, Error> {
        Executable::new(session.clone(), self.clone(), options)
    }
}

impl Compile for Model {
    type Executable = ModelExecutable;

    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<ModelExecutable, Error> {
        Ok(ModelExecutable {
            session: session.clone(),
            model: self.clone(),
            params: OfProcess::new(session.inner.engine.model(options.tuning.clone())),
            options: options.clone(),
            state: OfProcess::new(Mutex::default()),
        })
    }
}

/// A model compiled for a session's device. It may run from several threads at once.
///
/// A model's shapes are bound by its inputs; every combination, and every value of inputs that decide shapes, is
/// compiled when it first comes, and all of them share the weights.
pub struct ModelExecutable {
    session: Session,
    model: Model,
    params: OfProcess<Arc<dyn engine::Model>>,
    options: CompileOptions,
    state: OfProcess<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What the last run was, which the next one mostly is again.
    last: Option<Last>,
    plans: HashMap<Key, Plan>,
    order: Vec<Key>,
    /// Weights that the device's model has been given.
    given: HashSet<String>,
}

/// What a run is compiled for.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Key {
    types: Vec<(String, TensorType)>,
    /// Values of inputs that decide shapes, and results of stages, as bytes.
    values: Vec<(String, Vec<u8>)>,
    known: Vec<(TensorType, Vec<u8>)>,
}

/// A key without results of stages, and what it came to.
struct Last {
    key: Key,
    whole: Arc<Executable>,
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
        self.key.types.len() == inputs.len()
            && self.key.types.iter().zip(inputs).all(same)
            && self.key.values.iter().all(holds)
    }
}

/// What there is to do for a key.
#[derive(Clone)]
enum Plan {
    /// Values of inputs join it.
    Needs(Arc<[String]>),
    /// A graph's result joins it.
    Stage(Arc<Executable>),
    /// The model's results come out.
    Whole(Arc<Executable>),
}

impl ModelExecutable {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How many graphs are compiled now, stages among them.
    pub fn compiled(&self) -> usize {
        if !self.state.is_here() {
            return 0;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.plans.values().filter(|plan| !matches!(plan, Plan::Needs(_))).count()
    }

    /// Runs on named inputs. Element `i` of a sequence is the input, or output, `name[i]`.
    pub fn run<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs: Vec<(&str, Input<'a>)> = inputs.into_iter().map(|(n, v)| (n, v.into())).collect();
        let whole = self.whole(&inputs)?;
        whole.run(taken(&whole, &inputs))
    }

    /// What a model becomes for such inputs: the graph and what is compiled from it.
    pub fn with_executable<'a, V: Into<Input<'a>>, R>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        with: impl FnOnce(&Executable, &[(&str, Input<'a>)]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let inputs: Vec<(&str, Input<'a>)> = inputs.into_iter().map(|(n, v)| (n, v.into())).collect();
        let whole = self.whole(&inputs)?;
        with(&whole, &taken(&whole, &inputs).collect::<Vec<_>>())
    }

    /// What brings the model's results, after all stages before it have run.
    fn whole(&self, inputs: &[(&str, Input<'_>)]) -> Result<Arc<Executable>, Error> {
        self.state.check()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = state.last.as_ref().filter(|last| last.is_for(inputs)) {
            return Ok(last.whole.clone());
        }
        drop(state);
        let types = inputs.iter().map(|(n, i)| (n.to_string(), i.ty())).collect();
        let mut key = Key { types, ..Key::default() };
        loop {
            match self.planned(&key)? {
                Plan::Whole(whole) => {
                    let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.last = key.known.is_empty().then(|| Last { key, whole: whole.clone() });
                    return Ok(whole);
                }
                Plan::Needs(names) => {
                    for name in names.iter() {
                        let found = inputs.iter().find(|(n, _)| *n == name.as_str());
                        let (_, input) = found.ok_or_else(|| self.unknown(name))?;
                        let bytes = match input {
                            Input::Host(view) => view.bytes().to_vec(),
                            Input::Device(tensor) => tensor.to_tensor()?.bytes().to_vec(),
                        };
                        key.values.push((name.clone(), bytes));
                    }
                }
                Plan::Stage(stage) => {
                    let outputs = stage.run(taken(&stage, inputs))?;
                    let value = outputs.get("value")?;
                    key.known.push((value.ty(), value.bytes().to_vec()));
                }
            }
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let ports = self.model.all_inputs();
        let nearest = olivine_ir::nearest(name, ports.iter().map(|p| p.name.as_str()));
        Error::UnknownName { kind: "input", name: name.into(), nearest }
    }

    /// The plan for a key, made now if it is the first time that it comes.
    fn planned(&self, key: &Key) -> Result<Plan, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = state.plans.get(key) {
            return Ok(plan.clone());
        }
        let plan = match self.model.onnx.specialise(&self.bindings(key)?, &CpuEvaluator)? {
            Outcome::NeedsInputs(names) => Plan::Needs(names.into()),
            Outcome::Stage(graph) => Plan::Stage(Arc::new(self.executable(graph, &mut state)?)),
            Outcome::Whole(whole) => Plan::Whole(Arc::new(self.executable(whole.graph, &mut state)?)),
        };
        if state.order.len() == PLANS {
            let oldest = state.order.remove(0);
            state.plans.remove(&oldest);
        }
        state.order.push(key.clone());
        state.plans.insert(key.clone(), plan.clone());
        Ok(plan)
    }

    fn executable(&self, graph: Graph, state: &mut State) -> Result<Executable, Error> {
        for (name, _) in graph.params() {
            if let Some(weight) = self.model.onnx.weight(name)
                && state.given.insert(name.to_string())
            {
                self.params.set_param(name, weight.clone());
            }
        }
        Executable::sharing(self.session.clone(), graph, &self.options, Arc::clone(&self.params))
    }

    fn bindings(&self, key: &Key) -> Result<Bindings, Error> {
        let mut bindings = Bindings { watched: self.model.watched.to_vec(), ..Bindings::default() };
        let mut used = 0;
        let known = self.model.all_inputs();
        for port in &known {
            let bound = self.bound(key, &port.name, &port.kind, &mut used)?;
            if let Some(bound) = bound {
                bindings.inputs.push((port.name.clone(), bound));
            } else if !matches!(port.kind, Kind::Optional(_)) && self.model.onnx.weight(&port.name).is_none()
            {
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
        for (ty, bytes) in &key.known {
            bindings.known.push(tensor(*ty, bytes)?);
        }
        Ok(bindings)
    }

    fn bound(&self, key: &Key, name: &str, kind: &Kind, used: &mut usize) -> Result<Option<Bound>, Error> {
        match kind {
            Kind::Sequence(inner) => {
                let mut items = Vec::new();
                while let Some(item) = self.bound(key, &format!("{name}[{}]", items.len()), inner, used)? {
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
                self.bound(key, name, inner, used)
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
}

fn onnx_error(input: &str, problem: &str) -> Error {
    Error::Onnx(onnx::Error::Invalid { place: format!("input `{input}`"), problem: problem.into() })
}

fn tensor(ty: TensorType, bytes: &[u8]) -> Result<Tensor, Error> {
    Ok(Tensor::from_data(ty.shape, olivine_ir::Data::from_bytes(ty.dtype, bytes)?)?)
}

/// Those inputs that an executable takes.
fn taken<'a, 'i>(
    executable: &'i Executable,
    inputs: &'i [(&'i str, Input<'a>)],
) -> impl Iterator<Item = (&'i str, Input<'a>)> {
    let declared = |name: &str| executable.graph().inputs().any(|(input, _)| input == name);
    inputs.iter().filter(move |(name, _)| declared(name)).copied()
}
