//! Comparisons: they answer by the value and record the question and its answer.
//!
//! `#[track_caller]` reaches the line that compares two sizes. Comparisons of slices or in derived code report a line
//! of the standard library or of the derive; [`guards::asked_at`] names a better one.
// The default `ne` does not pass on where it was called.
#![allow(clippy::partialeq_ne_impl)]

use std::cmp::Ordering;

use crate::Dim;
use crate::guards;

impl PartialEq for Dim {
    #[inline]
    #[track_caller]
    fn eq(&self, other: &Dim) -> bool {
        if self.is_constant() && other.is_constant() {
            return self.raw() == other.raw();
        }
        guards::is_equal(*self, *other)
    }

    #[inline]
    #[track_caller]
    fn ne(&self, other: &Dim) -> bool {
        !self.eq(other)
    }
}

impl PartialOrd for Dim {
    #[inline]
    #[track_caller]
    fn partial_cmp(&self, other: &Dim) -> Option<Ordering> {
        if self.is_constant() && other.is_constant() {
            return Some(self.raw().cmp(&other.raw()));
        }
        if guards::is_at_least(*self, *other, 1) {
            Some(Ordering::Greater)
        } else if guards::is_equal(*self, *other) {
            Some(Ordering::Equal)
        } else if guards::is_at_least(*other, *self, 1) {
            Some(Ordering::Less)
        } else {
            None
        }
    }

    // One question each, where `partial_cmp` may ask two.
    #[inline]
    #[track_caller]
    fn lt(&self, other: &Dim) -> bool {
        other.gt(self)
    }

    #[inline]
    #[track_caller]
    fn le(&self, other: &Dim) -> bool {
        other.ge(self)
    }

    #[inline]
    #[track_caller]
    fn gt(&self, other: &Dim) -> bool {
        if self.is_constant() && other.is_constant() {
            return self.raw() > other.raw();
        }
        guards::is_at_least(*self, *other, 1)
    }

    #[inline]
    #[track_caller]
    fn ge(&self, other: &Dim) -> bool {
        if self.is_constant() && other.is_constant() {
            return self.raw() >= other.raw();
        }
        guards::is_at_least(*self, *other, 0)
    }
}

macro_rules! with_integers {
    ($($integer:ty),*) => {$(
        with_integers!(one_way Dim, $integer);
        with_integers!(one_way $integer, Dim);
    )*};
    (one_way $left:ty, $right:ty) => {
        impl PartialEq<$right> for $left {
            #[inline]
            #[track_caller]
            fn eq(&self, other: &$right) -> bool {
                Dim::from(*self) == Dim::from(*other)
            }

            #[inline]
            #[track_caller]
            fn ne(&self, other: &$right) -> bool {
                Dim::from(*self) != Dim::from(*other)
            }
        }

        impl PartialOrd<$right> for $left {
            #[inline]
            #[track_caller]
            fn partial_cmp(&self, other: &$right) -> Option<Ordering> {
                Dim::from(*self).partial_cmp(&Dim::from(*other))
            }

            #[inline]
            #[track_caller]
            fn lt(&self, other: &$right) -> bool {
                Dim::from(*self) < Dim::from(*other)
            }

            #[inline]
            #[track_caller]
            fn le(&self, other: &$right) -> bool {
                Dim::from(*self) <= Dim::from(*other)
            }

            #[inline]
            #[track_caller]
            fn gt(&self, other: &$right) -> bool {
                Dim::from(*self) > Dim::from(*other)
            }

            #[inline]
            #[track_caller]
            fn ge(&self, other: &$right) -> bool {
                Dim::from(*self) >= Dim::from(*other)
            }
        }
    };
}

with_integers!(usize, u64, u32, i64, i32);
