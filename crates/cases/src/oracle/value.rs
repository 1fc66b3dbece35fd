//! Tensors of exact numbers, and walking over their positions.

use olivine_ir::{DType, Data, MAX_RANK, Shape, Tensor, TensorType};

use crate::bound::round_to;

/// Elements widened without loss; bools are 0 and 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Elements of a float dtype, not rounded to it.
    Floats(Vec<f64>),
    /// Elements of an integer dtype or of bool.
    Ints(Vec<i64>),
}

/// A tensor of exact numbers that stand for a dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The dtype stood for, and the sizes.
    pub ty: TensorType,
    /// The elements, row-major.
    pub data: Numbers,
}

impl Value {
    /// A tensor's elements, widened.
    pub fn of(t: &Tensor) -> Value {
        let ints = |v: Vec<i64>| Numbers::Ints(v);
        let data = match t.data() {
            Data::I8(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::U8(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::I16(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::I32(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::U32(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::I64(v) => ints(v.clone()),
            Data::Bool(v) => ints(v.iter().map(|x| i64::from(*x)).collect()),
            Data::F32(_) | Data::F16(_) | Data::BF16(_) | Data::F64(_) => Numbers::Floats(t.to_f64()),
        };
        Value { ty: t.ty(), data }
    }

    /// Floats under a type.
    pub fn floats(ty: TensorType, data: Vec<f64>) -> Value {
        Value { ty, data: Numbers::Floats(data) }
    }

    /// Integers under a type, wrapped into its dtype.
    pub fn ints(ty: TensorType, mut data: Vec<i64>) -> Value {
        for x in &mut data {
            *x = wrap(ty.dtype, *x);
        }
        Value { ty, data: Numbers::Ints(data) }
    }

    /// Number of elements held.
    pub fn len(&self) -> usize {
        match &self.data {
            Numbers::Floats(v) => v.len(),
            Numbers::Ints(v) => v.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The elements of a float tensor.
    pub fn as_floats(&self) -> Result<&[f64], String> {
        match &self.data {
            Numbers::Floats(v) => Ok(v),
            Numbers::Ints(_) => Err(format!("{} does not hold floats", self.ty)),
        }
    }

    /// The elements of an integer or bool tensor.
    pub fn as_ints(&self) -> Result<&[i64], String> {
        match &self.data {
            Numbers::Ints(v) => Ok(v),
            Numbers::Floats(_) => Err(format!("{} does not hold integers", self.ty)),
        }
    }

    /// Every element as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Numbers::Floats(v) => v.clone(),
            Numbers::Ints(v) => v.iter().map(|x| *x as f64).collect(),
        }
    }

    /// The value as its dtype stores it.
    pub fn rounded(self) -> Value {
        let dtype = self.ty.dtype;
        match self.data {
            Numbers::Floats(v) => Value::floats(self.ty, v.into_iter().map(|x| round_to(dtype, x)).collect()),
            data => Value { ty: self.ty, data },
        }
    }

    /// Every element without its sign; what errors of sums are measured against.
    pub fn magnitude(&self) -> Value {
        match &self.data {
            Numbers::Floats(v) => Value::floats(self.ty, v.iter().map(|x| x.abs()).collect()),
            Numbers::Ints(_) => self.clone(),
        }
    }

    /// A tensor whose element at each position is the operand's at a flat position, or zero.
    pub(crate) fn pick(&self, ty: TensorType, from: impl FnMut(&[usize]) -> Option<usize>) -> Value {
        let data = match &self.data {
            Numbers::Floats(v) => Numbers::Floats(picked(v, &ty.shape, from)),
            Numbers::Ints(v) => Numbers::Ints(picked(v, &ty.shape, from)),
        };
        Value { ty, data }
    }
}

fn picked<T: Copy + Default>(
    v: &[T],
    shape: &Shape,
    mut from: impl FnMut(&[usize]) -> Option<usize>,
) -> Vec<T> {
    let mut out = Vec::with_capacity(shape.numel());
    each(shape, |at| out.push(from(at).map_or(T::default(), |i| v[i])));
    out
}

/// The arithmetic that floats and wrapping integers share.
pub(crate) trait Number: Copy + Default + PartialOrd {
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_nan(self) -> bool;
    /// The larger or the smaller, NaN if either is.
    fn extreme(self, other: Self, largest: bool) -> Self {
        let better = if largest { other > self } else { other < self };
        if self.is_nan() || !(other.is_nan() || better) { self } else { other }
    }
}

impl Number for f64 {
    const ONE: f64 = 1.0;
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
    fn is_nan(self) -> bool {
        self.is_nan()
    }
}

impl Number for i64 {
    const ONE: i64 = 1;
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    fn times(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    fn is_nan(self) -> bool {
        false
    }
}

/// The number a dtype holds after its bits overflow.
pub(crate) fn wrap(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(x as i8),
        DType::U8 => i64::from(x as u8),
        DType::I16 => i64::from(x as i16),
        DType::I32 => i64::from(x as i32),
        DType::U32 => i64::from(x as u32),
        DType::Bool => i64::from(x != 0),
        _ => x,
    }
}

/// Least and greatest number of an integer dtype.
pub(crate) fn limits(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::Bool => (0, 1),
        _ => (i64::MIN, i64::MAX),
    }
}

/// Every position of a shape in row-major order.
pub(crate) fn each(shape: &Shape, mut body: impl FnMut(&[usize])) {
    if shape.has_zero() {
        return;
    }
    let rank = shape.rank();
    let mut at = [0usize; MAX_RANK];
    loop {
        body(&at[..rank]);
        let mut axis = rank;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// The row-major number of a position.
pub(crate) fn flat(dims: &[usize], at: &[usize]) -> usize {
    dims.iter().zip(at).fold(0, |acc, (d, i)| acc * d + i)
}

/// The row-major number, in a smaller tensor, of what broadcasting shows at a position of a larger one.
pub(crate) fn broadcast_flat(dims: &[usize], at: &[usize]) -> usize {
    let tail = &at[at.len() - dims.len()..];
    dims.iter().zip(tail).fold(0, |acc, (d, i)| if *d == 1 { acc } else { acc * d + i })
}

/// A row-major tensor seen as `[outer, axis, inner]`.
pub(crate) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// A size as a number: the oracle computes graphs whose sizes are numbers.
pub(super) fn whole(size: olivine_ir::Dim) -> i64 {
    size.as_constant().unwrap_or(0)
}
