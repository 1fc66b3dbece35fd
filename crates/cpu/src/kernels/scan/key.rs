//! Numbers as unsigned integers of the same order, so that comparing needs no thought of NaN or signs.

use half::{bf16, f16};

use crate::operand::Number;

/// Unsigned integers that hold keys.
pub(super) trait KeyBits: Copy + Ord + Send + Sync + Default + Into<u64> {
    const MAX: Self;
    /// All bits turned: the opposite order.
    fn turned(self) -> Self;
}

macro_rules! key_bits {
    ($($t:ty),*) => {$(
        impl KeyBits for $t {
            const MAX: Self = <$t>::MAX;
            #[inline(always)]
            fn turned(self) -> Self { !self }
        }
    )*};
}
key_bits!(u8, u16, u32, u64);

/// A number with an order-keeping code.
pub(super) trait Keyed: Number {
    type Key: KeyBits;
    /// The code: NaN above all, −0 just below 0. [`Keyed::decode`] gives the number back (NaN as one NaN).
    fn code(self) -> Self::Key;
    fn decode(code: Self::Key) -> Self;
    /// The code with equal numbers made equal: −0 is 0.
    fn key(self) -> Self::Key;
}

macro_rules! keyed_int {
    ($($t:ty => $bits:ty, $flip:expr);*) => {$(
        impl Keyed for $t {
            type Key = $bits;
            #[inline(always)]
            fn code(self) -> $bits { (self as $bits) ^ $flip }
            #[inline(always)]
            fn decode(code: $bits) -> Self { (code ^ $flip) as $t }
            #[inline(always)]
            fn key(self) -> $bits { self.code() }
        }
    )*};
}
keyed_int!(i8 => u8, 1 << 7; u8 => u8, 0; i16 => u16, 1 << 15; i32 => u32, 1 << 31; u32 => u32, 0; i64 => u64, 1 << 63);

macro_rules! keyed_float {
    ($($t:ty => $bits:ty, $nan:expr, $infinity:expr);*) => {$(
        impl Keyed for $t {
            type Key = $bits;
            #[inline(always)]
            fn code(self) -> $bits {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                let bits = if bits & !SIGN > $infinity { $nan } else { bits };
                if bits & SIGN != 0 { !bits } else { bits | SIGN }
            }
            #[inline(always)]
            fn decode(code: $bits) -> Self {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                <$t>::from_bits(if code & SIGN != 0 { code ^ SIGN } else { !code })
            }
            #[inline(always)]
            fn key(self) -> $bits {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                <$t>::from_bits(if bits == SIGN { 0 } else { bits }).code()
            }
        }
    )*};
}
keyed_float! {
    f32 => u32, 0x7fc0_0000, 0x7f80_0000;
    f64 => u64, 0x7ff8_0000_0000_0000, 0x7ff0_0000_0000_0000;
    f16 => u16, 0x7e00, 0x7c00;
    bf16 => u16, 0x7fc0, 0x7f80
}

/// A key and a position in one integer, ordered by key and then by position.
pub(super) trait Packed: Copy + Ord + Send + Sync + Default {
    fn pack(key: u64, position: usize) -> Self;
    fn position(self) -> usize;
    fn key(self) -> u64;
}

/// Keys up to 32 bits and positions below 2³².
impl Packed for u64 {
    #[inline(always)]
    fn pack(key: u64, position: usize) -> u64 {
        key << 32 | position as u64
    }
    #[inline(always)]
    fn position(self) -> usize {
        (self & 0xffff_ffff) as usize
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
    }
}

impl Packed for u128 {
    #[inline(always)]
    fn pack(key: u64, position: usize) -> u128 {
        u128::from(key) << 64 | position as u128
    }
    #[inline(always)]
    fn position(self) -> usize {
        self as u64 as usize
    }
    #[inline(always)]
    fn key(self) -> u64 {
        (self >> 64) as u64
    }
}
