//! Reductions over axes, softmax, and the position of the largest or smallest.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, float, kind_op, number, op, shape};
use crate::{DType, Dim, Error, Shape, TensorType, words};

words! {
    /// What a reduction computes; floats narrower than f32 accumulate in f32.
    pub enum ReduceKind {
        /// Σx; empty gives 0.
        Sum = "reduce_sum",
        /// Σx / n; empty gives NaN. Floats only.
        Mean = "reduce_mean",
        /// Largest, NaN if any is; empty gives −∞ or the dtype's least number.
        Max = "reduce_max",
        /// Smallest, NaN if any is; empty gives +∞ or the dtype's greatest number.
        Min = "reduce_min",
        /// Πx; empty gives 1.
        Prod = "reduce_prod",
        /// Some true; bool only.
        Any = "reduce_any",
        /// All true; bool only.
        All = "reduce_all",
        /// Σ|x|.
        L1 = "reduce_l1",
        /// √Σx². Floats only.
        L2 = "reduce_l2",
        /// Σx².
        SumSquare = "reduce_sumsq",
        /// ln Σx. Floats only.
        LogSum = "reduce_logsum",
        /// ln Σeˣ without overflow. Floats only.
        LogSumExp = "reduce_logsumexp",
    }
}

kind_op! {
    /// A reduction of some axes of one operand.
    pub struct Reduce by ReduceKind {
        /// The axes, each once; none means nothing is reduced.
        pub axes: Vec<usize>,
        /// Whether reduced axes stay with size 1.
        pub keepdims: bool,
    }
}

/// The shape after some axes are reduced.
fn reduced(x: &Shape, axes: &[usize], keepdims: bool) -> Result<Shape, String> {
    for (i, axis) in axes.iter().enumerate() {
        axis_in(*axis, x)?;
        if axes[..i].contains(axis) {
            return Err(format!("axis {axis} is named twice"));
        }
    }
    let dims: Vec<Dim> = (0..x.rank())
        .filter(|i| keepdims || !axes.contains(i))
        .map(|i| if axes.contains(&i) { Dim::ONE } else { x.size(i) })
        .collect();
    shape(&dims)
}

impl Rule for Reduce {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        use ReduceKind as K;
        arity(operands, 1..=1)?;
        let x = &operands[0];
        match self.kind {
            K::Any | K::All if x.dtype != DType::Bool => return Err(format!("needs bool, got {}", x.dtype)),
            K::Any | K::All => {}
            K::Mean | K::L2 | K::LogSum | K::LogSumExp => float(x)?,
            _ => number(x)?,
        }
        Ok(vec![TensorType::new(x.dtype, reduced(&x.shape, &self.axes, self.keepdims)?)])
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }
}

op! {
    /// `eˣ / Σeˣ` along one axis, without overflow; a row of −∞ gives NaN as IEEE does.
    pub struct Softmax = "softmax" {
        /// The axis.
        pub axis: usize,
    }
}

op! {
    /// `x − ln Σeˣ` along one axis, without overflow.
    pub struct LogSoftmax = "log_softmax" {
        /// The axis.
        pub axis: usize,
    }
}

impl Rule for Softmax {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        axis_in(self.axis, &operands[0].shape)?;
        Ok(vec![operands[0]])
    }
}

impl Rule for LogSoftmax {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Softmax { axis: self.axis }.infer(operands)
    }
}

words! {
    /// Which element's position is wanted.
    pub enum ArgReduceKind {
        /// Of the largest.
        Max = "argmax",
        /// Of the smallest.
        Min = "argmin",
    }
}

kind_op! {
    /// Position of the largest or smallest along an axis, as i64; NaN counts as larger and as smaller than any number.
    pub struct ArgReduce by ArgReduceKind {
        /// The axis; must not be empty.
        pub axis: usize,
        /// Whether the axis stays with size 1.
        pub keepdims: bool,
        /// Among equals the last position instead of the first.
        pub last: bool,
    }
}

impl Rule for ArgReduce {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        number(&operands[0])?;
        let x = &operands[0].shape;
        axis_in(self.axis, x)?;
        if x.size(self.axis) == 0 {
            return Err(format!("axis {} is empty: it has no position to give", self.axis));
        }
        Ok(vec![TensorType::new(DType::I64, reduced(x, &[self.axis], self.keepdims)?)])
    }
}

impl Graph {
    /// Reduces axes (negative counts from the back); see [`ReduceKind`].
    pub fn reduce(
        &mut self,
        kind: ReduceKind,
        x: ValueId,
        axes: &[isize],
        keepdims: bool,
    ) -> Result<ValueId, Error> {
        let axes = self.axes_of(kind.name(), x, axes)?;
        self.add1(Reduce { kind, axes, keepdims }, &[x])
    }

    /// Softmax along an axis.
    pub fn softmax(&mut self, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        let axis = self.axis_of("softmax", x, axis)?;
        self.add1(Softmax { axis }, &[x])
    }

    /// Logarithm of softmax along an axis.
    pub fn log_softmax(&mut self, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        let axis = self.axis_of("log_softmax", x, axis)?;
        self.add1(LogSoftmax { axis }, &[x])
    }

    /// First position of the largest along an axis, as i64.
    pub fn argmax(&mut self, x: ValueId, axis: isize, keepdims: bool) -> Result<ValueId, Error> {
        let axis = self.axis_of("argmax", x, axis)?;
        self.add1(ArgReduce { kind: ArgReduceKind::Max, axis, keepdims, last: false }, &[x])
    }

    /// First position of the smallest along an axis, as i64.
    pub fn argmin(&mut self, x: ValueId, axis: isize, keepdims: bool) -> Result<ValueId, Error> {
        let axis = self.axis_of("argmin", x, axis)?;
        self.add1(ArgReduce { kind: ArgReduceKind::Min, axis, keepdims, last: false }, &[x])
    }
}
