//! Slots: memory and recorded commands for one run at a time, kept and replayed.

use std::sync::{Arc, Weak};

use olivine_program::{BufferId, Commands, Content, Driver, Error, Timing};

use super::load::Loaded;
use super::{Executable, Feed, Take};

/// What a recording was made for: another wish needs another recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// For every input that is on the device already, where.
    feeds: Vec<Option<usize>>,
    pub(super) takes: Vec<Take>,
    timing: Timing,
    /// Of the weights.
    pub(super) generation: u64,
}

impl Wish {
    pub(super) fn new<D: Driver>(
        feeds: &[Feed<'_, D>],
        takes: &[Take],
        timing: Timing,
        generation: u64,
    ) -> Self {
        let address = |feed: &Feed<'_, D>| match feed {
            Feed::Host(_) => None,
            // The recording keeps the buffer, so its address belongs to no other meanwhile.
            Feed::Device(tensor) => Some(Arc::as_ptr(tensor.buffer()).addr()),
        };
        Wish { feeds: feeds.iter().map(address).collect(), takes: takes.to_vec(), timing, generation }
    }
}

/// An output that stays on the device, and the token that its readers hold.
pub(super) type Leased<D> = (Arc<<D as Driver>::Buffer>, Arc<()>);

/// Recorded commands with the memory they work on.
pub(super) struct Slot<D: Driver> {
    pub(super) wish: Wish,
    pub(super) recording: D::Recording,
    pub(super) outputs: Vec<Option<Leased<D>>>,
    /// What the recording was made with, which must not move to another address, and whether somebody still has it.
    fed: Vec<(Arc<D::Buffer>, Weak<()>)>,
}

impl<D: Driver> Slot<D> {
    /// Whether nobody reads the last run's outputs any more.
    pub(super) fn is_free(&self) -> bool {
        self.outputs.iter().flatten().all(|(_, lease)| Arc::strong_count(lease) == 1)
    }

    /// Whether the tensors it was recorded for can still come.
    pub(super) fn is_wanted(&self) -> bool {
        self.fed.iter().all(|(_, lease)| lease.strong_count() > 0)
    }
}

impl<D: Driver> Executable<D> {
    /// Takes memory and records the program for a wish.
    pub(super) fn record(
        &self,
        feeds: &[Feed<'_, D>],
        takes: &[Take],
        wish: Wish,
        loaded: &Loaded<D>,
    ) -> Result<Slot<D>, Error> {
        let program = &self.program;
        let mut buffers = loaded.buffers.as_ref().clone();
        let mut fed = Vec::new();
        for (port, feed) in program.inputs.iter().zip(feeds) {
            if let Feed::Device(tensor) = feed {
                buffers[port.buffer.0 as usize] = Some(tensor.buffer().clone());
                fed.push((tensor.buffer().clone(), Arc::downgrade(tensor.lease())));
            }
        }
        for (decl, place) in program.buffers.iter().zip(&mut buffers) {
            if place.is_some() {
                continue;
            }
            let label = || super::describe(&decl.content, program);
            *place = match decl.content {
                Content::Arena | Content::Input(_) | Content::Output(_) => {
                    Some(self.driver.allocate(decl.bytes, &label())?)
                }
                Content::Gates => Some(self.driver.allocate_gates(decl.bytes, &label())?),
                _ => None,
            };
        }
        let host_inputs = program.inputs.iter().zip(feeds).filter(|(_, f)| matches!(f, Feed::Host(_)));
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
            timing: wish.timing,
            checked: self.checked,
        })?;
        Ok(Slot { wish, recording, outputs, fed })
    }
}
