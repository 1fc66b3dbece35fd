//! Copies of strided operands into packed targets.

use std::ops::Range;

use bytemuck::Pod;

use super::layout::{self, Dims, Reader};
use crate::kernels::gemm::Grid;
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::simd;

/// Elements of a task.
const TASK: usize = 64 << 10;
/// Rows and columns of a tile; a tile of any dtype and its transpose fit the first-level cache.
const TILE: usize = 32;
/// Rows or columns that are not worth a tile.
const FEW: usize = 8;

/// Copies an operand, whatever its strides, into a target of its dtype.
pub(crate) fn copy(operand: &Operand<'_>, target: &mut Target<'_>) {
    if operand.shape().has_zero() {
        return;
    }
    match operand.ty.dtype.size() {
        1 => copy_as::<u8>(operand, target),
        2 => copy_as::<u16>(operand, target),
        4 => copy_as::<u32>(operand, target),
        _ => copy_as::<u64>(operand, target),
    }
}

fn copy_as<T: Pod + Send + Sync>(operand: &Operand<'_>, target: &mut Target<'_>) {
    let (dims, readers) = layout::readers(&target.ty.shape, &[*operand]);
    let out: &mut [T] = bytemuck::cast_slice_mut(target.bytes);
    let Some(reader) = readers.first() else { return };
    match reader {
        Reader::Target => {}
        Reader::Packed(bytes) => {
            let (stream, x) =
                (size_of_val(out) >= simd::STREAM_FROM, &bytemuck::cast_slice::<u8, T>(bytes)[..out.len()]);
            parallel::chunks(out, TASK, &|i, out| {
                let x = &x[i * TASK..][..out.len()];
                if stream {
                    simd::stream_copy(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
                    simd::stream_fence();
                } else {
                    out.copy_from_slice(x);
                }
            });
        }
        Reader::Strided { bytes, strides, offset } if dims.is_transposed(strides) => {
            transpose(bytemuck::cast_slice(bytes), strides, *offset, &dims, out);
        }
        _ => parallel::chunks(out, TASK, &|i, out| reader.gather(&dims, i * TASK, out)),
    }
}

/// Copies where the last two axes are swapped in memory: tile by tile, so that every cache line is used whole.
fn transpose<T: Pod + Send + Sync>(
    from: &[T],
    strides: &[isize; 8],
    offset: usize,
    dims: &Dims,
    out: &mut [T],
) {
    let (rows, inner, step) = dims.last_two(strides);
    let bands = Bands::new(rows, inner);
    let (all, per_task) = (out.len() / (rows * inner) * bands.count(), bands.per_task());
    let grid = Grid::new(out);
    parallel::tasks(all.div_ceil(per_task), &|task| {
        for band in task * per_task..all.min((task + 1) * per_task) {
            let (matrix, (down, across)) = (band / bands.count(), bands.range(band % bands.count()));
            let first = matrix * rows * inner;
            let base = dims.position(strides, offset, first);
            if inner < FEW {
                // Columns of the result are runs of the operand.
                // Safety: bands share no element, and this one is this task's alone.
                let rows = unsafe { grid.run(first + down.start * inner, down.len() * inner) };
                for j in 0..inner {
                    let at = ((base + down.start) as isize + j as isize * step) as usize;
                    let column = rows[j..].iter_mut().step_by(inner);
                    column.zip(&from[at..at + down.len()]).for_each(|(o, x)| *o = *x);
                }
                continue;
            }
            if rows < FEW && step > 0 {
                for i in down {
                    let at = base + i + across.start * step as usize;
                    // Safety: as above.
                    let row = unsafe { grid.run(first + i * inner + across.start, across.len()) };
                    row.iter_mut().zip(from[at..].iter().step_by(step as usize)).for_each(|(o, x)| *o = *x);
                }
                continue;
            }
            for top in down.clone().step_by(TILE) {
                let height = TILE.min(down.end - top);
                for left in across.clone().step_by(TILE) {
                    let width = TILE.min(across.end - left);
                    let mut tile = [[T::zeroed(); TILE]; TILE];
                    for j in 0..width {
                        let at = ((base + top) as isize + (left + j) as isize * step) as usize;
                        tile[j][..height].copy_from_slice(&from[at..at + height]);
                    }
                    for i in 0..height {
                        // Safety: bands share no element, and this one is this task's alone.
                        let row = unsafe { grid.run(first + (top + i) * inner + left, width) };
                        for (j, o) in row.iter_mut().enumerate() {
                            *o = tile[j][i];
                        }
                    }
                }
            }
        }
    });
}

/// The division of a matrix into bands of whole tiles: of its rows, and of its columns where rows are long.
struct Bands {
    sizes: (usize, usize),
    /// Rows and columns of a band.
    band: (usize, usize),
}

impl Bands {
    fn new(rows: usize, columns: usize) -> Self {
        let wide = (TASK / rows.clamp(1, TILE)).next_multiple_of(TILE).min(columns).max(1);
        let tall = (TASK / wide).max(1).next_multiple_of(TILE).min(rows).max(1);
        Bands { sizes: (rows, columns), band: (tall, wide) }
    }

    /// Bands of a matrix.
    fn count(&self) -> usize {
        self.sizes.0.div_ceil(self.band.0) * self.sizes.1.div_ceil(self.band.1)
    }

    /// Bands worth a task: several matrices where they are small.
    fn per_task(&self) -> usize {
        (TASK / (self.band.0 * self.band.1)).max(1)
    }

    /// Rows and columns of band `i`.
    fn range(&self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.sizes.1.div_ceil(self.band.1);
        let part = |i: usize, band: usize, size: usize| i * band..size.min((i + 1) * band);
        (part(i / across, self.band.0, self.sizes.0), part(i % across, self.band.1, self.sizes.1))
    }
}

#[cfg(test)]
mod tests {
    use olivine_ir::{DType, Shape, TensorType};

    use super::*;

    #[test]
    fn transposes_of_any_sizes_and_directions_read_every_element() {
        let sizes = [(2, 3), (7, 9), (8, 8), (9, 7), (33, 65), (2, TASK + 1), (TASK + 1, 2), (3, 70_000)];
        for (rows, columns) in sizes.into_iter().chain([(33, 2049), (9, 7300), (70_000, 9), (7, TASK / 7)]) {
            for (matrices, backwards) in [(1, false), (3, false), (2, true)] {
                let numel = matrices * rows * columns;
                let data: Vec<u16> = (0..numel).map(|i| (i % 65_521) as u16).collect();
                let ty = TensorType::new(DType::I16, Shape::new(&[matrices, rows, columns]).unwrap());
                let mut x = Operand::packed(ty, bytemuck::cast_slice(&data));
                let step = rows as isize;
                x.strides[1..3].copy_from_slice(&[1, if backwards { -step } else { step }]);
                x.offset = if backwards { (columns - 1) * rows } else { 0 };
                let mut out = vec![u16::MAX; numel];
                copy(&x, &mut Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) });
                for (i, got) in out.iter().enumerate() {
                    let (m, r, c) = (i / (rows * columns), i / columns % rows, i % columns);
                    let c = if backwards { columns - 1 - c } else { c };
                    let want = data[(m * columns + c) * rows + r];
                    assert_eq!(*got, want, "{matrices} of {rows} by {columns}, {backwards}, at {i}");
                }
            }
        }
    }

    #[test]
    fn bands_cover_a_matrix_once_whatever_its_sizes() {
        let sizes = [1, 2, 31, 32, 33, 2047, 2048, 2049, TASK - 1, TASK, TASK + 1, 3 * TASK + 5, 1 << 33];
        for rows in sizes {
            for columns in sizes {
                let bands = Bands::new(rows, columns);
                let (tall, wide) = bands.band;
                assert!(tall * wide <= 2 * TASK && bands.per_task() > 0, "{rows} by {columns}");
                assert!(tall == rows || tall.is_multiple_of(TILE), "{rows} by {columns}");
                // The last band ends where the matrix does, and begins where the one before it ends.
                let (down, across) = bands.range(bands.count() - 1);
                assert_eq!((down.end, across.end), (rows, columns));
                assert_eq!((down.start % tall, across.start % wide), (0, 0), "{rows} by {columns}");
                assert!(!down.is_empty() && !across.is_empty(), "{rows} by {columns}");
            }
        }
    }
}
