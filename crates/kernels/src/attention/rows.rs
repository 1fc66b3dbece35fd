//! q, k and v as rows with any steps or in pages, read four elements at a time.

use olivine_ir::Dim;
use olivine_ir::op::HeadLayout;
use olivine_kernel::{Access, Buf, Elem, Val};

use super::tile::fours;
use crate::launch::{Launch, number};
use crate::math;
use crate::pages::PageTable;
use crate::q8_0;
use crate::site::Operand;

/// Where the rows of an operand `[batch, head, sequence, element]` begin.
pub(super) struct RowSteps<'k> {
    offset: Val<'k>,
    batch: Val<'k>,
    head: Val<'k>,
    sequence: Val<'k>,
    /// Where sequences are in pages, which the batch axis counts.
    pages: Option<PageTable<'k>>,
}

/// Where a head of a sequence begins.
#[derive(Clone, Copy)]
pub(super) struct HeadStart<'k> {
    at: Val<'k>,
    sequence: Val<'k>,
}

/// Where a row of a sequence is: its page, where there are pages, and its position.
#[derive(Clone, Copy)]
pub(super) struct Located<'k> {
    page: Option<Val<'k>>,
    position: Val<'k>,
}

impl<'k> Located<'k> {
    /// Finds a row.
    pub(super) fn find(pages: Option<PageTable<'k>>, sequence: Val<'k>, row: Val<'k>) -> Self {
        let Some(pages) = pages else { return Located { page: None, position: row } };
        let (page, position) = pages.find(sequence, row);
        Located { page: Some(page.clamp(pages.pool() - 1)), position }
    }

    /// A row whose page was found before.
    pub(super) fn in_page(pages: PageTable<'k>, page: Val<'k>, row: Val<'k>) -> Self {
        Located { page: Some(page), position: row % pages.positions() }
    }

    /// The page, if there are pages.
    pub(super) fn page(self) -> Option<Val<'k>> {
        self.page
    }

    /// A later row of the same page.
    pub(super) fn after(self, rows: Val<'k>) -> Self {
        Located { position: self.position + rows, ..self }
    }
}

impl<'k> RowSteps<'k> {
    /// Declares the steps of an operand.
    pub(super) fn declare(
        l: &Launch<'k>,
        name: &str,
        layout: HeadLayout,
        operand: &Operand,
        pages: Option<PageTable<'k>>,
    ) -> Self {
        let (head, sequence) = match layout {
            HeadLayout::Bshd => (2, 1),
            HeadLayout::Bhsd => (1, 2),
        };
        let step = |what: &str, step: Option<&Dim>| {
            l.stride(&format!("{name}_{what}"), step.copied().unwrap_or(Dim::ZERO))
        };
        RowSteps {
            offset: step("offset", Some(&operand.offset)),
            batch: step("batch", operand.strides.first()),
            head: step("head", operand.strides.get(head)),
            sequence: step("sequence", operand.strides.get(sequence)),
            pages,
        }
    }

    /// Where a head's first row begins.
    pub(super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> HeadStart<'k> {
        let at = match self.pages {
            None => self.offset + batch * self.batch + head * self.head,
            Some(_) => self.offset + head * self.head,
        };
        HeadStart { at, sequence: batch }
    }

    /// Where a row of a head begins.
    pub(super) fn row(&self, start: HeadStart<'k>, row: Val<'k>) -> Val<'k> {
        self.located(start, Located::find(self.pages, start.sequence, row))
    }

    /// Where a row of a head begins that was found before.
    pub(super) fn located(&self, start: HeadStart<'k>, row: Located<'k>) -> Val<'k> {
        let of_page = row.page.map_or(start.at, |page| start.at + page * self.batch);
        of_page + row.position * self.sequence
    }
}

/// `[batch, head, sequence, element]` of an operand.
pub(super) struct Rows<'k> {
    buffer: Buf<'k>,
    steps: RowSteps<'k>,
    element: Val<'k>,
    width: usize,
    vectors: bool,
    /// Whether rows are blocks, which are read as words.
    packed: bool,
}

impl<'k> Rows<'k> {
    /// Declares the buffer and its steps.
    pub(super) fn read(
        l: &Launch<'k>,
        name: &str,
        layout: HeadLayout,
        operand: &Operand,
        pages: Option<PageTable<'k>>,
    ) -> Self {
        let steps = [&operand.strides[..], &[operand.offset]].concat();
        let sizes = operand.ty.elements().sizes();
        let width = number(sizes.get(3).copied().unwrap_or(Dim::ONE));
        let packed = operand.ty.packed.is_some();
        let unit = steps.get(3).is_some_and(|s| s.as_constant() == Some(1));
        // A dimension of size 1 is never stepped over.
        let stepped = |i: usize| i != 3 && sizes.get(i).is_none_or(|size| size.as_constant() != Some(1));
        let mut apart = steps.iter().enumerate().filter(|(i, _)| stepped(*i));
        let vectors = unit
            && !packed
            && width.is_multiple_of(4)
            && math::elem(operand.ty.dtype) != Elem::F64
            && apart.all(|(_, s)| s.is_multiple_of(4));
        let elem = if packed { Elem::U32 } else { math::elem(operand.ty.dtype) };
        let buffer = l.bind(name, elem, Access::Read, operand.memory);
        let row_steps = RowSteps::declare(l, name, layout, operand, pages);
        let element = match steps.get(3) {
            Some(step) if step.as_constant() == Some(1) => l.k().u32(1),
            step => l.stride(&format!("{name}_element"), step.copied().unwrap_or(Dim::ZERO)),
        };
        Rows { buffer, steps: row_steps, element, width, vectors, packed }
    }

    /// Where a head's first row begins.
    pub(super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> HeadStart<'k> {
        self.steps.start(batch, head)
    }

    /// Where a row of a head begins.
    pub(super) fn row(&self, start: HeadStart<'k>, row: Val<'k>) -> Val<'k> {
        self.steps.row(start, row)
    }

    /// Elements `4·group ..` of the row that begins at `row`, zeros past its end; `group` stays below `groups`.
    pub(super) fn four(&self, row: Val<'k>, group: Val<'k>, groups: u32) -> Vec<Val<'k>> {
        let whole = fours(self.width);
        if self.vectors || self.packed {
            let values = |group: Val<'k>| match self.packed {
                true => q8_0::decode(&q8_0::load(self.buffer, row, group * 4, 4), 4),
                false => self.buffer.load_vec(row + group * 4, 4),
            };
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
