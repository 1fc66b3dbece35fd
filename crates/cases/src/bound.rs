//! How far a result may be from the oracle's, and the judgement.

use olivine_ir::{DType, Tensor};

use crate::oracle::{Numbers, Value};

/// The distance a backend may keep from the oracle. NaN must meet NaN and an infinity the same infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The oracle's number as the dtype stores it, the sign of zero included.
    Bits,
    /// The oracle's number as the dtype stores it; the two zeros are one.
    Exact,
    /// So many units in the last place of an f32; a narrower dtype may be one of its own units off.
    Ulp(f64),
    /// So many roundings of the accumulator, each relative to what the graph gives on the operands' magnitudes
    /// (for a matmul Σ|a||b|), plus the rounding of the result. For graphs that are linear in their floats.
    Sum(f64),
    /// So many roundings of the compute type relative to the largest finite magnitude of the result; a narrow result
    /// may be one of its own units off and lose one rounding of that magnitude on the way.
    Scaled(f64),
    /// So many roundings of the result's dtype relative to the largest finite magnitude of the result, fewer where it
    /// is narrow. For graphs whose values between operations are stored in their dtype.
    Peak(f64),
    /// So many roundings of the compute type relative to the result, and so many of it relative to one; a narrow
    /// result may be one of its own units off besides.
    Near(f64, f64),
    /// |got − want| ≤ rel·|want| + abs, and for a narrow result one of its own units.
    Close {
        /// Relative part.
        rel: f64,
        /// Absolute part.
        abs: f64,
    },
}

/// The roundings a sum of `n` terms is allowed: ample for any order of a blocked sum, far below one lost term.
pub fn sum_of(n: usize) -> Bound {
    Bound::Sum(4.0 + 2.0 * (n as f64).sqrt())
}

/// Where and by how much a result is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Row-major position.
    pub index: usize,
    /// What the backend gave.
    pub got: f64,
    /// What the oracle gave.
    pub want: f64,
    /// |got − want|.
    pub error: f64,
    /// What the error may be.
    pub bound: f64,
}

/// Bits after the leading one, least normal exponent and greatest exponent of a float dtype.
fn format_of(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F16 => (10, -14, 15),
        DType::BF16 => (7, -126, 127),
        DType::F32 => (23, -126, 127),
        _ => (52, -1022, 1023),
    }
}

/// 2ᵏ for any k an f64 can hold.
fn power_of_two(k: i32) -> f64 {
    if k < -1022 {
        f64::from_bits(1u64 << (k + 1074).max(0))
    } else {
        f64::from_bits(((k + 1023) as u64) << 52)
    }
}

fn exponent(x: f64) -> i32 {
    let bits = (x.abs().to_bits() >> 52) as i32;
    if bits == 0 { -1074 + 63 - x.abs().to_bits().leading_zeros() as i32 } else { bits - 1023 }
}

/// The distance between neighbours of a float dtype around `x`.
pub fn ulp(dtype: DType, x: f64) -> f64 {
    let (bits, least, greatest) = format_of(dtype);
    if x == 0.0 || !x.is_finite() {
        return power_of_two(least - bits);
    }
    power_of_two(exponent(x).clamp(least, greatest) - bits)
}

/// The nearest number of a float dtype, ties to even; beyond its range an infinity. Integers pass.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F64 || !dtype.is_float() || x == 0.0 || !x.is_finite() {
        return x;
    }
    let unit = ulp(dtype, x);
    let (bits, _, greatest) = format_of(dtype);
    let largest = (2.0 - power_of_two(-bits)) * power_of_two(greatest);
    let r = (x / unit).round_ties_even() * unit;
    if r.abs() > largest { f64::INFINITY.copysign(x) } else { r }
}

/// The unit of one rounding, 2^-p.
fn epsilon(dtype: DType) -> f64 {
    power_of_two(-format_of(dtype).0 - 1)
}

impl Bound {
    /// Whether it allows no distance at all.
    pub fn is_exact(&self) -> bool {
        matches!(self, Bound::Bits | Bound::Exact)
    }

    /// Whether the judgement needs the graph's result on magnitudes.
    pub fn needs_magnitude(&self) -> bool {
        matches!(self, Bound::Sum(_))
    }

    /// Compares one output; gives the worst error as a part of what is allowed (0 to 1), or the worst offender.
    pub fn judge(&self, want: &Value, magnitude: Option<&Value>, got: &Tensor) -> Result<f64, Box<Mismatch>> {
        match &want.data {
            Numbers::Ints(w) => {
                let got = Value::of(got);
                let found = got.as_ints().unwrap_or(&[]);
                match w.iter().zip(found).position(|(w, g)| w != g) {
                    None => Ok(0.0),
                    Some(i) => Err(Box::new(Mismatch {
                        index: i,
                        got: found[i] as f64,
                        want: w[i] as f64,
                        error: found[i].abs_diff(w[i]) as f64,
                        bound: 0.0,
                    })),
                }
            }
            Numbers::Floats(w) => self.judge_floats(want.ty.dtype, w, magnitude, &got.to_f64()),
        }
    }

    fn judge_floats(
        &self,
        dtype: DType,
        want: &[f64],
        magnitude: Option<&Value>,
        got: &[f64],
    ) -> Result<f64, Box<Mismatch>> {
        let peak = want.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
        let magnitudes = magnitude.and_then(|m| m.as_floats().ok());
        let mut worst = 0.0f64;
        let mut offender: Option<(f64, Mismatch)> = None;
        for (i, (&w, &g)) in want.iter().zip(got).enumerate() {
            let allowed = self.allowed(dtype, w, peak, magnitudes.and_then(|m| m.get(i)).copied());
            let error = (g - w).abs();
            let part = if self.meets(dtype, w, g, allowed) {
                if error == 0.0 || allowed == 0.0 || !error.is_finite() {
                    0.0
                } else {
                    (error / allowed).min(1.0)
                }
            } else if error.is_finite() && allowed > 0.0 {
                1.0 + error / allowed
            } else {
                f64::INFINITY
            };
            worst = worst.max(part);
            if part > 1.0 && offender.as_ref().is_none_or(|(p, _)| part > *p) {
                offender = Some((part, Mismatch { index: i, got: g, want: w, error, bound: allowed }));
            }
        }
        match offender {
            None => Ok(worst),
            Some((_, mismatch)) => Err(Box::new(mismatch)),
        }
    }

    fn meets(&self, dtype: DType, want: f64, got: f64, allowed: f64) -> bool {
        if want.is_nan() || got.is_nan() {
            return want.is_nan() && got.is_nan();
        }
        let stored = round_to(dtype, want);
        match self {
            Bound::Bits => stored.to_bits() == got.to_bits(),
            Bound::Exact => stored == got,
            _ if stored == got => true,
            _ if want.is_infinite() => false,
            // A finite number near the end of the range may land on either side of it.
            _ if got.is_infinite() => round_to(dtype, want + allowed.copysign(got)) == got,
            _ => (got - want).abs() <= allowed,
        }
    }

    /// The error allowed at one position.
    fn allowed(&self, dtype: DType, want: f64, peak: f64, magnitude: Option<f64>) -> f64 {
        let narrow = matches!(dtype, DType::F16 | DType::BF16);
        let size = if want.is_finite() { want.abs() } else { 0.0 };
        let compute = if dtype == DType::F64 { epsilon(DType::F64) } else { epsilon(DType::F32) };
        match *self {
            Bound::Bits | Bound::Exact => 0.0,
            Bound::Ulp(n) if narrow => ulp(dtype, size) + n * 2.0 * compute * size,
            // The oracle itself is only f64 and up to 4 units off.
            Bound::Ulp(n) if dtype == DType::F64 => (n + 4.0) * ulp(dtype, size),
            Bound::Ulp(n) => n * ulp(dtype, size),
            Bound::Sum(n) => {
                n * compute * magnitude.unwrap_or(size) + if narrow { 0.501 } else { 0.5 } * ulp(dtype, size)
            }
            Bound::Scaled(n) => {
                let stored = if narrow { ulp(dtype, size) + epsilon(dtype) * peak } else { ulp(dtype, 0.0) };
                n * compute * peak + stored
            }
            Bound::Peak(n) => {
                let n = if narrow { n.min(4.0 + n / 8.0) } else { n };
                n * epsilon(dtype) * peak + ulp(dtype, 0.0)
            }
            Bound::Near(rel, abs) => {
                let share = if dtype == DType::F64 { 4.0 } else { 1.0 };
                share * compute * (rel * size + abs) + if narrow { ulp(dtype, size) } else { 0.0 }
            }
            Bound::Close { rel, abs } => rel * size + abs + if narrow { ulp(dtype, size) } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::half::{bf16, f16};

    #[test]
    fn rounding_agrees_with_every_f16_and_bf16_and_its_midpoints() {
        for bits in 0..0x7c00u16 {
            let (x, next) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            assert_eq!(round_to(DType::F16, x), x);
            if next.is_finite() {
                let even = if bits % 2 == 0 { x } else { next };
                assert_eq!(round_to(DType::F16, (x + next) / 2.0), even);
                assert_eq!(ulp(DType::F16, x), next - x);
            }
        }
        assert_eq!(round_to(DType::F16, 65519.9), 65504.0);
        assert_eq!(round_to(DType::F16, -65520.0), f64::NEG_INFINITY);
        for bits in (0..0x7f80u16).step_by(7) {
            let x = bf16::from_bits(bits).to_f64();
            assert_eq!(round_to(DType::BF16, x), x);
        }
    }

    #[test]
    fn rounding_to_f32_agrees_with_the_machine() {
        let mut bits = 0x3a5f_1234_9876_4321u64;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let x = f64::from_bits((bits >> 2 & 0x0fff_ffff_ffff_ffff) | 0x3000_0000_0000_0000);
            assert_eq!(round_to(DType::F32, x), f64::from(x as f32), "{x:e}");
        }
        assert_eq!(round_to(DType::F32, 1e-45), f64::from(1e-45f32));
        assert_eq!(round_to(DType::F32, 3.5e38), f64::INFINITY);
    }

    #[test]
    fn bounds_refuse_what_lies_outside_and_take_what_lies_inside() {
        let one = |x: f32| Tensor::scalar(x);
        let want = |x: f64| Value::floats(one(0.0).ty(), vec![x]);
        assert!(Bound::Exact.judge(&want(0.1), None, &one(0.1)).is_ok());
        assert!(Bound::Exact.judge(&want(0.1), None, &one(0.1f32.next_up())).is_err());
        assert!(Bound::Ulp(4.0).judge(&want(1.0), None, &one(1.0 + 3.0 * f32::EPSILON)).is_ok());
        assert!(Bound::Ulp(4.0).judge(&want(1.0), None, &one(1.0 + 5.0 * f32::EPSILON)).is_err());
        assert!(Bound::Bits.judge(&want(0.0), None, &one(-0.0)).is_err());
        assert!(Bound::Exact.judge(&want(0.0), None, &one(-0.0)).is_ok());
        assert!(Bound::Ulp(4.0).judge(&want(f64::NAN), None, &one(1.0)).is_err());
        assert!(Bound::Ulp(4.0).judge(&want(1.0), None, &one(f32::NAN)).is_err());
        assert!(Bound::Ulp(4.0).judge(&want(f64::INFINITY), None, &one(f32::MAX)).is_err());
        assert!(Bound::Ulp(4.0).judge(&want(1e39), None, &one(f32::INFINITY)).is_ok());
        assert!(Bound::Close { rel: 1e9, abs: 1.0 }.judge(&want(f64::NAN), None, &one(0.0)).is_err());
    }
}
