//! Kernels made pipelines: each once for a device, those that are new in parallel.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use ash::vk;
use olivine_kernel::spirv::{Addressing, FloatControls, SpirvOptions};
use olivine_kernel::{ArgLayout, Kernel, spirv};
use olivine_program::{DeviceCaps, Error, PipelineKey as Key, SharedPipelines, in_parallel};

use crate::cache::Cache;
use crate::context::Context;
use crate::error::failed;
use crate::ptx::{self, Function};

/// A built kernel.
pub struct Pipeline {
    context: Arc<Context>,
    /// Null for a kernel that is PTX only.
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) args: ArgLayout,
    pub(crate) checked: bool,
    /// The same kernel as PTX, launched instead where it can be.
    pub(crate) ptx: Option<Function>,
    name: String,
}

/// A number that the driver reports about a built kernel, such as registers or bytes of spills.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistic {
    /// What it counts.
    pub name: String,
    /// How many.
    pub value: f64,
}

/// The pipelines of a device.
pub(crate) struct Pipelines {
    context: Arc<Context>,
    cache: Cache,
    known: SharedPipelines<Pipeline>,
    /// Whether kernels that have another form are launched as PTX too.
    pub(crate) launches_ptx: bool,
}

impl Pipelines {
    pub(crate) fn new(context: &Arc<Context>, cache: Cache) -> Self {
        Pipelines { context: context.clone(), cache, known: SharedPipelines::default(), launches_ptx: false }
    }

    pub(crate) fn get(
        &self,
        caps: &DeviceCaps,
        kernels: &[Arc<Kernel>],
        checked: bool,
    ) -> Result<Vec<Arc<Pipeline>>, Error> {
        let keys: Vec<Key> = kernels.iter().map(|k| (k.content_hash(), checked)).collect();
        let mut found: HashMap<Key, Arc<Pipeline>> = HashMap::new();
        let mut new: Vec<(Key, &Kernel)> = Vec::new();
        for ((key, kernel), known) in keys.iter().zip(kernels).zip(self.known.find(&keys)) {
            if let Some(pipeline) = known {
                found.insert(*key, pipeline);
            } else if !new.iter().any(|(k, _)| k == key) {
                new.push((*key, kernel.as_ref()));
            }
        }
        if !new.is_empty() {
            let built = in_parallel(&new, |(_, kernel)| self.one(caps, kernel, checked).map(Arc::new))?;
            for ((key, _), pipeline) in new.iter().zip(built) {
                found.insert(*key, self.known.keep(*key, pipeline));
            }
            self.cache.save();
        }
        let all: Option<Vec<_>> = keys.iter().map(|key| found.get(key).cloned()).collect();
        all.ok_or_else(|| failed("pipelines")(vk::Result::ERROR_UNKNOWN))
    }

    /// The SPIR-V words of a kernel, as the driver compiles it.
    pub(crate) fn words(&self, caps: &DeviceCaps, kernel: &Kernel, checked: bool) -> Result<Vec<u32>, Error> {
        let wrong = |source| Error::Kernel { kernel: kernel.name.clone(), source };
        if let Some(code) = &kernel.foreign {
            let module = code.pointers.as_ref().ok_or_else(|| no_module(caps, kernel))?;
            module.fits(&caps.target, kernel.args.len()).map_err(wrong)?;
            return Ok(module.words().to_vec());
        }
        // A module that asks for more workgroup memory than there is builds without complaint and loses the device.
        olivine_kernel::validate(kernel, &caps.target).map_err(wrong)?;
        spirv::print(kernel, &options(&self.context, caps, checked)).map_err(wrong)
    }

    /// The kernel as PTX, where the device takes it; one that its driver refuses stays SPIR-V, with a warning.
    fn ptx(&self, caps: &DeviceCaps, kernel: &Kernel, checked: bool) -> Option<Function> {
        let capability = caps.ptx.filter(|_| self.launches_ptx && !checked && ptx::takes(kernel))?;
        match Function::new(&self.context, kernel, capability) {
            Ok(function) => Some(function),
            Err(problem) => {
                tracing::warn!("{}: kernel `{}` is not launched as PTX: {problem}", caps.name, kernel.name);
                None
            }
        }
    }

    /// A kernel that has no other form than PTX.
    fn ptx_only(&self, caps: &DeviceCaps, kernel: &Kernel, checked: bool) -> Result<Pipeline, Error> {
        let context = &self.context;
        let wrong = |source| Error::Kernel { kernel: kernel.name.clone(), source };
        let missing = |what: &str| wrong(olivine_kernel::Error::Missing(what.into()));
        if checked {
            return Err(missing("checks of a kernel that is PTX only"));
        }
        let capability = caps.ptx.ok_or_else(|| missing("PTX"))?;
        olivine_kernel::validate(kernel, &caps.target).map_err(wrong)?;
        let ptx = Some(Function::new(context, kernel, capability)?);
        let args = ArgLayout::new(kernel, context.push_bytes(), false);
        let layout = context.layout(args.push_bytes())?;
        let (raw, name) = (vk::Pipeline::null(), kernel.name.clone());
        Ok(Pipeline { context: context.clone(), raw, layout, args, checked, ptx, name })
    }

    fn one(&self, caps: &DeviceCaps, kernel: &Kernel, checked: bool) -> Result<Pipeline, Error> {
        if kernel.has_warpgroups() {
            return self.ptx_only(caps, kernel, checked);
        }
        let context = &self.context;
        let words = self.words(caps, kernel, checked)?;
        // Foreign code knows nothing of checks.
        let args = ArgLayout::new(kernel, context.push_bytes(), checked && kernel.foreign.is_none());
        let layout = context.layout(args.push_bytes())?;
        let device = &context.raw;

        // Pinned, so that every subgroup is as large and as full as kernels count on.
        let facts = &context.facts;
        let pinned = caps.target.subgroup;
        let full =
            pinned.is_some_and(|size| kernel.group.is_multiple_of(size)) && facts.features.full_subgroups;
        let full = full && kernel.foreign.is_none();
        let choose = facts.subgroups.min != facts.subgroups.max && facts.subgroups.choosable;
        let mut required = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(pinned.unwrap_or(0));
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // Safety: the printer's modules are valid for the device's features, and the user answers for a foreign one;
        // the module goes when the pipeline is made.
        let module =
            unsafe { device.create_shader_module(&info, None) }.map_err(failed("vkCreateShaderModule"))?;
        let entry = kernel.foreign.as_ref().and_then(|f| f.pointers.as_ref()).map_or("main", |m| m.entry());
        let entry = CString::new(entry).unwrap_or_default();
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(&entry);
        if full {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        if pinned.is_some() && choose {
            stage = stage.push_next(&mut required);
        }
        let flags = match context.statistics {
            Some(_) => vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR,
            None => vk::PipelineCreateFlags::empty(),
        };
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout).flags(flags);
        // Safety: everything the structure points to is alive; the driver synchronises the cache.
        let built = unsafe {
            let built = device.create_compute_pipelines(self.cache.raw, &[info], None);
            device.destroy_shader_module(module, None);
            built
        };
        let raw = match built {
            Ok(pipelines) => pipelines.first().copied().unwrap_or_default(),
            Err((_, e)) => {
                let problem = format!("kernel `{}`: {e}", kernel.name);
                return Err(match failed("vkCreateComputePipelines")(e) {
                    Error::Driver { call, .. } => Error::Driver { call, problem },
                    other => other,
                });
            }
        };
        self.cache.built();
        context.name(raw, &kernel.name);
        let ptx = self.ptx(caps, kernel, checked);
        Ok(Pipeline { context: context.clone(), raw, layout, args, checked, ptx, name: kernel.name.clone() })
    }
}

/// A foreign kernel without code for this device.
fn no_module(caps: &DeviceCaps, kernel: &Kernel) -> Error {
    let node = format!("`{}`: it has no SPIR-V module that reaches buffers by address", kernel.name);
    Error::Unsupported { device: caps.name.clone(), nodes: vec![node] }
}

/// What the printer needs to know.
fn options(context: &Context, caps: &DeviceCaps, checked: bool) -> SpirvOptions {
    let floats = context.facts.floats;
    let controls = |i: usize| FloatControls {
        rounding_rte: floats.rte[i],
        preserve_nan: floats.preserve[i],
        denorm_preserve: floats.denormals[i],
    };
    SpirvOptions {
        addressing: Addressing::Pointers { push_bytes: context.push_bytes() },
        checked,
        f16_registers: caps.target.f16,
        float16: controls(0),
        float32: controls(1),
        float64: controls(2),
    }
}

impl Pipeline {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the driver reports about the built kernel, of devices opened with labels; may be empty.
    pub fn statistics(&self) -> Vec<Statistic> {
        let query = self.context.statistics.as_ref().filter(|_| self.raw != vk::Pipeline::null());
        let Some(query) = query else { return Vec::new() };
        let info = vk::PipelineExecutableInfoKHR::default().pipeline(self.raw);
        // Safety: the pipeline was made to capture statistics and has one executable at least.
        let statistics = unsafe { query.get_pipeline_executable_statistics(&info) }.unwrap_or_default();
        let number = |s: &vk::PipelineExecutableStatisticKHR<'_>| {
            use vk::PipelineExecutableStatisticFormatKHR as Format;
            // Safety: the format says which field was set; any bits are a number.
            unsafe {
                match s.format {
                    Format::BOOL32 => f64::from(s.value.b32),
                    Format::INT64 => s.value.i64 as f64,
                    Format::UINT64 => s.value.u64 as f64,
                    _ => s.value.f64,
                }
            }
        };
        let name = |s: &vk::PipelineExecutableStatisticKHR<'_>| {
            s.name_as_c_str().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
        };
        statistics.iter().map(|s| Statistic { name: name(s), value: number(s) }).collect()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Safety: recordings hold the pipelines they use.
        unsafe { self.context.raw.destroy_pipeline(self.raw, None) };
    }
}
