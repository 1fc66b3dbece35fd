//! Few rows by a packed weight, bound by the speed at which the weight is read.
//!
//! A workgroup has some rows of the weight. Its clusters of invocations divide K among them. An invocation loads its part
//! of x once and keeps it in registers while it goes through the rows: what is read again and again is the weight
//! alone. Totals of the clusters meet in workgroup memory.

use std::fmt;

use olivine_kernel::{Buf, Builder, Elem, Reduction, Shared, Val, Var};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::math;
use crate::matmul::choice::busy;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::grouped::experts;
use crate::matmul::problem::Problem;
use crate::packed::weight::{DeclaredWeight, Loaded, Weight};
use crate::site::{Site, linear_group};

/// The name of the family in records.
pub(crate) const FAMILY: &str = "dequant_gemv";

/// How the work is divided. All but `span` and `splits` are powers of two, `clusters` aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemvCut {
    /// Rows of x in registers; more take several workgroups.
    pub(crate) rows: u32,
    /// Consecutive elements that an invocation decodes together.
    pub(crate) run: u32,
    /// Runs of an invocation, each from another stretch of K.
    pub(crate) runs: u32,
    /// Invocations of a cluster.
    pub(crate) width: u32,
    /// Clusters of a workgroup.
    pub(crate) clusters: u32,
    /// Rows of the weight whose loads are in flight together.
    pub(crate) unroll: u32,
    /// Rows of the weight of a workgroup, a multiple of `unroll`.
    pub(crate) span: u32,
    /// Parts of K, each with workgroups of its own.
    pub(crate) splits: u32,
}

impl GemvCut {
    /// Indices along K that a cluster has at once.
    fn chunk(self) -> u32 {
        self.width * self.run * self.runs
    }

    fn group(self) -> u32 {
        self.width * self.clusters
    }
}

impl fmt::Display for GemvCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemvCut { rows, run, runs, width, clusters, unroll, span, splits } = self;
        write!(f, "r{rows} {run}x{runs} w{width}x{clusters} u{unroll}/{span} s{splits}")
    }
}

/// Clusters whose part of x is in workgroup memory at a time.
const STAGED: u32 = 4;

/// Elements of x that an invocation has in registers, of all rows.
const REGISTERS: u32 = 64;

/// The default for a matmul of `m` by `n` by `k`, `batches` times.
pub(crate) fn choose(
    weight: &Weight,
    (m, n, k): (usize, usize, usize),
    batches: usize,
    caps: &DeviceCaps,
) -> GemvCut {
    let short = caps.wants_short_kernels();
    let rows = (m.next_power_of_two() as u32).min(4);
    // What x takes in registers leaves room for the loads of several rows.
    let run = if short { 8 } else { weight.preferred_run().min(2 * REGISTERS / rows) };
    let runs = if short { 1 } else { (32.min(REGISTERS / rows) / run).max(1) };
    let width = caps.target.subgroup.unwrap_or(16).clamp(4, 32);
    fit(
        GemvCut { rows, run, runs, width, clusters: 16, unroll: 4, span: 0, splits: 1 },
        (m, n, k),
        batches,
        caps,
    )
}

/// The same cut with as many clusters as K needs and rows that keep the device busy.
fn fit(cut: GemvCut, (m, n, k): (usize, usize, usize), batches: usize, caps: &DeviceCaps) -> GemvCut {
    let short = caps.wants_short_kernels();
    // No more runs than K has.
    let mut cut = cut;
    while cut.runs > 1 && k <= (cut.chunk() / 2) as usize {
        cut.runs /= 2;
    }
    let most = if short { 64 } else { 512 }.min(caps.target.max_invocations) / cut.width;
    let chunks = k.div_ceil(cut.chunk() as usize).max(1) as u32;
    let rounds = chunks.div_ceil(most.min(cut.clusters).max(1));
    let clusters = chunks.div_ceil(rounds);
    let passes = m.div_ceil(cut.rows as usize) * batches;
    let unroll = if short { 1 } else { cut.unroll };
    // Several workgroups to each of the device's processors; x is loaded anew by every one.
    let wanted = (2 * busy(caps) as usize).div_ceil(passes.max(1));
    let span = (n / wanted.max(1)).next_power_of_two().clamp(1, 16) as u32;
    let unroll = unroll.min(span);
    GemvCut { clusters, unroll, span: span.max(unroll), ..cut }
}

/// Cuts worth a measurement.
pub(crate) fn candidates(
    weight: &Weight,
    default: GemvCut,
    sizes: (usize, usize, usize),
    batches: usize,
    caps: &DeviceCaps,
) -> Vec<GemvCut> {
    let mut all = vec![default];
    let runs = [8, 16, 32, 64].into_iter().filter(|run| *run <= weight.longest_run());
    for run in runs {
        for held in [16, 32, 64] {
            for (unroll, span) in [(1, 8), (2, 8), (2, 16), (4, 4), (4, 8), (4, 16), (4, 32), (8, 8), (8, 32)]
            {
                if held < run || held * default.rows > 2 * REGISTERS || held > 4 * run {
                    continue;
                }
                let cut = GemvCut { run, runs: held / run, clusters: 16, unroll, ..default };
                let cut = GemvCut { unroll, span, ..fit(cut, sizes, batches, caps) };
                if !all.contains(&cut) {
                    all.push(cut);
                }
            }
        }
    }
    all
}

/// What a workgroup reads.
struct Gemv<'k> {
    k: &'k Builder,
    weight: DeclaredWeight<'k>,
    x: Buf<'k>,
    cut: GemvCut,
    k_size: Val<'k>,
    /// Neighbours of x that one load may take.
    lanes: u32,
    /// Whether every run ends within K.
    whole: bool,
    lane: Val<'k>,
}

/// An invocation's part of x for one run: a row's elements, and their sums by groups that share a scale.
struct Held<'k> {
    x: Vec<Val<'k>>,
    sums: Vec<Val<'k>>,
}

impl<'k> Gemv<'k> {
    /// The first index along K of an invocation's runs in a chunk, moved back to the last run where there is none.
    fn places(&self, chunk: Val<'k>) -> Vec<(Val<'k>, Val<'k>)> {
        let GemvCut { run, runs, width, .. } = self.cut;
        let last = (self.k_size - 1u32) / run * run;
        let place = |i: u32| {
            let at = ((chunk * runs + i) * width + self.lane) * run;
            (at.min(last), at.le(last))
        };
        (0..runs).map(place).collect()
    }

    /// All runs of a row of x that begins at `base`, through workgroup memory: neighbouring invocations load neighbours and
    /// store them where each finds its own run, in other banks than its neighbours do. So many clusters' at a time.
    fn hold_staged(
        &self,
        base: Val<'k>,
        round: Val<'k>,
        cluster: Val<'k>,
        staging: Shared<'k>,
    ) -> Vec<Held<'k>> {
        let GemvCut { run, runs, width, clusters, .. } = self.cut;
        let (k, per_run) = (self.k, run / 4);
        let pitch = per_run | 1;
        let per_cluster = width * runs * per_run;
        let zero = k.f32(0.0);
        let held: Vec<Vec<Var<'k>>> = (0..runs).map(|_| (0..run).map(|_| k.var(zero)).collect()).collect();
        k.for_(k.u32(0), k.u32(clusters), k.u32(STAGED), |first| {
            k.barrier();
            k.for_(k.local_index(), k.u32(STAGED * per_cluster), k.u32(k.group()), |number| {
                let at = ((round + first) * per_cluster + number) * 4u32;
                let inside = at.lt(self.k_size);
                let x = self.x.load_vec(base + at.min(self.k_size - 4u32), 4);
                let x: Vec<Val<'k>> = x.into_iter().map(|x| inside.select(x, zero)).collect();
                staging.store_vec(number / per_run * pitch + number % per_run, &x);
            });
            k.barrier();
            k.if_((cluster - first).lt(STAGED), || {
                for (i, run) in (0u32..).zip(&held) {
                    let from = (((cluster - first) * runs + i) * width + self.lane) * pitch;
                    for (j, four) in (0u32..).zip(run.chunks(4)) {
                        let x = staging.load_vec(from + j);
                        four.iter().zip(x).for_each(|(var, x)| var.set(x));
                    }
                }
            });
        });
        held.iter().map(|run| self.held(run.iter().map(|var| var.get()).collect())).collect()
    }

    /// Workgroup memory for [`Gemv::hold_staged`], if runs are so long that invocations would load far from each other.
    fn staging(&self) -> Option<Shared<'k>> {
        let GemvCut { run, runs, width, .. } = self.cut;
        let vectors = STAGED * width * runs * ((run / 4) | 1);
        let target = self.k.target();
        let apt = run > 8 && self.lanes == 4 && target.subgroup.is_some_and(|s| s >= 16);
        (apt && 16 * vectors <= target.shared_bytes / 2).then(|| self.k.shared(Elem::F32, 4, vectors))
    }

    /// A run of a row of x that begins at `base`; zeros where the run is none or K ends.
    fn hold(&self, base: Val<'k>, (at, inside): (Val<'k>, Val<'k>)) -> Held<'k> {
        let zero = self.k.f32(0.0);
        let mut x = Vec::with_capacity(self.cut.run as usize);
        for i in (0..self.cut.run).step_by(self.lanes as usize) {
            if self.whole {
                let loaded = self.x.load_vec(base + at + i, self.lanes as u8);
                x.extend(loaded.into_iter().map(|v| inside.select(v, zero)));
            } else {
                let index = at + i;
                let there = inside & index.lt(self.k_size);
                x.push(there.select(self.x.load(base + index.min(self.k_size - 1u32)), zero));
            }
        }
        self.held(x)
    }

    /// A run of x and the sums of its groups, where they are needed.
    fn held(&self, x: Vec<Val<'k>>) -> Held<'k> {
        let zero = self.k.f32(0.0);
        let (len, uses_sum) = self.weight.groups(self.cut.run);
        let sum = |x: &[Val<'k>]| x[1..].iter().fold(x[0], |sum, x| sum + *x);
        let sums = if uses_sum { x.chunks(len as usize).map(sum).collect() } else { vec![zero; x.len()] };
        Held { x, sums }
    }

    /// Adds up a run's products with every row of x.
    fn dots(
        &self,
        loaded: &Loaded<'k>,
        row: (Val<'k>, Val<'k>),
        at: Val<'k>,
        held: &[&Held<'k>],
        totals: &mut [Val<'k>],
    ) {
        let groups = self.weight.decode(loaded, row, at, self.cut.run);
        for (held, total) in held.iter().zip(totals) {
            let mut x = held.x.as_slice();
            for (group, sum) in groups.iter().zip(&held.sums) {
                let (mine, rest) = x.split_at(group.q.len());
                *total = group.dot(mine, *sum, *total);
                x = rest;
            }
        }
    }

    /// The totals of a cluster, each passed to `put` with its number by one invocation.
    fn reduce(&self, mut totals: Vec<Val<'k>>, put: impl Fn(Val<'k>, Val<'k>)) {
        let (k, width) = (self.k, self.cut.width);
        let count = totals.len() as u32;
        let exchanged = k.target().subgroup.is_some_and(|s| s >= width) && count <= width;
        if !exchanged {
            let all: Vec<Val<'k>> =
                totals.iter().map(|t| k.cluster_reduce(width, *t, Reduction::Add)).collect();
            k.if_(self.lane.eq(0u32), || {
                (0u32..).zip(&all).for_each(|(i, total)| put(k.u32(i), *total));
            });
            return;
        }
        // Half of the lanes take over one half of the totals, half of those one half of the rest, and so on.
        let mut step = width / 2;
        while totals.len() > 1 {
            let upper = (self.lane & step).ne(0u32);
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
        k.if_((self.lane % each).eq(0u32), || put(self.lane / each, total));
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
    let GemvCut { rows, run, unroll, span, clusters, width, .. } = cut;
    let batches = problem.batches();
    let across = problem.n.div_ceil(span as usize);
    let passes = problem.m.div_ceil(rows as usize);
    let groups = across * passes * batches * cut.splits as usize;
    let chunks = problem.k.div_ceil(cut.chunk() as usize);
    let per_part = chunks.div_ceil(cut.splits as usize).next_multiple_of(clusters as usize);

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
    let mut gemv = Gemv {
        k: &k,
        weight: declared,
        x,
        cut,
        k_size,
        lanes: vector_lanes(problem, run),
        whole: problem.k.is_multiple_of(run as usize),
        lane: me % width,
    };
    gemv.weight.share_table(&k, weight.table_words());
    let staging = gemv.staging();
    let cluster = me / width;
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
    k.for_(me, k.u32(span * rows * clusters), k.u32(group), |i| sums.store(i, k.f32(0.0)));
    k.barrier();
    // All clusters go round as often, those without a chunk by zeros.
    k.for_(start, end, k.u32(clusters), |round| {
        let places = gemv.places(round + cluster);
        let row_at = |r: u32| at[0] + (first_row + r).min(m - 1u32) * outer;
        // By rows of x, then by runs.
        let held: Vec<Vec<Held<'_>>> = (0..rows)
            .map(|r| match staging {
                Some(staging) => gemv.hold_staged(row_at(r), round, cluster, staging),
                None => places.iter().map(|place| gemv.hold(row_at(r), *place)).collect(),
            })
            .collect();
        k.for_(k.u32(0), k.u32(span), k.u32(unroll), |column| {
            let index = |u: u32| matrix + (first_column + column + u).min(n - 1u32);
            let lines: Vec<(Val<'_>, Val<'_>)> =
                (0..unroll).map(index).map(|row| (gemv.weight.row(row), row)).collect();
            let loaded: Vec<Vec<Loaded<'_>>> = lines
                .iter()
                .map(|line| places.iter().map(|(at, _)| gemv.weight.load(line.0, *at, run)).collect())
                .collect();
            let mut totals = Vec::new();
            for (line, loaded) in lines.iter().zip(&loaded) {
                let mut of_line = vec![k.f32(0.0); rows as usize];
                for (i, (loaded, (at, _))) in loaded.iter().zip(&places).enumerate() {
                    let held: Vec<&Held<'_>> = held.iter().map(|row| &row[i]).collect();
                    gemv.dots(loaded, *line, *at, &held, &mut of_line);
                }
                totals.extend(of_line);
            }
            gemv.reduce(totals, |i, total| {
                let to = (column * rows + i) * clusters + cluster;
                sums.store(to, sums.load(to) + total);
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
    let flops = 2 * (problem.m * problem.n * problem.k) as u64 * problem.batches() as u64;
    let moved = weight.bytes() / experts_read(problem) + crate::launch::bytes(&problem.target.ty);
    site.dispatch(k, bound, groups as u64, (flops, moved))
}

/// How many matrices there are to one that a matmul reads at least.
fn experts_read(problem: &Problem<'_>) -> u64 {
    problem.experts.as_ref().map_or(1, |e| (e.count / problem.batches().max(1)).max(1) as u64)
}

/// Neighbours of x that one load may take: x is contiguous along K.
fn vector_lanes(problem: &Problem<'_>, run: u32) -> u32 {
    if !problem.k.is_multiple_of(run as usize) {
        return 1;
    }
    let whole = |stride: &i64| stride % 4 == 0;
    let steps = problem.batch.strides[0].iter().chain([&problem.a.outer]);
    let aligned = steps.into_iter().all(whole) && problem.a.operand.offset.is_multiple_of(4);
    if aligned && math::elem(problem.dtype()).size() <= 4 { 4 } else { 1 }
}
