//! Matmuls of one x by packed weights, and the norm that makes x.
//!
//! ```text
//!   norm ── x·Q ── rope        q, k and v wait for x alone, and what reads them comes after the last:
//!        ├─ x·K ── rope        one dispatch, which computes the norm as well if nothing else reads it
//!        └─ x·V ── kv_append
//! ```

use olivine_compile::Compiled;
use olivine_ir::{Def, Op, ValueId};
use olivine_kernels::{Memory, joins_as_gemv};

use super::groups::{Readers, gated_by};
use crate::lower::operand_of;

/// Groups of matmuls of few rows that read one x and do not wait for each other, each after the norm that makes x where the group
/// alone reads it. `last` is the step that lowers a step.
pub(super) fn small_m_matmuls(
    compiled: &Compiled,
    readers: &Readers,
    last: impl Fn(usize) -> usize,
) -> Vec<Vec<usize>> {
    let mut all: Vec<(ValueId, Vec<usize>)> = readers
        .keys()
        .map(|x| (*x, matmuls(compiled, readers, *x)))
        .filter(|(_, of)| !of.is_empty())
        .collect();
    all.sort_by_key(|(_, steps)| steps[0]);
    let mut groups = Vec::new();
    for (x, steps) in all {
        let mut open: Vec<usize> = Vec::new();
        let of_x = groups.len();
        for step in steps {
            let waits = |earlier: &usize| may_wait(compiled, readers, (*earlier, step), &open, &last);
            if !open.iter().all(waits) {
                groups.push(std::mem::take(&mut open));
            }
            open.push(step);
        }
        groups.push(open);
        if let ([group], Some(norm)) = (&mut groups[of_x..], norm_of(compiled, readers, x))
            && readers.get(&x).is_some_and(|all| all.iter().all(|r| group.contains(&r.step)))
        {
            group.insert(0, norm);
        }
    }
    groups
}

/// The steps that multiply x, of few rows, by a packed weight and read it for nothing else.
fn matmuls(compiled: &Compiled, readers: &Readers, x: ValueId) -> Vec<usize> {
    let nodes = compiled.graph.nodes();
    let Some(all) = readers.get(&x) else { return Vec::new() };
    let multiplies = |step: usize| {
        let is_left =
            |id: &ValueId| operand_of(&compiled.graph, *id).is_some_and(|o| o.memory == Memory::Value(x));
        nodes.get(step).is_some_and(|node| {
            matches!(&node.op, Op::DequantMatMul(op) if !op.grouped)
                && !compiled.at_load[step]
                && node.inputs.first().is_some_and(is_left)
        })
    };
    let once = |step: usize| all.iter().filter(|reader| reader.step == step).count() == 1;
    let found = all.iter().filter(|reader| multiplies(reader.step) && once(reader.step));
    found.filter(|reader| joins_as_gemv(&reader.operand)).map(|reader| reader.step).collect()
}

/// Whether an earlier matmul may be computed at a later step together with those of `open`: what reads its result comes after that, or is
/// the matmul that it gates.
fn may_wait(
    compiled: &Compiled,
    readers: &Readers,
    (earlier, step): (usize, usize),
    open: &[usize],
    last: impl Fn(usize) -> usize,
) -> bool {
    let Some(result) = compiled.graph.nodes()[earlier].outputs.first() else { return false };
    let after = |reader: usize| match open.contains(&reader) || reader == step {
        true => gated_by(compiled, readers, earlier) == Some(reader),
        false => last(reader) > step,
    };
    let all = readers.get(result).map(Vec::as_slice).unwrap_or_default();
    all.iter().all(|reader| after(reader.step))
}

/// The norm of rows that makes a value, and nothing else.
fn norm_of(compiled: &Compiled, readers: &Readers, x: ValueId) -> Option<usize> {
    let graph = &compiled.graph;
    let Def::Node { node, .. } = graph.values()[x.index()].def else { return None };
    let (step, node) = (node.index(), graph.nodes().get(node.index())?);
    let is_plain = match &node.op {
        Op::RmsNorm(op) => op.prologue.is_none() && !op.emit_input,
        Op::LayerNorm(op) => op.prologue.is_none() && !op.emit_input,
        _ => false,
    };
    (is_plain && node.outputs.len() == 1 && !compiled.at_load[step] && readers.contains_key(&x))
        .then_some(step)
}
