//! Sort, argsort and top-k: records of a key and a position, sorted by bitonic networks.
//!
//! ```text
//!   rows that fit     one workgroup sorts a row (or several short ones) in its memory and writes the results
//!   longer, top-k     blocks of a row are sorted and their k best kept, until what is left fits
//!   longer, sorted    blocks are sorted, then merged: wide steps in global memory, narrow ones in workgroup memory
//! ```
//!
//! Positions are part of what is compared, so equal keys keep their order and every run gives the same bits.

mod key;
mod network;

use olivine_ir::op::{ArgSort, Sort, TopK};
use olivine_kernel::{Access, Buf, Elem, Val};

use super::cells::{CellBuf, Cells};
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Memory, Site, linear_group};
use key::KeyOrder;
use network::{Block, Network};

/// Records of a block at most.
const MOST: usize = 4096;

/// Values in order along an axis.
pub(crate) fn sort(op: &Sort, site: &mut Site<'_>) -> Result<(), String> {
    let take = site.operands[0].dims()[op.axis];
    order(op.axis, take, op.descending, (Some(0), None), site)
}

/// Positions that put an axis in order.
pub(crate) fn argsort(op: &ArgSort, site: &mut Site<'_>) -> Result<(), String> {
    let take = site.operands[0].dims()[op.axis];
    order(op.axis, take, op.descending, (None, Some(0)), site)
}

/// The k largest or smallest with their positions.
pub(crate) fn top_k(op: &TopK, site: &mut Site<'_>) -> Result<(), String> {
    order(op.axis, op.k, op.largest, (Some(0), Some(1)), site)
}

/// Lines along an axis, and what of each is wanted.
#[derive(Clone, Debug)]
struct Lines {
    order: KeyOrder,
    rows: usize,
    size: usize,
    inner: usize,
    /// How many results of a row.
    take: usize,
    /// Which targets are values and positions.
    values: Option<usize>,
    positions: Option<usize>,
}

/// Records in scratch: for every row, `len` of them.
#[derive(Clone, Copy, Debug)]
struct Records {
    keys: Memory,
    places: Memory,
    len: usize,
}

fn order(
    axis: usize,
    take: usize,
    descending: bool,
    (values, positions): (Option<usize>, Option<usize>),
    site: &mut Site<'_>,
) -> Result<(), String> {
    let ty = site.operands[0].ty;
    let dims = ty.shape.dims();
    let (size, inner): (usize, usize) = (dims[axis], dims[axis + 1..].iter().product());
    let rows = dims[..axis].iter().product::<usize>() * inner;
    if rows == 0 || take == 0 {
        return Ok(());
    }
    // Values alone are told apart by their bits; with positions, equal ones keep their order.
    let order = KeyOrder { dtype: ty.dtype, descending, zeros_differ: positions.is_none() };
    let lines = Lines { order, rows, size, inner, take, values, positions };
    let record = 4 * (order.words() + 1);
    let room = (site.caps.target.shared_bytes as usize / record).clamp(2, MOST);
    let block = 1 << room.ilog2();

    if size <= block {
        let whole = Block { chunk: size.next_power_of_two(), chunks: 1, len: size };
        return lines.block(whole, Network::Sort, None, To::Results, site);
    }
    if take <= block / 2 {
        return lines.knock_out(block, site);
    }
    lines.merge(block, site)
}

/// Where a block's records go.
#[derive(Clone, Copy, Debug)]
enum To {
    /// The first of each row to the targets.
    Results,
    /// The first `take` of each block.
    First(Records),
    /// All of them.
    All(Records),
}

impl Lines {
    fn records(&self, len: usize, site: &mut Site<'_>) -> Result<Records, String> {
        let all = self.rows * len;
        if all > u32::MAX as usize / 2 {
            return Err(format!("{} lines of {} are more than can be sorted", self.rows, self.size));
        }
        let keys = site.scratch((4 * self.order.words() * all) as u64);
        Ok(Records { keys, places: site.scratch(4 * all as u64), len })
    }

    /// Keeps the best of every block until one block is left.
    fn knock_out(&self, block: usize, site: &mut Site<'_>) -> Result<(), String> {
        let (mut from, mut len) = (None, self.size);
        while len > block {
            let chunks = len.div_ceil(block);
            let kept = self.records(chunks * self.take, site)?;
            self.block(Block { chunk: block, chunks, len }, Network::Sort, from, To::First(kept), site)?;
            (from, len) = (Some(kept), kept.len);
        }
        let last = Block { chunk: len.next_power_of_two(), chunks: 1, len };
        self.block(last, Network::Sort, from, To::Results, site)
    }

    /// Sorts blocks up and down by turns and merges them.
    fn merge(&self, block: usize, site: &mut Site<'_>) -> Result<(), String> {
        let padded = self.size.next_power_of_two();
        let records = self.records(padded, site)?;
        let chunks = padded / block;
        let first = Block { chunk: block, chunks, len: self.size };
        self.block(first, Network::SortByTurns, None, To::All(records), site)?;
        let mut span = 2 * block;
        while span <= padded {
            let mut distance = span / 2;
            while distance >= block {
                self.step(records, span, distance, site)?;
                distance /= 2;
            }
            let all = Block { chunk: block, chunks, len: padded };
            self.block(all, Network::Merge { span }, Some(records), To::All(records), site)?;
            span *= 2;
        }
        self.write(records, site)
    }

    /// Writes results from sorted records.
    fn write(&self, records: Records, site: &mut Site<'_>) -> Result<(), String> {
        let group = site.group_size(256);
        let k = site.builder("sort_write", group);
        let l = Launch::new(&k);
        let places = l.bind("places", Elem::U32, Access::Read, records.places);
        let sink = Sink::declare(self, &l, site, None);
        let items = self.rows * self.take;
        let (count, take) = (l.size("items", items), l.size("taken", self.take));
        let len = l.size("len", records.len);
        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(count), || {
            let row = work / take;
            let nth = work - row * take;
            sink.put(row, nth, places.load(row * len + nth));
        });
        let bound = l.done();
        site.dispatch(k, bound, items.div_ceil(group as usize) as u64, (0, self.moved(site)))
    }

    fn moved(&self, site: &Site<'_>) -> u64 {
        bytes(&site.operands[0].ty) + site.targets.iter().map(|t| bytes(&t.ty)).sum::<u64>()
    }
}

/// The operand and the targets, by rows.
struct Sink<'k> {
    x: Option<CellBuf<'k>>,
    values: Option<CellBuf<'k>>,
    positions: Option<(CellBuf<'k>, Cells)>,
    size: Val<'k>,
    inner: Val<'k>,
    take: Val<'k>,
}

impl<'k> Sink<'k> {
    /// Declares the targets; `x` is the operand where it is declared already.
    fn declare(lines: &Lines, l: &Launch<'k>, site: &Site<'_>, x: Option<CellBuf<'k>>) -> Self {
        let cells = Cells::new(lines.order.dtype.size(), site.caps);
        let wide = Cells::new(8, site.caps);
        let target = |i: usize| site.targets[i].memory;
        let values = lines.values.map(|i| cells.bind(l, "values", Access::Write, target(i)));
        let x = match (x, values) {
            (None, Some(_)) => Some(cells.bind(l, "x", Access::Read, site.operands[0].memory)),
            (x, _) => x,
        };
        Sink {
            x,
            values,
            positions: lines.positions.map(|i| (wide.bind(l, "positions", Access::Write, target(i)), wide)),
            size: l.size("size", lines.size),
            inner: l.size("inner", lines.inner),
            take: l.size("take", lines.take),
        }
    }

    /// Stores a row's n-th result, which stands at `place` in the operand.
    fn put(&self, row: Val<'k>, nth: Val<'k>, place: Val<'k>) {
        let outer = row / self.inner;
        let within = row - outer * self.inner;
        let to = (outer * self.take + nth) * self.inner + within;
        if let (Some(values), Some(x)) = (self.values, self.x) {
            values.store(to, &[x.load((outer * self.size + place) * self.inner + within)]);
        }
        if let Some((positions, cells)) = self.positions {
            positions.store(to, &[cells.of_words(place, row.builder().u32(0))]);
        }
    }
}

/// Declared records.
#[derive(Clone, Copy)]
struct RecordBufs<'k> {
    keys: Buf<'k>,
    places: Buf<'k>,
    words: usize,
}

impl<'k> RecordBufs<'k> {
    fn declare(l: &Launch<'k>, access: Access, records: Records, words: usize) -> Self {
        let keys = l.bind("keys", Elem::U32, access, records.keys);
        RecordBufs { keys, places: l.bind("places", Elem::U32, access, records.places), words }
    }

    /// Key words and the position.
    fn load(self, at: Val<'k>) -> Vec<Val<'k>> {
        let mut record = self.keys.load_vec(at * self.words, self.words as u8);
        record.push(self.places.load(at));
        record
    }

    fn store(self, at: Val<'k>, record: &[Val<'k>]) {
        if let Some((place, key)) = record.split_last() {
            self.keys.store_vec(at * self.words, key);
            self.places.store(at, *place);
        }
    }
}
