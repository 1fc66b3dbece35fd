//! Elements without blocks: integers of 2, 4 and 8 bits, and floats of 8 to 32 bits.

use olivine_ir::{BlockFormat, DType, TensorType};
use olivine_kernel::{Scalar, Val};

use super::bits::{bytes, e4m3, e5m2, fields, signed_bytes};
use super::{Field, Quants, Request, Size};

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BareKind {
    U2,
    U4,
    I4,
    U8,
    I8,
    E4M3,
    E5M2,
    F16,
    BF16,
    F32,
}

/// Elements one after another, the first lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bare(pub(crate) BareKind);

impl Bare {
    /// What a weight's bytes hold, if they are not blocks.
    pub(crate) fn of(ty: &TensorType) -> Option<Bare> {
        use BareKind::{BF16, E4M3, E5M2, F16, F32, I4, I8, U2, U4, U8};
        Some(Bare(match (ty.packed, ty.dtype) {
            (None, DType::U8) => U8,
            (None, DType::I8) => I8,
            (None, DType::F16) => F16,
            (None, DType::BF16) => BF16,
            (None, DType::F32) => F32,
            (Some(BlockFormat::U2), _) => U2,
            (Some(BlockFormat::U4), _) => U4,
            (Some(BlockFormat::I4), _) => I4,
            (Some(BlockFormat::F8_E4M3), _) => E4M3,
            (Some(BlockFormat::F8_E5M2), _) => E5M2,
            _ => return None,
        }))
    }

    /// Bits of an element.
    pub(crate) fn bits(self) -> u32 {
        match self.0 {
            BareKind::U2 => 2,
            BareKind::U4 | BareKind::I4 => 4,
            BareKind::U8 | BareKind::I8 | BareKind::E4M3 | BareKind::E5M2 => 8,
            BareKind::F16 | BareKind::BF16 => 16,
            BareKind::F32 => 32,
        }
    }

    /// What a run of `count` elements from `at` on reads of its row, whose address is a multiple of `align`.
    pub(crate) fn request<'k>(self, at: Val<'k>, count: u32, align: u32) -> Request<'k> {
        let bytes = count * self.bits() / 8;
        let at = match self.bits() {
            8 => at,
            bits @ 0..8 => at / (8 / bits),
            bits => at * (bits / 8),
        };
        let field = Field { start: 0, bytes: align };
        match bytes {
            2 if align.is_multiple_of(2) => Request { field, at, size: Size::Half, align: 2 },
            _ => Request { field, at, size: Size::Words(bytes.div_ceil(4)), align: align.min(bytes) },
        }
    }

    /// Whether elements are integers.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self.0, BareKind::U2 | BareKind::U4 | BareKind::I4 | BareKind::U8 | BareKind::I8)
    }

    /// How many words of four bytes share a word of the weight: their elements take turns.
    pub(crate) fn turns(self) -> u32 {
        if self.is_integer() { 8 / self.bits() } else { 1 }
    }

    /// Integers four to a word, in turns: of 4 bits, elements 0, 2, 4 and 6 of every eight and then the others.
    pub(crate) fn integers<'k>(self, words: &[Val<'k>]) -> Quants<'k> {
        let bits = self.bits();
        let mask = ((1u32 << bits) - 1) * 0x0101_0101;
        match self.0 {
            BareKind::I8 => Quants::Signed(words.to_vec()),
            BareKind::U8 => Quants::bytes(words.to_vec(), 8, 0),
            kind => {
                let signed = kind == BareKind::I4;
                let word = |w: &Val<'k>| if signed { *w ^ 0x8888_8888u32 } else { *w };
                let of = |w: Val<'k>| (0..8 / bits).map(move |i| (w >> (i * bits)) & mask);
                let words = words.iter().map(word).flat_map(of).collect();
                Quants::bytes(words, bits, if signed { 8 } else { 0 })
            }
        }
    }

    /// Elements from words, in units of [`Bare::unit`].
    pub(crate) fn decode<'k>(self, words: &[Val<'k>], count: u32) -> Vec<Val<'k>> {
        let of = |word: &Val<'k>| match self.0 {
            BareKind::U2 => fields(*word, 0, (2, 2), count.min(16), 0),
            BareKind::U4 => fields(*word, 0, (4, 4), count.min(8), 0),
            BareKind::I4 => fields(*word ^ 0x8888_8888u32, 0, (4, 4), count.min(8), 8),
            BareKind::U8 => bytes(*word, (0, 8), 0),
            BareKind::I8 => signed_bytes(*word),
            BareKind::E4M3 => e4m3(*word),
            BareKind::E5M2 => e5m2(*word),
            BareKind::F16 => vec![word.unpack_half(0), word.unpack_half(1)],
            BareKind::BF16 => [*word << 16, *word & 0xffff_0000u32].map(|x| x.bitcast(Scalar::F32)).to_vec(),
            BareKind::F32 => vec![word.bitcast(Scalar::F32)],
        };
        let all: Vec<Val<'k>> = words.iter().flat_map(of).collect();
        all[..(count as usize).min(all.len())].to_vec()
    }

    /// The power of two that decoded elements are to be multiplied by.
    pub(crate) fn unit(self) -> f32 {
        if self.0 == BareKind::E4M3 { 256.0 } else { 1.0 }
    }
}
