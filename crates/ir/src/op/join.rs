//! Operations that put tensors together, take them apart or repeat them.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, op, product_of, same_dtype, shape};
use crate::{Dim, Error, TensorType, words};

op! {
    /// Operands one after another along an axis.
    pub struct Concat = "concat" {
        /// The axis.
        pub axis: usize,
    }
}

impl Rule for Concat {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=usize::MAX)?;
        same_dtype(operands)?;
        let first = &operands[0].shape;
        axis_in(self.axis, first)?;
        let mut dims = first.sizes().to_vec();
        for t in &operands[1..] {
            let fits = t.shape.rank() == first.rank()
                && (0..first.rank()).all(|i| i == self.axis || t.shape.size(i) == first.size(i));
            if !fits {
                return Err(format!("{} does not fit {first} along axis {}", t.shape, self.axis));
            }
            dims[self.axis] += t.shape.size(self.axis);
        }
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// A tensor written over part of another; operands: x, part.
    ///
    /// The result is `x` with `part` at `start ..` of an axis. `part` has the other sizes of `x`. The buffer is reused
    /// when nothing else reads the old `x`.
    pub struct SliceScatter = "slice_scatter" {
        /// The axis.
        pub axis: usize,
        /// Position of the first element on the axis.
        pub start: Dim,
    }
}

impl Rule for SliceScatter {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        same_dtype(operands)?;
        let (x, part) = (&operands[0].shape, &operands[1].shape);
        axis_in(self.axis, x)?;
        let fits =
            part.rank() == x.rank() && (0..x.rank()).all(|i| i == self.axis || part.size(i) == x.size(i));
        if !fits {
            return Err(format!("{part} does not fit {x} along axis {}", self.axis));
        }
        let end = (self.start + part.size(self.axis)).check().map_err(|e| e.to_string())?;
        if self.start < 0 || end > x.size(self.axis) {
            let size = x.size(self.axis);
            return Err(format!("{} .. {end} is outside axis {} of size {size}", self.start, self.axis));
        }
        Ok(vec![operands[0]])
    }

    fn reads_strides(&self, operand: usize) -> bool {
        operand == 1
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// An axis cut into parts; one result per part.
    pub struct Split = "split" {
        /// The axis.
        pub axis: usize,
        /// Sizes of the parts; they sum to the axis' size.
        pub sizes: Vec<Dim>,
    }
}

impl Rule for Split {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        axis_in(self.axis, &operands[0].shape)?;
        let x = operands[0].shape.sizes();
        let total: Dim = self.sizes.iter().sum();
        if self.sizes.is_empty() || total != x[self.axis] {
            return Err(format!(
                "parts {:?} do not sum to axis {} of size {}",
                self.sizes, self.axis, x[self.axis]
            ));
        }
        self.sizes
            .iter()
            .map(|size| {
                let mut dims = x.to_vec();
                dims[self.axis] = *size;
                Ok(TensorType::new(operands[0].dtype, shape(&dims)?))
            })
            .collect()
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Operands of one shape along a new axis.
    pub struct Stack = "stack" {
        /// The new axis' position in the result.
        pub axis: usize,
    }
}

impl Rule for Stack {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=usize::MAX)?;
        same_dtype(operands)?;
        let first = operands[0].shape;
        if let Some(t) = operands.iter().find(|t| t.shape != first) {
            return Err(format!("shapes differ: {first} and {}", t.shape));
        }
        if self.axis > first.rank() {
            return Err(format!("axis {} is outside rank {}", self.axis, first.rank() + 1));
        }
        let mut dims = first.sizes().to_vec();
        dims.insert(self.axis, operands.len().into());
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// The whole tensor repeated along each axis.
    pub struct Tile = "tile" {
        /// Repeats per axis.
        pub repeats: Vec<Dim>,
    }
}

impl Rule for Tile {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = operands[0].shape.sizes();
        if self.repeats.len() != x.len() {
            return Err(format!("{} repeats for rank {}", self.repeats.len(), x.len()));
        }
        if let Some(repeats) = self.repeats.iter().find(|r| **r < 0) {
            return Err(format!("{repeats} repeats"));
        }
        let all = x.iter().zip(&self.repeats);
        let dims = all.map(|(d, r)| product_of(&[*d, *r])).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Each element repeated along an axis (`repeat_interleave`).
    pub struct Repeat = "repeat" {
        /// The axis.
        pub axis: usize,
        /// How many times.
        pub repeats: usize,
    }
}

impl Rule for Repeat {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        axis_in(self.axis, &operands[0].shape)?;
        let mut dims = operands[0].shape.sizes().to_vec();
        dims[self.axis] = product_of(&[dims[self.axis], self.repeats.into()])?;
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Some axes back to front.
    pub struct Reverse = "reverse" {
        /// The axes.
        pub axes: Vec<usize>,
    }
}

impl Rule for Reverse {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        for (i, axis) in self.axes.iter().enumerate() {
            axis_in(*axis, &operands[0].shape)?;
            if self.axes[..i].contains(axis) {
                return Err(format!("axis {axis} is named twice"));
            }
        }
        Ok(vec![operands[0]])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// An axis rotated: element i moves to i + shift, wrapping.
    pub struct Roll = "roll" {
        /// The axis.
        pub axis: usize,
        /// By how much; negative moves towards the front.
        pub shift: i64,
    }
}

impl Rule for Roll {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        axis_in(self.axis, &operands[0].shape)?;
        Ok(vec![operands[0]])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

words! {
    /// What stands outside the operand.
    pub enum PadMode {
        /// The pad value.
        Constant = "constant",
        /// A mirror that does not repeat the edge.
        Reflect = "reflect",
        /// The nearest element.
        Edge = "edge",
        /// The other end.
        Wrap = "wrap",
    }
}

op! {
    /// Elements added before and after each axis; negative amounts cut.
    pub struct Pad = "pad" {
        /// Before and after, per axis.
        pub pads: Vec<(Dim, Dim)>,
        /// What stands outside.
        pub mode: PadMode,
        /// The pad value, cast to the dtype; used by `constant` alone.
        pub value: f64,
    }
}

impl Rule for Pad {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = operands[0].shape.sizes();
        if self.pads.len() != x.len() {
            return Err(format!("{} pairs of pads for rank {}", self.pads.len(), x.len()));
        }
        let mut dims = Vec::new();
        for (axis, ((before, after), size)) in self.pads.iter().zip(x.iter()).enumerate() {
            let out = (*size + (*before + *after)).check().map_err(|_| format!("axis {axis} overflows"))?;
            if out < 0 {
                return Err(format!("axis {axis} of size {size} is cut by more than it has"));
            }
            let room = match self.mode {
                PadMode::Constant => None,
                PadMode::Reflect => Some(*size - 1),
                PadMode::Edge if *size == 0 => Some(Dim::ZERO),
                PadMode::Edge => None,
                PadMode::Wrap => Some(*size),
            };
            if let Some(room) = room {
                let most = before.max(*after);
                if most > 0 && most > room {
                    return Err(format!(
                        "{} padding of {most} exceeds axis {axis} of size {size}",
                        self.mode.name()
                    ));
                }
            }
            dims.push(out);
        }
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

impl Graph {
    /// Joins along an axis.
    pub fn concat(&mut self, operands: &[ValueId], axis: isize) -> Result<ValueId, Error> {
        let axis = match operands.first() {
            Some(first) => self.axis_of("concat", *first, axis)?,
            None => 0,
        };
        self.add1(Concat { axis }, operands)
    }

    /// Writes a tensor over part of another; see [`SliceScatter`].
    pub fn slice_scatter(
        &mut self,
        x: ValueId,
        part: ValueId,
        axis: isize,
        start: impl Into<Dim>,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of("slice_scatter", x, axis)?;
        self.add1(SliceScatter { axis, start: start.into() }, &[x, part])
    }

    /// Cuts an axis into parts of the given sizes.
    pub fn split(&mut self, x: ValueId, axis: isize, sizes: &[usize]) -> Result<Vec<ValueId>, Error> {
        let axis = self.axis_of("split", x, axis)?;
        self.add_op(Split { axis, sizes: sizes.iter().map(|s| (*s).into()).collect() }, &[x])
    }

    /// Joins along a new axis at a position counted from the front.
    pub fn stack(&mut self, operands: &[ValueId], axis: usize) -> Result<ValueId, Error> {
        self.add1(Stack { axis }, operands)
    }

    /// The whole repeated per axis.
    pub fn tile(&mut self, x: ValueId, repeats: &[usize]) -> Result<ValueId, Error> {
        self.add1(Tile { repeats: repeats.iter().map(|r| (*r).into()).collect() }, &[x])
    }

    /// Each element repeated along an axis.
    pub fn repeat(&mut self, x: ValueId, axis: isize, repeats: usize) -> Result<ValueId, Error> {
        let axis = self.axis_of("repeat", x, axis)?;
        self.add1(Repeat { axis, repeats }, &[x])
    }

    /// Axes back to front.
    pub fn reverse(&mut self, x: ValueId, axes: &[isize]) -> Result<ValueId, Error> {
        let axes = self.axes_of("reverse", x, axes)?;
        self.add1(Reverse { axes }, &[x])
    }

    /// An axis rotated.
    pub fn roll(&mut self, x: ValueId, axis: isize, shift: i64) -> Result<ValueId, Error> {
        let axis = self.axis_of("roll", x, axis)?;
        self.add1(Roll { axis, shift }, &[x])
    }

    /// Elements added around; see [`Pad`].
    pub fn pad(
        &mut self,
        x: ValueId,
        pads: &[(i64, i64)],
        mode: PadMode,
        value: f64,
    ) -> Result<ValueId, Error> {
        let pads = pads.iter().map(|(before, after)| ((*before).into(), (*after).into())).collect();
        self.add1(Pad { pads, mode, value }, &[x])
    }
}
