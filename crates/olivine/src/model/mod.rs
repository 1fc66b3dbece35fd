//! Models from files: loaded once, compiled for every combination of shapes that comes.
//!
//! ```text
//!   mod.rs    models, and running them
//!   plans.rs  what there is to do for some inputs: graphs to run one after another
//!   loops.rs  loops whose iterations are graphs of their own
//!   values.rs tensors on their way from one graph to the next
//! ```

mod loops;
mod plans;
mod values;

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_ir::{Graph, Tensor, TensorType};
use olivine_onnx as onnx;
use onnx::Port;

use crate::engine::{self, DeviceTensor, StepTime};
use crate::executable::{Input, Outputs, Pending};
use crate::process::OfProcess;
use crate::{Compile, CompileOptions, Error, Executable, Session};
use plans::{Key, Plans, Subject, Whole};
use values::Values;

/// Plans of a model that are kept at a time.
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

impl Compile for Model {
    type Executable = ModelExecutable;

    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<ModelExecutable, Error> {
        Ok(ModelExecutable {
            session: session.clone(),
            model: self.clone(),
            params: OfProcess::new(session.inner.engine.model(options.tuning.clone())),
            options: options.clone(),
            given: Mutex::default(),
            last: Mutex::default(),
            plans: OfProcess::new(Plans::new(PLANS)),
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
    /// Weights that the device's model has been given.
    given: Mutex<HashSet<String>>,
    /// What the last run was, which the next one mostly is again.
    last: Mutex<Option<Last>>,
    plans: OfProcess<Plans>,
}

/// A key without results of stages, and what it came to.
struct Last {
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
        self.key.types.len() == inputs.len()
            && self.key.types.iter().zip(inputs).all(same)
            && self.key.values.iter().all(holds)
    }
}

impl ModelExecutable {
    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How many graphs are compiled now, with stages and iterations of loops.
    pub fn compiled(&self) -> usize {
        if !self.plans.is_here() {
            return 0;
        }
        self.plans.executables().len()
    }

    /// The graphs that are compiled now, with stages and iterations of loops.
    pub fn graphs(&self) -> Vec<Graph> {
        if !self.plans.is_here() {
            return Vec::new();
        }
        self.plans.executables().iter().map(|e| e.graph().clone()).collect()
    }

    /// For each of [`ModelExecutable::graphs`], as [`Executable::host_bytes`].
    pub fn host_bytes(&self) -> Vec<Option<(usize, usize)>> {
        if !self.plans.is_here() {
            return Vec::new();
        }
        self.plans.executables().iter().map(|e| e.host_bytes()).collect()
    }

    /// Runs on named inputs. Element `i` of a sequence is the input, or output, `name[i]`.
    pub fn run<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs: Vec<(&str, Input<'a>)> = inputs.into_iter().map(|(n, v)| (n, v.into())).collect();
        let mut values = Values::of_run(&inputs);
        let whole = self.whole(&inputs, &mut values)?;
        whole.executable.run(values.taken(&whole.executable))
    }

    /// Begins a run and returns; several may be in flight, as [`Executable::submit`] says. Stages and loops before the
    /// last graph have run by then.
    pub fn submit<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Pending, Error> {
        self.with_executable(inputs, |executable, given| executable.submit(given.iter().copied()))
    }

    /// Runs and leaves the outputs on the device, by name; they may be inputs of other runs, or be read in part.
    pub fn run_resident<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Vec<(String, DeviceTensor)>, Error> {
        self.with_executable(inputs, |executable, given| executable.run_resident(given.iter().copied()))
    }

    /// Runs and writes results into existing tensors, one for each output by name; nothing is allocated for them.
    pub fn run_into<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        outputs: &mut [(&str, &mut Tensor)],
    ) -> Result<(), Error> {
        self.with_executable(inputs, |executable, given| executable.run_into(given.iter().copied(), outputs))
    }

    /// Runs once and times every kernel of the last graph; the outputs are dropped where they are.
    pub fn profile<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Vec<StepTime>, Error> {
        self.with_executable(inputs, |executable, given| executable.profile(given.iter().copied()))
    }

    /// What a model becomes for such inputs: the last of its graphs, what it is given, and what is compiled from it.
    pub fn with_executable<'a, V: Into<Input<'a>>, R>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        with: impl FnOnce(&Executable, &[(&str, Input<'_>)]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let inputs: Vec<(&str, Input<'a>)> = inputs.into_iter().map(|(n, v)| (n, v.into())).collect();
        let mut values = Values::of_run(&inputs);
        let whole = self.whole(&inputs, &mut values)?;
        with(&whole.executable, &values.taken(&whole.executable))
    }

    /// What brings the model's results, after all stages and loops before it have run.
    fn whole(&self, inputs: &[(&str, Input<'_>)], values: &mut Values<'_>) -> Result<Arc<Whole>, Error> {
        self.plans.check()?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.is_for(inputs)) {
            return Ok(last.whole.clone());
        }
        drop(last);
        let types = inputs.iter().map(|(n, i)| (n.to_string(), i.ty())).collect();
        let mut key = Key { types, ..Key::default() };
        let whole = self.follow(Subject::Model, &self.plans, &mut key, values)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = key.known.is_empty().then(|| Last { key, whole: whole.clone() });
        Ok(whole)
    }

    /// Compiles a graph of the model's.
    fn executable(&self, graph: Graph) -> Result<Executable, Error> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, _) in graph.params() {
            if let Some(weight) = self.model.onnx.weight(name)
                && given.insert(name.to_string())
            {
                self.params.set_param(name, weight.clone());
            }
        }
        drop(given);
        Executable::sharing(self.session.clone(), graph, &self.options, Arc::clone(&self.params))
    }

    /// An error that names the input that was meant.
    fn unknown(&self, name: &str) -> Error {
        let ports = self.model.all_inputs();
        let nearest = olivine_ir::nearest(name, ports.iter().map(|p| p.name.as_str()));
        Error::UnknownName { kind: "input", name: name.into(), nearest }
    }
}
