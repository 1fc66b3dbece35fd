//! Operands one after another along an axis: each is a strided copy into its slab of the target.

use olivine_ir::Dim;
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
    let stride = to.strides.get(op.axis).copied().unwrap_or(Dim::ONE);
    let mut start = Dim::ZERO;
    let mut moves = Vec::with_capacity(operands.len());
    for operand in &operands {
        moves.push(StridedCopy {
            dims: operand.sizes().to_vec(),
            from: CopyLayout {
                memory: operand.memory,
                strides: operand.strides.clone(),
                offset: operand.offset,
            },
            to: CopyLayout { memory: to.memory, strides: to.strides.clone(), offset: start * stride },
            whole: operands.len() == 1,
        });
        start += operand.ty.shape.size(op.axis);
    }
    copy::emit("concat", target.ty.dtype.size(), &moves, site)
}
