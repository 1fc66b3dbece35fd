//! State that stays on the device: outputs that become the next run's inputs without a copy, such as a key-value cache.

use olivine_ir::{Tensor, nearest};

use super::io::named;
use super::{Executable, Input, Outputs};
use crate::Error;
use crate::engine::{DeviceTensor, Given, StatePart};

/// A model's state on its device, one for every sequence or stream; made by [`Executable::new_state`].
#[derive(Debug)]
pub struct State {
    /// By input name.
    tensors: Vec<(String, DeviceTensor)>,
}

impl State {
    /// A part of the state by its input's name. It is the state itself: read it before the state moves on.
    pub fn get(&self, input: &str) -> Result<&DeviceTensor, Error> {
        let found = self.tensors.iter().find(|(name, _)| name == input).map(|(_, tensor)| tensor);
        found.ok_or_else(|| Error::UnknownName {
            kind: "state",
            name: input.into(),
            nearest: nearest(input, self.tensors.iter().map(|(n, _)| n.as_str())),
        })
    }
}

impl Executable {
    /// A fresh state, all zeros.
    pub fn new_state(&self) -> Result<State, Error> {
        self.session.inner.check()?;
        let mut tensors = Vec::new();
        for (input, id) in self.graph.inputs().filter(|(name, _)| self.is_state(name)) {
            let ty = self.ty(id);
            let zeros = Tensor::zeros(ty.dtype, ty.shape)?;
            tensors.push((input.to_string(), self.session.upload(&zeros)?));
        }
        Ok(State { tensors })
    }

    /// Runs on a state and the other inputs; the state moves on, the other outputs come back.
    ///
    /// A run that fails leaves the state as it was, but that rows of [`kv_append`](olivine_ir::Graph::kv_append) may have
    /// been written in place already; the same run again writes them again.
    pub fn run_with_state<'a, V: Into<Input<'a>>>(
        &self,
        state: &mut State,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let resident = state.tensors.iter().map(|(n, t)| (n.as_str(), Given::Resident(t.clone())));
        let given = inputs.into_iter().map(|(n, v)| (n, v.into().into()));
        let (prepared, given) = self.prepare(resident.chain(given))?;
        let outputs = prepared.outputs();
        let mut parts = Vec::with_capacity(state.tensors.len());
        for (name, tensor) in &mut state.tensors {
            let input = self.position(name);
            let output =
                outputs.iter().position(|(output, _)| self.state_input(output) == Some(name.as_str()));
            if let (Some(input), Some(output)) = (input, output) {
                parts.push(StatePart { input, output, tensor });
            }
        }
        let results = prepared.run_with_state(given, &mut parts)?;
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

    /// The input whose bytes an output takes over.
    fn state_input(&self, output: &str) -> Option<&str> {
        self.states.iter().find(|(_, o)| o == output).map(|(input, _)| input.as_str())
    }

    fn is_state(&self, input: &str) -> bool {
        self.states.iter().any(|(i, _)| i == input)
    }
}
