//! How much work a step is, to know how many threads a graph is worth and what a run will take.

use olivine_ir::op::{HeadLayout, Region};
use olivine_ir::{DType, Op, TensorType};

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

/// What a step reads, writes and computes.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// The node.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// The type of its first operand.
    pub dtype: DType,
    /// Floating-point operations, about.
    pub flops: u64,
    /// Those of them that are in functions such as exp.
    pub functions: u64,
    /// Bytes that it must read and write at least.
    pub bytes: u64,
    /// Those of them that are weights, constants or made of them.
    pub stored: u64,
    /// Whether it is a convolution whose filters see one channel each.
    pub depthwise: bool,
    /// The steps of the graph inside: of the larger branch, or of an iteration.
    pub inner: Vec<StepCost>,
}

/// Floating-point operations of an operation, about; 0 where it only moves elements.
pub(crate) fn flops(op: &Op, operands: &[TensorType], results: &[TensorType]) -> u64 {
    let numel = |types: &[TensorType]| types.iter().map(|t| t.shape.numel()).fold(0, usize::saturating_add);
    let of = |i: usize| operands.get(i).map(|t| t.shape).unwrap_or_default();
    let last = |i: usize| of(i).last().copied().unwrap_or(1);
    let filter = |i: usize| of(i).numel() / of(i).first().copied().unwrap_or(1).max(1);
    let first = results.first().map_or(0, |t| t.shape.numel());
    let rides = |region: &Option<Region>| region.as_ref().map_or(0, |r| first.saturating_mul(r.flops()));
    let twice = |count: usize| count.saturating_mul(2);
    let flops = match op {
        Op::ScalarOp(op) => first.saturating_mul(op.flops()),
        Op::Fused(fused) => first.saturating_mul(fused.region.flops()),
        Op::MatMul(m) => twice(first.saturating_mul(last(0))).saturating_add(rides(&m.epilogue)),
        Op::GroupedMatMul(_) | Op::QMatMul(_) | Op::DequantMatMul(_) => twice(first.saturating_mul(last(0))),
        Op::Conv(c) => twice(first.saturating_mul(filter(1))).saturating_add(rides(&c.epilogue)),
        Op::QConv(_) => twice(first.saturating_mul(filter(1))),
        Op::ConvTranspose(_) => twice(numel(&operands[..1.min(operands.len())]).saturating_mul(filter(1))),
        // Each query meets all keys, and all values.
        Op::Attention(a) => {
            let axis = if a.layout == HeadLayout::Bshd { 1 } else { 2 };
            twice(twice(of(0).numel()).saturating_mul(of(1).get(axis).copied().unwrap_or(1)))
        }
        Op::Recurrence(_) => {
            // Every step multiplies the state by all of r.
            let steps = first / last(1).max(1);
            twice(of(1).numel().saturating_mul(steps) / of(1).first().copied().unwrap_or(1).max(1))
        }
        Op::Pool(pool) => first.saturating_mul(pool.kernel.iter().product()),
        Op::Softmax(_) | Op::LogSoftmax(_) => first.saturating_mul(24),
        Op::LayerNorm(_) | Op::RmsNorm(_) | Op::GroupNorm(_) => first.saturating_mul(8),
        Op::Reduce(_) | Op::ArgReduce(_) | Op::Cumulative(_) | Op::AdaptivePool(_) => numel(operands),
        Op::Fft(_) => {
            let length = last(0).max(2);
            of(0).numel().max(first).saturating_mul(5 * length.ilog2() as usize)
        }
        Op::Resize(_) | Op::GridSample(_) | Op::RoiAlign(_) => first.saturating_mul(8),
        Op::Sort(_) | Op::ArgSort(_) | Op::TopK(_) => {
            numel(operands).saturating_mul(4 * (last(0).max(2).ilog2() as usize + 1))
        }
        _ => 0,
    };
    flops as u64
}

/// Of [`flops`], those in functions such as exp, of operations that are elementwise.
pub(crate) fn functions(op: &Op, results: &[TensorType]) -> u64 {
    let first = results.first().map_or(0, |t| t.shape.numel());
    let each = match op {
        Op::ScalarOp(op) if op.is_function() => op.flops(),
        Op::Fused(fused) => fused.region.function_flops(),
        _ => 0,
    };
    first.saturating_mul(each) as u64
}
