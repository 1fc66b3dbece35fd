//! Tensors made from a rule, and the positions of what is not zero.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, index, op, shape};
use crate::{DType, Dim, Error, IntoShape, Shape, TensorType, words};

op! {
    /// A new axis of `depth` in which the index' position holds `on` and all others `off`; operands: indices, and a
    /// pair `[off, on]` of the result's dtype. A negative index counts from the back; outside, all are off.
    pub struct OneHot = "one_hot" {
        /// Where the new axis stands in the result.
        pub axis: usize,
        /// Its size.
        pub depth: usize,
    }
}

impl Rule for OneHot {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        index(&operands[0])?;
        crate::op::of_shape("the values", &operands[1], &[2])?;
        let mut dims = operands[0].shape.sizes().to_vec();
        if self.axis > dims.len() {
            return Err(format!("axis {} is outside rank {}", self.axis, dims.len() + 1));
        }
        dims.insert(self.axis, self.depth.into());
        Ok(vec![TensorType::new(operands[1].dtype, shape(&dims)?)])
    }
}

words! {
    /// Which triangle stays.
    pub enum TriPart {
        /// On and above the diagonal.
        Upper = "upper",
        /// On and below the diagonal.
        Lower = "lower",
    }
}

op! {
    /// One triangle of the last two axes; zeros elsewhere.
    pub struct Trilu = "trilu" {
        /// Which triangle stays.
        pub part: TriPart,
        /// The diagonal: 0 the main one, positive above it.
        pub diagonal: i64,
    }
}

impl Rule for Trilu {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        if operands[0].shape.rank() < 2 {
            return Err(format!("x needs rank 2 or more, got {}", operands[0].shape));
        }
        Ok(vec![operands[0]])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// `start + i·step` for i below `count`, computed in f64 (in i64 for integers) and cast.
    pub struct Range = "range" {
        /// Element type.
        pub dtype: DType,
        /// First number.
        pub start: f64,
        /// Distance.
        pub step: f64,
        /// How many.
        pub count: Dim,
    }
}

impl Rule for Range {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 0..=0)?;
        if self.dtype == DType::Bool {
            return Err("needs a number dtype, got bool".into());
        }
        if self.dtype.is_int() && (self.start.fract() != 0.0 || self.step.fract() != 0.0) {
            return Err(format!(
                "an {} range needs whole start and step, got {} and {}",
                self.dtype, self.start, self.step
            ));
        }
        Ok(vec![TensorType::new(self.dtype, shape(&[self.count])?)])
    }
}

op! {
    /// A scalar operand at every position of a shape.
    pub struct Fill = "fill" {
        /// The shape.
        pub shape: Shape,
    }
}

impl Rule for Fill {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        crate::op::of_shape::<Dim>("the value", &operands[0], &[])?;
        Ok(vec![TensorType::new(operands[0].dtype, self.shape)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Positions of elements that are not zero, in row-major order.
    ///
    /// Their count is known only at run time, so the results are: i64 `[rank, elements]`, whose first `count` columns
    /// are the positions and whose other columns are −1, and the count as an i64 scalar.
    pub struct NonZero = "nonzero" {}
}

impl Rule for NonZero {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        let positions = shape(&[x.rank().into(), x.sizes().numel()])?;
        Ok(vec![TensorType::new(DType::I64, positions), TensorType::new(DType::I64, Shape::SCALAR)])
    }
}

impl Graph {
    /// Indices as rows with one position on; see [`OneHot`].
    pub fn one_hot(
        &mut self,
        indices: ValueId,
        values: ValueId,
        depth: usize,
        axis: usize,
    ) -> Result<ValueId, Error> {
        self.add1(OneHot { axis, depth }, &[indices, values])
    }

    /// One triangle of the last two axes.
    pub fn trilu(&mut self, x: ValueId, part: TriPart, diagonal: i64) -> Result<ValueId, Error> {
        self.add1(Trilu { part, diagonal }, &[x])
    }

    /// Numbers at equal distances.
    pub fn range(
        &mut self,
        dtype: DType,
        start: f64,
        step: f64,
        count: impl Into<Dim>,
    ) -> Result<ValueId, Error> {
        self.add1(Range { dtype, start, step, count: count.into() }, &[])
    }

    /// A scalar at every position.
    pub fn fill(&mut self, value: ValueId, shape: impl IntoShape) -> Result<ValueId, Error> {
        self.add1(Fill { shape: shape.into_shape()? }, &[value])
    }

    /// Positions of what is not zero, and their count; see [`NonZero`].
    pub fn nonzero(&mut self, x: ValueId) -> Result<(ValueId, ValueId), Error> {
        let out = self.add_op(NonZero {}, &[x])?;
        Ok((out[0], out[1]))
    }
}
