//! Fused regions of a larger kernel: the epilogue of a matmul or convolution, the prologue of a norm.

use bytemuck::Pod;
use olivine_ir::{DType, Shape, TensorType};

use super::exec::{Main, Scratch, Sweep};
use super::layout::{self, Dims, Reader};
use super::program::Program;
use crate::operand::{Operand, OperandSource, row_major};

/// A program whose input 0 is handed over run by run, the other inputs being read through their strides.
///
/// A run is any contiguous range of the full result's row-major elements. Threads may apply one epilogue to different runs
/// at once; runs of a few hundred elements upwards are efficient.
pub(crate) struct FusedRegion<'a> {
    program: &'a Program,
    readers: Vec<Reader<'a>>,
    dims: Dims,
    numel: usize,
}

impl<'a> FusedRegion<'a> {
    /// `extra` are the region's inputs after the first, broadcast to `shape`, the full result's.
    pub(crate) fn new(program: &'a Program, extra: &[Operand<'a>], shape: &Shape) -> Self {
        let dtype = program.inputs.first().copied().unwrap_or(DType::F32);
        let ty = TensorType::new(dtype, *shape);
        let main =
            Operand { ty, strides: row_major(shape), offset: 0, source: OperandSource::Target, packed: None };
        let operands: Vec<Operand<'a>> = std::iter::once(main).chain(extra.iter().copied()).collect();
        let (dims, readers) = layout::readers(shape, &operands);
        FusedRegion { program, readers, dims, numel: shape.numel() }
    }

    /// Computes the run that starts at element `start`; `main` holds input 0's dtype, `out` the region's result's.
    pub(crate) fn apply<T: Pod, U: Pod>(&self, start: usize, main: &[T], out: &mut [U]) {
        let bytes = bytemuck::cast_slice(main);
        self.run(start, bytes.len() / self.main_size(), Main::Bytes(bytes), bytemuck::cast_slice_mut(out));
    }

    /// As [`FusedRegion::apply`] for an f16 or bf16 (or f32) input 0 given in f32: it is rounded to its dtype first.
    pub(crate) fn apply_wide<U: Pod>(&self, start: usize, main: &[f32], out: &mut [U]) {
        self.run(start, main.len(), Main::Wide(main), bytemuck::cast_slice_mut(out));
    }

    /// As [`FusedRegion::apply`] where input 0 is in the target's bytes, its dtype being as wide as the result's.
    pub(crate) fn apply_in_place<T: Pod>(&self, start: usize, run: &mut [T]) {
        let len = size_of_val(run) / self.main_size();
        self.run(start, len, Main::Target, bytemuck::cast_slice_mut(run));
    }

    /// Bytes of an element of input 0.
    fn main_size(&self) -> usize {
        self.program.inputs.first().map_or(1, |dtype| dtype.size())
    }

    fn run(&self, start: usize, len: usize, main: Main<'_>, out: &mut [u8]) {
        let sweep = Sweep::new(self.program, &self.readers, &self.dims, self.numel, None);
        Scratch::with(|scratch| sweep.run(start, len, Some(main), &mut [out], scratch));
    }
}
