//! Numbers as WGSL literals.

use std::fmt::Write as _;

use crate::types::Scalar;

/// A number's literal, or `None` for floats that have none that every compiler keeps: infinities, NaN, subnormal
/// numbers and the negative zero.
pub(super) fn literal(scalar: Scalar, bits: u64) -> Option<String> {
    Some(match scalar {
        Scalar::Bool => (bits != 0).to_string(),
        Scalar::U32 => format!("{}u", bits as u32),
        Scalar::U64 => format!("{bits}lu"),
        Scalar::I32 => signed(i64::from(bits as u32 as i32), i64::from(i32::MIN), "i"),
        Scalar::I64 => signed(bits as i64, i64::MIN, "li"),
        Scalar::F32 => {
            let x = f32::from_bits(bits as u32);
            (x.is_normal() || bits == 0).then(|| float(f64::from(x), x, "f"))?
        }
        Scalar::F64 => {
            let x = f64::from_bits(bits);
            (x.is_normal() || bits == 0).then(|| wrap(x < 0.0, format!("{x:?}lf")))?
        }
        Scalar::F16 => {
            let (exponent, mantissa) = ((bits >> 10) & 31, bits & 1023);
            if exponent == 31 || (exponent == 0 && bits != 0) {
                return None;
            }
            let x = half_value(exponent, mantissa, bits & 0x8000 != 0);
            float(f64::from(x), x, "h")
        }
    })
}

/// Statements that make value `i`, `k<i>`, from its bits at run time.
pub(super) fn by_bits(i: usize, scalar: Scalar, bits: u64) -> String {
    let mut out = String::new();
    let _ = match scalar {
        Scalar::F64 => writeln!(out, "    let b{i} = {bits}lu;\n    let k{i} = bitcast<f64>(b{i});"),
        Scalar::F16 => {
            writeln!(out, "    let b{i} = {bits}u;\n    let k{i} = f16(unpack2x16float(b{i}).x);")
        }
        _ => writeln!(out, "    let b{i} = 0x{bits:08x}u;\n    let k{i} = bitcast<f32>(b{i});"),
    };
    out
}

fn half_value(exponent: u64, mantissa: u64, negative: bool) -> f32 {
    if exponent == 0 {
        return 0.0;
    }
    let magnitude = f32::from_bits(((exponent as u32 + 112) << 23) | ((mantissa as u32) << 13));
    if negative { -magnitude } else { magnitude }
}

fn signed(x: i64, least: i64, suffix: &str) -> String {
    if x == least {
        // The least integer's magnitude has no literal of its type.
        return format!("({}{suffix} - 1{suffix})", x + 1);
    }
    wrap(x < 0, format!("{x}{suffix}"))
}

/// The shortest decimal that reads back as the number whether it is read as f32 or as f64 and then rounded. Browsers refuse
/// one above the largest f32 that would be rounded to it.
fn float(wide: f64, x: f32, suffix: &str) -> String {
    let short = format!("{x:?}");
    let text = if short.parse::<f64>().is_ok_and(|y| y as f32 == x && y.abs() <= f64::from(f32::MAX)) {
        short
    } else {
        format!("{wide:?}")
    };
    wrap(x < 0.0, format!("{text}{suffix}"))
}

fn wrap(negative: bool, text: String) -> String {
    if negative { format!("({text})") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_exact_and_typed() {
        let f = |x: f32| literal(Scalar::F32, u64::from(x.to_bits()));
        assert_eq!(f(0.1).as_deref(), Some("0.1f"));
        assert_eq!(f(-2.5).as_deref(), Some("(-2.5f)"));
        assert_eq!(f(1e-7).as_deref(), Some("1e-7f"));
        assert_eq!(f(f32::MAX).as_deref(), Some("3.4028234663852886e38f"));
        assert_eq!(f(-0.0), None);
        assert_eq!(f(1e-40), None);
        assert_eq!(f(f32::INFINITY), None);
        assert_eq!(literal(Scalar::I32, 0x8000_0000).as_deref(), Some("(-2147483647i - 1i)"));
        assert_eq!(literal(Scalar::I64, u64::MAX).as_deref(), Some("(-1li)"));
        assert_eq!(literal(Scalar::F16, 0x3c00).as_deref(), Some("1.0h"));
        assert_eq!(literal(Scalar::F16, 0xfbff).as_deref(), Some("(-65504.0h)"));
        assert_eq!(literal(Scalar::F16, 0x0001), None);
    }
}
