//! The factors of a product by three on their way to the matrix units.
//!
//! ```text
//!   planes in lines ─────── Words ──┐
//!   rows of f32 ── Raw, split there ┴─ workgroup memory ─ matrices
//!   planes in fragments ──────────── Direct ───────────── matrices
//! ```

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, Val, Var};

use crate::launch::Launch;
use crate::matmul::coop::staging::{Source, Words};
use crate::matmul::problem::Axis;
use crate::matmul::split_f32::SIDE;
use crate::matmul::split_f32::convert::{Raw, Rows};
use crate::matmul::split_f32::split::{FRAGMENT, Order, Planes, RUN};

/// Planes as a kernel's arguments.
pub(crate) struct Declared<'k> {
    pub(crate) words: Buf<'k>,
    /// Where scales begin.
    pub(crate) scales: Val<'k>,
    pub(crate) order: Order,
    /// Outer positions with those that fill up.
    pub(crate) outer: Val<'k>,
}

/// A matrix of planes.
pub(crate) struct Matrix<'k> {
    pub(crate) words: Buf<'k>,
    pub(crate) order: Order,
    /// Index of the first f16.
    pub(crate) base: Val<'k>,
    /// Of the first scale.
    pub(crate) first_scale: Val<'k>,
    /// Strides, in f16.
    pub(crate) outer: Val<'k>,
    pub(crate) depth: Val<'k>,
    /// Depths of both planes.
    pub(crate) depths: Val<'k>,
    /// Outer positions that may be loaded from.
    pub(crate) reach: Val<'k>,
    /// Scales.
    pub(crate) scales: Val<'k>,
}

impl<'k> Declared<'k> {
    pub(crate) fn new(l: &Launch<'k>, name: &str, planes: &Planes) -> Self {
        Declared {
            words: l.bind(name, Elem::U32, Access::Read, planes.memory),
            scales: l.size(&format!("{name}_scales"), planes.scales),
            order: planes.order,
            outer: l.size(&format!("{name}_outer"), planes.outer),
        }
    }

    /// The matrix of a number; `depths` are one plane's, `size` is how many outer positions it has.
    pub(crate) fn factor(&self, number: Val<'k>, depths: Val<'k>, size: Val<'k>) -> Matrix<'k> {
        let k = number.builder();
        let doubled = depths * 2u32;
        let (outer, depth, reach) = match self.order {
            Order::Lines(Axis::Outer) => (k.u32(1), self.outer, self.outer),
            _ => (doubled, k.u32(1), size),
        };
        Matrix {
            words: self.words,
            order: self.order,
            base: number * self.outer * doubled,
            first_scale: self.scales + number * self.outer,
            outer,
            depth,
            depths: doubled,
            reach,
            scales: self.outer,
        }
    }
}

impl<'k> Matrix<'k> {
    /// The axis that lines lie along.
    pub(crate) fn along(&self) -> Axis {
        match self.order {
            Order::Lines(along) => along,
            Order::Fragments { .. } => Axis::Depth,
        }
    }

    pub(crate) fn source(&self) -> Source<'k> {
        Source {
            buffer: self.words,
            whole: true,
            outer: self.outer,
            depth: self.depth,
            base: self.base,
            depths: self.depths,
            tail: false,
            table: None,
        }
    }

    pub(crate) fn scale(&self, position: Val<'k>) -> Val<'k> {
        self.words.load(self.first_scale + position)
    }
}

/// B as it was given.
pub(crate) struct Original<'k> {
    pub(crate) buffer: Buf<'k>,
    pub(crate) base: Val<'k>,
    pub(crate) outer: Val<'k>,
    pub(crate) depth: Val<'k>,
}

/// A as it lies in memory.
pub(crate) enum Left<'k> {
    /// With what is written of every batch, and the batch.
    Planes(Matrix<'k>, Buf<'k>, Val<'k>),
    /// With B as it was given.
    Raw(Rows<'k>, Original<'k>),
}

/// A in workgroup memory, and where it came from.
pub(crate) enum Panel<'k> {
    Planes { words: Words<'k>, matrix: Matrix<'k>, verdicts: Buf<'k>, batch: Val<'k> },
    Raw(Raw<'k>, Original<'k>),
}

impl<'k> Panel<'k> {
    /// The scale of a row.
    pub(crate) fn scale(&self, row: Val<'k>) -> Val<'k> {
        match self {
            Panel::Planes { matrix, .. } => matrix.scale(row),
            Panel::Raw(raw, _) => raw.scale(row),
        }
    }

    /// Puts the step at a depth of both planes into workgroup memory.
    pub(crate) fn put(&self, at: Val<'k>) {
        match self {
            Panel::Planes { words, .. } => words.put(at),
            Panel::Raw(raw, _) => raw.put(),
        }
    }

    pub(crate) fn fetch(&self, at: Val<'k>) {
        match self {
            Panel::Planes { words, .. } => words.fetch(at),
            Panel::Raw(raw, _) => raw.fetch(at / 2u32),
        }
    }

    pub(crate) fn matrix(&self, ty: MatrixType, row: Val<'k>, depth: u32) -> Val<'k> {
        match self {
            Panel::Planes { words, .. } => words.matrix(ty, row, depth, false),
            Panel::Raw(raw, _) => raw.matrix(ty, row, depth),
        }
    }
}

/// B on its way to the matrix units.
pub(crate) enum Right<'k> {
    /// Through workgroup memory.
    Panel(Words<'k>),
    /// Straight from memory.
    Direct(Direct<'k>),
}

/// Fragments of a subgroup's columns, a step ahead in registers.
pub(crate) struct Direct<'k> {
    pub(crate) k: &'k Builder,
    pub(crate) words: Buf<'k>,
    /// Where the lane's words of each 16 columns begin.
    pub(crate) columns: Vec<Val<'k>>,
    /// Both planes' 16 depths in a step.
    pub(crate) runs: u32,
    pub(crate) held: Vec<Var<'k>>,
}

impl<'k> Direct<'k> {
    /// Fragments of `wide` times 16 columns from `column` on, so many runs of 16 depths at a step; it holds none yet.
    pub(crate) fn begin(k: &'k Builder, b: &Matrix<'k>, column: Val<'k>, (wide, runs): (u32, u32)) -> Self {
        let down = b.depths / RUN;
        let last = b.scales / RUN - 1u32;
        let begin = |j: u32| {
            let number = (column / RUN + j).min(last) * down;
            b.base / 2u32 + number * FRAGMENT + k.lane() * 4u32
        };
        Direct { k, words: b.words, columns: (0..wide).map(begin).collect(), runs, held: Vec::new() }
    }

    /// The same with the step at depth `start` of both planes.
    pub(crate) fn new(
        k: &'k Builder,
        b: &Matrix<'k>,
        column: Val<'k>,
        measures: (u32, u32),
        start: Val<'k>,
    ) -> Self {
        let mut direct = Direct::begin(k, b, column, measures);
        direct.held = direct.load(start).into_iter().map(|word| k.var(word)).collect();
        direct
    }

    /// The lane's words of the step at a depth of both planes, column by column.
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

impl<'k> Right<'k> {
    /// What is held of the step now, before the next one is fetched.
    pub(crate) fn held(&self) -> Vec<Val<'k>> {
        match self {
            Right::Panel(_) => Vec::new(),
            Right::Direct(direct) => direct.held.iter().map(|word| word.get()).collect(),
        }
    }

    pub(crate) fn put(&self, at: Val<'k>) {
        if let Right::Panel(words) = self {
            words.put(at);
        }
    }

    pub(crate) fn fetch(&self, at: Val<'k>) {
        match self {
            Right::Panel(words) => words.fetch(at),
            Right::Direct(direct) => {
                direct.held.iter().zip(direct.load(at)).for_each(|(var, word)| var.set(word));
            }
        }
    }

    /// The matrix of the subgroup's `j`-th 16 columns, which begin at `column` of the block, at a depth of both planes.
    pub(crate) fn matrix(
        &self,
        ty: MatrixType,
        held: &[Val<'k>],
        (column, j): (Val<'k>, u32),
        depth: u32,
    ) -> Val<'k> {
        match self {
            Right::Panel(words) => words.matrix(ty, column + j * SIDE, depth, true),
            Right::Direct(direct) => {
                let first = (4 * (j * direct.runs + depth / RUN)) as usize;
                let words = held.get(first..first + 4).unwrap_or_default();
                direct.k.matrix_of_words(ty, words)
            }
        }
    }
}
