//! A tensor written over part of another: a copy of the whole, which is left out where both are the same bytes, and a
//! strided copy into its place.

use olivine_ir::Dim;
use olivine_ir::op::SliceScatter;

use super::copy::{self, CopyLayout, StridedCopy};
use super::elementwise::whole_copy;
use crate::kernels;
use crate::site::Site;

kernels! { |op, site|
    SliceScatter => slice_scatter(op, site),
}

/// Lowers the copies.
pub(crate) fn slice_scatter(op: &SliceScatter, site: &mut Site<'_>) -> Result<(), String> {
    let ([x, part], [target]) = (&site.operands[..], &site.targets[..]) else {
        return Err("needs a tensor and a part".into());
    };
    let (x, part, target) = (x.clone(), part.clone(), target.clone());
    whole_copy(&x, &target, site)?;
    let to = target.as_operand();
    let stride = to.strides.get(op.axis).copied().unwrap_or(Dim::ONE);
    let part = StridedCopy {
        dims: part.sizes().to_vec(),
        from: CopyLayout { memory: part.memory, strides: part.strides.clone(), offset: part.offset },
        to: CopyLayout { memory: to.memory, strides: to.strides, offset: op.start * stride },
        whole: false,
    };
    copy::emit("slice_scatter", target.ty.dtype.size(), &[part], site)
}
