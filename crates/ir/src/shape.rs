//! Shapes, strides and broadcasting.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use olivine_size::{Dim, Expression, Expressions, guards};

use crate::{BlockFormat, DType, Error};

/// The largest rank a tensor may have.
pub const MAX_RANK: usize = 8;

/// No tensor may hold more elements than this: products of sizes and byte counts then never overflow.
pub const MAX_ELEMENTS: u64 = if usize::BITS < 64 { 1 << 27 } else { 1 << 50 };

/// Up to eight dimension sizes, held inline.
///
/// A size has a value and, in a compile with open sizes, an expression over named sizes ([`Dim`]). [`Shape::sizes`] and
/// [`Shape::size`] are both; code that uses them holds for other sizes too. [`Shape::dims`], the slice that a shape
/// derefs to, and [`Shape::numel`] are plain numbers: reading them while guards are recorded restricts what is compiled
/// to these numbers.
#[derive(Clone, Copy, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    /// Errors carry the types of several tensors, so a shape is kept small: eight expressions would be 32 bytes.
    expressions: Expressions,
    rank: u8,
}

/// The sizes of a shape with their expressions, held inline.
#[derive(Clone, Copy, Default)]
pub struct Sizes {
    dims: [Dim; MAX_RANK],
    rank: u8,
}

impl Deref for Sizes {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.dims[..self.rank as usize]
    }
}

impl DerefMut for Sizes {
    fn deref_mut(&mut self) -> &mut [Dim] {
        &mut self.dims[..self.rank as usize]
    }
}

impl Sizes {
    /// Number of elements.
    #[track_caller]
    pub fn numel(&self) -> Dim {
        product(self)
    }
}

/// The product of sizes.
#[track_caller]
pub fn product(sizes: &[Dim]) -> Dim {
    // A fold would report a line of the standard library as the place that asked.
    let mut all = Dim::ONE;
    for size in sizes {
        all *= *size;
    }
    all
}

impl Shape {
    /// The shape of a single number.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], expressions: Expressions::NONE, rank: 0 };

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

    /// As [`Shape::matrix`], of several of them.
    pub(crate) fn matrices(count: usize, rows: usize, columns: usize) -> Self {
        let mut shape = Shape { rank: 3, ..Shape::SCALAR };
        (shape.dims[0], shape.dims[1], shape.dims[2]) = (count, rows, columns);
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
        let mut shape = Shape { rank: dims.len() as u8, ..Shape::SCALAR };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// As [`Shape::new`], of sizes that may have expressions; a negative size is an error.
    #[track_caller]
    pub fn of_sizes(sizes: &[Dim]) -> Result<Self, Error> {
        let mut dims = [0; MAX_RANK];
        let mut expressions = [Expression::NONE; MAX_RANK];
        for (axis, size) in sizes.iter().enumerate().take(MAX_RANK) {
            let bad = |problem: String| Error::BadData { problem };
            let (value, expression) = match size.parts() {
                Some(parts) => parts,
                None => return Err(bad(size.value().err().map(|e| e.to_string()).unwrap_or_default())),
            };
            dims[axis] = usize::try_from(value)
                .map_err(|_| bad(format!("size {} of axis {axis} is {value}, which is negative", size)))?;
            expressions[axis] = expression;
        }
        let mut shape = Shape::new(dims.get(..sizes.len()).ok_or(Error::RankTooHigh { rank: sizes.len() })?)?;
        match Expressions::new(&expressions[..sizes.len()]) {
            Some(expressions) => shape.expressions = expressions,
            // As for a size that would be one expression too many.
            None if guards::is_recording() => {
                for size in sizes {
                    // Checked above: none is faulty or negative.
                    let _ = size.specialize();
                }
            }
            None => {
                return Err(Error::BadData {
                    problem: format!("the shape {sizes:?} is one too many for this process"),
                });
            }
        }
        Ok(shape)
    }

    /// The shape with other numbers and the same expressions.
    pub fn with_values(mut self, dims: &[usize]) -> Result<Self, Error> {
        let checked = Shape::new(dims)?;
        if checked.rank != self.rank {
            return Err(Error::RankTooHigh { rank: dims.len() });
        }
        self.dims = checked.dims;
        Ok(self)
    }

    /// Sets one size, and leaves the shape as plain numbers ([`Shape::values`]). Of [`MAX_ELEMENTS`] nothing is checked:
    /// the memory of what has this shape is.
    pub fn set_number(&mut self, axis: usize, size: usize) {
        if axis < self.rank() {
            self.dims[axis] = size;
            self.expressions = Expressions::NONE;
        }
    }

    /// The shape as plain numbers, without expressions. Asks nothing: for what is used at these sizes alone.
    pub fn values(&self) -> Shape {
        Shape { expressions: Expressions::NONE, ..*self }
    }

    /// Whether any size has an expression.
    #[inline]
    pub fn is_symbolic(&self) -> bool {
        !self.expressions.is_none()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The sizes with their expressions.
    pub fn sizes(&self) -> Sizes {
        let mut dims = [Dim::ZERO; MAX_RANK];
        let expressions = self.expressions.as_slice();
        for (axis, dim) in dims.iter_mut().enumerate().take(self.rank()) {
            let expression = expressions.get(axis).copied().unwrap_or_default();
            *dim = Dim::from_parts(self.dims[axis] as i64, expression);
        }
        Sizes { dims, rank: self.rank }
    }

    /// One size with its expression; 1 beyond the last axis.
    pub fn size(&self, axis: usize) -> Dim {
        match axis < self.rank() {
            true => Dim::from_parts(self.dims[axis] as i64, self.expressions.get(axis)),
            false => Dim::ONE,
        }
    }

    /// One size as a number; what is compiled now holds for this number only. 1 beyond the last axis.
    #[track_caller]
    pub fn number(&self, axis: usize) -> usize {
        self.size(axis).specialize().unwrap_or(0)
    }

    /// The sizes as numbers.
    #[track_caller]
    pub fn dims(&self) -> &[usize] {
        self.pin();
        &self.dims[..self.rank as usize]
    }

    /// Records that what is compiled now holds for these numbers only.
    #[inline]
    #[track_caller]
    fn pin(&self) {
        if self.is_symbolic() {
            self.pin_symbolic();
        }
    }

    #[cold]
    #[track_caller]
    fn pin_symbolic(&self) {
        if guards::is_recording() {
            for size in self.sizes().iter() {
                // A size of a shape is never faulty and never negative.
                let _ = size.specialize();
            }
        }
    }

    /// The shape as plain numbers with one axis cut down to `size`; it never grows, so the limits of [`Shape::new`] still
    /// hold.
    pub fn shrunk(mut self, axis: usize, size: usize) -> Self {
        if let Some(d) = self.dims[..self.rank as usize].get_mut(axis) {
            *d = (*d).min(size);
        }
        self.expressions = Expressions::NONE;
        self
    }

    /// Number of elements.
    #[track_caller]
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// True when some size is zero, so that there are no elements.
    #[track_caller]
    pub fn has_zero(&self) -> bool {
        if !self.is_symbolic() {
            return self.dims[..self.rank()].contains(&0);
        }
        self.sizes().iter().any(|size| *size == 0)
    }

    /// Row-major strides in elements.
    #[track_caller]
    pub fn strides(&self) -> Vec<isize> {
        self.pin();
        let mut strides = vec![1isize; self.rank()];
        for i in (0..self.rank().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.dims[i + 1].max(1) as isize;
        }
        strides
    }

    /// Row-major strides in elements, with their expressions.
    pub fn stride_sizes(&self) -> Vec<Dim> {
        let mut strides = vec![Dim::ONE; self.rank()];
        for i in (0..self.rank().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.size(i + 1).max(1);
        }
        strides
    }

    /// Strides that read this shape as if expanded to `to` (0 on broadcast axes), if it can be.
    pub fn broadcast_strides(&self, to: &Shape) -> Option<Vec<isize>> {
        let lead = to.rank().checked_sub(self.rank())?;
        let own = self.strides();
        let mut out = vec![0isize; to.rank()];
        for (i, (&d, &s)) in self.dims().iter().zip(&own).enumerate() {
            let target = to[lead + i];
            if d == target {
                out[lead + i] = if d == 1 { 0 } else { s };
            } else if d != 1 {
                return None;
            }
        }
        Some(out)
    }

    /// NumPy broadcasting of two shapes; `None` if they do not fit or the result would pass [`MAX_ELEMENTS`].
    #[track_caller]
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = [Dim::ZERO; MAX_RANK];
        for i in 0..rank {
            let a = self.size_from_back(rank - 1 - i);
            let b = other.size_from_back(rank - 1 - i);
            out[i] = broadcast_size(a, b)?;
        }
        Shape::of_sizes(&out[..rank]).ok()
    }

    /// The size `i` axes from the last one; 1 beyond the first.
    fn size_from_back(&self, i: usize) -> Dim {
        if i < self.rank() { self.size(self.rank() - 1 - i) } else { Dim::ONE }
    }

    /// Turns a possibly negative axis into an index, or `None` if it is outside the rank.
    pub fn axis(&self, axis: isize) -> Option<usize> {
        let rank = self.rank() as isize;
        let a = if axis < 0 { axis + rank } else { axis };
        (0..rank).contains(&a).then_some(a as usize)
    }
}

/// The size that two broadcast to. A constant 1 decides without a question.
#[track_caller]
pub fn broadcast_size(a: Dim, b: Dim) -> Option<Dim> {
    if b.as_constant() == Some(1) || a.structural() == b.structural() {
        return Some(a);
    }
    if a.as_constant() == Some(1) {
        return Some(b);
    }
    if a == b {
        // One of them may be a plain number, which later questions need not ask about.
        return Some(if b.is_constant() { b } else { a });
    }
    if a == 1 {
        Some(b)
    } else if b == 1 {
        Some(a)
    } else {
        None
    }
}

/// Equal sizes; where expressions differ, the answer is recorded.
impl PartialEq for Shape {
    #[track_caller]
    fn eq(&self, other: &Shape) -> bool {
        if self.rank != other.rank {
            return false;
        }
        if self.expressions == other.expressions && self.dims == other.dims {
            return true;
        }
        (0..self.rank()).all(|axis| {
            let (a, b) = (self.size(axis), other.size(axis));
            a.structural() == b.structural() || a == b
        })
    }
}

impl Eq for Shape {}

/// By the numbers, so that equal shapes have equal hashes.
impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dims[..self.rank()].hash(state);
    }
}

impl Deref for Shape {
    type Target = [usize];
    #[track_caller]
    fn deref(&self) -> &[usize] {
        self.dims()
    }
}

/// `[batch, 768]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_symbolic() {
            return write!(f, "{:?}", &self.dims[..self.rank()]);
        }
        f.write_str("[")?;
        for (axis, size) in self.sizes().iter().enumerate() {
            write!(f, "{}{size}", if axis > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

/// As it displays; sizes with an expression show their value too.
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.sizes()[..])
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

impl IntoShape for &[Dim] {
    fn into_shape(self) -> Result<Shape, Error> {
        Shape::of_sizes(self)
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
        let mut sizes = elements.sizes();
        let axis = elements
            .rank()
            .checked_sub(1)
            .ok_or_else(|| bad(format!("a scalar cannot be packed as {format}")))?;
        let last = elements.number(axis);
        let bytes = format.bytes_of(last).ok_or_else(|| {
            bad(format!(
                "rows of {last} elements are not whole blocks: {format} has {} in a block",
                format.elements()
            ))
        })?;
        sizes[axis] = bytes.into();
        Ok(TensorType { dtype: DType::U8, shape: Shape::of_sizes(&sizes)?, packed: Some(format) })
    }

    /// The sizes in elements: those of [`TensorType::shape`] except along the last axis of a packed tensor.
    pub fn elements(&self) -> Shape {
        let Some(format) = self.packed else { return self.shape };
        let mut sizes = self.shape.sizes();
        if let Some(axis) = self.shape.rank().checked_sub(1) {
            // Checked when the type was built: the sizes in elements are those it was built from.
            sizes[axis] = (self.shape.number(axis) / format.bytes() * format.elements()).into();
        }
        Shape::of_sizes(&sizes).unwrap_or(self.shape)
    }

    /// Bytes of the contiguous tensor.
    #[track_caller]
    pub fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }

    /// Bytes of the contiguous tensor, as an expression.
    pub fn size_bytes(&self) -> Dim {
        self.shape.sizes().numel() * self.dtype.size()
    }

    /// The type with plain numbers as sizes.
    pub fn values(&self) -> TensorType {
        TensorType { shape: self.shape.values(), ..*self }
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
