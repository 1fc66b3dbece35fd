//! Caches of packed blocks: rows that become blocks, and blocks that become rows again.

use half::{bf16, f16};
use olivine_ir::op::KvAppend;
use olivine_ir::{BlockFormat, DType};

use super::float::{Acc, Real};
use crate::operand::{Operand, Target, row_major};
use crate::simd::half::f16_to_f32;
use crate::simd::{Kernel, run};

const FORMAT: BlockFormat = KvAppend::FORMAT;

/// Rows of blocks as numbers, one row after another.
pub(super) struct DecodeRows<'a, A> {
    pub(super) blocks: &'a [u8],
    /// The first byte of the first row, and bytes from row to row.
    pub(super) start: usize,
    pub(super) stride: isize,
    /// Elements of a row.
    pub(super) dim: usize,
    pub(super) out: &'a mut [A],
}

impl<A: Acc> Kernel for DecodeRows<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let DecodeRows { blocks, start, stride, dim, out } = self;
        let (size, bytes) = (FORMAT.elements(), FORMAT.bytes());
        for (i, out) in out.chunks_exact_mut(dim).enumerate() {
            let at = (start as isize + i as isize * stride) as usize;
            let row = &blocks[at..at + dim / size * bytes];
            for (block, out) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(size)) {
                let scale = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
                for (x, q) in out.iter_mut().zip(&block[2..]) {
                    *x = A::of_f32(f32::from(*q as i8) * scale);
                }
            }
        }
    }
}

/// A row as blocks.
struct EncodeRow<'a> {
    row: &'a [f32],
    blocks: &'a mut [u8],
}

impl Kernel for EncodeRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        olivine_quant::encode_q8_0(self.row, self.blocks);
    }
}

/// Rows `[.., .., .., dim]` as blocks from a byte of a packed target on, whose outer dimensions they have.
pub(super) fn append(rows: &Operand<'_>, target: &mut Target<'_>, start: usize) {
    match rows.ty.dtype {
        DType::F16 => encode::<f16>(rows, target, start),
        DType::BF16 => encode::<bf16>(rows, target, start),
        _ => encode::<f32>(rows, target, start),
    }
}

fn encode<T: Real<Acc = f32>>(rows: &Operand<'_>, target: &mut Target<'_>, start: usize) {
    let (dims, to) = (*rows.shape(), row_major(&target.ty.shape));
    let (data, dim) = (rows.elements::<T>(), dims[3]);
    let bytes = dim / FORMAT.elements() * FORMAT.bytes();
    let mut row = vec![0.0f32; dim];
    for (a, b, c) in (0..dims[0]).flat_map(|a| {
        (0..dims[1]).flat_map(move |b| (0..dims[2]).map(move |c| (a as isize, b as isize, c as isize)))
    }) {
        let from = rows.offset as isize + a * rows.strides[0] + b * rows.strides[1] + c * rows.strides[2];
        if rows.strides[3] == 1 {
            T::widen(&data[from as usize..from as usize + dim], &mut row);
        } else {
            for (i, x) in row.iter_mut().enumerate() {
                *x = data[(from + i as isize * rows.strides[3]) as usize].wide();
            }
        }
        let at = start + (a * to[0] + b * to[1] + c * to[2]) as usize;
        run(EncodeRow { row: &row, blocks: &mut target.bytes[at..at + bytes] });
    }
}
