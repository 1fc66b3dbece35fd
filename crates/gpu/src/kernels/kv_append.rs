//! The key-value cache: rows written at a position that the device reads.
//!
//! The cache is copied to the result first; where both are the same bytes the copy is left out. Rows that fall outside
//! the cache are dropped.

use olivine_ir::op::{HeadLayout, KvAppend};
use olivine_kernel::{Access, Elem};

use super::elementwise::whole_copy;
use super::integers::Integers;
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Operand, Site, linear_group};
use crate::lower::walk::Walk;

/// Lowers an append.
pub(crate) fn kv_append(op: &KvAppend, site: &mut Site<'_>) -> Result<(), String> {
    let ([cache, rows, position], [target]) = (&site.operands[..], &site.targets[..]) else {
        return Err("needs a cache, rows and a position".into());
    };
    let (cache, rows, position, target) = (cache.clone(), rows.clone(), position.clone(), target.clone());
    whole_copy(&cache, &target, site)?;

    // Elements move as whole bits: wide ones as two words.
    let (elem, words) = match rows.ty.dtype.size() {
        1 => (Elem::U8, 1),
        2 => (Elem::U16, 1),
        4 => (Elem::U32, 1),
        _ => (Elem::U32, 2),
    };
    let axis = match op.layout {
        HeadLayout::Bshd => 1,
        HeadLayout::Bhsd => 2,
    };
    let (dims, to) = (rows.dims().to_vec(), target.ty.shape.strides());
    let to: Vec<i64> = to.iter().map(|s| *s as i64).collect();
    let width = if words == 1 && moves_fours(&rows, &to) { 4 } else { 1 };
    // One row of positions for every combination of the other dimensions.
    let mut inner = dims.clone();
    inner.remove(axis);
    let without_axis = |steps: &[i64]| {
        let mut steps = steps.to_vec();
        steps.remove(axis);
        steps
    };
    let walk = Walk::new(&inner, &[without_axis(&rows.strides), without_axis(&to)]);
    let each = walk.numel() / width;
    let count = each * dims[axis];
    if count == 0 {
        return Ok(());
    }

    let group = site.group_size(256);
    let k = site.builder("kv_append", group);
    let l = Launch::new(&k);
    let source = l.bind("rows", elem, Access::Read, rows.memory);
    let position = Integers::read(&l, "position", &position);
    let sink = l.bind("cache", elem, Access::Write, target.memory);
    let (n, each) = (l.size("n", count), l.size("each", each));
    let capacity = l.size("capacity", target.ty.shape[axis]);
    let (from_row, to_row) = (l.stride("from_row", rows.strides[axis]), l.stride("to_row", to[axis]));
    let walker = walk.declare(&l, &[rows.offset, 0]);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(n), || {
        let (row, rest) = (work / each, work % each);
        let at = position.at(k.u32(0)).plus(row);
        k.if_(at.below(capacity), || {
            let places = walker.at(rest * width);
            let (from, to) = (places[0] + row * from_row, places[1] + at.low * to_row);
            for word in 0..words {
                let values = source.load_vec(from * words + word, width as u8);
                sink.store_vec(to * words + word, &values);
            }
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, (count as u64).div_ceil(u64::from(group)), (0, 2 * bytes(&rows.ty)))
}

/// Whether four neighbouring elements of the rows are one vector in both places.
fn moves_fours(rows: &Operand, to: &[i64]) -> bool {
    let (dims, offset) = (rows.dims(), rows.offset);
    let apart =
        |steps: &[i64]| dims.iter().zip(steps).take(3).all(|(size, step)| *size <= 1 || step % 4 == 0);
    let unit = rows.strides.last() == Some(&1);
    unit && dims.last().is_some_and(|d| d % 4 == 0) && offset % 4 == 0 && apart(&rows.strides) && apart(to)
}
