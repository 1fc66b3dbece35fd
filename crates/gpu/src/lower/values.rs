//! Where every value of a graph lives on the device.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use olivine_compile::plan::MemoryPlan;
use olivine_compile::{Compiled, Spelling};
use olivine_ir::{Def, Dim, Graph, Op, Tensor, ValueId};
use olivine_kernels::{Memory, Operand, Target};
use olivine_program::{BufferDecl, BufferId, Content, DeviceCaps, HostTable, SizedSlice, SizedTable, Slice};

use super::State;
use super::load::LoadPlan;
use crate::lower::operand_of;

/// Buffers of a program, and for every value its bytes.
pub(super) struct MemoryMap {
    pub(super) buffers: Vec<BufferDecl>,
    /// For every graph output, the buffer the caller finds it in.
    pub(super) outputs: Vec<BufferId>,
    /// For outputs that pass through memory of their own, where.
    moving: HashMap<usize, BufferId>,
    slices: Vec<Option<SizedSlice>>,
    alignment: u64,
    arena: Option<BufferId>,
    /// Memory of the load, where one buffer is all of it.
    load_arena: Option<BufferId>,
    plan_scratch: Vec<Option<(usize, usize)>>,
    /// For every buffer its bytes.
    sizes: Vec<Dim>,
    /// Offsets of the buffers of the arena's layout in the current compile.
    placed: Vec<u64>,
    /// Tables that lowering computed, each once, by a hash of their bytes.
    tables: HashMap<u64, Vec<(Tensor, SizedSlice)>>,
    /// Tables that follow from sizes, each once.
    sized_tables: Vec<(SizedTable, SizedSlice)>,
    /// Stored values, spelled out.
    spelling: Spelling,
    /// For every value the first output that is it.
    written: Vec<Option<usize>>,
    /// What nodes made of stored values, by its spelling.
    prepacked: HashMap<String, SizedSlice>,
}

/// Memory of a prepacked operand.
pub(super) struct PrepackedSlice {
    pub(super) slice: SizedSlice,
    /// Whether another node makes it already.
    pub(super) is_shared: bool,
}

impl MemoryMap {
    pub(super) fn new(
        compiled: &Compiled,
        plan: &MemoryPlan,
        load: &LoadPlan,
        caps: &DeviceCaps,
        states: &[State],
    ) -> Self {
        let graph = &compiled.graph;
        let mut map = MemoryMap {
            buffers: Vec::new(),
            outputs: Vec::new(),
            moving: HashMap::new(),
            slices: vec![None; graph.values().len()],
            alignment: caps.alignment() as u64,
            arena: None,
            load_arena: None,
            plan_scratch: plan.scratch.clone(),
            sizes: Vec::new(),
            placed: plan.offsets(),
            tables: HashMap::new(),
            sized_tables: Vec::new(),
            spelling: Spelling::new(graph, &compiled.at_load),
            written: vec![None; graph.values().len()],
            prepacked: HashMap::new(),
        };
        if plan.arena > 0 {
            map.arena = Some(map.buffer(Content::Arena, plan.arena));
        }
        map.load_arena = load.arena.map(|bytes| map.buffer(Content::LoadScratch, bytes));
        let mut inputs = Vec::new();
        for (i, (_, id)) in graph.inputs().enumerate() {
            let bytes = graph.values()[id.index()].ty.size_bytes();
            inputs.push(map.buffer(Content::Input(i), bytes));
            map.slices[id.index()] = Some(map.whole(inputs[i], bytes));
        }
        for (i, output) in graph.outputs().iter().enumerate() {
            map.written[output.value.index()].get_or_insert(i);
            let bytes = graph.values()[output.value.index()].ty.size_bytes();
            let state = states.iter().find(|(_, o)| *o == i).and_then(|(input, _)| inputs.get(*input));
            let buffer = match state {
                Some(buffer) => *buffer,
                None => map.buffer(Content::Output(i), bytes),
            };
            map.outputs.push(buffer);
        }
        map.place_values(compiled, plan, load, states);
        map
    }

    fn place_values(&mut self, compiled: &Compiled, plan: &MemoryPlan, load: &LoadPlan, states: &[State]) {
        let graph = &compiled.graph;
        for id in graph.ids() {
            let value = &graph.values()[id.index()];
            let bytes = value.ty.size_bytes();
            let slice = match &value.def {
                Def::Input { .. } => continue,
                Def::Param { .. } | Def::Const(_) if !load.is_touched(id) => None,
                Def::Param { name } => {
                    let buffer = self.buffer(Content::Param(name.as_str().into(), value.ty), bytes);
                    Some(self.whole(buffer, bytes))
                }
                Def::Const(tensor) => {
                    let buffer = self.buffer(Content::Constant(tensor.clone()), bytes);
                    Some(self.whole(buffer, bytes))
                }
                Def::Node { node, .. } => {
                    let at = node.index();
                    let node = &graph.nodes()[at];
                    if matches!(node.op, Op::View(_)) {
                        None
                    } else if compiled.at_load[at] && !load.is_read_by_runs(id) {
                        load.value(id).map(|(bytes, offset)| self.load_slice(bytes, offset))
                    } else if compiled.at_load[at] {
                        let key = self.spelling.get(id).map(Arc::from);
                        let buffer = self.buffer(Content::Packed { key }, bytes);
                        Some(self.whole(buffer, bytes))
                    } else if let (Some(slot), Some(arena)) = (&plan.slots[id.index()], self.arena) {
                        let root = graph.values()[slot.root.index()].ty.size_bytes();
                        let bytes = root.max(1).next_multiple_of(16);
                        let (placed, offset) = (Some(slot.buffer), Dim::ZERO);
                        Some(SizedSlice { buffer: arena, placed, offset, bytes })
                    } else {
                        self.written_output(graph, id, states)
                    }
                }
            };
            self.slices[id.index()] = slice;
        }
    }

    /// Memory for a prepacked operand; nodes that prepack the same operand in the same way share it.
    pub(super) fn prepack(&mut self, packed: olivine_kernels::Prepacked) -> PrepackedSlice {
        let olivine_kernels::Prepacked { how, of, bytes } = packed;
        let Memory::Value(root) = of.memory else {
            let buffer = self.buffer(Content::Packed { key: None }, bytes);
            return PrepackedSlice { slice: self.whole(buffer, bytes), is_shared: false };
        };
        let reading = format!("{}{:?}+{}", of.ty, of.strides, of.offset);
        let key = self.spelling.get(root).map(|value| format!("{how} of {reading} in {value}"));
        let name = key.clone().unwrap_or_else(|| format!("{how} of {reading} in value {}", root.index()));
        if let Some(slice) = self.prepacked.get(&name) {
            return PrepackedSlice { slice: *slice, is_shared: true };
        }
        let buffer = self.buffer(Content::Packed { key: key.map(Arc::from) }, bytes);
        let slice = self.whole(buffer, bytes);
        self.prepacked.insert(name, slice);
        PrepackedSlice { slice, is_shared: false }
    }

    /// The first output that is this value: its node writes there. A state is written by its own node only where
    /// nobody still needs the input's old bytes; otherwise the value has a buffer of its own and is copied at the end.
    fn written_output(&mut self, graph: &Graph, id: ValueId, states: &[State]) -> Option<SizedSlice> {
        let output = self.written[id.index()]?;
        let bytes = graph.values()[id.index()].ty.size_bytes();
        let state = states.iter().find(|(_, o)| *o == output);
        let buffer = match state {
            Some((input, _)) if !appends_in_place(graph, id, *input) => {
                self.buffer(Content::Output(output), bytes)
            }
            _ => self.outputs[output],
        };
        Some(self.whole(buffer, bytes))
    }

    pub(super) fn buffer(&mut self, content: Content, bytes: impl Into<Dim>) -> BufferId {
        let size = bytes.into();
        let bytes = size.value().ok().and_then(|b| u64::try_from(b).ok()).unwrap_or(u64::MAX / 2);
        let bytes = bytes.max(1).next_multiple_of(self.alignment);
        self.buffers.push(BufferDecl { content, bytes });
        self.sizes.push(size);
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn whole(&self, buffer: BufferId, bytes: impl Into<Dim>) -> SizedSlice {
        let bytes = bytes.into().max(1).next_multiple_of(16);
        SizedSlice { buffer, placed: None, offset: Dim::ZERO, bytes }
    }

    fn all(&self, buffer: BufferId) -> Option<SizedSlice> {
        let bytes = self.sizes.get(buffer.0 as usize)?.max(1).next_multiple_of(self.alignment);
        Some(SizedSlice { buffer, placed: None, offset: Dim::ZERO, bytes })
    }

    /// The range in the current compile.
    pub(super) fn now(&self, range: &SizedSlice) -> Slice {
        range.slice(range.placed.and_then(|i| self.placed.get(i)).copied().unwrap_or(0))
    }

    /// For every buffer its bytes, and which is the arena.
    pub(super) fn sizes(&self) -> (Vec<Dim>, Option<BufferId>) {
        (self.sizes.clone(), self.arena)
    }

    /// Memory of a node's scratch.
    pub(super) fn scratch(&self, step: usize, bytes: Dim) -> Option<SizedSlice> {
        if bytes.as_constant() == Some(0) {
            return None;
        }
        let (_, placed) = self.plan_scratch.get(step).copied().flatten()?;
        Some(SizedSlice { buffer: self.arena?, placed: Some(placed), offset: Dim::ZERO, bytes })
    }

    /// Memory of what a lowered node does at load, beside its results.
    pub(super) fn load_scratch(&mut self, load: &LoadPlan, time: usize) -> Option<SizedSlice> {
        load.scratch(time).map(|(bytes, offset)| self.load_slice(bytes, offset))
    }

    /// A part of the load's memory.
    fn load_slice(&mut self, bytes: u64, offset: u64) -> SizedSlice {
        let bytes = bytes.max(1).next_multiple_of(16);
        let buffer = match self.load_arena {
            Some(buffer) => buffer,
            None => self.buffer(Content::LoadScratch, bytes),
        };
        SizedSlice { buffer, placed: None, offset: offset.into(), bytes: bytes.into() }
    }

    /// Memory of a table that lowering computed.
    pub(super) fn table(&mut self, table: HostTable) -> SizedSlice {
        let Some(sized) = table.sized() else { return self.constant(table.now().clone()) };
        if let Some((_, slice)) = self.sized_tables.iter().find(|(known, _)| known.is(sized)) {
            return *slice;
        }
        let buffer = self.buffer(Content::Table(table.now().clone()), sized.bytes());
        let slice = self.whole(buffer, sized.bytes());
        self.sized_tables.push((sized.clone(), slice));
        slice
    }

    /// The tables that follow from sizes, and where they are.
    pub(super) fn sized_tables(&self) -> impl Iterator<Item = (BufferId, SizedTable)> + '_ {
        self.sized_tables.iter().map(|(table, slice)| (slice.buffer, table.clone()))
    }

    /// Memory of a table that is the same for all sizes.
    pub(super) fn constant(&mut self, table: Tensor) -> SizedSlice {
        let mut hasher = DefaultHasher::new();
        (table.ty(), table.bytes()).hash(&mut hasher);
        let hash = hasher.finish();
        let same = |t: &Tensor| t.ty() == table.ty() && t.bytes() == table.bytes();
        if let Some((_, slice)) = self.tables.get(&hash).and_then(|alike| alike.iter().find(|(t, _)| same(t)))
        {
            return *slice;
        }
        let bytes = table.ty().bytes();
        let buffer = self.buffer(Content::Constant(table.clone()), bytes);
        let slice = self.whole(buffer, bytes);
        self.tables.entry(hash).or_default().push((table, slice));
        slice
    }

    /// Where memory is; `scratch` is the node's.
    pub(super) fn slice(&self, memory: Memory, scratch: Option<SizedSlice>) -> Option<SizedSlice> {
        match memory {
            Memory::Value(id) => self.slices.get(id.index()).copied().flatten(),
            Memory::Output(i) => self.all(*self.outputs.get(i)?),
            Memory::Moving(i) => self.all(*self.moving.get(&i)?),
            Memory::Scratch { offset, bytes } => {
                let all = scratch?;
                Some(SizedSlice { offset: all.offset + offset.dim(), bytes: bytes.dim(), ..all })
            }
            Memory::Deferred { step, offset, bytes } => {
                let (_, placed) = self.plan_scratch.get(step).copied().flatten()?;
                let (placed, offset, bytes) = (Some(placed), offset.dim(), bytes.dim());
                Some(SizedSlice { buffer: self.arena?, placed, offset, bytes })
            }
            // Tables, gates and the like are the node's own; the caller knows where they are.
            Memory::Constant(_)
            | Memory::Row { .. }
            | Memory::Gate { .. }
            | Memory::Alive
            | Memory::Prepacked(_)
            | Memory::LoadScratch { .. } => None,
        }
    }

    /// What is copied when all nodes have run: outputs whose value is not in their buffer, with where to and the
    /// output's number, in order.
    ///
    /// What reads the old bytes of a state comes before any state is written; where it goes into a state itself (two
    /// states that change map, a transposed one), it passes through memory of its own.
    pub(super) fn copies(&mut self, graph: &Graph, states: &[State]) -> Vec<(Operand, Memory, usize)> {
        let inputs: Vec<ValueId> = graph.inputs().map(|(_, id)| id).collect();
        let is_state = |id: ValueId| states.iter().any(|(input, _)| inputs.get(*input) == Some(&id));
        let (mut first, mut then) = (Vec::new(), Vec::new());
        for (i, output) in graph.outputs().iter().enumerate() {
            let Some(operand) = operand_of(graph, output.value) else { continue };
            let there = match operand.memory {
                Memory::Value(id) if id == output.value => self.slices[id.index()].map(|s| s.buffer),
                _ => None,
            };
            if there == Some(self.outputs[i]) {
                continue;
            }
            let reads_state = matches!(operand.memory, Memory::Value(id) if is_state(id));
            let becomes_state = states.iter().any(|(_, o)| *o == i);
            if reads_state && becomes_state {
                let moving = Target { ty: operand.ty, memory: Memory::Moving(i) };
                let buffer = self.buffer(Content::Output(i), operand.ty.size_bytes());
                self.moving.insert(i, buffer);
                then.push((moving.as_operand(), Memory::Output(i), i));
                first.push((operand, Memory::Moving(i), i));
            } else if reads_state {
                first.push((operand, Memory::Output(i), i));
            } else {
                then.push((operand, Memory::Output(i), i));
            }
        }
        first.extend(then);
        first
    }
}

/// Whether `id` comes from a node that may write over the state input it reads: it is that input's only reader.
fn appends_in_place(graph: &Graph, id: ValueId, input: usize) -> bool {
    let Some((_, cache)) = graph.inputs().nth(input) else { return false };
    let readers = graph.nodes().iter().flat_map(|n| &n.inputs).filter(|i| **i == cache).count();
    let also_output = graph.outputs().iter().any(|o| o.value == cache);
    matches!(graph.producer(id), Some(node)
        if matches!(node.op, Op::KvAppend(_) | Op::SliceScatter(_))
            && node.inputs.first() == Some(&cache)
            && readers == 1
            && !also_output)
}
