//! Memory of the load: intermediate results share one buffer, which goes when the load is done.

use olivine_compile::plan::{Lifetime, place};
use olivine_compile::{Compiled, plan};
use olivine_ir::{Def, Op, ValueId};
use olivine_kernels::Memory;
use olivine_program::DeviceCaps;

use super::{Lowered, operand_of};

/// What only the load needs, and where it is.
pub(super) struct LoadPlan {
    /// For every value whether a dispatch of a run, or an output, reads or writes it.
    at_run: Vec<bool>,
    /// For every value what it takes of the load's memory.
    values: Vec<Option<usize>>,
    /// For every lowered node the scratch of what it does at load, and where its group begins.
    scratch: Vec<Option<usize>>,
    groups: Vec<u32>,
    /// Sizes and offsets of all of these; offsets are in one buffer, or each is a buffer of its own.
    parts: Vec<(u64, u64)>,
    /// Bytes of the one buffer.
    pub(super) arena: Option<u64>,
    /// For every value whether any dispatch or output reads or writes it.
    touched: Vec<bool>,
}

/// When dispatches of the load touch a value.
type Span = Option<(usize, usize)>;

impl LoadPlan {
    pub(super) fn new(
        compiled: &Compiled,
        lowered: &[Lowered<'_>],
        caps: &DeviceCaps,
    ) -> Result<Self, plan::Error> {
        let graph = &compiled.graph;
        let count = graph.values().len();
        let (mut at_run, mut spans): (Vec<bool>, Vec<Span>) = (vec![false; count], vec![None; count]);
        for (time, l) in lowered.iter().enumerate() {
            for emitted in &l.emitted {
                let loads = compiled.at_load[l.step] || emitted.prepacks.is_some();
                for memory in &emitted.bound.args {
                    let Memory::Value(id) = memory else { continue };
                    match &mut spans[id.index()] {
                        _ if !loads => at_run[id.index()] = true,
                        Some((_, last)) => *last = time,
                        span => *span = Some((time, time)),
                    }
                }
            }
        }
        for output in graph.outputs() {
            if let Some(Memory::Value(id)) = operand_of(graph, output.value).map(|operand| operand.memory) {
                at_run[id.index()] = true;
            }
        }
        let is_made = |id: ValueId| match graph.values()[id.index()].def {
            Def::Node { node, .. } => {
                let is_view = matches!(graph.nodes()[node.index()].op, Op::View(_));
                compiled.at_load[node.index()] && !is_view
            }
            _ => false,
        };
        let (mut lifetimes, mut values) = (Vec::new(), vec![None; count]);
        let mut groups = Groups((0..lowered.len()).collect());
        for id in graph.ids().filter(|id| is_made(*id) && !at_run[id.index()]) {
            let Some((first, last)) = spans[id.index()] else { continue };
            values[id.index()] = Some(lifetimes.len());
            lifetimes.push(Lifetime { size: graph.values()[id.index()].ty.bytes().max(1), first, last });
        }
        // Nodes that touch one intermediate result belong together.
        let mut toucher: Vec<Option<usize>> = vec![None; count];
        for (time, l) in lowered.iter().enumerate() {
            let load = |prepacks: Option<usize>| compiled.at_load[l.step] || prepacks.is_some();
            for memory in l.emitted.iter().filter(|e| load(e.prepacks)).flat_map(|e| &e.bound.args) {
                let Memory::Value(id) = memory else { continue };
                if values[id.index()].is_some() {
                    let other = *toucher[id.index()].get_or_insert(time);
                    groups.join(time, other);
                }
            }
        }
        let scratch = lowered.iter().enumerate().map(|(time, l)| {
            let own = if compiled.at_load[l.step] { l.load_own() } else { 0 };
            let size = own.next_multiple_of(caps.alignment() as u64).saturating_add(l.load_scratch) as usize;
            (size > 0).then(|| {
                lifetimes.push(Lifetime { size, first: time, last: time });
                lifetimes.len() - 1
            })
        });
        let scratch: Vec<Option<usize>> = scratch.collect();
        let placement = place(&lifetimes, caps.alignment())?;
        let one = placement.peak as u64 <= caps.max_buffer_bytes;
        let parts = lifetimes.iter().zip(&placement.offsets);
        let parts = parts.map(|(l, offset)| (l.size as u64, if one { *offset as u64 } else { 0 })).collect();
        let touched = at_run.iter().zip(&spans).map(|(run, span)| *run || span.is_some()).collect();
        let arena = (one && placement.peak > 0).then_some(placement.peak as u64);
        let groups = (0..lowered.len()).map(|time| groups.of(time) as u32).collect();
        Ok(LoadPlan { at_run, values, scratch, groups, parts, arena, touched })
    }

    /// Whether anything reads or writes a value.
    pub(super) fn is_touched(&self, id: ValueId) -> bool {
        self.touched[id.index()]
    }

    /// Whether a value that the load makes is there after it.
    pub(super) fn is_read_by_runs(&self, id: ValueId) -> bool {
        self.at_run[id.index()]
    }

    /// Bytes and offset of an intermediate result.
    pub(super) fn value(&self, id: ValueId) -> Option<(u64, u64)> {
        self.values[id.index()].map(|i| self.parts[i])
    }

    /// Bytes and offset of a lowered node's scratch at load.
    pub(super) fn scratch(&self, time: usize) -> Option<(u64, u64)> {
        self.scratch.get(time).copied().flatten().map(|i| self.parts[i])
    }

    /// The group of what a lowered node does at load.
    pub(super) fn group(&self, time: usize) -> u32 {
        self.groups.get(time).copied().unwrap_or(u32::MAX)
    }
}

/// Disjoint sets.
struct Groups(Vec<usize>);

impl Groups {
    fn of(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}
