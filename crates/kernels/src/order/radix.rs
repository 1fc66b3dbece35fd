//! Long rows in order: a stable radix sort by eight bits of the key at a time, the lowest first.
//!
//! ```text
//!   count     every tile of a row counts its records by digit
//!   offsets   a row's counts become the place of every tile's first record of each digit
//!   scatter   a tile is sorted by the digit in workgroup memory and written in runs
//! ```
//!
//! Rows are filled up to whole tiles with records that come last. Where values alone are wanted, a record is its key.

use olivine_kernel::{Access, AtomicOp, Builder, Elem, Shared, Val};

use super::{Lines, RecordBufs, Records, SortResults};
use crate::cells::{CellBuf, Cells};
use crate::launch::Launch;
use crate::rows::Clusters;
use crate::site::{Memory, Site, linear_group};

/// Bits of a digit, and how many digits there are.
const BITS: usize = 8;
const DIGITS: u32 = 1 << BITS;
/// Histograms of a tile side by side, so that neighbours with equal digits seldom wait for each other.
const COPIES: u32 = 4;
/// Counters of an invocation while a tile is sorted by half a digit; two to a word.
const COUNTERS: u32 = 8;
/// Records of an invocation, where there is memory for them.
const ITEMS: u32 = 16;

/// How rows are cut.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    group: u32,
    /// Records of an invocation.
    items: u32,
    /// Tiles of a row.
    tiles: usize,
}

impl Tiling {
    fn new(size: usize, site: &Site<'_>) -> Self {
        let group = site.group_size(256);
        let room = site.caps.target.shared_bytes;
        let fits = 4 * (spread(group * ITEMS) + DIGITS + group) <= room;
        // Never fewer records than counters, which lie in the same memory.
        let items = if fits && !site.caps.wants_short_kernels() { ITEMS } else { COUNTERS };
        Tiling { group, items, tiles: size.div_ceil((group * items) as usize) }
    }

    /// Records of a tile.
    fn len(self) -> u32 {
        self.group * self.items
    }

    /// Records of a row, filled up.
    fn padded(self) -> usize {
        self.tiles * self.len() as usize
    }
}

/// Words that so many take when they are spread.
fn spread(len: u32) -> u32 {
    len + len / 32
}

/// The index of a word in memory with a gap after every 32, which puts words at distances of 8 and 16 into different
/// banks.
fn slot(at: Val<'_>) -> Val<'_> {
    at + (at >> 5)
}

/// One digit of keys.
#[derive(Clone, Copy, Debug)]
struct Digit {
    /// Which word of the key.
    word: usize,
    shift: usize,
}

impl Lines {
    /// Puts whole rows in order.
    pub(super) fn radix(&self, site: &mut Site<'_>) -> Result<(), String> {
        let tiling = Tiling::new(self.size, site);
        let with_places = self.positions.is_some();
        let per_word = self.order.bits() as usize / BITS;
        let passes = self.order.words() * per_word;
        // Read and written by turns; the last pass writes results.
        let mut buffers = Vec::new();
        for _ in 1..passes.min(3) {
            buffers.push(self.records(tiling.padded(), with_places, site)?);
        }
        let counts = site.scratch(4 * self.rows * tiling.tiles * DIGITS);
        let mut from = None;
        for pass in 0..passes {
            let digit =
                Digit { word: self.order.words() - 1 - pass / per_word, shift: pass % per_word * BITS };
            let to = if pass + 1 == passes { None } else { buffers.get(pass % 2).copied() };
            self.count(tiling, digit, from, counts, site)?;
            self.offsets(tiling, counts, site)?;
            self.scatter(tiling, digit, from, to, counts, site)?;
            from = to;
        }
        Ok(())
    }

    /// Counts every tile's digits.
    fn count(
        &self,
        tiling: Tiling,
        digit: Digit,
        from: Option<Records>,
        counts: Memory,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let group = tiling.group;
        let k = site.builder("sort_count", group);
        let l = Launch::new(&k);
        let source = RecordSource::declare(self, &l, from, site);
        let counts = l.bind("counts", Elem::U32, Access::Write, counts);
        let place = SortTile::declare(self, &l, tiling);
        let shift = l.size("shift", digit.shift);
        let (me, stride) = (k.local_index(), DIGITS + 1);
        let bins = k.shared(Elem::U32, 1, COPIES * stride);

        for first in (0..COPIES * stride).step_by(group as usize) {
            let at = me + first;
            k.if_(at.lt(COPIES * stride), || bins.store(at, k.u32(0)));
        }
        k.barrier();
        let lanes = source.lanes(tiling.items);
        let own = (me % COPIES) * stride;
        // All loads first, so that none waits for a count.
        let runs: Vec<_> = (0..tiling.items / lanes)
            .map(|i| source.keys(place.row, place.first + (me + i * group) * lanes, lanes))
            .collect();
        for key in runs.into_iter().flatten() {
            let digit = (key[digit.word] >> shift) & (DIGITS - 1);
            bins.atomic(AtomicOp::Add, own + digit, k.u32(1));
        }
        k.barrier();
        for first in (0..DIGITS).step_by(group as usize) {
            let digit = me + first;
            let mut sum = bins.load(digit);
            for copy in 1..COPIES {
                sum = sum + bins.load(digit + copy * stride);
            }
            k.if_(place.there, || counts.store(place.work * DIGITS + digit, sum));
        }

        let bound = l.done();
        let moved = self.rows * tiling.padded() * 4 * self.order.words();
        site.dispatch(k, bound, self.rows * tiling.tiles, (0, moved))
    }

    /// Turns a row's counts into places, by one workgroup: those of smaller digits come first, then those of earlier
    /// tiles.
    fn offsets(&self, tiling: Tiling, counts: Memory, site: &mut Site<'_>) -> Result<(), String> {
        // Loads that an invocation has on their way at a time.
        const AHEAD: u32 = 8;
        let group = site.group_size(if tiling.tiles > 16 { 1024 } else { 256 });
        let k = site.builder("sort_offsets", group);
        let l = Launch::new(&k);
        let counts = l.bind("counts", Elem::U32, Access::ReadWrite, counts);
        let (rows, tiles) = (l.size("rows", self.rows), l.size("tiles", tiling.tiles));
        let me = k.local_index();
        // Invocations of a digit share its tiles; where there are fewer invocations than digits, each has several.
        let (width, parts) = (group.min(DIGITS), (group / DIGITS).max(1));
        let (lane, part) = (me % width, me / width);
        let row = linear_group(&k);
        let there = row.lt(rows);
        let share = (tiles + (parts - 1)) / parts;
        let first = tiles.min(part * share);
        let end = there.select(first + share.min(tiles - first), first);
        let base = row * tiles * DIGITS;
        let (sums, starts) = (k.shared(Elem::U32, 1, parts * DIGITS), k.shared(Elem::U32, 1, DIGITS));
        let clusters = Clusters::new(&k, group);
        let digits: Vec<u32> = (0..DIGITS).step_by(width as usize).collect();

        let whole = (end - first) / AHEAD * AHEAD;
        for from in &digits {
            let column = base + lane + *from;
            let sum = k.var(k.u32(0));
            k.for_(k.u32(0), whole, k.u32(AHEAD), |i| {
                let loaded: Vec<Val<'_>> =
                    (0..AHEAD).map(|u| counts.load(column + (first + i + u) * DIGITS)).collect();
                sum.set(loaded.into_iter().fold(sum.get(), |a, b| a + b));
            });
            k.for_(first + whole, end, k.u32(1), |tile| {
                sum.set(sum.get() + counts.load(column + tile * DIGITS));
            });
            sums.store(part * DIGITS + lane + *from, sum.get());
        }
        k.barrier();
        // Digits of the first part's invocations, in order.
        let earlier = k.var(k.u32(0));
        for from in &digits {
            let mut total = sums.load(lane + *from);
            for p in 1..parts {
                total = total + sums.load(lane + (*from + p * DIGITS));
            }
            let own = part.eq(0).select(total, k.u32(0));
            let (before, all) = clusters.scan(own, k.u32(0), |a, b| a + b);
            k.if_(part.eq(0), || starts.store(lane + *from, earlier.get() + before));
            earlier.set(earlier.get() + all);
        }
        k.barrier();
        for from in &digits {
            let next = k.var(starts.load(lane + *from));
            for p in 1..parts {
                let before = sums.load(lane + (*from + (p - 1) * DIGITS));
                next.set(next.get() + part.ge(p).select(before, k.u32(0)));
            }
            let column = base + lane + *from;
            let place = |tile, ahead: u32| {
                let indices: Vec<Val<'_>> = (0..ahead).map(|u| column + (tile + u) * DIGITS).collect();
                let loaded: Vec<Val<'_>> = indices.iter().map(|at| counts.load(*at)).collect();
                for (at, count) in indices.into_iter().zip(loaded) {
                    counts.store(at, next.get());
                    next.set(next.get() + count);
                }
            };
            k.for_(k.u32(0), whole, k.u32(AHEAD), |i| place(first + i, AHEAD));
            k.for_(first + whole, end, k.u32(1), |tile| place(tile, 1));
        }

        let bound = l.done();
        let moved = 8 * self.rows * tiling.tiles * DIGITS;
        site.dispatch(k, bound, self.rows, (0, moved))
    }

    /// Sorts every tile by a digit and writes its records where they belong, or results where it is the last digit.
    fn scatter(
        &self,
        tiling: Tiling,
        digit: Digit,
        from: Option<Records>,
        to: Option<Records>,
        counts: Memory,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let (group, words) = (tiling.group, self.order.words());
        let k = site.builder("sort_scatter", group);
        let l = Launch::new(&k);
        let source = RecordSource::declare(self, &l, from, site);
        let outlet = match to {
            Some(records) => RecordSink::Records(RecordBufs::declare(&l, Access::Write, records, words), {
                l.size("padded", records.len)
            }),
            None => {
                let cells = Cells::new(self.order.dtype.size(), site.caps);
                RecordSink::Results(
                    SortResults::declare(self, &l, site, source.x()),
                    cells,
                    l.size("results", self.take),
                )
            }
        };
        let counts = l.bind("counts", Elem::U32, Access::Read, counts);
        let place = SortTile::declare(self, &l, tiling);
        let shift = l.size("shift", digit.shift);
        let tile = Tile {
            k: &k,
            tiling,
            memory: k.shared(Elem::U32, 1, spread(tiling.len())),
            clusters: Clusters::new(&k, group),
        };
        let starts = k.shared(Elem::U32, 1, DIGITS);
        let me = k.local_index();

        // The word with the digit comes first: where it goes decides for the others.
        let mut columns = source.columns(place.row, place.first + me * tiling.items, tiling.items);
        columns.swap(0, digit.word);
        let digit_of = |word| (word >> shift) & (DIGITS - 1);
        let low: Vec<Val<'_>> = columns[0].iter().map(|w| digit_of(*w) & 15u32).collect();
        let ranks = tile.ranks(&low);
        for column in &mut columns {
            tile.put(&ranks, column);
            *column = (0..tiling.items).map(|i| tile.get(me * tiling.items + i)).collect();
        }
        let high: Vec<Val<'_>> = columns[0].iter().map(|w| digit_of(*w) >> 4).collect();
        let ranks = tile.ranks(&high);

        let places: Vec<Val<'_>> = (0..tiling.items).map(|i| me + i * group).collect();
        tile.put(&ranks, &columns[0]);
        let sorted: Vec<Val<'_>> = places.iter().map(|at| tile.get(*at)).collect();
        for (at, word) in places.iter().zip(&sorted) {
            let first = at.eq(0);
            let before = tile.get(first.select(*at, *at - 1u32));
            let own = digit_of(*word);
            k.if_(first | own.ne(digit_of(before)), || starts.store(own, *at));
        }
        k.barrier();
        for first in (0..DIGITS).step_by(group as usize) {
            let digit = me + first;
            // Of a digit that the tile has not, the start is of no account.
            let offset = counts.load(place.work * DIGITS + digit) - starts.load(digit);
            starts.store(digit, offset);
        }
        k.barrier();
        let targets: Vec<Val<'_>> =
            places.iter().zip(&sorted).map(|(at, word)| starts.load(digit_of(*word)) + *at).collect();
        let mut moved = vec![sorted];
        for column in &columns[1..] {
            tile.put(&ranks, column);
            moved.push(places.iter().map(|at| tile.get(*at)).collect());
        }
        moved.swap(0, digit.word);
        k.if_(place.there, || {
            for (i, target) in targets.iter().enumerate() {
                let record: Vec<Val<'_>> = moved.iter().map(|column| column[i]).collect();
                outlet.put(self, place.row, *target, &record);
            }
        });

        let bound = l.done();
        let moved = 8 * self.rows * tiling.padded() * columns.len();
        site.dispatch(k, bound, self.rows * tiling.tiles, (0, moved))
    }
}

/// Where a workgroup stands.
struct SortTile<'k> {
    /// The tile's number among all.
    work: Val<'k>,
    /// Whether there is such a tile.
    there: Val<'k>,
    /// Its row; the last one for workgroups past it.
    row: Val<'k>,
    /// Its first record's place in the row.
    first: Val<'k>,
}

impl<'k> SortTile<'k> {
    fn declare(lines: &Lines, l: &Launch<'k>, tiling: Tiling) -> Self {
        let k = l.k();
        let (all, tiles) = (l.size("all", lines.rows * tiling.tiles), l.size("tiles", tiling.tiles));
        let group = linear_group(k);
        let there = group.lt(all);
        let work = group.min(all - 1u32);
        let row = work / tiles;
        SortTile { work, there, row, first: (work - row * tiles) * tiling.len() }
    }
}

/// Where records come from.
enum RecordSource<'k> {
    Elements { lines: Lines, x: CellBuf<'k>, lanes: usize, size: Val<'k>, inner: Val<'k> },
    Records { records: RecordBufs<'k>, len: Val<'k> },
}

impl<'k> RecordSource<'k> {
    fn declare(lines: &Lines, l: &Launch<'k>, from: Option<Records>, site: &Site<'_>) -> Self {
        if let Some(records) = from {
            let len = l.size("len", records.len);
            let records = RecordBufs::declare(l, Access::Read, records, lines.order.words());
            return RecordSource::Records { records, len };
        }
        let cells = Cells::new(lines.order.dtype.size(), site.caps);
        RecordSource::Elements {
            lines: lines.clone(),
            x: cells.bind(l, "x", Access::Read, site.operands[0].memory),
            lanes: if lines.inner == 1 { cells.lanes_in(lines.size) } else { 1 },
            size: l.size("line", lines.size),
            inner: l.size("line_inner", lines.inner),
        }
    }

    /// The operand, if that is the source.
    fn x(&self) -> Option<CellBuf<'k>> {
        match self {
            RecordSource::Elements { x, .. } => Some(*x),
            RecordSource::Records { .. } => None,
        }
    }

    /// Records of one load, which divide `items`.
    fn lanes(&self, items: u32) -> u32 {
        let lanes = match self {
            RecordSource::Elements { lanes, .. } => *lanes as u32,
            RecordSource::Records { records, .. } => 4 / records.words as u32,
        };
        lanes.min(items)
    }

    /// The keys of `lanes` records from a place of a row on.
    fn keys(&self, row: Val<'k>, at: Val<'k>, lanes: u32) -> Vec<Vec<Val<'k>>> {
        match self {
            RecordSource::Records { records, len } => {
                let words = records
                    .keys
                    .load_vec((row * *len + at) * records.words, (lanes as usize * records.words) as u8);
                words.chunks(records.words).map(<[_]>::to_vec).collect()
            }
            RecordSource::Elements { lines, x, size, inner, .. } => {
                let k = at.builder();
                let inside = at.lt(*size);
                let at = inside.select(at, k.u32(0));
                let outer = row / *inner;
                let index = (outer * *size + at) * *inner + (row - outer * *inner);
                let last = k.u32(u32::MAX);
                let cells = x.load_many(index, lanes as usize);
                let key = |cell| lines.order.key(cell).into_iter().map(|w| inside.select(w, last)).collect();
                cells.iter().map(key).collect()
            }
        }
    }

    /// All words of `items` records from a place of a row on, word by word.
    fn columns(&self, row: Val<'k>, first: Val<'k>, items: u32) -> Vec<Vec<Val<'k>>> {
        let lanes = self.lanes(items);
        let runs = (0..items).step_by(lanes as usize);
        let keys: Vec<_> = runs.flat_map(|i| self.keys(row, first + i, lanes)).collect();
        let words = keys.first().map_or(0, Vec::len);
        let mut columns: Vec<Vec<Val<'k>>> =
            (0..words).map(|w| keys.iter().map(|key| key[w]).collect()).collect();
        match self {
            RecordSource::Elements { lines, .. } if lines.positions.is_some() => {
                columns.push((0..items).map(|i| first + i).collect());
            }
            RecordSource::Records { records, len } => {
                if let Some(places) = records.places {
                    let runs = (0..items).step_by(4);
                    columns.push(runs.flat_map(|i| places.load_vec(row * *len + first + i, 4)).collect());
                }
            }
            RecordSource::Elements { .. } => {}
        }
        columns
    }
}

/// Where records go.
enum RecordSink<'k> {
    Records(RecordBufs<'k>, Val<'k>),
    Results(SortResults<'k>, Cells, Val<'k>),
}

impl<'k> RecordSink<'k> {
    fn put(&self, lines: &Lines, row: Val<'k>, at: Val<'k>, record: &[Val<'k>]) {
        match self {
            RecordSink::Records(records, len) => records.store(row * *len + at, record),
            RecordSink::Results(sink, cells, take) => {
                row.builder().if_(at.lt(*take), || match (lines.positions, record.split_last()) {
                    (Some(_), Some((place, _))) => sink.put(row, at, *place),
                    _ => sink.put_key(lines.order, *cells, row, at, record),
                })
            }
        }
    }
}

/// A tile in workgroup memory.
struct Tile<'k> {
    k: &'k Builder,
    tiling: Tiling,
    /// Counters, and then one word of every record.
    memory: Shared<'k>,
    clusters: Clusters<'k>,
}

impl<'k> Tile<'k> {
    /// Stores a word of every record by rank.
    fn put(&self, ranks: &[Val<'k>], column: &[Val<'k>]) {
        // What was there before has been read.
        self.k.barrier();
        ranks.iter().zip(column).for_each(|(rank, word)| self.memory.store(slot(*rank), *word));
        self.k.barrier();
    }

    fn get(&self, at: Val<'k>) -> Val<'k> {
        self.memory.load(slot(at))
    }

    /// Places of an invocation's records in the tile's stable order by half digits. The records of an invocation
    /// follow one another, and those of the next invocation follow them.
    fn ranks(&self, digits: &[Val<'k>]) -> Vec<Val<'k>> {
        let (k, group) = (self.k, self.tiling.group);
        let me = k.local_index();
        k.barrier();
        // Counters by digit and invocation; a word has those of digits d and d + 8, and a tile has fewer than 2^16
        // records. Until the barrier an invocation meets its own counters only.
        for counter in 0..COUNTERS {
            self.memory.store(slot(me + counter * group), k.u32(0));
        }
        let mut own = Vec::with_capacity(digits.len());
        for digit in digits {
            let at = slot((*digit & (COUNTERS - 1)) * group + me);
            let shift = (*digit >> 3) << 4;
            let word = self.memory.load(at);
            self.memory.store(at, word + (k.u32(1) << shift));
            own.push((at, shift, (word >> shift) & 0xffffu32));
        }
        k.barrier();
        let mine: Vec<Val<'k>> = (0..COUNTERS).map(|i| self.get(me * COUNTERS + i)).collect();
        let sum = mine.iter().copied().reduce(|a, b| a + b).unwrap_or_else(|| k.u32(0));
        let (before, all) = self.clusters.scan(sum, k.u32(0), |a, b| a + b);
        // The second half of the digits follows all of the first.
        let mut next = before + (all << 16);
        for (i, word) in mine.into_iter().enumerate() {
            self.memory.store(slot(me * COUNTERS + i), next);
            next = next + word;
        }
        k.barrier();
        own.into_iter()
            .map(|(at, shift, before)| ((self.memory.load(at) >> shift) & 0xffffu32) + before)
            .collect()
    }
}
