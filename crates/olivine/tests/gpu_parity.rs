//! Every case of the table on the GPU backends, over a software device where there is no other: with all features,
//! with each masked off, checked, and in the browsers' dialect.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod own_process;

use std::collections::HashSet;
use std::fmt::Write;

use olivine::internals::OptionsExt as _;
use olivine::internals::SessionExt as _;
use olivine::internals::gpu::Mask;
use olivine::internals::kernel::Kernel;
use olivine::{Device, PipelineCache, SessionOptions};
use olivine_cases::{
    Case, CaseResult, Outcome, Report, SessionBackend, fuzz_cases, long_axes, run_table, table,
};
use own_process::in_own_process;

/// Opens a device, or says what to install.
fn open(name: &str, device: Device, options: SessionOptions) -> SessionBackend {
    let options = options.pipeline_cache(PipelineCache::Off);
    SessionBackend::new(name, device, options).unwrap_or_else(|e| {
        panic!(
            "{e}\ninstall a device: apt-get install mesa-vulkan-drivers libvulkan1 vulkan-validationlayers"
        )
    })
}

/// Whether a case was refused for a reason that is allowed.
fn excused(result: &CaseResult, options: &SessionOptions) -> bool {
    let Outcome::Refused(reason) = &result.outcome else { return false };
    // Checked runs report what others clamp.
    let reported = options.checked && reason.contains("is out of range for size");
    let browser = options.is_browser_dialect() && reason.contains("the device has no f64");
    reported || browser
}

/// Runs every case of the table, or a sample that has all kernels; see [`sample`].
fn passes(name: &str, device: Device, options: SessionOptions) {
    in_own_process(|| {
        let backend = open(name, device, options.clone());
        // Checked kernels are several times as long, and compile as slowly: each once is enough, in whatever types.
        let cases = if runs_all() { table() } else { sample(&backend, table(), !options.checked) };
        judge(&run_table(&backend, &cases, "", threads(&options)), &backend, &options);
    });
}

/// Whether every case runs (`cargo xtask test --all`).
fn runs_all() -> bool {
    std::env::var_os("OLIVINE_TEST_ALL").is_some()
}

/// The first case of the table for every kernel, by its name or by name and types, and one in sixteen of the others.
///
/// A software device compiles each distinct kernel with LLVM, which takes most of the time of a run of the table. The whole
/// table runs here with `--all`, on the CPU always, and on GPUs by `olivine verify`.
fn sample(backend: &SessionBackend, cases: Vec<Case>, by_type: bool) -> Vec<Case> {
    let session = backend.session();
    let mut seen = HashSet::new();
    let mut has_new_kernel = |case: &Case| {
        let graph = case.graph().unwrap();
        let program = session.explain(&graph).and_then(|compiled| session.program(&compiled));
        // Of those that the device refuses the sample is enough.
        let Ok(Some(program)) = program else { return false };
        let key = |kernel: &Kernel| {
            let types: Vec<String> = kernel.args.iter().map(|arg| format!("{:?}", arg.elem)).collect();
            (kernel.name.clone(), if by_type { types } else { Vec::new() })
        };
        program.kernels.iter().filter(|kernel| seen.insert(key(kernel))).count() > 0
    };
    let every = if by_type { 16 } else { 64 };
    let all = cases.len();
    let chosen: Vec<Case> = cases
        .into_iter()
        .enumerate()
        .filter(|(number, case)| has_new_kernel(case) || number % every == 0)
        .map(|(_, case)| case)
        .collect();
    println!("{} of {all} cases, {} kernels", chosen.len(), seen.len());
    chosen
}

fn threads(options: &SessionOptions) -> usize {
    if options.validation { 1 } else { 2 }
}

fn judge(report: &Report, backend: &SessionBackend, options: &SessionOptions) {
    let failures: Vec<&CaseResult> = report.failures().filter(|r| !excused(r, options)).collect();
    let mut text = String::new();
    for failure in failures.iter().take(200) {
        writeln!(text, "{}: {}", failure.name, failure.outcome).unwrap();
    }
    println!("{} of {} on {}", report.passed(), report.results.len(), report.backend);
    assert!(failures.is_empty(), "{} failures on {}\n{text}", failures.len(), report.backend);
    assert!(report.passed() * 4 > report.results.len() * 3, "{report}");
    let messages = backend.session().validation_messages();
    assert!(messages.is_empty(), "{} messages, the first: {:#?}", messages.len(), messages.first());
}

fn validated() -> SessionOptions {
    SessionOptions::new().validation(true)
}

#[test]
fn the_table_passes_on_vulkan_under_validation() {
    passes("vulkan", Device::Vulkan, validated());
}

#[test]
fn the_table_passes_on_vulkan_without_subgroups() {
    let without = Mask { subgroups: true, ..Mask::default() };
    passes("vulkan without subgroups", Device::Vulkan, validated().without(without));
}

#[test]
fn the_table_passes_on_vulkan_without_f16() {
    let without = Mask { f16: true, ..Mask::default() };
    passes("vulkan without f16", Device::Vulkan, validated().without(without));
}

#[test]
fn the_table_passes_on_vulkan_without_cooperative_matrices() {
    let without = Mask { matrices: true, ..Mask::default() };
    passes("vulkan without matrices", Device::Vulkan, validated().without(without));
}

#[test]
fn the_table_passes_on_vulkan_checked() {
    passes("vulkan checked", Device::Vulkan, validated().checked(true));
}

#[test]
fn the_table_passes_on_wgpu() {
    passes("wgpu", Device::Wgpu, SessionOptions::default());
}

#[test]
fn indices_and_movement_pass_on_wgpu_checked() {
    in_own_process(|| {
        let options = SessionOptions::new().checked(true);
        let backend = open("wgpu checked", Device::Wgpu, options.clone());
        for family in ["index/", "movement/", "unary/"] {
            judge(&run_table(&backend, &table(), family, 2), &backend, &options);
        }
    });
}

#[test]
fn the_table_passes_on_wgpu_in_the_browsers_dialect() {
    let options = SessionOptions::new().browser_dialect(true);
    passes("wgpu as in browsers", Device::Wgpu, options);
}

/// Axes that 16 bits do not count, nor the workgroups of one dispatch.
#[test]
fn axes_beyond_16_bits_pass_on_vulkan() {
    in_own_process(|| {
        let backend = open("vulkan", Device::Vulkan, validated());
        judge(&run_table(&backend, &long_axes(65_537), "", 1), &backend, &validated());
    });
}

#[test]
fn axes_beyond_16_bits_pass_on_wgpu() {
    in_own_process(|| {
        let backend = open("wgpu", Device::Wgpu, SessionOptions::default());
        judge(&run_table(&backend, &long_axes(65_537), "", 2), &backend, &SessionOptions::default());
    });
}

#[test]
fn random_shapes_agree_with_the_oracle_on_vulkan() {
    in_own_process(|| {
        let backend = open("vulkan", Device::Vulkan, validated());
        judge(&run_table(&backend, &fuzz_cases(300, 1), "", 1), &backend, &validated());
    });
}
