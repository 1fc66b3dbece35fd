//! Pages of a key-value cache: where the positions of a sequence are in a pool.

use std::ops::Range;

use olivine_ir::DType;

use crate::operand::Operand;

/// An integer of an i32 or i64 operand.
pub(super) fn integer(x: &Operand<'_>, at: usize) -> i64 {
    match x.ty.dtype {
        DType::I32 => i64::from(x.elements::<i32>()[at]),
        _ => x.elements::<i64>()[at],
    }
}

/// The pages of every sequence of a batch.
pub(super) struct Pages<'a> {
    numbers: Operand<'a>,
    /// Pages of a sequence.
    count: usize,
    /// Pages there are.
    pool: usize,
    /// Positions of a page.
    positions: usize,
}

/// Neighbouring positions of a sequence that are neighbours in the pool.
pub(super) struct Run {
    /// The first among those that were asked for.
    pub(super) first: usize,
    pub(super) count: usize,
    /// The page, and the position in it; of sequences without pages the sequence and its position.
    pub(super) page: i64,
    pub(super) position: usize,
}

impl<'a> Pages<'a> {
    /// Numbers of pages `[batch, count]` in a pool.
    pub(super) fn new(numbers: Operand<'a>, pool: usize, positions: usize) -> Self {
        Pages { numbers, count: numbers.shape()[1], pool, positions }
    }

    /// Positions that a sequence's pages have room for.
    pub(super) fn keys(&self) -> usize {
        self.count * self.positions
    }

    /// Whether a page exists.
    pub(super) fn has(&self, page: i64) -> bool {
        (0..self.pool as i64).contains(&page)
    }

    /// The nearest page that exists.
    pub(super) fn clamped(&self, page: i64) -> usize {
        page.clamp(0, self.pool as i64 - 1) as usize
    }

    /// Some positions of a sequence, all of which its pages have room for, page by page.
    pub(super) fn runs(&self, sequence: usize, range: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let (page, position) = (next / self.positions, next % self.positions);
            let count = (self.positions - position).min(range.end - next);
            let page = integer(&self.numbers, self.numbers.offset + sequence * self.count + page);
            let run = Run { first: next - range.start, count, page, position };
            next += count;
            Some(run)
        })
    }
}
