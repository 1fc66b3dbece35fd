//! Copies whose contiguous dimension is another one on each side: tiles are read along one, turned in workgroup
//! memory and written along the other. All further dimensions are batch.

use olivine_ir::Dim;
use olivine_kernel::{Access, Builder, Elem, Val};

use super::cells::{Cell, Cells};
use super::copy::StridedCopy;
use crate::launch::Launch;
use crate::site::{Site, linear_group};
use crate::walk::Walk;

/// Dimensions below this fill too little of a tile; caches serve them well enough.
const LEAST: usize = 8;

/// The dimension that is contiguous where elements come from and the one that is where they go, if a copy between
/// these two sides is better turned in tiles.
pub(crate) fn axes(walk: &Walk) -> Option<(usize, usize)> {
    let to = walk.dims.len().checked_sub(1)?;
    if !walk.steps_by(1, 1) || walk.steps_by(0, 1) || walk.steps_by(0, 0) {
        return None;
    }
    let from = (0..to).find(|d| walk.strides[0][*d].as_constant() == Some(1))?;
    (walk.dims[from] >= LEAST && walk.dims[to] >= LEAST).then_some((from, to))
}

/// The widest access along a dimension, whose positions and all other strides must be multiples of it.
fn lanes(walk: &Walk, cells: Cells, side: usize, axis: usize, offset: Dim) -> usize {
    let aligned = |lanes: &usize| {
        *lanes <= cells.most_lanes()
            && walk.dims[axis].is_multiple_of(*lanes)
            && offset.is_multiple_of(*lanes)
            && walk.strides[side].iter().enumerate().all(|(d, s)| d == axis || s.is_multiple_of(*lanes))
    };
    [4, 2].into_iter().find(aligned).unwrap_or(1)
}

/// Shares a tile out among the workgroup, `lanes` cells along its minor dimension to an access; the tile has at least
/// as many accesses as the group has invocations, and both are powers of two.
fn over_tile<'k>(k: &'k Builder, edge: u32, lanes: usize, access: impl Fn(Val<'k>, Val<'k>)) {
    let per_row = edge / lanes as u32;
    for first in (0..edge * per_row).step_by(k.group() as usize) {
        let item = k.local_index() + first;
        access(item / per_row, item % per_row * lanes);
    }
}

/// Emits the copy of elements of `bytes` bytes; `from` and `to` come from [`axes`].
pub(crate) fn emit(
    bytes: usize,
    m: &StridedCopy,
    walk: &Walk,
    (from, to): (usize, usize),
    site: &mut Site<'_>,
) -> Result<(), String> {
    if let Some(words) = Packed::new(bytes, m, walk, (from, to), site) {
        return words.emit(m, walk, site);
    }
    let cells = Cells::new(bytes, site.caps);
    let group = site.group_size(256);
    let (elem, words) = cells.shared();
    let tile_bytes = |edge: u32| edge * (edge + 1) * elem.size() * words as u32;
    let read = lanes(walk, cells, 0, from, m.from.offset);
    let written = lanes(walk, cells, 1, to, m.to.offset);
    // Narrow elements need longer rows for the same bytes.
    let edge = if bytes <= 2 && tile_bytes(64) <= site.caps.target.shared_bytes { 64 } else { 32 };

    let k = site.builder("transpose", group);
    let l = Launch::new(&k);
    let source = cells.bind(&l, "x", Access::Read, m.from.memory);
    let sink = cells.bind(&l, "y", Access::Write, m.to.memory);
    let (wide, long) = (walk.dims[from], walk.dims[to]);
    let (columns, rows) = (l.size("columns", wide), l.size("rows", long));
    let row_stride = l.stride("row_stride", walk.strides[0][to]);
    let column_stride = l.stride("column_stride", walk.strides[1][from]);
    let (across, down) = (wide.div_ceil(edge), long.div_ceil(edge));
    let (tiles_across, tiles_down) = (l.size("tiles_across", across), l.size("tiles_down", down));
    let rest: Vec<usize> = (0..walk.dims.len()).filter(|d| *d != from && *d != to).collect();
    let of = |values: &[Dim]| rest.iter().map(|d| values[*d]).collect::<Vec<Dim>>();
    let dims: Vec<Dim> = rest.iter().map(|d| walk.dims[*d]).collect();
    let batch = Walk::new(&dims, &[of(&walk.strides[0]), of(&walk.strides[1])]);
    let batches = l.size("batches", batch.numel());
    let walker = batch.declare(&l, &[m.from.offset, m.to.offset]);
    let tile: Vec<_> = (0..words).map(|_| k.shared(elem, 1, edge * (edge + 1))).collect();

    let number = linear_group(&k);
    let (column, above) = (number % tiles_across * edge, number / tiles_across);
    let (row, batch_number) = (above % tiles_down * edge, above / tiles_down);
    let there = batch_number.lt(batches);
    let start = walker.at(batch_number);
    over_tile(&k, edge, read, |r, c| {
        k.if_(there & (row + r).lt(rows) & (column + c).lt(columns), || {
            let at = start[0] + (row + r) * row_stride + column + c;
            for (i, cell) in source.load_many(at, read).iter().enumerate() {
                for (memory, value) in tile.iter().zip(&cell.0) {
                    memory.store(r * (edge + 1) + c + i, *value);
                }
            }
        });
    });
    k.barrier();
    over_tile(&k, edge, written, |c, r| {
        k.if_(there & (row + r).lt(rows) & (column + c).lt(columns), || {
            let cell =
                |i: usize| Cell(tile.iter().map(|memory| memory.load((r + i) * (edge + 1) + c)).collect());
            let values: Vec<Cell<'_>> = (0..written).map(cell).collect();
            sink.store(start[1] + (column + c) * column_stride + row + r, &values);
        });
    });

    let moved = 2 * walk.numel() * bytes;
    let bound = l.done();
    site.dispatch(k, bound, across * down * batch.numel(), (0, moved))
}

/// Narrow elements in words: squares of as many rows as a word has elements are turned in registers, then words in
/// workgroup memory.
struct Packed {
    from: usize,
    to: usize,
    /// Elements of a word.
    each: u32,
    /// Rows and columns of a tile.
    edge: u32,
    /// Words of an access where elements come from, and where they go.
    read: usize,
    written: usize,
}

impl Packed {
    /// `None` where elements do not fill words on both sides.
    fn new(
        bytes: usize,
        m: &StridedCopy,
        walk: &Walk,
        (from, to): (usize, usize),
        site: &Site<'_>,
    ) -> Option<Self> {
        let each = match bytes {
            1 => 4,
            2 => 2,
            _ => return None,
        };
        let filled = |side: usize, axis: usize, offset: Dim, words: usize| {
            let run = each * words;
            walk.dims[axis].is_multiple_of(run)
                && offset.is_multiple_of(run)
                && walk.strides[side].iter().enumerate().all(|(d, s)| d == axis || s.is_multiple_of(run))
        };
        let widest = |side: usize, axis: usize, offset: Dim| {
            [4, 2, 1].into_iter().find(|words| filled(side, axis, offset, *words))
        };
        let (read, written) = (widest(0, from, m.from.offset)?, widest(1, to, m.to.offset)?);
        let room = |edge: &u32| edge * (edge / each as u32 + 1) * 4 <= site.caps.target.shared_bytes;
        let edge = if bytes == 1 { [128, 64] } else { [64, 32] }.into_iter().find(room)?;
        Some(Packed { from, to, each: each as u32, edge, read, written })
    }

    fn emit(&self, m: &StridedCopy, walk: &Walk, site: &mut Site<'_>) -> Result<(), String> {
        let Packed { from, to, each, edge, read, written } = *self;
        let k = site.builder("transpose_packed", site.group_size(256));
        let l = Launch::new(&k);
        let source = l.bind("x", Elem::U32, Access::Read, m.from.memory);
        let sink = l.bind("y", Elem::U32, Access::Write, m.to.memory);
        // Lengths along the words of either side and strides count words.
        let (wide, long) = (walk.dims[from] / each, walk.dims[to] / each);
        let (columns, rows) = (l.size("columns", wide), l.size("rows", long));
        let in_words = |stride: Dim| stride / each;
        let row_stride = l.stride("row_stride", in_words(walk.strides[0][to]));
        let column_stride = l.stride("column_stride", in_words(walk.strides[1][from]));
        let words = edge / each;
        let (across, down) = (wide.div_ceil(words), long.div_ceil(words));
        let (tiles_across, tiles_down) = (l.size("tiles_across", across), l.size("tiles_down", down));
        let rest: Vec<usize> = (0..walk.dims.len()).filter(|d| *d != from && *d != to).collect();
        let of = |values: &[Dim]| rest.iter().map(|d| in_words(values[*d])).collect::<Vec<Dim>>();
        let dims: Vec<Dim> = rest.iter().map(|d| walk.dims[*d]).collect();
        let batch = Walk::new(&dims, &[of(&walk.strides[0]), of(&walk.strides[1])]);
        let batches = l.size("batches", batch.numel());
        let offsets = [m.from.offset, m.to.offset].map(|o| o / each);
        let walker = batch.declare(&l, &offsets);
        let pitch = words + 1;
        let tile = k.shared(Elem::U32, 1, edge * pitch);

        let number = linear_group(&k);
        let (column, above) = (number % tiles_across * words, number / tiles_across);
        let (row, batch_number) = (above % tiles_down * words, above / tiles_down);
        let there = batch_number.lt(batches);
        let start = walker.at(batch_number);
        // Squares: a word of rows down, some words of columns across.
        shared_out(&k, words * words, read, |at| {
            let (r, c) = (at / words, at % words);
            k.if_(there & (row + r).lt(rows) & (column + c).lt(columns), || {
                let first = start[0] + (row + r) * each * row_stride + column + c;
                let lines: Vec<Vec<Val<'_>>> =
                    (0..each).map(|i| source.load_vec(first + row_stride * i, read as u8)).collect();
                for word in 0..read {
                    let square: Vec<Val<'_>> = lines.iter().map(|line| line[word]).collect();
                    for (j, turned) in turned(&square).into_iter().enumerate() {
                        let line = (c + word as u32) * each + j as u32;
                        tile.store(line * pitch + r, turned);
                    }
                }
            });
        });
        k.barrier();
        shared_out(&k, edge * words, written, |at| {
            let (line, r) = (at / words, at % words);
            k.if_(there & (row + r).lt(rows) & (column + line / each).lt(columns), || {
                let values: Vec<Val<'_>> =
                    (0..written).map(|i| tile.load(line * pitch + r + i as u32)).collect();
                sink.store_vec(start[1] + (column * each + line) * column_stride + row + r, &values);
            });
        });

        let moved = 8 * walk.numel() / each;
        let bound = l.done();
        site.dispatch(k, bound, across * down * batch.numel(), (0, moved))
    }
}

/// Shares `count` words out among the workgroup, `lanes` neighbours to an access; all are powers of two.
fn shared_out<'k>(k: &'k Builder, count: u32, lanes: usize, access: impl Fn(Val<'k>)) {
    let items = count / lanes as u32;
    for first in (0..items).step_by(k.group() as usize) {
        let item = k.local_index() + first;
        let work = || access(item * lanes);
        if items >= k.group() { work() } else { k.if_(item.lt(items), work) }
    }
}

/// Two words of two elements, or four of four, turned: the i-th elements of all make the i-th word.
fn turned<'k>(square: &[Val<'k>]) -> Vec<Val<'k>> {
    let halves =
        |a: Val<'k>, b: Val<'k>| [(a & 0xffffu32) | (b << 16u32), (a >> 16u32) | (b & 0xffff_0000u32)];
    match square {
        [a, b] => halves(*a, *b).to_vec(),
        [a, b, c, d] => {
            let even = |a: Val<'k>, b: Val<'k>| (a & 0x00ff_00ffu32) | ((b & 0x00ff_00ffu32) << 8u32);
            let odd = |a: Val<'k>, b: Val<'k>| ((a >> 8u32) & 0x00ff_00ffu32) | (b & 0xff00_ff00u32);
            let [first, third] = halves(even(*a, *b), even(*c, *d));
            let [second, fourth] = halves(odd(*a, *b), odd(*c, *d));
            vec![first, second, third, fourth]
        }
        other => other.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dims: &[usize], from: &[i64], to: &[i64]) -> Option<(usize, usize)> {
        axes(&Walk::new(dims, &[from.to_vec(), to.to_vec()]))
    }

    #[test]
    fn only_sides_that_disagree_are_turned() {
        assert_eq!(of(&[64, 32], &[1, 64], &[32, 1]), Some((0, 1)));
        assert_eq!(of(&[9, 16, 20], &[1000, 1, 16], &[320, 20, 1]), Some((1, 2)));
        assert_eq!(of(&[64, 32], &[40, 1], &[32, 1]), None, "both are contiguous in the last dimension");
        assert_eq!(of(&[64, 32], &[1, 0], &[32, 1]), None, "one number is read for a row");
        assert_eq!(of(&[64, 32], &[2, 128], &[32, 1]), None, "nothing is contiguous where it comes from");
        assert_eq!(of(&[3, 32], &[1, 3], &[32, 1]), None, "too little to fill a tile");
    }
}
