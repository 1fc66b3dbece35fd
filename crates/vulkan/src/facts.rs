//! What a physical device says about itself, asked once.

use std::ffi::{CStr, CString, c_char};

use ash::{amd, arm, ext, khr, nv, vk};
use olivine_files::without_stray_lines;
use olivine_kernel::{Elem, MatrixShape};
use olivine_program::{DeviceKind, Error};

use crate::error::failed;
use crate::instance::Instance;

/// Features that are used where they are there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Features {
    pub(crate) f16: bool,
    pub(crate) f64: bool,
    pub(crate) int8: bool,
    pub(crate) int16: bool,
    pub(crate) packed_dot: bool,
    pub(crate) subgroup_extended_types: bool,
    pub(crate) subgroup_size_control: bool,
    pub(crate) full_subgroups: bool,
    pub(crate) sparse: bool,
    pub(crate) robust: bool,
    pub(crate) matrices: bool,
    pub(crate) bf16_matrices: bool,
    pub(crate) executable_statistics: bool,
}

/// How floats behave in shaders, where it can be asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Floats {
    /// Rounding to nearest even: 16, 32 and 64 bits.
    pub(crate) rte: [bool; 3],
    /// Signed zeros, infinities and NaN are kept.
    pub(crate) preserve: [bool; 3],
    /// Subnormal numbers are kept.
    pub(crate) denormals: [bool; 3],
}

/// Sizes of subgroups and what they can do in compute shaders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subgroups {
    pub(crate) size: u32,
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// A pipeline may ask for one of the sizes.
    pub(crate) choosable: bool,
    /// Arithmetic, votes, shuffles.
    pub(crate) complete: bool,
    /// Subgroups of a workgroup.
    pub(crate) most: u32,
}

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`, which is newer than the bindings.
#[repr(C)]
pub(crate) struct Bf16Features {
    s_type: vk::StructureType,
    p_next: *mut std::ffi::c_void,
    pub(crate) types: vk::Bool32,
    pub(crate) dot_product: vk::Bool32,
    pub(crate) matrices: vk::Bool32,
}

impl Bf16Features {
    pub(crate) const EXTENSION: &CStr = c"VK_KHR_shader_bfloat16";

    pub(crate) fn new(on: bool) -> Self {
        let (s_type, on) = (vk::StructureType::from_raw(1_000_141_000), u32::from(on));
        Bf16Features { s_type, p_next: std::ptr::null_mut(), types: on, dot_product: 0, matrices: on }
    }
}

// Safety: laid out as the specification has it, which lets it extend both.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bf16Features {}
// Safety: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bf16Features {}

/// `VK_COMPONENT_TYPE_BFLOAT16_KHR`.
const BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);

/// Everything asked of a physical device.
pub(crate) struct Facts {
    pub(crate) handle: vk::PhysicalDevice,
    pub(crate) properties: vk::PhysicalDeviceProperties,
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) max_allocation: u64,
    pub(crate) max_buffer: u64,
    /// Streaming multiprocessors, compute units or shader cores, if it says.
    pub(crate) processors: Option<u32>,
    pub(crate) subgroups: Subgroups,
    pub(crate) features: Features,
    pub(crate) floats: Floats,
    pub(crate) extensions: Vec<CString>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) queues: Vec<vk::QueueFamilyProperties>,
    pub(crate) matrices: Vec<MatrixShape>,
    /// What is needed and not there.
    pub(crate) missing: Vec<String>,
}

/// The fixed-size text of Vulkan's structures.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A version as people write it.
pub(crate) fn version(v: u32) -> String {
    format!("{}.{}.{}", vk::api_version_major(v), vk::api_version_minor(v), vk::api_version_patch(v))
}

/// All physical devices.
pub(crate) fn all(instance: &Instance) -> Result<Vec<Facts>, Error> {
    // Safety: the instance is alive.
    let handles = without_stray_lines(|| unsafe { instance.raw.enumerate_physical_devices() });
    let handles = match handles {
        Ok(handles) => handles,
        // Some loaders answer so when every driver failed to start.
        Err(vk::Result::ERROR_INITIALIZATION_FAILED) => Vec::new(),
        Err(e) => return Err(failed("vkEnumeratePhysicalDevices")(e)),
    };
    Ok(handles.into_iter().map(|handle| Facts::ask(instance, handle)).collect())
}

impl Facts {
    fn ask(instance: &Instance, handle: vk::PhysicalDevice) -> Self {
        let raw = &instance.raw;
        // Safety: plain queries of a physical device of a live instance; one that fails counts as empty.
        let (properties, memory, queues, extensions) = unsafe {
            (
                raw.get_physical_device_properties(handle),
                raw.get_physical_device_memory_properties(handle),
                raw.get_physical_device_queue_family_properties(handle),
                raw.enumerate_device_extension_properties(handle).unwrap_or_default(),
            )
        };
        let extensions =
            extensions.iter().filter_map(|e| e.extension_name_as_c_str().ok()).map(CStr::to_owned).collect();
        let mut facts = Facts {
            handle,
            name: text(&properties.device_name),
            driver: version(properties.driver_version),
            properties,
            uuid: properties.pipeline_cache_uuid,
            max_allocation: 0,
            max_buffer: 0,
            processors: None,
            subgroups: Subgroups::default(),
            features: Features::default(),
            floats: Floats::default(),
            extensions,
            memory,
            queues,
            matrices: Vec::new(),
            missing: Vec::new(),
        };
        if !facts.queues.iter().any(|q| q.queue_flags.contains(vk::QueueFlags::COMPUTE)) {
            facts.missing.push("a compute queue".into());
        }
        if properties.api_version < vk::API_VERSION_1_3 {
            facts.missing.push(format!("Vulkan 1.3 (it has {})", version(properties.api_version)));
        } else {
            facts.ask_properties(instance);
            facts.ask_processors(instance);
            facts.ask_features(instance);
            facts.ask_matrices(instance);
        }
        facts
    }

    /// Whether the device has an extension.
    pub(crate) fn has(&self, name: &CStr) -> bool {
        self.extensions.iter().any(|e| e.as_c_str() == name)
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> DeviceKind {
        match self.properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        }
    }

    fn ask_properties(&mut self, instance: &Instance) {
        let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut p12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut p13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut p11)
            .push_next(&mut p12)
            .push_next(&mut p13);
        // Safety: the chain lives on this stack, and a 1.3 device knows each of its structures.
        unsafe { instance.raw.get_physical_device_properties2(self.handle, &mut all) };
        self.uuid = p11.device_uuid;
        self.driver = format!("{} {}", text(&p12.driver_name), text(&p12.driver_info)).trim_end().to_owned();
        self.max_allocation = p11.max_memory_allocation_size;
        self.max_buffer = p13.max_buffer_size;
        let needed = vk::SubgroupFeatureFlags::BASIC
            | vk::SubgroupFeatureFlags::VOTE
            | vk::SubgroupFeatureFlags::ARITHMETIC
            | vk::SubgroupFeatureFlags::SHUFFLE;
        self.subgroups = Subgroups {
            size: p11.subgroup_size,
            min: p13.min_subgroup_size,
            max: p13.max_subgroup_size,
            choosable: p13.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE),
            complete: p11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
                && p11.subgroup_supported_operations.contains(needed),
            most: p13.max_compute_workgroup_subgroups,
        };
        let on = |flags: [vk::Bool32; 3]| flags.map(|f| f != 0);
        self.floats = Floats {
            rte: on([
                p12.shader_rounding_mode_rte_float16,
                p12.shader_rounding_mode_rte_float32,
                p12.shader_rounding_mode_rte_float64,
            ]),
            preserve: on([
                p12.shader_signed_zero_inf_nan_preserve_float16,
                p12.shader_signed_zero_inf_nan_preserve_float32,
                p12.shader_signed_zero_inf_nan_preserve_float64,
            ]),
            denormals: on([
                p12.shader_denorm_preserve_float16,
                p12.shader_denorm_preserve_float32,
                p12.shader_denorm_preserve_float64,
            ]),
        };
        together(&mut self.floats.rte, p12.rounding_mode_independence);
        together(&mut self.floats.denormals, p12.denorm_behavior_independence);
    }

    /// Each vendor has a structure of its own.
    fn ask_processors(&mut self, instance: &Instance) {
        let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut arm = vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM::default();
        let mut all = vk::PhysicalDeviceProperties2::default();
        if self.has(nv::shader_sm_builtins::NAME) {
            all = all.push_next(&mut nvidia);
        }
        if self.has(amd::shader_core_properties::NAME) {
            all = all.push_next(&mut amd);
        }
        if self.has(arm::shader_core_builtins::NAME) {
            all = all.push_next(&mut arm);
        }
        // Safety: the chain lives on this stack, and the device knows each of its structures.
        unsafe { instance.raw.get_physical_device_properties2(self.handle, &mut all) };
        let units =
            amd.shader_engine_count * amd.shader_arrays_per_engine_count * amd.compute_units_per_shader_array;
        let counts = [nvidia.shader_sm_count, units, arm.shader_core_count];
        self.processors = counts.into_iter().find(|count| *count > 0);
    }

    fn ask_features(&mut self, instance: &Instance) {
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut bf16 = Bf16Features::new(false);
        let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
        let mut all = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut f11)
            .push_next(&mut f12)
            .push_next(&mut f13);
        if self.has(khr::cooperative_matrix::NAME) {
            all = all.push_next(&mut matrices);
            if self.has(Bf16Features::EXTENSION) {
                all = all.push_next(&mut bf16);
            }
        }
        if self.has(khr::pipeline_executable_properties::NAME) {
            all = all.push_next(&mut statistics);
        }
        // Safety: the chain lives on this stack, and the device knows each of its structures.
        unsafe { instance.raw.get_physical_device_features2(self.handle, &mut all) };
        let f = all.features;
        let needed = [
            ("shaderInt64", f.shader_int64),
            ("storageBuffer16BitAccess", f11.storage_buffer16_bit_access),
            ("storageBuffer8BitAccess", f12.storage_buffer8_bit_access),
            ("bufferDeviceAddress", f12.buffer_device_address),
            ("timelineSemaphore", f12.timeline_semaphore),
            ("vulkanMemoryModel", f12.vulkan_memory_model),
            ("vulkanMemoryModelDeviceScope", f12.vulkan_memory_model_device_scope),
            ("synchronization2", f13.synchronization2),
            ("maintenance4", f13.maintenance4),
        ];
        self.missing
            .extend(needed.iter().filter(|(_, on)| *on == 0).map(|(name, _)| format!("feature {name}")));
        self.features = Features {
            f16: f12.shader_float16 != 0,
            f64: f.shader_float64 != 0,
            int8: f12.shader_int8 != 0,
            int16: f.shader_int16 != 0,
            packed_dot: f13.shader_integer_dot_product != 0,
            subgroup_extended_types: f12.shader_subgroup_extended_types != 0,
            subgroup_size_control: f13.subgroup_size_control != 0,
            full_subgroups: f13.compute_full_subgroups != 0,
            sparse: f.sparse_binding != 0,
            robust: f.robust_buffer_access != 0,
            matrices: matrices.cooperative_matrix != 0,
            bf16_matrices: bf16.types != 0 && bf16.matrices != 0,
            executable_statistics: statistics.pipeline_executable_info != 0,
        };
    }

    fn ask_matrices(&mut self, instance: &Instance) {
        if !self.features.matrices {
            return;
        }
        let query = khr::cooperative_matrix::Instance::new(instance.entry, &instance.raw);
        // Safety: the device has the extension.
        let shapes = unsafe { query.get_physical_device_cooperative_matrix_properties(self.handle) };
        for s in shapes.unwrap_or_default() {
            let plain = s.scope == vk::ScopeKHR::SUBGROUP
                && s.saturating_accumulation == 0
                && s.a_type == s.b_type
                && s.c_type == s.result_type;
            if let (true, Some(operand), Some(accumulator)) = (plain, elem(s.a_type), elem(s.c_type)) {
                let shape = MatrixShape { operand, accumulator, m: s.m_size, n: s.n_size, k: s.k_size };
                if !self.matrices.contains(&shape) {
                    self.matrices.push(shape);
                }
            }
        }
    }

    /// Free bytes of every heap, if the driver reports it.
    pub(crate) fn free(&self, instance: &Instance) -> Option<Vec<u64>> {
        if !self.has(ext::memory_budget::NAME) {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // Safety: the chain lives on this stack, and the device has the extension.
        unsafe { instance.raw.get_physical_device_memory_properties2(self.handle, &mut all) };
        let pairs = budget.heap_budget.iter().zip(&budget.heap_usage);
        Some(pairs.map(|(all, used)| all.saturating_sub(*used)).collect())
    }
}

/// Modes of different widths may differ only where the device says that they are independent; what cannot be asked
/// for together is not asked for.
fn together(modes: &mut [bool; 3], independence: vk::ShaderFloatControlsIndependence) {
    let [half, _, double] = *modes;
    if independence == vk::ShaderFloatControlsIndependence::TYPE_32_ONLY && half != double {
        (modes[0], modes[2]) = (false, false);
    }
    if independence == vk::ShaderFloatControlsIndependence::NONE && modes.contains(&false) {
        *modes = [false; 3];
    }
}

fn elem(ty: vk::ComponentTypeKHR) -> Option<Elem> {
    Some(match ty {
        vk::ComponentTypeKHR::FLOAT16 => Elem::F16,
        BFLOAT16 => Elem::BF16,
        vk::ComponentTypeKHR::FLOAT32 => Elem::F32,
        vk::ComponentTypeKHR::SINT8 => Elem::I8,
        vk::ComponentTypeKHR::UINT8 => Elem::U8,
        vk::ComponentTypeKHR::SINT32 => Elem::I32,
        vk::ComponentTypeKHR::UINT32 => Elem::U32,
        _ => return None,
    })
}
