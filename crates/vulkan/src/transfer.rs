//! Bytes between the host and device memory, in pieces through two staging blocks, so that any size streams.

use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use olivine_program::Error;

use crate::block::{Block, Kind};
use crate::context::Context;
use crate::error::failed;
use crate::memory::Buffer;
use crate::submit::After;

/// Bytes of a staging block.
const PIECE: u64 = 16 << 20;
const SLOTS: usize = 2;

/// The staging blocks.
pub(crate) struct Transfers {
    context: Arc<Context>,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    slots: Vec<Slot>,
    next: usize,
    /// The copy queue's value of the last write.
    written: u64,
}

struct Slot {
    context: Arc<Context>,
    block: Block,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    /// The copy queue's value when the last copy is done.
    busy: u64,
    /// What the copy uses.
    keeps: Vec<Arc<Buffer>>,
}

impl Slot {
    fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let block = Block::new(context, PIECE, Kind::Staging, "staging memory")?;
        let pool = command_pool(context, context.copies().family)?;
        let (context, null) = (context.clone(), vk::CommandBuffer::null());
        let mut slot = Slot { context, block, pool, commands: null, busy: 0, keeps: Vec::new() };
        slot.commands = command_buffer(&slot.context, pool)?;
        Ok(slot)
    }

    /// Waits until the last copy is done.
    fn idle(&mut self) -> Result<(), Error> {
        if !self.keeps.is_empty() {
            self.context.copies().wait(&self.context.raw, self.busy)?;
            self.keeps.clear();
        }
        Ok(())
    }

    /// Submits a copy from the staging block to a buffer.
    fn copy_up(&mut self, to: &Arc<Buffer>, offset: u64, bytes: u64) -> Result<u64, Error> {
        let (raw, base) = to.buffer_and_offset();
        self.keeps.push(to.clone());
        let staging = self.block.buffer;
        self.copy((staging, 0), (raw, base + offset), bytes, false, &[])
    }

    /// Submits a copy from a buffer to the staging block.
    fn copy_down(
        &mut self,
        from: &Arc<Buffer>,
        offset: u64,
        bytes: u64,
        after: &[After],
    ) -> Result<u64, Error> {
        let (raw, base) = from.buffer_and_offset();
        self.keeps.push(from.clone());
        let staging = self.block.buffer;
        self.copy((raw, base + offset), (staging, 0), bytes, true, after)
    }

    /// Submits one copy between ranges that were checked, whose buffers the slot keeps.
    fn copy(
        &mut self,
        (from, from_offset): (vk::Buffer, u64),
        (to, to_offset): (vk::Buffer, u64),
        bytes: u64,
        host_reads: bool,
        after: &[After],
    ) -> Result<u64, Error> {
        let device = &self.context.raw;
        let region = vk::BufferCopy::default().size(bytes).src_offset(from_offset).dst_offset(to_offset);
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // Safety: the slot is idle, so its commands may be recorded again; the ranges were checked.
        unsafe {
            device
                .reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty())
                .and_then(|()| device.begin_command_buffer(self.commands, &begin))
                .map_err(failed("vkBeginCommandBuffer"))?;
            in_order(device, self.commands);
            device.cmd_copy_buffer(self.commands, from, to, &[region]);
            if host_reads {
                to_host(device, self.commands);
            }
            device.end_command_buffer(self.commands).map_err(failed("vkEndCommandBuffer"))?;
        }
        (_, self.busy) = self.context.copies().submit(device, &[self.commands], after)?;
        Ok(self.busy)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A lost device does no more copies.
        let _ = self.idle();
        // Safety: the slot is idle.
        unsafe { self.context.raw.destroy_command_pool(self.pool, None) };
    }
}

/// A command pool, which the caller destroys.
pub(crate) fn command_pool(context: &Context, family: u32) -> Result<vk::CommandPool, Error> {
    let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
    // Safety: the device is alive and has the family.
    unsafe { context.raw.create_command_pool(&info, None) }.map_err(failed("vkCreateCommandPool"))
}

/// A command buffer, which goes with its pool.
pub(crate) fn command_buffer(context: &Context, pool: vk::CommandPool) -> Result<vk::CommandBuffer, Error> {
    let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
    // Safety: the pool is of this device, and its owner is here.
    let buffers = unsafe { context.raw.allocate_command_buffers(&info) };
    let buffers = buffers.map_err(failed("vkAllocateCommandBuffers"))?;
    Ok(buffers.first().copied().unwrap_or_default())
}

/// Lets copies wait for those of earlier submissions, which may have written the same bytes.
///
/// # Safety
/// The command buffer must be of the device and in recording.
unsafe fn in_order(device: &ash::Device, commands: vk::CommandBuffer) {
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(vk::PipelineStageFlags2::COPY)
        .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
        .dst_stage_mask(vk::PipelineStageFlags2::COPY)
        .dst_access_mask(vk::AccessFlags2::TRANSFER_READ | vk::AccessFlags2::TRANSFER_WRITE)];
    // Safety: as the caller promises.
    unsafe {
        device.cmd_pipeline_barrier2(commands, &vk::DependencyInfo::default().memory_barriers(&barriers))
    };
}

/// Makes copies visible to the host.
///
/// # Safety
/// The command buffer must be of the device and in recording.
pub(crate) unsafe fn to_host(device: &ash::Device, commands: vk::CommandBuffer) {
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(vk::PipelineStageFlags2::COPY)
        .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
        .dst_stage_mask(vk::PipelineStageFlags2::HOST)
        .dst_access_mask(vk::AccessFlags2::HOST_READ)];
    // Safety: as the caller promises.
    unsafe {
        device.cmd_pipeline_barrier2(commands, &vk::DependencyInfo::default().memory_barriers(&barriers))
    };
}

impl Ring {
    /// The slot whose turn it is, made when first needed.
    fn slot(&mut self, context: &Arc<Context>) -> Result<&mut Slot, Error> {
        let i = self.next;
        if i >= self.slots.len() {
            self.slots.push(Slot::new(context)?);
        }
        self.next = (i + 1) % SLOTS;
        let lost = || failed("staging memory")(vk::Result::ERROR_UNKNOWN);
        self.slots.get_mut(i).ok_or_else(lost)
    }
}

impl Transfers {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Transfers { context: context.clone(), ring: Mutex::default() }
    }

    /// What submissions must wait for to see all writes so far.
    pub(crate) fn written(&self) -> Option<After> {
        let written = self.ring.lock().unwrap_or_else(PoisonError::into_inner).written;
        (written > 0).then(|| (self.context.copies().timeline, written))
    }

    /// Waits for all copies and lets go of the buffers they used.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.slots.iter_mut().try_for_each(Slot::idle)
    }

    pub(crate) fn write(&self, buffer: &Arc<Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        buffer.check("write", offset, bytes.len() as u64)?;
        if buffer.write_mapped(offset, bytes) { Ok(()) } else { self.write_staged(buffer, offset, bytes) }
    }

    /// Writes through staging memory; the range is in the buffer.
    fn write_staged(&self, buffer: &Arc<Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = offset;
        for piece in bytes.chunks(PIECE as usize) {
            let slot = ring.slot(&self.context)?;
            slot.idle()?;
            slot.block.write(0, piece);
            ring.written = slot.copy_up(buffer, at, piece.len() as u64)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies between buffers on the device, after all runs and writes so far.
    pub(crate) fn copy(&self, from: &Arc<Buffer>, to: &Arc<Buffer>, bytes: u64) -> Result<(), Error> {
        from.check("copy", 0, bytes)?;
        to.check("copy", 0, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let compute = &self.context.compute;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = vec![(compute.timeline, compute.last())];
        if ring.written > 0 {
            after.push((self.context.copies().timeline, ring.written));
        }
        let slot = ring.slot(&self.context)?;
        slot.idle()?;
        slot.keeps.extend([from.clone(), to.clone()]);
        ring.written = slot.copy(from.buffer_and_offset(), to.buffer_and_offset(), bytes, false, &after)?;
        Ok(())
    }

    pub(crate) fn read(&self, buffer: &Arc<Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        buffer.check("read", offset, into.len() as u64)?;
        // Waited for before the ring is taken, so that a long run keeps nobody else from writing.
        let compute = &self.context.compute;
        let last = compute.last();
        compute.wait(&self.context.raw, last)?;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = vec![(compute.timeline, last)];
        if ring.written > 0 {
            after.push((self.context.copies().timeline, ring.written));
        }
        // One copy runs while the bytes of the one before are taken.
        let mut before: Option<(usize, &mut [u8])> = None;
        let mut at = offset;
        for piece in into.chunks_mut(PIECE as usize) {
            let i = ring.next;
            let slot = ring.slot(&self.context)?;
            slot.idle()?;
            slot.copy_down(buffer, at, piece.len() as u64, &after)?;
            at += piece.len() as u64;
            if let Some((i, piece)) = before.replace((i, piece)) {
                take(&mut ring, i, piece)?;
            }
        }
        before.map_or(Ok(()), |(i, piece)| take(&mut ring, i, piece))
    }
}

/// Takes the bytes that a slot's copy brought.
fn take(ring: &mut Ring, i: usize, into: &mut [u8]) -> Result<(), Error> {
    if let Some(slot) = ring.slots.get_mut(i) {
        slot.idle()?;
        slot.block.read(0, into);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Device, Driver, Options, Select};

    #[test]
    fn staged_writes_of_several_pieces_arrive_and_keep_their_buffer_alive() {
        let options = Options { validation: true, cache_dir: None, ..Options::default() };
        let device = Device::open(&Select::Auto, &options).unwrap();
        for bytes in [1usize, 5, 4096, 16 << 20, (50 << 20) + 7] {
            let data: Vec<u8> = (0..bytes).map(|i| (i ^ (i >> 11)) as u8).collect();
            let buffer = device.allocate(bytes as u64, "staged").unwrap();
            device.transfers.write_staged(&buffer, 0, &data).unwrap();
            let patch = [7; 3];
            let end = bytes.min(3);
            device.transfers.write_staged(&buffer, (bytes - end) as u64, &patch[..end]).unwrap();
            let mut back = vec![0; bytes];
            device.read(&buffer, 0, &mut back).unwrap();
            assert!(back[..bytes - end] == data[..bytes - end], "{bytes}");
            assert!(back[bytes - end..] == patch[..end], "{bytes}");
        }
        let buffer = device.allocate(1 << 20, "dropped").unwrap();
        device.transfers.write_staged(&buffer, 0, &[1; 1 << 20]).unwrap();
        drop(buffer);
        assert!(device.memory_taken() > 0, "the copy holds it");
        device.transfers.settle().unwrap();
        assert_eq!(device.memory_taken(), 0);
        assert_eq!(device.validation_messages(), Vec::<String>::new());
    }
}
