//! Adapters: which there are, which one to take, and what it can do.

use std::sync::Arc;

use olivine_kernel::spirv::{self, FloatControls, SpirvOptions};
use olivine_kernel::wgsl::Dialect;
use olivine_kernel::{Interface, MatrixSupport, Target};
use olivine_program::{Addressing, DeviceCaps, DeviceKind, Error, Mask, SharedPipelines, device_order};

use crate::error::Faults;
use crate::matrices::{matrices, subgroup_size};
use crate::memory::{GRAIN, Staging};
use crate::patch::Patch;
use crate::pipeline::Pipeline;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
use crate::vulkan::facts as spirv_facts;

/// An adapter that wgpu offers.
#[derive(Clone, Debug)]
pub struct AdapterReport {
    /// Its number for [`Select::Index`].
    pub index: usize,
    /// The API under wgpu.
    pub api: Api,
    /// What a device opened on it with default options can do; with it name, driver and kind.
    pub caps: DeviceCaps,
    /// Whether run-time numbers travel with the commands instead of in a buffer.
    pub immediates: bool,
    /// Whether dispatches can be timed.
    pub timestamps: bool,
}

/// An API that wgpu drives devices by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// Vulkan.
    Vulkan,
    /// Metal, on Apple's systems.
    Metal,
    /// Direct3D 12, on Windows.
    Dx12,
    /// A browser's WebGPU.
    WebGpu,
    /// One that none of our builds have.
    Other,
}

impl Api {
    /// The API's name.
    pub fn name(self) -> &'static str {
        match self {
            Api::Vulkan => "Vulkan",
            Api::Metal => "Metal",
            Api::Dx12 => "Direct3D 12",
            Api::WebGpu => "WebGPU",
            Api::Other => "another API",
        }
    }
}

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// The first in [`device_order`]; of one device by several APIs, Vulkan.
    #[default]
    Auto,
    /// By number in [`devices`].
    Index(usize),
    /// Of one API, by number among its adapters; the first in [`device_order`] where no number is given.
    Api(Api, Option<usize>),
    /// The first whose name contains this, whatever its case.
    Name(String),
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Features not to use.
    pub mask: Mask,
    /// Use only what browsers have: no subgroups, no f64, i64 as pairs of words, run-time numbers in a uniform buffer. In a browser
    /// this is always so.
    pub plain_dialect: bool,
    /// Print kernels as WGSL over Vulkan too.
    pub wgsl: bool,
}

/// What kernels are printed as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// SPIR-V with bindings, unchecked by these options.
    Spirv(SpirvOptions),
    Wgsl(Dialect),
}

/// A device opened through wgpu.
pub struct Device {
    pub(crate) raw: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) caps: DeviceCaps,
    pub(crate) features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
    pub(crate) language: Language,
    pub(crate) faults: Arc<Faults>,
    pub(crate) pipelines: SharedPipelines<Pipeline>,
    pub(crate) staging: Staging,
    pub(crate) patch: Patch,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("caps", &self.caps)
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

/// The adapters of this machine; none where there is no driver.
#[cfg(not(target_arch = "wasm32"))]
pub fn devices() -> Vec<AdapterReport> {
    crate::error::block_on(devices_async())
}

/// The adapters of this machine, or the one that a browser offers.
pub async fn devices_async() -> Vec<AdapterReport> {
    let Ok((instance, adapters)) = adapters().await else { return Vec::new() };
    let report = |(index, adapter): (usize, &wgpu::Adapter)| {
        let plan = Plan::new(&instance, adapter, Options::default());
        AdapterReport {
            index,
            api: api(adapter.get_info().backend),
            immediates: plan.features.contains(wgpu::Features::IMMEDIATES),
            timestamps: plan.features.contains(wgpu::Features::TIMESTAMP_QUERY),
            caps: plan.caps,
        }
    };
    adapters.iter().enumerate().map(report).collect()
}

impl Device {
    /// Opens a device.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(select: Select, options: Options) -> Result<Self, Error> {
        let (mut device, is_assumed) = crate::error::block_on(Self::open_planned(select, options))?;
        if is_assumed && !olivine_program::ask_subgroups(&device) {
            let DeviceCaps { name, target, .. } = &device.caps;
            tracing::warn!("{name}: subgroups are not used: their size is not {:?}", target.subgroup);
            device.caps = device.caps.without(Mask { subgroups: true, ..Mask::default() });
        }
        // WGSL cannot tell which elements of a matrix an invocation holds.
        if device.takes_spirv() {
            // As if they were known: the kernel that asks is held against what the device has.
            device.caps.target.fragments = Some(olivine_kernel::Fragments::Quads);
            device.caps.target.fragments = olivine_program::ask_fragments(&device);
        }
        Ok(device)
    }

    /// Opens a device without blocking. What it would have to be asked for, which blocks, is not used.
    pub async fn open_async(select: Select, options: Options) -> Result<Self, Error> {
        let (mut device, is_assumed) = Self::open_planned(select, options).await?;
        if is_assumed {
            device.caps = device.caps.without(Mask { subgroups: true, ..Mask::default() });
        }
        Ok(device)
    }

    /// The same, and whether the size of its subgroups is an assumption.
    async fn open_planned(select: Select, options: Options) -> Result<(Self, bool), Error> {
        let (instance, adapters) = adapters().await?;
        let adapter = choose(&adapters, &select)?;
        let Plan { caps, features, limits, language, is_assumed } = Plan::new(&instance, adapter, options);
        let wanted = wgpu::DeviceDescriptor {
            label: Some("olivine"),
            required_features: features,
            required_limits: limits.clone(),
            experimental_features: experimental(features),
            ..Default::default()
        };
        let (raw, queue) = adapter
            .request_device(&wanted)
            .await
            .map_err(|e| Error::Unavailable(format!("{} cannot be opened: {e}", caps.name)))?;
        let faults = Faults::of(&raw);
        let device = Device {
            raw,
            queue,
            caps,
            features,
            limits,
            language,
            faults,
            pipelines: SharedPipelines::default(),
            staging: Staging::default(),
            patch: Patch::default(),
        };
        Ok((device, is_assumed))
    }

    /// What the device can do (features masked off are not in it).
    pub fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// Whether kernels are handed to the device as SPIR-V; otherwise as WGSL.
    pub fn takes_spirv(&self) -> bool {
        matches!(self.language, Language::Spirv(_))
    }

    /// Whether dispatches can be timed.
    pub fn can_time(&self) -> bool {
        self.features.contains(wgpu::Features::TIMESTAMP_QUERY)
    }
}

/// Leave to use features that wgpu calls experimental, where they are asked for.
#[allow(unsafe_code, reason = "wgpu wants the word said")]
fn experimental(features: wgpu::Features) -> wgpu::ExperimentalFeatures {
    if !features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        return wgpu::ExperimentalFeatures::disabled();
    }
    // Safety: matrices are used by our own validated kernels alone, after a trial of each shape. wgpu passes them on as
    // they are, or by naga, whose back ends have every operation that kernels for WGSL may use.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

async fn adapters() -> Result<(wgpu::Instance, Vec<wgpu::Adapter>), Error> {
    let backends = wgpu::Instance::enabled_backend_features() & !wgpu::Backends::NOOP;
    if backends.is_empty() {
        return Err(Error::Unavailable("wgpu has no API to use on this platform".into()));
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    // Software devices and layered ones that never went through conformance tests still run; our own tests are the
    // judge. Nothing else: debug flags follow the build profile by default and slow every call down.
    descriptor.flags = wgpu::InstanceFlags::ALLOW_UNDERLYING_NONCOMPLIANT_ADAPTER;
    let instance = olivine_files::without_stray_lines(|| wgpu::Instance::new(descriptor));
    #[cfg(target_arch = "wasm32")]
    let mut adapters = instance.enumerate_adapters(backends).await;
    #[cfg(not(target_arch = "wasm32"))]
    let mut adapters =
        olivine_files::without_stray_lines(|| crate::error::block_on(instance.enumerate_adapters(backends)));
    adapters.retain(|a| {
        let compute = wgpu::DownlevelFlags::COMPUTE_SHADERS;
        a.get_info().backend != wgpu::Backend::Noop && a.get_downlevel_capabilities().flags.contains(compute)
    });
    Ok((instance, adapters))
}

fn choose<'a>(adapters: &'a [wgpu::Adapter], select: &Select) -> Result<&'a wgpu::Adapter, Error> {
    let name = |a: &wgpu::Adapter| {
        let info = a.get_info();
        format!("{} ({})", info.name, api(info.backend).name())
    };
    let names = || adapters.iter().map(name).collect::<Vec<_>>().join(", ");
    // wgpu does not say how much memory there is. One device by several APIs: Vulkan takes our SPIR-V as it is.
    let order = |a: &&wgpu::Adapter| {
        let info = a.get_info();
        (device_order(kind(info.device_type), u64::MAX), api(info.backend) != Api::Vulkan)
    };
    let found = match select {
        _ if adapters.is_empty() && cfg!(target_arch = "wasm32") => {
            return Err(Error::Unavailable("the browser offers no WebGPU device".into()));
        }
        _ if adapters.is_empty() => {
            return Err(Error::Unavailable(format!(
                "wgpu found no device ({}): is a driver installed?",
                wgpu::Instance::enabled_backend_features()
                    .iter_names()
                    .map(|(name, _)| name)
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        }
        Select::Auto => adapters.iter().min_by_key(order),
        Select::Index(i) => adapters.get(*i),
        Select::Api(wanted, number) => {
            let mut of_api = adapters.iter().filter(|a| api(a.get_info().backend) == *wanted);
            match number {
                Some(i) => of_api.nth(*i),
                None => of_api.min_by_key(order),
            }
        }
        Select::Name(name) => {
            let name = name.to_lowercase();
            adapters.iter().find(|a| a.get_info().name.to_lowercase().contains(&name))
        }
    };
    found.ok_or_else(|| {
        let asked = match select {
            Select::Index(i) => format!("number {i}"),
            Select::Name(name) => format!("named `{name}`"),
            Select::Api(api, Some(i)) => format!("number {i} of {}", api.name()),
            Select::Api(api, None) => format!("of {}", api.name()),
            Select::Auto => String::new(),
        };
        Error::Unavailable(format!("wgpu found no device {asked}; there are: {}", names()))
    })
}

fn kind(kind: wgpu::DeviceType) -> DeviceKind {
    match kind {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
        wgpu::DeviceType::Cpu => DeviceKind::Cpu,
        wgpu::DeviceType::Other => DeviceKind::Other,
    }
}

fn api(backend: wgpu::Backend) -> Api {
    match backend {
        wgpu::Backend::Vulkan => Api::Vulkan,
        wgpu::Backend::Metal => Api::Metal,
        wgpu::Backend::Dx12 => Api::Dx12,
        wgpu::Backend::BrowserWebGpu => Api::WebGpu,
        wgpu::Backend::Gl | wgpu::Backend::Noop => Api::Other,
    }
}

/// What kernels printed as SPIR-V may count on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpirvFacts {
    pub(crate) float16: FloatControls,
    pub(crate) float32: FloatControls,
    pub(crate) float64: FloatControls,
    /// Packed dot products are enabled; wgpu asks for them wherever they are.
    pub(crate) packed_dot: bool,
}

/// Platforms that wgpu is not built with Vulkan for.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
fn spirv_facts(_: &wgpu::Adapter) -> Option<SpirvFacts> {
    None
}

/// What to ask of an adapter, and what the device then can do.
struct Plan {
    caps: DeviceCaps,
    features: wgpu::Features,
    limits: wgpu::Limits,
    language: Language,
    /// Whether the size of subgroups is to be confirmed by the device.
    is_assumed: bool,
}

impl Plan {
    fn new(instance: &wgpu::Instance, adapter: &wgpu::Adapter, options: Options) -> Self {
        use wgpu::Features as F;
        let info = adapter.get_info();
        let browser = cfg!(target_arch = "wasm32");
        let limits = adapter.limits();
        let immediates = adapter.features().contains(F::IMMEDIATES)
            && limits.max_immediate_size >= Interface::MAX_IMMEDIATE_BYTES;
        let plain = options.plain_dialect || browser || !immediates;
        let mut wanted = F::SHADER_F16 | F::TIMESTAMP_QUERY;
        if !plain {
            wanted |= F::SHADER_F64 | F::SHADER_INT64 | F::SUBGROUP | F::SUBGROUP_BARRIER | F::IMMEDIATES;
            wanted |= F::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        let facts = if plain || options.wgsl { None } else { spirv_facts(adapter) };
        if facts.is_some() {
            // Kernels hold no 16-bit integers in registers; the feature brings 16-bit accesses to buffers.
            wanted |= F::PASSTHROUGH_SHADERS | F::SHADER_I16;
        }
        // A cooperative matrix belongs to a subgroup.
        if options.mask.matrices || options.mask.subgroups {
            wanted.remove(F::EXPERIMENTAL_COOPERATIVE_MATRIX);
        }
        // What is masked off is not asked for either, so that wgpu refuses a kernel that uses it all the same.
        if options.mask.subgroups {
            wanted.remove(F::SUBGROUP | F::SUBGROUP_BARRIER);
        }
        if options.mask.f16 {
            wanted.remove(F::SHADER_F16);
        }
        let features = adapter.features() & wanted;

        let subgroup = subgroup_size(&info).filter(|_| features.contains(F::SUBGROUP | F::SUBGROUP_BARRIER));
        let matrix_support = if facts.is_some() { MatrixSupport::Full } else { MatrixSupport::Basic };
        let packed = wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct;
        let packed_dot = match &facts {
            Some(facts) => facts.packed_dot,
            None => instance.wgsl_language_features().contains(packed),
        };
        let target = Target {
            subgroup: subgroup.map(|(size, _)| size),
            f16: features.contains(F::SHADER_F16),
            exact_f16: features.contains(F::SHADER_F16)
                && facts.as_ref().is_some_and(|f| f.float16.rounding_rte && f.float16.denorm_preserve),
            f64: features.contains(F::SHADER_F64),
            i64: features.contains(F::SHADER_INT64),
            i64_pairs: plain,
            packed_dot,
            matrices: match features.contains(F::EXPERIMENTAL_COOPERATIVE_MATRIX) && subgroup.is_some() {
                true => matrices(&adapter.cooperative_matrix_properties(), matrix_support),
                false => Vec::new(),
            },
            matrix_support,
            fragments: None,
            warpgroups: false,
            int8_warpgroups: false,
            // WebGPU orders nothing but atomics between workgroups.
            device_fences: false,
            max_invocations: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
            shared_bytes: limits.max_compute_workgroup_storage_size,
        };
        // One binding is kept for the report of checked kernels.
        let bindings = limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group);
        let addressing = Addressing::Bindings {
            alignment: limits.min_storage_buffer_offset_alignment,
            max_bytes: limits.max_storage_buffer_binding_size & !(GRAIN - 1),
            max_count: bindings.saturating_sub(1),
            overlap: !(browser || options.plain_dialect),
        };
        let driver = [info.driver.as_str(), info.driver_info.as_str()];
        let caps = DeviceCaps {
            name: if info.name.is_empty() { api(info.backend).name().to_string() } else { info.name.clone() },
            driver: driver.iter().filter(|s| !s.is_empty()).copied().collect::<Vec<_>>().join(" "),
            kind: kind(info.device_type),
            target,
            addressing,
            max_groups: [limits.max_compute_workgroups_per_dimension; 3],
            max_buffer_bytes: limits.max_buffer_size & !(GRAIN - 1),
            // wgpu does not report it; the device's own refusal is the limit.
            memory_bytes: u64::MAX,
            processors: None,
            // WGSL has no word for it, and lets an implementation flush.
            keeps_denormals: facts.as_ref().is_some_and(|f| f.float32.denorm_preserve),
            ptx: None,
        };
        let caps = caps.without(options.mask);
        let language = match facts {
            Some(facts) => Language::Spirv(SpirvOptions {
                addressing: spirv::Addressing::Bindings {
                    immediate_bytes: Interface::MAX_IMMEDIATE_BYTES,
                    storage16: features.intersects(F::SHADER_F16 | F::SHADER_I16),
                },
                checked: false,
                f16_registers: caps.target.f16,
                float16: facts.float16,
                float32: facts.float32,
                float64: facts.float64,
            }),
            None if plain => Language::Wgsl(Dialect::Plain),
            None => Language::Wgsl(Dialect::Native),
        };
        let is_assumed = subgroup.is_some_and(|(_, is_assumed)| is_assumed);
        Plan { caps, features, limits, language, is_assumed }
    }
}
