//! Copies between a few planes and one run of their elements in turn: channels first and channels last. Runs go
//! through workgroup memory, so that both sides are read and written along themselves.

use olivine_ir::Dim;
use olivine_kernel::{Access, Builder, Shared, Val};

use super::cells::{Cell, Cells};
use super::copy::StridedCopy;
use crate::launch::{Launch, number};
use crate::site::{Site, linear_group};
use crate::walk::Walk;

/// Planes at most; more fill the tiles of [`transpose`](super::transpose).
const MOST: usize = 7;

/// Positions of a plane that are worth a workgroup.
const LEAST: usize = 256;

/// The axes of such a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    /// The dimension of few planes.
    few: usize,
    /// The dimension of their positions.
    long: usize,
    /// The side, 0 where elements come from and 1 where they go, on which the planes' elements are interleaved.
    run: usize,
}

/// The axes of a copy, if it is of this kind.
pub(crate) fn axes(walk: &Walk) -> Option<Axes> {
    let to = walk.dims.len().checked_sub(1)?;
    let from = (0..to).find(|d| walk.strides[0][*d].as_constant() == Some(1))?;
    // Planes are written out one by one: how many there are must be a number.
    let few = |d: usize| walk.dims[d].as_constant().is_some_and(|n| (2..=MOST as i64).contains(&n));
    let (few, long, run) = match (few(from), few(to)) {
        (true, false) => (from, to, 0),
        (false, true) => (to, from, 1),
        _ => return None,
    };
    let in_turn = walk.strides[run][long] == walk.dims[few] && walk.strides[run][few] == 1;
    let planes = walk.strides[1 - run][long] == 1;
    (in_turn && planes && walk.dims[long] >= LEAST).then_some(Axes { few, long, run })
}

/// Positions of a workgroup.
fn positions(planes: usize, bytes: usize) -> u32 {
    let narrow = if planes <= 3 { 1024 } else { 512 };
    if bytes == 8 { narrow / 2 } else { narrow }
}

/// Whether the device has the workgroup memory for it.
pub(crate) fn fits(walk: &Walk, axes: Axes, bytes: usize, site: &Site<'_>) -> bool {
    let planes = number(walk.dims[axes.few]);
    let held = positions(planes, bytes) as usize * planes * bytes.max(4);
    held <= site.caps.target.shared_bytes as usize
}

/// Emits the copy of elements of `bytes` bytes; the axes come from [`axes`].
pub(crate) fn emit(
    bytes: usize,
    m: &StridedCopy,
    walk: &Walk,
    axes: Axes,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Axes { few, long, run } = axes;
    let cells = Cells::new(bytes, site.caps);
    let (planes, length) = (number(walk.dims[few]), walk.dims[long]);
    let tile = positions(planes, bytes);
    let elements = tile * planes as u32;

    let k = site.builder("interleave", site.group_size(256));
    let l = Launch::new(&k);
    let source = cells.bind(&l, "x", Access::Read, m.from.memory);
    let sink = cells.bind(&l, "y", Access::Write, m.to.memory);
    let long_size = l.size("length", length);
    let plane_stride = l.stride("plane_stride", walk.strides[1 - run][few]);
    let tiles = length.div_ceil(tile);
    let tiles_long = l.size("tiles", tiles);
    let rest: Vec<usize> = (0..walk.dims.len()).filter(|d| *d != few && *d != long).collect();
    let of = |values: &[Dim]| rest.iter().map(|d| values[*d]).collect::<Vec<Dim>>();
    let dims: Vec<Dim> = rest.iter().map(|d| walk.dims[*d]).collect();
    let batch = Walk::new(&dims, &[of(&walk.strides[0]), of(&walk.strides[1])]);
    let batches = l.size("batches", batch.numel());
    let offsets = [m.from.offset, m.to.offset];
    let walker = batch.declare(&l, &offsets);
    let (elem, words) = cells.shared();
    let memory: Vec<_> = (0..words).map(|_| k.shared(elem, 1, elements)).collect();

    let aligned = |side: usize, more: &[Dim]| {
        let fits = |lanes: &usize| {
            let starts = batch.strides[side].iter().all(|s| s.is_multiple_of(*lanes));
            let whole = more.iter().chain([&offsets[side]]).all(|n| n.is_multiple_of(*lanes));
            *lanes <= cells.most_lanes() && starts && whole
        };
        [4, 2].into_iter().find(fits).unwrap_or(1)
    };
    let stride = walk.strides[1 - run][few];
    let (run_lanes, plane_lanes) = (aligned(run, &[length * planes]), aligned(1 - run, &[length, stride]));
    let number = linear_group(&k);
    let (first, batch_number) = (number % tiles_long * tile, number / tiles_long);
    let start = walker.at(batch_number);
    let tile = Tile {
        k: &k,
        planes: planes as u32,
        positions: tile,
        run_lanes,
        plane_lanes,
        there: batch_number.lt(batches),
        left: long_size - first,
        run: start[run] + first * planes as u32,
        plane: start[1 - run] + first,
        plane_stride,
        memory,
    };
    if run == 0 {
        tile.along_run(|at, index| tile.put(at, 1, &source.load_many(index, run_lanes)));
        k.barrier();
        tile.along_planes(|at, index| sink.store(index, &tile.get(at, tile.planes, plane_lanes)));
    } else {
        tile.along_planes(|at, index| tile.put(at, tile.planes, &source.load_many(index, plane_lanes)));
        k.barrier();
        tile.along_run(|at, index| sink.store(index, &tile.get(at, 1, run_lanes)));
    }
    let moved = 2 * walk.numel() * bytes;
    drop(tile);
    let bound = l.done();
    site.dispatch(k, bound, tiles * batch.numel(), (0, moved))
}

/// A workgroup's part of the positions; memory holds their elements in turn.
struct Tile<'k> {
    k: &'k Builder,
    planes: u32,
    positions: u32,
    /// Cells of one access along the run, and along a plane.
    run_lanes: usize,
    plane_lanes: usize,
    /// Whether there is such a part.
    there: Val<'k>,
    /// Positions from its first to the last of all.
    left: Val<'k>,
    /// Where it begins in the run, and in the first plane.
    run: Val<'k>,
    plane: Val<'k>,
    plane_stride: Val<'k>,
    memory: Vec<Shared<'k>>,
}

impl<'k> Tile<'k> {
    /// Every access along the run: places in memory and in the buffer.
    fn along_run(&self, access: impl Fn(Val<'k>, Val<'k>)) {
        let end = self.left * self.planes;
        self.over(self.positions * self.planes, self.run_lanes, |at| {
            self.k.if_(self.there & at.lt(end), || access(at, self.run + at));
        });
    }

    /// Every access along the planes, likewise; the stride between neighbours of a plane is the number of planes.
    fn along_planes(&self, access: impl Fn(Val<'k>, Val<'k>)) {
        for plane in 0..self.planes {
            let start = self.plane + self.plane_stride * plane;
            self.over(self.positions, self.plane_lanes, |at| {
                self.k.if_(self.there & at.lt(self.left), || access(at * self.planes + plane, start + at));
            });
        }
    }

    /// Shares `count` cells, a multiple of `lanes`, out among the workgroup.
    fn over(&self, count: u32, lanes: usize, access: impl Fn(Val<'k>)) {
        let (k, items) = (self.k, count / lanes as u32);
        for first in (0..items).step_by(k.group() as usize) {
            let item = k.local_index() + first;
            let work = || access(item * lanes);
            if first + k.group() <= items { work() } else { k.if_(item.lt(items), work) }
        }
    }

    fn put(&self, at: Val<'k>, apart: u32, cells: &[Cell<'k>]) {
        for (i, cell) in cells.iter().enumerate() {
            for (memory, value) in self.memory.iter().zip(&cell.0) {
                memory.store(at + i as u32 * apart, *value);
            }
        }
    }

    fn get(&self, at: Val<'k>, apart: u32, count: usize) -> Vec<Cell<'k>> {
        let cell = |i: usize| Cell(self.memory.iter().map(|m| m.load(at + i as u32 * apart)).collect());
        (0..count).map(cell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(dims: &[usize], from: &[i64], to: &[i64]) -> Option<Axes> {
        axes(&Walk::new(dims, &[from.to_vec(), to.to_vec()]))
    }

    #[test]
    fn few_planes_are_interleaved_and_taken_apart() {
        assert_eq!(of(&[3, 1000], &[1, 3], &[1000, 1]), Some(Axes { few: 0, long: 1, run: 0 }));
        assert_eq!(of(&[1000, 3], &[1, 1000], &[3, 1]), Some(Axes { few: 1, long: 0, run: 1 }));
        assert_eq!(
            of(&[5, 1000, 3], &[3000, 1, 1000], &[3000, 3, 1]),
            Some(Axes { few: 2, long: 1, run: 1 })
        );
        assert_eq!(of(&[3, 100], &[1, 3], &[100, 1]), None, "too short");
        assert_eq!(of(&[3, 1000], &[1, 4], &[1000, 1]), None, "elements between");
        assert_eq!(of(&[30, 1000], &[1, 30], &[1000, 1]), None, "enough for tiles");
    }
}
