//! q, k and v as rows of slots, and the panels that slots of k and v pass through.

use olivine_ir::op::HeadLayout;
use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Scalar, Shared, SubgroupOp, Val, Var};

use super::super::rows::{HeadStart, RowSteps};
use super::operands::{OperandPrecision, magnitude};
use crate::launch::{Launch, number};
use crate::math;
use crate::pages::PageTable;
use crate::q8_0;
use crate::site::Operand;

/// Elements of a slot: those of 16 bytes of a panel.
pub(super) const SLOT: u32 = 8;

/// `[batch, head, sequence, slot]` of an operand.
pub(in super::super) struct Slots<'k> {
    k: &'k Builder,
    precision: OperandPrecision,
    /// Words where whole slots of 16-bit elements can be loaded and of blocks, otherwise elements.
    buffer: Buf<'k>,
    whole: bool,
    /// Whether rows are blocks, whose slots are decoded on their way to a panel.
    packed: bool,
    steps: RowSteps<'k>,
    element: Val<'k>,
    width: u32,
}

impl<'k> Slots<'k> {
    /// Declares the buffer and its steps.
    pub(in super::super) fn read(
        l: &Launch<'k>,
        name: &str,
        layout: HeadLayout,
        operand: &Operand,
        pages: Option<PageTable<'k>>,
        precision: OperandPrecision,
    ) -> Self {
        let steps = [&operand.strides[..], &[operand.offset]].concat();
        let sizes = operand.ty.elements().sizes();
        let packed = operand.ty.packed.is_some();
        let width = number(sizes.get(3).copied().unwrap_or(Dim::ONE));
        // A dimension of size 1 is never stepped over.
        let stepped = |i: usize| i != 3 && sizes.get(i).is_none_or(|size| size.as_constant() != Some(1));
        let mut apart = steps.iter().enumerate().filter(|(i, _)| stepped(*i));
        let slot = i64::from(SLOT);
        let unit = steps.get(3).is_some_and(|s| s.as_constant() == Some(1));
        let whole = unit && width as i64 % slot == 0 && apart.all(|(_, s)| s.is_multiple_of(slot));
        let elem = match (precision, whole) {
            _ if packed => Elem::U32,
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
        Slots { k: l.k(), precision, buffer, whole, packed, steps: row_steps, element, width: width as u32 }
    }

    /// Declares the elements as numbers, for [`Slots::number`].
    pub(in super::super) fn numbers(&self, l: &Launch<'k>, name: &str, operand: &Operand) -> Buf<'k> {
        if self.packed { self.buffer } else { l.read(name, operand) }
    }

    /// An element of the row that begins at `row`, of what [`Slots::numbers`] declared.
    pub(super) fn number(&self, numbers: Buf<'k>, row: Val<'k>, at: Val<'k>) -> Val<'k> {
        match self.packed {
            true => q8_0::element(numbers, row, at),
            false => numbers.load(self.element(row, at)),
        }
    }

    /// Where a head's first row begins.
    pub(in super::super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> HeadStart<'k> {
        self.steps.start(batch, head)
    }

    /// Where a row of a head begins.
    pub(in super::super) fn row(&self, start: HeadStart<'k>, row: Val<'k>) -> Val<'k> {
        self.steps.row(start, row)
    }

    /// The index of an element of the row that begins at `row`.
    fn element(&self, row: Val<'k>, at: Val<'k>) -> Val<'k> {
        row + at * self.element
    }

    /// Values that [`Slots::load`] returns, as zeros.
    fn zeros(&self) -> Vec<Val<'k>> {
        match self.precision {
            _ if self.packed => vec![self.k.u32(0); q8_0::loads(SLOT)],
            OperandPrecision::Whole(_) => vec![self.k.u32(0); SLOT as usize / 2],
            OperandPrecision::Split => vec![self.k.f32(0.0); SLOT as usize],
        }
    }

    /// A loaded slot as numbers, or as words of two 16-bit elements.
    fn decoded(&self, loaded: Vec<Val<'k>>) -> Vec<Val<'k>> {
        if !self.packed {
            return loaded;
        }
        let numbers = q8_0::decode(&loaded, SLOT);
        let bits = |x: Val<'k>| math::round_to(x, DType::BF16).bitcast(Scalar::U32);
        match self.precision {
            OperandPrecision::Split => numbers,
            OperandPrecision::Whole(Elem::BF16) => {
                numbers.chunks(2).map(|pair| (bits(pair[0]) >> 16u32) | bits(pair[1])).collect()
            }
            OperandPrecision::Whole(_) => numbers.chunks(2).map(|pair| pair[0].pack_half(pair[1])).collect(),
        }
    }

    /// A slot of the row that begins at `row`, zeros past its end: numbers, words of two 16-bit elements, or what is loaded of a
    /// block. `slot` stays below `slots`.
    pub(in super::super) fn load(&self, row: Val<'k>, slot: Val<'k>, slots: u32) -> Vec<Val<'k>> {
        let whole = self.width / SLOT;
        let zeroed = |inside: Val<'k>, v: Val<'k>| inside.select(v, v.like(0.0));
        if self.whole || self.packed {
            let load = |slot: Val<'k>| {
                let first = row + slot * SLOT;
                match self.precision {
                    _ if self.packed => q8_0::load(self.buffer, row, slot * SLOT, SLOT),
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
pub(super) struct Stage<'k, 's> {
    source: &'s Slots<'k>,
    panel: Panel<'k>,
    held: Vec<Vec<Var<'k>>>,
}

impl<'k, 's> Stage<'k, 's> {
    /// A stage with nothing loaded yet.
    pub(super) fn new(source: &'s Slots<'k>, panel: Panel<'k>) -> Self {
        let k = source.k;
        let each = (panel.rows * panel.slots).div_ceil(k.group());
        let slot = || source.zeros().into_iter().map(|zero| k.var(zero)).collect();
        Stage { source, panel, held: (0..each).map(|_| slot()).collect() }
    }

    /// What was loaded of a slot, decoded.
    fn slot(&self, held: &[Var<'k>]) -> Vec<Val<'k>> {
        self.source.decoded(held.iter().map(|v| v.get()).collect())
    }

    /// The row and slot of this invocation's i-th load.
    fn part(&self, k: &'k Builder, i: usize) -> (Val<'k>, Val<'k>) {
        let number = k.local_index() + i as u32 * k.group();
        (number / self.panel.slots, number % self.panel.slots)
    }

    /// Loads the rows from `first` on; those past the last before `end` repeat it.
    pub(super) fn fetch(&self, start: HeadStart<'k>, first: Val<'k>, end: Val<'k>) {
        for (i, held) in self.held.iter().enumerate() {
            let (row, slot) = self.part(self.source.k, i);
            let at = self.source.row(start, (first + row).min(end - 1));
            let loaded = self.source.load(at, slot, self.panel.slots);
            held.iter().zip(loaded).for_each(|(var, value)| var.set(value));
        }
    }

    /// The largest magnitude that the subgroup loaded, as bits: above those of infinity if there is a NaN.
    pub(super) fn largest(&self) -> Val<'k> {
        let all = self.held.iter().flat_map(|held| self.slot(held)).map(magnitude);
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
                let planes = planes(row, self.slot(held));
                self.panel.store(row, slot, &planes);
            };
            // The last round may have slots for some invocations only.
            if (i as u32 + 1) * k.group() <= all { put() } else { k.if_(row.lt(self.panel.rows), put) }
        }
    }
}
