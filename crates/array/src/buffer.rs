//! Buffers: bytes on the device that operations replace.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use olivine_ir::{DType, IntoShape, MAX_ELEMENTS, Tensor, TensorType};

use crate::node::Node;
use crate::{Array, Context, Error, ErrorKind};

/// Bytes on a device; clones are handles of the same bytes.
///
/// A buffer holds a flat array, and writing to it replaces that array: work in flight, and arrays made of the buffer, keep
/// the bytes that they were given. So a handle can be dropped at any time, an output may be an input, and threads that
/// write to one buffer at once leave the bytes of one of them.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    context: Context,
    bytes: usize,
    /// A flat array of so many bytes.
    content: Mutex<Array>,
}

impl Inner {
    /// What computes its bytes.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner).node().clone()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.inner.bytes)
    }
}

impl Context {
    /// A buffer of zeros; it may have no bytes.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        let ty = flat(bytes)?;
        let zeros = || Array::from_tensor(self, &Tensor::zeros(ty.dtype, ty.shape)?);
        Ok(Buffer::new(self, bytes, self.with_memory(zeros)?))
    }

    /// A buffer with a copy of the host's bytes.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer, Error> {
        Ok(Buffer::new(self, bytes.len(), uploaded(self, bytes)?))
    }
}

impl Buffer {
    fn new(context: &Context, bytes: usize, content: Array) -> Self {
        Buffer { inner: Arc::new(Inner { context: context.clone(), bytes, content: Mutex::new(content) }) }
    }

    /// A buffer of an array's elements in row-major order. Operations that wait go on waiting.
    pub fn from_array(array: &Array) -> Result<Self, Error> {
        let content = array.reshaped([array.shape().numel()])?;
        Ok(Buffer::new(array.context(), array.ty().bytes(), content))
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Bytes.
    pub fn byte_size(&self) -> usize {
        self.inner.bytes
    }

    /// Overwrites all of it with bytes of the host, of which there must be as many.
    pub fn upload_into(&self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != self.inner.bytes {
            let (got, size) = (bytes.len(), self.inner.bytes);
            return Err(Error::size(format!("{got} bytes for a buffer of {size}")));
        }
        let content = uploaded(&self.inner.context, bytes)?;
        *self.content() = content;
        Ok(())
    }

    /// Brings all bytes to the host, after what was submitted to it so far.
    pub fn download(&self) -> Result<Vec<u8>, Error> {
        self.snapshot().to_bytes()
    }

    /// Copies all bytes to the host's, of which there must be as many.
    pub fn download_into(&self, into: &mut [u8]) -> Result<(), Error> {
        if into.len() != self.inner.bytes {
            return Err(Error::size(format!("{} bytes for a buffer of {}", into.len(), self.inner.bytes)));
        }
        self.snapshot().read_bytes(into)
    }

    /// Its first bytes as an array; what is written to the buffer later does not change it. Any byte but 0 is a true bool.
    pub fn array(&self, dtype: DType, shape: impl IntoShape) -> Result<Array, Error> {
        let shape = shape.into_shape()?;
        if dtype == DType::Bool {
            return self.elements(DType::U8, shape.numel())?.reshaped(shape)?.cast(DType::Bool);
        }
        self.elements(dtype, shape.numel())?.reshaped(shape)
    }

    /// Submits what its bytes wait for, without waiting for the result.
    pub fn eval(&self) -> Result<(), Error> {
        self.snapshot().eval()
    }

    /// Waits until its bytes are computed.
    pub fn wait(&self) -> Result<(), Error> {
        self.snapshot().wait()
    }

    /// Whether its bytes are computed, without waiting for them.
    pub fn is_ready(&self) -> Result<bool, Error> {
        self.snapshot().is_ready()
    }

    /// As [`Array::on_ready`].
    pub fn on_ready(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        self.snapshot().on_ready(callback)
    }

    /// What it holds now.
    fn snapshot(&self) -> Array {
        self.content().clone()
    }

    /// Its first elements of a dtype, as a flat array.
    pub(crate) fn elements(&self, dtype: DType, count: usize) -> Result<Array, Error> {
        let size = self.inner.bytes;
        let needed = count.checked_mul(dtype.size()).filter(|needed| *needed <= size);
        let Some(needed) = needed else {
            return Err(Error::size(format!("{count} elements of {dtype} in a buffer of {size} bytes")));
        };
        let content = self.snapshot();
        if content.dtype() != dtype {
            let typed = content.reinterpret(TensorType::new(dtype, [count].into_shape()?))?;
            let mut now = self.content();
            // The CPU copies for this, once.
            if needed == size && now.is(&content) {
                *now = typed.clone();
            }
            return Ok(typed);
        }
        match content.shape().numel() == count {
            true => Ok(content),
            false => content.slice(&[(0, i64::try_from(count).unwrap_or(i64::MAX), 1)]),
        }
    }

    /// Replaces its first bytes by the elements of an array; the bytes behind them stay.
    pub(crate) fn replace(&self, compute: impl FnOnce() -> Result<Array, Error>) -> Result<(), Error> {
        // Locked until the new content is there: another operation on this buffer comes before or after.
        let mut content = self.content();
        let array = compute()?;
        let context = &self.inner.context;
        if array.ty().bytes() == self.inner.bytes {
            match context.is_lazy() {
                true => context.remember(&self.inner),
                false => array.eval()?,
            }
            *content = array;
            return Ok(());
        }
        let whole =
            context.with_memory(|| Ok(content.device_tensor()?.with_prefix(&array.device_tensor()?)?))?;
        *content = Array::from_device(context, whole);
        Ok(())
    }

    /// A number that is unique among buffers and orders them.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Array> {
        self.inner.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The type that bytes have before an operation says what they are: on the CPU it costs a copy to change it, and f32 is
/// the most likely one.
fn flat(bytes: usize) -> Result<TensorType, Error> {
    if bytes as u64 > MAX_ELEMENTS {
        return Err(Error::new(ErrorKind::OutOfMemory, format!("no device has {bytes} bytes")));
    }
    let dtype = if bytes.is_multiple_of(4) { DType::F32 } else { DType::U8 };
    Ok(TensorType::new(dtype, [bytes / dtype.size()].into_shape()?))
}

fn uploaded(context: &Context, bytes: &[u8]) -> Result<Array, Error> {
    let ty = flat(bytes.len())?;
    Array::from_bytes(context, ty.dtype, ty.shape, bytes)
}
