//! Elements as plain bits: what only moves them asks for their size and nothing else, so that every bit arrives and
//! 64-bit elements move on devices without 64-bit registers.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::site::Memory;

/// The layout of elements of one size in registers: one each, or two words where 64-bit registers are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    elem: Elem,
    words: usize,
}

impl Cells {
    /// For elements of 1, 2, 4 or 8 bytes.
    pub(crate) fn new(bytes: usize, caps: &DeviceCaps) -> Self {
        let (elem, words) = match bytes {
            1 => (Elem::U8, 1),
            2 => (Elem::U16, 1),
            4 => (Elem::U32, 1),
            _ if caps.target.i64 => (Elem::U64, 1),
            _ => (Elem::U32, 2),
        };
        Cells { elem, words }
    }

    /// For packed rows of `run` elements of `bytes` bytes: narrow ones that fill whole words move as words. Gives how
    /// many elements are one cell, too.
    #[track_caller]
    pub(crate) fn for_rows(bytes: usize, run: impl Into<Dim>, caps: &DeviceCaps) -> (Self, usize) {
        let run = run.into();
        let fills = |factor: &usize| bytes * factor <= 4 && run.is_multiple_of(*factor);
        let factor = [4, 2].into_iter().find(fills).unwrap_or(1);
        (Cells::new(bytes * factor, caps), factor)
    }

    /// Bytes of one.
    pub(crate) fn bytes(self) -> usize {
        self.elem.size() as usize * self.words
    }

    /// The most that one access moves: 16 bytes, or four of them.
    pub(crate) fn most_lanes(self) -> usize {
        if self.bytes() == 8 { 2 } else { 4 }
    }

    /// The most that one access moves where all positions are multiples of `run`.
    #[track_caller]
    pub(crate) fn lanes_in(self, run: impl Into<Dim>) -> usize {
        let run = run.into();
        let fits = |lanes: &usize| *lanes <= self.most_lanes() && run.is_multiple_of(*lanes);
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Declares a buffer of them.
    pub(crate) fn bind<'k>(self, l: &Launch<'k>, name: &str, access: Access, memory: Memory) -> CellBuf<'k> {
        CellBuf { buf: l.bind(name, self.elem, access, memory), words: self.words }
    }

    /// Registers of a kernel's workgroup memory: the element type and how many words make one.
    pub(crate) fn shared(self) -> (Elem, usize) {
        (if self.elem == Elem::U64 { Elem::U64 } else { Elem::U32 }, self.words)
    }

    /// All bits zero.
    pub(crate) fn zero(self, k: &Builder) -> Cell<'_> {
        Cell(vec![k.constant(self.elem.scalar(), 0); self.words])
    }

    /// Declares a run-time number by its bits.
    pub(crate) fn param<'k>(self, l: &Launch<'k>, name: &str, bits: u64) -> Cell<'k> {
        let low = l.size(name, bits as u32 as usize);
        if self.bytes() < 8 {
            return Cell(vec![low]);
        }
        let high = l.size(&format!("{name}_high"), (bits >> 32) as usize);
        if self.words == 2 { Cell(vec![low, high]) } else { Cell(vec![low.join(high)]) }
    }

    /// One made of its low and high word; narrower ones keep the low bits.
    pub(crate) fn of_words<'k>(self, low: Val<'k>, high: Val<'k>) -> Cell<'k> {
        match (self.bytes(), self.words) {
            (8, 1) => Cell(vec![low.join(high)]),
            (8, _) => Cell(vec![low, high]),
            _ => Cell(vec![low]),
        }
    }
}

/// One element's bits.
#[derive(Clone, Debug)]
pub(crate) struct Cell<'k>(pub(crate) Vec<Val<'k>>);

impl<'k> Cell<'k> {
    /// This where `condition` holds, else the other.
    pub(crate) fn or(&self, condition: Val<'k>, other: &Cell<'k>) -> Cell<'k> {
        Cell(self.0.iter().zip(&other.0).map(|(a, b)| condition.select(*a, *b)).collect())
    }

    /// Its words, low first: two for 8 bytes, else one.
    pub(crate) fn words(&self) -> Vec<Val<'k>> {
        match self.0.as_slice() {
            [value] if value.scalar() == Scalar::U64 => {
                vec![value.convert(Scalar::U32), (*value >> 32).convert(Scalar::U32)]
            }
            words => words.to_vec(),
        }
    }
}

/// A buffer of cells; indices count cells.
#[derive(Clone, Copy)]
pub(crate) struct CellBuf<'k> {
    buf: Buf<'k>,
    words: usize,
}

impl<'k> CellBuf<'k> {
    /// One cell.
    pub(crate) fn load(self, index: Val<'k>) -> Cell<'k> {
        Cell(self.buf.load_vec(index * self.words, self.words as u8))
    }

    /// `lanes` cells from `index` on, a multiple of `lanes`.
    pub(crate) fn load_many(self, index: Val<'k>, lanes: usize) -> Vec<Cell<'k>> {
        let values = self.buf.load_vec(index * self.words, (lanes * self.words) as u8);
        values.chunks(self.words).map(|c| Cell(c.to_vec())).collect()
    }

    /// Stores 1, 2 or 4 cells from `index` on, a multiple of their number.
    pub(crate) fn store(self, index: Val<'k>, cells: &[Cell<'k>]) {
        let values: Vec<Val<'k>> = cells.iter().flat_map(|c| c.0.iter().copied()).collect();
        self.buf.store_vec(index * self.words, &values);
    }
}
