//! How a convolution is cut up: bands of output positions, and where in memory the inputs of a band are.
//!
//! A band's results are counted in flat positions of a padded row pitch, so that every step of K reads its
//! operands at one distance from the position, whatever padding, stride and dilation are:
//!
//! ```text
//!   band of one channel:  . x x x . x x x . x x x .      pitch 4 for rows of 3: one zero parts two rows
//!   position of (y, x)  = y · pitch + x
//!   operand of tap k    = position + offsets[k]          positions in the gaps are computed and dropped
//! ```
//!
//! A stride is undone by laying out one such plane for every remainder the taps have modulo the stride.

use super::Problem;
use super::depthwise::Depthwise;
use super::division::{Division, STORES};
use super::filters;
use super::in_place::InPlace;
use super::patches::patch_row;
use super::planes::{Planes, Span};
use super::real::Real;
use super::vector::ConvVector;
use crate::parallel;

/// Vectors of positions in a tile, and in one of a single filter.
pub(crate) const VECTORS: usize = 3;
pub(crate) const SINGLE_VECTORS: usize = 6;

/// Where the inputs of a band are.
pub(crate) enum BandInput {
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
    /// In patches: a row of the band's positions for every index of K.
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
    pub(super) made_for: (usize, usize),
    pub(crate) source: BandInput,
    /// For every index of K the distance of its element from the position.
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
        Division::new(problem, lanes).plan()
    }

    /// Whether the plan serves vectors of `lanes` on the threads there are now.
    pub(crate) fn serves(&self, lanes: usize) -> bool {
        self.made_for == (lanes, parallel::threads())
    }

    /// Multiply-adds that it takes the time of, with lanes that hold no result and what storing costs; `None` for ways of
    /// one filter per group, whose time follows from the results.
    pub(crate) fn executed<T: Real>(&self, problem: &Problem<'_, T>) -> Option<usize> {
        if matches!(self.source, BandInput::Depthwise(_) | BandInput::InPlace(_)) {
            return None;
        }
        let (lanes, k, count) = (self.made_for.0, self.offsets.len(), problem.filters());
        let of_band = |band: &Band| {
            if self.by_filters {
                let (width, pitch) = self.line(band);
                let (lines, width) = if pitch == width { (1, band.len) } else { (band.lines, width) };
                let (_, time) = filters::positions(width, k);
                return lines.saturating_mul(time).saturating_mul(count.next_multiple_of(lanes));
            }
            let vectors: usize = band.blocks.iter().map(|block| block.vectors).sum();
            vectors.saturating_mul(lanes * count).saturating_mul(k + STORES)
        };
        let all = self.bands.iter().map(of_band).fold(0, usize::saturating_add);
        Some(all.saturating_mul(problem.images * problem.groups))
    }

    /// Columns of a band's lines, and elements from a line's operands to the next line's.
    pub(crate) fn line(&self, band: &Band) -> (usize, usize) {
        let width = band.len / band.lines.max(1);
        match &self.source {
            BandInput::Planes(planes) | BandInput::Whole(planes) => (width, planes.pitch),
            _ => (width, width),
        }
    }

    /// Lays out what a band of an image and group sees; `again` as if memory holds the same band of another one.
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
        match &self.source {
            BandInput::Direct | BandInput::InPlace(_) | BandInput::Depthwise(_) | BandInput::Whole(_) => {}
            // Safety: the caller's promise.
            BandInput::Planes(planes) => unsafe {
                planes.fill::<L>(problem, (image, group), band, again, to);
            },
            BandInput::Patches { pitch } => {
                let kernel = problem.geometry.kernel_len();
                for (k, row) in to.chunks_exact_mut(*pitch).enumerate().take(problem.k_len()) {
                    let plane = problem.plane(image, group, k / kernel);
                    patch_row(&problem.geometry, plane, k % kernel, band.start, &mut row[..band.len]);
                }
            }
        }
    }
}

/// Bands of `width` positions without gaps. Vectors that stay `inside` their band need one of a vector at least: a
/// shorter rest joins the band before it.
pub(super) fn flat_bands(
    positions: usize,
    width: usize,
    lanes: usize,
    most: usize,
    inside: bool,
) -> Vec<Band> {
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
pub(super) fn blocks(
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
