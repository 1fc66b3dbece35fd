//! Reading an image at the places of a grid: which samples every place takes is found once for all channels.

use olivine_ir::op::{GridMode, GridPadding, GridSample};

use super::{TASK, with_float};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    GridSample => grid_sample(op, x, out),
}

/// One sample of a plane and its weight.
#[derive(Clone, Copy)]
struct Tap {
    at: usize,
    weight: f64,
}

/// x read at the places of a grid.
pub(crate) fn grid_sample(op: &GridSample, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (shape, target) = (*x[0].shape(), &mut out[0]);
    if target.shape().has_zero() {
        return;
    }
    let sizes = &shape[2..];
    let (channels, plane) = (shape[1], sizes.iter().product::<usize>());
    let places: usize = target.shape()[2..].iter().product();
    with_float!(x[1].ty.dtype, G => {
        let grid = x[1].slice::<G>();
        with_float!(x[0].ty.dtype, T => {
            let x = x[0].slice::<T>();
            for (n, out) in target.elements::<T>().chunks_exact_mut(channels * places).enumerate() {
                let grid = &grid[n * places * sizes.len()..][..places * sizes.len()];
                let taps = Taps::new(op, sizes, grid);
                let least = TASK.div_ceil(places);
                parallel::grouped(out, places, least, &|c, out| {
                    taps.read(&x[(n * channels + c) * plane..][..plane], out);
                });
            }
        });
    });
}

/// The samples of all places, one after another.
struct Taps {
    taps: Vec<Tap>,
    /// Where each place's samples end.
    ends: Vec<usize>,
}

impl Taps {
    fn new<G: Number + Sync>(op: &GridSample, sizes: &[usize], grid: &[G]) -> Self {
        let rank = sizes.len();
        let places = grid.len() / rank;
        let part = TASK.min(places);
        let parts = parallel::map(places.div_ceil(part), &|i| {
            let mut taps = Taps { taps: Vec::new(), ends: Vec::with_capacity(part) };
            for place in grid[i * part * rank..].chunks_exact(rank).take(part) {
                taps.push(op, sizes, place);
            }
            taps
        });
        let samples = parts.iter().map(|part| part.taps.len()).sum();
        let mut all = Taps { taps: scratch::with_room(samples), ends: scratch::with_room(places) };
        for part in parts {
            let before = all.taps.len();
            all.ends.extend(part.ends.iter().map(|e| before + e));
            all.taps.extend(part.taps);
        }
        all
    }

    /// Adds the samples of a place, whose coordinates count the axes from the last on.
    fn push<G: Number>(&mut self, op: &GridSample, sizes: &[usize], place: &[G]) {
        let first = self.taps.len();
        self.taps.push(Tap { at: 0, weight: 1.0 });
        for (size, coordinate) in sizes.iter().zip(place.iter().rev()) {
            let Some(along) = axis(op, *size, coordinate.to_f64()) else {
                self.taps.truncate(first);
                self.taps.push(Tap { at: 0, weight: f64::NAN });
                break;
            };
            // Every sample found so far becomes one for each along this axis, the last first so that none is lost.
            let (before, each) = (self.taps.len() - first, along.len);
            self.taps.resize(first + before * each, Tap { at: 0, weight: 0.0 });
            if each == 0 {
                continue;
            }
            for i in (0..before).rev() {
                let tap = self.taps[first + i];
                for (k, a) in along.taps[..each].iter().enumerate().rev() {
                    let product = Tap { at: tap.at * size + a.at, weight: tap.weight * a.weight };
                    self.taps[first + i * each + k] = product;
                }
            }
        }
        self.ends.push(self.taps.len());
    }

    fn read<T: Number>(&self, x: &[T], out: &mut [T]) {
        let mut first = 0;
        for (o, end) in out.iter_mut().zip(&self.ends) {
            let taps = &self.taps[first..*end];
            // A sample that is taken as it is keeps its bits.
            *o = match taps {
                [tap] if tap.weight == 1.0 => x[tap.at],
                _ => T::from_f64(taps.iter().map(|t| t.weight * x[t.at].to_f64()).sum()),
            };
            first = *end;
        }
    }
}

/// Up to four samples of an axis.
struct Along {
    taps: [Tap; 4],
    len: usize,
}

/// The samples that a coordinate takes along an axis, those that are padding left out; `None` if it is no place.
fn axis(op: &GridSample, size: usize, coordinate: f64) -> Option<Along> {
    let n = size as f64;
    let span = if op.align_corners { n - 1.0 } else { n };
    let mut x = (coordinate * span + (n - 1.0)) / 2.0;
    if op.mode == GridMode::Nearest {
        x = x.round_ties_even();
    }
    let (low, high) = if op.align_corners { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
    if x.is_nan() || (x.is_infinite() && op.padding == GridPadding::Reflection) {
        return None;
    }
    if x < low || x > high {
        x = match op.padding {
            // Further out there is nothing but zeros either.
            GridPadding::Zeros => x.clamp(-3.0, n + 2.0),
            GridPadding::Border => x.clamp(0.0, n - 1.0),
            GridPadding::Reflection => reflected(x, low, high),
        };
    }
    let floor = x.floor();
    let d = x - floor;
    let near = |i: i64, weights: &[f64]| {
        let mut along = Along { taps: [Tap { at: 0, weight: 0.0 }; 4], len: 0 };
        for (k, weight) in weights.iter().enumerate() {
            if let Some(at) = inside(op, i + k as i64, size) {
                along.taps[along.len] = Tap { at, weight: *weight };
                along.len += 1;
            }
        }
        along
    };
    Some(match op.mode {
        GridMode::Nearest => near(x as i64, &[1.0]),
        GridMode::Linear => near(floor as i64, &[1.0 - d, d]),
        GridMode::Cubic => near(floor as i64 - 1, &[far(1.0 + d), close(d), close(1.0 - d), far(2.0 - d)]),
    })
}

/// The a of cubic convolution.
const CUBIC: f64 = -0.75;

/// Its weight at a distance up to 1.
fn close(d: f64) -> f64 {
    ((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0
}

/// Its weight at a distance from 1 to 2.
fn far(d: f64) -> f64 {
    ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC
}

/// A coordinate mirrored into an interval.
fn reflected(x: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let below = x < low;
    let beyond = if below { low - x } else { x - high };
    let times = (beyond / range).floor();
    let rest = (beyond - times * range).clamp(0.0, range);
    let even = times % 2.0 == 0.0;
    if below == even { low + rest } else { high - rest }
}

/// The sample that a position stands for, if there is one.
fn inside(op: &GridSample, i: i64, size: usize) -> Option<usize> {
    let n = size as i64;
    Some(match op.padding {
        GridPadding::Zeros => return usize::try_from(i).ok().filter(|i| *i < size),
        GridPadding::Border => i.clamp(0, n - 1),
        GridPadding::Reflection => {
            let period = if op.align_corners { 2 * n - 2 } else { 2 * n };
            let m = i.rem_euclid(period.max(1));
            if m < n { m } else { period - i64::from(!op.align_corners) - m }
        }
    } as usize)
}
