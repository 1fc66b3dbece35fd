//! Rounding to floats of 8 and 4 bits.
//!
//! Such floats are held by f32, so a conversion is a rounding: to a multiple of the distance between neighbours, which
//! follows from the power of two below the number. Powers of two are found by comparison and all products are with powers
//! of two, so every step is exact on every device.

use olivine_ir::op::Binary;
use olivine_ir::{DType, Error as GraphError, Graph, Tensor, ValueId};

use super::integer::Built;
use crate::ElementType;

/// How conversions to float8e8m0, which has powers of two alone, round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PowerRounding {
    Up,
    Down,
    /// To the nearest, ties up.
    Nearest,
}

/// How a conversion to a small float goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    /// Whether numbers out of range become the largest in range.
    pub(super) saturate: bool,
    /// How powers of two are chosen.
    pub(super) power: PowerRounding,
}

impl Default for Rounding {
    fn default() -> Self {
        Rounding { saturate: true, power: PowerRounding::Up }
    }
}

/// What happens outside a format's range.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Infinity,
    NaN,
    /// Nothing: the format saturates whatever is asked for.
    Largest,
}

/// A binary float with a sign.
struct Format {
    /// Bits of the fraction.
    fraction: i32,
    /// Exponent of the least normal number.
    least: i32,
    /// The largest number.
    most: f64,
    outside: Outside,
    has_negative_zero: bool,
}

fn format(element: ElementType) -> Option<Format> {
    let new = |fraction, least, most, outside, has_negative_zero| {
        Some(Format { fraction, least, most, outside, has_negative_zero })
    };
    match element {
        ElementType::F8E4M3FN => new(3, -6, 448.0, Outside::NaN, true),
        ElementType::F8E4M3FNUZ => new(3, -7, 240.0, Outside::NaN, false),
        ElementType::F8E5M2 => new(2, -14, 57344.0, Outside::Infinity, true),
        ElementType::F8E5M2FNUZ => new(2, -15, 57344.0, Outside::NaN, false),
        ElementType::F4E2M1 => new(1, 0, 6.0, Outside::Largest, true),
        _ => None,
    }
}

/// Whether an element type is a float of 8 or 4 bits.
pub(super) fn is_small(element: ElementType) -> bool {
    element == ElementType::F8E8M0 || format(element).is_some()
}

/// A number of f32 or f64 rounded to a small float; float8e8m0 takes f32 alone.
pub(super) fn round(g: &mut Graph, x: ValueId, to: ElementType, how: Rounding) -> Built {
    let Some(format) = format(to) else { return power_of_two(g, x, how) };
    let dtype = g.ty(x)?.dtype;
    let number = |g: &mut Graph, value: f64| g.constant(Tensor::scalar_of(dtype, value));
    let magnitude = g.abs(x)?;
    let span = (format.most.log2().floor() as i32 - format.least + 1) as u32;
    let least = number(g, 2f64.powi(format.least));
    let power = power_below(g, magnitude, least, doublings(span))?;
    let unit = number(g, 2f64.powi(-format.fraction));
    let unit = g.mul(power, unit)?;
    let steps = g.div(x, unit)?;
    let steps = g.round(steps)?;
    let mut y = g.mul(steps, unit)?;
    if how.saturate || format.outside == Outside::Largest {
        y = g.clamp(y, -format.most, format.most)?;
    } else {
        let (low, high) = (number(g, -format.most), number(g, format.most));
        let (beneath, beyond) = match format.outside {
            Outside::Infinity => (f64::NEG_INFINITY, f64::INFINITY),
            _ => (f64::NAN, f64::NAN),
        };
        let (beneath, beyond) = (number(g, beneath), number(g, beyond));
        let (under, over) = (g.lt(y, low)?, g.gt(y, high)?);
        y = g.select(over, beyond, y)?;
        y = g.select(under, beneath, y)?;
    }
    let zero = number(g, 0.0);
    if format.outside == Outside::Largest {
        // There is no NaN either; it becomes zero.
        let lost = g.isnan(y)?;
        y = g.select(lost, zero, y)?;
    }
    if !format.has_negative_zero {
        let none = g.eq(y, zero)?;
        y = g.select(none, zero, y)?;
    }
    Ok(y)
}

/// The bits of a small float, as u8.
pub(super) fn to_bits(g: &mut Graph, x: ValueId, from: ElementType) -> Built {
    let word = g.bitcast(x, DType::I32)?;
    let Some(format) = format(from) else {
        // The exponent of f32 alone; the least power is its denormal, whose exponent is 0 too.
        let exponent = g.binary_scalar(Binary::Shr, word, 23.0)?;
        let exponent = g.binary_scalar(Binary::And, exponent, 255.0)?;
        return g.cast(exponent, DType::U8);
    };
    let number = |g: &mut Graph, value: i32| g.constant(Tensor::scalar(value));
    let least = f64::from(1 - format.least);
    let magnitude = g.abs(x)?;
    // Below the normal numbers a code counts steps; above, it is the top of f32's with another bias.
    let steps = g.binary_scalar(Binary::Mul, magnitude, 2f64.powi(format.fraction - format.least))?;
    let steps = g.cast(steps, DType::I32)?;
    let top = g.bitcast(magnitude, DType::I32)?;
    let top = g.binary_scalar(Binary::Shr, top, f64::from(23 - format.fraction))?;
    let bias = (127.0 - least) * 2f64.powi(format.fraction);
    let top = g.binary_scalar(Binary::Sub, top, bias)?;
    let limit = g.constant(Tensor::scalar(2f32.powi(format.least)));
    let little = g.lt(magnitude, limit)?;
    let code = g.select(little, steps, top)?;
    let sign = 1 << (from.bits() - 1);
    let (high, zero) = (number(g, sign), number(g, 0));
    let negative = g.lt(word, zero)?;
    let high = g.select(negative, high, zero)?;
    let mut code = g.or(code, high)?;
    if format.outside == Outside::Infinity {
        let infinite = g.isinf(x)?;
        let infinity = number(g, 0x7c);
        let infinity = g.or(infinity, high)?;
        code = g.select(infinite, infinity, code)?;
    }
    let nan = match from {
        ElementType::F8E4M3FN => 0x7f,
        ElementType::F8E5M2 => 0x7e,
        _ => sign,
    };
    let nan = number(g, nan);
    let lost = g.isnan(x)?;
    let code = g.select(lost, nan, code)?;
    g.cast(code, DType::U8)
}

/// The small floats of some bits, given as u8.
pub(super) fn of_bits(g: &mut Graph, x: ValueId, to: ElementType) -> Built {
    let count = 1usize << to.bits().min(8);
    let all: Vec<f32> = (0..count).map(|code| crate::tensor::small_float(to, code as u8)).collect();
    let table = g.constant(Tensor::new([count], all)?);
    let index = g.cast(x, DType::I32)?;
    g.gather(table, index, 0)
}

/// Numbers of doublings that add up to everything below a power of two over `span`, the largest first.
fn doublings(span: u32) -> impl Iterator<Item = i32> {
    let bits = 32 - span.leading_zeros();
    (0..bits).rev().map(|bit| 1 << bit)
}

/// The largest power of two that is not above a number, or `least` if that is larger; NaN becomes `least`.
fn power_below(
    g: &mut Graph,
    x: ValueId,
    least: ValueId,
    doublings: impl Iterator<Item = i32>,
) -> Result<ValueId, GraphError> {
    let dtype = g.ty(x)?.dtype;
    doublings.into_iter().try_fold(least, |power, by| {
        let factor = g.constant(Tensor::scalar_of(dtype, 2f64.powi(by)));
        let raised = g.mul(power, factor)?;
        let reached = g.ge(x, raised)?;
        g.select(reached, raised, power)
    })
}

/// The power of two from 2^-127 to 2^127 that stands for a number of f32. The least one is below f32's normal numbers:
/// it is chosen, never computed.
fn power_of_two(g: &mut Graph, x: ValueId, how: Rounding) -> Built {
    let number = |g: &mut Graph, value: f32| g.constant(Tensor::scalar(value));
    let tiny = f32::MIN_POSITIVE / 2.0;
    let (least, normal) = (number(g, tiny), number(g, f32::MIN_POSITIVE));
    let (most, nan) = (number(g, 2f32.powi(127)), number(g, f32::NAN));
    let x = g.abs(x)?;
    let below = power_below(g, x, normal, std::iter::once(127).chain(doublings(127)))?;
    let two = number(g, 2.0);
    let above = g.mul(below, two)?;
    // For normal numbers the choice is between `below` and `above`, under them between the two least.
    let (y, little) = match how.power {
        PowerRounding::Down => (below, least),
        PowerRounding::Up => {
            let (past, past_least) = (g.gt(x, below)?, g.gt(x, least)?);
            (g.select(past, above, below)?, g.select(past_least, normal, least)?)
        }
        PowerRounding::Nearest => {
            let factor = number(g, 1.5);
            let middle = g.mul(below, factor)?;
            let little_middle = number(g, tiny * 1.5);
            let (past, past_little) = (g.ge(x, middle)?, g.ge(x, little_middle)?);
            (g.select(past, above, below)?, g.select(past_little, normal, least)?)
        }
    };
    let is_little = g.lt(x, normal)?;
    let mut y = g.select(is_little, little, y)?;
    let beyond = g.gt(y, most)?;
    y = g.select(beyond, if how.saturate { most } else { nan }, y)?;
    if !how.saturate {
        let under = g.lt(x, least)?;
        y = g.select(under, nan, y)?;
    }
    let lost = g.isnan(x)?;
    g.select(lost, nan, y)
}

#[cfg(test)]
mod tests {
    use olivine_ir::half::f16;

    use super::super::computed::computed;
    use super::*;
    use crate::tensor::small_float;

    const FORMATS: [ElementType; 5] = [
        ElementType::F8E4M3FN,
        ElementType::F8E4M3FNUZ,
        ElementType::F8E5M2,
        ElementType::F8E5M2FNUZ,
        ElementType::F4E2M1,
    ];

    /// The finite numbers of a format from zero on, each with its code.
    fn numbers(element: ElementType) -> Vec<(f32, u8)> {
        let codes = 0..1u16 << (element.bits() - 1);
        let all = codes.map(|code| (small_float(element, code as u8), code as u8));
        all.filter(|(value, _)| value.is_finite()).collect()
    }

    /// The nearest number by search, ties to the even code.
    fn nearest(numbers: &[(f32, u8)], x: f32) -> f32 {
        let size = f64::from(x.abs());
        let above = numbers.partition_point(|(value, _)| f64::from(*value) < size);
        let Some(&(high, code)) = numbers.get(above) else {
            return numbers.last().map_or(0.0, |(most, _)| most.copysign(x));
        };
        let below = above.checked_sub(1).and_then(|i| numbers.get(i)).map_or(high, |(low, _)| *low);
        let (down, up) = (size - f64::from(below), f64::from(high) - size);
        let near = if up < down || up == down && code % 2 == 0 { high } else { below };
        near.copysign(x)
    }

    #[test]
    fn every_half_rounds_to_the_nearest_small_float() -> Result<(), String> {
        let halves = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32());
        let xs: Vec<f32> = halves.filter(|x| !x.is_nan()).collect();
        let input = Tensor::new([xs.len()], xs.clone()).map_err(|e| e.to_string())?;
        for element in FORMATS {
            let all = numbers(element);
            let y =
                computed(std::slice::from_ref(&input), |g, x| round(g, x[0], element, Rounding::default()))?;
            let y = y.as_slice::<f32>().map_err(|e| e.to_string())?;
            for (x, y) in xs.iter().zip(y) {
                assert_eq!(*y, nearest(&all, *x), "{x} as {element}");
            }
        }
        Ok(())
    }

    #[test]
    fn every_code_survives_the_way_through_its_bits() -> Result<(), String> {
        for element in FORMATS.into_iter().chain([ElementType::F8E8M0]) {
            let codes: Vec<u8> = (0..=255).filter(|code| usize::from(*code) < 1 << element.bits()).collect();
            let input = Tensor::new([codes.len()], codes.clone()).map_err(|e| e.to_string())?;
            let bits = computed(&[input], |g, x| {
                let y = of_bits(g, x[0], element)?;
                to_bits(g, y, element)
            })?;
            for (code, bits) in codes.iter().zip(bits.as_slice::<u8>().map_err(|e| e.to_string())?) {
                let (from, to) = (small_float(element, *code), small_float(element, *bits));
                assert!(code == bits || from.is_nan() && to.is_nan(), "{code} of {element} became {bits}");
            }
        }
        Ok(())
    }
}
