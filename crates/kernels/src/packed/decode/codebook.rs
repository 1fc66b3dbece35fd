//! Formats whose bits are indices into a code book of four or eight elements.

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::Val;

use super::bits::{even_signs, with_signs};
use super::{Group, Quants, Request, Size, Table, float, half};

/// What IQ1 formats add to every element or subtract from it.
const IQ1_DELTA: f32 = 0.125;

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>) -> Vec<Request<'k>> {
    let k = at.builder();
    let of = |start, at, size, align| Request::new(format, start, at, size, align);
    let byte = |start: u32, at: Val<'k>| of(start, at, Size::Byte, 1);
    let half = |start: u32, at: Val<'k>| of(start, at, Size::Half, 2);
    let word = |start: u32, at: Val<'k>| of(start, at, Size::Words(1), 4);
    let (of_8, of_32) = (at / 8u32, at / 32u32);
    let d = half(0, k.u32(0));
    match format {
        IQ2_XXS => vec![d, byte(2, of_8 / 4u32 * 8u32 + of_8 % 4u32), word(2, of_32 * 8u32 + 4u32)],
        IQ2_XS => vec![d, half(2, of_8 * 2u32), byte(66, of_32)],
        IQ2_S => vec![d, byte(2, of_8), byte(34, of_8), byte(66, of_32), byte(74, of_32)],
        IQ3_XXS => vec![d, half(2, of_8 * 2u32), word(66, of_32 * 4u32)],
        IQ3_S => {
            vec![d, half(2, of_8 * 2u32), byte(66, of_32), byte(74, of_8), byte(106, at / 64u32)]
        }
        IQ1_S => vec![d, byte(2, of_8), half(34, of_32 * 2u32)],
        _ => vec![
            of(48, k.u32(0), Size::Words(2), 8),
            byte(0, of_8),
            byte(32, at / 16u32),
            half(48, at / 64u32 * 2u32),
        ],
    }
}

/// The same of a run of 32, which begins where the fields of 32 elements do.
pub(super) fn requests_32<'k>(format: BlockFormat, at: Val<'k>) -> Vec<Request<'k>> {
    let k = at.builder();
    let of = |start, at, size, align| Request::new(format, start, at, size, align);
    let byte = |start: u32, at: Val<'k>| of(start, at, Size::Byte, 1);
    let half = |start: u32, at: Val<'k>| of(start, at, Size::Half, 2);
    let word = |start: u32, at: Val<'k>| of(start, at, Size::Words(1), 4);
    let two = |start: u32, at: Val<'k>| of(start, at, Size::Words(2), 8);
    let number = at / 32u32;
    let d = half(0, k.u32(0));
    match format {
        IQ2_XXS => vec![d, two(2, number * 8u32)],
        IQ2_XS => vec![d, two(2, number * 8u32), byte(66, number)],
        IQ2_S => {
            let (indices, signs) = (word(2, number * 4u32), word(34, number * 4u32));
            vec![d, indices, signs, byte(66, number), byte(74, number)]
        }
        IQ3_XXS => vec![d, two(2, number * 8u32), word(66, number * 4u32)],
        IQ3_S => {
            let (indices, signs) = (two(2, number * 8u32), word(74, number * 4u32));
            vec![d, indices, byte(66, number), signs, byte(106, at / 64u32)]
        }
        IQ1_S => vec![d, word(2, number * 4u32), half(34, number * 2u32)],
        _ => vec![
            two(48, k.u32(0)),
            word(0, number * 4u32),
            half(32, number * 2u32),
            half(48, at / 64u32 * 2u32),
        ],
    }
}

/// A run of 32, by groups that share a scale.
pub(super) fn decode_32<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    table: Option<&dyn Table<'k>>,
) -> Vec<Group<'k>> {
    // What eight elements would have read.
    let eight = |j: u32| {
        let byte = |words: &[Val<'k>]| vec![(words[0] >> (8 * j)) & 0xffu32];
        let half = |words: &[Val<'k>]| vec![words[(j / 2) as usize] >> (16 * (j % 2))];
        match format {
            IQ2_XXS => vec![read[0].clone(), byte(&read[1]), vec![read[1][1]]],
            IQ2_XS | IQ3_XXS => vec![read[0].clone(), half(&read[1]), read[2].clone()],
            IQ2_S => {
                vec![read[0].clone(), byte(&read[1]), byte(&read[2]), read[3].clone(), read[4].clone()]
            }
            IQ3_S => {
                vec![read[0].clone(), half(&read[1]), read[2].clone(), byte(&read[3]), read[4].clone()]
            }
            IQ1_S => vec![read[0].clone(), byte(&read[1]), read[2].clone()],
            _ => {
                let rest = (read[2][0] >> (8 * (j / 2))) & 0xffu32;
                vec![read[0].clone(), byte(&read[1]), vec![rest], read[3].clone()]
            }
        }
    };
    let mut groups: Vec<Group<'k>> = Vec::new();
    let together = super::group(format, 32) / 8;
    for j in 0..4 {
        let next = decode(format, &eight(j), at + 8 * j, table);
        match groups.last_mut() {
            Some(group) if j % together != 0 => group.q.extend(next.q),
            _ => groups.push(next),
        }
    }
    groups
}

pub(super) fn decode<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    table: Option<&dyn Table<'k>>,
) -> Group<'k> {
    let k = at.builder();
    let of_8 = at / 8u32;
    let eight = |index: Val<'k>| table.map_or_else(|| vec![index; 2], |t| t.words(index, 2));
    let four = |index: Val<'k>| table.map_or(index, |t| t.words(index, 1)[0]);
    let signed = |words: &[Val<'k>], signs: Val<'k>| {
        Quants::Signed(vec![with_signs(words[0], signs), with_signs(words[1], signs >> 4)])
    };
    // Four bits for 16 elements, as formats of 2 bits have them.
    let half_scale = |byte: Val<'k>| float((byte >> ((at & 16u32) >> 2)) & 15u32) + 0.5f32;
    match format {
        IQ2_XXS => {
            let rest = read[2][0];
            let signs = even_signs(rest >> (of_8 % 4u32 * 7u32));
            let scale = half(&read[0]) * (float(rest >> 28) + 0.5f32) * 0.25f32;
            Group::scaled(signed(&eight(read[1][0]), signs), scale)
        }
        IQ2_XS => {
            let index = read[1][0] & 0xffffu32;
            let scale = half(&read[0]) * half_scale(read[2][0]) * 0.25f32;
            Group::scaled(signed(&eight(index & 511u32), even_signs(index >> 9)), scale)
        }
        IQ2_S => {
            let high = (read[3][0] >> (of_8 % 4u32 * 2u32)) & 3u32;
            let scale = half(&read[0]) * half_scale(read[4][0]) * 0.25f32;
            Group::scaled(signed(&eight(read[1][0] | (high << 8)), read[2][0]), scale)
        }
        IQ3_XXS => {
            let (index, rest) = (read[1][0], read[2][0]);
            let entries = [four(index & 255u32), four((index >> 8) & 255u32)];
            let signs = even_signs(rest >> (of_8 % 4u32 * 7u32));
            let scale = half(&read[0]) * (float(rest >> 28) + 0.5f32) * 0.5f32;
            Group::scaled(signed(&entries, signs), scale)
        }
        IQ3_S => {
            let (index, high) = (read[1][0], read[2][0] >> (of_8 % 4u32 * 2u32));
            let entries = [
                four((index & 255u32) | ((high & 1u32) << 8)),
                four(((index >> 8) & 255u32) | ((high & 2u32) << 7)),
            ];
            let scale = (read[4][0] >> ((at & 32u32) >> 3)) & 15u32;
            Group::scaled(signed(&entries, read[3][0]), half(&read[0]) * float(scale * 2u32 + 1u32))
        }
        IQ1_S => {
            let high = read[2][0];
            let index = read[1][0] | (((high >> (of_8 % 4u32 * 3u32)) & 7u32) << 8);
            let scale = half(&read[0]) * float(((high >> 12) & 7u32) * 2u32 + 1u32);
            ternary(&eight(index), (high & 0x8000u32).ne(0u32), scale)
        }
        _ => {
            // The f16 scale is in the upper four bits of the four 16-bit words.
            let (a, b) = (read[0][0], read[0][1]);
            let d = ((a >> 12) & 15u32) | ((a >> 28) << 4) | (((b >> 12) & 15u32) << 8) | ((b >> 28) << 12);
            let rest = read[2][0] >> ((of_8 & 1u32) << 2);
            let scale = (read[3][0] >> (at / 16u32 % 4u32 * 3u32)) & 7u32;
            let index = read[1][0] | ((rest & 7u32) << 8);
            let scale = half(&[d | k.u32(0)]) * float(scale * 2u32 + 1u32);
            ternary(&eight(index), (rest & 8u32).ne(0u32), scale)
        }
    }
}

/// Eight elements of the code book of the IQ1 formats.
fn ternary<'k>(words: &[Val<'k>], negative: Val<'k>, scale: Val<'k>) -> Group<'k> {
    let k = scale.builder();
    let zero = negative.select(k.f32(IQ1_DELTA), k.f32(-IQ1_DELTA));
    Group { zero: Some(zero), ..Group::scaled(Quants::bytes(words.to_vec(), 2, 1), scale) }
}
