//! Sums of split products that are left to the kernel which reads the product.
//!
//! ```text
//!   product ── parts ── norm: sums them in order, finishes the product, normalises it
//!                        └── the product itself, where others read it too
//!   product ── parts ── rotations and appends: each sums the columns it reads
//! ```

use std::collections::{HashMap, HashSet};

use olivine_compile::Compiled;
use olivine_ir::{Op, ValueId};
use olivine_kernels::{Memory, SplitKPartials};
use olivine_program::{Addressing, DeviceCaps};

use super::reading;
use super::together::Together;

/// What a node may leave to others, and what others left to it.
#[derive(Default)]
pub(super) struct Reading {
    /// Whether its parts may be left to the node that reads it.
    pub(super) may_defer_sum: bool,
    /// The product that it reads, if its parts were.
    pub(super) partials: Option<SplitKPartials>,
}

/// A node that can sum a product's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summing {
    pub(super) step: usize,
    /// Whether other nodes, or the caller, read the product as well.
    pub(super) is_stored: bool,
}

/// For every node that is a product, what can sum its parts: a norm, if that is the first node to read it, whole and in
/// order; or rotations and appends that nobody else reads it with.
pub(super) fn summing_readers(
    compiled: &Compiled,
    together: &Together,
    caps: &DeviceCaps,
) -> Vec<Option<Summing>> {
    let graph = &compiled.graph;
    // For every value the nodes that read it, with the operand's number and whether that is the whole of it in order.
    let mut readers: HashMap<ValueId, Vec<(usize, usize, bool)>> = HashMap::new();
    for (step, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::View(_)) {
            continue;
        }
        for (i, id) in node.inputs.iter().enumerate() {
            let Some(operand) = reading(graph, *id) else { continue };
            let Memory::Value(root) = operand.memory else { continue };
            let all = graph.ty(root).is_ok_and(|ty| ty.shape.numel() == operand.ty.shape.numel());
            readers.entry(root).or_default().push((step, i, all && operand.is_packed()));
        }
    }
    let roots_of_outputs: HashSet<Memory> =
        graph.outputs().iter().filter_map(|o| Some(reading(graph, o.value)?.memory)).collect();
    let summing = |step: usize| {
        let node = graph.nodes().get(step)?;
        if !matches!(node.op, Op::MatMul(_)) || compiled.at_load[step] {
            return None;
        }
        let product = *node.outputs.first()?;
        let readers = readers.get(&product)?;
        let is_output = roots_of_outputs.contains(&Memory::Value(product));
        let (first, operand, in_order) = *readers.first()?;
        let moves = |(step, operand, _): &(usize, usize, bool)| match graph.nodes()[*step].op {
            Op::Rope(_) => *operand == 0,
            Op::KvAppend(_) => *operand == 1,
            _ => false,
        };
        let last = together.last(first);
        if readers.iter().all(|r| moves(r) && together.last(r.0) == last) && last != first {
            // Every reader has the extra operands as well.
            let fits = caps.addressing == Addressing::Pointers || node.inputs.len() == 2;
            return (fits && !is_output).then_some(Summing { step: last, is_stored: false });
        }
        let norm = graph.nodes().get(first)?;
        let once = readers.iter().filter(|(step, ..)| *step == first).count() == 1;
        let sums = matches!(norm.op, Op::LayerNorm(_) | Op::RmsNorm(_)) && operand == 0;
        // Parts and extra operands come instead of the product, which may have to be written.
        let buffers = norm.inputs.len() + norm.outputs.len() + node.inputs.len() - 1;
        let fits = match caps.addressing {
            Addressing::Pointers => true,
            Addressing::Bindings { max_count, .. } => buffers <= max_count as usize,
        };
        let is_stored = readers.len() > 1 || is_output;
        (once && sums && in_order && fits).then_some(Summing { step: first, is_stored })
    };
    (0..graph.nodes().len()).map(summing).collect()
}
