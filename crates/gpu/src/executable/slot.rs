//! Slots: memory and recorded commands for one run at a time, kept and replayed.

use std::sync::{Arc, Weak};

use olivine_program::{BufferId, Commands, Content, Driver, Error, Timing};

use super::load::Loaded;
use super::{DeviceTensor, Executable, Input, Take};

/// An output that stays on the device, and the token that its readers hold.
pub(super) type Leased<D> = (Arc<<D as Driver>::Buffer>, Arc<()>);

/// A resident input of a recording: its buffer, which the recording keeps alive, and whether somebody still has the
/// tensor.
type Resident<D> = (Arc<<D as Driver>::Buffer>, Weak<()>);

/// Recorded commands with the memory they work on. They serve any run with the same resident inputs, output locations,
/// timing and weights.
pub(super) struct Slot<D: Driver> {
    /// For every input its buffer, if it is on the device; `None` where the host uploads it.
    inputs: Vec<Option<Resident<D>>>,
    pub(super) takes: Vec<Take>,
    timing: Timing,
    /// Of the weights.
    pub(super) generation: u64,
    pub(super) recording: D::Recording,
    pub(super) outputs: Vec<Option<Leased<D>>>,
    /// For every buffer of the program its memory and how many bytes that has, if it is the slot's own.
    own: Vec<Option<(Arc<D::Buffer>, u64)>>,
    /// The sizes it was recorded for.
    pub(super) sizes: Arc<()>,
}

impl<D: Driver> Slot<D> {
    /// Whether it was recorded for such a run.
    pub(super) fn serves(
        &self,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
    ) -> bool {
        let same = |(recorded, input): (&Option<Resident<D>>, &Input<'_, DeviceTensor<D>>)| match (
            recorded, input,
        ) {
            (None, Input::Host(_)) => true,
            (Some((buffer, _)), Input::Device(tensor)) => Arc::ptr_eq(buffer, tensor.buffer()),
            _ => false,
        };
        self.takes == takes && self.timing == timing && self.inputs.iter().zip(inputs).all(same)
    }

    /// Whether nobody reads the last run's outputs any more.
    pub(super) fn is_free(&self) -> bool {
        self.outputs.iter().flatten().all(|(_, lease)| Arc::strong_count(lease) == 1)
    }

    /// Whether the tensors it was recorded for still exist.
    pub(super) fn is_reusable(&self) -> bool {
        self.inputs.iter().flatten().all(|(_, lease)| lease.strong_count() > 0)
    }
}

impl<D: Driver> Executable<D> {
    /// Allocates memory, or takes that of an idle slot that nobody reads any more, and records the program for a run.
    pub(super) fn record(
        &self,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
        loaded: &Loaded<D>,
        donor: Option<Slot<D>>,
    ) -> Result<Slot<D>, Error> {
        let program = &self.program;
        let mut buffers = loaded.buffers.as_ref().clone();
        let mut resident = Vec::with_capacity(inputs.len());
        for (port, input) in program.inputs.iter().zip(inputs) {
            resident.push(match input {
                Input::Host(_) => None,
                Input::Device(tensor) => {
                    buffers[port.buffer.0 as usize] = Some(tensor.buffer().clone());
                    Some((tensor.buffer().clone(), Arc::downgrade(tensor.lease())))
                }
            });
        }
        let mut own = donor.map_or_else(|| (0..buffers.len()).map(|_| None).collect(), |donor| donor.own);
        for ((decl, buffer), own) in program.buffers.iter().zip(&mut buffers).zip(&mut own) {
            if buffer.is_some() {
                *own = None;
                continue;
            }
            let label = || super::describe(&decl.content, program);
            if own.as_ref().is_none_or(|(_, bytes)| *bytes < decl.bytes) {
                // What is too small goes before what is larger comes.
                *own = None;
                let memory = match decl.content {
                    Content::Arena | Content::Input(_) | Content::Output(_) | Content::Table(_) => {
                        Some(self.driver.allocate(decl.bytes, &label())?)
                    }
                    Content::Gates => Some(self.driver.allocate_gates(decl.bytes, &label())?),
                    _ => None,
                };
                *own = memory.map(|memory| (memory, decl.bytes));
            }
            // The memory of another slot holds the numbers of other sizes.
            if let (Content::Table(table), Some((memory, _))) = (&decl.content, own.as_ref()) {
                self.driver.write(memory, 0, table.bytes())?;
            }
            *buffer = own.as_ref().map(|(memory, _)| memory.clone());
        }
        let host_inputs =
            program.inputs.iter().zip(inputs).filter(|(_, input)| matches!(input, Input::Host(_)));
        let uploads: Vec<(BufferId, u64)> =
            host_inputs.map(|(p, _)| (p.buffer, p.ty.bytes() as u64)).collect();
        let host_outputs = program.outputs.iter().zip(takes).filter(|(_, t)| **t == Take::Host);
        let downloads: Vec<(BufferId, u64)> =
            host_outputs.map(|(p, _)| (p.buffer, p.ty.bytes() as u64)).collect();
        let outputs = program
            .outputs
            .iter()
            .zip(takes)
            .map(|(port, take)| {
                let buffer = buffers.get(port.buffer.0 as usize)?.clone()?;
                (*take == Take::Device).then(|| (buffer, Arc::new(())))
            })
            .collect();
        let recording = self.driver.record(Commands {
            program,
            dispatches: &program.run,
            pipelines: &self.pipelines,
            buffers: &buffers,
            uploads: &uploads,
            downloads: &downloads,
            timing,
            checked: self.checked,
        })?;
        let (takes, generation) = (takes.to_vec(), loaded.generation);
        let sizes = self.sizes.clone();
        Ok(Slot { inputs: resident, takes, timing, generation, recording, outputs, own, sizes })
    }
}
