//! Integers that stand for reals, `(q − zero)·scale`, and products of them.

use crate::graph::{Graph, ValueId};
use crate::op::contraction::matmul_shape;
use crate::op::conv::{Window, conv_dims};
use crate::op::reduce::ReduceKind;
use crate::op::{Rule, arity, axis_in, op, shape};
use crate::{DType, Dim, Error, Shape, Tensor, TensorType};

/// Which of several scales and zero points belongs to an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// One for all: a scalar.
    Tensor,
    /// One for each position of an axis: a vector.
    Axis(usize),
    /// One for each so many elements along an axis; the operand has the tensor's rank.
    Block {
        /// The axis.
        axis: usize,
        /// Elements of one block; the last may be shorter.
        size: usize,
    },
}

/// How an operand of scales or zero points covers a tensor; `block` 0 stands for none.
fn granularity(
    what: &str,
    of: &Shape,
    over: &Shape,
    axis: usize,
    block: usize,
) -> Result<Granularity, String> {
    if of.rank() == 0 {
        return Ok(Granularity::Tensor);
    }
    axis_in(axis, over)?;
    let mut dims = over.sizes().to_vec();
    if block == 0 {
        dims = vec![over.size(axis)];
    } else {
        dims[axis] = over.size(axis).div_ceil(block);
    }
    if *of != shape(&dims)? {
        return Err(format!("{what} must be a scalar or {dims:?}, got {of}"));
    }
    Ok(if block == 0 { Granularity::Axis(axis) } else { Granularity::Block { axis, size: block } })
}

fn float_scale(scale: &TensorType) -> Result<(), String> {
    match scale.dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(format!("scales must be f32, f16 or bf16, got {other}")),
    }
}

fn zero_like(operands: &[TensorType], dtype: DType) -> Result<(), String> {
    let Some(zero) = operands.get(2) else { return Ok(()) };
    if zero.dtype != dtype {
        return Err(format!("the zero point must be {dtype}, got {}", zero.dtype));
    }
    if zero.shape != operands[1].shape {
        return Err(format!("scale {} and zero point {} differ in shape", operands[1].shape, zero.shape));
    }
    Ok(())
}

op! {
    /// `saturate(round(x / scale) + zero)`, half to even; operands: x, scale of x's dtype, and optionally the zero point.
    ///
    /// Scale and zero point are scalars, or vectors along `axis`, or (with a `block`) tensors with one entry for each block
    /// along it. Computed in f32; NaN gives 0.
    pub struct QuantizeLinear = "quantize_linear" {
        /// The result's dtype: i8, u8 or i16.
        pub dtype: DType,
        /// The axis of scales that are no scalar.
        pub axis: usize,
        /// Elements along the axis that share a scale; 0 for a scale per position.
        pub block: usize,
    }
}

impl QuantizeLinear {
    /// How scales cover x.
    pub fn granularity(&self, scale: &Shape, x: &Shape) -> Result<Granularity, String> {
        granularity("the scale", scale, x, self.axis, self.block)
    }
}

impl Rule for QuantizeLinear {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=3)?;
        float_scale(&operands[1])?;
        if operands[0].dtype != operands[1].dtype {
            return Err(format!("x is {}, its scale {}", operands[0].dtype, operands[1].dtype));
        }
        if !matches!(self.dtype, DType::I8 | DType::U8 | DType::I16) {
            return Err(format!("the result must be i8, u8 or i16, not {}", self.dtype));
        }
        zero_like(operands, self.dtype)?;
        self.granularity(&operands[1].shape, &operands[0].shape)?;
        Ok(vec![TensorType::new(self.dtype, operands[0].shape)])
    }
}

op! {
    /// `(x − zero)·scale`; operands: x (i8, u8, i16 or i32), scale, and optionally the zero point of x's dtype.
    ///
    /// The result has the scale's dtype; the difference is exact (i32 wraps) and the product is computed in f32.
    pub struct DequantizeLinear = "dequantize_linear" {
        /// The axis of scales that are no scalar.
        pub axis: usize,
        /// Elements along the axis that share a scale; 0 for a scale per position.
        pub block: usize,
    }
}

impl DequantizeLinear {
    /// How scales cover x.
    pub fn granularity(&self, scale: &Shape, x: &Shape) -> Result<Granularity, String> {
        granularity("the scale", scale, x, self.axis, self.block)
    }
}

impl Rule for DequantizeLinear {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=3)?;
        float_scale(&operands[1])?;
        let x = &operands[0];
        if !matches!(x.dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32) {
            return Err(format!("x must be i8, u8, i16 or i32, got {}", x.dtype));
        }
        zero_like(operands, x.dtype)?;
        self.granularity(&operands[1].shape, &x.shape)?;
        Ok(vec![TensorType::new(operands[1].dtype, x.shape)])
    }
}

/// The zero points after the first two operands, of which each is a scalar or has `len` entries.
fn zero_points(operands: &[TensorType], given: [(&str, bool, Dim); 2]) -> Result<(), String> {
    let all = 2 + given.iter().filter(|(_, is_given, _)| *is_given).count();
    arity(operands, all..=all)?;
    for (i, operand) in operands[..2].iter().enumerate() {
        if !matches!(operand.dtype, DType::I8 | DType::U8) {
            return Err(format!("operand {i} must be i8 or u8, got {}", operand.dtype));
        }
    }
    let mut rest = operands[2..].iter();
    for (i, (what, is_given, len)) in given.into_iter().enumerate() {
        let zero = if is_given { rest.next() } else { None };
        let Some(zero) = zero else { continue };
        if zero.dtype != operands[i].dtype {
            return Err(format!(
                "the zero point of {what} must be {}, got {}",
                operands[i].dtype, zero.dtype
            ));
        }
        if zero.shape.rank() != 0 && (zero.shape.rank() != 1 || zero.shape.size(0) != len) {
            return Err(format!("the zero point of {what} must be a scalar or [{len}], got {}", zero.shape));
        }
    }
    Ok(())
}

op! {
    /// `(a − a_zero)·(b − b_zero)` of i8 or u8 in i32, which wraps: `[.., M, K] x [.., K, N]`, batch dims broadcast.
    ///
    /// Operands: a, b, then the zero points that are given: a's a scalar or `[M]`, b's a scalar or `[N]`, of their dtypes.
    pub struct QMatMul = "qmatmul" {
        /// Whether a's zero point is given.
        pub a_zero: bool,
        /// Whether b's zero point is given.
        pub b_zero: bool,
    }
}

impl Rule for QMatMul {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=4)?;
        let (a, b) = (&operands[0].shape, &operands[1].shape);
        if a.rank() < 2 || b.rank() < 2 {
            return Err(format!("operands need rank 2 or more, got {a} and {b}"));
        }
        let (m, n) = (a.size(a.rank() - 2), b.size(b.rank() - 1));
        zero_points(operands, [("a", self.a_zero, m), ("b", self.b_zero, n)])?;
        Ok(vec![TensorType::new(DType::I32, matmul_shape(a, b)?)])
    }

    fn reads_strides(&self, operand: usize) -> bool {
        operand < 2
    }
}

op! {
    /// Cross-correlation of x `[N, C, ..]` with w `[M, C/groups, ..]`, both i8 or u8 less their zero points, in i32, which wraps.
    ///
    /// Padding counts as x's zero point, so it adds nothing. Operands: x, w, then the zero points that are given: x's
    /// a scalar, w's a scalar or `[M]`, of their dtypes.
    pub struct QConv = "qconv" {
        /// How the kernel moves.
        pub window: Window,
        /// Channels fall into this many groups.
        pub groups: usize,
        /// Whether x's zero point is given.
        pub x_zero: bool,
        /// Whether w's zero point is given.
        pub w_zero: bool,
    }
}

impl Rule for QConv {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=4)?;
        let dims = conv_dims(operands, &self.window, self.groups)?;
        zero_points(operands, [("x", self.x_zero, Dim::ONE), ("w", self.w_zero, operands[1].shape.size(0))])?;
        if self.x_zero && operands[2].shape.rank() != 0 {
            return Err(format!("the zero point of x must be a scalar, got {}", operands[2].shape));
        }
        Ok(vec![TensorType::new(DType::I32, shape(&dims)?)])
    }
}

/// A quantised tensor: integers with their scale and zero point.
#[derive(Clone, Copy, Debug)]
pub struct Quantized {
    /// The integers.
    pub values: ValueId,
    /// The scale.
    pub scale: ValueId,
    /// The zero point; 0 if absent.
    pub zero: Option<ValueId>,
}

impl Graph {
    /// Reals as integers, scales along an axis or one for all; see [`QuantizeLinear`].
    pub fn quantize_linear(
        &mut self,
        x: ValueId,
        scale: ValueId,
        zero: Option<ValueId>,
        dtype: DType,
        axis: isize,
        block: usize,
    ) -> Result<ValueId, Error> {
        let axis = self.scale_axis("quantize_linear", x, scale, axis)?;
        let operands: Vec<ValueId> = [x, scale].into_iter().chain(zero).collect();
        self.add1(QuantizeLinear { dtype, axis, block }, &operands)
    }

    /// Integers as the reals that they stand for; see [`DequantizeLinear`].
    pub fn dequantize_linear(
        &mut self,
        x: ValueId,
        scale: ValueId,
        zero: Option<ValueId>,
        axis: isize,
        block: usize,
    ) -> Result<ValueId, Error> {
        let axis = self.scale_axis("dequantize_linear", x, scale, axis)?;
        let operands: Vec<ValueId> = [x, scale].into_iter().chain(zero).collect();
        self.add1(DequantizeLinear { axis, block }, &operands)
    }

    /// A scalar scale has no axis to be checked.
    fn scale_axis(&self, op: &'static str, x: ValueId, scale: ValueId, axis: isize) -> Result<usize, Error> {
        if self.ty(scale)?.shape.rank() == 0 { Ok(0) } else { self.axis_of(op, x, axis) }
    }

    /// f32 as u8 with a scale and zero point of its own, so that 0 and all elements are in range, as ONNX's
    /// DynamicQuantizeLinear: `scale = (max(x, 0) − min(x, 0)) / 255`, `zero = round(−min / scale)`. Where all are 0 the
    /// scale is 1.
    pub fn dynamic_quantize_linear(&mut self, x: ValueId) -> Result<Quantized, Error> {
        let zero = self.constant(Tensor::scalar(0.0f32));
        let axes: Vec<isize> = (0..self.ty(x)?.shape.rank() as isize).collect();
        let most = self.reduce(ReduceKind::Max, x, &axes, false)?;
        let least = self.reduce(ReduceKind::Min, x, &axes, false)?;
        let (most, least) = (self.max(most, zero)?, self.min(least, zero)?);
        let range = self.sub(most, least)?;
        let levels = self.constant(Tensor::scalar(255.0f32));
        let scale = self.div(range, levels)?;
        let nothing = self.eq(scale, zero)?;
        let one = self.constant(Tensor::scalar(1.0f32));
        let scale = self.select(nothing, one, scale)?;
        let below = self.sub(zero, least)?;
        let zero = self.quantize_linear(below, scale, None, DType::U8, 0, 0)?;
        let values = self.quantize_linear(x, scale, Some(zero), DType::U8, 0, 0)?;
        Ok(Quantized { values, scale, zero: Some(zero) })
    }

    /// Integer matmul with optional zero points; see [`QMatMul`].
    pub fn qmatmul(
        &mut self,
        a: ValueId,
        b: ValueId,
        a_zero: Option<ValueId>,
        b_zero: Option<ValueId>,
    ) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [a, b].into_iter().chain(a_zero).chain(b_zero).collect();
        self.add1(QMatMul { a_zero: a_zero.is_some(), b_zero: b_zero.is_some() }, &operands)
    }

    /// Integer convolution with optional zero points; see [`QConv`].
    pub fn qconv(
        &mut self,
        x: ValueId,
        w: ValueId,
        x_zero: Option<ValueId>,
        w_zero: Option<ValueId>,
        window: Window,
        groups: usize,
    ) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [x, w].into_iter().chain(x_zero).chain(w_zero).collect();
        let op = QConv { window, groups, x_zero: x_zero.is_some(), w_zero: w_zero.is_some() };
        self.add1(op, &operands)
    }

    /// The matmul of two quantised tensors, quantised to `dtype` with a scale and zero point of the result's, as ONNX's
    /// QLinearMatMul. a's scale is a scalar or `[M]`, b's a scalar or `[N]`, the result's a scalar.
    pub fn qlinear_matmul(
        &mut self,
        a: Quantized,
        b: Quantized,
        (scale, zero, dtype): (ValueId, Option<ValueId>, DType),
    ) -> Result<ValueId, Error> {
        let product = self.qmatmul(a.values, b.values, a.zero, b.zero)?;
        let rows = self.as_column(a.scale, 1)?;
        let scales = self.mul(rows, b.scale)?;
        self.requantize(product, scales, (scale, zero, dtype))
    }

    /// The convolution of two quantised tensors and an i32 bias `[M]` of scale `x.scale·w.scale`, quantised to `dtype` with a
    /// scale and zero point of the result's, as ONNX's QLinearConv. w's scale is a scalar or `[M]`, all others scalars.
    pub fn qlinear_conv(
        &mut self,
        x: Quantized,
        w: Quantized,
        bias: Option<ValueId>,
        (scale, zero, dtype): (ValueId, Option<ValueId>, DType),
        window: Window,
        groups: usize,
    ) -> Result<ValueId, Error> {
        let spatial = window.strides.len();
        let mut product = self.qconv(x.values, w.values, x.zero, w.zero, window, groups)?;
        if let Some(bias) = bias {
            let bias = self.as_column(bias, spatial)?;
            product = self.add(product, bias)?;
        }
        let scales = self.as_column(w.scale, spatial)?;
        let scales = self.mul(x.scale, scales)?;
        self.requantize(product, scales, (scale, zero, dtype))
    }

    /// i32 times scales that broadcast, quantised anew.
    fn requantize(
        &mut self,
        product: ValueId,
        scales: ValueId,
        (scale, zero, dtype): (ValueId, Option<ValueId>, DType),
    ) -> Result<ValueId, Error> {
        let product = self.cast(product, self.ty(scales)?.dtype)?;
        let real = self.mul(product, scales)?;
        self.quantize_linear(real, scale, zero, dtype, 0, 0)
    }

    /// A vector with so many axes of size 1 after it; a scalar stays.
    fn as_column(&mut self, x: ValueId, after: usize) -> Result<ValueId, Error> {
        let dims = self.ty(x)?.shape;
        if dims.rank() != 1 {
            return Ok(x);
        }
        let dims: Vec<i64> = std::iter::once(dims[0] as i64).chain(vec![1; after]).collect();
        self.reshape(x, &dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_lie_over_a_tensor_an_axis_or_blocks() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 10, 3])?;
        let scalar = g.input("s", DType::F32, [])?;
        let vector = g.input("v", DType::F32, [10])?;
        let blocks = g.input("b", DType::F32, [2, 3, 3])?;
        let zero = g.input("z", DType::I8, [10])?;
        assert_eq!(
            g.quantize_linear(x, scalar, None, DType::U8, 9, 0).and_then(|y| g.ty(y))?.dtype,
            DType::U8
        );
        assert!(g.quantize_linear(x, vector, Some(zero), DType::I8, -2, 0).is_ok());
        assert!(g.quantize_linear(x, vector, Some(zero), DType::U8, -2, 0).is_err());
        assert!(g.quantize_linear(x, vector, None, DType::I8, 0, 0).is_err());
        assert!(g.quantize_linear(x, blocks, None, DType::I8, 1, 4).is_ok());
        assert!(g.quantize_linear(x, blocks, None, DType::I8, 1, 5).is_err());
        assert!(g.quantize_linear(x, scalar, None, DType::I64, 0, 0).is_err());
        Ok(())
    }

    #[test]
    fn zero_points_are_scalars_or_lie_along_rows_and_columns() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let a = g.input("a", DType::U8, [5, 3, 4])?;
        let b = g.input("b", DType::I8, [4, 6])?;
        let (rows, columns) = (g.input("r", DType::U8, [3])?, g.input("c", DType::I8, [6])?);
        let y = g.qmatmul(a, b, Some(rows), Some(columns))?;
        assert_eq!(g.ty(y)?.to_string(), "i32[5, 3, 6]");
        assert!(g.qmatmul(a, b, None, Some(columns)).is_ok());
        assert!(g.qmatmul(a, b, Some(columns), None).is_err());
        assert!(g.qmatmul(a, b, None, Some(rows)).is_err());
        Ok(())
    }
}
