//! Sums of split-K matmuls that the node which reads the matmul computes.
//!
//! ```text
//!   matmul ── partial sums ── norm: adds them in order, applies the epilogue, normalises
//!                              └── stores the matmul too, where others read it
//!   matmul ── partial sums ── rope and kv append: each adds the columns it reads
//! ```

use std::collections::{HashMap, HashSet};

use olivine_compile::Compiled;
use olivine_ir::{Op, ValueId};
use olivine_kernels::{Memory, SplitKPartials};
use olivine_program::{Addressing, DeviceCaps};

use super::groups::FusedGroups;
use crate::lower::operand_of;

/// What a node may defer to its reader, and what an earlier node deferred to it.
#[derive(Default)]
pub(in crate::lower) struct Deferral {
    /// Whether the node that reads it can add its partial sums.
    pub(in crate::lower) may_defer_sum: bool,
    /// The partial sums of an operand, if the matmul deferred them.
    pub(in crate::lower) partials: Option<SplitKPartials>,
}

/// A node that can add the partial sums of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lower) struct PartialsReader {
    pub(in crate::lower) step: usize,
    /// Whether other nodes, or the caller, read the matmul as well.
    pub(in crate::lower) is_stored: bool,
}

/// For every matmul the node that can add its partial sums: a norm, if it is the first to read the matmul, whole and in
/// order; or rotary embeddings and appends, if nothing else reads it.
pub(in crate::lower) fn partials_readers(
    compiled: &Compiled,
    groups: &FusedGroups,
    caps: &DeviceCaps,
) -> Vec<Option<PartialsReader>> {
    let graph = &compiled.graph;
    // For every value the nodes that read it, with the operand's number and whether that is the whole of it in order.
    let mut readers: HashMap<ValueId, Vec<(usize, usize, bool)>> = HashMap::new();
    for (step, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::View(_)) {
            continue;
        }
        for (i, id) in node.inputs.iter().enumerate() {
            let Some(operand) = operand_of(graph, *id) else { continue };
            let Memory::Value(root) = operand.memory else { continue };
            let all = graph.ty(root).is_ok_and(|ty| ty.shape.sizes().numel() == operand.sizes().numel());
            readers.entry(root).or_default().push((step, i, all && operand.is_packed()));
        }
    }
    let roots_of_outputs: HashSet<Memory> =
        graph.outputs().iter().filter_map(|o| Some(operand_of(graph, o.value)?.memory)).collect();
    let summing = |step: usize| {
        let node = graph.nodes().get(step)?;
        if !matches!(node.op, Op::MatMul(_)) || compiled.at_load[step] {
            return None;
        }
        let result = *node.outputs.first()?;
        let readers = readers.get(&result)?;
        let is_output = roots_of_outputs.contains(&Memory::Value(result));
        let (first, operand, in_order) = *readers.first()?;
        let moves = |(step, operand, _): &(usize, usize, bool)| match graph.nodes()[*step].op {
            Op::Rope(_) => *operand == 0,
            Op::KvAppend(_) => *operand == 1,
            _ => false,
        };
        let last = groups.last(first);
        if readers.iter().all(|r| moves(r) && groups.last(r.0) == last) && last != first {
            // Every reader has the extra operands as well.
            let fits = caps.addressing == Addressing::Pointers || node.inputs.len() == 2;
            return (fits && !is_output).then_some(PartialsReader { step: last, is_stored: false });
        }
        let norm = graph.nodes().get(first)?;
        let once = readers.iter().filter(|(step, ..)| *step == first).count() == 1;
        let sums = matches!(norm.op, Op::LayerNorm(_) | Op::RmsNorm(_)) && operand == 0;
        // Partial sums and epilogue operands come instead of the matmul, which may have to be stored.
        let buffers = norm.inputs.len() + norm.outputs.len() + node.inputs.len() - 1;
        let fits = match caps.addressing {
            Addressing::Pointers => true,
            Addressing::Bindings { max_count, .. } => buffers <= max_count as usize,
        };
        let is_stored = readers.len() > 1 || is_output;
        let alone = !groups.contains(first);
        (once && sums && in_order && fits && alone).then_some(PartialsReader { step: first, is_stored })
    };
    (0..graph.nodes().len()).map(summing).collect()
}
