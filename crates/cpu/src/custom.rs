//! Operations of the user's own, computed by a function of theirs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use olivine_ir::attr::Attrs;
use olivine_ir::op::Custom;
use olivine_ir::{DType, Element, Error as GraphError, TensorType, TensorView};

use crate::Error;
use crate::control::view;
use crate::kernel::kernels;
use crate::operand::{Operand, Target};

kernels! { |op, x, out, call|
    Custom => run(op, x, out, call.node)?,
}

/// What computes a custom operation on the CPU: attributes and operands in, results out.
type Compute = dyn Fn(&Attrs, &[TensorView<'_>], &mut [ResultMut<'_>]) -> Result<(), String> + Send + Sync;

/// The part of a [`CustomOp`](olivine_ir::op::CustomOp) that this crate looks for.
///
/// The function fills every result; an error of it, or a panic, is the run's error. It may be called from several
/// threads at once, and must give the same results for the same operands: equal uses are computed once.
pub struct CpuFunction(Box<Compute>);

impl CpuFunction {
    /// Wraps a function.
    pub fn new(
        compute: impl Fn(&Attrs, &[TensorView<'_>], &mut [ResultMut<'_>]) -> Result<(), String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        CpuFunction(Box::new(compute))
    }
}

/// A result to fill: packed, row-major; zeros at first.
pub struct ResultMut<'a> {
    ty: TensorType,
    bytes: &'a mut [u8],
}

impl ResultMut<'_> {
    /// Its type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The elements for writing; those of a bool result as `u8`, of which every number but 0 counts as true.
    pub fn as_mut_slice<T: Element + bytemuck::Pod>(&mut self) -> Result<&mut [T], GraphError> {
        let held = if self.ty.dtype == DType::Bool { DType::U8 } else { self.ty.dtype };
        if T::DTYPE != held {
            return Err(GraphError::WrongElement { expected: self.ty.dtype, got: T::DTYPE });
        }
        if self.bytes.is_empty() {
            return Ok(&mut []);
        }
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|e| GraphError::BadData { problem: e.to_string() })
    }
}

/// Runs the user's function; `node` is for the error.
pub(crate) fn run(
    custom: &Custom,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    node: &str,
) -> Result<(), Error> {
    let fail = |problem: String| Error::Custom { name: custom.op.name().into(), node: node.into(), problem };
    let function = custom.op.part::<CpuFunction>().ok_or_else(|| fail(NO_FUNCTION.into()))?;
    let views = x.iter().map(view).collect::<Result<Vec<_>, _>>()?;
    let mut results: Vec<ResultMut<'_>> = out
        .iter_mut()
        .map(|t| {
            t.bytes.fill(0);
            ResultMut { ty: t.ty, bytes: t.bytes }
        })
        .collect();
    let done = catch_unwind(AssertUnwindSafe(|| (function.0)(&custom.attrs, &views, &mut results)));
    match done {
        Ok(outcome) => outcome.map_err(&fail)?,
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            return Err(fail(format!("it panicked: {}", text.unwrap_or_else(|| "no message".into()))));
        }
    }
    for target in out.iter_mut().filter(|t| t.ty.dtype == DType::Bool) {
        target.bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(())
}

/// Why a custom operation cannot run here.
pub(crate) const NO_FUNCTION: &str = "it has no function for the CPU";
