//! Every kernel that the table of cases lowers to, printed: `spirv-val` takes the SPIR-V and naga the WGSL.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::Interpreter;
use olivine_cases::{Case, attention_cases, table};
use olivine_kernel::spirv::{self, Addressing, SpirvOptions};
use olivine_kernel::wgsl::{self, Dialect, WgslOptions};
use olivine_kernel::{Kernel, Scalar};

/// The kernels of all cases that a device runs, each once.
fn kernels(device: &Interpreter) -> Vec<Arc<Kernel>> {
    kernels_of(device, table().into_iter().chain(attention_cases(60, 7)))
}

fn kernels_of(device: &Interpreter, cases: impl Iterator<Item = Case>) -> Vec<Arc<Kernel>> {
    let mut known = HashMap::new();
    for case in cases {
        let Ok(program) = device.lower(&case.graph().unwrap()) else { continue };
        for kernel in program.kernels {
            known.entry(kernel.content_hash()).or_insert(kernel);
        }
    }
    known.into_values().collect()
}

/// What `spirv-val` finds wrong with a module; nothing, if all is well.
fn complaint(words: &[u32]) -> Option<String> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("spirv-val: {e}; it comes with `apt install spirv-tools`"));
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn spirv_val_takes_every_kernel() {
    for device in [Interpreter::plain(), Interpreter::rich(32)] {
        let kernels = kernels(&device);
        assert!(kernels.len() > 100, "{} kernels", kernels.len());
        // Each is a process, and the other tests of this file are done long before.
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for some in kernels.chunks(kernels.len().div_ceil(threads)) {
                scope.spawn(|| some.iter().for_each(|kernel| spirv_val_takes(kernel)));
            }
        });
    }
}

#[test]
fn kernels_with_matrices_are_printed() {
    let families = table().into_iter().filter(|c| matches!(c.family, "attention" | "packed"));
    let mut kernels = kernels_of(&Interpreter::with_matrices(), families.chain(attention_cases(60, 7)));
    kernels.retain(|k| k.name.contains("coop"));
    assert!(kernels.len() > 20, "{} kernels", kernels.len());
    for kernel in kernels {
        // `spirv-val` of some systems knows nothing of them yet.
        printed(&kernel, false);
        printed(&kernel, true);
    }
}

fn printed(kernel: &Kernel, checked: bool) -> Vec<u32> {
    let options = SpirvOptions {
        addressing: Addressing::Pointers { push_bytes: 128 },
        f16_registers: true,
        checked,
        ..SpirvOptions::default()
    };
    spirv::print(kernel, &options).unwrap_or_else(|e| panic!("{}: {e}", kernel.name))
}

fn spirv_val_takes(kernel: &Kernel) {
    for checked in [false, true] {
        let words = printed(kernel, checked);
        if let Some(problem) = complaint(&words) {
            panic!("{}, checked {checked}: {problem}", kernel.name);
        }
    }
}

/// A kernel as naga has it, parsed from WGSL and validated.
fn taken_by_naga(
    kernel: &Kernel,
    dialect: Dialect,
    checked: bool,
    capabilities: naga::valid::Capabilities,
) -> (naga::Module, naga::valid::ModuleInfo) {
    let module = wgsl::print(kernel, &WgslOptions { dialect, checked })
        .unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let parsed = naga::front::wgsl::parse_str(&module.source)
        .unwrap_or_else(|e| panic!("{}\n{}", module.source, e.emit_to_string(&module.source)));
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    match validator.validate(&parsed) {
        Ok(info) => (parsed, info),
        Err(e) => panic!("{}\n{}", module.source, e.emit_to_string(&module.source)),
    }
}

fn native_capabilities() -> naga::valid::Capabilities {
    use naga::valid::Capabilities as C;
    let halves = C::SHADER_FLOAT16 | C::SHADER_FLOAT16_IN_FLOAT32;
    halves | C::IMMEDIATES | C::SHADER_INT64 | C::SUBGROUP | C::SUBGROUP_BARRIER
}

#[test]
fn naga_takes_every_kernel() {
    use naga::valid::Capabilities as C;
    let plain = C::SHADER_FLOAT16 | C::SHADER_FLOAT16_IN_FLOAT32;
    let dialects = [
        (Interpreter::plain(), Dialect::Plain, plain),
        (Interpreter::rich(32), Dialect::Native, native_capabilities()),
    ];
    for (device, dialect, capabilities) in dialects {
        for kernel in kernels(&device) {
            // WGSL has no f64.
            if kernel.values.iter().any(|v| v.ty.scalar() == Some(Scalar::F64)) {
                continue;
            }
            taken_by_naga(&kernel, dialect, false, capabilities);
        }
    }
}

/// No Metal ran them: this is as far as they go without.
#[test]
fn matrices_are_printed_for_metal() {
    let families = table().into_iter().filter(|c| matches!(c.family, "contraction" | "conv" | "packed"));
    let mut kernels = kernels_of(&Interpreter::metal(), families);
    kernels.retain(|k| k.name.contains("coop"));
    let named = |name: &str| kernels.iter().filter(|k| k.name.starts_with(name)).count();
    assert!(named("matmul_coop") > 4 && named("conv_coop") > 0, "{} kernels", kernels.len());
    let options = naga::back::msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let capabilities = native_capabilities() | naga::valid::Capabilities::COOPERATIVE_MATRIX;
    for kernel in kernels {
        for checked in [false, true] {
            let (module, info) = taken_by_naga(&kernel, Dialect::Native, checked, capabilities);
            let printed = naga::back::msl::write_string(&module, &info, &options, &Default::default());
            let (text, reflection) = printed.unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            assert!(reflection.entry_point_names.iter().all(|name| name.is_ok()), "{}", kernel.name);
            for part in [
                "metal::simdgroup_float8x8",
                "simdgroup_load(",
                "simdgroup_multiply_accumulate(",
                "simdgroup_store(",
                "threadgroup_barrier(",
            ] {
                assert!(text.contains(part), "{} without {part}:\n{text}", kernel.name);
            }
        }
    }
}
