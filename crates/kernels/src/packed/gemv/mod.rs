//! Few rows by a packed weight, bound by the speed at which the weight is read.
//!
//! A workgroup has some rows of the weight. Its clusters of invocations divide K among them. An invocation loads its part
//! of x once and keeps it in registers while it goes through the rows: what is read again and again is the weight
//! alone. Totals of the clusters meet in workgroup memory.
//!
//! Where the device has integer dot products, x is made integers first: see `quantize`.

mod cut;
mod quantize;
mod x;

use olivine_kernel::{Builder, Elem, Reduction, Target, Val};

use crate::launch::Launch;
use crate::math;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::grouped::experts;
use crate::matmul::problem::Problem;
use crate::packed::weight::{DeclaredWeight, Loaded, SMALL_TABLE, Weight};
use crate::site::{Site, linear_group};
use quantize::{DigitLayout, RunShape};
use x::{XReader, XRow, XRun};

pub(crate) use cut::{GemvCut, candidates, choose, digits};

/// The name of the family in records.
pub(crate) const FAMILY: &str = "dequant_gemv";

/// What a workgroup reads.
struct Gemv<'k> {
    k: &'k Builder,
    weight: DeclaredWeight<'k>,
    x: XReader<'k>,
    cut: GemvCut,
}

/// The rows of the weight that a workgroup has.
struct WeightRows<'k> {
    /// The first of its matrix.
    matrix: Val<'k>,
    /// The first of the workgroup in the matrix.
    first: Val<'k>,
    /// Rows of the matrix.
    n: Val<'k>,
}

impl<'k> WeightRows<'k> {
    /// The number of a row; past the last, that of the last.
    fn number(&self, column: Val<'k>) -> Val<'k> {
        self.matrix + (self.first + column).min(self.n - 1u32)
    }
}

impl<'k> Gemv<'k> {
    /// Loads an invocation's runs of some rows from `column` on.
    fn load(&self, rows: &WeightRows<'k>, column: Val<'k>, places: &[(Val<'k>, Val<'k>)]) -> Vec<Val<'k>> {
        let mut words = Vec::new();
        for u in 0..self.cut.unroll {
            let row = self.weight.row(rows.number(column + u));
            for (at, _) in places {
                words.extend(self.weight.load(row, *at, self.cut.run).0);
            }
        }
        words
    }

    /// The first element of an invocation's runs in a chunk, moved back to the last run where there is none.
    fn places(&self, chunk: Val<'k>) -> Vec<(Val<'k>, Val<'k>)> {
        let GemvCut { run, runs, width, .. } = self.cut;
        let last = (self.x.k_size - 1u32) / run;
        let place = |i: u32| {
            let number = (chunk * runs + i) * width + self.x.lane;
            (self.x.shape.first(number.min(last)), number.le(last))
        };
        (0..runs).map(place).collect()
    }

    /// The totals of a cluster, each passed to `put` with its number by one invocation.
    fn reduce(&self, mut totals: Vec<Val<'k>>, put: impl Fn(Val<'k>, Val<'k>)) {
        let (k, width, lane) = (self.k, self.cut.width, self.x.lane);
        let count = totals.len() as u32;
        let exchanged = k.target().subgroup.is_some_and(|s| s >= width) && count <= width;
        if !exchanged {
            let all: Vec<Val<'k>> =
                totals.iter().map(|t| k.cluster_reduce(width, *t, Reduction::Add)).collect();
            k.if_(lane.eq(0u32), || {
                (0u32..).zip(&all).for_each(|(i, total)| put(k.u32(i), *total));
            });
            return;
        }
        // Half of the lanes take over one half of the totals, half of those one half of the rest, and so on.
        let mut step = width / 2;
        while totals.len() > 1 {
            let upper = (lane & step).ne(0u32);
            let (low, high) = totals.split_at(totals.len() / 2);
            totals = (low.iter().zip(high))
                .map(|(a, b)| upper.select(*b, *a) + upper.select(*a, *b).shuffle_xor(step))
                .collect();
            step /= 2;
        }
        let mut total = totals[0];
        while step > 0 {
            total = total + total.shuffle_xor(step);
            step /= 2;
        }
        let each = width / count;
        k.if_((lane % each).eq(0u32), || put(lane / each, total));
    }
}

/// Emits the matmul: batches of at most some rows, or single rows with experts.
pub(crate) fn emit(
    problem: &Problem<'_>,
    weight: &Weight,
    cut: GemvCut,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let GemvCut { rows, run, unroll, span, clusters, width, lines, .. } = cut;
    let batches = problem.batch_count();
    let across = problem.columns().div_ceil(span as usize);
    let passes = problem.m.div_ceil(rows);
    let groups = passes * (across * batches * cut.splits as usize);
    let chunks = problem.k_number().div_ceil(cut.chunk() as usize);
    let per_part = chunks.div_ceil(cut.splits as usize).next_multiple_of(clusters as usize);
    // Sums are complete after one round.
    let once = cut.splits == 1 && chunks <= clusters as usize;

    let layout = match cut.digits {
        0 => None,
        _ => {
            let layout = DigitLayout::new(problem, weight, cut);
            Some((layout, layout.make(problem, site)?))
        }
    };
    let group = cut.group();
    let k = site.builder("dequant_gemv", group);
    let l = Launch::new(&k);
    let x = l.read("x", &problem.a.operand);
    let declared = weight.declare(&l);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let (chunks, per_part) = (l.size("chunks", chunks), l.size("per_part", per_part));
    let (passes, batches) = (l.size("passes", passes), l.size("batches", batches));
    let outer = l.stride("x_row", problem.a.outer);
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let chosen = problem.experts.as_ref().map(|e| experts::Ids::declare(&l, e));
    let sums = k.shared(Elem::F32, 1, span * rows * clusters);

    let me = k.local_index();
    let cluster = me / width;
    let (line, cluster) = match lines {
        1 => (k.u32(0), cluster),
        _ => (cluster / clusters, cluster % clusters),
    };
    let mut gemv = Gemv {
        k: &k,
        x: XReader {
            k: &k,
            x,
            cut,
            shape: RunShape::new(run, weight.is_strided(run)),
            k_size,
            lanes: vector_lanes(problem, run),
            whole: problem.k.is_multiple_of(run),
            lane: me % width,
            groups: declared.groups(run),
            digits: layout.map(|(layout, memory)| layout.declare(&l, memory, declared.groups(run).0)),
        },
        weight: declared,
        cut,
    };
    let staging = gemv.x.staging();
    gemv.weight.share_table(&k, weight.table_words(), table_copies(weight, cut, k.target()));
    let id = linear_group(&k);
    let live = id.lt(total);
    let number = id.min(total - 1u32);
    let rest = number / across;
    let first_column = (number - rest * across) * span;
    let (slice, pass) = (rest / passes, rest % passes);
    let (part, batch) = (slice / batches, slice % batches);
    let first_row = pass * rows;
    let at = walker.at(batch);
    let start = part * per_part;
    let end = (start + per_part).min(chunks);
    let expert = chosen.as_ref().map(|ids| {
        k.if_(me.eq(0u32), || ids.check(&k, batch));
        ids.at(&k, batch)
    });
    let matrix = expert.map_or(k.u32(0), |(expert, _)| expert * n);
    let weight_rows = WeightRows { matrix, first: first_column, n };
    if !once {
        k.for_(me, k.u32(span * rows * clusters), k.u32(group), |i| sums.store(i, k.f32(0.0)));
        k.barrier();
    }
    // All clusters go round as often, those without a chunk by zeros.
    k.for_(start, end, k.u32(clusters), |round| {
        let places = gemv.places(round + cluster);
        let row_at = |r: u32| {
            let row = (first_row + r).min(m - 1u32);
            XRow { number: batch * m + row, first: at[0] + row * outer }
        };
        // By rows of x, then by runs.
        let held: Vec<Vec<XRun<'_>>> =
            (0..rows).map(|r| gemv.x.hold(staging, row_at(r), (round, cluster), &places)).collect();
        k.for_(line * unroll, k.u32(span), k.u32(lines * unroll), |column| {
            let words = gemv.load(&weight_rows, column, &places);
            let mut words = words.chunks(words.len() / (unroll as usize * places.len()));
            let mut totals = Vec::new();
            for u in 0..unroll {
                let row = weight_rows.number(column + u);
                let mut of_row = vec![k.f32(0.0); rows as usize];
                for (i, ((at, _), words)) in places.iter().zip(words.by_ref()).enumerate() {
                    let loaded = Loaded(words.to_vec());
                    let groups = gemv.weight.decode(&loaded, (gemv.weight.row(row), row), *at, run);
                    for (total, held) in of_row.iter_mut().zip(&held) {
                        *total = held[i].dot(&groups, *total);
                    }
                }
                totals.extend(of_row);
            }
            gemv.reduce(totals, |i, total| {
                let to = (column * rows + i) * clusters + cluster;
                sums.store(to, if once { total } else { sums.load(to) + total });
            });
        });
    });
    k.barrier();
    let base = BatchOffset { out: slice * m * n, extras: at[2..].to_vec() };
    k.for_(me, k.u32(span * rows), k.u32(group), |i| {
        let (r, column) = (i / span, i % span);
        let row = first_row + r;
        k.if_(live & row.lt(m) & (first_column + column).lt(n), || {
            let from = (column * rows + r) * clusters;
            let sum = (1..clusters).fold(sums.load(from), |sum, c| sum + sums.load(from + c));
            // Rows without an expert are zeros.
            let sum = expert.map_or(sum, |(_, known)| known.select(sum, k.f32(0.0)));
            epilogue.store(&base, row, first_column + column, &[sum]);
        });
    });
    let bound = l.done();
    let flops = 2 * problem.m * problem.n * problem.k * problem.batches();
    let moved = weight.bytes() / experts_read(problem) + crate::launch::bytes(&problem.target.ty);
    site.dispatch(k, bound, groups, (flops, moved))
}

/// How many copies of a small table there is room for; 1 of others.
fn table_copies(weight: &Weight, cut: GemvCut, target: &Target) -> u32 {
    let apt =
        cut.digits > 0 && weight.table_words() == SMALL_TABLE && target.subgroup.is_some_and(|s| s >= 16);
    let others = 4 * cut.clusters * cut.span * cut.rows;
    let room = target.shared_bytes.saturating_sub(others) / (4 * SMALL_TABLE);
    if apt && room > 1 { 1 << room.min(32).ilog2() } else { 1 }
}

/// How many matrices there are to one that a matmul reads at least.
fn experts_read(problem: &Problem<'_>) -> u64 {
    problem.experts.as_ref().map_or(1, |e| (e.count / problem.batch_count().max(1)).max(1) as u64)
}

/// Neighbours of x that one load may take: x is contiguous along K.
fn vector_lanes(problem: &Problem<'_>, run: u32) -> u32 {
    if !problem.k.is_multiple_of(run) {
        return 1;
    }
    let batch = &problem.batch.strides[0];
    let mut steps = batch.iter().chain([&problem.a.outer]);
    let aligned = steps.all(|stride| stride.is_multiple_of(4)) && problem.a.operand.offset.is_multiple_of(4);
    if aligned && math::elem(problem.dtype()).size() <= 4 { 4 } else { 1 }
}
