//! A packed weight with its scales and zero points, read where they are.

use half::{bf16, f16};
use olivine_ir::op::Scaling;
use olivine_ir::{BlockFormat, DType};

use crate::operand::Operand;
use crate::simd::half::{widen_bf16, widen_f16};

/// Floats of an operand, each of which becomes f32 as it is read.
#[derive(Clone, Copy)]
pub(super) enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'a> Floats<'a> {
    pub(super) fn new(x: &Operand<'a>) -> Self {
        match x.ty.dtype {
            DType::F16 => Floats::F16(x.slice()),
            DType::BF16 => Floats::Bf16(x.slice()),
            _ => Floats::F32(x.slice()),
        }
    }

    #[inline(always)]
    pub(super) fn at(&self, i: usize) -> f32 {
        match self {
            Floats::F32(x) => x[i],
            Floats::F16(x) => x[i].to_f32_const(),
            Floats::Bf16(x) => x[i].to_f32(),
        }
    }
}

/// Where the zero points of blocks are.
#[derive(Clone, Copy)]
enum Zeros<'a> {
    /// One for all blocks.
    All(f32),
    Floats(Floats<'a>),
    Signed(&'a [u8]),
    Unsigned(&'a [u8]),
    /// Rows of whole bytes, of so many bytes.
    Packed(BlockFormat, &'a [u8], usize),
}

/// A packed weight by rows.
pub(super) struct Weight<'a> {
    /// How the bytes of a row encode elements; plain integers or floats where absent.
    pub(super) format: Option<BlockFormat>,
    pub(super) dtype: DType,
    pub(super) bytes: &'a [u8],
    /// Bytes and elements of a row.
    pub(super) row_bytes: usize,
    pub(super) columns: usize,
    /// Elements that share a scale; 0 without scales.
    pub(super) block: usize,
    /// Scales of a row.
    blocks: usize,
    scales: Floats<'a>,
    zeros: Zeros<'a>,
}

impl<'a> Weight<'a> {
    /// A weight and the scales and zero points after it.
    pub(super) fn new(w: &Operand<'a>, scaling: Scaling, operands: &[Operand<'a>]) -> Self {
        let last = |dims: &[usize]| dims.last().copied().unwrap_or(0);
        let row_bytes = last(w.ty.shape.dims()) * w.ty.dtype.size();
        let columns = last(w.ty.elements().dims());
        let scales = if scaling.block > 0 { Floats::new(&operands[0]) } else { Floats::F32(&[]) };
        let zeros = match operands.get(1).filter(|_| scaling.zero) {
            None => Zeros::All(scaling.offset as f32),
            Some(z) => match (z.ty.packed, z.ty.dtype) {
                (Some(format), _) => Zeros::Packed(format, z.slice(), last(z.ty.shape.dims())),
                (None, DType::I8) => Zeros::Signed(z.slice()),
                (None, DType::U8) => Zeros::Unsigned(z.slice()),
                _ => Zeros::Floats(Floats::new(z)),
            },
        };
        Weight {
            format: w.ty.packed,
            dtype: w.ty.dtype,
            bytes: match w.ty.dtype.size() {
                4 => bytemuck::cast_slice(w.slice::<u32>()),
                2 => bytemuck::cast_slice(w.slice::<u16>()),
                _ => w.slice(),
            },
            row_bytes,
            columns,
            block: scaling.block,
            blocks: if scaling.block > 0 { columns.div_ceil(scaling.block) } else { 0 },
            scales,
            zeros,
        }
    }

    /// The scale and the zero point of a block of a row.
    #[inline(always)]
    pub(super) fn scaling(&self, row: usize, block: usize) -> (f32, f32) {
        let at = row * self.blocks + block;
        (self.scales.at(at), self.zero(row, block, at))
    }

    #[inline(always)]
    fn zero(&self, row: usize, block: usize, at: usize) -> f32 {
        match self.zeros {
            Zeros::All(zero) => zero,
            Zeros::Floats(x) => x.at(at),
            Zeros::Signed(x) => f32::from(x[at] as i8),
            Zeros::Unsigned(x) => f32::from(x[at]),
            Zeros::Packed(BlockFormat::U4, x, row_bytes) => {
                f32::from(x[row * row_bytes + block / 2] >> (4 * (block % 2)) & 15)
            }
            Zeros::Packed(format, x, row_bytes) => {
                let (elements, mut some) = (format.elements(), [0.0; 256]);
                let from = row * row_bytes + block / elements * format.bytes();
                decode(Some(format), DType::U8, &x[from..][..format.bytes()], &mut some[..elements]);
                some[block % elements]
            }
        }
    }

    /// Elements of a row from `first` on, which begins a block of the format.
    pub(super) fn decode(&self, row: usize, first: usize, into: &mut [f32]) {
        let (elements, bytes) = self.format.map_or((1, self.dtype.size()), |f| (f.elements(), f.bytes()));
        let from = row * self.row_bytes + first / elements * bytes;
        let len = into.len() / elements * bytes;
        decode(self.format, self.dtype, &self.bytes[from..][..len], into);
        let mut done = 0;
        while self.block > 0 && done < into.len() {
            let at = first + done;
            let run = (self.block - at % self.block).min(into.len() - done);
            let (scale, zero) = self.scaling(row, at / self.block);
            into[done..done + run].iter_mut().for_each(|x| *x = (*x - zero) * scale);
            done += run;
        }
    }
}

/// Bytes as the numbers that they encode.
fn decode(format: Option<BlockFormat>, dtype: DType, bytes: &[u8], into: &mut [f32]) {
    match (format, dtype) {
        (Some(format), _) => {
            // The sizes are those of one type.
            let decoded = olivine_quant::decode(format, bytes, into);
            debug_assert!(decoded.is_ok(), "rows are whole blocks");
        }
        (None, DType::I8) => into.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from(*b as i8)),
        (None, DType::F16) => widen_f16(bytemuck::cast_slice(bytes), into),
        (None, DType::BF16) => widen_bf16(bytemuck::cast_slice(bytes), into),
        (None, DType::F32) => into.copy_from_slice(bytemuck::cast_slice(bytes)),
        (None, _) => into.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from(*b)),
    }
}
