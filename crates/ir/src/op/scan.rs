//! Scans and orders along one axis: cumulative sums, top-k, sort.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, kind_op, number, op, shape};
use crate::{DType, Error, TensorType, words};

words! {
    /// What accumulates along the axis.
    pub enum CumulativeKind {
        /// Running sum.
        Sum = "cumsum",
        /// Running product.
        Prod = "cumprod",
        /// Running maximum; NaN once seen stays.
        Max = "cummax",
    }
}

kind_op! {
    /// Running sum, product or maximum along one axis.
    pub struct Cumulative by CumulativeKind {
        /// The axis.
        pub axis: usize,
        /// Position i holds what came before i; the first holds the identity (0, 1, −∞ or the least number).
        pub exclusive: bool,
        /// From the back.
        pub reverse: bool,
    }
}

impl Rule for Cumulative {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        number(&operands[0])?;
        axis_in(self.axis, &operands[0].shape)?;
        Ok(vec![operands[0]])
    }
}

op! {
    /// The k largest or smallest along an axis, best first; results: values, positions as i64.
    /// Equal values come in order of position; NaN counts as the largest.
    pub struct TopK = "top_k" {
        /// How many; at most the axis' size.
        pub k: usize,
        /// The axis.
        pub axis: usize,
        /// Largest, or smallest.
        pub largest: bool,
    }
}

impl Rule for TopK {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        number(&operands[0])?;
        let x = operands[0].shape;
        axis_in(self.axis, &x)?;
        let size = x.size(self.axis);
        if size < self.k {
            return Err(format!("k = {} exceeds axis {} of size {size}", self.k, self.axis));
        }
        let mut dims = x.sizes().to_vec();
        dims[self.axis] = self.k.into();
        let out = shape(&dims)?;
        Ok(vec![TensorType::new(operands[0].dtype, out), TensorType::new(DType::I64, out)])
    }
}

op! {
    /// Values in order along an axis; NaN counts as the largest.
    pub struct Sort = "sort" {
        /// The axis.
        pub axis: usize,
        /// Largest first.
        pub descending: bool,
    }
}

impl Rule for Sort {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        number(&operands[0])?;
        axis_in(self.axis, &operands[0].shape)?;
        Ok(vec![operands[0]])
    }
}

op! {
    /// Positions (i64) that put an axis in order; equal values keep their order.
    pub struct ArgSort = "argsort" {
        /// The axis.
        pub axis: usize,
        /// Largest first.
        pub descending: bool,
    }
}

impl Rule for ArgSort {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let sorted = Sort { axis: self.axis, descending: self.descending }.infer(operands)?;
        Ok(vec![TensorType::new(DType::I64, sorted[0].shape)])
    }
}

impl Graph {
    /// Running accumulation along an axis; see [`Cumulative`].
    pub fn cumulative(
        &mut self,
        kind: CumulativeKind,
        x: ValueId,
        axis: isize,
        exclusive: bool,
        reverse: bool,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of(kind.name(), x, axis)?;
        self.add1(Cumulative { kind, axis, exclusive, reverse }, &[x])
    }

    /// The k best along an axis: values and positions; see [`TopK`].
    pub fn top_k(
        &mut self,
        x: ValueId,
        k: usize,
        axis: isize,
        largest: bool,
    ) -> Result<(ValueId, ValueId), Error> {
        let axis = self.axis_of("top_k", x, axis)?;
        let out = self.add_op(TopK { k, axis, largest }, &[x])?;
        Ok((out[0], out[1]))
    }

    /// Sorted along an axis.
    pub fn sort(&mut self, x: ValueId, axis: isize, descending: bool) -> Result<ValueId, Error> {
        let axis = self.axis_of("sort", x, axis)?;
        self.add1(Sort { axis, descending }, &[x])
    }

    /// Positions that sort an axis.
    pub fn argsort(&mut self, x: ValueId, axis: isize, descending: bool) -> Result<ValueId, Error> {
        let axis = self.axis_of("argsort", x, axis)?;
        self.add1(ArgSort { axis, descending }, &[x])
    }
}
