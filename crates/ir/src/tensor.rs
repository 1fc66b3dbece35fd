//! Tensors in host memory: owned and shared ([`Tensor`]) or borrowed ([`TensorView`]).

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use half::{bf16, f16};

use crate::shape::IntoShape;
use crate::{BlockFormat, DType, Element, Error, Recycler, Shape, TensorType, memory, round_to_odd};

/// Elements of one dtype, held by the Rust type that stores it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the dtypes")]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    F64(Vec<f64>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    Bool(Vec<bool>),
}

/// Runs `$body` on the vector inside a [`Data`], whatever its type.
macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F32($v) => $body,
            Data::F16($v) => $body,
            Data::BF16($v) => $body,
            Data::F64($v) => $body,
            Data::I8($v) => $body,
            Data::U8($v) => $body,
            Data::I16($v) => $body,
            Data::I32($v) => $body,
            Data::U32($v) => $body,
            Data::I64($v) => $body,
            Data::Bool($v) => $body,
        }
    };
}

impl Data {
    /// Zeros (false for bool).
    pub fn zeros(dtype: DType, len: usize) -> Result<Data, Error> {
        crate::with_dtype!(dtype, T => memory::zeroed::<T>(len).map(T::wrap))
    }

    /// A copy; [`Clone`] aborts where there is no memory for one.
    pub fn try_clone(&self) -> Result<Data, Error> {
        crate::with_dtype!(self.dtype(), T => memory::copied(T::slice(self).unwrap_or_default()).map(T::wrap))
    }

    /// The dtype held.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
            Data::F64(_) => DType::F64,
            Data::I8(_) => DType::I8,
            Data::U8(_) => DType::U8,
            Data::I16(_) => DType::I16,
            Data::I32(_) => DType::I32,
            Data::U32(_) => DType::U32,
            Data::I64(_) => DType::I64,
            Data::Bool(_) => DType::Bool,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as bytes, native endian.
    pub fn as_bytes(&self) -> &[u8] {
        each!(self, v => bytemuck::cast_slice(v.as_slice()))
    }

    /// The elements as bytes for writing; `None` for bool, whose bytes may only be 0 or 1.
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        macro_rules! pod {
            ($($variant:ident),*) => {
                match self {
                    $(Data::$variant(v) => Some(bytemuck::cast_slice_mut(v.as_mut_slice())),)*
                    Data::Bool(_) => None,
                }
            };
        }
        pod!(F32, F16, BF16, F64, I8, U8, I16, I32, U32, I64)
    }

    /// Copies bytes in; the length must be a multiple of the element size and bools must be 0 or 1.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Data, Error> {
        let bad = |problem: String| Error::BadData { problem };
        if !bytes.len().is_multiple_of(dtype.size()) {
            return Err(bad(format!("{} bytes are not a whole number of {dtype} elements", bytes.len())));
        }
        check_bools(dtype, bytes)?;
        Data::copied(dtype, bytes)
    }

    /// Copies bytes in whose length fits; a bool is true where its byte is not 0.
    fn copied(dtype: DType, bytes: &[u8]) -> Result<Data, Error> {
        macro_rules! pod {
            ($($variant:ident),*) => {
                match dtype {
                    $(DType::$variant => memory::from_bytes(bytes).map(Data::$variant),)*
                    DType::Bool => memory::collected(bytes.iter().map(|b| *b != 0)).map(Data::Bool),
                }
            };
        }
        pod!(F32, F16, BF16, F64, I8, U8, I16, I32, U32, I64)
    }
}

/// Whether bytes are elements of a dtype: a bool must be 0 or 1, since kernels compute with the byte.
fn check_bools(dtype: DType, bytes: &[u8]) -> Result<(), Error> {
    match bytes.iter().find(|b| dtype == DType::Bool && **b > 1) {
        Some(b) => Err(Error::BadData { problem: format!("a bool must be 0 or 1, found {b}") }),
        None => Ok(()),
    }
}

/// An owned tensor in host memory; clones share the elements.
#[derive(Clone)]
pub struct Tensor {
    shape: Shape,
    elements: Elements,
    packed: Option<BlockFormat>,
}

/// Where a tensor's elements lie.
#[derive(Clone)]
enum Elements {
    Own(Arc<Owned>),
    Shared(Arc<Shared>),
}

/// A tensor's own elements, and who takes them when it goes.
struct Owned {
    data: Data,
    home: Weak<Recycler>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.put_back(std::mem::replace(&mut self.data, Data::U8(Vec::new())));
        }
    }
}

/// Elements in memory that another owns, such as a mapped file.
struct Shared {
    dtype: DType,
    bytes: Bytes,
    /// The elements again, for those who ask for [`Data`].
    copy: OnceLock<Data>,
}

impl Shared {
    /// The elements as [`Data`], copied at the first call. Nothing here asks for all elements of a large tensor in this
    /// way; for a caller who does and has no memory for them, there is no answer to give.
    #[allow(clippy::expect_used, reason = "the signature of `Tensor::data` has no room for an error")]
    fn data(&self) -> &Data {
        self.copy
            .get_or_init(|| Data::copied(self.dtype, &self.bytes).expect("memory for a copy of the tensor"))
    }
}

/// Runs `$body` with an iterator over a tensor's elements as f64.
macro_rules! with_numbers {
    ($tensor:expr, $numbers:ident => $body:expr) => {{
        macro_rules! of {
            ($t:ty, $to:expr) => {{
                let $numbers = $tensor.as_slice::<$t>().unwrap_or_default().iter().map($to);
                $body
            }};
        }
        match $tensor.dtype() {
            DType::F32 => of!(f32, |x| f64::from(*x)),
            DType::F16 => of!(f16, |x| x.to_f64()),
            DType::BF16 => of!(bf16, |x| x.to_f64()),
            DType::F64 => of!(f64, |x| *x),
            DType::I8 => of!(i8, |x| f64::from(*x)),
            DType::U8 => of!(u8, |x| f64::from(*x)),
            DType::I16 => of!(i16, |x| f64::from(*x)),
            DType::I32 => of!(i32, |x| f64::from(*x)),
            DType::U32 => of!(u32, |x| f64::from(*x)),
            DType::I64 => of!(i64, |x| *x as f64),
            DType::Bool => of!(bool, |x| f64::from(u8::from(*x))),
        }
    }};
}

impl Tensor {
    /// Takes a vector of elements without copying it.
    pub fn new<T: Element>(shape: impl IntoShape, elements: Vec<T>) -> Result<Self, Error> {
        Tensor::from_data(shape, T::wrap(elements))
    }

    /// Takes typed elements whose dtype is known at run time.
    pub fn from_data(shape: impl IntoShape, data: Data) -> Result<Self, Error> {
        let shape = shape.into_shape()?;
        if shape.numel() != data.len() {
            return Err(Error::BadData {
                problem: format!("shape {shape} holds {} elements, got {}", shape.numel(), data.len()),
            });
        }
        Ok(Tensor::own(shape, data))
    }

    /// Takes the elements that a type has as stored: of a packed one its blocks.
    pub fn of_type(ty: TensorType, data: Data) -> Result<Self, Error> {
        let tensor = Tensor::from_data(ty.shape, data)?;
        match ty.packed {
            Some(format) => tensor.into_packed(format),
            None => Ok(tensor),
        }
    }

    /// Takes the bytes of packed blocks, for a tensor of so many elements.
    pub fn packed(format: BlockFormat, elements: impl IntoShape, bytes: Vec<u8>) -> Result<Self, Error> {
        Tensor::new(TensorType::packed(format, elements)?.shape, bytes)?.into_packed(format)
    }

    /// Bytes read as packed blocks; a row must be whole blocks.
    pub fn into_packed(self, format: BlockFormat) -> Result<Self, Error> {
        let bad = |problem: String| Err(Error::BadData { problem });
        let row = self.shape.last().copied().unwrap_or(0);
        if self.dtype() != DType::U8 || self.shape.rank() == 0 {
            return bad(format!("blocks of {format} are rows of u8, not {}", self.ty()));
        }
        if !row.is_multiple_of(format.bytes()) {
            return bad(format!(
                "rows of {row} bytes are not whole blocks: a block of {format} has {}",
                format.bytes()
            ));
        }
        let packed = Tensor { packed: Some(format), ..self };
        // The number of elements must be one that a shape can have.
        TensorType::packed(format, packed.ty().elements())?;
        Ok(packed)
    }

    /// Takes elements that lie in another's memory, native endian, without copying them: as many bytes as the type has,
    /// aligned for it, and no bools, whose bytes would have to be looked at.
    pub fn from_shared(ty: TensorType, bytes: Bytes) -> Result<Self, Error> {
        if ty.dtype == DType::Bool {
            return Err(Error::BadData { problem: "bools cannot be shared".into() });
        }
        TensorView::from_bytes(ty, &bytes)?;
        let shared = Shared { dtype: ty.dtype, bytes, copy: OnceLock::new() };
        Ok(Tensor { shape: ty.shape, elements: Elements::Shared(Arc::new(shared)), packed: ty.packed })
    }

    pub(crate) fn own(shape: Shape, data: Data) -> Self {
        Tensor { shape, elements: Elements::Own(Arc::new(Owned { data, home: Weak::new() })), packed: None }
    }

    /// Takes typed elements that go to a recycler when the last owner is gone.
    pub fn recycled(ty: TensorType, data: Data, home: &Arc<Recycler>) -> Result<Self, Error> {
        let mut tensor = Tensor::of_type(ty, data)?;
        if let Elements::Own(owned) = &mut tensor.elements
            && let Some(owned) = Arc::get_mut(owned)
        {
            owned.home = Arc::downgrade(home);
        }
        Ok(tensor)
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Self {
        Tensor::own(Shape::SCALAR, T::wrap(vec![value]))
    }

    /// A rank-0 tensor of a dtype known at run time; the value is cast as OPS says.
    pub fn scalar_of(dtype: DType, value: f64) -> Self {
        let data = match dtype {
            DType::F32 => Data::F32(vec![value as f32]),
            DType::F16 => Data::F16(vec![f16::from_f32(round_to_odd(value))]),
            DType::BF16 => Data::BF16(vec![bf16::from_f32(round_to_odd(value))]),
            DType::F64 => Data::F64(vec![value]),
            DType::I8 => Data::I8(vec![value as i8]),
            DType::U8 => Data::U8(vec![value as u8]),
            DType::I16 => Data::I16(vec![value as i16]),
            DType::I32 => Data::I32(vec![value as i32]),
            DType::U32 => Data::U32(vec![value as u32]),
            DType::I64 => Data::I64(vec![value as i64]),
            DType::Bool => Data::Bool(vec![value != 0.0]),
        };
        Tensor::own(Shape::SCALAR, data)
    }

    /// Zeros.
    pub fn zeros(dtype: DType, shape: impl IntoShape) -> Result<Self, Error> {
        let shape = shape.into_shape()?;
        Ok(Tensor::own(shape, Data::zeros(dtype, shape.numel())?))
    }

    /// Zeros of any type: of a packed one, blocks whose bytes are zeros.
    pub fn zeros_of(ty: TensorType) -> Result<Self, Error> {
        Tensor::of_type(ty, Data::zeros(ty.dtype, ty.shape.numel())?)
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match &self.elements {
            Elements::Own(own) => own.data.dtype(),
            Elements::Shared(shared) => shared.dtype,
        }
    }

    /// Element type and sizes.
    pub fn ty(&self) -> TensorType {
        TensorType { packed: self.packed, ..TensorType::new(self.dtype(), self.shape) }
    }

    /// The typed elements. Those that lie in another's memory are copied when they are first asked for in this way;
    /// [`Tensor::bytes`] and [`Tensor::as_slice`] never copy.
    pub fn data(&self) -> &Data {
        match &self.elements {
            Elements::Own(own) => &own.data,
            Elements::Shared(shared) => shared.data(),
        }
    }

    /// The elements as bytes, native endian, aligned for the element type.
    pub fn bytes(&self) -> &[u8] {
        match &self.elements {
            Elements::Own(own) => own.data.as_bytes(),
            Elements::Shared(shared) => &shared.bytes,
        }
    }

    /// The typed elements for writing; shared elements are copied first.
    pub fn data_mut(&mut self) -> Result<&mut Data, Error> {
        let copy = match &mut self.elements {
            Elements::Own(own) => match Arc::get_mut(own) {
                Some(_) => None,
                None => Some(own.data.try_clone()?),
            },
            Elements::Shared(shared) => Some(Data::copied(shared.dtype, &shared.bytes)?),
        };
        if let Some(data) = copy {
            // A copy is nobody's to recycle.
            self.elements = Elements::Own(Arc::new(Owned { data, home: Weak::new() }));
        }
        match &mut self.elements {
            Elements::Own(own) => match Arc::get_mut(own) {
                Some(own) => Ok(&mut own.data),
                None => unreachable!("elements that others hold were copied above"),
            },
            Elements::Shared(_) => unreachable!("shared elements were copied above"),
        }
    }

    /// The elements, if `T` is the dtype.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Error> {
        let slice = match &self.elements {
            Elements::Own(own) => T::slice(&own.data),
            Elements::Shared(shared) if shared.dtype == T::DTYPE => T::cast(&shared.bytes),
            Elements::Shared(_) => None,
        };
        slice.ok_or(Error::WrongElement { expected: self.dtype(), got: T::DTYPE })
    }

    /// The elements for writing; shared elements are copied first.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], Error> {
        let dtype = self.dtype();
        T::slice_mut(self.data_mut()?).ok_or(Error::WrongElement { expected: dtype, got: T::DTYPE })
    }

    /// The same elements under another shape with the same count.
    pub fn reshaped(&self, shape: impl IntoShape) -> Result<Self, Error> {
        let shape = shape.into_shape()?;
        if shape.numel() != self.shape.numel() {
            return Err(Error::BadData { problem: format!("cannot reshape {} to {shape}", self.shape) });
        }
        if self.packed.is_some() && shape.last() != self.shape.last() {
            return Err(Error::BadData { problem: format!("rows of {} cannot be cut otherwise", self.ty()) });
        }
        Ok(Tensor { shape, elements: self.elements.clone(), packed: self.packed })
    }

    /// Borrows the tensor as an input.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { ty: self.ty(), bytes: self.bytes() }
    }

    /// True when both share the same elements in memory.
    pub fn shares_data(&self, other: &Tensor) -> bool {
        match (&self.elements, &other.elements) {
            (Elements::Own(a), Elements::Own(b)) => Arc::ptr_eq(a, b),
            (Elements::Shared(a), Elements::Shared(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Every element as f64, for inspection and tests; i64 beyond 2^53 rounds.
    pub fn to_f64(&self) -> Vec<f64> {
        with_numbers!(self, numbers => numbers.collect())
    }

    /// The elements one after another as f64, as [`Tensor::to_f64`] lists them; nothing is copied.
    pub fn numbers(&self) -> Box<dyn ExactSizeIterator<Item = f64> + '_> {
        with_numbers!(self, numbers => Box::new(numbers))
    }
}

/// Equal type and equal bits: a NaN equals itself, 0.0 differs from -0.0.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.ty() == other.ty() && (self.shares_data(other) || self.bytes() == other.bytes())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<f64> = self.numbers().take(8).collect();
        write!(f, "{} {first:?}", self.ty())?;
        if self.shape.numel() > 8 { f.write_str(" …") } else { Ok(()) }
    }
}

/// A borrowed, row-major tensor; making one copies nothing.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    ty: TensorType,
    bytes: &'a [u8],
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorView({})", self.ty)
    }
}

impl<'a> TensorView<'a> {
    /// Borrows a slice of elements under a shape.
    pub fn new<T: Element>(shape: impl IntoShape, elements: &'a [T]) -> Result<Self, Error> {
        let shape = shape.into_shape()?;
        if shape.numel() != elements.len() {
            return Err(Error::BadData {
                problem: format!("shape {shape} holds {} elements, got {}", shape.numel(), elements.len()),
            });
        }
        Ok(TensorView { ty: TensorType::new(T::DTYPE, shape), bytes: bytemuck::cast_slice(elements) })
    }

    /// Borrows the bytes of elements: as many as the type has, aligned for it; a bool that is neither 0 nor 1 is
    /// an error.
    pub fn from_bytes(ty: TensorType, bytes: &'a [u8]) -> Result<Self, Error> {
        let bad = |problem: String| Err(Error::BadData { problem });
        if bytes.len() != ty.bytes() {
            return bad(format!("{ty} takes {} bytes, got {}", ty.bytes(), bytes.len()));
        }
        if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(ty.dtype.size()) {
            return bad(format!("the bytes are not aligned for {}", ty.dtype));
        }
        check_bools(ty.dtype, bytes)?;
        Ok(TensorView { ty, bytes })
    }

    /// The elements.
    pub fn as_slice<T: Element + bytemuck::CheckedBitPattern>(&self) -> Result<&'a [T], Error> {
        if T::DTYPE != self.ty.dtype {
            return Err(Error::WrongElement { expected: self.ty.dtype, got: T::DTYPE });
        }
        if self.bytes.is_empty() {
            return Ok(&[]);
        }
        let cast = bytemuck::checked::try_cast_slice(self.bytes);
        cast.map_err(|e| Error::BadData { problem: e.to_string() })
    }

    /// Element type and sizes.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The elements as bytes, native endian, aligned for the element type.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Copies the elements out.
    pub fn to_tensor(&self) -> Result<Tensor, Error> {
        let tensor = Tensor::from_data(self.ty.shape, Data::from_bytes(self.ty.dtype, self.bytes)?)?;
        Ok(Tensor { packed: self.ty.packed, ..tensor })
    }
}

impl<'a> From<&'a Tensor> for TensorView<'a> {
    fn from(t: &'a Tensor) -> Self {
        t.view()
    }
}
