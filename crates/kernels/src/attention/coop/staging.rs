//! q, k and v as rows of slots, and the panels that slots of k and v pass through.

use olivine_ir::Dim;
use olivine_ir::op::HeadLayout;
use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Shared, SubgroupOp, Val, Var};

use super::super::rows::{HeadStart, RowSteps};
use super::operands::{OperandPrecision, magnitude};
use crate::launch::{Launch, number};
use crate::math;
use crate::pages::PageTable;
use crate::site::Operand;

/// Elements of a slot: those of 16 bytes of a panel.
pub(super) const SLOT: u32 = 8;

/// `[batch, head, sequence, slot]` of an operand.
pub(super) struct Slots<'k> {
    k: &'k Builder,
    precision: OperandPrecision,
    /// Words where whole slots of 16-bit elements can be loaded, otherwise elements.
    buffer: Buf<'k>,
    whole: bool,
    steps: RowSteps<'k>,
    element: Val<'k>,
    width: u32,
}

impl<'k> Slots<'k> {
    /// Declares the buffer and its steps.
    pub(super) fn read(
        l: &Launch<'k>,
        name: &str,
        layout: HeadLayout,
        operand: &Operand,
        pages: Option<PageTable<'k>>,
        precision: OperandPrecision,
    ) -> Self {
        let steps = [&operand.strides[..], &[operand.offset]].concat();
        let sizes = operand.sizes();
        let width = number(sizes.get(3).copied().unwrap_or(Dim::ONE));
        // A dimension of size 1 is never stepped over.
        let stepped = |i: usize| i != 3 && sizes.get(i).is_none_or(|size| size.as_constant() != Some(1));
        let mut apart = steps.iter().enumerate().filter(|(i, _)| stepped(*i));
        let slot = i64::from(SLOT);
        let unit = steps.get(3).is_some_and(|s| s.as_constant() == Some(1));
        let whole = unit && width as i64 % slot == 0 && apart.all(|(_, s)| s.is_multiple_of(slot));
        let elem = match (precision, whole) {
            (OperandPrecision::Split, _) => math::elem(operand.ty.dtype),
            (OperandPrecision::Whole(_), true) => Elem::U32,
            (OperandPrecision::Whole(_), false) => Elem::U16,
        };
        let buffer = l.bind(name, elem, Access::Read, operand.memory);
        let row_steps = RowSteps::declare(l, name, layout, operand, pages);
        let element = match steps.get(3) {
            Some(step) if step.as_constant() == Some(1) => l.k().u32(1),
            step => l.stride(&format!("{name}_element"), step.copied().unwrap_or(Dim::ZERO)),
        };
        Slots { k: l.k(), precision, buffer, whole, steps: row_steps, element, width: width as u32 }
    }

    /// Where a head's first row begins.
    pub(super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> HeadStart<'k> {
        self.steps.start(batch, head)
    }

    /// Where a row of a head begins.
    pub(super) fn row(&self, start: HeadStart<'k>, row: Val<'k>) -> Val<'k> {
        self.steps.row(start, row)
    }

    /// The index of an element of the row that begins at `row`.
    pub(super) fn element(&self, row: Val<'k>, at: Val<'k>) -> Val<'k> {
        row + at * self.element
    }

    /// A slot of the row that begins at `row`, zeros past its end: numbers, or words of two 16-bit elements. `slot`
    /// stays below `slots`.
    pub(super) fn load(&self, row: Val<'k>, slot: Val<'k>, slots: u32) -> Vec<Val<'k>> {
        let whole = self.width / SLOT;
        let zeroed = |inside: Val<'k>, v: Val<'k>| inside.select(v, v.like(0.0));
        if self.whole {
            let load = |slot: Val<'k>| {
                let first = row + slot * SLOT;
                match self.precision {
                    OperandPrecision::Whole(_) => self.buffer.load_vec(first / 2u32, 4),
                    OperandPrecision::Split => {
                        [self.buffer.load_vec(first, 4), self.buffer.load_vec(first + 4u32, 4)].concat()
                    }
                }
            };
            if slots <= whole {
                return load(slot);
            }
            return load(slot.min(whole - 1)).into_iter().map(|v| zeroed(slot.lt(whole), v)).collect();
        }
        let element = |i: u32| {
            let at = slot * SLOT + i;
            let value = self.buffer.load(self.element(row, at.min(self.width - 1)));
            zeroed(at.lt(self.width), value)
        };
        let elements: Vec<Val<'k>> = (0..SLOT).map(element).collect();
        match self.precision {
            OperandPrecision::Whole(_) => {
                elements.chunks(2).map(|pair| pair[0] | (pair[1] << 16u32)).collect()
            }
            OperandPrecision::Split => elements,
        }
    }
}

/// Rows of slots in workgroup memory, an odd number of slots apart, so that the rows of a matrix meet different banks;
/// a second plane holds the low parts of split elements.
#[derive(Clone, Copy)]
pub(super) struct Panel<'k> {
    memory: Shared<'k>,
    /// Slot of its first row.
    first: Val<'k>,
    rows: u32,
    /// Slots of a row.
    slots: u32,
}

impl<'k> Panel<'k> {
    pub(super) fn new(memory: Shared<'k>, first: Val<'k>, rows: u32, slots: u32) -> Self {
        Panel { memory, first, rows, slots }
    }

    /// Slots that so many rows of so many slots take.
    pub(super) fn len(rows: u32, slots: u32, planes: u32) -> u32 {
        rows * Panel::pitch(slots) * planes
    }

    /// Slots from one row to the next.
    fn pitch(slots: u32) -> u32 {
        slots | 1
    }

    /// The matrix whose first element is in `row`, at slot `slot` of it; rows are the matrix's columns if transposed.
    pub(super) fn matrix(
        &self,
        ty: MatrixType,
        plane: u32,
        (row, slot): (u32, u32),
        column_major: bool,
    ) -> Val<'k> {
        let pitch = Panel::pitch(self.slots);
        let at = Panel::len(self.rows, self.slots, plane) + row * pitch + slot;
        let k = self.first.builder();
        self.memory.load_matrix(ty, self.first + at, k.u32(pitch), column_major)
    }

    /// Stores a slot's words, plane by plane.
    pub(super) fn store(&self, row: Val<'k>, slot: Val<'k>, planes: &[Vec<Val<'k>>]) {
        let at = self.first + row * Panel::pitch(self.slots) + slot;
        for (i, words) in planes.iter().enumerate() {
            self.memory.store_vec(at + Panel::len(self.rows, self.slots, i as u32), words);
        }
    }
}

/// A tile of rows on its way from memory through registers to a panel.
pub(super) struct Stage<'k> {
    panel: Panel<'k>,
    held: Vec<Vec<Var<'k>>>,
}

impl<'k> Stage<'k> {
    /// A stage with nothing loaded yet.
    pub(super) fn new(k: &'k Builder, panel: Panel<'k>, precision: OperandPrecision) -> Self {
        let each = (panel.rows * panel.slots).div_ceil(k.group());
        let (zero, count) = match precision {
            OperandPrecision::Whole(_) => (k.u32(0), SLOT / 2),
            OperandPrecision::Split => (k.f32(0.0), SLOT),
        };
        let held = (0..each).map(|_| (0..count).map(|_| k.var(zero)).collect()).collect();
        Stage { panel, held }
    }

    /// The row and slot of this invocation's i-th load.
    fn part(&self, k: &'k Builder, i: usize) -> (Val<'k>, Val<'k>) {
        let number = k.local_index() + i as u32 * k.group();
        (number / self.panel.slots, number % self.panel.slots)
    }

    /// Loads the rows from `first` on; those past the last before `end` repeat it.
    pub(super) fn fetch(&self, source: &Slots<'k>, start: HeadStart<'k>, first: Val<'k>, end: Val<'k>) {
        for (i, held) in self.held.iter().enumerate() {
            let (row, slot) = self.part(source.k, i);
            let at = source.row(start, (first + row).min(end - 1));
            let loaded = source.load(at, slot, self.panel.slots);
            held.iter().zip(loaded).for_each(|(var, value)| var.set(value));
        }
    }

    /// The largest magnitude that the subgroup loaded, as bits: above those of infinity if there is a NaN.
    pub(super) fn largest(&self) -> Val<'k> {
        let all = self.held.iter().flatten().map(|v| magnitude(v.get()));
        let k = self.panel.first.builder();
        let mine = all.reduce(|a, b| a.max(b)).unwrap_or(k.u32(0));
        mine.subgroup(SubgroupOp::Max)
    }

    /// Puts what was loaded into the panel; `planes` makes the words of a slot in a row.
    pub(super) fn put(&self, k: &'k Builder, planes: impl Fn(Val<'k>, Vec<Val<'k>>) -> Vec<Vec<Val<'k>>>) {
        let all = self.panel.rows * self.panel.slots;
        for (i, held) in self.held.iter().enumerate() {
            let (row, slot) = self.part(k, i);
            let put = || {
                let planes = planes(row, held.iter().map(|v| v.get()).collect());
                self.panel.store(row, slot, &planes);
            };
            // The last round may have slots for some invocations only.
            if (i as u32 + 1) * k.group() <= all { put() } else { k.if_(row.lt(self.panel.rows), put) }
        }
    }
}
