//! The block formats: what a run of consecutive elements reads of its block, and how that becomes floats.
//!
//! A run is 8, 16, 32 or 64 elements that begin at a multiple of their number; the strided ones of 64 are four times 16,
//! 32 apart. Its bytes are asked for first and decoded
//! later, so that kernels can have the loads of several runs in flight. What comes out is bit for bit what
//! `olivine-quant` decodes.

mod bare;
pub(crate) mod bits;
mod codebook;
mod k;
mod simple;
mod strided;

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::Val;

pub(crate) use bare::Bare;

/// Bytes of a block that belong together: the scales, or the low bits of all elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Field {
    /// The first byte in the block.
    pub(crate) start: u32,
    pub(crate) bytes: u32,
}

/// Bytes that a run reads of a field of its block, or of its row where elements have no blocks.
pub(crate) struct Request<'k> {
    pub(crate) field: Field,
    /// The first, counted from the field's.
    pub(crate) at: Val<'k>,
    pub(crate) size: Size,
    /// What `at` is a multiple of.
    pub(crate) align: u32,
}

impl<'k> Request<'k> {
    /// Of the field that begins at byte `start` of a format's blocks.
    fn new(format: BlockFormat, start: u32, at: Val<'k>, size: Size, align: u32) -> Self {
        Request { field: field(format, start), at, size, align }
    }
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

/// Small integers or floats, one after another.
pub(crate) enum Quants<'k> {
    /// Four unsigned integers to a word: `width` bits of every byte from bit `shift` on, less a bias.
    Bytes {
        words: Vec<Val<'k>>,
        shift: u32,
        width: u32,
        bias: u32,
    },
    /// Four signed bytes to a word.
    Signed(Vec<Val<'k>>),
    Floats(Vec<Val<'k>>),
}

impl<'k> Quants<'k> {
    /// The low bits of bytes.
    fn bytes(words: Vec<Val<'k>>, width: u32, bias: u32) -> Self {
        Quants::Bytes { words, shift: 0, width, bias }
    }

    /// Adds more of the same kind.
    fn extend(&mut self, more: Self) {
        match (self, more) {
            (Quants::Bytes { words, .. }, Quants::Bytes { words: more, .. })
            | (Quants::Signed(words) | Quants::Floats(words), Quants::Signed(more) | Quants::Floats(more)) => {
                words.extend(more);
            }
            (mine, more) => *mine = Quants::Floats([mine.floats(), more.floats()].concat()),
        }
    }

    /// All as floats.
    fn floats(&self) -> Vec<Val<'k>> {
        match self {
            Quants::Bytes { words, shift, width, bias } => {
                words.iter().flat_map(|w| bits::bytes(*w, (*shift, *width), *bias)).collect()
            }
            Quants::Signed(words) => words.iter().flat_map(|w| bits::signed_bytes(*w)).collect(),
            Quants::Floats(values) => values.clone(),
        }
    }

    /// Four as floats, from a multiple of four on.
    fn four(&self, number: usize) -> Vec<Val<'k>> {
        match self {
            Quants::Bytes { words, shift, width, bias } => {
                bits::bytes(words[number], (*shift, *width), *bias)
            }
            Quants::Signed(words) => bits::signed_bytes(words[number]),
            Quants::Floats(values) => values[4 * number..4 * number + 4].to_vec(),
        }
    }

    /// Words of four signed bytes and what is to be subtracted from each byte; `None` of floats.
    pub(crate) fn integers(&self) -> Option<(Vec<Val<'k>>, i32)> {
        match self {
            Quants::Bytes { words, shift, width, bias } => {
                let mask = ((1u32 << *width) - 1) * 0x0101_0101;
                let of = |w: &Val<'k>| if *shift == 0 { *w & mask } else { (*w >> *shift) & mask };
                // Bytes with all bits are unsigned: half of them would be taken for negative ones.
                match width {
                    8 => Some((words.iter().map(|w| *w ^ 0x8080_8080u32).collect(), *bias as i32 - 128)),
                    _ => Some((words.iter().map(of).collect(), *bias as i32)),
                }
            }
            Quants::Signed(words) => Some((words.clone(), 0)),
            Quants::Floats(_) => None,
        }
    }
}

/// Some elements of a run: `(q·unit − zero)·scale + add` each, rounded after every step.
pub(crate) struct Group<'k> {
    pub(crate) q: Quants<'k>,
    /// A power of two.
    pub(crate) unit: f32,
    pub(crate) zero: Option<Val<'k>>,
    pub(crate) scale: Option<Val<'k>>,
    pub(crate) add: Option<Val<'k>>,
}

impl<'k> Group<'k> {
    /// Elements times a scale.
    fn scaled(q: Quants<'k>, scale: Val<'k>) -> Self {
        Group { q, unit: 1.0, zero: None, scale: Some(scale), add: None }
    }

    /// The elements as the format defines them.
    pub(crate) fn values(&self) -> Vec<Val<'k>> {
        self.q.floats().into_iter().map(|q| self.value(q)).collect()
    }

    /// Four of them, from a multiple of four on, rounded once after the scale: for those who round them to 16 bits.
    pub(crate) fn four(&self, number: usize) -> Vec<Val<'k>> {
        let value = |q: Val<'k>| match (self.scale, self.add) {
            (Some(scale), Some(add)) if self.unit == 1.0 && self.zero.is_none() => q.fma(scale, add),
            _ => self.value(q),
        };
        self.q.four(number).into_iter().map(value).collect()
    }

    fn value(&self, q: Val<'k>) -> Val<'k> {
        let q = if self.unit == 1.0 { q } else { q * self.unit };
        let q = self.zero.map_or(q, |zero| q - zero);
        let q = self.scale.map_or(q, |scale| q * scale);
        self.add.map_or(q, |add| q + add)
    }

    /// The sum of products with x, given the sum of x as well.
    pub(crate) fn dot(&self, x: &[Val<'k>], sum: Val<'k>, accumulator: Val<'k>) -> Val<'k> {
        let dot = self.q.floats().iter().zip(x).fold(sum.like(0.0), |dot, (q, x)| q.fma(*x, dot));
        self.finish(dot, sum, accumulator)
    }

    /// The sum of products with x, given that of `q` and x, and the sum of x.
    pub(crate) fn finish(&self, dot: Val<'k>, sum: Val<'k>, accumulator: Val<'k>) -> Val<'k> {
        let dot = if self.unit == 1.0 { dot } else { dot * self.unit };
        let dot = self.zero.map_or(dot, |zero| (-zero).fma(sum, dot));
        let total = self.scale.map_or_else(|| accumulator + dot, |scale| dot.fma(scale, accumulator));
        self.add.map_or(total, |add| add.fma(sum, total))
    }
}

/// Where a format's table is read.
pub(crate) trait Table<'k> {
    /// An entry of so many words.
    fn words(&self, entry: Val<'k>, count: u8) -> Vec<Val<'k>>;

    /// Whether it has what codes stand for as integers.
    fn integers(&self) -> bool;
}

/// The longest run of a format; shorter ones of 8 or 16 are there too.
pub(crate) fn longest_run(format: BlockFormat) -> u32 {
    match format {
        Q4_K | Q5_K => 64,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | IQ4_NL | IQ4_XS | MXFP4 | Q8_K => 32,
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M => 32,
        Q2_K | Q3_K | Q6_K | TQ2_0 | NVFP4 => 16,
        _ => 8,
    }
}

/// Whether a format has runs of so many elements.
pub(crate) fn has_run(format: BlockFormat, run: u32) -> bool {
    match format {
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M => run == 8 || run == 32,
        _ if has_strided_runs(format) && run == 64 => true,
        _ => run <= longest_run(format),
    }
}

/// Whether a format has runs of 64 elements that are not neighbours: every byte of its two-bit field has four of them.
pub(crate) fn has_strided_runs(format: BlockFormat) -> bool {
    matches!(format, Q2_K | Q3_K | Q6_K | TQ2_0)
}

/// How many elements of a run share a scale.
pub(crate) fn group(format: BlockFormat, run: u32) -> u32 {
    match format {
        IQ1_M => 8,
        Q2_K | Q3_K | Q6_K | TQ2_0 | IQ2_XS | IQ2_S => run.min(16),
        _ => run.min(32),
    }
}

/// The fields of a format's blocks that are read, in their order.
pub(crate) fn fields(format: BlockFormat) -> Vec<Field> {
    let ends: &[(u32, u32)] = match format {
        Q4_0 | IQ4_NL => &[(0, 2), (2, 18)],
        Q4_1 => &[(0, 4), (4, 20)],
        Q5_0 => &[(0, 2), (2, 6), (6, 22)],
        Q5_1 => &[(0, 8), (8, 24)],
        Q8_0 => &[(0, 2), (2, 34)],
        Q8_1 => &[(0, 4), (4, 36)],
        // Sums of 16 elements follow, which are not read.
        Q8_K => &[(0, 4), (4, 260)],
        MXFP4 => &[(0, 1), (1, 17)],
        NVFP4 => &[(0, 4), (4, 36)],
        Q2_K => &[(0, 16), (16, 80), (80, 84)],
        Q3_K => &[(0, 32), (32, 96), (96, 108), (108, 110)],
        Q4_K => &[(0, 16), (16, 144)],
        Q5_K => &[(0, 16), (16, 48), (48, 176)],
        Q6_K => &[(0, 128), (128, 192), (192, 208), (208, 210)],
        IQ4_XS => &[(0, 8), (8, 136)],
        TQ1_0 => &[(0, 52), (52, 54)],
        TQ2_0 => &[(0, 64), (64, 66)],
        IQ2_XXS => &[(0, 2), (2, 66)],
        IQ2_XS => &[(0, 2), (2, 66), (66, 74)],
        IQ2_S => &[(0, 2), (2, 34), (34, 66), (66, 74), (74, 82)],
        IQ3_XXS => &[(0, 2), (2, 66), (66, 98)],
        IQ3_S => &[(0, 2), (2, 66), (66, 74), (74, 106), (106, 110)],
        IQ1_S => &[(0, 2), (2, 34), (34, 50)],
        IQ1_M => &[(0, 32), (32, 48), (48, 56)],
        Q1_0 => &[(0, 2), (2, 18)],
        _ => &[],
    };
    ends.iter().map(|(start, end)| Field { start: *start, bytes: end - start }).collect()
}

/// The field of a format that begins at a byte of its block.
fn field(format: BlockFormat, start: u32) -> Field {
    let found = fields(format).into_iter().find(|f| f.start == start);
    found.unwrap_or(Field { start, bytes: format.bytes() as u32 - start })
}

/// What a run of `count` elements from `at` on reads of its block.
pub(crate) fn requests<'k>(format: BlockFormat, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
    match format {
        Q2_K | Q3_K | Q6_K | TQ2_0 if count == 64 => strided::requests(format, at),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS | TQ1_0 | TQ2_0 => k::requests(format, at, count),
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M if count == 32 => {
            codebook::requests_32(format, at)
        }
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
        Q2_K | Q3_K | Q6_K | TQ2_0 if count == 64 => strided::decode(format, read, at),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS | TQ1_0 | TQ2_0 => {
            vec![k::decode(format, read, at, count, table)]
        }
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M if count == 32 => {
            codebook::decode_32(format, read, at, table)
        }
        IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M => {
            vec![codebook::decode(format, read, at, table)]
        }
        _ => vec![simple::decode(format, read, at, count, table)],
    }
}

/// The table that a format needs, as words; another one if its elements shall be integers.
pub(crate) fn table(format: BlockFormat, integers: bool) -> Option<Vec<u32>> {
    match format {
        IQ4_NL | IQ4_XS if !integers => return Some(simple::pairs()),
        IQ4_NL | IQ4_XS | MXFP4 | NVFP4 if integers => return Some(simple::integer_pairs(format)),
        _ => {}
    }
    let bytes = olivine_quant::code_book(format)?;
    Some(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Words of an entry of a format's table.
pub(crate) fn entry_words(format: BlockFormat) -> u32 {
    if matches!(format, IQ2_XXS | IQ2_XS | IQ2_S | IQ1_S | IQ1_M) { 2 } else { 1 }
}

/// The f16 that was read as a half, as f32.
fn half<'k>(read: &[Val<'k>]) -> Val<'k> {
    read[0].unpack_half(0)
}

/// An unsigned integer as f32.
fn float(x: Val<'_>) -> Val<'_> {
    x.convert(olivine_kernel::Scalar::F32)
}
