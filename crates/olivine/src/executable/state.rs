//! State that stays on the device: outputs that become the next run's inputs without a copy, such as a key-value cache.

use olivine_gpu::Take;
use olivine_ir::{Tensor, nearest};

use super::io::{named, write_results, zeros};
use super::{Executable, Input, Outputs};
use crate::Error;
use crate::engine::{DeviceTensor, Given};

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
        let mut tensors = Vec::new();
        for (input, id) in self.graph.inputs().filter(|(name, _)| self.is_state(name)) {
            let ty = self.ty(id);
            let zeros = Tensor::zeros(ty.dtype, ty.shape)?;
            tensors.push((input.to_string(), self.session.upload(&zeros)?));
        }
        Ok(State { tensors })
    }

    /// Runs on a state and the other inputs; the state moves on, the other outputs come back.
    pub fn run_with_state<'a, V: Into<Input<'a>>>(
        &self,
        state: &mut State,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Outputs, Error> {
        let resident = state.tensors.iter().map(|(n, t)| (n.as_str(), Given::Resident(t.clone())));
        let given = inputs.into_iter().map(|(n, v)| (n, v.into().into()));
        let (prepared, given) = self.prepare(resident.chain(given))?;
        let all = prepared.outputs().to_vec();
        let takes: Vec<Take> = all
            .iter()
            .map(|(name, _)| if self.state_input(name).is_some() { Take::Device } else { Take::Host })
            .collect();
        let mut run = prepared.start(&given, &takes)?;
        let mut results = zeros(&all);
        for (data, take) in results.iter_mut().zip(&takes) {
            if *take == Take::Device {
                *data = olivine_ir::Data::zeros(data.dtype(), 0);
            }
        }
        write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| run.wait_into(targets))?;
        for (i, (name, _)) in all.iter().enumerate() {
            let Some(input) = self.state_input(name) else { continue };
            if !prepared.keeps_state() {
                let moved = run.output(i)?;
                if let Some((_, tensor)) = state.tensors.iter_mut().find(|(n, _)| n == input) {
                    *tensor = moved;
                }
            }
        }
        let host: Vec<bool> = takes.iter().map(|t| *t == Take::Host).collect();
        let keep = |i: usize| host[i];
        let outputs: Vec<_> =
            all.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, o)| o.clone()).collect();
        let results =
            results.into_iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, data)| data).collect();
        named(&outputs, results, None)
    }

    /// The input whose bytes an output takes over.
    fn state_input(&self, output: &str) -> Option<&str> {
        self.states.iter().find(|(_, o)| o == output).map(|(input, _)| input.as_str())
    }

    fn is_state(&self, input: &str) -> bool {
        self.states.iter().any(|(i, _)| i == input)
    }
}
