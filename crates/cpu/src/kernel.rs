//! The kernel of a node: its operation with everything prepared that does not change between runs.

use std::sync::OnceLock;

use olivine_ir::op::Region;
use olivine_ir::size::Bindings;
use olivine_ir::{DType, Dim, Op, Shape, TensorType, for_each_executor_op, for_each_kernel};

use crate::Error;
use crate::control::{Branches, Repeated};
use crate::cost::StepCost;
use crate::custom;
use crate::kernels::elementwise::Program;
use crate::kernels::{contraction, conv, fft, integer};
use crate::operand::{Failure, Operand, Target};

/// How an operation runs on the CPU: every operation with a kernel implements it, by [`kernels!`] beside its function.
pub(crate) trait Run {
    /// Computes the results. Operands and results have the types that the operation's rule gives.
    fn run(&self, call: &Call<'_>, x: &[Operand<'_>], out: &mut [Target<'_>]) -> Result<(), Failure>;
}

/// What a kernel may need beside its operands and results.
pub(crate) struct Call<'a> {
    /// What was prepared.
    pub(crate) kernel: &'a Kernel,
    /// Whether indices out of range are errors.
    pub(crate) checked: bool,
    /// The operation's attributes that may be expressions of open sizes, for the sizes of this run.
    pub(crate) numbers: &'a [usize],
    /// What is worked out for the sizes of this run.
    pub(crate) plans: &'a SizePlans,
    /// The node's name, for errors.
    pub(crate) node: &'a str,
}

impl<'a> Call<'a> {
    /// The elementwise program of an operation, a fused region, an epilogue or a prologue.
    pub(crate) fn program(&self) -> Option<&'a Program> {
        self.kernel.program.as_ref()
    }
}

/// The attributes of an operation that may be expressions and that its kernel reads; others follow from the shapes.
pub(crate) fn attribute_sizes(op: &Op) -> Vec<Dim> {
    match op {
        Op::SliceScatter(op) => vec![op.start],
        Op::Pad(op) => op.pads.iter().flat_map(|(before, _)| added_and_cut(*before)).collect(),
        _ => Vec::new(),
    }
}

/// What a pad before an axis adds and what it cuts.
fn added_and_cut(before: Dim) -> [Dim; 2] {
    // No axis is longer than the largest number, whose negative exists.
    [before.max(0), -before.clamp(-i64::MAX, 0)]
}

/// Implements [`Run`]: `kernels! { |op, x, out, call| Softmax => softmax(op, x, out), }`, where an expression may end
/// in `?`.
macro_rules! kernels {
    (|$op:ident, $x:ident, $out:ident, $call:ident| $($name:ident => $run:expr),* $(,)?) => {$(
        impl $crate::kernel::Run for olivine_ir::op::$name {
            #[allow(unused_variables, reason = "not every kernel needs all")]
            fn run(
                &self,
                $call: &$crate::kernel::Call<'_>,
                $x: &[$crate::operand::Operand<'_>],
                $out: &mut [$crate::operand::Target<'_>],
            ) -> Result<(), $crate::operand::Failure> {
                let $op = self;
                $run;
                Ok(())
            }
        }
    )*};
}
pub(crate) use kernels;

/// What a kernel works out for the sizes of its operands, at the first run with them.
#[derive(Default)]
pub(crate) struct SizePlans {
    /// The plan of a Fourier transform.
    pub(crate) fft: OnceLock<fft::Plan>,
    /// How a convolution is cut up.
    pub(crate) conv: OnceLock<conv::plan::Plan>,
}

/// A prepared operation, for operands of any sizes.
pub(crate) struct Kernel {
    op: Op,
    /// See [`Call::program`].
    program: Option<Program>,
    /// The graphs of a branch or a loop.
    inner: Inner,
    /// Whether a matmul's rows become their softmax.
    pub(crate) softmax: bool,
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
        if !op.is_compiled() || matches!(op, Op::View(_)) {
            return Err("the compiler should have rewritten it into other operations".into());
        }
        // A fused region sees the main result first, then the operands after the operation's own.
        let fused = |region: &Region, own: usize| {
            let inputs: Vec<DType> = operands[..1].iter().chain(operands.iter().skip(own)).copied().collect();
            Program::new(region, &inputs)
        };
        let program = match op {
            Op::ScalarOp(op) => Some(Program::single(*op, operands)),
            Op::Fused(fused) => Some(Program::new(&fused.region, operands)),
            Op::MatMul(m) => m.epilogue.as_ref().map(|r| fused(r, 2)),
            Op::DequantMatMul(m) => m.epilogue.as_ref().map(|r| fused(r, m.first_extra())),
            Op::LayerNorm(n) => n.prologue.as_ref().map(|r| fused(r, 2 + usize::from(n.bias))),
            Op::RmsNorm(n) => n.prologue.as_ref().map(|r| fused(r, 2 + usize::from(n.bias))),
            Op::Conv(c) => c.epilogue.as_ref().map(|r| fused(r, 2 + usize::from(c.bias))),
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
        Ok(Kernel { op: op.clone(), program, inner, softmax: false })
    }

    /// The same for other values of the open sizes, where graphs inside have such.
    pub(crate) fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Self>, Error> {
        let inner = match &self.inner {
            Inner::None => None,
            Inner::Branches(branches) => branches.for_sizes(sizes)?.map(|b| Inner::Branches(Box::new(b))),
            Inner::Repeated(repeated) => repeated.for_sizes(sizes)?.map(|r| Inner::Repeated(Box::new(r))),
        };
        Ok(inner.map(|inner| Kernel { op: self.op.clone(), program: None, inner, softmax: false }))
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

    /// Has a matmul compute the softmax over its rows as well, if that is faster for a result of this type.
    pub(crate) fn join_softmax(&mut self, dtype: DType, result: &Shape) -> bool {
        self.softmax = matches!(self.op, Op::MatMul(_)) && contraction::suits_softmax(dtype, result);
        self.softmax
    }

    /// Whether it works something out for its sizes.
    pub(crate) fn has_size_plans(&self) -> bool {
        matches!(self.op, Op::Fft(_) | Op::Conv(_))
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

    /// What the steps of the graph inside do: of the larger branch, or of an iteration.
    pub(crate) fn inner_costs(&self) -> Vec<StepCost> {
        match &self.inner {
            Inner::None => Vec::new(),
            Inner::Branches(branches) => branches.costs(),
            Inner::Repeated(repeated) => repeated.costs(),
        }
    }

    /// How often the graph inside runs, where `asked` is the number that a loop is given, if that is known.
    pub(crate) fn inner_iterations(&self, asked: Option<i64>) -> u64 {
        match &self.inner {
            Inner::None | Inner::Branches(_) => 1,
            Inner::Repeated(repeated) => repeated.iterations(asked),
        }
    }

    /// Computes the results; only index operations in checked mode, inner graphs with such and users' functions can
    /// fail. `node` is the kernel's, for errors.
    pub(crate) fn run(
        &self,
        x: &[Operand<'_>],
        out: &mut [Target<'_>],
        (numbers, plans): (&[usize], &SizePlans),
        checked: bool,
        node: &str,
    ) -> Result<(), Failure> {
        let call = Call { kernel: self, checked, numbers, plans, node };
        macro_rules! run {
            ($($name:ident,)*) => {
                match &self.op {
                    $(Op::$name(op) => return op.run(&call, x, out),)*
                    _ => {}
                }
            };
        }
        for_each_kernel!(run);
        for_each_executor_op!(run);
        // `prepare` refuses all others; without a kernel nothing would be written.
        Err(self.unsupported(node).into())
    }

    /// The graphs of an `if`.
    pub(crate) fn branches(&self, node: &str) -> Result<&Branches, Error> {
        if let Inner::Branches(branches) = &self.inner { Ok(branches) } else { Err(self.unsupported(node)) }
    }

    /// The graph of a loop.
    pub(crate) fn repeated(&self, node: &str) -> Result<&Repeated, Error> {
        if let Inner::Repeated(repeated) = &self.inner { Ok(repeated) } else { Err(self.unsupported(node)) }
    }

    fn unsupported(&self, node: &str) -> Error {
        let problem = "there is no kernel for it".to_string();
        Error::Unsupported { op: self.op.name(), node: node.to_string(), problem }
    }
}

#[cfg(test)]
mod tests {
    use olivine_ir::op::Reshape;

    use super::*;

    #[test]
    fn an_operation_without_a_kernel_is_an_error_and_not_an_unwritten_result() {
        let op = Op::Reshape(Reshape { dims: vec![4.into()] });
        assert!(Kernel::prepare(&op, &[DType::F32], false).is_err());
        // As if the list of kernels named it while no arm of `run` computes it.
        let kernel = Kernel { op, program: None, inner: Inner::None, softmax: false };
        let ran = kernel.run(&[], &mut [], (&[], &SizePlans::default()), false, "n");
        let Err(Failure::Other(error)) = ran else { panic!("it ran") };
        assert_eq!(error.to_string(), "cannot run reshape `n` on the CPU: there is no kernel for it");
    }
}
