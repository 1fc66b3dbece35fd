//! Reading an image at the places of a grid.

use olivine_ir::op::{GridMode, GridPadding, GridSample};
use olivine_ir::product;
use olivine_kernel::{Buf, Scalar, Val};

use super::{channels, not_finite, working};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::rows::GROUP;
use crate::site::{Site, linear_group};

kernels! { |op, site|
    GridSample => grid_sample(op, site),
}

/// The a of cubic convolution.
const CUBIC: f64 = -0.75;

/// Lowers a sampling.
pub(crate) fn grid_sample(op: &GridSample, site: &mut Site<'_>) -> Result<(), String> {
    let (x, grid, target) = (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    let n = target.ty.shape.sizes().numel();
    if n == 0 {
        return Ok(());
    }
    let scalar = working(&[x.ty.dtype, grid.ty.dtype], site)?;
    let all_sizes = x.sizes();
    let sizes = &all_sizes[2..];
    let rank = sizes.len();
    let taps = match op.mode {
        GridMode::Nearest => 1,
        GridMode::Linear => 1 << rank,
        GridMode::Cubic => 1 << (2 * rank),
    };
    let (images, all) = (all_sizes[0], all_sizes[1]);
    let places = product(&target.ty.shape.sizes()[2..]);
    let together = channels(all, taps, site);
    let items = images * all.div_ceil(together) * places;

    let group = site.group_size(GROUP);
    let k = site.builder("grid_sample", group);
    let l = Launch::new(&k);
    let from = l.read("x", &x);
    let at = l.read("grid", &grid);
    let to = l.write("y", &target);
    let axes: Vec<Val<'_>> = sizes.iter().map(|s| l.size("size", *s)).collect();
    let (depth, blocks) = (l.size("channels", all), l.size("blocks", all.div_ceil(together)));
    let (spread, count) = (l.size("places", places), l.size("n", items));

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let line = work / spread;
        let place = work - line * spread;
        let image = line / blocks;
        let channel = (line - image * blocks) * together;

        let first = (image * spread + place) * rank;
        let coordinates: Vec<Val<'_>> = match rank {
            2 => at.load_vec(first, 2),
            _ => (0..rank).map(|i| at.load(first + i)).collect(),
        };
        let mut nowhere = k.bool(false);
        let mut along = Vec::with_capacity(rank);
        // The grid names the last axis first.
        for (size, coordinate) in axes.iter().zip(coordinates.iter().rev()) {
            let axis = Axis::new(op, coordinate.convert(scalar), *size);
            nowhere = nowhere | axis.nowhere;
            along.push(axis);
        }
        let plane = axes.iter().fold(k.u32(1), |product, size| product * *size);
        for c in 0..together {
            let (mine, real) = if together == 1 {
                (channel, k.bool(true))
            } else {
                ((channel + c).min(depth - 1u32), (channel + c).lt(depth))
            };
            let start = (image * depth + mine) * plane;
            let plane = Plane { from, start, scalar };
            let value = plane.sum(&along, &axes, k.u32(0), k.bool(true));
            let value = math::pick(nowhere, value.like(f64::NAN), value);
            k.if_(real, || {
                let index = (image * depth + channel + c) * spread + place;
                to.store(index, value.convert(to.elem().scalar()));
            });
        }
    });

    let moved = bytes(&x.ty) + bytes(&grid.ty) + bytes(&target.ty);
    let bound = l.done();
    let flops = n * (2 * taps);
    site.dispatch(k, bound, items.div_ceil(group), (flops, moved))
}

/// A sample of an axis.
struct Tap<'k> {
    at: Val<'k>,
    /// Whether it is no padding of zeros.
    inside: Val<'k>,
    /// None where a sample is taken as it is.
    weight: Option<Val<'k>>,
}

/// The samples that a coordinate takes along an axis.
struct Axis<'k> {
    taps: Vec<Tap<'k>>,
    /// Whether the coordinate is no place.
    nowhere: Val<'k>,
}

impl<'k> Axis<'k> {
    fn new(op: &GridSample, coordinate: Val<'k>, size: Val<'k>) -> Self {
        let n = size.convert(coordinate.scalar());
        let last = n - 1.0;
        let span = if op.align_corners { last } else { n };
        let mut x = coordinate.fma(span, last) * 0.5;
        if op.mode == GridMode::Nearest {
            x = x.round_even();
        }
        let (low, high) = if op.align_corners { (n.like(0.0), last) } else { (n.like(-0.5), n - 0.5) };
        let nowhere = match op.padding {
            GridPadding::Reflection => not_finite(x),
            _ => math::is_nan(x),
        };
        // From here on there are numbers only.
        x = math::pick(nowhere, x.like(0.0), x);
        let outside = x.lt(low) | x.gt(high);
        let x = match op.padding {
            // Further out there is nothing but zeros either.
            GridPadding::Zeros => x.max(-3.0).min(n + 2.0),
            GridPadding::Border => outside.select(x.max(0.0).min(last), x),
            GridPadding::Reflection => outside.select(reflected(x, low, high), x),
        };
        let floor = x.floor();
        let d = x - floor;
        let first = floor.convert(Scalar::I32);
        let weights = match op.mode {
            GridMode::Nearest => vec![None],
            GridMode::Linear => vec![Some(d.like(1.0) - d), Some(d)],
            GridMode::Cubic => {
                vec![
                    Some(far(d + 1.0)),
                    Some(close(d)),
                    Some(close(d.like(1.0) - d)),
                    Some(far(d.like(2.0) - d)),
                ]
            }
        };
        let before = if op.mode == GridMode::Cubic { -1 } else { 0 };
        let tap = |(i, weight): (usize, Option<Val<'k>>)| {
            let (at, inside) = inside(op, first + (before + i as i32), size);
            Tap { at, inside, weight }
        };
        Axis { taps: weights.into_iter().enumerate().map(tap).collect(), nowhere }
    }
}

/// The weight of cubic convolution at a distance up to 1.
fn close(d: Val<'_>) -> Val<'_> {
    (d * (CUBIC + 2.0) - (CUBIC + 3.0)) * d * d + 1.0
}

/// The same at a distance from 1 to 2.
fn far(d: Val<'_>) -> Val<'_> {
    ((d * CUBIC - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC
}

/// A coordinate outside an interval, mirrored into it.
fn reflected<'k>(x: Val<'k>, low: Val<'k>, high: Val<'k>) -> Val<'k> {
    let range = high - low;
    let below = x.lt(low);
    let beyond = below.select(low - x, x - high);
    // An interval of one point divides by anything.
    let times = (beyond / range.gt(0.0).select(range, range.like(1.0))).floor();
    let rest = (-times).fma(range, beyond).max(0.0).min(range);
    let odd = (times * 0.5).floor().fma(-2.0, times).ne(0.0);
    let from_low = below.ne(odd);
    from_low.select(low + rest, high - rest)
}

/// The sample that a position stands for, and whether it is one. A position is at most three before the first sample
/// where it is mirrored.
fn inside<'k>(op: &GridSample, i: Val<'k>, size: Val<'k>) -> (Val<'k>, Val<'k>) {
    let k = i.builder();
    let last = size - 1u32;
    match op.padding {
        GridPadding::Zeros => {
            let i = i.bitcast(Scalar::U32);
            (i.min(last), i.lt(size))
        }
        GridPadding::Border => {
            let at = i.max(0).min(last.bitcast(Scalar::I32));
            (at.bitcast(Scalar::U32), k.bool(true))
        }
        GridPadding::Reflection => {
            let (period, turn) =
                if op.align_corners { (last * 2u32, last * 2u32) } else { (size * 2u32, size * 2u32 - 1u32) };
            let period = period.max(1u32);
            let m = (i.bitcast(Scalar::U32) + period * 2u32) % period;
            (m.lt(size).select(m, turn - m).min(last), k.bool(true))
        }
    }
}

/// One channel of one image.
struct Plane<'k> {
    from: Buf<'k>,
    start: Val<'k>,
    scalar: Scalar,
}

impl<'k> Plane<'k> {
    fn read(&self, index: Val<'k>, there: Val<'k>) -> Val<'k> {
        let value = self.from.load(self.start + index).convert(self.scalar);
        math::pick(there, value, value.like(0.0))
    }

    /// The weighted sum over axes; `above` and `there` are where the axes before lead and whether they are inside.
    fn sum(&self, along: &[Axis<'k>], sizes: &[Val<'k>], above: Val<'k>, there: Val<'k>) -> Val<'k> {
        let (Some((axis, inner)), Some((size, inner_sizes))) = (along.split_first(), sizes.split_first())
        else {
            return self.read(above, there);
        };
        let mut total: Option<Val<'k>> = None;
        for tap in &axis.taps {
            // No sample is outside where padding is not zeros.
            let there = if tap.inside.as_const() == Some(1) { there } else { there & tap.inside };
            let value = self.sum(inner, inner_sizes, above * *size + tap.at, there);
            total = Some(match (tap.weight, total) {
                (None, _) => value,
                (Some(w), None) => value * w,
                (Some(w), Some(sum)) => value.fma(w, sum),
            });
        }
        total.unwrap_or(above)
    }
}
