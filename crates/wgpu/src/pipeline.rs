//! Kernels built for the device: printed in its language, compiled by wgpu, cached by content.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use olivine_kernel::spirv::{self, Addressing, SpirvOptions};
use olivine_kernel::wgsl::{self, Dialect, WgslOptions};
use olivine_kernel::{BindingDecl, Foreign, Interface, Kernel, ParamsLocation};
use olivine_program::{Error, PipelineKey as Key, in_parallel};

use crate::Device;
use crate::device::Language;
use crate::error::{Caught, Scope};

/// Pipelines by kernel.
type Built = HashMap<Key, Arc<Pipeline>>;

/// A built kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// What the kernel is bound to.
    pub(crate) interface: Interface,
    pub(crate) kernel: Arc<Kernel>,
}

/// A printed kernel.
struct Printed {
    code: Code,
    interface: Interface,
}

enum Code {
    Spirv(Vec<u32>),
    Wgsl(String),
}

impl Device {
    /// Builds kernels without blocking; what is wrong with one is known when the future is done, in browsers too.
    pub async fn pipelines_async(
        &self,
        kernels: &[Arc<Kernel>],
        checked: bool,
    ) -> Result<Vec<Arc<Pipeline>>, Error> {
        let (known, unknown) = self.known(kernels, checked);
        let mut built = Vec::new();
        for (key, kernel) in unknown {
            let printed = self.print(kernel, checked)?;
            let scope = Scope::new(&self.raw);
            let pipeline = self.compile(kernel, printed);
            built.push((key, pipeline, scope.end()));
        }
        let mut ready = Vec::with_capacity(built.len());
        for (key, pipeline, outcome) in built {
            let kernel = pipeline.kernel.clone();
            ready.push((key, settle(&kernel, pipeline, outcome).await?));
        }
        self.faults.check("pipelines", None)?;
        self.keep(kernels, checked, known, ready)
    }

    pub(crate) fn pipelines(
        &self,
        kernels: &[Arc<Kernel>],
        checked: bool,
    ) -> Result<Vec<Arc<Pipeline>>, Error> {
        let build = |(key, kernel): &(Key, &Arc<Kernel>)| {
            let printed = self.print(kernel, checked)?;
            let pipeline =
                self.scoped("pipelines", || self.compile(kernel, printed)).map_err(|c| refused(kernel, c))?;
            Ok((*key, pipeline))
        };
        let (known, unknown) = self.known(kernels, checked);
        let built = in_parallel(&unknown, build)?;
        self.keep(kernels, checked, known, built)
    }

    /// What is built already, and the kernels that are not, each once.
    fn known<'k>(&self, kernels: &'k [Arc<Kernel>], checked: bool) -> (Built, Vec<(Key, &'k Arc<Kernel>)>) {
        let keys: Vec<Key> = kernels.iter().map(|kernel| (kernel.content_hash(), checked)).collect();
        let mut known = Built::new();
        let mut unknown: Vec<(Key, &Arc<Kernel>)> = Vec::new();
        for ((key, kernel), found) in keys.iter().zip(kernels).zip(self.pipelines.find(&keys)) {
            if let Some(pipeline) = found {
                known.insert(*key, pipeline);
            } else if unknown.iter().all(|(k, _)| k != key) {
                unknown.push((*key, kernel));
            }
        }
        (known, unknown)
    }

    /// Remembers what was built and returns the pipelines of all kernels, in order.
    fn keep(
        &self,
        kernels: &[Arc<Kernel>],
        checked: bool,
        mut known: Built,
        built: Vec<(Key, Pipeline)>,
    ) -> Result<Vec<Arc<Pipeline>>, Error> {
        for (key, pipeline) in built {
            known.insert(key, self.pipelines.keep(key, Arc::new(pipeline)));
        }
        let find = |kernel: &Arc<Kernel>| {
            let lost =
                || Error::Driver { call: "pipelines", problem: format!("`{}` was not built", kernel.name) };
            known.get(&(kernel.content_hash(), checked)).cloned().ok_or_else(lost)
        };
        kernels.iter().map(find).collect()
    }

    /// The WGSL that a kernel is, or would be, on this device.
    pub fn wgsl(&self, kernel: &Kernel, checked: bool) -> Result<String, Error> {
        if let Some(code) = &kernel.foreign {
            let module = code.wgsl.as_ref().ok_or_else(|| self.no_module(kernel))?;
            return Ok(module.source.clone());
        }
        let dialect = match &self.language {
            Language::Wgsl(dialect) => *dialect,
            Language::Spirv(_) => Dialect::Native,
        };
        let module = wgsl::print(kernel, &WgslOptions { dialect, checked });
        module.map(|m| m.source).map_err(|source| Error::Kernel { kernel: kernel.name.clone(), source })
    }

    /// A foreign kernel without code for this device.
    fn no_module(&self, kernel: &Kernel) -> Error {
        let needs = match &self.language {
            Language::Spirv(_) => "no SPIR-V module that reaches buffers by binding, and no WGSL",
            Language::Wgsl(_) => "no WGSL",
        };
        let node = format!("`{}`: it has {needs}", kernel.name);
        Error::Unsupported { device: self.caps.name.clone(), nodes: vec![node] }
    }

    /// A user's finished code: SPIR-V where the device takes it, else WGSL.
    fn foreign(&self, kernel: &Kernel, code: &Foreign) -> Result<Printed, Error> {
        let wrong = |source| Error::Kernel { kernel: kernel.name.clone(), source };
        match (&self.language, &code.bindings, &code.wgsl) {
            (Language::Spirv(options), Some(module), _) => {
                module.fits(&self.caps.target, kernel.args.len()).map_err(wrong)?;
                let bytes = match options.addressing {
                    Addressing::Bindings { immediate_bytes, .. } => immediate_bytes,
                    Addressing::Pointers { .. } => 0,
                };
                let interface = Interface::new(kernel, bytes, false);
                if matches!(interface.params, Some(ParamsLocation::Uniform { .. })) {
                    return Err(wrong(olivine_kernel::Error::Missing("immediates for its params".into())));
                }
                Ok(Printed { code: Code::Spirv(module.words().to_vec()), interface })
            }
            (_, _, Some(module)) => {
                let interface = Interface::new(kernel, 0, false);
                Ok(Printed { code: Code::Wgsl(module.source.clone()), interface })
            }
            _ => Err(self.no_module(kernel)),
        }
    }

    fn print(&self, kernel: &Arc<Kernel>, checked: bool) -> Result<Printed, Error> {
        let wrong = |source| Error::Kernel { kernel: kernel.name.clone(), source };
        if let Some(code) = &kernel.foreign {
            return self.foreign(kernel, code);
        }
        // A module that asks for more than the device has would be accepted and lose the device when it runs.
        olivine_kernel::validate(kernel, &self.caps.target).map_err(wrong)?;
        let printed = match &self.language {
            Language::Wgsl(dialect) => {
                let module =
                    wgsl::print(kernel, &WgslOptions { dialect: *dialect, checked }).map_err(wrong)?;
                Printed { code: Code::Wgsl(module.source), interface: module.interface }
            }
            Language::Spirv(options) => {
                let options = SpirvOptions { checked, ..options.clone() };
                let words = spirv::print(kernel, &options).map_err(wrong)?;
                let immediate_bytes = match options.addressing {
                    Addressing::Bindings { immediate_bytes, .. } => immediate_bytes,
                    Addressing::Pointers { .. } => 0,
                };
                let interface = Interface::new(kernel, immediate_bytes, checked);
                Printed { code: Code::Spirv(words), interface }
            }
        };
        let (what, needed, limit) = match printed.interface.params {
            Some(ParamsLocation::Immediate { bytes }) => {
                ("bytes of params", bytes, self.limits.max_immediate_size)
            }
            Some(ParamsLocation::Uniform { bytes, .. }) => {
                let limit = self.limits.max_uniform_buffer_binding_size.min(u64::from(u32::MAX));
                ("bytes of params", bytes, limit as u32)
            }
            None => return Ok(printed),
        };
        if needed > limit {
            return Err(wrong(olivine_kernel::Error::Limit { what, needed, limit }));
        }
        Ok(printed)
    }

    fn compile(&self, kernel: &Arc<Kernel>, printed: Printed) -> Pipeline {
        let label = Some(kernel.name.as_str());
        let Printed { code, interface } = printed;
        let foreign = kernel.foreign.as_ref();
        let entry_point = match (&code, foreign) {
            (Code::Spirv(_), Some(f)) => f.bindings.as_ref().map(|m| m.entry().to_string()),
            (Code::Wgsl(_), Some(f)) => f.wgsl.as_ref().map(|m| m.entry.clone()),
            (_, None) => None,
        };
        let entry_point = entry_point.unwrap_or_else(|| Interface::ENTRY.to_string());
        let shader = match code {
            Code::Spirv(words) => self.spirv_module(kernel, words, &entry_point),
            // A user's text keeps wgpu's checks.
            Code::Wgsl(source) => self.wgsl_module(kernel, source, interface.checked || foreign.is_some()),
        };
        let entry = |(i, decl): (usize, &BindingDecl)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match decl.is_uniform() {
                    true => wgpu::BufferBindingType::Uniform,
                    false => wgpu::BufferBindingType::Storage { read_only: false },
                },
                has_dynamic_offset: false,
                // Known sizes are checked once, when the bind group is made, instead of at every dispatch.
                min_binding_size: wgpu::BufferSize::new(u64::from(decl.min_bytes)),
            },
            count: None,
        };
        let entries: Vec<_> = interface.bindings.iter().enumerate().map(entry).collect();
        let layout =
            self.raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let immediate_size = match interface.params {
            Some(ParamsLocation::Immediate { bytes }) => bytes,
            _ => 0,
        };
        let whole = self.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size,
        });
        let raw = self.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&whole),
            module: &shader,
            entry_point: Some(&entry_point),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { raw, layout, interface, kernel: kernel.clone() }
    }

    /// The words go to the driver as they are.
    #[allow(unsafe_code, reason = "wgpu does not look into the module")]
    fn spirv_module(&self, kernel: &Kernel, words: Vec<u32>, entry: &str) -> wgpu::ShaderModule {
        let module = kernel.foreign.as_ref().and_then(|f| f.bindings.as_ref());
        let [x, y, z] = module.map_or([kernel.group, 1, 1], |m| m.local_size());
        let entry =
            wgpu::PassthroughShaderEntryPoint { name: entry.to_string().into(), workgroup_size: (x, y, z) };
        let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
            label: Some(kernel.name.as_str()),
            entry_points: vec![entry].into(),
            spirv: Some(words.into()),
            ..Default::default()
        };
        // Safety: the words are printed from a kernel that was validated against what the device was opened with, and
        // the tests hold the printer's modules against Khronos's validator; indices, loops and divisors are in order
        // as said for WGSL below. A foreign module was parsed and fits the device; for the rest its user answers.
        unsafe { self.raw.create_shader_module_passthrough(descriptor) }
    }

    /// wgpu's own checks of every index and loop cost up to 8 times a kernel's time, so only checked kernels have them.
    #[allow(unsafe_code, reason = "the one call that leaves the checks out")]
    fn wgsl_module(&self, kernel: &Kernel, source: String, checked: bool) -> wgpu::ShaderModule {
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(kernel.name.as_str()), source };
        if checked {
            return self.raw.create_shader_module(descriptor);
        }
        // Safety: the text is printed from a validated kernel. Its indices stay inside the bound ranges by how
        // lowering writes it, which the checked form of the same kernel proves in the tests, its counted loops end
        // because their steps are above zero, and its divisors are not zero; the device's robust buffer access stays
        // on beneath.
        unsafe { self.raw.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
    }
}

async fn settle(
    kernel: &Kernel,
    pipeline: Pipeline,
    outcome: impl Future<Output = Result<(), Caught>>,
) -> Result<Pipeline, Error> {
    outcome.await.map_err(|c| refused(kernel, c))?;
    Ok(pipeline)
}

fn refused(kernel: &Kernel, caught: Caught) -> Error {
    match caught {
        Caught::Refused(problem) => {
            Error::Driver { call: "pipelines", problem: format!("kernel `{}`: {problem}", kernel.name) }
        }
        other => other.into_error("pipelines"),
    }
}
