//! How much of the problem a workgroup takes, chosen from the device's limits.

use std::fmt;

use olivine_kernel::Target;

use super::LEAST_TILES;
use super::visible::KeyTiles;

/// Invocations of a workgroup: what every device has.
pub(super) const GROUP: u32 = 128;
/// Bytes of workgroup memory to stay within where the device has more, so that several workgroups share a core.
const COMFORT: u32 = 24 << 10;
/// Groups of four output elements that an invocation accumulates for each of its rows.
const ACCUMULATORS: u32 = 4;

/// The shape of a workgroup's work: it takes `rows()` queries and walks over keys, `keys()` at a time.
///
/// Invocations stand in a grid of `row_threads()` by `columns`. One computes the scores of `rows_each` neighbouring
/// rows against every `columns`-th key, and accumulates every `columns`-th group of four output elements of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Invocations that share a row.
    pub(super) columns: u32,
    /// Rows of an invocation: 1, 2 or 4.
    pub(super) rows_each: u32,
    /// Scores of an invocation for each of its rows.
    pub(super) keys_each: u32,
    /// Groups of four head elements of q and k that are staged at a time.
    pub(super) chunk: u32,
    /// Rows of v that are staged at a time; divides `keys()`.
    pub(super) slab: u32,
    /// Steps of the inner loops that are written out at a time: 1 or 2.
    pub(super) unroll: u32,
    /// Whether the invocations of a row find their maximum by shuffles; otherwise in workgroup memory.
    pub(super) shuffle: bool,
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Rows that share keys: the queries of all heads of a kv head.
    pub(super) rows: usize,
    /// Elements of a row of q and k.
    pub(super) dim: usize,
    /// Elements of a row of v.
    pub(super) value_dim: usize,
    /// Bytes of an accumulator.
    pub(super) bytes: u32,
    /// Whether the kernel should be short.
    pub(super) short: bool,
}

impl Tile {
    /// The best tile that fits the device.
    pub(super) fn choose(need: Need, target: &Target) -> Option<Tile> {
        if target.max_invocations < GROUP {
            return None;
        }
        let budget = target.shared_bytes.min(COMFORT);
        [budget, target.shared_bytes].iter().find_map(|most| Tile::within(need, target, *most))
    }

    fn within(need: Need, target: &Target, budget: u32) -> Option<Tile> {
        let (columns, rows_each) = usual(need);
        let (most_keys, unroll) = if need.short { (2, 1) } else { (4, 2) };
        let columns = least_columns(need).max(columns);
        // Rather fewer keys or smaller chunks than values staged a few rows at a time; fewer rows last.
        for (rows_each, least_slab) in [(rows_each, 8), (rows_each, 1), (rows_each / 2, 1), (1, 1)] {
            for keys_each in [4, 2, 1].into_iter().filter(|n| *n <= most_keys) {
                let grid = Tile { columns, rows_each, keys_each, chunk: 0, slab: 0, unroll, shuffle: false };
                if let Some(tile) = grid.staged(need, target, budget, least_slab) {
                    return Some(tile);
                }
            }
        }
        None
    }

    /// All grids that are worth a measurement, as their staging fits the device.
    pub(super) fn candidates(need: Need, target: &Target) -> Vec<Tile> {
        let mut all: Vec<Tile> = Vec::new();
        if target.max_invocations < GROUP {
            return all;
        }
        let least = least_columns(need);
        for columns in [8, 16, 32].into_iter().filter(|columns| *columns >= least) {
            for (rows_each, keys_each) in [(4, 4), (4, 2), (2, 4), (2, 2), (1, 4), (1, 2)] {
                // Most rows of such a tile would be empty.
                if rows_each * (GROUP / columns) >= 4 * need.rows.max(4) as u32 {
                    continue;
                }
                let grid =
                    Tile { columns, rows_each, keys_each, chunk: 0, slab: 0, unroll: 2, shuffle: false };
                let budgets = [target.shared_bytes.min(COMFORT), target.shared_bytes];
                let staged = budgets.iter().filter_map(|most| grid.staged(need, target, *most, 8));
                for tile in staged {
                    if !all.contains(&tile) {
                        all.push(tile);
                    }
                }
            }
        }
        all
    }

    /// The grid with as much staged at a time as fits `budget`.
    fn staged(self, need: Need, target: &Target, budget: u32, least_slab: u32) -> Option<Tile> {
        let Tile { columns, rows_each, keys_each, .. } = self;
        if rows_each == 0 || (keys_each > 1 && keys_each * columns > 128) {
            return None;
        }
        let shuffle = target.subgroup.is_some_and(|s| s >= columns && GROUP.is_multiple_of(s));
        for chunk in chunks(fours(need.dim)) {
            let keys = keys_each * columns;
            for slab in (0..=keys.ilog2()).rev().map(|n| 1 << n).take_while(|s| *s >= least_slab) {
                let tile = Tile { chunk, slab, shuffle, ..self };
                if tile.shared_bytes(need) <= budget {
                    return Some(tile);
                }
            }
        }
        None
    }

    /// Invocations along the rows.
    pub(super) fn row_threads(&self) -> u32 {
        GROUP / self.columns
    }

    /// Rows of the workgroup.
    pub(super) fn rows(&self) -> u32 {
        self.row_threads() * self.rows_each
    }

    /// Keys handled at a time.
    pub(super) fn keys(&self) -> u32 {
        self.keys_each * self.columns
    }

    /// The tile as what keys are divided by.
    pub(super) fn key_tiles(&self) -> KeyTiles {
        KeyTiles { rows: self.rows(), keys: self.keys(), align: 1, least: LEAST_TILES as u32 }
    }

    /// Groups of four from one staged row of q or k to the next: odd, so that neighbours are in different banks.
    pub(super) fn stage_stride(&self) -> u32 {
        self.chunk | 1
    }

    /// Groups of four that are staged: rows of q and keys, or later rows of v.
    pub(super) fn stage_len(&self, value_dim: usize) -> u32 {
        let scores = (self.rows() + self.keys()) * self.stage_stride();
        scores.max(self.slab * fours(value_dim))
    }

    /// The stride from the weights of one key to the next key's, in elements of `rows_each` numbers.
    pub(super) fn weight_stride(&self) -> u32 {
        self.row_threads() + 1
    }

    /// Bytes of workgroup memory.
    pub(super) fn shared_bytes(&self, need: Need) -> u32 {
        let stage = self.stage_len(need.value_dim) * 4;
        let weights = self.keys() * self.weight_stride() * self.rows_each;
        let maxima = if self.shuffle { 0 } else { self.rows() * self.columns };
        // A word beside tells whether a staged value is not finite.
        (stage + weights + maxima) * need.bytes + 64
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { columns, rows_each, keys_each, chunk, slab, unroll, .. } = self;
        write!(f, "{columns}/{rows_each}x{keys_each} {chunk}+{slab}/u{unroll}")
    }
}

/// Invocations to a row, and rows of each. Few rows: more invocations to a row, unless the kernel should be short:
/// a row that stays within a subgroup needs no workgroup memory for its maximum.
fn usual(need: Need) -> (u32, u32) {
    match need.rows {
        0..=16 if need.short => (8, 1),
        _ if need.short => (8, 2),
        0..=4 => (32, 1),
        5..=8 => (32, 2),
        9..=16 => (16, 2),
        17..=32 => (16, 4),
        _ => (8, 4),
    }
}

/// Wide values: more invocations to a row, or accumulators would not stay in registers.
fn least_columns(need: Need) -> u32 {
    fours(need.value_dim).div_ceil(ACCUMULATORS).next_power_of_two().min(GROUP)
}

/// Groups of four elements.
pub(super) fn fours(elements: usize) -> u32 {
    elements.div_ceil(4) as u32
}

/// Sizes of a chunk for so many groups of four, best first: those that leave the fewest empty groups in the last
/// chunk, large before small, and small ones for small memories.
fn chunks(groups: u32) -> impl Iterator<Item = u32> {
    let most = groups.clamp(1, 8);
    let empty = move |chunk: u32| groups.next_multiple_of(chunk) - groups;
    let least = most.div_ceil(2);
    let best = (least..=most).rev().min_by_key(|c| empty(*c)).unwrap_or(most);
    let smaller = (1..=best / 2).rev().filter(move |c| best.is_multiple_of(*c));
    std::iter::once(best).chain(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(rows: usize, dim: usize, value_dim: usize) -> Need {
        Need { rows, dim, value_dim, bytes: 4, short: false }
    }

    fn subgroups(size: u32, shared_bytes: u32) -> Target {
        Target { subgroup: Some(size), shared_bytes, ..Target::plain() }
    }

    #[test]
    fn every_size_fits_the_plainest_device() {
        for rows in [1, 3, 8, 12, 30, 33, 5000] {
            for dim in 1..=512 {
                for value_dim in [dim, 1, 64, 512] {
                    let need = need(rows, dim, value_dim);
                    let tile = Tile::choose(need, &Target::plain());
                    let tile = tile.unwrap_or_else(|| panic!("{need:?} finds no tile"));
                    assert!(tile.shared_bytes(need) <= 16384, "{need:?} {tile:?}");
                    assert!(tile.keys().is_multiple_of(tile.slab));
                    let each = fours(value_dim).div_ceil(tile.columns) * tile.rows_each * 4;
                    assert!(each <= 64, "{each} accumulators for {need:?}");
                }
            }
        }
    }

    #[test]
    fn doubles_fit_devices_that_have_them() {
        for rows in [1, 8, 12, 30, 33] {
            for dim in [1, 64, 80, 128, 256, 512] {
                let need = Need { bytes: 8, ..need(rows, dim, dim) };
                assert!(Tile::choose(need, &subgroups(8, 32768)).is_some(), "{need:?}");
            }
        }
    }

    #[test]
    fn many_rows_make_square_tiles_and_few_rows_wide_ones() {
        let target = subgroups(32, 49152);
        let many = Tile::choose(need(512, 64, 64), &target).expect("a tile");
        assert_eq!((many.rows(), many.keys(), many.chunk, many.slab), (64, 32, 8, 32));
        assert!(many.shuffle);
        let one = Tile::choose(need(1, 128, 128), &target).expect("a tile");
        assert_eq!((one.rows(), one.keys(), one.columns), (4, 128, 32));
        let wide = Tile::choose(need(512, 512, 512), &target).expect("a tile");
        assert_eq!((wide.rows(), wide.columns), (16, 32));
    }

    #[test]
    fn rows_wider_than_a_subgroup_meet_in_memory() {
        let tile = Tile::choose(need(1, 64, 64), &subgroups(8, 32768)).expect("a tile");
        assert!(!tile.shuffle && tile.columns == 32);
        assert!(!Tile::choose(need(64, 64, 64), &Target::plain()).expect("a tile").shuffle);
    }

    #[test]
    fn chunks_leave_few_groups_empty() {
        let first = |groups: u32| chunks(groups).next().expect("a chunk");
        assert_eq!([1, 2, 8, 16, 20, 24, 32, 128].map(first), [1, 2, 8, 8, 5, 8, 8, 8]);
        assert_eq!(chunks(16).collect::<Vec<_>>(), [8, 4, 2, 1]);
    }
}
