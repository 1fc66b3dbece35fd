//! Convolution with few channels per group (depthwise above all): rows of multiply-adds, no products.
//!
//! A task copies the input rows it needs with their padding, one copy per phase of the stride, so that every
//! kernel position reads its operands side by side whatever stride and dilation are.

use std::ops::Range;

use super::geometry::{Axis, Tap};
use super::patches::copy_strided;
use super::real::Real;
use super::scratch::with_scratch;
use super::{Problem, SMALL};
use crate::parallel;
use crate::simd::{self, Kernel};

/// Outputs that a row computes at once, in registers.
const BLOCK: usize = 32;

/// How an input row is laid out for reading side by side.
#[derive(Clone, Copy)]
struct Phases {
    stride: usize,
    /// Elements per phase.
    pitch: usize,
}

/// True for groups too small to fill a matrix product, with windows about as wide as the rows they move over.
pub(crate) fn suits<T>(problem: &Problem<'_, T>) -> bool {
    let row = &problem.geometry.axes[2];
    let reach = row.taps.len().saturating_mul(row.dilation);
    problem.channels <= 4
        && problem.filters() <= 4
        && !problem.geometry.is_pointwise()
        && reach <= row.input.saturating_add(1024)
}

/// Convolves a problem that [`suits`].
pub(crate) fn convolve<T: Real>(
    problem: &Problem<'_, T>,
    out: &mut [T],
    finish: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let [az, ay, ax] = &problem.geometry.axes;
    let lines = az.output * ay.output;
    let planes = problem.images * problem.w_filters;
    let threads = if problem.work() < SMALL { 1 } else { parallel::threads() };
    let bands = if planes >= threads { 1 } else { (threads * 2).div_ceil(planes).min(lines) };
    let band = lines.div_ceil(bands);
    let run = |index: usize, chunk: &mut [T]| {
        let per_plane = lines.div_ceil(band);
        let (plane, first) = (index / per_plane, index % per_plane * band);
        convolve_band(problem, plane, first, chunk);
        finish((plane * lines + first) * ax.output, chunk);
    };
    // Bands never straddle planes, so a plane's last band may be short.
    let planes_of = lines * ax.output;
    let per_plane = lines.div_ceil(band);
    if threads == 1 {
        out.chunks_mut(planes_of).enumerate().for_each(|(p, plane)| run(p * per_plane, plane));
    } else {
        let least = SMALL.div_ceil(problem.work() / (planes * per_plane).max(1) + 1);
        parallel::grouped(out, planes_of, least, &|p, plane| {
            if per_plane == 1 {
                run(p, plane);
            } else {
                parallel::chunks(plane, band * ax.output, &|b, chunk| run(p * per_plane + b, chunk));
            }
        });
    }
}

/// Output lines `first..` of one plane of the result, as many as `out` holds.
fn convolve_band<T: Real>(problem: &Problem<'_, T>, plane: usize, first: usize, out: &mut [T]) {
    let geometry = &problem.geometry;
    let [az, ay, ax] = &geometry.axes;
    let (image, filter) = (plane / problem.w_filters, plane % problem.w_filters);
    let group = filter / problem.filters();
    let start = problem.bias.map_or(T::ZERO, |b| b[filter]);
    let kernel = geometry.kernel_len();
    let depth = problem.depth();
    if depth == 0 || geometry.input_len() == 0 {
        return out.fill(start);
    }
    let last = first + out.len() / ax.output - 1;
    let (z0, z1) = (first / ay.output, last / ay.output);
    let (y0, y1) = if z0 == z1 { (first % ay.output, last % ay.output) } else { (0, ay.output - 1) };
    let seen_z = reached(az, z0, z1);
    let seen_y = reached(ay, y0, y1);
    let reach = (ax.taps.len() - 1).saturating_mul(ax.dilation);
    let phases = Phases {
        stride: ax.stride.min(reach + 1),
        pitch: ax.output.next_multiple_of(BLOCK) + reach / ax.stride,
    };
    let row = phases.stride * phases.pitch;
    let per_channel = seen_z.len() * seen_y.len() * row;
    let weights = &problem.w[filter * depth..][..depth];
    with_scratch(problem.channels * per_channel, |rows: &mut [T]| {
        for c in 0..problem.channels {
            let source = problem.plane(image, group, c);
            let lines = rows[c * per_channel..][..per_channel].chunks_exact_mut(row);
            for (i, to) in lines.enumerate() {
                let z = seen_z.start + i / seen_y.len();
                let y = seen_y.start + i % seen_y.len();
                let from = &source[(z * ay.input + y) * ax.input..][..ax.input];
                split_phases(from, ax.before, ax.stride, phases, to);
            }
        }
        let columns: Vec<usize> = (0..ax.taps.len())
            .map(|k| k * ax.dilation)
            .map(|to| to % ax.stride * phases.pitch + to / ax.stride)
            .collect();
        let mut taps: Vec<(usize, T)> = Vec::with_capacity(depth);
        let mut laid = None;
        for (i, line) in out.chunks_exact_mut(ax.output).enumerate() {
            let (z, y) = ((first + i) / ay.output, (first + i) % ay.output);
            let (kz, ky) = (reaching(az, z), reaching(ay, y));
            if kz.is_empty() || ky.is_empty() {
                line.fill(start);
                continue;
            }
            // Offsets count from the first row a window sees, so that lines whose windows see alike share them.
            if laid != Some((kz.clone(), ky.clone())) {
                taps.clear();
                for c in 0..problem.channels {
                    for (z, y) in kz.clone().flat_map(|z| ky.clone().map(move |y| (z, y))) {
                        let down = (z - kz.start) * az.dilation * seen_y.len() + (y - ky.start) * ay.dilation;
                        let weight = c * kernel + (z * ay.taps.len() + y) * ax.taps.len();
                        let weights = &weights[weight..][..ax.taps.len()];
                        let base = c * per_channel + down * row;
                        taps.extend(columns.iter().zip(weights).map(|(column, w)| (base + column, *w)));
                    }
                }
                laid = Some((kz.clone(), ky.clone()));
            }
            let iz = az.taps[kz.start].at(z, az.stride) - seen_z.start;
            let iy = ay.taps[ky.start].at(y, ay.stride) - seen_y.start;
            let rows = &rows[(iz * seen_y.len() + iy) * row..];
            simd::run(Line { taps: &taps, rows, start, out: line });
        }
    });
}

/// The kernel positions of an output's window that fall on the input.
fn reaching(axis: &Axis, output: usize) -> Range<usize> {
    let reaches = |t: &Tap| t.reach(output, axis.stride).is_some();
    let first = axis.taps.iter().position(reaches).unwrap_or(0);
    first..first + axis.taps[first..].iter().take_while(|t| reaches(t)).count()
}

/// The input lines that outputs `first..=last` read on an axis.
fn reached(axis: &Axis, first: usize, last: usize) -> Range<usize> {
    let (mut lo, mut hi) = (axis.input, 0);
    for tap in &axis.taps {
        let (a, b) = (first.max(tap.first), (last + 1).min(tap.end));
        if a < b {
            lo = lo.min(tap.at(a, axis.stride));
            hi = hi.max(tap.at(b - 1, axis.stride) + 1);
        }
    }
    lo..hi.max(lo)
}

/// Copies a row with its padding: element `i` of phase `p` is what lies at `i · stride + p − before`, or zero.
fn split_phases<T: Real>(from: &[T], before: usize, stride: usize, phases: Phases, to: &mut [T]) {
    for (p, phase) in to.chunks_exact_mut(phases.pitch).enumerate() {
        let lead = before.saturating_sub(p).div_ceil(stride).min(phase.len());
        let (pad, rest) = phase.split_at_mut(lead);
        pad.fill(T::ZERO);
        // The first element that is not padding exists only if some element is left for it.
        let skip = if rest.is_empty() { from.len() } else { lead * stride + p - before };
        let source = from.get(skip..).unwrap_or(&[]);
        let count = source.len().div_ceil(stride).min(rest.len());
        let (seen, after) = rest.split_at_mut(count);
        copy_strided(source, stride, seen);
        after.fill(T::ZERO);
    }
}

/// One output line: `out[i] = start + Σ weight · rows[offset + i]`.
struct Line<'a, T> {
    taps: &'a [(usize, T)],
    rows: &'a [T],
    start: T,
    out: &'a mut [T],
}

impl<T: Real> Kernel for Line<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (triples, rest) = self.taps.as_chunks::<3>();
        for (block, out) in self.out.chunks_mut(BLOCK).enumerate() {
            let rows = &self.rows[block * BLOCK..];
            let mut sums = [self.start; BLOCK];
            for taps in triples {
                add_taps::<T, 3, FMA>(taps, rows, &mut sums);
            }
            for &tap in rest {
                add_taps::<T, 1, FMA>(&[tap], rows, &mut sums);
            }
            match out.first_chunk_mut::<BLOCK>() {
                Some(whole) => *whole = sums,
                None => out.copy_from_slice(&sums[..out.len()]),
            }
        }
    }
}

/// Adds a few taps at once, so that sums are loaded and stored once for all of them.
#[inline(always)]
fn add_taps<T: Real, const N: usize, const FMA: bool>(
    taps: &[(usize, T); N],
    rows: &[T],
    sums: &mut [T; BLOCK],
) {
    let x: [&[T]; N] = std::array::from_fn(|n| &rows[taps[n].0..][..BLOCK]);
    for i in 0..BLOCK {
        let mut sum = sums[i];
        for n in 0..N {
            sum = x[n][i].multiply_add::<FMA>(taps[n].1, sum);
        }
        sums[i] = sum;
    }
}
