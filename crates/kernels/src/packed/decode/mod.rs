//! The block formats: what a run of consecutive elements reads of its block, and how that becomes floats.
//!
//! A run is 8, 16, 32 or 64 elements that begin at a multiple of their number. Its bytes are asked for first and decoded
//! later, so that kernels can have the loads of several runs in flight. What comes out is bit for bit what
//! `olivine-quant` decodes.

mod bare;
pub(crate) mod bits;
mod codebook;
mod k;
mod simple;

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::Val;

pub(crate) use bare::Bare;

/// Bytes that a run reads of its block, or of its row where elements have no blocks.
pub(crate) struct Request<'k> {
    /// The first.
    pub(crate) at: Val<'k>,
    pub(crate) size: Size,
    /// What their address is a multiple of.
    pub(crate) align: u32,
}

/// How many bytes, and how they are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// So many words.
    Words(u32),
    /// Two bytes of a word at an even address, in the low half of a word whose upper half is undefined.
    Half,
    /// A byte; the bits above it are 0.
    Byte,
}

/// Some elements of a run: `(q·unit − zero)·scale + add` each, rounded after every step.
pub(crate) struct Group<'k> {
    pub(crate) q: Vec<Val<'k>>,
    /// A power of two.
    pub(crate) unit: f32,
    pub(crate) zero: Option<Val<'k>>,
    pub(crate) scale: Option<Val<'k>>,
    pub(crate) add: Option<Val<'k>>,
}

impl<'k> Group<'k> {
    /// Elements times a scale.
    fn scaled(q: Vec<Val<'k>>, scale: Val<'k>) -> Self {
        Group { q, unit: 1.0, zero: None, scale: Some(scale), add: None }
    }

    /// The elements as the format defines them.
    pub(crate) fn values(&self) -> Vec<Val<'k>> {
        let value = |q: &Val<'k>| {
            let q = if self.unit == 1.0 { *q } else { *q * self.unit };
            let q = self.zero.map_or(q, |zero| q - zero);
            let q = self.scale.map_or(q, |scale| q * scale);
            self.add.map_or(q, |add| q + add)
        };
        self.q.iter().map(value).collect()
    }

    /// The sum of products with x, given the sum of x as well.
    pub(crate) fn dot(&self, x: &[Val<'k>], sum: Val<'k>, accumulator: Val<'k>) -> Val<'k> {
        let dot = self.q.iter().zip(x).fold(sum.like(0.0), |dot, (q, x)| q.fma(*x, dot));
        let dot = if self.unit == 1.0 { dot } else { dot * self.unit };
        let dot = self.zero.map_or(dot, |zero| (-zero).fma(sum, dot));
        let total = self.scale.map_or_else(|| accumulator + dot, |scale| dot.fma(scale, accumulator));
        self.add.map_or(total, |add| add.fma(sum, total))
    }
}

/// Where a format's table is read.
pub(crate) trait Table<'k> {
    /// So many words from a multiple of their number on.
    fn words(&self, index: Val<'k>, count: u8) -> Vec<Val<'k>>;
}

/// What the address of a block is a multiple of.
fn block_align(format: BlockFormat) -> u32 {
    (1 << format.bytes().trailing_zeros()).min(16)
}

/// The longest run of a format; shorter ones of 8 or 16 are there too.
pub(crate) fn longest_run(format: BlockFormat) -> u32 {
    match format {
        Q4_K | Q5_K => 64,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | IQ4_NL | MXFP4 | Q8_K => 32,
        Q2_K | Q3_K | Q6_K | IQ4_XS | TQ2_0 | NVFP4 => 16,
        _ => 8,
    }
}

/// What a run of `count` elements from `at` on reads of its block.
pub(crate) fn requests<'k>(format: BlockFormat, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
    match format {
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS | TQ1_0 | TQ2_0 => k::requests(format, at, count),
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M => codebook::requests(format, at),
        _ => simple::requests(format, at, count),
    }
}

/// The elements of a run from what was read.
pub(crate) fn decode<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    count: u32,
    table: Option<&dyn Table<'k>>,
) -> Vec<Group<'k>> {
    match format {
        Q4_K | Q5_K if count == 64 => k::decode_64(format, read, at),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS | TQ1_0 | TQ2_0 => {
            vec![k::decode(format, read, at, table)]
        }
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M => {
            vec![codebook::decode(format, read, at, table)]
        }
        _ => vec![simple::decode(format, read, at, count, table)],
    }
}

/// The table that a format needs, as words.
pub(crate) fn table(format: BlockFormat) -> Option<Vec<u32>> {
    if matches!(format, IQ4_NL | IQ4_XS) {
        return Some(simple::pairs());
    }
    let bytes = olivine_quant::code_book(format)?;
    Some(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// The f16 that was read as a half, as f32.
fn half<'k>(read: &[Val<'k>]) -> Val<'k> {
    read[0].unpack_half(0)
}

/// An unsigned integer as f32.
fn float(x: Val<'_>) -> Val<'_> {
    x.convert(olivine_kernel::Scalar::F32)
}
