//! f32 matmuls of few rows by three f16 matmuls, both operands straight from memory to the matrix units.
//!
//! Where it is known which elements of a matrix a lane holds, each lane loads those of A itself, scales and splits them
//! in registers and has its part of the matrix; parts of B lie in the order of fragments since they were loaded. No
//! workgroup memory is needed before the end, and no barrier: subgroups of a workgroup that share a block take steps
//! along K of their own, and their sums meet at the end.
//!
//! Rows are scaled anew at every step by the largest magnitude that the step has of them, and sums of a step are
//! brought back before they are added to those of all steps. So A is read once.

use std::fmt;

use olivine_ir::{DType, Dim};
use olivine_kernel::{
    Access, Buf, Builder, Elem, Fragments, MatrixType, MatrixUse, Reduction, Scalar, Val, Var,
};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::matmul::choice::{Shape, busy};
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::store::{AccumulatorStore, StorePrecision};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::split_f32::operands::{DeclaredSplit, DirectFragments, SplitMatrix, UnsplitB};
use crate::matmul::split_f32::split::{NON_FINITE, RUN, SplitForm};
use crate::matmul::split_f32::{LANES, SIDE, split};
use crate::matmul::tiled::{TileCoord, tile_coord};
use crate::matmul::vector_load::MatrixRole;
use crate::site::{Site, linear_group};

/// How a matmul is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SplitF32SmallM {
    /// Rows and columns of a subgroup, multiples of 16.
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// Indices along K of a step of a subgroup, 16, 32 or 64.
    pub(crate) k_step: u32,
    /// Subgroups of a workgroup, which share the indices along K; a power of two.
    pub(crate) slices: u32,
}

impl fmt::Display for SplitF32SmallM {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SplitF32SmallM { rows, columns, k_step, slices } = self;
        write!(f, "{rows}x{columns}x{k_step}/{slices}")
    }
}

impl SplitF32SmallM {
    fn group(self) -> u32 {
        self.slices * LANES
    }

    fn count(self, shape: &Shape) -> Dim {
        shape.n.div_ceil(self.columns) * shape.batches * shape.m.div_ceil(self.rows as usize)
    }

    /// Slots of workgroup memory for accumulators that are stored.
    fn slots(self) -> u32 {
        let matrices = (self.columns / SIDE).min(4);
        (matrices * SIDE / 4 + 1) * SIDE * self.slices
    }
}

/// Rows up to which matmuls are done so.
const SMALL_M_ROWS: usize = 512;
/// Indices along K of long sums.
const LONG: usize = 4096;
/// Magnitudes from which on a row is not multiplied so: what is between its scale and the column's may leave the range.
const LIMIT: u32 = (127 + 80) << 23;

/// Few columns: many subgroups to each block, so that the reading of long sums is divided.
const NARROW: SplitF32SmallM = SplitF32SmallM { rows: 16, columns: 64, k_step: 32, slices: 8 };
/// What makes most blocks of those that a device holds at once.
const MEDIUM: SplitF32SmallM = SplitF32SmallM { rows: 32, columns: 32, slices: 4, ..NARROW };
/// More columns to each row that is split.
const WIDE: SplitF32SmallM = SplitF32SmallM { columns: 64, k_step: 16, ..MEDIUM };

/// How a matmul that [`super`] may do is cut up; `None` where A must come another way.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<SplitF32SmallM> {
    let known = caps.target.fragments == Some(Fragments::Quads);
    let stored = problem.b.operand.stored && shape.m <= SMALL_M_ROWS;
    let along = problem.layout_of_a().along == Axis::K && problem.a.k_stride == 1;
    if !(known && stored && along) || problem.dtype() != DType::F32 {
        return None;
    }
    // As large as leave every core its share at once: one workgroup of eight subgroups, three of four. Long sums make
    // the reading count. Where most cores would have none, sums in parts are faster.
    let busy = busy(caps) as usize;
    let narrow = NARROW.count(shape);
    (4 * narrow >= busy).then(|| match () {
        () if 2 * narrow <= busy => NARROW,
        () if 2 * MEDIUM.count(shape) <= 3 * busy && shape.k < LONG => MEDIUM,
        () => WIDE,
    })
}

/// All cuts that are ever chosen.
pub(crate) const CUTS: [SplitF32SmallM; 3] = [NARROW, MEDIUM, WIDE];

/// Emits a matmul.
pub(crate) fn emit(
    problem: &Problem<'_>,
    cut: SplitF32SmallM,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let b = split::emit(problem, MatrixRole::B, SplitForm::Dealt, site)?;
    let columns = problem.n.div_ceil(cut.columns);
    let groups = problem.m.div_ceil(cut.rows) * columns * problem.batches();

    let k = site.builder("matmul_split_f32_small_m", cut.group());
    let l = Launch::new(&k);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", b.k_size));
    let planes = DeclaredSplit::new(&l, "b", &b);
    let given = l.bind("b_given", Elem::F32, Access::Read, problem.b.operand.memory);
    let strides =
        (l.stride("b_given_outer", problem.b.outer), l.stride("b_given_k_stride", problem.b.k_stride));
    let a = l.bind("a", Elem::F32, Access::Read, problem.a.operand.memory);
    let (a_outer, a_depths) = (l.stride("a_outer", problem.a.outer), l.size("a_k_size", problem.k));
    let total = l.size("groups", groups);
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let (mut walk, mut offsets) = (problem.batch.clone(), problem.offsets());
    let (of_given, given_offset) = (walk.strides[1].clone(), offsets[1]);
    walk.strides[1] = b.batch.iter().map(|s| Dim::from(*s)).collect();
    walk.strides.push(of_given);
    offsets[1] = Dim::ZERO;
    offsets.push(given_offset);
    let walker = walk.declare(&l, &offsets);

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let TileCoord { first, batch, .. } = tile_coord(id, (m, n, k_size), (cut.rows, cut.columns), None);
        let mut at = walker.at(batch);
        let Some(base) = at.pop() else { return k.fail("a matmul without a right operand") };
        let lanes = problem.layout_of_a().lanes as u32;
        let tail = !problem.k.is_multiple_of(split::K_MULTIPLE);
        let work = SubgroupWork {
            a: UnsplitA { buffer: a, base: at[0], outer: a_outer, k_size: a_depths, lanes, tail },
            b: planes.operand(at[1], k_size, n),
            given: UnsplitB { buffer: given, base, outer: strides.0, k_stride: strides.1 },
            first,
            size: (m, n),
            k_size,
            base: BatchOffset { out: batch * m * n, extras: at[2..].to_vec() },
        };
        multiply(&k, cut, &work, &epilogue);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}

/// A in memory, along K.
struct UnsplitA<'k> {
    buffer: Buf<'k>,
    base: Val<'k>,
    outer: Val<'k>,
    k_size: Val<'k>,
    /// Neighbours that may be loaded at once.
    lanes: u32,
    /// Whether steps may reach past the last index along K.
    tail: bool,
}

/// A workgroup's part of a matmul.
struct SubgroupWork<'k> {
    a: UnsplitA<'k>,
    b: SplitMatrix<'k>,
    given: UnsplitB<'k>,
    /// First row and column.
    first: (Val<'k>, Val<'k>),
    /// Rows and columns of the matmul.
    size: (Val<'k>, Val<'k>),
    /// Indices along K of a part of B.
    k_size: Val<'k>,
    base: BatchOffset<'k>,
}

/// Indices along K of 16 that a lane holds of a row: neighbours in memory, and dealt as parts of B are.
const FOUR: u32 = 4;
/// Rows from one that a lane holds elements of to the next.
const APART: u32 = 8;

/// The rows of a subgroup as a lane sees them: four of each 16 indices along K of every eighth row.
struct LaneRows<'k> {
    buffer: Buf<'k>,
    /// Where each row begins, or the lane's part of it if steps stay inside.
    rows: Vec<Val<'k>>,
    /// The lane's first index along K in 16.
    first: Val<'k>,
    /// How many are loaded at once.
    lanes: u32,
    /// The last index along K to load from, if steps may reach past it.
    last: Option<Val<'k>>,
    k_offset: u32,
}

impl<'k> LaneRows<'k> {
    fn new(
        k: &'k Builder,
        a: &UnsplitA<'k>,
        (row, size): (Val<'k>, Val<'k>),
        (rows, k_offset): (u32, u32),
    ) -> Self {
        let first = k.lane() % 4u32 * FOUR;
        let begin = |i: u32| {
            let row = (row + k.lane() / 4u32 + i * APART).min(size - 1u32);
            a.base + row * a.outer + if a.tail { k.u32(0) } else { first }
        };
        LaneRows {
            buffer: a.buffer,
            rows: (0..rows / APART).map(begin).collect(),
            first,
            lanes: a.lanes,
            last: a.tail.then(|| a.k_size - a.lanes),
            k_offset,
        }
    }

    /// The numbers of a step, row by row. Indices past the end of K repeat others; B's are zeros there.
    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        let runs = (0..self.k_offset).step_by(RUN as usize);
        let offsets = runs.flat_map(|run| (0..FOUR).step_by(self.lanes as usize).map(move |i| run + i));
        let places: Vec<Val<'k>> = offsets
            .map(|offset| match self.last {
                Some(last) => (at + self.first + offset).min(last),
                None => at + offset,
            })
            .collect();
        let some = |row: &Val<'k>, place: &Val<'k>| self.buffer.load_vec(*row + *place, self.lanes as u8);
        self.rows
            .iter()
            .flat_map(|row| places.iter().flat_map(|p| some(row, p)).collect::<Vec<_>>())
            .collect()
    }
}

/// What a lane has of both operands at a step: numbers of A, row by row, and words of B's matrices, column by column.
struct StepOperands<'k> {
    a: Vec<Val<'k>>,
    b: Vec<Vec<Val<'k>>>,
}

/// The same in variables.
struct StepRegisters<'k> {
    a: Vec<Var<'k>>,
    b: Vec<Vec<Var<'k>>>,
}

impl<'k> StepRegisters<'k> {
    fn set(&self, step: &StepOperands<'k>) {
        let put = |vars: &[Var<'k>], values: &[Val<'k>]| {
            vars.iter().zip(values).for_each(|(var, value)| var.set(*value));
        };
        put(&self.a, &step.a);
        self.b.iter().zip(&step.b).for_each(|(vars, words)| put(vars, words));
    }
}

impl<'k> StepOperands<'k> {
    fn held(&self, k: &'k Builder) -> StepRegisters<'k> {
        let vars = |values: &Vec<Val<'k>>| values.iter().map(|v| k.var(*v)).collect();
        StepRegisters { a: vars(&self.a), b: self.b.iter().map(vars).collect() }
    }

    fn of(held: &StepRegisters<'k>) -> Self {
        let values = |vars: &Vec<Var<'k>>| vars.iter().map(|v| v.get()).collect();
        StepOperands { a: values(&held.a), b: held.b.iter().map(values).collect() }
    }

    /// Adds the step's matmuls to the sums of all steps, and returns the largest magnitude of each row.
    fn add_to(&self, k: &'k Builder, cut: SplitF32SmallM, sums: &mut [Val<'k>]) -> Vec<Val<'k>> {
        let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
        let (left, right) = (matrix(Elem::F16, MatrixUse::A), matrix(Elem::F16, MatrixUse::B));
        let sum = matrix(Elem::F32, MatrixUse::Accumulator);
        let (zero, parts) = (k.f32(0.0), usize::from(Fragments::COUNT));
        let (down, wide) = ((cut.rows / SIDE) as usize, (cut.columns / SIDE) as usize);
        let of_row = (cut.k_step / 4) as usize;
        let largest: Vec<Val<'k>> = (self.a.chunks(of_row))
            .map(|row| {
                let mine = row.iter().fold(k.u32(0), |most, x| most.max(magnitude(*x)));
                k.cluster_reduce(4, mine, Reduction::Max)
            })
            .collect();
        let (by, back): (Vec<_>, Vec<_>) = largest.iter().map(|x| powers(*x)).unzip();
        let scaled: Vec<Vec<Val<'k>>> =
            (self.a.chunks(of_row).zip(by)).map(|(row, by)| row.iter().map(|x| *x * by).collect()).collect();
        // By 16 indices along K, then by 16 rows: the high and the low matrix.
        let x: Vec<Vec<[Val<'k>; 2]>> = (0..(cut.k_step / SIDE) as usize)
            .map(|k_offset| {
                let one = |i: usize| {
                    let four = |half: usize| &scaled[i * 2 + half][k_offset * parts / 2..][..parts / 2];
                    let high_and_low = [four(0), four(1)].concat().into_iter().map(high_and_low);
                    let (high, low): (Vec<_>, Vec<_>) = high_and_low.unzip();
                    [k.matrix_of(left, &high), k.matrix_of(left, &low)]
                };
                (0..down).map(one).collect()
            })
            .collect();
        for (j, words) in self.b.iter().enumerate() {
            let y = |run: usize| k.matrix_of_words(right, &words[4 * run..4 * run + 4]);
            let mut fresh = vec![zero.splat(sum); down];
            for (k_offset, x) in x.iter().enumerate() {
                let (y_high, y_low) = (y(2 * k_offset), y(2 * k_offset + 1));
                for (plane, y) in [(1, y_high), (0, y_low), (0, y_high)] {
                    fresh.iter_mut().zip(x).for_each(|(sum, x)| *sum = x[plane].matrix_mul_add(y, *sum));
                }
            }
            for (i, fresh) in fresh.into_iter().enumerate() {
                let mine = &mut sums[(i * wide + j) * parts..][..parts];
                for (part, (sum, x)) in mine.iter_mut().zip(fresh.matrix_parts()).enumerate() {
                    *sum = x.fma(back[i * 2 + part / (parts / 2)], *sum);
                }
            }
        }
        largest
    }
}

/// Multiplies one block and finishes it. The whole workgroup must call it.
fn multiply<'k>(k: &'k Builder, cut: SplitF32SmallM, work: &SubgroupWork<'k>, epilogue: &Epilogue<'k, '_>) {
    let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
    let sum = matrix(Elem::F32, MatrixUse::Accumulator);
    let parts = usize::from(Fragments::COUNT);
    let slice = k.subgroup_id();
    let (row, column) = work.first;
    let (down, wide) = (cut.rows / SIDE, cut.columns / SIDE);
    let runs = 2 * cut.k_step / RUN;
    let step = k.u32(cut.slices * cut.k_step);
    let first = slice * cut.k_step;
    let last = work.k_size - cut.k_step;

    let rows = LaneRows::new(k, &work.a, (row, work.size.0), (cut.rows, cut.k_step));
    let columns: Vec<DirectFragments<'k>> =
        (0..wide).map(|j| DirectFragments::begin(k, &work.b, column + j * SIDE, (1, runs))).collect();
    let load = |at: Val<'k>| StepOperands {
        a: rows.load(at),
        b: columns.iter().map(|of| of.load(at * 2u32)).collect(),
    };
    let sums: Vec<Var<'k>> = (0..cut.rows * cut.columns / LANES).map(|_| k.var(k.f32(0.0))).collect();
    let most = k.var(k.u32(0));
    let held = load(first.min(last)).held(k);
    k.for_(first, work.k_size, step, |at| {
        let now = StepOperands::of(&held);
        // The last step loads once more what it has, so that the body stays straight-line code.
        held.set(&load((at + step).min(last)));
        let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
        let largest = now.add_to(k, cut, &mut running);
        sums.iter().zip(running).for_each(|(var, sum)| var.set(sum));
        most.set(largest.into_iter().fold(most.get(), |most, x| most.max(x)));
    });

    let marked = most.get().ge(LIMIT) | has_mark(k, cut, work, column);
    let marked = marked.select(k.u32(1), k.u32(0));
    let marked = k.group_reduce_with(marked, |a, b| a | b).ne(0);
    let slots = cut.slots().max(MatrixForm::CARD.min_store_slots(cut.slices));
    let memory = k.shared(Elem::U32, 4, slots);
    let out = AccumulatorStore {
        k,
        form: MatrixForm::CARD,
        memory,
        slots,
        grain: StorePrecision::F32,
        subgroup: k.u32(0),
        slice,
        subgroups: 1,
        slices: cut.slices,
    };
    for i in 0..down {
        let of = |j: u32| {
            let mine = &sums[((i * wide + j) as usize) * parts..][..parts];
            k.matrix_of(sum, &mine.iter().map(|s| s.get()).collect::<Vec<_>>())
        };
        let columns: Vec<Val<'k>> = (0..wide).map(of).collect();
        let at_once = out.at_once().min(wide);
        for (j, some) in columns.chunks(at_once as usize).enumerate() {
            let column = column + j as u32 * at_once * SIDE;
            let rows = (row + i * SIDE, work.size.0);
            // Where sums are done once more below, these lead nowhere: subgroups wait for one another on the way.
            out.store(some, rows, column, epilogue.is_heavy(), |row, column, sums| {
                k.if_(!marked & column.lt(work.size.1), || {
                    epilogue.store(&work.base, row, column, &unscaled(&work.b, column, sums));
                });
            });
        }
    }
    k.if_(marked, || term_by_term(k, cut, work, epilogue));
}

/// The bits of |x|, in the order of magnitudes, NaN last.
fn magnitude(x: Val<'_>) -> Val<'_> {
    x.bitcast(Scalar::U32) & 0x7fff_ffffu32
}

/// The power of two that brings a magnitude into [2^14, 2^15), and its inverse; both are normal numbers.
fn powers(magnitude: Val<'_>) -> (Val<'_>, Val<'_>) {
    let scale = split::scale(magnitude & 0x7fff_ffffu32);
    (split::power_of(scale), back(scale))
}

/// 2^-s of a scale.
fn back(scale: Val<'_>) -> Val<'_> {
    ((scale.builder().u32(254) - (scale & 0xffu32)) << 23).bitcast(Scalar::F32)
}

/// The high and the low half of a number in the range of f16, by integers: compilers take a number less its own
/// rounding to be zero.
fn high_and_low(x: Val<'_>) -> (Val<'_>, Val<'_>) {
    let high = ((x.bitcast(Scalar::U32) + 0x1000u32) & 0xffff_e000u32).bitcast(Scalar::F32);
    (high, x - high)
}

/// Whether a lane's share of the scales of a subgroup's columns has a marked one.
fn has_mark<'k>(k: &'k Builder, cut: SplitF32SmallM, work: &SubgroupWork<'k>, column: Val<'k>) -> Val<'k> {
    let scales = (0..cut.columns.div_ceil(LANES)).map(|i| {
        let position = column + k.lane() % cut.columns + i * LANES;
        work.b.scale(position.min(work.size.1 - 1u32))
    });
    scales.fold(k.u32(0), |all, scale| all | scale).ge(NON_FINITE)
}

/// Sums as they are without the scales of their columns.
fn unscaled<'k>(b: &SplitMatrix<'k>, column: Val<'k>, sums: &[Val<'k>]) -> Vec<Val<'k>> {
    // Scales of columns that fill up are there and of no matter.
    let columns = b.words.load_vec(b.first_scale + column, sums.len() as u8);
    sums.iter().zip(columns).map(|(sum, scale)| *sum * back(scale)).collect()
}

/// Computes a workgroup's sums one term after another, with the infinities and NaNs of f32.
fn term_by_term<'k>(
    k: &'k Builder,
    cut: SplitF32SmallM,
    work: &SubgroupWork<'k>,
    epilogue: &Epilogue<'k, '_>,
) {
    let runs = cut.columns / 4;
    let (a, b, size) = (&work.a, &work.given, work.size);
    k.for_(k.local_index(), k.u32(cut.rows * runs), k.u32(k.group()), |number| {
        let (row, column) = (work.first.0 + number / runs, work.first.1 + number % runs * 4u32);
        k.if_(row.lt(size.0) & column.lt(size.1), || {
            let sums: Vec<Var<'k>> = (0..4).map(|_| k.var(k.f32(0.0))).collect();
            k.for_(k.u32(0), a.k_size, k.u32(1), |k_offset| {
                let x = a.buffer.load(a.base + row * a.outer + k_offset);
                for (i, sum) in sums.iter().enumerate() {
                    let column = (column + i).min(size.1 - 1u32);
                    let y = b.buffer.load(b.base + column * b.outer + k_offset * b.k_stride);
                    sum.set(x.fma(y, sum.get()));
                }
            });
            let sums: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            epilogue.store(&work.base, row, column, &sums);
        });
    });
}
