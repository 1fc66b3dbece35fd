//! Grouped products by tiles in workgroup memory, for every dtype and device.

use olivine_kernel::{Access, Elem};

use crate::launch::Launch;
use crate::matmul::choice::Tile;
use crate::matmul::epilogue::{Base, Finish, Sink};
use crate::matmul::grouped::sort::{ENTRY, Sorted};
use crate::matmul::problem::{Experts, Problem};
use crate::matmul::tiled::panel::{Reach, Source, Span};
use crate::matmul::tiled::{Work, declare_strides, multiply};
use crate::site::{Site, linear_group};

/// Emits the product of ordered rows, tile by tile.
pub(crate) fn emit(
    problem: &Problem<'_>,
    experts: &Experts,
    tile: Tile,
    sorted: &Sorted,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let k = site.builder("grouped_matmul_tiles", tile.group());
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let order = l.bind("order", Elem::U32, Access::Read, sorted.order);
    let entries = l.bind("entries", Elem::U32, Access::Read, sorted.entries);
    let (n, depths) = (l.size("n", problem.n), l.size("k", problem.k));
    let count = l.size("expert_count", experts.count);
    let across = problem.n.div_ceil(tile.n as usize);
    let groups = sorted.tiles * across;
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
