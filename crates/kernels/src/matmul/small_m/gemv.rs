//! Matmuls with few rows, bound by the speed at which B is read: every element of it is read once.

use olivine_kernel::{Builder, Reduction, Val, Var};

use crate::launch::Launch;
use crate::matmul::choice::GemvConfig;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue, accumulator_elem};
use crate::matmul::grouped::experts;
use crate::matmul::multiply_add;
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::tiled::pick;
use crate::matmul::vector_load::{MatrixRole, VectorLoads, max_vector};
use crate::site::{Site, linear_group};

/// Bytes of workgroup memory that the sums of a sweep's slices may take.
const MEETING: u32 = 8192;

/// A matmul with columns of B read along K: a cluster of invocations to some columns.
pub(crate) fn dots(
    problem: &Problem<'_>,
    cut: &GemvConfig,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let GemvConfig { rows, columns, width, .. } = *cut;
    let (rows, columns) = (rows as usize, columns as usize);
    let group = site.group_size(cut.group).max(width);
    let per_batch = problem.n.div_ceil(columns);
    let batches = problem.batches();
    let clusters = per_batch * batches * cut.splits;
    // Both operands are read along K, in runs of one length.
    let run = [MatrixRole::A, MatrixRole::B].map(|side| max_vector(problem, side, Axis::K));
    let run = run[0].min(run[1]);
    let step = width * run;
    let chunk = problem.k.div_ceil(cut.splits).next_multiple_of(step * cut.at_once);

    let k = site.builder("matmul_gemv_dot", group);
    let l = Launch::new(&k);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let a = VectorLoads::declare(&l, problem, MatrixRole::A, Axis::K, run);
    let b = VectorLoads::declare(&l, problem, MatrixRole::B, Axis::K, run);
    let (total, per_batch) = (l.size("clusters", clusters), l.size("per_batch", per_batch));
    let parts = (cut.splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());

    let cluster = linear_group(&k) * (group / width) + k.local_index() / width;
    // Clusters past the last work for nothing, so that all take part in reductions.
    let live = cluster.lt(total);
    let number = cluster.min(total - 1u32);
    let rest = number / per_batch;
    let column = (number - rest * per_batch) * columns;
    let (batch, start, end) = part_of(&k, rest, k_size, parts);
    let at = walker.at(batch);
    let row_at: Vec<Val<'_>> = (0..rows).map(|r| at[0] + (m - 1u32).min(k.u32(r as u32)) * a.outer).collect();
    let column_at: Vec<Val<'_>> =
        (0..columns).map(|c| at[1] + (column + c).min(n - 1u32) * b.outer).collect();

    let zero = k.number(accumulator_elem(crate::math::elem(problem.dtype())).scalar(), 0.0);
    let sums: Vec<Var<'_>> = (0..rows * columns).map(|_| k.var(zero)).collect();
    let round = |k_size: &[Val<'_>]| {
        let mut running: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
        let weights: Vec<Vec<Vec<Val<'_>>>> =
            k_size.iter().map(|d| column_at.iter().map(|c| b.run(*c + *d * b.k_stride)).collect()).collect();
        for (d, weights) in k_size.iter().zip(&weights) {
            for (r, row) in row_at.iter().enumerate() {
                let x = a.run(*row + *d * a.k_stride);
                for (c, weight) in weights.iter().enumerate() {
                    let sum = &mut running[r * columns + c];
                    *sum = x.iter().zip(weight).fold(*sum, |sum, (x, w)| multiply_add(*x, *w, sum));
                }
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    };
    // As many indices along K at once as all invocations have left, then one by one.
    let first = start + k.local_index() % width * run;
    let stride = step * cut.at_once;
    let whole = if cut.at_once > 1 { (end - start) / stride * stride } else { k.u32(0) };
    if cut.at_once > 1 {
        k.for_(first, start + whole, k.u32(stride), |k_offset| {
            let k_size: Vec<Val<'_>> = (0..cut.at_once).map(|i| k_offset + i * step).collect();
            round(&k_size);
        });
    }
    k.for_(first + whole, end, k.u32(step), |k_offset| round(&[k_offset]));

    let base = BatchOffset { out: rest * m * n, extras: at[2..].to_vec() };
    let mut results: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
    if width > 1 {
        results = results.into_iter().map(|s| k.cluster_reduce(width, s, Reduction::Add)).collect();
    }
    let leads = (k.local_index() % width).eq(0u32);
    k.if_(live, || {
        k.if_(leads, || {
            if site.caps.wants_short_kernels() && epilogue.is_heavy() {
                return k.for_(k.u32(0), k.u32(results.len() as u32), k.u32(1), |number| {
                    let result = pick(number, results.iter().map(|r| vec![*r]).collect());
                    let (row, of_row) = (number / columns, number % columns);
                    k.if_(row.lt(m), || epilogue.store(&base, row, column + of_row, &result));
                });
            }
            for (r, run) in results.chunks(columns).enumerate() {
                let row = k.u32(r as u32);
                k.if_(row.lt(m), || epilogue.store(&base, row, column, run));
            }
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, clusters.div_ceil(group / width), problem.cost())
}

/// A matmul with rows of B read in their own layout: `width` invocations side by side on runs of columns, K divided
/// among slices of the workgroup, whose sums meet at the end.
pub(crate) fn sweep(
    problem: &Problem<'_>,
    cut: &GemvConfig,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let GemvConfig { rows, width, at_once, .. } = *cut;
    let group = site.group_size(cut.group).max(width);
    let slices = group / width;
    let run = max_vector(problem, MatrixRole::B, Axis::Outer).min(cut.columns);
    let across = problem.n.div_ceil(width * run);
    let batches = problem.batches();
    let groups = across * batches * cut.splits;
    let round_k = slices * at_once;
    let chunk = problem.k.div_ceil(cut.splits).next_multiple_of(round_k);

    let k = site.builder("matmul_gemv_axpy", group);
    let l = Launch::new(&k);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let a_run = max_vector(problem, MatrixRole::A, Axis::K).min(at_once);
    let a = VectorLoads::declare(&l, problem, MatrixRole::A, Axis::K, a_run);
    let b = VectorLoads::declare(&l, problem, MatrixRole::B, Axis::Outer, run);
    let (total, across) = (l.size("groups", groups), l.size("across", across));
    let parts = (cut.splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let chosen = problem.experts.as_ref().map(|e| experts::Ids::declare(&l, e));

    let id = linear_group(&k);
    let live = id.lt(total);
    let number = id.min(total - 1u32);
    let rest = number / across;
    let (batch, start, end) = part_of(&k, rest, k_size, parts);
    let mut at = walker.at(batch);
    let mut end = end;
    if let Some(ids) = &chosen {
        let (expert, known) = ids.at(&k, batch);
        at[1] = at[1] + expert * (k_size * n);
        end = known.select(end, start);
        k.if_(k.local_index().eq(0u32), || ids.check(&k, batch));
    }
    let me = k.local_index();
    let (place, slice) = (me % width, me / width);
    let first_column = (number - rest * across) * (width * run);
    let column_at = at[1] + (first_column + place * run).min(n - run) * b.outer;
    let row_at: Vec<Val<'_>> = (0..rows).map(|r| at[0] + (m - 1u32).min(k.u32(r)) * a.outer).collect();

    let elem = accumulator_elem(crate::math::elem(problem.dtype()));
    let zero = k.number(elem.scalar(), 0.0);
    let sums: Vec<Var<'_>> = (0..rows * run).map(|_| k.var(zero)).collect();
    // So many indices along K from one on, those of A in runs of a length.
    let round = |k_offset: Val<'_>, count: u32, a_run: u32| {
        let mut running: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
        let weights: Vec<Vec<Val<'_>>> =
            (0..count).map(|i| b.run(column_at + (k_offset + i) * b.k_stride)).collect();
        for (i, weights) in weights.chunks(a_run as usize).enumerate() {
            let k_offset = k_offset + i as u32 * a_run;
            for (row, sums) in row_at.iter().zip(running.chunks_mut(run as usize)) {
                let index = *row + k_offset * a.k_stride;
                let x = if a_run == 1 { vec![a.one(index)] } else { a.run(index) };
                for (x, weights) in x.iter().zip(weights) {
                    sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum = multiply_add(*x, *w, *sum));
                }
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    };
    let whole = (end - start) / round_k * round_k;
    k.for_(start + slice * at_once, start + whole, k.u32(round_k), |k_offset| {
        round(k_offset, at_once, a_run);
    });
    k.for_(start + whole + slice, end, k.u32(slices), |k_offset| round(k_offset, 1, 1));

    // Slices of one subgroup meet by shuffles, those of several in workgroup memory.
    let merged = k.target().subgroup.map_or(1, |s| (s.min(group) / width).max(1));
    let mut mine: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
    let mut step = width;
    while step < width * merged {
        mine = mine.into_iter().map(|x| x + x.shuffle_xor(step)).collect();
        step *= 2;
    }
    let parts = slices / merged;
    let columns = width * run;
    let together = (MEETING / elem.size() / (parts * columns)).min(group / columns).min(rows).max(1);
    let memory = k.shared(elem, 1, together * parts * columns);
    let base = BatchOffset { out: rest * m * n, extras: at[2..].to_vec() };
    for (i, mine) in mine.chunks((together * run) as usize).enumerate() {
        if i > 0 {
            k.barrier();
        }
        k.if_((slice % merged).eq(0u32), || {
            for (r, sums) in mine.chunks(run as usize).enumerate() {
                let to = (slice / merged + r as u32 * parts) * columns + place * run;
                sums.iter().enumerate().for_each(|(j, sum)| memory.store(to + j, *sum));
            }
        });
        k.barrier();
        let held = (mine.len() as u32) / run;
        // Both columns of a pair are finished together.
        let each = if problem.pairs { 2 } else { 1 };
        k.for_(me, k.u32(held * columns / each), k.u32(group), |number| {
            let (r, column) = (number / (columns / each), number % (columns / each) * each);
            let row = r + i as u32 * together;
            k.if_(live & row.lt(m), || {
                let from = r * (parts * columns) + column;
                let load = |j: u32, part: u32| memory.load(from + (part * columns + j));
                let sum = |j: u32| (1..parts).fold(load(j, 0), |sum, part| sum + load(j, part));
                let all: Vec<Val<'_>> = (0..each).map(sum).collect();
                epilogue.store(&base, row, first_column + column, &all);
            });
        });
    }
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}

/// The batch, first index along K and one past the last index along K of a piece of work; parts of the sum are the
/// outermost.
fn part_of<'k>(
    k: &'k Builder,
    rest: Val<'k>,
    k_size: Val<'k>,
    parts: Option<(Val<'k>, Val<'k>)>,
) -> (Val<'k>, Val<'k>, Val<'k>) {
    match parts {
        Some((chunk, batches)) => {
            let part = rest / batches;
            let start = part * chunk;
            (rest - part * batches, start.min(k_size), (start + chunk).min(k_size))
        }
        None => (rest, k.u32(0), k_size),
    }
}
