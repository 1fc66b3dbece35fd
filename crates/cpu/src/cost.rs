//! How much work a step is, to know how many threads a graph is worth.

use olivine_ir::{Op, TensorType};

/// Work that one thread does in about the time that it takes to wake another.
const ALONE: usize = 400_000;

/// Work that keeps another thread busy for long enough.
const SHARE: usize = 1_000_000;

/// Multiply-adds of a matmul that are done in the time of one element of any other kernel.
const ELEMENT: usize = 8;

/// The threads that work is worth.
pub(crate) fn width(work: usize) -> usize {
    if work < ALONE { 1 } else { 2 + work / SHARE }
}

/// The work of an operation, counted in multiply-adds of a matmul; an estimate.
pub(crate) fn work(op: &Op, operands: &[TensorType], results: &[TensorType]) -> usize {
    let numel = |types: &[TensorType]| types.iter().map(|t| t.shape.numel()).fold(0, usize::saturating_add);
    let last = |i: usize| operands.get(i).and_then(|t| t.shape.last().copied()).unwrap_or(1);
    // Numbers that go into one result of a convolution: a filter without its first axis.
    let filter = |i: usize| {
        let shape = operands.get(i).map(|t| t.shape).unwrap_or_default();
        shape.numel() / shape.first().copied().unwrap_or(1).max(1)
    };
    let first = results.first().map_or(0, |t| t.shape.numel());
    let multiply_adds = match op {
        Op::MatMul(_) | Op::GroupedMatMul(_) | Op::QMatMul(_) | Op::DequantMatMul(_) => {
            first.saturating_mul(last(0))
        }
        Op::Conv(_) => first.saturating_mul(filter(1)),
        Op::ConvTranspose(_) => numel(&operands[..1]).saturating_mul(filter(1)),
        Op::Recurrence(_) => first.saturating_mul(last(1)).saturating_mul(4),
        // What these take is not seen from sizes alone.
        Op::Attention(_) | Op::QConv(_) | Op::Loop(_) | Op::Custom(_) => usize::MAX,
        _ => 0,
    };
    // Operands of matmuls are weights mostly; their multiply-adds count for reading them.
    let elements = if multiply_adds == 0 { numel(operands).max(numel(results)) } else { numel(results) };
    multiply_adds.saturating_add(elements.saturating_mul(ELEMENT))
}
