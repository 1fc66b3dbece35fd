//! Operations that only rename positions: reshape, transpose, slice, expand and their kin.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, op, product, product_of, shape};
use crate::{Dim, Error, Shape, TensorType, words};

op! {
    /// The same elements in row-major order under other sizes; −1 is inferred, 0 copies the operand's size.
    pub struct Reshape = "reshape" {
        /// The sizes asked for.
        pub dims: Vec<Dim>,
    }
}

impl Rule for Reshape {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = operands[0].shape.sizes();
        let mut dims = Vec::with_capacity(self.dims.len());
        let mut inferred = None;
        for (i, &d) in self.dims.iter().enumerate() {
            dims.push(match d.as_constant() {
                Some(-1) if inferred.replace(i).is_some() => return Err("-1 stands twice".into()),
                Some(-1) => Dim::ONE,
                Some(0) => *x
                    .get(i)
                    .ok_or_else(|| format!("0 at position {i}, but the operand has rank {}", x.len()))?,
                _ if d > 0 => d,
                _ => return Err(format!("size {d} is negative")),
            });
        }
        let known = product_of(&dims)?;
        if let Some(i) = inferred {
            if known == 0 || !x.numel().is_multiple_of(known) {
                return Err(format!("cannot infer -1: {} elements over {known}", x.numel()));
            }
            dims[i] = x.numel().div_floor(known);
        }
        let out = shape(&dims)?;
        if out.sizes().numel() != x.numel() {
            return Err(format!("{} elements do not fit {out} with {}", x.numel(), out.sizes().numel()));
        }
        Ok(vec![TensorType::new(operands[0].dtype, out)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Result axis i is operand axis `perm[i]`.
    pub struct Transpose = "transpose" {
        /// A permutation of the axes.
        pub perm: Vec<usize>,
    }
}

impl Rule for Transpose {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if sorted != (0..x.rank()).collect::<Vec<_>>() {
            return Err(format!("{:?} is not a permutation of {} axes", self.perm, x.rank()));
        }
        let dims: Vec<Dim> = self.perm.iter().map(|a| x.size(*a)).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// A regular part of some axes, as ONNX Slice: ends clamp to the size, negative numbers count from the back,
    /// a negative step walks backwards (then an end of `i64::MIN` means past the first element).
    pub struct Slice = "slice" {
        /// The axes, each once.
        pub axes: Vec<usize>,
        /// First position on each axis.
        pub starts: Vec<Dim>,
        /// Position after the last on each axis.
        pub ends: Vec<Dim>,
        /// Step on each axis; not 0.
        pub steps: Vec<i64>,
    }
}

impl Slice {
    /// For every axis of `x`: first position, step and count.
    pub fn ranges(&self, x: &Shape) -> Result<Vec<(Dim, i64, Dim)>, String> {
        let n = self.axes.len();
        if self.starts.len() != n || self.ends.len() != n || self.steps.len() != n {
            return Err("axes, starts, ends and steps differ in length".into());
        }
        let mut out: Vec<(Dim, i64, Dim)> = x.sizes().iter().map(|d| (Dim::ZERO, 1, *d)).collect();
        for i in 0..n {
            let axis = self.axes[i];
            axis_in(axis, x)?;
            if self.axes[..i].contains(&axis) {
                return Err(format!("axis {axis} is named twice"));
            }
            let (size, step) = (x.size(axis), self.steps[i]);
            if step == 0 {
                return Err("a step must not be 0".into());
            }
            if size == 0 {
                out[axis] = (Dim::ZERO, step, Dim::ZERO);
                continue;
            }
            let (low, high) = if step > 0 { (Dim::ZERO, size) } else { (Dim::constant(-1), size - 1) };
            let start = within(from_front(self.starts[i], size), Dim::ZERO, high);
            let end = within(from_front(self.ends[i], size), low, high);
            let span = if step > 0 { end - start } else { start - end };
            out[axis] = match span > 0 {
                // Its absolute value does not fit in 64 bits, and every span is shorter.
                true if step == i64::MIN => (start, step, Dim::constant(1)),
                true => (start, step, span.div_ceil(step.unsigned_abs())),
                false => (Dim::ZERO, step, Dim::ZERO),
            };
        }
        Ok(out)
    }
}

/// A position of an axis; negative ones count from the back.
#[track_caller]
fn from_front(position: Dim, size: Dim) -> Dim {
    if position < 0 { position + size } else { position }
}

/// The nearest number between two. It asks where the number lies, so that results stay simple expressions.
#[track_caller]
fn within(number: Dim, low: Dim, high: Dim) -> Dim {
    if number <= low {
        low
    } else if number >= high {
        high
    } else {
        number
    }
}

impl Rule for Slice {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let dims: Vec<Dim> = self.ranges(&operands[0].shape)?.into_iter().map(|(_, _, n)| n).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Broadcast to a shape, as ONNX Expand: both the operand and the asked shape may have sizes of 1.
    pub struct Expand = "expand" {
        /// The shape to broadcast with.
        pub shape: Shape,
    }
}

impl Rule for Expand {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        let out =
            x.broadcast(&self.shape).ok_or_else(|| format!("{x} does not broadcast with {}", self.shape))?;
        Ok(vec![TensorType::new(operands[0].dtype, out)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// A strided reading of the operand's elements: `out[i..] = x_flat[offset + Σ i·stride]`.
    ///
    /// The compiler turns reshape, transpose, slice and expand into this one; readers that understand strides take
    /// it without a copy.
    pub struct View = "view" {
        /// Sizes of the result.
        pub shape: Shape,
        /// Step in elements along each axis.
        pub strides: Vec<Dim>,
        /// First element.
        pub offset: Dim,
    }
}

impl View {
    /// The view that reads all of `shape` in order.
    pub fn packed(shape: Shape) -> Self {
        View { shape, strides: shape.stride_sizes(), offset: Dim::ZERO }
    }

    /// True when elements are read in order without gaps from the first on.
    pub fn is_packed(&self) -> bool {
        let packed = self.shape.stride_sizes();
        let in_order = |i: usize| self.strides[i] == packed[i] || self.shape.size(i) == 1;
        self.shape.has_zero() || (self.offset == 0 && (0..self.shape.rank()).all(in_order))
    }
}

impl Rule for View {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        if self.strides.len() != self.shape.rank() {
            return Err(format!("{} strides for rank {}", self.strides.len(), self.shape.rank()));
        }
        // Of open sizes this looks at the values of the compile alone: a view that passes made is right for all.
        let shape = self.shape.values();
        if !shape.has_zero() {
            let number = |dim: Dim| dim.value().map(i128::from).map_err(|e| e.to_string());
            let (mut low, mut high) = (number(self.offset)?, number(self.offset)?);
            for (d, s) in shape.iter().zip(&self.strides) {
                let reach = (*d as i128 - 1) * number(*s)?;
                if reach < 0 { low += reach } else { high += reach }
            }
            let elements = operands[0].shape.values().numel();
            if low < 0 || high >= elements as i128 {
                return Err(format!("reads elements {low} to {high} of {elements}"));
            }
        }
        Ok(vec![TensorType::new(operands[0].dtype, self.shape)])
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

words! {
    /// Which of the two orders of channel blocks.
    pub enum DepthMode {
        /// Depth, column, row.
        Dcr = "dcr",
        /// Column, row, depth.
        Crd = "crd",
    }
}

op! {
    /// Moves blocks of channels of `[N, C, H, W]` into space.
    pub struct DepthToSpace = "depth_to_space" {
        /// Block size.
        pub block: usize,
        /// Order of the blocks.
        pub mode: DepthMode,
    }
}

op! {
    /// Moves blocks of space of `[N, C, H, W]` into channels.
    pub struct SpaceToDepth = "space_to_depth" {
        /// Block size.
        pub block: usize,
    }
}

fn nchw(operands: &[TensorType], block: usize) -> Result<[Dim; 4], String> {
    arity(operands, 1..=1)?;
    if block == 0 {
        return Err("the block must be at least 1".into());
    }
    <[Dim; 4]>::try_from(&operands[0].shape.sizes()[..]).map_err(|_| "x must be [N, C, H, W]".to_string())
}

impl Rule for DepthToSpace {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [n, c, h, w] = nchw(operands, self.block)?;
        let area = product(&[self.block, self.block])?;
        if !c.is_multiple_of(area) {
            return Err(format!("{c} channels are not a multiple of {area}"));
        }
        let dims = [
            n,
            c.div_floor(area),
            product_of(&[h, self.block.into()])?,
            product_of(&[w, self.block.into()])?,
        ];
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

impl Rule for SpaceToDepth {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [n, c, h, w] = nchw(operands, self.block)?;
        if !h.is_multiple_of(self.block) || !w.is_multiple_of(self.block) {
            return Err(format!("{h} x {w} is not a multiple of the block {}", self.block));
        }
        let area = product(&[self.block, self.block])?;
        let dims = [n, product_of(&[c, area.into()])?, h.div_floor(self.block), w.div_floor(self.block)];
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Windows along one axis, as `torch.Tensor.unfold`: the axis becomes the window's number, and the elements
    /// inside a window become a new last axis.
    pub struct Unfold = "unfold" {
        /// The axis.
        pub axis: usize,
        /// Elements of a window.
        pub size: usize,
        /// Distance between windows.
        pub step: usize,
    }
}

impl Rule for Unfold {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        axis_in(self.axis, &operands[0].shape)?;
        let x = operands[0].shape.sizes();
        if self.step == 0 || self.size > x[self.axis] {
            return Err(format!("windows of {} by {} over {}", self.size, self.step, x[self.axis]));
        }
        let mut dims = x.to_vec();
        dims[self.axis] = (x[self.axis] - self.size).div_floor(self.step) + 1;
        dims.push(self.size.into());
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

impl Graph {
    /// Other sizes for the same elements; −1 is inferred, 0 copies. See [`Reshape`].
    pub fn reshape(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId, Error> {
        self.add1(Reshape { dims: dims.iter().map(|d| (*d).into()).collect() }, &[x])
    }

    /// As [`Graph::reshape`], to sizes that may be expressions.
    pub fn reshape_to(&mut self, x: ValueId, sizes: &[Dim]) -> Result<ValueId, Error> {
        self.add1(Reshape { dims: sizes.to_vec() }, &[x])
    }

    /// Axes in another order.
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId, Error> {
        self.add1(Transpose { perm: perm.to_vec() }, &[x])
    }

    /// The last two axes swapped.
    pub fn swap_last_axes(&mut self, x: ValueId) -> Result<ValueId, Error> {
        let second_last = self.axis_of("transpose", x, -2)?;
        let mut perm: Vec<usize> = (0..second_last + 2).collect();
        perm.swap(second_last, second_last + 1);
        self.transpose(x, &perm)
    }

    /// A regular part of one axis; see [`Slice`].
    pub fn slice(
        &mut self,
        x: ValueId,
        axis: isize,
        start: impl Into<Dim>,
        end: impl Into<Dim>,
        step: i64,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of("slice", x, axis)?;
        let (starts, ends) = (vec![start.into()], vec![end.into()]);
        self.add1(Slice { axes: vec![axis], starts, ends, steps: vec![step] }, &[x])
    }

    /// `length` elements of an axis from `start` on; unlike [`Graph::slice`] nothing is clamped.
    pub fn narrow(
        &mut self,
        x: ValueId,
        axis: isize,
        start: impl Into<Dim>,
        length: impl Into<Dim>,
    ) -> Result<ValueId, Error> {
        let (start, length): (Dim, Dim) = (start.into(), length.into());
        let ty = self.ty(x)?;
        let a = self.axis_of("slice", x, axis)?;
        let end = start + length;
        let is_inside = end <= ty.shape.size(a);
        if !is_inside {
            return Err(Error::Op {
                op: "narrow".into(),
                node: format!("narrow_{}", self.nodes().len()),
                problem: format!(
                    "{length} elements from {start} are outside axis {a} of size {}",
                    ty.shape.size(a)
                ),
                operands: vec![ty],
            });
        }
        self.slice(x, axis, start, end, 1)
    }

    /// Broadcast to a shape.
    pub fn expand(&mut self, x: ValueId, shape: impl crate::IntoShape) -> Result<ValueId, Error> {
        self.add1(Expand { shape: shape.into_shape()? }, &[x])
    }

    /// Channels into space; see [`DepthToSpace`].
    pub fn depth_to_space(&mut self, x: ValueId, block: usize, mode: DepthMode) -> Result<ValueId, Error> {
        self.add1(DepthToSpace { block, mode }, &[x])
    }

    /// Space into channels; see [`SpaceToDepth`].
    pub fn space_to_depth(&mut self, x: ValueId, block: usize) -> Result<ValueId, Error> {
        self.add1(SpaceToDepth { block }, &[x])
    }

    /// Windows along an axis; see [`Unfold`].
    pub fn unfold(&mut self, x: ValueId, axis: isize, size: usize, step: usize) -> Result<ValueId, Error> {
        let axis = self.axis_of("unfold", x, axis)?;
        self.add1(Unfold { axis, size, step }, &[x])
    }
}
