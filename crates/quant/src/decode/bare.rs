//! Elements without a scale: small integers and 8-bit floats.

pub(super) fn u2(block: &[u8], into: &mut [f32]) {
    for (i, x) in into.iter_mut().enumerate() {
        *x = f32::from(block[0] >> (2 * i) & 3);
    }
}

pub(super) fn u4(block: &[u8], into: &mut [f32]) {
    into[0] = f32::from(block[0] & 15);
    into[1] = f32::from(block[0] >> 4);
}

pub(super) fn i4(block: &[u8], into: &mut [f32]) {
    into[0] = f32::from((block[0] << 4) as i8 >> 4);
    into[1] = f32::from(block[0] as i8 >> 4);
}

pub(super) fn f8_e4m3(block: &[u8], into: &mut [f32]) {
    let (sign, x) = (block[0] & 0x80, block[0] & 0x7f);
    let magnitude = match x {
        0x7f => f32::NAN,
        x if x < 8 => f32::from(x) * 2f32.powi(-9),
        // The exponent's bias is 7, that of f32 127.
        x => f32::from_bits((u32::from(x) << 20) + (120 << 23)),
    };
    into[0] = if sign != 0 { -magnitude } else { magnitude };
}

pub(super) fn f8_e5m2(block: &[u8], into: &mut [f32]) {
    into[0] = half::f16::from_bits(u16::from(block[0]) << 8).to_f32();
}
