//! The extension's entry points imitated: what is asked of a driver, and what becomes of one that is wrong.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use ash::vk::Handle;

use super::*;
use crate::{Device, Options, Ptx, Select};

/// What the imitation was asked for.
#[derive(Default)]
struct Asked {
    /// The targets of modules, and whether each was taken.
    targets: Vec<(String, bool)>,
    launches: Vec<Launch>,
    modules: i64,
    functions: i64,
}

#[derive(Clone, Debug, PartialEq)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    addresses: [u64; 2],
    factor: u32,
    params: usize,
}

static ASKED: Mutex<Asked> =
    Mutex::new(Asked { targets: Vec::new(), launches: Vec::new(), modules: 0, functions: 0 });

fn asked<T>(f: impl FnOnce(&mut Asked) -> T) -> T {
    f(&mut ASKED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A Hopper card takes what is as old as it or older.
unsafe extern "system" fn create_module(
    _: vk::Device,
    info: *const vk::CuModuleCreateInfoNVX<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::CuModuleNVX,
) -> vk::Result {
    // Safety: the caller hands over a structure whose text ends with a zero, and a place for the handle.
    let (text, bytes) = unsafe { (CStr::from_ptr((*info).p_data.cast()), (*info).data_size) };
    let text = text.to_string_lossy().into_owned();
    assert_eq!(text.len(), bytes);
    let target = text.lines().find_map(|l| l.strip_prefix(".target ")).unwrap_or_default().to_string();
    let taken = target.trim_start_matches("sm_").parse::<u32>().is_ok_and(|n| n <= 90);
    asked(|a| {
        a.targets.push((target, taken));
        a.modules += i64::from(taken);
    });
    if !taken {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    // Safety: as above.
    unsafe { *module = vk::CuModuleNVX::from_raw(7) };
    vk::Result::SUCCESS
}

unsafe extern "system" fn create_function(
    _: vk::Device,
    info: *const vk::CuFunctionCreateInfoNVX<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    function: *mut vk::CuFunctionNVX,
) -> vk::Result {
    // Safety: the caller hands over a structure with a name, and a place for the handle.
    unsafe {
        assert_eq!((*info).module.as_raw(), 7);
        assert_eq!(CStr::from_ptr((*info).p_name).to_str(), Ok(ptx::ENTRY));
        *function = vk::CuFunctionNVX::from_raw(8);
    }
    asked(|a| a.functions += 1);
    vk::Result::SUCCESS
}

unsafe extern "system" fn destroy_module(
    _: vk::Device,
    _: vk::CuModuleNVX,
    _: *const vk::AllocationCallbacks<'_>,
) {
    asked(|a| a.modules -= 1);
}

unsafe extern "system" fn destroy_function(
    _: vk::Device,
    _: vk::CuFunctionNVX,
    _: *const vk::AllocationCallbacks<'_>,
) {
    asked(|a| a.functions -= 1);
}

/// Notes the launch, and computes nothing.
unsafe extern "system" fn launch(_: vk::CommandBuffer, info: *const vk::CuLaunchInfoNVX<'_>) {
    // Safety: the trial's kernel has two addresses and a number, and the caller points to each.
    let noted = unsafe {
        let i = &*info;
        let param = |n: usize| *i.p_params.add(n);
        Launch {
            grid: [i.grid_dim_x, i.grid_dim_y, i.grid_dim_z],
            block: [i.block_dim_x, i.block_dim_y, i.block_dim_z],
            addresses: [0, 1].map(|n| param(n).cast::<u64>().read()),
            factor: param(2).cast::<u32>().read(),
            params: i.param_count,
        }
    };
    asked(|a| a.launches.push(noted));
}

fn imitation() -> EntryPoints {
    EntryPoints {
        create_cu_module_nvx: create_module,
        create_cu_function_nvx: create_function,
        destroy_cu_module_nvx: destroy_module,
        destroy_cu_function_nvx: destroy_function,
        cmd_cu_launch_kernel_nvx: launch,
    }
}

#[test]
fn a_driver_that_computes_nothing_is_found_out_and_everything_is_given_back() {
    let options = Options { cache_dir: None, ..Options::default() };
    let mut device = Device::open_with(&Select::Auto, &options, Some(imitation())).unwrap();
    device.pipelines.launches_ptx = true;
    let outcome = device.try_ptx();
    assert_eq!(device.caps.ptx, Some(Capability::HOPPER));
    assert!(matches!(outcome, Outcome::Wrong(_)), "a kernel that never ran was taken for right");
    let (targets, launches) = asked(|a| (a.targets.clone(), a.launches.clone()));
    let first: Vec<(&str, bool)> = targets.iter().take(2).map(|(t, taken)| (t.as_str(), *taken)).collect();
    assert_eq!(first, [("sm_100", false), ("sm_90", true)]);
    let [one] = launches.as_slice() else { panic!("{} launches", launches.len()) };
    assert_eq!((one.grid, one.block, one.params), ([3, 1, 1], [64, 1, 1], 3));
    assert_eq!(one.factor, 2.5f32.to_bits());
    assert!(one.addresses[0] != 0 && one.addresses[1] != 0 && one.addresses[0] != one.addresses[1]);
    drop(device);
    assert_eq!(asked(|a| (a.modules, a.functions)), (0, 0));
}

#[test]
fn a_device_without_the_extension_runs_as_ever_when_ptx_is_asked_for() {
    let options = Options { cache_dir: None, ptx: Ptx::All, ..Options::default() };
    let device = Device::open(&Select::Auto, &options).unwrap();
    assert!(device.context.facts.has(binary_import::NAME) || device.caps.ptx.is_none());
}

#[test]
fn words_of_matrices_stay_with_the_driver_that_made_them() {
    use olivine_kernel::{MatrixShape, MatrixType, MatrixUse};
    let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    let target = Target { subgroup: Some(32), f16: true, matrices: vec![shape], ..Target::plain() };
    let kernel = |through_words: bool| {
        let k = Builder::new("words", 32, &target);
        let (x, y) = (k.arg("x", Elem::F16, Access::Read), k.arg("y", Elem::U32, Access::Write));
        let right = MatrixType { elem: Elem::F16, rows: 16, columns: 16, role: MatrixUse::B };
        let matrix = x.load_matrix(right, k.u32(0), k.u32(16), true);
        let stored = if through_words { matrix.matrix_words(4)[0] } else { k.u32(1) };
        y.store(k.lane(), stored);
        k.finish().unwrap()
    };
    assert!(!takes(&kernel(true)));
    assert!(takes(&kernel(false)));
}

#[test]
fn the_trial_of_warpgroups_computes_what_it_expects() {
    use olivine_kernel::interpret::{Device as Arithmetic, interpret};
    let target = Target {
        subgroup: Some(32),
        f16: true,
        i64: true,
        warpgroups: true,
        int8_warpgroups: true,
        max_invocations: 1024,
        shared_bytes: 48 << 10,
        ..Target::plain()
    };
    let all = FLOATS.into_iter().chain(INTEGERS);
    for operands in all {
        let trial = warpgroup_trial::trial(operands, &target).unwrap();
        let mut buffers = trial.inputs.clone();
        buffers.push(vec![0xff; trial.expected.len()]);
        interpret(&trial.kernel, 32, [1; 3], &mut buffers, &trial.params, Arithmetic::EXACT).unwrap();
        assert!(buffers.last() == Some(&trial.expected), "{operands:?}");
        let text = text(&trial.kernel, Capability::HOPPER).unwrap();
        assert!(text.contains(".target sm_90a\n"), "{operands:?}");
        // Through SPIR-V there is no such kernel, and no way to make it one.
        assert!(trial.kernel.has_warpgroups());
        assert!(olivine_kernel::spirv::print(&trial.kernel, &Default::default()).is_err());
    }
}
