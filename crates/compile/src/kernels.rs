//! What compiled graphs contain: the contract between passes and backends.

use olivine_ir::Op;

/// Whether compiled graphs may contain an operation: every backend has a kernel for each of these, and passes rewrite
/// all others. [`Op::View`] is the one that needs none.
pub fn is_kernel(op: &Op) -> bool {
    matches!(
        op,
        Op::ScalarOp(_)
            | Op::Fused(_)
            | Op::MatMul(_)
            | Op::GroupedMatMul(_)
            | Op::LayerNorm(_)
            | Op::RmsNorm(_)
            | Op::GroupNorm(_)
            | Op::Softmax(_)
            | Op::LogSoftmax(_)
            | Op::Reduce(_)
            | Op::ArgReduce(_)
            | Op::Cumulative(_)
            | Op::TopK(_)
            | Op::Sort(_)
            | Op::ArgSort(_)
            | Op::Attention(_)
            | Op::KvAppend(_)
            | Op::Rope(_)
            | Op::SelectiveScan(_)
            | Op::Mamba2(_)
            | Op::GatedDeltaNet(_)
            | Op::CausalConv1d(_)
            | Op::Recurrence(_)
            | Op::Concat(_)
            | Op::Pad(_)
            | Op::Gather(_)
            | Op::GatherElements(_)
            | Op::GatherNd(_)
            | Op::ScatterElements(_)
            | Op::ScatterNd(_)
            | Op::OneHot(_)
            | Op::Trilu(_)
            | Op::Range(_)
            | Op::NonZero(_)
            | Op::Conv(_)
            | Op::ConvTranspose(_)
            | Op::Im2Col(_)
            | Op::Pool(_)
            | Op::AdaptivePool(_)
            | Op::Resize(_)
            | Op::GridSample(_)
            | Op::RoiAlign(_)
            | Op::Fft(_)
            | Op::RngUniform(_)
            | Op::RngNormal(_)
            | Op::Sample(_)
            | Op::QMatMul(_)
            | Op::QConv(_)
            | Op::If(_)
            | Op::Loop(_)
            | Op::Custom(_)
    )
}

/// Whether kernels read an operand through arbitrary strides; other operands are packed before their node.
pub fn reads_strides(op: &Op, operand: usize) -> bool {
    match op {
        Op::ScalarOp(_) | Op::Fused(_) | Op::MatMul(_) | Op::Concat(_) | Op::Reduce(_) | Op::View(_) => true,
        Op::Attention(a) => operand < 3 || a.optional_operands().0 == Some(operand),
        Op::Rope(_) => operand == 0,
        Op::KvAppend(_) => operand == 1,
        Op::QMatMul(_) => operand < 2,
        _ => false,
    }
}
