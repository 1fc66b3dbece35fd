//! Running a lowered program.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use olivine_compile::Compiled;
use olivine_ir::size::Bindings;
use olivine_ir::{Fusion, TensorType, TensorView};

use crate::Error;
use crate::arena::Buffer;
use crate::cost::StepCost;
use crate::kernel::SizePlans;
use crate::kernels::movement::copy_strided;
use crate::limit::memory_limit;
use crate::lower::{Location, Pack, Program, Step, StepOperand, Stored};
use crate::operand::{Failure, Operand, OperandSource, Target};
use crate::weights::Weights;
use crate::{cost, scratch, thread_pool};

/// What needs no more bytes than this is not held against the limit of the process: reading that takes longer than
/// compiling a small graph.
const LITTLE: usize = 16 << 20;

/// A graph ready to run on the CPU; runs may overlap.
///
/// Executables of one graph for several sizes share what is made of weights at load; those of one model share weights and
/// arenas.
pub struct Executable {
    program: Program,
    weights: Arc<Weights>,
    loaded: Arc<Mutex<Option<Loaded>>>,
    /// Arenas of finished runs, for the next ones.
    arenas: Arc<Mutex<Vec<Buffer>>>,
    checked: bool,
}

/// The stored values as of one generation of the weights.
type Loaded = (u64, Arc<Vec<Bytes>>);

/// A stored value's bytes.
enum Bytes {
    Tensor(olivine_ir::Tensor),
    Packed(Arc<Buffer>),
    /// A load-time result that is not computed yet.
    Pending,
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Tensor(t) => t.bytes(),
            Bytes::Packed(b) => b.bytes(),
            Bytes::Pending => &[],
        }
    }
}

/// Bytes that an executable takes on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBytes {
    /// What stays between runs: those params, constants and results of the load that runs read. Executables of one model
    /// share parts of one name.
    pub stored: Vec<(Option<String>, usize)>,
    /// Intermediate results of the load, at most.
    pub load: usize,
    /// What a run needs beside its inputs.
    pub run: usize,
}

/// What a load has to do.
struct LoadWork {
    /// For every load-time step where its results come from.
    steps: Vec<Results>,
    /// For every pack its result, where it is known.
    packs: Vec<Option<Arc<Buffer>>>,
    /// For every stored value whether anything reads it.
    read: Vec<bool>,
}

/// Where the results of a load-time step come from.
enum Results {
    /// Nothing reads them.
    Unread,
    /// Another executable of the model has made them.
    Known(Vec<Arc<Buffer>>),
    Computed,
}

/// How long one step took.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// The node.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// Wall-clock time.
    pub time: Duration,
}

impl Executable {
    /// Lowers a compiled graph. `checked` reports run-time indices out of range instead of clamping them.
    pub fn new(compiled: &Compiled, weights: Arc<Weights>, checked: bool) -> Result<Self, Error> {
        Executable::with_states(compiled, weights, checked, &[])
    }

    /// As [`Executable::new`]; `states` pairs inputs with outputs, by position, that may take over their bytes. Those
    /// that do are listed by [`Executable::in_place_states`].
    pub fn with_states(
        compiled: &Compiled,
        weights: Arc<Weights>,
        checked: bool,
        states: &[(usize, usize)],
    ) -> Result<Self, Error> {
        let program = Program::new(compiled, checked, states)?;
        check_memory(&program)?;
        let arenas = weights.arenas();
        Ok(Executable { program, weights, loaded: Arc::default(), arenas, checked })
    }

    /// The same graph for other values of its open sizes; the guards of its compile must hold for them.
    pub fn for_sizes(&self, sizes: &Bindings) -> Result<Self, Error> {
        let program = self.program.for_sizes(sizes)?;
        // Looking the limit up takes longer than all else here: what is little more than was allowed is allowed.
        if program.run_bytes() > self.program.run_bytes().max(LITTLE) {
            check_memory(&program)?;
        }
        Ok(Executable {
            program,
            weights: self.weights.clone(),
            loaded: self.loaded.clone(),
            arenas: self.arenas.clone(),
            checked: self.checked,
        })
    }

    /// Whether the graph has open sizes.
    pub fn has_open_sizes(&self) -> bool {
        self.program.sizing.is_some()
    }

    /// Inputs in declaration order.
    pub fn inputs(&self) -> &[(Arc<str>, TensorType)] {
        &self.program.inputs
    }

    /// What it takes of the host's memory.
    pub fn host_bytes(&self) -> HostBytes {
        let (stored, load) = (self.program.stored_parts(), self.program.load_bytes());
        HostBytes { stored, load, run: self.program.run_bytes() }
    }

    /// Bytes that a run needs beside its inputs and what is stored.
    pub fn run_bytes(&self) -> usize {
        self.program.run_bytes()
    }

    /// Outputs in declaration order.
    pub fn outputs(&self) -> &[(String, TensorType)] {
        &self.program.outputs
    }

    /// The kernel calls of a run, in order: the names of their nodes, and their operations.
    pub fn steps(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.program.run.iter().map(|step| (&*step.name, step.kernel.name()))
    }

    /// What every kernel call of a run reads, writes and computes.
    pub fn costs(&self) -> Vec<StepCost> {
        self.program.run.iter().map(|step| step.cost(&self.program.stored)).collect()
    }

    /// The threads that a run's work pays for, of those that there are.
    pub fn width(&self) -> usize {
        cost::width(self.program.work)
    }

    /// What lowering joined, beside what the graph's passes had fused before.
    pub fn fusions(&self) -> &[Fusion] {
        &self.program.fusions
    }

    /// Bytes of intermediate results during a run.
    pub fn arena_bytes(&self) -> usize {
        self.program.arena
    }

    /// Whether a run takes less time than it takes to wake another thread.
    pub fn is_quick(&self) -> bool {
        cost::width(self.program.work) == 1
    }

    /// The work of a run, as [`cost::work`] counts.
    pub(crate) fn work(&self) -> usize {
        self.program.work
    }

    /// Computes load-time nodes now instead of at the first run.
    pub fn load(&self) -> Result<(), Error> {
        self.loaded().map(drop)
    }

    /// Pairs of an input and an output of one buffer: a run changes a few rows of it and leaves the others alone.
    pub fn in_place_states(&self) -> &[(usize, usize)] {
        &self.program.states
    }

    /// Runs; inputs and outputs in declaration order, outputs as packed bytes of their types (bool as 0 or 1).
    pub fn run(&self, inputs: &[TensorView<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.check(inputs, outputs, false)?;
        self.bring_states(inputs, outputs);
        self.execute(inputs, outputs, None)
    }

    /// As [`Executable::run`], where the output of every pair of [`Executable::in_place_states`] holds the bytes of the
    /// input already; what is given for that input is not looked at.
    pub fn run_in_place(&self, inputs: &[TensorView<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.check(inputs, outputs, true)?;
        self.execute(inputs, outputs, None)
    }

    /// Copies states to where steps read and change them.
    fn bring_states(&self, inputs: &[TensorView<'_>], outputs: &mut [&mut [u8]]) {
        for (input, output) in &self.program.states {
            if let (Some(from), Some(to)) = (inputs.get(*input), outputs.get_mut(*output))
                && from.bytes().len() == to.len()
            {
                to.copy_from_slice(from.bytes());
            }
        }
    }

    /// Runs and times every step.
    pub fn profile(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<StepTime>, Error> {
        let mut times = Vec::with_capacity(self.program.run.len());
        self.check(inputs, outputs, false)?;
        self.bring_states(inputs, outputs);
        self.execute(inputs, outputs, Some(&mut times))?;
        Ok(times)
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [&mut [u8]],
        times: Option<&mut Vec<StepTime>>,
    ) -> Result<(), Error> {
        let stored = self.loaded()?;
        let mut arena = self.arena()?;
        let bytes = self.program.arena;
        // A small graph runs on this thread alone: others would be late to help.
        let result = thread_pool::within(cost::width(self.program.work), || {
            scratch::guarded(|| {
                self.run_steps(inputs, &stored, &mut arena.bytes_mut()[..bytes], outputs, times)?;
                self.copy_outputs(inputs, &stored, &mut arena.bytes_mut()[..bytes], outputs)
            })
        });
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena);
        result
    }

    /// An arena that is large enough: that of a finished run, or new memory in its stead.
    fn arena(&self) -> Result<Buffer, Error> {
        let bytes = self.program.arena;
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let found = arenas.iter().position(|arena| arena.bytes().len() >= bytes);
        if let Some(i) = found {
            return Ok(arenas.swap_remove(i));
        }
        // The smaller one goes before the larger comes.
        drop(arenas.pop());
        drop(arenas);
        Buffer::new(bytes)
    }

    fn run_steps(
        &self,
        inputs: &[TensorView<'_>],
        stored: &[Bytes],
        arena: &mut [u8],
        outputs: &mut [&mut [u8]],
        mut times: Option<&mut Vec<StepTime>>,
    ) -> Result<(), Error> {
        assert_eq!(arena.len(), self.program.arena, "steps are checked against the arena's size");
        let memory = Memory::new(inputs, stored, arena, outputs);
        let (mut operands, mut targets) = (Vec::new(), Vec::new());
        for step in &self.program.run {
            let start = times.is_some().then(web_time::Instant::now);
            operands.clear();
            targets.clear();
            // Safety: nothing of an earlier step is held any more, and lowering has checked that this step's
            // targets overlap neither each other nor what it reads.
            unsafe { memory.lend(step, &mut operands, &mut targets) }.ok_or_else(|| misplaced(step))?;
            self.call(step, &operands, &mut targets)?;
            if let (Some(times), Some(start)) = (times.as_deref_mut(), start) {
                let (node, op) = (step.name.to_string(), step.kernel.name());
                times.push(StepTime { node, op, time: start.elapsed() });
            }
        }
        Ok(())
    }

    /// Whether inputs and outputs are as declared; `in_place` says that states are given as outputs alone.
    fn check(&self, inputs: &[TensorView<'_>], outputs: &[&mut [u8]], in_place: bool) -> Result<(), Error> {
        let count = |what, expected: usize, got: usize| {
            if expected == got { Ok(()) } else { Err(Error::WrongCount { what, expected, got }) }
        };
        count("inputs", self.program.inputs.len(), inputs.len())?;
        count("outputs", self.program.outputs.len(), outputs.len())?;
        for (i, ((name, ty), view)) in self.program.inputs.iter().zip(inputs).enumerate() {
            let is_state = || in_place && self.program.states.iter().any(|(input, _)| *input == i);
            if *ty != view.ty() && !is_state() {
                return Err(Error::WrongType {
                    what: format!("input `{name}`"),
                    expected: *ty,
                    got: view.ty(),
                });
            }
        }
        for ((name, ty), bytes) in self.program.outputs.iter().zip(outputs) {
            count("bytes of output", ty.bytes(), bytes.len())?;
            if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(ty.dtype.size()) {
                return Err(Error::Misaligned { output: name.clone(), dtype: ty.dtype });
            }
        }
        Ok(())
    }

    /// The stored values, computed again if a param changed.
    fn loaded(&self) -> Result<Arc<Vec<Bytes>>, Error> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.weights.generation();
        if let Some((g, values)) = loaded.as_ref()
            && *g == generation
        {
            return Ok(values.clone());
        }
        let work = self.work_of_load();
        let mut values = self.stored_params(&work)?;
        let last = self.program.last_readers();
        // What no run reads goes after its last reader, and its memory to the next result of its size: allocators are
        // slow to give holes of many megabytes back.
        let mut spare: Vec<Buffer> = Vec::new();
        let release = |at: usize, values: &mut [Bytes], spare: &mut Vec<Buffer>, read: &[StepOperand]| {
            for i in read.iter().filter_map(StepOperand::stored) {
                if !self.program.live[i] && last.get(&i).is_none_or(|last| *last <= at) {
                    let value = std::mem::replace(&mut values[i], Bytes::Pending);
                    if let Bytes::Packed(buffer) = value {
                        spare.extend(Arc::into_inner(buffer));
                    }
                }
            }
        };
        scratch::guarded(|| {
            for (at, (step, results)) in self.program.load.iter().zip(&work.steps).enumerate() {
                self.load_step(step, results, generation, &mut values, &mut spare)?;
                release(at, &mut values, &mut spare, &step.operands);
            }
            let packs = self.program.packs.iter().zip(&work.packs).enumerate();
            for (i, (pack, known)) in packs {
                self.pack(pack, known.clone(), generation, &mut values)?;
                let read = std::slice::from_ref(&pack.operand);
                release(self.program.load.len() + i, &mut values, &mut spare, read);
            }
            Ok(())
        })?;
        let values = Arc::new(values);
        *loaded = Some((generation, values.clone()));
        Ok(values)
    }

    /// What there is to do: a step or a pack whose results another executable of the model has is not done again, nor is
    /// what only such results are made from.
    fn work_of_load(&self) -> LoadWork {
        let mut read = self.program.live.as_ref().clone();
        let packed = |pack: &Pack| pack.expression.as_ref().and_then(|e| self.weights.packed(e));
        let packs: Vec<Option<Arc<Buffer>>> = self.program.packs.iter().map(packed).collect();
        for (pack, _) in self.program.packs.iter().zip(&packs).filter(|(_, known)| known.is_none()) {
            pack.operand.stored().into_iter().for_each(|i| read[i] = true);
        }
        let mut steps = Vec::with_capacity(self.program.load.len());
        for step in self.program.load.iter().rev() {
            let is_read = |(_, to): &(TensorType, Location)| matches!(to, Location::Stored(i) if read[*i]);
            if !step.targets.iter().any(is_read) {
                steps.push(Results::Unread);
                continue;
            }
            let known = (0..step.targets.len()).map(|i| self.weights.packed(&step.result_key(i)?));
            steps.push(match known.collect() {
                Some(results) => Results::Known(results),
                None => {
                    step.operands.iter().filter_map(StepOperand::stored).for_each(|i| read[i] = true);
                    Results::Computed
                }
            });
        }
        steps.reverse();
        LoadWork { steps, packs, read }
    }

    /// Constants and params, as far as they are read.
    fn stored_params(&self, work: &LoadWork) -> Result<Vec<Bytes>, Error> {
        let mut missing = Vec::new();
        let mut values = Vec::with_capacity(self.program.stored.len());
        for (stored, read) in self.program.stored.iter().zip(&work.read) {
            values.push(match stored {
                _ if !*read => Bytes::Pending,
                Stored::Const(tensor) => Bytes::Tensor(tensor.clone()),
                Stored::Packed => Bytes::Pending,
                Stored::Param(name, ty) => match self.weights.get(name) {
                    Some(tensor) if tensor.ty() == *ty => Bytes::Tensor(tensor),
                    Some(tensor) => {
                        let what = format!("param `{name}`");
                        return Err(Error::WrongType { what, expected: *ty, got: tensor.ty() });
                    }
                    None => {
                        missing.push(name.clone());
                        Bytes::Pending
                    }
                },
            });
        }
        if missing.is_empty() { Ok(values) } else { Err(Error::MissingParams { names: missing }) }
    }

    /// Runs a load-time step, or takes its results from another executable of the same model.
    fn load_step(
        &self,
        step: &Step,
        results: &Results,
        generation: u64,
        values: &mut [Bytes],
        spare: &mut Vec<Buffer>,
    ) -> Result<(), Error> {
        let mut memory = |bytes: usize| match spare.iter().position(|b| b.bytes().len() == bytes) {
            Some(i) => Ok(spare.swap_remove(i)),
            None => Buffer::new(bytes),
        };
        let results = match results {
            Results::Unread => return Ok(()),
            Results::Known(results) => results.clone(),
            Results::Computed => {
                let mut buffers =
                    step.targets.iter().map(|(ty, _)| memory(ty.bytes())).collect::<Result<Vec<_>, _>>()?;
                let mut targets: Vec<Target<'_>> = step
                    .targets
                    .iter()
                    .zip(&mut buffers)
                    .map(|((ty, _), buffer)| Target { ty: *ty, bytes: buffer.bytes_mut() })
                    .collect();
                let operands: Option<Vec<Operand<'_>>> = step
                    .operands
                    .iter()
                    .map(|r| match r.location {
                        Location::Stored(i) => Some(resolved(r, OperandSource::Bytes(values[i].get()), None)),
                        _ => None,
                    })
                    .collect();
                let operands = operands.ok_or_else(|| misplaced(step))?;
                self.call(step, &operands, &mut targets)?;
                let results: Vec<Arc<Buffer>> = buffers.into_iter().map(Arc::new).collect();
                // Intermediate results are not worth their memory.
                let kept = |to: &Location| matches!(to, Location::Stored(i) if self.program.live[*i]);
                let stay = step.targets.iter().any(|(_, to)| kept(to));
                for (i, buffer) in results.iter().enumerate() {
                    if let Some(key) = step.result_key(i).filter(|_| stay) {
                        self.weights.keep_packed(generation, key, buffer.clone());
                    }
                }
                results
            }
        };
        for ((_, location), buffer) in step.targets.iter().zip(results) {
            if let Location::Stored(i) = location {
                values[*i] = Bytes::Packed(buffer);
            }
        }
        Ok(())
    }

    /// Lays an operand out for its kernel, or takes it from another executable of the same model.
    fn pack(
        &self,
        pack: &Pack,
        known: Option<Arc<Buffer>>,
        generation: u64,
        values: &mut [Bytes],
    ) -> Result<(), Error> {
        let packed = match known {
            Some(packed) => packed,
            None => {
                let mut buffer = Buffer::new(pack.packing.bytes)?;
                if let Location::Stored(i) = pack.operand.location {
                    let operand = resolved(&pack.operand, OperandSource::Bytes(values[i].get()), None);
                    (pack.packing.pack)(&pack.op, &operand, buffer.bytes_mut());
                }
                let packed = Arc::new(buffer);
                if let Some(expression) = &pack.expression {
                    self.weights.keep_packed(generation, expression.clone(), packed.clone());
                }
                packed
            }
        };
        values[pack.to] = Bytes::Packed(packed);
        Ok(())
    }

    fn call(&self, step: &Step, operands: &[Operand<'_>], targets: &mut [Target<'_>]) -> Result<(), Error> {
        let none = SizePlans::default();
        let sizes = (&*step.numbers, step.plans.first().unwrap_or(&none));
        let done = step.kernel.run(operands, targets, sizes, self.checked, &step.name);
        done.map_err(|failure| match failure {
            Failure::Index(fault) => Error::IndexOutOfRange {
                op: step.kernel.name(),
                node: step.name.to_string(),
                position: fault.position,
                value: fault.value,
                size: fault.size,
            },
            Failure::Other(error) => error,
        })
    }

    fn copy_outputs(
        &self,
        inputs: &[TensorView<'_>],
        stored: &[Bytes],
        arena: &mut [u8],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        for (operand, to) in &self.program.copies {
            let (before, rest) = outputs.split_at_mut(*to);
            let Some((target, after)) = rest.split_first_mut() else { continue };
            let source: &[u8] = match &operand.location {
                Location::Input(i) => inputs[*i].bytes(),
                Location::Stored(i) => stored[*i].get(),
                Location::Arena(range) => &arena[range.clone()],
                Location::Output(i) if i < to => &*before[*i],
                Location::Output(i) => &*after[i - to - 1],
            };
            copy_strided(&resolved(operand, OperandSource::Bytes(source), None), target);
        }
        Ok(())
    }
}

/// Refuses what needs more memory than the process may use.
fn check_memory(program: &Program) -> Result<(), Error> {
    let needed = program.bytes();
    if needed > LITTLE {
        let available = memory_limit();
        if needed > available {
            return Err(Error::TooLarge { needed, available });
        }
    }
    Ok(())
}

fn resolved<'a>(operand: &StepOperand, source: OperandSource<'a>, packed: Option<&'a [u8]>) -> Operand<'a> {
    Operand { ty: operand.ty, strides: operand.strides, offset: operand.offset, source, packed }
}

fn misplaced(step: &Step) -> Error {
    Error::Unsupported {
        op: step.kernel.name(),
        node: step.name.to_string(),
        problem: "the memory plan gives it overlapping buffers".into(),
    }
}

/// All memory of a run: what its steps read and write.
struct Memory<'a> {
    inputs: &'a [TensorView<'a>],
    stored: &'a [Bytes],
    arena: Lent<'a>,
    outputs: Vec<Lent<'a>>,
}

/// Bytes that steps share out among themselves.
struct Lent<'a> {
    first: *mut u8,
    len: usize,
    owner: PhantomData<&'a mut [u8]>,
}

impl<'a> Lent<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Lent { first: bytes.as_mut_ptr(), len: bytes.len(), owner: PhantomData }
    }

    fn pointer(&self, start: usize, len: usize) -> Option<*mut u8> {
        let within = start <= self.len && len <= self.len - start;
        // Safety: the offset is within the bytes.
        within.then(|| unsafe { self.first.add(start) })
    }
}

impl<'a> Memory<'a> {
    fn new(
        inputs: &'a [TensorView<'a>],
        stored: &'a [Bytes],
        arena: &'a mut [u8],
        outputs: &'a mut [&mut [u8]],
    ) -> Self {
        let outputs = outputs.iter_mut().map(|bytes| Lent::new(bytes)).collect();
        Memory { inputs, stored, arena: Lent::new(arena), outputs }
    }

    /// Adds a step's operands and targets; `None` where a location is not there.
    ///
    /// # Safety
    /// Nothing may be held of an earlier step, and the step's targets may overlap neither each other nor operands that
    /// are not in place.
    unsafe fn lend(
        &self,
        step: &Step,
        operands: &mut Vec<Operand<'a>>,
        targets: &mut Vec<Target<'a>>,
    ) -> Option<()> {
        for (ty, location) in &step.targets {
            let (first, len) = self.lent(location)?;
            // Safety: inside the arena or an output, and exclusive by the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts_mut(first, len) };
            targets.push(Target { ty: *ty, bytes });
        }
        for operand in &step.operands {
            let source = match &operand.location {
                _ if operand.in_place => OperandSource::Target,
                Location::Input(i) => OperandSource::Bytes(self.inputs.get(*i)?.bytes()),
                Location::Stored(i) => OperandSource::Bytes(self.stored.get(*i)?.get()),
                location => {
                    let (first, len) = self.lent(location)?;
                    // Safety: inside the arena or an output, and not written by the caller's promise.
                    OperandSource::Bytes(unsafe { std::slice::from_raw_parts(first, len) })
                }
            };
            let packed = operand.packed.and_then(|i| self.stored.get(i)).map(Bytes::get);
            operands.push(resolved(operand, source, packed));
        }
        Some(())
    }

    fn lent(&self, location: &Location) -> Option<(*mut u8, usize)> {
        match location {
            Location::Arena(range) => Some((self.arena.pointer(range.start, range.len())?, range.len())),
            Location::Output(i) => self.outputs.get(*i).map(|bytes| (bytes.first, bytes.len)),
            Location::Input(_) | Location::Stored(_) => None,
        }
    }
}
