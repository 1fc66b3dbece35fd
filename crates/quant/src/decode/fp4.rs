//! 4-bit floating point: one sign bit, two of exponent, one of mantissa (e2m1).

/// Twice the values of e2m1; scales are halved.
pub(crate) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an e8m0 byte stands for.
pub(crate) fn e8m0_half(x: u8) -> f32 {
    f32::from_bits(if x < 2 { 0x0020_0000 << x } else { (u32::from(x) - 1) << 23 })
}

/// Half of an unsigned e4m3; the code of NaN decodes to 0.
pub(crate) fn e4m3_half(x: u8) -> f32 {
    if x == 0 || x == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    let raw = if exponent == 0 {
        mantissa * 2f32.powi(-9)
    } else {
        (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
    };
    raw * 0.5
}

pub(super) fn mxfp4(block: &[u8], into: &mut [f32]) {
    let d = e8m0_half(block[0]);
    elements(d, &block[1..], into);
}

pub(super) fn nvfp4(block: &[u8], into: &mut [f32]) {
    for (group, into) in into.chunks_exact_mut(16).enumerate() {
        elements(e4m3_half(block[group]), &block[4 + 8 * group..12 + 8 * group], into);
    }
}

/// The low bits of all bytes, then the high bits.
fn elements(d: f32, bytes: &[u8], into: &mut [f32]) {
    for (i, &byte) in bytes.iter().enumerate() {
        into[i] = d * f32::from(E2M1_DOUBLED[usize::from(byte & 15)]);
        into[bytes.len() + i] = d * f32::from(E2M1_DOUBLED[usize::from(byte >> 4)]);
    }
}
