//! Convolution as matrix products over tiles of output positions; patches exist for one tile at a time.
//!
//! ```text
//!   w [M/g, K] · patches [K, tile] ──▶ rows of out [M/g, positions]      K = C/g · kernel
//! ```

use super::patches::patch_row;
use super::real::Real;
use super::scratch::with_scratch;
use super::{Problem, SMALL};
use crate::kernels::product::{Grid, Matrix};
use crate::parallel;

/// Bytes of patches that stay in a second-level cache beside what the product packs.
const PATCH_BYTES: usize = 384 << 10;
/// Tiles are multiples of this: the widest micro-kernel of the product.
const LANES: usize = 64;
/// Narrower tiles read the weights too often for what they compute.
const NARROWEST: usize = 128;

/// One image, group and tile of positions.
#[derive(Clone, Copy)]
struct Tile {
    image: usize,
    group: usize,
    start: usize,
    width: usize,
}

/// Convolves any problem.
pub(crate) fn convolve<T: Real>(
    problem: &Problem<'_, T>,
    out: &mut [T],
    finish: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let positions = problem.geometry.output_len();
    let depth = problem.depth();
    let threads = if problem.work() < SMALL { 1 } else { parallel::threads() };
    let width = tile_width::<T>(positions, depth, threads);
    let tiles = positions.div_ceil(width);
    let tile = |task: usize| Tile {
        image: task / (problem.groups * tiles),
        group: task / tiles % problem.groups,
        start: task % tiles * width,
        width: width.min(positions - task % tiles * width),
    };
    let grid = Grid::new(out);
    let tasks = problem.images * problem.groups * tiles;
    if threads == 1 || tasks >= threads {
        let run = |task: usize| {
            let tile = tile(task);
            let rows = (0, problem.filters());
            if problem.geometry.is_pointwise() {
                return multiply(problem, &grid, tile, rows, pointwise(problem, tile), finish);
            }
            with_scratch(depth * tile.width, |patches: &mut [T]| {
                for (k, row) in patches.chunks_exact_mut(tile.width).enumerate() {
                    fill(problem, tile, k, row);
                }
                multiply(problem, &grid, tile, rows, packed(patches, tile), finish);
            });
        };
        if threads == 1 {
            (0..tasks).for_each(run);
        } else {
            parallel::tasks(tasks, &run);
        }
        return;
    }
    // Few tiles: threads share one tile's patches and divide its filters.
    let filters = problem.filters();
    let block = filters.div_ceil(threads).next_multiple_of(8).min(filters);
    for task in 0..tasks {
        let tile = tile(task);
        let divide = |patches: Matrix<'_, T>| {
            parallel::tasks(filters.div_ceil(block), &|b| {
                let rows = (b * block, block.min(filters - b * block));
                multiply(problem, &grid, tile, rows, patches, finish);
            });
        };
        if problem.geometry.is_pointwise() {
            divide(pointwise(problem, tile));
            continue;
        }
        with_scratch(depth * tile.width, |patches: &mut [T]| {
            let least = depth.div_ceil(threads * 2);
            parallel::grouped(patches, tile.width, least, &|k, row| fill(problem, tile, k, row));
            divide(packed(patches, tile));
        });
    }
}

/// Positions per tile: patches fit the cache, and tiles come out even over the threads.
fn tile_width<T>(positions: usize, depth: usize, threads: usize) -> usize {
    let fitting = (PATCH_BYTES / (depth.max(1) * size_of::<T>())).clamp(NARROWEST, 4096);
    let mut tiles = positions.div_ceil(fitting);
    let even = tiles.next_multiple_of(threads);
    if positions / even >= NARROWEST {
        tiles = even;
    }
    positions.div_ceil(tiles).next_multiple_of(LANES).min(positions).max(1)
}

/// Row `k` of a tile's patches.
fn fill<T: Real>(problem: &Problem<'_, T>, tile: Tile, k: usize, row: &mut [T]) {
    let kernel = problem.geometry.kernel_len();
    let plane = problem.plane(tile.image, tile.group, k / kernel);
    patch_row(&problem.geometry, plane, k % kernel, tile.start, row);
}

fn packed<T>(patches: &[T], tile: Tile) -> Matrix<'_, T> {
    Matrix::packed(patches, tile.width)
}

/// The patches of a 1×1 kernel are the operand itself.
fn pointwise<'a, T: Real>(problem: &Problem<'a, T>, tile: Tile) -> Matrix<'a, T> {
    let positions = problem.geometry.input_len();
    let channel = (tile.image * problem.groups + tile.group) * problem.channels;
    Matrix::packed(&problem.x[channel * positions + tile.start..], positions)
}

/// Filters `first..first + count` of a tile, finished.
fn multiply<T: Real>(
    problem: &Problem<'_, T>,
    grid: &Grid<'_, T>,
    tile: Tile,
    (first, count): (usize, usize),
    patches: Matrix<'_, T>,
    finish: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let (positions, depth) = (problem.geometry.output_len(), problem.depth());
    let filter = tile.group * problem.filters() + first;
    let row = |m: usize| (tile.image * problem.w_filters + filter + m) * positions + tile.start;
    if let Some(bias) = problem.bias {
        for m in 0..count {
            // Safety: tasks differ in image, group, tile or filters, and this run belongs to this task's alone.
            unsafe { grid.run(row(m), tile.width) }.fill(bias[filter + m]);
        }
    }
    let weights = Matrix::packed(&problem.w[filter * depth..], depth);
    let size = (count, tile.width, depth);
    // Safety: as above.
    unsafe {
        grid.multiply(size, row(0), positions, weights, patches, T::ONE, problem.bias.is_some());
    }
    for m in 0..count {
        // Safety: as above.
        finish(row(m), unsafe { grid.run(row(m), tile.width) });
    }
}
