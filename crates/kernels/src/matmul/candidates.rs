//! What a matmul may be computed by, for the tuner: classes of matmuls, and all choices that are right for one.

use std::fmt;

use olivine_ir::Dim;
use olivine_program::DeviceCaps;

use crate::conv::implicit_gemm::BROAD;
use crate::launch::number;
use crate::matmul::choice::{Choice, GemvConfig, LARGE, MEDIUM, SMALL, SMALL_M, Shape, Tile, busy};
use crate::matmul::coop::blocks;
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::problem::{Axis, Layout, Problem};
use crate::matmul::split_f32;
use crate::matmul::split_f32::small_m;
use crate::matmul::stream_k::StreamK;
use crate::matmul::warpgroup;
use crate::site::{class_of, recorded_class, rounded};

/// The name of the family in records.
pub(crate) const FAMILY: &str = "matmul";

/// Tiles worth a measurement. Steps of 8 and of 32 trade workgroup memory for barriers.
const TILES: [Tile; 7] = [
    LARGE,
    Tile { k: 8, unroll: 8, ..LARGE },
    Tile { n: 64, ..LARGE },
    BROAD,
    MEDIUM,
    Tile { k: 32, unroll: 32, ..MEDIUM },
    SMALL,
];

/// Matmuls that one measurement serves: type, sizes, batches, and along which axis and by how many the operands are
/// read.
pub(crate) fn class(problem: &Problem<'_>, shape: &Shape, is_tuned: bool) -> String {
    let layout = |layout: Layout, outer: char| {
        let axis = if layout.along == Axis::Outer { outer } else { 'k' };
        format!("{axis}{}", layout.lanes)
    };
    let number = |size: Dim| rounded(recorded_class(size, is_tuned));
    let (m, n, k) = (rounded(shape.m), number(shape.n), number(shape.k));
    format!(
        "{} {m}x{n}x{k} b{} {}{}",
        problem.dtype(),
        number(shape.batches),
        layout(problem.layout_of_a(), 'm'),
        layout(problem.layout_of_b(), 'n'),
    )
}

/// Sizes that candidates are listed by.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    n: usize,
    k: usize,
    batches: usize,
}

impl Listed {
    /// Of a shape with so many rows; `None` where sizes are open and no record asks.
    fn new(rows: Dim, shape: &Shape, is_tuned: bool) -> Option<Self> {
        let is_fixed = [rows, shape.n, shape.k, shape.batches].iter().all(|size| size.is_constant());
        (is_tuned || is_fixed).then(|| Listed {
            n: class_of(shape.n),
            k: number(shape.k),
            batches: class_of(shape.batches),
        })
    }

    fn shape(self, m: usize) -> Shape {
        Shape { m, n: self.n.into(), k: self.k.into(), batches: self.batches.into() }
    }
}

/// Every choice that computes the matmul, or the default alone where nobody asks for others. Any of them is right for the shape; a record picks among them.
pub(crate) fn candidates(
    problem: &Problem<'_>,
    shape: &Shape,
    default: Choice,
    scalar: u32,
    is_tuned: bool,
    caps: &DeviceCaps,
) -> Vec<Choice> {
    let mut all = vec![default];
    let Some(listed) = Listed::new(problem.m, shape, is_tuned) else { return all };
    let (m, shape) = (shape.m, &listed.shape(shape.m));
    match default {
        Choice::Empty | Choice::Zeros => {}
        // Tiles are no match for them.
        Choice::Coop { .. } | Choice::StreamK { .. } | Choice::Warpgroup(_) => {
            all.extend(warpgroup::candidates(problem, caps).into_iter().map(Choice::Warpgroup));
            for (blocks, splits) in blocks::candidates(problem, shape, caps) {
                all.push(Choice::Coop { blocks, splits });
                all.extend(shared(problem, blocks, splits, shape, caps));
            }
            all.extend(split_f32::choose(problem, shape, caps).map(Choice::SplitF32));
        }
        Choice::Tiled { .. } => all.extend(tiles(m, listed, scalar, caps)),
        Choice::GemvDot { swapped, cut } => {
            all.extend(cuts(m, listed, cut, caps).map(|cut| Choice::GemvDot { swapped, cut }));
        }
        Choice::GemvAxpy { swapped, cut } => {
            all.extend(cuts(m, listed, cut, caps).map(|cut| Choice::GemvAxpy { swapped, cut }));
        }
        // Their one cut each was measured over all of their shapes.
        Choice::SmallMCoop(_) => {}
        Choice::SplitF32(_) => {
            all.extend(warpgroup::candidates(problem, caps).into_iter().map(Choice::Warpgroup));
        }
        Choice::SplitF32SmallM(_) => all.extend(small_m::CUTS.map(Choice::SplitF32SmallM)),
    }
    let mut distinct = Vec::with_capacity(all.len());
    for choice in all {
        if !distinct.contains(&choice) {
            distinct.push(choice);
        }
    }
    distinct
}

/// Whether splitting the last blocks should pay, by the class of rows.
pub(crate) fn stream_k_pays(blocks: CoopTile, splits: usize, shape: &Shape, caps: &DeviceCaps) -> bool {
    // What a step and a round take is known of the large ones.
    let known = blocks.m == 128 && blocks.n == 128 && splits == 1 && !blocks.carry;
    if !known || blocks.count(shape) > StreamK::most_blocks(caps) {
        return false;
    }
    let steps = number(shape.k.div_ceil(blocks.k_step));
    StreamK::new(number(blocks.count(shape)), steps, caps).is_some()
}

/// The same blocks, the last ones split, if that should pay.
pub(crate) fn shared(
    problem: &Problem<'_>,
    blocks: CoopTile,
    splits: usize,
    shape: &Shape,
    caps: &DeviceCaps,
) -> Option<Choice> {
    if !stream_k_pays(blocks, splits, shape, caps) {
        return None;
    }
    // The schedule is for the blocks that there are.
    let steps = number(shape.k.div_ceil(blocks.k_step));
    let rows = problem.m.div_ceil(blocks.m);
    let count = number(rows * problem.n.div_ceil(blocks.n) * problem.batches());
    let schedule = StreamK::of_last_wave(count, steps, caps)?;
    Some(Choice::StreamK { blocks, schedule })
}

/// The same cut of a GEMV with other loads in flight and other parts.
fn cuts(m: usize, listed: Listed, cut: GemvConfig, caps: &DeviceCaps) -> impl Iterator<Item = GemvConfig> {
    let groups = (m.max(listed.n) * listed.batches) as u64 / 64;
    let splits = parts(listed.k, 1024, groups, caps);
    [1, 2, 4, 8].into_iter().flat_map(move |at_once| {
        splits.clone().into_iter().map(move |splits| GemvConfig { at_once, splits, ..cut })
    })
}

/// All tiles that fit, with K in one part or several.
fn tiles(m: usize, listed: Listed, scalar: u32, caps: &DeviceCaps) -> Vec<Choice> {
    let Listed { n, k, batches } = listed;
    let mut all = Vec::new();
    // A few rows would leave most of a tile empty.
    if m.min(n) <= SMALL_M || k == 0 {
        return all;
    }
    for tile in TILES {
        // 64-bit accumulators of a large tile would not stay in registers.
        let large = tile.rows * tile.columns > 32;
        let tile = if scalar > 4 { tile.wide() } else { tile };
        if (large && scalar > 4) || !tile.fits(caps, scalar) || tile.m as usize >= 4 * m.max(32) {
            continue;
        }
        let count = m.div_ceil(tile.m as usize) * n.div_ceil(tile.n as usize) * batches;
        for wanted in parts(k, 128, count as u64, caps) {
            all.push(Choice::Tiled { tile, splits: even_splits(k.into(), wanted, tile.k) });
        }
        if caps.wants_short_kernels() {
            all.push(Choice::Tiled { tile: tile.rolled(), splits: 1 });
        }
    }
    all
}

/// Numbers of parts of a sum that such a device may profit from, each part at least `least` long: powers of two up to
/// where the device has several times the workgroups it needs.
pub(crate) fn parts(k: usize, least: usize, groups: u64, caps: &DeviceCaps) -> Vec<usize> {
    let most = (4 * busy(caps) / groups.max(1)).clamp(1, 64) as usize;
    (0..7).map(|n| 1 << n).filter(|parts| *parts == 1 || (*parts <= most && k / parts >= least)).collect()
}

/// So many parts that none is empty, when each is a multiple of `step`: kernels load before they ask.
#[track_caller]
pub(crate) fn even_splits(k: Dim, wanted: usize, step: u32) -> usize {
    if wanted <= 1 {
        return 1;
    }
    let chunk = k.div_ceil(wanted).next_multiple_of(step.max(1));
    number(k.div_ceil(chunk.max(1)).max(1))
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { m, n, k, rows, columns, unroll } = self;
        write!(f, "{m}x{n}x{k}/{rows}x{columns}")?;
        if unroll == k { Ok(()) } else { write!(f, "/u{unroll}") }
    }
}

impl fmt::Display for GemvConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{} a{} s{}", self.width, self.at_once, self.splits)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Empty => f.write_str("empty"),
            Choice::Zeros => f.write_str("zeros"),
            Choice::Tiled { tile, splits } => write!(f, "tiled {tile} s{splits}"),
            Choice::Coop { blocks, splits } => write!(f, "coop {blocks} s{splits}"),
            Choice::Warpgroup(path) => write!(f, "warpgroup {path}"),
            Choice::StreamK { blocks, .. } => write!(f, "stream-k {blocks}"),
            Choice::SmallMCoop(cut) => write!(f, "small-m-coop {}x{}", cut.rows, cut.columns),
            Choice::SplitF32(config) => write!(f, "split-f32 s{}", config.splits),
            Choice::SplitF32SmallM(cut) => write!(f, "split-f32-small-m {cut}"),
            Choice::GemvDot { cut, .. } => write!(f, "gemv-dot {cut}"),
            Choice::GemvAxpy { cut, .. } => write!(f, "gemv-axpy {cut}"),
        }
    }
}
