//! What the fusion passes share: who uses a value, what runs once, and dropping what nobody uses any more.

use olivine_ir::op::{Reshape, Transpose};
use olivine_ir::{Dim, Error, Graph, Node, NodeId, Op, Shape, ValueId};

use crate::Rewriter;

/// Facts about a graph that its nodes alone do not show.
pub(super) struct Facts<'g> {
    pub(super) graph: &'g Graph,
    /// How often each value is read, by nodes and as a graph output.
    pub(super) uses: Vec<usize>,
    /// For every node: whether it depends on params and constants alone.
    pub(super) at_load: Vec<bool>,
    /// The nodes that read each value, each once, in order: those of value `i` from `starts[i]` to `starts[i + 1]`.
    readers: Vec<NodeId>,
    starts: Vec<usize>,
    /// How often nodes read each value.
    reads: Vec<usize>,
}

impl<'g> Facts<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        let count = graph.values().len();
        let mut reads = vec![0; count];
        let mut starts = vec![0; count + 1];
        each_reader(graph, |id, _| starts[id.index() + 1] += 1);
        for i in 0..count {
            starts[i + 1] += starts[i];
        }
        let mut readers = vec![NodeId(0); starts[count]];
        let mut next = starts.clone();
        each_reader(graph, |id, reader| {
            readers[next[id.index()]] = reader;
            next[id.index()] += 1;
        });
        graph.nodes().iter().flat_map(|node| &node.inputs).for_each(|id| reads[id.index()] += 1);
        Facts { graph, uses: graph.use_counts(), at_load: crate::at_load(graph), readers, starts, reads }
    }

    pub(super) fn node(&self, id: NodeId) -> &'g Node {
        &self.graph.nodes()[id.index()]
    }

    pub(super) fn shape(&self, id: ValueId) -> Shape {
        self.graph.values()[id.index()].ty.shape
    }

    /// The nodes that read a value, in order.
    pub(super) fn readers(&self, id: ValueId) -> &[NodeId] {
        &self.readers[self.starts[id.index()]..self.starts[id.index() + 1]]
    }

    /// How often nodes read a value; its uses beyond that are graph outputs.
    pub(super) fn reads_by_nodes(&self, id: ValueId) -> usize {
        self.reads[id.index()]
    }

    /// The only node that reads a value, if there is one and the value is no graph output.
    pub(super) fn only_reader(&self, id: ValueId) -> Option<NodeId> {
        let [reader] = self.readers(id) else { return None };
        (self.reads[id.index()] == self.uses[id.index()]).then_some(*reader)
    }

    /// Whether a value is known once params are set.
    pub(super) fn is_fixed(&self, id: ValueId) -> bool {
        use olivine_ir::Def;
        match self.graph.values()[id.index()].def {
            Def::Param { .. } | Def::Const(_) => true,
            Def::Input { .. } => false,
            Def::Node { node, .. } => self.at_load[node.index()],
        }
    }

    /// All nodes, those that run once first: whatever is made of them can then stand anywhere.
    pub(super) fn load_first(&self) -> Vec<NodeId> {
        let ids = || (0..self.graph.nodes().len() as u32).map(NodeId);
        let once = |id: &NodeId| self.at_load[id.index()];
        ids().filter(once).chain(ids().filter(|id| !once(id))).collect()
    }
}

/// Calls `found` with every value and each node that reads it, the nodes in order.
fn each_reader(graph: &Graph, mut found: impl FnMut(ValueId, NodeId)) {
    let mut last = vec![None; graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        let reader = NodeId(i as u32);
        for id in &node.inputs {
            if last[id.index()].replace(reader) != Some(reader) {
                found(*id, reader);
            }
        }
    }
}

/// Whether a graph has an operation of some kind: without one, a pass has nothing to look for.
pub(super) fn has(graph: &Graph, kind: impl Fn(&Op) -> bool) -> bool {
    graph.nodes().iter().any(|node| kind(&node.op))
}

/// The graph without nodes that no output depends on.
pub(super) fn sweep(graph: &Graph) -> Result<Graph, Error> {
    let mut needed = vec![false; graph.values().len()];
    for output in graph.outputs() {
        needed[output.value.index()] = true;
    }
    let mut keep = vec![false; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        keep[i] = node.outputs.iter().any(|id| needed[id.index()]);
        if keep[i] {
            for id in &node.inputs {
                needed[id.index()] = true;
            }
        }
    }
    if keep.iter().all(|k| *k) {
        return Ok(graph.clone());
    }
    crate::rewrite(graph, |_, id, _| Ok(!keep[id.index()]))
}

/// Adds the transpose of an old value to the new graph, undoing transposes that already made it.
pub(super) fn transposed(
    out: &mut Rewriter<'_>,
    graph: &Graph,
    mut id: ValueId,
    perm: &[usize],
) -> Result<ValueId, Error> {
    let mut perm = perm.to_vec();
    while let Some(Node { op: Op::Transpose(inner), inputs, .. }) = graph.producer(id) {
        if inner.perm.len() != perm.len() {
            break;
        }
        perm = perm.iter().map(|a| inner.perm[*a]).collect();
        id = inputs[0];
    }
    let x = out.get(id)?;
    if perm.iter().enumerate().all(|(i, a)| i == *a) {
        return Ok(x);
    }
    out.new.add1(Transpose { perm }, &[x])
}

/// Adds a reshape to the new graph, unless the value has that shape. No size may be 0: in a reshape it means another's.
pub(super) fn reshaped<T: Copy + Into<Dim>>(
    out: &mut Rewriter<'_>,
    x: ValueId,
    shape: &[T],
) -> Result<ValueId, Error> {
    let dims: Vec<Dim> = shape.iter().map(|d| (*d).into()).collect();
    if out.new.ty(x)?.shape == Shape::of_sizes(&dims)? {
        return Ok(x);
    }
    out.new.add1(Reshape { dims }, &[x])
}
