//! Which kernel a product gets, by its shape, how its factors lie in memory, and the device.

use crate::caps::{DeviceCaps, DeviceKind};

use super::matrices::Blocks;
use super::problem::{Axis, Lie};

/// A workgroup's part of the product, and an invocation's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    pub(super) m: u32,
    pub(super) n: u32,
    /// Depth of a step.
    pub(super) k: u32,
    /// Rows of an invocation, a multiple of 4.
    pub(super) rows: u32,
    /// Columns of an invocation, a multiple of 4.
    pub(super) columns: u32,
}

/// The tile with the best ratio of arithmetic to memory.
pub(super) const LARGE: Tile = Tile { m: 128, n: 128, k: 16, rows: 8, columns: 8 };
/// A tile for the plainest devices and for products of a few hundred rows and columns.
pub(super) const MEDIUM: Tile = Tile { m: 64, n: 64, k: 16, rows: 8, columns: 4 };
/// A tile for small matrices, many at once or alone.
pub(super) const SMALL: Tile = Tile { m: 32, n: 32, k: 16, rows: 4, columns: 4 };

impl Tile {
    /// Scalars between the depths of a panel in workgroup memory; one vector more than the panel is wide, so that
    /// transposed stores meet different banks.
    pub(super) fn pitch(outer: u32) -> u32 {
        outer + 4
    }

    /// Invocations.
    pub(super) fn group(self) -> u32 {
        self.m * self.n / (self.rows * self.columns)
    }

    /// The tile for 64-bit scalars: half as deep.
    pub(super) fn wide(self) -> Tile {
        Tile { k: self.k / 2, ..self }
    }

    fn shared_bytes(self, scalar: u32) -> u32 {
        (Tile::pitch(self.m) + Tile::pitch(self.n)) * self.k * scalar
    }

    pub(super) fn fits(self, caps: &DeviceCaps, scalar: u32) -> bool {
        self.group() <= caps.target.max_invocations && self.shared_bytes(scalar) <= caps.target.shared_bytes
    }

    fn count(self, shape: &Shape) -> u64 {
        (shape.m.div_ceil(self.m as usize) * shape.n.div_ceil(self.n as usize) * shape.batches) as u64
    }
}

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) batches: usize,
}

/// A kernel and how it is launched. The skinny ones are for the product as it is, or for its transpose if `swapped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
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
    /// Few rows, and columns of B that are read along the summed axis: a cluster of invocations to some columns.
    Dots {
        /// Transposed.
        swapped: bool,
        /// Rows, at most as many.
        rows: usize,
        /// Invocations of a cluster.
        width: u32,
        /// Parts of the summed axis.
        splits: usize,
    },
    /// Few rows, and rows of B that are read as they lie: invocations side by side on columns.
    Sweep {
        /// Transposed.
        swapped: bool,
        /// Rows, at most as many.
        rows: usize,
        /// Parts of the summed axis.
        splits: usize,
    },
}

/// Rows up to which a product counts as skinny.
pub(super) const SKINNY: usize = 8;

/// Workgroups that keep a device busy.
pub(super) fn busy(caps: &DeviceCaps) -> u64 {
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
pub(super) fn choose(shape: &Shape, a: Lie, b: Lie, scalar: u32, caps: &DeviceCaps) -> Choice {
    let Shape { m, n, k, batches } = *shape;
    if m * n * batches == 0 {
        return Choice::Nothing;
    }
    if k == 0 {
        return Choice::Zeros;
    }
    if m.min(n) <= SKINNY {
        return if m <= n { skinny(shape, b, false, caps) } else { skinny(shape, a, true, caps) };
    }
    let busy = busy(caps);
    let tile = |tile: Tile| if scalar > 4 { tile.wide() } else { tile };
    // 64-bit accumulators of the large tile would not stay in registers.
    let large =
        scalar <= 4 && m.min(n) > 64 && LARGE.fits(caps, scalar) && LARGE.count(shape) * 8 >= busy * 5;
    let medium = tile(MEDIUM).fits(caps, scalar) && m.min(n) > 32;
    let least = if matches!(caps.kind, DeviceKind::Cpu) { 256 } else { 128 };
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
    let chunk = k.div_ceil(splits(k, least, tile.count(shape), busy)).next_multiple_of(tile.k as usize);
    Choice::Tiles { tile, splits: k.div_ceil(chunk) }
}

/// `weight` is how the factor with many columns lies.
fn skinny(shape: &Shape, weight: Lie, swapped: bool, caps: &DeviceCaps) -> Choice {
    let (few, many) = if swapped { (shape.n, shape.m) } else { (shape.m, shape.n) };
    let rows = few.next_power_of_two();
    let busy = 2 * busy(caps);
    let group = u64::from(caps.target.max_invocations.min(256));
    if weight.along == Axis::Outer && many >= 16 {
        let splits = sweep_splits(many, shape.k, shape.batches, weight.lanes, caps);
        return Choice::Sweep { swapped, rows, splits };
    }
    let subgroup = caps.target.subgroup.unwrap_or(32).clamp(8, 32);
    let steps = shape.k / weight.lanes;
    let clusters = (many.div_ceil(cluster_columns(rows)) * shape.batches) as u64;
    let width = match steps {
        0..=4 => 1,
        5..=64 => 8,
        _ => subgroup,
    };
    // Few long columns: the whole workgroup takes each, and then several workgroups do.
    let width = if steps > 1024 && clusters * u64::from(width) < busy * group { group as u32 } else { width };
    let width = if width.is_power_of_two() { width } else { width.next_power_of_two() / 2 };
    let groups = (clusters * u64::from(width)).div_ceil(group);
    Choice::Dots { swapped, rows, width, splits: splits(shape.k, 4096, groups, busy) }
}

/// Parts of the summed axis of a sweep over so many columns.
pub(super) fn sweep_splits(
    columns: usize,
    k: usize,
    batches: usize,
    lanes: usize,
    caps: &DeviceCaps,
) -> usize {
    let groups = columns.div_ceil(SWEEP_WIDTH as usize * lanes) * batches;
    splits(k, 128, groups as u64, 2 * busy(caps))
}

/// Invocations side by side on columns in a sweep.
pub(super) const SWEEP_WIDTH: u32 = 16;

/// Columns of a cluster: more rows ask for more use of each.
pub(super) fn cluster_columns(rows: usize) -> usize {
    match rows {
        1 => 1,
        8.. => 4,
        _ => 2,
    }
}
