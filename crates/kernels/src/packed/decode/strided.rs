//! Runs of 64 elements of blocks whose bytes have two bits of four elements: 16 bytes hold four times 16 elements, 32
//! apart, each with a scale of their own.

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::{Scalar, Val};

use super::{Group, Quants, Request, Size, float, half};

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>) -> Vec<Request<'k>> {
    let k = at.builder();
    let of = |start, at, size, align| Request::new(format, start, at, size, align);
    let head = |start: u32, size: Size| of(start, k.u32(0), size, 16);
    let sixteen = |start: u32, at: Val<'k>| of(start, at, Size::Words(4), 16);
    let (half, first) = (at / 128u32, at % 32u32);
    let two_bits = half * 32u32 + first;
    match format {
        Q2_K => vec![head(80, Size::Words(1)), of(0, half * 8u32, Size::Words(2), 8), sixteen(16, two_bits)],
        Q3_K => {
            vec![head(108, Size::Half), head(96, Size::Words(3)), sixteen(0, first), sixteen(32, two_bits)]
        }
        Q6_K => {
            let low = half * 64u32 + first;
            vec![
                head(208, Size::Half),
                of(192, half * 8u32, Size::Words(2), 8),
                sixteen(0, low),
                sixteen(0, low + 32u32),
                sixteen(128, two_bits),
            ]
        }
        _ => vec![head(64, Size::Half), sixteen(0, two_bits)],
    }
}

pub(super) fn decode<'k>(format: BlockFormat, read: &[Vec<Val<'k>>], at: Val<'k>) -> Vec<Group<'k>> {
    let half_of = at / 128u32;
    // Whether these are the second 16 of 32.
    let second = (at / 16u32) & 1u32;
    // A byte of scales of each group: every other one of eight bytes.
    let scale =
        |words: &[Val<'k>], i: u32| (words[(i / 2) as usize] >> (second * 8u32 + 16 * (i % 2))) & 0xffu32;
    let group = |i: u32| {
        let two =
            |words: &[Val<'k>]| Quants::Bytes { words: words.to_vec(), shift: 2 * i, width: 2, bias: 0 };
        match format {
            Q2_K => {
                let scale = scale(&read[1], i);
                let (d, dmin) = (read[0][0].unpack_half(0), read[0][0].unpack_half(1));
                let q = two(&read[2]);
                Group { add: Some(-(dmin * float(scale >> 4))), ..Group::scaled(q, d * float(scale & 15u32)) }
            }
            Q3_K => {
                let low = (scale(&read[1], i) >> (half_of * 4u32)) & 15u32;
                let high =
                    (read[1][2] >> (second * 8u32 + 16 * (i % 2) + half_of * 4u32 + 2 * (i / 2))) & 3u32;
                let scale = float(low | (high << 4)) - 32.0f32;
                let with = |(w, h): (&Val<'k>, &Val<'k>)| {
                    let h = *h >> (half_of * 4u32);
                    let third = if i < 2 { h << (2 - i) } else { h >> (i - 2) };
                    ((*w >> (2 * i)) & 0x0303_0303u32) | (third & 0x0404_0404u32)
                };
                let words = read[3].iter().zip(&read[2]).map(with).collect();
                Group::scaled(Quants::bytes(words, 3, 4), half(&read[0]) * scale)
            }
            Q6_K => {
                let low = &read[2 + (i % 2) as usize];
                let with = |(w, h): (&Val<'k>, &Val<'k>)| {
                    let low = (*w >> (4 * (i / 2))) & 0x0f0f_0f0fu32;
                    let high = if i < 2 { *h << (4 - 2 * i) } else { *h >> (2 * i - 4) };
                    low | (high & 0x3030_3030u32)
                };
                let words = low.iter().zip(&read[4]).map(with).collect();
                let scale = (scale(&read[1], i) << 24).bitcast(Scalar::I32) >> 24;
                Group::scaled(Quants::bytes(words, 6, 32), half(&read[0]) * float(scale))
            }
            _ => {
                let q = Quants::Bytes { words: read[1].clone(), shift: 2 * i, width: 2, bias: 1 };
                Group::scaled(q, half(&read[0]))
            }
        }
    };
    (0..4).map(group).collect()
}
