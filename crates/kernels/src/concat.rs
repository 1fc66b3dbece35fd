//! Operands one after another along an axis: each is a strided copy into its slab of the target.

use olivine_ir::op::Concat;

use super::copy::{self, CopyLayout, StridedCopy};
use crate::kernels;
use crate::site::Site;

kernels! { |op, site|
    Concat => concat(op, site),
}

/// Lowers a concatenation.
pub(crate) fn concat(op: &Concat, site: &mut Site<'_>) -> Result<(), String> {
    let (operands, target) = (site.operands.clone(), site.targets[0].clone());
    let to = target.as_operand();
    let stride = to.strides.get(op.axis).copied().unwrap_or(1) as usize;
    let mut start = 0;
    let mut moves = Vec::with_capacity(operands.len());
    for operand in &operands {
        moves.push(StridedCopy {
            dims: operand.dims().to_vec(),
            from: CopyLayout {
                memory: operand.memory,
                strides: operand.strides.clone(),
                offset: operand.offset,
            },
            to: CopyLayout { memory: to.memory, strides: to.strides.clone(), offset: start * stride },
            whole: operand.ty.shape == target.ty.shape,
        });
        start += operand.dims().get(op.axis).copied().unwrap_or(0);
    }
    copy::emit("concat", target.ty.dtype.size(), &moves, site)
}
