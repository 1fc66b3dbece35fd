//! Matmuls of a few dozen rows of f16 by cooperative matrices, near the speed at which B is read.
//!
//! Every subgroup of a workgroup takes indices along K of its own for all of the workgroup's rows and columns, so that
//! none waits for another before the end: slices of both operands go through registers, several ahead, into the
//! subgroup's own part of workgroup memory and from there into matrices. The subgroups' sums meet at the end.

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Scalar, Shared, Val, Var};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};

use crate::launch::Launch;
use crate::math;
use crate::matmul::choice::Shape;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::vector_load::{F16_PER_VECTOR, MatrixRole, max_vector};
use crate::site::{Site, linear_group};

/// How a small-M matmul is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallMCoop {
    /// Rows, at most as many; a multiple of 16.
    pub(crate) rows: u32,
    /// Columns of a workgroup, a multiple of 16.
    pub(crate) columns: u32,
    /// Subgroups of a workgroup.
    pub(crate) subgroups: u32,
    /// K of a slice, a multiple of 16.
    pub(crate) k_step: u32,
    /// Slices that are in flight at once in every subgroup.
    pub(crate) ahead: u32,
}

/// M, N and K of a matrix.
const SIDE: u32 = 16;
/// Lanes of a subgroup.
const LANES: u32 = 32;
/// Rows up to which matmuls count as narrow.
const MOST_ROWS: usize = 64;
/// N and K that make the cutting up worth it.
const LEAST: usize = 512;

impl SmallMCoop {
    /// Slots of a subgroup's part of workgroup memory: both operands' slices, or a matrix of sums.
    fn slots(self, b_along: Axis) -> u32 {
        let held = SliceLayout::new(Axis::K, self.rows, self.k_step).len()
            + SliceLayout::new(b_along, self.columns, self.k_step).len();
        held.max(OUT_PITCH * SIDE)
    }
}

/// Slots from one row of a matrix of sums to the next on its way to memory.
const OUT_PITCH: u32 = SIDE / 4 + 1;

/// How a matmul is divided; `None` where other kernels serve it.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<SmallMCoop> {
    let elem = math::elem(problem.dtype());
    let offered = caps.target.multiplies_fully(elem, Elem::F32, [SIDE, SIDE, SIDE]);
    let device = offered
        && matches!(caps.addressing, Addressing::Pointers)
        && !matches!(caps.kind, DeviceKind::Cpu)
        && caps.target.subgroup == Some(LANES);
    let b_along = problem.layout_of_b().along;
    // Fewer rows are read as fast without matrices, columns along K longer so.
    let fewest = if b_along == Axis::Outer { 3 } else { 8 };
    let fits = (fewest..=MOST_ROWS).contains(&shape.m) && shape.n >= LEAST && shape.k >= LEAST;
    if !device || !fits || shape.batches == 0 || problem.experts.is_some() || problem.taps.is_some() {
        return None;
    }
    let whole = max_vector(problem, MatrixRole::A, Axis::K) == F16_PER_VECTOR
        && max_vector(problem, MatrixRole::B, b_along) == F16_PER_VECTOR;
    if !whole {
        return None;
    }
    let mut cut = cut_up(shape, b_along);
    while cut.subgroups > 1
        && (cut.subgroups * cut.slots(b_along) * 16 > caps.target.shared_bytes
            || cut.subgroups * LANES > caps.target.max_invocations)
    {
        cut.subgroups /= 2;
    }
    Some(cut)
}

/// How a matmul of so many rows is cut up on a device with memory enough.
fn cut_up(shape: &Shape, b_along: Axis) -> SmallMCoop {
    let deep = b_along == Axis::K;
    let (rows, columns, subgroups, ahead) = match shape.m {
        ..=16 if deep => (16, 32, 8, 4),
        ..=16 => (16, 128, 8, 2),
        17..=32 => (32, 64, 4, 4),
        _ => (64, 64, 4, 2),
    };
    // Lines of B as long as leave enough workgroups to keep memory busy.
    let enough = |columns: &u32| shape.n.div_ceil(*columns) * shape.batches >= 32;
    let columns = [columns, 64, 32].into_iter().filter(|c| *c <= columns).find(enough).unwrap_or(32);
    // Lines along K are as long as slices are deep.
    let (k_step, ahead) = if deep { (2 * SIDE, ahead / 2) } else { (SIDE, ahead) };
    SmallMCoop { rows, columns, subgroups, k_step, ahead }
}

/// Emits a small-M matmul.
pub(crate) fn emit(
    problem: &Problem<'_>,
    cut: &SmallMCoop,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let across = problem.n.div_ceil(cut.columns);
    let batches = problem.batches();
    let groups = across * batches;
    let round = cut.subgroups * cut.ahead * cut.k_step;
    let tail = !problem.k.is_multiple_of(round);

    let k = site.builder("matmul_small_m_coop", cut.subgroups * LANES);
    let l = Launch::new(&k);
    let b_along = problem.layout_of_b().along;
    let bind = |name: &str, memory| l.bind(name, Elem::U32, Access::Read, memory);
    let (a, b) = (bind("a", problem.a.operand.memory), bind("b", problem.b.operand.memory));
    let a_outer = l.stride("a_outer", problem.a.outer);
    let b_other = match b_along {
        Axis::Outer => l.stride("b_k_stride", problem.b.k_stride),
        Axis::K => l.stride("b_outer", problem.b.outer),
    };
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let batch = id / across;
        let at = walker.at(batch);
        let column = (id - batch * across) * cut.columns;
        let memory = k.shared(Elem::U32, 4, cut.subgroups * cut.slots(b_along));
        let mine = k.subgroup_id() * cut.slots(b_along);
        let part = |buffer, along, other, base, first, count, measure: SliceLayout, to| {
            let source = SliceSource { buffer, along, other, base, end: k_size, tail };
            OperandSlices::new(&k, source, measure, (first, count), memory, to, cut.ahead)
        };
        let a_measure = SliceLayout::new(Axis::K, cut.rows, cut.k_step);
        let b_measure = SliceLayout::new(b_along, cut.columns, cut.k_step);
        let work = SmallMWork {
            a: part(a, Axis::K, a_outer, at[0], k.u32(0), m, a_measure, mine),
            b: part(b, b_along, b_other, at[1], column, n, b_measure, mine + a_measure.len()),
            k_size,
        };
        let elem = math::elem(problem.dtype());
        let sums = multiply(&k, elem, cut, &work);
        let base = BatchOffset { out: batch * m * n, extras: at[2..].to_vec() };
        meet(&k, cut, (memory, cut.slots(b_along)), &sums, (m, column), &base, &epilogue);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}

/// An operand in memory, in words.
struct SliceSource<'k> {
    buffer: Buf<'k>,
    along: Axis,
    /// The stride over the axis along which it is not contiguous.
    other: Val<'k>,
    base: Val<'k>,
    /// One past the last index along K.
    end: Val<'k>,
    /// Whether slices may be past it.
    tail: bool,
}

/// A slice's measures in workgroup memory: lines an odd number of slots apart.
#[derive(Clone, Copy)]
struct SliceLayout {
    along: Axis,
    lines: u32,
    slots: u32,
}

impl SliceLayout {
    fn new(along: Axis, outer: u32, k_offset: u32) -> Self {
        let (lines, inner) = match along {
            Axis::K => (outer, k_offset),
            Axis::Outer => (k_offset, outer),
        };
        SliceLayout { along, lines, slots: inner / F16_PER_VECTOR }
    }

    fn pitch(self) -> u32 {
        self.slots | 1
    }

    fn len(self) -> u32 {
        self.lines * self.pitch()
    }
}

/// A slot that a lane carries.
struct SliceLoad<'k> {
    /// Its destination.
    slot: Val<'k>,
    /// Its first element at k = 0.
    first: Val<'k>,
    /// Its index along K inside a slice.
    k_offset: Val<'k>,
}

/// An operand's slices on their way to a subgroup.
struct OperandSlices<'k> {
    k: &'k Builder,
    source: SliceSource<'k>,
    measure: SliceLayout,
    memory: Shared<'k>,
    to: Val<'k>,
    loads: Vec<SliceLoad<'k>>,
    /// The words of every slice that is in flight.
    held: Vec<Vec<Var<'k>>>,
}

impl<'k> OperandSlices<'k> {
    fn new(
        k: &'k Builder,
        source: SliceSource<'k>,
        measure: SliceLayout,
        (first, count): (Val<'k>, Val<'k>),
        memory: Shared<'k>,
        to: Val<'k>,
        ahead: u32,
    ) -> Self {
        let load = |i: u32| {
            let number = k.lane() + i * LANES;
            let (line, slot) = (number / measure.slots, number % measure.slots);
            let (first, k_offset) = match measure.along {
                Axis::K => ((first + line).min(count - 1u32) * source.other, slot * F16_PER_VECTOR),
                Axis::Outer => ((first + slot * F16_PER_VECTOR).min(count - F16_PER_VECTOR), line),
            };
            SliceLoad { slot: to + line * measure.pitch() + slot, first: source.base + first, k_offset }
        };
        let loads: Vec<SliceLoad<'k>> =
            (0..(measure.lines * measure.slots).div_ceil(LANES)).map(load).collect();
        let held = (0..ahead).map(|_| (0..4 * loads.len()).map(|_| k.var(k.u32(0))).collect()).collect();
        OperandSlices { k, source, measure, memory, to, loads, held }
    }

    /// Loads the slice at k = `at` into the registers of the i-th; indices past the end of K repeat others.
    fn fetch(&self, i: usize, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held[i].chunks(4)) {
            let k_offset = at + load.k_offset;
            let last = if self.measure.along == Axis::K { F16_PER_VECTOR } else { 1 };
            let k_offset = if self.source.tail { k_offset.min(self.source.end - last) } else { k_offset };
            let k_offset =
                if self.source.along == Axis::Outer { k_offset * self.source.other } else { k_offset };
            let words = self.source.buffer.load_vec((load.first + k_offset) / 2u32, 4);
            held.iter().zip(words).for_each(|(var, word)| var.set(word));
        }
    }

    /// Puts the i-th slice, which is at k = `at`, into workgroup memory; indices past the end of K are zeros.
    fn put(&self, i: usize, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held[i].chunks(4)) {
            let mut words: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            if self.source.tail {
                let inside = (at + load.k_offset).lt(self.source.end);
                words = words.into_iter().map(|w| inside.select(w, self.k.u32(0))).collect();
            }
            self.memory.store_vec(load.slot, &words);
        }
    }

    fn matrix(&self, elem: Elem, role: MatrixUse, outer: u32, k_offset: u32) -> Val<'k> {
        let ty = MatrixType { elem, rows: SIDE, columns: SIDE, role };
        let pitch = self.measure.pitch();
        let place = match self.measure.along {
            Axis::K => outer * pitch + k_offset / F16_PER_VECTOR,
            Axis::Outer => outer / F16_PER_VECTOR + k_offset * pitch,
        };
        // A is read by rows where K is the inner axis, and B where it is the outer one.
        let column_major = (self.measure.along == Axis::Outer) != (role == MatrixUse::B);
        self.memory.load_matrix(ty, self.to + place, self.k.u32(pitch), column_major)
    }
}

/// A workgroup's part of a matmul.
struct SmallMWork<'k> {
    a: OperandSlices<'k>,
    b: OperandSlices<'k>,
    /// Size of K.
    k_size: Val<'k>,
}

/// The sums of every subgroup, row by row of matrices.
fn multiply<'k>(k: &'k Builder, elem: Elem, cut: &SmallMCoop, work: &SmallMWork<'k>) -> Vec<Var<'k>> {
    let sum = MatrixType { elem: Elem::F32, rows: SIDE, columns: SIDE, role: MatrixUse::Accumulator };
    let (down, wide) = (cut.rows / SIDE, cut.columns / SIDE);
    let sums: Vec<Var<'k>> = (0..down * wide).map(|_| k.var(k.f32(0.0).splat(sum))).collect();
    let own = cut.ahead * cut.k_step;
    let step = k.u32(cut.subgroups * own);
    let mine = k.subgroup_id() * own;
    let (a, b) = (&work.a, &work.b);
    for i in 0..cut.ahead {
        let at = mine + i * cut.k_step;
        a.fetch(i as usize, at);
        b.fetch(i as usize, at);
    }
    k.for_(k.u32(0), work.k_size, step, |round| {
        // The last round loads once more what it has, so that the body stays straight-line code.
        let next = (round + step).lt(work.k_size).select(round + step, round);
        for i in 0..cut.ahead {
            let at = round + mine + i * cut.k_step;
            a.put(i as usize, at);
            b.put(i as usize, at);
            k.subgroup_barrier();
            a.fetch(i as usize, next + mine + i * cut.k_step);
            b.fetch(i as usize, next + mine + i * cut.k_step);
            let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            for k_offset in (0..cut.k_step).step_by(SIDE as usize) {
                let x: Vec<Val<'k>> =
                    (0..down).map(|i| a.matrix(elem, MatrixUse::A, i * SIDE, k_offset)).collect();
                for j in 0..wide {
                    let y = b.matrix(elem, MatrixUse::B, j * SIDE, k_offset);
                    for (i, x) in x.iter().enumerate() {
                        let sum = &mut running[i * wide as usize + j as usize];
                        *sum = x.matrix_mul_add(y, *sum);
                    }
                }
            }
            sums.iter().zip(running).for_each(|(var, value)| var.set(value));
            k.subgroup_barrier();
        }
    });
    sums
}

/// Adds up the subgroups' sums, in their order, and finishes them.
fn meet<'k>(
    k: &'k Builder,
    cut: &SmallMCoop,
    (memory, slots): (Shared<'k>, u32),
    sums: &[Var<'k>],
    (m, column): (Val<'k>, Val<'k>),
    base: &BatchOffset<'k>,
    epilogue: &Epilogue<'k, '_>,
) {
    let wide = cut.columns / SIDE;
    // As many matrices at once as a subgroup's part holds and the workgroup has invocations for.
    let each = OUT_PITCH * SIDE;
    let quads = SIDE * SIDE / 4;
    let at_once = (slots / each).min(cut.subgroups * LANES / quads).min(sums.len() as u32).max(1);
    for (round, some) in sums.chunks(at_once as usize).enumerate() {
        k.barrier();
        for (i, sum) in some.iter().enumerate() {
            let to = k.subgroup_id() * slots + i as u32 * each;
            memory.store_matrix(to, k.u32(OUT_PITCH), false, sum.get());
        }
        k.barrier();
        k.for_(k.local_index(), k.u32(some.len() as u32 * quads), k.u32(k.group()), |number| {
            let (which, quad) = (number / quads, number % quads);
            let (line, run) = (quad / (SIDE / 4), quad % (SIDE / 4));
            let from = which * each + line * OUT_PITCH + run;
            let matrix = which + round as u32 * at_once;
            let row = matrix / wide * SIDE + line;
            k.if_(row.lt(m), || {
                let part = |subgroup: u32| -> Vec<Val<'k>> {
                    let words = memory.load_vec(from + subgroup * slots);
                    words.into_iter().map(|w| w.bitcast(Scalar::F32)).collect()
                };
                let all = (1..cut.subgroups).fold(part(0), |all, subgroup| {
                    all.into_iter().zip(part(subgroup)).map(|(x, y)| x + y).collect()
                });
                epilogue.store(base, row, column + matrix % wide * SIDE + run * 4u32, &all);
            });
        });
    }
}
