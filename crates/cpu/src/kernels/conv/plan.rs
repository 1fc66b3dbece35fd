//! How a convolution is cut up: bands of output positions, and where in working memory the inputs of a band lie.
//!
//! A band's results are counted in flat positions of a padded row pitch, so that every product of the sum reads its
//! operands at one distance from the position, whatever padding, stride and dilation are:
//!
//! ```text
//!   band of one channel:  . x x x . x x x . x x x .      pitch 4 for rows of 3: one zero parts two rows
//!   position of (y, x)  = y · pitch + x
//!   operand of tap k    = position + offsets[k]          positions in the gaps are computed and not kept
//! ```
//!
//! A stride is undone by laying out one such plane for every remainder the taps have modulo the stride.

use super::Problem;
use super::depthwise::Depthwise;
use super::filters;
use super::in_place::InPlace;
use super::lanes::Lanes;
use super::patches::patch_row;
use super::planes::{Planes, Span};
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
const STORES: usize = 4;
/// Vectors of positions in a tile, and in one of a single filter.
pub(crate) const VECTORS: usize = 3;
pub(crate) const SINGLE_VECTORS: usize = 6;

/// Where the inputs of a band are.
pub(crate) enum Source {
    /// In the operand itself.
    Direct,
    /// In a band of as many channels as there are lanes, transposed.
    Depthwise(Depthwise),
    /// In the operand itself, line by line, for a single filter.
    InPlace(InPlace),
    /// In copies of its rows with their padding, made for each band.
    Planes(Planes),
    /// In copies of all its rows with their padding, made once for all bands.
    Whole(Planes),
    /// In patches: a row of the band's positions for every product.
    Patches {
        /// Elements per row.
        pitch: usize,
    },
}

/// Which lanes of a vector of positions are results, and where the first one belongs in the band's run of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) lanes: u32,
    pub(crate) count: u32,
    pub(crate) to: usize,
}

/// Neighbouring vectors that are computed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// First position.
    pub(crate) at: usize,
    pub(crate) vectors: usize,
    /// Index of its first vector's [`Keep`].
    pub(crate) keep: usize,
}

/// A run of output positions, the same for all filters of a group.
pub(crate) struct Band {
    /// The first line, and what its rows see of the input, where they are copied.
    pub(crate) z: usize,
    pub(crate) y: usize,
    pub(crate) spans: Vec<Span>,
    pub(crate) lines: usize,
    /// First flat position of the result, and how many.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) blocks: Vec<Block>,
    pub(crate) keeps: Vec<Keep>,
}

/// The whole division.
pub(crate) struct Plan {
    /// What it was made for: lanes of a vector, and threads there are.
    made_for: (usize, usize),
    pub(crate) source: Source,
    /// Distance of every product's operand from the position.
    pub(crate) offsets: Vec<usize>,
    /// Whether tiles have filters in lanes.
    pub(crate) by_filters: bool,
    pub(crate) bands: Vec<Band>,
    /// Working memory of a task in elements.
    pub(crate) scratch: usize,
    /// Parts the filters of a group are divided into, each of whole panels.
    pub(crate) parts: usize,
    pub(crate) threads: usize,
}

/// The largest offset.
pub(crate) fn farthest(offsets: &[usize]) -> usize {
    offsets.iter().max().copied().unwrap_or(0)
}

impl Plan {
    /// Divides a problem for vectors of `lanes`.
    pub(crate) fn new<T: Real>(problem: &Problem<'_, T>, lanes: usize) -> Self {
        let available = parallel::threads();
        let made_for = (lanes, available);
        let threads = (problem.work() / THREAD_WORK).clamp(1, available);
        let [az, ay, ax] = &problem.geometry.axes;
        let units = problem.images * problem.groups;
        let positions = problem.geometry.output_len();
        let most_bands = (positions / SHORT).max(1);
        let wanted = |least: usize| {
            let even = (units * least).next_multiple_of(threads).div_ceil(units);
            if units * least >= 4 * threads { least } else { even.min(most_bands).max(least) }
        };
        let most = if problem.filters() == 1 { SINGLE_VECTORS } else { VECTORS };
        let parts = |bands: usize| {
            let panels = problem.filters().div_ceil(16);
            threads.div_ceil(units * bands).clamp(1, panels)
        };
        let depth = problem.depth().max(1);
        let flat_by_filters = by_filters(problem, lanes, 1, positions, positions);
        if problem.geometry.is_pointwise() && (flat_by_filters || positions >= most * lanes) {
            let fitting = (BAND_ELEMENTS / depth).max(4 * most * lanes);
            let count = wanted(positions.div_ceil(fitting));
            let by_filters = flat_by_filters;
            // Threads share positions evenly, in whole tiles.
            let tile = if by_filters { filters::positions(positions, depth).0 } else { lanes };
            let width = positions.div_ceil(count).next_multiple_of(tile).min(positions);
            let bands = flat_bands(positions, width, lanes, most, true);
            let offsets = (0..problem.channels).map(|c| c * positions).collect();
            let parts = parts(bands.len());
            return Plan {
                made_for,
                source: Source::Direct,
                offsets,
                by_filters,
                bands,
                scratch: 0,
                parts,
                threads,
            };
        }
        let by_lines = |lines: usize| {
            let band = |y: usize| {
                let (start, lines) = (y * ax.output, lines.min(ay.output - y));
                let len = lines * ax.output;
                Band { z: 0, y, spans: Vec::new(), lines, start, len, blocks: Vec::new(), keeps: Vec::new() }
            };
            (0..ay.output).step_by(lines).map(band).collect()
        };
        let of_lanes = problem.images * problem.groups.div_ceil(lanes);
        if let Some(depthwise) = Depthwise::new(problem, lanes, threads.div_ceil(of_lanes)) {
            let (bands, scratch) = (by_lines(depthwise.lines), depthwise.scratch(problem, lanes));
            let source = Source::Depthwise(depthwise);
            return Plan {
                made_for,
                source,
                offsets: Vec::new(),
                by_filters: false,
                bands,
                scratch,
                parts: 1,
                threads,
            };
        }
        if let Some(in_place) = InPlace::new(problem, lanes, threads) {
            let bands = by_lines(ay.output.div_ceil(wanted(1).min(ay.output)));
            let source = Source::InPlace(in_place);
            return Plan {
                made_for,
                source,
                offsets: Vec::new(),
                by_filters: false,
                bands,
                scratch: 0,
                parts: 1,
                threads,
            };
        }
        let lines_all = az.output * ay.output;
        if let Some(whole) = Planes::new(problem, ay.output, ax.output) {
            let per_line = (whole.channel / whole.plane * whole.pitch).max(1) * problem.channels.max(1);
            let fitting = (BAND_ELEMENTS / per_line).saturating_sub(whole.halo).max(1);
            let least = az.output * ay.output.div_ceil(fitting);
            let count = wanted(least).div_ceil(az.output).min(ay.output);
            let lines = ay.output.div_ceil(count);
            // Bands that would copy the same rows again and again share one copy.
            let size = problem.channels.saturating_mul(whole.channel);
            if whole.halo > lines && az.output == 1 && size <= WHOLE_ELEMENTS {
                let per_line = problem.channels.max(1) * ay.taps.len() * whole.pitch;
                let count = wanted(ay.output.div_ceil((BAND_ELEMENTS / per_line).max(1)));
                let lines = ay.output.div_ceil(count.min(ay.output));
                let spans = whole.spans(ax, 0);
                let band = |y: usize| {
                    let lines = lines.min(ay.output - y);
                    let flat = (lines - 1) * whole.pitch + ax.output;
                    let (blocks, keeps) = blocks(flat, ax.output, whole.pitch, lanes, most, false);
                    let (start, len) = (y * ax.output, lines * ax.output);
                    Band { z: 0, y, spans: spans.clone(), lines, start, len, blocks, keeps }
                };
                let bands: Vec<Band> = (0..ay.output).step_by(lines).map(band).collect();
                let scratch = size + SINGLE_VECTORS * lanes + whole.pitch;
                let (offsets, parts) = (whole.offsets(problem), parts(bands.len()));
                let by_filters = by_filters(problem, lanes, ay.output, ax.output, whole.pitch);
                let source = Source::Whole(whole);
                return Plan { made_for, source, offsets, by_filters, bands, scratch, parts, threads };
            }
            // One line too long for the cache, or for all threads to have some, is cut too.
            let narrowest = 4 * most * lanes;
            let fits = BAND_ELEMENTS / (per_line / whole.pitch * (1 + whole.halo)).max(1);
            let even = ax.output.div_ceil(wanted(lines_all).div_ceil(lines_all));
            let width = if lines == 1 { fits.min(even).max(narrowest).min(ax.output) } else { ax.output };
            let planes = if width < ax.output || lines < ay.output {
                Planes::new(problem, lines, width)
            } else {
                Some(whole)
            };
            if let Some(planes) = planes {
                let mut bands = Vec::new();
                for z in 0..az.output {
                    for y in (0..ay.output).step_by(lines) {
                        for x in (0..ax.output).step_by(width) {
                            let lines = lines.min(ay.output - y);
                            let width = width.min(ax.output - x);
                            let start = (z * ay.output + y) * ax.output + x;
                            let flat = (lines - 1) * planes.pitch + width;
                            let (blocks, keeps) = blocks(flat, width, planes.pitch, lanes, most, false);
                            let len = lines * width;
                            let spans = planes.spans(ax, x);
                            bands.push(Band { z, y, spans, lines, start, len, blocks, keeps });
                        }
                    }
                }
                // Vectors and tiles may reach beyond the last plane.
                let beyond = SINGLE_VECTORS * lanes + planes.pitch;
                let scratch = problem.channels * planes.channel + beyond;
                let (offsets, parts) = (planes.offsets(problem), parts(bands.len()));
                let by_filters = by_filters(problem, lanes, lines, width, planes.pitch);
                let source = Source::Planes(planes);
                return Plan { made_for, source, offsets, by_filters, bands, scratch, parts, threads };
            }
        }
        let fitting = (BAND_ELEMENTS / depth).max(most * lanes);
        let count = wanted(positions.div_ceil(fitting));
        let width = positions.div_ceil(count).next_multiple_of(lanes);
        let bands = flat_bands(positions, width, lanes, most, false);
        let offsets = (0..problem.depth()).map(|k| k * width).collect();
        let (scratch, parts) = (depth * width, parts(bands.len()));
        let source = Source::Patches { pitch: width };
        Plan { made_for, source, offsets, by_filters: false, bands, scratch, parts, threads }
    }

    /// Whether the plan serves vectors of `lanes` on the threads there are now.
    pub(crate) fn serves(&self, lanes: usize) -> bool {
        self.made_for == (lanes, parallel::threads())
    }

    /// Columns of a band's lines, and elements from a line to the next where its operands lie.
    pub(crate) fn line(&self, band: &Band) -> (usize, usize) {
        let width = band.len / band.lines.max(1);
        match &self.source {
            Source::Planes(planes) | Source::Whole(planes) => (width, planes.pitch),
            _ => (width, width),
        }
    }

    /// Lays out what a band of an image and group sees; `again` as if memory holds the same band of another one.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    pub(crate) unsafe fn fill<L: Lanes>(
        &self,
        problem: &Problem<'_, L::Elem>,
        (image, group): (usize, usize),
        band: &Band,
        again: bool,
        to: &mut [L::Elem],
    ) {
        match &self.source {
            Source::Direct | Source::InPlace(_) | Source::Depthwise(_) | Source::Whole(_) => {}
            // Safety: the caller's promise.
            Source::Planes(planes) => unsafe {
                planes.fill::<L>(problem, (image, group), band, again, to);
            },
            Source::Patches { pitch } => {
                let kernel = problem.geometry.kernel_len();
                for (k, row) in to.chunks_exact_mut(*pitch).enumerate().take(problem.depth()) {
                    let plane = problem.plane(image, group, k / kernel);
                    patch_row(&problem.geometry, plane, k % kernel, band.start, &mut row[..band.len]);
                }
            }
        }
    }
}

/// Whether tiles with filters in lanes take less time than vectors over `lines` of `width` positions, `pitch` apart.
fn by_filters<T>(problem: &Problem<'_, T>, lanes: usize, lines: usize, width: usize, pitch: usize) -> bool {
    let (lines, width, pitch) =
        if pitch == width { (1, lines * width, lines * width) } else { (lines, width, pitch) };
    let (_, time) = filters::positions(width, problem.depth());
    let vectors = ((lines - 1) * pitch + width).div_ceil(lanes);
    let by_positions = vectors.saturating_mul((problem.depth() + STORES).saturating_mul(lanes));
    panel_width(problem.filters()) == lanes
        && problem.filters() >= 2 * lanes
        && lines.saturating_mul(time) < by_positions / 64 * 63
}

/// Bands of `width` positions without gaps. Vectors that stay `inside` their band need one of a vector at least: a
/// shorter rest joins the band before it.
fn flat_bands(positions: usize, width: usize, lanes: usize, most: usize, inside: bool) -> Vec<Band> {
    let width = width.clamp(1, positions.max(1));
    let rest = positions % width;
    let count = if inside && rest < lanes { (positions / width).max(1) } else { positions.div_ceil(width) };
    let band = |i: usize| {
        let start = i * width;
        let len = if i + 1 == count { positions - start } else { width };
        // Fewer positions than lanes are only computed with filters in lanes.
        let few = inside && len < lanes;
        let (blocks, keeps) =
            if few { Default::default() } else { blocks(len, len, len, lanes, most, inside) };
        Band { z: 0, y: 0, spans: Vec::new(), lines: 1, start, len, blocks, keeps }
    };
    (0..count).map(band).collect()
}

/// Covers `flat` positions with blocks of up to `most` vectors. Those `inside` never reach beyond the positions (of
/// which there is a vector at least): a block is narrower than they are, and the last one begins earlier instead and
/// repeats some.
fn blocks(
    flat: usize,
    width: usize,
    pitch: usize,
    lanes: usize,
    most: usize,
    inside: bool,
) -> (Vec<Block>, Vec<Keep>) {
    let (mut blocks, mut keeps) = (Vec::new(), Vec::with_capacity(flat.div_ceil(lanes)));
    let room = if inside { flat / lanes } else { usize::MAX };
    let mut at = 0;
    while at < flat {
        let vectors = match (flat - at).div_ceil(lanes).min(room) {
            n if n >= most => most,
            // Two equal blocks are better than a block and a rest.
            4 => 2,
            5 => 3,
            n => n,
        };
        let from = if inside { at.min(flat.saturating_sub(vectors * lanes)) } else { at };
        blocks.push(Block { at: from, vectors, keep: keeps.len() });
        for v in 0..vectors {
            let first = from + v * lanes;
            let mut column = first % pitch;
            let to = first / pitch * width + column.min(width);
            let mut kept = 0;
            for lane in 0..lanes.min(flat.saturating_sub(first)) {
                kept |= u32::from(column < width) << lane;
                column = if column + 1 == pitch { 0 } else { column + 1 };
            }
            keeps.push(Keep { lanes: kept, count: kept.count_ones(), to });
        }
        at += vectors * lanes;
    }
    (blocks, keeps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_bands_keep_every_position_once_and_stay_inside() {
        for lanes in [4, 8, 16] {
            for most in [VECTORS, SINGLE_VECTORS] {
                for positions in (lanes..700).chain([4095, 4096, 4097]) {
                    for width in [1, 2, 4, 7].map(|n| n * most * lanes).into_iter().chain([positions]) {
                        let bands = flat_bands(positions, width, lanes, most, true);
                        let what = format!("{positions} positions in bands of {width}, {lanes} lanes");
                        assert_eq!(bands.iter().map(|b| b.len).sum::<usize>(), positions, "{what}");
                        for band in &bands {
                            let mut kept = vec![false; band.len];
                            for block in &band.blocks {
                                assert!(block.at + block.vectors * lanes <= band.len, "{what}: {block:?}");
                                assert!(matches!(block.vectors, 1..=3 | SINGLE_VECTORS), "{what}: {block:?}");
                                for keep in &band.keeps[block.keep..][..block.vectors] {
                                    kept[keep.to..][..keep.count as usize].fill(true);
                                }
                            }
                            assert!(kept.iter().all(|k| *k), "{what}");
                        }
                    }
                }
            }
        }
    }
}
