//! Integer convolution with few filters per group, depthwise above all: lines of multiply-adds, no panels.
//!
//! A group's input lines are widened to 16 bits less their zero point, with their padding and one copy per phase of
//! the stride, so that every kernel position reads its operands side by side.

use super::conv::{Windows, run_tasks};
use super::operands::Zeros;
use crate::kernels::conv::geometry::Axis;
use crate::kernels::conv::planes::{plane_of, reach, remainders};
use crate::kernels::conv::scratch::with_scratch;
use crate::kernels::gemm::Grid;
use crate::parallel;
use crate::simd;

/// Results that a line computes at once, in registers.
const BLOCK: usize = 64;

/// How an input line is laid out: once for every remainder that kernel positions leave modulo the stride.
struct Phases {
    remainders: Vec<usize>,
    /// Elements per phase.
    pitch: usize,
}

/// Convolves windows whose last axis [`fits_rows`](crate::kernels::conv::planes::fits_rows); weights are given with their
/// zero points and the byte that makes them unsigned as those are.
pub(super) fn few_filters(
    windows: &Windows<'_>,
    x_signed: bool,
    (w, w_zeros, w_flip): (&[u8], Zeros<'_>, u8),
    out: &mut [i32],
) {
    let (k_len, filters) = (windows.k_len(), windows.filters);
    let [az, ay, ax] = &windows.geometry.axes;
    let lines = az.output * ay.output;
    let planes = out.len() / (filters * lines * ax.output);
    let beyond = reach(ax).unwrap_or(0) / ax.stride;
    let phases = Phases { remainders: remainders(ax), pitch: ax.output + beyond };
    let work = out.len().saturating_mul(k_len.max(1));
    // Few groups: their lines are shared out too, and every band widens the input for itself.
    let bands =
        if planes >= parallel::threads() { 1 } else { (2 * parallel::threads()).div_ceil(planes).min(lines) };
    let band = lines.div_ceil(bands);
    let bands = lines.div_ceil(band);
    let line = phases.remainders.len() * phases.pitch;
    let columns: Vec<usize> = (0..ax.taps.len())
        .map(|k| plane_of(ax, &phases.remainders, k))
        .map(|(phase, right)| phase * phases.pitch + right)
        .collect();
    let grid = Grid::new(out);
    let task = |t: usize| {
        let (plane, first) = (t / bands, t % bands * band);
        let input = windows.channels * az.input * ay.input;
        // The last block of the last line may read past its end.
        with_scratch(input * line + BLOCK, |x: &mut [i16]| {
            simd::run(Widen { windows, plane, x_signed, phases: &phases, to: &mut *x });
            let mut taps = Vec::with_capacity(k_len);
            for filter in 0..filters {
                let number = plane % windows.groups * filters + filter;
                // Both are shifted alike, so that the difference is the weight's own.
                let weight = |k: usize| i32::from(w[number * k_len + k] ^ w_flip) - w_zeros.of(number);
                for at in first..(first + band).min(lines) {
                    taps.clear();
                    let mut k = 0;
                    for channel in 0..windows.channels {
                        for (z, y) in reached(az, at / ay.output)
                            .flat_map(|z| reached(ay, at % ay.output).map(move |y| (z, y)))
                        {
                            if let (Some(z), Some(y)) = (z, y) {
                                let base = ((channel * az.input + z) * ay.input + y) * line;
                                taps.extend(
                                    columns.iter().enumerate().map(|(i, c)| (base + c, weight(k + i))),
                                );
                            }
                            k += columns.len();
                        }
                    }
                    let to = ((plane * filters + filter) * lines + at) * ax.output;
                    // Safety: no other task writes this line of this filter's results.
                    let out = unsafe { grid.run(to, ax.output) };
                    simd::run(Line { taps: &taps, x, out });
                }
            }
        });
    };
    run_tasks(planes * bands, work, &task);
}

/// For every kernel position of an axis, the input that an output reads there, if any.
fn reached(axis: &Axis, output: usize) -> impl Iterator<Item = Option<usize>> + Clone + '_ {
    axis.taps.iter().map(move |tap| tap.reach(output, axis.stride))
}

/// Widens a group's input.
struct Widen<'a> {
    windows: &'a Windows<'a>,
    plane: usize,
    x_signed: bool,
    phases: &'a Phases,
    to: &'a mut [i16],
}

impl simd::Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let Widen { windows, plane, x_signed, phases, to } = self;
        let [az, ay, ax] = &windows.geometry.axes;
        let lines = windows.channels * az.input * ay.input;
        let x = &windows.x[plane * lines * ax.input..][..lines * ax.input];
        to.fill(0);
        for line in 0..lines {
            let x = &x[line * ax.input..][..ax.input];
            let len = phases.remainders.len() * phases.pitch;
            let to = &mut to[line * len..][..len];
            for (&p, to) in phases.remainders.iter().zip(to.chunks_exact_mut(phases.pitch)) {
                // Element i of phase p is at i · stride + p, counted from the padding's begin.
                let lead = ax.before.saturating_sub(p).div_ceil(ax.stride).min(to.len());
                let Some(x) = x.get((lead * ax.stride + p).saturating_sub(ax.before)..) else { continue };
                let to = &mut to[lead..];
                if x_signed {
                    let zero = i16::from(windows.pad as i8);
                    widen(x, ax.stride, to, |x| i16::from(x as i8) - zero);
                } else {
                    let zero = i16::from(windows.pad);
                    widen(x, ax.stride, to, |x| i16::from(x) - zero);
                }
            }
        }
    }
}

/// Every `stride`-th element as far as both go.
#[inline(always)]
fn widen(x: &[u8], stride: usize, to: &mut [i16], wide: impl Fn(u8) -> i16) {
    match stride {
        1 => to.iter_mut().zip(x).for_each(|(to, x)| *to = wide(*x)),
        2 => {
            let count = to.len().min(x.len().div_ceil(2));
            let (x, to) = (&x[..(2 * count).saturating_sub(1)], &mut to[..count]);
            for i in 0..count {
                to[i] = wide(x[2 * i]);
            }
        }
        _ => to.iter_mut().zip(x.chunks(stride)).for_each(|(to, x)| *to = wide(x[0])),
    }
}

/// One line: `out[i] = Σ weight · x[offset + i]`.
struct Line<'a> {
    taps: &'a [(usize, i32)],
    x: &'a [i16],
    out: &'a mut [i32],
}

impl simd::Kernel for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (block, out) in self.out.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0i32; BLOCK];
            for (offset, weight) in self.taps {
                let x = &self.x[offset + block * BLOCK..][..BLOCK];
                for i in 0..BLOCK {
                    sums[i] = sums[i].wrapping_add(weight * i32::from(x[i]));
                }
            }
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}
