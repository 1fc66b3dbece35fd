//! Regions divided into bins, each sampled bilinearly.

use olivine_ir::op::{RoiAlign, RoiCoordinates, RoiMode};
use olivine_kernel::{Builder, Scalar, Val, Var};

use super::{channels, not_finite, working};
use crate::index::Indices;
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::rows::GROUP;
use crate::site::{Site, linear_group};

kernels! { |op, site|
    RoiAlign => roi_align(op, site),
}

/// Neighbours of a sample.
const NEAR: usize = 4;

/// Lowers a region pooling.
pub(crate) fn roi_align(op: &RoiAlign, site: &mut Site<'_>) -> Result<(), String> {
    let (x, corners, target) = (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    let batches = site.operands[2].clone();
    let n = target.ty.shape.sizes().numel();
    if n == 0 {
        return Ok(());
    }
    let scalar = working(&[x.ty.dtype], site)?;
    let dims = x.sizes();
    let together = channels(dims[1], NEAR, site);
    let blocks = dims[1].div_ceil(together);
    let (regions, bins) = (corners.sizes()[0], op.height * op.width);
    let items = regions * blocks * bins;

    let group = site.group_size(GROUP);
    let k = site.builder("roi_align", group);
    let l = Launch::new(&k);
    let from = l.read("x", &x);
    let edges = l.read("regions", &corners);
    let batches = Indices::declare(&l, "batches", &batches);
    let to = l.write("y", &target);
    let [images, depth, height, width] = [0, 1, 2, 3].map(|i| l.size("size", dims[i]));
    let (rows, columns) = (l.size("rows", op.height), l.size("columns", op.width));
    let (blocks, ratio) = (l.size("blocks", blocks), l.size("ratio", op.sampling_ratio));
    let scale = match scalar {
        Scalar::F64 => {
            let bits = op.scale.to_bits();
            let low = l.size("scale", bits as u32 as usize);
            low.join(l.size("scale_high", (bits >> 32) as usize)).bitcast(Scalar::F64)
        }
        _ => l.f32("scale", op.scale as f32),
    };
    let count = l.size("n", items);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let above = work / columns;
        let column = work - above * columns;
        let line = above / rows;
        let row = above - line * rows;
        let region = line / blocks;
        let channel = (line - region * blocks) * together;
        let image = batches.resolve(region, images).at;

        let edge = |i: u32| edges.load(region * 4u32 + i).convert(scalar) * scale;
        let ratio = (op.sampling_ratio > 0).then_some(ratio);
        let down = Axis::new(op.coordinates, (edge(1), edge(3)), (row, rows), height, ratio);
        let across = Axis::new(op.coordinates, (edge(0), edge(2)), (column, columns), width, ratio);

        let mine = |c: usize| if together == 1 { channel } else { (channel + c).min(depth - 1u32) };
        let planes: Vec<Val<'_>> =
            (0..together).map(|c| (image * depth + mine(c)) * height * width).collect();
        let start = if op.mode == RoiMode::Max { f64::NEG_INFINITY } else { 0.0 };
        let pooled: Vec<Var<'_>> = (0..together).map(|_| k.var(k.number(scalar, start))).collect();
        let (zero, one) = (k.u32(0), k.u32(1));
        k.for_(zero, down.samples, one, |i| {
            let y = down.sample(i);
            k.for_(zero, across.samples, one, |j| {
                let x = across.sample(j);
                let there = y.inside & x.inside;
                let neighbours = neighbours(&y, &x, width);
                for (sum, plane) in pooled.iter().zip(&planes) {
                    let near = neighbours.iter().map(|(at, w)| from.load(*plane + *at).convert(scalar) * *w);
                    match op.mode {
                        RoiMode::Average => {
                            let value = near.reduce(|a, b| a + b).unwrap_or(sum.get());
                            sum.set(sum.get() + math::pick(there, value, value.like(0.0)));
                        }
                        RoiMode::Max => {
                            let value = near.reduce(math::max_nan).unwrap_or(sum.get());
                            sum.set(math::max_nan(sum.get(), math::pick(there, value, value.like(0.0))));
                        }
                    }
                }
            });
        });
        let total = (down.count * across.count).max(1.0);
        let seen = down.samples.gt(0u32) & across.samples.gt(0u32);
        let any = down.count.gt(0.0) & across.count.gt(0.0);
        // What was left out, because it lies outside, is zero.
        let cut = any & (down.cut | across.cut);
        for (c, pooled) in pooled.iter().enumerate() {
            let value = pooled.get();
            let value = match op.mode {
                RoiMode::Average => math::div(value, total),
                RoiMode::Max => {
                    let zero = value.like(0.0);
                    let best = math::pick(seen, value, zero);
                    math::pick(cut, math::max_nan(best, zero), best)
                }
            };
            let value = math::pick(down.nowhere | across.nowhere, value.like(f64::NAN), value);
            let real = if together == 1 { k.bool(true) } else { (channel + c).lt(depth) };
            k.if_(real, || {
                let plane = (region * depth + channel + c) * rows + row;
                to.store(plane * columns + column, value);
            });
        }
    });

    let read = bytes(&target.ty) * NEAR as u64;
    let moved = read.min(bytes(&x.ty)) + bytes(&corners.ty) + bytes(&target.ty);
    let bound = l.done();
    let flops = n * (2 * NEAR * op.sampling_ratio.max(1).pow(2));
    site.dispatch(k, bound, items.div_ceil(group), (flops, moved))
}

/// A bin's samples along one axis.
struct Axis<'k> {
    k: &'k Builder,
    size: Val<'k>,
    /// The place before the first sample that is looked at, less half a step.
    first: Val<'k>,
    step: Val<'k>,
    /// Samples that are looked at, a u32.
    samples: Val<'k>,
    /// All samples, a float.
    count: Val<'k>,
    /// Whether some are not looked at.
    cut: Val<'k>,
    /// Whether the region has no finite place.
    nowhere: Val<'k>,
}

/// A sample's two neighbours, and how far it is from the first.
struct Sample<'k> {
    low: Val<'k>,
    high: Val<'k>,
    part: Val<'k>,
    inside: Val<'k>,
}

impl<'k> Axis<'k> {
    fn new(
        coordinates: RoiCoordinates,
        (start, end): (Val<'k>, Val<'k>),
        (at, bins): (Val<'k>, Val<'k>),
        size: Val<'k>,
        ratio: Option<Val<'k>>,
    ) -> Self {
        let (k, scalar) = (size.builder(), start.scalar());
        let float = |v: Val<'k>| v.convert(scalar);
        let half = if coordinates == RoiCoordinates::HalfPixel { 0.5 } else { 0.0 };
        let (start, end) = (start - half, end - half);
        let mut length = end - start;
        let nowhere = not_finite(start) | not_finite(length);
        if coordinates == RoiCoordinates::OutputHalfPixel {
            length = length.max(1.0);
        }
        // From here on there are numbers only.
        let length = math::pick(nowhere, length.like(0.0), length);
        let start = math::pick(nowhere, start.like(0.0), start);
        let bin = math::div(length, float(bins));
        let begin = float(at).fma(bin, start);
        let Some(ratio) = ratio else {
            let count = bin.ceil();
            let some = count.gt(0.0);
            let step = math::div(bin, some.select(count, count.like(1.0)));
            let wide = some.select(step, step.like(1.0));
            // Of a bin far larger than the image only what may lie inside is looked at.
            let most = count.max(0.0);
            let low = (((begin.like(-1.0) - begin) / wide).floor() - 1.0).max(0.0).min(most);
            let high = (((float(size) - begin) / wide).ceil() + 1.0).max(low).min(most);
            // Steps are longer than half a pixel, or there is but one.
            let samples = (high - low).min(float(size) * 2.0 + 16.0);
            let (samples, seen) = (samples.convert(Scalar::U32), samples);
            let first = low.fma(step, begin);
            return Axis { k, size, first, step, samples, count, cut: seen.lt(most), nowhere };
        };
        let count = float(ratio);
        let step = math::div(bin, count);
        Axis { k, size, first: begin, step, samples: ratio, count, cut: k.bool(false), nowhere }
    }

    fn sample(&self, i: Val<'k>) -> Sample<'k> {
        let scalar = self.step.scalar();
        let at = (i.convert(scalar) + 0.5).fma(self.step, self.first);
        let size = self.size.convert(scalar);
        let inside = at.ge(-1.0) & at.le(size);
        let at = at.max(0.0).min(size - 1.0);
        let last = self.size - 1u32;
        let low = at.convert(Scalar::U32).min(last);
        let high = (low + self.k.u32(1)).min(last);
        Sample { low, high, part: at - low.convert(scalar), inside }
    }
}

/// The four neighbours of a sample in their plane, with their weights.
fn neighbours<'k>(y: &Sample<'k>, x: &Sample<'k>, width: Val<'k>) -> [(Val<'k>, Val<'k>); NEAR] {
    let (up, left) = (y.part.like(1.0) - y.part, x.part.like(1.0) - x.part);
    let (above, below) = (y.low * width, y.high * width);
    [
        (above + x.low, up * left),
        (above + x.high, up * x.part),
        (below + x.low, y.part * left),
        (below + x.high, y.part * x.part),
    ]
}
