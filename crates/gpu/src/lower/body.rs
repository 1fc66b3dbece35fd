//! Graphs inside operations: lowered like any graph, with memory out of the scratch of the node around them.
//!
//! ```text
//!   Body::new: nodes lowered, memory planned ── Body::place: a range of the outer node's scratch
//!        └── AllocatedBody::emit: the dispatches once more, bound to the inputs and outputs of one iteration
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use olivine_compile::plan::{MemoryPlan, PlanOptions, plan_graph_with};
use olivine_ir::{Def, Dim, Graph, Op, Tensor, ValueId};
use olivine_kernels::{Emitted, Gating, Memory, Site, Target};
use olivine_program::{DeviceCaps, HostTable, Record};

use super::fusion::Deferral;
use super::memo::Memo;
use super::{operand_of, overlaps, site};

/// A lowered inner graph.
pub(crate) struct Body<'g> {
    graph: &'g Graph,
    plan: MemoryPlan,
    parts: Vec<Part>,
}

/// The dispatches of one inner node, or the copy of an output.
struct Part {
    /// The node's number; copies of outputs have none.
    step: Option<usize>,
    op: &'static str,
    node: Arc<str>,
    emitted: Vec<Emitted>,
    constants: Vec<HostTable>,
    gates: u64,
}

impl<'g> Body<'g> {
    /// Lowers a graph; the error names every node that the device cannot run.
    pub(crate) fn new(graph: &'g Graph, caps: &DeviceCaps, tuning: &Record) -> Result<Self, String> {
        // Workgroup counts of inner dispatches are in memory, and PTX is not launched so.
        let mut caps = caps.clone();
        caps.target.warpgroups = false;
        let caps = &caps;
        let mut parts = Vec::new();
        let mut scratch = vec![Dim::ZERO; graph.nodes().len()];
        let mut refused = Vec::new();
        let mut memo = Memo::default();
        for (step, node) in graph.nodes().iter().enumerate() {
            if matches!(node.op, Op::View(_)) {
                continue;
            }
            let site = site(graph, &[node], (caps, tuning), &[], Deferral::default());
            match site.and_then(|site| memo.lower(&[(&node.op, node.inputs.len())], site)) {
                Ok(site) => {
                    scratch[step] = site.scratch;
                    parts.push(Part::new(Some(step), node.op.name(), &node.name, site));
                }
                Err(problem) => refused.push(format!("inner {} `{}`: {problem}", node.op.name(), node.name)),
            }
        }
        if !refused.is_empty() {
            return Err(refused.join("; "));
        }
        let options = PlanOptions {
            alignment: caps.alignment(),
            in_place: overlaps(caps),
            scratch: &scratch,
            until: &[],
            absent: &[],
        };
        let every_time = vec![false; graph.nodes().len()];
        let plan = plan_graph_with(graph, &every_time, &options).map_err(|e| e.to_string())?;
        let mut body = Body { graph, plan, parts };
        body.copy_outputs(caps)?;
        Ok(body)
    }

    /// Adds copies of those outputs that no node writes into their own memory.
    fn copy_outputs(&mut self, caps: &DeviceCaps) -> Result<(), String> {
        for (i, output) in self.graph.outputs().iter().enumerate() {
            if self.plan.outputs.get(i) == Some(&olivine_compile::plan::OutputLocation::Written) {
                continue;
            }
            let from = operand_of(self.graph, output.value).ok_or("an output has no type")?;
            let to = Target { ty: from.ty, memory: Memory::Output(i) };
            let mut site = Site::new(caps, vec![from], vec![to]);
            olivine_kernels::copy(&mut site)?;
            self.parts.push(Part::new(None, "copy", &output.name, site));
        }
        Ok(())
    }

    /// Dispatches of one pass over the graph.
    pub(crate) fn dispatches(&self) -> usize {
        self.parts.iter().map(|p| p.emitted.len()).sum()
    }

    /// Whether anything reads the i-th input.
    pub(crate) fn reads_input(&self, i: usize) -> bool {
        let id = self.graph.inputs().nth(i).map(|(_, id)| id);
        id.is_some_and(|id| self.graph.use_counts()[id.index()] > 0)
    }

    /// The constant that an output is, and what need not run if nobody reads the output.
    pub(crate) fn constant_output(&self, i: usize) -> Option<(&'g Tensor, Unread)> {
        let output = self.graph.outputs().get(i)?.value;
        let mut id = output;
        for _ in 0..self.graph.nodes().len() + 1 {
            if let Some(tensor) = self.graph.as_const(id) {
                let alone = self.graph.use_counts()[output.index()] == 1;
                let step = match self.graph.value(output).ok()?.def {
                    Def::Node { node, .. } if alone => Some(node.index()),
                    _ => None,
                };
                return Some((tensor, Unread(step)));
            }
            let node = self.graph.producer(id)?;
            let copies = match &node.op {
                Op::View(_) => true,
                Op::Fused(fused) => fused.region == olivine_ir::op::Region::identity(),
                _ => false,
            };
            id = *node.inputs.first().filter(|_| copies)?;
        }
        None
    }

    /// Takes memory for the graph's own values from a node's scratch.
    pub(crate) fn allocate<'b>(&'b self, site: &mut Site<'_>) -> AllocatedBody<'b, 'g> {
        let arena = match site.scratch(self.plan.arena as u64) {
            Memory::Scratch { offset, .. } => offset.dim(),
            _ => Dim::ZERO,
        };
        let mut constants = HashMap::new();
        for (id, value) in self.graph.ids().zip(self.graph.values()) {
            if let Def::Const(tensor) = &value.def {
                constants.insert(id, site.constant(tensor.clone()));
            }
        }
        let inputs = self.graph.inputs().enumerate().map(|(i, (_, id))| (id, i)).collect();
        let mut tables = Vec::with_capacity(self.parts.len());
        let mut gates = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            tables.push(part.constants.iter().map(|t| site.table(t.clone())).collect());
            gates.push(match (part.gates, site.gate(part.gates)) {
                (1.., Memory::Gate { offset, .. }) => offset,
                _ => 0,
            });
        }
        AllocatedBody { body: self, arena, constants, inputs, tables, gates }
    }
}

/// A node that need not run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unread(Option<usize>);

impl Part {
    fn new(step: Option<usize>, op: &'static str, node: &str, site: Site<'_>) -> Self {
        Part {
            step,
            op,
            node: node.into(),
            emitted: site.emitted,
            constants: site.constants,
            gates: site.gates,
        }
    }
}

/// An inner graph whose own values have a range of the outer node's memory.
pub(crate) struct AllocatedBody<'b, 'g> {
    body: &'b Body<'g>,
    /// Where its arena begins in the scratch.
    arena: Dim,
    constants: HashMap<ValueId, Memory>,
    inputs: HashMap<ValueId, usize>,
    /// For every part its tables.
    tables: Vec<Vec<Memory>>,
    /// For every part where its gates begin.
    gates: Vec<u64>,
}

/// What one pass over an inner graph works on.
pub(crate) struct Pass<'a> {
    /// Where its inputs are, packed, and where its outputs go.
    pub(crate) inputs: &'a [Memory],
    pub(crate) outputs: &'a [Memory],
    /// Whether the graph runs at all, for gates inside it.
    pub(crate) alive: Memory,
    pub(crate) unread: Unread,
}

impl AllocatedBody<'_, '_> {
    /// The dispatches of one pass.
    pub(crate) fn emit(&self, pass: &Pass<'_>) -> Result<Vec<Emitted>, String> {
        let mut out = Vec::with_capacity(self.body.dispatches());
        for (at, part) in self.body.parts.iter().enumerate() {
            if part.step.is_some() && part.step == pass.unread.0 {
                continue;
            }
            let outer = |memory: Memory| {
                self.outer(at, memory, pass).ok_or_else(|| format!("{} `{}`: no memory", part.op, part.node))
            };
            for emitted in &part.emitted {
                let mut emitted = emitted.clone();
                for memory in &mut emitted.bound.args {
                    *memory = outer(*memory)?;
                }
                if let Gating::By(memory) = &mut emitted.gating {
                    *memory = outer(*memory)?;
                }
                if emitted.of.is_none() {
                    emitted.of = Some((part.op, part.node.clone()));
                }
                out.push(emitted);
            }
        }
        Ok(out)
    }

    /// Memory of a part as the node around it knows it.
    fn outer(&self, at: usize, memory: Memory, pass: &Pass<'_>) -> Option<Memory> {
        let table = |i: usize| self.tables.get(at)?.get(i).copied();
        Some(match memory {
            Memory::Value(id) => return self.value(id, pass),
            Memory::Output(i) => *pass.outputs.get(i)?,
            Memory::Scratch { offset, bytes } => {
                let step = self.body.parts.get(at)?.step?;
                let (start, _) = self.body.plan.scratch.get(step).copied().flatten()?;
                Memory::Scratch { offset: (self.arena + start + offset.dim()).structural(), bytes }
            }
            Memory::Constant(i) => table(i)?,
            Memory::Row { table: i, offset, bytes } => match table(i)? {
                Memory::Constant(table) => Memory::Row { table, offset, bytes },
                _ => return None,
            },
            Memory::Gate { offset, bytes } => Memory::Gate { offset: self.gates.get(at)? + offset, bytes },
            Memory::Alive => pass.alive,
            // Nothing of an inner graph is stored, or left to another node.
            Memory::Moving(_)
            | Memory::Prepacked(_)
            | Memory::LoadScratch { .. }
            | Memory::Deferred { .. } => {
                return None;
            }
        })
    }

    fn value(&self, id: ValueId, pass: &Pass<'_>) -> Option<Memory> {
        if let Some(input) = self.inputs.get(&id) {
            return pass.inputs.get(*input).copied();
        }
        if let Some(constant) = self.constants.get(&id) {
            return Some(*constant);
        }
        if let Some(slot) = self.body.plan.slots.get(id.index())? {
            let bytes = Dim::from(slot.bytes.max(1).next_multiple_of(16));
            let offset = self.arena + slot.offset;
            return Some(Memory::Scratch { offset: offset.structural(), bytes: bytes.structural() });
        }
        let output = self.body.graph.outputs().iter().position(|o| o.value == id)?;
        pass.outputs.get(output).copied()
    }
}
