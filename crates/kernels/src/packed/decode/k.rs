//! Blocks of 256 elements whose scales are quantised too, and the ternary ones.

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::{Scalar, Val};

use super::bits::fields;
use super::simple::codes;
use super::{Group, Quants, Request, Size, Table, float, half};

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>, count: u32) -> Vec<Request<'k>> {
    let k = at.builder();
    let of = |start, at, size, align| Request::new(format, start, at, size, align);
    let head = |start: u32, size: Size| of(start, k.u32(0), size, 16);
    let byte = |start: u32, at: Val<'k>| of(start, at, Size::Byte, 1);
    // Bytes of a run from a multiple of its length on.
    let run = |start: u32, at: Val<'k>| of(start, at, Size::Words(count / 4), count.min(16));
    let both = |start: u32, at: Val<'k>| of(start, at, Size::Words(8), 16);
    // Two bits of each element: 32 bytes hold 128 elements, 32 of them in each pair of bits.
    let two_bits = at / 128u32 * 32u32 + at % 32u32;
    let four_bits = at / 64u32 * 32u32 + at % 32u32;
    match format {
        Q2_K => vec![head(80, Size::Words(1)), byte(0, at / 16u32), run(16, two_bits)],
        Q3_K => {
            let group = at / 16u32;
            vec![
                head(108, Size::Half),
                byte(96, group % 8u32),
                byte(96, group % 4u32 + 8u32),
                run(0, at % 32u32),
                run(32, two_bits),
            ]
        }
        // A run of 64 reads each byte once, for both of its elements.
        Q4_K if count == 64 => vec![head(0, Size::Words(4)), both(16, at / 2u32)],
        Q5_K if count == 64 => vec![head(0, Size::Words(4)), both(16, k.u32(0)), both(48, at / 2u32)],
        Q4_K => vec![head(0, Size::Words(4)), run(16, four_bits)],
        Q5_K => vec![head(0, Size::Words(4)), run(16, at % 32u32), run(48, four_bits)],
        Q6_K => {
            let low = at / 128u32 * 64u32 + at % 64u32;
            vec![head(208, Size::Half), byte(192, at / 16u32), run(0, low), run(128, two_bits)]
        }
        Q8_K => vec![head(0, Size::Words(1)), run(4, at)],
        // The same of a run of 32.
        IQ4_XS if count == 32 => vec![head(0, Size::Words(2)), of(8, at / 2u32, Size::Words(4), 16)],
        IQ4_XS => vec![head(0, Size::Words(2)), run(8, at / 32u32 * 16u32 + at % 16u32)],
        TQ1_0 => {
            let digits = Digits::of(at);
            let word = |at: Val<'k>| of(0, at, Size::Words(1), 4);
            vec![head(52, Size::Half), word(digits.first), word(digits.second)]
        }
        _ => vec![head(64, Size::Half), run(0, two_bits)],
    }
}

pub(super) fn decode<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    count: u32,
    table: Option<&dyn Table<'k>>,
) -> Group<'k> {
    let group = at / 16u32;
    // Bits of each byte, moved to its lowest ones.
    let two = || (at / 32u32 % 4u32) << 1;
    let all = Quants::bytes;
    let moved = |words: &[Val<'k>], by: Val<'k>| words.iter().map(|w| *w >> by).collect::<Vec<_>>();
    match format {
        Q2_K => {
            let scale = read[1][0];
            let (d, dmin) = (read[0][0].unpack_half(0), read[0][0].unpack_half(1));
            let q = all(moved(&read[2], two()), 2, 0);
            Group { add: Some(-(dmin * float(scale >> 4))), ..Group::scaled(q, d * float(scale & 15u32)) }
        }
        Q3_K => {
            let low = (read[1][0] >> (group / 8u32 * 4u32)) & 15u32;
            let high = (read[2][0] >> (group / 4u32 * 2u32)) & 3u32;
            let scale = float(low | (high << 4)) - 32.0f32;
            let bit = at / 32u32;
            let with = |(w, h): (&Val<'k>, &Val<'k>)| {
                ((*w >> two()) & 0x0303_0303u32) | (((*h >> bit) & 0x0101_0101u32) << 2)
            };
            let words = read[4].iter().zip(&read[3]).map(with).collect();
            Group::scaled(all(words, 3, 4), half(&read[0]) * scale)
        }
        Q4_K => {
            let words = moved(&read[1], (at & 32u32) >> 3);
            scale_min(&read[0], at, all(words, 4, 0))
        }
        Q5_K => {
            let (shift, bit) = ((at & 32u32) >> 3, at / 32u32);
            let with = |(w, h): (&Val<'k>, &Val<'k>)| {
                ((*w >> shift) & 0x0f0f_0f0fu32) | (((*h >> bit) & 0x0101_0101u32) << 4)
            };
            let words = read[2].iter().zip(&read[1]).map(with).collect();
            scale_min(&read[0], at, all(words, 5, 0))
        }
        Q6_K => {
            let (shift, two) = ((at & 64u32) >> 4, two());
            let with = |(w, h): (&Val<'k>, &Val<'k>)| {
                ((*w >> shift) & 0x0f0f_0f0fu32) | (((*h >> two) & 0x0303_0303u32) << 4)
            };
            let words = read[2].iter().zip(&read[3]).map(with).collect();
            let scale = (read[1][0] << 24).bitcast(Scalar::I32) >> 24;
            Group::scaled(all(words, 6, 32), half(&read[0]) * float(scale))
        }
        Q8_K => Group::scaled(Quants::Signed(read[1].clone()), read[0][0].bitcast(Scalar::F32)),
        IQ4_XS => {
            let group = at / 32u32;
            let low = (read[0][1] >> (group * 4u32)) & 15u32;
            let high = (read[0][0] >> (group * 2u32 + 16u32)) & 3u32;
            let scale = float(low | (high << 4)) - 32.0f32;
            Group::scaled(codes(&read[1], at, (count, 16), table), half(&read[0]) * scale)
        }
        TQ1_0 => {
            let digits = Digits::of(at);
            let words = [digits.digit(read[1][0], false), digits.digit(read[2][0], true)];
            Group::scaled(all(words.to_vec(), 2, 1), half(&read[0]))
        }
        _ => Group::scaled(all(moved(&read[1], two()), 2, 1), half(&read[0])),
    }
}

/// A run of 64 elements of Q4_K or Q5_K: two groups, the first in the low four bits of all bytes.
pub(super) fn decode_64<'k>(format: BlockFormat, read: &[Vec<Val<'k>>], at: Val<'k>) -> Vec<Group<'k>> {
    let (head, pair) = (&read[0], at / 64u32);
    // Both scales and both minimums are neighbours.
    let shift = (pair & 1u32) << 4;
    let [a, b, c] = [head[1], head[2], head[3]].map(|w| w >> shift);
    let first = pair.lt(2u32);
    let scales = first.select(a & 0x3f3fu32, (c & 0x0f0fu32) | ((a >> 2) & 0x3030u32));
    let mins = first.select(b & 0x3f3fu32, ((c >> 4) & 0x0f0fu32) | ((b >> 2) & 0x3030u32));
    let (d, dmin) = (head[0].unpack_half(0), head[0].unpack_half(1));
    let (scales, mins) = (fields(scales, 0, (6, 8), 2, 0), fields(mins, 0, (6, 8), 2, 0));
    let halves = [0u32, 1].map(|half| {
        if format == Q4_K {
            return Quants::Bytes { words: read[1].clone(), shift: 4 * half, width: 4, bias: 0 };
        }
        let bit = pair * 2u32 + half;
        let with = |(w, h): (&Val<'k>, &Val<'k>)| {
            ((*w >> (4 * half)) & 0x0f0f_0f0fu32) | (((*h >> bit) & 0x0101_0101u32) << 4)
        };
        Quants::bytes(read[2].iter().zip(&read[1]).map(with).collect(), 5, 0)
    });
    let group = |(i, q): (usize, Quants<'k>)| Group {
        add: Some(-(dmin * mins[i])),
        ..Group::scaled(q, d * scales[i])
    };
    halves.into_iter().enumerate().map(group).collect()
}

/// A run of Q4_K or Q5_K with the 6-bit scale and minimum of its 32 elements. Twelve bytes hold eight of each: the first
/// four in the low six bits of the first eight bytes, the others in the last four bytes with their upper two bits in
/// the first eight.
fn scale_min<'k>(head: &[Val<'k>], at: Val<'k>, q: Quants<'k>) -> Group<'k> {
    let group = at / 32u32;
    let shift = (group & 3u32) << 3;
    let [a, b, c] = [head[1], head[2], head[3]].map(|w| w >> shift);
    let first = group.lt(4u32);
    let scale = first.select(a & 63u32, (c & 15u32) | ((a >> 2) & 48u32));
    let min = first.select(b & 63u32, ((c >> 4) & 15u32) | ((b >> 2) & 48u32));
    let (d, dmin) = (head[0].unpack_half(0), head[0].unpack_half(1));
    Group { add: Some(-(dmin * float(min))), ..Group::scaled(q, d * float(scale)) }
}

/// Where TQ1_0 has the eight elements from a multiple of eight on: five digits to base 3 in each of 32 bytes, then of
/// 16, then four digits in each of four bytes. The first four elements are one digit of the bytes at `first`, the others
/// one of those at `second`.
struct Digits<'k> {
    first: Val<'k>,
    second: Val<'k>,
    power: Val<'k>,
    /// Whether the second four are the digit after that of the first.
    last: Val<'k>,
}

impl<'k> Digits<'k> {
    fn of(at: Val<'k>) -> Self {
        let k = at.builder();
        let (middle, last) = (at.ge(160u32), at.ge(240u32));
        let pick = |a: Val<'k>, b: Val<'k>, c: Val<'k>| last.select(c, middle.select(b, a));
        let from = at - middle.select(k.u32(160), k.u32(0));
        let first = pick(from % 32u32, from % 16u32 + 32u32, k.u32(48));
        let digit = pick(from / 32u32, from / 16u32, (at & 8u32) >> 2);
        // 3^digit.
        let odd = (digit & 1u32).ne(0u32).select(k.u32(3), k.u32(1));
        let power = odd * (digit & 2u32).ne(0u32).select(k.u32(9), k.u32(1));
        let power = power * (digit & 4u32).ne(0u32).select(k.u32(81), k.u32(1));
        Digits { first, second: last.select(first, first + 4u32), power, last }
    }

    /// One digit of each byte, in its low two bits. A byte is the number that the digits spell, scaled to 256:
    /// multiplying it by 3 moves the next digit above the eight bits.
    fn digit(&self, word: Val<'k>, second: bool) -> Val<'k> {
        let three = self.power * 3u32;
        let power = if second { self.last.select(three, self.power) } else { self.power };
        let of = |two: Val<'k>| {
            let shifted = ((two & 0x00ff_00ffu32) * power) & 0x00ff_00ffu32;
            ((shifted * 3u32) >> 8) & 0x0003_0003u32
        };
        of(word) | (of(word >> 8) << 8)
    }
}
