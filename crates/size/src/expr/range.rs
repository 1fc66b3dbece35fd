//! Interval arithmetic: between which numbers the exact value of an expression lies.
//!
//! Bounds are 128 bits wide, so that products of two symbols are exact. What does not fit there is taken as
//! unbounded. A range holds for all values of the symbols within their bounds for which no division is by zero.

/// No lower bound.
const NONE_BELOW: i128 = i128::MIN;
/// No upper bound.
const NONE_ABOVE: i128 = i128::MAX;

/// A closed interval; the extreme numbers stand for "unbounded".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: i128,
    pub(crate) max: i128,
}

impl Range {
    pub(crate) const ALL: Range = Range { min: NONE_BELOW, max: NONE_ABOVE };

    pub(crate) fn new(min: i64, max: i64) -> Range {
        Range { min: min.into(), max: max.into() }
    }

    pub(crate) fn constant(value: i64) -> Range {
        Range::new(value, value)
    }

    /// True when `value` is in the range.
    #[cfg(test)]
    pub(crate) fn contains(self, value: i128) -> bool {
        self.min <= value && value <= self.max
    }

    /// True when every value is in `min..max`.
    pub(crate) fn is_within(self, min: i128, end: i128) -> bool {
        self.min >= min && self.max < end
    }

    /// A lower bound may be any smaller number, an upper bound any larger one: what overflowed becomes finite again.
    fn from_ends(min: i128, max: i128) -> Range {
        Range { min: min.min(NONE_ABOVE - 1), max: max.max(NONE_BELOW + 1) }
    }

    pub(crate) fn add(self, other: Range) -> Range {
        let min = if self.min == NONE_BELOW || other.min == NONE_BELOW {
            NONE_BELOW
        } else {
            self.min.saturating_add(other.min)
        };
        let max = if self.max == NONE_ABOVE || other.max == NONE_ABOVE {
            NONE_ABOVE
        } else {
            self.max.saturating_add(other.max)
        };
        Range::from_ends(min, max)
    }

    pub(crate) fn negate(self) -> Range {
        let flip = |end: i128| match end {
            NONE_BELOW => NONE_ABOVE,
            NONE_ABOVE => NONE_BELOW,
            finite => -finite,
        };
        Range::from_ends(flip(self.max), flip(self.min))
    }

    pub(crate) fn multiply(self, other: Range) -> Range {
        // Saturation keeps the sign, and an unbounded end times anything but zero saturates too.
        Range::from_corners(self, other, i128::saturating_mul)
    }

    /// All products of `count` equal factors from this range.
    pub(crate) fn power(self, count: usize) -> Range {
        let mut result = Range::constant(1);
        for _ in 0..count {
            result = result.multiply(self);
        }
        if count.is_multiple_of(2) { Range { min: result.min.max(0), ..result } } else { result }
    }

    pub(crate) fn divide_floor(self, divisor: Range) -> Range {
        self.divide(divisor, |a, b| a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0), true)
    }

    pub(crate) fn divide_ceil(self, divisor: Range) -> Range {
        self.divide(divisor, |a, b| a.div_euclid(b) + i128::from(b > 0 && a.rem_euclid(b) != 0), false)
    }

    pub(crate) fn remainder(self, divisor: Range) -> Range {
        // The sign is the divisor's, the magnitude less.
        let max =
            if divisor.max > 0 && divisor.max != NONE_ABOVE { divisor.max - 1 } else { divisor.max.max(0) };
        let min =
            if divisor.min < 0 && divisor.min != NONE_BELOW { divisor.min + 1 } else { divisor.min.min(0) };
        if divisor.min > 0 && self.is_within(0, divisor.min) {
            return self;
        }
        let max = if self.min >= 0 && divisor.min >= 0 { max.min(self.max) } else { max };
        Range { min, max }
    }

    pub(crate) fn minimum(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.min(other.max) }
    }

    pub(crate) fn maximum(self, other: Range) -> Range {
        Range { min: self.min.max(other.min), max: self.max.max(other.max) }
    }

    pub(crate) fn absolute(self) -> Range {
        let other = self.negate();
        if self.min >= 0 {
            self
        } else if self.max <= 0 {
            other
        } else {
            Range { min: 0, max: self.max.max(other.max) }
        }
    }

    pub(crate) fn next_power_of_two(self) -> Range {
        let power = |end: i128| match end {
            NONE_ABOVE => NONE_ABOVE,
            end if end <= 1 => 1,
            end => i128::try_from(end.unsigned_abs().checked_next_power_of_two().unwrap_or(u128::MAX))
                .unwrap_or(NONE_ABOVE),
        };
        Range::from_ends(power(self.min), power(self.max))
    }

    /// The ends clamped to 64 bits.
    pub(crate) fn clamped(self) -> (i64, i64) {
        let clamp = |end: i128| end.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        (clamp(self.min), clamp(self.max))
    }

    fn from_corners(a: Range, b: Range, f: impl Fn(i128, i128) -> i128) -> Range {
        let corners = [f(a.min, b.min), f(a.min, b.max), f(a.max, b.min), f(a.max, b.max)];
        let min = corners.iter().copied().fold(NONE_ABOVE, i128::min);
        let max = corners.iter().copied().fold(NONE_BELOW, i128::max);
        Range::from_ends(min, max)
    }

    /// Quotients are monotonic in either operand where the divisor keeps its sign, so the corners are the ends.
    fn divide(self, divisor: Range, round: impl Fn(i128, i128) -> i128, down: bool) -> Range {
        let corner = |a: i128, b: i128| {
            let a_unbounded = a == NONE_BELOW || a == NONE_ABOVE;
            let b_unbounded = b == NONE_BELOW || b == NONE_ABOVE;
            let negative = (a < 0) != (b < 0);
            match (a_unbounded, b_unbounded) {
                (true, _) => {
                    if negative {
                        NONE_BELOW
                    } else {
                        NONE_ABOVE
                    }
                }
                (false, true) if a == 0 => 0,
                (false, true) if negative => {
                    if down {
                        -1
                    } else {
                        0
                    }
                }
                (false, true) => {
                    if down {
                        0
                    } else {
                        1
                    }
                }
                (false, false) => round(a, b),
            }
        };
        let above = Range { min: divisor.min.max(1), max: divisor.max };
        let below = Range { min: divisor.min, max: divisor.max.min(-1) };
        let part = |part: Range| (part.min <= part.max).then(|| Range::from_corners(self, part, corner));
        match (part(above), part(below)) {
            (Some(a), Some(b)) => Range { min: a.min.min(b.min), max: a.max.max(b.max) },
            (Some(range), None) | (None, Some(range)) => range,
            (None, None) => Range::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::{div_ceil, div_floor, next_power_of_two, rem};

    /// Every operation on every pair of small ranges contains every result.
    #[test]
    fn ranges_contain_all_results() {
        let ends = -6..=6;
        for a_min in ends.clone() {
            for a_max in a_min..=6 {
                for b_min in ends.clone() {
                    for b_max in b_min..=6 {
                        check(
                            Range::new(a_min, a_max),
                            Range::new(b_min, b_max),
                            (a_min, a_max),
                            (b_min, b_max),
                        );
                    }
                }
            }
        }
    }

    fn check(ra: Range, rb: Range, (a_min, a_max): (i64, i64), (b_min, b_max): (i64, i64)) {
        for a in a_min..=a_max {
            for b in b_min..=b_max {
                let results = [
                    (Ok(a + b), ra.add(rb)),
                    (Ok(a * b), ra.multiply(rb)),
                    (Ok(a * a), ra.power(2)),
                    (Ok(-a), ra.negate()),
                    (Ok(a.abs()), ra.absolute()),
                    (Ok(a.min(b)), ra.minimum(rb)),
                    (Ok(a.max(b)), ra.maximum(rb)),
                    (next_power_of_two(a), ra.next_power_of_two()),
                    (div_floor(a, b), ra.divide_floor(rb)),
                    (div_ceil(a, b), ra.divide_ceil(rb)),
                    (rem(a, b), ra.remainder(rb)),
                ];
                for (i, (result, range)) in results.into_iter().enumerate() {
                    let fits = result.is_err() || result.is_ok_and(|value| range.contains(value.into()));
                    assert!(
                        fits,
                        "operation {i} of {a} and {b}: {result:?} is not in {range:?} of {ra:?} and {rb:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_of_large_bounds_become_unbounded_and_stay_valid() {
        let large = Range::new(1 << 40, 1 << 60);
        let mut product = large;
        for _ in 0..5 {
            product = product.multiply(large);
        }
        assert_eq!(product.max, NONE_ABOVE);
        assert!(product.min > 1 << 100);
        let difference = product.add(product.negate());
        assert!(difference.contains(0) && difference.min == NONE_BELOW && difference.max == NONE_ABOVE);
    }
}
