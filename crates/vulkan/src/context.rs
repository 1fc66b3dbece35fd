//! The logical device with its queues: what everything made on it keeps alive.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, khr, nvx, vk};
use olivine_program::{Error, Ptx};

use crate::Options;
use crate::error::failed;
use crate::facts::{Bf16Features, Facts};
use crate::instance::Instance;
use crate::ptx::{self, EntryPoints};
use crate::submit::Queue;

/// The logical device.
pub(crate) struct Context {
    pub(crate) raw: ash::Device,
    pub(crate) instance: Arc<Instance>,
    pub(crate) facts: Facts,
    pub(crate) compute: Queue,
    /// A queue of its own for copies from the host, where there is one.
    pub(crate) copies: Option<Queue>,
    /// Families that buffers are shared between.
    pub(crate) families: Vec<u32>,
    pub(crate) labels: Option<ext::debug_utils::Device>,
    pub(crate) statistics: Option<khr::pipeline_executable_properties::Device>,
    /// Where PTX was asked for and the device takes it.
    pub(crate) binary_import: Option<EntryPoints>,
    layouts: Mutex<HashMap<u32, vk::PipelineLayout>>,
    /// Bytes of device memory that may be taken, and what is: bytes, allocations.
    limit: u64,
    taken: Mutex<(u64, u32)>,
}

/// The family for compute, and another that copies beside it.
fn families(queues: &[vk::QueueFamilyProperties]) -> Option<(u32, Option<u32>)> {
    let compute = queues.iter().position(|q| q.queue_flags.contains(vk::QueueFlags::COMPUTE))?;
    let other = |wanted: vk::QueueFlags, without: vk::QueueFlags| {
        queues.iter().enumerate().position(|(i, q)| {
            i != compute && q.queue_flags.contains(wanted) && !q.queue_flags.intersects(without)
        })
    };
    let busy = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
    let video =
        vk::QueueFlags::VIDEO_DECODE_KHR | vk::QueueFlags::VIDEO_ENCODE_KHR | vk::QueueFlags::OPTICAL_FLOW_NV;
    let copies =
        other(vk::QueueFlags::TRANSFER, busy | video).or_else(|| other(vk::QueueFlags::COMPUTE, video));
    Some((compute as u32, copies.map(|i| i as u32)))
}

impl Context {
    /// Opens the device. Tests bring entry points of their own for PTX.
    pub(crate) fn open(
        instance: Arc<Instance>,
        facts: Facts,
        options: &Options,
        mock: Option<EntryPoints>,
    ) -> Result<Arc<Self>, Error> {
        let (compute, copies) = families(&facts.queues)
            .ok_or_else(|| Error::Unavailable(format!("{} has no compute queue", facts.name)))?;
        let queue = |family: u32| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])
        };
        let queues: Vec<_> = std::iter::once(compute).chain(copies).map(queue).collect();

        let optional: [&CStr; 5] = [
            Bf16Features::EXTENSION,
            khr::cooperative_matrix::NAME,
            khr::pipeline_executable_properties::NAME,
            ext::memory_budget::NAME,
            // Where the device has it, it must be asked for.
            c"VK_KHR_portability_subset",
        ];
        // The validation layer knows nothing of what PTX does.
        let asks_ptx = options.ptx != Ptx::Off && !options.validation && facts.has(nvx::binary_import::NAME);
        let optional = optional.into_iter().chain(asks_ptx.then_some(nvx::binary_import::NAME));
        let extensions: Vec<_> = optional.filter(|n| facts.has(n)).map(|n| n.as_ptr()).collect();
        let f = facts.features;
        let features = vk::PhysicalDeviceFeatures::default()
            .shader_int64(true)
            .shader_float64(f.f64)
            .shader_int16(f.int16)
            .sparse_binding(f.sparse)
            // For users' modules, whose buffers are in descriptors; our own kernels have none.
            .robust_buffer_access(f.robust);
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
            .storage_buffer8_bit_access(true)
            .shader_float16(f.f16)
            .shader_int8(f.int8)
            .shader_subgroup_extended_types(f.subgroup_extended_types)
            .timeline_semaphore(true)
            .buffer_device_address(true)
            .vulkan_memory_model(true)
            .vulkan_memory_model_device_scope(true);
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default()
            .synchronization2(true)
            .maintenance4(true)
            .shader_integer_dot_product(f.packed_dot)
            .subgroup_size_control(f.subgroup_size_control)
            .compute_full_subgroups(f.full_subgroups);
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut bf16 = Bf16Features::new(true);
        let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
            .pipeline_executable_info(true);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(&features)
            .push_next(&mut f11)
            .push_next(&mut f12)
            .push_next(&mut f13);
        if f.matrices {
            info = info.push_next(&mut matrices);
        }
        if f.bf16_matrices {
            info = info.push_next(&mut bf16);
        }
        if f.executable_statistics {
            info = info.push_next(&mut statistics);
        }
        // Safety: all that the structure points to lives on this stack; the physical device is of this instance.
        let raw = unsafe { instance.raw.create_device(facts.handle, &info, None) }
            .map_err(failed("vkCreateDevice"))?;
        let opened = Queue::new(&raw, compute).and_then(|compute| {
            let copies = copies.map(|family| Queue::new(&raw, family)).transpose();
            copies.inspect_err(|_| compute.destroy(&raw)).map(|copies| (compute, copies))
        });
        let (compute, copies) = match opened {
            Ok(queues) => queues,
            Err(e) => {
                // Safety: nothing made on the device is left.
                unsafe { raw.destroy_device(None) };
                return Err(e);
            }
        };
        let labels = ((options.labels || options.validation) && instance.debug)
            .then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        let statistics = (f.executable_statistics && options.labels)
            .then(|| khr::pipeline_executable_properties::Device::new(&instance.raw, &raw));
        let found = if asks_ptx { ptx::entry_points(&instance.raw, &raw) } else { None };
        let binary_import = mock.or(found);
        let families = std::iter::once(compute.family).chain(copies.as_ref().map(|q| q.family)).collect();
        Ok(Arc::new(Context {
            raw,
            instance,
            facts,
            compute,
            copies,
            families,
            labels,
            statistics,
            binary_import,
            layouts: Mutex::default(),
            limit: options.memory_limit.unwrap_or(u64::MAX),
            taken: Mutex::default(),
        }))
    }

    /// The queue of copies from and to the host.
    pub(crate) fn copies(&self) -> &Queue {
        self.copies.as_ref().unwrap_or(&self.compute)
    }

    /// Whether sparse buffers can be bound on the compute queue.
    pub(crate) fn compute_binds_sparse(&self) -> bool {
        let family = self.facts.queues.get(self.compute.family as usize);
        family.is_some_and(|q| q.queue_flags.contains(vk::QueueFlags::SPARSE_BINDING))
    }

    /// Counts an allocation before it is made; if it passes a limit, says how many bytes were left.
    pub(crate) fn reserve(&self, bytes: u64, device: bool) -> Result<(), Option<u64>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.limit.saturating_sub(taken.0);
        if device && bytes > left {
            return Err(Some(left));
        }
        if taken.1 >= self.facts.properties.limits.max_memory_allocation_count {
            return Err(None);
        }
        taken.0 += if device { bytes } else { 0 };
        taken.1 += 1;
        Ok(())
    }

    /// Takes back what was counted.
    pub(crate) fn release(&self, bytes: u64, allocations: u32) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.0 = taken.0.saturating_sub(bytes);
        taken.1 = taken.1.saturating_sub(allocations);
    }

    /// Bytes of device memory in use.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Bytes of push constants that kernels may use.
    pub(crate) fn push_bytes(&self) -> u32 {
        self.facts.properties.limits.max_push_constants_size.min(256)
    }

    /// The pipeline layout for so many bytes of push constants.
    pub(crate) fn layout(&self, push_bytes: u32) -> Result<vk::PipelineLayout, Error> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = layouts.get(&push_bytes) {
            return Ok(*layout);
        }
        let range =
            vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push_bytes);
        let ranges = [range];
        let mut info = vk::PipelineLayoutCreateInfo::default();
        if push_bytes > 0 {
            info = info.push_constant_ranges(&ranges);
        }
        // Safety: the device is alive; the layout goes in `drop`.
        let layout = unsafe { self.raw.create_pipeline_layout(&info, None) }
            .map_err(failed("vkCreatePipelineLayout"))?;
        layouts.insert(push_bytes, layout);
        Ok(layout)
    }

    /// Names an object for debuggers and validation messages.
    pub(crate) fn name<T: vk::Handle>(&self, object: T, name: &str) {
        let (Some(labels), Ok(name)) = (&self.labels, std::ffi::CString::new(name)) else { return };
        let info = vk::DebugUtilsObjectNameInfoEXT::default().object_handle(object).object_name(&name);
        // Safety: the object is of this device. A name that is not taken is no harm.
        let _ = unsafe { labels.set_debug_utils_object_name(&info) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Safety: whoever used the device held it alive, so nothing but these is left. A lost device cannot be
        // waited for, but may be destroyed.
        unsafe {
            let _ = self.raw.device_wait_idle();
            for (_, layout) in self.layouts.get_mut().unwrap_or_else(PoisonError::into_inner).drain() {
                self.raw.destroy_pipeline_layout(layout, None);
            }
            self.compute.destroy(&self.raw);
            if let Some(copies) = &self.copies {
                copies.destroy(&self.raw);
            }
            self.raw.destroy_device(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Select};

    #[test]
    fn the_validation_layer_is_heard() {
        let options = Options { validation: true, cache_dir: None, ..Options::default() };
        let device = Device::open(&Select::Auto, &options).unwrap();
        assert_eq!(device.validation_messages(), Vec::<String>::new());
        let context = &device.context;
        // Safety: the layer reports the size of zero; what lavapipe makes of it is destroyed.
        unsafe {
            if let Ok(buffer) = context.raw.create_buffer(&vk::BufferCreateInfo::default(), None) {
                context.raw.destroy_buffer(buffer, None);
            }
        }
        let said = device.validation_messages();
        assert!(said.iter().any(|m| m.contains("vkCreateBuffer")), "{said:?}");
    }

    #[test]
    fn copies_have_a_queue_of_their_own_where_there_is_one() {
        let family = |flags| vk::QueueFamilyProperties { queue_flags: flags, ..Default::default() };
        let (g, c, t) = (vk::QueueFlags::GRAPHICS, vk::QueueFlags::COMPUTE, vk::QueueFlags::TRANSFER);
        let nvidia = [family(g | c | t), family(t), family(c | t)];
        assert_eq!(families(&nvidia), Some((0, Some(1))));
        assert_eq!(families(&[family(g | c | t), family(c | t)]), Some((0, Some(1))));
        assert_eq!(families(&[family(g), family(c | t)]), Some((1, None)));
        let video = family(t | vk::QueueFlags::VIDEO_DECODE_KHR);
        assert_eq!(families(&[video, family(g | c | t)]), Some((1, None)));
        assert_eq!(families(&[family(g)]), None);
    }
}
