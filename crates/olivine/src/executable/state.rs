//! State that stays on the device: outputs that become the next run's inputs, such as a key-value cache.

use std::path::Path;

use olivine_ir::port::Port;
use olivine_ir::{Tensor, TensorType, nearest};

use super::io::named;
use super::{Executable, GraphExecutable, Input, Outputs, listed};
use crate::Error;
use crate::engine::{DeviceTensor, StatePart};

/// A model's state on its device, one for every sequence or stream; made by [`Executable::new_state`] and
/// [`Executable::state_from`].
#[derive(Debug)]
pub struct State {
    /// By input name.
    tensors: Vec<(String, DeviceTensor)>,
}

impl State {
    /// A part of the state by its input's name. It is the state itself: read it before the next run.
    pub fn get(&self, input: &str) -> Result<&DeviceTensor, Error> {
        let found = self.tensors.iter().find(|(name, _)| name == input).map(|(_, tensor)| tensor);
        found.ok_or_else(|| self.unknown(input))
    }

    /// All parts, by the names of their inputs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DeviceTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Replaces a part by a tensor of the host or of the device.
    pub fn set<'a>(&mut self, input: &str, value: impl Into<Input<'a>>) -> Result<(), Error> {
        let Some(at) = self.tensors.iter().position(|(name, _)| name == input) else {
            return Err(self.unknown(input));
        };
        let part = &mut self.tensors[at].1;
        *part = match value.into() {
            Input::Host(view) => part.like(view)?,
            Input::Device(tensor) => tensor.copy()?,
        };
        Ok(())
    }

    /// A copy on the device that goes its own way: to try several continuations of one sequence.
    pub fn try_clone(&self) -> Result<State, Error> {
        let copy = |(name, tensor): &(String, DeviceTensor)| Ok((name.clone(), tensor.copy()?));
        Ok(State { tensors: self.tensors.iter().map(copy).collect::<Result<_, Error>>()? })
    }

    /// Brings all parts to the host, by the names of their inputs.
    pub fn to_tensors(&self) -> Result<Vec<(String, Tensor)>, Error> {
        self.tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.to_tensor()?))).collect()
    }

    /// Writes the state to a safetensors file, which [`Executable::load_state`] reads.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(olivine_safetensors::save(path, &self.to_tensors()?)?)
    }

    fn unknown(&self, input: &str) -> Error {
        let nearest = nearest(input, self.tensors.iter().map(|(name, _)| name.as_str()));
        Error::UnknownName { kind: "state", name: input.into(), nearest }
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
        let mut tensors = Vec::with_capacity(self.options.state.len());
        let mut given = listed(values);
        let names = || self.options.state.iter().map(|(input, _)| input.as_str());
        if let Some((name, _)) = given.iter().find(|(name, _)| !names().any(|input| input == *name)) {
            let nearest = nearest(name, names());
            return Err(Error::UnknownName { kind: "state", name: name.to_string(), nearest });
        }
        for (input, _) in &self.options.state {
            let Some(port) = inputs.iter().find(|port| port.name == *input) else { continue };
            let value = given.iter().position(|(name, _)| name == input).map(|at| given.swap_remove(at).1);
            tensors.push((input.clone(), self.first_value(port, value)?));
        }
        if let Some((name, _)) = given.first() {
            return Err(Error::GivenTwice { kind: "state", name: name.to_string() });
        }
        Ok(State { tensors })
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
            Some(input) if !port.kind.takes(input.ty()) => {
                let (name, expected) = (port.name.clone(), port.kind.to_string());
                Err(Error::WrongType { kind: "state", name, expected, got: input.ty() })
            }
            Some(Input::Host(view)) => self.session.upload(view),
            Some(Input::Device(tensor)) => tensor.copy(),
            None => {
                let open = || Error::OpenState { input: port.name.clone(), declared: port.kind.to_string() };
                let ty = self.options.type_of(port)?.ok_or_else(open)?;
                self.session.upload(&Tensor::zeros(ty.dtype, ty.shape)?)
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
        let ready = {
            let resident = state.tensors.iter().map(|(name, tensor)| (name.as_str(), Input::Device(tensor)));
            let all: Vec<(&str, Input<'_>)> = resident.chain(inputs.iter().copied()).collect();
            self.ready(&all)?
        };
        ready.graph.run_with_state(&self.options.state, &mut state.tensors, &ready.inputs(&inputs))
    }
}

impl GraphExecutable {
    fn run_with_state(
        &self,
        pairs: &[(String, String)],
        state: &mut [(String, DeviceTensor)],
        inputs: &[(&str, Input<'_>)],
    ) -> Result<Outputs, Error> {
        // A state is not among the inputs that are borrowed: the run may write to it.
        let in_graph = state.iter().filter(|(name, _)| self.position(name).is_some());
        let states = in_graph.map(|(name, tensor)| (name.as_str(), tensor.ty()));
        let rest = inputs.iter().map(|(name, input)| (*name, input.ty()));
        let types: Vec<(&str, TensorType)> = rest.chain(states).collect();
        let checked = self.check_inputs(&types)?;
        let counter = checked.counter.as_ref().map(Input::from);
        let input = |at: &Option<usize>| match at {
            Some(at) => inputs.get(*at).map(|(_, input)| *input),
            None => counter,
        };
        let ordered: Vec<Option<Input<'_>>> = checked.order.iter().map(input).collect();
        let prepared = &checked.prepared;
        let outputs = prepared.outputs();
        let mut parts = Vec::with_capacity(state.len());
        for (name, tensor) in state {
            let becomes = pairs.iter().find(|(input, _)| input == name).map(|(_, output)| output);
            let output = becomes.and_then(|output| outputs.iter().position(|(name, _)| name == output));
            if let Some(output) = output {
                parts.push(StatePart { input: self.position(name), output, tensor });
            }
        }
        let results = prepared.run_with_state(&ordered, &mut parts)?;
        let taken: Vec<usize> = parts.iter().map(|part| part.output).collect();
        let of_caller = |i: usize| !taken.contains(&i);
        let (outputs, results): (Vec<_>, Vec<_>) = outputs
            .iter()
            .cloned()
            .zip(results)
            .enumerate()
            .filter(|(i, _)| of_caller(*i))
            .map(|(_, pair)| pair)
            .unzip();
        named(&outputs, results, prepared.recycler())
    }
}
