//! Pages of a key-value cache: where the positions of a sequence are in a pool.

use olivine_ir::Dim;
use olivine_kernel::Val;

use crate::integers::{Integer, Integers};
use crate::launch::{Launch, number};
use crate::site::Operand;

/// The pages of every sequence, declared in a kernel.
#[derive(Clone, Copy)]
pub(crate) struct PageTable<'k> {
    numbers: Integers<'k>,
    /// Pages of a sequence.
    count: Val<'k>,
    /// Pages there are.
    pool: Val<'k>,
    /// Positions of a page; kernels are written for them.
    positions: u32,
}

impl<'k> PageTable<'k> {
    /// Declares numbers of pages `[batch, count]` of a pool.
    pub(crate) fn declare(l: &Launch<'k>, numbers: &Operand, pool: Dim, positions: Dim) -> Self {
        PageTable {
            numbers: Integers::read(l, "pages", numbers),
            count: l.size("page_count", numbers.sizes()[1]),
            pool: l.size("pool", pool),
            positions: number(positions) as u32,
        }
    }

    /// Pages there are.
    pub(crate) fn pool(&self) -> Val<'k> {
        self.pool
    }

    /// Positions of a page.
    pub(crate) fn positions(&self) -> u32 {
        self.positions
    }

    /// A position in its page.
    pub(crate) fn within(&self, position: Val<'k>) -> Val<'k> {
        position % self.positions
    }

    /// The page of a sequence's position, and the position in it.
    pub(crate) fn find(&self, sequence: Val<'k>, position: Val<'k>) -> (Integer<'k>, Val<'k>) {
        let page = self.numbers.at(sequence * self.count + position / self.positions);
        (page, self.within(position))
    }
}
