//! Vulkan's results as errors.

use ash::vk;
use olivine_program::Error;

/// What to install where no Vulkan is found.
pub(crate) const INSTALL: &str = "install the GPU's driver and the Vulkan loader (on Debian and Ubuntu: apt install \
                                  libvulkan1, and mesa-vulkan-drivers for Intel, AMD and the software device)";

/// The error of a call.
pub(crate) fn failed(call: &'static str) -> impl Fn(vk::Result) -> Error {
    move |result| match result {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost { during: None },
        other => Error::Driver { call, problem: format!("{other}") },
    }
}

/// Whether the driver says that memory, or the number of allocations, is exhausted.
pub(crate) fn is_memory(result: vk::Result) -> bool {
    matches!(
        result,
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_TOO_MANY_OBJECTS
            | vk::Result::ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS
    )
}

/// A caller's mistake, found before the driver would.
pub(crate) fn refused(call: &'static str, problem: impl Into<String>) -> Error {
    Error::Driver { call, problem: problem.into() }
}
