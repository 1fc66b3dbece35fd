//! The kernel of a node: its operation with everything prepared that does not change between runs.

use olivine_compile::is_kernel;
use olivine_ir::op::Region;
use olivine_ir::{DType, Op};

use crate::kernels::elementwise::Program;
use crate::kernels::{
    attention, contraction, conv, create, elementwise, index, movement, pool, reduce, resize, rope, rows,
    scan,
};
use crate::operand::{Fault, Operand, Target};

/// A prepared operation.
pub(crate) struct Kernel {
    op: Op,
    /// The elementwise program of a fused region, an epilogue or a prologue.
    program: Option<Program>,
}

impl Kernel {
    /// Chooses the kernel of an operation that the compiler leaves in a graph; others are refused.
    pub(crate) fn prepare(op: &Op, operands: &[DType]) -> Result<Self, String> {
        if !is_kernel(op) {
            return Err("the compiler should have rewritten it into other operations".into());
        }
        // A riding region sees the main result first, then the operands after the operation's own.
        let riding = |region: &Region, own: usize| {
            let inputs: Vec<DType> = operands[..1].iter().chain(operands.iter().skip(own)).copied().collect();
            Program::new(region, &inputs)
        };
        let program = match op {
            Op::Fused(fused) => Some(Program::new(&fused.region, operands)),
            Op::MatMul(m) => m.epilogue.as_ref().map(|r| riding(r, 2)),
            Op::LayerNorm(n) => n.prologue.as_ref().map(|r| riding(r, 2 + usize::from(n.bias))),
            Op::RmsNorm(n) => n.prologue.as_ref().map(|r| riding(r, 2 + usize::from(n.bias))),
            Op::Conv(c) => c.epilogue.as_ref().map(|r| riding(r, 2 + usize::from(c.bias))),
            _ => None,
        };
        Ok(Kernel { op: op.clone(), program })
    }

    /// The operation's name.
    pub(crate) fn name(&self) -> &'static str {
        self.op.name()
    }

    /// Computes the results; only index operations in checked mode can fail.
    pub(crate) fn run(&self, x: &[Operand<'_>], out: &mut [Target<'_>], checked: bool) -> Result<(), Fault> {
        let program = self.program.as_ref();
        match &self.op {
            Op::ScalarOp(op) => elementwise::scalar_op(op, x, out),
            Op::Fused(_) => program.into_iter().for_each(|p| elementwise::fused(p, x, out)),
            Op::MatMul(_) => contraction::matmul(program, x, &mut out[0]),
            Op::GroupedMatMul(_) => contraction::grouped_matmul(x, out, checked)?,
            Op::LayerNorm(op) => rows::layer_norm(op, program, x, out),
            Op::RmsNorm(op) => rows::rms_norm(op, program, x, out),
            Op::GroupNorm(op) => rows::group_norm(op, x, out),
            Op::Softmax(op) => rows::softmax(op, x, out),
            Op::LogSoftmax(op) => rows::log_softmax(op, x, out),
            Op::Reduce(op) => reduce::reduce(op, x, out),
            Op::ArgReduce(op) => scan::arg_reduce(op, x, out),
            Op::Cumulative(op) => scan::cumulative(op, x, out),
            Op::TopK(op) => scan::top_k(op, x, out),
            Op::Sort(op) => scan::sort(op, x, out),
            Op::ArgSort(op) => scan::argsort(op, x, out),
            Op::Attention(op) => attention::attention(op, x, out),
            Op::KvAppend(op) => attention::kv_append(op, x, out),
            Op::Rope(op) => rope::rope(op, x, out),
            Op::Concat(op) => movement::concat(op, x, out),
            Op::Pad(op) => movement::pad(op, x, out),
            Op::Gather(op) => index::gather(op, x, out, checked)?,
            Op::GatherElements(op) => index::gather_elements(op, x, out, checked)?,
            Op::GatherNd(op) => index::gather_nd(op, x, out, checked)?,
            Op::ScatterElements(op) => index::scatter_elements(op, x, out, checked)?,
            Op::ScatterNd(op) => index::scatter_nd(op, x, out, checked)?,
            Op::OneHot(op) => create::one_hot(op, x, out),
            Op::Trilu(op) => create::trilu(op, x, out),
            Op::Range(op) => create::range(op, x, out),
            Op::NonZero(op) => create::nonzero(op, x, out),
            Op::Conv(op) => conv::conv(op, program, x, out),
            Op::ConvTranspose(op) => conv::conv_transpose(op, x, out),
            Op::Im2Col(op) => conv::im2col(op, x, out),
            Op::Pool(op) => pool::pool(op, x, out),
            Op::AdaptivePool(op) => pool::adaptive_pool(op, x, out),
            Op::Resize(op) => resize::resize(op, x, out),
            // `prepare` refuses every other operation.
            _ => {}
        }
        Ok(())
    }
}
