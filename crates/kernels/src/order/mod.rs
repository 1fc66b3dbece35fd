//! Sort, argsort and top-k: records of a key and a position in order.
//!
//! ```text
//!   rows that fit     one workgroup sorts a row (or several short ones) in its memory and writes the results
//!   longer, top-k     parts of a row keep their k best, until what is left fits
//!   longer, sorted    a radix sort over tiles of all rows
//! ```
//!
//! Positions are part of what is compared, so equal keys keep their order and every run returns the same bits.

mod key;
mod network;
mod radix;
mod select;

use olivine_ir::op::{ArgSort, Sort, TopK};
use olivine_ir::{Dim, product};
use olivine_kernel::{Access, Buf, Elem, Val};

use super::cells::{CellBuf, Cells};
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::site::{Memory, Site};
use key::KeyOrder;
use network::Block;

kernels! { |op, site|
    Sort => sort(op, site),
    ArgSort => argsort(op, site),
    TopK => top_k(op, site),
}

/// Records of a block at most.
const MOST: usize = 4096;

/// Values in order along an axis.
pub(crate) fn sort(op: &Sort, site: &mut Site<'_>) -> Result<(), String> {
    let take = number(site.operands[0].ty.shape.size(op.axis));
    order(op.axis, take, op.descending, (Some(0), None), site)
}

/// Positions that put an axis in order.
pub(crate) fn argsort(op: &ArgSort, site: &mut Site<'_>) -> Result<(), String> {
    let take = number(site.operands[0].ty.shape.size(op.axis));
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
    rows: Dim,
    /// Records of a row, which kernels are written for.
    size: usize,
    inner: Dim,
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
    /// Where elements came from; not there where keys alone say what they were.
    places: Option<Memory>,
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
    let dims = ty.shape.sizes();
    let (size, inner) = (number(dims[axis]), product(&dims[axis + 1..]));
    let rows = product(&dims[..axis]) * inner;
    if take == 0 || rows == 0 {
        return Ok(());
    }
    // Values alone are told apart by their bits; with positions, equal ones keep their order.
    let order = KeyOrder { dtype: ty.dtype, descending, bits_differ: positions.is_none() };
    let lines = Lines { order, rows, size, inner, take, values, positions };
    let record = 4 * (order.words() + 1);
    let room = (site.caps.target.shared_bytes as usize / record).clamp(2, MOST);
    let block = 1 << room.ilog2();

    if size <= block {
        return lines.block(Block::whole(size), None, site);
    }
    match select::Room::new(&lines, site) {
        Some(room) if take < size => lines.knock_out(block, room, site),
        _ => lines.radix(site),
    }
}

impl Lines {
    fn records(&self, len: usize, with_places: bool, site: &mut Site<'_>) -> Result<Records, String> {
        let all = self.rows * len;
        if all > u32::MAX / 2 {
            return Err(format!("{} lines of {} are more than can be sorted", self.rows, self.size));
        }
        let keys = site.scratch(4 * self.order.words() * all);
        Ok(Records { keys, places: with_places.then(|| site.scratch(4 * all)), len })
    }

    /// Keeps the best of parts until what is left fits into one block.
    fn knock_out(&self, block: usize, room: select::Room, site: &mut Site<'_>) -> Result<(), String> {
        let (mut from, mut len) = (None, self.size);
        while len > block {
            let parts = room.parts(self, len);
            let kept = match parts.count {
                1 => None,
                count => Some(self.records(count * self.take, true, site)?),
            };
            self.select(room, parts, from, kept, site)?;
            let Some(kept) = kept else { return Ok(()) };
            (from, len) = (Some(kept), kept.len);
        }
        self.block(Block::whole(len), from, site)
    }

    fn moved(&self, site: &Site<'_>) -> Dim {
        bytes(&site.operands[0].ty) + site.targets.iter().map(|t| bytes(&t.ty)).sum::<Dim>()
    }
}

/// The operand and the targets, by rows.
struct SortResults<'k> {
    x: Option<CellBuf<'k>>,
    values: Option<CellBuf<'k>>,
    positions: Option<(CellBuf<'k>, Cells)>,
    size: Val<'k>,
    inner: Val<'k>,
    take: Val<'k>,
}

impl<'k> SortResults<'k> {
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
        SortResults {
            x,
            values,
            positions: lines.positions.map(|i| (wide.bind(l, "positions", Access::Write, target(i)), wide)),
            size: l.size("size", lines.size),
            inner: l.size("inner", lines.inner),
            take: l.size("take", lines.take),
        }
    }

    /// Where a row's n-th result goes.
    fn target(&self, row: Val<'k>, nth: Val<'k>) -> Val<'k> {
        let outer = row / self.inner;
        (outer * self.take + nth) * self.inner + (row - outer * self.inner)
    }

    /// The index of the operand's element at a position of a row.
    fn source(&self, row: Val<'k>, place: Val<'k>) -> Val<'k> {
        let outer = row / self.inner;
        (outer * self.size + place) * self.inner + (row - outer * self.inner)
    }

    /// Stores a row's n-th result, a value that its key tells.
    fn put_key(&self, order: KeyOrder, cells: Cells, row: Val<'k>, nth: Val<'k>, key: &[Val<'k>]) {
        if let (Some(values), Some(cell)) = (self.values, order.element(key, cells)) {
            values.store(self.target(row, nth), &[cell]);
        }
    }

    /// Stores a row's n-th result, which stands at `place` in the operand.
    fn put(&self, row: Val<'k>, nth: Val<'k>, place: Val<'k>) {
        let to = self.target(row, nth);
        if let (Some(values), Some(x)) = (self.values, self.x) {
            values.store(to, &[x.load(self.source(row, place))]);
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
    places: Option<Buf<'k>>,
    words: usize,
}

impl<'k> RecordBufs<'k> {
    fn declare(l: &Launch<'k>, access: Access, records: Records, words: usize) -> Self {
        let keys = l.bind("keys", Elem::U32, access, records.keys);
        let places = records.places.map(|places| l.bind("places", Elem::U32, access, places));
        RecordBufs { keys, places, words }
    }

    /// Key words and, where it is kept, the position.
    fn load(self, at: Val<'k>) -> Vec<Val<'k>> {
        let mut record = self.keys.load_vec(at * self.words, self.words as u8);
        record.extend(self.places.map(|places| places.load(at)));
        record
    }

    fn store(self, at: Val<'k>, record: &[Val<'k>]) {
        if let Some(key) = record.get(..self.words) {
            self.keys.store_vec(at * self.words, key);
        }
        if let (Some(places), Some(place)) = (self.places, record.get(self.words)) {
            places.store(at, *place);
        }
    }
}
