//! Philox4x32-10, and the polynomials by which Box and Muller's method makes normal numbers of its words.
//!
//! Backends make every step by one operation of f32 in the same order, so that all of them give the same bits.

/// Rounds of a block.
pub const ROUNDS: usize = 10;

/// What the first and the third word of the counter are multiplied by.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// What is added to the key after every round.
pub const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The four words of a counter under a key.
#[inline]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let wide = u64::from(a) * u64::from(b);
        ((wide >> 32) as u32, wide as u32)
    };
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let (high0, low0) = product(MULTIPLIERS[0], a);
        let (high1, low1) = product(MULTIPLIERS[1], c);
        (a, b, c, d) = (high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0);
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [a, b, c, d]
}

/// (ln(1 + f) − f + f²/2) / f³ on √½ ≤ 1 + f ≤ √2, the highest coefficient first.
pub const LOG: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_7e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// (sin x − x) / x³ in x² up to an eighth of a turn, the highest coefficient first.
pub const SIN: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1];

/// (cos x − 1 + x²/2) / x⁴ in x² up to an eighth of a turn, the highest coefficient first.
pub const COS: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];

/// 2π / 2²⁴.
pub const TURN: f32 = 3.745_070_3e-7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers() {
        let of = |counter, key| philox(counter, key);
        assert_eq!(of([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(of([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let known = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(of(counter, [0xa409_3822, 0x299f_31d0]), known);
    }
}
