//! Elements as numbers: what is printed parses back to the same bits.

use half::{bf16, f16};

use crate::Element;

/// An element type that can be written as a number.
pub(super) trait Literal: Element {
    /// The shortest number with these bits; `None` for NaN, whose bits no number shows.
    fn print(self) -> Option<String>;
    /// The element behind a number; `None` when it is not one or is out of range.
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! wide_floats {
    ($($ty:ty),*) => {$(
        impl Literal for $ty {
            fn print(self) -> Option<String> {
                (!self.is_nan()).then(|| format!("{self:?}"))
            }
            fn parse(text: &str) -> Option<Self> {
                let x: $ty = text.parse().ok()?;
                in_range(text, x.is_infinite()).then_some(x)
            }
        }
    )*};
}

wide_floats!(f32, f64);

macro_rules! half_floats {
    ($($ty:ty),*) => {$(
        impl Literal for $ty {
            fn print(self) -> Option<String> {
                self.to_f32().print()
            }
            fn parse(text: &str) -> Option<Self> {
                // f32 holds every half exactly, and its shortest text reads back to it.
                let x = <$ty>::from_f32(f32::parse(text)?);
                in_range(text, x.is_infinite()).then_some(x)
            }
        }
    )*};
}

half_floats!(f16, bf16);

/// A number that becomes infinite must have been written so.
fn in_range(text: &str, infinite: bool) -> bool {
    !infinite || text.ends_with("inf")
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Literal for $ty {
            fn print(self) -> Option<String> {
                Some(self.to_string())
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}

integers!(i8, u8, i16, i32, u32, i64, bool);
