//! What becomes of a tile's sums: zero points are taken off, or sums of parts brought back from their scales; then the epilogue
//! has them.
//!
//! Σ(a − p)(b − q) = Σab − qΣa − pΣb + kpq: sums of rows are counted on the way, those of columns when B is packed.

use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val, Var};

use super::kernel::Work;
use super::pack::{Matrices, Packed};
use crate::launch::Launch;
use crate::matmul::epilogue::{BatchOffset, Epilogue, LoadedInputs};
use crate::matmul::problem::Problem;
use crate::matmul::split_f32::split::back;
use crate::matmul::tiled::TileCoord;
use crate::site::{Memory, Operand};

/// The zero points of a matmul of integers, each one for all or one to a row of A or column of B.
pub(crate) struct ZeroOperands<'a> {
    /// Of A.
    pub(crate) a: Option<&'a Operand>,
    /// Of B.
    pub(crate) b: Option<&'a Operand>,
}

impl ZeroOperands<'_> {
    pub(super) fn want_column_sums(&self) -> bool {
        self.a.is_some()
    }

    pub(super) fn want_row_sums(&self) -> bool {
        self.b.is_some()
    }
}

/// A declared zero point.
struct ZeroPoint<'k> {
    buffer: Buf<'k>,
    /// How many there are, where there is one to a line.
    count: Option<Val<'k>>,
    /// Whether lines of several batches are counted on.
    repeats: bool,
}

impl<'k> ZeroPoint<'k> {
    fn declare(l: &Launch<'k>, name: &str, operand: &Operand, lines: olivine_ir::Dim) -> Self {
        let count = operand.sizes().first().copied();
        ZeroPoint {
            buffer: l.read(name, operand),
            count: count.map(|count| l.size(&format!("{name}s"), count)),
            repeats: count.is_some_and(|count| count.structural() != lines.structural()),
        }
    }

    /// That of a line that exists.
    fn of(&self, line: Val<'k>) -> Val<'k> {
        let index = match self.count {
            None => line.builder().u32(0),
            Some(count) if self.repeats => line % count,
            Some(_) => line,
        };
        self.buffer.load(index).convert(Scalar::I32)
    }
}

/// Declared zero points and sums of columns.
pub(super) struct ZeroPoints<'k> {
    a: Option<ZeroPoint<'k>>,
    b: Option<ZeroPoint<'k>>,
    /// With where they begin, and which batches have their own.
    column_sums: Option<(Buf<'k>, Val<'k>, Matrices)>,
    k_size: Val<'k>,
}

impl<'k> ZeroPoints<'k> {
    pub(super) fn declare(
        l: &Launch<'k>,
        zeros: &ZeroOperands<'_>,
        problem: &Problem<'_>,
        packed_b: &Packed,
    ) -> Self {
        let sums = || {
            let buffer = l.bind("b_sums", Elem::I32, Access::Read, packed_b.memory);
            (buffer, l.size("b_words", packed_b.words), packed_b.matrices.clone())
        };
        ZeroPoints {
            a: zeros.a.map(|zero| ZeroPoint::declare(l, "a_zero", zero, problem.m)),
            b: zeros.b.map(|zero| ZeroPoint::declare(l, "b_zero", zero, problem.n)),
            column_sums: zeros.want_column_sums().then(sums),
            k_size: l.size("k", problem.k).bitcast(Scalar::I32),
        }
    }
}

/// Declared scales of A's rows and B's columns.
pub(super) struct Scales<'k> {
    sides: [SideScales<'k>; 2],
    /// A word for every batch, not 0 where the parts serve badly.
    outliers: Buf<'k>,
}

/// Declared scales of one operand.
struct SideScales<'k> {
    buffer: Buf<'k>,
    /// Where they begin, and how many a matrix has.
    first: Val<'k>,
    count: Val<'k>,
    matrices: Matrices,
}

impl<'k> Scales<'k> {
    pub(super) fn declare(l: &Launch<'k>, packed: [&Packed; 2], outliers: Memory) -> Self {
        let mut names = ["a", "b"].into_iter();
        let sides = packed.map(|packed| {
            let name = names.next().unwrap_or_default();
            SideScales {
                buffer: l.bind(&format!("{name}_scales"), Elem::U32, Access::Read, packed.memory),
                first: l.size(&format!("{name}_words"), packed.words),
                count: l.size(&format!("{name}_count"), packed.scales),
                matrices: packed.matrices.clone(),
            }
        });
        Scales { sides, outliers: l.bind("outliers", Elem::U32, Access::Read, outliers) }
    }
}

/// What is done to sums before the epilogue.
pub(super) enum Correction<'k> {
    None,
    ZeroPoints(ZeroPoints<'k>),
    Scales(Scales<'k>),
}

impl<'k> Correction<'k> {
    pub(super) fn wants_row_sums(&self) -> bool {
        matches!(self, Correction::ZeroPoints(ZeroPoints { b: Some(_), .. }))
    }

    /// Whether it takes so many registers that few columns should be finished at once.
    fn is_heavy(&self) -> bool {
        match self {
            Correction::ZeroPoints(ZeroPoints { a, b: Some(b), .. }) => a.is_some() || b.count.is_some(),
            _ => false,
        }
    }

    /// What a lane needs to know of a tile and of its rows.
    fn of_tile<'e>(
        &'e self,
        end: &TileEnd<'k, '_>,
        tile: &TileCoord<'k>,
        rows: [Val<'k>; 2],
        row_sums: &[Val<'k>],
    ) -> TileCorrection<'k, 'e> {
        let zeros = match self {
            Correction::None => return TileCorrection::None,
            Correction::ZeroPoints(zeros) => zeros,
            Correction::Scales(Scales { sides: [a, b], outliers }) => {
                let first = |scales: &SideScales<'k>, side: usize| {
                    let number = end.work.matrix(&scales.matrices, side, tile.batch);
                    number.map_or(scales.first, |number| scales.first + number * scales.count)
                };
                let (of_a, of_b) = (first(a, 0), first(b, 1));
                return TileCorrection::Scales {
                    of_rows: rows.map(|row| a.buffer.load(of_a + row.min(end.work.m - 1u32))),
                    columns: (b.buffer, of_b, b.count - 4u32),
                    is_served: outliers.load(tile.batch).eq(0u32),
                };
            }
        };
        let first = zeros.column_sums.as_ref().map(|(_, first, matrices)| {
            let columns = end.work.form.columns;
            let across = (end.work.n + (columns - 1)) / columns * columns;
            let matrix = end.work.matrix(matrices, 1, tile.batch);
            matrix.map_or(*first, |matrix| *first + matrix * across)
        });
        TileCorrection::ZeroPoints {
            zeros,
            n: end.work.n,
            first,
            of_rows: rows.map(|row| zeros.a.as_ref().map(|zero| zero.of(row.min(end.work.m - 1u32)))),
            row_sums: row_sums.to_vec(),
            // One for all columns.
            of_all: zeros.b.as_ref().filter(|zero| zero.count.is_none()).map(|zero| zero.of(end.work.n)),
        }
    }
}

/// The same for a tile.
enum TileCorrection<'k, 'e> {
    None,
    ZeroPoints {
        zeros: &'e ZeroPoints<'k>,
        n: Val<'k>,
        /// Where the sums of the batch's columns begin.
        first: Option<Val<'k>>,
        /// Zero points of both rows.
        of_rows: [Option<Val<'k>>; 2],
        row_sums: Vec<Val<'k>>,
        /// B's zero point, if all columns have the same.
        of_all: Option<Val<'k>>,
    },
    Scales {
        of_rows: [Val<'k>; 2],
        /// Where those of the batch's columns begin, and the last four that there are.
        columns: (Buf<'k>, Val<'k>, Val<'k>),
        /// Whether the parts serve the batch.
        is_served: Val<'k>,
    },
}

/// What four neighbouring columns have of their own.
#[derive(Default)]
struct ColumnTerms<'k> {
    /// Zero points of B.
    zeros: Option<Vec<Val<'k>>>,
    /// Sums, less k times the zero point.
    sums: Option<Vec<Val<'k>>>,
    /// Scales of parts.
    scales: Vec<Val<'k>>,
}

impl<'k> TileCorrection<'k, '_> {
    /// What the four columns from `column` on have; columns past the last give any.
    fn terms(&self, column: Val<'k>) -> ColumnTerms<'k> {
        let (zeros, n, first, of_all) = match self {
            TileCorrection::None => return ColumnTerms::default(),
            TileCorrection::ZeroPoints { zeros, n, first, of_all, .. } => (zeros, n, first, of_all),
            TileCorrection::Scales { columns: (buffer, first, last), .. } => {
                let scales = buffer.load_vec(*first + column.min(*last), 4);
                return ColumnTerms { scales, ..ColumnTerms::default() };
            }
        };
        let of_b = zeros.b.as_ref().map(|zero| match of_all {
            Some(zero) => vec![*zero; 4],
            None => (0..4u32).map(|j| zero.of((column + j).min(*n - 1u32))).collect::<Vec<_>>(),
        });
        let sums = zeros.column_sums.as_ref().zip(*first).map(|((buffer, ..), first)| {
            let sums = buffer.load_vec(first + column, 4).into_iter();
            match &of_b {
                Some(of_b) => sums.zip(of_b).map(|(sum, zero)| sum - zeros.k_size * *zero).collect(),
                None => sums.collect::<Vec<_>>(),
            }
        });
        ColumnTerms { zeros: of_b, sums, scales: Vec::new() }
    }

    /// Whether a row is stored.
    fn stores(&self, is_row: Val<'k>) -> Val<'k> {
        match self {
            TileCorrection::Scales { is_served, .. } => is_row & *is_served,
            _ => is_row,
        }
    }

    /// The sums of one of both rows as they should be.
    fn apply(&self, half: usize, sums: [Val<'k>; 4], terms: &ColumnTerms<'k>) -> [Val<'k>; 4] {
        let (of_rows, row_sums) = match self {
            TileCorrection::None => return sums,
            TileCorrection::ZeroPoints { of_rows, row_sums, .. } => (of_rows, row_sums),
            TileCorrection::Scales { of_rows, .. } => {
                return std::array::from_fn(|j| {
                    let [first, second] = back(of_rows[half], terms.scales[j]);
                    sums[j] * first * second
                });
            }
        };
        std::array::from_fn(|j| {
            let mut sum = sums[j];
            if let (Some(zeros), Some(row_sum)) = (&terms.zeros, row_sums.get(half)) {
                sum = sum - zeros[j] * *row_sum;
            }
            match (&terms.sums, of_rows[half]) {
                (Some(column_sums), Some(zero)) => sum - zero * column_sums[j],
                _ => sum,
            }
        })
    }
}

/// The end of every tile.
pub(super) struct TileEnd<'k, 'e> {
    pub(super) k: &'k Builder,
    pub(super) work: &'e Work<'k, 'e>,
    pub(super) epilogue: Epilogue<'k, 'e>,
    pub(super) correction: Correction<'k>,
}

impl<'k> TileEnd<'k, '_> {
    /// Passes a tile's sums to the epilogue: of each 16 columns a lane has four neighbouring ones, in two rows.
    pub(super) fn finish(&self, tile: &TileCoord<'k>, sums: &[Var<'k>], row_sums: &[Val<'k>]) {
        let (k, epilogue) = (self.k, &self.epilogue);
        let (lane, warp) = (k.lane(), k.subgroup_id());
        let row = tile.first.0 + warp * 16u32 + lane / 4u32;
        let at = self.work.walker.at(tile.batch);
        let rows = [row, row + 8u32];
        let part = Part {
            k,
            epilogue,
            base: BatchOffset { out: tile.rest * self.work.m * self.work.n, extras: at[2..].to_vec() },
            rows,
            m: self.work.m,
            correction: self.correction.of_tile(self, tile, rows, row_sums),
        };
        let column = tile.first.1 + lane % 4u32 * 4u32;
        // Of a long epilogue there are few copies; single elements take more registers for their addresses.
        let few = epilogue.is_heavy() || epilogue.lanes() < 4 || self.correction.is_heavy();
        let together = if few { 2 } else { 4 };
        let each = 8 * together;
        if !epilogue.is_heavy() {
            for (i, some) in (0u32..).zip(sums.chunks(each)) {
                part.store(column + i * (16 * together as u32), some);
            }
            return;
        }
        let picked: Vec<Var<'k>> = (0..each).map(|_| k.var(k.f32(0.0))).collect();
        k.for_(k.u32(0), k.u32((sums.len() / each) as u32), k.u32(1), |i| {
            for (number, some) in (0u32..).zip(sums.chunks(each)) {
                k.if_(i.eq(number), || picked.iter().zip(some).for_each(|(to, sum)| to.set(sum.get())));
            }
            part.store(column + i * (16 * together as u32), &picked);
        });
    }
}

/// A lane's part of a tile on its way out.
struct Part<'k, 'e> {
    k: &'k Builder,
    epilogue: &'e Epilogue<'k, 'e>,
    base: BatchOffset<'k>,
    rows: [Val<'k>; 2],
    m: Val<'k>,
    correction: TileCorrection<'k, 'e>,
}

impl<'k> Part<'k, '_> {
    /// Stores the sums of some times 16 columns; the lane's first column is `column`. What the epilogue takes besides is
    /// loaded for all of them at once.
    fn store(&self, column: Val<'k>, sums: &[Var<'k>]) {
        let columns: Vec<Val<'k>> = (0..sums.len() as u32 / 8).map(|i| column + i * 16).collect();
        let load = |row: Val<'k>| -> Vec<LoadedInputs<'k>> {
            let row = row.min(self.m - 1u32);
            columns.iter().map(|column| self.epilogue.load_inputs(&self.base, row, *column, 4)).collect()
        };
        let loaded: Vec<Vec<LoadedInputs<'k>>> = match self.epilogue.preload() {
            None => Vec::new(),
            Some(true) => vec![load(self.rows[0])],
            Some(false) => self.rows.map(load).into(),
        };
        let terms: Vec<ColumnTerms<'k>> =
            columns.iter().map(|column| self.correction.terms(*column)).collect();
        for (half, row) in self.rows.into_iter().enumerate() {
            let loaded = loaded.get(half).or(loaded.first());
            self.k.if_(self.correction.stores(row.lt(self.m)), || {
                for (i, (column, sums)) in columns.iter().zip(sums.chunks(8)).enumerate() {
                    // Two columns of each of two accumulator blocks.
                    let sums = [0, 1, 4, 5].map(|j| sums[2 * half + j].get());
                    let sums = self.correction.apply(half, sums, &terms[i]);
                    match loaded.and_then(|loaded| loaded.get(i)) {
                        Some(loaded) => {
                            self.epilogue.store_with_inputs(&self.base, row, *column, &sums, loaded)
                        }
                        None => self.epilogue.store(&self.base, row, *column, &sums),
                    }
                }
            });
        }
    }
}
