//! Blocks with one scale, and NVFP4. The low four bits of 16 bytes (8 of NVFP4) are the first half of a block, the high
//! four bits the second.

use olivine_ir::BlockFormat::{self, *};
use olivine_ir::half::f16;
use olivine_kernel::{Scalar, Val};
use olivine_quant::IQ4_VALUES;

use super::bits::{e2m1, spread};
use super::{Group, Quants, Request, Size, Table, half};

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
    let k = at.builder();
    let of = |start, at, size, align| Request::new(format, start, at, size, align);
    let head = |start: u32, size: Size| of(start, k.u32(0), size, 16);
    // Elements of four bits are in bytes of both halves; a run of both reads each byte once.
    let nibbles = |start: u32, half: u32| {
        let (from, words) = if count > half { (k.u32(0), half / 4) } else { (at % half, count / 4) };
        of(start, from, Size::Words(words), (4 * words).min(16))
    };
    let bytes = |start: u32| of(start, at, Size::Words(count / 4), count.min(16));
    match format {
        Q4_0 | IQ4_NL => vec![head(0, Size::Half), nibbles(2, 16)],
        Q4_1 => vec![head(0, Size::Words(1)), nibbles(4, 16)],
        Q5_0 => vec![head(0, Size::Half), head(2, Size::Words(1)), nibbles(6, 16)],
        Q5_1 => vec![head(0, Size::Words(2)), nibbles(8, 16)],
        Q8_0 => vec![head(0, Size::Half), bytes(2)],
        Q8_1 => vec![head(0, Size::Words(1)), bytes(4)],
        Q1_0 => vec![head(0, Size::Half), of(2, at / 8u32, Size::Byte, 1)],
        MXFP4 => vec![head(0, Size::Byte), nibbles(1, 16)],
        _ => {
            let group = at / 16u32;
            vec![of(0, group, Size::Byte, 1), of(4, group * 8u32, Size::Words(2), 8)]
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
    // The fifth bits are those of one word, in the order of elements.
    let five = |words: &[Val<'k>], high: Val<'k>| {
        let high = if count == 32 { high } else { high >> at };
        let with = |(i, w): (u32, Val<'k>)| (w & 0x0f0f_0f0fu32) | (spread(high >> (4 * i)) << 4);
        (0u32..).zip(four(words)).map(with).collect::<Vec<_>>()
    };
    let four_bits = |words: &[Val<'k>], bias: u32| Quants::bytes(four(words), 4, bias);
    match format {
        Q4_0 => Group::scaled(four_bits(&read[1], 8), half(&read[0])),
        Q4_1 => Group {
            add: Some(read[0][0].unpack_half(1)),
            ..Group::scaled(four_bits(&read[1], 0), half(&read[0]))
        },
        Q5_0 => Group::scaled(Quants::bytes(five(&read[2], read[1][0]), 5, 16), half(&read[0])),
        Q5_1 => Group {
            add: Some(read[0][0].unpack_half(1)),
            ..Group::scaled(Quants::bytes(five(&read[1], read[0][1]), 5, 0), half(&read[0]))
        },
        Q8_0 | Q8_1 => Group::scaled(Quants::Signed(read[1].clone()), half(&read[0])),
        Q1_0 => {
            let bits = read[1][0];
            // Twice the bit, less 1.
            let words = [bits, bits >> 4].map(|bits| spread(bits) << 1);
            Group::scaled(Quants::bytes(words.to_vec(), 2, 1), half(&read[0]))
        }
        IQ4_NL => Group::scaled(codes(&read[1], at, (count, 16), table), half(&read[0])),
        MXFP4 => fp4(&read[1], at, (count, 16), table, e8m0_half(read[0][0])),
        _ => fp4(&read[1], at, (count, 8), table, e4m3_half(read[0][0])),
    }
}

/// Floats of 4 bits, times twice the scale that is given. As integers they are twice their value.
fn fp4<'k>(
    words: &[Val<'k>],
    at: Val<'k>,
    (count, half): (u32, u32),
    table: Option<&dyn Table<'k>>,
    half_scale: Val<'k>,
) -> Group<'k> {
    if table.is_some_and(Table::integers) {
        return Group::scaled(codes(words, at, (count, half), table), half_scale);
    }
    let q = nibbles(words, at, count, half).iter().flat_map(|w| e2m1(*w)).collect();
    Group { unit: 32768.0, ..Group::scaled(Quants::Floats(q), half_scale) }
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

/// What two codes of a format of four bits stand for, as signed bytes 0 and 2 of a word; floats of 4 bits twice.
pub(super) fn integer_pairs(format: BlockFormat) -> Vec<u32> {
    const TWICE: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let value = |code: u32| match format {
        IQ4_NL | IQ4_XS => IQ4_VALUES[code as usize & 15],
        _ if code & 8 == 0 => TWICE[code as usize & 7],
        _ => -TWICE[code as usize & 7],
    };
    let byte = |code: u32| u32::from(value(code) as u8);
    (0..256).map(|codes| byte(codes) | byte(codes >> 4) << 16).collect()
}

/// What codes of four bits stand for: those of a run, half of them in the low bits of bytes if it has both halves.
pub(super) fn codes<'k>(
    words: &[Val<'k>],
    at: Val<'k>,
    (count, half): (u32, u32),
    table: Option<&dyn Table<'k>>,
) -> Quants<'k> {
    let find = |index: Val<'k>| table.map_or(index, |table| table.words(index, 1)[0]);
    let byte = |word: Val<'k>, i: u32| find(if i == 3 { word >> 24 } else { (word >> (8 * i)) & 0xffu32 });
    // Neighbours side by side in a byte.
    let side_by_side = |word: &Val<'k>| {
        let codes = *word & 0x0f0f_0f0fu32;
        let codes = codes | (codes >> 4);
        [byte(codes, 0), byte(codes, 2)]
    };
    if !table.is_some_and(Table::integers) {
        let pair = |found: Val<'k>| [found.unpack_half(0), found.unpack_half(1)];
        let words = nibbles(words, at, count, half);
        return Quants::Floats(words.iter().flat_map(side_by_side).flat_map(pair).collect());
    }
    if count <= half {
        let two = |found: Val<'k>| (found & 0xffu32) | ((found >> 8) & 0xff00u32);
        let four = |word: &Val<'k>| {
            let [low, high] = side_by_side(word).map(two);
            low | (high << 16)
        };
        return Quants::Signed(nibbles(words, at, count, half).iter().map(four).collect());
    }
    // One look finds the elements of both halves.
    let both = |word: &Val<'k>| {
        let [a, b] = [0, 2].map(|i| byte(*word, i) | (byte(*word, i + 1) << 8));
        ((a & 0xffffu32) | (b << 16), (a >> 16) | (b & 0xffff_0000u32))
    };
    let (low, high): (Vec<_>, Vec<_>) = words.iter().map(both).unzip();
    Quants::Signed([low, high].concat())
}
