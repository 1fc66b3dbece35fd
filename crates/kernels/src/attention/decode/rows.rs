//! Rows of k and v, read from memory in runs of up to 16 bytes.

use olivine_ir::op::HeadLayout;
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use super::super::rows::{HeadStart, Located, RowSteps};
use crate::launch::Launch;
use crate::math;
use crate::pages::PageTable;
use crate::q8_0;
use crate::site::Operand;

/// Rows of k or v as units of some elements.
pub(super) struct UnitRows<'k> {
    /// Words of two 16-bit elements or of blocks, or elements of f32.
    buffer: Buf<'k>,
    elem: Elem,
    /// Whether rows are blocks.
    packed: bool,
    steps: RowSteps<'k>,
    unit: u32,
    /// Units of a row.
    count: u32,
}

impl<'k> UnitRows<'k> {
    /// Declares the buffer and its steps.
    pub(super) fn read(
        l: &Launch<'k>,
        name: &str,
        layout: HeadLayout,
        operand: &Operand,
        pages: Option<PageTable<'k>>,
        (unit, width): (u32, usize),
    ) -> Self {
        let elem = math::elem(operand.ty.dtype);
        let of_buffer = if elem == Elem::F32 { Elem::F32 } else { Elem::U32 };
        UnitRows {
            buffer: l.bind(name, of_buffer, Access::Read, operand.memory),
            elem,
            packed: operand.ty.packed.is_some(),
            steps: RowSteps::declare(l, name, layout, operand, pages),
            unit,
            count: width as u32 / unit,
        }
    }

    /// Where a head's first row begins.
    pub(super) fn start(&self, batch: Val<'k>, head: Val<'k>) -> HeadStart<'k> {
        self.steps.start(batch, head)
    }

    /// Where a located row begins.
    pub(super) fn row(&self, start: HeadStart<'k>, located: Located<'k>) -> Val<'k> {
        self.steps.located(start, located)
    }

    /// A unit of the row that begins at `row`, as it is in memory; zeros past its end, and everywhere if not `inside`.
    pub(super) fn load(
        &self,
        row: Val<'k>,
        unit: Val<'k>,
        units: u32,
        inside: Option<Val<'k>>,
    ) -> Vec<Val<'k>> {
        let (mut unit, mut inside) = (unit, inside);
        if units > self.count {
            let within = unit.lt(self.count);
            unit = unit.min(self.count - 1);
            inside = Some(inside.map_or(within, |inside| inside & within));
        }
        let first = row + unit * self.unit;
        let loaded = match self.elem {
            _ if self.packed => q8_0::load(self.buffer, row, unit * self.unit, self.unit),
            Elem::F32 => self.buffer.load_vec(first, 4),
            _ => self.buffer.load_vec(first / 2u32, (self.unit / 2) as u8),
        };
        let zeroed = |v: Val<'k>| inside.map_or(v, |inside| inside.select(v, v.like(0.0)));
        loaded.into_iter().map(zeroed).collect()
    }

    /// The elements of a loaded unit.
    pub(super) fn elements(&self, loaded: &[Val<'k>]) -> Vec<Val<'k>> {
        let float = |word: Val<'k>| word.bitcast(Scalar::F32);
        match self.elem {
            _ if self.packed => q8_0::decode(loaded, self.unit),
            Elem::F32 => loaded.to_vec(),
            Elem::BF16 => {
                loaded.iter().flat_map(|w| [float(*w << 16u32), float(*w & 0xffff_0000u32)]).collect()
            }
            _ => loaded.iter().flat_map(|w| [w.unpack_half(0), w.unpack_half(1)]).collect(),
        }
    }
}
