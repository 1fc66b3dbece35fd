//! What kernels read and write: strided operands in, packed targets out.

use olivine_ir::{Element, Shape, TensorType, round_to_odd};

/// Where an operand's bytes are.
#[derive(Clone, Copy)]
pub(crate) enum OperandSource<'a> {
    /// In memory that nobody writes during the kernel.
    Bytes(&'a [u8]),
    /// In target 0, which the kernel overwrites in place; the layout is the target's.
    Target,
}

/// A run-time index out of range, found in checked mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Flat position of the index among the indices.
    pub(crate) position: usize,
    /// The index.
    pub(crate) value: i64,
    /// The size of the axis it indexes.
    pub(crate) size: usize,
}

/// Why a kernel did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An index out of range; the caller adds whose it is.
    Index(Fault),
    /// An error of an inner graph or of a user's function, which says all.
    Other(crate::Error),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Index(fault)
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        Failure::Other(error)
    }
}

/// An operand: a strided reading of some bytes.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) ty: TensorType,
    /// Steps in elements; only the first `rank` count.
    pub(crate) strides: [isize; 8],
    /// First element.
    pub(crate) offset: usize,
    pub(crate) source: OperandSource<'a>,
    /// The same elements as the kernel laid them out when the model was loaded ([`crate::kernel::Kernel::packing`]).
    pub(crate) packed: Option<&'a [u8]>,
}

/// A result to write: packed, row-major.
pub(crate) struct Target<'a> {
    pub(crate) ty: TensorType,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> Operand<'a> {
    /// An operand that reads packed bytes.
    pub(crate) fn packed(ty: TensorType, bytes: &'a [u8]) -> Self {
        Operand {
            ty,
            strides: row_major(&ty.shape),
            offset: 0,
            source: OperandSource::Bytes(bytes),
            packed: None,
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides[..self.ty.shape.rank()]
    }

    /// The operand's bytes; empty when it lives in the target.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self.source {
            OperandSource::Bytes(b) => b,
            OperandSource::Target => &[],
        }
    }

    /// All elements of the underlying memory (the strides index into this), as `T`. Bools are read as `u8`.
    pub(crate) fn elements<T: bytemuck::AnyBitPattern>(&self) -> &'a [T] {
        // An empty slice may have any address, also one that is not aligned for `T`.
        if self.bytes().is_empty() { &[] } else { bytemuck::cast_slice(self.bytes()) }
    }

    /// The elements in row-major order without a copy, if they are contiguous.
    pub(crate) fn contiguous<T: bytemuck::AnyBitPattern>(&self) -> Option<&'a [T]> {
        let numel = self.ty.shape.numel();
        if numel == 0 {
            return Some(&[]);
        }
        self.is_contiguous().then(|| &self.elements::<T>()[self.offset..self.offset + numel])
    }

    /// The elements of an operand that the compiler promises to be contiguous ([`olivine_ir::Op::reads_strides`]).
    pub(crate) fn slice<T: bytemuck::AnyBitPattern>(&self) -> &'a [T] {
        debug_assert!(
            self.is_contiguous(),
            "the compiler packs operands of kernels that do not read strides"
        );
        self.contiguous().unwrap_or(&[])
    }

    /// True when elements are in row-major order without gaps (from any offset on).
    pub(crate) fn is_contiguous(&self) -> bool {
        let packed = row_major(&self.ty.shape);
        (0..self.ty.shape.rank()).all(|i| self.ty.shape[i] <= 1 || self.strides[i] == packed[i])
    }
}

impl Target<'_> {
    pub(crate) fn shape(&self) -> Shape {
        self.ty.shape
    }

    /// The elements for writing, as `T`. Bools are written as `u8`.
    pub(crate) fn elements<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        if self.bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(self.bytes) }
    }
}

/// Row-major strides as an inline array.
pub(crate) fn row_major(shape: &Shape) -> [isize; 8] {
    let mut out = [0; 8];
    let mut step = 1;
    for (stride, size) in out.iter_mut().zip(shape.iter()).rev() {
        *stride = step;
        step *= (*size).max(1) as isize;
    }
    out
}

/// A Rust type that holds a number dtype.
pub(crate) trait Number: Element + bytemuck::Pod + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    /// −∞ or the least integer.
    const LOWEST: Self;
    /// +∞ or the greatest integer.
    const HIGHEST: Self;
    fn is_nan(self) -> bool;
    fn to_f64(self) -> f64;
    /// As the cast of OPS: nearest for floats, truncating and saturating for integers, NaN to 0.
    fn from_f64(x: f64) -> Self;
    /// Sum; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Difference; integers wrap.
    fn minus(self, other: Self) -> Self;
    /// Product; integers wrap.
    fn times(self, other: Self) -> Self;
    /// The larger; NaN if either is.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // Both tests at once: a branch would keep loops from being vectors.
        if self.is_nan() | (self > other) { self } else { other }
    }
    /// The smaller; NaN if either is.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() | (self < other) { self } else { other }
    }
}

macro_rules! int_number {
    ($($t:ty),*) => {$(
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            #[inline(always)]
            fn is_nan(self) -> bool { false }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn from_f64(x: f64) -> Self { x as $t }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        }
    )*};
}
int_number!(i8, u8, i16, i32, u32, i64);

macro_rules! float_number {
    ($($t:ty, $zero:expr, $one:expr, $to:expr, $from:expr);*) => {$(
        impl Number for $t {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;
            #[inline(always)]
            fn is_nan(self) -> bool { <$t>::is_nan(self) }
            #[inline(always)]
            fn to_f64(self) -> f64 { $to(self) }
            #[inline(always)]
            fn from_f64(x: f64) -> Self { $from(x) }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
        }
    )*};
}
float_number! {
    f32, 0.0, 1.0, f64::from, |x| x as f32;
    f64, 0.0, 1.0, |x| x, |x| x;
    half::f16, half::f16::ZERO, half::f16::ONE, half::f16::to_f64, |x| half::f16::from_f32(round_to_odd(x));
    half::bf16, half::bf16::ZERO, half::bf16::ONE, half::bf16::to_f64, |x| half::bf16::from_f32(round_to_odd(x))
}

/// Runs `$body` with `$t` bound to the Rust type of a number dtype (bool as `u8`).
macro_rules! with_number {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            olivine_ir::DType::F32 => {
                type $t = f32;
                $body
            }
            olivine_ir::DType::F16 => {
                type $t = half::f16;
                $body
            }
            olivine_ir::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            olivine_ir::DType::F64 => {
                type $t = f64;
                $body
            }
            olivine_ir::DType::I8 => {
                type $t = i8;
                $body
            }
            olivine_ir::DType::U8 | olivine_ir::DType::Bool => {
                type $t = u8;
                $body
            }
            olivine_ir::DType::I16 => {
                type $t = i16;
                $body
            }
            olivine_ir::DType::I32 => {
                type $t = i32;
                $body
            }
            olivine_ir::DType::U32 => {
                type $t = u32;
                $body
            }
            olivine_ir::DType::I64 => {
                type $t = i64;
                $body
            }
        }
    };
}
pub(crate) use with_number;
