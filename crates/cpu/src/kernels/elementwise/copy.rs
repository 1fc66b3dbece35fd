//! Copies of strided operands into packed targets.

use bytemuck::Pod;

use super::layout::{self, Dims, Reader};
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::simd;

/// Elements of a task.
const TASK: usize = 64 << 10;
/// Rows and columns of a tile; a tile of any dtype and its transpose fit the first-level cache.
const TILE: usize = 32;

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
    // A task is a band of rows of one matrix; bands end where matrices do.
    parallel::chunks(out, rows * inner, &|matrix, out| {
        let base = dims.position(strides, offset, matrix * rows * inner);
        let band = (TASK / inner).next_multiple_of(TILE);
        parallel::chunks(out, band * inner, &|i, out| {
            let first = base + i * band;
            for top in (0..out.len() / inner).step_by(TILE) {
                let height = TILE.min(out.len() / inner - top);
                for left in (0..inner).step_by(TILE) {
                    let width = TILE.min(inner - left);
                    let mut tile = [[T::zeroed(); TILE]; TILE];
                    for j in 0..width {
                        let at = ((first + top) as isize + (left + j) as isize * step) as usize;
                        tile[j][..height].copy_from_slice(&from[at..at + height]);
                    }
                    for i in 0..height {
                        let row = &mut out[(top + i) * inner + left..][..width];
                        for (j, o) in row.iter_mut().enumerate() {
                            *o = tile[j][i];
                        }
                    }
                }
            }
        });
    });
}
