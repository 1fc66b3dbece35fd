//! Windows as columns.

use olivine_ir::op::Im2Col;

use super::geometry::Geometry;
use super::{SMALL, patches};
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;

kernels! { |op, x, out, call|
    Im2Col => im2col(op, x, out),
}

/// The windows of x as columns.
pub(crate) fn im2col(op: &Im2Col, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype.size() {
        1 => columns::<u8>(op, &x[0], &mut out[0]),
        2 => columns::<u16>(op, &x[0], &mut out[0]),
        4 => columns::<u32>(op, &x[0], &mut out[0]),
        _ => columns::<u64>(op, &x[0], &mut out[0]),
    }
}

fn columns<T: bytemuck::Pod + Send + Sync>(op: &Im2Col, x: &Operand<'_>, out: &mut Target<'_>) {
    let (shape, windows) = (x.shape(), out.shape()[2]);
    let out = out.elements::<T>();
    if out.is_empty() {
        return;
    }
    let counts: Vec<usize> = (2..shape.rank())
        .map(|i| op.window.count(i - 2, shape[i], op.kernel[i - 2], false).unwrap_or_default())
        .collect();
    let geometry = Geometry::new(&op.window, &shape[2..], &op.kernel, &counts);
    let (kernel, plane, x) = (geometry.kernel_len(), geometry.input_len(), x.slice::<T>());
    parallel::grouped(out, windows, SMALL.div_ceil(windows), &|row, out| {
        let source = &x[row / kernel * plane..][..plane];
        patches::patch_row(&geometry, source, row % kernel, 0, out);
    });
}
