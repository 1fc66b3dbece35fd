//! Device memory, and bytes between it and the host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use olivine_program::Error;

use crate::Device;
use crate::error::{Caught, Scope};
use crate::submit::Flight;

/// Bytes that one copy between host and device takes at a time.
const CHUNK: usize = 32 << 20;
/// Bytes of writes that may wait in wgpu's staging memory before they are sent off and waited for.
const STAGED: u64 = 256 << 20;
/// Buffers are multiples of this, so that every binding can be rounded up to whole vectors of four 64-bit numbers.
pub(crate) const GRAIN: u64 = 32;
/// Read-back buffers kept for later reads.
const POOLED: usize = 4;

/// Device-local memory.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) raw: wgpu::Buffer,
    /// A multiple of `GRAIN`.
    pub(crate) bytes: u64,
}

impl Buffer {
    /// Bytes, at least what was asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(target_arch = "wasm32")]
impl Drop for Buffer {
    /// wgpu leaves a browser's memory to its garbage collector, which does not know when a GPU is short of it.
    fn drop(&mut self) {
        self.raw.destroy();
    }
}

/// Read-back buffers to use again, how much is staged for writing, and how much was ever asked for.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    free: Mutex<Vec<wgpu::Buffer>>,
    staged: AtomicU64,
    #[cfg(target_arch = "wasm32")]
    asked: AtomicU64,
}

impl Staging {
    /// A read-back buffer of at least `bytes`.
    fn take(&self, device: &wgpu::Device, bytes: u64) -> wgpu::Buffer {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().enumerate().filter(|(_, b)| b.size() >= bytes).min_by_key(|(_, b)| b.size());
        match fits.map(|(i, _)| i) {
            Some(i) => free.swap_remove(i),
            None => readback(device, bytes.next_power_of_two().max(4096), "read"),
        }
    }

    fn recycle(&self, buffer: wgpu::Buffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < POOLED {
            free.push(buffer);
        }
    }
}

/// A buffer that the host can map to read.
pub(crate) fn readback(device: &wgpu::Device, bytes: u64, label: &str) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: bytes,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// A read of some bytes on its way.
struct PendingRead {
    staging: wgpu::Buffer,
    /// Bytes before the first one that is wanted, there for alignment.
    skip: usize,
    flight: Flight,
}

impl Device {
    /// Takes device-local memory without blocking; lack of it is known when the future is done, in browsers too.
    pub async fn allocate_async(&self, bytes: u64, label: &str) -> Result<Arc<Buffer>, Error> {
        let size = self.fitting(bytes, label)?;
        let scope = Scope::new(&self.raw);
        let raw = self.create(size, label, wgpu::BufferUsages::empty());
        scope.end().await.map_err(|c| unallocated(c, size, label))?;
        self.faults.check("allocate", None)?;
        Ok(Arc::new(Buffer { raw, bytes: size }))
    }

    /// Allocates device-local memory with further usages.
    pub(crate) fn allocate_for(
        &self,
        bytes: u64,
        label: &str,
        also: wgpu::BufferUsages,
    ) -> Result<Arc<Buffer>, Error> {
        let size = self.fitting(bytes, label)?;
        #[cfg(target_arch = "wasm32")]
        self.staging.asked.fetch_add(size, Ordering::Relaxed);
        let raw = self.scoped("allocate", || self.create(size, label, also));
        let raw = raw.map_err(|c| unallocated(c, size, label))?;
        Ok(Arc::new(Buffer { raw, bytes: size }))
    }

    fn fitting(&self, bytes: u64, label: &str) -> Result<u64, Error> {
        if bytes > self.caps.max_buffer_bytes {
            return Err(Error::TooLarge {
                what: label.to_string(),
                needed: bytes,
                device: self.caps.name.clone(),
                available: self.caps.max_buffer_bytes,
            });
        }
        Ok(bytes.max(GRAIN).next_multiple_of(GRAIN))
    }

    fn create(&self, size: u64, label: &str, also: wgpu::BufferUsages) -> wgpu::Buffer {
        use wgpu::BufferUsages as U;
        let usage = U::STORAGE | U::COPY_SRC | U::COPY_DST | also;
        self.raw.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    pub(crate) fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        in_range("write", buffer, offset, bytes.len())?;
        // wgpu writes whole words; the parts of words at both ends are merged with what is there.
        let head = ((4 - offset % 4) % 4).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        let (body, tail) = rest.split_at(rest.len() & !3);
        if !head.is_empty() {
            self.patch.merge(self, buffer, offset, head)?;
        }
        let start = offset + head.len() as u64;
        for (i, chunk) in body.chunks(CHUNK).enumerate() {
            self.write_words(buffer, start + (i * CHUNK) as u64, chunk)?;
            self.bound_staging(chunk.len() as u64)?;
        }
        if !tail.is_empty() {
            self.patch.merge(self, buffer, start + body.len() as u64, tail)?;
        }
        Ok(())
    }

    /// Copies from the beginning of one buffer to that of another; queues do that in order.
    pub(crate) fn copy(&self, from: &Buffer, to: &Buffer, bytes: u64) -> Result<(), Error> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        in_range("copy", from, 0, len)?;
        in_range("copy", to, 0, len)?;
        let copied = self.scoped("copy", || {
            let mut encoder =
                self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("copy") });
            // Buffers are whole grains, so the last word is inside both.
            encoder.copy_buffer_to_buffer(&from.raw, 0, &to.raw, 0, bytes.next_multiple_of(4));
            self.queue.submit([encoder.finish()]);
        });
        copied.map_err(|c| unallocated(c, bytes, "a copy"))
    }

    /// Writes at a multiple of 4; what is missing in the last word becomes zeros.
    pub(crate) fn write_words(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(size) = wgpu::BufferSize::new(bytes.len().next_multiple_of(4) as u64) else { return Ok(()) };
        let staged = self.scoped("write", || {
            let mut view = self.queue.write_buffer_with(&buffer.raw, offset, size)?;
            view.slice(..bytes.len()).copy_from_slice(bytes);
            view.slice(bytes.len()..).fill(0);
            Some(())
        });
        let refused = || Caught::Refused("wgpu gave no staging memory".into());
        staged
            .and_then(|done| done.ok_or_else(refused))
            .map_err(|c| unallocated(c, size.get(), "staging memory"))
    }

    /// Sends writes off when much is staged, and waits, so that loading a model does not double its memory.
    fn bound_staging(&self, bytes: u64) -> Result<(), Error> {
        let before = self.staging.staged.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) < STAGED {
            return Ok(());
        }
        self.staging.staged.store(0, Ordering::Relaxed);
        let _index = self.queue.submit([]);
        #[cfg(not(target_arch = "wasm32"))]
        self.poll_for(_index, "write")?;
        Ok(())
    }

    /// Reads to the host after all submissions so far, without blocking.
    pub async fn read_async(&self, buffer: &Arc<Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        in_range("read", buffer, offset, into.len())?;
        for (i, chunk) in into.chunks_mut(CHUNK).enumerate() {
            let reading = self.begin_read(buffer, offset + (i * CHUNK) as u64, chunk.len())?;
            reading.flight.landed(self).await?;
            self.end_read(reading, chunk)?;
        }
        Ok(())
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn read(&self, buffer: &Buffer, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        in_range("read", buffer, offset, into.len())?;
        for (i, chunk) in into.chunks_mut(CHUNK).enumerate() {
            let reading = self.begin_read(buffer, offset + (i * CHUNK) as u64, chunk.len())?;
            reading.flight.wait(self)?;
            self.end_read(reading, chunk)?;
        }
        Ok(())
    }

    fn begin_read(&self, buffer: &Buffer, offset: u64, len: usize) -> Result<PendingRead, Error> {
        let skip = offset % 4;
        let bytes = (skip + len as u64).next_multiple_of(4);
        let begun = self.scoped("read", || {
            let staging = self.staging.take(&self.raw, bytes);
            let mut encoder =
                self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("read") });
            encoder.copy_buffer_to_buffer(&buffer.raw, offset - skip, &staging, 0, bytes);
            let index = self.queue.submit([encoder.finish()]);
            let flight = Flight::new(&self.queue, index, [staging.slice(..bytes)], None);
            PendingRead { staging, skip: skip as usize, flight }
        });
        begun.map_err(|c| unallocated(c, bytes, "read-back memory"))
    }

    fn end_read(&self, reading: PendingRead, into: &mut [u8]) -> Result<(), Error> {
        let PendingRead { staging, skip, .. } = reading;
        copy_mapped(&staging, skip, into)?;
        staging.unmap();
        self.staging.recycle(staging);
        Ok(())
    }

    /// Makes calls, and resolves when the browser has said what was wrong with them.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn watch(&self, calls: &mut dyn FnMut()) -> impl Future<Output = Result<(), Error>> + use<'_> {
        let before = self.staging.asked.load(Ordering::Relaxed);
        let scope = Scope::new(&self.raw);
        calls();
        let outcome = scope.end();
        // A browser does not say which call lacked memory.
        let asked = self.staging.asked.load(Ordering::Relaxed) - before;
        async move {
            outcome.await.map_err(|caught| unallocated(caught, asked, "the model"))?;
            self.faults.check("compile", None)
        }
    }

    /// Makes calls whose errors are to be known at once. In browsers errors come later: a later call reports them.
    pub(crate) fn scoped<T>(&self, name: &'static str, calls: impl FnOnce() -> T) -> Result<T, Caught> {
        self.faults.check(name, None).map_err(Caught::Known)?;
        #[cfg(target_arch = "wasm32")]
        return Ok(calls());
        #[cfg(not(target_arch = "wasm32"))]
        {
            let scope = Scope::new(&self.raw);
            let value = calls();
            let caught = match crate::error::block_on(scope.end()) {
                Ok(()) => return Ok(value),
                Err(caught) => caught,
            };
            // A device that was just lost refuses in many ways; a poll lets it say why.
            self.poll(wgpu::PollType::Poll, name).map_err(Caught::Known)?;
            self.faults.check(name, None).map_err(Caught::Known)?;
            Err(caught)
        }
    }
}

/// Copies from a mapped buffer, from byte `from` on.
pub(crate) fn copy_mapped(buffer: &wgpu::Buffer, from: usize, into: &mut [u8]) -> Result<(), Error> {
    if into.is_empty() {
        return Ok(());
    }
    let failed = |problem: String| Error::Driver { call: "map", problem };
    let end = (from + into.len()).next_multiple_of(4) as u64;
    let view = buffer.slice(..end).get_mapped_range().map_err(|e| failed(e.to_string()))?;
    let bytes = view.get(from..from + into.len());
    into.copy_from_slice(bytes.ok_or_else(|| failed("the mapped range is too short".into()))?);
    Ok(())
}

fn in_range(call: &'static str, buffer: &Buffer, offset: u64, len: usize) -> Result<(), Error> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= buffer.bytes => Ok(()),
        _ => Err(Error::Driver {
            call,
            problem: format!("{len} bytes at {offset} of a buffer of {} bytes", buffer.bytes),
        }),
    }
}

fn unallocated(caught: Caught, bytes: u64, what: &str) -> Error {
    match caught {
        Caught::OutOfMemory => Error::OutOfMemory { what: what.to_string(), bytes, available: None },
        other => other.into_error("allocate"),
    }
}
