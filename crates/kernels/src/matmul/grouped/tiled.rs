//! Grouped matmuls by tiles in workgroup memory, for every dtype and device.

use olivine_kernel::{Access, Elem};

use crate::launch::Launch;
use crate::matmul::choice::Tile;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::grouped::sort::{ENTRY, Sorted};
use crate::matmul::problem::{EpilogueOperand, Experts, Problem};
use crate::matmul::tiled::panel::{IndexMode, TileOperand, TileSpan};
use crate::matmul::tiled::{TileWork, declare_b, declare_strides, multiply};
use crate::site::{Site, linear_group};

/// Emits the matmul of ordered rows, tile by tile.
pub(crate) fn emit(
    problem: &Problem<'_>,
    experts: &Experts,
    tile: Tile,
    sorted: &Sorted,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let k = site.builder("grouped_matmul_tiled", tile.group());
    let l = Launch::new(&k);
    let a = l.read("a", &problem.a.operand);
    let (b, reach) = declare_b(&l, problem);
    let order = l.bind("order", Elem::U32, Access::Read, sorted.order);
    let entries = l.bind("entries", Elem::U32, Access::Read, sorted.entries);
    let (n, k_size) = (l.size("n", problem.n), l.size("k", problem.k));
    let count = l.size("expert_count", experts.count);
    let across = problem.n.div_ceil(tile.n);
    let groups = across * sorted.tiles;
    let total = l.size("groups", groups);
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n);
    let offset = |e: &EpilogueOperand| l.size("extra_offset", e.operand.offset);
    let extras: Vec<_> = problem.extras.iter().map(offset).collect();
    let (a_layout, b_layout) = (problem.layout_of_a(), problem.layout_of_b());
    let (a_outer, a_k_stride) = declare_strides(&l, "a", &problem.a, a_layout);
    let (b_outer, b_k_stride) = declare_strides(&l, "b", &problem.b, b_layout);
    let tail = !problem.k.is_multiple_of(tile.k);

    let id = linear_group(&k).min(total - 1u32);
    let across = (n + (tile.n - 1)) / tile.n;
    let row_tile = id / across;
    let entry = row_tile * ENTRY;
    let (expert, first) = (entries.load_uniform(entry), entries.load_uniform(entry + 1u32));
    let end = entries.load_uniform(entry + 2u32);
    k.if_(first.lt(end), || {
        let known = expert.lt(count);
        let matrix = known.select(expert, k.u32(0));
        let (zero, base) =
            (k.u32(0), if problem.packed.is_some() { matrix * n } else { matrix * (k_size * n) });
        let work = TileWork {
            a: TileOperand {
                buffer: a,
                layout: a_layout,
                outer: a_outer,
                k_stride: a_k_stride,
                base: zero,
                k_size,
                tail,
                reach: IndexMode::Strides,
            },
            b: TileOperand {
                buffer: b,
                layout: b_layout,
                outer: b_outer,
                k_stride: b_k_stride,
                base,
                k_size,
                tail,
                reach: reach.clone(),
            },
            rows: TileSpan { first, end, order: Some(order) },
            columns: TileSpan { first: (id - row_tile * across) * tile.n, end: n, order: None },
            start: zero,
            // Rows without an expert are empty sums.
            end: known.select(k_size, zero),
            base: BatchOffset { out: zero, extras: extras.clone() },
        };
        multiply(&k, tile, work, &epilogue);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}
