//! Device memory: small buffers share blocks, large ones have their own.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use olivine_program::Error;

use crate::block::{Block, Kind};
use crate::context::Context;
use crate::error::refused;
use crate::ranges::Ranges;

/// What every buffer begins at a multiple of, and its bytes are rounded up to.
const ALIGNMENT: u64 = 256;
/// Bytes of a block that buffers share, at least and at most.
const BLOCKS: (u64, u64) = (1 << 20, 64 << 20);
/// A new block takes this part of what is taken already, so that little of it is free.
const PART: u64 = 16;
/// Buffers of this size and above have a block of their own, and those above half of a shared one.
const LARGE: u64 = 16 << 20;

/// The device's memory.
pub(crate) struct Memory {
    pub(crate) context: Arc<Context>,
    pool: Mutex<Vec<Pooled>>,
}

struct Pooled {
    block: Arc<Block>,
    ranges: Ranges,
}

/// Device-local memory; freed when dropped.
pub struct Buffer {
    memory: Arc<Memory>,
    block: Arc<Block>,
    offset: u64,
    bytes: u64,
    /// Bytes taken of the pool; `None` for a block of its own.
    pooled: Option<u64>,
}

impl Memory {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Memory { context: context.clone(), pool: Mutex::default() })
    }

    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Arc<Buffer>, Error> {
        let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        if size >= LARGE {
            return self.own(bytes, size, Kind::Large, what);
        }
        let shared = (self.context.taken() / PART).next_multiple_of(BLOCKS.0).clamp(BLOCKS.0, BLOCKS.1);
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        for pooled in pool.iter_mut() {
            if let Some(offset) = pooled.ranges.take(size) {
                let block = pooled.block.clone();
                return Ok(Arc::new(Buffer {
                    memory: self.clone(),
                    block,
                    offset,
                    bytes,
                    pooled: Some(size),
                }));
            }
        }
        if size > shared / 2 {
            drop(pool);
            return self.own(bytes, size, Kind::Small, what);
        }
        match Block::new(&self.context, shared, Kind::Small, "shared block") {
            Ok(block) => {
                let (block, mut ranges) = (Arc::new(block), Ranges::new(shared));
                let offset = ranges.take(size).unwrap_or(0);
                pool.push(Pooled { block: block.clone(), ranges });
                Ok(Arc::new(Buffer { memory: self.clone(), block, offset, bytes, pooled: Some(size) }))
            }
            // A whole block is not to be had; perhaps the little that is asked for is.
            Err(Error::OutOfMemory { .. } | Error::TooLarge { .. }) => {
                drop(pool);
                self.own(bytes, size, Kind::Small, what)
            }
            Err(e) => Err(e),
        }
    }

    fn own(self: &Arc<Self>, bytes: u64, size: u64, kind: Kind, what: &str) -> Result<Arc<Buffer>, Error> {
        let block = Arc::new(Block::new(&self.context, size, kind, what)?);
        Ok(Arc::new(Buffer { memory: self.clone(), block, offset: 0, bytes, pooled: None }))
    }
}

impl Buffer {
    /// Bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device's address of its first byte.
    pub fn address(&self) -> u64 {
        self.block.address + self.offset
    }

    /// The Vulkan buffer and this one's first byte in it.
    pub(crate) fn buffer_and_offset(&self) -> (vk::Buffer, u64) {
        (self.block.buffer, self.offset)
    }

    /// Whether the host can write to it without a copy on the device.
    pub(crate) fn is_mapped(&self) -> bool {
        self.block.is_mapped()
    }

    /// Writes through the mapping; false if there is none.
    pub(crate) fn write_mapped(&self, offset: u64, bytes: &[u8]) -> bool {
        self.block.write(self.offset + offset, bytes)
    }

    /// Refuses ranges outside the buffer.
    pub(crate) fn check(&self, call: &'static str, offset: u64, bytes: u64) -> Result<(), Error> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(refused(
                call,
                format!("{bytes} bytes at {offset} are outside a buffer of {} bytes", self.bytes),
            )),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(size) = self.pooled else { return };
        let mut pool = self.memory.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(i) = pool.iter().position(|p| Arc::ptr_eq(&p.block, &self.block)) else { return };
        if let Some(pooled) = pool.get_mut(i) {
            pooled.ranges.free(self.offset, size);
            if pooled.ranges.is_free() {
                pool.swap_remove(i);
            }
        }
    }
}
