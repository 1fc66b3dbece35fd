//! Dispatches of modules that users bring, whose buffers are in bindings. Our own kernels reach theirs by address.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use olivine_kernel::{BoundModule, MAX_PUSH_BYTES};
use olivine_program::{Error, ModuleCall};

use crate::Device;
use crate::context::Context;
use crate::error::{failed, refused};
use crate::memory::Buffer;
use crate::record::Recording;
use crate::transfer::{command_buffer, command_pool};

/// Pipelines of modules that are cached; the one that was not used for longest goes first.
const CACHED: usize = 64;
/// Bytes of a descriptor of a buffer that has none: a descriptor cannot be empty.
const LEAST: u64 = 4;

/// Pipelines of modules by their content.
#[derive(Default)]
pub(crate) struct Modules {
    /// The one used last stands last.
    known: Mutex<Vec<Arc<ModulePipeline>>>,
}

/// A module that was built, for one operation of those it has.
pub(crate) struct ModulePipeline {
    context: Arc<Context>,
    module: Arc<BoundModule>,
    op: Option<u32>,
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    raw: vk::Pipeline,
}

/// What a recording of a module holds: descriptors, and the pipeline that they are for.
pub(crate) struct Bound {
    pool: vk::DescriptorPool,
    pipeline: Arc<ModulePipeline>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Safety: the recording has ended; its set goes with the pool.
        unsafe { self.pipeline.context.raw.destroy_descriptor_pool(self.pool, None) };
    }
}

impl Drop for ModulePipeline {
    fn drop(&mut self) {
        let device = &self.context.raw;
        // Safety: recordings hold the pipelines they use; parts that were not made are null.
        unsafe {
            device.destroy_pipeline(self.raw, None);
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_descriptor_set_layout(self.set, None);
        }
    }
}

impl Device {
    /// Records one dispatch of a module.
    pub(crate) fn record_module(&self, call: &ModuleCall<'_, Device>) -> Result<Recording, Error> {
        self.check_module(call)?;
        let context = &self.context;
        let pipeline = self.module_pipeline(call.module, call.op)?;
        let (bound, set) = self.descriptors(&pipeline, call)?;
        let pool = command_pool(context, context.compute.family)?;
        let buffers: Vec<Arc<Buffer>> = call.buffers.iter().map(|(buffer, _)| buffer.clone()).collect();
        // It owns the pool from here on.
        let mut recording = Recording::of_module(context, pool, buffers, bound);
        let commands = command_buffer(context, pool)?;
        let device = &context.raw;
        use vk::{AccessFlags2 as A, PipelineStageFlags2 as S};
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(S::ALL_COMMANDS)
            .src_access_mask(A::MEMORY_WRITE)
            .dst_stage_mask(S::ALL_COMMANDS)
            .dst_access_mask(A::MEMORY_READ | A::MEMORY_WRITE)];
        let [x, y, z] = call.groups;
        // Safety: the buffer is new; pipeline, set and buffers are kept by the recording; sizes were checked.
        unsafe {
            device
                .begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())
                .map_err(failed("vkBeginCommandBuffer"))?;
            device.cmd_pipeline_barrier2(commands, &vk::DependencyInfo::default().memory_barriers(&barriers));
            let point = vk::PipelineBindPoint::COMPUTE;
            device.cmd_bind_pipeline(commands, point, pipeline.raw);
            if let Some(set) = set {
                device.cmd_bind_descriptor_sets(commands, point, pipeline.layout, 0, &[set], &[]);
            }
            if !call.push.is_empty() {
                let stage = vk::ShaderStageFlags::COMPUTE;
                device.cmd_push_constants(commands, pipeline.layout, stage, 0, call.push);
            }
            if x > 0 && y > 0 && z > 0 {
                device.cmd_dispatch(commands, x, y, z);
            }
            device.end_command_buffer(commands).map_err(failed("vkEndCommandBuffer"))?;
        }
        recording.add(commands);
        Ok(recording)
    }

    fn check_module(&self, call: &ModuleCall<'_, Device>) -> Result<(), Error> {
        let limits = &self.context.facts.properties.limits;
        let wrong = |problem: String| Err(refused("record_module", problem));
        call.module
            .fits(&self.caps.target)
            .map_err(|source| Error::Kernel { kernel: call.module.entry().into(), source })?;
        let [x, y, z] = call.module.local_size();
        let most = limits.max_compute_work_group_size;
        let together = limits.max_compute_work_group_invocations;
        if x > most[0] || y > most[1] || z > most[2] || call.module.invocations() > together {
            let problem =
                format!("a workgroup of {x} x {y} x {z}; the device takes {most:?}, {together} in all");
            return wrong(problem);
        }
        if (0..3).any(|d| call.groups[d] > self.caps.max_groups[d]) {
            return wrong(format!(
                "{:?} workgroups; the device takes {:?}",
                call.groups, self.caps.max_groups
            ));
        }
        if call.push.len() > MAX_PUSH_BYTES as usize
            || !call.push.len().is_multiple_of(4)
            || call.push.len() < call.module.push_bytes() as usize
        {
            let needed = call.module.push_bytes();
            return wrong(format!("{} bytes of push constants for a module of {needed}", call.push.len()));
        }
        if call.op.is_some() && !call.module.has_op() {
            return wrong("the module has no specialisation constant 0".into());
        }
        if call.buffers.len() != call.module.bindings().len() {
            let (given, needed) = (call.buffers.len(), call.module.bindings().len());
            return wrong(format!("{given} buffers for {needed} bindings"));
        }
        let descriptors = limits
            .max_per_stage_descriptor_storage_buffers
            .min(limits.max_descriptor_set_storage_buffers)
            .min(limits.max_per_stage_resources);
        if call.buffers.len() > descriptors as usize {
            return wrong(format!("{} buffers; the device takes {descriptors}", call.buffers.len()));
        }
        for (buffer, bytes) in call.buffers {
            buffer.check("record_module", 0, *bytes)?;
            if *bytes > u64::from(limits.max_storage_buffer_range) {
                return wrong(format!("{bytes} bytes in a binding; {} fit", limits.max_storage_buffer_range));
            }
        }
        Ok(())
    }

    /// One set with all buffers.
    fn descriptors(
        &self,
        pipeline: &Arc<ModulePipeline>,
        call: &ModuleCall<'_, Device>,
    ) -> Result<(Option<Bound>, Option<vk::DescriptorSet>), Error> {
        let device = &self.context.raw;
        let count = call.buffers.len() as u32;
        if count == 0 {
            let pool = vk::DescriptorPool::null();
            return Ok((Some(Bound { pool, pipeline: pipeline.clone() }), None));
        }
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count(count)];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        // Safety: the device is alive; the pool's owner is made at once.
        let pool = unsafe { device.create_descriptor_pool(&info, None) }
            .map_err(failed("vkCreateDescriptorPool"))?;
        let bound = Bound { pool, pipeline: pipeline.clone() };
        let layouts = [pipeline.set];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // Safety: the pool is new and has room for one set of this layout.
        let sets =
            unsafe { device.allocate_descriptor_sets(&info) }.map_err(failed("vkAllocateDescriptorSets"))?;
        let set = sets.first().copied().unwrap_or_default();
        let infos: Vec<[vk::DescriptorBufferInfo; 1]> = call
            .buffers
            .iter()
            .map(|(buffer, bytes)| {
                let (raw, offset) = buffer.buffer_and_offset();
                [vk::DescriptorBufferInfo::default().buffer(raw).offset(offset).range((*bytes).max(LEAST))]
            })
            .collect();
        let writes: Vec<_> = infos
            .iter()
            .enumerate()
            .map(|(i, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(i as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(info)
            })
            .collect();
        // Safety: ranges were checked, and memory is allocated in multiples that hold the least of a descriptor.
        unsafe { device.update_descriptor_sets(&writes, &[]) };
        Ok((Some(bound), Some(set)))
    }

    /// The pipeline of a module, built if it is not known.
    fn module_pipeline(
        &self,
        module: &Arc<BoundModule>,
        op: Option<u32>,
    ) -> Result<Arc<ModulePipeline>, Error> {
        let mut known = self.modules.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |p: &Arc<ModulePipeline>| p.op == op && (Arc::ptr_eq(&p.module, module) || p.module == *module);
        if let Some(at) = known.iter().position(same) {
            let found = known.remove(at);
            known.push(found.clone());
            return Ok(found);
        }
        // Built under the lock: who asks for the same module meanwhile needs it as well.
        let built = Arc::new(self.build_module(module, op)?);
        let oldest = (known.len() >= CACHED).then(|| known.remove(0));
        known.push(built.clone());
        drop(known);
        drop(oldest);
        Ok(built)
    }

    fn build_module(&self, module: &Arc<BoundModule>, op: Option<u32>) -> Result<ModulePipeline, Error> {
        let context = &self.context;
        let device = &context.raw;
        let mut pipeline = ModulePipeline {
            context: context.clone(),
            module: module.clone(),
            op,
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            raw: vk::Pipeline::null(),
        };
        let bindings: Vec<_> = (0..module.bindings().len() as u32)
            .map(|i| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(i)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // Safety: the device is alive; what is made goes with `pipeline`.
        pipeline.set = unsafe { device.create_descriptor_set_layout(&info, None) }
            .map_err(failed("vkCreateDescriptorSetLayout"))?;
        let sets = [pipeline.set];
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(MAX_PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&ranges);
        // Safety: as above.
        pipeline.layout = unsafe { device.create_pipeline_layout(&info, None) }
            .map_err(failed("vkCreatePipelineLayout"))?;
        let info = vk::ShaderModuleCreateInfo::default().code(module.words());
        // Safety: the module was checked to be well formed; it goes when the pipeline is made.
        let code =
            unsafe { device.create_shader_module(&info, None) }.map_err(failed("vkCreateShaderModule"))?;
        let entry = CString::new(module.entry()).unwrap_or_default();
        let entries = [vk::SpecializationMapEntry::default().constant_id(0).offset(0).size(4)];
        let data = op.unwrap_or(0).to_ne_bytes();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(code)
            .name(&entry);
        if op.is_some() {
            stage = stage.specialization_info(&special);
        }
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(pipeline.layout);
        // Safety: everything the structure points to is alive.
        let built = unsafe {
            let built = device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            device.destroy_shader_module(code, None);
            built
        };
        match built {
            Ok(pipelines) => pipeline.raw = pipelines.first().copied().unwrap_or_default(),
            Err((_, e)) => return Err(failed("vkCreateComputePipelines")(e)),
        }
        Ok(pipeline)
    }
}
