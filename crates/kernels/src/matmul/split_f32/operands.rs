//! The operands of a split-f32 matmul and how they reach the matrix units.
//!
//! ```text
//!   parts in lines ─────── Words ──┐
//!   rows of f32 ── Raw, split there ┴─ workgroup memory ─ matrices
//!   parts in fragments ──────────── Direct ───────────── matrices
//! ```

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Val, Var};

use crate::launch::Launch;
use crate::matmul::coop::staging::{StagedOperand, StagedPanel};
use crate::matmul::problem::Axis;
use crate::matmul::split_f32::SIDE;
use crate::matmul::split_f32::convert::{ConvertedPanel, UnsplitRows};
use crate::matmul::split_f32::split::{FRAGMENT, RUN, SplitLayout, SplitOperand};

/// Parts as a kernel's arguments.
pub(crate) struct DeclaredSplit<'k> {
    pub(crate) words: Buf<'k>,
    /// Where scales begin.
    pub(crate) scales: Val<'k>,
    pub(crate) order: SplitLayout,
    /// Outer positions with those that fill up.
    pub(crate) outer: Val<'k>,
}

/// A matrix of parts.
pub(crate) struct SplitMatrix<'k> {
    pub(crate) words: Buf<'k>,
    pub(crate) order: SplitLayout,
    /// Index of the first f16.
    pub(crate) base: Val<'k>,
    /// Of the first scale.
    pub(crate) first_scale: Val<'k>,
    /// Strides, in f16.
    pub(crate) outer: Val<'k>,
    pub(crate) k_stride: Val<'k>,
    /// Indices along K of both parts.
    pub(crate) k_size: Val<'k>,
    /// Outer positions that may be loaded from.
    pub(crate) reach: Val<'k>,
    /// Scales.
    pub(crate) scales: Val<'k>,
}

impl<'k> DeclaredSplit<'k> {
    pub(crate) fn new(l: &Launch<'k>, name: &str, planes: &SplitOperand) -> Self {
        DeclaredSplit {
            words: l.bind(name, Elem::U32, Access::Read, planes.memory),
            scales: l.size(&format!("{name}_scales"), planes.scales),
            order: planes.order,
            outer: l.size(&format!("{name}_outer"), planes.outer),
        }
    }

    /// The matrix of a number; `k_size` are one part's, `size` is how many outer positions it has.
    pub(crate) fn operand(&self, number: Val<'k>, k_size: Val<'k>, size: Val<'k>) -> SplitMatrix<'k> {
        let k = number.builder();
        let interleaved = k_size * 2u32;
        let (outer, k_stride, reach) = match self.order {
            SplitLayout::Lines(Axis::Outer) => (k.u32(1), self.outer, self.outer),
            _ => (interleaved, k.u32(1), size),
        };
        SplitMatrix {
            words: self.words,
            order: self.order,
            base: number * self.outer * interleaved,
            first_scale: self.scales + number * self.outer,
            outer,
            k_stride,
            k_size: interleaved,
            reach,
            scales: self.outer,
        }
    }
}

impl<'k> SplitMatrix<'k> {
    /// The axis along which lines are contiguous.
    pub(crate) fn along(&self) -> Axis {
        match self.order {
            SplitLayout::Lines(along) => along,
            SplitLayout::Fragments { .. } => Axis::K,
        }
    }

    pub(crate) fn source(&self) -> StagedOperand<'k> {
        StagedOperand {
            per_word: 2,
            buffer: self.words,
            whole: true,
            outer: self.outer,
            k_stride: self.k_stride,
            base: self.base,
            k_size: self.k_size,
            tail: false,
            table: None,
            packed: None,
        }
    }

    pub(crate) fn scale(&self, position: Val<'k>) -> Val<'k> {
        self.words.load(self.first_scale + position)
    }
}

/// B as it was given.
pub(crate) struct UnsplitB<'k> {
    pub(crate) buffer: Buf<'k>,
    pub(crate) base: Val<'k>,
    pub(crate) outer: Val<'k>,
    pub(crate) k_stride: Val<'k>,
}

/// A in the layout it has in memory.
pub(crate) enum OperandA<'k> {
    /// With what is written of every batch, and the batch.
    Split(SplitMatrix<'k>, Buf<'k>, Val<'k>),
    /// With B as it was given.
    Unsplit(UnsplitRows<'k>, UnsplitB<'k>),
}

/// A in workgroup memory, and where it came from.
pub(crate) enum PanelA<'k> {
    Split { words: StagedPanel<'k>, matrix: SplitMatrix<'k>, outlier_flags: Buf<'k>, batch: Val<'k> },
    Converted(ConvertedPanel<'k>, UnsplitB<'k>),
}

impl<'k> PanelA<'k> {
    /// The scale of a row.
    pub(crate) fn scale(&self, row: Val<'k>) -> Val<'k> {
        match self {
            PanelA::Split { matrix, .. } => matrix.scale(row),
            PanelA::Converted(raw, _) => raw.scale(row),
        }
    }

    /// Puts the step at an index along K of both parts into workgroup memory.
    pub(crate) fn put(&self, at: Val<'k>) {
        match self {
            PanelA::Split { words, .. } => words.put(at),
            PanelA::Converted(raw, _) => raw.put(),
        }
    }

    pub(crate) fn fetch(&self, at: Val<'k>) {
        match self {
            PanelA::Split { words, .. } => words.fetch(at),
            PanelA::Converted(raw, _) => raw.fetch(at / 2u32),
        }
    }

    pub(crate) fn matrix(&self, ty: MatrixType, row: Val<'k>, k_offset: u32) -> Val<'k> {
        match self {
            PanelA::Split { words, .. } => words.matrix(ty, row, k_offset, false),
            PanelA::Converted(raw, _) => raw.matrix(ty, row, k_offset),
        }
    }
}

/// B and how it reaches the matrix units.
pub(crate) enum OperandB<'k> {
    /// Through workgroup memory.
    Staged(StagedPanel<'k>),
    /// Straight from memory.
    Direct(DirectFragments<'k>),
}

/// Fragments of a subgroup's columns, a step ahead in registers.
pub(crate) struct DirectFragments<'k> {
    pub(crate) k: &'k Builder,
    pub(crate) words: Buf<'k>,
    /// Where the lane's words of each 16 columns begin.
    pub(crate) columns: Vec<Val<'k>>,
    /// Both parts' 16 indices along K in a step.
    pub(crate) runs: u32,
    pub(crate) registers: Vec<Var<'k>>,
}

impl<'k> DirectFragments<'k> {
    /// Fragments of `wide` times 16 columns from `column` on, so many runs of 16 indices along K at a step; it holds
    /// none yet.
    pub(crate) fn begin(
        k: &'k Builder,
        b: &SplitMatrix<'k>,
        column: Val<'k>,
        (wide, runs): (u32, u32),
    ) -> Self {
        let down = b.k_size / RUN;
        let last = b.scales / RUN - 1u32;
        let begin = |j: u32| {
            let number = (column / RUN + j).min(last) * down;
            b.base / 2u32 + number * FRAGMENT + k.lane() * 4u32
        };
        DirectFragments {
            k,
            words: b.words,
            columns: (0..wide).map(begin).collect(),
            runs,
            registers: Vec::new(),
        }
    }

    /// The same with the step at k = `start` of both parts.
    pub(crate) fn new(
        k: &'k Builder,
        b: &SplitMatrix<'k>,
        column: Val<'k>,
        measures: (u32, u32),
        start: Val<'k>,
    ) -> Self {
        let mut direct = DirectFragments::begin(k, b, column, measures);
        direct.registers = direct.load(start).into_iter().map(|word| k.var(word)).collect();
        direct
    }

    /// The lane's words of the step at an index along K of both parts, column by column.
    pub(crate) fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        let first = at / RUN * FRAGMENT;
        let runs = 0..self.runs;
        let of = |column: &Val<'k>| {
            let at = *column + first;
            runs.clone().flat_map(move |run| self.words.load_vec(at + run * FRAGMENT, 4)).collect::<Vec<_>>()
        };
        self.columns.iter().flat_map(of).collect()
    }
}

impl<'k> OperandB<'k> {
    /// What is held of the step now, before the next one is fetched.
    pub(crate) fn in_registers(&self) -> Vec<Val<'k>> {
        match self {
            OperandB::Staged(_) => Vec::new(),
            OperandB::Direct(direct) => direct.registers.iter().map(|word| word.get()).collect(),
        }
    }

    pub(crate) fn put(&self, at: Val<'k>) {
        if let OperandB::Staged(words) = self {
            words.put(at);
        }
    }

    pub(crate) fn fetch(&self, at: Val<'k>) {
        match self {
            OperandB::Staged(words) => words.fetch(at),
            OperandB::Direct(direct) => {
                direct.registers.iter().zip(direct.load(at)).for_each(|(var, word)| var.set(word));
            }
        }
    }

    /// The matrix of the subgroup's `j`-th 16 columns, which begin at `column` of the block, at an index along K of
    /// both parts.
    pub(crate) fn matrix(
        &self,
        ty: MatrixType,
        held: &[Val<'k>],
        (column, j): (Val<'k>, u32),
        k_offset: u32,
    ) -> Val<'k> {
        match self {
            OperandB::Staged(words) => words.matrix(ty, column + j * SIDE, k_offset, true),
            OperandB::Direct(direct) => {
                let first = (4 * (j * direct.runs + k_offset / RUN)) as usize;
                let words = held.get(first..first + 4).unwrap_or_default();
                direct.k.matrix_of_words(ty, words)
            }
        }
    }
}
