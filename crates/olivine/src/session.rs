//! A session: a device, and the executables compiled for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_compile::{Compiled, Options, Widen, compile};
use olivine_cpu::{CpuEvaluator, Threads};
use olivine_files::{CacheFolder, default_cache_dir};
#[cfg(feature = "vulkan")]
use olivine_gpu::Driver;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use olivine_gpu::{DeviceCaps, Tuning};
use olivine_gpu::{Mask, Ptx, Record};
use olivine_ir::{Graph, TensorView};

use crate::cost::CalibrationOfSession;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use crate::device::Choice;
#[cfg(feature = "wgpu")]
use crate::device::WgpuApi;
#[cfg(not(all(feature = "vulkan", feature = "wgpu")))]
use crate::device::without;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use crate::engine::GpuEngine;
use crate::engine::{CpuEngine, DeviceTensor, Engine};
use crate::process::OfProcess;
use crate::{Backend, CompileOptions, Device, Error, Executable};

/// Options of a session; the defaults are right for most.
///
/// ```
/// use olivine::prelude::*;
/// let session = Session::with_options(Device::Cpu, SessionOptions::new().threads(1))?;
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[cfg_attr(
    not(all(feature = "vulkan", feature = "wgpu")),
    allow(dead_code, reason = "some options are for one driver alone")
)]
pub struct SessionOptions {
    /// Threads on the CPU; one per core when not given.
    pub threads: Option<usize>,
    /// Report run-time indices out of range as errors instead of clamping reads and dropping writes; on a GPU every
    /// access of every kernel is checked too.
    pub checked: bool,
    /// On Vulkan, run under the Khronos validation layer; see [`Session::validation_messages`].
    pub validation: bool,
    /// On Vulkan, the most bytes of device memory to take; all that there is when not given.
    pub memory_limit: Option<u64>,
    /// Where built pipelines are cached between processes. A folder that another user could write is not used, with a
    /// [warning](crate#warnings-and-progress).
    pub pipeline_cache: PipelineCache,
    /// On a GPU, the record of measured times by which kernels are chosen.
    pub tuning: TuneBy,
    /// How exactly f32 models are computed.
    pub precision: Precision,
    pub(crate) no_fusion: bool,
    pub(crate) round_every_op: bool,
    pub(crate) without: Mask,
    pub(crate) browser_dialect: bool,
    pub(crate) ptx: Ptx,
    pub(crate) wgsl: bool,
}

impl SessionOptions {
    /// The defaults.
    pub fn new() -> Self {
        SessionOptions::default()
    }

    /// Sets [`SessionOptions::threads`].
    pub fn threads(self, threads: impl Into<Option<usize>>) -> Self {
        SessionOptions { threads: threads.into(), ..self }
    }

    /// Sets [`SessionOptions::checked`].
    pub fn checked(self, checked: bool) -> Self {
        SessionOptions { checked, ..self }
    }

    /// Sets [`SessionOptions::validation`].
    pub fn validation(self, validation: bool) -> Self {
        SessionOptions { validation, ..self }
    }

    /// Sets [`SessionOptions::memory_limit`].
    pub fn memory_limit(self, bytes: impl Into<Option<u64>>) -> Self {
        SessionOptions { memory_limit: bytes.into(), ..self }
    }

    /// Sets [`SessionOptions::pipeline_cache`].
    pub fn pipeline_cache(self, pipeline_cache: PipelineCache) -> Self {
        SessionOptions { pipeline_cache, ..self }
    }

    /// Sets [`SessionOptions::precision`].
    pub fn precision(self, precision: Precision) -> Self {
        SessionOptions { precision, ..self }
    }

    /// Sets [`SessionOptions::tuning`].
    pub fn tuning(self, tuning: TuneBy) -> Self {
        SessionOptions { tuning, ..self }
    }
}

/// How exactly f32 models are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Precision {
    /// As f32 is defined: errors are those of f32 sums.
    #[default]
    Exact,
    /// On GPUs with f16, matmuls, convolutions and attention multiply f16 operands; their weights are stored in f16. Results
    /// have about three digits, and numbers beyond 65,504 overflow. Packed weights stay packed, and what is multiplied by them may be
    /// rounded to f16. Elsewhere it is [`Precision::Exact`].
    Fast,
}

impl std::str::FromStr for Precision {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "exact" => Ok(Precision::Exact),
            "fast" => Ok(Precision::Fast),
            other => Err(Error::UnknownPrecision { name: other.into() }),
        }
    }
}

/// The record of measured times by which kernels are chosen where several compute the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuneBy {
    /// Measured on this machine (`olivine tune`, stored beside the pipeline cache), and where nothing was measured, the
    /// record shipped with the library.
    #[default]
    Measured,
    /// The record shipped with the library.
    Shipped,
    /// A record of the caller's.
    Given(Arc<Record>),
}

/// Where built pipelines are cached between processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    pub(crate) inner: OfProcess<Arc<Inner>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = format_args!("{}", self.inner.device);
        f.debug_struct("Session").field("device", &device).finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    device: Device,
    no_fusion: bool,
    /// How f16 and bf16 are computed in f32.
    widen: Option<Widen>,
    /// Whether f32 matmuls multiply f16 operands.
    narrow: bool,
    threads: Arc<Threads>,
    pub(crate) engine: Box<dyn Engine>,
    /// The folder of the user's record; `None` where nothing is cached.
    pub(crate) folder: Option<CacheFolder>,
    /// What of the user's record was passed over.
    pub(crate) notes: Vec<String>,
    /// As the session was opened.
    pub(crate) options: SessionOptions,
    /// What the device was measured to do, once that is known.
    pub(crate) calibration: CalibrationOfSession,
}

impl Session {
    /// Opens a device.
    pub fn new(device: Device) -> Result<Self, Error> {
        Session::with_options(device, SessionOptions::default())
    }

    /// Opens a device with options.
    pub fn with_options(device: Device, options: SessionOptions) -> Result<Self, Error> {
        // Nothing of the CPU's is cached between processes.
        let folder = if device.backend() == Backend::Cpu { None } else { options.folder() };
        let engine = match device.backend() {
            Backend::Cpu => None,
            Backend::Vulkan => Some(open_vulkan(&device, &options, folder.as_ref())),
            Backend::Wgpu => Some(open_wgpu(&device, &options, folder.as_ref())),
        };
        Session::of_engine(device, &options, folder, engine)
    }

    /// Opens a device without blocking: in a browser, the only way to a GPU. Elsewhere it is [`Session::with_options`].
    #[cfg(feature = "async")]
    pub async fn open(device: Device, options: SessionOptions) -> Result<Self, Error> {
        #[cfg(all(target_arch = "wasm32", feature = "wgpu"))]
        if device.backend() == Backend::Wgpu {
            let engine = open_browser(&device, &options).await;
            return Session::of_engine(device, &options, None, Some(engine));
        }
        Session::with_options(device, options)
    }

    /// A session on an open device; on the CPU where none is given.
    fn of_engine(
        device: Device,
        options: &SessionOptions,
        folder: Option<CacheFolder>,
        engine: Option<Result<Opened, Error>>,
    ) -> Result<Self, Error> {
        let threads = Arc::new(Threads::new(options.threads)?);
        let unavailable = |reason: String| Error::Unavailable { device: device.to_string(), reason };
        let on_cpu = || {
            let engine = CpuEngine { threads: threads.clone(), checked: options.checked };
            Ok((Box::new(engine) as Box<dyn Engine>, Vec::new()))
        };
        let (engine, notes) = engine
            .unwrap_or_else(on_cpu)
            .inspect(|(_, notes)| notes.iter().for_each(|note| tracing::warn!("{note}")))
            .map_err(|e| match e {
                Error::Gpu(olivine_gpu::Error::Unavailable(reason)) => unavailable(reason),
                other => other,
            })?;
        let no_fusion = options.no_fusion;
        // Without fusion operations run as they are written.
        let widens = device.backend() == Backend::Cpu && !no_fusion && !options.round_every_op;
        let widen = widens.then(olivine_cpu::widen);
        let has_f16 = engine.caps().is_some_and(|caps| caps.target.has(olivine_kernel::Scalar::F16));
        let narrow = options.precision == Precision::Fast && has_f16;
        let (options, calibration) = (options.clone(), CalibrationOfSession::default());
        let inner =
            Inner { device, no_fusion, widen, narrow, threads, engine, folder, notes, options, calibration };
        Ok(Session { inner: OfProcess::new(Arc::new(inner)) })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether matmuls of f32 multiply f16 operands: [`Precision::Fast`] on a device that can.
    pub fn multiplies_f16(&self) -> bool {
        self.inner.narrow
    }

    /// The device's own name and its driver's.
    pub fn device_name(&self) -> String {
        self.inner.engine.describe()
    }

    /// Compiles a graph, whose params are set on the result, or a model, whose weights are brought to the device. What the
    /// device cannot run is an error here. Sizes that are open are compiled when they first come.
    pub fn compile<C: Compile>(&self, source: &C) -> Result<Executable, Error> {
        self.compile_with(source, &CompileOptions::default())
    }

    /// Compiles a graph or a model with options.
    pub fn compile_with<C: Compile>(
        &self,
        source: &C,
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        self.inner.check()?;
        source.compile_for(self, options)
    }

    /// Compiles as [`Session::compile_with`] does. In a browser, which reports what a device refuses only later than the
    /// calls return, this is how to hear of it.
    #[cfg(feature = "async")]
    pub async fn compile_async<C: Compile>(
        &self,
        source: &C,
        options: &CompileOptions,
    ) -> Result<Executable, Error> {
        self.inner.check()?;
        let mut compiled = None;
        let outcome = self.inner.engine.watch(&mut || compiled = Some(source.compile_for(self, options)));
        outcome.await?;
        compiled.unwrap_or(Err(Error::WorkerDied))
    }

    /// Brings a tensor to the device, to be an input of any number of runs.
    pub fn upload<'a>(&self, tensor: impl Into<TensorView<'a>>) -> Result<DeviceTensor, Error> {
        self.inner.check()?;
        let view = tensor.into();
        self.inner.engine.upload(view.ty(), view.bytes())
    }

    /// Bytes of device memory that the session has taken, with what is free in blocks that tensors share; `None`
    /// where the driver does not say (on wgpu) and on the CPU.
    pub fn memory_taken(&self) -> Option<u64> {
        if self.inner.is_here() { self.inner.engine.memory_taken() } else { None }
    }

    /// What the validation layer has said so far; empty without one.
    pub fn validation_messages(&self) -> Vec<String> {
        if self.inner.is_here() { self.inner.engine.messages() } else { Vec::new() }
    }
}

/// What a session can compile: a [`Graph`] or a [`Model`](crate::Model). No other types implement it.
pub trait Compile: sealed::Compile {}

impl<T: sealed::Compile> Compile for T {}

pub(crate) mod sealed {
    use olivine_ir::Graph;

    use crate::{CompileOptions, Error, Executable, Session};

    /// How it is compiled.
    pub trait Compile {
        /// Compiles it for a session's device.
        fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<Executable, Error>;

        /// The graphs that a run goes through, for the sizes of the options and 1 where they are open.
        fn graphs_for(&self, session: &Session, options: &CompileOptions) -> Result<Vec<Graph>, Error>;
    }
}

impl sealed::Compile for Graph {
    fn compile_for(&self, session: &Session, options: &CompileOptions) -> Result<Executable, Error> {
        Executable::of_graph(session.clone(), self, options)
    }

    fn graphs_for(&self, _: &Session, options: &CompileOptions) -> Result<Vec<Graph>, Error> {
        let mut graph = self.clone();
        graph.retain_outputs(|name| options.computes(name));
        if let Some(shapes) = options.shapes_of(&graph)? {
            let names = self.inputs().map(|(name, _)| name);
            graph = graph.specialise(&names.zip(shapes).collect::<Vec<_>>())?;
        }
        Ok(vec![graph])
    }
}

impl Inner {
    pub(crate) fn compile(&self, graph: &Graph, keep_stages: bool) -> Result<Compiled, Error> {
        let (no_fusion, widen, narrow) = (self.no_fusion, self.widen, self.narrow);
        let integers = self.device.backend() == Backend::Cpu && !no_fusion;
        let evaluator: Option<&dyn olivine_ir::Evaluate> = Some(&CpuEvaluator);
        let options = Options { evaluator, no_fusion, widen, narrow, integers, keep_stages };
        let begun = web_time::Instant::now();
        let compiled = self.threads.install(|| compile(graph, &options))?;
        let (nodes, fused) = (graph.nodes().len(), compiled.graph.nodes().len());
        tracing::debug!(graph = graph.name(), nodes, fused, took = ?begun.elapsed(), "compiled");
        Ok(compiled)
    }
}

/// Cache folders that sessions were given and could not trust; each is a warning once.
static FOLDERS_NOT_USED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl SessionOptions {
    /// What of the options changes how fast kernels are, in words.
    pub(crate) fn measured_as(&self) -> String {
        let named = [
            (self.checked, " checked"),
            (self.validation, " validated"),
            (self.no_fusion, " unfused"),
            (self.round_every_op, " rounded"),
            (self.browser_dialect, " browser"),
            (self.wgsl, " wgsl"),
            (self.precision == Precision::Fast, " fast"),
            (self.ptx == Ptx::Off, " without ptx"),
            (self.ptx == Ptx::All, " all ptx"),
            (self.without.subgroups, " without subgroups"),
            (self.without.f16, " without f16"),
            (self.without.matrices, " without matrices"),
        ];
        named.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect()
    }

    /// The folder of caches that outlive the process; a folder that cannot be trusted becomes a warning.
    pub(crate) fn folder(&self) -> Option<CacheFolder> {
        let path = match &self.pipeline_cache {
            PipelineCache::User => default_cache_dir()?,
            PipelineCache::Folder(path) => path.clone(),
            PipelineCache::Off => return None,
        };
        let warn = |problem: String| {
            let mut all = FOLDERS_NOT_USED.lock().unwrap_or_else(PoisonError::into_inner);
            if !all.contains(&problem) {
                tracing::warn!("{problem}");
                all.push(problem);
            }
        };
        CacheFolder::open(path).map_err(|untrusted| warn(untrusted.to_string())).ok()
    }

    /// The record to tune a device by, and notes on it.
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    fn tuned(&self, caps: &DeviceCaps, folder: Option<&CacheFolder>) -> (Arc<Record>, Vec<String>) {
        match &self.tuning {
            TuneBy::Measured => {
                let tuning = Tuning::load(caps, folder);
                (Arc::new(tuning.record), tuning.notes)
            }
            TuneBy::Shipped => (Arc::new(olivine_gpu::shipped_record(caps)), Vec::new()),
            TuneBy::Given(record) => (record.clone(), Vec::new()),
        }
    }
}

#[cfg(not(feature = "vulkan"))]
fn open_vulkan(_: &Device, _: &SessionOptions, _: Option<&CacheFolder>) -> Result<Opened, Error> {
    Err(olivine_gpu::Error::Unavailable(without(Backend::Vulkan)).into())
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(_: &Device, _: &SessionOptions, _: Option<&CacheFolder>) -> Result<Opened, Error> {
    Err(olivine_gpu::Error::Unavailable(without(Backend::Wgpu)).into())
}

/// An open device, and notes on the record that it is tuned by.
type Opened = (Box<dyn Engine>, Vec<String>);

#[cfg(feature = "vulkan")]
fn open_vulkan(
    device: &Device,
    options: &SessionOptions,
    folder: Option<&CacheFolder>,
) -> Result<Opened, Error> {
    use olivine_vulkan::{Device as Vulkan, Options, Select};
    let select = match device {
        Device::Chosen(_, Choice::Index(i)) => Select::Index(*i),
        Device::Chosen(_, Choice::Uuid(uuid)) => Select::Uuid(*uuid),
        Device::Chosen(_, Choice::Name(name)) => Select::Name(name.clone()),
        Device::Chosen(_, Choice::Api(api, _)) => {
            let reason = format!("`{}` is an API of wgpu's: `wgpu:{}`", api.name(), api.name());
            return Err(olivine_gpu::Error::Unavailable(reason).into());
        }
        _ => Select::Auto,
    };
    let (mask, validation, memory_limit) = (options.without, options.validation, options.memory_limit);
    let cache_dir = folder.map(|folder| folder.path().to_path_buf());
    let how = Options { mask, validation, memory_limit, cache_dir, ptx: options.ptx, ..Options::default() };
    let driver = Arc::new(Vulkan::open(&select, &how)?);
    let (tuning, notes) = options.tuned(driver.caps(), folder);
    Ok((Box::new(GpuEngine { driver, tuning, checked: options.checked }), notes))
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
fn open_wgpu(
    device: &Device,
    options: &SessionOptions,
    folder: Option<&CacheFolder>,
) -> Result<Opened, Error> {
    let (select, how) = options.for_wgpu(device)?;
    let driver = Arc::new(olivine_wgpu::Device::open(select, how)?);
    let (tuning, notes) = options.tuned(driver.caps(), folder);
    Ok((Box::new(GpuEngine { driver, tuning, checked: options.checked }), notes))
}

#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
fn open_wgpu(_: &Device, _: &SessionOptions, _: Option<&CacheFolder>) -> Result<Opened, Error> {
    Err(Error::CannotBlock { call: "Session::open" })
}

/// Opens the device of a browser.
#[cfg(all(feature = "async", feature = "wgpu", target_arch = "wasm32"))]
async fn open_browser(device: &Device, options: &SessionOptions) -> Result<Opened, Error> {
    let (select, how) = options.for_wgpu(device)?;
    let driver = Arc::new(olivine_wgpu::Device::open_async(select, how).await?);
    let (tuning, notes) = options.tuned(driver.caps(), None);
    Ok((Box::new(GpuEngine { driver, tuning, checked: options.checked }), notes))
}

#[cfg(feature = "wgpu")]
impl SessionOptions {
    /// Which device of wgpu's to open, and how.
    fn for_wgpu(&self, device: &Device) -> Result<(olivine_wgpu::Select, olivine_wgpu::Options), Error> {
        use olivine_wgpu::{Options, Select};
        let select = match device {
            Device::Chosen(_, Choice::Index(i)) => Select::Index(*i),
            Device::Chosen(_, Choice::Name(name)) => Select::Name(name.clone()),
            Device::Chosen(_, Choice::Api(api, number)) => {
                let api = match api {
                    WgpuApi::Vulkan => olivine_wgpu::Api::Vulkan,
                    WgpuApi::Metal => olivine_wgpu::Api::Metal,
                    WgpuApi::Dx12 => olivine_wgpu::Api::Dx12,
                };
                Select::Api(api, *number)
            }
            Device::Chosen(_, Choice::Uuid(_)) => {
                let reason = "wgpu does not tell UUIDs; choose by index or name".to_string();
                return Err(olivine_gpu::Error::Unavailable(reason).into());
            }
            _ => Select::Auto,
        };
        let how = Options { mask: self.without, plain_dialect: self.browser_dialect, wgsl: self.wgsl };
        Ok((select, how))
    }
}
