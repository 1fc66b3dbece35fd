//! A workgroup's block of a split-f32 matmul: the loop over K, and what becomes of its sums.

use olivine_kernel::{Builder, Elem, MatrixType, MatrixUse, SubgroupOp, Val, Var};

use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::staging::{PanelLayout, StagedPanel};
use crate::matmul::coop::store::{AccumulatorStore, StorePrecision};
use crate::matmul::epilogue::{BatchOffset, Epilogue};
use crate::matmul::problem::Axis;
use crate::matmul::split_f32::convert::ConvertedPanel;
use crate::matmul::split_f32::operands::{
    DirectFragments, OperandA, OperandB, PanelA, SplitMatrix, UnsplitB,
};
use crate::matmul::split_f32::split::{NON_FINITE, OUTLIER, RUN, SplitLayout, back};
use crate::matmul::split_f32::{LANES, SIDE, SplitF32Tile};
use crate::matmul::tiled::panel::TileSpan;

/// A workgroup's part of a matmul.
pub(crate) struct BlockWork<'k> {
    pub(crate) b: SplitMatrix<'k>,
    /// First row and column.
    pub(crate) first: (Val<'k>, Val<'k>),
    /// Rows and columns of the matmul.
    pub(crate) size: (Val<'k>, Val<'k>),
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
    pub(crate) base: BatchOffset<'k>,
}

/// Multiplies one block and finishes it. The whole workgroup must call it.
pub(crate) fn multiply<'k>(
    k: &'k Builder,
    blocks: SplitF32Tile,
    left: OperandA<'k>,
    work: BlockWork<'k>,
    epilogue: &Epilogue<'k, '_>,
) {
    let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
    let (first_factor, second) = (matrix(Elem::F16, MatrixUse::A), matrix(Elem::F16, MatrixUse::B));
    let sum = matrix(Elem::F32, MatrixUse::Accumulator);
    let a_along = match &left {
        OperandA::Split(matrix, ..) => matrix.along(),
        OperandA::Unsplit(..) => Axis::K,
    };
    let a_measure = PanelLayout::new(a_along, blocks.m, 2 * blocks.k);
    let subgroups = blocks.group() / LANES;
    // The panel's memory serves the accumulators that are stored as well.
    let slots = a_measure.len().max(MatrixForm::CARD.min_store_slots(subgroups));
    let a_memory = k.shared(Elem::U32, 4, slots);
    let subgroup = k.subgroup_id();
    let across = blocks.n / blocks.columns;
    let (first_row, first_column) = (subgroup / across * blocks.rows, subgroup % across * blocks.columns);
    let (down, wide) = (blocks.rows / SIDE, blocks.columns / SIDE);
    let (row, column) = (work.first.0 + first_row, work.first.1 + first_column);
    let span = |first: Val<'k>, end: Val<'k>| TileSpan { first, end, order: None };
    let (start, end) = (work.start * 2u32, work.end * 2u32);
    let b = match work.b.order {
        SplitLayout::Fragments { .. } => {
            OperandB::Direct(DirectFragments::new(k, &work.b, column, (wide, 2 * blocks.k / RUN), start))
        }
        SplitLayout::Lines(along) => {
            let measure = PanelLayout::new(along, blocks.n, 2 * blocks.k);
            let memory = k.shared(Elem::U32, 4, measure.len());
            let columns = span(work.first.1, work.b.reach);
            OperandB::Staged(StagedPanel::new(k, memory, work.b.source(), &columns, measure, start))
        }
    };
    let a = match left {
        OperandA::Split(matrix, outlier_flags, batch) => {
            let rows = span(work.first.0, matrix.reach);
            let words = StagedPanel::new(k, a_memory, matrix.source(), &rows, a_measure, start);
            PanelA::Split { words, matrix, outlier_flags, batch }
        }
        OperandA::Unsplit(rows, given) => {
            let span = span(work.first.0, work.size.0);
            let (size, k_size) = ((blocks.m, blocks.k), (work.start, work.end));
            PanelA::Converted(ConvertedPanel::new(k, a_memory, rows, &span, size, k_size), given)
        }
    };

    let zero = k.f32(0.0).splat(sum);
    let sums: Vec<Var<'k>> = (0..down * wide).map(|_| k.var(zero)).collect();
    let step = k.u32(2 * blocks.k);
    k.for_(start, end, step, |at| {
        k.barrier();
        a.put(at);
        b.put(at);
        k.barrier();
        let held = b.in_registers();
        // The last step loads once more what it has, so that the body stays straight-line code.
        let next = at + step;
        let next = next.lt(end).select(next, at);
        a.fetch(next);
        b.fetch(next);
        let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
        let x_at = |k_offset: u32| -> Vec<Val<'k>> {
            (0..down).map(|i| a.matrix(first_factor, first_row + i * SIDE, k_offset)).collect()
        };
        let highs = (0..2 * blocks.k).step_by(2 * RUN as usize);
        let x: Vec<_> = highs.map(|high| (high, x_at(high), x_at(high + RUN))).collect();
        for j in 0..wide {
            let mut fresh = vec![zero; down as usize];
            for (high, x_high, x_low) in &x {
                let y_at = |k_offset: u32| b.matrix(second, &held, (first_column, j), k_offset);
                let (y_high, y_low) = (y_at(*high), y_at(*high + RUN));
                for (x, y) in [(x_low, y_high), (x_high, y_low), (x_high, y_high)] {
                    fresh.iter_mut().zip(x).for_each(|(sum, x)| *sum = x.matrix_mul_add(y, *sum));
                }
            }
            for (i, fresh) in fresh.into_iter().enumerate() {
                let sum = &mut running[i * wide as usize + j as usize];
                *sum = sum.matrix_add(fresh);
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    });

    k.barrier();
    let store = || {
        let out = AccumulatorStore {
            k,
            form: MatrixForm::CARD,
            memory: a_memory,
            slots,
            grain: StorePrecision::F32,
            subgroup,
            slice: k.u32(0),
            subgroups,
            slices: 1,
        };
        for i in 0..down {
            let columns: Vec<Val<'k>> = (0..wide).map(|j| sums[(i * wide + j) as usize].get()).collect();
            let at_once = out.at_once().min(wide);
            for (j, some) in columns.chunks(at_once as usize).enumerate() {
                let column = column + j as u32 * at_once * SIDE;
                let rows = (row + i * SIDE, work.size.0);
                out.store(some, rows, column, epilogue.is_heavy(), |row, column, sums| {
                    k.if_(column.lt(work.size.1), || {
                        epilogue.store(&work.base, row, column, &unscaled(a.scale(row), &work, column, sums));
                    });
                });
            }
        }
    };
    match &a {
        PanelA::Converted(raw, given) => {
            let marked = marks(k, row, work.size.0, blocks.rows, |row| raw.scale(row))
                | marks(k, column, work.size.1, blocks.columns, |column| work.b.scale(column));
            let instead = || term_by_term(k, (raw, given), &work, (row, column), blocks, epilogue);
            k.if_else(marked.subgroup(SubgroupOp::Any), instead, store);
        }
        PanelA::Split { matrix, outlier_flags, batch, .. } => {
            let wild = any_outlier(k, [matrix, &work.b]);
            let first = (work.first.0 | work.first.1 | work.start | k.local_index()).eq(0);
            k.if_(first, || outlier_flags.store(*batch, wild.select(k.u32(1), k.u32(0))));
            k.if_(!wild, store);
        }
    }
}

/// Whether any row or column is marked; every invocation of the workgroup must take part.
fn any_outlier<'k>(k: &'k Builder, sides: [&SplitMatrix<'k>; 2]) -> Val<'k> {
    let all = k.var(k.u32(0));
    for side in sides {
        k.for_(k.local_index() * 4u32, side.scales, k.u32(4 * k.group()), |position| {
            let some = side.words.load_vec(side.first_scale + position, 4);
            all.set(some.into_iter().fold(all.get(), |all, scale| all | scale));
        });
    }
    let all = k.group_reduce_with(all.get(), |a, b| a | b);
    // All invocations have the same; that whole subgroups do is what the stores of matrices need to know.
    all.ge(OUTLIER).subgroup(SubgroupOp::Any)
}

/// Whether an invocation's share of so many scales of a subgroup has a marked one.
fn marks<'k>(
    k: &'k Builder,
    first: Val<'k>,
    size: Val<'k>,
    count: u32,
    scale: impl Fn(Val<'k>) -> Val<'k>,
) -> Val<'k> {
    let scales = (0..count.div_ceil(LANES)).map(|i| {
        let position = first + k.lane() % count + i * LANES;
        scale(position.min(size - 1u32))
    });
    let all = scales.fold(k.u32(0), |all, scale| all | scale);
    all.ge(NON_FINITE)
}

/// Sums of a row of that scale as they are without scales.
fn unscaled<'k>(row: Val<'k>, work: &BlockWork<'k>, column: Val<'k>, sums: &[Val<'k>]) -> Vec<Val<'k>> {
    // Scales of columns that fill up are there and of no matter.
    let columns = work.b.words.load_vec(work.b.first_scale + column, sums.len() as u8);
    let each = |(sum, column): (&Val<'k>, Val<'k>)| {
        let [first, second] = back(row, column);
        *sum * first * second
    };
    sums.iter().zip(columns).map(each).collect()
}

/// Computes a subgroup's sums with the infinities and NaNs of f32.
fn term_by_term<'k>(
    k: &'k Builder,
    (a, b): (&ConvertedPanel<'k>, &UnsplitB<'k>),
    work: &BlockWork<'k>,
    (row, column): (Val<'k>, Val<'k>),
    blocks: SplitF32Tile,
    epilogue: &Epilogue<'k, '_>,
) {
    let runs = blocks.columns / 4;
    k.for_(k.lane(), k.u32(blocks.rows * runs), k.u32(LANES), |number| {
        let (row, column) = (row + number / runs, column + number % runs * 4u32);
        k.if_(row.lt(work.size.0) & column.lt(work.size.1), || {
            let sums: Vec<Var<'k>> = (0..4).map(|_| k.var(k.f32(0.0))).collect();
            k.for_(work.start, work.end.min(a.k_size()), k.u32(1), |k_offset| {
                let x = a.element(row, k_offset);
                for (i, sum) in sums.iter().enumerate() {
                    let column = (column + i).min(work.size.1 - 1u32);
                    let y = b.buffer.load(b.base + column * b.outer + k_offset * b.k_stride);
                    sum.set(x.fma(y, sum.get()));
                }
            });
            let sums: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            epilogue.store(&work.base, row, column, &sums);
        });
    });
}
