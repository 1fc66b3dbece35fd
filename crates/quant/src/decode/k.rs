//! Blocks of 256 elements whose scales are quantised too.

use super::simple::{IQ4_VALUES, signed_bytes};
use super::{f16_at, u16_at};

/// The 6-bit scale and minimum of the `i`-th 32 elements of Q4_K and Q5_K. Twelve bytes hold eight of each: the first four in
/// the low six bits of the first eight bytes, the others in the last four bytes with their upper two bits in the first eight.
fn scale_min(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    }
}

/// The 6-bit scale, less 32, of the `i`-th 16 elements of Q3_K: four bits in eight bytes, two bits in the four after them.
fn q3_scale(packed: &[u8], i: usize) -> i8 {
    let low = packed[i % 8] >> (4 * (i / 8)) & 15;
    let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// Two bits of each element: 32 bytes hold 128 elements, 32 of them in each pair of bits.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// Four bits of each element: 32 bytes hold 64 elements, the first 32 in the low bits.
fn four_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// One bit of each element: bit `i / 32` of byte `i % 32`.
fn one_bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 32] >> (i / 32) & 1
}

pub(super) fn q2_k(block: &[u8], into: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, x) in into.iter_mut().enumerate() {
        let scale = scales[i / 16];
        *x = d * f32::from(scale & 15) * f32::from(two_bits(quants, i)) - dmin * f32::from(scale >> 4);
    }
}

pub(super) fn q3_k(block: &[u8], into: &mut [f32]) {
    let (high, quants, scales, d) = (&block[..32], &block[32..96], &block[96..108], f16_at(block, 108));
    for (i, x) in into.iter_mut().enumerate() {
        let q = two_bits(quants, i) as i8 - if one_bit(high, i) == 1 { 0 } else { 4 };
        *x = d * f32::from(q3_scale(scales, i / 16)) * f32::from(q);
    }
}

pub(super) fn q4_k(block: &[u8], into: &mut [f32]) {
    let (d, dmin, scales, quants) = (f16_at(block, 0), f16_at(block, 2), &block[4..16], &block[16..]);
    for (i, x) in into.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, i / 32);
        *x = d * f32::from(scale) * f32::from(four_bits(quants, i)) - dmin * f32::from(min);
    }
}

pub(super) fn q5_k(block: &[u8], into: &mut [f32]) {
    let (d, dmin, scales) = (f16_at(block, 0), f16_at(block, 2), &block[4..16]);
    let (high, quants) = (&block[16..48], &block[48..]);
    for (i, x) in into.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, i / 32);
        let q = four_bits(quants, i) | one_bit(high, i) << 4;
        *x = d * f32::from(scale) * f32::from(q) - dmin * f32::from(min);
    }
}

pub(super) fn q6_k(block: &[u8], into: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], f16_at(block, 208));
    for (i, x) in into.iter_mut().enumerate() {
        // 64 bytes hold the low four bits of 128 elements, the first 64 of them in the low half.
        let four = low[i / 128 * 64 + i % 64] >> (4 * (i / 64 % 2)) & 15;
        let q = (four | two_bits(high, i) << 4) as i8 - 32;
        *x = d * f32::from(scales[i / 16] as i8) * f32::from(q);
    }
}

pub(super) fn q8_k(block: &[u8], into: &mut [f32]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    signed_bytes(d, &block[4..260], into);
}

pub(super) fn iq4_xs(block: &[u8], into: &mut [f32]) {
    let (d, high, low, quants) = (f16_at(block, 0), u16_at(block, 2), &block[4..8], &block[8..]);
    for (i, x) in into.iter_mut().enumerate() {
        let group = i / 32;
        let scale = low[group / 2] >> (4 * (group % 2)) & 15 | ((high >> (2 * group) & 3) << 4) as u8;
        // Each 16 bytes hold 32 elements, the first 16 in the low bits.
        let q = quants[group * 16 + i % 16] >> (4 * (i / 16 % 2)) & 15;
        *x = d * f32::from(scale as i8 - 32) * f32::from(IQ4_VALUES[usize::from(q)]);
    }
}
