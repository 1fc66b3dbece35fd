//! q, k and v as rows with any steps, read four elements at a time.

use olivine_ir::Dim;
use olivine_ir::op::HeadLayout;
use olivine_kernel::{Buf, Elem, Val};

use super::tile::fours;
use crate::launch::{Launch, number};
use crate::math;
use crate::site::Operand;

/// `[batch, head, sequence, element]` of an operand.
pub(super) struct Rows<'k> {
    buffer: Buf<'k>,
    offset: Val<'k>,
    batch: Val<'k>,
    head: Val<'k>,
    sequence: Val<'k>,
    element: Val<'k>,
    width: usize,
    vectors: bool,
}

impl<'k> Rows<'k> {
    /// Declares the buffer and its steps.
    pub(super) fn read(l: &Launch<'k>, name: &str, layout: HeadLayout, operand: &Operand) -> Self {
        let steps = [&operand.strides[..], &[operand.offset]].concat();
        let sizes = operand.sizes();
        let (head, sequence) = match layout {
            HeadLayout::Bshd => (2, 1),
            HeadLayout::Bhsd => (1, 2),
        };
        let width = number(sizes.get(3).copied().unwrap_or(Dim::ONE));
        let unit = steps.get(3).is_some_and(|s| s.as_constant() == Some(1));
        // A dimension of size 1 is never stepped over.
        let stepped = |i: usize| i != 3 && sizes.get(i).is_none_or(|size| size.as_constant() != Some(1));
        let mut apart = steps.iter().enumerate().filter(|(i, _)| stepped(*i));
        let vectors = unit
            && width.is_multiple_of(4)
            && math::elem(operand.ty.dtype) != Elem::F64
            && apart.all(|(_, s)| s.is_multiple_of(4));
        let step = |what: &str, i: usize| match steps.get(i) {
            Some(step) if i == 3 && step.as_constant() == Some(1) => l.k().u32(1),
            step => l.stride(&format!("{name}_{what}"), step.copied().unwrap_or(Dim::ZERO)),
        };
        Rows {
            buffer: l.read(name, operand),
            offset: step("offset", 4),
            batch: step("batch", 0),
            head: step("head", head),
            sequence: step("sequence", sequence),
            element: step("element", 3),
            width,
            vectors,
        }
    }

    /// Where a head's first row begins.
    pub(super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> Val<'k> {
        self.offset + batch * self.batch + head * self.head
    }

    /// Where a row begins, its head beginning at `start`.
    pub(super) fn row(&self, start: Val<'k>, row: Val<'k>) -> Val<'k> {
        start + row * self.sequence
    }

    /// Elements `4·group ..` of the row that begins at `row`, zeros past its end; `group` stays below `groups`.
    pub(super) fn four(&self, row: Val<'k>, group: Val<'k>, groups: u32) -> Vec<Val<'k>> {
        let whole = fours(self.width);
        if self.vectors {
            let values = |group: Val<'k>| self.buffer.load_vec(row + group * 4, 4);
            if groups <= whole {
                return values(group);
            }
            let inside = group.lt(whole);
            let zeroed = |v: Val<'k>| inside.select(v, v.like(0.0));
            return values(group.min(whole - 1)).into_iter().map(zeroed).collect();
        }
        let element = |i: u32| {
            let at = group * 4 + i;
            if groups as usize * 4 <= self.width {
                return self.buffer.load(row + at * self.element);
            }
            let value = self.buffer.load(row + at.min(self.width - 1) * self.element);
            at.lt(self.width).select(value, value.like(0.0))
        };
        (0..4).map(element).collect()
    }
}
