//! The shape of a fold: which dimensions stay, which fall together, and how the work is cut.

use crate::launch::number;
use crate::rows::BUSY;
use crate::walk::Walk;
use olivine_ir::Dim;
use std::cmp::Ordering;

/// Free and reduced dimensions of an operand, each in the order of memory and merged where they can be.
#[derive(Clone, Debug)]
pub(crate) struct Folded {
    /// Strides of the source and of the results.
    pub(crate) free: Walk,
    /// Strides of the source.
    pub(crate) reduced: Walk,
    /// Where the source begins.
    pub(crate) offset: Dim,
    /// Elements that go into each result, over all steps.
    pub(crate) elements: Dim,
}

/// How each fold is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    /// Whether each is in one piece; else there may be several parts.
    pub(crate) is_whole: bool,
    /// Parts of one fold; each is a workgroup's.
    pub(crate) parts: Dim,
    /// Elements of a part; the last may have fewer.
    pub(crate) chunk: Dim,
}

impl Split {
    /// Folds of `n` elements in one piece.
    pub(crate) fn whole(n: Dim) -> Self {
        Split { is_whole: true, parts: Dim::ONE, chunk: n }
    }
}

/// Elements of a workgroup's part at least.
const PART: usize = 4096;

/// How a source may be loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// Elements of a vector load at most.
    pub(super) lanes: usize,
    /// Bytes of an element.
    pub(super) bytes: usize,
}

/// Invocations of a workgroup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// As many as suit most work.
    pub(super) group: u32,
    /// As many as there may be, where they exchange by subgroups; else the same.
    pub(super) most: u32,
}

impl Folded {
    pub(crate) fn new(dims: &[Dim], strides: &[Dim], offset: Dim, axes: &[usize]) -> Self {
        // Results are packed over the free dimensions.
        let mut packed = vec![Dim::ZERO; dims.len()];
        let mut stride = Dim::ONE;
        for d in (0..dims.len()).rev().filter(|d| !axes.contains(d)) {
            packed[d] = stride;
            stride *= dims[d];
        }
        // The order of elements within a fold is free, and so is that of the work: memory's order is the best.
        let in_order = |reduced: bool| {
            let mut of: Vec<usize> = (0..dims.len()).filter(|d| axes.contains(d) == reduced).collect();
            of.sort_by(|a, b| farthest_first(strides[*a], strides[*b]));
            of
        };
        let pick = |of: &[usize], from: &[Dim]| of.iter().map(|d| from[*d]).collect::<Vec<Dim>>();
        let sizes = |of: &[usize]| pick(of, dims);
        let (free, reduced) = (in_order(false), in_order(true));
        let reduced_walk = Walk::new(&sizes(&reduced), &[pick(&reduced, strides)]);
        let elements = reduced_walk.numel();
        Folded {
            free: Walk::new(&sizes(&free), &[pick(&free, strides), pick(&free, &packed)]),
            reduced: reduced_walk,
            offset,
            elements,
        }
    }

    /// A packed operand's.
    pub(crate) fn packed(dims: &[Dim], axes: &[usize]) -> Self {
        let mut strides = vec![Dim::ONE; dims.len()];
        for d in (1..dims.len()).rev() {
            strides[d - 1] = strides[d] * dims[d];
        }
        Folded::new(dims, &strides, Dim::ZERO, axes)
    }

    /// Results.
    pub(crate) fn results(&self) -> Dim {
        self.free.numel()
    }

    /// Elements of the source in each fold.
    pub(crate) fn count(&self) -> Dim {
        self.reduced.numel()
    }

    /// Whether neighbouring invocations follow a reduced dimension; else they follow a free one.
    pub(crate) fn along_rows(&self) -> bool {
        let reduced = self.reduced.strides[0].last().and_then(|s| distance(*s));
        let free = self.free.strides[0].last().and_then(|s| distance(*s));
        let nearer = match (reduced, free) {
            (Some(reduced), Some(free)) => reduced <= free,
            (reduced, _) => reduced.is_some() || free.is_none(),
        };
        nearer && self.reduced.numel() > 1
    }

    /// Elements of a vector load along rows, and whether some are left over at a row's end: that may be where a row is
    /// one run of memory.
    pub(super) fn row_lanes(&self, vector: usize) -> (usize, bool) {
        let [strides] = self.reduced.strides.as_slice() else { return (1, false) };
        let outer = &strides[..strides.len().saturating_sub(1)];
        let starts = self.free.strides[0].iter().chain(outer).all(|s| s.is_multiple_of(vector));
        let aligned = starts && self.offset.is_multiple_of(vector) && strides.last().is_some_and(|s| *s == 1);
        let whole = self.reduced.dims.last().is_some_and(|d| d.is_multiple_of(vector));
        match (aligned, whole, self.reduced.dims.len()) {
            (true, true, _) => (vector, false),
            (true, false, 1) => (vector, true),
            _ => (1, false),
        }
    }

    /// Elements of a vector load along columns.
    pub(super) fn column_lanes(&self, vector: usize) -> usize {
        let strides = &self.free.strides[0];
        let outer = &strides[..strides.len().saturating_sub(1)];
        let starts = self.reduced.strides[0].iter().chain(outer).all(|s| s.is_multiple_of(vector));
        let whole = self.free.dims.last().is_some_and(|d| d.is_multiple_of(vector));
        let run = strides.last().is_some_and(|s| *s == 1);
        if starts && whole && run && self.offset.is_multiple_of(vector) { vector } else { 1 }
    }

    /// The block for a fold along columns: one that folds them whole, if the device is busy with that.
    pub(super) fn block(&self, access: Access, room: Room) -> Block {
        let (results, count, lanes) = (self.results(), self.count(), self.column_lanes(access.lanes));
        let block = Block::new(results, count, lanes, room.group);
        let groups = results.div_ceil(block.columns());
        if groups * 4 >= BUSY || room.most <= room.group {
            return block;
        }
        Block::tall(results, count, lanes, access.bytes, room.most).unwrap_or(block)
    }

    /// How to cut folds so that there is work for a large device.
    pub(super) fn split(&self, access: Access, room: Room) -> Split {
        if !self.along_rows() && self.block(access, room).group() > room.group {
            return Split::whole(self.count());
        }
        self.split_among(BUSY, access.lanes, room.group)
    }

    /// How to cut folds into work for so many workgroups.
    pub(crate) fn split_among(&self, busy: usize, vector: usize, group: u32) -> Split {
        let (results, count) = (self.results(), self.count());
        let (columns, step) = if self.along_rows() {
            let tile = Strip::new(results, count, self.row_lanes(vector).0, group);
            if tile.width < group {
                return Split::whole(count);
            }
            (1, tile.step())
        } else {
            let tile = Block::new(results, count, self.column_lanes(vector), group);
            (tile.columns(), tile.step())
        };
        let groups = results.div_ceil(columns);
        let least = (PART / columns).max(step);
        if groups * 2 > busy || count < 2 * least {
            return Split::whole(count);
        }
        let parts = Dim::from(busy).div_floor(groups.max(1)).min(count.div_floor(least));
        let chunk = count.div_ceil(parts.max(1)).next_multiple_of(step);
        Split { is_whole: false, parts: count.div_ceil(chunk.max(1)), chunk }
    }

    /// The fold of the states that parts leave in scratch: by result and part along rows, by part and result along
    /// columns, results in the order of the work.
    pub(super) fn of_parts(&self, parts: Dim) -> Folded {
        let (result, part) = if self.along_rows() { (parts, Dim::ONE) } else { (Dim::ONE, self.results()) };
        let mut free = self.free.clone();
        let mut stride = result;
        for d in (0..free.dims.len()).rev() {
            free.strides[0][d] = stride;
            stride *= free.dims[d];
        }
        let reduced = Walk::unmerged(&[parts], &[vec![part]]);
        Folded { free, reduced, offset: Dim::ZERO, elements: self.elements }
    }
}

/// The stride of a dimension; none of a broadcast one, which belongs on the outside.
fn distance(stride: Dim) -> Option<Dim> {
    (stride.as_constant() != Some(0)).then(|| stride.abs())
}

/// The order of two dimensions by their strides, the farthest first.
fn farthest_first(a: Dim, b: Dim) -> Ordering {
    match (distance(a), distance(b)) {
        (Some(a), Some(b)) if a.structural() == b.structural() => Ordering::Equal,
        (Some(a), Some(b)) if a > b => Ordering::Less,
        (Some(a), Some(b)) if a == b => Ordering::Equal,
        (Some(_), _) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => Ordering::Equal,
    }
}

/// Loads of one invocation before their elements are joined.
pub(super) const UNROLL: usize = 4;

/// Rows over clusters of invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) group: u32,
    /// Invocations to a row.
    pub(super) width: u32,
    pub(super) lanes: usize,
    /// Loads of one round.
    pub(super) unroll: usize,
    /// Rows of a cluster: short ones are loaded together.
    pub(super) rows: u32,
}

/// Rows of a cluster where there are many short ones.
const TOGETHER: u32 = 4;

impl Strip {
    pub(super) fn new(rows: Dim, count: Dim, lanes: usize, group: u32) -> Self {
        let vectors = count.div_ceil(lanes).max(1);
        // Neighbours read neighbouring vectors, as far as a row goes.
        let width = vectors.div_ceil(UNROLL).max(vectors.min(32)).next_power_of_two().min(group);
        let width = number(width).max(1);
        let unroll = number(vectors.div_ceil(width).next_power_of_two().min(UNROLL));
        let groups = rows.div_ceil(group as usize / width);
        let many = unroll == 1 && groups >= 2 * BUSY;
        Strip { group, width: width as u32, lanes, unroll, rows: if many { TOGETHER } else { 1 } }
    }

    /// Elements of a cluster's round.
    pub(super) fn step(&self) -> usize {
        self.width as usize * self.lanes * self.unroll
    }

    /// Clusters of a workgroup.
    pub(super) fn clusters(&self) -> u32 {
        self.group / self.width
    }
}

/// Workgroups, and invocations of all of them, that keep a large device nearly busy.
const LEAST_GROUPS: usize = 120;
const LEAST_INVOCATIONS: usize = 96 << 10;

/// Columns over a block of invocations: `across` neighbours own columns, `down` of each share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) across: u32,
    pub(crate) down: u32,
    pub(crate) lanes: usize,
    pub(crate) unroll: usize,
}

impl Block {
    pub(crate) fn new(results: Dim, count: Dim, lanes: usize, group: u32) -> Self {
        let all = results.div_ceil(lanes).max(1).next_power_of_two();
        // Few sharers where there are few elements to share, many where there are few columns.
        let useful = count.div_floor(UNROLL).max(1).next_power_of_two();
        let wanted = Dim::from(BUSY * group as usize).div_ceil(all).next_power_of_two();
        let down = Dim::from(group).div_floor(all.min(32)).min(useful).min(wanted).min(group);
        let down = number(down.max(1)).max(1);
        let across = number(all.min(group as usize / down));
        let unroll = if count >= UNROLL * down { UNROLL } else { 1 };
        Block { across: across as u32, down: down as u32, lanes, unroll }
    }

    /// A block of few columns with many sharers, for folds of long columns in one step; `None` where too few
    /// invocations would come together to keep a large device busy.
    fn tall(results: Dim, count: Dim, lanes: usize, bytes: usize, most: u32) -> Option<Self> {
        let all = results.div_ceil(lanes).max(1);
        let useful = count.div_floor(UNROLL).max(1).next_power_of_two().div_floor(2);
        // Lines of memory first, halves of them if need be.
        [128, 64].into_iter().find_map(|run: usize| {
            let across = (run / (lanes * bytes)).max(1);
            let groups = all.div_ceil(across);
            if groups < LEAST_GROUPS {
                return None;
            }
            let down = number(useful.min(most as usize / across).max(1));
            let busy = groups * (across * down) >= LEAST_INVOCATIONS;
            let unroll = if count >= UNROLL * down { UNROLL } else { 1 };
            busy.then_some(Block { across: across as u32, down: down as u32, lanes, unroll })
        })
    }

    /// Invocations.
    pub(crate) fn group(&self) -> u32 {
        self.across * self.down
    }

    /// Columns of a workgroup.
    pub(crate) fn columns(&self) -> usize {
        self.across as usize * self.lanes
    }

    /// Elements of a column's round.
    pub(crate) fn step(&self) -> usize {
        self.down as usize * self.unroll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes<const N: usize>(numbers: [usize; N]) -> [Dim; N] {
        numbers.map(Dim::from)
    }

    fn packed(dims: &[usize], axes: &[usize]) -> Folded {
        let dims: Vec<Dim> = dims.iter().map(|size| Dim::from(*size)).collect();
        Folded::packed(&dims, axes)
    }

    fn strided<const N: usize>(dims: [usize; N], strides: [usize; N], offset: usize, axis: usize) -> Folded {
        Folded::new(&sizes(dims), &sizes(strides), offset.into(), &[axis])
    }

    #[test]
    fn memory_decides_whether_invocations_follow_rows_or_columns() {
        assert!(packed(&[5, 9], &[1]).along_rows());
        assert!(!packed(&[5, 9], &[0]).along_rows());
        assert!(!packed(&[5, 9], &[]).along_rows());
        assert!(packed(&[5, 9], &[0, 1]).along_rows());
        // A transposed operand: its last axis is the outer one in memory.
        assert!(!strided([9, 5], [1, 9], 0, 1).along_rows());
        assert!(strided([9, 5], [1, 9], 0, 0).along_rows());
    }

    #[test]
    fn dimensions_merge_in_the_order_of_memory() {
        let folded = packed(&[2, 3, 4, 5], &[2, 3]);
        assert_eq!((folded.free.dims(), folded.reduced.dims()), (vec![6], vec![20]));
        let folded = strided([4, 2, 3], [1, 12, 4], 0, 0);
        assert_eq!(folded.free.dims, [6]);
        let folded = strided([3, 2, 7], [1, 3, 6], 0, 2);
        assert_eq!(folded.free.dims(), [2, 3]);
        assert_eq!((folded.free.strides(0), folded.free.strides(1)), (vec![3, 1], vec![1, 2]));
    }

    #[test]
    fn vectors_are_loaded_only_where_every_row_or_column_begins_at_one() {
        assert_eq!(packed(&[5, 64], &[1]).row_lanes(4), (4, false));
        assert_eq!(packed(&[5, 63], &[1]).row_lanes(4), (1, false));
        assert_eq!(packed(&[5, 63], &[0, 1]).row_lanes(4), (4, true));
        assert_eq!(strided([63], [1], 2, 0).row_lanes(4), (1, false));
        assert_eq!(packed(&[5, 64], &[0]).column_lanes(4), 4);
        assert_eq!(packed(&[5, 63], &[0]).column_lanes(4), 1);
    }

    #[test]
    fn few_long_folds_are_split_and_many_are_not() {
        let access = Access { lanes: 4, bytes: 4 };
        let split =
            |dims: &[usize], axes: &[usize]| packed(dims, axes).split(access, Room { group: 256, most: 256 });
        assert_eq!(split(&[4096, 4096], &[1]).parts, 1);
        let numbers = |Split { parts, chunk, .. }: Split| (number(parts), number(chunk));
        assert_eq!(numbers(split(&[1, 65537], &[1])), (9, 8192));
        assert_eq!(numbers(split(&[1 << 26], &[0])), (1024, 65536));
        assert_eq!(numbers(split(&[4096, 4096], &[0])), (32, 128));
        assert_eq!(split(&[1000, 64], &[1]).parts, 1);
        assert_eq!(split(&[3, 0], &[1]).parts, 1);
        for (dims, axes) in [([3, 100_003], [1]), ([100_003, 3], [0]), ([70_000, 40], [0])] {
            let (parts, chunk) = numbers(split(&dims, &axes));
            let n = dims[axes[0]];
            assert!(parts > 1 && parts * chunk >= n && (parts - 1) * chunk < n, "{dims:?} {parts} {chunk}");
        }
    }

    #[test]
    fn blocks_give_few_columns_many_sharers() {
        let of = |r: usize, c: usize| Block::new(r.into(), c.into(), 1, 256);
        assert_eq!((of(4096, 4096).across, of(4096, 4096).down), (32, 8));
        assert_eq!((of(3, 65537).across, of(3, 65537).down), (4, 64));
        assert_eq!((of(1 << 20, 1).across, of(1 << 20, 1).down), (256, 1));
        assert_eq!((of(1, 0).across, of(1, 0).down), (1, 1));
    }
}
