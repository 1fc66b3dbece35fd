//! The nearest samples: elements are moved as bits, so that any dtype arrives as it is.

use olivine_ir::op::Resize;
use olivine_ir::{Dim, Tensor};
use olivine_kernel::{Access, Elem, Val};
use olivine_numerics::resample::{ResizedAxis, nearest};

use super::{Block, Grid, MANY, ROWS, axes, is_unchanged, items, last_two, table_of_axes};
use crate::cells::{Cell, Cells};
use crate::launch::{Launch, bytes};
use crate::rows::GROUP;
use crate::site::{Site, linear_group};

/// Words by which tables are aligned, so that they can be read as vectors.
const ALIGNED: usize = 4;

/// The samples of all axes, one axis after another.
fn samples(op: &Resize, axes: &[ResizedAxis]) -> Result<Tensor, String> {
    let mut words: Vec<u32> = Vec::new();
    for axis in axes {
        words.extend(nearest(op, axis).map_err(|e| e.to_string())?.iter().map(|i| *i as u32));
        words.resize(words.len().next_multiple_of(ALIGNED), 0);
    }
    Tensor::new([words.len()], words).map_err(|e| e.to_string())
}

pub(super) fn emit(op: &Resize, site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    let (from, to) = (operand.sizes(), target.ty.shape.sizes());
    let n = to.numel();
    let (mut words, mut resized) = (Dim::ZERO, Vec::new());
    let axes = axes(from.iter().copied().zip(to.iter().copied()), |axis| {
        (!is_unchanged(op, axis, from[axis], to[axis])).then(|| {
            let offset = words;
            words += to[axis].next_multiple_of(ALIGNED);
            resized.push(axis);
            offset
        })
    });
    let table = site.table(table_of_axes(op, resized, (&from, &to), words * 4, samples)?);

    let (rows, columns) = last_two(&axes);
    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let kept = axes.last().is_some_and(|a| a.table.is_none());
    // Narrow elements are stored a word at a time, neighbours that were neighbours as vectors.
    let wanted = if kept { cells.most_lanes() } else { (4 / cells.bytes()).max(1) };
    let lanes = [4, 2].into_iter().find(|l| *l <= wanted && columns.is_multiple_of(*l)).unwrap_or(1);
    let block = Block { lanes, rows: if n >= MANY && rows >= ROWS { ROWS } else { 1 } };
    let items = items(&axes, block);

    let group = site.group_size(GROUP);
    let k = site.builder("resize_nearest", group);
    let l = Launch::new(&k);
    let x = cells.bind(&l, "x", Access::Read, operand.memory);
    let table = l.bind("samples", Elem::U32, Access::Read, table);
    let y = cells.bind(&l, "y", Access::Write, target.memory);
    let grid = Grid::declare(&l, &axes, block);
    let offsets: Vec<Option<Val<'_>>> = axes.iter().map(|a| a.table.map(|o| l.size("offset", o))).collect();
    let count = l.size("n", items);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let place = grid.place(work);
        let (last, before) = (axes.len() - 1, axes.len().saturating_sub(1));
        let across: Vec<Val<'_>> = match offsets[last] {
            Some(offset) => table.load_vec(offset + place.column, lanes as u8),
            None => vec![place.column],
        };
        for r in 0..block.rows {
            let (row, real) = grid.row(&place, r);
            let line = (0..before).fold(k.u32(0), |line, axis| {
                let at = grid.coordinate(&place, row, axis);
                let sample = offsets[axis].map_or(at, |offset| table.load(offset + at));
                line * grid.inputs[axis] + sample
            });
            let start = line * grid.inputs[last];
            let values: Vec<Cell<'_>> = if kept {
                x.load_many(start + across[0], lanes)
            } else {
                across.iter().map(|c| x.load(start + *c)).collect()
            };
            k.if_(real, || y.store(grid.target(&place, row), &values));
        }
    });

    let moved = bytes(&operand.ty).min(bytes(&target.ty)) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, items.div_ceil(group), (0, moved))
}
