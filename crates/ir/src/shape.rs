//! Shapes, strides and broadcasting.

use std::fmt;
use std::ops::Deref;

use crate::{BlockFormat, DType, Error};

/// The largest rank a tensor may have.
pub const MAX_RANK: usize = 8;

/// No tensor may hold more elements than this: products of sizes and byte counts then never overflow.
pub const MAX_ELEMENTS: u64 = if usize::BITS < 64 { 1 << 27 } else { 1 << 50 };

/// Up to eight dimension sizes, held inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// The shape of elements that are in memory already.
    pub(crate) fn vector(len: usize) -> Self {
        let mut shape = Shape { rank: 1, ..Shape::SCALAR };
        shape.dims[0] = len;
        shape
    }

    /// As [`Shape::vector`], in rows.
    pub(crate) fn matrix(rows: usize, columns: usize) -> Self {
        let mut shape = Shape { rank: 2, ..Shape::SCALAR };
        (shape.dims[0], shape.dims[1]) = (rows, columns);
        shape
    }

    /// Checks rank and element count: the product of all sizes, zeros taken as one, must stay below [`MAX_ELEMENTS`].
    pub fn new(dims: &[usize]) -> Result<Self, Error> {
        if dims.len() > MAX_RANK {
            return Err(Error::RankTooHigh { rank: dims.len() });
        }
        let mut count: u64 = 1;
        for &d in dims {
            count = count.saturating_mul((d as u64).max(1));
        }
        if count > MAX_ELEMENTS {
            return Err(Error::TooLarge { dims: dims.to_vec() });
        }
        let mut shape = Shape { dims: [0; MAX_RANK], rank: dims.len() as u8 };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The sizes as a slice.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// The shape with one axis cut down to `size`; it never grows, so the limits of [`Shape::new`] still hold.
    pub fn shrunk(mut self, axis: usize, size: usize) -> Self {
        if let Some(d) = self.dims[..self.rank as usize].get_mut(axis) {
            *d = (*d).min(size);
        }
        self
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// True when some size is zero, so that there are no elements.
    pub fn has_zero(&self) -> bool {
        self.dims().contains(&0)
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<isize> {
        let mut strides = vec![1isize; self.rank()];
        for i in (0..self.rank().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.dims[i + 1].max(1) as isize;
        }
        strides
    }

    /// Strides that read this shape as if expanded to `to` (0 on broadcast axes), if it can be.
    pub fn broadcast_strides(&self, to: &Shape) -> Option<Vec<isize>> {
        let lead = to.rank().checked_sub(self.rank())?;
        let own = self.strides();
        let mut out = vec![0isize; to.rank()];
        for (i, (&d, &s)) in self.dims().iter().zip(&own).enumerate() {
            let target = to.dims[lead + i];
            if d == target {
                out[lead + i] = if d == 1 { 0 } else { s };
            } else if d != 1 {
                return None;
            }
        }
        Some(out)
    }

    /// NumPy broadcasting of two shapes; `None` if they do not fit or the result would pass [`MAX_ELEMENTS`].
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = Shape { dims: [0; MAX_RANK], rank: rank as u8 };
        for i in 0..rank {
            let a = self.size_from_back(rank - 1 - i);
            let b = other.size_from_back(rank - 1 - i);
            out.dims[i] = match (a, b) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Shape::new(out.dims()).ok()
    }

    /// The size `i` axes from the last one; 1 beyond the first.
    fn size_from_back(&self, i: usize) -> usize {
        if i < self.rank() { self.dims[self.rank() - 1 - i] } else { 1 }
    }

    /// Turns a possibly negative axis into an index, or `None` if it is outside the rank.
    pub fn axis(&self, axis: isize) -> Option<usize> {
        let rank = self.rank() as isize;
        let a = if axis < 0 { axis + rank } else { axis };
        (0..rank).contains(&a).then_some(a as usize)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        self.dims()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// Anything that can be given where a shape is asked for: arrays, slices, vectors and shapes.
pub trait IntoShape {
    /// The checked shape.
    fn into_shape(self) -> Result<Shape, Error>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape, Error> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape, Error> {
        Ok(*self)
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> Result<Shape, Error> {
        Shape::new(&self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self) -> Result<Shape, Error> {
        Shape::new(self)
    }
}

impl IntoShape for &Vec<usize> {
    fn into_shape(self) -> Result<Shape, Error> {
        Shape::new(self)
    }
}

/// What is known of a value before it is computed: element type and shape.
///
/// A packed tensor is stored as `u8`: `shape` counts bytes along its last axis, and `packed` says how they encode
/// elements. It prints as what it encodes, `q4_k[4096, 14336]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type as stored.
    pub dtype: DType,
    /// Sizes as stored.
    pub shape: Shape,
    /// The block format of a packed tensor.
    pub packed: Option<BlockFormat>,
}

impl TensorType {
    /// Pairs a dtype with a shape that is already checked.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        TensorType { dtype, shape, packed: None }
    }

    /// A packed tensor of so many elements; those of the last axis must be whole blocks.
    pub fn packed(format: BlockFormat, elements: impl IntoShape) -> Result<Self, Error> {
        let elements = elements.into_shape()?;
        let bad = |problem: String| Error::BadData { problem };
        let mut dims = elements.to_vec();
        let last = dims.last_mut().ok_or_else(|| bad(format!("a scalar cannot be packed as {format}")))?;
        *last = format.bytes_of(*last).ok_or_else(|| {
            bad(format!(
                "rows of {last} elements are not whole blocks: {format} has {} in a block",
                format.elements()
            ))
        })?;
        Ok(TensorType { dtype: DType::U8, shape: Shape::new(&dims)?, packed: Some(format) })
    }

    /// The sizes in elements: those of [`TensorType::shape`] except along the last axis of a packed tensor.
    pub fn elements(&self) -> Shape {
        let Some(format) = self.packed else { return self.shape };
        let mut dims = self.shape.to_vec();
        if let Some(last) = dims.last_mut() {
            // Checked when the type was built: the sizes in elements are those it was built from.
            *last = *last / format.bytes() * format.elements();
        }
        Shape::new(&dims).unwrap_or(self.shape)
    }

    /// Bytes of the contiguous tensor.
    pub fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.packed {
            Some(format) => write!(f, "{format}{}", self.elements()),
            None => write!(f, "{}{}", self.dtype, self.shape),
        }
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
