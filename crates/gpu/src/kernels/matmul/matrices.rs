//! Products by cooperative matrices: panels of 16-bit words in workgroup memory, sums in the matrices of subgroups.

use olivine_ir::DType;
use olivine_kernel::{Access, Builder, Elem, MatrixType, MatrixUse, Scalar, Shared, Val, Var};

use crate::caps::{Addressing, DeviceCaps};
use crate::lower::launch::Launch;
use crate::lower::site::{Site, linear_group};
use crate::math;

use super::choice::{Shape, busy};
use super::finish::{Base, Finish, Sink};
use super::panel::Span;
use super::problem::{Axis, Factor, Problem};
use super::tiled::{Place, place};
use super::words::{Measure, SLOT, Source, Words};

/// A workgroup's part of the product, and a subgroup's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocks {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) rows: u32,
    pub(super) columns: u32,
}

/// Rows, columns and depths of a matrix.
const SIDE: u32 = 16;
/// Depth of a step.
const DEPTH: u32 = 32;
/// Lanes of a subgroup.
const LANES: u32 = 32;

const LARGE: Blocks = Blocks { m: 128, n: 128, rows: 64, columns: 64 };
const MEDIUM: Blocks = Blocks { m: 64, n: 64, rows: 32, columns: 32 };
const LOW: Blocks = Blocks { m: 32, n: 64, rows: 16, columns: 32 };

impl Blocks {
    fn group(self) -> u32 {
        self.m / self.rows * (self.n / self.columns) * LANES
    }

    fn count(self, shape: &Shape) -> u64 {
        (shape.m.div_ceil(self.m as usize) * shape.n.div_ceil(self.n as usize) * shape.batches) as u64
    }
}

/// The blocks for a product, and into how many parts the summed axis goes; `None` where other kernels serve it.
pub(super) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<(Blocks, usize)> {
    let elem = math::elem(problem.dtype());
    let offered = caps
        .target
        .matrices
        .iter()
        .any(|s| (s.factor, s.accumulator, s.m, s.n, s.k) == (elem, Elem::F32, SIDE, SIDE, SIDE));
    let halves = matches!(problem.dtype(), DType::F16 | DType::BF16);
    let pointers = matches!(caps.addressing, Addressing::Pointers);
    let subgroups = caps.target.subgroup == Some(LANES);
    if !(halves && offered && pointers && subgroups && problem.experts.is_none()) {
        return None;
    }
    if shape.m.min(shape.n) <= super::choice::SKINNY || shape.k == 0 || shape.batches == 0 {
        return None;
    }
    let busy = busy(caps);
    let blocks = match shape.m {
        0..=32 => LOW,
        _ if LARGE.count(shape) * 2 >= busy => LARGE,
        _ => MEDIUM,
    };
    let wanted = (busy / blocks.count(shape).max(1)).max(1) as usize;
    let parts = wanted.min(shape.k / 256).clamp(1, 32);
    let chunk = shape.k.div_ceil(parts).next_multiple_of(DEPTH as usize);
    Some((blocks, shape.k.div_ceil(chunk)))
}

/// Whether slots of a factor can be loaded whole: neighbours along its axis, in whole slots, at aligned steps.
fn whole(problem: &Problem<'_>, factor: &Factor, along: Axis, extent: usize, number: usize) -> bool {
    let slot = i64::from(SLOT);
    let (unit, other, size) = match along {
        Axis::Outer => (factor.outer, factor.depth, extent),
        Axis::Depth => (factor.depth, factor.outer, problem.k),
    };
    let steps = problem.batch.strides[number].iter().copied().chain([other, factor.operand.offset as i64]);
    unit == 1 && size as i64 % slot == 0 && steps.into_iter().all(|s| s % slot == 0)
}

/// Emits a product by cooperative matrices, the summed axis in `splits` parts.
pub(super) fn emit(
    problem: &Problem<'_>,
    blocks: Blocks,
    splits: usize,
    sink: &Sink,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let shape = Shape { m: problem.m, n: problem.n, k: problem.k, batches: problem.batches() };
    let groups = blocks.count(&shape) as usize * splits;
    let chunk = problem.k.div_ceil(splits).next_multiple_of(DEPTH as usize);

    let k = site.builder("matmul_matrices", blocks.group());
    let l = Launch::new(&k);
    let factor = |name: &str, factor: &Factor, along: Axis, extent: usize, number: usize| {
        let whole = whole(problem, factor, along, extent, number);
        let elem = if whole { Elem::U32 } else { Elem::U16 };
        let buffer = l.bind(name, elem, Access::Read, factor.operand.memory);
        let stride = |axis: Axis, what: &str, value: i64| {
            if whole && along == axis { k.u32(1) } else { l.stride(&format!("{name}_{what}"), value) }
        };
        let (outer, depth) =
            (stride(Axis::Outer, "outer", factor.outer), stride(Axis::Depth, "depth", factor.depth));
        (buffer, whole, outer, depth)
    };
    let (a_along, b_along) = (problem.lie_of_a().along, problem.lie_of_b().along);
    let a = factor("a", &problem.a, a_along, problem.m, 0);
    let b = factor("b", &problem.b, b_along, problem.n, 1);
    let (m, n, depths) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let total = l.size("groups", groups);
    let parts = (splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", shape.batches)));
    let finish = Finish::declare(&l, problem, sink, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let tail = !problem.k.is_multiple_of(DEPTH as usize);

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let Place { first, rest, batch, start, end } = place(id, (m, n, depths), (blocks.m, blocks.n), parts);
        let at = walker.at(batch);
        let source = |(buffer, whole, outer, depth), along, base| Source {
            buffer,
            along,
            whole,
            outer,
            depth,
            base,
            depths,
            tail,
        };
        let work = Work {
            a: source(a, a_along, at[0]),
            b: source(b, b_along, at[1]),
            rows: Span { first: first.0, end: m, order: None },
            columns: Span { first: first.1, end: n, order: None },
            start,
            end,
            base: Base { out: rest * m * n, extras: at[2..].to_vec() },
        };
        multiply(&k, math::elem(problem.dtype()), blocks, work, &finish);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, problem.cost())
}

/// A workgroup's part of a product.
struct Work<'k> {
    a: Source<'k>,
    b: Source<'k>,
    rows: Span<'k>,
    columns: Span<'k>,
    start: Val<'k>,
    end: Val<'k>,
    base: Base<'k>,
}

/// Multiplies one block and finishes it. The whole workgroup must come here together.
fn multiply<'k>(k: &'k Builder, elem: Elem, blocks: Blocks, work: Work<'k>, finish: &Finish<'k, '_>) {
    let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
    let (left, right) = (matrix(elem, MatrixUse::A), matrix(elem, MatrixUse::B));
    let sum = matrix(Elem::F32, MatrixUse::Accumulator);
    let a_measure = Measure::new(work.a.along, blocks.m, DEPTH);
    let b_measure = Measure::new(work.b.along, blocks.n, DEPTH);
    let teams = blocks.group() / LANES;
    // The panel's memory serves the sums on their way out as well.
    let slots = a_measure.len().max(Out::pitch(1) * SIDE * teams);
    let a_memory = k.shared(Elem::U32, 4, slots);
    let b_memory = k.shared(Elem::U32, 4, b_measure.len());
    let a = Words::new(k, a_memory, work.a, &work.rows, a_measure, work.start);
    let b = Words::new(k, b_memory, work.b, &work.columns, b_measure, work.start);

    let team = k.subgroup_id();
    let across = blocks.n / blocks.columns;
    let (first_row, first_column) = (team / across * blocks.rows, team % across * blocks.columns);
    let (down, wide) = (blocks.rows / SIDE, blocks.columns / SIDE);
    let zero = k.f32(0.0).splat(sum);
    let sums: Vec<Var<'k>> = (0..down * wide).map(|_| k.var(zero)).collect();
    let step = k.u32(DEPTH);
    let fetch = |at: Val<'k>| {
        // The last step loads once more what it has, so that the body stays straight-line code.
        let next = at + step;
        let next = next.lt(work.end).select(next, at);
        a.fetch(next);
        b.fetch(next);
    };
    let x_at = |depth: u32| -> Vec<Val<'k>> {
        (0..down).map(|i| a.matrix(left, first_row + i * SIDE, depth, false)).collect()
    };
    let y_at = |depth: u32, j: u32| b.matrix(right, first_column + j * SIDE, depth, true);
    let add = |running: &mut [Val<'k>], x: &[Val<'k>], y: Val<'k>, j: u32| {
        for (i, x) in x.iter().enumerate() {
            let sum = &mut running[i * wide as usize + j as usize];
            *sum = x.matrix_mul_add(y, *sum);
        }
    };
    let running = || -> Vec<Val<'k>> { sums.iter().map(|s| s.get()).collect() };
    let keep = |running: Vec<Val<'k>>| sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    k.for_(work.start, work.end, step, |at| {
        k.barrier();
        a.put(at);
        b.put(at);
        k.barrier();
        fetch(at);
        let mut running = running();
        for depth in (0..DEPTH).step_by(SIDE as usize) {
            let x = x_at(depth);
            for j in 0..wide {
                add(&mut running, &x, y_at(depth, j), j);
            }
        }
        keep(running);
    });

    k.barrier();
    let out = Out { k, memory: a_memory, slots, teams, team };
    for i in 0..down {
        let row = work.rows.first + first_row + i * SIDE;
        let columns: Vec<Val<'k>> = (0..wide).map(|j| sums[(i * wide + j) as usize].get()).collect();
        let at_once = out.at_once().min(wide);
        for (j, some) in columns.chunks(at_once as usize).enumerate() {
            let column = work.columns.first + first_column + j as u32 * at_once * SIDE;
            out.store(some, (row, work.rows.end), column, &work.base, finish);
        }
    }
}

/// The way of sums from matrices to rows: through workgroup memory, a part of it to each subgroup.
struct Out<'k> {
    k: &'k Builder,
    memory: Shared<'k>,
    slots: u32,
    teams: u32,
    team: Val<'k>,
}

impl<'k> Out<'k> {
    /// Slots from one row to the next when so many matrices lie side by side.
    fn pitch(matrices: u32) -> u32 {
        matrices * SIDE / 4 + 1
    }

    /// Matrices that a subgroup's part holds side by side.
    fn at_once(&self) -> u32 {
        let fits = |matrices: &u32| Out::pitch(*matrices) * SIDE * self.teams <= self.slots;
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    fn store(
        &self,
        matrices: &[Val<'k>],
        (row, end): (Val<'k>, Val<'k>),
        column: Val<'k>,
        base: &Base<'k>,
        finish: &Finish<'k, '_>,
    ) {
        let k = self.k;
        let count = matrices.len() as u32;
        let pitch = Out::pitch(count);
        let mine = self.team * (pitch * SIDE);
        for (i, matrix) in matrices.iter().enumerate() {
            self.memory.store_matrix(mine + i as u32 * SIDE / 4, k.u32(pitch), false, *matrix);
        }
        k.subgroup_barrier();
        let runs = count * SIDE / 4;
        let put = |round: Val<'k>| {
            let number = round * LANES + k.lane();
            let (line, run) = (number / runs, number % runs);
            k.if_((row + line).lt(end), || {
                let sums: Vec<Val<'k>> = self.memory.load_vec(mine + line * pitch + run);
                let sums: Vec<Val<'k>> = sums.into_iter().map(|s| s.bitcast(Scalar::F32)).collect();
                finish.store(base, row + line, column + run * 4u32, &sums);
            });
        };
        let rounds = SIDE * runs / LANES;
        if finish.is_heavy() {
            k.for_(k.u32(0), k.u32(rounds), k.u32(1), put);
        } else {
            (0..rounds).for_each(|round| put(k.u32(round)));
        }
        k.subgroup_barrier();
    }
}
