//! Tensors that stay on a device between runs.

use std::ops::Range;
use std::sync::Arc;

use olivine_ir::TensorType;
use olivine_program::{Driver, Error};

/// A tensor in device memory; clones share it.
pub struct DeviceTensor<D: Driver> {
    driver: Arc<D>,
    ty: TensorType,
    buffer: Arc<D::Buffer>,
    /// Held as long as somebody may use the tensor: no run writes over an output meanwhile, and recordings made for
    /// the tensor are kept no longer.
    lease: Arc<()>,
}

impl<D: Driver> Clone for DeviceTensor<D> {
    fn clone(&self) -> Self {
        let (driver, buffer, lease) = (self.driver.clone(), self.buffer.clone(), self.lease.clone());
        DeviceTensor { driver, ty: self.ty, buffer, lease }
    }
}

impl<D: Driver> DeviceTensor<D> {
    /// Brings packed bytes to the device.
    pub fn upload(driver: &Arc<D>, ty: TensorType, bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() != ty.bytes() {
            let what = format!("bytes of {ty}");
            return Err(Error::WrongCount { what, expected: ty.bytes(), got: bytes.len() });
        }
        let tensor = DeviceTensor::unwritten(driver, ty)?;
        driver.write(&tensor.buffer, 0, bytes)?;
        Ok(tensor)
    }

    /// Another tensor on the same device with the same elements, after every run submitted so far.
    pub fn copy(&self) -> Result<Self, Error> {
        let tensor = DeviceTensor::unwritten(&self.driver, self.ty)?;
        self.driver.copy(&self.buffer, &tensor.buffer, self.ty.bytes() as u64)?;
        Ok(tensor)
    }

    fn unwritten(driver: &Arc<D>, ty: TensorType) -> Result<Self, Error> {
        // Kernels read whole vectors; memory is padded as programs pad theirs.
        let padded = (ty.bytes() as u64).max(1).next_multiple_of(driver.caps().alignment() as u64);
        let buffer = driver.allocate(padded, "a resident tensor")?;
        Ok(DeviceTensor { driver: driver.clone(), ty, buffer, lease: Arc::new(()) })
    }

    /// The first bytes of the same memory as a tensor of another type, which must not be larger.
    pub fn reinterpret(&self, ty: TensorType) -> Result<Self, Error> {
        let (expected, got) = (self.ty.bytes(), ty.bytes());
        if got > expected {
            return Err(Error::WrongCount { what: format!("bytes of {} at most", self.ty), expected, got });
        }
        Ok(DeviceTensor { ty, ..self.clone() })
    }

    /// A copy whose first bytes are those of another tensor of this device, after every run submitted so far.
    pub fn with_prefix(&self, prefix: &Self) -> Result<Self, Error> {
        let (expected, got) = (self.ty.bytes(), prefix.ty.bytes());
        if got > expected {
            return Err(Error::WrongCount { what: format!("bytes of {} at most", self.ty), expected, got });
        }
        let tensor = self.copy()?;
        self.driver.copy(&prefix.buffer, &tensor.buffer, got as u64)?;
        Ok(tensor)
    }

    /// The driver whose memory it is in.
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }

    pub(super) fn leased(driver: Arc<D>, ty: TensorType, buffer: Arc<D::Buffer>, lease: Arc<()>) -> Self {
        DeviceTensor { driver, ty, buffer, lease }
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Whether it is in the memory of this driver; a buffer of one driver means nothing to another.
    pub fn is_of(&self, driver: &Arc<D>) -> bool {
        Arc::ptr_eq(&self.driver, driver)
    }

    pub(super) fn lease(&self) -> &Arc<()> {
        &self.lease
    }

    /// Whether other handles of its memory may exist.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.lease) > 1
    }

    pub(crate) fn buffer(&self) -> &Arc<D::Buffer> {
        &self.buffer
    }

    /// All bytes, after every run submitted so far.
    pub fn read(&self, into: &mut [u8]) -> Result<(), Error> {
        self.read_elements(0..self.ty.shape.numel(), into)
    }

    /// The bytes of some elements, counted row-major.
    pub fn read_elements(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let offset = self.offset_of(elements, into.len())?;
        self.driver.read(&self.buffer, offset, into)
    }

    /// As [`DeviceTensor::read_elements`], without blocking where the driver can.
    pub async fn read_elements_async(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let offset = self.offset_of(elements, into.len())?;
        self.driver.read_async(&self.buffer, offset, into).await
    }

    /// The first byte of some elements, if so many bytes are what they take.
    fn offset_of(&self, elements: Range<usize>, bytes: usize) -> Result<u64, Error> {
        let size = self.ty.dtype.size();
        let wrong = |what: String, expected, got| Err(Error::WrongCount { what, expected, got });
        if elements.start > elements.end || elements.end > self.ty.shape.numel() {
            return wrong(format!("elements of {} at most", self.ty), self.ty.shape.numel(), elements.end);
        }
        if bytes != elements.len() * size {
            return wrong("bytes to read into".into(), elements.len() * size, bytes);
        }
        Ok((elements.start * size) as u64)
    }

    /// Writes packed bytes over some elements, after every run submitted so far.
    pub fn write(&self, first: usize, bytes: &[u8]) -> Result<(), Error> {
        let offset = first.saturating_mul(self.ty.dtype.size());
        let end = offset.saturating_add(bytes.len());
        if end > self.ty.bytes() {
            let what = format!("bytes of {} at most", self.ty);
            return Err(Error::WrongCount { what, expected: self.ty.bytes(), got: end });
        }
        // A driver may write at once; a read returns when no run uses the buffer any more.
        self.driver.read(&self.buffer, 0, &mut [0])?;
        self.driver.write(&self.buffer, offset as u64, bytes)
    }
}
