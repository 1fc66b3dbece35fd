//! Weights in panels: the filters of a panel contiguous for every index of K, so that a tile reads them in order.
//!
//! ```text
//!   w [groups · filters, k_len] ──▶ [groups][panels][k_len][width]      missing filters are zero
//! ```

use std::borrow::Cow;

use olivine_ir::op::Conv;
use olivine_ir::{DType, Op, TensorType};

use super::real::Real;
use super::tile::EpilogueOp;
use crate::kernel::Packing;
use crate::operand::Operand;
use crate::scratch;

/// Filters per panel for `filters` per group.
pub(crate) fn panel_width(filters: usize) -> usize {
    match filters {
        0..=1 => 1,
        2..=4 => 4,
        5..=8 => 8,
        _ => 16,
    }
}

/// A convolution's weights in panels.
pub(crate) struct Panels<'a, T: Real> {
    data: Cow<'a, [T]>,
    /// Filters per panel.
    pub(crate) width: usize,
    /// Panels per group.
    pub(crate) count: usize,
    k_len: usize,
}

impl<'a, T: Real> Panels<'a, T> {
    /// Weights laid out at load, or laid out now.
    pub(crate) fn new(
        w: &'a [T],
        packed: Option<&'a [T]>,
        groups: usize,
        filters: usize,
        k_len: usize,
    ) -> Self {
        let width = panel_width(filters);
        let count = filters.div_ceil(width);
        let len = groups * count * width * k_len;
        let data = match packed.and_then(|p| p.get(..len)) {
            Some(packed) => Cow::Borrowed(packed),
            // One filter per group is in order as it is.
            None if width == 1 => Cow::Borrowed(w),
            None => {
                let mut data = scratch::zeroed::<T>(len);
                pack(w, groups, filters, k_len, &mut data);
                Cow::Owned(data)
            }
        };
        Panels { data, width, count, k_len }
    }

    /// An op's numbers per filter laid out as the filters of all groups' panels are.
    pub(crate) fn padded(&self, op: EpilogueOp<T>, groups: usize) -> EpilogueOp<T> {
        let EpilogueOp::Affine(scale, shift) = op else { return op };
        let filters = scale.len() / groups.max(1);
        let lay = |from: &[T]| {
            let mut to = scratch::zeroed::<T>(groups * self.count * self.width);
            for (to, from) in to.chunks_mut(self.count * self.width).zip(from.chunks(filters.max(1))) {
                to[..from.len()].copy_from_slice(from);
            }
            to
        };
        EpilogueOp::Affine(lay(&scale), lay(&shift))
    }

    /// The weights of `count` groups of one filter each.
    pub(crate) fn groups(&self, first: usize, count: usize) -> &[T] {
        &self.data[first * self.k_len..][..count * self.k_len]
    }

    /// The weights of one panel of one group: `k_len` rows of `width`.
    pub(crate) fn panel(&self, group: usize, panel: usize) -> &[T] {
        let len = self.k_len * self.width;
        &self.data[(group * self.count + panel) * len..][..len]
    }
}

fn pack<T: Real>(w: &[T], groups: usize, filters: usize, k_len: usize, to: &mut [T]) {
    let width = panel_width(filters);
    let panels = filters.div_ceil(width);
    if k_len == 0 || to.is_empty() {
        return;
    }
    for (i, panel) in to.chunks_exact_mut(width * k_len).enumerate().take(groups * panels) {
        let (group, first) = (i / panels, i % panels * width);
        let seen = width.min(filters - first);
        let rows = &w[(group * filters + first) * k_len..][..seen * k_len];
        for (k, column) in panel.chunks_exact_mut(width).enumerate() {
            column.fill(T::ZERO);
            for (f, to) in column.iter_mut().enumerate().take(seen) {
                *to = rows[f * k_len + k];
            }
        }
    }
}

/// How a convolution wants its weights laid out when they are known at load.
pub(crate) fn packing(op: &Conv, w: &TensorType) -> Option<Packing> {
    let filters = w.shape[0] / op.groups.max(1);
    let width = panel_width(filters);
    if w.dtype != DType::F32 || width == 1 || w.shape.numel() == 0 {
        return None;
    }
    let k_len = w.shape.numel() / w.shape[0];
    Some(Packing {
        layout: format!("convolution panels of {} groups", op.groups),
        bytes: op.groups * filters.div_ceil(width) * width * k_len * size_of::<f32>(),
        pack: |op, w, to| {
            let Op::Conv(op) = op else { return };
            let filters = w.shape()[0] / op.groups;
            let k_len = w.shape().numel() / w.shape()[0];
            pack::<f32>(w.slice(), op.groups, filters, k_len, bytemuck::cast_slice_mut(to));
        },
    })
}

/// The panels of an operand laid out by [`packing`].
pub(crate) fn packed<'a>(w: &Operand<'a>) -> Option<&'a [f32]> {
    w.packed.map(bytemuck::cast_slice)
}
