//! Operations that only rename positions: reshape, transpose, slice, expand and their kin.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, op, product, shape};
use crate::{Error, Shape, TensorType, words};

op! {
    /// The same elements in row-major order under other sizes; −1 is inferred, 0 copies the operand's size.
    pub struct Reshape = "reshape" {
        /// The sizes asked for.
        pub dims: Vec<i64>,
    }
}

impl Rule for Reshape {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        let mut dims = Vec::with_capacity(self.dims.len());
        let mut inferred = None;
        for (i, &d) in self.dims.iter().enumerate() {
            dims.push(match d {
                -1 if inferred.replace(i).is_some() => return Err("-1 stands twice".into()),
                -1 => 1,
                0 => *x
                    .get(i)
                    .ok_or_else(|| format!("0 at position {i}, but the operand has rank {}", x.rank()))?,
                d if d > 0 => d as usize,
                d => return Err(format!("size {d} is negative")),
            });
        }
        let known = product(&dims)?;
        if let Some(i) = inferred {
            if known == 0 || !x.numel().is_multiple_of(known) {
                return Err(format!("cannot infer -1: {} elements over {known}", x.numel()));
            }
            dims[i] = x.numel() / known;
        }
        let out = shape(&dims)?;
        if out.numel() != x.numel() {
            return Err(format!("{} elements do not fit {out} with {}", x.numel(), out.numel()));
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
        let dims: Vec<usize> = self.perm.iter().map(|a| x[*a]).collect();
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
        pub starts: Vec<i64>,
        /// Position after the last on each axis.
        pub ends: Vec<i64>,
        /// Step on each axis; not 0.
        pub steps: Vec<i64>,
    }
}

impl Slice {
    /// For every axis of `x`: first position, step and count.
    pub fn ranges(&self, x: &Shape) -> Result<Vec<(usize, i64, usize)>, String> {
        let n = self.axes.len();
        if self.starts.len() != n || self.ends.len() != n || self.steps.len() != n {
            return Err("axes, starts, ends and steps differ in length".into());
        }
        let mut out: Vec<(usize, i64, usize)> = x.iter().map(|d| (0, 1, *d)).collect();
        for i in 0..n {
            let axis = self.axes[i];
            axis_in(axis, x)?;
            if self.axes[..i].contains(&axis) {
                return Err(format!("axis {axis} is named twice"));
            }
            let (size, step) = (x[axis] as i64, self.steps[i]);
            if step == 0 {
                return Err("a step must not be 0".into());
            }
            if size == 0 {
                out[axis] = (0, step, 0);
                continue;
            }
            let from_front = |p: i64| if p < 0 { p.saturating_add(size) } else { p };
            let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
            let start = from_front(self.starts[i]).clamp(0, high);
            let end = from_front(self.ends[i]).clamp(low, high);
            let span = if step > 0 { end - start } else { start - end };
            let count = if span <= 0 { 0 } else { (span as u64).div_ceil(step.unsigned_abs()) as usize };
            out[axis] = (if count == 0 { 0 } else { start as usize }, step, count);
        }
        Ok(out)
    }
}

impl Rule for Slice {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let dims: Vec<usize> = self.ranges(&operands[0].shape)?.into_iter().map(|(_, _, n)| n).collect();
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
        pub strides: Vec<i64>,
        /// First element.
        pub offset: usize,
    }
}

impl View {
    /// The view that reads all of `shape` in order.
    pub fn packed(shape: Shape) -> Self {
        View { shape, strides: shape.strides().iter().map(|s| *s as i64).collect(), offset: 0 }
    }

    /// True when elements are read in order without gaps from the first on.
    pub fn is_packed(&self) -> bool {
        let packed = self.shape.strides();
        self.shape.has_zero()
            || (self.offset == 0
                && (0..self.shape.rank()).all(|i| self.shape[i] == 1 || self.strides[i] == packed[i] as i64))
    }
}

impl Rule for View {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        if self.strides.len() != self.shape.rank() {
            return Err(format!("{} strides for rank {}", self.strides.len(), self.shape.rank()));
        }
        if !self.shape.has_zero() {
            let (mut low, mut high) = (self.offset as i128, self.offset as i128);
            for (d, s) in self.shape.iter().zip(&self.strides) {
                let reach = (*d as i128 - 1) * i128::from(*s);
                if reach < 0 { low += reach } else { high += reach }
            }
            if low < 0 || high >= operands[0].shape.numel() as i128 {
                return Err(format!("reads elements {low} to {high} of {}", operands[0].shape.numel()));
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

fn nchw(operands: &[TensorType], block: usize) -> Result<[usize; 4], String> {
    arity(operands, 1..=1)?;
    if block == 0 {
        return Err("the block must be at least 1".into());
    }
    <[usize; 4]>::try_from(operands[0].shape.dims()).map_err(|_| "x must be [N, C, H, W]".to_string())
}

impl Rule for DepthToSpace {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [n, c, h, w] = nchw(operands, self.block)?;
        let area = product(&[self.block, self.block])?;
        if !c.is_multiple_of(area) {
            return Err(format!("{c} channels are not a multiple of {area}"));
        }
        let dims = [n, c / area, product(&[h, self.block])?, product(&[w, self.block])?];
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
        let dims = [n, product(&[c, self.block, self.block])?, h / self.block, w / self.block];
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
        let x = &operands[0].shape;
        axis_in(self.axis, x)?;
        if self.step == 0 || self.size > x[self.axis] {
            return Err(format!("windows of {} by {} over {}", self.size, self.step, x[self.axis]));
        }
        let mut dims = x.to_vec();
        dims[self.axis] = (x[self.axis] - self.size) / self.step + 1;
        dims.push(self.size);
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

impl Graph {
    /// Other sizes for the same elements; −1 is inferred, 0 copies. See [`Reshape`].
    pub fn reshape(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId, Error> {
        self.add1(Reshape { dims: dims.to_vec() }, &[x])
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
        start: i64,
        end: i64,
        step: i64,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of("slice", x, axis)?;
        self.add1(Slice { axes: vec![axis], starts: vec![start], ends: vec![end], steps: vec![step] }, &[x])
    }

    /// `length` elements of an axis from `start` on; unlike [`Graph::slice`] nothing is clamped.
    pub fn narrow(&mut self, x: ValueId, axis: isize, start: usize, length: usize) -> Result<ValueId, Error> {
        let ty = self.ty(x)?;
        let a = self.axis_of("slice", x, axis)?;
        if start.checked_add(length).is_none_or(|end| end > ty.shape[a]) {
            return Err(Error::Op {
                op: "narrow".into(),
                node: format!("narrow_{}", self.nodes().len()),
                problem: format!(
                    "{length} elements from {start} are outside axis {a} of size {}",
                    ty.shape[a]
                ),
                operands: vec![ty],
            });
        }
        self.slice(x, axis, start as i64, (start + length) as i64, 1)
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
