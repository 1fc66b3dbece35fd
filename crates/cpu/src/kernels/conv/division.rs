//! Which way a convolution is divided: the first of these that suits the problem.
//!
//! ```text
//!   direct     pointwise: the operand as it is
//!   depthwise  one filter per channel, channels in lanes
//!   in_place   one filter per group, rows read under masks
//!   planes     padded copies of rows, for each band or once for all
//!   patches    im2col, for windows that see little of their rows
//! ```

use super::Problem;
use super::depthwise::Depthwise;
use super::filters;
use super::geometry::Axis;
use super::in_place::InPlace;
use super::plan::{Band, BandInput, Plan, SINGLE_VECTORS, VECTORS, blocks, flat_bands};
use super::planes::Planes;
use super::real::Real;
use super::weights::panel_width;
use crate::parallel;

/// Elements of inputs that stay in a second-level cache beside weights and results.
const BAND_ELEMENTS: usize = 48 << 10;
/// Elements of a whole operand that is copied for all bands.
const WHOLE_ELEMENTS: usize = 16 << 20;
/// Multiply-adds that are worth a thread.
const THREAD_WORK: usize = 1 << 18;
/// Positions below which dividing filters among threads is better than dividing positions.
const SHORT: usize = 192;
/// What storing a vector of results costs beside a multiply-add.
pub(super) const STORES: usize = 4;

/// What every way starts from.
pub(super) struct Division<'a, T> {
    problem: &'a Problem<'a, T>,
    lanes: usize,
    /// Threads there are, and threads that the work is worth.
    available: usize,
    threads: usize,
    /// Images times groups.
    units: usize,
    /// Output positions of a unit.
    positions: usize,
    /// Vectors of a tile at most.
    most: usize,
}

impl<'a, T: Real> Division<'a, T> {
    pub(super) fn new(problem: &'a Problem<'a, T>, lanes: usize) -> Self {
        let available = parallel::threads();
        Division {
            problem,
            lanes,
            available,
            threads: (problem.work() / THREAD_WORK).clamp(1, available),
            units: problem.images * problem.groups,
            positions: problem.geometry.output_len(),
            most: if problem.filters() == 1 { SINGLE_VECTORS } else { VECTORS },
        }
    }

    /// The plan of the first way that suits.
    pub(super) fn plan(&self) -> Plan {
        let found = self.direct().or_else(|| self.depthwise()).or_else(|| self.in_place());
        found.or_else(|| self.planes()).unwrap_or_else(|| self.patches())
    }

    /// A plan whose filters are divided where bands do not keep all threads busy.
    fn with(
        &self,
        source: BandInput,
        offsets: Vec<usize>,
        by_filters: bool,
        bands: Vec<Band>,
        scratch: usize,
    ) -> Plan {
        let panels = self.problem.filters().div_ceil(16);
        let parts = self.threads.div_ceil(self.units * bands.len()).clamp(1, panels);
        let (made_for, threads) = ((self.lanes, self.available), self.threads);
        Plan { made_for, source, offsets, by_filters, bands, scratch, parts, threads }
    }

    /// Bands of a unit: at least `least`, more where that gives every thread as much to do.
    fn bands(&self, least: usize) -> usize {
        let most = (self.positions / SHORT).max(1);
        let even = (self.units * least).next_multiple_of(self.threads).div_ceil(self.units);
        if self.units * least >= 4 * self.threads { least } else { even.min(most).max(least) }
    }

    /// Bands of whole lines, without vectors of positions.
    fn by_lines(&self, lines: usize) -> Vec<Band> {
        let [_, ay, ax] = &self.problem.geometry.axes;
        let band = |y: usize| {
            let (start, lines) = (y * ax.output, lines.min(ay.output - y));
            let len = lines * ax.output;
            Band { z: 0, y, spans: Vec::new(), lines, start, len, blocks: Vec::new(), keeps: Vec::new() }
        };
        (0..ay.output).step_by(lines).map(band).collect()
    }

    fn direct(&self) -> Option<Plan> {
        let &Division { problem, lanes, positions, most, .. } = self;
        let by_filters = self.by_filters(1, positions, positions);
        if !problem.geometry.is_pointwise() || !by_filters && positions < most * lanes {
            return None;
        }
        let k = problem.k_len().max(1);
        let count = self.bands(positions.div_ceil((BAND_ELEMENTS / k).max(4 * most * lanes)));
        // Threads share positions evenly, in whole tiles.
        let tile = if by_filters { filters::positions(positions, k).0 } else { lanes };
        let width = positions.div_ceil(count).next_multiple_of(tile).min(positions);
        let bands = flat_bands(positions, width, lanes, most, true);
        let offsets = (0..problem.channels).map(|c| c * positions).collect();
        Some(self.with(BandInput::Direct, offsets, by_filters, bands, 0))
    }

    fn depthwise(&self) -> Option<Plan> {
        let blocks = self.problem.images * self.problem.groups.div_ceil(self.lanes);
        let layout = Depthwise::new(self.problem, self.lanes, self.threads.div_ceil(blocks))?;
        let (bands, scratch) = (self.by_lines(layout.lines), layout.scratch(self.problem, self.lanes));
        Some(self.with(BandInput::Depthwise(layout), Vec::new(), false, bands, scratch))
    }

    fn in_place(&self) -> Option<Plan> {
        let in_place = InPlace::new(self.problem, self.lanes, self.threads)?;
        let lines = self.problem.geometry.axes[1].output;
        let bands = self.by_lines(lines.div_ceil(self.bands(1).min(lines)));
        Some(self.with(BandInput::InPlace(in_place), Vec::new(), false, bands, 0))
    }

    fn planes(&self) -> Option<Plan> {
        let &Division { problem, lanes, most, .. } = self;
        let [az, ay, ax] = &problem.geometry.axes;
        let whole = Planes::new(problem, ay.output, ax.output)?;
        let per_line = (whole.channel / whole.plane * whole.pitch).max(1) * problem.channels.max(1);
        let fitting = (BAND_ELEMENTS / per_line).saturating_sub(whole.halo).max(1);
        let count = self.bands(az.output * ay.output.div_ceil(fitting)).div_ceil(az.output).min(ay.output);
        let lines = ay.output.div_ceil(count);
        // Bands that would copy the same rows again and again share one copy.
        let size = problem.channels.saturating_mul(whole.channel);
        if whole.halo > lines && az.output == 1 && size <= WHOLE_ELEMENTS {
            let per_line = problem.channels.max(1) * ay.taps.len() * whole.pitch;
            let count = self.bands(ay.output.div_ceil((BAND_ELEMENTS / per_line).max(1)));
            let lines = ay.output.div_ceil(count.min(ay.output));
            return Some(self.padded(whole, (lines, ax.output), BandInput::Whole));
        }
        // One line too long for the cache, or for all threads to have some, is cut too.
        let narrowest = 4 * most * lanes;
        let fits = BAND_ELEMENTS / (per_line / whole.pitch * (1 + whole.halo)).max(1);
        let all = az.output * ay.output;
        let even = ax.output.div_ceil(self.bands(all).div_ceil(all));
        let width = if lines == 1 { fits.min(even).max(narrowest).min(ax.output) } else { ax.output };
        let cut = width < ax.output || lines < ay.output;
        let planes = if cut { Planes::new(problem, lines, width)? } else { whole };
        Some(self.padded(planes, (lines, width), BandInput::Planes))
    }

    /// A plan of padded rows for bands of `lines` lines and `width` columns.
    fn padded(
        &self,
        planes: Planes,
        (lines, width): (usize, usize),
        source: fn(Planes) -> BandInput,
    ) -> Plan {
        let &Division { problem, lanes, most, .. } = self;
        let [az, ay, ax] = &problem.geometry.axes;
        let starts = |axis: &Axis, step: usize| (0..axis.output).step_by(step);
        let mut bands = Vec::new();
        for z in 0..az.output {
            for y in starts(ay, lines) {
                for x in starts(ax, width) {
                    let (lines, width) = (lines.min(ay.output - y), width.min(ax.output - x));
                    let flat = (lines - 1) * planes.pitch + width;
                    let (blocks, keeps) = blocks(flat, width, planes.pitch, lanes, most, false);
                    let (start, len) = ((z * ay.output + y) * ax.output + x, lines * width);
                    bands.push(Band { z, y, spans: planes.spans(ax, x), lines, start, len, blocks, keeps });
                }
            }
        }
        // Vectors and tiles may reach beyond the last plane.
        let scratch = problem.channels * planes.channel + SINGLE_VECTORS * lanes + planes.pitch;
        let by_filters = self.by_filters(lines, width, planes.pitch);
        let offsets = planes.offsets(problem);
        self.with(source(planes), offsets, by_filters, bands, scratch)
    }

    fn patches(&self) -> Plan {
        let &Division { problem, lanes, positions, most, .. } = self;
        let k = problem.k_len().max(1);
        let count = self.bands(positions.div_ceil((BAND_ELEMENTS / k).max(most * lanes)));
        let width = positions.div_ceil(count).next_multiple_of(lanes);
        let bands = flat_bands(positions, width, lanes, most, false);
        let offsets = (0..problem.k_len()).map(|k| k * width).collect();
        self.with(BandInput::Patches { pitch: width }, offsets, false, bands, k * width)
    }

    /// Whether tiles with filters in lanes take less time than vectors over `lines` of `width` positions, `pitch` apart.
    fn by_filters(&self, lines: usize, width: usize, pitch: usize) -> bool {
        let &Division { problem, lanes, .. } = self;
        let gaps = pitch != width;
        let (lines, width) = if gaps { (lines, width) } else { (1, lines * width) };
        let (_, time) = filters::positions(width, problem.k_len());
        let vectors = ((lines - 1) * pitch + width).div_ceil(lanes);
        let by_positions = vectors.saturating_mul((problem.k_len() + STORES).saturating_mul(lanes));
        panel_width(problem.filters()) == lanes
            && problem.filters() >= 2 * lanes
            && lines.saturating_mul(time) < by_positions / 64 * 63
    }
}
