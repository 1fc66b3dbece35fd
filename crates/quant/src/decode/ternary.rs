//! Ternary blocks of 256 elements: −1, 0 and 1 times an f16 scale.

use super::f16_at;

pub(super) fn tq1_0(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 52);
    // Five digits to base 3 in each of 32 bytes, then of 16, then four digits in each of four bytes. A byte is the number
    // that the digits spell, scaled to 256: multiplying it by 3 moves the next digit above the eight bits.
    let (first, rest) = into.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, into) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        for (i, x) in into.iter_mut().enumerate() {
            let shifted = bytes[i % bytes.len()].wrapping_mul(3u8.pow((i / bytes.len()) as u32));
            let digit = ((u16::from(shifted) * 3) >> 8) as i8;
            *x = d * f32::from(digit - 1);
        }
    }
}

pub(super) fn tq2_0(block: &[u8], into: &mut [f32]) {
    let d = f16_at(block, 64);
    for (i, x) in into.iter_mut().enumerate() {
        let q = block[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
        *x = d * f32::from(q as i8 - 1);
    }
}
