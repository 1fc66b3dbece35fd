//! How a block of the output finds its operands' elements.

use olivine_ir::Shape;

use crate::operand::{Operand, OperandSource};

/// The output's sizes after axes that all operands step through alike are merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dims {
    sizes: [usize; 8],
    rank: usize,
}

/// How one operand is read along the output's row-major order.
#[derive(Clone, Copy)]
pub(super) enum Reader<'a> {
    /// Element for element, starting with the first byte.
    Packed(&'a [u8]),
    /// One element at every position.
    Number(&'a [u8]),
    /// By a step per merged axis.
    Strided { bytes: &'a [u8], strides: [isize; 8], offset: usize },
    /// The old contents of target 0.
    Target,
}

/// Merges the axes of a broadcast and says how each operand is read.
pub(super) fn readers<'a>(shape: &Shape, x: &[Operand<'a>]) -> (Dims, Vec<Reader<'a>>) {
    let mut steps: Vec<[isize; 8]> = x.iter().map(|o| broadcast_strides(o, shape)).collect();
    let dims = merge(shape, &mut steps);
    let packed = dims.strides();
    let readers = x.iter().zip(steps).map(|(o, strides)| {
        let size = o.ty.dtype.size();
        let bytes = match o.source {
            OperandSource::Target => return Reader::Target,
            OperandSource::Bytes(bytes) => bytes,
        };
        if strides[..dims.rank].iter().all(|s| *s == 0) {
            Reader::Number(bytes.get(o.offset * size..(o.offset + 1) * size).unwrap_or(&[]))
        } else if strides[..dims.rank] == packed[..dims.rank] {
            Reader::Packed(bytes.get(o.offset * size..).unwrap_or(&[]))
        } else {
            Reader::Strided { bytes, strides, offset: o.offset }
        }
    });
    (dims, readers.collect())
}

/// Steps through an operand along the output's axes; 0 where it is broadcast.
fn broadcast_strides(operand: &Operand<'_>, to: &Shape) -> [isize; 8] {
    let mut out = [0; 8];
    let lead = to.rank().saturating_sub(operand.shape().rank());
    for (i, (&size, &stride)) in operand.shape().iter().zip(operand.strides()).enumerate() {
        if size != 1 {
            out[lead + i] = stride;
        }
    }
    out
}

/// Drops axes of size 1 and joins neighbours that every operand crosses in one step.
fn merge(shape: &Shape, steps: &mut [[isize; 8]]) -> Dims {
    let mut dims = Dims { sizes: [1; 8], rank: 0 };
    for (axis, &size) in shape.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let last = dims.rank.wrapping_sub(1);
        let joins = dims.rank > 0 && steps.iter().all(|s| s[last] == s[axis] * size as isize);
        let to = if joins { last } else { dims.rank };
        for s in steps.iter_mut() {
            s[to] = s[axis];
        }
        dims.sizes[to] *= size;
        dims.rank = to + 1;
    }
    dims
}

impl Dims {
    /// The size of the innermost axis.
    pub(super) fn inner(&self) -> usize {
        if self.rank == 0 { 1 } else { self.sizes[self.rank - 1] }
    }

    /// True when the last axis but one is contiguous in memory and the last one is not.
    pub(super) fn is_transposed(&self, strides: &[isize; 8]) -> bool {
        self.rank >= 2 && strides[self.rank - 2] == 1 && !matches!(strides[self.rank - 1], 0 | 1)
    }

    /// The sizes of the last two axes (there must be two) and the last one's step.
    pub(super) fn last_two(&self, strides: &[isize; 8]) -> (usize, usize, isize) {
        (self.sizes[self.rank - 2], self.sizes[self.rank - 1], strides[self.rank - 1])
    }

    /// The memory position of a flat index.
    pub(super) fn position(&self, strides: &[isize; 8], offset: usize, flat: usize) -> usize {
        let at = self.coordinates(flat);
        let moved: isize = (0..self.rank).map(|i| at[i] as isize * strides[i]).sum();
        (offset as isize + moved) as usize
    }

    fn strides(&self) -> [isize; 8] {
        let mut out = [0; 8];
        let mut step = 1;
        for i in (0..self.rank).rev() {
            out[i] = step;
            step *= self.sizes[i] as isize;
        }
        out
    }

    /// The coordinates of a flat position.
    fn coordinates(&self, mut at: usize) -> [usize; 8] {
        let mut out = [0; 8];
        for i in (0..self.rank).rev() {
            out[i] = at % self.sizes[i];
            at /= self.sizes[i];
        }
        out
    }
}

impl<'a> Reader<'a> {
    /// The memory that [`Reader::direct`]'s positions are in.
    pub(super) fn bytes(&self) -> &'a [u8] {
        match *self {
            Reader::Packed(bytes) | Reader::Number(bytes) | Reader::Strided { bytes, .. } => bytes,
            Reader::Target => &[],
        }
    }

    /// True if blocks that stay within the innermost axis are cheaper to read than others.
    pub(super) fn prefers_rows(&self) -> bool {
        matches!(self, Reader::Strided { .. })
    }

    /// The byte position of a block that is in memory element for element.
    pub(super) fn direct(&self, dims: &Dims, start: usize, len: usize, size: usize) -> Option<usize> {
        match self {
            Reader::Packed(_) => Some(start * size),
            Reader::Strided { strides, offset, .. } => {
                let (inner, last) = (dims.inner(), dims.rank - 1);
                if strides[last] != 1 || start % inner + len > inner {
                    return None;
                }
                Some(dims.position(strides, *offset, start) * size)
            }
            Reader::Number(_) | Reader::Target => None,
        }
    }

    /// Copies a block's elements into `out`, whatever the strides.
    pub(super) fn gather<T: bytemuck::Pod>(&self, dims: &Dims, start: usize, out: &mut [T]) {
        match self {
            Reader::Packed(bytes) => {
                let all: &[T] = bytemuck::cast_slice(bytes);
                out.copy_from_slice(&all[start..start + out.len()]);
            }
            Reader::Number(bytes) => {
                if let Some(x) = bytemuck::cast_slice::<u8, T>(bytes).first() {
                    out.fill(*x);
                }
            }
            Reader::Strided { bytes, strides, offset } => {
                gather_runs(bytemuck::cast_slice(bytes), strides, *offset, dims, start, out);
            }
            Reader::Target => {}
        }
    }
}

/// Walks the runs along the innermost axis that make up a block.
fn gather_runs<T: Copy>(
    from: &[T],
    strides: &[isize; 8],
    offset: usize,
    dims: &Dims,
    start: usize,
    mut out: &mut [T],
) {
    let (last, inner) = (dims.rank - 1, dims.inner());
    let step = strides[last];
    let mut at = dims.coordinates(start);
    let mut base = offset as isize + (0..last).map(|i| at[i] as isize * strides[i]).sum::<isize>();
    let mut column = at[last];
    loop {
        let len = out.len().min(inner - column);
        let (run, rest) = out.split_at_mut(len);
        out = rest;
        let first = (base + column as isize * step) as usize;
        match step {
            1 => run.copy_from_slice(&from[first..first + len]),
            0 => run.fill(from[first]),
            _ => {
                let mut position = first as isize;
                for o in run {
                    *o = from[position as usize];
                    position += step;
                }
            }
        }
        if out.is_empty() {
            return;
        }
        column = 0;
        for i in (0..last).rev() {
            at[i] += 1;
            base += strides[i];
            if at[i] < dims.sizes[i] {
                break;
            }
            base -= strides[i] * dims.sizes[i] as isize;
            at[i] = 0;
        }
    }
}
