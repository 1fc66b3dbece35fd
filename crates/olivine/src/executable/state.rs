//! State that stays on the device: outputs that become the next run's inputs, such as a key-value cache.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use olivine_ir::port::{Kind, Port};
use olivine_ir::{BlockFormat, DType, Def, Recycler, Tensor, TensorType, nearest};

use super::growth::Movers;
use super::io::{HostOutput, host_outputs, named};
use super::{Executable, GraphExecutable, Input, Outputs, Pending, Ready, Source, listed};
use crate::cost::WatchedRun;
use crate::engine::{DeviceTensor, Prepared, StatePart};
use crate::process::OfProcess;
use crate::{Error, Session};

/// A model's state on its device, one for every sequence or stream; made by [`Executable::new_state`] and
/// [`Executable::state_from`].
pub struct State {
    session: Session,
    parts: Vec<Part>,
}

/// A tensor of a state.
pub(super) struct Part {
    /// The input's name.
    pub(super) name: String,
    tensor: DeviceTensor,
    /// Where the tensor has room to grow: the axis, and the size that counts.
    filled: Option<(usize, usize)>,
    /// What counts of a tensor with room, once somebody asked for it.
    compact: OnceLock<DeviceTensor>,
}

impl Part {
    fn new(name: String, tensor: DeviceTensor) -> Self {
        Part { name, tensor, filled: None, compact: OnceLock::new() }
    }

    /// Its type, without room.
    fn ty(&self) -> TensorType {
        let mut ty = self.tensor.ty();
        if let Some((axis, size)) = self.filled {
            ty.shape.set_number(axis, size);
        }
        ty
    }

    /// The tensor without room.
    fn compact(&self, session: &Session) -> Result<&DeviceTensor, Error> {
        let Some((axis, size)) = self.filled else { return Ok(&self.tensor) };
        if self.compact.get().is_none() {
            let tensor = Movers::default().resized(session, &self.tensor, axis, size, size)?;
            // Another thread may have been first; the two are equal.
            let _ = self.compact.set(tensor);
        }
        Ok(self.compact.get().unwrap_or(&self.tensor))
    }

    /// Gives up the room.
    fn make_compact(&mut self, session: &Session) -> Result<(), Error> {
        let tensor = self.compact(session)?.clone();
        *self = Part::new(std::mem::take(&mut self.name), tensor);
        Ok(())
    }

    /// Its size along an axis, room included.
    fn capacity(&self, axis: usize) -> Option<usize> {
        self.tensor.ty().shape.get(axis).copied()
    }

    /// Moves it to memory of a capacity, unless it has that.
    pub(super) fn set_capacity(
        &mut self,
        axis: usize,
        capacity: usize,
        session: &Session,
        movers: &Movers,
    ) -> Result<(), Error> {
        if self.filled.is_some_and(|(filled, _)| filled != axis) {
            self.make_compact(session)?;
        }
        let size = self.ty().shape.get(axis).copied().unwrap_or(0);
        if self.capacity(axis) != Some(capacity) {
            self.tensor = movers.resized(session, &self.tensor, axis, size, capacity)?;
        }
        self.filled = Some((axis, size));
        Ok(())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.parts.iter().map(|part| (&part.name, part.ty().to_string()))).finish()
    }
}

impl State {
    /// A part of the state by its input's name: read it before the next run.
    pub fn get(&self, input: &str) -> Result<&DeviceTensor, Error> {
        self.part(input)?.compact(&self.session)
    }

    /// The type of a part, by its input's name.
    pub fn ty(&self, input: &str) -> Result<TensorType, Error> {
        Ok(self.part(input)?.ty())
    }

    /// The names of the inputs that it holds.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Replaces a part by a tensor of the host or of the device.
    pub fn set<'a>(&mut self, input: &str, value: impl Into<Input<'a>>) -> Result<(), Error> {
        self.part(input)?;
        let Some(part) = self.parts.iter_mut().find(|part| part.name == input) else { return Ok(()) };
        let tensor = match value.into() {
            Input::Host(view) => part.tensor.like(view)?,
            Input::Device(tensor) => tensor.copy()?,
        };
        *part = Part::new(input.into(), tensor);
        Ok(())
    }

    /// A copy on the device that goes its own way: to try several continuations of one sequence.
    pub fn try_clone(&self) -> Result<State, Error> {
        let copy = |part: &Part| {
            Ok(Part { filled: part.filled, ..Part::new(part.name.clone(), part.tensor.copy()?) })
        };
        let parts = self.parts.iter().map(copy).collect::<Result<_, Error>>()?;
        Ok(State { session: self.session.clone(), parts })
    }

    /// Brings all parts to the host, by the names of their inputs.
    pub fn to_tensors(&self) -> Result<Vec<(String, Tensor)>, Error> {
        let tensor = |part: &Part| Ok((part.name.clone(), part.compact(&self.session)?.to_tensor()?));
        self.parts.iter().map(tensor).collect()
    }

    /// Writes the state to a safetensors file, which [`Executable::load_state`] reads. Packed parts are the bytes of their blocks there.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(olivine_safetensors::save(path, &self.to_tensors()?)?)
    }

    fn part(&self, input: &str) -> Result<&Part, Error> {
        self.parts.iter().find(|part| part.name == input).ok_or_else(|| {
            let nearest = nearest(input, self.names());
            Error::UnknownName { kind: "state", name: input.into(), nearest }
        })
    }

    /// Its parts by name and type, without room.
    #[cfg(feature = "onnx")]
    fn types(&self) -> impl Iterator<Item = (&str, TensorType)> {
        self.parts.iter().map(|part| (part.name.as_str(), part.ty()))
    }
}

impl Executable {
    /// A fresh state, all zeros. Every size of it must be fixed, or given by [`CompileOptions`](crate::CompileOptions);
    /// [`Executable::state_from`] takes first values of any size.
    pub fn new_state(&self) -> Result<State, Error> {
        self.state_from::<&Tensor>([])
    }

    /// A state that begins with these values, by the names of their inputs; the rest of it is zeros.
    pub fn state_from<'a, V: Into<Input<'a>>>(
        &self,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<State, Error> {
        self.session.inner.check()?;
        let inputs = self.all_inputs();
        let mut parts = Vec::with_capacity(self.options.state.len());
        let mut given = listed(values);
        let names = || self.options.state.iter().map(|(input, _)| input.as_str());
        if let Some((name, _)) = given.iter().find(|(name, _)| !names().any(|input| input == *name)) {
            let nearest = nearest(name, names());
            return Err(Error::UnknownName { kind: "state", name: name.to_string(), nearest });
        }
        for (input, _) in &self.options.state {
            let Some(port) = inputs.iter().find(|port| port.name == *input) else { continue };
            let value = given.iter().position(|(name, _)| name == input).map(|at| given.swap_remove(at).1);
            parts.push(Part::new(input.clone(), self.first_value(port, value)?));
        }
        if let Some((name, _)) = given.first() {
            return Err(Error::GivenTwice { kind: "state", name: name.to_string() });
        }
        Ok(State { session: self.session.clone(), parts })
    }

    /// A state that [`State::save`] wrote.
    pub fn load_state(&self, path: impl AsRef<Path>) -> Result<State, Error> {
        let file = olivine_safetensors::Weights::load(path)?;
        let tensors: Vec<(String, Tensor)> = file
            .names()
            .map(|name| Ok((name.to_string(), file.tensor(name)?)))
            .collect::<Result<_, Error>>()?;
        self.state_from(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))
    }

    fn first_value(&self, port: &Port, value: Option<Input<'_>>) -> Result<DeviceTensor, Error> {
        match value {
            Some(input) => {
                let ty = as_blocks(port, input.ty());
                if !port.kind.takes(ty) {
                    let (name, expected) = (port.name.clone(), port.kind.to_string());
                    return Err(Error::WrongType { kind: "state", name, expected, got: input.ty() });
                }
                match input {
                    Input::Host(view) => {
                        self.session.inner.check()?;
                        self.session.inner.engine.upload(ty, view.bytes())
                    }
                    Input::Device(tensor) => tensor.copy()?.reinterpret(ty),
                }
            }
            None => {
                let open = || Error::OpenState { input: port.name.clone(), declared: port.kind.to_string() };
                let ty = self.options.type_of(port)?.ok_or_else(open)?;
                self.session.upload(&Tensor::zeros_of(ty)?)
            }
        }
    }

    /// Runs on a state and the other inputs; the state's outputs become the state, the other outputs are returned.
    ///
    /// A run that fails leaves the state as it was, but that rows of [`kv_append`](olivine_ir::Graph::kv_append) may have
    /// been written in place already; the same run again writes them again.
    pub fn run_with_state<'a, V: Into<Input<'a>>>(
        &self,
        state: &mut State,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let inputs = listed(inputs);
        let ready = self.ready_with_state(state, &inputs)?;
        ready.graph.run_with_state(&mut state.parts, &ready.inputs(&inputs))
    }

    /// Begins a run as [`Executable::run_with_state`] does and returns: the next run on the state may begin before this one has ended,
    /// and sees what it wrote. On the CPU the run is over when this returns.
    ///
    /// Where a run fails, runs that began after it have read what it left; its rows of
    /// [`kv_append`](olivine_ir::Graph::kv_append) may be written again, and other states are to be set anew.
    pub fn submit_with_state<'a, V: Into<Input<'a>>>(
        &self,
        state: &mut State,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Pending, Error> {
        let inputs = listed(inputs);
        let ready = self.ready_with_state(state, &inputs)?;
        ready.graph.submit_with_state(&mut state.parts, &ready.inputs(&inputs))
    }

    /// The graph that a run on a state ends in.
    fn ready_with_state(&self, state: &mut State, inputs: &[(&str, Input<'_>)]) -> Result<Ready, Error> {
        if let Some(ready) = self.ready_with_room(state, inputs)? {
            return Ok(ready);
        }
        let State { session, parts } = &mut *state;
        parts.iter_mut().try_for_each(|part| part.make_compact(session))?;
        let resident = parts.iter().map(|part| (part.name.as_str(), Input::Device(&part.tensor)));
        let all: Vec<(&str, Input<'_>)> = resident.chain(inputs.iter().copied()).collect();
        self.ready(&all)
    }

    /// The graph that a run ends in, where that can be told without the values of the state.
    #[cfg_attr(not(feature = "onnx"), allow(unused_variables, reason = "a graph is the same for all inputs"))]
    fn ready_with_room(&self, state: &State, inputs: &[(&str, Input<'_>)]) -> Result<Option<Ready>, Error> {
        match &self.source {
            Source::Graph(graph) => Ok(Some(Ready::of_graph(graph))),
            #[cfg(feature = "onnx")]
            Source::Onnx(model) => {
                if state.parts.iter().all(|part| part.filled.is_none()) {
                    return Ok(None);
                }
                let of_run = inputs.iter().map(|(name, input)| (name.to_string(), input.ty()));
                let types = state.types().map(|(name, ty)| (name.to_string(), ty)).chain(of_run);
                let found = model.ready_by_types(&types.collect::<Vec<_>>(), inputs)?;
                Ok(found.map(|(graph, passed)| Ready { graph, passed, all: false }))
            }
        }
    }
}

/// The type that bytes have where they are the blocks of a packed part: files hold these as u8.
fn as_blocks(port: &Port, ty: TensorType) -> TensorType {
    let Kind::Tensor { element, .. } = &port.kind else { return ty };
    let whole = |format: &BlockFormat| ty.shape.last().is_some_and(|row| row.is_multiple_of(format.bytes()));
    match element.format().filter(whole) {
        Some(format) if ty.dtype == DType::U8 && ty.packed.is_none() => {
            TensorType { packed: Some(format), ..ty }
        }
        _ => ty,
    }
}

/// A run on a state.
struct WithState<R> {
    run: R,
    /// The outputs that are no state.
    outputs: Vec<HostOutput>,
    home: Option<Arc<Recycler>>,
}

impl GraphExecutable {
    fn run_with_state(&self, state: &mut [Part], inputs: &[(&str, Input<'_>)]) -> Result<Outputs, Error> {
        let WithState { run, outputs, home } =
            self.with_state(state, inputs, |prepared, inputs, parts| {
                let watched = self.watched_with_state(prepared, inputs, parts);
                let results = prepared.run_with_state(inputs, parts)?;
                watched.into_iter().for_each(|run| run.end(self.session()));
                Ok(results)
            })?;
        named(outputs, run, home.as_ref())
    }

    fn submit_with_state(&self, state: &mut [Part], inputs: &[(&str, Input<'_>)]) -> Result<Pending, Error> {
        let WithState { run: (run, watched), outputs, home } =
            self.with_state(state, inputs, |prepared, inputs, parts| {
                let watched = self.watched_with_state(prepared, inputs, parts);
                Ok((prepared.start_with_state(inputs, parts)?, self.watched_later(watched)))
            })?;
        Ok(Pending { run: OfProcess::new(run), outputs, home, watched })
    }

    /// As [`GraphExecutable::watched`]; the state stays on the device.
    fn watched_with_state(
        &self,
        prepared: &Arc<dyn Prepared>,
        inputs: &[Option<Input<'_>>],
        parts: &[StatePart<'_>],
    ) -> Option<WatchedRun> {
        let is_state = |output: usize| parts.iter().any(|part| part.output == output);
        self.watched(prepared, inputs.iter().flatten(), |output| !is_state(output))
    }

    /// Calls `run` with what is compiled for the inputs and a state, the inputs in the graph's order (`None` where a state is the
    /// input) and the parts of the state that the run changes.
    fn with_state<R>(
        &self,
        state: &mut [Part],
        inputs: &[(&str, Input<'_>)],
        run: impl FnOnce(&Arc<dyn Prepared>, &[Option<Input<'_>>], &mut [StatePart<'_>]) -> Result<R, Error>,
    ) -> Result<WithState<R>, Error> {
        // A state is not among the inputs that are borrowed: the run may write to it.
        let in_graph = state.iter().filter(|part| self.position(&part.name).is_some());
        let states = in_graph.map(|part| (part.name.as_str(), part.ty()));
        let rest = inputs.iter().map(|(name, input)| (*name, input.ty()));
        let types: Vec<(&str, TensorType)> = rest.chain(states).collect();
        let checked = self.check_inputs(&types)?;
        let names: Vec<&str> = self.graph().inputs().map(|(name, _)| name).collect();
        let part_of = |input: usize| state.iter().find(|part| names.get(input) == Some(&part.name.as_str()));
        let room = |input: usize| part_of(input).and_then(|part| part.capacity(part.filled?.0));
        let appending = self.appending(&checked.shapes, &room)?;
        let prepared = match &appending {
            Some(appending) => appending.prepared.clone(),
            None => self.specialised(&checked.shapes)?,
        };
        let grows = |name: &str| {
            let mut states = appending.iter().flat_map(|appending| appending.after());
            states.any(|(input, ..)| names.get(input) == Some(&name))
        };
        for part in state.iter_mut().filter(|part| !grows(&part.name)) {
            part.make_compact(self.session())?;
        }
        if let Some(appending) = &appending {
            appending.make_room(self.session(), &self.movers, &names, state)?;
        }

        let counter = checked.counter.as_ref().map(Input::from);
        let input = |at: &Option<usize>| match at {
            Some(at) => inputs.get(*at).map(|(_, input)| *input),
            None => counter,
        };
        let mut ordered: Vec<Option<Input<'_>>> = checked.order.iter().map(input).collect();
        let outputs = prepared.outputs();
        let mut parts = Vec::with_capacity(state.len());
        let mut taken = Vec::with_capacity(state.len());
        for part in state.iter_mut() {
            let becomes = self.states.iter().find(|(input, _)| *input == part.name).map(|(_, output)| output);
            let output = becomes.and_then(|output| outputs.iter().position(|(name, _)| name == output));
            let Some(output) = output else { continue };
            taken.push(output);
            let input = self.position(&part.name);
            part.compact = OnceLock::new();
            if self.leaves_state(output) {
                // The run reads it alone.
                if let Some(ordered) = input.and_then(|input| ordered.get_mut(input)) {
                    *ordered = Some(Input::Device(&part.tensor));
                }
            } else {
                parts.push(StatePart { input, output, tensor: &mut part.tensor });
            }
        }
        let run = run(&prepared, &ordered, &mut parts)?;
        for (input, axis, after) in appending.iter().flat_map(|appending| appending.after()) {
            if let Some(part) = state.iter_mut().find(|part| names.get(input) == Some(&part.name.as_str())) {
                part.filled = Some((axis, after));
            }
        }
        let outputs = host_outputs(outputs, |i| !taken.contains(&i));
        Ok(WithState { run, outputs, home: prepared.recycler().cloned() })
    }

    /// Whether an output is a constant without elements: merged decoders have these where a branch leaves a cache alone.
    fn leaves_state(&self, output: usize) -> bool {
        let value =
            self.graph().outputs().get(output).map(|output| &self.graph().values()[output.value.index()]);
        value.is_some_and(|value| matches!(value.def, Def::Const(_)) && value.ty.shape.has_zero())
    }
}
