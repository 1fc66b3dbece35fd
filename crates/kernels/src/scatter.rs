//! Writes at computed positions. Updates of one element apply in their order, so work is shared out by where it lands,
//! never by where it comes from: an invocation owns a lane and a range of positions along it, looks at all of the
//! lane's updates in order and applies those that land in its range.

use olivine_ir::op::{ScatterElements, ScatterMode, ScatterNd};
use olivine_ir::{DType, Dim, product};
use olivine_kernel::{Access, Buf, Val};

use super::cells::{CellBuf, Cells};
use super::elementwise::whole_copy;
use super::index::Indices;
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::math;
use crate::site::{Operand, Site, Target, linear_group};
use crate::walk::Walk;

kernels! { |op, site|
    ScatterElements => scatter_elements(op, site),
    ScatterNd => scatter_nd(op, site),
}

/// Invocations that keep a device busy: lanes are cut into ranges up to this many.
const BUSY: usize = 1 << 16;

/// Updates that one invocation looks at. Devices end what takes too long, and lavapipe every loop after 65,535 rounds.
const UPDATES: usize = 1 << 15;

/// Single elements along an axis.
pub(crate) fn scatter_elements(op: &ScatterElements, site: &mut Site<'_>) -> Result<(), String> {
    let (x, indices, target) = (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    whole_copy(&x, &target, site)?;
    let mut dims = indices.sizes().to_vec();
    let count = std::mem::replace(&mut dims[op.axis], Dim::ONE);
    let (mut to, mut from) = (target.as_operand().strides, indices.strides.clone());
    let (to_step, from_step) = (std::mem::take(&mut to[op.axis]), std::mem::take(&mut from[op.axis]));
    Scatter {
        name: "scatter_elements",
        mode: op.mode,
        count,
        axes: vec![x.ty.shape.size(op.axis)],
        walk: Walk::new(&dims, &[to, from.clone(), from]),
        steps: [to_step, from_step, from_step],
        cells: Cells::new(target.ty.dtype.size(), site.caps),
        lanes: 1,
    }
    .lower(site)
}

/// Slices at index tuples.
pub(crate) fn scatter_nd(op: &ScatterNd, site: &mut Site<'_>) -> Result<(), String> {
    let (x, indices, target) = (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    whole_copy(&x, &target, site)?;
    let (of_indices, of_x) = (indices.sizes(), x.sizes());
    let (tuple, outer) = of_indices.split_last().ok_or("indices of rank 0")?;
    let tuple = number(*tuple);
    let (axes, rest) = of_x.split_at(tuple);
    let inner = product(rest);
    let size = target.ty.dtype.size();
    // What is only replaced moves by whole words and vectors.
    let (cells, factor) = match op.mode {
        ScatterMode::Replace => Cells::for_rows(size, inner, site.caps),
        _ => (Cells::new(size, site.caps), 1),
    };
    let lanes = if op.mode == ScatterMode::Replace { cells.lanes_in(inner / factor) } else { 1 };
    let width = inner.div_floor(factor);
    let lane = Dim::from(lanes);
    Scatter {
        name: "scatter_nd",
        mode: op.mode,
        count: product(outer),
        axes: axes.to_vec(),
        walk: Walk::new(&[width.div_floor(lanes)], &[vec![lane], vec![Dim::ZERO], vec![lane]]),
        steps: [width, tuple.into(), width],
        cells,
        lanes,
    }
    .lower(site)
}

/// A scatter by lanes. Of the three strides and steps, the first is the target's, the second the indices' and the
/// third the updates'.
struct Scatter {
    name: &'static str,
    mode: ScatterMode,
    /// Updates of every lane.
    count: Dim,
    /// Sizes that the indices of an update are held against; together they count a lane's positions.
    axes: Vec<Dim>,
    /// All lanes.
    walk: Walk,
    /// From one position, or one update, of a lane to the next.
    steps: [Dim; 3],
    cells: Cells,
    /// Neighbouring cells that one update replaces.
    lanes: usize,
}

impl Scatter {
    /// All updates, a part after another.
    fn lower(self, site: &mut Site<'_>) -> Result<(), String> {
        let (lanes, positions) = (self.walk.numel(), product(&self.axes));
        if lanes == 0 || positions == 0 || self.count == 0 {
            return Ok(());
        }
        let parts = number(self.count.div_ceil(UPDATES));
        (0..parts).try_for_each(|part| self.part(part * UPDATES, parts, site))
    }

    /// Updates from one on, one of so many parts.
    fn part(&self, from_update: usize, parts: usize, site: &mut Site<'_>) -> Result<(), String> {
        let (indices, updates, target) =
            (site.operands[1].clone(), site.operands[2].clone(), site.targets[0].clone());
        let (lanes, positions) = (self.walk.numel(), product(&self.axes));
        let ranges = Dim::from(BUSY).div_ceil(lanes).min(positions);
        let range = positions.div_ceil(ranges);
        let ranges = positions.div_ceil(range);
        let items = lanes * ranges;

        let group = site.group_size(256);
        let k = site.builder(self.name, group);
        let l = Launch::new(&k);
        let meeting = self.meeting(&l, &updates, &target, site)?;
        let read = Indices::declare(&l, "indices", &indices);
        let (lane_count, item_count) = (l.size("lanes", lanes), l.size("items", items));
        let range = l.size("range", range);
        let (from, until) =
            (l.size("from", from_update), l.size("until", self.count.min(from_update + UPDATES)));
        let axes: Vec<Val<'_>> = self.axes.iter().map(|size| l.size("axis", *size)).collect();
        let steps = self.steps.map(|s| l.stride("step", s));
        let walker = self.walk.declare(&l, &[Dim::ZERO; 3]);

        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(item_count), || {
            let number = work / lane_count;
            let start = walker.at(work - number * lane_count);
            let first = number * range;
            k.for_(from, until, k.u32(1), |update| {
                let at = start[1] + update * steps[1];
                let (mut position, mut inside) = (k.u32(0), k.bool(true));
                for (t, size) in axes.iter().enumerate() {
                    let index = read.resolve(at + t, *size);
                    position = position * *size + index.at;
                    inside = inside & index.inside;
                }
                // Positions before the range wrap to above it.
                k.if_(inside & (position - first).lt(range), || {
                    meeting.apply(
                        start[0] + position * steps[0],
                        start[2] + update * steps[2],
                        self.mode,
                        self.lanes,
                    );
                });
            });
        });

        let moved = (bytes(&indices.ty) + 2 * bytes(&updates.ty)) / parts;
        let flops = updates.sizes().numel() / parts;
        let bound = l.done();
        site.dispatch(k, bound, items.div_ceil(group), (flops, moved))
    }

    fn meeting<'k>(
        &self,
        l: &Launch<'k>,
        updates: &Operand,
        target: &Target,
        site: &Site<'_>,
    ) -> Result<UpdateBuffers<'k>, String> {
        if self.mode == ScatterMode::Replace {
            let from = self.cells.bind(l, "updates", Access::Read, updates.memory);
            let to = self.cells.bind(l, "y", Access::Write, target.memory);
            return Ok(UpdateBuffers::Bits { from, to });
        }
        let (dtype, elem) = (target.ty.dtype, math::elem(target.ty.dtype));
        if !site.caps.target.has(elem.scalar()) {
            return Err(format!("the device has no {} arithmetic", elem.scalar()));
        }
        let from = l.bind("updates", elem, Access::Read, updates.memory);
        let to = l.bind("y", elem, Access::ReadWrite, target.memory);
        Ok(UpdateBuffers::Numbers { from, to, dtype })
    }
}

/// How updates reach the target.
enum UpdateBuffers<'k> {
    Bits { from: CellBuf<'k>, to: CellBuf<'k> },
    Numbers { from: Buf<'k>, to: Buf<'k>, dtype: DType },
}

impl<'k> UpdateBuffers<'k> {
    /// Applies the update at `from` to the target's element at `to`.
    fn apply(&self, to_at: Val<'k>, from_at: Val<'k>, mode: ScatterMode, lanes: usize) {
        match self {
            UpdateBuffers::Bits { from, to } => to.store(to_at, &from.load_many(from_at, lanes)),
            UpdateBuffers::Numbers { from, to, dtype } => {
                let (old, new) = (to.load(to_at), from.load(from_at));
                // The NaN that is there stays, and one that arrives is taken: no comparison with it holds.
                let keeps = |better: Val<'k>| {
                    let stays = if dtype.is_float() { math::is_nan(old) | better } else { better };
                    stays.select(old, new)
                };
                to.store(
                    to_at,
                    match mode {
                        ScatterMode::Replace => new,
                        ScatterMode::Add => old + new,
                        ScatterMode::Mul => old * new,
                        ScatterMode::Max => keeps(old.gt(new)),
                        ScatterMode::Min => keeps(old.lt(new)),
                    },
                );
            }
        }
    }
}
