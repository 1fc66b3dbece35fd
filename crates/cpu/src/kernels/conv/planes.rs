//! Rows of a band laid out with their padding, one plane for every remainder that taps leave modulo the strides.

use super::Problem;
use super::geometry::Axis;
use super::patches::copy_strided;
use super::plan::Band;
use super::vector::{ConvVector, copy_run};
use crate::operand::Number;

/// Gaps times filters above which laying out every patch costs less than computing the gaps.
const GAPS: usize = 64;

/// The layout of padded rows.
pub(crate) struct Planes {
    /// Remainders of rows and columns modulo the strides, one plane each.
    rows: Vec<usize>,
    columns: Vec<usize>,
    pub(crate) pitch: usize,
    /// Elements of a row that are written; the last ones may be the first of the next row.
    row: usize,
    /// Rows of a plane beyond the band's lines.
    pub(crate) halo: usize,
    /// Elements of a plane.
    pub(crate) plane: usize,
    /// Elements of a channel.
    pub(crate) channel: usize,
}

/// What a plane's rows see of an input row: `count` elements from `from` on, as far apart as the stride, go to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    from: usize,
    to: usize,
    count: usize,
}

impl Planes {
    /// The layout for bands of up to `lines` lines of `width` columns; `None` if gaps or padding would be most of it.
    pub(crate) fn new<T>(problem: &Problem<'_, T>, lines: usize, width: usize) -> Option<Self> {
        let [az, ay, ax] = &problem.geometry.axes;
        if !problem.geometry.axes.iter().all(fits_rows) {
            return None;
        }
        let (columns, rows) = (remainders(ax), remainders(ay));
        let beyond = reach(ax)? / ax.stride;
        let row = width + beyond;
        // Zeros at a row's end may be those at the next one's beginning.
        let shared = if width < ax.output || lines == 1 {
            0
        } else {
            let zeros = |p: &usize| {
                let (lead, count) = seen(ax, 0, *p, row);
                lead.min(row - lead - count)
            };
            columns.iter().map(zeros).min().unwrap_or(0).min(beyond)
        };
        let pitch = row - shared;
        if (pitch - width).saturating_mul(problem.filters()) > GAPS.saturating_mul(width) {
            return None;
        }
        let halo = reach(ay)? / ay.stride;
        let plane = (lines + halo) * pitch + shared;
        let channel = az.taps.len() * rows.len() * columns.len() * plane;
        Some(Planes { rows, columns, pitch, row, halo, plane, channel })
    }

    pub(crate) fn offsets<T>(&self, problem: &Problem<'_, T>) -> Vec<usize> {
        let [az, ay, ax] = &problem.geometry.axes;
        let columns: Vec<_> = (0..ax.taps.len()).map(|k| plane_of(ax, &self.columns, k)).collect();
        let rows: Vec<_> = (0..ay.taps.len()).map(|k| plane_of(ay, &self.rows, k)).collect();
        let mut offsets = Vec::with_capacity(problem.k_len());
        for c in 0..problem.channels {
            for z in 0..az.taps.len() {
                for (py, down) in &rows {
                    for (px, right) in &columns {
                        let plane = (z * self.rows.len() + py) * self.columns.len() + px;
                        offsets.push(c * self.channel + plane * self.plane + down * self.pitch + right);
                    }
                }
            }
        }
        offsets
    }

    /// Copies the rows that a band sees; `again` if memory holds the same band of another image or group, whose zeros
    /// stay.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    pub(crate) unsafe fn fill<L: ConvVector>(
        &self,
        problem: &Problem<'_, L::Elem>,
        (image, group): (usize, usize),
        band: &Band,
        again: bool,
        to: &mut [L::Elem],
    ) {
        for c in 0..problem.channels {
            let (source, to) = (problem.plane(image, group, c), &mut to[c * self.channel..][..self.channel]);
            // Safety: the caller's promise.
            unsafe { self.fill_channel::<L>(problem, source, (band, band.lines), again, to) };
        }
    }

    /// Copies the rows of one channel that `lines` lines from a band's first on see.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    pub(crate) unsafe fn fill_channel<L: ConvVector>(
        &self,
        problem: &Problem<'_, L::Elem>,
        source: &[L::Elem],
        (band, lines): (&Band, usize),
        again: bool,
        channel: &mut [L::Elem],
    ) {
        let [az, ay, ax] = &problem.geometry.axes;
        let lines = lines + self.halo;
        // Rows that all exist, are seen whole and follow each other without gaps are one run.
        let whole = [Span { from: 0, to: 0, count: ax.input }];
        let one_run = self.pitch == ax.input
            && band.spans == whole
            && ax.stride * ay.stride == 1
            && band.y >= ay.before
            && band.y + lines <= ay.before + ay.input;
        let mut next = 0;
        for tz in &az.taps {
            let z = tz.reach(band.z, az.stride);
            for py in &self.rows {
                let planes = &mut channel[next..][..self.columns.len() * self.plane];
                next += planes.len();
                if one_run && let Some(z) = z {
                    let from = &source[(z * ay.input + band.y - ay.before) * ax.input..][..lines * ax.input];
                    // Safety: the caller's promise.
                    unsafe { copy_run::<L>(from, &mut planes[..lines * ax.input]) };
                    continue;
                }
                for line in 0..lines {
                    let y = ((band.y + line) * ay.stride + py).wrapping_sub(ay.before);
                    let z = z.filter(|_| y < ay.input);
                    let from = z.map_or(&[][..], |z| &source[(z * ay.input + y) * ax.input..][..ax.input]);
                    if from.is_empty() && again {
                        continue;
                    }
                    // Safety: the caller's promise.
                    unsafe {
                        let to = &mut planes[line * self.pitch..];
                        self.fill_line::<L>(ax.stride, &band.spans, from, again, to);
                    }
                }
            }
        }
    }

    /// What the rows of a band from column `x` on see of the input.
    pub(crate) fn spans(&self, ax: &Axis, x: usize) -> Vec<Span> {
        let span = |(p, column): (usize, &usize)| {
            let (lead, count) = seen(ax, x, *column, self.row);
            // A row wholly in the padding sees nothing, and begins before the input or after its end.
            let from = if count == 0 { 0 } else { (x + lead) * ax.stride + column - ax.before };
            Span { from, to: p * self.plane + lead, count }
        };
        self.columns.iter().enumerate().map(span).collect()
    }

    /// Copies one input row, or zeros for none, to its place in the plane of every remainder.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn fill_line<L: ConvVector>(
        &self,
        stride: usize,
        spans: &[Span],
        from: &[L::Elem],
        again: bool,
        to: &mut [L::Elem],
    ) {
        if !again {
            for p in 0..spans.len() {
                to[p * self.plane..][..self.row].fill(L::Elem::ZERO);
            }
        }
        if from.is_empty() {
            return;
        }
        // Safety: the caller's promise; every run is in bounds as sliced.
        unsafe {
            match *spans {
                [only] if stride == 1 => {
                    copy_run::<L>(&from[only.from..][..only.count], &mut to[only.to..][..only.count]);
                    return;
                }
                [one, two] if stride == 2 && one.from.abs_diff(two.from) == 1 => {
                    let (one, two) = if one.from < two.from { (one, two) } else { (two, one) };
                    let pairs = one.count.min(two.count);
                    let source = &from[one.from..][..2 * pairs];
                    let a = to[one.to..][..pairs].as_mut_ptr();
                    let b = to[two.to..][..pairs].as_mut_ptr();
                    L::split_pairs(source.as_ptr(), a, b, pairs);
                    // One of the two may have an element more.
                    for span in [one, two] {
                        for i in pairs..span.count {
                            to[span.to + i] = from[span.from + 2 * i];
                        }
                    }
                    return;
                }
                _ => {}
            }
        }
        for span in spans.iter().filter(|s| s.count > 0) {
            copy_strided(&from[span.from..], stride, &mut to[span.to..][..span.count]);
        }
    }
}

/// Whether rows with their padding are about as long as what they hold: neither huge nor mostly between the taps.
pub(crate) fn fits_rows(a: &Axis) -> bool {
    let most = (a.input + a.output).saturating_mul(4).saturating_add(64);
    a.stride < 1 << 20
        && a.before < 1 << 20
        && reach(a).is_some_and(|r| r / a.stride <= most)
        && a.output.checked_mul(a.stride).is_some_and(|n| (n as u64) < 1 << 40)
}

/// The plane of a tap on one axis, and its distance there.
pub(crate) fn plane_of(axis: &Axis, remainders: &[usize], k: usize) -> (usize, usize) {
    let far = k * axis.dilation;
    let phase = remainders.iter().position(|r| *r == far % axis.stride).unwrap_or(0);
    (phase, far / axis.stride)
}

/// How far the last tap is from the first.
pub(crate) fn reach(axis: &Axis) -> Option<usize> {
    axis.taps.len().checked_sub(1)?.checked_mul(axis.dilation)
}

/// What taps leave modulo the stride.
pub(crate) fn remainders(axis: &Axis) -> Vec<usize> {
    let mut all: Vec<usize> = (0..axis.taps.len()).map(|k| k * axis.dilation % axis.stride).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Zeros before the input in a row of `len` elements that begins at column `x`, and elements of the input in it.
fn seen(axis: &Axis, x: usize, phase: usize, len: usize) -> (usize, usize) {
    let first = x * axis.stride + phase;
    let lead = axis.before.saturating_sub(first).div_ceil(axis.stride).min(len);
    let begin = first + lead * axis.stride - axis.before.min(first + lead * axis.stride);
    let count = axis.input.saturating_sub(begin).div_ceil(axis.stride).min(len - lead);
    (lead, count)
}
