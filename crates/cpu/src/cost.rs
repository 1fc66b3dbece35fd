//! How much work a step is, to know how many threads a graph is worth and what a run will take.

use olivine_ir::op::{HeadLayout, Region};
use olivine_ir::{DType, Op, TensorType};

use crate::kernels::conv;

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
pub(crate) fn work<'a, O, R>(op: &Op, operands: O, results: R) -> usize
where
    O: Iterator<Item = &'a TensorType> + Clone,
    R: Iterator<Item = &'a TensorType> + Clone,
{
    let operand = |i: usize| operands.clone().nth(i);
    let read = || operands.clone().map(|t| t.shape.numel()).fold(0, usize::saturating_add);
    let written = || results.clone().map(|t| t.shape.numel()).fold(0, usize::saturating_add);
    let last = |i: usize| operand(i).and_then(|t| t.shape.last().copied()).unwrap_or(1);
    // Numbers that go into one result of a convolution: a filter without its first axis.
    let filter = |i: usize| {
        let shape = operand(i).map(|t| t.shape).unwrap_or_default();
        shape.numel() / shape.first().copied().unwrap_or(1).max(1)
    };
    let first = results.clone().next().map_or(0, |t| t.shape.numel());
    let multiply_adds = match op {
        Op::MatMul(_) | Op::GroupedMatMul(_) | Op::QMatMul(_) | Op::DequantMatMul(_) => {
            first.saturating_mul(last(0))
        }
        Op::Conv(_) => first.saturating_mul(filter(1)),
        Op::ConvTranspose(_) => operand(0).map_or(0, |t| t.shape.numel()).saturating_mul(filter(1)),
        Op::Recurrence(_) => first.saturating_mul(last(1)).saturating_mul(4),
        // What these take is not seen from sizes alone.
        Op::Attention(_) | Op::QConv(_) | Op::Loop(_) | Op::Custom(_) => usize::MAX,
        _ => 0,
    };
    // Operands of matmuls are weights mostly; their multiply-adds count for reading them.
    let elements = if multiply_adds == 0 { read().max(written()) } else { written() };
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
    /// These with those of vector lanes that hold no result: what the step takes the time of.
    pub executed: u64,
    /// Those of them that are in functions such as exp.
    pub functions: u64,
    /// Bytes that it must read and write at least.
    pub bytes: u64,
    /// Those of them that are weights, constants or made of them.
    pub stored: u64,
    /// Bytes of weights that are laid out for the kernel in every run, because nobody knows them when the model is loaded.
    pub repacked: u64,
    /// Of a convolution, which kind.
    pub conv: Option<ConvKind>,
    /// The steps of the graph inside: of the larger branch, or of an iteration.
    pub inner: Vec<StepCost>,
    /// How often the steps inside run.
    pub iterations: u64,
}

/// Convolutions that run at the same rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvKind {
    /// Filters see one channel each.
    Depthwise,
    /// Filters see one position.
    Pointwise,
    /// Filters see so few channels that vectors and tiles along them stay empty: mostly a model's first.
    FewChannels,
    /// All others.
    Other,
}

impl ConvKind {
    /// Channels up to which they are few.
    const FEW: usize = 4;

    pub(crate) fn of(op: &Op, operands: &[TensorType]) -> Option<Self> {
        let (Op::Conv(conv), Some(filters)) = (op, operands.get(1)) else { return None };
        let (channels, window) = filters.shape.get(1..).and_then(|sizes| sizes.split_first())?;
        Some(match *channels {
            1 if conv.groups > 1 => ConvKind::Depthwise,
            _ if window.iter().all(|size| *size == 1) => ConvKind::Pointwise,
            1..=ConvKind::FEW => ConvKind::FewChannels,
            _ => ConvKind::Other,
        })
    }
}

/// Iterations that a loop is taken to make whose number is neither known when it is compiled nor bounded.
pub const UNKNOWN_ITERATIONS: usize = 16;

/// Iterations that a loop is taken to make: those asked for where they are known, at most those that are allowed; as many as
/// are allowed where they are not.
pub(crate) fn iterations(asked: Option<i64>, allowed: Option<usize>) -> u64 {
    // A loop with a condition is asked to run forever.
    let asked = asked.filter(|asked| *asked < i64::MAX);
    let asked = asked.map(|asked| usize::try_from(asked.max(0)).unwrap_or(usize::MAX));
    let count = match (asked, allowed) {
        (Some(asked), Some(allowed)) => asked.min(allowed),
        (None, None) => UNKNOWN_ITERATIONS,
        (Some(count), None) | (None, Some(count)) => count,
    };
    count as u64
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

/// [`flops`] with those of lanes that hold no result, where the kernel has such.
pub(crate) fn executed(op: &Op, operands: &[TensorType], flops: u64) -> u64 {
    let multiply_adds = match (op, operands) {
        (Op::Conv(op), [x, w, ..]) => conv::executed(op, x, w),
        _ => None,
    };
    multiply_adds.map_or(flops, |count| flops.max(2 * count as u64))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_count_the_iterations_that_are_known_or_allowed() {
        assert_eq!(iterations(Some(5), None), 5);
        assert_eq!(iterations(Some(5), Some(3)), 3);
        assert_eq!(iterations(Some(i64::MAX), Some(7)), 7);
        assert_eq!(iterations(None, Some(7)), 7);
        assert_eq!(iterations(Some(-2), None), 0);
        for unknown in [iterations(None, None), iterations(Some(i64::MAX), None)] {
            assert_eq!(unknown, UNKNOWN_ITERATIONS as u64);
        }
    }

    #[test]
    fn convolutions_have_the_kind_that_their_filters_say() {
        use olivine_ir::op::{Conv, Window};
        let kind = |filters: &[usize], groups: usize| {
            let op = Op::Conv(Conv { window: Window::unit(2), groups, bias: false, epilogue: None });
            let shape = olivine_ir::Shape::new(filters).ok()?;
            ConvKind::of(&op, &[TensorType::new(DType::F32, shape); 2])
        };
        assert_eq!(kind(&[32, 1, 3, 3], 32), Some(ConvKind::Depthwise));
        assert_eq!(kind(&[64, 32, 1, 1], 1), Some(ConvKind::Pointwise));
        assert_eq!(kind(&[16, 3, 3, 3], 1), Some(ConvKind::FewChannels));
        assert_eq!(kind(&[16, 16, 3, 3], 1), Some(ConvKind::Other));
    }

    #[test]
    fn short_convolutions_count_the_lanes_that_hold_no_result() {
        use olivine_ir::op::{Conv, Window};
        let ty = |dims: &[usize]| olivine_ir::Shape::new(dims).map(|s| TensorType::new(DType::F32, s));
        let op = Conv { window: Window::unit(1), groups: 1, bias: false, epilogue: None };
        let count = |length: usize| {
            let (Ok(x), Ok(w)) = (ty(&[1, 64, length + 2]), ty(&[64, 64, 3])) else { return 0.0 };
            let results = 64 * length;
            conv::executed(&op, &x, &w).map_or(0.0, |all| all as f64 / (results * 64 * 3) as f64)
        };
        assert!(count(1) > 1.2 && count(1) > count(4) && count(4) > count(4096), "{} {}", count(1), count(4));
        assert!(count(4096) < 1.1, "{}", count(4096));
    }
}
