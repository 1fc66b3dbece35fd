//! A on its way to the registers of warpgroups: as rows, or in packed fragments.

use olivine_kernel::{Access, Buf, Builder, Elem, Val, Var};

use super::kernel::{Work, wide};
use super::pack::{self, FRAGMENTS, Matrices, ONES, Packed};
use super::{Form, STEP};
use crate::launch::Launch;
use crate::matmul::problem::Problem;
use crate::matmul::tiled::TileCoord;

/// A, as lanes load it.
pub(super) struct LeftOperand<'k> {
    k: &'k Builder,
    form: Form,
    words: Buf<'k>,
    layout: LeftLayout<'k>,
}

enum LeftLayout<'k> {
    /// Rows, so many elements apart, and words of each where K ends inside of a block: then the last ones are loaded again.
    Rows { outer: Val<'k>, end: Option<Val<'k>> },
    /// Fragments: blocks of 64 rows, and which batches have their own.
    Packed { blocks: Val<'k>, matrices: Matrices },
}

impl<'k> LeftOperand<'k> {
    pub(super) fn declare(
        l: &Launch<'k>,
        form: Form,
        problem: &Problem<'_>,
        packed: Option<&Packed>,
    ) -> Self {
        let memory = packed.map_or(problem.a.operand.memory, |packed| packed.memory);
        let words = l.bind("a", Elem::U32, Access::Read, memory).streaming();
        let layout = match packed {
            None => {
                let outer = l.stride("a_outer", problem.a.outer);
                // As far as B is filled up.
                let is_cut = !problem.k_number().is_multiple_of(form.step() as usize * 16);
                let end = is_cut.then(|| l.size("a_words", problem.k_number() / (4 / form.size()) as usize));
                LeftLayout::Rows { outer, end }
            }
            Some(packed) => LeftLayout::Packed {
                blocks: l.size("a_blocks", pack::row_blocks(problem.m)),
                matrices: packed.matrices.clone(),
            },
        };
        LeftOperand { k: l.k(), form, words, layout }
    }

    /// Where a lane's words of a tile begin: of both of its rows, or of its fragments.
    pub(super) fn starts(&self, work: &Work<'k, '_>, tile: &TileCoord<'k>) -> Vec<Val<'k>> {
        let k = self.k;
        let (lane, warp) = (k.lane(), k.subgroup_id());
        match &self.layout {
            LeftLayout::Rows { outer, end } => {
                let base = work.walker.at(tile.batch)[0];
                let row = tile.first.0 + warp * 16u32 + lane / 4u32;
                let each = 4 / self.form.size();
                // Rows past the last are computed and not stored.
                let start = |row: Val<'k>| {
                    let first = (base + row.min(work.m - 1u32) * *outer) / each;
                    if end.is_some() { first } else { first + lane % 4u32 * 4u32 }
                };
                [row, row + 8u32].map(|row| wide(start(row))).to_vec()
            }
            LeftLayout::Packed { blocks, matrices } => {
                let first = tile.first.0 / 64u32 + warp / 4u32;
                let matrix = work.matrix(matrices, 0, tile.batch);
                let block = matrix.map_or(first, |matrix| matrix * *blocks + first);
                let lane = warp % 4u32 * 32u32 + lane;
                let steps = wide(block) * wide(work.k_steps);
                vec![steps * wide(k.u32(self.form.parts * (FRAGMENTS / 4))) + wide(lane * 4u32)]
            }
        }
    }

    /// How far the starts move from one block of K to the next.
    pub(super) fn advance(&self) -> u32 {
        match self.layout {
            LeftLayout::Rows { end: Some(_), .. } => 0,
            _ => self.pitch(),
        }
    }

    /// What the bytes of a k-step's words are multiplied by for the sums of rows: 0 past the end of K.
    pub(super) fn ones(&self, block: Val<'k>, step: u32) -> Val<'k> {
        let (k, ones) = (self.k, self.k.u32(ONES));
        match self.layout {
            LeftLayout::Rows { end: Some(end), .. } => {
                self.along(block, step / 2 * (2 * STEP / 4)).lt(end).select(ones, k.u32(0))
            }
            _ => ones,
        }
    }

    /// A lane's word of a row, `skip` words on from its first one of a block.
    fn along(&self, block: Val<'k>, skip: u32) -> Val<'k> {
        block * self.pitch() + self.k.lane() % 4u32 * 4u32 + skip
    }

    /// Words from one block of K to the next.
    fn pitch(&self) -> u32 {
        let steps = 2 * self.form.batch;
        match self.layout {
            LeftLayout::Rows { .. } => steps * (STEP / 4),
            LeftLayout::Packed { .. } => steps * self.form.parts * (FRAGMENTS / 4),
        }
    }

    /// Loads one of the two buffers of a block that begins at `starts`: variables of every k-step in turn. `block` has its
    /// number.
    pub(super) fn load(
        &self,
        starts: &[Val<'k>],
        block: impl Fn() -> Val<'k>,
        second: bool,
        buffers: &[Var<'k>],
    ) {
        let half = buffers.len() / 2;
        let buffers = if second { &buffers[half..] } else { &buffers[..half] };
        let skip = if second { self.pitch() / 2 } else { 0 };
        let at = |start: Val<'k>, words: u32| start + wide(self.k.u32(skip + words));
        match starts {
            // Of both parts both rows, two k-steps at once.
            [start] if self.form.parts > 1 => {
                for (pair, fragments) in (0..).zip(buffers.chunks(16)) {
                    for (number, (part, row)) in (0..).zip([(0, 0), (0, 1), (1, 0), (1, 1)]) {
                        let words = self.words.load_vec(at(*start, (4 * pair + number) * (FRAGMENTS / 4)), 4);
                        for (i, word) in words.into_iter().enumerate() {
                            fragments[8 * (i / 2) + 4 * part + 2 * (i % 2) + row].set(word);
                        }
                    }
                }
            }
            [start] => {
                for (step, fragment) in (0..).zip(buffers.chunks(4)) {
                    let words = self.words.load_vec(at(*start, step * (FRAGMENTS / 4)), 4);
                    fragment.iter().zip(words).for_each(|(var, word)| var.set(word));
                }
            }
            rows => {
                // Two k-steps of a row are 16 bytes of each lane.
                for (pair, fragments) in (0..).zip(buffers.chunks(8)) {
                    for (row, start) in rows.iter().enumerate() {
                        let skip_pairs = pair * (2 * STEP / 4);
                        let at = match self.layout {
                            LeftLayout::Rows { end: Some(end), .. } => {
                                *start + wide(self.along(block(), skip + skip_pairs).min(end - 4u32))
                            }
                            _ => at(*start, skip_pairs),
                        };
                        let words = self.words.load_vec(at, 4);
                        for (i, word) in words.into_iter().enumerate() {
                            // Word 2s + h is of k-step s: of both rows in half 0 of it, then of both in half 1.
                            fragments[4 * (i / 2) + 2 * (i % 2) + row].set(word);
                        }
                    }
                }
            }
        }
    }
}
