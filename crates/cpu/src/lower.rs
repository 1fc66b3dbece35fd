//! From a compiled graph to steps: for every node its prepared kernel, and where each operand and result lives.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use olivine_compile::plan::{MemoryPlan, PlanOptions, plan_graph_with};
use olivine_compile::{Compiled, Spelling};
use olivine_ir::op::ScalarOp;
use olivine_ir::size::{Bindings, SharedSlice};
use olivine_ir::{DType, Def, Dim, Fusion, Graph, Node, Op, Tensor, TensorType, ValueId};

use crate::Error;
use crate::cost;
use crate::kernel::{Kernel, Packing, SizePlans, attribute_sizes};
use crate::sizing::{Facts, ProgramFacts, Sizing, StepFacts, ViewSizes};

/// Where a value's bytes are during a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Location {
    /// The caller's i-th input.
    Input(usize),
    /// The i-th stored value: a constant, a param or a load-time result.
    Stored(usize),
    /// A range of the arena.
    Arena(Range<usize>),
    /// The caller's i-th output.
    Output(usize),
}

/// An operand: elements at a location, read through strides.
#[derive(Clone, Debug)]
pub(crate) struct StepOperand {
    pub(crate) location: Location,
    pub(crate) ty: TensorType,
    pub(crate) strides: [isize; 8],
    pub(crate) offset: usize,
    /// Shares its bytes with target 0.
    pub(crate) in_place: bool,
    /// The stored value that holds it laid out for the kernel.
    pub(crate) packed: Option<usize>,
}

/// An operand while a graph is lowered: its numbers may be expressions.
struct LoweredOperand {
    operand: StepOperand,
    sizes: ViewSizes,
    /// The value whose bytes it reads.
    root: ValueId,
}

impl StepOperand {
    /// The stored value that it reads.
    pub(crate) fn stored(&self) -> Option<usize> {
        match self.location {
            Location::Stored(i) => Some(i),
            _ => None,
        }
    }
}

/// An operand to lay out for a kernel when the model is loaded.
pub(crate) struct Pack {
    pub(crate) op: Op,
    pub(crate) packing: Packing,
    pub(crate) operand: StepOperand,
    /// The stored value it becomes.
    pub(crate) to: usize,
    /// As [`Step::expression`].
    pub(crate) expression: Option<String>,
}

/// One kernel call. Its lists are parts of those of its program.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) name: Arc<str>,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) operands: SharedSlice<StepOperand>,
    pub(crate) targets: SharedSlice<(TensorType, Location)>,
    /// See [`Call::numbers`](crate::kernel::Call::numbers).
    pub(crate) numbers: SharedSlice<usize>,
    /// What the kernel has worked out for its sizes: one element, or none where it works nothing out.
    pub(crate) plans: SharedSlice<SizePlans>,
    /// What a load-time step computes, spelled out down to params and small constants; executables of one model
    /// share results by it.
    pub(crate) expression: Option<Arc<str>>,
}

impl Step {
    /// What a result is known by to other programs of the model.
    pub(crate) fn result_key(&self, result: usize) -> Option<String> {
        self.expression.as_ref().map(|e| format!("{e}.{result}"))
    }

    pub(crate) fn work(&self) -> usize {
        let operands = self.operands.iter().map(|operand| &operand.ty);
        let targets = self.targets.iter().map(|(ty, _)| ty);
        cost::work(self.kernel.op(), operands, targets).saturating_add(self.kernel.inner_work())
    }

    /// What it reads, writes and computes, in a program with some stored values.
    pub(crate) fn cost(&self, stored_values: &[Stored]) -> cost::StepCost {
        let operands: Vec<TensorType> = self.operands.iter().map(|o| o.ty).collect();
        let targets: Vec<TensorType> = self.targets.iter().map(|(ty, _)| *ty).collect();
        let op = self.kernel.op();
        let bytes = |types: &[TensorType]| types.iter().map(TensorType::bytes).fold(0, usize::saturating_add);
        // A lookup touches what it returns, not the table.
        let read = match op {
            Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) | Op::DequantGather(_) => {
                bytes(&operands[1.min(operands.len())..]).saturating_add(bytes(&targets))
            }
            _ => bytes(&operands),
        };
        let stored = self.operands.iter().filter(|o| o.stored().is_some()).map(|o| o.ty.bytes());
        let stored = stored.fold(0, usize::saturating_add).min(read);
        let flops = cost::flops(op, &operands, &targets);
        let repacked = self.operands.iter().enumerate().filter(|(_, operand)| operand.packed.is_none());
        let repacked = repacked.filter_map(|(i, _)| self.kernel.packing(i, &operands));
        let known = self.operands.first().and_then(StepOperand::stored).and_then(|i| stored_values.get(i));
        let asked = match known {
            Some(Stored::Const(tensor)) => tensor.as_slice::<i64>().ok().and_then(|v| v.first().copied()),
            _ => None,
        };
        cost::StepCost {
            node: self.name.to_string(),
            op: self.kernel.name(),
            dtype: operands.first().map_or(DType::F32, |t| t.dtype),
            flops,
            executed: cost::executed(op, &operands, flops),
            functions: cost::functions(op, &targets),
            bytes: read.saturating_add(bytes(&targets)) as u64,
            stored: stored as u64,
            conv: cost::ConvKind::of(op, &operands),
            repacked: repacked.map(|packing| packing.bytes as u64).sum(),
            inner: self.kernel.inner_costs(),
            iterations: self.kernel.inner_iterations(asked),
        }
    }

    /// Checks what running relies on: that every range is in the arena, and that what the step writes is neither
    /// written twice nor read, but in place.
    pub(crate) fn check_locations(&self, arena: usize) -> Result<(), Error> {
        let inside = |location: &Location| match location {
            Location::Arena(range) => range.start <= range.end && range.end <= arena,
            _ => true,
        };
        let writable = |(_, location): &(TensorType, Location)| !matches!(location, Location::Input(_));
        let read = self.operands.iter().filter(|o| !o.in_place).map(|o| &o.location);
        let clash = self.targets.iter().enumerate().any(|(i, (_, target))| {
            self.targets[..i]
                .iter()
                .map(|(_, location)| location)
                .chain(read.clone())
                .any(|p| overlap(p, target))
        });
        let locations = self
            .targets
            .iter()
            .map(|(_, location)| location)
            .chain(self.operands.iter().map(|o| &o.location));
        if !clash && self.targets.iter().all(writable) && locations.into_iter().all(inside) {
            return Ok(());
        }
        Err(Error::Unsupported {
            op: self.kernel.name(),
            node: self.name.to_string(),
            problem: "the memory plan gives it overlapping buffers".into(),
        })
    }
}

fn overlap(a: &Location, b: &Location) -> bool {
    match (a, b) {
        (Location::Arena(a), Location::Arena(b)) => a.start.max(b.start) < a.end.min(b.end),
        _ => a == b,
    }
}

/// What a stored value is before loading.
pub(crate) enum Stored {
    Const(Tensor),
    Param(String, TensorType),
    /// A result of a load-time step.
    Packed,
}

/// A lowered graph, with its numbers for one set of sizes. Clones share what does not depend on sizes.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) inputs: Vec<(Arc<str>, TensorType)>,
    pub(crate) outputs: Vec<(String, TensorType)>,
    pub(crate) stored: Arc<Vec<Stored>>,
    /// For every stored value whether runs read it.
    pub(crate) live: Arc<Vec<bool>>,
    pub(crate) load: Arc<Vec<Step>>,
    /// After the load-time steps.
    pub(crate) packs: Arc<Vec<Pack>>,
    pub(crate) run: Vec<Step>,
    /// Outputs whose value lives elsewhere: copied at the end of a run.
    pub(crate) copies: Vec<(StepOperand, usize)>,
    /// Pairs of an input and an output that are the same bytes: steps find the input where the output is.
    pub(crate) states: Vec<(usize, usize)>,
    pub(crate) arena: usize,
    /// The work of a run, as [`cost::work`] counts.
    pub(crate) work: usize,
    /// What lowering joined, beside what the graph's passes had fused before.
    pub(crate) fusions: Arc<Vec<Fusion>>,
    /// The numbers as expressions, where the graph has open sizes.
    pub(crate) sizing: Option<Arc<Sizing>>,
}

impl Program {
    /// Lowers a compiled graph. `states` pairs inputs with the outputs that may take over their bytes.
    pub(crate) fn new(compiled: &Compiled, checked: bool, states: &[(usize, usize)]) -> Result<Self, Error> {
        let graph = &compiled.graph;
        let written = written_outputs(graph);
        let viewed = viewed_outputs(graph, &compiled.at_load, &written);
        let absent: Vec<bool> = viewed.iter().map(Option::is_some).collect();
        let until = joined_softmaxes(graph);
        let options = PlanOptions { absent: &absent, until: &until, ..PlanOptions::default() };
        let plan = plan_graph_with(graph, &compiled.at_load, &options)
            .map_err(|e| Error::Compile(format!("memory plan: {e}")))?;
        let states: Vec<(usize, usize)> =
            states.iter().copied().filter(|state| appends_in_place(graph, &written, *state)).collect();
        let mut lowering = Lowering::new(compiled, &plan, &written, &viewed, &states);
        let (mut load, mut run) = (Vec::new(), Vec::new());
        let mut facts: Vec<StepFacts> = Vec::new();
        for (i, node) in graph.nodes().iter().enumerate() {
            if matches!(node.op, Op::View(_)) {
                continue;
            }
            let appended = node.outputs.first().and_then(|id| written[id.index()]);
            let in_state = states.iter().any(|(_, output)| Some(*output) == appended);
            let in_place = if in_state { Some(0) } else { plan.in_place[i] };
            let (mut step, sizes) = lowering.step(node, in_place, checked)?;
            if compiled.at_load[i] {
                load.push(step);
                continue;
            }
            lowering.pack_operands(node, &mut step, &sizes);
            let of_step = lowering.facts(node, sizes, &plan);
            let joined = match (run.last_mut(), facts.last_mut()) {
                (Some(last), Some(known)) => lowering.join_softmax((last, known), node, (&step, &of_step)),
                _ => false,
            };
            if !joined {
                run.push(step);
                facts.push(of_step);
            }
        }
        load.iter().chain(&run).try_for_each(|step| step.check_locations(plan.arena))?;
        let (copies, copied) = lowering.output_copies(&plan)?;
        let types = |ids: &[ValueId]| -> Vec<TensorType> {
            ids.iter().map(|id| graph.values()[id.index()].ty).collect()
        };
        let input_types = types(&graph.inputs().map(|(_, id)| id).collect::<Vec<_>>());
        let output_types = types(&graph.outputs().iter().map(|o| o.value).collect::<Vec<_>>());
        let sizing = Sizing::new(ProgramFacts {
            steps: facts,
            copies: copied,
            inputs: input_types.iter().map(|ty| ty.shape).collect(),
            outputs: output_types.iter().map(|ty| ty.shape).collect(),
            layout: plan.layout.clone(),
        })?;
        let load = read_ones(load, &run, &lowering.packs, &copies);
        // What other sizes change is in one allocation of each kind.
        SharedSlice::join(run.iter_mut().map(|step| &mut step.operands));
        SharedSlice::join(run.iter_mut().map(|step| &mut step.targets));
        SharedSlice::join(run.iter_mut().map(|step| &mut step.numbers));
        let live = live(lowering.stored.len(), &run, &copies);
        let work = run.iter().map(Step::work).fold(0, usize::saturating_add);
        let (names, outputs) =
            (graph.inputs().map(|(name, _)| name), graph.outputs().iter().map(|o| &o.name));
        Ok(Program {
            inputs: names.zip(input_types).map(|(name, ty)| (name.into(), ty.values())).collect(),
            outputs: outputs.zip(output_types).map(|(name, ty)| (name.clone(), ty.values())).collect(),
            live: Arc::new(live),
            stored: Arc::new(lowering.stored),
            load: Arc::new(load),
            packs: Arc::new(lowering.packs),
            run,
            copies,
            states,
            arena: plan.arena,
            work,
            fusions: Arc::new(lowering.fusions),
            sizing: sizing.map(Arc::new),
        })
    }

    /// The program with its numbers for other sizes.
    pub(crate) fn for_sizes(&self, sizes: &Bindings) -> Result<Self, Error> {
        let mut program = self.clone();
        if let Some(sizing) = &self.sizing {
            sizing.apply(&mut program, sizes)?;
        }
        Ok(program)
    }

    /// What stays between runs, in bytes: those params, constants and results of the load that runs read. Programs of one
    /// model share parts of one name.
    pub(crate) fn stored_parts(&self) -> Vec<(Option<String>, usize)> {
        let given = self.stored.iter().zip(self.live.iter()).filter_map(|(stored, live)| match stored {
            Stored::Const(tensor) if *live => Some((None, tensor.ty().bytes())),
            Stored::Param(name, ty) if *live => Some((Some(format!("param {name}")), ty.bytes())),
            _ => None,
        });
        given.chain(self.made_parts()).collect()
    }

    /// Bytes of intermediate results of the load at most, beside what stays: each goes after its last reader.
    pub(crate) fn load_bytes(&self) -> usize {
        let last = self.last_readers();
        let (mut most, mut now) = (0usize, 0usize);
        let passing = |i: usize| !self.live[i];
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        for (at, step) in self.load.iter().enumerate() {
            for (ty, location) in &step.targets {
                if let Location::Stored(i) = location
                    && passing(*i)
                {
                    sizes.insert(*i, ty.bytes());
                    now = now.saturating_add(ty.bytes());
                }
            }
            most = most.max(now);
            let read = step.operands.iter().filter_map(StepOperand::stored);
            let mut ended: Vec<usize> = read.filter(|i| last.get(i) == Some(&at)).collect();
            ended.sort_unstable();
            ended.dedup();
            now = ended.iter().filter_map(|i| sizes.remove(i)).fold(now, usize::saturating_sub);
        }
        most
    }

    /// For every stored value that the load reads, the last of its steps that does; packs come after the steps.
    pub(crate) fn last_readers(&self) -> HashMap<usize, usize> {
        let mut last = HashMap::new();
        for (at, step) in self.load.iter().enumerate() {
            last.extend(step.operands.iter().filter_map(StepOperand::stored).map(|i| (i, at)));
        }
        let packed = self.packs.iter().enumerate();
        last.extend(packed.filter_map(|(at, pack)| Some((pack.operand.stored()?, self.load.len() + at))));
        last
    }

    /// Bytes a run needs beside inputs and weights.
    pub(crate) fn run_bytes(&self) -> usize {
        self.outputs.iter().map(|(_, ty)| ty.bytes()).fold(self.arena, usize::saturating_add)
    }

    /// Bytes that a run needs beside inputs and params: results, and what is made of params at load.
    pub(crate) fn bytes(&self) -> usize {
        let made = self.made_parts().fold(0usize, |sum, (_, bytes)| sum.saturating_add(bytes));
        made.saturating_add(self.run_bytes().max(self.load_bytes()))
    }

    /// Of these, what load-time steps and packing make of params and constants.
    fn made_parts(&self) -> impl Iterator<Item = (Option<String>, usize)> + '_ {
        let stays = |location: &Location| matches!(location, Location::Stored(i) if self.live[*i]);
        let made = self.load.iter().flat_map(move |step| {
            let results = step.targets.iter().enumerate().filter(move |(_, (_, location))| stays(location));
            results.map(move |(i, (ty, _))| (step.result_key(i), ty.bytes()))
        });
        made.chain(self.packs.iter().map(|pack| (pack.expression.clone(), pack.packing.bytes)))
    }
}

/// For every stored value whether runs read it.
fn live(count: usize, run: &[Step], copies: &[(StepOperand, usize)]) -> Vec<bool> {
    let mut live = vec![false; count];
    let operands =
        run.iter().flat_map(|step| &step.operands).chain(copies.iter().map(|(operand, _)| operand));
    for i in operands.flat_map(|operand| operand.stored().into_iter().chain(operand.packed)) {
        live[i] = true;
    }
    live
}

/// For every value the first output that is it.
fn written_outputs(graph: &Graph) -> Vec<Option<usize>> {
    let mut written = vec![None; graph.values().len()];
    for (i, output) in graph.outputs().iter().enumerate() {
        written[output.value.index()].get_or_insert(i);
    }
    written
}

/// Whether an output is rows appended to a state by the only node that reads it: the rest of its bytes stay as they are.
fn appends_in_place(graph: &Graph, written: &[Option<usize>], (input, output): (usize, usize)) -> bool {
    let (Some((_, cache)), Some(output_value)) =
        (graph.inputs().nth(input), graph.outputs().get(output).map(|o| o.value))
    else {
        return false;
    };
    let readers = graph.nodes().iter().flat_map(|n| &n.inputs).filter(|i| **i == cache).count();
    let appends = matches!(graph.producer(output_value), Some(node)
        if matches!(node.op, Op::KvAppend(_) | Op::SliceScatter(_)) && node.inputs.first() == Some(&cache));
    // Bools are held as such, which kernels do not write.
    let bytes = graph.values()[cache.index()].ty.dtype != DType::Bool;
    appends
        && bytes
        && readers == 1
        && written[cache.index()].is_none()
        && written[output_value.index()] == Some(output)
}

/// The load-time steps whose results are read: casts of weights that kernels read as they are stored are not.
fn read_ones(load: Vec<Step>, run: &[Step], packs: &[Pack], copies: &[(StepOperand, usize)]) -> Vec<Step> {
    let readings = run.iter().flat_map(|step| &step.operands);
    let readings = readings.chain(packs.iter().map(|p| &p.operand)).chain(copies.iter().map(|(r, _)| r));
    let mut read: HashSet<usize> = readings.filter_map(StepOperand::stored).collect();
    let mut live = Vec::with_capacity(load.len());
    for step in load.into_iter().rev() {
        if step
            .targets
            .iter()
            .any(|(_, location)| matches!(location, Location::Stored(i) if read.contains(i)))
        {
            read.extend(step.operands.iter().filter_map(StepOperand::stored));
            live.push(step);
        }
    }
    live.reverse();
    live
}

/// For every value the output that is all of it in order under another shape, so that its node writes it there.
fn viewed_outputs(graph: &Graph, at_load: &[bool], written: &[Option<usize>]) -> Vec<Option<usize>> {
    let mut viewed = vec![None; graph.values().len()];
    for (i, output) in graph.outputs().iter().enumerate() {
        let Some(Node { op: Op::View(view), inputs, .. }) = graph.producer(output.value) else { continue };
        let (root, id) = (&graph.values()[inputs[0].index()], inputs[0]);
        let Def::Node { node, .. } = root.def else { continue };
        let shape = graph.values()[output.value.index()].ty.shape;
        let packed = shape.stride_sizes();
        let in_order = (0..shape.rank()).all(|i| view.strides[i] == packed[i] || shape.size(i) <= 1);
        let all = shape.sizes().numel() == root.ty.shape.sizes().numel();
        let whole = all && view.offset == 0 && in_order;
        let made = !at_load[node.index()] && !matches!(graph.nodes()[node.index()].op, Op::View(_));
        let free = viewed[id.index()].is_none() && written[id.index()].is_none();
        if whole && made && free {
            viewed[id.index()] = Some(i);
        }
    }
    viewed
}

/// The largest M, and the fewest elements of a weight, for which a matmul reads the weight as it is stored.
const STORED_ROWS: usize = 8;
const STORED_ELEMENTS: usize = 1 << 20;

struct Lowering<'a> {
    graph: &'a Graph,
    locations: Vec<Option<Location>>,
    stored: Vec<Stored>,
    spelling: Spelling,
    packs: Vec<Pack>,
    /// The stored values that packs become, by what they are.
    packed: HashMap<String, usize>,
    /// How often each value is read, by nodes and as an output.
    uses: Vec<usize>,
    fusions: Vec<Fusion>,
}

impl<'a> Lowering<'a> {
    fn new(
        compiled: &'a Compiled,
        plan: &MemoryPlan,
        written: &[Option<usize>],
        viewed: &[Option<usize>],
        states: &[(usize, usize)],
    ) -> Self {
        let (graph, at_load) = (&compiled.graph, &compiled.at_load);
        let mut lowering = Lowering {
            graph,
            locations: vec![None; graph.values().len()],
            stored: Vec::new(),
            spelling: Spelling::new(graph, at_load),
            packs: Vec::new(),
            packed: HashMap::new(),
            uses: graph.use_counts(),
            fusions: Vec::new(),
        };
        let mut inputs = 0;
        for id in graph.ids() {
            let value = &graph.values()[id.index()];
            let location = match &value.def {
                Def::Input { .. } => {
                    inputs += 1;
                    let state = states.iter().find(|(input, _)| *input == inputs - 1);
                    Some(state.map_or(Location::Input(inputs - 1), |(_, output)| Location::Output(*output)))
                }
                Def::Param { name } => Some(lowering.store(Stored::Param(name.clone(), value.ty))),
                Def::Const(tensor) => Some(lowering.store(Stored::Const(tensor.clone()))),
                Def::Node { node, .. } if matches!(graph.nodes()[node.index()].op, Op::View(_)) => None,
                Def::Node { node, .. } if at_load[node.index()] => Some(lowering.store(Stored::Packed)),
                Def::Node { .. } => plan.slots[id.index()]
                    .as_ref()
                    .map(|slot| Location::Arena(slot.offset..slot.offset + slot.bytes))
                    .or_else(|| written[id.index()].map(Location::Output))
                    .or_else(|| viewed[id.index()].map(Location::Output)),
            };
            lowering.locations[id.index()] = location;
        }
        lowering
    }

    fn store(&mut self, stored: Stored) -> Location {
        self.stored.push(stored);
        Location::Stored(self.stored.len() - 1)
    }

    /// Follows a view to the bytes it reads.
    fn operand(&self, id: ValueId) -> Option<LoweredOperand> {
        let ty = self.graph.ty(id).ok()?;
        let (root, strides, offset) = match self.graph.producer(id) {
            Some(Node { op: Op::View(view), inputs, .. }) => (inputs[0], view.strides.clone(), view.offset),
            _ => (id, ty.shape.stride_sizes(), Dim::ZERO),
        };
        let mut numbers = [0; 8];
        for (number, stride) in numbers.iter_mut().zip(&strides) {
            *number = stride.value().ok()? as isize;
        }
        let operand = StepOperand {
            location: self.locations[root.index()].clone()?,
            ty: ty.values(),
            strides: numbers,
            offset: usize::try_from(offset.value().ok()?).ok()?,
            in_place: false,
            packed: None,
        };
        Some(LoweredOperand { operand, sizes: ViewSizes { shape: ty.shape, strides, offset }, root })
    }

    /// What sizing needs to know of a step: of its operands as they were lowered, and of its targets.
    fn facts(&self, node: &Node, operands: Vec<(ViewSizes, ValueId)>, plan: &MemoryPlan) -> StepFacts {
        let operands = operands.into_iter().map(|(sizes, root)| self.fact(sizes, root, plan));
        let target = |id: &ValueId| {
            let shape = self.graph.values()[id.index()].ty.shape;
            let sizes = ViewSizes { shape, strides: Vec::new(), offset: Dim::ZERO };
            self.fact(sizes, *id, plan)
        };
        StepFacts {
            operands: operands.collect(),
            targets: node.outputs.iter().map(target).collect(),
            numbers: attribute_sizes(&node.op),
        }
    }

    fn fact(&self, sizes: ViewSizes, root: ValueId, plan: &MemoryPlan) -> Facts {
        let in_arena = matches!(self.locations[root.index()], Some(Location::Arena(_)));
        let slot = plan.slots[root.index()].as_ref().filter(|_| in_arena);
        Facts { sizes, buffer: slot.map(|slot| slot.buffer) }
    }

    #[allow(
        clippy::type_complexity,
        reason = "a step, and the sizes of its operands with the values they read"
    )]
    fn step(
        &mut self,
        node: &Node,
        in_place: Option<usize>,
        checked: bool,
    ) -> Result<(Step, Vec<(ViewSizes, ValueId)>), Error> {
        let fail =
            |problem: String| Error::Unsupported { op: node.op.name(), node: node.name.clone(), problem };
        if keeps_sizes(&node.op) {
            // What these prepare is for the sizes of the compile.
            for id in node.inputs.iter().chain(&node.outputs) {
                let _ = self.graph.values()[id.index()].ty.shape.dims();
            }
        }
        let mut operands = Vec::with_capacity(node.inputs.len());
        let mut operand_sizes = Vec::with_capacity(node.inputs.len());
        for (i, id) in node.inputs.iter().enumerate() {
            let narrow = self.as_stored(node, i);
            if let (Some(_), Some(cast)) = (narrow, self.graph.producer(*id)) {
                let nodes = vec![cast.name.clone(), node.name.clone()];
                self.fusions.push(Fusion { rule: "cast of a weight in its matmul", nodes });
            }
            let LoweredOperand { mut operand, sizes, root } = self
                .operand(narrow.unwrap_or(*id))
                .ok_or_else(|| fail(format!("operand {i} has no location")))?;
            operand.in_place = in_place == Some(i);
            if !node.op.reads_strides(i) && !contiguous(&sizes) {
                return Err(fail(format!("operand {i} is strided")));
            }
            operands.push(operand);
            operand_sizes.push((sizes, root));
        }
        let mut targets = Vec::with_capacity(node.outputs.len());
        for id in &node.outputs {
            let location =
                self.locations[id.index()].clone().ok_or_else(|| fail("a result has no location".into()))?;
            targets.push((self.graph.values()[id.index()].ty.values(), location));
        }
        let dtypes: Vec<_> = operands.iter().map(|o| o.ty.dtype).collect();
        let kernel = Kernel::prepare(&node.op, &dtypes, checked).map_err(fail)?;
        let expression = node.outputs.first().and_then(|id| self.spelling.get(*id)).map(Arc::from);
        let (name, kernel) = (Arc::from(node.name.as_str()), Arc::new(kernel));
        let mut numbers = Vec::new();
        for number in attribute_sizes(&node.op) {
            let value = number.value().map_err(|e| fail(e.to_string()))?;
            numbers.push(usize::try_from(value).map_err(|_| fail(format!("{number} is {value}")))?);
        }
        let plans = if kernel.has_size_plans() { vec![SizePlans::default()] } else { Vec::new() };
        let step = Step {
            name,
            kernel,
            operands: operands.into(),
            targets: targets.into(),
            numbers: numbers.into(),
            plans: plans.into(),
            expression,
        };
        Ok((step, operand_sizes))
    }

    /// The f16 or bf16 weight behind its f32 copy, for a matmul with small M, which is bound by memory bandwidth: the
    /// kernel widens it as it reads it, which is half of the bytes.
    fn as_stored(&self, node: &Node, operand: usize) -> Option<ValueId> {
        let (Op::MatMul(_), 1) = (&node.op, operand) else { return None };
        let weight = self.graph.ty(node.inputs[1]).ok()?;
        let columns = weight.shape.sizes().last()?.max(1);
        let rows = self.graph.ty(node.outputs[0]).ok()?.shape.sizes().numel().div_floor(columns);
        if weight.shape.sizes().numel() < STORED_ELEMENTS || rows > STORED_ROWS {
            return None;
        }
        let Some(Node { op: Op::ScalarOp(ScalarOp::Cast(DType::F32)), inputs, .. }) =
            self.graph.producer(node.inputs[1])
        else {
            return None;
        };
        let narrow = matches!(self.graph.ty(inputs[0]).ok()?.dtype, DType::F16 | DType::BF16);
        let stored = self.operand(inputs[0])?.operand.stored().is_some();
        (narrow && stored).then_some(inputs[0])
    }

    /// Has operands that are known at load laid out as the kernel wants them, but parts that open sizes choose.
    fn pack_operands(&mut self, node: &Node, step: &mut Step, sizes: &[(ViewSizes, ValueId)]) {
        let types: Vec<TensorType> = step.operands.iter().map(|o| o.ty).collect();
        for (i, (operand, id)) in step.operands.make_mut().iter_mut().zip(&node.inputs).enumerate() {
            let is_open = sizes.get(i).is_some_and(|(sizes, _)| sizes.is_symbolic());
            if is_open || !matches!(operand.location, Location::Stored(_)) {
                continue;
            }
            let Some(packing) = step.kernel.packing(i, &types) else { continue };
            let spelled = self.spelling.get(*id);
            let expression = spelled.map(|s| format!("{} of {}{s}", packing.layout, operand.ty));
            let to = match expression.as_ref().and_then(|e| self.packed.get(e)) {
                Some(to) => *to,
                None => {
                    self.stored.push(Stored::Packed);
                    let to = self.stored.len() - 1;
                    if let Some(expression) = &expression {
                        self.packed.insert(expression.clone(), to);
                    }
                    let op = step.kernel.op().clone();
                    self.packs.push(Pack { op, packing, operand: operand.clone(), to, expression });
                    to
                }
            };
            operand.packed = Some(to);
        }
    }

    /// Fuses a softmax over the rows of the matmul just before it into that, if nobody else reads the matmul.
    fn join_softmax(
        &mut self,
        (matmul, known): (&mut Step, &mut StepFacts),
        node: &Node,
        (softmax, facts): (&Step, &StepFacts),
    ) -> bool {
        let Op::Softmax(op) = &node.op else { return false };
        let ([x], [(_, to)]) = (&*softmax.operands, &*softmax.targets) else {
            return false;
        };
        let [(ty, made)] = &*matmul.targets else { return false };
        let (Some(read), Some(made_sizes), Some(to_facts)) =
            (facts.operands.first(), known.targets.first(), facts.targets.first())
        else {
            return false;
        };
        let (shape, of) = (read.sizes.shape.sizes(), made_sizes.sizes.shape.sizes());
        let rows = op.axis + 1 == shape.len()
            && x.ty.dtype == ty.dtype
            && !of.is_empty()
            && shape[shape.len() - 1] == of[of.len() - 1]
            && shape.numel() == of.numel();
        // The matmul's operands are still there when the softmax's result is written only if that has other memory.
        let clash = matmul.operands.iter().any(|o| match (&o.location, to) {
            _ if o.in_place => true,
            (Location::Arena(a), Location::Arena(b)) => a.start < b.end && b.start < a.end,
            (a, b) => a == b,
        });
        let in_f32 = matmul.operands.get(1).is_some_and(|b| b.ty.dtype == ty.dtype);
        let joins = rows
            && in_f32
            && x.location == *made
            && x.offset == 0
            && contiguous(&read.sizes)
            && !clash
            && self.is_read_once(node.inputs[0]);
        let Some(kernel) = Arc::get_mut(&mut matmul.kernel).filter(|_| joins) else { return false };
        if !kernel.join_softmax(ty.dtype, &made_sizes.sizes.shape) {
            return false;
        }
        matmul.targets = vec![(*ty, to.clone())].into();
        known.targets[0].buffer = to_facts.buffer;
        let nodes = vec![matmul.name.to_string(), node.name.clone()];
        matmul.name = nodes.join(" + ").into();
        self.fusions.push(Fusion { rule: "softmax in its matmul", nodes });
        true
    }

    /// Whether a value, and what it is a view of, is read by one node and is no output.
    fn is_read_once(&self, id: ValueId) -> bool {
        // The asking node reads it, so that a single use is that one.
        let once = self.uses[id.index()] == 1;
        match self.graph.producer(id) {
            Some(Node { op: Op::View(_), inputs, .. }) => once && self.is_read_once(inputs[0]),
            _ => once,
        }
    }

    #[allow(clippy::type_complexity, reason = "copies, and what sizing needs to know of each")]
    fn output_copies(&self, plan: &MemoryPlan) -> Result<(Vec<(StepOperand, usize)>, Vec<Facts>), Error> {
        let (mut copies, mut facts) = (Vec::new(), Vec::new());
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let LoweredOperand { operand, sizes, root } =
                self.operand(output.value).ok_or_else(|| Error::Unsupported {
                    op: "output",
                    node: output.name.clone(),
                    problem: "its value has no location".into(),
                })?;
            if operand.location != Location::Output(i) {
                copies.push((operand, i));
                facts.push(self.fact(sizes, root, plan));
            }
        }
        Ok((copies, facts))
    }
}

fn contiguous(sizes: &ViewSizes) -> bool {
    let packed = sizes.shape.stride_sizes();
    (0..sizes.shape.rank()).all(|i| sizes.strides[i] == packed[i] || sizes.shape.size(i) <= 1)
}

/// For every matmul right before a softmax that alone reads it, that softmax, else the node itself: where the two are one
/// step, the matmul's operands must still be there when the softmax's result is written.
fn joined_softmaxes(graph: &Graph) -> Vec<usize> {
    let mut until: Vec<usize> = (0..graph.nodes().len()).collect();
    let mut last = None;
    for (i, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::View(_)) {
            continue;
        }
        if let (Op::Softmax(_), Some(before)) = (&node.op, last) {
            let reads = |id: ValueId| match graph.producer(id) {
                Some(Node { op: Op::View(_), inputs, .. }) => inputs[0],
                _ => id,
            };
            let made: &Node = &graph.nodes()[before];
            let is_matmul = matches!(made.op, Op::MatMul(_));
            if is_matmul && node.inputs.first().map(|id| reads(*id)) == made.outputs.first().copied() {
                until[before] = i;
            }
        }
        last = Some(i);
    }
    until
}

/// Whether a kernel is prepared for its sizes when it is lowered.
fn keeps_sizes(op: &Op) -> bool {
    matches!(op, Op::Custom(_))
}

#[cfg(test)]
mod tests;
