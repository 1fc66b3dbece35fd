//! Regions divided into bins, each sampled bilinearly.

use std::ops::Range;

use olivine_ir::op::{RoiAlign, RoiCoordinates, RoiMode};

use super::{TASK, with_float};
use crate::kernel::kernels;
use crate::kernels::index::Indices;
use crate::operand::{Fault, Number, Operand, Target};
use crate::parallel;

kernels! { |op, x, out, call|
    RoiAlign => roi_align(op, x, out, call.checked)?,
}

/// Regions of an image.
pub(crate) fn roi_align(
    op: &RoiAlign,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
    checked: bool,
) -> Result<(), Fault> {
    let (shape, batches) = (*x[0].shape(), Indices::new(&x[2]));
    if checked {
        batches.check(|_| shape[0])?;
    }
    let target = &mut out[0];
    if target.shape().has_zero() {
        return Ok(());
    }
    let (channels, height, width) = (shape[1], shape[2], shape[3]);
    let (plane, bins) = (height * width, op.height * op.width);
    with_float!(x[0].ty.dtype, T => {
        let (x, regions) = (x[0].slice::<T>(), x[1].slice::<T>());
        for (r, out) in target.elements::<T>().chunks_exact_mut(channels * bins).enumerate() {
            let corners = [0, 1, 2, 3].map(|i| regions[r * 4 + i].to_f64());
            let region = Region::new(op, corners, height, width);
            let n = batches.clamped(r, shape[0]);
            let least = TASK.div_ceil(region.samples().max(1));
            parallel::grouped(out, bins, least, &|c, out| {
                region.pool(op, &x[(n * channels + c) * plane..][..plane], out);
            });
        }
    });
    Ok(())
}

/// The position of a sample along an axis: two neighbours, and how far it is from the first.
#[derive(Clone, Copy)]
struct Sample {
    low: usize,
    high: usize,
    part: f64,
}

/// All samples of an axis; those outside the image are `None`.
struct Axis {
    samples: Vec<Option<Sample>>,
    /// Every bin's samples.
    bins: Vec<Range<usize>>,
    /// Samples of a bin, those included that were left out because they are outside.
    count: f64,
    /// Whether some were left out.
    cut: Vec<bool>,
}

impl Axis {
    fn new(op: &RoiAlign, start: f64, end: f64, bins: usize, size: usize) -> Option<Self> {
        let offset = if op.coordinates == RoiCoordinates::HalfPixel { 0.5 } else { 0.0 };
        let (start, end) = (start * op.scale - offset, end * op.scale - offset);
        let mut length = end - start;
        if !start.is_finite() || !length.is_finite() {
            return None;
        }
        if op.coordinates == RoiCoordinates::OutputHalfPixel {
            length = length.max(1.0);
        }
        let bin = length / bins as f64;
        let count = if op.sampling_ratio > 0 { op.sampling_ratio as f64 } else { bin.ceil() };
        let step = bin / count;
        let mut axis = Axis { samples: Vec::new(), bins: Vec::new(), count, cut: Vec::new() };
        for b in 0..bins {
            let first = start + b as f64 * bin;
            // Of a bin far larger than the image only what may be inside is looked at.
            let (low, high) = if op.sampling_ratio > 0 || count <= 0.0 {
                (0.0, count.max(0.0))
            } else {
                let low = (((-1.0 - first) / step).floor() - 1.0).clamp(0.0, count);
                (low, (((size as f64 - first) / step).ceil() + 1.0).clamp(low, count))
            };
            let begin = axis.samples.len();
            let places = (0..(high - low) as usize).map(|i| first + (low + i as f64 + 0.5) * step);
            axis.samples.extend(places.map(|at| Sample::new(at, size)));
            axis.bins.push(begin..axis.samples.len());
            axis.cut.push(high - low < count);
        }
        Some(axis)
    }
}

impl Sample {
    fn new(at: f64, size: usize) -> Option<Self> {
        if at < -1.0 || at > size as f64 {
            return None;
        }
        let at = at.clamp(0.0, size as f64 - 1.0);
        let low = at as usize;
        Some(Sample { low, high: (low + 1).min(size - 1), part: at - low as f64 })
    }
}

/// A region's samples along both axes; nothing where it has no finite place.
struct Region {
    axes: Option<[Axis; 2]>,
    width: usize,
}

impl Region {
    fn new(op: &RoiAlign, corners: [f64; 4], height: usize, width: usize) -> Self {
        let rows = Axis::new(op, corners[1], corners[3], op.height, height);
        let columns = Axis::new(op, corners[0], corners[2], op.width, width);
        Region { axes: rows.zip(columns).map(|(r, c)| [r, c]), width }
    }

    fn samples(&self) -> usize {
        self.axes.as_ref().map_or(0, |[r, c]| r.samples.len() * c.samples.len())
    }

    fn pool<T: Number>(&self, op: &RoiAlign, x: &[T], out: &mut [T]) {
        let Some([rows, columns]) = &self.axes else {
            return out.fill(T::from_f64(f64::NAN));
        };
        for (i, o) in out.iter_mut().enumerate() {
            let (r, c) = (i / op.width, i % op.width);
            let ys = &rows.samples[rows.bins[r].clone()];
            let xs = &columns.samples[columns.bins[c].clone()];
            let pairs = ys.iter().flat_map(|y| xs.iter().map(move |x| (*y).zip(*x)));
            *o = T::from_f64(match op.mode {
                RoiMode::Average => {
                    let sum: f64 =
                        pairs.flatten().map(|(y, at)| self.near(x, y, at).iter().sum::<f64>()).sum();
                    sum / (rows.count * columns.count).max(1.0)
                }
                RoiMode::Max => {
                    let of_pair = |pair: Option<(Sample, Sample)>| {
                        pair.map_or(0.0, |(y, at)| {
                            self.near(x, y, at).into_iter().fold(f64::NEG_INFINITY, f64::larger)
                        })
                    };
                    let any = rows.count > 0.0 && columns.count > 0.0;
                    let cut = (rows.cut[r] || columns.cut[c]) && any;
                    let outside = cut.then_some(0.0);
                    pairs.map(of_pair).chain(outside).reduce(f64::larger).unwrap_or(0.0)
                }
            });
        }
    }

    /// The four neighbours of a sample, weighted.
    fn near<T: Number>(&self, x: &[T], row: Sample, column: Sample) -> [f64; 4] {
        let value = |r: usize, c: usize| x[r * self.width + c].to_f64();
        let (up, left) = (1.0 - row.part, 1.0 - column.part);
        [
            up * left * value(row.low, column.low),
            up * column.part * value(row.low, column.high),
            row.part * left * value(row.high, column.low),
            row.part * column.part * value(row.high, column.high),
        ]
    }
}
