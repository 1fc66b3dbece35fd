//! Which kernel a matmul gets, by its shape, the layouts of its operands, and the device.

use olivine_ir::Dim;
use olivine_program::{DeviceCaps, DeviceKind};

use crate::launch::number;
use crate::matmul::candidates::even_splits;
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::problem::{Axis, Layout, Problem};
use crate::matmul::small_m::coop::SmallMCoop;
use crate::matmul::split_f32;
use crate::matmul::split_f32::small_m;
use crate::matmul::stream_k::StreamK;
use crate::matmul::warpgroup::PathOfA;
use crate::site::class_of;

/// A workgroup's part of the matmul, and an invocation's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Size of a step along K.
    pub(crate) k: u32,
    /// Rows of an invocation, a multiple of 4.
    pub(crate) rows: u32,
    /// Columns of an invocation, a multiple of 4.
    pub(crate) columns: u32,
    /// How much of a step along K is unrolled; the step is a loop over pieces of this size. Divides `k`.
    pub(crate) unroll: u32,
}

/// The tile with the best ratio of arithmetic to memory.
pub(crate) const LARGE: Tile = Tile { m: 128, n: 128, k: 16, rows: 8, columns: 8, unroll: 16 };
/// A tile for the least capable devices and for matmuls of a few hundred rows and columns.
pub(crate) const MEDIUM: Tile = Tile { m: 64, n: 64, k: 16, rows: 8, columns: 4, unroll: 16 };
/// A tile for small matrices, many at once or alone.
pub(crate) const SMALL: Tile = Tile { m: 32, n: 32, k: 16, rows: 4, columns: 4, unroll: 16 };

impl Tile {
    /// Scalars between the indices along K of a panel in workgroup memory; one vector more than the panel is wide, so
    /// that transposed stores meet different banks.
    pub(crate) fn pitch(outer: u32) -> u32 {
        outer + 4
    }

    /// Invocations.
    pub(crate) fn group(self) -> u32 {
        self.m * self.n / (self.rows * self.columns)
    }

    /// The tile for 64-bit scalars: half the K step.
    pub(crate) fn wide(self) -> Tile {
        Tile { k: self.k / 2, unroll: (self.unroll / 2).max(1), ..self }
    }

    /// The same tile in few words and with few loads, for devices that compile slowly and gain nothing by straight-line
    /// code.
    pub(crate) fn rolled(self) -> Tile {
        Tile { k: 8, unroll: 1, ..self }
    }

    fn shared_bytes(self, scalar: u32) -> u32 {
        (Tile::pitch(self.m) + Tile::pitch(self.n)) * self.k * scalar
    }

    pub(crate) fn fits(self, caps: &DeviceCaps, scalar: u32) -> bool {
        self.group() <= caps.target.max_invocations && self.shared_bytes(scalar) <= caps.target.shared_bytes
    }

    pub(crate) fn count(self, shape: &Shape) -> Dim {
        shape.n.div_ceil(self.n) * shape.batches * shape.m.div_ceil(self.m as usize)
    }
}

/// Sizes of a matmul: rows by their class; what is asked about the others is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: Dim,
    pub(crate) k: Dim,
    pub(crate) batches: Dim,
}

impl Shape {
    /// The sizes that a kernel is chosen by: rows by their class, so that one choice serves all rows of the class.
    pub(crate) fn of(problem: &Problem<'_>) -> Self {
        Shape::with_rows(problem, class_of(problem.m))
    }

    /// The same with so many rows.
    pub(crate) fn with_rows(problem: &Problem<'_>, m: usize) -> Self {
        Shape { m, n: problem.n, k: problem.k, batches: problem.batches() }
    }

    /// Whether the smaller of rows and columns is at most `most`.
    #[track_caller]
    pub(crate) fn is_small(&self, most: usize) -> bool {
        self.m <= most || self.n <= most
    }

    /// Multiply-adds.
    pub(crate) fn work(&self) -> Dim {
        self.n * self.k * self.batches * self.m
    }
}

/// A kernel and how it is launched. The GEMV kernels are for the matmul as it is, or for its transpose if `swapped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// There is no result.
    Empty,
    /// The sum has no terms.
    Zeros,
    /// Tiles in workgroup memory; K in `splits` parts.
    Tiled {
        /// The tile.
        tile: Tile,
        /// Parts of K.
        splits: usize,
    },
    /// Cooperative matrices; K in `splits` parts.
    Coop {
        /// The blocks.
        blocks: CoopTile,
        /// Parts of K.
        splits: usize,
    },
    /// Cooperative matrices; the last wave of tiles split by stream-K.
    StreamK {
        /// The blocks.
        blocks: CoopTile,
        /// Which are whole, and how the rest is split.
        schedule: StreamK,
    },
    /// f16, bf16 or f32 by warpgroups, printed as PTX; A comes this way.
    Warpgroup(PathOfA),
    /// A few dozen rows of f16 by cooperative matrices.
    SmallMCoop(SmallMCoop),
    /// f32 by three f16 matmuls on cooperative matrices.
    SplitF32(split_f32::SplitF32Config),
    /// The same for small M and stored B, without workgroup memory.
    SplitF32SmallM(small_m::SplitF32SmallM),
    /// GEMV where B is contiguous along K: a cluster of invocations reduces some columns.
    GemvDot {
        /// Transposed.
        swapped: bool,
        /// Its launch.
        cut: GemvConfig,
    },
    /// GEMV where B is contiguous along N: neighbouring invocations have neighbouring columns.
    GemvAxpy {
        /// Transposed.
        swapped: bool,
        /// Its launch.
        cut: GemvConfig,
    },
}

/// How a GEMV is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemvConfig {
    /// Rows, at most as many; a power of two.
    pub(crate) rows: u32,
    /// Columns of a cluster of dots; of an invocation in a sweep, a divisor of the longest run. A power of two.
    pub(crate) columns: u32,
    /// Invocations of a cluster of dots; those side by side in a sweep. A power of two.
    pub(crate) width: u32,
    /// Invocations of a workgroup, where the device has so many; a power of two.
    pub(crate) group: u32,
    /// Loads of B that are in flight at once in every invocation.
    pub(crate) at_once: u32,
    /// Parts of K.
    pub(crate) splits: usize,
}

impl Choice {
    /// The choice for a matmul of pairs of columns: whole sums, and both of a pair in one invocation.
    pub(crate) fn of_gated(self) -> Choice {
        match self {
            Choice::Tiled { tile, .. } => Choice::Tiled { tile, splits: 1 },
            Choice::Coop { blocks, .. } => Choice::Coop { blocks, splits: 1 },
            Choice::SplitF32(config) => Choice::SplitF32(split_f32::SplitF32Config { splits: 1, ..config }),
            Choice::GemvAxpy { swapped: false, cut } if (cut.width * cut.columns).is_multiple_of(2) => {
                Choice::GemvAxpy { swapped: false, cut: GemvConfig { splits: 1, ..cut } }
            }
            Choice::GemvDot { .. } | Choice::GemvAxpy { .. } => Choice::Tiled { tile: SMALL, splits: 1 },
            none => none,
        }
    }
}

/// Rows up to which a matmul is a GEMV.
pub(crate) const SMALL_M: usize = 8;
/// The same where long rows of a large operand are read in their own layout.
const SWEPT: usize = 16;
/// N and K that make an operand large.
const LONG: usize = 512;

/// Workgroups that keep a device busy.
pub(crate) fn busy(caps: &DeviceCaps) -> u64 {
    match caps.kind {
        DeviceKind::Cpu => 16,
        DeviceKind::Integrated => 64,
        _ => 256,
    }
}

/// Parts of K, each at least `least` long, such that the device is busy.
#[track_caller]
fn splits(k: Dim, least: usize, groups: Dim, busy: u64) -> usize {
    if groups * 2 > busy || k < 2 * least {
        return 1;
    }
    number(quotient(busy, groups).min(k.div_floor(least)).clamp(1, 64))
}

/// How often so many workgroups make a device busy.
pub(crate) fn quotient(busy: u64, groups: Dim) -> Dim {
    Dim::from(busy).div_floor(groups.max(1))
}

/// Chooses; `a` and `b` say the layouts of the operands, `scalar` is the size of an accumulator in bytes.
pub(crate) fn choose(shape: &Shape, a: Layout, b: Layout, scalar: u32, caps: &DeviceCaps) -> Choice {
    let Shape { m, n, k, batches } = *shape;
    if m == 0 || n == 0 || batches == 0 {
        return Choice::Empty;
    }
    if k == 0 {
        return Choice::Zeros;
    }
    // With more rows and columns no other question matters.
    if !shape.is_small(SWEPT) {
        return tiled(shape, scalar, caps);
    }
    let wide = n >= m;
    let (few, many, along) = if wide { (m.into(), n, b.along) } else { (n, m.into(), a.along) };
    let can_sweep = along == Axis::Outer && scalar <= 4 && !matches!(caps.kind, DeviceKind::Cpu);
    let most = if can_sweep && many >= LONG && k >= LONG { SWEPT } else { SMALL_M };
    if few <= most {
        return if wide { gemv(shape, b, false, caps) } else { gemv(shape, a, true, caps) };
    }
    tiled(shape, scalar, caps)
}

/// Tiles for a matmul that is not empty.
pub(crate) fn tiled(shape: &Shape, scalar: u32, caps: &DeviceCaps) -> Choice {
    let Shape { m, n, k, .. } = *shape;
    let busy = busy(caps);
    let short = caps.wants_short_kernels_for(shape.work());
    let tile = |tile: Tile| {
        let tile = if scalar > 4 { tile.wide() } else { tile };
        if short { tile.rolled() } else { tile }
    };
    // 64-bit accumulators of the large tile would not stay in registers.
    let large = !short
        && scalar <= 4
        && !shape.is_small(64)
        && LARGE.fits(caps, scalar)
        && LARGE.count(shape) * 8 >= busy * 5;
    let medium = tile(MEDIUM).fits(caps, scalar) && m > 32 && n > 32;
    let least = if caps.kind == DeviceKind::Cpu { 256 } else { 128 };
    let tile = match (large, medium) {
        (true, _) => LARGE,
        (_, true) if MEDIUM.count(shape) * splits(k, least, MEDIUM.count(shape), busy) * 4 >= busy => {
            tile(MEDIUM)
        }
        _ => tile(SMALL),
    };
    // No part may be empty: a tile loads before it asks.
    let splits = even_splits(k, splits(k, least, tile.count(shape), busy), tile.k);
    Choice::Tiled { tile, splits }
}

/// `weight` is the layout of the operand with many columns.
fn gemv(shape: &Shape, weight: Layout, swapped: bool, caps: &DeviceCaps) -> Choice {
    let (few, many) = if swapped { (class_of(shape.n), shape.m.into()) } else { (shape.m, shape.n) };
    let rows = few.next_power_of_two() as u32;
    if weight.along == Axis::Outer && many >= 16 {
        let cut = sweep(&Shape { m: few, n: many, ..*shape }, weight.lanes, caps);
        return Choice::GemvAxpy { swapped, cut };
    }
    let busy = 2 * busy(caps);
    let group = u64::from(caps.target.max_invocations.min(256));
    // More rows ask for more use of each column.
    let columns = match rows {
        1 => 1,
        8.. => 4,
        _ => 2,
    };
    let subgroup = caps.target.subgroup.unwrap_or(32).clamp(8, 32);
    let steps = shape.k.div_floor(weight.lanes);
    let clusters = many.div_ceil(columns) * shape.batches;
    let width = match () {
        () if steps <= 4 => 1,
        () if steps <= 64 => 8,
        () => subgroup,
    };
    // Few long columns: the whole workgroup takes each, and then several workgroups do.
    let width = if steps > 1024 && clusters * width < busy * group { group as u32 } else { width };
    let width = if width.is_power_of_two() { width } else { width.next_power_of_two() / 2 };
    let groups = (clusters * width).div_ceil(group);
    let most = if rows <= 2 { 8 } else { 4 };
    let rounds = steps.div_floor(width);
    let at_once = match width {
        _ if caps.wants_short_kernels() => 1,
        1 => 1,
        _ => (2..=most).rev().find(|n| rounds.is_multiple_of(*n)).unwrap_or(4) as u32,
    };
    let cut = GemvConfig {
        rows,
        columns,
        width,
        group: group as u32,
        at_once,
        splits: splits(shape.k, 4096, groups, busy),
    };
    Choice::GemvDot { swapped, cut }
}

/// How a matmul of few rows is swept, columns read in runs of `run`.
pub(crate) fn sweep(shape: &Shape, run: usize, caps: &DeviceCaps) -> GemvConfig {
    let rows = shape.m.next_power_of_two() as u32;
    let wide = |width: u32| shape.n.div_ceil(width as usize * run) * shape.batches;
    if matches!(caps.kind, DeviceKind::Cpu) || caps.target.max_invocations < 256 {
        let splits = splits(shape.k, 128, wide(16), 2 * busy(caps));
        let columns = run as u32;
        let at_once = if caps.wants_short_kernels() { 1 } else { 4 };
        return GemvConfig { rows, columns, width: 16, group: 256, at_once, splits };
    }
    // Sums of an invocation stay few, so that many of them fit; a run's columns give way to rows.
    let columns = run.min((32 / rows as usize).max(2)) as u32;
    let narrow = run as u32 / columns;
    let sums = rows * columns;
    // Lines of 128 bytes, half of that where the device would not be busy; then as many invocations as it takes.
    let enough = busy(caps) / 4;
    let wide = |width: u32| shape.n.div_ceil(width * columns) * shape.batches;
    let width = if wide(8 * narrow) >= enough { 8 * narrow } else { 4 * narrow };
    let wanted = quotient(4 * busy(caps) * 128, wide(width));
    let most = match sums {
        0..=16 => 1024,
        17..=32 => 512,
        _ => 256,
    };
    // No more slices than have four indices along K each.
    let deep = (shape.k * width).div_floor(4).max(1);
    let deep = deep.next_power_of_two().div_floor(2);
    let group = number(wanted.next_power_of_two().min(deep).clamp(128, most)) as u32;
    let slices = (group / width) as usize;
    let at_once = if sums * columns <= 64 || narrow > 1 { [8, 4] } else { [4, 4] };
    let at_once = at_once.into_iter().find(|n| shape.k.is_multiple_of(slices * *n as usize)).unwrap_or(4);
    // A second dispatch costs as much as a workgroup's reading of some hundred KiB.
    let splits = splits(shape.k, 4096, wide(width), enough);
    GemvConfig { rows, columns, width, group, at_once, splits }
}
