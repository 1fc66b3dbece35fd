//! What the Vulkan device under an adapter says of itself and wgpu does not pass on.

use ash::{khr, vk};
use olivine_kernel::spirv::FloatControls;

use crate::device::SpirvFacts;

/// What kernels printed as SPIR-V may count on; `None` where the adapter is not of Vulkan, or of its first version,
/// which has no SPIR-V 1.3.
#[allow(unsafe_code, reason = "queries of the device under wgpu")]
pub(crate) fn facts(adapter: &wgpu::Adapter) -> Option<SpirvFacts> {
    if !adapter.features().contains(wgpu::Features::PASSTHROUGH_SHADERS) {
        return None;
    }
    // Safety: the adapter is only asked, and not kept beyond this function.
    let raw = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = raw.shared_instance();
    let known = raw.physical_device_capabilities();
    let version = known.properties().api_version.min(instance.instance_api_version());
    if version < vk::API_VERSION_1_1 {
        return None;
    }
    let (instance, device) = (instance.raw_instance(), raw.raw_physical_device());
    let mut facts = SpirvFacts::default();
    // Before 1.2 they are an extension that wgpu does not enable.
    if version >= vk::API_VERSION_1_2 {
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut floats);
        // Safety: the chain lives on this stack, and a 1.2 device knows each of its structures.
        unsafe { instance.get_physical_device_properties2(device, &mut all) };
        [facts.float16, facts.float32, facts.float64] = controls(&floats);
    }
    let name = khr::shader_integer_dot_product::NAME;
    if version >= vk::API_VERSION_1_3 || known.supports_extension(name) {
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut dot);
        // Safety: the chain lives on this stack, and the device knows each of its structures.
        unsafe { instance.get_physical_device_features2(device, &mut all) };
        facts.packed_dot = dot.shader_integer_dot_product != 0;
    }
    Some(facts)
}

/// The controls of 16, 32 and 64 bits that may be asked for together.
fn controls(floats: &vk::PhysicalDeviceFloatControlsProperties<'_>) -> [FloatControls; 3] {
    let rounding = together(
        [
            floats.shader_rounding_mode_rte_float16,
            floats.shader_rounding_mode_rte_float32,
            floats.shader_rounding_mode_rte_float64,
        ],
        floats.rounding_mode_independence,
    );
    let denormals = together(
        [
            floats.shader_denorm_preserve_float16,
            floats.shader_denorm_preserve_float32,
            floats.shader_denorm_preserve_float64,
        ],
        floats.denorm_behavior_independence,
    );
    let preserve = [
        floats.shader_signed_zero_inf_nan_preserve_float16,
        floats.shader_signed_zero_inf_nan_preserve_float32,
        floats.shader_signed_zero_inf_nan_preserve_float64,
    ];
    [0, 1, 2].map(|i| FloatControls {
        rounding_rte: rounding[i],
        preserve_nan: preserve[i] != 0,
        denorm_preserve: denormals[i],
    })
}

/// Modes of different widths may differ only where the device says that they are independent; what cannot be asked
/// for together is not asked for.
fn together(modes: [vk::Bool32; 3], independence: vk::ShaderFloatControlsIndependence) -> [bool; 3] {
    use vk::ShaderFloatControlsIndependence as Independence;
    let [half, single, double] = modes.map(|m| m != 0);
    match independence {
        Independence::TYPE_32_ONLY => [half && double, single, half && double],
        Independence::NONE => [half && single && double; 3],
        _ => [half, single, double],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_cannot_differ_are_asked_for_together_or_not_at_all() {
        use vk::ShaderFloatControlsIndependence as Independence;
        assert_eq!(together([1, 1, 0], Independence::ALL), [true, true, false]);
        assert_eq!(together([1, 1, 0], Independence::TYPE_32_ONLY), [false, true, false]);
        assert_eq!(together([1, 0, 1], Independence::TYPE_32_ONLY), [true, false, true]);
        assert_eq!(together([1, 1, 0], Independence::NONE), [false; 3]);
        assert_eq!(together([1, 1, 1], Independence::NONE), [true; 3]);
    }
}
