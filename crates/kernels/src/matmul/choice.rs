//! Which kernel a product gets, by its shape, how its factors lie in memory, and the device.

use olivine_program::{DeviceCaps, DeviceKind};

use crate::matmul::candidates::whole_parts;
use crate::matmul::coop::blocks::Blocks;
use crate::matmul::problem::{Axis, Lie};
use crate::matmul::small_m::coop::Narrow;
use crate::matmul::split_f32;
use crate::matmul::split_f32::small_m;
use crate::matmul::stream_k::Shares;

/// A workgroup's part of the product, and an invocation's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Depth of a step.
    pub(crate) k: u32,
    /// Rows of an invocation, a multiple of 4.
    pub(crate) rows: u32,
    /// Columns of an invocation, a multiple of 4.
    pub(crate) columns: u32,
    /// Depths of a step that are written out; the step is a loop over so many at a time. Divides `k`.
    pub(crate) unroll: u32,
}

/// The tile with the best ratio of arithmetic to memory.
pub(crate) const LARGE: Tile = Tile { m: 128, n: 128, k: 16, rows: 8, columns: 8, unroll: 16 };
/// A tile for the plainest devices and for products of a few hundred rows and columns.
pub(crate) const MEDIUM: Tile = Tile { m: 64, n: 64, k: 16, rows: 8, columns: 4, unroll: 16 };
/// A tile for small matrices, many at once or alone.
pub(crate) const SMALL: Tile = Tile { m: 32, n: 32, k: 16, rows: 4, columns: 4, unroll: 16 };

impl Tile {
    /// Scalars between the depths of a panel in workgroup memory; one vector more than the panel is wide, so that
    /// transposed stores meet different banks.
    pub(crate) fn pitch(outer: u32) -> u32 {
        outer + 4
    }

    /// Invocations.
    pub(crate) fn group(self) -> u32 {
        self.m * self.n / (self.rows * self.columns)
    }

    /// The tile for 64-bit scalars: half as deep.
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

    pub(crate) fn count(self, shape: &Shape) -> u64 {
        (shape.m.div_ceil(self.m as usize) * shape.n.div_ceil(self.n as usize) * shape.batches) as u64
    }
}

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) batches: usize,
}

/// A kernel and how it is launched. The skinny ones are for the product as it is, or for its transpose if `swapped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// There is no result.
    Nothing,
    /// The sum has no terms.
    Zeros,
    /// Tiles in workgroup memory; the summed axis in `splits` parts.
    Tiles {
        /// The tile.
        tile: Tile,
        /// Parts of the summed axis.
        splits: usize,
    },
    /// Cooperative matrices; the summed axis in `splits` parts.
    Matrices {
        /// The blocks.
        blocks: Blocks,
        /// Parts of the summed axis.
        splits: usize,
    },
    /// Cooperative matrices; the last blocks shared by all workgroups.
    Shared {
        /// The blocks.
        blocks: Blocks,
        /// Which are whole, and how the rest is shared.
        shares: Shares,
    },
    /// Some dozen rows of halves by cooperative matrices.
    Narrow(Narrow),
    /// Three products of cooperative matrices of f16.
    Triple(split_f32::Config),
    /// The same for few rows by stored columns, without workgroup memory.
    Lanes(small_m::Cut),
    /// Few rows, and columns of B that are read along the summed axis: a cluster of invocations to some columns.
    Dots {
        /// Transposed.
        swapped: bool,
        /// How it is cut up.
        cut: Skinny,
    },
    /// Few rows, and rows of B that are read as they lie: invocations side by side on columns.
    Sweep {
        /// Transposed.
        swapped: bool,
        /// How it is cut up.
        cut: Skinny,
    },
}

/// How a skinny product is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skinny {
    /// Rows, at most as many; a power of two.
    pub(crate) rows: u32,
    /// Columns of a cluster of dots; of an invocation in a sweep, a divisor of the longest run. A power of two.
    pub(crate) columns: u32,
    /// Invocations of a cluster of dots; those side by side in a sweep. A power of two.
    pub(crate) width: u32,
    /// Invocations of a workgroup, where the device has so many; a power of two.
    pub(crate) group: u32,
    /// Loads of B that are under way at once in every invocation.
    pub(crate) at_once: u32,
    /// Parts of the summed axis.
    pub(crate) splits: usize,
}

impl Choice {
    /// The choice for a product of pairs of columns: whole sums, and both of a pair in one invocation.
    pub(crate) fn of_pairs(self) -> Choice {
        match self {
            Choice::Tiles { tile, .. } => Choice::Tiles { tile, splits: 1 },
            Choice::Matrices { blocks, .. } => Choice::Matrices { blocks, splits: 1 },
            Choice::Triple(config) => Choice::Triple(split_f32::Config { splits: 1, ..config }),
            Choice::Sweep { swapped: false, cut } if (cut.width * cut.columns).is_multiple_of(2) => {
                Choice::Sweep { swapped: false, cut: Skinny { splits: 1, ..cut } }
            }
            Choice::Dots { .. } | Choice::Sweep { .. } => Choice::Tiles { tile: SMALL, splits: 1 },
            none => none,
        }
    }
}

/// Rows up to which a product counts as skinny.
pub(crate) const SKINNY: usize = 8;
/// The same where long rows of a large factor are read as they lie.
const SWEPT: usize = 16;
/// Columns and depths that make a factor large.
const LONG: usize = 512;

/// Workgroups that keep a device busy.
pub(crate) fn busy(caps: &DeviceCaps) -> u64 {
    match caps.kind {
        DeviceKind::Cpu => 16,
        DeviceKind::Integrated => 64,
        _ => 256,
    }
}

/// Parts of the summed axis, each at least `least` long, such that the device is busy.
fn splits(k: usize, least: usize, groups: u64, busy: u64) -> usize {
    let wanted = (busy / groups.max(1)).max(1) as usize;
    wanted.min(k / least).clamp(1, 64)
}

/// Chooses; `a` and `b` say how the factors lie, `scalar` is the size of an accumulator in bytes.
pub(crate) fn choose(shape: &Shape, a: Lie, b: Lie, scalar: u32, caps: &DeviceCaps) -> Choice {
    let Shape { m, n, k, batches } = *shape;
    if m * n * batches == 0 {
        return Choice::Nothing;
    }
    if k == 0 {
        return Choice::Zeros;
    }
    let along = if m <= n { b.along } else { a.along };
    let swept = along == Axis::Outer && m.max(n) >= LONG && k >= LONG && scalar <= 4;
    let most = if swept && !matches!(caps.kind, DeviceKind::Cpu) { SWEPT } else { SKINNY };
    if m.min(n) <= most {
        return if m <= n { skinny(shape, b, false, caps) } else { skinny(shape, a, true, caps) };
    }
    let busy = busy(caps);
    let short = caps.wants_short_kernels_for((m * n * batches).saturating_mul(k));
    let tile = |tile: Tile| {
        let tile = if scalar > 4 { tile.wide() } else { tile };
        if short { tile.rolled() } else { tile }
    };
    // 64-bit accumulators of the large tile would not stay in registers.
    let large = !short
        && scalar <= 4
        && m.min(n) > 64
        && LARGE.fits(caps, scalar)
        && LARGE.count(shape) * 8 >= busy * 5;
    let medium = tile(MEDIUM).fits(caps, scalar) && m.min(n) > 32;
    let least = if caps.kind == DeviceKind::Cpu { 256 } else { 128 };
    let tile = match (large, medium) {
        (true, _) => LARGE,
        (_, true)
            if (MEDIUM.count(shape) * splits(k, least, MEDIUM.count(shape), busy) as u64) * 4 >= busy =>
        {
            tile(MEDIUM)
        }
        _ => tile(SMALL),
    };
    // No part may be empty: a tile loads before it asks.
    let splits = whole_parts(k, splits(k, least, tile.count(shape), busy), tile.k);
    Choice::Tiles { tile, splits }
}

/// `weight` is how the factor with many columns lies.
fn skinny(shape: &Shape, weight: Lie, swapped: bool, caps: &DeviceCaps) -> Choice {
    let (few, many) = if swapped { (shape.n, shape.m) } else { (shape.m, shape.n) };
    let rows = few.next_power_of_two() as u32;
    if weight.along == Axis::Outer && many >= 16 {
        let cut = sweep(&Shape { m: few, n: many, ..*shape }, weight.lanes, caps);
        return Choice::Sweep { swapped, cut };
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
    let steps = shape.k / weight.lanes;
    let clusters = (many.div_ceil(columns as usize) * shape.batches) as u64;
    let width = match steps {
        0..=4 => 1,
        5..=64 => 8,
        _ => subgroup,
    };
    // Few long columns: the whole workgroup takes each, and then several workgroups do.
    let width = if steps > 1024 && clusters * u64::from(width) < busy * group { group as u32 } else { width };
    let width = if width.is_power_of_two() { width } else { width.next_power_of_two() / 2 };
    let groups = (clusters * u64::from(width)).div_ceil(group);
    let most = if rows <= 2 { 8 } else { 4 };
    let rounds = steps / width as usize;
    let at_once = match width {
        1 => 1,
        _ => (2..=most).rev().find(|n| rounds.is_multiple_of(*n)).unwrap_or(4) as u32,
    };
    let cut = Skinny {
        rows,
        columns,
        width,
        group: group as u32,
        at_once: if caps.wants_short_kernels() { 1 } else { at_once },
        splits: splits(shape.k, 4096, groups, busy),
    };
    Choice::Dots { swapped, cut }
}

/// How a product of few rows is swept, columns read in runs of `run`.
pub(crate) fn sweep(shape: &Shape, run: usize, caps: &DeviceCaps) -> Skinny {
    let rows = shape.m.next_power_of_two() as u32;
    let wide = |width: u32| (shape.n.div_ceil(width as usize * run) * shape.batches) as u64;
    if matches!(caps.kind, DeviceKind::Cpu) || caps.target.max_invocations < 256 {
        let splits = splits(shape.k, 128, wide(16), 2 * busy(caps));
        let columns = run as u32;
        let at_once = if caps.wants_short_kernels() { 1 } else { 4 };
        return Skinny { rows, columns, width: 16, group: 256, at_once, splits };
    }
    // Sums of an invocation stay few, so that many of them fit; a run's columns give way to rows.
    let columns = run.min((32 / rows as usize).max(2)) as u32;
    let narrow = run as u32 / columns;
    let sums = rows * columns;
    // Lines of 128 bytes, half of that where the device would not be busy; then as many invocations as it takes.
    let enough = busy(caps) / 4;
    let wide = |width: u32| (shape.n.div_ceil((width * columns) as usize) * shape.batches) as u64;
    let width = if wide(8 * narrow) >= enough { 8 * narrow } else { 4 * narrow };
    let wanted = 4 * busy(caps) * 128 / wide(width).max(1);
    let most = match sums {
        0..=16 => 1024,
        17..=32 => 512,
        _ => 256,
    };
    // No more slices than have four depths each.
    let deep = (shape.k as u64 * u64::from(width) / 4).max(1);
    let group = wanted.next_power_of_two().min(deep.next_power_of_two() / 2).clamp(128, most) as u32;
    let slices = (group / width) as usize;
    let at_once = if sums * columns <= 64 || narrow > 1 { [8, 4] } else { [4, 4] };
    let at_once = at_once.into_iter().find(|n| shape.k.is_multiple_of(slices * *n as usize)).unwrap_or(4);
    // A second dispatch costs as much as a workgroup's reading of some hundred KiB.
    let splits = splits(shape.k, 4096, wide(width), enough);
    Skinny { rows, columns, width, group, at_once, splits }
}
