//! Products of a few dozen rows of halves by cooperative matrices, near the speed at which B is read.
//!
//! Every subgroup of a workgroup takes depths of its own for all of the workgroup's rows and columns, so that none waits for
//! another before the end: slices of both factors go through registers, several ahead, into the subgroup's own part
//! of workgroup memory and from there into matrices. The subgroups' sums meet at the end.

use olivine_kernel::{Access, Buf, Builder, Elem, MatrixType, MatrixUse, Scalar, Shared, Val, Var};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};

use crate::launch::Launch;
use crate::math;
use crate::matmul::choice::Shape;
use crate::matmul::epilogue::{Base, Finish, Sink};
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::vector_load::{HALVES, Side, longest};
use crate::site::{Site, linear_group};

/// How a narrow product is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Narrow {
    /// Rows, at most as many; a multiple of 16.
    pub(crate) rows: u32,
    /// Columns of a workgroup, a multiple of 16.
    pub(crate) columns: u32,
    /// Subgroups of a workgroup.
    pub(crate) teams: u32,
    /// Depth of a slice, a multiple of 16.
    pub(crate) depth: u32,
    /// Slices that are under way at once in every subgroup.
    pub(crate) ahead: u32,
}

/// Rows, columns and depths of a matrix.
const SIDE: u32 = 16;
/// Lanes of a subgroup.
const LANES: u32 = 32;
/// Rows up to which products count as narrow.
const MOST_ROWS: usize = 64;
/// Columns and depths that make the cutting up worth it.
const LEAST: usize = 512;

impl Narrow {
    /// Slots of a subgroup's part of workgroup memory: both factors' slices, or a matrix of sums.
    fn slots(self, b_along: Axis) -> u32 {
        let held = Measure::new(Axis::Depth, self.rows, self.depth).len()
            + Measure::new(b_along, self.columns, self.depth).len();
        held.max(OUT_PITCH * SIDE)
    }
}

/// Slots from one row of a matrix of sums to the next on its way out.
const OUT_PITCH: u32 = SIDE / 4 + 1;

/// How a product is cut up; `None` where other kernels serve it.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<Narrow> {
    let elem = math::elem(problem.dtype());
    let offered = caps.target.multiplies(elem, Elem::F32, [SIDE, SIDE, SIDE]);
    let device = offered
        && matches!(caps.addressing, Addressing::Pointers)
        && !matches!(caps.kind, DeviceKind::Cpu)
        && caps.target.subgroup == Some(LANES);
    let b_along = problem.lie_of_b().along;
    // Fewer rows are read as fast without matrices, columns along the summed axis longer so.
    let fewest = if b_along == Axis::Outer { 3 } else { 8 };
    let fits = (fewest..=MOST_ROWS).contains(&shape.m) && shape.n >= LEAST && shape.k >= LEAST;
    if !device || !fits || shape.batches == 0 || problem.experts.is_some() || problem.taps.is_some() {
        return None;
    }
    let whole =
        longest(problem, Side::A, Axis::Depth) == HALVES && longest(problem, Side::B, b_along) == HALVES;
    if !whole {
        return None;
    }
    let mut cut = cut_up(shape, b_along);
    while cut.teams > 1
        && (cut.teams * cut.slots(b_along) * 16 > caps.target.shared_bytes
            || cut.teams * LANES > caps.target.max_invocations)
    {
        cut.teams /= 2;
    }
    Some(cut)
}

/// How a product of so many rows is cut up on a device with memory enough.
fn cut_up(shape: &Shape, b_along: Axis) -> Narrow {
    let deep = b_along == Axis::Depth;
    let (rows, columns, teams, ahead) = match shape.m {
        ..=16 if deep => (16, 32, 8, 4),
        ..=16 => (16, 128, 8, 2),
        17..=32 => (32, 64, 4, 4),
        _ => (64, 64, 4, 2),
    };
    // Lines of B as long as leave enough workgroups to keep memory busy.
    let enough = |columns: &u32| shape.n.div_ceil(*columns as usize) * shape.batches >= 32;
    let columns = [columns, 64, 32].into_iter().filter(|c| *c <= columns).find(enough).unwrap_or(32);
    // Lines along the summed axis are as long as slices are deep.
    let (depth, ahead) = if deep { (2 * SIDE, ahead / 2) } else { (SIDE, ahead) };
    Narrow { rows, columns, teams, depth, ahead }
}

/// Emits a narrow product.
pub(crate) fn emit(
    problem: &Problem<'_>,
    cut: &Narrow,
    sink: &Sink,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let across = problem.n.div_ceil(cut.columns as usize);
    let batches = problem.batches();
    let groups = across * batches;
    let round = cut.teams * cut.ahead * cut.depth;
    let tail = !problem.k.is_multiple_of(round as usize);

    let k = site.builder("matmul_narrow", cut.teams * LANES);
    let l = Launch::new(&k);
    let b_along = problem.lie_of_b().along;
    let bind = |name: &str, memory| l.bind(name, Elem::U32, Access::Read, memory);
    let (a, b) = (bind("a", problem.a.operand.memory), bind("b", problem.b.operand.memory));
    let a_outer = l.stride("a_outer", problem.a.outer);
    let b_other = match b_along {
        Axis::Outer => l.stride("b_depth", problem.b.depth),
        Axis::Depth => l.stride("b_outer", problem.b.outer),
    };
    let (m, n, depths) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let finish = Finish::declare(&l, problem, sink, n);
    let walker = problem.batch.declare(&l, &problem.offsets());

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let batch = id / across;
        let at = walker.at(batch);
        let column = (id - batch * across) * cut.columns;
        let memory = k.shared(Elem::U32, 4, cut.teams * cut.slots(b_along));
        let mine = k.subgroup_id() * cut.slots(b_along);
        let part = |buffer, along, other, base, first, count, measure: Measure, to| {
            let source = Source { buffer, along, other, base, end: depths, tail };
            Slices::new(&k, source, measure, (first, count), memory, to, cut.ahead)
        };
        let a_measure = Measure::new(Axis::Depth, cut.rows, cut.depth);
        let b_measure = Measure::new(b_along, cut.columns, cut.depth);
        let work = Work {
            a: part(a, Axis::Depth, a_outer, at[0], k.u32(0), m, a_measure, mine),
            b: part(b, b_along, b_other, at[1], column, n, b_measure, mine + a_measure.len()),
            depths,
        };
        let elem = math::elem(problem.dtype());
        let sums = multiply(&k, elem, cut, &work);
        let base = Base { out: batch * m * n, extras: at[2..].to_vec() };
        meet(&k, cut, (memory, cut.slots(b_along)), &sums, (m, column), &base, &finish);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, problem.cost())
}

/// A factor in memory, in words.
struct Source<'k> {
    buffer: Buf<'k>,
    along: Axis,
    /// The stride over the axis that it does not lie along.
    other: Val<'k>,
    base: Val<'k>,
    /// One past the last depth.
    end: Val<'k>,
    /// Whether slices may lie past it.
    tail: bool,
}

/// A slice's measures in workgroup memory: lines an odd number of slots apart.
#[derive(Clone, Copy)]
struct Measure {
    along: Axis,
    lines: u32,
    slots: u32,
}

impl Measure {
    fn new(along: Axis, outer: u32, depth: u32) -> Self {
        let (lines, inner) = match along {
            Axis::Depth => (outer, depth),
            Axis::Outer => (depth, outer),
        };
        Measure { along, lines, slots: inner / HALVES }
    }

    fn pitch(self) -> u32 {
        self.slots | 1
    }

    fn len(self) -> u32 {
        self.lines * self.pitch()
    }
}

/// A slot that a lane carries.
struct Load<'k> {
    /// Where it goes.
    slot: Val<'k>,
    /// Its first element at depth 0.
    first: Val<'k>,
    /// Its depth inside a slice.
    depth: Val<'k>,
}

/// A factor's slices on their way to a subgroup.
struct Slices<'k> {
    k: &'k Builder,
    source: Source<'k>,
    measure: Measure,
    memory: Shared<'k>,
    to: Val<'k>,
    loads: Vec<Load<'k>>,
    /// The words of every slice that is under way.
    held: Vec<Vec<Var<'k>>>,
}

impl<'k> Slices<'k> {
    fn new(
        k: &'k Builder,
        source: Source<'k>,
        measure: Measure,
        (first, count): (Val<'k>, Val<'k>),
        memory: Shared<'k>,
        to: Val<'k>,
        ahead: u32,
    ) -> Self {
        let load = |i: u32| {
            let number = k.lane() + i * LANES;
            let (line, slot) = (number / measure.slots, number % measure.slots);
            let (first, depth) = match measure.along {
                Axis::Depth => ((first + line).min(count - 1u32) * source.other, slot * HALVES),
                Axis::Outer => ((first + slot * HALVES).min(count - HALVES), line),
            };
            Load { slot: to + line * measure.pitch() + slot, first: source.base + first, depth }
        };
        let loads: Vec<Load<'k>> = (0..(measure.lines * measure.slots).div_ceil(LANES)).map(load).collect();
        let held = (0..ahead).map(|_| (0..4 * loads.len()).map(|_| k.var(k.u32(0))).collect()).collect();
        Slices { k, source, measure, memory, to, loads, held }
    }

    /// Loads the slice at depth `at` into the registers of the i-th; depths past the last repeat others.
    fn fetch(&self, i: usize, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held[i].chunks(4)) {
            let depth = at + load.depth;
            let last = if self.measure.along == Axis::Depth { HALVES } else { 1 };
            let depth = if self.source.tail { depth.min(self.source.end - last) } else { depth };
            let depth = if self.source.along == Axis::Outer { depth * self.source.other } else { depth };
            let words = self.source.buffer.load_vec((load.first + depth) / 2u32, 4);
            held.iter().zip(words).for_each(|(var, word)| var.set(word));
        }
    }

    /// Puts the i-th slice, which is at depth `at`, into workgroup memory; depths past the last are zeros.
    fn put(&self, i: usize, at: Val<'k>) {
        for (load, held) in self.loads.iter().zip(self.held[i].chunks(4)) {
            let mut words: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            if self.source.tail {
                let inside = (at + load.depth).lt(self.source.end);
                words = words.into_iter().map(|w| inside.select(w, self.k.u32(0))).collect();
            }
            self.memory.store_vec(load.slot, &words);
        }
    }

    fn matrix(&self, elem: Elem, role: MatrixUse, outer: u32, depth: u32) -> Val<'k> {
        let ty = MatrixType { elem, rows: SIDE, columns: SIDE, role };
        let pitch = self.measure.pitch();
        let place = match self.measure.along {
            Axis::Depth => outer * pitch + depth / HALVES,
            Axis::Outer => outer / HALVES + depth * pitch,
        };
        // A is read by rows where depths are the inner axis, and B where they are the outer one.
        let column_major = (self.measure.along == Axis::Outer) != (role == MatrixUse::B);
        self.memory.load_matrix(ty, self.to + place, self.k.u32(pitch), column_major)
    }
}

/// A workgroup's part of a product.
struct Work<'k> {
    a: Slices<'k>,
    b: Slices<'k>,
    /// All depths.
    depths: Val<'k>,
}

/// The sums of every subgroup, row by row of matrices.
fn multiply<'k>(k: &'k Builder, elem: Elem, cut: &Narrow, work: &Work<'k>) -> Vec<Var<'k>> {
    let sum = MatrixType { elem: Elem::F32, rows: SIDE, columns: SIDE, role: MatrixUse::Accumulator };
    let (down, wide) = (cut.rows / SIDE, cut.columns / SIDE);
    let sums: Vec<Var<'k>> = (0..down * wide).map(|_| k.var(k.f32(0.0).splat(sum))).collect();
    let own = cut.ahead * cut.depth;
    let step = k.u32(cut.teams * own);
    let mine = k.subgroup_id() * own;
    let (a, b) = (&work.a, &work.b);
    for i in 0..cut.ahead {
        let at = mine + i * cut.depth;
        a.fetch(i as usize, at);
        b.fetch(i as usize, at);
    }
    k.for_(k.u32(0), work.depths, step, |round| {
        // The last round loads once more what it has, so that the body stays straight-line code.
        let next = (round + step).lt(work.depths).select(round + step, round);
        for i in 0..cut.ahead {
            let at = round + mine + i * cut.depth;
            a.put(i as usize, at);
            b.put(i as usize, at);
            k.subgroup_barrier();
            a.fetch(i as usize, next + mine + i * cut.depth);
            b.fetch(i as usize, next + mine + i * cut.depth);
            let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            for depth in (0..cut.depth).step_by(SIDE as usize) {
                let x: Vec<Val<'k>> =
                    (0..down).map(|i| a.matrix(elem, MatrixUse::A, i * SIDE, depth)).collect();
                for j in 0..wide {
                    let y = b.matrix(elem, MatrixUse::B, j * SIDE, depth);
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
    cut: &Narrow,
    (memory, slots): (Shared<'k>, u32),
    sums: &[Var<'k>],
    (m, column): (Val<'k>, Val<'k>),
    base: &Base<'k>,
    finish: &Finish<'k, '_>,
) {
    let wide = cut.columns / SIDE;
    // As many matrices at once as a subgroup's part holds and the workgroup has invocations for.
    let each = OUT_PITCH * SIDE;
    let quads = SIDE * SIDE / 4;
    let at_once = (slots / each).min(cut.teams * LANES / quads).min(sums.len() as u32).max(1);
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
                let part = |team: u32| -> Vec<Val<'k>> {
                    let words = memory.load_vec(from + team * slots);
                    words.into_iter().map(|w| w.bitcast(Scalar::F32)).collect()
                };
                let all = (1..cut.teams)
                    .fold(part(0), |all, team| all.into_iter().zip(part(team)).map(|(x, y)| x + y).collect());
                finish.store(base, row, column + matrix % wide * SIDE + run * 4u32, &all);
            });
        });
    }
}
