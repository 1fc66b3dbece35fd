//! A session: a device, and the executables compiled for it.

use std::path::PathBuf;
use std::sync::Arc;

use olivine_compile::{Compiled, Options, compile};
use olivine_cpu::{CpuEvaluator, Threads};
use olivine_gpu::{Mask, Program};
use olivine_ir::{Graph, TensorView};
use olivine_kernel::Kernel;

use crate::device::Choice;
use crate::engine::{CpuEngine, DeviceTensor, Engine, GpuEngine, KernelSource};
use crate::{Backend, CompileOptions, Device, Error, Executable};

/// Options of a session; the defaults are right for most.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Threads on the CPU; one per core when not given.
    pub threads: Option<usize>,
    /// Report run-time indices out of range as errors instead of clamping reads and dropping writes; on a GPU every
    /// access of every kernel is checked too.
    pub checked: bool,
    /// Run every operation by itself, to compare with the fused graph.
    pub no_fusion: bool,
    /// GPU features not to use.
    pub without: Mask,
    /// On Vulkan, run under the Khronos validation layer; see [`Session::validation_messages`].
    pub validation: bool,
    /// On Vulkan, the most bytes of device memory to take; all that there is when not given.
    pub memory_limit: Option<u64>,
    /// On wgpu, use only what browsers offer.
    pub browser_dialect: bool,
    /// On wgpu over Vulkan, use WGSL instead of SPIR-V.
    pub wgsl: bool,
    /// Where built pipelines are kept between processes.
    pub pipeline_cache: PipelineCache,
}

/// Where built pipelines are kept between processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PipelineCache {
    /// In the user's cache folder.
    #[default]
    User,
    /// In a folder of the caller's.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// A device ready to compile for; clones share it.
///
/// ```
/// use olivine::prelude::*;
/// let session = Session::new(Device::auto()?)?;
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    no_fusion: bool,
    threads: Arc<Threads>,
    pub(crate) engine: Box<dyn Engine>,
}

impl Session {
    /// Opens a device.
    pub fn new(device: Device) -> Result<Self, Error> {
        Session::with_options(device, SessionOptions::default())
    }

    /// Opens a device with options.
    pub fn with_options(device: Device, options: SessionOptions) -> Result<Self, Error> {
        let threads = Arc::new(Threads::new(options.threads)?);
        let unavailable = |reason: String| Error::Unavailable { device: device.to_string(), reason };
        let engine = match device.backend() {
            Backend::Cpu => {
                Ok(Box::new(CpuEngine { threads: threads.clone(), checked: options.checked })
                    as Box<dyn Engine>)
            }
            Backend::Vulkan => open_vulkan(&device, &options),
            Backend::Wgpu => open_wgpu(&device, &options),
        };
        let engine = engine.map_err(|e| match e {
            Error::Gpu(olivine_gpu::Error::Unavailable(reason)) => unavailable(reason),
            other => other,
        })?;
        Ok(Session { inner: Arc::new(Inner { device, no_fusion: options.no_fusion, threads, engine }) })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The device's own name and its driver's.
    pub fn device_name(&self) -> String {
        self.inner.engine.describe()
    }

    /// Compiles a graph; params are set on the result.
    pub fn compile(&self, graph: &Graph) -> Result<Executable, Error> {
        self.compile_with(graph, &CompileOptions::default())
    }

    /// Compiles a graph with options.
    pub fn compile_with(&self, graph: &Graph, options: &CompileOptions) -> Result<Executable, Error> {
        Executable::new(self.clone(), graph.clone(), options)
    }

    /// Brings a tensor to the device, to be an input of any number of runs.
    pub fn upload<'a>(&self, tensor: impl Into<TensorView<'a>>) -> Result<DeviceTensor, Error> {
        let view = tensor.into();
        self.inner.engine.upload(view.ty(), view.bytes())
    }

    /// The compiler's stages for a graph, for inspection.
    pub fn explain(&self, graph: &Graph) -> Result<Compiled, Error> {
        self.inner.compile(graph, true)
    }

    /// The program that a compiled graph becomes on a GPU; `None` on the CPU.
    pub fn program(&self, compiled: &Compiled) -> Result<Option<Program>, Error> {
        self.inner.engine.program(compiled)
    }

    /// Bytes of device memory that the session has taken, with what lies free in blocks that tensors share; `None`
    /// where the driver does not tell (on wgpu) and on the CPU.
    pub fn memory_taken(&self) -> Option<u64> {
        self.inner.engine.memory_taken()
    }

    /// A kernel of a program as the driver is given it; `None` on the CPU.
    pub fn kernel_source(&self, kernel: &Kernel) -> Result<Option<KernelSource>, Error> {
        self.inner.engine.source(kernel)
    }

    /// What the validation layer has said so far; empty without one.
    pub fn validation_messages(&self) -> Vec<String> {
        self.inner.engine.messages()
    }
}

impl Inner {
    pub(crate) fn compile(&self, graph: &Graph, keep_stages: bool) -> Result<Compiled, Error> {
        let options = Options { evaluator: Some(&CpuEvaluator), no_fusion: self.no_fusion, keep_stages };
        Ok(self.threads.install(|| compile(graph, &options))?)
    }
}

fn open_vulkan(device: &Device, options: &SessionOptions) -> Result<Box<dyn Engine>, Error> {
    use olivine_vulkan::{Device as Vulkan, Options, Select};
    let select = match device {
        Device::Chosen(_, Choice::Index(i)) => Select::Index(*i),
        Device::Chosen(_, Choice::Uuid(uuid)) => Select::Uuid(*uuid),
        Device::Chosen(_, Choice::Name(name)) => Select::Name(name.clone()),
        _ => Select::Auto,
    };
    let (mask, validation, memory_limit) = (options.without, options.validation, options.memory_limit);
    let mut how = Options { mask, validation, memory_limit, ..Options::default() };
    match &options.pipeline_cache {
        PipelineCache::User => {}
        PipelineCache::Folder(path) => how.cache_dir = Some(path.clone()),
        PipelineCache::Off => how.cache_dir = None,
    }
    let driver = Arc::new(Vulkan::open(&select, &how)?);
    let source =
        |device: &Vulkan, kernel: &Kernel, checked| device.spirv(kernel, checked).map(KernelSource::Spirv);
    let messages = Vulkan::validation_messages;
    let memory_taken = |driver: &Vulkan| Some(driver.memory_taken());
    Ok(Box::new(GpuEngine { driver, checked: options.checked, messages, memory_taken, source }))
}

fn open_wgpu(device: &Device, options: &SessionOptions) -> Result<Box<dyn Engine>, Error> {
    use olivine_wgpu::{Device as Wgpu, Options, Select};
    let select = match device {
        Device::Chosen(_, Choice::Index(i)) => Select::Index(*i),
        Device::Chosen(_, Choice::Name(name)) => Select::Name(name.clone()),
        Device::Chosen(_, Choice::Uuid(_)) => {
            let reason = "wgpu does not tell UUIDs; choose by index or name".to_string();
            return Err(olivine_gpu::Error::Unavailable(reason).into());
        }
        _ => Select::Auto,
    };
    let how = Options { mask: options.without, plain_dialect: options.browser_dialect, wgsl: options.wgsl };
    let opened = Wgpu::open(select, how)?;
    let driver = Arc::new(opened);
    let source =
        |device: &Wgpu, kernel: &Kernel, checked| device.wgsl(kernel, checked).map(KernelSource::Wgsl);
    let checked = options.checked;
    Ok(Box::new(GpuEngine { driver, checked, messages: |_| Vec::new(), memory_taken: |_| None, source }))
}
