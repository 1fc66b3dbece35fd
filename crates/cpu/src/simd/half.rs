//! f16 and bf16 as f32 numbers: widening, narrowing and rounding, without branches.
//!
//! f16 goes through the processor's own conversions where it has them; what is left of a vector, through ours.

use half::{bf16, f16};
use olivine_ir::round_to_odd;

use super::{Fn1, map1};
#[cfg(target_arch = "x86_64")]
use super::{Vectors, f16c, vectors};

/// Whether conversions of f16 are instructions.
#[cfg(target_arch = "x86_64")]
fn has_f16c() -> bool {
    vectors() >= Vectors::Avx2
}

/// Widens f16 numbers.
pub(crate) fn widen_f16(x: &[f16], out: &mut [f32]) {
    // Safety: `has_f16c` has seen the instructions on this processor.
    #[cfg(target_arch = "x86_64")]
    let done = if has_f16c() { unsafe { f16c::widen(x, out) } } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    map1(WidenF16, &x[done..], &mut out[done..]);
}

/// Widens bf16 numbers.
pub(crate) fn widen_bf16(x: &[bf16], out: &mut [f32]) {
    map1(WidenBf16, x, out);
}

/// Narrows to f16, to nearest even.
pub(crate) fn narrow_f16(x: &[f32], out: &mut [f16]) {
    // Safety: as above.
    #[cfg(target_arch = "x86_64")]
    let done = if has_f16c() { unsafe { f16c::narrow(x, out) } } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    map1(NarrowF16, &x[done..], &mut out[done..]);
}

/// Narrows to bf16, to nearest even.
pub(crate) fn narrow_bf16(x: &[f32], out: &mut [bf16]) {
    map1(NarrowBf16, x, out);
}

/// Rounds each number to one that f16 can hold.
pub(crate) fn round_f16(x: &mut [f32]) {
    // Safety: as above.
    #[cfg(target_arch = "x86_64")]
    let done = if has_f16c() { unsafe { f16c::round(x) } } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    round_in_place(&mut x[done..], |v| f16_to_f32(f32_to_f16(v)));
}

/// Rounds each number to one that bf16 can hold.
pub(crate) fn round_bf16(x: &mut [f32]) {
    round_in_place(x, |v| f32::from_bits(u32::from(f32_to_bf16(v)) << 16));
}

/// f64 to f16 with one rounding, as an f32 number.
#[inline(always)]
pub(crate) fn f16_from_f64(x: f64) -> f32 {
    f16_to_f32(f32_to_f16(round_to_odd(x)))
}

/// f64 to bf16 with one rounding, as an f32 number.
#[inline(always)]
pub(crate) fn bf16_from_f64(x: f64) -> f32 {
    f32::from_bits(u32::from(f32_to_bf16(round_to_odd(x))) << 16)
}

#[inline(always)]
fn round_in_place(x: &mut [f32], round: impl Fn(f32) -> f32) {
    struct Round<'a, F>(&'a mut [f32], F);
    impl<F: Fn(f32) -> f32> super::Kernel for Round<'_, F> {
        type Output = ();
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            for v in self.0 {
                *v = (self.1)(*v);
            }
        }
    }
    super::run(Round(x, round));
}

#[derive(Clone, Copy)]
struct WidenF16;
impl Fn1<f16, f32> for WidenF16 {
    #[inline(always)]
    fn call<const FMA: bool>(self, x: f16) -> f32 {
        f16_to_f32(x.to_bits())
    }
}

#[derive(Clone, Copy)]
struct WidenBf16;
impl Fn1<bf16, f32> for WidenBf16 {
    #[inline(always)]
    fn call<const FMA: bool>(self, x: bf16) -> f32 {
        f32::from_bits(u32::from(x.to_bits()) << 16)
    }
}

#[derive(Clone, Copy)]
struct NarrowF16;
impl Fn1<f32, f16> for NarrowF16 {
    #[inline(always)]
    fn call<const FMA: bool>(self, x: f32) -> f16 {
        f16::from_bits(f32_to_f16(x))
    }
}

#[derive(Clone, Copy)]
struct NarrowBf16;
impl Fn1<f32, bf16> for NarrowBf16 {
    #[inline(always)]
    fn call<const FMA: bool>(self, x: f32) -> bf16 {
        bf16::from_bits(f32_to_bf16(x))
    }
}

/// Exponent and mantissa move to their place; a product with a power of two then normalises subnormals as well.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    let finite = f32::from_bits(rest) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(rest | 0x7f80_0000);
    let magnitude = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, abs) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Numbers of f16's normal range: round the mantissa by an integer sum, the carry may raise the exponent.
    let normal = (abs + 0x0fff + ((abs >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    // Smaller ones: the sum with 1/2 puts the last f16 bit in the last f32 bit and rounds there.
    let subnormal = (f32::from_bits(abs) + 0.5).to_bits() - 0.5f32.to_bits();
    let nan = 0x7e00 | ((abs >> 13) & 0x03ff);
    let small = if abs < 113 << 23 { subnormal } else { normal };
    let finite = if abs >= 0x477f_f000 { 0x7c00 } else { small };
    let magnitude = if abs > 0x7f80_0000 { nan } else { finite };
    (sign | magnitude) as u16
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{bits:#x}: {ours} {theirs}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_over_all_magnitudes() {
        for bits in (0..=u32::MAX).step_by(1009).chain([0x477f_efff, 0x477f_f000, 0x3300_0000, 0x3300_0001]) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (f32_to_f16(x), f16::from_f32_const(x));
            assert!(ours == theirs.to_bits() || (x.is_nan() && theirs.is_nan()), "{x}: {ours:#x} {theirs}");
            let (ours, theirs) = (f32_to_bf16(x), bf16::from_f32(x));
            assert!(ours == theirs.to_bits() || (x.is_nan() && theirs.is_nan()), "{x}: {ours:#x} {theirs}");
        }
    }

    #[test]
    fn slices_convert_alike_on_every_instruction_set() {
        use crate::simd::{Vectors, limit_vectors};
        let x: Vec<f32> = (0..=u32::MAX).step_by(10_007).map(f32::from_bits).collect();
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for most in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(most);
            for len in [0, 1, 7, 8, 9, x.len()] {
                let mut narrow = vec![f16::ZERO; len];
                narrow_f16(&x[..len], &mut narrow);
                for (n, x) in narrow.iter().zip(&x) {
                    let want = f16::from_f32_const(*x);
                    assert!(
                        n.to_bits() == want.to_bits() || (n.is_nan() && want.is_nan()),
                        "{x}: {n} {want}"
                    );
                }
            }
            let mut wide = vec![0.0; all.len()];
            widen_f16(&all, &mut wide);
            for (w, x) in wide.iter().zip(&all) {
                assert!(*w == x.to_f32_const() || (w.is_nan() && x.is_nan()), "{x}: {w}");
            }
        }
        limit_vectors(Vectors::Avx512);
    }

    #[test]
    fn rounding_in_f32_equals_narrowing_and_widening() {
        let x: Vec<f32> = (0..=u32::MAX).step_by(100_003).map(f32::from_bits).collect();
        let mut rounded = x.clone();
        round_f16(&mut rounded);
        let mut narrow = vec![f16::ZERO; x.len()];
        narrow_f16(&x, &mut narrow);
        let mut wide = vec![0.0; x.len()];
        widen_f16(&narrow, &mut wide);
        assert!(rounded.iter().zip(&wide).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
