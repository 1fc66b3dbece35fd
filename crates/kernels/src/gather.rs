//! Reads at computed positions; positions out of range are moved to the nearest one in it.

use olivine_ir::op::{Gather, GatherElements, GatherNd};
use olivine_ir::{Dim, product};
use olivine_kernel::{Access, Val};

use super::cells::Cells;
use super::index::Indices;
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::site::{Site, linear_group};
use crate::walk::Walk;

kernels! { |op, site|
    Gather => gather(op, site),
    GatherElements => gather_elements(op, site),
    GatherNd => gather_nd(op, site),
}

/// Whole slices along an axis.
pub(crate) fn gather(op: &Gather, site: &mut Site<'_>) -> Result<(), String> {
    let dims = site.operands[0].sizes();
    let slices = Slices {
        name: "gather",
        inner: product(&dims[op.axis + 1..]),
        per_batch: site.operands[1].sizes().numel(),
        axes: vec![dims[op.axis]],
        shared: true,
    };
    slices.lower(site)
}

/// Slices at index tuples.
pub(crate) fn gather_nd(op: &GatherNd, site: &mut Site<'_>) -> Result<(), String> {
    let (dims, indices) = (site.operands[0].sizes(), site.operands[1].sizes());
    let batch = op.batch_dims;
    let (tuple, outer) = indices.split_last().ok_or("indices of rank 0")?;
    // A kernel is written for the length of the tuples.
    let tuple = number(*tuple);
    let slices = Slices {
        name: "gather_nd",
        inner: product(&dims[batch + tuple..]),
        per_batch: product(&outer[batch..]),
        axes: dims[batch..batch + tuple].to_vec(),
        shared: false,
    };
    slices.lower(site)
}

/// The target's rows of `inner` elements, each a slice of operand 0 that an index tuple names.
struct Slices {
    name: &'static str,
    inner: Dim,
    /// Rows of each batch.
    per_batch: Dim,
    /// Sizes that the tuple's indices are held against.
    axes: Vec<Dim>,
    /// Whether all batches use the same tuples.
    shared: bool,
}

impl Slices {
    fn lower(self, site: &mut Site<'_>) -> Result<(), String> {
        let (x, indices, target) =
            (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
        let n = target.ty.shape.sizes().numel();
        if n == 0 {
            return Ok(());
        }
        let (cells, factor) = Cells::for_rows(target.ty.dtype.size(), self.inner, site.caps);
        let inner = self.inner.div_floor(factor);
        let lanes = cells.lanes_in(inner);
        let items = n.div_floor(factor * lanes);

        let group = site.group_size(256);
        let k = site.builder(self.name, group);
        let l = Launch::new(&k);
        let from = cells.bind(&l, "x", Access::Read, x.memory);
        let positions = Indices::declare(&l, "indices", &indices);
        let to = cells.bind(&l, "y", Access::Write, target.memory);
        let (count, width) = (l.size("n", items), l.size("width", inner.div_floor(lanes)));
        let per_batch = l.size("per_batch", self.per_batch);
        let axes: Vec<Val<'_>> = self.axes.iter().map(|size| l.size("axis", *size)).collect();

        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(count), || {
            let row = work / width;
            let batch = row / per_batch;
            let first = if self.shared { row - batch * per_batch } else { row * axes.len() };
            let mut slice = batch;
            for (t, size) in axes.iter().enumerate() {
                slice = slice * *size + positions.resolve(first + t, *size).at;
            }
            let start = (slice * width + (work - row * width)) * lanes;
            to.store(work * lanes, &from.load_many(start, lanes));
        });

        let moved = bytes(&indices.ty) + 2 * bytes(&target.ty);
        let bound = l.done();
        site.dispatch(k, bound, items.div_ceil(group), (0, moved))
    }
}

/// Single elements along an axis.
pub(crate) fn gather_elements(op: &GatherElements, site: &mut Site<'_>) -> Result<(), String> {
    let (x, indices, target) = (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    let n = target.ty.shape.sizes().numel();
    if n == 0 {
        return Ok(());
    }
    let mut strides = x.strides.clone();
    let step = std::mem::take(&mut strides[op.axis]);
    let walk = Walk::new(&target.ty.shape.sizes(), &[strides]);

    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let group = site.group_size(256);
    let k = site.builder("gather_elements", group);
    let l = Launch::new(&k);
    let from = cells.bind(&l, "x", Access::Read, x.memory);
    let positions = Indices::declare(&l, "indices", &indices);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let (count, size, step) = (l.size("n", n), l.size("size", x.sizes()[op.axis]), l.stride("step", step));
    let walker = walk.declare(&l, &[0]);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let at = positions.resolve(work, size).at;
        to.store(work, &[from.load(walker.at(work)[0] + at * step)]);
    });

    let moved = bytes(&indices.ty) + 2 * bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, n.div_ceil(group), (0, moved))
}
