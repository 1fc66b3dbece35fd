//! Reductions, softmax, norms and scans over every way of giving rows to invocations, on the first Vulkan device.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod own_process;

use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine::{Device, PipelineCache, SessionOptions};
use olivine_cases::{SessionBackend, row_cases, run_table};
use own_process::in_own_process;

/// Runs all cases; none may fail, and the validation layer has nothing to say.
fn pass(name: &str, options: SessionOptions) {
    let options = options.validation(true).pipeline_cache(PipelineCache::Off);
    let backend = SessionBackend::new(name, Device::Vulkan, options).unwrap_or_else(|e| panic!("{e}"));
    let report = run_table(&backend, &row_cases(usize::MAX), "", 1);
    assert!(report.results.len() > 200);
    let mut wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    wrong.extend(backend.session().validation_messages());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn rows_of_every_length_with_every_access_checked() {
    in_own_process(|| pass("vulkan checked", SessionOptions::new().checked(true)));
}

#[test]
fn rows_of_every_length_without_subgroups() {
    let without = Mask { subgroups: true, ..Mask::default() };
    in_own_process(|| pass("vulkan without subgroups", SessionOptions::new().without(without)));
}
