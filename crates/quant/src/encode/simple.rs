//! Blocks with one scale.

use super::fit::{affine, nearest, round, symmetric, table};
use super::{Block, inverse, put_f16};
use crate::decode::IQ4_VALUES;

/// Four bits of every element: the first half of a block in the low bits.
fn put_nibbles(into: &mut [u8], quants: &[u8]) {
    let half = quants.len() / 2;
    for (i, byte) in into.iter_mut().enumerate() {
        *byte = quants[i] & 15 | quants[half + i] << 4;
    }
}

/// The fifth bit of every element.
fn put_fifth(into: &mut [u8], quants: &[u8]) {
    for (i, q) in quants.iter().enumerate() {
        into[i / 8] |= (q >> 4) << (i % 8);
    }
}

fn quants(block: Block<'_>, q: impl Fn(f32) -> i32) -> [u8; 32] {
    let mut quants = [0; 32];
    for (into, &x) in quants.iter_mut().zip(block.x) {
        *into = q(x) as u8;
    }
    quants
}

/// For signs alone the scale with the least squared error is the mean magnitude.
pub(super) fn q1_0(block: Block<'_>, into: &mut [u8]) {
    let (mut sum, mut count) = (0.0f64, 0.0f64);
    for (i, (&x, &w)) in block.x.iter().zip(block.weight).enumerate() {
        sum += f64::from(w) * f64::from(x.abs());
        count += f64::from(w);
        into[2 + i / 8] |= u8::from(x >= 0.0) << (i % 8);
    }
    put_f16(into, 0, (sum / count) as f32);
}

pub(super) fn q4_0(block: Block<'_>, into: &mut [u8]) {
    let d = put_f16(into, 0, symmetric(block, -8, 7));
    put_nibbles(&mut into[2..], &quants(block, |x| round(x * inverse(d), -8, 7) + 8));
}

pub(super) fn q4_1(block: Block<'_>, into: &mut [u8]) {
    let (d, m) = affine(block, 15, false);
    let (d, m) = (put_f16(into, 0, d), put_f16(into, 2, m));
    put_nibbles(&mut into[4..], &quants(block, |x| round((x - m) * inverse(d), 0, 15)));
}

pub(super) fn q5_0(block: Block<'_>, into: &mut [u8]) {
    let d = put_f16(into, 0, symmetric(block, -16, 15));
    let quants = quants(block, |x| round(x * inverse(d), -16, 15) + 16);
    put_fifth(&mut into[2..6], &quants);
    put_nibbles(&mut into[6..], &quants);
}

pub(super) fn q5_1(block: Block<'_>, into: &mut [u8]) {
    let (d, m) = affine(block, 31, false);
    let (d, m) = (put_f16(into, 0, d), put_f16(into, 2, m));
    let quants = quants(block, |x| round((x - m) * inverse(d), 0, 31));
    put_fifth(&mut into[4..8], &quants);
    put_nibbles(&mut into[8..], &quants);
}

/// With 255 steps a search gains nothing: the scale is the largest magnitude over 127, as everywhere.
pub(super) fn q8_0(block: Block<'_>, into: &mut [u8]) {
    q8_0_block(block.x, into);
}

/// The same of a block of any numbers.
#[inline(always)]
pub(super) fn q8_0_block(x: &[f32], into: &mut [u8]) {
    // Magnitudes in the order of their bits, NaN last.
    let largest = x.iter().fold(0u32, |m, x| m.max(x.to_bits() & 0x7fff_ffff));
    if largest >= f32::INFINITY.to_bits() {
        into.fill(0);
        into[..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
        return;
    }
    let d = f32::from_bits(largest) / 127.0;
    // What a scale of 0 multiplies does not count.
    let inverse = if put_f16(into, 0, d) == 0.0 { 0.0 } else { inverse(d) };
    for (byte, &x) in into[2..].iter_mut().zip(x) {
        *byte = nearest_away(x * inverse) as u8;
    }
}

/// The nearest integer, halves away from zero, in few instructions of any processor.
#[inline(always)]
fn nearest_away(x: f32) -> i8 {
    let whole = x as i32;
    let rest = x - whole as f32;
    (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
}

pub(super) fn iq4_nl(block: Block<'_>, into: &mut [u8]) {
    let d = put_f16(into, 0, table(block, &IQ4_VALUES));
    put_nibbles(&mut into[2..], &quants(block, |x| nearest(&IQ4_VALUES, x * inverse(d)) as i32));
}
