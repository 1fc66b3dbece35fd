//! Rows of a packed weight as floats.

use olivine_ir::op::DequantGather;

use crate::index::Indices;
use crate::launch::{Launch, bytes, number};
use crate::packed::weight::Weight;
use crate::site::{Site, linear_group};

/// Elements of an invocation.
const RUN: u32 = 8;

/// Lowers a gather of rows.
pub(crate) fn gather(op: &DequantGather, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let [w, indices, scaling @ ..] = operands.as_slice() else {
        return Err("a gather needs a weight and indices".into());
    };
    let target = site.targets.first().ok_or("a gather needs a target")?.clone();
    let columns = target.ty.shape.sizes().last().map_or(1, |columns| number(*columns));
    let (rows, count) = (w.ty.shape.size(0), indices.sizes().numel());
    if columns == 0 || count == 0 {
        return Ok(());
    }
    let weight = Weight::new(w, scaling, op.scaling(), columns, site)?.decoded_as(false, site)?;
    let runs = columns.div_ceil(RUN as usize);

    let group = site.group_size(256);
    let k = site.builder("dequant_gather", group);
    let l = Launch::new(&k);
    let weight = weight.declare(&l);
    let positions = Indices::declare(&l, "indices", indices);
    let out = l.write("out", &target);
    let (total, width) = (l.size("n", count * runs), l.size("runs", runs));
    let (axis, columns_of) = (l.size("axis", rows), l.size("columns", columns));

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(total), || {
        let position = work / width;
        let row = positions.resolve(position, axis).at;
        let k_offset = (work - position * width) * RUN;
        let to = position * columns_of + k_offset;
        weight.store_run((row, k_offset, RUN), (out, to), (columns, columns_of));
    });
    let moved = bytes(&indices.ty) + bytes(&target.ty) * 3 / 2;
    let bound = l.done();
    site.dispatch(k, bound, (count * runs).div_ceil(group), (0, moved))
}
