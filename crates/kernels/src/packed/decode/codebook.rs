//! Formats whose bits are indices into a code book of four or eight elements.

use olivine_ir::BlockFormat::{self, *};
use olivine_kernel::Val;

use super::bits::{bytes, even_signs, with_signs};
use super::{Group, Request, Size, Table, float, half};

/// What IQ1 formats add to every element or subtract from it.
const IQ1_DELTA: f32 = 0.125;

pub(super) fn requests<'k>(format: BlockFormat, at: Val<'k>) -> Vec<Request<'k>> {
    let k = at.builder();
    let byte = |at: Val<'k>| Request { at, size: Size::Byte, align: 1 };
    let half = |at: Val<'k>| Request { at, size: Size::Half, align: 2 };
    let word = |at: Val<'k>| Request { at, size: Size::Words(1), align: 2 };
    let (of_8, of_32) = (at / 8u32, at / 32u32);
    let d = half(k.u32(0));
    match format {
        IQ2_XXS => vec![d, byte(of_8 / 4u32 * 8u32 + of_8 % 4u32 + 2u32), word(of_32 * 8u32 + 6u32)],
        IQ2_XS => vec![d, half(of_8 * 2u32 + 2u32), byte(of_32 + 66u32)],
        IQ2_S => vec![d, byte(of_8 + 2u32), byte(of_8 + 34u32), byte(of_32 + 66u32), byte(of_32 + 74u32)],
        IQ3_XXS => vec![d, half(of_8 * 2u32 + 2u32), word(of_32 * 4u32 + 66u32)],
        IQ3_S => vec![
            d,
            half(of_8 * 2u32 + 2u32),
            byte(of_32 + 66u32),
            byte(of_8 + 74u32),
            byte(at / 64u32 + 106u32),
        ],
        IQ1_S => vec![d, byte(of_8 + 2u32), half(of_32 * 2u32 + 34u32)],
        _ => {
            let scales = Request { at: k.u32(48), size: Size::Words(2), align: 8 };
            vec![scales, byte(of_8), byte(at / 16u32 + 32u32), half(at / 64u32 * 2u32 + 48u32)]
        }
    }
}

pub(super) fn decode<'k>(
    format: BlockFormat,
    read: &[Vec<Val<'k>>],
    at: Val<'k>,
    table: Option<&dyn Table<'k>>,
) -> Group<'k> {
    let k = at.builder();
    let of_8 = at / 8u32;
    let eight = |index: Val<'k>| table.map_or_else(|| vec![index; 2], |t| t.words(index * 2u32, 2));
    let four = |index: Val<'k>| table.map_or(index, |t| t.words(index, 1)[0]);
    let signed = |words: &[Val<'k>], signs: Val<'k>| -> Vec<Val<'k>> {
        [with_signs(words[0], signs), with_signs(words[1], signs >> 4)].concat()
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
    let q = words.iter().flat_map(|w| bytes(*w, 2, 1)).collect();
    Group { zero: Some(zero), ..Group::scaled(q, scale) }
}
