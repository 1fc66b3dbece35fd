//! Conversions from integers, operators and the named operations of [`Dim`].

use std::iter::{Product, Sum};
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Rem, RemAssign, Sub, SubAssign};

use crate::Dim;
use crate::arithmetic::Op;

macro_rules! from_small {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Dim {
            #[inline]
            fn from(value: $integer) -> Dim {
                Dim::constant(value.into())
            }
        }
    )*};
}

from_small!(i64, i32, u32);

macro_rules! from_large {
    ($($integer:ty),*) => {$(
        /// A number above `i64::MAX` is an overflow.
        impl From<$integer> for Dim {
            #[inline]
            fn from(value: $integer) -> Dim {
                i64::try_from(value).map_or_else(|_| Dim::too_large(), Dim::constant)
            }
        }
    )*};
}

from_large!(usize, u64);

impl From<&Dim> for Dim {
    #[inline]
    fn from(dim: &Dim) -> Dim {
        *dim
    }
}

/// Constants take the branch that is inlined; all else is a call.
#[inline]
#[track_caller]
fn apply(op: Op, a: Dim, b: Dim) -> Dim {
    if a.is_constant()
        && b.is_constant()
        && let Ok(value) = op.apply(a.raw(), b.raw())
    {
        return Dim::constant(value);
    }
    Dim::operate(op, a, b)
}

/// One implementation for all right sides, so that the type of `dim * 64` is known before that of `64`.
macro_rules! operator {
    ($trait:ident, $method:ident, $assign:ident, $assign_method:ident, $op:expr) => {
        impl<T: Into<Dim>> $trait<T> for Dim {
            type Output = Dim;

            #[inline]
            #[track_caller]
            fn $method(self, other: T) -> Dim {
                apply($op, self, other.into())
            }
        }

        impl<T: Into<Dim>> $trait<T> for &Dim {
            type Output = Dim;

            #[inline]
            #[track_caller]
            fn $method(self, other: T) -> Dim {
                (*self).$method(other)
            }
        }

        impl<T: Into<Dim>> $assign<T> for Dim {
            #[inline]
            #[track_caller]
            fn $assign_method(&mut self, other: T) {
                *self = (*self).$method(other);
            }
        }

        operator!(integers $trait, $method, usize, u64, u32, i64, i32);
    };
    (integers $trait:ident, $method:ident, $($integer:ty),*) => {$(
        impl $trait<Dim> for $integer {
            type Output = Dim;

            #[inline]
            #[track_caller]
            fn $method(self, other: Dim) -> Dim {
                Dim::from(self).$method(other)
            }
        }
    )*};
}

operator!(Add, add, AddAssign, add_assign, Op::Add);
operator!(Sub, sub, SubAssign, sub_assign, Op::Sub);
operator!(Mul, mul, MulAssign, mul_assign, Op::Mul);
// Rounded towards minus infinity, as [`Dim::div_floor`] and [`Dim::rem_floor`].
operator!(Div, div, DivAssign, div_assign, Op::DivFloor);
operator!(Rem, rem, RemAssign, rem_assign, Op::Rem);

impl Neg for Dim {
    type Output = Dim;

    #[inline]
    #[track_caller]
    fn neg(self) -> Dim {
        Dim::ZERO - self
    }
}

impl Sum for Dim {
    #[track_caller]
    fn sum<I: Iterator<Item = Dim>>(dims: I) -> Dim {
        dims.fold(Dim::ZERO, Add::add)
    }
}

impl<'a> Sum<&'a Dim> for Dim {
    #[track_caller]
    fn sum<I: Iterator<Item = &'a Dim>>(dims: I) -> Dim {
        dims.copied().sum()
    }
}

impl Product for Dim {
    #[track_caller]
    fn product<I: Iterator<Item = Dim>>(dims: I) -> Dim {
        dims.fold(Dim::ONE, Mul::mul)
    }
}

impl<'a> Product<&'a Dim> for Dim {
    #[track_caller]
    fn product<I: Iterator<Item = &'a Dim>>(dims: I) -> Dim {
        dims.copied().product()
    }
}

impl Dim {
    /// The quotient, rounded towards minus infinity.
    #[inline]
    #[track_caller]
    pub fn div_floor(self, divisor: impl Into<Dim>) -> Dim {
        apply(Op::DivFloor, self, divisor.into())
    }

    /// The quotient, rounded towards plus infinity.
    #[inline]
    #[track_caller]
    pub fn div_ceil(self, divisor: impl Into<Dim>) -> Dim {
        apply(Op::DivCeil, self, divisor.into())
    }

    /// What [`Dim::div_floor`] leaves: it has the sign of the divisor, as in Python.
    #[inline]
    #[track_caller]
    pub fn rem_floor(self, divisor: impl Into<Dim>) -> Dim {
        apply(Op::Rem, self, divisor.into())
    }

    /// The smaller of both. No question is asked: it is an expression.
    #[inline]
    #[track_caller]
    pub fn min(self, other: impl Into<Dim>) -> Dim {
        apply(Op::Min, self, other.into())
    }

    /// The larger of both. No question is asked: it is an expression.
    #[inline]
    #[track_caller]
    pub fn max(self, other: impl Into<Dim>) -> Dim {
        apply(Op::Max, self, other.into())
    }

    /// `min(max(self, low), high)`: where the limits cross, the upper one wins.
    #[inline]
    #[track_caller]
    pub fn clamp(self, low: impl Into<Dim>, high: impl Into<Dim>) -> Dim {
        self.max(low).min(high)
    }

    /// The absolute value.
    #[inline]
    #[track_caller]
    pub fn abs(self) -> Dim {
        apply(Op::Abs, self, self)
    }

    /// The smallest power of two that is not less; 1 for all that is less than 1.
    #[inline]
    #[track_caller]
    pub fn next_power_of_two(self) -> Dim {
        apply(Op::NextPowerOfTwo, self, self)
    }

    /// The smallest multiple of `step` that is not less, for a positive `step`.
    #[inline]
    #[track_caller]
    pub fn next_multiple_of(self, step: impl Into<Dim>) -> Dim {
        let step = step.into();
        self.div_ceil(step) * step
    }

    /// Whether `step` divides this. It is a question: the answer is recorded. Zero divides zero only.
    #[inline]
    #[track_caller]
    pub fn is_multiple_of(self, step: impl Into<Dim>) -> bool {
        let step = step.into();
        if step == 0 {
            return self == 0;
        }
        self.rem_floor(step) == 0
    }
}
