//! Running a program on a driver: loading, slots that are recorded once and replayed, several runs in flight.

mod load;
mod slot;
mod tensor;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use olivine_ir::size::Bindings;
use olivine_ir::{Tensor, TensorType, TensorView};
use olivine_program::{Content, Driver, Error, Port, Program, Slice, Timing};

use crate::weights::Weights;
use load::Loaded;
use slot::{IdleSlots, Memory, Slot, Tables};

pub use tensor::DeviceTensor;

/// Recordings kept for later runs.
const IDLE_SLOTS: usize = 8;
/// Bytes that pass between host and device in runs of idle recordings for other sizes than the last run's.
const OTHERS_STAGED: u64 = 256 << 20;
/// The part of the device's memory that idle slots of a model's other executables may have when one needs more.
const OTHERS_PART: u64 = 8;
/// With so many of them, a run on other inputs of the same sizes is recorded into the memory of one instead of new memory.
const DONORS: usize = 4;

/// A program ready to run on a device; runs may overlap.
///
/// Executables of one graph for several sizes share pipelines, weights and the memory of finished runs.
pub struct Executable<D: Driver> {
    driver: Arc<D>,
    program: Program,
    pipelines: Arc<Vec<Arc<D::Pipeline>>>,
    weights: Arc<Weights<D>>,
    checked: bool,
    loaded: Mutex<Option<Loaded<D>>>,
    idle: Arc<IdleSlots<D>>,
    /// Recordings made so far, for all sizes.
    recordings: Arc<AtomicUsize>,
    /// Tells recordings for these sizes from those for others.
    sizes: Arc<()>,
    /// The executable that loads, if this one is for other sizes.
    base: Option<Arc<Executable<D>>>,
}

/// An input of a run: borrowed from the host, or on the device already.
///
/// `T` is the tensor on the device: [`DeviceTensor`] where the driver's type is known, and one with that type erased above
/// it.
pub enum Input<'a, T> {
    /// Elements of the host.
    Host(TensorView<'a>),
    /// A tensor on the executable's device.
    Device(&'a T),
}

/// A tensor on a device that knows its type.
pub trait Typed {
    /// Its type.
    fn ty(&self) -> TensorType;
}

impl<D: Driver> Typed for DeviceTensor<D> {
    fn ty(&self) -> TensorType {
        DeviceTensor::ty(self)
    }
}

impl<T: Typed> Input<'_, T> {
    /// Its type.
    pub fn ty(&self) -> TensorType {
        match self {
            Input::Host(view) => view.ty(),
            Input::Device(tensor) => tensor.ty(),
        }
    }
}

impl<T> Clone for Input<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Input<'_, T> {}

impl<'a, T> From<TensorView<'a>> for Input<'a, T> {
    fn from(view: TensorView<'a>) -> Self {
        Input::Host(view)
    }
}

impl<'a, T> From<&'a Tensor> for Input<'a, T> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Host(tensor.view())
    }
}

/// Where an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// Back to the host.
    Host,
    /// It stays on the device.
    Device,
}

/// What one dispatch of a profiled run did.
#[derive(Clone, Debug)]
pub struct DispatchTime {
    /// The operation it belongs to.
    pub op: &'static str,
    /// The node it belongs to.
    pub node: String,
    /// The kernel.
    pub kernel: String,
    /// When it began, from the run's first dispatch.
    pub start: Duration,
    /// How long it took on the device.
    pub time: Duration,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes that it must read and write at least.
    pub bytes: u64,
}

impl<D: Driver> Executable<D> {
    /// Builds a program's pipelines. `checked` runs report accesses and indices out of range.
    pub fn new(
        driver: Arc<D>,
        program: Program,
        weights: Arc<Weights<D>>,
        checked: bool,
    ) -> Result<Self, Error> {
        check_memory(&program, driver.as_ref())?;
        let begun = web_time::Instant::now();
        let pipelines = driver.pipelines(&program.kernels, checked)?;
        tracing::debug!(kernels = program.kernels.len(), took = ?begun.elapsed(), "built pipelines");
        let idle = Arc::new(IdleSlots::new());
        let for_weights: Weak<IdleSlots<D>> = Arc::downgrade(&idle);
        weights.add_idle(for_weights);
        Ok(Executable {
            driver,
            program,
            pipelines: Arc::new(pipelines),
            weights,
            checked,
            loaded: Mutex::new(None),
            idle,
            recordings: Arc::default(),
            sizes: Arc::default(),
            base: None,
        })
    }

    /// The same graph for other values of its open sizes; the guards of its compile must hold for them.
    pub fn for_sizes(self: &Arc<Self>, sizes: &Bindings) -> Result<Self, Error> {
        let base = self.base.as_ref().unwrap_or(self);
        let program = base.program.for_sizes(sizes)?;
        check_memory(&program, self.driver.as_ref())?;
        Ok(Executable {
            driver: self.driver.clone(),
            program,
            pipelines: self.pipelines.clone(),
            weights: self.weights.clone(),
            checked: self.checked,
            loaded: Mutex::new(None),
            idle: self.idle.clone(),
            recordings: self.recordings.clone(),
            sizes: Arc::default(),
            base: Some(base.clone()),
        })
    }

    /// Inputs in declaration order.
    pub fn inputs(&self) -> &[Port] {
        &self.program.inputs
    }

    /// Outputs in declaration order.
    pub fn outputs(&self) -> &[Port] {
        &self.program.outputs
    }

    /// How many times runs were recorded, for all sizes; others replayed what was there.
    pub fn recordings(&self) -> usize {
        self.recordings.load(Ordering::Relaxed)
    }

    /// What runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Brings params to the device and packs them now instead of at the first run.
    pub fn load(&self) -> Result<(), Error> {
        self.loaded().map(drop)
    }

    /// Submits a run and returns at once. `takes` has one element for every output.
    pub fn start(
        self: &Arc<Self>,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
    ) -> Result<Run<D>, Error> {
        self.submit(inputs, takes, Timing::Off)
    }

    /// Runs and waits for the outputs, packed bytes of their types (bool as 0 or 1).
    pub fn run(
        self: &Arc<Self>,
        inputs: &[Input<'_, DeviceTensor<D>>],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        self.start(inputs, &vec![Take::Host; self.program.outputs.len()])?.wait_into(outputs)
    }

    /// Runs and times every dispatch; they run one after another. The outputs stay on the device and are dropped.
    pub fn profile(
        self: &Arc<Self>,
        inputs: &[Input<'_, DeviceTensor<D>>],
    ) -> Result<Vec<DispatchTime>, Error> {
        let mut run =
            self.submit(inputs, &vec![Take::Device; self.program.outputs.len()], Timing::Dispatches)?;
        run.finish()?;
        let Some(slot) = run.slot.as_mut() else { return Ok(Vec::new()) };
        let times = self.driver.times(&mut slot.recording)?;
        Ok(self
            .program
            .run
            .iter()
            .zip(times)
            .map(|(d, (start, end))| DispatchTime {
                op: d.op,
                node: d.node.to_string(),
                kernel: self.program.kernel(d).name.clone(),
                start,
                time: end.saturating_sub(start),
                flops: d.flops,
                bytes: d.bytes,
            })
            .collect())
    }

    /// Runs several times in a row and returns how long all dispatches together took on the device, per run; the
    /// outputs stay there.
    pub fn time(
        self: &Arc<Self>,
        inputs: &[Input<'_, DeviceTensor<D>>],
        runs: u32,
    ) -> Result<(Duration, Vec<DeviceTensor<D>>), Error> {
        let takes = vec![Take::Device; self.program.outputs.len()];
        let mut run = self.submit(inputs, &takes, Timing::Runs(runs.max(1)))?;
        run.finish()?;
        let outputs = (0..takes.len()).filter_map(|i| run.output(i)).collect();
        let Some(slot) = run.slot.as_mut() else { return Ok((Duration::ZERO, outputs)) };
        let spans = self.driver.times(&mut slot.recording)?;
        let begin = spans.iter().map(|(begin, _)| *begin).min().unwrap_or_default();
        let end = spans.iter().map(|(_, end)| *end).max().unwrap_or_default();
        Ok((end.saturating_sub(begin) / runs.max(1), outputs))
    }

    fn submit(
        self: &Arc<Self>,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
    ) -> Result<Run<D>, Error> {
        count("inputs", self.program.inputs.len(), inputs.len())?;
        count("outputs", self.program.outputs.len(), takes.len())?;
        for (port, input) in self.program.inputs.iter().zip(inputs) {
            let what = || format!("input `{}`", port.name);
            if input.ty() != port.ty {
                return Err(Error::WrongType { what: what(), expected: port.ty, got: input.ty() });
            }
            if matches!(input, Input::Device(tensor) if !tensor.is_of(&self.driver)) {
                return Err(Error::OtherDevice { what: what() });
            }
        }
        let loaded = self.loaded()?;
        let mut slot = match self.idle_slot(inputs, takes, timing, loaded.generation) {
            Ok(slot) => slot,
            Err(room) => self.record_or_evict(inputs, takes, timing, &loaded, room)?,
        };
        slot.running = true;
        let mut upload = 0;
        for input in inputs {
            if let Input::Host(view) = input {
                self.driver.upload(&mut slot.recording, upload, view.bytes())?;
                upload += 1;
            }
        }
        self.driver.submit(&mut slot.recording)?;
        Ok(Run { executable: self.clone(), slot: Some(slot), finished: false })
    }

    /// A recording for such a run, or what another may be recorded with.
    fn idle_slot(
        &self,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
        generation: u64,
    ) -> Result<Slot<D>, Room<D>> {
        self.idle.set_used(self.weights.use_number());
        let mut gone = Vec::new();
        let mut idle = self.idle.lock();
        gone.extend(idle.extract_if(.., |slot| slot.generation != generation || !slot.is_reusable()));
        let is_own = |slot: &Slot<D>| Arc::ptr_eq(&slot.sizes, &self.sizes);
        let found =
            idle.iter().position(|slot| is_own(slot) && slot.serves(inputs, takes, timing) && slot.is_free());
        if let Some(i) = found {
            let slot = idle.remove(i);
            slot.memory.busy.store(true, Ordering::Release);
            return Ok(slot);
        }
        // Recordings for other sizes stay, and this one works on their memory.
        let shared = idle.iter().find(|slot| !is_own(slot) && slot.is_free()).map(|slot| slot.memory.clone());
        let mut tables = Tables::<D>::new();
        let (memory, grows) = match shared {
            Some(memory) => {
                // What is too small must grow, and recordings know only what it was.
                let grows = memory.is_too_small(&self.program);
                if grows {
                    gone.extend(idle.extract_if(.., |slot| Arc::ptr_eq(&slot.memory, &memory)));
                }
                if idle.len() >= IDLE_SLOTS
                    && let Some(i) = idle.iter().position(Slot::is_free)
                {
                    gone.push(idle.remove(i));
                }
                if let Some(slot) = gone.iter_mut().find(|slot| Arc::ptr_eq(&slot.memory, &memory)) {
                    tables = std::mem::take(&mut slot.tables);
                }
                (memory, grows)
            }
            None => {
                let donor = match idle.len() < DONORS {
                    true => None,
                    false => idle.iter().position(Slot::is_free).map(|i| idle.remove(i)),
                };
                let memory = donor.as_ref().map(|donor| donor.memory.clone());
                gone.extend(donor);
                let grows = memory.is_none();
                (memory.unwrap_or_else(|| Arc::new(Memory::new())), grows)
            }
        };
        memory.busy.store(true, Ordering::Release);
        drop(idle);
        // What goes may have to wait for the device to free it; other threads need not.
        drop(gone);
        if grows {
            self.weights.bound_idle(self.driver.caps().memory_bytes / OTHERS_PART, &self.idle);
        }
        Err(Room { memory, tables })
    }

    /// Records a slot; if memory runs out, it frees the idle slots of all executables of the model and tries again.
    fn record_or_evict(
        &self,
        inputs: &[Input<'_, DeviceTensor<D>>],
        takes: &[Take],
        timing: Timing,
        loaded: &Loaded<D>,
        room: Room<D>,
    ) -> Result<Slot<D>, Error> {
        self.recordings.fetch_add(1, Ordering::Relaxed);
        let Room { memory, tables } = room;
        let problem = match self.record(inputs, takes, timing, loaded, &memory, tables) {
            Ok(slot) => return Ok(slot),
            Err(problem) => problem,
        };
        let evicted = {
            let mut idle = self.idle.lock();
            memory.busy.store(false, Ordering::Release);
            match problem {
                Error::OutOfMemory { .. } => std::mem::take(&mut *idle),
                _ => return Err(problem),
            }
        };
        let others = self.weights.bound_idle(0, &self.idle);
        if evicted.is_empty() && !others {
            return Err(problem);
        }
        drop((evicted, memory));
        let memory = Arc::new(Memory::new());
        memory.busy.store(true, Ordering::Release);
        self.record(inputs, takes, timing, loaded, &memory, Tables::<D>::new())
    }

    /// Whether an earlier run left the memory and the commands of such a run, which then takes no memory.
    pub fn replays(&self, inputs: &[Input<'_, DeviceTensor<D>>], takes: &[Take]) -> bool {
        let generation = self.weights.generation();
        let idle = self.idle.lock();
        idle.iter().any(|slot| {
            slot.generation == generation
                && Arc::ptr_eq(&slot.sizes, &self.sizes)
                && slot.serves(inputs, takes, Timing::Off)
                && slot.is_reusable()
                && slot.is_free()
        })
    }

    /// Frees what earlier runs left, of all sizes and executables of the model, and returns whether that was anything.
    pub fn evict(&self) -> bool {
        let evicted = std::mem::take(&mut *self.idle.lock());
        let others = self.weights.bound_idle(0, &self.idle);
        !evicted.is_empty() || others
    }

    /// Returns a slot for later runs.
    fn recycle(&self, mut slot: Slot<D>) {
        let mut gone = Vec::new();
        let mut idle = self.idle.lock();
        slot.running = false;
        slot.memory.busy.store(false, Ordering::Release);
        gone.extend(idle.extract_if(.., |slot| !slot.is_reusable()));
        if idle.len() >= IDLE_SLOTS {
            gone.push(idle.remove(0));
        }
        // Each recording has staging memory of its own.
        let is_other = |other: &Slot<D>| !Arc::ptr_eq(&other.sizes, &slot.sizes);
        let mut staged: u64 = idle.iter().filter(|other| is_other(other)).map(|other| other.transfers).sum();
        while staged > OTHERS_STAGED
            && let Some(i) = idle.iter().position(is_other)
        {
            let other = idle.remove(i);
            staged -= other.transfers;
            gone.push(other);
        }
        idle.push(slot);
        drop(idle);
        // What goes may have to wait for the device to free it; other threads need not.
        drop(gone);
    }

    /// Drops a slot whose run failed, and others on its memory.
    fn discard(&self, slot: Option<Slot<D>>) {
        drop(slot);
        let mut idle = self.idle.lock();
        let gone: Vec<Slot<D>> = idle.extract_if(.., |slot| !slot.is_reusable()).collect();
        drop(idle);
        drop(gone);
    }
}

/// What a recording is made with: memory that is marked as busy, and tables of a recording that is gone.
struct Room<D: Driver> {
    memory: Arc<Memory<D>>,
    tables: Tables<D>,
}

/// A run that was submitted. Dropping it waits for its end.
pub struct Run<D: Driver> {
    executable: Arc<Executable<D>>,
    slot: Option<Slot<D>>,
    finished: bool,
}

impl<D: Driver> Run<D> {
    /// Waits, and copies the outputs that go to the host, in order; the slices of others must be empty.
    pub fn wait_into(mut self, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.finish()?;
        self.copy_outputs(outputs)
    }

    /// Whether it has ended, without waiting for that.
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.slot {
            Some(slot) if !self.finished => self.executable.driver.is_done(&slot.recording),
            _ => Ok(true),
        }
    }

    /// Waits for the end.
    pub fn finish(&mut self) -> Result<(), Error> {
        if let (false, Some(slot)) = (self.finished, self.slot.as_mut()) {
            self.finished = true;
            if let Err(problem) = self.executable.driver.wait(&mut slot.recording) {
                // What a failed run leaves behind is not trusted with another.
                self.executable.discard(self.slot.take());
                return Err(problem);
            }
        }
        Ok(())
    }

    /// Whether it has ended; the task is woken when it has. A driver that can block may wait here.
    pub fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let (false, Some(slot)) = (self.finished, self.slot.as_mut()) else { return Poll::Ready(Ok(())) };
        let outcome = ready!(self.executable.driver.poll_done(&mut slot.recording, context));
        self.finished = true;
        if outcome.is_err() {
            self.executable.discard(self.slot.take());
        }
        Poll::Ready(outcome)
    }

    /// An output that stays on the device; it may be used before the run has ended.
    pub fn output(&self, i: usize) -> Option<DeviceTensor<D>> {
        let slot = self.slot.as_ref()?;
        let port = self.executable.program.outputs.get(i)?;
        let (buffer, lease) = slot.output(i)?;
        Some(DeviceTensor::leased(self.executable.driver.clone(), port.ty, buffer, lease))
    }

    /// Copies host outputs after `finish`.
    pub fn copy_outputs(&mut self, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let ports = &self.executable.program.outputs;
        count("outputs", ports.len(), outputs.len())?;
        let Some(slot) = self.slot.as_mut() else {
            let problem = "the run failed, so it has no outputs".to_string();
            return Err(Error::Driver { call: "download", problem });
        };
        let mut download = 0;
        for ((port, take), to) in ports.iter().zip(&slot.takes).zip(outputs) {
            if *take == Take::Host {
                count(&format!("bytes of output `{}`", port.name), port.ty.bytes(), to.len())?;
                self.executable.driver.download(&mut slot.recording, download, to)?;
                download += 1;
            }
        }
        Ok(())
    }
}

impl<D: Driver> Drop for Run<D> {
    fn drop(&mut self) {
        // An error here has nobody to hear it; a failed slot is not kept.
        let _ = self.finish();
        if let Some(slot) = self.slot.take() {
            self.executable.recycle(slot);
        }
    }
}

fn count(what: &str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::WrongCount { what: what.into(), expected, got }) }
}

/// Refuses a program that cannot fit in a device's memory, naming the largest piece.
pub fn check_memory<D: Driver>(program: &Program, driver: &D) -> Result<(), Error> {
    let caps = driver.caps();
    let too_large = |what: String, needed: u64, available: u64| Error::TooLarge {
        what,
        needed,
        device: caps.name.clone(),
        available,
    };
    for buffer in &program.buffers {
        if buffer.bytes > caps.max_buffer_bytes {
            return Err(too_large(describe(&buffer.content, program), buffer.bytes, caps.max_buffer_bytes));
        }
    }
    // What only the load needs goes before the first run.
    let needed = program.stored_bytes().saturating_add(program.run_bytes().max(program.load_bytes()));
    if needed > caps.memory_bytes {
        let largest = program.buffers.iter().max_by_key(|b| b.bytes);
        let largest =
            largest.map_or(String::new(), |b| format!(" (most for {})", describe(&b.content, program)));
        return Err(too_large(format!("the graph{largest}"), needed, caps.memory_bytes));
    }
    Ok(())
}

/// What a buffer is, in words.
fn describe(content: &Content, program: &Program) -> String {
    let name = |ports: &[Port], i: usize| ports.get(i).map_or(String::new(), |p| format!(" `{}`", p.name));
    match content {
        Content::Arena => match largest_result(program) {
            Some((bytes, node)) => format!("the intermediate results (most, {bytes}, of {node})"),
            None => "the intermediate results".into(),
        },
        Content::Input(i) => format!("input{}", name(&program.inputs, *i)),
        Content::Output(i) => format!("output{}", name(&program.outputs, *i)),
        Content::Constant(tensor) => format!("a constant {}", tensor.ty()),
        Content::Table(tensor) => format!("numbers by sizes {}", tensor.ty()),
        Content::Param(name, _) => format!("param `{name}`"),
        Content::Packed { .. } => "a packed weight".into(),
        Content::LoadScratch => "scratch at load".into(),
        Content::Gates => "the gates of branches and loops".into(),
        Content::LoadGates => "gates at load".into(),
    }
}

/// The largest intermediate result and the node that makes it.
fn largest_result(program: &Program) -> Option<(u64, String)> {
    let of_arena = |slice: &Slice| {
        let decl = program.buffers.get(slice.buffer.0 as usize);
        decl.is_some_and(|decl| matches!(decl.content, Content::Arena))
    };
    let results = program.run.iter().flat_map(|dispatch| {
        let written = dispatch.args.iter().zip(&program.kernel(dispatch).args);
        written
            .filter(|(slice, arg)| arg.access.writes() && of_arena(slice))
            .map(move |(slice, _)| (slice.bytes, dispatch))
    });
    let (bytes, dispatch) = results.max_by_key(|(bytes, _)| *bytes)?;
    Some((bytes, format!("{} `{}`", dispatch.op, dispatch.node)))
}
