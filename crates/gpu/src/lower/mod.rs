//! From a fused graph to a program: a kernel choice for every node, then memory for all of them.
//!
//! Nodes are lowered first, against memory that has no address yet ([`Memory`]); so a family can ask for scratch.
//! Then the planner places values and scratch together, and dispatches are bound to bytes.

mod body;
mod control;
mod fusion;
mod limits;
mod load;
mod memo;
mod values;

use std::collections::HashMap;
use std::sync::Arc;

use olivine_compile::Compiled;
use olivine_compile::plan::{MemoryPlan, PlanOptions, plan_graph_with};
use olivine_ir::op::{Custom, If, Loop, Lowering};
use olivine_ir::size::Structural;
use olivine_ir::{Def, Dim, Graph, Node, Op, SubGraph, Tensor, TensorType, ValueId, for_each_executor_op};
use olivine_kernel::Kernel;
use olivine_kernels as kernels;
use olivine_kernels::{Emitted, Gating, Memory, Operand, Prepacked, Shared, Site, SplitKPartials, Target};
use olivine_program::{
    Addressing, BufferId, Content, Decision, DeviceCaps, Dispatch, Error, Fusion, HostTable, KernelId, Port,
    Program, Record, SizedDispatch, SizedProgram, SizedSlice, Sizing, Slice,
};

use crate::custom;
use fusion::{Deferral, FusedGroups, partials_readers};
use load::LoadPlan;
use memo::Memo;
use values::MemoryMap;

/// An output that takes over an input's bytes, by their positions: state that stays on the device.
pub type State = (usize, usize);

/// A node's dispatches and where it stands.
struct Lowered<'a> {
    node: &'a Node,
    /// Its name, and those of the nodes that were lowered with it.
    name: String,
    step: usize,
    emitted: Vec<Emitted>,
    scratch: Dim,
    constants: Vec<HostTable>,
    gates: u64,
    prepacked: Vec<Prepacked>,
    load_scratch: u64,
}

impl Lowered<'_> {
    /// Bytes of scratch where it runs at load: sizes are numbers there.
    fn load_own(&self) -> u64 {
        self.scratch.specialize().unwrap_or(usize::MAX / 4) as u64
    }
}

/// Lowers a compiled graph for a device; `tuning` selects among the kernels that fit. Every node that the device cannot
/// run is named in the error.
pub fn lower(
    compiled: &Compiled,
    caps: &DeviceCaps,
    tuning: &Record,
    states: &[State],
) -> Result<Program, Error> {
    let graph = &compiled.graph;
    let stored = stored(compiled);
    let mut lowered = Vec::new();
    let (mut refused, mut decisions, mut fusions) = (Vec::new(), Vec::new(), Vec::new());
    let groups = FusedGroups::new(compiled, caps);
    let readers = partials_readers(compiled, &groups, caps);
    let mut partials: HashMap<usize, SplitKPartials> = HashMap::new();
    let mut memo = Memo::default();
    let mut made = SharedScratch::default();
    let mut until: Vec<usize> = (0..graph.nodes().len()).collect();
    for (step, node) in graph.nodes().iter().enumerate() {
        let steps = groups.at(step);
        if matches!(node.op, Op::View(_)) || steps.is_empty() {
            continue;
        }
        let nodes: Vec<&Node> = steps.iter().map(|step| &graph.nodes()[*step]).collect();
        let ops: Vec<Of<'_>> = nodes.iter().map(|node| (&node.op, node.inputs.len())).collect();
        steps.iter().for_each(|earlier| until[*earlier] = step);
        // What runs at load itself makes nothing to keep.
        let stored = if compiled.at_load[step] { &[][..] } else { &stored };
        let deferral = Deferral { may_defer_sum: readers[step].is_some(), partials: partials.remove(&step) };
        let site = site(graph, &nodes, (caps, tuning), stored, deferral);
        match site.and_then(|site| memo.lower(&ops, site)) {
            Ok(Site {
                emitted,
                scratch,
                constants,
                gates,
                prepacked,
                load_scratch,
                deferred,
                shared,
                joined,
                decisions: node_decisions,
                ..
            }) => {
                let emitted = match compiled.at_load[step] {
                    true => emitted,
                    false => made.share(step, shared, emitted, &mut until),
                };
                // As profiles name the dispatches.
                let name = nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(" + ");
                decisions.extend(node_decisions.into_iter().map(|d| Decision { node: name.clone(), ..d }));
                let names = |steps: &[usize]| steps.iter().map(|s| graph.nodes()[*s].name.clone()).collect();
                if let Some(rule) = groups.rule(step).or(joined) {
                    fusions.push(Fusion { rule, nodes: names(&steps) });
                }
                if let (Some(deferred), Some(reader)) = (deferred, readers[step]) {
                    let rule = "split-K sum in its reader";
                    fusions.push(Fusion { rule, nodes: names(&[step, reader.step]) });
                    until[step] = reader.step;
                    partials.insert(reader.step, deferred.deferred_from(step, reader.is_stored));
                }
                lowered.push(Lowered {
                    node,
                    name,
                    step,
                    emitted,
                    scratch,
                    constants,
                    gates,
                    prepacked,
                    load_scratch,
                });
            }
            Err(problem) => refused.push(format!("{} `{}`: {problem}", node.op.name(), node.name)),
        }
    }
    if !refused.is_empty() {
        return Err(Error::Unsupported { device: caps.name.clone(), nodes: refused });
    }

    let mut scratch = vec![Dim::ZERO; graph.nodes().len()];
    for l in &lowered {
        scratch[l.step] = l.scratch;
    }
    let absent = absent(graph, &lowered);
    let options = PlanOptions {
        alignment: caps.alignment(),
        in_place: overlaps(caps),
        scratch: &scratch,
        until: &until,
        absent: &absent,
    };
    let plan = plan_graph_with(graph, &compiled.at_load, &options).map_err(|e| Error::Plan(e.into()))?;

    let load = LoadPlan::new(compiled, &lowered, caps).map_err(|e| Error::Plan(e.into()))?;
    let mut map = MemoryMap::new(compiled, &plan, &load, caps, states);
    let mut gates = Gates::new(&lowered, &compiled.at_load, &mut map);
    let mut program = Assembler::default();
    for (time, l) in lowered.into_iter().enumerate() {
        let at_load = compiled.at_load[l.step];
        let load_memory = map.load_scratch(&load, time);
        let own = if at_load { l.load_own().next_multiple_of(caps.alignment() as u64) } else { 0 };
        let scratch = match at_load {
            true => load_memory.map(|all| part(&all, 0, l.load_own())),
            false => map.scratch(l.step, l.scratch),
        };
        let constants: Vec<SizedSlice> = l.constants.into_iter().map(|table| map.table(table)).collect();
        let gate = gates.next(l.gates, at_load);
        let prepacked: Vec<values::PrepackedSlice> =
            l.prepacked.into_iter().map(|packed| map.prepack(packed)).collect();
        let load_scratch = load_memory.map(|all| part(&all, own, l.load_scratch));
        for emitted in l.emitted {
            let prepacks = emitted.prepacks;
            if prepacks.and_then(|i| prepacked.get(i)).is_some_and(|packed| packed.is_shared) {
                continue;
            }
            // A state that already holds the bytes needs no copy of them.
            let slice = |memory| match memory {
                Memory::Constant(i) => constants.get(i).copied(),
                Memory::Row { table, offset, bytes } => constants.get(table).map(|t| part(t, offset, bytes)),
                Memory::Gate { offset, bytes } => gate.as_ref().map(|g| part(g, offset, bytes)),
                Memory::Alive => gates.alive,
                Memory::Prepacked(i) => prepacked.get(i).map(|packed| packed.slice),
                Memory::LoadScratch { offset, bytes } => {
                    load_scratch.as_ref().map(|s| part(s, offset, bytes))
                }
                _ => map.slice(memory, scratch),
            };
            let now = |range: &SizedSlice| map.now(range);
            let dispatch = program.dispatch(emitted, l.node.op.name(), &l.name, (slice, now), caps)?;
            if let Some((dispatch, sized)) = dispatch {
                if at_load || prepacks.is_some() {
                    program.load.push(dispatch);
                    program.load_groups.push(load.group(time));
                } else {
                    program.run.push(dispatch);
                    program.sized.push(sized);
                }
            }
        }
    }
    for (operand, to, output) in map.copies(graph, states) {
        let name = &graph.outputs()[output].name;
        let target = Target { ty: operand.ty, memory: to };
        let mut site = Site::new(caps, vec![operand], vec![target]);
        let refuse = |problem: String| Error::Unsupported {
            device: caps.name.clone(),
            nodes: vec![format!("output `{name}`: {problem}")],
        };
        kernels::copy(&mut site).map_err(refuse)?;
        for emitted in site.emitted {
            let (slice, now) = (|memory| map.slice(memory, None), |range: &SizedSlice| map.now(range));
            if let Some((dispatch, sized)) = program.dispatch(emitted, "copy", name, (slice, now), caps)? {
                program.run.push(dispatch);
                program.sized.push(sized);
            }
        }
    }
    let sized = program.sized(graph, &map, &plan, caps);
    let sizing = Sizing::new(sized)?;
    let program = Program { decisions, fusions, ..program.finish(graph, map) }.with_sizing(sizing);
    limits::check_bindings(&program, caps)?;
    Ok(program)
}

/// What nodes made of values in scratch memory, for later nodes that need the same.
#[derive(Default)]
struct SharedScratch {
    /// The node that made it, and the range of its scratch.
    made: HashMap<String, (usize, Structural, Structural)>,
}

impl SharedScratch {
    /// A node's dispatches without those that make what an earlier node made; its scratch lives on `until` then.
    fn share(
        &mut self,
        step: usize,
        shared: Vec<Shared>,
        mut emitted: Vec<Emitted>,
        until: &mut [usize],
    ) -> Vec<Emitted> {
        let mut made_before = vec![false; emitted.len()];
        for Shared { how, of, memory, emitted: dispatches } in shared {
            // A value is the same as long as somebody reads it; other memory changes.
            let (Memory::Value(_), Memory::Scratch { offset, bytes }) = (of.memory, memory) else { continue };
            let key = format!("{how} of {of:?}");
            let Some((earlier, offset, bytes)) = self.made.get(&key).copied() else {
                self.made.insert(key, (step, offset, bytes));
                continue;
            };
            until[earlier] = until[earlier].max(step);
            made_before[dispatches].fill(true);
            let there = Memory::Deferred { step: earlier, offset, bytes };
            let args = emitted.iter_mut().flat_map(|e| &mut e.bound.args);
            args.filter(|arg| **arg == memory).for_each(|arg| *arg = there);
        }
        let kept = emitted.into_iter().zip(made_before).filter(|(_, before)| !before);
        kept.map(|(emitted, _)| emitted).collect()
    }
}

/// For every value whether no dispatch and no output reads or writes it.
fn absent(graph: &Graph, lowered: &[Lowered<'_>]) -> Vec<bool> {
    let mut absent = vec![true; graph.values().len()];
    let args = lowered.iter().flat_map(|l| &l.emitted).flat_map(|emitted| &emitted.bound.args).copied();
    let outputs = graph.outputs().iter().filter_map(|output| Some(operand_of(graph, output.value)?.memory));
    for memory in args.chain(outputs) {
        if let Memory::Value(id) = memory {
            absent[id.index()] = false;
        }
    }
    absent
}

/// A range of a slice.
fn part(of: &SizedSlice, offset: u64, bytes: u64) -> SizedSlice {
    SizedSlice { offset: of.offset + offset, bytes: bytes.into(), ..*of }
}

/// Whether ranges of one buffer may overlap in a dispatch that writes one of them.
fn overlaps(caps: &DeviceCaps) -> bool {
    !matches!(caps.addressing, Addressing::Bindings { overlap: false, .. })
}

/// Memory of the gates: one buffer for every run, one for the load.
struct Gates {
    run: Option<BufferId>,
    load: Option<BufferId>,
    /// Bytes given out so far, of each.
    given: [u64; 2],
    /// What a gate outside of every other asks.
    alive: Option<SizedSlice>,
}

impl Gates {
    fn new(lowered: &[Lowered<'_>], at_load: &[bool], map: &mut MemoryMap) -> Self {
        let total =
            |load: bool| lowered.iter().filter(|l| at_load[l.step] == load).map(|l| l.gates).sum::<u64>();
        let (run, load) = (total(false), total(true));
        Gates {
            run: (run > 0).then(|| map.buffer(Content::Gates, run)),
            load: (load > 0).then(|| map.buffer(Content::LoadGates, load)),
            given: [0; 2],
            alive: (run + load > 0).then(|| map.constant(Tensor::scalar(1u32))),
        }
    }

    /// The next node's gates.
    fn next(&mut self, bytes: u64, at_load: bool) -> Option<SizedSlice> {
        let buffer = if at_load { self.load } else { self.run };
        let given = &mut self.given[usize::from(at_load)];
        let (placed, offset) = (None, Dim::from(*given));
        let slice = buffer.map(|buffer| SizedSlice { buffer, placed, offset, bytes: bytes.into() });
        *given += bytes;
        slice
    }
}

/// For every value whether its bytes are the same in every run.
fn stored(compiled: &Compiled) -> Vec<bool> {
    let of = |def: &Def| match def {
        Def::Param { .. } | Def::Const(_) => true,
        Def::Node { node, .. } => compiled.at_load[node.index()],
        Def::Input { .. } => false,
    };
    compiled.graph.values().iter().map(|value| of(&value.def)).collect()
}

/// Nodes that nothing was emitted for yet; `stored` says which values are weights, `of` what is deferred
/// between nodes.
fn site<'a>(
    graph: &Graph,
    nodes: &[&Node],
    (caps, tuning): (&'a DeviceCaps, &'a Record),
    stored: &[bool],
    of: Deferral,
) -> Result<Site<'a>, String> {
    let inputs: Vec<ValueId> = nodes.iter().flat_map(|node| &node.inputs).copied().collect();
    let outputs = nodes.iter().flat_map(|node| &node.outputs);
    let mut operands = Vec::with_capacity(inputs.len());
    for (i, id) in inputs.iter().enumerate() {
        let mut operand = operand_of(graph, *id).ok_or_else(|| format!("operand {i} has no type"))?;
        // A part of a weight that open sizes choose is another one for other sizes.
        operand.stored = !is_open(&operand)
            && matches!(operand.memory, Memory::Value(root) if stored.get(root.index()) == Some(&true));
        check_size(&format!("operand {i}"), &operand.ty)?;
        operands.push(operand);
    }
    let mut targets = Vec::new();
    for (i, id) in outputs.enumerate() {
        let ty = graph.ty(*id).map_err(|e| e.to_string())?;
        check_size(&format!("result {i}"), &ty)?;
        targets.push(Target { ty, memory: Memory::Value(*id) });
    }
    let mut site = Site::new(caps, operands, targets);
    site.tuning = tuning;
    if nodes.iter().any(|node| !node.op.bodies().is_empty()) {
        site.known = inputs.iter().map(|id| graph.as_const(*id).cloned()).collect();
        // Memory of inner graphs, and what their iterations are bound to, are numbers.
        nodes.iter().flat_map(|node| node.op.bodies()).for_each(SubGraph::specialise);
    }
    (site.may_defer_sum, site.partials) = (of.may_defer_sum, of.partials);
    Ok(site)
}

/// An operation and how many operands it has.
type Of<'o> = (&'o Op, usize);

/// Emits dispatches of a node, or of nodes together.
fn emit(ops: &[Of<'_>], site: &mut Site<'_>) -> Result<(), String> {
    let mut first = 0;
    for (op, count) in ops {
        for i in 0..*count {
            let operand = &site.operands[first + i];
            let begins_anywhere = kernels::reads_offset(op) && operand.is_contiguous();
            if !(op.reads_strides(i) || operand.is_packed() || begins_anywhere) {
                pack(site, first + i)?;
            }
        }
        first += count;
    }
    match ops {
        [(op, _)] if op.lowering() == Lowering::Executor => emit_executor_op(op, site)?,
        [(op, _)] => kernels::lower(op, site)?,
        _ => kernels::lower_together(ops, site)?,
    }
    if site.partials.is_some() {
        return Err("reads a split-K matmul whose partial sums nobody added".into());
    }
    Ok(())
}

/// How the operations that are not of the kernel library become dispatches.
trait Emit {
    fn emit(&self, site: &mut Site<'_>) -> Result<(), String>;
}

impl Emit for If {
    fn emit(&self, site: &mut Site<'_>) -> Result<(), String> {
        control::if_(self, site)
    }
}

impl Emit for Loop {
    fn emit(&self, site: &mut Site<'_>) -> Result<(), String> {
        control::loop_(self, site)
    }
}

impl Emit for Custom {
    fn emit(&self, site: &mut Site<'_>) -> Result<(), String> {
        custom::lower(self, site)
    }
}

fn emit_executor_op(op: &Op, site: &mut Site<'_>) -> Result<(), String> {
    // Graphs inside, and users' kernels, are lowered for the sizes of the compile.
    let types = site.operands.iter().map(|o| o.ty).chain(site.targets.iter().map(|t| t.ty));
    types.for_each(|ty| {
        let _ = ty.shape.dims();
    });
    macro_rules! emit {
        ($($name:ident,)*) => {
            match op {
                $(Op::$name(op) => op.emit(site),)*
                _ => Err("has no kernel in the library".into()),
            }
        };
    }
    for_each_executor_op!(emit)
}

/// Copies an operand that is a slice of another value, for kernels that read from the first element on: a weight
/// at load, others to scratch.
fn pack(site: &mut Site<'_>, i: usize) -> Result<(), String> {
    let operand = site.operands[i].clone();
    let ty = operand.ty;
    if ty.shape.has_zero() {
        return Ok(());
    }
    let bytes = ty.size_bytes();
    let memory = if operand.stored {
        let bytes = bytes.specialize().map_err(|e| e.to_string())? as u64;
        let copy = |site: &mut Site<'_>, memory| kernels::whole_copy(&operand, &Target { ty, memory }, site);
        site.at_load("packed".into(), &operand, bytes, copy)?
    } else {
        let memory = site.scratch(bytes);
        kernels::whole_copy(&operand, &Target { ty, memory }, site)?;
        memory
    };
    site.operands[i] = Target { ty, memory }.as_operand();
    Ok(())
}

/// Whether what an operand reads depends on open sizes.
fn is_open(operand: &Operand) -> bool {
    let open = |number: &Dim| !number.is_constant();
    operand.ty.shape.is_symbolic() || open(&operand.offset) || operand.strides.iter().any(open)
}

/// Kernels count elements in 32 bits.
fn check_size(what: &str, ty: &TensorType) -> Result<(), String> {
    let (most, count) = (u32::MAX as usize - 3, ty.shape.sizes().numel());
    if count <= most {
        return Ok(());
    }
    Err(format!("{what} has {count} elements, kernels count up to {most}"))
}

/// Follows a view to the value whose bytes it reads.
pub(crate) fn operand_of(graph: &Graph, id: ValueId) -> Option<Operand> {
    let ty = graph.ty(id).ok()?;
    Some(match graph.producer(id) {
        Some(Node { op: Op::View(view), inputs, .. }) => Operand {
            ty,
            strides: view.strides.clone(),
            offset: view.offset,
            memory: Memory::Value(*inputs.first()?),
            stored: false,
        },
        _ => Operand {
            ty,
            strides: ty.shape.stride_sizes(),
            offset: Dim::ZERO,
            memory: Memory::Value(id),
            stored: false,
        },
    })
}

/// Gathers kernels, each once, and dispatches.
#[derive(Default)]
struct Assembler {
    kernels: Vec<Arc<Kernel>>,
    known: HashMap<u128, KernelId>,
    /// Kernels that were met before, by address: iterations of a loop and steps of a recurrence share theirs.
    met: HashMap<*const Kernel, KernelId>,
    /// Keeps those addresses from being reused.
    held: Vec<Arc<Kernel>>,
    load: Vec<Dispatch>,
    load_groups: Vec<u32>,
    run: Vec<Dispatch>,
    /// The numbers of `run`, as expressions.
    sized: Vec<SizedDispatch>,
}

impl Assembler {
    /// Binds a dispatch; `None` for a copy of bytes onto themselves.
    fn dispatch(
        &mut self,
        emitted: Emitted,
        op: &'static str,
        node: &str,
        (slice, now): (impl Fn(Memory) -> Option<SizedSlice>, impl Fn(&SizedSlice) -> Slice),
        caps: &DeviceCaps,
    ) -> Result<Option<(Dispatch, SizedDispatch)>, Error> {
        let fail = || Error::Unsupported {
            device: String::new(),
            nodes: vec![format!("{op} `{node}`: a buffer has no memory")],
        };
        let ranges: Vec<SizedSlice> =
            emitted.bound.args.iter().map(|m| slice(*m).ok_or_else(fail)).collect::<Result<_, _>>()?;
        let args: Vec<Slice> = ranges.iter().map(&now).collect();
        if emitted.kernel.name == kernels::WHOLE_COPY && args.first() == args.get(1) {
            let same = |a: Option<&SizedSlice>, b: Option<&SizedSlice>| match (a, b) {
                (Some(a), Some(b)) => {
                    a.buffer == b.buffer
                        && a.placed == b.placed
                        && a.offset.structural() == b.offset.structural()
                }
                _ => true,
            };
            if same(ranges.first(), ranges.get(1)) {
                return Ok(None);
            }
        }
        if let Addressing::Bindings { max_bytes, .. } = caps.addressing {
            // What is too large for a binding is refused below; other sizes must not become too large.
            for range in ranges.iter().filter(|range| !range.bytes.is_constant()) {
                let _ = range.bytes <= max_bytes;
            }
        }
        let indirect = match emitted.gating {
            Gating::By(memory) => Some(now(&slice(memory).ok_or_else(fail)?)),
            Gating::Free | Gating::Always => None,
        };
        let kernel = self.kernel(&emitted.kernel);
        let (op, node) = match emitted.of {
            Some((op, inner)) => (op, format!("{node}/{inner}")),
            None => (op, node.to_string()),
        };
        let sized = SizedDispatch {
            args: ranges,
            params: emitted.bound.params,
            groups: emitted.groups,
            flops: emitted.flops,
            bytes: emitted.bytes,
        };
        let (args, params, node) = (args.into(), Vec::new().into(), node.into());
        let (groups, flops, bytes) = ([0; 3], 0, 0);
        let Emitted { dtype, fallback, .. } = emitted;
        let mut dispatch =
            Dispatch { kernel, args, params, groups, indirect, op, node, dtype, fallback, flops, bytes };
        sized.write(&mut dispatch)?;
        Ok(Some((dispatch, sized)))
    }

    fn kernel(&mut self, kernel: &Arc<Kernel>) -> KernelId {
        if let Some(id) = self.met.get(&Arc::as_ptr(kernel)) {
            return *id;
        }
        let hash = kernel.content_hash();
        let id = *self.known.entry(hash).or_insert_with(|| {
            self.kernels.push(kernel.clone());
            KernelId(self.kernels.len() as u32 - 1)
        });
        self.met.insert(Arc::as_ptr(kernel), id);
        self.held.push(kernel.clone());
        id
    }

    /// The program's numbers as expressions.
    fn sized(
        &mut self,
        graph: &Graph,
        map: &MemoryMap,
        plan: &MemoryPlan,
        caps: &DeviceCaps,
    ) -> SizedProgram {
        let shape = |id: ValueId| graph.values()[id.index()].ty.shape;
        let (buffers, arena) = map.sizes();
        SizedProgram {
            run: std::mem::take(&mut self.sized),
            buffers,
            inputs: graph.inputs().map(|(_, id)| shape(id)).collect(),
            outputs: graph.outputs().iter().map(|o| shape(o.value)).collect(),
            layout: plan.layout.clone(),
            arena,
            alignment: caps.alignment() as u64,
            tables: map.sized_tables().collect(),
        }
    }

    fn finish(self, graph: &Graph, map: MemoryMap) -> Program {
        let port = |name: &str, id: ValueId, buffer: BufferId| Port {
            name: name.to_string(),
            ty: graph.values()[id.index()].ty.values(),
            buffer,
        };
        let find = |of: &dyn Fn(&Content) -> bool| {
            map.buffers.iter().position(|b| of(&b.content)).map_or(BufferId(0), |i| BufferId(i as u32))
        };
        let inputs = graph
            .inputs()
            .enumerate()
            .map(|(i, (name, id))| port(name, id, find(&|c| matches!(c, Content::Input(j) if *j == i))))
            .collect();
        let outputs =
            graph.outputs().iter().enumerate().map(|(i, o)| port(&o.name, o.value, map.outputs[i])).collect();
        Program {
            kernels: self.kernels,
            buffers: map.buffers,
            inputs,
            outputs,
            load: self.load,
            load_groups: self.load_groups,
            run: self.run,
            decisions: Vec::new(),
            fusions: Vec::new(),
            sizing: None,
        }
    }
}
