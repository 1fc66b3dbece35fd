//! 4-bit floating point with few possible scales: the neighbours of the obvious one are tried.

use super::fit::squared_error;
use super::{Block, inverse};
use crate::decode::{E2M1_DOUBLED, e4m3_half, e8m0_half};

/// The code of the nearest value.
fn code(x: f32) -> u8 {
    // Halfway points between 0, 1, 2, 3, 4, 6, 8, 12.
    const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = MIDDLES.iter().filter(|&&middle| x.abs() > middle).count() as u8;
    if x < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}

fn decoded(x: f32, d: f32) -> f32 {
    d * f32::from(E2M1_DOUBLED[usize::from(code(x * inverse(d)))])
}

fn put(block: Block<'_>, d: f32, into: &mut [u8]) {
    let half = block.x.len() / 2;
    for (i, byte) in into.iter_mut().enumerate() {
        *byte = code(block.x[i] * inverse(d)) | code(block.x[half + i] * inverse(d)) << 4;
    }
}

/// The code of the scale with the least error.
fn best_scale(block: Block<'_>, candidates: impl Iterator<Item = u8>, scale: fn(u8) -> f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for candidate in candidates {
        let d = scale(candidate);
        let error = squared_error(block, |x| decoded(x, d));
        if error < best.0 {
            best = (error, candidate);
        }
    }
    best.1
}

pub(super) fn mxfp4(block: Block<'_>, into: &mut [u8]) {
    let largest = block.x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    if largest > 0.0 {
        // The power of two that makes 4 to 8 of the largest; a half of it clips to 6, twice of it rounds more coarsely.
        let exponent = i32::from((largest.to_bits() >> 23 & 255) as u8) - 2;
        let candidates = (exponent - 1..=exponent + 1).map(|e| e.clamp(0, 254) as u8);
        into[0] = best_scale(block, candidates, e8m0_half);
    }
    let d = e8m0_half(into[0]);
    put(block, d, &mut into[1..]);
}

pub(super) fn nvfp4(block: Block<'_>, into: &mut [u8]) {
    for group in 0..4 {
        let part = Block {
            x: &block.x[16 * group..16 * group + 16],
            weight: &block.weight[16 * group..16 * group + 16],
        };
        let largest = part.x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        // Codes ascend with their values; those that put the largest element at 3 to 12 are tried.
        let low = (1..0x7e).find(|&c| e4m3_half(c) * 24.0 >= largest).unwrap_or(0x7e);
        let high = (low..0x7e).find(|&c| e4m3_half(c) * 6.0 >= largest).unwrap_or(0x7e);
        if largest > 0.0 {
            into[group] = best_scale(part, low..=high, e4m3_half);
        }
        let d = e4m3_half(into[group]);
        put(part, d, &mut into[4 + 8 * group..12 + 8 * group]);
    }
}
