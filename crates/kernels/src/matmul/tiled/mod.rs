//! Matmuls by tiles: both operands' panels in workgroup memory, sums in registers, the next panels in flight.

mod decoded;
pub(crate) mod panel;

use std::rc::Rc;

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Val, Var};

use crate::launch::Launch;
use crate::matmul::choice::Tile;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue, accumulator_elem};
use crate::matmul::multiply_add;
use crate::matmul::problem::{Axis, Layout, MatrixOperand, Problem};
use crate::matmul::tiled::decoded::DecodedPanel;
use crate::matmul::tiled::panel::{IndexMode, Panel, TileOperand, TileSpan};
use crate::site::{Memory, Site, linear_group};

/// Invocations side by side on a tile: each 32 of them cover 4 by 8 blocks of their rows and columns.
const DOWN: u32 = 4;
const ACROSS: u32 = 8;

/// Swizzle: tile rows that are walked together, column by column, so that both operands' panels stay in the cache.
const TOGETHER: u32 = 8;

/// Emits a matmul by tiles, K in `splits` parts.
pub(crate) fn emit(
    problem: &Problem<'_>,
    tile: Tile,
    splits: usize,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    emit_where(problem, tile, splits, destination, None, site)
}

/// Emits a matmul by tiles of those batches only whose word in `chosen` is not 0: a fallback of another kernel, if there are
/// such words.
pub(crate) fn emit_where(
    problem: &Problem<'_>,
    tile: Tile,
    splits: usize,
    destination: &Destination,
    chosen: Option<Memory>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let tiles = problem.m.div_ceil(tile.m) * problem.n.div_ceil(tile.n);
    let batches = problem.batches();
    let groups = tiles * batches * splits;
    let chunk = problem.k.div_ceil(splits).next_multiple_of(tile.k);
    let is_fallback = chosen.is_some();

    let k = site.builder("matmul_tiled", tile.group());
    let l = Launch::new(&k);
    let a = l.read("a", &problem.a.operand);
    let (b, reach) = declare_b(&l, problem);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let total = l.size("groups", groups);
    let parts = (splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let (a_layout, b_layout) = (problem.layout_of_a(), problem.layout_of_b());
    let (a_outer, a_k_stride) = declare_strides(&l, "a", &problem.a, a_layout);
    let (b_outer, b_k_stride) = declare_strides(&l, "b", &problem.b, b_layout);
    let tail = !problem.k.is_multiple_of(tile.k);
    let chosen = chosen.map(|memory| l.bind("chosen", Elem::U32, Access::Read, memory));

    let id = linear_group(&k);
    let work = |place: TileCoord<'_>| {
        let TileCoord { first, rest, batch, start, end } = place;
        let at = walker.at(batch);
        let work = TileWork {
            a: TileOperand {
                buffer: a,
                layout: a_layout,
                outer: a_outer,
                k_stride: a_k_stride,
                base: at[0],
                k_size,
                tail,
                reach: IndexMode::Strides,
            },
            b: TileOperand {
                buffer: b,
                layout: b_layout,
                outer: b_outer,
                k_stride: b_k_stride,
                base: at[1],
                k_size,
                tail,
                reach: reach.clone(),
            },
            rows: TileSpan { first: first.0, end: m, order: None },
            columns: TileSpan { first: first.1, end: n, order: None },
            start,
            end,
            base: BatchOffset { out: rest * m * n, extras: at[2..].to_vec() },
        };
        multiply(&k, tile, work, &epilogue);
    };
    k.if_(id.lt(total), || {
        let coord = tile_coord(id, (m, n, k_size), (tile.m, tile.n), parts);
        match chosen {
            Some(chosen) => k.if_(chosen.load_uniform(coord.batch).ne(0u32), || work(coord)),
            None => work(coord),
        }
    });
    let bound = l.done();
    let first = site.emitted.len();
    site.dispatch(k, bound, groups, problem.cost())?;
    site.emitted.iter_mut().skip(first).for_each(|emitted| emitted.fallback = is_fallback);
    Ok(())
}

/// Declares B, and how its elements are found: by strides, or in packed bytes.
pub(crate) fn declare_b<'k>(l: &Launch<'k>, problem: &Problem<'_>) -> (Buf<'k>, IndexMode<'k>) {
    match &problem.packed {
        Some(weight) => {
            let declared = weight.declare(l);
            (declared.buffer(), IndexMode::Packed(Rc::new(declared)))
        }
        None => (l.read("b", &problem.b.operand), IndexMode::Strides),
    }
}

/// Declares an operand's strides, over the outer axis and over K; what vector loads need to be 1 is a constant.
pub(crate) fn declare_strides<'k>(
    l: &Launch<'k>,
    name: &str,
    operand: &MatrixOperand,
    layout: Layout,
) -> (Val<'k>, Val<'k>) {
    let stride = |axis: Axis, what: &str, value: Dim| {
        if layout.along == axis && layout.lanes > 1 {
            l.k().u32(1)
        } else {
            l.stride(&format!("{name}_{what}"), value)
        }
    };
    (stride(Axis::Outer, "outer", operand.outer), stride(Axis::K, "k_stride", operand.k_stride))
}

/// A workgroup's part of a batched matmul whose sums may be split.
pub(crate) struct TileCoord<'k> {
    /// First row and column.
    pub(crate) first: (Val<'k>, Val<'k>),
    /// Which matmul of all batches and parts of sums.
    pub(crate) rest: Val<'k>,
    pub(crate) batch: Val<'k>,
    /// The indices along K that are summed.
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
}

/// The place of a workgroup by its number, for tiles of `(rows, columns)` of matmuls `(m, n, k)`; `parts` are the
/// indices along K of a part and the number of batches, where sums are split.
pub(crate) fn tile_coord<'k>(
    id: Val<'k>,
    sizes: (Val<'k>, Val<'k>, Val<'k>),
    tile: (u32, u32),
    parts: Option<(Val<'k>, Val<'k>)>,
) -> TileCoord<'k> {
    tile_coord_by(id, sizes, tile, TOGETHER, parts)
}

/// The same with so many tile rows walked together.
pub(crate) fn tile_coord_by<'k>(
    id: Val<'k>,
    (m, n, k_size): (Val<'k>, Val<'k>, Val<'k>),
    (rows, columns): (u32, u32),
    together: u32,
    parts: Option<(Val<'k>, Val<'k>)>,
) -> TileCoord<'k> {
    let (down, across) = ((m + (rows - 1)) / rows, (n + (columns - 1)) / columns);
    let each = down * across;
    let rest = id / each;
    let (row_tile, column_tile) = swizzle_by(together, id - rest * each, (down, across));
    // Parts of the sum are the outermost: each is a whole matmul.
    let (batch, start, end) = match parts {
        Some((chunk, batches)) => {
            let part = rest / batches;
            let start = part * chunk;
            (rest - part * batches, start, (start + chunk).min(k_size))
        }
        None => (rest, id.builder().u32(0), k_size),
    };
    TileCoord { first: (row_tile * rows, column_tile * columns), rest, batch, start, end }
}

/// A tile's place by its number: bands of tile rows, each walked column by column.
pub(crate) fn swizzle<'k>(tile: Val<'k>, down: Val<'k>, across: Val<'k>) -> (Val<'k>, Val<'k>) {
    swizzle_by(TOGETHER, tile, (down, across))
}

fn swizzle_by<'k>(together: u32, tile: Val<'k>, (down, across): (Val<'k>, Val<'k>)) -> (Val<'k>, Val<'k>) {
    let per_band = across * together;
    let band = tile / per_band;
    let first = band * together;
    let height = (down - first).min(together);
    let within = tile - band * per_band;
    let column = within / height;
    (first + (within - column * height), column)
}

/// A workgroup's part of a matmul.
pub(crate) struct TileWork<'k> {
    pub(crate) a: TileOperand<'k>,
    pub(crate) b: TileOperand<'k>,
    pub(crate) rows: TileSpan<'k>,
    pub(crate) columns: TileSpan<'k>,
    /// First index along K, a multiple of the tile's.
    pub(crate) start: Val<'k>,
    /// One past the last index along K.
    pub(crate) end: Val<'k>,
    pub(crate) base: BatchOffset<'k>,
}

/// Multiplies one tile and finishes it. The whole workgroup must call it.
pub(crate) fn multiply<'k>(k: &'k Builder, tile: Tile, work: TileWork<'k>, epilogue: &Epilogue<'k, '_>) {
    let elem = accumulator_elem(work.a.buffer.elem());
    let (row_blocks, column_blocks) = (tile.rows / 4, tile.columns / 4);
    let panel = |outer: u32| k.shared(elem, 4, Tile::pitch(outer) / 4 * tile.k);
    let (a_memory, b_memory) = (panel(tile.m), panel(tile.n));
    // Loads stand in a kernel once where they are not made a step ahead.
    let ahead = tile.unroll == tile.k;
    let start = ahead.then_some(work.start);
    let a = Panel::new(k, a_memory, work.a, &work.rows, (tile.m, tile.k), start);
    let b = match &work.b.reach {
        IndexMode::Packed(weight) => {
            let weight = (Rc::clone(weight), work.b.base);
            let ends = (work.b.k_size, work.b.tail);
            let b = DecodedPanel::new(k, b_memory, weight, &work.columns, (tile.n, tile.k), ends);
            if let Some(start) = start {
                b.fetch(start);
            }
            ColumnPanel::Decoded(b)
        }
        _ => {
            let b = Panel::new(k, b_memory, work.b, &work.columns, (tile.n, tile.k), start);
            ColumnPanel::Strided(Box::new(b))
        }
    };

    let me = k.local_index();
    let (subgroup, member) = (me / 32, me % 32);
    let subgroups_across = tile.n / (ACROSS * tile.columns);
    let row_block = subgroup / subgroups_across * (DOWN * row_blocks) + member / ACROSS;
    let column_block = subgroup % subgroups_across * (ACROSS * column_blocks) + member % ACROSS;

    let zero = k.number(elem.scalar(), 0.0);
    let sums: Vec<Var<'k>> = (0..tile.rows * tile.columns).map(|_| k.var(zero)).collect();
    let step = k.u32(tile.k);
    k.for_(work.start, work.end, step, |at| {
        if !ahead {
            a.fetch(at);
            b.fetch(at);
        }
        k.barrier();
        a.put(at);
        b.put(at);
        k.barrier();
        if ahead {
            // The last step loads once more what it has, so that the body stays straight-line code.
            let next = at + step;
            let next = next.lt(work.end).select(next, at);
            a.fetch(next);
            b.fetch(next);
        }
        let unrolled = |first: Option<Val<'k>>| {
            let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
            for k_offset in 0..tile.unroll {
                let x: Vec<Val<'k>> =
                    (0..row_blocks).flat_map(|i| a.read(first, k_offset, row_block + i * DOWN)).collect();
                let y: Vec<Val<'k>> = (0..column_blocks)
                    .flat_map(|j| b.read(first, k_offset, column_block + j * ACROSS))
                    .collect();
                for (row, x) in running.chunks_mut(tile.columns as usize).zip(&x) {
                    for (sum, y) in row.iter_mut().zip(&y) {
                        *sum = multiply_add(*x, *y, *sum);
                    }
                }
            }
            for (var, value) in sums.iter().zip(running) {
                var.set(value);
            }
        };
        if ahead {
            unrolled(None);
        } else {
            k.for_(k.u32(0), step, k.u32(tile.unroll), |first| unrolled(Some(first)));
        }
    });

    let first_row = work.rows.first + row_block * 4u32;
    let first_column = work.columns.first + column_block * 4u32;
    let in_place = |row: Val<'k>, put: &dyn Fn(Val<'k>)| {
        k.if_(row.lt(work.rows.end), || {
            put(work.rows.order.map_or(row, |order| order.load(row)));
        });
    };
    // Runs of four columns: which row and column of the tile each begins at.
    let mut runs: Vec<(u32, u32, Vec<Val<'k>>)> = Vec::new();
    for row in 0..tile.rows {
        for block in 0..column_blocks {
            let at = (row * tile.columns + block * 4) as usize;
            let values = sums[at..at + 4].iter().map(|s| s.get()).collect();
            runs.push((row / 4 * DOWN * 4 + row % 4, block * ACROSS * 4, values));
        }
    }
    if ahead && !epilogue.is_heavy() {
        let offsets_of: Vec<_> =
            (0..column_blocks).map(|j| epilogue.offsets_of(first_column + j * ACROSS * 4, 4)).collect();
        for ((row, _, run), offsets_of) in runs.iter().zip(offsets_of.iter().cycle()) {
            in_place(first_row + *row, &|row| epilogue.store_at(&work.base, row, offsets_of, run));
        }
        return;
    }
    // A long epilogue, or any where kernels are to be short, is written once and picks its run by number.
    k.for_(k.u32(0), k.u32(runs.len() as u32), k.u32(1), |number| {
        let candidates: Vec<Vec<Val<'k>>> = runs
            .iter()
            .map(|(row, column, run)| {
                [k.u32(*row), k.u32(*column)].into_iter().chain(run.iter().copied()).collect()
            })
            .collect();
        if let [row, column, run @ ..] = pick(number, candidates).as_slice() {
            in_place(first_row + *row, &|row| {
                epilogue.store(&work.base, row, first_column + *column, run);
            });
        }
    });
}

/// The panel of B.
enum ColumnPanel<'k> {
    Strided(Box<Panel<'k>>),
    Decoded(DecodedPanel<'k>),
}

impl<'k> ColumnPanel<'k> {
    fn fetch(&self, at: Val<'k>) {
        match self {
            ColumnPanel::Strided(panel) => panel.fetch(at),
            ColumnPanel::Decoded(panel) => panel.fetch(at),
        }
    }

    fn put(&self, at: Val<'k>) {
        match self {
            ColumnPanel::Strided(panel) => panel.put(at),
            ColumnPanel::Decoded(panel) => panel.put(at),
        }
    }

    fn read(&self, first: Option<Val<'k>>, k_offset: u32, block: Val<'k>) -> Vec<Val<'k>> {
        match self {
            ColumnPanel::Strided(panel) => panel.read(first, k_offset, block),
            ColumnPanel::Decoded(panel) => panel.read(first, k_offset, block),
        }
    }
}

/// The values with a number among several of equal length, by selections: registers have no index.
pub(crate) fn pick<'k>(number: Val<'k>, mut from: Vec<Vec<Val<'k>>>) -> Vec<Val<'k>> {
    let mut bit = 0;
    while from.len() > 1 {
        let odd = ((number >> bit) & 1u32).ne(0u32);
        let of_pair = |pair: &[Vec<Val<'k>>]| match pair {
            [even, other] => even.iter().zip(other).map(|(e, o)| odd.select(*o, *e)).collect(),
            rest => rest.concat(),
        };
        from = from.chunks(2).map(of_pair).collect();
        bit += 1;
    }
    from.pop().unwrap_or_default()
}
