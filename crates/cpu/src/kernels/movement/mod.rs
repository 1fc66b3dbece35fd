//! Copies: a strided view made packed, tensors joined, tensors padded.
//!
//! Nothing here looks at values, so kernels are chosen by element size alone.

mod pad;
mod strided;

use bytemuck::Pod;
use olivine_ir::op::{Concat, SliceScatter};

use crate::kernel::{Call, kernels};
use crate::kernels::elementwise;
use crate::operand::{Operand, OperandSource, Target, row_major};

pub(crate) use strided::{Dim, copy};

kernels! { |op, x, out, call|
    Concat => concat(op, x, out),
    SliceScatter => slice_scatter(op, x, out, call),
}

/// Runs `$body` with `$t` bound to the unsigned integer of an element size in bytes.
macro_rules! with_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(crate) use with_size;

/// Copies a view out into packed bytes of the same dtype.
pub(crate) fn copy_strided(x: &Operand<'_>, out: &mut [u8]) {
    elementwise::copy(x, &mut Target { ty: x.ty, bytes: out });
}

/// Copies an operand into a box of a row-major tensor whose steps are `to`; the box begins at the first element.
pub(crate) fn copy_box<T: Pod + Send + Sync>(x: &Operand<'_>, to: &[isize; 8], out: &mut [T]) {
    if x.shape().has_zero() {
        return;
    }
    let mut dims = [Dim::default(); 8];
    let rank = x.shape().rank();
    for (i, dim) in dims[..rank].iter_mut().enumerate() {
        *dim = Dim { size: x.shape()[i], from: x.strides[i], to: to[i] as usize };
    }
    copy(x.elements::<T>(), x.offset, &dims[..rank], out);
}

/// Joins operands along an axis; they may be strided.
pub(crate) fn concat(op: &Concat, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    let to = row_major(&target.ty.shape);
    with_size!(target.ty.dtype.size(), T => {
        let elements = target.elements::<T>();
        let mut start = 0;
        for part in x {
            let size = part.shape()[op.axis];
            copy_box::<T>(part, &to, &mut elements[start * to[op.axis] as usize..]);
            start += size;
        }
    });
}

/// Writes the second operand over part of the first, from the call's number on.
pub(crate) fn slice_scatter(op: &SliceScatter, x: &[Operand<'_>], out: &mut [Target<'_>], call: &Call<'_>) {
    let Some(target) = out.first_mut() else { return };
    if let OperandSource::Bytes(_) = x[0].source {
        copy_strided(&x[0], target.bytes);
    }
    if x[1].shape().has_zero() {
        return;
    }
    let to = row_major(&target.ty.shape);
    let start = call.numbers.first().copied().unwrap_or(0) * to[op.axis] as usize;
    with_size!(target.ty.dtype.size(), T => copy_box::<T>(&x[1], &to, &mut target.elements::<T>()[start..]));
}

#[cfg(test)]
mod tests;
