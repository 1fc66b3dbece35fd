//! Small integers in words as floats, in few instructions.

use olivine_kernel::{Scalar, Val};

/// Bits of a field's lowest place that lets it stay where it is in the mantissa of a float.
const MANTISSA: u32 = 23;

/// `count` unsigned fields of `width` bits, `stride` bits apart from bit `first` on, less a bias, as f32.
///
/// A field at bit `p` is put into the mantissa of 2^(23 − p) where it is: one instruction, and one subtraction that is
/// exact. That is faster than a shift, a mask and a conversion.
pub(crate) fn fields<'k>(
    word: Val<'k>,
    first: u32,
    (width, stride): (u32, u32),
    count: u32,
    bias: u32,
) -> Vec<Val<'k>> {
    let (mut shifted, mut shift) = (word, 0);
    (0..count)
        .map(|i| {
            let place = first + i * stride;
            if place - shift + width > MANTISSA {
                // Of bytes, the same for both halves: the upper bytes of one are then those of the other.
                shift = if stride == 8 && place >= 20 { 20 } else { place };
                shifted = word >> shift;
            }
            field(shifted, place - shift, width, bias)
        })
        .collect()
}

/// The field of `width` bits from bit `place` on, which ends below the mantissa's end, less a bias.
fn field(word: Val<'_>, place: u32, width: u32, bias: u32) -> Val<'_> {
    let mask = ((1u32 << width) - 1) << place;
    let exponent = (127 + MANTISSA - place) << MANTISSA;
    let float = ((word & mask) | exponent).bitcast(Scalar::F32);
    float - word.builder().f32((1u32 << (MANTISSA - place)) as f32 + bias as f32)
}

/// `width` bits of each byte from bit `first` on, less a bias, as f32.
pub(crate) fn bytes<'k>(word: Val<'k>, (first, width): (u32, u32), bias: u32) -> Vec<Val<'k>> {
    fields(word, first, (width, 8), 4, bias)
}

/// Four signed bytes as f32.
pub(crate) fn signed_bytes(word: Val<'_>) -> Vec<Val<'_>> {
    bytes(word ^ 0x8080_8080u32, (0, 8), 128)
}

/// The low four bits of a word as the lowest bits of its bytes.
pub(crate) fn spread(bits: Val<'_>) -> Val<'_> {
    // Four copies, seven bits apart, meet nowhere.
    ((bits & 0xfu32) * 0x0020_4081u32) & 0x0101_0101u32
}

/// Four bytes, none of them 0, those negated whose bit among the low four is set.
pub(crate) fn with_signs<'k>(magnitudes: Val<'k>, signs: Val<'k>) -> Val<'k> {
    let ones = spread(signs);
    (magnitudes ^ (ones * 255u32)) + ones
}

/// Seven bits of signs and an eighth that makes the number of minuses even.
pub(crate) fn even_signs(bits: Val<'_>) -> Val<'_> {
    let seven = bits & 127u32;
    seven | ((seven.count_ones() & 1u32) << 7)
}

/// Both f16 of both words in the order of bytes: the first word has bytes 0 and 2, the second 1 and 3.
fn interleaved<'k>(even: Val<'k>, odd: Val<'k>) -> Vec<Val<'k>> {
    vec![even.unpack_half(0), odd.unpack_half(0), even.unpack_half(1), odd.unpack_half(1)]
}

/// Four floats of 4 bits (e2m1) in the low halves of bytes, 2^-14 times their value: as f16 with the same mantissa.
pub(crate) fn e2m1(word: Val<'_>) -> Vec<Val<'_>> {
    let even = ((word << 12) & 0x8000_8000u32) | ((word << 9) & 0x0e00_0e00u32);
    let odd = ((word << 4) & 0x8000_8000u32) | ((word << 1) & 0x0e00_0e00u32);
    interleaved(even, odd)
}

/// Four floats of 8 bits (e5m2): the upper bytes of f16.
pub(crate) fn e5m2(word: Val<'_>) -> Vec<Val<'_>> {
    interleaved((word << 8) & 0xff00_ff00u32, word & 0xff00_ff00u32)
}

/// Four floats of 8 bits (e4m3), 2^-8 times their value: as f16 with the same mantissa. The one magnitude that is NaN
/// gets the exponent of NaN: it is the one that carries when 1 is added.
pub(crate) fn e4m3<'k>(word: Val<'k>) -> Vec<Val<'k>> {
    let of = |bytes: Val<'k>, signs: Val<'k>| {
        let magnitudes = bytes & 0x007f_007fu32;
        let nan = (magnitudes + 0x0001_0001u32) & 0x0080_0080u32;
        (signs & 0x8000_8000u32) | (magnitudes << 7) | (nan << 7)
    };
    let (even, odd) = (of(word, word << 8), of(word >> 8, word));
    interleaved(even, odd)
}
