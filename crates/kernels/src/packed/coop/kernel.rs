//! The kernel: decodes left matrices, multiplies them with packed x, and adds up what the subgroups have.

use std::collections::VecDeque;

use olivine_kernel::{Builder, Elem, MatrixType, MatrixUse, Scalar, Shared, Val, Var};

use super::cut::rows;
use super::pack::{DeclaredX, PackedX};
use super::{CoopCut, EACH, QUAD, SIDE};
use crate::launch::{Launch, bytes};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::Problem;
use crate::packed::decode::Group;
use crate::packed::gemv::RunShape;
use crate::packed::pool::Pool;
use crate::packed::weight::{DeclaredWeight, Loaded, Weight};
use crate::site::{Site, linear_group};

/// Steps whose matrices of x are loaded ahead of their use.
const AHEAD: u32 = 2;
/// Slots of four sums from one row of x to the next on the way to memory.
const PITCH: u32 = SIDE / 4 + 1;
/// Slots of a matrix of sums.
const SLOTS: u32 = PITCH * SIDE;

/// Emits the matmul by a weight, or by a weight and its twin, whose columns take turns then.
pub(crate) fn emit(
    problem: &Problem<'_>,
    (weight, twin): (&Weight, Option<&Weight>),
    (cut, elem): (CoopCut, Elem),
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let matrices = 1 + u32::from(twin.is_some());
    let columns = problem.columns() / matrices as usize;
    let down = rows(problem.m) / SIDE;
    let chunks = cut.chunks(problem.k_number());
    let shape = RunShape::new(cut.run, weight.is_strided(cut.run));
    let packed = PackedX { shape, elem, chunks, down };
    let x = packed.make(problem, site)?;

    let span = cut.tiles / matrices * SIDE;
    let across = columns.div_ceil((span * cut.across) as usize);
    let per_part = chunks.div_ceil(cut.splits as usize);
    let groups = across * cut.splits as usize;
    let k = site.builder("dequant_matmul_coop", cut.group());
    let l = Launch::new(&k);
    let x = DeclaredX::declare(&l, packed, x);
    let mut declared = weight.declare(&l);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", columns), l.size("k", problem.k));
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let (chunks, per_part) = (l.size("chunks", chunks), l.size("per_part", per_part));
    let epilogue = Epilogue::declare(&l, problem, destination, n * matrices);
    let walker = problem.batch.declare(&l, &problem.offsets());
    declared.share_table(&k, &Pool::new(&k), weight.table_words(), 1);
    let twin = twin.map(|twin| declared.for_twin(&l, twin));
    let weights: Vec<DeclaredWeight<'_>> = [declared].into_iter().chain(twin).collect();

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let part = id / across;
        let first = (id - part * across) * (span * cut.across);
        let (beside, slice) = (k.subgroup_id() % cut.across, k.subgroup_id() / cut.across);
        let work = SubgroupWork {
            k: &k,
            weights: &weights,
            x: &x,
            cut,
            elem,
            down,
            shape,
            column: first + beside * span,
            n,
            last_run: (k_size - 1u32) / cut.run,
        };
        let start = part * per_part;
        let end = (start + per_part).min(chunks);
        let sums = work.multiply((start + slice, end), chunks - 1u32);
        let base = BatchOffset { out: part * m * n, extras: walker.at(k.u32(0))[2..].to_vec() };
        work.meet(&sums, (m, first), &base, &epilogue);
    });
    let bound = l.done();
    let flops = 2 * problem.m * problem.n * problem.k;
    site.dispatch(k, bound, groups as u64, (flops, weight.bytes() * matrices + bytes(&problem.target.ty)))
}

/// What a subgroup multiplies.
struct SubgroupWork<'a, 'k> {
    k: &'k Builder,
    /// The weight, and the one whose rows are multiplied beside its own.
    weights: &'a [DeclaredWeight<'k>],
    x: &'a DeclaredX<'k>,
    cut: CoopCut,
    elem: Elem,
    /// Matrices of x side by side.
    down: u32,
    shape: RunShape,
    /// The first row of the weight.
    column: Val<'k>,
    n: Val<'k>,
    last_run: Val<'k>,
}

/// A row of the weight that a lane decodes a part of.
struct LaneRow<'a, 'k> {
    weight: &'a DeclaredWeight<'k>,
    row: Val<'k>,
    start: Val<'k>,
}

impl<'a, 'k> SubgroupWork<'a, 'k> {
    /// The rows of this lane, two of each left matrix; past the last, the last.
    fn rows(&self) -> Vec<LaneRow<'a, 'k>> {
        let matrices = self.weights.len() as u32;
        let row = |i: u32| {
            let (tile, half) = (i / 2, i % 2);
            let weight = &self.weights[(tile % matrices) as usize];
            let row = self.column + self.k.lane() / QUAD + (tile / matrices * SIDE + half * SIDE / 2);
            let row = row.min(self.n - 1u32);
            LaneRow { weight, row, start: weight.row(row) }
        };
        (0..2 * self.cut.tiles).map(row).collect()
    }

    /// The first element of this lane's run in a chunk; past the last run, that of the last.
    fn place(&self, chunk: Val<'k>) -> Val<'k> {
        self.shape.first((chunk * QUAD + self.k.lane() % QUAD).min(self.last_run))
    }

    fn load(&self, rows: &[LaneRow<'a, 'k>], chunk: Val<'k>) -> Vec<Val<'k>> {
        let at = self.place(chunk);
        rows.iter().flat_map(|row| row.weight.load(row.start, at, self.cut.run).0).collect()
    }

    /// The sums of the chunks from `first` on, so many apart, tile by tile; loads go to chunk `last` at most.
    fn multiply(&self, (first, end): (Val<'k>, Val<'k>), last: Val<'k>) -> Vec<Var<'k>> {
        let k = self.k;
        let sum = MatrixType { elem: Elem::F32, rows: SIDE, columns: SIDE, role: MatrixUse::Accumulator };
        let zero = k.f32(0.0).splat(sum);
        let sums: Vec<Var<'k>> = (0..self.cut.tiles * self.down).map(|_| k.var(zero)).collect();
        let rows = self.rows();
        let held: Vec<Var<'k>> = self.load(&rows, first.min(last)).into_iter().map(|w| k.var(w)).collect();
        let step = k.u32(self.cut.deep);
        k.for_(first, end, step, |chunk| {
            let words: Vec<Val<'k>> = held.iter().map(|w| w.get()).collect();
            // The last round loads once more what it has, so that the body stays straight-line code.
            let next = (chunk + step).lt(end).select(chunk + step, chunk);
            held.iter().zip(self.load(&rows, next)).for_each(|(var, word)| var.set(word));
            let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            self.multiply_chunk(&rows, chunk, &words, &mut running);
            sums.iter().zip(running).for_each(|(var, sum)| var.set(sum));
        });
        sums
    }

    fn multiply_chunk(
        &self,
        rows: &[LaneRow<'a, 'k>],
        chunk: Val<'k>,
        words: &[Val<'k>],
        running: &mut [Val<'k>],
    ) {
        let (at, run) = (self.place(chunk), self.cut.run);
        let decoded = rows.iter().zip(words.chunks(words.len() / rows.len()));
        let decoded: Vec<Vec<Group<'k>>> = decoded
            .map(|(row, words)| row.weight.decode(&Loaded(words.to_vec()), (row.start, row.row), at, run))
            .collect();
        let first = self.x.chunk(chunk);
        let left = MatrixType { elem: self.elem, rows: SIDE, columns: SIDE, role: MatrixUse::A };
        let steps = run / EACH;
        let mut loaded: VecDeque<Vec<Val<'k>>> =
            (0..AHEAD.min(steps)).map(|i| self.x.step(first, i)).collect();
        for step in 0..steps {
            if step + AHEAD < steps {
                loaded.push_back(self.x.step(first, step + AHEAD));
            }
            let x = loaded.pop_front().unwrap_or_default();
            for (tile, pair) in decoded.chunks(2).enumerate() {
                // The elements of both rows that a lane has of the matrix.
                let parts: Vec<Val<'k>> = pair.iter().flat_map(|groups| four(groups, run, step)).collect();
                let w = self.k.matrix_of(left, &parts);
                let sums = &mut running[tile * x.len()..][..x.len()];
                sums.iter_mut().zip(&x).for_each(|(sum, x)| *sum = w.matrix_mul_add(*x, *sum));
            }
        }
    }

    /// Adds up the sums of the subgroups that divide K, in their order, and finishes them: 16 rows of x at a time. The
    /// whole workgroup must call it.
    fn meet(
        &self,
        sums: &[Var<'k>],
        (m, first): (Val<'k>, Val<'k>),
        base: &BatchOffset<'k>,
        epilogue: &Epilogue<'k, '_>,
    ) {
        let (k, CoopCut { tiles, across, deep, .. }) = (self.k, self.cut);
        let matrices = self.weights.len() as u32;
        let memory = k.shared(Elem::U32, 4, tiles * across * deep * SLOTS);
        let mine = k.subgroup_id() * (tiles * SLOTS);
        // Runs of four columns of a row of x: those of both weights are finished together.
        let quads = SIDE * SIDE / 4;
        let count = across * (tiles / matrices) * quads;
        for i in 0..self.down {
            if i > 0 {
                k.barrier();
            }
            for tile in 0..tiles {
                let sum = sums[(tile * self.down + i) as usize].get();
                memory.store_matrix(mine + tile * SLOTS, k.u32(PITCH), true, sum);
            }
            k.barrier();
            k.for_(k.local_index(), k.u32(count), k.u32(k.group()), |number| {
                let (which, quad) = (number / quads, number % quads);
                let (line, four) = (quad / (SIDE / 4), quad % (SIDE / 4));
                let row = line + i * SIDE;
                k.if_(row.lt(m), || {
                    let from = which * (matrices * SLOTS) + line * PITCH + four;
                    let of = |matrix: u32| self.total(memory, from + matrix * SLOTS);
                    let totals: Vec<Vec<Val<'k>>> = (0..matrices).map(of).collect();
                    let all: Vec<Val<'k>> =
                        (0..4).flat_map(|j| totals.iter().map(move |four| four[j])).collect();
                    let column = first + which * SIDE + four * 4u32;
                    epilogue.store(base, row, column * matrices, &all);
                });
            });
        }
    }

    /// Four sums of all subgroups that divide K.
    fn total(&self, memory: Shared<'k>, from: Val<'k>) -> Vec<Val<'k>> {
        let CoopCut { tiles, across, deep, .. } = self.cut;
        let part = |slice: u32| -> Vec<Val<'k>> {
            let words = memory.load_vec(from + slice * (across * tiles * SLOTS));
            words.into_iter().map(|w| w.bitcast(Scalar::F32)).collect()
        };
        (1..deep).fold(part(0), |all, slice| all.into_iter().zip(part(slice)).map(|(x, y)| x + y).collect())
    }
}

/// The four elements of a step in the groups of a run.
fn four<'k>(groups: &[Group<'k>], run: u32, step: u32) -> Vec<Val<'k>> {
    let each = run / groups.len() as u32;
    if !each.is_multiple_of(EACH) {
        return groups.iter().flat_map(Group::values).skip((step * EACH) as usize).take(4).collect();
    }
    let first = step * EACH;
    groups[(first / each) as usize].four((first % each / EACH) as usize)
}
