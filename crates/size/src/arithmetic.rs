//! The operations on plain numbers: one definition for values, constants and evaluated tables.

use crate::Fault;

/// An operation on sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    DivFloor,
    DivCeil,
    Rem,
    Min,
    Max,
    Abs,
    NextPowerOfTwo,
}

impl Op {
    /// The result on numbers. Operations of one operand ignore `b`.
    #[inline]
    pub(crate) fn apply(self, a: i64, b: i64) -> Result<i64, Fault> {
        match self {
            Op::Add => a.checked_add(b).ok_or(Fault::Overflow),
            Op::Sub => a.checked_sub(b).ok_or(Fault::Overflow),
            Op::Mul => a.checked_mul(b).ok_or(Fault::Overflow),
            Op::DivFloor => div_floor(a, b),
            Op::DivCeil => div_ceil(a, b),
            Op::Rem => rem(a, b),
            Op::Min => Ok(a.min(b)),
            Op::Max => Ok(a.max(b)),
            Op::Abs => a.checked_abs().ok_or(Fault::Overflow),
            Op::NextPowerOfTwo => next_power_of_two(a),
        }
    }
}

/// The quotient, rounded towards minus infinity.
#[inline]
pub(crate) fn div_floor(a: i64, b: i64) -> Result<i64, Fault> {
    if b == 0 {
        return Err(Fault::DivisionByZero);
    }
    let quotient = a.checked_div(b).ok_or(Fault::Overflow)?;
    // Rust rounds towards zero; the remainder says whether that was up.
    let rest = a.wrapping_rem(b);
    Ok(if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// The quotient, rounded towards plus infinity.
#[inline]
pub(crate) fn div_ceil(a: i64, b: i64) -> Result<i64, Fault> {
    if b == 0 {
        return Err(Fault::DivisionByZero);
    }
    let quotient = a.checked_div(b).ok_or(Fault::Overflow)?;
    let rest = a.wrapping_rem(b);
    Ok(if rest != 0 && (rest < 0) == (b < 0) { quotient + 1 } else { quotient })
}

/// What floor division leaves: it has the sign of the divisor, as in Python.
#[inline]
pub(crate) fn rem(a: i64, b: i64) -> Result<i64, Fault> {
    if b == 0 {
        return Err(Fault::DivisionByZero);
    }
    let rest = a.wrapping_rem(b);
    Ok(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

/// The smallest power of two that is not less; one for all that is less than one.
#[inline]
pub(crate) fn next_power_of_two(a: i64) -> Result<i64, Fault> {
    if a <= 1 {
        return Ok(1);
    }
    i64::try_from(a.unsigned_abs().next_power_of_two()).map_err(|_| Fault::Overflow)
}

/// The greatest common divisor; of zero and zero, zero.
pub(crate) fn gcd(a: i64, b: i64) -> u64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_as_python_does() {
        let cases =
            [(7, 2, 3, 4, 1), (-7, 2, -4, -3, 1), (7, -2, -4, -3, -1), (-7, -2, 3, 4, -1), (6, 3, 2, 2, 0)];
        for (a, b, floor, ceil, rest) in cases {
            assert_eq!(
                (div_floor(a, b), div_ceil(a, b), rem(a, b)),
                (Ok(floor), Ok(ceil), Ok(rest)),
                "{a} / {b}"
            );
        }
    }

    #[test]
    fn the_ends_of_the_range_are_errors_and_never_wrap() {
        assert_eq!(div_floor(i64::MIN, -1), Err(Fault::Overflow));
        assert_eq!(rem(i64::MIN, -1), Ok(0));
        assert_eq!(Op::Abs.apply(i64::MIN, 0), Err(Fault::Overflow));
        assert_eq!(next_power_of_two(i64::MAX), Err(Fault::Overflow));
        assert_eq!(next_power_of_two(1 << 62), Ok(1 << 62));
        assert_eq!(next_power_of_two(-5), Ok(1));
    }
}
