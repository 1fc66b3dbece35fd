//! Slots: recorded commands for one run at a time, kept and replayed, and the memory they work on. Recordings for several
//! sizes work on the same memory, one after another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use olivine_program::{BufferDecl, BufferId, Commands, Content, Driver, Error, Program, Timing};

use super::load::Loaded;
use super::{DeviceTensor, Executable, Input, Take};
use crate::weights::Idle;

/// An output that stays on the device, and the token that its readers hold.
type Leased<D> = (Arc<<D as Driver>::Buffer>, Arc<()>);

/// A resident input of a recording: its buffer, which the recording keeps alive, and whether somebody still has the
/// tensor.
type Resident<D> = (Arc<<D as Driver>::Buffer>, Weak<()>);

/// A buffer of numbers by sizes, and how many bytes it has.
type TableBuffer<D> = (Arc<<D as Driver>::Buffer>, u64);

/// Buffers of a program that recordings have of their own, by position.
pub(super) type Tables<D> = Vec<Option<TableBuffer<D>>>;

/// Memory that recordings work on, one run at a time.
pub(super) struct Memory<D: Driver> {
    /// For every buffer of the program its memory, where a recording has needed some.
    buffers: Mutex<Vec<Option<MemoryBuffer<D>>>>,
    /// Whether a run on it is in flight.
    pub(super) busy: AtomicBool,
    /// Whether a run on it has failed: what that leaves behind is not trusted with another.
    failed: AtomicBool,
}

struct MemoryBuffer<D: Driver> {
    buffer: Arc<D::Buffer>,
    bytes: u64,
    /// Held by those who read an output that is there.
    lease: Arc<()>,
}

impl<D: Driver> Memory<D> {
    pub(super) fn new() -> Self {
        Memory { buffers: Mutex::default(), busy: AtomicBool::new(false), failed: AtomicBool::new(false) }
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Option<MemoryBuffer<D>>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a run may write it: none is in flight, and nobody reads outputs of the last.
    fn is_free(&self) -> bool {
        let unread = |own: &MemoryBuffer<D>| Arc::strong_count(&own.lease) == 1;
        !self.busy.load(Ordering::Acquire)
            && !self.failed.load(Ordering::Acquire)
            && self.buffers().iter().flatten().all(unread)
    }

    fn bytes(&self) -> u64 {
        self.buffers().iter().flatten().map(|own| own.bytes).sum()
    }

    /// Whether some of its buffers are too small for a program. Recordings that use them must go first.
    pub(super) fn is_too_small(&self, program: &Program) -> bool {
        let small = |(decl, own): (&BufferDecl, &Option<MemoryBuffer<D>>)| {
            own.as_ref().is_some_and(|own| own.bytes < decl.bytes)
        };
        program.buffers.iter().zip(self.buffers().iter()).any(small)
    }
}

/// Slots of an executable, and of those for other sizes of its graph, that no run uses.
pub(super) struct IdleSlots<D: Driver> {
    slots: Mutex<Vec<Slot<D>>>,
    used: AtomicU64,
}

impl<D: Driver> IdleSlots<D> {
    pub(super) fn new() -> Self {
        IdleSlots { slots: Mutex::default(), used: AtomicU64::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Slot<D>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a run uses them, with the number of the use.
    pub(super) fn set_used(&self, number: u64) {
        self.used.store(number, Ordering::Relaxed);
    }
}

impl<D: Driver> Idle for IdleSlots<D> {
    fn bytes(&self) -> u64 {
        let slots = self.lock();
        let is_first =
            |i: usize| !slots[..i].iter().any(|other| Arc::ptr_eq(&other.memory, &slots[i].memory));
        let of_memory = (0..slots.len()).filter(|i| is_first(*i)).map(|i| slots[i].memory.bytes());
        let tables = slots.iter().flat_map(|slot| slot.tables.iter().flatten()).map(|(_, bytes)| bytes);
        of_memory.sum::<u64>() + tables.sum::<u64>()
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }
}

/// Where an output that stays on the device is.
pub(super) enum Output<D: Driver> {
    /// In a buffer of the memory.
    Own(usize),
    /// In an input's buffer, which the run writes.
    Input(Leased<D>),
}

/// Recorded commands and the memory they work on. They serve any run with the same resident inputs, output locations,
/// timing and weights.
pub(super) struct Slot<D: Driver> {
    /// For every input its buffer, if it is on the device; `None` where the host uploads it.
    inputs: Vec<Option<Resident<D>>>,
    pub(super) takes: Vec<Take>,
    timing: Timing,
    /// Of the weights.
    pub(super) generation: u64,
    pub(super) recording: D::Recording,
    outputs: Vec<Option<Output<D>>>,
    pub(super) memory: Arc<Memory<D>>,
    /// Numbers that follow from sizes are the recording's alone.
    pub(super) tables: Tables<D>,
    /// Bytes that pass between host and device in a run.
    pub(super) transfers: u64,
    /// Whether a run may be in flight.
    pub(super) running: bool,
    /// The sizes it was recorded for.
    pub(super) sizes: Arc<()>,
}

impl<D: Driver> Drop for Slot<D> {
    fn drop(&mut self) {
        if self.running {
            self.memory.failed.store(true, Ordering::Release);
        }
    }
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

    /// Whether nobody reads the last run's outputs any more, and no run is in flight on its memory.
    pub(super) fn is_free(&self) -> bool {
        let unread = |output: &Output<D>| match output {
            Output::Own(_) => true,
            Output::Input((_, lease)) => Arc::strong_count(lease) == 1,
        };
        self.outputs.iter().flatten().all(unread) && self.memory.is_free()
    }

    /// Whether the tensors it was recorded for still exist, and no run on its memory has failed.
    pub(super) fn is_reusable(&self) -> bool {
        !self.memory.failed.load(Ordering::Acquire)
            && self.inputs.iter().flatten().all(|(_, lease)| lease.strong_count() > 0)
    }

    /// An output that stays on the device, with a token for its reader.
    pub(super) fn output(&self, i: usize) -> Option<Leased<D>> {
        match self.outputs.get(i)?.as_ref()? {
            Output::Own(at) => {
                let buffers = self.memory.buffers();
                let own = buffers.get(*at)?.as_ref()?;
                Some((own.buffer.clone(), own.lease.clone()))
            }
            Output::Input(leased) => Some(leased.clone()),
        }
    }
}

impl<D: Driver> Executable<D> {
    /// Records the program for a run on memory that is free, and allocates what that does not have. `tables` are those of a
    /// recording that is gone.
    pub(super) fn record(
        &self,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
        loaded: &Loaded<D>,
        memory: &Arc<Memory<D>>,
        mut tables: Tables<D>,
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
        tables.resize_with(buffers.len(), || None);
        let mut owned = vec![false; buffers.len()];
        {
            let mut own = memory.buffers();
            own.resize_with(buffers.len(), || None);
            for (i, decl) in program.buffers.iter().enumerate() {
                if buffers[i].is_some() {
                    continue;
                }
                buffers[i] = match &decl.content {
                    Content::Table(table) => {
                        let memory = self.enough(&mut tables[i], decl)?;
                        self.driver.write(&memory, 0, table.bytes())?;
                        Some(memory)
                    }
                    Content::Arena | Content::Input(_) | Content::Output(_) | Content::Gates => {
                        owned[i] = true;
                        let mut known = own[i].take().map(|own| (own.buffer, own.bytes, own.lease));
                        if known.as_ref().is_none_or(|(_, bytes, _)| *bytes < decl.bytes) {
                            // What is too small goes before what is larger comes.
                            known = None;
                        }
                        let (buffer, bytes, lease) = match known {
                            Some(known) => known,
                            None => (self.allocated(decl)?, decl.bytes, Arc::new(())),
                        };
                        own[i] = Some(MemoryBuffer { buffer: buffer.clone(), bytes, lease });
                        Some(buffer)
                    }
                    _ => None,
                };
            }
        }
        let host_inputs =
            program.inputs.iter().zip(inputs).filter(|(_, input)| matches!(input, Input::Host(_)));
        let uploads: Vec<(BufferId, u64)> =
            host_inputs.map(|(p, _)| (p.buffer, p.ty.bytes() as u64)).collect();
        let host_outputs = program.outputs.iter().zip(takes).filter(|(_, t)| **t == Take::Host);
        let downloads: Vec<(BufferId, u64)> =
            host_outputs.map(|(p, _)| (p.buffer, p.ty.bytes() as u64)).collect();
        let outputs = program.outputs.iter().zip(takes).map(|(port, take)| {
            let at = port.buffer.0 as usize;
            let buffer = buffers.get(at)?.as_ref()?;
            (*take == Take::Device).then(|| match owned[at] {
                true => Output::Own(at),
                false => Output::Input((buffer.clone(), Arc::new(()))),
            })
        });
        let outputs = outputs.collect();
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
        Ok(Slot {
            inputs: resident,
            takes: takes.to_vec(),
            timing,
            generation: loaded.generation,
            recording,
            outputs,
            memory: memory.clone(),
            tables,
            transfers: uploads.iter().chain(&downloads).map(|(_, bytes)| bytes).sum(),
            running: false,
            sizes: self.sizes.clone(),
        })
    }

    /// A recording's own buffer with the bytes of a program's.
    fn enough(&self, known: &mut Option<TableBuffer<D>>, decl: &BufferDecl) -> Result<Arc<D::Buffer>, Error> {
        if let Some((buffer, bytes)) = known
            && *bytes >= decl.bytes
        {
            return Ok(buffer.clone());
        }
        *known = None;
        let buffer = self.allocated(decl)?;
        *known = Some((buffer.clone(), decl.bytes));
        Ok(buffer)
    }

    fn allocated(&self, decl: &BufferDecl) -> Result<Arc<D::Buffer>, Error> {
        let label = super::describe(&decl.content, &self.program);
        match decl.content {
            Content::Gates => self.driver.allocate_gates(decl.bytes, &label),
            _ => self.driver.allocate(decl.bytes, &label),
        }
    }
}
