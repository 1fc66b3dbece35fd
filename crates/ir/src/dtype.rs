//! Element types, and the Rust types that hold them.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::tensor::Data;

/// The element type of a tensor.
// Not `non_exhaustive`, as `Op` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE 754 double precision.
    F64,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [DType; 11] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// f32, f16, bf16 or f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// Any integer, signed or not; bool is not one.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I8 | DType::U8 | DType::I16 | DType::I32 | DType::U32 | DType::I64)
    }

    /// A float or a signed integer.
    pub const fn is_signed(self) -> bool {
        self.is_float() || matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// i32 or i64: what index operands may be.
    pub const fn is_index(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// The name used in the text form, for example `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| format!("unknown dtype `{s}`"))
    }
}

/// The f32 next to x whose last bit is set if x lies between two: rounding that to f16 or bf16 rounds x once.
#[inline(always)]
pub fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    if back == x || bits & 1 == 1 || !near.is_finite() {
        near
    } else if back.abs() < x.abs() {
        f32::from_bits(bits + 1)
    } else {
        f32::from_bits(bits - 1)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be the element of a tensor.
pub trait Element:
    sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + bytemuck::NoUninit + 'static
{
    /// The dtype this type stores.
    const DTYPE: DType;
    /// Wraps a vector without copying it.
    fn wrap(data: Vec<Self>) -> Data;
    /// The slice inside, if the dtype is this one.
    fn slice(data: &Data) -> Option<&[Self]>;
    /// The mutable slice inside, if the dtype is this one.
    fn slice_mut(data: &mut Data) -> Option<&mut [Self]>;
    /// Bytes as elements, if they are aligned, whole and valid.
    fn cast(bytes: &[u8]) -> Option<&[Self]>;
}

macro_rules! elements {
    ($($ty:ty => $variant:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$variant;
            fn wrap(data: Vec<Self>) -> Data {
                Data::$variant(data)
            }
            fn slice(data: &Data) -> Option<&[Self]> {
                if let Data::$variant(v) = data { Some(v) } else { None }
            }
            fn slice_mut(data: &mut Data) -> Option<&mut [Self]> {
                if let Data::$variant(v) = data { Some(v) } else { None }
            }
            fn cast(bytes: &[u8]) -> Option<&[Self]> {
                if bytes.is_empty() { Some(&[]) } else { bytemuck::checked::try_cast_slice(bytes).ok() }
            }
        }
    )*};
}

elements! {
    f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i8 => I8, u8 => U8,
    i16 => I16, i32 => I32, u32 => U32, i64 => I64, bool => Bool,
}

/// Runs `$body` with `$t` bound to the Rust element type of `$dtype`.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F16 => {
                type $t = $crate::half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::half::bf16;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}
