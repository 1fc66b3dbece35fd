//! What importing a model may take: a small file must not cost much time or memory.

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use olivine_ir::{Graph, Node, Op, TensorType};

use super::Answer;
use crate::error::Error;

/// Nodes that a model may come to, beside those of its main graph, once its scans and functions are unrolled.
const MAX_NODES: usize = 250_000;

/// Steps of the walk: names looked up, values looked at.
const MAX_STEPS: usize = 100_000_000;

/// Steps that each node of the main graph adds to them.
const STEPS_OF_NODE: usize = 200;

/// Steps that computing one operation counts for, and one that was computed for operands of the same types before,
/// which evaluators keep prepared; of so many they forget all.
const EVALUATION: usize = 16_000;
const AGAIN: usize = 1_500;
const CACHED: usize = 128;

/// Numbers computed while a model is imported, for one value and for all of them; the device computes what goes beyond.
const MOST_FOR_ONE: usize = 1 << 22;
const MOST_FOR_ALL: usize = 1 << 25;

/// Bytes of a node's name that go into the names of its operations.
const LONGEST_LABEL: usize = 128;

/// What a walk has taken so far.
#[derive(Default)]
pub(super) struct Budget {
    steps: Cell<usize>,
    nodes: usize,
    /// Nodes of the main graph: a file may be as large as it likes, but must not grow much.
    written: usize,
    computed: usize,
    /// Hashes of operations that were computed, and their operands' types.
    evaluated: HashSet<u64>,
}

impl Budget {
    /// The budget of a model whose main graph has so many nodes.
    pub(super) fn of(nodes: usize) -> Self {
        Budget { written: nodes, ..Budget::default() }
    }

    fn most_steps(&self) -> usize {
        self.written.saturating_mul(STEPS_OF_NODE).saturating_add(MAX_STEPS)
    }

    /// Counts steps, at a location.
    pub(super) fn step(&self, count: usize, location: impl FnOnce() -> String) -> Answer<()> {
        let steps = self.steps.get().saturating_add(count);
        self.steps.set(steps);
        if steps > self.most_steps() {
            return Err(
                Error::invalid(location(), "importing the model takes more steps than are allowed").into()
            );
        }
        Ok(())
    }

    /// Counts an operation that is computed, at a location; `kept` says that evaluators cache operations of its kind.
    pub(super) fn evaluate(
        &mut self,
        op: &Op,
        operands: &[TensorType],
        kept: bool,
        location: impl FnOnce() -> String,
    ) -> Answer<()> {
        if !kept {
            return self.step(EVALUATION, location);
        }
        let mut hasher = DefaultHasher::new();
        format!("{op:?} {operands:?}").hash(&mut hasher);
        if self.evaluated.len() == CACHED {
            self.evaluated.clear();
        }
        let first = self.evaluated.insert(hasher.finish());
        self.step(if first { EVALUATION } else { AGAIN }, location)
    }

    /// Counts a node, at a location.
    pub(super) fn node(&mut self, location: impl FnOnce() -> String) -> Answer<()> {
        self.nodes += 1;
        let most = self.written.saturating_add(MAX_NODES);
        if self.nodes > most {
            let problem = format!("with its scans and functions written out the model has over {most} nodes");
            return Err(Error::invalid(location(), problem).into());
        }
        Ok(())
    }

    /// Whether so much work may still be done for one value.
    pub(super) fn affords(&self, work: usize) -> bool {
        work <= MOST_FOR_ONE && self.computed.saturating_add(work) <= MOST_FOR_ALL
    }

    /// Whether constants may still be folded, or the steps that are left are reserved for values that decide shapes.
    pub(super) fn folds(&self) -> bool {
        self.steps.get() < self.most_steps() / 2
    }

    /// Counts work that is done.
    pub(super) fn compute(&mut self, work: usize) {
        self.computed = self.computed.saturating_add(work);
    }
}

/// About how many numbers a node looks at and makes.
pub(super) fn work(graph: &Graph, node: &Node) -> usize {
    let count = |id| graph.ty(id).map_or(0, |ty| ty.shape.values().numel());
    let made = node.outputs.iter().map(|id| count(*id)).fold(0, usize::saturating_add);
    let read = node.inputs.iter().map(|id| count(*id)).fold(0, usize::saturating_add);
    let body = |graph: &Graph| graph.nodes().iter().map(|n| work(graph, n)).fold(1, usize::saturating_add);
    let own = match &node.op {
        Op::Loop(op) => op.max_iterations.unwrap_or(usize::MAX).saturating_mul(body(op.body.graph())),
        Op::Scan(op) => {
            let sliced = node.inputs.get(op.states).and_then(|id| graph.ty(*id).ok());
            let trips = sliced.and_then(|ty| op.axes.first().and_then(|a| ty.shape.get(*a).copied()));
            trips.unwrap_or(0).saturating_mul(body(op.body.graph()))
        }
        Op::If(op) => body(op.then_branch.graph()).max(body(op.else_branch.graph())),
        op if looks_far(op.name()) => made.max(read).saturating_mul(read),
        _ => 0,
    };
    own.saturating_add(made).saturating_add(read)
}

/// Whether an operation looks at many numbers for each that it makes.
fn looks_far(op: &str) -> bool {
    let families = ["matmul", "conv", "dot_general", "einsum", "attention", "pool", "dft", "stft", "resize"];
    families.iter().any(|f| op.contains(f))
        || matches!(
            op,
            "recurrence" | "selective_scan" | "gated_delta_net" | "unfold" | "log_mel" | "roi_align"
        )
}

/// As much of a node's name as goes into the names of its operations.
pub(super) fn label(name: &str) -> &str {
    let end =
        name.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end <= LONGEST_LABEL).last();
    name[..end.unwrap_or(0)].trim_matches('/')
}
