//! Which units and batch entries a workgroup computes, and how its invocations share the work.

use olivine_ir::Dim;
use olivine_program::DeviceCaps;

use crate::launch::number;
use crate::rows::GROUP;

/// Units side by side in a workgroup, each a run of them.
const UNIT_GROUPS: u32 = 4;
/// Workgroups that keep a large device busy; with fewer, tiles are made smaller.
const ENOUGH: usize = 120;
/// Invocations of a workgroup at least.
const LEAST: u32 = 64;
/// Rows of r and batch entries that one invocation multiplies at most, and groups of such entries side by side: the
/// first wins that makes enough workgroups, since there a load of either operand serves the most multiplications.
const SHAPES: [(u32, u32, u32); 6] = [(8, 8, 8), (8, 8, 4), (4, 8, 2), (4, 8, 1), (4, 4, 1), (1, 2, 1)];
/// Batch entries of an invocation at most where sums take two registers.
const WIDE_ENTRIES: u32 = 4;

/// A workgroup's tile: `unit_groups · entry_groups` positions, at each `slices` invocations that share the summed
/// axis. An invocation sums for `units` units, all their gates, and `entries` batch entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) units: u32,
    pub(super) unit_groups: u32,
    pub(super) entries: u32,
    pub(super) entry_groups: u32,
    pub(super) slices: u32,
    /// Neighbours that add their sums up by subgroup operations; the others' meet in workgroup memory.
    pub(super) within: u32,
    /// Vectors along the summed axis that every invocation has; some have one more.
    pub(super) each: u32,
}

/// What a tile is chosen for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of r to a unit.
    pub(super) gates: u32,
    pub(super) hidden: usize,
    pub(super) batch: Dim,
    pub(super) dirs: usize,
    /// Elements of one load along the summed axis.
    pub(super) lanes: u32,
    /// Bytes of a sum.
    pub(super) size: u32,
}

impl Tile {
    pub(super) fn choose(shape: &Shape, caps: &DeviceCaps) -> Tile {
        let most = caps.target.max_invocations;
        let group = GROUP.min(if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 });
        let whole_batch = number(shape.batch.next_power_of_two().min(1 << 16)) as u32;
        let most_entries = whole_batch.min(if shape.size > 4 { WIDE_ENTRIES } else { u32::MAX });
        let mut chosen = None;
        for (rows, entries, entry_groups) in SHAPES {
            let entries = entries.min(most_entries);
            let units = (rows / shape.gates).max(1);
            let tile = Tile {
                units,
                unit_groups: UNIT_GROUPS,
                entries,
                entry_groups,
                slices: 1,
                within: 1,
                each: 1,
            };
            let fits = tile.sums(shape) * shape.size <= caps.target.shared_bytes / 2;
            // Many sums to an invocation are worth it only where subgroups add them up.
            let cheap = caps.target.subgroup.is_some() || rows < 8;
            if (entry_groups > 1 && entries * entry_groups > whole_batch) || !fits || !cheap {
                continue;
            }
            chosen = Some(tile);
            if tile.groups(shape) >= ENOUGH {
                break;
            }
        }
        let mut tile = chosen.unwrap_or(Tile {
            units: 1,
            unit_groups: UNIT_GROUPS,
            entries: 1,
            entry_groups: 1,
            slices: 1,
            within: 1,
            each: 1,
        });
        let vectors = shape.hidden.div_ceil(shape.lanes as usize).next_power_of_two().min(1 << 16) as u32;
        tile.slices = (group / tile.positions()).max(1).min(vectors);
        let subgroup = caps.target.subgroup.unwrap_or(1);
        loop {
            tile.within = tile.slices.min(subgroup);
            let parts = tile.slices / tile.within;
            if parts == 1 || parts * tile.sums(shape) * shape.size <= caps.target.shared_bytes / 2 {
                break;
            }
            tile.slices /= 2;
        }
        while tile.group() < LEAST.min(group)
            && 2 * tile.parts() * tile.sums(shape) * shape.size <= caps.target.shared_bytes / 2
        {
            tile.unit_groups *= 2;
        }
        // A power of two, so that few kernels are made.
        let each = (shape.hidden / (shape.lanes * tile.slices) as usize).min(1 << 16) as u32;
        tile.each = if each == 0 { 1 } else { 1 << each.ilog2() };
        tile
    }

    /// Invocations of a workgroup.
    pub(super) fn group(&self) -> u32 {
        self.positions() * self.slices
    }

    /// Places of the tile that have sums of their own.
    pub(super) fn positions(&self) -> u32 {
        self.unit_groups * self.entry_groups
    }

    /// Units of a workgroup.
    pub(super) fn all_units(&self) -> u32 {
        self.units * self.unit_groups
    }

    /// Batch entries of a workgroup.
    pub(super) fn all_entries(&self) -> u32 {
        self.entries * self.entry_groups
    }

    /// Parts of every sum that meet in workgroup memory.
    pub(super) fn parts(&self) -> u32 {
        self.slices / self.within
    }

    /// Sums of a workgroup.
    fn sums(&self, shape: &Shape) -> u32 {
        self.all_units() * self.all_entries() * shape.gates
    }

    /// Blocks of units and of batch entries.
    pub(super) fn blocks(&self, shape: &Shape) -> (usize, Dim) {
        (shape.hidden.div_ceil(self.all_units() as usize), shape.batch.div_ceil(self.all_entries()))
    }

    /// Workgroups of all directions.
    pub(super) fn groups(&self, shape: &Shape) -> Dim {
        let (across, down) = self.blocks(shape);
        down * across * shape.dirs
    }
}

#[cfg(test)]
mod tests {
    use olivine_kernel::Target;

    use super::*;
    use olivine_program::{Addressing, DeviceKind};

    fn caps(subgroup: Option<u32>, shared_bytes: u32, max_invocations: u32) -> DeviceCaps {
        let target = Target { subgroup, shared_bytes, max_invocations, ..Target::plain() };
        DeviceCaps {
            name: String::new(),
            driver: String::new(),
            kind: DeviceKind::Discrete,
            target,
            addressing: Addressing::Pointers,
            max_groups: [65535; 3],
            max_buffer_bytes: 1 << 32,
            memory_bytes: 1 << 32,
            processors: None,
            keeps_denormals: true,
            ptx: None,
        }
    }

    fn lstm(hidden: usize, batch: usize) -> Shape {
        Shape { gates: 4, hidden, batch: batch.into(), dirs: 1, lanes: 4, size: 4 }
    }

    #[test]
    fn a_large_device_is_filled_and_larger_batches_get_larger_tiles() {
        let large = caps(Some(32), 48 << 10, 1024);
        let of = |hidden, batch| {
            let tile = Tile::choose(&lstm(hidden, batch), &large);
            (tile.all_units(), tile.all_entries(), tile.slices, number(tile.groups(&lstm(hidden, batch))))
        };
        assert_eq!(of(512, 16), (4, 16, 32, 128));
        assert_eq!(of(1024, 64), (8, 64, 8, 128));
        assert_eq!(of(512, 64), (8, 32, 16, 128));
        assert_eq!(of(512, 1), (4, 1, 64, 128));
        assert_eq!(of(256, 16), (4, 8, 64, 128));
    }

    #[test]
    fn every_tile_fits_the_device_and_covers_the_work() {
        for caps in [caps(Some(8), 16 << 10, 128), caps(None, 16 << 10, 128), caps(Some(64), 32 << 10, 1024)]
        {
            for gates in 1..=4 {
                for (lanes, size) in [(4, 4), (1, 4), (2, 8)] {
                    for (hidden, batch) in
                        [(1, 1), (1, 300), (31, 5), (33, 2), (512, 16), (4096, 7), (8, 4096)]
                    {
                        let shape = Shape { gates, hidden, batch: batch.into(), dirs: 2, lanes, size };
                        let t = Tile::choose(&shape, &caps);
                        let (across, down) = t.blocks(&shape);
                        assert!(across * t.all_units() as usize >= hidden);
                        assert!(down * t.all_entries() >= batch);
                        assert!(t.group() <= caps.target.max_invocations && t.group().is_power_of_two());
                        assert!(
                            t.parts() * t.sums(&shape) * size <= caps.target.shared_bytes,
                            "{shape:?} {t:?}"
                        );
                        assert!(t.within <= caps.target.subgroup.unwrap_or(1));
                        assert!(t.slices.is_multiple_of(t.within));
                    }
                }
            }
        }
    }
}
