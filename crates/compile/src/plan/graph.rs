//! Which values of a graph need bytes, for how long, and which may share them.

use olivine_ir::{Def, Dim, Graph, Node, Op, ValueId};

use super::layout::layout;
use super::{ALIGNMENT, ArenaLayout, Error, Lifetime, place};

/// A value's bytes in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte, a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Bytes of the packed root value.
    pub bytes: usize,
    /// The value whose node writes these bytes: the value itself, or what it is a view of.
    pub root: ValueId,
    /// The buffer of [`MemoryPlan::layout`] that holds it.
    pub buffer: usize,
}

/// How a graph output reaches the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLocation {
    /// The node that makes the value writes it there; later nodes read it from there.
    Written,
    /// It is copied there after the last node: an input, param, constant or load-time value, a view, or a value
    /// that an earlier output already holds.
    Copied,
}

/// Where the run-time values of a graph live.
///
/// Values fall into classes. A *view* ([`Op::View`] at run time) has no bytes of its own: its `root` is the first
/// value up the chain that is not a view, and its slot is the root's. A root that is made by a run-time node and is no
/// graph output lives in the arena and has a slot. A root that is a graph output lives in the caller's buffer, and
/// inputs, params, constants and load-time values live elsewhere: these have no slot.
///
/// Slots of values that are needed at the same node never overlap, with one exception: where `in_place` names an
/// operand, the node's result 0 has that operand's slot, byte for byte in the same packed layout, and no other operand
/// of the node lies in it.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// For every value its bytes in the arena, if it has any there.
    pub slots: Vec<Option<Slot>>,
    /// For every value the value whose bytes it reads; itself unless it is a run-time view.
    pub roots: Vec<ValueId>,
    /// For every node the operand whose bytes its result 0 takes over.
    pub in_place: Vec<Option<usize>>,
    /// For every graph output, in order, how it reaches the caller.
    pub outputs: Vec<OutputLocation>,
    /// Bytes of the arena.
    pub arena: usize,
    /// For every node where its scratch bytes are, and their buffer, if it asked for any.
    pub scratch: Vec<Option<(usize, usize)>>,
    /// The buffers of the arena. Offsets and bytes above are for the sizes of the compile; this places them for others.
    pub layout: ArenaLayout,
    /// The most bytes alive at one node: no arena could be smaller.
    pub largest_live_set: usize,
}

impl MemoryPlan {
    /// The offset of every buffer of the layout, for the sizes of the compile.
    pub fn offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0; self.layout.sizes.len()];
        for slot in self.slots.iter().flatten() {
            offsets[slot.buffer] = slot.offset as u64;
        }
        for (offset, buffer) in self.scratch.iter().flatten() {
            offsets[*buffer] = *offset as u64;
        }
        offsets
    }
}

/// What a backend asks of the plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions<'a> {
    /// What every slot's offset is a multiple of; a power of two.
    pub alignment: usize,
    /// Whether elementwise results may take over an operand's bytes.
    pub in_place: bool,
    /// For every node the bytes it needs for itself while it runs; may be shorter than the nodes.
    pub scratch: &'a [Dim],
    /// For every node the last node that needs its operands and its scratch, where that is a later one; may be shorter
    /// than the nodes.
    pub until: &'a [usize],
    /// For every value whether no node writes it, so that it needs no bytes; may be shorter than the values.
    pub absent: &'a [bool],
}

impl PlanOptions<'_> {
    /// The last step that needs a step's operands and scratch.
    fn end(&self, step: usize) -> usize {
        self.until.get(step).map_or(step, |end| step.max(*end))
    }
}

impl Default for PlanOptions<'_> {
    fn default() -> Self {
        PlanOptions { alignment: ALIGNMENT, in_place: true, scratch: &[], until: &[], absent: &[] }
    }
}

/// Plans the arena for the nodes that run every time (`at_load` false), with the default options.
pub fn plan_graph(graph: &Graph, at_load: &[bool]) -> Result<MemoryPlan, Error> {
    plan_graph_with(graph, at_load, &PlanOptions::default())
}

/// Plans the arena for the nodes that run every time (`at_load` false).
pub fn plan_graph_with(
    graph: &Graph,
    at_load: &[bool],
    options: &PlanOptions<'_>,
) -> Result<MemoryPlan, Error> {
    let nodes = graph.nodes();
    if at_load.len() != nodes.len() {
        return Err(Error::Schedule { flags: at_load.len(), nodes: nodes.len() });
    }
    let roots = view_roots(graph, at_load);
    let outputs = output_locations(graph, at_load, &roots);
    let mut residents = arena_residents(graph, at_load, &roots);
    residents.iter_mut().zip(options.absent).for_each(|(resident, absent)| *resident &= !absent);
    let last = last_uses(graph, at_load, &roots, &outputs, options);
    let held = held(graph, &roots, options);
    let uses = Uses { roots: &roots, residents: &residents, last: &last, held: &held };
    let (in_place, buffer_of, mut lifetimes, mut sizes) = buffers(graph, at_load, &uses, options.in_place);
    let values = lifetimes.len();
    let wants = |step: usize| options.scratch.get(step).copied().filter(|b| *b != 0 && !at_load[step]);
    let asking: Vec<(usize, Dim)> = (0..nodes.len()).filter_map(|step| Some((step, wants(step)?))).collect();
    for (step, bytes) in &asking {
        lifetimes.push(Lifetime { size: number(*bytes)?, first: *step, last: options.end(*step) });
        sizes.push(*bytes);
    }

    let mut placement = place(&lifetimes, options.alignment)?;
    // Numbers are placed once.
    let is_open = sizes.iter().any(|size| !size.is_constant())
        || graph.values().iter().any(|value| value.ty.shape.is_symbolic());
    let layout = match is_open {
        true => layout(sizes, &lifetimes, &placement, options.alignment),
        false => ArenaLayout::fixed(sizes),
    };
    if is_open {
        // The offsets that other sizes get by the same rule.
        let bytes: Vec<u64> = lifetimes.iter().map(|l| l.size as u64).collect();
        let mut offsets = vec![0; bytes.len()];
        let arena = layout.place(&bytes, &mut offsets).ok_or(Error::TooLarge { step: 0 })?;
        placement.offsets = offsets.into_iter().map(|offset| offset as usize).collect();
        placement.peak = arena as usize;
    }
    let largest_live_set = super::lower_bound(&lifetimes, options.alignment)?;
    let mut scratch = vec![None; nodes.len()];
    for (i, (step, _)) in asking.iter().enumerate() {
        scratch[*step] = Some((placement.offsets[values + i], values + i));
    }
    let slots = graph
        .ids()
        .map(|id| {
            let root = roots[id.index()];
            let buffer = buffer_of[root.index()]?;
            let bytes = graph.values()[root.index()].ty.values().bytes();
            Some(Slot { offset: placement.offsets[buffer], bytes, root, buffer })
        })
        .collect();
    Ok(MemoryPlan {
        slots,
        roots,
        in_place,
        outputs,
        arena: placement.peak,
        scratch,
        layout,
        largest_live_set,
    })
}

/// The number of bytes in the current compile: places are decided by it, and hold for all.
fn number(bytes: Dim) -> Result<usize, Error> {
    bytes.value().ok().and_then(|b| usize::try_from(b).ok()).ok_or(Error::TooLarge { step: 0 })
}

/// For every value, what it is a view of in the end.
fn view_roots(graph: &Graph, at_load: &[bool]) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = graph.ids().collect();
    for (node, once) in graph.nodes().iter().zip(at_load) {
        if let (Op::View(_), false, [x], [y]) = (&node.op, once, &node.inputs[..], &node.outputs[..]) {
            roots[y.index()] = roots[x.index()];
        }
    }
    roots
}

/// Whether a run-time node makes the value.
fn made_at_run_time(graph: &Graph, at_load: &[bool], id: ValueId) -> bool {
    matches!(graph.values()[id.index()].def, Def::Node { node, .. } if !at_load[node.index()])
}

fn output_locations(graph: &Graph, at_load: &[bool], roots: &[ValueId]) -> Vec<OutputLocation> {
    let mut taken = vec![false; graph.values().len()];
    graph
        .outputs()
        .iter()
        .map(|output| {
            let id = output.value;
            let own = roots[id.index()] == id && made_at_run_time(graph, at_load, id);
            if own && !std::mem::replace(&mut taken[id.index()], true) {
                OutputLocation::Written
            } else {
                OutputLocation::Copied
            }
        })
        .collect()
}

/// For every value, whether it is a root whose bytes are in the arena.
fn arena_residents(graph: &Graph, at_load: &[bool], roots: &[ValueId]) -> Vec<bool> {
    let mut residents: Vec<bool> =
        graph.ids().map(|id| roots[id.index()] == id && made_at_run_time(graph, at_load, id)).collect();
    for output in graph.outputs() {
        residents[output.value.index()] = false;
    }
    residents
}

/// For every root, the last node that reads it, itself or through views; the number of nodes if a copied output does.
fn last_uses(
    graph: &Graph,
    at_load: &[bool],
    roots: &[ValueId],
    outputs: &[OutputLocation],
    options: &PlanOptions<'_>,
) -> Vec<usize> {
    let mut last = vec![0; graph.values().len()];
    for (step, node) in graph.nodes().iter().enumerate() {
        if at_load[step] || matches!(node.op, Op::View(_)) {
            continue;
        }
        for id in node.inputs.iter().chain(&node.outputs) {
            let last = &mut last[roots[id.index()].index()];
            *last = options.end(step).max(*last);
        }
    }
    for (output, place) in graph.outputs().iter().zip(outputs) {
        if *place == OutputLocation::Copied {
            last[roots[output.value.index()].index()] = graph.nodes().len();
        }
    }
    last
}

/// For every root the step until which a node before that step reads it.
fn held(graph: &Graph, roots: &[ValueId], options: &PlanOptions<'_>) -> Vec<usize> {
    let mut held = vec![0; graph.values().len()];
    for (step, node) in graph.nodes().iter().enumerate().filter(|(step, _)| options.end(*step) > *step) {
        for id in &node.inputs {
            let held = &mut held[roots[id.index()].index()];
            *held = options.end(step).max(*held);
        }
    }
    held
}

/// What is known of every value: its root, whether that is in the arena, its last reader, and until when nodes that
/// stand earlier read it.
struct Uses<'a> {
    roots: &'a [ValueId],
    residents: &'a [bool],
    last: &'a [usize],
    held: &'a [usize],
}

/// Assigns a buffer to every arena resident, taking over an operand's where the node may write in place.
#[allow(clippy::type_complexity, reason = "four parallel tables of one walk")]
fn buffers(
    graph: &Graph,
    at_load: &[bool],
    uses: &Uses<'_>,
    may_reuse: bool,
) -> (Vec<Option<usize>>, Vec<Option<usize>>, Vec<Lifetime>, Vec<Dim>) {
    let Uses { roots, residents, last, .. } = *uses;
    let mut in_place = vec![None; graph.nodes().len()];
    let mut buffer_of: Vec<Option<usize>> = vec![None; graph.values().len()];
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    let mut sizes: Vec<Dim> = Vec::new();
    for (step, node) in graph.nodes().iter().enumerate() {
        if at_load[step] {
            continue;
        }
        for (result, id) in node.outputs.iter().enumerate() {
            if !residents[id.index()] {
                continue;
            }
            let end = last[id.index()].max(step);
            let reused = (may_reuse && result == 0)
                .then(|| reusable_operand(graph, node, step, uses))
                .flatten()
                .and_then(|operand| Some((operand, buffer_of[roots[node.inputs[operand].index()].index()]?)));
            buffer_of[id.index()] = Some(match reused {
                Some((operand, buffer)) => {
                    in_place[step] = Some(operand);
                    lifetimes[buffer].last = end;
                    buffer
                }
                None => {
                    let ty = graph.values()[id.index()].ty;
                    lifetimes.push(Lifetime { size: ty.values().bytes(), first: step, last: end });
                    sizes.push(ty.size_bytes());
                    lifetimes.len() - 1
                }
            });
        }
    }
    (in_place, buffer_of, lifetimes, sizes)
}

/// The first operand whose bytes result 0 may take: same layout, in the arena, and read for the last time, only once.
fn reusable_operand(graph: &Graph, node: &Node, step: usize, uses: &Uses<'_>) -> Option<usize> {
    let Uses { roots, residents, last, held } = *uses;
    let candidates = match node.op {
        Op::ScalarOp(_) | Op::Fused(_) => 0..node.inputs.len(),
        Op::KvAppend(_) | Op::SliceScatter(_) | Op::ScatterElements(_) | Op::ScatterNd(_) => 0..1,
        _ => return None,
    };
    let target = graph.values()[node.outputs.first()?.index()].ty;
    candidates.into_iter().find(|operand| {
        let id = node.inputs[*operand];
        let root = roots[id.index()];
        let (ty, whole) = (graph.values()[id.index()].ty, graph.values()[root.index()].ty);
        let readers = node.inputs.iter().filter(|other| roots[other.index()] == root).count();
        residents[root.index()]
            && last[root.index()] == step
            && held[root.index()] < step
            && readers == 1
            && ty.shape == target.shape
            && ty.dtype.size() == target.dtype.size()
            && ty.size_bytes() == whole.size_bytes()
            && ty.size_bytes() > 0
            && reads_in_order(graph, id, root)
    })
}

/// Whether a value reads its root's elements one after another from the first on.
fn reads_in_order(graph: &Graph, mut id: ValueId, root: ValueId) -> bool {
    while id != root {
        match graph.producer(id) {
            Some(Node { op: Op::View(view), inputs, .. }) if view.is_packed() && inputs.len() == 1 => {
                id = inputs[0];
            }
            _ => return false,
        }
    }
    true
}
