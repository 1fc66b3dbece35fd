//! Blocks with one scale, and NVFP4. The low four bits of 16 bytes (8 of NVFP4) are the first half of a block, the high
//! four bits the second.

use olivine_ir::BlockFormat::{self, *};
use olivine_ir::half::f16;
use olivine_kernel::{Scalar, Val};
use olivine_quant::IQ4_VALUES;

use super::bits::{all_nibbles, bytes, e2m1, signed_bytes, spread};
use super::{Group, Request, Size, Table, block_align, half};

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
    let (k, block) = (at.builder(), block_align(format));
    let head = |at: u32, size: Size, align: u32| Request { at: k.u32(at), size, align: align.min(block) };
    // Elements of four bits are in bytes of both halves; a run of both reads each byte once.
    let nibbles = |first: u32, half: u32| {
        let (from, words) = if count > half { (k.u32(0), half / 4) } else { (at % half, count / 4) };
        let align = (1 << first.trailing_zeros()).min(4 * words).min(block);
        Request { at: from + first, size: Size::Words(words), align }
    };
    let bytes =
        |first: u32| Request { at: at + first, size: Size::Words(count / 4), align: first.min(block) };
    match format {
        Q4_0 | IQ4_NL => vec![head(0, Size::Half, 2), nibbles(2, 16)],
        Q4_1 => vec![head(0, Size::Words(1), 4), nibbles(4, 16)],
        Q5_0 => vec![head(0, Size::Half, 2), head(2, Size::Words(1), 2), nibbles(6, 16)],
        Q5_1 => vec![head(0, Size::Words(2), 8), nibbles(8, 16)],
        Q8_0 => vec![head(0, Size::Half, 2), bytes(2)],
        Q8_1 => vec![head(0, Size::Words(1), 4), bytes(4)],
        Q1_0 => vec![head(0, Size::Half, 2), Request { at: at / 8u32 + 2u32, size: Size::Byte, align: 1 }],
        MXFP4 => vec![head(0, Size::Byte, 1), nibbles(1, 16)],
        _ => {
            let group = at / 16u32;
            let quants = Request { at: group * 8u32 + 4u32, size: Size::Words(2), align: 4 };
            vec![Request { at: group, size: Size::Byte, align: 1 }, quants]
        }
    }
}

/// Words whose bytes have the elements in their low four bits; the bits above are others'.
fn nibbles<'k>(words: &[Val<'k>], at: Val<'k>, count: u32, half: u32) -> Vec<Val<'k>> {
    if count > half {
        return words.iter().copied().chain(words.iter().map(|w| *w >> 4)).collect();
    }
    // 4 in the second half.
    let shift = (at & half) >> (half.trailing_zeros() - 2);
    words.iter().map(|w| *w >> shift).collect()
}

pub(super) fn decode<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    count: u32,
    table: Option<&dyn Table<'k>>,
) -> Group<'k> {
    let four = |words: &[Val<'k>]| nibbles(words, at, count, 16);
    let all = |words: Vec<Val<'k>>, width: u32, bias: u32| {
        words.into_iter().flat_map(|w| bytes(w, width, bias)).collect::<Vec<_>>()
    };
    // The fifth bits are those of one word, in the order of elements.
    let five = |words: &[Val<'k>], high: Val<'k>| {
        let high = if count == 32 { high } else { high >> at };
        let with = |(i, w): (u32, Val<'k>)| (w & 0x0f0f_0f0fu32) | (spread(high >> (4 * i)) << 4);
        (0u32..).zip(four(words)).map(with).collect::<Vec<_>>()
    };
    let four_bits = |words: &[Val<'k>], bias: u32| match count {
        32 => all_nibbles(words, bias).concat(),
        _ => all(four(words), 4, bias),
    };
    match format {
        Q4_0 => Group::scaled(four_bits(&read[1], 8), half(&read[0])),
        Q4_1 => Group {
            add: Some(read[0][0].unpack_half(1)),
            ..Group::scaled(four_bits(&read[1], 0), half(&read[0]))
        },
        Q5_0 => Group::scaled(all(five(&read[2], read[1][0]), 5, 16), half(&read[0])),
        Q5_1 => Group {
            add: Some(read[0][0].unpack_half(1)),
            ..Group::scaled(all(five(&read[1], read[0][1]), 5, 0), half(&read[0]))
        },
        Q8_0 | Q8_1 => Group::scaled(read[1].iter().flat_map(|w| signed_bytes(*w)).collect(), half(&read[0])),
        Q1_0 => {
            let bits = read[1][0];
            // Twice the bit, less 1.
            let words = [bits, bits >> 4].map(|bits| spread(bits) << 1);
            Group::scaled(all(words.to_vec(), 2, 1), half(&read[0]))
        }
        IQ4_NL => Group::scaled(by_pairs(&four(&read[1]), table), half(&read[0])),
        MXFP4 => fp4(&four(&read[1]), e8m0_half(read[0][0])),
        _ => fp4(&nibbles(&read[1], at, count, 8), e4m3_half(read[0][0])),
    }
}

/// Floats of 4 bits, times twice the scale that is given.
fn fp4<'k>(words: &[Val<'k>], half_scale: Val<'k>) -> Group<'k> {
    let q = words.iter().flat_map(|w| e2m1(*w)).collect();
    Group { unit: 32768.0, ..Group::scaled(q, half_scale) }
}

/// Half of the power of two that an e8m0 byte stands for.
fn e8m0_half(x: Val<'_>) -> Val<'_> {
    let k = x.builder();
    let bits = x.lt(2u32).select(k.u32(0x0020_0000) << (x & 1u32), (x - 1u32) << 23);
    bits.bitcast(Scalar::F32)
}

/// Half of an unsigned e4m3; the code of NaN is 0, and the sign counts for nothing.
fn e4m3_half(x: Val<'_>) -> Val<'_> {
    let k = x.builder();
    let half = ((x & 0x7fu32) << 7).unpack_half(0) * 128.0f32;
    x.eq(0x7fu32).select(k.f32(0.0), half)
}

/// What two codes of IQ4 stand for, as two f16, the first code in the low bits of the index.
pub(super) fn pairs() -> Vec<u32> {
    let value = |code: u32| u32::from(f16::from_f32(f32::from(IQ4_VALUES[code as usize & 15])).to_bits());
    (0..256).map(|codes| value(codes) | value(codes >> 4) << 16).collect()
}

/// What the codes in the low four bits of bytes stand for.
pub(super) fn by_pairs<'k>(words: &[Val<'k>], table: Option<&dyn Table<'k>>) -> Vec<Val<'k>> {
    let pair = |index: Val<'k>| {
        let found = table.map_or_else(|| vec![index], |table| table.words(index, 1));
        [found[0].unpack_half(0), found[0].unpack_half(1)]
    };
    let four = |word: &Val<'k>| {
        let codes = *word & 0x0f0f_0f0fu32;
        let codes = codes | (codes >> 4);
        [pair(codes & 0xffu32), pair((codes >> 16) & 0xffu32)].concat()
    };
    words.iter().flat_map(four).collect()
}
