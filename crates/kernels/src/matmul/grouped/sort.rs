//! The rows of a grouped matmul in the order of their experts, and the tiles that they are divided in.
//!
//! A workgroup to each expert, and one to the rows that have none: it counts all rows, so that it knows where its own
//! begin, and writes their numbers in the order they have. Nothing depends on which invocation comes first.

use olivine_ir::Dim;
use olivine_kernel::{Access, AtomicOp, Buf, Builder, Elem, Reduction, Shared, Val};

use crate::launch::Launch;
use crate::matmul::grouped::experts::Ids;
use crate::matmul::problem::Experts;
use crate::nonzero::scan;
use crate::site::{Memory, Site, linear_group};

/// Experts that a workgroup can count in 8 KiB of workgroup memory, beside the rows without one.
pub(crate) const MOST_EXPERTS: usize = 2047;

/// Words that describe a tile: its expert, its first position and one past its last.
pub(crate) const ENTRY: u32 = 3;

/// Rows whose ids are in flight at once.
const UNDER_WAY: u32 = 4;

/// Ordered rows and their tiles.
pub(crate) struct Sorted {
    /// For every position in the order of experts, the row there.
    pub(crate) order: Memory,
    /// What describes the tiles; those that are not needed are empty and the last.
    pub(crate) entries: Memory,
    /// How many there are room for.
    pub(crate) tiles: Dim,
}

/// Emits the ordering of rows by expert, those without one last, in tiles of up to so many rows.
pub(crate) fn sort(
    experts: &Experts,
    rows: impl Into<Dim>,
    tile: u32,
    site: &mut Site<'_>,
) -> Result<Sorted, String> {
    let rows = rows.into();
    // Every expert, and the rows without one, may leave one tile unfilled.
    let tiles = rows.div_floor(tile) + rows.min(experts.count + 1);
    let order = site.scratch(4 * rows);
    let entries = site.scratch(4 * ENTRY * tiles);
    let sorted = Sorted { order, entries, tiles };
    emit(experts, rows, tile, &sorted, site)?;
    Ok(sorted)
}

fn emit(experts: &Experts, rows: Dim, tile: u32, sorted: &Sorted, site: &mut Site<'_>) -> Result<(), String> {
    // With many rows, waiting for their ids is what takes time.
    let group = site.group_size(if rows > 2048 { 1024 } else { 256 });
    let k = site.builder("grouped_matmul_sort", group);
    let l = Launch::new(&k);
    let chunk = rows.div_ceil(group).next_multiple_of(UNDER_WAY);
    let to = ExpertSort {
        k: &k,
        ids: Ids::declare(&l, experts),
        counts: k.shared(Elem::U32, 1, experts.count as u32 + 1),
        order: l.bind("order", Elem::U32, Access::Write, sorted.order),
        entries: l.bind("entries", Elem::U32, Access::Write, sorted.entries),
        tiles: l.size("tiles", sorted.tiles),
        rows: l.size("rows", rows),
        chunk: l.size("chunk", chunk),
        tile,
    };
    let mine = linear_group(&k);
    k.if_(mine.lt(to.ids.count() + 1u32), || {
        to.count(mine);
        let first = to.deal(mine);
        to.place(mine, first);
    });
    let bound = l.done();
    let moved = 8 * experts.ids.sizes().numel();
    site.dispatch(k, bound, experts.count as u64 + 1, (0, moved))
}

/// The kernel's arguments.
struct ExpertSort<'k> {
    k: &'k Builder,
    ids: Ids<'k>,
    counts: Shared<'k>,
    order: Buf<'k>,
    entries: Buf<'k>,
    tiles: Val<'k>,
    rows: Val<'k>,
    /// Rows of an invocation.
    chunk: Val<'k>,
    /// Rows of a tile.
    tile: u32,
}

impl<'k> ExpertSort<'k> {
    /// Visits some rows, `apart` from each other, with their experts; their ids are on their way at once.
    fn visit(&self, first: Val<'k>, apart: u32, visit: impl Fn(Val<'k>, Val<'k>)) {
        let rows: Vec<Val<'k>> = (0..UNDER_WAY).map(|i| first + i * apart).collect();
        let expert = |row: &Val<'k>| {
            let (expert, known) = self.ids.at(self.k, row.min(self.rows - 1u32));
            known.select(expert, self.ids.count())
        };
        let experts: Vec<Val<'k>> = rows.iter().map(expert).collect();
        for (row, expert) in rows.into_iter().zip(experts) {
            self.k.if_(row.lt(self.rows), || visit(row, expert));
        }
    }

    /// Counts every expert's rows; the first workgroup checks ids.
    fn count(&self, mine: Val<'k>) {
        let k = self.k;
        let (me, step) = (k.local_index(), k.u32(k.group()));
        k.for_(me, self.ids.count() + 1u32, step, |e| self.counts.store(e, k.u32(0)));
        k.barrier();
        k.for_(me, self.rows, k.u32(k.group() * UNDER_WAY), |first| {
            self.visit(first, k.group(), |_, expert| {
                self.counts.atomic(AtomicOp::Add, expert, k.u32(1));
            });
        });
        k.if_(mine.eq(0u32), || k.for_(me, self.rows, step, |row| self.ids.check(k, row)));
        k.barrier();
    }

    /// Deals this expert's rows out in tiles; returns the position of the first.
    fn deal(&self, mine: Val<'k>) -> Val<'k> {
        let k = self.k;
        let (me, step, zero) = (k.local_index(), k.u32(k.group()), k.u32(0));
        let tiles = |count: Val<'k>| (count + (self.tile - 1)) / self.tile;
        let (rows_before, tiles_before) = (k.var(zero), k.var(zero));
        k.for_(me, mine, step, |e| {
            let count = self.counts.load(e);
            rows_before.set(rows_before.get() + count);
            tiles_before.set(tiles_before.get() + tiles(count));
        });
        let first = k.group_reduce(rows_before.get(), Reduction::Add);
        let entry = k.group_reduce(tiles_before.get(), Reduction::Add);
        let count = self.counts.load(mine);
        let (end, after) = (first + count, entry + tiles(count));
        let describe = |entry: Val<'k>, words: [Val<'k>; 3]| {
            (0u32..).zip(words).for_each(|(i, word)| self.entries.store(entry * ENTRY + i, word));
        };
        k.for_(entry + me, after, step, |at| {
            let start = first + (at - entry) * self.tile;
            describe(at, [mine, start, (start + self.tile).min(end)]);
        });
        k.if_(mine.eq(self.ids.count()), || {
            k.for_(after + me, self.tiles, step, |at| describe(at, [zero; 3]));
        });
        first
    }

    /// Writes the numbers of this expert's rows from position `first` on. An invocation's rows are neighbours, so
    /// that all stay in the order they have.
    fn place(&self, mine: Val<'k>, first: Val<'k>) {
        let k = self.k;
        let from = k.local_index() * self.chunk;
        let to = (from + self.chunk).min(self.rows);
        let hits = k.var(k.u32(0));
        k.for_(from, to, k.u32(UNDER_WAY), |row| {
            self.visit(row, 1, |_, expert| {
                hits.set(hits.get() + expert.eq(mine).select(k.u32(1), k.u32(0)));
            });
        });
        let (earlier, _) = scan(k, k.shared(Elem::U32, 1, k.group()), hits.get());
        let position = k.var(first + earlier);
        k.for_(from, to, k.u32(UNDER_WAY), |row| {
            self.visit(row, 1, |row, expert| {
                k.if_(expert.eq(mine), || {
                    self.order.store(position.get(), row);
                    position.set(position.get() + 1u32);
                });
            });
        });
    }
}
