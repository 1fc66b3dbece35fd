//! Ternary blocks: models that use them were trained with elements of one magnitude, so the scale is the largest.

use super::{Block, inverse, put_f16};

/// 0, 1 and 2 for −1, 0 and 1.
fn digits(block: Block<'_>) -> (f32, [u8; 256]) {
    let d = block.x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let mut digits = [1; 256];
    for (digit, x) in digits.iter_mut().zip(block.x) {
        *digit = ((x * inverse(d)).round() + 1.0) as u8;
    }
    (d, digits)
}

pub(super) fn tq1_0(block: Block<'_>, into: &mut [u8]) {
    let (d, digits) = digits(block);
    let (first, rest) = digits.split_at(160);
    let (second, third) = rest.split_at(80);
    let (bytes, scale) = into.split_at_mut(52);
    let (bytes, last) = bytes.split_at_mut(48);
    let (bytes, middle) = bytes.split_at_mut(32);
    for (bytes, digits) in [(bytes, first), (middle, second), (last, third)] {
        let stride = bytes.len();
        for (i, byte) in bytes.iter_mut().enumerate() {
            // Five digits to base 3, a missing fifth as 0, scaled to 256 and rounded up.
            let number = (0..5).fold(0, |n, j| 3 * n + u16::from(*digits.get(i + j * stride).unwrap_or(&0)));
            *byte = (number * 256).div_ceil(243) as u8;
        }
    }
    put_f16(scale, 0, d);
}

pub(super) fn tq2_0(block: Block<'_>, into: &mut [u8]) {
    let (d, digits) = digits(block);
    for (i, digit) in digits.iter().enumerate() {
        into[i / 128 * 32 + i % 32] |= digit << (2 * (i / 32 % 4));
    }
    put_f16(into, 64, d);
}
