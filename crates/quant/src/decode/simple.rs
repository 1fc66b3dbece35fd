//! Blocks of 32 elements (128 for Q1_0) with one scale. The low four bits of 16 bytes are the first half of a block, the high
//! four bits the second.

use super::{f16_at, u32_at};

/// The values that the four bits of IQ4_NL and IQ4_XS stand for.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Calls `value` with the four bits and the index of every element.
fn nibbles(bytes: &[u8], into: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let half = into.len() / 2;
    for (i, &byte) in bytes.iter().enumerate() {
        into[i] = value(byte & 15, i);
        into[half + i] = value(byte >> 4, half + i);
    }
}

pub(super) fn q1_0(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 0);
    for (i, x) in into.iter_mut().enumerate() {
        *x = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

pub(super) fn q4_0(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 0);
    nibbles(&block[2..], into, |q, _| d * (f32::from(q) - 8.0));
}

pub(super) fn q4_1(block: &[u8], into: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    nibbles(&block[4..], into, |q, _| d * f32::from(q) + m);
}

pub(super) fn q5_0(block: &[u8], into: &mut [f32]) {
    let (d, high) = (f16_at(block, 0), u32_at(block, 2));
    nibbles(&block[6..], into, |q, i| d * (f32::from(q | fifth(high, i)) - 16.0));
}

pub(super) fn q5_1(block: &[u8], into: &mut [f32]) {
    let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
    nibbles(&block[8..], into, |q, i| d * f32::from(q | fifth(high, i)) + m);
}

/// Bit `i` as the fifth bit of an element.
fn fifth(high: u32, i: usize) -> u8 {
    ((high >> i & 1) << 4) as u8
}

pub(super) fn q8_0(block: &[u8], into: &mut [f32]) {
    signed_bytes(f16_at(block, 0), &block[2..], into);
}

pub(super) fn q8_1(block: &[u8], into: &mut [f32]) {
    signed_bytes(f16_at(block, 0), &block[4..], into);
}

pub(super) fn signed_bytes(d: f32, bytes: &[u8], into: &mut [f32]) {
    for (x, &q) in into.iter_mut().zip(bytes) {
        *x = f32::from(q as i8) * d;
    }
}

pub(super) fn iq4_nl(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 0);
    nibbles(&block[2..], into, |q, _| d * f32::from(IQ4_VALUES[usize::from(q)]));
}
