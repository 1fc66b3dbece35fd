//! Groups of nodes that one dispatch computes. They are lowered together, at the last of them.
//!
//! ```text
//!   x·[W, V] ── even and odd columns ── silu(even)·odd      one matmul, half as wide
//!   silu(x·W) ── (x·V)·gate in its epilogue                 one pass over both, if they are packed
//!   norm(x) ── ·Q   ·K   ·V                                 see `packed`
//!   rope(q)   rope(k) ── kv_append   kv_append(v)           one pass over the rows of q, k and v
//! ```

use std::collections::HashMap;

use olivine_compile::Compiled;
use olivine_ir::{Dim, Node, Op, ValueId};
use olivine_kernels::{Memory, Operand};
use olivine_program::{Addressing, DeviceCaps};

use super::packed;
use crate::lower::operand_of;

/// The groups of a graph, by node.
pub(in crate::lower) struct FusedGroups {
    /// For every node the number of its group, if it is in one.
    of: Vec<Option<usize>>,
    groups: Vec<Group>,
}

struct Group {
    /// By which rule; `None` where the kernels say what became of them.
    rule: Option<&'static str>,
    /// Its nodes, in order.
    steps: Vec<usize>,
}

impl FusedGroups {
    /// Finds all groups of a graph.
    pub(in crate::lower) fn new(compiled: &Compiled, caps: &DeviceCaps) -> Self {
        let graph = &compiled.graph;
        let readers = readers(compiled);
        let mut fused = FusedGroups { of: vec![None; graph.nodes().len()], groups: Vec::new() };
        for step in 0..graph.nodes().len() {
            if let Some(other) = gating_reader(compiled, &readers, step) {
                fused.add(Some("gated matmul"), vec![step, other]);
            }
        }
        let most = match caps.addressing {
            Addressing::Pointers => usize::MAX,
            Addressing::Bindings { max_count, .. } => max_count as usize,
        };
        // Rows, result and what angles are made of; rows, position, cache and its pages.
        let buffers = |step: &usize| match &graph.nodes()[*step].op {
            Op::Rope(_) => 4,
            Op::KvAppend(op) if !op.pages => 3,
            _ => 4,
        };
        for group in rope_appends(compiled, &readers) {
            if group.iter().map(buffers).sum::<usize>() <= most {
                fused.add(Some("rope and kv append"), group);
            }
        }
        for group in packed::small_m_matmuls(compiled, &readers, |step| fused.last(step)) {
            fused.add(None, group);
        }
        for step in 0..graph.nodes().len() {
            if let Some(other) = gated_by(compiled, &readers, step) {
                fused.add(None, vec![step, other]);
            }
        }
        fused
    }

    fn group(&self, step: usize) -> Option<&Group> {
        self.of.get(step).copied().flatten().and_then(|i| self.groups.get(i))
    }

    /// The step that lowers this one: the last of its group.
    pub(in crate::lower) fn last(&self, step: usize) -> usize {
        self.group(step).and_then(|group| group.steps.last().copied()).unwrap_or(step)
    }

    /// The rule by which a step is in a group, where that alone says what becomes of it.
    pub(in crate::lower) fn rule(&self, step: usize) -> Option<&'static str> {
        self.group(step).and_then(|group| group.rule)
    }

    /// Whether a step is lowered with others.
    pub(in crate::lower) fn contains(&self, step: usize) -> bool {
        self.group(step).is_some()
    }

    fn add(&mut self, rule: Option<&'static str>, steps: Vec<usize>) {
        if steps.len() < 2 || steps.iter().any(|step| self.of[*step].is_some()) {
            return;
        }
        steps.iter().for_each(|step| self.of[*step] = Some(self.groups.len()));
        self.groups.push(Group { rule, steps });
    }

    /// The steps that are lowered at this one: itself, all of its group, or none if the group ends at a later step.
    pub(in crate::lower) fn at(&self, step: usize) -> Vec<usize> {
        match self.group(step) {
            None => vec![step],
            Some(group) if group.steps.last() == Some(&step) => group.steps.clone(),
            Some(_) => Vec::new(),
        }
    }
}

/// A node that reads a value, and how.
pub(super) struct Reader {
    pub(super) step: usize,
    pub(super) operand: Operand,
}

/// For every value that is no view who reads it.
pub(super) type Readers = HashMap<ValueId, Vec<Reader>>;

/// For every value that is no view who reads it, in order; outputs of the graph read at the step after the last.
fn readers(compiled: &Compiled) -> Readers {
    let graph = &compiled.graph;
    let mut readers = Readers::new();
    let mut note = |step: usize, id: ValueId| {
        if let Some(operand) = operand_of(graph, id)
            && let Memory::Value(root) = operand.memory
        {
            readers.entry(root).or_default().push(Reader { step, operand });
        }
    };
    for (step, node) in graph.nodes().iter().enumerate() {
        if !matches!(node.op, Op::View(_)) {
            node.inputs.iter().for_each(|id| note(step, *id));
        }
    }
    graph.outputs().iter().for_each(|output| note(graph.nodes().len(), output.value));
    readers
}

/// The elementwise node that alone reads a matmul, as its even and its odd columns.
fn gating_reader(compiled: &Compiled, readers: &Readers, step: usize) -> Option<usize> {
    let graph = &compiled.graph;
    let node = graph.nodes().get(step)?;
    let Op::MatMul(op) = &node.op else { return None };
    let result = *node.outputs.first()?;
    let [first, second] = readers.get(&result)?.as_slice() else { return None };
    let reader = graph.nodes().get(first.step)?;
    let elementwise = matches!(reader.op, Op::Fused(_) | Op::ScalarOp(_)) && reader.outputs.len() == 1;
    let shape = graph.ty(result).ok()?.shape;
    let halved = |operand: &Operand| {
        let (all, part) = (shape.sizes(), operand.sizes());
        let (Some((wide, outer)), Some((narrow, of))) = (all.split_last(), part.split_last()) else {
            return false;
        };
        let strides = shape.stride_sizes();
        let twice = |i: usize| {
            let step = if i == of.len() { Dim::constant(2) } else { strides[i] };
            operand.strides[i] == step || part[i] <= 1
        };
        outer == of && *wide == 2 * *narrow && (0..part.len()).all(twice)
    };
    let mut offsets = [first.operand.offset, second.operand.offset].map(|offset| offset.as_constant());
    offsets.sort_unstable();
    let target = graph.ty(*reader.outputs.first()?).ok()?.shape;
    let pairs = op.epilogue.is_none()
        && !compiled.at_load[step]
        && elementwise
        && first.step == second.step
        && offsets == [Some(0), Some(1)]
        && [first, second].iter().all(|r| halved(&r.operand) && r.operand.ty.shape == target);
    pairs.then_some(first.step)
}

/// The matmul with a packed weight that alone reads another of the same x, in its epilogue.
pub(super) fn gated_by(compiled: &Compiled, readers: &Readers, step: usize) -> Option<usize> {
    let graph = &compiled.graph;
    let gate = graph.nodes().get(step)?;
    let Op::DequantMatMul(first) = &gate.op else { return None };
    let result = *gate.outputs.first()?;
    let [reader] = readers.get(&result)?.as_slice() else { return None };
    let node = graph.nodes().get(reader.step)?;
    let Op::DequantMatMul(second) = &node.op else { return None };
    let own = first.first_extra();
    // Scales beside the weights, and extra operands of the gate, would make too many.
    let alike = own == first.first_scale()
        && gate.inputs.len() == own
        && own == second.first_extra()
        && node.inputs.get(..1) == gate.inputs.get(..1)
        && node.inputs.get(2..own) == gate.inputs.get(2..own)
        && graph.ty(*gate.inputs.get(1)?).ok()? == graph.ty(*node.inputs.get(1)?).ok()?;
    let whole = graph.ty(result).ok()?.shape == graph.ty(*node.outputs.first()?).ok()?.shape
        && reader.operand.ty.shape == graph.ty(result).ok()?.shape
        && reader.operand.is_packed();
    let in_epilogue = !node.inputs[..own.min(node.inputs.len())].contains(&result);
    let runs = !compiled.at_load[step] && !compiled.at_load[reader.step];
    (alike && whole && in_epilogue && runs).then_some(reader.step)
}

/// Groups of rotations and of rows that go to caches, none of which waits for another's result, but for rows that a
/// rotation makes for one cache alone.
fn rope_appends(compiled: &Compiled, readers: &Readers) -> Vec<Vec<usize>> {
    let graph = &compiled.graph;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    // What the open steps make.
    let mut makers: HashMap<ValueId, usize> = HashMap::new();
    let made_by = |makers: &HashMap<ValueId, usize>, id: ValueId| {
        let Some(Memory::Value(root)) = operand_of(graph, id).map(|o| o.memory) else { return None };
        makers.get(&root).copied()
    };
    let moves = |node: &Node| matches!(node.op, Op::Rope(_) | Op::KvAppend(_));
    for (step, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::View(_)) || compiled.at_load[step] {
            continue;
        }
        let waits = node.inputs.iter().enumerate().any(|(i, id)| match made_by(&makers, *id) {
            None => false,
            Some(maker) => {
                let rotated = matches!(graph.nodes()[maker].op, Op::Rope(_));
                let alone = readers.get(id).is_some_and(|r| r.len() == 1);
                !(matches!(node.op, Op::KvAppend(_)) && i == 1 && rotated && alone)
            }
        });
        if waits {
            groups.push(std::mem::take(&mut open));
            makers.clear();
        }
        if moves(node) {
            open.push(step);
            makers.extend(node.outputs.iter().map(|id| (*id, step)));
        }
    }
    groups.push(open);
    groups
}
