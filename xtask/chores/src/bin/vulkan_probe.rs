//! Prints what every Vulkan device offers, and tries a buffer larger than most drivers' single-allocation limit:
//! plainly, and sparsely bound from several blocks.
//!
//! `cargo xtask probe [GiB]` (6 when not given; 0 prints only).

use std::ffi::CStr;
use std::time::Instant;

use ash::vk;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let gib: u64 = std::env::args().nth(1).map_or(Ok(6), |a| a.parse())?;
    // Safety: the loader library has no initialisers that need care; `entry` outlives all that is made from it.
    let entry = unsafe { ash::Entry::load() }
        .map_err(|e| format!("no Vulkan loader ({e}); on Debian and Ubuntu: apt install libvulkan1"))?;
    let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
    let info = vk::InstanceCreateInfo::default().application_info(&app);
    // Safety: plain creation; destroyed below after everything made from it.
    let instance = unsafe { entry.create_instance(&info, None) }?;
    // Safety: the instance is alive.
    let devices = unsafe { instance.enumerate_physical_devices() }?;
    println!("{} device(s)", devices.len());
    for device in devices {
        describe(&instance, device)?;
        if gib > 0
            && let Err(e) = large(&instance, device, gib << 30)
        {
            println!("  large buffers: {e}");
        }
    }
    // Safety: nothing made from it is left.
    unsafe { instance.destroy_instance(None) };
    Ok(())
}

fn text(chars: &[std::ffi::c_char]) -> String {
    chars.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect()
}

fn describe(instance: &ash::Instance, device: vk::PhysicalDevice) -> Result<(), Failure> {
    // Safety: queries of a live physical device into structures that live on this stack.
    unsafe {
        let extensions = instance.enumerate_device_extension_properties(device)?;
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));

        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut m4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut p12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut p13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut p11).push_next(&mut p12);
        let modern = instance.get_physical_device_properties(device).api_version >= vk::API_VERSION_1_3;
        if modern {
            properties = properties.push_next(&mut p13);
        } else {
            properties = properties.push_next(&mut sizes).push_next(&mut m4);
        }
        instance.get_physical_device_properties2(device, &mut properties);
        let p = properties.properties;
        let limits = p.limits;
        let version = |v| {
            format!("{}.{}.{}", vk::api_version_major(v), vk::api_version_minor(v), vk::api_version_patch(v))
        };
        println!("\n{}", text(&p.device_name));
        println!(
            "  {:?}, Vulkan {}, driver {} {} ({:#x}), vendor {:#x} device {:#x}",
            p.device_type,
            version(p.api_version),
            text(&p12.driver_name),
            text(&p12.driver_info),
            p.driver_version,
            p.vendor_id,
            p.device_id
        );
        println!("  device UUID {:02x?}", p11.device_uuid);
        println!(
            "  maxBufferSize {} · maxMemoryAllocationSize {} · maxMemoryAllocationCount {} · maxStorageBufferRange {}",
            p13.max_buffer_size,
            p11.max_memory_allocation_size,
            limits.max_memory_allocation_count,
            limits.max_storage_buffer_range
        );
        println!(
            "  sparseAddressSpaceSize {} · push constants {} · shared {} · invocations {} · group size {:?} · groups {:?}",
            limits.sparse_address_space_size,
            limits.max_push_constants_size,
            limits.max_compute_shared_memory_size,
            limits.max_compute_work_group_invocations,
            limits.max_compute_work_group_size,
            limits.max_compute_work_group_count
        );
        println!(
            "  subgroup {} (min {} max {} stages {:?}) operations {:?} in {:?} · max subgroups {}",
            p11.subgroup_size,
            p13.min_subgroup_size,
            p13.max_subgroup_size,
            p13.required_subgroup_size_stages,
            p11.subgroup_supported_operations,
            p11.subgroup_supported_stages,
            p13.max_compute_workgroup_subgroups
        );
        println!(
            "  timestamps {} ns · minMemoryMapAlignment {} · nonCoherentAtomSize {} · optimalBufferCopyOffsetAlignment {}",
            limits.timestamp_period,
            limits.min_memory_map_alignment,
            limits.non_coherent_atom_size,
            limits.optimal_buffer_copy_offset_alignment
        );
        println!(
            "  float controls (16/32/64): RTE {}/{}/{} · RTZ {}/{}/{} · denorm preserve {}/{}/{} · flush {}/{}/{} · \
             signed zero, inf, nan {}/{}/{} · independence: denorm {:?}, rounding {:?}",
            p12.shader_rounding_mode_rte_float16,
            p12.shader_rounding_mode_rte_float32,
            p12.shader_rounding_mode_rte_float64,
            p12.shader_rounding_mode_rtz_float16,
            p12.shader_rounding_mode_rtz_float32,
            p12.shader_rounding_mode_rtz_float64,
            p12.shader_denorm_preserve_float16,
            p12.shader_denorm_preserve_float32,
            p12.shader_denorm_preserve_float64,
            p12.shader_denorm_flush_to_zero_float16,
            p12.shader_denorm_flush_to_zero_float32,
            p12.shader_denorm_flush_to_zero_float64,
            p12.shader_signed_zero_inf_nan_preserve_float16,
            p12.shader_signed_zero_inf_nan_preserve_float32,
            p12.shader_signed_zero_inf_nan_preserve_float64,
            p12.denorm_behavior_independence,
            p12.rounding_mode_independence
        );
        println!(
            "  packed dot accelerated: u8x4 {} · i8x4 {} · mixed {} · accumulating i8x4 {}",
            p13.integer_dot_product4x8_bit_packed_unsigned_accelerated,
            p13.integer_dot_product4x8_bit_packed_signed_accelerated,
            p13.integer_dot_product4x8_bit_packed_mixed_signedness_accelerated,
            p13.integer_dot_product_accumulating_saturating4x8_bit_packed_signed_accelerated
        );

        let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut f11).push_next(&mut f12);
        if modern {
            features = features.push_next(&mut f13);
        }
        instance.get_physical_device_features2(device, &mut features);
        let f = features.features;
        let all: [(&str, vk::Bool32); 26] = [
            ("shaderInt64", f.shader_int64),
            ("shaderFloat64", f.shader_float64),
            ("shaderInt16", f.shader_int16),
            ("sparseBinding", f.sparse_binding),
            ("sparseResidencyBuffer", f.sparse_residency_buffer),
            ("sparseResidencyAliased", f.sparse_residency_aliased),
            ("robustBufferAccess", f.robust_buffer_access),
            ("storageBuffer16BitAccess", f11.storage_buffer16_bit_access),
            ("storagePushConstant16", f11.storage_push_constant16),
            ("storageBuffer8BitAccess", f12.storage_buffer8_bit_access),
            ("shaderFloat16", f12.shader_float16),
            ("shaderInt8", f12.shader_int8),
            ("bufferDeviceAddress", f12.buffer_device_address),
            ("timelineSemaphore", f12.timeline_semaphore),
            ("vulkanMemoryModel", f12.vulkan_memory_model),
            ("vulkanMemoryModelDeviceScope", f12.vulkan_memory_model_device_scope),
            ("shaderSubgroupExtendedTypes", f12.shader_subgroup_extended_types),
            ("scalarBlockLayout", f12.scalar_block_layout),
            ("hostQueryReset", f12.host_query_reset),
            ("shaderBufferInt64Atomics", f12.shader_buffer_int64_atomics),
            ("synchronization2", f13.synchronization2),
            ("maintenance4", f13.maintenance4),
            ("subgroupSizeControl", f13.subgroup_size_control),
            ("computeFullSubgroups", f13.compute_full_subgroups),
            ("shaderIntegerDotProduct", f13.shader_integer_dot_product),
            ("shaderZeroInitializeWorkgroupMemory", f13.shader_zero_initialize_workgroup_memory),
        ];
        let names =
            |on| all.iter().filter(|(_, v)| (*v != 0) == on).map(|(n, _)| *n).collect::<Vec<_>>().join(" ");
        println!("  features: {}\n  without: {}", names(true), names(false));

        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
        let known = has(ash::ext::memory_budget::NAME);
        if known {
            memory = memory.push_next(&mut budget);
        }
        instance.get_physical_device_memory_properties2(device, &mut memory);
        let memory = memory.memory_properties;
        for (i, heap) in memory.memory_heaps_as_slice().iter().enumerate() {
            let free = if known {
                format!(", budget {} used {}", budget.heap_budget[i], budget.heap_usage[i])
            } else {
                String::new()
            };
            println!("  heap {i}: {} bytes {:?}{free}", heap.size, heap.flags);
        }
        for (i, ty) in memory.memory_types_as_slice().iter().enumerate() {
            println!("  memory type {i}: heap {} {:?}", ty.heap_index, ty.property_flags);
        }
        for (i, q) in instance.get_physical_device_queue_family_properties(device).iter().enumerate() {
            println!(
                "  queue family {i}: {} x {:?}, timestamp bits {}",
                q.queue_count, q.queue_flags, q.timestamp_valid_bits
            );
        }
        let wanted = [
            ash::khr::cooperative_matrix::NAME,
            ash::nv::cooperative_matrix::NAME,
            ash::khr::pipeline_executable_properties::NAME,
            ash::ext::memory_budget::NAME,
            ash::ext::memory_priority::NAME,
            ash::ext::shader_atomic_float::NAME,
            ash::ext::external_memory_host::NAME,
            ash::ext::calibrated_timestamps::NAME,
            ash::khr::shader_clock::NAME,
            c"VK_KHR_shader_bfloat16",
            c"VK_KHR_shader_float_controls2",
            c"VK_KHR_shader_relaxed_extended_instruction",
            c"VK_NV_cooperative_matrix2",
            c"VK_EXT_pageable_device_local_memory",
        ];
        let there: Vec<_> = wanted.iter().filter(|n| has(n)).map(|n| n.to_string_lossy()).collect();
        println!("  extensions: {}", there.join(" "));
        if has(ash::khr::cooperative_matrix::NAME) {
            // The entry is needed only to look the function up.
            let entry = ash::Entry::load()?;
            let cm = ash::khr::cooperative_matrix::Instance::new(&entry, instance);
            for s in cm.get_physical_device_cooperative_matrix_properties(device)? {
                println!(
                    "  cooperative matrix {}x{}x{}: a {:?} b {:?} c {:?} result {:?} saturating {} {:?}",
                    s.m_size,
                    s.n_size,
                    s.k_size,
                    s.a_type,
                    s.b_type,
                    s.c_type,
                    s.result_type,
                    s.saturating_accumulation,
                    s.scope
                );
            }
        }
    }
    Ok(())
}

/// A logical device with what the trials need.
struct Trial {
    device: ash::Device,
    family: u32,
    queue: vk::Queue,
    pool: vk::CommandPool,
    memory: vk::PhysicalDeviceMemoryProperties,
}

fn large(instance: &ash::Instance, physical: vk::PhysicalDevice, bytes: u64) -> Result<(), Failure> {
    // Safety: the device is made and destroyed here, its objects before it; every queue use is from this thread.
    unsafe {
        let families = instance.get_physical_device_queue_family_properties(physical);
        let want = |f: vk::QueueFlags| families.iter().position(|q| q.queue_flags.contains(f));
        let sparse = want(vk::QueueFlags::COMPUTE | vk::QueueFlags::SPARSE_BINDING);
        let family = sparse.or_else(|| want(vk::QueueFlags::COMPUTE)).ok_or("no compute queue")? as u32;
        let f = instance.get_physical_device_features(physical);
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        let enabled = vk::PhysicalDeviceFeatures::default().sparse_binding(f.sparse_binding != 0);
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default().buffer_device_address(true);
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_features(&enabled)
            .push_next(&mut f12);
        let device = instance.create_device(physical, &info, None)?;
        let queue = device.get_device_queue(family, 0);
        let pool = device
            .create_command_pool(&vk::CommandPoolCreateInfo::default().queue_family_index(family), None)?;
        let memory = instance.get_physical_device_memory_properties(physical);
        let trial = Trial { device, family, queue, pool, memory };
        println!("  trial of {bytes} bytes on queue family {}", trial.family);
        match trial.plain(bytes) {
            Ok(line) => println!("  plain: {line}"),
            Err(e) => println!("  plain: failed: {e}"),
        }
        if f.sparse_binding != 0 && sparse.is_some() {
            match trial.sparse(bytes) {
                Ok(line) => println!("  sparse: {line}"),
                Err(e) => println!("  sparse: failed: {e}"),
            }
        } else {
            println!("  sparse: feature {} queue {}", f.sparse_binding, sparse.is_some());
        }
        trial.device.destroy_command_pool(trial.pool, None);
        trial.device.destroy_device(None);
    }
    Ok(())
}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw(),
);

impl Trial {
    unsafe fn allocate(
        &self,
        bytes: u64,
        bits: u32,
        flags: vk::MemoryPropertyFlags,
    ) -> Result<(vk::DeviceMemory, u32), Failure> {
        let ty = self
            .memory
            .memory_types_as_slice()
            .iter()
            .enumerate()
            .position(|(i, t)| bits & (1 << i) != 0 && t.property_flags.contains(flags))
            .ok_or("no memory type")? as u32;
        let mut address =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(bytes)
            .memory_type_index(ty)
            .push_next(&mut address);
        // Safety: a plain allocation; the caller frees it.
        Ok((unsafe { self.device.allocate_memory(&info, None) }?, ty))
    }

    unsafe fn plain(&self, bytes: u64) -> Result<String, Failure> {
        // Safety: created, used and destroyed here on one thread; each use is waited for.
        unsafe {
            let began = Instant::now();
            let buffer =
                self.device.create_buffer(&vk::BufferCreateInfo::default().size(bytes).usage(USAGE), None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let got =
                self.allocate(needs.size, needs.memory_type_bits, vk::MemoryPropertyFlags::DEVICE_LOCAL);
            let (memory, ty) = match got {
                Ok(m) => m,
                Err(e) => {
                    self.device.destroy_buffer(buffer, None);
                    return Err(format!("{e} (requirements {} bytes)", needs.size).into());
                }
            };
            let result = self
                .device
                .bind_buffer_memory(buffer, memory, 0)
                .map_err(Failure::from)
                .and_then(|()| self.ends(buffer, bytes));
            self.device.destroy_buffer(buffer, None);
            self.device.free_memory(memory, None);
            Ok(format!("memory type {ty}, {} ({:?})", result?, began.elapsed()))
        }
    }

    unsafe fn sparse(&self, bytes: u64) -> Result<String, Failure> {
        // Safety: created, used and destroyed here on one thread; each use is waited for.
        unsafe {
            let began = Instant::now();
            let info = vk::BufferCreateInfo::default()
                .size(bytes)
                .usage(USAGE)
                .flags(vk::BufferCreateFlags::SPARSE_BINDING);
            let buffer = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let block = (1u64 << 30).next_multiple_of(needs.alignment);
            let mut blocks = Vec::new();
            let mut binds = Vec::new();
            let mut at = 0;
            let mut failure = None;
            while at < needs.size {
                let size = block.min(needs.size - at);
                match self.allocate(size, needs.memory_type_bits, vk::MemoryPropertyFlags::DEVICE_LOCAL) {
                    Ok((memory, _)) => {
                        blocks.push(memory);
                        binds.push(
                            vk::SparseMemoryBind::default().resource_offset(at).size(size).memory(memory),
                        );
                    }
                    Err(e) => {
                        failure = Some(e);
                        break;
                    }
                }
                at += size;
            }
            let result = match failure {
                Some(e) => Err(e),
                None => {
                    let buffers = [vk::SparseBufferMemoryBindInfo::default().buffer(buffer).binds(&binds)];
                    let bind = vk::BindSparseInfo::default().buffer_binds(&buffers);
                    self.device
                        .queue_bind_sparse(self.queue, &[bind], vk::Fence::null())
                        .and_then(|()| self.device.queue_wait_idle(self.queue))
                        .map_err(Failure::from)
                        .and_then(|()| self.ends(buffer, bytes))
                }
            };
            self.device.destroy_buffer(buffer, None);
            for memory in &blocks {
                self.device.free_memory(*memory, None);
            }
            Ok(format!(
                "alignment {}, {} blocks, {} ({:?})",
                needs.alignment,
                blocks.len(),
                result?,
                began.elapsed()
            ))
        }
    }

    /// Fills the buffer, marks both ends and a place in the middle, and reads them back.
    unsafe fn ends(&self, buffer: vk::Buffer, bytes: u64) -> Result<String, Failure> {
        // Safety: created, used and destroyed here on one thread; each use is waited for.
        unsafe {
            let address =
                self.device.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(buffer));
            let info = vk::BufferCreateInfo::default().size(4096).usage(vk::BufferUsageFlags::TRANSFER_DST);
            let staging = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(staging);
            let host = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
            let (memory, _) = self.allocate(needs.size, needs.memory_type_bits, host)?;
            self.device.bind_buffer_memory(staging, memory, 0)?;
            let mapped =
                self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?.cast::<u32>();
            let info =
                vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
            let cb = self.device.allocate_command_buffers(&info)?[0];
            self.device.begin_command_buffer(cb, &vk::CommandBufferBeginInfo::default())?;
            let barrier = |d: &ash::Device| {
                let all = vk::MemoryBarrier::default()
                    .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
                    .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE);
                let stage = vk::PipelineStageFlags::ALL_COMMANDS | vk::PipelineStageFlags::HOST;
                d.cmd_pipeline_barrier(cb, stage, stage, vk::DependencyFlags::empty(), &[all], &[], &[]);
            };
            self.device.cmd_fill_buffer(cb, buffer, 0, vk::WHOLE_SIZE, 0x1111_1111);
            barrier(&self.device);
            let places = [0, bytes / 2, bytes - 4];
            for (i, at) in places.iter().enumerate() {
                self.device.cmd_fill_buffer(cb, buffer, *at, 4, 0xA000 + i as u32);
            }
            barrier(&self.device);
            let copies: Vec<_> = places
                .iter()
                .chain(&[bytes / 2 + 4])
                .enumerate()
                .map(|(i, at)| vk::BufferCopy::default().src_offset(*at).dst_offset(4 * i as u64).size(4))
                .collect();
            self.device.cmd_copy_buffer(cb, buffer, staging, &copies);
            barrier(&self.device);
            self.device.end_command_buffer(cb)?;
            let began = Instant::now();
            let buffers = [cb];
            let submit = vk::SubmitInfo::default().command_buffers(&buffers);
            self.device.queue_submit(self.queue, &[submit], vk::Fence::null())?;
            self.device.queue_wait_idle(self.queue)?;
            let took = began.elapsed();
            let words = [*mapped, *mapped.add(1), *mapped.add(2), *mapped.add(3)];
            self.device.free_command_buffers(self.pool, &[cb]);
            self.device.destroy_buffer(staging, None);
            self.device.free_memory(memory, None);
            let right = words == [0xA000, 0xA001, 0xA002, 0x1111_1111];
            Ok(format!(
                "address {address:#x}, words {words:x?} {}, filled in {took:?}",
                if right { "right" } else { "WRONG" }
            ))
        }
    }
}
