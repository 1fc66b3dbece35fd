//! The operations that programs use most, as methods; [`Array::apply`] has all of them.

use olivine_ir::op::{
    ArgReduce, ArgReduceKind, Binary, Compare, Concat, Expand, Gather, MatMul, Reduce, ReduceKind, Reshape,
    ScalarOp, Slice, Softmax, Transpose, Unary, View,
};
use olivine_ir::{DType, Dim, IntoShape};

use crate::{Array, Error};

macro_rules! unary {
    ($($method:ident => $variant:ident),* $(,)?) => {$(
        #[doc = concat!("Elementwise `", stringify!($method), "`; see [`Unary::", stringify!($variant), "`].")]
        pub fn $method(&self) -> Result<Array, Error> {
            Array::apply1(ScalarOp::Unary(Unary::$variant), &[self])
        }
    )*};
}

macro_rules! binary {
    ($kind:ident: $($method:ident => $variant:ident),* $(,)?) => {$(
        #[doc = concat!("Elementwise `", stringify!($method), "` with broadcasting; see [`", stringify!($kind), "::", stringify!($variant), "`].")]
        pub fn $method(&self, other: &Array) -> Result<Array, Error> {
            Array::apply1(ScalarOp::$kind($kind::$variant), &[self, other])
        }
    )*};
}

macro_rules! reduce {
    ($($method:ident => $variant:ident),* $(,)?) => {$(
        #[doc = concat!("Reduces axes, negative ones counted from the last; see [`ReduceKind::", stringify!($variant), "`].")]
        pub fn $method(&self, axes: &[isize], keepdims: bool) -> Result<Array, Error> {
            self.reduce(ReduceKind::$variant, axes, keepdims)
        }
    )*};
}

impl Array {
    unary! {
        neg => Neg, abs => Abs, sign => Sign, reciprocal => Reciprocal, square => Square, sqrt => Sqrt,
        rsqrt => Rsqrt, exp => Exp, expm1 => Expm1, log => Log, log1p => Log1p, sin => Sin, cos => Cos,
        tan => Tan, tanh => Tanh, erf => Erf, ceil => Ceil, floor => Floor, round => Round, relu => Relu,
        sigmoid => Sigmoid, silu => Silu, gelu => Gelu, not => Not, isnan => IsNan,
    }

    binary! { Binary:
        add => Add, sub => Sub, mul => Mul, div => Div, pow => Pow, max => Max, min => Min, rem => Rem,
        and => And, or => Or, xor => Xor,
    }

    binary! { Compare: eq => Eq, ne => Ne, lt => Lt, le => Le, gt => Gt, ge => Ge }

    reduce! { sum => Sum, mean => Mean, reduce_max => Max, reduce_min => Min, prod => Prod }

    /// Reduces axes, negative ones counted from the last.
    pub fn reduce(&self, kind: ReduceKind, axes: &[isize], keepdims: bool) -> Result<Array, Error> {
        let axes = axes.iter().map(|axis| self.axis(*axis)).collect::<Result<_, _>>()?;
        Array::apply1(Reduce { kind, axes, keepdims }, &[self])
    }

    /// The position of the largest element along an axis, as i64; of several the first.
    pub fn argmax(&self, axis: isize, keepdims: bool) -> Result<Array, Error> {
        let axis = self.axis(axis)?;
        Array::apply1(ArgReduce { kind: ArgReduceKind::Max, axis, keepdims, last: false }, &[self])
    }

    /// Softmax along an axis.
    pub fn softmax(&self, axis: isize) -> Result<Array, Error> {
        Array::apply1(Softmax { axis: self.axis(axis)? }, &[self])
    }

    /// The matmul with another array, over batches as NumPy's: `[.., m, k]` by `[.., k, n]`.
    pub fn matmul(&self, other: &Array) -> Result<Array, Error> {
        Array::apply1(MatMul { epilogue: None }, &[self, other])
    }

    /// A conversion to another dtype.
    pub fn cast(&self, to: DType) -> Result<Array, Error> {
        Array::apply1(ScalarOp::Cast(to), &[self])
    }

    /// The same bits as another dtype of the same size.
    pub fn bitcast(&self, to: DType) -> Result<Array, Error> {
        Array::apply1(ScalarOp::Bitcast(to), &[self])
    }

    /// Elements of `a` where this bool array is true, and of `b` elsewhere.
    pub fn select(&self, a: &Array, b: &Array) -> Result<Array, Error> {
        Array::apply1(ScalarOp::Where, &[self, a, b])
    }

    /// The same elements in row-major order under other sizes; −1 is inferred.
    pub fn reshape(&self, dims: &[i64]) -> Result<Array, Error> {
        Array::apply1(Reshape { dims: dims.iter().map(|d| (*d).into()).collect() }, &[self])
    }

    /// Axes in another order: result axis `i` is axis `perm[i]`.
    pub fn transpose(&self, perm: &[usize]) -> Result<Array, Error> {
        Array::apply1(Transpose { perm: perm.to_vec() }, &[self])
    }

    /// A part of every axis: first position, position after the last, and step.
    pub fn slice(&self, ranges: &[(i64, i64, i64)]) -> Result<Array, Error> {
        let axes = (0..ranges.len()).collect();
        let (starts, ends) =
            ranges.iter().map(|(start, end, _)| (Dim::from(*start), Dim::from(*end))).unzip();
        let steps = ranges.iter().map(|(_, _, step)| *step).collect();
        Array::apply1(Slice { axes, starts, ends, steps }, &[self])
    }

    /// Repeats axes of size 1, and puts new ones in front, up to a shape.
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Result<Array, Error> {
        Array::apply1(Expand { shape: shape.into_shape()? }, &[self])
    }

    /// A strided view: element `i` is `flat[offset + Σ i·stride]` of the elements in row-major order. Strides may be 0 or
    /// negative, and views may overlap; nothing is copied before a kernel needs it.
    pub fn view(&self, shape: impl IntoShape, strides: &[i64], offset: usize) -> Result<Array, Error> {
        Array::apply1(
            View {
                shape: shape.into_shape()?,
                strides: strides.iter().map(|s| (*s).into()).collect(),
                offset: offset.into(),
            },
            &[self],
        )
    }

    /// Arrays one after another along an axis.
    pub fn concat(arrays: &[&Array], axis: usize) -> Result<Array, Error> {
        Array::apply1(Concat { axis }, arrays)
    }

    /// Rows along an axis by i32 or i64 indices.
    pub fn gather(&self, indices: &Array, axis: isize) -> Result<Array, Error> {
        Array::apply1(Gather { axis: self.axis(axis)? }, &[self, indices])
    }

    /// An axis counted from the first.
    fn axis(&self, axis: isize) -> Result<usize, Error> {
        let rank = self.shape().rank();
        let from_first = if axis < 0 { axis.checked_add_unsigned(rank) } else { Some(axis) };
        let found = from_first.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
        found.ok_or_else(|| Error::bad(format!("axis {axis} is outside rank {rank}")))
    }
}
