//! The kernel of a node: its operation with everything prepared that does not change between runs.

use std::sync::OnceLock;

use olivine_compile::is_kernel;
use olivine_ir::op::Region;
use olivine_ir::{DType, Op, TensorType};

use crate::Error;
use crate::control::{Branches, Repeated};
use crate::custom;
use crate::kernels::elementwise::Program;
use crate::kernels::{
    attention, contraction, conv, create, elementwise, fft, index, integer, interpolate, movement, pool,
    random, recurrent, reduce, resize, rope, rows, sample, scan, state_space,
};
use crate::operand::{Failure, Operand, Target};

/// A prepared operation.
pub(crate) struct Kernel {
    op: Op,
    /// The elementwise program of an operation, a fused region, an epilogue or a prologue.
    program: Option<Program>,
    /// The tables of a Fourier transform, made at the first run.
    fft: OnceLock<fft::Tables>,
    /// How a convolution is cut up, found at the first run.
    conv: OnceLock<conv::plan::Plan>,
    /// The graphs of a branch or a loop.
    inner: Inner,
    /// Whether a product's rows become their softmax.
    softmax: bool,
}

/// How a kernel wants an operand laid out that stays the same from run to run.
///
/// A layout may not depend on the instruction set in use, which tests change between loading and running, nor on the
/// operands' other sizes, so that a model's executables for several shapes share it.
pub(crate) struct Packing {
    /// Names the layout: operands packed by one name and one type are the same bytes.
    pub(crate) layout: String,
    /// Its size.
    pub(crate) bytes: usize,
    /// Lays an operand out.
    pub(crate) pack: fn(&Op, &Operand<'_>, &mut [u8]),
}

/// What an operation with graphs inside runs.
enum Inner {
    None,
    Branches(Box<Branches>),
    Repeated(Box<Repeated>),
}

impl Kernel {
    /// Chooses the kernel of an operation that the compiler leaves in a graph; others are refused.
    pub(crate) fn prepare(op: &Op, operands: &[DType], checked: bool) -> Result<Self, String> {
        if !is_kernel(op) {
            return Err("the compiler should have rewritten it into other operations".into());
        }
        // A riding region sees the main result first, then the operands after the operation's own.
        let riding = |region: &Region, own: usize| {
            let inputs: Vec<DType> = operands[..1].iter().chain(operands.iter().skip(own)).copied().collect();
            Program::new(region, &inputs)
        };
        let program = match op {
            Op::ScalarOp(op) => Some(Program::single(*op, operands)),
            Op::Fused(fused) => Some(Program::new(&fused.region, operands)),
            Op::MatMul(m) => m.epilogue.as_ref().map(|r| riding(r, 2)),
            Op::LayerNorm(n) => n.prologue.as_ref().map(|r| riding(r, 2 + usize::from(n.bias))),
            Op::RmsNorm(n) => n.prologue.as_ref().map(|r| riding(r, 2 + usize::from(n.bias))),
            Op::Conv(c) => c.epilogue.as_ref().map(|r| riding(r, 2 + usize::from(c.bias))),
            _ => None,
        };
        let inner = match op {
            Op::If(op) => Inner::Branches(Box::new(Branches::new(op, checked)?)),
            Op::Loop(op) => Inner::Repeated(Box::new(Repeated::new(op, checked)?)),
            Op::Custom(op) if op.op.part::<custom::CpuFunction>().is_none() => {
                return Err(format!("custom operation `{}`: {}", op.op.name(), custom::NO_FUNCTION));
            }
            _ => Inner::None,
        };
        Ok(Kernel {
            op: op.clone(),
            program,
            fft: OnceLock::new(),
            conv: OnceLock::new(),
            inner,
            softmax: false,
        })
    }

    /// The operation's name.
    pub(crate) fn name(&self) -> &'static str {
        self.op.name()
    }

    /// How operand `i` of given types is laid out while a model is loaded, if it is then known; `None` to read it as
    /// it is.
    pub(crate) fn packing(&self, i: usize, operands: &[TensorType]) -> Option<Packing> {
        match &self.op {
            Op::QMatMul(_) if i == 1 => Some(integer::panels_packing(&operands[1])),
            Op::QConv(_) if i == 1 => Some(integer::filters_packing(&operands[1])),
            Op::Conv(op) if i == 1 => conv::packing(op, &operands[1]),
            _ => None,
        }
    }

    /// Takes a softmax over a product's rows on, if the product of this type is better made with it.
    pub(crate) fn join_softmax(&mut self, product: &TensorType) -> bool {
        self.softmax = matches!(self.op, Op::MatMul(_)) && contraction::suits_softmax(product);
        self.softmax
    }

    /// The operation.
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// The work of a run of the graph inside.
    pub(crate) fn inner_work(&self) -> usize {
        match &self.inner {
            Inner::Branches(branches) => branches.work(),
            Inner::None | Inner::Repeated(_) => 0,
        }
    }

    /// Computes the results; only index operations in checked mode, inner graphs with such and users' functions can
    /// fail. `node` is the kernel's, for errors.
    pub(crate) fn run(
        &self,
        x: &[Operand<'_>],
        out: &mut [Target<'_>],
        checked: bool,
        node: &str,
    ) -> Result<(), Failure> {
        match &self.inner {
            Inner::Branches(branches) => return Ok(branches.run(x, out)?),
            Inner::Repeated(repeated) => return Ok(repeated.run(x, out)?),
            Inner::None => {}
        }
        let program = self.program.as_ref();
        match &self.op {
            Op::ScalarOp(_) | Op::Fused(_) => program.into_iter().for_each(|p| elementwise::fused(p, x, out)),
            Op::MatMul(_) if self.softmax => contraction::matmul_softmax(program, x, &mut out[0]),
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
            Op::SelectiveScan(op) => state_space::selective_scan(op, x, out),
            Op::Mamba2(op) => state_space::mamba2(op, x, out),
            Op::GatedDeltaNet(op) => state_space::gated_delta_net(op, x, out),
            Op::CausalConv1d(op) => state_space::causal_conv1d(op, x, out),
            Op::Recurrence(op) => recurrent::recurrence(op, x, out),
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
            Op::Conv(op) => conv::conv(op, program, &self.conv, x, out),
            Op::ConvTranspose(op) => conv::conv_transpose(op, x, out),
            Op::Im2Col(op) => conv::im2col(op, x, out),
            Op::Pool(op) => pool::pool(op, x, out),
            Op::AdaptivePool(op) => pool::adaptive_pool(op, x, out),
            Op::Resize(op) => resize::resize(op, x, out),
            Op::GridSample(op) => interpolate::grid_sample(op, x, out),
            Op::RoiAlign(op) => interpolate::roi_align(op, x, out, checked)?,
            Op::Fft(op) => {
                let tables = self.fft.get_or_init(|| fft::Tables::new(op, &x[0].ty.shape, x[0].ty.dtype));
                fft::fft(op, tables, x, out);
            }
            Op::RngUniform(op) => random::uniform(op, x, out),
            Op::RngNormal(op) => random::normal(op, x, out),
            Op::Sample(op) => sample::sample(op, x, out),
            Op::QMatMul(op) => integer::qmatmul(op, x, out),
            Op::QConv(op) => integer::qconv(op, x, out),
            Op::Custom(op) => custom::run(op, x, out, node)?,
            // Listed one by one, so that a new operation does not compile before it has a kernel or a place here.
            // `prepare` gives branches and loops their graphs and refuses the others; without a kernel nothing would be
            // written.
            Op::If(_)
            | Op::Loop(_)
            | Op::DotGeneral(_)
            | Op::Einsum(_)
            | Op::LoraMatMul(_)
            | Op::InstanceNorm(_)
            | Op::BatchNorm(_)
            | Op::LayerNorm2d(_)
            | Op::AdaLayerNorm(_)
            | Op::L2Norm(_)
            | Op::Recurrent(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::View(_)
            | Op::DepthToSpace(_)
            | Op::SpaceToDepth(_)
            | Op::Unfold(_)
            | Op::Split(_)
            | Op::Stack(_)
            | Op::Tile(_)
            | Op::Repeat(_)
            | Op::Reverse(_)
            | Op::Roll(_)
            | Op::Fill(_)
            | Op::GlobalPool(_)
            | Op::Dft(_)
            | Op::Stft(_)
            | Op::MelFilterBank(_)
            | Op::LogMel(_)
            | Op::Penalties(_)
            | Op::QuantizeLinear(_)
            | Op::DequantizeLinear(_)
            | Op::Scan(_) => {
                let problem = "there is no kernel for it".to_string();
                return Err(Error::Unsupported { op: self.op.name(), node: node.to_string(), problem }.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use olivine_ir::op::Reshape;

    use super::*;

    #[test]
    fn an_operation_without_a_kernel_is_an_error_and_not_an_unwritten_result() {
        let op = Op::Reshape(Reshape { dims: vec![4] });
        assert!(Kernel::prepare(&op, &[DType::F32], false).is_err());
        // As if the list of kernels named it while no arm of `run` computes it.
        let (fft, conv) = (OnceLock::new(), OnceLock::new());
        let kernel = Kernel { op, program: None, fft, conv, inner: Inner::None, softmax: false };
        let Err(Failure::Other(error)) = kernel.run(&[], &mut [], false, "n") else { panic!("it ran") };
        assert_eq!(error.to_string(), "cannot run reshape `n` on the CPU: there is no kernel for it");
    }
}
