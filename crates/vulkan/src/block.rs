//! Blocks: a Vulkan buffer with the memory behind it.

use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use olivine_program::Error;

use crate::context::Context;
use crate::copy::copy;
use crate::error::{failed, is_memory};

const DEVICE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw()
        | HOST.as_raw(),
);
const HOST: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Tensors; mapped only where the device's whole memory is the host's to reach.
    Small,
    /// Tensors that are written through staging memory; mapped only where device and host share their memory.
    Large,
    /// Staging memory of the host.
    Staging,
}

/// A Vulkan buffer with its memory.
pub(crate) struct Block {
    context: Arc<Context>,
    pub(crate) buffer: vk::Buffer,
    memory: Vec<vk::DeviceMemory>,
    pub(crate) bytes: u64,
    /// The device's address; 0 for staging memory.
    pub(crate) address: u64,
    mapped: Option<NonNull<u8>>,
    reserved: (u64, u32),
}

// Safety: the mapping is only read and written through methods whose callers keep ranges apart; all else is handles.
unsafe impl Send for Block {}
// Safety: as above.
unsafe impl Sync for Block {}

/// The memory type for a kind of block among those allowed.
fn memory_type(
    memory: &vk::PhysicalDeviceMemoryProperties,
    kind: Kind,
    allowed: u32,
) -> Option<(u32, vk::MemoryPropertyFlags)> {
    use vk::MemoryPropertyFlags as F;
    let (types, heaps) = (memory.memory_types_as_slice(), memory.memory_heaps_as_slice());
    let size = |t: &vk::MemoryType| heaps.get(t.heap_index as usize).map_or(0, |h| h.size);
    let usable = |(i, t): &(usize, &vk::MemoryType)| {
        let odd = F::PROTECTED | F::LAZILY_ALLOCATED | F::DEVICE_COHERENT_AMD | F::DEVICE_UNCACHED_AMD;
        allowed & (1 << i) != 0 && !t.property_flags.intersects(odd)
    };
    let all: Vec<_> = types.iter().enumerate().filter(usable).collect();
    let largest =
        |flags: F| all.iter().filter(|(_, t)| t.property_flags.contains(flags)).map(|(_, t)| size(t)).max();
    let host = F::HOST_VISIBLE | F::HOST_COHERENT;
    let first = |flags: F, without: F, at_least: u64| {
        all.iter()
            .find(|(_, t)| {
                let f = t.property_flags;
                f.contains(flags) && !f.intersects(without) && size(t) >= at_least
            })
            .map(|(i, t)| (*i as u32, t.property_flags))
    };
    let none = F::empty();
    match kind {
        Kind::Staging => first(host | F::HOST_CACHED, F::DEVICE_LOCAL, 0)
            .or_else(|| first(host | F::HOST_CACHED, none, 0))
            .or_else(|| first(host, none, 0)),
        Kind::Small | Kind::Large => {
            let Some(most) = largest(F::DEVICE_LOCAL) else { return first(none, none, 0) };
            let mapped = first(F::DEVICE_LOCAL | host, none, most);
            let unmapped = first(F::DEVICE_LOCAL, F::HOST_VISIBLE, most);
            // Memory that is all the device's own is the host's too.
            let unified = types.iter().all(|t| t.property_flags.contains(F::DEVICE_LOCAL));
            let direct = kind == Kind::Small || unified;
            let (one, other) = if direct { (mapped, unmapped) } else { (unmapped, mapped) };
            one.or(other).or_else(|| first(F::DEVICE_LOCAL, none, most))
        }
    }
}

impl Block {
    fn empty(context: &Arc<Context>, bytes: u64) -> Self {
        Block {
            context: context.clone(),
            buffer: vk::Buffer::null(),
            memory: Vec::new(),
            bytes,
            address: 0,
            mapped: None,
            reserved: (0, 0),
        }
    }

    /// A block of memory; where the driver cannot make one so large of a piece, of several pieces under one address.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64, kind: Kind, what: &str) -> Result<Self, Error> {
        let facts = &context.facts;
        let piecewise = facts.features.sparse && context.compute_binds_sparse();
        let in_one = bytes <= facts.max_buffer;
        if !in_one && !piecewise {
            return Err(Error::TooLarge {
                what: what.to_owned(),
                needed: bytes,
                device: format!("a buffer of {}", facts.name),
                available: facts.max_buffer,
            });
        }
        let whole =
            if in_one { Self::plain(context, bytes, kind, what) } else { Err(no_memory(what, bytes)) };
        match whole {
            Err(Error::OutOfMemory { .. }) if bytes > facts.max_allocation && piecewise => {
                Self::sparse(context, bytes, what)
            }
            other => other,
        }
    }

    fn create(
        &mut self,
        usage: vk::BufferUsageFlags,
        flags: vk::BufferCreateFlags,
        what: &str,
    ) -> Result<(), Error> {
        let families = &self.context.families;
        let mut info = vk::BufferCreateInfo::default().size(self.bytes).usage(usage).flags(flags);
        if families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        // Safety: the device is alive; the buffer goes in `drop`.
        self.buffer = unsafe { self.context.raw.create_buffer(&info, None) }.map_err(|e| {
            if is_memory(e) { no_memory(what, self.bytes) } else { failed("vkCreateBuffer")(e) }
        })?;
        Ok(())
    }

    /// Allocates memory that `drop` frees.
    fn allocate(&mut self, bytes: u64, ty: u32, device: bool, what: &str) -> Result<vk::DeviceMemory, Error> {
        let context = self.context.clone();
        let heaps = context.facts.memory.memory_heaps_as_slice();
        let types = context.facts.memory.memory_types_as_slice();
        let heap = types.get(ty as usize).map_or(0, |t| t.heap_index);
        let size = heaps.get(heap as usize).map_or(0, |h| h.size);
        if bytes > size {
            return Err(Error::TooLarge {
                what: what.to_owned(),
                needed: bytes,
                device: context.facts.name.clone(),
                available: size,
            });
        }
        context.reserve(bytes, device).map_err(|available| Error::OutOfMemory {
            what: what.to_owned(),
            bytes,
            available,
        })?;
        self.reserved.0 += if device { bytes } else { 0 };
        self.reserved.1 += 1;
        let mut address =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(ty);
        if device {
            info = info.push_next(&mut address);
        }
        // Safety: the device is alive; the memory goes in `drop`.
        let memory = unsafe { context.raw.allocate_memory(&info, None) }.map_err(|e| {
            if is_memory(e) {
                let free = context.facts.free(&context.instance);
                let available = free.and_then(|f| f.get(heap as usize).copied());
                Error::OutOfMemory { what: what.to_owned(), bytes, available }
            } else {
                failed("vkAllocateMemory")(e)
            }
        })?;
        self.memory.push(memory);
        Ok(memory)
    }

    fn plain(context: &Arc<Context>, bytes: u64, kind: Kind, what: &str) -> Result<Self, Error> {
        let mut block = Self::empty(context, bytes);
        let device = kind != Kind::Staging;
        block.create(if device { DEVICE } else { HOST }, vk::BufferCreateFlags::empty(), what)?;
        // Safety: the buffer is of this device.
        let needs = unsafe { context.raw.get_buffer_memory_requirements(block.buffer) };
        let (ty, flags) = memory_type(&context.facts.memory, kind, needs.memory_type_bits)
            .ok_or_else(|| no_memory(what, bytes))?;
        let memory = block.allocate(needs.size, ty, device, what)?;
        // Safety: buffer and memory are new and fit each other.
        unsafe { context.raw.bind_buffer_memory(block.buffer, memory, 0) }
            .map_err(failed("vkBindBufferMemory"))?;
        if flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT) {
            // Safety: the memory is host-visible and mapped once; freeing it unmaps it.
            let mapped =
                unsafe { context.raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
            match mapped {
                Ok(pointer) => block.mapped = NonNull::new(pointer.cast()),
                Err(e) if !device => return Err(failed("vkMapMemory")(e)),
                // Staging memory serves those that cannot be mapped.
                Err(_) => {}
            }
        }
        if device {
            block.find_address();
        }
        context.name(block.buffer, what);
        Ok(block)
    }

    fn sparse(context: &Arc<Context>, bytes: u64, what: &str) -> Result<Self, Error> {
        let mut block = Self::empty(context, bytes);
        block.create(DEVICE, vk::BufferCreateFlags::SPARSE_BINDING, what)?;
        // Safety: the buffer is of this device.
        let needs = unsafe { context.raw.get_buffer_memory_requirements(block.buffer) };
        let (ty, _) = memory_type(&context.facts.memory, Kind::Large, needs.memory_type_bits)
            .ok_or_else(|| no_memory(what, bytes))?;
        let align = needs.alignment.max(1);
        let piece = (context.facts.max_allocation.min(1 << 30) / align * align).max(align);
        let mut binds = Vec::new();
        let mut at = 0;
        while at < needs.size {
            let size = piece.min(needs.size - at);
            let memory = block.allocate(size, ty, true, what)?;
            binds.push(vk::SparseMemoryBind::default().resource_offset(at).size(size).memory(memory));
            at += size;
        }
        context.compute.bind(&context.raw, block.buffer, &binds)?;
        block.find_address();
        context.name(block.buffer, what);
        Ok(block)
    }

    fn find_address(&mut self) {
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.buffer);
        // Safety: the buffer has memory and was made for addresses.
        self.address = unsafe { self.context.raw.get_buffer_device_address(&info) };
    }

    /// Whether the host reaches it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// The mapped bytes of a range, if it is in the block.
    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        let (start, mapped) = (usize::try_from(offset).ok()?, self.mapped?);
        // Safety: the range ends inside the mapping.
        inside.then(|| unsafe { mapped.as_ptr().add(start) })
    }

    /// Writes through the mapping; false if there is none, or the range is not in it. Nothing else may use the
    /// range now.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else { return false };
        // Safety: the range is in the mapping, which no Rust reference points into.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Reads through the mapping, likewise.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, into.len()) else { return false };
        // Safety: the range is in the mapping, which no Rust reference points into.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
        true
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Safety: whoever used the block on the device held it until that was done.
        unsafe {
            self.context.raw.destroy_buffer(self.buffer, None);
            for memory in self.memory.drain(..) {
                self.context.raw.free_memory(memory, None);
            }
        }
        self.context.release(self.reserved.0, self.reserved.1);
    }
}

fn no_memory(what: &str, bytes: u64) -> Error {
    Error::OutOfMemory { what: what.to_owned(), bytes, available: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as F;

    fn properties(heaps: &[u64], types: &[(u32, F)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_heap_count: heaps.len() as u32,
            memory_type_count: types.len() as u32,
            ..Default::default()
        };
        for (heap, size) in memory.memory_heaps.iter_mut().zip(heaps) {
            heap.size = *size;
        }
        for (ty, (heap_index, flags)) in memory.memory_types.iter_mut().zip(types) {
            *ty = vk::MemoryType { heap_index: *heap_index, property_flags: *flags };
        }
        memory
    }

    fn chosen(memory: &vk::PhysicalDeviceMemoryProperties) -> [Option<u32>; 3] {
        [Kind::Small, Kind::Large, Kind::Staging].map(|kind| memory_type(memory, kind, !0).map(|(i, _)| i))
    }

    #[test]
    fn tensors_live_in_the_devices_own_memory() {
        let (local, host, cached) = (F::DEVICE_LOCAL, F::HOST_VISIBLE | F::HOST_COHERENT, F::HOST_CACHED);
        let types = |bar| [(1, F::empty()), (0, local), (1, host), (1, host | cached), (bar, local | host)];
        let reachable = properties(&[140 << 30, 500 << 30], &types(0));
        assert_eq!(chosen(&reachable), [Some(4), Some(1), Some(3)], "all of it mapped");
        let window = properties(&[24 << 30, 64 << 30, 256 << 20], &types(2));
        assert_eq!(chosen(&window), [Some(1), Some(1), Some(3)], "a small window is not for tensors");
        let shared = properties(&[16 << 30], &[(0, local), (0, local | host), (0, local | host | cached)]);
        assert_eq!(chosen(&shared), [Some(1), Some(1), Some(2)], "host and device share it");
        let processor = properties(&[2 << 30], &[(0, local | host | cached)]);
        assert_eq!(chosen(&processor), [Some(0); 3]);
        let odd = properties(&[8 << 30], &[(0, local | F::PROTECTED), (0, local), (0, host)]);
        assert_eq!(chosen(&odd), [Some(1), Some(1), Some(2)]);
    }
}
