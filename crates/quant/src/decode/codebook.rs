//! Formats whose bits are indices into a code book of four or eight elements.

use super::{f16_at, u16_at, u32_at};
use crate::{BlockFormat, grids};

const IQ2_VALUES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const IQ3_XXS_VALUES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// What IQ1 formats add to every element or subtract from it.
const IQ1_DELTA: f32 = 0.125;

/// Seven bits of signs and an eighth that makes the number of minuses even.
fn even_signs(index: u32) -> u8 {
    let low = (index & 127) as u8;
    low | ((low.count_ones() as u8 & 1) << 7)
}

/// Element `j` of an entry of eight.
fn of_eight(entry: u16, j: usize) -> usize {
    usize::from(entry >> (2 * j) & 3)
}

/// Element `j` of an entry of four.
fn of_four(entry: u16, j: usize) -> usize {
    usize::from(entry >> (4 * j) & 7)
}

fn sign(signs: u8, j: usize) -> f32 {
    if signs >> j & 1 == 1 { -1.0 } else { 1.0 }
}

pub(super) fn iq2_xxs(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 0);
    for (group, into) in into.chunks_exact_mut(32).enumerate() {
        let (indices, rest) = (&block[2 + 8 * group..6 + 8 * group], u32_at(block, 6 + 8 * group));
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.25;
        for (i, x) in into.iter_mut().enumerate() {
            let (entry, signs) =
                (grids::IQ2_XXS[usize::from(indices[i / 8])], even_signs(rest >> (7 * (i / 8))));
            *x = scale * IQ2_VALUES[of_eight(entry, i % 8)] * sign(signs, i % 8);
        }
    }
}

pub(super) fn iq2_xs(block: &[u8], into: &mut [f32]) {
    let (d, scales) = (f16_at(block, 0), &block[66..]);
    for (group, into) in into.chunks_exact_mut(8).enumerate() {
        let index = u16_at(block, 2 + 2 * group);
        let (entry, signs) = (grids::IQ2_XS[usize::from(index & 511)], even_signs(u32::from(index >> 9)));
        let scale = d * (0.5 + f32::from(scales[group / 4] >> (4 * (group / 2 % 2)) & 15)) * 0.25;
        for (j, x) in into.iter_mut().enumerate() {
            *x = scale * IQ2_VALUES[of_eight(entry, j)] * sign(signs, j);
        }
    }
}

pub(super) fn iq2_s(block: &[u8], into: &mut [f32]) {
    let (d, low, signs) = (f16_at(block, 0), &block[2..34], &block[34..66]);
    let (high, scales) = (&block[66..74], &block[74..]);
    for (group, into) in into.chunks_exact_mut(8).enumerate() {
        let index = usize::from(low[group]) | usize::from(high[group / 4] >> (2 * (group % 4)) & 3) << 8;
        let scale = d * (0.5 + f32::from(scales[group / 4] >> (4 * (group / 2 % 2)) & 15)) * 0.25;
        for (j, x) in into.iter_mut().enumerate() {
            *x = scale * IQ2_VALUES[of_eight(grids::IQ2_S[index], j)] * sign(signs[group], j);
        }
    }
}

pub(super) fn iq3_xxs(block: &[u8], into: &mut [f32]) {
    let (d, indices) = (f16_at(block, 0), &block[2..66]);
    for (group, into) in into.chunks_exact_mut(32).enumerate() {
        let rest = u32_at(block, 66 + 4 * group);
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.5;
        for (i, x) in into.iter_mut().enumerate() {
            let entry = grids::IQ3_XXS[usize::from(indices[8 * group + i / 4])];
            *x = scale
                * IQ3_XXS_VALUES[of_four(entry, i % 4)]
                * sign(even_signs(rest >> (7 * (i / 8))), i % 8);
        }
    }
}

pub(super) fn iq3_s(block: &[u8], into: &mut [f32]) {
    let (d, low, high) = (f16_at(block, 0), &block[2..66], &block[66..74]);
    let (signs, scales) = (&block[74..106], &block[106..]);
    for (group, into) in into.chunks_exact_mut(4).enumerate() {
        let index = usize::from(low[group]) | usize::from(high[group / 8] >> (group % 8) & 1) << 8;
        let scale = d * f32::from(1 + 2 * (scales[group / 16] >> (4 * (group / 8 % 2)) & 15));
        for (j, x) in into.iter_mut().enumerate() {
            let value = (2 * of_four(grids::IQ3_S[index], j) + 1) as f32;
            *x = scale * value * sign(signs[group / 2], 4 * (group % 2) + j);
        }
    }
}

pub(super) fn iq1_s(block: &[u8], into: &mut [f32]) {
    let (d, low) = (f16_at(block, 0), &block[2..34]);
    for (group, into) in into.chunks_exact_mut(8).enumerate() {
        let high = u16_at(block, 34 + 2 * (group / 4));
        let index = usize::from(low[group]) | usize::from(high >> (3 * (group % 4)) & 7) << 8;
        let delta = if high & 0x8000 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
        ternary_entry(d * f32::from(2 * (high >> 12 & 7) + 1), delta, index, into);
    }
}

pub(super) fn iq1_m(block: &[u8], into: &mut [f32]) {
    let (low, high, scales) = (&block[..32], &block[32..48], &block[48..]);
    // The f16 scale is in the upper four bits of the four 16-bit words.
    let d = (0..4).fold(0, |d, i| d | (u16_at(scales, 2 * i) >> 12) << (4 * i));
    let d = half::f16::from_bits(d).to_f32();
    for (group, into) in into.chunks_exact_mut(8).enumerate() {
        let four = high[group / 2] >> (4 * (group % 2));
        let index = usize::from(low[group]) | usize::from(four & 7) << 8;
        let delta = if four & 8 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
        let scale = u16_at(scales, 2 * (group / 8)) >> (3 * (group / 2 % 4)) & 7;
        ternary_entry(d * f32::from(2 * scale + 1), delta, index, into);
    }
}

/// Eight elements of the code book of the IQ1 formats.
fn ternary_entry(scale: f32, delta: f32, index: usize, into: &mut [f32]) {
    for (j, x) in into.iter_mut().enumerate() {
        *x = scale * (of_eight(grids::IQ1_S[index], j) as f32 - 1.0 + delta);
    }
}

/// The magnitudes in a format's code book as bytes, entry after entry of eight or, for IQ3, four elements. Those of the
/// IQ1 formats are one larger than the elements, so that none is negative. `None` for formats without a code book.
pub fn code_book(format: BlockFormat) -> Option<Vec<u8>> {
    let eights = |grid: &[u16], value: &dyn Fn(usize) -> u8| -> Vec<u8> {
        grid.iter().flat_map(|entry| (0..8).map(|j| value(of_eight(*entry, j)))).collect()
    };
    let fours = |grid: &[u16], value: &dyn Fn(usize) -> u8| -> Vec<u8> {
        grid.iter().flat_map(|entry| (0..4).map(|j| value(of_four(*entry, j)))).collect()
    };
    let iq2 = |i: usize| IQ2_VALUES[i] as u8;
    Some(match format {
        BlockFormat::IQ2_XXS => eights(&grids::IQ2_XXS, &iq2),
        BlockFormat::IQ2_XS => eights(&grids::IQ2_XS, &iq2),
        BlockFormat::IQ2_S => eights(&grids::IQ2_S, &iq2),
        BlockFormat::IQ1_S | BlockFormat::IQ1_M => eights(&grids::IQ1_S, &|i| i as u8),
        BlockFormat::IQ3_XXS => fours(&grids::IQ3_XXS, &|i| IQ3_XXS_VALUES[i] as u8),
        BlockFormat::IQ3_S => fours(&grids::IQ3_S, &|i| 2 * i as u8 + 1),
        _ => return None,
    })
}
