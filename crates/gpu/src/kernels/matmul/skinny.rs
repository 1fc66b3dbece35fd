//! Products with few rows, bound by the speed at which B is read: every element of it is read once.

use olivine_kernel::{Builder, Reduction, Val, Var};

use crate::lower::launch::Launch;
use crate::lower::site::{Site, linear_group};

use super::choice::{SWEEP_WIDTH, cluster_columns};
use super::experts;
use super::finish::{Base, Finish, Sink, sum_elem};
use super::multiply_add;
use super::problem::{Axis, Lie, Problem};
use super::tiled::declare_strides;

/// Loads of B that are under way at once in every invocation.
const UNDER_WAY: u32 = 4;

/// How a skinny product is cut up.
pub(super) struct Skinny {
    /// Rows, at most as many; a power of two.
    pub(super) rows: usize,
    /// Parts of the summed axis.
    pub(super) splits: usize,
}

/// A product with columns of B read along the summed axis: a cluster of `width` invocations to some columns.
pub(super) fn dots(
    problem: &Problem<'_>,
    cut: &Skinny,
    width: u32,
    sink: &Sink,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256).max(width);
    let columns = cluster_columns(cut.rows);
    let per_batch = problem.n.div_ceil(columns);
    let batches = problem.batches();
    let clusters = per_batch * batches * cut.splits;
    // Vectors only where both factors allow them; both are read along depths.
    let lie_a = problem.lie_of_a();
    let lanes = match (lie_a.along, problem.lie_of_b()) {
        (Axis::Depth, Lie { along: Axis::Depth, lanes }) => lanes.min(lie_a.lanes),
        _ => 1,
    };
    let lie = Lie { along: Axis::Depth, lanes };
    let step = width * lanes as u32;
    let chunk = problem.k.div_ceil(cut.splits).next_multiple_of((step * UNDER_WAY) as usize);

    let k = site.builder("matmul_dots", group);
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let (m, n, depths) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let (total, per_batch) = (l.size("clusters", clusters), l.size("per_batch", per_batch));
    let parts = (cut.splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let finish = Finish::declare(&l, problem, sink, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let (a_outer, a_depth) = declare_strides(&l, "a", &problem.a, lie);
    let (b_outer, b_depth) = declare_strides(&l, "b", &problem.b, lie);

    let cluster = linear_group(&k) * (group / width) + k.local_index() / width;
    // Clusters past the last work for nothing, so that all take part in reductions.
    let live = cluster.lt(total);
    let number = cluster.min(total - 1u32);
    let rest = number / per_batch;
    let column = (number - rest * per_batch) * columns;
    let (batch, start, end) = part_of(&k, rest, depths, parts);
    let at = walker.at(batch);
    let row_at: Vec<Val<'_>> =
        (0..cut.rows).map(|r| at[0] + (m - 1u32).min(k.u32(r as u32)) * a_outer).collect();
    let column_at: Vec<Val<'_>> =
        (0..columns).map(|c| at[1] + (column + c).min(n - 1u32) * b_outer).collect();

    let zero = k.number(sum_elem(a.elem()).scalar(), 0.0);
    let sums: Vec<Var<'_>> = (0..cut.rows * columns).map(|_| k.var(zero)).collect();
    let round = |depths: &[Val<'_>]| {
        let mut running: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
        let weights: Vec<Vec<Vec<Val<'_>>>> = depths
            .iter()
            .map(|d| column_at.iter().map(|c| b.load_vec(*c + *d * b_depth, lanes as u8)).collect())
            .collect();
        for (d, weights) in depths.iter().zip(&weights) {
            for (r, row) in row_at.iter().enumerate() {
                let x = a.load_vec(*row + *d * a_depth, lanes as u8);
                for (c, weight) in weights.iter().enumerate() {
                    let sum = &mut running[r * columns + c];
                    *sum = x.iter().zip(weight).fold(*sum, |sum, (x, w)| multiply_add(*x, *w, sum));
                }
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    };
    let first = start + k.local_index() % width * lanes;
    let under_way = if width == 1 { 1 } else { UNDER_WAY };
    sweep_depths(&k, (start, first, end), step, under_way, &round);

    let base = Base { out: rest * m * n, extras: at[2..].to_vec() };
    let mut results: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
    if width > 1 {
        results = results.into_iter().map(|s| k.cluster_reduce(width, s, Reduction::Add)).collect();
    }
    let leads = (k.local_index() % width).eq(0u32);
    k.if_(live, || {
        k.if_(leads, || {
            for (r, run) in results.chunks(columns).enumerate() {
                let row = k.u32(r as u32);
                k.if_(row.lt(m), || finish.store(&base, row, column, run));
            }
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, (clusters as u64).div_ceil(u64::from(group / width)), problem.cost())
}

/// A product with rows of B read as they lie: invocations side by side on columns, the depths dealt out among
/// `group / SWEEP_WIDTH` slices whose sums meet in workgroup memory.
pub(super) fn sweep(
    problem: &Problem<'_>,
    cut: &Skinny,
    sink: &Sink,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256);
    let slices = group / SWEEP_WIDTH;
    let lie = problem.lie_of_b();
    let lanes = if lie.along == Axis::Outer { lie.lanes } else { 1 };
    let across = problem.n.div_ceil(SWEEP_WIDTH as usize * lanes);
    let batches = problem.batches();
    let groups = across * batches * cut.splits;
    let chunk = problem.k.div_ceil(cut.splits).next_multiple_of((slices * UNDER_WAY) as usize);

    let k = site.builder("matmul_sweep", group);
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let (m, n, depths) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let parts = (cut.splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let finish = Finish::declare(&l, problem, sink, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let (a_outer, a_depth) = declare_strides(&l, "a", &problem.a, Lie { along: Axis::Depth, lanes: 1 });
    let (b_outer, b_depth) = declare_strides(&l, "b", &problem.b, Lie { along: Axis::Outer, lanes });
    let chosen = problem.experts.as_ref().map(|e| experts::Ids::declare(&l, e));

    let id = linear_group(&k);
    let live = id.lt(total);
    let number = id.min(total - 1u32);
    let rest = number / across;
    let (batch, start, end) = part_of(&k, rest, depths, parts);
    let mut at = walker.at(batch);
    let mut end = end;
    if let Some(ids) = &chosen {
        let (expert, known) = ids.at(&k, batch);
        at[1] = at[1] + expert * (depths * n);
        end = known.select(end, start);
        k.if_(k.local_index().eq(0u32), || ids.check(&k, batch));
    }
    let me = k.local_index();
    let (place, slice) = (me % SWEEP_WIDTH, me / SWEEP_WIDTH);
    let column = ((number - rest * across) * SWEEP_WIDTH + place) * lanes;
    let column_at = at[1] + column.min(n - lanes) * b_outer;
    let row_at: Vec<Val<'_>> =
        (0..cut.rows).map(|r| at[0] + (m - 1u32).min(k.u32(r as u32)) * a_outer).collect();

    let elem = sum_elem(a.elem());
    let zero = k.number(elem.scalar(), 0.0);
    let sums: Vec<Var<'_>> = (0..cut.rows * lanes).map(|_| k.var(zero)).collect();
    let round = |depths: &[Val<'_>]| {
        let mut running: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
        let weights: Vec<Vec<Val<'_>>> =
            depths.iter().map(|d| b.load_vec(column_at + *d * b_depth, lanes as u8)).collect();
        for (d, weights) in depths.iter().zip(&weights) {
            for (row, sums) in row_at.iter().zip(running.chunks_mut(lanes)) {
                let x = a.load(*row + *d * a_depth);
                sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum = multiply_add(x, *w, *sum));
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    };
    sweep_depths(&k, (start, start + slice, end), slices, UNDER_WAY, &round);

    let base = Base { out: rest * m * n, extras: at[2..].to_vec() };
    let memory = k.shared(elem, lanes as u8, group);
    for (r, sums) in sums.chunks(lanes).enumerate() {
        let mine: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
        k.barrier();
        memory.store_vec(me, &mine);
        k.barrier();
        let row = k.u32(r as u32);
        k.if_(live, || {
            k.if_(slice.eq(0u32), || {
                k.if_(row.lt(m), || {
                    let mut all = mine.clone();
                    for other in 1..slices {
                        let part = memory.load_vec(me + other * SWEEP_WIDTH);
                        all = all.iter().zip(&part).map(|(x, y)| *x + *y).collect();
                    }
                    finish.store(&base, row, column, &all);
                });
            });
        });
    }
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, problem.cost())
}

/// The batch, first depth and one past the last depth of a piece of work; parts of the sum are the outermost.
fn part_of<'k>(
    k: &'k Builder,
    rest: Val<'k>,
    depths: Val<'k>,
    parts: Option<(Val<'k>, Val<'k>)>,
) -> (Val<'k>, Val<'k>, Val<'k>) {
    match parts {
        Some((chunk, batches)) => {
            let part = rest / batches;
            let start = part * chunk;
            (rest - part * batches, start.min(depths), (start + chunk).min(depths))
        }
        None => (rest, k.u32(0), depths),
    }
}

/// Runs `round` on the depths `first`, `first + step`, .. below `end`, several at once as long as all invocations have
/// that many left from `start` on.
fn sweep_depths<'k>(
    k: &'k Builder,
    (start, first, end): (Val<'k>, Val<'k>, Val<'k>),
    step: u32,
    at_once: u32,
    round: &dyn Fn(&[Val<'k>]),
) {
    let mut rest = first;
    if at_once > 1 {
        let stride = step * at_once;
        let whole = (end - start) / stride * stride;
        k.for_(first, start + whole, k.u32(stride), |depth| {
            let depths: Vec<Val<'k>> = (0..at_once).map(|i| depth + i * step).collect();
            round(&depths);
        });
        rest = first + whole;
    }
    k.for_(rest, end, k.u32(step), |depth| round(&[depth]));
}
