//! Kernels as PTX, which NVIDIA's drivers take by `VK_NVX_binary_import`: those that have no other form, or all.
//!
//! ```text
//!   open: entry points ── which generation is it? ── known kernels, with a bounded wait ── used, or left with a warning
//!   a kernel: SPIR-V as ever, and where all are asked for, beside it a module of PTX where the kernel can be one
//! ```
//! What became of the trial is kept on disk (outcomes.rs). Kernels whose number of workgroups is in memory, checked ones, users' modules, and those that pass each other the words of
//! cooperative matrices, whose order is the driver's secret, are launched as SPIR-V.

mod outcomes;
#[cfg(test)]
mod tests;
mod trial;
mod warpgroup_trial;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use ash::nvx::binary_import;
use ash::vk;
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::{Access, Builder, Elem, Expr, Kernel, Target};
use olivine_program::Error;

use crate::context::Context;
use crate::error::failed;

pub(crate) use outcomes::{Known, Outcomes};
pub(crate) use trial::{Outcome, run as run_trial};
pub(crate) use warpgroup_trial::{FLOATS, INTEGERS, run as run_warpgroup_trial};

/// The extension's entry points, all of them there.
pub(crate) type EntryPoints = binary_import::DeviceFn;

/// Generations that kernels are printed for, the newest first.
const GENERATIONS: [Capability; 4] =
    [Capability::BLACKWELL, Capability::HOPPER, Capability::ADA, Capability::AMPERE];

/// The entry points of a device on which the extension was enabled; none if one is missing, which the bindings would
/// answer with a panic.
pub(crate) fn entry_points(instance: &ash::Instance, device: &ash::Device) -> Option<EntryPoints> {
    let names = [
        c"vkCreateCuModuleNVX",
        c"vkCreateCuFunctionNVX",
        c"vkDestroyCuModuleNVX",
        c"vkDestroyCuFunctionNVX",
        c"vkCmdCuLaunchKernelNVX",
    ];
    // Safety: the device is of this instance and alive.
    let there =
        |name: &std::ffi::CStr| unsafe { instance.get_device_proc_addr(device.handle(), name.as_ptr()) };
    let all = names.iter().all(|name| there(name).is_some());
    all.then(|| binary_import::Device::new(instance, device).fp().clone())
}

/// A kernel that the driver assembled.
pub(crate) struct Function {
    context: Arc<Context>,
    module: vk::CuModuleNVX,
    raw: vk::CuFunctionNVX,
    /// Where its parameters are in the block of arguments.
    offsets: Vec<u32>,
    threads: u32,
}

/// The newest generation whose PTX the device takes: Vulkan does not say which it is. A driver takes what is as old as its
/// device or older.
pub(crate) fn capability(context: &Arc<Context>) -> Option<Capability> {
    let k = Builder::new("generation", 32, &Target::plain());
    k.arg("y", Elem::U32, Access::Write).store(k.local_index(), k.u32(1));
    let kernel = k.finish().ok()?;
    GENERATIONS.into_iter().find(|capability| Function::new(context, &kernel, *capability).is_ok())
}

/// A kernel as PTX.
pub(crate) fn text(kernel: &Kernel, capability: Capability) -> Result<String, Error> {
    ptx::print(kernel, &PtxOptions { capability })
        .map_err(|source| Error::Kernel { kernel: kernel.name.clone(), source })
}

/// Whether a kernel may be launched as PTX.
pub(crate) fn takes(kernel: &Kernel) -> bool {
    let secret = |expr: &Expr| matches!(expr, Expr::MatrixWord(..) | Expr::MatrixOfWords(..));
    kernel.foreign.is_none() && !kernel.values.iter().any(|def| secret(&def.expr))
}

impl Function {
    /// Prints a kernel and lets the driver assemble it.
    pub(crate) fn new(
        context: &Arc<Context>,
        kernel: &Kernel,
        capability: Capability,
    ) -> Result<Self, Error> {
        let calls = context.binary_import.as_ref().ok_or_else(|| Error::Driver {
            call: "vkCreateCuModuleNVX",
            problem: "the device has no VK_NVX_binary_import".into(),
        })?;
        let text = text(kernel, capability)?;
        let text = CString::new(text).unwrap_or_default();
        // The text ends with a zero that its size does not count.
        let info = vk::CuModuleCreateInfoNVX {
            data_size: text.as_bytes().len(),
            p_data: text.as_ptr().cast::<c_void>(),
            ..Default::default()
        };
        let device = context.raw.handle();
        let mut module = vk::CuModuleNVX::null();
        // Safety: the text outlives the call, and the extension is enabled.
        unsafe { (calls.create_cu_module_nvx)(device, &info, std::ptr::null(), &mut module) }
            .result()
            .map_err(failed("vkCreateCuModuleNVX"))?;
        let name = CString::new(ptx::ENTRY).unwrap_or_default();
        let info = vk::CuFunctionCreateInfoNVX { module, p_name: name.as_ptr(), ..Default::default() };
        let mut raw = vk::CuFunctionNVX::null();
        // Safety: the module was made above, and the name outlives the call.
        let made =
            unsafe { (calls.create_cu_function_nvx)(device, &info, std::ptr::null(), &mut raw) }.result();
        if let Err(e) = made {
            // Safety: nothing uses the module.
            unsafe { (calls.destroy_cu_module_nvx)(device, module, std::ptr::null()) };
            return Err(failed("vkCreateCuFunctionNVX")(e));
        }
        let offsets = ptx::param_offsets(kernel);
        Ok(Function { context: context.clone(), module, raw, offsets, threads: kernel.group })
    }

    /// Launches it, with a dispatch's block of arguments, whose bytes are copied into the commands.
    pub(crate) fn launch(&self, commands: vk::CommandBuffer, groups: [u32; 3], block: &[u8]) {
        let Some(calls) = &self.context.binary_import else { return };
        // Aligned as the widest parameter.
        let words: Vec<u64> = block.chunks(8).map(word).collect();
        let base = words.as_ptr().cast::<u8>();
        let inside = |offset: &&u32| (**offset as usize) < 8 * words.len();
        let params: Vec<*const c_void> = self
            .offsets
            .iter()
            .filter(inside)
            .map(|offset| base.wrapping_add(*offset as usize).cast::<c_void>())
            .collect();
        let [grid_dim_x, grid_dim_y, grid_dim_z] = groups;
        let info = vk::CuLaunchInfoNVX {
            function: self.raw,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x: self.threads,
            block_dim_y: 1,
            block_dim_z: 1,
            // Workgroup memory is declared in the module.
            shared_mem_bytes: 0,
            param_count: params.len(),
            p_params: params.as_ptr(),
            ..Default::default()
        };
        // Safety: the buffer is in recording; every pointer leads to a parameter of the module's own sizes, and `words` and
        // `params` outlive the call; the recording keeps the function.
        unsafe { (calls.cmd_cu_launch_kernel_nvx)(commands, &info) };
    }
}

/// Up to eight bytes as a word of the same bytes.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_ne_bytes(word)
}

impl Drop for Function {
    fn drop(&mut self) {
        let (Some(calls), device) = (&self.context.binary_import, self.context.raw.handle()) else { return };
        // Safety: recordings hold the functions they launch.
        unsafe {
            (calls.destroy_cu_function_nvx)(device, self.raw, std::ptr::null());
            (calls.destroy_cu_module_nvx)(device, self.module, std::ptr::null());
        }
    }
}
