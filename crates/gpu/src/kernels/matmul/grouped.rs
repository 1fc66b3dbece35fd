//! Products of rows with the matrix of their expert.
//!
//! Few rows are products of their own. Many are put in the order of their experts by one workgroup, which also deals
//! them out in tiles of one expert each; then every tile is a product, of rows wherever they are.

use olivine_kernel::{Access, AtomicOp, Elem};

use crate::lower::launch::Launch;
use crate::lower::site::{Memory, Site, linear_group};
use crate::lower::walk::Walk;
use crate::math;

use super::choice::{self, Choice, MEDIUM, SMALL, Shape, Tile};
use super::experts::Ids;
use super::finish::{Base, Finish, Sink, sum_elem};
use super::panel::{Reach, Source, Span};
use super::problem::{Axis, Experts, Factor, Problem};
use super::stream::{Side, longest};
use super::tiled::{Work, declare_strides, multiply};

/// Rows up to which each is a product of its own.
const FEW: usize = 16;

/// Experts that one workgroup can count in 8 KiB of workgroup memory, and those of unknown experts.
const MOST_EXPERTS: usize = 1023;

/// Words that describe a tile: its expert, its first position and one past its last.
const ENTRY: u32 = 3;

/// Lowers a product of rows `[M, K]` with the matrices `[E, K, N]` of their experts.
pub(crate) fn grouped(site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let [x, w, ids] = operands.as_slice() else {
        return Err("a grouped product needs three operands".into());
    };
    let target = site.targets.first().ok_or("a product needs a target")?.clone();
    let ([m, depth], [count, _, n]) = (x.dims(), w.dims()) else {
        return Err(format!("a grouped product of {} and {}", x.ty, w.ty));
    };
    let (m, depth, count, n) = (*m, *depth, *count, *n);
    let stride = |size: usize, stride: usize| if size == 1 { 0 } else { stride as i64 };
    let mut problem = Problem {
        m,
        n,
        k: depth,
        a: Factor { operand: x.clone(), outer: stride(m, depth), depth: stride(depth, 1) },
        b: Factor { operand: w.clone(), outer: stride(n, 1), depth: stride(depth, n) },
        batch: Walk::new(&[], &[vec![], vec![]]),
        extras: Vec::new(),
        region: None,
        target,
        out: (n as i64, 1),
        experts: Some(Experts { ids: ids.clone(), count }),
        bias: false,
        pairs: false,
        taps: None,
    };
    let elem = sum_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    if m * n == 0 {
        return Ok(());
    }
    if depth == 0 || count == 0 {
        return super::emit(problem, Choice::Zeros, &[], site);
    }
    if m <= FEW || count > MOST_EXPERTS {
        problem.batch = Walk::new(&[m], &[vec![depth as i64], vec![0]]);
        problem.m = 1;
        problem.a.outer = 0;
        let run = longest(&problem, Side::B, Axis::Outer);
        let cut = choice::sweep(&Shape { m: 1, n, k: depth, batches: m }, run as usize, site.caps);
        return super::emit(problem, Choice::Sweep { swapped: false, cut }, &[], site);
    }
    let tile = if m >= 32 * count { MEDIUM } else { SMALL };
    let tile = if elem.size() > 4 { tile.wide() } else { tile };
    by_tiles(&problem, ids.ty.shape.numel(), tile, site)
}

/// Orders the rows, then multiplies them tile by tile.
fn by_tiles(problem: &Problem<'_>, rows: usize, tile: Tile, site: &mut Site<'_>) -> Result<(), String> {
    let Some(experts) = &problem.experts else { return Err("a grouped product needs experts".into()) };
    // Every expert, and the rows without one, may leave one tile unfilled.
    let tiles = rows / tile.m as usize + (experts.count + 1).min(rows);
    let order = site.scratch(4 * rows as u64);
    let entries = site.scratch(4 * u64::from(ENTRY) * tiles as u64);
    sort(experts, rows, tile, (order, entries, tiles), site)?;

    let k = site.builder("grouped_matmul_tiles", tile.group());
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let order = l.bind("order", Elem::U32, Access::Read, order);
    let entries = l.bind("entries", Elem::U32, Access::Read, entries);
    let (n, depths) = (l.size("n", problem.n), l.size("k", problem.k));
    let count = l.size("expert_count", experts.count);
    let across = problem.n.div_ceil(tile.n as usize);
    let groups = tiles * across;
    let total = l.size("groups", groups);
    let finish = Finish::declare(&l, problem, &Sink::Target, n);
    let (a_lie, b_lie) = (problem.lie_of_a(), problem.lie_of_b());
    let (a_outer, a_depth) = declare_strides(&l, "a", &problem.a, a_lie);
    let (b_outer, b_depth) = declare_strides(&l, "b", &problem.b, b_lie);
    let tail = !problem.k.is_multiple_of(tile.k as usize);

    let id = linear_group(&k).min(total - 1u32);
    let across = (n + (tile.n - 1)) / tile.n;
    let row_tile = id / across;
    let entry = row_tile * ENTRY;
    let (expert, first) = (entries.load_uniform(entry), entries.load_uniform(entry + 1u32));
    let end = entries.load_uniform(entry + 2u32);
    k.if_(first.lt(end), || {
        let known = expert.lt(count);
        let matrix = known.select(expert, k.u32(0));
        let (zero, base) = (k.u32(0), matrix * (depths * n));
        let work = Work {
            a: Source {
                buffer: a,
                lie: a_lie,
                outer: a_outer,
                depth: a_depth,
                base: zero,
                depths,
                tail,
                reach: Reach::Strides,
            },
            b: Source {
                buffer: b,
                lie: b_lie,
                outer: b_outer,
                depth: b_depth,
                base,
                depths,
                tail,
                reach: Reach::Strides,
            },
            rows: Span { first, end, order: Some(order) },
            columns: Span { first: (id - row_tile * across) * tile.n, end: n, order: None },
            start: zero,
            // Rows without an expert are empty sums.
            end: known.select(depths, zero),
            base: Base { out: zero, extras: Vec::new() },
        };
        multiply(&k, tile, work, &finish);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, problem.cost())
}

/// Emits the ordering of rows by expert, those without one last, and the tiles of the ordered rows; tiles that are not
/// needed are empty.
fn sort(
    experts: &Experts,
    rows: usize,
    tile: Tile,
    (order, entries, tiles): (Memory, Memory, usize),
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256);
    let k = site.builder("grouped_matmul_sort", group);
    let l = Launch::new(&k);
    let ids = Ids::declare(&l, experts);
    let order = l.bind("order", Elem::U32, Access::Write, order);
    let entries = l.bind("entries", Elem::U32, Access::Write, entries);
    let (rows, tiles) = (l.size("rows", rows), l.size("tiles", tiles));

    let buckets = experts.count as u32 + 1;
    let (counts, cursors) = (k.shared(Elem::U32, 1, buckets), k.shared(Elem::U32, 1, buckets));
    let (me, zero, one, step) = (k.local_index(), k.u32(0), k.u32(1), k.u32(group));
    let last = k.u32(buckets);
    let bucket = |row| {
        let (expert, known) = ids.at(&k, row);
        known.select(expert, ids.count())
    };
    k.for_(me, last, step, |e| counts.store(e, zero));
    k.barrier();
    k.for_(me, rows, step, |row| {
        ids.check(&k, row);
        counts.atomic(AtomicOp::Add, bucket(row), one);
    });
    k.barrier();
    k.if_(me.eq(0u32), || {
        let (position, entry) = (k.var(zero), k.var(zero));
        k.for_(zero, last, one, |e| {
            let first = position.get();
            let end = first + counts.load(e);
            cursors.store(e, first);
            k.for_(first, end, k.u32(tile.m), |at| {
                let to = entry.get() * ENTRY;
                entries.store(to, e);
                entries.store(to + 1u32, at);
                entries.store(to + 2u32, (at + tile.m).min(end));
                entry.set(entry.get() + 1u32);
            });
            position.set(end);
        });
        k.for_(entry.get(), tiles, one, |unused| {
            entries.store(unused * ENTRY, zero);
            entries.store(unused * ENTRY + 1u32, zero);
            entries.store(unused * ENTRY + 2u32, zero);
        });
    });
    k.barrier();
    k.for_(me, rows, step, |row| {
        let position = cursors.atomic(AtomicOp::Add, bucket(row), one);
        order.store(position, row);
    });
    let bound = l.done();
    let moved = 8 * experts.ids.ty.shape.numel() as u64;
    site.dispatch(k, bound, 1, (0, moved))
}
